"""Skills on a real server: of the file, of folders, of a site, and of an agent file from a URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

READ = "!tool read_skill "
INLINE = [
    {"name": "poem", "description": "Writes poems", "instructions": "Rhyme. !`date`"},
    {
        "name": "look",
        "description": "Looks around",
        "context": "fork",
        "allowed_tools": ["read_*"],
        "toolsets": ["thinking"],
        "instructions": '!tool write_file {"path": "x", "content": ""}\n'
        '!tool think {"thought": "hm"}\n!say seen',
    },
]


def write_skill(folder: Path, name: str, body: str, *header: str) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    lines = "\n".join((f"name: {name}", f"description: About {name}", *header))
    (folder / name / "SKILL.md").write_text(f"---\n{lines}\n---\n{body}\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One server and one home for all tests: the names of their skills differ."""
    return tmp_path_factory.mktemp("skills")


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[tuple[Path, str]]:
    folder = place / "site"
    skills = folder / ".well-known" / "skills"
    write_skill(skills, "remote", "from the site")
    (skills / "remote" / "more.md").write_text("more of it")
    entry = {"name": "remote", "description": "Is far away", "files": ["SKILL.md", "more.md", "../../secret"]}
    index = {"skills": [entry, {"name": "../x", "description": "bad"}, 7]}
    (skills / "index.json").write_text(json.dumps(index))
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    Thread(target=web.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{web.server_address[1]}"
    web.shutdown()
    web.server_close()


@pytest.fixture(scope="module")
def home(place: Path) -> Path:
    return place / "home"


@pytest.fixture
def work(place: Path, request: pytest.FixtureRequest) -> Path:
    folder: Path = place / request.node.name
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def server(place: Path, site: tuple[Path, str], home: Path) -> Iterator[LiveServer]:
    folder, url = site
    toolsets = [{"type": "filesystem"}]

    def agent(skills: Any) -> dict[str, Any]:
        root = {"model": "builtin/scripted", "toolsets": toolsets, "skills": skills}
        return {"agents": {"root": root}, "toolsets": {"thinking": {"type": "think"}}}

    files = {
        "inline": agent(INLINE),
        "local": agent(True),
        "chosen": agent(["wanted"]),
        "far": agent([url, "http://127.0.0.1:9"]),
    }
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump(text))
    (folder / "stranger.yaml").write_text(yaml.safe_dump(agent(["local", url, *INLINE])))
    served = [*(str(place / f"{name}.yaml") for name in files), f"{url}/stranger.yaml"]
    options = ("--safety", "autonomous", "--working-dir-root", str(place))
    with LiveServer(place, *served, options=options, env={"HOME": str(home)}) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def tool_result(api: Api, session: str, *lines: str) -> str:
    """The result of the last tool call of a good turn."""
    turn = api.good(session, "\n".join((*lines, "!say done")))
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def prompts(server: LiveServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.prompt_log.read_text().splitlines()]


def system(server: LiveServer) -> str:
    first = prompts(server)[-1]["prompt"][0]
    return str(first["content"]) if first["role"] == "system" else ""


def test_inline_skills_are_listed_and_read_and_their_commands_do_not_run(
    api: Api, server: LiveServer
) -> None:
    session = api.session("inline")
    text = tool_result(api, session, READ + '{"name": "poem"}')
    assert text.startswith("Rhyme. !`date`\n\n[This skill contains commands")
    assert "- look (forked): Looks around\n- poem: Writes poems" in system(server)
    assert "there is no skill 'other'; the skills are look, poem" in tool_result(
        api, session, READ + '{"name": "other"}'
    )
    assert "read it with read_skill" in tool_result(
        api, session, '!tool run_skill {"name": "poem", "task": "x"}'
    )


def test_a_forked_skill_runs_apart_with_the_tools_it_names(api: Api, server: LiveServer, work: Path) -> None:
    session = api.session("inline", working_dir=str(work))
    api.good(session, "my secret is 7")
    answer = tool_result(api, session, '!tool run_skill {"name": "look", "task": "around here"}')
    assert answer == "seen"
    assert not (work / "x").exists()
    inner = [one for one in prompts(server) if one.get("within") and "around here" in str(one)]
    assert len(inner) == 3
    assert not any("secret" in json.dumps(one["prompt"]) for one in inner)
    results = [one["content"] for one in inner[-1]["prompt"] if one["role"] == "tool"]
    assert results == ["error: unknown tool 'write_file'", "Thoughts:\nhm"]
    assert "The request: around here" in inner[0]["prompt"][1]["content"]
    assert "You run the skill look" in inner[0]["prompt"][0]["content"]
    # The agent itself has its own tools again, and not those that the skill added.
    assert "unknown tool 'think'" in tool_result(api, session, '!tool think {"thought": "x"}')
    assert "x" in tool_result(api, session, '!tool write_file {"path": "x", "content": "y"}')


