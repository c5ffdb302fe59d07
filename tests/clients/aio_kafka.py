"""aiokafka, each use in an event loop of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiokafka
from aiokafka.errors import BrokerResponseError

from .client import LONG_WAIT_MS, TIMEOUT_S, Place, RefusedError, Sent, Stored, in_order

_T = TypeVar("_T")
_LOG_APPEND_TIME = 1


class AioKafka:
    name = "aiokafka"
    codecs: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")

    def takes(self, record: Sent) -> bool:
        return record.key is not None or record.value is not None

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
        async def send() -> list[Place]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all",
                linger_ms=20,
                max_batch_size=batch_bytes,
                max_request_size=max_request_bytes,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                acknowledged = await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)
            except BrokerResponseError as error:
                raise RefusedError(error.errno) from error
            finally:
                await producer.stop()
            return [Place(item.partition, item.offset) for item in acknowledged]

        return asyncio.run(send())

    def read(self, bootstrap: str, topic: str, *, fetch_bytes: int = 1_048_576) -> list[Stored]:
        async def read(consumer: Any) -> list[Stored]:
            # Without a group it learns of a topic only when it is told to read it.
            await consumer._client.force_metadata_update()
            partitions = [aiokafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(partitions)
            records: list[Stored] = []
            async with asyncio.timeout(TIMEOUT_S):
                while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                    records += await _poll(consumer)
            return in_order(records)

        return _consume(read, bootstrap, fetch_max_bytes=fetch_bytes, max_partition_fetch_bytes=fetch_bytes)

    def bounds(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        async def bounds(consumer: Any) -> tuple[int, int]:
            asked = aiokafka.TopicPartition(topic, partition)
            first = await consumer.beginning_offsets([asked])
            end = await consumer.end_offsets([asked])
            return first[asked], end[asked]

        return _consume(bounds, bootstrap)

    def offsets_at(self, bootstrap: str, topic: str, timestamps: dict[int, int]) -> dict[int, int | None]:
        async def offsets_at(consumer: Any) -> dict[int, int | None]:
            asked = {aiokafka.TopicPartition(topic, index): time for index, time in timestamps.items()}
            found = await consumer.offsets_for_times(asked)
            return {item.partition: place.offset if place else None for item, place in found.items()}

        return _consume(offsets_at, bootstrap)

    def read_from(self, bootstrap: str, topic: str, partition: int, offset: int) -> Stored:
        async def read_from(consumer: Any) -> Stored:
            place = aiokafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return (await _poll(consumer))[0]

        return _consume(read_from, bootstrap)

    def wait_for_record(self, bootstrap: str, topic: str, send: Callable[[], object]) -> Stored:
        async def wait_for_record(consumer: Any) -> Stored:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            assert not await consumer.getmany(timeout_ms=500)
            await asyncio.to_thread(send)
            return (await _poll(consumer))[0]

        options = {"fetch_max_wait_ms": LONG_WAIT_MS, "request_timeout_ms": 2 * LONG_WAIT_MS}
        return _consume(wait_for_record, bootstrap, **options)


@asynccontextmanager
async def _consumer(bootstrap: str, **options: object) -> AsyncIterator[Any]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", **options)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def _consume(use: Callable[[Any], Awaitable[_T]], bootstrap: str, **options: object) -> _T:
    async def consume() -> _T:
        async with _consumer(bootstrap, **options) as consumer:
            return await use(consumer)

    return asyncio.run(consume())


async def _poll(consumer: Any) -> list[Stored]:
    polled = await consumer.getmany(timeout_ms=int(TIMEOUT_S * 1000), max_records=10_000)
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
