"""A worker that slept past its lease halts its CLIs until a later heartbeat is answered."""

from __future__ import annotations

from lastgood.worker.lease_watch import LeaseWatch, Moment

LEASE = 90.0


class Clock:
    def __init__(self) -> None:
        self.now = Moment(1000.0, 5_000.0)

    def run(self, watch: LeaseWatch, seconds: int) -> bool:
        """Ticks every second. Returns whether it had to halt."""
        halted = False
        for _ in range(seconds):
            self.sleep(1)
            halted = watch.tick(self.now) or halted
        return halted

    def sleep(self, wall: float, monotonic: float | None = None) -> Moment:
        moved = wall if monotonic is None else monotonic
        self.now = Moment(self.now.monotonic + moved, self.now.wall + wall)
        return self.now


def test_a_worker_that_is_awake_continues_without_its_server() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    assert not clock.run(watch, 1000)
    assert not watch.must_halt


def test_a_stopped_process_halts_when_it_wakes_up_past_its_lease() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    clock.run(watch, 30)
    watch.confirm(clock.now)
    assert watch.tick(clock.sleep(91))
    assert watch.must_halt


def test_a_short_sleep_within_the_lease_halts_nothing() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    assert not watch.tick(clock.sleep(60))
    watch.confirm(clock.now)
    assert not watch.tick(clock.sleep(60))


def test_a_closed_lid_is_noticed_by_the_wall_clock_alone() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    assert watch.tick(clock.sleep(wall=3600, monotonic=0.5))


def test_a_wall_clock_that_is_set_back_does_not_hide_a_sleep() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    assert watch.tick(clock.sleep(wall=-7200, monotonic=100))


def test_a_heartbeat_from_before_the_sleep_confirms_nothing() -> None:
    clock = Clock()
    watch = LeaseWatch(clock.now, LEASE)
    sent = clock.now
    watch.tick(clock.sleep(100))
    watch.confirm(sent)
    assert watch.must_halt
    watch.confirm(clock.sleep(1))
    assert not clock.run(watch, 10)
    assert watch.must_halt is False
