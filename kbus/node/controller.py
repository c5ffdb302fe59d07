"""The controller: creates and deletes topics, and says who leads their partitions.

What it decides is in `core` (placement, election); here it is written to ZooKeeper, each write fenced by
the controller's epoch, and then applied. One change is made at a time, in the order they were asked for.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from kbus.config import ConfigError, TopicConfig
from kbus.config import broker as settings
from kbus.config import topic as topic_settings
from kbus.core.cluster import Broker as BrokerInfo
from kbus.core.cluster import PartitionState, Topic, check_topic_name, metric_name
from kbus.core.controller import (
    ClusterState,
    LeadershipChange,
    after_takeover,
    failed,
    first_leadership,
    repair,
    repair_one,
)
from kbus.core.election import Elected
from kbus.core.placement import check_manual_assignment, place_replicas
from kbus.node.broker import Broker, DynamicConfig
from kbus.node.broker_link import BrokerLink
from kbus.node.cluster_image import broker_to_wire, topic_to_wire
from kbus.node.peer import PeerError
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.protocol.private import ClusterUpdate, Hello
from kbus.types import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from kbus.zk import znodes
from kbus.zk.controller import ControllerMoved, Controllership, run_for_controller
from kbus.zk.store import (
    BadVersion,
    ConnectionLost,
    CoordinationStore,
    Create,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    SessionExpired,
    SetData,
    Stat,
    WatchEvent,
    WatchType,
    delete_recursively,
)

log = logging.getLogger(__name__)

MAX_PARTITIONS_AT_ONCE: Final = 10_000
"""A request for more is a mistake, or an attempt to fill ZooKeeper and the disk."""
_OPS_PER_WRITE: Final = 500
"""ZooKeeper takes at most a megabyte in one request."""
_MAX_ZNODE_BYTES: Final = 500_000
"""It cuts off who sends it more, and the controller would go with the connection."""

T = TypeVar("T")
Assignment = Mapping[int, tuple[BrokerId, ...]]
ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str | None]]
"""From a topic's own settings to what they are to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """None stands for the cluster's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignment: Assignment = field(default_factory=dict)
    """By hand, where it is not empty."""
    config: Mapping[str, str | None] = field(default_factory=dict)


