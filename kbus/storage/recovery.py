"""Checking a log after a crash, from the segment of the recovery point on.

The log is cut at the first batch that is bad. What is cut off but had been flushed, or still looks good,
is set aside in files named `.damaged`: recovery never destroys what may be of value.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbus.records.batch import BatchHeader
from kbus.storage import layout
from kbus.storage.disk import Disk
from kbus.storage.epochs import LeaderEpochCache
from kbus.storage.index import MAX_RELATIVE_OFFSET, TimeIndex
from kbus.storage.log_config import CLEANUP_COMPACT, LogConfig
from kbus.storage.segment import Segment
from kbus.storage.segment_file import scan_checked, scan_headers
from kbus.types import NO_EPOCH, Offset

logger = logging.getLogger(__name__)

_COPY_BYTES = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    checked_segments: int = 0
    truncated_bytes: int = 0
    dropped_segments: int = 0
    lost_from: Offset | None = None
    """Set if records that had been flushed are gone from the log: the disk broke its promise."""
    set_aside: list[str] = field(default_factory=list)
    """Files that hold what was cut off and may be of value."""


class _Bad(NamedTuple):
    """What ends a segment too early. `crc_is_good`: the batch itself is sound, but cannot be where it is."""

    reason: str
    crc_is_good: bool


def check_segments(
    segments: list[Segment],
    first: int,
    recovery_point: Offset,
    epochs: LeaderEpochCache | None,
    config: LogConfig,
    disk: Disk,
) -> tuple[Offset, RecoveryReport]:
    """Check `segments[first:]`, rebuild their indexes, cut the log at the first bad batch and drop the
    segments behind it. `epochs` is None if they are not known. Returns where the log ends."""
    report = RecoveryReport()
    may_have_gaps = CLEANUP_COMPACT in config.cleanup_policy
    end = segments[first].base_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        following = segments[number + 1] if number + 1 < len(segments) else None
        report.checked_segments += 1
        file_size = segment.size
        end, bad = _check(segment, following, epochs, config)
        if bad is not None:
            was_flushed = end < recovery_point
            if was_flushed or bad.crc_is_good:
                report.set_aside.append(_copy_tail(segment, file_size, disk))
            logger.warning(
                "%s: %s at byte %d; the log is cut at offset %d",
                segment.path,
                bad.reason,
                segment.size,
                end,
            )
            disk.truncate(segment.file.fileno(), segment.size)
            disk.fsync(segment.file.fileno())
            report.truncated_bytes += file_size - segment.size
        elif following is not None and following.base_offset != end:
            if may_have_gaps and following.base_offset > end:
                continue
            logger.warning(
                "%s ends at offset %d but the next segment begins at %d; what follows is set aside",
                segment.path,
                end,
                following.base_offset,
            )
        else:
            continue
        dropped = segments[number + 1 :]
        del segments[number + 1 :]
        report.dropped_segments = len(dropped)
        report.set_aside += _set_aside(dropped, disk)
        break
    for segment in segments[first:]:
        segment.deactivate()
    if end < recovery_point:
        report.lost_from = end
        logger.error(
            "%s: flushed records from offset %d to %d are damaged; they are in %s",
            os.path.dirname(segments[0].path),
            end,
            recovery_point - 1,
            ", ".join(report.set_aside) or "no file",
        )
    return end, report


def _check(
    segment: Segment, following: Segment | None, epochs: LeaderEpochCache | None, config: LogConfig
) -> tuple[Offset, _Bad | None]:
    """Index the good batches of `segment`; its size then ends them. Returns the offset after the last."""
    file_size = segment.size
    most_entries = file_size // max(config.index_interval_bytes, 1) + 2
    segment.reset_indexes(max(config.segment_index_bytes, most_entries * TimeIndex.ENTRY_SIZE))
    segment.txn_index.clear()
    segment.size = 0
    expected = segment.base_offset
    for position, header, crc_is_good in scan_checked(segment.file, file_size):
        bad = _judge(header, crc_is_good, expected, segment, epochs)
        # Compaction leaves gaps, but so does damage to an offset, which no CRC covers. What follows tells:
        # behind a true gap the offsets go on from there.
        is_jump = bad is None and header.base_offset > expected
        if is_jump and not _goes_on(segment, position, file_size, header, following):
            bad = _Bad(f"an offset that jumps from {expected} to {header.base_offset}", True)
        if bad is not None:
            return expected, bad
        segment.note_batch(header.base_offset, header.last_offset, header.max_timestamp, header.size)
        expected = header.next_offset
    if segment.size < file_size:
        return expected, _Bad("no whole batch", False)
    return expected, None


def _judge(
    header: BatchHeader,
    crc_is_good: bool,
    expected: Offset,
    segment: Segment,
    epochs: LeaderEpochCache | None,
) -> _Bad | None:
    if not crc_is_good:
        return _Bad("a batch that does not match its CRC", False)
    if header.base_offset < expected:
        return _Bad(f"offset {header.base_offset} where {expected} comes next", True)
    if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return _Bad(f"offset {header.last_offset}, too far from the segment's first", True)
    if epochs is not None:
        # An epoch is in the checkpoint before any record of it is written.
        known = epochs.epoch_at(header.last_offset)
        if known not in (header.leader_epoch, NO_EPOCH):
            return _Bad(f"leader epoch {header.leader_epoch} where epoch {known} wrote", True)
    return None


def _goes_on(
    segment: Segment, position: int, file_size: int, header: BatchHeader, following: Segment | None
) -> bool:
    after = position + header.size
    for _, successor in scan_headers(segment.file, after, file_size):
        return successor.base_offset >= header.next_offset
    return after == file_size and following is not None and following.base_offset >= header.next_offset


def _copy_tail(segment: Segment, file_size: int, disk: Disk) -> str:
    """Copy what lies behind the good batches before it is cut off."""
    path = _unused(f"{segment.path}.{segment.size}{layout.DAMAGED}")
    fd = disk.open(path, create=True)
    try:
        for start in range(segment.size, file_size, _COPY_BYTES):
            data = segment.file.read(start, min(_COPY_BYTES, file_size - start))
            disk.write(fd, [data], start - segment.size)
        disk.fsync(fd)
    finally:
        os.close(fd)
    disk.fsync_directory(os.path.dirname(path))
    return path


def _set_aside(dropped: Sequence[Segment], disk: Disk) -> list[str]:
    """Rename the logs of whole segments and remove their indexes."""
    paths = []
    for segment in dropped:
        segment.release()
        path = _unused(segment.path + layout.DAMAGED)
        disk.rename(segment.path, path)
        paths.append(path)
        for index in (segment.offset_index, segment.time_index, segment.txn_index):
            if os.path.exists(index.path):
                disk.unlink(index.path)
        disk.fsync_directory(os.path.dirname(segment.path))
    return paths


def _unused(path: str) -> str:
    """Nothing that was set aside before is overwritten."""
    number = 1
    candidate = path
    while os.path.exists(candidate):
        number += 1
        candidate = f"{path.removesuffix(layout.DAMAGED)}.{number}{layout.DAMAGED}"
    return candidate
