"""The `mcp` toolset: a server for each session that needs it, and its tools as the loop has them.

A server is started when it is first needed and reused until the session is gone, the agent's file has
changed, or nobody has used it for a while. One that broke is started again as its `lifecycle` says, after a
pause that grows. What it kept in memory is gone then, and on another node; the next result of a conversation
says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from lastgood.core.mcp_servers import tool_name
from lastgood.engine.mcp.call_progress import ProgressNotices
from lastgood.engine.mcp.mcp_errors import ServerLimit, ServerUnavailable
from lastgood.engine.mcp.orphan_guard import OrphanGuard
from lastgood.engine.mcp.restart_note import restart_note, short_id
from lastgood.engine.mcp.server_spec import ServerSpec, server_spec
from lastgood.engine.mcp.tool_limits import usable_tools
from lastgood.engine.tools.cancellation import in_thread
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.outside.network import Network

if TYPE_CHECKING:
    from lastgood.engine.mcp.server_connection import Connection

log = logging.getLogger(__name__)

#: Processes and connections of one server in one tenant. Beyond, the one that was idle longest is closed.
MOST_OF_ONE_SERVER = 50
IDLE_SECONDS = 600.0
MOST_DESCRIPTION_CHARACTERS = 8192
_ORIGINAL = "{ORIGINAL_INSTRUCTIONS}"
_STATE_ONLY_SECONDS = 0.25


class McpToolset:
    def __init__(
        self, environment: Environment, network: Network, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment, self._network, self.clock = environment, network, clock
        self._open: set[McpServer] = set()
        self._guard = OrphanGuard()
        self._sweeper: asyncio.Task[None] | None = None

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return McpServer(self, server_spec(spec), place)

    async def connect(self, server: McpServer) -> Connection:
        """Raises ServerUnavailable."""
        # Before anything is awaited: of many that start at once, each must see the others.
        idlest = self._take_place(server)
        try:
            if idlest is not None:
                await idlest.stop()
            # The SDK takes most of a second to import: only where an agent has a server.
            connection_class = await asyncio.to_thread(_connection_class)
            spec, lifecycle = server.spec, server.spec.lifecycle
            connection = connection_class(
                partial(self._transport, server),
                spec.name,
                start_seconds=lifecycle.start_seconds,
                call_seconds=lifecycle.call_seconds,
            )
            await connection.start()
        except BaseException:
            self._open.discard(server)
            raise
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._close_idle())
        return connection

    def scrub(self, text: str) -> str:
        return self._environment.secrets.scrub(text)

    def _transport(self, server: McpServer, connection: Connection) -> AbstractAsyncContextManager[Any]:
        from lastgood.engine.mcp.http_transport import RemoteServer, remote_transport
        from lastgood.engine.mcp.stdio_transport import ServerCommand, stdio_transport

        spec = server.spec
        if spec.is_remote:
            headers = spec.headers(self._environment)
            server_at = RemoteServer(spec.url, spec.transport, headers, spec.lifecycle.call_seconds)
            return remote_transport(server_at, spec.policy, self._network, connection.keep_refusal)
        folder = spec.folder(server.place.working_dir)
        command = ServerCommand(spec.words(), folder, spec.environment(self._environment), spec.config())
        return stdio_transport(command, connection.keep_process, self._guard)

    def _take_place(self, server: McpServer) -> McpServer | None:
        """Returns the server that has to be stopped for it, whose place it has already."""
        alike = [one for one in self._open if one.is_like(server)]
        idlest: McpServer | None = None
        if len(alike) >= MOST_OF_ONE_SERVER:
            idlest = min((one for one in alike if one.is_idle), key=lambda one: one.used_at, default=None)
            if idlest is None:
                raise ServerLimit(
                    f"{MOST_OF_ONE_SERVER} sessions use this server now, which is the limit; try again later"
                )
            self._open.discard(idlest)
        self._open.add(server)
        return idlest

    def forget(self, server: McpServer) -> None:
        self._open.discard(server)

    async def _close_idle(self) -> None:
        while self._open:
            await asyncio.sleep(IDLE_SECONDS / 10)
            for server in list(self._open):
                # Looked at only now: it may have been called while another one was stopped.
                if server.is_idle and self.clock() - server.used_at > IDLE_SECONDS:
                    await server.stop()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(server.stop() for server in list(self._open)))
        await self._guard.close()


class McpServer:
    """One server of one session."""

    def __init__(self, toolset: McpToolset, spec: ServerSpec, place: SessionPlace) -> None:
        self._toolset, self.spec, self.place = toolset, spec, place
        self._connection: Connection | None = None
        self._starting = asyncio.Lock()
        self._failures = 0  # since a call succeeded
        self._problem = self._end = ""
        self._not_before = 0.0
        self._answered: set[str] = set()  # the short ids of the calls that this connection got
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
        wanted = [tool for tool in listed if tool.name and (chosen is None or tool.name in chosen)]
        usable, left_out = usable_tools(wanted)
        own, theirs = self.spec.spec.instruction, connection.instructions
        instruction = own.replace(_ORIGINAL, theirs) if own else theirs
        if left_out:
            instruction += f"\nTools of MCP server {self.spec.name} that are left out: {', '.join(left_out)}"
        return Offer(tuple(map(self._tool, usable)), instruction.strip(), label=tool_name(self.spec.name, ""))

    async def _connected(self) -> Connection:
        async with self._starting:
            self.used_at = self._toolset.clock()
            if self._connection is not None and not self._connection.is_broken:
                return self._connection
            await self._bury()
            if self._end:
                raise ServerUnavailable(f"{self._problem}; {self._end}")
            if self._failures and self.used_at < self._not_before:
                raise ServerUnavailable(self._problem)
            try:
                self._connection = await self._toolset.connect(self)
            except ServerLimit:
                raise
            except ServerUnavailable as error:
                self._note_failure(str(error), self._pause(self._failures + 1))
                raise
            self._answered = set()
            return self._connection

    async def _bury(self) -> None:
        """A server that ended by itself has failed; one that was stopped here has not."""
        connection = self._connection
        if connection is None:
            return
        try:
            await self._drop()
        finally:
            # Also if the turn is cancelled meanwhile. The first restart is at once: a server that runs well
            # may have one call that kills it.
            self._note_failure(connection.why_ended, self._pause(self._failures) if self._failures else 0.0)
        if connection.exit_code == 0 and not self.spec.lifecycle.restarts_after_success:
            self._end = "it exited with code 0, and its `lifecycle` has `restart: on_failure`"

    def _note_failure(self, problem: str, pause: float) -> None:
        self._failures += 1
        self._problem, self._not_before = problem, self._toolset.clock() + pause
        self._end = self.spec.lifecycle.why_spent(self._failures)
        log.warning(
            "MCP server %s of session %s is not available: %s", self.spec.name, self.place.session, problem
        )

    def _pause(self, failures: int) -> float:
        return self.spec.lifecycle.pause(failures, random.random())

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
        note = ""
        if not self.spec.is_remote:
            note = restart_note(use.messages, use.program_tools, self._answered)
        try:
            result = await self._result(connection, name, use)
            self._failures = 0
            scrub = self._toolset.scrub
            return await in_thread(lambda _: text_of(result, use.working_dir, scrub)) + note
        except ToolFailed as error:
            raise type(error)(f"{error}{note}") from None
        finally:
            if connection is self._connection:
                self._answered.add(short_id(use.key))
            self.used_at = self._toolset.clock()

    async def _result(self, connection: Connection, name: str, use: ToolUse) -> Any:
        """NeedsInput: the server needs input from a person before it continues."""
        from mcp_types import InputRequiredResult

        from lastgood.engine.mcp.elicitation import next_question, state_of, with_answer

        state: Mapping[str, Any] | None = None
        if use.answer is not None and use.answer.is_about_input and use.answer.state is not None:
            state = with_answer(use.answer.state, use.answer)
        progress = ProgressNotices(use.say)
        while True:
            if state is not None and (question := next_question(state, self.spec.name)) is not None:
                raise question
            result = await connection.call(
                name, use.arguments, key=use.key, attempt=use.attempt_number, progress=progress, state=state
            )
            if not isinstance(result, InputRequiredResult):
                return result
            state = state_of(result, state, self.spec.name)
            if not state["requests"]:
                await asyncio.sleep(_STATE_ONLY_SECONDS)  # it only wants to be called again


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
    from lastgood.engine.mcp.server_connection import Connection

    return Connection
