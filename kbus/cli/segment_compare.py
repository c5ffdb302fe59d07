"""Whether the replicas of a partition hold the same bytes.

What is compared is the stream of batches, not file with file: replicas may begin a new segment at different
batches, and have deleted more or less of the old ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kbus.cli.segment_files import SegmentFiles
from kbus.cli.segment_reader import Found, SegmentReader


class Batch(NamedTuple):
    file: Path
    found: Found
    data: bytes

    @property
    def base_offset(self) -> int:
        return self.found.base_offset

    @property
    def next_offset(self) -> int:
        header = self.found.header
        return self.base_offset + 1 if header is None else header.last_offset + 1


class Difference(NamedTuple):
    offset: int
    """Of the first batch that is not the same."""
    file: Path
    position: int
    """Of the first byte that is not the same, in `file`."""
    reference_file: Path
    reference_position: int
    problem: str


@dataclass(slots=True)
class ReplicaLog:
    """One replica, and what became of its comparison."""

    broker: int
    segments: Sequence[SegmentFiles]
    compared_batches: int = 0
    compared_bytes: int = 0
    next_offset: int = 0
    """Up to here it is the same as the reference, or is the reference."""
    difference: Difference | None = None
    damage: str | None = field(default=None)
    """Why its log cannot be read further."""

    @property
    def first_offset(self) -> int:
        return 0 if not self.segments else self.segments[0].base_offset or 0

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """Those that hold offsets from `start` on and begin below `end`."""
        for segment in self.segments:
            if segment.next_base_offset is not None and segment.next_base_offset <= start:
                continue
            if (segment.base_offset or 0) >= end:
                return
            with SegmentReader(segment.log) as reader:
                for found in reader.walk():
                    if found.base_offset >= end:
                        return
                    batch = Batch(segment.log, found, b"")
                    if batch.next_offset > start:
                        yield batch._replace(data=reader.read(found))
                if reader.tail is not None:
                    self.damage = f"{segment.log} from byte {reader.tail.position}: {reader.tail.problem}"
                    return


def compare(
    reference: ReplicaLog, others: Sequence[ReplicaLog], end: int, advance: Callable[[int], None]
) -> None:
    """Walks all logs at once, up to the offset `end`, and notes in each how far it is like the reference.

    It begins at the first offset that all have. A log that ends early is not different up to there."""
    start = max(log.first_offset for log in (reference, *others))
    for log in (reference, *others):
        log.next_offset = start
    walks = [(log, log.batches(start, end)) for log in others]
    last: Batch | None = None
    for batch in reference.batches(start, end):
        _note(reference, batch)
        advance(len(batch.data))
        last = batch
        still = []
        for log, walk in walks:
            other = next(walk, None)
            if other is None:
                continue
            if other.data == batch.data:
                _note(log, other)
                still.append((log, walk))
            else:
                log.difference = _difference(other, batch)
        walks = still
    for log, walk in walks:
        beyond = next(chain(walk, ()), None)
        if beyond is not None and last is not None and reference.damage is None:
            log.difference = Difference(
                beyond.base_offset,
                beyond.file,
                beyond.found.position,
                last.file,
                last.found.position + last.found.size,
                f"has offset {beyond.base_offset}, which the other log lacks",
            )


def _note(log: ReplicaLog, batch: Batch) -> None:
    log.compared_batches += 1
    log.compared_bytes += len(batch.data)
    log.next_offset = batch.next_offset


def _difference(batch: Batch, reference: Batch) -> Difference:
    at = next(
        (i for i, (a, b) in enumerate(zip(batch.data, reference.data, strict=False)) if a != b),
        min(len(batch.data), len(reference.data)),
    )
    return Difference(
        min(batch.base_offset, reference.base_offset),
        batch.file,
        batch.found.position + at,
        reference.file,
        reference.found.position + at,
        _what_differs(batch.found, reference.found),
    )


def _what_differs(found: Found, reference: Found) -> str:
    if found.header is None or reference.header is None:
        return "the bytes differ"
    fields = [
        f"{name} {mine}, not {theirs}"
        for name, mine, theirs in zip(found.header._fields, found.header, reference.header, strict=True)
        if mine != theirs
    ]
    return "; ".join(fields) if fields else "the records differ under equal headers"
