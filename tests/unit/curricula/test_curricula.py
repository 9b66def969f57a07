"""The built-in curricula: splits, order, demonstrations, and the rewards that judge them."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from typing import ClassVar

import pytest

from curricula.built_in_curricula import build
from curricula.general import General
from curricula.procedural import Draft
from curricula.vocabulary import LEXICON, NAMES, PHRASES
from engines.types import Message, Problem, Status, Transcript
from infra.errors import InputError
from rewards.built_in_rewards import build as build_reward
from rewards.rubric import Rubric, Term

pytestmark = pytest.mark.unit

VERIFIERS = {
    "reasoning": "math",
    "agent": "agent-answer",
    "general": "constraints",
    "needle": "exact",
}
LEVELS = ["easy", "medium", "hard"]
SPLIT_SIZES = {"sft": 2000, "rl": 4000, "distill": 2000, "heldout": 128}


def _content(problem: Problem) -> str:
    """What is asked of the model, whatever the order of the numbers to add or compare."""
    asked = problem.messages[0].content
    if re.fullmatch(r"\d+\+\d+|max [\d ]+", asked):
        asked = " ".join(sorted(re.findall(r"\d+", asked)))
    world = problem.reference["world"] if problem.domain == "agent" else ""
    return f"{problem.metadata['family']} {asked} {world}"


async def _outcome(problem: Problem, turns: tuple[Message, ...]) -> float:
    name = VERIFIERS[problem.domain]
    rubric = Rubric([Term(name, 1.0, True, build_reward(name))])
    judgement = await rubric.judge(Transcript(problem, turns, Status.COMPLETED, num_tokens=9))
    assert not judgement.failed, judgement.reason
    return judgement.breakdown["outcome"]


def _num_tokens(text: str) -> int:
    """As the tiny tokenizer splits: a phrase, a word, a digit, or one other character."""
    phrases = "|".join(re.escape(phrase) for phrase in sorted(PHRASES, key=len, reverse=True))
    return len(re.findall(rf"{phrases}|[a-zA-Z]+|.", text, re.DOTALL))


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("levels", [["easy"], LEVELS], ids=["easy", "all"])
def test_splits_share_no_problem_across_seeds(name, levels):
    curriculum = build(name, {"levels": levels})
    contents = {
        split: {_content(p) for seed in (0, 1) for p in curriculum.problems(split, 128, seed)}
        for split in SPLIT_SIZES
    }
    for one, other in itertools.combinations(contents, 2):
        assert contents[one].isdisjoint(contents[other]), (one, other)


@pytest.mark.parametrize("name", VERIFIERS)
def test_easy_level_fills_every_split(name):
    curriculum = build(name)
    for split, size in SPLIT_SIZES.items():
        problems = curriculum.problems(split, size, seed=0)
        assert len({problem.id for problem in problems}) == size
        assert len({problem.metadata["family"] for problem in problems}) > 1
    assert len({_content(problem) for problem in problems}) == SPLIT_SIZES["heldout"]


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("split", SPLIT_SIZES)
def test_a_position_holds_the_same_problem_however_it_is_reached(name, split):
    all_at_once = build(name).problems(split, 40, seed=3)
    assert build(name).problems(split, 15, seed=3, start=25) == all_at_once[25:]
    assert build(name).problems(split, 40, seed=4) != all_at_once


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("level", ["easy", "medium"])
async def test_clean_demonstrations_score_one_and_saying_nothing_scores_zero(name, level):
    for shown in build(name, {"levels": [level]}).demonstrations(60, seed=0):
        assert await _outcome(shown.problem, shown.turns) == 1.0, shown
        assert await _outcome(shown.problem, (Message("assistant", ""),)) == 0.0
        assert await _outcome(shown.problem, ()) == 0.0


@pytest.mark.parametrize("name", ["reasoning", "general"])
async def test_clean_demonstrations_of_the_hard_level_score_one(name):
    for shown in build(name, {"levels": ["hard"]}).demonstrations(100, seed=0):
        assert await _outcome(shown.problem, shown.turns) == 1.0, shown


async def test_reasoning_without_thinking_is_the_box_alone():
    for shown in build("reasoning", {"thinking": False}).demonstrations(10, seed=0):
        (turn,) = shown.turns
        assert turn.reasoning is None
        assert not shown.problem.thinking
        assert await _outcome(shown.problem, shown.turns) == 1.0


@pytest.mark.parametrize("name", VERIFIERS)
def test_noise_slips_in_its_share_of_demonstrations_and_changes_no_problem(name):
    clean = build(name).demonstrations(600, seed=0)
    noisy = build(name, {"noise": 0.3}).demonstrations(600, seed=0)
    assert [shown.problem for shown in clean] == [shown.problem for shown in noisy]
    changed = sum(a.turns != b.turns for a, b in zip(clean, noisy, strict=True)) / 600
    # a replacement may by chance be the same token, so the share lies a little under 0.3
    assert 0.22 < changed < 0.34


async def test_a_needle_is_in_its_third_of_the_text_and_only_its_code_is_right():
    for level, others in (("easy", 0), ("medium", 0), ("hard", 8)):
        for shown in build("needle", {"levels": [level], "words": 300}).demonstrations(30, seed=0):
            text, _, question = shown.problem.messages[0].content.partition("\n")
            name = re.fullmatch(r"What is the code of (\w+)\? Say the code alone\.", question)[1]
            before, after = text.split(f"the code of {name} is {shown.turns[0].content}.")
            assert len(re.sub(r"the code of \w+ is \w+\.", "", before + after).split()) == 300
            assert text.count("the code of") == others + 1
            third = len(before) / len(before + after) * 3
            wanted = ["begin", "middle", "end"].index(shown.problem.metadata["family"])
            assert wanted - 0.3 < third < wanted + 1.3
            wrong = Message("assistant", "7" + shown.turns[0].content)
            assert await _outcome(shown.problem, shown.turns) == 1.0
            assert await _outcome(shown.problem, [wrong]) == 0.0


def test_a_slip_touches_one_token_and_never_the_box_or_a_tool_name():
    for shown in build("reasoning", {"noise": 1.0}).demonstrations(300, seed=0):
        assert re.fullmatch(r"\\boxed\{.*\}", shown.turns[0].content)
    for shown in build("agent", {"noise": 1.0}).demonstrations(300, seed=0):
        for turn in shown.turns:
            assert all(c.name == "search" and list(c.arguments) == ["q"] for c in turn.tool_calls)
    clean = build("general").demonstrations(300, seed=0)
    noisy = build("general", {"noise": 1.0}).demonstrations(300, seed=0)
    for a, b in zip(clean, noisy, strict=True):
        old, new = (re.findall(r"[a-z]+|.", turns[0].content) for turns in (a.turns, b.turns))
        if len(old) == len(new):
            assert sum(x != y for x, y in zip(old, new, strict=True)) <= 1
        else:  # a dropped separator joins two words into one token
            assert len(old) - len(new) in (1, 2)


def test_a_noisy_agent_demonstration_shows_what_the_index_says_to_the_mistaken_query():
    curriculum = build("agent", {"noise": 1.0})
    mistaken = 0
    for shown in curriculum.demonstrations(200, seed=0):
        world = dict(shown.problem.reference["world"])
        for call, answer in itertools.pairwise(shown.turns):
            if call.tool_calls:
                query = call.tool_calls[0].arguments["q"]
                assert answer.role == "tool"
                if query in world:
                    assert answer.content == world[query]
                else:
                    mistaken += 1
                    assert answer.content == "no" or query in answer.content.split()
    assert mistaken > 20


@pytest.mark.parametrize(
    ("name", "most_prompt", "most_answer"),
    [("reasoning", 12, 24), ("agent", 7, 1), ("general", 18, 16)],
)
def test_easy_problems_stay_short_under_the_tiny_tokenizer(name, most_prompt, most_answer):
    for shown in build(name).demonstrations(500, seed=0):
        last = shown.turns[-1]
        assert _num_tokens(shown.problem.messages[0].content) <= most_prompt
        assert _num_tokens((last.reasoning or "") + last.content) <= most_answer


def test_everything_that_travels_pickles():
    for name in VERIFIERS:
        curriculum = pickle.loads(pickle.dumps(build(name)))
        shown = curriculum.demonstrations(3, seed=0)
        assert pickle.loads(pickle.dumps(shown)) == shown
        json.dumps([item.problem.reference for item in shown])


class _TwentyProblems(General):
    """At one level with one family of twenty problems."""

    levels: ClassVar = {
        "easy": (lambda rng: Draft("n", (n := str(rng.randint(1, 20))), n, {}, ()),),
    }


def test_an_exhausted_problem_space_says_so():
    with pytest.raises(InputError, match="ask for fewer"):
        _TwentyProblems().problems("heldout", 21, seed=0)


def test_names_and_words_are_distinct_single_words():
    assert len(set(LEXICON)) == len(LEXICON)
    assert set(NAMES) < set(LEXICON)
    assert all(word.isalpha() and word.islower() for word in LEXICON)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reasonning", {}, "Did you mean 'reasoning'"),
        ("reasoning", {"level": ["easy"]}, "Did you mean 'levels'"),
        ("reasoning", {"levels": ["esy"]}, "Did you mean 'easy'"),
        ("reasoning", {"levels": []}, "`levels` is empty"),
        ("reasoning", {"levels": ["easy", "easy"]}, "twice"),
        ("reasoning", {"noise": 3}, "`noise`"),
        ("general", {"flawed": 1.0}, "no option 'flawed'"),
        ("functions", {"obliging": 0.5}, "`obliging` does nothing.*medium"),
        ("reasoning", {"thinking": "yes"}, "'thinking' takes bool, got 'yes'"),
        ("needle", {"words": 0}, "`words` must be a whole number"),
        ("agent", {"max_calls": 0}, "`max_calls`"),
        ("agent", {"sandbox": "none"}, "`sandbox`"),
        ("agent", {"thinking": True}, "no option 'thinking'"),
        ("no_such_module:Thing", {}, "no module 'no_such_module'"),
        ("curricula.general:Generl", {}, "Did you mean 'General'"),
        ("curricula.vocabulary:LEXICON", {}, "cannot be called"),
        ("builtins:dict", {}, r"lacks problems\(\)"),
    ],
)
def test_a_wrong_name_or_option_is_refused_with_what_is_allowed(name, options, message):
    with pytest.raises(InputError, match=message):
        build(name, options)


def test_a_curriculum_is_found_by_dotted_path():
    curriculum = build("curricula.general:General", {"levels": ["medium"]})
    assert len(curriculum.problems("rl", 3, seed=0)) == 3
