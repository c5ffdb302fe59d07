"""`kbus chaos`: break a local cluster on purpose, and see what it does about it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbus.cli.app import new_app
from kbus.cli.output import CliError, OutputFormat, OutputOption, print_fields, print_json, print_table
from kbus.cli.supervised import BrokerArgument, NameOption, NotRunningError, call, folder_of

if TYPE_CHECKING:
    from kbus.chaos.experiment import Outcome
    from kbus.chaos.faults import Fault
    from kbus.client.metadata import ClusterView
    from kbus.cluster.folder import ClusterFolder
    from kbus.types import TopicPartition

app = new_app(
    help="Break a local cluster on purpose, and see what it does about it. Each command tells who leads now, "
    "after how long, and when a write (acks=all) was acknowledged; it exits with 1 if the cluster did not "
    "recover in time."
)

TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long recovery may take.")
]
ProbeOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:P]",
        help='Where to write, records with the key "kbus-chaos-probe". Default: a partition that the broker '
        "leads.",
        show_default=False,
    ),
]
WriteOption = Annotated[bool, typer.Option("--write/--no-write", help="Whether to write at all.")]
_MAX_SHOWN = 10


@app.command()
def kill_leader(
    target: Annotated[str, typer.Argument(metavar="TOPIC[:P]", help="The partition; 0 without a number.")],
    write: WriteOption = True,
    timeout: TimeoutOption = 30.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Kill (kill -9) the broker that leads a partition."""
    _run(
        "KILL", None, target, write=write, leader_of_target=True, timeout_s=timeout, name=name, output=output
    )


