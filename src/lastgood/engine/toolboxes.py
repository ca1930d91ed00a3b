"""The tools of a session, built once and kept from turn to turn, and their working directory.

A session's working directory is set when the session is created. Without one, a folder is created when a tool
first needs it and deleted with the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import orjson

from lastgood.core.deferred_tools import ADD, SEARCH
from lastgood.core.globs import Glob
from lastgood.core.speaker import HANDOFF, TRANSFER
from lastgood.core.toon import globs_of
from lastgood.engine.tools.program_tools import LiveProgram, LiveToolsets, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, Toolsets
from lastgood.engine.tools.toon_results import with_toon_results
from lastgood.errors import InvalidRequest, TurnFailed
from lastgood.model.agents import AgentSpec, Effect, ToolsetSpec
from lastgood.model.ids import SessionId

#: Where an instruction has that of the toolset itself; those that come with the server have none.
_ORIGINAL = "{ORIGINAL_INSTRUCTIONS}"
#: What the loop offers itself. A program with such a tool would be taken for it, or a request would have two
#: tools of one name, which providers refuse.
_LOOP_TOOLS = frozenset({ADD, HANDOFF, SEARCH, TRANSFER})
#: Sessions whose tools are kept built. Losing one costs building it again, and the memory of its programs.
_MOST = 512


@dataclass(slots=True)
class Toolbox:
    """The tools of one version of an agent's file, by agent and by name."""

    digest: str
    toolsets: Toolsets
    live: LiveToolsets
    _built: dict[str, Mapping[str, Tool]] = field(default_factory=dict)
    _deferred: dict[str, frozenset[str]] = field(default_factory=dict)
    _models: dict[str, dict[str, str]] = field(default_factory=dict)
    _program_tools: dict[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    _specs: dict[str, Mapping[str, ToolsetSpec]] = field(default_factory=dict)
    _programs: dict[bytes, LiveProgram] = field(default_factory=dict)
    _offers: dict[str, Sequence[tuple[ToolsetSpec, Offer]]] = field(default_factory=dict)
    #: By agent and program, the names that its tools had when it was last there.
    _reserved: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)

    def tools_of(self, agent: AgentSpec) -> Mapping[str, Tool]:
        """Of programs, the tools of their last listing."""
        built = self._built.get(agent.name)
        if built is None:
            built = self._built[agent.name] = self._build(agent)
        return built

    def deferred_of(self, agent: AgentSpec) -> frozenset[str]:
        """The names of its deferred tools, which the model must search for first."""
        self.tools_of(agent)
        return self._deferred[agent.name]

    def models_of(self, agent: AgentSpec) -> Mapping[str, str]:
        """By the name of a tool, the model that is called with its results, where that is not the agent's."""
        self.tools_of(agent)
        return self._models[agent.name]

    def program_tools(self, agent: AgentSpec, tool: str) -> frozenset[str]:
        """The names of all tools of the program that a tool belongs to; none if it belongs to no program."""
        self.tools_of(agent)
        return self._program_tools[agent.name].get(tool, frozenset())

    def definition_of(self, agent: AgentSpec, tool: str) -> str:
        """A digest of what the agent file, or the document that it names, says of the tool, such as its
        command. Empty: the tool is ours."""
        tools = self.tools_of(agent)
        spec = self._specs[agent.name].get(tool)
        if spec is None:
            return ""
        said = [spec.type, spec.trusted, dict(spec.options), tools[tool].definition]
        return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def _build(self, agent: AgentSpec) -> Mapping[str, Tool]:
        offers = enumerate(self._offers.get(agent.name, ()))
        ours = [
            _usable(spec, self.toolsets[spec.type](spec)) if spec.type in self.toolsets else ()
            for spec in agent.toolsets
        ]
        built: dict[str, Tool] = {}
        deferred: set[str] = set()
        models: dict[str, str] = {}
        program_tools: dict[str, frozenset[str]] = {}
        specs: dict[str, ToolsetSpec] = {}
        # A program's tool never takes the place of another one: rules for that name meant the other. That
        # holds while a program before it in the file does not run, too.
        taken = {tool.name for tools in ours for tool in tools} | _LOOP_TOOLS
        for spec, tools in zip(agent.toolsets, ours, strict=True):
            for tool in tools:
                built[tool.name], specs[tool.name] = tool, spec
                _note_model(models, spec, tool.name)
                # A later toolset with a tool of this name decides again.
                deferred.discard(tool.name)
                deferred |= {tool.name} if _is_deferred(spec, tool.name) else set()
            if spec.type in self.live and (offered := next(offers, None)) is not None:
                place, (_, offer) = offered
                names: set[str] = set()
                for tool in _usable(spec, offer.tools):
                    name = _free_name(tool.name, offer.label, taken)
                    built[name], specs[name] = replace(tool, name=name), spec
                    names.add(name)
                    taken.add(name)
                    _note_model(models, spec, name)
                    deferred |= {name} if _is_deferred(spec, tool.name) else set()
                program_tools |= dict.fromkeys(names, frozenset(names))
                if not offer.problem:
                    self._reserved[agent.name, place] = frozenset(names)
                taken |= self._reserved.get((agent.name, place), frozenset())
        self._program_tools[agent.name], self._specs[agent.name] = program_tools, specs
        self._deferred[agent.name], self._models[agent.name] = frozenset(deferred), models
        return built

    async def ask_programs(self, agent: AgentSpec, place: SessionPlace) -> None:
        """Starts what has to run for this agent. TurnFailed: one that it requires is not there."""
        specs = [spec for spec in agent.toolsets if spec.type in self.live]
        if not specs:
            return
        offers = await asyncio.gather(*(self._program(spec, place).offer() for spec in specs))
        for offer in offers:
            if offer.problem and offer.is_required:
                raise TurnFailed(f"{offer.problem}. The agent's file requires it; nothing was committed")
        self._offers[agent.name] = tuple(zip(specs, offers, strict=True))
        self._built.pop(agent.name, None)

    def _program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        """One for the session, however many of its agents use it."""
        said = [spec.type, spec.tools, spec.instruction, dict(spec.options)]
        key = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
        if key not in self._programs:
            self._programs[key] = self.live[spec.type].program(spec, place)
        return self._programs[key]

    @property
    def has_programs(self) -> bool:
        return bool(self._programs)

    def instructions_of(self, agent: AgentSpec) -> Iterator[str]:
        """How its tools are to be used, and which of them are missing."""
        for spec in agent.toolsets:
            if spec.type in self.toolsets:
                yield spec.instruction.replace(_ORIGINAL, "")
        for _, offer in self._offers.get(agent.name, ()):
            yield offer.instruction
            yield f"{offer.problem}. Its tools are missing in this turn." if offer.problem else ""

    async def close(self) -> None:
        programs, self._programs = list(self._programs.values()), {}
        await asyncio.gather(*(program.close() for program in programs))


