import asyncio
import time

from kbus.chaos.probe import KEY, Write, WriteProbe
from kbus.types import TopicPartition
from tests.node.wire import Wire, create_topic
from tests.nodes import NodeProcess

MS = 1_000_000


def test_writes_are_acknowledged_and_counted_from_the_moment_asked_for(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        create_topic(wire, "probed")

    async def scenario() -> None:
        with WriteProbe(node.bootstrap, TopicPartition("probed", 0)) as probe:
            async with asyncio.timeout(30):
                await probe.acknowledged_after(0)
                now_ns = time.monotonic_ns()
                write = await probe.acknowledged_after(now_ns)
            assert now_ns <= write.sent_ns < write.acknowledged_ns
            assert probe.failed == 0

    asyncio.run(scenario())


def test_the_longest_pause_spans_the_fault_and_lasts_until_now_if_it_has_not_ended() -> None:
    probe = WriteProbe("127.0.0.1:1", TopicPartition("t", 0))
    assert probe.longest_pause_ms(0) is None
    now_ns = time.monotonic_ns()
    acknowledged = [now_ns - ago_ms * MS for ago_ms in (9000, 5000, 4900, 4000, 3990, 20)]
    probe.writes = [Write(at_ns, at_ns, 0) for at_ns in acknowledged]
    # 9000 -> 5000 lies before the fault; 4900 -> 4000 spans it; 3990 -> 20 is after it.
    assert probe.longest_pause_ms(now_ns - 4500 * MS) == 3970
    probe.writes = probe.writes[:-2]
    pause_ms = probe.longest_pause_ms(now_ns - 4500 * MS)
    assert pause_ms is not None
    assert pause_ms >= 4000


def test_probe_records_can_be_told_from_others() -> None:
    assert KEY == b"kbus-chaos-probe"
