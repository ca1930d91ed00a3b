from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.live_worker import LiveWorker
from tests.worker.work_api import WorkApi


@pytest.fixture
def api() -> Iterator[WorkApi]:
    with WorkApi() as api:
        yield api


@pytest.fixture
def worker(tmp_path: Path, api: WorkApi) -> Iterator[LiveWorker]:
    with LiveWorker(tmp_path / "worker", api.url) as worker:
        yield worker
