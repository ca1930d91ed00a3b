"""The work API as a worker and a person see it: one story over HTTP, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.model.ids import SessionId
from tests.polls import eventually
from tests.surfaces.asgi import Client
from tests.surfaces.in_process_server import AGENT, InProcessServer, NewTokens, open_inside

pytestmark = pytest.mark.anyio

TOKENS: NewTokens = {
    "ann": ("a", ("session", "approve"), "ann", None),
    "admin": ("a", ("admin",), "root", None),
    "laptop": ("a", ("worker",), "ann", "laptop"),
    "unbound": ("a", ("worker",), "ann", None),
}
REGISTER = {
    "worker_id": "laptop",
    "instance": "one",
    "version": "1.0",
    "runtimes": [{"name": "laptop-1", "provider": "claude", "account": None, "steerable": True, "new": 1}],
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, tokens=TOKENS) as opened:
        yield opened


class Worker:
    def __init__(self, inside: InProcessServer, registered: Any) -> None:
        self.inside = inside
        self.runtime = registered["runtimes"][0]["id"]
        self.epoch = registered["worker"]["epoch"]

    async def claim(self, wait: float = 0.0) -> Any:
        body = {"worker_id": "laptop", "epoch": self.epoch, "runtime_ids": [self.runtime], "max_tasks": 1}
        received = await self.inside.good(
            "POST", "/api/worker/claim", {**body, "wait_seconds": wait}, "laptop"
        )
        return received["tasks"][0] if received["tasks"] else None

    async def report(self, claim: Any, name: str, **fields: Any) -> Any:
        path = f"/api/worker/tasks/{claim['task']['id']}/{name}"
        body = {"claim_token": claim["claim_token"], **fields}
        return await self.inside.good("POST", path, body, "laptop")


@pytest.fixture
async def worker(inside: InProcessServer) -> Worker:
    return Worker(inside, await inside.good("POST", "/api/worker/register", REGISTER, "laptop"))


def task(worker: Worker, prompt: str = "fix it", **fields: Any) -> dict[str, Any]:
    where = {"kind": "issue", "id": "42"}
    return {"agent": AGENT, "scope": where, "prompt": prompt, "runtime": worker.runtime, **fields}


async def test_one_task_from_the_queue_to_the_session(inside: InProcessServer, worker: Worker) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    assert (queued["status"], queued["why"]) == ("queued", "waits for runtime laptop-1 to claim it")
    claim = await worker.claim()
    assert claim["prompt"] == "fix it"
    assert claim["resume"]["decision"] == "fresh"
    assert claim["lease_seconds"] == 90
    assert claim["task"]["directive"] == {"fresh": False, "rerun_of": None, "note": ""}
    assert claim["agent"]["permissions"]["mode"] == "restricted"
    await worker.report(claim, "start")
    await worker.report(claim, "session", native_session="n1", work_dir="/w")
    said = [{"seq": 1, "type": "text", "content": "fi"}, {"seq": 2, "type": "text", "content": "xed"}]
    assert (await worker.report(claim, "messages", messages=said))["acked_seq"] == 2
    await worker.report(claim, "usage", usage={"input_tokens": 5, "output_tokens": 7})
    usage = {"input_tokens": 5, "output_tokens": 7, "cost": 0.25}
    done = await worker.report(claim, "complete", output="fixed", native_session="n1", usage=usage)
    assert done["status"] == "completed"
    shown = await inside.good("GET", f"/api/tasks/{queued['id']}", token="ann")
    assert (shown["status"], shown["decision"]["decision"]) == ("completed", "fresh")
    session = await inside.good("GET", f"/api/sessions/{queued['session_id']}", token="ann")
    assert [one["content"] for one in session["messages"]] == ["fix it", "fixed"]
    assert session["output_tokens"] == 7
    listed = await inside.good("GET", "/api/tasks?status=completed", token="ann")
    assert [one["id"] for one in listed] == [queued["id"]]
    pointers = await inside.good("GET", f"/api/scopes/issue/42/pointers?agent={AGENT}", token="ann")
    assert pointers["pointers"][0]["native_session"] == "n1"
    assert pointers["decisions"][0]["decision"] == "native"


@pytest.mark.parametrize("call", ["complete", "fail"])
async def test_a_report_names_the_version_of_its_cli(
    inside: InProcessServer, worker: Worker, call: str
) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    said = {"output": "fixed"} if call == "complete" else {"code": "timeout", "error": "too late"}
    await worker.report(await worker.claim(), call, cli_version="9.9 (untested)", **said)
    shown = await inside.good("GET", f"/api/tasks/{queued['id']}", token="ann")
    assert (shown["cli_version"], shown["lost_claims"]) == ("9.9 (untested)", 0)
    path = f"/api/sessions/{queued['session_id']}/attempts"
    (attempt,) = await inside.good("GET", path, token="ann")
    assert attempt["cli_version"] == "9.9 (untested)"


async def test_watchers_see_a_remote_run_like_a_local_one(inside: InProcessServer, worker: Worker) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claim = await worker.claim()
    used = {"seq": 1, "type": "tool_use", "tool": "Edit", "call": "c", "input": {"path": "a"}}
    answered = {"seq": 2, "type": "tool_result", "tool": "Edit", "call": "c", "output": "ok"}
    broken = {"seq": 3, "type": "error", "content": "a hook failed"}
    await worker.report(claim, "messages", messages=[used, answered, broken])
    await worker.report(claim, "complete", output="fixed")
    headers = {"authorization": f"Bearer {inside.tokens['ann']}"}
    path = f"/api/sessions/{queued['session_id']}/events"
    stream = Client(inside.server.app, "GET", path, headers, [b""])
    await stream.until(b"stream_stopped")
    frames = [json.loads(line[6:]) for line in stream.given.body.split(b"\n") if line.startswith(b"data: ")]
    stream.leave()
    await stream.end()
    assert [frame["type"] for frame in frames] == [
        "stream_started",
        "user_message",
        "resume_decided",
        "tool_call",
        "tool_call_response",
        "warning",
        "agent_choice",
        "token_usage",
        "turn_committed",
        "stream_stopped",
    ]
    assert frames[2]["task"] == queued["id"]
    assert frames[6]["content"] == "fixed"


async def test_a_report_with_invalid_text_is_made_valid_and_accepted(
    inside: InProcessServer, worker: Worker
) -> None:
    """Or it would stay in its worker's outbox for ever."""
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claim = await worker.claim()
    path = f"/api/worker/tasks/{queued['id']}/complete"
    raw = (
        b'{"claim_token": "%s", "output": "half \\ud800 nul \\u0000 byte \xff"}'
        % claim["claim_token"].encode()
    )
    given = await inside.ask("POST", path, None, "laptop", raw=raw)
    assert given.status == 200, given.body
    session = await inside.good("GET", f"/api/sessions/{queued['session_id']}", token="ann")
    assert session["messages"][-1]["content"] == "half \ufffd nul \ufffd byte \ufffd"


