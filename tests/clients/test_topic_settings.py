"""Topics whose settings make the node rewrite what it is sent: every client reads the result."""

import time
from collections.abc import Iterator

import pytest

from kbus.records.batch import Compression, TimestampType, iter_headers
from kbus.records.record import batch_compression
from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import Client, Sent, Stored, expected
from .conftest import CLIENTS

NOW = 1_700_000_000_000
CODECS = {
    "uncompressed": ("none", Compression.NONE),
    "gzip": ("gzip", Compression.GZIP),
    "snappy": ("snappy", Compression.SNAPPY),
    "lz4": ("lz4", Compression.LZ4),
    "zstd": ("zstd", Compression.ZSTD),
}
Recompressed = tuple[str, str, list[Stored]]


@pytest.fixture(scope="module", params=CODECS)
def recompressed(request: pytest.FixtureRequest, node: NodeProcess) -> Recompressed:
    """A topic with batches small and large, sent in other codecs than it stores."""
    setting: str = request.param
    codec, stored_codec = CODECS[setting]
    topic = f"stores-{setting}"
    create_topic(node.bootstrap, topic, config={"compression.type": setting, "max.message.bytes": "10000000"})
    stored: list[Stored] = []
    for client in CLIENTS:
        records = [
            Sent(NOW + 1, b"", None),
            Sent(NOW, b"key", b"value", (("h", b"1"), ("h", b""))),
            *[Sent(NOW + n, b"%d" % n, b"value %d " % n * 10) for n in range(200)],
            Sent(NOW, b"large", b"0123456789" * 300_000),
        ]
        sent_codec = "lz4" if codec != "lz4" and "lz4" in client.codecs else "gzip"
        places = client.send(
            node.bootstrap,
            topic,
            records,
            codec=sent_codec,
            idempotent=True,
            batch_bytes=1_000_000,
            max_request_bytes=10_000_000,
        )
        first = len(stored)
        relative = expected(records, [place._replace(offset=place.offset - first) for place in places])
        stored += [record._replace(offset=record.offset + first) for record in relative]
    log = (node.log_dir / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    assert {batch_compression(header) for _, header in iter_headers(log)} == {stored_codec}
    return topic, codec, stored


def test_recompressed_batches_hold_what_was_sent(
    node: NodeProcess, recompressed: Recompressed, reader: Client
) -> None:
    topic, codec, stored = recompressed
    if codec not in reader.codecs:
        pytest.skip(f"{reader.name} has no {codec} here")
    assert reader.read(node.bootstrap, topic) == stored


@pytest.fixture(scope="module", params=["none", "lz4"])
def stamped(request: pytest.FixtureRequest, node: NodeProcess) -> tuple[str, int, int]:
    """A LogAppendTime topic, and the times between which it was written to."""
    topic = f"stamped-{request.param}"
    create_topic(node.bootstrap, topic, config={"message.timestamp.type": "LogAppendTime"})
    start = time.time_ns() // 1_000_000
    for client in CLIENTS:
        records = [Sent(NOW - n, b"%d" % n, b"value") for n in range(50)]
        client.send(node.bootstrap, topic, records, codec=request.param)
    return topic, start, time.time_ns() // 1_000_000


def test_log_append_time_replaces_the_producers_time(
    node: NodeProcess, stamped: tuple[str, int, int], reader: Client
) -> None:
    topic, start, end = stamped
    records = reader.read(node.bootstrap, topic)
    assert [record.key for record in records] == [b"%d" % n for n in range(50)] * len(CLIENTS)
    times = [record.timestamp for record in records]
    assert all(record.is_log_append_time for record in records)
    assert times == sorted(times)
    assert start <= times[0] <= times[-1] <= end
    assert reader.offsets_at(node.bootstrap, topic, {0: start}) == {0: 0}
    log = (node.log_dir / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    assert {h.timestamp_type for _, h in iter_headers(log)} == {TimestampType.LOG_APPEND_TIME}


@pytest.fixture(scope="module")
def node_that_checks_often(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str
) -> Iterator[NodeProcess]:
    settings = {"log.flush.scheduler.interval.ms": "10"}
    zookeeper = f"{zookeeper_server}/checks-often"
    folder = tmp_path_factory.mktemp("checks-often")
    with NodeProcess(folder, zookeeper=zookeeper, settings=settings) as process:
        yield process


def test_the_past_fits_into_one_segment(node_that_checks_often: NodeProcess, client: Client) -> None:
    """A backfill with old timestamps does not begin a segment with every look at the log."""
    topic = f"past-{client.name}"
    create_topic(node_that_checks_often.bootstrap, topic, config={"retention.ms": "-1"})
    records = [Sent(NOW + n, None, b"%d" % n) for n in range(300)]
    client.send(node_that_checks_often.bootstrap, topic, records, batch_bytes=1)
    segments = (node_that_checks_often.log_dir / f"{topic}-0").glob("*.log")
    assert [segment.name for segment in segments] == [f"{0:020d}.log"]
