from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import (
    HEADER_SIZE,
    Compression,
    TimestampType,
    read_header,
)
from kbus.records.compression import compress
from kbus.records.crc import batch_crc
from kbus.records.record import MIN_RECORD_SIZE, Record, decode_records, encode_batch
from kbus.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

from .builders import NOW, altered, error_of, record_lists, some_batch, some_records, with_payload

REFUSALS = (
    ErrorCode.corrupt_message,
    ErrorCode.invalid_record,
    ErrorCode.unsupported_compression_type,
    ErrorCode.unsupported_for_message_format,
)


@given(record_lists(gaps=True), st.sampled_from(Compression))
def test_records_come_back_as_they_were_encoded(records: list[Record], codec: Compression) -> None:
    batch = encode_batch(records, compression=codec)
    header = read_header(batch)
    assert header.crc == batch_crc(batch)
    assert header.size == len(batch)
    assert header.max_timestamp == max(record.timestamp for record in records)
    for buffer in (batch, bytearray(batch), memoryview(batch), batch + b"the next batch"):
        assert list(decode_records(buffer, header)) == records
    assert list(decode_records(batch)) == records


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 8190, 8191, 8192, 1_048_575, 1_048_576, 3_000_000])
def test_lengths_around_varint_boundaries_are_kept(size: int) -> None:
    record = Record(Offset(0), NOW, bytes(size), bytes(size), (("h" * size, bytes(size)),))
    assert list(decode_records(encode_batch([record]))) == [record]


@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, 2**20, 2**31 - 1])
def test_offset_deltas_around_varint_boundaries_are_kept(delta: int) -> None:
    records = [Record(Offset(5), NOW, None, None), Record(Offset(5 + delta), NOW, None, None)]
    assert list(decode_records(encode_batch(records[1:], base_offset=Offset(5)))) == records[1:]


@pytest.mark.parametrize("timestamp", [-1, 0, NOW - 2**40, NOW + 63, NOW - 64, NOW - 65, 2**63 - 1])
def test_timestamps_far_apart_are_kept(timestamp: int) -> None:
    records = [Record(Offset(0), NOW, None, None), Record(Offset(1), timestamp, None, None)]
    assert list(decode_records(encode_batch(records))) == records


def test_log_append_time_overrides_the_timestamps_of_records() -> None:
    batch = some_batch(3, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW + 5000)
    assert [record.timestamp for record in decode_records(batch)] == [NOW + 5000] * 3


def test_header_carries_what_was_asked_for() -> None:
    batch = some_batch(
        2,
        base_offset=Offset(0),
        leader_epoch=LeaderEpoch(7),
        producer_id=ProducerId(2**40),
        producer_epoch=ProducerEpoch(3),
        base_sequence=11,
        transactional=True,
        control=True,
        compression=Compression.LZ4,
    )
    header = read_header(batch)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (7, 2**40, 3)
    assert (header.base_sequence, header.last_sequence) == (11, 12)
    assert header.is_transactional
    assert header.is_control
    assert header.compression_code == Compression.LZ4


def test_batch_without_records_keeps_its_offsets() -> None:
    batch = encode_batch([], base_offset=Offset(100), last_offset_delta=4, max_timestamp=NOW)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 104, 0)
    assert list(decode_records(batch)) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda: encode_batch([]),
        lambda: encode_batch([], base_offset=Offset(1)),
        lambda: encode_batch(some_records(3), last_offset_delta=1),
        lambda: encode_batch(some_records(3), base_offset=Offset(1)),
        lambda: encode_batch(list(reversed(some_records(3)))),
        lambda: encode_batch(some_records(1) * 2),
        lambda: encode_batch([Record(Offset(2**31), NOW, None, None)], base_offset=Offset(0)),
    ],
)
def test_offsets_that_make_no_batch_are_refused(build: Callable[[], bytes]) -> None:
    with pytest.raises(ValueError, match="offset"):
        build()


TINY = bytes([MIN_RECORD_SIZE * 2 - 2, 0, 0, 0, 1, 1, 0])
"""The smallest record: no key, no value, no headers."""


def tiny(*body: int) -> bytes:
    """A record of these bytes behind its length."""
    return bytes([len(body) * 2, *body])


