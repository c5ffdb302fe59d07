"""CreateTopics, CreatePartitions, DeleteTopics, DescribeLogDirs, in every version."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import (
    Struct,
    Wire,
    batch_of,
    create_topic,
    end_offset,
    every_version,
    fetch,
    fetch_fields,
    latest,
    produce,
)
from tests.nodes import NodeProcess

TIMEOUT = timedelta(seconds=30)
TOPIC_SOURCE, DEFAULT_SOURCE = 1, 5


def new_topic(name: str, **fields: Any) -> Struct:
    """`assignment` maps partitions to brokers, `config` names to values."""
    assignment: dict[int, list[int]] = fields.pop("assignment", {})
    config: dict[str, str | None] = fields.pop("config", {})
    default = -1 if assignment else 1
    return Struct(
        "CreatableTopic",
        name=name,
        num_partitions=fields.pop("partitions", default),
        replication_factor=fields.pop("factor", default),
        assignments=[
            Struct("CreatableReplicaAssignment", partition_index=index, broker_ids=brokers)
            for index, brokers in assignment.items()
        ],
        configs=[Struct("CreatableTopicConfig", name=key, value=value) for key, value in config.items()],
    )


def create(wire: Wire, version: int, *topics: Struct, validate_only: bool = False) -> list[Entity]:
    response = wire.call(
        ApiKey.CREATE_TOPICS, version, topics=topics, timeout=TIMEOUT, validate_only=validate_only
    )
    return list(response.topics)


def partitions_of(wire: Wire, topic: str) -> int | None:
    """None if there is no such topic."""
    found = wire.call(
        ApiKey.METADATA,
        4,
        topics=[Struct("MetadataRequestTopic", name=topic)],
        allow_auto_topic_creation=False,
    ).topics[0]
    return len(found.partitions) if found.error_code is ErrorCode.none else None


# ---- CreateTopics


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.CREATE_TOPICS))
def test_a_topic_is_created_with_its_settings(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("made")
    with Wire(node.port) as wire:
        (made,) = create(wire, version, new_topic(topic, partitions=4, config={"retention.ms": "12345"}))
        assert (made.name, made.error_code, made.error_message) == (topic, ErrorCode.none, None)
        assert partitions_of(wire, topic) == 4
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (4, 1)
            configs = {entry.name: entry for entry in made.configs}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
                "12345",
                TOPIC_SOURCE,
            )
            assert configs["segment.bytes"].config_source == DEFAULT_SOURCE
        if version >= 7:
            assert isinstance(made.topic_id, uuid.UUID)
        assert produce(wire, topic, batch_of(b"value"), partition=3).base_offset == 0


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.CREATE_TOPICS))
def test_a_question_whether_a_topic_could_be_created_creates_nothing(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("validated")
    with Wire(node.port) as wire:
        (could,) = create(wire, version, new_topic(topic, partitions=2), validate_only=True)
        assert could.error_code is ErrorCode.none
        if version >= 5:
            assert (could.num_partitions, could.replication_factor) == (2, 1)
        (could_not,) = create(wire, version, new_topic(topic, factor=2), validate_only=True)
        assert could_not.error_code is ErrorCode.invalid_replication_factor
        assert partitions_of(wire, topic) is None


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.CREATE_TOPICS))
def test_a_topic_is_placed_by_hand(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("placed")
    with Wire(node.port) as wire:
        (made,) = create(wire, version, new_topic(topic, assignment={1: [1], 0: [1]}))
        assert made.error_code is ErrorCode.none
        assert partitions_of(wire, topic) == 2


BAD_TOPICS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "a factor beyond the brokers": ({"factor": 2}, ErrorCode.invalid_replication_factor),
    "a factor of nothing": ({"factor": 0}, ErrorCode.invalid_replication_factor),
    "a broker that is not there": ({"assignment": {0: [9]}}, ErrorCode.invalid_replica_assignment),
    "a broker twice": ({"assignment": {0: [1, 1]}}, ErrorCode.invalid_replica_assignment),
    "a partition without replicas": ({"assignment": {0: []}}, ErrorCode.invalid_replica_assignment),
    "a gap in the partitions": ({"assignment": {0: [1], 2: [1]}}, ErrorCode.invalid_replica_assignment),
    "a negative partition": ({"assignment": {-1: [1]}}, ErrorCode.invalid_replica_assignment),
    "placed by hand and counted": ({"assignment": {0: [1]}, "partitions": 1}, ErrorCode.invalid_request),
    "an unknown setting": ({"config": {"retention.mss": "1"}}, ErrorCode.invalid_config),
    "an impossible value": ({"config": {"retention.ms": "soon"}}, ErrorCode.invalid_config),
    "no value": ({"config": {"retention.ms": None}}, ErrorCode.invalid_config),
    "a broker's setting": ({"config": {"broker.id": "7"}}, ErrorCode.invalid_config),
}


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(node: NodeProcess, name: str) -> None:
    fields, expected = BAD_TOPICS[name]
    fields = dict(fields)
    topic, good = unique("impossible"), unique("possible")
    with Wire(node.port) as wire:
        refused, made = create(
            wire, latest(ApiKey.CREATE_TOPICS), new_topic(topic, **fields), new_topic(good)
        )
        assert (refused.name, refused.error_code) == (topic, expected)
        assert refused.error_message
        assert made.error_code is ErrorCode.none, "one topic's failure is not another's"
        assert partitions_of(wire, topic) is None


def test_a_topic_named_twice_in_a_request_is_not_created(node: NodeProcess) -> None:
    topic, good = unique("twice"), unique("once")
    with Wire(node.port) as wire:
        results = create(wire, 7, new_topic(topic), new_topic(good), new_topic(topic, partitions=2))
        codes = {result.name: result.error_code for result in results}
        assert codes == {topic: ErrorCode.invalid_request, good: ErrorCode.none}
        assert partitions_of(wire, topic) is None


def test_a_topic_that_exists_is_not_created_again(node: NodeProcess) -> None:
    topic = unique("existing")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        for validate_only in (False, True):
            (refused,) = create(wire, 7, new_topic(topic, partitions=5), validate_only=validate_only)
            assert refused.error_code is ErrorCode.topic_already_exists
        assert partitions_of(wire, topic) == 2


def test_defaults_of_the_broker_count_where_a_client_gives_no_numbers(start_node: NodeFactory) -> None:
    node = start_node({"num.partitions": "5"})
    with Wire(node.port) as wire:
        (made,) = create(wire, 7, new_topic("defaults", partitions=-1, factor=-1))
        assert (made.num_partitions, made.replication_factor) == (5, 1)


# ---- CreatePartitions


def add_partitions(
    wire: Wire, version: int, topic: str, count: int, assignment: Any = None, *, validate_only: bool = False
) -> Entity:
    if assignment is not None:
        assignment = [Struct("CreatePartitionsAssignment", broker_ids=brokers) for brokers in assignment]
    response = wire.call(
        ApiKey.CREATE_PARTITIONS,
        version,
        topics=[Struct("CreatePartitionsTopic", name=topic, count=count, assignments=assignment)],
        timeout=TIMEOUT,
        validate_only=validate_only,
    )
    (result,) = response.results
    return result


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.CREATE_PARTITIONS))
def test_partitions_are_added_and_those_there_keep_their_records(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("grown")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        produce(wire, topic, batch_of(b"kept"))
        assert add_partitions(wire, version, topic, 3, validate_only=True).error_code is ErrorCode.none
        assert partitions_of(wire, topic) == 1
        assert add_partitions(wire, version, topic, 3).error_code is ErrorCode.none
        assert add_partitions(wire, version, topic, 5, [[1], [1]]).error_code is ErrorCode.none
        assert partitions_of(wire, topic) == 5
        assert produce(wire, topic, batch_of(b"new"), partition=4).base_offset == 0
        assert b"kept" in fetch(wire, topic, 0).records


@pytest.mark.parametrize(
    ("count", "assignment", "expected"),
    [
        (2, None, ErrorCode.invalid_partitions),
        (1, None, ErrorCode.invalid_partitions),
        (0, None, ErrorCode.invalid_partitions),
        (-1, None, ErrorCode.invalid_partitions),
        (2**31 - 1, None, ErrorCode.invalid_partitions),
        (4, [[1]], ErrorCode.invalid_replica_assignment),
        (3, [[9]], ErrorCode.invalid_replica_assignment),
        (3, [[]], ErrorCode.invalid_replica_assignment),
        (3, [[1, 1]], ErrorCode.invalid_replica_assignment),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    node: NodeProcess, count: int, assignment: list[list[int]] | None, expected: ErrorCode
) -> None:
    topic = unique("not-grown")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        refused = add_partitions(wire, 3, topic, count, assignment)
        assert refused.error_code is expected
        assert refused.error_message
        assert partitions_of(wire, topic) == 2


def test_partitions_of_a_missing_topic_cannot_be_added(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        refused = add_partitions(wire, 3, unique("missing"), 2)
        assert refused.error_code is ErrorCode.unknown_topic_or_partition


# ---- DeleteTopics


def delete(wire: Wire, version: int, name: str | None = None, topic_id: uuid.UUID | None = None) -> Entity:
    response = wire.call(
        ApiKey.DELETE_TOPICS,
        version,
        topic_names=[name],
        topics=[Struct("DeleteTopicState", name=name, topic_id=topic_id)],
        timeout=TIMEOUT,
    )
    (result,) = response.responses
    return result


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DELETE_TOPICS))
def test_a_deleted_topic_is_gone_and_one_of_its_name_starts_anew(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("deleted")
    with Wire(node.port) as wire:
        old_id = create_topic(wire, topic, partitions=2, config={"retention.ms": "1000"})
        produce(wire, topic, batch_of(b"old"))
        assert delete(wire, version, topic).error_code is ErrorCode.none
        assert partitions_of(wire, topic) is None
        assert produce(wire, topic, batch_of(b"late")).error_code is ErrorCode.unknown_topic_or_partition
        assert produce(wire, old_id, batch_of(b"late")).error_code is ErrorCode.unknown_topic_id
        assert fetch(wire, old_id, 0).error_code is ErrorCode.unknown_topic_id
        assert not (node.log_dir / f"{topic}-0").exists()
        assert delete(wire, version, topic).error_code is ErrorCode.unknown_topic_or_partition

        new_id = create_topic(wire, topic)
        assert new_id != old_id
        assert end_offset(wire, topic) == 0
        assert produce(wire, old_id, batch_of(b"late")).error_code is ErrorCode.unknown_topic_id
        assert produce(wire, new_id, batch_of(b"new")).base_offset == 0


def test_a_topic_is_deleted_by_id(node: NodeProcess) -> None:
    topic = unique("deleted-by-id")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        unknown = delete(wire, 6, topic_id=uuid.uuid4())
        assert unknown.error_code is ErrorCode.unknown_topic_id
        both = delete(wire, 6, topic, topic_id)
        assert both.error_code is ErrorCode.invalid_request
        assert partitions_of(wire, topic) == 1
        deleted = delete(wire, 6, topic_id=topic_id)
        assert (deleted.error_code, deleted.name, deleted.topic_id) == (ErrorCode.none, topic, topic_id)
        assert partitions_of(wire, topic) is None


def test_a_fetch_that_waits_for_a_topic_is_answered_when_the_topic_is_deleted(node: NodeProcess) -> None:
    topic = unique("deleted-beneath")
    with Wire(node.port) as wire, Wire(node.port) as waiting:
        topic_id = create_topic(wire, topic)
        poll = waiting.begin_long_poll(16, **fetch_fields((topic_id, 0, 0), max_wait_s=30))
        assert delete(wire, 6, topic).error_code is ErrorCode.none
        answer = waiting.receive(ApiKey.FETCH, 16, poll)
        assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id


def test_topics_cannot_be_deleted_where_the_broker_forbids_it(start_node: NodeFactory) -> None:
    node = start_node({"delete.topic.enable": "false"})
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, "kept")
        for refused in (delete(wire, 5, "kept"), delete(wire, 6, topic_id=topic_id)):
            assert refused.error_code is ErrorCode.topic_deletion_disabled
        assert partitions_of(wire, "kept") == 1


# ---- DescribeLogDirs


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DESCRIBE_LOG_DIRS))
def test_log_dirs_tell_the_size_of_every_partition(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("sized")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        produce(wire, topic, batch_of(b"value"), partition=1)
        wanted = [Struct("DescribableLogDirTopic", topic=topic, partitions=[1, 7])]
        some = wire.call(api, version, topics=wanted)
        everything = wire.call(api, version, topics=None)
    (directory,) = some.results
    assert (directory.error_code, directory.log_dir) == (ErrorCode.none, str(node.log_dir))
    (found,) = directory.topics
    (partition,) = found.partitions
    assert (found.name, partition.partition_index) == (topic, 1)
    assert partition.partition_size == len(batch_of(b"value"))
    assert (partition.offset_lag, partition.is_future_key) == (0, False)
    if version >= 4:
        assert 0 < directory.usable_bytes <= directory.total_bytes
    all_of_it = {t.name: {p.partition_index for p in t.partitions} for t in everything.results[0].topics}
    assert all_of_it[topic] == {0, 1}
