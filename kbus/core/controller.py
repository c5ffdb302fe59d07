"""What a controller decides: who leads what, after brokers came, went, or asked to leave.

`ClusterState` is the controller's picture of the cluster, equal to what is in ZooKeeper but for what is
being written. Decisions are `LeadershipChange`s; the runner writes them, fenced and version-checked, and
only then applies them here with `record`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kbus.core.cluster import Broker, PartitionState, Topic
from kbus.core.election import Elected, elect_offline
from kbus.types import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipChange:
    """`before` is what the decision rests on; its partition epoch is the version that the write expects."""

    partition: TopicPartition
    before: PartitionState
    leader: BrokerId
    isr: tuple[BrokerId, ...]

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Every change by the controller begins a new epoch."""
        return LeaderEpoch(self.before.leader_epoch + 1)

    def after(self, partition_epoch: int) -> PartitionState:
        return replace(
            self.before,
            leader=self.leader,
            isr=self.isr,
            leader_epoch=self.leader_epoch,
            partition_epoch=partition_epoch,
        )


@dataclass(slots=True)
class ClusterState:
    """Owned by the controller's runner.

    A broker that is registered but known to be dead (its port refuses connections) is `suspected` in that
    registration: it counts as gone until it registers anew. One that asked to leave is `leaving`: it may
    follow, but neither lead nor be needed."""

    registered: dict[BrokerId, Broker] = field(default_factory=dict)
    suspected: dict[BrokerId, int] = field(default_factory=dict)
    leaving: dict[BrokerId, int] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)

    def is_live(self, broker_id: BrokerId) -> bool:
        broker = self.registered.get(broker_id)
        return broker is not None and self.suspected.get(broker_id) != broker.epoch

    def may_lead(self, broker_id: BrokerId) -> bool:
        return self.is_live(broker_id) and self.leaving.get(broker_id) != self.registered[broker_id].epoch

    @property
    def live(self) -> dict[BrokerId, Broker]:
        return {broker_id: broker for broker_id, broker in self.registered.items() if self.is_live(broker_id)}

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        for topic in self.topics.values():
            for index, state in topic.partitions.items():
                yield TopicPartition(topic.name, index), state

    def state_of(self, partition: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def record(self, partition: TopicPartition, state: PartitionState) -> None:
        topic = self.topics[partition.topic]
        self.topics[partition.topic] = replace(
            topic, partitions={**topic.partitions, partition.partition: state}
        )


UncleanAllowed = Callable[[str], bool]


def repair(state: ClusterState, unclean_allowed: UncleanAllowed) -> list[LeadershipChange]:
    """Leaders for all partitions whose leader cannot lead, and in-sync sets without those that are gone.

    The same rule serves a broker's failure, its return, its wish to leave, and a new controller's first
    look: it compares what is written with who is there. Linear in the number of partitions."""
    changes = []
    for partition, current in state.partitions():
        change = _repaired(state, partition, current, unclean_allowed)
        if change is not None:
            changes.append(change)
    return changes


def repair_one(
    state: ClusterState, partition: TopicPartition, unclean_allowed: UncleanAllowed
) -> LeadershipChange | None:
    current = state.state_of(partition)
    return None if current is None else _repaired(state, partition, current, unclean_allowed)


def _repaired(
    state: ClusterState, partition: TopicPartition, current: PartitionState, unclean_allowed: UncleanAllowed
) -> LeadershipChange | None:
    if current.leader != NO_LEADER and state.may_lead(current.leader):
        isr = _without_the_gone(state, current)
        if isr == current.isr:
            return None
        return LeadershipChange(partition=partition, before=current, leader=current.leader, isr=isr)
    elected = _elect(state, current, unclean_allowed(partition.topic))
    if elected is not None:
        if elected == Elected(current.leader, current.isr):
            return None
        return LeadershipChange(partition=partition, before=current, leader=elected.leader, isr=elected.isr)
    if current.leader == NO_LEADER or state.is_live(current.leader):
        return None  # nobody to lead; one that is leaving goes on until it is gone
    return LeadershipChange(partition=partition, before=current, leader=NO_LEADER, isr=current.isr)


def _without_the_gone(state: ClusterState, current: PartitionState) -> tuple[BrokerId, ...]:
    return tuple(member for member in current.isr if member == current.leader or state.may_lead(member))


def _elect(state: ClusterState, current: PartitionState, unclean: bool) -> Elected | None:
    candidates = {broker for broker in current.replicas if state.may_lead(broker)}
    elected = elect_offline(current.replicas, current.isr, candidates, unclean_allowed=False)
    if elected is not None or state.is_live(current.leader):
        return elected
    return elect_offline(current.replicas, current.isr, candidates, unclean_allowed=unclean)


def after_takeover(
    state: ClusterState, written: Mapping[TopicPartition, int], unclean_allowed: UncleanAllowed
) -> list[LeadershipChange]:
    """What a new controller changes first. `written` has the zxid at which each state was written down.

    A broker that registered after that has been away since, and may have lost the unflushed end of its log:
    it does not stay in the in-sync set of a leader that was there all the time, and it does not lead before
    one that was. If nobody was (the whole cluster was down), those in the set are equal, and the first of
    the assignment leads, in a new epoch."""
    changes = []
    for partition, current in state.partitions():
        zxid = written.get(partition)
        away = {
            member
            for member in current.isr
            if zxid is not None and member in state.registered and state.registered[member].epoch > zxid
        }
        stable = tuple(member for member in current.isr if member not in away)
        if current.leader in stable and state.may_lead(current.leader):
            isr = tuple(member for member in stable if state.may_lead(member))
            if isr != current.isr:
                changes.append(
                    LeadershipChange(partition=partition, before=current, leader=current.leader, isr=isr)
                )
            continue
        candidates = {member for member in stable if state.may_lead(member)}
        elected = elect_offline(current.replicas, stable, candidates, unclean_allowed=False)
        if elected is None and current.leader in away:
            everybody = {member for member in current.isr if state.may_lead(member)}
            elected = elect_offline(current.replicas, current.isr, everybody, unclean_allowed=False)
        if elected is not None:
            changes.append(
                LeadershipChange(partition=partition, before=current, leader=elected.leader, isr=elected.isr)
            )
            continue
        change = _repaired(state, partition, current, unclean_allowed)
        if change is not None:
            changes.append(change)
    return changes


def first_leadership(state: ClusterState, replicas: tuple[BrokerId, ...]) -> Elected | None:
    """Of a new partition: all its live replicas are in sync, having nothing."""
    live = tuple(replica for replica in replicas if state.may_lead(replica))
    return Elected(live[0], live) if live else None


def failed(state: ClusterState, broker: BrokerId) -> list[LeadershipChange]:
    """After a bounce: the broker is there again, but not as the one that was in these in-sync sets."""
    changes = []
    for partition, current in state.partitions():
        if broker not in current.isr:
            continue
        others = tuple(member for member in current.isr if member != broker)
        if current.leader == broker:
            candidates = {member for member in others if state.may_lead(member)}
            elected = elect_offline(current.replicas, others, candidates, unclean_allowed=False)
            if elected is None:
                # The last one in sync stays in the set, without leading: only it has all the records.
                elected = Elected(NO_LEADER, current.isr)
            changes.append(
                LeadershipChange(partition=partition, before=current, leader=elected.leader, isr=elected.isr)
            )
        elif others:
            changes.append(
                LeadershipChange(partition=partition, before=current, leader=current.leader, isr=others)
            )
    return changes


def prefer(state: ClusterState, partitions: Iterable[TopicPartition]) -> list[LeadershipChange]:
    """Back to the first of the assignment, where it is alive and in sync."""
    changes = []
    for partition in partitions:
        current = state.state_of(partition)
        if current is None:
            continue
        preferred = current.replicas[0]
        if preferred != current.leader and preferred in current.isr and state.may_lead(preferred):
            changes.append(
                LeadershipChange(partition=partition, before=current, leader=preferred, isr=current.isr)
            )
    return changes