MALFORMED = {
    "no bytes at all": b"",
    "length alone": TINY[:1],
    "cut inside": TINY[:-1],
    "negative length": bytes([1]) + TINY[1:],
    "odd length": bytes([TINY[0] + 1]) + TINY[1:],
    "length beyond the batch": bytes([200, 1]) + TINY[1:],
    "length one too short": bytes([TINY[0] - 2]) + TINY[1:],
    "length one too long": bytes([TINY[0] + 2]) + TINY[1:] + b"\0",
    "length of zero": b"\0",
    "length of six bytes": b"\x8c\x80\x80\x80\x80\x00" + TINY[1:],
    "length beyond 32 bits": b"\x8c\x80\x80\x80\x10" + TINY[1:],
    "bytes behind the last record": TINY + b"\0",
    "a record more than counted": TINY * 2,
    "timestamp delta without an end": tiny(0, *[0x80] * 11),
    "timestamp delta of eleven bytes": tiny(0, *[0x80] * 10, 0, 0, 1, 1, 0),
    "timestamp delta beyond 64 bits": tiny(0, *[0xFF] * 9, 2, 0, 1, 1, 0),
    "timestamp beyond 64 bits": tiny(0, 0xFE, *[0xFF] * 8, 1, 0, 1, 1, 0),
    "negative offset delta": tiny(0, 0, 1, 1, 1, 0),
    "offset delta beyond 32 bits": tiny(0, 0, *[0x80] * 4, 0x10, 1, 1, 0),
    "key length of minus two": tiny(0, 0, 0, 3, 1, 0),
    "key beyond the record": tiny(0, 0, 0, 100, 1, 0),
    "huge key": tiny(0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 1, 0),
    "value length of minus two": tiny(0, 0, 0, 1, 3, 0),
    "value beyond the record": tiny(0, 0, 0, 1, 100, 0),
    "negative header count": tiny(0, 0, 0, 1, 1, 1),
    "huge header count": tiny(0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F),
    "missing header": tiny(0, 0, 0, 1, 1, 2),
    "null header key": tiny(0, 0, 0, 1, 1, 2, 1, 1),
    "header key beyond the record": tiny(0, 0, 0, 1, 1, 2, 100, 1),
    "header value length of minus two": tiny(0, 0, 0, 1, 1, 2, 0, 3),
    "header value beyond the record": tiny(0, 0, 0, 1, 1, 2, 0, 100),
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_malformed_records_are_refused(payload: bytes, codec: Compression) -> None:
    batch = with_payload(some_batch(1), compress(codec, payload), attributes=int(codec))
    with pytest.raises(KafkaError) as caught:
        list(decode_records(batch))
    assert caught.value.code is ErrorCode.invalid_record


def test_smallest_record_is_read() -> None:
    assert len(TINY) == MIN_RECORD_SIZE
    assert list(decode_records(with_payload(some_batch(1), TINY))) == [Record(Offset(0), NOW, None, None)]


def test_key_that_runs_into_the_next_record_is_refused() -> None:
    first = tiny(0, 0, 0, MIN_RECORD_SIZE * 2, 1, 0)
    batch = with_payload(some_batch(2), first + TINY + TINY, record_count=3, last_offset_delta=2)
    assert error_of(lambda: list(decode_records(batch))) is ErrorCode.invalid_record


def test_record_that_is_cut_off_is_not_returned() -> None:
    header_value_of_50_bytes = bytes([58 * 2, 0, 0, 0, 1, 1, 2, 0, 50 * 2])
    assert (
        len(list(decode_records(with_payload(some_batch(1), header_value_of_50_bytes + bytes(49) + b"!"))))
        == 1
    )
    cut = with_payload(some_batch(1), header_value_of_50_bytes + bytes(49))
    assert error_of(lambda: next(decode_records(cut))) is ErrorCode.invalid_record


def test_negative_count_is_refused_without_records_too() -> None:
    batch = with_payload(some_batch(1), b"", record_count=-1)
    assert error_of(lambda: list(decode_records(batch))) is ErrorCode.invalid_record


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
def test_wrong_count_is_refused(count: int) -> None:
    batch = altered(some_batch(3), record_count=count)
    assert error_of(lambda: list(decode_records(batch))) is ErrorCode.invalid_record


def test_batch_that_cannot_be_one_is_refused() -> None:
    batch = some_batch()
    assert error_of(lambda: decode_records(batch[:-1])) is ErrorCode.corrupt_message
    assert error_of(lambda: decode_records(batch[: HEADER_SIZE - 1])) is ErrorCode.corrupt_message
    assert error_of(lambda: decode_records(altered(batch, batch_length=48))) is ErrorCode.corrupt_message
    assert error_of(lambda: decode_records(altered(batch, batch_length=-5))) is ErrorCode.corrupt_message
    unknown_codec = altered(batch, attributes=5)
    assert error_of(lambda: decode_records(unknown_codec)) is ErrorCode.unsupported_compression_type
    old = altered(batch, magic=1)
    assert error_of(lambda: decode_records(old)) is ErrorCode.unsupported_for_message_format


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=40))
def test_random_bytes_raise_nothing_but_refusals(payload: bytes, count: int) -> None:
    batch = with_payload(some_batch(1), payload, record_count=count)
    assert error_of(lambda: list(decode_records(batch))) in (None, *REFUSALS)


@given(st.binary(max_size=400))
def test_random_batches_raise_nothing_but_refusals(batch: bytes) -> None:
    assert error_of(lambda: list(decode_records(batch, max_bytes=2**20))) in (None, *REFUSALS)


@given(record_lists(), st.sampled_from(Compression), st.data())
def test_flipped_bits_raise_nothing_but_refusals(
    records: list[Record], codec: Compression, data: st.DataObject
) -> None:
    damaged = bytearray(encode_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(min_value=1, max_value=5))):
        bit = data.draw(st.integers(min_value=0, max_value=len(damaged) * 8 - 1))
        damaged[bit // 8] ^= 1 << bit % 8
    assert error_of(lambda: list(decode_records(damaged, max_bytes=2**20))) in (None, *REFUSALS)
