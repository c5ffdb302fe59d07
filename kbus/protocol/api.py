"""The registry of Kafka's APIs over kio: one `Schema` for each API at each version.

kio has a set of classes for every version of every message. Handlers are written once for all versions:
they read a field that came late with `getattr(request, name, default)`, and build responses through
`Schema.build`, which leaves out the fields that the version at hand does not have.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from kbus.protocol.kio import (
    EntityType,
    SerialError,
    entity_reader,
    entity_writer,
    load_payload_module,
    schema_name_map,
)
from kbus.protocol.outline import Lifted, Outline
from kbus.protocol.scatter import Part, ScatterBuffer

Entity = Any
"""An instance of one of kio's generated dataclasses; which one depends on API and version."""


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPIC_PARTITIONS = 75


class VersionRange(NamedTuple):
    min: int
    max: int


_API_VERSIONS: dict[int, VersionRange] = {
    key: VersionRange(min(schema_name_map[key.name.lower()]), max(schema_name_map[key.name.lower()]))
    for key in ApiKey
}

ADVERTISED: dict[int, VersionRange] = {
    **_API_VERSIONS,
    # librdkafka takes brokers without Produce v0 for ones that lack the codecs, so Kafka 4 advertises 0
    # and refuses versions 0 to 2 all the same (KAFKA-18659).
    ApiKey.PRODUCE: VersionRange(0, _API_VERSIONS[ApiKey.PRODUCE].max),
}
"""What ApiVersions answers."""


class MalformedRequestError(Exception):
    """The bytes of a frame are not a request: the connection they came on cannot be trusted further."""


class UnsupportedVersionError(Exception):
    """The API or the version is not served here."""

    def __init__(self, peek: "RequestPeek") -> None:
        super().__init__(f"API {peek.api_key} version {peek.api_version} is not supported")
        self.peek = peek


class DecodedRequest(NamedTuple):
    header: Entity
    body: Entity
    records: Lifted | None
    """Where they are not None, the records of a large produce request, in the order of its partitions; the
    body then has empty ones. Good until the frame's buffer is used again: not across an await."""


class RequestPeek(NamedTuple):
    """The first eight bytes, which every request header of every version has."""

    api_key: int
    api_version: int
    correlation_id: int


_PEEK = struct.Struct(">hhi")


def peek_request(frame: memoryview) -> RequestPeek:
    if len(frame) < _PEEK.size:
        raise MalformedRequestError(f"a request of {len(frame)} bytes has no room for its header")
    return RequestPeek._make(_PEEK.unpack_from(frame))


class Schema:
    """One API at one version: reads requests, builds and writes responses (and the reverse, for clients)."""

    def __init__(self, api_key: ApiKey, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self._request_module = load_payload_module(api_key, version, EntityType.request)
        self._response_module = load_payload_module(api_key, version, EntityType.response)
        name = "".join(word.title() for word in api_key.name.split("_"))
        self._request = getattr(self._request_module, f"{name}Request")
        self._response = getattr(self._response_module, f"{name}Response")
        self._outline = Outline(self._request)
        self._read_request_header = entity_reader(self._request.__header_schema__)
        self._read_request = entity_reader(self._request)
        self._write_response_header = entity_writer(self._response.__header_schema__)
        self._write_response = entity_writer(self._response)

    def read_request(self, frame: memoryview) -> "DecodedRequest":
        """`frame` must be read-only. Only the records of what is returned are views of it."""
        try:
            frame, records = self._outline.checked(frame)
            header, header_size = self._read_request_header(frame, 0)
            body, _ = self._read_request(frame, header_size)
        except (SerialError, ValueError, OverflowError) as error:
            # kio raises ValueError, too, for numbers that are out of their range.
            raise MalformedRequestError(f"{self.api_key.name} v{self.version}: {error}") from error
        return DecodedRequest(header, body, records)

    def build(self, entity: str, /, **fields: Any) -> Entity:
        """A response entity by its class name, without the fields that this version lacks."""
        return _build(self._response_module, entity, fields)

    def response(self, **fields: Any) -> Entity:
        return _build(self._response_module, self._response.__name__, fields)

    def write_response(self, correlation_id: int, response: Entity) -> list[Part]:
        """The response frame, size prefix included, as what a socket can send part by part."""
        buffer: Any = ScatterBuffer()
        self._write_response_header(buffer, self._response.__header_schema__(correlation_id=correlation_id))
        self._write_response(buffer, response)
        parts: list[Part] = buffer.frame()
        return parts

    def build_request(self, entity: str, /, **fields: Any) -> Entity:
        return _build(self._request_module, entity, fields)

    def request(self, **fields: Any) -> Entity:
        return _build(self._request_module, self._request.__name__, fields)

    def write_request(self, correlation_id: int, client_id: str, request: Entity) -> bytes:
        buffer: Any = ScatterBuffer()
        header_type = self._request.__header_schema__
        entity_writer(header_type)(
            buffer,
            header_type(
                request_api_key=self.api_key,
                request_api_version=self.version,
                correlation_id=correlation_id,
                client_id=client_id,
            ),
        )
        entity_writer(self._request)(buffer, request)
        request_frame: bytes = b"".join(buffer.frame())
        return request_frame

    def read_response(self, frame: memoryview) -> tuple[Entity, Entity]:
        header, header_size = entity_reader(self._response.__header_schema__)(frame, 0)
        body, _ = entity_reader(self._response)(frame, header_size)
        return header, body


@cache
def schema_for(api_key: int, version: int) -> Schema:
    """Loaded on first use: all versions of all APIs together would cost 0.4 s of start-up."""
    return Schema(ApiKey(api_key), version)


def supported_schema(peek: RequestPeek) -> Schema:
    versions = _API_VERSIONS.get(peek.api_key)
    if versions is None or not versions.min <= peek.api_version <= versions.max:
        raise UnsupportedVersionError(peek)
    return schema_for(peek.api_key, peek.api_version)


def _build(module: ModuleType, entity: str, fields: dict[str, Any]) -> Entity:
    make, known = _constructor(module, entity)
    return make(**{name: value for name, value in fields.items() if name in known})


@cache
def _constructor(module: ModuleType, entity: str) -> tuple[Callable[..., Entity], frozenset[str]]:
    cls = getattr(module, entity)
    return cls, frozenset(name for name in cls.__dataclass_fields__ if not name.startswith("__"))
