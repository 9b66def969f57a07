"""What every data source must do, tried on the first tickets.

tributary test-hook my_source.py:MySource --domains reasoning,agent
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engines.fault import Fault, guarded
from engines.rollout.sources.data_source import DataSource, LearningSource, Pick, TicketResult

_TICKETS = 32
_TOLD = (3, 8, 21, 32)
"""results after which a learning source is asked"""

Make = Callable[[], DataSource]


def source_faults(make: Make, domains: Sequence[str]) -> list[Fault]:
    """Checks of a class with `pick(number)` and, where it learns, `told(result)`. `make` gives a
    new instance at each call."""

    def checks(make: Make) -> Iterator[Fault]:
        found = list(_pick_checks(make, domains))
        yield from found or _learning_checks(make, domains)

    return list(guarded(make, checks))


def _pick_checks(make: Make, domains: Sequence[str]) -> Iterator[Fault]:
    source = make()
    picks: list[object] = [source.pick(number) for number in range(_TICKETS)]
    for number, pick in enumerate(picks):
        if not isinstance(pick, Pick) or pick.domain not in domains:
            yield Fault(
                "picks a problem of one of the stage's domains",
                f"pick({number}) gave {pick!r:.80}; domains: {', '.join(domains)}",
            )
            return
        if pick.position is not None and pick.position < 0:
            yield Fault("picks a position from 0 on", f"pick({number}) gave {pick.position}")
            return
    again = [source.pick(number) for number in reversed(range(_TICKETS))]
    if again[::-1] != picks:
        yield Fault("picks by the ticket's number", "asked again in another order, it picks others")
    elif [make().pick(number) for number in range(_TICKETS)] != picks:
        yield Fault("picks the same in a resumed stage", "a new instance picks others")


def _learning_checks(make: Make, domains: Sequence[str]) -> Iterator[Fault]:
    for told in _TOLD:
        often, once = make(), make()
        if not isinstance(often, LearningSource) or not isinstance(once, LearningSource):
            return
        for number in range(told):
            often.pick(number)
            often.told(_result(number, domains))
            once.told(_result(number, domains))
        ahead = range(told, told + _TICKETS)
        if [often.pick(number) for number in ahead] != [once.pick(number) for number in ahead]:
            yield Fault(
                "learns from told() alone",
                f"after {told} results, one that was asked for each ticket picks others than one"
                " that was only told",
            )
            return


def _result(number: int, domains: Sequence[str]) -> TicketResult:
    """Every fifth ticket failed."""
    domain, position = domains[number % len(domains)], number // len(domains)
    if number % 5 == 4:
        return TicketResult(number, domain, position, None, None, None)
    outcome = (number % 3) / 2
    return TicketResult(number, domain, position, outcome + 0.1, outcome, float(outcome == 0.5))