async def test_a_stale_claim_says_that_its_run_must_stop(inside: InProcessServer, worker: Worker) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claim = await worker.claim()
    cancelled = await inside.good("POST", f"/api/tasks/{queued['id']}/cancel", token="ann")
    assert cancelled["status"] == "cancelled"
    body = {"claim_token": claim["claim_token"], "messages": []}
    given = await inside.ask("POST", f"/api/worker/tasks/{queued['id']}/messages", body, "laptop")
    assert (given.status, given.code) == (409, "stale_claim")
    assert given.json["error"]["detail"]["cancel"] is True
    assert given.headers["x-should-retry"] == "false"


async def test_a_wrong_claim_token_is_stale(inside: InProcessServer, worker: Worker) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    await worker.claim()
    for call in ("start", "messages", "complete", "fail"):
        body = {"claim_token": "x", "messages": [], "output": "done", "code": "boom", "error": "boom"}
        given = await inside.ask("POST", f"/api/worker/tasks/{queued['id']}/{call}", body, "laptop")
        assert (given.status, given.code) == (409, "stale_claim"), call
    shown = await inside.good("GET", f"/api/tasks/{queued['id']}", token="ann")
    assert shown["status"] == "claimed"


async def test_a_claim_that_waits_is_woken_and_one_whose_worker_leaves_takes_nothing(
    inside: InProcessServer, worker: Worker
) -> None:
    waiting = asyncio.create_task(worker.claim(wait=20))
    await asyncio.sleep(0)
    await inside.good("POST", "/api/tasks", task(worker), "ann")
    async with asyncio.timeout(10):
        claim = await waiting
    await worker.report(claim, "complete", output="fixed")
    body = {"worker_id": "laptop", "epoch": worker.epoch, "runtime_ids": [worker.runtime], "wait_seconds": 20}
    headers = {
        "authorization": f"Bearer {inside.tokens['laptop']}",
        "content-type": "application/json",
        "transfer-encoding": "chunked",
    }
    gone = Client(inside.server.app, "POST", "/api/worker/claim", headers, [json.dumps(body).encode()])
    signals, channel = inside.server.lastgood.deps.signals, SessionId(worker.runtime)
    await eventually(lambda: signals.has_subscribers(channel))
    gone.leave()
    await gone.end()
    queued = await inside.good("POST", "/api/tasks", task(worker, "next"), "ann")
    assert (await worker.claim())["task"]["id"] == queued["id"]


