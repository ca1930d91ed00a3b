"""This worker and servers of other releases. What servers of each release answered is kept as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastgood.core.work_protocol import WORK_PROTOCOL
from lastgood.model.agents import Safety
from lastgood.worker.claims import read_claim, read_key
from tests.worker.live_worker import LiveWorker
from tests.worker.work_api import WorkApi

RELEASES = sorted(Path(__file__).with_name("releases").glob("*.json"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_I30_claims_of_every_release_can_be_read(release: Path) -> None:
    calls = json.loads(release.read_text())
    claims = [one for call in calls if call["path"].endswith("/claim") for one in call["answer"]["tasks"]]
    read = [read_claim(one, Safety.AUTONOMOUS) for one in claims]
    assert [one.prompt for one in read][:2] == ["say:hello tool:edit write:a.txt=1", "say:again"]
    assert read[0].native_session is None
    assert read[1].native_session
    assert [(one.role, one.content) for one in read[1].transcript][1:] == [("assistant", "hello")]
    assert all(read_key(one).token == one["claim_token"] for one in claims)
    assert all(one.task_token and one.lease_seconds == 90 for one in read)


def test_I30_a_server_of_the_next_release_is_understood(tmp_path: Path) -> None:
    with WorkApi() as api:
        api.more = {"of_the_next_release": {"list": [1, None]}}
        api.protocol = WORK_PROTOCOL + 1
        api.beat = {"status": "reimagined", "paused": []}
        with LiveWorker(tmp_path / "w", api.url) as worker:
            assert api.until_called("complete", api.queue("say:hello write:a=1"))["output"] == "hello"
            resume = {"decision": "teleport", "transcript": [{"role": "user", "content": "before"}]}
            api.until_called("complete", api.queue("say:more", resume=resume))
            assert worker.jobs()[1]["session"] is None
            assert worker.jobs()[1]["transcript"][0]["content"] == "before"
            mode = {"name": "a", "permissions": {"mode": "paranoid"}}
            failed = api.until_called("fail", api.queue("say:no", agent=mode))
            assert (failed["code"], "upgrade this worker" in failed["error"]) == ("unenforceable", True)
            assert len(worker.jobs()) == 2


def test_I30_a_worker_stops_at_a_newer_server_and_names_the_upgrade(
    tmp_path: Path,
) -> None:
    with WorkApi() as api:
        api.protocol = WORK_PROTOCOL + 2
        with LiveWorker(tmp_path / "w", api.url) as worker:
            assert worker.wait() == 2
            assert "Upgrade the worker" in worker.log
            assert not api.of("claim")
