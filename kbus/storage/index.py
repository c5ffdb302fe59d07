"""Sparse indexes of a segment: offset → position (`.index`), timestamp → offset (`.timeindex`).

Entries are fixed-size and big-endian, offsets relative to the segment's base. They are looked up through
a read-only mapping, made on first use. They are written with a positional write, not through the mapping:
on a full disk that is an error to handle, where a mapping over a hole would kill the process.

The index of the active segment is preallocated as a hole to its maximum and trimmed when the segment
becomes inactive. Nothing here is checksummed: a segment checks what it finds and rebuilds its index.
"""

import mmap
import os
import struct
from typing import ClassVar

from kbus.storage.disk import Disk
from kbus.types import NO_TIMESTAMP, Offset

MAX_RELATIVE_OFFSET = 2**31 - 1


class CorruptIndex(Exception):  # noqa: N818
    """The index contradicts itself or its log, and has to be rebuilt."""


class _Index:
    ENTRY_SIZE: ClassVar[int]

    def __init__(self, path: str, base_offset: Offset, disk: Disk) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = 0
        """Entries. The file may be longer: what follows them has no meaning."""
        self._capacity = 0
        self.is_writable = False
        self._disk = disk
        self._fd = -1
        """Opened for the first entry that is written: a log that gets little needs none."""
        self._map: mmap.mmap | None = None

    @property
    def max_bytes(self) -> int:
        """The room it has while it is writable."""
        return self._capacity * self.ENTRY_SIZE

    def load(self) -> None:
        """Take over the file that is there, as long as it is."""
        size = os.stat(self.path).st_size
        if size % self.ENTRY_SIZE:
            raise CorruptIndex(f"{self.path} has {size} bytes, which is not a multiple of {self.ENTRY_SIZE}")
        self.count = size // self.ENTRY_SIZE
        self._entries_changed()

    def activate(self, max_bytes: int) -> None:
        """Make it writable, with room for `max_bytes` of entries."""
        self._capacity = max(max_bytes // self.ENTRY_SIZE, self.count)
        self._resize(self._capacity)
        self.is_writable = True

    def deactivate(self) -> None:
        """Trim the file to its entries and let go of all resources; lookups map it again."""
        try:
            if self.is_writable:
                self._resize(self.count)
        finally:
            self.release()

    def release(self) -> None:
        """Let go of mapping and descriptor and leave the file as it is."""
        self.is_writable = False
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _resize(self, count: int) -> None:
        self._unmap()
        fd = self._disk.open(self.path, create=True)
        try:
            self._disk.truncate(fd, count * self.ENTRY_SIZE)
        finally:
            os.close(fd)

    def clear(self) -> None:
        self.count = 0
        self._entries_changed()

    def _write(self, entry: bytes) -> None:
        assert self.is_writable
        if self._fd < 0:
            self._fd = self._disk.open(self.path)
        self._disk.write(self._fd, [entry], self.count * self.ENTRY_SIZE)
        self.count += 1

    def _keep(self, count: int) -> None:
        self.count = count
        self._entries_changed()

    def _entries_changed(self) -> None:
        """Called when entries were not just added one by one."""

    def _mapped(self) -> mmap.mmap:
        """At least the current entries; never called without any."""
        if self._map is None or len(self._map) < self.count * self.ENTRY_SIZE:
            self._unmap()
            # The kernel maps past the end of a file without complaint, and faults on access.
            fd = self._fd if self._fd >= 0 else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                length = max(self._capacity if self.is_writable else 0, self.count) * self.ENTRY_SIZE
                if os.fstat(fd).st_size < length:
                    raise CorruptIndex(f"{self.path} became shorter than its {self.count} entries")
                self._map = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
            finally:
                if fd != self._fd:
                    os.close(fd)
        return self._map

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None


class OffsetIndex(_Index):
    """Entry: last offset of a batch, position of its first byte. Both rise."""

    ENTRY_SIZE = 8
    _ENTRY = struct.Struct(">ii")

    last_offset: Offset
    """Of the last entry; the base offset if there is none."""

    def __init__(self, path: str, base_offset: Offset, disk: Disk) -> None:
        super().__init__(path, base_offset, disk)
        self.last_offset = base_offset

    @property
    def is_full(self) -> bool:
        return self.count >= self._capacity

    def append(self, last_offset: int, position: int) -> None:
        """`last_offset` must lie above that of the last entry."""
        self._write(self._ENTRY.pack(last_offset - self.base_offset, position))
        self.last_offset = Offset(last_offset)

    def entry(self, number: int) -> tuple[Offset, int]:
        relative, position = self._ENTRY.unpack_from(self._mapped(), number * 8)
        return Offset(self.base_offset + relative), position

    def lookup(self, offset: int) -> tuple[Offset, int]:
        """The last entry at or below `offset`; (base offset, 0) if there is none."""
        slot = self._slot(offset)
        return (self.base_offset, 0) if slot < 0 else self.entry(slot)

    def back_from_end(self, entries: int) -> int:
        """The position that the `entries`-th entry from the end points at; 0 if there are fewer."""
        return self.entry(self.count - entries)[1] if self.count >= entries > 0 else 0

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        self._keep(self._slot(offset - 1) + 1)

    def check(self, log_size: int) -> None:
        """Raise CorruptIndex if first and last entry cannot be true of a log of `log_size` bytes."""
        if not self.count:
            return
        (first, first_position), (last, last_position) = self.entry(0), self.entry(self.count - 1)
        rising = self.count == 1 or (first < last and first_position < last_position)
        if not (rising and self.base_offset <= first and first_position >= 0 and last_position < log_size):
            raise CorruptIndex(f"{self.path} does not fit a log of {log_size} bytes")

    def _slot(self, offset: int) -> int:
        """Number of the last entry at or below `offset`, or -1."""
        if not self.count:
            return -1
        target = offset - self.base_offset
        view = self._mapped()
        unpack = self._ENTRY.unpack_from
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if unpack(view, middle * 8)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _entries_changed(self) -> None:
        self.last_offset = self.entry(self.count - 1)[0] if self.count else self.base_offset


class TimeIndex(_Index):
    """Entry: largest timestamp so far, last offset of the batch that has it. Both rise.

    Whatever has a larger timestamp than an entry's lies above its offset."""

    ENTRY_SIZE = 12
    _ENTRY = struct.Struct(">qi")

    last: tuple[int, Offset]
    """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""

    def __init__(self, path: str, base_offset: Offset, disk: Disk) -> None:
        super().__init__(path, base_offset, disk)
        self.last = (NO_TIMESTAMP, base_offset)

    @property
    def is_full(self) -> bool:
        """The last slot is kept for the entry that is written when the segment becomes inactive."""
        return self.count >= self._capacity - 1

    def append_if_later(self, timestamp: int, offset: Offset) -> None:
        if timestamp > self.last[0] and self.count < self._capacity:
            self._write(self._ENTRY.pack(timestamp, offset - self.base_offset))
            self.last = (timestamp, offset)

    def entry(self, number: int) -> tuple[int, Offset]:
        timestamp, relative = self._ENTRY.unpack_from(self._mapped(), number * 12)
        return timestamp, Offset(self.base_offset + relative)

    def lookup(self, timestamp: int) -> tuple[int, Offset]:
        """The last entry at or below `timestamp`; (-1, base offset) if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        count = self.count
        while count and self.entry(count - 1)[1] >= offset:
            count -= 1
        self._keep(count)

    def check(self) -> None:
        if not self.count:
            return
        (first, first_offset), (last, last_offset) = self.entry(0), self.entry(self.count - 1)
        rising = self.count == 1 or (first < last and first_offset <= last_offset)
        if not rising or first < 0 or first_offset < self.base_offset:
            raise CorruptIndex(f"{self.path} is out of order")

    def _entries_changed(self) -> None:
        self.last = self.entry(self.count - 1) if self.count else (NO_TIMESTAMP, self.base_offset)
