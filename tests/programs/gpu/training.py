"""What the trainer does on this device: speed, memory, bf16, recomputation, checkpoints, sleep."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from engines.batching import TokenSequence
from engines.devices.units import TRAINER_PARTS
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.train.pack import FlatSequences
from infra.cuda import has_cuda
from tests.programs.bench.process_memory import process_memory
from tests.programs.bench.rows import Row
from tests.programs.gpu.random_model import WIDE, Size, random_model
from tests.programs.gpu.settings import sequences, size_here, trainer

STEPS = 6
RECOMPUTE: dict[str, dict[str, Any]] = {
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
BUILD = Path("build")
GB = 1e9


def speed() -> list[Row]:
    """Steps of supervised training in bf16 (fp32 on a CPU); the first two warm up."""
    return _speed(size_here())


def wide_speed() -> list[Row]:
    """The same of layers as wide as an 8B model's."""
    return _speed(WIDE)


def _speed(size: Size) -> list[Row]:
    with trainer(random_model(size), _fast()) as trained:
        batches = [sequences(size.vocab, *_load(), seed=n) for n in range(STEPS + 2)]
        trained.sft_steps(batches[:2])
        _reset_peak()
        steps = trained.sft_steps(batches[2:])
        peak = _peak()
        tokens = statistics.mean(step["tokens"] for step in steps)
        note = f"Qwen3 {size.name}, {_fast()}, {tokens:.0f} tokens a step"

        def median(name: str) -> float:
            return statistics.median(step[name] for step in steps)

        rows = [
            Row("training speed", median("tokens_per_s"), "tokens/s", note=note),
            Row("MFU of the measured peak", median("mfu"), "ratio", note=note),
        ]
        if "mfu_stated" in steps[0]:
            stated = median("mfu_stated")
            rows.append(Row("MFU of the data sheet's peak", stated, "ratio", note=note))
        rows.append(Row("peak memory of a step", peak / GB, "GB", note=note))
        if has_cuda():
            kernels = BUILD / f"gpu-kernels-{size.name.replace(' ', '-')}.txt"
            slow = _share_of_slow_products(lambda: trained.sft_steps([batches[2]]), kernels)
            what = "products that cuBLAS has no fast kernel for"
            rows.append(Row(what, slow, "of the time", 0.02, True, kernels.name))
        return rows


