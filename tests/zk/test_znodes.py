"""The contents of znodes are what Kafka writes and reads."""

import json
from uuid import UUID

import pytest

from kbus.config import Endpoint
from kbus.types import BrokerId, LeaderEpoch, TopicPartition
from kbus.zk import znodes


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def test_broker_registration_is_kafkas_version_5() -> None:
    registration = znodes.BrokerRegistration(
        endpoints=(Endpoint("INSIDE", "10.0.0.1", 9092), Endpoint("OUTSIDE", "::1", 9093)),
        timestamp_ms=1700000000000,
        rack="r1",
    )
    assert json.loads(registration.encode()) == {
        "version": 5,
        "host": "10.0.0.1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "endpoints": ["INSIDE://10.0.0.1:9092", "OUTSIDE://[::1]:9093"],
        "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "PLAINTEXT"},
        "features": {},
        "rack": "r1",
    }
    assert znodes.BrokerRegistration.decode(registration.encode()) == registration


def test_registrations_of_kafka_brokers_are_read() -> None:
    v5 = (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://kafka-1:9092"],"jmx_port":-1,"port":9092,"host":"kafka-1","version":5,'
        b'"timestamp":"1733000000000"}'
    )
    read = znodes.BrokerRegistration.decode(v5)
    assert read.endpoints == (Endpoint("PLAINTEXT", "kafka-1", 9092),)
    assert (read.rack, read.timestamp_ms) == (None, 1733000000000)
    v1 = b'{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    assert znodes.BrokerRegistration.decode(v1).endpoints == (Endpoint("PLAINTEXT", "localhost", 9092),)


def test_topic_assignment_is_kafkas_version_3() -> None:
    topic_id = UUID(bytes=bytes(range(240, 256)))
    assignment = znodes.TopicAssignment(
        topic_id=topic_id, partitions={0: ids(1, 2), 10: ids(3), 2: ids(2, 1)}, adding_replicas={0: ids(2)}
    )
    content = json.loads(assignment.encode())
    assert content == {
        "version": 3,
        "topic_id": "8PHy8_T19vf4-fr7_P3-_w",
        "partitions": {"0": [1, 2], "2": [2, 1], "10": [3]},
        "adding_replicas": {"0": [2]},
        "removing_replicas": {},
    }
    decoded = znodes.TopicAssignment.decode(assignment.encode())
    assert decoded == assignment
    assert list(decoded.partitions) == [0, 2, 10]


def test_assignments_from_before_topic_ids_are_read() -> None:
    old = znodes.TopicAssignment.decode(b'{"version":1,"partitions":{"0":[5]}}')
    assert (old.topic_id, old.partitions) == (None, {0: ids(5)})


def test_partition_state_is_kafkas() -> None:
    state = znodes.PartitionLeadership(
        leader=BrokerId(1), leader_epoch=LeaderEpoch(7), isr=ids(1, 3), controller_epoch=4
    )
    assert json.loads(state.encode()) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 7,
        "controller_epoch": 4,
        "isr": [1, 3],
    }
    assert znodes.PartitionLeadership.decode(state.encode()) == state


def test_the_other_contents_are_kafkas() -> None:
    controller = znodes.ControllerRegistration(broker_id=BrokerId(3), timestamp_ms=99)
    assert json.loads(controller.encode()) == {
        "version": 2,
        "brokerid": 3,
        "timestamp": "99",
        "kraftControllerEpoch": -1,
    }
    assert znodes.ControllerRegistration.decode(controller.encode()) == controller
    assert znodes.encode_controller_epoch(12) == b"12"
    assert znodes.decode_controller_epoch(b"12") == 12

    assert json.loads(znodes.encode_config({"a": "1"})) == {"version": 1, "config": {"a": "1"}}
    assert znodes.decode_config(b'{"version":1,"config":{"a":"1"}}') == {"a": "1"}
    assert znodes.decode_config(b"") == {}
    change = znodes.encode_config_change("topics/t")
    assert json.loads(change) == {"version": 2, "entity_path": "topics/t"}
    assert znodes.decode_config_change(change) == "topics/t"

    partitions = {TopicPartition("t", 1), TopicPartition("s", 0)}
    assert json.loads(znodes.encode_partitions(partitions)) == {
        "version": 1,
        "partitions": [{"topic": "s", "partition": 0}, {"topic": "t", "partition": 1}],
    }
    assert znodes.decode_partitions(znodes.encode_partitions(partitions)) == partitions
    reassignment = {TopicPartition("t", 1): ids(2, 3)}
    assert znodes.decode_reassignment(znodes.encode_reassignment(reassignment)) == reassignment

    assert json.loads(znodes.encode_cluster_id("x")) == {"version": "1", "id": "x"}
    assert znodes.decode_cluster_id(b'{"version":"1","id":"x"}') == "x"

    block = znodes.ProducerIdBlock(broker_id=BrokerId(1), first=1000, last=1999)
    assert json.loads(block.encode()) == {
        "version": 1,
        "broker": 1,
        "block_start": "1000",
        "block_end": "1999",
    }
    assert znodes.ProducerIdBlock.decode(block.encode()) == block


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b'{"partitions":{"x":[1]}}', b"\xff\xfe"])
def test_unreadable_content_is_an_error_not_a_guess(data: bytes) -> None:
    for decode in (
        znodes.BrokerRegistration.decode,
        znodes.TopicAssignment.decode,
        znodes.PartitionLeadership.decode,
        znodes.ControllerRegistration.decode,
        znodes.decode_config_change,
        znodes.decode_cluster_id,
        znodes.ProducerIdBlock.decode,
        znodes.decode_controller_epoch,
    ):
        with pytest.raises(znodes.MalformedZnode, match=r"^this is no"):
            decode(data)


def test_a_config_value_must_be_a_text() -> None:
    with pytest.raises(znodes.MalformedZnode):
        znodes.decode_config(b'{"version":1,"config":{"retention.ms":5}}')


def test_paths_are_kafkas() -> None:
    assert znodes.partition_state_path("t", 3) == "/brokers/topics/t/partitions/3/state"
    assert znodes.broker_path(3) == "/brokers/ids/3"
    assert znodes.topic_config_path("t") == "/config/topics/t"
    assert znodes.broker_config_path(znodes.DEFAULT_BROKER) == "/config/brokers/<default>"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
