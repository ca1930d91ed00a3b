"""Stories about a worker and its machine: what never leaves it."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

from lastgood.worker.redaction import Redaction
from lastgood.worker.snapshots import make_snapshot, remember
from lastgood.worker.work_dirs import WorkDirs
from tests.faults.probes import Stage, probe

NAMED = "canary-5be1f0a29c"
KEYS = {
    ".env": "by its name",
    "notes.txt": f"by its value: {NAMED}",
    "deploy.sh": "by its shape: ghp_Ab3dEf6hIj9lMn2pQr5tUv8xYz1bCd4eFg7h",
    "id.txt": "by its shape: -----BEGIN OPENSSH PRIVATE KEY-----\n",
}


@probe
async def a_snapshot_holds_no_secret(_: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = WorkDirs(Path(folder)).create("session")
        for name, text in KEYS.items():
            (own.path / name).write_text(text)
        (own.path / "ok.txt").write_text("fine")
        made = make_snapshot(own, remember(own), Redaction([NAMED]))
    body = gzip.decompress(made.body)
    assert b"files/ok.txt" in body, "an ordinary file is missing"
    for name, text in KEYS.items():
        assert text.encode() not in body, f"{name} was uploaded"
    assert {one["path"] for one in made.summary["left_out"]} == set(KEYS), "what is missing is not disclosed"
