"""Builds the hooks of an agent: which of them can run here, and what is wrong with the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lastgood.agents.findings import Findings, Location, hint
from lastgood.agents.placeholders import check_filled
from lastgood.agents.schema_reader import Fields, Value
from lastgood.core.hooks import CONTRACTS, JUDGEMENT
from lastgood.model.hooks import DEFAULT_SECONDS, HookEvent, HookKind, HookSpec, OnHookError

#: How long a hook may take at most, whatever its file says.
MOST_SECONDS = 3600.0

_CONTEXT = frozenset(event for event, contract in CONTRACTS.items() if contract.context)
#: The built-in hooks, with the events that each is for.
BUILTINS: dict[str, frozenset[HookEvent]] = {
    "add_context": _CONTEXT,
    "add_date": _CONTEXT,
    "add_directory_listing": _CONTEXT,
    "add_environment_info": _CONTEXT,
    "add_git_diff": _CONTEXT,
    "add_git_status": _CONTEXT,
    "add_prompt_files": _CONTEXT,
    "add_recent_commits": _CONTEXT,
    "add_user_info": _CONTEXT,
    "max_iterations": frozenset({HookEvent.BEFORE_LLM_CALL}),
    "redact_secrets": frozenset(
        {
            HookEvent.TOOL_INPUT_TRANSFORM,
            HookEvent.PRE_TOOL_USE,
            HookEvent.BEFORE_LLM_CALL,
            HookEvent.TOOL_RESPONSE_TRANSFORM,
        }
    ),
}
_BEFORE_PERMISSIONS = frozenset(
    {HookEvent.TOOL_INPUT_TRANSFORM, HookEvent.PRE_TOOL_USE, HookEvent.TOOL_GUARD}
)
#: docker-agent's other built-ins, and what does not happen.
_NOT_YET = {
    "elide_repeated_tool_results": "repeated tool results are not left out",
    "handle_large_tool_output": "long results are cut instead",
    "http_post": "nothing is sent",
    "limit_large_tool_results": "long results are always cut, and kept whole in the journal",
    "safer_shell": "commands are judged by the safety mode alone",
    "snapshot": "no snapshots are made",
    "unload": "no model is unloaded",
}

#: Resolves a reference to a model; None: there is no such model, and the findings say so.
Refer = Callable[[str, Location], str | None]


class HookBuilder:
    def __init__(self, findings: Findings, refer: Refer, *, trusted: bool) -> None:
        self._findings = findings
        self._refer = refer
        self._trusted = trusted

    def of(self, agent: Fields) -> tuple[HookSpec, ...]:
        section: Fields | None = agent.raw("hooks")
        if section is None or not section.values:
            return ()
        hooks = tuple(self._hooks(section))
        if not self._trusted:
            what = (
                "an agent file from a URL may not run hooks: they are ignored; "
                "serve it from a file, or set `trusted = true` for it in lastgood.toml"
            )
            self._findings.warning(agent.at("hooks"), what)
            return ()
        if agent.raw("harness") is not None:
            what = "hooks are not supported with a harness: its program runs tools and models by itself"
            self._findings.warning(agent.at("hooks"), what)
            return ()
        return hooks

    def _hooks(self, section: Fields) -> Iterator[HookSpec]:
        for event in HookEvent:
            for one in section.listed(event.value):
                if CONTRACTS[event].matched:
                    yield from self._matched(event, one.raw)
                else:
                    yield from self._hook(event, one.raw, "")

    def _check_order(self, event: HookEvent, fields: Fields) -> None:
        """`preempt_yolo` says what is always so before a call; nothing else can be had."""
        preempts = fields.raw("preempt_yolo")
        if preempts is None:
            return
        if event not in _BEFORE_PERMISSIONS:
            what = f"'preempt_yolo' has no effect on {event}; use it for pre_tool_use"
        elif not preempts:
            what = f"'preempt_yolo: false' has no effect: hooks of {event} run before permissions are checked"
        else:
            return
        self._findings.warning(fields.at("preempt_yolo"), what)

    def _matched(self, event: HookEvent, fields: Fields) -> Iterator[HookSpec]:
        self._check_order(event, fields)
        matcher = fields.text("matcher")
        if matcher not in ("", "*"):
            try:
                re.compile(matcher)
            except (re.error, RecursionError, OverflowError) as error:
                # Without its matcher a hook would run for no tool, and deny nothing.
                what = f"'{matcher:.200}' is not a valid regular expression: {error}"
                self._findings.error(fields.at("matcher"), what)
                return
        for one in fields.listed("hooks"):
            yield from self._hook(event, one.raw, matcher)

    def _hook(self, event: HookEvent, fields: Fields, matcher: str) -> Iterator[HookSpec]:
        kind = fields.text("type")
        check_filled(fields, self._findings)
        usable = kind in list(HookKind) and {
            HookKind.COMMAND: self._is_command,
            HookKind.BUILTIN: self._is_builtin,
            HookKind.MODEL: self._is_model,
        }[HookKind(kind)](event, fields)
        if kind == "evaluator":
            what = "hooks of type 'evaluator' are not supported yet: this hook does not run"
            self._findings.warning(fields.at("type"), what)
        if not usable:
            return
        yield HookSpec(
            event=event,
            kind=HookKind(kind),
            command=fields.text("command"),
            matcher=matcher,
            name=fields.text("name"),
            args=tuple(str(one.raw) for one in fields.listed("args")),
            seconds=min(float(fields.raw("timeout") or DEFAULT_SECONDS), MOST_SECONDS),
            env={name: str(value.raw) for name, value in fields.named("env").items()},
            working_dir=fields.text("working_dir"),
            on_error=OnHookError(fields.text("on_error") or OnHookError.WARN),
            strict_output=fields.raw("strict_output", False),
            model=fields.text("model"),
            prompt=fields.text("prompt"),
            system_prompt=fields.text("system_prompt"),
            schema=fields.text("schema"),
        )

    def _is_command(self, event: HookEvent, fields: Fields) -> bool:
        if not fields.text("command").strip():
            self._findings.error(fields.place, "a hook of type 'command' needs a 'command'")
            return False
        return True

    def _is_builtin(self, event: HookEvent, fields: Fields) -> bool:
        name, place = fields.text("command"), fields.at("command")
        if name in _NOT_YET:
            self._findings.warning(
                place, f"the built-in hook '{name}' is not supported yet: {_NOT_YET[name]}"
            )
            return False
        if name not in BUILTINS:
            self._findings.error(place, f"unknown built-in hook '{name}'{hint(name, BUILTINS)}")
            return False
        if event not in BUILTINS[name]:
            events = ", ".join(sorted(one.value for one in BUILTINS[name]))
            self._findings.error(place, f"the built-in hook '{name}' is for {events}, not for {event}")
            return False
        if name == "max_iterations" and not _is_count(fields.listed("args")):
            self._findings.error(place, "the built-in hook 'max_iterations' needs one number in 'args'")
            return False
        return True

    def _is_model(self, event: HookEvent, fields: Fields) -> bool:
        if missing := next((key for key in ("model", "prompt") if not fields.text(key).strip()), None):
            self._findings.error(fields.place, f"a hook of type 'model' needs a '{missing}'")
            return False
        schema = fields.text("schema")
        if schema not in ("", JUDGEMENT):
            what = f"the schema '{schema}' is not supported yet: this hook does not run; use '{JUDGEMENT}'"
            self._findings.warning(fields.at("schema"), what)
            return False
        if not (CONTRACTS[event].decides if schema else CONTRACTS[event].context):
            what = f"an answer of this model has no effect on {event}"
            self._findings.error(fields.place, what)
            return False
        return self._refer(fields.text("model"), fields.at("model")) is not None


def redacts_prompts(hooks: tuple[HookSpec, ...]) -> bool:
    """Whether a hook takes secrets out of what the model is sent, as the agent's `redact_secrets` does."""
    return any(hook.command == "redact_secrets" and hook.event is HookEvent.BEFORE_LLM_CALL for hook in hooks)


def _is_count(args: list[Value]) -> bool:
    return len(args) == 1 and str(args[0].raw).isdecimal() and int(args[0].raw) > 0
