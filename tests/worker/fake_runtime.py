"""A kind whose CLI is `fake_cli.py` with the given steps."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.job import Job, JobFailed, JobPermissions, JobResult, RuntimeKind, SafetyMode, Steering
from lastgood.worker.runtimes.cli_process import ProcessGroups
from lastgood.worker.runtimes.runtime_kinds import kind_named
from tests.worker.recorder import Recorder

FAKE = Path(__file__).with_name("fake_cli.py")
FREE = JobPermissions(SafetyMode.AUTONOMOUS)


@dataclass
class FakeRuntime:
    kind_name: str
    folder: Path
    recorder: Recorder = field(default_factory=Recorder)
    groups: ProcessGroups = field(default_factory=ProcessGroups)
    version: str = "1.0.0"

    @property
    def steps(self) -> Path:
        return self.folder / "steps.json"

    @property
    def environment(self) -> dict[str, str]:
        home = {"HOME": str(self.folder), "FAKE_STEPS": str(self.steps), "FAKE_VERSION": self.version}
        return {"PATH": "/usr/bin:/bin", **home}

    @property
    def kind(self) -> RuntimeKind:
        return kind_named(self.kind_name, [sys.executable, str(FAKE)], self.environment, self.groups)

    async def run(self, *steps: dict[str, Any], steering: Steering | None = None, **more: Any) -> JobResult:
        self.steps.write_text(json.dumps(steps))
        more.setdefault("permissions", FREE)
        job = Job("the prompt", self.folder, environment=self.environment, **more)
        async with asyncio.timeout(30):
            return await self.kind.run(job, self.recorder, steering)

    async def failure(self, *steps: dict[str, Any], **more: Any) -> JobFailed:
        with pytest.raises(JobFailed) as failed:
            await self.run(*steps, **more)
        return failed.value

    def arguments(self) -> list[str]:
        """What the CLI was started with."""
        return list(json.loads(Path(f"{self.steps}.arguments").read_text()))

    def was_read(self) -> list[dict[str, Any]]:
        """What the CLI has read of us, as far as its steps waited for it."""
        lines = Path(f"{self.steps}.read").read_text().splitlines()
        return [json.loads(line) for line in lines]
