"""The calls of a server, for code that awaits them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from lastgood.client.events import Event, TurnCommitted, TurnFailed
from lastgood.client.models import (
    AgentInfo,
    AttemptInfo,
    BranchInfo,
    QueuedInfo,
    Said,
    SessionInfo,
    SessionList,
    TurnInfo,
    agent_of,
    as_messages,
    attempt_of,
    branch_of,
    queued_of,
    read,
    read_all,
    session_of,
    turn_of,
)
from lastgood.client.stream import Accepted, TurnStream, path_of
from lastgood.client.transport import ApiCall, ApiResponse, Transport, escaped, visible, with_query
from lastgood.errors import AnswerLost, SessionNotFound, error_of
from lastgood.errors import TurnFailed as TurnFailedError

_PAGE = 200
_T = TypeVar("_T")


class SendOptions(TypedDict, total=False):
    """How something is said. `key`: sent again under it, it is done once, also by another process."""

    agent: str | None  # None: the session's own
    model: str | None  # of this turn and every later one
    key: str | None
    user: str | None  # for whom it is said
    expected_head: str | None  # the head that it must find, else StaleHead
    after: str | None  # go on from this turn, and replace what follows it; None: replace every turn


class AsyncClient:
    """`url`: http://HOST:PORT, https://… or unix:///PATH. `timeout`: seconds that a server may be away before
    a call or a stream gives it up; one that was never there is given up at once.

    Calls are made again by themselves where that is safe. Every turn, append, reset, steer and follow-up
    has an idempotency key, the caller's or one of our own, so they are.
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

    # -- sessions --------------------------------------------------------------------------

    async def create(
        self,
        agent: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        working_dir: str | None = None,
        permissions: Mapping[str, Sequence[str]] | None = None,
        safety: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionInfo:
        """Without an agent: the one that is served, or, if there are several, that of the first turn."""
        fields = {
            "agent": agent,
            "title": title,
            "model": model,
            "working_dir": working_dir,
            "permissions": permissions,
            "safety": safety,
            "metadata": metadata,
        }
        body = _given(fields)
        return await self._session(ApiCall("POST", "/api/sessions", body, repeatable=False))

    async def list(
        self, *, query: str = "", agent: str | None = None, status: str | None = None
    ) -> AsyncGenerator[SessionInfo, None]:
        """All of them, newest first, page by page as they are asked for."""
        cursor: int | None = None
        while True:
            page = await self.page(limit=_PAGE, cursor=cursor, query=query, agent=agent, status=status)
            for session in page.sessions:
                yield session
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(
        self,
        *,
        limit: int = 50,
        cursor: int | None = None,
        query: str = "",
        agent: str | None = None,
        status: str | None = None,
    ) -> SessionList:
        asked = {"limit": limit, "cursor": cursor, "q": query or None, "agent": agent, "status": status}
        answer = await self._call(ApiCall("GET", with_query("/api/sessions", asked)))
        after = answer.headers.get("x-next-cursor")
        return SessionList(read_all(session_of, answer.plain), None if after is None else int(after))

    async def get(self, session: str) -> SessionInfo:
        return await self._following.session(session)

    async def delete(self, session: str) -> None:
        """Cancels what runs; then the session is gone."""
        try:
            await self._call(ApiCall("DELETE", path_of(session), repeatable=False))
        except AnswerLost:
            try:
                await self._call(ApiCall("DELETE", path_of(session)))
            except SessionNotFound:
                return  # the answer was lost, and it was done

    async def fork(
        self, session: str, *, turn: str | None = None, user_message_index: int | None = None
    ) -> SessionInfo:
        """A session that goes on from a turn, or from before a message of the user's; else from the head."""
        body = _given({"turn": turn, "user_message_index": user_message_index})
        return await self._session(ApiCall("POST", path_of(session, "fork"), body, repeatable=False))

    async def reset(
        self, session: str, *, key: str | None = None, expected_head: str | None = None
    ) -> SessionInfo:
        """Its turns are kept, but its agent does not see them any more."""
        headers = _headers(key, expected_head)
        return await self._session(ApiCall("POST", path_of(session, "reset"), headers=headers))

    async def append(
        self, session: str, said: Said, *, key: str | None = None, expected_head: str | None = None
    ) -> TurnInfo:
        """Messages without a model call, as a turn of their own."""
        body = {"messages": as_messages(said)}
        headers = _headers(key, expected_head)
        answer = await self._call(ApiCall("POST", path_of(session, "messages"), body, headers))
        return read(turn_of, answer.plain)

    async def rebind(self, session: str, agent: str) -> SessionInfo:
        return await self._session(ApiCall("POST", path_of(session, "rebind"), {"agent": agent}))

    async def rename(self, session: str, title: str) -> SessionInfo:
        return await self._set(session, "title", {"title": title})

    async def star(self, session: str, starred: bool = True) -> SessionInfo:
        return await self._set(session, "starred", {"starred": starred})

    async def set_metadata(self, session: str, metadata: Mapping[str, Any]) -> SessionInfo:
        return await self._set(session, "metadata", {"metadata": metadata})

    async def set_model(self, session: str, model: str | None) -> SessionInfo:
        """Of every later turn; None: the agent's own."""
        return await self._set(session, "model", {"model": model})

    async def set_permissions(
        self,
        session: str,
        *,
        allow: Sequence[str] | None = None,
        ask: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
    ) -> SessionInfo:
        """Replaces the rules. A given list must have the rules that stronger scopes set (Forbidden if not);
        a list that is left out is cleared, but for those."""
        rules = _given({"allow": allow, "ask": ask, "deny": deny})
        return await self._set(session, "permissions", {"permissions": rules})

    async def set_safety(self, session: str, safety: str | None) -> SessionInfo:
        """None: the server's own."""
        return await self._set(session, "safety-policy", {"safety_policy": safety})

    async def _set(self, session: str, field: str, body: Mapping[str, Any]) -> SessionInfo:
        return await self._session(ApiCall("PATCH", path_of(session, field), body))

    async def export(self, session: str) -> dict[str, Any]:
        """All of it as a document, which any server can import."""
        document: dict[str, Any] = (await self._call(ApiCall("GET", path_of(session, "export")))).plain
        return document

    def export_pieces(self, session: str) -> AsyncGenerator[bytes, None]:
        """The same document as it comes, for a history that is too large for memory. AnswerLost in the
        middle: what came until then is not a whole document."""
        return self._connection.pieces(path_of(session, "export"))

    async def import_(self, document: Mapping[str, Any]) -> SessionInfo:
        return await self._session(ApiCall("POST", "/api/sessions/import", document, repeatable=False))

    async def turns(self, session: str) -> tuple[TurnInfo, ...]:
        """All that are committed, in order."""
        return await self._pages(turn_of, path_of(session, "turns"))

    async def attempts(self, session: str) -> tuple[AttemptInfo, ...]:
        """Every try, in order."""
        return await self._pages(attempt_of, path_of(session, "attempts"))

    async def attempt(self, session: str, attempt: str) -> AttemptInfo:
        return await self._following.attempt(session, attempt)

    async def _pages(self, make: Callable[[Any], _T], path: str) -> tuple[_T, ...]:
        found: list[_T] = []
        cursor = "0"
        while True:
            answer = await self._call(ApiCall("GET", f"{path}?limit={_PAGE}&cursor={cursor}"))
            found += read_all(make, answer.plain)
            if "x-next-cursor" not in answer.headers:
                return tuple(found)
            cursor = answer.headers["x-next-cursor"]

    # -- runs ------------------------------------------------------------------------------

    async def run(
        self, session: str, said: Said, **asked: Unpack[SendOptions]
    ) -> AsyncGenerator[Event, None]:
        """Says something, and tells what happens to the end: TurnCommitted or TurnFailed, then StreamStopped.

        Nothing is sent before the first event is asked for. Whoever stops listening leaves: the turn goes
        on. A turn whose server dies is followed into its next attempt, so a TurnFailed with the status
        `interrupted` may be followed by another StreamStarted.
        """
        accepted = await self.submit(session, said, **asked)
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                yield event

    async def ask(self, session: str, said: Said, **asked: Unpack[SendOptions]) -> TurnInfo:
        """Says something and waits for the committed turn; raises what it failed with."""
        accepted = await self.submit(session, said, **asked)
        end: TurnCommitted | TurnFailed | None = None
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                if isinstance(event, TurnCommitted | TurnFailed):
                    end = event
        if isinstance(end, TurnCommitted):
            return await self.turn(session, end.turn)
        error = error_of(end.code, end.message) if end else TurnFailedError()
        error.retryable = end.is_retryable if end else None
        error.detail = {"session": session, "turn": accepted.turn, "attempt": end and end.attempt}
        raise error

    async def submit(self, session: str, said: Said, **asked: Unpack[SendOptions]) -> Accepted:
        """Says something and returns when the server has promised the turn; `follow` tells the rest."""
        if unknown := set(asked) - set(SendOptions.__annotations__):
            raise TypeError(
                f"unexpected keyword argument {min(unknown)!r}; use {', '.join(SendOptions.__annotations__)}"
            )
        named = {name: asked.get(name) for name in ("agent", "model", "user")}
        body = {"messages": as_messages(said)} | _given(named)
        if "after" in asked:  # None is not the same as leaving it out
            body["after"] = asked["after"]
        headers = _headers(asked.get("key"), asked.get("expected_head"))
        call = ApiCall("POST", path_of(session, "turns"), body, headers)
        return await self._following.accept(call, session, await self.get(session))

    async def follow(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        async with aclosing(self._following.follow(accepted)) as events:
            async for event in events:
                yield event

    async def events(self, session: str, since: int | None = None) -> AsyncGenerator[Event, None]:
        """Everything that happens in a session after a number; None: from the oldest event that is kept."""
        async with aclosing(self._following.events(session, since)) as events:
            async for event in events:
                yield event

    async def turn(self, session: str, turn: str) -> TurnInfo:
        """A committed turn by its id, also one that an edit has replaced."""
        return await self._following.turn(session, turn)

    async def turn_at(self, session: str, seq: int) -> TurnInfo:
        """The committed turn with this number; the first is 1. After an edit it may be another one."""
        return await self._following.turn_at(session, seq)

    async def branches(self, session: str) -> tuple[BranchInfo, ...]:
        """What edits have replaced, oldest first."""
        return await self._pages(branch_of, path_of(session, "branches"))

    async def cancel(self, session: str) -> AttemptInfo:
        """Ends what runs, and says how it ended: it may have been too late."""
        answer = await self._call(ApiCall("POST", path_of(session, "cancel"), repeatable=False))
        return read(attempt_of, answer.plain)

    async def continue_(self, session: str, attempt: str) -> AsyncGenerator[Event, None]:
        """Tries the turn of a failed attempt again, after its finished steps; tells it like `run`."""
        call = ApiCall("POST", path_of(session, "attempts", attempt, "continue"), repeatable=False)
        accepted = await self._following.accept(call, session, await self.get(session))
        async with aclosing(self.follow(accepted)) as events:
            async for event in events:
                yield event

    # -- for later -------------------------------------------------------------------------

    async def steer(self, session: str, said: Said, *, key: str | None = None) -> QueuedInfo:
        """For the turn that runs."""
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
        """A turn of its own, after what runs and what waits."""
        body = {"messages": as_messages(said)} | _given({"agent": agent, "model": model, "user": user})
        return await self._later("followup", session, body, key)

    async def _later(self, kind: str, session: str, body: Mapping[str, Any], key: str | None) -> QueuedInfo:
        answer = await self._call(ApiCall("POST", path_of(session, kind), body, _headers(key, None)))
        return read(queued_of, answer.plain)

    async def queue(self, session: str) -> tuple[QueuedInfo, ...]:
        answer = await self._call(ApiCall("GET", path_of(session, "queue")))
        return tuple(read(queued_of, plain) for plain in answer.plain["items"])

    async def drop(self, session: str, number: int) -> None:
        """Takes something out of the queue."""
        await self._call(ApiCall("DELETE", path_of(session, "queue", str(number)), repeatable=False))

    async def retry(self, session: str, number: int) -> None:
        """Something that was parked, once more."""
        await self._call(ApiCall("POST", path_of(session, "queue", str(number), "retry"), repeatable=False))

    async def _session(self, call: ApiCall) -> SessionInfo:
        return read(session_of, (await self._call(call)).plain)

    async def _call(self, call: ApiCall) -> ApiResponse:
        return await self._connection.call(call)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _headers(key: str | None, expected_head: str | None) -> dict[str, str]:
    """A key of our own makes sending it again free."""
    headers = {"idempotency-key": secrets.token_hex(16) if key is None else visible(key, "the key")}
    if expected_head is not None:
        headers["if-match"] = visible(expected_head, "the expected head")
    return headers
