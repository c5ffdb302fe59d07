"""DeleteTopics, v1–v6: by name or (v6) by id."""

from datetime import timedelta
from uuid import UUID

from kbus.config import broker as settings
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError

Wanted = tuple[str | None, UUID | None]


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    wanted: list[Wanted]
    if context.version >= 6:
        wanted = [(item.name, item.topic_id) for item in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    return broker.spawn(_delete_all(broker, context, wanted))


async def _delete_all(broker: Broker, context: RequestContext, wanted: list[Wanted]) -> Entity:
    results = []
    for name, topic_id in dict.fromkeys(wanted):
        code, message = ErrorCode.none, None
        try:
            name, topic_id = await _delete(broker, name, topic_id)
        except Exception as error:  # noqa: BLE001 - one topic's failure is that topic's answer
            code, message = describe_failure(error, f"deletion of topic {name or topic_id}")
        results.append(
            context.schema.build(
                "DeletableTopicResult",
                name=name,
                topic_id=topic_id,
                error_code=code,
                error_message=message,
            )
        )
    return context.schema.response(throttle_time=timedelta(0), responses=tuple(results))


async def _delete(broker: Broker, name: str | None, topic_id: UUID | None) -> tuple[str, UUID]:
    if not broker.config[settings.DELETE_TOPIC_ENABLE]:
        raise KafkaError(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false on this cluster.")
    if name is not None and topic_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "Give the name or the id of a topic, not both.")
    if name is not None:
        topic, missing = broker.metadata.topic(name), ErrorCode.unknown_topic_or_partition
    else:
        topic = broker.metadata.topic_by_id(topic_id) if topic_id else None
        missing = ErrorCode.unknown_topic_id
    if topic is None:
        raise KafkaError(missing)
    await broker.controller.delete_topic(topic.name, topic.id)
    return topic.name, topic.id
