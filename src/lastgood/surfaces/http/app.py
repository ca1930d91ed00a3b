"""The ASGI app: a list of routes, and the steps of every request on its way to one.

    request id → route → access (host, origin, media type) → token and scope → handler

Expected errors become responses here, once, by the table in `error_responses`; anything else is a
500 that reveals no internals and is logged with its request id.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from lastgood.errors import (
    AgentInvalid,
    AgentUnavailable,
    Forbidden,
    InvalidRequest,
    LastgoodError,
    MethodNotAllowed,
    NotFound,
    SessionNotFound,
    TaskNotFound,
    Unauthorized,
)
from lastgood.model.tokens import Scope as TokenScope
from lastgood.surfaces.http.access import AccessControl
from lastgood.surfaces.http.asgi import (
    Broken,
    ClientGone,
    Handler,
    Receive,
    Reply,
    Request,
    Response,
    Scope,
    Send,
    request_of,
    segments,
)
from lastgood.surfaces.http.error_responses import ErrorDialect, ErrorDialects, dialect_of
from lastgood.surfaces.http.loop_monitor import mark_request
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.responses import send_reply, send_stream, skip_stream

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: An agent key may be a URL, escaped twice. Nothing longer is a valid name.
_LONGEST_SEGMENT = 4096

#: Conditional headers. A client would take one that the route ignores for one that holds.
_CONDITIONS = ("if-match", "if-none-match", "if-unmodified-since", "idempotency-key")

#: JSON schema by media type; None: no schema.
Contents = Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has parameters like `{session}`. Without `scope`, no token is required."""

    method: str
    path: str
    handler: Handler
    scope: TokenScope | None
    summary: str
    limit_bytes: int = 8 * 1024 * 1024
    takes: Mapping[str, Any] | None = None  # JSON schema of the body
    #: Headers it supports: description and JSON schema.
    headers: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    query: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    may_be_empty: bool = False  # the body is optional
    gives: Mapping[int, Contents] = field(default_factory=dict)
    probe: bool = False  # health checks; exempt from the Host check
    #: A page for people: its POST takes a form of our own pages, and /openapi.json does not list it.
    is_page: bool = False
    takes_programs: bool = False  # its form also comes from programs, which show no page
    errors: ErrorDialect | None = None  # None: by its path
    takes_task_token: bool = False  # for the task and the session of the token

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])


class ResponseEnd(StrEnum):
    SENT = "sent"
    LEFT = "left"  # the client disconnected before the end
    BROKEN = "broken"  # the stream ended with an error


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One request, for logs and metrics. Contains no content."""

    request: Request
    route: Route | None
    status: int
    ended: ResponseEnd
    seconds: float


class App:
    """`running`: number of requests in progress."""

    def __init__(
        self,
        routes: Sequence[Route],
        access: AccessControl,
        *,
        on_seen: Callable[[AnsweredRequest], None],
        dialects: ErrorDialects,
        ping_seconds: float = 15.0,
    ) -> None:
        self._table = _table(routes)
        self._access = access
        self._on_seen = on_seen
        self._dialects = dialects
        self._ping_seconds = ping_seconds
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching_ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0

    @property
    def routes(self) -> Sequence[Route]:
        return [route for routes in self._table.values() for route in routes]

    # -- shutdown ---------------------------------------------------------------------

    async def until_idle(self, seconds: float) -> None:
        """Waits until no request is in progress, at most that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return

    def end_watching(self) -> None:
        """Ends streams that only watch a session."""
        if not self._watching_ends.done():
            self._watching_ends.set_result(None)

    def end(self) -> None:
        """Ends all requests in progress with `shutting_down`; streams in their last frame."""
        self.end_watching()
        if not self._ending.done():
            self._ending.set_result(None)

    # -- one request -------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        request = request_of(scope, receive, secrets.token_hex(8), self._ending)
        given = request.headers.get("x-request-id", "")
        if _REQUEST_ID.fullmatch(given):
            request.id = given
        mark_request(request.id)
        route: Route | None = None
        status, ended = 499, ResponseEnd.LEFT
        self.running += 1
        self._idle.clear()
        try:
            route, answer = await self._answer(request)
            status, ended = await self._send(send, request, answer)
        except ClientGone:
            pass  # the client has disconnected
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
            self._on_seen(AnsweredRequest(request, route, status, ended, time.perf_counter() - began))

    async def _answer(self, request: Request) -> tuple[Route | None, Response]:
        route: Route | None = None
        try:
            request.check()
            preflight = self._access.preflight(request)
            if preflight is not None:
                return None, preflight
            route, allowed = self._find(request)
            self._access.check(
                request,
                is_probe=route is not None and route.probe,
                takes_form=route is not None and route.is_page,
                takes_programs=route is not None and route.takes_programs,
            )
            if route is None:
                return None, _without_route(request, allowed)
            request.limit_bytes = route.limit_bytes
            if route.scope is not None:
                await self._caller(request, route, route.scope)
                request.check_caller = partial(self._caller, request, route, route.scope)
            _check_conditions(request, route)
            return route, await route.handler(request)
        except ClientGone:
            raise
        except Exception as error:
            return route, self._error_reply(request, _public_error(request, error), route)

    async def _send(self, send: Send, request: Request, answer: Response) -> tuple[int, ResponseEnd]:
        """Returns the status, and how the response ended."""
        headers = {
            "x-request-id": request.id,
            "x-content-type-options": "nosniff",
            **self._access.cors_headers(request),
        }
        is_head = request.method == "HEAD"
        if isinstance(answer, Reply):
            await send_reply(send, answer, headers, has_body=not is_head)
            return answer.status, ResponseEnd.SENT
        if is_head:
            await skip_stream(send, answer, headers)
            return answer.status, ResponseEnd.SENT
        if answer.only_watches:
            request.ending = self._watching_ends

        def last_words(error: Exception) -> bytes:
            if isinstance(error, Broken):
                request.failure = error.code
                return error.last
            shown = _public_error(request, error)
            request.failure = shown.code
            return dialect_of(request.raw_path, self._dialects).last_frame(shown, request)

        try:
            is_there = await send_stream(send, request, answer, headers, self._ping_seconds, last_words)
        except ClientGone:
            raise
        except Exception as error:  # before it has begun
            if isinstance(error, Broken):
                reply, request.failure = error.reply, error.code
            else:
                reply = self._error_reply(request, _public_error(request, error))
            await send_reply(send, reply, headers)
            return reply.status, ResponseEnd.SENT
        if not is_there:
            return answer.status, ResponseEnd.LEFT
        return answer.status, ResponseEnd.BROKEN if request.failure else ResponseEnd.SENT

    def _error_reply(self, request: Request, error: LastgoodError, route: Route | None = None) -> Reply:
        request.failure = error.code
        own = route.errors if route is not None else None
        reply = (own or dialect_of(request.raw_path, self._dialects)).reply(error, request)
        if isinstance(error, MethodNotAllowed):
            return replace(reply, headers={**reply.headers, "allow": error.detail["allow"]})
        if isinstance(error, Unauthorized):
            return replace(reply, headers={**reply.headers, "www-authenticate": "Bearer"})
        return reply

    async def _caller(self, request: Request, route: Route, scope: TokenScope) -> Principal:
        caller = await self._access.caller(request)
        if caller is None and self._access.has_token(request):
            raise Unauthorized("Unknown, expired or revoked token; use another one")
        if caller is None:
            raise Unauthorized()
        request.caller = replace(caller, peer=request.peer)  # the log names also those who may not
        if not caller.may(scope):
            raise Forbidden(f"Token lacks the scope `{scope.value}`; use a token that has it")
        if caller.task is not None:
            _check_task_token(caller, request, route)
        return caller

    def _find(self, request: Request) -> tuple[Route | None, set[str]]:
        """Returns the route, or None and the methods that this path supports."""
        path = segments(request.raw_path)
        if any("\0" in segment for segment in path):
            raise InvalidRequest("The path contains a NUL character; remove it")
        if any(len(segment) > _LONGEST_SEGMENT for segment in path):
            raise InvalidRequest(f"A path segment exceeds {_LONGEST_SEGMENT} characters; shorten it")
        wanted = "GET" if request.method == "HEAD" else request.method
        allowed: set[str] = set()
        meant: str | None = None  # the first path that matches: no session has the id `import`
        for route in self._table.get(len(path), ()):
            filled = _fill(route.parts, path) if meant in (None, route.path) else None
            if filled is None:
                continue
            meant = route.path
            if route.method == wanted:
                request.path = filled
                return route, set()
            allowed |= {"GET", "HEAD"} if route.method == "GET" else {route.method}
        return None, allowed


