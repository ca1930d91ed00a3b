"""I33: kill -9 of a server while its real tools work, in the middle of a call and between calls.

What the tools did outside is counted against their policies (tool_effects has the rule), the prompts that
follow must be valid, and every session must answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.model.attempts import AttemptStatus
from tests.faults.tool_defects import DEFECTS
from tests.faults.tool_effects import asked, judge, read_record
from tests.faults.tool_scenarios import SCENARIOS, Kill, ToolScenario, command, make_layout, policies
from tests.faults.tool_server import Layout, Server, Servers
from tests.faults.world import ClientCall

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def kill(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Kill:
    return Kill(servers, make_layout(tmp_path_factory.mktemp("kill")))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_I33_what_a_call_did_is_what_its_tool_allows(kill: Kill, scenario: ToolScenario) -> None:
    assert kill.objections(scenario) == []


def test_I33_I4_after_a_kill_in_the_middle_of_tools_nothing_is_violated(kill: Kill) -> None:
    """No finished call is made again, every prompt is valid, and every session answers."""
    assert kill.violations() == []


def test_I33_commands_do_not_outlive_their_server(kill: Kill) -> None:
    assert kill.survivors == 0


#: Which scenario must object to which defect.
CAUGHT_BY = {
    "every open call is repeated": "a shell command runs",
    "no open call is repeated": "a repeatable script runs",
    "results are not journaled": "two results are written",
    "a call is journaled with its result only": "a script runs",
    "each process has keys of its own": "a repeatable script of a task runs",
    "finished steps are not adopted": "the last answer is under way",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defect_is_caught(servers: Servers, tmp_path: Path, defect: str) -> None:
    kill = Kill(servers, make_layout(tmp_path), defect)
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == CAUGHT_BY[defect])
    objections = kill.objections(scenario)
    assert objections
    print(
        f"{defect}\n    caught by {scenario.name}: {objections[0]}",
        *kill.violations()[:1],
        sep="\n    and by ",
    )


# -- kills at random instants ----------------------------------------------------------

LATEST_KILL_SECONDS = 0.6


def plain_texts(layout: Layout) -> list[str]:
    shell = f"shell {json.dumps({'cmd': command(layout, 'shell', nap='0.02')})}"
    once, again = (f'{name} {{"nap": "0.02"}}' for name in ("once", "again"))
    edits = json.dumps([{"oldText": "TOKEN end", "newText": "TOKEN end+"}])
    return [
        f"\n!tool {shell}\n!tool {again}\n!also {once}\n!say done",
        f"\n!tool {again}\n!also {shell}\n!also {again}\n!slow 0.01\n!say one two three",
        f'\n!tool write_file {{"path": "TOKEN.txt", "content": "{WHOLE}"}}'
        f'\n!tool edit_file {{"path": "TOKEN.txt", "edits": {edits}}}\n!also {again}\n!say done',
    ]


WHOLE = "TOKEN " * 500 + "TOKEN end"


def tasks(layout: Layout) -> list[str]:
    lines = [text.replace("!say done", "!say helped") for text in plain_texts(layout)]
    return [
        f"\n!tool transfer_task {json.dumps({'agent': 'helper', 'task': line})}\n!say done" for line in lines
    ]


class RandomKills:
    """Servers on one database, one after the other, each killed while its clients ask for turns."""

    def __init__(self, servers: Servers, layout: Layout, seed: int, kills: int) -> None:
        self.layout = layout
        self._clients: list[dict[str, Any]] = []
        self._report: list[dict[str, Any]] = []
        self.log: list[ClientCall] = []
        dice = random.Random(seed)
        with servers.start(layout) as server:
            self._prepare(server)
        for number in range(kills):
            with servers.start(layout) as server:
                # Every other one may die while it still recovers.
                (server.send if number % 2 else server.do)("open")
                server.send("work", clients=self._clients, seed=f"{seed}x{number}")
                # It recovers, or works.
                time.sleep(dice.random() * LATEST_KILL_SECONDS)  # real time: a random moment
                server.kill()
            self._report += server.received
        with servers.start(layout) as server:
            self._take_over(server)
        self.record = asyncio.run(read_record(layout, self.log))

    def _prepare(self, server: Server) -> None:
        server.do("open")
        plain, given = plain_texts(self.layout), tasks(self.layout)
        for texts, patient in ((plain, True), (plain, False), (given, True), (given, False)):
            session = server.do("create", agent="tools")["session"]
            self._clients.append({"session": session, "texts": texts, "patient": patient})
        server.end()

    def _take_over(self, server: Server) -> None:
        server.do("open")
        sessions = [client["session"] for client in self._clients]
        server.do("settle", sessions=sessions)
        self._write_down()
        for session in sessions:
            text = f"last-{session} what was said?\n!remember"
            received = server.do("say", session=session, text=text)
            self.log.append(asked(session, text, received["turn"], received["attempt"], received["status"]))
        server.end()

    def _write_down(self) -> None:
        """What the clients of the dead knew. Where they had no answer, anything may have happened."""
        promised = {line["promised"]: line for line in self._report if "promised" in line}
        ended = {line["ended"]: line["status"] for line in self._report if "ended" in line}
        texts = {client["session"]: client["texts"] for client in self._clients}
        for line in self._report:
            if "asks" in line:
                token, session = line["asks"], line["session"]
                text = f"{token} {texts[session][line['choice']]}".replace("TOKEN", token)
                known = promised.get(token, {})
                outcome = ended.get(token, "unknown")
                self.log.append(asked(session, text, known.get("turn"), known.get("attempt"), outcome))

    # -- what became of it ---------------------------------------------------------------

    def violations(self) -> list[str]:
        promised = [received.turn for received in self.log if received.turn is not None]
        found = judge(self.record, policies(self.layout), promised)
        patient = {client["session"] for client in self._clients if client["patient"]}
        for attempt in self.record.attempts.values():
            if attempt.session in patient and attempt.number > 1 and attempt.continues is None:
                found.append(f"I33 {attempt.id}: starts over, and nobody got in between")
        for path in self.layout.work("").rglob("*.txt"):
            whole = WHOLE.replace("TOKEN", path.stem)
            if path.read_text() not in (whole, whole + "+"):
                found.append(f"I33 {path}: is torn, or was edited twice: {path.read_text()[-100:]}")
        return found

    def figures(self) -> dict[str, int]:
        attempts = self.record.attempts.values()
        results = [result for turn in self.record.turns for result in self.record.answers(turn).values()]
        times = Counter(effect.key for effect in self.record.effects)
        return {
            "turns": len(self.record.turns),
            "effects": len(self.record.effects),
            "interrupted": sum(one.status is AttemptStatus.INTERRUPTED for one in attempts),
            "continued": sum(one.continues is not None for one in attempts),
            "started over": sum(one.continues is None and one.number > 1 for one in attempts),
            "made again": sum(count > 1 for count in times.values()),
            "unknown": sum(result.is_unknown for result in results),
            "drafts": len(list(self.layout.work("").rglob(".lastgood-*"))),
        }


def test_I33_random_kills_leave_effects_that_each_tool_allows(servers: Servers, tmp_path: Path) -> None:
    kills = RandomKills(servers, make_layout(tmp_path), seed=33, kills=12)
    figures = kills.figures()
    print(figures)
    assert kills.violations() == []
    # Or nothing was shown.
    assert min(figures[what] for what in ("turns", "continued", "made again")) > 0
