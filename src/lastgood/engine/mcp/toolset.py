"""The `mcp` toolset: a server for each session that needs it, and its tools as the loop has them.

A server is started when it is first needed and reused until the session is gone, the agent's file has
changed, or nobody has used it for a while. One that broke is started again, after a pause that grows. What
it kept in memory is gone then, and on another node; the model is told so with the next result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from lastgood.core.mcp_servers import tool_name
from lastgood.engine.mcp.errors import ServerUnavailable
from lastgood.engine.mcp.server_spec import ServerSpec, server_spec
from lastgood.engine.tools.environment import Environment
from lastgood.engine.tools.live import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.messages import Message
from lastgood.outside.network import Network

if TYPE_CHECKING:
    from lastgood.engine.mcp.connection import Connection

log = logging.getLogger(__name__)

#: Processes and connections of one server in one tenant. Beyond, the one that was idle longest is closed.
MOST_OF_ONE_SERVER = 50
IDLE_SECONDS = 600.0
MOST_DESCRIPTION_CHARACTERS = 8192
STARTED_AGAIN = (
    "\n[The MCP server was started again since its tools were last used in this conversation: state that "
    "it kept in memory is gone.]"
)
_ORIGINAL = "{ORIGINAL_INSTRUCTIONS}"
_STATE_ONLY_SECONDS = 0.25


class McpToolset:
    def __init__(
        self, environment: Environment, network: Network, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment, self._network, self.clock = environment, network, clock
        self._open: set[McpServer] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return McpServer(self, server_spec(spec), place)

    async def connect(self, server: McpServer) -> Connection:
        """Raises ServerUnavailable."""
        await self._make_room(server)
        # The SDK takes most of a second to import: only where an agent has a server.
        connection_class = await asyncio.to_thread(_connection_class)
        spec, lifecycle = server.spec, server.spec.lifecycle
        connection = connection_class(
            partial(self._transport, server),
            spec.name,
            start_seconds=lifecycle.start_seconds,
            call_seconds=lifecycle.call_seconds,
        )
        self._open.add(server)
        try:
            await connection.start()
        except BaseException:
            self._open.discard(server)
            raise
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._close_idle())
        return connection

    def _transport(self, server: McpServer, connection: Connection) -> AbstractAsyncContextManager[Any]:
        from lastgood.engine.mcp.http_transport import RemoteServer, remote_transport
        from lastgood.engine.mcp.stdio_transport import ServerCommand, stdio_transport

        spec = server.spec
        if spec.is_remote:
            headers = spec.headers(self._environment)
            server_at = RemoteServer(spec.url, spec.transport, headers, spec.lifecycle.call_seconds)
            return remote_transport(server_at, spec.policy, self._network, connection.keep_refusal)
        command = ServerCommand(
            spec.words(), spec.folder(server.place.working_dir), spec.environment(self._environment)
        )
        return stdio_transport(command, connection.keep_process)

    async def _make_room(self, server: McpServer) -> None:
        alike = [one for one in self._open if one.is_like(server)]
        if len(alike) < MOST_OF_ONE_SERVER:
            return
        idle = [one for one in alike if one.is_idle]
        if not idle:
            raise ServerUnavailable(
                f"{MOST_OF_ONE_SERVER} sessions use this server now, which is the limit; try again later"
            )
        await min(idle, key=lambda one: one.used_at).stop()

    def forget(self, server: McpServer) -> None:
        self._open.discard(server)

    async def _close_idle(self) -> None:
        while self._open:
            await asyncio.sleep(IDLE_SECONDS / 10)
            for server in [one for one in self._open if one.is_idle]:
                if self.clock() - server.used_at > IDLE_SECONDS:
                    await server.stop()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(server.stop() for server in list(self._open)))


class McpServer:
    """One server of one session."""

    def __init__(self, toolset: McpToolset, spec: ServerSpec, place: SessionPlace) -> None:
        self._toolset, self.spec, self.place = toolset, spec, place
        self._connection: Connection | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        self._problem = ""
        self._not_before = 0.0
        self._noted = False  # whether the model knows that this connection is a new one
        self.used_at = toolset.clock()

    def is_like(self, other: McpServer) -> bool:
        return (self.place.tenant, self.spec.identity) == (other.place.tenant, other.spec.identity)

    @property
    def is_idle(self) -> bool:
        return self._connection is not None and self._connection.calls == 0 and not self._starting.locked()

    async def offer(self) -> Offer:
        lifecycle = self.spec.lifecycle
        try:
            connection = await self._connected()
            listed = await connection.tools()
        except ServerUnavailable as error:
            return Offer(
                problem=f"MCP server {self.spec.name} is not available: {error}",
                is_required=lifecycle.is_required,
            )
        chosen = self.spec.spec.tools
        tools = tuple(self._tool(tool) for tool in listed if chosen is None or tool.name in chosen)
        own = self.spec.spec.instruction
        theirs = connection.instructions
        return Offer(
            tools, own.replace(_ORIGINAL, theirs) if own else theirs, label=tool_name(self.spec.name, "")
        )

    async def _connected(self) -> Connection:
        async with self._starting:
            self.used_at = self._toolset.clock()
            if self._connection is not None and not self._connection.is_broken:
                return self._connection
            await self._drop()
            most = self.spec.lifecycle.restarts
            is_spent = most is not None and self._failures > most
            if self._failures and (is_spent or self.used_at < self._not_before):
                raise ServerUnavailable(self._problem)
            try:
                self._connection = await self._toolset.connect(self)
            except ServerUnavailable as error:
                self._failures += 1
                self._problem = str(error)
                self._not_before = self._toolset.clock() + self.spec.lifecycle.pause(self._failures)
                log.warning(
                    "MCP server %s of session %s: %s", self.spec.name, self.place.session, self._problem
                )
                raise
            self._failures, self._noted = 0, False
            return self._connection

    async def stop(self) -> None:
        async with self._starting:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._toolset.forget(self)
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        await self.stop()

    # -- its tools -------------------------------------------------------------------------

    def _tool(self, listed: Any) -> Tool:
        effect, on_unknown = (
            _hints(listed.annotations) if self.spec.spec.trusted else (Effect.UNKNOWN, OnUnknown.FAIL)
        )
        must_be_task = listed.execution is not None and listed.execution.task_support == "required"
        return Tool(
            tool_name(listed.name, self.spec.prefix),
            (listed.description or listed.title or "")[:MOST_DESCRIPTION_CHARACTERS],
            listed.input_schema,
            _needs_tasks if must_be_task else partial(self._call, listed.name),
            on_unknown=on_unknown,
            effect=effect,
        )

    async def _call(self, name: str, use: ToolUse) -> str:
        from lastgood.engine.mcp.results import text_of

        try:
            connection = await self._connected()
        except ServerUnavailable as error:
            raise ToolFailed(f"MCP server {self.spec.name} is not available: {error}") from None
        note = self._note(name, use.messages)
        try:
            result = await self._answered(connection, name, use)
            return await asyncio.to_thread(text_of, result, use.working_dir) + note
        except ToolFailed as error:
            raise type(error)(f"{error}{note}") from None
        finally:
            self.used_at = self._toolset.clock()

    async def _answered(self, connection: Connection, name: str, use: ToolUse) -> Any:
        """NeedsInput: the server needs input from a person before it continues."""
        from mcp_types import InputRequiredResult

        from lastgood.engine.mcp.elicitation import next_question, state_of, with_answer

        state: Mapping[str, Any] | None = None
        if use.answer is not None and use.answer.is_about_input and use.answer.state is not None:
            state = with_answer(use.answer.state, use.answer)
        while True:
            if state is not None and (question := next_question(state, self.spec.name)) is not None:
                raise question
            result = await connection.call(
                name, use.arguments, key=use.key, attempt=use.attempt_number, say=use.say, state=state
            )
            if not isinstance(result, InputRequiredResult):
                return result
            state = state_of(result, state)
            if not state["requests"]:
                await asyncio.sleep(_STATE_ONLY_SECONDS)  # it only wants to be called again

    def _note(self, name: str, messages: Sequence[Message]) -> str:
        """Once for each start: whether an earlier call of this conversation met another process."""
        if self._noted or self.spec.is_remote:
            return ""
        self._noted = True
        own = tool_name(name, self.spec.prefix)
        calls = [call.name for message in messages for call in message.tool_calls]
        return STARTED_AGAIN if calls.count(own) > 1 else ""


async def _needs_tasks(use: ToolUse) -> str:
    raise ToolFailed(
        "this tool runs only as a task, and the tasks extension of MCP is not supported yet; use another tool"
    )


def _hints(annotations: Any) -> tuple[Effect, OnUnknown]:
    """What a server that we trust says of its tool."""
    if annotations is None:
        return Effect.UNKNOWN, OnUnknown.FAIL
    if annotations.read_only_hint:
        return Effect.SAFE, OnUnknown.REPEAT
    effect = Effect.DESTRUCTIVE if annotations.destructive_hint else Effect.UNKNOWN
    return effect, OnUnknown.REPEAT if annotations.idempotent_hint else OnUnknown.FAIL


def _connection_class() -> type[Connection]:
    from lastgood.engine.mcp.connection import Connection

    return Connection
