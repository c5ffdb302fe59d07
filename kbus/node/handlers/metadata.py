"""Metadata, v0–v13: brokers, controller, and topics by name or (v10+) by id.

A topic that does not exist is created if client and broker both allow it; the answer then waits for it.
"""

from datetime import timedelta
from typing import Final
from uuid import UUID

from kbus.config import broker as settings
from kbus.core.cluster import PartitionState, Topic
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.controller import NewTopic
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import TopicPartition

NO_OPERATIONS: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << op for op in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << op for op in (5, 7, 8, 9, 10, 11, 12))
"""Without an authorizer everybody may do everything there is (Kafka's AclOperation numbers)."""

Failure = tuple[str | None, UUID | None, ErrorCode]


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        return _response(broker, context, request, broker.metadata.topics(), [])
    topics, failures, missing = _look_up(broker, context, wanted)
    may_create = getattr(request, "allow_auto_topic_creation", True)
    if missing and may_create and broker.config[settings.AUTO_CREATE_TOPICS_ENABLE]:
        return broker.spawn(_create_then_answer(broker, context, request, topics, failures, missing))
    failures += [(name, None, ErrorCode.unknown_topic_or_partition) for name in missing]
    return _response(broker, context, request, topics, failures)


def _look_up(
    broker: Broker, context: RequestContext, wanted: tuple[Entity, ...]
) -> tuple[list[Topic], list[Failure], list[str]]:
    """Each once, however often it is asked for: else a short request would have an answer of any size."""
    topics: dict[str, Topic] = {}
    failures: dict[UUID | None, Failure] = {}
    missing: dict[str, None] = {}
    for item in wanted:
        if item.name is None:
            topic = broker.metadata.topic_by_id(item.topic_id) if item.topic_id else None
            if topic is None:
                failures[item.topic_id] = (None, item.topic_id, ErrorCode.unknown_topic_id)
        else:
            topic = broker.metadata.topic(item.name)
            if topic is None:
                missing[item.name] = None
        if topic is not None:
            topics[topic.name] = topic
    return list(topics.values()), list(failures.values()), list(missing)


async def _create_then_answer(
    broker: Broker,
    context: RequestContext,
    request: Entity,
    topics: list[Topic],
    failures: list[Failure],
    missing: list[str],
) -> Entity:
    for name in missing:
        try:
            topics.append(await broker.auto_create(context, NewTopic(name=name)))
        except Exception as error:  # noqa: BLE001 - one topic's failure is that topic's answer
            code, _ = describe_failure(error, f"auto-creation of {name}")
            existing = broker.metadata.topic(name)
            if code is ErrorCode.topic_already_exists and existing is not None:
                topics.append(existing)
            else:
                failures.append((name, None, code))
    return _response(broker, context, request, topics, failures)


def _response(
    broker: Broker, context: RequestContext, request: Entity, topics: list[Topic], failures: list[Failure]
) -> Entity:
    schema, metadata = context.schema, broker.metadata
    topic_operations = getattr(request, "include_topic_authorized_operations", False)
    cluster_operations = getattr(request, "include_cluster_authorized_operations", False)
    endpoints = metadata.endpoints(context.listener)
    entries = [
        schema.build(
            "MetadataResponseTopic",
            error_code=ErrorCode.none,
            name=topic.name,
            topic_id=topic.id,
            is_internal=False,
            partitions=tuple(
                _partition(broker, context, TopicPartition(topic.name, index), state)
                for index, state in sorted(topic.partitions.items())
            ),
            topic_authorized_operations=TOPIC_OPERATIONS if topic_operations else NO_OPERATIONS,
        )
        for topic in topics
    ]
    entries += [
        schema.build(
            "MetadataResponseTopic",
            error_code=code,
            name=name if name is not None or context.version >= 12 else "",
            topic_id=topic_id,
            is_internal=False,
            partitions=(),
        )
        for name, topic_id, code in failures
    ]
    return schema.response(
        throttle_time=timedelta(0),
        brokers=tuple(
            schema.build(
                "MetadataResponseBroker",
                node_id=broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=metadata.brokers[broker_id].rack,
            )
            for broker_id, endpoint in sorted(endpoints.items())
        ),
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        topics=tuple(entries),
        cluster_authorized_operations=CLUSTER_OPERATIONS if cluster_operations else NO_OPERATIONS,
        error_code=ErrorCode.none,
    )


def _partition(
    broker: Broker, context: RequestContext, topic_partition: TopicPartition, state: PartitionState
) -> Entity:
    return context.schema.build(
        "MetadataResponsePartition",
        partition_index=topic_partition.partition,
        **partition_fields(broker, topic_partition, state),
    )


def partition_fields(
    broker: Broker, topic_partition: TopicPartition, state: PartitionState
) -> dict[str, object]:
    """What Metadata and DescribeTopicPartitions both say of a partition. A replica whose broker is gone, or
    here, whose files cannot be used, is offline."""
    offline = tuple(
        replica
        for replica in state.replicas
        if not broker.metadata.is_alive(replica)
        or (replica == broker.id and broker.is_offline(topic_partition, state))
    )
    led = state.has_leader and state.leader not in offline
    return {
        "error_code": ErrorCode.none if led else ErrorCode.leader_not_available,
        "leader_id": state.leader if led else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": offline,
    }
