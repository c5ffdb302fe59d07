"""One segment of a log: a `.log` file of batches, its two indexes and the aborted transactions in it."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence

from kbus.protocol.errors import KafkaError
from kbus.records.batch import BatchHeader, Buffer
from kbus.storage import layout
from kbus.storage.disk import Disk
from kbus.storage.index import MAX_RELATIVE_OFFSET, CorruptIndex, OffsetIndex, TimeIndex
from kbus.storage.segment_file import FoundBatch, SegmentFile, scan_headers, scan_offsets
from kbus.storage.txn_index import TransactionIndex
from kbus.types import NO_TIMESTAMP, Offset

logger = logging.getLogger(__name__)

_RECENT_BATCHES = 64


class LostSegment(OSError):  # noqa: N818
    """A failed write could not be undone: the end of the file is not known to be good."""


class Segment:
    """Batches with offsets from `base_offset` up. Only the last segment of a log is active (writable)."""

    def __init__(
        self, directory: str, base_offset: Offset, disk: Disk, *, index_interval_bytes: int, created_ms: int
    ) -> None:
        prefix = os.path.join(directory, layout.file_name(base_offset, ""))
        self.base_offset = base_offset
        self.path = prefix + layout.LOG
        self.size = 0
        """Bytes of whole, valid batches: the next write goes here."""
        self.offset_index = OffsetIndex(prefix + layout.OFFSET_INDEX, base_offset, disk)
        self.time_index = TimeIndex(prefix + layout.TIME_INDEX, base_offset, disk)
        self.txn_index = TransactionIndex(prefix + layout.TXN_INDEX, disk)
        self.created_ms = created_ms
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        """Last offset of the first batch that has `max_timestamp`."""
        self._first_timestamp: int | None = None
        self._index_interval_bytes = max(index_interval_bytes, 1)
        self._bytes_since_entry = 0
        self._disk = disk
        self._file: SegmentFile | None = None
        # First offset → batch of the latest appends, in two generations, so that those who read at the
        # end need no search. Each generation holds at most _RECENT_BATCHES.
        self._recent: dict[int, FoundBatch] = {}
        self._older: dict[int, FoundBatch] = {}

    # Life

    def create(self, index_bytes: int) -> None:
        """A new, empty, active segment. Files of the same name are leftovers of a failed attempt."""
        self._file = SegmentFile(self._disk.open(self.path, create=True), self.path)
        self._disk.truncate(self._file.fileno(), 0)
        self.activate(index_bytes)

    def load(self) -> None:
        """Take over the files that are there. Raises CorruptIndex if the indexes must be rebuilt."""
        self.size = os.stat(self.path).st_size
        try:
            self.offset_index.load()
            self.offset_index.check(self.size)
            self.time_index.load()
            self.time_index.check()
            self._check_largest_timestamp()
        except FileNotFoundError as error:
            raise CorruptIndex(f"{error.filename} is missing") from error
        finally:
            self.offset_index.release()
            self.time_index.release()
        if not self.txn_index.load():
            raise CorruptIndex(f"{self.txn_index.path} is damaged")
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last

    def _check_largest_timestamp(self) -> None:
        """Retention deletes by the last entry of the time index: it must be true."""
        timestamp, offset = self.time_index.last
        position = self.offset_index.lookup(offset)[1]
        if not 0 <= position <= self.size:
            raise CorruptIndex(f"{self.offset_index.path} points beyond the log")
        for _, header in scan_headers(self.file, position, self.size):
            if header.last_offset >= offset:
                if header.max_timestamp != timestamp and (self.time_index.count or header.max_timestamp >= 0):
                    raise CorruptIndex(f"{self.time_index.path} does not fit its log")
                return

    def activate(self, index_bytes: int) -> None:
        self.offset_index.activate(index_bytes)
        self.time_index.activate(index_bytes)

    def deactivate(self) -> None:
        """Complete and trim the indexes. What fails here is found and rebuilt when the log is loaded."""
        try:
            if self.time_index.is_writable:
                self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
            self.offset_index.deactivate()
            self.time_index.deactivate()
        except OSError as error:
            logger.warning("%s: its indexes could not be completed: %s", self.path, error)
        self._recent, self._older = {}, {}

    def release(self) -> None:
        """Let go of all files and leave them as they are. They are opened again when needed."""
        self.offset_index.release()
        self.time_index.release()
        self._file = None

    def retire(self) -> list[str]:
        """Rename the files so that nothing finds them any more; the new names, to be removed later."""
        self.release()
        retired = []
        for path in (self.path, self.offset_index.path, self.time_index.path, self.txn_index.path):
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(path, path + layout.DELETED)
                retired.append(path + layout.DELETED)
        return retired

    def index_paths(self) -> list[str]:
        """Of the files beside the log."""
        paths = [self.offset_index.path, self.time_index.path]
        return [*paths, self.txn_index.path] if self.txn_index.exists else paths

    @property
    def file(self) -> SegmentFile:
        if self._file is None:
            self._file = SegmentFile(self._disk.open(self.path), self.path)
        return self._file

    # Writing

    def has_room_for(self, last_offset: int) -> bool:
        """Whether indexes can take another batch that ends at `last_offset`."""
        return (
            last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and not self.offset_index.is_full
            and not self.time_index.is_full
        )

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Put bytes at the end, or leave the file as it was. `note_batch` then makes them count."""
        fd = self.file.fileno()
        try:
            self._disk.write(fd, buffers, self.size)
        except OSError as error:
            try:
                self._disk.truncate(fd, self.size)
            except OSError as second:
                raise LostSegment(f"{self.path}: {error}, and then {second}") from error
            raise

    def note_batch(self, base_offset: Offset, last_offset: Offset, max_timestamp: int, size: int) -> None:
        """A batch now lies at the end of the file."""
        position = self.size
        if self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self._add_index_entries(last_offset, position)
        self._bytes_since_entry += size
        self.size = position + size
        recent = self._recent
        if len(recent) >= _RECENT_BATCHES:
            self._older = recent
            self._recent = recent = {}
        recent[base_offset] = FoundBatch(base_offset, last_offset, position, size)

    def _add_index_entries(self, last_offset: Offset, position: int) -> None:
        try:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        except OSError as error:
            # The batch is safe in the log. An index may be sparser than usual; it is never wrong.
            logger.warning("%s: no index entry for offset %d: %s", self.path, last_offset, error)
        self._bytes_since_entry = 0

    def truncate_to(self, offset: Offset, index_bytes: int) -> Offset:
        """Drop the batches that end at or above `offset`; the segment becomes active. Returns where the
        log now ends: at `offset`, or below it if a batch straddled it."""
        found = self.find(offset)
        self._recent, self._older = {}, {}
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.activate(index_bytes)
        if found is not None:
            self._disk.truncate(self.file.fileno(), found.position)
            self.size = found.position
        if self.size == 0:
            self._first_timestamp = None
        self._bytes_since_entry = 0
        self.read_max_timestamp()
        return offset if found is None else min(offset, found.base_offset)

    @property
    def is_active(self) -> bool:
        return self.offset_index.is_writable

    def rebuild_indexes(self, *, active_index_bytes: int | None = None) -> None:
        """Make the indexes anew from the headers in [0, size)."""
        logger.warning("%s: rebuilding its indexes", self.path)
        enough = (self.size // self._index_interval_bytes + 2) * TimeIndex.ENTRY_SIZE
        self.reset_indexes(enough if active_index_bytes is None else active_index_bytes)
        end, self.size = self.size, 0
        for position, header in scan_headers(self.file, 0, end):
            assert position == self.size
            self.note_batch(header.base_offset, header.last_offset, header.max_timestamp, header.size)
        if self.size < end:
            logger.error("%s: no valid batch at byte %d; the rest cannot be read", self.path, self.size)
            self.size = end
        if active_index_bytes is None:
            self.deactivate()

    def reset_indexes(self, index_bytes: int) -> None:
        """Empty offset and time index, ready to be written from the first batch on."""
        self._recent, self._older = {}, {}
        self._bytes_since_entry = 0
        self._first_timestamp = None
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.offset_index.clear()
        self.time_index.clear()
        self.activate(index_bytes)

    # Finding

    def find(self, offset: int) -> FoundBatch | None:
        """The first batch that ends at or above `offset`; None if there is none in this segment."""
        found = self._recent.get(offset) or self._older.get(offset)
        if found is not None:
            return found
        for found in self._search_from(offset):
            if found.last_offset >= offset:
                return found
        return None

    def _search_from(self, offset: int) -> Iterator[FoundBatch]:
        """Batches from a little before `offset` on. An index entry is believed only if a batch that
        can belong to it lies where it points; otherwise the indexes are made anew."""
        try:
            entry_offset, position = self.offset_index.lookup(offset)
            if position == 0:
                return scan_offsets(self.file, 0, self.size)
            if 0 < position < self.size:
                at_entry = next(scan_offsets(self.file, position, self.size))
                if self.base_offset <= at_entry.base_offset <= entry_offset:
                    return scan_offsets(self.file, position, self.size)
        except (CorruptIndex, KafkaError) as error:
            logger.error("%s: %s", self.offset_index.path, error)
        self.rebuild_indexes(active_index_bytes=self.offset_index.max_bytes if self.is_active else None)
        return scan_offsets(self.file, self.offset_index.lookup(offset)[1], self.size)

    def next_offset(self) -> Offset:
        """One above the last offset in the segment; its base offset if it is empty."""
        last = self.base_offset - 1
        for batch in self._search_from(self.offset_index.last_offset):
            last = batch.last_offset
        return Offset(last + 1)

    def headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        return scan_headers(self.file, start, self.size)

    # Time

    @property
    def first_timestamp(self) -> int | None:
        """Largest timestamp of the first batch, from which `segment.ms` counts; None if it is empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = next((h.max_timestamp for _, h in self.headers()), None)
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """For retention: of the records, or of the file where no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return int(os.stat(self.path).st_mtime * 1000)

    def read_max_timestamp(self) -> None:
        """Find the largest timestamp: the last index entry, or a batch behind it."""
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        start = self.offset_index.lookup(self.offset_of_max_timestamp)[1]
        for _, header in self.headers(start):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.offset_of_max_timestamp = header.last_offset

    def batches_for_timestamp(self, timestamp: int, start_offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of batches from `start_offset` on that may hold a record of `timestamp` or
        later, in order."""
        indexed = self.time_index.lookup(timestamp)[1]
        found = self.find(max(indexed, start_offset))
        if found is not None:
            for position, header in self.headers(found.position):
                if header.max_timestamp >= timestamp:
                    yield position, header
