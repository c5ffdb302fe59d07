"""kafka-python."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from .client import LONG_WAIT_MS, TIMEOUT_S, Place, RefusedError, Sent, Stored, in_order

with warnings.catch_warnings():
    # It reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.codec
    import kafka.errors

__all__ = ["KafkaPython", "kafka"]

_LOG_APPEND_TIME = 1


class KafkaPython:
    name = "kafka-python"
    codecs: tuple[str, ...] = (
        "none",
        "gzip",
        *(["snappy"] if kafka.codec.has_snappy() else []),
        *(["lz4"] if kafka.codec.has_lz4() else []),
        *(["zstd"] if kafka.codec.has_zstd() else []),
    )

    def takes(self, record: Sent) -> bool:
        has_content = record.key is not None or record.value is not None
        return has_content and all(value is not None for _, value in record.headers)

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
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=20,
            batch_size=batch_bytes,
            max_request_size=max_request_bytes,
        )
        with closing(producer):
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            try:
                acknowledged = [future.get(TIMEOUT_S) for future in futures]
            except kafka.errors.BrokerResponseError as error:
                raise RefusedError(error.errno) from error
        return [Place(item.partition, item.offset) for item in acknowledged]

    def read(self, bootstrap: str, topic: str, *, fetch_bytes: int = 1_048_576) -> list[Stored]:
        options = {"fetch_max_bytes": fetch_bytes, "max_partition_fetch_bytes": fetch_bytes}
        with closing(_consumer(bootstrap, **options)) as consumer:
            partitions = [kafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            records: list[Stored] = []
            deadline = time.monotonic() + TIMEOUT_S
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                assert time.monotonic() < deadline, f"{topic} was not read to its end, {ends}"
                records += _poll(consumer)
            return in_order(records)

    def bounds(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        with closing(_consumer(bootstrap)) as consumer:
            asked = kafka.TopicPartition(topic, partition)
            return consumer.beginning_offsets([asked])[asked], consumer.end_offsets([asked])[asked]

    def offsets_at(self, bootstrap: str, topic: str, timestamps: dict[int, int]) -> dict[int, int | None]:
        with closing(_consumer(bootstrap)) as consumer:
            asked = {kafka.TopicPartition(topic, partition): time for partition, time in timestamps.items()}
            found = consumer.offsets_for_times(asked)
            return {item.partition: place.offset if place else None for item, place in found.items()}

    def read_from(self, bootstrap: str, topic: str, partition: int, offset: int) -> Stored:
        with closing(_consumer(bootstrap)) as consumer:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return _poll(consumer)[0]

    def wait_for_record(self, bootstrap: str, topic: str, send: Callable[[], object]) -> Stored:
        options = {"fetch_max_wait_ms": LONG_WAIT_MS, "request_timeout_ms": 2 * LONG_WAIT_MS}
        with closing(_consumer(bootstrap, **options)) as consumer:
            place = kafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            assert not consumer.poll(timeout_ms=500)
            send()
            return _poll(consumer)[0]


def _consumer(bootstrap: str, **options: object) -> Any:
    return kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", **options)


def _poll(consumer: Any) -> list[Stored]:
    polled = consumer.poll(timeout_ms=TIMEOUT_S * 1000, max_records=10_000)
    return [
        Stored(
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(record.headers),
            record.timestamp_type == _LOG_APPEND_TIME,
        )
        for records in polled.values()
        for record in records
    ]
