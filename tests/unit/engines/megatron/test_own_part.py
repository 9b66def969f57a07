"""What a rank holds of a large step: its own part, worth what the whole step says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from engines.algorithms.spec import Algorithm
from engines.megatron.rl import agreement, rl_batch
from engines.megatron.rl.agreement import known_tokens
from engines.megatron.rl.rl_batch import RlBatch, is_by_group
from engines.types import Status
from tests.unit.engines.megatron.test_rl_batch import sample

pytestmark = pytest.mark.unit

GROUPS, SIZE, LENGTH, RANKS = 24, 16, 32_768, 8
_OWN_PART = f"""
import sys; from pathlib import Path
import numpy as np
from engines.algorithms.spec import Algorithm
from engines.megatron.rl.agreement import known_tokens, mismatch_of
from engines.megatron.rl.rl_batch import RlBatch
from engines.types import Sample, Status
from engines.weight_versions import WeightVersions

def held(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

tokens, mask = np.ones({LENGTH}, np.int32), np.ones({LENGTH}, np.bool_)
logprobs, versions = np.full({LENGTH}, -0.5, np.float32), WeightVersions.of_runs([(3, {LENGTH})])

def sample(group, number):
    return Sample("p", "d", str(group), f"{{group}}/{{number}}", number, tokens, mask, logprobs,
                  versions, Status.COMPLETED, reward=float(number % 2))

def step(groups):
    samples = [sample(g, n) for g in range(groups) for n in range({SIZE})]
    batch = RlBatch.of(samples, Algorithm(), is_filled=False)
    own = np.arange(0, len(samples), {RANKS})
    batch.fill(own.tolist())
    targets = batch.targets(Algorithm(), None, None, own=own)
    ours = np.full(batch.learned.num_tokens, -0.5, np.float32)  # what all ranks gathered
    every = np.arange(len(samples))
    found = mismatch_of(known_tokens(batch, ours, every, 3), int(batch.num_trained.sum()))
    return targets, found

step(1)
Path("/proc/self/clear_refs").write_text("5")
before = held("VmRSS")
targets, found = step({GROUPS})
assert found["mismatch_max"] == 0
print(held("VmHWM") - before, int((targets.advantages != 0).sum()))
"""


def test_a_rank_holds_its_own_part_of_a_step_and_little_beside_it() -> None:
    """384 samples of 32k tokens, whole: of each, float64 numbers would take 100 bytes a token."""
    command = [sys.executable, "-W", "ignore", "-c", _OWN_PART]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    peak, num_own = map(int, done.stdout.split())
    own = GROUPS * SIZE * LENGTH // RANKS
    assert num_own == own - GROUPS * SIZE // RANKS, "but the first token of each"
    assert peak <= 8 * own + 128_000_000, "an engine's logprob and an advantage, and what is beside"


@pytest.mark.parametrize("kind", ["group", "rloo", "gigpo", "opo", "reinforce++-baseline"])
def test_groups_a_few_at_a_time_are_worth_what_the_whole_step_says(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    advantage = {"kind": kind, "whiten": False}
    algorithm = Algorithm.model_validate({"advantage": advantage, "truncated": "mask"})
    draw = np.random.default_rng(0)
    samples = [
        sample(f"{n // 4}-{n % 4}", float(draw.integers(3)), group=str(draw.integers(5)))
        for n in range(40)
    ]
    samples[7] = replace(samples[7], status=Status.TRUNCATED)
    batch = RlBatch.of(samples, algorithm)
    assert is_by_group(algorithm)
    whole = batch.targets(algorithm, None, None).advantages
    own = np.arange(1, len(batch.num_trained), 3)
    for tokens in (1, 20, 1000):
        monkeypatch.setattr(rl_batch, "BLOCK_TOKENS", tokens)
        part = RlBatch.of(samples, algorithm, is_filled=False)
        part.fill(own.tolist())
        targets = part.targets(algorithm, None, None, own=own)
        places = part.trained(own)
        assert targets.advantages[places].tolist() == whole[places].tolist()
        assert targets.old_logprobs[places].tolist() == batch.engine_logprobs[places].tolist()
        assert np.count_nonzero(targets.advantages) <= len(places)


def test_what_the_whole_step_decides_is_not_taken_apart() -> None:
    for fields in (
        {"preset": "reinforce++"},
        {"advantage": {"kind": "group", "whiten": True}},
        {"advantage": {"kind": "custom", "path": "m:f"}},
        {"correction": {"weight": {"level": "token"}}},
        {"kl": {"coef": 0.1, "place": "reward"}},
    ):
        assert not is_by_group(Algorithm.model_validate(fields)), fields


def test_the_mismatch_of_a_large_step_is_that_of_tokens_spread_evenly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agreement, "MISMATCH_TOKENS", 10)
    batch = RlBatch.of([sample(f"r{n}") for n in range(20)], Algorithm())
    ours = batch.engine_logprobs + np.arange(batch.learned.num_tokens, dtype=np.float32)
    every = np.arange(20)
    known = list(known_tokens(batch, ours, every, None))
    apart = np.concatenate([tokens.trainer - tokens.engine for tokens in known])
    found = agreement.mismatch_of(known, len(apart))
    assert found["mismatch_max"] == pytest.approx(apart[:: -(-len(apart) // 10)].max())


def lags(batch: RlBatch, version: int | None) -> list[int]:
    nothing = np.zeros(batch.learned.num_tokens, np.float32)
    known = known_tokens(batch, nothing, np.arange(len(batch.num_trained)), version)
    return [lag for tokens in known for lag in tokens.lags.tolist()]


def test_lags_are_counted_from_the_policys_version() -> None:
    batch = RlBatch.of([sample("a", version=3), sample("b", version=5)], Algorithm())
    assert lags(batch, 7) == [4, 4, 2, 2]
    # Not told: from the newest token.
    assert lags(batch, None) == [2, 2, 0, 0]
    assert batch.trained(np.array([1])).tolist() == [6, 7]
