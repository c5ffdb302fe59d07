"""What a cluster is made of: brokers, topics, partitions and who leads them. Immutable values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from kbus.config import Endpoint
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import NO_LEADER, BrokerId, LeaderEpoch

MAX_TOPIC_NAME: Final = 249
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    id: BrokerId
    endpoints: Mapping[str, Endpoint]
    """By listener name."""
    rack: str | None
    epoch: int
    """The czxid of its registration: the same id with a larger epoch has been away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The leadership of a partition, as the controller and the leader write it down."""

    replicas: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    """The version of the state's znode: it counts changes of leadership and of the in-sync set."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    id: UUID
    partitions: Mapping[int, PartitionState]
    config: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings, over the broker's."""


def check_topic_name(name: str) -> None:
    """Topic names become folder and znode names: nothing else may reach a disk or ZooKeeper."""
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = f"it cannot be {name!r}"
    elif len(name) > MAX_TOPIC_NAME:
        reason = f"it is longer than {MAX_TOPIC_NAME} characters"
    elif not _LEGAL_TOPIC_NAME.fullmatch(name):
        reason = "it has other characters than letters, digits, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name {name[:60]!r} is illegal: {reason}.")


def metric_name(topic: str) -> str:
    """Kafka refuses two topics that differ only in '.' and '_', which its metrics cannot tell apart."""
    return topic.replace(".", "_")