@app.command()
def kill_controller(
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 30.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Kill (kill -9) the broker that is the controller."""
    _run("KILL", None, topic, write=write, timeout_s=timeout, name=name, output=output)


@app.command()
def kill_broker(
    number: BrokerArgument,
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 30.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Kill (kill -9) a broker."""
    _run("KILL", number, topic, write=write, timeout_s=timeout, name=name, output=output)


@app.command()
def pause_broker(
    number: BrokerArgument,
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 60.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a broker in the middle of whatever it does (SIGSTOP): a zombie, until resume-broker."""
    _run("PAUSE", number, topic, write=write, timeout_s=timeout, name=name, output=output)


@app.command()
def resume_broker(
    number: BrokerArgument,
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 60.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let a paused broker go on (SIGCONT), with what it believed then."""
    _run("RESUME", number, topic, write=write, timeout_s=timeout, name=name, output=output)


@app.command()
def restart_broker(
    number: BrokerArgument,
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 60.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a broker in order and start it again."""
    _run("RESTART", number, topic, write=write, timeout_s=timeout, name=name, output=output)


@app.command()
def expire_session(
    number: BrokerArgument,
    topic: ProbeOption = None,
    write: WriteOption = True,
    timeout: TimeoutOption = 60.0,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have ZooKeeper drop a broker's session, while the broker runs on: what a long pause does, at once.

    A second connection takes the session over, for which its id suffices, and closes it."""
    _run("EXPIRE", number, topic, write=write, timeout_s=timeout, name=name, output=output)


def _run(
    fault_name: str,
    broker: int | None,
    target: str | None,
    *,
    write: bool,
    timeout_s: float,
    name: str | None,
    output: OutputFormat,
    leader_of_target: bool = False,
) -> None:
    import asyncio

    from kbus.chaos.experiment import NotReadyError
    from kbus.chaos.faults import Fault
    from kbus.chaos.sessions import SessionError
    from kbus.cli.segment_diff import parse_partition
    from kbus.cluster.control import CommandRefusedError, SupervisorGoneError
    from kbus.zk.store import StoreError

    folder = folder_of(name)
    partition = None if target is None else parse_partition(target)
    fault = Fault[fault_name]
    try:
        outcome = asyncio.run(
            _experiment(
                folder, fault, broker, partition, write=write, to_leader=leader_of_target, timeout_s=timeout_s
            )
        )
    except SupervisorGoneError:
        raise NotRunningError(folder.name) from None
    except (NotReadyError, SessionError, CommandRefusedError) as error:
        raise CliError(str(error)) from None
    except StoreError as error:
        raise CliError(f"ZooKeeper of cluster {folder.name} failed: {error}.") from None
    if output is OutputFormat.JSON:
        print_json(_facts(outcome))
    else:
        _print_outcome(outcome)
    if not outcome.recovered:
        raise CliError(
            f"The cluster did not recover within {timeout_s:g} s: {'; '.join(outcome.missing)}.",
            f"Look at `kbus cluster status` and `kbus cluster logs {outcome.broker}`.",
        )


async def _experiment(
    folder: "ClusterFolder",
    fault: "Fault",
    broker: int | None,
    partition: "TopicPartition | None",
    *,
    write: bool,
    to_leader: bool,
    timeout_s: float,
) -> "Outcome":
    from kbus.chaos.coordination import coordination
    from kbus.chaos.experiment import POLL_S, Experiment
    from kbus.chaos.faults import Fault
    from kbus.cli.isr import unreachable
    from kbus.client.watcher import NoBrokerAnswersError, Watcher
    from kbus.cluster.control import Control

    status: dict[str, Any] = call(folder, "status")
    servers = status["bootstrap_servers"]
    running = [(member["host"], member["port"]) for member in status["brokers"] if member["pid"] is not None]
    if not running:
        raise CliError(f"No broker of cluster {folder.name} runs.", "Start them with `kbus cluster start`.")
    async with (
        coordination(status["zookeeper"]["address"]) as zookeeper,
        Watcher(running, every_s=POLL_S) as watcher,
    ):
        try:
            view = await watcher.all_heard()
            _check_partition(view, partition)
        except NoBrokerAnswersError as error:
            if fault is not Fault.RESUME:
                raise unreachable(error) from None
            view = watcher.view  # of nothing: the one that is to go on may be the only one
        if to_leader:
            assert partition is not None
            broker = view.partitions[partition].leader
            if broker is None:
                raise CliError(f"{_name(partition)} has no leader that could be killed.")
        elif broker is None:
            broker = (await zookeeper.controller()).broker
            if broker is None:
                raise CliError("There is no controller that could be killed.", "`kbus isr watch` shows when.")
        probed = None
        if write:
            probed = partition if partition is not None else _to_write_to(view, broker)
        experiment = Experiment(
            watcher=watcher,
            coordination=zookeeper,
            control=Control(folder),
            servers=servers,
            timeout_s=timeout_s,
        )
        return await experiment.run(fault, broker, probed)


def _check_partition(view: "ClusterView", partition: "TopicPartition | None") -> None:
    if partition is not None and partition not in view.partitions:
        raise CliError(
            f"There is no partition {partition.partition} of topic {partition.topic!r}.",
            f"Create it with `kbus topic create {partition.topic}`; `kbus isr show` shows those there are.",
        )


def _to_write_to(view: "ClusterView", broker: int) -> "TopicPartition | None":
    """One that the fault is about: led by the broker, else replicated by it, else any. None without any."""
    for candidates in (view.led_by(broker), view.replicated_by(broker), sorted(view.partitions)):
        ours = [tp for tp in candidates if not tp.topic.startswith("__")]
        if ours:
            return ours[0]
    return None


def _name(partition: "TopicPartition") -> str:
    return f"{partition.topic}-{partition.partition}"


def _facts(outcome: "Outcome") -> dict[str, Any]:
    """For programs."""
    return {
        "fault": outcome.fault.value,
        "broker": outcome.broker,
        "pid": outcome.pid,
        "recovered": outcome.recovered,
        "missing": list(outcome.missing),
        "leaders_ms": outcome.leaders_ms,
        "acknowledged_ms": outcome.acknowledged_ms,
        "write_pause_ms": outcome.pause_ms,
        "back_in_sync_ms": outcome.back_ms,
        "probed": None if outcome.probed is None else outcome.probed._asdict(),
        "controller": {
            "before": outcome.controller_before._asdict(),
            "after": outcome.controller_after._asdict(),
            "elected_ms": outcome.controller_ms,
        },
        "partitions": [
            {
                **change.partition._asdict(),
                "before": asdict(change.before),
                "after": asdict(change.after),
                "leader_ms": change.leader_ms,
            }
            for change in outcome.changes
        ],
    }


def _print_outcome(outcome: "Outcome") -> None:
    led = sum(change.before.leader == outcome.broker for change in outcome.changes)
    process = "" if outcome.pid is None else f" (pid {outcome.pid})"
    role = f", leader of {led} partition{'s'[: led != 1]}" if outcome.fault.moves_leaders else ""
    print(f"{outcome.fault.past_tense} broker {outcome.broker}{process}{role}.\n")
    print_table(
        ("partition", "leader", "epoch", "isr", "new leader after"),
        [
            (
                _name(change.partition),
                _arrow(change.before.leader, change.after.leader),
                _arrow(change.before.leader_epoch, change.after.leader_epoch),
                _arrow(_isr(change.before.isr), _isr(change.after.isr)),
                _ms(change.leader_ms),
            )
            for change in outcome.changes[:_MAX_SHOWN]
        ],
    )
    if len(outcome.changes) > _MAX_SHOWN:
        print(f"… and {len(outcome.changes) - _MAX_SHOWN} more")
    if outcome.changes:
        print()
    fields: dict[str, object] = {}
    if led:
        fields["All leaders"] = f"after {_ms(outcome.leaders_ms)}" if outcome.leaders_ms else "not all"
    before, after = outcome.controller_before, outcome.controller_after
    fields["Controller"] = f"{after.broker} (epoch {after.epoch}), as before"
    if before != after:
        elected = "" if outcome.controller_ms is None else f" after {_ms(outcome.controller_ms)}"
        fields["Controller"] = (
            f"{_arrow(before.broker, after.broker)} (epoch {_arrow(before.epoch, after.epoch)}){elected}"
        )
    if outcome.fault.comeback.value != "none":
        fields["In sync again"] = "no" if outcome.back_ms is None else f"after {_ms(outcome.back_ms)}"
    if outcome.probed is not None:
        acknowledged = outcome.acknowledged_ms
        text = "not acknowledged" if acknowledged is None else f"acknowledged after {_ms(acknowledged)}"
        fields["First write"] = f"{text}, to {_name(outcome.probed)} with acks=all"
        fields["Longest pause"] = f"{_ms(outcome.pause_ms)} between two acknowledgements"
    else:
        fields["First write"] = "not tried"
    if outcome.fault.value in _NEXT:
        fields["Next"] = f"{_NEXT[outcome.fault.value]} {outcome.broker}"
    print_fields(fields)


_NEXT = {"kill": "kbus broker start", "pause": "kbus chaos resume-broker"}


def _arrow(before: object, after: object) -> str:
    old, new = ("none" if value is None else str(value) for value in (before, after))
    return old if old == new else f"{old} -> {new}"


def _isr(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} ms"
