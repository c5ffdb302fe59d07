"""Kafka's protocol spoken by hand: a blocking socket, any API in any version, and bytes that are no request.

A request is written once for all versions, as nested `Struct`s; fields that a version lacks are left out.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

from kbus.protocol.api import ADVERTISED, ApiKey, Entity, Schema, VersionRange, schema_for
from kbus.protocol.errors import ErrorCode
from kbus.protocol.kio import schema_name_map
from kbus.records.batch import Compression
from kbus.records.record import Record, encode_batch
from kbus.types import Offset

TIMEOUT_S = 30.0
_SIZE = struct.Struct(">i")


class ClosedByNodeError(Exception):
    """The node closed the connection instead of answering."""


class Struct:
    """An entity of a request, made when the version is known."""

    def __init__(self, entity: str, /, **fields: Any) -> None:
        self.entity = entity
        self.fields = fields


def versions(api: ApiKey) -> VersionRange:
    """What is really served: Produce is advertised from version 0 on."""
    found = schema_name_map[api.name.lower()]
    return VersionRange(min(found), max(found))


def latest(api: ApiKey) -> int:
    return ADVERTISED[api].max


def every_version(*apis: ApiKey) -> list[tuple[ApiKey, int]]:
    return [(api, version) for api in apis for version in range(versions(api).min, versions(api).max + 1)]


def _resolve(schema: Schema, value: Any) -> Any:
    if isinstance(value, Struct):
        fields = {name: _resolve(schema, field) for name, field in value.fields.items()}
        try:
            return schema.build_request(value.entity, **fields)
        except AttributeError:
            return None  # a version without that kind of entity has no field for it either
    if isinstance(value, list | tuple):
        return tuple(_resolve(schema, item) for item in value)
    return value


def request_frame(
    api: ApiKey, version: int, correlation_id: int = 1, client_id: str = "wire", **fields: Any
) -> bytes:
    """A whole request, its size in front."""
    schema = schema_for(api, version)
    request = schema.request(**{name: _resolve(schema, value) for name, value in fields.items()})
    return schema.write_request(correlation_id, client_id, request)


class Wire:
    """`with Wire(port) as wire: wire.call(ApiKey.METADATA, 12, topics=None)`"""

    def __init__(self, port: int, *, timeout_s: float = TIMEOUT_S, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.connect(("127.0.0.1", port))
        except BaseException:
            self._socket.close()
            raise
        self._correlation_id = 0

    def call(self, api: ApiKey, version: int, **fields: Any) -> Entity:
        return self.receive(api, version, self.send(api, version, **fields))

    def send(self, api: ApiKey, version: int, **fields: Any) -> int:
        """Returns the correlation id by which `receive` knows the answer."""
        self._correlation_id += 1
        self.send_bytes(request_frame(api, version, self._correlation_id, **fields))
        return self._correlation_id

    def begin_long_poll(self, version: int, **fields: Any) -> int:
        """Sends a fetch and returns when the node has taken it, which its next answer, to another request
        sent before it in the same packet, shows."""
        self._correlation_id += 2
        asked = request_frame(ApiKey.API_VERSIONS, 0, self._correlation_id - 1)
        self.send_bytes(asked + request_frame(ApiKey.FETCH, version, self._correlation_id, **fields))
        self.receive(ApiKey.API_VERSIONS, 0, self._correlation_id - 1)
        return self._correlation_id

    def receive(self, api: ApiKey, version: int, correlation_id: int) -> Entity:
        header, body = schema_for(api, version).read_response(memoryview(self.receive_frame()))
        assert header.correlation_id == correlation_id, "answers come in the order of the requests"
        return body

    def send_bytes(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size,) = _SIZE.unpack(self._receive_exactly(_SIZE.size))
        return self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self._socket.recv(count - len(data))
            except ConnectionError as error:
                raise ClosedByNodeError from error
            if not chunk:
                raise ClosedByNodeError
            data += chunk
        return bytes(data)

    def is_closed_by_node(self, *, within_s: float = TIMEOUT_S) -> bool:
        """Waits for the end of the connection and reads away whatever comes before it."""
        self._socket.settimeout(within_s)
        try:
            while self._socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def reset(self) -> None:
        """Goes away without a goodbye."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def connected(port: int, count: int) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(port)) for _ in range(count)]


# ---- requests that many tests make


