"""Supervised data: order of batches, samples without thinking, what is left out or refused."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curricula.built_in_curricula import build
from engines.batching import TokenSequence
from engines.chat import Chat
from engines.rollout.records.dataset import (
    DATA_FILE,
    AdmittedProblem,
    DistilledRow,
    write_admitted,
    write_dataset,
)
from engines.types import Demonstration, Message, Problem, Split
from infra.errors import InputError
from tasks.sft.sft_data import batches_for_steps, each_alike, load_data
from tasks.sft.spec import SftSpec
from tasks.sft.supply import ListSupply
from tasks.stage import ADMITTED
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, chat_folder, problem, random_base
from tests.parts.stage_parts import ListReporter

pytestmark = pytest.mark.unit

ANSWER = (Message("assistant", "\\boxed{42}", reasoning="2+0=2"),)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_base(tmp_path_factory.mktemp("base"))


def sft(**settings: Any) -> SftSpec:
    return SftSpec.model_validate(
        {"settings": {"steps": 4, "optimizer": {"lr": 1e-3}, **settings}, "seed": 3}
    )


def row(chat: Chat, asked: Problem, turns: tuple[Message, ...]) -> DistilledRow:
    tokens, mask = chat.training_ids(asked, turns)
    return DistilledRow(
        tokens=tokens,
        loss_mask=mask,
        problem=asked,
        turns=turns,
        expert="reasoning-rl",
        artifact_digest="00",
        sample_index=0,
        weight_version=1,
        rewards={"outcome": 1.0},
    )


def dataset(
    folder: Path, rows: list[DistilledRow], formats: Mapping[str, str] | None = None
) -> Path:
    write_dataset(folder / DATA_FILE, rows, formats)
    return folder


@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 9),
    seed=st.integers(0, 3),
    cut=st.integers(0, 20),
)
def test_a_resumed_run_sees_the_batches_of_an_undisturbed_one(
    count: int, batch: int, seed: int, cut: int
):
    whole = batches_for_steps(count, batch, seed, 0, 20)
    assert whole == [
        *batches_for_steps(count, batch, seed, 0, cut),
        *batches_for_steps(count, batch, seed, cut, 20),
    ]


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own():
    flat = [i for batch in batches_for_steps(10, 4, 0, 0, 5) for i in batch]
    assert Counter(flat[:10]) == Counter(flat[10:]) == Counter(range(10))
    assert flat[:10] != flat[10:]
    assert flat != [i for batch in batches_for_steps(10, 4, 1, 0, 5) for i in batch]


def test_demonstrations_of_a_curriculum_become_masked_sequences(model: Path, tmp_path: Path):
    spec = SftSpec.model_validate(
        {
            **sft(demonstrations=12).model_dump(),
            "curriculum": {"name": "reasoning"},
        }
    )
    data = load_data(spec, model, {}, tmp_path)
    assert len(data.sequences) == 12
    assert all(0 < sum(s.loss_mask) < len(s.tokens) == len(s.loss_mask) for s in data.sequences)
    assert list(data.sequences) == list(load_data(spec, model, {}, tmp_path).sequences)


def test_demonstrations_after_an_admit_are_of_admitted_problems(model: Path, tmp_path: Path):
    written = {**sft(demonstrations=6).model_dump(), "curriculum": {"name": "reasoning"}}
    every = load_data(SftSpec.model_validate(written), model, {}, tmp_path).sequences
    problems = build("reasoning").problems("sft", 6, 3)
    write_admitted(tmp_path, [AdmittedProblem("maths", "sft", problems[at]) for at in (1, 4)])
    spec = SftSpec.model_validate({**written, "only_admitted": True})
    assert load_data(spec, model, {ADMITTED: tmp_path}, tmp_path).sequences[:] == [
        every[1],
        every[4],
    ]


def test_distilled_tokens_are_trained_as_they_were_sampled(model: Path, tmp_path: Path):
    chat = Chat.load(model)
    sampled = row(chat, problem(thinking=True), ANSWER)
    # Other ids for the same text than the tokenizer would choose: as an engine may sample.
    encode = chat._encode
    split = [i for t in encode("ant") for i in encode(" ".join(chat.decode([t])))]
    tokens, mask = list(sampled.tokens), list(sampled.loss_mask)
    tokens[-1:-1], mask[-1:-1] = split, [1] * len(split)
    sampled = replace(sampled, tokens=tokens, loss_mask=mask)
    data = load_data(sft(), model, {"data": dataset(tmp_path, [sampled])}, tmp_path)
    assert data.sequences[0].tokens == sampled.tokens
    assert data.sequences[0].loss_mask == sampled.loss_mask


def test_a_share_of_thinking_samples_comes_again_without_thinking(model: Path, tmp_path: Path):
    chat = Chat.load(model)
    asked = {n: replace(problem(f"{n}+30", thinking=True), id=f"p/{n}") for n in range(10, 18)}
    rows = [row(chat, each, ANSWER) for each in asked.values()]
    rows += [row(chat, problem("color of ant"), (Message("assistant", "red"),))]
    data = load_data(sft(nothink_share=0.25), model, {"data": dataset(tmp_path, rows)}, tmp_path)
    assert (len(data.sequences), data.without_thinking) == (11, 2)
    for sequence in data.sequences[-2:]:
        text = chat.decode(sequence.tokens)
        assert text.endswith("<|assistant|><think></think>\\boxed{42}<|endoftext|>")
        trained = [t for t, m in zip(sequence.tokens, sequence.loss_mask, strict=True) if m]
        assert chat.decode(trained) == "\\boxed{42}<|endoftext|>"


def test_each_domain_repeats_a_share_of_its_own(model: Path, tmp_path: Path):
    """Of 4 and 6 thinking rollouts: 0.5 and 1/3 are 2 and 2; of a domain that is not named none."""
    chat = Chat.load(model)

    def rows(domain: str, count: int) -> list[DistilledRow]:
        asked = replace(problem(thinking=True), domain=domain)
        return [row(chat, replace(asked, id=f"{domain}/{n}"), ANSWER) for n in range(count)]

    inputs = {"data": dataset(tmp_path, [*rows("a", 4), *rows("b", 6), *rows("c", 5)])}
    data = load_data(sft(nothink_share={"a": 0.5, "b": 1 / 3}), model, inputs, tmp_path)
    assert (len(data.sequences), data.without_thinking) == (19, 4)
    assert load_data(sft(nothink_share={"a": 1}), model, inputs, tmp_path).without_thinking == 4
    with pytest.raises(InputError, match=r"nothink_share\.d: no answer of d has a thought"):
        load_data(sft(nothink_share={"d": 0.5}), model, inputs, tmp_path)


UNFINISHED = (*ANSWER, Message("tool", "color red"))


def test_a_conversation_that_cannot_be_rendered_without_thinking_is_left_out_alone(
    model: Path, tmp_path: Path
):
    chat = Chat.load(model)
    rows = [row(chat, replace(problem(thinking=True), id=f"p/{n}"), ANSWER) for n in range(3)]
    rows[1] = replace(rows[1], turns=UNFINISHED)
    spec, inputs = sft(nothink_share=1.0), {"data": dataset(tmp_path, rows)}
    data = load_data(spec, model, inputs, tmp_path)
    assert [s.tokens for s in data.sequences[:3]] == [r.tokens for r in rows]
    assert (len(data.sequences), data.without_thinking) == (5, 2)
    (said,) = data.unrendered
    assert said.startswith("problem p/1: ")
    reporter = ListReporter()
    supply = ListSupply(spec, data)
    supply.report(reporter, "sft")
    assert supply.summary()["unrendered"] == 1
    (warned,) = reporter.warnings
    assert warned.startswith("distilled dataset: 1 conversations cannot be rendered and were left")


class SomeUnfinished:
    """Every problem's solution but the first ends with a tool's turn."""

    def __init__(self, finished: int = 1) -> None:
        self._finished = finished

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        return [replace(problem(), id=f"p/{n}") for n in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        turns = [ANSWER] * self._finished + [UNFINISHED] * (count - self._finished)
        asked = [replace(p, thinking=True) for p in self.problems("sft", count, seed)]
        return [Demonstration(p, t) for p, t in zip(asked, turns, strict=True)]

    def environment(self) -> None:
        return None


@pytest.mark.parametrize("finished", [1, 0])
def test_demonstrations_that_cannot_be_rendered_are_left_out_unless_all_are(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int
):
    monkeypatch.setattr("curricula.built_in_curricula.build", lambda *_: SomeUnfinished(finished))
    written = {**sft(demonstrations=3).model_dump(), "curriculum": {"name": "reasoning"}}
    spec = SftSpec.model_validate(written)
    if finished:
        data = load_data(spec, model, {}, tmp_path)
        assert (len(data.sequences), len(data.unrendered)) == (1, 2)
    else:
        with pytest.raises(InputError, match=r"3 conversations cannot be rendered.*problem p/0"):
            load_data(spec, model, {}, tmp_path)


def test_a_rollout_of_several_branches_comes_again_once(model: Path, tmp_path: Path):
    chat = Chat.load(model)
    whole = [row(chat, replace(problem(thinking=True), id=f"p/{n}"), ANSWER) for n in range(2)]
    branches = [replace(r, tokens=[*r.tokens]) for r in whole for _ in range(3)]
    data = load_data(sft(nothink_share=1.0), model, {"data": dataset(tmp_path, branches)}, tmp_path)
    assert (len(data.sequences), data.without_thinking) == (8, 2)


def test_sequences_longer_than_the_models_context_are_counted_and_left_out(
    model: Path, tmp_path: Path
):
    chat = Chat.load(model)
    long = row(chat, problem("9" * 600), (Message("assistant", "red"),))
    short = row(chat, problem(), (Message("assistant", "red"),))
    data = load_data(sft(), model, {"data": dataset(tmp_path, [long, short])}, tmp_path)
    assert (len(data.sequences), data.too_long) == (1, 1)
    with pytest.raises(InputError, match="no sequence to train on: 1 were made, 1 of them longer"):
        load_data(sft(), model, {"data": dataset(tmp_path, [long])}, tmp_path)


def test_a_dataset_of_another_tokenizer_is_refused(model: Path, tmp_path: Path):
    foreign = row(Chat.load(model), problem(), (Message("assistant", "red"),))
    foreign = replace(foreign, tokens=[foreign.tokens[0] + 1, *foreign.tokens[1:]])
    with pytest.raises(InputError, match=r"another tokenizer or chat template.*p/1"):
        load_data(sft(), model, {"data": dataset(tmp_path, [foreign])}, tmp_path)


def test_a_row_may_begin_with_a_prompt_of_its_driver_if_its_chat_was_the_same(
    model: Path, tmp_path: Path
):
    chat = Chat.load(model)
    asked = problem()
    own = replace(asked, messages=(Message("system", "rules of the program"), *asked.messages))
    of_harness = replace(row(chat, own, (Message("assistant", "red"),)), problem=asked)
    same = dataset(tmp_path, [of_harness], {"reasoning-rl": chat.format_checksum})
    assert (
        load_data(sft(), model, {"data": same}, tmp_path).sequences[0].tokens == of_harness.tokens
    )
    with pytest.raises(InputError, match=r"the prompt of p/1 differs"):
        load_data(sft(), model, {"data": dataset(tmp_path, [of_harness])}, tmp_path)


def test_a_dataset_of_another_chat_is_refused_whatever_its_rows_begin_with(
    model: Path, tmp_path: Path
):
    sampled = row(Chat.load(model), problem(), (Message("assistant", "red"),))
    other = Chat.load(chat_folder(tmp_path / "other", LLAMA, LLAMA_TOKENS, "<|eot|>"))
    folder = dataset(tmp_path, [sampled], {"reasoning-rl": other.format_checksum})
    with pytest.raises(InputError, match=r"expert reasoning-rl were made with another tokenizer"):
        load_data(sft(), model, {"data": folder}, tmp_path)


def test_the_checksum_of_a_chat_follows_its_tokenizer_and_template(tmp_path: Path):
    def checksum(name: str, template: str, tokens: list[str]) -> str:
        return Chat.load(chat_folder(tmp_path / name, template, tokens, tokens[-1])).format_checksum

    one = checksum("one", LLAMA, LLAMA_TOKENS)
    assert checksum("same", LLAMA, LLAMA_TOKENS) == one
    assert checksum("ids", LLAMA, ["<|pad|>", *LLAMA_TOKENS]) != one
    assert checksum("template", LLAMA.replace("| trim", ""), LLAMA_TOKENS) == one
    assert checksum("header", LLAMA.replace("\\n\\n", "\\n"), LLAMA_TOKENS) != one


def test_an_empty_dataset_is_refused(model: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no sequence to train on"):
        load_data(sft(), model, {"data": dataset(tmp_path, [])}, tmp_path)


def test_eight_times_the_data_take_no_more_memory_and_give_the_same_order(
    model: Path, tmp_path: Path
):
    chat = Chat.load(model)
    long = row(chat, problem("9" * 150), (Message("assistant", "red " * 150),))
    peaks: list[int] = []
    for rows in (40, 320):
        folder = tmp_path / str(rows)
        folder.mkdir()
        checksum = {"reasoning-rl": chat.format_checksum}
        dataset(folder, [replace(long, sample_index=n) for n in range(rows)], checksum)
        load_data(sft(), model, {"data": folder}, tmp_path)
        tracemalloc.start()
        data = load_data(sft(), model, {"data": folder}, tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (len(data.sequences), data.sequences.tokens) == (rows, rows * len(long.tokens))
        assert data.sequences[rows - 1].tokens == list(long.tokens)
    assert peaks[1] < 1.3 * peaks[0] + 100_000


def test_each_sequence_counts_alike_where_the_mean_is_over_sequences():
    """(2 x 3 + 1 + 5) / 6 is the mean over tokens; over sequences it is (3 + 1 x .5 + 5) / 3."""
    masks = [[0, 1, 1], [0, 1, 0], [0, 0, 1, 1, 1], [0, 0]]
    losses = [[0, 3.0, 3.0], [0, 1.0, 0], [0, 0, 5.0, 4.0, 6.0], [9.0, 9.0]]
    weights = [1.0, 0.5, 1.0, 1.0]
    batch = [
        TokenSequence(tokens=list(range(len(mask))), loss_mask=mask, weight=weight)
        for mask, weight in zip(masks, weights, strict=True)
    ]
    made = each_alike(batch)
    assert [(one.tokens, one.loss_mask) for one in made] == [(s.tokens, s.loss_mask) for s in batch]
    total = sum(
        one.weight * loss * kept
        for one, row in zip(made, losses, strict=True)
        for loss, kept in zip(row, one.loss_mask, strict=True)
    )
    assert total / sum(map(sum, masks)) == pytest.approx((3 + 0.5 * 1 + 5) / 3, rel=1e-12)
    assert each_alike(batch[3:]) == batch[3:]
    (begins,) = each_alike([TokenSequence(tokens=[1, 2, 3], loss_mask=[1, 1, 1])])
    assert begins.weight == 1.0, "nothing is before a first token, so that it is never trained"
