"""`kbus console-produce`: lines or JSON from stdin or files into a topic."""

import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from kbus.cli.app import new_app
from kbus.cli.console_record import ConsoleRecord, Headers, InputError, from_json
from kbus.cli.context import BootstrapOption, TopicOption, bootstrap_servers, key_values, properties
from kbus.cli.interrupt import Interrupt, InterruptedReadError
from kbus.cli.line_parser import line_parser
from kbus.cli.output import CliError, OutputFormat, OutputOption, note, print_json

if TYPE_CHECKING:
    from kbus.cli.sender import Summary
    from kbus.client.partitioner import Partitioner

app = new_app()

_CHUNK_BYTES = 256 * 1024
_MAX_RECORD_BYTES = 100_000_000
"""What the client lets pass, and the longest line that is read: the broker's own limit decides below it."""
_BATCH_BYTES = 1_000_000
_QUEUE_BYTES = 64 * 1024 * 1024
_QUEUE_RECORDS = 500_000
_LAST_ANSWERS_S = 10.0


class InputFormat(StrEnum):
    LINES = "lines"
    JSON = "json"


class PartitionerName(StrEnum):
    MURMUR2 = "murmur2"
    MURMUR3 = "murmur3"
    ROUND_ROBIN = "round-robin"
    STICKY = "sticky"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"
    ALL_AS_NUMBER = "-1"


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


_KafkaOption = Annotated[int | None, typer.Option(min=0, hidden=True)]
"""Taken because Kafka's console producer takes it; --producer-property says the same."""


@app.command()
def console_produce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC [FILE]",
            show_default=False,
            help="The topic, then files to read instead of stdin; with --topic, only the files.",
        ),
    ] = None,
    topic_option: TopicOption = None,
    input_format: Annotated[
        InputFormat, typer.Option("--input", help="A record a line of text, or a JSON object a line.")
    ] = InputFormat.LINES,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help=r"What stands between key and value in a line, for example : or \t."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header for every record; may be repeated."
        ),
    ] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--reader-property",
            metavar="NAME=VALUE",
            help="As in Kafka: parse.key, key.separator, parse.headers, headers.delimiter, "
            "headers.separator, headers.key.separator, ignore.error, null.marker.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Send everything to this partition.")] = None,
    partitioner: Annotated[
        PartitionerName | None,
        typer.Option(
            help="How records are spread. murmur2 (the default, Kafka's own) and murmur3 go by the key, "
            "round-robin and sticky do not. If given, partitions in JSON input are ignored.",
        ),
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", "--request-required-acks", help="Whose word to wait for.")
    ] = Acks.ALL,
    compression: Annotated[
        Codec, typer.Option("--compression", "--compression-codec", help="Codec for the batches.")
    ] = Codec.NONE,
    sync: Annotated[
        bool, typer.Option("--sync", help="Wait for the answer to each record before the next.")
    ] = False,
    producer_property: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A property of the client, such as linger.ms=50."),
    ] = None,
    producer_config: Annotated[
        Path | None,
        typer.Option(
            "--producer.config", "--producer-config", metavar="FILE", help="Client properties in a file."
        ),
    ] = None,
    reader_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What --property takes, in a file.", hidden=True),
    ] = None,
    batch_size: _KafkaOption = None,
    max_partition_memory_bytes: _KafkaOption = None,
    max_memory_bytes: _KafkaOption = None,
    linger_ms: Annotated[int | None, typer.Option("--timeout", hidden=True)] = None,
    request_timeout_ms: _KafkaOption = None,
    message_send_max_retries: _KafkaOption = None,
    retry_backoff_ms: _KafkaOption = None,
    metadata_expiry_ms: _KafkaOption = None,
    socket_buffer_size: _KafkaOption = None,
    bootstrap_server: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    r"""Send records to a topic, from stdin or from files.

    A line is a record's value. --key-separator takes a key from the start of each line. With --input json a
    line is {"key": …, "value": …, "headers": {…}, "partition": …, "timestamp": …}, where only the value is
    needed; key_base64 and value_base64 hold what is not text. That is what
    `kbus console-consume --output json` writes.

    It ends at the end of the input, or on Ctrl-C, with a count on stderr; exit code 1 if a record was not
    acknowledged."""
    topic, files = _topic_and_files(arguments or [], topic_option)
    if input_format is InputFormat.JSON and (key_separator is not None or property_):
        raise typer.BadParameter(
            "has no keys to separate; leave out --key-separator and --property.", param_hint="--input json"
        )
    parse = (
        from_json
        if input_format is InputFormat.JSON
        else line_parser(
            properties(reader_config, property_ or (), "--property"), key_separator=key_separator
        ).parse
    )
    fixed_headers: Headers = [
        (name, value.encode())
        for item in header or ()
        for name, value in key_values([item], "--header").items()
    ]
    config: dict[str, Any] = {
        "acks": "all" if acks is Acks.ALL_AS_NUMBER else acks.value,
        "enable.idempotence": acks in (Acks.ALL, Acks.ALL_AS_NUMBER),
        "compression.type": compression.value,
        "partitioner": "murmur2_random",
        "message.max.bytes": _MAX_RECORD_BYTES,
        "message.timeout.ms": 120_000,
        "batch.size": _BATCH_BYTES,
        "queue.buffering.max.kbytes": _QUEUE_BYTES // 1024,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        **{
            name: value
            for name, value in {
                "batch.size": max_partition_memory_bytes or batch_size,
                "queue.buffering.max.kbytes": max_memory_bytes and max(max_memory_bytes // 1024, 1),
                "linger.ms": linger_ms,
                "request.timeout.ms": request_timeout_ms,
                "message.send.max.retries": message_send_max_retries,
                "retry.backoff.ms": retry_backoff_ms,
                "metadata.max.age.ms": metadata_expiry_ms,
                "socket.send.buffer.bytes": socket_buffer_size,
            }.items()
            if value is not None
        },
        **properties(producer_config, producer_property or (), "--producer-property"),
        "delivery.report.only.error": True,
    }
    servers = bootstrap_servers(bootstrap_server)

    from kbus.cli.kafka import partitions_of, producer
    from kbus.cli.sender import Failures, Sender

    failures = Failures()
    config["on_delivery"] = failures.delivered
    client = producer(servers, config)
    partitions = partitions_of(client, topic, servers=servers)
    if partition is not None and partition not in partitions:
        raise CliError(f"Topic {topic!r} has no partition {partition}; it has {len(partitions)}, from 0.")

    failure: CliError | None = None
    with Interrupt() as interrupt:
        sender = Sender(
            client,
            topic,
            failures=failures,
            partitioner=_partitioner(partitioner, partitions),
            interrupt=interrupt,
        )
        try:
            for record in _records(files, parse, interrupt):
                if fixed_headers:
                    record = record._replace(headers=[*record.headers, *fixed_headers])
                if partition is not None:
                    record = record._replace(partition=partition)
                elif partitioner is not None and record.partition is not None:
                    record = record._replace(partition=None)
                sender.send(record)
                if sync:
                    sender.flush()
        except (CliError, OSError) as error:
            failure = (
                error if isinstance(error, CliError) else CliError(f"{error.filename}: {error.strerror}.")
            )
        summary = sender.finish(_LAST_ANSWERS_S)
    _report(summary, acks, output)
    if failure is not None:
        raise failure
    raise typer.Exit(interrupt.exit_code or (0 if summary.complete else 1))


