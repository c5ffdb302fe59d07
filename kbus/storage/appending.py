"""Batches on their way into a log."""

from collections.abc import Iterator
from typing import NamedTuple

from kbus.records.batch import offset_and_epoch_prefix
from kbus.records.control import EndTransactionMarker, read_marker
from kbus.records.validation import ValidatedBatch
from kbus.types import Offset


class AppendInfo(NamedTuple):
    first_offset: Offset
    last_offset: Offset
    max_timestamp: int
    log_append_time_ms: int
    """NO_TIMESTAMP unless the topic's timestamps are those of the append."""
    log_start_offset: Offset
    duplicate: bool = False
    """Nothing was written: the offsets are those of the first time."""


class PlacedBatch(NamedTuple):
    """What a segment has to know of a batch; its offsets are assigned."""

    base_offset: Offset
    last_offset: Offset
    max_timestamp: int
    size: int


def marker_in(batch: ValidatedBatch) -> EndTransactionMarker | None:
    """None for data, and where compaction has emptied a control batch."""
    header, parts = batch
    if not header.is_control or not header.record_count:
        return None
    prefix = offset_and_epoch_prefix(header.base_offset, header.batch_length, header.leader_epoch)
    return read_marker(b"".join((prefix, *parts)), header)


def groups_of(batches: list[ValidatedBatch], max_bytes: int) -> Iterator[list[ValidatedBatch]]:
    """Cut into parts of at most `max_bytes`, or of one batch."""
    group: list[ValidatedBatch] = []
    size = 0
    for batch in batches:
        if group and size + batch.header.size > max_bytes:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch.header.size
    if group:
        yield group
