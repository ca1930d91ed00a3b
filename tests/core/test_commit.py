"""What a commit writes, and how a chain is verified."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.commit import HASH_VERSION, damage_of, link, plan_commit
from lastgood.model.attempts import Begin, Begun, Hold, Step, StepKind
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import assistant, decode, tool_result, user
from lastgood.model.sessions import Head, Turn, TurnKind, Usage
from tests.core.builders import ATTEMPT, HEAD, SESSION, TENANT, TURN, ask, session, step, turn
from tests.reference_hash import hash_after
from tests.turn_chains import broken_link

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


def test_a_turn_records_its_model_and_its_cost() -> None:
    planned = plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0)
    made = planned.turn
    assert made.usage == Usage(11, 22, 0.75)
    assert (made.id, made.attempt, made.session, made.kind) == (TURN, ATTEMPT, SESSION, TurnKind.RUN)
    assert (made.agent_key, made.agent_digest, made.model) == ("agent", "digest", "override")
    assert (made.decision, made.created_at) == ({"agent": "exact"}, 5.0)


def test_a_turn_says_how_much_of_the_context_its_last_response_has_used() -> None:
    first, last = (
        replace(one, model="p/m", context_size=size) for one, size in zip(STEPS, (100, 60), strict=True)
    )
    helper = replace(first, within="1/", context_size=7)
    tool = Step(StepKind.TOOL, tool_result("1", "done"))
    planned = plan_commit(BEGIN, begun(HEAD), (first, last, tool, helper), now=5.0)
    assert planned.turn.decision == {"agent": "exact", "context_tokens": 30, "context_size": 60}
    unknown = replace(last, context_size=0)
    assert plan_commit(BEGIN, begun(HEAD), (first, unknown), now=5.0).turn.decision == {"agent": "exact"}


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


CHANGES: dict[str, Any] = {
    "id": TurnId("else"),
    "seq": 9,
    "attempt": AttemptId("else"),
    "kind": TurnKind.RESET,
    "agent_key": "else",
    "agent_digest": "else",
    "model": "else",
    "decision": {"left_out": 4},
    "usage": Usage(1),
    "created_at": 1.0,
    "user": "else",
    "inputs": 1,
    "body": b"[]",
}
#: The parent is compared, and its hash is covered. The session is where a turn is, not what it says.
#: The messages are the decoded body. Why a row cannot be read is not stored.
NOT_HASHED = {"hash", "parent", "session", "messages", "damage"}


def test_I6_every_field_of_a_turn_is_hashed_or_has_a_reason_not_to_be() -> None:
    assert set(CHANGES) | NOT_HASHED == {field.name for field in fields(Turn)}


@pytest.mark.parametrize("field", CHANGES)
def test_I6_a_hash_covers_every_field_and_all_before_it(field: str) -> None:
    plain = turn(HEAD, user("hello"))
    whole = link(HEAD, plain)
    assert whole == plain.hash
    assert link(HEAD, replace(plain, **{field: CHANGES[field]})) != whole
    assert link(None, plain) != whole
    assert link(replace(HEAD, hash=b"else"), plain) != whole


@pytest.mark.parametrize("usage", [Usage(12, 3), Usage(1, 23), Usage(1, 2, 3.0)])
@pytest.mark.parametrize("texts", [("ab", "c"), ("a", "bc"), ("abc", "")])
def test_I6_what_is_hashed_is_unambiguous(usage: Usage, texts: tuple[str, str]) -> None:
    plain = turn(HEAD, user("hello"))
    one = replace(plain, usage=usage, agent_key=texts[0], agent_digest=texts[1])
    others = [
        replace(plain, usage=other, agent_key=key, agent_digest=digest)
        for other in (Usage(12, 3), Usage(1, 23), Usage(1, 2, 3.0))
        for key, digest in (("ab", "c"), ("a", "bc"), ("abc", ""))
    ]
    assert [other for other in others if link(HEAD, other) == link(HEAD, one)] == [one]


def test_I6_the_hash_is_made_by_the_documented_rule() -> None:
    planned = plan_commit(BEGIN, begun(HEAD), STEPS, now=5.5).turn
    assert planned.hash == hash_after(HEAD.hash, planned)


def test_I6_a_hash_of_an_unknown_rule_is_not_taken_for_a_good_one() -> None:
    plain = turn(HEAD, user("hello"))
    assert damage_of(HEAD, plain) is None
    later = replace(plain, hash=bytes([HASH_VERSION + 1]) + plain.hash[1:])
    assert "algorithm" in (damage_of(HEAD, later) or "")


def test_I6_a_turn_whose_row_cannot_be_read_is_damaged() -> None:
    assert damage_of(HEAD, replace(turn(HEAD, user("hello")), damage="no JSON")) == "no JSON"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**53))
def test_I6_numbers_hash_alike_before_and_after_a_database(cost: float, at: int) -> None:
    """SQLite has no -0.0, and JSON does not tell 5 from 5.0."""
    plain = replace(turn(HEAD, user("hello")), usage=Usage(cost=cost), created_at=at)
    other = replace(plain, usage=Usage(cost=cost or 0.0), created_at=float(at))
    assert link(HEAD, plain) == link(HEAD, other)


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


def test_a_turn_records_the_model_that_gave_its_answer() -> None:
    steps = (
        replace(STEPS[0], model="first/one"),
        replace(STEPS[1], model="other/two"),
        replace(STEPS[0], model="sub/agent", within="call/"),
    )
    assert plan_commit(BEGIN, begun(HEAD), steps, now=5.0).turn.model == "other/two"
    assert plan_commit(BEGIN, begun(HEAD), STEPS, now=5.0).turn.model == "override", "nothing else is known"
