"""Toolsets that keep something, on two servers with one PostgreSQL: what one holds is the session's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow

ROOT = {
    "model": "builtin/scripted",
    "toolsets": [{"type": "background_jobs"}, {"type": "memory"}, {"type": "plan"}],
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[list[Api]]:
    folder = tmp_path_factory.mktemp("toolsets")
    (folder / "keeper.yaml").write_text(yaml.safe_dump({"agents": {"root": ROOT}}))
    postgres_server.create_database("toolsets")
    options = ("--safety", "autonomous", "--database", postgres_server.dsn("toolsets"))
    with ExitStack() as stack:
        servers = [
            LiveServer(folder / name, str(folder / "keeper.yaml"), options=options) for name in ("a", "b")
        ]
        yield [Api(stack.enter_context(server)) for server in servers]


def result(api: Api, session: str, tool: str, **arguments: Any) -> str:
    turn = api.good(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_of(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_I15_a_session_that_one_node_deletes_leaves_no_job_on_the_other(
    nodes: list[Api], tmp_path: Path
) -> None:
    a, b = nodes
    session = a.session("keeper")
    result(a, session, "run_background_job", cmd=f"echo $$ > {tmp_path}/pid; sleep 1000")
    process = process_of(tmp_path / "pid")
    assert b.delete(f"/api/sessions/{session}").status == 200
    until(lambda: not is_alive(process))


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("delete_memory", {"id": "mem_\x00"}, "there is no memory"),
        ("update_memory", {"id": "mem_\x00", "memory": "x"}, "there is no memory"),
        ("add_memory", {"memory": "x\x00"}, "cannot contain a NUL"),
        ("read_plan", {"name": "a\x00"}, "is not a name"),
        ("write_plan", {"name": "n", "content": "x\x00"}, "NUL"),
        ("delete_plan", {"name": "p", "last_known_revision": 2**63}, "has changed"),
        ("delete_plan", {"name": "p", "last_known_revision": -(10**30)}, "has changed"),
        ("write_plan", {"name": "p", "content": "y", "last_known_revision": 10**30}, "has changed"),
    ],
)
def test_I40_what_a_database_cannot_hold_is_a_tool_error(
    nodes: list[Api], tool: str, arguments: dict[str, Any], words: str
) -> None:
    a, _ = nodes
    session = a.session("keeper")
    result(a, session, "write_plan", name="p", content="x")
    found = result(a, session, tool, **arguments)
    assert found.startswith("error: ")
    assert words in found
