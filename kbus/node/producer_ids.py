"""Ids for producers, unique in the cluster: taken from ZooKeeper in blocks, handed out one by one."""

import asyncio
from typing import Final

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import BrokerId, ProducerId
from kbus.zk import znodes
from kbus.zk.store import BadVersion, ConnectionLost, CoordinationStore, SessionExpired

BLOCK_SIZE: Final = 1000
_MAX_PRODUCER_ID: Final = 2**63 - 1


class ProducerIds:
    """Invariant: [next, end) is what is left of the block that this broker has written down as its own."""

    def __init__(self, broker_id: BrokerId, store: CoordinationStore) -> None:
        self._broker_id = broker_id
        self._store = store
        self._next = 0
        self._end = 0
        self._claiming = asyncio.Lock()

    def next_from_block(self) -> ProducerId | None:
        if self._next == self._end:
            return None
        self._next += 1
        return ProducerId(self._next - 1)

    async def next(self) -> ProducerId:
        async with self._claiming:
            while (producer_id := self.next_from_block()) is None:
                await self._claim_block()
        return producer_id

    async def _claim_block(self) -> None:
        """Compare-and-set: of two brokers that read the same block, one writes the next, one reads again."""
        try:
            data, stat = await self._store.get(znodes.PRODUCER_ID_BLOCK)
            first = znodes.ProducerIdBlock.decode(data).last + 1 if data else 0
            if first > _MAX_PRODUCER_ID - BLOCK_SIZE:
                raise KafkaError(ErrorCode.unknown_server_error, "All producer ids are used up.")
            block = znodes.ProducerIdBlock(
                broker_id=self._broker_id, first=first, last=first + BLOCK_SIZE - 1
            )
            await self._store.set(znodes.PRODUCER_ID_BLOCK, block.encode(), stat.version)
        except BadVersion:
            return
        except (ConnectionLost, SessionExpired) as error:
            # The block may be taken or not; if it is, its ids are left unused.
            raise KafkaError(ErrorCode.coordinator_not_available, "ZooKeeper does not answer.") from error
        self._next, self._end = block.first, block.last + 1
