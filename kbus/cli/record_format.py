"""Records as text: a template of the user's, or the properties of Kafka's own console consumer."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import typer

from kbus.cli.console_record import TIMESTAMP_TYPES, Headers
from kbus.cli.line_parser import unescape
from kbus.cli.output import format_time

if TYPE_CHECKING:
    from confluent_kafka import Message

Formatter = Callable[["Message"], bytes]

_FLAGS = (
    "print.timestamp",
    "print.partition",
    "print.offset",
    "print.epoch",
    "print.headers",
    "print.key",
    "print.value",
)
_TEXTS = ("key.separator", "line.separator", "headers.separator", "null.literal")
FIELDS = ("key", "value", "topic", "partition", "offset", "timestamp", "time", "headers", "epoch")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def formatter(template: str | None, properties: Mapping[str, str]) -> Formatter:
    """What is written for a record, its line end included."""
    if unknown := properties.keys() - {*_FLAGS, *_TEXTS}:
        raise typer.BadParameter(
            f"{sorted(unknown)[0]} is not known; known are {', '.join((*_FLAGS, *_TEXTS))}.",
            param_hint="--property",
        )
    shown = {name: _flag(name, properties) for name in _FLAGS}
    if template is not None and any(name in properties for name in _FLAGS):
        raise typer.BadParameter(
            "already says what is printed; leave out print.… properties.", param_hint="--format"
        )
    separator, line_end, headers_separator, null = (
        unescape(properties.get(name, default)).encode()
        for name, default in zip(_TEXTS, ("\\t", "\\n", ",", "null"), strict=True)
    )
    parts = _parts(headers_separator, null)
    if template is not None:
        return _from_template(template, parts, line_end)
    if list(filter(shown.get, _FLAGS)) == ["print.value"]:

        def value_only(message: "Message") -> bytes:
            value = message.value()
            return (null if value is None else value) + line_end

        return value_only
    labels = {"print.partition": b"Partition:", "print.offset": b"Offset:", "print.epoch": b"Epoch:"}
    columns = [
        (
            labels.get(name, b""),
            _kafka_time if name == "print.timestamp" else parts[name.removeprefix("print.")],
        )
        for name in _FLAGS
        if shown[name]
    ]

    def as_kafka(message: "Message") -> bytes:
        return separator.join(label + part(message) for label, part in columns) + line_end

    return as_kafka


def _from_template(template: str, parts: Mapping[str, Formatter], line_end: bytes) -> Formatter:
    pieces: list[bytes | Formatter] = []
    position = 0
    text = unescape(template)
    for token in _TOKEN.finditer(text):
        pieces.append(text[position : token.start()].encode())
        position = token.end()
        if token[0] in ("{{", "}}"):
            pieces.append(token[0][:1].encode())
        elif token[1] in parts:
            pieces.append(parts[token[1]])
        else:
            what = f"{token[0]!r} is not a field" if token[1] is not None else f"a {token[0]!r} stands alone"
            raise typer.BadParameter(
                f"{what}; write {', '.join(f'{{{name}}}' for name in FIELDS)}, or {{{{ and }}}} for braces.",
                param_hint="--format",
            )
    pieces.append(text[position:].encode() + line_end)

    def fill(message: "Message") -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)

    return fill


def _parts(headers_separator: bytes, null: bytes) -> dict[str, Formatter]:
    def key(message: "Message") -> bytes:
        content = message.key()
        return null if content is None else content

    def value(message: "Message") -> bytes:
        content = message.value()
        return null if content is None else content

    def headers(message: "Message") -> bytes:
        pairs = cast("Headers", message.headers())
        if not pairs:
            return b"NO_HEADERS"
        return headers_separator.join(
            name.encode() + b":" + (null if content is None else content) for name, content in pairs
        )

    def time(message: "Message") -> bytes:
        kind, timestamp_ms = message.timestamp()
        return ((format_time(timestamp_ms) if kind else None) or "-").encode()

    def timestamp(message: "Message") -> bytes:
        kind, timestamp_ms = message.timestamp()
        return b"%d" % (timestamp_ms if kind else -1)

    def epoch(message: "Message") -> bytes:
        number = message.leader_epoch()
        return b"NOT_PRESENT" if number is None else b"%d" % number

    return {
        "key": key,
        "value": value,
        "headers": headers,
        "time": time,
        "timestamp": timestamp,
        "epoch": epoch,
        "topic": lambda message: (message.topic() or "").encode(),
        "partition": lambda message: b"%d" % message.partition(),
        "offset": lambda message: b"%d" % message.offset(),
    }


def _kafka_time(message: "Message") -> bytes:
    kind, timestamp_ms = message.timestamp()
    if not kind:
        return b"NO_TIMESTAMP"
    name = "".join(word.capitalize() for word in TIMESTAMP_TYPES[kind].split("_"))
    return f"{name}:{timestamp_ms}".encode()


def _flag(name: str, properties: Mapping[str, str]) -> bool:
    value = properties.get(name, "true" if name == "print.value" else "false").strip().lower()
    if value not in ("true", "false"):
        raise typer.BadParameter(f"{name} is true or false, not {value!r}.", param_hint="--property")
    return value == "true"
