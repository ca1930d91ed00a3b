"""`a2a`: agents of other servers, called with the A2A protocol. Each skill of an agent is a tool.

A call is a conversation of its own: the agent sees the message, and nothing of ours beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from lastgood.core.a2a import (
    VERSION_HEADER,
    Answered,
    Failed,
    RemoteAgent,
    RemoteSkill,
    Works,
    card_url,
    instruction_of,
    message_request,
    read_answer,
    read_card,
    task_request,
)
from lastgood.core.openapi import same_host
from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.http_call import KEY_HEADER, MOST_SECONDS, HttpCaller
from lastgood.engine.tools.kept_documents import KeptDocuments
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolInterrupted, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.outside.network import EgressError, Network, fetch

CARD_BYTES = 1024 * 1024
_CARD_SECONDS = 30
#: Between two requests for the state of a task; it doubles.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_MESSAGE = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "The message, with all that it needs"}},
    "required": ["message"],
}


@dataclass(frozen=True, slots=True)
class _Card:
    agent: RemoteAgent | None = None
    problem: str = ""


class A2aToolset:
    def __init__(
        self, environment: Environment, network: Network, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment, self._network = environment, network
        self._cards = KeptDocuments(_Card(), clock)

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        # An agent thinks for longer than an API.
        timeout = spec.options.get("timeout") or MOST_SECONDS
        patient = replace(spec, options={**spec.options, "timeout": timeout})
        return _Agent(self, HttpCaller(patient, self._environment, self._network))

    async def card(self, caller: HttpCaller) -> _Card:
        async def ask(before: _Card) -> _Card:
            try:
                return _Card(await self._read(caller))
            except (EgressError, ToolFailed, ValueError) as error:
                return replace(before, problem=self._environment.secrets.scrub(str(error)))

        return await self._cards.get(caller.spec, ask)

    async def _read(self, caller: HttpCaller) -> RemoteAgent:
        address, headers = self.address(caller.spec)
        found = await fetch(
            card_url(address),
            headers={"Accept": "application/json", **headers},
            limit_bytes=CARD_BYTES,
            timeout_seconds=_CARD_SECONDS,
            policy=caller.policy,
            network=self._network,
        )
        if found.status != 200:
            raise ToolFailed(f"its card was answered with status {found.status}")
        if found.truncated:
            raise ToolFailed(f"its card has more than {CARD_BYTES:,} bytes")
        return read_card(orjson.loads(found.body), str(caller.spec.options.get("name") or ""))

    def address(self, spec: ToolsetSpec) -> tuple[str, dict[str, str]]:
        """ToolFailed: a variable is not set."""
        url, _ = self._environment.filled({"url": spec.options["url"]}, spec.trusted)
        headers, _ = self._environment.filled(spec.options.get("headers") or {}, spec.trusted)
        return url["url"], headers

    async def close(self) -> None:
        """Nothing is running."""


class _Agent:
    def __init__(self, toolset: A2aToolset, caller: HttpCaller) -> None:
        self._toolset, self._caller = toolset, caller

    async def offer(self) -> Offer:
        card, spec = await self._toolset.card(self._caller), self._caller.spec
        if card.agent is None:
            return Offer(problem=f"The agent at {spec.options['url']} is not available: {card.problem}")
        agent = card.agent
        skills = [one for one in agent.skills if spec.tools is None or one.tool in spec.tools]
        tools = tuple(self._tool(agent, skill) for skill in skills)
        return Offer(tools, spec.instruction or instruction_of(agent), label="agent")

    def _tool(self, agent: RemoteAgent, skill: RemoteSkill) -> Tool:
        async def run(use: ToolUse) -> str:
            return await self._ask(agent, use)

        # Nothing says what the agent does, or whether it recognizes a repeated message.
        return checked(
            Tool(skill.tool, skill.about, _MESSAGE, run, OnUnknown.FAIL, effect=Effect.DESTRUCTIVE)
        )

    async def _ask(self, agent: RemoteAgent, use: ToolUse) -> str:
        ends = time.monotonic() + self._caller.seconds
        request, pause, number = (
            message_request(agent, str(use.arguments["message"]), use.key),
            _FIRST_PAUSE,
            0,
        )
        while True:
            answer = read_answer(await self._post(agent, use, request, number))
            match answer:
                case Answered(text):
                    return text or "The agent answered without text."
                case Failed(reason):
                    raise ToolFailed(f"{agent.name} failed: {reason}")
                case Works(task):
                    if time.monotonic() + pause >= ends:
                        raise ToolInterrupted(
                            f"{agent.name} did not finish within {self._caller.seconds} s; it may still work"
                        )
                    await asyncio.sleep(pause)
                    number, pause = number + 1, min(pause * 2, _LONGEST_PAUSE)
                    request = task_request(agent, task, use.key)

    async def _post(self, agent: RemoteAgent, use: ToolUse, request: dict[str, Any], number: int) -> Any:
        address, headers = self._toolset.address(self._caller.spec)
        if headers and not same_host(address, agent.url):
            # The card chooses where its agent is, and may have been written by somebody else.
            raise ToolFailed(
                "the agent is on another host than its card, so the headers of this toolset, which may "
                "contain a key, are not sent to it; the agent file can name a card on the agent's host"
            )
        if not agent.is_old:
            headers = {VERSION_HEADER: "1.0", **headers}
        # Each request has a key of its own: only the message must not count twice.
        headers = {**headers, KEY_HEADER: f"{use.key}:{number}" if number else use.key}
        text = await self._caller.call(use, "POST", agent.url, headers, orjson.dumps(request))
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ToolFailed(f"{agent.name} sent no JSON: {text[:200]}") from None

    async def close(self) -> None:
        """Nothing is running."""
