"""Which leader epoch wrote which offsets: the cache of `leader-epoch-checkpoint`."""

import logging
import os
from bisect import bisect_right
from operator import itemgetter

from kbus.storage import checkpoints, layout
from kbus.storage.disk import Disk
from kbus.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

logger = logging.getLogger(__name__)

_epoch_of = itemgetter(0)
_start_of = itemgetter(1)


class LeaderEpochCache:
    """(epoch, start offset) pairs; both rise strictly. The file has every assigned epoch before any
    record of that epoch is written, so after a crash it never lacks one that the log has."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._path = os.path.join(directory, layout.LEADER_EPOCH_CHECKPOINT)
        self._disk = disk
        self._entries: list[tuple[LeaderEpoch, Offset]] = []
        self.latest = NO_EPOCH
        """The highest epoch; NO_EPOCH if there is none."""

    def load(self) -> bool:
        """Whether there was a readable file. An unreadable one is moved aside."""
        try:
            entries = checkpoints.read_epochs(self._path)
        except checkpoints.UnreadableFile as error:
            moved = checkpoints.quarantine(self._disk, self._path)
            logger.error("%s; moved to %s, the epochs are read from the log", error, moved)
            return False
        if entries is None:
            return False
        self._set(entries)
        return True

    @property
    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        return list(self._entries)

    def assign(self, epoch: LeaderEpoch, start: Offset, *, write: bool = True) -> None:
        """`epoch` begins at `start`. Entries that contradict it, above it or behind it, go."""
        if epoch < 0:
            return
        entries = self._entries
        if entries and entries[-1][0] == epoch and start >= entries[-1][1]:
            return
        kept = [entry for entry in entries if entry[0] < epoch and entry[1] < start]
        self._replace([*kept, (epoch, start)], write=write)

    def truncate_end(self, end: Offset) -> None:
        """The log now ends at `end`: epochs that would begin there or behind it go."""
        if self._entries and self._entries[-1][1] >= end:
            self._replace([entry for entry in self._entries if entry[1] < end])

    def truncate_start(self, start: Offset) -> None:
        """The log now begins at `start`: the epoch there begins there, older ones go."""
        at = bisect_right(self._entries, start, key=_start_of)
        if at and (at > 1 or self._entries[0][1] != start):
            entries = [(self._entries[at - 1][0], start), *self._entries[at:]]
            try:
                self._replace(entries)
            except OSError as error:
                # Records are deleted when a disk is full, too. An old file does no harm: it is cut to the
                # start of the log when it is loaded.
                logger.warning("%s could not be written: %s", self._path, error)
                self._set(entries)

    def clear(self) -> None:
        self._replace([])

    def write(self) -> None:
        checkpoints.write_epochs(self._disk, self._path, self._entries)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch that wrote `offset`; NO_EPOCH below the first known."""
        at = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[at - 1][0] if at else NO_EPOCH

    def end_offset_for(self, epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch ≤ `epoch` and where it ends; (NO_EPOCH, NO_OFFSET) if undefined:
        above all known epochs, or no epoch asked for."""
        if epoch == self.latest and epoch >= 0:
            return epoch, log_end
        at = bisect_right(self._entries, epoch, key=_epoch_of)
        if epoch < 0 or at == len(self._entries):
            return NO_EPOCH, NO_OFFSET
        end = self._entries[at][1]
        # Below all: those records are gone, and a follower goes on from where ours begin.
        return (self._entries[at - 1][0] if at else epoch), end

    def _replace(self, entries: list[tuple[LeaderEpoch, Offset]], *, write: bool = True) -> None:
        """The file first: if it cannot be written, nothing has changed."""
        if write:
            checkpoints.write_epochs(self._disk, self._path, entries)
        self._set(entries)

    def _set(self, entries: list[tuple[LeaderEpoch, Offset]]) -> None:
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH
