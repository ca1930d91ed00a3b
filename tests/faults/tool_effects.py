"""Counts outside effects against each tool's policy, after servers were killed while tools worked.

Knows what is left when the last of them has ended: the ledger that commands wrote their lines into, the
prompts that the model saw, and what is stored. The rule it holds them to (I33):

- A call that may not be repeated happens at most once for each time that its turn starts from its input.
- A call that may be repeated happens at least once, and at most once in each attempt.
- A call whose result was written is not made again by an attempt that goes on from there.
- Whenever a call is made again, it has the same key, and the attempt's own number.

Written without the code it judges: keys and chains of attempts are worked out here once more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lastgood.core.recovery import MOST_DEATHS
from lastgood.engine.turn_loop import UNKNOWN_OUTCOME
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import Attempt, AttemptStatus, Step, StepKind
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
from lastgood.model.sessions import Turn
from lastgood.store.sqlite import open_sqlite
from tests.faults.checker import check, grammar_faults
from tests.faults.tool_server import Layout
from tests.faults.world import ClientCall, World

#: What the tools of an agent say about repeating, by agent and tool.
Policies = Mapping[str, Mapping[str, OnUnknown]]


@dataclass(frozen=True, slots=True)
class Effect:
    """A line that a command wrote."""

    tool: str
    key: str
    attempt: int
    process: int

    @property
    def turn(self) -> str:
        return self.key.partition(":")[0]


def read_ledger(path: Path) -> list[Effect]:
    lines = path.read_text().splitlines() if path.exists() else ()
    return [
        Effect(tool, key, int(attempt), int(process)) for tool, key, attempt, process in map(str.split, lines)
    ]


@dataclass(frozen=True, slots=True)
class Result:
    tool: str
    text: str

    @property
    def is_unknown(self) -> bool:
        return self.text == UNKNOWN_OUTCOME

    @property
    def is_noted(self) -> bool:
        """It is of a command that has written its line."""
        return self.text.endswith("noted")


def results(turn: TurnId, steps: Sequence[Step]) -> dict[str, Result]:
    """By the key of the call: where in the turn it was asked for, and, in a task, by whose call."""
    found: dict[str, Result] = {}
    responses: Counter[str] = Counter()
    names: dict[str, str] = {}
    for step in steps:
        if step.kind is StepKind.MODEL:
            responses[step.within] += 1
        place = f"{turn}:{step.within}{responses[step.within]}:"
        if step.kind is StepKind.MODEL:
            names |= {place + call.id: call.name for call in step.message.tool_calls}
        else:
            key = f"{place}{step.message.tool_call_id}"
            found[key] = Result(names[key], step.message.content)
    return found


@dataclass(slots=True)
class Record:
    """All that is left."""

    layout: Layout
    effects: list[Effect]
    prompts: list[dict[str, Any]]
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    steps: dict[AttemptId, tuple[Step, ...]] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)  # what the checker of all invariants objects to

    def tries(self, turn: str) -> list[Attempt]:
        tries = (attempt for attempt in self.attempts.values() if attempt.turn == turn)
        return sorted(tries, key=lambda attempt: attempt.number)

    def start(self, attempt: Attempt) -> AttemptId:
        """The attempt that started from the input, and that this one goes on from."""
        while attempt.continues is not None:
            attempt = self.attempts[attempt.continues]
        return attempt.id

    def answers(self, turn: str) -> dict[str, Result]:
        """The results that the committed turn, and the tasks in it, went on with."""
        kept = self.turns[TurnId(turn)]
        return results(kept.id, self.steps[kept.attempt])


async def read_record(layout: Layout, log: list[ClientCall]) -> Record:
    """After the last server. `log` is what its clients asked for and were told."""
    prompts = [orjson.loads(line) for line in layout.prompts.read_bytes().splitlines()]
    record = Record(layout, read_ledger(layout.ledger), prompts)
    store = open_sqlite(layout.database)
    try:
        for id in dict.fromkeys(received.session for received in log):
            session = await store.get_session(DEFAULT_TENANT, id)
            assert session is not None
            head = session.head
            for turn in await store.read_turns(DEFAULT_TENANT, head.turn) if head else ():
                record.turns[turn.id] = turn
            for attempt in await store.list_attempts(DEFAULT_TENANT, id):
                record.attempts[attempt.id] = attempt
                record.steps[attempt.id] = await store.read_steps(DEFAULT_TENANT, attempt.id)
        # The checker knows nothing of tasks: their prompts are conversations of their own.
        with_tasks = {prompt["session"] for prompt in prompts if "within" in prompt}
        plain = [prompt for prompt in prompts if prompt["session"] not in with_tasks]
        record.found = await check(World(store, log=log, prompts=plain))
    finally:
        await store.close()
    return record


# -- the rule --------------------------------------------------------------------------


def judge(record: Record, policies: Policies, promised: Sequence[str]) -> list[str]:
    """Every violation, of the effects and of everything else."""
    return [
        *record.found,
        *_counted(record, policies),
        *_adopted(record),
        *_responses(record, policies),
        *_paid(record, promised),
        *_grammatical(record),
    ]


def _counted(record: Record, policies: Policies) -> Iterator[str]:
    by_key: dict[str, list[Effect]] = defaultdict(list)
    for effect in record.effects:
        by_key[effect.key].append(effect)
    for key, effects in by_key.items():
        tries = {attempt.number: attempt for attempt in record.tries(effects[0].turn)}
        in_attempts = [tries.get(effect.attempt) for effect in effects]
        if any(attempt is None for attempt in in_attempts):
            yield f"I33 {key}: happened in an attempt that there was not"
            continue
        per_attempt = Counter(attempt.id for attempt in in_attempts if attempt)
        if max(per_attempt.values()) > 1:
            yield f"I33 {key}: {effects[0].tool} happened more than once in one attempt"
        policy = policies[tries[1].agent_key][effects[0].tool]
        per_start = Counter(record.start(attempt) for attempt in in_attempts if attempt)
        if policy is not OnUnknown.REPEAT and max(per_start.values()) > 1:
            yield f"I33 {key}: {effects[0].tool} may not be repeated, and was"


def _adopted(record: Record) -> Iterator[str]:
    made = {(effect.key, effect.attempt) for effect in record.effects}
    for attempt in record.attempts.values():
        if attempt.continues is None:
            continue
        adopted = record.steps[attempt.continues]
        if record.steps[attempt.id][: len(adopted)] != adopted:
            yield f"I33 {attempt.id}: does not go on from the finished steps of {attempt.continues}"
        for key in results(attempt.turn, adopted):
            if (key, attempt.number) in made:
                yield f"I33 {key}: had its result and was made again"


def _responses(record: Record, policies: Policies) -> Iterator[str]:
    """What a committed turn says of its calls is what happened."""
    for turn in record.turns.values():
        last = record.attempts[turn.attempt]
        for key, result in record.answers(turn.id).items():
            tries = {one.number for one in record.tries(turn.id) if record.start(one) == record.start(last)}
            times = sum(effect.key == key and effect.attempt in tries for effect in record.effects)
            policy = policies[turn.agent_key].get(result.tool, OnUnknown.REPEAT)  # a task may be repeated
            if result.is_unknown and (policy is OnUnknown.REPEAT or last.continues is None):
                yield f"I33 {key}: {result.tool} is said to have an unknown outcome without need"
            if result.is_noted and (times < 1 or (times > 1 and policy is not OnUnknown.REPEAT)):
                yield f"I33 {key}: {result.tool} is said to have happened, and did {times} times"


def _paid(record: Record, promised: Sequence[str]) -> Iterator[str]:
    for turn in promised:
        tries = record.tries(turn)
        given_up = len(tries) >= MOST_DEATHS and all(
            attempt.status is AttemptStatus.INTERRUPTED for attempt in tries
        )
        if TurnId(turn) not in record.turns and not given_up:
            yield f"I16 {turn}: was promised, and is neither there nor given up: {tries}"


def _grammatical(record: Record) -> Iterator[str]:
    for prompt in record.prompts:
        said = [message for message in prompt["prompt"] if message["role"] != "system"]
        for fault in grammar_faults(said):
            yield f"I4 {prompt['session']} attempt {prompt['attempt']}: {fault}"


def asked(session: str, text: str, turn: str | None, attempt: str | None, outcome: str) -> ClientCall:
    """What a client wrote down that asked for a promised turn."""
    return ClientCall(
        "ask",
        SessionId(session),
        token=text.split()[0],
        texts=(text,),
        durable=True,
        plain=False,
        outcome=outcome,
        turn=TurnId(turn) if turn else None,
        attempt=AttemptId(attempt) if attempt else None,
    )
