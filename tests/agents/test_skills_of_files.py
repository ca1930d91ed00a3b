"""The skills that a file gives its agents."""

from typing import Any

import pytest

from tests.agents.corpus import errors_of, parse, warnings_of

SKILLS = """
toolsets: {web: {type: fetch}}
skills:
  shared: [local, one]
agents:
  root:
    model: auto
    skills: %s
    use_skills: [%s]
"""


def skills_of(skills: str, group: str = "shared", *, trusted: bool = True) -> dict[str, Any]:
    [spec] = parse(SKILLS % (skills, group), trusted=trusted).agents["root"].toolsets
    assert spec.type == "skills"
    return dict(spec.options)


def test_skills_are_sources_names_and_definitions() -> None:
    inline = "{name: two, description: d, instructions: i, context: fork, toolsets: [web]}"
    found = skills_of(f"[https://skills.example.com, three, {inline}]")
    assert found["sources"] == ("https://skills.example.com", "local")
    assert found["include"] == ("three", "one")
    [skill] = found["inline"]
    assert (skill["name"], skill["toolsets"]) == ("two", ["web"])
    assert skills_of("false")["sources"] == ("local",)
    text = "agents: {root: {model: auto, skills: %s}}"
    [spec] = parse(text % "[one]").agents["root"].toolsets
    assert spec.options["sources"] == ("local",)
    assert parse(text % "false").agents["root"].toolsets == ()


@pytest.mark.parametrize(
    ("skills", "group", "words"),
    [
        ("true", "shraed", "'shraed' is not in `skills`; did you mean 'shared'?"),
        ("['a b']", "shared", "'a b' is not a source or name of skills"),
        ("[{name: a/b, description: d, instructions: i}]", "shared", "'a/b' is not a valid name of a skill"),
        ("[{name: a, description: d, instructions: i, model: auto}]", "shared", "with `context: fork` only"),
        (
            "[{name: a, description: d, instructions: i, context: fork, model: nobody}]",
            "shared",
            "unknown model 'nobody'",
        ),
        (
            "[{name: a, description: d, instructions: i, context: fork, toolsets: [wbe]}]",
            "shared",
            "'wbe' is not in `toolsets`; did you mean 'web'?",
        ),
    ],
)
def test_a_skill_that_cannot_work_is_an_error(skills: str, group: str, words: str) -> None:
    [(_, message)] = errors_of(SKILLS % (skills, group))
    assert words in message


def test_I39_a_file_from_a_url_gets_no_local_skills() -> None:
    assert skills_of("[https://skills.example.com]", trusted=False)["sources"] == (
        "https://skills.example.com",
    )
    messages = [message for _, message in warnings_of(SKILLS % ("true", "shared"), trusted=False)]
    assert len(messages) == 2
    assert all("gets no skills of this machine" in message for message in messages)


def test_an_agent_on_a_runtime_gets_no_skills_and_the_file_says_so() -> None:
    text = "agents: {root: {harness: {type: codex}, skills: true}}"
    [(_, message)] = warnings_of(text)
    assert "'skills' is ignored: the CLI has skills of its own" in message
    assert parse(text).agents["root"].toolsets == ()
