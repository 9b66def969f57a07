"""Which problem a ticket stands for: shares of domains, and sources that learn from results."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from engines.rollout.records.journals import RolloutJournal
from engines.rollout.sources import (
    ByDifficulty,
    Pick,
    TicketResult,
    Weighted,
    build_source,
    result_of,
    source_faults,
)
from engines.rollout.tickets import ChosenTickets, ToldResults, build
from engines.types import Group, Message, Problem
from infra.errors import CorruptArtifact, InputError
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tests.parts.loop_parts import Notes, Parts, by_seed
from tests.parts.rollout_parts import domain

pytestmark = pytest.mark.unit

NAMES = ("a", "b")


def domains():
    return [domain(name, float) for name in NAMES]


def tickets(source, *, start=0, limit=1000, notes=None):
    return ChosenTickets(
        domains(), split="rl", seed=3, start=start, source=source, limit=limit,
        notes=notes or Notes(),
    )  # fmt: skip


def ids(drawn):
    return [ticket.group_id for ticket in drawn]


def weighted(**weights):
    return Weighted(weights or {"a": 3, "b": 1}, NAMES, 3)


def test_shares_are_as_the_weights_and_no_problem_comes_twice():
    drawn = tickets(weighted(), start=7).draw(2000)
    count = Counter(ticket.domain.name for ticket in drawn)
    assert 1450 < count["a"] < 1550, "three of four, within 2.6 standard deviations"
    of_b = [ticket.problem.id for ticket in drawn if ticket.domain.name == "b"]
    assert of_b == [f"b/rl/{7 + i}" for i in range(len(of_b))]
    assert [ticket.number for ticket in drawn] == list(range(2000))


def test_a_domain_of_weight_zero_is_never_drawn():
    assert {t.domain.name for t in tickets(weighted(a=0, b=2)).draw(50)} == {"b"}


def test_how_many_are_drawn_at_once_changes_nothing():
    at_once, one_by_one = ids(tickets(weighted()).draw(40)), tickets(weighted())
    assert at_once == [name for _ in range(40) for name in ids(one_by_one.draw(1))]
    assert ids([one_by_one.again(11)]) == at_once[11:12]


def test_a_checkpoint_has_what_is_open_and_the_place_of_each_domain():
    source = tickets(weighted())
    expected = source.draw(30)
    state = json.loads(json.dumps(source.state(first_open=25)))
    assert len(state["picked"]) == 5
    other = tickets(weighted())
    other.restore(state)
    assert ids([other.again(n) for n in range(25, 30)]) == ids(expected[25:])
    assert ids(other.draw(20)) == ids(source.draw(20))


class Repeats:
    """Three problems of `a` over and over, by position."""

    def pick(self, number):
        return Pick("a", number % 3)


def test_a_source_may_name_positions_and_groups_stay_apart():
    drawn = tickets(Repeats(), start=10).draw(5)
    wanted = ["a/rl/10", "a/rl/11", "a/rl/12", "a/rl/10", "a/rl/11"]
    assert [t.problem.id for t in drawn] == wanted
    assert len({t.group_id for t in drawn}) == 5


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        (lambda number: "a", "pick.0. gave 'a'; give a Pick of one of the stage's domains: a, b"),
        (lambda number: Pick("c"), "gave Pick.*give a Pick of one of"),
        (lambda number: Pick("a", 1000), "position 1000 of a; allowed: 0 to 999"),
        (lambda number: Pick("a", -1), "position -1"),
        (lambda number: [][0], "pick.0. raised IndexError"),
    ],
)
def test_a_source_that_is_wrong_is_named(pick, said):
    class Wrong:
        pass

    Wrong.pick = lambda self, number: pick(number)
    with pytest.raises(InputError, match=f"data_source: .*{said}"):
        tickets(Wrong()).draw(1)


class Struggling:
    """The domain that was solved less often so far; `a` first."""

    def __init__(self):
        self.outcomes = {name: [0.0] for name in NAMES}

    def pick(self, number):
        means = {name: sum(found) / len(found) for name, found in self.outcomes.items()}
        return Pick(min(NAMES, key=lambda name: (means[name], name)))

    def told(self, result):
        if result.outcome is not None:
            self.outcomes[result.domain].append(result.outcome)


def only_b_is_hard():
    """Both domains are judged by the answer, a digit from its seed; `b` loses most of it."""
    return [domain("a", lambda said: int(said) % 2), domain("b", lambda said: int(said) % 7 == 0)]


def attempt(notes, version=0, source=Struggling):
    made = Parts(
        by_seed, domains=only_b_is_hard(), oversample=1.5, waves=3,
        journal=RolloutJournal(notes), notes=notes, version=version,
    )  # fmt: skip
    made.producer.source = ChosenTickets(
        only_b_is_hard(), split="rl", seed=0, start=0, source=source(), limit=10**6,
        notes=notes,
    )  # fmt: skip
    return made


def sampled_in(results):
    return [[(g.ticket, g.problem.id) for g in r.sampled.groups] for r in results]


@pytest.mark.parametrize(
    ("source", "order"),
    [(Struggling, "ba"), (lambda: ByDifficulty(NAMES, 0, half_life=9), "ab")],
)
async def test_a_source_learns_after_each_wave_and_a_resumed_stage_repeats_it(
    tmp_path, source, order
):
    """Killed in step 6, with a checkpoint of step 3."""
    notes = Notes()
    first = attempt(notes, source=source)
    told = []

    async def after_step(result):
        told.append(result)
        if result.step == 3:
            first.buffer.save(tmp_path)
            first.sampler.save(tmp_path)()
        return result.step == 6

    await first.loop.run(first=1, last=9, after_step=after_step)
    drawn = Counter(g.problem.domain for r in told for g in r.sampled.groups)
    assert [name for name, _ in drawn.most_common()] == [*order]

    second = attempt(notes, version=3, source=source)
    second.buffer.restore(tmp_path)
    second.sampler.restore(tmp_path)
    await second.takes.recover(4)
    await second.producer.recover(second.sampler.first_open, second.takes.from_step(4))
    again = await second.run(9, first=4)
    assert second.trainer.tokens[:3] == first.trainer.tokens[3:]
    assert sampled_in(again[:3]) == sampled_in(told[3:])

    undisturbed = await attempt(Notes(), source=source).run(9)
    assert [g.problem.id for r in undisturbed for g in r.groups] == [
        g.problem.id for r in told[:3] + again for g in r.groups
    ]


def result(domain, position, outcome, problem=""):
    return TicketResult(0, domain, position, outcome, outcome, 0.0, problem)


def test_weights_by_difficulty_by_hand():
    """A quarter of a group, half of it right, is what a rate begins with: after a group of outcome
    1 it is (1 + 0.125) / 1.25 = 0.9."""
    source = ByDifficulty(NAMES, 0, floor=0.05, half_life=2.0)
    assert source.weights == {}
    source.told(result("a", 3, None))
    assert source.weights == {}, "without a verdict nothing is known"
    source.told(result("a", 3, 1.0, "ant"))
    assert source.weights == pytest.approx({("a", 3): 4 * 0.9 * 0.1 + 0.05})
    source.told(result("b", 3, 0.5))
    source.told(result("b", 4, 0.0))
    # Two results later the first counts half, and that of b one over the square root of two.
    rate, seldom = (0.5 + 0.125) / 0.75, 0.125 / 1.25
    assert source.weights == pytest.approx(
        {
            ("a", 3): 4 * rate * (1 - rate) + 0.05,
            ("b", 3): 1.05,
            ("b", 4): 4 * seldom * (1 - seldom) + 0.05,
        }
    )
    source.told(result("a", 13, 0.0, "ant@2"))  # the same problem as at position 3
    kept = 0.5**1.5
    rate = (kept + 0.125) / (kept + 1.25)
    assert source.weights["a", 3] == pytest.approx(4 * rate * (1 - rate) + 0.05)


def test_what_is_known_of_a_problem_stays_when_it_comes_again_in_another_order():
    """Three problems of a and five of b, which begin again where each one ends, shuffled anew."""
    source = ByDifficulty(NAMES, 0)
    told = Counter()
    for name, count in (("a", 3), ("b", 5)):
        for position in range(2 * count + 1):
            epoch, place = divmod(position, count)
            at = (place + epoch) % count
            told[name, at] += 1
            again = f"@{epoch + 1}" if epoch else ""
            source.told(result(name, position, float(at == 1), f"p{at}{again}"))
    assert {*source.weights} == {*told}
    once = ByDifficulty(NAMES, 0)
    for (name, at), times in told.items():
        for _ in range(times):
            once.told(result(name, at, float(at == 1), f"p{at}"))
    assert source.weights == pytest.approx(once.weights, rel=0.02)


def test_groups_of_one_problem_in_two_epochs_are_told_as_of_one():
    problem = Problem("a/rl/x@2", "a", (Message("user", "x"),))
    assert result_of(Group(problem, [], 7), "a", 11) == TicketResult(
        7, "a", 11, None, None, None, "a/rl/x@2"
    )


def test_problems_that_are_solved_sometimes_come_again_and_others_seldom():
    """Of 30 problems a third is always solved, a third never, a third half of the time."""
    source = ByDifficulty(("a",), 0, fresh=0.25, floor=0.0, half_life=1e9)
    for position in range(30):
        for _ in range(4):
            source.told(result("a", position, position % 3 / 2))
    drawn = [source.pick(number) for number in range(4000)]
    fresh = sum(pick.position is None for pick in drawn)
    assert abs(fresh - 1000) < 3 * (4000 * 0.25 * 0.75) ** 0.5
    again = Counter(pick.position % 3 for pick in drawn if pick.position is not None)
    rate = 0.125 / 4.25
    of_ends = 4 * rate * (1 - rate)
    share = 1 / (1 + 2 * of_ends)
    expected = again.total() * share
    assert abs(again[1] - expected) < 3 * (expected * (1 - share)) ** 0.5
    assert len({pick.position for pick in drawn}) == 31, "and none is given up"


def test_the_source_by_difficulty_does_what_every_source_must():
    assert source_faults(lambda: ByDifficulty(NAMES, 3), NAMES) == []
    made = built("by-difficulty", {"fresh": 1.0}).draw(4)
    assert [t.problem.id for t in made] == ["a/rl/0", "b/rl/0", "a/rl/1", "b/rl/1"]


def built(name, options=None, is_beside_training=False):
    return build(
        name, options or {}, domains(), split="rl", seed=0, start=0, limit=100,
        is_beside_training=is_beside_training, notes=Notes(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "is_beside_training", "said"),
    [
        ("weights", {}, False, "unknown data source 'weights'.*Did you mean 'weighted'"),
        (
            "weighted",
            {"weights": {"a": 1}},
            False,
            "given to a; the stage's domains are",
        ),
        ("weighted", {"weights": {"a": -1, "b": 1}}, False, "none may be negative"),
        ("weighted", {"weights": {"a": 1e30, "b": 1}}, False, "1e\\+30 and 1 differ by more than"),
        (
            "weighted",
            {"weights": {"a": 1, "b": 1}, "seed": 2},
            False,
            "options.seed: the source",
        ),
        ("in-turns", {"first": "a"}, False, "has no options; remove first"),
        ("by-difficulty", {"fresh": 0}, False, "`fresh` is above 0 and at most 1"),
        ("by-difficulty", {"fresh": 1.5}, False, "`fresh` is above 0 and at most 1"),
        ("by-difficulty", {"floor": float("nan")}, False, "`floor` is from 0 to 1"),
        ("by-difficulty", {"half_life": 0}, False, "`half_life` is above 0"),
        ("by-difficulty", {"problems": 3}, False, "problems"),
        ("by-difficulty", {"share": 1}, False, "share"),
        ("by-difficulty", {}, True, "learns from results .* set `max_staleness: 0`"),
        (f"{__name__}:Struggling", {}, True, "learns from results .* set `max_staleness: 0`"),
    ],
)
def test_a_source_that_cannot_be_built_is_bad_input(name, options, is_beside_training, said):
    with pytest.raises(InputError, match=said):
        built(name, options, is_beside_training)


def test_what_can_be_built():
    assert [t.domain.name for t in built("in-turns").draw(3)] == ["a", "b", "a"]
    assert (
        len(built("weighted", {"weights": {"a": 1, "b": 1}}, is_beside_training=True).draw(3)) == 3
    )
    assert isinstance(build_source(f"{__name__}:Struggling", {}, NAMES, 0), Struggling)


def groups_of(numbers):
    asked = Problem("p", "a", ())
    return [SimpleNamespace(ticket=number, samples=[], problem=asked) for number in numbers]


class Told(Repeats):
    def __init__(self):
        self.numbers = []

    def told(self, result):
        self.numbers.append(result.number)


def test_a_checkpoint_says_how_much_a_source_was_told_and_each_result_is_written_once():
    notes = Notes()
    source = tickets(Told(), notes=notes)
    sizes = []
    for _ in range(20):
        source.tell(groups_of(t.number for t in source.draw(50)))
        sizes.append(len(json.dumps(source.state(source.next))))
        source.take_unsaved()()
    assert max(sizes) - min(sizes) <= 4, "digits of the counts"
    written = [len(data) for _, data in notes.kept["told"]]
    assert len(written) == 20
    assert max(written) < 1.5 * min(written)


def test_an_attempt_that_went_on_from_an_earlier_checkpoint_is_told_what_it_made_of_it():
    """The second attempt continues after 4 results, with another size of waves, and the first one's
    checkpoint after 8 is damaged; the third continues after 10."""
    notes = Notes()
    first = tickets(Told(), notes=notes)
    states = []
    for _ in range(2):
        first.tell(groups_of(t.number for t in first.draw(4)))
        states.append(first.state(first.next))
        first.take_unsaved()()
    second = tickets(Told(), notes=notes)
    second.restore(states[0])
    assert second._source.numbers == [0, 1, 2, 3]
    for wave in (3, 3):
        second.tell(groups_of(t.number for t in second.draw(wave)))
        state = second.state(second.next)
        second.take_unsaved()()
    third = tickets(Told(), notes=notes)
    third.restore(state)
    assert third._source.numbers == list(range(10))


def test_results_of_an_attempt_that_was_left_are_not_told(tmp_path):
    """The first attempt saves after 10, 20 and 30 results, which score 0 and then 0.1. The second
    goes on from 10 and saves after 25, of which the last 15 score 0.2."""

    def store(attempt):
        root = Store(f"file://{tmp_path}")
        return StageCheckpoints(root, "rl", "0" * 64, attempt, tmp_path / "scratch")

    def saves(told, numbers, score):
        told.add([TicketResult(n, "a", n, score, score, 0.0) for n in numbers])
        told.take_unsaved()()

    first = ToldResults(store(1))
    for at, score in ((0, 0.0), (10, 0.1), (20, 0.1)):
        saves(first, range(at, at + 10), score)
    second = ToldResults(store(2))
    second.read(10)
    saves(second, range(10, 25), 0.2)
    third = ToldResults(store(3))
    assert [result.outcome for result in third.read(25)] == [0.0] * 10 + [0.2] * 15
    with pytest.raises(CorruptArtifact, match="25 of 30 results"):
        ToldResults(store(3)).read(30)


def test_results_that_are_missing_are_named():
    source = tickets(Told())
    state = source.state(0) | {"told": 3}
    with pytest.raises(CorruptArtifact, match="0 of 3 results that the data source was told"):
        source.restore(state)
