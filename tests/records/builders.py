"""Batches for tests, and damaged ones whose CRC is right, so that the check behind it has to find it."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import HEADER_SIZE, Compression, read_header, write_header
from kbus.records.crc import seal
from kbus.records.record import Record, encode_batch
from kbus.types import Offset

NOW = 1_700_000_000_000

COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]

field = st.none() | st.binary(max_size=200)
header_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.binary(max_size=10).map(
    lambda key: key.decode(errors="surrogateescape")
)
headers = st.lists(st.tuples(header_keys, field), max_size=4).map(tuple)
timestamps = st.integers(min_value=-1, max_value=2**48)


@st.composite
def record_lists(draw: st.DrawFn, *, gaps: bool = False, min_size: int = 1) -> list[Record]:
    offset = draw(st.integers(min_value=0, max_value=2**40)) if gaps else 0
    records = []
    for _ in range(draw(st.integers(min_value=min_size, max_value=12))):
        records.append(
            Record(Offset(offset), draw(timestamps), draw(field), draw(field), draw(headers)),
        )
        offset += draw(st.integers(min_value=1, max_value=2**20)) if gaps else 1
    return records


def some_records(count: int = 3, *, timestamp: int = NOW, value_size: int = 10) -> list[Record]:
    return [
        Record(
            Offset(i), timestamp + i, b"k%d" % i, b"%d" % (i % 10) * value_size, (("h", b"v"), ("n", None))
        )
        for i in range(count)
    ]


def some_batch(count: int = 3, **options: Any) -> bytes:
    return encode_batch(some_records(count), **options)


def altered(batch: bytes, **fields: Any) -> bytes:
    """`batch` with other header fields and a CRC (unless given) that fits them."""
    payload = batch[HEADER_SIZE:]
    header = seal(read_header(batch)._replace(**fields), payload)
    wanted = {name: fields[name] for name in ("crc", "batch_length") if name in fields}
    return write_header(header._replace(**wanted)) + payload


def with_payload(batch: bytes, payload: bytes, **fields: Any) -> bytes:
    """`batch` with `payload` in place of its records."""
    return write_header(seal(read_header(batch)._replace(**fields), payload)) + payload


def error_of(call: Callable[[], object]) -> ErrorCode | None:
    """The code that `call` is refused with, if it is; any other exception passes."""
    try:
        call()
    except KafkaError as error:
        return error.code
    return None
