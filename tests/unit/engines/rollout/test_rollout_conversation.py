"""How rollouts end, and what a faulty environment or reward leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.rollout.drivers import session_host
from engines.rollout.records.journals import pack_rollouts, unpack_rollouts
from engines.rollout.records.packing import pack_samples, unpack_samples
from engines.rollout.roller import Roller
from engines.types import Message, Status, Step
from infra.errors import EngineError, InputError
from tests.parts.rollout_parts import STOP, CharChat, Judge, Policy, domain, ids, roller
from tests.parts.sample_parts import generation_of

pytestmark = pytest.mark.unit


class Oracle:
    """An environment whose tool answers `42`; raises when asked for `boom`."""

    def __init__(self) -> None:
        self.closed = 0

    async def start(self, problem):
        return self

    async def step(self, turn):
        if not turn.tool_calls:
            return Step(done=True)
        if turn.tool_calls[0].name == "boom":
            raise RuntimeError("the index is gone")
        return Step((Message("tool", "42"),))

    async def close(self):
        self.closed += 1


async def roll(policy, live, **options):
    problem = live.curriculum.problems("rl", 1, 0)[0]
    (rollout,) = await roller(policy, **options).roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    return rollout


async def test_a_single_turn_completes_and_is_judged():
    rollout = await roll(Policy(lambda *_: "7"), domain("d", lambda a: float(a == "7")))
    assert rollout.samples[0].status is Status.COMPLETED
    assert rollout.samples[0].reward == 1.0
    assert rollout.samples[0].rewards == {"outcome": 1.0}
    assert rollout.samples[0].tokens.tolist() == [*ids("<0>7"), STOP]


async def test_tool_output_is_in_the_sample_but_masked():
    oracle = Oracle()

    def say(prompt, _):
        return "!ask" if "[42]" not in prompt else "42"

    live = domain(
        "d", lambda a: float(a == "42"), environment=oracle, max_turns=3, max_new_tokens=20
    )
    rollout = await roll(Policy(say), live)
    (sample,) = rollout.samples
    assert sample.tokens.tolist() == [*ids("<0>!ask"), STOP, *ids("[42]42"), STOP]
    assert sample.loss_mask.tolist() == [0] * 3 + [1] * 5 + [0] * 4 + [1] * 3
    assert sample.reward == 1.0
    assert [m.role for m in rollout.transcript.messages] == ["assistant", "tool", "assistant"]
    assert oracle.closed == 1


@pytest.mark.parametrize(
    ("turns", "fault"),
    [((0.25, 0.5), ""), ((), ""), ((1.0,), "a reward judges 1 turns; tokens of 2 are trained")],
)
async def test_what_turns_earned_is_kept_where_they_can_be_found(turns, fault):
    live = domain(
        "d", lambda a: float(a == "42"), environment=Oracle(), max_turns=3, max_new_tokens=20
    )
    live = replace(live, judge=Judge(lambda _: 1.0, turns))
    said = Policy(lambda prompt, _: "!ask" if "[42]" not in prompt else "42")
    (sample,) = (await roll(said, live)).samples
    assert sample.num_turns == 2
    assert sample.status is (Status.FAILED if fault else Status.COMPLETED)
    assert (sample.turn_rewards, sample.reason) == ([] if fault else list(turns), fault)
    (kept,), _ = unpack_samples(pack_samples([sample]))
    assert kept == sample


async def test_the_engine_is_told_which_turn_nothing_follows():
    single, called = Policy(lambda *_: "7"), Policy(lambda *_: "!ask")
    await roll(single, domain("d", lambda _: 1.0))
    live = domain("d", lambda _: 1.0, environment=Oracle(), max_turns=2, max_new_tokens=20)
    await roll(called, live)
    assert [sampling.is_last for _, sampling in single.calls] == [True]
    assert [sampling.is_last for _, sampling in called.calls] == [False, True]


async def test_a_broken_call_ends_with_reward_zero_and_its_reason_unjudged():
    live = domain("d", lambda _: 1.0, environment=Oracle(), max_turns=3)
    rollout = await roll(Policy(lambda *_: "?x"), live)
    assert rollout.samples[0].status is Status.MALFORMED
    assert rollout.samples[0].reward == 0.0
    assert rollout.samples[0].rewards == {"outcome": 0.0}
    assert rollout.samples[0].reason == "broken call"
    assert isinstance(live.judge, Judge)
    assert live.judge.seen == []


class Interrupted(Policy):
    """Says `1234567` by positions; each turn is cut off after `tokens` of it, by new weights."""

    def __init__(self, tokens):
        super().__init__(lambda prompt, _: "1234567"[len(prompt) - len("<0>") :])
        self.tokens = tokens

    async def generate(self, prompt_ids, sampling):
        found = await super().generate(prompt_ids, sampling)
        if len(found.token_ids) <= self.tokens:
            return found
        self.version += 1
        n = self.tokens
        return generation_of(
            found.token_ids[:n], found.logprobs[:n], found.weight_versions.of_each()[:n], "abort"
        )


@pytest.mark.parametrize("tokens", [1, 3, 7])
async def test_an_interrupted_turn_goes_on_from_its_tokens(tokens):
    policy = Interrupted(tokens)
    rollout = await roll(policy, domain("d", lambda _: 1.0))
    (sample,) = rollout.samples
    assert sample.status is Status.COMPLETED
    assert rollout.transcript.raw == "1234567"
    assert rollout.transcript.answer == "1234567"
    versions = sample.weight_versions.of_each()[sample.loss_mask]
    assert versions.tolist() == [position // tokens for position in range(8)]
    assert len({sampling.seed for _, sampling in policy.calls}) == 1, "draws hang on positions"
    assert [s.max_new_tokens for _, s in policy.calls] == list(range(8, 0, -tokens))


async def test_a_budget_that_ends_with_an_interruption_is_a_truncation():
    policy = Interrupted(2)
    rollout = await roll(policy, domain("d", lambda _: 1.0, max_new_tokens=4))
    assert rollout.status is Status.TRUNCATED
    assert rollout.transcript.raw == "1234"


async def test_a_rollout_that_is_interrupted_again_and_again_is_not_judged(monkeypatch):
    monkeypatch.setattr(session_host, "_PAUSE_S", 0.0)
    live = domain("d", lambda _: 1.0)
    policy = Interrupted(0)
    rollout = await roll(policy, live)
    assert len(policy.calls) == 5
    assert rollout.samples[0].status is Status.ABORTED
    assert rollout.samples[0].reward == 0.0
    assert isinstance(live.judge, Judge)
    assert live.judge.seen == []


async def test_an_environment_that_raises_fails_its_sample_only():
    oracle = Oracle()
    live = domain("d", lambda _: 1.0, environment=oracle, max_turns=3)
    sampled: list[int] = []

    def say(*_):
        sampled.append(1)
        return "!boom" if len(sampled) == 1 else "7"

    problem = live.curriculum.problems("rl", 1, 0)[0]
    rollouts = await roller(Policy(say)).roll_group(
        live, problem, 3, temperature=1.0, group_id="g", seed_name="g"
    )
    assert [r.samples[0].status for r in rollouts] == [
        Status.FAILED,
        Status.COMPLETED,
        Status.COMPLETED,
    ]
    assert rollouts[0].samples[0].reason == "environment: RuntimeError: the index is gone"
    assert oracle.closed == 3


async def test_a_reward_that_raises_fails_its_sample():
    def score(_):
        raise ValueError("no box")

    sample = (await roll(Policy(lambda *_: "7"), domain("d", score))).samples[0]
    assert (sample.status, sample.reason, sample.rewards) == (Status.FAILED, "no box", {})


async def test_the_token_budget_spans_all_turns():
    policy = Policy(lambda *_: "!a")  # 3 tokens a turn with the stop token
    live = domain("d", lambda _: 0.0, environment=Oracle(), max_turns=9, max_new_tokens=7)
    sample = (await roll(policy, live)).samples[0]
    assert [s.max_new_tokens for _, s in policy.calls] == [7, 4, 1]
    assert sample.status is Status.TRUNCATED
    assert sample.reason == "token budget"
    assert sample.num_trained_tokens == 7


async def test_the_turn_budget_truncates():
    live = domain("d", lambda _: 0.0, environment=Oracle(), max_turns=2, max_new_tokens=90)
    sample = (await roll(Policy(lambda *_: "!a"), live)).samples[0]
    assert (sample.status, sample.reason) == (Status.TRUNCATED, "2 turns are used up")


async def test_the_context_length_bounds_a_turn():
    policy = Policy(lambda *_: "7" * 50)
    sample = (
        await roll(policy, domain("d", lambda _: 0.0, max_new_tokens=60), context_length=30)
    ).samples[0]
    assert policy.calls[0][1].max_new_tokens == 30 - 8 - len("<0>")
    assert (sample.status, sample.reason) == (Status.TRUNCATED, "context length")


async def test_a_prompt_longer_than_the_context_is_a_failed_sample():
    policy = Policy(lambda *_: "7")
    sample = (await roll(policy, domain("d", lambda _: 1.0), context_length=11)).samples[0]
    assert sample.status is Status.FAILED
    assert "fills the context" in sample.reason
    assert policy.calls == []


@pytest.mark.parametrize("error", [InputError("no system role"), TypeError("half a character")])
async def test_a_prompt_that_the_template_refuses_fails_its_own_rollouts_and_is_named(error):
    class Refusing(CharChat):
        def prompt_ids(self, problem):
            if problem.id.endswith("/1"):
                raise error
            return super().prompt_ids(problem)

    policy, live = Policy(lambda *_: "7"), domain("d", lambda _: 1.0)
    refused, fine = live.curriculum.problems("rl", 2, 0, 1)
    refused = replace(refused, row="prompts.jsonl:6")
    using = Roller(generate=policy.generate, chat=Refusing(), context_length=200, seed=0)
    finished = []
    for problem, status in ((refused, Status.FAILED), (fine, Status.COMPLETED)):
        rollouts = await using.roll_group(
            live, problem, 3, temperature=1.0, group_id=problem.id, seed_name="g",
            on_finished=finished.append,
        )  # fmt: skip
        assert [r.samples[0].status for r in rollouts] == [status] * 3
    sample = finished[0].samples[0]
    assert sample.reason.startswith("prompt: problem d/rl/1 (prompts.jsonl:6): ")
    assert sample.reason.endswith(str(error))
    assert sample.num_trained_tokens == 0
    assert len(live.judge.seen) == len(policy.calls) == 3, "the others are sampled and judged"
    again = unpack_rollouts(pack_rollouts(finished))
    assert [f.has_failed for f in again] == [True] * 3 + [False] * 3


async def test_a_lost_engine_is_not_a_failed_sample():
    def say(*_):
        raise EngineError("no server answers")

    with pytest.raises(EngineError, match="no server answers"):
        await roll(Policy(say), domain("d", lambda _: 1.0))


async def test_all_first_turns_are_submitted_in_one_tick_of_the_loop():
    waiting: list[int] = []

    def delay(call):
        waiting.append(call)
        return 50

    policy = Policy(lambda *_: "7", delay)
    live = domain("d", lambda _: 1.0)
    problem = live.curriculum.problems("rl", 1, 0)[0]
    await roller(policy).roll_group(live, problem, 16, temperature=1.0, group_id="g", seed_name="g")
    assert waiting == list(range(1, 17))
    assert len({s.seed for _, s in policy.calls}) == 16
