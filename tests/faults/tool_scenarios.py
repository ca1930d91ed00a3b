"""One kill -9 finds many sessions, each at another moment of its turn, at work with real tools.

A scenario says how far each call of a turn had come when the server was killed; what must have become of
it then is read off the tool's own policy. The server that takes over meets all scenarios at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lastgood.agents.agent_file import read_agent_file
from lastgood.engine.tools.builtin import first_toolsets
from lastgood.model.agents import OnUnknown
from lastgood.model.ids import TurnId
from lastgood.outside.secrets import Secrets
from tests.faults.tool_effects import Policies, Result, asked, judge, read_ledger, read_record
from tests.faults.tool_server import SECONDS, Layout, Moment, Server, Servers
from tests.faults.world import ClientCall
from tests.tools.toolkit import has_ended

# -- the agents ----------------------------------------------------------------------

#: What every command does: it writes its line, waits at the gate if it is told to, and says so.
NOTE = """printf '%s %s %s %s\\n' TOOL "$LASTGOOD_TOOL_KEY" "$LASTGOOD_ATTEMPT" $$ >>'LEDGER'"""
NAP = 'sleep "${nap:-0}"'
COMMAND = f'{NAP}; {NOTE}; if [ "$gate" ]; then read -r _ <"$gate"; fi; {NAP}; echo noted'
AGENTS = ("tools", "changing", "formatting")
COMMANDS = ("shell", "once", "again")


def command(layout: Layout, tool: str, **variables: str) -> str:
    line = COMMAND.replace("TOOL", tool, 1).replace("LEDGER", str(layout.ledger))
    return "".join(f"{name}='{value}'; " for name, value in variables.items()) + line


def make_layout(folder: Path) -> Layout:
    """`tools` has them all, and a helper who has them too. `formatting` runs a command after each write."""
    layout = Layout(folder)
    layout.agents.mkdir()
    words = {"gate": {"type": "string"}, "nap": {"type": "string"}}
    scripts: dict[str, dict[str, Any]] = {
        name: {"type": "script", "shell": {name: {"cmd": command(layout, name), "args": words}}}
        for name in ("once", "again")
    }
    scripts["again"]["repeatable"] = True
    toolsets = [{"type": "shell"}, *scripts.values(), {"type": "filesystem"}]
    root = {"model": "builtin/scripted", "description": "works", "toolsets": toolsets}
    team = {"root": {**root, "sub_agents": ["helper"]}, "helper": root}
    after = {"path": "*.txt", "cmd": command(layout, "write_file", gate=str(gate_of(layout)))}
    writes = {**root, "toolsets": [{"type": "filesystem", "post_edit": [after]}]}
    for name, agents in zip(AGENTS, (team, team, {"root": writes}), strict=True):
        (layout.agents / f"{name}.yaml").write_text(json.dumps({"agents": agents}))
    os.mkfifo(gate_of(layout))
    return layout


def gate_of(layout: Layout) -> Path:
    return layout.folder / "gate"


def policies(layout: Layout) -> Policies:
    """As the tools themselves declare it."""
    made = first_toolsets(Secrets({}))
    found = {}
    for name in AGENTS:
        file = read_agent_file((layout.agents / f"{name}.yaml").read_bytes(), where=name, key=name)
        specs = file.agents[file.root].toolsets
        found[name] = {tool.name: tool.on_unknown for spec in specs for tool in made[spec.type](spec)}
    return found


# -- scenarios -------------------------------------------------------------------------


class Progress(StrEnum):
    """How far a call had come when its server was killed."""

    DONE = "its result was written"
    ENDED = "it had ended, and its result was not written"
    RUNNING = "it ran"
    NOT_BEGUN = "it was asked for, and waited for others"
    LATER = "it was not asked for yet"


DONE, ENDED, RUNNING, NOT_BEGUN, LATER = Progress
BEGUN = (DONE, ENDED, RUNNING)


def expected(progress: Progress, policy: OnUnknown, *, starts_over: bool) -> tuple[list[int], bool]:
    """In which of two attempts it happens, and whether its outcome is unknown in the end."""
    begun = progress in BEGUN
    if starts_over:
        return [1, 2] if begun else [2], False
    match progress, policy:
        case Progress.DONE, _:
            return [1], False
        case Progress.LATER, _:
            return [2], False
        case _, OnUnknown.REPEAT:
            return [1, 2] if begun else [2], False
        case _:
            return [1] if begun else [], True


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    progress: Progress
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def directive(self, layout: Layout) -> str:
        waits = self.progress is RUNNING and self.tool in COMMANDS
        gate = {"gate": str(gate_of(layout))} if waits else {}
        arguments = {"cmd": command(layout, "shell", **gate)} if self.tool == "shell" else gate
        return f"{self.tool} {json.dumps({**arguments, **self.arguments})}"


@dataclass(frozen=True, slots=True)
class ToolScenario:
    """Calls by response. Without a call that runs, the session waits for its death at its moment."""

    name: str
    responses: Sequence[Sequence[Call]]
    moment: Moment | None = None
    hit: int = 1
    in_task: bool = False
    agent: str = "tools"
    last: str = "!say done"
    before: Mapping[str, str] = field(default_factory=dict)  # files; a folder ends with a slash
    after: Mapping[str, str | None] = field(default_factory=dict)

    def text(self, layout: Layout) -> str:
        lines = [
            ("!also " if number else "!tool ") + call.directive(layout)
            for calls in self.responses
            for number, call in enumerate(calls)
        ]
        if self.in_task:
            task = {"agent": "helper", "task": "\n".join(["do this", *lines, "!say helped"])}
            lines = [f"!tool transfer_task {json.dumps(task)}"]
        return "\n".join([f"{self.name.replace(' ', '-')} please", *lines, self.last])

    def keys(self, turn: str) -> Iterator[tuple[str, Call]]:
        task = "1:call-0-0/" if self.in_task else ""
        for place, calls in enumerate(self.responses):
            for number, call in enumerate(calls):
                yield f"{turn}:{task}{place + 1}:call-{place}-{number}", call

    @property
    def is_running(self) -> bool:
        return any(call.progress is RUNNING for calls in self.responses for call in calls)

    @property
    def begun(self) -> list[Call]:
        return [call for calls in self.responses for call in calls if call.progress in BEGUN]

    def is_noted(self, call: Call) -> bool:
        """Its effect is a line in the ledger."""
        return call.tool in COMMANDS or self.agent == "formatting"


def one(tool: str, progress: Progress, **arguments: Any) -> list[list[Call]]:
    return [[Call(tool, progress, arguments)]]


UNWRITTEN, WRITTEN = Moment.UNWRITTEN, Moment.WRITTEN
TWO_DONE = [[Call("shell", DONE)], [Call("again", DONE)]]
EDIT = [{"oldText": "one", "newText": "one two"}]  # made twice, it would say "one two two"
SCENARIOS = (
    ToolScenario("a shell command runs", one("shell", RUNNING)),
    ToolScenario("a script runs", one("once", RUNNING)),
    ToolScenario("a repeatable script runs", one("again", RUNNING)),
    ToolScenario(
        "the second of three runs",
        [[Call("again", DONE), Call("shell", RUNNING), Call("once", NOT_BEGUN)]],
    ),
    ToolScenario(
        "a repeatable one runs and others wait",
        [
            [Call("again", RUNNING), Call("shell", NOT_BEGUN), Call("again", NOT_BEGUN)],
            [Call("shell", LATER)],
        ],
    ),
    ToolScenario("nothing has begun", [[Call("shell", NOT_BEGUN), Call("again", NOT_BEGUN)]], Moment.CALLED),
    ToolScenario("a shell command has ended", one("shell", ENDED), UNWRITTEN),
    ToolScenario("a repeatable script has ended", one("again", ENDED), UNWRITTEN),
    ToolScenario(
        "a file is written",
        one("write_file", ENDED, path="a/new.txt", content="all of it"),
        UNWRITTEN,
        after={"a/new.txt": "all of it"},
    ),
    ToolScenario(
        "a file is edited",
        one("edit_file", ENDED, path="a.txt", edits=EDIT),
        UNWRITTEN,
        before={"a.txt": "zero one"},
        after={"a.txt": "zero one two"},
    ),
    ToolScenario(
        "a folder is made", one("create_directory", ENDED, paths=["b"]), UNWRITTEN, after={"b/": ""}
    ),
    ToolScenario(
        "a folder is removed",
        one("remove_directory", ENDED, paths=["c"]),
        UNWRITTEN,
        before={"c/": ""},
        after={"c/": None},
    ),
    ToolScenario(
        "a command runs after a write",
        one("write_file", RUNNING, path="d.txt", content="kept"),
        agent="formatting",
        after={"d.txt": "kept"},
    ),
    ToolScenario("two results are written", TWO_DONE, WRITTEN, 2),
    ToolScenario(
        "the last answer is under way", TWO_DONE, Moment.ANSWERING, last="!slow 0.05\n!say one two three"
    ),
    ToolScenario(
        "a shell command of a task runs",
        [[Call("again", DONE)], [Call("shell", RUNNING)], [Call("once", LATER)]],
        in_task=True,
    ),
    ToolScenario("a repeatable script of a task runs", one("again", RUNNING), in_task=True),
    ToolScenario("two results of a task are written", TWO_DONE, WRITTEN, 2, in_task=True),
    ToolScenario("the result of a task is written", TWO_DONE, WRITTEN, 3, in_task=True),
    ToolScenario("a turn starts over", [[Call("again", DONE)], [Call("shell", RUNNING)]], agent="changing"),
)


# -- one kill ------------------------------------------------------------------------


class Kill:
    """A server that is killed in the middle of all scenarios, and the one that takes over."""

    def __init__(self, servers: Servers, layout: Layout, defect: str = "") -> None:
        self.layout = layout
        self._gate = os.open(gate_of(layout), os.O_RDWR)  # held, so that whoever reads from it waits
        self._turns: dict[str, tuple[str, str]] = {}  # by scenario: session and turn
        self._log: list[ClientCall] = []
        self.survivors = 0
        try:
            with servers.start(layout, defect) as first:
                self._begin(first)
                self._kill(first)
            with servers.start(layout, defect) as second:
                self._take_over(second)
        finally:
            os.close(self._gate)
        self.record = asyncio.run(read_record(layout, self._log))

    def _begin(self, server: Server) -> None:
        server.do("open")
        for scenario in SCENARIOS:
            session = server.do("create", agent=scenario.agent)["session"]
            work = self.layout.work(session)
            for path, content in scenario.before.items():
                _put(work / path, content, is_folder=path.endswith("/"))
            text = scenario.text(self.layout)
            begun = server.do("ask", session=session, text=text, moment=scenario.moment, hit=scenario.hit)
            self._turns[scenario.name] = session, begun["turn"]
            self._log.append(asked(session, text, begun["turn"], begun["attempt"], "unknown"))
        for scenario in SCENARIOS:
            session, turn = self._turns[scenario.name]
            if scenario.moment is not None:
                server.until_waits(session)
            self._until_happened(turn, sum(map(scenario.is_noted, scenario.begun)))

    def _until_happened(self, turn: str, times: int) -> None:
        deadline = time.monotonic() + SECONDS
        while sum(effect.turn == turn for effect in read_ledger(self.layout.ledger)) < times:
            assert time.monotonic() < deadline, f"{turn}: {times} commands should have written their lines"
            time.sleep(0.01)

    def _kill(self, server: Server) -> None:
        """Commands that wait at the gate must not outlive their server, or they would run beside the next."""
        lines = {effect.turn: effect for effect in read_ledger(self.layout.ledger)}  # the last of each turn
        waiting = [self._turns[scenario.name][1] for scenario in SCENARIOS if scenario.is_running]
        running = [os.pidfd_open(lines[turn].process) for turn in waiting]
        server.kill()
        for process in running:
            if not has_ended(process, within=SECONDS):
                self.survivors += 1
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)

    def _take_over(self, server: Server) -> None:
        changing = self.layout.agents / "changing.yaml"
        changing.write_text(changing.read_text().replace("works", "works otherwise"))
        os.write(self._gate, b"go\n" * len(SCENARIOS) * 2)
        server.do("open")
        server.do("settle", sessions=[session for session, _ in self._turns.values()])
        for session, _ in self._turns.values():
            text = f"last-{session} what was said?\n!remember"
            received = server.do("say", session=session, text=text)
            self._log.append(asked(session, text, received["turn"], received["attempt"], received["status"]))
        server.end()

    # -- what became of it ---------------------------------------------------------------

    def violations(self) -> list[str]:
        promised = [received.turn for received in self._log if received.turn is not None]
        return judge(self.record, policies(self.layout), promised)

    def objections(self, scenario: ToolScenario) -> list[str]:
        """What is not as the scenario wants it."""
        session, turn = self._turns[scenario.name]
        if TurnId(turn) not in self.record.turns:
            return ["the turn is not committed"]
        first, *more = self.record.tries(turn)
        found = []
        continues = [again.continues for again in more]
        if continues != [None if scenario.agent == "changing" else first.id]:
            found.append(f"after attempt {first.id}, others go on from {continues}")
        found += self._calls(scenario, turn)
        for path, content in scenario.after.items():
            there = _get(self.layout.work(session) / path, is_folder=path.endswith("/"))
            if there != content:
                found.append(f"{path} is {there!r}")
        if self.record.turns[TurnId(turn)].messages[-1].content != scenario.last.rpartition("!say ")[2]:
            found.append("the answer is another")
        return found

    def _calls(self, scenario: ToolScenario, turn: str) -> Iterator[str]:
        declared = policies(self.layout)[scenario.agent]
        answers = self.record.answers(turn)
        for key, call in scenario.keys(turn):
            starts_over = scenario.agent == "changing"
            attempts, unknown = expected(call.progress, declared[call.tool], starts_over=starts_over)
            happened = [effect.attempt for effect in self.record.effects if effect.key == key]
            if scenario.is_noted(call) and happened != attempts:
                yield f"{key} ({call.tool}, {call.progress}) happened in attempts {happened}, not {attempts}"
            result = answers.get(key, Result(call.tool, "nothing"))
            good = result.is_noted if scenario.is_noted(call) else "successfully" in result.text
            if not (result.is_unknown if unknown else good):
                yield f"{key} ({call.tool}, {call.progress}) is told as {result.text!r}"
        if len(answers) != sum(map(len, scenario.responses)) + scenario.in_task:
            yield f"there are results of other calls: {answers}"
        yield from self._shown(turn, answers)

    def _shown(self, turn: str, answers: Mapping[str, Result]) -> Iterator[str]:
        """The last prompt, of the turn and of its task, held all results, the unknown ones as such."""
        prompts = {
            prompt.get("within", ""): prompt["prompt"]
            for prompt in self.record.prompts
            if prompt["turn"] == turn
        }
        for within, prompt in prompts.items():
            shown = [message["content"] for message in prompt if message["role"] == "tool"]
            task = f"{turn}:{within}".rpartition("/")[0]
            if shown != [result.text for key, result in answers.items() if key.rpartition("/")[0] == task]:
                yield f"the model was shown {shown}"


def _put(path: Path, content: str, *, is_folder: bool) -> None:
    (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
    if not is_folder:
        path.write_text(content)


def _get(path: Path, *, is_folder: bool) -> str | None:
    if is_folder:
        return "" if path.is_dir() else None
    return path.read_text() if path.is_file() else None
