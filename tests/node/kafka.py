"""Small helpers over confluent-kafka for tests that are not about the client."""

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

TIMEOUT_S = 30.0


class Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(TIMEOUT_S)


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], *, key: bytes | None = None, **config: object
) -> list[int]:
    """Sends the values to partition 0 and returns their offsets; raises if one is not acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: object) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())  # type: ignore[attr-defined]

    for value in values:
        producer.produce(topic, value=value, key=key, partition=0, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors, errors
    return offsets


def read_all(bootstrap: str, topic: str) -> list[Read]:
    """Every record from the start of each partition to where it ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        metadata = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
        waiting = set(metadata.partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in waiting])
        records = []
        while waiting:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no more records of {topic}, but partitions {waiting} have not ended"
            error = message.error()
            if error is None:
                records.append(
                    Read(message.partition(), message.offset(), message.key(), message.value())  # type: ignore[arg-type]
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise AssertionError(error)
        return records
    finally:
        consumer.close()
