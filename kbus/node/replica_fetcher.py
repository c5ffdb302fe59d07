"""Followers: what this node copies from the leaders of its partitions.

One task, one connection and one request at a time for each leader, however many partitions it leads. The
request is an ordinary Fetch in this broker's name, in a fetch session: partitions without news cost
nothing. Each position carries the epoch of the last record; where the leader's log parted from ours it
answers with the place, and our log is cut there, by epochs and never by high watermark.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from kbus.config import BrokerConfig, Endpoint
from kbus.config import broker as settings
from kbus.node.partition import Partition
from kbus.node.peer import Peer, PeerError
from kbus.protocol.api import ApiKey, Entity, schema_for
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.protocol.private import Hello
from kbus.types import BrokerId, LeaderEpoch, Offset, TopicPartition

log = logging.getLogger(__name__)

_FETCH_VERSION: Final = 17
_LIST_OFFSETS_VERSION: Final = 9
_EARLIEST: Final = -2
_CONNECT_TIMEOUT_S: Final = 2.0
_MAX_BACKOFF_S: Final = 1.0
_WAIT_MARGIN_S: Final = 10.0


class _Position(NamedTuple):
    offset: Offset
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_start: Offset


@dataclass(slots=True)
class _Followed:
    partition: Partition
    sent: _Position | None = None
    """What the leader's session has; None: nothing yet."""
    held_until: float = 0.0
    """After an error, not asked for before this time."""

    def position(self) -> _Position:
        partition_log = self.partition.log
        return _Position(
            partition_log.log_end_offset,
            self.partition.leader_epoch,
            partition_log.latest_epoch,
            partition_log.log_start_offset,
        )


