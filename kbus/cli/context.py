"""What a command is pointed at: which cluster, and properties given on the command line or in files."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kbus.cli.output import CliError
from kbus.client.local_cluster import LocalCluster, current_cluster

BOOTSTRAP_VARIABLE = "KBUS_BOOTSTRAP_SERVERS"
_DEFAULT_PORT = 9092

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help=f"Brokers to connect to. Default: ${BOOTSTRAP_VARIABLE}, then the current local cluster.",
    ),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="The topic, for those used to Kafka's spelling."),
]


def bootstrap_servers(option: str | None) -> str:
    """Where to connect: the option, then the environment, then the cluster started last on this machine."""
    given = option or os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        return given
    cluster = local_cluster()
    if cluster is None:
        raise CliError(
            "No cluster is known here.",
            "Start one with `kbus broker start`, or name one with --bootstrap-server HOST:PORT.",
        )
    return cluster.bootstrap_servers


def host_and_port(server: str) -> tuple[str, int]:
    address = server.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(_DEFAULT_PORT)
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CliError(f"{server!r} is not an address.", "Write --bootstrap-server HOST:PORT.", exit_code=2)
    return host, int(port)


def local_cluster() -> LocalCluster | None:
    try:
        return current_cluster()
    except ValueError as error:
        raise CliError(f"{error}.", "Start the cluster again, or use --bootstrap-server.") from None


def one_topic(argument: str | None, option: str | None) -> str:
    """The topic, given as an argument or as --topic, but not as both."""
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"the topic is given twice, as {argument!r} and as --topic {option!r}.")
    topic = argument if argument is not None else option
    if not topic:
        raise typer.BadParameter("name a topic.", param_hint="TOPIC")
    return topic


def key_values(items: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` pairs of a repeated option. The value may contain "=" and may be empty."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise typer.BadParameter(f"{item!r} is not of the form name=value.", param_hint=option)
        pairs[name.strip()] = value
    return pairs


def properties(file: Path | None, items: Iterable[str], option: str) -> dict[str, str]:
    """Properties from a Java-style file, then those of the command line over them."""
    from kbus.config.properties import load_properties
    from kbus.config.setting import ConfigError

    if file is None:
        return key_values(items, option)
    try:
        return {**load_properties(file), **key_values(items, option)}
    except ConfigError as error:
        raise CliError(str(error)) from None
