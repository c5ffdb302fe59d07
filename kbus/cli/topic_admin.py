"""What the topic commands ask of a cluster, with refusals as sentences."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, but not marked as exported
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kbus.cli.kafka import (
    UNKNOWN_TOPIC,
    UnknownTopicError,
    admin_client,
    error_of,
    explain,
    refused_properties,
)
from kbus.cli.output import CliError

_REQUEST_TIMEOUT_S = 30.0
_BROKER_DEFAULT = -1
_NO_ID = "A" * 22
"""Sixteen zero bytes in base64: the broker is older than topic ids."""

T = TypeVar("T")


class TopicExistsError(CliError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"Topic {topic!r} already exists.", "Add --if-not-exists if that is all right.")


class Partition(NamedTuple):
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]


class Topic(NamedTuple):
    topic: str
    topic_id: str | None
    partitions: list[Partition]
    configs: dict[str, str]
    """Only those set for the topic itself."""


class TopicAdmin:
    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        self._servers = servers
        try:
            self._client = admin_client(servers, properties)
        except KafkaException as error:
            raise refused_properties(error) from None

    def create(
        self,
        topic: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        assignment: Sequence[Sequence[int]] | None,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> None:
        if assignment is not None:
            placement: dict[str, Any] = {
                "num_partitions": len(assignment),
                "replica_assignment": [list(replicas) for replicas in assignment],
            }
        else:
            placement = {
                "num_partitions": _BROKER_DEFAULT if partitions is None else partitions,
                "replication_factor": _BROKER_DEFAULT if replication_factor is None else replication_factor,
            }
        new = NewTopic(topic, config=dict(configs), **placement)
        futures = self._client.create_topics(
            [new], request_timeout=_REQUEST_TIMEOUT_S, validate_only=validate_only
        )
        self._result(futures[topic], "create", topic)

    def replicas(self) -> dict[str, dict[int, list[int]]]:
        """Every topic with the brokers of each of its partitions."""
        try:
            topics = self._client.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise explain(error, "list the topics", servers=self._servers) from None
        return {
            name: {number: list(partition.replicas) for number, partition in topic.partitions.items()}
            for name, topic in sorted(topics.items())
        }

    def describe(self, topics: Iterable[str], *, skip_missing: bool) -> list[Topic]:
        names = list(dict.fromkeys(topics))
        if not names:
            return []
        futures = self._client.describe_topics(TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S)
        found = {}
        for name in names:
            try:
                found[name] = self._result(futures[name], "describe", name)
            except UnknownTopicError:
                if not skip_missing:
                    raise
        configs = self._configs(list(found))
        return [_topic(name, description, configs[name]) for name, description in found.items()]

    def add_partitions(
        self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> None:
        """`assignment` is that of the new partitions alone."""
        placement: dict[str, Any] = {}
        if assignment is not None:
            placement["replica_assignment"] = [list(replicas) for replicas in assignment]
        futures = self._client.create_partitions(
            [NewPartitions(topic, total, **placement)],
            request_timeout=_REQUEST_TIMEOUT_S,
            validate_only=validate_only,
        )
        self._result(futures[topic], "add partitions to", topic)

    def change_configs(
        self, topic: str, *, changes: Mapping[str, str], deletions: Iterable[str], validate_only: bool
    ) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changes.items()
        ]
        entries += [
            ConfigEntry(name, "", incremental_operation=AlterConfigOpType.DELETE) for name in deletions
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        futures = self._client.incremental_alter_configs(
            [resource], request_timeout=_REQUEST_TIMEOUT_S, validate_only=validate_only
        )
        self._result(futures[resource], "change the settings of", topic)

    def delete(self, topics: Iterable[str]) -> dict[str, CliError | None]:
        """What became of each topic: None where it was deleted."""
        outcomes: dict[str, CliError | None] = {}
        for topic, future in self._client.delete_topics(
            list(dict.fromkeys(topics)), request_timeout=_REQUEST_TIMEOUT_S
        ).items():
            try:
                self._result(future, "delete", topic)
                outcomes[topic] = None
            except CliError as error:
                outcomes[topic] = error
        return outcomes

    def _configs(self, topics: list[str]) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = {ConfigResource(ResourceType.TOPIC, topic): topic for topic in topics}
        futures = self._client.describe_configs(list(resources), request_timeout=_REQUEST_TIMEOUT_S)
        configs = {}
        for resource, future in futures.items():
            entries = self._result(future, "read the settings of", resource.name)
            configs[resource.name] = {
                name: "" if entry.value is None else entry.value
                for name, entry in sorted(entries.items())
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            }
        return configs

    def _result(self, future: "Future[T]", doing: str, topic: str) -> T:
        try:
            return future.result(_REQUEST_TIMEOUT_S + 5)
        except KafkaException as error:
            code = error_of(error).code()
            if code in UNKNOWN_TOPIC:
                raise UnknownTopicError(topic, self._servers) from None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(topic) from None
            raise explain(error, f"{doing} topic {topic!r}", servers=self._servers) from None


def _topic(name: str, description: Any, configs: dict[str, str]) -> Topic:
    # librdkafka writes plain base64; Kafka, ZooKeeper and partition.metadata have the form for URLs.
    topic_id = str(description.topic_id).replace("+", "-").replace("/", "_")
    return Topic(
        topic=name,
        topic_id=None if topic_id == _NO_ID else topic_id,
        partitions=[
            Partition(
                partition=partition.id,
                leader=None if partition.leader is None or partition.leader.id < 0 else partition.leader.id,
                replicas=[node.id for node in partition.replicas],
                isr=[node.id for node in partition.isr],
            )
            for partition in sorted(description.partitions, key=lambda partition: int(partition.id))
        ],
        configs=configs,
    )
