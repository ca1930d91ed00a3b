"""Conversations: sessions by a client's own name, appended to or reconciled; never a duplicate."""

from __future__ import annotations

import asyncio

import pytest

from lastgood.errors import InvalidRequest, SessionBusy, StaleHead
from lastgood.flows.conversations import ConversationMatch, Conversations
from lastgood.flows.submission import Submission
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import Ask, AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import Message, assistant, user
from lastgood.model.sessions import Session
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster, Gate, gate_tool

pytestmark = pytest.mark.anyio

AGENT = "builtin/scripted"
NAME = "chat-1"


class Client:
    """One that sends its whole history each time."""

    def __init__(self, cluster: Cluster, node: Lastgood) -> None:
        self.cluster = cluster
        self.node = node
        self.conversations = Conversations(node.deps, node.sessions)

    async def place(self, *body: Message, reconciles: bool = True) -> ConversationMatch:
        session = await self.conversations.open(DEFAULT_TENANT, NAME, AGENT, body)
        return await self.conversations.place(session, body, reconciles=reconciles)

    async def send(self, *body: Message, reconciles: bool = True) -> Outcome:
        place = await self.place(*body, reconciles=reconciles)
        head = place.session.head
        ask = Ask(
            DEFAULT_TENANT,
            place.session.id,
            place.messages,
            edit=place.edit,
            is_first=head is None,
            expected_head=head.turn if head and reconciles else None,
        )
        submitted = await self.node.submitter.submit(Submission(ask))
        return await self.cluster.outcome(self.node, submitted)

    async def said(self) -> list[str]:
        session = await self.session()
        return [message.content for turn in await self.cluster.turns(session.id) for message in turn.messages]

    async def session(self) -> Session:
        found = await self.node.deps.store.find_conversation(DEFAULT_TENANT, NAME)
        assert found is not None
        return found


@pytest.fixture
async def client(cluster: Cluster, node: Lastgood) -> Client:
    return Client(cluster, node)


A, B = user("a"), user("b")
SAID_A, SAID_B = assistant("You said: a"), assistant("You said: b")


@pytest.mark.parametrize("reconciles", [True, False])
async def test_the_same_prefix_is_appended_to(client: Client, reconciles: bool) -> None:
    await client.send(A, reconciles=reconciles)
    first = await client.session()
    await client.send(A, SAID_A, B, reconciles=reconciles)
    assert await client.said() == ["a", "You said: a", "b", "You said: b"]
    assert (await client.session()).id == first.id


async def test_another_answer_continues_from_before_the_one_that_was_given(client: Client) -> None:
    await client.send(A)
    await client.send(A, SAID_A, B)
    first = await client.session()
    await client.send(A, SAID_A, B)
    again = await client.session()
    assert await client.said() == ["a", "You said: a", "b", "You said: b"]
    assert again.id == first.id
    # The other answer is still there, in a branch.
    (branch,) = await client.node.sessions.branches(DEFAULT_TENANT, first.id)
    assert first.head is not None
    assert (branch.head, branch.seq) == (first.head.turn, 2)
    assert again.head is not None
    assert (branch.replaced_by, again.turns) == (again.head.turn, 2)


async def test_an_edited_message_continues_from_before_it(client: Client) -> None:
    await client.send(A)
    await client.send(A, SAID_A, B)
    await client.send(user("other"))
    assert await client.said() == ["other", "You said: other"]
    await client.send(user("other"), assistant("You said: other"), B)
    assert await client.said() == ["other", "You said: other", "b", "You said: b"]


async def test_I2_an_edit_that_failed_leaves_the_conversation_as_it_was(client: Client) -> None:
    await client.send(A)
    first = await client.session()
    outcome = await client.send(user("x\n!fail during"))
    assert outcome.status is AttemptStatus.FAILED
    after = await client.session()
    assert (after.id, after.head) == (first.id, first.head)
    assert await client.said() == ["a", "You said: a"]
    assert await client.node.sessions.branches(DEFAULT_TENANT, first.id) == ()
    page = await client.node.sessions.list(DEFAULT_TENANT)
    assert [session.id for session in page.sessions] == [first.id]


async def test_what_the_server_did_between_is_not_compared(client: Client) -> None:
    await client.send(user('!tool echo {"text": "x"}\n!say done'))
    shown = assistant("done")
    system = Message(role=A.role.SYSTEM, content="their own")
    await client.send(system, user('!tool echo {"text": "x"}\n!say done'), shown, B)
    assert (await client.said())[-2:] == ["b", "You said: b"]
    assert len(await client.cluster.turns((await client.session()).id)) == 2


async def test_M2_3_nothing_new_is_refused(client: Client) -> None:
    await client.send(A)
    for reconciles in (True, False):
        with pytest.raises(InvalidRequest):
            await client.place(A, SAID_A, reconciles=reconciles)


async def test_M2_5_a_busy_conversation_is_not_edited(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    client = Client(cluster, node)
    await client.send(A)
    running = asyncio.create_task(client.send(A, SAID_A, user("!tool gate {}\n!say b")))
    await gate.until_reached()
    with pytest.raises(SessionBusy):
        await client.send(user("other"))
    gate.open()
    await running
    assert (await client.said())[-1] == "b"


async def test_two_that_open_a_conversation_at_once_share_it(client: Client) -> None:
    found = await asyncio.gather(
        *(client.conversations.open(DEFAULT_TENANT, NAME, AGENT, (A,)) for _ in range(8))
    )
    assert len({session.id for session in found}) == 1


async def test_M2_5_while_an_edit_runs_the_conversation_is_busy(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    client = Client(cluster, node)
    await client.send(A)
    running = asyncio.create_task(client.send(user("other\n!tool gate {}\n!say done")))
    await gate.until_reached()
    for body in ((user("third"),), (A, SAID_A, B)):
        with pytest.raises(SessionBusy):
            await client.send(*body)
    gate.open()
    assert (await running).status is AttemptStatus.COMMITTED
    assert (await client.said())[-1] == "done"


async def test_of_two_edits_at_once_one_is_the_conversation(client: Client) -> None:
    await client.send(A)
    sent = [client.send(user(f"other {number}")) for number in range(4)]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    good = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
    assert all(isinstance(outcome, Outcome | StaleHead | SessionBusy) for outcome in outcomes)
    assert good
    # Whatever was answered is in the conversation, or was the conversation and was edited again.
    assert (await client.said())[0].startswith("other")
    assert len(await client.said()) == 2
