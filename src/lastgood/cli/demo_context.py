"""What the steps of `lastgood demo` share: the server, the session, and what must be true by now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from lastgood.cli.demo_server import DemoServer
from lastgood.client import AsyncClient

_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.05


class NotTrue(Exception):
    """A step failed; the message says what was found instead."""


@dataclass(slots=True)
class Demo:
    """`committed`: what the user said in turns that are committed; the model must be shown exactly that.

    After each step people see what the model was shown: `shown` if the step has set it, else the last prompt
    of the session `shown_in`.
    """

    server: DemoServer
    client: AsyncClient
    session: str
    committed: list[str] = field(default_factory=list)
    shown_in: str = ""
    shown: list[str] = field(default_factory=list)

    def what_the_model_saw(self) -> list[str]:
        return self.shown or self.server.last_prompt(self.shown_in)

    async def say(self, text: str, directives: str = "", key: str | None = None) -> str:
        turn = await self.client.ask(self.session, f"{text}\n{directives}".strip(), key=key)
        self.committed.append(text)
        return turn.text

    async def count(self) -> int:
        return (await self.client.get(self.session)).turns

    async def until(self, what: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(_WAIT_SECONDS):
            while not await what():
                await asyncio.sleep(_LOOK_SECONDS)


def check(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise NotTrue(f"{what}: expected {expected!r}, found {found!r}")
