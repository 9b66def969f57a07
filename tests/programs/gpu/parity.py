"""The trainer on a GPU against the trainer on a CPU, both in fp32, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.step_inputs import StepInputs
from engines.types import Sample, Status
from infra.cuda import has_cuda
from tests.parts.sample_parts import sample_of
from tests.programs.bench.rows import Row
from tests.programs.gpu.random_model import SHALLOW, TINY, random_model
from tests.programs.gpu.settings import sequences, trainer

GROUP = 4
COUNT, LONGEST = 16, 384
RUN_S = 900


def measure() -> list[Row]:
    """The CPU's process is first: the GPU's learns from the logprobs that it found."""
    with tempfile.TemporaryDirectory(prefix="tr-") as name:
        folder = Path(name)
        size = SHALLOW if has_cuda() else TINY
        model = str(random_model(size))
        hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        for where, environment in (("cpu", hidden), ("device", dict(os.environ))):
            command = [sys.executable, "-m", __spec__.name, model, str(folder), where]
            subprocess.run(command, env=environment, check=True, timeout=RUN_S)
        cpu, gpu = (np.load(folder / f"{where}.npz") for where in ("cpu", "device"))
    note = f"Qwen3 {size.name}, random weights, {COUNT} sequences, fp32 without TF32"
    if not has_cuda():
        note = f"without a GPU: a CPU against itself; {note}"
    apart = float(np.abs(cpu["logprobs"] - gpu["logprobs"]).max())
    rows = [Row("logprobs, GPU against CPU", apart, "nats, max", 1e-3, True, note)]
    for name in ("sft_loss", "sft_norm", "rl_loss", "rl_norm", "next_loss"):
        apart = abs(float(gpu[name]) - float(cpu[name])) / max(abs(float(cpu[name])), 1e-3)
        rows.append(Row(f"{name}, GPU against CPU", apart, "relative", 1e-3, True, note))
    return rows


def _record(model: Path, folder: Path, where: str) -> None:
    """Score, one step of RL, two of SFT; what came out, as an npz."""
    import torch

    with trainer(model, "fp32") as trained:
        vocab = trained.shape.vocab
        drawn = sequences(vocab, COUNT, LONGEST)
        scored = trained.logprobs([s.tokens for s in drawn])
        found = np.concatenate([np.array(values) for values in scored])
        if where == "cpu":
            np.save(folder / "engine.npy", found)
        engine = np.load(folder / "engine.npy")
        inputs = StepInputs(samples_of(drawn, engine), Algorithm(), gate=False)
        rl = trained.rl_step(inputs).metrics
        sft, after = trained.sft_steps([drawn, drawn])
    assert torch.cuda.is_available() == has_cuda()
    np.savez(
        folder / f"{where}.npz",
        logprobs=found,
        rl_loss=rl["loss"],
        rl_norm=rl["grad_norm"],
        sft_loss=sft["loss"],
        sft_norm=sft["grad_norm"],
        next_loss=after["loss"],
    )


def samples_of(drawn: Sequence[TokenSequence], logprobs: np.ndarray) -> list[Sample]:
    """The sequences as groups of rollouts, every second of which is rewarded."""
    starts = np.cumsum([0] + [len(s.tokens) for s in drawn])
    return [
        sample_of(
            problem_id=f"p{i // GROUP}",
            domain="gpu",
            group_id=f"g{i // GROUP}",
            rollout_id=f"r{i}",
            sample_index=i % GROUP,
            tokens=s.tokens,
            loss_mask=s.loss_mask,
            logprobs=logprobs[start : start + len(s.tokens)].tolist(),
            weight_versions=[0 if m else -1 for m in s.loss_mask],
            status=Status.COMPLETED,
            reward=float(i % 2),
            token_budget=len(s.tokens),
        )
        for i, (s, start) in enumerate(zip(drawn, starts, strict=False))
    ]


if __name__ == "__main__":
    _record(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
