"""`lastgood worker` on the command line: settings, refusals in words, metrics and the status line."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from lastgood.settings import read_worker_settings
from lastgood.settings.types import SettingsInvalid
from lastgood.settings.worker_settings import KINDS
from lastgood.worker.runtimes.runtime_kinds import KINDS as REGISTERED_KINDS
from tests.e2e.command import until
from tests.forkserver import fork_server
from tests.worker.live_worker import LiveWorker
from tests.worker.work_api import WorkApi


def test_settings_know_every_kind() -> None:
    assert KINDS == REGISTERED_KINDS


def test_a_command_of_a_runtime_may_contain_commas(tmp_path: Path) -> None:
    text = "a=command:prog --set x,y=1,b=claude,c=acp:run me"
    found = read_worker_settings({}, folder=tmp_path, runtime=text)
    assert found.runtime == ("a=command:prog --set x,y=1", "b=claude", "c=acp:run me")


def test_the_table_worker_is_read_and_flags_and_variables_win(tmp_path: Path) -> None:
    toml = '[worker]\nslots = 3\nroot = "here"\nruntime = ["a=claude", "b=codex"]\nallow_dir = ["p", "/q"]\n'
    (tmp_path / "lastgood.toml").write_text(toml)
    found = read_worker_settings({"LASTGOOD_WORKER_SLOTS": "4"}, folder=tmp_path)
    assert (found.slots, found.root, found.runtime) == (4, tmp_path / "here", ("a=claude", "b=codex"))
    assert found.allow_dir == (tmp_path / "p", Path("/q"))
    assert read_worker_settings({"LASTGOOD_WORKER_SLOTS": "4"}, folder=tmp_path, slots="5").slots == 5


def test_an_unknown_key_of_the_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lastgood.toml").write_text("[worker]\nslot = 3\n")
    with pytest.raises(SettingsInvalid, match="did you mean slots"):
        read_worker_settings({}, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--runtime is missing"),
        (("--runtime", "a=nonsense"), "Unknown runtime kind"),
        (("--runtime", "a=command:true", "--runtime", "a=command:false"), "two runtimes have the same name"),
        (("--runtime", "a=command:no-such-program-here", "--server", "http://h"), "was not found"),
        (("--runtime", "a=command:true"), "--server is missing"),
        (("--runtime", "a=command:true", "--account", "b=me"), "with the name of a --runtime, not 'b=me'"),
        (("--runtime", "a=command:true", "--account", "a"), "write --account as NAME=ACCOUNT"),
        (
            ("--runtime", "a=command:true", "--server", "http://h", "--slots", "0"),
            "--slots must be at least 1",
        ),
        (
            ("--runtime", "a=command:true", "--server", "http://h", "--allow-dir", "/nowhere"),
            "does not exist",
        ),
        (("--runtime", "a=command:true", "--server", "http://h", "--token-file", "/nowhere"), "cannot read"),
    ],
)
def test_wrong_usage_is_said_in_one_line(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    env = {"PATH": os.environ["PATH"], "LASTGOOD_DATA_DIR": str(tmp_path)}
    done = fork_server().run(["worker", *options], env=env, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_without_a_work_api_is_named(tmp_path: Path, api: WorkApi) -> None:
    api.faults["register"] = 404
    with LiveWorker(tmp_path / "w", api.url) as worker:
        assert worker.wait() == 1


def test_metrics_count_slots_tasks_and_undelivered_reports(tmp_path: Path, api: WorkApi) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    options = ("--slots", "3", "--metrics-listen", f"127.0.0.1:{port}")
    with LiveWorker(tmp_path / "w", api.url, *options) as worker:
        api.faults["complete"] = "drop"
        task = api.queue("say:hello", queued_seconds=42.5)
        api.until_called("complete", task)
        until(lambda: len(worker.outbox()) == 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            found = dict(re.findall(r"^lastgood_worker_(\w+) (\S+)$", answer.read().decode(), re.MULTILINE))
    assert (found["slots"], found["tasks_claimed_total"], found["outbox_reports"]) == ("3", "1", "1")
    assert found["queue_age_seconds"] == "42.5"
    assert (found["is_claiming"], float(found["outbox_oldest_seconds"]) >= 0) == ("1", True)


def test_a_terminal_shows_what_happens_now(tmp_path: Path, api: WorkApi) -> None:
    controller, terminal = pty.openpty()
    os.set_blocking(controller, False)
    worker = LiveWorker(tmp_path / "w", api.url)
    api.queue(f"tool:\x1b[31mevil until:{tmp_path / 'gate'}")
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            shown += os.read(controller, 65536)
        return text in shown

    process = fork_server().start(worker.words(), env=worker.env, cwd=worker.folder, stderr=terminal)
    try:
        until(lambda: shows(b"1 of 1 slot busy | a "))
        until(lambda: shows(rb"\x1b[31mevil"))
        assert b"\x1b[31mevil" not in shown
    finally:
        process.kill()
        process.wait()
        worker.end_clis()
        os.close(controller)
        os.close(terminal)
