"""A chat with one session: sends messages, shows the turns and cancels them.

A turn belongs to its session; the terminal only shows it. Ctrl-C cancels the turn, and the
command exits after the attempt has ended.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from lastgood.cli.approval_prompt import AskPerson, call_of, how_to_answer
from lastgood.cli.backend import Backend, BackendTurn, TurnEnd
from lastgood.cli.output import complain, drop_stdout
from lastgood.cli.render import Screen
from lastgood.client.models import AttemptInfo, SessionInfo
from lastgood.errors import InvalidRequest, NotFound, NothingPending, TurnCancelled
from lastgood.model.agents import AUTO
from lastgood.model.answers import question_id
from lastgood.model.attempts import After
from lastgood.model.events import AttemptStarted, AttemptWaits
from lastgood.model.ids import TurnId
from lastgood.model.messages import Message

_T = TypeVar("_T")


class Interrupts:
    """SIGINT and SIGTERM as an event to wait for. `final`: it was SIGTERM."""

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

    async def unless_asked(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Returns the result of the work, or raises TurnCancelled if a signal arrives first."""
        working, asked = asyncio.create_task(work), asyncio.create_task(self.asked.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise TurnCancelled(
                "cancelled before the turn was accepted; if the request was already sent, it may still run"
            )
        finally:
            for task in (working, asked):
                task.cancel()
            await asyncio.wait({working, asked})


@dataclass(slots=True)
class Chat:
    """One session, created with the first message."""

    place: Backend
    agent: str  # the key of the agent that was named
    agent_model: str  # its own
    model: str | None  # named for the turns to come
    session: str | None
    screen: Screen
    interrupts: Interrupts
    last: tuple[Message, TurnEnd] | None = None
    person: AskPerson | None = None  # None: no terminal to ask at
    goes_on: bool = False  # after this turn, another message can be typed

    async def say(
        self,
        message: Message,
        key: str | None = None,
        after: After | None = None,
        expected_head: str | None = None,
    ) -> TurnEnd:
        asked = await self.interrupts.unless_asked(self._ask(message, key, after, expected_head))
        ended = await self._show(asked)
        self.last = (message, ended)
        return ended

    async def answer_waiting(self) -> TurnEnd | None:
        """Asks the question again that a turn of the session waits for, and shows how the turn continues.

        None: no turn waits, or no person is at the terminal.
        """
        if self.session is None or self.person is None:
            return None
        session = await self.interrupts.unless_asked(self.place.find(self.session))
        if session.status != "waiting" or session.attempt is None:
            return None
        waiting = await self.interrupts.unless_asked(self.place.attempt(session.id, session.attempt))
        if waiting.question is None:
            return None
        return await self._show(self.place.follow(waiting, session.last_event_seq), waiting)

    async def _show(self, asked: BackendTurn, waiting: AttemptInfo | None = None) -> TurnEnd:
        """Shows the turn to its end, or cancels it on Ctrl-C. `waiting`: its question comes first."""
        watching = asyncio.create_task(self._watch(asked, waiting))
        cancelling = asyncio.create_task(self._cancel_when_asked(asked))
        try:
            await asyncio.wait({watching, cancelling}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                cancelling.result()  # raises if the turn could not be cancelled; its end may never come
            ended = await watching
        finally:
            for task in (watching, cancelling):
                task.cancel()
            await asyncio.wait({watching, cancelling})
            await asked.close()
        return ended

    async def retry(self) -> TurnEnd:
        """Sends the last message again. If it was answered, the new answer replaces the old one."""
        if self.last is None or self.session is None:
            raise NothingPending("nothing to retry; send a message first")
        message, ended = self.last
        if ended.committed is None:
            return await self.say(message)
        last, parent = self.last, ended.committed.parent
        after = After(None if parent is None else TurnId(parent))
        # Another client may have appended a turn; an edit without the expected head would replace it.
        again = await self.say(message, after=after, expected_head=ended.committed.id)
        if not again.is_good:
            self.last = last  # the old answer is still the head
        return again

    async def fork(self) -> SessionInfo:
        if self.session is None:
            raise NothingPending("no session to fork; send a message first")
        forked = await self.place.fork(self.session)
        self.session = forked.id
        return forked

    def start_over(self) -> None:
        self.session, self.last = None, None

    async def next_model(self) -> str:
        """The model that answers the next message."""
        session = await self.interrupts.unless_asked(self.place.find(self.session)) if self.session else None
        answered = self.last[1].committed if self.last else None
        own = answered.model if answered and self.agent_model == AUTO else self.agent_model
        return self.model or (session and session.model) or own

    # -- one turn ------------------------------------------------------------------

    async def _ask(
        self, message: Message, key: str | None, after: After | None, expected_head: str | None
    ) -> BackendTurn:
        session = self.session
        if session is None:
            session = (await self.place.create(self.agent)).id
        try:
            asked = await self.place.ask(session, message, self.agent, self.model, key, after, expected_head)
        except (InvalidRequest, NotFound):
            # The turn was rejected for certain: delete the session that was created for it.
            if self.session is None:
                await self.place.delete(session)
            raise
        self.session = session
        return asked

    async def _cancel_when_asked(self, asked: BackendTurn) -> None:
        await self.interrupts.asked.wait()
        await asked.cancel()

    async def _answer(self, asked: BackendTurn, attempt: str, question: Mapping[str, Any]) -> bool:
        """Returns False if there is no person at the terminal; the turn keeps waiting."""
        said = None if self.person is None else await self.person(question)
        if said is None:
            return False
        # The one that was shown: meanwhile somebody else may have answered it, and the turn may ask another.
        await asked.answer(said, question_id(attempt, question) if "place" in question else None)
        return True

    async def _unanswered(
        self, asked: BackendTurn, turn: str, attempt: str, question: Mapping[str, Any]
    ) -> TurnEnd:
        """Ctrl-C instead of an answer cancels the turn; Ctrl-D leaves it waiting."""
        session = self.session or ""
        if self.interrupts.asked.is_set():
            await asked.cancel()
            ended = TurnEnd(session, turn, attempt, "cancelled", None, TurnCancelled(), False)
        else:
            asked_for = f" ({call_of(question)})" if self.person is None else ""  # else it has been shown
            how = f"; answer it {how_to_answer(session, question)}"
            if self.goes_on:
                how = "; the next message that you type shows the question again"
            error = NothingPending(f"the turn waits for an answer{asked_for}{how}")
            ended = TurnEnd(session, turn, attempt, "waiting", None, error, False)
        await self.screen.ended(ended)
        return ended

    async def _watch(self, asked: BackendTurn, waiting: AttemptInfo | None) -> TurnEnd:
        turn = ""
        try:
            if waiting is not None and waiting.question is not None:
                turn, question = waiting.turn, waiting.question
                if not await self._answer(asked, waiting.id, question):
                    return await self._unanswered(asked, turn, waiting.id, question)
            async with aclosing(asked.events()) as events:
                async for event in events:
                    await self.screen.event(event)
                    match event.data:
                        case AttemptStarted():
                            turn = event.data.turn
                        case AttemptWaits(attempt, question):
                            if not await self._answer(asked, attempt, question):
                                return await self._unanswered(asked, turn, attempt, question)
                        case _:
                            pass
            ended = await asked.ended()
            await self.screen.ended(ended)
        except OSError as error:
            # The reader of stdout has gone.
            drop_stdout()
            await asked.leave()
            ended = await asked.ended()
            if not isinstance(error, BrokenPipeError):
                complain(f"cannot write the answer: {error.strerror}; the turn is {ended.status}")
        return ended
