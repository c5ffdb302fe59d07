"""What one client writes, every client reads back byte for byte, at the offsets that were acknowledged."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from kbus.records.batch import iter_headers
from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import Client, Sent, Stored, expected
from .conftest import CLIENTS

NOW = 1_700_000_000_000
PARTITIONS = 3
_names = (f"exchange-{number}" for number in itertools.count())


class Written(NamedTuple):
    topic: str
    codec: str
    stored: list[Stored]


def varied_records(client: Client) -> list[Sent]:
    """Keys, values and headers: null, empty, text, binary, small and large; times that go back and forth."""
    headers = (("h", b"1"), ("h", b""), ("h", b"1"), ("", b""), ("größe", bytes(range(256))))
    records = [
        Sent(NOW, b"key", b"value"),
        Sent(NOW + 5, b"", b""),
        Sent(NOW - 86_400_000, b"key", None),
        Sent(NOW + 1, None, b""),
        Sent(NOW + 2, None, b"headers", headers),
        Sent(NOW + 2**33, b"headers", None, headers[::-1]),
        Sent(1, bytes(range(256)), bytes(reversed(range(256)))),
        Sent(NOW, b"k" * 10_000, b"zeros", (("large", bytes(10_000)),)),
        Sent(NOW, None, bytes(300_000)),
        Sent(NOW, b"hard to compress", b"".join(n.to_bytes(8) for n in _scrambled(8_000))),
        Sent(NOW, None, None),
        Sent(NOW, b"null header", b"", (("h", None), ("h", b"1"), ("h", None))),
    ]
    records = [record for record in records if client.takes(record)]
    records += [Sent(NOW + n, b"%d" % n, b"value %d " % n * (n % 40)) for n in range(400)]
    return [record._replace(partition=index % PARTITIONS) for index, record in enumerate(records)]


def _scrambled(count: int) -> Sequence[int]:
    state = 1
    return [state := state * 6364136223846793005 % 2**64 for _ in range(count)]


@pytest.fixture(
    scope="module",
    params=[(client, codec) for client in CLIENTS for codec in client.codecs],
    ids=lambda param: f"{param[0].name}-{param[1]}",
)
def written(request: pytest.FixtureRequest, node: NodeProcess) -> Written:
    client, codec = request.param
    topic = next(_names)
    create_topic(node.bootstrap, topic, partitions=PARTITIONS)
    records = varied_records(client)
    places = client.send(node.bootstrap, topic, records, codec=codec)
    assert [place.partition for place in places] == [record.partition for record in records]
    return Written(topic, codec, expected(records, places))


def test_records_arrive_as_they_were_sent(node: NodeProcess, written: Written, reader: Client) -> None:
    if written.codec not in reader.codecs:
        pytest.skip(f"{reader.name} has no {written.codec} here")
    assert reader.read(node.bootstrap, written.topic) == written.stored


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def written_one_by_one(request: pytest.FixtureRequest, node: NodeProcess) -> Written:
    client: Client = request.param
    topic = next(_names)
    create_topic(node.bootstrap, topic)
    records = [Sent(NOW + n, None, b"%d" % n) for n in range(300)]
    return Written(
        topic, "none", expected(records, client.send(node.bootstrap, topic, records, batch_bytes=1))
    )


def test_batches_of_one_record_arrive_in_order(
    node: NodeProcess, written_one_by_one: Written, reader: Client
) -> None:
    log = (node.log_dir / f"{written_one_by_one.topic}-0" / f"{0:020d}.log").read_bytes()
    assert len(list(iter_headers(log))) == 300
    assert reader.read(node.bootstrap, written_one_by_one.topic) == written_one_by_one.stored


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def written_in_bulk(request: pytest.FixtureRequest, node: NodeProcess) -> Written:
    client: Client = request.param
    topic = next(_names)
    create_topic(node.bootstrap, topic, config={"segment.bytes": "20000"})
    records = [Sent(NOW + n, b"k%d" % (n % 97), b"value-%d" % n) for n in range(12_000)]
    places = client.send(node.bootstrap, topic, records, codec="gzip", idempotent=True, batch_bytes=16_384)
    assert len(list((node.log_dir / f"{topic}-0").glob("*.log"))) > 2
    return Written(topic, "gzip", expected(records, places))


def test_many_records_arrive_across_segments(
    node: NodeProcess, written_in_bulk: Written, reader: Client
) -> None:
    assert reader.read(node.bootstrap, written_in_bulk.topic) == written_in_bulk.stored
