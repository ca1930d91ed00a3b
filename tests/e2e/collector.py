"""An OpenTelemetry collector on a loopback socket: takes OTLP over HTTP, and decodes it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.e2e.command import until


@dataclass(frozen=True)
class Taken:
    """A span as it arrived. Ids are hexadecimal; `parent` is empty where it is a root."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]
    is_error: bool
    said: str  # status descriptions and events: where texts of errors would be
    began: int
    ended: int


class Collector:
    """`silent`: takes every request and answers none until it is closed. Others wait for `may_answer`."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.answered = 0
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        """For a server that sends its spans here, and soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "NO_PROXY": "127.0.0.1",
        }

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [
            _plain(part.resource.attributes)
            for request in map(ExportTraceServiceRequest.FromString, list(self.bodies))
            for part in request.resource_spans
        ]

    @property
    def spans(self) -> list[Taken]:
        """In the order of their beginning."""
        found = [
            _taken(span)
            for request in map(ExportTraceServiceRequest.FromString, list(self.bodies))
            for part in request.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.began)

    def of_request(self, id: str) -> Taken:
        """The span of the request with this id, once it is there. It ends after all that it waits for."""
        return self.one("lastgood.request.id", id)

    def one(self, attribute: str, value: object) -> Taken:
        until(lambda: len(self.having(attribute, value)) > 0)
        (found,) = self.having(attribute, value)
        return found

    def having(self, attribute: str, value: object) -> list[Taken]:
        return [span for span in self.spans if span.attributes.get(attribute) == value]

    def below(self, span: Taken, count: int) -> list[Taken]:
        """Its children, once there are so many."""
        until(lambda: len(self._below(span)) >= count)
        return self._below(span)

    def _below(self, span: Taken) -> list[Taken]:
        return [one for one in self.spans if one.parent == span.id and one.trace == span.trace]


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            collector.asked.set()
            self.close_connection = True
            if collector.silent:
                collector.closed.wait()
                return
            assert self.path == "/v1/traces"
            collector.bodies.append(body)
            collector.may_answer.wait(60)
            collector.answered += 1
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _taken(span: Span) -> Taken:
    return Taken(
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _plain(span.attributes),
        span.status.code == Status.STATUS_CODE_ERROR,
        span.status.message + "".join(str(event) for event in span.events),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


def _plain(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, str(kind))