def _share_of_slow_products(work: Callable[[], Any], table: Path) -> float:
    """Of the device's time; each kernel's goes to `table`.

    Rows that begin at no multiple of 16 bytes make cuBLAS fall back to kernels for earlier chips,
    which say so in their names.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
    found = profiled.key_averages()
    table.write_text(found.table(sort_by="self_device_time_total", row_limit=40))
    times = {event.key: event.self_device_time_total for event in found}
    slow = sum(time for name, time in times.items() if re.search(r"gemm.*_align[124]\b", name))
    return slow / sum(times.values())


def low_precision() -> list[Row]:
    """bf16 against fp32 on this device, on the tokens of long-tailed sequences."""
    size, model = _model()
    drawn = sequences(size.vocab, 16, 384)
    found: list[np.ndarray] = []
    for precision in ("fp32", "bf16"):
        with trainer(model, precision) as trained:
            scored = trained.logprobs([s.tokens for s in drawn])
        found.append(np.concatenate([np.array(values[1:]) for values in scored]))
    apart = np.abs(found[0] - found[1])
    note = f"Qwen3 {size.name}, random weights, {len(apart)} tokens"
    return [
        Row("logprobs, bf16 against fp32", float(apart.mean()), "nats, mean", 0.02, True, note),
        Row("logprobs, bf16 against fp32, worst", float(apart.max()), "nats", note=note),
    ]


def memory() -> list[Row]:
    """The largest moment of a step, against what `check` predicts of it."""
    from engines.families.common.registry import model_shape
    from engines.megatron.spec import Parallel
    from engines.memory.model_size import size_of
    from engines.memory.trainer_memory import TrainerNeeds, trainer_memory

    tokens = 8_192 if has_cuda() else 1_024
    size, model = _model()
    with trainer(model, _fast()) as trained:
        # As many tokens as a micro-batch has at most, in sequences that fill it.
        batch = sequences(size.vocab, tokens // 256, 257 * 6, seed=1)
        batch = [TokenSequence((s.tokens * 256)[:256], [0] + [1] * 255) for s in batch]
        trained.sft_steps([batch])
        _reset_peak()
        trained.sft_steps([batch])
        peak = _peak()
    needs = TrainerNeeds(Parallel(), _fast(), tokens, place="cuda" if has_cuda() else "cpu")
    predicted = trainer_memory(size_of(model_shape(size.config)), needs)
    expected = predicted.total - predicted.runtime
    note = f"Qwen3 {size.name}, {_fast()}, {tokens} tokens; predicted {expected / GB:.3f} GB"
    if not has_cuda():
        note += "; on a CPU the peak counts the process"
    bound = 1.15 if has_cuda() else None
    return [
        Row(
            "memory of a step, against what is predicted",
            peak / expected,
            "ratio",
            bound,
            True,
            note,
        )
    ]


def recomputation() -> list[Row]:
    """Loss, gradient norm and memory with activations computed twice, against kept ones; beside it
    what two steps differ by that keep them, for attention's gradients are added up in any order."""
    size, model = _model()
    batch = sequences(size.vocab, *_load())
    kept, most = _one_step(model, batch, {})
    found = {name: _one_step(model, batch, asked) for name, asked in RECOMPUTE.items()}
    again = _apart(_one_step(model, batch, {})[0], kept)
    rows: list[Row] = []
    for name, (metrics, peak) in found.items():
        note = f"Qwen3 {size.name}, {_fast()}; without it, twice: {again:.1g}"
        if has_cuda():
            note += f"; {peak / most:.2f} of the memory of a step that keeps them"
        worst = _apart(metrics, kept)
        rows.append(Row(f"recompute {name}, loss and norm", worst, "relative", 1e-4, True, note))
    return rows


def _apart(one: dict[str, float], other: dict[str, float]) -> float:
    return max(abs(one[k] - other[k]) / abs(other[k]) for k in ("loss", "grad_norm"))


def _one_step(model: Path, batch: list[Any], asked: dict[str, Any]) -> tuple[dict[str, float], int]:
    """The first step's metrics, of equal weights, and the memory of a second, for the optimizer's
    state comes with the first."""
    with trainer(model, _fast(), asked) as trained:
        (metrics,) = trained.sft_steps([batch])
        _reset_peak()
        before = _held()
        trained.sft_steps([batch])
        return metrics, max(1, _peak() - before)


def saving() -> list[Row]:
    """A checkpoint: the same bits again, and what it takes of memory and time."""
    size, model = _model()
    with tempfile.TemporaryDirectory(prefix="tr-") as folder:
        with trainer(model, _fast()) as trained:
            trained.sft_steps([sequences(size.vocab, 4, 64)])
            state = _bytes_of(trained)
            before, host = _held(), process_memory("VmRSS")
            _reset_peak()
            seconds = _seconds(lambda: trained.save(Path(folder) / "saved"))
            device_peak = (_peak() - before) / state
            host_peak = (process_memory("VmHWM") - host) / state
            wanted = _copies(trained)
        with trainer(model, _fast()) as trained:
            loading = _seconds(lambda: trained.load(Path(folder) / "saved"))
            equal = _equal(trained, wanted)
    note = f"Qwen3 {size.name}, {_fast()}, state of {state / GB:.3f} GB"
    if has_cuda():
        note += f"; on the device {device_peak:.2f} of it"
    return [
        Row("checkpoint, saved and loaded: equal tensors", equal, "share", 1.0, note=note),
        Row("checkpoint, host memory at its peak", host_peak, "of the state", note=note),
        Row("checkpoint, saving", seconds, "s", note=note),
        Row("checkpoint, loading", loading, "s", note=note),
    ]


