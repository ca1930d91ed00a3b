"""A span around every request, and the one thing that is passed on by task: which request began a turn.

The parent is what the client says it is, in a W3C `traceparent`. An address is recorded as its
route, never as it was requested: it may contain names, and its query may contain keys.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lastgood.tracing import semconv
from lastgood.tracing.setup import Asgi, S
from lastgood.tracing.span_errors import fail

_PROPAGATOR = TraceContextTextMapPropagator()
_PROPAGATED = ("traceparent", "tracestate")

_ID_HEADERS = {b"x-session-id": semconv.CONVERSATION, b"x-turn-id": semconv.TURN}


@dataclass(slots=True)
class _RequestSpan:
    span: Span
    method: str
    is_probe: bool = False


_answering: ContextVar[_RequestSpan | None] = ContextVar("lastgood_request", default=None)


def begun_in() -> Context:
    """The context of the request that started this, as a parent; empty without one, as after a crash."""
    request = _answering.get()
    return set_span_in_context(request.span, Context()) if request else Context()


def traced_app(app: Asgi, tracer: Tracer) -> Asgi:
    async def traced(scope: Any, receive: Any, send: Any) -> None:
        request = _start(tracer, scope)

        async def traced_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                _began(request.span, message)
            await send(message)

        token = _answering.set(request)
        try:
            await app(scope, receive, traced_send)
        finally:
            _answering.reset(token)
            # Probes come every few seconds and do nothing. A span that is not ended is not sent.
            if not request.is_probe:
                request.span.end()

    return traced


def seeing(on_seen: Callable[[S], None]) -> Callable[[S], None]:
    def seen(one: S) -> None:
        on_seen(one)
        request = _answering.get()
        if request is not None:
            _seen(request, one)

    return seen


def _start(tracer: Tracer, scope: Any) -> _RequestSpan:
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    above = _PROPAGATOR.extract({name: found[name] for name in _PROPAGATED if name in found}, Context())
    method = scope["method"] if scope["method"] in semconv.METHODS else semconv.OTHER
    shown = "HTTP" if method == semconv.OTHER else method
    attributes = {semconv.METHOD: method, semconv.SCHEME: scope["scheme"]}
    return _RequestSpan(tracer.start_span(shown, above, SpanKind.SERVER, attributes), shown)


def _began(span: Span, message: Any) -> None:
    status = message["status"]
    span.set_attribute(semconv.STATUS, status)
    if status >= 500:
        fail(span, str(status))
    # A request that attaches to a run is not its parent; these attributes name the run.
    for name, value in message["headers"]:
        if name in _ID_HEADERS:
            span.set_attribute(_ID_HEADERS[name], value.decode("latin-1"))


def _seen(request: _RequestSpan, seen: S) -> None:
    span = request.span
    span.set_attribute(semconv.REQUEST, seen.request.id)
    span.set_attribute(semconv.ENDED, str(seen.ended))
    if seen.ended == "broken":
        fail(span, "broken")
    if seen.route is not None:
        request.is_probe = seen.route.probe
        span.set_attribute(semconv.ROUTE, seen.route.path)
        span.update_name(f"{request.method} {seen.route.path}")
