"""Stories about sessions on runtimes: what a caller hears, what a cancel holds, and who may read a fork."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.attempts import Ask, AttemptStatus
from lastgood.model.events import TERMINAL, EventKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.rules import Setter
from lastgood.model.tokens import Scope
from tests.faults.probes import Stage, probe
from tests.faults.queue_probes import put, said, until_quiet
from tests.faults.work_probes import site_of
from tests.faults.world import AGENT
from tests.flows.work.site import Machine, Site

ANN = Setter(Scope.SESSION, "tok", "ann")


async def _bound(stage: Stage, **fields: Any) -> tuple[Site, Machine, SessionId]:
    site = site_of(stage)
    machine = await site.machine(**fields)
    await site.bind(machine)
    return site, machine, (await stage.node.sessions.create(DEFAULT_TENANT, AGENT, setter=ANN)).id


async def _submit(stage: Stage, session: SessionId, text: str) -> TurnHandle:
    ask = Ask(DEFAULT_TENANT, session, (user(text),), fingerprint=text, owner="ann")
    return await stage.node.submitter.submit(Submission(ask))


def _new(stage: Stage, session: SessionId, kind: QueueKind, text: str) -> NewQueued:
    return NewQueued(DEFAULT_TENANT, session, stage.node.deps.ids.turn(), kind, (user(text),))


@probe
async def a_turn_on_a_runtime_has_one_end(stage: Stage) -> None:
    """I24: a claim that is given back and claimed again is not the end of the turn."""
    site, machine, session = await _bound(stage)
    handle = await _submit(stage, session, "one")

    async def follow() -> list[EventKind]:
        return [event.kind async for event in handle.events() if event.kind in TERMINAL]

    following = asyncio.create_task(follow())
    await site.work.claims.give_back([await machine.claim()])
    await asyncio.sleep(5)
    await machine.complete(await machine.claim(), "done")
    async with asyncio.timeout(10):
        assert await following == [EventKind.TURN_COMMITTED], "a caller was told that its turn had failed"
        assert (await handle.outcome()).status is AttemptStatus.COMMITTED


@probe
async def a_steer_that_a_cancelled_run_has_not_taken_is_held(stage: Stage) -> None:
    _, machine, session = await _bound(stage, steerable=True)
    await _submit(stage, session, "one")
    await machine.claim()
    await stage.node.queue.put(_new(stage, session, QueueKind.STEER, "also"), "ann")
    await stage.node.turns.cancel(DEFAULT_TENANT, session)
    await until_quiet()
    assert await machine.claims() == (), "a cancel started the queue"


@probe
async def a_follow_up_that_is_handed_to_a_runtime_twice_runs_once(stage: Stage) -> None:
    """The process that hands it over dies before it has taken it from its own queue."""
    site, machine, session = await _bound(stage)
    new = _new(stage, session, QueueKind.FOLLOWUP, "later")
    item: Any = await stage.store.enqueue(new, most=5)
    await stage.node.turns.run_queued(replace(item, number=item.number + 1))
    await stage.other.queue.sweep()
    await until_quiet()
    while claims := await machine.claims():
        await machine.complete(claims[0], "done")
    assert await site.said(session) == ["later", "done"], "it ran twice, or was lost"


@probe
async def a_fork_is_as_private_as_its_source(stage: Stage) -> None:
    _, machine, session = await _bound(stage)
    await _submit(stage, session, "one")
    await machine.complete(await machine.claim(), "secret")
    fork = await stage.node.sessions.fork(DEFAULT_TENANT, session, setter=ANN)
    access = WorkAccess(stage.store)
    assert await access.hides(DEFAULT_TENANT, session, "bob"), "the session itself is not hidden"
    assert await access.hides(DEFAULT_TENANT, fork.id, "bob"), "its fork shows what the session hides"


@probe
async def after_a_cancel_follow_ups_of_this_server_wait_for_a_person(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    running = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 5\n!say one two", "tok1"))
    await asyncio.sleep(0.5)
    item = await put(stage.node, session, "later")
    await stage.node.turns.cancel(DEFAULT_TENANT, session)
    await running
    await until_quiet()
    assert await said(stage.node, session) == [], "a cancel started the queue"
    await stage.node.queue.retry(DEFAULT_TENANT, session, item.number)
    await until_quiet()
    assert await said(stage.node, session) == ["later"]
