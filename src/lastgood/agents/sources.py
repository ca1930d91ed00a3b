"""From what a person types to where an agent comes from, and the key it is served under.

A reference is, in this order: an alias, a built-in name, a URL, a file or a folder, an OCI
reference. A file's key is its stem, a folder has one per agent file, a URL's is its
query-escaped whole, an OCI reference's its safe form, a built-in's its name. Which of the
keys a session means is decided in `core/agent_identity`.

Checks whether a file exists. Reads no file and sends no request.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_plus

from lastgood.agents.builtin import BUILTIN_NAMES
from lastgood.core.egress import Denial, Policy, judge_url, shown
from lastgood.errors import InvalidRequest
from lastgood.model.agents import AgentSpec

#: An operator names URLs, so this machine may be one of them.
URL_POLICY = Policy(loopback=True)

SUFFIXES = (".yaml", ".yml")
_UNSAFE = str.maketrans(dict.fromkeys('/:@\\*?"<>|', "_"))
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI = re.compile(
    rf"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:\d))(?::\d{{1,5}})?/)?"
    rf"{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)


class AgentAlias(Protocol):
    """A name that the operator gave to a reference. Paths in it start at `folder`."""

    @property
    def source(self) -> str: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class FileSource:
    path: Path

    @property
    def key(self) -> str:
        return self.path.stem

    @property
    def where(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class DirectorySource:
    path: Path

    @property
    def where(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class UrlSource:
    url: str
    trusted: bool = False  # an untrusted file has fewer rights than a local one

    @property
    def key(self) -> str:
        return quote_plus(self.url, safe="")

    @property
    def where(self) -> str:
        return shown(self.url)


@dataclass(frozen=True, slots=True)
class BuiltinSource:
    name: str

    @property
    def key(self) -> str:
        return self.name

    @property
    def where(self) -> str:
        return f"the built-in agent {self.name}"


@dataclass(frozen=True, slots=True)
class OciSource:
    reference: str

    @property
    def key(self) -> str:
        safe = self.reference.translate(_UNSAFE)
        return safe if safe.endswith(".yaml") else f"{safe}.yaml"

    @property
    def where(self) -> str:
        return f"the registry reference {self.reference}"


@dataclass(frozen=True, slots=True)
class FixedSource:
    """An agent that is there already, and never changes."""

    spec: AgentSpec

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def where(self) -> str:
        return f"the agent {self.spec.name}"


@dataclass(frozen=True, slots=True)
class Definition:
    """The agents of one source. `stale`: why this is the last good definition and not the newest."""

    root: str
    agents: Mapping[str, AgentSpec]
    stale: str = ""


#: Where one agent comes from; a directory is the place of several.
Single = FileSource | UrlSource | BuiltinSource | OciSource | FixedSource
Source = Single | DirectorySource


def parse(
    reference: str, aliases: Mapping[str, AgentAlias] | None = None, *, folder: Path | None = None
) -> Source:
    """Returns the source that the reference means now. An alias names a reference, never another alias."""
    alias = (aliases or {}).get(reference)
    if alias is not None:
        return _parse_plain(alias.source, alias.folder, trusted=alias.trusted)
    return _parse_plain(reference, folder or Path.cwd(), trusted=False)


def _parse_plain(reference: str, folder: Path, *, trusted: bool) -> Source:
    if not reference.strip() or "\0" in reference:
        raise InvalidRequest("missing agent; pass a file, a folder, a URL or a built-in agent")
    if reference in BUILTIN_NAMES:
        return BuiltinSource(reference)
    if "://" in reference:
        judged = judge_url(reference, URL_POLICY)
        if isinstance(judged, Denial):
            raise InvalidRequest(f"{shown(reference)} cannot be used as an agent URL: {judged.reason}")
        return UrlSource(reference, trusted)
    path = folder / Path(reference).expanduser()
    try:
        kind = path.stat().st_mode
    except OSError as error:
        return _not_a_path(reference, path, error)
    if stat.S_ISDIR(kind):
        return DirectorySource(path)
    if not stat.S_ISREG(kind):
        raise InvalidRequest(f"{path} is not a regular file")
    return FileSource(path)


def _not_a_path(reference: str, path: Path, error: OSError) -> OciSource:
    looks_like_one = reference.startswith((".", "/", "~")) or reference.endswith("/")
    if looks_like_one or path.suffix.lower() in SUFFIXES:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InvalidRequest(f"file or folder {path} not found; `lastgood init` creates an agent file")
        raise InvalidRequest(f"cannot read {path}: {error.strerror}")
    if _OCI.fullmatch(reference):
        return OciSource(reference)
    names = ", ".join(BUILTIN_NAMES)
    raise InvalidRequest(
        f"unknown agent {reference!r}: not a name in lastgood.toml, not a built-in agent ({names}), "
        "not a URL, file, folder or registry reference"
    )
