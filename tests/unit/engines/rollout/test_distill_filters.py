"""Which rollouts may teach, and under which count the others fall."""

from __future__ import annotations

import numpy as np
import pytest

from engines.rollout.records.dataset import DistilledRow, dataset_rows, write_dataset
from engines.rollout.records.sifting import duplicates, has_loop, jaccard, shingles_of, sift
from engines.types import Message, Problem, Rollout, Status, Tool, ToolCall, Transcript
from infra.errors import InputError
from tasks.distill.body import _row
from tests.parts.rollout_parts import ids
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit
SEARCH = Tool("search", "look up", {"q": "string"}, ("q",))


def rollout(
    tokens=(1, 2, 3),
    *,
    status=Status.COMPLETED,
    outcome=1.0,
    thinking=False,
    reasoning=None,
    tools=(),
    reference="7",
):
    problem = Problem("p", "d", (Message("user", "q"),), reference, tools, thinking)
    sample = sample_of(
        "p", "d", "p", "p#0", 0, [9, *tokens], [0] + [1] * len(tokens), [0.0] * (len(tokens) + 1),
        [-1] + [0] * len(tokens), status, outcome, {"outcome": outcome},
    )  # fmt: skip
    turns = (Message("assistant", "7", reasoning),)
    return Rollout((sample,), Transcript(problem, turns, status, len(tokens)))


def counts_of(*rollouts, min_tokens=1, min_outcome=1.0):
    kept, counts = sift(
        rollouts, min_tokens=min_tokens, min_outcome=min_outcome, near_duplicate=0.95
    )
    assert counts.pop("sampled") == len(rollouts)
    assert counts.pop("kept") == len(kept)
    return {name: n for name, n in counts.items() if n}


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (rollout(status=Status.FAILED), "failed"),
        (rollout(status=Status.ABORTED), "failed"),
        (rollout(status=Status.TRUNCATED), "truncated"),
        (rollout((1, 2)), "short"),
        (rollout([4, 5] * 33), "repeated"),
        (rollout(thinking=True), "reasoning"),
        (rollout(reasoning="hm"), "reasoning"),
        (rollout(status=Status.MALFORMED, outcome=0.0), "reasoning"),
        (rollout(outcome=0.0), "wrong"),
        (rollout(outcome=0.0, reference=None), "wrong"),
        (rollout(outcome=0.0, tools=(SEARCH,)), "wrong"),
        (rollout(outcome=0.0, tools=(SEARCH,), status=Status.MALFORMED), "tool"),
        (rollout(outcome=0.0, tools=(SEARCH,), reference=None), "tool"),
    ],
)
def test_each_fault_has_its_count(bad, name):
    assert counts_of(bad, min_tokens=3) == {name: 1}


def test_a_rollout_counts_at_the_first_filter_only():
    assert counts_of(rollout((1,), status=Status.TRUNCATED, outcome=0.0), min_tokens=3) == {
        "truncated": 1
    }


def test_sound_rollouts_pass():
    assert counts_of(rollout(), rollout((4, 5, 6), thinking=True, reasoning="4+3")) == {}


def test_a_lower_bound_on_the_outcome_lets_partial_answers_pass():
    assert counts_of(rollout(outcome=0.5), min_outcome=0.5) == {}


def test_exact_copies_are_dropped_whatever_their_length():
    assert counts_of(rollout((1, 2)), rollout((1, 2)), rollout((1, 3))) == {"duplicate": 1}


def test_seven_repeats_are_asked_for_and_eight_of_a_sentence_are_a_loop():
    sentence = list(range(12))
    assert not has_loop(sentence * 7)
    assert has_loop([*sentence * 8, 99])
    assert not has_loop(range(100))


@pytest.mark.parametrize(
    "text",
    [
        "100000000",
        f"0b{'0' * 64}",
        f"a | b\n{'-' * 40}\n1 | 2",
        "| --- " * 10,
        f"if x:\n{' ' * 12}y",
    ],
    ids=["digits", "a word of zeros", "a line", "a table", "spaces"],
)
def test_what_repeats_one_token_for_a_reason_is_no_loop(text: str) -> None:
    assert not has_loop(ids(text))


