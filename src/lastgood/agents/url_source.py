"""Agent files at URLs: fetched when they are used, cached on disk, and fetched again when the copy is old.

The last good copy is one that was received completely and is a valid agent file. It keeps serving, marked as
stale, while its server is down, slow or returns an invalid file, also after a restart. If there is a good
copy, a slow request is abandoned early, so that no turn waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from lastgood.agents.file_source import LIMIT_BYTES, UnreadableFile, read_file
from lastgood.agents.sources import URL_POLICY, Definition, UrlSource
from lastgood.errors import AgentInvalid
from lastgood.outside.secrets import Secrets

if TYPE_CHECKING:
    from lastgood.outside.network import Fetched, Network

_GITHUB_HOSTS = frozenset({"github.com", "raw.githubusercontent.com", "gist.githubusercontent.com"})
#: More than the line above a kept copy ever takes.
_HEAD_BYTES = 65536


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """How URLs are fetched. `folder`: where valid copies are cached; None caches them in memory only."""

    folder: Path | None = None
    every_seconds: float = 60.0  # how old a copy may be before it is fetched again
    first_seconds: float = 20.0  # the patience while there is no good copy
    again_seconds: float = 5.0  # and while there is one
    pause_seconds: float = 5.0  # after a failure, turns use the good copy for this long
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    network: Network | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class CachedCopy:
    """A cached response, and the validators to revalidate it."""

    body: bytes
    etag: str = ""
    modified: str = ""
    fetched_at: float = 0.0

    def says_the_same(self, other: CachedCopy | None) -> bool:
        return other is not None and replace(self, fetched_at=other.fetched_at) == other

    def conditions(self) -> dict[str, str]:
        asked = {"If-None-Match": self.etag, "If-Modified-Since": self.modified}
        return {name: value for name, value in asked.items() if value}


class UrlAgent:
    """One URL and its last good copy. One load at a time."""

    def __init__(self, source: UrlSource, policy: UrlPolicy) -> None:
        self._source = source
        self._policy = policy
        self._copy: CachedCopy | None = None
        self._good: Definition | None = None
        self._due: float | None = None  # None: never fetched
        self.changed_at: float | None = None  # when a body that differs from the one before was fetched

    def known(self) -> Definition | None:
        """The last good copy, while it is new enough; None: it has to be loaded."""
        if self._due is None or self._policy.clock() >= self._due:
            return None
        return self._good

    async def load(self) -> Definition:
        if self._due is None:
            await self._restore()
        if self.known() is None:
            await self._refresh()
        assert self._good is not None
        return self._good

    async def _restore(self) -> None:
        if self._policy.folder is None or self._good is not None:
            return
        copy = await asyncio.to_thread(read_copy, self._policy.folder, self._source.url)
        if copy is not None:
            # This version may reject what an older one accepted; then the copy is not used.
            with suppress(AgentInvalid):
                self._good, self._copy = await self._parsed(copy.body), copy
                self.changed_at = copy.fetched_at  # it was written when it had changed

    async def _refresh(self) -> None:
        pause = self._policy.every_seconds
        try:
            self._good = replace(await self._asked_safely(), stale="")
        except (UnreadableFile, AgentInvalid) as error:
            if self._good is None or self._copy is None:
                raise
            reason = " ".join(str(error).split())
            since = datetime.fromtimestamp(self._copy.fetched_at, UTC)
            self._good = replace(self._good, stale=f"{reason}; using the copy of {since:%Y-%m-%d %H:%M} UTC")
            pause = max(pause, self._policy.pause_seconds)
        self._due = self._policy.clock() + pause

    async def _asked_safely(self) -> Definition:
        """A file may contain a key that was sent to its host; errors about it must not repeat the key."""
        try:
            return await self._asked()
        except (UnreadableFile, AgentInvalid) as error:
            scrub = self._policy.secrets.scrub
            text = repr((error, getattr(error, "detail", None)))
            if scrub(text) == text:
                raise
            raise type(error)(scrub(str(error))) from None

    async def _asked(self) -> Definition:
        got, before = await self._fetched(), self._copy
        where = self._source.where
        if got.status == 304 and self._good is not None and before is not None and before.conditions():
            return self._good
        if got.status != 200:
            raise UnreadableFile(f"{where} returned status {got.status}")
        if got.truncated:
            raise UnreadableFile(f"{where} is larger than {LIMIT_BYTES} bytes")
        good, copy = self._good, _copied(got)
        if good is None or before is None or before.body != copy.body:
            good = await self._parsed(copy.body)
            self.changed_at = copy.fetched_at
        self._copy = copy
        if self._policy.folder is not None and not copy.says_the_same(before):
            await asyncio.to_thread(write_copy, self._policy.folder, self._source.url, copy)
        return good

    async def _fetched(self) -> Fetched:
        # Imported here, because aiohttp takes a quarter of a second and most commands send no request.
        from lastgood.outside.network import SYSTEM, EgressError, fetch

        policy = self._policy
        conditions = self._copy.conditions() if self._copy else {}
        try:
            return await fetch(
                self._source.url,
                headers={"Accept": "application/yaml, text/*;q=0.9, */*;q=0.5", **conditions, **self._key()},
                limit_bytes=LIMIT_BYTES,
                timeout_seconds=policy.first_seconds if self._good is None else policy.again_seconds,
                policy=URL_POLICY,
                network=policy.network or SYSTEM,
            )
        except EgressError as error:
            raise UnreadableFile(str(error)) from None

    def _key(self) -> Mapping[str, str]:
        """Only to GitHub itself: `fetch` drops it where a redirect leads elsewhere."""
        parts = urlsplit(self._source.url)
        if parts.scheme != "https" or parts.hostname not in _GITHUB_HOSTS:
            return {}
        token = self._policy.secrets.get("GITHUB_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _parsed(self, body: bytes) -> Definition:
        from lastgood.agents.agent_file import read_agent_file

        source = self._source
        file = await asyncio.to_thread(
            read_agent_file, body, where=source.where, key=source.key, trusted=source.trusted
        )
        return Definition(file.root, file.agents)


def _copied(got: Fetched) -> CachedCopy:
    def header(name: str) -> str:
        """What cannot be sent back as it came is not worth keeping."""
        value = got.headers.get(name, "")
        return value if value.isascii() and value.isprintable() else ""

    return CachedCopy(got.body, header("etag"), header("last-modified"), time.time())


# -- copies on disk ------------------------------------------------------------------


def _place(folder: Path, url: str) -> Path:
    return folder / hashlib.sha256(url.encode()).hexdigest()


def read_copy(folder: Path, url: str) -> CachedCopy | None:
    """Returns None if there is no copy or it is damaged."""
    try:
        kept = read_file(_place(folder, url), LIMIT_BYTES + _HEAD_BYTES)
        head, _, body = kept.partition(b"\n")
        about = orjson.loads(head)
        if about["url"] != url or about["sha256"] != hashlib.sha256(body).hexdigest():
            return None
        fetched_at = datetime.fromtimestamp(about["fetched_at"], UTC).timestamp()
        return CachedCopy(body, str(about["etag"]), str(about["modified"]), fetched_at)
    except (UnreadableFile, ValueError, KeyError, TypeError, OverflowError):
        return None


def write_copy(folder: Path, url: str, copy: CachedCopy) -> None:
    """Written atomically. If the write fails, the copy is missing after the next restart; no turn fails."""
    about = {
        "url": url,
        "etag": copy.etag,
        "modified": copy.modified,
        "fetched_at": copy.fetched_at,
        "sha256": hashlib.sha256(copy.body).hexdigest(),
    }
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(orjson.dumps(about) + b"\n" + copy.body)
                stream.flush()
                os.fsync(file)
            os.replace(name, _place(folder, url))
        except BaseException:
            os.unlink(name)
            raise
