"""Files and folders: read when they have changed; using the last good definition while they cannot be."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lastgood.agents import file_source
from lastgood.agents.builtin import scripted_agent
from lastgood.agents.catalog import Catalog
from lastgood.agents.file_copies import FileCopies
from lastgood.agents.sources import BuiltinSource, DirectorySource, FileSource, OciSource
from lastgood.errors import AgentInvalid, AgentNotFound, AgentUnavailable, InvalidRequest
from lastgood.model.agents import AgentSpec

pytestmark = pytest.mark.anyio

BROKEN = "agents: [this is: no agent file"


def agent_file(description: str = "one", extra: str = "") -> str:
    return f"agents:\n  root:\n    model: builtin/scripted\n    description: {description}\n{extra}"


def write(path: Path, text: str) -> None:
    """As editors do: whole, under another name, and then in its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def age(path: Path, seconds: float = 100.0) -> None:
    """Lets the file look as if nobody had touched it for a while."""
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "team.yaml"
    path.write_text(agent_file())
    return path


@pytest.fixture
def catalog(file: Path) -> Catalog:
    return Catalog([FileSource(file)])


# --- loading ---------------------------------------------------------------------------------------------


async def test_a_file_is_loaded_under_its_key(catalog: Catalog) -> None:
    agent = await catalog.load("team")
    assert (agent.key, agent.description, agent.stale) == ("team", "one", "")
    assert agent.digest


async def test_an_unknown_key_is_not_found(catalog: Catalog) -> None:
    with pytest.raises(AgentNotFound, match="'tem'"):
        await catalog.load("tem")


async def test_a_name_picks_a_member_of_the_team(file: Path, catalog: Catalog) -> None:
    write(file, agent_file(extra="  helper:\n    model: builtin/scripted\n    description: helps\n"))
    assert (await catalog.load("team")).name == "root"
    helper = await catalog.load("team", "helper")
    assert (helper.key, helper.name, helper.description) == ("team", "helper", "helps")
    with pytest.raises(AgentNotFound, match=r"'team' has no agent 'hepler'; available: root, helper"):
        await catalog.load("team", "hepler")


async def test_a_fixed_agent_serves_as_it_is() -> None:
    agent = scripted_agent("mine")
    team = AgentSpec("team", "root", "builtin/scripted", "sha256:1", members={"scripted": agent})
    catalog = Catalog([agent, team])
    assert catalog.served() == ("mine", "team")
    assert await catalog.load("mine") is agent
    assert await catalog.load("team", "scripted") is agent
    with pytest.raises(AgentNotFound, match="available: root, scripted"):
        await catalog.load("team", "other")


@pytest.mark.parametrize("name", ["default", "coder", "builtin/scripted"])
async def test_built_in_agents_load_without_anything(name: str) -> None:
    agent = await Catalog([BuiltinSource(name)]).load(name)
    assert (agent.key, agent.stale) == (name, "")
    assert agent.model == ("builtin/scripted" if name == "builtin/scripted" else "auto")
    assert agent.description
    assert agent.digest == (await Catalog([BuiltinSource(name)]).load(name)).digest


async def test_a_registry_reference_says_that_pulling_is_not_there_yet() -> None:
    source = OciSource("docker.io/myorg/agent:v1")
    catalog = Catalog([source])
    assert catalog.served() == ("docker.io_myorg_agent_v1.yaml",)
    with pytest.raises(
        AgentUnavailable, match="pulling from a registry is not supported yet; save the agent"
    ):
        await catalog.load(source.key)


async def test_a_model_where_an_agent_is_expected_says_where_models_are_named() -> None:
    catalog = Catalog([OciSource("openai/gpt-5.4-mini")])
    with pytest.raises(AgentUnavailable, match=r"is a model, not an agent; .* --model openai/gpt-5.4-mini`"):
        await catalog.load(catalog.served()[0])


