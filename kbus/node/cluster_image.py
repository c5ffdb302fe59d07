"""The cluster as nodes tell it to each other: brokers and topics as plain values, and back."""

from typing import Any
from uuid import UUID

from kbus.config import Endpoint
from kbus.core.cluster import Broker, PartitionState, Topic
from kbus.types import BrokerId, LeaderEpoch


def broker_to_wire(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.id,
        "epoch": broker.epoch,
        "rack": broker.rack,
        "endpoints": [[e.listener, e.host, e.port] for e in broker.endpoints.values()],
    }


def broker_from_wire(value: dict[str, Any]) -> Broker:
    endpoints = [Endpoint(*fields) for fields in value["endpoints"]]
    return Broker(
        id=BrokerId(value["id"]),
        epoch=value["epoch"],
        rack=value["rack"],
        endpoints={endpoint.listener: endpoint for endpoint in endpoints},
    )


def topic_to_wire(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id.bytes,
        "config": dict(topic.config),
        "partitions": [
            [index, list(s.replicas), s.leader, s.leader_epoch, list(s.isr), s.partition_epoch]
            for index, s in topic.partitions.items()
        ],
    }


def topic_from_wire(value: dict[str, Any]) -> Topic:
    return Topic(
        name=value["name"],
        id=UUID(bytes=value["id"]),
        config=value["config"],
        partitions={
            index: PartitionState(
                replicas=tuple(BrokerId(number) for number in replicas),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(leader_epoch),
                isr=tuple(BrokerId(number) for number in isr),
                partition_epoch=partition_epoch,
            )
            for index, replicas, leader, leader_epoch, isr, partition_epoch in value["partitions"]
        },
    )
