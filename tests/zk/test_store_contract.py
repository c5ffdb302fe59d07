"""What the rest of kbus relies on, true of the store in memory and of a real ZooKeeper alike."""

import asyncio

import pytest

from kbus.zk.store import (
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreError,
    WatchEvent,
    WatchType,
    delete_recursively,
    ensure_path,
)

from .conftest import World, until


class Watcher(list[WatchEvent]):
    def __call__(self, event: WatchEvent) -> None:
        self.append(event)


async def test_a_node_is_read_back_with_its_versions(world: World) -> None:
    store = await world.session()
    path, created = await store.create("/node", b"one")
    assert path == "/node"
    assert await store.get("/node") == (b"one", created)
    assert (created.version, created.ephemeral_owner) == (0, 0)
    assert created.czxid == created.mzxid > 0
    changed = await store.set("/node", b"two")
    assert (changed.version, changed.czxid) == (1, created.czxid)
    assert changed.mzxid > created.mzxid
    assert await store.get("/node") == (b"two", changed)
    assert await store.exists("/node") == changed


async def test_a_node_made_again_has_a_larger_czxid(world: World) -> None:
    store = await world.session()
    _, first = await store.create("/node")
    await store.delete("/node")
    _, second = await store.create("/node")
    assert second.czxid > first.czxid
    assert second.version == 0


async def test_creating_needs_a_parent_and_a_free_name(world: World) -> None:
    store = await world.session()
    with pytest.raises(NoNode):
        await store.create("/a/b")
    await store.create("/a/b/c", b"deep", makepath=True)
    assert (await store.get("/a/b/c"))[0] == b"deep"
    assert (await store.get("/a/b"))[0] == b""
    with pytest.raises(NodeExists):
        await store.create("/a/b/c", makepath=True)


async def test_sequence_numbers_count_up_and_are_not_used_again(world: World) -> None:
    store = await world.session()
    await store.create("/queue")
    first, _ = await store.create("/queue/item_", sequence=True)
    second, _ = await store.create("/queue/item_", sequence=True)
    assert (first, second) == ("/queue/item_0000000000", "/queue/item_0000000001")
    await store.delete(second)
    third, _ = await store.create("/queue/item_", sequence=True)
    assert third == "/queue/item_0000000002"
    assert await store.children("/queue") == ["item_0000000000", "item_0000000002"]


async def test_writes_with_another_version_change_nothing(world: World) -> None:
    store = await world.session()
    await store.create("/node", b"one")
    stat = await store.set("/node", b"two", 0)
    for version in (0, 2):
        with pytest.raises(BadVersion):
            await store.set("/node", b"three", version)
        with pytest.raises(BadVersion):
            await store.delete("/node", version)
    assert await store.get("/node") == (b"two", stat)
    await store.delete("/node", 1)
    assert await store.exists("/node") is None


async def test_what_is_not_there_is_reported(world: World) -> None:
    store = await world.session()
    for call in (
        store.get("/none"),
        store.set("/none", b""),
        store.delete("/none"),
        store.children("/none"),
    ):
        with pytest.raises(NoNode):
            await call
    assert await store.exists("/none") is None


async def test_a_node_with_children_is_not_deleted(world: World) -> None:
    store = await world.session()
    await store.create("/a/b", makepath=True)
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    await delete_recursively(store, "/a")
    assert await store.exists("/a") is None
    await delete_recursively(store, "/a")


async def test_ensure_path_is_content_with_what_is_there(world: World) -> None:
    store = await world.session()
    await ensure_path(store, "/a/b/c")
    await store.set("/a/b", b"kept")
    await ensure_path(store, "/a/b/c")
    assert (await store.get("/a/b"))[0] == b"kept"


async def test_a_multi_does_everything_as_one_change(world: World) -> None:
    store = await world.session()
    _, fence = await store.create("/fence")
    await store.create("/old")
    nothing, made, changed, gone = await store.multi(
        [
            Check("/fence", fence.version),
            Create("/new-", b"n", sequence=True),
            SetData("/fence", b"f", 0),
            Delete("/old"),
        ]
    )
    assert (nothing, gone) == (None, None)
    assert isinstance(made, str)
    assert isinstance(changed, Stat)
    data, stat = await store.get(made)
    assert data == b"n"
    assert changed.version == 1
    assert stat.czxid == changed.mzxid == (await store.get("/fence"))[1].mzxid
    assert await store.exists("/old") is None


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Check("/node", 5), BadVersion),
        (Check("/none", 0), NoNode),
        (Create("/node"), NodeExists),
        (Create("/none/below"), NoNode),
        (SetData("/node", b"", 5), BadVersion),
        (Delete("/parent"), NotEmpty),
    ],
    ids=repr,
)
async def test_a_multi_that_fails_does_nothing_and_says_where(
    world: World, failing: Check, error: type[StoreError]
) -> None:
    store = await world.session()
    await store.create("/node", b"one")
    await store.create("/parent/child", makepath=True)
    watcher = Watcher()
    before = await store.get("/node", watcher)
    others = [Create("/made"), Delete("/made"), Create("/made-again"), SetData("/parent", b"two", 0)]
    with pytest.raises(MultiFailed) as raised:
        await store.multi([*others, failing, Create("/never")])
    assert raised.value.index == 4
    assert raised.value.op == failing
    assert type(raised.value.error) is error
    assert await store.get("/node") == before
    assert await store.children("/") == ["node", "parent"]
    assert watcher == []


