"""What commands say, and how: tables for people, JSON for programs, errors in one sentence, progress.

Results go to stdout, everything said about the work to stderr. rich is imported when a table is drawn."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 100_000
"""Columns that tables may take: a row is always one line, which a narrow terminal wraps more readably than
cells folded into it."""


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="A table for people, JSON for programs.")
]


class CliError(Exception):
    """A command cannot go on: `message` says what happened, `hint` what to do next, in a sentence each."""

    def __init__(self, message: str, hint: str | None = None, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def print_error(error: CliError) -> None:
    text = error.message if error.hint is None else f"{error.message} {error.hint}"
    prefix = "\x1b[1;31mError:\x1b[0m" if _is_colourful(sys.stderr) else "Error:"
    print(prefix, " ".join(text.split()), file=sys.stderr)


def note(message: str) -> None:
    """Something worth knowing that is not the result: goes to stderr, so that pipes stay clean."""
    print(message, file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON document, indented."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_json_line(value: object) -> None:
    """One line of a stream of JSON documents."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "") -> None:
    """Aligned columns under a header. None is shown as "-"; columns of numbers are right-aligned.

    With no rows, `empty` is said on stderr instead."""
    from rich.table import Table
    from rich.text import Text

    body = list(rows)
    if not body:
        if empty:
            note(empty)
        return
    console = _console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | None) for row in body)
        table.add_column(
            column.upper(),
            justify="right" if numeric else "left",
            no_wrap=True,
        )
    for row in body:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    _render(console, table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    for name, value in fields.items():
        table.add_row(f"{name}:", Text("-" if value is None else str(value)))
    _render(_console(), table)


class StreamTable:
    """Rows of a table that is too long to be measured first: columns have the widths given here, and a cell
    that needs more shifts the rest of its row. Widths below 0 align to the left."""

    def __init__(self, columns: Mapping[str, int], *, indent: str = "") -> None:
        self._columns = columns
        self._indent = indent
        self._is_begun = False

    def row(self, cells: Sequence[object]) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._write([name.upper() for name in self._columns])
        self._write(["-" if cell is None else str(cell) for cell in cells])

    def _write(self, cells: Sequence[str]) -> None:
        padded = (
            cell.rjust(width) if width > 0 else cell.ljust(-width)
            for cell, width in zip(cells, self._columns.values(), strict=True)
        )
        sys.stdout.write(f"{self._indent}{'  '.join(padded)}".rstrip() + "\n")


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if stderr is a terminal; yields `advance(amount)`."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)

        def advance(amount: int) -> None:
            bar.advance(task, amount)

        yield advance


def format_size(size_bytes: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point: 1.5 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB"), start=1):
        if size_bytes < 1024 ** (power + 1):
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes / 1024**4:.1f} TiB"


def format_time(timestamp_ms: int | None) -> str | None:
    """A timestamp of the log in UTC with milliseconds; None for "no timestamp"."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _is_colourful(stream: TextIO) -> bool:
    return stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")


def _console() -> "Console":
    from rich.console import Console

    return Console(width=_WIDTH, highlight=False, color_system="auto" if sys.stdout.isatty() else None)


def _render(console: "Console", renderable: object) -> None:
    """rich pads every line to the width of its last column; the padding is of no use to anybody."""
    with console.capture() as capture:
        console.print(renderable)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")
