"""Where console-consume begins: `earliest`, `latest`, `N`, `-N` from the end, `@time`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING

import typer

from kbus.cli.output import CliError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

_TIMEOUT_S = 10.0


_MAX_TIME_MS = 2**63 - 1


class Start(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    FROM_END = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class StartOffset:
    start: Start
    number: int = 0
    """The offset, the distance from the end, or milliseconds since 1970."""


def parse_start(text: str) -> StartOffset:
    word = text.strip().lower()
    if word in ("earliest", "beginning"):
        return StartOffset(Start.EARLIEST)
    if word in ("latest", "end"):
        return StartOffset(Start.LATEST)
    if word.startswith("@"):
        return StartOffset(Start.TIME, _time_ms(text.strip()[1:]))
    if word.isdecimal():
        return StartOffset(Start.OFFSET, int(word))
    if word[:1] == "-" and word[1:].isdecimal():
        return StartOffset(Start.FROM_END, int(word[1:]))
    raise typer.BadParameter(
        f"{text!r} is none of earliest, latest, N, -N (from the end), @milliseconds, @2024-11-30T12:00:00Z.",
        param_hint="--offset",
    )


def _time_ms(text: str) -> int:
    if text.isdecimal():
        if int(text) > _MAX_TIME_MS:
            raise typer.BadParameter(f"{text} is beyond every time there is.", param_hint="--offset")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2024-11-30T12:00:00Z.",
            param_hint="--offset",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def positions(
    consumer: "Consumer", topic: str, partitions: Sequence[int], start: StartOffset, *, strict: bool
) -> list["TopicPartition"]:
    """The first offset to read of each partition; a partition that has not got it starts at its nearest end,
    unless `strict`."""
    from confluent_kafka import TopicPartition

    if start.start is Start.TIME:
        wanted = [TopicPartition(topic, partition, start.number) for partition in partitions]
        found = consumer.offsets_for_times(wanted, timeout=_TIMEOUT_S)
        for position in found:
            if position.error is not None:
                raise CliError(
                    f"Cannot look up the time in partition {position.partition}: {position.error}."
                )
            if position.offset < 0:
                position.offset = _bounds(consumer, topic, position.partition)[1]
        return found
    result = []
    for partition in partitions:
        first, end = _bounds(consumer, topic, partition)
        if start.start is Start.EARLIEST:
            offset = first
        elif start.start is Start.LATEST:
            offset = end
        elif start.start is Start.FROM_END:
            offset = max(first, end - start.number)
        else:
            offset = min(max(first, start.number), end)
            if strict and offset != start.number:
                raise CliError(
                    f"Offset {start.number} is not in partition {partition} of {topic!r}, "
                    f"which starts at {first} and ends at {end}."
                )
        result.append(TopicPartition(topic, partition, offset))
    return result


def _bounds(consumer: "Consumer", topic: str, partition: int) -> tuple[int, int]:
    from confluent_kafka import TopicPartition

    bounds = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
    if bounds is None:
        raise CliError(f"The leader of partition {partition} of {topic!r} did not answer in time.")
    return bounds
