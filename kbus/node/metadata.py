"""What this node knows of the cluster: the answer to every client's first question."""

from uuid import UUID

from kbus.config import Endpoint
from kbus.core.cluster import Broker, Topic
from kbus.types import NO_LEADER, BrokerId


class MetadataCache:
    """Owned by the loop; the values in it are immutable and replaced whole."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.controller_id: BrokerId = NO_LEADER
        self.brokers: dict[BrokerId, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}

    def replace_brokers(self, brokers: dict[BrokerId, Broker]) -> None:
        self.brokers = dict(brokers)

    def put_topic(self, topic: Topic) -> None:
        known = self._topics.get(topic.name)
        if known is not None and known.id != topic.id:
            self._names.pop(known.id, None)
        self._topics[topic.name] = topic
        self._names[topic.id] = topic.name

    def remove_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.id, None)

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def topics(self) -> list[Topic]:
        return [self._topics[name] for name in sorted(self._topics)]

    def endpoints(self, listener: str) -> dict[BrokerId, Endpoint]:
        """Brokers reachable through the listener that a client came by."""
        return {
            broker.id: broker.endpoints[listener]
            for broker in self.brokers.values()
            if listener in broker.endpoints
        }

    def is_alive(self, broker_id: BrokerId) -> bool:
        return broker_id in self.brokers
