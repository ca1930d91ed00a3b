"""Usage: counted once, in the transaction of what was used; merged without a change of any sum."""

from dataclasses import replace

import pytest

from lastgood.model.attempts import AttemptStatus, Committed, Step, StepKind
from lastgood.model.ids import TenantId
from lastgood.model.messages import ToolCall, assistant, tool_result
from lastgood.model.sessions import TurnKind, Usage
from lastgood.model.usage import AttemptUse, UsageCounts, UsageDimension, UsageQuery
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT

pytestmark = pytest.mark.anyio

EVER = UsageQuery(0, 2**40, 2**40)


def response(tokens: int) -> Step:
    message = replace(assistant(""), tool_calls=(ToolCall("c1", "look", "{}"),))
    return Step(StepKind.MODEL, message, Usage(tokens, 2, 0.25), model="one/big")


async def total(store: Store, tenant: TenantId = TENANT) -> UsageCounts:
    rows = await store.read_usage(tenant, EVER, limit=10)
    return sum((row.counts for row in rows), UsageCounts())


async def by(store: Store, dimension: UsageDimension) -> dict[str, tuple[int, int, int]]:
    rows = await store.read_usage(TENANT, replace(EVER, by=dimension), limit=10)
    return {row.name: (row.counts.attempts, row.counts.calls, row.counts.input_tokens) for row in rows}


async def test_I17_steps_and_ends_are_counted_with_what_they_store(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, replace(builders.ask(session), user="ann", caller="tok_1"))
    assert await store.journal_if_held(tried.hold, [response(10)], [], batch=1)
    assert not await store.journal_if_held(tried.hold, [response(10)], [], batch=1), "it was sent again"
    look = Step(StepKind.TOOL, tool_result("c1", "seen"), seconds=1.0)
    assert await store.journal_if_held(tried.hold, [look], [], batch=2)
    assert await total(store) == UsageCounts(calls=1, input_tokens=10, output_tokens=2, cost=0.25)
    use = AttemptUse("one/small", Usage(5, 1, 0.5), 1, {"one/small": 2, "one/big": 0}, seconds=4.0)
    plan = tried.plan(builders.answer("done"))
    assert (await store.commit_if_head(tried.hold, plan, [], use=use)).outcome is Committed.YES
    assert (await store.commit_if_head(tried.hold, plan, [], use=use)).outcome is Committed.LOST
    counted = await total(store)
    assert counted == UsageCounts(1, 1, 0, 4, 15, 3, 0.75, 4.0, 4.0)
    assert await by(store, UsageDimension.MODEL) == {"one/big": (0, 1, 10), "one/small": (1, 3, 5)}
    assert await by(store, UsageDimension.USER) == {"ann": (1, 4, 15)}
    assert await by(store, UsageDimension.RUNTIME) == {"": (1, 4, 15)}
    only = replace(EVER, only={UsageDimension.MODEL: "one/big"})
    assert [row.counts.calls for row in await store.read_usage(TENANT, only, limit=10)] == [1]
    assert await total(store, TenantId("another")) == UsageCounts()


async def test_adopted_steps_are_counted_once_and_failed_attempts_are(store: Store) -> None:
    session = await builders.session(store)
    first = await builders.start(store, replace(builders.ask(session), caller="tok_1"))
    assert await store.journal_if_held(first.hold, [response(10)], [])
    failed = AttemptUse("one/big", None, 0, {"one/big": 1}, seconds=1.0)
    assert await store.finish_if_held(first.hold, AttemptStatus.FAILED, ("code", "why"), [], use=failed)
    again = await builders.start(
        store,
        replace(builders.ask(session), caller="tok_1"),
        turn=first.begun.turn,
        again=True,
        continues=first.hold.attempt,
    )
    assert len(await store.read_steps(TENANT, again.hold.attempt)) == 1
    done = AttemptUse("one/big", Usage(7, 1), 1, {}, seconds=1.0)
    plan = again.plan(builders.answer("done"))
    assert (await store.commit_if_head(again.hold, plan, [], use=done)).outcome is Committed.YES
    counted = await total(store)
    assert (counted.attempts, counted.turns, counted.failures) == (2, 1, 1)
    assert (counted.calls, counted.input_tokens) == (3, 17)
    assert await by(store, UsageDimension.USER) == {"tok_1": (2, 3, 17)}


async def test_turns_without_a_model_are_no_usage(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session, kind=TurnKind.APPEND)
    assert await total(store) == UsageCounts()


async def test_merging_changes_no_sum_and_leaves_one_row_for_each_hour_and_dimension(store: Store) -> None:
    for user in ("ann", "ann", "bob"):
        use = AttemptUse("m", Usage(3, 1, 0.5), 1, {"m": 1}, 2.0)
        await store.record_use(TENANT, user, "agent", AttemptStatus.COMMITTED, use)
    await store.record_use(TENANT, "bob", "agent", AttemptStatus.CANCELLED, AttemptUse("m", seconds=9.0))
    before = await total(store)
    assert before == UsageCounts(4, 3, 0, 6, 9, 3, 1.5, 15.0, 9.0)
    assert await store.merge_usage(limit=2) == 2
    assert await total(store) == before
    while await store.merge_usage(limit=2):
        pass
    assert await total(store) == before
    assert await store.merge_usage(limit=100) == 0
    await store.record_use(TENANT, "ann", "agent", AttemptStatus.FAILED, AttemptUse("m", seconds=1.0))
    assert await store.merge_usage(limit=100) == 1
    assert await by(store, UsageDimension.USER) == {"ann": (3, 4, 6), "bob": (2, 2, 3)}


async def test_usage_outlives_its_session(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session)
    before = await total(store)
    assert before.turns == 1
    assert await store.delete_session(TENANT, session.id)
    assert await total(store) == before


async def test_I40_numbers_that_no_sum_could_hold_are_counted_as_the_largest(store: Store) -> None:
    use = AttemptUse("m", Usage(2**63 - 1, 2**63 - 1, 1e308), 1, {}, 2.0)
    for _ in range(3):
        await store.record_use(TENANT, "ann", "agent", AttemptStatus.COMMITTED, use)
    before = await total(store)
    assert (before.turns, before.input_tokens > 10**12) == (3, True)
    assert await store.merge_usage(limit=100) == 3
    assert await total(store) == before


async def test_I40_names_that_are_too_long_for_an_index_are_merged(store: Store) -> None:
    """Users have up to 512 characters. A merge that failed would fail at every sweep, for all tenants."""
    names = [
        "".join(chr(0x4E00 + (place * 7919 + which) % 20_000) for place in range(512)) for which in (1, 2)
    ]
    for name in (*names, names[0]):
        use = AttemptUse(f"m/{name}", Usage(3, 1), 1, {}, 2.0)
        await store.record_use(TENANT, name, f"agent/{name}", AttemptStatus.COMMITTED, use)
    assert await store.merge_usage(limit=100) == 3
    assert sorted((await by(store, UsageDimension.USER)).values()) == [(1, 1, 3), (2, 2, 6)]
