"""Tracing that is on: exports spans over OTLP/HTTP, from a thread of the SDK, as the standard OTEL_…
variables configure. A collector that is slow, full or missing costs spans and never a turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from lastgood import __version__
from lastgood.engine.providers.provider import Providers
from lastgood.engine.tools.tool import Toolsets
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.ports.engine import Engine
from lastgood.tracing.request_spans import seeing, traced_app
from lastgood.tracing.setup import Asgi, S, Tracing
from lastgood.tracing.work_spans import TracedEngine, TracedProviders, WorkSpans, traced_toolsets

log = logging.getLogger(__name__)

#: How long the end waits for what is left to be sent.
FLUSH_SECONDS = 2.0
#: The same complaint of the library is passed on this often.
_REPEAT_SECONDS = 60.0


class Spans(Tracing):
    def __init__(self, provider: TracerProvider, complaints: _Complaints) -> None:
        self._provider = provider
        self._complaints = complaints
        self._tracer = provider.get_tracer("lastgood", __version__)
        self._work = WorkSpans(self._tracer)

    def providers(self, providers: Providers) -> Providers:
        return TracedProviders(providers, self._work)

    def toolsets(self, toolsets: Toolsets) -> Toolsets:
        return traced_toolsets(toolsets, self._work)

    def engine(self, engine: Engine) -> Engine:
        return TracedEngine(engine, self._work)

    def follow(self, live: RunningAttempts) -> None:
        self._work.follow(live)

    def asgi(self, app: Asgi) -> Asgi:
        return traced_app(app, self._tracer)

    def seeing(self, on_seen: Callable[[S], None]) -> Callable[[S], None]:
        return seeing(on_seen)

    async def close(self) -> None:
        # A daemon thread: at exit, the event loop and the interpreter would wait for threads of their own.
        ending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, FLUSH_SECONDS)
        if not ending.is_alive():  # else it may still complain
            self._complaints.stop()


def open_spans() -> Tracing:
    complaints = _Complaints()
    try:
        return Spans(_provider(), complaints)
    except BaseException:
        complaints.stop()
        raise


def _provider() -> TracerProvider:
    ours = Resource.create({"service.name": "lastgood", "service.version": __version__})
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over what we call ourselves.
    resource = ours.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class _Complaints(logging.Handler):
    """Passes on what the library complains about, without the values in it and not without end.

    A value may be a header with a key in it, or an address with one.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: dict[str, float] = {}
        self._library = logging.getLogger("opentelemetry")
        self._library.addHandler(self)
        self._library.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        place, now = f"{record.name}:{record.lineno}", time.monotonic()
        last = self._said.get(place)
        if last is None or now - last >= _REPEAT_SECONDS:
            self._said[place] = now
            log.warning("tracing: %s", record.msg, extra={"fields": {"logger": record.name}})

    def stop(self) -> None:
        self._library.removeHandler(self)
        self._library.propagate = True