class Controller:
    """Acts only between an election that it won and `resign`. `state` is the cluster as it has written it."""

    def __init__(self, broker: Broker, store: CoordinationStore, hello: Callable[[], Hello]) -> None:
        self._broker = broker
        self._store = store
        self._hello = hello
        self._role: Controllership | None = None
        self._turn = asyncio.Lock()
        self._links: dict[BrokerId, BrokerLink] = {}
        self.state = ClusterState()

    @property
    def is_active(self) -> bool:
        return self._role is not None

    # ---- the role

    async def run_for_election(self) -> bool:
        """True if this node is the controller now; it has then taken over the cluster's state."""
        role = await run_for_controller(self._store, self._broker.id, self._broker.clock_ms())
        if role is None:
            return False
        async with self._turn:
            self._drop_links()
            self._role = role
            log.info("controller of epoch %d", role.epoch)
            await self._take_over(role)
        return True

    def resign(self) -> None:
        """Nothing is written in this role any more; ZooKeeper would refuse it if it were."""
        if self._role is not None:
            log.info("no longer controller of epoch %d", self._role.epoch)
        self._role = None
        self._drop_links()

    def _drop_links(self) -> None:
        for link in self._links.values():
            link.stop()
        self._links = {}

    async def _take_over(self, role: Controllership) -> None:
        """Watches first, so that nothing that happens meanwhile is missed."""
        self.state = ClusterState()
        for name in await self._store.children(znodes.ISR_CHANGES):
            await self._delete_quietly(f"{znodes.ISR_CHANGES}/{name}")
        await self._read_isr_changes()
        self.state.registered = await self._read_brokers()
        await self._load_dynamic_config()
        written = await self._load_topics(role)
        await self._write(role, after_takeover(self.state, written, self._unclean_allowed))
        await self._publish(set(self.state.topics), set())

    async def _load_topics(self, role: Controllership) -> dict[TopicPartition, int]:
        """Returns when each partition's state was written down."""
        written: dict[TopicPartition, int] = {}
        doomed = set(await self._store.children(znodes.DELETE_TOPICS))
        for name in await self._store.children(znodes.TOPICS):
            try:
                check_topic_name(name)
                if name in doomed:
                    await self._finish_deletion(name)
                else:
                    await self._load_topic(role, name, written)
            except (KafkaError, znodes.MalformedZnode) as error:
                # Unreadable metadata leaves the topic out and its files where they are.
                log.error("topic %r cannot be loaded from ZooKeeper and is left alone: %s", name, error)
        for name in doomed:
            await self._finish_deletion(name)
        return written

    async def _load_topic(self, role: Controllership, name: str, written: dict[TopicPartition, int]) -> None:
        data, stat = await self._store.get(znodes.topic_path(name))
        assignment = znodes.TopicAssignment.decode(data)
        topic_id = assignment.topic_id
        if topic_id is None:
            topic_id = uuid.uuid4()
            named = replace(assignment, topic_id=topic_id)
            await role.write([SetData(znodes.topic_path(name), named.encode(), stat.version)])
        config = await self._load_config(znodes.topic_config_path(name))
        found = await asyncio.gather(*(self._recorded_state(name, index) for index in assignment.partitions))
        states: dict[int, PartitionState] = {}
        missing: dict[int, tuple[BrokerId, ...]] = {}
        for (index, replicas), recorded in zip(assignment.partitions.items(), found, strict=True):
            if recorded is None:
                missing[index] = replicas
                continue
            leadership, state_stat = recorded
            if leadership.controller_epoch > role.epoch:
                raise ControllerMoved(
                    f"{name}-{index} was written by controller {leadership.controller_epoch}"
                )
            states[index] = _partition_state(replicas, leadership, state_stat)
            written[TopicPartition(name, index)] = state_stat.mzxid
        if missing:
            states |= await self._write_first(role, name, missing)
        self.state.topics[name] = Topic(name=name, id=topic_id, partitions=states, config=config)

    async def _recorded_state(self, topic: str, index: int) -> tuple[znodes.PartitionLeadership, Stat] | None:
        try:
            data, stat = await self._store.get(znodes.partition_state_path(topic, index))
        except NoNode:
            return None
        return znodes.PartitionLeadership.decode(data), stat

    def _unclean_allowed(self, topic: str) -> bool:
        config = TopicConfig.from_store(self._broker.config, self.state.topics[topic].config)
        return config[topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE]

    # ---- leaderships

    async def _write_first(
        self, role: Controllership, topic: str, assignment: Assignment
    ) -> dict[int, PartitionState]:
        """The states of new partitions."""
        ops: list[Op] = []
        states: dict[int, PartitionState] = {}
        if await self._store.exists(znodes.partitions_path(topic)) is None:
            ops.append(Create(znodes.partitions_path(topic)))
        for index, replicas in assignment.items():
            elected = first_leadership(self.state, replicas) or Elected(NO_LEADER, replicas)
            leadership = znodes.PartitionLeadership(
                leader=elected.leader,
                leader_epoch=LeaderEpoch(0),
                isr=elected.isr,
                controller_epoch=role.epoch,
            )
            ops.append(Create(znodes.partition_path(topic, index)))
            ops.append(Create(znodes.partition_state_path(topic, index), leadership.encode()))
            states[index] = PartitionState(
                replicas=replicas,
                leader=leadership.leader,
                leader_epoch=leadership.leader_epoch,
                isr=leadership.isr,
                partition_epoch=0,
            )
        for start in range(0, len(ops), _OPS_PER_WRITE):
            await role.write(ops[start : start + _OPS_PER_WRITE])
        return states

    async def _write(self, role: Controllership, changes: list[LeadershipChange]) -> set[str]:
        """Writes decisions down, many at a time, and returns the topics they are about. One that rests on
        an older state (its leader has changed the in-sync set since) is left to the next look."""
        touched: set[str] = set()
        for start in range(0, len(changes), _OPS_PER_WRITE):
            part = changes[start : start + _OPS_PER_WRITE]
            while part:
                try:
                    results = await role.write([_leadership_op(change, role.epoch) for change in part])
                except MultiFailed as failure:
                    if not isinstance(failure.error, BadVersion | NoNode):
                        raise
                    stale = part.pop(failure.index)
                    await self._reread(stale.partition)
                    again = repair_one(self.state, stale.partition, self._unclean_allowed)
                    if again is not None:
                        part.append(again)
                    touched.add(stale.partition.topic)
                    continue
                for change, result in zip(part, results, strict=True):
                    assert isinstance(result, Stat)
                    self.state.record(change.partition, change.after(result.version))
                    touched.add(change.partition.topic)
                break
        return touched

    async def _reread(self, partition: TopicPartition) -> None:
        recorded = await self._recorded_state(*partition)
        current = self.state.state_of(partition)
        if recorded is not None and current is not None:
            self.state.record(partition, _partition_state(current.replicas, *recorded))

    # ---- brokers

    async def _read_brokers(self) -> dict[BrokerId, BrokerInfo]:
        names = await self._store.children(znodes.BROKER_IDS, self._on_brokers_event)
        found = await asyncio.gather(*(self._read_broker(name) for name in names))
        return {broker.id: broker for broker in found if broker is not None}

    async def _read_broker(self, name: str) -> BrokerInfo | None:
        try:
            data, stat = await self._store.get(f"{znodes.BROKER_IDS}/{name}", self._on_brokers_event)
            registration = znodes.BrokerRegistration.decode(data)
            broker_id = BrokerId(int(name))
        except NoNode:
            return None
        except ValueError as error:
            log.error("the registration of broker %r cannot be read: %s", name, error)
            return None
        return BrokerInfo(
            id=broker_id,
            endpoints={endpoint.listener: endpoint for endpoint in registration.endpoints},
            rack=registration.rack,
            epoch=stat.czxid,
        )

    def _on_brokers_event(self, event: WatchEvent) -> None:
        if event.type is not WatchType.DISCONNECTED:
            self._react(self._brokers_changed)

    def _react(self, reaction: Callable[[Controllership], Awaitable[None]]) -> None:
        """Runs a reaction in the controller's turn. Without the role it is somebody else's business."""
        if self._role is not None:
            self._broker.spawn(self._quietly(reaction))

    async def _quietly(self, reaction: Callable[[Controllership], Awaitable[None]]) -> None:
        try:
            async with self._turn:
                if self._role is not None:
                    await reaction(self._role)
        except ControllerMoved:
            self.resign()
        except (ConnectionLost, SessionExpired) as error:
            log.warning("the controller stops acting: %s", error)

    async def _brokers_changed(self, role: Controllership) -> None:
        before = self.state.registered
        now = await self._read_brokers()
        if now == before:
            return
        bounced = [b for b, broker in now.items() if b in before and before[b].epoch != broker.epoch]
        log.info("brokers are %s%s", sorted(now), f", back again {bounced}" if bounced else "")
        touched: set[str] = set()
        for broker_id in bounced:
            touched |= await self._write(role, failed(self.state, broker_id))
        self.state.registered = now
        touched |= await self._write(role, repair(self.state, self._unclean_allowed))
        await self._publish(touched, set())

    def suspect(self, broker_id: BrokerId, epoch: int) -> None:
        """Its port refuses connections: the process is gone, though its session may live on for a while."""
        broker = self.state.registered.get(broker_id)
        if broker is None or broker.epoch != epoch or self.state.suspected.get(broker_id) == epoch:
            return
        log.warning("broker %d refuses connections and counts as dead", broker_id)
        self.state.suspected[broker_id] = epoch
        self._react(self._repair)

    def trust(self, broker_id: BrokerId, epoch: int) -> None:
        """It answers, in the registration in which it was thought dead."""
        if self.state.suspected.get(broker_id) == epoch:
            del self.state.suspected[broker_id]
            self._react(self._repair)

    async def _repair(self, role: Controllership) -> None:
        touched = await self._write(role, repair(self.state, self._unclean_allowed))
        await self._publish(touched, set())

    async def leave(self, broker_id: BrokerId, epoch: int) -> int:
        """A broker wants to stop: moves what it leads to others; returns how much it still leads."""
        return await self._change(lambda role: self._leave(role, broker_id, epoch))

    async def _leave(self, role: Controllership, broker_id: BrokerId, epoch: int) -> int:
        broker = self.state.registered.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise KafkaError(ErrorCode.stale_broker_epoch)
        self.state.leaving[broker_id] = epoch
        touched = await self._write(role, repair(self.state, self._unclean_allowed))
        await self._publish(touched, set())
        return sum(1 for _, state in self.state.partitions() if state.leader == broker_id)

    # ---- in-sync sets, as leaders change them

    def _on_isr_event(self, event: WatchEvent) -> None:
        if event.type is not WatchType.DISCONNECTED:
            self._react(self._isr_changed)

    async def _read_isr_changes(self) -> list[str]:
        return await self._store.children(znodes.ISR_CHANGES, self._on_isr_event)

    async def _isr_changed(self, role: Controllership) -> None:
        partitions: set[TopicPartition] = set()
        names = await self._read_isr_changes()
        for name in names:
            try:
                data, _ = await self._store.get(f"{znodes.ISR_CHANGES}/{name}")
                partitions |= znodes.decode_partitions(data)
            except (NoNode, znodes.MalformedZnode) as error:
                log.warning("a notice of a changed in-sync set is left out: %s", error)
        for partition in partitions:
            await self._reread(partition)
        await self._publish({partition.topic for partition in partitions}, set())
        for name in names:
            await self._delete_quietly(f"{znodes.ISR_CHANGES}/{name}")

    async def _delete_quietly(self, path: str) -> None:
        with suppress(NoNode):
            await self._store.delete(path)

    # ---- telling

    async def _publish(self, changed: set[str], removed: set[str]) -> None:
        """To this broker now, to the others by their links."""
        assert self._role is not None
        live = self.state.live
        for broker_id, link in list(self._links.items()):
            broker = self.state.registered.get(broker_id)
            if broker is None or broker.epoch != link.epoch:
                link.stop()
                del self._links[broker_id]
        for broker_id, broker in self.state.registered.items():
            if broker_id != self._broker.id and broker_id not in self._links:
                self._open_link(broker)
        for link in self._links.values():
            link.tell(changed, removed)
        await self._broker.apply_update(
            controller_id=self._broker.id,
            controller_epoch=self._role.epoch,
            brokers=live,
            topics=[self.state.topics[name] for name in sorted(changed) if name in self.state.topics],
            removed=removed,
            full=False,
            dynamic=self._broker.dynamic_config,
        )

    def _open_link(self, broker: BrokerInfo) -> None:
        endpoint = broker.endpoints.get(self._broker.config.inter_broker_listener)
        if endpoint is None:
            log.error("broker %d has no listener for other brokers", broker.id)
            return
        self._links[broker.id] = BrokerLink(
            broker.id,
            broker.epoch,
            endpoint,
            hello=self._hello,
            compose=lambda topics, removed: self._compose(broker.epoch, topics, removed),
            on_refused=lambda: self.suspect(broker.id, broker.epoch),
            on_reached=lambda: self.trust(broker.id, broker.epoch),
            loop=self._broker.loop,
        )

    def _compose(self, broker_epoch: int, topics: set[str] | None, removed: set[str]) -> ClusterUpdate:
        if self._role is None:
            raise PeerError("this node is no longer the controller")
        names = set(self.state.topics) if topics is None else topics
        return ClusterUpdate(
            controller_id=self._broker.id,
            controller_epoch=self._role.epoch,
            broker_epoch=broker_epoch,
            brokers=[broker_to_wire(broker) for broker in self.state.live.values()],
            topics=[topic_to_wire(self.state.topics[name]) for name in names if name in self.state.topics],
            removed_topics=sorted(removed),
            full=topics is None,
            broker_config={},
            default_config=dict(self._broker.dynamic_config.default),
        )

    # ---- changes

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        return await self._change(lambda role: self._create_topic(role, new, validate_only))

    async def _create_topic(self, role: Controllership, new: NewTopic, validate_only: bool) -> Topic:
        broker = self._broker
        check_topic_name(new.name)
        if new.name in self.state.topics:
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic {new.name!r} exists already.")
        for other in self.state.topics.values():
            if metric_name(other.name) == metric_name(new.name):
                raise KafkaError(
                    ErrorCode.invalid_topic_exception,
                    f"Topic {new.name!r} collides with {other.name!r}: '.' and '_' count as the same.",
                )
        config = {name: value for name, value in new.config.items() if value is not None}
        TopicConfig(broker.config, new.config)
        config_data = _encode_config(config)
        assignment = self._assignment(new)
        topic_id = uuid.uuid4()
        if validate_only:
            states = {
                index: PartitionState(
                    replicas=replicas,
                    leader=replicas[0],
                    leader_epoch=NO_EPOCH,
                    isr=replicas,
                    partition_epoch=0,
                )
                for index, replicas in assignment.items()
            }
            return Topic(name=new.name, id=topic_id, partitions=states, config=config)
        topic = znodes.TopicAssignment(topic_id=topic_id, partitions=assignment)
        config_path = znodes.topic_config_path(new.name)
        if await self._store.exists(znodes.delete_topic_path(new.name)) is not None:
            # Left by a deletion that failed half-way: the next controller would take it for this topic's.
            await self._finish_deletion(new.name)
        stale = await self._store.exists(config_path) is not None
        await role.write(
            [
                SetData(config_path, config_data) if stale else Create(config_path, config_data),
                Create(znodes.topic_path(new.name), topic.encode()),
            ]
        )
        states = await self._write_first(role, new.name, assignment)
        created = Topic(name=new.name, id=topic_id, partitions=states, config=config)
        await self._put_topic(created)
        log.info("created topic %s with %d partitions", new.name, len(states))
        return created

    async def _put_topic(self, topic: Topic) -> None:
        self.state.topics[topic.name] = topic
        await self._publish({topic.name}, set())

    async def _remove_topic(self, name: str) -> None:
        if self.state.topics.pop(name, None) is not None:
            await self._publish(set(), {name})
        await self._broker.remove_topic(name)

    def _assignment(self, new: NewTopic) -> Assignment:
        live = sorted(broker for broker in self.state.registered if self.state.may_lead(broker))
        if new.assignment:
            check_manual_assignment(dict(new.assignment), live)
            return new.assignment
        config = self._broker.config
        partitions = config[settings.NUM_PARTITIONS] if new.partitions is None else new.partitions
        factor = new.replication_factor
        _check_partition_count(partitions)
        return place_replicas(
            live,
            partitions=partitions,
            replication_factor=config[settings.DEFAULT_REPLICATION_FACTOR] if factor is None else factor,
            start=len(self.state.topics),
        )

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[BrokerId, ...]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Raises the number of partitions of a topic to `count`."""
        await self._change(
            lambda role: self._create_partitions(role, name, count, assignments, validate_only)
        )

    async def _create_partitions(
        self,
        role: Controllership,
        name: str,
        count: int,
        assignments: Sequence[tuple[BrokerId, ...]] | None,
        validate_only: bool,
    ) -> None:
        topic = self._known(name)
        present = len(topic.partitions)
        if count <= present:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"Topic {name!r} has {present} partitions; their number can only grow.",
            )
        added = count - present
        _check_partition_count(added)
        replicas = {index: state.replicas for index, state in topic.partitions.items()}
        live = sorted(broker for broker in self.state.registered if self.state.may_lead(broker))
        new: Assignment
        if assignments is not None:
            if len(assignments) != added:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"{added} partitions are to be added, but {len(assignments)} are assigned.",
                )
            new = {present + offset: tuple(brokers) for offset, brokers in enumerate(assignments)}
            check_manual_assignment(dict(new), live, first_partition=present)
        else:
            factor = len(next(iter(replicas.values())))
            new = place_replicas(live, partitions=added, replication_factor=factor, first_partition=present)
        assignment = znodes.TopicAssignment(topic_id=topic.id, partitions={**replicas, **new}).encode()
        if len(assignment) > _MAX_ZNODE_BYTES:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"{count} partitions are more than ZooKeeper can hold of a topic.",
            )
        if validate_only:
            return
        await role.write([SetData(znodes.topic_path(name), assignment)])
        states = await self._write_first(role, name, new)
        await self._put_topic(
            Topic(name=name, id=topic.id, partitions={**topic.partitions, **states}, config=topic.config)
        )

    async def alter_topic_config(self, name: str, change: ConfigChange, *, validate_only: bool) -> None:
        """`change` is applied in this change's turn, so that none between is lost."""
        await self._change(lambda role: self._alter_topic_config(role, name, change, validate_only))

    async def _alter_topic_config(
        self, role: Controllership, name: str, change: ConfigChange, validate_only: bool
    ) -> None:
        topic = self._known(name)
        config = TopicConfig(self._broker.config, change(topic.config)).overrides
        data = _encode_config(config)
        if validate_only:
            return
        await self._write_config(role, znodes.topic_config_path(name), data)
        await self._put_topic(Topic(name=name, id=topic.id, partitions=topic.partitions, config=dict(config)))

    async def alter_broker_config(
        self, broker_id: BrokerId | None, change: ConfigChange, *, validate_only: bool
    ) -> None:
        """Settings of one broker, or, with None, of all, that can change while they run."""
        await self._change(lambda role: self._alter_broker_config(role, broker_id, change, validate_only))

    async def _alter_broker_config(
        self, role: Controllership, broker_id: BrokerId | None, change: ConfigChange, validate_only: bool
    ) -> None:
        current = self._broker.dynamic_config
        config = _given(change(current.default if broker_id is None else current.broker))
        changed = replace(current, default=config) if broker_id is None else replace(current, broker=config)
        changed.over(self._broker.config)
        data = _encode_config(config)
        if validate_only:
            return
        entity = znodes.DEFAULT_BROKER if broker_id is None else broker_id
        await self._write_config(role, znodes.broker_config_path(entity), data)
        self._broker.apply_dynamic_config(changed)

    async def _write_config(self, role: Controllership, path: str, data: bytes) -> None:
        there = await self._store.exists(path) is not None
        await role.write([SetData(path, data) if there else Create(path, data)])

    async def _load_config(self, path: str) -> dict[str, str]:
        try:
            return znodes.decode_config((await self._store.get(path))[0])
        except NoNode:
            return {}

    async def _load_dynamic_config(self) -> None:
        dynamic = DynamicConfig(
            broker=await self._load_config(znodes.broker_config_path(self._broker.id)),
            default=await self._load_config(znodes.broker_config_path(znodes.DEFAULT_BROKER)),
        )
        try:
            self._broker.apply_dynamic_config(dynamic)
        except ConfigError as error:
            log.error("the settings in %s are left out: %s", znodes.BROKER_CONFIGS, error)

    async def delete_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Of the topics that have had this name only the one with this id."""
        await self._change(lambda role: self._delete_topic(role, name, topic_id))

    async def _delete_topic(self, role: Controllership, name: str, topic_id: uuid.UUID) -> None:
        if self._known(name).id != topic_id:
            raise KafkaError(ErrorCode.unknown_topic_id)
        # Written down first: a controller that takes over half-way goes on with it.
        await role.write([Create(znodes.delete_topic_path(name))])
        await self._remove_topic(name)
        await self._finish_deletion(name)
        log.info("deleted topic %s", name)

    async def _finish_deletion(self, name: str) -> None:
        await self._remove_topic(name)
        await delete_recursively(self._store, znodes.topic_path(name))
        await delete_recursively(self._store, znodes.topic_config_path(name))
        await delete_recursively(self._store, znodes.delete_topic_path(name))

    def _known(self, name: str) -> Topic:
        topic = self.state.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic

    async def _change(self, change: Callable[[Controllership], Awaitable[T]]) -> T:
        """Runs one change in the controller's role."""
        async with self._turn:
            if self._role is None:
                raise KafkaError(ErrorCode.not_controller, "This broker is not the controller at the moment.")
            try:
                return await change(self._role)
            except ControllerMoved as error:
                self.resign()
                raise KafkaError(ErrorCode.not_controller) from error
            except MultiFailed as error:
                if isinstance(error.error, NodeExists):
                    raise KafkaError(ErrorCode.topic_already_exists, str(error)) from error
                raise
            except (ConnectionLost, SessionExpired) as error:
                raise KafkaError(
                    ErrorCode.request_timed_out, "ZooKeeper does not answer; the change may have been made."
                ) from error


