import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records import validation
from kbus.records.batch import (
    HEADER_SIZE,
    PREFIX_SIZE,
    Compression,
    TimestampType,
    offset_and_epoch_prefix,
    read_header,
)
from kbus.records.compression import compress
from kbus.records.control import ControlType, EndTransactionMarker, encode_marker_batch
from kbus.records.crc import batch_crc
from kbus.records.record import Record, decode_records, encode_batch
from kbus.records.validation import (
    AppendOrigin,
    AppendRules,
    RejectedRecordsError,
    ValidatedBatch,
    validate_for_append,
    validate_replicated,
)
from kbus.types import NO_TIMESTAMP, Offset, ProducerEpoch, ProducerId

from .builders import (
    COMPRESSED,
    NOW,
    altered,
    error_of,
    record_lists,
    some_batch,
    some_records,
    with_payload,
)

RULES = AppendRules()
COMPACTED = AppendRules(compacted=True)
APPEND_TIME = AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
IDEMPOTENT: dict[str, Any] = {
    "producer_id": ProducerId(4),
    "producer_epoch": ProducerEpoch(1),
    "base_sequence": 20,
}


def stored(validated: ValidatedBatch, offset: int = 0) -> bytes:
    """The batch as a log would write it."""
    prefix = offset_and_epoch_prefix(offset, validated.header.batch_length, 0)
    return prefix + b"".join(validated.parts)


def accepted(batch: bytes, rules: AppendRules = RULES, now_ms: int = NOW) -> bytes:
    """What is stored of a single batch, checked to be a sound one that its header describes."""
    result = validate_for_append(batch, rules, now_ms)
    (validated,) = result.batches
    written = stored(validated)
    header = read_header(written)
    assert batch_crc(written) == header.crc
    assert header[3:] == validated.header[3:]
    assert header.size == validated.header.size == result.size_bytes == len(written)
    assert result.max_timestamp == header.max_timestamp
    return written


def refusal(
    records: bytes, rules: AppendRules = RULES, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ErrorCode | None:
    return error_of(lambda: validate_for_append(records, rules, NOW, origin))


# Passing through


@pytest.mark.parametrize("codec", list(Compression))
def test_batch_is_stored_as_it_came(codec: Compression) -> None:
    batch = some_batch(5, compression=codec, **IDEMPOTENT)
    assert accepted(batch)[PREFIX_SIZE:] == batch[PREFIX_SIZE:]
    assert accepted(batch, COMPACTED)[PREFIX_SIZE:] == batch[PREFIX_SIZE:]


@pytest.mark.parametrize("rules", [RULES, APPEND_TIME])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_large_batch_is_neither_opened_nor_copied(
    rules: AppendRules, codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_opening(*_: object, **__: object) -> bytes:
        raise AssertionError("the batch was opened")

    monkeypatch.setattr(validation, "open_payload", no_opening)
    buffer = bytearray(with_payload(some_batch(1), bytes(1_000_000), attributes=int(codec)))
    tracemalloc.start()
    try:
        result = validate_for_append(buffer, rules, NOW)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000
    body = result.batches[0].parts[-1]
    assert isinstance(body, memoryview)
    assert body.obj is buffer


def test_unknown_attribute_bits_are_kept() -> None:
    batch = altered(some_batch(), attributes=0x0100)
    assert accepted(batch)[PREFIX_SIZE:] == batch[PREFIX_SIZE:]
    assert read_header(accepted(batch, APPEND_TIME)).attributes == 0x0108


def test_sequence_without_a_producer_id_is_taken() -> None:
    """Sarama sends 0 where there is none."""
    accepted(some_batch(base_sequence=0))


# Refusals


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": 0}, ErrorCode.unsupported_for_message_format),
        ({"magic": 1}, ErrorCode.unsupported_for_message_format),
        ({"magic": 3}, ErrorCode.corrupt_message),
        ({"magic": -1}, ErrorCode.corrupt_message),
        ({"crc": 0}, ErrorCode.corrupt_message),
        ({"batch_length": 48}, ErrorCode.corrupt_message),
        # The CRC of no bytes is 0: these would pass it, and the last would be read for ever.
        ({"batch_length": 9, "crc": 0}, ErrorCode.corrupt_message),
        ({"batch_length": -12, "crc": 0}, ErrorCode.corrupt_message),
        ({"batch_length": -1}, ErrorCode.corrupt_message),
        ({"batch_length": -(2**31)}, ErrorCode.corrupt_message),
        ({"batch_length": 2**31 - 1}, ErrorCode.invalid_record),
        ({"attributes": 5}, ErrorCode.unsupported_compression_type),
        ({"attributes": 7}, ErrorCode.unsupported_compression_type),
        ({"attributes": 0x08}, ErrorCode.invalid_timestamp),
        ({"attributes": 0x10}, ErrorCode.invalid_record),
        ({"attributes": 0x20}, ErrorCode.invalid_record),
        ({"attributes": 0x40}, ErrorCode.invalid_record),
        ({"base_offset": 1}, ErrorCode.invalid_record),
        ({"base_offset": -1}, ErrorCode.invalid_record),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.invalid_record),
        ({"record_count": -3, "last_offset_delta": -4}, ErrorCode.invalid_record),
        ({"record_count": 2}, ErrorCode.invalid_record),
        ({"last_offset_delta": 3}, ErrorCode.invalid_record),
        ({"record_count": 1000, "last_offset_delta": 999}, ErrorCode.invalid_record),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, ErrorCode.invalid_record),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.invalid_record),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.invalid_record),
    ],
    ids=str,
)
@pytest.mark.parametrize("rules", [RULES, APPEND_TIME, COMPACTED, AppendRules(compression=Compression.LZ4)])
def test_header_that_cannot_be_right_is_refused(
    fields: dict[str, int], code: ErrorCode, rules: AppendRules
) -> None:
    assert refusal(altered(some_batch(3), **fields), rules) is code


