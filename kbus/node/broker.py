"""The state of one broker, which all handlers share: settings, a view of the cluster, partitions."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kbus.config import BrokerConfig, TopicConfig
from kbus.config import broker as settings
from kbus.config import topic as topic_settings
from kbus.core.cluster import Broker as BrokerInfo
from kbus.core.cluster import PartitionState, Topic
from kbus.core.fetch_session import FetchSessionCache
from kbus.node.connection import Dispatch, RequestContext
from kbus.node.log_settings import log_config
from kbus.node.metadata import MetadataCache
from kbus.node.partition import Partition
from kbus.node.peer import Peer, PeerError
from kbus.node.producer_ids import ProducerIds
from kbus.node.waiters import FetchWaiter
from kbus.protocol.api import ApiKey, Entity, schema_for
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.protocol.private import Forward, Hello, PrivateRequest, Reply
from kbus.storage.manager import LogManager
from kbus.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from kbus.node.controller import Controller, NewTopic
    from kbus.node.replication import Replication

log = logging.getLogger(__name__)

_SESSION_EVICTION_MS: Final = 120_000
_CONTROLLER_TIMEOUT_S: Final = 30.0
_CREATE_TOPICS_VERSION: Final = 7


@dataclass(frozen=True, slots=True)
class DynamicConfig:
    """Settings changed while brokers run: of this one, and of all."""

    broker: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)

    def over(self, config: BrokerConfig) -> BrokerConfig:
        return config.with_dynamic(broker=self.broker, default=self.default)


class Broker:
    """Owns the partitions of this node. Lives on the loop."""

    controller: "Controller"
    replication: "Replication"
    dispatch: Dispatch

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        config: BrokerConfig,
        metadata: MetadataCache,
        logs: LogManager,
        producer_ids: ProducerIds,
        clock_ms: Callable[[], int],
        random_id: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self.id = broker_id
        self.config = config
        self.dynamic_config = DynamicConfig()
        self.metadata = metadata
        self.logs = logs
        self.producer_ids = producer_ids
        self.clock_ms = clock_ms
        self.loop = loop
        self.executor = executor
        self.fetch_sessions = FetchSessionCache(
            slots=config[settings.MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS],
            eviction_ms=_SESSION_EVICTION_MS,
            new_id=random_id,
        )
        self.secret = ""
        self.epoch = -1
        """Of this broker's registration."""
        self.controller_epoch = 0
        self.informed = asyncio.Event()
        """Set once the controller has told this broker of the cluster."""
        self._updating = asyncio.Lock()
        self.long_polls: set[FetchWaiter] = set()
        self.draining = False
        self.fatal: asyncio.Future[str] = loop.create_future()
        """Why the node cannot go on, once it cannot."""
        self._partitions: dict[TopicPartition, Partition] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- what handlers ask for

    def partitions(self) -> Iterable[Partition]:
        return list(self._partitions.values())

    def partition(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get(TopicPartition(topic, index))
        if partition is not None:
            return partition
        known = self.metadata.topic(topic)
        if known is None or index not in known.partitions:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if self.id in known.partitions[index].replicas:
            raise KafkaError(ErrorCode.kafka_storage_error)  # it is here, but could not be opened
        raise KafkaError(ErrorCode.not_leader_or_follower)

    def is_offline(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Whether this broker should have the partition and cannot use it."""
        if self.id not in state.replicas:
            return False
        partition = self._partitions.get(topic_partition)
        return partition is None or partition.is_failed

    def topic_name(self, topic_id: UUID | None) -> str:
        topic = self.metadata.topic_by_id(topic_id) if topic_id is not None else None
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        return topic.name

    def topic_config(self, name: str) -> TopicConfig:
        topic = self.metadata.topic(name)
        return TopicConfig.from_store(self.config, topic.config if topic else {})

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Runs `work` to its end, whether or not anybody still waits for it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- what the controller does for this broker

    async def forward(self, context: RequestContext, request: Entity) -> Entity:
        """Passes a request on to the controller and brings its answer back."""
        schema = context.schema
        frame = schema.write_request(0, context.client_id or "", request)[4:]
        reply = await self.ask_controller(
            Forward(frame=frame, peer_host=context.peer_host, listener=context.listener)
        )
        _, response = schema.read_response(memoryview(reply.frame))
        return response

    async def ask_controller(self, request: PrivateRequest) -> Reply:
        broker = self.metadata.brokers.get(self.metadata.controller_id)
        endpoint = broker.endpoints.get(self.config.inter_broker_listener) if broker else None
        if endpoint is None:
            raise KafkaError(ErrorCode.not_controller, "There is no controller at the moment.")
        try:
            peer = await Peer.connect(endpoint, self.hello(), timeout_s=_CONTROLLER_TIMEOUT_S)
            try:
                reply = await peer.ask(request, timeout_s=_CONTROLLER_TIMEOUT_S)
            finally:
                peer.close()
        except PeerError as error:
            raise KafkaError(ErrorCode.not_controller, f"The controller does not answer: {error}") from error
        if reply.error != ErrorCode.none:
            raise KafkaError(ErrorCode(reply.error), reply.message)
        return reply

    async def auto_create(self, context: RequestContext, new: "NewTopic") -> Topic:
        if self.controller.is_active:
            return await self.controller.create_topic(new)
        schema = schema_for(ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION)
        request = schema.request(
            topics=(
                schema.build_request(
                    "CreatableTopic",
                    name=new.name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=(),
                    configs=(),
                ),
            ),
            timeout=timedelta(seconds=_CONTROLLER_TIMEOUT_S),
            validate_only=False,
        )
        response = await self.forward(replace(context, schema=schema), request)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise KafkaError(result.error_code, result.error_message)
        topic = self.metadata.topic(new.name)
        if topic is None:
            raise KafkaError(ErrorCode.leader_not_available)  # it is being told to this broker
        return topic

    def hello(self) -> Hello:
        return Hello(secret=self.secret, broker_id=self.id, broker_epoch=self.epoch)

    # ---- what the controller decides

    async def apply_update(
        self,
        *,
        controller_id: BrokerId,
        controller_epoch: int,
        brokers: Mapping[BrokerId, BrokerInfo],
        topics: Iterable[Topic],
        removed: Iterable[str],
        full: bool,
        dynamic: DynamicConfig | None,
    ) -> None:
        """What the controller says, one update at a time. An older controller is told that it is one."""
        async with self._updating:
            if controller_epoch < self.controller_epoch:
                raise KafkaError(ErrorCode.stale_controller_epoch)
            self.controller_epoch = controller_epoch
            self.metadata.controller_id = controller_id
            self.metadata.replace_brokers(dict(brokers))
            if dynamic is not None and dynamic != self.dynamic_config:
                self.apply_dynamic_config(dynamic)
            for name in removed:
                await self.remove_topic(name)
            told = set()
            for topic in topics:
                told.add(topic.name)
                await self.apply_topic(topic)
            if full:
                for known in self.metadata.topics():
                    if known.name not in told:
                        await self.remove_topic(known.name)
            self.informed.set()

    async def apply_topic(self, topic: Topic) -> None:
        """Takes over a topic's assignment, leaderships and settings; clients hear of it when all is there.

        A new log costs a few milliseconds of the disk, so others get their turn between two partitions.
        Only the controller calls this, one change at a time."""
        config = TopicConfig.from_store(self.config, topic.config)
        for warning in config.warnings:
            log.warning("topic %s: %s", topic.name, warning)
        if "compact" in config[topic_settings.CLEANUP_POLICY]:
            log.warning("topic %s is to be compacted, which this version does not do yet", topic.name)
        for index, state in topic.partitions.items():
            if self.id in state.replicas:
                self._apply_partition(topic, TopicPartition(topic.name, index), state, config)
                await asyncio.sleep(0)
        self.metadata.put_topic(topic)

    def _apply_partition(
        self, topic: Topic, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig
    ) -> None:
        try:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                partition = self._open_partition(topic, topic_partition, config)
                self._partitions[topic_partition] = partition
            partition.configure(log_config(self.config, config), config[topic_settings.MIN_INSYNC_REPLICAS])
            partition.apply(state)
        except (OSError, KafkaError) as error:
            # One bad directory takes its partitions offline, not the node.
            log.error("%s is offline: %s", topic_partition, error)

    def _open_partition(
        self, topic: Topic, topic_partition: TopicPartition, config: TopicConfig
    ) -> Partition:
        partition_log = self.logs.get(topic_partition)
        if partition_log is None:
            partition_log = self.logs.create(topic_partition, topic.id, log_config(self.config, config))
        elif self.logs.topic_id(topic_partition) not in (None, topic.id):
            aside = self.logs.set_aside(topic_partition)
            log.warning("an earlier topic of the name %s is kept in %s", topic.name, aside)
            partition_log = self.logs.create(topic_partition, topic.id, log_config(self.config, config))
        return Partition(
            topic_partition=topic_partition,
            topic_id=topic.id,
            local_id=self.id,
            partition_log=partition_log,
            high_watermark=self.logs.high_watermarks.get(topic_partition, Offset(0)),
            min_insync_replicas=config[topic_settings.MIN_INSYNC_REPLICAS],
            executor=self.executor,
            environment=self.replication,
        )

    async def remove_topic(self, name: str) -> None:
        """The files go out of the way at once and are removed later."""
        self.metadata.remove_topic(name)
        # A deletion that a crash cut short is finished before the partitions are in use.
        for topic_partition in [tp for tp in {*self._partitions, *self.logs.logs} if tp.topic == name]:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.resign()
            try:
                self.logs.delete(topic_partition)
            except (OSError, KafkaError) as error:
                log.error("cannot delete the files of %s: %s", topic_partition, error)
            await asyncio.sleep(0)

    def apply_dynamic_config(self, dynamic: DynamicConfig) -> None:
        """Takes effect at once, also for the topics that have no value of their own."""
        self.config = dynamic.over(self.config)
        self.dynamic_config = dynamic
        for partition in self._partitions.values():
            config = self.topic_config(partition.topic_partition.topic)
            partition.configure(log_config(self.config, config), config[topic_settings.MIN_INSYNC_REPLICAS])

    def stop_leading(self) -> None:
        """The session is over, and others may already have taken over what this node led."""
        for partition in self._partitions.values():
            partition.resign()

    def report_strays(self) -> None:
        """Logs of topics that the cluster does not know are kept, and said to be."""
        for topic_partition, partition_log in self.logs.logs.items():
            if topic_partition not in self._partitions and self.metadata.topic(topic_partition.topic) is None:
                log.warning(
                    "%s holds a partition of no known topic; it is left as it is", partition_log.directory
                )

    def checkpoint_high_watermarks(self) -> None:
        self.logs.checkpoint_high_watermarks(
            {topic_partition: p.high_watermark for topic_partition, p in self._partitions.items()}
        )

    def give_up(self, reason: str) -> None:
        if not self.fatal.done():
            log.critical("%s", reason)
            self.fatal.set_result(reason)

    # ---- the end

    def begin_drain(self) -> None:
        """Long polls are answered with what there is."""
        self.draining = True
        for waiter in list(self.long_polls):
            waiter.finish()

    async def settle(self) -> None:
        """Waits for spawned tasks and flushes under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for partition in self._partitions.values():
            await partition.flushed()
