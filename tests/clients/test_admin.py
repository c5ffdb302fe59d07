"""Topics and their settings are administered the same through every client."""

from collections.abc import Callable

import pytest

from kbus.protocol.api import ApiKey
from tests.node.wire import Struct, Wire
from tests.nodes import NodeProcess

from .admins import Admin, AioKafkaAdmin, ConfluentAdmin, KafkaPythonAdmin
from .client import RefusedError, Sent
from .conftest import CLIENTS

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, TOPIC_ALREADY_EXISTS = 3, 17, 36
INVALID_PARTITIONS, INVALID_CONFIG, OFFSET_OUT_OF_RANGE = 37, 40, 1
BROKER_ID = 1


@pytest.fixture(params=[ConfluentAdmin, KafkaPythonAdmin, AioKafkaAdmin], ids=lambda kind: kind.name)
def admin(request: pytest.FixtureRequest, node: NodeProcess) -> Admin:
    made: Admin = request.param(node.bootstrap)
    return made


def test_a_topic_lives_from_creation_to_deletion(admin: Admin) -> None:
    topic = f"life-{admin.name}"
    assert topic not in admin.topics()
    admin.create(topic, 3, {"retention.ms": "1000000", "cleanup.policy": "compact"})
    assert topic in admin.topics()
    assert admin.leaders(topic) == {0: BROKER_ID, 1: BROKER_ID, 2: BROKER_ID}
    admin.add_partitions(topic, 5)
    assert admin.leaders(topic) == dict.fromkeys(range(5), BROKER_ID)
    config = admin.config(topic)
    assert (config["retention.ms"], config["cleanup.policy"]) == ("1000000", "compact")
    admin.delete(topic)
    assert topic not in admin.topics()
    admin.create(topic, 1, {})
    assert admin.leaders(topic) == {0: BROKER_ID}
    assert admin.config(topic)["cleanup.policy"] == "delete"


def test_altered_settings_take_effect(node: NodeProcess, admin: Admin) -> None:
    topic = f"altered-{admin.name}"
    admin.create(topic, 1, {"retention.ms": "1000000"})
    admin.alter_config(topic, {"max.message.bytes": "1000"})
    config = admin.config(topic)
    assert config["max.message.bytes"] == "1000"
    assert config["retention.ms"] == ("604800000" if admin.replaces_config else "1000000")
    with pytest.raises(RefusedError):
        CLIENTS[0].send(node.bootstrap, topic, [Sent(1, None, bytes(2000))])
    CLIENTS[0].send(node.bootstrap, topic, [Sent(1, None, bytes(500))])


def test_the_cluster_describes_itself(node: NodeProcess, admin: Admin) -> None:
    assert admin.cluster() == ([BROKER_ID], BROKER_ID)
    config = admin.broker_config(BROKER_ID)
    assert (config["broker.id"], config["log.dirs"]) == (str(BROKER_ID), str(node.log_dir))


def test_described_partitions_have_lists_where_java_wants_lists(node: NodeProcess) -> None:
    """Its describeTopics fails on null, which the protocol allows there."""
    ConfluentAdmin(node.bootstrap).create("listed", 2, {})
    with Wire(node.port) as wire:
        described = wire.call(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Struct("TopicRequest", name="listed")], cursor=None
        )
    partitions = described.topics[0].partitions
    assert [(p.eligible_leader_replicas, p.last_known_elr) for p in partitions] == [((), ())] * 2


def test_deleted_records_move_the_start(node: NodeProcess, admin: Admin) -> None:
    topic = f"cut-{admin.name}"
    admin.create(topic, 1, {})
    CLIENTS[0].send(node.bootstrap, topic, [Sent(1, None, b"%d" % n) for n in range(10)])
    assert admin.delete_records(topic, 0, before=4) == 4
    with pytest.raises(RefusedError) as refused:
        admin.delete_records(topic, 0, before=11)
    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert admin.delete_records(topic, 0, before=-1) == 10
    assert CLIENTS[0].bounds(node.bootstrap, topic, 0) == (10, 10)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (TOPIC_ALREADY_EXISTS, lambda admin: admin.create("there", 1, {})),
        (INVALID_TOPIC, lambda admin: admin.create("not a name", 1, {})),
        (INVALID_PARTITIONS, lambda admin: admin.create("none", 0, {})),
        (INVALID_CONFIG, lambda admin: admin.create("none", 1, {"retention.ms": "a week"})),
        (INVALID_CONFIG, lambda admin: admin.create("none", 1, {"no.such.setting": "1"})),
        (INVALID_CONFIG, lambda admin: admin.alter_config("there", {"segment.bytes": "-5"})),
        (UNKNOWN_TOPIC_OR_PARTITION, lambda admin: admin.alter_config("none", {"segment.bytes": "5000"})),
        (INVALID_PARTITIONS, lambda admin: admin.add_partitions("there", 1)),
        (UNKNOWN_TOPIC_OR_PARTITION, lambda admin: admin.add_partitions("none", 2)),
        (UNKNOWN_TOPIC_OR_PARTITION, lambda admin: admin.delete("none")),
    ],
    ids=[
        "create-existing",
        "create-bad-name",
        "create-no-partitions",
        "create-bad-value",
        "create-unknown-setting",
        "alter-bad-value",
        "alter-unknown-topic",
        "partitions-not-more",
        "partitions-unknown-topic",
        "delete-unknown-topic",
    ],
)
def test_what_cannot_be_done_has_its_own_error(
    admin: Admin, code: int, action: Callable[[Admin], None]
) -> None:
    if "there" not in admin.topics():
        admin.create("there", 1, {})
    with pytest.raises(RefusedError) as refused:
        action(admin)
    assert refused.value.code == code
    assert "none" not in admin.topics()