def sleeping() -> list[Row]:
    """Sleep, then wake, the weights first as for a publish: what the device gets back, and whether
    every tensor is as it was."""
    size, model = _model()
    with trainer(model, _fast()) as trained:
        trained.sft_steps([sequences(size.vocab, 4, 64)])
        state = _bytes_of(trained)
        kept = sum(memory.nbytes() for memory in _memories(trained))
        host, before = process_memory("VmRSS"), _held()
        asleep = _seconds(lambda: trained.hold(()))
        taken = (process_memory("VmRSS") - host) / kept
        given_back = (before - _held()) / state
        trained.hold(TRAINER_PARTS)
        wanted = _copies(trained)
        again = _seconds(lambda: trained.hold(()))
        weights = _seconds(lambda: trained.hold({"weights"}))
        awake = _seconds(lambda: trained.hold(TRAINER_PARTS))
        equal = _equal(trained, wanted)
    note = f"Qwen3 {size.name}, {_fast()}, state of {state / GB:.3f} GB"
    return [
        Row("sleep: memory given back", given_back, "of the state", 0.8, note=note),
        Row("wake: equal tensors", equal, "share", 1.0, note=note),
        *(
            [Row("sleep: host memory taken", taken, "of what is kept", 1.05, True, note)]
            if has_cuda()
            else []
        ),
        Row("sleep, the first time", asleep, "s", note=note),
        Row("sleep, again", again, "s", note=f"{note}; {kept / again / GB:.1f} GB/s"),
        Row("wake, weights", weights, "s", note=note),
        Row("wake, the rest", awake, "s", note=note),
    ]


def scoring() -> list[Row]:
    """Packs of many sequences against each sequence by itself."""
    size, model = _model()
    with trainer(model, "fp32") as trained:
        drawn = sequences(size.vocab, 24, 256)
        packed = trained.score(_flat(drawn), 1.0)
        alone = np.concatenate([trained.score(_flat([s]), 1.0) for s in drawn])
    worst = float(np.abs(packed - alone).max())
    note = f"Qwen3 {size.name}, fp32, {len(drawn)} sequences"
    return [Row("logprobs, packed against one by one", worst, "nats, max", 1e-3, True, note)]


def _flat(drawn: list[Any]) -> FlatSequences:
    return FlatSequences.of([s.tokens for s in drawn], [s.loss_mask for s in drawn])


def _model() -> tuple[Size, Path]:
    return size_here(), random_model(size_here())


def _fast() -> Literal["fp32", "bf16"]:
    return "bf16" if has_cuda() else "fp32"


def _load() -> tuple[int, int]:
    """Sequences of a step, and the longest."""
    return (64, 4096) if has_cuda() else (32, 256)


def _copies(trained: RlTrainer) -> list[Tensor]:
    return [tensor.detach().cpu().clone() for tensor in _kept(trained)]


def _kept(trained: RlTrainer) -> list[Tensor]:
    """What outlives a step, except gradients; several may share memory."""
    parts = sorted(TRAINER_PARTS - {"gradients"})
    return [tensor for part in parts for tensor in trained.tensors_of(part)]


def _equal(trained: RlTrainer, wanted: list[Tensor]) -> float:
    """Share of the tensors that have the same bits."""
    pairs = list(zip(_kept(trained), wanted, strict=True))
    return sum(torch.equal(now.cpu(), before) for now, before in pairs) / len(pairs)


def _memories(trained: RlTrainer) -> list[torch.UntypedStorage]:
    """Of what outlives a step but gradients, each once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in _kept(trained)}
    return list(found.values())


def _bytes_of(trained: RlTrainer) -> int:
    """Of what outlives a step, gradients included, each memory once."""
    gradients = sum(p.numel() * (4 if p.requires_grad else 0) for p in trained.network.parameters())
    return sum(memory.nbytes() for memory in _memories(trained)) + gradients


def _seconds(work: Callable[[], Any]) -> float:
    from engines.megatron.train.speed import Stopwatch

    _settle()
    began = Stopwatch.start()
    work()
    _settle()
    return began.seconds


def _settle() -> None:
    if has_cuda():
        torch.cuda.synchronize()


def _reset_peak() -> None:
    """On a CPU the peak of a process is never forgotten: it counts from its start."""
    if has_cuda():
        torch.cuda.reset_peak_memory_stats()


def _held() -> int:
    return torch.cuda.memory_allocated() if has_cuda() else process_memory("VmRSS")


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if has_cuda() else process_memory("VmHWM")
