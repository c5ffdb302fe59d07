"""How a local cluster is: what its supervisor says of processes, and its brokers of partitions."""

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbus.cli.output import (
    OutputFormat,
    format_size,
    print_fields,
    print_json,
    print_json_line,
    print_table,
)
from kbus.cli.supervised import NotRunningError, broker_row, call

if TYPE_CHECKING:
    from kbus.client.metadata import ClusterView
    from kbus.cluster.folder import ClusterFolder

_MAX_NAMED = 10
_POLL_S = 0.5


def show_status(folder: "ClusterFolder", output: OutputFormat) -> bool:
    """Whether all is well."""
    found = read_status(folder)
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        _print_status(found)
    return bool(found["healthy"])


def watch_status(folder: "ClusterFolder", output: OutputFormat) -> None:
    """Until Ctrl-C. In place on a terminal; a line, or a table, for each change elsewhere."""
    shown: object = None
    while True:
        try:
            found = read_status(folder)
        except NotRunningError as error:
            found = {"name": folder.name, "healthy": False, "error": error.message}
        essence = _essence(found)
        if sys.stdout.isatty() and output is OutputFormat.TABLE:
            sys.stdout.write("\x1b[H\x1b[2J")
            _print_status(found)
        elif essence != shown:
            if output is OutputFormat.JSON:
                print_json_line({"time_ms": time.time_ns() // 1_000_000, **found})
            else:
                _print_status(found)
                print()
        shown = essence
        sys.stdout.flush()
        time.sleep(_POLL_S)


def read_status(folder: "ClusterFolder") -> dict[str, Any]:
    from kbus.cluster.memory import memory_bytes, tree_memory_bytes

    found: dict[str, Any] = call(folder, "status")
    brokers = [broker_row(broker) for broker in found["brokers"]]
    view = asyncio.run(_look(brokers))
    zookeeper = found["zookeeper"]
    pid = zookeeper["pid"]
    partitions: dict[str, Any] | None = None
    if view is not None:
        for broker in brokers:
            broker["in_cluster"] = broker["broker"] in view.brokers
            broker["leader_of"] = len(view.led_by(broker["broker"]))
            broker["replica_of"] = len(view.replicated_by(broker["broker"]))
        partitions = {
            "total": len(view.partitions),
            "under_replicated": [str_of(tp) for tp in view.under_replicated],
            "offline": [str_of(tp) for tp in view.offline],
        }
    healthy = (
        all(broker["state"] == "running" and broker.get("in_cluster") for broker in brokers)
        and partitions is not None
        and not partitions["under_replicated"]
        and not partitions["offline"]
    )
    return {
        **found,
        "healthy": healthy,
        "memory_bytes": tree_memory_bytes(found["pid"]),
        "zookeeper": {**zookeeper, "memory_bytes": None if pid is None else memory_bytes(pid)},
        "controller": None if view is None else view.controller,
        "brokers": brokers,
        "partitions": partitions,
    }


def str_of(partition: tuple[str, int]) -> str:
    return f"{partition[0]}-{partition[1]}"


async def _look(brokers: list[dict[str, Any]]) -> "ClusterView | None":
    """None if no broker answers."""
    from kbus.client.watcher import NoBrokerAnswersError, Watcher

    addresses = [(broker["host"], broker["port"]) for broker in brokers if broker["state"] == "running"]
    if not addresses:
        return None
    async with Watcher(addresses, every_s=1.0) as watcher:
        try:
            return await watcher.all_heard()
        except NoBrokerAnswersError:
            return None


def _essence(found: Mapping[str, Any]) -> object:
    """What counts as a change: not the memory."""
    return {
        name: [{k: v for k, v in broker.items() if k != "memory_bytes"} for broker in value]
        if name == "brokers"
        else value
        for name, value in found.items()
        if name not in ("memory_bytes", "zookeeper")
    }


def _print_status(found: Mapping[str, Any]) -> None:
    if "error" in found:
        print(found["error"])
        return
    zookeeper = found["zookeeper"]
    where = f"embedded, pid {zookeeper['pid']}" if zookeeper["embedded"] else "not of this cluster"
    print_fields(
        {
            "Cluster": f"{found['name']} ({found['folder']})",
            "Bootstrap": found["bootstrap_servers"],
            "ZooKeeper": f"{zookeeper['address']} ({where})",
            "Controller": found["controller"],
            "Partitions": _partitions_text(found["partitions"]),
            "Memory": _size(found["memory_bytes"]),
        }
    )
    print()
    print_table(
        ("broker", "state", "pid", "port", "rack", "leader of", "replica of", "memory", "deaths", ""),
        [
            (
                broker["broker"],
                state_text(broker),
                broker["pid"],
                broker["port"],
                broker["rack"],
                broker.get("leader_of"),
                broker.get("replica_of"),
                _size(broker["memory_bytes"]),
                broker["deaths"],
                broker["error"] or "",
            )
            for broker in found["brokers"]
        ],
    )


def state_text(broker: Mapping[str, Any]) -> str:
    state = str(broker["state"])
    return (
        f"{state}, not in the cluster" if state == "running" and broker.get("in_cluster") is False else state
    )


def _partitions_text(partitions: Mapping[str, Any] | None) -> str:
    if partitions is None:
        return "unknown, as no broker answers"
    text = str(partitions["total"])
    for what, label in (("offline", "without leader"), ("under_replicated", "under-replicated")):
        names = partitions[what]
        if names:
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            text += f", {len(names)} {label} ({', '.join(names[:_MAX_NAMED])}{more})"
    return text


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else format_size(size_bytes)
