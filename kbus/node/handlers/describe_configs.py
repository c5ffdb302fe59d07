"""DescribeConfigs, v1–v4: the settings of topics and of this broker, with where each value comes from."""

from datetime import timedelta
from enum import IntEnum

from kbus.config import ConfigEntry, ConfigSource
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import BrokerId


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    results = []
    # Each once: the settings of a topic are a thousand times the size of the question.
    for resource in {(item.resource_type, item.resource_name): item for item in request.resources}.values():
        error, message = ErrorCode.none, None
        entries: tuple[ConfigEntry, ...] = ()
        try:
            entries = _describe(broker, resource.resource_type, resource.resource_name)
        except Exception as failure:  # noqa: BLE001 - one resource's failure is that resource's answer
            error, message = describe_failure(failure, f"describe configs of {resource.resource_name!r}")
        wanted = set(resource.configuration_keys or ())
        results.append(
            context.schema.build(
                "DescribeConfigsResult",
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(
                    _entry(context, request, entry) for entry in entries if not wanted or entry.name in wanted
                ),
            )
        )
    return context.schema.response(throttle_time=timedelta(0), results=tuple(results))


def _describe(broker: Broker, resource_type: int, name: str) -> tuple[ConfigEntry, ...]:
    if resource_type == ResourceType.TOPIC:
        if broker.metadata.topic(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return broker.topic_config(name).describe()
    if resource_type == ResourceType.BROKER:
        entries = broker.config.describe()
        if find_broker(broker, name) is None:
            return tuple(e for e in entries if e.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        return entries
    raise KafkaError(ErrorCode.invalid_request, f"Resources of type {resource_type} have no settings here.")


def find_broker(broker: Broker, name: str) -> BrokerId | None:
    """Which broker a resource is; an empty name means all of them: None."""
    if name not in ("", str(broker.id)):
        raise KafkaError(
            ErrorCode.invalid_request, f"This is broker {broker.id}; ask broker {name!r} about its settings."
        )
    return broker.id if name else None


def _entry(context: RequestContext, request: Entity, entry: ConfigEntry) -> Entity:
    build = context.schema.build
    synonyms: tuple[Entity, ...] = ()
    if request.include_synonyms:
        synonyms = tuple(
            build("DescribeConfigsSynonym", name=s.name, value=s.value, source=s.source)
            for s in entry.synonyms
        )
    return build(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.documentation if getattr(request, "include_documentation", False) else None,
    )
