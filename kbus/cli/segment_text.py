"""Dumped batches and entries as text for people."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from kbus.cli.output import StreamTable, format_time

if TYPE_CHECKING:
    from kbus.cli.segment_dump import Row

_BATCH_COLUMNS = {
    "position": 12,
    "size": 9,
    "first": 12,
    "last": 12,
    "records": 8,
    "epoch": 5,
    "codec": -6,
    "from": -24,
    "to": -24,
    "producer": -20,
    "crc": -9,
    "flags": -1,
}
_RECORD_COLUMNS = {"offset": 12, "time": -24, "key": -16, "value": -16, "headers": -1}


class Damage:
    """Notices whether any row that passes says that something is wrong."""

    def __init__(self) -> None:
        self.seen = False

    def watch(self, rows: "Iterable[Row]") -> "Iterator[Row]":
        for row in rows:
            self.seen |= row.get("crc_ok") is False or str(row.get("problem", "")).startswith("damaged")
            yield row


def print_dump(rows: "Iterable[Row]") -> None:
    """A heading a file, then a line a batch or entry."""
    for file, of_file in groupby(rows, key=lambda row: row["file"]):
        typer.echo(typer.style(str(file), bold=True))
        table = None
        records = StreamTable(_RECORD_COLUMNS, indent="    ")
        for row in of_file:
            if "problem" in row:
                typer.echo(f"  byte {row['position']}: {row['problem']} ({row['size']} bytes)")
            elif "record_count" in row:
                table = table or StreamTable(_BATCH_COLUMNS)
                table.row(_batch_cells(row))
                if "records" in row:
                    _print_records(row["records"], records)
            else:
                fields = {name: value for name, value in row.items() if name != "file"}
                table = table or StreamTable(dict.fromkeys(fields, 20))
                table.row(list(fields.values()))


def _batch_cells(row: "dict[str, Any]") -> list[object]:
    producer = None
    if row["producer_id"] >= 0:
        producer = f"{row['producer_id']}/{row['producer_epoch']}"
        if row["base_sequence"] >= 0:
            producer += f" {row['base_sequence']}-{row['last_sequence']}"
    flags = [
        name
        for name, is_set in (
            ("append-time", row["timestamp_type"] == "log_append_time"),
            ("transactional", row["is_transactional"]),
            ("control", row["is_control"]),
            ("delete-horizon", row["has_delete_horizon"]),
        )
        if is_set
    ]
    return [
        row["position"],
        row["size"],
        row["base_offset"],
        row["last_offset"],
        row["record_count"],
        row["leader_epoch"],
        row["compression"],
        format_time(row["base_timestamp"]),
        format_time(row["max_timestamp"]),
        producer,
        row["crc"] if row["crc_ok"] else f"{row['crc']}!",
        " ".join(flags) if row["crc_ok"] else "CRC DOES NOT MATCH",
    ]


def _print_records(records: Any, table: StreamTable) -> None:
    for record in records:
        if "problem" in record:
            typer.echo(f"    {record['problem']}")
            continue
        headers = ", ".join(
            f"{_text(header, 'key')}={_text(header, 'value')}" for header in record["headers"]
        )
        key = record.get("control_type") or _text(record, "key")
        table.row([record["offset"], format_time(record["timestamp"]), key, _text(record, "value"), headers])


def _text(fields: "dict[str, Any]", name: str) -> str:
    """Printable on one line, whatever the bytes are."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return f"base64:{encoded}"
    value = fields.get(name)
    if value is None:
        return "null"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in value)
