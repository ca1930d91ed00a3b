"""May a tool be called?"""

import itertools
import time
from typing import Any

import pytest

from lastgood.core.command_line import simple_commands
from lastgood.core.limits import JUDGED_CHARACTERS, JUDGED_ITEMS
from lastgood.core.tool_permissions import (
    Allowed,
    Asks,
    Denied,
    Verdict,
    is_above,
    is_granted,
    judge,
    judging,
    narrower,
    narrowing,
)
from lastgood.model.agents import Effect, Permissions, Safety

SAFE, DESTRUCTIVE, UNKNOWN = Effect.SAFE, Effect.DESTRUCTIVE, Effect.UNKNOWN


def ruled(
    tool: str, arguments: dict[str, Any], *, root: str = "", mode: Safety = Safety.STRICT, **rules: list[str]
) -> type[Verdict]:
    """By these rules, where no rule means that a person is asked."""
    permissions = Permissions(**{word: tuple(found) for word, found in rules.items()})
    return type(judge([permissions], mode, False, tool, UNKNOWN, arguments, root=root))


def denies(rule: str, tool: str, root: str = "", **arguments: Any) -> bool:
    return ruled(tool, arguments, root=root, mode=Safety.AUTONOMOUS, deny=[rule]) is Denied


def allows(rules: str | list[str], tool: str, root: str = "", **arguments: Any) -> bool:
    rules = [rules] if isinstance(rules, str) else rules
    return ruled(tool, arguments, root=root, mode=Safety.RESTRICTED, allow=rules) is Allowed


# --- the order ---------------------------------------------------------------------------------------------


def test_deny_wins_over_allow_and_ask_and_mode_whoever_wrote_it() -> None:
    generous = Permissions(allow=("*",), ask=("*",))
    for rules in itertools.permutations([generous, Permissions(deny=("shell",)), Permissions()]):
        assert type(judge(rules, Safety.AUTONOMOUS, False, "shell", SAFE, {})) is Denied


def test_allow_wins_over_ask_and_ask_over_the_mode() -> None:
    assert ruled("a", {}, allow=["a"], ask=["a"], mode=Safety.RESTRICTED) is Allowed
    assert ruled("a", {}, ask=["a"], mode=Safety.RESTRICTED) is Asks
    assert ruled("a", {}, ask=["a"], mode=Safety.AUTONOMOUS) is Asks


@pytest.mark.parametrize(
    ("mode", "safe", "destructive", "unknown"),
    [
        (Safety.STRICT, Asks, Asks, Asks),
        (Safety.BALANCED, Allowed, Asks, Asks),
        (Safety.RESTRICTED, Allowed, Denied, Denied),
        (Safety.AUTONOMOUS, Allowed, Allowed, Allowed),
    ],
)
def test_without_a_rule_the_mode_decides(
    mode: Safety, safe: type[Verdict], destructive: type[Verdict], unknown: type[Verdict]
) -> None:
    for effect, expected in {SAFE: safe, DESTRUCTIVE: destructive, UNKNOWN: unknown}.items():
        verdict = judge([Permissions(deny=("other",))], mode, False, "tool", effect, {})
        assert type(verdict) is expected
        assert mode in verdict.reason


@pytest.mark.parametrize("mode", Safety)
def test_a_read_only_agent_calls_only_what_is_safe_whatever_is_allowed(mode: Safety) -> None:
    allowed = [Permissions(allow=("*",))]
    for effect in (DESTRUCTIVE, UNKNOWN):
        assert type(judge(allowed, mode, True, "tool", effect, {})) is Denied
    assert type(judge(allowed, mode, True, "tool", SAFE, {})) is Allowed


def test_every_verdict_says_why() -> None:
    rules = [Permissions(allow=("a",), ask=("x", "b"), deny=("c",))]
    reasons = {tool: judge(rules, Safety.STRICT, False, tool, SAFE, {}).reason for tool in "abc"}
    assert reasons == {
        "a": "the rule 'a' allows it",
        "b": "the rule 'b' asks for approval",
        "c": "the rule 'c' denies it",
    }


