"""Tool calls that need a person: asked, approved or rejected over HTTP, across restarts, and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import Api, while_it_is_down
from tests.e2e.command import Command, until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def write_agent(folder: Path, **more: object) -> str:
    agent = {"model": "builtin/scripted", "toolsets": [{"type": "shell"}], **more}
    path = folder / "shelly.yaml"
    path.write_text(yaml.safe_dump({"agents": {"root": agent}}))
    return str(path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, write_agent(tmp_path), options=("--safety", "balanced")) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def shell(command: str) -> str:
    return f'!tool shell {{"cmd": "{command}"}}\n!say done'


def asked(api: Api, session: str, text: str) -> dict[str, str]:
    """The question that the turn waits for."""
    begun = api.turn(session, text, wait=False)
    assert begun.status == 202, begun.body
    until(lambda: api.get(f"/api/sessions/{session}/pending"))
    (question,) = api.get(f"/api/sessions/{session}/pending")
    return dict(question)


def resume(api: Api, session: str, confirmation: str, **more: str) -> int:
    return api.post(f"/api/sessions/{session}/resume", {"confirmation": confirmation, **more}).status


def ended(api: Api, session: str) -> list[tuple[str, str]]:
    until(lambda: api.brief(session)["status"] == "idle")
    return api.history(session)


def test_an_approved_call_runs_once(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    question = asked(api, session, shell(f"echo x >> {out}"))
    assert (question["kind"], question["tool"]) == ("approval", "shell")
    assert str(out) in question["arguments"]
    assert not out.exists()
    assert api.brief(session)["status"] == "waiting"
    assert resume(api, session, "approve") == 200
    assert ended(api, session)[-1] == ("assistant", "done")
    assert out.read_text() == "x\n"
    assert resume(api, session, "approve") == 409


def test_a_rejected_call_does_not_run_and_the_model_reads_the_reason(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    asked(api, session, shell(f"echo x >> {out}"))
    assert resume(api, session, "reject", reason="not on a Friday") == 200
    history = ended(api, session)
    assert "rejected this call of shell: not on a Friday" in history[-2][1]
    assert not out.exists()


def test_I14_an_approval_survives_kill_9_and_a_restart(server: LiveServer, api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    asked(api, session, shell(f"echo x >> {out}"))
    server.kill()
    server.start()
    api = Api(server)
    (question,) = api.get(f"/api/sessions/{session}/pending")
    assert resume(api, session, "approve", question=question["id"]) == 200
    assert ended(api, session)[-1] == ("assistant", "done")
    assert out.read_text() == "x\n"


def test_always_is_asked_once(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    asked(api, session, shell(f"echo x >> {out}"))
    assert resume(api, session, "approve-tool") == 200
    ended(api, session)
    assert api.turn(session, shell(f"echo y >> {out}")).status == 200
    assert out.read_text() == "x\ny\n"
    other = api.session("shelly")
    asked(api, other, shell("true"))
    assert resume(api, other, "reject") == 200


def test_answer_of_another_kind_is_rejected(api: Api) -> None:
    session = api.session("shelly")
    assert resume(api, session, "approve") == 409
    assert resume(api, session, "maybe") == 400
    asked(api, session, shell("true"))
    assert resume(api, session, "repeat") == 400
    assert resume(api, session, "approve", question="9:other") == 409
    assert resume(api, session, "approve", tool_name="fetch") == 409
    assert resume(api, session, "reject") == 200


def test_an_approval_never_counts_for_other_arguments(api: Api, tmp_path: Path) -> None:
    """The next turn comes to the same place, and some models number their calls from zero in each."""
    session, out = api.session("shelly"), tmp_path / "out"
    first = asked(api, session, shell(f"echo one >> {out}"))
    assert resume(api, session, "reject", question=first["id"]) == 200
    ended(api, session)
    second = asked(api, session, shell(f"echo two >> {out}"))
    assert resume(api, session, "approve", question=first["id"]) == 409
    assert not out.exists()
    assert resume(api, session, "approve", question=second["id"]) == 200
    ended(api, session)
    assert out.read_text() == "two\n"


def test_an_approval_never_counts_for_another_definition_of_the_tool(tmp_path: Path) -> None:
    """The agent file changes while the question waits: the same call would run another command."""
    out = tmp_path / "out"
    deploy = {"type": "script", "shell": {"deploy": {"cmd": f"echo old >> {out}"}}}
    changed = {"type": "script", "shell": {"deploy": {"cmd": f"echo new >> {out}"}}}
    options = ("--safety", "balanced")
    with LiveServer(tmp_path, write_agent(tmp_path, toolsets=[deploy]), options=options) as server:
        api = Api(server)
        session = api.session("shelly")
        first = asked(api, session, "!tool deploy {}\n!say done")
        write_agent(tmp_path, toolsets=[changed])
        assert resume(api, session, "approve") == 200
        until(lambda: api.get(f"/api/sessions/{session}/pending"))
        (second,) = api.get(f"/api/sessions/{session}/pending")
        assert not out.exists()
        assert second["reason"].endswith("its definition in the agent file changed after it was approved")
        assert first.keys() == second.keys()
        assert resume(api, session, "approve") == 200
        assert ended(api, session)[-1] == ("assistant", "done")
        assert out.read_text() == "new\n"


def test_after_its_deadline_a_question_is_closed_and_the_turn_has_failed(
    server: LiveServer, api: Api, tmp_path: Path
) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    question = asked(api, session, shell(f"echo x >> {out}"))
    with while_it_is_down(server) as database:
        database.execute("UPDATE attempts SET deadline = 1.0 WHERE deadline IS NOT NULL")
    api = Api(server)
    until(lambda: api.brief(session)["status"] == "idle")
    assert resume(api, session, "approve", question=question["id"]) == 409
    (attempt,) = api.get(f"/api/sessions/{session}/attempts")
    assert (attempt["status"], bool(attempt["error"]["message"])) == ("failed", True)
    assert api.history(session) == []
    assert not out.exists()
    assert api.turn(session, "hello").status == 200


def test_two_calls_of_one_response_wait_for_approval_one_by_one(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    one, two = (f'shell {{"cmd": "echo {word} >> {out}"}}' for word in ("a", "b"))
    first = asked(api, session, f"!tool {one}\n!also {two}\n!say done")
    assert resume(api, session, "approve") == 200
    until(lambda: api.get(f"/api/sessions/{session}/pending"))
    (second,) = api.get(f"/api/sessions/{session}/pending")
    assert first["id"] != second["id"]
    assert out.read_text() == "a\n"
    assert resume(api, session, "approve") == 200
    ended(api, session)
    assert out.read_text() == "a\nb\n"


def test_a_rule_that_denies_by_now_beats_an_approval(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    asked(api, session, shell(f"echo x >> {out}"))
    assert (
        api.patch(f"/api/sessions/{session}/permissions", {"permissions": {"deny": ["shell"]}}).status == 200
    )
    assert resume(api, session, "approve") == 200
    assert "is not allowed" in ended(api, session)[-2][1]
    assert not out.exists()


def test_a_waiting_turn_can_be_cancelled(api: Api, tmp_path: Path) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    asked(api, session, shell(f"echo x >> {out}"))
    assert api.post(f"/api/sessions/{session}/cancel").status == 200
    assert resume(api, session, "approve") == 409
    assert api.history(session) == []
    assert not out.exists()


@pytest.mark.parametrize("headers", [{"x-conversation-id": "c1"}, {}], ids=["conversation", "stateless"])
def test_I42_the_openai_api_cannot_ask_says_so_to_the_model_and_records_it(
    server: LiveServer, api: Api, headers: dict[str, str]
) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(
            model="shelly", messages=[{"role": "user", "content": shell("true")}], extra_headers=headers
        )
    assert answer.choices[0].message.content == "done"
    results = [one["content"] for one in server.prompts()[-1]["prompt"] if one["role"] == "tool"]
    assert "needs human approval, which is not available on this API" in results[0]
    (record,) = api.get("/api/audit")
    detail = record["detail"]
    assert (record["kind"], detail["decision"], detail["tool"]) == ("call_denied", "deny", "shell")
    assert (detail["arguments"], detail["requested_by"]) == ('{"cmd": "true"}', "anybody")
    assert "the safety mode is balanced" in detail["said"]


def test_I42_the_audit_record_names_each_approver_and_outlives_the_session(api: Api) -> None:
    session = api.session("shelly")
    asked(api, session, shell("true"))
    assert resume(api, session, "approve") == 200
    ended(api, session)
    (record,) = api.get(f"/api/audit?subject={session}")
    assert (record["kind"], record["token"]) == ("approval", "anybody")
    assert record["machine"] == "127.0.0.1"
    assert record["detail"]["decision"] == "approve"
    assert record["detail"]["tool"] == "shell"
    assert "true" in record["detail"]["arguments"]
    assert api.delete(f"/api/sessions/{session}").status == 200
    assert api.get(f"/api/audit?subject={session}") == [record], "it is gone with its session"


def test_I42_the_export_names_each_approver(tmp_path: Path) -> None:
    """Two people, an approval and a rejection; the header that names a user is only a claim."""
    folder = tmp_path / "server"
    command = Command(folder)
    scopes = ("--scope", "session,approve")
    tokens = {
        user: command("tokens", "create", "--name", user, *scopes, "--user", user).out.strip()
        for user in ("ann", "bob")
    }
    command("tokens", "create", "--name", "boss", "--scope", "admin")
    out = tmp_path / "out"
    with LiveServer(folder, write_agent(tmp_path), options=("--safety", "balanced")) as server:
        ann, bob = Api(server, tokens["ann"]), Api(server, tokens["bob"])
        sessions = [ann.session("shelly"), bob.session("shelly")]
        asked(ann, sessions[0], shell(f"echo yes >> {out}"))
        body = {"confirmation": "approve"}
        assert ann.post(f"/api/sessions/{sessions[0]}/resume", body, x_user="mallory").status == 200
        asked(bob, sessions[1], shell(f"echo no >> {out}"))
        assert resume(bob, sessions[1], "reject", reason="not on a Friday") == 200
        for one, session in zip((ann, bob), sessions, strict=True):
            ended(one, session)
    lines = command("audit", "--kind", "approval", "--json").out.splitlines()
    records = [json.loads(line) for line in lines]
    received = [
        (one["user"], one["subject"], one["detail"]["decision"], one["detail"]["said"]) for one in records
    ]
    assert received == [
        ("ann", sessions[0], "approve", ""),
        ("bob", sessions[1], "reject", "not on a Friday"),
    ]
    assert [
        f"echo {word} >> {out}" in one["detail"]["arguments"]
        for word, one in zip(("yes", "no"), records, strict=True)
    ] == [True, True]
    assert len({one["token"] for one in records}) == 2
    assert "mallory" not in str(records)


def test_a_denial_names_its_rule_and_the_line_to_paste_whole(tmp_path: Path) -> None:
    """At the terminal, where a long result is cut."""
    agent, command = Path(write_agent(tmp_path)), Command(tmp_path)

    def denied(cmd: str) -> str:
        ran = command("run", str(agent), shell(cmd), "--safety", "restricted")
        return next((line for line in ran.err.splitlines() if "is not allowed" in line), "")

    start, _, line = denied("true").partition("add this line to the agent file: ")
    assert "the safety mode is restricted, no rule matches this call" in start
    agent.write_text(f"{agent.read_text()}{line}\n")
    assert denied("true") == ""
    agent.write_text(agent.read_text().replace(line, "permissions: {deny: ['shell:cmd=rm *']}"))
    received = denied("rm x")
    assert "the rule 'shell:cmd=rm *' denies it. To allow it, remove 'shell:cmd=rm *' from" in received
    assert received.endswith("which no `allow` rule overrides")


def test_I33_the_ledger_lists_each_call_with_its_key_and_outcome(api: Api, tmp_path: Path) -> None:
    session = api.session("shelly")
    asked(api, session, shell("exit 3"))
    (waiting,) = api.get(f"/api/sessions/{session}/effects")
    assert waiting["outcome"] is None
    assert resume(api, session, "reject") == 200
    ended(api, session)
    (denied,) = api.get(f"/api/sessions/{session}/effects")
    assert (denied["outcome"], denied["key"]) == ("denied", waiting["key"])
    shown = Command(api.server.folder)("sessions", "show", session, "--tools")
    assert "denied" in shown.out
    assert denied["key"] in shown.out
    remote = Command(tmp_path / "elsewhere")
    words = ("sessions", "show", session, "--tools", "--json", "--server", api.server.url)
    listed = json.loads(remote(*words).out)
    assert listed["tools"] == [denied]