@pytest.mark.parametrize("block", ["0", "ha", "wait, "])
def test_a_short_block_that_goes_on_and_on_is_a_loop(block: str) -> None:
    assert has_loop([*ids("so "), *ids(block * 65)])


def test_short_answers_to_different_questions_are_not_copies():
    # as arithmetic looks: one digit of the question and one of the answer differ
    frame = list(range(30))
    sums = [[*frame[:10], 100 + n, *frame[11:25], 200 + n, *frame[26:]] for n in range(50)]
    assert duplicates(sums, threshold=0.95) == [False] * 50


def test_a_long_text_with_one_changed_token_is_a_near_copy():
    text = list(range(400))
    changed = [*text[:200], 999, *text[201:]]
    # 396 shingles each; 5 of them hold the changed token: 391 / 401 = 0.975
    assert duplicates([text, changed], threshold=0.95) == [False, True]
    assert duplicates([text, changed], threshold=0.98) == [False, False]


def test_jaccard_is_intersection_over_union():
    assert jaccard(np.array([1, 2, 3], np.uint64), np.array([2, 3, 4], np.uint64)) == 0.5


def by_sets(sequences, threshold):
    """Whether each is a copy, by comparing sets of shingles with every earlier kept sequence."""
    kept, seen, copies = [], set(), []
    for tokens in map(tuple, sequences):
        shingles = {tokens[i : i + 5] for i in range(len(tokens) - 4)} if len(tokens) > 15 else None
        similar = shingles is not None and any(
            len(shingles & other) / len(shingles | other) >= threshold for other in kept
        )
        copies.append(tokens in seen or similar)
        seen.add(tokens)
        if shingles is not None and not copies[-1]:
            kept.append(shingles)
    return copies


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.9, 0.95, 1.0])
def test_hashed_shingles_find_what_sets_of_shingles_find(seed, threshold):
    draw = np.random.default_rng(seed)
    texts = [draw.integers(0, 150_000, draw.integers(3, 400)) for _ in range(12)]
    texts.append(np.tile([7, 8, 9], 60))
    sequences = []
    for _ in range(150):
        text = texts[draw.integers(len(texts))].astype(np.int32).copy()
        changed = draw.integers(0, len(text), draw.integers(0, 4))
        text[changed] = draw.integers(0, 150_000, len(changed))
        sequences.append(text)
    wanted = by_sets(sequences, threshold)
    assert 20 < sum(wanted) < 140
    assert duplicates(sequences, threshold=threshold) == wanted


def test_shingles_take_eight_bytes_a_token_at_most():
    shingles = shingles_of(np.arange(1000) % 300)
    assert shingles.dtype == np.uint64
    assert len(shingles) == 300


def test_a_dataset_reads_back_as_it_was_written(tmp_path):
    turns = (
        Message("assistant", "", "hm", (ToolCall("search", {"q": "ant", "n": 2}),)),
        Message("tool", "color red"),
        Message("assistant", "red"),
    )
    problem = Problem(
        "agent/distill/3", "agent", (Message("user", "färbe"),), {"answer": "red"}, (SEARCH,), True,
        {"hops": 1},
    )  # fmt: skip
    row = DistilledRow(
        [5, 9, 7], [0, 1, 1], problem, turns, "agent-rl", "9f", 0, 3, {"outcome": 1.0}
    )
    write_dataset(tmp_path / "data.parquet", [row])
    assert list(dataset_rows(tmp_path)) == [row]


def test_a_missing_dataset_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"no distilled dataset at .*data\.parquet"):
        list(dataset_rows(tmp_path))


def test_a_row_names_its_expert_and_the_artifact_that_spoke(tmp_path):
    records = {"agent": {"kind": "rl", "digest": "d" * 64}}
    context = stage_context(tmp_path, "distill", {}, records=records)
    made = rollout()
    row = _row(context, "agent", made, made.samples[0])
    assert (row.expert, row.artifact_digest, row.problem.domain) == ("agent", "d" * 64, "agent")
