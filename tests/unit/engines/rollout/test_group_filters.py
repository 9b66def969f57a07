"""Which groups may be trained on: built-in filters, and one of the user's own that misbehaves."""

from __future__ import annotations

import sys
import textwrap
from contextlib import AsyncExitStack

import pytest

from engines.rollout.filters import Drop, ProcessFilter, build, drop_of, in_process
from engines.rollout.loop import fill
from engines.rollout.metrics import step_metrics
from engines.rollout.records.journals import RolloutJournal
from engines.types import Group, Problem, Status
from infra.errors import InputError
from tasks.rl.spec import RlSettings
from tasks.rl.stage_loop import open_filter
from tests.parts.loop_parts import Notes, Parts, by_seed, informative
from tests.parts.rollout_parts import Policy, domain, producer_of, roller
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit


def group(*outcomes, shaping=0.0, failed=0, name="p"):
    """Its first rollout has the shaping reward in addition; `failed` others have no verdict."""
    samples = [
        sample_of(
            name, "d", "g", f"g#{i}", i, [1, 2], [0, 1], [0.0, -0.5], [-1, 0],
            Status.COMPLETED, outcome + shaping * (i == 0), {"outcome": outcome},
        )
        for i, outcome in enumerate(outcomes)
    ]  # fmt: skip
    for i in range(failed):
        samples.append(
            sample_of(name, "d", "g", f"g#f{i}", 0, [1], [0], [0.0], [-1], Status.FAILED)
        )
    return Group(Problem(name, "d", ()), samples)


@pytest.mark.parametrize(
    ("name", "options", "needs_spread", "given", "answer"),
    [
        ("can-teach", {}, True, group(1, 0), True),
        ("can-teach", {}, True, group(1, 1), "equal_rewards"),
        ("can-teach", {}, False, group(1, 1), True),
        ("every", {}, True, group(1, 1), True),
        ("outcome-between", {}, True, group(1, 0), True),
        ("outcome-between", {}, True, group(1, 1, shaping=0.2), "too_easy"),
        ("outcome-between", {}, True, group(0, 0, shaping=0.2), "too_hard"),
        ("outcome-between", {"above": 0.25, "below": 0.75}, True, group(1, 0, 0, 0), "too_hard"),
        ("outcome-between", {"above": 0.2, "below": 0.75}, True, group(1, 0, 0, 0), True),
        ("outcome-between", {"above": 0.2, "below": 0.75}, True, group(1, 1, 1, 0), "too_easy"),
        ("outcome-between", {}, True, group(1, 0, failed=3), True),
        ("outcome-between", {}, True, group(1, failed=3), "too_easy"),
        ("outcome-between", {}, True, group(0.5, 0.5), "equal_rewards"),
        ("outcome-between", {}, True, group(0.5, 0.6), True),
        ("outcome-between", {}, False, group(0.5, 0.5), True),
    ],
)
def test_what_ours_keep(name, options, needs_spread, given, answer):
    assert build(name, options, needs_spread).keep(given) == answer


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("outcome-between", {"above": 0.8, "below": 0.2}, "0 <= above < below <= 1 must hold"),
        ("outcome-between", {"over": 1}, "no option 'over'"),
        ("dynamic", {}, "unknown group filter 'dynamic'"),
        ("math:fsum", {}, "fsum"),
    ],
)
def test_a_filter_that_cannot_be_built_is_bad_input(name, options, said):
    with pytest.raises(InputError, match=said):
        build(name, options, needs_spread=True)


@pytest.mark.parametrize(
    ("answer", "drop"),
    [
        (True, None),
        (False, Drop("by_filter")),
        ("Too long, by 12!", Drop("too_long_by_12")),
        ("x" * 99, Drop("x" * 40)),
    ],
)
def test_an_answer_becomes_a_verdict(answer, drop):
    assert drop_of(answer) == drop


@pytest.mark.parametrize("answer", ["", "!?", None, 0.5, [True]])
def test_an_answer_that_is_none_drops_the_group_and_is_a_fault(answer):
    drop = drop_of(answer)
    assert drop is not None
    assert drop.reason == "filter_wrong_answer"
    assert repr(answer) in drop.fault


OWN = """
    import time

    class Own:
        def __init__(self, needs_spread=False):
            self.needs_spread = needs_spread

        def keep(self, group):
            match group.problem.id:
                case "raises":
                    raise KeyError("no such field")
                case "hangs":
                    while True:
                        time.sleep(0.01)
                case "nonsense":
                    return 3
                case "long":
                    return "too long"
            return self.needs_spread
"""


