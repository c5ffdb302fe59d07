"""What brokers say about the cluster, each asked for itself, and the one picture that comes out of it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbus.client.connection import Connection, Struct
from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import BrokerId, LeaderEpoch, TopicPartition

_METADATA_VERSION: Final = 12
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    id: BrokerId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_offline(self) -> bool:
        return self.leader is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    brokers: Mapping[BrokerId, BrokerAddress] = field(default_factory=dict)
    """Those that are in the cluster."""
    controller: BrokerId | None = None
    partitions: Mapping[TopicPartition, PartitionView] = field(default_factory=dict)
    unknown_topics: frozenset[str] = frozenset()
    """Asked for, and not there."""

    @property
    def under_replicated(self) -> list[TopicPartition]:
        return sorted(tp for tp, view in self.partitions.items() if view.is_under_replicated)

    @property
    def offline(self) -> list[TopicPartition]:
        return sorted(tp for tp, view in self.partitions.items() if view.is_offline)

    def led_by(self, broker: int) -> list[TopicPartition]:
        return sorted(tp for tp, view in self.partitions.items() if view.leader == broker)

    def replicated_by(self, broker: int) -> list[TopicPartition]:
        return sorted(tp for tp, view in self.partitions.items() if broker in view.replicas)


async def ask_metadata(
    connection: Connection, topics: Collection[str] | None = None, *, timeout_s: float
) -> ClusterView:
    """What one broker knows, of all topics or of those named. To ask never creates one."""
    answer = await connection.ask(
        ApiKey.METADATA,
        _METADATA_VERSION,
        topics=None
        if topics is None
        else [Struct("MetadataRequestTopic", name=topic, topic_id=None) for topic in sorted(topics)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        timeout_s=timeout_s,
    )
    return _view(answer)


def _view(answer: Entity) -> ClusterView:
    unknown = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
    return ClusterView(
        brokers={
            broker.node_id: BrokerAddress(
                id=BrokerId(broker.node_id), host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in answer.brokers
        },
        controller=None if answer.controller_id == _NOBODY else BrokerId(answer.controller_id),
        partitions={
            TopicPartition(topic.name, partition.partition_index): PartitionView(
                leader=None if partition.leader_id == _NOBODY else BrokerId(partition.leader_id),
                leader_epoch=LeaderEpoch(partition.leader_epoch),
                replicas=tuple(map(BrokerId, partition.replica_nodes)),
                isr=tuple(map(BrokerId, partition.isr_nodes)),
            )
            for topic in answer.topics
            for partition in topic.partitions
        },
        unknown_topics=frozenset(topic.name for topic in answer.topics if topic.error_code in unknown),
    )


def merged(answers: Mapping[BrokerId, ClusterView]) -> ClusterView:
    """One picture out of what each broker said.

    Of a partition the answer with the highest leader epoch counts: brokers learn of an election one after
    the other. Among those, the leader's own: changes of the ISR do not raise the epoch, and start there.
    Who is in the cluster is taken from the controller where it answered, as it is the first to know."""
    partitions: dict[TopicPartition, tuple[tuple[int, bool], PartitionView]] = {}
    for broker, answer in sorted(answers.items()):
        for partition, view in answer.partitions.items():
            rank = (view.leader_epoch, view.leader == broker)
            known = partitions.get(partition)
            if known is None or rank > known[0]:
                partitions[partition] = (rank, view)
    controller = _controller(answers)
    trusted: Iterable[ClusterView] = answers.values()
    if controller is not None and controller in answers:
        trusted = (answers[controller],)
    return ClusterView(
        brokers={id: address for answer in trusted for id, address in sorted(answer.brokers.items())},
        controller=controller,
        partitions={partition: view for partition, (_, view) in sorted(partitions.items())},
        unknown_topics=frozenset.intersection(*(answer.unknown_topics for answer in answers.values()))
        if answers
        else frozenset(),
    )


def _controller(answers: Mapping[BrokerId, ClusterView]) -> BrokerId | None:
    """Who says so of itself, else who is named most often."""
    named = [answer.controller for answer in answers.values() if answer.controller is not None]
    for broker, answer in sorted(answers.items()):
        if answer.controller == broker:
            return broker
    return max(sorted(set(named)), key=named.count, default=None)
