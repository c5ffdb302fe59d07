"""Loading a log from its directory: its segments, epochs and producers, repaired where they have to be."""

import logging
import os
from collections.abc import Callable

from kbus.protocol.errors import KafkaError
from kbus.storage import layout
from kbus.storage.disk import Disk
from kbus.storage.epochs import LeaderEpochCache
from kbus.storage.index import CorruptIndex
from kbus.storage.leftovers import finish_interrupted_work
from kbus.storage.log_config import LogConfig
from kbus.storage.producer_state import ProducerState
from kbus.storage.recovery import RecoveryReport, check_segments
from kbus.storage.replay import complete_windows, floor_segment, replay
from kbus.storage.segment import Segment
from kbus.types import Offset

logger = logging.getLogger(__name__)


class LogLoader:
    """One load of one log. After `load` the attributes make up the log; all its files are closed."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        disk: Disk,
        clock: Callable[[], int],
        *,
        recovery_point: Offset,
        log_start_offset: Offset,
        clean: bool,
    ) -> None:
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochCache(directory, disk)
        self.producers = ProducerState(directory, disk, config.producer_id_expiration_ms)
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_start_offset
        self.report = RecoveryReport()
        self.retired: list[str] = []
        self.unsynced_paths: list[str] = []
        self.directory_changed = not clean
        """Whether names in the directory may not be on disk yet."""
        self._directory = directory
        self._config = config
        self._disk = disk
        self._clock = clock
        self._clean = clean
        self._checked_from: Offset | None = None

    def load(self) -> None:
        finish_interrupted_work(self._directory, self._disk)
        epochs_known = self.epochs.load()
        self._open_segments()
        self._find_end(epochs_known)
        self._find_start()
        self._load_epochs(epochs_known)
        self._load_producers()
        for segment in self.segments:
            segment.release()

    def _open_segments(self) -> None:
        offsets = (layout.offset_of(name, layout.LOG) for name in os.listdir(self._directory))
        bases = sorted(offset for offset in offsets if offset is not None)
        for number, base_offset in enumerate(bases):
            segment = self._segment(base_offset)
            self.segments.append(segment)
            try:
                segment.load()
            except CorruptIndex as error:
                is_below_recovery_point = number + 1 < len(bases) and bases[number + 1] <= self.recovery_point
                if self._clean or is_below_recovery_point:
                    logger.warning("%s", error)
                    segment.rebuild_indexes()

    def _segment(self, base_offset: Offset) -> Segment:
        return Segment(
            self._directory,
            base_offset,
            self._disk,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=self._clock(),
        )

    def _find_end(self, epochs_known: bool) -> None:
        if not self.segments:
            self.recovery_point = Offset(min(self.recovery_point, self.log_end_offset))
            return
        if self._clean:
            try:
                self.log_end_offset = self.segments[-1].next_offset()
                self.recovery_point = self.log_end_offset
                return
            except KafkaError as error:
                logger.error("after a clean stop: %s; checking the log", error)
        first = floor_segment(self.segments, self.recovery_point)
        self._checked_from = self.segments[first].base_offset
        epochs = self.epochs if epochs_known else None
        self.log_end_offset, self.report = check_segments(
            self.segments, first, self.recovery_point, epochs, self._config, self._disk
        )
        self.recovery_point = Offset(min(self.recovery_point, self.log_end_offset))

    def _find_start(self) -> None:
        if self.segments:
            self.log_start_offset = Offset(max(self.log_start_offset, self.segments[0].base_offset))
            if self.log_start_offset > self.log_end_offset:
                # Everything left was deleted before: the log goes on, empty, where it was told to begin.
                logger.warning(
                    "%s ends at %d, below its start offset %d; it begins anew there",
                    self._directory,
                    self.log_end_offset,
                    self.log_start_offset,
                )
                for segment in self.segments:
                    self.retired += segment.retire()
                self._disk.fsync_directory(self._directory)
                self.segments = []
                self._checked_from = None
        if not self.segments:
            segment = self._segment(self.log_start_offset)
            segment.create(self._config.segment_index_bytes)
            segment.deactivate()
            self.segments = [segment]
            self.directory_changed = True
            self.log_end_offset = self.log_start_offset
            self.recovery_point = Offset(min(self.recovery_point, self.log_end_offset))

    def _load_epochs(self, known: bool) -> None:
        if not known and self.log_end_offset > self.segments[0].base_offset:
            for segment in self.segments:
                for _, header in segment.headers():
                    if header.leader_epoch > self.epochs.latest:
                        self.epochs.assign(header.leader_epoch, header.base_offset, write=False)
            self.epochs.write()
        self.epochs.truncate_end(self.log_end_offset)
        self.epochs.truncate_start(self.log_start_offset)

    def _load_producers(self) -> None:
        end = self.log_end_offset
        producers = self.producers
        producers.find_snapshots()
        producers.remove_snapshots(above=end)
        index_from = Offset(end + 1) if self._checked_from is None else self._checked_from
        producers.reload(
            at_most=min(end, index_from), otherwise=self.segments[0].base_offset, now_ms=self._clock()
        )
        replay(producers, self.segments, end, index_from=index_from)
        if self._checked_from is not None:
            # A replay that could not begin with a snapshot misses producers whose records were deleted.
            producers.add_unknown(producers.read_latest(at_most=end))
        complete_windows(producers, self.segments)
        self.unsynced_paths = producers.take_snapshot()
        producers.remove_stray_snapshots(segment.base_offset for segment in self.segments)
        producers.remove_expired(self._clock())
