"""/ready on a disk that is really full: 503 with the reason, and 200 again when there is space."""

from __future__ import annotations

import json
import resource
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def readiness(server: LiveServer) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(server.url + "/ready", timeout=20) as answer:
            return int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, json.loads(error.read())


def create_session(server: LiveServer, title: str = "") -> int:
    body = json.dumps({"title": title}).encode()
    asked = urllib.request.Request(
        server.url + "/api/sessions", body, {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Takes every byte that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


def test_ready_is_503_with_the_reason_on_a_full_disk_and_recovers_by_itself(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk") as disk,
        LiveServer(tmp_path / "server", env={"LASTGOOD_DATA_DIR": str(disk)}) as server,
    ):
        assert create_session(server) == 200
        filler = fill(disk)
        # The write-ahead log may still have room for some.
        until(lambda: create_session(server, "x" * 200) == 503)
        status, received = readiness(server)
        assert (status, received["status"]) == (503, "not ready")
        assert "the database cannot be written" in received["reason"]
        assert server.status("/health") == 200
        filler.unlink()
        until(lambda: readiness(server)[0] == 200)
        assert create_session(server) == 200


def test_ready_notices_a_disk_that_filled_up_while_nothing_was_written(tmp_path: Path) -> None:
    """No request has failed yet: the occasional test write finds it."""
    with LiveServer(tmp_path) as server:
        assert readiness(server)[0] == 200
        process = server._process
        assert process is not None
        before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        until(lambda: readiness(server)[0] == 503)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
        until(lambda: readiness(server)[0] == 200)
        assert create_session(server) == 200
