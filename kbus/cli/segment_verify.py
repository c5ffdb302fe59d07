"""Whether a partition's files are sound: checksums, order, indexes, leader epochs, producer snapshots."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from kbus.cli.segment_checks import OffsetIndexCheck, Report, TimeIndexCheck
from kbus.cli.segment_files import PartitionFiles, SegmentFiles
from kbus.cli.segment_indexes import (
    DamagedIndexError,
    aborted_transactions,
    offset_entries,
    time_entries,
)
from kbus.cli.segment_reader import Found, SegmentReader
from kbus.protocol.errors import KafkaError
from kbus.records.batch import BatchHeader
from kbus.records.compression import DEFAULT_MAX_BYTES
from kbus.records.record import decode_records
from kbus.storage import layout
from kbus.storage.checkpoints import UnreadableFile, read_epochs
from kbus.storage.producer_snapshot import CorruptSnapshot, decode_snapshot

T = TypeVar("T")

_PROBLEMS_PER_FILE = 20
_MAX_RELATIVE_OFFSET = 2**31 - 1


class Problem(NamedTuple):
    file: Path
    position: int | None
    offset: int | None
    problem: str


@dataclass(slots=True)
class SegmentReport:
    file: Path
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    state: str = "sound"
    """sound, torn tail, damaged, old format (checksums only), or gone (deleted while it was looked at)."""
    notes: list[str] = field(default_factory=list)


class PartitionVerifier:
    """Walks all segments of a partition in order. `advance` is told of the bytes that were looked at."""

    def __init__(self, partition: PartitionFiles, *, deep: bool, advance: Callable[[int], None]) -> None:
        self.problems: list[Problem] = []
        self._partition = partition
        self._deep = deep
        self._advance = advance
        self._counts: Counter[Path] = Counter()
        self._next_offset: int | None = None
        self._epoch = -1
        self._epoch_starts: list[tuple[int, int]] = []
        """(epoch, first offset seen with it), in the order of the log."""

    def run(self) -> list[SegmentReport]:
        reports = [self._segment(segment) for segment in self._partition.segments]
        self._check_epochs()
        for snapshot in self._partition.snapshots:
            self._check_snapshot(snapshot)
        for segment, report in zip(self._partition.segments, reports, strict=True):
            files = (
                segment.log,
                *map(segment.sibling, (layout.OFFSET_INDEX, layout.TIME_INDEX, layout.TXN_INDEX)),
            )
            if any(self._counts[file] for file in files):
                report.state = "damaged"
        return reports

    def _report(self, file: Path, position: int | None, offset: int | None, problem: str) -> None:
        self._counts[file] += 1
        if self._counts[file] < _PROBLEMS_PER_FILE:
            self.problems.append(Problem(file, position, offset, problem))
        elif self._counts[file] == _PROBLEMS_PER_FILE:
            self.problems.append(
                Problem(file, position, offset, f"{problem}; further problems are not listed")
            )

    def _segment(self, segment: SegmentFiles) -> SegmentReport:
        report = SegmentReport(segment.log)
        offset_index, time_index = segment.sibling(layout.OFFSET_INDEX), segment.sibling(layout.TIME_INDEX)
        report_offset, report_time = partial(self._report, offset_index), partial(self._report, time_index)
        base_offset = segment.base_offset
        try:
            # Indexes first: on a live log, an entry read now is of a batch that is already in the file.
            if base_offset is None:
                base_offset = _first_offset(segment.log)
            offsets = _entries(partial(offset_entries, offset_index, base_offset), report_offset)
            times = _entries(partial(time_entries, time_index, base_offset), report_time)
            self._check_transactions(segment.sibling(layout.TXN_INDEX))
            with SegmentReader(segment.log) as reader:
                report.size_bytes = reader.size
                checks = (OffsetIndexCheck(offsets, report_offset), TimeIndexCheck(times, report_time))
                for found in reader.walk():
                    readable = self._batch(segment, base_offset, found, reader, report)
                    for check in checks:
                        check.batch(found if readable else found._replace(header=None))
                    self._advance(found.size)
                if reader.tail is None:
                    for check in checks:
                        check.end()
                self._tail(segment, reader, report)
        except FileNotFoundError:
            # A live log deletes old segments; one that never was there could not have been listed.
            report.state = "gone"
        for path in (offset_index, time_index):
            if segment.base_offset is not None and report.state != "gone" and not path.exists():
                report.notes.append(f"{path.name} is missing; a broker builds it anew")
        return report

    def _tail(self, segment: SegmentFiles, reader: SegmentReader, report: SegmentReport) -> None:
        tail = reader.tail
        if tail is None:
            return
        if tail.is_torn and segment.next_base_offset is None:
            report.state = "torn tail"
            report.notes.append(
                f"from byte {tail.position}, {tail.problem}: a write that has not ended, or was cut off by a "
                "crash; a broker removes it when it recovers"
            )
        else:
            self._report(segment.log, tail.position, self._next_offset, tail.problem)

    def _batch(
        self,
        segment: SegmentFiles,
        base_offset: int,
        found: Found,
        reader: SegmentReader,
        report: SegmentReport,
    ) -> bool:
        """Whether the header can be relied on."""

        def problem(text: str) -> None:
            self._report(segment.log, found.position, found.base_offset, text)

        report.batches += 1
        header = found.header
        if not reader.crc_matches(found):
            problem("the CRC does not match")
            return False
        if header is None:
            if report.state == "sound":
                report.state = "old format"
                report.notes.append(
                    f"has batches of format {found.magic}, older than v2; only their checksums are checked"
                )
            self._next_offset = found.base_offset + 1
            return False
        report.records += max(header.record_count, 0)
        if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
            problem(f"{header.record_count} records do not fit the offsets up to {header.last_offset}")
        if header.base_offset < base_offset:
            problem(f"the offset lies below that of the segment, {base_offset}")
        elif self._next_offset is not None and header.base_offset < self._next_offset:
            problem(f"the offset lies below {self._next_offset}, which was to follow")
        if segment.next_base_offset is not None and header.last_offset >= segment.next_base_offset:
            problem(f"offset {header.last_offset} belongs to the next segment")
        if header.last_offset - base_offset > _MAX_RELATIVE_OFFSET:
            problem("the offset is too far from that of the segment for its indexes")
        if self._deep:
            self._check_records(header, found, reader, problem)
        self._check_epoch(header, problem)
        if report.first_offset is None:
            report.first_offset = header.base_offset
        report.last_offset = header.last_offset
        self._next_offset = header.next_offset
        return True

    def _check_records(
        self, header: BatchHeader, found: Found, reader: SegmentReader, problem: Callable[[str], None]
    ) -> None:
        if found.size > DEFAULT_MAX_BYTES:
            problem(f"the batch has {found.size} bytes, too many to be opened")
            return
        previous = header.base_offset - 1
        try:
            for record in decode_records(reader.read(found), header):
                if not previous < record.offset <= header.last_offset:
                    problem(f"record offset {record.offset} does not follow {previous}")
                    return
                previous = record.offset
        except KafkaError as error:
            problem(f"the records cannot be read: {error}")

    def _check_epoch(self, header: BatchHeader, problem: Callable[[str], None]) -> None:
        epoch = header.leader_epoch
        if epoch < 0:
            return
        if epoch < self._epoch:
            problem(f"leader epoch {epoch} follows {self._epoch}")
        elif epoch > self._epoch:
            self._epoch = epoch
            self._epoch_starts.append((epoch, header.base_offset))

    def _check_epochs(self) -> None:
        """Read after the log: on a live one the file then has every epoch that was seen."""
        path = self._partition.epochs
        try:
            entries = read_epochs(str(path))
        except UnreadableFile as error:
            self._report(path, None, None, str(error).removeprefix(f"{path} "))
            return
        if not entries:
            return
        starts: dict[int, int] = {known: start for known, start in entries}  # noqa: C416 - plain ints
        for epoch, seen_at in self._epoch_starts:
            if seen_at < entries[0][1]:
                continue  # older than what the file covers: the start of the log has moved on
            covering = max((start, known) for known, start in entries if start <= seen_at)
            if covering[1] != epoch:
                known = f"the file starts it at {starts[epoch]}" if epoch in starts else "the file lacks it"
                what = f"the log has epoch {epoch} there; {known}"
                self._report(path, None, seen_at, what)

    def _check_snapshot(self, path: Path) -> None:
        try:
            decode_snapshot(path.read_bytes())
        except FileNotFoundError:
            return
        except CorruptSnapshot as error:
            self._report(path, None, layout.offset_of(path.name, layout.SNAPSHOT), str(error))

    def _check_transactions(self, path: Path) -> None:
        previous = -1
        try:
            for entry in aborted_transactions(path):
                if entry.first_offset > entry.last_offset or entry.last_offset <= previous:
                    self._report(path, None, entry.last_offset, "the entry is out of order")
                previous = entry.last_offset
        except DamagedIndexError as error:
            self._report(path, None, None, str(error))


def _entries(read: Callable[[], list[T]], report: Report) -> list[T]:
    try:
        return read()
    except DamagedIndexError as error:
        report(None, None, str(error))
        return []


def _first_offset(log: Path) -> int:
    """For a file that is not named after its base offset."""
    with SegmentReader(log) as reader:
        return next((found.base_offset for found in reader.walk()), 0)
