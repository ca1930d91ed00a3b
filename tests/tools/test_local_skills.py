"""Folders of skills without a server: what a search of them may cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.core.skills import MOST_FILES
from lastgood.engine.skills.local_skills import local_skills

pytestmark = pytest.mark.anyio


def skill(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}\n---\nDo it.")
    return folder / name


async def test_I40_folders_inside_of_skills_count_for_the_search(tmp_path: Path) -> None:
    """It is made before every model call, and the model itself can make folders."""
    folder = tmp_path / ".agents/skills"
    many = skill(folder, "many")
    for number in range(2100):
        (many / f"d{number}").mkdir()
    found = await local_skills(None, tmp_path)
    assert [one.header.name for one in found.skills] == ["many"]
    assert "hold more of them than are listed" in found.problem


async def test_files_beside_a_skill_are_listed_one_folder_deep(tmp_path: Path) -> None:
    one = skill(tmp_path / ".agents/skills", "one")
    for path in ("b.md", "scripts/run.sh", "scripts/deep/x", ".hidden/x", "scripts/with space", ".x"):
        (one / path).parent.mkdir(parents=True, exist_ok=True)
        (one / path).write_text("")
    [found] = (await local_skills(None, tmp_path)).skills
    assert found.listed.files == ("b.md", "scripts/run.sh")
    for number in range(MOST_FILES + 5):
        (one / f"f{number:03}").write_text("")
    [found] = (await local_skills(None, tmp_path)).skills
    assert len(found.listed.files) == MOST_FILES
