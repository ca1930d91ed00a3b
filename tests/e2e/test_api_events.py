"""What a run tells: by the promised names, in order, to its end, and again for whoever missed it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.api import (
    TOOLS,
    Api,
    Frame,
    Trace,
    events_of,
    kinds,
    run_path,
    said,
    while_it_is_down,
)
from tests.e2e.command import AGENT
from tests.e2e.conftest import REMOTE, TEAM
from tests.e2e.fake_model import FakeModel, Gate, Reply, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fake: FakeModel) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("events")
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "team.yaml").write_text(TEAM)
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    agents = (AGENT, *(str(folder / f"{name}.yaml") for name in ("remote", "team", "tools")))
    with LiveServer(folder / "server", *agents, options=("--safety", "autonomous")) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


FIELDS = {
    "stream_started": {"turn", "session_id", "attempt", "timestamp"},
    "user_message": {"message", "session_id", "session_position"},
    "agent_choice": {"content", "session_id"},
    "agent_choice_reasoning": {"content", "session_id"},
    "tool_call": {"tool_call", "tool_definition", "session_id"},
    "tool_call_response": {"tool_call_id", "tool_definition", "response", "result", "session_id"},
    "token_usage": {"usage", "session_id"},
    "turn_committed": {"turn", "seq", "attempt", "session_id"},
    "turn_failed": {"turn", "attempt", "code", "retryable", "session_id"},
    "error": {"code", "error", "session_id"},
    "stream_stopped": {"reason", "session_id"},
}


def check_stream(frames: list[Frame], ends: str) -> None:
    """I24: one terminal event, and the end comes last; ids rise."""
    types = [frame.type for frame in frames]
    assert [type for type in types if type in ("turn_committed", "turn_failed")] == [ends]
    assert (types[0], types[-1], types.count("stream_stopped")) == ("stream_started", "stream_stopped", 1)
    ids = [frame.id or 0 for frame in frames]
    assert ids == sorted(set(ids))
    assert ids[0] > 0
    for frame in frames:
        assert frame.data.keys() >= FIELDS[frame.type], frame
        assert frame.name is None


def test_a_good_run_emits_the_documented_events(api: Api, trace: Trace) -> None:
    session = api.session("tools")
    frames = api.run(session, f"{trace.note('a')}\n!think hm\n!say one two", agent="tools").frames
    check_stream(frames, "turn_committed")
    assert kinds(frames) == [
        "stream_started",
        "user_message",
        "token_usage",
        "tool_call",
        "tool_call_response",
        "agent_choice_reasoning",
        "agent_choice",
        "token_usage",
        "turn_committed",
        "stream_stopped",
    ]
    received = {frame.type: frame.data for frame in frames}
    call = received["tool_call"]["tool_call"]
    assert (call["type"], call["function"]["name"]) == ("function", "note")
    assert json.loads(call["function"]["arguments"])["word"] == "a"
    assert received["tool_call_response"]["tool_call_id"] == call["id"]
    assert received["turn_committed"]["turn"] == api.brief(session)["head"]
    assert received["turn_committed"]["seq"] == 1
    assert received["stream_stopped"]["reason"] == "normal"
    assert received["token_usage"]["usage"].keys() >= {"input_tokens", "output_tokens", "cost"}


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_failed_run_says_so_once_and_then_stops(api: Api, when: str) -> None:
    session = api.session()
    frames = api.run(session, f"!fail {when}\n!say one two three").frames
    check_stream(frames, "turn_failed")
    assert kinds(frames)[-3:] == ["error", "turn_failed", "stream_stopped"]
    received = {frame.type: frame.data for frame in frames}
    assert received["error"]["code"] == received["turn_failed"]["code"] == "model_error"
    assert (received["turn_failed"]["retryable"], received["stream_stopped"]["reason"]) == (False, "error")
    assert api.history(session) == []


@pytest.mark.parametrize(
    ("reply", "code", "kind", "retryable"),
    [
        (refuses(500), "model_error", "model_overloaded", True),
        (breaks_off_after("one"), "model_error", "model_unreachable", True),
        (refuses(401), "model_error", "key_refused", False),
        (refuses(402), "model_error", "quota_used_up", False),
        (Reply([b"<html>hello</html>"]), "model_error", "model_garbled", True),
        (refuses(400), "model_error", None, False),
        (refuses(429), "rate_limited", None, True),
        (refuses(400, code="context_length_exceeded"), "context_overflow", None, False),
    ],
)
def test_a_provider_that_fails_has_one_code_and_what_failed_stands_beside_it(
    api: Api, fake: FakeModel, word: str, reply: Reply, code: str, kind: str | None, retryable: bool
) -> None:
    """In the events, at the attempt, and where the caller waits; what is stored stays the precise one."""
    fake.on(word, reply)
    session = api.session("remote")
    frames = {frame.type: frame.data for frame in api.run(session, word, agent="remote").frames}
    for received in (frames["error"], frames["turn_failed"]):
        assert (received["code"], received.get("kind")) == (code, kind)
    assert frames["turn_failed"]["retryable"] is retryable
    waited = api.turn(session, word)
    error = waited.json["error"]
    assert (error["code"], error.get("detail", {}).get("kind")) == (code, kind)
    assert waited.headers["x-should-retry"] == str(retryable).lower()
    for attempt in api.read(session, "/attempts"):
        assert (attempt["error"]["code"], attempt["error"].get("kind")) == (code, kind)
    stored = api.server.rows("SELECT DISTINCT error_code FROM attempts WHERE session_id = ?", session)
    assert stored == [(kind or code,)]


@pytest.mark.parametrize(("named", "name"), [("team", "root"), ("team/clerk", "clerk")])
def test_a_stream_begins_with_the_name_of_its_agent(api: Api, named: str, name: str) -> None:
    """As docker-agent has it: who of the source speaks. Its key is told with the session and the attempt."""
    started = api.post(f"/api/sessions/{api.session()}/agent/{named}", {"messages": said("hi")}).frames[0]
    assert (started.type, started.data["agent_name"]) == ("stream_started", name)


def test_a_cancelled_run_ends_as_cancelled_and_commits_nothing(api: Api, fake: FakeModel, word: str) -> None:
    """I14."""
    gate = Gate()
    script = fake.on(word, says("one", gate, "two"))
    session = api.session("remote")
    with api.asking("POST", run_path(session, "remote"), {"messages": said(word)}) as asked:
        gate.until_reached()
        cancelled = api.post(f"/api/sessions/{session}/cancel")
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        assert script.gone.wait(20)
        frames = asked.result().frames
    check_stream(frames, "turn_failed")
    assert frames[-1].data["reason"] == "canceled"
    assert (frames[-2].data["code"], frames[-2].data["retryable"]) == ("turn_cancelled", False)
    assert api.brief(session)["turns"] == 0
    assert api.post(f"/api/sessions/{session}/cancel").refusal == (409, "nothing_pending")


def test_events_continue_after_any_of_them_with_exactly_the_rest(api: Api) -> None:
    """I22."""
    session = api.session()
    streamed = api.run(session, "one").frames + api.run(session, "!fail during\n!say a b").frames
    api.run(session, "three")
    api.until_titled(session)
    every = events_of(api, session)
    ids = [frame.id for frame in every]
    assert ids == list(range(1, len(ids) + 1))
    assert [frame for frame in every if frame.id in {one.id for one in streamed}] == streamed
    for after in (0, 1, len(ids) // 2, len(ids) - 1):
        assert events_of(api, session, since=after) == every[after:]
        with api.stream("GET", f"/api/sessions/{session}/events", last_event_id=str(after)) as stream:
            assert next(iter(stream)) == every[after]
    named = events_of(api, session, query="named=1")
    assert [frame.name for frame in named] == [frame.type for frame in every]
    assert [frame.data for frame in named] == [frame.data for frame in every]
    assert api.ask("GET", f"/api/sessions/{session}/events?since=x").refusal == (400, "invalid_request")


def test_deleted_events_are_reported_as_one_resync(api: Api, server: LiveServer) -> None:
    session = api.session()
    for text in ("one", "two"):
        api.good(session, text)
    api.until_titled(session)
    (dropped, *_), *_ = server.rows(
        "SELECT last_event FROM attempts WHERE session_id = ? ORDER BY fence", session
    )
    with while_it_is_down(server) as database:
        database.execute("DELETE FROM events WHERE session_id = ? AND seq <= ?", (session, dropped))
        database.execute("UPDATE sessions SET events_dropped = ? WHERE id = ?", (dropped, session))
    old = events_of(api, session, since=1)
    assert (old[0].type, old[0].id, old[0].data["after"]) == ("resync", dropped, dropped)
    assert [frame.id for frame in old[1:]] == list(range(dropped + 1, dropped + len(old)))
    assert "resync" not in kinds(events_of(api, session, since=dropped))
    assert "resync" not in kinds(events_of(api, session)), "who asks for all that there is misses nothing"
    with api.stream("GET", f"/api/sessions/{session}/events?since=99999") as stream:
        assert next(iter(stream)).type == "resync"


def test_watchers_of_a_deleted_session_get_an_event(api: Api) -> None:
    session = api.session()
    api.good(session, "one")
    with api.stream("GET", f"/api/sessions/{session}/events") as stream:
        stream.until("turn_committed")
        api.delete(f"/api/sessions/{session}")
        last = list(stream)[-1]
    assert (last.type, last.id, last.data["session_id"]) == ("session_exited", None, session)
