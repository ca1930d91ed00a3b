"""M2: a failed continuation stays out of the conversation, however it fails.

After each failure the next prompt that the model sees is exactly the last good history and the new message.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.e2e.chat_requests import BOTH, ask, ask_and_go, asking, assistant, request_of, user
from tests.e2e.command import AGENT, until
from tests.e2e.fake_model import FakeModel, Gate, Reply, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)


def good_turn(word: str) -> list[tuple[str, Any]]:
    return [("user", f"I am {word}"), ("assistant", f"You said: I am {word}")]


def begin(client: openai.OpenAI, word: str) -> None:
    """One good turn, which all prompts of this conversation begin with."""
    ask(client, f"I am {word}", conversation=word)


def begin_remote(client: openai.OpenAI, fake: FakeModel, word: str) -> list[tuple[str, Any]]:
    """The same on the fake model; its replies are set by the test."""
    fake.on(word, says("hello"))
    ask(client, word, conversation=word, model="remote")
    return [("user", word), ("assistant", "hello")]


# -- the model fails ---------------------------------------------------------------

FAILURES = {
    "before the first word": "lost\n!fail before",
    "in the middle": "lost as well\n!fail during",
    "after the last word": "lost in the end\n!fail after",
    "with nothing to say": "lost\n!empty",
    "after tools have run": '!tool echo {"text": "a"}\n!also echo {"text": "b"}\n!say x y\n!fail during',
    "at something it cannot read": "lost\n!tell",
}


@BOTH_WAYS
@pytest.mark.parametrize("how", FAILURES.values(), ids=FAILURES)
def test_M2_1_a_failed_turn_leaves_no_trace(
    served: LiveServer, sdk: openai.OpenAI, how: str, stream: bool, word: str
) -> None:
    """I1, I2. M2.2: the stream had its last word, and the turn failed all the same."""
    begin(sdk, word)
    with pytest.raises(openai.APIError) as failed:
        ask(sdk, how, stream=stream, conversation=word)
    assert failed.value.code == "model_error"
    assert failed.value.type == "server_error"
    assert ask(sdk, "next", stream=stream, conversation=word).text == "You said: next"
    assert served.seen(word)[-1] == [*good_turn(word), ("user", "next")]
    # M2.7: what failed is kept beside the history, for people.
    assert served.tries(word) == ["committed", "failed", "committed"]


REMOTE_FAILURES: dict[str, tuple[Reply, str]] = {
    "it answers 500": (refuses(500), "model_error"),
    "it answers 400": (refuses(400, "bad"), "model_error"),
    "it takes no more requests": (refuses(429), "rate_limit_exceeded"),
    "its account is used up": (refuses(429, type="insufficient_quota"), "insufficient_quota"),
    "it does not know the key": (refuses(401), "model_error"),
    "the history is too long": (
        refuses(400, "too long", code="context_length_exceeded"),
        "context_length_exceeded",
    ),
    "it breaks off before a word": (breaks_off_after(), "model_error"),
    "it breaks off in the middle": (breaks_off_after("lost", " as well"), "model_error"),
    "it ends too early": (Reply(says("lost").pieces[:1]), "model_error"),
    "it sends something else": (Reply([b"<html>hello</html>"]), "model_error"),
    "it fails in its stream": (
        Reply([*says("lost").pieces[:1], b'data: {"error": {"message": "oh"}}\n\n']),
        "model_error",
    ),
}


@BOTH_WAYS
@pytest.mark.parametrize("row", REMOTE_FAILURES.values(), ids=REMOTE_FAILURES)
def test_M2_1_whatever_a_models_server_does(
    fake: FakeModel, sdk: openai.OpenAI, row: tuple[Reply, str], stream: bool, word: str
) -> None:
    reply, code = row
    before = begin_remote(sdk, fake, word)
    script = fake.on(word, reply)
    with pytest.raises(openai.APIError) as failed:
        ask(sdk, f"{word} lost", stream=stream, conversation=word, model="remote")
    assert failed.value.code == code
    script.then(says("yes"))
    assert ask(sdk, f"{word} next", stream=stream, conversation=word, model="remote").text == "yes"
    assert script.prompts[-1] == [*before, ("user", f"{word} next")]


@BOTH_WAYS
def test_M2_1_the_first_turn_fails_and_is_sent_again(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    """There is no good turn yet, so the whole body starts the conversation: as often as it takes."""
    body = [{"role": "system", "content": "be brief"}, user("a"), assistant("b"), user(word)]
    script = fake.on(word, breaks_off_after("lost"), refuses(500), says("yes"))
    for _ in range(2):
        with pytest.raises(openai.APIError):
            ask(sdk, body, stream=stream, conversation=word, model="remote")
    assert ask(sdk, body, stream=stream, conversation=word, model="remote").text == "yes"
    assert script.prompts == [[("user", "a"), ("assistant", "b"), ("user", word)]] * 3
    ask(sdk, [*body, assistant("yes"), user(f"{word} 2")], stream=stream, conversation=word, model="remote")
    assert script.prompts[-1] == [*script.prompts[0], ("assistant", "yes"), ("user", f"{word} 2")]
    assert served.tries(word) == ["failed", "failed", "committed", "committed"]


# -- too late ----------------------------------------------------------------------


@BOTH_WAYS
def test_M2_a_deadline_between_two_steps_is_a_failure(
    impatient: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    """A tool has run, and then the model says nothing more."""
    gate = Gate()
    with impatient.client() as client:
        before = begin_remote(client, fake, word)
        call = ("a", "think", '{"thought": "hm"}')
        script = fake.on(word, says("let me see", calls=[call]), says(gate, "too late"))
        with pytest.raises(openai.APIError, match="No output from a model or tool") as failed:
            ask(client, f"{word} lost", stream=stream, conversation=word, model="remote")
        assert failed.value.code == "turn_timeout"
        assert script.gone.wait(5), "the model is still asked"
        script.then(says("yes"))
        ask(client, f"{word} next", stream=stream, conversation=word, model="remote")
        assert script.prompts[-1] == [*before, ("user", f"{word} next")]


@pytest.mark.slow
@BOTH_WAYS
def test_M2_a_turn_that_never_ends_is_ended(impatient: LiveServer, stream: bool, word: str) -> None:
    with impatient.client() as client:
        begin(client, word)
        with pytest.raises(openai.APIError, match="time limit of 3 s") as failed:
            ask(client, "!slow 0.2\n" + "on and on " * 1000, stream=stream, conversation=word)
        assert failed.value.code == "turn_timeout"
        ask(client, "next", stream=stream, conversation=word)
        assert impatient.seen(word)[-1] == [*good_turn(word), ("user", "next")]


# -- the client goes ---------------------------------------------------------------


@BOTH_WAYS
def test_M2_a_client_that_goes_leaves_nothing_behind(
    mortal: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    """I21: the model even finishes its answer, and still nothing is committed while nobody is there."""
    gate, sleep = Gate(), Gate()
    with mortal.client() as client:
        before = begin_remote(client, fake, word)
        script = fake.on(word, says("lost ", gate, "and", sleep))
        ask_and_go(mortal, gate, f"{word} lost", stream=stream, conversation=word)
        until(lambda: mortal.rows("SELECT 1 FROM attempts WHERE orphaned = 1 AND status = 'running'") != [])
        sleep.open()
        gate.open()
        until(lambda: mortal.tries(word)[-1] != "running")
        assert mortal.tries(word) == ["committed", "cancelled"]
        script.then(says("yes"))
        ask(client, f"{word} next", stream=stream, conversation=word, model="remote")
        assert script.prompts[-1] == [*before, ("user", f"{word} next")]


def test_M2_what_a_gone_client_asked_is_not_worked_on_for_ever(
    mortal: LiveServer, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("lost ", gate))
    ask_and_go(mortal, gate, word, stream=True, conversation=word)
    assert script.gone.wait(10), "the model is still asked"


@BOTH_WAYS
def test_M2_a_new_message_supersedes_the_turn_of_a_disconnected_client(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    """It need not wait until the grace time is over."""
    gate = Gate()
    before = begin_remote(sdk, fake, word)
    script = fake.on(word, says("lost ", gate), says("yes"))
    ask_and_go(served, gate, f"{word} lost", stream=stream, conversation=word)
    sql = "SELECT orphaned FROM attempts JOIN sessions ON attempt_id = attempts.id WHERE conversation = ?"
    until(lambda: served.rows(sql, word) == [(1,)])
    assert ask(sdk, f"{word} next", stream=stream, conversation=word, model="remote").text == "yes"
    assert script.prompts[-1] == [*before, ("user", f"{word} next")]
    assert served.tries(word) == ["committed", "superseded", "committed"]


@BOTH_WAYS
def test_M2_an_immediate_new_message_supersedes_it(
    served: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    """Over another connection it may be read before the end of the first one is."""
    tries = [f"{word}-{number}-" for number in range(20)]
    received = []
    for one in tries:
        gate = Gate()
        fake.on(one, says("lost ", gate), says("yes"))
        ask_next = request_of(
            served, f"{one} next", stream=stream, conversation=one, headers={"Connection": "close"}
        )
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
            ask_and_go(served, gate, f"{one} lost", stream=stream, conversation=one)
            connection.sendall(ask_next)
            received.append(connection.makefile("rb").read()[:15])
    assert received == [b"HTTP/1.1 200 OK"] * len(tries)
    until(lambda: all(served.tries(one) == ["superseded", "committed"] for one in tries))


# -- the server dies ---------------------------------------------------------------


@pytest.mark.slow
def test_M2_kill_9_in_the_middle_of_turns_leaves_the_last_good_history(
    mortal: LiveServer, fake: FakeModel, word: str
) -> None:
    """I12, I16: one client streams, one waits; both learn that it failed; both go on afterwards."""
    words = {False: f"{word}a", True: f"{word}b"}
    gates = {stream: Gate() for stream in BOTH}
    failed: dict[bool, BaseException] = {}
    with mortal.client() as client:
        before = {stream: begin_remote(client, fake, words[stream]) for stream in BOTH}

        def lose(stream: bool) -> None:
            try:
                lost = f"{words[stream]} lost"
                ask(client, lost, stream=stream, conversation=words[stream], model="remote")
            except openai.APIConnectionError as error:
                failed[stream] = error

        scripts = {stream: fake.on(words[stream], says("lo", gates[stream], "st")) for stream in BOTH}
        threads = [threading.Thread(target=lose, args=(stream,)) for stream in BOTH]
        for thread in threads:
            thread.start()
        for gate in gates.values():
            gate.until_reached()
        mortal.kill()
        for thread in threads:
            thread.join()
        assert set(failed) == set(BOTH)
        mortal.start()
        for stream in BOTH:
            scripts[stream].then(says("yes"))
            name = words[stream]
            assert ask(client, f"{name} next", stream=stream, conversation=name, model="remote").text == "yes"
            assert scripts[stream].prompts[-1] == [*before[stream], ("user", f"{name} next")]
            assert mortal.tries(name) == ["committed", "interrupted", "committed"]


@BOTH_WAYS
@pytest.mark.parametrize("succeeds", [True, False])
def test_M2_6_a_history_evicted_while_its_turn_runs_is_still_there(
    mortal: LiveServer, fake: FakeModel, stream: bool, succeeds: bool, word: str
) -> None:
    """One history is kept in memory at most; every other conversation pushes this one out."""
    gate = Gate()
    with mortal.client() as client:
        before = begin_remote(client, fake, word)
        reply = says("go", gate, "od") if succeeds else breaks_off_after("lost", gate)
        script = fake.on(word, reply, says("yes"))
        options: dict[str, Any] = {"stream": stream, "conversation": word, "model": "remote"}
        with asking(client, f"{word} 2", **options) as turn:
            gate.until_reached()
            for number in range(3):
                ask(client, "hello", conversation=f"{word}-other-{number}")
            gate.open()
            if not succeeds:
                with pytest.raises(openai.APIError):
                    turn.result()
        kept = [("user", f"{word} 2"), ("assistant", "good")] if succeeds else []
        ask(client, f"{word} 3", **options)
        assert script.prompts[-1] == [*before, *kept, ("user", f"{word} 3")]


# -- two at once -------------------------------------------------------------------


@BOTH_WAYS
def test_M2_5_a_second_request_gets_409_and_changes_nothing(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    """I13. Other conversations go on meanwhile."""
    gate = Gate()
    before = begin_remote(sdk, fake, word)
    script = fake.on(word, says("fir", gate, "st"), says("yes"))
    options: dict[str, Any] = {"stream": stream, "conversation": word, "model": "remote"}
    with asking(sdk, f"{word} first", **options) as first:
        gate.until_reached()
        for _ in range(2):
            with pytest.raises(openai.ConflictError) as busy:
                ask(sdk, f"{word} second", **options)
            assert busy.value.code == "session_busy"
            assert busy.value.response.headers["x-should-retry"] == "true"
            assert busy.value.response.headers["retry-after"] == "1"
        assert ask(sdk, "hello", conversation=f"{word}-other", stream=stream).text == "You said: hello"
        gate.open()
        assert first.result().text == "first"
    assert ask(sdk, f"{word} third", **options).text == "yes"
    assert script.prompts[-1] == [
        *before,
        ("user", f"{word} first"),
        ("assistant", "first"),
        ("user", f"{word} third"),
    ]
    assert served.tries(word) == ["committed"] * 3


@BOTH_WAYS
def test_M3_5_after_reading_an_answer_no_client_gets_a_false_409(
    sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    for number in range(20):
        ask(sdk, f"{number}", stream=stream, conversation=word)


def test_M2_5_of_many_first_requests_at_once_one_is_answered(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, word: str
) -> None:
    """A conversation that does not exist yet is begun once."""
    gate = Gate()
    script = fake.on(word, says("y", gate, "es"))
    received: list[str] = []

    def one() -> None:
        try:
            received.append(ask(sdk, word, conversation=word, model="remote").text)
        except openai.ConflictError as busy:
            received.append(str(busy.code))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: len(received) == 5)
    gate.open()
    for thread in threads:
        thread.join()
    assert received == [*["session_busy"] * 5, "yes"]
    assert (served.turns(word), len(script.requests)) == (1, 1)


@pytest.mark.slow
def test_M2_5_the_whole_body_begins_a_conversation_only_once(
    served: LiveServer, sdk: openai.OpenAI, word: str
) -> None:
    """Two clients send a history they share, again and again until they are answered: whoever comes second
    finds a turn, and then only the last word of the body is new."""
    for number in range(25):
        name = f"{word}-{number}"

        def say(text: str, name: str = name) -> None:
            body = [user(f"seed {name}"), assistant("yes"), user(text)]
            while True:
                try:
                    ask(sdk, body, conversation=name)
                    return
                except openai.ConflictError:
                    pass

        threads = [threading.Thread(target=say, args=(text,)) for text in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        longest = max(served.seen(f"seed {name}"), key=len)
        assert [role for role, _ in longest] == ["user", "assistant", "user", "assistant", "user"], longest


# -- nothing new -------------------------------------------------------------------

GOOD = [user("I am"), assistant("You said: I am")]
NOTHING_NEW: dict[str, list[dict[str, Any]]] = {
    "the answer comes last": GOOD,
    "a blank message": [*GOOD, user(" \n")],
    "an empty message": [*GOOD, user("")],
    "no part of a message": [*GOOD, user([])],
    "a result of no call": [*GOOD, {"role": "tool", "tool_call_id": "a", "content": "rain"}],
    "a system message": [*GOOD, {"role": "system", "content": "be good"}],
}


@BOTH_WAYS
@pytest.mark.parametrize("body", NOTHING_NEW.values(), ids=NOTHING_NEW)
def test_M2_3_without_a_new_user_message_nothing_is_replayed(
    served: LiveServer, sdk: openai.OpenAI, body: list[dict[str, Any]], stream: bool, word: str
) -> None:
    """I13: a 400, no model call, nothing written."""
    begin(sdk, word)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(sdk, body, stream=stream, conversation=word)
    assert refused.value.code == "invalid_request"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert (served.tries(word), len(served.seen(word))) == (["committed"], 1)


Refusal = Callable[[openai.OpenAI, str], object]
REFUSED_AT_ONCE: dict[str, Refusal] = {
    "nothing to answer": lambda sdk, name: ask(sdk, [assistant("hi")], conversation=name),
    "a blank message": lambda sdk, name: ask(sdk, " ", conversation=name),
    "an unknown model": lambda sdk, name: ask(sdk, "hi", conversation=name, model="nobody"),
    "a bad parameter": lambda sdk, name: ask(sdk, "hi", conversation=name, temperature=9),
    "a bad key": lambda sdk, name: ask(sdk, "hi", conversation=name, key="k" * 300),
}


@pytest.mark.parametrize("refused", REFUSED_AT_ONCE.values(), ids=REFUSED_AT_ONCE)
def test_a_refused_first_request_makes_no_conversation(
    served: LiveServer, sdk: openai.OpenAI, refused: Refusal, word: str
) -> None:
    """I13."""
    with pytest.raises(openai.APIStatusError) as error:
        refused(sdk, word)
    assert error.value.status_code in (400, 404)
    assert served.turns(word) is None


def test_the_new_message_alone_is_enough(served: LiveServer, sdk: openai.OpenAI, word: str) -> None:
    """A client may send its whole history or only what is new: the prompt is the same."""
    begin(sdk, word)
    body = [user(f"I am {word}"), assistant("something else, as the client has it"), user("2")]
    ask(sdk, body, conversation=word)
    ask(sdk, "3", conversation=word)
    received = [("user", "2"), ("assistant", "You said: 2"), ("user", "3")]
    assert served.seen(word)[-1] == [*good_turn(word), *received]
    assert served.prompts()[-1]["model"] == AGENT
