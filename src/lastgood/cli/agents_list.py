"""`lastgood agents list`: what `lastgood serve` would serve, and what is wrong with it.

The catalog loads agents as a server does, and the table of providers resolves their models. Calls no model
and opens no database.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lastgood.agents.builtin import SCRIPTED
from lastgood.agents.catalog import Catalog
from lastgood.agents.sources import parse
from lastgood.agents.url_source import UrlPolicy
from lastgood.cli.output import one_line, print_json, print_line, remark
from lastgood.cli.startup import settings_of
from lastgood.engine.providers.model_references import resolve_model, why_offline
from lastgood.engine.providers.provider_aliases import key_names
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.engine.providers.scripted import Scripted
from lastgood.errors import KeyRefused, LastgoodError
from lastgood.model.agents import AgentSpec, ModelSpec
from lastgood.outside.env_file import secrets_of
from lastgood.settings import Settings
from lastgood.wiring import build_engine, look_nearby


@dataclass(frozen=True, slots=True)
class AgentFinding:
    """`error`: no turn could run on it, whatever keys there are."""

    level: str
    message: str


@dataclass(frozen=True, slots=True)
class AgentSummary:
    key: str
    model: str | None
    description: str
    findings: tuple[AgentFinding, ...]

    @property
    def is_good(self) -> bool:
        return all(one.level != "error" for one in self.findings)


def list_agents(args: argparse.Namespace) -> int:
    listed = asyncio.run(_list(settings_of(args), args.agents))
    if args.json:
        print_json([_as_json(one) for one in listed])
    elif not listed:
        remark("no agents: the directory contains no agent file (*.yaml, *.yml)")
    else:
        _print(listed)
    return 0 if all(one.is_good for one in listed) else 1


async def _list(settings: Settings, references: Sequence[str]) -> list[AgentSummary]:
    secrets = secrets_of(settings.env_file, os.environ)
    policy = UrlPolicy(settings.data_dir / "url_cache", settings.pull_interval, secrets=secrets)
    agents = Catalog([parse(reference, settings.aliases) for reference in references], policy)
    providers = ProviderTable(secrets, {SCRIPTED: Scripted()})
    engine = build_engine(settings, secrets)
    try:
        await look_nearby(engine, agents)
        return [await _look(key, agents, providers, engine.any_model) for key in agents.served()]
    finally:
        await agents.close()
        await providers.close()
        await engine.close()


async def _look(key: str, agents: Catalog, providers: ProviderTable, any_model: ModelSpec) -> AgentSummary:
    try:
        agent = await agents.load(key)
    except LastgoodError as error:
        return AgentSummary(key, None, "", (AgentFinding("error", error.message),))
    model, problem = _model_of(agent, providers, any_model)
    findings = [problem] if problem else []
    findings += [AgentFinding("warning", text) for text in (agent.stale, *agent.warnings) if text]
    return AgentSummary(key, model, agent.description, tuple(findings))


def _model_of(
    agent: AgentSpec, providers: ProviderTable, any_model: ModelSpec
) -> tuple[str | None, AgentFinding | None]:
    """Returns the model that would be called, and why it cannot answer or is the offline one."""
    if agent.harness is not None:
        return agent.model, None  # its runtime has models and keys of its own
    try:
        model = resolve_model(agent.model, agent.models, providers.has_key, otherwise=any_model)
        providers.find(model)
    except KeyRefused as error:
        return None, AgentFinding("warning", error.message)
    except LastgoodError as error:
        return None, AgentFinding("error", error.message)
    if (why := why_offline(model)) is not None:
        return model.ref, AgentFinding("warning", f"the offline scripted model answers: {why}")
    if not providers.has_key(model):
        names = " or ".join(key_names(model))
        return model.ref, AgentFinding("warning", f"no API key for {model.ref}; set {names}")
    return model.ref, None


# -- for people and for scripts ------------------------------------------------------


def _print(listed: Sequence[AgentSummary]) -> None:
    keys = max(len(one_line(one.key)) for one in listed)
    models = max(len(one_line(one.model or "-")) for one in listed)
    for one in listed:
        key, model = one_line(one.key), one_line(one.model or "-")
        print_line(f"{key:{keys}}  {model:{models}}  {one_line(one.description)}".rstrip())
        worst_first = sorted(one.findings, key=lambda finding: finding.level)
        for finding in worst_first[:1]:
            print_line(f"  {finding.level}: {one_line(finding.message)}")


def _as_json(one: AgentSummary) -> dict[str, Any]:
    return {
        "key": one.key,
        "ok": one.is_good,
        "model": one.model,
        "description": one.description,
        "findings": [asdict(finding) for finding in one.findings],
    }
