"""A worker whose disk is full at each of its reports: final ones get through, and it claims nothing more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.command import until
from tests.process_faults import VARIABLE
from tests.worker.live_worker import LiveWorker
from tests.worker.work_api import WorkApi


@dataclass
class Disk:
    worker: LiveWorker
    fill: Callable[[], None]
    free: Callable[[], None]


@pytest.fixture(params=["a file system of 24 MiB", "errors of the kernel"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, api: WorkApi) -> Iterator[Disk]:
    """A real small file system where mounting is allowed; and everywhere a process that gets its errors."""
    folder = tmp_path / "worker"
    if request.param == "errors of the kernel":
        flag = folder / "full"
        with LiveWorker(folder, api.url, env={VARIABLE: f"full disk={folder}"}) as worker:
            yield Disk(worker, flag.touch, flag.unlink)
        return
    root = folder / "root"
    root.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system needs the right to mount")
    try:
        with LiveWorker(folder, api.url, "--min-free-disk", "4K") as worker:
            yield Disk(worker, lambda: _fill(root / "filler"), (root / "filler").unlink)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_full_disk_at_any_report_loses_no_result_and_stops_the_claims(
    api: WorkApi, disk: Disk, tmp_path: Path
) -> None:
    worker = disk.worker
    gates = iter([tmp_path / f"gate{number}" for number in range(9)])

    def running(prompt: str) -> tuple[str, Path]:
        gate, before = next(gates), len(worker.jobs())
        task = api.queue(prompt.format(gate=gate))
        worker.until_job(before + 1)
        return task, gate

    def nothing_is_claimed() -> None:
        until(lambda: "disk space" in api.of("heartbeat")[-1]["status"])
        until(lambda: not worker.outbox())

    # A result: its snapshot can be left out, and it cannot.
    task, gate = running("say:one until:{gate} say:two")
    disk.fill()
    gate.touch()
    assert api.until_called("complete", task)["output"] == "one two"
    assert not api.of("snapshot", task)
    worker.until_logged("no snapshot of the working directory")
    nothing_is_claimed()
    held = api.queue("say:later")
    claims = len(api.of("claim"))
    disk.free()
    assert api.until_called("complete", held)["output"] == "later"
    assert len(api.of("claim")) > claims

    # A failure.
    task, gate = running("until:{gate} fail:model_error")
    disk.fill()
    gate.touch()
    assert api.until_called("fail", task)["code"] == "model_error"
    nothing_is_claimed()
    disk.free()

    # A cancel: what the run had said, and the acknowledgement.
    task, gate = running("say:hello tick:{gate}")
    api.faults["fail"] = "cancelled"
    api.beat = {"cancel": [task], "lost": [task]}
    disk.fill()
    api.until_called("cancel-ack", task)
    assert "hello" in api.of("fail", task)[0]["error"]
    api.beat = {}
    del api.faults["fail"]
    nothing_is_claimed()
    disk.free()
    api.until_called("complete", api.queue("say:end"))


def test_a_report_that_no_disk_takes_frees_the_slot_and_leaves_the_task_to_its_lease(
    tmp_path: Path, api: WorkApi
) -> None:
    folder, gate = tmp_path / "worker", tmp_path / "gate"
    with LiveWorker(folder, api.url, env={VARIABLE: f"full disk={folder}"}) as worker:
        task = api.queue(f"until:{gate} say:lost")
        worker.until_job()
        (folder / "fuller").touch()
        gate.touch()
        worker.until_logged("the report of a task could not be stored")
        assert not worker.outbox()
        (folder / "fuller").unlink()
        api.until_called("complete", api.queue("say:next"))
        assert not api.of("complete", task)
        assert task not in repr(api.of("heartbeat")[-1]["live"])
