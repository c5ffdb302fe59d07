"""Large records: up to max.message.bytes they get in, beyond it they do not, and readers never get stuck."""

import pytest

from kbus.types import TopicPartition
from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import Client, RefusedError, Sent, expected
from .conftest import CLIENTS

NOW = 1_700_000_000_000
MAX_MESSAGE_BYTES = 1_048_588
BATCH_OVERHEAD_BYTES = 61 + 11
"""Of a batch whose only record has a value of a megabyte, and neither key nor headers."""
MESSAGE_TOO_LARGE = 10
LARGE_BYTES = 6_000_000


def test_max_message_bytes_is_exact(node: NodeProcess, client: Client) -> None:
    topic = f"exact-{client.name}"
    create_topic(node.bootstrap, topic)
    fitting = bytes(MAX_MESSAGE_BYTES - BATCH_OVERHEAD_BYTES)
    [place] = client.send(node.bootstrap, topic, [Sent(NOW, None, fitting)], max_request_bytes=4_000_000)
    with pytest.raises(RefusedError) as refused:
        client.send(node.bootstrap, topic, [Sent(NOW, None, fitting + b"!")], max_request_bytes=4_000_000)
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.bounds(node.bootstrap, topic, 0) == (0, 1)
    assert client.read(node.bootstrap, topic) == expected([Sent(NOW, None, fitting)], [place])


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def large_records(request: pytest.FixtureRequest, node: NodeProcess) -> tuple[TopicPartition, list[Sent]]:
    client: Client = request.param
    topic = f"large-{client.name}"
    create_topic(node.bootstrap, topic, config={"max.message.bytes": str(LARGE_BYTES + 1000)})
    records = [
        Sent(NOW, b"before", b"small"),
        Sent(NOW + 1, b"large", bytes(range(256)) * (LARGE_BYTES // 256)),
        Sent(NOW + 2, b"large, too", bytes(LARGE_BYTES)),
        Sent(NOW + 3, b"after", b"small"),
    ]
    client.send(node.bootstrap, topic, records, max_request_bytes=2 * LARGE_BYTES, batch_bytes=1)
    return TopicPartition(topic, 0), records


def test_a_record_larger_than_the_fetch_limits_gets_through(
    node: NodeProcess, large_records: tuple[TopicPartition, list[Sent]], reader: Client
) -> None:
    (topic, _), records = large_records
    read = reader.read(node.bootstrap, topic, fetch_bytes=1000)
    assert [(r.timestamp, r.key, r.value) for r in read] == [(r.timestamp, r.key, r.value) for r in records]


def test_fetch_limits_far_below_a_batch_starve_no_partition(node: NodeProcess, client: Client) -> None:
    topic = f"starved-{client.name}"
    create_topic(node.bootstrap, topic, partitions=4)
    records = [Sent(NOW + n, b"%d" % n, bytes(5_000), partition=n % 4) for n in range(40)]
    places = client.send(node.bootstrap, topic, records, batch_bytes=12_000)
    assert client.read(node.bootstrap, topic, fetch_bytes=1000) == expected(records, places)
