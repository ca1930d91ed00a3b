"""The asynchronous client: one method per call of the API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from lastgood.client.events import Event, TurnCommittedEvent, TurnFailedEvent
from lastgood.client.models import (
    AgentInfo,
    AttemptInfo,
    BranchInfo,
    QueuedInfo,
    Said,
    TurnInfo,
    agent_of,
    as_messages,
    attempt_of,
    branch_of,
    queued_of,
    read,
    read_all,
)
from lastgood.client.session_calls import SessionCalls, given, key_headers
from lastgood.client.stream import Accepted, TurnStream, path_of
from lastgood.client.transport import ApiCall, Transport, escaped
from lastgood.client.work_calls import WorkCalls
from lastgood.errors import TurnFailed, error_of


class SendOptions(TypedDict, total=False):
    """Options of a turn. Requests with the same idempotency `key` run once, whichever process sends them."""

    agent: str | None  # None: the session's own agent
    model: str | None  # for this turn and every later one
    key: str | None
    user: str | None  # the end user behind the token
    expected_head: str | None  # raises StaleHead if the session has another last turn
    after: str | None  # replace the turns after this one; None: replace all turns


class AsyncClient(SessionCalls, WorkCalls):
    """`url` is http://HOST:PORT, https://… or unix:///PATH. `timeout` is how many seconds a call or a stream
    waits for a server that stopped responding; a server that never responded is not waited for.

    Calls are retried automatically where that is safe. Turns, appends, resets, steers and follow-ups always
    are: they carry an idempotency key, the caller's or a random one.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0) -> None:
        self._connection = Transport(url, token, timeout)
        self._following = TurnStream(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    # -- agents ----------------------------------------------------------------------------

    async def agents(self) -> tuple[AgentInfo, ...]:
        found = await self._call(ApiCall("GET", "/api/agents"))
        return read_all(agent_of, found.plain)

    async def agent(self, key: str) -> AgentInfo:
        return read(agent_of, (await self._call(ApiCall("GET", f"/api/agents/{escaped(key)}"))).plain)

    # -- runs ------------------------------------------------------------------------------

    async def run(
        self, session: str, said: Said, **asked: Unpack[SendOptions]
    ) -> AsyncGenerator[Event, None]:
        """Runs a turn and yields its events up to the end of the turn, then StreamStoppedEvent.

        The request is sent when the first event is read. The turn keeps running if the caller stops reading.
        If its server dies, the stream continues with the next attempt: a TurnFailedEvent with the status
        `interrupted` may be followed by another StreamStartedEvent.
        """
        accepted = await self.submit(session, said, **asked)
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                yield event

    async def ask(self, session: str, said: Said, **asked: Unpack[SendOptions]) -> TurnInfo:
        """Runs a turn and returns it when it is committed. Raises the error if it fails."""
        accepted = await self.submit(session, said, **asked)
        end: TurnCommittedEvent | TurnFailedEvent | None = None
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                if isinstance(event, TurnCommittedEvent | TurnFailedEvent):
                    end = event
        if isinstance(end, TurnCommittedEvent):
            return await self.turn(session, end.turn)
        error = error_of(end.code, end.message) if end else TurnFailed()
        error.retryable = end.is_retryable if end else None
        error.detail = {"session": session, "turn": accepted.turn, "attempt": end and end.attempt}
        raise error

    async def submit(self, session: str, said: Said, **asked: Unpack[SendOptions]) -> Accepted:
        """Starts a turn and returns when the server has accepted it. `follow` yields its events."""
        if unknown := set(asked) - set(SendOptions.__annotations__):
            raise TypeError(
                f"unexpected keyword argument {min(unknown)!r}; use {', '.join(SendOptions.__annotations__)}"
            )
        named = {name: asked.get(name) for name in ("agent", "model", "user")}
        body = {"messages": as_messages(said)} | given(named)
        if "after" in asked:  # None is not the same as leaving it out
            body["after"] = asked["after"]
        headers = key_headers(asked.get("key"), asked.get("expected_head"))
        call = ApiCall("POST", path_of(session, "turns"), body, headers)
        return await self._following.accept(call, session, await self.get(session))

    async def follow(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        async with aclosing(self._following.follow(accepted)) as events:
            async for event in events:
                yield event

    async def events(self, session: str, since: int | None = None) -> AsyncGenerator[Event, None]:
        """Yields the events of a session after the number `since`. None: from the oldest stored event."""
        async with aclosing(self._following.events(session, since)) as events:
            async for event in events:
                yield event

    async def turn(self, session: str, turn: str) -> TurnInfo:
        """Returns a committed turn by its id, also one that an edit has replaced."""
        return await self._following.turn(session, turn)

    async def turn_at(self, session: str, seq: int) -> TurnInfo:
        """Returns the committed turn with this number; the first is 1. An edit can put another turn there."""
        return await self._following.turn_at(session, seq)

    async def branches(self, session: str) -> tuple[BranchInfo, ...]:
        """Returns the branches: turns that edits have replaced, oldest first."""
        return await self._pages(branch_of, path_of(session, "branches"))

    async def cancel(self, session: str) -> AttemptInfo | None:
        """Cancels the running attempt and returns it. It may have ended before the request arrived. None: it
        was the turn of an agent on a runtime, and no worker had claimed it yet."""
        answer = await self._call(ApiCall("POST", path_of(session, "cancel"), repeatable=False))
        return read(attempt_of, answer.plain) if "id" in answer.plain else None

    async def resume(
        self, session: str, confirmation: str, *, reason: str = "", question: str | None = None
    ) -> None:
        """Answers a pending question: `approve`, `approve-tool`, `approve-session` or `reject`.

        Raises NothingPending if it is not pending any more.
        """
        body = {"confirmation": confirmation, "reason": reason, "question": question}
        await self._call(ApiCall("POST", path_of(session, "resume"), body, repeatable=False))

    async def elicitation(
        self,
        session: str,
        action: str,
        content: Mapping[str, Any] | None = None,
        *,
        question: str | None = None,
    ) -> None:
        """Answers a question that a tool asked: `accept` (with `content`), `decline` or `cancel`.

        Raises NothingPending if it is not pending any more.
        """
        body = {"action": action, "content": content, "elicitation_id": question}
        await self._call(ApiCall("POST", path_of(session, "elicitation"), body, repeatable=False))

    async def continue_(self, session: str, attempt: str) -> AsyncGenerator[Event, None]:
        """Retries the turn of a failed attempt from its last finished step, and yields events like `run`."""
        call = ApiCall("POST", path_of(session, "attempts", attempt, "continue"), repeatable=False)
        accepted = await self._following.accept(call, session, await self.get(session))
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                yield event

    # -- queue -----------------------------------------------------------------------------

    async def steer(self, session: str, said: Said, *, key: str | None = None) -> QueuedInfo:
        """Sends messages to the running turn."""
        return await self._later("steer", session, {"messages": as_messages(said)}, key)

    async def followup(
        self,
        session: str,
        said: Said,
        *,
        agent: str | None = None,
        model: str | None = None,
        user: str | None = None,
        key: str | None = None,
    ) -> QueuedInfo:
        """Queues a turn that runs after the current one and after earlier queue entries."""
        body = {"messages": as_messages(said)} | given({"agent": agent, "model": model, "user": user})
        return await self._later("followup", session, body, key)

    async def _later(self, kind: str, session: str, body: Mapping[str, Any], key: str | None) -> QueuedInfo:
        answer = await self._call(ApiCall("POST", path_of(session, kind), body, key_headers(key, None)))
        return read(queued_of, answer.plain)

    async def queue(self, session: str) -> tuple[QueuedInfo, ...]:
        answer = await self._call(ApiCall("GET", path_of(session, "queue")))
        return tuple(read(queued_of, plain) for plain in answer.plain["items"])

    async def drop(self, session: str, number: int) -> None:
        """Deletes a queue entry."""
        await self._call(ApiCall("DELETE", path_of(session, "queue", str(number)), repeatable=False))

    async def retry(self, session: str, number: int) -> None:
        """Retries a parked queue entry."""
        await self._call(ApiCall("POST", path_of(session, "queue", str(number), "retry"), repeatable=False))
