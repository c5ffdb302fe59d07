"""DeleteRecords, v0–v2: moves a partition's start forward; offset -1 means all that is committed."""

from datetime import timedelta

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import NO_OFFSET, Offset


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema = context.schema
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            error, low_watermark = ErrorCode.none, NO_OFFSET
            try:
                partition = broker.partition(topic.name, item.partition_index)
                low_watermark = partition.delete_records_before(Offset(item.offset))
            except Exception as failure:  # noqa: BLE001 - one partition's failure is that partition's answer
                error, _ = describe_failure(failure, f"delete records of {topic.name}-{item.partition_index}")
            partitions.append(
                schema.build(
                    "DeleteRecordsPartitionResult",
                    partition_index=item.partition_index,
                    low_watermark=low_watermark,
                    error_code=error,
                )
            )
        topics.append(schema.build("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(partitions)))
    return schema.response(throttle_time=timedelta(0), topics=tuple(topics))