def batch_of(*values: bytes | None, key: bytes | None = b"k", timestamp: int = 1000, **options: Any) -> bytes:
    """A batch at base offset 0, one record a millisecond. `options` are those of `encode_batch`."""
    return encode_batch(
        [Record(Offset(i), timestamp + i, key, value, ()) for i, value in enumerate(values)],
        compression=options.pop("compression", Compression.NONE),
        **options,
    )


def create_topic(
    wire: Wire,
    name: str,
    *,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    expect: ErrorCode = ErrorCode.none,
) -> UUID:
    response = wire.call(
        ApiKey.CREATE_TOPICS,
        latest(ApiKey.CREATE_TOPICS),
        topics=[
            Struct(
                "CreatableTopic",
                name=name,
                num_partitions=partitions,
                replication_factor=-1,
                assignments=[],
                configs=[
                    Struct("CreatableTopicConfig", name=key, value=value)
                    for key, value in (config or {}).items()
                ],
            )
        ],
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    (topic,) = response.topics
    assert topic.error_code is expect, (topic.error_code, topic.error_message)
    topic_id: UUID = topic.topic_id
    return topic_id


def produce_fields(
    topic: str | UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = 1,
    timeout_s: float = TIMEOUT_S,
    transactional_id: str | None = None,
) -> dict[str, Any]:
    name = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=timeout_s),
        "topic_data": [
            Struct(
                "TopicProduceData",
                partition_data=[Struct("PartitionProduceData", index=partition, records=records)],
                **name,
            )
        ],
    }


def produce(
    wire: Wire, topic: str | UUID, records: bytes | None, *, version: int | None = None, **options: Any
) -> Entity:
    """Returns the partition's part of the response."""
    if version is None:
        version = latest(ApiKey.PRODUCE) if isinstance(topic, UUID) else 12
    response = wire.call(ApiKey.PRODUCE, version, **produce_fields(topic, records, **options))
    ((partition,),) = (entry.partition_responses for entry in response.responses)
    return partition


def fetch_fields(
    *partitions: tuple[str | UUID, int, int],
    max_wait_s: float = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 10 << 20,
    isolation_level: int = 0,
    replica_id: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: tuple[tuple[str | UUID, int], ...] = (),
    **partition_fields: Any,
) -> dict[str, Any]:
    """`partitions` are (topic, partition, fetch offset)."""

    def named(topic: str | UUID) -> dict[str, Any]:
        return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}

    return {
        "replica_id": replica_id,
        "replica_state": Struct("ReplicaState", replica_id=replica_id, replica_epoch=-1),
        "max_wait": timedelta(seconds=max_wait_s),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [
            Struct(
                "FetchTopic",
                partitions=[
                    Struct(
                        "FetchPartition",
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        **partition_fields,
                    )
                ],
                **named(topic),
            )
            for topic, partition, offset in partitions
        ],
        "forgotten_topics_data": [
            Struct("ForgottenTopic", partitions=[partition], **named(topic)) for topic, partition in forgotten
        ],
        "rack_id": "",
    }


def fetch(
    wire: Wire,
    topic: str | UUID,
    offset: int,
    *,
    partition: int = 0,
    version: int | None = None,
    **fields: Any,
) -> Entity:
    """Returns the partition's part of the response."""
    if version is None:
        version = latest(ApiKey.FETCH) if isinstance(topic, UUID) else 12
    response = wire.call(ApiKey.FETCH, version, **fetch_fields((topic, partition, offset), **fields))
    ((found,),) = (entry.partitions for entry in response.responses)
    return found


def list_offset(
    wire: Wire, topic: str, timestamp: int, *, partition: int = 0, version: int | None = None, **fields: Any
) -> Entity:
    """Returns the partition's part of the response."""
    partition_fields = {"current_leader_epoch": fields.pop("current_leader_epoch", -1)}
    response = wire.call(
        ApiKey.LIST_OFFSETS,
        latest(ApiKey.LIST_OFFSETS) if version is None else version,
        **{"replica_id": -1, "isolation_level": 0, "timeout": timedelta(seconds=TIMEOUT_S), **fields},
        topics=[
            Struct(
                "ListOffsetsTopic",
                name=topic,
                partitions=[
                    Struct(
                        "ListOffsetsPartition",
                        partition_index=partition,
                        timestamp=timestamp,
                        **partition_fields,
                    )
                ],
            )
        ],
    )
    ((found,),) = (entry.partitions for entry in response.topics)
    return found


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def end_offset(wire: Wire, topic: str, partition: int = 0) -> int:
    offset: int = list_offset(wire, topic, LATEST, partition=partition).offset
    return offset
