"""A driver that gives two samples a rollout, on its way from the engine to the denominators.

Two problems, two rollouts each. Every rollout opens two sessions: one answers with 1 token and the
stop token, the other with 3 and the stop token. Rewards are 1 and 0 in each group.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.aggregation import Mean, shares
from engines.algorithms.spec import Algorithm
from engines.megatron.rl.rl_batch import RlBatch
from engines.rollout.consumer import StepResult
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.metrics import first_samples, step_metrics
from engines.rollout.producer import Sampled
from engines.rollout.records.dataset import (
    DATA_FILE,
    DatasetWriter,
    dataset_rows,
    read_formats,
    write_dataset,
)
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.packing import pack_samples, unpack_samples
from engines.rollout.records.sifting import sift
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import Group, Message, Problem, Rollout, Sample, Status, Transcript
from infra.errors import EngineError
from tasks.distill.body import _keep, _row
from tests.parts.rollout_parts import Judge, Policy, Verdict, domain, ids, roller

pytestmark = pytest.mark.unit


class Plan:
    """Writes a plan in a session of its own, then the answer; the answer is judged."""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        plan = sessions.open(ids("<plan>"))
        await sessions.turn(plan)
        answer = sessions.open(sessions.prompt_ids)
        turn = await sessions.turn(answer, is_last=True)
        assert turn.said is not None
        return sessions.finish(turn.end or End(Status.COMPLETED), [turn.said.message()])


def policy() -> Policy:
    """Plans are one letter, answers three digits, whose first decides the reward."""
    answered: dict[str, int] = {}

    def say(prompt: str, _: object) -> str:
        if prompt == "<plan>":
            return "p"
        answered[prompt] = answered.get(prompt, 0) + 1
        return f"{answered[prompt] % 2}77"

    return Policy(say)


class Notes:
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def note(self, kind: str, number: int, data: bytes) -> None:
        self.kept.append(data)

    def notes(self, kind: str, first: int, last: int | None = None) -> list[bytes]:
        return self.kept


async def rolled(using: Policy, notes: Notes) -> list[list[Rollout]]:
    live = domain("d", lambda answer: float(answer[0] == "1"), driver=Plan(), max_new_tokens=20)
    journal = RolloutJournal(notes)
    made = await sample_rollouts(
        roller(using), live, live.curriculum.problems("rl", 2, 0),
        samples=2, temperature=1.0, kept=await KeptRollouts.open(journal, 0),
    )  # fmt: skip
    await journal.flush()
    return made


def samples_of(groups: list[list[Rollout]]) -> list[Sample]:
    return [s for group in groups for rollout in group for s in rollout.samples]


async def test_samples_of_a_rollout_share_its_name_reward_and_end() -> None:
    groups = await rolled(policy(), Notes())
    samples = samples_of(groups)
    assert [s.rollout_id for s in samples[:4]] == ["d/rl/0#0"] * 2 + ["d/rl/0#1"] * 2
    assert [s.branch for s in samples] == [0, 1] * 4
    assert [s.num_trained_tokens for s in samples] == [2, 4] * 4
    assert [s.reward for s in samples] == [1, 1, 0, 0] * 2
    assert {(s.status, s.token_budget) for s in samples} == {(Status.COMPLETED, 20)}
    first = groups[0][0]
    assert (first.num_trained_tokens, first.transcript.num_tokens) == (6, 6)
    assert (first.transcript.raw, first.transcript.answer) == ("177", "177")


async def test_turns_cannot_be_judged_where_a_rollout_has_several_samples() -> None:
    live = domain("d", lambda _: 1.0, driver=Plan(), max_new_tokens=20)
    live = replace(live, judge=Judge(lambda _: 1.0, (1.0,)))
    (rollout,) = await roller(policy()).roll_group(
        live, live.curriculum.problems("rl", 1, 0)[0], 1,
        temperature=1.0, group_id="g", seed_name="g",
    )  # fmt: skip
    assert {s.status for s in rollout.samples} == {Status.FAILED}
    assert rollout.samples[0].reason == "a reward judges turns, and this rollout has 2 samples"


async def test_each_session_has_seeds_of_its_own() -> None:
    using = policy()
    await rolled(using, Notes())
    assert len({sampling.seed for _, sampling in using.calls}) == 8


async def test_the_budget_is_that_of_the_rollout() -> None:
    using = policy()
    await rolled(using, Notes())
    asked = {prompt: sampling.max_new_tokens for prompt, sampling in using.calls}
    assert asked == {"<plan>": 20, "<0>": 18, "<1>": 18}


async def test_the_journal_gives_back_both_samples_and_nothing_is_sampled_again() -> None:
    notes = Notes()
    groups = await rolled(policy(), notes)
    again = policy()
    assert await rolled(again, notes) == groups
    assert again.calls == []


async def test_groups_and_metrics_count_rollouts() -> None:
    groups = await rolled(policy(), Notes())
    group = Group(groups[0][0].transcript.problem, samples_of(groups[:1]))
    assert group.has_signal
    assert not Group(group.problem, group.samples[:2]).has_signal, "one rollout has no spread"
    assert [s.reward for s in first_samples([group])] == [1, 0]
    metrics = step_metrics(StepResult(1, 0, Sampled([group], [group]), [group], 1))
    assert (metrics["reward_mean"], metrics["response_tokens_mean"]) == (0.5, 6)
    assert metrics["generated_tokens"] == 12


@pytest.mark.parametrize(
    ("mean", "weights", "units"),
    [
        # 24 tokens of 8 samples of 4 rollouts
        ("token_mean", [1, 1], [2, 4]),
        # each sample's own mean, halved
        ("sequence_mean", [1 / 4, 1 / 8], [1, 0]),
        # 6 tokens a rollout
        ("rollout_mean", [1 / 6, 1 / 6], [1, 0]),
        # over the budget of 20
        ("constant", [1 / 20, 1 / 20], [1, 0]),
    ],
)
async def test_shares_and_gradients_by_hand(
    mean: Mean, weights: list[float], units: list[int]
) -> None:
    """With std off, the advantages of a group are +1/2 and -1/2 on all tokens of a rollout; the
    gradient of -advantage x logprob, averaged, is -advantage x weight / units."""
    algorithm = Algorithm.model_validate({"advantage": {"std": False}, "aggregation": mean})
    batch = RlBatch.of(samples_of(await rolled(policy(), Notes())), algorithm)
    places = batch.trained()
    worth = batch.targets(algorithm, None, None).advantages[places]
    assert worth.tolist() == ([0.5] * 6 + [-0.5] * 6) * 2
    found = shares(
        mean,
        torch.from_numpy(batch.num_trained),
        torch.from_numpy(batch.rollouts),
        torch.full((8,), 20),
    )
    assert found.weight_N.tolist() == pytest.approx(weights * 4)
    assert found.units_N.tolist() == units * 4
    logprobs = torch.zeros(len(places), dtype=torch.float64, requires_grad=True)
    of_token = found.weight_N.repeat_interleave(torch.from_numpy(batch.num_trained))
    loss = (-torch.from_numpy(worth).double() * logprobs * of_token).sum() / found.units_N.sum()
    loss.backward()
    total = 24 if mean == "token_mean" else 4
    per_token = [weights[0]] * 2 + [weights[1]] * 4
    wanted = np.array([-0.5 * w for w in per_token] + [0.5 * w for w in per_token]) / total
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([*wanted, *wanted])


async def test_samples_of_a_rollout_stay_in_one_mini_batch() -> None:
    batch = RlBatch.of(samples_of(await rolled(policy(), Notes())), Algorithm())
    parts = [sorted(part.tolist()) for part in batch.mini_batches(4, seed=0, step=0)]
    assert sorted(parts) == [[0, 1], [2, 3], [4, 5], [6, 7]]


async def test_a_dataset_has_a_row_for_each_sample(tmp_path: Path) -> None:
    groups = await rolled(policy(), Notes())
    kept, counts = sift(
        [r for group in groups for r in group], min_tokens=1, min_outcome=1.0, near_duplicate=0.95
    )
    assert (counts["sampled"], counts["wrong"], counts["kept"]) == (4, 2, 2)
    context = SimpleNamespace(input_records={"d": {"digest": "9f"}})
    rows = [_row(context, "d", r, s) for r in kept for s in r.samples]
    write_dataset(tmp_path / DATA_FILE, rows)
    found = list(dataset_rows(tmp_path))
    assert [(r.problem_id, r.branch) for r in (kept[0].samples + kept[1].samples)] == [
        ("d/rl/0", 0), ("d/rl/0", 1), ("d/rl/1", 0), ("d/rl/1", 1),
    ]  # fmt: skip
    assert found == [
        replace(row, tokens=list(row.tokens), loss_mask=list(row.loss_mask)) for row in rows
    ]
    assert [sum(r.loss_mask) for r in found] == [2, 4, 2, 4]


async def test_rows_are_written_in_the_order_of_the_experts_whichever_is_filtered_first(
    tmp_path: Path,
) -> None:
    rollouts = [r for group in await rolled(policy(), Notes()) for r in group]
    settings = SimpleNamespace(min_tokens=1, min_outcome=1.0, near_duplicate=0.95)
    context = SimpleNamespace(input_records={})
    dataset, may_begin = DatasetWriter(tmp_path / DATA_FILE, {"a": "1"}), asyncio.Event()

    async def late() -> dict[str, int]:
        await may_begin.wait()
        return {}

    tasks = [asyncio.create_task(late())]
    for role in ("a", "b"):
        work = _keep(
            SimpleNamespace(settings=settings),
            context,
            role,
            rollouts,
            tasks[-1:],
            dataset,
        )
        tasks.append(asyncio.create_task(work))
    await asyncio.sleep(0.05)
    assert dataset.num_rows == 0
    may_begin.set()
    assert [counts.get("kept") for counts in await asyncio.gather(*tasks)] == [None, 2, 2]
    dataset.close()
    assert [row.expert for row in dataset_rows(tmp_path)] == ["a"] * 4 + ["b"] * 4
    assert read_formats(tmp_path) == {"a": "1"}


async def roll(driver: object, judge: object = None) -> Rollout:
    live = domain("d", lambda _: 1.0, driver=driver)
    live = replace(live, judge=judge or live.judge)
    problem = live.curriculum.problems("rl", 1, 0)[0]
    (made,) = await roller(policy()).roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    return made


async def test_a_driver_that_raises_fails_its_rollout_and_keeps_what_was_written() -> None:
    class Raises(Plan):
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            await super().run(problem, sessions)
            raise KeyError("answer")

    made = await roll(Raises())
    assert made.status is Status.FAILED
    assert made.transcript.reason == "driver: KeyError: 'answer'"
    assert [s.num_trained_tokens for s in made.samples] == [2, 4]


@pytest.mark.parametrize(
    "note", [{"n": 2**64}, {"n": "\ud83d"}, {"n": object()}], ids=["large", "surrogate", "object"]
)
async def test_a_driver_s_note_that_cannot_be_written_down_fails_its_rollout_alone(
    note: dict[str, Any],
) -> None:
    class Notes(Plan):
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            session = sessions.open(sessions.prompt_ids)
            await sessions.turn(session)
            return sessions.finish(End(Status.COMPLETED), [], notes=[note])

    made = await roll(Notes())
    assert made.status is Status.FAILED
    assert "notes and files must be JSON" in made.transcript.reason
    assert unpack_samples(pack_samples(made.samples))[0] == list(made.samples)


async def test_half_an_emoji_in_a_reason_ends_no_stage() -> None:
    class Raises(Plan):
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            raise ValueError("row \ud83d")

    class Unsure:
        async def judge(self, transcript: Transcript) -> Verdict:
            return Verdict(0.0, {}, "said \ud83d", failed=True)

    for made, reason in (
        (await roll(Raises()), "driver: ValueError: row ?"),
        (await roll(Plan(), Unsure()), "said ?"),
    ):
        assert made.status is Status.FAILED
        assert made.samples[0].reason == reason
        assert unpack_samples(pack_samples(made.samples))[0] == list(made.samples)


async def test_a_driver_that_returns_something_else_fails_its_rollout() -> None:
    class Wrong:
        async def run(self, problem: Problem, sessions: SessionHost) -> list[Message]:
            return [Message("assistant", "7")]

    made = await roll(Wrong())
    assert made.status is Status.FAILED
    assert "list instead of what `sessions.finish` returns" in made.transcript.reason


async def test_a_driver_chooses_what_is_trained_on() -> None:
    class Best:
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            tries = [sessions.open(sessions.prompt_ids) for _ in range(3)]
            turns = [await sessions.turn(t) for t in tries]
            best = max(range(3), key=lambda n: turns[n].said.text)
            said = turns[best].said
            assert said is not None
            return sessions.finish(End(Status.COMPLETED), [said.message()], [tries[best]])

    live = domain("d", float, driver=Best(), max_new_tokens=20)
    problem = live.curriculum.problems("rl", 1, 0)[0]
    (made,) = await roller(policy()).roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    assert [(s.num_trained_tokens, s.reward) for s in made.samples] == [(4, 177.0)]


async def test_turns_at_the_same_time_share_the_budget() -> None:
    class Both:
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            tries = [sessions.open(sessions.prompt_ids) for _ in range(3)]
            turns = await asyncio.gather(*[sessions.turn(t, max_new_tokens=8) for t in tries])
            ends = [turn.end and turn.end.reason for turn in turns]
            return sessions.finish(End(Status.COMPLETED, str(ends)), [])

    using = policy()
    live = domain("d", lambda _: 1.0, driver=Both(), max_new_tokens=16)
    problem = live.curriculum.problems("rl", 1, 0)[0]
    (made,) = await roller(using).roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    assert [sampling.max_new_tokens for _, sampling in using.calls] == [8, 8]
    assert made.transcript.reason == "[None, None, 'token budget']"
    assert len(made.samples) == 2


async def test_a_lost_engine_passes_through_a_driver() -> None:
    class Lost(Policy):
        async def generate(self, prompt_ids: object, sampling: object) -> object:
            raise EngineError("no server answers")

    live = domain("d", float, driver=Plan())
    problem = live.curriculum.problems("rl", 1, 0)[0]
    with pytest.raises(EngineError, match="no server answers"):
        await roller(Lost(lambda *_: "")).roll_group(
            live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
        )
