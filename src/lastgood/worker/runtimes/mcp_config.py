"""Writes the MCP servers of a job as each CLI wants them, and discloses the ones that a CLI does not take."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from lastgood.core.mcp_servers import NOT_PASSED_ON
from lastgood.worker.job import Job, JobMcpServer
from lastgood.worker.runtimes.tool_rules import restricts_nothing

SERVER_START_SECONDS = 40.0


def without_servers(job: Job, refusal: Callable[[JobMcpServer], str | None]) -> tuple[Job, tuple[str, ...]]:
    """The job with the servers that are not refused, and what it discloses about the others."""
    refused = {server.name: why for server in job.mcp_servers if (why := refusal(server)) is not None}
    notes = tuple(NOT_PASSED_ON.format(name, why) for name, why in refused.items())
    kept = tuple(server for server in job.mcp_servers if server.name not in refused)
    return replace(job, mcp_servers=kept, disclosures=(*job.disclosures, *notes)), notes


@contextlib.contextmanager
def claude_config_file(job: Job) -> Iterator[Path | None]:
    """None: the job has no servers. Not on the command line, where every user of the machine reads it."""
    if not job.mcp_servers:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="lastgood-mcp-") as folder:
        file = Path(folder) / "servers.json"
        file.write_bytes(orjson.dumps({"mcpServers": {one.name: _claude(one) for one in job.mcp_servers}}))
        yield file


def _claude(server: JobMcpServer) -> dict[str, Any]:
    if server.url:
        kind = "sse" if server.transport == "sse" else "http"
        return {"type": kind, "url": server.url, "headers": dict(server.headers)}
    command, *arguments = server.command
    return {"type": "stdio", "command": command, "args": arguments, "env": dict(server.variables)}


def codex_config(job: Job) -> dict[str, Any]:
    """As overrides of codex's configuration, which go over its standard input.

    Codex would decide by itself about tools that call themselves read-only.
    """
    free = restricts_nothing(job.permissions)
    config: dict[str, Any] = {}
    if job.mcp_servers:
        config["mcp_servers"] = {one.name: _codex(one, free) for one in job.mcp_servers}
    if job.effort:
        config["model_reasoning_effort"] = job.effort
    return config


def _codex(server: JobMcpServer, free: bool) -> dict[str, Any]:
    limits: dict[str, Any] = {"default_tools_approval_mode": "approve" if free else "prompt"}
    if server.tools is not None:
        limits["enabled_tools"] = list(server.tools)
    if server.url:
        return {"url": server.url, "http_headers": dict(server.headers), **limits}
    command, *arguments = server.command
    return {"command": command, "args": arguments, "env": dict(server.variables), **limits}


class ServerStarts:
    """Codex starts servers beside the first turn, whose request would then lack their tools."""

    def __init__(self, job: Job) -> None:
        self._waiting = {server.name for server in job.mcp_servers}
        self._failed: dict[str, str] = {}
        self._settled = asyncio.Event()

    def updated(self, params: dict[str, Any]) -> None:
        name, status = params.get("name"), params.get("status")
        if name not in self._waiting or status == "starting":
            return
        self._waiting.discard(name)
        if status != "ready":
            self._failed[name] = str(params.get("error") or params.get("failureReason") or status)
        self._settled.set()

    async def waited_for(self, job: Job) -> tuple[Job, tuple[str, ...]]:
        """The job without the servers that did not start, and what it discloses about them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVER_START_SECONDS):
                while self._waiting:
                    self._settled.clear()
                    await self._settled.wait()
        late = dict.fromkeys(self._waiting, f"it did not start within {SERVER_START_SECONDS:g} s")
        return without_servers(job, lambda server: (self._failed | late).get(server.name))


def acp_servers(job: Job) -> list[dict[str, Any]]:
    return [_acp(one) for one in job.mcp_servers]


def _acp(server: JobMcpServer) -> dict[str, Any]:
    if server.url:
        kind = "sse" if server.transport == "sse" else "http"
        return {"type": kind, "name": server.name, "url": server.url, "headers": _pairs(server.headers)}
    command, *arguments = server.command
    return {"name": server.name, "command": command, "args": arguments, "env": _pairs(server.variables)}


def _pairs(values: Any) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
