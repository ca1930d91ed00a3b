"""`lastgood agents list`, on real processes: what `lastgood serve` would serve, and what is wrong with it."""

import os
from pathlib import Path

import pytest

from tests.e2e.command import AGENT, Done
from tests.forkserver import fork_server, interpreter_variables

GOOD = "agents:\n  root:\n    model: openai/gpt-5-mini\n    description: Knows things.\n"
WARNED = GOOD + "    cache: {enabled: true}\n"
BROKEN = "agents:\n  root:\n    modle: auto\n"


class Listing:
    """`lastgood agents list` in a folder, with no keys but those it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys: dict[str, str] = {}

    def file(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def __call__(self, *args: str) -> Done:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **interpreter_variables(), **self.keys}
        ran = fork_server().run(["agents", "list", *args], env=env, cwd=self.folder)
        return Done(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    return Listing(tmp_path)


def test_without_a_name_it_is_what_serve_would_serve(listing: Listing) -> None:
    done = listing()
    first, *rest = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert first.split()[:2] == ["default", AGENT]
    assert ["offline" in line and line.startswith("  warning: ") for line in rest] == [True]


def test_a_line_has_the_key_the_model_and_the_description(listing: Listing) -> None:
    listing.file("all/one.yaml", GOOD)
    listing.file("all/two.yaml", GOOD.replace("model: openai/gpt-5-mini", "model: auto"))
    listing.keys = {"OPENAI_API_KEY": "sk-x"}
    done = listing("all", AGENT)
    assert (done.code, done.err) == (0, "")
    one, two, scripted = done.out.splitlines()
    assert one.split(maxsplit=2) == ["one", "openai/gpt-5-mini", "Knows things."]
    assert two.split(maxsplit=2)[:2] == ["two", "openai/gpt-5.4-mini"]
    assert scripted.split()[:2] == [AGENT, AGENT]


def test_the_first_error_is_reported(listing: Listing) -> None:
    listing.file("broken.yaml", BROKEN)
    listing.file("warned.yaml", WARNED)
    listing.file("model.yaml", GOOD.replace("openai/gpt-5-mini", "builtin/nobody"))
    listing.keys = {"OPENAI_API_KEY": "sk-x"}
    done = listing("broken.yaml", "warned.yaml", "model.yaml", "docker.io/org/agent:v1")
    assert (done.code, done.err) == (1, "")
    received = done.out.splitlines()
    assert received[0].split()[:1] == ["broken"]
    assert received[1].startswith("  error: ")
    assert "broken.yaml:3: unknown key 'modle'; did you mean 'model'?" in received[1]
    assert received[2].split()[:2] == ["warned", "openai/gpt-5-mini"]
    assert received[3].startswith("  warning: ")
    assert "'cache' is not supported yet" in received[3]
    assert received[5].startswith("  error: ")
    assert "builtin has builtin/scripted" in received[5]
    assert "registry is not supported yet" in received[7]
    assert len(received) == 8


def test_warnings_alone_are_no_failure(listing: Listing) -> None:
    listing.file("warned.yaml", WARNED)
    listing.keys = {"OPENAI_API_KEY": "sk-x"}
    assert listing("warned.yaml").code == 0


def test_a_missing_key_is_reported_and_may_come_from_a_file(listing: Listing) -> None:
    listing.file("one.yaml", GOOD)
    done = listing("one.yaml")
    assert done.code == 0
    assert "  warning: no API key for openai/gpt-5-mini; set OPENAI_API_KEY" in done.out
    listing.file("keys", "OPENAI_API_KEY=sk-x\n")
    (listing.folder / "keys").chmod(0o600)
    assert "warning" not in listing("one.yaml", "--env-file", "keys").out


def test_scripts_get_all_that_is_wrong(listing: Listing) -> None:
    listing.file("broken.yaml", BROKEN)
    listing.file("warned.yaml", WARNED)
    done = listing("broken.yaml", "warned.yaml", "--json")
    assert done.code == 1
    broken, warned = done.json
    assert (broken["key"], broken["ok"], broken["model"]) == ("broken", False, None)
    assert [one["level"] for one in broken["findings"]] == ["error"]
    assert {name: warned[name] for name in ("key", "ok", "model", "description")} == {
        "key": "warned",
        "ok": True,
        "model": "openai/gpt-5-mini",
        "description": "Knows things.",
    }
    assert [one["level"] for one in warned["findings"]] == ["warning", "warning"]


def test_names_come_from_lastgood_toml(listing: Listing) -> None:
    listing.file("sub/one.yaml", GOOD)
    listing.file("lastgood.toml", '[agents]\nmine = "sub/one.yaml"\n')
    assert listing("mine").out.split()[:2] == ["one", "openai/gpt-5-mini"]


def test_a_folder_without_agent_files_is_said_to_be_one(listing: Listing) -> None:
    (listing.folder / "empty").mkdir()
    done = listing("empty")
    assert (done.code, done.out) == (0, "")
    assert "no agent" in done.err
    assert listing("empty", "--json").json == []


def test_what_serve_would_not_start_with_is_refused_alike(listing: Listing) -> None:
    listing.file("a/one.yaml", GOOD)
    listing.file("b/one.yaml", GOOD)
    for args, words in ((("none.yaml",), "not found"), (("a", "b"), "have the same key 'one'")):
        done = listing(*args)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert words in done.err
