"""Making what was written survive a power loss, off the loop's thread."""

import os
from collections.abc import Iterable, Sequence

from kbus.storage.disk import Disk
from kbus.storage.log_config import LogConfig
from kbus.storage.segment_file import SegmentFile
from kbus.storage.segment_list import SegmentList
from kbus.types import Offset


class FlushTask:
    """Made by `PartitionLog.prepare_flush`, run in any thread, given back to `complete_flush`.

    `run` only calls fsync; it touches nothing that the loop's thread changes. An error is kept for
    `complete_flush`: after a failed fsync nobody knows what is on disk, so the log must learn of it."""

    def __init__(
        self,
        disk: Disk,
        files: Sequence[SegmentFile],
        paths: Sequence[str],
        directory: str | None,
        *,
        up_to: Offset,
        truncations: int,
    ) -> None:
        self.up_to = up_to
        """The recovery point once this has run."""
        self.truncations = truncations
        self.is_done = False
        self.error: OSError | None = None
        self._disk = disk
        self._files = files
        self._paths = paths
        self._directory = directory

    def run(self) -> None:
        try:
            for file in self._files:
                self._disk.fsync(file.fileno())
            _sync_paths(self._disk, self._paths)
            if self._directory is not None:
                self._disk.fsync_directory(self._directory)
        except OSError as error:
            self.error = error
        self.is_done = True


class Flusher:
    """How much of a log has been flushed, and what has to be flushed next."""

    def __init__(self, disk: Disk, segments: SegmentList, recovery_point: Offset, now_ms: int) -> None:
        self.recovery_point = recovery_point
        self._disk = disk
        self._segments = segments
        self._last_ms = now_ms
        self._truncations = 0
        """Counts them, so that a flush that was under way meanwhile is not believed."""
        self._paths: list[str] = []

    def due(self, log_end: Offset, config: LogConfig, now_ms: int) -> Offset | None:
        unflushed = log_end - self.recovery_point
        if not unflushed:
            return None
        is_late = now_ms - self._last_ms >= config.flush_interval_ms
        if is_late or unflushed >= config.flush_interval_messages:
            return log_end
        rolled_at = self._segments.active.base_offset
        return rolled_at if self.recovery_point < rolled_at else None

    def add_paths(self, paths: Iterable[str]) -> None:
        """Files that the next flush has to include; their names are new."""
        for path in paths:
            self._paths.append(path)
            self._segments.directory_changed = True

    def prepare(self, end: Offset, *, everything: bool) -> FlushTask | None:
        segments = self._segments
        directory = segments.directory if segments.directory_changed else None
        if end <= self.recovery_point and not (everything and directory):
            return None
        unflushed = [s for s in segments.from_offset(self.recovery_point) if s.base_offset < end]
        paths = [path for segment in unflushed for path in segment.index_paths()]
        task = FlushTask(
            self._disk,
            [segment.file for segment in unflushed],
            [*paths, *self._paths],
            directory,
            up_to=end,
            truncations=self._truncations,
        )
        segments.directory_changed = False
        self._paths = []
        return task

    def complete(self, task: FlushTask, now_ms: int) -> None:
        if task.truncations == self._truncations:
            self.recovery_point = Offset(max(self.recovery_point, task.up_to))
            self._last_ms = now_ms

    def truncated(self, offset: Offset) -> None:
        """What is at or above `offset` goes. A flush under way counts for nothing from now on: other bytes
        may take the place of those that it flushes."""
        self._truncations += 1
        self.recovery_point = Offset(min(self.recovery_point, offset))

    def sync_paths(self) -> None:
        """Flush the added files now, and wait for it."""
        if self._paths:
            _sync_paths(self._disk, self._paths)
            self._disk.fsync_directory(self._segments.directory)
            self._paths = []


def _sync_paths(disk: Disk, paths: Iterable[str]) -> None:
    """Indexes and snapshots; they may have been deleted meanwhile, with their segment."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            disk.fsync(fd)
        finally:
            os.close(fd)