# --- narrowing ----------------------------------------------------------------------------------------

RANK: dict[type[Verdict], int] = {Denied: 0, Asks: 1, Allowed: 2}


def rank(safety: Safety | tuple[Safety, ...], effect: Effect) -> int:
    return RANK[type(judge([], safety, False, "tool", effect, {}))]


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize(("one", "other"), list(itertools.product(Safety, repeat=2)))
def test_the_narrower_of_two_is_exactly_as_tight_as_both(one: Safety, other: Safety, effect: Effect) -> None:
    assert rank(narrower(one, other), effect) == min(rank(one, effect), rank(other, effect))
    assert rank(narrower(one, other), effect) == rank(narrower(other, one), effect)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((Safety.AUTONOMOUS, Safety.BALANCED), (Safety.BALANCED,)),
        ((Safety.BALANCED, Safety.RESTRICTED, Safety.AUTONOMOUS), (Safety.RESTRICTED,)),
        ((Safety.STRICT, Safety.BALANCED), (Safety.STRICT,)),
        ((Safety.RESTRICTED, Safety.RESTRICTED), (Safety.RESTRICTED,)),
        ((Safety.RESTRICTED, Safety.STRICT), (Safety.RESTRICTED, Safety.STRICT)),
    ],
)
def test_only_strict_and_restricted_have_no_tighter_one(
    modes: tuple[Safety, ...], expected: tuple[Safety, ...]
) -> None:
    assert narrower(*modes) == expected


def test_an_untrusted_file_can_only_restrict_permissions() -> None:
    assert narrowing(Permissions(("a",), ("b",), ("c",))) == Permissions((), ("b",), ("c",))


# --- what a rule speaks of ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "tool", "arguments", "expected"),
    [
        ("shell", "shell", {"cmd": "ls"}, True),
        (" shell ", "shell", {}, True),
        ("shell", "shells", {}, False),
        ("*", "anything", {}, True),
        ("fs_*", "fs_read", {}, True),
        ("fs_*", "read", {}, False),
        ("read_?ile", "read_file", {}, True),
        ("read_[ef]ile", "read_file", {}, True),
        ("read_[^ef]ile", "read_file", {}, False),
        ("read_[!xy]ile", "read_file", {}, True),
        ("read_[file", "read_[file", {}, True),
        ("mcp:github:get_*", "mcp:github:get_issue", {}, True),
        ("mcp:github:*", "mcp:gitlab:get_issue", {}, False),
        ("mcp:github:get:repo=a", "mcp:github:get", {"repo": "a"}, True),
        # every argument must fit, and one that is missing fits nothing
        ("tool:a=x*:b=y*", "tool", {"a": "x1", "b": "y1"}, True),
        ("tool:a=x*:b=y*", "tool", {"a": "x1", "b": "z"}, False),
        ("tool:a=x*:b=y*", "tool", {"a": "x1"}, False),
        ("tool:a=*", "tool", {}, False),
        ("tool:a=x*:a=*y", "tool", {"a": "x-y"}, True),
        ("tool:a=x*:a=*y", "tool", {"a": "x-z"}, False),
        # colons in values
        ("fetch:url=https://example.org:8080/*", "fetch", {"url": "https://example.org:8080/a"}, True),
        ("tool:a=b[:]c=d", "tool", {"a": "b:c=d"}, True),
        # what is no text is compared as JSON
        ("tool:n=5", "tool", {"n": 5}, True),
        ("tool:n=true", "tool", {"n": True}, True),
        ("tool:n=null", "tool", {"n": None}, True),
        ('tool:n={"a":1}', "tool", {"n": {"a": 1}}, True),
        # a star crosses slashes and lines; a backslash takes its meaning away
        ("tool:a=x*z", "tool", {"a": "x/y\nz"}, True),
        (r"tool:a=x\*z", "tool", {"a": "xyz"}, False),
        (r"tool:a=x\*z", "tool", {"a": "x*z"}, True),
    ],
)
def test_a_rule_speaks_of_a_call_when_its_name_and_all_its_arguments_fit(
    rule: str, tool: str, arguments: dict[str, Any], expected: bool
) -> None:
    assert allows(rule, tool, **arguments) is expected
    assert denies(rule, tool, **arguments) is expected


