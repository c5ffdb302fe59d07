"""The supervisor: owns the processes of one local cluster, and does to them what commands ask.

It starts ZooKeeper and the brokers, notices those that end, and ends them when it is told to stop. Every
change to what the cluster is to be (spec.json) is made here, one at a time.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kbus.client.local_cluster import LocalCluster, write_cluster
from kbus.cluster.folder import ClusterFolder, all_folders
from kbus.cluster.member import Member, MemberError
from kbus.cluster.ports import FIRST_PORT, PortTakenError, find_free, is_free
from kbus.cluster.processes import Processes
from kbus.cluster.spec import HOST, ClusterSpec, SpecError, Wishes, check, planned
from kbus.cluster.zookeeper import ZooKeeperServer
from kbus.zk.embedded import EmbeddedZooKeeperError

log = logging.getLogger(__name__)

_RESTART_DELAY_S: Final = 0.5
_MAX_RESTART_DELAY_S: Final = 30.0

Emit = Callable[[dict[str, Any]], None]
REFUSALS = (SpecError, PortTakenError, MemberError, EmbeddedZooKeeperError)
"""What a user can do something about: told in a sentence, without a traceback."""


class Supervisor:
    def __init__(self, folder: ClusterFolder) -> None:
        self.folder = folder
        self.stopped = asyncio.Event()
        self._processes = Processes()
        self._spec = folder.read_spec()
        self._members: dict[int, Member] = {}
        self._zookeeper: ZooKeeperServer | None = None
        self._changing = asyncio.Lock()
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        self._started_at = time.time()

    def warm_up(self) -> None:
        self._processes.warm_up()

    @property
    def spec(self) -> ClusterSpec:
        if self._spec is None:
            raise SpecError(f"Cluster {self.folder.name} has not been started yet.")
        return self._spec

    @property
    def has_work(self) -> bool:
        return any(member.is_up for member in self._members.values())

    # ---- commands

    async def start(self, wishes: Wishes, emit: Emit) -> dict[str, Any]:
        """Starts what is down. Brokers that run go on, with the settings that they have."""
        async with self._changing:
            self._refuse_if_stopping()
            spec = self._with_ports(planned(self.folder.name, self._spec, wishes))
            self._adopt(spec)
            emit({"event": "planned", "brokers": [broker.id for broker in spec.brokers]})
            zookeeper = await self._start_zookeeper(emit)
            self._announce_cluster(zookeeper, make_current=True)
        failures = await self._start_members(self._members.values(), emit)
        if failures:
            # A refusal of one is often that of all.
            raise MemberError(" ".join(dict.fromkeys(failures)))
        return self.describe()

    async def add_brokers(self, count: int, wishes: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        async with self._changing:
            self._refuse_if_stopping()
            spec = planned(self.folder.name, self.spec, Wishes(brokers=len(self.spec.brokers) + count))
            added = spec.brokers[-count:]
            for broker in added:
                changed = replace(
                    broker, rack=wishes.get("rack"), settings=wishes["settings"], port=wishes.get("port") or 0
                )
                spec = spec.with_broker(changed)
            check(spec)
            self._adopt(self._with_ports(spec))
            zookeeper = await self._start_zookeeper(emit)
            self._announce_cluster(zookeeper, make_current=False)
        failures = await self._start_members([self._members[broker.id] for broker in added], emit)
        if failures:
            raise MemberError(" ".join(failures))
        return {"brokers": [self._members[broker.id].describe() for broker in added]}

    async def start_broker(self, broker_id: int, settings: Mapping[str, str], emit: Emit) -> dict[str, Any]:
        member = await self._configured(broker_id, settings, emit)
        began = time.monotonic()
        started = await member.start(self._properties(member))
        emit({"event": "ready", "broker": broker_id})
        return {"started": started, "ms": _since_ms(began), **member.describe()}

    async def stop_broker(self, broker_id: int) -> dict[str, Any]:
        member = self._member(broker_id)
        self._cancel_restart(broker_id)
        at_ns, began = time.monotonic_ns(), time.monotonic()
        stopped = await member.stop()
        return {"stopped": stopped, "at_ns": at_ns, "ms": _since_ms(began), **member.describe()}

    async def restart_broker(self, broker_id: int, settings: Mapping[str, str], emit: Emit) -> dict[str, Any]:
        member = await self._configured(broker_id, settings, emit)
        at_ns, began = time.monotonic_ns(), time.monotonic()
        self._cancel_restart(broker_id)
        await member.stop()
        stopped_ms = _since_ms(began)
        emit({"event": "stopped", "broker": broker_id})
        await member.start(self._properties(member))
        return {"at_ns": at_ns, "stop_ms": stopped_ms, "ms": _since_ms(began), **member.describe()}

    async def kill_broker(self, broker_id: int) -> dict[str, Any]:
        member = self._member(broker_id)
        pid, at_ns = member.pid, await member.kill()
        return {"at_ns": at_ns, **member.describe(), "pid": pid}

    async def pause_broker(self, broker_id: int) -> dict[str, Any]:
        member = self._member(broker_id)
        return {"at_ns": member.pause(), **member.describe()}

    async def resume_broker(self, broker_id: int) -> dict[str, Any]:
        member = self._member(broker_id)
        return {"at_ns": member.resume(), **member.describe()}

    def describe(self) -> dict[str, Any]:
        spec = self.spec
        zookeeper = self._zookeeper
        return {
            "name": spec.name,
            "folder": str(self.folder.path),
            "pid": os.getpid(),
            "since_ms": int(self._started_at * 1000),
            "bootstrap_servers": _bootstrap_servers(spec),
            "settings": dict(spec.settings),
            "restart": spec.restart,
            "zookeeper": {
                "address": spec.zookeeper_connect or (zookeeper.address if zookeeper else None),
                "embedded": spec.zookeeper_connect is None,
                "pid": None if zookeeper is None else zookeeper.pid,
                "log": None if spec.zookeeper_connect else str(self.folder.zookeeper_log),
            },
            "brokers": [self._members[broker.id].describe() for broker in spec.brokers],
        }

    async def stop(self, emit: Emit = lambda _: None) -> None:
        """Everything, brokers first. The supervisor ends after it."""
        self._stopping = True
        for broker_id in list(self._restarts):
            self._cancel_restart(broker_id)

        async def stop_one(member: Member) -> None:
            if await member.stop():
                emit({"event": "stopped", "broker": member.spec.id})

        async with self._changing:
            await asyncio.gather(*map(stop_one, self._members.values()))
            if self._zookeeper is not None:
                await self._zookeeper.stop()
                self._zookeeper = None
                emit({"event": "stopped", "zookeeper": True})
        self.stopped.set()

    # ---- what the cluster is to be

    def _with_ports(self, spec: ClusterSpec) -> ClusterSpec:
        """The ports that are remembered or asked for; free ones, in a row, for the rest."""
        for broker in spec.brokers:
            member = self._members.get(broker.id)
            if member is not None and member.is_up and member.spec.port != broker.port:
                raise SpecError(
                    f"Broker {broker.id} runs at port {member.spec.port}; stop the cluster first with `kbus "
                    "cluster stop` to give it other ports."
                )
        homeless = [broker for broker in spec.brokers if not broker.port]
        if homeless:
            avoid = _ports_of_others(self.folder) | {broker.port for broker in spec.brokers}
            after = max(broker.port for broker in spec.brokers) + 1
            found = find_free(HOST, len(homeless), avoid=avoid, first=max(after, FIRST_PORT))
            for broker, port in zip(homeless, found, strict=True):
                spec = spec.with_broker(replace(broker, port=port))
        return spec

    def _adopt(self, spec: ClusterSpec) -> None:
        for broker in spec.brokers:
            member = self._members.get(broker.id)
            if member is None:
                self._members[broker.id] = Member(
                    broker,
                    processes=self._processes,
                    data=self.folder.data(broker.id),
                    log_path=self.folder.broker_log(broker.id),
                    on_death=self._on_death,
                )
            else:
                member.spec = broker
        self._spec = spec
        self.folder.write_spec(spec)

    async def _configured(self, broker_id: int, settings: Mapping[str, str], emit: Emit) -> Member:
        """The member with the settings over its own, and ZooKeeper there for it."""
        async with self._changing:
            self._refuse_if_stopping()
            broker = self.spec.broker(broker_id)
            if settings:
                broker = replace(broker, settings={**broker.settings, **settings})
                spec = self.spec.with_broker(broker)
                check(spec)
                self._adopt(spec)
            zookeeper = await self._start_zookeeper(emit)
            self._announce_cluster(zookeeper, make_current=False)
        return self._member(broker_id)

    def _properties(self, member: Member) -> dict[str, str]:
        spec = self.spec
        zookeeper = spec.zookeeper_connect
        if zookeeper is None:
            assert self._zookeeper is not None
            zookeeper = self._zookeeper.address
        return spec.properties(member.spec, data=member.data, zookeeper=zookeeper)

    def _member(self, broker_id: int) -> Member:
        self.spec.broker(broker_id)
        return self._members[broker_id]

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise SpecError(f"Cluster {self.folder.name} is being stopped; wait for it, then start it again.")

    # ---- processes

    async def _start_zookeeper(self, emit: Emit) -> str:
        spec = self.spec
        if spec.zookeeper_connect is not None:
            return spec.zookeeper_connect
        if self._zookeeper is None:
            port = spec.zookeeper_port
            server = ZooKeeperServer(self.folder.zookeeper, port=port if port and is_free(HOST, port) else 0)
            emit({"event": "starting", "zookeeper": True})
            began = time.monotonic()
            await server.start()
            self._zookeeper = server
            self._adopt(replace(spec, zookeeper_port=server.port))
            emit({"event": "ready", "zookeeper": True, "ms": _since_ms(began), "address": server.address})
        return self._zookeeper.address

    def _announce_cluster(self, zookeeper: str, *, make_current: bool) -> None:
        spec = self.spec
        write_cluster(
            LocalCluster(
                folder=self.folder.path,
                bootstrap_servers=_bootstrap_servers(spec),
                zookeeper=zookeeper,
                log_dirs=tuple(self.folder.data(broker.id) for broker in spec.brokers),
            ),
            make_current=make_current,
        )

    async def _start_members(self, members: Iterable[Member], emit: Emit) -> list[str]:
        """All at the same time; the sentences of those that did not start."""

        async def start_one(member: Member) -> str | None:
            broker_id = member.spec.id
            self._cancel_restart(broker_id)
            began = time.monotonic()
            try:
                if not member.is_up:
                    emit({"event": "starting", "broker": broker_id, "port": member.spec.port})
                started = await member.start(self._properties(member))
            except MemberError as error:
                emit({"event": "failed", "broker": broker_id, "error": str(error)})
                return str(error)
            emit({"event": "ready", "broker": broker_id, "started": started, "ms": _since_ms(began)})
            return None

        outcomes = await asyncio.gather(*map(start_one, members))
        return [sentence for sentence in outcomes if sentence is not None]

    def _on_death(self, member: Member) -> None:
        if self._stopping or self._spec is None or not self._spec.restart:
            return
        broker_id = member.spec.id
        self._cancel_restart(broker_id)
        self._restarts[broker_id] = asyncio.get_running_loop().create_task(self._restart(member))

    async def _restart(self, member: Member) -> None:
        delay_s = _RESTART_DELAY_S
        while not member.is_up:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_RESTART_DELAY_S)
            try:
                await member.start(self._properties(member))
                log.info("broker %d was started again", member.spec.id)
            except MemberError:
                continue  # it is in the log, and in the member's state

    def _cancel_restart(self, broker_id: int) -> None:
        task = self._restarts.pop(broker_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()


def _bootstrap_servers(spec: ClusterSpec) -> str:
    return ",".join(f"{HOST}:{broker.port}" for broker in spec.brokers)


def _ports_of_others(folder: ClusterFolder) -> set[int]:
    """Those that other clusters remember, even if they do not run now."""
    ports: set[int] = set()
    for other in all_folders():
        if other.path == folder.path:
            continue
        try:
            spec = other.read_spec()
        except SpecError:
            continue  # a damaged one is of no concern here
        if spec is not None:
            ports.update(broker.port for broker in spec.brokers)
    return ports


def _since_ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
