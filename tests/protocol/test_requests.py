"""Reading requests: what clients write is understood, and no bytes at all can do harm.

The reader that kio brings aborts the whole process on lengths that memory has no room for; a test that finds
a way past the outline ends the test run with it.
"""

import resource
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbus.protocol.api import (
    ADVERTISED,
    ApiKey,
    MalformedRequestError,
    RequestPeek,
    Schema,
    UnsupportedVersionError,
    peek_request,
    schema_for,
    supported_schema,
)
from kbus.protocol.outline import MAX_ITEMS
from tests.protocol.requests import SCHEMAS, frames, requests

HUGE = b"\xff\xff\xff\xff\x0f"


@pytest.fixture(autouse=True, scope="module")
def _no_room_for_promises() -> Iterator[None]:
    """An array set aside by promise is not even tried where the machine would let it pass."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read(schema: Schema, frame: bytes) -> Any:
    return schema.read_request(memoryview(frame).toreadonly())[1]


# ---- what clients write


@given(requests())
@settings(max_examples=300, deadline=None)
def test_every_request_of_every_version_is_read_as_it_was_written(made: tuple[Schema, Any]) -> None:
    schema, request = made
    frame = schema.write_request(7, "client", request)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header, found, _ = schema.read_request(memoryview(frame)[4:].toreadonly())
    assert (header.correlation_id, header.client_id) == (7, "client")
    assert found == request


@pytest.mark.parametrize(("api", "version"), SCHEMAS)
def test_every_advertised_version_has_its_schema(api: ApiKey, version: int) -> None:
    peek = peek_request(memoryview(struct.pack(">hhi", api, version, 9)))
    assert peek == RequestPeek(api, version, 9)
    schema = supported_schema(peek)
    assert (schema.api_key, schema.version) == (api, version)
    assert ADVERTISED[api].min <= version <= ADVERTISED[api].max


@pytest.mark.parametrize(
    ("api_key", "version"), [(-1, 0), (4, 0), (ApiKey.FETCH, 99), (ApiKey.FETCH, -1), (ApiKey.PRODUCE, 0)]
)
def test_what_is_not_served_is_told_apart(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersionError):
        supported_schema(RequestPeek(api_key, version, 1))


@pytest.mark.parametrize("size", range(8))
def test_a_frame_without_room_for_a_header_is_malformed(size: int) -> None:
    with pytest.raises(MalformedRequestError):
        peek_request(memoryview(bytes(size)))


# ---- bytes that do harm


@given(frames(), st.data())
@settings(max_examples=400, deadline=None)
def test_a_request_with_bytes_changed_is_read_or_malformed(
    framed: tuple[Schema, bytes], data: st.DataObject
) -> None:
    schema, frame = framed
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(8, len(changed) - 1))
        changed[position] = data.draw(
            st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)
        )
    _read_or_malformed(schema, bytes(changed))


@given(frames(), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_a_request_cut_off_is_malformed_or_was_longer_than_it_needed(
    framed: tuple[Schema, bytes], length: int
) -> None:
    schema, frame = framed
    if length < len(frame) - 8:
        with pytest.raises(MalformedRequestError):
            read(schema, frame[: 8 + length])


@given(st.sampled_from(SCHEMAS), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_noise_is_read_or_malformed(chosen: tuple[ApiKey, int], noise: bytes) -> None:
    _read_or_malformed(schema_for(*chosen), struct.pack(">hhi", *chosen, 7) + noise)


@given(
    st.sampled_from(SCHEMAS), st.integers(0, 40), st.sampled_from([HUGE, b"\x7f\xff\xff\xff", b"\xff" * 4])
)
@settings(max_examples=400, deadline=None)
def test_a_huge_length_anywhere_is_read_or_malformed(
    chosen: tuple[ApiKey, int], position: int, length: bytes
) -> None:
    body = bytes(position) + length + bytes(60)
    _read_or_malformed(schema_for(*chosen), struct.pack(">hhih", *chosen, 7, -1) + body)


def _read_or_malformed(schema: Schema, frame: bytes) -> None:
    try:
        body = read(schema, frame)
    except MalformedRequestError:
        return
    for name in body.__dataclass_fields__:
        if not name.startswith("__"):
            getattr(body, name)


# ---- arrays


def array_of_names(count: int, present: int) -> bytes:
    name = struct.pack(">h1s", 1, b"t")
    return struct.pack(">hhihi", ApiKey.METADATA, 1, 7, -1, count) + name * present


def test_an_array_may_have_as_many_items_as_there_are_and_no_more() -> None:
    schema = schema_for(ApiKey.METADATA, 1)
    assert len(read(schema, array_of_names(3, 3)).topics) == 3
    for claimed in (4, 9, 10, 2**31 - 1):
        with pytest.raises(MalformedRequestError):
            read(schema, array_of_names(claimed, 3))


def test_the_items_of_all_arrays_of_a_request_are_limited() -> None:
    schema = schema_for(ApiKey.METADATA, 1)
    assert len(read(schema, array_of_names(MAX_ITEMS, MAX_ITEMS)).topics) == MAX_ITEMS
    with pytest.raises(MalformedRequestError, match=str(MAX_ITEMS)):
        read(schema, array_of_names(MAX_ITEMS + 1, MAX_ITEMS + 1))
    log_dirs = schema_for(ApiKey.DESCRIBE_LOG_DIRS, 1)
    half = struct.pack(">h1si", 1, b"t", MAX_ITEMS // 2) + bytes(4 * (MAX_ITEMS // 2))
    two_halves = struct.pack(">hhihi", ApiKey.DESCRIBE_LOG_DIRS, 1, 7, -1, 2) + half * 2
    with pytest.raises(MalformedRequestError, match=str(MAX_ITEMS)):
        read(log_dirs, two_halves)


# ---- tagged fields


def tagged(tag: int, value: bytes) -> bytes:
    return bytes([tag, len(value)]) + value


def fetch_request(tags: bytes, header_tags: bytes = b"\0") -> bytes:
    """Fetch v12 of nothing, with these tagged fields at its end."""
    fixed = struct.pack(">iiiibii", -1, 500, 1, 1000, 0, 0, -1)
    return struct.pack(">hhih", ApiKey.FETCH, 12, 7, -1) + header_tags + fixed + b"\x01\x01\x01" + tags


CLUSTER_ID = tagged(0, b"\x06kbus!")


@pytest.mark.parametrize(
    ("tags", "cluster_id"),
    [
        (b"\0", None),
        (b"\x01" + CLUSTER_ID, "kbus!"),
        (b"\x01" + tagged(9, b"new"), None),
        (b"\x02" + CLUSTER_ID + tagged(9, b"new"), "kbus!"),
        (b"\x03" + CLUSTER_ID + tagged(8, b"") + tagged(9, b"new"), "kbus!"),
        (b"\x02" + tagged(9, b"new") + CLUSTER_ID, "kbus!"),
    ],
)
def test_unknown_tagged_fields_are_skipped_and_known_ones_read(tags: bytes, cluster_id: str | None) -> None:
    schema = schema_for(ApiKey.FETCH, 12)
    for header_tags in (b"\0", b"\x01" + tagged(5, b"in the header")):
        request = read(schema, fetch_request(tags, header_tags))
        assert (request.cluster_id, request.max_bytes, request.rack_id) == (cluster_id, 1000, "")


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01" + bytes([0, 3]) + b"\x06kbus!",
        b"\x01" + bytes([0, 9]) + b"\x06kbus!",
        b"\x01" + bytes([9, 100]) + b"new",
        b"\x05" + CLUSTER_ID,
        HUGE,
    ],
    ids=["too short", "too long", "beyond the end", "fewer than told", "billions"],
)
def test_tagged_fields_that_do_not_fit_are_malformed(tags: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read(schema_for(ApiKey.FETCH, 12), fetch_request(tags))


def test_any_boolean_but_zero_is_true() -> None:
    """As Java reads them; kio takes 1 for the only truth."""
    schema = schema_for(ApiKey.DESCRIBE_CLUSTER, 0)
    head = struct.pack(">hhih", ApiKey.DESCRIBE_CLUSTER, 0, 7, -1) + b"\0"
    values = [
        read(schema, head + bytes([byte, 0])).include_cluster_authorized_operations for byte in (0, 1, 7)
    ]
    assert values == [False, True, True]
