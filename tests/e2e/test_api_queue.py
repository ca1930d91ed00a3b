"""What is said to a session for later: heard, run or parked, in order, and exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.core.parking_policy import HELD_AFTER_CANCEL
from tests.e2e.api import TOOLS, Api, Given, Trace, kinds, run_path, said, text_of
from tests.e2e.command import AGENT, until
from tests.e2e.conftest import REMOTE
from tests.e2e.fake_model import FakeModel, Gate, breaks_off_after, says
from tests.e2e.server import LiveServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("queue")


@pytest.fixture(scope="module")
def server(folder: Path, fake: FakeModel) -> Iterator[LiveServer]:
    (folder / "agents").mkdir()
    (folder / "agents" / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "agents" / "tools.yaml").write_text(TOOLS.format(more=""))
    options = ("--safety", "autonomous", "--shutdown-grace", "0.2s")
    with LiveServer(folder / "server", AGENT, str(folder / "agents"), options=options) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def later(api: Api, session: str, kind: str, *what: Any, **headers: str) -> Given:
    return api.post(f"/api/sessions/{session}/{kind}", {"messages": said(*what)}, **headers)


def put(api: Api, session: str, kind: str, *what: Any, **headers: str) -> Any:
    given = later(api, session, kind, *what, **headers)
    assert given.status == 202, given.body
    return given.json


def items(api: Api, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.read(session, "/queue")["items"]
    return found


def until_empty(api: Api, session: str) -> list[list[str]]:
    """Until nothing waits and nothing runs; then what the user said in each turn."""
    until(lambda: not items(api, session) and api.brief(session)["status"] == "idle")
    return user_said(api, session)


def user_said(api: Api, session: str) -> list[list[str]]:
    """By turn, in the order of the chain."""
    return [
        [message["content"] for message in turn["messages"] if message["role"] == "user"]
        for turn in api.read(session, "/turns?limit=200")
    ]


def held(api: Api, trace: Trace, session: str, *more: str, word: str = "held", **options: Any) -> Any:
    """An attempt that is in the middle of a tool call."""
    lines = "\n".join((trace.hold(word), *more, "!say done"))
    attempt = api.begun(session, lines, agent="tools", **options)
    trace.until_held(word)
    return attempt


# -- steers ------------------------------------------------------------------------------


def test_a_steer_is_read_between_a_tool_and_the_next_model_call(api: Api, trace: Trace, word: str) -> None:
    session = api.session("tools")
    held(api, trace, session)
    first = put(api, session, "steer", f"{word} first")
    second = put(api, session, "steer", f"{word} second\n!say steered")
    assert (first["status"], first["kind"], first["duplicate"]) == ("queued", "steer", False)
    assert api.read(session, "/queue")["steer"] == {"depth": 2, "capacity": 5}
    assert not api.server.seen(word), "it was told in the middle of a call"
    trace.release()
    assert len(until_empty(api, session)) == 1
    (prompt,) = api.server.seen(word)
    assert [role for role, _ in prompt] == ["user", "assistant", "tool", "user", "user"]
    assert prompt[-2:] == [("user", f"{word} first"), ("user", f"{word} second\n!say steered")]
    turn = api.read(session, "/turns")[0]
    roles = [message["role"] for message in turn["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "user", "assistant"]
    assert turn["messages"][-1]["content"] == "steered"
    assert first["id"] < second["id"]
    api.good(session, f"{word} next")
    assert [text for role, text in api.server.seen(word)[-1] if role == "user"][1:3] == [
        f"{word} first",
        f"{word} second\n!say steered",
    ], "a later prompt has it where it was heard"


def test_a_steer_is_streamed_to_watchers(api: Api, trace: Trace, word: str) -> None:
    session = api.session("tools")
    body = {"messages": said(f"{trace.hold()}\n!say done")}
    with api.asking("POST", run_path(session, "tools"), body) as asked:
        trace.until_held()
        put(api, session, "steer", f"{word}\n!say steered", "and this\n!say steered")
        trace.release()
        frames = asked.result().frames
    received = [frame.data for frame in frames if frame.type == "user_message"]
    assert [one.get("steer", False) for one in received] == [False, True]
    assert received[1]["message"] == f"{word}\n!say steered\n\nand this\n!say steered", (
        "a steer is one message"
    )
    assert text_of(frames) == "steered"
    assert kinds(frames)[-2:] == ["turn_committed", "stream_stopped"]


def test_there_is_nothing_to_steer_in_a_session_where_nothing_runs(api: Api) -> None:
    session = api.session()
    assert later(api, session, "steer", "anybody?").refusal == (409, "nothing_pending")
    api.good(session, "one")
    assert later(api, session, "steer", "anybody?").refusal == (409, "nothing_pending")
    assert items(api, session) == []
    assert later(api, "ses_nobody", "steer", "x").refusal == (404, "session_not_found")


@pytest.mark.parametrize(
    "body", [{"messages": []}, {"messages": [{"role": "assistant", "content": "x"}]}, {}]
)
def test_what_says_nothing_is_not_queued(api: Api, body: dict[str, Any]) -> None:
    session = api.session()
    for kind in ("steer", "followup"):
        given = api.post(f"/api/sessions/{session}/{kind}", body)
        assert given.refusal == (400, "invalid_request")
    assert items(api, session) == []


def test_a_steer_that_came_too_late_runs_as_a_turn_of_its_own(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    script = fake.on(word, says("one", gate, " two"), says("late answer"))
    session = api.session("remote")
    api.begun(session, f"{word} first")
    gate.until_reached()
    put(api, session, "steer", f"{word} too late")
    gate.open()
    assert until_empty(api, session) == [[f"{word} first"], [f"{word} too late"]]
    assert api.history(session)[-1] == ("assistant", "late answer")
    assert len(script.requests) == 2


ENDS = {"fail": "failed", "cancel": "cancelled", "kill": "interrupted"}


@pytest.mark.parametrize("end", ENDS)
def test_any_other_end_returns_a_read_steer_and_it_is_consumed_once(
    api: Api, server: LiveServer, trace: Trace, word: str, end: str
) -> None:
    """A plain request: after a kill nobody is owed its turn, but the steer was acknowledged."""
    session = api.session("tools")
    steer = f"{word}\n{trace.hold('second')}\n!say done" + ("\n!fail before 1" if end == "fail" else "")
    gone = api.send_and_go(run_path(session, "tools"), {"messages": said(f"{trace.hold('first')}\n!say no")})
    trace.until_held("first")
    put(api, session, "steer", steer)
    trace.release("first")
    trace.until_held("second")
    (item,) = items(api, session)
    assert (item["kind"], item["attempt"]) == ("steer", api.brief(session)["attempt"])
    end_it(api, server, session, end)
    trace.release("second")
    assert until_empty(api, session) == [[steer]]
    assert api.read(session, "/attempts")[0]["status"] == ENDS[end]
    gone.close()


@pytest.mark.parametrize("end", ENDS)
def test_any_other_end_returns_an_unread_steer_and_it_is_consumed_once(
    api: Api, server: LiveServer, fake: FakeModel, word: str, end: str
) -> None:
    gate = Gate()
    script = fake.on(word, breaks_off_after("one", gate), says("yes"))
    session = api.session("remote")
    gone = api.send_and_go(run_path(session, "remote"), {"messages": said(f"{word} first")})
    gate.until_reached()
    put(api, session, "steer", f"{word} steer")
    end_it(api, server, session, end)
    gate.open()
    assert until_empty(api, session) == [[f"{word} steer"]]
    assert [one["status"] for one in api.read(session, "/attempts")] == [ENDS[end], "committed"]
    assert script.prompts[-1] == [("user", f"{word} steer")], "something of the other turn was shown"
    gone.close()


def end_it(api: Api, server: LiveServer, session: str, end: str) -> None:
    """What fails fails by itself. What a cancel holds is continued."""
    if end == "cancel":
        assert api.post(f"/api/sessions/{session}/cancel").json["status"] == "cancelled"
        for item in items(api, session):
            assert item["parked"] == HELD_AFTER_CANCEL
            assert api.post(f"/api/sessions/{session}/queue/{item['id']}/retry").status == 202
    elif end == "kill":
        server.restart()


# -- follow-ups -----------------------------------------------------------------------------


def test_follow_ups_run_in_order_one_per_turn_after_what_runs(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says("one", gate, " two"), says("yes"))
    session = api.session("remote")
    api.begun(session, f"{word} 0")
    gate.until_reached()
    queued = [put(api, session, "followup", f"{word} {number}") for number in range(1, 5)]
    assert {one["status"] for one in queued} == {"queued_streaming"}
    assert [one["messages"][0]["content"] for one in items(api, session)] == [
        f"{word} {number}" for number in range(1, 5)
    ]
    assert api.read(session, "/queue")["followup"] == {"depth": 4, "capacity": 20}
    gate.open()
    assert until_empty(api, session) == [[f"{word} {number}"] for number in range(5)]
    assert [turn["id"] for turn in api.read(session, "/turns")][1:] == [one["turn"] for one in queued]


def test_a_follow_up_of_an_idle_session_runs_at_once_with_its_model_agent_and_user(api: Api) -> None:
    session = api.session()
    body = {"messages": said("one", "two"), "agent": "tools", "model": "builtin/scripted", "user": "ada"}
    given = api.post(f"/api/sessions/{session}/followup", body)
    assert (given.status, given.json["status"]) == (202, "queued_idle")
    assert until_empty(api, session) == [["one", "two"]]
    (turn,) = api.read(session, "/turns")
    assert (turn["id"], turn["agent_key"], turn["user"]) == (given.json["turn"], "tools", "ada")
    assert api.brief(session)["model"] == "builtin/scripted"


def test_a_follow_up_with_a_model_of_no_name_leaves_the_model_as_it_is(api: Api) -> None:
    session = api.session(model="builtin/scripted")
    given = api.post(f"/api/sessions/{session}/followup", {"messages": said("one"), "model": ""})
    assert given.status == 202
    assert until_empty(api, session) == [["one"]]
    assert api.brief(session)["model"] == "builtin/scripted"


def test_follow_ups_outlive_a_kill_each_exactly_once(api: Api, server: LiveServer, trace: Trace) -> None:
    session = api.session("tools")
    body = {"messages": said(f"{trace.hold('plain')}\n!say never")}
    gone = api.send_and_go(run_path(session, "tools"), body)
    trace.until_held("plain")
    queued = [
        put(api, session, "followup", f"{trace.note('one')}\n!say 1"),
        put(api, session, "followup", f"{trace.note('two')}\n{trace.hold('two')}\n!say 2"),
        put(api, session, "followup", f"{trace.note('three')}\n!say 3"),
    ]
    server.restart()
    gone.close()
    trace.until_held("two")
    server.restart()  # in the middle of the second one, whose first tool was used
    trace.release("two")
    said_now = until_empty(api, session)
    assert [lines[0].splitlines()[-1] for lines in said_now] == ["!say 1", "!say 2", "!say 3"]
    assert [turn["id"] for turn in api.read(session, "/turns")] == [one["turn"] for one in queued]
    assert trace.words == ["one", "two", "three"], "a finished call was repeated"


def test_one_that_fails_twice_is_parked_with_its_reason_and_the_others_continue(api: Api) -> None:
    session = api.session()
    bad = put(api, session, "followup", "bad\n!fail before")
    put(api, session, "followup", "good")
    until(lambda: user_said(api, session) == [["good"]])
    (item,) = items(api, session)
    assert (item["id"], item["failures"]) == (bad["id"], 2)
    assert "as directed" in item["parked"]
    assert api.read(session, "/queue")["followup"]["depth"] == 0, "what is parked takes nobody's place"
    assert [one["status"] for one in api.read(session, "/attempts")] == ["failed", "failed", "committed"]
    api.until_idle(session)
    assert api.good(session, "and now")["seq"] == 2


def test_a_parked_entry_is_retried_or_dropped_on_request(api: Api) -> None:
    session = api.session()
    bad = put(api, session, "followup", "bad\n!fail before 3")
    other = put(api, session, "followup", "worse\n!fail before")
    until(lambda: all("parked" in item for item in items(api, session)))
    path = f"/api/sessions/{session}/queue"
    retried = api.post(f"{path}/{bad['id']}/retry")
    assert (retried.status, retried.json) == (202, {"status": "queued"})
    until(lambda: user_said(api, session) == [["bad\n!fail before 3"]])
    assert [one["id"] for one in items(api, session)] == [other["id"]]
    dropped = api.delete(f"{path}/{other['id']}")
    assert (dropped.status, dropped.json) == (200, {"status": "dropped"})
    assert items(api, session) == []
    for again in (api.delete(f"{path}/{other['id']}"), api.post(f"{path}/{bad['id']}/retry")):
        assert again.refusal == (409, "conflict")
    assert api.delete(f"{path}/x").refusal == (400, "invalid_request")
    assert api.delete("/api/sessions/ses_nobody/queue/1").refusal == (404, "session_not_found")


def test_one_that_waits_can_be_dropped_and_one_that_runs_cannot(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says("one", gate, "two"))
    session = api.session("remote")
    first, second = (put(api, session, "followup", f"{word} {number}") for number in (1, 2))
    gate.until_reached()
    path = f"/api/sessions/{session}/queue"
    assert api.delete(f"{path}/{first['id']}").refusal == (409, "conflict")
    assert api.delete(f"{path}/{second['id']}").status == 200
    gate.open()
    assert until_empty(api, session) == [[f"{word} 1"]]


def test_a_cancelled_follow_up_is_parked_and_the_next_one_is_held_until_it_is_continued(
    api: Api, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(word, says("one", gate, "two"), says("yes"))
    session = api.session("remote")
    put(api, session, "followup", f"{word} 1")
    put(api, session, "followup", f"{word} 2")
    gate.until_reached()
    api.post(f"/api/sessions/{session}/cancel")
    cancelled, held = items(api, session)
    assert [cancelled["parked"], held["parked"]] == ["The turn was cancelled", HELD_AFTER_CANCEL]
    assert api.post(f"/api/sessions/{session}/queue/{held['id']}/retry").status == 202
    until(lambda: user_said(api, session) == [[f"{word} 2"]])
    assert [item["id"] for item in items(api, session)] == [cancelled["id"]]


def test_a_full_queue_says_so_and_takes_nothing(api: Api, trace: Trace) -> None:
    session = api.session("tools")
    held(api, trace, session)
    for kind, capacity in (("steer", 5), ("followup", 20)):
        for number in range(capacity):
            put(api, session, kind, f"{kind} {number}\n!say ok")
        full = later(api, session, kind, "one too many")
        assert full.refusal == (429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        assert api.read(session, "/queue")[kind] == {"depth": capacity, "capacity": capacity}
    trace.release()
    turns = until_empty(api, session)
    assert turns[0][1:] == [f"steer {number}\n!say ok" for number in range(5)]
    assert turns[1:] == [[f"followup {number}\n!say ok"] for number in range(20)]


@pytest.mark.parametrize("kind", ["followup", "steer"])
def test_one_that_is_sent_again_under_its_key_is_there_once(
    api: Api, server: LiveServer, trace: Trace, word: str, kind: str
) -> None:
    session = api.session("tools")
    held(api, trace, session)
    first = put(api, session, kind, f"{word}\n!say ok", idempotency_key=f"key-{word}")
    again = put(api, session, kind, f"{word}\n!say ok", idempotency_key=f"key-{word}")
    assert (first["duplicate"], again["duplicate"], again["status"]) == (False, True, "duplicate")
    assert (first["id"], first["turn"]) == (again["id"], again["turn"])
    other = later(api, session, kind, f"{word} other", idempotency_key=f"key-{word}")
    assert other.refusal == (422, "idempotency_mismatch")
    trace.release()
    until_empty(api, session)
    late = put(api, session, kind, f"{word}\n!say ok", idempotency_key=f"key-{word}")
    assert late["duplicate"] is True, "its key is remembered after it has run"
    assert items(api, session) == []
    assert sum(word in text for turn in user_said(api, session) for text in turn) == 1


def test_a_follow_up_whose_agent_is_broken_is_parked_without_telling_of_its_file(
    api: Api, folder: Path, trace: Trace
) -> None:
    broken = folder / "agents" / "broken.yaml"
    broken.write_text("agents:\n  root:\n    model: nowhere/at-all\n    secret_sauce: 1\n")
    session = api.session("tools")
    api.begun(session, trace.hold("first"))
    trace.until_held("first")
    given = api.post(f"/api/sessions/{session}/followup", {"messages": said("later"), "agent": "broken"})
    assert given.status == 202, given.body
    trace.release("first")
    until(lambda: any("parked" in item for item in items(api, session)))
    (item,) = items(api, session)
    broken.unlink()
    assert "see the server log" in item["parked"]
    assert "sauce" not in item["parked"]
    assert str(folder) not in item["parked"]


def test_a_follow_up_whose_agent_is_gone_is_parked(api: Api, folder: Path, trace: Trace) -> None:
    passing = folder / "agents" / "passing.yaml"
    passing.write_text("agents:\n  root:\n    model: builtin/scripted\n")
    session = api.session("tools")
    held(api, trace, session)
    body = {"messages": said("who?"), "agent": "passing"}
    assert api.post(f"/api/sessions/{session}/followup", body).status == 202
    put(api, session, "followup", "after it\n!say ok")
    passing.unlink()
    trace.release()
    until(lambda: len(user_said(api, session)) == 2)
    (item,) = items(api, session)
    assert "Agent not found" in item["parked"]
    assert "passing" in item["parked"]
    assert user_said(api, session)[1] == ["after it\n!say ok"]


def test_a_continued_follow_up_leaves_the_queue(api: Api, trace: Trace) -> None:
    """Continued by a person it is committed; tried again after that it would never come to an end."""
    session = api.session("tools")
    item = put(api, session, "followup", f"{trace.note('once')}\n!fail before 2\n!say done")
    until(lambda: "parked" in items(api, session)[0])
    last = api.read(session, "/attempts")[-1]
    given = api.post(f"/api/sessions/{session}/attempts/{last['id']}/continue", {"wait": True})
    assert (given.status, given.json["id"]) == (200, item["turn"])
    assert items(api, session) == []
    assert trace.words == ["once"], "neither the second try nor the continuation runs a finished tool again"
    retried = api.post(f"/api/sessions/{session}/queue/{item['id']}/retry")
    assert retried.refusal == (409, "conflict")


# -- both ------------------------------------------------------------------------------------


def test_after_a_kill_the_adopted_steps_keep_a_steer_exactly_once(
    api: Api, server: LiveServer, trace: Trace, word: str
) -> None:
    """Promised turns go on after their finished steps; a call whose outcome is unknown is not repeated."""
    session = api.session("tools")
    attempt = held(api, trace, session, word="first")
    put(api, session, "steer", f"{word}\n{trace.note('a')}\n{trace.hold('second')}\n!say end")
    trace.release("first")
    trace.until_held("second")
    server.restart()
    turns = until_empty(api, session)
    assert len(turns) == 1
    assert sum(word in text for text in turns[0]) == 1
    (turn,) = api.read(session, "/turns")
    assert turn["id"] == attempt["turn"]
    assert turn["messages"][-1]["content"] == "end"
    results = [message["content"] for message in turn["messages"] if message["role"] == "tool"]
    assert "was not repeated" in results[-1]
    assert trace.words == ["a"]
    first, second = api.read(session, "/attempts")
    assert (first["status"], second["status"], second["continues"]) == (
        "interrupted",
        "committed",
        first["id"],
    )
    for prompt in server.seen(word):
        assert sum(word in str(text) for _, text in prompt) == 1


def test_a_stopped_server_leaves_what_waits_for_its_next_start(
    api: Api, server: LiveServer, trace: Trace
) -> None:
    session = api.session("tools")
    held(api, trace, session)
    put(api, session, "followup", "later\n!say ok")
    assert server.stop() == 0
    trace.release()
    server.start()
    assert len(until_empty(api, session)) == 2
    assert user_said(api, session)[1] == ["later\n!say ok"]


def test_what_waits_goes_with_its_session(api: Api, server: LiveServer, trace: Trace) -> None:
    session = api.session("tools")
    held(api, trace, session)
    put(api, session, "followup", "later\n!say ok")
    put(api, session, "steer", "now\n!say ok")
    assert api.delete(f"/api/sessions/{session}").status == 200
    assert later(api, session, "followup", "more").refusal == (404, "session_not_found")
    assert server.rows("SELECT 1 FROM queued WHERE session_id = ?", session) == []
    assert server.rows("SELECT 1 FROM attempts WHERE session_id = ?", session) == []
