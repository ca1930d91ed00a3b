"""`lastgood tokens`, on real processes."""

import asyncio
import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import apsw
import pytest

from lastgood.flows.tokens import Tokens
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.tokens import Scope, Token
from lastgood.store.database_url import open_store
from lastgood.store.sqlite.lock_file import Lock
from lastgood.wiring import SystemClock
from tests.e2e.command import Command, Done
from tests.postgres import PostgresServer

_numbers = itertools.count()

NAME = ("--name", "a laptop")
PUBLIC = {"id", "tenant", "name", "scopes", "state", "created_at", "expires_at", "revoked_at"} | {
    "user",
    "worker_id",
}


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"tokens_{next(_numbers)}"
    postgres_server.create_database(name)
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


def check(database: str | Path, plain: str) -> Token | None:
    """What a server says to this token."""

    async def ask() -> Token | None:
        store = await open_store(f"sqlite:///{database}" if isinstance(database, Path) else database)
        try:
            return await Tokens(store, SystemClock()).check(plain)
        finally:
            await store.close()

    return asyncio.run(ask())


def assert_refused(done: Done, *words: str, code: int = 1) -> None:
    """One line that says what is wrong, and nothing that could be taken for a token."""
    assert (done.code, done.out) == (code, ""), done
    assert done.err.startswith("lastgood: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


# -- create ------------------------------------------------------------------------


def test_create_prints_the_token_alone_and_it_is_good(lastgood: Command) -> None:
    done = lastgood("tokens", "create", *NAME)
    assert done.code == 0
    plain = done.out.removesuffix("\n")
    token = check(lastgood.database, plain)
    assert token is not None
    assert (token.name, token.tenant) == ("a laptop", DEFAULT_TENANT)
    assert token.scopes == {Scope.CHAT, Scope.SESSION}
    assert (token.expires_at, token.revoked_at) == (None, None)
    assert token.id in done.err
    assert "it is not shown again" in done.err
    assert plain not in done.err
    first = "from its next start on, the server requires one for every request"
    assert first in done.err
    assert first not in lastgood("tokens", "create", *NAME).err


def test_create_needs_no_options(lastgood: Command) -> None:
    """As the server's greeting says it."""
    done = lastgood("tokens", "create")
    token = check(lastgood.database, done.out.strip())
    assert token is not None
    assert (done.code, token.name) == (0, "token")


def test_create_takes_tenant_scopes_and_an_end(lastgood: Command) -> None:
    options = ("--tenant", "acme", "--scope", "read, session", "--scope", "approve", "--expires", "30d")
    done = lastgood("tokens", "create", *NAME, *options, "--json")
    made = done.json
    assert set(made) == {*PUBLIC, "token"}
    assert (made["tenant"], made["scopes"], made["state"]) == (
        "acme",
        ["approve", "read", "session"],
        "valid",
    )
    created, expires = (datetime.fromisoformat(made[name]) for name in ("created_at", "expires_at"))
    assert abs(expires - created - timedelta(days=30)) < timedelta(minutes=1)
    token = check(lastgood.database, made["token"])
    assert token is not None
    assert (token.id, token.tenant) == (made["id"], "acme")


def test_a_token_acts_as_a_user_and_a_worker_token_as_one_worker(lastgood: Command) -> None:
    made = lastgood("tokens", "create", *NAME, "--user", "alice", "--worker", "laptop", "--json").json
    assert (made["user"], made["worker_id"], made["scopes"]) == ("alice", "laptop", ["worker"])
    token = check(lastgood.database, made["token"])
    assert token is not None
    assert (token.user, token.worker) == ("alice", "laptop")
    assert "user alice, worker laptop: worker" in lastgood("tokens", "list").out


def test_a_token_can_be_piped_into_a_file(lastgood: Command, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with file.open("wb") as out:
        process = lastgood.start("tokens", "create", *NAME, stdout=out.fileno())
        _, remarks = process.communicate(timeout=60)
    assert process.returncode == 0, remarks
    assert check(lastgood.database, file.read_text().strip()) is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scope", "chat,root"), ("'root'", "chat, read, session, approve, worker, admin")),
        (("--scope", ""), ("scope",)),
        (("--scope", "session", "--worker", "laptop"), ("--worker needs the scope worker",)),
        (("--worker", "a b"), ("Worker id 'a b'",)),
        (("--tenant", ""), ("the tenant",)),
        (("--name", " "), ("the name", "200")),
        (("--name", "x" * 201), ("the name", "200")),
        (("--expires", "0s"), ("more than 0 seconds",)),
        (("--expires", "36501d"), ("36500 days",)),
    ],
)
def test_a_token_that_cannot_be_is_refused(
    lastgood: Command, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(lastgood("tokens", "create", *NAME, *options), *words, code=2)
    assert lastgood("tokens", "list", "--json").json == []


@pytest.mark.parametrize(
    "args",
    [
        ("create", *NAME, "--expires", "soon"),
        ("create", *NAME, "--expires", "30"),
        ("create", *NAME, "--expires", "-1d"),
        ("create", *NAME, "--expires", "٣d"),
        ("revoke",),
        ("list", "more"),
        (),
    ],
)
def test_wrong_usage_exits_2_and_makes_nothing(lastgood: Command, args: tuple[str, ...]) -> None:
    done = lastgood("tokens", *args)
    assert_refused(done, "; see lastgood tokens", code=2)
    assert not lastgood.data_dir.exists()


# -- list and revoke ---------------------------------------------------------------


def test_list_before_any_token_was_made(lastgood: Command) -> None:
    assert lastgood("tokens", "list").out == "no tokens\n"
    assert lastgood("tokens", "list", "--json").json == []
    assert not lastgood.data_dir.exists()


def test_I37_list_shows_neither_the_token_nor_its_hash(lastgood: Command) -> None:
    made = lastgood("tokens", "create", "--name", "evil\x1b[2J\nname", "--json").json
    as_json = lastgood("tokens", "list", "--json")
    assert as_json.json == [{name: value for name, value in made.items() if name != "token"}]
    assert set(as_json.json[0]) == PUBLIC
    shown = lastgood("tokens", "list")
    assert shown.out.count("\n") == 1
    for part in (made["id"], "valid", "default", "chat, session", "\\x1b[2J name"):
        assert part in shown.out
    assert "\x1b" not in shown.out
    assert made["token"][3:] not in shown.out + shown.err + as_json.out + as_json.err


def test_a_revoked_token_is_refused_and_stays_in_the_list(lastgood: Command) -> None:
    made = lastgood("tokens", "create", *NAME, "--json").json
    other = lastgood("tokens", "create", "--name", "another").out.strip()
    done = lastgood("tokens", "revoke", made["id"])
    assert done.code == 0
    assert made["id"] in done.out
    assert "within 5 seconds" in done.err
    assert check(lastgood.database, made["token"]) is None
    assert check(lastgood.database, other) is not None
    assert [token["state"] for token in lastgood("tokens", "list", "--json").json] == ["revoked", "valid"]
    first = lastgood("tokens", "list", "--json").json[0]
    assert lastgood("tokens", "revoke", made["id"], "--json").json == first


def test_an_expired_token_is_said_to_be(lastgood: Command) -> None:
    made = lastgood("tokens", "create", *NAME, "--expires", "1h", "--json").json
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        database.execute("UPDATE tokens SET expires_at = 1")
    assert check(lastgood.database, made["token"]) is None
    assert lastgood("tokens", "list", "--json").json[0]["state"] == "expired"


def test_an_unknown_token_cannot_be_revoked(lastgood: Command) -> None:
    plain = lastgood("tokens", "create", *NAME).out.strip()
    assert_refused(lastgood("tokens", "revoke", "tok_nope"), "Token not found", "list")
    done = lastgood("tokens", "revoke", "tok_nope", "--json")
    assert (done.code, done.json["error"]["code"]) == (1, "not_found")
    assert check(lastgood.database, plain) is not None


# -- beside a running server -------------------------------------------------------


def test_on_sqlite_tokens_are_made_and_revoked_while_a_server_runs(lastgood: Command) -> None:
    async def beside() -> None:
        store = await open_store(f"sqlite:///{lastgood.database}")  # holds what a server holds
        try:
            made = await asyncio.to_thread(lastgood, "tokens", "create", *NAME, "--json")
            assert made.code == 0, made.err
            assert await Tokens(store, SystemClock()).check(made.json["token"]) is not None
            done = await asyncio.to_thread(lastgood, "tokens", "revoke", made.json["id"])
            assert done.code == 0, done.err
            assert await Tokens(store, SystemClock()).check(made.json["token"]) is None
        finally:
            await store.close()

    lastgood.database.parent.mkdir()
    asyncio.run(beside())


def test_a_database_that_is_being_set_up_is_not_touched(lastgood: Command) -> None:
    """Whoever has the lock may be about to change the schema: a command beside it changes nothing then."""
    lastgood.database.parent.mkdir()
    path = lastgood.database.with_name(lastgood.database.name + ".lock")
    lock = Lock(path)
    try:
        assert_refused(lastgood("tokens", "create", *NAME), "unavailable")
        assert not lastgood.database.exists()
        apsw.Connection(str(lastgood.database)).close()
        assert_refused(lastgood("tokens", "create", *NAME), "schema")
    finally:
        lock.release()


def test_on_postgres_tokens_are_made_and_revoked_while_a_server_runs(
    lastgood: Command, postgres: str
) -> None:
    async def beside() -> None:
        store = await open_store(postgres)
        try:
            made = await asyncio.to_thread(
                lastgood, "tokens", "create", *NAME, "--json", "--database", postgres
            )
            token = await Tokens(store, SystemClock()).check(made.json["token"])
            assert token is not None
            assert token.id == made.json["id"]
            listed = await asyncio.to_thread(lastgood, "tokens", "list", "--json", "--database", postgres)
            assert [one["id"] for one in listed.json] == [token.id]
            done = await asyncio.to_thread(lastgood, "tokens", "revoke", token.id, "--database", postgres)
            assert done.code == 0, done.err
            assert await Tokens(store, SystemClock()).check(made.json["token"]) is None
        finally:
            await store.close()

    asyncio.run(beside())
    assert not lastgood.data_dir.exists()


def test_tokens_need_no_engine_and_no_agents() -> None:
    code = "import sys, lastgood.cli.tokens; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "lastgood.flows.tokens" in loaded
    assert not {name for name in loaded if name.startswith(("lastgood.engine", "lastgood.agents"))}
    assert not loaded & {"aiohttp", "asyncpg"}
