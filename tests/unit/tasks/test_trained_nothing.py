"""A stage that trained nothing fails with the cause; one that trained on little says so.

The loop, the roller, the filter and the record are the real ones; the policy says what it is told,
and the trainer answers with the metrics that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curricula.prompt_files.prompt_curriculum import Files
from engines.chat import Chat
from engines.draws import draw_problems
from engines.rollout.consumer import StepResult
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.evaluator import Evaluated
from engines.rollout.filters import in_process
from engines.rollout.metrics import StopRule, step_metrics
from engines.rollout.records.gallery import Gallery
from engines.sglang.turn_queue import ServerUse
from engines.step_inputs import StepInputs, TrainedStep
from engines.types import Group, Problem, Status
from infra.errors import InputError, TrainingStopped
from tasks.domain_verdicts import Verdicts, none_judged
from tasks.opd.body import check_other_weights
from tasks.resources import read_fitting_rows, read_rows
from tasks.rl.stage_record import RlRecord
from tasks.training_record import changed_share
from tests.parts.chat_parts import random_base
from tests.parts.loop_parts import Notes, Parts
from tests.parts.rollout_parts import CharChat, domain
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit

Say = Callable[[str, Any], str]
Score = Callable[[str], float]


def by_turn(answers: str) -> Say:
    """Says one of these letters after the other."""
    spoken = iter(range(10**9))
    return lambda prompt, sampling: answers[next(spoken) % len(answers)]


def fails(answer: str) -> float:
    raise ValueError("reward 'math' raised KeyError: 'answer'")


class Drops:
    def keep(self, group: Group) -> bool | str:
        return "not today"


async def run_stage(
    say: Say,
    scores: Score | LiveDomain | dict[str, Score],
    *,
    steps: int = 3,
    trained: dict[str, float] | None = None,
    needs: Collection[Any] = ("spread",),
    max_failed_share: float = 0.2,
    max_new_tokens: int = 8,
    **parts: Any,
) -> tuple[RlRecord, ListReporter]:
    """The steps of an `rl` stage, and its end."""
    reporter = ListReporter()
    watch = StopRule(
        solved_reward=0.97, min_outcome=0.0, max_entropy=None, max_failed_share=max_failed_share
    )
    record = RlRecord(
        watch=watch, gallery=Gallery(CharChat()), reporter=reporter, steps=steps, notes=Notes()
    )
    named = scores if isinstance(scores, dict) else {"d": scores}
    domains = [
        score if isinstance(score, LiveDomain) else domain(n, score, max_new_tokens=max_new_tokens)
        for n, score in named.items()
    ]
    made = Parts(say, domains=domains, wanted=4, **parts)

    async def rl_step(inputs: StepInputs) -> TrainedStep:
        return TrainedStep({"entropy": 0.5, "tokens": 10.0, **(trained or {})})

    made.trainer.rl_step = rl_step

    async def after_step(result: StepResult) -> bool:
        record.observe(result, ServerUse(), {})
        return record.solved

    await made.loop.run(first=1, last=steps, after_step=after_step)
    record.conclude(needs)
    return record, reporter


async def stopped(say: Say, scores: Score | dict[str, Score], **more: Any) -> str:
    with pytest.raises(TrainingStopped) as caught:
        await run_stage(say, scores, **more)
    return str(caught.value)


async def said(say: Say, scores: Score | dict[str, Score], **more: Any) -> list[str]:
    _, reporter = await run_stage(say, scores, **more)
    return [str(warning) for warning in reporter.kept]


async def test_a_stage_that_learns_says_nothing() -> None:
    assert await said(by_turn("01"), float) == []


@pytest.mark.parametrize("share", [0.2, 1.0], ids=["stops at once", "failures are tolerated"])
async def test_a_reward_that_always_raises_ends_the_stage_with_its_cause(share: float) -> None:
    why = await stopped(by_turn("01"), fails, max_failed_share=share)
    assert "KeyError: 'answer'" in why


async def test_a_reward_that_fails_wherever_it_is_asked_is_no_small_share_of_broken_answers() -> (
    None
):
    # 7 of 8 rollouts break the format: one of 8 is less than the bound of 20%
    say = by_turn("???????1")
    why = await stopped(say, fails, steps=20)
    assert "step 8: the rewards of d failed on each of the 8 rollouts" in why


async def test_a_reward_that_fails_on_half_of_what_it_is_asked_breaks_the_bound() -> None:
    score: Score = lambda answer: fails(answer) if answer == "1" else float(answer)  # noqa: E731
    why = await stopped(by_turn("??????01"), score, steps=20)
    assert "of the 8 verdicts so far failed" in why
    assert "bound of 20%" in why


async def test_one_domain_whose_reward_always_fails_ends_the_stage_beside_nine_that_work() -> None:
    scores: dict[str, Score] = {f"d{n}": float for n in range(9)}
    why = await stopped(by_turn("01"), {**scores, "lost": fails}, steps=20, max_failed_share=0.5)
    assert "the rewards of lost failed on each of the 8 rollouts" in why


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
async def test_a_constant_reward_trains_nothing(value: float) -> None:
    if value == 1.0:
        (line,) = [s for s in await said(by_turn("01"), lambda _: value) if "no step" in s]
        assert "solves the problems already" in line
        assert "call every answer right" in line
        return
    why = await stopped(by_turn("01"), lambda _: value)
    assert why == (
        "nothing was trained: none of 3 steps made an update, as the rewards within each of 12"
        f" groups were equal, every reward was {value:g}; rollouts ended: 24 completed"
    )


async def test_a_constant_reward_under_an_advantage_that_trains_on_it_is_said() -> None:
    lines = await said(by_turn("01"), lambda _: 0.0, needs=("critic",), needs_spread=False)
    (line,) = lines
    assert line.startswith("the reward of all 24 rollouts of d was 0: it tells no answer from")


async def test_every_rollout_truncated() -> None:
    why = await stopped(by_turn("01"), lambda _: 0.0, max_new_tokens=1)
    assert "all 24 rollouts were cut off" in why
    assert "`max_new_tokens`" in why


async def test_most_rollouts_truncated() -> None:
    spoken = iter(range(10**9))
    lengths = [9, 9, 9, 1]
    long: Say = lambda prompt, _: "1" * lengths[next(spoken) % 4]  # noqa: E731
    lines = await said(long, lambda answer: float(len(answer) == 1), steps=9)
    assert any(s.startswith("54 of 72 rollouts of d ended truncated: ") for s in lines)


async def test_a_run_of_a_few_steps_is_told_what_was_useless_three_times_in_four() -> None:
    spoken = iter(range(10**9))
    # of eight groups seven have equal rewards; of 16 rollouts 13 are cut off
    say: Say = lambda prompt, _: "0" if next(spoken) != 3 else "1"  # noqa: E731
    lines = await said(say, float, steps=2)
    assert any(s.startswith("7 of 8 groups of d taught nothing: ") for s in lines)
    cut = iter(range(10**9))
    long: Say = lambda prompt, _: "1" if next(cut) in (1, 4, 9) else "1" * 9  # noqa: E731
    lines = await said(long, lambda answer: float(len(answer) == 1), steps=2)
    assert any(s.startswith("13 of 16 rollouts of d ended truncated: ") for s in lines)


def test_all_aborted_is_said_of_any_number_of_rollouts() -> None:
    verdicts = Verdicts()
    sample = sample_of("p", "d", "g", "r", 0, [1], [1], [-1.0], [0], Status.ABORTED)
    verdicts.observe([Group(Problem("p", "d", ()), [sample])])
    (warning,) = verdicts.warnings(["spread"])
    assert str(warning).startswith("1 of 1 rollouts of d ended aborted: were aborted by the engine")


async def test_evaluations_without_a_verdict_are_said() -> None:
    record, reporter = await run_stage(by_turn("01"), float)
    record.conclude_held_out()
    assert reporter.kept == []
    for step in (0, 3):
        record.evaluated(Evaluated(step, step, 4, {"d": []}, 1.0), 0.0)
    record.conclude_held_out()
    (warning,) = reporter.kept
    assert warning.what == "none of 2 evaluations of d on held-out problems has a score"


async def test_every_rollout_malformed() -> None:
    why = await stopped(by_turn("?"), float)
    assert "all 24 rollouts broke the format" in why


async def test_a_filter_that_keeps_nothing() -> None:
    why = await stopped(by_turn("01"), float, group_filter=in_process(Drops()))
    assert "12 of 12 groups were dropped by the filter as `not_today`" in why


async def test_steps_without_an_update_are_counted() -> None:
    spoken = iter(range(10**9))
    # the first five steps have equal rewards, the others can learn
    say: Say = lambda prompt, _: "0" if (n := next(spoken)) < 40 else str(n % 2)  # noqa: E731
    lines = await said(say, float, steps=8)
    assert lines[0].startswith("5 of 8 steps made no update: the rewards within each of 20 groups")
    assert lines[1].startswith("20 of 32 groups of d taught nothing: all rollouts of such a group")


@pytest.mark.parametrize(("learns_after", "told"), [(4, []), (5, [5]), (24, [5, 20])])
async def test_steps_in_a_row_without_an_update_are_said_while_there_is_time(
    learns_after: int, told: list[int]
) -> None:
    spoken = iter(range(10**9))
    say: Say = lambda prompt, _: "0" if (n := next(spoken)) < 8 * learns_after else str(n % 2)  # noqa: E731
    _, reporter = await run_stage(say, float, steps=30)
    idle = [line for line in reporter.warnings if "made an update" in line]
    assert [line.partition(",")[0] for line in idle] == [
        f"step {n}: none of the last {n} steps made an update" for n in told
    ]
    assert all(f"{4 * n} groups were equal" in line for n, line in zip(told, idle, strict=True))


async def test_a_gradient_of_nothing_but_zeros_is_no_training() -> None:
    why = await stopped(by_turn("01"), float, trained={"grad_norm": 0.0})
    assert why.startswith("nothing was trained: the gradient was exactly 0 in each of 3 updates")


async def test_a_collapsed_policy_is_said_unless_it_solves_its_problems() -> None:
    lines = await said(by_turn("01"), float, trained={"entropy": 1e-6})
    assert lines[0].startswith("the policy's entropy fell to 1e-06 nats a token at a mean outcome")
    right = by_turn("1111111111111110")
    assert await said(right, float, trained={"entropy": 1e-6}, oversample=4.0, steps=2) == []


async def test_a_student_that_is_its_teachers_equal_is_said() -> None:
    lines = await said(by_turn("01"), float, trained={"teacher_kl": 1e-9}, needs=("teachers",))
    assert lines[0].startswith("student and teachers were never further apart than 0.0001 nats")


def test_a_teacher_that_is_the_student_itself_is_refused() -> None:
    records = {"model": {"digest": "a"}, "math": {"digest": "a"}, "code": {"digest": "b"}}
    with pytest.raises(InputError, match="the teacher of math is the student itself"):
        check_other_weights(records, ["math", "code"])
    check_other_weights(records, ["code"])


async def test_what_was_counted_outlives_an_attempt(tmp_path: Path) -> None:
    first, _ = await run_stage(by_turn("01"), float)
    first.save(tmp_path)()
    state = json.loads((tmp_path / "state.json").read_text())
    second, reporter = await run_stage(by_turn("01"), float)
    second.restore(tmp_path)
    assert (second.updates.state(), second.verdicts.state()) == (
        state["updates"],
        state["verdicts"],
    )
    assert state["verdicts"]["d"]["ended"] == {"completed": 24}
    reporter.kept.clear()
    second.conclude(["spread"])
    assert reporter.kept == []


async def test_a_step_without_a_verdict_has_no_outcome() -> None:
    made = Parts(by_turn("01"), domains=[domain("d", fails)], wanted=4)
    steps: list[StepResult] = []

    async def after_step(result: StepResult) -> bool:
        steps.append(result)
        return False

    await made.loop.run(first=1, last=1, after_step=after_step)
    metrics = step_metrics(steps[0])
    assert metrics["failed_share"] == 1.0
    assert not metrics.keys() & {"outcome_mean", "reward_mean"}, "no verdict is no score of 0"


async def test_many_bad_rows_of_prompt_files_are_kept_with_what_is_made_of_the_rest(tmp_path: Path):
    rows = [{"prompt": f"Spell {n}.", "answer": str(n)} for n in range(9)]
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(["{", *map(json.dumps, rows)]))
    files = Files(sources={"files": [str(file)], "max_bad_share": 0.5})
    context = stage_context(tmp_path, "rl", {})
    await read_rows(context, [replace(domain("letters", lambda _: 1.0), curriculum=files)])
    assert isinstance(context.reporter, ListReporter)
    (kept,) = context.reporter.kept
    assert kept.what == "letters: 1 of the 10 rows that were read were left out"
    assert kept.figures == {"left_out": 1, "read": 10}
    assert "1 not_json; e.g. asked.jsonl:1: is not JSON" in kept.cause


async def test_prompts_longer_than_the_context_are_left_out_with_a_count_and_no_reward_is_blamed(
    tmp_path: Path,
):
    rows = [{"prompt": f"Spell {n}{' w' * 3000 * (n == 3)}", "answer": str(n)} for n in range(9)]
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    files = Files(sources={"files": [str(file)]}, shares={"heldout": 0})
    context = stage_context(tmp_path, "rl", {})
    chat = Chat.load(random_base(tmp_path / "base"))
    before = [problem.messages for problem in draw_problems(files, "rl", 9, 0)]
    domains = [replace(domain("letters", lambda _: 1.0), curriculum=files)]
    await read_fitting_rows(context, domains, chat, 2048)
    drawn = draw_problems(files, "rl", 8, 0)
    assert {p.messages for p in drawn} == {m for m in before if len(m[0].content) < 100}
    assert draw_problems(files, "rl", 9, 0)[8].id.endswith("@2")
    assert isinstance(context.reporter, ListReporter)
    (kept,) = context.reporter.kept
    assert "1 too_long; e.g. asked.jsonl:4: has " in kept.cause
    assert "the model's context holds 2048" in kept.cause


async def test_prompts_that_the_template_refuses_are_named_and_no_reward_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: CharChat, problem: Problem) -> list[int]:
        raise InputError("chat_template.jinja: System role not supported")

    monkeypatch.setattr(CharChat, "prompt_ids", refuse)
    for share, said in ((0.2, "100% of the rollouts failed"), (1.0, "rollouts of d could begin: ")):
        why = await stopped(by_turn("01"), float, max_failed_share=share)
        assert said in why
        assert "prompt: problem d/rl/0: chat_template.jinja: System role not supported" in why
        assert "or take a chat template that writes them" in why
        assert "reward" not in why


def test_prompts_that_fill_the_context_are_named_and_no_reward_is_blamed() -> None:
    said = none_judged("sums", 8, "a prompt of 9000 tokens fills the context (8 of 8)")
    assert said.startswith("none of the 8 rollouts of sums could begin: a prompt of 9000 tokens")
    assert "a model with a longer context" in said
    assert "reward" not in said
    rule = StopRule(0.9, 0.0, None, 0.2)
    with pytest.raises(TrainingStopped, match=r"fills the context\. Leave such prompts out"):
        rule.observe(1, {"failed_share": 0.5}, "a prompt of 9000 tokens fills the context")


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
async def test_weights_that_changed_are_counted_in_the_first_rows_of_each_tensor(
    tmp_path: Path, stored: str
) -> None:
    import torch
    from safetensors.torch import save_file

    dtype = getattr(torch, stored)
    before = {
        "matrix": torch.ones(40, 7).to(dtype), "bias": torch.ones(5).to(dtype),
        "scale": torch.tensor(1.0).to(dtype), "empty": torch.ones(0, 4).to(dtype),
    }  # fmt: skip
    after = {name: tensor.clone() for name, tensor in before.items()}
    after["matrix"][[3, 15, 16, 39], 2] = 2.0  # 16 rows are looked at
    after["bias"][0] = 2.0
    for name, tensors in (("before", before), ("same", before), ("after", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        save_file(tensors, tmp_path / name / "model.safetensors")
    assert await changed_share(tmp_path / "before", tmp_path / "same") == 0
    if stored == "float32":  # at a rate of 1e-12 Adam moves a weight of 0 by as much
        matrix = torch.ones(40, 7)
        matrix[0, 0] = 0.0
        save_file(before | {"matrix": matrix}, tmp_path / "before/model.safetensors")
        moved = matrix + torch.full((40, 7), 1e-12)
        save_file(after | before | {"matrix": moved}, tmp_path / "same/model.safetensors")
        assert (moved != matrix).any()
        assert await changed_share(tmp_path / "before", tmp_path / "same") == 0
        save_file(before, tmp_path / "before/model.safetensors")
    changed = await changed_share(tmp_path / "before", tmp_path / "after")
    assert changed == 3 / (16 * 7 + 5 + 1)
