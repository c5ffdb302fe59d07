"""What the tests ask of a client, whichever it is, and the records they pass through it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

TIMEOUT_S = 30.0
LONG_WAIT_MS = 20_000
"""What a consumer tells the node to wait for records, in tests of long polls."""

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """`partition` None leaves the choice to the client's default partitioner (Kafka's murmur2)."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = 0


class Stored(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    is_log_append_time: bool = False


class Place(NamedTuple):
    """Where the node said that it put a record."""

    partition: int
    offset: int


class RefusedError(Exception):
    """The node refused a record, with one of the protocol's error codes."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error code {code}")
        self.code = code


class Client(Protocol):
    name: str
    codecs: tuple[str, ...]

    def takes(self, record: Sent) -> bool:
        """Some refuse to send what the protocol allows: null as a header's value, neither key nor value."""
        ...

    def send(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = False,
        batch_bytes: int = 1_000_000,
        max_request_bytes: int = 1_048_576,
    ) -> list[Place]:
        """Sends with acks=all; the places come in the order of the records."""
        ...

    def read(self, bootstrap: str, topic: str, *, fetch_bytes: int = 1_048_576) -> list[Stored]:
        """All that the topic holds, by partition, without a group."""
        ...

    def bounds(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        """(first offset, end offset)."""
        ...

    def offsets_at(self, bootstrap: str, topic: str, timestamps: dict[int, int]) -> dict[int, int | None]:
        """For each partition the first offset at or after its timestamp; None if there is none."""
        ...

    def read_from(self, bootstrap: str, topic: str, partition: int, offset: int) -> Stored:
        """The record at which a consumer arrives that seeks there."""
        ...

    def wait_for_record(self, bootstrap: str, topic: str, send: Callable[[], object]) -> Stored:
        """Waits at the end of partition 0, its fetch held by the node for LONG_WAIT_MS, and calls `send`
        once a poll has come back empty. Returns the record that arrives."""
        ...


def in_order(records: Sequence[Stored]) -> list[Stored]:
    """Partition after partition, each as it was read. The order within a partition is the client's."""
    return sorted(records, key=lambda record: record.partition)


def expected(records: Sequence[Sent], places: Sequence[Place]) -> list[Stored]:
    """What a topic that was empty before has to hold now: the partitions' records in the order they were
    sent, from offset 0 on without a gap."""
    stored = []
    for record, place in zip(records, places, strict=True):
        assert record.timestamp is not None
        stored.append(Stored(*place, record.timestamp, record.key, record.value, record.headers))
    stored = in_order(stored)
    ends: dict[int, int] = {}
    for item in stored:
        assert item.offset == ends.get(item.partition, 0), "the acknowledged offsets have no gaps"
        ends[item.partition] = item.offset + 1
    return stored
