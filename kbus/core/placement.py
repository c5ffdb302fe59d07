"""Where replicas go."""

from collections.abc import Sequence

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import BrokerId


def place_replicas(
    brokers: Sequence[BrokerId],
    *,
    partitions: int,
    replication_factor: int,
    first_partition: int = 0,
    start: int = 0,
) -> dict[int, tuple[BrokerId, ...]]:
    """Assignments for partitions `first_partition`, … such that leaders and replicas are spread evenly.

    Leaders go round robin from broker `start`; the distance from leader to followers grows by one with
    each round, so that the partitions of one leader have their followers on different brokers."""
    if replication_factor < 1 or replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {replication_factor} needs as many brokers, and "
            f"{len(brokers)} {'is' if len(brokers) == 1 else 'are'} alive",
        )
    ordered = sorted(brokers)
    count = len(ordered)
    assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        leader = (start + partition) % count
        shift = partition // count
        followers = [
            ordered[(leader + 1 + (shift + i) % (count - 1)) % count] for i in range(replication_factor - 1)
        ]
        assignment[partition] = (ordered[leader], *followers)
    return assignment


def check_manual_assignment(
    assignment: dict[int, tuple[BrokerId, ...]], live: Sequence[BrokerId], *, first_partition: int = 0
) -> None:
    """A client may place replicas itself if the partitions are consecutive and the brokers exist."""

    def refuse(reason: str) -> None:
        raise KafkaError(ErrorCode.invalid_replica_assignment, reason)

    if sorted(assignment) != list(range(first_partition, first_partition + len(assignment))):
        refuse(f"partitions have to be numbered from {first_partition} on without a gap")
    sizes = {len(replicas) for replicas in assignment.values()}
    if len(sizes) > 1:
        refuse("every partition needs the same number of replicas")
    for partition, replicas in assignment.items():
        if not replicas:
            refuse(f"partition {partition} has no replicas")
        if len(set(replicas)) != len(replicas):
            refuse(f"partition {partition} names a broker twice")
        unknown = sorted(set(replicas) - set(live))
        if unknown:
            refuse(f"partition {partition} names brokers that are not alive: {unknown}")
