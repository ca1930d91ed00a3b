"""Runs over the session API, by mission row (M3), and what a client may rely on around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import USAGE_SUMS
from tests.e2e.api import TOOLS, Api, Given, Trace, events_of, kinds, locked, run_path, said, text_of, user
from tests.e2e.command import AGENT, until
from tests.e2e.conftest import REMOTE, TEAM
from tests.e2e.fake_model import FakeModel, Gate, says
from tests.e2e.server import LiveServer

WAYS = pytest.mark.parametrize("way", ["streamed", "waited for"])
#: Two models that are the same program, so that an override can be seen and always answers.
MODELS = """
providers:
  fake:
    base_url: {url}
models:
  fake:
    provider: fake
    model: m
  other:
    provider: fake
    model: other
agents:
  root:
    model: fake
    fallback:
      retries: -1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fake: FakeModel) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "models.yaml").write_text(MODELS.format(url=fake.url))
    (folder / "team.yaml").write_text(TEAM)
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    agents = (AGENT, *(str(folder / f"{name}.yaml") for name in ("remote", "models", "team", "tools")))
    with LiveServer(folder / "server", *agents, options=("--safety", "autonomous")) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def ask(api: Api, way: str, session: str, *what: Any, agent: str = AGENT, **more: Any) -> Given:
    """A run as a stream, or the same as a turn that is waited for."""
    if way == "streamed":
        headers = {name.removeprefix("h_"): more[name] for name in more if name.startswith("h_")}
        return api.run(session, *what, agent=agent, model=more.get("model"), **headers)
    return api.turn(session, *what, agent=agent, **more)


def dump(server: LiveServer) -> dict[str, list[tuple[Any, ...]]]:
    tables = server.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    # A sweep moves rows of usage whenever it likes, and changes no sum.
    found = {"usage": server.rows(USAGE_SUMS)}
    for (name,) in tables:
        if name == "uses":
            continue
        found.setdefault(name, sorted(server.rows(f"SELECT * FROM {name}"), key=repr))
    return found


def settled(api: Api) -> dict[str, list[tuple[Any, ...]]]:
    """The database once every title is in it: they are made beside the turns."""
    until(lambda: not api.server.rows("SELECT 1 FROM sessions WHERE head IS NOT NULL AND title = ''"))
    return dump(api.server)


# -- M3.1: one at a time -----------------------------------------------------------------


@WAYS
def test_M3_1_a_busy_session_refuses_at_once_and_changes_nothing(
    api: Api, fake: FakeModel, word: str, way: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("one", gate, " two"))
    session = api.session("remote")
    attempt = api.begun(session, word)
    gate.until_reached()
    until(lambda: api.read(session, "/attempts")[0]["status"] == "running")
    before = dump(api.server)
    refused = ask(api, way, session, f"{word} again", agent="remote")
    assert refused.refusal == (409, "session_busy")
    assert (refused.headers["x-should-retry"], int(refused.headers["retry-after"]) >= 1) == ("true", True)
    detail = refused.json["error"]["detail"]
    assert (detail["attempt"], detail["turn"], detail["status"]) == (
        attempt["id"],
        attempt["turn"],
        "running",
    )
    assert refused.json["message"] == refused.json["error"]["message"]
    after = dump(api.server)
    for table in ("requests", "attempts", "turns", "steps", "queued"):
        assert after[table] == before[table], f"a refusal was stored in {table}"
    assert len(script.requests) == 1, "the refused one asked the model"
    gate.open()
    assert api.until_idle(session)["turns"] == 1
    assert api.history(session) == [("user", word), ("assistant", "one two")]


def test_M3_1_another_session_is_not_held_up(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says(gate, "late"))
    slow = api.session("remote")
    api.begun(slow, word)
    gate.until_reached()
    assert api.good(api.session(), "quick")["seq"] == 1
    gate.open()
    api.until_idle(slow)


# -- M3.2, M3.3: the model of a run --------------------------------------------------------


@WAYS
@pytest.mark.parametrize("model", ["nobody/knows-this", "nonsense", "builtin/other"])
def test_M3_2_a_bad_model_leaves_no_trace(api: Api, way: str, model: str) -> None:
    session = api.session()
    api.good(session, "first")
    before = settled(api)
    refused = ask(api, way, session, "second", model=model)
    assert refused.refusal == (422, "model_unknown")
    assert refused.headers["x-should-retry"] == "false"
    assert dump(api.server) == before
    assert api.good(session, "third")["seq"] == 2