# --- changes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [write, write_in_place])
async def test_a_changed_file_is_there_at_the_next_load(file: Path, catalog: Catalog, change: object) -> None:
    seen = {(await catalog.load("team")).digest}
    for number in range(5):
        change(file, agent_file(f"v{number}"))  # type: ignore[operator]
        agent = await catalog.load("team")
        assert (agent.description, agent.stale) == (f"v{number}", "")
        seen.add(agent.digest)
    assert len(seen) == 6, "a version has no digest of its own"


async def test_a_change_of_the_same_size_in_the_same_tick_is_seen(file: Path, catalog: Catalog) -> None:
    """A file system's clock ticks slowly: two versions may have the same time, size and inode."""
    await catalog.load("team")
    before = file_source.stamp(file)
    assert before is not None
    write_in_place(file, agent_file("two"))
    os.utime(file, ns=(before[0], before[0]))
    assert file_source.stamp(file) == before
    assert (await catalog.load("team")).description == "two"


async def test_an_unchanged_file_is_read_once(file: Path, catalog: Catalog) -> None:
    age(file)
    first = await catalog.load("team")
    assert all([await catalog.load("team") is first for _ in range(5)])
    write(file, agent_file("two"))
    age(file, 50.0)
    second = await catalog.load("team")
    assert second.description == "two"
    assert await catalog.load("team") is second


