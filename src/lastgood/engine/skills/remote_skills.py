"""The skills that a site offers in `/.well-known/skills/index.json`.

Its list is kept for a while, for all sessions together. If the site does not answer, its last list stays.
Files are requested when the model reads them. The header of SKILL.md decides nothing here: what is listed is
what the index says.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson

from lastgood.core.egress import Policy
from lastgood.core.skills import (
    MOST_DESCRIPTION_CHARACTERS,
    MOST_FILES,
    MOST_SKILLS,
    ListedSkill,
    SkillHeader,
    is_skill_file,
    is_skill_name,
)
from lastgood.engine.skills.skill import SKILL_BYTES, Found, Skill, cut
from lastgood.engine.tools.tool import ToolFailed
from lastgood.outside.network import EgressError, Network, fetch

INDEX_BYTES = 1024 * 1024
REQUEST_SECONDS = 10.0
#: How long a list is used, and how long a site that failed is left alone.
FRESH_SECONDS = 300.0
RETRY_SECONDS = 60.0
_PATH = "/.well-known/skills/"
_MOST_SITES = 64


@dataclass(slots=True)
class _Site:
    found: Found = Found()
    asked_at: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class RemoteSkills:
    def __init__(self, network: Network, clock: Callable[[], float] = time.monotonic) -> None:
        self._network, self._clock = network, clock
        self._sites: OrderedDict[tuple[str, Policy], _Site] = OrderedDict()

    async def of(self, url: str, policy: Policy) -> Found:
        site = self._sites.setdefault((url, policy), _Site())
        self._sites.move_to_end((url, policy))
        while len(self._sites) > _MOST_SITES:
            self._sites.popitem(last=False)
        async with site.asking:
            age = None if site.asked_at is None else self._clock() - site.asked_at
            if age is None or age >= (RETRY_SECONDS if site.found.problem else FRESH_SECONDS):
                site.found = await self._ask(url, policy, site.found)
                site.asked_at = self._clock()
        return site.found

    async def _ask(self, url: str, policy: Policy, before: Found) -> Found:
        try:
            body = await self._get(f"{url.rstrip('/')}{_PATH}index.json", policy, INDEX_BYTES)
            return Found(tuple(self._skill(url, policy, header) for header in _listed(body)))
        except ToolFailed as error:
            stale = " Those listed here are from its last answer." if before.skills else ""
            return Found(before.skills, f"The skills of {url} could not be listed: {error}.{stale}")

    def _skill(self, url: str, policy: Policy, listed: ListedSkill) -> Skill:
        return Skill(listed, partial(self._read, url, policy, listed.header.name))

    async def _read(self, url: str, policy: Policy, name: str, path: str) -> str:
        where = f"{url.rstrip('/')}{_PATH}{quote(name)}/{quote(path)}"
        body, is_cut = await self._fetch(where, policy, SKILL_BYTES)
        return cut(body.decode(errors="replace"), is_cut)

    async def _get(self, url: str, policy: Policy, limit: int) -> bytes:
        body, is_cut = await self._fetch(url, policy, limit)
        if is_cut:
            raise ToolFailed(f"{url} has more than {limit:,} bytes")
        return body

    async def _fetch(self, url: str, policy: Policy, limit: int) -> tuple[bytes, bool]:
        try:
            fetched = await fetch(
                url,
                limit_bytes=limit,
                timeout_seconds=REQUEST_SECONDS,
                policy=policy,
                network=self._network,
            )
        except EgressError as error:
            raise ToolFailed(str(error)) from None
        if fetched.status != 200:
            raise ToolFailed(f"{url} answered with status {fetched.status}")
        return fetched.body, fetched.truncated


def _listed(body: bytes) -> list[ListedSkill]:
    """Entries that are no skills are left out."""
    try:
        index: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ToolFailed(f"its index is not JSON: {error}") from None
    entries = index.get("skills") if isinstance(index, dict) else None
    if not isinstance(entries, list):
        raise ToolFailed("its index is no object with a list `skills`")
    return [skill for entry in entries[:MOST_SKILLS] if (skill := _entry(entry)) is not None]


def _entry(entry: Any) -> ListedSkill | None:
    if not isinstance(entry, dict):
        return None
    name, description = entry.get("name"), entry.get("description")
    if not (isinstance(name, str) and is_skill_name(name) and isinstance(description, str) and description):
        return None
    files = entry.get("files") if isinstance(entry.get("files"), list) else []
    paths = [
        path for path in files or () if isinstance(path, str) and path != "SKILL.md" and is_skill_file(path)
    ]
    return ListedSkill(
        SkillHeader(name, description[:MOST_DESCRIPTION_CHARACTERS]), tuple(paths[:MOST_FILES])
    )
