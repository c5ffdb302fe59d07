"""Lines of text as records: the properties of Kafka's own console producer."""

from collections.abc import Mapping
from dataclasses import dataclass

import typer

from kbus.cli.console_record import ConsoleRecord, Headers, InputError

_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}


def unescape(text: str) -> str:
    r"""`\t`, `\n`, `\r`, `\0` and `\\` for the characters that are hard to type in a shell."""
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        pair = text[position : position + 2]
        out.append(_ESCAPES.get(pair, pair[:1]))
        position += 2 if pair in _ESCAPES else 1
    return "".join(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineParser:
    """`headers<headers_delimiter>key<key_separator>value`, where headers and key are there only if parsed.

    Works on bytes, so that a line need not be UTF-8."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    ignore_error: bool = False
    null_marker: bytes | None = None

    def parse(self, line: bytes) -> ConsoleRecord:
        headers: Headers = []
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter")
            if text is not None and text != self.null_marker:
                headers = [self._header(pair) for pair in text.split(self.headers_separator)]
        if self.parse_key:
            key, rest = self._split(rest, self.key_separator, "key separator")
        if self.null_marker is None:
            return ConsoleRecord(key, rest, headers)
        return ConsoleRecord(self._or_null(key), self._or_null(rest), headers)

    def _split(self, line: bytes, separator: bytes, name: str) -> tuple[bytes | None, bytes]:
        first, found, rest = line.partition(separator)
        if found:
            return first, rest
        if self.ignore_error:
            return None, line
        raise InputError(f"has no {name} {separator.decode(errors='replace')!r}")

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        name, found, value = pair.partition(self.headers_key_separator)
        if not found and not self.ignore_error:
            raise InputError(
                f"has the header {pair.decode(errors='replace')!r} "
                f"without {self.headers_key_separator.decode(errors='replace')!r}"
            )
        if name == self.null_marker:
            raise InputError("has a header whose name is the null marker; names cannot be null")
        try:
            return name.decode(), self._or_null(value) if found else None
        except UnicodeDecodeError:
            raise InputError("has a header whose name is not UTF-8") from None

    def _or_null(self, field: bytes | None) -> bytes | None:
        return None if field == self.null_marker else field


def line_parser(properties: Mapping[str, str], *, key_separator: str | None = None) -> LineParser:
    """From `--property` pairs; `--key-separator` alone also turns the parsing of keys on."""

    def flag(name: str) -> bool:
        value = properties.get(name, "false").strip().lower()
        if value not in ("true", "false"):
            raise typer.BadParameter(f"{name} is true or false, not {value!r}.", param_hint="--property")
        return value == "true"

    def text(name: str, default: str) -> bytes:
        value = unescape(properties.get(name, default)).encode()
        if not value:
            raise typer.BadParameter(f"{name} cannot be empty.", param_hint="--property")
        return value

    known = {
        "parse.key",
        "key.separator",
        "parse.headers",
        "headers.delimiter",
        "headers.separator",
        "headers.key.separator",
        "ignore.error",
        "null.marker",
    }
    if unknown := properties.keys() - known:
        raise typer.BadParameter(
            f"{sorted(unknown)[0]} is not known; known are {', '.join(sorted(known))}.",
            param_hint="--property",
        )
    null_marker = properties.get("null.marker")
    parser = LineParser(
        parse_key=key_separator is not None or flag("parse.key"),
        key_separator=text("key.separator", "\t")
        if key_separator is None
        else unescape(key_separator).encode(),
        parse_headers=flag("parse.headers"),
        headers_delimiter=text("headers.delimiter", "\t"),
        headers_separator=text("headers.separator", ","),
        headers_key_separator=text("headers.key.separator", ":"),
        ignore_error=flag("ignore.error"),
        null_marker=None if null_marker is None else unescape(null_marker).encode(),
    )
    _check(parser)
    return parser


def _check(parser: LineParser) -> None:
    if not parser.key_separator:
        raise typer.BadParameter("cannot be empty.", param_hint="--key-separator")
    of_headers = {
        "headers.delimiter": parser.headers_delimiter,
        "headers.separator": parser.headers_separator,
        "headers.key.separator": parser.headers_key_separator,
    }
    if len(set(of_headers.values())) < len(of_headers):
        raise typer.BadParameter(f"{', '.join(of_headers)} must differ.", param_hint="--property")
    if parser.null_marker in {parser.key_separator, *of_headers.values()}:
        raise typer.BadParameter("null.marker must differ from every separator.", param_hint="--property")
