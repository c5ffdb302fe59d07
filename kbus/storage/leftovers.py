"""Files that an earlier run left behind in a log's directory, found when the log is loaded."""

import contextlib
import logging
import os
import re

from kbus.storage import layout
from kbus.storage.disk import TEMPORARY_SUFFIX, Disk
from kbus.storage.segment_file import SegmentFile, scan_headers

logger = logging.getLogger(__name__)

_LEADING_OFFSET = re.compile(r"\d{20}")
_NO_OFFSET = 2**63


def finish_interrupted_work(directory: str, disk: Disk) -> None:
    """`.deleted` and `.tmp` waited for removal; `.cleaned` is half of a compaction, and goes; `.swap` is
    a complete one, and replaces the segments that it covers."""
    names = os.listdir(directory)
    cleaned = [name for name in names if name.endswith(layout.CLEANED)]
    swaps = [name for name in names if name.endswith(layout.SWAP)]
    for name in names:
        if name.endswith((layout.DELETED, TEMPORARY_SUFFIX)):
            _unlink(directory, name, disk)
    # A swap at or above a `.cleaned` is part of a split of a segment that did not finish.
    bound = min(map(_leading_offset, cleaned), default=_NO_OFFSET)
    for name in [name for name in swaps if _leading_offset(name) >= bound]:
        swaps.remove(name)
        _unlink(directory, name, disk)
    for name in cleaned:
        _unlink(directory, name, disk)
    for name in swaps:
        if name.endswith(layout.LOG + layout.SWAP):
            _make_room_for_swap(directory, name, disk)
    for name in swaps:
        disk.rename(os.path.join(directory, name), os.path.join(directory, name.removesuffix(layout.SWAP)))
    remove_orphaned_indexes(directory, disk)


def remove_orphaned_indexes(directory: str, disk: Disk) -> None:
    """An index without its log says nothing."""
    names = os.listdir(directory)
    bases = {layout.offset_of(name, layout.LOG) for name in names}
    for name in names:
        for suffix in (layout.OFFSET_INDEX, layout.TIME_INDEX, layout.TXN_INDEX):
            offset = layout.offset_of(name, suffix)
            if offset is not None and offset not in bases:
                _unlink(directory, name, disk)


def _make_room_for_swap(directory: str, swap: str, disk: Disk) -> None:
    """Remove the segments whose records the compacted one holds."""
    path = os.path.join(directory, swap)
    file = SegmentFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
    first = end = _leading_offset(swap)
    for _, header in scan_headers(file, 0, os.fstat(file.fileno()).st_size):
        end = header.next_offset
    for name in os.listdir(directory):
        for suffix in layout.SEGMENT_SUFFIXES:
            offset = layout.offset_of(name, suffix)
            if offset is not None and first <= offset < end:
                _unlink(directory, name, disk)


def _leading_offset(name: str) -> int:
    match = _LEADING_OFFSET.match(name)
    return int(match[0]) if match else _NO_OFFSET


def _unlink(directory: str, name: str, disk: Disk) -> None:
    logger.info("%s: removing %s, left behind by an earlier run", directory, name)
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(os.path.join(directory, name))
