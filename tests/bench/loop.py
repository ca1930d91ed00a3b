"""What the agent loop costs: a turn with one tool call, streamed in 50 chunks, beside a loop written by hand.

Both ask the same model server, a process of its own on a real socket, with the same
HTTP client. The hand loop keeps nothing, checks nothing and tells nobody: it is what
somebody would write in an afternoon. Measured is the CPU time of this process, in
turns that alternate between the two.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.engine.tools.echo import ECHO
from lastgood.model.agents import AgentSpec, ModelSpec, Safety, ToolsetSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Hold, Step
from lastgood.model.call_options import CallOptions
from lastgood.model.events import Event
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
from lastgood.model.messages import Message, user
from lastgood.model.rules import RuleLayer
from lastgood.model.usage import ModelAsked
from lastgood.outside.secrets import Secrets
from lastgood.ports.notes import Notes

CHUNKS = 50
TARGET = 3.0
SAID = "Say it back to me, please."
ARGUMENTS = '{"text": "back to you"}'


# -- the model -------------------------------------------------------------------


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    plain = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(plain).encode() + b"\n\n"


def _calls() -> list[bytes]:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "echo", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in ARGUMENTS]
    deltas = [{"tool_calls": [piece]} for piece in (call, *pieces)]
    return [*map(_chunk, deltas), _chunk({}, "tool_calls"), b"data: [DONE]\n\n"]


def _words() -> list[bytes]:
    return [
        *(_chunk({"content": f"word {n} "}) for n in range(CHUNKS)),
        _chunk({}, "stop"),
        b"data: [DONE]\n\n",
    ]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    words = _words()
    calls = words if "words" in sys.argv else _calls()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(
                b"POST"
            ):  # for the size of the model's context, which this server does not state
                writer.write(NOT_FOUND)
                continue
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            body = await reader.readexactly(length)
            writer.write(HEAD)
            for chunk in words if b'"role":"tool"' in body else calls:
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- by hand -----------------------------------------------------------------------


async def by_hand(session: aiohttp.ClientSession, url: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": SAID}]
    tools = [ECHO.as_json()]
    while True:
        body = {"model": "bench", "messages": messages, "tools": tools, "stream": True}
        text: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        async with session.post(
            f"{url}/chat/completions", data=orjson.dumps(body), headers={"Content-Type": "application/json"}
        ) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                delta = orjson.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    text.append(delta["content"])
                for piece in delta.get("tool_calls", ()):
                    call = calls.setdefault(
                        piece["index"], {"id": piece.get("id"), "name": "", "arguments": ""}
                    )
                    call["name"] += piece["function"].get("name", "")
                    call["arguments"] += piece["function"]["arguments"]
        if not calls:
            return "".join(text)
        asked = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls.values()
        ]
        messages.append({"role": "assistant", "content": "".join(text), "tool_calls": asked})
        for call in calls.values():
            result = str(orjson.loads(call["arguments"])["text"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


# -- ours --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BenchWork:
    """A turn without a history and without a store."""

    agent: AgentSpec
    model: str
    hold: Hold = Hold(DEFAULT_TENANT, SessionId("ses"), AttemptId("att"), 1)
    turn: TurnId = TurnId("turn")
    number: int = 1
    steps: tuple[Step, ...] = ()
    working_dir: str | None = None
    earlier: tuple[Message, ...] = ()
    options: CallOptions = CallOptions()
    opens_session: bool = False
    has_chosen_model: bool = False
    is_followup: bool = False
    waited_at: str | None = None
    notes: Notes | None = None

    @property
    def answers(self) -> Mapping[str, Answer]:
        return {}

    @property
    def can_ask(self) -> bool:
        return False

    async def rules(self) -> tuple[RuleLayer, ...]:
        return ()

    async def steers(self) -> tuple[Step, ...]:
        return ()

    def own(self, steps: Sequence[Step]) -> tuple[Message, ...]:
        return (user(SAID), *(step.message for step in steps))


async def by_lastgood(loop: AgentLoop, work: BenchWork) -> str:
    steps: list[Step] = []

    async def emit(item: Event | Step | ModelAsked) -> None:
        if isinstance(item, Step):
            steps.append(item)

    await loop.run(work, emit)
    return steps[-1].message.content


# -- side by side --------------------------------------------------------------------


async def _cpu(run: Callable[[], Awaitable[str]], times: int) -> float:
    before = time.process_time()
    for _ in range(times):
        await run()
    return (time.process_time() - before) / times


async def compare(url: str, rounds: int = 10, times: int = 30) -> tuple[float, float]:
    """Seconds of CPU a turn: ours, and by hand."""
    model = ModelSpec("bench", "bench", base_url=url)
    agent = AgentSpec("bench", "bench", "bench", "", toolsets=(ToolsetSpec("echo"),), models={"bench": model})
    loop = AgentLoop(
        ProviderTable(Secrets({})), {"echo": lambda spec: [ECHO]}, now=time.time, safety=Safety.AUTONOMOUS
    )
    work = BenchWork(agent, "bench")
    ours: list[float] = []
    hand: list[float] = []
    async with aiohttp.ClientSession() as session:
        assert await by_lastgood(loop, work) == await by_hand(session, url)
        for _ in range(rounds):
            ours.append(await _cpu(lambda: by_lastgood(loop, work), times))
            hand.append(await _cpu(lambda: by_hand(session, url), times))
    await loop.close()
    return min(ours), min(hand)


def loop_cost() -> float:
    """Prints what a turn costs, and returns how many times the hand loop that is."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.loop", "calls"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        ours, hand = asyncio.run(compare(url))
    finally:
        server.terminate()
        server.communicate()
    print(f"agent loop, one tool call, {CHUNKS} chunks, CPU a turn:")
    print(f"  lastgood {ours * 1e3:6.2f} ms   by hand {hand * 1e3:6.2f} ms")
    print(f"  ratio to the hand loop: {ours / hand:.2f} (target {TARGET:.2f} or less)")
    return ours / hand


if __name__ == "__main__":
    if len(sys.argv) > 1:  # `calls` or `words`: the model of a benchmark, until it is killed
        asyncio.run(_serve())
    else:
        loop_cost()
