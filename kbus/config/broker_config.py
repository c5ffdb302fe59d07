"""The configuration of one broker: its file and command line, and what was changed while it ran."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from kbus.config import broker, kafka_only
from kbus.config.addresses import Endpoint
from kbus.config.entries import ConfigEntry, ConfigSource, ConfigSynonym, entry
from kbus.config.properties import load_properties
from kbus.config.setting import BrokerSetting, ConfigError, UpdateMode, did_you_mean

T = TypeVar("T")

_EMPTY: Mapping[str, str] = {}


class BrokerConfig:
    """Immutable and valid. `config[SETTING]` is a typed value.

    Values come from four layers: the broker's own znode in /config/brokers, that of all brokers, the file
    with the command line over it, the defaults of the table. An earlier layer wins.
    """

    __slots__ = ("_layers", "_values", "warnings")

    def __init__(
        self,
        properties: Mapping[str, str] = _EMPTY,
        *,
        dynamic: Mapping[str, str] = _EMPTY,
        dynamic_default: Mapping[str, str] = _EMPTY,
    ) -> None:
        used, self.warnings = _known(properties)
        _check_dynamic(dynamic, per_broker=True)
        _check_dynamic(dynamic_default, per_broker=False)
        self._layers: tuple[tuple[ConfigSource, Mapping[str, str]], ...] = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, dict(dynamic)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dict(dynamic_default)),
            (ConfigSource.STATIC_BROKER_CONFIG, used),
        )
        self._values: dict[str, Any] = {name: setting.default for name, setting in broker.SETTINGS.items()}
        for _, layer in reversed(self._layers):
            self._values.update((name, broker.SETTINGS[name].parse(text)) for name, text in layer.items())
        self._check_together()

    @classmethod
    def load(cls, path: Path | None = None, overrides: Mapping[str, str] = _EMPTY) -> "BrokerConfig":
        """From a Java .properties file, with `overrides` (`--set name=value`) over it."""
        return cls({**(load_properties(path) if path else {}), **overrides})

    def with_dynamic(
        self, *, broker: Mapping[str, str] = _EMPTY, default: Mapping[str, str] = _EMPTY
    ) -> "BrokerConfig":
        """The same file with what /config/brokers/ID and /config/brokers/<default> hold now."""
        changed = BrokerConfig(dict(self._layers[-1][1]), dynamic=broker, dynamic_default=default)
        changed.warnings = self.warnings
        return changed

    def __getitem__(self, setting: BrokerSetting[T]) -> T:
        return cast(T, self._values[setting.name])

    def synonyms(self, setting: BrokerSetting[Any]) -> tuple[ConfigSynonym, ...]:
        """Every layer that gives the setting a value, the one that counts first."""
        found = [
            ConfigSynonym(
                name=setting.name,
                value=None if setting.is_sensitive else setting.render(setting.parse(layer[setting.name])),
                source=source,
            )
            for source, layer in self._layers
            if setting.name in layer
        ]
        if setting.default is not None:
            default = setting.render(setting.default)
            found.append(ConfigSynonym(name=setting.name, value=default, source=ConfigSource.DEFAULT_CONFIG))
        return tuple(found)

    def describe(self) -> tuple[ConfigEntry, ...]:
        return tuple(
            entry(
                setting,
                self[setting],
                self.synonyms(setting),
                read_only=setting.update_mode is UpdateMode.READ_ONLY,
            )
            for setting in broker.SETTINGS.values()
        )

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        """Empty where neither log.dirs nor log.dir is set: the node chooses."""
        single = self[broker.LOG_DIR]
        directories = self[broker.LOG_DIRS] or ((single,) if single else ())
        return tuple(Path(directory) for directory in directories)

    @property
    def zookeeper_connection_timeout_ms(self) -> int:
        timeout_ms = self[broker.ZOOKEEPER_CONNECTION_TIMEOUT_MS]
        return self[broker.ZOOKEEPER_SESSION_TIMEOUT_MS] if timeout_ms is None else timeout_ms

    @property
    def inter_broker_listener(self) -> str:
        names = [endpoint.listener for endpoint in self[broker.LISTENERS]]
        chosen = self[broker.INTER_BROKER_LISTENER_NAME]
        if chosen is not None:
            return chosen.upper()
        return "PLAINTEXT" if "PLAINTEXT" in names else names[0]

    def advertised_endpoints(self, bound_ports: Mapping[str, int], hostname: str) -> tuple[Endpoint, ...]:
        """What clients are told: the chosen addresses, else those listened on.

        `bound_ports` (by listener) fills in a port 0, `hostname` an address that means every interface.
        """
        return tuple(
            endpoint.at(
                host=hostname if endpoint.is_wildcard else None,
                port=bound_ports[endpoint.listener] if endpoint.port == 0 else None,
            )
            for endpoint in self[broker.ADVERTISED_LISTENERS] or self[broker.LISTENERS]
        )

    def _check_together(self) -> None:
        """Rules about more than one setting."""
        self._check_listeners()
        wait_ms = self[broker.REPLICA_FETCH_WAIT_MAX_MS]
        for limit in (broker.REPLICA_SOCKET_TIMEOUT_MS, broker.REPLICA_LAG_TIME_MAX_MS):
            if wait_ms > self[limit]:
                raise ConfigError(
                    f"replica.fetch.wait.max.ms ({wait_ms}) must not exceed {limit.name} ({self[limit]})."
                )

    def _check_listeners(self) -> None:
        listeners = self[broker.LISTENERS]
        protocols = self[broker.LISTENER_SECURITY_PROTOCOL_MAP]
        names = {endpoint.listener for endpoint in listeners}
        addresses = [(endpoint.host, endpoint.port) for endpoint in listeners if endpoint.port]
        if len(set(addresses)) < len(addresses):
            raise ConfigError("listeners uses an address twice; give each listener a port of its own.")
        for name in sorted(names):
            protocol = protocols.get(name)
            if protocol is None:
                raise ConfigError(
                    f"listeners has {name}, which has no security protocol; "
                    f"add {name}:PLAINTEXT to listener.security.protocol.map."
                )
            if protocol != "PLAINTEXT":
                raise ConfigError(
                    f"The listener {name} asks for {protocol}, but kbus speaks PLAINTEXT only; "
                    "use PLAINTEXT://host:port, or map it to PLAINTEXT in listener.security.protocol.map."
                )
        for endpoint in self[broker.ADVERTISED_LISTENERS] or ():
            if endpoint.listener not in names:
                raise ConfigError(
                    f"advertised.listeners has {endpoint.listener}, which is not in listeners; add it there."
                )
            if endpoint.host in ("0.0.0.0", "::"):
                raise ConfigError(
                    f"advertised.listeners has {endpoint}, to which no client can connect; "
                    "give the name or address by which clients reach this machine."
                )
        if self.inter_broker_listener not in names:
            raise ConfigError(
                f"inter.broker.listener.name is {self.inter_broker_listener}, which is not in listeners."
            )


def _known(properties: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The properties that are in the table, and a warning for each of Kafka's that is not."""
    used = {}
    warnings = []
    for name, value in properties.items():
        reason = kafka_only.refusal(name, value.strip())
        if reason is not None:
            raise ConfigError(reason)
        if name in broker.SETTINGS:
            used[name] = value
        elif kafka_only.is_kafka_only(name):
            warnings.append(f"{name} is known to Kafka, not used by kbus.")
        elif name not in ("process.roles", "authorizer.class.name"):
            raise ConfigError(f"Unknown broker setting {name}{did_you_mean(name, broker.SETTINGS)}")
    return used, tuple(warnings)


def _check_dynamic(properties: Mapping[str, str], *, per_broker: bool) -> None:
    for name in properties:
        setting = broker.SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown broker setting {name}{did_you_mean(name, broker.SETTINGS)}")
        if setting.update_mode is UpdateMode.READ_ONLY:
            raise ConfigError(
                f"{name} is read at start; change it in the broker's file and restart the broker."
            )
        if setting.update_mode is UpdateMode.PER_BROKER and not per_broker:
            raise ConfigError(f"{name} belongs to one broker; change it there, not for all.")
