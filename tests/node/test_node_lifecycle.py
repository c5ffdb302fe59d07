"""A node as a process: it starts, stops cleanly, and comes back with its data."""

import signal

import pytest
from confluent_kafka import Message, Producer

from tests.conftest import NodeFactory
from tests.node.kafka import create_topic, produce, read_all
from tests.nodes import NodeProcess


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_node_cleanly_and_its_records_are_there_afterwards(
    start_node: NodeFactory, number: signal.Signals
) -> None:
    node = start_node()
    create_topic(node.bootstrap, "kept")
    produce(node.bootstrap, "kept", [b"one", b"two"])
    node.signal(number)
    assert node.wait() == 0
    assert (node.log_dir / ".kafka_cleanshutdown").exists()
    node.start()
    assert not (node.log_dir / ".kafka_cleanshutdown").exists()
    assert [record.value for record in read_all(node.bootstrap, "kept")] == [b"one", b"two"]


def test_acknowledged_records_survive_ten_kills_and_offsets_go_on_without_a_gap(
    start_node: NodeFactory,
) -> None:
    node = start_node()
    create_topic(node.bootstrap, "killed", partitions=2)
    acknowledged: dict[tuple[int, int], bytes] = {}
    for round_number in range(10):
        _produce_until_killed(node, round_number, acknowledged)
        node.start()
    found = {(r.partition, r.offset): r.value for r in read_all(node.bootstrap, "killed")}
    for position, value in acknowledged.items():
        assert found.get(position) == value, f"lost at {position}"
    for partition in (0, 1):
        offsets = sorted(offset for p, offset in found if p == partition)
        assert offsets == list(range(len(offsets)))
    assert len(acknowledged) > 1000


def _produce_until_killed(
    node: NodeProcess, round_number: int, acknowledged: dict[tuple[int, int], bytes]
) -> None:
    """Sends with acks=1 and acks=all in turn, and kills the node as soon as some were acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "acks": "all" if round_number % 2 else "1",
            "message.timeout.ms": 100,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    seen = 0

    def on_delivery(error: object, message: Message) -> None:
        nonlocal seen
        if error is None:
            seen += 1
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            acknowledged[partition, offset] = value

    number = 0
    while seen < 200:
        producer.produce("killed", value=b"%d-%d" % (round_number, number), on_delivery=on_delivery)
        number += 1
        producer.poll(0)
        if number % 100 == 0:
            producer.poll(0.001)
    node.kill()
    producer.flush(10)
