"""Tracing that is off, and how it is turned on.

While off, nothing is wrapped, turns cost nothing extra, and OpenTelemetry is not imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lastgood.errors import InvalidRequest

if TYPE_CHECKING:
    from lastgood.engine.providers.provider import Providers
    from lastgood.engine.tools.tool import Toolsets
    from lastgood.flows.running_attempts import RunningAttempts
    from lastgood.ports.engine import Engine

EXTRA = "pip install 'lastgood[tracing]'"

#: An ASGI application.
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class _TracedRequest(Protocol):
    @property
    def id(self) -> str: ...


class _Route(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def probe(self) -> bool: ...


class TracedResponse(Protocol):
    """What a request span needs of a request that was answered."""

    @property
    def request(self) -> _TracedRequest: ...
    @property
    def route(self) -> _Route | None: ...
    @property
    def ended(self) -> str: ...


S = TypeVar("S", bound=TracedResponse)


class Tracing:
    """Tracing is off. A tracer overrides every method."""

    def providers(self, providers: Providers) -> Providers:
        return providers

    def toolsets(self, toolsets: Toolsets) -> Toolsets:
        return toolsets

    def engine(self, engine: Engine) -> Engine:
        return engine

    def follow(self, live: RunningAttempts) -> None:
        """Called when an attempt ends. The engine has finished before its outcome is known."""

    def asgi(self, app: Asgi) -> Asgi:
        return app

    def seeing(self, on_seen: Callable[[S], None]) -> Callable[[S], None]:
        """Called with the route of a request, which is known inside the app only."""
        return on_seen

    async def close(self) -> None:
        """Sends what is left, for a moment at most."""


OFF = Tracing()


def open_tracing(on: bool) -> Tracing:
    if not on:
        return OFF
    try:
        from lastgood.tracing.spans import open_spans

        return open_spans()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("opentelemetry", "google", "requests")):
            raise
        raise InvalidRequest(f"--tracing needs packages that are not installed: {EXTRA}") from None
    except (ValueError, RuntimeError) as error:
        # Its text may show what is in a variable, and that may be a key.
        raise InvalidRequest(
            f"--tracing failed to start ({type(error).__name__}); correct the OTEL_… variables"
        ) from None