async def test_a_filter_of_the_users_own_costs_no_more_than_its_group(tmp_path, monkeypatch):
    (tmp_path / "my_own_filter.py").write_text(textwrap.dedent(OWN))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    ask = ProcessFilter("my_own_filter:Own", {}, needs_spread=True, timeout_s=0.3)
    try:
        drops = {
            name: await ask(group(1, 0, name=name))
            for name in ("raises", "hangs", "nonsense", "long", "fine")
        }
    finally:
        await ask.process.close()
    assert drops["fine"] is None
    assert drops["long"] == Drop("too_long")
    found = {n: (d.reason, d.fault) for n, d in drops.items() if d is not None and d.fault}
    of = "group filter 'my_own_filter:Own'"
    assert found["raises"] == (
        "filter_raised", f"{of} raised KeyError: 'no such field', on raises"
    )  # fmt: skip
    assert found["hangs"][0] == "filter_no_answer"
    assert "hung: no answer within 0.3 s" in found["hangs"][1]
    assert found["nonsense"] == (
        "filter_wrong_answer",
        f"{of} answered 3, which is no bool and no reason, on nonsense",
    )


async def test_a_stage_starts_the_users_filter_and_ends_it(tmp_path, monkeypatch):
    (tmp_path / "my_open_filter.py").write_text(textwrap.dedent(OWN))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def settings(name, **options):
        return RlSettings.model_validate(
            {
                "steps": 1,
                "optimizer": {"lr": 1e-4},
                "group_filter": {"name": name, "options": options, "timeout_s": 5},
            }
        )

    async with AsyncExitStack() as stack:
        ask = await open_filter(stack, settings("my_open_filter:Own"))
        assert isinstance(ask, ProcessFilter)
        assert await ask(group(1, 0)) is None, "grpo compares within groups"
        assert ask.process.stack() != "(no process)\n"
    assert ask.process.stack() == "(no process)\n"
    with pytest.raises(InputError, match="no option 'most'"):
        async with AsyncExitStack() as stack:
            await open_filter(stack, settings("my_open_filter:Own", most=1))


class EvenProblems:
    def keep(self, group):
        return int(group.problem.messages[0].content) % 2 == 0 or "odd"


async def test_dropped_groups_are_replaced_and_counted_by_their_reason():
    policy = Policy(informative())
    parts, _ = producer_of(
        roller(policy), [domain("d", float)], groups_per_step=4, group_size=2, waves=3,
        group_filter=in_process(EvenProblems()),
    )  # fmt: skip
    sampled = await fill(parts)
    assert [g.ticket for g in sampled.kept] == [0, 2, 4, 6]
    assert sampled.filtered == {"odd": 3}


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_a_step_says_why_groups_were_dropped(max_staleness):
    parts = Parts(
        informative(), group_filter=in_process(EvenProblems()), waves=4,
        max_staleness=max_staleness,
    )  # fmt: skip
    results = await parts.run(3)
    assert all(g.ticket % 2 == 0 for r in results for g in r.groups)
    told = [step_metrics(r) for r in results]
    assert all(t["groups_filtered"] == t.get("groups_filtered_odd", 0) for t in told)
    assert sum(t["groups_filtered"] for t in told) >= 3


async def test_a_group_without_anything_to_train_on_is_not_shown_to_a_filter():
    never = domain("d", lambda answer: float("x"))
    policy = Policy(informative())
    parts, buffer = producer_of(
        roller(policy), [never], groups_per_step=2, group_size=2,
        group_filter=in_process(build("every", {}, needs_spread=True)),
    )  # fmt: skip
    sampled = await fill(parts)
    assert (sampled.filtered, len(buffer)) == ({"nothing_trainable": 2}, 0)


async def test_what_an_earlier_attempt_trained_on_is_not_asked_again():
    """Its filter may be slower this time; the step is repeated as the take log has it."""

    class Never:
        def keep(self, group):
            return False

    notes = Notes()
    first = Parts(
        by_seed, notes=notes, journal=RolloutJournal(notes), oversample=1.5,
        group_filter=in_process(EvenProblems()),
    )  # fmt: skip
    (before,) = await first.run(1)
    again = Parts(
        by_seed, notes=notes, journal=RolloutJournal(notes), oversample=1.5,
        group_filter=in_process(Never()),
    )  # fmt: skip
    await again.takes.recover(1)
    await again.producer.recover(0, again.takes.from_step(1))
    (after,) = await again.run(1)
    assert [g.ticket for g in after.groups] == [g.ticket for g in before.groups] == [0, 2, 4]
    assert after.sampled.filtered == {"by_filter": 3}
