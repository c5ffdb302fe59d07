"""CreatePartitions, v0–v3: more partitions for a topic, placed by the cluster or by hand."""

import asyncio
from collections import Counter
from datetime import timedelta

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    return broker.spawn(_create_all(broker, context, request))


async def _create_all(broker: Broker, context: RequestContext, request: Entity) -> Entity:
    counts = Counter(item.name for item in request.topics)
    results = []
    for item in {item.name: item for item in request.topics}.values():
        await asyncio.sleep(0)  # a question about many topics waits for nothing, but others do
        code, message = ErrorCode.none, None
        try:
            if counts[item.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Topic {item.name!r} is in the request twice.")
            assignments = None
            if item.assignments is not None:
                assignments = [tuple(a.broker_ids) for a in item.assignments]
            await broker.controller.create_partitions(
                item.name, item.count, assignments, validate_only=request.validate_only
            )
        except Exception as error:  # noqa: BLE001 - one topic's failure is that topic's answer
            code, message = describe_failure(error, f"new partitions for topic {item.name!r}")
        results.append(
            context.schema.build(
                "CreatePartitionsTopicResult", name=item.name, error_code=code, error_message=message
            )
        )
    return context.schema.response(throttle_time=timedelta(0), results=tuple(results))
