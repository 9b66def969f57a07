"""What decides the speed and memory of a step: attention, and the loss of a large vocabulary."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.algorithms.linear_logprobs import linear_logprobs
from engines.megatron import device, kernels
from engines.megatron.attention import attend, by_block, has_varlen
from engines.megatron.parallel import Layout
from engines.megatron.spec import KernelChoice, Parallel
from engines.megatron.train.pack import FlatSequences, Pack, build_pack
from infra.cuda import has_cuda
from tests.programs.bench.rows import Row

VOCAB, HIDDEN = 152_000, 1_024
ROWS = {"cuda": 16_384, "cpu": 256}
PAIRS = 5
PASSES = {"cuda": 50, "cpu": 1}
LONG_TAIL = {
    "cuda": ([200] * 20 + [8192] + [200] * 20, 16, 8, 128),
    "cpu": ([20] * 4 + [300] + [33] * 4, 4, 2, 32),
}
"""lengths, heads, KV heads, head size"""
WINDOW = 100
"""tokens that one sees"""
FUSED: tuple[KernelChoice, KernelChoice] = ("plain", "auto" if has_cuda() else "fused")
"""a GPU may lack one of the fused kernels, and is measured with the others"""
GB = 1e9


@dataclass(slots=True)
class _Inputs:
    hidden_RH: Tensor
    weight_VH: Tensor
    labels_R: Tensor
    upstream_R: Tensor


def fused_loss() -> list[Row]:
    """Logprobs without the whole logits, there and back, with the kernels that a rank takes here,
    against log_softmax over all of them."""
    place = device.device()
    fused = kernels.choose("auto").compiled
    rows, dtype = ROWS[place.type], torch.bfloat16 if has_cuda() else torch.float32
    torch.manual_seed(0)
    given = _Inputs(
        torch.randn(rows, HIDDEN, device=place, dtype=dtype).requires_grad_(),
        (0.02 * torch.randn(VOCAB, HIDDEN, device=place)).to(dtype).requires_grad_(),
        torch.randint(0, VOCAB, (rows,), device=place),
        torch.randn(rows, device=place),
    )
    paths = {"fused": _fused, "plain": _plain}
    for path in paths.values():  # warms up
        _seconds(path, given)
    values: dict[str, Tensor] = {}
    peaks: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(PAIRS):
        for name, path in paths.items():
            given.hidden_RH.grad = given.weight_VH.grad = None
            if has_cuda():
                torch.cuda.reset_peak_memory_stats()
            seconds[name].append(_seconds(path, given))
            peaks[name] = torch.cuda.max_memory_allocated() if has_cuda() else 0
            values[name] = path(given).detach().float()
    ratio = statistics.median(
        a / b for a, b in zip(seconds["fused"], seconds["plain"], strict=True)
    )
    note = f"{rows} rows, hidden {HIDDEN}, vocabulary {VOCAB}, {dtype}"
    note += ", compiled" if fused else ""
    worst = float((values["fused"] - values["plain"]).abs().max())
    found = [
        Row("fused loss, logprobs against log_softmax", worst, "nats, max", 0.1, True, note),
        Row("fused loss, time against log_softmax", ratio, "ratio", 1.1, True, note),
    ]
    if has_cuda():
        less = peaks["fused"] / peaks["plain"]
        note += f"; {peaks['fused'] / GB:.1f} GB"
        found.append(
            Row("fused loss, peak memory against log_softmax", less, "ratio", 0.5, True, note)
        )
    return found


def fused_kernels() -> list[Row]:
    """SwiGLU and rotation as compiled against as they are written, in fp32 there and back, and
    which flash attention this device takes."""
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl

    from engines.megatron.rotary import Rotate, rotary_factors

    place = device.device()
    tokens, heads, size = (16_384, 16, 128) if has_cuda() else (256, 4, 32)
    torch.manual_seed(0)
    speeds = 10_000.0 ** -(torch.arange(size // 2, device=place) / (size // 2))
    factors = rotary_factors(torch.arange(tokens, device=place), speeds)
    turned = torch.randn(tokens, heads, size, device=place)
    gated = torch.randn(tokens, 6 * heads * size, device=place)

    def rotation(x: Tensor) -> Tensor:
        return Rotate.apply(x, *factors)

    def swiglu(x: Tensor) -> Tensor:
        if kernels.in_use().compiled:
            return bias_swiglu_impl(x, None)
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    rows: list[Row] = []
    for name, path, given in (("rotation", rotation, turned), ("SwiGLU", swiglu, gated)):
        found: dict[str, tuple[float, list[Tensor]]] = {}
        for kind in FUSED:
            kernels.choose(kind)
            found[kind] = _there_and_back(path, given)
        apart = max(
            float((a - b).abs().max()) for a, b in zip(*(x for _, x in found.values()), strict=True)
        )
        note = f"fp32, {list(given.shape)}"
        rows += [
            Row(f"{name}, fused against plain", apart, "largest difference", 1e-5, True, note),
            Row(
                f"{name}, time of fused",
                found[FUSED[1]][0] / found["plain"][0],
                "ratio",
                note=note,
            ),
        ]
    chosen = kernels.choose("auto")
    said = chosen.attention or "torch's own"
    note = "; ".join((f"flash attention: {said}", *chosen.missing))
    apart = kernels.attention_apart()
    rows.append(Row("attention, against fp32", apart, "of the largest", 0.02, True, note))
    kernels.choose("plain")
    return rows


def _there_and_back(path: Callable[[Tensor], Tensor], given: Tensor) -> tuple[float, list[Tensor]]:
    """Seconds of a pass, of many that the device is told at once; the output and the gradient."""
    given = given.detach().requires_grad_()
    seconds, values = 0.0, list[Tensor]()
    for passes in (1, PASSES[given.device.type]):  # the first warms up
        _settle()
        began = time.perf_counter()
        for _ in range(passes):
            out = path(given)
            values = [out.detach(), *torch.autograd.grad(out.square().mean(), given)]
        _settle()
        seconds = (time.perf_counter() - began) / passes
    return seconds, values


def packed_attention() -> list[Row]:
    """The attention that this device takes for a long-tailed pack, there and back, against the one
    that goes by block, in fp32; then within a sliding window."""
    place = device.device()
    lengths, heads, groups, size = LONG_TAIL[place.type]
    tokens = torch.arange(sum(lengths)).split(lengths)
    flat = FlatSequences.of([t.numpy() for t in tokens], [[1] * n for n in lengths])
    pack = build_pack(flat, list(range(len(lengths))), Layout(Parallel(), 0, 0, 0, 0, 0))
    torch.manual_seed(0)
    drawn = [
        torch.randn(sum(lengths), n, size, device=place) for n in (heads, groups, groups, heads)
    ]
    dtype = torch.bfloat16 if has_cuda() else torch.float32
    kernel = "varlen" if has_varlen(place, dtype, size) else "by block"
    note = f"{kernel}, {len(lengths)} sequences, longest {max(lengths)}, {heads} heads of {size}"
    rows = list[Row]()
    for window, name in ((None, "packed attention"), (WINDOW, "attention within a window")):
        found = [_attended(attend, pack, [x.to(dtype) for x in drawn], window)]
        found += [_attended(_by_block, pack, [x.to(dtype).float() for x in drawn], window)]
        apart = max(
            float((a.float() - b).abs().max()) / float(b.abs().max())
            for a, b in zip(*(values for _, values in found), strict=True)
        )
        ratio = found[0][0] / found[1][0]
        rows += [
            Row(f"{name}, against fp32 by block", apart, "of the largest", 0.02, True, note),
            Row(f"{name}, time against fp32 by block", ratio, "ratio", note=note),
        ]
    return rows


def _by_block(
    query: Tensor, key: Tensor, value: Tensor, pack: Pack, scale: float, window: int | None
) -> Tensor:
    return by_block(query, key, value, pack.blocks, pack.slots, scale, window)


def _attended(
    how: Callable[..., Tensor], pack: Pack, drawn: list[Tensor], window: int | None
) -> tuple[float, list[Tensor]]:
    """Seconds of the second of two passes; the output and the gradients."""
    *inputs, upstream = drawn
    inputs = [x.requires_grad_() for x in inputs]
    seconds, values = 0.0, list[Tensor]()
    for _ in range(2):
        _settle()
        began = time.perf_counter()
        out = how(*inputs, pack, inputs[0].size(-1) ** -0.5, window)
        values = [out.detach(), *torch.autograd.grad(out, inputs, upstream)]
        _settle()
        seconds = time.perf_counter() - began
    return seconds, values


def _fused(given: _Inputs) -> Tensor:
    fused = kernels.in_use().compiled
    return linear_logprobs(given.hidden_RH, given.weight_VH, given.labels_R, fused=fused)[0]


def _plain(given: _Inputs) -> Tensor:
    """The sum runs in fp32, as it has to be in bf16 for a vocabulary of this size."""
    logits_RV = (given.hidden_RH @ given.weight_VH.t()).float()
    return logits_RV.log_softmax(-1).gather(1, given.labels_R[:, None])[:, 0]


def _seconds(path: Callable[[_Inputs], Tensor], given: _Inputs) -> float:
    _settle()
    began = time.perf_counter()
    (path(given) * given.upstream_R).sum().backward()
    _settle()
    return time.perf_counter() - began


def _settle() -> None:
    if has_cuda():
        torch.cuda.synchronize()
