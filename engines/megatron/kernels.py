"""Which fused kernels a rank computes with: what its device has, unless the recipe says otherwise.

    compiled    SwiGLU and rotation, each one kernel that torch.compile makes (Triton on a GPU)
    attention   flash attention 4, where the lock has it and the chip is of its generations; else
                the flash attention that torch brings

They give the numbers of the plain ones but for rounding. On a CPU `auto` is plain: to compile takes
longer than a small run.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from engines.megatron.spec import KernelChoice
from infra.cuda import has_cuda, launcher_problem
from infra.errors import InputError

_FLASH_4 = "FA4"
_GENERATIONS = (9, 10)
"""of chips that it has kernels for: Hopper and Blackwell"""
_APART = 0.02
"""of the largest value: bf16 rounds each to 0.004 of itself"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    compiled: bool = False
    attention: str = ""
    """a flash attention that takes the place of torch's own; empty: none does"""
    missing: tuple[str, ...] = ()
    """fused ones that are not there, each with the reason"""


_in_use = Kernels()


def in_use() -> Kernels:
    """Return what this process computes with; plain before the first `choose`."""
    return _in_use


def choose(wanted: KernelChoice) -> Kernels:
    """Compute with these from now on. Raises InputError if `fused` ones are missing."""
    global _in_use
    found = Kernels() if wanted == "plain" else _found(asked=wanted == "fused")
    if wanted == "fused" and found.missing:
        raise InputError(
            f"trainer.kernels is `fused`, and here is no {'; no '.join(found.missing)}: write"
            " `auto` to compute with what there is, or `plain`"
        )
    if found.missing and has_cuda():
        _log.warning("computing without %s", " and ".join(found.missing))
    if not found.attention and torch.cuda.is_initialized():
        _torch_attention()
    _in_use = found
    return found


def _found(*, asked: bool) -> Kernels:
    if not has_cuda():
        if not asked:
            return Kernels()
        there = shutil.which("g++") is not None
        return Kernels(there, missing=() if there else ("torch.compile (g++ is not installed)",))
    missing = list[str]()
    lacks = launcher_problem() if find_spec("triton") is not None else "triton is not installed"
    if lacks:
        missing.append(f"torch.compile ({lacks})")
    attention, why = _flash_4()
    if why:
        missing.append(f"flash attention 4 ({why})")
    return Kernels(not lacks, attention, tuple(missing))


def _flash_4() -> tuple[str, str]:
    """Return the kernel's name once it is in place, or nothing and what is wrong; nothing at all
    for other chips.

    It is tried: a kernel of a new generation may not compile here, or compute something else.
    """
    if torch.cuda.get_device_capability()[0] not in _GENERATIONS:
        return "", ""
    from torch.nn import attention

    activate: Any = getattr(attention, "activate_flash_attention_impl", None)
    if activate is None:
        return "", f"torch {torch.__version__} knows none"
    try:
        activate(_FLASH_4)
        apart = attention_apart()
    except Exception as error:  # whatever a compiler of kernels raises
        _torch_attention()
        return "", f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
    if not apart <= _APART:
        _torch_attention()
        return "", f"it is {apart:.2g} of the largest value away from fp32"
    return _FLASH_4, ""


def _torch_attention() -> None:
    from torch.nn import attention

    if restore := getattr(attention, "restore_flash_attention_impl", None):
        restore(_raise_warn=False)


def attention_apart() -> float:
    """Return how far the attention of this device is from fp32, forward and backward, of the
    largest value: for a small pack in bf16 on the GPU."""
    from engines.megatron import device
    from engines.megatron.attention import attend, by_block
    from engines.megatron.parallel import Layout
    from engines.megatron.spec import Parallel
    from engines.megatron.train.pack import FlatSequences, build_pack

    lengths, heads, groups, size = [70, 3, 300, 70], 4, 2, 128
    flat = FlatSequences.of([[0] * n for n in lengths], [[1] * n for n in lengths])
    pack = build_pack(flat, list(range(len(lengths))), Layout(Parallel(), 0, 0, 0, 0, 0))
    place = device.device()
    random = torch.Generator(place).manual_seed(0)
    drawn = [
        torch.randn(sum(lengths), n, size, device=place, generator=random).bfloat16()
        for n in (heads, groups, groups, heads)
    ]

    def worked(given: list[Tensor], *, plain: bool) -> list[Tensor]:
        query, key, value, upstream = (x.detach().requires_grad_() for x in given)
        scale = size**-0.5
        if plain:
            out = by_block(query, key, value, pack.blocks, pack.slots, scale)
        else:
            out = attend(query, key, value, pack, scale)
        return [out.detach(), *torch.autograd.grad(out, (query, key, value), upstream.detach())]

    pairs = zip(
        worked(drawn, plain=False), worked([x.float() for x in drawn], plain=True), strict=True
    )
    return max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in pairs)
