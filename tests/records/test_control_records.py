import struct

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord

from kbus.protocol.errors import ErrorCode
from kbus.records.batch import read_header
from kbus.records.control import (
    ControlType,
    EndTransactionMarker,
    control_type,
    decode_marker,
    encode_marker_batch,
    read_marker,
)
from kbus.records.record import Record, decode_records, encode_batch
from kbus.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

from .builders import NOW, error_of


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_marker_comes_back_as_it_was_encoded(kind: ControlType) -> None:
    marker = EndTransactionMarker(kind, 9)
    batch = encode_marker_batch(
        marker,
        producer_id=ProducerId(5),
        producer_epoch=ProducerEpoch(2),
        timestamp_ms=NOW,
        base_offset=Offset(40),
        leader_epoch=LeaderEpoch(3),
    )
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, -1)
    assert (header.base_offset, header.leader_epoch, header.record_count) == (40, 3, 1)
    assert read_marker(batch, header) == marker
    (record,) = decode_records(batch, header)
    assert record.key is not None
    expected = COMMIT_MARKER if kind is ControlType.COMMIT else ABORT_MARKER
    assert ControlRecord.parse(record.key) == expected
    assert record.value == struct.pack(">hi", 0, 9)


def test_higher_versions_are_read_by_the_known_fields() -> None:
    record = Record(Offset(0), NOW, struct.pack(">hhq", 4, 1, 0), struct.pack(">hiq", 3, 17, 0))
    assert decode_marker(record) == EndTransactionMarker(ControlType.COMMIT, 17)


def test_unknown_types_are_known_to_be_unknown() -> None:
    key = struct.pack(">hh", 0, 2)
    assert control_type(key) is ControlType.UNKNOWN
    batch = encode_batch([Record(Offset(0), NOW, key, b"")], control=True)
    assert read_marker(batch, read_header(batch)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0\0\0", b"\0" * 6),
        (struct.pack(">hh", -1, 0), b"\0" * 6),
        (struct.pack(">hh", 0, 3), b"\0" * 6),
        (struct.pack(">hh", 0, 0), None),
        (struct.pack(">hh", 0, 0), b"\0" * 5),
        (struct.pack(">hh", 0, 0), struct.pack(">hi", -1, 0)),
    ],
)
def test_malformed_markers_are_refused(key: bytes | None, value: bytes | None) -> None:
    record = Record(Offset(0), NOW, key, value)
    assert error_of(lambda: decode_marker(record)) is ErrorCode.invalid_record


def test_empty_control_batch_is_refused() -> None:
    batch = encode_batch([], base_offset=Offset(0), last_offset_delta=0, control=True)
    assert error_of(lambda: read_marker(batch, read_header(batch))) is ErrorCode.invalid_record


def test_a_transaction_ends_with_commit_or_abort() -> None:
    with pytest.raises(ValueError, match="COMMIT or ABORT"):
        encode_marker_batch(
            EndTransactionMarker(ControlType.UNKNOWN, 0),
            producer_id=ProducerId(1),
            producer_epoch=ProducerEpoch(0),
            timestamp_ms=NOW,
        )
