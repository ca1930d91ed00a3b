"""Writes the generated parts of the documentation from the code: `python docs/draw.py`.

A generated part is between `<!-- drawn: NAME -->` and `<!-- end: NAME -->`;
everything else in a page is written by hand and left as it is. `tests/test_docs.py`
fails while drawing would change a page, so a table here cannot lie for long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

from lastgood.agents.schema import tables
from lastgood.agents.sources import parse
from lastgood.cli.parser import build_parser
from lastgood.core.lifecycle import ATTEMPT, Move, is_final
from lastgood.core.task_lifecycle import TASK, TaskMove, is_task_over
from lastgood.errors import LastgoodError
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.attempts import AttemptStatus
from lastgood.model.tasks import TaskStatus
from lastgood.server import open_server
from lastgood.settings import ROWS, read_settings
from lastgood.settings.setting_rows import Row
from lastgood.settings.worker_settings import WORKER_ROWS
from lastgood.worker import worker_metrics as worker

DOCS = Path(__file__).parent
OPENAPI = DOCS / "openapi.json"

#: One line each. A state, a move or a limit that is missing here fails the drawing.
STATES: Mapping[AttemptStatus, str] = {
    AttemptStatus.RUNNING: "A process holds the session and runs the turn.",
    AttemptStatus.WAITING: "Waits for a person. No lease is held; the session stays busy.",
    AttemptStatus.COMMITTED: "The turn is in the history.",
    AttemptStatus.FAILED: "The model, a tool or the store failed, or a timeout passed.",
    AttemptStatus.CANCELLED: "A client cancelled it, or disconnected.",
    AttemptStatus.INTERRUPTED: "The process that held it died or was stopped.",
    AttemptStatus.SUPERSEDED: "It was orphaned, and another request replaced it.",
}
MOVES: Mapping[Move, str] = {
    Move.COMMIT: "the turn is complete, and head and fence are unchanged",
    Move.FAIL: "an error, a timeout, or a question that was not answered in time",
    Move.CANCEL: "a client cancels, or disconnects and does not come back",
    Move.INTERRUPT: "the process died or was stopped, or the database was away for too long",
    Move.SUPERSEDE: "another request replaces an orphaned attempt",
    Move.WAIT: "a tool call has an unknown outcome, and its policy is to ask a person",
    Move.RESUME: "the question is answered; the attempt continues under a new fence",
}
TASK_STATES: Mapping[TaskStatus, str] = {
    TaskStatus.QUEUED: "Waits for a worker, for earlier tasks of its session, or for a person.",
    TaskStatus.DEFERRED: "Tried again at its due time: after a failure, or when a rate limit is reset.",
    TaskStatus.CLAIMED: "A worker has it and prepares the run. The session is busy.",
    TaskStatus.RUNNING: "The agent CLI works. The session is busy.",
    TaskStatus.WAITING: "The agent CLI waits for a person's answer. The session is busy.",
    TaskStatus.COMPLETED: "Its turn is in the history.",
    TaskStatus.FAILED: "It is not tried again; its error says why. Nothing was committed.",
    TaskStatus.CANCELLED: "A person cancelled it. A later result can be read and is never committed.",
}
TASK_MOVES: Mapping[TaskMove, str] = {
    TaskMove.DEFER: "a failure is tried again later, or a rate limit names its reset time",
    TaskMove.CLAIM: "a worker takes it: a deferred one when it is due, a claimed one after its lease",
    TaskMove.START: "the worker reports that the agent CLI runs",
    TaskMove.ASK: "the agent CLI asks for permission that a person must give",
    TaskMove.ANSWER: "a person answers, or the deadline of the question passes and it is denied",
    TaskMove.COMPLETE: "the worker reports success; the turn is committed in the same transaction",
    TaskMove.FAIL: "a failure that is not tried again, a passed deadline, or no worker in time",
    TaskMove.RETRY: "the attempt failed and the task is tried again at once",
    TaskMove.CANCEL: "a person cancels it; no worker is waited for",
}
LIMITS: Mapping[str, str] = {
    "lease_seconds": "a lease expires this long after its last renewal (PostgreSQL)",
    "heartbeat_seconds": "interval between lease renewals (PostgreSQL)",
    "wedged_seconds": "leases are not renewed while the event loop has been blocked for longer (PostgreSQL)",
    "sweep_seconds": "interval between searches for expired attempts",
    "idle_seconds": "a turn fails after this long without output from the model or a tool",
    "turn_seconds": "an attempt fails after this long",
    "grace_seconds": "an orphaned attempt is cancelled after this long",
    "stop_seconds": "a cancelled tool is abandoned after this long",
    "title_seconds": "the model call for a session title is cancelled after this long",
    "tick_seconds": "minimum interval between two stored batches of events",
    "poll_seconds": "interval at which streams poll the event table",
    "input_bytes": "maximum size of the messages of one request",
    "event_seconds": "events are deleted this long after their attempt ended",
    "key_seconds": "an idempotency key is deleted this long after its turn ended",
}


# -- parts -----------------------------------------------------------------------


def diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {AttemptStatus.RUNNING}: begin"
    for status, moves in ATTEMPT.items():
        for move, to in moves.items():
            yield f"    {status} --> {to}: {move}"
    for status in ATTEMPT:
        if is_final(status):
            yield f"    {status} --> [*]"
    yield "```"


def states() -> Iterator[str]:
    yield from _table("state", "meaning", "transitions")
    for status, moves in ATTEMPT.items():
        ways = ", ".join(f"{move} → `{to}`" for move, to in moves.items()) or "none (final)"
        yield _row(f"`{status}`", STATES[status], ways)


def moves() -> Iterator[str]:
    yield from _table("transition", "when")
    for move in Move:
        yield _row(move.value, MOVES[move])


def task_diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {TaskStatus.QUEUED}: enqueue"
    for status, moves in TASK.items():
        for move, to in moves.items():
            yield f"    {status} --> {to}: {move}"
    for status in TASK:
        if is_task_over(status):
            yield f"    {status} --> [*]"
    yield "```"


def task_states() -> Iterator[str]:
    yield from _table("state", "meaning", "transitions")
    for status, moves in TASK.items():
        ways = ", ".join(f"{move} → `{to}`" for move, to in moves.items()) or "none (final)"
        yield _row(f"`{status}`", TASK_STATES[status], ways)


def task_moves() -> Iterator[str]:
    yield from _table("transition", "when")
    for move in TaskMove:
        yield _row(move.value, TASK_MOVES[move])


def errors() -> Iterator[str]:
    yield from _table("code", "parent", "default message")
    for error in _descendants(LastgoodError):
        parent = error.__mro__[1]
        kind = f"`{parent.code}`" if issubclass(parent, LastgoodError) else ""
        kind = "" if parent is LastgoodError else kind
        yield _row(f"`{error.code}`", kind, cleandoc(error.__doc__ or ""))


def variables(rows: Mapping[str, Row] = ROWS) -> Iterator[str]:
    yield from _table("variable", "flag", "key", "default", "meaning")
    for row in rows.values():
        flag = f"`{row.flag}`" if row.has_flag else "none"
        key = "none" if row.name == "config" else f"`{row.key}`"
        several = "; separate several with commas" if row.type.is_list else ""
        default = row.default or "none"
        yield _row(f"`{row.variable}`", flag, key, default, f"{row.help[0].upper()}{row.help[1:]}{several}.")


def worker_variables() -> Iterator[str]:
    return variables(WORKER_ROWS)


def limits() -> Iterator[str]:
    yield from _table("limit", "value", "meaning")
    now = FlowLimits()
    for field in fields(FlowLimits):
        name, _, unit = field.name.rpartition("_")
        value = getattr(now, field.name)
        yield _row(name.replace("_", " "), f"{value:,.10g} {unit}", LIMITS[field.name])


def metrics() -> Iterator[str]:
    yield from _table("metric", "type", "meaning")
    about = dict(re.findall(r"^# HELP (\S+) (.+)$", served("/metrics"), re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", served("/metrics"), re.MULTILINE):
        yield _row(f"`{name}`", kind, about[name])


def worker_metrics() -> Iterator[str]:
    yield from _table("metric", "type", "meaning")
    for name, (kind, about) in worker.METRICS.items():
        yield _row(f"`{worker.PREFIX}{name}`", kind, about)


def commands() -> Iterator[str]:
    for name, parser in walk(build_parser()):
        yield f"### `{name}`"
        yield ""
        yield parser.description or ""
        yield ""
        if not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
            yield f"`{' '.join([name, *_usage(parser)])}`"
            yield ""
        rows = [_row(f"`{_spelling(action)}`", action.help or "") for action in _arguments(parser)]
        yield from (*_table("argument", "meaning"), *rows, "") if rows else ()


PAGES: Mapping[str, Mapping[str, Callable[[], Iterable[str]]]] = {
    "states.md": {
        "diagram": diagram,
        "states": states,
        "moves": moves,
        "task diagram": task_diagram,
        "task states": task_states,
        "task moves": task_moves,
    },
    "server.md": {"metrics": metrics},
    "worker.md": {"metrics": worker_metrics},
    "agent-files.md": {"toolsets": tables.toolsets, "keys": tables.keys},
    "reference.md": {
        "commands": commands,
        "settings": variables,
        "worker settings": worker_variables,
        "limits": limits,
        "errors": errors,
    },
}


# -- a server ------------------------------------------------------------------------


def openapi() -> str:
    """The description of every route, as a server with default settings returns it."""
    return (
        json.dumps(json.loads(served("/openapi.json")), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


@cache
def served(path: str) -> str:
    """The body of a response of a server with default settings, on a database of its own."""
    return asyncio.run(_get(path))


async def _get(path: str) -> str:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()  # the client neither sends nor leaves

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings({}, data_dir=folder)
        async with open_server(settings, [parse("builtin/scripted")], "localhost") as server:
            await server.app(scope, receive, send)
            await server.finish(asyncio.Event())
    assert sent[0]["status"] == 200, sent
    return b"".join(message.get("body", b"") for message in sent[1:]).decode()


# -- the command line --------------------------------------------------------------


@cache
def options_of_every_command() -> frozenset[str]:
    return frozenset(option for action in build_parser()._actions for option in action.option_strings)


def walk(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser and every parser below it, each with its words."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from walk(below)


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Its own, names before options. What every command takes is documented once, at the top."""
    top, is_top = options_of_every_command(), " " not in parser.prog
    own = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        and (is_top or not top & set(action.option_strings))
    ]
    return sorted(own, key=lambda action: bool(action.option_strings))


