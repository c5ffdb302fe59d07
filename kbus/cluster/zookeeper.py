"""The cluster's own ZooKeeper: started again, at the same port, if it ends by itself."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from kbus.zk.embedded import EmbeddedZooKeeper, EmbeddedZooKeeperError

log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 1.0


class ZooKeeperServer:
    def __init__(self, directory: Path, *, port: int) -> None:
        """Port 0 is any free one."""
        self._server = EmbeddedZooKeeper(directory, port=port)
        self._guard: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return str(self._server.address)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def pid(self) -> int | None:
        return self._server.pid

    async def start(self) -> None:
        """Returns when it serves. Raises EmbeddedZooKeeperError."""
        await self._server.start()
        self._guard = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        await self._server.stop()

    async def _keep_up(self) -> None:
        while True:
            code = await self._server.wait()
            log.error("ZooKeeper ended with code %s and is started again", code)
            while True:
                try:
                    await self._server.restart()
                    break
                except EmbeddedZooKeeperError as error:
                    log.error("ZooKeeper cannot be started again yet: %s", error)
                    await asyncio.sleep(_RETRY_DELAY_S)
