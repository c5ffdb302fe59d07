"""A view of the 61-byte header of a v2 record batch. The records behind it stay opaque."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from kbus.types import NO_SEQUENCE, LeaderEpoch, Offset, ProducerEpoch, ProducerId

MAGIC = 2
HEADER_SIZE = 61
PREFIX_SIZE = 16
"""Base offset, batch length and leader epoch: what `offset_and_epoch_prefix` makes anew on append."""
LOG_OVERHEAD = 12
"""Base offset and batch length: what precedes the bytes that `batch_length` counts."""
CRC_START = 21
"""The CRC covers the batch from here to its end: not base offset, length, leader epoch, magic, CRC."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
assert _HEADER.size == HEADER_SIZE

_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DELETE_HORIZON_BIT = 0x40
MAX_SEQUENCE = 2**31 - 1

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


_CREATE_TIME = TimestampType.CREATE_TIME
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME


class BatchHeader(NamedTuple):
    """Field order is the wire's. `batch_length` counts the bytes after itself."""

    base_offset: Offset
    batch_length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def compression_code(self) -> int:
        """Not yet known to be a valid `Compression`: a client may send any value."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return _LOG_APPEND_TIME if self.attributes & _TIMESTAMP_TYPE_BIT else _CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """`base_timestamp` is then the time from which a compacted tombstone or marker may go."""
        return self.attributes & _DELETE_HORIZON_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from MAX_SEQUENCE to 0; NO_SEQUENCE stays what it is."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def make_attributes(
    *,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
) -> int:
    return (
        compression
        | (_TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (_TRANSACTIONAL_BIT if transactional else 0)
        | (_CONTROL_BIT if control else 0)
    )


def replace_attributes(attributes: int, compression: Compression, timestamp_type: TimestampType) -> int:
    """The same attributes, unknown bits included, but for codec and timestamp type."""
    kept = attributes & ~(_COMPRESSION_MASK | _TIMESTAMP_TYPE_BIT)
    return kept | make_attributes(compression=compression, timestamp_type=timestamp_type)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has made sure that HEADER_SIZE bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def write_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(*header)


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch in `buffer`; a cut-off last batch ends the iteration.

    Stops, too, at a length that cannot be a v2 batch, so that it always ends."""
    position = 0
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header.size < HEADER_SIZE or position + header.size > end:
            return
        yield position, header
        position += header.size


def offset_and_epoch_prefix(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch: all that a leader may change without touching the CRC."""
    return _PREFIX.pack(base_offset, batch_length, leader_epoch)
