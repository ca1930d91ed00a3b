"""Judges a run from outside: what the model saw, what clients were told, what is stored in the end.

Written without the code it judges: grammar, hashes and prefixes are computed here
once more, from their definitions in docs/guarantees.md. Each violation names its
invariant. A checker that cannot fail proves nothing: tests/faults/defects.py is
the list of deliberate defects that it must find.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import orjson

from lastgood.model.attempts import Attempt, AttemptStatus
from lastgood.model.ids import SessionId, TurnId
from lastgood.model.sessions import SessionStatus, Turn
from tests.faults.edit_checker import edit_faults, leftovers
from tests.faults.stored_state import Plain, StoredSession, read_state, says
from tests.faults.world import AGENT, ClientCall, World
from tests.reference_hash import hash_after


async def check(world: World, *, settled: bool = True) -> list[str]:
    """Every violation found. `settled`: all faults are over and recovery has run."""
    sessions = list(dict.fromkeys(received.session for received in world.log if received.session))
    sessions += [
        SessionId(received.other)
        for received in world.log
        if received.what == "fork" and received.outcome == "done"
    ]
    state = await read_state(world.store, sessions)
    found: list[str] = []
    for kept in state.values():
        found += _chains(kept)
        found += edit_faults(kept, world)
        found += _attempts(kept, settled)
        found += _events(kept, world)
    found += _prompts(world, state)
    found += _outcomes(world, state)
    found += await leftovers(world, state)
    found += _keys(world, state)
    found += _overrides(world, state)
    found += _titles(world, state)
    found += _effects(world, state)
    return found


# -- the chain: I3, I5, I6 -----------------------------------------------------


def _chains(kept: StoredSession) -> list[str]:
    found = []
    name = kept.session.id
    if len(kept.turns) != kept.session.turns:
        found.append(f"I18 {name}: head says {kept.session.turns} turns, {len(kept.turns)} can be read")
    for chain in kept.chains:
        found += _chain(name, chain)
    return found


def _chain(name: str, turns: tuple[Turn, ...]) -> list[str]:
    found = []
    parent: Turn | None = None
    for place, turn in enumerate(turns, 1):
        if turn.seq != place:
            found.append(f"I5 {name}: turn {place} has seq {turn.seq}")
        if turn.parent != (parent.id if parent else None):
            found.append(f"I5 {name}: turn {place} does not follow the one before it")
        if turn.hash != hash_after(parent.hash if parent else b"", turn):
            found.append(f"I6 {name}: the hash of turn {place} is wrong")
        parent = turn
    repeated = [id for id, count in Counter(turn.id for turn in turns).items() if count > 1]
    if repeated:
        found.append(f"I3 {name}: turns committed twice: {repeated}")
    return found


# -- attempts: I9, I12, I14 ------------------------------------------------------


def _attempts(kept: StoredSession, settled: bool) -> list[str]:
    found = []
    name = kept.session.id
    fences = [attempt.fence for attempt in kept.attempts.values()]
    if len(set(fences)) != len(fences):
        found.append(f"I9 {name}: a fence was given twice: {sorted(fences)}")
    live = [one for one in kept.attempts.values() if one.ended_at is None]
    if len(live) > 1:
        found.append(f"I9 {name}: {len(live)} attempts at once")
    running = [one for one in live if one.status is AttemptStatus.RUNNING]
    if settled and (running or kept.session.status is SessionStatus.RUNNING):
        found.append(f"I12 {name}: still busy after everything was over")
    committed = {turn.attempt for turn in kept.all_turns.values()}
    for attempt in kept.attempts.values():
        own = attempt.session == name
        if own and (attempt.status is AttemptStatus.COMMITTED) != (attempt.id in committed):
            found.append(f"I17 {name}: attempt {attempt.id} is {attempt.status}, its turn says otherwise")
    return found


# -- events: I22, I24 ------------------------------------------------------------


def _events(kept: StoredSession, world: World) -> list[str]:
    found = []
    name = kept.session.id
    numbers = [event.seq for event in kept.events]
    if numbers != sorted(set(numbers)):
        found.append(f"I22 {name}: event numbers do not rise")
    ends = Counter(
        event.attempt for event in kept.events if event.kind.value in ("turn_committed", "turn_failed")
    )
    for attempt in kept.attempts.values():
        wanted = 0 if attempt.ended_at is None else 1
        if ends[attempt.id] != wanted:
            found.append(f"I24 {name}: attempt {attempt.id} ({attempt.status}) has {ends[attempt.id]} ends")
    stored = {event.seq: event.kind.value for event in kept.events}
    for received in world.log:
        if received.session != name or not received.events:
            continue
        if any(stored.get(seq) != kind for seq, kind in received.events):
            found.append(f"I22 {name}: {received.token} was shown an event that is not stored")
        first, last = received.events[0][0], received.events[-1][0]
        own = [(e.seq, e.kind.value) for e in kept.events if e.attempt == received.attempt]
        missing = [one for one in own if first <= one[0] <= last and one not in received.events]
        if missing:
            found.append(f"I22 {name}: {received.token} was not shown events {missing}")
    return found


# -- prompts: I1, I2, I4 ---------------------------------------------------------


def _prompts(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    found = []
    texts: dict[SessionId, set[str]] = defaultdict(set)
    for received in world.log:
        texts[received.session].update(received.texts)
    for record in world.prompts:
        if record.get("purpose") == "title":
            continue
        prompt: list[Plain] = [message for message in record["prompt"] if message["role"] != "system"]
        where = f"{record['session']} attempt {record['attempt']}"
        found += [f"I4 {where}: {fault}" for fault in grammar_faults(prompt)]
        kept = state.get(record["session"])
        attempt = kept.attempts.get(record["attempt"]) if kept else None
        if kept is None or attempt is None:
            continue  # deleted meanwhile: what it saw can no longer be said
        base = _messages_at(kept.all_turns, attempt.base)
        if prompt[: len(base)] != base:
            found.append(f"I1 {where}: the prompt does not start with the committed history at its base")
            continue
        own = prompt[len(base) :]
        asked = _asked(world, kept, attempt)
        if asked is not None and own[: len(asked)] != asked:
            found.append(f"I1 {where}: the history is not followed by the turn's own input alone: {own!r}")
        later = own[len(asked or ()) :]
        steers = [message["content"] for message in later if message["role"] == "user"]
        if len(set(steers)) < len(steers):
            found.append(f"I1 {where}: a steer was in the prompt twice")
        if asked is not None and not set(steers) <= set(world.steers):
            found.append(f"I1 {where}: something else was said after the turn's own input")
        if attempt.continues is not None:
            adopted = kept.steps[attempt.continues]
            said = next((place for place, m in enumerate(own) if m["role"] != "user"), len(own))
            if own[said:][: len(adopted)] != adopted:
                found.append(f"I1 {where}: the adopted steps are not in the prompt")
    return found


def _messages_at(turns: dict[TurnId, Turn], base: TurnId | None) -> list[Plain]:
    """What was committed along the chain that ends in `base`, since its last reset."""
    chain: list[Turn] = []
    at = base
    while at is not None:
        turn = turns.get(at)
        if turn is None:
            return [{"role": "lost", "content": f"base {base} is not in the chain"}]
        chain.append(turn)
        at = turn.parent
    messages: list[Plain] = []
    for turn in reversed(chain):
        if turn.kind.value == "reset":
            messages = []
        else:
            messages += orjson.loads(turn.body)
    return _with_results(messages)


def _with_results(messages: list[Plain]) -> list[Plain]:
    """As committed; only calls without a result get a made one, and empty messages are left out."""
    shown: list[Plain] = []
    open_calls: list[str] = []

    def close() -> None:
        for id in open_calls:
            result = "No result was recorded for this call."
            shown.append({"role": "tool", "content": result, "tool_call_id": id})
        open_calls.clear()

    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
                shown.append(message)
            continue
        close()
        if message["role"] != "assistant" or message["content"].strip() or message.get("tool_calls"):
            shown.append(message)
        open_calls += [call["id"] for call in message.get("tool_calls", ())]
    close()
    return shown


def _asked(world: World, kept: StoredSession, attempt: Attempt) -> list[Plain] | None:
    turn = kept.all_turns.get(attempt.turn)
    if turn is not None:
        received = next((t for t in world.log if t.texts and says(turn, t.texts[-1])), None)
        return [{"role": "user", "content": text} for text in received.texts] if received else None
    received = next((t for t in world.log if t.attempt == attempt.id), None)
    return (
        [{"role": "user", "content": text} for text in received.texts]
        if received and received.texts
        else None
    )


def grammar_faults(prompt: list[Plain]) -> list[str]:
    faults = []
    expected: list[str] = []
    for message in prompt:
        try:
            message["content"].encode()
        except UnicodeEncodeError:
            faults.append("text that is no Unicode")
        if message["role"] == "tool":
            if message.get("tool_call_id") not in expected:
                faults.append(f"a result for nothing: {message.get('tool_call_id')}")
            else:
                expected.remove(message["tool_call_id"])
            continue
        if expected:
            faults.append(f"calls without a result: {expected}")
        expected = [call["id"] for call in message.get("tool_calls", ())]
        if message["role"] == "assistant" and not message["content"].strip() and not expected:
            faults.append("an empty assistant message")
    if expected:
        faults.append(f"calls without a result: {expected}")
    return faults


# -- which outcomes clients got: I2, I3, I13–I16 --------------------------------------


def _outcomes(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    found = []
    deleted = {t.session for t in world.log if t.what == "delete" and t.outcome == "done"}
    maybe_deleted = {t.session for t in world.log if t.what == "delete" and t.outcome == "unknown"}
    for session in deleted & set(state):
        found.append(f"I15 {session}: is there again after it was deleted")
    by_token: dict[str, list[ClientCall]] = defaultdict(list)
    for received in world.log:
        if received.what == "ask" and received.token:
            by_token[received.token].append(received)
    for token, tries in by_token.items():
        session = tries[0].session
        kept = state.get(session)
        if kept is None:
            lost = session not in deleted | maybe_deleted
            if lost and any(received.outcome == "committed" for received in tries):
                found.append(f"I16 {session}: is gone, and nobody deleted it")
            continue
        found += _outcomes_of_token(world, token, tries, kept)
    return found


def _outcomes_of_token(world: World, token: str, tries: list[ClientCall], kept: StoredSession) -> list[str]:
    found = []
    name = kept.session.id
    turns = kept.all_turns
    holding = [
        turn for turn in turns.values() if any(token in m.content for m in turn.messages if m.role == "user")
    ]
    # A retry without a key is recognised only while nothing else was said in between.
    apart = any(received.is_retry for received in tries) and holding and holding[-1].seq - holding[0].seq > 1
    if len(holding) > 1 and not apart:
        found.append(f"I3 {name}: {token} is in {len(holding)} committed turns")
    for received in tries:
        if received.outcome == "committed" and received.turn not in turns:
            found.append(f"I16 {name}: {token} was acknowledged, and its turn is not there")
    sure = {"failed", "cancelled", "refused"}
    # Promised asks may be tried again by recovery; a plain one may not.
    definite = all(
        received.outcome in sure and (received.plain or received.outcome == "refused") for received in tries
    )
    if definite and holding:
        found.append(f"I2 {name}: {token} was told to have failed, and is in the history")
    if holding and holding[0].kind.value == "run":
        steers = set(world.steers)
        said = [m.content for m in holding[0].messages if m.role == "user" and m.content not in steers]
        if tuple(said) != tries[0].texts:
            found.append(
                f"I3 {name}: {token} was asked with {len(tries[0].texts)} messages, {len(said)} are kept"
            )
    last_words = [m["content"] for record in world.prompts for m in record["prompt"][-1:]]
    if all(received.outcome == "refused" for received in tries) and any(
        token in words for words in last_words
    ):
        found.append(f"I13 {name}: {token} was refused, and the model was asked")
    cancelled = {
        received.attempt for received in world.log if received.what == "cancel" and received.outcome == "done"
    }
    if any(turn.attempt in cancelled for turn in holding):
        found.append(f"I14 {name}: {token} was cancelled, and is in the history")
    for received in tries:
        attempt = kept.attempts.get(received.attempt) if received.attempt else None
        known = {"committed": "committed", "cancelled": "cancelled"}
        if attempt and received.outcome in known and attempt.status.value != known[received.outcome]:
            found.append(f"I14 {name}: {token} was told {received.outcome}, its attempt is {attempt.status}")
        if (
            attempt
            and attempt.status is AttemptStatus.COMMITTED
            and received.code
            not in ("", "outcome_unknown", "shutting_down")  # these claim nothing of the turn
        ):
            found.append(f"I16 {name}: {token} was told {received.code}, and its attempt is committed")
    return found


# -- I20 ---------------------------------------------------------------------------


def _keys(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    found = []
    by_key: dict[str, list[ClientCall]] = defaultdict(list)
    for received in world.log:
        if received.key is not None and received.outcome != "refused":
            by_key[received.key].append(received)
    for key, tries in by_key.items():
        turns = {received.turn for received in tries if received.outcome == "committed"}
        if len(turns) > 1:
            found.append(f"I20 key {key}: committed as {turns}")
        kept = state.get(tries[0].session)
        if kept is not None:
            tried = {kept.attempts[t.attempt].turn for t in tries if t.attempt in kept.attempts}
            if len(tried) > 1:
                found.append(f"I20 key {key}: became {len(tried)} turns")
    return found


# -- M3.2–M3.4, M3.7 ----------------------------------------------------------------


def _overrides(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    """The model of each turn is its own override, or that of the turn before it."""
    found = []
    for kept in state.values():
        if kept.session.forked_from is not None:
            continue
        model: str | None = None
        # In the order of their commits: an override holds from its turn on, also for edits of earlier ones.
        for turn in sorted(kept.all_turns.values(), key=lambda turn: kept.attempts[turn.attempt].fence):
            if turn.kind.value != "run":
                continue
            received = next((t for t in world.log if t.texts and says(turn, t.texts[-1])), None)
            if received is None:
                continue
            model = received.model or model
            if turn.model != (model or AGENT):
                found.append(
                    f"M3.3 {kept.session.id}: turn {turn.seq} ran on {turn.model}, not on {model or AGENT}"
                )
        if kept.session.model != model:
            found.append(f"M3.4 {kept.session.id}: the override is {kept.session.model}, not {model}")
    return found


def _titles(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    found = []
    for kept in state.values():
        named = [t for t in world.log if t.session == kept.session.id and t.what == "rename"]
        sure = bool(named) and all(t.outcome == "done" for t in named)
        if sure and kept.session.title not in {t.other for t in named}:
            found.append(f"M3.7 {kept.session.id}: a person's title became {kept.session.title!r}")
        starred = [t for t in world.log if t.session == kept.session.id and t.what == "star"]
        if starred and all(t.outcome == "done" for t in starred) and not kept.session.starred:
            found.append(f"M3.7 {kept.session.id}: a field nobody wrote has changed")
    return found


# -- outside effects ------------------------------------------------------------------


def _effects(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    """A finished call of adopted steps is not made again; one that may not be repeated, never."""
    found = []
    by_key: dict[str, list[Plain]] = defaultdict(list)
    for line in world.ledger:
        by_key[line["key"]].append(line)
    for key, lines in by_key.items():
        kept = state.get(lines[0]["session"])
        if kept is None:
            continue
        call = key.split(":", 2)[2]
        for line in lines[1:]:
            attempt = kept.attempts.get(line["attempt"])
            if attempt is None or attempt.continues is None:
                continue
            adopted = kept.steps[attempt.continues]
            if any(step.get("tool_call_id") == call for step in adopted):
                found.append(f"I33 {kept.session.id}: call {call} had its result and was made again")
    return found