def _encode_config(config: Mapping[str, str]) -> bytes:
    data = znodes.encode_config(config)
    if len(data) > _MAX_ZNODE_BYTES:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"The settings take {len(data)} bytes; ZooKeeper can hold {_MAX_ZNODE_BYTES} of a topic.",
        )
    return data


def _partition_state(
    replicas: tuple[BrokerId, ...], leadership: znodes.PartitionLeadership, stat: Stat
) -> PartitionState:
    return PartitionState(
        replicas=replicas,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=leadership.isr,
        partition_epoch=stat.version,
    )


def _leadership_op(change: LeadershipChange, controller_epoch: int) -> Op:
    leadership = znodes.PartitionLeadership(
        leader=change.leader,
        leader_epoch=change.leader_epoch,
        isr=change.isr,
        controller_epoch=controller_epoch,
    )
    path = znodes.partition_state_path(*change.partition)
    return SetData(path, leadership.encode(), change.before.partition_epoch)


def _given(config: Mapping[str, str | None]) -> dict[str, str]:
    missing = [name for name, value in config.items() if value is None]
    if missing:
        raise ConfigError(f"{missing[0]} has no value.")
    return {name: value for name, value in config.items() if value is not None}


def _check_partition_count(count: int) -> None:
    if not 0 < count <= MAX_PARTITIONS_AT_ONCE:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"{count} is no possible number of partitions; it has to be from 1 to {MAX_PARTITIONS_AT_ONCE}.",
        )