def test_deny_looks_past_case_and_surrounding_space_and_allow_does_not() -> None:
    assert denies("Tool:a=X*", "tOOL", a="  xyz")
    assert not allows("Tool:a=x*", "tool", a="xyz")
    assert not allows("tool:a=X*", "tool", a="xyz")
    assert not allows("tool:a=x*", "tool", a="  xyz")


def test_a_second_argument_of_nearly_the_same_name_hides_nothing() -> None:
    assert denies("tool:a=x", "tool", a="x", A="y")
    assert not allows("tool:a=x", "tool", a="y", A="x")


def test_of_a_list_one_item_is_enough_to_deny_and_all_are_needed_to_allow() -> None:
    rule = "fetch:urls=https://example.org/*"
    good, bad = "https://example.org/a", "https://example.com/a"
    assert denies(rule, "fetch", urls=[bad, good])
    assert not denies(rule, "fetch", urls=[bad])
    assert allows(rule, "fetch", urls=[good, good])
    assert not allows(rule, "fetch", urls=[good, bad])
    assert not allows(rule, "fetch", urls=[])
    assert not allows("fetch:urls=*example.org*", "fetch", urls=[good, bad])


def test_arguments_that_are_nested_too_deeply_are_denied() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert denies("tool:a=x", "tool", a=deep)
    while deep:  # or taking it apart would recurse just as deeply
        deep = deep.pop()


# --- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "secrets/key",
        "./secrets/key",
        "secrets//key",
        "a/../secrets/key",
        "/w/secrets/key",
        "//w/secrets/key",
        "/w/a/../secrets/./key",
        " secrets/key ",
        "SECRETS/key",
    ],
)
@pytest.mark.parametrize("rule", ["read_file:path=secrets/*", "read_file:path=./secrets/*"])
def test_I38_no_detour_gets_past_a_deny(rule: str, path: str) -> None:
    assert denies(rule, "read_file", root="/w", path=path)
    assert denies(
        rule.replace("read_file:path", "read_multiple_files:paths"),
        "read_multiple_files",
        root="/w/",
        paths=["a", path],
    )


@pytest.mark.parametrize(
    "path", ["docs/../secrets/key", "docs/../../etc/passwd", "/docs/key", "/w/docs/../x"]
)
def test_I38_no_detour_gets_past_an_allow(path: str) -> None:
    assert allows("read_file:path=docs/*", "read_file", root="/w", path="docs/a/../b")
    assert allows("read_file:path=docs/*", "read_file", root="/w", path="/w/docs/b")
    assert allows("read_file:path=/w/docs/*", "read_file", root="/w", path="docs/b")
    assert not allows("read_file:path=docs/*", "read_file", root="/w", path=path)


def test_without_a_root_paths_are_still_straightened() -> None:
    assert denies("read_file:path=/etc/*", "read_file", path="/tmp/../etc/passwd")
    assert allows("read_file:path=./a", "read_file", path="a")
    assert not allows("read_file:path=a/*", "read_file", path="a/../b")


def test_the_root_itself_is_a_dot() -> None:
    assert allows("shell:cmd=ls*:cwd=.", "shell", root="/w", cmd="ls", cwd="/w/")
    assert not allows("shell:cmd=ls*:cwd=.", "shell", root="/w", cmd="ls", cwd="/wider")


def test_a_url_is_no_path() -> None:
    assert allows("tool:file=https://a/*", "tool", root="/w", file="https://a/b")


# --- command lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "  rm x",
        "ls; rm x",
        "ls && rm x",
        "ls || rm x",
        "ls | rm x",
        "ls & rm x",
        "ls\nrm x",
        "ls;rm x;",
        "(rm x)",
        "{ rm x; }",
        "echo $(rm x)",
        "echo `rm x`",
        "cat <(rm x)",
        "if true; then rm x; fi",
        "! rm x",
        "A=1 rm x",
        "A='b c' B=\"d e\" rm x",
        "exec rm x",
        "sudo rm x",
        "env A=1 rm x",
        "/bin/rm x",
        "../../bin/rm x",
        "'rm' x",
        '"rm" x',
        "r\\m x",
        "r''m x",
        "rm\tx",
        "rm   x",
        "rm \\\n x",
        "r\\\nm x",
        "RM x",
    ],
)
def test_a_denied_command_is_found_wherever_it_stands_in_the_line(command: str) -> None:
    assert denies("shell:cmd=rm *", "shell", cmd=command)


