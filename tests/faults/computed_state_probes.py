"""Stories about what is computed from a conversation: whatever stands in it, the session answers."""

from __future__ import annotations

from dataclasses import replace

from lastgood.agents.builtin import scripted_agent
from lastgood.agents.catalog import Catalog
from lastgood.core.model_choice import CHANGE, CHANGED
from lastgood.core.speaker import HANDOFF
from lastgood.model.messages import HANDED_OVER, ToolCall, assistant, tool_result, user
from lastgood.model.sessions import TurnKind
from lastgood.wiring import assemble
from tests.faults.probes import Stage, probe
from tests.faults.simulation import LIMITS
from tests.faults.world import LoopClock

DEEP = '{"agent": ' + "[" * 5000 + "]" * 5000 + "}"


@probe
async def calls_with_unreadable_arguments_stay_answerable(stage: Stage) -> None:
    """I8: a client appended them. Nothing can be read from them, and nothing needs to be."""
    agent = replace(
        stage.world.agent(),
        handoffs=("clerk",),
        members={"clerk": replace(scripted_agent(), name="clerk")},
    )
    engine = stage.world.kit().engine()
    node = assemble(stage.store, engine, Catalog([agent]), limits=LIMITS, clock=LoopClock(), node="team")
    for number, (name, result) in enumerate(((HANDOFF, f"{HANDED_OVER}clerk"), (CHANGE, f"{CHANGED}x"))):
        session = await stage.world.create(node)
        call = ToolCall(f"call-{number}", name, DEEP)
        messages = (user("appended"), assistant("", call), tool_result(call.id, result))
        appended = await stage.world.ask(node, session, "", "", kind=TurnKind.APPEND, messages=messages)
        assert appended.outcome == "committed"
        received = await stage.world.ask(node, session, "go on", f"tok{number}")
        assert received.outcome == "committed", "a call in its history keeps the session from answering"
