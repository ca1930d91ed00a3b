"""Steps of `lastgood demo` in which the agent moves: to another URL, and to another machine and back."""

from __future__ import annotations

from contextlib import AsyncExitStack

from lastgood.cli.demo_context import Demo, check
from lastgood.cli.demo_server import CODER
from lastgood.cli.demo_worker import DemoWorker
from lastgood.client.models import TurnInfo


async def changed_url(demo: Demo) -> str:
    """The identity of a URL is the URL without its query, so a session follows its agent to another tag."""
    session = (await demo.client.create(demo.server.key_of(demo.server.tag))).id
    first = await demo.client.ask(session, "The tag is v1.")
    await demo.server.stop()
    demo.server.tag = "v2"
    await demo.server.start()
    second = await demo.client.ask(session, "The tag is v2.")
    check([first.agent_key, second.agent_key], [demo.server.key_of("v1"), demo.server.key_of("v2")], "agents")
    demo.shown = demo.server.last_prompt(session)
    check(demo.shown, ["The tag is v1.", "The tag is v2."], "what the model was shown")
    return "restarted with ?tag=v2 instead of ?tag=v1 in the agent's URL; the session continued"


async def moved_runtime(demo: Demo) -> str:
    async with AsyncExitStack() as machines:
        for name in ("laptop", "desktop"):
            await machines.enter_async_context(DemoWorker(demo.server, name))

        async def are_online() -> bool:
            return sum(one.is_online for one in await demo.client.runtimes()) == 2

        await demo.until(are_online)
        runtimes = {one.name: one.id for one in await demo.client.runtimes()}
        session = (await demo.client.create(CODER, runtime=runtimes["laptop"])).id
        await demo.client.ask(session, "On the laptop.")
        await demo.client.set_runtime(session, runtimes["desktop"])
        moved = await demo.client.ask(session, "On the desktop.")
        await demo.client.set_runtime(session, runtimes["laptop"])
        back = await demo.client.ask(session, "Back again.")
    check([_resumed(moved), _resumed(back)], ["replay", "native"], "how the agent CLIs resumed")
    demo.shown = back.text.split(" | ")
    check(demo.shown, ["On the laptop.", "On the desktop.", "Back again."], "what the agent CLI has seen")
    return "the desktop got the transcript; the laptop resumed its own session and got what it had missed"


def _resumed(turn: TurnInfo) -> str:
    return str(turn.decision["resume"]["decision"])
