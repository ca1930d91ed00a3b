"""Every route of the server, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any

from lastgood import __version__
from lastgood.model.tokens import Scope
from lastgood.surfaces.http import openapi as shapes
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import JSON, Reply, Request, Response, json_reply
from lastgood.surfaces.http.error_responses import ErrorDialects
from lastgood.surfaces.http.json_schema import schema_of
from lastgood.surfaces.http.metrics import Metrics
from lastgood.surfaces.http.openapi import openapi
from lastgood.surfaces.openai import response_schemas
from lastgood.surfaces.openai.error_envelope import OPENAI_ERRORS
from lastgood.surfaces.openai.handlers import ChatHandlers
from lastgood.surfaces.openai.schemas import ChatRequest

CHAT_BYTES = 32 * 1024 * 1024

#: What can be served alone. Other routes are always served.
SURFACES = ("api", "chat", "work", "console")

#: Which API words its errors in another way than the session API.
DIALECTS: ErrorDialects = {"/v1/": OPENAI_ERRORS}

_NAME: dict[str, Any] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}

IsReady = Callable[[], Awaitable[str | None]]


def probes(counts: Metrics, is_ready: IsReady, *, metrics: bool = True) -> list[Route]:
    """Health checks and metrics. `is_ready` returns the reason why the server is not ready, or None."""

    async def health(request: Request) -> Response:
        return json_reply({"status": "ok", "version": __version__})

    async def ready(request: Request) -> Response:
        # docker-agent's clients read `ready` and `store_connected`.
        why_not = await is_ready()
        if why_not is None:
            return json_reply({"status": "ready", "ready": True, "store_connected": True})
        return json_reply(
            {"status": "not ready", "ready": False, "reason": why_not}, 503, {"retry-after": "1"}
        )

    async def measured(request: Request) -> Response:
        return Reply(200, counts.text().encode(), type="text/plain; version=0.0.4; charset=utf-8")

    listed = [
        Route(
            "GET",
            "/health",
            health,
            None,
            "Check that the process is alive",
            probe=True,
            gives={200: {JSON: shapes.HEALTH}},
        ),
        Route(
            "GET",
            "/ready",
            ready,
            None,
            "Check that the server accepts work; 503 during shutdown or if the database is not writable",
            probe=True,
            gives={200: {JSON: shapes.READY}, 503: {JSON: shapes.READY}},
        ),
        Route(
            "GET",
            "/api/ready",
            ready,
            None,
            "Check that the server accepts work (docker-agent's probe)",
            probe=True,
            gives={200: {JSON: shapes.READY}, 503: {JSON: shapes.READY}},
        ),
        Route(
            "GET",
            "/metrics",
            measured,
            None,
            "Get metrics in the Prometheus text format",
            probe=True,
            gives={200: {"text/plain": None}},
        ),
    ]
    return [route for route in listed if metrics or route.path != "/metrics"]


def routes(
    chat: ChatHandlers,
    counts: Metrics,
    is_ready: IsReady,
    *,
    chat_bytes: int = CHAT_BYTES,
    only: Container[str] = SURFACES,
    metrics: bool = True,
    sessions: Sequence[Route] = (),
    work: Sequence[Route] = (),
    console: Sequence[Route] = (),
) -> Sequence[Route]:
    """`only`: the surfaces that are served. `metrics=False`: /metrics is served on a separate address."""

    async def description(request: Request) -> Response:
        return json_reply(openapi(served, DIALECTS))

    served: list[Route] = [
        *(
            route
            for route in probes(counts, is_ready, metrics=metrics)
            if "api" in only or not route.path.startswith("/api/")
        ),
        Route(
            "GET",
            "/openapi.json",
            description,
            None,
            "Get this OpenAPI description",
            gives={200: {JSON: {"type": "object"}}},
        ),
        *(_chat_routes(chat, chat_bytes) if "chat" in only else ()),
        *(sessions if "api" in only else ()),
        *(work if "work" in only else ()),
        *(console if "console" in only else ()),
    ]
    return served


def _chat_routes(chat: ChatHandlers, chat_bytes: int) -> Sequence[Route]:
    return [
        Route(
            "GET",
            "/v1/models",
            chat.models,
            Scope.CHAT,
            "List agents as models",
            gives={200: {JSON: response_schemas.MODELS}},
        ),
        # A model name may contain a slash, which the SDKs do not escape.
        *(
            Route(
                "GET",
                path,
                chat.model,
                Scope.CHAT,
                "Get an agent as a model",
                gives={200: {JSON: response_schemas.MODEL}},
            )
            for path in ("/v1/models/{model}", "/v1/models/{model}/{name}")
        ),
        Route(
            "POST",
            "/v1/chat/completions",
            chat.complete,
            Scope.CHAT,
            "Create a chat completion, streamed or not",
            limit_bytes=chat_bytes,
            takes=schema_of(ChatRequest),
            headers={
                "x-conversation-id": ("Name of the stored conversation to continue; created if new", _NAME),
                "idempotency-key": (
                    "Requests with the same key and body run once; repeats replay the result",
                    _NAME,
                ),
            },
            gives={200: {JSON: response_schemas.COMPLETION, "text/event-stream": None}},
        ),
    ]