@WAYS
def test_M3_3_an_override_holds_for_this_turn_and_every_later_one_also_after_a_restart(
    api: Api, server: LiveServer, fake: FakeModel, word: str, way: str
) -> None:
    script = fake.on(word, says("yes"))
    session = api.session("models")
    assert ask(api, way, session, f"{word} 1", agent="models").status == 200
    assert api.brief(session)["model"] is None
    assert ask(api, way, session, f"{word} 2", agent="models", model="other").status == 200
    assert api.brief(session)["model"] == "other"
    assert ask(api, way, session, f"{word} 3", agent="models").status == 200
    server.restart()
    assert ask(api, way, session, f"{word} 4", agent="models").status == 200
    assert [one["model"] for one in script.requests] == ["m", "other", "other", "other"]
    assert api.brief(session)["model"] == "other"
    answered = [turn["model"] for turn in api.read(session, "/turns")]
    assert answered[1:] == ["fake/other"] * 3, "turns name the model that answered, the session its override"


@WAYS
def test_a_model_of_no_name_leaves_it_as_it_is(api: Api, fake: FakeModel, word: str, way: str) -> None:
    """docker-agent's clients send an empty one with every run."""
    script = fake.on(word, says("yes"))
    session = api.session("models")
    for model in ("", "other", ""):
        assert ask(api, way, session, word, agent="models", model=model).status == 200
    assert [one["model"] for one in script.requests] == ["m", "other", "other"]
    assert api.brief(session)["model"] == "other"


@WAYS
def test_M3_3_a_failed_turn_leaves_no_override(api: Api, fake: FakeModel, word: str, way: str) -> None:
    session = api.session()
    api.good(session, "fine")
    api.until_titled(session)
    before = api.brief(session)
    ask(api, way, session, "!fail during", model="builtin/scripted")
    after = api.brief(session)
    assert after.pop("last_event_seq") > before.pop("last_event_seq"), "what happened is told"
    assert after == before
    assert after["model"] is None


@pytest.mark.slow
def test_M3_4_when_the_store_cannot_be_written_everything_stays_as_it_was(
    api: Api, server: LiveServer
) -> None:
    """At begin; tests/flows/test_runs.py has the same for a commit."""
    session = api.session()
    api.good(session, "before")
    before, prompts = settled(api), len(server.prompts())
    with locked(server):
        refused = api.turn(session, "meanwhile", model="builtin/scripted")
    assert refused.refusal == (503, "store_unavailable")
    assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("true", "1")
    assert (dump(server), len(server.prompts())) == (before, prompts)
    assert api.good(session, "after")["seq"] == 2
    assert api.brief(session)["model"] is None


# -- M3.5: read to the end, run again --------------------------------------------------------


@WAYS
def test_M3_5_after_reading_to_the_end_no_client_gets_busy(api: Api, way: str) -> None:
    session = api.session()
    for number in range(100):
        given = ask(api, way, session, f"say {number}")
        assert given.status == 200, (number, given.body)
    assert api.brief(session)["turns"] == 100


# -- M3.6, M3.7, M3.8 --------------------------------------------------------------------------


