"""The timeline of a cluster: what changed between one look at it and the next, and how that is said."""

import time
from typing import Any

from kbus.cli.output import OutputFormat, print_json_line
from kbus.client.metadata import ClusterView
from kbus.types import BrokerId

Event = dict[str, Any]


def silence(before: frozenset[BrokerId], after: frozenset[BrokerId]) -> list[Event]:
    return [
        *({"event": "silent", "broker": broker} for broker in sorted(before - after)),
        *({"event": "answers", "broker": broker} for broker in sorted(after - before)),
    ]


def changes(before: ClusterView, after: ClusterView) -> list[Event]:
    events: list[Event] = [
        *({"event": "joined", "broker": broker} for broker in sorted(after.brokers.keys() - before.brokers)),
        *({"event": "left", "broker": broker} for broker in sorted(before.brokers.keys() - after.brokers)),
    ]
    if after.controller != before.controller:
        events.append({"event": "controller", "old": before.controller, "new": after.controller})
    for tp, view in after.partitions.items():
        old = before.partitions.get(tp)
        if old is not None and view.leader_epoch < old.leader_epoch:
            continue  # the one broker that knows more is silent just now
        if old == view:
            continue
        event: Event = {
            "event": "created" if old is None else "changed",
            "topic": tp.topic,
            "partition": tp.partition,
            "leader": view.leader,
            "leader_epoch": view.leader_epoch,
            "isr": list(view.isr),
        }
        if old is not None:
            event |= {
                "old_leader": old.leader,
                "old_leader_epoch": old.leader_epoch,
                "old_isr": list(old.isr),
            }
        events.append(event)
    events.extend(
        {"event": "deleted", "topic": tp.topic, "partition": tp.partition}
        for tp in sorted(before.partitions.keys() - after.partitions.keys())
    )
    return events


def print_event(event: Event, output: OutputFormat) -> None:
    now_ms = time.time_ns() // 1_000_000
    if output is OutputFormat.JSON:
        print_json_line({"time_ms": now_ms, **event})
        return
    clock = time.strftime("%H:%M:%S", time.localtime(now_ms / 1000))
    print(f"{clock}.{now_ms % 1000:03d}  {_event_text(event)}")


def _event_text(event: Event) -> str:
    kind = event["event"]
    if kind in _BROKER_EVENTS:
        return f"broker {event['broker']} {_BROKER_EVENTS[kind]}"
    if kind == "controller":
        return f"controller {_shown(event['old'])} -> {_shown(event['new'])}"
    name = f"{event['topic']}-{event['partition']}"
    if kind == "deleted":
        return f"{name}  deleted"
    parts = []
    for field, label in (("leader", "leader"), ("leader_epoch", "epoch"), ("isr", "isr")):
        new = event[field]
        old = event.get(f"old_{field}", new)
        text = f"{label} {_shown(new)}"
        parts.append(f"{label} {_shown(old)} -> {_shown(new)}" if old != new else text)
    return f"{name}  {'  '.join(parts)}{'  (new)' if kind == 'created' else ''}"


_BROKER_EVENTS = {
    "silent": "does not answer",
    "answers": "answers",
    "joined": "joined the cluster",
    "left": "left the cluster",
}


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
