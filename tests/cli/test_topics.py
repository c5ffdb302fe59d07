"""The topic commands against a real node."""

import itertools
import json

import pytest
from confluent_kafka.admin import AdminClient

from tests.nodes import NodeProcess

from .running import Cli

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture(autouse=True)
def current_cluster(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBUS_BOOTSTRAP_SERVERS", node.bootstrap)


def described(cli: Cli, topic: str) -> dict[str, object]:
    code, out, _ = cli("topic", "describe", topic, "--output", "json")
    assert code == 0
    (description,) = json.loads(out)
    assert isinstance(description, dict)
    return description


def test_a_topic_is_created_with_partitions_and_settings(cli: Cli, node: NodeProcess, topic: str) -> None:
    code, out, err = cli(
        "topic",
        "create",
        topic,
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=1234",
    )
    assert (code, out, err) == (0, "", f"Created topic {topic!r}.\n")
    description = described(cli, topic)
    assert description["configs"] == {"retention.ms": "1234"}
    assert description["partitions"] == [
        {"partition": number, "leader": 1, "replicas": [1], "isr": [1]} for number in range(3)
    ]
    metadata = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(topic, timeout=10)
    assert len(metadata.topics[topic].partitions) == 3


def test_kafkas_spelling_of_the_topic_works(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", "--topic", topic).exit_code == 0
    assert described(cli, topic)["topic"] == topic
    assert cli("topic", "delete", "--topic", topic).exit_code == 0


def test_a_topic_is_placed_by_hand(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", topic, "--replica-assignment", "1,1").exit_code == 0
    assert len(described(cli, topic)["partitions"]) == 2  # type: ignore[arg-type]
    code, _, err = cli("topic", "create", topic + "-x", "--replica-assignment", "7")
    assert code == 1
    assert err.startswith(f"Error: Cannot create topic '{topic}-x'")


def test_creating_a_topic_again_is_an_error_unless_told_otherwise(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", topic).exit_code == 0
    code, _, err = cli("topic", "create", topic)
    assert code == 1
    assert "already exists" in err
    assert "--if-not-exists" in err
    code, out, _ = cli("topic", "create", topic, "--if-not-exists", "--output", "json")
    assert code == 0
    assert json.loads(out) == {"topic": topic, "created": False, "validated_only": False}


def test_validating_creates_and_alters_nothing(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", topic, "--validate-only").exit_code == 0
    assert cli("topic", "describe", topic).exit_code == 1
    assert cli("topic", "create", topic).exit_code == 0
    before = described(cli, topic)
    arguments = ("--partitions", "4", "--config", "retention.ms=5", "--validate-only")
    assert cli("topic", "alter", topic, *arguments).exit_code == 0
    assert described(cli, topic) == before


def test_topics_are_listed_with_their_size(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic, "--partitions", "2")
    listed = json.loads(cli("topic", "list", "-o", "json").out)
    assert {"topic": topic, "partitions": 2, "replication_factor": 1} in listed
    table = cli("topic", "list").out.splitlines()
    assert table[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in [line.split() for line in table]


def test_partitions_are_added_and_settings_changed_and_reset(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic, "--config", "retention.ms=1", "--config", "segment.bytes=4096")
    code, _, err = cli(
        "topic",
        "alter",
        topic,
        "--partitions",
        "3",
        "--config",
        "max.message.bytes=99",
        "--delete-config",
        "retention.ms",
    )
    assert (code, err) == (0, f"Altered topic {topic!r}.\n")
    description = described(cli, topic)
    assert len(description["partitions"]) == 3  # type: ignore[arg-type]
    assert description["configs"] == {"max.message.bytes": "99", "segment.bytes": "4096"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--partitions", "1"],
        ["--config", "no.such.setting=1"],
        ["--config", "retention.ms=soon"],
    ],
)
def test_what_the_broker_refuses_is_one_sentence(cli: Cli, topic: str, arguments: list[str]) -> None:
    cli("topic", "create", topic, "--partitions", "2")
    code, out, err = cli("topic", "alter", topic, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("Error: Cannot ")
    assert err.count("\n") == 1


def test_topics_are_deleted_together_and_what_is_missing_is_named(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic)
    cli("topic", "create", topic + "-b")
    code, out, err = cli("topic", "delete", topic, topic + "-b", "missing", "--output", "json")
    assert code == 1
    assert sorted(json.loads(out)["deleted"]) == [topic, topic + "-b"]
    assert "'missing' does not exist" in err
    assert cli("topic", "delete", "missing", "--if-exists").exit_code == 0


@pytest.mark.parametrize("verb", [["describe"], ["delete"], ["alter", "--partitions", "2"]])
def test_a_missing_topic_is_named_with_the_next_step(cli: Cli, node: NodeProcess, verb: list[str]) -> None:
    code, out, err = cli("topic", *verb, "missing")
    assert (code, out) == (1, "")
    assert f"Topic 'missing' does not exist at {node.bootstrap}." in err
    assert "kbus topic create missing" in err
    assert cli("topic", *verb, "missing", "--if-exists").exit_code == 0


def test_people_get_the_settings_and_a_table_of_partitions(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic, "--partitions", "2", "--config", "retention.ms=7")
    code, out, _ = cli("topic", "describe", topic)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["Topic:", topic]
    assert lines[2].split() == ["Settings:", "retention.ms=7"]
    assert lines[3].split() == ["PARTITION", "LEADER", "REPLICAS", "IN", "SYNC"]
    assert lines[4].split() == ["0", "1", "1", "1"]
    assert cli("topic", "describe", topic, "--under-replicated-partitions").out == ""