def test_M3_6_the_working_directory_of_the_session_is_where_its_tools_work(api: Api, tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("found it")
    session = api.session("tools", working_dir=str(tmp_path))
    assert api.brief(session)["working_dir"] == str(tmp_path.resolve())
    turn = api.good(session, '!tool read_file {"path": "here.txt"}\n!say read')
    (result,) = (message["content"] for message in turn["messages"] if message["role"] == "tool")
    assert "found it" in result
    for bad in (str(tmp_path / "nowhere"), "relative", str(tmp_path / "here.txt"), f"{tmp_path}/../x"):
        assert api.post("/api/sessions", {"working_dir": bad}).refusal == (400, "invalid_request")


def test_M3_7_a_title_is_made_of_the_first_words_and_of_no_later_ones(api: Api) -> None:
    session = api.session()
    api.good(session, "What is a lighthouse for?")
    assert api.until_titled(session) == "What is a lighthouse for?"
    api.good(session, "And a buoy?")
    assert api.brief(session)["title"] == "What is a lighthouse for?"
    titles = [frame for frame in events_of(api, session) if frame.type == "session_title"]
    assert [frame.data["title"] for frame in titles] == ["What is a lighthouse for?"]


def test_M3_7_a_title_of_a_person_stays_even_if_it_is_given_while_the_first_turn_runs(
    api: Api, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(word, says(gate, "yes"))
    session = api.session("remote")
    api.begun(session, word)
    gate.until_reached()
    assert api.patch(f"/api/sessions/{session}/title", {"title": "Mine"}).json["title"] == "Mine"
    gate.open()
    api.until_idle(session)
    api.good(session, f"{word} again")
    assert api.brief(session)["title"] == "Mine"
    assert "session_title" not in kinds(events_of(api, session))
    given = api.session(title="From the start")
    api.good(given, "other words")
    api.good(given, "more words")
    assert api.brief(given)["title"] == "From the start"


def test_M3_8_what_was_built_for_a_session_serves_its_next_turn(api: Api) -> None:
    """A session's own folder is made once, and what one turn put there is there for the next."""
    session = api.session("tools")
    api.good(session, '!tool write_file {"path": "kept.txt", "content": "kept"}\n!say written')
    turn = api.good(session, '!tool read_file {"path": "kept.txt"}\n!say read')
    assert "kept" in turn["messages"][2]["content"]
    folder = api.server.data_dir / "work" / session
    assert (folder / "kept.txt").read_text() == "kept"
    assert api.delete(f"/api/sessions/{session}").status == 200
    assert not folder.exists()


@WAYS
def test_M3_8_deleting_a_session_cancels_its_run_and_nothing_of_it_appears_again(
    api: Api, fake: FakeModel, word: str, way: str
) -> None:
    """I15: delete is a fence."""
    gate = Gate()
    script = fake.on(word, says("one", gate, "two"))
    session = api.session("remote")
    path = run_path(session, "remote") if way == "streamed" else f"/api/sessions/{session}/turns"
    with api.asking("POST", path, {"messages": said(word), "wait": True}) as asked:
        gate.until_reached()
        assert api.delete(f"/api/sessions/{session}").json == {"message": "session deleted"}
        assert script.gone.wait(20), "the model goes on talking"
        given = asked.result()
    if way == "streamed":
        assert given.frames[-1].type in ("stream_stopped", "error")
        assert "turn_committed" not in kinds(given.frames)
    else:
        assert given.code in ("turn_cancelled", "session_not_found")
    gate.open()
    for more in ("", "/turns", "/attempts", "/queue", "/events"):
        assert api.ask("GET", f"/api/sessions/{session}{more}").refusal == (404, "session_not_found")
    for table, column in [("sessions", "id"), ("turns", "session_id"), ("attempts", "session_id")]:
        assert api.server.rows(f"SELECT 1 FROM {table} WHERE {column} = ?", session) == []
    assert api.server.rows("SELECT 1 FROM events WHERE session_id = ?", session) == []
    assert session not in [one["id"] for one in api.get("/api/sessions?limit=200")]


# -- what a request may say ----------------------------------------------------------------------


@WAYS
def test_every_message_of_a_request_is_kept_and_in_the_next_prompt(api: Api, way: str, word: str) -> None:
    session = api.session()
    ask(api, way, session, f"{word} one", f"{word} two", f"{word} three\n!say heard")
    ask(api, way, session, f"{word} four")
    received = [("user", f"{word} one"), ("user", f"{word} two"), ("user", f"{word} three\n!say heard")]
    assert api.history(session)[:4] == [*received, ("assistant", "heard")]
    assert api.server.seen(word)[-1] == [*received, ("assistant", "heard"), ("user", f"{word} four")]
    assert [turn["inputs"] for turn in api.read(session, "/turns")] == [3, 1]


@WAYS
@pytest.mark.parametrize("messages", [[], [user(" ")], [{"role": "assistant", "content": "me"}]])
def test_a_request_that_says_nothing_is_refused_and_replays_nothing(
    api: Api, way: str, messages: list[dict[str, Any]]
) -> None:
    session = api.session()
    api.good(session, "before")
    before, prompts = settled(api), len(api.server.prompts())
    assert ask(api, way, session, *messages).refusal == (400, "invalid_request")
    assert (dump(api.server), len(api.server.prompts())) == (before, prompts)


def test_the_body_of_a_run_may_be_the_bare_array(api: Api) -> None:
    session = api.session()
    given = api.post(run_path(session), said("bare", "words"))
    assert text_of(given.frames) == "You said: words"
    assert api.history(session)[:2] == [("user", "bare"), ("user", "words")]
    assert api.post(run_path(session), []).refusal == (400, "invalid_request")


@WAYS
def test_the_agent_of_a_request_is_the_one_that_runs_and_the_sessions_own_stays(api: Api, way: str) -> None:
    """docker-agent reuses the runtime of the first run, whatever the next one names."""
    session = api.session()
    ask(api, way, session, "one")
    ask(api, way, session, "two\n!say two", agent="tools")
    ask(api, way, session, "three")
    turns = api.read(session, "/turns")
    assert [turn["agent_key"] for turn in turns] == [AGENT, "tools", AGENT]
    assert turns[0]["agent_digest"] == turns[2]["agent_digest"] != turns[1]["agent_digest"]
    assert AGENT in turns[1]["decision"]["reason"]
    assert api.brief(session)["agent_key"] == AGENT
    assert api.good(session, "four", agent=None)["agent_key"] == AGENT


def test_a_session_without_an_agent_takes_the_first_that_answers(api: Api) -> None:
    session = api.post("/api/sessions", {}).json["id"]
    assert api.brief(session)["agent_key"] == ""
    assert api.turn(session, "who?").refusal == (400, "invalid_request")
    api.run(session, "!fail before", agent="tools")
    assert api.brief(session)["agent_key"] == "", "a failed turn has bound it"
    api.run(session, "one", agent="team")
    assert api.brief(session)["agent_key"] == "team"
    assert api.good(session, "two")["agent_key"] == "team"


def test_a_member_of_a_team_can_be_asked_by_its_name(api: Api) -> None:
    session = api.session("team")
    given = api.post(run_path(session, "team", "clerk"), {"messages": said("!tool think {}\n!say filed")})
    assert text_of(given.frames) == "filed"
    (response,) = (frame for frame in given.frames if frame.type == "tool_call_response")
    assert "unknown tool 'think'" in response.data["response"], "the clerk has no tools"
    assert response.data["result"] == {"output": response.data["response"], "isError": True}
    (turn,) = api.read(session, "/turns")
    assert (turn["decision"]["agent"], turn["decision"]["name"]) == ("exact", "clerk")
    refused = api.post(run_path(session, "team", "nobody"), {"messages": said("hello")})
    assert refused.refusal == (404, "agent_not_found")


@WAYS
def test_an_unknown_agent_is_a_404_and_leaves_no_trace(api: Api, way: str) -> None:
    session = api.session()
    api.good(session, "before")
    before = settled(api)
    assert ask(api, way, session, "hello", agent="nobody").refusal == (404, "agent_not_found")
    assert dump(api.server) == before


def test_the_end_user_is_recorded_with_the_turn(api: Api) -> None:
    session = api.session()
    path = f"/api/sessions/{session}/turns"
    api.post(path, {"messages": said("one"), "wait": True}, x_user_id="ada")
    api.post(path, {"messages": said("two"), "wait": True, "user": "bob"}, x_user_id="ada")
    api.post(path, {"messages": said("three"), "wait": True})
    api.post(run_path(session), {"messages": said("four"), "user": "cleo"})
    assert [turn.get("user") for turn in api.read(session, "/turns")] == ["ada", "bob", None, "cleo"]
    assert api.post(path, {"messages": said("x"), "user": "u" * 513}).refusal == (400, "invalid_request")
    assert api.post(path, {"messages": said("x")}, x_user_id="u" * 513).refusal == (400, "invalid_request")


# -- conditions ---------------------------------------------------------------------------------


@WAYS
def test_a_turn_that_must_follow_another_than_the_head_changes_nothing(api: Api, way: str) -> None:
    session = api.session()
    assert ask(api, way, session, "zero", h_if_match='"turn_x"').refusal == (412, "stale_head")
    first = api.good(session, "one")["id"]
    tag = api.ask("GET", f"/api/sessions/{session}").headers["etag"]
    assert tag == f'"{first}"'
    assert ask(api, way, session, "two", h_if_match=tag).status == 200
    second = api.brief(session)["head"]
    before = settled(api)
    refused = ask(api, way, session, "three", h_if_match=tag)
    assert refused.refusal == (412, "stale_head")
    assert refused.json["error"]["detail"]["head"] == second
    assert dump(api.server) == before
    assert ask(api, way, session, "three", h_if_match=second).status == 200
    assert ask(api, way, session, "four", h_if_match="*").status == 200


@WAYS
def test_a_turn_that_must_be_the_first_is_refused_by_a_session_that_has_one(api: Api, way: str) -> None:
    session = api.session()
    assert ask(api, way, session, "one", h_if_none_match="*").status == 200
    before = settled(api)
    assert ask(api, way, session, "two", h_if_none_match="*").refusal == (412, "stale_head")
    assert dump(api.server) == before


# -- idempotency ----------------------------------------------------------------------------------


@WAYS
def test_a_request_sent_again_while_it_runs_attaches_to_its_run(
    api: Api, fake: FakeModel, word: str, way: str
) -> None:
    """I20."""
    gate = Gate()
    script = fake.on(word, says("one", gate, " two"))
    session = api.session("remote")
    path = run_path(session, "remote") if way == "streamed" else f"/api/sessions/{session}/turns"
    body = {"messages": said(word), "wait": True}
    with (
        api.asking("POST", path, body, idempotency_key=f"key-{word}") as first,
        api.asking("POST", path, body, idempotency_key=f"key-{word}") as second,
    ):
        gate.until_reached()
        until(lambda: running_requests(api) >= 2)
        gate.open()
        one, two = first.result(), second.result()
    assert one.status == two.status == 200
    assert one.headers["x-attempt-id"] == two.headers["x-attempt-id"]
    if way == "streamed":
        assert text_of(one.frames) == text_of(two.frames) == "one two"
        assert [frame.id for frame in one.frames] == [frame.id for frame in two.frames]
    else:
        assert one.json == two.json
    assert len(script.requests) == 1
    assert api.brief(session)["turns"] == 1


def running_requests(api: Api) -> int:
    """Besides the one that asks."""
    return int(api.server.metric("lastgood_http_requests_running")) - 1


@WAYS
def test_a_committed_request_is_replayed_also_after_a_restart(
    api: Api, server: LiveServer, way: str, word: str, trace: Trace
) -> None:
    session = api.session("tools")
    said_once = f"{word}\n{trace.note('once')}\n!say done"
    key = {"h_idempotency_key": f"key-{word}"}
    first = ask(api, way, session, said_once, agent="tools", **key)
    assert "idempotent-replayed" not in first.headers
    for restarts in (False, True):
        if restarts:
            server.restart()
        again = ask(api, way, session, said_once, agent="tools", **key)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.headers["x-turn-id"] == first.headers["x-turn-id"]
        if way == "streamed":
            assert again.frames == first.frames
        else:
            assert again.json == first.json
    assert trace.words == ["once"]
    assert api.brief(session)["turns"] == 1
    other = ask(api, way, session, f"{said_once} and more", agent="tools", **key)
    assert other.refusal == (422, "idempotency_mismatch")
    assert ask(api, way, api.session("tools"), said_once, agent="tools", **key).status == 422


@WAYS
def test_a_failed_request_sent_again_tries_the_same_turn_again(api: Api, way: str, word: str) -> None:
    session = api.session()
    api.good(session, "before")
    key = {"h_idempotency_key": f"key-{word}"}
    first = ask(api, way, session, f"{word}\n!fail during 1\n!say one two three", **key)
    if way == "streamed":
        assert first.frames[-1].data["reason"] == "error"
    else:
        assert first.refusal == (500, "model_error")
    again = ask(api, way, session, f"{word}\n!fail during 1\n!say one two three", **key)
    assert again.status == 200
    assert first.headers["x-turn-id"] == again.headers["x-turn-id"]
    tries = api.read(session, "/attempts")[1:]
    assert [(one["turn"], one["number"], one["status"]) for one in tries] == [
        (first.headers["x-turn-id"], 1, "failed"),
        (first.headers["x-turn-id"], 2, "committed"),
    ]
    prompts = api.server.seen(word)
    assert len(prompts) == 2
    assert prompts[0] == prompts[1], "the retry saw something of the failed try"


def test_a_keyed_request_that_a_kill_interrupted_is_tried_again_and_its_sender_attaches(
    api: Api, server: LiveServer, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("one", gate, " two"), says("one two"))
    session = api.session("remote")
    body = {"messages": said(word)}
    gone = api.send_and_go(run_path(session, "remote"), body, idempotency_key=f"key-{word}")
    gate.until_reached()
    server.restart()
    gone.close()
    again = api.post(run_path(session, "remote"), body, idempotency_key=f"key-{word}")
    assert text_of(again.frames) == "one two"
    assert [one["status"] for one in api.read(session, "/attempts")] == ["interrupted", "committed"]
    assert len(script.requests) == 2
    assert api.brief(session)["turns"] == 1


@WAYS
def test_a_disconnect_does_not_end_a_run(api: Api, fake: FakeModel, word: str, way: str) -> None:
    gate = Gate()
    fake.on(word, says("one", gate, " two"))
    session = api.session("remote")
    path = run_path(session, "remote") if way == "streamed" else f"/api/sessions/{session}/turns"
    gone = api.send_and_go(path, {"messages": said(word), "wait": True})
    gate.until_reached()
    gone.close()
    until(lambda: running_requests(api) == 0)
    assert api.brief(session)["streaming"] is True
    gate.open()
    assert api.until_idle(session)["turns"] == 1
    assert api.history(session) == [("user", word), ("assistant", "one two")]


# -- continue ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_a_failed_attempt_continues_after_its_finished_steps(api: Api, trace: Trace, waits: bool) -> None:
    session = api.session("tools")
    failed = api.turn(session, f"{trace.note('once')}\n!fail before 1\n!say done")
    assert failed.refusal == (424, "model_error")
    assert failed.headers["x-should-retry"] == "false", "a new request would run its tool again"
    attempt = failed.headers["x-attempt-id"]
    assert [step["kind"] for step in api.read(session, f"/attempts/{attempt}")["steps"]] == ["model", "tool"]
    given = api.post(f"/api/sessions/{session}/attempts/{attempt}/continue", {"wait": waits})
    if waits:
        assert (given.status, given.json["id"]) == (200, failed.headers["x-turn-id"])
    else:
        assert (given.status, given.json["continues"]) == (202, attempt)
        api.until_idle(session)
    assert trace.words == ["once"]
    (turn,) = api.read(session, "/turns")
    assert turn["id"] == failed.headers["x-turn-id"]
    assert [message["role"] for message in turn["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert "recovery" in turn["decision"]
    newest = api.read(session, "/attempts")[-1]
    assert (newest["status"], newest["continues"], newest["number"]) == ("committed", attempt, 2)


def test_what_cannot_be_continued_says_why(api: Api, fake: FakeModel, trace: Trace, word: str) -> None:
    session = api.session("tools")
    path = f"/api/sessions/{session}/attempts"
    failed = api.turn(session, f"{trace.note('once')}\n!fail before\n!say done").headers["x-attempt-id"]
    assert api.post(f"{path}/att_nobody/continue").refusal == (404, "attempt_not_found")
    nobodys = f"/api/sessions/ses_nobody/attempts/{failed}/continue"
    assert api.post(nobodys).refusal == (404, "session_not_found")
    other = api.session()
    assert api.post(f"/api/sessions/{other}/attempts/{failed}/continue").refusal == (404, "attempt_not_found")
    good = api.good(session, "the head moves")["attempt"]
    before = settled(api)
    assert api.post(f"{path}/{failed}/continue").refusal == (409, "conflict")
    assert api.post(f"{path}/{good}/continue").refusal == (409, "conflict")
    assert dump(api.server) == before
    assert trace.words == ["once"]


def test_what_runs_is_not_continued(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says("one", gate, "two"))
    session = api.session("remote")
    attempt = api.begun(session, word)["id"]
    gate.until_reached()
    refused = api.post(f"/api/sessions/{session}/attempts/{attempt}/continue")
    assert refused.refusal == (409, "session_busy")
    gate.open()
    api.until_idle(session)
