"""`kbus cluster`: a local cluster of real processes, from start to end."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbus.cli.app import new_app
from kbus.cli.context import key_values
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    format_size,
    note,
    print_fields,
    print_json,
    print_table,
)
from kbus.cli.supervised import NameOption, NotRunningError, call, folder_of

if TYPE_CHECKING:
    from kbus.cluster.folder import ClusterFolder

app = new_app(help="Start, watch, stop and remove clusters on this machine.")


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, help="How many. [default: 3]", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The cluster's name. Default: that of the file, the cluster started last, or local.",
            show_default=False,
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1,
            max=65535,
            help="The port of the first broker; the others have those after it. Default: free ones from 9092 "
            "on, which the cluster then keeps.",
            show_default=False,
        ),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option("--racks", metavar="A,B,C", help="Racks, given to the brokers in turn."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CLUSTER.toml", help="The cluster described in a file."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of all brokers, by Kafka's name; may be repeated."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a cluster, ZooKeeper included, or what is down of it. Returns when every broker serves.

    Options change a cluster that exists already; brokers that run take new settings when they are
    restarted. Its data is under $KBUS_HOME (default ~/.kbus), and other commands find it by themselves."""
    from kbus.cli.cluster_progress import start_progress
    from kbus.cluster import toml_file
    from kbus.cluster.spec import SpecError, Wishes

    wishes = Wishes(
        brokers=brokers,
        base_port=base_port,
        racks=None if racks is None else _racks(racks),
        settings=key_values(settings or (), "--set"),
    )
    if config is not None:
        try:
            name_in_file, wishes_in_file = toml_file.load(config)
        except SpecError as error:
            raise CliError(str(error)) from None
        name = name or name_in_file
        wishes = wishes.over(wishes_in_file)
    folder = folder_of(name, must_exist=False)
    with start_progress() as shown:
        events: list[dict[str, Any]] = []

        def on_event(event: dict[str, Any]) -> None:
            events.append(event)
            shown.event(event)

        result = call(folder, "start", launch=True, on_event=on_event, wishes=wishes.to_dict())
    started = [event["broker"] for event in events if event["event"] == "ready" and event.get("started")]
    if output is OutputFormat.JSON:
        print_json({**result, "started": started})
        return
    _announce(result, started, changed=wishes != replace(Wishes(), brokers=wishes.brokers))


def _racks(text: str) -> tuple[str, ...]:
    racks = tuple(rack.strip() for rack in text.split(","))
    if not all(racks):
        raise typer.BadParameter(f"{text!r} is not of the form a,b,c.", param_hint="--racks")
    return racks


def _announce(result: dict[str, Any], started: list[int], *, changed: bool) -> None:
    running = len(result["brokers"])
    kept = running - len(started)
    state = f"{running} broker{'s'[: running > 1]} ready"
    if not started:
        state = f"was running already, {state}"
    elif kept:
        state += f", {len(started)} of them started now"
    print_fields(
        {
            f"Cluster {result['name']}": state,
            "Bootstrap": result["bootstrap_servers"],
            "ZooKeeper": result["zookeeper"]["address"],
            "Folder": result["folder"],
        }
    )
    if kept and changed:
        note("Brokers that ran already keep their settings until `kbus broker restart N`.")
    for line in (
        "",
        "Try:",
        "  kbus topic create demo --partitions 3",
        "  seq 1000 | kbus console-produce demo",
        "  kbus isr show demo",
        "  kbus chaos kill-leader demo",
        "  kbus cluster stop",
    ):
        print(line)