def test_local_skills_are_those_of_the_home_and_of_the_working_directory_which_wins(
    api: Api, server: LiveServer, home: Path, work: Path
) -> None:
    write_skill(home / ".claude/skills", "same", "of the home")
    write_skill(home / ".agents/skills/team", "deep", "lies deep")
    write_skill(work / ".agents/skills", "same", "of the project")
    (work / ".agents/skills/same/notes.md").write_text("beside it")
    session = api.session("local", working_dir=str(work))
    assert tool_result(api, session, READ + '{"name": "same"}') == "of the project"
    assert tool_result(api, session, READ + '{"name": "deep"}') == "lies deep"
    assert "- deep: About deep\n" in system(server)
    assert "- same: About same [files: notes.md]" in system(server)
    file = '!tool read_skill_file {"skill_name": "same", "path": "%s"}'
    assert tool_result(api, session, file % "notes.md") == "beside it"
    assert tool_result(api, api.session("local"), READ + '{"name": "same"}') == "of the home"
    # Edited, and there at the next call.
    write_skill(work / ".agents/skills", "same", "edited")
    assert tool_result(api, session, READ + '{"name": "same"}') == "edited"


def test_only_the_named_skills_count(api: Api, server: LiveServer, home: Path) -> None:
    for name in ("wanted", "unwanted"):
        write_skill(home / ".claude/skills", name, name)
    session = api.session("chosen")
    assert tool_result(api, session, READ + '{"name": "wanted"}') == "wanted"
    assert "the skills are wanted" in tool_result(api, session, READ + '{"name": "unwanted"}')
    assert "unwanted" not in system(server).split("Skills:")[1]


def test_I38_nothing_outside_a_skill_is_read(api: Api, work: Path, place: Path) -> None:
    (place / "secret.md").write_text("SECRET")
    skills = work / ".agents/skills"
    write_skill(skills, "sly", "instructions")
    (skills / "sly" / "link.md").symlink_to(place / "secret.md")
    (skills / "sly" / "plain.md").write_text("plain")
    (skills / "out").symlink_to(place)
    session = api.session("local", working_dir=str(work))
    for path in ("link.md", "../../../../secret.md", str(place / "secret.md"), "a/../../x"):
        arguments = json.dumps({"skill_name": "sly", "path": path})
        result = tool_result(api, session, f"!tool read_skill_file {arguments}")
        assert result.startswith("error: "), result
        assert "SECRET" not in result


def test_a_skill_of_the_working_directory_adds_no_toolsets(api: Api, home: Path, work: Path) -> None:
    call = '!tool run_skill {"name": "%s", "task": "x"}'
    for folder, name in ((work / ".agents/skills", "sly"), (home / ".agents/skills", "good")):
        write_skill(
            folder, name, '!tool think {"thought": "t"}\n!say ran', "context: fork", "toolsets: thinking"
        )
    session = api.session("local", working_dir=str(work))
    assert "a skill in a working directory may not" in tool_result(api, session, call % "sly")
    assert tool_result(api, session, call % "good") == "ran"


def test_I39_a_site_is_listed_and_read_and_one_that_is_down_is_said(api: Api, server: LiveServer) -> None:
    session = api.session("far")
    assert tool_result(api, session, READ + '{"name": "remote"}') == "from the site"
    said = system(server)
    assert "- remote: Is far away [files: more.md]" in said
    assert "The skills of http://127.0.0.1:9 could not be listed" in said
    file = '!tool read_skill_file {"skill_name": "remote", "path": "more.md"}'
    assert tool_result(api, session, file) == "more of it"


def test_I39_an_agent_from_a_url_gets_its_own_skills_and_none_of_this_machine_or_its_network(
    api: Api, server: LiveServer, home: Path
) -> None:
    write_skill(home / ".claude/skills", "mine", "SECRET")
    listed = next(one for one in api.get("/api/agents") if "stranger" in one["name"])
    session = api.session(listed["name"])
    assert tool_result(api, session, READ + '{"name": "poem"}').startswith("Rhyme")
    said = system(server)
    assert "mine" not in said
    assert "remote:" not in said
    assert "could not be listed" in said
    assert "the skills are look, poem" in tool_result(api, session, READ + '{"name": "mine"}')


def test_I1_a_retry_continues_with_the_skill_as_it_was_read(api: Api, server: LiveServer, home: Path) -> None:
    body = '!tool write_file {"path": "a", "content": "%s"}\n!fail before 1\n!say %s'
    write_skill(home / ".agents/skills", "job", body % ("one", "first"), "context: fork")
    session = api.session("local")
    ask = '!tool run_skill {"name": "job", "task": "go"}\n!say done'
    failed = api.turn(session, ask, h_Idempotency_Key="k")
    assert failed.status >= 500, failed.body
    write_skill(home / ".agents/skills", "job", body % ("two", "second"), "context: fork")
    turn = api.good(session, ask, h_Idempotency_Key="k")
    assert [one["content"] for one in turn["messages"] if one["role"] == "tool"] == ["first"]
    inner = [one["prompt"] for one in prompts(server) if one.get("within") and 'name="job"' in str(one)]
    assert not any('"two"' in json.dumps(prompt) for prompt in inner)
    write_skill(home / ".agents/skills", "job", "!say third", "context: fork")
    assert tool_result(api, session, '!tool run_skill {"name": "job", "task": "go"}') == "third"


