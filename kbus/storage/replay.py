"""Producer state read back from the log itself."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kbus.core.producer_window import WINDOW, WrittenBatch, prepend
from kbus.records.batch import BatchHeader
from kbus.records.control import EndTransactionMarker, read_marker
from kbus.storage.producer_state import ProducerState, ProducerUpdate
from kbus.storage.segment import Segment
from kbus.types import Offset, ProducerId

_REFILL_INDEX_ENTRIES = 256
"""How far back windows are completed from the log: a megabyte of small batches, or this many large ones."""
_REFILL_SEGMENTS = 8

_base_offset_of = attrgetter("base_offset")


def floor_segment(segments: Sequence[Segment], offset: int) -> int:
    """The number of the segment that holds `offset`: the last that begins at or below it, else the first."""
    return max(bisect_right(segments, offset, key=_base_offset_of) - 1, 0)


def replay(state: ProducerState, segments: Sequence[Segment], end: Offset, *, index_from: Offset) -> None:
    """Bring `state` from its end offset to `end`. Aborted transactions are entered in the transaction
    indexes of segments that begin at or above `index_from`, which the caller has emptied."""
    for segment in segments[floor_segment(segments, state.end_offset) :]:
        if segment.base_offset >= end:
            break
        found = segment.find(max(state.end_offset, segment.base_offset))
        if found is None:
            continue
        for position, header in segment.headers(found.position):
            if header.base_offset >= end:
                break
            if header.has_producer_id:
                update = ProducerUpdate()
                marker = read_marker_at(segment, position, header)
                state.stage(update, header, header.base_offset, marker, None)
                aborted = state.commit(update)
                if segment.base_offset >= index_from:
                    for transaction in aborted:
                        segment.txn_index.append(transaction)
    state.end_offset = end


def read_marker_at(segment: Segment, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """None for data, and where compaction has emptied a control batch."""
    if not header.is_control or header.record_count == 0:
        return None
    return read_marker(segment.file.read(position, header.size), header)


def complete_windows(state: ProducerState, segments: Sequence[Segment]) -> None:
    """A snapshot has only the last batch of a producer, but a client may retry any of the last few after
    a restart. Find them at the end of the log, so that a retry is neither written twice nor refused."""
    remaining_entries = _REFILL_INDEX_ENTRIES
    for segment in reversed(segments[-_REFILL_SEGMENTS:]):
        if remaining_entries <= 0 or all(len(e.batches) in (0, WINDOW) for e in state.entries.values()):
            return
        start = segment.offset_index.back_from_end(remaining_entries)
        remaining_entries -= segment.offset_index.count
        older: dict[ProducerId, list[WrittenBatch]] = {}
        for _, header in segment.headers(start):
            entry = state.entries.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.producer_epoch:
                continue
            delta = header.last_offset_delta
            batch = WrittenBatch(header.last_sequence, header.last_offset, delta, header.max_timestamp)
            older.setdefault(header.producer_id, []).append(batch)
        for producer_id, batches in older.items():
            state.entries[producer_id] = prepend(state.entries[producer_id], tuple(batches))
