"""Rate limits of this process, per token and per end user.

Only turns that begin are counted. A rejected request, or one that attaches to its running turn,
begins none; so a client that retries with its idempotency key is not limited for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from lastgood.core.token_bucket import (
    Allowance,
    BucketState,
    Wait,
    begin,
    begin_paid,
    end,
    is_forgettable,
    undo,
)
from lastgood.errors import TooManyRequests
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.ids import TenantId
from lastgood.model.queue import Queued
from lastgood.surfaces.http.principal import Principal

_T = TypeVar("_T")

Begins = Callable[[Allowance, BucketState | None, float], BucketState | Wait]

#: Names are forgotten when nothing is known of them any more; looked for whenever there are twice as many.
_FEW = 1000


def _begin_later(allowance: Allowance, used: BucketState | None, now: float) -> BucketState | Wait:
    return begin(replace(allowance, at_once=0), used, now)


@dataclass(slots=True)
class _CountedTurn:
    what: str
    allowance: Allowance
    used: dict[str, BucketState] = field(default_factory=dict)
    _next_tidy: int = _FEW

    def ask(self, name: str, now: float, how: Begins) -> BucketState:
        """Returns the state with one more turn; TooManyRequests if the limit is reached. Nothing is taken
        yet."""
        found = how(self.allowance, self.used.get(name), now)
        if isinstance(found, Wait):
            error = TooManyRequests(f"Rate limit of this {self.what} exceeded: {found.reason}; retry later")
            error.retry_after = found.seconds
            raise error
        return found

    def take(self, name: str, used: BucketState, now: float) -> None:
        self.used[name] = used
        if len(self.used) >= self._next_tidy:
            self._tidy(now)

    def change(self, name: str, how: Callable[[BucketState], BucketState]) -> None:
        # It is there: what is running is never forgotten.
        self.used[name] = how(self.used[name])

    def _tidy(self, now: float) -> None:
        self.used = {
            name: used for name, used in self.used.items() if not is_forgettable(self.allowance, used, now)
        }
        self._next_tidy = max(_FEW, 2 * len(self.used))


class RateLimiter:
    """`take` before a turn begins; what it returns is given back when the turn has ended."""

    def __init__(self, per_token: Allowance, per_user: Allowance, now: Callable[[], float]) -> None:
        self._token = _CountedTurn("token", per_token)
        self._user = _CountedTurn("user", per_user)
        self._now = now

    def take(self, caller: Principal, user: str, *, later: bool = False) -> Taken:
        """`later`: it does not begin now, so it does not matter how many run now."""
        return self._take(caller.name, caller.tenant, user, _begin_later if later else begin)

    @contextmanager
    def running(self, item: Queued) -> Iterator[None]:
        """Reserves for a turn that was queued earlier. TooManyRequests: it may not begin yet."""
        taken = self._take(item.caller, item.tenant, item.user, begin_paid)
        try:
            yield
        finally:
            taken.give_back()

    def _take(self, caller: str, tenant: TenantId, user: str, how: Begins) -> Taken:
        now = self._now()
        named = [(self._token, caller)]
        if user:
            named.append((self._user, f"{tenant}\n{user}"))
        # All limits are checked before one is taken: a rejected user must not use up the limit of the token,
        # which others share.
        limited = [one for one in named if one[0].allowance != Allowance()]
        asked = [(counted, name, counted.ask(name, now, how)) for counted, name in limited]
        for counted, name, used in asked:
            counted.take(name, used, now)
        return Taken(limited)


@dataclass(slots=True)
class Taken:
    """Undone when the block ends, unless a turn has begun by then."""

    _counted: Sequence[tuple[_CountedTurn, str]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release(undo)

    def __del__(self) -> None:
        # A generator that is closed before it has begun runs none of its code, and no `with` in it.
        self._release(undo)

    def until_ended(self, submitted: TurnHandle) -> None:
        kept, self._counted = Taken(self._counted), ()
        if not submitted.call_when_ended(kept.give_back):
            self._counted, kept._counted = kept._counted, ()

    async def during(self, work: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """The same, for what is not stored: until it has come to its end, or was closed."""
        try:
            async with aclosing(work):
                async for item in work:
                    yield item
        finally:
            self.give_back()

    def give_back(self) -> None:
        """What has begun has ended, or will be counted by somebody else."""
        self._release(end)

    def _release(self, how: Callable[[BucketState], BucketState]) -> None:
        counted, self._counted = self._counted, ()
        for one, name in counted:
            one.change(name, how)
