"""AlterConfigs, v0–v2, replaces all settings of a topic; IncrementalAlterConfigs, v0–v1, changes some.

Of brokers, those settings can be changed that take effect while they run: of one broker, or, with an
empty name, of all.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kbus.config import Alteration, AlterOp, Setting, apply_alterations, topic
from kbus.config import broker as settings
from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.controller import ConfigChange
from kbus.node.failures import describe_failure
from kbus.node.handlers.describe_configs import ResourceType, find_broker
from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode, KafkaError


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    return broker.spawn(_alter_all(broker, context, request))


async def _alter_all(broker: Broker, context: RequestContext, request: Entity) -> Entity:
    results = []
    for resource in request.resources:
        await asyncio.sleep(0)  # a question about many topics waits for nothing, but others do
        code, message = ErrorCode.none, None
        try:
            await _alter(broker, context, resource, request.validate_only)
        except Exception as error:  # noqa: BLE001 - one resource's failure is that resource's answer
            code, message = describe_failure(error, f"change of settings of {resource.resource_name!r}")
        results.append(
            context.schema.build(
                "AlterConfigsResourceResponse",
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return context.schema.response(throttle_time=timedelta(0), responses=tuple(results))


async def _alter(broker: Broker, context: RequestContext, resource: Entity, validate_only: bool) -> None:
    name, resource_type = resource.resource_name, resource.resource_type
    table: Mapping[str, Setting[Any]]
    table = topic.SETTINGS if resource_type == ResourceType.TOPIC else settings.SETTINGS
    if context.schema.api_key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
        change = _some_settings(resource, table)
    else:
        change = _all_settings(resource)
    if resource_type == ResourceType.TOPIC:
        await broker.controller.alter_topic_config(name, change, validate_only=validate_only)
    elif resource_type == ResourceType.BROKER:
        broker_id = find_broker(broker, name)
        await broker.controller.alter_broker_config(broker_id, change, validate_only=validate_only)
    else:
        raise KafkaError(
            ErrorCode.invalid_request, f"Resources of type {resource_type} have no settings here."
        )


def _all_settings(resource: Entity) -> ConfigChange:
    overrides = {item.name: item.value for item in resource.configs}
    return lambda _: overrides


def _some_settings(resource: Entity, table: Mapping[str, Setting[Any]]) -> ConfigChange:
    if any(item.config_operation not in AlterOp.__members__.values() for item in resource.configs):
        raise KafkaError(ErrorCode.invalid_request, "Settings can be set, deleted, appended to, subtracted.")
    alterations = [
        Alteration(name=item.name, op=AlterOp(item.config_operation), value=item.value)
        for item in resource.configs
    ]
    return lambda current: apply_alterations(current, alterations, table)
