"""Logs on one stream: JSON lines, one object each, or lines of text on a terminal.

An error is logged with its type and its location, never with its text, which may contain messages of users.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from lastgood.cli.output import escape_json, one_line


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        plain: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)
            plain["error"] = type(error).__name__
            plain["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:]]
        # JSON leaves C1 and bidirectional controls as they are, and the log may be read in a terminal.
        return escape_json(orjson.dumps(plain, default=str).decode())


class _TextLines(logging.Formatter):
    """`12:34:56 warning  turn not committed  code=model_error session=…`"""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = {key: value for key, value in getattr(record, "fields", {}).items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = type(error).__name__
            for frame in traceback.extract_tb(error.__traceback__)[-1:]:
                fields["at"] = f"{frame.filename}:{frame.lineno}"
        shown = " ".join(f"{key}={value}" for key, value in fields.items())
        return one_line(f"{time} {record.levelname.lower()} {record.getMessage()} {shown}")


def configure_logs(stream: TextIO, level: int = logging.INFO) -> None:
    """Text on a terminal, for people; JSON elsewhere, for programs."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TextLines() if stream.isatty() else _Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # we log starts and stops ourselves
    _collect_no_more_than_is_shown()


def _collect_no_more_than_is_shown() -> None:
    """The switches that logging has for this; what they turn off costs more than all the rest of a line."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # who called; its manual names it so


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Logs errors of tasks that nothing awaits. The loop's own report would contain values of tasks."""
    log = logging.getLogger("lastgood.loop")

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error(
            context.get("message", "unhandled error in a background task"), exc_info=context.get("exception")
        )

    loop.set_exception_handler(report)
