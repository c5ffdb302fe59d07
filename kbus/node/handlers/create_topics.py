"""CreateTopics, v2–v7: with settings, a manual assignment, or as a question only (validate_only)."""

import asyncio
from collections import Counter
from datetime import timedelta

from kbus.config import TopicConfig
from kbus.core.cluster import Topic
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.controller import NewTopic
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    return broker.spawn(_create_all(broker, context, request))


async def _create_all(broker: Broker, context: RequestContext, request: Entity) -> Entity:
    counts = Counter(item.name for item in request.topics)
    results = []
    for name, item in {item.name: item for item in request.topics}.items():
        await asyncio.sleep(0)  # a question about many topics waits for nothing, but others do
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Topic {name!r} is in the request twice.")
            topic = await broker.controller.create_topic(
                _new_topic(item), validate_only=request.validate_only
            )
            results.append(_created(broker, context, topic))
        except Exception as error:  # noqa: BLE001 - one topic's failure is that topic's answer
            code, message = describe_failure(error, f"creation of topic {name!r}")
            results.append(_failed(context, name, code, message))
    return context.schema.response(throttle_time=timedelta(0), topics=tuple(results))


def _new_topic(item: Entity) -> NewTopic:
    if len({a.partition_index for a in item.assignments}) != len(item.assignments):
        raise KafkaError(ErrorCode.invalid_replica_assignment, "A partition is assigned twice.")
    if item.assignments and (item.num_partitions != -1 or item.replication_factor != -1):
        raise KafkaError(
            ErrorCode.invalid_request,
            "With a manual assignment, partitions and replicas are counted from it; set both numbers to -1.",
        )
    return NewTopic(
        name=item.name,
        partitions=None if item.num_partitions == -1 else item.num_partitions,
        replication_factor=None if item.replication_factor == -1 else item.replication_factor,
        assignment={a.partition_index: tuple(a.broker_ids) for a in item.assignments},
        config={c.name: c.value for c in item.configs},
    )


def _created(broker: Broker, context: RequestContext, topic: Topic) -> Entity:
    config = TopicConfig(broker.config, topic.config)
    return context.schema.build(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=topic.id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(next(iter(topic.partitions.values())).replicas),
        configs=tuple(
            context.schema.build(
                "CreatableTopicConfigs",
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in config.describe()
        )
        if context.version >= 5
        else (),
    )


def _failed(context: RequestContext, name: str, code: ErrorCode, message: str | None) -> Entity:
    return context.schema.build(
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=code,
        error_message=message,
        configs=None,
    )
