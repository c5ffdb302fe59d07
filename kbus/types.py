"""The vocabulary shared by every layer: names for the numbers that must not be mixed up."""

from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
"""Position of a record in a partition, from 0. A log covers [log start offset, log end offset)."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts the leaderships of a partition. Batches carry the epoch of the leader that appended them."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)

NO_LEADER = BrokerId(-1)
NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
