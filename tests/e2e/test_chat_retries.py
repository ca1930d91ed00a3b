"""Safe retries (I20, I21): however often a request is sent, it is one turn."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.chat_requests import BOTH, Said, ask, ask_and_go, asking, assistant, result, tool, user
from tests.e2e.command import until
from tests.e2e.fake_model import FakeModel, Gate, Reply, breaks_off_after, refuses, says
from tests.e2e.lossy_proxy import LossyProxy
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
#: What the SDK says of itself when it sends a request again.
AGAIN = {"x-stainless-retry-count": "1"}
ORPHANED = "SELECT orphaned FROM attempts JOIN sessions ON attempt_id = attempts.id WHERE conversation = ?"


def is_orphaned(server: LiveServer, conversation: str) -> bool:
    return server.rows(ORPHANED, conversation) == [(1,)]


def is_attended(server: LiveServer, conversation: str) -> bool:
    return server.rows(ORPHANED, conversation) == [(0,)]


# -- with a key --------------------------------------------------------------------


@BOTH_WAYS
def test_a_committed_turn_is_replayed_and_not_run_again(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    asked = f'{word}\n!tool echo {{"text": "a"}}\n!say one two'
    first = ask(sdk, asked, stream=stream, conversation=word, key=f"key-{word}")
    calls = len(served.seen(word))
    again = ask(sdk, asked, stream=stream, conversation=word, key=f"key-{word}")
    assert (again.id, again.text, again.finish) == (first.id, "one two", "stop")
    assert (first.replayed, again.replayed) == (False, True)
    assert (served.turns(word), len(served.seen(word))) == (1, calls)


def test_a_replay_repeats_all_events(fake: FakeModel, sdk: openai.OpenAI, word: str) -> None:
    call = ("a", "think", '{"thought": "hm"}')
    fake.on(word, says("well", calls=[call]), says("yes", finish="length"))
    options: dict[str, Any] = {"conversation": word, "key": f"key-{word}", "model": "remote"}
    for stream in BOTH:
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        received = options | {"key": f"key-{word}-{stream}"}
        fake.on(word, says("well", calls=[call]), says("yes", finish="length"))
        first = ask(sdk, word, stream=stream, **received, **more)
        again = ask(sdk, word, stream=stream, **received, **more)
        assert first.text == again.text == "well\n\nyes"
        assert first.finish == again.finish == "length"
        assert first.usage == again.usage == (22, 14)


@BOTH_WAYS
def test_the_same_key_while_it_runs_attaches(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("one ", gate, "two"))
    options: dict[str, Any] = {"stream": stream, "conversation": word, "key": word, "model": "remote"}
    with asking(sdk, word, **options) as first:
        gate.until_reached()
        with asking(sdk, word, **options) as second:
            with pytest.raises(openai.ConflictError):  # somebody else's request does not
                ask(sdk, f"{word} other", conversation=word, model="remote")
            gate.open()
            assert (first.result().text, second.result().text) == ("one two", "one two")
            assert first.result().id == second.result().id
    assert (served.tries(word), len(script.requests)) == (["committed"], 1)


@BOTH_WAYS
@pytest.mark.parametrize("how", [refuses(500), breaks_off_after("lost")], ids=["at once", "in its stream"])
def test_a_failed_turn_is_tried_again_under_its_key(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, how: Reply, word: str
) -> None:
    script = fake.on(word, how, says("yes"))
    options: dict[str, Any] = {"stream": stream, "conversation": word, "key": word, "model": "remote"}
    with pytest.raises(openai.APIError):
        ask(sdk, word, **options)
    second = ask(sdk, word, **options)
    assert (second.text, second.replayed) == ("yes", False)
    third = ask(sdk, word, **options)
    assert (third.id, third.text, third.replayed) == (second.id, "yes", True)
    assert script.prompts == [[("user", word)]] * 2
    assert served.rows("SELECT DISTINCT turn_id FROM requests WHERE key = ?", word) == [(second.id,)]


@pytest.mark.parametrize(
    "change",
    [{"what": "other words"}, {"temperature": 1}, {"stream": True}, {"conversation": "another"}],
    ids=["words", "parameter", "stream", "conversation"],
)
def test_a_key_is_good_for_one_request(
    served: LiveServer, sdk: openai.OpenAI, change: dict[str, Any], word: str
) -> None:
    """I20: 422, and nothing is changed."""
    asked: dict[str, Any] = {"what": word, "conversation": word, "key": word}
    ask(sdk, **asked)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        ask(sdk, **(asked | change))
    assert refused.value.code == "idempotency_mismatch"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert (served.turns(word), len(served.seen(word))) == (1, 1)


@BOTH_WAYS
def test_with_a_key_a_client_may_leave_and_come_back(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("one ", gate, "two"))
    options: dict[str, Any] = {"stream": stream, "conversation": word, "key": word, "model": "remote"}
    ask_and_go(served, gate, word, stream=stream, conversation=word, headers={"Idempotency-Key": word})
    gate.open()
    until(lambda: served.tries(word) == ["committed"])
    received = ask(sdk, word, **options)
    assert (received.text, received.replayed, len(script.requests)) == ("one two", True, 1)


@pytest.mark.slow
def test_I20_keys_are_known_after_a_death(mortal: LiveServer, fake: FakeModel, word: str) -> None:
    """One turn was committed before, one was running: that was promised, so it is tried again by itself."""
    done, running = f"{word}a", f"{word}b"
    gate = Gate()
    with mortal.client() as client:
        first = ask(client, done, conversation=done, key=done)
        script = fake.on(running, says("lo", gate, "st"), says("yes"))
        options: dict[str, Any] = {"conversation": running, "key": running, "model": "remote"}
        with asking(client, running, **options) as lost:
            gate.until_reached()
            mortal.restart()
            assert isinstance(lost.exception(), openai.APIConnectionError)
        again = ask(client, done, conversation=done, key=done)
        assert (again.id, again.text, again.replayed) == (first.id, first.text, True)
        received = ask(client, running, **options)
        assert received.text == "yes"
        assert ask(client, running, **options).replayed
        assert mortal.tries(running) == ["interrupted", "committed"]
        assert script.prompts == [[("user", running)]] * 2


@pytest.mark.slow
def test_I20_watchers_of_a_recovered_turn_get_all_its_events(
    mortal: LiveServer, fake: FakeModel, word: str
) -> None:
    """What was said and done before the death is kept, and is part of the answer also in a stream."""
    death, last = Gate(), Gate()
    call = ("a", "think", '{"thought": "hm"}')
    script = fake.on(word, says("let me see", calls=[call]), says("lost", death), says("more ", last, "yes"))
    headers = {"X-Conversation-Id": word, "Idempotency-Key": word}
    messages: Any = [user(word)]
    with mortal.client() as client:
        with client.chat.completions.create(
            model="remote", messages=messages, stream=True, extra_headers=headers
        ) as lost:
            death.until_reached()
            mortal.restart()
            with pytest.raises(openai.APIConnectionError):
                list(lost)
        last.until_reached()
        with client.chat.completions.create(
            model="remote", messages=messages, stream=True, extra_headers=headers
        ) as stream:
            received = ""
            for chunk in stream:
                received += chunk.choices[0].delta.content or ""
                if "more" in received:
                    last.open()
        whole = "let me see\n\nmore yes"
        assert received == whole
        assert len(script.requests) == 3
        ask(client, f"{word} 2", conversation=word, model="remote")
        assert ("assistant", "more yes") in script.prompts[-1]


def results_turn(sdk: openai.OpenAI, word: str, then: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A conversation with an open call, and the body that answers it."""
    asked = f'{word}\n!tool weather {{"n": 1}}\n{then}'
    options: dict[str, Any] = {"conversation": word, "tools": [tool("weather")]}
    first = ask(sdk, asked, **options)
    return [user(asked), assistant(None, first.calls), result(first.calls[0][0], "rain")], options


