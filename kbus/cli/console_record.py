"""A record on its way from a console into a topic, and its form as a line of JSON."""

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = list[tuple[str, bytes | None]]


class InputError(ValueError):
    """A line of the input cannot be made a record. The text says what is wrong with it."""


class ConsoleRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None


_TAKEN = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"}
_IGNORED = {"topic", "offset", "timestamp_type", "leader_epoch"}
"""Written by the consumer, and of no meaning when the record is sent to a topic again."""


def to_json(message: "Message") -> bytes:
    """One line. Bytes that are not UTF-8 are in a field of their own, so that nothing is lost either way."""
    timestamp_type, timestamp_ms = message.timestamp()
    fields: dict[str, object] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if timestamp_type else None,
        "timestamp_type": TIMESTAMP_TYPES[timestamp_type],
    }
    put_bytes(fields, "key", message.key())
    put_bytes(fields, "value", message.value())
    headers = []
    for name, value in cast("Headers", message.headers() or []):
        header: dict[str, object] = {"key": name}
        put_bytes(header, "value", value)
        headers.append(header)
    fields["headers"] = headers
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


TIMESTAMP_TYPES = ("none", "create_time", "log_append_time")
"""By the number that librdkafka has for each."""


def put_bytes(fields: dict[str, object], name: str, data: bytes | str | None) -> None:
    if isinstance(data, bytes):
        try:
            fields[name] = data.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        fields[name] = data


def from_json(line: bytes) -> ConsoleRecord:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InputError(f"is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise InputError("is not a JSON object")
    if unknown := fields.keys() - _TAKEN - _IGNORED:
        raise InputError(
            f"has the unknown field {sorted(unknown)[0]!r}; known are {', '.join(sorted(_TAKEN))}"
        )
    if not fields.keys() & {"value", "value_base64"}:
        raise InputError('has no "value"; write "value": null for a record without one')
    return ConsoleRecord(
        key=_take(fields, "key"),
        value=_take(fields, "value"),
        headers=_headers(fields.get("headers")),
        partition=_number(fields, "partition"),
        timestamp_ms=_number(fields, "timestamp"),
    )


def _take(fields: dict[str, Any], name: str) -> bytes | None:
    encoded_name = f"{name}_base64"
    if encoded_name in fields:
        if name in fields:
            raise InputError(f'has both "{name}" and "{encoded_name}"')
        try:
            return base64.b64decode(fields[encoded_name], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InputError(f'has a "{encoded_name}" that is not base64') from None
    return _encode(fields.get(name))


def _encode(value: object) -> bytes | None:
    """A string is taken as it is; any other JSON value keeps its JSON form."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError("has half of a surrogate pair, which is no character") from None


def _headers(value: object) -> Headers:
    """A list of {"key": …, "value": …}, as the consumer writes it, or an object of names and values."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _encode(content)) for name, content in value.items()]
    if isinstance(value, list):
        headers = []
        for item in value:
            if not isinstance(item, dict) or not isinstance(item.get("key"), str):
                raise InputError('has a header that is not of the form {"key": "name", "value": …}')
            headers.append((item["key"], _take(item, "value")))
        return headers
    raise InputError('has "headers" that are neither a list nor an object')


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 63:
        raise InputError(f'has a "{name}" that is not a number from 0')
    return None if value < 0 else value
