"""Batches that no log may hold, each refused over the wire with its own error, and nothing appended.

An honest client on another connection works before, during and after each of them."""

import gzip
import struct
import zlib
from pathlib import Path

import pytest

from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from kbus.records.batch import HEADER_SIZE, Compression, make_attributes, read_header
from kbus.records.compression import compress
from kbus.records.record import decode_records
from tests.node.conftest import Undisturbed
from tests.node.honest import Memory, unique
from tests.node.wire import (
    Wire,
    batch_of,
    create_topic,
    end_offset,
    every_version,
    fetch,
    produce,
)
from tests.nodes import NodeProcess
from tests.records.builders import altered, with_payload

MEGABYTE = 1 << 20
MAX_MESSAGE_BYTES = MEGABYTE + 12
GOOD = batch_of(b"one", b"two", b"three")
UNKNOWN_CODEC_BITS = (5, 6, 7)


def old_message(magic: int) -> bytes:
    """A message of the time before batches: key "k", value "v"."""
    timestamp = struct.pack(">q", 1000) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i1si1s", 1, b"k", 1, b"v")
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def flipped(batch: bytes, position: int) -> bytes:
    return batch[:position] + bytes([batch[position] ^ 1]) + batch[position + 1 :]


def sent(**fields: object) -> bytes:
    return altered(GOOD, **fields)


