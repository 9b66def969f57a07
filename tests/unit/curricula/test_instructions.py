"""What the `instructions` curriculum asks for can be done, and is checked."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from curricula.built_in_curricula import build
from curricula.instructions.written_answers import counted
from engines.types import Demonstration
from infra.errors import InputError
from rewards.constraints.constraints import ALL_KINDS, TAXONOMY, obeys

pytestmark = pytest.mark.unit

SIZES = {"easy": (1, 2), "medium": (3, 4), "hard": (5, 7)}


@cache
def shown(level: str) -> list[Demonstration]:
    return [*build("instructions", {"levels": [level]}).demonstrations(700, seed=1)]


@pytest.mark.parametrize("level", SIZES)
def test_its_own_answers_obey_and_those_of_other_problems_hardly_ever_do(level: str) -> None:
    drawn = shown(level)
    fewest, most = SIZES[level]
    sizes, passed = Counter[int](), 0
    for one, other in zip(drawn, [*drawn[1:], drawn[0]], strict=True):
        constraints = one.problem.reference["constraints"]
        sizes[len(constraints)] += 1
        broken = [c for c in constraints if not obeys(one.turns[-1].content, c)]
        assert not broken, (one.problem.messages[0].content, one.turns[-1].content)
        assert len({c["kind"] for c in constraints}) == len(constraints)
        passed += all(obeys(other.turns[-1].content, c) for c in constraints)
    # An answer's own form may take more than the level asks for, or offer less.
    assert sum(count for size, count in sizes.items() if fewest <= size <= most) > 0.85 * len(drawn)
    assert passed / len(drawn) < {"easy": 0.2, "medium": 0.05, "hard": 0.02}[level]


def test_a_hundred_and_fifty_kinds_of_all_groups_are_asked_for() -> None:
    asked = {
        constraint["kind"]
        for level in SIZES
        for one in shown(level)
        for constraint in one.problem.reference["constraints"]
    }
    assert asked <= set(ALL_KINDS)
    assert len(asked) >= 150
    for group, kinds in TAXONOMY.items():
        assert len(asked & set(kinds)) >= 0.8 * len(kinds), group


def test_every_split_has_its_own_problems_and_a_seed_repeats_them() -> None:
    curriculum = build("instructions", {"levels": list(SIZES)})
    splits = ("sft", "rl", "distill", "heldout")
    asked = {s: [p.messages[0].content for p in curriculum.problems(s, 60, 0)] for s in splits}
    for split in splits:
        assert asked[split] == [p.messages[0].content for p in curriculum.problems(split, 60, 0)]
        others = {text for other in splits if other != split for text in asked[other]}
        assert others.isdisjoint(asked[split])
    assert len(set(asked["heldout"])) == 60


def test_one_thing_is_not_many() -> None:
    assert counted(1, "words all in capitals") == "1 word all in capitals"
    assert counted(2, "words all in capitals") == "2 words all in capitals"


def test_a_flawed_demonstrator_is_not_offered() -> None:
    with pytest.raises(InputError, match="noise"):
        build("instructions", {"noise": 0.3})
