"""One replica of a partition on this node: its log, its role, its high watermark and who waits for it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from uuid import UUID

from kbus.core.cluster import PartitionState
from kbus.core.replica import advanced_high_watermark
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import Buffer
from kbus.storage.appending import AppendInfo
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.storage.segment_file import LogSlice
from kbus.types import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, Offset, TopicPartition

log = logging.getLogger(__name__)

_FLUSH_EVERY_MESSAGE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    slice: LogSlice | None
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset


class Partition:
    """Invariants: log start offset ≤ high watermark ≤ log end offset; the high watermark never moves back
    within a leadership; appends happen only in the leader epoch that the controller gave this replica.

    All methods run on the loop and none awaits, except the flush task, which leaves the fsync to the
    executor.
    """

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: UUID,
        local_id: BrokerId,
        partition_log: PartitionLog,
        high_watermark: Offset,
        min_insync_replicas: int,
        executor: Executor,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.min_insync_replicas = min_insync_replicas
        self.leader: BrokerId = NO_LEADER
        self.leader_epoch: LeaderEpoch = NO_EPOCH
        self.isr: tuple[BrokerId, ...] = ()
        self.replicas: tuple[BrokerId, ...] = ()
        self._local_id = local_id
        self._executor = executor
        self._high_watermark = Offset(
            min(max(high_watermark, partition_log.log_start_offset), partition_log.log_end_offset)
        )
        self._watchers: set[Callable[[Partition], None]] = set()
        self._flushing: asyncio.Task[None] | None = None
        self._flush_target = Offset(0)
        self._failed = False

    def __repr__(self) -> str:
        return f"<partition {self.topic_partition} leader={self.leader} epoch={self.leader_epoch}>"

    @property
    def is_failed(self) -> bool:
        return self._failed or self.log.failure is not None

    @property
    def is_leader(self) -> bool:
        return self.leader == self._local_id

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Exclusive end of what a read_committed consumer may see: no undecided transaction before it."""
        unstable = self.log.first_unstable_offset(self._high_watermark)
        return self._high_watermark if unstable is None else Offset(min(unstable, self._high_watermark))

    @property
    def _effective_min_isr(self) -> int:
        """A topic with fewer replicas than min.insync.replicas can still be written to."""
        return min(self.min_insync_replicas, max(1, len(self.replicas)))

    @property
    def _durable_end(self) -> Offset:
        """How far this replica's own log counts: with flush.messages=1 only what is on the disk."""
        if self.log.config.flush_interval_messages == _FLUSH_EVERY_MESSAGE:
            return self.log.recovery_point
        return self.log.log_end_offset

    def configure(self, config: LogConfig, min_insync_replicas: int) -> None:
        self.log.configure(config)
        self.min_insync_replicas = min_insync_replicas

    # ---- leadership

    def become_leader(self, state: PartitionState) -> None:
        if state.leader_epoch < self.leader_epoch:
            log.warning("%r: ignores the older leader epoch %d", self, state.leader_epoch)
            return
        new_epoch = state.leader_epoch > self.leader_epoch
        self.leader, self.leader_epoch = state.leader, state.leader_epoch
        self.isr, self.replicas = state.isr, state.replicas
        if new_epoch:
            self.log.start_epoch(state.leader_epoch)
            log.info(
                "%s: leads epoch %d from offset %d, in sync %s",
                self.topic_partition,
                state.leader_epoch,
                self.log.log_end_offset,
                list(state.isr),
            )
        self._advance()

    def resign(self) -> None:
        """Stops leading. Whoever waits is told to look for the new leader."""
        self.leader = NO_LEADER
        self._notify()

    def require_leader(self, current_leader_epoch: LeaderEpoch = NO_EPOCH) -> None:
        """Fencing (KIP-320): `current_leader_epoch` is the epoch that the client believes to be current."""
        if self._failed:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if not self.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if current_leader_epoch == NO_EPOCH:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        if current_leader_epoch > self.leader_epoch:
            raise KafkaError(ErrorCode.unknown_leader_epoch)

    # ---- writing

    def append(self, records: Buffer, *, require_in_sync: bool) -> AppendInfo:
        self.require_leader()
        if require_in_sync and len(self.isr) < self._effective_min_isr:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{len(self.isr)} replicas of {self.topic_partition} are in sync, "
                f"min.insync.replicas is {self.min_insync_replicas}",
            )
        try:
            info = self.log.append_as_leader(records, leader_epoch=self.leader_epoch)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, error.strerror) from error
        self._advance()
        return info

    @property
    def flush_due(self) -> bool:
        """By flush.messages: what was appended is acknowledged only once it is on the disk."""
        return self.log.unflushed_messages >= self.log.config.flush_interval_messages

    def request_flush(self, up_to: Offset | None = None) -> None:
        """Brings what is below `up_to`, by default all, to the disk, off the loop; watchers hear of it then.

        Flushes asked for while one runs share the next: one fsync acknowledges many appends."""
        target = self.log.log_end_offset if up_to is None else up_to
        self._flush_target = Offset(max(self._flush_target, target))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.log.recovery_point < self._flush_target and not self._failed:
                task = self.log.prepare_flush(self._flush_target)
                if task is None:
                    break
                await loop.run_in_executor(self._executor, task.run)
                self.log.complete_flush(task)
                self._advance()
                self._notify()
        except (OSError, KafkaError) as error:
            self.fail(error)
        finally:
            self._flushing = None

    async def flushed(self) -> None:
        """Waits for the flush under way, if there is one."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    def fail(self, error: Exception) -> None:
        """The disk failed under this replica: it serves nothing more until the node starts again."""
        if not self._failed:
            log.error("%s: offline after a disk error: %s", self.topic_partition, error)
            self._failed = True
            self._notify()

    def apply_retention(self, now_ms: int) -> None:
        """Never beyond the high watermark: what is not committed is not old."""
        if not self._failed:
            self.log.apply_retention(now_ms, limit=self._high_watermark)

    def _advance(self) -> None:
        if not self.is_leader:
            return
        advanced = advanced_high_watermark(
            self._high_watermark,
            self._durable_end,
            (),
            enough_in_sync=len(self.isr) >= self._effective_min_isr,
        )
        if advanced > self._high_watermark:
            self._high_watermark = advanced
            self._notify()

    def delete_records_before(self, offset: Offset) -> Offset:
        """DeleteRecords: returns the new log start offset. -1 means the high watermark."""
        self.require_leader()
        if "delete" not in self.log.config.cleanup_policy:
            raise KafkaError(ErrorCode.policy_violation)  # compaction alone decides what goes
        if offset == -1:
            offset = self._high_watermark
        if not 0 <= offset <= self._high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range)
        self.log.delete_before(offset)
        return self.log.log_start_offset

    # ---- reading

    def read(
        self, offset: Offset, max_bytes: int, *, read_committed: bool, min_one_batch: bool
    ) -> ReadResult:
        end = self.last_stable_offset if read_committed else self._high_watermark
        records = self.log.read(offset, max_bytes, end=end, min_one_batch=min_one_batch)
        return ReadResult(
            slice=records,
            high_watermark=self._high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log.log_start_offset,
        )

    # ---- waiting

    def watch(self, watcher: "Callable[[Partition], None]") -> None:
        """`watcher` is called when the high watermark moves, a flush ends or leadership is lost."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: "Callable[[Partition], None]") -> None:
        self._watchers.discard(watcher)

    def _notify(self) -> None:
        for watcher in tuple(self._watchers):
            watcher(self)
