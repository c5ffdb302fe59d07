"""DescribeLogDirs, v1–v5: which directory holds what, and how full its disk is."""

import os
from collections.abc import Iterable
from datetime import timedelta

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.node.partition import Partition
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    schema = context.schema
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    chosen = [p for p in broker.partitions() if wanted is None or p.topic_partition in wanted]
    results = []
    for directory in broker.logs.directories:
        error, total, usable = ErrorCode.none, -1, -1
        try:
            usage = os.statvfs(directory.path)
            total, usable = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
            if directory.failure is not None:
                error = ErrorCode.kafka_storage_error
        except OSError:
            error = ErrorCode.kafka_storage_error
        here = [p for p in chosen if os.path.dirname(p.log.directory) == directory.path]
        results.append(
            schema.build(
                "DescribeLogDirsResult",
                error_code=error,
                log_dir=directory.path,
                topics=tuple(_topics(context, here)),
                total_bytes=total,
                usable_bytes=usable,
                is_cordoned=False,
            )
        )
    return schema.response(throttle_time=timedelta(0), error_code=ErrorCode.none, results=tuple(results))


def _topics(context: RequestContext, partitions: Iterable[Partition]) -> Iterable[Entity]:
    by_topic: dict[str, list[Entity]] = {}
    for partition in partitions:
        topic, index = partition.topic_partition
        by_topic.setdefault(topic, []).append(
            context.schema.build(
                "DescribeLogDirsPartition",
                partition_index=index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.log_end_offset),
                is_future_key=False,
            )
        )
    for topic, entries in by_topic.items():
        yield context.schema.build("DescribeLogDirsTopic", name=topic, partitions=tuple(entries))
