"""What a person types, where the agent comes from, and the key it is served under (M1)."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.agents.catalog import Catalog
from lastgood.agents.sources import (
    BuiltinSource,
    DirectorySource,
    FileSource,
    OciSource,
    Source,
    UrlSource,
    parse,
)
from lastgood.core.agent_identity import stable_identity
from lastgood.errors import InvalidRequest

TEAM = "https://agents.example.com/team.yaml"


@dataclass(frozen=True)
class Named:
    source: str
    folder: Path
    trusted: bool = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where we are: an agent file, a folder of them, and things that are neither."""
    (tmp_path / "team.yaml").write_text("")
    (tmp_path / "noext").write_text("")
    (tmp_path / "agents").mkdir()
    (tmp_path / "my.agent.yml").write_text("")
    os.mkfifo(tmp_path / "pipe.yaml")
    return tmp_path


def refused(reference: str, folder: Path) -> str:
    with pytest.raises(InvalidRequest) as error:
        parse(reference, folder=folder)
    assert "\n" not in error.value.message
    return error.value.message


# --- detection -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference", ["team.yaml", "./team.yaml", "agents/../team.yaml", "{folder}/team.yaml"]
)
def test_a_file_is_found_from_where_we_are(folder: Path, reference: str) -> None:
    source = parse(reference.format(folder=folder), folder=folder)
    assert isinstance(source, FileSource)
    assert source.path.resolve() == folder / "team.yaml"
    assert source.path.is_absolute()
    assert source.key == "team"


def test_the_key_of_a_file_is_its_stem(folder: Path) -> None:
    for reference, key in (("my.agent.yml", "my.agent"), ("noext", "noext")):
        source = parse(reference, folder=folder)
        assert isinstance(source, FileSource)
        assert source.key == key


def test_a_home_is_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert parse("~/team.yaml", folder=Path("/")) == FileSource(folder / "team.yaml")


def test_a_folder_is_a_folder(folder: Path) -> None:
    assert parse("agents", folder=folder) == DirectorySource(folder / "agents")
    assert parse(".", folder=folder) == DirectorySource(folder)


def test_built_in_names_come_before_files(folder: Path) -> None:
    (folder / "default").write_text("")
    for name in ("default", "coder", "builtin/scripted"):
        assert parse(name, folder=folder) == BuiltinSource(name)
    assert parse("./default", folder=folder) == FileSource(folder / "default")


def test_an_alias_comes_first_and_its_paths_start_at_its_file(folder: Path) -> None:
    aliases = {
        "default": Named("team.yaml", folder),
        "team.yaml": Named("coder", folder),
        "ours": Named(TEAM, folder, trusted=True),
        "theirs": Named(TEAM, folder),
    }
    elsewhere = Path("/")
    assert parse("default", aliases, folder=elsewhere) == FileSource(folder / "team.yaml")
    assert parse("team.yaml", aliases, folder=elsewhere) == BuiltinSource("coder")
    assert parse("ours", aliases) == UrlSource(TEAM, trusted=True)
    assert parse("theirs", aliases) == UrlSource(TEAM, trusted=False)


def test_an_alias_of_an_alias_is_not_followed(folder: Path) -> None:
    aliases = {"one": Named("two", folder), "two": Named("one", folder)}
    assert parse("one", aliases) == OciSource("two")


def test_I39_agents_of_other_hosts_are_not_trusted() -> None:
    assert parse(TEAM) == UrlSource(TEAM, trusted=False)


@pytest.mark.parametrize("url", ["http://localhost:8080/a.yaml", "http://127.0.0.1/a", "http://[::1]:9/a"])
def test_this_machine_may_be_asked_by_http(url: str) -> None:
    assert parse(url) == UrlSource(url)


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("http://agents.example.com/a.yaml", "use https"),
        ("ftp://agents.example.com/a.yaml", "must be https"),
        ("file:///etc/passwd", "must be https"),
        ("https://user:canary@agents.example.com/a.yaml", "a user"),
        ("https:///a.yaml?canary", "no host"),
        ("https://agents.example.com:99999/?canary", "not a valid URL"),
        ("https://agents.example.com/a b?canary", "contains a space"),
    ],
)
def test_I39_other_urls_are_refused_before_anybody_is_asked(url: str, because: str) -> None:
    message = refused(url, Path("/"))
    assert because in message
    assert "canary" not in message


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("gone.yaml", "file or folder {folder}/gone.yaml not found"),
        ("gone.YML", "not found"),
        ("./gone", "not found"),
        ("/gone/agent", "file or folder /gone/agent not found"),
        ("agents/", None),
        ("gone/", "not found"),
        ("team.yaml/inner.yaml", "not found"),
        ("pipe.yaml", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        ("", "missing agent"),
        ("  ", "missing agent"),
        ("a\0b", "missing agent"),
        (
            "Not An Agent!",
            "not a name in lastgood.toml, not a built-in agent (default, coder, builtin/scripted)",
        ),
        ("UPPER", "or registry reference"),
        ("x" * 5000 + ".yaml", "cannot read"),
    ],
)
def test_what_is_nothing_says_what_was_tried(folder: Path, reference: str, said: str | None) -> None:
    if said is None:
        assert isinstance(parse(reference, folder=folder), DirectorySource)
    else:
        assert said.format(folder=folder) in refused(reference, folder)


