"""Builds workers, tasks and claims by way of the store's own calls, in one line each."""

from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.commit import plan_commit
from lastgood.model.attempts import Ask, AttemptStatus, Begun, Commit, Committed, Hold, TurnRequest
from lastgood.model.events import AttemptFailed, Event
from lastgood.model.ids import AttemptId, TaskId, TenantId, TurnId
from lastgood.model.messages import user
from lastgood.model.runtimes import NewRuntime, Registered, Registration, RuntimeIdentity
from lastgood.model.sessions import ScopeKind, Session, TaskScope
from lastgood.model.tasks import (
    Claimed,
    ClaimRequest,
    ClaimState,
    NewTask,
    PointerOutcome,
    PointerReport,
    Question,
    QuestionStatus,
    Snapshot,
    Task,
    TaskConflict,
    TaskEnd,
    TaskMessage,
    TaskStatus,
)
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT, new_id

WORKER = "laptop"
OWNER = "ann"
RUNTIME = "rt_a"


def new_runtime(id: str = RUNTIME, worker: str = WORKER, **fields: Any) -> NewRuntime:
    identity = RuntimeIdentity(id, worker, fields.pop("provider", "claude-code"), f"account of {id}", "v1")
    return replace(NewRuntime(identity, f"name of {id}"), **fields)


def registration(*runtimes: NewRuntime, worker: str = WORKER, **fields: Any) -> Registration:
    plain = Registration(
        tenant=TENANT,
        worker=worker,
        name=f"name of {worker}",
        owner=OWNER,
        instance=f"instance of {worker}",
        version="1",
        runtimes=runtimes or (new_runtime(worker=worker),),
    )
    return replace(plain, **fields)


async def register(
    store: Store, *ids: str, worker: str = WORKER, tenant: TenantId = TENANT, **fields: Any
) -> Registered:
    """A worker with these runtimes."""
    runtimes = [new_runtime(id, worker) for id in ids or (RUNTIME,)]
    return await store.register(registration(*runtimes, worker=worker, tenant=tenant, **fields))


def secret() -> bytes:
    """A claim token or a code, hashed."""
    return new_id().encode()


def new_task(to: Session, runtime: str = RUNTIME, **fields: Any) -> tuple[NewTask, Ask]:
    """A task, and what is asked with it; `asked` are fields of the ask."""
    asked = builders.ask(to, user(fields.pop("prompt", "do it")), **fields.pop("asked", {}))
    turn = TurnId(fields.pop("turn", new_id()))
    request = TurnRequest(
        turn=turn,
        tenant=to.tenant,
        session=to.id,
        kind=asked.kind,
        key=asked.key,
        fingerprint=asked.fingerprint,
        caller=asked.caller,
        user=asked.user,
        model=asked.model,
        agent_key=asked.agent_key,
        edit=asked.edit,
        condition=asked.condition,
        options=asked.options,
        on_leave=asked.on_leave,
        durable=False,
        messages=asked.messages,
    )
    scope = to.scope or TaskScope(ScopeKind.CHAT, to.id)
    plain = NewTask(TaskId(new_id()), to.tenant, to.id, turn, to.agent_key, scope, runtime, request)
    return replace(plain, **fields), asked


async def enqueue(
    store: Store, to: Session, *, only_if_idle: bool = False, most: int = 20, **fields: Any
) -> Task | TaskConflict:
    new, asked = new_task(to, **fields)
    return await store.enqueue_task(new, ask=asked, only_if_idle=only_if_idle, most=most)


async def task(store: Store, to: Session, **fields: Any) -> Task:
    made = await enqueue(store, to, **fields)
    assert isinstance(made, Task), made
    return made


