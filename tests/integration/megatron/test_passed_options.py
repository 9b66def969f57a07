"""What a recipe passes to Megatron changes how it trains, and neither the model nor its updates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.megatron.options import ALLOWED, OF_ROUTERS
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
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


PP2, DP2 = Parallel(pp=2), Parallel(dp=2)
RECOMPUTE = {"recompute_granularity": "selective"}
WHOLE_LAYERS = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
BLOCK = WHOLE_LAYERS | {"recompute_method": "block"}
OVERLAP = {"overlap_grad_reduce": True}
SHOWN: dict[str, tuple[Parallel, str, dict[str, Any], dict[str, Any]]] = {
    "recompute_granularity": (Parallel(), "operations", {}, RECOMPUTE),
    "recompute_modules": (
        Parallel(), "operations", RECOMPUTE, RECOMPUTE | {"recompute_modules": ["mlp"]},
    ),
    "recompute_method": (
        Parallel(), "operations", WHOLE_LAYERS, BLOCK,
    ),
    "recompute_num_layers": (
        Parallel(), "operations", BLOCK, BLOCK | {"recompute_num_layers": 2},
    ),
    "bias_activation_fusion": (Parallel(), "operations", {}, {"bias_activation_fusion": True}),
    "overlap_grad_reduce": (DP2, "reduced in backward", {}, OVERLAP),
    "bucket_size": (DP2, "buckets", OVERLAP, OVERLAP | {"bucket_size": 5000}),
    "pad_buckets_for_high_nccl_busbw": (
        DP2, "gradients", {}, {"pad_buckets_for_high_nccl_busbw": True},
    ),
    "num_layers_in_first_pipeline_stage": (
        PP2, "layers", {}, {"num_layers_in_first_pipeline_stage": 1},
    ),
    "num_layers_in_last_pipeline_stage": (
        PP2, "layers", {}, {"num_layers_in_last_pipeline_stage": 1},
    ),
    "deallocate_pipeline_outputs": (
        PP2, "outputs freed", {}, {"deallocate_pipeline_outputs": True},
    ),
}  # fmt: skip
"""option -> layout, what it changes, and options without and with it"""
OF_LAYERS = ("silu.default", "mm.default", "mul.Tensor")
"""operations that are counted: a pass over all weights may take another way each time"""


def observed(trainer: Any) -> dict[str, Any]:
    """How one training step went, and the model's logprobs before it and after three."""
    from collections import Counter

    from megatron.core.distributed import param_and_grad_buffer
    from megatron.core.pipeline_parallel import schedules
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = Counter[str]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.calls[str(func)] += 1
            return func(*args, **(kwargs or {}))

    tokens = [s.tokens for s in sequences([20, 33], 7)]
    before, again = trainer.logprobs(tokens), trainer.logprobs(tokens)
    freed, early = [], []
    free, group = schedules.deallocate_output_tensor, param_and_grad_buffer._ParamAndGradBucketGroup
    start = group.start_grad_sync

    def freeing(out: Any, wanted: bool = False) -> None:
        free(out, wanted)
        if out is not None:
            freed.append(out.numel())

    def starting(self: Any, *args: Any, **kwargs: Any) -> None:
        early.append(self.ddp_config.overlap_grad_reduce)
        start(self, *args, **kwargs)

    schedules.deallocate_output_tensor, group.start_grad_sync = freeing, starting
    try:
        with Counted() as counted:
            trainer.sft_steps([sequences(LENGTHS, 0)])
    finally:
        schedules.deallocate_output_tensor, group.start_grad_sync = free, start
    buffers = trainer._flat_memory
    seen = {
        "operations": sum(counted.calls[f"aten.{name}"] for name in OF_LAYERS),
        "reduced in backward": any(early),
        "buckets": sum(len(buffer.buckets) for buffer in buffers),
        "gradients": sum(buffer.grad_data.numel() for buffer in buffers),
        "gradient type": {buffer.grad_data.dtype for buffer in buffers},
        "layers": len(trainer.policy.decoder.layers),
        "outputs freed": sum(size == 1 for size in freed),
    }
    trainer.sft_steps([sequences(LENGTHS, seed) for seed in range(1, STEPS)])
    weights = {name: x.detach().float().numpy().copy() for name, x in trainer.hf_tensors()}
    return {"before": before, "again": again, "seen": seen, "weights": weights}


