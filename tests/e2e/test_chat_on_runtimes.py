"""The OpenAI SDK and the terminal, unmodified, talk to an agent that lives on a runtime.

The worker here answers what it claims over the work API, in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.api import Api, said
from tests.e2e.chat_requests import BOTH, ask, assistant, tool, user
from tests.e2e.command import Command, until
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
CODER = """
agents:
  root:
    model: builtin/scripted
    description: Writes code
"""
MODEL = "coder"
Plain = dict[str, Any]


@dataclass
class Worker:
    """Answers each prompt with what `answers` says; None: it holds the task and reports nothing."""

    api: Api
    name: str = "laptop"
    answers: Callable[[Plain], str | None] = lambda claim: f"did: {claim['prompt']}"
    claims: list[Plain] = field(default_factory=list)
    _stops: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    epoch: int = 0
    runtime: str = ""

    def register(self) -> None:
        body = {
            "worker_id": self.name,
            "instance": "one",
            "version": "1",
            "runtimes": [{"name": self.name, "provider": "claude"}],
        }
        made = self.good("/api/worker/register", body)
        self.epoch, self.runtime = made["worker"]["epoch"], made["runtimes"][0]["id"]

    def good(self, path: str, body: Plain) -> Any:
        given = self.api.post(path, body)
        assert given.status < 300, given.body
        return given.json

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        body = {
            "worker_id": self.name,
            "epoch": self.epoch,
            "runtime_ids": [self.runtime],
            "max_tasks": 1,
            "wait_seconds": 0.5,
        }
        while not self._stops.is_set():
            for claim in self.good("/api/worker/claim", body)["tasks"]:
                self.claims.append(claim)
                if (output := self.answers(claim)) is not None:
                    usage = {"input_tokens": 11, "output_tokens": 7}
                    self.report(claim, "complete", output=output, usage=usage)

    def report(self, claim: Plain, name: str, **fields: Any) -> Any:
        path = f"/api/worker/tasks/{claim['task']['id']}/{name}"
        return self.good(path, {"claim_token": claim["claim_token"], **fields})


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("coder")
    (folder / "coder.yaml").write_text(CODER)
    (folder / "private.yaml").write_text(CODER)
    with LiveServer(folder, str(folder / "coder.yaml"), str(folder / "private.yaml")) as server:
        yield server


@pytest.fixture
def worker(coder: LiveServer) -> Iterator[Worker]:
    made = Worker(Api(coder))
    made.register()
    for agent, published in (("coder", True), ("private", False)):
        bound = {"runtime_id": made.runtime, "queued": "keep", "published": published}
        given = made.api.ask("PUT", f"/api/agents/{agent}/runtime", bound)
        assert given.status == 200, given.body
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def client(coder: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{coder.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@BOTH_WAYS
def test_a_conversation_with_an_agent_on_a_runtime(
    worker: Worker, client: openai.OpenAI, stream: bool, word: str
) -> None:
    options: Plain = {"stream_options": {"include_usage": True}} if stream else {}
    first = ask(client, f"one {word}", stream=stream, conversation=word, model=MODEL, **options)
    assert (first.text, first.finish, first.usage) == (f"did: one {word}", "stop", (11, 7))
    assert first.headers["x-task-id"] == worker.claims[-1]["task"]["id"]
    second = ask(client, "two", stream=stream, conversation=word, model=MODEL)
    assert second.text == "did: two"
    transcript = worker.claims[-1]["resume"]["transcript"]
    assert [line["content"] for line in transcript] == [f"one {word}", f"did: one {word}"]
    assert worker.api.read(first.headers["x-session-id"], "")["runtime"] == worker.runtime


@BOTH_WAYS
def test_a_stateless_call_is_an_ephemeral_session(
    worker: Worker, client: openai.OpenAI, stream: bool, word: str
) -> None:
    body = [user(f"one {word}"), assistant("two"), user("three")]
    answer = ask(client, body, stream=stream, model=MODEL)
    prompt = f"user: one {word}\n\nassistant: two\n\nuser: three"
    assert (answer.text, answer.finish) == (f"did: {prompt}", "stop")
    session = worker.claims[-1]["task"]["session_id"]
    until(lambda: worker.api.ask("GET", f"/api/sessions/{session}").status == 404)


def test_a_stateless_call_ends_with_its_client(worker: Worker, coder: LiveServer, word: str) -> None:
    worker.answers = lambda claim: None
    body = {"model": MODEL, "messages": said(word)}
    gone = worker.api.send_and_go("/v1/chat/completions", body)
    until(lambda: any(word in claim["prompt"] for claim in worker.claims))
    claim = worker.claims[-1]
    gone.close()
    until(lambda: worker.api.ask("GET", f"/api/sessions/{claim['task']['session_id']}").status == 404)
    late = worker.api.post(
        f"/api/worker/tasks/{claim['task']['id']}/complete",
        {"claim_token": claim["claim_token"], "output": "too late"},
    )
    assert late.status == 404


def test_a_conversation_continues_without_its_client_and_its_retry_attaches(
    worker: Worker, word: str
) -> None:
    worker.answers = lambda claim: None
    body = {"model": MODEL, "messages": said(word)}
    gone = worker.api.send_and_go("/v1/chat/completions", body, x_conversation_id=word)
    until(lambda: any(word in claim["prompt"] for claim in worker.claims))
    gone.close()
    retried = {"x_conversation_id": word, "x_stainless_retry_count": "1"}
    with worker.api.asking("POST", "/v1/chat/completions", body, **retried) as answer:
        worker.report(worker.claims[-1], "complete", output="here it is")
        given = answer.result()
    assert given.json["choices"][0]["message"]["content"] == "here it is"
    assert sum(word in claim["prompt"] for claim in worker.claims) == 1


@pytest.mark.parametrize("conversation", [None, "named"])
def test_unsupported_requests_to_a_runtime_are_rejected_with_a_reason(
    worker: Worker, client: openai.OpenAI, conversation: str | None, word: str
) -> None:
    pixel = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    image = [{"type": "text", "text": "see"}, pixel]
    refused: list[tuple[Any, Plain, str]] = [
        ("hi", {"tools": [tool("weather")]}, "`tools` is not supported by agents on a runtime"),
        ("hi", {"response_format": {"type": "json_object"}}, "`response_format` is not supported"),
        ("hi", {"temperature": 0.5}, "`temperature` is not supported"),
        ([user(image)], {}, "accept text only"),
    ]
    before = len(worker.claims)
    for what, options, words in refused:
        named = conversation and f"{conversation}-{word}"
        with pytest.raises(openai.BadRequestError, match=words):
            ask(client, what, model=MODEL, conversation=named, **options)
    assert len(worker.claims) == before


def test_only_published_agents_are_models(worker: Worker, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["coder"]
    with pytest.raises(openai.NotFoundError) as hidden:
        ask(client, "hi", model="private")
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, "hi", model="nobody")
    assert str(hidden.value) == str(unknown.value).replace("nobody", "private")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("private")


def test_a_question_is_denied_where_it_cannot_be_answered(
    worker: Worker, client: openai.OpenAI, word: str
) -> None:
    def asks(claim: Plain) -> str:
        worker.report(claim, "start")
        question = {"id": "q1", "tool": "Bash", "input": {"command": "rm x"}, "title": "Remove x?"}

        def answered() -> bool:
            found = worker.report(claim, "ask", question=question)["question"]
            answers.append(found)
            return bool(found["status"] != "pending")

        answers: list[Plain] = []
        until(answered)
        return f"allowed: {answers[-1]['answer']['allowed']}"

    worker.answers = asks
    assert ask(client, word, model=MODEL, conversation=word).text == "allowed: False"
    (record,) = worker.api.get("/api/audit?kind=approval")[-1:]
    assert (record["token"], record["user"], record["detail"]["decision"]) == ("", "", "reject")
    assert record["machine"]
    assert "which is not available on this API" in record["detail"]["said"]
    assert ask(client, word, model=MODEL, stream=True).text == "allowed: False"


def test_a_closed_laptop_is_a_503_over_v1_and_a_queued_turn_over_the_session_api(
    worker: Worker, client: openai.OpenAI, word: str
) -> None:
    worker.stop()
    worker.good("/api/worker/deregister", {"worker_id": worker.name, "epoch": worker.epoch})
    for conversation in (None, word):
        with pytest.raises(openai.InternalServerError) as refused:
            ask(client, "hi", model=MODEL, conversation=conversation)
        assert (refused.value.status_code, refused.value.code) == (503, "runtime_offline")
    session = worker.api.session(MODEL)
    given = worker.api.post(f"/api/sessions/{session}/turns", {"messages": said("later")})
    assert (given.status, given.json["status"]) == (202, "queued")
    assert given.headers["x-task-id"] == given.json["task"]
    assert "x-attempt-id" not in given.headers
    assert given.json["why"] == "runtime laptop is offline: its worker has stopped"
    assert worker.api.brief(session)["status"] == "queued"
    busy = worker.api.post(f"/api/sessions/{session}/turns", {"messages": said("now")})
    assert (busy.refusal, busy.json["error"]["detail"]["task"]) == ((409, "session_busy"), given.json["task"])
    cancelled = worker.api.post(f"/api/sessions/{session}/cancel")
    assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")


def test_a_run_is_streamed_and_a_turn_is_waited_for(worker: Worker, word: str) -> None:
    session = worker.api.session(MODEL)
    path = f"/api/sessions/{session}/agent/{MODEL}"
    with worker.api.stream("POST", path, {"messages": said(word)}) as stream:
        frames = list(stream)
    types = [frame.type for frame in frames]
    assert types[0] == "stream_started"
    assert types[-2:] == ["turn_committed", "stream_stopped"]
    assert [frame.data["content"] for frame in frames if frame.type == "agent_choice"] == [f"did: {word}"]
    given = worker.api.post(f"/api/sessions/{session}/turns", {"messages": said("next"), "wait": True})
    assert (given.status, given.json["messages"][-1]["content"]) == (200, "did: next")


def _tried_again(worker: Worker, *texts: str) -> None:
    """Each run but the last one says its text and is stopped; the last one completes with its text."""
    left = list(texts)

    def answers(claim: Plain) -> str | None:
        text = left.pop(0)
        halves = (text[:5], text[5:])
        messages = [{"seq": n, "type": "text", "content": half} for n, half in enumerate(halves, 1)]
        worker.report(claim, "messages", messages=messages)
        if not left:
            return text
        worker.report(claim, "fail", code="worker_stopped", error="stopped")
        return None

    worker.answers = answers


def test_a_run_that_is_tried_again_is_a_second_start_of_the_same_turn(worker: Worker, word: str) -> None:
    _tried_again(worker, "half an ans", "a whole answer")
    session = worker.api.session(MODEL)
    path = f"/api/sessions/{session}/agent/{MODEL}"
    with worker.api.stream("POST", path, {"messages": said(word)}) as stream:
        frames = list(stream)
    first, second = (frame.data for frame in frames if frame.type == "stream_started")
    assert first["turn"] == second["turn"]
    assert first["attempt"] != second["attempt"]
    assert "decision" not in first
    assert "claimed again" in second["decision"]
    kept = [frame.data for frame in frames if frame.type == "agent_choice"]
    shown = "".join(one["content"] for one in kept if one["attempt"] == second["attempt"])
    assert shown == "a whole answer" == worker.api.history(session)[-1][1]
    assert [frame.type for frame in frames].count("turn_failed") == 0


def test_a_chat_stream_never_joins_the_texts_of_two_runs(
    worker: Worker, client: openai.OpenAI, word: str
) -> None:
    _tried_again(worker, "The answer", "The ans", "The answer is 4.")
    assert ask(client, word, model=MODEL, stream=True).text == "The answer is 4."
    _tried_again(worker, "The answer", "It is 4.")
    with pytest.raises(openai.APIError) as differs:
        ask(client, word, model=MODEL, conversation=word, stream=True)
    assert "outcome_unknown" in str(differs.value.body)
    worker.answers = lambda claim: str(claim["resume"]["transcript"][-1]["content"])
    assert ask(client, "and?", model=MODEL, conversation=word).text == "It is 4."


def test_a_kill_of_the_server_leaves_a_running_task_alone(
    coder: LiveServer, worker: Worker, word: str
) -> None:
    worker.answers = lambda claim: None
    session = worker.api.session(MODEL)
    begun = worker.api.post(f"/api/sessions/{session}/turns", {"messages": said(word)})
    assert begun.status == 202
    until(lambda: any(word in claim["prompt"] for claim in worker.claims))
    worker.stop()
    coder.restart()
    assert worker.api.brief(session)["status"] == "running"
    worker.report(worker.claims[-1], "complete", output="still here")
    assert worker.api.history(session)[-1] == ("assistant", "still here")


def test_the_terminal_talks_to_it(coder: LiveServer, worker: Worker, tmp_path: Path, word: str) -> None:
    command = Command(tmp_path)
    done = command("run", MODEL, f"hello {word}", "--server", coder.url)
    assert (done.code, done.out.strip()) == (0, f"did: hello {word}"), done.err

    def fails(claim: Plain) -> None:
        worker.report(claim, "fail", code="cli_protocol", error="the CLI said nothing")

    worker.answers = fails
    failed = command("run", MODEL, "again", "--server", coder.url)
    assert failed.code == 1
    assert "the CLI said nothing" in failed.err
