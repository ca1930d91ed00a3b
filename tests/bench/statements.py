"""`python -m tests.bench.statements`: which SQL statements one streamed turn runs, by name.

A count, not a time: it is the same on every machine. Transaction control is not counted.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from lastgood.store.statements import named
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside

_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Of the databases that are opened inside. Statements that the store made out of one keep its name."""
    names = {_spelled(sql): name for name, sql in named("sqlite").items()}
    counts: Counter[str] = Counter()

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if not sql.startswith(_CONTROL):
            counts[_named(names, sql)] += 1
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        yield counts
    finally:
        apsw.connection_hooks.remove(hook)


def _spelled(sql: str) -> str:
    return " ".join(sql.split())


def _named(names: dict[str, str], sql: str) -> str:
    spelled = _spelled(sql)
    if spelled in names:
        return names[spelled]
    head = spelled.partition("VALUES")[0]
    return next((name for known, name in names.items() if known.partition("VALUES")[0] == head), head[:60])


async def chat(inside: InProcessServer, conversation: str) -> None:
    body = {"model": AGENT, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    given = await inside.ask("POST", "/v1/chat/completions", body, x_conversation_id=conversation)
    assert given.status == 200, given.body


async def run(inside: InProcessServer, session: str) -> None:
    path = f"/api/sessions/{session}/agent/builtin%2Fscripted"
    given = await inside.ask("POST", path, {"messages": [{"role": "user", "content": "hello"}]})
    assert given.status == 200, given.body


async def statements_of_turns(folder: Path) -> dict[str, Counter[str]]:
    """Of a second turn: the first one also makes the session or its title."""
    with counting() as counts:
        async with open_inside(folder) as inside:
            session = await inside.session()
            found = {}
            turns: dict[str, Callable[[], Awaitable[None]]] = {
                "POST /v1/chat/completions": lambda: chat(inside, "one"),
                "POST /api/sessions/{id}/agent/{key}": lambda: run(inside, session),
            }
            for name, turn in turns.items():
                await turn()
                await inside.settled()
                counts.clear()
                await turn()
                await inside.settled()
                found[name] = Counter(counts)
            return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, counts in asyncio.run(statements_of_turns(Path(folder))).items():
            print(f"{name}, streamed: {counts.total()} statements")
            for statement, count in counts.most_common():
                print(f"  {count:3} {statement}")


if __name__ == "__main__":
    main()