async def test_a_watch_tells_of_the_next_change_once(world: World) -> None:
    store = await world.session()
    await store.create("/node", b"0")
    watcher = Watcher()
    await store.get("/node", watcher)
    await store.set("/node", b"1")
    await store.set("/node", b"2")
    await store.exists("/node")
    assert watcher == [WatchEvent(WatchType.CHANGED, "/node")]
    await store.get("/node", watcher)
    await store.delete("/node")
    await store.exists("/node", watcher)
    await store.create("/node")
    await store.exists("/node")
    assert [event.type for event in watcher] == [WatchType.CHANGED, WatchType.DELETED, WatchType.CREATED]


async def test_a_watch_on_children_tells_of_births_and_deaths_not_of_data(world: World) -> None:
    store = await world.session()
    await store.create("/parent/a", makepath=True)
    watcher = Watcher()
    assert await store.children("/parent", watcher) == ["a"]
    await store.set("/parent/a", b"1")
    await store.set("/parent", b"1")
    assert watcher == []
    await store.create("/parent/b")
    await store.children("/parent", watcher)
    await store.delete("/parent/b")
    await store.children("/parent", watcher)
    await store.multi([Delete("/parent/a"), Delete("/parent")])
    await store.exists("/")
    # The multi deletes a child and the parent: the one watch is told of the first of them.
    assert [event.type for event in watcher] == [WatchType.CHILDREN] * 3
    assert {event.path for event in watcher} == {"/parent"}


async def test_a_read_that_fails_leaves_no_watch(world: World) -> None:
    store = await world.session()
    watcher = Watcher()
    for read in (store.get, store.children):
        with pytest.raises(NoNode):
            await read("/node", watcher)
    await store.create("/node")
    await store.create("/node/child")
    await store.exists("/node")
    assert watcher == []


async def test_a_watch_is_told_before_the_new_data_can_be_read(world: World) -> None:
    writer, reader = await world.session(), await world.session()
    await writer.create("/node", b"0")
    for value in (b"%d" % number for number in range(1, 30)):
        watcher = Watcher()
        await reader.get("/node", watcher)
        write = asyncio.create_task(writer.set("/node", value))
        while (await reader.get("/node"))[0] != value:
            pass
        assert len(watcher) == 1
        await write


async def test_answers_and_events_come_in_the_order_of_the_server(world: World) -> None:
    store = await world.session()
    await store.create("/node", b"0")
    order: list[str] = []
    await store.get("/node", lambda event: order.append("watch"))

    async def note(name: str, call: object) -> None:
        await call  # type: ignore[misc]
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        for index, call in enumerate(
            [store.get("/node"), store.set("/node", b"1"), store.create("/other"), store.get("/node")]
        ):
            tasks.create_task(note(str(index), call))
    assert order == ["0", "watch", "1", "2", "3"]


async def test_ephemerals_belong_to_their_session_and_go_with_it(world: World) -> None:
    owner, other = await world.session(), await world.session()
    assert owner.session_id != other.session_id
    _, stat = await owner.create("/here", b"me", ephemeral=True)
    assert stat.ephemeral_owner == owner.session_id
    with pytest.raises(StoreError):
        await owner.create("/here/below")
    watcher = Watcher()
    assert await other.exists("/here", watcher) == stat
    await owner.close()
    await until(lambda: bool(watcher))
    assert watcher == [WatchEvent(WatchType.DELETED, "/here")]
    assert await other.exists("/here") is None
    assert owner.state is SessionState.CLOSED
    with pytest.raises(ConnectionLost):
        await owner.exists("/")


async def test_a_session_survives_a_broken_connection(world: World) -> None:
    store = await world.session()
    states: list[SessionState] = []
    store.listen(states.append)
    session_id = store.session_id
    _, stat = await store.create("/here", ephemeral=True)
    watcher = Watcher()
    await store.get("/here", watcher)
    await store.children("/", watcher)
    await world.disconnect(store)
    with pytest.raises(ConnectionLost):
        await store.get("/here")
    assert store.session_id == session_id
    await world.reconnect(store)
    await store.wait_connected()
    assert await store.exists("/here") == stat
    assert store.session_id == session_id
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert sorted(watcher) == [(WatchType.DISCONNECTED, "/"), (WatchType.DISCONNECTED, "/here")]
    await store.set("/here", b"1")
    await store.exists("/here")
    assert len(watcher) == 2


async def test_an_expired_session_is_lost_with_its_ephemerals(world: World) -> None:
    store, other = await world.session(), await world.session()
    states: list[SessionState] = []
    store.listen(states.append)
    lost_id = store.session_id
    await store.create("/here", ephemeral=True)
    await store.create("/stays")
    watcher = Watcher()
    await store.get("/stays", watcher)
    await world.expire(store)
    with pytest.raises(SessionExpired):
        await store.get("/stays")
    with pytest.raises(SessionExpired):
        await store.wait_connected()
    with pytest.raises(SessionExpired):
        _ = store.session_id
    assert await other.exists("/here") is None
    assert await other.exists("/stays") is not None
    assert store.past_session_ids == {lost_id}
    await store.open()
    assert store.session_id != lost_id
    await store.create("/here", ephemeral=True)
    assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert [event.type for event in watcher] == [WatchType.DISCONNECTED]


async def test_a_write_whose_answer_is_lost_may_have_happened(world: World) -> None:
    store = await world.session()
    world.lose_next_answer(store)
    with pytest.raises(ConnectionLost):
        await store.create("/node", b"written")
    assert store.state is SessionState.SUSPENDED
    await world.reconnect(store)
    await store.wait_connected()
    assert (await store.get("/node"))[0] == b"written"


async def test_a_session_is_opened_once(world: World) -> None:
    store = await world.session()
    with pytest.raises(RuntimeError):
        await store.open()
    await store.close()
    await store.close()
    await store.open()
    assert store.past_session_ids == frozenset()
    assert await store.children("/") == []
