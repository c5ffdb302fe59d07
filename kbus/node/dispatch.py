"""The table from API to handler. What is not in it is not served, and not advertised either."""

from collections.abc import Callable
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import Dispatch, Outcome, PrivateDispatch, RequestContext
from kbus.node.handlers import (
    alter_configs,
    api_versions,
    control,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from kbus.protocol.api import ApiKey, Entity

Handler = Callable[[Broker, RequestContext, Entity], Outcome]

HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.API_VERSIONS: api_versions.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
    ApiKey.ALTER_CONFIGS: alter_configs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
}
assert HANDLERS.keys() == set(ApiKey), "every API of the registry is served"


CONTROLLER_APIS: Final = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    )
)
"""Served by the controller; any other broker passes them on."""


def dispatcher(broker: Broker) -> Dispatch:
    def dispatch(context: RequestContext, request: Entity) -> Outcome:
        api_key = context.schema.api_key
        if api_key in CONTROLLER_APIS and not broker.controller.is_active and not context.forwarded:
            return broker.spawn(broker.forward(context, request))
        return HANDLERS[api_key](broker, context, request)

    return dispatch


def private_dispatcher(broker: Broker) -> PrivateDispatch:
    return lambda connection, request: control.handle(broker, connection, request)
