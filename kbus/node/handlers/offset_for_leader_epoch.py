"""OffsetForLeaderEpoch, v2–v4: where an epoch ends in the leader's log (KIP-101, KIP-320).

Consumers use it to find out whether the log they read was cut off beneath them."""

from datetime import timedelta

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import NO_EPOCH, NO_OFFSET


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema = context.schema
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            error, epoch, end_offset = ErrorCode.none, NO_EPOCH, NO_OFFSET
            try:
                if getattr(request, "replica_id", -1) >= 0:
                    raise KafkaError(ErrorCode.cluster_authorization_failed)
                partition = broker.partition(topic.topic, item.partition)
                partition.require_leader(item.current_leader_epoch)
                epoch, end_offset = partition.log.end_offset_for_epoch(item.leader_epoch)
            except Exception as failure:  # noqa: BLE001 - one partition's failure is that partition's answer
                error, _ = describe_failure(failure, f"epoch end of {topic.topic}-{item.partition}")
            partitions.append(
                schema.build(
                    "EpochEndOffset",
                    error_code=error,
                    partition=item.partition,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(
            schema.build("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(partitions))
        )
    return schema.response(throttle_time=timedelta(0), topics=tuple(topics))
