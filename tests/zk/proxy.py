"""A network between a client and a server that breaks when told to."""

import asyncio

_PING_ANSWER_BYTES = 20


class CuttableProxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._cut_at_next_answer = False
        self.accepted = 0
        """Connections ever accepted, those that were closed at once included."""

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def cut_at_next_answer(self) -> None:
        self._cut_at_next_answer = True

    def restore(self) -> None:
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        self._writers.add(writer)
        try:
            if self._is_cut:
                return
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
            self._writers.add(upstream_writer)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, upstream_writer, is_answer=False))
                    pumps.create_task(self._pump(upstream_reader, writer, is_answer=True))
            finally:
                self._writers.discard(upstream_writer)
                upstream_writer.close()
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if is_answer and self._cut_at_next_answer and len(data) > _PING_ANSWER_BYTES:
                    self._cut_at_next_answer = False
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
