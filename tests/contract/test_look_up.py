"""Looking an ask up: what a begin would meet, told without writing anything."""

from dataclasses import replace

import pytest

from lastgood.core.admission import Admitted, Attach, Busy, Replay, admit
from lastgood.model.attempts import AttemptStatus, BeginConflict, Committed, OnLeave
from lastgood.model.ids import SessionId
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


async def test_a_look_at_a_free_session_writes_nothing_and_takes_nothing(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    asked = builders.ask(session, key="key", fingerprint="print")
    before = await dump(backend)
    assert await store.look_up(asked) == BeginConflict(await builders.again(store, session))
    assert await dump(backend) == before
    await builders.start(store, asked)


async def test_I35_a_look_does_not_see_the_sessions_or_keys_of_another_tenant(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session, key="key")
    asked = builders.ask(session, key="key")
    assert await store.look_up(replace(asked, session=SessionId("unknown"))) == BeginConflict(None)
    assert await store.look_up(replace(asked, tenant=STRANGER)) == BeginConflict(None)
    theirs = builders.ask(await builders.session(store, STRANGER), key="key")
    assert (await store.look_up(theirs)).prior is None


async def test_I20_a_look_finds_what_became_of_a_key(store: Store) -> None:
    session = await builders.session(store)
    asked = builders.ask(session, key="key", fingerprint="print")
    first = await builders.start(store, asked)
    attempt = await store.get_attempt(TENANT, first.hold.attempt)
    assert attempt is not None
    assert admit(asked, await store.look_up(asked)) == Attach(attempt)
    assert admit(builders.ask(session), await store.look_up(builders.ask(session))) == Busy(attempt)

    await store.finish_if_held(first.hold, AttemptStatus.FAILED, None, [])
    assert admit(asked, await store.look_up(asked)) == Admitted(first.begin.turn)

    second = await builders.start(store, asked, turn=first.begin.turn, again=True)
    assert (await store.commit_if_head(second.hold, second.plan(), [])).outcome is Committed.YES
    standing = await store.look_up(asked)
    assert standing.prior == await store.read_request(TENANT, first.begin.turn)
    assert isinstance(admit(asked, standing), Replay)


@pytest.mark.parametrize("how", [{}, {"key": "key"}, {"is_retry": True}], ids=str)
async def test_a_look_up_returns_the_conflict_of_a_losing_begin(store: Store, how: dict[str, object]) -> None:
    body = {"fingerprint": "print", "caller": "caller", "on_leave": OnLeave.ORPHAN}
    session = await builders.session(store)
    key = how.get("key")
    await builders.start(store, builders.ask(session, **body, key=key))
    asked = builders.ask(session, **body, **how)
    standing = await store.look_up(asked)
    assert standing == await builders.refused(store, asked)
    assert standing.holder is not None
    assert (standing.prior is not None) == bool(how)
