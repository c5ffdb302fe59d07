"""Addresses in settings: listeners (`NAME://host:port`) and ZooKeeper ensembles (`host:port,…/chroot`)."""

import re
from dataclasses import dataclass, replace

from kbus.config.setting import ConfigType, Kind

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/]*):(?P<port>\d{1,5})"
)
_ZOOKEEPER_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/,\s]+)(:(?P<port>\d{1,5}))?")
_ZOOKEEPER_PORT = 2181

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener. An empty host means every interface, port 0 any free one."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{_bracketed(self.host)}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("", "0.0.0.0", "::")

    def at(self, *, host: str | None = None, port: int | None = None) -> "Endpoint":
        return replace(
            self, host=self.host if host is None else host, port=self.port if port is None else port
        )


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """Servers of one ensemble and the folder in it that is this cluster's root ("" for the whole tree)."""

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""

    def __str__(self) -> str:
        return self.hosts + self.chroot

    @property
    def hosts(self) -> str:
        return ",".join(f"{_bracketed(host)}:{port}" for host, port in self.servers)

    @classmethod
    def parse(cls, text: str) -> "ZooKeeperAddress":
        """Raises ValueError, with the reason where there is more to say than the format."""
        hosts, slash, path = text.strip().partition("/")
        chroot = (slash + path).rstrip("/")
        if "//" in chroot or any(part in (".", "..") for part in chroot.split("/")):
            raise ValueError(f"has the chroot {chroot!r}, which is not a path that ZooKeeper takes")
        servers = []
        for item in hosts.split(","):
            match = _ZOOKEEPER_HOST.fullmatch(item.strip())
            if match is None:
                raise ValueError
            servers.append((match["host"].strip("[]"), _port(match["port"] or _ZOOKEEPER_PORT, least=1)))
        return cls(tuple(servers), chroot)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    endpoints = []
    for item in text.split(","):
        match = _LISTENER.fullmatch(item.strip())
        if match is None:
            raise ValueError
        port = _port(match["port"], least=0)
        endpoints.append(Endpoint(match["name"].upper(), match["host"].strip("[]"), port))
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise ValueError("names a listener twice; give each listener a name of its own")
    return tuple(endpoints)


def parse_protocol_map(text: str) -> dict[str, str]:
    protocols = {}
    for item in text.split(","):
        listener, colon, protocol = (part.strip() for part in item.partition(":"))
        if not listener or not colon or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ValueError
        protocols[listener.upper()] = protocol.upper()
    return protocols


def _port(text: str | int, *, least: int) -> int:
    port = int(text)
    if not least <= port <= 65535:
        raise ValueError(f"has the port {port}; ports go from {least} to 65535")
    return port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


ENDPOINTS: Kind[tuple[Endpoint, ...]] = Kind(
    type=ConfigType.STRING,
    expects="a list of NAME://host:port",
    parse=parse_endpoints,
    render=lambda endpoints: ",".join(map(str, endpoints)),
)
PROTOCOL_MAP: Kind[dict[str, str]] = Kind(
    type=ConfigType.STRING,
    expects=f"a list of LISTENER:PROTOCOL, each protocol one of {', '.join(SECURITY_PROTOCOLS)}",
    parse=parse_protocol_map,
    render=lambda protocols: ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
)
ZOOKEEPER_ADDRESS: Kind[ZooKeeperAddress] = Kind(
    type=ConfigType.STRING,
    expects="host:port,host:port/chroot",
    parse=ZooKeeperAddress.parse,
    render=str,
)