async def test_a_worker_that_wants_more_than_a_claim_can_hold_gets_what_it_can(
    inside: InProcessServer, worker: Worker
) -> None:
    sender = {"worker_id": "laptop", "runtime_ids": [worker.runtime]}
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claimed = await inside.good("POST", "/api/worker/claim", {**sender, "max_tasks": 1000}, "laptop")
    assert [claim["task"]["id"] for claim in claimed["tasks"]] == [queued["id"]]


async def test_a_client_without_epochs_acts_as_the_newest_instance(
    inside: InProcessServer, worker: Worker
) -> None:
    sender = {"worker_id": "laptop", "runtime_ids": [worker.runtime]}
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claimed = await inside.good("POST", "/api/worker/claim", {**sender, "max_tasks": None}, "laptop")
    claim = claimed["tasks"][0]
    assert claim["task"]["id"] == queued["id"]
    live = [{"task_id": queued["id"], "claim_token": claim["claim_token"]}]
    beat = await inside.good("POST", "/api/worker/heartbeat", {**sender, "live": live}, "laptop")
    assert (beat["renewed"], beat["replaced"]) == ([queued["id"]], False)
    left = await inside.good("POST", "/api/worker/deregister", {"worker_id": "laptop"}, "laptop")
    assert left == {"status": "offline"}


async def test_a_token_without_a_worker_is_bound_by_its_first_registration(inside: InProcessServer) -> None:
    path, desk = "/api/worker/register", {**REGISTER, "worker_id": "desk"}
    early = await inside.ask(
        "POST", "/api/worker/heartbeat", {"worker_id": "desk", "runtime_ids": []}, "unbound"
    )
    assert (early.status, early.code) == (403, "forbidden")
    made = await inside.good("POST", path, desk, "unbound")
    await inside.good("POST", "/api/worker/heartbeat", {"worker_id": "desk", "runtime_ids": []}, "unbound")
    other = await inside.ask("POST", path, {**REGISTER, "worker_id": "lap"}, "unbound")
    assert (other.status, other.code) == (403, "forbidden")
    assert (await inside.good("POST", path, desk, "unbound"))["runtimes"] == made["runtimes"]


async def test_a_task_of_another_scope_is_not_run_again_here(inside: InProcessServer, worker: Worker) -> None:
    """Its native session belongs to another conversation."""
    first = await inside.good("POST", "/api/tasks", task(worker), "ann")
    elsewhere = task(worker, rerun_of=first["id"]) | {"scope": {"kind": "issue", "id": "43"}}
    refused = await inside.ask("POST", "/api/tasks", elsewhere, "ann")
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert (await inside.ask("POST", "/api/tasks", task(worker, rerun_of=first["id"]), "ann")).status == 201


