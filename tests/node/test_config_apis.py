"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, in every version: what is set takes effect."""

import threading
import time
from collections.abc import Mapping

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import Struct, Wire, batch_of, create_topic, every_version, produce
from tests.nodes import NodeProcess

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, FROM_BROKER_FILE, FROM_DEFAULT = 1, 4, 5
INT_TYPE, LONG_TYPE, LIST_TYPE = 3, 5, 7


def describe(
    wire: Wire,
    name: str,
    *,
    version: int = 4,
    kind: int = TOPIC,
    keys: list[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> Entity:
    response = wire.call(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[
            Struct("DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = response.results
    return result


def values(wire: Wire, topic: str) -> dict[str, str]:
    """What was set on the topic itself."""
    return {
        entry.name: entry.value
        for entry in describe(wire, topic).configs
        if entry.config_source == FROM_TOPIC
    }


def alter(
    wire: Wire,
    topic: str,
    config: Mapping[str, str | None],
    *,
    version: int = 2,
    validate_only: bool = False,
    kind: int = TOPIC,
) -> Entity:
    """AlterConfigs: sets these and unsets all others."""
    response = wire.call(
        ApiKey.ALTER_CONFIGS,
        version,
        resources=[
            Struct(
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=topic,
                configs=[Struct("AlterableConfig", name=key, value=value) for key, value in config.items()],
            )
        ],
        validate_only=validate_only,
    )
    (result,) = response.responses
    return result


def change(
    wire: Wire,
    topic: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
    kind: int = TOPIC,
) -> Entity:
    """IncrementalAlterConfigs: (name, operation, value)."""
    response = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=[
            Struct(
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=topic,
                configs=[
                    Struct("AlterableConfig", name=name, config_operation=operation, value=value)
                    for name, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    (result,) = response.responses
    return result


# ---- DescribeConfigs


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DESCRIBE_CONFIGS))
def test_settings_of_a_topic_tell_where_they_come_from(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("described")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"segment.bytes": "1048576"})
        result = describe(wire, topic, version=version, synonyms=True, documentation=True)
    assert (result.error_code, result.resource_name) == (ErrorCode.none, topic)
    entries = {entry.name: entry for entry in result.configs}
    assert {"cleanup.policy", "retention.ms", "max.message.bytes", "min.insync.replicas"} <= set(entries)
    segment, retention = entries["segment.bytes"], entries["retention.ms"]
    assert (segment.value, segment.config_source) == ("1048576", FROM_TOPIC)
    assert (retention.value, retention.config_source) == ("604800000", FROM_DEFAULT)
    assert not any(entry.read_only or entry.is_sensitive for entry in entries.values())
    assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
        ("segment.bytes", "1048576", FROM_TOPIC),
        ("log.segment.bytes", "1073741824", FROM_DEFAULT),
    ]
    if version >= 3:
        assert (segment.config_type, retention.config_type) == (INT_TYPE, LONG_TYPE)
        assert entries["cleanup.policy"].config_type == LIST_TYPE
        assert all(entry.documentation for entry in entries.values())


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DESCRIBE_CONFIGS))
def test_settings_are_told_in_the_detail_that_is_asked_for(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("asked-for")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        keys = ["retention.ms", "no.such.setting"]
        (entry,) = describe(wire, topic, version=version, keys=keys).configs
        assert (entry.name, entry.synonyms) == ("retention.ms", ())
        if version >= 3:
            assert entry.documentation is None
        everything = describe(wire, topic, version=version)
        assert len(everything.configs) > 20
        missing = describe(wire, unique("missing"), version=version)
        assert (missing.error_code, missing.configs) == (ErrorCode.unknown_topic_or_partition, ())
        other = describe(wire, "x", version=version, kind=8)
        assert other.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DESCRIBE_CONFIGS))
def test_settings_of_the_broker_tell_where_they_come_from(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    with Wire(node.port) as wire:
        entries = {entry.name: entry for entry in describe(wire, "1", version=version, kind=BROKER).configs}
        log_dirs, limit = entries["log.dirs"], entries["message.max.bytes"]
        assert (log_dirs.value, log_dirs.config_source) == (str(node.log_dir), FROM_BROKER_FILE)
        assert (limit.value, limit.config_source) == (str(1024 * 1024 + 12), FROM_DEFAULT)
        assert (log_dirs.read_only, limit.read_only) == (True, False)
        assert describe(wire, "", version=version, kind=BROKER).configs == (), "nothing is set on all brokers"
        elsewhere = describe(wire, "2", version=version, kind=BROKER)
        assert elsewhere.error_code is ErrorCode.invalid_request


# ---- AlterConfigs and IncrementalAlterConfigs


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.ALTER_CONFIGS))
def test_alter_configs_replaces_all_that_was_set(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("replaced")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"retention.ms": "1000", "segment.bytes": "1048576"})
        new = {"retention.ms": "2000", "max.message.bytes": "5000"}
        asked = alter(wire, topic, new, version=version, validate_only=True)
        assert asked.error_code is ErrorCode.none
        assert values(wire, topic) == {"retention.ms": "1000", "segment.bytes": "1048576"}
        altered = alter(wire, topic, new, version=version)
        assert (altered.error_code, altered.resource_name) == (ErrorCode.none, topic)
        assert values(wire, topic) == new


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_incremental_alter_configs_changes_what_is_named(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("changed")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"retention.ms": "1000", "segment.bytes": "1048576"})
        changes = [
            ("retention.ms", DELETE, None),
            ("max.message.bytes", SET, "5000"),
            ("cleanup.policy", APPEND, "compact"),
        ]
        asked = change(wire, topic, *changes, version=version, validate_only=True)
        assert asked.error_code is ErrorCode.none
        assert values(wire, topic) == {"retention.ms": "1000", "segment.bytes": "1048576"}
        assert change(wire, topic, *changes, version=version).error_code is ErrorCode.none
        expected = {"segment.bytes": "1048576", "max.message.bytes": "5000"}
        assert values(wire, topic) == {**expected, "cleanup.policy": "delete,compact"}
        subtracted = change(wire, topic, ("cleanup.policy", SUBTRACT, "delete"), version=version)
        assert subtracted.error_code is ErrorCode.none
        assert values(wire, topic) == {**expected, "cleanup.policy": "compact"}


