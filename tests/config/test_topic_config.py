import pytest

from kbus.config import (
    Alteration,
    AlterOp,
    BrokerConfig,
    ConfigError,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    TopicConfig,
    apply_alterations,
    topic,
)

HOUR_MS = 3_600_000


def test_topic_values_come_from_overrides_then_the_broker() -> None:
    broker_config = BrokerConfig({"log.segment.bytes": "5000", "message.max.bytes": "77"})
    config = TopicConfig(broker_config, {"segment.bytes": " 6000 "})
    assert config[topic.SEGMENT_BYTES] == 6000
    assert config[topic.MAX_MESSAGE_BYTES] == 77
    assert config.overrides == {"segment.bytes": " 6000 "}


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "9"}, 9),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, -1),
    ],
)
def test_the_finest_unit_of_a_broker_setting_wins(properties: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig(BrokerConfig(properties))[topic.RETENTION_MS] == retention_ms


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("retention.mss", "1", "Unknown topic setting retention.mss; did you mean retention.ms?"),
        ("log.segment.bytes", "1", "Unknown topic setting log.segment.bytes; did you mean segment.bytes?"),
        ("segment.bytes", "13", "segment.bytes must be a whole number of at least 14, but it is '13'."),
        ("retention.ms", "-2", "retention.ms must be a whole number of at least -1, but it is '-2'."),
        ("retention.ms", None, "retention.ms has no value; give one, or leave the setting out"),
        (
            "message.timestamp.type",
            "createtime",
            "must be CreateTime or LogAppendTime, but it is 'createtime'.",
        ),
        ("compression.gzip.level", "0", "must be a whole number from 1 to 9, or -1, but it is '0'."),
        (
            "remote.storage.enable",
            "true",
            "remote.storage.enable cannot be true: kbus has no tiered storage.",
        ),
        ("message.format.version", "0.10.2", "format of Kafka 0.11 and later only."),
        ("message.timestamp.difference.max.ms", "5", "set message.timestamp.before.max.ms and"),
        ("min.compaction.lag.ms", str(2**63 - 1), "OK"),
        ("leader.replication.throttled.replicas", "0:1,x", "must be * or a list of partition:broker"),
    ],
)
def test_wrong_overrides_are_refused_in_one_sentence(name: str, value: str | None, sentence: str) -> None:
    if sentence == "OK":
        TopicConfig(BrokerConfig(), {name: value})
        return
    with pytest.raises(ConfigError) as raised:
        TopicConfig(BrokerConfig(), {name: value})
    assert sentence in str(raised.value)


def test_compaction_lags_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms \(9\) must not exceed max"):
        TopicConfig(BrokerConfig(), {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


def test_a_wrong_override_in_the_store_costs_only_itself() -> None:
    stored = {"retention.ms": "soon", "segment.bytes": "5000", "from.a.newer.version": "1"}
    config = TopicConfig.from_store(BrokerConfig(), stored)
    assert config[topic.SEGMENT_BYTES] == 5000
    assert config[topic.RETENTION_MS] == 168 * HOUR_MS
    assert config.overrides == {"segment.bytes": "5000"}
    assert [warning.split()[0] for warning in config.warnings] == ["retention.ms", "Unknown"]


def test_describe_lists_synonyms_the_one_that_counts_first() -> None:
    config = TopicConfig(BrokerConfig({"log.retention.hours": "2"}), {"retention.ms": "5"})
    entry = next(entry for entry in config.describe() if entry.name == "retention.ms")
    assert (entry.value, int(entry.source), entry.type, entry.read_only) == ("5", 1, ConfigType.LONG, False)
    assert entry.synonyms == (
        ConfigSynonym(name="retention.ms", value="5", source=ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym(name="log.retention.hours", value="2", source=ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym(name="log.retention.hours", value="168", source=ConfigSource.DEFAULT_CONFIG),
    )


def test_describe_covers_every_setting_and_calls_defaults_default() -> None:
    entries = TopicConfig(BrokerConfig()).describe()
    assert {entry.name for entry in entries} == set(topic.SETTINGS)
    assert all(entry.is_default and entry.value is not None for entry in entries)


def test_alterations_set_delete_append_and_subtract() -> None:
    changed = apply_alterations(
        {"retention.ms": "1", "segment.bytes": "99"},
        [
            Alteration(name="retention.ms", op=AlterOp.DELETE),
            Alteration(name="segment.bytes", op=AlterOp.SET, value="100"),
            Alteration(name="cleanup.policy", op=AlterOp.APPEND, value="compact,delete"),
        ],
        topic.SETTINGS,
    )
    assert changed == {"segment.bytes": "100", "cleanup.policy": "delete,compact"}
    subtract = Alteration(name="cleanup.policy", op=AlterOp.SUBTRACT, value="delete")
    assert apply_alterations(changed, [subtract], topic.SETTINGS)["cleanup.policy"] == "compact"


def test_alterations_leave_the_old_overrides_as_they_were() -> None:
    old = {"cleanup.policy": "compact"}
    apply_alterations(old, [Alteration(name="cleanup.policy", op=AlterOp.DELETE)], topic.SETTINGS)
    assert old == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("alterations", "sentence"),
    [
        ([Alteration(name="retention.ms", op=AlterOp.APPEND, value="1")], "retention.ms is not a list"),
        ([Alteration(name="retention.ms", op=AlterOp.SET)], "retention.ms has no value to set."),
        ([Alteration(name="retention", op=AlterOp.SET, value="1")], "Unknown setting retention"),
        ([Alteration(name="retention.ms", op=AlterOp.DELETE)] * 2, "changed twice in one request"),
    ],
)
def test_wrong_alterations_are_refused(alterations: list[Alteration], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        apply_alterations({}, alterations, topic.SETTINGS)


def test_a_leftover_name_can_be_deleted() -> None:
    assert apply_alterations({"old.name": "1"}, [Alteration(name="old.name", op=AlterOp.DELETE)], {}) == {}
