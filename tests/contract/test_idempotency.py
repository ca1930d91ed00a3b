"""Requests: one key, one turn, however often it is sent (I20); and the same request at every try of it."""

from dataclasses import fields, replace

import pytest

from lastgood.core.admission import Admitted, Attach, Rejected, Replay, admit
from lastgood.errors import IdempotencyMismatch
from lastgood.flows.turns import ask_of
from lastgood.model.attempts import AttemptStatus, Committed, Interrupted
from lastgood.model.call_options import CallOptions
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT, eventually
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


async def test_I20_a_key_used_before_finds_its_request_and_its_newest_try(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    asked = builders.ask(session, key="key", fingerprint="print")
    first = await builders.start(store, asked)
    await store.finish_if_held(first.hold, AttemptStatus.FAILED, None, [])
    before = await dump(backend)
    standing = await builders.refused(store, asked, builders.events("x"))
    assert await dump(backend) == before
    assert standing.prior == await store.read_request(TENANT, first.begin.turn)
    assert standing.prior_attempt == await store.get_attempt(TENANT, first.hold.attempt)
    assert standing.holder is None

    decision = admit(asked, standing)
    assert decision == Admitted(first.begin.turn)
    second = await builders.start(store, asked, turn=first.begin.turn, again=True)
    standing = await builders.refused(store, asked)
    assert standing.prior_attempt == standing.holder == await store.get_attempt(TENANT, second.hold.attempt)
    assert isinstance(admit(asked, standing), Attach)

    assert (await store.commit_if_head(second.hold, second.plan(), [])).outcome is Committed.YES
    standing = await builders.refused(store, asked)
    assert isinstance(admit(asked, standing), Replay)
    assert len(await store.read_turns(TENANT, first.begin.turn)) == 1


async def test_I20_a_key_used_in_another_session_is_found_too(store: Store) -> None:
    one, other = await builders.session(store), await builders.session(store)
    turn = await builders.commit(store, one, key="key")
    asked = builders.ask(other, key="key")
    standing = await builders.refused(store, asked)
    assert standing.prior is not None
    assert (standing.prior.session, standing.prior.turn) == (one.id, turn.id)
    decision = admit(asked, standing)
    assert isinstance(decision, Rejected)
    assert isinstance(decision.error, IdempotencyMismatch)
    await builders.start(store, builders.ask(other))


async def test_I35_another_tenant_may_use_the_same_key(store: Store) -> None:
    ours, theirs = await builders.session(store), await builders.session(store, STRANGER)
    turns = {
        session.tenant: (await builders.start(store, builders.ask(session, key="key"))).begin.turn
        for session in (ours, theirs)
    }
    for session in (ours, theirs):
        standing = await builders.refused(store, builders.ask(session, key="key"))
        assert standing.prior is not None
        assert (standing.prior.tenant, standing.prior.turn) == (session.tenant, turns[session.tenant])


async def test_requests_without_a_key_never_meet(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session)
    await builders.commit(store, session)


async def test_I20_a_key_is_stored_with_its_begin_or_not_at_all(store: Store) -> None:
    session = await builders.session(store)
    holder = await builders.start(store, builders.ask(session))
    standing = await builders.refused(store, builders.ask(session, key="key"))
    assert standing.prior is None
    await store.finish_if_held(holder.hold, AttemptStatus.FAILED, None, [])
    await builders.start(store, builders.ask(session, key="key"))


async def test_I20_a_busy_session_still_finds_the_prior_request(store: Store) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session, key="key")
    holder = await builders.start(store, builders.ask(session))
    standing = await builders.refused(store, builders.ask(session, key="key"))
    assert standing.holder is not None
    assert standing.holder.id == holder.hold.attempt
    assert standing.prior is not None
    assert standing.prior.turn == turn.id
    assert standing.prior_attempt is not None
    assert standing.prior_attempt.status is AttemptStatus.COMMITTED


