"""Large produce requests: the records are handed over as views, in the order of their partitions."""

from datetime import timedelta

import pytest

from kbus.protocol.api import ApiKey, schema_for
from kbus.protocol.outline import LIFT_BYTES

LARGE = bytes(range(256)) * (LIFT_BYTES // 256)
RECORDS = [LARGE, None, b"small", b"", LARGE[::-1]]


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_records_of_a_large_request_are_those_that_were_sent_to_each_partition(version: int) -> None:
    schema = schema_for(ApiKey.PRODUCE, version)
    topics = [
        schema.build_request(
            "TopicProduceData",
            name=f"topic-{number}",
            topic_id=None,
            partition_data=tuple(
                schema.build_request("PartitionProduceData", index=index, records=records)
                for index, records in enumerate(part)
            ),
        )
        for number, part in enumerate((RECORDS[:2], RECORDS[2:]))
    ]
    request = schema.request(
        transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=tuple(topics)
    )
    frame = memoryview(schema.write_request(7, "client", request))[4:].toreadonly()
    header, body, lifted = schema.read_request(frame)
    assert header.client_id == "client"
    assert lifted is not None
    assert [bytes(view or b"") for view in lifted] == [records or b"" for records in RECORDS]
    assert [len(topic.partition_data) for topic in body.topic_data] == [2, 3]
    assert body.acks == 1


def test_a_small_request_is_left_whole() -> None:
    schema = schema_for(ApiKey.PRODUCE, 9)
    data = schema.build_request("PartitionProduceData", index=0, records=b"records")
    topic = schema.build_request("TopicProduceData", name="t", partition_data=(data,))
    request = schema.request(transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(topic,))
    frame = memoryview(schema.write_request(7, "client", request))[4:].toreadonly()
    _, body, lifted = schema.read_request(frame)
    assert lifted is None
    assert body.topic_data[0].partition_data[0].records == b"records"
