"""Ways to spread records over partitions that librdkafka does not have."""

from collections.abc import Sequence
from typing import Protocol

import mmh3


class Partitioner(Protocol):
    def choose(self, key: bytes | None, size_bytes: int) -> int:
        """The partition for a record with this key and about this size."""


def murmur3_partition(key: bytes, partition_count: int) -> int:
    """The same for a key on every machine: the 32-bit murmur3 hash without its sign bit, modulo the count."""
    return (mmh3.hash(key) & 0x7FFFFFFF) % partition_count


class RoundRobin:
    """One partition after the other, whatever the key."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._partitions = list(partitions)
        self._next = 0

    def choose(self, key: bytes | None, size_bytes: int) -> int:
        chosen = self._partitions[self._next]
        self._next = (self._next + 1) % len(self._partitions)
        return chosen


class Murmur3:
    """Equal keys go to the same partition; records without a key go round."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._count = len(partitions)
        self._keyless = RoundRobin(partitions)

    def choose(self, key: bytes | None, size_bytes: int) -> int:
        if key is None:
            return self._keyless.choose(key, size_bytes)
        return murmur3_partition(key, self._count)


class Sticky:
    """A batch's worth of bytes to one partition, then to the next, whatever the key."""

    def __init__(self, partitions: Sequence[int], batch_bytes: int) -> None:
        self._order = RoundRobin(partitions)
        self._batch_bytes = batch_bytes
        self._current = self._order.choose(None, 0)
        self._room_bytes = batch_bytes

    def choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._room_bytes <= 0:
            self._current = self._order.choose(None, 0)
            self._room_bytes = self._batch_bytes
        self._room_bytes -= size_bytes
        return self._current
