"""Replication of this node's partitions: fetchers for those it follows, in-sync sets for those it leads."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbus.config import Endpoint
from kbus.config import broker as settings
from kbus.core.replication import IsrChange
from kbus.node.partition import Partition
from kbus.node.replica_fetcher import ReplicaFetcher
from kbus.protocol.private import Hello
from kbus.types import BrokerId, LeaderEpoch, TopicPartition
from kbus.zk import znodes
from kbus.zk.store import BadVersion, ConnectionLost, CoordinationStore, NoNode, SessionExpired

if TYPE_CHECKING:
    from kbus.node.broker import Broker

log = logging.getLogger(__name__)

_RETRY_S = 0.1


class Replication:
    """A `ReplicationEnvironment`. Lives on the loop."""

    def __init__(self, broker: "Broker", store: CoordinationStore, hello: Callable[[], Hello]) -> None:
        self._broker = broker
        self._store = store
        self._hello = hello
        self._fetchers: dict[BrokerId, ReplicaFetcher] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}
        self._changed_isrs: set[TopicPartition] = set()
        self._announcing: asyncio.Task[None] | None = None

    # ---- what a partition asks for

    def clock_ms(self) -> int:
        return self._broker.clock_ms()

    def live_epochs(self) -> dict[BrokerId, int]:
        return {broker.id: broker.epoch for broker in self._broker.metadata.brokers.values()}

    def follow(self, partition: Partition) -> None:
        self.stop_following(partition)
        leader = partition.leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                leader,
                endpoint=self._endpoint,
                hello=self._hello,
                config=lambda: self._broker.config,
                loop=self._broker.loop,
            )
        self._leader_of[partition.topic_partition] = leader
        fetcher.follow(partition)

    def stop_following(self, partition: Partition) -> None:
        leader = self._leader_of.pop(partition.topic_partition, None)
        if leader is not None:
            fetcher = self._fetchers[leader]
            fetcher.unfollow(partition.topic_partition)
            if fetcher.is_idle:
                fetcher.stop()
                del self._fetchers[leader]

    def write_isr(self, partition: Partition, change: IsrChange) -> None:
        self._broker.spawn(self._write_isr(partition, partition.leader_epoch, change))

    def _endpoint(self, broker_id: BrokerId) -> Endpoint | None:
        broker = self._broker.metadata.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(self._broker.config.inter_broker_listener)

    # ---- in-sync sets

    async def _write_isr(self, partition: Partition, epoch: LeaderEpoch, change: IsrChange) -> None:
        """By compare-and-set on the version that the decision rests on. Whether a write whose answer was
        lost has happened is found out by reading, for as long as this node leads in that epoch."""
        topic, index = partition.topic_partition
        path = znodes.partition_state_path(topic, index)
        wanted = znodes.PartitionLeadership(
            leader=self._broker.id,
            leader_epoch=epoch,
            isr=change.isr,
            controller_epoch=self._broker.controller_epoch,
        )
        while partition.is_leader and partition.leader_epoch == epoch:
            try:
                stat = await self._store.set(path, wanted.encode(), change.partition_epoch)
                partition.isr_written(epoch, change.isr, stat.version)
                self._announce(partition.topic_partition)
                return
            except BadVersion:
                try:
                    data, stat = await self._store.get(path)
                except (NoNode, ConnectionLost, SessionExpired):
                    await asyncio.sleep(_RETRY_S)
                    continue
                found = znodes.PartitionLeadership.decode(data)
                if stat.version == change.partition_epoch + 1 and (
                    found.leader,
                    found.leader_epoch,
                    found.isr,
                ) == (self._broker.id, epoch, change.isr):
                    partition.isr_written(epoch, change.isr, stat.version)
                    self._announce(partition.topic_partition)
                else:
                    # Somebody else wrote. What it was comes from the controller, or is taken as it is if
                    # it is still our epoch: never try the old version again (KAFKA-2729).
                    partition.isr_write_refused(epoch)
                    if (found.leader, found.leader_epoch) == (self._broker.id, epoch):
                        partition.isr_written(epoch, found.isr, stat.version)
                return
            except NoNode:
                partition.isr_write_refused(epoch)
                return
            except (ConnectionLost, SessionExpired):
                await asyncio.sleep(_RETRY_S)
        partition.isr_write_refused(epoch)

    def _announce(self, topic_partition: TopicPartition) -> None:
        """Tells the controller, several changes at a time."""
        self._changed_isrs.add(topic_partition)
        if self._announcing is None:
            self._announcing = self._broker.spawn(self._announce_all())

    async def _announce_all(self) -> None:
        await asyncio.sleep(0)
        try:
            while self._changed_isrs:
                changed, self._changed_isrs = self._changed_isrs, set()
                try:
                    await self._store.create(
                        znodes.ISR_CHANGE_PREFIX, znodes.encode_partitions(changed), sequence=True
                    )
                except (ConnectionLost, SessionExpired):
                    self._changed_isrs |= changed
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._announcing = None

    def check_lag(self) -> None:
        max_lag_ms = self._broker.config[settings.REPLICA_LAG_TIME_MAX_MS]
        for partition in self._broker.partitions():
            partition.shrink_isr_if_due(max_lag_ms)

    def stop(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._fetchers = {}
        self._leader_of = {}
