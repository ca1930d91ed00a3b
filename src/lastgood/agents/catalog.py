"""The agents served now, by source key, as new as their sources are at each load.

A changed file or an old copy of a URL is read again when the agent is next used; nothing is restarted. If the
new definition cannot be read, the last good one keeps serving, marked as stale. Which key a session means is
decided in core/agent_identity, not here.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import assert_never

from lastgood.agents.builtin import BUILTIN_NAMES, SCRIPTED, builtin_file, scripted_agent
from lastgood.agents.builtin_names import PROVIDERS
from lastgood.agents.file_copies import FileCopies
from lastgood.agents.file_source import FileAgent, Folder, UnreadableFile
from lastgood.agents.sources import (
    BuiltinSource,
    Definition,
    DirectorySource,
    FileSource,
    FixedSource,
    OciSource,
    Single,
    Source,
    UrlSource,
)
from lastgood.agents.url_source import UrlAgent, UrlPolicy
from lastgood.errors import AgentInvalid, AgentNotFound, AgentUnavailable, InvalidRequest
from lastgood.model.agents import AgentOrigin, AgentSpec


class Catalog:
    def __init__(
        self,
        agents: Iterable[AgentSpec | Source],
        policy: UrlPolicy | None = None,
        copies: FileCopies | None = None,
    ) -> None:
        """Raises InvalidRequest if two sources have the same key. Does not load the sources.

        `copies`: where last good versions of files are kept; None keeps them in memory only.
        """
        self._agents: tuple[Source, ...] = tuple(
            FixedSource(agent) if isinstance(agent, AgentSpec) else agent for agent in agents
        )
        self._policy = policy or UrlPolicy()
        self._copies = copies
        self._folders: dict[Path, Folder] = {}
        self._index: tuple[tuple[tuple[FileSource, ...], ...], dict[str, list[Single]]] | None = None
        self._kept: dict[FileSource | UrlSource, FileAgent | UrlAgent] = {}
        self._reading: dict[FileSource | UrlSource, asyncio.Task[Definition]] = {}
        try:
            for key, sources in self._by_key().items():
                _only_one(key, sources, InvalidRequest)
        except UnreadableFile as error:
            raise InvalidRequest(str(error)) from None

    def served(self) -> Sequence[str]:
        return tuple(self._by_key())

    def origin(self, key: str) -> AgentOrigin:
        sources = self._by_key().get(key)
        if sources is None:
            raise AgentNotFound(f"no agent with the key {key!r} is served")
        source = sources[0]
        match source:
            case FileSource() | UrlSource():
                kept = self._kept.get(source)
                kind = "file" if isinstance(source, FileSource) else "URL"
                return AgentOrigin(kind, source.where, kept.changed_at if kept is not None else None)
            case OciSource():
                return AgentOrigin("registry", source.where)
            case BuiltinSource() | FixedSource():
                return AgentOrigin("built-in", source.where)
            case _:
                assert_never(source)

    async def load(self, key: str, name: str | None = None) -> AgentSpec:
        """The agent of this key; with a name, that member of its team."""
        sources = self._by_key().get(key)
        if sources is None:
            raise AgentNotFound(f"no agent with the key {key!r} is served")
        try:
            found = await self._load(_only_one(key, sources, AgentInvalid))
        except UnreadableFile as error:
            raise AgentUnavailable(f"the agent cannot be loaded: {error}") from None
        agent = found.agents.get(name or found.root)
        if agent is None:
            raise AgentNotFound(f"{key!r} has no agent {name!r}; available: {', '.join(found.agents)}")
        return replace(agent, stale=found.stale) if found.stale else agent

    async def check_named_files(self) -> None:
        """Raises InvalidRequest if a file that was named (not one of a folder) has no good definition."""
        for source in self._agents:
            if isinstance(source, FileSource):
                try:
                    await self._load(source)
                except (UnreadableFile, AgentInvalid) as error:
                    raise InvalidRequest(f"cannot serve {source.key}: {error}") from None

    async def close(self) -> None:
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def _by_key(self) -> dict[str, list[Single]]:
        """Built again only after a folder has changed: each load of an agent asks for it."""
        files = tuple(self._files(one) for one in self._agents if isinstance(one, DirectorySource))
        if self._index is None or any(map(operator.is_not, self._index[0], files)):
            self._index = files, self._indexed(files)
        return self._index[1]

    def _indexed(self, files: Iterable[tuple[FileSource, ...]]) -> dict[str, list[Single]]:
        found: dict[str, list[Single]] = {}
        in_folders = iter(files)
        for source in self._agents:
            for one in next(in_folders) if isinstance(source, DirectorySource) else (source,):
                same = found.setdefault(one.key, [])
                if one not in same:
                    same.append(one)
        return found

    def _files(self, source: DirectorySource) -> tuple[FileSource, ...]:
        folder = self._folders.get(source.path)
        if folder is None:
            folder = self._folders[source.path] = Folder(source.path)
        before, now = folder.files, folder.look()
        if now is before:
            return now
        for gone in set(before) - set(now):
            # If the file comes back, it is loaded from scratch: an earlier version is not a valid copy of it.
            self._kept.pop(gone, None)
            if self._copies is not None:
                self._copies.remove(gone.path)
        return now

    async def _load(self, source: Single) -> Definition:
        match source:
            case FixedSource(spec):
                return Definition(spec.name, {spec.name: spec, **spec.members})
            case BuiltinSource(name):
                return _builtin(name)
            case OciSource(reference):
                raise UnreadableFile(_not_there(reference))
            case FileSource() | UrlSource():
                return await self._shared(source)
            case _:
                assert_never(source)

    async def _shared(self, source: FileSource | UrlSource) -> Definition:
        """Concurrent loads of one source share one read; loads of other sources do not wait for it."""
        task = self._reading.get(source)
        if task is None:
            keeper = self._keeper(source)
            if (known := keeper.known()) is not None:
                return known
            task = self._reading[source] = asyncio.create_task(keeper.load())
            task.add_done_callback(lambda _: self._reading.pop(source))
        # A caller that is cancelled does not cancel the load for the others.
        return await asyncio.shield(task)

    def _keeper(self, source: FileSource | UrlSource) -> FileAgent | UrlAgent:
        kept = self._kept.get(source)
        if kept is None:
            if isinstance(source, FileSource):
                kept = FileAgent(source, self._copies)
            else:
                kept = UrlAgent(source, self._policy)
            self._kept[source] = kept
        return kept


def _only_one(key: str, sources: Sequence[Single], error: type[InvalidRequest]) -> Single:
    if len(sources) > 1:
        places = " and ".join(source.where for source in sources)
        raise error(
            f"{len(sources)} sources have the same key {key!r}: {places}; rename or remove all but one"
        )
    return sources[0]


@cache
def _builtin(name: str) -> Definition:
    if name == SCRIPTED:
        spec = scripted_agent()
        return Definition(spec.name, {spec.name: spec})
    from lastgood.agents.agent_file import read_agent_file

    file = read_agent_file(builtin_file(name), where=f"{name}.yaml", key=name)
    return Definition(file.root, file.agents)


def _not_there(reference: str) -> str:
    provider, _, model = reference.partition("/")
    if model and provider in PROVIDERS and provider != "builtin":
        return (
            f"{reference!r} is a model, not an agent; name it beside an agent: "
            f"`lastgood run default --model {reference}`, or as `model` in an agent file"
        )
    return (
        f"file {reference!r} not found, and pulling from a registry is not supported yet; save the agent "
        f"as a file and serve that, or use a built-in agent: {', '.join(BUILTIN_NAMES)}"
    )
