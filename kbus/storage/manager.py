"""All logs of a node, in one or more directories.

Runs on the loop's thread, `load` and `close` before and after it serves. Checkpoints wait for the disk; they
are small and written once in a while. Removal of files is handed out as a task for any thread.
"""

import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.storage import checkpoints, layout
from kbus.storage.checkpoints import MetaProperties, UnreadableFile
from kbus.storage.disk import Disk
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.storage.log_directory import LogDirectory
from kbus.types import Offset, TopicPartition

logger = logging.getLogger(__name__)


class InconsistentMetaProperties(Exception):  # noqa: N818
    """The directories belong to different brokers or clusters."""


class DeleteTask:
    """Unlinks files that nothing refers to any more. `run` may be called in any thread."""

    def __init__(self, disk: Disk, files: Sequence[str], folders: Sequence[str]) -> None:
        self._disk = disk
        self._files = files
        self._folders = folders

    def run(self) -> None:
        """What cannot be removed stays, is logged, and is tried again after the next start."""
        self._unlink(self._files)
        for folder in self._folders:
            try:
                self._unlink(os.path.join(folder, name) for name in os.listdir(folder))
                self._disk.remove_directory(folder)
            except OSError as error:
                logger.error("%s could not be removed: %s", folder, error)

    def _unlink(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.error("%s could not be removed: %s", path, error)


class LogManager:
    def __init__(
        self, log_dirs: Sequence[str], config: LogConfig, *, disk: Disk, clock: Callable[[], int]
    ) -> None:
        """`config` holds for topics without one of their own."""
        self.directories = [LogDirectory(os.path.abspath(path), disk) for path in log_dirs]
        self.quarantined: dict[str, str] = {}
        """Folders that were not loaded, and why. Their files are left as they are."""
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        """As they were checkpointed before the start."""
        self._config = config
        self._disk = disk
        self._clock = clock
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._topic_ids: dict[TopicPartition, uuid.UUID] = {}
        self._offline: set[TopicPartition] = set()
        self._folders_to_delete: list[tuple[str, int]] = []

    # Start

    def lock(self) -> None:
        """Take hold of the directories. Raises DirectoryInUse if another process has one."""
        try:
            for directory in self._online():
                with self._directory_errors(directory):
                    directory.lock()
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    def read_meta_properties(self) -> MetaProperties | None:
        """Whose directories these are; None if they are new."""
        found: MetaProperties | None = None
        for directory in self._online():
            with self._directory_errors(directory):
                properties = directory.read_meta_properties()
                if properties is not None and found is not None and properties != found:
                    raise InconsistentMetaProperties(
                        f"{directory.path} belongs to broker {properties.broker_id} of cluster "
                        f"{properties.cluster_id}, another directory to broker {found.broker_id} of "
                        f"{found.cluster_id}; set log.dirs to directories of one broker."
                    )
                found = properties or found
        return found

    def write_meta_properties(self, properties: MetaProperties) -> None:
        for directory in self._online():
            with self._directory_errors(directory):
                if directory.read_meta_properties() != properties:
                    directory.write_meta_properties(properties)

    def load(self, config_of: Callable[[str], LogConfig] | None = None) -> None:
        """Load all logs, each with the config that `config_of` has for its topic."""
        for directory in self._online():
            with self._directory_errors(directory):
                self._load_directory(directory, config_of or (lambda _: self._config))

    def _load_directory(self, directory: LogDirectory, config_of: Callable[[str], LogConfig]) -> None:
        directory.begin_load()
        recovery_points = directory.read_offsets(layout.RECOVERY_POINT_CHECKPOINT)
        start_offsets = directory.read_offsets(layout.LOG_START_CHECKPOINT)
        self.high_watermarks |= directory.read_offsets(layout.HIGH_WATERMARK_CHECKPOINT)
        for name in directory.folders():
            path = os.path.join(directory.path, name)
            if layout.is_delete_folder(name):
                self._folders_to_delete.append((path, 0))
                continue
            partition = layout.partition_of_folder(name)
            if partition is None:
                self._quarantine(path, "its name is not that of a partition")
            elif partition in self._homes:
                # Which of the two is right is not for a program to guess.
                twin = os.path.join(self._homes[partition].path, name)
                if (log := self._logs.pop(partition, None)) is not None:
                    log.close(clean=False)
                self._quarantine(twin, f"the partition is in {path}, too; remove one of them")
                self._quarantine(path, f"the partition is in {twin}, too; remove one of them")
                self._offline.add(partition)
            else:
                self._homes[partition] = directory
                self._load_log(
                    directory,
                    partition,
                    config_of(partition.topic),
                    recovery_points.get(partition, Offset(0)),
                    start_offsets.get(partition, Offset(0)),
                )

    def _load_log(
        self,
        directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        recovery_point: Offset,
        start_offset: Offset,
    ) -> None:
        path = os.path.join(directory.path, str(partition))
        try:
            topic_id = checkpoints.read_topic_id(os.path.join(path, layout.PARTITION_METADATA))
            self._logs[partition] = self._open_log(
                directory,
                partition,
                config,
                recovery_point=recovery_point,
                log_start_offset=start_offset,
                clean=directory.was_clean,
            )
        except (UnreadableFile, KafkaError) as error:
            self._quarantine(path, str(error))
            self._offline.add(partition)
            return
        if topic_id is not None:
            self._topic_ids[partition] = topic_id

    def _open_log(
        self,
        directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        *,
        recovery_point: Offset = Offset(0),  # noqa: B008
        log_start_offset: Offset = Offset(0),  # noqa: B008
        clean: bool = False,
    ) -> PartitionLog:
        return PartitionLog(
            os.path.join(directory.path, str(partition)),
            partition,
            config,
            disk=self._disk,
            clock=self._clock,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            before_truncation=self._lower_recovery_point,
        )

    def _quarantine(self, path: str, reason: str) -> None:
        logger.error("%s is not loaded: %s. Its files are left as they are", path, reason)
        self.quarantined[path] = reason

    # Logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    @property
    def offline_partitions(self) -> frozenset[TopicPartition]:
        """Those that are here but cannot be used, for a failed directory or unreadable files."""
        return frozenset(self._offline)

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(partition)

    def directory_of(self, partition: TopicPartition) -> LogDirectory | None:
        return self._homes.get(partition)

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        return self._topic_ids.get(partition)

    def create(
        self, partition: TopicPartition, topic_id: uuid.UUID | None, config: LogConfig | None = None
    ) -> PartitionLog:
        """A new log in the directory that has fewest. The topic id is on disk before any record."""
        if not layout.is_valid_topic(partition.topic) or partition.partition < 0:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{partition} is not a valid name")
        if partition in self._logs:
            return self._logs[partition]
        online = list(self._online())
        if partition in self._offline or not online:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{partition} is in a directory that is offline")
        homes = list(self._homes.values())
        directory = min(online, key=homes.count)
        folder = os.path.join(directory.path, str(partition))
        try:
            if folder in self.quarantined or os.path.exists(folder):
                raise KafkaError(ErrorCode.kafka_storage_error, f"{folder} is in the way of a new log")
            self._disk.make_directory(folder)
            if topic_id is not None:
                metadata = os.path.join(folder, layout.PARTITION_METADATA)
                checkpoints.write_topic_id(self._disk, metadata, topic_id)
            self._disk.fsync_directory(directory.path)
            log = self._open_log(directory, partition, config or self._config)
        except OSError as error:
            self._remove_failed_folder(folder)
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{folder} could not be created: {error}"
            ) from error
        self._logs[partition] = log
        self._homes[partition] = directory
        if topic_id is not None:
            self._topic_ids[partition] = topic_id
        return log

    def _remove_failed_folder(self, folder: str) -> None:
        """A log that never was; what cannot be removed is an empty log after the next start."""
        DeleteTask(self._disk, (), [folder] if os.path.isdir(folder) else ()).run()

    def delete(self, partition: TopicPartition) -> None:
        """Drop a log. Its folder is renamed now, its files are removed later."""
        log = self._logs.get(partition)
        directory = self._homes.get(partition)
        if directory is None or (log is None and directory.failure is not None):
            return  # never here, or on a disk that cannot be written to
        folder = os.path.join(directory.path, str(partition))
        if log is not None:
            log.close(clean=False)
        self._move_away(partition, folder, os.path.join(directory.path, layout.delete_folder_name(partition)))

    def set_aside(self, partition: TopicPartition) -> str:
        """Moves a log out of the way of a new one of the same name, for good: nothing removes it."""
        log, directory = self._logs[partition], self._homes[partition]
        target = os.path.join(directory.path, layout.stray_folder_name(partition))
        log.close(clean=False)
        self._move_away(partition, log.directory, target, is_deleted=False)
        return target

    def _move_away(
        self, partition: TopicPartition, folder: str, target: str, *, is_deleted: bool = True
    ) -> None:
        directory = self._homes[partition]
        with self._storage(directory, f"moving {folder} to {target}"):
            self._disk.rename(folder, target)
            self._disk.fsync_directory(directory.path)
        del self._homes[partition]
        self._logs.pop(partition, None)
        self._offline.discard(partition)
        self.quarantined.pop(folder, None)
        self._topic_ids.pop(partition, None)
        self.high_watermarks.pop(partition, None)
        if is_deleted:
            self._folders_to_delete.append((target, self._clock()))
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()

    def take_deletions(self, now_ms: int) -> DeleteTask | None:
        """What has waited for `file.delete.delay.ms` since it was deleted; None if nothing has."""
        delay_ms = self._config.file_delete_delay_ms
        files = [path for log in self._logs.values() for path in log.take_retired_files(now_ms)]
        folders = [path for path, since_ms in self._folders_to_delete if now_ms - since_ms >= delay_ms]
        self._folders_to_delete = [f for f in self._folders_to_delete if f[0] not in folders]
        return DeleteTask(self._disk, files, folders) if files or folders else None

    # Checkpoints

    def checkpoint_recovery_points(self) -> None:
        for directory in self._online():
            with self._storage(directory, "writing the recovery points"):
                self._write_recovery_points(directory, {})

    def checkpoint_log_start_offsets(self) -> None:
        """Of the logs that do not simply start with their first segment."""
        for directory in self._online():
            offsets = {
                partition: log.log_start_offset
                for partition, log in self._logs_in(directory)
                if log.log_start_offset > log.segments[0].base_offset
            }
            with self._storage(directory, "writing the log start offsets"):
                directory.write_offsets(layout.LOG_START_CHECKPOINT, offsets)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        for directory in self._online():
            offsets = {p: high_watermarks[p] for p, _ in self._logs_in(directory) if p in high_watermarks}
            with self._storage(directory, "writing the high watermarks"):
                directory.write_offsets(layout.HIGH_WATERMARK_CHECKPOINT, offsets)

    def _lower_recovery_point(self, log: PartitionLog, offset: Offset) -> None:
        self._write_recovery_points(self._homes[log.partition], {log.partition: offset})

    def _write_recovery_points(
        self, directory: LogDirectory, instead: Mapping[TopicPartition, Offset]
    ) -> None:
        offsets = {partition: log.recovery_point for partition, log in self._logs_in(directory)}
        directory.write_offsets(layout.RECOVERY_POINT_CHECKPOINT, {**offsets, **instead})

    # Failure and end

    def fail_directory(self, directory: LogDirectory, reason: str) -> list[TopicPartition]:
        """Take a directory out of use, and with it its logs; which those were."""
        if directory.failure is None:
            logger.error("%s is offline: %s", directory.path, reason)
            directory.failure = reason
        partitions = [partition for partition, _ in self._logs_in(directory)]
        for partition in partitions:
            self._logs.pop(partition).close(clean=False)
            self._offline.add(partition)
        return partitions

    def close(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs. The marker of a clean stop is the last thing written, and only if all went well."""
        for directory in self._online():
            with contextlib.suppress(KafkaError), self._storage(directory, "closing"):
                is_clean = clean
                for _, log in list(self._logs_in(directory)):
                    is_clean = self._close_log(log, clean=clean) and is_clean
                if clean:
                    self._write_recovery_points(directory, {})
                    self.checkpoint_log_start_offsets()
                if is_clean:
                    directory.mark_clean(broker_epoch)
        self._logs.clear()
        self.unlock()

    def _close_log(self, log: PartitionLog, *, clean: bool) -> bool:
        if log.failure is not None:
            log.close(clean=False)
            return False
        try:
            log.close(clean=clean)
        except KafkaError as error:
            logger.error("%s was not closed cleanly: %s", log.partition, error)
            return False
        return True

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.failure is None]

    def _logs_in(self, directory: LogDirectory) -> list[tuple[TopicPartition, PartitionLog]]:
        return [(p, log) for p, log in self._logs.items() if self._homes[p] is directory]

    @contextlib.contextmanager
    def _directory_errors(self, directory: LogDirectory) -> Iterator[None]:
        """At start: a directory that cannot be used goes offline, and the others are used."""
        try:
            yield
        except OSError as error:
            self.fail_directory(directory, str(error))

    @contextlib.contextmanager
    def _storage(self, directory: LogDirectory, doing: str) -> Iterator[None]:
        """A failing disk takes the directory offline. A full one does not: what was not written is written
        another time, the old file is as good as ever, and space may be made meanwhile."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise KafkaError(
                    ErrorCode.kafka_storage_error, f"{directory.path}: {doing} failed: {error.strerror}"
                ) from error
            self.fail_directory(directory, f"{doing} failed: {error}")
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{directory.path}: {doing} failed: {error}"
            ) from error
