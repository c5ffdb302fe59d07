"""What a local cluster is to be: its brokers with their ports, racks and settings."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kbus.config import BrokerConfig, ConfigError

DEFAULT_NAME: Final = "local"
DEFAULT_BROKERS: Final = 3
HOST: Final = "127.0.0.1"
MAX_BROKERS: Final = 100
_MAX_REPLICAS: Final = 3

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RACK = re.compile(r"[^\s,]+")
_TAKEN_NAMES: Final = {
    "default": "`kbus broker start` keeps its node there",
    "zookeeper": "`kbus zookeeper start` keeps its data there",
    "current": "that file tells which cluster is the current one",
}
_OWN_SETTINGS: Final = {
    "broker.id": "brokers are numbered from 1",
    "listeners": "use base_port, or port for one broker",
    "advertised.listeners": "use base_port, or port for one broker",
    "log.dirs": "each broker has a folder in that of the cluster",
    "log.dir": "each broker has a folder in that of the cluster",
    "broker.rack": "use racks, or rack for one broker",
}


class SpecError(Exception):
    """The cluster cannot be as wished. The text is a sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    id: int
    port: int = 0
    """0 until one was chosen."""
    rack: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Over those of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    name: str
    brokers: tuple[BrokerSpec, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    restart: bool = False
    """Whether a broker that ended by itself is started again."""
    zookeeper_port: int = 0
    """0 until one was chosen."""

    @property
    def zookeeper_connect(self) -> str | None:
        """An ensemble of the user's own; None for the embedded server."""
        return self.settings.get("zookeeper.connect")

    def broker(self, broker_id: int) -> BrokerSpec:
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        known = ", ".join(str(broker.id) for broker in self.brokers)
        raise SpecError(f"Cluster {self.name} has no broker {broker_id}; it has {known}.")

    def with_broker(self, changed: BrokerSpec) -> "ClusterSpec":
        """In the place of the one with its id, or as the last one."""
        others = tuple(broker for broker in self.brokers if broker.id != changed.id)
        return replace(self, brokers=tuple(sorted((*others, changed), key=lambda broker: broker.id)))

    def properties(self, broker: BrokerSpec, *, data: Path, zookeeper: str) -> dict[str, str]:
        """All that the broker is started with."""
        properties = {
            **self.settings,
            **broker.settings,
            "broker.id": str(broker.id),
            "listeners": f"PLAINTEXT://{HOST}:{broker.port}",
            "log.dirs": str(data),
            "zookeeper.connect": zookeeper,
        }
        if broker.rack is not None:
            properties["broker.rack"] = broker.rack
        return properties

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ClusterSpec":
        """Raises ValueError."""
        try:
            content = json.loads(text)
            brokers = tuple(BrokerSpec(**broker) for broker in content.pop("brokers"))
            return cls(brokers=brokers, **content)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a command or a file asks for. None is "as it is, or as it is usual"."""

    brokers: int | None = None
    base_port: int | None = None
    racks: tuple[str, ...] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    restart: bool | None = None
    per_broker: Mapping[int, "BrokerWishes"] = field(default_factory=dict)

    def over(self, other: "Wishes") -> "Wishes":
        """These where they say something, `other` elsewhere."""

        def first(name: str) -> Any:
            mine = getattr(self, name)
            return getattr(other, name) if mine is None else mine

        return Wishes(
            brokers=first("brokers"),
            base_port=first("base_port"),
            racks=first("racks"),
            settings={**other.settings, **self.settings},
            restart=first("restart"),
            per_broker={**other.per_broker, **self.per_broker},
        )

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        content["per_broker"] = {str(number): wishes for number, wishes in content["per_broker"].items()}
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Wishes":
        per_broker = {int(number): BrokerWishes(**wishes) for number, wishes in content["per_broker"].items()}
        racks = content["racks"]
        return cls(
            **{
                **content,
                "racks": None if racks is None else tuple(racks),
                "per_broker": per_broker,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerWishes:
    port: int | None = None
    rack: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} cannot be a cluster's name; use up to 64 letters, digits, '.', '_' and '-', a letter "
            "or digit first."
        )
    if name in _TAKEN_NAMES:
        raise SpecError(f"A cluster cannot be called {name}: {_TAKEN_NAMES[name]}; choose another name.")


def planned(name: str, existing: ClusterSpec | None, wishes: Wishes) -> ClusterSpec:
    """The cluster as it is with the wishes over it. Ports that nobody chose stay open."""
    check_name(name)
    count = wishes.brokers
    if count is None:
        highest_named = max(wishes.per_broker, default=0)
        count = max(highest_named, DEFAULT_BROKERS) if existing is None else len(existing.brokers)
    if not 1 <= count <= MAX_BROKERS:
        raise SpecError(f"A cluster has 1 to {MAX_BROKERS} brokers here, not {count}.")
    if existing is None:
        brokers = tuple(BrokerSpec(id=number) for number in range(1, count + 1))
        settings = _usual_settings(count)
    else:
        brokers = _at_least(existing, count)
        settings = dict(existing.settings)
    spec = ClusterSpec(
        name=name,
        brokers=brokers,
        settings={**settings, **wishes.settings},
        restart=(existing is not None and existing.restart) if wishes.restart is None else wishes.restart,
        zookeeper_port=0 if existing is None else existing.zookeeper_port,
    )
    for index, broker in enumerate(spec.brokers):
        if wishes.racks:
            broker = replace(broker, rack=wishes.racks[index % len(wishes.racks)])
        if wishes.base_port is not None:
            broker = replace(broker, port=wishes.base_port + index)
        own = wishes.per_broker.get(broker.id)
        if own is not None:
            broker = replace(
                broker,
                port=broker.port if own.port is None else own.port,
                rack=broker.rack if own.rack is None else own.rack,
                settings={**broker.settings, **own.settings},
            )
        spec = spec.with_broker(broker)
    check(spec)
    return spec


def _usual_settings(count: int) -> dict[str, str]:
    """A cluster is started to have replicas: topics get them unless they are told otherwise, and an
    acknowledged record is on two brokers at least where there are three."""
    return {
        "default.replication.factor": str(min(count, _MAX_REPLICAS)),
        "min.insync.replicas": "2" if count >= _MAX_REPLICAS else "1",
    }


def _at_least(existing: ClusterSpec, count: int) -> tuple[BrokerSpec, ...]:
    if count < len(existing.brokers):
        raise SpecError(
            f"Cluster {existing.name} has {len(existing.brokers)} brokers, and taking some away would lose "
            "what is on them; stop one with `kbus broker stop N`, or begin anew with `kbus cluster destroy`."
        )
    highest = max(broker.id for broker in existing.brokers)
    added = range(highest + 1, highest + 1 + count - len(existing.brokers))
    return (*existing.brokers, *(BrokerSpec(id=number) for number in added))


def check(spec: ClusterSpec) -> None:
    """Raises SpecError for what no broker could be started with."""
    _check_settings(spec.settings, "the cluster's settings")
    for broker in spec.brokers:
        _check_settings(broker.settings, f"the settings of broker {broker.id}")
        if not 0 <= broker.port <= 65535:
            raise SpecError(
                f"Broker {broker.id} would have port {broker.port}; ports go from 1 to 65535, so choose a "
                "lower base port."
            )
        if broker.rack is not None and not _RACK.fullmatch(broker.rack):
            raise SpecError(f"{broker.rack!r} cannot be the rack of broker {broker.id}; use a single word.")
        try:
            BrokerConfig(spec.properties(broker, data=Path("/"), zookeeper="127.0.0.1:2181"))
        except ConfigError as error:
            raise SpecError(str(error)) from None
    ports = [broker.port for broker in spec.brokers if broker.port]
    twice = {port for port in ports if ports.count(port) > 1}
    if twice:
        raise SpecError(f"Two brokers would have port {min(twice)}; give each a port of its own.")


def _check_settings(settings: Mapping[str, str], where: str) -> None:
    for name in settings:
        if name in _OWN_SETTINGS:
            raise SpecError(f"{name} cannot be in {where}: {_OWN_SETTINGS[name]}.")
    if "zookeeper.connect" in settings and where != "the cluster's settings":
        raise SpecError("zookeeper.connect is the same for all brokers; put it into the cluster's settings.")
