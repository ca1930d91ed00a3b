"""Which tool calls of a CLI run, are asked about, or are denied."""

import pytest

from lastgood.core.tool_permissions import Allowed, Asks, Denied
from lastgood.worker.job import JobPermissions, SafetyMode
from lastgood.worker.runtimes.claude_events import TOOLS
from lastgood.worker.runtimes.tool_rules import UNKNOWN_TOOL, CliToolCall, restricts_nothing, verdict_on

STRICT, BALANCED, RESTRICTED, AUTONOMOUS = (
    SafetyMode.STRICT,
    SafetyMode.BALANCED,
    SafetyMode.RESTRICTED,
    SafetyMode.AUTONOMOUS,
)


def call(tool: str, **given: object) -> CliToolCall:
    return CliToolCall("c1", tool, given, TOOLS.get(tool, UNKNOWN_TOOL))


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
        assert isinstance(verdict_on(JobPermissions(mode), one), wanted)
        # As the worker's ceiling it holds against an agent that allows everything.
        ceiling = JobPermissions(AUTONOMOUS, allow=("*",), ceiling=mode)
        assert isinstance(verdict_on(ceiling, one), wanted)


@pytest.mark.parametrize(
    ("permissions", "one", "wanted"),
    [
        # Both names of a tool count, and both names of its arguments.
        (JobPermissions(AUTONOMOUS, deny=("Bash",)), BASH, Denied),
        (JobPermissions(AUTONOMOUS, deny=("shell",)), BASH, Denied),
        (JobPermissions(AUTONOMOUS, deny=("shell:cmd=rm *",)), BASH, Denied),
        (JobPermissions(AUTONOMOUS, deny=("Bash:command=*rm -rf*",)), BASH, Denied),
        (JobPermissions(AUTONOMOUS, ask=("write_file:path=/w/docs/*",)), WRITE, Asks),
        (JobPermissions(AUTONOMOUS, ask=("Write:file_path=/w/docs/*",)), WRITE, Asks),
        (JobPermissions(RESTRICTED, allow=("write_file:path=docs/*",)), WRITE, Allowed),
        (JobPermissions(RESTRICTED, allow=("Write",)), WRITE, Allowed),
        # Each command of a line must be allowed.
        (JobPermissions(RESTRICTED, allow=("shell:cmd=git *",)), BASH, Denied),
        (JobPermissions(RESTRICTED, allow=("shell:cmd=git *", "shell:cmd=rm *")), BASH, Allowed),
        # Deny wins, then allow, then ask.
        (JobPermissions(AUTONOMOUS, allow=("*",), ask=("*",), deny=("mcp__*",)), MCP, Denied),
        (JobPermissions(STRICT, allow=("mcp__*",), ask=("mcp__*",)), MCP, Allowed),
        (JobPermissions(AUTONOMOUS, ask=("mcp__github__*",)), MCP, Asks),
        # The ceiling denies and asks whatever the agent's rules allow.
        (JobPermissions(STRICT, ceiling=RESTRICTED), MCP, Denied),
        (JobPermissions(RESTRICTED, ceiling=STRICT), MCP, Denied),
        (JobPermissions(RESTRICTED, allow=("Write",), ceiling=BALANCED), WRITE, Asks),
    ],
)
def test_rules_of_the_agent_and_the_ceiling_of_the_worker(
    permissions: JobPermissions, one: CliToolCall, wanted: type
) -> None:
    assert isinstance(verdict_on(permissions, one, "/w"), wanted)


def test_only_a_job_without_any_limit_restricts_nothing() -> None:
    assert restricts_nothing(JobPermissions(AUTONOMOUS, allow=("x",)))
    assert not restricts_nothing(JobPermissions(BALANCED))
    assert not restricts_nothing(JobPermissions(AUTONOMOUS, deny=("x",)))
    assert not restricts_nothing(JobPermissions(AUTONOMOUS, ask=("x",)))
    assert not restricts_nothing(JobPermissions(AUTONOMOUS, ceiling=STRICT))
