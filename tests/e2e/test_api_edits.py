"""Edits over the session API and through the client: `after` beside `If-Match`, and branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lastgood import errors
from lastgood.client import Client, events
from tests.e2e.api import Api, run_path
from tests.e2e.command import AGENT
from tests.e2e.server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("edits")) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def three(client: Client) -> tuple[str, list[str]]:
    session = client.create(AGENT).id
    return session, [client.ask(session, word).id for word in ("one", "two", "three")]


def turns(api: Api, session: str, **body: Any) -> Any:
    given = {"messages": [{"role": "user", "content": "other"}], "wait": True, **body}
    return api.post(f"/api/sessions/{session}/turns", given)


def chain(client: Client, session: str) -> list[str]:
    return [turn.id for turn in client.turns(session)]


def test_after_an_earlier_turn_replaces_what_follows_it(api: Api, client: Client) -> None:
    session, ids = three(client)
    answer = turns(api, session, after=ids[0])
    assert (answer.status, answer.json["seq"], answer.json["parent"]) == (200, 2, ids[0])
    assert chain(client, session) == [ids[0], answer.json["id"]]
    (branch,) = api.get(f"/api/sessions/{session}/branches")
    assert (branch["head"], branch["turns"]) == (ids[2], 3)
    assert (branch["after"], branch["replaced_by"]) == (ids[0], answer.json["id"])
    found = api.get(f"/api/sessions/{session}")
    assert (found["id"], found["turns"], found["head"]) == (session, 2, answer.json["id"])
    # A replaced turn can be read, and promoted.
    assert api.get(f"/api/sessions/{session}/turns/{ids[2]}")["seq"] == 3
    assert api.get(f"/api/sessions/{session}/turns/{ids[2]}/prompt")["turn"] == ids[2]
    fork = api.post(f"/api/sessions/{session}/fork", {"turn": ids[2]}).json
    assert chain(client, fork["id"]) == ids
    assert api.get(f"/api/sessions/{session}/export")["branches_not_exported"] == 1


def test_after_null_replaces_everything_and_leaving_it_out_appends(api: Api, client: Client) -> None:
    session, ids = three(client)
    appended = turns(api, session)
    assert (appended.json["seq"], appended.json["parent"]) == (4, ids[2])
    answer = turns(api, session, after=None)
    assert (answer.json["seq"], answer.json["parent"]) == (1, None)
    assert chain(client, session) == [answer.json["id"]]


def test_after_the_head_appends(api: Api, client: Client) -> None:
    session, ids = three(client)
    assert turns(api, session, after=ids[2]).json["seq"] == 4
    assert api.get(f"/api/sessions/{session}/branches") == []


def test_an_edit_of_what_is_not_there_or_has_moved_is_refused(api: Api, client: Client) -> None:
    session, ids = three(client)
    assert turns(api, session, after="turn_unknown").refusal == (404, "turn_not_found")
    other, theirs = three(client)
    assert turns(api, session, after=theirs[0]).refusal == (404, "turn_not_found")
    path = f"/api/sessions/{session}/turns"
    body = {"messages": [{"content": "x"}], "after": ids[0], "wait": True}
    stale = api.post(path, body, **{"If-Match": ids[1]})
    assert stale.refusal == (412, "stale_head")
    assert api.post(path, body, **{"If-Match": ids[2]}).status == 200
    assert turns(api, session, after=ids[2]).refusal == (404, "turn_not_found")
    later = api.post(f"/api/sessions/{session}/followup", {"messages": [{"content": "x"}], "after": ids[0]})
    assert later.status == 400
    assert len(chain(client, other)) == 3


def test_a_streamed_edit_says_what_it_replaces(api: Api, client: Client) -> None:
    session, ids = three(client)
    body = {"messages": [{"role": "user", "content": "other"}], "after": ids[1]}
    frames = api.post(run_path(session), body).frames
    (committed,) = [frame.data for frame in frames if frame.type == "turn_committed"]
    assert (committed["replaces"], committed["after"], committed["seq"]) == (ids[2], ids[1], 3)
    assert frames[-1].type == "stream_stopped"


def test_a_keyed_edit_is_replayed_and_edits_once(api: Api, client: Client) -> None:
    session, ids = three(client)
    path = f"/api/sessions/{session}/turns"
    body = {"messages": [{"content": "x"}], "after": ids[0], "wait": True}
    key = {"Idempotency-Key": f"edit-{session}"}
    first, again = api.post(path, body, **key), api.post(path, body, **key)
    assert first.json["id"] == again.json["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert len(api.get(f"/api/sessions/{session}/branches")) == 1
    other = api.post(path, body | {"after": None}, **key)
    assert other.status == 422


def test_branches_come_in_pages(api: Api, client: Client) -> None:
    session, _ = three(client)
    for _ in range(4):
        client.ask(session, "again", after=None)
    first = api.ask("GET", f"/api/sessions/{session}/branches?limit=3")
    cursor = first.headers["x-next-cursor"]
    rest = api.ask("GET", f"/api/sessions/{session}/branches?limit=3&cursor={cursor}")
    assert (len(first.json), len(rest.json), "x-next-cursor" in rest.headers) == (3, 1, False)
    heads = [branch.head for branch in client.branches(session)]
    assert heads == [branch["head"] for branch in first.json + rest.json]


def test_the_client_edits_and_reads_what_was_replaced(client: Client) -> None:
    session, ids = three(client)
    seen = list(client.run(session, "other", after=ids[0]))
    (committed,) = [event for event in seen if isinstance(event, events.TurnCommittedEvent)]
    assert (committed.replaces, committed.turn_seq) == (ids[2], 2)
    assert client.turn(session, ids[2]).text == "You said: three"
    assert client.attempts(session)[-1].replaces == ids[2]
    assert client.ask(session, "all new", after=None).seq == 1
    assert [branch.head for branch in client.branches(session)] == [ids[2], committed.turn]
    with pytest.raises(errors.TurnNotFound):
        client.ask(session, "x", after="turn_unknown")
    with pytest.raises(errors.StaleHead):
        client.ask(session, "x", after=None, expected_head=ids[2])
