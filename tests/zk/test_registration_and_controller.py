"""Registering a node and electing a controller, also when connections break and sessions expire."""

import asyncio

import pytest

from kbus.types import BrokerId
from kbus.zk import znodes
from kbus.zk.controller import ControllerMoved, current_controller, run_for_controller
from kbus.zk.ephemeral import register
from kbus.zk.store import (
    BadVersion,
    ConnectionLost,
    Create,
    MultiFailed,
    NodeExists,
    SetData,
)

from .conftest import MemoryWorld, World

PATH = znodes.broker_path(1)


async def test_registering_gives_the_epoch(world: World) -> None:
    store = await world.session()
    first = await register(store, PATH, b"1")
    assert first == (await store.get(PATH))[1]
    assert first.ephemeral_owner == store.session_id
    await world.expire(store)
    await store.open()
    second = await register(store, PATH, b"1")
    assert second.czxid > first.czxid


async def test_registering_again_after_a_lost_answer_keeps_the_epoch(world: World) -> None:
    store = await world.session()
    await store.create(znodes.BROKER_IDS, makepath=True)
    world.lose_next_answer(store)
    with pytest.raises(ConnectionLost):
        await register(store, PATH, b"old")
    await world.reconnect(store)
    await store.wait_connected()
    czxid = (await store.get(PATH))[1].czxid
    assert (await register(store, PATH, b"new")).czxid == czxid
    assert (await store.get(PATH))[0] == b"new"


async def test_another_sessions_registration_is_not_taken_over(world: World) -> None:
    owner, other = await world.session(), await world.session()
    await register(owner, PATH, b"owner")
    with pytest.raises(NodeExists, match=r"/brokers/ids/1 belongs to another session"):
        await register(other, PATH, b"other", wait_ms=50)
    assert (await owner.get(PATH))[0] == b"owner"


async def test_a_registration_that_is_about_to_end_can_be_waited_for(world: World) -> None:
    owner, other = await world.session(), await world.session()
    await register(owner, PATH, b"owner")
    waiting = asyncio.create_task(register(other, PATH, b"other", wait_ms=20_000))
    await owner.set(PATH, b"still here")
    await owner.close()
    assert (await waiting).ephemeral_owner == other.session_id


async def test_what_an_own_former_session_left_behind_is_replaced(memory_world: MemoryWorld) -> None:
    store = await memory_world.session()
    await store.create(znodes.BROKER_IDS, makepath=True)
    lost_id = store.session_id
    store.expire()
    await store.open()
    memory_world.server.apply(lost_id, [Create(PATH, b"left behind", ephemeral=True)])
    stat = await register(store, PATH, b"new")
    assert stat.ephemeral_owner == store.session_id


async def test_one_of_many_becomes_controller(world: World) -> None:
    stores = [await world.session() for _ in range(3)]
    results = await asyncio.gather(
        *(run_for_controller(store, BrokerId(number), 5) for number, store in enumerate(stores))
    )
    winners = [number for number, result in enumerate(results) if result is not None]
    assert len(winners) == 1
    assert await current_controller(stores[0]) == winners[0]
    data, stat = await stores[0].get(znodes.CONTROLLER_EPOCH)
    leadership = results[winners[0]]
    assert leadership is not None
    assert (leadership.epoch, leadership.epoch_version) == (1, stat.version)
    assert znodes.decode_controller_epoch(data) == 1


async def test_an_election_whose_answer_was_lost_is_recognised_as_won(world: World) -> None:
    store, other = await world.session(), await world.session()
    former = await run_for_controller(other, BrokerId(2), 5)
    assert former is not None
    await other.close()
    while await current_controller(store) is not None:
        pass
    # The epoch is read, then the multi is answered: the second answer is the one to lose.
    await store.get(znodes.CONTROLLER_EPOCH)
    original = store.multi

    async def multi_without_an_answer(ops: object) -> object:
        world.lose_next_answer(store)
        return await original(ops)

    store.multi = multi_without_an_answer
    with pytest.raises(ConnectionLost):
        await run_for_controller(store, BrokerId(1), 5)
    del store.multi
    await world.reconnect(store)
    await store.wait_connected()
    leadership = await run_for_controller(store, BrokerId(1), 6)
    assert leadership is not None
    assert leadership.epoch == former.epoch + 1
    await leadership.write([Create("/written")])


async def test_a_former_controllers_writes_have_no_effect(world: World) -> None:
    """Named regression: the zombie controller."""
    old_store, new_store = await world.session(), await world.session()
    old = await run_for_controller(old_store, BrokerId(1), 5)
    assert old is not None
    await old.write([Create("/state", b"of the old")])
    await new_store.delete(znodes.CONTROLLER)
    new = await run_for_controller(new_store, BrokerId(2), 6)
    assert new is not None
    assert new.epoch == old.epoch + 1
    with pytest.raises(ControllerMoved):
        await old.write([SetData("/state", b"of a zombie"), Create("/made by a zombie")])
    assert (await new_store.get("/state"))[0] == b"of the old"
    assert await new_store.exists("/made by a zombie") is None
    await new.write([SetData("/state", b"of the new")])


async def test_a_failed_controller_write_names_the_operation(world: World) -> None:
    store = await world.session()
    leadership = await run_for_controller(store, BrokerId(1), 5)
    assert leadership is not None
    await store.create("/state")
    with pytest.raises(MultiFailed) as raised:
        await leadership.write([Create("/fine"), SetData("/state", b"", 9)])
    assert raised.value.index == 1
    assert isinstance(raised.value.error, BadVersion)
    assert await store.exists("/fine") is None