async def test_no_file_is_opened_where_turns_run(
    file: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be slow, and every session would wait for it."""
    opened, real = [], os.open

    def watched(path: Any, *rest: Any, **more: Any) -> int:
        if path == file:
            opened.append(threading.current_thread())
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    await catalog.load("team")
    assert opened
    assert threading.main_thread() not in opened


async def test_the_last_good_definition_serves_while_the_file_is_broken(file: Path, catalog: Catalog) -> None:
    good = await catalog.load("team")
    for broken in (BROKEN, "", "\x00", "[1, 2]", "agents: {root: {modle: x/y}}", "x" * 2_000_000):
        write(file, broken)
        for _ in range(2):
            agent = await catalog.load("team")
            assert (agent.digest, agent.description) == (good.digest, "one")
            assert "using the last good definition" in agent.stale
            assert "\n" not in agent.stale
    write(file, agent_file("two"))
    agent = await catalog.load("team")
    assert (agent.description, agent.stale) == ("two", "")


async def test_the_last_good_definition_serves_while_the_file_is_gone(file: Path, catalog: Catalog) -> None:
    good = await catalog.load("team")
    remove(file)
    for _ in range(2):
        agent = await catalog.load("team")
        assert agent.digest == good.digest
        assert agent.stale.startswith(f"file {file} not found; ")
    assert catalog.served() == ("team",), "an operator still names it"
    os.mkfifo(file)
    assert "not a regular file" in (await catalog.load("team")).stale
    remove(file)
    write(file, agent_file())
    assert await catalog.load("team") == good


async def test_what_was_never_good_fails_and_is_found_once_it_is_good(file: Path) -> None:
    write(file, BROKEN)
    catalog = Catalog([FileSource(file)])
    for _ in range(2):
        with pytest.raises(AgentInvalid, match=r"team\.yaml"):
            await catalog.load("team")
    remove(file)
    with pytest.raises(AgentUnavailable, match="not found"):
        await catalog.load("team")
    write(file, agent_file())
    assert (await catalog.load("team")).stale == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read_says_so(file: Path, catalog: Catalog) -> None:
    os.chmod(file, 0)
    with pytest.raises(AgentUnavailable, match="Permission denied"):
        await catalog.load("team")


async def test_loads_at_the_same_time_share_one_reading(catalog: Catalog) -> None:
    agents = await asyncio.gather(*(catalog.load("team") for _ in range(20)))
    assert all(agent is agents[0] for agent in agents)


# --- folders ---------------------------------------------------------------------------------------------


async def test_a_new_file_of_a_folder_is_served_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    """Also M1.4: what comes back after it was gone begins anew, as it would after a restart."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yml"
    one.write_text(agent_file())
    catalog = Catalog([DirectorySource(tmp_path)])
    assert catalog.served() == ("one",)
    await catalog.load("one")
    two.write_text(agent_file("second"))
    assert catalog.served() == ("one", "two")
    assert (await catalog.load("two")).description == "second"
    remove(one)
    assert catalog.served() == ("two",)
    with pytest.raises(AgentNotFound):
        await catalog.load("one")
    one.write_text(BROKEN)
    assert catalog.served() == ("one", "two")
    with pytest.raises(AgentInvalid):
        await catalog.load("one")


async def test_an_unchanged_folder_is_not_listed_again(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(tmp_path)
    catalog = Catalog([DirectorySource(tmp_path)])
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("listed again"))
    assert catalog.served() == ("team",)
    assert (await catalog.load("team")).description == "one"


async def test_a_changed_file_of_a_folder_is_there_at_the_next_load(tmp_path: Path, file: Path) -> None:
    catalog = Catalog([DirectorySource(tmp_path)])
    await catalog.load("team")
    write_in_place(file, agent_file("two"))
    assert (await catalog.load("team")).description == "two"
    write_in_place(file, BROKEN)
    assert (await catalog.load("team")).stale


async def test_a_second_file_with_the_same_key_stops_that_key_alone(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(agent_file("other"))
    catalog = Catalog([DirectorySource(tmp_path)])
    await catalog.load("team")
    (tmp_path / "team.yml").write_text(agent_file("which?"))
    with pytest.raises(AgentInvalid, match=r"team\.yaml and .*team\.yml"):
        await catalog.load("team")
    assert (await catalog.load("other")).description == "other"
    (tmp_path / "team.yml").unlink()
    assert (await catalog.load("team")).description == "one"


async def test_a_folder_that_is_away_leaves_its_agents_serving(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "team.yaml").write_text(agent_file())
    catalog = Catalog([DirectorySource(folder)])
    good = await catalog.load("team")
    folder.rename(tmp_path / "away")
    assert catalog.served() == ("team",)
    agent = await catalog.load("team")
    assert (agent.digest, bool(agent.stale)) == (good.digest, True)
    folder.write_text("something else")
    assert catalog.served() == ("team",)
    assert (await catalog.load("team")).digest == good.digest
    remove(folder)
    (tmp_path / "away").rename(folder)
    assert (await catalog.load("team")).stale == ""


async def test_a_new_file_is_seen_also_if_the_time_of_its_folder_does_not_show_it(tmp_path: Path) -> None:
    catalog = Catalog([DirectorySource(tmp_path)])
    before = file_source.stamp(tmp_path)
    assert before is not None
    assert catalog.served() == ()
    (tmp_path / "team.yaml").write_text(agent_file())
    os.utime(tmp_path, ns=(before[0], before[0]))
    assert catalog.served() == ("team",)


# --- beside a file (I38) ---------------------------------------------------------------------------------


def test_I38_what_lies_beside_or_below_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/prompt.md").write_text("hello")
    (tmp_path / "link.md").symlink_to("sub/prompt.md")
    (tmp_path / "up").symlink_to("sub")
    read = file_source.beside(tmp_path / "team.yaml")
    for name in ("sub/prompt.md", "./sub/prompt.md", "sub/../sub/prompt.md", "link.md", "up/prompt.md"):
        assert read(name) == b"hello"
    assert read(str(tmp_path / "sub/prompt.md")) == b"hello"
    assert read("gone.md") is None
    assert read("gone/prompt.md") is None


def test_I38_what_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    home, sibling = tmp_path / "home", tmp_path / "home-of-others"
    for folder in (home, sibling):
        folder.mkdir()
    (sibling / "secret").write_text("canary")
    (home / "link").symlink_to(sibling / "secret")
    (home / "folder").symlink_to(sibling)
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "pipe")
    (home / "large").write_bytes(b"x" * (file_source.LIMIT_BYTES + 1))
    read = file_source.beside(home / "team.yaml")
    for name in ("../home-of-others/secret", "link", "folder/secret", str(sibling / "secret"), "/etc", ".."):
        with pytest.raises(AgentInvalid, match="is outside the folder") as refused:
            read(name)
        assert "canary" not in refused.value.message
    for name in ("loop", "pipe", "large", ".", "", "a\0b", "x" * 5000):
        with pytest.raises(AgentInvalid):
            read(name)


def test_I38_a_link_that_is_put_there_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    """Between judging and opening, a folder or the file itself becomes a link to a secret."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "prompt.md").write_text("canary")
    (home / "sub/prompt.md").symlink_to(outside / "prompt.md")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with pytest.raises(OSError, match="symbolic links"):
        file_source._open_under(home, Path("sub/prompt.md"), flags)
    (home / "swapped").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"):
        file_source._open_under(home, Path("swapped/prompt.md"), flags)


async def test_a_change_beside_the_file_is_a_change_of_the_agent(file: Path, catalog: Catalog) -> None:
    prompt = file.parent / "prompt.md"
    prompt.write_text("be kind")
    write(file, agent_file(extra="    instruction_file: prompt.md\n"))
    first = await catalog.load("team")
    assert first.instruction == "be kind"
    for path in (file, prompt):
        age(path)
    assert (await catalog.load("team")).digest == first.digest
    prompt.write_text("be brief")
    second = await catalog.load("team")
    assert second.instruction == "be brief"
    assert second.digest != first.digest, "the version that answered cannot be told"
    prompt.unlink()
    third = await catalog.load("team")
    assert (third.digest, bool(third.stale)) == (second.digest, True)


# --- restarts --------------------------------------------------------------------------------------------


async def test_the_last_good_version_of_a_file_survives_a_restart(file: Path, tmp_path: Path) -> None:
    beside, copies = tmp_path / "rules.md", FileCopies(tmp_path / "copies")
    beside.write_text("be brief")
    write(file, agent_file("one", "    instruction_file: rules.md\n"))
    before = await Catalog([FileSource(file)], copies=copies).load("team")
    write(file, BROKEN)
    beside.unlink()
    catalog = Catalog([FileSource(file)], copies=copies)
    await catalog.check_named_files()
    after = await catalog.load("team")
    assert "using the last good definition" in after.stale
    assert (after.instruction, after.digest) == (before.instruction, before.digest)
    write(file, agent_file("two"))
    valid = await catalog.load("team")
    assert (valid.description, valid.stale) == ("two", "")


async def test_a_damaged_copy_is_no_good_copy(file: Path, tmp_path: Path) -> None:
    copies = FileCopies(tmp_path / "copies")
    await Catalog([FileSource(file)], copies=copies).load("team")
    [kept] = (tmp_path / "copies").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"one", b"two"))
    write(file, BROKEN)
    with pytest.raises(AgentInvalid):
        await Catalog([FileSource(file)], copies=copies).load("team")


async def test_a_file_that_left_its_folder_starts_over_after_a_restart(file: Path, tmp_path: Path) -> None:
    copies = FileCopies(tmp_path / "copies")
    catalog = Catalog([DirectorySource(tmp_path)], copies=copies)
    await catalog.load("team")
    remove(file)
    assert catalog.served() == ()
    write(file, BROKEN)
    with pytest.raises(AgentInvalid):
        await Catalog([DirectorySource(tmp_path)], copies=copies).load("team")


async def test_a_named_file_that_was_never_good_is_an_error_and_one_in_a_folder_is_not(
    file: Path, tmp_path: Path
) -> None:
    write(file, BROKEN)
    with pytest.raises(InvalidRequest, match=r"cannot serve team: .*team\.yaml:1"):
        await Catalog([FileSource(file)], copies=FileCopies(tmp_path / "copies")).check_named_files()
    await Catalog([DirectorySource(tmp_path)]).check_named_files()


def changed_at(path: Path) -> float:
    return path.stat().st_mtime


async def test_the_origin_of_a_file_says_when_what_was_read_had_changed(catalog: Catalog, file: Path) -> None:
    assert catalog.origin("team").changed_at is None  # nobody has read it
    age(file)
    await catalog.load("team")
    origin = catalog.origin("team")
    assert (origin.kind, origin.where) == ("file", str(file))
    assert origin.changed_at == pytest.approx(changed_at(file))
    write(file, agent_file("two"))
    await catalog.load("team")
    assert catalog.origin("team").changed_at == pytest.approx(changed_at(file))
    with pytest.raises(AgentNotFound):
        catalog.origin("nobody")
