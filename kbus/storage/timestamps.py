"""Offsets by time."""

from collections.abc import Iterable
from typing import NamedTuple

from kbus.records.record import decode_records
from kbus.storage.segment import Segment
from kbus.types import LeaderEpoch, Offset


class TimestampedOffset(NamedTuple):
    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


def first_at_or_after(
    segments: Iterable[Segment], timestamp: int, log_start_offset: Offset
) -> TimestampedOffset | None:
    """The first record that is not older than `timestamp`. Records need not be in order of time: it is the
    first by offset."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        for position, header in segment.batches_for_timestamp(timestamp, log_start_offset):
            batch = segment.file.read(position, header.size)
            for record in decode_records(batch, header):
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    return TimestampedOffset(Offset(record.offset), record.timestamp, header.leader_epoch)
    return None


def first_of_latest(segments: Iterable[Segment], log_start_offset: Offset) -> TimestampedOffset | None:
    """The first record that has the largest timestamp of all."""
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return None
    return first_at_or_after([latest], latest.max_timestamp, log_start_offset)
