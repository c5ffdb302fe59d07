"""An open `.log` file: its descriptor, and the batches found in it."""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, read_header
from kbus.records.crc import crc32c
from kbus.types import Offset

SCAN_CHUNK_BYTES = 8 * 1024
"""One index interval and a header: what one lookup usually has to look at."""
_CHECK_CHUNK_BYTES = 1024 * 1024
_OFFSETS = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic, last offset delta: all that a search for an offset needs."""


class SegmentFile:
    """Owns a descriptor, which is valid as long as anybody holds the object: also after the segment was
    deleted, so that a transfer in flight always sends what it promised."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def fileno(self) -> int:
        return self._fd

    def read(self, position: int, length: int) -> bytes:
        """Exactly `length` bytes; the caller knows that they are there."""
        data = os.pread(self._fd, length, position)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                raise KafkaError(ErrorCode.kafka_storage_error, f"{self.path} is shorter than it should be")
            data += more
        return data

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LogSlice(NamedTuple):
    """Bytes of one segment, ready for `os.sendfile`. `length` 0 means nothing to send."""

    file: SegmentFile
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


class FoundBatch(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    position: int
    size: int


def damaged(file: SegmentFile, position: int) -> KafkaError:
    return KafkaError(
        ErrorCode.kafka_storage_error,
        f"{file.path} holds no valid batch at byte {position}; run `kbus segment verify` on it",
    )


def scan_offsets(file: SegmentFile, start: int, end: int) -> Iterator[FoundBatch]:
    """The batches in [start, end), which must both be bounds of batches, by the offset fields alone."""
    position = start
    chunk = b""
    chunk_start = start
    unpack = _OFFSETS.unpack_from
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = os.pread(file.fileno(), min(SCAN_CHUNK_BYTES, end - position), position)
            chunk_start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                raise damaged(file, position)
        base_offset, length, magic, delta = unpack(chunk, at)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE or position + size > end or magic != MAGIC or delta < 0:
            raise damaged(file, position)
        yield FoundBatch(base_offset, base_offset + delta, position, size)
        position += size


def scan_headers(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches in [start, end); ends early where no whole batch follows."""
    position = start
    chunk = b""
    chunk_start = start
    while position + HEADER_SIZE <= end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = os.pread(file.fileno(), min(SCAN_CHUNK_BYTES, end - position), position)
            chunk_start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = read_header(chunk, at)
        size = header.size
        is_whole = HEADER_SIZE <= size <= end - position
        if not is_whole or header.magic != MAGIC or header.last_offset_delta < 0:
            return
        yield position, header
        position += size


def scan_checked(file: SegmentFile, end: int) -> Iterator[tuple[int, BatchHeader, bool]]:
    """(position, header, whether the CRC matches) of the batches in [0, end), read whole; ends early where
    no whole batch follows."""
    chunk = memoryview(b"")
    chunk_start = 0
    for position, header in scan_headers(file, 0, end):
        size = header.size
        at = position - chunk_start
        if at + size > len(chunk) and size <= _CHECK_CHUNK_BYTES:
            chunk = memoryview(os.pread(file.fileno(), _CHECK_CHUNK_BYTES, position))
            chunk_start, at = position, 0
        if at + size <= len(chunk):
            crc = crc32c(chunk[at + CRC_START : at + size])
        else:
            crc = _crc_in_pieces(file, position + CRC_START, position + size)
        yield position, header, crc == header.crc


def _crc_in_pieces(file: SegmentFile, start: int, end: int) -> int:
    """For large batches: their length is not to be trusted with memory."""
    value = 0
    while start < end:
        data = os.pread(file.fileno(), min(_CHECK_CHUNK_BYTES, end - start), start)
        if not data:
            break
        value = crc32c(data, value)
        start += len(data)
    return value
