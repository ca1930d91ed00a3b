"""`lastgood import multica` as a command, from a real PostgreSQL into a database that it makes."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Command
from tests.e2e.test_cli import assert_refused
from tests.multica import Multica, make_multica
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def multica_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"multica_command_{next(_numbers)}"
    postgres_server.create_database(name)
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    return Command(tmp_path)


def fill(dsn: str) -> str:
    """A chat with two turns and a stale pointer, and an issue. Returns the id of the chat."""

    async def work() -> str:
        multica: Multica = await make_multica(dsn)
        agent = await multica.agent("coder")
        old, new = await multica.runtime("old"), await multica.runtime("new")
        chat = await multica.chat(agent, title="Fix it", session_id="stale", work_dir="/old")
        await multica.exchange(chat, agent, old, "one", "stale")
        await multica.exchange(chat, agent, new, "two", "newer")
        await multica.say(chat, "user", "three")
        issue = await multica.insert("issue", title="Crash")
        await multica.task(agent, new, issue_id=issue, session_id="i1", work_dir="/i")
        await multica.connection.close()
        return chat

    return asyncio.run(work())


def test_import_reports_what_it_did_and_can_be_repeated(lastgood: Command, multica_dsn: str) -> None:
    fill(multica_dsn)
    done = lastgood("import", "multica", multica_dsn)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "agent coder → coder",
        *(
            f"runtime {one}: resume its native sessions with lastgood worker --worker-id daemon-of-{one} "
            "--runtime claude=claude"
            for one in ("old", "new")
        ),
        "read 1 chat and 1 issue: sessions 2 created, 0 extended, 0 unchanged, 0 empty and left out",
        "imported 2 turns and 4 pointers to native sessions",
        "1 chat named a native session whose runtime is not certain: it is not resumed, and the next turn "
        "starts with the transcript",
        "left out 1 message: notices, failed replies and unanswered ones",
    ]
    titles = {one["title"]: one["turns"] for one in lastgood.sessions()}
    assert titles == {"Fix it": 2, "Crash": 0}
    again = lastgood("import", "multica", multica_dsn, "--json").json
    assert (again["turns"], again["pointers"], again["unchanged"]) == (0, 0, 2)
    assert lastgood("db", "check").code == 0


def test_a_dry_run_creates_no_database(lastgood: Command, multica_dsn: str) -> None:
    fill(multica_dsn)
    done = lastgood("import", "multica", multica_dsn, "--dry-run", "--json")
    assert done.code == 0
    assert (done.json["dry_run"], done.json["turns"], done.json["created"]) == (True, 2, 2)
    assert not lastgood.database.exists()
    assert "would import 2 turns" in lastgood("import", "multica", multica_dsn, "--dry-run").out


def test_agents_are_renamed_and_sessions_get_an_owner(lastgood: Command, multica_dsn: str) -> None:
    fill(multica_dsn)
    done = lastgood("import", "multica", multica_dsn, "--agent", "coder=pair", "--owner", "alice", "--json")
    assert done.json["agents"] == {"coder": "pair"}
    assert {one["agent_key"] for one in lastgood.sessions()} == {"pair"}


def test_wrong_urls_and_options_are_refused_in_one_line(
    lastgood: Command, multica_dsn: str, postgres_server: PostgresServer
) -> None:
    assert_refused(lastgood("import"), "missing command", code=2)
    assert_refused(lastgood("import", "multica"), "URL", code=2)
    assert_refused(lastgood("import", "multica", "mysql://x"), "starts with postgresql://", code=2)
    assert_refused(lastgood("import", "multica", multica_dsn), "this is not a multica database", code=2)
    assert_refused(lastgood("import", "multica", multica_dsn, "--agent", "x"), "'x' is not NAME=KEY", code=2)
    unreachable = "postgresql://secret:pass@127.0.0.1:1/multica"
    done = lastgood("import", "multica", unreachable)
    assert_refused(done, "cannot reach the multica database", code=1)
    assert "pass" not in done.err
    assert not lastgood.database.exists()
