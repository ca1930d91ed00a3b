"""`lastgood db backup` and `db restore` on real processes: what clients saw never comes back (I22)."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from lastgood.store.sqlite import copies
from lastgood.store.sqlite.copies import copy_database, partial_file
from tests.e2e.api import Api, Frame, events_of
from tests.e2e.command import AGENT, Command
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, options=("--shutdown-grace", "1s")) as server:
        yield server


@pytest.fixture
def lastgood(tmp_path: Path, server: LiveServer) -> Command:
    """On the same data folder as the server."""
    return Command(tmp_path)


class Client:
    """Follows a session, and remembers every number that it was given, and what it meant."""

    def __init__(self, api: Api, session: str) -> None:
        self._api, self._session = api, session
        self.seen: dict[int, str] = {}
        self.objections: list[str] = []

    @property
    def last(self) -> int:
        return max(self.seen)

    def follow(self) -> list[Frame]:
        """Reconnects with the last number that it has; a turn has been committed since."""
        given = self._api.brief(self._session)["last_event_seq"]
        if self.seen and given <= self.last:
            self.objections.append(f"the events of a new turn have numbers up to {given}, seen before")
            return []
        frames = events_of(self._api, self._session, self.last if self.seen else None)
        for frame in frames:
            if frame.id is None or frame.type == "resync":
                continue
            meaning = str(sorted(frame.data.items()))
            if self.seen.setdefault(frame.id, meaning) != meaning:
                self.objections.append(f"event {frame.id} came twice with another meaning")
        return frames


def _restored(
    restore: Callable[[Path], None], server: LiveServer, lastgood: Command
) -> tuple[Client, list[Frame]]:
    """A client sees two turns, the second after the backup. It comes back after the restore and a third."""
    api = Api(server)
    session = api.session()
    client = Client(api, session)
    api.good(session, "one")
    api.until_titled(session)
    client.follow()
    backup = server.folder / "backup.db"
    done = lastgood("db", "backup", str(backup), "--json")
    assert done.code == 0, done.err
    assert (done.json["sessions"], done.json["turns"]) == (1, 1)
    assert backup.stat().st_mode & 0o777 == 0o600
    api.good(session, "two")
    client.follow()
    refused = lastgood("db", "restore", "--force", str(backup))
    assert refused.code == 1, "the server is there"
    assert "Another Lastgood process" in refused.err
    server.kill()
    restore(backup)
    server.start()
    assert [text for role, text in api.history(session) if role == "user"] == ["one"]
    api.good(session, "three")
    frames = client.follow()
    # A turn with a step stores batches, which are numbered above the fence.
    api.good(session, 'four\n!tool echo {"text": "a step"}\n!say done')
    return client, frames


def test_I22_a_client_from_after_the_backup_gets_a_resync_and_no_number_twice(
    server: LiveServer, lastgood: Command
) -> None:
    def restore(backup: Path) -> None:
        done = lastgood("db", "restore", str(backup))
        assert done.code == 1
        assert "--force" in done.err
        done = lastgood("db", "restore", "--force", str(backup), "--json")
        assert done.code == 0, done.err
        kept = Path(done.json["replaced"])
        assert list(apsw.Connection(str(kept)).execute("SELECT count(*) FROM turns")) == [(2,)]

    client, frames = _restored(restore, server, lastgood)
    assert client.objections == []
    assert [frame.type for frame in frames].count("resync") == 1
    assert frames[0].type == "resync"
    assert frames[-1].id is not None
    assert frames[-1].id > 10**15
    assert lastgood("db", "check").code == 0
    audit = lastgood("audit", "--kind", "database_restored")
    assert "backup.db" in audit.out


def test_planted_a_restore_that_does_not_raise_event_numbers_is_caught(
    server: LiveServer, lastgood: Command
) -> None:
    def restore(backup: Path) -> None:
        for ending in ("-wal", "-shm"):
            lastgood.database.with_name(lastgood.database.name + ending).unlink(missing_ok=True)
        shutil.copy(backup, lastgood.database)

    client, _ = _restored(restore, server, lastgood)
    assert client.objections


def test_a_turn_that_ran_during_the_backup_is_recovered_after_the_restore(
    server: LiveServer, lastgood: Command
) -> None:
    api = Api(server)
    session = api.session()
    attempt = api.begun(session, "!slow 0.3\na b c d e f g h i j k l m n o p q r s t")
    backup = server.folder / "backup.db"
    assert lastgood("db", "backup", str(backup)).code == 0
    server.kill()
    assert lastgood("db", "restore", "--force", str(backup)).code == 0
    server.start()
    assert api.ended(session, attempt["id"])["status"] == "interrupted"
    api.until_idle(session)
    first, second = api.read(session, "/attempts")
    assert (second["turn"], second["status"]) == (first["turn"], "committed")
    assert second["fence"] > first["fence"] > attempt["fence"]


def test_a_backup_never_replaces_a_file_and_leaves_none_behind(lastgood: Command, server: LiveServer) -> None:
    Api(server).session()
    target = server.folder / "backups" / "backup.db"
    missing = lastgood("db", "backup", str(target))
    assert missing.code == 1
    assert "Cannot write" in missing.err
    target.parent.mkdir()
    target.write_text("mine")
    assert lastgood("db", "backup", str(target)).code == 1
    assert target.read_text() == "mine"
    assert lastgood("db", "restore", str(target), "--force").code == 1  # another program's file
    assert [*target.parent.iterdir()] == [target]


def test_backups_of_postgresql_are_left_to_its_tools_and_show_no_password(lastgood: Command) -> None:
    for words in (("backup", "x"), ("restore", "x")):
        done = lastgood("--database", "postgresql://ada:secret@db/x?prepared=off", "db", *words)
        assert done.code == 2
        assert "'postgresql://ada@db/x'" in done.err
        assert "secret" not in done.err


def test_a_copy_ends_although_the_database_changes_between_its_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a transaction around them, SQLite starts again after every change."""
    monkeypatch.setattr(copies, "_PAGES", 8)
    Command(tmp_path).new_session()
    source = tmp_path / "data" / "lastgood.db"
    writer = apsw.Connection(str(source))
    steps: list[int] = []

    def progress(done: int, _of: int) -> None:
        assert not steps or done > steps[-1], "it started again"
        steps.append(done)
        writer.execute("UPDATE sessions SET title = title || 'x'")

    with partial_file(tmp_path / "copy.db") as copy:
        copy_database(source, copy, progress)
        assert len(steps) > 5
        (title,) = apsw.Connection(str(copy)).execute("SELECT title FROM sessions").fetchall()[0]
    assert title == "hello"
    assert not copy.exists()


