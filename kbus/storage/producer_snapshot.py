"""Kafka's `.snapshot` file: what is known of each producer at an offset of the log.

Version (int16), CRC-32C of what follows it (uint32), count (int32), then entries. Of a producer's batches
only the last one fits in; the others are read from the log.
"""

import struct
from collections.abc import Collection

from kbus.core.producer_window import ProducerEntry, WrittenBatch
from kbus.records.crc import crc32c
from kbus.types import NO_OFFSET, NO_SEQUENCE, Offset, ProducerEpoch, ProducerId

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):  # noqa: N818
    """Not a snapshot, or a damaged one. It can be removed: the log tells the same."""


def encode_snapshot(entries: Collection[ProducerEntry]) -> bytes:
    body = bytearray(_COUNT.pack(len(entries)))
    for entry in entries:
        last = entry.batches[-1] if entry.batches else WrittenBatch(NO_SEQUENCE, NO_OFFSET, 0, 0)
        body += _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            NO_OFFSET if entry.txn_first_offset is None else entry.txn_first_offset,
        )
    return _HEAD.pack(_VERSION, crc32c(bytes(body))) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is unknown")
    if crc32c(body) != crc:
        raise CorruptSnapshot("it does not match its CRC")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(body)} bytes do not hold {count} entries")
    entries = []
    for fields in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = (
            fields
        )
        batch = WrittenBatch(last_sequence, Offset(last_offset), delta, timestamp)
        entries.append(
            ProducerEntry(
                ProducerId(producer_id),
                ProducerEpoch(epoch),
                (batch,) if last_offset >= 0 else (),
                timestamp,
                coordinator_epoch,
                Offset(txn_first) if txn_first >= 0 else None,
            )
        )
    return entries
