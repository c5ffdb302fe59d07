"""Fetch, v4–v18: reads record batches, sent from the segment files by sendfile. v13+ names topics by id.

A response waits until `min_bytes` can be had, at most `max_wait`. `max_bytes` and a partition's limit are
soft: the first batch of the first partition that has one is sent whole, so that a consumer never gets
stuck behind a large record (KIP-74). Sessions (KIP-227) are in `core.fetch_session`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from kbus.config import broker as settings
from kbus.core.fetch_session import FetchKey, FetchPlan, FetchPosition, PartitionNews
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, PeerIdentity, RequestContext
from kbus.node.failures import describe_failure
from kbus.node.partition import Partition, ReadResult
from kbus.node.waiters import FetchWaiter
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.protocol.scatter import FilePart
from kbus.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

_CURRENT_LEADER_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_READ_COMMITTED: Final = 1
_NO_THROTTLE: Final = timedelta(0)


@dataclass(slots=True)
class _Read:
    """The state of one partition in a fetch."""

    key: FetchKey
    position: FetchPosition
    partition: Partition | None = None
    result: ReadResult | None = None
    error: ErrorCode = ErrorCode.none
    diverging: tuple[LeaderEpoch, Offset] | None = None

    @property
    def size(self) -> int:
        return self.result.slice.length if self.result and self.result.slice else 0

    @property
    def must_tell(self) -> bool:
        return self.error is not ErrorCode.none or self.diverging is not None


@dataclass(slots=True, kw_only=True)
class _Fetch:
    """One request under way."""

    broker: Broker
    context: RequestContext
    plan: FetchPlan
    max_bytes: int
    min_bytes: int
    read_committed: bool
    replica: PeerIdentity | None
    reads: list[_Read] = field(default_factory=list)

    def read_all(self) -> None:
        self.reads = []
        budget = self.max_bytes
        for key, position in self.plan.partitions:
            read = _Read(key, position)
            self.reads.append(read)
            try:
                read.partition = self._find(key)
                # Nothing has been read yet, so the first batch found may exceed every limit.
                self._read(read, budget, first=budget == self.max_bytes)
            except Exception as error:  # noqa: BLE001 - one partition's failure is that partition's answer
                read.error, _ = describe_failure(error, f"fetch of {key.topic}-{key.partition}")
            budget -= read.size

    def _find(self, key: FetchKey) -> Partition:
        name = key.topic if isinstance(key.topic, str) else self.broker.topic_name(key.topic)
        return self.broker.partition(name, key.partition)

    def _read(self, read: _Read, budget: int, *, first: bool) -> None:
        partition, position = read.partition, read.position
        assert partition is not None
        partition.require_leader(position.current_leader_epoch)
        replica = self.replica
        if position.last_fetched_epoch != NO_EPOCH:
            read.diverging = _divergence(partition, position)
            if read.diverging is not None:
                return
        read.result = partition.read(
            position.fetch_offset,
            max(0, min(position.max_bytes, budget)),
            read_committed=self.read_committed,
            min_one_batch=first,
            for_replica=replica is not None,
        )
        if replica is not None:
            # It was just read from without an error, so the follower's log is this one up to there.
            partition.on_follower_fetch(replica.broker_id, replica.broker_epoch, position.fetch_offset)

    def ready(self) -> bool:
        return sum(read.size for read in self.reads) >= self.min_bytes or any(r.must_tell for r in self.reads)

    def ready_after(self, changed: Partition) -> bool:
        """Looks again only at the partition that changed."""
        for read in self.reads:
            if read.partition is changed:
                try:
                    self._read(read, self.max_bytes, first=True)
                except (KafkaError, OSError) as error:
                    read.error, _ = describe_failure(error, f"fetch of {changed.topic_partition}")
        return self.ready()

    def response(self) -> Entity:
        plan = self.plan
        included = None
        if plan.session is not None:
            included = plan.session.filter_news(((r.key, _news(r)) for r in self.reads), full=plan.full)
        topics: dict[object, list[Entity]] = {}
        for read in self.reads:
            if included is None or read.key in included:
                topics.setdefault(read.key.topic, []).append(self._partition_entry(read))
        schema = self.context.schema
        by_id = self.context.version >= _TOPIC_IDS_SINCE
        return schema.response(
            throttle_time=_NO_THROTTLE,
            error_code=ErrorCode.none,
            session_id=plan.session_id,
            responses=tuple(
                schema.build(
                    "FetchableTopicResponse",
                    partitions=tuple(entries),
                    **({"topic_id": topic} if by_id else {"topic": topic}),
                )
                for topic, entries in topics.items()
            ),
        )

    def _partition_entry(self, read: _Read) -> Entity:
        build, result = self.context.schema.build, read.result
        extra = {}
        if read.diverging is not None:
            epoch, end_offset = read.diverging
            extra["diverging_epoch"] = build("EpochEndOffset", epoch=epoch, end_offset=end_offset)
        moved = read.error in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
        if moved and read.partition and self.context.version >= _CURRENT_LEADER_SINCE:
            extra["current_leader"] = build(
                "LeaderIdAndEpoch", leader_id=read.partition.leader, leader_epoch=read.partition.leader_epoch
            )
        failed = read.error is not ErrorCode.none or result is None
        return build(
            "PartitionData",
            partition_index=read.key.partition,
            error_code=read.error,
            high_watermark=NO_OFFSET if failed or result is None else result.high_watermark,
            last_stable_offset=NO_OFFSET if failed or result is None else result.last_stable_offset,
            log_start_offset=NO_OFFSET if failed or result is None else result.log_start_offset,
            aborted_transactions=self._aborted(read) if self.read_committed else None,
            records=b"" if failed or result is None else _records(result),
            **extra,
        )

    def _aborted(self, read: _Read) -> tuple[Entity, ...]:
        """What a read_committed consumer has to leave out of the records it is sent."""
        if read.partition is None or read.result is None or not read.size:
            return ()
        aborted = read.partition.log.aborted_transactions(
            read.position.fetch_offset, read.result.last_stable_offset
        )
        return tuple(
            self.context.schema.build(
                "AbortedTransaction", producer_id=item.producer_id, first_offset=item.first_offset
            )
            for item in aborted
        )


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    try:
        plan = _plan(broker, context, request)
    except KafkaError as error:
        return context.schema.response(
            throttle_time=_NO_THROTTLE, error_code=error.code, session_id=0, responses=()
        )
    max_bytes = min(request.max_bytes, broker.config[settings.FETCH_MAX_BYTES])
    fetch = _Fetch(
        broker=broker,
        context=context,
        plan=plan,
        max_bytes=max_bytes,
        min_bytes=min(request.min_bytes, max_bytes),
        read_committed=request.isolation_level == _READ_COMMITTED,
        replica=context.peer if _replica_id(request) >= 0 else None,
    )
    fetch.read_all()
    wait_s = request.max_wait.total_seconds()
    if wait_s <= 0 or not fetch.reads or fetch.ready() or broker.draining:
        return fetch.response()

    response = broker.loop.create_future()
    waiter = FetchWaiter(
        broker.loop,
        partitions=[read.partition for read in fetch.reads if read.partition is not None],
        ready=fetch.ready_after,
        timeout_s=wait_s,
    )

    def answer() -> None:
        broker.long_polls.discard(waiter)
        if not response.done():
            fetch.read_all()
            response.set_result(fetch.response())

    broker.long_polls.add(waiter)
    waiter.future.add_done_callback(lambda _: answer())
    response.add_done_callback(lambda future: waiter.finish() if future.cancelled() else None)
    return response


def _plan(broker: Broker, context: RequestContext, request: Entity) -> FetchPlan:
    if _replica_id(request) >= 0 and not _is_replica(broker, context, request):
        raise KafkaError(ErrorCode.cluster_authorization_failed)
    return broker.fetch_sessions.plan(
        session_id=getattr(request, "session_id", 0),
        epoch=getattr(request, "session_epoch", -1),
        wanted=list(_wanted(context, request)),
        forgotten=list(_forgotten(request)),
        uses_topic_ids=context.version >= _TOPIC_IDS_SINCE,
        privileged=_replica_id(request) >= 0,
        now_ms=broker.clock_ms(),
    )


def _replica_id(request: Entity) -> int:
    state = getattr(request, "replica_state", None)
    replica_id: int = request.replica_id if state is None else state.replica_id
    return replica_id


def _is_replica(broker: Broker, context: RequestContext, request: Entity) -> bool:
    """The other end has shown that it is a node, is the one it says, and is registered as such now."""
    if context.peer is None or context.peer.broker_id != _replica_id(request):
        return False
    known = broker.metadata.brokers.get(context.peer.broker_id)
    return known is not None and known.epoch == context.peer.broker_epoch


def _wanted(context: RequestContext, request: Entity) -> Iterator[tuple[FetchKey, FetchPosition]]:
    for topic in request.topics:
        name = topic.topic_id if context.version >= _TOPIC_IDS_SINCE else topic.topic
        for item in topic.partitions:
            yield (
                FetchKey(name, item.partition),
                FetchPosition(
                    fetch_offset=item.fetch_offset,
                    max_bytes=item.partition_max_bytes,
                    current_leader_epoch=getattr(item, "current_leader_epoch", NO_EPOCH),
                    last_fetched_epoch=getattr(item, "last_fetched_epoch", NO_EPOCH),
                    log_start_offset=getattr(item, "log_start_offset", NO_OFFSET),
                ),
            )


def _forgotten(request: Entity) -> Iterator[FetchKey]:
    for topic in getattr(request, "forgotten_topics_data", ()):
        name = getattr(topic, "topic_id", None) or getattr(topic, "topic", None)
        for partition in topic.partitions:
            if name is not None:
                yield FetchKey(name, partition)


def _divergence(partition: Partition, position: FetchPosition) -> tuple[LeaderEpoch, Offset] | None:
    """Where the reader's log parts from this one, if it does (KIP-595)."""
    epoch, end_offset = partition.log.end_offset_for_epoch(position.last_fetched_epoch)
    if end_offset < 0:
        raise KafkaError(ErrorCode.offset_out_of_range)
    if epoch < position.last_fetched_epoch or end_offset < position.fetch_offset:
        return epoch, end_offset
    return None


def _records(result: ReadResult) -> FilePart | bytes:
    found = result.slice
    if found is None or found.length == 0:
        return b""
    return FilePart(found.file, found.position, found.length)


def _news(read: _Read) -> PartitionNews:
    result = read.result
    return PartitionNews(
        has_records=read.size > 0,
        error=read.error,
        high_watermark=result.high_watermark if result else NO_OFFSET,
        log_start_offset=result.log_start_offset if result else NO_OFFSET,
        must_tell=read.diverging is not None,
    )
