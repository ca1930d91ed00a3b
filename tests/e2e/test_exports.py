"""Large histories over HTTP: sent as they are read, in bounded memory, and whole or visibly broken."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.core.commit import link
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import as_json, assistant, encode, user
from lastgood.model.sessions import Head, Turn, TurnKind, Usage
from tests.e2e.api import Api, while_it_is_down
from tests.e2e.command import SECONDS, Command, until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

TURNS = 400
FORKS = 10


def large_document() -> dict[str, Any]:
    """8 MB in 400 turns."""
    base: Head | None = None
    turns = []
    for seq in range(1, TURNS + 1):
        messages = (user(f"Größe {seq} " + "x" * 10_000), assistant("y" * 10_000))
        turn = Turn(
            id=TurnId(f"turn{seq}"),
            session=SessionId("elsewhere"),
            seq=seq,
            parent=base.turn if base else None,
            attempt=AttemptId(f"attempt{seq}"),
            kind=TurnKind.RUN,
            hash=b"",
            agent_key="agent",
            agent_digest="digest",
            model="model",
            decision={},
            usage=Usage(1, 1, 0.0),
            created_at=1.0,
            user="",
            inputs=1,
            body=encode(messages),
            messages=messages,
        )
        turn = replace(turn, hash=link(base, turn))
        base = turn.head
        turns.append(
            {
                **{"id": turn.id, "seq": seq, "parent": turn.parent, "attempt": turn.attempt, "kind": "run"},
                **{"hash": turn.hash.hex(), "agent_key": "agent", "agent_digest": "digest", "model": "model"},
                **{"decision": {}, "usage": {"input_tokens": 1, "output_tokens": 1, "cost": 0.0}, "user": ""},
                **{"created_at": 1.0, "inputs": 1, "messages": [as_json(message) for message in messages]},
            }
        )
    session = {"id": "elsewhere", "title": "large", "title_by": "person", "agent_key": "agent", "model": None}
    return {"format": "lastgood.session", "version": 1, "session": session, "turns": turns}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("exports")) as server:
        yield server


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def large(api: Api) -> str:
    return str(api.post("/api/sessions/import", large_document()).json["id"])


def test_a_large_session_is_exported_and_read_whole(api: Api, large: str) -> None:
    exported = api.ask("GET", f"/api/sessions/{large}/export")
    assert exported.headers["transfer-encoding"] == "chunked"
    wanted = large_document()["turns"]
    assert [turn["messages"] for turn in exported.json["turns"]] == [turn["messages"] for turn in wanted]
    again = api.post("/api/sessions/import", exported.json)
    assert (again.status, again.json["turns"]) == (201, TURNS)
    read = api.ask("GET", f"/api/sessions/{large}")
    assert read.headers["etag"] == f'"{read.json["head"]}"'
    said = [message for turn in exported.json["turns"] for message in turn["messages"]]
    shown = [{key: message[key] for key in ("role", "content")} for message in read.json["messages"]]
    assert (shown, read.json["num_messages"]) == (said, 2 * TURNS)
    assert read.json["messages"][2]["turn"] == exported.json["turns"][1]["id"]


def test_turns_are_paged_through_a_large_session(api: Api, large: str) -> None:
    seen: list[int] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = api.ask("GET", f"/api/sessions/{large}/turns?limit=150&cursor={cursor}")
        seen += [turn["seq"] for turn in page.json]
        cursor = page.headers.get("x-next-cursor")
    assert seen == list(range(1, TURNS + 1))
    assert api.ask("GET", f"/api/sessions/{large}/turns?cursor={TURNS}").json == []


def memory(server: LiveServer) -> int:
    """The most that the process has used, in MB."""
    assert server._process is not None
    status = Path(f"/proc/{server._process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def test_I23_a_batch_export_takes_bounded_memory_and_others_are_answered_meanwhile(
    server: LiveServer, api: Api, large: str
) -> None:
    ids = [large, *(api.post(f"/api/sessions/{large}/fork", {}).json["id"] for _ in range(FORKS - 1))]
    before = memory(server)
    answered = 0
    done = threading.Event()

    def ask_others() -> None:
        nonlocal answered
        while not done.is_set():
            assert server.status("/health") == 200
            answered += 1

    others = threading.Thread(target=ask_others)
    others.start()
    try:
        exported = api.post("/api/sessions/batch/export", {"session_ids": [*ids, "ses_nobody"]}).json
    finally:
        done.set()
        others.join()
    assert [len(one["turns"]) for one in exported["sessions"]] == [TURNS] * FORKS
    assert (exported["session_count"], exported["failed_ids"]) == (FORKS, ["ses_nobody"])
    assert memory(server) - before < 40, "80 MB were exported"
    assert answered >= 20


def half_read(server: LiveServer, path: str) -> tuple[http.client.HTTPResponse, socket.socket]:
    """An answer of which only the beginning was read; the rest waits for its reader."""
    own = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
    # Less than the export, and more than one segment of the loopback: below that, each waits for a timer.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    own.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    answer = http.client.HTTPResponse(own)
    answer.begin()
    assert answer.status == 200
    assert answer.read(10_000)
    return answer, own


def requests_running(server: LiveServer) -> int:
    """Beside the one that asks."""
    return int(server.metric("lastgood_http_requests_running")) - 1


def test_a_session_deleted_in_the_middle_breaks_the_body(server: LiveServer, api: Api, large: str) -> None:
    """What was sent until then must not pass for the whole."""
    answer, own = half_read(server, f"/api/sessions/{large}/export")
    assert api.delete(f"/api/sessions/{large}").status == 200
    with own, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    until(lambda: requests_running(server) == 0)


def test_a_client_that_leaves_stops_the_export(server: LiveServer, large: str) -> None:
    answer, own = half_read(server, f"/api/sessions/{large}/export")
    assert requests_running(server) == 1
    answer.close()
    own.close()
    until(lambda: requests_running(server) == 0)


def test_a_damaged_history_is_exported_up_to_the_damage_and_says_so(
    server: LiveServer, api: Api, large: str
) -> None:
    """I6."""
    damaged = api.ask("GET", f"/api/sessions/{large}/turns?limit=1&cursor=299").json[0]["id"]
    with while_it_is_down(server) as database:
        database.execute("UPDATE turns SET body = x'5B' WHERE id = ?", (damaged,))
    document = api.ask("GET", f"/api/sessions/{large}/export").json
    assert (len(document["turns"]), damaged in document["damage"]) == (299, True)
    read = api.ask("GET", f"/api/sessions/{large}").json
    assert (read["num_messages"], damaged in read["damage"]) == (2 * (TURNS - 1), True)
    page = api.ask("GET", f"/api/sessions/{large}/turns?limit=2&cursor=299").json
    assert [bool(turn.get("damage")) for turn in page] == [True, False]
    assert api.post("/api/sessions/import", document).json["turns"] == 299


def test_the_command_line_exports_a_large_session_from_here_and_from_a_server(
    server: LiveServer, large: str, tmp_path: Path
) -> None:
    here = Command(tmp_path)
    away, back = tmp_path / "away.json", tmp_path / "back.json"
    there = ("--server", server.url)
    assert here("sessions", "export", large, str(away), *there).out.endswith(
        f" with {TURNS} turns to {away}\n"
    )
    moved = here("sessions", "import", str(away)).out.strip()
    assert here("sessions", "export", moved, str(back)).code == 0
    turns = [json.loads(path.read_bytes())["turns"] for path in (away, back)]
    assert [turn["messages"] for turn in turns[0]] == [turn["messages"] for turn in turns[1]]
    shown = here("sessions", "export", large, *there).out
    assert shown.isascii()
    assert json.loads(shown) == json.loads(away.read_bytes())


def test_a_file_is_not_left_half_written(server: LiveServer, api: Api, tmp_path: Path) -> None:
    here = Command(tmp_path)
    session = api.session()
    done = here("sessions", "export", session, "/dev/full/x", "--server", server.url)
    assert done.code == 1
    api.delete(f"/api/sessions/{session}")
    assert here("sessions", "export", session, str(tmp_path / "x"), "--server", server.url).code == 1
    assert not (tmp_path / "x").exists()
