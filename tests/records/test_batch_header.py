from kbus.records.batch import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    PREFIX_SIZE,
    Compression,
    TimestampType,
    make_attributes,
    offset_and_epoch_prefix,
    read_header,
    replace_attributes,
)
from kbus.records.crc import batch_crc, crc32c
from kbus.records.record import decode_records
from kbus.types import ProducerEpoch, ProducerId

from .builders import altered, some_batch, some_records


def test_crc_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_batch_crc_ignores_what_a_leader_patches() -> None:
    batch = some_batch()
    header = read_header(batch)
    patched = offset_and_epoch_prefix(77, header.batch_length, 5) + batch[PREFIX_SIZE:]
    assert batch_crc(patched) == batch_crc(memoryview(bytearray(batch))) == header.crc
    assert [r.offset for r in decode_records(patched)] == [77, 78, 79]
    assert read_header(patched).leader_epoch == 5


def test_last_sequence_wraps_and_stays_absent_without_sequences() -> None:
    wrapping = some_batch(
        3, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(0), base_sequence=MAX_SEQUENCE - 1
    )
    assert read_header(wrapping).last_sequence == 0
    assert read_header(some_batch(3)).last_sequence == -1


def test_attributes_keep_what_is_not_replaced() -> None:
    attributes = make_attributes(compression=Compression.ZSTD, transactional=True) | 0x4000
    replaced = replace_attributes(attributes, Compression.GZIP, TimestampType.LOG_APPEND_TIME)
    header = read_header(altered(some_batch(), attributes=replaced))
    assert header.compression_code == Compression.GZIP
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert not header.is_control
    assert header.attributes & 0x4000


def test_header_describes_the_records() -> None:
    records = some_records(4)
    batch = some_batch(4)
    header = read_header(batch)
    assert header.size == len(batch) > HEADER_SIZE
    assert (header.record_count, header.last_offset_delta) == (4, 3)
    assert (header.base_timestamp, header.max_timestamp) == (records[0].timestamp, records[-1].timestamp)