def test_two_backups_at_once_make_one_file(lastgood: Command, server: LiveServer) -> None:
    Api(server).session()
    target = str(server.folder / "backup.db")
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(lastgood("db", "backup", target).code)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [0, 1, 1]


def test_a_damaged_backup_is_rejected_and_the_database_stays(lastgood: Command, server: LiveServer) -> None:
    api = Api(server)
    session = api.session()
    api.good(session, "keep")
    backup = server.folder / "backup.db"
    assert lastgood("db", "backup", str(backup)).code == 0
    server.kill()
    damaged = apsw.Connection(str(backup))
    damaged.execute("UPDATE turns SET body = zeroblob(10)")
    damaged.close()
    done = lastgood("db", "restore", "--force", str(backup))
    assert done.code == 1
    assert "is damaged" in done.err
    assert [one.name for one in lastgood.data_dir.iterdir() if "partial" in one.name] == []
    assert lastgood.remembered(session) == ["keep"]


def test_a_schema_is_upgraded_by_its_own_command(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)
    refused = lastgood("serve", AGENT, "--migrate", "check", "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert "lastgood db upgrade" in refused.err
    first = lastgood("db", "upgrade", "--json")
    assert first.json["before"] == 0
    assert first.json["after"] >= 1
    assert "nothing to do" in lastgood("db", "upgrade").out
    stats = lastgood("db", "stats", "--json").json
    assert {table["rows"] for table in stats["tables"]} == {0}
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        database.execute("UPDATE lastgood_schema SET digest = 'another'")
    backup = lastgood("db", "backup", str(tmp_path / "copy.db"))
    assert (backup.code, f"{lastgood.database} was created by a different" in backup.err) == (1, True)


def test_postgresql_is_marked_in_place_when_no_server_is_left(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    postgres_server.create_database("restored")
    dsn = postgres_server.dsn("restored")
    lastgood = Command(tmp_path)
    with LiveServer(tmp_path, options=("--database", dsn)) as server:
        api = Api(server)
        session = api.session()
        api.good(session, "one")
        api.until_titled(session)
        before = api.brief(session)["last_event_seq"]
        refused = lastgood("--database", dsn, "db", "restore", "--in-place")
        assert refused.code == 1
        assert "in use" in refused.err
        assert server.stop() == 0
        done = lastgood("--database", dsn, "db", "restore", "--in-place")
        assert done.code == 0, done.err
        server.start()
        assert api.brief(session)["last_event_seq"] > 10**15 > before
        assert events_of(api, session, before)[0].type == "resync"
        api.good(session, "two")
