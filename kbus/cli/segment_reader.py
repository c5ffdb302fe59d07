"""A walk through a segment file that trusts nothing in it: no length, no magic, nor that it holds still."""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from kbus.records.batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    read_header,
)
from kbus.records.crc import crc32c

_START = struct.Struct(">qiib")
_OLD_MAGICS = (0, 1)
_OLD_CRC = struct.Struct(">I")
_OLD_MIN_SIZE = LOG_OVERHEAD + 14
_WINDOW_BYTES = 1024 * 1024
_SEARCH_BYTES = 8 * 1024 * 1024


class Found(NamedTuple):
    position: int
    size: int
    base_offset: int
    magic: int
    header: BatchHeader | None
    """None for the formats before v2, of which only place, offset and size are known."""


class Tail(NamedTuple):
    """Why the walk ended before the end of the file."""

    position: int
    size: int
    problem: str
    is_torn: bool
    """It can be the beginning of a write that has not ended: nothing of it was ever acknowledged as whole."""


class SegmentReader:
    """Reads in windows, so that memory stays small whatever the file claims. What the log gains after the
    reader was opened is not looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: Tail | None = None
        """Set when `walk` has ended early."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        self._window = b""
        self._window_start = 0

    def __enter__(self) -> "SegmentReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def walk(self, start: int = 0) -> Iterator[Found]:
        """The batches from the one that begins at `start` on; none if that is not in the file."""
        self.tail = None
        position = start
        while 0 <= position < self.size:
            found = self._at(position)
            if isinstance(found, Tail):
                self.tail = found
                return
            yield found
            position += found.size

    def crc_matches(self, found: Found) -> bool:
        """Before v2 the CRC was another one and lay elsewhere."""
        checksum: Callable[[memoryview, int], int]
        if found.header is not None:
            expected, start, checksum = found.header.crc, CRC_START, crc32c
        else:
            (expected,) = _OLD_CRC.unpack(self._read(found.position + LOG_OVERHEAD, _OLD_CRC.size))
            start, checksum = LOG_OVERHEAD + _OLD_CRC.size, zlib.crc32
        position, end = found.position + start, found.position + found.size
        value = 0
        while position < end:
            data = self._read(position, min(_WINDOW_BYTES, end - position))
            if not data:
                return False  # the file became shorter: truncated while we read
            value = checksum(data, value)
            position += len(data)
        return value == expected

    def read(self, found: Found) -> bytes:
        """The whole batch, which the caller has found to be of a sane size."""
        return bytes(self._read(found.position, found.size))

    def _at(self, position: int) -> Found | Tail:
        rest = self.size - position
        start = self._read(position, min(rest, HEADER_SIZE))
        if len(start) < _START.size:
            return Tail(position, rest, f"{rest} bytes are too few for a batch", True)
        base_offset, length, _, magic = _START.unpack_from(start)
        size = length + LOG_OVERHEAD
        if magic == MAGIC:
            if len(start) < HEADER_SIZE:
                return Tail(position, rest, f"{rest} bytes are too few for a batch", True)
            least = HEADER_SIZE
        elif magic in _OLD_MAGICS:
            least = _OLD_MIN_SIZE
            if not any(start) and self._is_zero_from(position):
                return Tail(position, rest, f"{rest} zero bytes, which were allocated but not written", True)
        else:
            return Tail(position, rest, f"magic {magic} is not that of a batch", False)
        if size < least:
            return Tail(position, rest, f"a batch cannot have the length {length}", False)
        if size > rest:
            if magic == MAGIC and (follower := self._next_whole_batch(position, base_offset)) is not None:
                what = f"the batch claims {size} bytes, but another one begins at {follower}"
                return Tail(position, rest, what, False)
            return Tail(position, rest, f"the batch claims {size} bytes, of which {rest} are there", True)
        header = read_header(start) if magic == MAGIC else None
        return Found(position, size, base_offset, magic, header)

    def _next_whole_batch(self, position: int, base_offset: int) -> int | None:
        """Where, behind `position`, a batch with a matching CRC begins: proof that the bytes before it are
        no unfinished write. Batches near each other agree in the high bytes of their offsets."""
        if not 0 <= base_offset < 1 << 63:
            base_offset = 0
        high_bytes = base_offset.to_bytes(8)[:5]
        data = os.pread(self._fd, _SEARCH_BYTES, position)
        at = data.find(high_bytes, 1)
        while 0 <= at <= len(data) - HEADER_SIZE:
            if data[at + 16] == MAGIC:
                header = read_header(data, at)
                candidate = Found(position + at, header.size, header.base_offset, MAGIC, header)
                fits = HEADER_SIZE <= header.size <= self.size - candidate.position
                if fits and header.base_offset > base_offset and self.crc_matches(candidate):
                    return candidate.position
            at = data.find(high_bytes, at + 1)
        return None

    def _is_zero_from(self, position: int) -> bool:
        while position < self.size:
            data = os.pread(self._fd, _WINDOW_BYTES, position)
            if not data:
                return True
            if data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def _read(self, position: int, length: int) -> memoryview:
        """Up to `length` bytes, fewer only at the end of the file."""
        at = position - self._window_start
        if at < 0 or at + length > len(self._window):
            self._window = os.pread(self._fd, max(length, _WINDOW_BYTES), position)
            self._window_start, at = position, 0
        return memoryview(self._window)[at : at + length]