CORRUPT = ErrorCode.corrupt_message
INVALID = ErrorCode.invalid_record
BAD = {
    "a flipped bit in the CRC": (flipped(GOOD, 17), CORRUPT),
    "a flipped bit in the attributes": (flipped(GOOD, 22), CORRUPT),
    "a flipped bit in the records": (flipped(GOOD, len(GOOD) - 1), CORRUPT),
    "more records than offsets": (sent(record_count=4), INVALID),
    "fewer records than offsets": (sent(record_count=2), INVALID),
    "no records": (sent(record_count=0, last_offset_delta=-1), INVALID),
    "a negative count": (sent(record_count=-1, last_offset_delta=-2), INVALID),
    "more records than bytes": (sent(record_count=2**31 - 1, last_offset_delta=2**31 - 2), INVALID),
    "magic 0": (old_message(0), ErrorCode.unsupported_for_message_format),
    "magic 1": (old_message(1), ErrorCode.unsupported_for_message_format),
    "magic 3": (sent(magic=3), CORRUPT),
    "a control batch": (sent(attributes=make_attributes(control=True)), INVALID),
    "a transaction without a producer": (
        sent(attributes=make_attributes(transactional=True)),
        ErrorCode.invalid_txn_state,
    ),
    "LogAppendTime, which is the broker's to set": (sent(attributes=0x08), ErrorCode.invalid_timestamp),
    "a delete horizon, which is compaction's to set": (sent(attributes=0x40), INVALID),
    "a base offset": (sent(base_offset=7), INVALID),
    "a producer without an epoch": (sent(producer_id=1, producer_epoch=-1, base_sequence=0), INVALID),
    "a producer without a sequence": (sent(producer_id=1, producer_epoch=0, base_sequence=-1), INVALID),
    "two batches": (GOOD + GOOD, INVALID),
    "a batch and a half": (GOOD + GOOD[: len(GOOD) // 2], INVALID),
    "half a batch": (GOOD[: len(GOOD) - 1], INVALID),
    "half a header": (GOOD[: HEADER_SIZE - 1], INVALID),
    "a length that is less than a header": (sent(batch_length=10), CORRUPT),
    "a negative length": (sent(batch_length=-100), CORRUPT),
    "a length beyond the bytes": (sent(batch_length=2**31 - 1), INVALID),
    "nothing": (b"", INVALID),
    "null": (None, INVALID),
    "noise": (bytes(range(255, -1, -1)), CORRUPT),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused_and_nothing_is_appended(
    node: NodeProcess, undisturbed: Undisturbed, name: str
) -> None:
    batch, expected = BAD[name]
    topic = unique("bad-batch")
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic)
        refused = produce(wire, topic, batch)
        assert refused.error_code is expected
        assert refused.base_offset == -1
        assert refused.error_message
        assert end_offset(wire, topic) == 0
        assert not _bytes_on_disk(node, topic)
        # The connection, the partition and the producer are as good as before.
        assert produce(wire, topic, GOOD).base_offset == 0


def _bytes_on_disk(node: NodeProcess, topic: str) -> int:
    segment: Path = node.log_dir / f"{topic}-0" / "00000000000000000000.log"
    return segment.stat().st_size


@pytest.mark.parametrize("codec", UNKNOWN_CODEC_BITS)
def test_an_unknown_codec_is_refused(node: NodeProcess, undisturbed: Undisturbed, codec: int) -> None:
    topic = unique("codec")
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic)
        refused = produce(wire, topic, sent(attributes=codec))
        assert refused.error_code is ErrorCode.unsupported_compression_type
        assert end_offset(wire, topic) == 0


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_a_batch_over_max_message_bytes_is_too_large_in_every_version(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("too-large")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        name = topic_id if version >= 13 else topic
        overhead = len(batch_of(bytes(MEGABYTE))) - MEGABYTE
        fits = batch_of(bytes(MAX_MESSAGE_BYTES - overhead))
        assert len(fits) <= MAX_MESSAGE_BYTES
        refused = produce(wire, name, batch_of(bytes(MAX_MESSAGE_BYTES - overhead + 3)), version=version)
        assert refused.error_code is ErrorCode.message_too_large
        assert end_offset(wire, topic) == 0
        assert produce(wire, name, fits, version=version).error_code is ErrorCode.none


def test_a_batch_of_other_partitions_is_appended_although_one_is_bad(node: NodeProcess) -> None:
    """All or nothing holds for a partition, not for a request."""
    topic = unique("mixed")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        assert produce(wire, topic, GOOD, partition=1).error_code is ErrorCode.none
        assert produce(wire, topic, GOOD + GOOD, partition=0).error_code is INVALID
        assert produce(wire, topic, GOOD, partition=2).error_code is ErrorCode.unknown_topic_or_partition
        assert (end_offset(wire, topic, 0), end_offset(wire, topic, 1)) == (0, 3)


# ---- batches that the node has to open

OPENING = {
    "another codec": {"compression.type": "zstd"},
    "compaction": {"cleanup.policy": "compact"},
}


def bomb(kind: str) -> bytes:
    """A batch of at most 100 kB that would become gigabytes."""
    if kind == "gzip":
        # Deflate gains a thousandfold at best, so members are nested in a row: 2 GB of zeros.
        member = gzip.compress(bytes(64 * MEGABYTE), 9)
        return with_payload(GOOD, member * 16, attributes=Compression.GZIP)
    payload = compress(Compression.ZSTD, bytes(256 * MEGABYTE))
    return with_payload(GOOD, payload * 8, attributes=Compression.ZSTD)


@pytest.mark.parametrize("why", OPENING)
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_decompression_bomb_is_refused_within_bounded_memory(
    node: NodeProcess, undisturbed: Undisturbed, kind: str, why: str
) -> None:
    memory = Memory(node.pid)
    topic = unique("bomb")
    config = {"compression.type": "lz4"} if why == "another codec" else OPENING[why]
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic, config={**config, "max.message.bytes": str(10 * MEGABYTE)})
        memory.forget_peak()
        before = memory.resident()
        refused = produce(wire, topic, bomb(kind))
        assert refused.error_code in (CORRUPT, INVALID)
        assert memory.peak() - before < 200 * MEGABYTE
        assert end_offset(wire, topic) == 0


def test_a_bomb_in_a_topic_that_takes_batches_as_they_come_is_stored_unopened(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """It harms only who opens it; the node does not."""
    topic = unique("closed-bomb")
    memory = Memory(node.pid)
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic, config={"max.message.bytes": str(10 * MEGABYTE)})
        memory.forget_peak()
        before = memory.resident()
        assert produce(wire, topic, bomb("zstd")).error_code is ErrorCode.none
        assert memory.peak() - before < 32 * MEGABYTE


@pytest.mark.parametrize("garbled", ["gzip", "snappy", "lz4", "zstd"])
def test_bytes_that_do_not_decompress_are_refused_where_batches_are_opened(
    node: NodeProcess, undisturbed: Undisturbed, garbled: str
) -> None:
    topic = unique("garbled")
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic, config={"cleanup.policy": "compact"})
        batch = with_payload(GOOD, b"\x1f\x8bnot compressed at all", attributes=Compression[garbled.upper()])
        assert produce(wire, topic, batch).error_code is CORRUPT
        assert end_offset(wire, topic) == 0


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_a_compacted_topic_names_the_records_that_lack_a_key(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("keyless")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic, config={"cleanup.policy": "compact"})
        name = topic_id if version >= 13 else topic
        refused = produce(wire, name, batch_of(b"one", b"two", key=None), version=version)
        assert refused.error_code is INVALID
        if version >= 8:
            assert [error.batch_index for error in refused.record_errors] == [0, 1]
            assert "key" in refused.record_errors[0].batch_index_error_message
        assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_a_topic_with_a_codec_of_its_own_stores_in_it_whatever_was_sent(
    node: NodeProcess, codec: Compression
) -> None:
    topic = unique("recoded")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"compression.type": "gzip"})
        batch = batch_of(b"one" * 100, b"two" * 100, compression=codec)
        assert produce(wire, topic, batch).error_code is ErrorCode.none
        stored = fetch(wire, topic, 0).records
        assert read_header(stored).compression_code == Compression.GZIP
        assert [record.value for record in decode_records(stored)] == [b"one" * 100, b"two" * 100]
