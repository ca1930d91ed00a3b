"""Output: answers on stdout, remarks on stderr; as text for people, or as JSON for scripts."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, TextIO

from lastgood.client.models import AttemptInfo, BranchInfo, SessionInfo, TurnInfo
from lastgood.core.visible_text import CONTROLS, harmless
from lastgood.errors import LastgoodError
from lastgood.model.messages import Message, as_chat
from lastgood.model.sessions import Usage

_NOT_ASCII = re.compile(r"[^\x00-\x7e]+")


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


async def print_document(pieces: AsyncGenerator[bytes, None]) -> None:
    """Prints a streamed JSON document in ASCII, so that nothing in it can control a terminal."""
    decoder = codecs.getincrementaldecoder("utf-8")()  # a piece may end within a character
    async for piece in pieces:
        text = decoder.decode(piece)
        sys.stdout.write(_NOT_ASCII.sub(_json_escaped, text))
    sys.stdout.write("\n")
    sys.stdout.flush()


def drop_stdout() -> None:
    """Discards further output after the reader has gone, so that Python reports no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    print(f"lastgood: {one_line(message)}", file=sys.stderr)


def print_line(text: str) -> None:
    """Prints text that is not ours on standard output, with control characters escaped."""
    print(harmless(text))


def print_script(text: str) -> None:
    """Prints text of our own, which ends with a newline."""
    sys.stdout.write(text)


def show_progress(text: str) -> None:
    """One line on a terminal, written over the one before; empty: remove it."""
    print(f"\r\x1b[K{harmless(text)}" if text else "\r\x1b[K", end="", file=sys.stderr, flush=True)


class ProgressLine:
    """One line on a terminal, written again at most twice a second. Nothing elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 0.5 if sys.stderr.isatty() else math.inf
        self._is_shown = False

    def show(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.5
            self._is_shown = True
            show_progress(text)

    def close(self) -> None:
        if self._is_shown:
            show_progress("")


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal whose cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def can_colour(stream: TextIO) -> bool:
    return can_draw(stream) and not os.environ.get("NO_COLOR")


def remark(text: str) -> None:
    """Prints a note on stderr, dimmed on a terminal."""
    text = harmless(text)
    if can_colour(sys.stderr):
        text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr, flush=True)


def announce(text: str, indent: int = 0) -> None:
    """Prints a line on stderr that people should read, on a terminal within its width."""
    print(_wrapped(text, indent, sys.stderr), file=sys.stderr, flush=True)


def print_wrapped(text: str, indent: int) -> None:
    """Prints a line on standard output, on a terminal within its width; its other lines are indented."""
    print(_wrapped(text, indent, sys.stdout), flush=True)


def _wrapped(text: str, indent: int, stream: TextIO) -> str:
    text = harmless(text)
    if not stream.isatty():
        return text
    import shutil
    import textwrap

    width = max(shutil.get_terminal_size().columns - 1, indent + 20)
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def escape_json(document: str) -> str:
    """The same JSON document, with control characters as `\\u` escapes."""
    return CONTROLS.sub(_json_escaped, document)


def _json_escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def for_stream(text: str, stream: TextIO) -> str:
    """A file or a pipe gets every character as it is."""
    return harmless(text) if stream.isatty() else text


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def timestamp(seconds: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC, for JSON."""
    return None if seconds is None else _moment(datetime.fromtimestamp(seconds, UTC))


# -- nouns as JSON -------------------------------------------------------------


def error_json(error: LastgoodError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "detail": error.detail}


def _moment(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _usage_json(usage: Usage) -> dict[str, Any]:
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost": usage.cost}


def session_json(session: SessionInfo) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": session.id,
        "title": session.title,
        "agent": session.agent_key,
        "agent_key": session.agent_key,
        "model": session.model,
        "working_dir": session.working_dir,
        "created_at": _moment(session.created_at),
        "updated_at": _moment(session.updated_at),
        "head": session.head,
        "turns": session.turns,
        "streaming": session.status == "running",
        "status": session.status,
        **_usage_json(session.usage),
        "last_event_seq": session.last_event_seq,
        "starred": session.starred,
    }
    if session.forked_from is not None:
        source, turn = session.forked_from
        plain["forked_from"] = {"session": source, "turn": turn}
    if session.conversation is not None:
        plain["conversation"] = session.conversation
    return plain


def turn_json(turn: TurnInfo) -> dict[str, Any]:
    return {
        "id": turn.id,
        "seq": turn.seq,
        "parent": turn.parent,
        "attempt": turn.attempt,
        "kind": turn.kind,
        "messages": [_message_json(message) for message in turn.messages],
        "agent_digest": turn.agent_digest,
        "model": turn.model,
        "usage": _usage_json(turn.usage),
        "decision": turn.decision,
        "created_at": _moment(turn.created_at),
    }


def _message_json(message: Message) -> dict[str, Any]:
    """Without the reasoning data that only a provider can read."""
    plain = as_chat(message)
    return plain if message.reasoning is None else plain | {"reasoning": message.reasoning.text}


def branch_json(branch: BranchInfo) -> dict[str, Any]:
    return {
        "head": branch.head,
        "turns": branch.turns,
        "after": branch.after,
        "replaced_by": branch.replaced_by,
        "created_at": _moment(branch.created_at),
    }


def attempt_json(attempt: AttemptInfo) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": attempt.id,
        "turn": attempt.turn,
        "number": attempt.number,
        "status": attempt.status,
        "base": attempt.base,
        "fence": attempt.fence,
        "decision": attempt.decision,
        "started_at": _moment(attempt.started_at),
        "ended_at": None if attempt.ended_at is None else _moment(attempt.ended_at),
    }
    if attempt.replaces is not None:
        plain["replaces"] = attempt.replaces
    if attempt.error_code is not None:
        plain["error"] = {"code": attempt.error_code, "message": attempt.error_message}
    if attempt.continues is not None:
        plain["continues"] = attempt.continues
    return plain
