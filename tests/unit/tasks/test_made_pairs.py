"""Answers of a `distill` stage become preferences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from curricula.rows.pairs import Judged
from engines.algorithms.reward_losses import Compares
from engines.batching import TokenSequence
from engines.chat import Chat
from engines.rollout.records.dataset import DATA_FILE, DistilledRow, write_dataset
from engines.types import Message, Problem
from infra.errors import InputError
from tasks.message_files.render_rows import WithoutThoughts
from tasks.preference.made_pairs import made_pairs
from tasks.preference.preference_data import Preferences, other_answers, take_answers
from tasks.preference.row_faults import fault_beside
from tasks.sft.sft_data import SequenceFile
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit

ONE, TWO, THREE = (Problem(f"p/{n}", "d", (Message("user", f"{n}?"),)) for n in range(3))


def answer(problem: Problem, outcome: float, token: int) -> DistilledRow:
    turns = (Message("assistant", f"{token}"),)
    rewards = {"outcome": outcome}
    return DistilledRow([7, token], [0, 1], problem, turns, "general", "9f", 0, 0, rewards)


ROWS = [
    answer(ONE, 0.5, 10), answer(TWO, 0.0, 20), answer(ONE, 0.25, 11), answer(THREE, 1.0, 30),
    answer(ONE, 1.0, 12), answer(TWO, 0.75, 21), answer(THREE, 1.0, 31), answer(ONE, 0.25, 13),
    answer(replace(ONE, domain="e"), 0.0, 40), answer(replace(ONE, domain="e"), 1.0, 41),
]  # fmt: skip


def test_the_best_and_the_worst_answer_of_each_problem_are_compared(tmp_path: Path) -> None:
    write_dataset(tmp_path / DATA_FILE, ROWS)
    found = [(better.tokens[1], worse.tokens[1]) for better, worse in made_pairs(tmp_path)]
    assert found == [(12, 11), (21, 20), (41, 40)], "problems of two domains may have one id"


@pytest.mark.parametrize(
    ("compares", "worth", "sizes"),
    [
        ("pairs", [1.0, 0.25, 0.75, 0.0, 1.0, 0.0], [2] * 3),
        ("lists", [1.0, 0.25, 0.75, 0.0, 1.0, 0.0], [2] * 3),
        ("scores", [1.0, 0.25, 0.75, 0.0, 1.0, 0.0], [1] * 6),
        ("verdicts", [1.0, 0.25, 0.75, 0.0, 1.0, 0.0], [1] * 6),
    ],
)
def test_they_are_learned_as_they_were_sampled(
    compares: Compares, worth: list[float], sizes: list[int], tmp_path: Path
) -> None:
    write_dataset(tmp_path / DATA_FILE, ROWS)
    found = Preferences(SequenceFile(tmp_path / "scratch"), 512, scores_are_margins=True)
    take_answers(found, tmp_path, compares)
    assert [found.answers[at].tokens for at in range(6)] == [
        [7, 12], [7, 11], [7, 21], [7, 20], [7, 41], [7, 40],
    ]  # fmt: skip
    assert [found.answers[at].loss_mask for at in range(6)] == [[0, 1]] * 6
    assert (list(found.worth), list(found.sizes)) == (worth, sizes)
    assert list(found.verdicts) == ([1, 0] * 3 if compares == "verdicts" else [])
    assert list(found.margins) == ([0.75, 0.75, 1.0] if compares == "pairs" else [])


def test_only_a_column_or_a_setting_asks_for_margins(tmp_path: Path) -> None:
    scores = Judged((), ((1, 0, 8.0),), worth=(1.0, 9.0), has_scores=True)
    column = Judged((), ((0, 1, 0.5),), worth=(1.0, 0.0), has_margin=True)
    made = [TokenSequence([7, token], [0, 1]) for token in (8, 9)]
    for asks, margins in ((False, [0.0, 0.5]), (True, [8.0, 0.5])):
        found = Preferences(SequenceFile(tmp_path / f"{asks}"), 512, scores_are_margins=asks)
        found.add(scores, made, "pairs")
        found.add(column, made, "pairs")
        assert list(found.margins) == margins
        assert list(found.worth) == [9.0, 1.0, 1.0, 0.0]
        assert list(found.sides) == [1, 0, 2, 3]


def test_the_baseline_of_kto_takes_answers_to_other_prompts(tmp_path: Path) -> None:
    found = Preferences(SequenceFile(tmp_path), 512)
    for prompt in (5, 6, 5, 7):
        made = [TokenSequence([prompt, token], [0, 1]) for token in (8, 9)]
        found.add(Judged((), ((0, 1, 0.0),), worth=(1.0, 0.0)), made, "verdicts")
    assert list(found.prompts) == [0, 0, 1, 1, 0, 0, 2, 2]
    others = other_answers(found.prompts, seed=0)
    assert all(found.prompts[other] != found.prompts[at] for at, other in enumerate(others))
    assert other_answers([0, 0], seed=0) == [0, 1], "there is no other prompt"


def test_a_reward_model_learns_them_without_thoughts(tmp_path: Path) -> None:
    chat = Chat.load(chat_folder(tmp_path / "qwen", QWEN3, QWEN_TOKENS, "<|im_end|>"))
    asked = replace(ONE, thinking=True)
    said = {1.0: Message("assistant", "yes", "hm"), 0.0: Message("assistant", "no", "so")}
    rows = [replace(answer(asked, outcome, 10), turns=(turn,)) for outcome, turn in said.items()]
    write_dataset(tmp_path / DATA_FILE, rows)
    found = Preferences(SequenceFile(tmp_path / "scratch"), 512)
    take_answers(found, tmp_path, "pairs", WithoutThoughts(chat, 512))
    for at, turn in enumerate(said.values()):
        tokens, mask = chat.training_ids(ONE, [replace(turn, reasoning=None)])
        assert (found.answers[at].tokens, found.answers[at].loss_mask) == (tokens, mask)


def test_answers_that_say_the_same_teach_no_preference(tmp_path: Path) -> None:
    equal = [answer(TWO, 0.0, 20), answer(TWO, 1.0, 20)]
    write_dataset(tmp_path / DATA_FILE, [*ROWS[:1], *ROWS[2:3], *equal])
    found = Preferences(SequenceFile(tmp_path / "scratch"), 512)
    take_answers(found, tmp_path, "pairs")
    (tally,) = found.tallies
    assert (len(found.sizes), tally.read, tally.num_bad) == (1, 2, 1)
    assert tally.named[0].startswith("problem p/1: chosen and rejected are equal")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([([1, 2, 8], 2), ([1, 2, 9], 2)], ""),
        ([([1, 2, 8], 2), ([1, 3, 9], 2)], "a and b follow different prompts"),
        ([([1, 2, 8], 2), ([1, 2, 8, 9], 1)], "a and b follow different prompts"),
        ([([1, 8], 1), ([1, 9], 1), ([1, 8], 1)], "a and c are equal"),
    ],
)
def test_answers_that_cannot_be_compared_as_rendered(
    answers: list[tuple[list[int], int]], said: str
) -> None:
    sequences = [
        TokenSequence(tokens, [0] * asked + [1] * (len(tokens) - asked))
        for tokens, asked in answers
    ]
    assert fault_beside("abc"[: len(answers)], sequences).startswith(said)
    assert bool(fault_beside("abc"[: len(answers)], sequences)) == bool(said)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ROWS[3:4] + ROWS[6:7],
            "of the 2 answers .* none is better .* the best outcome is 1; .* `near_duplicate: 1`",
        ),
        ([], "of the 0 answers"),
        ([replace(ROWS[0], rewards={"own": 1.0})], "no outcome, by which answers could be"),
    ],
)
def test_what_teaches_no_preference_is_said(
    rows: list[DistilledRow], said: str, tmp_path: Path
) -> None:
    write_dataset(tmp_path / DATA_FILE, rows)
    with pytest.raises(InputError, match=said):
        list(made_pairs(tmp_path))