THEN = pytest.mark.parametrize("then", ["!say done", '!tool weather {"n": 2}'], ids=["an answer", "a call"])


@BOTH_WAYS
@THEN
def test_results_of_calls_are_taken_once(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, then: str, word: str
) -> None:
    """The call is closed by then, or another one is open: what was told is told again all the same."""
    body, options = results_turn(sdk, word, then)
    first = ask(sdk, body, stream=stream, key=word, **options)
    calls = len(served.seen(word))
    again = ask(sdk, body, stream=stream, key=word, **options)
    assert (again.id, again.text, again.calls, again.replayed) == (first.id, first.text, first.calls, True)
    assert (served.turns(word), len(served.seen(word))) == (2, calls)


# -- the SDK's own retries ---------------------------------------------------------


@BOTH_WAYS
@THEN
def test_I21_results_of_calls_are_taken_once_by_a_retry_too(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, then: str, word: str
) -> None:
    body, options = results_turn(sdk, word, then)
    first = ask(sdk, body, stream=stream, **options)
    calls = len(served.seen(word))
    again = ask(sdk, body, stream=stream, headers=AGAIN, **options)
    assert (again.id, again.text, again.calls) == (first.id, first.text, first.calls)
    assert (served.turns(word), len(served.seen(word))) == (2, calls)