def test_compressed_batch_cannot_claim_more_records_than_it_may_decompress_to() -> None:
    batch = some_batch(3, compression=Compression.ZSTD)
    count = 3_000_000
    assert (
        refusal(altered(batch, record_count=count, last_offset_delta=count - 1)) is ErrorCode.invalid_record
    )


@given(st.data())
def test_any_flipped_bit_under_the_crc_is_refused(data: st.DataObject) -> None:
    batch = bytearray(some_batch(3))
    position = data.draw(st.integers(min_value=PREFIX_SIZE + 1, max_value=len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    assert refusal(bytes(batch)) is ErrorCode.corrupt_message


@given(st.binary(max_size=300), st.sampled_from([RULES, APPEND_TIME, COMPACTED]))
def test_random_bytes_are_refused(records: bytes, rules: AppendRules) -> None:
    assert refusal(records, rules) is not None


@given(st.binary(max_size=200), st.sampled_from(Compression), st.sampled_from(Compression))
def test_random_records_under_a_sound_header_raise_nothing_but_refusals(
    payload: bytes, source: Compression, target: Compression
) -> None:
    batch = with_payload(some_batch(1), compress(source, payload), attributes=int(source))
    assert refusal(batch, AppendRules(compression=target, compacted=True)) in (
        None,
        ErrorCode.invalid_record,
        ErrorCode.corrupt_message,
    )


def test_old_messages_shorter_than_a_header_are_named_as_such() -> None:
    message = bytes(8) + (14).to_bytes(4) + bytes(4) + b"\0" + bytes(9)
    assert len(message) < HEADER_SIZE
    assert refusal(message) is ErrorCode.unsupported_for_message_format


def test_client_sends_exactly_one_batch() -> None:
    batch = some_batch()
    assert refusal(b"") is ErrorCode.invalid_record
    assert refusal(batch[:-1]) is ErrorCode.invalid_record
    assert refusal(batch[: HEADER_SIZE - 1]) is ErrorCode.invalid_record
    assert refusal(batch + batch) is ErrorCode.invalid_record
    assert refusal(batch + b"\0") is ErrorCode.invalid_record


def test_size_is_limited_to_max_message_bytes() -> None:
    batch = some_batch()
    accepted(batch, AppendRules(max_message_bytes=len(batch)))
    assert refusal(batch, AppendRules(max_message_bytes=len(batch) - 1)) is ErrorCode.message_too_large


def test_size_is_limited_after_recompression_too() -> None:
    batch = encode_batch(some_records(50, value_size=1000), compression=Compression.GZIP)
    rules = AppendRules(max_message_bytes=len(batch), compression=Compression.NONE)
    assert refusal(batch, rules) is ErrorCode.message_too_large


# The node's own appends


def test_coordinator_may_append_batches_and_markers() -> None:
    marker = encode_marker_batch(
        EndTransactionMarker(ControlType.COMMIT, 1),
        producer_id=ProducerId(4),
        producer_epoch=ProducerEpoch(1),
        timestamp_ms=NOW + 10,
        base_offset=Offset(0),
    )
    records = some_batch(3) + marker
    rules = AppendRules(compression=Compression.GZIP, compacted=True)
    result = validate_for_append(records, rules, NOW, AppendOrigin.COORDINATOR)
    first, second = result.batches
    assert list(decode_records(stored(first))) == some_records(3)
    assert first.header.compression_code == Compression.GZIP
    assert stored(second)[PREFIX_SIZE:] == marker[PREFIX_SIZE:]
    assert result.size_bytes == first.header.size + second.header.size
    assert result.max_timestamp == NOW + 10
    assert refusal(marker) is ErrorCode.invalid_record
    assert refusal(records + b"\0", RULES, AppendOrigin.COORDINATOR) is ErrorCode.invalid_record
    assert refusal(b"", RULES, AppendOrigin.COORDINATOR) is ErrorCode.invalid_record


# Timestamps

BOUNDED = AppendRules(timestamp_before_max_ms=1000, timestamp_after_max_ms=500)


def batch_at(*timestamps: int) -> bytes:
    return encode_batch([Record(Offset(i), ts, b"k", b"v") for i, ts in enumerate(timestamps)])


@pytest.mark.parametrize(
    ("timestamps", "index"),
    [
        ([NOW - 1001], 0),
        ([NOW + 501], 0),
        ([NOW - 1001, NOW], 0),
        ([NOW, NOW + 501, NOW], 1),
        ([NO_TIMESTAMP, NOW + 501], 1),
    ],
)
def test_timestamps_out_of_bounds_are_refused(timestamps: list[int], index: int) -> None:
    with pytest.raises(RejectedRecordsError) as caught:
        validate_for_append(batch_at(*timestamps), BOUNDED, NOW)
    assert caught.value.code is ErrorCode.invalid_timestamp
    assert [at for at, _ in caught.value.record_errors] == [index]
    accepted(batch_at(*timestamps), AppendRules())


@pytest.mark.parametrize(
    "timestamps",
    [
        [NOW - 1000, NOW + 500],
        [NOW + 500, NOW - 1000],
        [NO_TIMESTAMP],
        [NO_TIMESTAMP, NOW],
        [NOW, NO_TIMESTAMP],
    ],
)
def test_timestamps_within_bounds_and_absent_ones_are_taken(timestamps: list[int]) -> None:
    assert read_header(accepted(batch_at(*timestamps), BOUNDED)).max_timestamp == max(timestamps)


@pytest.mark.parametrize("claimed", [NO_TIMESTAMP, NOW - 5, NOW + 501, 0, 2**62])
def test_wrong_largest_timestamp_is_corrected_by_the_records(claimed: int) -> None:
    batch = batch_at(NOW, NOW + 3, NOW + 1)
    written = accepted(altered(batch, max_timestamp=claimed), BOUNDED)
    assert written[PREFIX_SIZE:] == batch[PREFIX_SIZE:]


def test_base_timestamp_that_is_no_records_own_does_not_matter() -> None:
    ten_seconds = [0xA0, 0x9C, 0x01]  # zigzag varint of 10,000
    record = bytes([20, 0, *ten_seconds, 0, 2, *b"k", 2, *b"v", 0])
    batch = with_payload(batch_at(NOW), record, base_timestamp=NOW - 10_000)
    assert [r.timestamp for r in decode_records(accepted(batch, BOUNDED))] == [NOW]
    assert refusal(altered(batch, base_timestamp=NOW - 20_000), BOUNDED) is ErrorCode.invalid_timestamp


@pytest.mark.parametrize("codec", list(Compression))
def test_log_append_time_replaces_the_clients_timestamps(codec: Compression) -> None:
    batch = some_batch(3, compression=codec, **IDEMPOTENT)
    rules = AppendRules(
        timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=0, timestamp_after_max_ms=0
    )
    result = validate_for_append(batch, rules, NOW + 99)
    assert (result.log_append_time_ms, result.max_timestamp) == (NOW + 99, NOW + 99)
    written = accepted(batch, rules, NOW + 99)
    assert [record.timestamp for record in decode_records(written)] == [NOW + 99] * 3
    assert written[HEADER_SIZE:] == batch[HEADER_SIZE:]
    header = read_header(written)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 20)
    assert validate_for_append(batch, RULES, NOW).log_append_time_ms == NO_TIMESTAMP


# Opened batches


@pytest.mark.parametrize("codec", list(Compression))
def test_compacted_topic_takes_no_record_without_a_key(codec: Compression) -> None:
    records = some_records(4)
    records[1] = records[1]._replace(key=None)
    records[3] = records[3]._replace(key=None)
    batch = encode_batch(records, compression=codec)
    accepted(batch)
    with pytest.raises(RejectedRecordsError) as caught:
        validate_for_append(batch, COMPACTED, NOW)
    assert caught.value.code is ErrorCode.invalid_record
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    records[1] = records[1]._replace(key=b"")
    records[3] = records[3]._replace(key=b"k", value=None)
    accepted(encode_batch(records, compression=codec), COMPACTED)


def test_number_of_reported_records_is_bounded() -> None:
    records = [record._replace(key=None) for record in some_records(1000)]
    with pytest.raises(RejectedRecordsError) as caught:
        validate_for_append(encode_batch(records), COMPACTED, NOW)
    assert len(caught.value.record_errors) == 100


@given(record_lists(), st.sampled_from(Compression), st.sampled_from(Compression), st.booleans())
def test_recompression_keeps_everything_but_the_codec(
    records: list[Record], source: Compression, target: Compression, transactional: bool
) -> None:
    batch = encode_batch(records, compression=source, transactional=transactional, **IDEMPOTENT)
    written = accepted(batch, AppendRules(compression=target))
    assert list(decode_records(written)) == records
    before, after = read_header(batch), read_header(written)
    assert after.compression_code == target
    unchanged: dict[str, Any] = {"batch_length": 0, "crc": 0, "attributes": 0, "leader_epoch": 0}
    assert after._replace(**unchanged) == before._replace(**unchanged)
    assert (after.is_transactional, after.is_control) == (transactional, False)
    if source is target:
        assert written[PREFIX_SIZE:] == batch[PREFIX_SIZE:]


def test_recompression_and_log_append_time_go_together() -> None:
    rules = AppendRules(
        compression=Compression.ZSTD, compression_level=9, timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    written = accepted(some_batch(3, transactional=True, **IDEMPOTENT), rules, NOW + 1)
    header = read_header(written)
    assert header.is_transactional
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [r.timestamp for r in decode_records(written)] == [NOW + 1] * 3


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bomb_is_refused_when_it_has_to_be_opened(codec: Compression) -> None:
    bomb = with_payload(some_batch(1), compress(codec, bytes(3 * 2**20)), attributes=int(codec))
    rules = AppendRules(compression=Compression.NONE, max_decompressed_bytes=2**20, max_message_bytes=2**30)
    assert refusal(bomb, rules) is ErrorCode.corrupt_message


def test_batch_of_too_many_records_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MAX_OPENED_RECORDS", 10)
    assert refusal(some_batch(11), COMPACTED) is ErrorCode.invalid_record
    assert refusal(some_batch(10), COMPACTED) is None
    assert refusal(some_batch(11), RULES) is None


def test_offsets_inside_an_opened_batch_have_no_gap() -> None:
    gap = encode_batch(
        [r._replace(offset=Offset(r.offset * 2)) for r in some_records(3)], last_offset_delta=4
    )
    assert refusal(altered(gap, last_offset_delta=2), COMPACTED) is ErrorCode.invalid_record


# Followers


def test_follower_takes_whole_batches_as_the_leader_stored_them() -> None:
    first = encode_batch([r._replace(offset=Offset(r.offset + 7)) for r in some_records(3)])
    compacted = encode_batch([Record(Offset(12), NOW + 50, b"k", b"v")], base_offset=Offset(10))
    emptied = encode_batch([], base_offset=Offset(13), last_offset_delta=2)
    appended = encode_batch(
        [Record(Offset(16), NOW, b"k", b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    whole = first + compacted + emptied + appended
    for cut in (0, 1, 30, 60, 61, len(first) - 1):
        result = validate_replicated(memoryview(whole + first[:cut]))
        assert [batch.header.base_offset for batch in result.batches] == [7, 10, 13, 16]
        assert result.size_bytes == len(whole)
        assert result.max_timestamp == NOW + 50
        written = b"".join(
            whole_prefix + b"".join(batch.parts)
            for batch in result.batches
            for whole_prefix in [offset_and_epoch_prefix(*batch.header[:3])]
        )
        assert written == whole


def test_follower_refuses_damage() -> None:
    good = some_batch()
    for bad in (
        altered(good, crc=1),
        altered(good, magic=1),
        altered(good, batch_length=20),
        altered(good, batch_length=-12, crc=0),
        altered(good, last_offset_delta=-1, record_count=0),
        altered(good, record_count=4),
        altered(good, record_count=-1),
    ):
        with pytest.raises(KafkaError):
            validate_replicated(good + bad)


def test_follower_takes_nothing_of_nothing() -> None:
    assert validate_replicated(b"") == ([], 0, NO_TIMESTAMP, NO_TIMESTAMP)
