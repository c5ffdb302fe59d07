"""Consumers without a group find their place: by timestamp, at the bounds of the log, at its end."""

import time

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import LONG_WAIT_MS, TIMEOUT_S, Client, Sent
from .conftest import CLIENTS

NOW = 1_700_000_000_000


def test_timestamps_lead_to_the_first_record_at_or_after_them(node: NodeProcess, client: Client) -> None:
    topic = f"times-{client.name}"
    create_topic(node.bootstrap, topic, partitions=4, config={"index.interval.bytes": "512"})
    times = [0, 10, 20, 20, 40, 30, 50]  # the sixth record is late
    records = [
        *[Sent(NOW + t, None, bytes(100), partition=0) for t in times],
        *[Sent(NOW + t, None, bytes(100), partition=1) for t in range(3_000)],
        Sent(NOW, None, b"", partition=2),
    ]
    client.send(node.bootstrap, topic, records, batch_bytes=2_000)

    def find(**timestamps: int) -> list[int | None]:
        asked = {int(name[1:]): NOW + t for name, t in timestamps.items()}
        found = client.offsets_at(node.bootstrap, topic, asked)
        return [found[partition] for partition in sorted(asked)]

    assert find(p0=-1000, p1=-1000, p2=-1000, p3=-1000) == [0, 0, 0, None]
    assert find(p0=20, p1=1_234, p2=0, p3=0) == [2, 1_234, 0, None]
    assert find(p0=21, p1=2_999, p2=1, p3=0) == [4, 2_999, None, None]
    assert find(p0=41, p1=3_000) == [6, None]
    assert client.read_from(node.bootstrap, topic, 1, 1_234).timestamp == NOW + 1_234


def test_bounds_follow_appends_and_deletions(node: NodeProcess, client: Client) -> None:
    topic = f"bounds-{client.name}"
    create_topic(node.bootstrap, topic, partitions=2)
    assert client.bounds(node.bootstrap, topic, 1) == (0, 0)
    client.send(node.bootstrap, topic, [Sent(NOW, None, b"%d" % n, partition=1) for n in range(10)])
    assert client.bounds(node.bootstrap, topic, 1) == (0, 10)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 1, 4)]).values():
        assert deleted.result(TIMEOUT_S).low_watermark == 4
    assert client.bounds(node.bootstrap, topic, 1) == (4, 10)
    assert client.bounds(node.bootstrap, topic, 0) == (0, 0)
    # The fourth may lie in the middle of a batch, of which a client then leaves out the beginning.
    assert [record.offset for record in client.read(node.bootstrap, topic)] == list(range(4, 10))
    assert client.read_from(node.bootstrap, topic, 1, 7).value == b"7"


def test_a_record_ends_a_long_poll(node: NodeProcess, client: Client) -> None:
    topic = f"poll-{client.name}"
    create_topic(node.bootstrap, topic)
    sent_at = 0.0

    def send() -> None:
        nonlocal sent_at
        CLIENTS[0].send(node.bootstrap, topic, [Sent(NOW, b"key", b"value")])
        sent_at = time.monotonic()

    record = client.wait_for_record(node.bootstrap, topic, send)
    assert (record.offset, record.key, record.value) == (0, b"key", b"value")
    assert time.monotonic() - sent_at < LONG_WAIT_MS / 1000 / 2
