"""The files of a session, wherever it goes on: they are there, restored, or their absence is disclosed."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.session_files import FILES_ELSEWHERE, FILES_OUTDATED, FILES_RESTORED
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask
from lastgood.model.ids import SessionId
from lastgood.model.messages import user
from lastgood.model.sessions import ScopeKind, TaskScope
from tests.flows.work.site import AGENT, Machine, Site

pytestmark = pytest.mark.anyio


async def in_session(machine: Machine, session: SessionId, prompt: str = "go on") -> Any:
    """A task of a session that already exists."""
    machine.site.scope = TaskScope(ScopeKind.CHAT, session)
    await machine.site.queue(prompt, runtime=machine.id)
    return await machine.claim()


async def with_files(machine: Machine, body: bytes = b"files") -> Any:
    """A turn whose files were saved."""
    await machine.site.queue("make a.txt", runtime=machine.id)
    sent = await machine.claim()
    await machine.site.work.reports.snapshot(machine.key(sent), "tar", {}, body)
    await machine.complete(sent, "I wrote a.txt", native_session="native-a", work_dir="/work/a")
    return sent


async def turn_here(site: Site, session: SessionId | None = None) -> SessionId:
    """A turn that ran on the server."""
    id = session or (await site.node.sessions.create(site.tenant, AGENT)).id
    ask = Ask(site.tenant, id, (user("make b.txt"),))
    await (await site.node.submitter.submit(Submission(ask))).outcome()
    assert (await site.turns(id))[-1].messages[-1].content
    return id


def files_of(sent: Any) -> list[str]:
    known = (FILES_ELSEWHERE, FILES_OUTDATED, FILES_RESTORED)
    return [one for one in sent.content["disclosures"] if one in known]


@pytest.mark.parametrize("worker", ["laptop", "server"])
async def test_a_fork_gets_the_files_of_the_turns_that_it_was_forked_with(site: Site, worker: str) -> None:
    a = await site.machine()
    first = await with_files(a)
    fork = await site.node.sessions.fork(site.tenant, first.claimed.session.id)
    await a.turn("delete a.txt", "deleted", "native-a", work_dir="/work/a")
    machine = a if worker == "laptop" else await site.machine(worker)
    sent = await in_session(machine, fork.id)
    assert sent.content["resume"]["decision"] == "replay"
    assert sent.content["snapshot"]["attempt"] == first.claimed.attempt.id
    assert files_of(sent) == [FILES_RESTORED]
    found = await site.work.reports.read_snapshot(machine.key(sent), first.claimed.attempt.id)
    assert found is not None
    assert found.body == b"files"


async def test_a_claim_reads_no_snapshot_of_turns_that_its_session_does_not_have(site: Site) -> None:
    a = await site.machine()
    await with_files(a)
    first = await with_files(a, b"secret")
    turns = await site.turns(first.claimed.session.id)
    fork = await site.node.sessions.fork(site.tenant, first.claimed.session.id, turns[0].id)
    sent = await in_session(a, fork.id)
    assert await site.work.reports.read_snapshot(a.key(sent), first.claimed.attempt.id) is None


async def test_a_fork_without_a_snapshot_says_that_its_files_are_elsewhere(site: Site) -> None:
    a = await site.machine()
    first = await a.turn("make a.txt", "I wrote a.txt", "native-a", work_dir="/work/a")
    fork = await site.node.sessions.fork(site.tenant, first.claimed.session.id)
    sent = await in_session(a, fork.id)
    assert (sent.content["work_dir"], sent.content["snapshot"]) == (None, None)
    assert files_of(sent) == [FILES_ELSEWHERE]


async def test_a_session_that_ran_on_the_server_says_that_its_files_are_elsewhere(site: Site) -> None:
    session = await turn_here(site)
    sent = await in_session(await site.machine(), session)
    assert sent.content["resume"]["decision"] == "replay"
    assert files_of(sent) == [FILES_ELSEWHERE]


async def test_back_on_its_runtime_a_session_misses_what_the_server_did_meanwhile(site: Site) -> None:
    a = await site.machine()
    await site.bind(a)
    first = await a.turn("make a.txt", "done", "native-a", work_dir="/work/a")
    session = first.claimed.session.id
    await site.work.runtimes.unbind(site.tenant, AGENT, "ann")
    await turn_here(site, session)
    back = await in_session(a, session)
    assert back.content["resume"]["native_session"] == "native-a"
    assert files_of(back) == [FILES_ELSEWHERE]
    await a.complete(back, "done", native_session="native-a", work_dir="/work/a")
    assert files_of(await in_session(a, session)) == []


async def test_files_of_an_earlier_turn_are_not_said_to_be_those_of_the_last_one(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await with_files(a)
    await a.turn("change it", "done", "native-a", work_dir="/work/a")
    await site.queue("go on", runtime=b.id)
    sent = await b.claim()
    assert sent.content["snapshot"] is not None
    assert files_of(sent) == [FILES_OUTDATED]


async def test_a_fresh_start_gets_no_note_about_files(site: Site) -> None:
    a = await site.machine()
    await a.turn("make a.txt", "I wrote a.txt", "native-a", work_dir="/work/a")
    await site.queue("start over", runtime=a.id, fresh=True)
    assert files_of(await a.claim()) == []