def true_logprobs(model: Path, tokens: list[int]) -> list[float]:
    """By transformers, of each token but the first."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model).float()(ids).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()


Observe = Callable[[Parallel, TrainerSettings], dict[str, Any]]


@pytest.fixture(scope="module")
def observe(ranks: Ranks, model: Path) -> Observe:
    """`observed` of each layout and settings, once: many options are compared with the same."""
    known: dict[tuple[Parallel, str], dict[str, Any]] = {}

    def found(parallel: Parallel, spec: TrainerSettings) -> dict[str, Any]:
        key = parallel, spec.model_dump_json()  # a dict of options has no hash
        if key not in known:
            known[key] = ranks.run(observed, TrainerArgs(model, parallel, spec))
        return known[key]

    return found


@pytest.mark.parametrize("name", SHOWN)
def test_an_accepted_option_changes_something_and_not_the_model(
    name: str, observe: Observe, model: Path
) -> None:
    parallel, what, without, options = SHOWN[name]
    specs = [TrainerSettings(micro_batch_tokens=96, megatron=each) for each in (without, options)]
    one, other = (observe(parallel, spec) for spec in specs)
    assert other["seen"][what] != one["seen"][what]
    assert other["again"] == other["before"]
    for ours, s in zip(other["before"], sequences([20, 33], 7), strict=True):
        assert ours[1:] == pytest.approx(true_logprobs(model, s.tokens), abs=1e-5)
    for key, tensor in one["weights"].items():
        assert np.abs(other["weights"][key] - tensor).max() < 1e-5, key


def test_fused_kernels_give_the_numbers_of_plain_ones(observe: Observe) -> None:
    """Compiled for the CPU here, from the code that is compiled for a GPU: that takes seconds."""
    plain, fused = (
        observe(Parallel(), TrainerSettings(micro_batch_tokens=96, kernels=kind))
        for kind in ("plain", "fused")
    )
    assert fused["seen"]["operations"] != plain["seen"]["operations"]
    for ours, theirs in zip(fused["before"], plain["before"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    for key, tensor in plain["weights"].items():
        assert np.abs(fused["weights"][key] - tensor).max() < 1e-5, key


def test_gradients_are_summed_in_half_precision_where_that_is_asked_for(
    ranks: Ranks, model: Path
) -> None:
    import torch

    spec = TrainerSettings(
        micro_batch_tokens=96, precision="bf16", megatron={"grad_reduce_in_fp32": False}
    )
    found = ranks.run(observed, TrainerArgs(model, DP2, spec))
    assert found["seen"]["gradient type"] == {torch.bfloat16}
    assert found["again"] == found["before"]
    for ours, s in zip(found["before"], sequences([20, 33], 7), strict=True):
        assert ours[1:] == pytest.approx(true_logprobs(model, s.tokens), abs=0.05)


def test_every_accepted_option_is_shown_to_change_something() -> None:
    shown = {*SHOWN, *OFFLOAD, *OF_ROUTERS, "grad_reduce_in_fp32"}
    assert shown == ALLOWED, "those of routers are shown in test_families.py"


OFFLOAD: dict[str, Any] = {
    "use_precision_aware_optimizer": True,
    "optimizer_cpu_offload": True,
    "optimizer_offload_fraction": 0.25,
    "overlap_cpu_optimizer_d2h_h2d": True,
    "pin_cpu_grads": False,
    "pin_cpu_params": False,
}
"""need a GPU; without the first the second is refused"""


def test_offload_reaches_megatrons_own_optimizer(ranks: Ranks, model: Path) -> None:
    given = ranks.run(offload_given, args(model), OFFLOAD)
    assert given["offload_fraction"] == OFFLOAD["optimizer_offload_fraction"]
    for name in ("overlap_cpu_optimizer_d2h_h2d", "pin_cpu_grads", "pin_cpu_params"):
        assert given[name] == OFFLOAD[name]


def offload_given(trainer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What Megatron makes its optimizer with, as if there was a GPU."""
    import torch
    from megatron.core import optimizer as megatron

    from engines.megatron import device
    from engines.megatron.train.optimizer import build_optimizer

    class Made(Exception):
        pass

    seen: dict[str, Any] = {}

    def made(_: Any, **settings: Any) -> None:
        seen.update({name: value for name, value in settings.items() if "fused" not in name})
        raise Made

    own, has_cuda = megatron.HybridDeviceOptimizer, device.has_cuda
    megatron.HybridDeviceOptimizer, device.has_cuda = made, lambda: True
    try:
        build_optimizer(trainer._ddp, Optimizer(lr=1e-3), torch.float32, options)
    except Made:
        pass
    finally:
        megatron.HybridDeviceOptimizer, device.has_cuda = own, has_cuda
    return seen


