"""What the indexes beside a segment must agree with, checked batch by batch while the segment is walked."""

from collections.abc import Callable, Sequence

from kbus.cli.segment_indexes import OffsetEntry, TimeEntry
from kbus.cli.segment_reader import Found
from kbus.types import NO_TIMESTAMP

Report = Callable[[int | None, int | None, str], None]
"""Called with position, offset and the problem, each None where it does not apply."""


class OffsetIndexCheck:
    """Every entry points at the start of a batch and names the last offset of it, or of a later one that
    was appended together with it. A lookup that begins there then misses nothing."""

    def __init__(self, entries: Sequence[OffsetEntry], report: Report) -> None:
        self._report = report
        self._waiting = [
            entry
            for number, entry in enumerate(entries)
            if number == 0 or self._rises(number, entries[number - 1], entry)
        ]
        self._waiting.reverse()
        self._open: OffsetEntry | None = None

    def _rises(self, number: int, before: OffsetEntry, entry: OffsetEntry) -> bool:
        if entry.offset > before.offset and entry.position > before.position:
            return True
        self._report(None, entry.offset, f"entry {number} does not lie above the one before it")
        return False

    def batch(self, found: Found) -> None:
        waiting = self._waiting
        while waiting and waiting[-1].position < found.position:
            self._misplaced(waiting.pop())
        if waiting and waiting[-1].position == found.position:
            self._open = waiting.pop()
            if found.base_offset > self._open.offset:
                what = f"points at byte {found.position}, where offset {found.base_offset} begins"
                self._report(found.position, self._open.offset, what)
                self._open = None
        if found.header is None:
            self._open = None
        if self._open is None or found.header is None:
            return
        last_offset = found.header.last_offset
        if last_offset > self._open.offset:
            what = f"names an offset at which no batch ends; one ends at {last_offset}"
            self._report(self._open.position, self._open.offset, what)
        if last_offset >= self._open.offset:
            self._open = None

    def end(self) -> None:
        """The walk has reached the end of the log."""
        if self._open is not None:
            self._report(self._open.position, self._open.offset, "names an offset behind the end of the log")
        while self._waiting:
            self._misplaced(self._waiting.pop())

    def _misplaced(self, entry: OffsetEntry) -> None:
        self._report(entry.position, entry.offset, "points at a byte where no batch begins")


class TimeIndexCheck:
    """Every entry names a batch whose largest timestamp is the entry's, and no earlier batch has a larger
    one. Timestamps rise, offsets do not fall."""

    def __init__(self, entries: Sequence[TimeEntry], report: Report) -> None:
        self._report = report
        self._waiting = [
            entry
            for number, entry in enumerate(entries)
            if number == 0 or self._rises(number, entries[number - 1], entry)
        ]
        self._waiting.reverse()
        self._largest = NO_TIMESTAMP
        self._behind_unreadable = False
        """The last batch has no header to rely on, so that an entry that names it cannot be judged."""

    def _rises(self, number: int, before: TimeEntry, entry: TimeEntry) -> bool:
        if entry.timestamp > before.timestamp and entry.offset >= before.offset:
            return True
        self._report(None, entry.offset, f"entry {number} does not lie above the one before it")
        return False

    def batch(self, found: Found) -> None:
        if found.header is None:
            self._behind_unreadable = True
            return
        header = found.header
        waiting = self._waiting
        while waiting and waiting[-1].offset < header.base_offset:
            entry = waiting.pop()
            if not self._behind_unreadable:
                self._report(found.position, entry.offset, "names an offset that the log does not have")
        self._behind_unreadable = False
        if waiting and waiting[-1].offset <= header.last_offset:
            entry = waiting.pop()
            if header.max_timestamp != entry.timestamp:
                what = f"has timestamp {entry.timestamp}, but the batch there has {header.max_timestamp}"
                self._report(found.position, entry.offset, what)
            elif self._largest > entry.timestamp:
                what = f"has timestamp {entry.timestamp}, but an earlier batch has {self._largest}"
                self._report(found.position, entry.offset, what)
        self._largest = max(self._largest, header.max_timestamp)

    def end(self) -> None:
        while self._waiting and not self._behind_unreadable:
            self._report(None, self._waiting.pop().offset, "names an offset behind the end of the log")
