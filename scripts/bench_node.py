"""One node, measured: `scripts/bench [--gigabytes N]`.

Processor time is what the operating system charged the process for. Produce is set beside a bare loop that
receives the same number of bytes from a socket and writes them to a file, consume beside a bare sendfile
loop, in the same run on the same machine: the ratios mean something, the seconds only here.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

RECORD_BYTES = 1000
BATCH_BYTES = 1_000_000
CHUNK_BYTES = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no Rss")


class Node:
    def __init__(self, folder: Path, zookeeper: str) -> None:
        command = [sys.executable, "-m", "kbus", "broker", "start", "--output", "json"]
        for setting in (
            "broker.id=1",
            "listeners=PLAINTEXT://127.0.0.1:0",
            f"log.dirs={folder / 'data'}",
            f"zookeeper.connect={zookeeper}/bench",
            "log.segment.delete.delay.ms=0",
        ):
            command += ["--set", setting]
        began = time.perf_counter()
        with (folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.start_s = time.perf_counter() - began
        self.bootstrap: str = ready["bootstrap_servers"]
        self.pid = self.process.pid

    def cpu_of(self, work: Callable[[], None]) -> tuple[float, float]:
        """(processor seconds of the node, wall seconds) while `work` runs."""
        cpu, wall = cpu_seconds(self.pid), time.perf_counter()
        work()
        return cpu_seconds(self.pid) - cpu, time.perf_counter() - wall

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def produce(bootstrap: str, topic: str, total_bytes: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 50,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": BATCH_BYTES,
            "queue.buffering.max.kbytes": 256 * 1024,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = os.urandom(RECORD_BYTES)
    for _ in range(total_bytes // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"


def consume(bootstrap: str, topic: str, total_bytes: int, fetch_bytes: int = 1_000_000) -> None:
    """librdkafka's default asks for a megabyte of a partition at a time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": False,
            "queued.max.messages.kbytes": 256 * 1024,
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": fetch_bytes,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    wanted = total_bytes // RECORD_BYTES
    while wanted > 0:
        wanted -= len(consumer.consume(10_000, 10))
    consumer.close()