def test_a_forked_skill_that_needs_approval_is_asked_about_once_and_its_calls_keep_the_agents_rules(
    tmp_path: Path, home: Path
) -> None:
    write_skill(
        home / ".agents/skills",
        "job",
        '!tool write_file {"path": "a", "content": "b"}\n!say ok',
        "context: fork",
    )
    root = {"model": "builtin/scripted", "toolsets": [{"type": "filesystem"}], "skills": True}
    rules = {"deny": ["write_file"], "ask": ["run_skill"]}
    (tmp_path / "ruled.yaml").write_text(yaml.safe_dump({"agents": {"root": root}, "permissions": rules}))
    server = LiveServer(
        tmp_path, str(tmp_path / "ruled.yaml"), options=("--safety", "autonomous"), env={"HOME": str(home)}
    )
    with server:
        api = Api(server)
        session = api.session("ruled")
        api.begun(session, '!tool run_skill {"name": "job", "task": "go"}\n!say done')
        from tests.e2e.command import until

        until(lambda: api.get(f"/api/sessions/{session}/pending"))
        [question] = api.get(f"/api/sessions/{session}/pending")
        assert question["tool"] == "run_skill"
        assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 200
        api.until_idle(session)
        inner = [one["prompt"] for one in prompts(server) if one.get("within")]
        [denied] = [one["content"] for one in inner[-1] if one["role"] == "tool"]
        assert "write_file is not allowed" in denied
        assert ("tool", "ok") in api.history(session)


def test_a_forked_skill_gives_no_task_to_an_agent_with_other_tools(tmp_path: Path) -> None:
    written = '!tool write_file {"path": "x", "content": ""}'
    task = f"!tool transfer_task {json.dumps({'agent': 'clerk', 'task': written})}"
    skill = {"description": "d", "context": "fork", "instructions": f"{task}\n!say ran"}
    skills = [
        {"name": "bound", **skill, "allowed_tools": ["read_*"]},
        {"name": "wide", **skill, "allowed_tools": ["transfer_*", "read_*"]},
        {"name": "free", **skill},
    ]
    tools = {"model": "builtin/scripted", "toolsets": [{"type": "filesystem"}]}
    agents = {"root": {**tools, "skills": skills, "sub_agents": ["clerk"]}, "clerk": tools}
    (tmp_path / "team.yaml").write_text(yaml.safe_dump({"agents": agents}))
    options = ("--safety", "autonomous", "--working-dir-root", str(tmp_path))
    with LiveServer(tmp_path, str(tmp_path / "team.yaml"), options=options) as server:
        api = Api(server)
        for name, writes in (("bound", False), ("wide", True), ("free", True)):
            (tmp_path / name).mkdir()
            session = api.session("team", working_dir=str(tmp_path / name))
            call = f'!tool run_skill {{"name": "{name}", "task": "go"}}'
            assert tool_result(api, session, call) == "ran"
            assert (tmp_path / name / "x").exists() is writes


def test_a_skill_of_the_working_directory_chooses_only_from_the_models_of_the_file(tmp_path: Path) -> None:
    """The model may have written it. Nobody answers for the other model here."""
    models = {"spare": {"provider": "builtin", "model": "scripted"}}
    root = {"model": "builtin/scripted", "skills": True}
    (tmp_path / "local.yaml").write_text(yaml.safe_dump({"models": models, "agents": {"root": root}}))
    call = '!tool run_skill {"name": "%s", "task": "x"}\n!say done'
    folders = {"work": tmp_path / "work/.agents/skills", "home": tmp_path / "home/.agents/skills"}
    for where, folder in folders.items():
        write_skill(folder, f"dear-{where}", "!say ran", "context: fork", "model: openai/dear")
        write_skill(folder, f"spare-{where}", "!say ran", "context: fork", "model: spare")
    env = {"HOME": str(tmp_path / "home"), "OPENAI_API_KEY": "k"}
    options = ("--safety", "autonomous", "--working-dir-root", str(tmp_path))
    with LiveServer(tmp_path, str(tmp_path / "local.yaml"), options=options, env=env) as server:
        api = Api(server)
        session = api.session("local", working_dir=str(tmp_path / "work"))
        for name in ("dear-work", "spare-work", "spare-home"):
            turn = api.good(session, call % name)
            assert [one["content"] for one in turn["messages"] if one["role"] == "tool"] == ["ran"]
