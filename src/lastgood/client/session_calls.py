"""Calls about sessions: create, list, read, change, fork, export and delete them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from lastgood.client.models import (
    AttemptInfo,
    Said,
    SessionInfo,
    SessionList,
    ToolCallInfo,
    TurnInfo,
    as_messages,
    attempt_of,
    read,
    read_all,
    session_of,
    tool_call_of,
    turn_of,
)
from lastgood.client.stream import TurnStream, path_of
from lastgood.client.transport import ApiCall, ApiResponse, Transport, visible, with_query
from lastgood.errors import ResponseLost, SessionNotFound

_PAGE = 200
_T = TypeVar("_T")


class SessionCalls:
    _connection: Transport
    _following: TurnStream

    async def create(
        self,
        agent: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        working_dir: str | None = None,
        runtime: str | None = None,
        permissions: Mapping[str, Sequence[str]] | None = None,
        safety: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionInfo:
        """Creates a session. Without `agent`, uses the only served agent, or the agent of the first turn.
        `runtime` binds it to a runtime; `working_dir` of an agent on a runtime is on its machine."""
        fields = {
            "agent": agent,
            "title": title,
            "model": model,
            "working_dir": working_dir,
            "runtime": runtime,
            "permissions": permissions,
            "safety": safety,
            "metadata": metadata,
        }
        body = given(fields)
        return await self._session(ApiCall("POST", "/api/sessions", body, repeatable=False))

    async def list(
        self, *, query: str = "", agent: str | None = None, status: str | None = None
    ) -> AsyncGenerator[SessionInfo, None]:
        """Yields all sessions, newest first. Pages are requested as needed."""
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
        """Cancels the running turn and deletes the session."""
        try:
            await self._call(ApiCall("DELETE", path_of(session), repeatable=False))
        except ResponseLost:
            try:
                await self._call(ApiCall("DELETE", path_of(session)))
            except SessionNotFound:
                return  # the first request was processed, only its response was lost

    async def fork(
        self, session: str, *, turn: str | None = None, user_message_index: int | None = None
    ) -> SessionInfo:
        """Creates a session that continues from `turn`, or from before a user message; default: the head."""
        body = given({"turn": turn, "user_message_index": user_message_index})
        return await self._session(ApiCall("POST", path_of(session, "fork"), body, repeatable=False))

    async def reset(
        self, session: str, *, key: str | None = None, expected_head: str | None = None
    ) -> SessionInfo:
        """Resets the context: the session keeps its turns, but the agent no longer sees them."""
        headers = key_headers(key, expected_head)
        return await self._session(ApiCall("POST", path_of(session, "reset"), headers=headers))

    async def append(
        self, session: str, said: Said, *, key: str | None = None, expected_head: str | None = None
    ) -> TurnInfo:
        """Commits messages as a turn of their own, without a model call."""
        body = {"messages": as_messages(said)}
        headers = key_headers(key, expected_head)
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
        """Sets the model of later turns. None restores the agent's own model."""
        return await self._set(session, "model", {"model": model})

    async def set_permissions(
        self,
        session: str,
        *,
        allow: Sequence[str] | None = None,
        ask: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
    ) -> SessionInfo:
        """Replaces the permission rules. Rules that stronger scopes set cannot be removed: a given list must
        contain them (else Forbidden), and a list that is omitted keeps only them."""
        rules = given({"allow": allow, "ask": ask, "deny": deny})
        return await self._set(session, "permissions", {"permissions": rules})

    async def set_safety(self, session: str, safety: str | None) -> SessionInfo:
        """Sets the safety mode. None restores the server's own."""
        return await self._set(session, "safety-policy", {"safety_policy": safety})

    async def _set(self, session: str, field: str, body: Mapping[str, Any]) -> SessionInfo:
        return await self._session(ApiCall("PATCH", path_of(session, field), body))

    async def export(self, session: str) -> dict[str, Any]:
        """Returns the session as a document that any Lastgood server can import."""
        document: dict[str, Any] = (await self._call(ApiCall("GET", path_of(session, "export")))).plain
        return document

    def export_pieces(self, session: str) -> AsyncGenerator[bytes, None]:
        """Streams the exported document, for histories that do not fit into memory.

        The document is incomplete if this raises ResponseLost.
        """
        return self._connection.pieces(path_of(session, "export"))

    async def import_(self, document: Mapping[str, Any]) -> SessionInfo:
        return await self._session(ApiCall("POST", "/api/sessions/import", document, repeatable=False))

    async def turns(self, session: str) -> tuple[TurnInfo, ...]:
        """Returns all committed turns, in order."""
        return await self._pages(turn_of, path_of(session, "turns"))

    async def attempts(self, session: str) -> tuple[AttemptInfo, ...]:
        """Returns all attempts, in order."""
        return await self._pages(attempt_of, path_of(session, "attempts"))

    async def tool_calls(self, session: str) -> tuple[ToolCallInfo, ...]:
        """Returns the ledger: every tool call of every attempt, in order."""
        return await self._pages(tool_call_of, path_of(session, "effects"))

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

    async def _session(self, call: ApiCall) -> SessionInfo:
        return read(session_of, (await self._call(call)).plain)

    async def _call(self, call: ApiCall) -> ApiResponse:
        return await self._connection.call(call)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def key_headers(key: str | None, expected_head: str | None) -> dict[str, str]:
    """Without a caller's key, a random one makes retries safe."""
    headers = {"idempotency-key": secrets.token_hex(16) if key is None else visible(key, "the key")}
    if expected_head is not None:
        headers["if-match"] = visible(expected_head, "the expected head")
    return headers
