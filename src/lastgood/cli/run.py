"""`lastgood run`: a turn or a chat in the terminal.

The turn belongs to its session; the terminal only watches. Ctrl-C is a request
to cancel it, and is heard out: the attempt ends as cancelled before we do.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType

from lastgood.cli.opening import TENANT, session_of, settings_of
from lastgood.cli.output import complain, drop_stdout, remark
from lastgood.cli.screens import JsonLines, Screen, Text
from lastgood.core.intake import check_text
from lastgood.errors import AgentNotFound, InvalidRequest, LastgoodError, NotFound, TooLarge
from lastgood.flows.parts import Limits
from lastgood.flows.run import Outcome
from lastgood.flows.turns import Submitted
from lastgood.model.attempts import Ask, AttemptStatus, OnLeave
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import SessionId
from lastgood.model.messages import as_json, user
from lastgood.wiring import Lastgood, open_lastgood

#: Once the outcome is known, how long its last events may take to arrive.
_LAST_EVENTS_SECONDS = 1.0


def run(args: argparse.Namespace) -> int:
    text = _message(args.message)
    if text is None and args.key is not None:
        complain("--key names one message; give MESSAGE, or pipe it in")
        return 2
    return asyncio.run(_run(args, text))


def _message(words: list[str]) -> str | None:
    """What to say; None: ask for it, line by line."""
    if words == ["-"] or (not words and not sys.stdin.isatty()):
        return _standard_input()
    return " ".join(words) if words else None


def _standard_input() -> str:
    most = Limits().input_bytes
    body = sys.stdin.buffer.read(most + 1)
    if len(body) > most:
        raise TooLarge(f"standard input has more than {most} bytes, and no message may; send less")
    try:
        return body.decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"standard input is not UTF-8 text (byte {error.start + 1}); convert it and send it again"
        ) from None


async def _run(args: argparse.Namespace, text: str | None) -> int:
    with Interrupts() as interrupts:
        async with open_lastgood(settings_of(args)) as app:
            await _check_agent(app, args.agent)
            session = await session_of(app, args.session) if args.session is not None else None
            screen = JsonLines() if args.json else Text()
            talk = Talk(app, args.agent, args.model, session.id if session else None, screen, interrupts)
            code = await (_chat(talk) if text is None else _say_once(talk, text, args.key))
            if session is None and talk.session is not None and not args.json:
                remark(
                    f"session {talk.session}; go on with: "
                    f"lastgood run {args.agent} --session {talk.session} …"
                )
            return code


async def _check_agent(app: Lastgood, agent: str) -> None:
    try:
        await app.turns.resolve(agent)
    except AgentNotFound as error:
        known = ", ".join(app.parts.agents.served())
        raise AgentNotFound(f"no such agent: {agent!r}; known are {known}", **error.detail) from None


async def _say_once(talk: Talk, text: str, key: str | None) -> int:
    outcome = await talk.say(text, key)
    return 0 if outcome.status is AttemptStatus.COMMITTED else 1


async def _chat(talk: Talk) -> int:
    interrupts = talk.interrupts
    while (line := await _next_line(interrupts)) is not None:
        if line.strip():
            try:
                await talk.say(line)
            except LastgoodError as error:
                complain(error.message)
        if interrupts.final:
            break
        interrupts.asked.clear()
    return 0


async def _next_line(interrupts: Interrupts) -> str | None:
    """A line from the terminal; None: Ctrl-D, Ctrl-C, or we are told to end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    sys.stderr.write("> ")
    sys.stderr.flush()
    # Not input() on a thread: a thread that waits for a key would outlive Ctrl-C.
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        waits = [asyncio.create_task(event.wait()) for event in (ready, interrupts.asked)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    # A terminal hands over one line at a time.
    line = b"" if interrupts.asked.is_set() else os.read(sys.stdin.fileno(), 65536)
    if not line:
        sys.stderr.write("\n")
        return None
    return line.decode(errors="surrogateescape").rstrip("\n")


class Interrupts:
    """Ctrl-C and a polite kill, as something to wait for. `final`: it was the kill."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.final = False

    def __enter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.asked.set)
        loop.add_signal_handler(signal.SIGTERM, self._end)
        return self

    def _end(self) -> None:
        self.final = True
        self.asked.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


class Talk:
    """One session, made when the first message is accepted."""

    def __init__(
        self,
        app: Lastgood,
        agent: str,
        model: str | None,
        session: SessionId | None,
        screen: Screen,
        interrupts: Interrupts,
    ) -> None:
        self._app = app
        self._agent = agent
        self._model = model
        self._screen = screen
        self.session = session
        self.interrupts = interrupts

    async def say(self, text: str, key: str | None = None) -> Outcome:
        submitted = await self._submit(text, key)
        canceller = asyncio.create_task(self._cancel_when_asked(submitted))
        try:
            outcome = await self._watch(submitted)
            await self._screen.ended(submitted, outcome)
            return outcome
        except OSError as error:
            # Nobody reads any more. What that means for the turn was settled when it began.
            drop_stdout()
            await self._app.turns.leave(submitted)
            outcome = await self._app.turns.wait(submitted)
            if not isinstance(error, BrokenPipeError):
                complain(f"cannot write the answer ({error.strerror}); the turn is {outcome.status.value}")
            return outcome
        finally:
            canceller.cancel()

    async def _submit(self, text: str, key: str | None) -> Submitted:
        check_text(key or "", "the key")
        session = self.session
        if session is None:
            session = (await self._app.sessions.create(TENANT, self._agent)).id
        try:
            submitted = await self._app.turns.submit(self._ask(session, text, key))
        except (InvalidRequest, NotFound):
            # Refused for certain, so the session that was made for it goes, too.
            if self.session is None:
                await self._app.sessions.delete(TENANT, session)
            raise
        self.session = session
        return submitted

    def _ask(self, session: SessionId, text: str, key: str | None) -> Ask:
        messages = (user(text),)
        plain = [as_json(message) for message in messages]
        return Ask(
            TENANT,
            session,
            messages,
            model=self._model,
            agent_key=self._agent,
            key=key,
            fingerprint=_fingerprint(self._agent, session, plain, self._model) if key is not None else "",
            on_leave=OnLeave.CANCEL if key is None else OnLeave.CONTINUE,
            accepted=key is not None,
        )

    async def _cancel_when_asked(self, submitted: Submitted) -> None:
        await self.interrupts.asked.wait()
        with suppress(LastgoodError):  # too late: how it did end is told anyway
            await self._app.turns.cancel(TENANT, submitted.session)

    async def _watch(self, submitted: Submitted) -> Outcome:
        ended = asyncio.create_task(self._app.turns.wait(submitted))
        if not submitted.replayed:
            async for event in _until(ended, self._app.turns.watch(submitted)):
                await self._screen.event(event)
        return await ended


async def _until(
    ended: asyncio.Task[Outcome], events: AsyncIterator[StoredEvent]
) -> AsyncIterator[StoredEvent]:
    """The events to the last. If the end itself could not be stored, it is enough that it is known."""
    while True:
        coming = asyncio.ensure_future(anext(events, None))
        await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            await asyncio.wait({coming}, timeout=_LAST_EVENTS_SECONDS)
        if not coming.done():
            coming.cancel()
            return
        event = coming.result()
        if event is None:
            return
        yield event
        if event.kind in TERMINAL or event.kind is EventKind.ATTEMPT_WAITS:
            return


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
