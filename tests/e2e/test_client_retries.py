"""What client libraries do after a turn fails, counted by what its tool did outside: a line in a file.

`note` is a tool that is not repeatable. A turn that fails after it answers 424, which no library retries
by itself; a library that retries everything is stopped by its Idempotency-Key.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lastgood.client import Client
from lastgood.errors import ModelError
from tests.e2e.api import TOOLS, Api, Trace
from tests.e2e.chat_requests import BOTH, ask, asking, assistant, user
from tests.e2e.client_libraries import npm_folder, python_with
from tests.e2e.command import AGENT, until
from tests.e2e.conftest import REMOTE
from tests.e2e.fake_model import FakeModel, Gate, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer
from tests.surfaces.in_process_server import make_tokens

VERCEL = ("ai@6.0.318", "@ai-sdk/openai-compatible@2.0.87")
LITELLM = ("litellm==1.106.2", "tenacity==9.1.2")

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
HELD = pytest.mark.parametrize("held", [True, False], ids=["conversation", "stateless"])
#: What OpenAI's SDKs say of themselves when they send a request again.
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fake: FakeModel) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("retries")
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    agents = (AGENT, str(folder / "tools.yaml"), str(folder / "remote.yaml"))
    with LiveServer(folder / "server", *agents, options=("--safety", "autonomous")) as server:
        yield server


@pytest.fixture(scope="module")
def sdk(server: LiveServer) -> Iterator[openai.OpenAI]:
    """As it is by default: it sends a request up to three times."""
    with server.client(max_retries=2) as client:
        yield client


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def failing(trace: Trace, word: str, when: str = "before") -> str:
    return f"{word}\n{trace.note('once')}\n!say one two\n!fail {when}"


# -- OpenAI's SDK ---------------------------------------------------------------------------------


@HELD
@BOTH_WAYS
def test_I21_a_turn_that_fails_after_a_tool_is_424_and_not_retried(
    sdk: openai.OpenAI, trace: Trace, word: str, held: bool, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as failed:
        ask(sdk, failing(trace, word), model="tools", conversation=word if held else None, stream=stream)
    assert (failed.value.status_code, failed.value.code) == (424, "model_error")
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert failed.value.type == "server_error"
    assert trace.words == ["once"]


@HELD
def test_I21_an_error_inside_a_stream_says_that_it_is_not_retryable(
    sdk: openai.OpenAI, trace: Trace, word: str, held: bool
) -> None:
    asked = failing(trace, word, "during")
    with pytest.raises(openai.APIError) as failed:
        ask(sdk, asked, model="tools", conversation=word if held else None, stream=True)
    assert isinstance(failed.value.body, dict)
    assert (failed.value.body["code"], failed.value.body["retryable"]) == ("model_error", False)
    assert trace.words == ["once"]


@HELD
def test_I21_an_error_inside_a_stream_is_retryable_where_no_tool_ran(
    fake: FakeModel, sdk: openai.OpenAI, word: str, held: bool
) -> None:
    fake.on(word, breaks_off_after("one "))
    with pytest.raises(openai.APIError) as failed:
        ask(sdk, word, model="remote", conversation=word if held else None, stream=True)
    assert isinstance(failed.value.body, dict)
    assert (failed.value.body["code"], failed.value.body["retryable"]) == ("model_error", True)


def test_a_denied_call_is_no_reason_for_424(server: LiveServer, trace: Trace, word: str) -> None:
    """The model asked for the tool, and it did not run."""
    api = Api(server)
    session = api.session("tools", permissions={"deny": ["note"]})
    given = api.turn(session, failing(trace, word))
    assert given.refusal == (500, "model_error")
    assert trace.words == []


@BOTH_WAYS
@pytest.mark.parametrize("marked", ["key", "header"])
def test_I33_a_marked_retry_runs_no_finished_tool_again(
    server: LiveServer, sdk: openai.OpenAI, trace: Trace, word: str, marked: str, stream: bool
) -> None:
    sent: dict[str, Any] = {"model": "tools", "conversation": word, "stream": stream}
    if marked == "key":
        sent["key"] = word
    with pytest.raises(openai.APIStatusError):
        ask(sdk, failing(trace, word, "before 1"), **sent)
    again = ask(sdk, failing(trace, word, "before 1"), headers=AGAIN if marked == "header" else {}, **sent)
    assert (again.text, again.replayed, trace.words) == ("one two", False, ["once"])
    assert server.tries(word) == ["failed", "committed"]
    attempts = Api(server).read(again.headers["x-session-id"], "/attempts")
    assert attempts[1]["continues"] == attempts[0]["id"]
    assert attempts[1]["decision"]["recovery"] == "continues after 2 finished steps"
    assert attempts[1]["turn"] == attempts[0]["turn"] == again.id


def test_M2_1_a_plain_repeat_starts_from_the_last_good_turn(
    server: LiveServer, sdk: openai.OpenAI, trace: Trace, word: str
) -> None:
    """Nobody said that it is the same request: nothing of the failed turn is in its prompt."""
    ask(sdk, f"{word} hello", model="tools", conversation=word)
    for _ in range(2):
        with pytest.raises(openai.APIStatusError):
            ask(sdk, failing(trace, word), model="tools", conversation=word)
    assert trace.words == ["once", "once"]
    good = [("user", f"{word} hello"), ("assistant", f"You said: {word} hello")]
    prompts = server.seen(failing(trace, word))
    assert [prompt for prompt in prompts if prompt[-1][0] == "user"] == [
        [*good, ("user", failing(trace, word))]
    ] * 2


@pytest.mark.parametrize("history", [False, True])
def test_I21_a_retry_is_matched_although_another_turn_was_committed_since(
    server: LiveServer, sdk: openai.OpenAI, word: str, history: bool
) -> None:
    ask(sdk, f"{word} hello", conversation=word)
    body = [user(f"{word} hello"), assistant(f"You said: {word} hello")] if history else []
    first = ask(sdk, [*body, user(f"{word} one")], conversation=word)
    ask(sdk, f"{word} two", conversation=word)
    again = ask(sdk, [*body, user(f"{word} one")], conversation=word, headers=AGAIN)
    assert (again.id, again.replayed, server.turns(word)) == (first.id, True, 3)


def test_I21_the_retry_of_a_refused_request_is_not_answered_by_an_older_turn(
    server: LiveServer, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(f"{word} other", says("wait", gate))
    with server.client() as client:
        first = ask(client, f"{word} yes", conversation=word)
        with asking(client, f"{word} other", conversation=word, model="remote") as other:
            gate.until_reached()
            with pytest.raises(openai.ConflictError):
                ask(client, f"{word} yes", conversation=word)
            gate.open()
            other.result()
        second = ask(client, f"{word} yes", conversation=word, headers=AGAIN)
        assert (second.id != first.id, second.replayed) == (True, False)
        assert ask(client, f"{word} yes", conversation=word, headers=AGAIN).id == second.id
    assert server.turns(word) == 3


def test_I21_the_retry_of_a_rate_limited_request_is_not_answered_by_an_older_turn(
    tmp_path: Path, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(f"{word} other", says("wait", gate))
    (tmp_path / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    token = asyncio.run(
        make_tokens(f"sqlite:///{tmp_path / 'data' / 'lastgood.db'}", {"sdk": ("default", ("chat",))})
    )["sdk"]
    agents = (AGENT, str(tmp_path / "remote.yaml"))
    with (
        LiveServer(tmp_path, *agents, options=("--token-running", "1"), api_key=token) as server,
        server.client() as client,
    ):
        first = ask(client, f"{word} yes", conversation=word)
        with asking(client, f"{word} other", conversation=f"{word}-other", model="remote") as other:
            gate.until_reached()
            with pytest.raises(openai.RateLimitError):
                ask(client, f"{word} yes", conversation=word)
            gate.open()
            other.result()
        second = ask(client, f"{word} yes", conversation=word, headers=AGAIN)
        assert (second.id != first.id, second.replayed) == (True, False)
        assert ask(client, f"{word} yes", conversation=word, headers=AGAIN).id == second.id


@pytest.mark.slow
def test_I21_a_refusal_by_a_server_that_ends_is_known_to_the_next_one(
    tmp_path: Path, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(f"{word} other", says("wait", gate))
    (tmp_path / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    with LiveServer(tmp_path / "server", AGENT, str(tmp_path / "remote.yaml")) as server:
        with server.client() as client:
            first = ask(client, f"{word} yes", conversation=word)
            with asking(client, f"{word} other", model="remote") as other:
                gate.until_reached()
                server.tell(signal.SIGTERM)
                until(lambda: server.status("/ready") == 503)
                with pytest.raises(openai.InternalServerError) as refused:
                    ask(client, f"{word} yes", conversation=word)
                assert refused.value.status_code == 503
                gate.open()
                other.result()
        server.restart()
        with server.client() as client:
            second = ask(client, f"{word} yes", conversation=word, headers=AGAIN)
            assert (second.id != first.id, second.replayed) == (True, False)


# -- the session API ------------------------------------------------------------------------------


def test_I21_the_session_api_reports_it_to_waiters_and_watchers(
    server: LiveServer, trace: Trace, word: str
) -> None:
    api = Api(server)
    session = api.session("tools")
    given = api.turn(session, failing(trace, word))
    assert (given.refusal, given.headers["x-should-retry"]) == ((424, "model_error"), "false")
    frames = {
        frame.type: frame.data for frame in api.run(session, failing(trace, word), agent="tools").frames
    }
    assert frames["turn_failed"]["retryable"] is False
    assert trace.words == ["once", "once"]


def test_the_python_client_raises_it_at_once(server: LiveServer, trace: Trace, word: str) -> None:
    with Client(server.url) as client:
        session = client.create("tools").id
        with pytest.raises(ModelError) as failed:
            client.ask(session, failing(trace, word))
    assert trace.words == ["once"]
    assert failed.value.retryable is False


# -- Vercel's AI SDK ------------------------------------------------------------------------------

VERCEL_SCRIPT = r"""
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
const { baseURL, model, prompt, headers, stream } = JSON.parse(process.argv[2]);
const provider = createOpenAICompatible({ name: "lastgood", baseURL, apiKey: "none", headers });
let failure = null, text = "";
try {
  if (stream) {
    const onError = ({ error }) => { failure = error; };
    const answer = streamText({ model: provider(model), prompt, onError });
    for await (const piece of answer.textStream) text += piece;
  } else {
    text = (await generateText({ model: provider(model), prompt })).text;
  }
} catch (error) { failure = error; }
const last = failure?.lastError ?? failure;
console.log(JSON.stringify({
  text, status: last?.statusCode ?? null, tries: failure?.errors?.length ?? 1, failed: failure !== null,
}));
"""


@pytest.fixture(scope="module")
def vercel() -> Path:
    folder = npm_folder("Vercel's AI SDK", *VERCEL)
    (folder / "ask.js").write_text(VERCEL_SCRIPT)
    return folder


def vercel_ask(folder: Path, server: LiveServer, model: str, prompt: str, **more: Any) -> dict[str, Any]:
    asked = {"baseURL": f"{server.url}/v1", "model": model, "prompt": prompt, **more}
    line = ["node", "ask.js", json.dumps(asked)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    received: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return received


@pytest.mark.slow
@HELD
@BOTH_WAYS
def test_I21_vercels_sdk_runs_the_tool_of_a_failed_turn_once(
    server: LiveServer, vercel: Path, trace: Trace, word: str, held: bool, stream: bool
) -> None:
    headers = {"X-Conversation-Id": word} if held else {}
    received = vercel_ask(vercel, server, "tools", failing(trace, word), headers=headers, stream=stream)
    assert received == {"text": "", "status": 424, "tries": 1, "failed": True}
    assert trace.words == ["once"]


@pytest.mark.slow
def test_vercels_sdk_does_retry_where_nothing_has_run(
    server: LiveServer, fake: FakeModel, vercel: Path, word: str
) -> None:
    """Or the test above would prove nothing."""
    script = fake.on(word, refuses(500), says("yes"))
    received = vercel_ask(vercel, server, "remote", word, headers={"X-Conversation-Id": word}, stream=False)
    assert (received["text"], len(script.requests)) == ("yes", 2)


# -- litellm --------------------------------------------------------------------------------------

LITELLM_SCRIPT = """
import json, sys
import litellm
asked = json.loads(sys.argv[1])
try:
    done = litellm.completion(api_key="none", num_retries=2, **asked)
    told = {"text": done.choices[0].message.content}
except Exception as error:
    told = {"status": getattr(error, "status_code", None)}
print(json.dumps(told))
"""


def litellm_ask(server: LiveServer, model: str, prompt: str, **headers: str) -> dict[str, Any]:
    python = python_with("litellm", *LITELLM)
    asked = {
        "model": f"openai/{model}",
        "api_base": f"{server.url}/v1",
        "messages": [user(prompt)],
        "extra_headers": headers,
    }
    # It would load a price list from the network when it is imported.
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    line = [str(python), "-c", LITELLM_SCRIPT, json.dumps(asked)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    received: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return received


@pytest.mark.slow
def test_I33_litellm_with_a_key_runs_the_tool_of_a_failed_turn_once(
    server: LiveServer, trace: Trace, word: str
) -> None:
    """It retries whatever the status is; under its key that is the same turn, which goes on."""
    headers = {"X-Conversation-Id": word, "Idempotency-Key": word}
    received = litellm_ask(server, "tools", failing(trace, word, "before 1"), **headers)
    assert (received, trace.words) == ({"text": "one two"}, ["once"])
    assert server.tries(word) == ["failed", "committed"]
