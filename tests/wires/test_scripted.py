"""The offline model keeps to what a request asks for, like any other: a word is a token."""

from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.providers.model_references import offline_spec
from lastgood.engine.providers.provider import ModelCall
from lastgood.engine.providers.scripted import Scripted
from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, assistant, user
from tests.surfaces.in_process_server import AGENT, open_inside
from tests.wires.conftest import listen

pytestmark = pytest.mark.anyio

SAYS = {
    "nothing is asked for": ("!say a b c d", None, (), "a b c d", False, 4),
    "a limit cuts": ("!say a b c d", 2, (), "a b", True, 2),
    "a limit that is just enough": ("!say a b c d", 4, (), "a b c d", False, 4),
    "a space at the beginning is no word": ('!say-json " a b"', 1, (), " a", True, 1),
    "what is repeated is cut as well": ("one two", 3, (), "You said: one", True, 3),
    "a stop ends it before": ("!say a b c d", None, ("c",), "a b ", False, 2),
    "the first of two stops": ("!say a b c d", None, ("d", "b"), "a ", False, 1),
    "a stop that does not come": ("!say a b c d", None, ("x",), "a b c d", False, 4),
    "a stop before the limit": ("!say a b c d", 3, ("c",), "a b ", False, 2),
    "a limit before the stop": ("!say a b c d", 2, ("d",), "a b", True, 2),
}


@pytest.mark.parametrize("row", SAYS.values(), ids=SAYS)
async def test_the_limit_and_the_stops_end_an_answer(row: tuple[Any, ...]) -> None:
    prompt, most, stop, text, cut_short, tokens = row
    model = ModelSpec("builtin", "scripted", max_tokens=most)
    received = await listen(Scripted(), ModelCall(model, (user(prompt),), options=CallOptions(stop=stop)))
    assert received.text == text
    assert (received.answer.message.content, received.answer.cut_short) == (text, cut_short)
    assert received.answer.usage.output_tokens == tokens


async def test_a_call_of_a_tool_is_not_cut() -> None:
    model = ModelSpec("builtin", "scripted", max_tokens=1)
    prompt = user('!tool echo {"text": "a b c"}\n!say a b')
    received = await listen(Scripted(), ModelCall(model, (prompt,), options=CallOptions(stop=("a",))))
    [call] = received.answer.message.tool_calls
    assert (call.arguments, received.answer.cut_short) == ('{"text": "a b c"}', False)


@pytest.mark.parametrize(
    ("directive", "says"),
    [
        ("!slow down", "invalid directive !slow down: expected a number, not 'down'"),
        ("!fail after x", "invalid directive !fail after x: expected a number, not 'x'"),
        ("!sleep 1", "unknown directive !sleep; use one of !say, !say-json, "),
    ],
)
async def test_a_directive_that_cannot_be_followed_says_why(directive: str, says: str) -> None:
    call = ModelCall(ModelSpec("builtin", "scripted"), (user(directive),))
    with pytest.raises(ModelError) as refused:
        await listen(Scripted(), call)
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("asked", "text", "reason"),
    [
        ({"max_tokens": 2}, "a b", "length"),
        ({"max_completion_tokens": 2}, "a b", "length"),
        ({"stop": ["c"]}, "a b ", "stop"),
        ({"stop": "c"}, "a b ", "stop"),
    ],
)
async def test_a_chat_completion_gets_its_finish_reason(
    tmp_path: Path, asked: dict[str, Any], text: str, reason: str
) -> None:
    body = {"model": AGENT, "messages": [{"role": "user", "content": "!say a b c d"}], **asked}
    async with open_inside(tmp_path) as inside:
        received = await inside.good("POST", "/v1/chat/completions", body)
        streamed = await inside.ask("POST", "/v1/chat/completions", body | {"stream": True})
    [choice] = received["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
    assert received["usage"]["completion_tokens"] == 2
    assert f'"finish_reason":"{reason}"'.encode() in streamed.body.replace(b" ", b"")


OFFLINE = offline_spec("no API key is set; set one")
SAID = "You said: hello"


@pytest.mark.parametrize(
    ("model", "messages", "options", "explains"),
    [
        (OFFLINE, (user("hello"),), CallOptions(), True),
        (OFFLINE, (user("a"), assistant("b"), user("hello")), CallOptions(), False),
        (OFFLINE, (user("!say You said: hello"),), CallOptions(), False),
        (OFFLINE, (user("hello"),), CallOptions(response_format={"type": "json_object"}), False),
        (ModelSpec("builtin", "scripted"), (user("hello"),), CallOptions(), False),
    ],
    ids=["first answer", "later answer", "directives", "JSON", "named"],
)
async def test_the_offline_model_says_so_in_the_first_answer_of_a_session(
    model: ModelSpec, messages: tuple[Message, ...], options: CallOptions, explains: bool
) -> None:
    text = (await listen(Scripted(), ModelCall(model, messages, options=options))).text
    assert text.endswith(SAID)
    assert ("offline scripted model" in text and "no API key is set; set one" in text) is explains
    assert (text == SAID) is not explains
