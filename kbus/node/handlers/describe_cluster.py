"""DescribeCluster, v0–v2: brokers and controller. Only brokers can be asked for, not KRaft controllers."""

from datetime import timedelta
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.handlers.metadata import CLUSTER_OPERATIONS, NO_OPERATIONS
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode

_BROKERS: Final = 1


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema, metadata = context.schema, broker.metadata
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    known = endpoint_type == _BROKERS
    endpoints = metadata.endpoints(context.listener) if known else {}
    return schema.response(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none if known else ErrorCode.unsupported_endpoint_type,
        error_message=None if known else f"There are no endpoints of type {endpoint_type} here.",
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=tuple(
            schema.build(
                "DescribeClusterBroker",
                broker_id=broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=metadata.brokers[broker_id].rack,
                is_fenced=False,
            )
            for broker_id, endpoint in sorted(endpoints.items())
        ),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
        endpoint_type=endpoint_type,
    )