def _free_name(name: str, label: str, taken: Collection[str]) -> str:
    """`name`, with the label of its program or a number where another tool has it. At most 64 characters."""
    if name not in taken:
        return name
    labelled = found = f"{label}_{name}"[-64:]
    number = 1
    while found in taken:
        number += 1
        found = f"{labelled[:-4] if len(labelled) > 60 else labelled}_{number}"
    return found


def _is_deferred(spec: ToolsetSpec, name: str) -> bool:
    defer = spec.options.get("defer", False)
    return defer if isinstance(defer, bool) else name in defer


def _note_model(models: dict[str, str], spec: ToolsetSpec, tool: str) -> None:
    if ref := spec.options.get("model"):
        models[tool] = str(ref)
    else:
        models.pop(tool, None)


def _usable(spec: ToolsetSpec, tools: Sequence[Tool]) -> Sequence[Tool]:
    """A read-only toolset has only the tools that are known to change nothing, a skill those it names."""
    if spec.only:
        tools = [tool for tool in tools if any(Glob(one).matches(tool.name) for one in spec.only)]
    if spec.options.get("readonly"):
        tools = [tool for tool in tools if tool.effect is Effect.SAFE]
    # A to-do list is read from its own results.
    if (patterns := spec.options.get("toon")) and spec.type != "todo":
        globs = globs_of(patterns)
        tools = [
            with_toon_results(tool) if any(glob.matches(tool.name) for glob in globs) else tool
            for tool in tools
        ]
    return tools


class Toolboxes:
    def __init__(
        self, toolsets: Toolsets, live: LiveToolsets, work_dirs: Path | None, root: Path | None
    ) -> None:
        """`work_dirs` is where sessions without a working directory get theirs; `root` bounds given ones."""
        self._toolsets = toolsets
        self._live = live
        self._closing: set[asyncio.Task[None]] = set()
        self._work_dirs = work_dirs
        self._root = root
        self._kept: OrderedDict[SessionId, Toolbox] = OrderedDict()
        self._in_use: Counter[SessionId] = Counter()

    @property
    def live_types(self) -> Collection[str]:
        return self._live.keys()

    def of(self, session: SessionId, agent: AgentSpec) -> Toolbox:
        kept = self._kept.get(session)
        if kept is None or kept.digest != agent.digest:
            self._put_away(kept)
            kept = self._kept[session] = Toolbox(agent.digest, self._toolsets, self._live)
        self._kept.move_to_end(session)
        if (surplus := len(self._kept) - _MOST) > 0:
            # A running turn would lose its programs, in the middle of a call perhaps.
            unused = (one for one in self._kept if one != session and one not in self._in_use)
            for one in list(islice(unused, surplus)):
                self._put_away(self._kept.pop(one))
        return kept

    @contextmanager
    def in_use(self, session: SessionId) -> Iterator[None]:
        """While a turn of the session runs. More sessions than `_MOST` are kept if so many have one."""
        self._in_use[session] += 1
        try:
            yield
        finally:
            self._in_use[session] -= 1
            if not self._in_use[session]:
                del self._in_use[session]

    def idle_sessions(self) -> Sequence[SessionId]:
        """Those with programs that no turn uses now."""
        return [one for one, box in self._kept.items() if box.has_programs and one not in self._in_use]

    def _put_away(self, toolbox: Toolbox | None) -> None:
        if toolbox is not None and toolbox.has_programs:
            closing = asyncio.create_task(toolbox.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for toolset in self._live.values():
            await toolset.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def forget(self, session: SessionId) -> None:
        if (toolbox := self._kept.pop(session, None)) is not None:
            await toolbox.close()
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
