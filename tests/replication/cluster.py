"""A cluster of real broker processes for tests."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.nodes import NodeProcess

PATIENCE_S = 60.0


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came to pass that {what}"
        time.sleep(0.02)


class Cluster:
    """`brokers` nodes with the ids 1, 2, …"""

    def __init__(self, folder: Path, zookeeper: str, brokers: int = 3) -> None:
        self.nodes = {
            number: NodeProcess(
                folder / f"node-{number}", zookeeper=zookeeper, settings={"broker.id": str(number)}
            )
            for number in range(1, brokers + 1)
        }

    def __enter__(self) -> "Cluster":
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.is_running:
                node.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(name, partitions, len(self.nodes), config=settings)
        admin.create_topics([new])[name].result(PATIENCE_S)
        self.wait_in_sync(name, len(self.nodes))

    def leader(self, topic: str, partition: int = 0) -> int:
        metadata = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, PATIENCE_S)
        return metadata.topics[topic].partitions[partition].leader

    def in_sync(self, topic: str) -> list[int]:
        """How many replicas each partition has in sync, as a broker that runs knows it."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, PATIENCE_S)
        return [len(partition.isrs) for partition in metadata.topics[topic].partitions.values()]

    def wait_in_sync(self, topic: str, count: int) -> None:
        eventually(
            lambda: (found := self.in_sync(topic)) != [] and set(found) == {count},
            f"{count} replicas of {topic} are in sync",
        )

    def log_bytes(self, topic: str, partition: int = 0) -> list[bytes]:
        """The log of each running replica, all segments in order."""
        return [
            b"".join(
                path.read_bytes() for path in sorted((node.log_dir / f"{topic}-{partition}").glob("*.log"))
            )
            for node in self.nodes.values()
            if node.is_running
        ]


class Acknowledged:
    """A producer that remembers what was acknowledged, and where."""

    def __init__(self, bootstrap: str, topic: str, **config: object) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "log_level": 0,
                **config,
            }
        )
        self.records: dict[tuple[int, int], bytes] = {}
        self.errors: list[str] = []
        self._number = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            value = b"record %d" % self._number
            self._number += 1
            self._producer.produce(self._topic, value=value, key=value, on_delivery=self._on_delivery)
            self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            position = (message.partition(), message.offset())  # type: ignore[attr-defined]
            self.records[position] = message.value()  # type: ignore[attr-defined]
