"""One replica of a partition on this node: its log, its role, its high watermark and who waits for it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from kbus.core.cluster import PartitionState
from kbus.core.replication import IsrChange, LeaderReplicas
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


class Role(Enum):
    NONE = "none"
    """Told nothing yet, or resigned: serves nobody."""
    LEADER = "leader"
    FOLLOWER = "follower"


class ReplicationEnvironment(Protocol):
    """What a partition needs of its node to replicate."""

    def clock_ms(self) -> int: ...
    def live_epochs(self) -> dict[BrokerId, int]: ...
    def follow(self, partition: "Partition") -> None: ...
    def stop_following(self, partition: "Partition") -> None: ...
    def write_isr(self, partition: "Partition", change: IsrChange) -> None:
        """Compare-and-set; ends in `isr_written` or `isr_write_refused`."""


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
        environment: "ReplicationEnvironment",
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.min_insync_replicas = min_insync_replicas
        self.leader: BrokerId = NO_LEADER
        self.leader_epoch: LeaderEpoch = NO_EPOCH
        self.replicas: tuple[BrokerId, ...] = ()
        self.role = Role.NONE
        self._followers: LeaderReplicas | None = None
        self._known_isr: tuple[BrokerId, ...] = ()
        self._partition_epoch = -1
        self._local_id = local_id
        self._environment = environment
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
        return self.role is Role.LEADER

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        return self._followers.isr if self._followers is not None else self._known_isr

    @property
    def follower_ends(self) -> dict[BrokerId, Offset]:
        """What a leader knows of its followers' logs."""
        return {} if self._followers is None else self._followers.end_offsets()

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
    def has_enough_in_sync(self) -> bool:
        return len(self.isr) >= self._effective_min_isr

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

    def apply(self, state: PartitionState) -> None:
        """Takes over what the controller says, unless something newer is known already.

        A new leader epoch changes the role; within an epoch only the in-sync set and the assignment move.
        The role is set before the epoch counts as known: if the disk fails on the way, the same request
        still applies when it is sent again."""
        if state.leader_epoch < self.leader_epoch:
            log.info("%s: ignores the older leader epoch %d", self.topic_partition, state.leader_epoch)
            return
        if state.leader_epoch > self.leader_epoch or self.role is Role.NONE:
            if state.leader == self._local_id:
                self._lead(state)
            else:
                self._follow(state)
            self._partition_epoch = state.partition_epoch
        elif state.partition_epoch > self._partition_epoch:
            self._partition_epoch = state.partition_epoch
            self._known_isr = state.isr
            if self._followers is not None:
                self._followers.confirm(state.isr, state.partition_epoch)
        self.replicas = state.replicas
        if self._followers is not None:
            self._followers.set_replicas(state.replicas, self._environment.clock_ms())
        self._advance()

    def _lead(self, state: PartitionState) -> None:
        self.log.start_epoch(state.leader_epoch)
        self._environment.stop_following(self)
        self._followers = LeaderReplicas(
            local_id=self._local_id,
            replicas=state.replicas,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            epoch_start=self.log.log_end_offset,
            now_ms=self._environment.clock_ms(),
        )
        self.role = Role.LEADER
        self.leader, self.leader_epoch, self.replicas = state.leader, state.leader_epoch, state.replicas
        log.info(
            "%s: leads epoch %d from offset %d, in sync %s",
            self.topic_partition,
            state.leader_epoch,
            self.log.log_end_offset,
            list(state.isr),
        )
        self._notify()

    def _follow(self, state: PartitionState) -> None:
        self._followers = None
        self._known_isr = state.isr
        self.role = Role.FOLLOWER
        self.leader, self.leader_epoch, self.replicas = state.leader, state.leader_epoch, state.replicas
        log.info("%s: follows broker %d in epoch %d", self.topic_partition, state.leader, state.leader_epoch)
        self._notify()
        if state.leader == NO_LEADER:
            self._environment.stop_following(self)
        else:
            self._environment.follow(self)

    def resign(self) -> None:
        """Stops leading and following. Whoever waits is told to look for the new leader."""
        self._known_isr = self.isr
        self._followers = None
        self.role = Role.NONE
        self.leader = NO_LEADER
        self._environment.stop_following(self)
        self._notify()

    # ---- followers, seen from the leader

    def on_follower_fetch(self, broker: BrokerId, broker_epoch: int, fetch_offset: Offset) -> None:
        """A follower has everything below `fetch_offset`. The caller has checked its leader epoch."""
        follower = self._followers.follower(broker) if self._followers is not None else None
        if follower is None or self._followers is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        follower.on_fetch(fetch_offset, self.log.log_end_offset, broker_epoch, self._environment.clock_ms())
        change = self._followers.expansion(broker, self._high_watermark, self._environment.live_epochs())
        if change is not None:
            self._environment.write_isr(self, change)
        self._advance()

    def shrink_isr_if_due(self, max_lag_ms: int) -> None:
        if self._followers is not None and not self._failed:
            change = self._followers.shrinkage(
                self.log.log_end_offset, self._environment.clock_ms(), max_lag_ms
            )
            if change is not None:
                self._environment.write_isr(self, change)

    def isr_written(self, leader_epoch: LeaderEpoch, isr: tuple[BrokerId, ...], partition_epoch: int) -> None:
        if self._followers is not None and self.leader_epoch == leader_epoch:
            log.info("%s: in sync are %s", self.topic_partition, list(isr))
            self._followers.confirm(isr, partition_epoch)
            self._partition_epoch = max(self._partition_epoch, partition_epoch)
            self._advance()
            self._notify()

    def isr_write_refused(self, leader_epoch: LeaderEpoch) -> None:
        if self._followers is not None and self.leader_epoch == leader_epoch:
            self._followers.give_up()

    # ---- following

    def append_replicated(self, records: Buffer, *, leader_epoch: LeaderEpoch) -> None:
        """What the leader of `leader_epoch` sent; of no use if that is over."""
        self._require_follower(leader_epoch)
        self.log.append_as_follower(records)

    def truncate_to_leader(
        self, epoch: LeaderEpoch, end_offset: Offset, *, leader_epoch: LeaderEpoch
    ) -> None:
        """The leader's log parted from ours: cut where both are sure to agree (KIP-101, KIP-279).

        `epoch` is the latest of the leader's at or below our last, which it ends at `end_offset`. If we have
        that epoch, the logs agree up to the lesser end; if not, up to where our next lower one ends."""
        self._require_follower(leader_epoch)
        own_epoch, own_end = self.log.end_offset_for_epoch(epoch)
        target = min(own_end, self.log.log_end_offset)
        if own_epoch == epoch:
            target = min(target, end_offset)
        target = max(target, self.log.log_start_offset)
        log.info("%s: cuts its log at offset %d, epoch %d", self.topic_partition, target, epoch)
        self.log.truncate_to(Offset(target))
        self._high_watermark = Offset(min(self._high_watermark, self.log.log_end_offset))

    def start_anew_at(self, offset: Offset, *, leader_epoch: LeaderEpoch) -> None:
        """The leader has deleted more than we have."""
        self._require_follower(leader_epoch)
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark = offset

    def learn_from_leader(
        self, high_watermark: Offset, log_start_offset: Offset, *, leader_epoch: LeaderEpoch
    ) -> None:
        self._require_follower(leader_epoch)
        advanced = Offset(max(self._high_watermark, min(high_watermark, self.log.log_end_offset)))
        moved = advanced > self._high_watermark
        self._high_watermark = advanced
        if self.log.log_start_offset < log_start_offset <= self._high_watermark:
            self.log.delete_before(log_start_offset)
        if moved:
            self._notify()

    def _require_follower(self, leader_epoch: LeaderEpoch) -> None:
        if self._failed:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if self.role is not Role.FOLLOWER or self.leader_epoch != leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)

    # ---- fencing

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
        if self._high_watermark < self.log.log_end_offset:
            self._notify()  # the followers wait for what is not committed yet
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
        if self._followers is None:
            return
        advanced = self._followers.high_watermark(
            self._high_watermark, self._durable_end, min_isr=self._effective_min_isr
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
        self,
        offset: Offset,
        max_bytes: int,
        *,
        read_committed: bool,
        min_one_batch: bool,
        for_replica: bool = False,
    ) -> ReadResult:
        """Consumers see what is committed; a follower everything."""
        if for_replica:
            end = self.log.log_end_offset
        else:
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
