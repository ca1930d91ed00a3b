"""The count of agent files that run as they are written can say no."""

from pathlib import Path

from tests.agents.examples import count

AGENT = "agents: {root: {model: auto}}\n"


def test_a_file_counts_if_it_loads_and_asks_for_nothing_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(AGENT)
    (tmp_path / "wrong.yaml").write_text(AGENT.replace("model", "modle"))
    (tmp_path / "lacking.yml").write_text(AGENT + "flavors: {a: {}}\n")
    (tmp_path / "other.yaml").write_text("services: {}\n")
    found = count(tmp_path)
    assert (found.good, list(found.invalid), list(found.lacking)) == (
        ["good.yaml"],
        ["wrong.yaml"],
        ["lacking.yml"],
    )
    first, cost, *_ = found.lines()
    assert first == "1 of 3 files run without a 'not supported' warning"
    assert cost.startswith("   1 files,   1 lack nothing else: 'flavors'")