def test_offload_without_a_gpu_is_refused(ranks: Ranks, model: Path) -> None:
    offload = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    spec = TrainerSettings(precision="bf16", megatron=offload)
    with pytest.raises(InputError, match="needs a GPU"):
        ranks.run(trained, TrainerArgs(model, DP2, spec))


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
        is_cuda = True

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


def test_offload_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    """Half of the parameters are stepped on the host, the others on the device."""
    found = ranks.run(resumed, TrainerArgs(model, Parallel()), model, tmp_path)
    for name, tensor in found["whole"].items():
        assert np.array_equal(found["resumed"][name], tensor), name


def resumed(_: Any, model: Path, folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Optimizer weights in fp32 after eight steps, without and with a checkpoint after three, of
    optimizers that take this CPU for a GPU."""
    from types import SimpleNamespace

    import torch
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    from engines.megatron import device
    from engines.megatron.rl.trainer import RlTrainer
    from engines.megatron.train import optimizer
    from engines.megatron.train.optimizer import optimizer_parts

    stock = HybridDeviceOptimizer._get_sub_optimizer_param_groups

    def split(self: Any, fraction: float) -> tuple[Any, ...]:
        every, *_, in_fp32 = stock(self, fraction)
        own = {copy: param for param, copy in in_fp32.items()}
        there, here = (
            [{**group, "params": group["params"][first::2]} for group in every] for first in (0, 1)
        )
        copies = [param for group in here for param in group["params"]]
        groups = ([g for g in part if g["params"]] for part in (here, there))
        return *groups, {own[c]: c for c in copies}, {c: own[c] for c in copies}, in_fp32

    def trainer() -> Any:
        spec = TrainerSettings(precision="bf16", megatron=OFFLOAD, micro_batch_tokens=96)
        settings = Optimizer(lr=1e-2, beta2=0.999, warmup_steps=1)
        return RlTrainer(spec, settings, Parallel(), model, 5, 10)

    def trained(trainer: Any, seeds: range) -> dict[str, np.ndarray]:
        trainer.sft_steps([sequences(LENGTHS, seed) for seed in seeds])
        (part,) = optimizer_parts(trainer._optimizer)
        states = [part.optimizer.state[p] for g in part.optimizer.param_groups for p in g["params"]]
        return {
            str(n): each["master_param"].detach().numpy().copy() for n, each in enumerate(states)
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", NoStream)
        patch.setattr(torch.cuda, "Stream", NoStream)
        patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        patch.setattr(HybridDeviceOptimizer, "_get_sub_optimizer_param_groups", split)
        patch.setattr(HybridDeviceOptimizer, "_move_new_state_to_right_device", lambda _: None)
        a_gpu = SimpleNamespace(has_cuda=lambda: True, cuda_means_cpu=device.cuda_means_cpu)
        patch.setattr(optimizer, "device", a_gpu)
        first, second = trainer(), trainer()
        trained(first, range(3))
        first.save(folder / "saved")
        second.load(folder / "saved")
        return {
            name: trained(x, range(3, 8)) for name, x in (("whole", first), ("resumed", second))
        }
