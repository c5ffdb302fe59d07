"""InitProducerId, v0–v6: an id for an idempotent producer. Transactional ids are refused for now."""

from datetime import timedelta

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    if request.transactional_id is not None:
        return _response(context, ErrorCode.unsupported_version, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    producer_id = broker.producer_ids.next_from_block()
    if producer_id is not None:
        return _response(context, ErrorCode.none, producer_id, ProducerEpoch(0))
    return broker.spawn(_from_new_block(broker, context))


async def _from_new_block(broker: Broker, context: RequestContext) -> Entity:
    try:
        producer_id = await broker.producer_ids.next()
    except Exception as error:  # noqa: BLE001 - mapped to its code and, if unexpected, logged
        code, _ = describe_failure(error, "allocation of producer ids")
        return _response(context, code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    return _response(context, ErrorCode.none, producer_id, ProducerEpoch(0))


def _response(
    context: RequestContext, error: ErrorCode, producer_id: ProducerId, epoch: ProducerEpoch
) -> Entity:
    return context.schema.response(
        throttle_time=timedelta(0), error_code=error, producer_id=producer_id, producer_epoch=epoch
    )
