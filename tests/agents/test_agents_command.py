"""`lastgood agents check`, `lastgood agents schema` and `lastgood init`, as processes of their own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lastgood.agents.editor_schema import json_schema
from tests.agents.corpus import FILES, FOLDER, expected, findings_of
from tests.forkserver import fork_server

ROOT = Path(__file__).parents[2]
BROKEN = "agents:\n  root:\n    modle: auto\n    cache: {enabled: true}\n"


def lastgood(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return fork_server().run(list(map(str, args)), env=os.environ, cwd=cwd)


def test_check_explains_a_file(tmp_path: Path) -> None:
    done = lastgood("agents", "check", FOLDER / "shared-toolsets.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{FOLDER}/shared-toolsets.yaml: 3 agents",
        "  root (entry point): openai/gpt-5-mini",
        "    tools: todo",
        "    sub-agents: first, second",
        "  first: openai/gpt-5-mini",
        "    tools: shell, filesystem (read_file, list_directory, search_files_content), todo",
        "  second: openai/gpt-5-mini",
        "    tools: todo, filesystem (read_file, list_directory, search_files_content)",
        f"{FOLDER}/shared-toolsets.yaml:32:5: warning: 'cache' is not supported yet: "
        "every request goes to the model",
        f"{FOLDER}/shared-toolsets.yaml: valid, 1 warning",
    ]


def test_check_shows_who_wrote_a_file_and_what_for(tmp_path: Path) -> None:
    metadata = {
        "author": "Ada",
        "license": "MIT",
        "description": "Sums",
        "readme": "# Sums\nIt adds.",
        "version": "1.10",
        "tags": ["a", "b"],
    }
    file = {"agents": {"root": {"model": "auto"}}, "metadata": metadata}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(file))
    said = lastgood("agents", "check", "agent.yaml", cwd=tmp_path).stdout
    for line in (
        "author: Ada",
        "license: MIT",
        "description: Sums",
        "readme: # Sums",
        "version: 1.10",
        "tags: a, b",
    ):
        assert f"\n  {line}\n" in said
    received = json.loads(lastgood("agents", "check", "--json", "agent.yaml", cwd=tmp_path).stdout)
    assert received[0]["metadata"] == metadata


def test_check_spells_models_out(tmp_path: Path) -> None:
    files = ("translator.yaml", "whoever-is-there.yaml", "own-server.yaml", "night-shift.yaml", "fenced.yaml")
    said = lastgood("agents", "check", *(FOLDER / name for name in files), cwd=tmp_path).stdout
    for line in (
        "root (entry point): all, one of opus, gpt, mistral/mistral-large-latest per turn",
        "any, first available of anthropic/claude-sonnet-4-5, named, ollama/llama3.2",
        "root (entry point): small, cellar/qwen3-8b at http://localhost:8000/v1",
        "inline: router/deepseek/deepseek-chat at https://router.example.com/v1",
        "root (entry point): main, anthropic/claude-sonnet-4-5",
        "fallback models: spare, google/gemini-2.5-flash",
        "safety: restricted",
    ):
        assert line in said


def test_check_reports_findings_by_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    done = lastgood("agents", "check", "broken.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "broken.yaml:3:5: error: unknown key 'modle'; did you mean 'model'?",
        "broken.yaml:4:5: warning: 'cache' is not supported yet: every request goes to the model",
        "broken.yaml: invalid: 1 error, 1 warning",
    ]


def test_check_of_a_folder_is_of_every_agent_file_in_it(tmp_path: Path) -> None:
    done = lastgood("agents", "check", "--json", FOLDER, cwd=tmp_path)
    assert done.returncode == 0
    received = {Path(one["file"]).name: one for one in json.loads(done.stdout)}
    assert list(received) == [path.name for path in FILES]
    for path in FILES:
        found = [(one["line"], one["level"]) for one in received[path.name]["findings"]]
        assert found == [(line, level) for line, level, _ in expected(path)]
    news = received["newsroom.yaml"]
    assert (news["ok"], news["root"], news["version"]) == (True, "reporter", 9)
    assert news["agents"][0] == {
        "name": "reporter",
        "description": "Collects facts",
        "model": "anthropic/claude-sonnet-4-5",
        "tools": ["fetch"],
        "sub_agents": [],
        "handoffs": ["editor"],
        "commands": [],
    }


def test_check_continues_after_a_file_with_errors(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN)
    (tmp_path / "b.yml").write_text("agents: {root: {model: auto}}")
    (tmp_path / "c.txt").write_text("no agent file")
    done = lastgood("agents", "check", ".", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert [(one["file"], one["ok"]) for one in json.loads(done.stdout)] == [
        ("a.yaml", False),
        ("b.yml", True),
    ]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("nowhere.yaml", "file nowhere.yaml not found"),
        ("-", "file - not found"),
        ("empty", "no agent file (*.yaml, *.yml) in"),
    ],
)
def test_check_of_nothing_says_so(argument: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = lastgood("agents", "check", argument, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text(
        'agents: {root: {model: auto, description: "\\e[2J\\x07", "\\e[31m": 1}}'
    )
    done = lastgood("agents", "check", "evil.yaml", cwd=tmp_path)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b[31m" in done.stdout
    (tmp_path / "evil.yaml").write_text('agents: {root: {model: auto, description: "\\e[2J\\nsecond line"}}')
    done = lastgood("agents", "check", "evil.yaml", cwd=tmp_path)
    assert "    \\x1b[2J second line" in done.stdout.splitlines()


def test_the_schema_is_printed_and_the_one_in_the_docs_is_current(tmp_path: Path) -> None:
    done = lastgood("agents", "schema", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout) == json_schema()
    kept = ROOT / "docs" / "agent-file.schema.json"
    assert kept.read_text() == done.stdout, "run `lastgood agents schema > docs/agent-file.schema.json`"


def test_init_writes_a_file_that_nothing_is_wrong_with(tmp_path: Path) -> None:
    done = lastgood("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "lastgood agents check agent.yaml" in done.stdout
    written = (tmp_path / "agent.yaml").read_bytes()
    assert findings_of(written) == []
    checked = lastgood("agents", "check", "agent.yaml", cwd=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "agent.yaml: valid")


def test_the_command_that_init_prints_runs_beside_a_server(tmp_path: Path) -> None:
    """A server may hold the usual database: the command has one of its own, in the folder it was run in."""
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    printed = lastgood("init", cwd=folder).stdout.splitlines()[-1]
    done = lastgood(*shlex.split(printed)[1:], cwd=folder)
    assert (done.returncode, (folder / ".lastgood").is_dir()) == (0, True), done.stderr


def test_what_init_has_commented_out_works_as_well() -> None:
    """A line that people are invited to switch on must not be a mistake."""
    text = (ROOT / "src/lastgood/agents/builtin/starter.yaml").read_text()
    lines = [
        line.replace("# ", "", 1)
        if line.lstrip(" ").startswith(("# sub_agents", "# fallback", "#   ", "# models"))
        else line
        for line in text.splitlines()
    ]
    switched_on = "\n".join(lines) + "\n"
    assert switched_on.count("#") < text.count("#")
    switched_on = switched_on.replace("  root:\n", "  reviewer: {model: careful}\n  root:\n")
    assert findings_of(switched_on.encode()) == []


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    done = lastgood("init", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "mine.yaml already exists" in done.stderr
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_init_writes_to_the_given_path(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = lastgood("init", "folder", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"path": "folder/agent.yaml"}
    assert (tmp_path / "folder" / "agent.yaml").exists()
    done = lastgood("init", "missing/agent.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot write missing/agent.yaml: No such file or directory" in done.stderr


def test_help_reads_no_yaml_and_opens_no_network() -> None:
    script = """
import sys
from lastgood.cli import main
for words in (["--help"], ["agents", "--help"], ["agents", "check", "--help"], ["init", "--help"]):
    assert main(words) == 0
heavy = {"yaml", "aiohttp", "apsw", "asyncpg"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
