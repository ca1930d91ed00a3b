"""A worker whose every call a test makes by hand."""

import json
import urllib.request
from typing import Any

from tests.e2e.command import SECONDS


class HandWorker:
    def __init__(self, url: str, id: str = "laptop-1", *providers: str, token: str | None = None) -> None:
        self.url = url
        self.id = id
        self.token = token
        registered = self.call(
            "register",
            worker_id=id,
            instance="one",
            version="test",
            runtimes=[
                {"name": f"{id}-{one}", "provider": one, "format": "f"} for one in providers or ["command"]
            ],
        )
        self.epoch = registered["worker"]["epoch"]
        self.runtimes = {one["name"]: one["id"] for one in registered["runtimes"]}

    def call(self, path: str, **body: Any) -> Any:
        headers = {"content-type": "application/json"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(
            f"{self.url}/api/worker/{path}", json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def claim(self) -> dict[str, Any]:
        found = self.call(
            "claim",
            worker_id=self.id,
            epoch=self.epoch,
            runtime_ids=list(self.runtimes.values()),
            max_tasks=1,
            wait_seconds=20,
        )
        (one,) = found["tasks"]
        return dict(one)

    def report(self, claim: dict[str, Any], what: str, **body: Any) -> Any:
        return self.call(f"tasks/{claim['task']['id']}/{what}", claim_token=claim["claim_token"], **body)

    def complete(self, output: str, native_session: str, work_dir: str = "/work") -> dict[str, Any]:
        """Claims one task and commits its turn."""
        claim = self.claim()
        self.report(claim, "start")
        self.report(claim, "complete", output=output, native_session=native_session, work_dir=work_dir)
        return claim
