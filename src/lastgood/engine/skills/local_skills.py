"""The skills in folders of this machine: of the server's user, and of a session's working directory.

Every file is opened under the folder that bounds it, links included.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from lastgood.core.skills import MOST_FILES, MOST_SKILLS, ListedSkill, header_of, is_skill_file
from lastgood.engine.skills.skill import HEADER_BYTES, SKILL_BYTES, Found, Skill, cut
from lastgood.engine.tools.cancellation import StopSignal, in_thread
from lastgood.engine.tools.directory_listing import Entry, entries_under
from lastgood.engine.tools.rooted_files import Root, read_under
from lastgood.engine.tools.tool import ToolFailed

SKILL_FILE = "SKILL.md"
#: Below the home of the server's user, and how deep skills may lie in them.
HOME_FOLDERS = ((".codex/skills", 4), (".claude/skills", 1), (".agents/skills", 4))
#: Below a session's working directory.
WORK_FOLDERS = ((".claude/skills", 1), (".github/skills", 1), (".agents/skills", 1))
#: Folders that are looked into in one search.
_MOST_FOLDERS = 2000


async def local_skills(home: str | None, working_dir: Path | None) -> Found:
    """Of two skills with one name the later one counts: the working directory goes before the home."""
    return await in_thread(lambda stop: _search(home, working_dir, stop))


def _search(home: str | None, working_dir: Path | None, stop: StopSignal) -> Found:
    search = _Search(stop)
    found: dict[str, Skill] = {}
    for folder, depth in HOME_FOLDERS if home else ():
        for skill in search.below(Root(Path(home or "") / folder), "", depth):
            found[skill.header.name] = skill
    for folder, depth in WORK_FOLDERS if working_dir else ():
        for skill in search.below(Root(working_dir or Path()), folder, depth):
            found[skill.header.name] = replace(skill, is_trusted=False)
    if len(found) > MOST_SKILLS or not search.left:
        skills = tuple(islice(found.values(), MOST_SKILLS))
        return Found(skills, "The folders of skills hold more of them than are listed here.")
    return Found(tuple(found.values()))


@dataclass(slots=True)
class _Search:
    stop: StopSignal
    left: int = _MOST_FOLDERS

    def below(self, root: Root, folder: str, depth: int) -> Iterator[Skill]:
        for entry in _entries(root, folder):
            if not entry.is_folder or entry.name.startswith(".") or not self.left:
                continue
            self.stop.check()
            self.left -= 1
            inner = posixpath.join(folder, entry.name)
            skill = self._skill(root, inner, entry.name)
            yield from () if skill is None else (skill,)
            if depth > 1:
                yield from self.below(root, inner, depth - 1)

    def _skill(self, root: Root, folder: str, name: str) -> Skill | None:
        try:
            content = read_under(root, posixpath.join(folder, SKILL_FILE), HEADER_BYTES)
        except ToolFailed:
            return None
        header = header_of(content.data.decode(errors="replace"), name)
        if header is None:
            return None
        files = (path for path in self._files(root, folder) if path != SKILL_FILE and is_skill_file(path))
        return Skill(ListedSkill(header, tuple(islice(files, MOST_FILES))), partial(_read, root, folder))

    def _files(self, root: Root, folder: str) -> Iterator[str]:
        """What lies beside SKILL.md, one folder deep."""
        found = [entry for entry in _entries(root, folder) if not entry.name.startswith(".")]
        yield from (entry.name for entry in found if entry.kind == "file")
        for entry in found:
            if entry.is_folder and self.left:
                self.stop.check()
                self.left -= 1
                inner = _entries(root, posixpath.join(folder, entry.name))
                yield from (f"{entry.name}/{one.name}" for one in inner if one.kind == "file")


def _entries(root: Root, folder: str) -> list[Entry]:
    with suppress(ToolFailed):
        return entries_under(root, folder)
    return []


async def _read(root: Root, folder: str, path: str) -> str:
    def read(stop: StopSignal) -> str:
        content = read_under(root, posixpath.join(folder, path), SKILL_BYTES)
        return cut(content.data.decode(errors="replace"), content.is_cut)

    return await in_thread(read)
