"""The aborted transactions whose markers lie in a segment: `.txnindex`, a file that most segments lack."""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kbus.storage.disk import Disk
from kbus.types import Offset, ProducerId

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """`last_offset` is that of the marker; `last_stable_offset` the first offset undecided after it."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class TransactionIndex:
    """Kept in memory as far as it exists: aborts are rare. Entries rise by `last_offset`."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._entries: list[AbortedTransaction] = []

    def load(self) -> bool:
        """Whether the file, if there is one, holds whole entries in order."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return True
        if len(data) % _ENTRY.size:
            return False
        entries: list[AbortedTransaction] = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            in_order = not entries or entry.last_offset > entries[-1].last_offset
            if version != _VERSION or entry.first_offset > entry.last_offset or not in_order:
                return False
            entries.append(entry)
        self._entries = entries
        return True

    @property
    def exists(self) -> bool:
        return bool(self._entries) or os.path.exists(self.path)

    def append(self, entry: AbortedTransaction) -> None:
        fd = self._disk.open(self.path, create=True)
        try:
            self._disk.write(fd, [_ENTRY.pack(_VERSION, *entry)], len(self._entries) * _ENTRY.size)
        finally:
            os.close(fd)
        self._entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker lies at or above `offset`."""
        if not self.exists:
            return
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        fd = self._disk.open(self.path, create=True)
        try:
            self._disk.truncate(fd, len(kept) * _ENTRY.size)
        finally:
            os.close(fd)
        self._entries = kept

    def clear(self) -> None:
        self.truncate_to(0)

    def aborted_between(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """Those that a reader of [start, end) must skip records of."""
        for entry in self._entries:
            if entry.last_offset >= start and entry.first_offset < end:
                yield entry
