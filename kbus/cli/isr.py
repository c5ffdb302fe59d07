"""`kbus isr`: leaders and in-sync replicas, now and as they change."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbus.cli.app import new_app
from kbus.cli.context import BootstrapOption, bootstrap_servers, host_and_port
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    note,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from kbus.client.metadata import ClusterView, PartitionView
    from kbus.client.replicas import Positions
    from kbus.types import TopicPartition

app = new_app(help="Show leaders, in-sync replicas and how far each is, or watch them change.")

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", show_default=False, help="Only these. Default: all topics."),
]
_POLL_S = 0.1
_ANSWER_TIMEOUT_S = 2.0


@app.command()
def show(
    topics: TopicsArgument = None,
    servers: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show leader, epoch and ISR of each partition, its high watermark, and where each replica's log ends.

    A replica is written `broker:log end`, with how far that is behind the leader's in parentheses, and `!` if
    it is not in the ISR. A "?" is a replica that did not tell."""
    view, positions = asyncio.run(_look(bootstrap_servers(servers), topics))
    rows = [_facts(tp, partition, positions[tp]) for tp, partition in view.partitions.items()]
    if output is OutputFormat.JSON:
        print_json({"controller": view.controller, "partitions": rows})
        return
    print_table(
        ("partition", "leader", "epoch", "isr", "high watermark", "replicas", ""),
        [
            (
                f"{row['topic']}-{row['partition']}",
                row["leader"],
                row["leader_epoch"],
                _numbers(row["isr"]),
                row["high_watermark"],
                "  ".join(_replica_text(replica) for replica in row["replicas"]),
                row["state"] if row["state"] != "in sync" else "",
            )
            for row in rows
        ],
        empty="There are no partitions.",
    )


@app.command()
def watch(
    topics: TopicsArgument = None,
    servers: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print each change of leader, epoch, ISR, controller and brokers as it happens, until Ctrl-C.

    Every broker is asked ten times a second. JSON comes as a line for each change, and one at the start."""
    asyncio.run(_watch(bootstrap_servers(servers), topics, output))


async def _look(
    servers: str, topics: list[str] | None
) -> "tuple[ClusterView, dict[TopicPartition, Positions]]":
    from kbus.client.replicas import positions
    from kbus.client.watcher import NoBrokerAnswersError, Watcher

    async with Watcher(addresses(servers), topics=topics or None, every_s=1.0) as watcher:
        try:
            view = await watcher.all_heard()
        except NoBrokerAnswersError as error:
            raise unreachable(error) from None
    _check_topics(view, servers)
    return view, await positions(view, view.partitions, timeout_s=_ANSWER_TIMEOUT_S)


def addresses(servers: str) -> list[tuple[str, int]]:
    return [host_and_port(server.strip()) for server in servers.split(",")]


def unreachable(error: Exception) -> CliError:
    return CliError(
        f"Cannot reach the cluster ({error}).",
        "Start one with `kbus cluster start`, or point --bootstrap-server to one that runs.",
    )


def _check_topics(view: "ClusterView", servers: str) -> None:
    for topic in sorted(view.unknown_topics):
        raise CliError(
            f"Topic {topic!r} does not exist at {servers}.",
            f"Create it with `kbus topic create {topic}`; `kbus topic list` shows those there are.",
        )


def _facts(tp: "TopicPartition", view: "PartitionView", found: "Positions") -> dict[str, Any]:
    leader_end = None if view.leader is None else found.log_ends.get(view.leader)
    replicas = []
    for broker in view.replicas:
        end = found.log_ends.get(broker)
        replicas.append(
            {
                "broker": broker,
                "log_end": end,
                "lag": None if end is None or leader_end is None else max(0, leader_end - end),
                "in_sync": broker in view.isr,
                "leader": broker == view.leader,
            }
        )
    state = "in sync"
    if view.is_offline:
        state = "no leader"
    elif view.is_under_replicated:
        state = "under-replicated"
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "leader": view.leader,
        "leader_epoch": view.leader_epoch,
        "isr": list(view.isr),
        "high_watermark": found.high_watermark,
        "replicas": replicas,
        "state": state,
    }


def _replica_text(replica: dict[str, Any]) -> str:
    end = "?" if replica["log_end"] is None else replica["log_end"]
    lag = f" (-{replica['lag']})" if replica["lag"] else ""
    return f"{replica['broker']}{'' if replica['in_sync'] else '!'}:{end}{lag}"


def _numbers(brokers: "list[int] | tuple[int, ...] | None") -> str:
    return "-" if not brokers else ",".join(map(str, brokers))


async def _watch(servers: str, topics: list[str] | None, output: OutputFormat) -> None:
    from kbus.cli.isr_events import changes, print_event, silence
    from kbus.client.watcher import NoBrokerAnswersError, Watcher

    async with Watcher(addresses(servers), topics=topics or None, every_s=_POLL_S) as watcher:
        try:
            view = await watcher.all_heard()
        except NoBrokerAnswersError as error:
            raise unreachable(error) from None
        _check_topics(view, servers)
        if output is OutputFormat.JSON:
            watching = {"partitions": len(view.partitions), "brokers": list(view.brokers)}
            print_event({"event": "watching", "controller": view.controller, **watching}, output)
            sys.stdout.flush()
        else:
            note(
                f"Watching {len(view.partitions)} partitions on {len(view.brokers)} brokers, controller "
                f"{view.controller}. Ctrl-C ends it."
            )
        answering = watcher.answering
        while True:
            before, view = view, await watcher.next_view()
            events = [*silence(answering, watcher.answering)]
            answering = watcher.answering
            if answering:
                events += changes(before, view)
            else:
                view = before  # nobody knows: what was, stays until somebody says otherwise
            for event in events:
                print_event(event, output)
            sys.stdout.flush()
