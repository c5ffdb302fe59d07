"""The administration clients of the three libraries behind one face."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Protocol, TypeVar

import confluent_kafka
import confluent_kafka.admin
from aiokafka import admin as aiokafka_admin
from aiokafka.errors import BrokerResponseError as AioKafkaError
from aiokafka.structs import TopicPartition as AioTopicPartition

from .client import TIMEOUT_S, RefusedError
from .kafka_python import kafka

confluent_admin: Any = confluent_kafka.admin
"""Its stubs leave out what it takes from its C module."""
_T = TypeVar("_T")


class Admin(Protocol):
    """Each call raises RefusedError with the protocol's code for what the node refuses."""

    name: str
    replaces_config: bool
    """Whether its alter_config (AlterConfigs) resets what it does not name (IncrementalAlterConfigs: not)."""

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None: ...

    def topics(self) -> set[str]: ...

    def leaders(self, topic: str) -> dict[int, int]:
        """Of each partition."""
        ...

    def config(self, topic: str) -> dict[str, str | None]: ...

    def broker_config(self, broker_id: int) -> dict[str, str | None]: ...

    def alter_config(self, topic: str, config: dict[str, str]) -> None: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Returns the partition's new start."""
        ...

    def cluster(self) -> tuple[list[int], int]:
        """(ids of the brokers, id of the controller)."""
        ...

    def delete(self, topic: str) -> None: ...


