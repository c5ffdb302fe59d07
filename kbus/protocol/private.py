"""What nodes say to each other beside Kafka's protocol: private API keys in the same frames, msgpack bodies.

The control messages of Kafka's ZooKeeper era have left its public protocol. These take their place: fewer,
and evolving by the keys of a map. A connection has to begin with `Hello`, which carries the cluster's
secret from ZooKeeper; without it every other private request, and every fetch in a replica's name, is
refused.
"""

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Self, TypeVar

import msgpack

from kbus.protocol.errors import ErrorCode

FIRST_PRIVATE_KEY: Final = 20_000
VERSION: Final = 0
_HEADER = struct.Struct(">ihhi")
_RESPONSE_HEADER = struct.Struct(">ii")


class PrivateKey(IntEnum):
    HELLO = 20_000
    CLUSTER_UPDATE = 20_001
    LEAVE = 20_002
    FORWARD = 20_003


class MalformedPrivateMessage(ValueError):  # noqa: N818 - says what it is
    """The body of a private message is not what belongs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first request on a connection between nodes."""

    key: ClassVar = PrivateKey.HELLO
    secret: str
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUpdate:
    """From the controller to a broker: who is there, and what leads what.

    `full`: topics that are not in it do not exist. Otherwise it has the topics that changed, whole."""

    key: ClassVar = PrivateKey.CLUSTER_UPDATE
    controller_id: int
    controller_epoch: int
    broker_epoch: int
    """Of the registration that it is meant for."""
    brokers: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    removed_topics: list[str]
    full: bool
    broker_config: dict[str, str]
    default_config: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """From a broker that wants to stop to the controller: take over what it leads."""

    key: ClassVar = PrivateKey.LEAVE
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A client's request that only the controller can serve, as it came in, for the answer to go back."""

    key: ClassVar = PrivateKey.FORWARD
    frame: bytes
    peer_host: str
    listener: str


PrivateRequest = Hello | ClusterUpdate | Leave | Forward
_TYPES: Final[Mapping[int, type[PrivateRequest]]] = {
    kind.key: kind for kind in (Hello, ClusterUpdate, Leave, Forward)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to every private request."""

    error: int = ErrorCode.none
    message: str | None = None
    remaining: int = 0
    """Partitions that a leaving broker still leads."""
    frame: bytes = b""
    """The response to a forwarded request, from its correlation id on."""

    def to_bytes(self, correlation_id: int) -> bytes:
        body = _pack(dataclasses.asdict(self))
        return _RESPONSE_HEADER.pack(len(body) + 4, correlation_id) + body

    @classmethod
    def from_bytes(cls, body: memoryview) -> Self:
        return _unpack(cls, body)


def encode_request(correlation_id: int, request: PrivateRequest) -> bytes:
    body = _pack(dataclasses.asdict(request))
    return _HEADER.pack(len(body) + 8, request.key, VERSION, correlation_id) + body


def decode_request(api_key: int, body: memoryview) -> PrivateRequest:
    kind = _TYPES.get(api_key)
    if kind is None:
        raise MalformedPrivateMessage(f"there is no private API {api_key}")
    return _unpack(kind, body)


def _pack(fields: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


T = TypeVar("T")


def _unpack(kind: type[T], body: memoryview) -> T:
    """Unknown keys are ignored, so that a newer node may say more."""
    try:
        fields = msgpack.unpackb(body, raw=False, strict_map_key=False)
        known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: value for name, value in fields.items() if name in known})
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise MalformedPrivateMessage(f"{kind.__name__}: {error}") from error
