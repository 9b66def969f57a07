"""Options of Megatron's optimizer and data parallelism that a recipe passes change no update."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.megatron.spec import Parallel, TrainerSettings
from infra.errors import InputError
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.megatron_ranks import LENGTHS, Ranks, TrainerArgs

pytestmark = pytest.mark.integration

STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("qwen3", folder)
    return folder


def trained(trainer: Any) -> dict[str, np.ndarray]:
    trainer.sft_steps([sequences(LENGTHS, seed) for seed in range(STEPS)])
    return {name: tensor.detach().numpy().copy() for name, tensor in trainer.hf_tensors()}


def args(model: Path, **options: Any) -> TrainerArgs:
    spec = TrainerSettings(micro_batch_tokens=96, megatron=options)
    return TrainerArgs(model, Parallel(dp=2), spec)


def test_overlapped_gradients_in_small_buckets_give_the_same_weights(
    ranks: Ranks, model: Path
) -> None:
    plain = ranks.run(trained, args(model))
    overlapped = ranks.run(trained, args(model, overlap_grad_reduce=True, bucket_size=5000))
    for name, tensor in plain.items():
        assert np.abs(overlapped[name] - tensor).max() < 1e-6, name


def test_offload_without_a_gpu_is_refused(ranks: Ranks, model: Path) -> None:
    offload = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    with pytest.raises(InputError, match="needs a GPU"):
        ranks.run(trained, args(model, **offload))


class NoStream:
    """What a CPU has for CUDA's streams: everything is done when it returns."""

    def wait_stream(self, other: object) -> None: ...

    def record_event(self) -> NoStream:
        return self

    def synchronize(self) -> None: ...

    def wait(self, stream: object) -> None: ...


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_an_offloaded_optimizer_makes_the_same_updates(
    fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's own offload, with parameters that say that they are on a GPU."""
    import torch
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    from engines.megatron.train.adam import FusedAdam
    from engines.megatron.train.optimizer import make_state

    class OnDevice(torch.nn.Parameter):
        is_cuda = True  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    monkeypatch.setattr(torch.cuda, "current_stream", NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=draw) for shape in ((8, 4), (16,), (4, 4))]
    plain = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    moved = [OnDevice(tensor.clone()) for tensor in start]
    settings: dict[str, Any] = {
        "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "bias_correction": True,
    }  # fmt: skip
    expected = FusedAdam(plain, **settings)
    offloaded = HybridDeviceOptimizer(
        [{"params": moved}],
        offload_fraction=fraction,
        cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=FusedAdam,
        param_update_in_fp32=True,
        pin_cpu_grads=False,
        overlap_cpu_optimizer_d2h_h2d=False,
        fused=True,
        **settings,
    )
    make_state(offloaded)
    assert len(offloaded.state) == len(moved)
    for _ in range(STEPS):
        for one, other in zip(plain, moved, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        expected.step()
        offloaded.step()
    for one, other in zip(plain, moved, strict=True):
        assert torch.equal(one, other.data)
        moments = offloaded.state[other]
        assert torch.equal(moments["exp_avg"], expected.state[one]["exp_avg"])
