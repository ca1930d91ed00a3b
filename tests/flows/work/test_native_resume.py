"""M4 on both stores: which native session a claim gets, from what was really stored."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.errors import StaleClaim
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask
from lastgood.model.events import ResumeChosen
from lastgood.model.runtimes import OnAgentChange, OnDirty, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope, TurnKind
from lastgood.model.tasks import Directive, PointerOutcome
from tests.flows.work.site import Machine, Site

pytestmark = pytest.mark.anyio

SCOPES = [TaskScope(ScopeKind.ISSUE, "42"), TaskScope(ScopeKind.CHAT, "c1")]


def resume(sent: Any) -> dict[str, Any]:
    found: dict[str, Any] = sent.content["resume"]
    return found


async def claimed(machine: Machine, prompt: str = "go on", **fields: Any) -> Any:
    await machine.site.queue(prompt, runtime=machine.id, **fields)
    return await machine.claim()


@pytest.mark.parametrize("scope", SCOPES, ids=["issue", "chat"])
async def test_M4_1_M4_6_another_runtime_gets_the_transcript_and_not_the_session(
    site: Site, scope: TaskScope
) -> None:
    site.scope = scope
    a, b = await site.machine(), await site.machine("server")
    await a.turn("remember 7", "I will", "native-a", work_dir="/a")
    sent = await claimed(b)
    assert resume(sent)["decision"] == "replay"
    assert "native_session" not in resume(sent)
    assert resume(sent)["rejected"] == [
        {"native_session": "native-a", "runtime_id": a.id, "reason": f"it belongs to runtime {a.id}"}
    ]
    assert resume(sent)["transcript"] == [
        {"role": "user", "content": "remember 7"},
        {"role": "assistant", "content": "I will"},
    ]


@pytest.mark.parametrize("scope", SCOPES, ids=["issue", "chat"])
async def test_M4_1_M4_6_the_same_runtime_resumes_its_session(site: Site, scope: TaskScope) -> None:
    site.scope = scope
    a = await site.machine()
    first = await a.turn("one", "1", "native-a")
    sent = await claimed(a)
    assert (resume(sent)["decision"], resume(sent)["native_session"]) == ("native", "native-a")
    assert "catch_up" not in resume(sent)
    assert sent.claimed.session.id == first.claimed.session.id


async def test_a_claim_reads_no_turn_that_this_node_has_committed(site: Site) -> None:
    a = await site.machine()
    hits = site.cluster.faults(site.node).hits
    before = hits["store.read_turns"]
    for number in range(4):
        await a.turn(f"{number}", "done", "native-a")
    assert hits["store.read_turns"] == before
    site.node.deps.histories._chains.clear()
    sent = await claimed(a)
    assert [line["content"] for line in resume(sent)["transcript"]][::2] == ["0", "1", "2", "3"]
    await a.complete(sent, "done")
    again = await claimed(a)
    assert hits["store.read_turns"] == before + 1, "a chain that was read grows, too"
    assert resume(again)["transcript"][:-2] == resume(sent)["transcript"]


async def test_M4_2_the_tasks_runtime_counts_and_not_the_agents(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await site.bind(a)
    await a.turn("one", "1", "native-a")
    await site.queue("two")  # for a, by the binding
    assert await site.bind(b, OnQueued.KEEP) == 0
    sent = await a.claim()
    assert resume(sent)["native_session"] == "native-a"
    assert await b.claims() == ()


async def test_a_binding_moves_queued_tasks_only_if_asked_to(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await site.bind(a)
    await a.turn("one", "1", "native-a")
    await site.queue("two")
    assert await site.bind(b, OnQueued.MOVE) == 1
    assert await a.claims() == ()
    assert resume(await b.claim())["decision"] == "replay"


async def test_M4_3_the_working_directory_is_kept_across_runtimes_of_one_machine(site: Site) -> None:
    claude, codex = await site.machine(), await site.machine(provider="codex")
    await claude.turn("one", "1", "native-a", work_dir="/work/42")
    sent = await claimed(codex)
    assert resume(sent)["decision"] == "replay"
    assert sent.content["work_dir"] == "/work/42"
    assert sent.content["work_dir_state"]["is_local"]
    assert sent.content["disclosures"] == []


async def test_files_on_another_machine_are_disclosed_or_restored(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await a.turn("one", "1", "native-a", work_dir="/work/42")
    sent = await claimed(b)
    assert sent.content["work_dir"] == "/work/42"
    assert sent.content["work_dir_state"]["is_local"] is False
    assert "on another machine" in sent.content["disclosures"][0]
    assert sent.content["snapshot"] is None
    await b.complete(sent, "2", native_session="native-b")
    await site.queue("two", runtime=a.id)
    second = await a.claim()
    await site.work.reports.snapshot(a.key(second), "tar", {"files": 1}, b"content")
    await a.complete(second, "3", native_session="native-a", work_dir="/work/42")
    third = await claimed(b)
    assert third.content["snapshot"] == {"attempt": second.claimed.attempt.id, "kind": "tar", "bytes": 7}
    assert "restored from a snapshot" in third.content["disclosures"][-1]
    found = await site.work.reports.read_snapshot(b.key(third), second.claimed.attempt.id)
    assert found is not None
    assert found.body == b"content"


async def test_back_on_its_machine_a_session_gets_the_files_of_the_turns_it_missed(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await site.queue("one", runtime=a.id)
    first = await a.claim()
    await site.work.reports.snapshot(a.key(first), "tar", {}, b"of a")
    await a.complete(first, "1", native_session="native-a", work_dir="/work/a")
    await b.turn("two", "2", "native-b", work_dir="/work/b")
    back = await claimed(a)
    assert resume(back)["native_session"] == "native-a"
    assert back.content["work_dir"] == "/work/a"
    assert back.content["work_dir_state"] == {"worker": "laptop", "is_local": True, "is_outdated": True}
    assert back.content["snapshot"] is None  # that of its own turn is older than its directory
    assert "could not be transferred" in back.content["disclosures"][-1]
    await site.work.tasks.cancel(site.tenant, back.claimed.task.id, "ann")
    await site.queue("three", runtime=b.id)
    third = await b.claim()
    await site.work.reports.snapshot(b.key(third), "tar", {}, b"of b")
    await b.complete(third, "3", native_session="native-b", work_dir="/work/b")
    back = await claimed(a)
    assert back.content["snapshot"]["attempt"] == third.claimed.attempt.id
    assert "restored from a snapshot" in back.content["disclosures"][-1]


async def test_M4_4_a_pointer_is_one_row_of_one_attempt(site: Site) -> None:
    a = await site.machine()
    sent = await a.turn("one", "1", "native-a", work_dir="/w")
    (pointer,) = await site.pointers(sent.claimed.session.id)
    turn = (await site.turns(sent.claimed.session.id))[0]
    assert pointer.attempt == sent.claimed.attempt.id
    assert (pointer.native_session, pointer.work_dir, pointer.worker) == ("native-a", "/w", "laptop")
    assert pointer.runtime == a.runtime.identity
    assert (pointer.through, pointer.outcome, pointer.is_dirty) == (turn.id, PointerOutcome.COMMITTED, False)
    assert pointer.agent_digest == turn.agent_digest != ""


async def test_M4_5_a_stale_pointer_beside_a_newer_one_of_another_runtime_is_not_resumed(site: Site) -> None:
    """A chat pointer without a runtime, as an import leaves it."""
    a, b = await site.machine(), await site.machine("server")
    sent = await a.turn("one", "1", "stale")
    await site.cluster.backend.execute("UPDATE pointers SET runtime_id = NULL")
    await b.turn("two", "2", "native-b")
    on_b = await claimed(b)
    assert resume(on_b)["native_session"] == "native-b"
    await b.complete(on_b, "3", native_session="native-b")
    on_a = await claimed(a)
    assert resume(on_a)["decision"] == "replay"
    reasons = {one["native_session"]: one["reason"] for one in resume(on_a)["rejected"]}
    assert reasons["stale"] == "it was recorded without a runtime"
    assert len(await site.turns(sent.claimed.session.id)) == 3


async def test_a_to_b_to_a_resumes_the_session_of_a_with_the_missed_turns(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await a.turn("on a", "1", "native-a")
    await b.turn("on b", "2", "native-b")
    sent = await claimed(a)
    assert (resume(sent)["decision"], resume(sent)["native_session"]) == ("native", "native-a")
    assert resume(sent)["catch_up"] == [
        {"role": "user", "content": "on b"},
        {"role": "assistant", "content": "2"},
    ]
    assert "newest turns" in sent.content["disclosures"][0]


async def test_I28_a_failed_prompt_inside_a_session_is_disclosed(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    sent = await claimed(a, "two")
    await a.fail(sent, "timeout", native_session="native-a")
    again = await claimed(a, "three")
    assert resume(again)["native_session"] == "native-a"
    assert "not committed" in again.content["disclosures"][0]
    assert "catch_up" not in resume(again)


async def test_a_binding_replays_into_a_new_session_after_a_failed_prompt(site: Site) -> None:
    a = await site.machine()
    await site.bind(a, on_dirty=OnDirty.REPLAY)
    await a.turn("one", "1", "native-a")
    await a.fail(await claimed(a, "two"), "timeout", native_session="native-a")
    again = await claimed(a, "three")
    assert resume(again)["decision"] == "replay"
    assert "not committed" in resume(again)["reason"]


@pytest.mark.parametrize("policy", OnAgentChange)
async def test_a_binding_says_what_becomes_of_sessions_of_a_changed_agent(
    site: Site, policy: OnAgentChange
) -> None:
    a = await site.machine()
    await site.bind(a, on_agent_change=policy)
    session = (await a.turn("one", "1", "native-a", work_dir="/a")).claimed.session.id
    await site.cluster.backend.execute("UPDATE pointers SET agent_digest = 'older'")
    explained = await site.work.explainer.explain(site.tenant, session, "ann")
    sent = await claimed(a, "two")
    found = resume(sent)
    assert explained.decision["decision"] == found["decision"]
    match policy:
        case OnAgentChange.DISCLOSE:
            assert found["native_session"] == "native-a"
            assert "definition has changed" in sent.content["disclosures"][0]
        case OnAgentChange.REPLAY:
            assert (found["decision"], len(found["transcript"])) == ("replay", 2)
        case OnAgentChange.FRESH:
            assert (found["decision"], sent.content["work_dir"]) == ("fresh", None)
            assert "transcript" not in found
    await a.complete(sent, "2", native_session="native-b")
    assert resume(await claimed(a, "three"))["native_session"] == "native-b", "it is of this definition"


async def test_I34_the_policy_of_a_binding_is_not_for_runtimes_of_others(site: Site) -> None:
    anns, bobs = await site.machine(), await site.machine("theirs", owner="bob")
    second = await site.machine("desk")
    await site.bind(anns, on_dirty=OnDirty.REPLAY)
    for machine, user, native in ((bobs, "bob", "native"), (second, "ann", None)):
        scope = TaskScope(ScopeKind.ISSUE, f"of {user}")
        await site.queue("one", runtime=machine.id, user=user, scope=scope)
        await machine.fail(await machine.claim(), "cli_protocol", native_session="native")
        await site.queue("two", runtime=machine.id, user=user, scope=scope)
        assert resume(await machine.claim()).get("native_session") == native


async def test_I29_two_failed_resumes_retire_a_session_whatever_the_error_says(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    for _ in range(2):
        sent = await claimed(a)
        assert resume(sent)["native_session"] == "native-a"
        await a.fail(sent, "something_new", resume_failed=True, tool_calls=1)
    sent = await claimed(a)
    assert resume(sent)["decision"] == "replay"
    assert "2 times in a row" in resume(sent)["rejected"][0]["reason"]


async def test_I29_rate_limits_and_runs_that_never_started_do_not_count(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    for code in ("rate_limited", "not_started", "rate_limited"):
        sent = await claimed(a)
        assert resume(sent)["native_session"] == "native-a"
        await a.fail(sent, code, native_session="native-a")
        await site.cancel(sent.claimed.task.id)
    assert resume(await claimed(a))["native_session"] == "native-a"


async def test_a_retired_session_is_not_resumed(site: Site) -> None:
    a = await site.machine()
    first = await a.turn("one", "1", "native-a")
    session = first.claimed.session.id
    assert await site.work.tasks.retire(site.tenant, session, "native-a", None, "ann") == 1
    sent = await claimed(a)
    assert resume(sent)["rejected"][0]["reason"] == "it was retired: by ann"


async def test_a_worker_retires_what_it_found_unusable(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    sent = await claimed(a)
    await a.complete(
        sent, "2", native_session="native-2", retired_session="native-a", disclosure="it was gone"
    )
    assert resume(await claimed(a))["native_session"] == "native-2"


async def test_fresh_means_neither_session_nor_directory_and_a_retry_inherits_it(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a", work_dir="/w")
    sent = await claimed(a, fresh=True, note="start over")
    assert (resume(sent)["decision"], sent.content["work_dir"]) == ("fresh", None)
    assert sent.content["prompt"] == "start over\n\ngo on"
    await a.fail(sent, "model_error", native_session="native-2", work_dir="/w2")
    await site.cluster.backend.execute("UPDATE tasks SET due_at = 0 WHERE due_at IS NOT NULL")
    again = await a.claim()
    assert again.claimed.task.id == sent.claimed.task.id
    assert (resume(again)["decision"], again.content["work_dir"]) == ("fresh", None)
    assert again.content["prompt"] == "start over\n\ngo on"


async def test_a_rerun_uses_its_exact_source(site: Site) -> None:
    a = await site.machine()
    first = await a.turn("one", "1", "native-1", work_dir="/w1")
    await a.turn("two", "2", "native-2", work_dir="/w2")
    source = (await site.task(first.claimed.task.id)).task
    queued = await site.work.tasks.rerun(
        site.new_task("", directive=Directive(rerun_of=source.id), fingerprint="again"), source
    )
    sent = await a.claim()
    assert sent.claimed.task.id == queued.task.id
    assert sent.content["prompt"] == "one"
    assert (resume(sent)["native_session"], sent.content["work_dir"]) == ("native-1", "/w1")


async def test_a_removed_runtime_finds_its_sessions_when_it_registers_again(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    await site.work.runtimes.remove(site.tenant, a.id, "ann", is_admin=False)
    again = await site.machine(instance="two")
    assert again.id == a.id
    assert resume(await claimed(again))["native_session"] == "native-a"


async def test_another_account_is_another_runtime(site: Site) -> None:
    a, other = await site.machine(account="ann@a"), await site.machine(account="ann@b", instance="one")
    assert a.id != other.id
    await a.turn("one", "1", "native-a")
    assert resume(await claimed(other))["decision"] == "replay"


async def test_a_reset_leaves_native_sessions_behind(site: Site) -> None:
    a = await site.machine()
    first = await a.turn("one", "1", "native-a")
    reset = await site.node.submitter.submit(
        Submission(Ask(site.tenant, first.claimed.session.id, (), kind=TurnKind.RESET))
    )
    await reset.outcome()
    sent = await claimed(a)
    assert resume(sent)["decision"] == "fresh"
    assert "not part of this history" in resume(sent)["rejected"][0]["reason"]


async def test_I26_the_decision_is_stored_before_it_is_sent(site: Site) -> None:
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    sent = await claimed(a)
    task = (await site.task(sent.claimed.task.id)).task
    attempt = await site.store.get_attempt(site.tenant, sent.claimed.attempt.id)
    for stored in (task.decision, attempt.decision):
        assert stored["decision"] == "native"
        assert stored["native_session"] == "native-a"
    (decided,) = [
        one.data
        for one in await site.events(sent.claimed.session.id)
        if isinstance(one.data, ResumeChosen) and one.attempt == attempt.id
    ]
    assert decided.record["reason"] == resume(sent)["reason"]


async def test_explain_returns_the_decision_of_a_claim_and_writes_nothing(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await site.bind(a)
    first = await a.turn("one", "1", "native-a")
    session = first.claimed.session.id
    here = await site.work.explainer.explain(site.tenant, session, "ann")
    there = await site.work.explainer.explain(site.tenant, session, "ann", if_moved_to=b.id)
    assert (here.runtime.id, here.decision["decision"]) == (a.id, "native")
    assert (there.runtime.id, there.decision["decision"]) == (b.id, "replay")
    assert len(await site.attempts(session)) == 1


@pytest.mark.parametrize("report", ["complete", "fail"])
async def test_a_report_after_a_cancel_keeps_its_native_session(site: Site, report: str) -> None:
    """The CLI was still starting when somebody cancelled, so it was never pinned. It holds a prompt."""
    a = await site.machine()
    await a.turn("one", "1", None, work_dir="/w")
    sent = await claimed(a, "two")
    await site.cancel(sent.claimed.task.id)
    known = {"native_session": "native-a", "work_dir": "/w"}
    for _ in range(2):  # its answer was lost
        with pytest.raises(StaleClaim):
            await (a.complete(sent, "2", **known) if report == "complete" else a.fail(sent, **known))
    pointer = (await site.pointers(sent.claimed.session.id))[-1]
    assert (pointer.attempt, pointer.native_session) == (sent.claimed.attempt.id, "native-a")
    assert (pointer.outcome, pointer.is_dirty, pointer.through) == (PointerOutcome.UNCOUNTED, True, None)
    again = await claimed(a, "three")
    assert resume(again)["native_session"] == "native-a"
    assert "not committed" in "".join(again.content["disclosures"])


async def test_a_late_report_does_not_replace_what_newer_attempts_have_reported(site: Site) -> None:
    a = await site.machine()
    sent = await claimed(a, "one")
    await site.cancel(sent.claimed.task.id)
    await a.turn("two", "2", "native-b")
    with pytest.raises(StaleClaim):
        await a.complete(sent, "1", native_session="native-a")
    session = sent.claimed.session.id
    assert [one.native_session for one in await site.pointers(session)] == ["native-b"]
    assert (await site.task(sent.claimed.task.id)).task.late_output == "1"
