"""What is stored in the end, as the checker reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastgood.model.attempts import Attempt
from lastgood.model.events import StoredEvent
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
from lastgood.model.sessions import Branch, Session, Turn
from lastgood.ports import Store

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it is stored in the end: the chain of its head, and those that edits have replaced."""

    session: Session
    turns: tuple[Turn, ...]
    replaced: dict[Branch, tuple[Turn, ...]]
    attempts: dict[AttemptId, Attempt]
    events: tuple[StoredEvent, ...]
    steps: dict[AttemptId, list[Plain]]

    @property
    def chains(self) -> list[tuple[Turn, ...]]:
        return [self.turns, *self.replaced.values()]

    @property
    def all_turns(self) -> dict[TurnId, Turn]:
        """Of the head's chain and of all branches."""
        return {turn.id: turn for chain in self.chains for turn in chain}


async def read_state(store: Store, sessions: list[SessionId]) -> dict[SessionId, StoredSession]:
    state: dict[SessionId, StoredSession] = {}
    for id in sessions:
        session = await store.get_session(DEFAULT_TENANT, id)
        if session is None:
            continue
        turns = await store.read_turns(DEFAULT_TENANT, session.head.turn) if session.head else ()
        replaced = {
            branch: await store.read_turns(DEFAULT_TENANT, branch.head)
            for branch in await store.list_branches(DEFAULT_TENANT, id, limit=10_000)
        }
        attempts = {one.id: one for one in await store.list_attempts(DEFAULT_TENANT, id)}
        events: list[StoredEvent] = []
        while page := await store.read_events(DEFAULT_TENANT, id, after=events[-1].seq if events else 0):
            events.extend(page)
        steps = {
            attempt: [_plain(step.message) for step in await store.read_steps(DEFAULT_TENANT, attempt)]
            for attempt in attempts
        }
        state[id] = StoredSession(session, turns, replaced, attempts, tuple(events), steps)
    return state


def _plain(message: Any) -> Plain:
    plain: Plain = {"role": str(message.role), "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def says(turn: Turn, text: str) -> bool:
    return any(str(message.role) == "user" and message.content == text for message in turn.messages)
