"""Errors on spans: only the type of the error, because its text may contain messages of users."""

from __future__ import annotations

import asyncio

from opentelemetry.trace import Span, Status, StatusCode

from lastgood.engine.tools.tool import ToolFailed
from lastgood.errors import LastgoodError, NeedsAnswer
from lastgood.tracing import semconv

TOOL_FAILED = "tool_failed"
CANCELLED = "cancelled"


def fail(span: Span, kind: str) -> None:
    span.set_attribute(semconv.ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))


def fail_with(span: Span, error: BaseException) -> None:
    match error:
        case NeedsAnswer():
            pass  # it waits for a person, which is no failure
        case LastgoodError():
            fail(span, error.code)
        case ToolFailed():
            fail(span, TOOL_FAILED)
        case asyncio.CancelledError() | GeneratorExit():
            fail(span, CANCELLED)
        case _:
            fail(span, type(error).__name__)
