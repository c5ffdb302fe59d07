"""Java's .properties format, as java.util.Properties reads it."""

import re
from collections.abc import Iterator
from pathlib import Path

from kbus.config.setting import ConfigError

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(path: Path) -> dict[str, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file {path}: {error.strerror}.") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # what Java takes every file for
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_properties(text: str) -> dict[str, str]:
    """The last value of a repeated key wins, as in Java."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        properties[_unescape(line[:key_end], number)] = _unescape(rest, number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that say something, numbered from 1, with their continuations joined and left blanks removed."""
    joined = ""
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if first:
        yield first, joined


def _key_end(line: str) -> int:
    escaped = False
    for position, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=:" or char in _BLANKS:
            return position
    return len(line)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    chars = iter(range(len(text)))
    for position in chars:
        char = text[position]
        if char != "\\":
            out.append(char)
            continue
        position = next(chars)  # a key or value never ends in a lone backslash: that joins lines
        char = text[position]
        if char == "u":
            digits = text[position + 1 : position + 5]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise ConfigError(f"line {line_number}: \\u must be followed by four hexadecimal digits.")
            out.append(chr(int(digits, 16)))
            for _ in range(4):
                next(chars)
        else:
            out.append(_ESCAPES.get(char, char))
    # Pairs of \u escapes may spell one character beyond 16 bits, as Java's strings do.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
