"""The controller: creates and deletes topics, and says who leads their partitions.

What it decides is in `core` (placement, election); here it is written to ZooKeeper, each write fenced by
the controller's epoch, and then applied. One change is made at a time, in the order they were asked for.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from kbus.config import ConfigError, TopicConfig
from kbus.config import broker as settings
from kbus.config import topic as topic_settings
from kbus.core.cluster import PartitionState, Topic, check_topic_name, metric_name
from kbus.core.election import Recorded, elect_after_start
from kbus.core.placement import check_manual_assignment, place_replicas
from kbus.node.broker import Broker, DynamicConfig
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch
from kbus.zk import znodes
from kbus.zk.controller import ControllerMoved, Controllership, run_for_controller
from kbus.zk.store import (
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
    def __init__(self, broker: Broker, store: CoordinationStore) -> None:
        self._broker = broker
        self._store = store
        self._role: Controllership | None = None
        self._turn = asyncio.Lock()

    # ---- the role

    async def run_for_election(self) -> bool:
        """True if this node is the controller now; it has then taken over the cluster's state."""
        self._role = await run_for_controller(self._store, self._broker.id, self._broker.clock_ms())
        if self._role is None:
            return False
        log.info("controller of epoch %d", self._role.epoch)
        self._broker.metadata.controller_id = self._broker.id
        async with self._turn:
            await self._take_over(self._role)
        return True

    def resign(self) -> None:
        """Nothing is written in this role any more; ZooKeeper would refuse it if it were."""
        if self._role is not None:
            log.info("no longer controller of epoch %d", self._role.epoch)
        # Still named in Metadata: a client without a controller to ask waits, one that asks hears at once.
        self._role = None

    async def _take_over(self, role: Controllership) -> None:
        await self._load_dynamic_config()
        doomed = set(await self._store.children(znodes.DELETE_TOPICS))
        for name in await self._store.children(znodes.TOPICS):
            try:
                check_topic_name(name)
                if name in doomed:
                    await self._finish_deletion(name)
                else:
                    await self._broker.apply_topic(await self._load_topic(role, name))
            except (KafkaError, znodes.MalformedZnode) as error:
                # Unreadable metadata leaves the topic out and its files where they are.
                log.error("topic %r cannot be loaded from ZooKeeper and is left alone: %s", name, error)
        for name in doomed:
            await self._finish_deletion(name)

    async def _load_topic(self, role: Controllership, name: str) -> Topic:
        data, stat = await self._store.get(znodes.topic_path(name))
        assignment = znodes.TopicAssignment.decode(data)
        topic_id = assignment.topic_id
        if topic_id is None:
            topic_id = uuid.uuid4()
            named = znodes.TopicAssignment(
                topic_id=topic_id,
                partitions=assignment.partitions,
                adding_replicas=assignment.adding_replicas,
                removing_replicas=assignment.removing_replicas,
            )
            await role.write([SetData(znodes.topic_path(name), named.encode(), stat.version)])
        config = await self._load_config(znodes.topic_config_path(name))
        found = await asyncio.gather(*(self._recorded_state(name, index) for index in assignment.partitions))
        states = dict(zip(assignment.partitions, found, strict=True))
        partitions = await self._lead(role, name, assignment.partitions, states, config)
        return Topic(name=name, id=topic_id, partitions=partitions, config=config)

    async def _recorded_state(self, topic: str, index: int) -> tuple[znodes.PartitionLeadership, Stat] | None:
        try:
            data, stat = await self._store.get(znodes.partition_state_path(topic, index))
        except NoNode:
            return None
        return znodes.PartitionLeadership.decode(data), stat

    async def _lead(
        self,
        role: Controllership,
        topic: str,
        assignment: Assignment,
        recorded: Mapping[int, tuple[znodes.PartitionLeadership, Stat] | None],
        config: Mapping[str, str],
    ) -> dict[int, PartitionState]:
        """Elects leaders for the partitions that need one and writes them down, new partitions included."""
        registrations = {broker.id: broker.epoch for broker in self._broker.metadata.brokers.values()}
        unclean = TopicConfig.from_store(self._broker.config, config)[
            topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE
        ]
        states: dict[int, PartitionState] = {}
        ops: list[Op] = []
        missing = [index for index, state in recorded.items() if state is None]
        if missing and await self._store.exists(znodes.partitions_path(topic)) is None:
            ops.append(Create(znodes.partitions_path(topic)))
        for index, replicas in assignment.items():
            known = recorded.get(index)
            if known is not None and known[0].controller_epoch > role.epoch:
                raise ControllerMoved(
                    f"{topic}-{index} was written by controller {known[0].controller_epoch}"
                )
            elected = elect_after_start(
                replicas,
                Recorded(known[0].leader, known[0].isr, known[1].mzxid) if known else None,
                registrations,
                unclean_allowed=unclean,
            )
            if elected is None and known is not None:
                states[index] = PartitionState(
                    replicas=replicas,
                    leader=known[0].leader if known[0].leader in registrations else NO_LEADER,
                    leader_epoch=known[0].leader_epoch,
                    isr=known[0].isr,
                    partition_epoch=known[1].version,
                )
                continue
            leadership = znodes.PartitionLeadership(
                leader=elected.leader if elected else NO_LEADER,
                leader_epoch=LeaderEpoch(known[0].leader_epoch + 1 if known else NO_EPOCH + 1),
                isr=elected.isr if elected else replicas,
                controller_epoch=role.epoch,
            )
            if known is None:
                ops.append(Create(znodes.partition_path(topic, index)))
                ops.append(Create(znodes.partition_state_path(topic, index), leadership.encode()))
            else:
                ops.append(
                    SetData(znodes.partition_state_path(topic, index), leadership.encode(), known[1].version)
                )
            states[index] = PartitionState(
                replicas=replicas,
                leader=leadership.leader,
                leader_epoch=leadership.leader_epoch,
                isr=leadership.isr,
                partition_epoch=known[1].version + 1 if known else 0,
            )
        for start in range(0, len(ops), _OPS_PER_WRITE):
            await role.write(ops[start : start + _OPS_PER_WRITE])
        return states

    # ---- changes

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        return await self._change(lambda role: self._create_topic(role, new, validate_only))

    async def _create_topic(self, role: Controllership, new: NewTopic, validate_only: bool) -> Topic:
        broker = self._broker
        check_topic_name(new.name)
        if broker.metadata.topic(new.name) is not None:
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic {new.name!r} exists already.")
        for other in broker.metadata.topics():
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
        states = await self._lead(role, new.name, assignment, dict.fromkeys(assignment), config)
        created = Topic(name=new.name, id=topic_id, partitions=states, config=config)
        await broker.apply_topic(created)
        log.info("created topic %s with %d partitions", new.name, len(states))
        return created

    def _assignment(self, new: NewTopic) -> Assignment:
        live = sorted(self._broker.metadata.brokers)
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
            start=len(self._broker.metadata.topics()),
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
        live = sorted(self._broker.metadata.brokers)
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
        states = await self._lead(role, name, new, dict.fromkeys(new), topic.config)
        await self._broker.apply_topic(
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
        await self._broker.apply_topic(
            Topic(name=name, id=topic.id, partitions=topic.partitions, config=dict(config))
        )

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
        await self._broker.remove_topic(name)
        await self._finish_deletion(name)
        log.info("deleted topic %s", name)

    async def _finish_deletion(self, name: str) -> None:
        await self._broker.remove_topic(name)
        await delete_recursively(self._store, znodes.topic_path(name))
        await delete_recursively(self._store, znodes.topic_config_path(name))
        await delete_recursively(self._store, znodes.delete_topic_path(name))

    def _known(self, name: str) -> Topic:
        topic = self._broker.metadata.topic(name)
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