@app.command()
def status(
    name: NameOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say how a cluster is: its processes, its controller, its partitions.

    Exits with 1 if a broker is down, or a partition without leader or short of replicas."""
    from kbus.cli.cluster_status import show_status, watch_status

    folder = folder_of(name)
    if watch:
        watch_status(folder, output)
        return
    if not show_status(folder, output):
        raise typer.Exit(1)


@app.command()
def stop(name: NameOption = None) -> None:
    """Stop a cluster's brokers and its ZooKeeper. What is on disk stays."""
    folder = folder_of(name)
    try:
        call(folder, "stop")
    except NotRunningError:
        note(f"Cluster {folder.name} does not run.")
        return
    _wait_until_gone(folder)
    print(f"Cluster {folder.name} has stopped. `kbus cluster start --name {folder.name}` goes on with it.")


def _wait_until_gone(folder: "ClusterFolder") -> None:
    """Until the supervisor has let go of the folder."""
    import fcntl

    with folder.lock_file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@app.command()
def destroy(
    name: NameOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop a cluster and delete all that it has on disk."""
    import shutil

    from kbus.client.local_cluster import forget_current

    folder = folder_of(name)
    if not yes:
        size = sum(path.lstat().st_size for path in folder.path.rglob("*") if path.is_file())
        question = f"Delete cluster {folder.name} with all its data ({format_size(size)} in {folder.path})?"
        if not sys.stdin.isatty():
            raise CliError(f"Nothing was deleted: there is nobody to ask: {question}", "Add --yes.")
        typer.confirm(question, abort=True)
    try:
        call(folder, "stop")
        _wait_until_gone(folder)
    except NotRunningError:
        pass
    shutil.rmtree(folder.path)
    forget_current(folder.path)
    print(f"Cluster {folder.name} is gone.")


@app.command("list")
def list_clusters(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the clusters of this machine."""
    from kbus.client.local_cluster import current_folder, kbus_home
    from kbus.cluster.control import Control, SupervisorGoneError
    from kbus.cluster.folder import all_folders
    from kbus.cluster.spec import SpecError

    current = current_folder()
    rows = []
    for folder in all_folders():
        row: dict[str, Any] = {
            "name": folder.name,
            "state": "stopped",
            "brokers": None,
            "running": 0,
            "bootstrap_servers": None,
            "folder": str(folder.path),
            "current": current is not None and current.resolve() == folder.path.resolve(),
        }
        try:
            spec = folder.read_spec()
            if spec is not None:
                row["brokers"] = len(spec.brokers)
            found = Control(folder).call("status")
            row["bootstrap_servers"] = found["bootstrap_servers"]
            row["running"] = sum(broker["state"] == "running" for broker in found["brokers"])
            row["state"] = "running"
        except SupervisorGoneError:
            pass
        except SpecError:
            row["state"] = "damaged"
        rows.append(row)
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    print_table(
        ("name", "state", "brokers", "bootstrap servers", "folder", ""),
        [
            (
                row["name"],
                row["state"],
                None if row["brokers"] is None else f"{row['running']}/{row['brokers']}",
                row["bootstrap_servers"],
                row["folder"],
                "current" if row["current"] else "",
            )
            for row in rows
        ],
        empty=f"There is no cluster in {kbus_home()}. Start one with `kbus cluster start`.",
    )


@app.command()
def logs(
    who: Annotated[
        str | None,
        typer.Argument(
            metavar="[N|zookeeper|supervisor]", show_default=False, help="Whose log. Default: all brokers'."
        ),
    ] = None,
    name: NameOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines arrive.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 100,
) -> None:
    """Show the logs of a cluster's processes, those of several in the order of time."""
    from kbus.cli.cluster_logs import follow_logs, print_last

    folder = folder_of(name)
    files = _log_files(folder, who)
    ends = print_last(files, lines)
    if follow:
        follow_logs(files, ends)


def _log_files(folder: "ClusterFolder", who: str | None) -> dict[str, Path]:
    spec = folder.read_spec()
    numbers = [] if spec is None else [broker.id for broker in spec.brokers]
    known = {str(number): folder.broker_log(number) for number in numbers}
    known |= {"zookeeper": folder.zookeeper_log, "supervisor": folder.log_file}
    if who is None:
        return {f"broker {number}": known[str(number)] for number in numbers}
    if who not in known:
        raise CliError(f"Cluster {folder.name} has no log of {who!r}; it has those of {', '.join(known)}.")
    return {who if who in ("zookeeper", "supervisor") else f"broker {who}": known[who]}