# --- keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ("myagent", "myagent.yaml"),
        ("docker.io/myorg/agent:v1", "docker.io_myorg_agent_v1.yaml"),
        ("localhost:5000/test", "localhost_5000_test.yaml"),
        ("localhost/test", "localhost_test.yaml"),
        ("registry.example.com:443/a/b/agent:latest", "registry.example.com_443_a_b_agent_latest.yaml"),
        ("r.io/org/app@sha256:" + "ab" * 32, "r.io_org_app_sha256_" + "ab" * 32 + ".yaml"),
        ("org/app:v1.yaml", None),
        ("agentcatalog/pirate", "agentcatalog_pirate.yaml"),
        ("org/a__b-c.d:V1_2", "org_a__b-c.d_V1_2.yaml"),
    ],
)
def test_a_registry_reference_has_its_safe_form_as_key_and_identity(
    tmp_path: Path, reference: str, key: str | None
) -> None:
    if key is None:  # by its suffix a file, and there is none
        assert "not found" in refused(reference, tmp_path)
        return
    source = parse(reference, folder=tmp_path)
    assert isinstance(source, OciSource)
    assert source.key == key
    assert stable_identity(source.key) == key


@pytest.mark.parametrize(
    "reference",
    ["Org/app", "org//app", "org/app:", "org/app@sha256:12", "-org/app", "org/app:a b", "a*b", "org/.app"],
)
def test_invalid_registry_references_are_rejected(tmp_path: Path, reference: str) -> None:
    assert "or registry reference" in refused(reference, tmp_path)


def test_M1_2_the_key_of_a_url_is_its_query_escaped_whole() -> None:
    source = UrlSource(f"{TEAM}?tag=v9 light&x=~a-b_c.d*#part")
    escaped = "https%3A%2F%2Fagents.example.com%2Fteam.yaml%3Ftag%3Dv9+light%26x%3D~a-b_c.d%2A%23part"
    assert source.key == escaped
    assert stable_identity(source.key) == TEAM


@given(query=st.text(st.characters(blacklist_categories=["Cs"]), max_size=30))
def test_M1_2_every_query_has_a_key_of_its_own_and_the_same_identity(query: str) -> None:
    source = UrlSource(f"{TEAM}?{query}")
    assert stable_identity(source.key) == TEAM
    assert source.key == UrlSource(source.url, trusted=True).key
    assert (source.key == UrlSource(f"{TEAM}?tag=x").key) == (query == "tag=x")
    assert all(character.isascii() and character not in "/?#& " for character in source.key)


# --- one key, one source ---------------------------------------------------------------------------------


def test_two_sources_with_one_key_are_refused_naming_both(folder: Path) -> None:
    (folder / "agents/team.yaml").write_text("")
    (folder / "agents/default.yaml").write_text("")
    one, other = FileSource(folder / "team.yaml"), FileSource(folder / "agents/team.yaml")
    pairs: list[tuple[Source, Source, str]] = [
        (one, other, "team"),
        (one, DirectorySource(folder / "agents"), "team"),
        (BuiltinSource("default"), DirectorySource(folder / "agents"), "default"),
        (UrlSource(TEAM), UrlSource(TEAM, trusted=True), UrlSource(TEAM).key),
    ]
    for first, second, key in pairs:
        with pytest.raises(InvalidRequest) as error:
            Catalog([first, second])
        assert repr(key) in error.value.message
        assert first.where in error.value.message
        assert second.where in error.value.message


def test_one_source_named_twice_is_one(folder: Path) -> None:
    (folder / "agents/a.yaml").write_text("")
    file = FileSource(folder / "agents/a.yaml")
    assert Catalog([file, file, DirectorySource(folder / "agents")]).served() == ("a",)


def test_two_files_of_a_folder_with_one_stem_are_refused_naming_both(folder: Path) -> None:
    for name in ("b.yaml", "b.yml"):
        (folder / "agents" / name).write_text("")
    with pytest.raises(InvalidRequest, match=r"b\.yaml and .*b\.yml"):
        Catalog([DirectorySource(folder / "agents")])


def test_a_folder_has_a_key_per_agent_file(folder: Path) -> None:
    agents = folder / "agents"
    for name in ("b.yaml", "a.YML", ".hidden.yaml", "readme.md", "c.yaml.bak"):
        (agents / name).write_text("")
    (agents / "sub.yaml").mkdir()
    os.mkfifo(agents / "pipe.yaml")
    (agents / "link.yaml").symlink_to(folder / "team.yaml")
    (agents / "dangling.yaml").symlink_to(folder / "gone.yaml")
    assert Catalog([DirectorySource(agents)]).served() == ("a", "b", "link")


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot read the folder .*gone"):
        Catalog([DirectorySource(tmp_path / "gone")])
