"""Hooks, and the evaluators they ask.

Nothing follows from them yet. A misspelt key is a mistake all the same.
"""

from __future__ import annotations

from lastgood.agents.schema.kinds import (
    FLAG,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Key,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Whole,
)
from lastgood.agents.schema.models import COST

_SHARE = Number(least=0, most=1, above=True)

EVALUATOR = Section(
    "evaluator",
    "an evaluator",
    {
        "provider": Key(TEXT, "who evaluates"),
        "model": Key(TEXT, "the model that evaluates", required=True),
        "type": Key(Text(("boolean", "choice", "score")), "the shape of its answer", required=True),
        "instructions": Key(TEXT, "what is to be evaluated", required=True),
        "base_url": Key(TEXT, "the address of its API"),
        "endpoint": Key(TEXT, "the very address that is asked"),
        "token_key": Key(TEXT, "the variable that holds its key"),
        "bypass_models_gateway": Key(FLAG, "whether it is asked directly"),
        "choices": Key(TEXT_MAP, "answers, each with what it means"),
        "levels": Key(TEXTS, "answers, from low to high"),
        "timeout": Key(Span(), "how long it may take"),
        "cost": Key(COST, "what it costs"),
    },
)
EVALUATOR_POLICY = Section(
    "evaluator_policy",
    "an evaluator's policy",
    {
        "decisions": Key(
            MapOf(Text(("allow", "ask", "deny"))), "answers, each with what follows", required=True
        ),
        "min_probability": Key(_SHARE, "how sure it must be", required=True),
        "fallback": Key(Text(("ask", "deny")), "what follows in doubt", required=True),
    },
)
ROUTING_POLICY = Section(
    "routing_policy",
    "a routing policy",
    {
        "routes": Key(TEXT_MAP, "answers, each with its agent", required=True),
        "min_probability": Key(_SHARE, "how sure it must be", required=True),
    },
)
HOOK = Section(
    "hook",
    "a hook",
    {
        "name": Key(TEXT, "its name in logs"),
        "type": Key(Text(("command", "builtin", "model", "evaluator")), "what it is", required=True),
        "command": Key(TEXT, "the command, or the name of the built-in"),
        "args": Key(TEXTS, "its arguments"),
        "timeout": Key(Whole(least=1), "seconds it may take"),
        "env": Key(TEXT_MAP, "variables it gets"),
        "working_dir": Key(TEXT, "where it runs"),
        "on_error": Key(Text(("warn", "ignore", "block")), "what follows when it fails"),
        "strict_output": Key(FLAG, "whether its output must be one JSON object"),
        "model": Key(TEXT, "the model that is asked"),
        "prompt": Key(TEXT, "what the model is asked"),
        "system_prompt": Key(TEXT, "the model's system message"),
        "schema": Key(TEXT, "how the model's answer is understood"),
        "evaluator": Key(TEXT, "the evaluator that is asked"),
        "evaluator_policy": Key(EVALUATOR_POLICY, "what follows from its answer"),
        "routing_policy": Key(ROUTING_POLICY, "which agent follows from its answer"),
    },
)
MATCHED_HOOKS = Section(
    "matched hooks",
    "hooks for some tools",
    {
        "matcher": Key(TEXT, "a regular expression for the names of tools; `*`: all"),
        "hooks": Key(ListOf(HOOK, least=1), "what runs", required=True),
        "preempt_yolo": Key(FLAG, "whether they run before the permissions are looked at"),
    },
)
_MATCHED = ListOf(MATCHED_HOOKS)
_PLAIN = ListOf(HOOK)
_REFUSES = "these hooks are not run, so a tool call that they would refuse is not refused by them"
_WATCHES = "these hooks are not run"
_BLOCKS = "these hooks are not run, so what they would stop goes on"
_HIDES = "these hooks are not run, so what they would take out or rewrite stays as it is"
_ADDS = "these hooks are not run, so the agent does not see what they would add"
HOOKS = Section(
    "hooks",
    "the hooks of an agent",
    {
        "pre_tool_use": Key(_MATCHED, "before a tool runs", _REFUSES),
        "tool_guard": Key(_MATCHED, "before a tool call is approved", _REFUSES),
        "permission_request": Key(
            _MATCHED, "before a person is asked", "these hooks are not run; a person is asked"
        ),
        "tool_input_transform": Key(_MATCHED, "rewrites a tool's arguments", _HIDES),
        "tool_response_transform": Key(_MATCHED, "rewrites a tool's result", _HIDES),
        "post_tool_use": Key(_MATCHED, "after a tool ran", _BLOCKS),
        "prompt_file_guard": Key(_PLAIN, "checks prompt files", _BLOCKS),
        "skill_content_guard": Key(_PLAIN, "checks skills", _BLOCKS),
        "user_prompt_submit": Key(_PLAIN, "when a person said something", _BLOCKS),
        "user_steering_messages_submit": Key(_PLAIN, "when a person said more during a turn", _BLOCKS),
        "user_followup_submit": Key(_PLAIN, "when a follow-up begins", _BLOCKS),
        "before_llm_call": Key(_PLAIN, "before the model is asked", _BLOCKS),
        "before_agent_run": Key(
            _PLAIN, "before an agent begins", "these hooks are not run, so they choose no agent"
        ),
        "after_agent_complete": Key(
            _PLAIN, "after an agent is done", "these hooks are not run, so they choose no agent"
        ),
        "session_start": Key(_PLAIN, "when a session begins", _ADDS),
        "turn_start": Key(_PLAIN, "when a turn begins", _ADDS),
        "turn_end": Key(_PLAIN, "when a turn ends", _WATCHES),
        "after_llm_call": Key(_PLAIN, "after the model answered", _WATCHES),
        "session_end": Key(_PLAIN, "when a session ends", _WATCHES),
        "pre_compact": Key(_PLAIN, "before a conversation is summarized", _WATCHES),
        "before_compaction": Key(_PLAIN, "before a conversation is summarized", _WATCHES),
        "after_compaction": Key(_PLAIN, "after a conversation was summarized", _WATCHES),
        "subagent_stop": Key(_PLAIN, "when a sub-agent is done", _WATCHES),
        "on_user_input": Key(_PLAIN, "when a person is asked something", _WATCHES),
        "stop": Key(_PLAIN, "when the agent is done", _WATCHES),
        "notification": Key(_PLAIN, "when a person is told something", _WATCHES),
        "on_error": Key(_PLAIN, "when something failed", _WATCHES),
        "on_max_iterations": Key(_PLAIN, "when the limit of iterations is reached", _WATCHES),
        "on_agent_switch": Key(_PLAIN, "when another agent speaks", _WATCHES),
        "on_session_resume": Key(_PLAIN, "when a session goes on past its limit", _WATCHES),
        "on_tool_approval_decision": Key(_PLAIN, "when a tool call was decided about", _WATCHES),
        "worktree_create": Key(_PLAIN, "when a git worktree was made", _WATCHES),
    },
)
