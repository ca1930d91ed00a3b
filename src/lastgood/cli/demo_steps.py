"""The steps of `lastgood demo`: each does something to a real server and checks that the promise held.

A step returns one line that says what happened, and raises NotTrue if anything else did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from lastgood.cli.demo_context import Demo, NotTrue, check
from lastgood.cli.demo_moves import changed_url, moved_runtime
from lastgood.client.events import AgentChoiceEvent, TurnCommittedEvent
from lastgood.errors import ModelError, SessionBusy


async def good_turn(demo: Demo) -> str:
    answer = await demo.say("My name is Ada.")
    check(answer, "You said: My name is Ada.", "the answer")
    return "answered and committed as turn 1"


async def failing_turn(demo: Demo) -> str:
    try:
        await demo.client.ask(demo.session, "My name is Bob.\n!fail during")
    except ModelError:
        check(await demo.count(), 1, "turns after the failure")
        return "the model failed in mid-answer; the history still has 1 turn"
    raise NotTrue("the turn did not fail")


async def retry(demo: Demo) -> str:
    try:
        await demo.client.ask(demo.session, "I am 36.\n!fail during 1")
    except ModelError as error:
        attempt = str(error.detail["attempt"])
    else:
        raise NotTrue("the first attempt did not fail")
    async with aclosing(demo.client.continue_(demo.session, attempt)) as events:
        committed = [event async for event in events if isinstance(event, TurnCommittedEvent)]
    check(len(committed), 1, "commits of the second attempt")
    demo.committed.append("I am 36.")
    return "attempt 1 failed, attempt 2 of the same turn committed"


async def cut_stream(demo: Demo) -> str:
    before = await demo.count()
    text = "I live in London."
    streamed, last = "", None
    async with aclosing(demo.client.run(demo.session, f"{text}\n!slow 0.1")) as events:
        async for event in events:
            last = event.seq or last
            if isinstance(event, AgentChoiceEvent):
                streamed = event.content
                break  # the client is gone in the middle of the answer
    # It comes back with the number of the last event that it has seen.
    async with aclosing(demo.client.events(demo.session, since=last)) as events:
        async for event in events:
            if isinstance(event, AgentChoiceEvent):
                streamed += event.content
            if isinstance(event, TurnCommittedEvent):
                break
    demo.committed.append(text)
    check(streamed, f"You said: {text}", "the two halves of the answer")
    answer = (await demo.client.turn_at(demo.session, before + 1)).text
    check(answer, streamed, "the committed answer")
    return "disconnected in mid-answer and resumed: no word is missing or doubled"


async def killed_server(demo: Demo) -> str:
    text = "I write programs."
    asking = asyncio.create_task(demo.say(text, "!slow 0.2", key="demo-kill"))
    try:
        await demo.server.until_shown(text)
        await demo.server.kill()
        await demo.server.start()
        check(await asking, f"You said: {text}", "the answer after the restart")
    finally:
        asking.cancel()
        await asyncio.wait({asking})
    statuses = [one.status for one in await demo.client.attempts(demo.session)][-2:]
    check(statuses, ["interrupted", "committed"], "the last two attempts")
    return "kill -9 in mid-turn; the next server ran the turn again, and it committed once"


async def two_at_once(demo: Demo) -> str:
    text = "I like engines."
    first = asyncio.create_task(demo.say(text, "!slow 0.2"))
    try:
        await demo.server.until_shown(text)
        try:
            await demo.client.ask(demo.session, "I hate engines.")
        except SessionBusy:
            check(await first, f"You said: {text}", "the answer of the first")
            return "the second request was rejected with 409 and changed nothing; the first committed"
        raise NotTrue("two turns ran in one session at once")
    finally:
        first.cancel()
        await asyncio.wait({first})


async def changed_agent(demo: Demo) -> str:
    before = await demo.client.turn_at(demo.session, await demo.count())
    demo.server.write_agent("another one")
    await demo.say("The agent changed.")
    after = await demo.client.turn_at(demo.session, await demo.count())
    check(before.agent_digest != after.agent_digest, True, "the agent's definition changed")
    demo.server.agent_file.write_text("agents: [broken")
    await demo.say("Its file is broken.")
    last = await demo.client.turn_at(demo.session, await demo.count())
    check(last.agent_digest, after.agent_digest, "the definition that answered")
    return "edited agent file used at once; when it broke, the last good version answered"


async def approval(demo: Demo) -> str:
    text, file = "Write a file.", demo.server.folder / "approved"
    directives = f'!tool shell {{"cmd": "echo once >> {file}"}}\n!say Written.'
    await demo.client.submit(demo.session, f"{text}\n{directives}")

    async def status() -> str:
        return (await demo.client.attempts(demo.session))[-1].status

    async def waits() -> bool:
        return await status() == "waiting"

    async def is_committed() -> bool:
        return await status() == "committed"

    await demo.until(waits)
    await demo.server.stop()
    await demo.server.start()
    check(file.exists(), False, "the command ran before its approval")
    await demo.client.resume(demo.session, "approve")
    await demo.until(is_committed)
    demo.committed.append(text)
    check(file.read_text(), "once\n", "the output of the approved command")
    return "a shell command waited for approval through a restart, and ran once"


async def fork(demo: Demo) -> str:
    first = await demo.client.turn_at(demo.session, 1)
    forked = await demo.client.fork(demo.session, turn=first.id)
    demo.shown_in = forked.id
    answer = (await demo.client.ask(forked.id, "!remember")).text
    check(answer, "I remember: My name is Ada.", "what the fork remembers")
    return "a fork of turn 1 knows turn 1 and nothing later"


async def memory(demo: Demo) -> str:
    answer = (await demo.client.ask(demo.session, "!remember")).text
    check(answer, "I remember: " + " | ".join(demo.committed), "what the session remembers")
    return "the session knows every committed turn, and nothing of Bob"


STEPS: tuple[tuple[str, Callable[[Demo], Awaitable[str]]], ...] = (
    ("good turn", good_turn),
    ("failing turn", failing_turn),
    ("retry", retry),
    ("cut stream", cut_stream),
    ("kill -9", killed_server),
    ("two at once", two_at_once),
    ("changed agent", changed_agent),
    ("changed URL", changed_url),
    ("moved runtime", moved_runtime),
    ("approval", approval),
    ("fork", fork),
    ("memory", memory),
)
