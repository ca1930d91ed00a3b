"""One connection to an MCP server: opened, used, and closed.

The SDK's client lives in a task of its own, because the task that enters it must also leave it. Calls come
from any task. Both eras of the protocol look the same from here: the SDK asks a server which one it speaks.

A connection that broke stays broken. The next user of the server opens another one. A reply that does not fit
the protocol breaks nothing: it fails its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import mcp_types
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from pydantic import TypeAdapter

from lastgood import __version__
from lastgood.engine.mcp.call_progress import ProgressNotices
from lastgood.engine.mcp.elicitation import decline_inline, responses_of
from lastgood.engine.mcp.mcp_errors import ServerUnavailable
from lastgood.engine.mcp.reply_errors import is_lost, is_timeout, may_be_lost, reason_of
from lastgood.engine.mcp.stdio_transport import ServerProcess
from lastgood.engine.tools.cancellation import finish
from lastgood.engine.tools.tool import ToolFailed, ToolInterrupted

#: Carries the key of a tool call: the same in every attempt at a turn, so that a server can do a thing once.
KEY = "lastgood.dev/idempotency-key"
ATTEMPT = "lastgood.dev/attempt"
MOST_TOOLS = 1000
MOST_PAGES = 100
MOST_INSTRUCTION_CHARACTERS = 16_384

Open = Callable[["Connection"], AbstractAsyncContextManager[TransportStreams]]
CallResult = mcp_types.CallToolResult | mcp_types.InputRequiredResult
_RESULT: TypeAdapter[CallResult] = TypeAdapter(CallResult)

#: What Docker says without the plug-in that has its MCP gateway.
_NO_GATEWAY = re.compile(
    r"Usage: +docker \[OPTIONS\] COMMAND|unknown command: docker mcp|'mcp' is not a docker"
)

log = logging.getLogger(__name__)


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
        self._changes = 0  # of its list of tools, as it says
        self._broken = False
        self.calls = 0  # under way, listings too

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
                message_handler=self._receive,
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
        return self._refusal or f"{reason_of(error)}{self._last_words()}"

    @property
    def exit_code(self) -> int | None:
        """None: it is a remote server, or runs."""
        return self._process.exit_code if self._process else None

    @property
    def why_ended(self) -> str:
        return self._refusal or f"it ended{self._last_words()}"

    def _last_words(self) -> str:
        said = self._process.stderr_tail if self._process else ""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if any(_NO_GATEWAY.search(line) for line in lines):
            what = "install the Docker MCP Toolkit, or use `command` or `remote`"
            return f"; `docker` has no command `mcp`; {what}"
        return f"; it wrote: {lines[-1][:300]}" if lines else ""

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

    async def _receive(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._forget_tools()

    async def _listen(self, client: Client) -> None:
        """Servers of the newest revision send list-changed notifications only to subscribers."""
        capability = client.server_capabilities.tools
        if capability is None or not capability.list_changed:
            return
        with contextlib.suppress(MCPError, RuntimeError, OSError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._forget_tools()

    def _forget_tools(self) -> None:
        self._tools = None
        self._changes += 1

    @property
    def instructions(self) -> str:
        given = self._client.instructions if self._client else None
        return (given or "")[:MOST_INSTRUCTION_CHARACTERS]

    async def tools(self) -> tuple[mcp_types.Tool, ...]:
        """Raises ServerUnavailable."""
        if self._tools is not None:
            return self._tools
        self._refusal = ""
        self.calls += 1
        try:
            return await self._list()
        except ToolFailed:
            raise ServerUnavailable(self.why_ended) from None
        except Exception as error:  # the SDK raises anything for a reply that it did not expect
            self._note_loss(error)
            log.debug("MCP server %s did not list its tools", self._name, exc_info=error)
            why = self._refusal or reason_of(error, "list of tools")
            raise ServerUnavailable(f"{why}{self._last_words()}") from None
        finally:
            self.calls -= 1

    async def _list(self) -> tuple[mcp_types.Tool, ...]:
        client = self._connected()
        if client.server_capabilities.tools is None:
            return ()
        changes = self._changes
        async with asyncio.timeout(self._start_seconds):
            found = tuple((await _pages(client))[:MOST_TOOLS])
        if changes == self._changes:  # else the list changed while it was read: it is read again next time
            self._tools = found
        return found

    def _note_loss(self, error: Exception) -> bool:
        """Returns whether the connection ended. Only then is the server started again."""
        if self._process is not None:
            lost = self._process.has_ended and may_be_lost(error)
        else:
            lost = is_lost(error)
        self._broken = self._broken or lost
        return lost

    # -- calls -----------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        key: str,
        attempt: int,
        progress: ProgressNotices,
        state: Mapping[str, Any] | None = None,
    ) -> CallResult:
        """Raises ToolFailed. Cancelled, it tells the server so.

        `state`: what was answered since the server asked for input, in `engine/mcp/elicitation.py`'s form.
        """
        params = mcp_types.CallToolRequestParams(
            name=name,
            arguments=arguments,
            input_responses=(responses_of(state) or None) if state else None,
            request_state=state["request_state"] if state else None,
            _meta=cast(mcp_types.RequestParamsMeta, {KEY: key, ATTEMPT: attempt}),
        )

        async def send() -> CallResult:
            # Not the SDK's `call_tool`: it judges structured content by the tool's output schema, on the
            # event loop and without a limit. The model reads the text, and a call that took effect has not
            # failed.
            request = mcp_types.CallToolRequest(params=params)
            return await client.session.send_request(request, _RESULT, progress_callback=progress.show)

        client = self._connected()
        self.calls += 1
        self._refusal = ""
        try:
            try:
                return await send()
            except MCPError as error:
                if error.error.code != mcp_types.HEADER_MISMATCH:
                    raise
            # The tool's schema has changed since it was listed. The server did not run the call.
            await self._list()
            return await send()
        except Exception as error:  # as in `tools`
            raise self._call_error(error) from None
        finally:
            self.calls -= 1

    def _call_error(self, error: Exception) -> ToolFailed:
        if self._note_loss(error) and not self._refusal:
            return ToolInterrupted(
                f"MCP server {self._name} ended during this call; whether the call took effect is unknown"
                f"{self._last_words()}"
            )
        reason = self._refusal or reason_of(error, "result")
        invalid = reason.removeprefix("it sent an invalid ")
        if invalid == reason and is_timeout(error):
            return ToolInterrupted(
                f"MCP server {self._name}: {reason}; whether the call took effect is unknown"
            )
        if invalid == reason:
            return ToolFailed(f"MCP server {self._name}: {reason}")
        log.debug("MCP server %s sent an invalid result", self._name, exc_info=error)
        return ToolInterrupted(
            f"MCP server {self._name} sent an invalid {invalid}; whether the call took effect is unknown"
        )

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


async def _pages(client: Client) -> list[mcp_types.Tool]:
    """All its tools. ValueError: the list has no end."""
    found: list[mcp_types.Tool] = []
    cursors: set[str | None] = {None}
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) >= MOST_TOOLS:
            return found
        if cursor in cursors:
            raise ValueError(f"it repeats the cursor {cursor[:40]!r}")
        cursors.add(cursor)
    raise ValueError(f"it has more than {MOST_PAGES} pages")
