"""The outbox: a report survives a crash, a torn file, a full disk, and its own delivery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastgood.worker.outbox import Outbox

SMALL = 64 * 1024


def test_reports_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    box = Outbox(tmp_path, SMALL)
    for number in range(5):
        box.put(f"task{number}", "complete", {"claim_token": "c", "output": f"ü {number}"})
    again = Outbox(tmp_path, SMALL)
    assert [(one.task, one.body["output"]) for one in again.reports()] == [
        (f"task{number}", f"ü {number}") for number in range(5)
    ]


def test_a_clock_that_is_set_back_does_not_change_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Outbox(tmp_path, SMALL)
    times = iter([5_000_000_000, 1_000_000_000])
    monkeypatch.setattr("time.time_ns", lambda: next(times))
    first, second = box.put("a", "snapshot", {}), box.put("a", "complete", {})
    assert [one.id for one in box.reports()] == [first.id, second.id]


def test_a_report_is_gone_only_when_it_is_removed(tmp_path: Path) -> None:
    box = Outbox(tmp_path, SMALL)
    report = box.put("a", "fail", {"claim_token": "c"})
    assert len(box) == 1
    assert box.oldest_seconds() >= 0
    box.remove(report)
    assert (len(box), list(Outbox(tmp_path, SMALL).reports())) == (0, [])


def test_a_torn_file_is_set_aside_and_does_not_stop_the_others(tmp_path: Path) -> None:
    box = Outbox(tmp_path, SMALL)
    torn, whole = box.put("torn", "complete", {"output": "x" * 500}), box.put("whole", "complete", {})
    file = tmp_path / f"{torn.id}.report"
    file.write_bytes(file.read_bytes()[:-100])
    assert [one.task for one in box.reports()] == [whole.task]
    assert [kept.name for kept in box.damaged()] == [f"{torn.id}.damaged"]


def test_what_is_known_of_a_report_is_known_without_reading_it(tmp_path: Path) -> None:
    """A heartbeat asks for all of them, and each may have megabytes."""
    box = Outbox(tmp_path, SMALL)
    box.put("a", "snapshot", {"claim_token": "1", "body": "x" * 500})
    box.put("b", "complete", {"claim_token": "2", "output": "x" * 500})
    for known in (box, Outbox(tmp_path, SMALL)):
        for file in tmp_path.glob("*.report"):
            file.write_bytes(file.read_bytes()[:200])  # the rest is gone, and nobody looks at it
        assert [(one.task, one.claim_token, one.is_final) for one in known.waiting()] == [
            ("a", "1", False),
            ("b", "2", True),
        ]
        assert len(known) == 2
    assert box.read(box.waiting()[0]) is None
    assert len(box) == 1


def test_a_file_that_is_no_report_is_set_aside_at_the_start(tmp_path: Path) -> None:
    for number, text in enumerate((b"", b"no checksum", b"0\nno head", b"0\n[]\n{}")):
        (tmp_path / f"0000000000000000000{number}-aa.report").write_bytes(text)
    box = Outbox(tmp_path, SMALL)
    assert (len(box), len(box.damaged())) == (0, 4)


def test_reports_from_many_threads_have_an_order_and_are_all_kept(tmp_path: Path) -> None:
    box = Outbox(tmp_path, SMALL)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda number: box.put(str(number), "complete", {}), range(100)))
    assert len({one.id for one in made}) == len(box) == len(Outbox(tmp_path, SMALL)) == 100


def test_a_report_that_was_being_written_at_a_crash_never_existed(tmp_path: Path) -> None:
    Outbox(tmp_path, SMALL)
    (tmp_path / "00000000000000000001-aa.tmp").write_bytes(b"half")
    assert list(Outbox(tmp_path, SMALL).reports()) == []
    assert list(tmp_path.glob("*.tmp")) == []


_WRITER = """
import sys
from pathlib import Path
from lastgood.worker.outbox import Outbox
box = Outbox(Path(sys.argv[1]), 65536)
for number in range(100000):
    box.put(str(number), "complete", {"claim_token": "c", "output": "x" * 5000})
    print(number, flush=True)
"""


def test_a_report_that_was_put_survives_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(20):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    last = int(rest[-1]) if rest else last
    found = [int(one.task) for one in Outbox(tmp_path, SMALL).reports()]
    assert found[: last + 1] == list(range(last + 1))
    assert len(found) <= last + 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass


def test_a_full_disk_takes_final_reports_into_the_reserved_space(small_disk: Path) -> None:
    box = Outbox(small_disk / "outbox", 512 * 1024)
    _fill(small_disk)
    report = box.put("a", "complete", {"claim_token": "c", "output": "x" * 100_000})
    assert [one.body for one in box.reports()] == [report.body]
    assert not box.reserve()  # the disk is full: nothing may be claimed
    with pytest.raises(OSError, match="No space left"):
        box.put("b", "snapshot", {"body": "x" * 600_000})
    assert list((small_disk / "outbox").glob("*.tmp")) == []
    os.unlink(small_disk / "filler")
    box.remove(report)
    assert box.reserve()
