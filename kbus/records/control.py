"""Control records: what the brokers write between the records of clients, to end a transaction.

Key: version and type; value, for the end of a transaction: version and coordinator epoch. A higher version
only ever adds fields, so a reader takes the ones it knows."""

import struct
from enum import IntEnum
from typing import NamedTuple

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import BatchHeader, Buffer
from kbus.records.record import Record, decode_records, encode_batch
from kbus.types import NO_EPOCH, LeaderEpoch, Offset, ProducerEpoch, ProducerId

_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_VERSION = 0
_UNASSIGNED = Offset(0)
"""Base offset of a batch whose place in a log is yet to be assigned."""


class ControlType(IntEnum):
    UNKNOWN = -1
    """Any type that is not known here; readers skip it."""
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    type: ControlType
    coordinator_epoch: int


def control_type(key: bytes | None) -> ControlType:
    """The type that the key of a control record states."""
    if key is None or len(key) < _KEY.size:
        raise _invalid(f"A control record has a key of {len(key or b'')} bytes instead of {_KEY.size}")
    version, code = _KEY.unpack_from(key)
    if version < 0:
        raise _invalid(f"A control record has key version {version}")
    try:
        return ControlType(code)
    except ValueError:
        return ControlType.UNKNOWN


def decode_marker(record: Record) -> EndTransactionMarker:
    kind = control_type(record.key)
    if kind is ControlType.UNKNOWN:
        raise _invalid("A control record is not the end of a transaction")
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        size = len(record.value or b"")
        raise _invalid(f"A transaction marker has a value of {size} bytes instead of {_MARKER_VALUE.size}")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise _invalid(f"A transaction marker has value version {version}")
    return EndTransactionMarker(kind, coordinator_epoch)


def read_marker(batch: Buffer, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch; None if the batch, which always has one record, is of another type."""
    record = next(decode_records(batch, header), None)
    if record is None:
        raise _invalid("A control batch has no record")
    if control_type(record.key) is ControlType.UNKNOWN:
        return None
    return decode_marker(record)


def encode_marker_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    timestamp_ms: int,
    base_offset: Offset = _UNASSIGNED,
    leader_epoch: LeaderEpoch = NO_EPOCH,
) -> bytes:
    """The batch that ends a producer's transaction in one partition. It carries no sequence."""
    if marker.type is ControlType.UNKNOWN:
        raise ValueError("a transaction ends with COMMIT or ABORT")
    record = Record(
        offset=base_offset,
        timestamp=timestamp_ms,
        key=_KEY.pack(_VERSION, marker.type),
        value=_MARKER_VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    return encode_batch(
        [record],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, f"{what}; the log holds a damaged control batch.")
