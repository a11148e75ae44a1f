"""Timers run once, in order, not before they are due, and cancelled ones not at all and not for ever in memory."""

from lineage_stash.wire.timers import MIN_CANCELLED, Timers


def test_due_timers_run_in_order_and_others_wait() -> None:
    timers = Timers()
    ran: list[str] = []
    for due_s, name in ((3.0, "third"), (1.0, "first"), (2.0, "second"), (1.0, "first again")):
        timers.add(due_s, lambda name=name: ran.append(name))
    assert timers.run_due(2.5)
    assert ran == ["first", "first again", "second"]
    assert timers.next_due_s() == 3.0
    assert not timers.run_due(2.9)


def test_cancelled_timer_does_not_run_and_is_not_waited_for() -> None:
    timers = Timers()
    ran: list[str] = []
    timer = timers.add(1.0, lambda: ran.append("cancelled"))
    timers.add(2.0, lambda: ran.append("kept"))
    timer.cancel()
    timer.cancel()
    assert timers.next_due_s() == 2.0
    timers.run_due(5.0)
    assert ran == ["kept"]


def test_timer_that_a_timer_adds_waits_for_the_next_turn() -> None:
    timers = Timers()
    ran: list[str] = []

    def again() -> None:
        ran.append("again")
        timers.add(0.0, again)

    timers.add(0.0, again)
    timers.run_due(1.0)
    assert ran == ["again"]


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    timers.add(9.0, lambda: None)
    for _ in range(1000):
        timers.add(5.0, lambda: None).cancel()
    assert len(timers) <= 2 * MIN_CANCELLED
    assert timers.next_due_s() == 9.0