async def test_I20_tidying_keeps_young_keys_and_drops_old_ones_of_committed_turns(store: Store) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session, key="committed")
    failed = await builders.start(store, builders.ask(session, key="failed"))
    await store.finish_if_held(failed.hold, AttemptStatus.FAILED, None, [])

    await store.tidy(events_older_than=3600, keys_older_than=3600)
    assert await store.read_request(TENANT, turn.id) is not None

    async def dropped() -> bool:
        await store.tidy(events_older_than=3600, keys_older_than=0)
        return await store.read_request(TENANT, turn.id) is None

    await eventually(dropped)
    assert await store.read_request(TENANT, failed.begin.turn) is not None
    assert await store.find_turn(TENANT, turn.id) == turn
    await builders.start(store, builders.ask(session, key="committed"))


# --- what was asked of the model ---------------------------------------------------------------------------

OPTIONS = CallOptions(
    temperature=0.25,
    top_p=0.1,
    max_tokens=2**40,
    frequency_penalty=-2.0,
    presence_penalty=2.0,
    seed=-(2**63),
    stop=("end\x00", "süß 🧭", ""),
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": [1, None, 2.5]}}},
    tools=(
        {"type": "function", "function": {"name": "one", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "two"}},
    ),
    tool_choice={"type": "function", "function": {"name": "one"}},
    parallel_tool_calls=True,
    reasoning_effort="high",
    verbosity="low",
    top_k=40,
    min_p=0.05,
    repetition_penalty=1.1,
)
#: Set, though they look like nothing. A temperature of 0 must not become the agent's own.
FALSE = CallOptions(
    temperature=0.0,
    top_p=0.0,
    max_tokens=0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    seed=0,
    response_format={},
    tool_choice="",
    parallel_tool_calls=False,
    reasoning_effort="",
    verbosity="",
    top_k=0,
    min_p=0.0,
    repetition_penalty=0.0,
)


def test_no_option_is_missing_here() -> None:
    """Otherwise the tests below would prove nothing about it."""
    for field in fields(CallOptions):
        assert getattr(OPTIONS, field.name) not in (None, ())
        assert getattr(FALSE, field.name) is not None


@pytest.mark.parametrize("options", [OPTIONS, FALSE, CallOptions(), CallOptions(temperature=1.0)])
async def test_options_are_stored_as_they_were_asked(backend: Backend, options: CallOptions) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store), options=options))
    request = await store.read_request(TENANT, tried.begin.turn)
    assert request is not None
    assert request.options == options
    assert request.options.tool_names == options.tool_names
    # An ask without options stores none.
    [(stored,)] = await backend.rows("SELECT options FROM requests")
    assert (stored is None) == (options == CallOptions())


async def test_a_turn_that_is_tried_again_is_asked_with_the_same_options(store: Store) -> None:
    """Whichever way the request is come by: by its turn, its key, or among the dead."""
    session = await builders.session(store)
    asked = builders.ask(session, key="key", durable=True, options=OPTIONS)
    first = await builders.start(store, asked)
    await store.finish_if_held(first.hold, AttemptStatus.INTERRUPTED, None, [])
    standing = await builders.refused(store, asked)
    assert standing.prior is not None
    assert ask_of(standing.prior) == asked

    [durable] = await store.interrupted_asks(10, deaths_below=10)
    assert isinstance(durable, Interrupted)
    assert ask_of(durable.request) == asked
    again = ask_of(durable.request)
    second = await builders.start(
        store, again, turn=first.begin.turn, again=True, continues=first.hold.attempt
    )
    assert await store.read_request(TENANT, first.begin.turn) == durable.request

    assert (await store.commit_if_head(second.hold, second.plan(), [])).outcome is Committed.YES
    request = await store.read_request(TENANT, first.begin.turn)
    assert request == replace(durable.request, messages=None)


async def test_a_later_try_cannot_change_what_was_asked(store: Store) -> None:
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session, options=OPTIONS))
    await store.finish_if_held(first.hold, AttemptStatus.FAILED, None, [])
    other = builders.ask(session, options=FALSE)
    await builders.start(store, other, turn=first.begin.turn, again=True)
    request = await store.read_request(TENANT, first.begin.turn)
    assert request is not None
    assert request.options == OPTIONS


async def test_options_are_of_one_turn_and_not_of_the_next(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session, options=OPTIONS)
    second = await builders.start(store, builders.ask(session))
    request = await store.read_request(TENANT, second.begin.turn)
    assert request is not None
    assert request.options == CallOptions()
