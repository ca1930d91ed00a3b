"""One connection to an MCP server: opened, used, and closed.

The SDK's client lives in a task of its own, because the task that enters it must also leave it. Calls come
from any task. Both eras of the protocol look the same from here: the SDK asks a server which one it speaks.

A connection that broke stays broken. Whoever needs the server opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import mcp_types
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams

from lastgood import __version__
from lastgood.engine.mcp.elicitation import decline_inline, responses_of
from lastgood.engine.mcp.errors import ServerUnavailable
from lastgood.engine.mcp.stdio_transport import ServerProcess
from lastgood.engine.tools.cancellation import finish
from lastgood.engine.tools.tool import ToolFailed, ToolInterrupted

#: Carries the key of a tool call: the same in every attempt at a turn, so that a server can do a thing once.
KEY = "lastgood.dev/idempotency-key"
ATTEMPT = "lastgood.dev/attempt"
MOST_TOOLS = 1000
MOST_INSTRUCTION_CHARACTERS = 16_384
_CLOSED = -32000  # the SDK's code for a connection that ended under a request

Open = Callable[["Connection"], AbstractAsyncContextManager[TransportStreams]]
Say = Callable[[str], None]


class Connection:
    def __init__(self, open_transport: Open, name: str, *, start_seconds: float, call_seconds: float) -> None:
        self._open, self._name = open_transport, name
        self._start_seconds, self._call_seconds = start_seconds, call_seconds
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._refusal = ""  # what a remote server said instead of an answer, and what to do
        self._tools: tuple[mcp_types.Tool, ...] | None = None
        self._broken = False
        self.calls = 0  # under way

    async def start(self) -> None:
        """Raises ServerUnavailable. Cancelled, it leaves nothing behind."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready))
        try:
            await asyncio.wait_for(asyncio.shield(ready), self._start_seconds)
        except TimeoutError:
            await self.close()
            raise ServerUnavailable(
                f"it did not start within {self._start_seconds:g} s{self._last_words()}"
            ) from None
        except BaseException:
            await self.close()
            raise

    @property
    def is_broken(self) -> bool:
        return self._broken or (self._process is not None and self._process.has_ended)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            client = Client(
                self._open(self),
                client_info=mcp_types.Implementation(name="lastgood", version=__version__),
                read_timeout_seconds=self._call_seconds,
                message_handler=self._hear,
                elicitation_callback=decline_inline,
                cache=None,
            )
            async with client:
                self._client = client
                ready.set_result(None)
                async with _beside(self._listen(client)):
                    await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(ServerUnavailable(self._why(error)))
        finally:
            self._broken, self._client = True, None
            if not ready.done():
                ready.cancel()

    def keep_process(self, process: ServerProcess) -> None:
        self._process = process

    def keep_refusal(self, reason: str) -> None:
        self._refusal = reason

    def _why(self, error: BaseException) -> str:
        return self._refusal or f"{_reason(error)}{self._last_words()}"

    def _last_words(self) -> str:
        said = self._process.stderr_tail if self._process else ""
        return f"; it wrote: {said.splitlines()[-1][:300]}" if said else ""

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            task = self._task

            async def ended() -> None:
                await asyncio.wait({task}, timeout=self._start_seconds)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            await finish(ended())

    # -- what it offers --------------------------------------------------------------------

    async def _hear(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._tools = None
        elif isinstance(message, Exception):
            return  # not a message of the protocol: the request that waits for it times out

    async def _listen(self, client: Client) -> None:
        """Servers of the newest revision send list-changed notifications only to subscribers."""
        capability = client.server_capabilities.tools
        if capability is None or not capability.list_changed:
            return
        with contextlib.suppress(MCPError, RuntimeError, OSError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._tools = None

    @property
    def instructions(self) -> str:
        given = self._client.instructions if self._client else None
        return (given or "")[:MOST_INSTRUCTION_CHARACTERS]

    async def tools(self) -> tuple[mcp_types.Tool, ...]:
        """Raises ServerUnavailable."""
        if self._tools is None:
            self._tools = await self._ask(self._list())
        return self._tools

    async def _list(self) -> tuple[mcp_types.Tool, ...]:
        client = self._connected()
        if client.server_capabilities.tools is None:
            return ()
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= MOST_TOOLS:
                return tuple(found[:MOST_TOOLS])

    async def _ask(self, asking: Coroutine[Any, Any, Any]) -> Any:
        self._refusal = ""
        try:
            return await asking
        except (MCPError, OSError, RuntimeError, TimeoutError) as error:
            self._broken = self._broken or _is_closed(error)
            raise ServerUnavailable(self._why(error)) from None

    # -- calls -----------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        key: str,
        attempt: int,
        say: Say,
        state: Mapping[str, Any] | None = None,
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Raises ToolFailed. Cancelled, it tells the server so.

        `state`: what was answered since the server asked for input, in `engine/mcp/elicitation.py`'s form.
        """

        async def show(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            say(f"[{share}] {message or ''}".rstrip() + "\n")

        async def send() -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
            return await client.session.call_tool(
                name,
                arguments,
                progress_callback=show,
                meta=about,
                input_responses=(responses_of(state) or None) if state else None,
                request_state=state["request_state"] if state else None,
                allow_input_required=True,
            )

        client = self._connected()
        about = cast(mcp_types.RequestParamsMeta, {KEY: key, ATTEMPT: attempt})
        self.calls += 1
        self._refusal = ""
        try:
            try:
                return await send()
            except MCPError as error:
                if error.error.code != mcp_types.HEADER_MISMATCH:
                    raise
            # The tool's schema has changed since it was listed. The server did not run the call.
            self._tools = await self._list()
            return await send()
        except (MCPError, OSError, RuntimeError, TimeoutError) as error:
            if not _is_closed(error):
                text = f"MCP server {self._name}: {self._refusal or _reason(error)}"
                if _is_timeout(error):
                    raise ToolInterrupted(f"{text}; whether the call took effect is unknown") from None
                raise ToolFailed(text) from None
            self._broken = True
            raise ToolInterrupted(
                f"MCP server {self._name} ended during this call; whether the call took effect is unknown"
                f"{self._last_words()}"
            ) from None
        finally:
            self.calls -= 1

    def _connected(self) -> Client:
        if self._client is None:
            raise ToolFailed(f"MCP server {self._name} is not running{self._last_words()}")
        return self._client


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> Any:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _is_closed(error: BaseException) -> bool:
    return not isinstance(error, MCPError) or error.error.code == _CLOSED


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, MCPError) and error.error.code == mcp_types.REQUEST_TIMEOUT


def _reason(error: BaseException) -> str:
    """In one line. Task groups wrap what went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, (ServerUnavailable, ToolFailed)):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__
