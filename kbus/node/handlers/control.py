"""Private requests between nodes: Hello, ClusterUpdate, Leave, Forward.

All but Hello need a connection that has said Hello with the cluster's secret: a client that poses as a
replica or as the controller is refused.
"""

import asyncio
import secrets

from kbus.node.broker import Broker, DynamicConfig
from kbus.node.cluster_image import broker_from_wire, topic_from_wire
from kbus.node.connection import Connection, Outcome, PeerIdentity, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import peek_request, supported_schema
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.protocol.private import ClusterUpdate, Forward, Hello, Leave, PrivateRequest, Reply
from kbus.types import BrokerId


def handle(broker: Broker, connection: Connection, request: PrivateRequest) -> Outcome:
    if isinstance(request, Hello):
        return _hello(broker, connection, request)
    if connection.peer is None:
        return Reply(error=ErrorCode.cluster_authorization_failed, message="say Hello first")
    return broker.spawn(_answer(broker, connection.peer, request))


def _hello(broker: Broker, connection: Connection, request: Hello) -> Reply:
    if not secrets.compare_digest(request.secret.encode(), broker.secret.encode()):
        return Reply(error=ErrorCode.cluster_authorization_failed, message="the cluster's secret is another")
    connection.peer = PeerIdentity(BrokerId(request.broker_id), request.broker_epoch)
    return Reply()


async def _answer(broker: Broker, peer: PeerIdentity, request: PrivateRequest) -> Reply:
    try:
        match request:
            case ClusterUpdate():
                await _update(broker, peer, request)
                return Reply()
            case Leave():
                return Reply(
                    remaining=await broker.controller.leave(BrokerId(request.broker_id), request.broker_epoch)
                )
            case Forward():
                return Reply(frame=await _forwarded(broker, request))
        raise KafkaError(ErrorCode.invalid_request)
    except Exception as error:  # noqa: BLE001 - mapped to its code and, if unexpected, logged
        code, message = describe_failure(error, type(request).__name__)
        return Reply(error=code, message=message)


async def _update(broker: Broker, peer: PeerIdentity, request: ClusterUpdate) -> None:
    if request.broker_epoch != broker.epoch:
        raise KafkaError(ErrorCode.stale_broker_epoch)
    if request.controller_id != peer.broker_id:
        raise KafkaError(ErrorCode.cluster_authorization_failed)
    brokers = [broker_from_wire(value) for value in request.brokers]
    await broker.apply_update(
        controller_id=BrokerId(request.controller_id),
        controller_epoch=request.controller_epoch,
        brokers={found.id: found for found in brokers},
        topics=[topic_from_wire(value) for value in request.topics],
        removed=request.removed_topics,
        full=request.full,
        dynamic=DynamicConfig(broker=request.broker_config, default=request.default_config),
    )


async def _forwarded(broker: Broker, request: Forward) -> bytes:
    """Serves a client's request here, in the controller's place, and returns the response as it is sent."""
    frame = memoryview(request.frame)
    schema = supported_schema(peek_request(frame))
    header, body, records = schema.read_request(frame)
    context = RequestContext(
        schema, header.client_id, request.peer_host, request.listener, records, forwarded=True
    )
    response = broker.dispatch(context, body)
    if isinstance(response, asyncio.Future):
        response = await response
    return b"".join(part for part in schema.write_response(0, response) if isinstance(part, bytes))[4:]