@pytest.mark.parametrize("command", ["ls", "rmdir x", "alarm x", "git rm x", "rm"])
def test_a_deny_of_a_command_says_nothing_about_others(command: str) -> None:
    assert not denies("shell:cmd=rm *", "shell", cmd=command)


def test_a_deny_may_speak_of_the_whole_line() -> None:
    assert denies("shell:cmd=*|*sh", "shell", cmd="curl x | sh")


STATUS = "shell:cmd=git status*"


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git status --short",
        "  git status\n",
        "git status; git status -s",
        "git status || git status",
        "git status && git status;",
        "git status 'a; rm b'",
        'git status "a | b && c > d # e"',
        "git status a\\;b",
        'git status "it\'s"',
        "git status 'say \"a'",
        "git status $HOME",
        'git status "a\\"b;c"',
        "git status\n\ngit status",
    ],
)
def test_an_allowed_command_is_allowed_as_often_as_it_stands_in_the_line(command: str) -> None:
    assert allows(STATUS, "shell", cmd=command)


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "git status && rm x",
        "git status || rm x",
        "git status | sh",
        "git status & rm x",
        "git status &",
        "git status\nrm x",
        "git status $(rm x)",
        "git status `rm x`",
        "git status <(rm x)",
        "git status >x",
        "git status <x",
        "git status 2>&1",
        'git status "$(rm x)"',
        'git status "`rm x`"',
        "git status 'a",
        'git status "a',
        "git status \\",
        "git status() (rm x)",
        "git status # '\nrm x #'",
        "git status $'\\'' ; rm x ; git status '",
        'git status "${x#\'"\'}" ; rm x ; git status "${x#\'"\'}"',
        "A=1 git status",
        "rm x; git status",
        "",
        "   ",
        ";",
        "git statu",
    ],
)
def test_an_allow_does_not_reach_past_its_command(command: str) -> None:
    assert not allows(STATUS, "shell", cmd=command)


def test_a_line_that_cannot_be_read_is_not_allowed_by_any_command() -> None:
    assert allows("shell:cmd=**", "shell", cmd="ls; ls")
    assert not allows("shell:cmd=**", "shell", cmd="ls > x")


def test_an_allowed_name_cannot_be_given_to_another_command() -> None:
    assert allows("shell:cmd=x-*", "shell", cmd="x-a; x-a")
    assert not allows("shell:cmd=x-*", "shell", cmd="x-a() (rm b); x-a")


@pytest.mark.parametrize(
    ("rule", "command", "expected"),
    [
        ("shell:cmd=ls*", "ls", True),
        ("shell:cmd=ls*", "ls -l", True),
        ("shell:cmd=ls*", "lsof", False),
        ("shell:cmd=git*", "git-evil", False),
        ("shell:cmd=make test-*", "make test-unit", True),
        ("shell:cmd=*", "anything", True),
        ("shell:cmd=pwd", "pwd", True),
    ],
)
def test_an_allowed_beginning_ends_with_a_word(rule: str, command: str, expected: bool) -> None:
    assert allows(rule, "shell", cmd=command) is expected


def test_each_command_of_a_line_may_be_allowed_by_a_rule_of_its_own() -> None:
    rules = [STATUS, "shell:cmd=wc *:cwd=a"]
    assert allows(rules, "shell", cmd="git status | wc -l", cwd="a")
    assert not allows(rules, "shell", cmd="git status | wc -l", cwd="b")
    assert not allows(rules, "shell", cmd="git status | wc -l")