@BOTH_WAYS
@pytest.mark.parametrize("is_first", [True, False])
def test_I21_a_lost_response_is_replayed(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, is_first: bool, word: str
) -> None:
    """The turn was committed and its answer never arrived: the SDK sends it again, and nothing is run."""
    body = [{"role": "system", "content": "be good"}, user(word)]
    if not is_first:
        ask(sdk, body, conversation=word)
        body += [assistant("yes"), user(f"{word} 2")]
    with (
        LossyProxy(served.port, b"[DONE]" if stream else b"HTTP/1.1 200") as proxy,
        openai.OpenAI(base_url=proxy.url, api_key="none") as client,
    ):
        said = ask(client, body, stream=stream, conversation=word)
        assert proxy.lost == 1
    assert said.text == f"You said: {body[-1]['content']}"
    turns = 1 if is_first else 2
    assert (served.turns(word), len(served.seen(word))) == (turns, turns)


def test_the_same_words_may_be_meant_twice(served: LiveServer, sdk: openai.OpenAI, word: str) -> None:
    """Only an SDK's own retry is one: a person who says the same again wants to be answered again."""
    ids = {ask(sdk, word, conversation=word).id for _ in range(2)}
    assert (len(ids), served.turns(word)) == (2, 2)


@pytest.mark.slow
@BOTH_WAYS
def test_I21_a_retry_attaches_to_a_slow_first_try(
    served: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    """The SDK gives up waiting and asks again by itself: one model call, one turn."""
    gate = Gate()
    # Nothing at all comes until the gate opens: a stream that has begun is not asked for again.
    script = fake.on(word, says(gate, "one ", "two"))
    with (
        served.client(max_retries=2, timeout=1.5) as client,
        asking(client, word, stream=stream, conversation=word, model="remote") as received,
    ):
        gate.until_reached()
        until(lambda: is_orphaned(served, word))
        until(lambda: is_attended(served, word))
        gate.open()
        assert received.result().text == "one two"
    assert (served.tries(word), len(script.requests)) == (["committed"], 1)


@BOTH_WAYS
def test_I21_a_retry_is_another_try_when_the_first_has_failed(
    served: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    """Before the first word a failure is a status, also of a stream: so the SDK may ask again by itself."""
    script = fake.on(word, refuses(500), says("yes"))
    with served.client(max_retries=2) as client:
        said = ask(client, word, stream=stream, conversation=word, model="remote")
    assert said.text == "yes"
    assert (served.tries(word), len(script.requests)) == (["failed", "committed"], 2)


@pytest.mark.slow
def test_I21_a_retry_after_a_death_is_one_turn(mortal: LiveServer, fake: FakeModel, word: str) -> None:
    """Nobody tries a plain request again but its client, which never noticed more than a pause."""
    gate = Gate()
    script = fake.on(word, says("lo", gate, "st"), says("yes"))
    with (
        mortal.client(max_retries=8) as client,
        asking(client, word, conversation=word, model="remote") as received,
    ):
        gate.until_reached()
        mortal.restart()
        assert received.result().text == "yes"
    assert mortal.tries(word) == ["interrupted", "committed"]
    assert script.prompts == [[("user", word)]] * 2


@pytest.mark.slow
def test_I21_an_orphan_never_commits_alone(mortal: LiveServer, fake: FakeModel, word: str) -> None:
    """All tries of the SDK give up; the model answers in the end; nobody is there to hear it."""
    gate, last = Gate(), Gate()
    fake.on(word, says(gate, "too late", last))
    last.open()
    with mortal.client(max_retries=1, timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        ask(client, word, conversation=word, model="remote")
    until(lambda: is_orphaned(mortal, word))
    gate.open()
    until(lambda: mortal.tries(word) == ["cancelled"])
    assert mortal.turns(word) == 0


@BOTH_WAYS
def test_I21_a_client_that_returns_in_time_gets_the_answer(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    """The model has ended while nobody was there; what waited for somebody is committed then."""
    gate, last = Gate(), Gate()
    script = fake.on(word, says("one ", gate, "two", last))
    options: dict[str, Any] = {"stream": stream, "conversation": word, "model": "remote"}
    ask_and_go(served, gate, word, stream=stream, conversation=word)
    until(lambda: is_orphaned(served, word))
    gate.open()
    last.until_reached()
    last.open()
    assert ask(sdk, word, headers=AGAIN, **options).text == "one two"
    assert (served.tries(word), len(script.requests)) == (["committed"], 1)


def test_I21_with_other_parameters_it_is_no_retry(mortal: LiveServer, fake: FakeModel, word: str) -> None:
    """The same words and the same conversation, but other parameters: that is another request."""
    gate = Gate()
    fake.on(word, says("one ", gate, "two"))
    with mortal.client() as client:
        options: dict[str, Any] = {"conversation": word, "model": "remote"}
        with asking(client, word, **options) as first:
            gate.until_reached()
            with pytest.raises(openai.ConflictError):
                ask(client, word, headers=AGAIN, temperature=1, **options)
            with pytest.raises(openai.ConflictError):  # it does not say that it is a retry
                ask(client, word, **options)
            gate.open()
            assert isinstance(first.result(), Said)


# -- what may be sent again --------------------------------------------------------

THINK = says("", calls=[("a", "think", '{"thought": "hm"}')])
MAY: dict[str, tuple[tuple[Reply, ...], str]] = {
    "a model that failed": ((refuses(500),), "true"),
    "a model that breaks the connection": ((breaks_off_after(),), "true"),
    "a request that the model refuses": ((refuses(400, "bad"),), "false"),
    "an answer that is withheld": ((says("", finish="content_filter"),), "false"),
    "something that is no answer": ((Reply([b"<html>hello</html>"]),), "true"),
    "a model with too much to do": ((refuses(429),), "true"),
    "a model that fails after a repeatable tool has run": ((THINK, refuses(500)), "true"),
    "a key that is not accepted": ((refuses(401),), "false"),
    "an account that is used up": ((refuses(402),), "false"),
    "too long a history": ((refuses(400, code="context_length_exceeded"),), "false"),
}


@BOTH_WAYS
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("row", MAY.values(), ids=MAY)
def test_an_sdk_gets_whether_a_retry_may_help(
    fake: FakeModel,
    sdk: openai.OpenAI,
    row: tuple[tuple[Reply, ...], str],
    held: bool,
    stream: bool,
    word: str,
) -> None:
    """Tools that are not repeatable have a file of their own: test_clients.py."""
    replies, may = row
    fake.on(word, *replies)
    with pytest.raises(openai.APIStatusError) as failed:
        ask(sdk, word, stream=stream, conversation=word if held else None, model="remote")
    assert failed.value.response.headers["x-should-retry"] == may


def test_a_provider_that_asks_for_patience_is_quoted(fake: FakeModel, sdk: openai.OpenAI, word: str) -> None:
    fake.on(word, refuses(429, headers={"Retry-After": "7"}))
    with pytest.raises(openai.RateLimitError) as failed:
        ask(sdk, word, model="remote")
    assert failed.value.response.headers["retry-after"] == "7"