def _topic_and_files(arguments: list[str], topic_option: str | None) -> tuple[str, list[str]]:
    if topic_option is not None:
        return topic_option, arguments
    if not arguments:
        raise typer.BadParameter("name a topic.", param_hint="TOPIC")
    return arguments[0], arguments[1:]


def _partitioner(name: PartitionerName | None, partitions: list[int]) -> "Partitioner | None":
    """None where librdkafka's own, murmur2 as Kafka's, decides."""
    from kbus.client.partitioner import Murmur3, RoundRobin, Sticky

    if name is PartitionerName.MURMUR3:
        return Murmur3(partitions)
    if name is PartitionerName.ROUND_ROBIN:
        return RoundRobin(partitions)
    if name is PartitionerName.STICKY:
        return Sticky(partitions, _BATCH_BYTES)
    return None


def _records(
    files: list[str], parse: Callable[[bytes], ConsoleRecord], interrupt: Interrupt
) -> Iterator[ConsoleRecord]:
    """The records of all inputs, up to their end or to a signal."""
    try:
        for file in files or ["-"]:
            if file == "-" and sys.stdin is None:
                raise CliError("stdin is closed.", "Name a file, or pipe something in.")
            if file == "-":
                yield from _records_of(sys.stdin.buffer, "stdin", parse, interrupt)
            else:
                with open(file, "rb") as stream:
                    yield from _records_of(stream, file, parse, interrupt)
    except InterruptedReadError:
        return


def _records_of(
    stream: BinaryIO, name: str, parse: Callable[[bytes], ConsoleRecord], interrupt: Interrupt
) -> Iterator[ConsoleRecord]:
    number = 0
    for lines in _lines(stream, name, interrupt):
        for line in lines:
            number += 1
            try:
                yield parse(line)
            except InputError as error:
                raise CliError(f"Line {number} of {name} {error}.") from None
            if interrupt.signal_number is not None:
                return


def _lines(stream: BinaryIO, name: str, interrupt: Interrupt) -> Iterator[list[bytes]]:
    """Lines without their ends, as many at a time as arrived together; never more than a line is kept."""
    has_prompt = stream.isatty() and sys.stderr.isatty()
    pieces: list[bytes] = []
    kept_bytes = 0
    try:
        while True:
            if has_prompt:
                print(">", end="", file=sys.stderr, flush=True)
            chunk = interrupt.waiting(lambda: stream.read1(_CHUNK_BYTES))  # type: ignore[attr-defined]
            if not chunk:
                break
            first, newline, rest = chunk.partition(b"\n")
            pieces.append(first)
            kept_bytes += len(first)
            if kept_bytes > _MAX_RECORD_BYTES:
                raise CliError(f"A line of {name} is longer than {_MAX_RECORD_BYTES} bytes.")
            if not newline:
                continue
            lines = [b"".join(pieces), *rest.split(b"\n")]
            pieces = [lines.pop()]
            kept_bytes = len(pieces[0])
            yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
    finally:
        if has_prompt:
            print(file=sys.stderr)
    if kept_bytes:
        yield [b"".join(pieces)]


def _report(summary: "Summary", acks: Acks, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            {
                "sent": summary.sent,
                "acknowledged": None if acks is Acks.NONE else summary.acknowledged,
                "failed": summary.failed,
                "unknown": summary.unknown,
                "seconds": round(summary.seconds, 3),
            }
        )
        return
    parts = [f"{summary.sent:,} sent"]
    if acks is Acks.NONE:
        parts.append("none acknowledged, as acks=0 asks for")
    else:
        parts.append(f"{summary.acknowledged:,} acknowledged")
    parts.append(f"{summary.failed:,} failed")
    if summary.unknown:
        parts.append(f"{summary.unknown:,} without an answer, which may or may not have been written")
    note(f"Records: {', '.join(parts)}.")
