"""I2, M2.1: whatever becomes of an edit or a regenerate, no acknowledged turn is lost."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.chat_requests import ask, asking, assistant, user
from tests.e2e.fake_model import FakeModel, Gate, says
from tests.e2e.server import LiveServer

RECONCILE = {"X-Conversation-Mode": "reconcile"}
ANSWERS = ("one", "two", "three")
ID = "SELECT id FROM sessions WHERE conversation = ?"


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("message", [1, 3])
def test_I2_a_server_that_ends_while_a_message_is_edited_keeps_every_acknowledged_turn(
    mortal: LiveServer, fake: FakeModel, word: str, message: int, how: str
) -> None:
    gate = Gate()
    script = fake.on(word, *map(says, ANSWERS), says("lo", gate, "st"))
    history = [
        one
        for number, answer in enumerate(ANSWERS, 1)
        for one in (user(f"{word} {number}"), assistant(answer))
    ]
    with mortal.client() as client:
        for number in range(1, 4):
            ask(client, f"{word} {number}", conversation=word, model="remote")
        before = mortal.rows(ID, word)
        edited = [*history[: 2 * (message - 1)], user(f"{word} {message} changed")]
        options: dict[str, Any] = {
            "stream": True,
            "conversation": word,
            "model": "remote",
            "headers": RECONCILE,
        }
        with asking(client, edited, **options) as turn:
            gate.until_reached()
            mortal.kill() if how == "kill" else mortal.stop()
            with pytest.raises(openai.APIError):
                turn.result()
        mortal.start()
        script.then(says("four"))
        assert ask(client, f"{word} 4", conversation=word, model="remote").text == "four"
    received = [(one["role"], one["content"]) for one in history]
    assert script.prompts[-1] == [*received, ("user", f"{word} 4")]
    assert mortal.rows(ID, word) == before
    assert mortal.turns(word) == 4
    assert mortal.rows("SELECT count(*) FROM branches WHERE session_id = ?", before[0][0]) == [(0,)]


def test_an_edit_keeps_the_session_its_title_and_its_rules(
    served: LiveServer, sdk: openai.OpenAI, fake: FakeModel, word: str
) -> None:
    fake.on(word, says("one"), says("two"), says("eins"), says("three"))
    options: dict[str, Any] = {"conversation": word, "model": "remote", "headers": RECONCILE}
    first = ask(sdk, [user(f"{word} 1")], **options)
    second = ask(sdk, [user(f"{word} 1"), assistant("one"), user(f"{word} 2")], **options)
    edited = ask(sdk, [user(f"{word} 1 changed")], **options)
    after = ask(sdk, [user(f"{word} 1 changed"), assistant("eins"), user(f"{word} 3")], **options)
    ids = {said.headers["x-session-id"] for said in (first, second, edited, after)}
    assert len(ids) == 1
    assert served.turns(word) == 2
    (branch,) = served.rows("SELECT head, replaced_by FROM branches WHERE session_id = ?", ids.pop())
    assert branch == (second.headers["x-turn-id"], edited.headers["x-turn-id"])


@pytest.mark.parametrize("key", [None, "key"])
def test_I20_a_retry_of_an_edit_that_was_committed_is_a_replay_and_edits_nothing(
    served: LiveServer, sdk: openai.OpenAI, fake: FakeModel, word: str, key: str | None
) -> None:
    script = fake.on(word, says("one"), says("eins"), says("never"))
    options: dict[str, Any] = {"conversation": word, "model": "remote"}
    ask(sdk, [user(f"{word} 1")], headers=RECONCILE, **options)
    keyed = f"{word}-{key}" if key else None
    edited = ask(sdk, [user(f"{word} changed")], headers=RECONCILE, key=keyed, **options)
    again = RECONCILE | ({} if key else {"x-stainless-retry-count": "1"})
    repeated = ask(sdk, [user(f"{word} changed")], headers=again, key=keyed, **options)
    assert (repeated.text, repeated.replayed) == ("eins", True)
    assert repeated.headers["x-turn-id"] == edited.headers["x-turn-id"]
    assert len(script.prompts) == 2
    assert served.rows(
        "SELECT count(*) FROM branches JOIN sessions ON sessions.id = session_id WHERE conversation = ?", word
    ) == [(1,)]