async def test_M4_4_an_empty_string_is_an_absent_field_and_wipes_no_pointer(
    inside: InProcessServer, worker: Worker
) -> None:
    await inside.good("POST", "/api/tasks", task(worker, rerun_of="", working_dir=""), "ann")
    await worker.report(await worker.claim(), "complete", output="one", native_session="n-1", work_dir="/w")
    await inside.good("POST", "/api/tasks", task(worker, "next"), "ann")
    second = await worker.claim()
    assert second["resume"]["native_session"] == "n-1"
    await worker.report(second, "complete", output="two", native_session="", work_dir="")
    await inside.good("POST", "/api/tasks", task(worker, "last"), "ann")
    third = await worker.claim()
    assert (third["resume"]["native_session"], third["work_dir"]) == ("n-1", "/w")


async def test_the_same_key_is_the_same_task(inside: InProcessServer, worker: Worker) -> None:
    first = await inside.ask("POST", "/api/tasks", task(worker), "ann", idempotency_key="k")
    again = await inside.ask("POST", "/api/tasks", task(worker), "ann", idempotency_key="k")
    assert (first.status, again.status, again.json["id"]) == (201, 200, first.json["id"])
    other = await inside.ask("POST", "/api/tasks", task(worker, "other"), "ann", idempotency_key="k")
    assert (other.status, other.code) == (422, "idempotency_mismatch")


async def test_a_question_is_answered_over_http(inside: InProcessServer, worker: Worker) -> None:
    queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
    claim = await worker.claim()
    asked = {"id": "q/1", "tool": "Bash", "input": {"command": "rm"}, "title": "Run rm?"}
    received = await worker.report(claim, "ask", question=asked)
    assert received == {"question": {"id": "q/1", "status": "pending"}}
    path = f"/api/tasks/{queued['id']}/questions"
    (pending,) = await inside.good("GET", path, token="ann")
    assert pending["question"]["title"] == "Run rm?"
    await inside.good("POST", f"{path}/q%2F1", {"allowed": False, "reason": "no"}, "ann")
    received = await worker.report(claim, "ask", question=asked)
    assert received["question"]["answer"] == {"allowed": False, "reason": "no"}
    other = {**asked, "input": {"command": "ls"}}
    body = {"claim_token": claim["claim_token"], "question": other}
    report = f"/api/worker/tasks/{queued['id']}/ask"
    refused = await inside.ask("POST", report, body, "laptop")
    assert (refused.status, refused.code) == (422, "idempotency_mismatch")


async def test_a_machine_enrolls_with_a_one_time_code(inside: InProcessServer) -> None:
    made = await inside.good("POST", "/api/enrollments", {"worker_id": "desk"}, "ann")
    body = {"code": made["code"], "name": "desk"}
    enrolled = await inside.good("POST", "/api/worker/enroll", body)
    assert enrolled["worker_id"] == "desk"
    registered = {**REGISTER, "worker_id": "desk"}
    await inside.good("POST", "/api/worker/register", registered, enrolled["token"])
    assert (await inside.ask("POST", "/api/worker/enroll", body)).status == 403
    tokens = await inside.good("GET", "/api/tokens", token="ann")
    (mine,) = [one for one in tokens if one["worker_id"] == "desk"]
    await inside.good("DELETE", f"/api/tokens/{mine['id']}", token="ann")
    given = await inside.ask("POST", "/api/worker/register", registered, enrolled["token"])
    assert given.status == 401


