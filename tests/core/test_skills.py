"""What a skill is, and what the model reads about it."""

import pytest

from lastgood.core.skills import (
    COMMANDS_NOT_RUN,
    MOST_DESCRIPTION_CHARACTERS,
    MOST_LIST_CHARACTERS,
    MOST_PATH_CHARACTERS,
    ListedSkill,
    SkillHeader,
    about_skills,
    header_of,
    instructions_of,
    is_skill_file,
    is_skill_name,
)

WHOLE = """---
name: "audit"
description: Reviews a repository: finds what is wrong
context: fork
model: 'openai/gpt-5-mini'
allowed-tools:
  - read_file
  - "list_*"
toolsets: [web, 'git']
metadata:
  author: me
no colon
---

# Audit
"""


def test_a_header_has_every_field() -> None:
    assert header_of(WHOLE, "folder") == SkillHeader(
        "audit",
        "Reviews a repository: finds what is wrong",
        True,
        "openai/gpt-5-mini",
        ("read_file", "list_*"),
        ("web", "git"),
    )


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("---\ndescription: d\n---\nx", SkillHeader("folder", "d")),
        ("\ufeff---\r\ndescription: d\r\n---\r\nx", SkillHeader("folder", "d")),
        ("---\ndescription: >-\n  two\n  lines\n---\n", SkillHeader("folder", "two lines")),
        ("---\ndescription: d\n  more of it\n---\n", SkillHeader("folder", "d")),
        ("---\n- x\ndescription: d\n---\n", SkillHeader("folder", "d")),
        (
            "---\nallowed-tools: a, b\ndescription: d\n---\n",
            SkillHeader("folder", "d", allowed_tools=("a", "b")),
        ),
        ("---\nname: ../etc\ndescription: d\n---\n", None),
        ("---\nname: a\n---\n", None),
        ("---\nname: a\ndescription: never closed\n", None),
        ("# No header", None),
        ("", None),
    ],
)
def test_a_folder_without_a_good_header_is_no_skill(text: str, header: SkillHeader | None) -> None:
    assert header_of(text, "folder") == header


def test_a_long_description_is_cut() -> None:
    found = header_of(f"---\ndescription: {'x' * 5000}\n---\n", "a")
    assert found is not None
    assert len(found.description) == MOST_DESCRIPTION_CHARACTERS


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("a.md", True), ("references/FORMS.md", True), ("a b.md", False), ("", False), ("/a", False)]
    + [
        (path, False)
        for path in ("../a", "a/../b", "a//b", "a/", ".", "a\\b", "a?b", "a#b", "a%2e", "ä", "a\n")
    ],
)
def test_I38_a_file_of_a_skill_is_named_by_a_plain_path_below_it(path: str, is_one: bool) -> None:
    assert is_skill_file(path) is is_one


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("a", True),
        ("a.b-c_D1", True),
        (".a", False),
        ("a/b", False),
        ("", False),
        ("x" * 129, False),
        ("a\n", False),
    ],
)
def test_I38_a_name_is_one_component_of_a_path(name: str, is_one: bool) -> None:
    assert is_skill_name(name) is is_one


def test_instructions_are_without_the_header_and_say_that_commands_did_not_run() -> None:
    assert instructions_of(WHOLE) == "# Audit"
    assert instructions_of("no header") == "no header"
    assert instructions_of("run !`git log`\n") == f"run !`git log`\n\n{COMMANDS_NOT_RUN}"


def test_the_prompt_lists_skills_and_says_how_to_use_those_that_there_are() -> None:
    plain = ListedSkill(SkillHeader("a", "does\na"))
    assert about_skills([plain], ()).splitlines()[-1] == "- a: does a"
    text = about_skills([plain], ())
    assert "run_skill" not in text
    assert "read_skill_file" not in text
    forked = ListedSkill(SkillHeader("b", "does b", is_fork=True))
    filed = ListedSkill(SkillHeader("c", "does c"), ("x.md", "r/y.md"))
    text = about_skills([forked, filed], ["Some are missing."])
    assert "run_skill" in text
    assert text.endswith("- b (forked): does b\n- c: does c [files: x.md, r/y.md]\nSome are missing.")
    assert "read_skill_file" in text
    assert about_skills([], ["Some are missing."]) == "Some are missing."
    assert about_skills([], ()) == ""


def test_I40_the_list_in_every_prompt_is_limited() -> None:
    files = tuple("f" * (MOST_PATH_CHARACTERS - 3) + f"{number:03}" for number in range(50))
    skills = [ListedSkill(SkillHeader(f"s{number:03}", "d" * 1024), files) for number in range(200)]
    text = about_skills(skills, ["A site is down."])
    assert len(text) < MOST_LIST_CHARACTERS + 1000
    assert text.endswith(" more skills are not listed here]\nA site is down.")
    listed = text.count("\n- s")
    assert f"[{200 - listed} more skills" in text
    assert is_skill_file("a" * MOST_PATH_CHARACTERS)
    assert not is_skill_file("a" * (MOST_PATH_CHARACTERS + 1))
