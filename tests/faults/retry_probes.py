"""Stories about retries: which turn they mean, what runs again, and what a client is told about it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask, AttemptStatus, OnLeave
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import user
from tests.faults.faults import Mode
from tests.faults.probes import Stage, probe

FAILS_ONCE = '\n!tool ledger-fail {"text": "a"}\n!say done\n!fail before 1'


def effects(stage: Stage) -> list[str]:
    return [line["text"] for line in stage.world.ledger]


@probe
async def a_keyed_retry_runs_no_finished_tool_again(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    failed = await stage.world.ask(stage.node, session, FAILS_ONCE, "tok1", key="k")
    assert failed.outcome == "failed"
    again = await stage.world.ask(stage.other, session, FAILS_ONCE, "tok1", key="k")
    assert again.outcome == "committed", f"the retry ended {again.outcome}"
    assert effects(stage) == ["a"], f"outside effects: {effects(stage)}"


@probe
async def an_sdk_retry_runs_no_finished_tool_again(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    ask = stage.world.ask
    await ask(stage.node, session, FAILS_ONCE, "tok1", on_leave=OnLeave.ORPHAN)
    again = await ask(stage.other, session, FAILS_ONCE, "tok1", on_leave=OnLeave.ORPHAN, is_retry=True)
    assert again.outcome == "committed", f"the retry ended {again.outcome}"
    assert effects(stage) == ["a"], f"outside effects: {effects(stage)}"


@probe
async def a_retry_means_its_own_turn_whatever_was_committed_since(stage: Stage) -> None:
    """I21: its answer was lost, and somebody else was faster than the retry."""
    session = await stage.world.create(stage.node)
    ask = stage.world.ask
    first = await ask(stage.node, session, "hello", "tok1", on_leave=OnLeave.ORPHAN)
    await ask(stage.node, session, "in between", "tok2", on_leave=OnLeave.ORPHAN)
    again = await ask(stage.other, session, "hello", "tok1", on_leave=OnLeave.ORPHAN, is_retry=True)
    assert again.turn == first.turn, "a retry was committed twice"


@probe
async def a_retry_of_a_refused_request_gets_no_older_answer(stage: Stage) -> None:
    """I21: the same word is said again, refused, and sent again by the SDK."""
    session = await stage.world.create(stage.node)
    sent = Ask(
        DEFAULT_TENANT,
        session,
        (user("yes"),),
        fingerprint="yes",
        caller="sdk",
        on_leave=OnLeave.ORPHAN,
    )
    first = await (await stage.node.submitter.submit(Submission(sent))).outcome()
    await stage.store.close_requests(DEFAULT_TENANT, session, fingerprint="yes", caller="sdk")
    retried = replace(sent, is_retry=True)
    second = await (await stage.other.submitter.submit(Submission(retried))).outcome()
    assert first.turn is not None
    assert second.turn is not None
    assert second.turn.id != first.turn.id, "what the user said was lost"


@probe
async def a_failed_turn_reports_whether_its_tools_may_run_again(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    for tool, expected in (("ledger-fail", True), ("ledger-repeat", False)):
        text = f'tok {tool}\n!tool {tool} {{"text": "a"}}\n!say done\n!fail before'
        submitted = await stage.node.submitter.submit(Submission(Ask(DEFAULT_TENANT, session, (user(text),))))
        outcome = await submitted.outcome()
        assert outcome.status is AttemptStatus.FAILED
        assert outcome.has_effects is expected, f"after {tool}, a client is told the wrong thing"


@probe
async def a_commit_waits_for_what_its_client_did_before(stage: Stage) -> None:
    """I21: the client leaves, and the write that says so is slow. An orphan does not commit."""
    session = await stage.world.create(stage.node)
    left, written = asyncio.Event(), asyncio.Event()

    async def slow(point: str) -> Mode | None:
        if point == "store.set_orphaned" and not left.is_set():
            left.set()
            await asyncio.sleep(1)
            written.set()
        if point == "store.journal_if_held":
            await left.wait()
        if point == "store.commit_if_head":
            assert written.is_set(), "a commit overtook that its client had left"
        return None

    stage.faults.jitter = slow
    sent = Ask(DEFAULT_TENANT, session, (user("hello"),), on_leave=OnLeave.ORPHAN)
    handle = await stage.node.submitter.submit(Submission(sent))
    await handle.leave()
    outcome = await handle.outcome()
    assert outcome.status is AttemptStatus.CANCELLED, "an orphan was committed"
