"""`kbus console-consume`: the records of a topic on stdout."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbus.cli.app import new_app
from kbus.cli.console_record import to_json
from kbus.cli.context import (
    BootstrapOption,
    TopicOption,
    bootstrap_servers,
    one_topic,
    properties,
)
from kbus.cli.interrupt import Interrupt
from kbus.cli.output import CliError, note
from kbus.cli.record_format import Formatter, formatter
from kbus.cli.start_offset import Start, StartOffset, parse_start, positions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

app = new_app()

_BATCH_RECORDS = 2000
_POLL_S = 0.1


class ConsumeOutput(StrEnum):
    TEXT = "text"
    JSON = "json"


class Isolation(StrEnum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@app.command()
def console_consume(
    topic_argument: Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)] = None,
    topic_option: TopicOption = None,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="Start with the oldest record. Default: with the next one."),
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="earliest|latest|N|-N|@TIME",
            help="Where to start: an offset, N records before the end of each partition, or the first record "
            "at or after a time, in milliseconds or as 2024-11-30T12:00:00Z.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition. Default: all.")] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=0, help="Stop after so many records.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Stop after so many seconds without a record.")
    ] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="The same in milliseconds.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at what is the end of the topic at the start.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEMPLATE",
            help="What to print for a record: {key} {value} {topic} {partition} {offset} {timestamp} {time} "
            r"{headers} {epoch}, any text, \n and \t; {{ and }} are braces.",
        ),
    ] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--formatter-property",
            metavar="NAME=VALUE",
            help="As in Kafka: print.key, print.value, print.partition, print.offset, print.timestamp, "
            "print.headers, print.epoch, key.separator, line.separator, headers.separator, null.literal.",
        ),
    ] = None,
    formatter_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What --property takes, in a file.", hidden=True),
    ] = None,
    isolation_level: Annotated[
        Isolation, typer.Option(help="Whether records of open or aborted transactions are read.")
    ] = Isolation.READ_UNCOMMITTED,
    consumer_property: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A property of the client.")
    ] = None,
    consumer_config: Annotated[
        Path | None,
        typer.Option(
            "--consumer.config", "--consumer-config", metavar="FILE", help="Client properties in a file."
        ),
    ] = None,
    bootstrap_server: BootstrapOption = None,
    output: Annotated[
        ConsumeOutput,
        typer.Option(
            "--output", "-o", help="Text, or JSON lines that console-produce --input json takes back."
        ),
    ] = ConsumeOutput.TEXT,
) -> None:
    """Print the records of a topic as they arrive: the value of each on a line, unless told otherwise.

    It goes on until Ctrl-C, or as --max-messages, --timeout and --until-end say, and then counts the records
    on stderr. It is no member of a group and commits nothing."""
    topic = one_topic(topic_argument, topic_option)
    start = _start(from_beginning, offset)
    template_properties = properties(formatter_config, property_ or (), "--property")
    if output is ConsumeOutput.JSON:
        if format_ is not None or template_properties:
            raise typer.BadParameter(
                "has a form of its own; leave out --format and --property.", param_hint="--output json"
            )
        write: Formatter = _json_line
    else:
        write = formatter(format_, template_properties)
    if timeout_s is None and timeout_ms is not None:
        timeout_s = timeout_ms / 1000
    config = {
        "group.id": "kbus-console-consume",  # librdkafka insists on one; with assign() it is not used
        "isolation.level": isolation_level.value,
        "auto.offset.reset": "earliest",
        "check.crcs": True,  # off by default: damage on a disk would be printed as if it were data
        **properties(consumer_config, consumer_property or (), "--consumer-property"),
        "enable.auto.commit": False,
        "enable.partition.eof": until_end,
    }
    servers = bootstrap_servers(bootstrap_server)

    from confluent_kafka import KafkaException

    from kbus.cli.kafka import consumer, explain, partitions_of

    client = consumer(servers, config)
    try:
        partitions = partitions_of(client, topic, servers=servers)
        if partition is not None and partition not in partitions:
            raise CliError(f"Topic {topic!r} has no partition {partition}; it has {len(partitions)}, from 0.")
        chosen = partitions if partition is None else [partition]
        with Interrupt() as interrupt:
            reader = _Reader(client, topic, write, interrupt)
            reader.run(
                chosen,
                start,
                strict=partition is not None,
                until_end=until_end,
                max_messages=max_messages,
                timeout_s=timeout_s,
            )
    except KafkaException as error:
        raise explain(error, f"read topic {topic!r}", servers=servers) from None
    finally:
        client.close()
    note(f"{reader.count:,} record{'' if reader.count == 1 else 's'} read.")
    raise typer.Exit(interrupt.exit_code)


def _start(from_beginning: bool, offset: str | None) -> StartOffset:
    if offset is None:
        return StartOffset(Start.EARLIEST if from_beginning else Start.LATEST)
    if from_beginning:
        raise typer.BadParameter(
            "and --from-beginning say different things; give one.", param_hint="--offset"
        )
    return parse_start(offset)


def _json_line(message: "Message") -> bytes:
    return to_json(message) + b"\n"


class _Reader:
    """Writes records as they arrive: a flush after what came together, so that a pipe sees them at once."""

    def __init__(self, consumer: "Consumer", topic: str, write: Formatter, interrupt: Interrupt) -> None:
        self.count = 0
        self._consumer = consumer
        self._topic = topic
        self._write = write
        self._interrupt = interrupt
        self._unfinished: dict[int, int] | None = None
        """With --until-end: the end of each partition that has not been reached."""
        self._noted: set[int] = set()

    def run(
        self,
        partitions: list[int],
        start: StartOffset,
        *,
        strict: bool,
        until_end: bool,
        max_messages: int | None,
        timeout_s: float | None,
    ) -> None:
        assignment = positions(self._consumer, self._topic, partitions, start, strict=strict)
        if until_end:
            ends = positions(self._consumer, self._topic, partitions, StartOffset(Start.LATEST), strict=False)
            self._unfinished = {
                end.partition: end.offset
                for begin, end in zip(assignment, ends, strict=True)
                if begin.offset < end.offset
            }
        self._consumer.assign(assignment)
        last_record_s = time.monotonic()
        while self._interrupt.signal_number is None and self._unfinished != {}:
            room = _BATCH_RECORDS if max_messages is None else min(_BATCH_RECORDS, max_messages - self.count)
            if room <= 0:
                return
            first = self._consumer.poll(_POLL_S)
            if first is not None:
                batch = [first] if room == 1 else [first, *self._consumer.consume(room - 1, 0)]
                if self._print(batch):
                    last_record_s = time.monotonic()
            if timeout_s is not None and time.monotonic() - last_record_s >= timeout_s:
                return

    def _print(self, messages: "list[Message]") -> bool:
        lines = []
        for message in messages:
            if message.error() is not None:
                self._note_error(message)
                continue
            if self._unfinished is not None and not self._is_wanted(message, self._unfinished):
                continue
            lines.append(self._write(message))
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()
        self.count += len(lines)
        return bool(lines)

    def _is_wanted(self, message: "Message", unfinished: dict[int, int]) -> bool:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        end = unfinished.get(partition)
        if end is None:
            return False
        if offset + 1 >= end:
            del unfinished[partition]
        return offset < end

    def _note_error(self, message: "Message") -> None:
        from confluent_kafka import KafkaError

        from kbus.cli.kafka import UNKNOWN_TOPIC, reason_of

        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            if self._unfinished is not None and (partition := message.partition()) is not None:
                self._unfinished.pop(partition, None)
            return
        if error.fatal() or error.code() in UNKNOWN_TOPIC:
            raise CliError(f"Cannot go on reading topic {self._topic!r}: {reason_of(error)}.")
        if error.code() not in self._noted:
            self._noted.add(error.code())
            note(f"Reading goes on after: {reason_of(error)}.")
