"""Which tool calls of a CLI run, are asked about, or are denied."""

import pytest

from lastgood.core.tool_permissions import Allowed, Asks, Denied
from lastgood.worker.job import Permissions, SafetyMode
from lastgood.worker.runtimes.claude_events import TOOLS
from lastgood.worker.runtimes.tool_rules import UNKNOWN_TOOL, ToolCall, restricts_nothing, verdict_on

STRICT, BALANCED, RESTRICTED, AUTONOMOUS = (
    SafetyMode.STRICT,
    SafetyMode.BALANCED,
    SafetyMode.RESTRICTED,
    SafetyMode.AUTONOMOUS,
)


def call(tool: str, **given: object) -> ToolCall:
    return ToolCall("c1", tool, given, TOOLS.get(tool, UNKNOWN_TOOL))


READ = call("Read", file_path="/w/a.txt")
WRITE = call("Write", file_path="/w/docs/a.md", content="x")
BASH = call("Bash", command="git status && rm -rf x")
MCP = call("mcp__github__merge", number=1)


@pytest.mark.parametrize(
    ("mode", "verdicts"),
    [
        (STRICT, (Asks, Asks, Asks, Asks)),
        (BALANCED, (Allowed, Asks, Asks, Asks)),
        (RESTRICTED, (Allowed, Denied, Denied, Denied)),
        (AUTONOMOUS, (Allowed, Allowed, Allowed, Allowed)),
    ],
)
def test_a_mode_decides_where_no_rule_does(mode: SafetyMode, verdicts: tuple[type, ...]) -> None:
    for one, wanted in zip((READ, WRITE, BASH, MCP), verdicts, strict=True):
        assert isinstance(verdict_on(Permissions(mode), one), wanted)
        # As the worker's ceiling it holds against an agent that allows everything.
        ceiling = Permissions(AUTONOMOUS, allow=("*",), ceiling=mode)
        assert isinstance(verdict_on(ceiling, one), wanted)


@pytest.mark.parametrize(
    ("permissions", "one", "wanted"),
    [
        # Both names of a tool count, and both names of its arguments.
        (Permissions(AUTONOMOUS, deny=("Bash",)), BASH, Denied),
        (Permissions(AUTONOMOUS, deny=("shell",)), BASH, Denied),
        (Permissions(AUTONOMOUS, deny=("shell:cmd=rm *",)), BASH, Denied),
        (Permissions(AUTONOMOUS, deny=("Bash:command=*rm -rf*",)), BASH, Denied),
        (Permissions(AUTONOMOUS, ask=("write_file:path=/w/docs/*",)), WRITE, Asks),
        (Permissions(AUTONOMOUS, ask=("Write:file_path=/w/docs/*",)), WRITE, Asks),
        (Permissions(RESTRICTED, allow=("write_file:path=docs/*",)), WRITE, Allowed),
        (Permissions(RESTRICTED, allow=("Write",)), WRITE, Allowed),
        # Each command of a line must be allowed.
        (Permissions(RESTRICTED, allow=("shell:cmd=git *",)), BASH, Denied),
        (Permissions(RESTRICTED, allow=("shell:cmd=git *", "shell:cmd=rm *")), BASH, Allowed),
        # Deny wins, then allow, then ask.
        (Permissions(AUTONOMOUS, allow=("*",), ask=("*",), deny=("mcp__*",)), MCP, Denied),
        (Permissions(STRICT, allow=("mcp__*",), ask=("mcp__*",)), MCP, Allowed),
        (Permissions(AUTONOMOUS, ask=("mcp__github__*",)), MCP, Asks),
        # The ceiling denies and asks whatever the agent's rules allow.
        (Permissions(STRICT, ceiling=RESTRICTED), MCP, Denied),
        (Permissions(RESTRICTED, ceiling=STRICT), MCP, Denied),
        (Permissions(RESTRICTED, allow=("Write",), ceiling=BALANCED), WRITE, Asks),
    ],
)
def test_rules_of_the_agent_and_the_ceiling_of_the_worker(
    permissions: Permissions, one: ToolCall, wanted: type
) -> None:
    assert isinstance(verdict_on(permissions, one, "/w"), wanted)


def test_only_a_job_without_any_limit_restricts_nothing() -> None:
    assert restricts_nothing(Permissions(AUTONOMOUS, allow=("x",)))
    assert not restricts_nothing(Permissions(BALANCED))
    assert not restricts_nothing(Permissions(AUTONOMOUS, deny=("x",)))
    assert not restricts_nothing(Permissions(AUTONOMOUS, ask=("x",)))
    assert not restricts_nothing(Permissions(AUTONOMOUS, ceiling=STRICT))
