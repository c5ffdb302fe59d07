"""The coordination store: a tree of small versioned nodes with sessions, ephemerals and watches.

`session.ZooKeeperSession` implements it on ZooKeeper, `memory.MemorySession` in memory; both pass one test
suite. Everything happens on the event loop: results, watches and session events arrive there in the order in
which the server sent them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
"""As the version of a write: whatever the node's version is."""


class SessionState(Enum):
    """
    CLOSED -open()-> CONNECTED <-> SUSPENDED -> LOST -open()-> CONNECTED …

    A session is one continuous claim to its ephemeral nodes. It outlives connections; it never outlives LOST.
    """

    CLOSED = "closed"
    """No session: not opened yet, or closed on purpose. Calls raise ConnectionLost."""
    CONNECTED = "connected"
    """Calls are answered. After SUSPENDED this is the same session: ephemerals are still there, but watches
    are gone (each was told so) and what changed meanwhile must be read again."""
    SUSPENDED = "suspended"
    """The connection is down; the session may be alive or not, and others may already act on its death. Stop
    acting on anything that rests on an ephemeral node, the controller's role first. Calls raise
    ConnectionLost. Ends in CONNECTED or LOST."""
    LOST = "lost"
    """The server has ended the session: its ephemerals are deleted. Calls raise SessionExpired. Nothing opens
    a new session but the owner, with `open()`, once it has dealt with the loss."""


class WatchType(Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"
    DISCONNECTED = "disconnected"
    """The watch is gone with the connection; read again, and watch again, when there is one."""


class WatchEvent(NamedTuple):
    type: WatchType
    path: str


class Stat(NamedTuple):
    """Of a node. zxids count the changes of the whole store, versions those of one node."""

    czxid: int
    """The change that created the node: the broker epoch of /brokers/ids/N."""
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    ephemeral_owner: int
    """The session whose end deletes the node; 0 for none."""
    num_children: int


@dataclass(frozen=True, slots=True)
class Check:
    """The node exists and has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


Op = Check | Create | SetData | Delete
OpResult = str | Stat | None
"""Create: the path; SetData: the new Stat; Check and Delete: None."""

Watch = Callable[[WatchEvent], None]
Listener = Callable[[SessionState], None]


class StoreError(Exception):
    """The store refused a call or did not answer it."""


class NoNode(StoreError):  # noqa: N818 - ZooKeeper's name
    pass


class NodeExists(StoreError):  # noqa: N818
    pass


class BadVersion(StoreError):  # noqa: N818
    pass


class NotEmpty(StoreError):  # noqa: N818
    pass


class ConnectionLost(StoreError):  # noqa: N818
    """No answer: the session is SUSPENDED or CLOSED. A write may have happened or not: read to know."""


class SessionExpired(StoreError):  # noqa: N818
    """The session is over. A write that was under way may have happened or not."""


class MultiFailed(StoreError):  # noqa: N818
    """None of the operations happened, because the one at `index` failed with `error`."""

    def __init__(self, index: int, op: Op, error: StoreError) -> None:
        super().__init__(f"{type(op).__name__} {op.path} failed: {type(error).__name__}")
        self.index = index
        self.op = op
        self.error = error


class CoordinationStore(Protocol):
    """Paths begin with "/" and are relative to the store's chroot."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """Of the open session, as in `Stat.ephemeral_owner`; without one, raises as a call would."""
        ...

    @property
    def past_session_ids(self) -> frozenset[int]:
        """Of sessions that this store had and lost: nodes they own are nobody's any more."""
        ...

    def listen(self, listener: Listener) -> None:
        """`listener` runs on the loop at each change to CONNECTED, SUSPENDED or LOST. It must not block."""
        ...

    async def open(self) -> None:
        """A new session. Raises ConnectionLost if no server answers in time. Not while one is open."""
        ...

    async def close(self) -> None:
        """Ends the session, and so its ephemerals. No event is told."""
        ...

    async def wait_connected(self) -> None:
        """Returns at CONNECTED; raises SessionExpired at LOST, ConnectionLost at CLOSED."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """`watch` is told once of the node's next change or deletion, or of the connection's end."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """As `get`, and for a node that is not there the watch is for its creation."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted. `watch` is told once of the next child created or deleted, or of the node's end."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> tuple[str, Stat]:
        """`sequence` appends ten digits that count up under the parent; `makepath` creates missing parents
        first, each on its own."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing; raises MultiFailed."""
        ...


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


async def ensure_path(store: CoordinationStore, path: str) -> None:
    """Creates the node and its parents where they are missing, without data."""
    if path == "/" or await store.exists(path) is not None:
        return
    await ensure_path(store, parent_of(path))
    with suppress(NodeExists):  # somebody else was faster, which is as good
        await store.create(path)


async def delete_recursively(store: CoordinationStore, path: str) -> None:
    """Deletes the node and all below it, leaves first; what is already gone is fine."""
    with suppress(NoNode):
        for child in await store.children(path):
            await delete_recursively(store, f"{path.rstrip('/')}/{child}")
        await store.delete(path)
