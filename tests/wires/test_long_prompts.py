"""A prompt of very many messages does not hold the event loop while it is encoded.

How many slices the work takes depends on the machine. So here every slice is as short as it can be, and
the number of slices shows how often the work can be paused.
"""

import asyncio
import json

import pytest

from lastgood import time_slices
from lastgood.engine.providers.chat_request import body_of
from lastgood.engine.providers.provider import ModelCall
from lastgood.engine.providers.scripted import Scripted
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import as_chat, assistant, user
from tests.wires.conftest import listen

pytestmark = pytest.mark.anyio

MODEL = ModelSpec("builtin", "scripted")
PROMPT = (user("hello"), assistant("a" * 200)) * 20_000 + (user("!say ok"),)

#: So many messages may be encoded without a pause: a fraction of a millisecond.
MESSAGES_OF_A_SLICE = 200
SLICES = len(PROMPT) // MESSAGES_OF_A_SLICE


@pytest.fixture(autouse=True)
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)


class Others:
    """How often something else ran on the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def end(self) -> int:
        self._task.cancel()
        return self.count


async def test_I23_a_long_prompt_is_encoded_in_slices_and_whole() -> None:
    others = Others()
    body = await body_of(ModelCall(MODEL, PROMPT))
    assert others.end() >= SLICES
    assert json.loads(body)["messages"] == [as_chat(message) for message in PROMPT]


async def test_I23_a_long_prompt_is_logged_in_slices_and_whole() -> None:
    logged = []
    ran_before_it: list[int] = []
    others = Others()

    def log(record: dict[str, object]) -> None:
        ran_before_it.append(others.count)
        logged.append(record["prompt"])

    await listen(Scripted(log), ModelCall(MODEL, PROMPT))
    others.end()
    assert ran_before_it[0] >= SLICES
    assert logged == [[as_chat(message) for message in PROMPT]]
