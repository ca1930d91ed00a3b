"""Faults at the seams: every store call, every model call and every tool call is a named point.

Nothing in the product knows about this: the wrappers stand where the ports are.
A point is `store.<method>`, `model.call`, `model.chunk`, `model.answer`,
`tool.start` or `tool.end`; a fault strikes at one hit of one point.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall, Provider
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import ModelError, OutcomeUnknown, StoreUnavailable
from lastgood.model.ids import SessionId
from lastgood.model.sessions import EncodedTurn
from lastgood.ports import Renew, Store
from tests.engines import Kit


class Mode(StrEnum):
    RAISE = "raise"  # it fails, and nothing happened
    LOST = "lost answer"  # it happens, and nobody is told
    SILENT = "lost call"  # it does not happen, and nobody is told that either
    CANCEL = "cancel"  # somebody cancels the turn at this moment
    STALL = "stall past the lease"
    LATE = "late answer"  # it happens, and the answer comes past the lease
    KILL = "kill -9"


@dataclass(slots=True)
class Faults:
    """What strikes where. `hook` is asked at every point; the default strikes once."""

    point: str = ""
    mode: Mode | None = None
    hit: int = 1
    stall_seconds: float = 0.0
    cancel: Callable[[], None] | None = None
    dead: bool = False  # a simulated node: from now on nothing returns
    struck: bool = False
    hits: Counter[str] = field(default_factory=Counter)
    jitter: Callable[[str], Awaitable[Mode | None]] | None = None

    async def before(self, point: str) -> Mode | None:
        """Strikes before the call; returns the mode if it strikes after it."""
        if self.dead:
            await asyncio.get_running_loop().create_future()
        mode: Mode | None = None
        if self.jitter is not None:
            mode = await self.jitter(point)
        self.hits[point] += 1
        if point == self.point and self.hits[point] == self.hit:
            self.struck = True
            mode = self.mode
        if self.dead:
            await asyncio.get_running_loop().create_future()
        match mode:
            case Mode.RAISE:
                raise _error_at(point)
            case Mode.SILENT:
                raise OutcomeUnknown() if point.startswith("store.") else _error_at(point)
            case Mode.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Mode.STALL:
                await asyncio.sleep(self.stall_seconds)  # real time: the length of the stall
            case Mode.CANCEL if self.cancel is not None:
                self.cancel()
        return mode

    async def after(self, point: str, mode: Mode | None) -> None:
        if self.dead:
            await asyncio.get_running_loop().create_future()
        if mode is Mode.LATE:
            await asyncio.sleep(self.stall_seconds)  # real time: the length of the stall
        if mode is Mode.LOST:
            raise OutcomeUnknown() if point.startswith("store.") else _error_at(point)


def _error_at(point: str) -> Exception:
    if point.startswith("store."):
        return StoreUnavailable()
    if point.startswith("model."):
        return ModelError("the provider failed")
    return RuntimeError("the tool broke")


#: Reads have no effect that an answer could be lost of.
READS = frozenset(
    {
        "get_session",
        "find_conversation",
        "locate_session",
        "locate_conversation",
        "find_token",
        "get_token",
        "list_tokens",
        "list_sessions",
        "read_turns",
        "find_turn",
        "look_up",
        "expired_attempts",
        "running_attempts",
        "interrupted_asks",
        "get_attempt",
        "list_attempts",
        "newest_attempt",
        "read_request",
        "read_steps",
        "read_events",
        "count_forks",
        "walk_sessions",
        "read_queue",
        "steers_of",
        "waiting_queues",
        "list_runtimes",
        "get_runtime",
        "get_binding",
        "find_scope",
        "look_up_task",
        "get_task",
        "task_of_turn",
        "list_tasks",
        "open_tasks",
        "find_claim",
        "read_messages",
        "list_pointers",
        "get_snapshot",
        "summary_of_snapshot",
        "newest_snapshot",
    }
)


class FaultyStore:
    """Any store, with a point at every method. Its reads fail plainly: they have no answer to lose."""

    alone = False

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def renewals(self) -> AbstractAsyncContextManager[Renew]:
        return self._store.renewals()

    def hint(self, session: SessionId) -> None:
        self._store.hint(session)

    def on_hint(self, callback: Callable[[SessionId], None]) -> None:
        self._store.on_hint(callback)

    async def stream_turns(self, *args: Any, **kwargs: Any) -> AsyncGenerator[EncodedTurn, None]:
        """Faults come before its first turn."""
        try:
            await self._faults.before("store.stream_turns")
        except OutcomeUnknown:
            raise StoreUnavailable() from None
        async with aclosing(self._store.stream_turns(*args, **kwargs)) as turns:
            async for turn in turns:
                yield turn

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)
        point = f"store.{name}"

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                mode = await self._faults.before(point)
                result = await method(*args, **kwargs)
                await self._faults.after(point, mode)
            except OutcomeUnknown:
                if name in READS:
                    raise StoreUnavailable() from None
                raise
            return result

        return call


class _FaultyProvider:
    def __init__(self, provider: Provider, faults: Faults) -> None:
        self._provider = provider
        self._faults = faults

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        await self._faults.before("model.call")
        async for part in self._provider.stream(call):
            point = "model.answer" if isinstance(part, ModelAnswer) else "model.chunk"
            mode = await self._faults.before(point)
            await self._faults.after(point, mode)
            yield part


def _faulty_tool(tool: Tool, faults: Faults) -> Tool:
    async def run(use: ToolUse) -> str:
        await faults.before("tool.start")
        result = await tool.run(use)
        mode = await faults.before("tool.end")
        await faults.after("tool.end", mode)
        return result

    return replace(tool, run=run)


def faulty_engine(kit: Kit, faults: Faults) -> AgentLoop:
    """The real loop over models and tools with points."""
    return replace(
        kit,
        providers={name: _FaultyProvider(provider, faults) for name, provider in kit.providers.items()},
        tools=[_faulty_tool(tool, faults) for tool in kit.tools],
    ).engine()