class ConfluentAdmin:
    name = "confluent-kafka"
    replaces_config = False

    def __init__(self, bootstrap: str) -> None:
        self._admin: Any = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = confluent_admin.NewTopic(topic, partitions, 1, config=config)
        self._result(self._admin.create_topics([new]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def leaders(self, topic: str) -> dict[int, int]:
        names = confluent_kafka.TopicCollection([topic])
        found = self._result(self._admin.describe_topics(names))
        return {partition.id: partition.leader.id for partition in found.partitions}

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe(confluent_admin.ResourceType.TOPIC, topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._describe(confluent_admin.ResourceType.BROKER, str(broker_id))

    def _describe(self, kind: Any, name: str) -> dict[str, str | None]:
        resource = confluent_admin.ConfigResource(kind, name)
        entries = self._result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_config(self, topic: str, config: dict[str, str]) -> None:
        entries = [
            confluent_admin.ConfigEntry(
                name, value, incremental_operation=confluent_admin.AlterConfigOpType.SET
            )
            for name, value in config.items()
        ]
        resource = confluent_admin.ConfigResource(
            confluent_admin.ResourceType.TOPIC, topic, incremental_configs=entries
        )
        self._result(self._admin.incremental_alter_configs([resource]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._result(self._admin.create_partitions([confluent_admin.NewPartitions(topic, total)]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = confluent_kafka.TopicPartition(topic, partition, before)
        start: int = self._result(self._admin.delete_records([place])).low_watermark
        return start

    def cluster(self) -> tuple[list[int], int]:
        found = self._admin.describe_cluster().result(TIMEOUT_S)
        return [node.id for node in found.nodes], found.controller.id

    def delete(self, topic: str) -> None:
        self._result(self._admin.delete_topics([topic]))

    def _result(self, futures: dict[Any, "Future[Any]"]) -> Any:
        [future] = futures.values()
        try:
            return future.result(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            raise RefusedError(error.args[0].code()) from error


class KafkaPythonAdmin:
    name = "kafka-python"
    replaces_config = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": config}}
        self._use(lambda admin: admin.create_topics(new))

    def topics(self) -> set[str]:
        return self._use(lambda admin: set(admin.list_topics()))

    def leaders(self, topic: str) -> dict[int, int]:
        [found] = self._use(lambda admin: admin.describe_topics([topic]))
        return {partition["partition_index"]: partition["leader_id"] for partition in found["partitions"]}

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe("topic", topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._describe("broker", str(broker_id))

    def _describe(self, kind: str, name: str) -> dict[str, str | None]:
        resource = kafka.admin.ConfigResource(kind, name)
        found = self._use(lambda admin: admin.describe_configs([resource], config_filter="all"))
        return {key: entry["value"] for key, entry in found[kind][name].items()}

    def alter_config(self, topic: str, config: dict[str, str]) -> None:
        resource = kafka.admin.ConfigResource("topic", topic, config)
        answer = self._use(lambda admin: admin.alter_configs([resource], raise_on_unknown=False))
        if answer["topic"][topic] != "OK":
            code = int(answer["topic"][topic].partition("[Error ")[2].partition("]")[0])
            raise RefusedError(code)

    def add_partitions(self, topic: str, total: int) -> None:
        self._use(lambda admin: admin.create_partitions({topic: total}))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = kafka.TopicPartition(topic, partition)
        start: int = self._use(lambda admin: admin.delete_records({place: before}))[place]["low_watermark"]
        return start

    def cluster(self) -> tuple[list[int], int]:
        found = self._use(lambda admin: admin.describe_cluster())
        return [broker["broker_id"] for broker in found["brokers"]], found["controller_id"]

    def delete(self, topic: str) -> None:
        self._use(lambda admin: admin.delete_topics([topic]))

    def _use(self, action: Callable[[Any], _T]) -> _T:
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
            try:
                return action(admin)
            except kafka.errors.BrokerResponseError as error:
                raise RefusedError(error.errno) from error


class AioKafkaAdmin:
    name = "aiokafka"
    replaces_config = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = aiokafka_admin.NewTopic(topic, partitions, 1, topic_configs=config)
        _check(self._use(lambda admin: admin.create_topics([new])).topic_errors[0][1])

    def topics(self) -> set[str]:
        return set(self._use(lambda admin: admin.list_topics()))

    def leaders(self, topic: str) -> dict[int, int]:
        [found] = self._use(lambda admin: admin.describe_topics([topic]))
        return {partition["partition"]: partition["leader"] for partition in found["partitions"]}

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe(aiokafka_admin.config_resource.ConfigResourceType.TOPIC, topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._describe(aiokafka_admin.config_resource.ConfigResourceType.BROKER, str(broker_id))

    def _describe(self, kind: Any, name: str) -> dict[str, str | None]:
        resource = aiokafka_admin.config_resource.ConfigResource(kind, name)
        [found] = self._use(lambda admin: admin.describe_configs([resource]))
        code, _, _, _, entries = found.resources[0]
        _check(code)
        return {entry[0]: entry[1] for entry in entries}

    def alter_config(self, topic: str, config: dict[str, str]) -> None:
        kind = aiokafka_admin.config_resource.ConfigResourceType.TOPIC
        resource = aiokafka_admin.config_resource.ConfigResource(kind, topic, config)
        _check(self._use(lambda admin: admin.alter_configs([resource]))[0].resources[0][0])

    def add_partitions(self, topic: str, total: int) -> None:
        new = {topic: aiokafka_admin.NewPartitions(total)}
        self._use(lambda admin: admin.create_partitions(new))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = AioTopicPartition(topic, partition)
        wanted = {place: aiokafka_admin.RecordsToDelete(before_offset=before)}
        start: int = self._use(lambda admin: admin.delete_records(wanted))[place]
        return start

    def cluster(self) -> tuple[list[int], int]:
        found = self._use(lambda admin: admin.describe_cluster())
        return [broker["node_id"] for broker in found["brokers"]], found["controller_id"]

    def delete(self, topic: str) -> None:
        _check(self._use(lambda admin: admin.delete_topics([topic])).topic_error_codes[0][1])

    def _use(self, action: Callable[[Any], Awaitable[Any]]) -> Any:
        async def use() -> Any:
            admin = aiokafka_admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await action(admin)
            except AioKafkaError as error:
                raise RefusedError(error.errno) from error
            finally:
                await admin.close()

        return asyncio.run(use())


def _check(code: int) -> None:
    if code:
        raise RefusedError(code)