BAD_CHANGES = {
    "an unknown setting": (("retention.mss", SET, "1"), ErrorCode.invalid_config),
    "an impossible value": (("retention.ms", SET, "soon"), ErrorCode.invalid_config),
    "no value": (("retention.ms", SET, None), ErrorCode.invalid_config),
    "an unknown operation": (("retention.ms", 9, "1"), ErrorCode.invalid_request),
    "an append to what is no list": (("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
    "an item that cannot be in the list": (("cleanup.policy", APPEND, "burn"), ErrorCode.invalid_config),
}


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_change_that_cannot_be_is_refused_whole_and_says_why(node: NodeProcess, name: str) -> None:
    bad, expected = BAD_CHANGES[name]
    topic = unique("unchanged")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"retention.ms": "1000"})
        refused = change(wire, topic, ("max.message.bytes", SET, "5000"), bad)
        assert refused.error_code is expected
        assert refused.error_message
        assert values(wire, topic) == {"retention.ms": "1000"}


def test_settings_of_what_is_not_there_cannot_be_changed(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        missing = unique("missing")
        unknown = ErrorCode.unknown_topic_or_partition
        assert alter(wire, missing, {"retention.ms": "1"}).error_code is unknown
        assert change(wire, missing, ("retention.ms", SET, "1")).error_code is unknown
        for name, kind in (("2", BROKER), ("1", 8)):
            refused = change(wire, name, ("message.max.bytes", SET, "1"), kind=kind)
            assert refused.error_code is ErrorCode.invalid_request
            assert refused.error_message


@pytest.mark.parametrize(
    ("name", "value"),
    [("log.dirs", "/elsewhere"), ("broker.id", "7"), ("message.max.bytes", "much"), ("no.such.setting", "1")],
)
def test_settings_of_a_broker_that_cannot_change_while_it_runs_are_refused(
    node: NodeProcess, name: str, value: str
) -> None:
    with Wire(node.port) as wire:
        for broker in ("1", ""):
            for refused in (
                alter(wire, broker, {name: value}, kind=BROKER),
                change(wire, broker, (name, SET, value), kind=BROKER),
            ):
                assert refused.error_code in (ErrorCode.invalid_config, ErrorCode.invalid_request)
                assert refused.error_message
        entries = {entry.name: entry for entry in describe(wire, "1", kind=BROKER).configs}
        assert entries["log.dirs"].value == str(node.log_dir)


def test_changes_of_many_clients_at_once_are_all_kept(node: NodeProcess) -> None:
    """Each changes one setting of the same topic, again and again: none may write back what another
    has just changed."""
    topic = unique("contended")
    names = ["retention.ms", "segment.ms", "max.message.bytes", "flush.ms"]
    with Wire(node.port) as wire:
        create_topic(wire, topic)
    failures: list[BaseException] = []

    def keep_changing(name: str) -> None:
        try:
            with Wire(node.port) as wire:
                for number in range(1000, 1020):
                    changed = change(wire, topic, (name, SET, str(number)))
                    assert changed.error_code is ErrorCode.none
                    assert values(wire, topic)[name] == str(number), "another client undid it"
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            failures.append(error)

    threads = [threading.Thread(target=keep_changing, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    with Wire(node.port) as wire:
        assert values(wire, topic) == dict.fromkeys(names, "1019")


# ---- effects


def test_max_message_bytes_takes_effect_at_once(node: NodeProcess) -> None:
    topic = unique("limit")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        batch = batch_of(bytes(2000))
        assert produce(wire, topic, batch).error_code is ErrorCode.none
        change(wire, topic, ("max.message.bytes", SET, "1000"))
        assert produce(wire, topic, batch).error_code is ErrorCode.message_too_large
        change(wire, topic, ("max.message.bytes", DELETE, None))
        assert produce(wire, topic, batch).error_code is ErrorCode.none


def test_message_timestamp_type_takes_effect_at_once(node: NodeProcess) -> None:
    topic = unique("time-type")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        assert produce(wire, topic, batch_of(b"value")).log_append_time is None
        change(wire, topic, ("message.timestamp.type", SET, "LogAppendTime"))
        told = produce(wire, topic, batch_of(b"value")).log_append_time
        assert abs(told.timestamp() - time.time()) < 60
        alter(wire, topic, {})
        assert produce(wire, topic, batch_of(b"value")).log_append_time is None


def test_cleanup_policy_takes_effect_at_once(node: NodeProcess) -> None:
    topic = unique("policy")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        keyless = batch_of(b"value", key=None)
        assert produce(wire, topic, keyless).error_code is ErrorCode.none
        change(wire, topic, ("cleanup.policy", SET, "compact"))
        assert produce(wire, topic, keyless).error_code is ErrorCode.invalid_record


def test_segment_bytes_take_effect_at_once(node: NodeProcess) -> None:
    topic = unique("segments")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        change(wire, topic, ("segment.bytes", SET, "1100"))
        for _ in range(4):
            assert produce(wire, topic, batch_of(bytes(1000))).error_code is ErrorCode.none
    assert len(list((node.log_dir / f"{topic}-0").glob("*.log"))) == 4


def test_min_insync_replicas_beyond_the_replicas_does_not_lock_a_topic(node: NodeProcess) -> None:
    """A cluster of one broker takes acks=all for topics that were set up for three."""
    topic = unique("min-isr")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"min.insync.replicas": "2"})
        assert produce(wire, topic, batch_of(b"value"), acks=1).error_code is ErrorCode.none
        assert produce(wire, topic, batch_of(b"value"), acks=-1).error_code is ErrorCode.none


def test_settings_changed_on_brokers_take_effect_at_once_and_survive_a_restart(
    start_node: NodeFactory,
) -> None:
    """Those of this broker go before those of all, and both before the file."""
    node = start_node({"message.max.bytes": "3000"})

    def limit(wire: Wire) -> str:
        (entry,) = describe(wire, "limited", keys=["max.message.bytes"]).configs
        value: str = entry.value
        return value

    with Wire(node.port) as wire:
        create_topic(wire, "limited")
        change(wire, "", ("message.max.bytes", SET, "2000"), kind=BROKER)
        assert limit(wire) == "2000"
        assert produce(wire, "limited", batch_of(bytes(2500))).error_code is ErrorCode.message_too_large
        change(wire, "1", ("message.max.bytes", SET, "1000"), kind=BROKER)
        assert limit(wire) == "1000"
    node.stop()
    node.start()
    with Wire(node.port) as wire:
        assert produce(wire, "limited", batch_of(bytes(1500))).error_code is ErrorCode.message_too_large
        change(wire, "1", ("message.max.bytes", DELETE, None), kind=BROKER)
        assert limit(wire) == "2000"
        change(wire, "", ("message.max.bytes", DELETE, None), kind=BROKER)
        assert limit(wire) == "3000"
        assert produce(wire, "limited", batch_of(bytes(2500))).error_code is ErrorCode.none


def test_settings_of_the_broker_are_the_topics_defaults(start_node: NodeFactory) -> None:
    node = start_node(
        {"log.segment.bytes": "123456", "log.retention.hours": "2", "message.max.bytes": "2000"}
    )
    with Wire(node.port) as wire:
        create_topic(wire, "inherits")
        entries = {entry.name: entry for entry in describe(wire, "inherits", synonyms=True).configs}
        assert entries["segment.bytes"].value == "123456"
        assert entries["segment.bytes"].config_source == FROM_BROKER_FILE
        assert entries["retention.ms"].value == "7200000"
        assert produce(wire, "inherits", batch_of(bytes(3000))).error_code is ErrorCode.message_too_large
