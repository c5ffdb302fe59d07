"""confluent-kafka (librdkafka)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from .client import LONG_WAIT_MS, TIMEOUT_S, Place, RefusedError, Sent, Stored, in_order

_CHOOSE_PARTITION = -1


class ConfluentKafka:
    name = "confluent-kafka"
    codecs: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")

    def takes(self, record: Sent) -> bool:
        return True

    def send(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = False,
        batch_bytes: int = 1_000_000,
        max_request_bytes: int = 1_048_576,
    ) -> list[Place]:
        producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 20,
                "batch.size": batch_bytes,
                "message.max.bytes": max_request_bytes,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        places: dict[int, Place] = {}
        errors: list[KafkaError] = []

        def on_delivery(index: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                places[index] = Place(message.partition(), message.offset())

        for index, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=_CHOOSE_PARTITION if record.partition is None else record.partition,
                on_delivery=lambda error, message, index=index: on_delivery(index, error, message),
                **({} if record.timestamp is None else {"timestamp": record.timestamp}),
            )
        assert producer.flush(TIMEOUT_S) == 0
        if errors:
            raise RefusedError(errors[0].code())
        return [places[index] for index in range(len(records))]

    def read(self, bootstrap: str, topic: str, *, fetch_bytes: int = 1_048_576) -> list[Stored]:
        # It tells the end of a partition once the node has answered that there is no more.
        options = {
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.message.max.bytes": fetch_bytes,
        }
        with _consumer(bootstrap, **options) as consumer:
            waiting = set(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in waiting])
            records = []
            while waiting:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"partitions {waiting} of {topic} did not reach their end"
                error = message.error()
                if error is None:
                    records.append(_stored(message))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting.discard(message.partition())
            return in_order(records)

    def bounds(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        with _consumer(bootstrap) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
            return low, high

    def offsets_at(self, bootstrap: str, topic: str, timestamps: dict[int, int]) -> dict[int, int | None]:
        with _consumer(bootstrap) as consumer:
            asked = [TopicPartition(topic, partition, time) for partition, time in timestamps.items()]
            found = consumer.offsets_for_times(asked, TIMEOUT_S)
            return {item.partition: None if item.offset == OFFSET_END else item.offset for item in found}

    def read_from(self, bootstrap: str, topic: str, partition: int, offset: int) -> Stored:
        with _consumer(bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return _stored(consumer.poll(TIMEOUT_S))

    def wait_for_record(self, bootstrap: str, topic: str, send: Callable[[], object]) -> Stored:
        options = {"fetch.wait.max.ms": LONG_WAIT_MS, "socket.timeout.ms": 2 * LONG_WAIT_MS}
        with _consumer(bootstrap, **options) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            assert consumer.poll(0.5) is None
            send()
            return _stored(consumer.poll(TIMEOUT_S))


@contextmanager
def _consumer(bootstrap: str, **options: object) -> Iterator[Any]:
    """librdkafka wants a group's name even from those who never join it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **options,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _stored(message: Message | None) -> Stored:
    assert message is not None, "no record arrived"
    assert message.error() is None, message.error()
    kind, timestamp = message.timestamp()
    read: Any = message
    return Stored(
        read.partition(),
        read.offset(),
        timestamp,
        read.key(),
        read.value(),
        tuple(read.headers() or ()),
        kind == TIMESTAMP_LOG_APPEND_TIME,
    )
