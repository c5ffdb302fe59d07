"""The record builders and parsers of other clients agree with ours, both ways, for every codec they have."""

import warnings
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given
from hypothesis import strategies as st

from kbus.records.batch import Compression, TimestampType, read_header
from kbus.records.crc import batch_crc
from kbus.records.record import Record, decode_records, encode_batch
from kbus.records.validation import AppendRules, validate_for_append
from kbus.types import Offset, ProducerEpoch, ProducerId

from .builders import NOW, record_lists, some_records

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_python

_KAFKA_PYTHON_CODECS = [
    Compression.NONE,
    Compression.GZIP,
    *([Compression.SNAPPY] if kafka.codec.has_snappy() else []),
    *([Compression.LZ4] if kafka.codec.has_lz4() else []),
    *([Compression.ZSTD] if kafka.codec.has_zstd() else []),
]

CLIENTS = [
    *[pytest.param(aiokafka_records, codec, id=f"aiokafka-{codec.name}") for codec in Compression],
    *[pytest.param(kafka_python, codec, id=f"kafka-python-{codec.name}") for codec in _KAFKA_PYTHON_CODECS],
]


def plain_records() -> list[Record]:
    """Nulls, empties, headers and sizes; header keys are text here, since the others decode them strictly."""
    return [
        Record(Offset(0), NOW, None, None),
        Record(Offset(1), NOW + 70, b"", b""),
        Record(Offset(2), NOW - 9000, b"key", None, (("h", b"v"), ("h", None), ("ü", b""))),
        Record(Offset(3), NOW + 2**33, None, bytes(70_000)),
        *[Record(Offset(i), NOW + i, b"%d" % i, b"value %d " % i * (i % 50)) for i in range(4, 300)],
    ]


def built_by(module: Any, records: Iterable[Record], codec: Compression, **options: Any) -> bytes:
    fields = {
        "is_transactional": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "batch_size": 2**30,
    }
    builder = module.DefaultRecordBatchBuilder(magic=2, compression_type=int(codec), **(fields | options))
    for record in records:
        headers = list(record.headers)
        assert builder.append(record.offset, record.timestamp, record.key, record.value, headers) is not None
    return bytes(builder.build())


def parsed_by(module: Any, batch: bytes) -> list[Record]:
    parsed = module.DefaultRecordBatch(bytearray(batch) if module is kafka_python else batch)
    assert parsed.validate_crc()
    return [
        Record(
            Offset(r.offset),
            r.timestamp,
            None if r.key is None else bytes(r.key),
            None if r.value is None else bytes(r.value),
            tuple((key, None if value is None else bytes(value)) for key, value in r.headers),
        )
        for r in parsed
    ]


@pytest.mark.parametrize(("module", "codec"), CLIENTS)
def test_what_others_build_is_read(module: Any, codec: Compression) -> None:
    batch = built_by(module, plain_records(), codec)
    header = read_header(batch)
    assert header.compression_code == codec
    assert batch_crc(batch) == header.crc
    assert list(decode_records(batch, header)) == plain_records()


@pytest.mark.parametrize(("module", "codec"), CLIENTS)
def test_what_is_built_here_is_read_by_others(module: Any, codec: Compression) -> None:
    batch = encode_batch(plain_records(), compression=codec)
    assert parsed_by(module, batch) == plain_records()


@pytest.mark.parametrize(("module", "codec"), CLIENTS)
def test_large_batches_cross_both_ways(module: Any, codec: Compression) -> None:
    records = some_records(2000, value_size=1500)
    assert list(decode_records(built_by(module, records, codec))) == records
    assert parsed_by(module, encode_batch(records, compression=codec)) == records


@pytest.mark.parametrize("module", [aiokafka_records, kafka_python], ids=["aiokafka", "kafka-python"])
def test_uncompressed_batches_are_the_same_to_the_byte(module: Any) -> None:
    producer: dict[str, Any] = {
        "producer_id": ProducerId(77),
        "producer_epoch": ProducerEpoch(2),
        "base_sequence": 5,
    }
    theirs = built_by(module, plain_records(), Compression.NONE, is_transactional=True, **producer)
    header = read_header(theirs)
    ours = encode_batch(plain_records(), transactional=True, leader_epoch=header.leader_epoch, **producer)
    assert ours == theirs


@pytest.mark.parametrize(("module", "codec"), CLIENTS)
def test_batches_of_others_are_accepted_and_recompressed_for_others(module: Any, codec: Compression) -> None:
    batch = built_by(module, plain_records(), codec)
    for target in Compression:
        result = validate_for_append(batch, AppendRules(compression=target), NOW)
        (validated,) = result.batches
        written = batch[:8] + validated.header.batch_length.to_bytes(4) + bytes(4) + b"".join(validated.parts)
        assert parsed_by(aiokafka_records, written) == plain_records()
        if target in _KAFKA_PYTHON_CODECS:
            assert parsed_by(kafka_python, written) == plain_records()


@pytest.mark.parametrize("module", [aiokafka_records, kafka_python], ids=["aiokafka", "kafka-python"])
def test_log_append_time_is_read_alike(module: Any) -> None:
    rules = AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
    (validated,) = validate_for_append(encode_batch(some_records()), rules, NOW + 1234).batches
    written = bytes(8) + validated.header.batch_length.to_bytes(4) + bytes(4) + b"".join(validated.parts)
    assert [r.timestamp for r in parsed_by(module, written)] == [NOW + 1234] * 3


@given(record_lists(), st.sampled_from([aiokafka_records, kafka_python]))
def test_any_records_are_read_alike(records: list[Record], module: Any) -> None:
    # aiokafka takes a first timestamp of -1 for one that is yet to come.
    records = [
        r._replace(
            timestamp=max(r.timestamp, 0), headers=tuple((f"h{i}", v) for i, (_, v) in enumerate(r.headers))
        )
        for r in records
    ]
    batch = encode_batch(records)
    assert (
        parsed_by(module, batch)
        == records
        == list(decode_records(built_by(module, records, Compression.NONE)))
    )
