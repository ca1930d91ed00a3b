"""Every error is the SDK's own exception for it, with its code, its type and the parameter that was wrong."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.e2e.chat_requests import BOTH, Said, ask, asking, result, user
from tests.e2e.command import AGENT, until
from tests.e2e.fake_model import FakeModel, Gate, Reply, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)


@dataclass(frozen=True)
class Wrong:
    raises: type[openai.APIStatusError]
    status: int
    code: str
    type: str
    param: str | None
    ask: Callable[[openai.OpenAI, bool], Said]


def wrong(
    raises: type[openai.APIStatusError],
    status: int,
    code: str,
    *,
    type: str = "invalid_request_error",
    param: str | None = None,
    what: Any = "hi",
    **options: Any,
) -> Wrong:
    return Wrong(
        raises, status, code, type, param, lambda sdk, stream: ask(sdk, what, stream=stream, **options)
    )


BAD = openai.BadRequestError
IMAGE = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
WRONG = {
    "a bad range": wrong(BAD, 400, "invalid_request", param="temperature", temperature=3),
    "a bad message": wrong(
        BAD, 400, "invalid_request", param="messages[0].role", what=[{"role": "x", "content": "a"}]
    ),
    "nothing at all": wrong(BAD, 400, "invalid_request", param="messages", what=[]),
    "nothing to answer": wrong(BAD, 400, "invalid_request", what=[{"role": "assistant", "content": "a"}]),
    "a result without its call": wrong(BAD, 400, "invalid_request", what=[result("zz", "42")]),
    "results without their calls": wrong(
        BAD, 400, "invalid_request", what=[result("zz", "42"), result("yy", "43")]
    ),
    "too many words to stop at": wrong(BAD, 400, "invalid_request", param="stop", stop=list("abcde")),
    "a condition that is not looked at": wrong(
        BAD, 400, "invalid_request", param="if-match", headers={"If-Match": "turn_x"}
    ),
    "another condition": wrong(
        BAD, 400, "invalid_request", param="if-none-match", headers={"If-None-Match": "*"}
    ),
    "an effort that is none": wrong(
        BAD, 400, "invalid_request", param="reasoning_effort", reasoning_effort="bogus"
    ),
    "instructions alone": wrong(BAD, 400, "invalid_request", what=[{"role": "system", "content": "a"}]),
    "an option of another server": wrong(
        BAD, 400, "invalid_request", param="guided_json", extra_body={"guided_json": {"type": "object"}}
    ),
    "a blank message": wrong(BAD, 400, "invalid_request", what="  "),
    "a file of the server": wrong(BAD, 400, "invalid_request", what=[user(IMAGE)]),
    "a NUL": wrong(BAD, 400, "invalid_request", what="a\0b"),
    "a name that is none": wrong(
        BAD, 400, "invalid_request", param="x-conversation-id", headers={"X-Conversation-Id": "a b"}
    ),
    "a key that is none": wrong(
        BAD, 400, "invalid_request", param="idempotency-key", headers={"Idempotency-Key": ""}
    ),
    "another host": wrong(
        openai.PermissionDeniedError,
        403,
        "forbidden",
        type="permission_error",
        headers={"Host": "evil.example"},
    ),
    "an unknown model": wrong(openai.NotFoundError, 404, "model_not_found", param="model", model="nobody"),
    "an unknown member": wrong(
        openai.NotFoundError, 404, "model_not_found", param="model", model="team/nobody"
    ),
}


@BOTH_WAYS
@pytest.mark.parametrize("row", WRONG.values(), ids=WRONG)
def test_a_bad_request_raises_what_the_sdk_has_for_it(sdk: openai.OpenAI, row: Wrong, stream: bool) -> None:
    with pytest.raises(row.raises) as refused:
        row.ask(sdk, stream)
    error = refused.value
    assert (error.status_code, error.code, error.type, error.param) == (
        row.status,
        row.code,
        row.type,
        row.param,
    )
    assert error.request_id
    assert error.response.headers["x-should-retry"] == "false"


def test_what_is_not_there_is_not_found(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        sdk.embeddings.create(model=AGENT, input="hi")
    assert (refused.value.code, refused.value.type) == ("not_found", "invalid_request_error")


def test_a_wrong_token_is_refused(mortal: LiveServer, word: str) -> None:
    with (
        openai.OpenAI(base_url=f"{mortal.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        ask(client, word, conversation=word)
    assert (refused.value.code, refused.value.type) == ("invalid_api_key", "authentication_error")
    assert mortal.turns(word) is None


@pytest.mark.parametrize("held", [True, False])
def test_a_request_that_is_too_large_is_refused(impatient: LiveServer, held: bool, word: str) -> None:
    """I40."""
    with impatient.client() as client, pytest.raises(openai.APIStatusError) as refused:
        ask(client, "a" * 200_000, conversation=word if held else None)
    assert (refused.value.status_code, refused.value.code) == (413, "too_large")
    assert impatient.turns(word) is None


def test_an_unreachable_server_is_a_connection_error(served: LiveServer) -> None:
    with (
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        ask(client, "hi")


@pytest.mark.anyio
async def test_async_client_raises_the_same(served: LiveServer, fake: FakeModel, word: str) -> None:
    messages: Any = [user(word)]
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="not found; available"):
            await client.chat.completions.create(model="nobody", messages=messages)
        fake.on(word, breaks_off_after("one ", "two"))
        with pytest.raises(openai.APIError, match="closed the connection") as failed:
            async for _ in await client.chat.completions.create(
                model="remote", messages=messages, stream=True
            ):
                pass
        assert failed.value.code == "model_error"


# -- the model's errors ------------------------------------------------------------

MODEL: dict[str, tuple[Reply, type[openai.APIStatusError], str, str]] = {
    "it failed": (refuses(500), openai.InternalServerError, "model_error", "server_error"),
    "it has too much to do": (refuses(429), openai.RateLimitError, "rate_limit_exceeded", "rate_limit_error"),
    "it refuses our key": (refuses(403), openai.InternalServerError, "model_error", "server_error"),
    "the history is too long": (
        refuses(400, code="context_length_exceeded"),
        openai.BadRequestError,
        "context_length_exceeded",
        "invalid_request_error",
    ),
}


@BOTH_WAYS
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("row", MODEL.values(), ids=MODEL)
def test_a_model_that_fails_before_its_first_word_gives_a_status(
    fake: FakeModel,
    sdk: openai.OpenAI,
    row: tuple[Reply, type[openai.APIStatusError], str, str],
    held: bool,
    stream: bool,
    word: str,
) -> None:
    """Streamed or not: nothing has been streamed yet."""
    reply, raises, code, type = row
    fake.on(word, reply)
    with pytest.raises(raises) as failed:
        ask(sdk, word, stream=stream, conversation=word if held else None, model="remote")
    assert (failed.value.code, failed.value.type) == (code, type)
    if held:
        assert failed.value.response.headers["x-conversation-id"] == word


@pytest.mark.parametrize("held", [True, False])
def test_a_stream_that_fails_later_never_ends_well(
    fake: FakeModel, sdk: openai.OpenAI, held: bool, word: str
) -> None:
    """An error is its last frame, and no [DONE] follows: the SDK raises, and so does a simpler client."""
    fake.on(word, breaks_off_after("one ", "two"))
    messages: Any = [user(word)]
    headers = {"X-Conversation-Id": word} if held else {}
    received: list[str] = []

    def listen() -> None:
        with sdk.chat.completions.create(
            model="remote", messages=messages, stream=True, extra_headers=headers
        ) as stream:
            for chunk in stream:
                assert chunk.choices[0].finish_reason is None
                received.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError) as failed:
        listen()
    assert "".join(received).startswith("one ")
    assert (failed.value.code, failed.value.type) == ("model_error", "server_error")
    fake.on(word, breaks_off_after("one ", "two"))
    with sdk.chat.completions.with_streaming_response.create(
        model="remote", messages=messages, stream=True, extra_headers=headers
    ) as answer:
        frames = [line for line in answer.iter_lines() if line]
    assert frames[-1].startswith('data: {"error":')
    assert "data: [DONE]" not in frames


# -- the server ends ---------------------------------------------------------------


@pytest.mark.slow
def test_a_stopping_server_notifies_its_clients(mortal: LiveServer, fake: FakeModel, word: str) -> None:
    """I25: one streams, one waits, one comes too late; each is told, and nothing is committed."""
    words, gates = {stream: f"{word}{stream}" for stream in BOTH}, {stream: Gate() for stream in BOTH}
    for stream in BOTH:
        fake.on(words[stream], says("lo", gates[stream], "st"))
    with mortal.client() as client:
        model: dict[str, Any] = {"model": "remote"}
        with (
            asking(client, words[True], stream=True, conversation=words[True], **model) as streams,
            asking(client, words[False], conversation=words[False], **model) as waits,
        ):
            for gate in gates.values():
                gate.until_reached()
            mortal.tell(signal.SIGTERM)
            until(lambda: mortal.status("/ready") != 200)
            with pytest.raises((openai.InternalServerError, openai.APIConnectionError)) as refused:
                ask(client, word, conversation=word)
            if isinstance(refused.value, openai.InternalServerError):
                assert (refused.value.status_code, refused.value.code) == (503, "shutting_down")
            assert type(streams.exception()) is openai.APIError  # said in the stream, not cut off
            assert isinstance(waits.exception(), openai.InternalServerError)
        mortal.stop()
        mortal.start()
        for stream in BOTH:
            assert mortal.tries(words[stream]) == ["interrupted"]
            script = fake.on(words[stream], says("yes"))
            ask(client, words[stream], stream=stream, conversation=words[stream], **model)
            assert script.prompts == [[("user", words[stream])]]