@pytest.mark.parametrize("rule", ["shell", "*", "shell:cmd=*", "shell:cwd=a"])
def test_an_allow_that_asks_for_no_command_allows_any_line(rule: str) -> None:
    assert allows(rule, "shell", cmd="ls > x & rm $(cat y)", cwd="a")


def test_only_the_shell_takes_command_lines() -> None:
    assert allows("other:cmd=a*", "other", cmd="a; b > c")
    assert not denies("other:cmd=b*", "other", cmd="a; b > c")
    assert allows("shell:cmd=5", "shell", cmd=5)


def test_commands_are_read_off_a_plain_line() -> None:
    assert simple_commands("a 'b;c' && d|e;;") == ("a 'b;c'", "d", "e")
    assert simple_commands("") == ()


def test_an_answer_given_beforehand_speaks_of_the_call_or_does_not() -> None:
    rules = Permissions(allow=("shell:cmd=ls*",))
    assert is_granted(rules, "shell", {"cmd": "ls -l"})
    assert not is_granted(rules, "shell", {"cmd": "rm x"})
    assert not is_granted(Permissions(), "shell", {"cmd": "ls"})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert not is_granted(Permissions(allow=("fetch:urls=*",)), "fetch", {"urls": deep})


def test_modes_have_an_order_and_no_session_gets_above_the_servers() -> None:
    for low, high in itertools.combinations(Safety, 2):
        assert is_above(high, low)
        assert not is_above(low, high)
    assert not any(is_above(mode, mode) for mode in Safety)


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [JUDGED_CHARACTERS, JUDGED_CHARACTERS + 1])
def test_I40_an_argument_too_long_for_rules_is_denied_asked_about_and_not_allowed(length: int) -> None:
    """Otherwise a command that is padded with spaces would get past every rule."""
    command = "rm x".ljust(length)
    is_long = length > JUDGED_CHARACTERS
    assert denies("shell:cmd=ls *", "shell", cmd=command) is is_long
    assert (
        ruled("shell", {"cmd": command}, ask=["shell:cmd=ls *"], mode=Safety.AUTONOMOUS) is Asks
    ) is is_long
    assert allows("shell:cmd=rm *", "shell", cmd=command) is not is_long
    # Rules that do not look at it are not concerned.
    assert not denies("shell:cwd=/etc", "shell", cmd=command)
    assert not denies("other:cmd=ls *", "shell", cmd=command)
    assert allows(["shell:cmd=*"], "shell", cmd=command)
    assert allows(["note:text=a*"], "note", text="a".ljust(length)) is not is_long


def test_I40_an_argument_with_too_many_items_is_denied() -> None:
    paths = ["a"] * JUDGED_ITEMS
    assert not denies("read:paths=secret", "read", paths=paths)
    assert denies("read:paths=secret", "read", paths=[*paths, "a"])
    assert not allows("read:paths=a", "read", paths=[*paths, "a"])


def test_a_verdict_by_length_names_the_argument_and_the_limit() -> None:
    rules = Permissions(deny=("shell:cmd=ls *",))
    verdict = judge([rules], Safety.AUTONOMOUS, False, "shell", UNKNOWN, {"cmd": "x" * 400_000})
    assert verdict.reason == (
        "the rule 'shell:cmd=ls *' denies it, because `cmd` has 400,000 characters; "
        "rules match at most 32,768; shorten it"
    )


def test_I40_judging_can_be_paused_at_every_rule() -> None:
    rules = Permissions(deny=("shell:cmd=a",) * 50, ask=("shell:cmd=b",) * 50, allow=("shell:cmd=c",) * 50)
    assert len(list(judging([rules], Safety.STRICT, False, "shell", UNKNOWN, {"cmd": "ls"}))) == 150


@pytest.mark.parametrize("unit", ["a", "'a' "])
def test_I40_reading_a_line_costs_what_it_is_long(unit: str) -> None:
    """Building each command character by character took 5 s for 400 KB."""
    assert _cost(unit * (400_000 // len(unit))) < 40 * _cost(unit * (25_000 // len(unit)))


def _cost(line: str) -> float:
    started = time.process_time()
    assert simple_commands(line)
    return time.process_time() - started
