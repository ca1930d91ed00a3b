"""What the tools of a session may do: its own rules and modes, set while it runs, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import (
    TOOLS,
    Api,
    Trace,
)
from tests.e2e.command import AGENT, Command
from tests.e2e.conftest import REMOTE
from tests.e2e.fake_model import FakeModel
from tests.e2e.server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fake: FakeModel) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("rights")
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    agents = (AGENT, *(str(folder / f"{name}.yaml") for name in ("remote", "tools")))
    with LiveServer(folder / "server", *agents, options=("--safety", "autonomous")) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def test_a_rule_that_is_set_while_a_turn_runs_holds_for_its_next_call(api: Api, trace: Trace) -> None:
    session = api.session("tools")
    api.begun(session, f"{trace.hold()}\n{trace.note('too late')}\n!say done")
    trace.until_held()
    patched = api.patch(f"/api/sessions/{session}/permissions", {"permissions": {"deny": ["note"]}})
    assert patched.json["permissions"] == {"allow": [], "ask": [], "deny": ["note"]}
    assert patched.json["status"] == "running"
    trace.release()
    results = tool_results(api.until_idle(session))
    assert results[0] == "held"
    assert "the rule 'note' denies it" in results[1]
    assert trace.words == []


def test_a_mode_that_is_set_while_a_turn_runs_holds_for_its_next_call(api: Api, trace: Trace) -> None:
    session = api.session("tools")
    api.begun(session, f"{trace.hold()}\n{trace.note('too late')}\n!say done")
    trace.until_held()
    patched = api.patch(f"/api/sessions/{session}/safety-policy", {"safety_policy": "restricted"})
    assert patched.json["safety_policy"] == "restricted"
    trace.release()
    assert "the safety mode is restricted" in tool_results(api.until_idle(session))[1]
    assert trace.words == []
    toggled = api.post(f"/api/sessions/{session}/tools/toggle")
    assert toggled.json["safety_policy"] == "autonomous"
    api.good(session, f"{trace.note('again')}\n!say done")
    assert trace.words == ["again"]
    assert "safety_policy" not in api.post(f"/api/sessions/{session}/tools/toggle").json


def tool_results(session: dict[str, Any]) -> list[str]:
    return [message["content"] for message in session["messages"] if message["role"] == "tool"]


def test_what_a_session_allows_answers_a_question_and_never_undoes_a_no(tmp_path: Path, trace: Trace) -> None:
    """On a server that asks: what is above its own mode is refused, whoever wants it."""
    (tmp_path / "tools.yaml").write_text(TOOLS.format(more="permissions:\n  deny: [hold]"))
    command = Command(tmp_path / "server")
    tokens = {
        name: command("tokens", "create", "--name", name, "--scope", scope).out.strip()
        for name, scope in (("user", "session"), ("boss", "session,approve"))
    }
    with LiveServer(
        tmp_path / "server", str(tmp_path / "tools.yaml"), options=("--safety", "balanced")
    ) as server:
        plain, boss = Api(server, tokens["user"]), Api(server, tokens["boss"])
        session = plain.session("tools")
        note = f"{trace.note('x')}\n!say done"
        asked = plain.turn(session, note)
        assert (asked.status, asked.json["status"]) == (202, "waiting")
        assert asked.json["question"]["tool"] == "note"
        assert plain.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 403
        assert plain.post(f"/api/sessions/{session}/cancel").status == 200
        rules = {"permissions": {"allow": ["note", "hold"]}}
        for path in (f"/api/sessions/{session}/permissions",):
            assert plain.patch(path, rules).refusal == (403, "forbidden")
        assert plain.post("/api/sessions", {"agent": "tools", **rules}).refusal == (403, "forbidden")
        for who in (plain, boss):
            for mode in ("autonomous", "restricted", "unsafe"):
                path = f"/api/sessions/{session}/safety-policy"
                assert who.patch(path, {"safety_policy": mode}).refusal == (403, "forbidden")
                made = who.post("/api/sessions", {"agent": "tools", "safety": mode})
                assert made.refusal == (403, "forbidden")
            assert who.post(f"/api/sessions/{session}/tools/toggle").refusal == (403, "forbidden")
        assert "safety_policy" not in plain.brief(session)
        assert boss.patch(f"/api/sessions/{session}/permissions", rules).status == 200
        assert tool_result(plain.good(session, note)) == "<no output>"
        assert trace.words == ["x"]
        assert "the rule 'hold' denies it" in tool_result(plain.good(session, f"{trace.hold()}\n!say no"))
        both = {"permissions": {"allow": ["note"], "deny": ["note"]}}
        assert boss.patch(f"/api/sessions/{session}/permissions", both).status == 200
        assert "the rule 'note' denies it" in tool_result(plain.good(session, note))
        assert trace.words == ["x"]
        tighter = plain.patch(f"/api/sessions/{session}/safety-policy", {"safety_policy": "strict"})
        assert tighter.json["safety_policy"] == "strict", "who may use a session may narrow it"


def tool_result(turn: dict[str, Any]) -> str:
    (result,) = tool_results(turn)
    return result


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/permissions", {"permissions": {"Deny": ["echo"]}}),
        ("/permissions", {"permissions": {"deny": ["echo"]}, "deny": ["echo"]}),
        ("/safety-policy", {"safety_policy": "strict", "safety": "strict"}),
    ],
)
def test_a_misspelt_rule_is_refused_and_takes_nothing_away(api: Api, path: str, plain: Any) -> None:
    session = api.session(permissions={"deny": ["echo"]})
    before = api.brief(session)
    assert api.patch(f"/api/sessions/{session}{path}", plain).refusal == (400, "invalid_request")
    assert api.brief(session) == before


@pytest.mark.parametrize("word", ["permission", "safty", "safety-policy"])
def test_what_is_nearly_a_rule_is_no_field_of_a_new_session(api: Api, word: str) -> None:
    refused = api.post("/api/sessions", {word: "strict"})
    assert refused.refusal == (400, "invalid_request")
    assert "did you mean" in refused.json["message"]


def test_a_condition_that_is_not_looked_at_is_refused(api: Api) -> None:
    session = api.session(title="named")
    api.good(session, "hello")
    before = api.brief(session)
    path = f"/api/sessions/{session}"
    for method, where, plain in (("DELETE", path, None), ("PATCH", f"{path}/title", {"title": "x"})):
        assert api.ask(method, where, plain, **{"if-match": "turn_other"}).refusal == (400, "invalid_request")
    forked = api.post(f"{path}/fork", {}, **{"idempotency-key": "k"})
    assert forked.refusal == (400, "invalid_request")
    assert api.brief(session) == before
