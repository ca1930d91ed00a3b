"""A worker process against a server that misbehaves: what it reports, what it keeps, and what it stops."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.command import until
from tests.worker.live_worker import LiveWorker, is_alive, is_halted
from tests.worker.work_api import WorkApi


def test_a_task_is_started_run_and_completed(api: WorkApi, worker: LiveWorker) -> None:
    task = api.queue("say:hello write:a.txt=1 tool:edit")
    done = api.until_called("complete", task)
    assert done["output"] == "hello"
    assert done["usage"] == {"input_tokens": 3, "output_tokens": 5, "cost": 0.25}
    assert done["native_session"]
    assert (Path(done["work_dir"]) / "a.txt").read_text() == "1\n"
    names = [path.split("/")[-1] for path, _ in api.calls if f"/{task}/" in path]
    assert names[0] == "start"
    assert names.index("snapshot") < names.index("complete")
    messages = [one for body in api.of("messages", task) for one in body["messages"]]
    assert [(one["seq"], one["type"]) for one in messages] == [(1, "text"), (2, "tool_use")]
    assert api.until_called("session", task)["native_session"] == done["native_session"]
    until(lambda: not worker.outbox())


def test_slots_limit_what_runs_at_once(tmp_path: Path, api: WorkApi) -> None:
    with LiveWorker(tmp_path / "two", api.url, "--slots", "2") as worker:
        gate = tmp_path / "gate"
        for _ in range(3):
            api.queue(f"until:{gate}")
        worker.until_job(2)
        assert len(api.queued) == 1
        gate.touch()
        api.until_called("complete", times=3)


def test_the_cli_sees_what_is_passed_and_reports_do_not(tmp_path: Path, api: WorkApi) -> None:
    env = {"MY_SECRET": "canary-99-value", "OTHER_KEY": "hidden-7-value"}
    with LiveWorker(tmp_path / "env", api.url, "--pass-env", "MY_SECRET", env=env) as worker:
        task = api.queue("env:MY_SECRET env:OTHER_KEY say:canary-99-value write:notes=canary-99-value")
        done = api.until_called("complete", task)
        assert done["output"].split() == ["[redacted]", "unset", "[redacted]"]
        assert worker.jobs()[0]["env"]["MY_SECRET"] == "canary-99-value"
        assert not [name for name in worker.jobs()[0]["env"] if name.startswith("LASTGOOD_")]
    assert "canary-99-value" not in repr(api.calls)


def test_the_cli_gets_the_token_of_its_task_which_leaves_the_machine_in_no_report(
    api: WorkApi, worker: LiveWorker
) -> None:
    token = "lgt_" + "a1-_" * 10 + "xyz"
    task = api.queue(f"env:LASTGOOD_TOKEN say:{token} write:notes={token}", task_token=token)
    assert api.until_called("complete", task)["output"].split() == ["[redacted]", "[redacted]"]
    env = worker.jobs()[0]["env"]
    assert (env["LASTGOOD_SERVER"], env["LASTGOOD_TOKEN"]) == (api.url, token)
    assert (env["LASTGOOD_TASK"], env["LASTGOOD_SESSION"]) == (task, "ses_1")
    assert token not in repr(api.calls)
    left_out = api.of("snapshot", task)[0]["summary"]["left_out"]
    assert [one["path"] for one in left_out] == ["notes"]


def test_a_failure_names_its_class(api: WorkApi, worker: LiveWorker) -> None:
    failed = api.until_called("fail", api.queue("tool:edit fail:model_error"))
    assert (failed["code"], failed["tool_calls"]) == ("model_error", 1)
    crashed = api.until_called("fail", api.queue("crash"))
    assert crashed["code"] == "cli_failed"


def test_an_agent_that_the_ceiling_forbids_is_refused(tmp_path: Path, api: WorkApi) -> None:
    with LiveWorker(tmp_path / "low", api.url, "--max-safety", "balanced") as worker:
        failed = api.until_called("fail", api.queue("say:hello"))
        assert failed["code"] == "unenforceable"
        assert worker.jobs() == []


# --- reports survive ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", 500])
def test_a_report_whose_answer_is_lost_is_repeated_also_after_kill_9(
    api: WorkApi, worker: LiveWorker, fault: int | str
) -> None:
    api.faults["complete"] = fault
    task = api.queue("say:hello")
    first = api.until_called("complete", task)
    worker.kill()
    assert len(worker.outbox()) >= 1
    before = len(api.calls)
    api.faults.clear()
    worker.start()
    api.until_called("claim", times=len(api.of("claim")) + 1)
    until(lambda: not worker.outbox())
    after = [path.split("/")[-1] for path, _ in api.calls[before:]]
    assert after.index("complete") < after.index("claim"), "reports come before claims"
    assert api.of("complete", task)[-1] == first
    assert len(worker.jobs()) == 1


def test_nothing_is_claimed_before_old_reports_are_delivered(api: WorkApi, worker: LiveWorker) -> None:
    api.faults["complete"] = "drop"
    task = api.queue("say:hello")
    api.until_called("complete", task)
    worker.kill()
    before = len(api.calls)
    api.faults["complete"] = "hold"
    worker.start()
    until(lambda: {"complete", "heartbeat"} <= {path.split("/")[-1] for path, _ in api.calls[before:]})
    assert "claim" not in [path for path, _ in api.calls[before:]]
    api.faults.clear()
    until(lambda: "claim" in [path for path, _ in api.calls[before:]])


def test_one_report_that_the_server_cannot_process_does_not_stop_the_worker(
    api: WorkApi, worker: LiveWorker
) -> None:
    api.faults["complete"] = 500
    api.until_called("complete", api.queue("say:hello"))
    worker.kill()
    worker.start()
    failed = api.until_called("fail", api.queue("fail:model_error"))
    assert failed["code"] == "model_error"
    assert len(worker.outbox()) == 1


def test_a_report_of_a_task_that_was_taken_away_is_not_repeated(api: WorkApi, worker: LiveWorker) -> None:
    api.faults["complete"] = 409
    api.until_called("complete", api.queue("say:hello"))
    until(lambda: not worker.outbox())
    api.faults.clear()
    api.until_called("complete", api.queue("say:again"))


def test_a_result_that_the_server_refuses_is_kept_and_the_task_fails(
    api: WorkApi, worker: LiveWorker
) -> None:
    api.faults["complete"] = 400
    failed = api.until_called("fail", api.queue("say:hello"))
    assert "refused the result" in failed["error"]
    until(lambda: len(list((worker.root / "outbox").glob("*.refused"))) == 1)


def test_a_server_that_is_away_for_a_while_costs_nothing(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = api.queue(f"say:one until:{gate} say:two")
    worker.until_job()
    for name in ("heartbeat", "messages", "session", "snapshot", "complete", "claim"):
        api.faults[name] = "drop"
    gate.touch()
    until(lambda: len(worker.outbox()) == 2)
    api.faults.clear()
    assert api.until_called("complete", task)
    until(lambda: not worker.outbox())
    assert api.of("complete", task)[-1]["output"] == "one two"


# --- somebody else decides ----------------------------------------------------------------------------------


def test_a_cancel_ends_the_whole_group_and_is_acknowledged(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    task = api.queue(f"say:hello tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    api.faults["fail"] = "cancelled"
    api.beat = {"cancel": [task], "lost": [task]}
    api.until_called("cancel-ack", task)
    assert not is_alive(pid)
    assert not api.of("complete", task)
    assert "hello" in api.of("fail", task)[0]["error"]
    until(lambda: not worker.outbox())
    assert len(api.of("cancel-ack", task)) == 1


def test_a_refused_call_of_a_cancelled_task_gives_the_cli_its_grace_and_is_acknowledged(
    api: WorkApi, worker: LiveWorker
) -> None:
    task = api.queue("polite repeat")
    worker.until_job()
    for name in ("messages", "fail"):
        api.faults[name] = "cancelled"
    api.until_called("cancel-ack", task)
    assert "ended politely" in worker.notes()
    until(lambda: not worker.outbox())
    assert len(api.of("cancel-ack", task)) == 1


def test_a_cancel_that_comes_after_the_end_of_the_run_is_acknowledged(
    api: WorkApi, worker: LiveWorker
) -> None:
    api.faults["complete"] = "cancelled"
    task = api.queue("say:hello")
    api.until_called("cancel-ack", task)
    until(lambda: not worker.outbox())


def test_a_stale_claim_ends_the_run_at_its_next_call(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    api.faults["messages"] = 409
    task = api.queue(f"stubborn say:hello tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    assert api.until_called("fail", task)["code"] == "lease_lost"
    assert not is_alive(pid)


def test_a_revoked_token_stops_the_clis_and_keeps_the_reports(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    task = api.queue(f"say:hello tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    for name in ("heartbeat", "claim", "messages", "complete", "fail", "snapshot", "register"):
        api.faults[name] = 401
    api.queue("say:more")
    assert worker.wait() == 1
    assert not is_alive(pid)
    assert worker.outbox()
    assert "lastgood worker enroll" in worker.log
    worker.start()
    assert worker.wait() == 1
    assert worker.outbox(), "still kept"
    api.faults.clear()
    worker.start()
    assert api.until_called("fail", task)["code"] == "worker_stopped"


def test_a_replaced_worker_finishes_reports_and_exits(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = api.queue(f"until:{gate} say:done")
    worker.until_job()
    api.beat = {"replaced": True}
    worker.until_logged("has taken over")
    api.queue("say:unwanted")
    gate.touch()
    assert worker.wait() == 1
    assert api.of("complete", task)
    assert len(worker.jobs()) == 1


def test_two_processes_on_one_root_are_refused(api: WorkApi, worker: LiveWorker) -> None:
    api.until_called("claim")
    with LiveWorker(worker.folder, api.url) as second:
        second_process = second.process
        assert second_process is not None
        assert second_process.wait(60) == 2
    assert "another worker uses" in worker.log


# --- stopping and sleeping ----------------------------------------------------------------------------------


def test_sigterm_lets_running_tasks_finish(api: WorkApi, worker: LiveWorker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    task = api.queue(f"until:{gate} say:finished")
    worker.until_job()
    worker.send(signal.SIGTERM)
    worker.until_logged("draining")
    api.queue("say:unwanted")
    gate.touch()
    assert worker.wait() == 0
    assert api.of("complete", task)[0]["output"] == "finished"
    assert api.of("deregister")
    assert len(worker.jobs()) == 1


def test_what_does_not_finish_in_time_is_reported_for_another_try(tmp_path: Path, api: WorkApi) -> None:
    with LiveWorker(tmp_path / "brief", api.url, "--drain-grace", "0.2s") as worker:
        task = api.queue(f"tick:{tmp_path / 'never'}")
        pid = worker.until_job()["pid"]
        assert worker.stop() == 0
        assert not is_alive(pid)
        assert api.of("fail", task)[0]["code"] == "worker_stopped"


def test_a_second_signal_stops_at_once(api: WorkApi, worker: LiveWorker, tmp_path: Path) -> None:
    api.queue(f"stubborn tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    worker.send(signal.SIGTERM)
    worker.until_logged("draining")
    worker.send(signal.SIGTERM)
    worker.wait()
    assert not is_alive(pid)


def test_a_worker_that_wakes_up_past_its_lease_halts_until_a_heartbeat_confirms(tmp_path: Path) -> None:
    with WorkApi(lease_seconds=5) as api, LiveWorker(tmp_path / "w", api.url) as worker:
        gate = tmp_path / "gate"
        task = api.queue(f"tick:{gate} say:done")
        pid = worker.until_job()["pid"]
        api.until_called("heartbeat")
        _sleep_past_the_lease(worker, api)
        until(lambda: is_halted(pid))
        ticks = len(worker.notes())
        beats = len(api.of("heartbeat"))
        until(lambda: len(api.of("heartbeat")) > beats)
        assert (is_halted(pid), len(worker.notes())) == (True, ticks)
        api.faults.clear()
        until(lambda: len(worker.notes()) > ticks)
        gate.touch()
        assert api.until_called("complete", task)["output"] == "done"


def test_a_claim_that_was_lost_in_the_sleep_has_no_further_effect(tmp_path: Path) -> None:
    with WorkApi(lease_seconds=5) as api, LiveWorker(tmp_path / "w", api.url) as worker:
        task = api.queue(f"stubborn say:hello tick:{tmp_path / 'never'}")
        pid = worker.until_job()["pid"]
        api.until_called("heartbeat")
        _sleep_past_the_lease(worker, api)
        until(lambda: is_halted(pid))
        ticks = len(worker.notes())
        api.beat = {"lost": [task]}
        api.faults.clear()
        failed = api.until_called("fail", task)
        assert failed["code"] == "lease_lost"
        assert "hello" in failed["error"]
        assert not is_alive(pid)
        assert len(worker.notes()) == ticks
        assert not api.of("complete", task)


def _sleep_past_the_lease(worker: LiveWorker, api: WorkApi) -> None:
    """The heartbeats fail afterwards, until the test allows them."""
    worker.send(signal.SIGSTOP)
    time.sleep(11)  # real time: longer than two of its heartbeats and its lease
    api.faults |= {"heartbeat": "drop", "messages": "drop"}
    worker.send(signal.SIGCONT)
    worker.until_logged("lease expired while suspended")


def test_a_cli_that_repeats_itself_makes_no_progress(tmp_path: Path, api: WorkApi) -> None:
    with LiveWorker(tmp_path / "idle", api.url, "--idle-timeout", "2s"):
        failed = api.until_called("fail", api.queue("repeat"))
        assert (failed["code"], "no progress" in failed["error"]) == ("timeout", True)


def test_the_deadline_of_a_task_is_kept(api: WorkApi, worker: LiveWorker, tmp_path: Path) -> None:
    task = api.queue(f"tick:{tmp_path / 'never'}", deadline_seconds=1)
    assert api.until_called("fail", task)["code"] == "timeout"
    assert not is_alive(worker.cli_pids()[0])


def test_below_the_floor_of_disk_space_nothing_is_claimed(tmp_path: Path, api: WorkApi) -> None:
    with LiveWorker(tmp_path / "full", api.url, "--min-free-disk", "900000G"):
        assert "disk space" in api.until_called("heartbeat")["status"]
        assert not api.of("claim")
