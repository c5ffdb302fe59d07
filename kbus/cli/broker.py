"""`kbus broker`: run one, or see to those of a local cluster."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kbus.cli.app import new_app
from kbus.cli.context import key_values
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    format_size,
    format_time,
    print_fields,
    print_json,
    print_json_line,
    print_table,
)
from kbus.cli.supervised import BrokerArgument, NameOption, call, folder_of

app = new_app(help="Run a broker, or see to those of a local cluster.")

SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "--override",
        metavar="NAME=VALUE",
        help="A setting over those of the file or the cluster; may be repeated.",
    ),
]


@app.command()
def start(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.properties|N",
            show_default=False,
            help="Settings, as Kafka's server.properties; or the number of a broker of a local cluster.",
        ),
    ] = None,
    settings: SettingsOption = None,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM, or start one of a local cluster by its number.

    Without a file it is a complete single node, ZooKeeper included, with its data under $KBUS_HOME
    (default ~/.kbus), and the other commands find it by themselves. The settings of a cluster's broker are
    kept for its next starts."""
    overrides = key_values(settings or (), "--set")
    if file is not None and str(file).isdecimal():
        _start_member(int(str(file)), overrides, name, output)
        return
    if name is not None:
        raise typer.BadParameter("goes with the number of a broker.", param_hint="--name")

    from kbus.node.main import BrokerRefusedError, RunningBroker, run_broker

    def announce(broker: RunningBroker) -> None:
        if output is OutputFormat.JSON:
            print_json_line(asdict(broker))
        else:
            print_fields(
                {
                    f"Broker {broker.broker_id}": f"ready at {broker.bootstrap_servers}",
                    "ZooKeeper": f"{broker.zookeeper}{' (embedded)' if broker.embedded_zookeeper else ''}",
                    "Data": ", ".join(str(path) for path in broker.log_dirs),
                    "Try": "kbus topic create demo --partitions 3",
                    "Stop": "Ctrl-C",
                }
            )
        sys.stdout.flush()

    try:
        raise typer.Exit(run_broker(file, overrides, announce))
    except BrokerRefusedError as error:
        raise CliError(str(error)) from error


def _start_member(number: int, settings: dict[str, str], name: str | None, output: OutputFormat) -> None:
    result = call(folder_of(name), "start-broker", launch=True, broker=number, settings=settings)
    where = f"at {result['host']}:{result['port']} (pid {result['pid']})"
    if result["started"]:
        _say(output, result, f"Broker {number} is ready {where}, after {result['ms']} ms.")
    else:
        _say(output, result, f"Broker {number} was running already {where}.")


@app.command()
def stop(number: BrokerArgument, name: NameOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Stop a broker of a local cluster; its leaderships move to others first."""
    result = call(folder_of(name), "stop-broker", broker=number)
    if result["stopped"]:
        _say(output, result, f"Broker {number} has stopped, after {result['ms']} ms.")
    else:
        _say(output, result, f"Broker {number} did not run.")


@app.command()
def restart(
    number: BrokerArgument,
    settings: SettingsOption = None,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a broker of a local cluster and start it again, with its settings as they are now."""
    overrides = key_values(settings or (), "--set")
    result = call(folder_of(name), "restart-broker", broker=number, settings=overrides)
    _say(
        output,
        result,
        f"Broker {number} has stopped after {result['stop_ms']} ms and is ready again after "
        f"{result['ms']} ms (pid {result['pid']}).",
    )


@app.command()
def add(
    count: Annotated[int, typer.Option("--count", min=1, max=50, help="How many.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Where it listens. Default: the first free one after the others.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="RACK", help="The rack it is in.")] = None,
    settings: SettingsOption = None,
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add a broker to a local cluster and start it. Partitions that exist stay where they are."""
    if port is not None and count > 1:
        raise typer.BadParameter("goes with one broker at a time.", param_hint="--port")
    wishes = {"rack": rack, "port": port, "settings": key_values(settings or (), "--set")}
    result = call(folder_of(name), "add-brokers", launch=True, count=count, wishes=wishes)
    if output is OutputFormat.JSON:
        print_json(result["brokers"])
        return
    for broker in result["brokers"]:
        print(
            f"Broker {broker['broker']} was added and is ready at {broker['host']}:{broker['port']} "
            f"(pid {broker['pid']})."
        )


@app.command("list")
def list_brokers(name: NameOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the brokers of a local cluster."""
    from kbus.cli.cluster_status import read_status, state_text

    brokers = read_status(folder_of(name))["brokers"]
    if output is OutputFormat.JSON:
        print_json(brokers)
        return
    print_table(
        ("broker", "state", "pid", "address", "rack", "leader of", "replica of", "since"),
        [
            (
                broker["broker"],
                state_text(broker),
                broker["pid"],
                f"{broker['host']}:{broker['port']}",
                broker["rack"],
                broker.get("leader_of"),
                broker.get("replica_of"),
                format_time(broker["since_ms"]),
            )
            for broker in brokers
        ],
    )


@app.command()
def describe(
    number: BrokerArgument, name: NameOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show all about a broker of a local cluster."""
    from kbus.cli.cluster_status import read_status, state_text

    folder = folder_of(name)
    found = read_status(folder)
    brokers = {broker["broker"]: broker for broker in found["brokers"]}
    if number not in brokers:
        known = ", ".join(map(str, brokers))
        raise CliError(f"Cluster {folder.name} has no broker {number}; it has {known}.")
    broker = brokers[number]
    broker["settings"] = {**found["settings"], **broker["settings"]}
    broker["is_controller"] = found["controller"] == number
    if output is OutputFormat.JSON:
        print_json(broker)
        return
    memory = broker["memory_bytes"]
    print_fields(
        {
            "Broker": f"{number} of cluster {found['name']}{', the controller' * broker['is_controller']}",
            "State": f"{state_text(broker)} since {format_time(broker['since_ms'])}",
            "Problem": broker["error"],
            "Pid": broker["pid"],
            "Address": f"{broker['host']}:{broker['port']}",
            "Rack": broker["rack"],
            "Leader of": broker.get("leader_of"),
            "Replica of": broker.get("replica_of"),
            "Memory": None if memory is None else format_size(memory),
            "Deaths": broker["deaths"],
            "Data": broker["data"],
            "Log": broker["log"],
            **{f"{setting}": value for setting, value in sorted(broker["settings"].items())},
        }
    )


def _say(output: OutputFormat, result: dict[str, Any], sentence: str) -> None:
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        print(sentence)
