"""The calls about one claim: questions to a person, messages of a person, and what the final report says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lastgood.model.agents import Safety
from lastgood.worker.claim_calls import ClaimCalls, StopReason
from lastgood.worker.claims import ClaimKey, ClaimUnreadable, read_claim
from lastgood.worker.final_report import RunFacts, final_report
from lastgood.worker.job import FailureCode, JobFailed, JobQuestion, JobResult, Steering
from lastgood.worker.redaction import Redaction
from lastgood.worker.server_calls import WorkServer
from tests.polls import eventually
from tests.worker.work_api import WorkApi

pytestmark = pytest.mark.anyio

KEY = ClaimKey("task_1", "token", "rt_0")
QUESTION = JobQuestion("q1", "Bash", {"command": "rm x"}, "Delete x?", "shell", {"command": "cmd"}, "unknown")


@pytest.fixture
async def stops() -> list[StopReason]:
    return []


@pytest.fixture
async def calls(api: WorkApi, stops: list[StopReason]) -> AsyncIterator[ClaimCalls]:
    server = WorkServer(api.url, "t")
    yield ClaimCalls(server, KEY, lambda reason, _: stops.append(reason))
    await server.close()


async def test_an_answer_of_a_person_reaches_the_cli(api: WorkApi, calls: ClaimCalls) -> None:
    api.answers = {"status": "pending"}
    asking = asyncio.create_task(calls.ask(QUESTION))
    await eventually(lambda: api.of("ask"))
    assert not asking.done()
    api.answers = {"status": "answered", "answer": {"allowed": True, "reason": "go"}}
    answer = await asyncio.wait_for(asking, 30)
    assert (answer.allowed, answer.reason) == (True, "go")
    assert api.of("ask")[0]["question"] == {
        "id": "q1",
        "tool": "Bash",
        "input": {"command": "rm x"},
        "title": "Delete x?",
        "name": "shell",
        "renamed": {"command": "cmd"},
        "effect": "unknown",
    }


@pytest.mark.parametrize("status", ["expired", "withdrawn", "something new"])
async def test_a_question_without_an_answer_is_a_refusal(
    api: WorkApi, calls: ClaimCalls, status: str
) -> None:
    api.answers = {"status": status, "answer": {"allowed": False, "reason": "nobody answered in time"}}
    answer = await calls.ask(QUESTION)
    assert (answer.allowed, answer.reason) == (False, "nobody answered in time")


async def test_a_question_of_a_lost_claim_is_a_refusal(
    api: WorkApi, calls: ClaimCalls, stops: list[StopReason]
) -> None:
    api.faults["ask"] = 409
    assert not (await calls.ask(QUESTION)).allowed
    assert stops == [StopReason.LOST]


async def test_the_refusal_of_a_cancelled_task_is_a_cancel(
    api: WorkApi, calls: ClaimCalls, stops: list[StopReason]
) -> None:
    api.faults["messages"] = "cancelled"
    assert await calls.call("messages", {"messages": []}) is None
    assert stops == [StopReason.CANCELLED]


async def test_a_message_of_a_person_is_delivered_once_and_acknowledged(
    api: WorkApi, calls: ClaimCalls
) -> None:
    api.steers = [{"id": 7, "text": "stop that"}]
    taken: list[str] = []
    steering = Steering()

    async def deliver(text: str) -> bool:
        taken.append(text)
        return True

    passing = asyncio.create_task(calls.pass_on_steers(steering))
    await eventually(lambda: calls.steers)
    with steering.accepted_by(deliver):  # only now: until then the run could not take it
        await eventually(lambda: any(body.get("delivered") == [7] for body in api.of("messages")))
    passing.cancel()
    assert taken == ["stop that"]
    assert calls.delivered == [7]


# --- final reports ------------------------------------------------------------------------------------------


def facts(stop: StopReason | None = None, said: str = "") -> RunFacts:
    return RunFacts("token", stop, "/work", "native", 2, said, (7,))


def test_a_result_says_everything_that_is_known_and_nothing_else() -> None:
    call, body = final_report(JobResult("out", None), facts(), Redaction(()))
    assert call == "complete"
    assert body == {
        "claim_token": "token",
        "work_dir": "/work",
        "native_session": "native",
        "output": "out",
        "usage": {"input_tokens": 0, "output_tokens": 0, "cost": 0.0},
        "delivered": [7],
    }


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (None, "model_error"),
        (StopReason.TIMEOUT, "model_error"),
        (StopReason.WORKER_STOPPED, "worker_stopped"),
        (StopReason.TOKEN_REJECTED, "worker_stopped"),
        (StopReason.LOST, "lease_lost"),
        (StopReason.CANCELLED, "lease_lost"),
    ],
)
def test_a_stopped_run_never_blames_the_task(stop: StopReason | None, code: str) -> None:
    failed = JobFailed(FailureCode.MODEL_ERROR, "bad")
    call, body = final_report(failed, facts(stop), Redaction(()))
    assert (call, body["code"], body["tool_calls"]) == ("fail", code, 2)


def test_output_of_a_lost_run_is_kept_and_redacted() -> None:
    failed = JobFailed(FailureCode.TIMEOUT, "lost")
    _, body = final_report(failed, facts(StopReason.LOST, "hello canary-12345"), Redaction(["canary-12345"]))
    assert body["error"] == "lost; its output so far: hello [redacted]"


# --- claims -------------------------------------------------------------------------------------------------

PLAIN = {
    "task": {"id": "t", "runtime_id": "r"},
    "claim_token": "c",
    "lease_seconds": 90,
    "prompt": "p",
    "resume": None,
    "work_dir": None,
    "snapshot": None,
    "agent": None,
}


def test_optional_fields_of_a_claim_may_be_absent_or_null() -> None:
    claim = read_claim(PLAIN, Safety.BALANCED)
    assert (claim.native_session, claim.work_dir, claim.folder, claim.transcript) == (None, None, None, ())
    assert claim.permissions.mode is Safety.BALANCED


def test_the_ceiling_of_the_worker_is_in_every_claim() -> None:
    plain = PLAIN | {"agent": {"permissions": {"mode": "autonomous", "allow": ["shell"]}}}
    permissions = read_claim(plain, Safety.STRICT).permissions
    assert (permissions.mode, permissions.ceiling) == (Safety.AUTONOMOUS, Safety.STRICT)


def test_only_a_native_resume_names_a_native_session() -> None:
    resume = {"decision": "replay", "native_session": "n", "transcript": [{"role": "user", "content": "x"}]}
    claim = read_claim(PLAIN | {"resume": resume}, Safety.BALANCED)
    assert (claim.native_session, claim.transcript[0].content) == (None, "x")


@pytest.mark.parametrize("bad", [{"lease_seconds": "soon"}, {"agent": {"permissions": {"mode": "anarchy"}}}])
def test_a_claim_of_a_newer_server_is_rejected_with_a_reason(bad: dict[str, object]) -> None:
    with pytest.raises(ClaimUnreadable, match="upgrade this worker"):
        read_claim(PLAIN | bad, Safety.BALANCED)
