"""The entries of index files, read as they lie on disk, live or stopped."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbus.storage.txn_index import AbortedTransaction
from kbus.types import Offset, ProducerId

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_TXN_VERSION = 0


class DamagedIndexError(Exception):
    """The file cannot be an index."""


class OffsetEntry(NamedTuple):
    offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


def offset_entries(path: Path, base_offset: int) -> list[OffsetEntry]:
    """Empty if there is no such file, as if it were to be rebuilt."""
    return [
        OffsetEntry(base_offset + relative, position)
        for relative, position in _OFFSET_ENTRY.iter_unpack(_entry_bytes(path, _OFFSET_ENTRY.size))
    ]


def time_entries(path: Path, base_offset: int) -> list[TimeEntry]:
    return [
        TimeEntry(timestamp, base_offset + relative)
        for timestamp, relative in _TIME_ENTRY.iter_unpack(_entry_bytes(path, _TIME_ENTRY.size))
    ]


def aborted_transactions(path: Path) -> Iterator[AbortedTransaction]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if len(data) % _TXN_ENTRY.size:
        raise DamagedIndexError(f"{len(data)} bytes are not a multiple of {_TXN_ENTRY.size}")
    for version, producer_id, first, last, stable in _TXN_ENTRY.iter_unpack(data):
        if version != _TXN_VERSION:
            raise DamagedIndexError(f"an entry has version {version}")
        yield AbortedTransaction(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable))


def _entry_bytes(path: Path, entry_size: int) -> bytes:
    """Whole entries without the zeros behind the last one, to which the index of a growing segment is
    allocated in advance, as a hole. No entry is all zeros: the first batch of a segment is never indexed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, os.lseek(fd, 0, os.SEEK_HOLE), 0) if size else b""
    finally:
        os.close(fd)
    used = len(data.rstrip(b"\0"))
    count = -(-used // entry_size)
    if count * entry_size > size:
        raise DamagedIndexError(f"{size} bytes are not a multiple of {entry_size}")
    return data[: count * entry_size].ljust(count * entry_size, b"\0")
