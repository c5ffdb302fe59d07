"""The segments of a log in order, the last of them active; and the files of those that were removed."""

from collections.abc import Iterator
from zlib import crc32

from kbus.storage import layout
from kbus.storage.disk import Disk
from kbus.storage.log_config import LogConfig
from kbus.storage.replay import floor_segment
from kbus.storage.segment import Segment
from kbus.types import Offset


class SegmentList:
    """Never empty. Base offsets rise. Removed files are renamed at once, which is cheap, and unlinked
    later, off the loop's thread: freeing the blocks of a large file is not cheap."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        segments: list[Segment],
        retired: list[str],
        *,
        directory_changed: bool,
    ) -> None:
        self.directory = directory
        self.active = segments[-1]
        self.directory_changed = directory_changed
        """Whether names were added or removed since the directory was last synced."""
        self._all = segments
        self._disk = disk
        self._retired: list[tuple[str, int]] = [(path, 0) for path in retired]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def all(self) -> list[Segment]:
        return self._all

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._all)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that holds `offset` and those after it."""
        if offset >= self.active.base_offset:
            return [self.active]
        return self._all[floor_segment(self._all, offset) :]

    def jitter_ms(self, config: LogConfig) -> int:
        """Spreads the rolling of many logs; the same segment always gets the same."""
        if not config.segment_jitter_ms:
            return 0
        return crc32(self.active.path.encode()) % min(config.segment_jitter_ms, config.segment_ms)

    def add(self, base_offset: Offset, config: LogConfig, now_ms: int) -> None:
        """Create a new active segment. If it fails, the active one stays what it is."""
        segment = Segment(
            self.directory,
            base_offset,
            self._disk,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=now_ms,
        )
        self.directory_changed = True
        try:
            segment.create(config.segment_index_bytes)
        except OSError:
            segment.release()
            self._remove_leftovers(segment)
            raise
        self.active.deactivate()
        self._all.append(segment)
        self.active = segment

    def _remove_leftovers(self, segment: Segment) -> None:
        """An empty segment above the end of the log would do no harm, so failing here does none."""
        for path in (segment.path, segment.offset_index.path, segment.time_index.path):
            try:
                self._disk.unlink(path)
            except OSError:
                continue

    def remove_first(self, count: int, now_ms: int) -> list[Offset]:
        """Their base offsets."""
        assert count < len(self._all)
        removed, self._all = self._all[:count], self._all[count:]
        self._retire(removed, now_ms)
        return [segment.base_offset for segment in removed]

    def truncate_to(self, offset: Offset, index_bytes: int, now_ms: int) -> Offset:
        """Cut at `offset`, which the first segment begins at or below. Where the log then ends."""
        keep = floor_segment(self._all, offset) + 1
        removed = self._all[keep:]
        del self._all[keep:]
        self.active = self._all[-1]
        self._retire(removed, now_ms)
        if self.directory_changed:
            # Were removed segments to come back after a power loss, they would overlap what is written from
            # now on, and snapshots would tell of producers that it does not have.
            self._disk.fsync_directory(self.directory)
            self.directory_changed = False
        end = self.active.truncate_to(offset, index_bytes)
        # Neither may the bytes that were cut off.
        self._disk.fsync(self.active.file.fileno())
        return end

    def start_anew(self, offset: Offset, config: LogConfig, now_ms: int) -> None:
        """Remove everything and begin with an empty segment at `offset`."""
        self._retire(self._all, now_ms)
        self._disk.fsync_directory(self.directory)
        self._all = [self.active]
        self.add(offset, config, now_ms)
        self._all = [self.active]

    def retire_file(self, path: str, now_ms: int) -> None:
        try:
            self._disk.rename(path, path + layout.DELETED)
        except FileNotFoundError:
            return
        self._retired.append((path + layout.DELETED, now_ms))

    def _retire(self, segments: list[Segment], now_ms: int) -> None:
        for segment in segments:
            self.directory_changed = True
            self._retired += ((path, now_ms) for path in segment.retire())

    def take_retired(self, now_ms: int, delay_ms: int) -> list[str]:
        """The files that have waited long enough; whoever takes them unlinks them."""
        due = [path for path, since_ms in self._retired if now_ms - since_ms >= delay_ms]
        self._retired = [entry for entry in self._retired if now_ms - entry[1] < delay_ms]
        return due

    def release(self) -> None:
        for segment in self._all:
            segment.release()