async def test_only_an_admin_makes_tokens_of_other_kinds(inside: InProcessServer) -> None:
    body = {"name": "n", "scopes": ["session"], "user": "bob"}
    given = await inside.ask("POST", "/api/tokens", body, "ann")
    assert (given.status, given.code) == (403, "forbidden")
    made = await inside.good("POST", "/api/tokens", body, "admin")
    assert (made["user"], made["scopes"]) == ("bob", ["session"])
    assert (await inside.ask("GET", "/api/tasks", None, made["token"])).status == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/tasks", {"agent": AGENT, "scope": {"kind": "x", "id": "1"}, "prompt": "p"}, "scope.kind"),
        ("/api/tasks", {"agent": AGENT, "scope": {"kind": "chat", "id": "1"}, "prompt": ""}, "prompt"),
        ("/api/tasks", {"agent": AGENT, "scope": {"kind": "chat", "id": "1"}, "prompt": "\0"}, "NUL"),
        (
            "/api/tasks",
            {"agent": AGENT, "scope": {"kind": "chat", "id": "1"}, "prompt": "p", "priority": 101},
            "priority",
        ),
        (
            "/api/tasks",
            {"agent": AGENT, "scope": {"kind": "chat", "id": "1"}, "prompt": "p"},
            "on this server",
        ),
    ],
)
async def test_what_is_wrong_with_a_task_is_said(
    inside: InProcessServer, path: str, body: Any, words: str
) -> None:
    given = await inside.ask("POST", path, body, "ann")
    assert (given.status, given.code) == (400, "invalid_request")
    assert words in given.json["message"]


async def test_only_work_is_served_alone(tmp_path: Path) -> None:
    async with open_inside(tmp_path, only=("work",)) as inside:
        assert (await inside.ask("GET", "/api/tasks")).status == 200
        assert (await inside.ask("GET", "/api/sessions")).status == 404
        assert (await inside.ask("GET", "/v1/models")).status == 404


async def test_a_server_without_tokens_takes_any_worker(tmp_path: Path) -> None:
    async with open_inside(tmp_path) as inside:
        worker = Worker(inside, await inside.good("POST", "/api/worker/register", REGISTER))
        await inside.good("POST", "/api/tasks", task(worker))
        body = {"worker_id": "laptop", "epoch": worker.epoch, "runtime_ids": [worker.runtime]}
        (claim,) = (await inside.good("POST", "/api/worker/claim", body))["tasks"]
        path = f"/api/worker/tasks/{claim['task']['id']}/complete"
        done = await inside.good("POST", path, {"claim_token": claim["claim_token"], "output": "ok"})
        assert done["status"] == "completed"


async def test_rules_that_are_narrowed_during_a_run_answer_its_next_question(tmp_path: Path) -> None:
    async with open_inside(tmp_path, tokens=TOKENS, safety="autonomous") as inside:
        worker = Worker(inside, await inside.good("POST", "/api/worker/register", REGISTER, "laptop"))
        queued = await inside.good("POST", "/api/tasks", task(worker), "ann")
        claim = await worker.claim()
        session = f"/api/sessions/{queued['session_id']}"

        async def ask(id: str, command: str, effect: str = "unknown") -> Any:
            call = {"tool": "Bash", "input": {"command": command}, "name": "shell", "effect": effect}
            asked = {"id": id, **call, "renamed": {"command": "cmd"}}
            return (await worker.report(claim, "ask", question=asked))["question"]

        assert (await ask("q1", "rm -r x"))["status"] == "pending"
        rules = {"permissions": {"deny": ["shell:cmd=rm *"]}}
        await inside.good("PATCH", f"{session}/permissions", rules, "ann")
        denied = await ask("q1", "rm -r x")
        assert (denied["status"], denied["answer"]["allowed"]) == ("answered", False)
        assert "rm *" in denied["answer"]["reason"]
        assert (await ask("q2", "ls"))["status"] == "pending", "a person decides about the others"
        await inside.good("PATCH", f"{session}/safety-policy", {"safety_policy": "restricted"}, "ann")
        assert (await ask("q2", "ls"))["answer"]["allowed"] is False
        assert (await ask("q3", "ls", "safe"))["status"] == "pending"
        waits = await inside.good("GET", f"{session}/pending", token="ann")
        assert "q1" not in json.dumps(waits)
