"""JSON-RPC 2.0 over the lines of a CLI, in both directions.

Notifications are handled one after another, in the order they came. Requests of the CLI are handled side by
side: one of them may wait for a person. Lines that are no JSON object are counted and skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson

from lastgood.worker.runtimes.cli_process import CliGone, CliProcess

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603

Notified = Callable[[str, dict[str, Any]], Awaitable[None]]
Requested = Callable[[str, dict[str, Any]], Awaitable[Any]]


class RpcError(Exception):
    """The other side answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})" + (f": {orjson.dumps(data).decode()}" if data else ""))
        self.code, self.message, self.data = code, message, data


class RpcPeer:
    def __init__(self, process: CliProcess, requested: Requested, notified: Notified) -> None:
        self._process, self._requested, self._notified = process, requested, notified
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._end.add_done_callback(lambda end: end.cancelled() or end.exception())  # nobody may be waiting
        self.gone = False

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads for the time of the block."""
        task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            for one in (task, *self._answering):
                one.cancel()
            await asyncio.gather(task, *self._answering, return_exceptions=True)

    async def ended(self) -> None:
        """Waits until the CLI exits or a report fails, and raises that."""
        await asyncio.shield(self._end)

    async def request(self, method: str, params: Any) -> Any:
        """Raises RpcError, and CliGone if the CLI exits before it answers."""
        if self.gone:
            raise CliGone("the CLI exited")
        self._next_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[self._next_id] = future
        await self._send({"id": self._next_id, "method": method, "params": params})
        return await future

    async def notify(self, method: str, params: Any = None) -> None:
        await self._send({"method": method} if params is None else {"method": method, "params": params})

    async def _send(self, message: dict[str, Any]) -> None:
        await self._process.write_line(orjson.dumps({"jsonrpc": "2.0", **message}))

    async def _read(self) -> None:
        failure: Exception = CliGone("the CLI exited")
        try:
            async for line in self._process.lines():
                message = object_in(line.data) if line.whole else None
                if message is not None:
                    await self._handle(message)
        except Exception as error:  # a reporter that fails must fail the job, and not leave it waiting
            failure = error
        finally:
            self.gone = True
            for future in (self._end, *self._pending.values()):
                if not future.done():
                    future.set_exception(failure)

    async def _handle(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params")
        given = params if isinstance(params, dict) else {}
        if isinstance(method, str) and "id" in message:
            task = asyncio.create_task(self._answer(message["id"], method, given))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif isinstance(method, str):
            await self._notified(method, given)
        else:
            self._resolve(message)

    def _resolve(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        future = self._pending.pop(number, None) if isinstance(number, int) else None
        if future is None or future.done():
            return
        error = message.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            code = code if isinstance(code, int) else INTERNAL_ERROR
            future.set_exception(RpcError(code, str(error.get("message", "")), error.get("data")))
        else:
            future.set_result(message.get("result"))

    async def _answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        try:
            reply: dict[str, Any] = {"result": await self._requested(method, params)}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": error.message}}
        except Exception as error:  # the CLI waits for an answer; without one the turn would hang
            reply = {"error": {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}}
        with contextlib.suppress(CliGone):
            await self._send({"id": number, **reply})


def object_in(data: bytes) -> dict[str, Any] | None:
    """Returns the JSON object of a line, and None for anything else."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
