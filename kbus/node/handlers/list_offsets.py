"""ListOffsets, v1–v11: the first, the last, or the first offset at or after a timestamp.

A read_committed client's "latest" is the last stable offset. Nothing beyond the high watermark is told, but
to a debugging consumer (replica id -2, as in Kafka), which may ask any replica where its log ends.
"""

from datetime import timedelta
from enum import IntEnum
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.node.partition import Partition
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, LeaderEpoch, Offset

_READ_COMMITTED: Final = 1
_DEBUGGER: Final = -2

Found = tuple[Offset, int, LeaderEpoch]
_NOTHING: Final[Found] = (NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


class Special(IntEnum):
    """Timestamps that are questions."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema = context.schema
    read_committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            error, found = ErrorCode.none, _NOTHING
            try:
                if request.replica_id >= 0 and context.peer is None:
                    raise KafkaError(ErrorCode.cluster_authorization_failed)
                partition = broker.partition(topic.name, item.partition_index)
                if request.replica_id == _DEBUGGER and item.timestamp == Special.LATEST:
                    found = partition.log.log_end_offset, NO_TIMESTAMP, partition.leader_epoch
                else:
                    partition.require_leader(getattr(item, "current_leader_epoch", NO_EPOCH))
                    found = _find(partition, item.timestamp, read_committed)
            except Exception as failure:  # noqa: BLE001 - one partition's failure is that partition's answer
                error, _ = describe_failure(failure, f"list offsets of {topic.name}-{item.partition_index}")
            offset, timestamp, epoch = found
            partitions.append(
                schema.build(
                    "ListOffsetsPartitionResponse",
                    partition_index=item.partition_index,
                    error_code=error,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(schema.build("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return schema.response(throttle_time=timedelta(0), topics=tuple(topics))


def _find(partition: Partition, timestamp: int, read_committed: bool) -> Found:
    end = partition.last_stable_offset if read_committed else partition.high_watermark
    log = partition.log
    if timestamp == Special.LATEST:
        return end, NO_TIMESTAMP, partition.leader_epoch
    if timestamp in (Special.EARLIEST, Special.EARLIEST_LOCAL):
        return log.log_start_offset, NO_TIMESTAMP, log.epoch_at(log.log_start_offset)
    if timestamp in (Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD):
        return _NOTHING  # there is no tiered storage, so nothing is in it
    if timestamp == Special.MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp()
    elif timestamp >= 0:
        found = log.offset_for_timestamp(timestamp)
    else:
        raise KafkaError(ErrorCode.invalid_request)
    return found if found is not None and found[0] < end else _NOTHING
