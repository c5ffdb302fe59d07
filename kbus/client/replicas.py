"""How far each replica of each partition is: asked of every broker for itself."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from kbus.client.connection import Connection, Struct
from kbus.client.metadata import BrokerAddress, ClusterView
from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from kbus.types import BrokerId, Offset, TopicPartition

_LIST_OFFSETS_VERSION: Final = 7
_LATEST: Final = -1
_AS_CONSUMER: Final = -1
_AS_DEBUGGER: Final = -2
"""Kafka's "debugging consumer": followers answer it, too, and "latest" is the log's end for it, where it is
the high watermark for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Of one partition. What nobody told is not there."""

    high_watermark: Offset | None = None
    log_ends: Mapping[BrokerId, Offset] = field(default_factory=dict)


async def positions(
    view: ClusterView, partitions: Iterable[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, Positions]:
    """The high watermark as the leader has it, and where each replica's log ends. A broker that does not
    answer leaves gaps, no error."""
    wanted = list(partitions)

    async def ask_one(broker: BrokerAddress) -> tuple[dict[TopicPartition, Offset], ...]:
        held = [tp for tp in wanted if broker.id in view.partitions[tp].replicas]
        led = [tp for tp in wanted if view.partitions[tp].leader == broker.id]
        if not held:
            return {}, {}
        try:
            connection = await Connection.open(broker.host, broker.port, timeout_s=timeout_s)
        except OSError:
            return {}, {}
        try:
            # The watermark first: records that arrive meanwhile then never make it exceed a log's end.
            watermarks = await _latest(connection, led, _AS_CONSUMER, timeout_s)
            return watermarks, await _latest(connection, held, _AS_DEBUGGER, timeout_s)
        except OSError:
            return {}, {}
        finally:
            connection.abort()

    brokers = list(view.brokers.values())
    answers = await asyncio.gather(*map(ask_one, brokers))
    watermarks = {tp: offset for led, _ in answers for tp, offset in led.items()}
    return {
        tp: Positions(
            high_watermark=watermarks.get(tp),
            log_ends={
                broker.id: held[tp] for broker, (_, held) in zip(brokers, answers, strict=True) if tp in held
            },
        )
        for tp in wanted
    }


async def _latest(
    connection: Connection, partitions: list[TopicPartition], replica_id: int, timeout_s: float
) -> dict[TopicPartition, Offset]:
    if not partitions:
        return {}
    by_topic: dict[str, list[Struct]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(
            Struct("ListOffsetsPartition", partition_index=partition, timestamp=_LATEST)
        )
    answer = await connection.ask(
        ApiKey.LIST_OFFSETS,
        _LIST_OFFSETS_VERSION,
        replica_id=replica_id,
        isolation_level=0,
        timeout=timedelta(seconds=timeout_s),
        topics=[
            Struct("ListOffsetsTopic", name=topic, partitions=entries) for topic, entries in by_topic.items()
        ],
        timeout_s=timeout_s,
    )
    return {
        TopicPartition(topic.name, partition.partition_index): Offset(partition.offset)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code is ErrorCode.none
    }
