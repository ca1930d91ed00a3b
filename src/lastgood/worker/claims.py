"""A claim as the server sends it, read into what a run needs. Optional fields may be absent or null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastgood.model.agents import Safety
from lastgood.worker.cli_mcp_servers import read_server
from lastgood.worker.job import JobMcpServer, JobPermissions, Said


class ClaimUnreadable(Exception):
    """A claim of a server that is too new; the text names the field."""


@dataclass(frozen=True, slots=True)
class GivenDir:
    path: str
    is_local: bool  # it is on this machine
    is_outdated: bool = False  # later turns worked elsewhere


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """What every report about a claim needs, and what can be read of any claim."""

    task: str
    token: str
    runtime_id: str


@dataclass(frozen=True, slots=True)
class Claim:
    key: ClaimKey
    agent: str
    session: str
    lease_seconds: float
    deadline_seconds: float
    prompt: str
    permissions: JobPermissions
    instruction: str = ""
    model: str | None = None
    effort: str | None = None
    native_session: str | None = None
    transcript: tuple[Said, ...] = ()
    catch_up: tuple[Said, ...] = ()
    disclosures: tuple[str, ...] = ()
    folder: str | None = None  # of the owner's machine, as somebody named it for this session
    work_dir: GivenDir | None = None
    snapshot_attempt: str | None = None
    queued_seconds: float = 0.0  # since somebody asked for it
    task_token: str | None = None  # for the CLI; None: from a server that has none
    mcp_servers: tuple[JobMcpServer, ...] = ()


def read_key(plain: Mapping[str, Any]) -> ClaimKey:
    try:
        task = plain["task"]
        return ClaimKey(str(task["id"]), str(plain["claim_token"]), str(task["runtime_id"]))
    except (KeyError, TypeError) as error:
        raise ClaimUnreadable(f"the claim lacks {error}") from None


def read_claim(plain: Mapping[str, Any], ceiling: Safety) -> Claim:
    try:
        return _read(plain, ceiling)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClaimUnreadable(f"the claim cannot be read: {error!r}; upgrade this worker") from None


def _read(plain: Mapping[str, Any], ceiling: Safety) -> Claim:
    task, resume = plain["task"], plain.get("resume") or {}
    agent = plain.get("agent") or {}
    return Claim(
        key=read_key(plain),
        agent=str(agent.get("name") or task.get("agent") or ""),
        session=str(task.get("session_id") or task["id"]),
        lease_seconds=float(plain["lease_seconds"]),
        deadline_seconds=float(task.get("deadline_seconds") or 4 * 3600.0),
        prompt=str(plain["prompt"]),
        permissions=_permissions(agent.get("permissions") or {}, ceiling),
        instruction=str(agent.get("instruction") or ""),
        model=agent.get("model") or None,
        effort=agent.get("effort") or None,
        native_session=resume.get("native_session") if resume.get("decision") == "native" else None,
        transcript=_said(resume.get("transcript")),
        catch_up=_said(resume.get("catch_up")),
        disclosures=tuple(str(text) for text in plain.get("disclosures") or ()),
        folder=plain.get("folder") or None,
        work_dir=_given_dir(plain.get("work_dir"), plain.get("work_dir_state") or {}),
        snapshot_attempt=(plain.get("snapshot") or {}).get("attempt"),
        queued_seconds=float(task.get("queued_seconds") or 0.0),
        task_token=plain.get("task_token") or None,
        mcp_servers=tuple(read_server(one) for one in agent.get("mcp_servers") or ()),
    )


def _permissions(plain: Mapping[str, Any], ceiling: Safety) -> JobPermissions:
    return JobPermissions(
        mode=Safety(plain.get("mode") or Safety.BALANCED),
        allow=tuple(plain.get("allow") or ()),
        ask=tuple(plain.get("ask") or ()),
        deny=tuple(plain.get("deny") or ()),
        ceiling=ceiling,
    )


def _said(plain: Any) -> tuple[Said, ...]:
    return tuple(Said(str(one["role"]), str(one["content"])) for one in plain or ())


def _given_dir(path: str | None, state: Mapping[str, Any]) -> GivenDir | None:
    if not path:
        return None
    return GivenDir(path, bool(state.get("is_local", True)), bool(state.get("is_outdated", False)))
