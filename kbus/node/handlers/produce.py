"""Produce, v3–v13: appends record batches. v13 names topics by id.

acks=0 is not answered; an error then closes the connection, which is all that such a client can notice.
acks=1 is answered once the leader has it, acks=all (-1) once every in-sync replica has it. Where
flush.messages asks for a flush, both wait for the disk, too.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import NO_RESPONSE, AbandonConnectionError, Outcome, RequestContext
from kbus.node.failures import describe_failure
from kbus.node.partition import Partition
from kbus.node.waiters import AckWaiter, Pending, is_committed, is_flushed
from kbus.protocol.api import Entity
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import HEADER_SIZE, Buffer, Compression, read_header
from kbus.records.validation import RejectedRecordsError
from kbus.storage.appending import AppendInfo
from kbus.types import Offset

_ACKS_ALL: Final = -1
_VALID_ACKS: Final = (0, 1, _ACKS_ALL)
_ZSTD_SINCE: Final = 7
_NO_THROTTLE: Final = timedelta(0)


@dataclass(slots=True)
class _Result:
    """What became of the records for one partition."""

    topic: Entity
    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    partition: Partition | None = None
    info: AppendInfo | None = None

    def fail(self, error: Exception) -> None:
        self.error, self.message = describe_failure(error, f"produce to partition {self.index}")
        if isinstance(error, RejectedRecordsError):
            self.record_errors = tuple(error.record_errors)


def handle(broker: Broker, context: RequestContext, request: Entity) -> Outcome:
    acks = request.acks
    results: list[_Result] = []
    lifted = context.records
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records if lifted is None else lifted[len(results)]
            result = _Result(topic, data.index)
            results.append(result)
            try:
                if acks not in _VALID_ACKS:
                    raise KafkaError(ErrorCode.invalid_required_acks)
                _append(broker, context, request, result, records)
            except Exception as error:  # noqa: BLE001 - one partition's failure is that partition's answer
                result.fail(error)
    if acks == 0:
        return _without_response(results)
    pending = _pending(results, acks)
    if not pending:
        return _response(context, results)
    waiter = AckWaiter(broker.loop, [item for _, item in pending], request.timeout.total_seconds())
    response = broker.loop.create_future()

    def answer(errors: list[ErrorCode]) -> None:
        for (result, _), error in zip(pending, errors, strict=True):
            result.error = error
        if not response.done():
            response.set_result(_response(context, results))

    waiter.future.add_done_callback(lambda future: answer(future.result()))
    response.add_done_callback(lambda future: waiter.abandon() if future.cancelled() else None)
    return response


def _append(
    broker: Broker, context: RequestContext, request: Entity, result: _Result, records: Buffer | None
) -> None:
    topic = result.topic
    name = topic.name if context.version < 13 else broker.topic_name(topic.topic_id)
    partition = broker.partition(name, result.index)
    if not records:
        raise KafkaError(ErrorCode.invalid_record, "A produce request needs one record batch a partition.")
    if len(records) >= HEADER_SIZE:
        header = read_header(records)
        if header.is_transactional or request.transactional_id is not None:
            raise KafkaError(ErrorCode.invalid_txn_state, "This cluster has no transaction coordinator yet.")
        if header.compression_code == Compression.ZSTD and context.version < _ZSTD_SINCE:
            raise KafkaError(ErrorCode.unsupported_compression_type, "zstd needs Produce v7 or later.")
    result.info = partition.append(records, require_in_sync=request.acks == _ACKS_ALL)
    result.partition = partition


def _pending(results: list[_Result], acks: int) -> list[tuple[_Result, Pending]]:
    """The appends whose acknowledgement has to wait."""
    pending = []
    for result in results:
        if result.info is None or result.partition is None:
            continue
        partition, required = result.partition, Offset(result.info.last_offset + 1)
        if partition.flush_due:
            partition.request_flush()
            if not is_flushed(partition, required):
                pending.append((result, Pending(partition, required, is_flushed)))
        elif acks == _ACKS_ALL and not is_committed(partition, required):
            pending.append((result, Pending(partition, required, is_committed)))
    return pending


def _without_response(results: list[_Result]) -> Outcome:
    for result in results:
        if result.partition is not None and result.partition.flush_due:
            result.partition.request_flush()
        if result.error is not ErrorCode.none:
            reason = result.message or result.error.name
            raise AbandonConnectionError(f"produce with acks=0 to partition {result.index} failed: {reason}")
    return NO_RESPONSE


def _response(context: RequestContext, results: list[_Result]) -> Entity:
    build = context.schema.build
    topics: dict[int, tuple[Entity, list[Entity]]] = {}
    for result in results:
        info = result.info if result.error is ErrorCode.none else None
        entry = build(
            "PartitionProduceResponse",
            index=result.index,
            error_code=result.error,
            base_offset=info.first_offset if info else -1,
            log_append_time=_log_append_time(info),
            log_start_offset=info.log_start_offset if info else -1,
            record_errors=tuple(
                build("BatchIndexAndErrorMessage", batch_index=number, batch_index_error_message=reason)
                for number, reason in (result.record_errors if context.version >= 8 else ())
            ),
            error_message=result.message,
        )
        topics.setdefault(id(result.topic), (result.topic, []))[1].append(entry)
    return context.schema.response(
        responses=tuple(
            build(
                "TopicProduceResponse",
                name=getattr(topic, "name", None),
                topic_id=getattr(topic, "topic_id", None),
                partition_responses=tuple(entries),
            )
            for topic, entries in topics.values()
        ),
        throttle_time=_NO_THROTTLE,
    )


def _log_append_time(info: AppendInfo | None) -> datetime | None:
    if info is None or info.log_append_time_ms < 0:
        return None
    return datetime.fromtimestamp(info.log_append_time_ms / 1000, UTC)