def _spelling(action: argparse.Action) -> str:
    takes_value = action.nargs != 0
    return " ".join([*action.option_strings, *([str(action.metavar)] if takes_value else [])])


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in _arguments(parser):
        name = str(action.metavar)
        if action.option_strings:
            yield f"[{_spelling(action)}]"
        else:
            yield {"*": f"[{name} …]", "+": f"{name} [{name} …]"}.get(str(action.nargs), name)


# -- pages -------------------------------------------------------------------------


def _table(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield "|" + "---|" * len(columns)


def _row(*cells: str) -> str:
    flat = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(flat)} |"


def _descendants(error: type[LastgoodError]) -> Iterator[type[LastgoodError]]:
    yield error
    for below in error.__subclasses__():
        if below.__module__ == LastgoodError.__module__:
            yield from _descendants(below)


def drawn(page: str, text: str) -> str:
    """The page with its generated parts generated again."""
    for name, make in PAGES[page].items():
        part = re.compile(rf"(<!-- drawn: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
        body = "\n".join(make()).strip()
        text, found = part.subn(lambda m, body=body: f"{m[1]}\n{body}\n\n{m[2]}", text)  # type: ignore[misc]
        assert found == 1, f"{page} has {found} places for {name}"
    return text


def main() -> None:
    for name in PAGES:
        page = DOCS / name
        page.write_text(drawn(name, page.read_text()))
    OPENAPI.write_text(openapi())


if __name__ == "__main__":
    main()