class ReplicaFetcher:
    """Copies from one leader."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        endpoint: Callable[[BrokerId], Endpoint | None],
        hello: Callable[[], Hello],
        config: Callable[[], BrokerConfig],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._leader = leader
        self._endpoint = endpoint
        self._hello = hello
        self._config = config
        self._loop = loop
        self._followed: dict[TopicPartition, _Followed] = {}
        self._forgotten: list[Partition] = []
        self._wake = asyncio.Event()
        self._session_id = 0
        self._session_epoch = 0
        self._peer: Peer | None = None
        self._task = loop.create_task(self._run())

    def follow(self, partition: Partition) -> None:
        self._followed[partition.topic_partition] = _Followed(partition)
        self._wake.set()

    def unfollow(self, topic_partition: TopicPartition) -> None:
        followed = self._followed.pop(topic_partition, None)
        if followed is not None and followed.sent is not None:
            self._forgotten.append(followed.partition)

    @property
    def is_idle(self) -> bool:
        return not self._followed

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                while not self._followed:
                    self._wake.clear()
                    await self._wake.wait()
                try:
                    await self._fetch_once()
                    failures = 0
                except PeerError as error:
                    if failures == 0:
                        log.info("cannot fetch from broker %d: %s", self._leader, error)
                    failures += 1
                    self._forget_connection()
                    await self._pause(failures)
        finally:
            self._forget_connection()

    async def _pause(self, failures: int) -> None:
        """Short at first: a broker that was restarted is back within a second."""
        backoff_s = self._config()[settings.REPLICA_FETCH_BACKOFF_MS] / 1000
        self._wake.clear()
        try:
            async with asyncio.timeout(min(_MAX_BACKOFF_S, 0.02 * 2 ** min(failures, 6), backoff_s)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _forget_connection(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._session_id = self._session_epoch = 0
        self._forgotten = []
        for followed in self._followed.values():
            followed.sent = None

    async def _fetch_once(self) -> None:
        if self._peer is None:
            endpoint = self._endpoint(self._leader)
            if endpoint is None:
                raise PeerError(f"broker {self._leader} is not in the cluster")
            self._peer = await Peer.connect(endpoint, self._hello(), timeout_s=_CONNECT_TIMEOUT_S)
        config = self._config()
        wait_s = config[settings.REPLICA_FETCH_WAIT_MAX_MS] / 1000
        request, asked = self._request(config)
        response = await self._peer.call(
            schema_for(ApiKey.FETCH, _FETCH_VERSION), request, timeout_s=wait_s + _WAIT_MARGIN_S
        )
        if response.error_code != ErrorCode.none:
            # The session is gone at the leader; a full fetch opens another.
            self._session_id = self._session_epoch = 0
            for followed in self._followed.values():
                followed.sent = None
            if response.error_code == ErrorCode.cluster_authorization_failed:
                raise PeerError("the leader does not know this broker yet")
            return
        self._session_id = response.session_id
        self._session_epoch += 1
        names = {followed.partition.topic_id: name for name, followed in self._by_topic().items()}
        for topic in response.responses:
            name = names.get(topic.topic_id)
            for data in topic.partitions:
                if name is not None:
                    await self._take(TopicPartition(name, data.partition_index), data, asked)

    def _by_topic(self) -> dict[str, _Followed]:
        return {topic_partition.topic: followed for topic_partition, followed in self._followed.items()}

    def _request(self, config: BrokerConfig) -> tuple[Entity, dict[TopicPartition, _Position]]:
        schema = schema_for(ApiKey.FETCH, _FETCH_VERSION)
        now = self._loop.time()
        asked: dict[TopicPartition, _Position] = {}
        topics: dict[object, list[Entity]] = {}
        for topic_partition, followed in self._followed.items():
            position = followed.position()
            if followed.held_until > now:
                continue
            asked[topic_partition] = position
            if followed.sent == position:
                continue
            followed.sent = position
            topics.setdefault(followed.partition.topic_id, []).append(
                schema.build_request(
                    "FetchPartition",
                    partition=topic_partition.partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start,
                    partition_max_bytes=config[settings.REPLICA_FETCH_MAX_BYTES],
                )
            )
        forgotten: dict[object, list[int]] = {}
        for partition in self._forgotten:
            if partition.topic_partition not in asked:
                forgotten.setdefault(partition.topic_id, []).append(partition.topic_partition.partition)
        self._forgotten = []
        hello = self._hello()
        request = schema.request(
            replica_state=schema.build_request(
                "ReplicaState", replica_id=hello.broker_id, replica_epoch=hello.broker_epoch
            ),
            max_wait=timedelta(milliseconds=config[settings.REPLICA_FETCH_WAIT_MAX_MS]),
            min_bytes=config[settings.REPLICA_FETCH_MIN_BYTES],
            max_bytes=config[settings.REPLICA_FETCH_RESPONSE_MAX_BYTES],
            isolation_level=0,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=tuple(
                schema.build_request("FetchTopic", topic_id=topic_id, partitions=tuple(entries))
                for topic_id, entries in topics.items()
            ),
            forgotten_topics_data=tuple(
                schema.build_request("ForgottenTopic", topic_id=topic_id, partitions=tuple(numbers))
                for topic_id, numbers in forgotten.items()
            ),
            rack_id="",
        )
        return request, asked

    async def _take(
        self, topic_partition: TopicPartition, data: Entity, asked: dict[TopicPartition, _Position]
    ) -> None:
        """One partition of a response. What it was an answer to must still hold when it is applied."""
        followed, position = self._followed.get(topic_partition), asked.get(topic_partition)
        if followed is None or position is None:
            return
        partition, epoch = followed.partition, position.leader_epoch
        try:
            if data.error_code == ErrorCode.offset_out_of_range:
                await self._start_anew(followed, position)
            elif data.error_code != ErrorCode.none:
                raise KafkaError(data.error_code)
            elif data.diverging_epoch.epoch >= 0:
                partition.truncate_to_leader(
                    data.diverging_epoch.epoch, data.diverging_epoch.end_offset, leader_epoch=epoch
                )
            else:
                if data.records and partition.log.log_end_offset == position.offset:
                    partition.append_replicated(data.records, leader_epoch=epoch)
                partition.learn_from_leader(data.high_watermark, data.log_start_offset, leader_epoch=epoch)
        except (KafkaError, OSError) as error:
            log.info("%s: not replicated from broker %d: %s", topic_partition, self._leader, error)
            followed.held_until = self._loop.time() + 0.05
            followed.sent = None
            self._loop.call_later(0.06, self._wake.set)

    async def _start_anew(self, followed: _Followed, position: _Position) -> None:
        assert self._peer is not None
        schema = schema_for(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION)
        topic, index = followed.partition.topic_partition
        response = await self._peer.call(
            schema,
            schema.request(
                replica_id=self._hello().broker_id,
                isolation_level=0,
                topics=(
                    schema.build_request(
                        "ListOffsetsTopic",
                        name=topic,
                        partitions=(
                            schema.build_request(
                                "ListOffsetsPartition",
                                partition_index=index,
                                current_leader_epoch=position.leader_epoch,
                                timestamp=_EARLIEST,
                            ),
                        ),
                    ),
                ),
            ),
            timeout_s=_WAIT_MARGIN_S,
        )
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.none:
            raise KafkaError(found.error_code)
        # The leader has deleted more than we have, or knows none of our epochs: its log is what counts,
        # and ours is copied again from its start. We are not in sync meanwhile, so nothing rests on ours.
        followed.partition.start_anew_at(found.offset, leader_epoch=position.leader_epoch)
