"""Logs and batches for the storage tests."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import BatchHeader, iter_headers, offset_and_epoch_prefix, read_header
from kbus.records.control import ControlType, EndTransactionMarker, encode_marker_batch
from kbus.records.record import Record, encode_batch
from kbus.storage.disk import Disk, RealDisk
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition

NOW = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
EPOCH = LeaderEpoch(0)


class Clock:
    def __init__(self, now_ms: int = NOW) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def batch(
    count: int = 1,
    *,
    size: int = 10,
    timestamp: int = NOW,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    fill: bytes = b"x",
) -> bytes:
    """A batch as a client sends it."""
    has_producer = producer >= 0
    return encode_batch(
        [Record(Offset(i), timestamp + i, b"k%d" % i, (fill * size)[:size]) for i in range(count)],
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(epoch if has_producer else -1),
        base_sequence=sequence if has_producer else -1,
        transactional=transactional,
    )


def marker(kind: ControlType, producer: int, *, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(kind, coordinator_epoch),
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(epoch),
        timestamp_ms=NOW,
    )


def stored(sent: bytes, offset: int, epoch: int = 0) -> bytes:
    """What a leader makes of a batch."""
    return offset_and_epoch_prefix(offset, read_header(sent).batch_length, epoch) + sent[16:]


def open_log(
    path: object, config: LogConfig | None = None, *, disk: Disk | None = None, **options: Any
) -> PartitionLog:
    os.makedirs(str(path), exist_ok=True)
    options.setdefault("clock", Clock())
    return PartitionLog(str(path), PARTITION, config or LogConfig(), disk=disk or RealDisk(), **options)


@contextmanager
def opened(path: object, config: LogConfig | None = None, **options: Any) -> Iterator[PartitionLog]:
    log = open_log(path, config, **options)
    try:
        yield log
    finally:
        log.close(clean=False)


def append(log: PartitionLog, *batches: bytes, epoch: int = EPOCH) -> list[int]:
    """The first offset of each."""
    return [log.append_as_leader(b, leader_epoch=LeaderEpoch(epoch)).first_offset for b in batches]


def contents(log: PartitionLog) -> bytes:
    """All bytes from the batch of the log start offset on, read as a consumer would."""
    data = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1000, end=log.log_end_offset, min_one_batch=True).read()
        headers = list(iter_headers(part))
        assert headers, f"no batch at {offset}"
        position, last = headers[-1]
        data += part[: position + last.size]
        assert last.next_offset > offset
        offset = last.next_offset
    return bytes(data)


def headers_in(log: PartitionLog) -> list[BatchHeader]:
    return [header for _, header in iter_headers(contents(log))]


def files(path: object) -> list[str]:
    return sorted(os.listdir(str(path)))


def error_of(call: Callable[[], object]) -> ErrorCode | None:
    try:
        call()
    except KafkaError as error:
        return error.code
    return None
