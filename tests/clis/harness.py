"""A real CLI with a home, a folder and a model of its own."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from lastgood.worker.job import (
    Job,
    JobPermissions,
    JobResult,
    RuntimeKind,
    SafetyMode,
    Steering,
)
from lastgood.worker.runtimes.runtime_kinds import kind_named
from tests.clis.install import path_of, search_path
from tests.clis.model_server import ModelServer
from tests.worker.recorder import Recorder

AUTONOMOUS = JobPermissions(SafetyMode.AUTONOMOUS)
JOB_SECONDS = 60.0
CODEX_CONFIG = """
model = "fake-model"
model_provider = "fake"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "http://127.0.0.1:{port}/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[features]
plugins = false
apps = false
"""


@dataclass
class RealCli:
    name: str
    home: Path
    folder: Path
    model: ModelServer
    recorder: Recorder = field(default_factory=Recorder)
    port: int | None = None  # instead of the model's

    @property
    def kind(self) -> RuntimeKind:
        return kind_named(self.name, [str(path_of(self.name))], self.environment())

    def environment(self) -> dict[str, str]:
        port = self.port or self.model.port
        (self.home / ".codex").mkdir(parents=True, exist_ok=True)
        (self.home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(port=port))
        path = f"{Path(sys.executable).parent}:{search_path()}"
        own: dict[str, dict[str, str]] = {
            "claude": {
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
                "ANTHROPIC_API_KEY": "x",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_RETRIES": "0",
            },
            "codex": {"FAKE_KEY": "x"},
            "goose": {
                "GOOSE_PROVIDER": "openai",
                "GOOSE_MODEL": "fake-model",
                "OPENAI_API_KEY": "x",
                "OPENAI_HOST": f"http://127.0.0.1:{port}",
                "OPENAI_BASE_PATH": "v1/chat/completions",
                "GOOSE_DISABLE_KEYRING": "1",
                "GOOSE_TELEMETRY_ENABLED": "false",
            },
        }
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb", **own[self.name]}

    def job(self, prompt: str, **more: Any) -> Job:
        more.setdefault("permissions", AUTONOMOUS)
        return Job(prompt, self.folder, environment=self.environment(), **more)

    async def run(self, prompt: str, steering: Steering | None = None, **more: Any) -> JobResult:
        async with asyncio.timeout(JOB_SECONDS):
            return await self.kind.run(self.job(prompt, **more), self.recorder, steering)

    def at_home(self, home: Path) -> RealCli:
        home.mkdir(parents=True, exist_ok=True)
        return replace(self, home=home, recorder=Recorder())

    def write_file(self, name: str, text: str) -> str:
        """A prompt that makes the model write a file with this CLI's tool."""
        path = self.folder / name
        match self.name:
            case "claude":
                return f'RUNTOOL Write {{"file_path": "{path}", "content": "{text}"}}'
            case "codex":
                return f'RUNTOOL exec_command {{"cmd": "printf {text} > {path}"}}'
            case _:
                return f'RUNTOOL write {{"path": "{path}", "content": "{text}"}}'

    def processes(self) -> list[psutil.Process]:
        """The live processes whose home is this CLI's."""
        return [one for one in psutil.process_iter() if _home_of(one) == str(self.home)]


def _home_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get("HOME")
    except psutil.Error:
        return None
