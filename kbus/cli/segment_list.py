"""A segment in a line: what it covers and how large it is, without a walk through all of it."""

from pathlib import Path
from typing import NamedTuple

from kbus.cli.segment_files import PartitionFiles, SegmentFiles
from kbus.cli.segment_indexes import DamagedIndexError, offset_entries, time_entries
from kbus.cli.segment_reader import Found, SegmentReader
from kbus.storage import layout


class SegmentSummary(NamedTuple):
    partition: str
    file: Path
    base_offset: int | None
    first_offset: int | None
    last_offset: int | None
    first_timestamp: int | None
    max_timestamp: int | None
    log_bytes: int
    index_bytes: int | None
    timeindex_bytes: int | None
    state: str
    """closed, active (the last one, which grows), torn tail, damaged or old format."""


def summarize(partition: PartitionFiles) -> list[SegmentSummary]:
    summaries = []
    for segment in partition.segments:
        try:
            summaries.append(_summarize(partition.name, segment))
        except FileNotFoundError:
            continue  # a live log has deleted it since the folder was listed
    return summaries


def _summarize(partition: str, segment: SegmentFiles) -> SegmentSummary:
    indexed_position, indexed_timestamp = _indexed(segment)
    with SegmentReader(segment.log) as reader:
        first = next(reader.walk(), None)
        last, max_timestamp = _last(reader, indexed_position, indexed_timestamp)
        if last is None and indexed_position:
            # The index does not fit the log; what the log itself says counts.
            last, max_timestamp = _last(reader, 0, -1)
        state = "active" if segment.next_base_offset is None else "closed"
        if reader.tail is not None:
            torn = reader.tail.is_torn and segment.next_base_offset is None
            state = "torn tail" if torn else "damaged"
        elif last is not None and last.header is None:
            state = "old format"
        return SegmentSummary(
            partition=partition,
            file=segment.log,
            base_offset=segment.base_offset,
            first_offset=None if first is None else first.base_offset,
            last_offset=None if last is None else _last_offset(last),
            first_timestamp=_timestamp(first.header.base_timestamp if first and first.header else -1),
            max_timestamp=_timestamp(max_timestamp),
            log_bytes=reader.size,
            index_bytes=_size(segment.sibling(layout.OFFSET_INDEX)),
            timeindex_bytes=_size(segment.sibling(layout.TIME_INDEX)),
            state=state,
        )


def _indexed(segment: SegmentFiles) -> tuple[int, int]:
    """Position of the last indexed batch and the largest indexed timestamp: where to begin to look for the
    last batch and for the latest time."""
    if segment.base_offset is None:
        return 0, -1
    try:
        offsets = offset_entries(segment.sibling(layout.OFFSET_INDEX), segment.base_offset)
        times = time_entries(segment.sibling(layout.TIME_INDEX), segment.base_offset)
    except DamagedIndexError:
        return 0, -1
    if not offsets:
        return 0, -1
    return offsets[-1].position, times[-1].timestamp if times else -1


def _last(reader: SegmentReader, position: int, timestamp: int) -> tuple[Found | None, int]:
    """The last batch at or after `position`, and the largest timestamp from there on or in the index."""
    last = None
    for found in reader.walk(position):
        last = found
        if found.header is not None:
            timestamp = max(timestamp, found.header.max_timestamp)
    return last, timestamp


def _last_offset(found: Found) -> int:
    return found.base_offset if found.header is None else found.header.last_offset


def _timestamp(value: int) -> int | None:
    return None if value < 0 else value


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