@dataclass(frozen=True)
class Claim:
    """A task that a worker has, and the token it has it under."""

    claimed: Claimed
    token: bytes
    worker: str = WORKER

    @property
    def task(self) -> TaskId:
        return self.claimed.task.id

    @property
    def hold(self) -> Hold:
        return self.claimed.hold

    async def state(self, store: Store) -> ClaimState:
        found = await store.find_claim(self.hold.tenant, self.task, self.token, OWNER, self.worker)
        assert found is not None
        return found

    def plan(self, text: str = "done") -> Commit:
        """The commit of the task's turn."""
        claimed = self.claimed
        head = claimed.session.head
        ask = Ask(claimed.task.tenant, claimed.task.session, claimed.request.messages or ())
        begin = builders.begin(ask, turn=claimed.request.turn, attempt=self.hold.attempt)
        begun = Begun(self.hold, claimed.request.turn, claimed.attempt.number, "m", head, claimed.session)
        return plan_commit(begin, begun, (builders.answer(text),), builders.NOW)

    def ends(self, status: TaskStatus = TaskStatus.COMPLETED, **fields: Any) -> TaskEnd:
        fields.setdefault("token", self.token)
        return TaskEnd(self.task, status, **fields)

    async def complete(self, store: Store, text: str = "done", **fields: Any) -> Committed:
        fields.setdefault("report", {"status": "completed"})
        return (await store.commit_if_head(self.hold, self.plan(text), [], self.ends(**fields))).outcome

    async def fail(self, store: Store, status: TaskStatus = TaskStatus.FAILED, **fields: Any) -> bool:
        fields.setdefault("report", {"status": status.value})
        fields.setdefault("error", ("code", "why"))
        error = fields["error"]
        end = self.ends(status, **fields)
        return await store.finish_if_held(self.hold, AttemptStatus.FAILED, error, [], task=end)

    async def cancel(self, store: Store, **fields: Any) -> bool:
        """By somebody else than the worker."""
        end = self.ends(TaskStatus.CANCELLED, token=None, **fields)
        return await store.finish_if_held(self.hold, AttemptStatus.CANCELLED, None, [], task=end)


def claim_request(*runtimes: str, wanted: int = 1, **fields: Any) -> ClaimRequest:
    plain = ClaimRequest(
        tenant=TENANT,
        worker=WORKER,
        epoch=1,
        runtimes=runtimes or (RUNTIME,),
        tokens=tuple(secret() for _ in range(wanted)),
        attempts=tuple(AttemptId(new_id()) for _ in range(wanted)),
        prepare_seconds=60.0,
        ageing_seconds=600.0,
        owner=OWNER,
    )
    return replace(plain, **fields)


def lease_ended(turn: TurnId, attempt: AttemptId) -> list[Event]:
    return [Event(attempt, AttemptFailed(turn, "interrupted", "code", "why", attempt))]


async def claim_some(store: Store, *runtimes: str, wanted: int = 100, **fields: Any) -> list[Claim]:
    request = claim_request(*runtimes, wanted=wanted, **fields)
    claimed = await store.claim_tasks(request, lease_ended)
    tokens = dict(zip(request.attempts, request.tokens, strict=True))
    return [Claim(each, tokens[each.hold.attempt], request.worker) for each in claimed]


async def claim(store: Store, *runtimes: str, **fields: Any) -> Claim:
    (claimed,) = await claim_some(store, *runtimes, wanted=1, **fields)
    return claimed


async def again(store: Store, known: Task) -> Task:
    """The task as it is now."""
    found = await store.get_task(known.tenant, known.id)
    assert found is not None
    return found


def pointer(**fields: Any) -> PointerReport:
    plain = PointerReport("native", "/work", None, PointerOutcome.UNCOUNTED, True)
    return replace(plain, **fields)


def question(claim: Claim, id: str = "q", seconds: float = 3600.0) -> Question:
    task = claim.claimed.task
    return Question(
        id=id,
        tenant=task.tenant,
        task=task.id,
        attempt=claim.hold.attempt,
        session=task.session,
        body={"tool": "shell"},
        status=QuestionStatus.PENDING,
        answer=None,
        answered_by="",
        deadline_at=seconds,
        created_at=0.0,
    )


def snapshot(claim: Claim, body: bytes = b"diff", **fields: Any) -> Snapshot:
    task = claim.claimed.task
    plain = Snapshot(claim.hold.attempt, task.tenant, task.session, task.turn, "diff", {"files": 1}, body)
    return replace(plain, **fields)


async def report_everything(store: Store, claim: Claim, state: ClaimState | None = None) -> list[Any]:
    """All that a worker can report before the end."""
    known = state or await claim.state(store)
    messages = [TaskMessage(1, {"type": "text"})]
    return [
        await store.report_pointer(known, claim.token, pointer()),
        await store.append_messages(known, claim.token, messages, builders.events("said")),
        await store.ask_question(known, claim.token, question(claim), builders.events("asks")),
        await store.put_snapshot(known, claim.token, snapshot(claim)),
    ]
