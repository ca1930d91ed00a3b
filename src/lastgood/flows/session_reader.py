"""Reads sessions. Needs only a store: no agent, no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from functools import partial

from lastgood.core.context import shown_of
from lastgood.core.history import history_of
from lastgood.core.input_checks import check_text
from lastgood.core.recovery import approval_place
from lastgood.core.tool_ledger import RetryPreview, retry_preview
from lastgood.errors import AttemptNotFound, HistoryDamaged, InvalidRequest, SessionNotFound, TurnNotFound
from lastgood.flows.verified_history import Chain, find_verified, read_chain, stream_chain
from lastgood.model.attempts import NO_LIMIT, Attempt, AttemptStatus, Step, TurnRequest
from lastgood.model.audit import AuditKind, AuditRecord
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message, decode
from lastgood.model.sessions import Branch, EncodedTurn, Session, SessionPage, SessionStatus, Turn, Usage
from lastgood.ports import Store

MOST_IN_PAGE = 200
#: Of what surrounds a session, so much is read at once.
MOST_ATTEMPTS = 300
MOST_TRIES = 50
MOST_FORKS = 50
MOST_NAMED = 50
MOST_DECISIONS = 10

MayRead = Callable[[Session], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class FullSession:
    """A session with its committed turns. Those that are damaged say so."""

    session: Session
    chain: Chain

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.chain.turns


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: tuple[Message, ...]
    left_out: int  # so many of the oldest were left out of it, because the model found it too long


@dataclass(frozen=True, slots=True)
class AttemptDetails:
    attempt: Attempt
    steps: tuple[Step, ...]
    usage: Usage


class SessionReader:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        found = await self.find(tenant, session)
        if found is None:
            raise SessionNotFound()
        return found

    async def find(self, tenant: TenantId, session: SessionId) -> Session | None:
        return await self._store.get_session(tenant, session)

    async def list(
        self,
        tenant: TenantId,
        *,
        limit: int = 50,
        cursor: int | None = None,
        query: str = "",
        agent: str | None = None,
        status: SessionStatus | None = None,
        may_read: MayRead | None = None,
    ) -> SessionPage:
        """`may_read`: others are left out, and the page is filled up with those after them."""
        if not 1 <= limit <= MOST_IN_PAGE:
            raise InvalidRequest(f"`limit` is {limit}; it must be between 1 and {MOST_IN_PAGE}")
        check_text(query, "the query")
        read = partial(self._store.list_sessions, tenant, query=query, agent=agent, status=status)
        if may_read is None:
            return await read(limit=limit, cursor=cursor)
        found: list[Session] = []
        while True:
            page = await read(limit=limit - len(found), cursor=cursor)
            found += [session for session in page.sessions if await may_read(session)]
            cursor = page.next_cursor
            if cursor is None or len(found) == limit:
                return SessionPage(tuple(found), cursor)

    async def newest(self, tenant: TenantId, back: int = 1) -> Session:
        """The `back`-th newest session."""
        cursor: int | None = None
        passed = 0
        while True:
            page = await self.list(tenant, limit=min(back - passed, MOST_IN_PAGE), cursor=cursor)
            passed += len(page.sessions)
            if passed == back:
                return page.sessions[-1]
            if page.next_cursor is None:
                raise fewer_sessions(passed)
            cursor = page.next_cursor

    async def read(self, tenant: TenantId, session: SessionId) -> FullSession:
        """Does not depend on the agent being there, nor on every turn being as it was committed."""
        found = await self.get(tenant, session)
        return FullSession(found, await read_chain(self._store, tenant, found.head))

    async def stream(
        self, session: Session, *, after: int = 0
    ) -> AsyncGenerator[EncodedTurn | HistoryDamaged, None]:
        """Its committed turns in order, without the first `after` ones, verified and in bounded memory. Turns
        that are damaged say so, and HistoryDamaged comes once, before the first of them. SessionNotFound if
        the session is deleted meanwhile."""
        chain = stream_chain(self._store, session.tenant, session.head, after=after)
        async with aclosing(chain) as turns:
            async for turn in turns:
                if isinstance(turn, HistoryDamaged) and await self.find(session.tenant, session.id) is None:
                    raise SessionNotFound("Session was deleted while it was being read")
                yield turn

    async def attempts(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int = NO_LIMIT
    ) -> tuple[Attempt, ...]:
        """Those with a fence above `after`, oldest first."""
        await self.get(tenant, session)
        return await self._store.list_attempts(tenant, session, after=after, limit=limit)

    async def attempt(self, tenant: TenantId, session: SessionId, attempt: AttemptId) -> AttemptDetails:
        """One try, with everything it had finished."""
        await self.get(tenant, session)
        found = await self._store.get_attempt(tenant, attempt)
        if found is None or found.session != session:
            raise AttemptNotFound()
        steps = await self._store.read_steps(tenant, attempt)
        # The last answer of a committed one is in its turn, and nowhere else.
        turn = await self._store.find_turn(tenant, found.turn)
        if turn is not None and turn.attempt == found.id:
            return AttemptDetails(found, steps, turn.usage)
        return AttemptDetails(found, steps, sum((step.usage for step in steps), Usage()))

    async def attempts_around(
        self, session: Session, before: Turn | None, after: Turn | None
    ) -> tuple[Attempt, ...]:
        """The newest tries between these two turns, of turns that were committed or not. Bounded, however
        long the session is. Fences rise along a chain: those of the two turns are the limits. A turn
        that a fork has inherited was tried in another session, and is no limit."""
        first = await self._fence_of(session, before) or 0
        last = await self._fence_of(session, after) or 2**62
        return await self._store.attempts_between(
            session.tenant, session.id, after=first, before=last, limit=MOST_ATTEMPTS
        )

    async def _fence_of(self, session: Session, turn: Turn | None) -> int | None:
        tried = await self._store.get_attempt(session.tenant, turn.attempt) if turn is not None else None
        return tried.fence if tried is not None and tried.session == session.id else None

    async def tries(self, session: Session, turn: TurnId) -> tuple[AttemptDetails, ...]:
        """Every try of one turn, with its steps. TurnNotFound: this session never tried it."""
        found = await self._store.attempts_of_turn(session.tenant, turn, limit=MOST_TRIES)
        if not found or any(one.session != session.id for one in found):
            raise TurnNotFound()
        return tuple([await self.attempt(session.tenant, session.id, one.id) for one in found])

    async def queued_at(self, session: Session, turn: TurnId) -> float | None:
        return await self._store.queued_at(session.tenant, turn)

    async def retry_preview(self, attempt: Attempt) -> RetryPreview:
        """What a retry of this attempt would keep, and what it would do again."""
        steps = await self._store.read_steps(attempt.tenant, attempt.id)
        return retry_preview(steps, approval_place(attempt.unanswered))

    async def forks(self, session: Session, may_read: MayRead) -> Sequence[Session]:
        found = await self._store.forks_of(session.tenant, session.id, limit=MOST_FORKS)
        return [one for one in found if await may_read(one)]

    async def named(self, tenant: TenantId, name: str) -> Sequence[Session]:
        """The session with this id, those in which an HTTP request with this id began a turn, and some of
        those with a turn of this user, newest first. The list knows titles, owners and conversations."""
        ids = {
            SessionId(name),
            *await self._store.sessions_of_request(tenant, name, limit=MOST_NAMED),
            *await self._store.sessions_of_user(tenant, name, limit=MOST_NAMED),
        }
        found = [one for one in [await self.find(tenant, id) for id in ids] if one is not None]
        return sorted(found, key=lambda one: -one.number)

    async def failed_last(
        self, tenant: TenantId, sessions: Collection[Session]
    ) -> Mapping[SessionId, Attempt]:
        """The newest attempts of the sessions in which it failed or was interrupted, and nothing runs now."""
        idle = [one.id for one in sessions if one.attempt is None]
        newest = await self._store.newest_attempts(tenant, idle) if idle else {}
        bad = (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED)
        return {id: attempt for id, attempt in newest.items() if attempt.status in bad}

    async def decisions(self, session: Session) -> tuple[AuditRecord, ...]:
        """Who answered the last questions of a session, newest first."""
        return await self._store.newest_audit(
            session.tenant, session.id, AuditKind.APPROVAL, limit=MOST_DECISIONS
        )

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None:
        return await self._store.find_conversation(tenant, conversation)

    async def request_of(self, tenant: TenantId, turn: TurnId) -> TurnRequest | None:
        """Returns the stored request of a turn. None: it is not stored, or is damaged."""
        try:
            return await self._store.read_request(tenant, turn)
        except HistoryDamaged:
            return None

    async def turn_of(self, source: Session, turn: TurnId) -> Turn:
        """The turn, if this session has committed it, in its chain or in a branch, or has inherited it.

        HistoryDamaged: it is not as it was committed.
        """
        found = await find_verified(self._store, source.tenant, turn)
        if found is not None and found.session == source.id:
            return found
        # A fork inherits the chain of the turn that it started from, and nothing else of its source.
        origin = source.forked_from[1] if source.forked_from else None
        if found is None or origin is None:
            raise TurnNotFound()
        there = await self._store.turn_at(source.tenant, origin, found.seq)
        if there is None or there.id != found.id:
            raise TurnNotFound()
        return found

    async def place_of(self, session: Session, turn: TurnId) -> int:
        """Returns the number of this turn, or of the one that an uncommitted turn would have followed; 1 if
        it would have been the first. TurnNotFound: it was neither committed nor tried here."""
        tenant = session.tenant
        found = await self._store.find_turn(tenant, turn)
        if found is None:
            tries = await self._store.attempts_of_turn(tenant, turn, limit=MOST_TRIES)
            if not tries or tries[-1].session != session.id:
                raise TurnNotFound()
            base = tries[-1].base
            found = await self._store.find_turn(tenant, base) if base is not None else None
            return found.seq if found is not None else 1
        if found.session == session.id:
            return found.seq
        origin = session.forked_from[1] if session.forked_from else None
        there = await self._store.turn_at(tenant, origin, found.seq) if origin is not None else None
        if there is None or there.id != turn:
            raise TurnNotFound()
        return found.seq

    async def count_branches(self, session: Session) -> int:
        return await self._store.count_branches(session.tenant, session.id)

    async def branches(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int = 50
    ) -> tuple[Branch, ...]:
        """What edits have replaced here, oldest first."""
        await self.get(tenant, session)
        return await self._store.list_branches(tenant, session, after=after, limit=limit)

    async def prompt(self, tenant: TenantId, session: SessionId, turn: TurnId) -> tuple[Turn, Prompt]:
        """Returns the prompt of the last model call of a turn, without the agent's instruction, which is not
        stored."""
        found = await self.turn_of(await self.get(tenant, session), turn)
        base = await self._store.find_turn(tenant, found.parent) if found.parent else None
        chain = await read_chain(self._store, tenant, base.head if base else None)
        history = history_of(chain.checked())
        own = found.messages[:-1] if len(found.messages) > found.inputs else found.messages
        left_out = int(found.decision.get("left_out", 0))
        return found, Prompt(shown_of(history.settled, left_out) + history.answered(own), left_out)


def decoded(turn: EncodedTurn) -> Turn:
    """With the messages of a damaged turn, where these can be read."""
    plain = {field.name: getattr(turn, field.name) for field in fields(EncodedTurn)}
    try:
        return Turn(**plain, messages=decode(turn.body))
    except (ValueError, TypeError, KeyError, AttributeError):
        if not turn.damage:
            raise
        return Turn(**plain, messages=())


def fewer_sessions(found: int) -> SessionNotFound:
    """For `-3` where less than three sessions exist."""
    match found:
        case 0:
            return SessionNotFound("No session exists yet; start one")
        case 1:
            return SessionNotFound("Only one session exists; name it with -1")
        case _:
            return SessionNotFound(f"Only {found} sessions exist; name one of them with -1 to -{found}")