def _check_task_token(caller: Principal, request: Request, route: Route) -> None:
    """What is not of its task looks like what does not exist."""
    if not route.takes_task_token:
        raise Forbidden("A task token may only read its own task and session; use another token")
    if request.path.get("task", caller.task) != caller.task:
        raise TaskNotFound()
    if request.path.get("session", caller.session) != caller.session:
        raise SessionNotFound()


def _check_conditions(request: Request, route: Route) -> None:
    if request.method in ("GET", "HEAD"):
        return
    for name in _CONDITIONS:
        if name in request.headers and name not in route.headers:
            raise InvalidRequest(f"`{name.title()}` is not supported on this route; remove it", param=name)
    if request.headers.get("if-none-match", "*").strip() != "*":
        raise InvalidRequest(
            "`If-None-Match` must be `*`: run only if the session has no turn", param="if-none-match"
        )


def _without_route(request: Request, allowed: set[str]) -> Reply:
    if not allowed:
        raise NotFound("Route not found; GET /openapi.json lists all routes")
    allow = ", ".join(sorted({*allowed, "OPTIONS"}))
    if request.method == "OPTIONS":
        return Reply(204, headers={"allow": allow})
    usable = " or ".join(sorted(allowed))
    raise MethodNotAllowed(f"Method not allowed on this route; use {usable}", allow=allow)


def _public_error(request: Request, error: Exception) -> LastgoodError:
    """Returns the error that the client may see. Details are logged with the request id."""
    if isinstance(error, AgentInvalid):
        # The request is fine. The path and content of the file are for the operator only.
        log.warning("invalid agent file: %s", error, extra={"fields": {"request_id": request.id}})
        return AgentUnavailable("The agent file has errors; see the server log")
    if isinstance(error, LastgoodError):
        return error
    log.error("unhandled error in a request", exc_info=error, extra={"fields": {"request_id": request.id}})
    return LastgoodError(f"Internal error; report it with the request id {request.id}")


def _table(routes: Sequence[Route]) -> dict[int, list[Route]]:
    """By number of segments; literal paths before those with parameters."""
    table: dict[int, list[Route]] = {}
    for route in sorted(routes, key=lambda route: route.path.count("{")):
        table.setdefault(len(route.parts), []).append(route)
    return table


def _fill(parts: tuple[str, ...], path: tuple[str, ...]) -> dict[str, str] | None:
    filled: dict[str, str] = {}
    for part, given in zip(parts, path, strict=True):
        if part.startswith("{"):
            filled[part[1:-1]] = given
        elif part != given:
            return None
    return filled
