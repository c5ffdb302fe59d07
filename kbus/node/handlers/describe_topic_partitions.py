"""DescribeTopicPartitions, v0: topics page by page (KIP-966). Topics come in the order of their names."""

from datetime import timedelta
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.handlers.metadata import TOPIC_OPERATIONS, partition_fields
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import TopicPartition

_MAX_PARTITIONS: Final = 2000


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema, cursor = context.schema, request.cursor
    names = sorted(
        {item.name for item in request.topics} or {topic.name for topic in broker.metadata.topics()}
    )
    first_partition = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        first_partition = max(0, cursor.partition_index)
    room = min(max(1, request.response_partition_limit), _MAX_PARTITIONS)
    topics, next_cursor = [], None
    for name in names:
        start = first_partition if cursor is not None and name == cursor.topic_name else 0
        topic = broker.metadata.topic(name)
        if topic is None:
            topics.append(_unknown(context, name))
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= start]
        if indexes and not room:
            next_cursor = schema.build("Cursor", topic_name=name, partition_index=indexes[0])
            break
        shown, rest = indexes[:room], indexes[room:]
        room -= len(shown)
        topics.append(
            schema.build(
                "DescribeTopicPartitionsResponseTopic",
                error_code=ErrorCode.none,
                name=name,
                topic_id=topic.id,
                is_internal=False,
                partitions=tuple(
                    schema.build(
                        "DescribeTopicPartitionsResponsePartition",
                        partition_index=index,
                        eligible_leader_replicas=(),  # Java's client takes no null here
                        last_known_elr=(),
                        **partition_fields(broker, TopicPartition(name, index), topic.partitions[index]),
                    )
                    for index in shown
                ),
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if rest:
            next_cursor = schema.build("Cursor", topic_name=name, partition_index=rest[0])
            break
    return schema.response(throttle_time=timedelta(0), topics=tuple(topics), next_cursor=next_cursor)


def _unknown(context: RequestContext, name: str) -> Entity:
    return context.schema.build(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.unknown_topic_or_partition,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
    )
