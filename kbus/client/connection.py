"""One connection to one broker, for what librdkafka does not offer: raw questions to a certain broker."""

import asyncio
import struct
from typing import Any, Final

from kbus.protocol.api import ApiKey, Entity, Schema, schema_for
from kbus.protocol.kio import SerialError

CLIENT_ID: Final = "kbus-tool"
_SIZE = struct.Struct(">i")
_MAX_RESPONSE_BYTES: Final = 100 * 1024 * 1024


class Struct:
    """An entity inside a request, made when the version is known; fields that it lacks are left out."""

    __slots__ = ("entity", "fields")

    def __init__(self, entity: str, /, **fields: Any) -> None:
        self.entity = entity
        self.fields = fields


class Connection:
    """Asks one question at a time. Whatever goes wrong on the way, a timeout and nonsense for an answer
    included, is an OSError and the end of the connection: an answer may still be under way, and would be
    taken for that of the next question."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def open(cls, host: str, port: int, *, timeout_s: float) -> "Connection":
        async with asyncio.timeout(timeout_s):
            return cls(*await asyncio.open_connection(host, port))

    async def ask(self, api: ApiKey, version: int, /, *, timeout_s: float, **fields: Any) -> Entity:
        """The body of the answer. No versions are negotiated: ask for those that every broker has."""
        schema = schema_for(api, version)
        self._correlation_id += 1
        request = schema.request(**{name: _resolved(schema, value) for name, value in fields.items()})
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(schema.write_request(self._correlation_id, CLIENT_ID, request))
                header, body = schema.read_response(await self._read_frame())
            if header.correlation_id != self._correlation_id:
                raise ConnectionAbortedError(f"the answer to another question ({header.correlation_id}) came")
        except asyncio.IncompleteReadError as error:
            self.abort()
            raise ConnectionResetError("the broker closed the connection") from error
        except SerialError as error:
            self.abort()
            raise ConnectionAbortedError(f"the answer cannot be read ({error})") from error
        except BaseException:
            self.abort()
            raise
        return body

    async def _read_frame(self) -> memoryview:
        (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
        if not 0 < size <= _MAX_RESPONSE_BYTES:
            raise ConnectionAbortedError(f"an answer of {size} bytes was announced")
        return memoryview(await self._reader.readexactly(size))

    def abort(self) -> None:
        """At once; without effect on a connection that has ended."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it had ended by itself


def _resolved(schema: Schema, value: Any) -> Any:
    if isinstance(value, Struct):
        fields = {name: _resolved(schema, field) for name, field in value.fields.items()}
        return schema.build_request(value.entity, **fields)
    if isinstance(value, list | tuple):
        return tuple(_resolved(schema, item) for item in value)
    return value
