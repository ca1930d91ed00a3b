"""What a commit writes, and how a chain is verified."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.commit import broken_link, link, plan_commit
from lastgood.model.attempts import Begin, Begun, Hold
from lastgood.model.ids import TurnId
from lastgood.model.messages import assistant, decode, user
from lastgood.model.sessions import Head, Turn, TurnKind, Usage
from tests.core.given import ATTEMPT, HEAD, SESSION, TENANT, TURN, ask, session, step, turn

HOLD = Hold(TENANT, SESSION, ATTEMPT, 3)
ASK = ask(messages=(user("one"), user("two")), model="override", kind=TurnKind.RUN)
BEGIN = Begin(ASK, TURN, ATTEMPT, "node", 15.0, "agent", "digest", "default", {"agent": "exact"})
STEPS = (step(assistant("a"), Usage(1, 2, 0.5)), step(assistant("b"), Usage(10, 20, 0.25)))


def begun(base: Head | None) -> Begun:
    return Begun(HOLD, TURN, 1, "override", base, session(head=base))


def test_I3_a_turn_holds_its_whole_input_and_every_step() -> None:
    planned = plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0)
    assert planned.turn.messages == (user("one"), user("two"), assistant("a"), assistant("b"))
    assert decode(planned.turn.body) == planned.turn.messages


def test_I5_a_turn_follows_its_base() -> None:
    after = plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0).turn
    assert (after.seq, after.parent, after.head.turn) == (HEAD.seq + 1, HEAD.turn, TURN)
    first = plan_commit(BEGIN, begun(None), STEPS, now=5.0).turn
    assert (first.seq, first.parent) == (1, None)
    assert first.hash != after.hash


def test_a_turn_records_who_answered_and_what_it_cost() -> None:
    planned = plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0)
    made = planned.turn
    assert made.usage == Usage(11, 22, 0.75)
    assert (made.id, made.attempt, made.session, made.kind) == (TURN, ATTEMPT, SESSION, TurnKind.RUN)
    assert (made.agent_key, made.agent_digest, made.model) == ("agent", "digest", "override")
    assert (made.decision, made.created_at) == ({"agent": "exact"}, 5.0)


@pytest.mark.parametrize("override", [None, "other/model"])
def test_M3_3_an_override_is_written_with_its_turn(override: str | None) -> None:
    begin = replace(BEGIN, ask=replace(ASK, model=override))
    assert plan_commit(begin, begun(HEAD), STEPS, now=5.0).override == override


def chain(length: int) -> list[Turn]:
    made: list[Turn] = []
    for number in range(length):
        made.append(turn(made[-1].head if made else None, user(str(number)), assistant("x" * number)))
    return made


@pytest.mark.parametrize("length", [0, 1, 5])
def test_I6_a_whole_chain_verifies(length: int) -> None:
    assert broken_link(chain(length)) is None


@given(st.data())
def test_I6_one_changed_byte_is_found_at_its_turn(data: st.DataObject) -> None:
    turns = chain(4)
    place = data.draw(st.integers(0, 3))
    hurt = turns[place]
    position = data.draw(st.integers(0, len(hurt.body) - 1))
    body = bytearray(hurt.body)
    body[position] ^= data.draw(st.integers(1, 255))
    turns[place] = replace(hurt, body=bytes(body))
    assert broken_link(turns) == turns[place]


@pytest.mark.parametrize(
    "change",
    [
        {"id": TurnId("else")},
        {"seq": 9},
        {"parent": TurnId("else")},
        {"parent": None},
        {"hash": b"else"},
    ],
)
def test_I6_a_turn_out_of_place_is_found(change: dict[str, object]) -> None:
    turns = chain(3)
    turns[1] = replace(turns[1], **change)  # type: ignore[arg-type]
    assert broken_link(turns) == turns[1]


def test_I6_a_missing_turn_is_found() -> None:
    first, _, third = chain(3)
    assert broken_link([first, third]) == third
    assert broken_link([third]) == third


def test_a_hash_covers_the_turn_its_place_and_all_before_it() -> None:
    whole = link(HEAD, "turn", 8, b"body")
    others = [
        link(None, "turn", 8, b"body"),
        link(replace(HEAD, hash=b"else"), "turn", 8, b"body"),
        link(HEAD, "else", 8, b"body"),
        link(HEAD, "turn", 9, b"body"),
        link(HEAD, "turn", 8, b"else"),
    ]
    assert len({whole, *others}) == 6


def test_a_sub_agents_steps_cost_and_are_no_part_of_the_turn() -> None:
    inner = replace(step(assistant("inner"), Usage(5, 5)), within="1:call/")
    planned = plan_commit(BEGIN, begun(HEAD), (inner, *STEPS), now=5.0).turn
    assert assistant("inner") not in planned.messages
    assert planned.usage.input_tokens == 16
    assert planned.inputs == 2


def test_a_turn_says_what_the_model_did_not_see_or_could_not_say() -> None:
    first, last = STEPS
    assert plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0).turn.decision == {"agent": "exact"}
    steps = (replace(first, left_out=4), replace(last, left_out=2, cut_short=True))
    decision = plan_commit(BEGIN, begun(HEAD), steps, now=5.0).turn.decision
    assert decision == {"agent": "exact", "left_out": 4, "cut_short": True}
