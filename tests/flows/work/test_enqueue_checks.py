"""What is refused before a task is queued: permissions that its runtime cannot enforce, and folders."""

from __future__ import annotations

import pytest

from lastgood.errors import Conflict, InvalidRequest, RuntimeNotFound, Unenforceable
from lastgood.model.attempts import Ask
from lastgood.model.messages import user
from lastgood.model.runtimes import Enforcement
from lastgood.model.sessions import ScopeKind, TaskScope
from tests.flows.work.site import AGENT, Site

pytestmark = pytest.mark.anyio

FOLDER = "/home/ann/project"  # on her laptop


async def test_permissions_that_a_runtime_cannot_enforce_are_rejected_with_a_reason(site: Site) -> None:
    machine = await site.machine(provider="command", enforces=Enforcement.NONE)
    with pytest.raises(Unenforceable, match=r"laptop-command .* cannot enforce the safety mode") as refused:
        await site.queue("do it", runtime=machine.id)
    assert refused.value.detail == {"runtime": machine.id}
    assert await machine.claims() == ()
    for enforces in (Enforcement.ALL, Enforcement.UNKNOWN):
        able = await site.machine(f"other{enforces}", enforces=enforces)
        await site.queue("do it", runtime=able.id)


async def test_I38_a_folder_of_a_new_scope_is_for_the_worker_to_judge(site: Site) -> None:
    machine = await site.machine()
    await site.queue("one", runtime=machine.id, working_dir=FOLDER)
    sent = await machine.claim()
    assert sent.content["folder"] == FOLDER
    await machine.complete(sent)
    await site.queue("two", runtime=machine.id)  # the scope has it
    await site.queue("three", runtime=machine.id, working_dir=FOLDER)
    with pytest.raises(Conflict, match="use another scope"):
        await site.queue("four", runtime=machine.id, working_dir="/home/ann/other")
    scope = TaskScope(ScopeKind.ISSUE, "43")
    with pytest.raises(InvalidRequest, match="absolute path on the machine of the runtime"):
        await site.queue("five", runtime=machine.id, working_dir="../up", scope=scope)


async def test_I38_a_folder_that_only_a_worker_has_judged_is_not_used_here(site: Site) -> None:
    """Otherwise whoever may use a runtime could name a folder of the server's and go there."""
    machine = await site.machine()
    await site.bind(machine)
    chosen = await site.node.submitter.tasks.runtime_for(site.tenant, "ann", AGENT, None)
    assert chosen == machine.id
    session = await site.node.sessions.create(site.tenant, AGENT, working_dir=FOLDER, runtime=chosen)
    assert (session.working_dir, session.runtime_id, session.runtime_pinned) == (FOLDER, machine.id, False)
    await site.work.runtimes.unbind(site.tenant, AGENT, "ann")
    fork = await site.node.sessions.fork(site.tenant, session.id, None)
    for one in (session.id, fork.id):
        ask = Ask(site.tenant, one, (user("list the files"),))
        with pytest.raises(Conflict, match="is on the machine of runtime"):
            await site.node.submitter.starter.plan(ask, await site.session(one))


async def test_a_session_may_name_only_a_runtime_of_its_user(site: Site) -> None:
    machine = await site.machine()
    runtime_for = site.node.submitter.tasks.runtime_for
    assert await runtime_for(site.tenant, "ann", AGENT, machine.id) == machine.id
    with pytest.raises(RuntimeNotFound):
        await runtime_for(site.tenant, "bea", AGENT, machine.id)
    assert await runtime_for(site.tenant, "ann", AGENT, None) is None
    assert await runtime_for(site.tenant, "ann", "unknown", None) is None
