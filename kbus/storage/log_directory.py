"""One of a node's `log.dirs`: its lock, its checkpoints, its marker of a clean stop."""

import fcntl
import logging
import os
from collections.abc import Mapping

from kbus.storage import checkpoints, layout
from kbus.storage.checkpoints import MetaProperties, UnreadableFile
from kbus.storage.disk import Disk
from kbus.types import Offset, TopicPartition

logger = logging.getLogger(__name__)


class DirectoryInUse(Exception):  # noqa: N818
    """Another process has locked the directory."""


class LogDirectory:
    """Offline once it has failed: its logs are gone for this run of the node, its files stay as they are."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self.failure: str | None = None
        self.was_clean = False
        """Whether the last stop was clean; known after `begin_load`."""
        self._disk = disk
        self._lock_fd = -1

    def lock(self) -> None:
        os.makedirs(self.path, exist_ok=True)
        fd = os.open(self._file(layout.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise DirectoryInUse(
                f"{self.path} is in use by another broker; stop it, or set log.dirs to other directories."
            ) from error
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def begin_load(self) -> None:
        """Must precede the loading of any log in it: see `take_clean_shutdown`."""
        self.was_clean = checkpoints.take_clean_shutdown(self._disk, self._file(layout.CLEAN_SHUTDOWN_MARKER))

    def mark_clean(self, broker_epoch: int) -> None:
        path = self._file(layout.CLEAN_SHUTDOWN_MARKER)
        checkpoints.write_clean_shutdown(self._disk, path, broker_epoch)

    def folders(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False))

    def read_meta_properties(self) -> MetaProperties | None:
        return checkpoints.read_meta_properties(self._file(layout.META_PROPERTIES))

    def write_meta_properties(self, properties: MetaProperties) -> None:
        checkpoints.write_meta_properties(self._disk, self._file(layout.META_PROPERTIES), properties)

    def read_offsets(self, name: str) -> dict[TopicPartition, Offset]:
        """A checkpoint; an unreadable one is moved aside and counts as empty: recovery points then are 0,
        start offsets those of the first segments."""
        path = self._file(name)
        try:
            return checkpoints.read_offsets(path)
        except UnreadableFile as error:
            logger.error("%s; moved to %s", error, checkpoints.quarantine(self._disk, path))
            return {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        checkpoints.write_offsets(self._disk, self._file(name), offsets)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)