def bare_receive(folder: Path, total_bytes: int) -> float:
    """Processor seconds of a process that receives from a socket and writes to a file."""
    script = (
        "import os,resource,socket,sys\n"
        "listener=socket.create_server(('127.0.0.1',0)); print(listener.getsockname()[1],flush=True)\n"
        "sock,_=listener.accept(); fd=os.open(sys.argv[1],os.O_WRONLY|os.O_CREAT|os.O_TRUNC)\n"
        "buffer=bytearray(1<<20); view=memoryview(buffer)\n"
        "before=sum(resource.getrusage(resource.RUSAGE_SELF)[:2])\n"
        "while n:=sock.recv_into(view): os.write(fd,view[:n])\n"
        "print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])-before)\n"
    )
    path = folder / "bare.bin"
    with _peer(script, str(path)) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as sock:
            chunk = os.urandom(CHUNK_BYTES)
            for _ in range(total_bytes // CHUNK_BYTES):
                sock.sendall(chunk)
        return float(process.stdout.readline())


def bare_sendfile(folder: Path, *, asked: bool) -> float:
    """Processor seconds of a process that sends a file, a megabyte at a time: in one stream, or each when
    the other side, like a consumer, has the last one and asks for the next."""
    script = (
        "import os,resource,socket,sys\n"
        "listener=socket.create_server(('127.0.0.1',0)); print(listener.getsockname()[1],flush=True)\n"
        "sock,_=listener.accept(); fd=os.open(sys.argv[1],os.O_RDONLY); size=os.fstat(fd).st_size\n"
        "before=sum(resource.getrusage(resource.RUSAGE_SELF)[:2]); at=0\n"
        "while at<size:\n"
        "    if sys.argv[2]=='asked' and at%(1<<20)==0: sock.recv(1)\n"
        "    at+=os.sendfile(sock.fileno(),fd,at,min((1<<20)-at%(1<<20),size-at))\n"
        "print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])-before)\n"
    )
    path = folder / "bare.bin"
    with _peer(script, str(path), "asked" if asked else "stream") as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as sock:
            buffer = bytearray(CHUNK_BYTES)
            left = path.stat().st_size
            unasked = 0
            while left:
                if asked and unasked == 0:
                    sock.send(b"?")
                    unasked = min(CHUNK_BYTES, left)
                count = sock.recv_into(buffer)
                left -= count
                unasked -= count
        return float(process.stdout.readline())


def _peer(script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


def latencies(bootstrap: str, topic: str, count: int) -> list[float]:
    """Milliseconds from produce() to the delivery report, one record of 100 B at a time."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0})
    value = os.urandom(100)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        producer.produce(topic, value)
        producer.flush()
        times.append((time.perf_counter() - began) * 1000)
    return times[count // 10 :]


def report(name: str, value: float, unit: str, goal: float) -> bool:
    met = value <= goal
    print(f"  {name:<44} {value:8.3f} {unit:<6} goal ≤ {goal:g} {'' if met else '  MISSED'}", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    total = int(options.gigabytes * 1e9)
    with tempfile.TemporaryDirectory(prefix="kbus-bench-") as name:
        return run(Path(name), total)


def run(folder: Path, total: int) -> int:
    import asyncio

    from kbus.zk.embedded import EmbeddedZooKeeper

    zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
    asyncio.run(zookeeper.start())
    results: list[bool] = []
    try:
        (folder / "node").mkdir()
        warm = Node(folder / "node", str(zookeeper.address))
        warm.stop()
        starts = []
        for _ in range(3):
            node = Node(folder / "node", str(zookeeper.address))
            starts.append(node.start_s)
            node.stop()
        node = Node(folder / "node", str(zookeeper.address))
        print("One node", flush=True)
        results.append(report("start (ZooKeeper is up), median of 3", statistics.median(starts), "s", 0.5))
        results.append(report("memory when idle", resident_mb(node.pid), "MB", 60))
        measure_throughput(node, folder, total, results)
        node.stop()
    finally:
        asyncio.run(zookeeper.stop())
    return 0 if all(results) else 1


def measure_throughput(node: Node, folder: Path, total: int, results: list[bool]) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for topic in ("warm", "bulk", "small"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    # Both twice, on pages that were just freed: memory that nobody has used before costs a virtual machine
    # many times as much, and whoever comes first would pay for it.
    produce(node.bootstrap, "warm", total)
    consume(node.bootstrap, "warm", total)
    admin.delete_topics(["warm"])["warm"].result()
    while any((folder / "node" / "data").glob("warm-*")):
        time.sleep(0.1)
    gigabytes = total / 1e9
    bare = min(bare_receive(folder, total), bare_receive(folder, total)) / gigabytes
    (folder / "bare.bin").unlink()
    cpu, wall = node.cpu_of(lambda: produce(node.bootstrap, "bulk", total))
    print(
        f"  produced {gigabytes / wall * 1000:.0f} MB/s; {cpu / gigabytes:.3f} CPU s/GB, bare loop {bare:.3f}"
    )
    results.append(report("produce, CPU to that of a bare loop", cpu / gigabytes / bare, "times", 2.5))

    bare_receive(folder, total)
    stream = min(bare_sendfile(folder, asked=False) for _ in range(2)) / gigabytes
    asked = min(bare_sendfile(folder, asked=True) for _ in range(2)) / gigabytes
    print(f"  bare sendfile loops: {stream:.3f} CPU s/GB in one stream, {asked:.3f} a megabyte at a time")
    for size in (1_000_000, 8_000_000):
        cpu, wall = node.cpu_of(lambda size=size: consume(node.bootstrap, "bulk", total, size))
        cpu /= gigabytes
        print(f"  consumed by {size // 1_000_000} MB: {gigabytes / wall * 1000:.0f} MB/s; {cpu:.3f} CPU s/GB")
        results.append(report("  CPU to that of the bare stream", cpu / stream, "times", 1.5))
        report("  CPU to that of the bare loop that is asked", cpu / asked, "times", 1.5)

    times = sorted(latencies(node.bootstrap, "small", 20_000))
    results.append(report("produce of 100 B, acks=1, p50", times[len(times) // 2], "ms", 0.3))
    results.append(report("produce of 100 B, acks=1, p99", times[len(times) * 99 // 100], "ms", 1.0))
    print(f"  memory afterwards: {resident_mb(node.pid):.0f} MB")


if __name__ == "__main__":
    raise SystemExit(main())
