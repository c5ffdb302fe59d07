"""The controller's role in ZooKeeper: one node at a time has it, and what a former one writes has no effect.

`/controller` says who it is; `/controller_epoch` counts who it has been. The version of the latter is the
fence: every write of a controller carries a check of it, in one atomic multi.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kbus.types import BrokerId
from kbus.zk import znodes
from kbus.zk.store import (
    Check,
    CoordinationStore,
    Create,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    OpResult,
    SetData,
    StoreError,
)


class ControllerMoved(StoreError):  # noqa: N818 - says what happened
    """Another controller has been elected since: resign. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Controllership:
    """The right to write as the controller of one epoch, for as long as nobody is elected after it."""

    store: CoordinationStore
    epoch: int
    epoch_version: int
    """The version of /controller_epoch in which `epoch` was written."""

    async def write(self, ops: Sequence[Op]) -> list[OpResult]:
        """All of `ops` or none, and only while this is the latest controller.

        Raises ControllerMoved if it is not, MultiFailed (with the index in `ops`) if an operation fails.
        """
        fence = Check(znodes.CONTROLLER_EPOCH, self.epoch_version)
        try:
            _, *results = await self.store.multi([fence, *ops])
        except MultiFailed as failed:
            if failed.index == 0:
                raise ControllerMoved(f"controller epoch {self.epoch} is over") from None
            raise MultiFailed(failed.index - 1, failed.op, failed.error) from None
        return results


async def current_controller(store: CoordinationStore) -> BrokerId | None:
    try:
        data, _ = await store.get(znodes.CONTROLLER)
    except NoNode:
        return None
    return znodes.ControllerRegistration.decode(data).broker_id


async def run_for_controller(
    store: CoordinationStore, broker_id: BrokerId, now_ms: int
) -> Controllership | None:
    """Becomes the controller of the next epoch, or finds that somebody else is: None.

    The election is one multi: it creates the ephemeral /controller and counts up /controller_epoch from the
    version that was read. If the connection breaks, ConnectionLost is raised; calling it again in the same
    session tells whether that election was won.
    """
    epoch, version = await _read_epoch(store)
    registration = znodes.ControllerRegistration(broker_id=broker_id, timestamp_ms=now_ms).encode()
    try:
        _, stat = await store.multi(
            [
                Create(znodes.CONTROLLER, registration, ephemeral=True),
                SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version),
            ]
        )
    except MultiFailed:
        return await _won_before(store, broker_id)
    assert not isinstance(stat, str | None)
    return Controllership(store, epoch + 1, stat.version)


async def _read_epoch(store: CoordinationStore) -> tuple[int, int]:
    while True:
        try:
            data, stat = await store.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            with suppress(NodeExists):
                await store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            continue
        return znodes.decode_controller_epoch(data), stat.version


async def _won_before(store: CoordinationStore, broker_id: BrokerId) -> Controllership | None:
    """The node is there, or the epoch has moved on: by an election of ours whose answer was lost?

    /controller tells, if it is of this very session. It was written together with the epoch, and no later
    election can have passed while it is there; reading the epoch before and after shows that it was.
    """
    epoch, version = await _read_epoch(store)
    try:
        data, stat = await store.get(znodes.CONTROLLER)
    except NoNode:
        return None
    mine = znodes.ControllerRegistration.decode(data).broker_id == broker_id
    if not mine or stat.ephemeral_owner != store.session_id:
        return None
    if await _read_epoch(store) != (epoch, version):
        return None
    return Controllership(store, epoch, version)
