"""What is built for a session and kept from turn to turn: the tools of its agents, and where they work.

A session's working directory is given when it is made. One without has a folder of
its own, made when a tool first needs it and erased with the session.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lastgood.engine.tools.tool import Tool, Toolsets
from lastgood.errors import InvalidRequest
from lastgood.model.agents import AgentSpec
from lastgood.model.ids import SessionId

#: Sessions whose tools are kept built. Losing one costs building it again.
_MOST = 512


@dataclass(slots=True)
class Toolbox:
    """The tools of one version of an agent's file, by agent and by name."""

    digest: str
    toolsets: Toolsets
    _built: dict[str, Mapping[str, Tool]] = field(default_factory=dict)

    def tools_of(self, agent: AgentSpec) -> Mapping[str, Tool]:
        built = self._built.get(agent.name)
        if built is None:
            built = self._built[agent.name] = {
                tool.name: tool
                for spec in agent.toolsets
                if spec.type in self.toolsets
                for tool in self.toolsets[spec.type](spec)
            }
        return built


class Toolboxes:
    def __init__(self, toolsets: Toolsets, work_dirs: Path | None, root: Path | None) -> None:
        """`work_dirs` is where sessions without a working directory get theirs; `root` bounds given ones."""
        self._toolsets = toolsets
        self._work_dirs = work_dirs
        self._root = root
        self._kept: OrderedDict[SessionId, Toolbox] = OrderedDict()

    @property
    def types(self) -> Collection[str]:
        return self._toolsets.keys()

    def of(self, session: SessionId, agent: AgentSpec) -> Toolbox:
        kept = self._kept.get(session)
        if kept is None or kept.digest != agent.digest:
            kept = self._kept[session] = Toolbox(agent.digest, self._toolsets)
        self._kept.move_to_end(session)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return kept

    async def forget(self, session: SessionId) -> None:
        self._kept.pop(session, None)
        if self._work_dirs is not None:
            await asyncio.to_thread(shutil.rmtree, self._work_dirs / session, ignore_errors=True)

    # -- where they work -----------------------------------------------------------

    def check(self, path: str) -> str:
        if ".." in Path(path).parts or "\x00" in path or not Path(path).is_absolute():
            raise InvalidRequest(f"the working directory must be an absolute path without '..', not {path!r}")
        return str(self._under_root(path))

    def _under_root(self, path: str) -> Path:
        """Resolved, symlinks too, on both sides; checked again whenever it is used."""
        try:
            folder = Path(path).resolve(strict=True)
            why = "" if folder.is_dir() else "it is not a directory"
        except OSError as error:
            folder, why = Path(path), error.strerror or "it cannot be read"
        except RuntimeError:  # before Python 3.13
            folder, why = Path(path), "it is a symbolic link to itself"
        # Nothing outside the root is disclosed, not even whether it exists.
        if self._root is not None and not folder.is_relative_to(self._root.resolve()):
            raise InvalidRequest(
                f"the working directory {path} is not below the server's --working-dir-root; "
                "choose another one, or change the setting"
            )
        if why:
            raise InvalidRequest(f"the working directory {path} cannot be used: {why}")
        return folder

    def working_dir(self, session: SessionId, given: str | None) -> Path | None:
        if given is not None:
            return self._under_root(given)
        if self._work_dirs is None:
            return None
        folder = self._work_dirs / session
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
