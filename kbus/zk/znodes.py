"""Kafka's znodes: where they are and what is in them.

Each class is the content of one kind of node, as JSON that Kafka and its tools read. Unknown fields are
ignored, as in Kafka; what cannot be read raises MalformedZnode, never a guess.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from kbus.config import Endpoint
from kbus.config.addresses import parse_endpoints
from kbus.types import BrokerId, LeaderEpoch, TopicPartition

T = TypeVar("T")

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
"""Its version is the number of broker ids generated so far; the data says nothing."""
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
CLUSTER_ID = "/cluster/id"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
DEFAULT_BROKER = "<default>"
"""In the place of a broker id: settings of all brokers."""

PERSISTENT_PATHS = (
    BROKER_IDS,
    TOPICS,
    BROKER_SEQUENCE,
    CONFIG_CHANGES,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    "/config/clients",
    "/config/users",
    "/config/ips",
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
)
"""What must be there before a broker registers."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(broker_id: int | str) -> str:
    return f"{BROKER_CONFIGS}/{broker_id}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


class MalformedZnode(ValueError):  # noqa: N818 - says what it is
    """The content of a node is not what belongs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """/brokers/ids/N, ephemeral. Its czxid is the broker epoch."""

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        content: dict[str, Any] = {
            "version": 5,
            # The first address once more, for clients of the time before there were several.
            "host": self.endpoints[0].host,
            "port": self.endpoints[0].port,
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "endpoints": [str(endpoint) for endpoint in self.endpoints],
            "listener_security_protocol_map": {endpoint.listener: "PLAINTEXT" for endpoint in self.endpoints},
            "features": {name: dict(versions) for name, versions in self.features.items()},
        }
        if self.rack is not None:
            content["rack"] = self.rack
        return _dump(content)

    @classmethod
    def decode(cls, data: bytes) -> "BrokerRegistration":
        def read(content: dict[str, Any]) -> "BrokerRegistration":
            if content["version"] < 2:
                endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", content["host"], content["port"]),)
            else:
                endpoints = parse_endpoints(",".join(content["endpoints"]))
            return cls(
                endpoints=endpoints,
                timestamp_ms=int(content["timestamp"]),
                rack=content.get("rack"),
                features=content.get("features") or {},
            )

        return _load(data, "a broker registration", read)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAssignment:
    """/brokers/topics/T: the replicas of each partition, the preferred leader first."""

    topic_id: UUID | None
    """None for a topic made by a Kafka before 2.8."""
    partitions: Mapping[int, tuple[BrokerId, ...]]
    adding_replicas: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        content: dict[str, Any] = {
            "version": 3,
            "partitions": _by_name(self.partitions),
            "adding_replicas": _by_name(self.adding_replicas),
            "removing_replicas": _by_name(self.removing_replicas),
        }
        if self.topic_id is not None:
            content["topic_id"] = encode_uuid(self.topic_id)
        return _dump(content)

    @classmethod
    def decode(cls, data: bytes) -> "TopicAssignment":
        def read(content: dict[str, Any]) -> "TopicAssignment":
            topic_id = content.get("topic_id")
            return cls(
                topic_id=None if topic_id is None else decode_uuid(topic_id),
                partitions=_by_number(content["partitions"]),
                adding_replicas=_by_number(content.get("adding_replicas") or {}),
                removing_replicas=_by_number(content.get("removing_replicas") or {}),
            )

        return _load(data, "a topic's assignment", read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLeadership:
    """/brokers/topics/T/partitions/P/state. The version of the node is the partition epoch."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: int

    def encode(self) -> bytes:
        return _dump(
            {
                "version": 1,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "controller_epoch": self.controller_epoch,
                "isr": list(self.isr),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> "PartitionLeadership":
        return _load(
            data,
            "a partition's state",
            lambda content: cls(
                leader=BrokerId(int(content["leader"])),
                leader_epoch=LeaderEpoch(int(content["leader_epoch"])),
                isr=_brokers(content["isr"]),
                controller_epoch=int(content["controller_epoch"]),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistration:
    """/controller, ephemeral."""

    broker_id: BrokerId
    timestamp_ms: int

    def encode(self) -> bytes:
        return _dump(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": -1,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> "ControllerRegistration":
        return _load(
            data,
            "the controller's registration",
            lambda content: cls(
                broker_id=BrokerId(int(content["brokerid"])), timestamp_ms=int(content["timestamp"])
            ),
        )


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise MalformedZnode(f"this is no controller epoch: {data[:60]!r}") from None


def encode_config(config: Mapping[str, str]) -> bytes:
    """/config/topics/T and /config/brokers/N."""
    return _dump({"version": 1, "config": dict(config)})


def decode_config(data: bytes) -> dict[str, str]:
    if not data:
        return {}

    def read(content: dict[str, Any]) -> dict[str, str]:
        config = content["config"]
        if not all(isinstance(value, str) for value in config.values()):
            raise TypeError("a value is not a text")
        return dict(config)

    return _load(data, "a configuration", read)


def encode_config_change(entity_path: str) -> bytes:
    """/config/changes/config_change_N: which configuration has changed, as in "topics/T" and "brokers/1"."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> str:
    return _load(data, "a notice of a changed configuration", lambda content: str(content["entity_path"]))


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """/isr_change_notification/isr_change_N and /admin/preferred_replica_election."""
    entries = [{"topic": item.topic, "partition": item.partition} for item in sorted(partitions)]
    return _dump({"version": 1, "partitions": entries})


def decode_partitions(data: bytes) -> frozenset[TopicPartition]:
    return _load(
        data,
        "a list of partitions",
        lambda content: frozenset(
            TopicPartition(str(item["topic"]), int(item["partition"])) for item in content["partitions"]
        ),
    )


def encode_reassignment(replicas: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> bytes:
    """/admin/reassign_partitions."""
    entries = [
        {"topic": item.topic, "partition": item.partition, "replicas": list(replicas[item])}
        for item in sorted(replicas)
    ]
    return _dump({"version": 1, "partitions": entries})


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    return _load(
        data,
        "a reassignment",
        lambda content: {
            TopicPartition(str(item["topic"]), int(item["partition"])): _brokers(item["replicas"])
            for item in content["partitions"]
        },
    )


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return _load(data, "the cluster's id", lambda content: str(content["id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the ids that were last given to a broker, both ends included."""

    broker_id: BrokerId
    first: int
    last: int

    def encode(self) -> bytes:
        return _dump(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> "ProducerIdBlock":
        return _load(
            data,
            "a block of producer ids",
            lambda content: cls(
                broker_id=BrokerId(int(content["broker"])),
                first=int(content["block_start"]),
                last=int(content["block_end"]),
            ),
        )


def encode_uuid(value: UUID) -> str:
    """As Kafka writes ids: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes, what: str, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        return read(json.loads(data))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise MalformedZnode(f"this is not {what} ({reason}): {data[:200]!r}") from None


def _by_name(replicas: Mapping[int, tuple[BrokerId, ...]]) -> dict[str, list[BrokerId]]:
    return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}


def _by_number(replicas: dict[str, list[int]]) -> dict[int, tuple[BrokerId, ...]]:
    return {int(partition): _brokers(replicas[partition]) for partition in sorted(replicas, key=int)}


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(broker_id)) for broker_id in ids)
