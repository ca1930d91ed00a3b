import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.postgres import PostgresFailed, PostgresServer

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nothing reaps (no init in the container) is dead but still listed.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


async def fetch(server: PostgresServer, dbname: str, query: str) -> object:
    connection = await asyncpg.connect(server.dsn(dbname))
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_server_answers_after_its_commit_and_not_on_tcp(postgres_server: PostgresServer) -> None:
    assert await fetch(postgres_server, "postgres", "SHOW synchronous_commit") == "on"
    assert await fetch(postgres_server, "postgres", "SHOW server_encoding") == "UTF8"
    assert await fetch(postgres_server, "postgres", "SHOW listen_addresses") == ""


async def test_databases_are_isolated_and_copied_from_templates(postgres_server: PostgresServer) -> None:
    server = postgres_server
    server.create_database("fixture_template")
    try:
        await fetch(server, "fixture_template", "CREATE TABLE kept AS SELECT 7 AS n")
        server.create_database("fixture_copy", template="fixture_template")
        server.create_database('fixture "empty"')
        await fetch(server, "fixture_copy", "UPDATE kept SET n = 8")

        assert await fetch(server, "fixture_copy", "SELECT n FROM kept") == 8
        assert await fetch(server, "fixture_template", "SELECT n FROM kept") == 7
        assert await fetch(server, 'fixture "empty"', "SELECT to_regclass('kept')") is None
    finally:
        for name in ("fixture_copy", 'fixture "empty"', "fixture_template"):
            server.drop_database(name)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await fetch(server, "fixture_copy", "SELECT 1")


def test_rejected_statement_shows_the_servers_message(postgres_server: PostgresServer) -> None:
    with pytest.raises(PostgresFailed, match="already exists"):
        postgres_server.create_database("postgres")


async def test_server_takes_settings_survives_a_crash_and_leaves_nothing() -> None:
    with PostgresServer({"max_connections": "17"}) as server:
        assert await fetch(server, "postgres", "SHOW max_connections") == "17"
        assert await fetch(server, "postgres", "SHOW fsync") == "on"  # a default
        await fetch(server, "postgres", "CREATE TABLE kept AS SELECT 7 AS n")
        first_pid = server.pid

        server.restart("immediate")

        assert await fetch(server, "postgres", "SELECT n FROM kept") == 7
        assert not is_running(first_pid)
        directory, pid = server.directory, server.pid
        assert directory.exists()

    assert not is_running(pid)
    assert not directory.exists()
    server.stop()


def test_failed_start_leaves_nothing() -> None:
    server = PostgresServer({"no_such_setting": "1"})
    with pytest.raises(PostgresFailed, match="no_such_setting"):
        server.start()
    with pytest.raises(PostgresFailed, match="not been started"):
        _ = server.directory


def test_killed_owner_leaves_no_server() -> None:
    program = (
        "from tests.postgres import PostgresServer\n"
        "server = PostgresServer()\n"
        "server.start()\n"
        "print(server.pid, server.directory, flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin
    assert owner.stdout
    with owner:
        pid, directory = owner.stdout.readline().split()
        # The watchdog shares the owner's standard output, so its end says that the watchdog is done.
        owner.kill()
        owner.stdout.read()

    assert not Path(directory).exists()
    assert not is_running(int(pid))
