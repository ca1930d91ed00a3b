"""Stories about the rules of a session: nobody gets around what a stronger scope has set."""

from __future__ import annotations

from lastgood.core.session_rules import WantedRules
from lastgood.model.agents import Permissions
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.tokens import Scope
from tests.faults.probes import Stage, probe

ADMIN, USER = Setter(Scope.ADMIN, "tok_admin"), Setter(Scope.SESSION, "tok_user")
TOOL = "ledger-repeat"
CALLS = f'\n!tool {TOOL} {{"text": "denied"}}\n!say done'


async def denied(stage: Stage) -> SessionId:
    """A session with a turn, in which an admin denies a tool."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "hello", "tok1")
    await stage.node.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(deny=(TOOL,)), ADMIN)
    return session


@probe
async def rules_hold_in_every_session_derived_from_theirs(stage: Stage) -> None:
    session = await denied(stage)
    for number, message in enumerate((None, 0), 2):
        forking = stage.node.sessions.fork(DEFAULT_TENANT, session, user_message=message)
        received = await stage.world.do("fork", session, forking, other="")
        assert received.outcome == "done", f"a fork was refused: {received.code}"
        await stage.world.ask(stage.node, SessionId(received.other), CALLS, f"tok{number}")
    assert stage.world.ledger == [], "a tool ran that an admin denied"


@probe
async def a_weaker_scope_cannot_remove_a_stronger_rule(stage: Stage) -> None:
    session = await denied(stage)
    changing = stage.other.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(deny=()), USER)
    received = await stage.world.do("set_permissions", session, changing)
    assert (received.outcome, received.code) == ("refused", "forbidden"), "a weaker scope removed a rule"
    await stage.other.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(), USER)
    await stage.world.ask(stage.node, session, CALLS, "tok2")
    assert stage.world.ledger == [], "a tool ran that an admin denied"


@probe
async def rules_that_changed_meanwhile_are_not_overwritten(stage: Stage) -> None:
    """Two nodes: what one decided before an admin's rule was there must not undo that rule."""
    session = await denied(stage)
    mine = (RuleLayer(Scope.SESSION, "tok_user", Permissions(ask=("echo",))),)
    assert not await stage.store.set_rules_if_unchanged(DEFAULT_TENANT, session, (), mine)
    await stage.world.ask(stage.node, session, CALLS, "tok2")
    assert stage.world.ledger == [], "a tool ran that an admin denied"
