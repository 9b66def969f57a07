"""FP8 (e4m3) with a float32 scale for each block of 128 x 128 numbers, both ways: as DeepSeek
stores its models, and as SGLang serves them.

A matrix `NAME.weight` has its scales in `NAME.weight_scale_inv`: number (i, j) is what the block in
row i and column j of blocks is multiplied by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from engines.families.common.tensors import LAYERS, Size
from infra.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engines.families.common.family import ModelShape

BLOCK = 128
SCALES = "_scale_inv"
"""what the scales of a matrix add to its name"""
FROM_PLAIN_WORD = "from_plain"
FROM_PLAIN = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
    FROM_PLAIN_WORD: True,
}
"""what SGLang reads as `quantization_config` of config.json; with a word in it, for our hook and
for trainers, that matrices come from folders that are not quantised"""
_LARGEST = 448.0
"""of e4m3"""
_ROUTER = ".mlp.gate.weight"
_AT_ONCE = 1 << 24
"""numbers that are in float32 beside the matrix while it is quantised"""


def is_matrix_of_fp8(name: str, size: Size) -> bool:
    """Return whether SGLang has a tensor as FP8: the layers' matrices, and no router."""
    is_matrix = len(size) == 2 and name.startswith(f"{LAYERS}.") and name.endswith(".weight")
    return is_matrix and not name.endswith(_ROUTER)


def check_fp8(shape: ModelShape, tp: int) -> None:
    """Raise InputError if servers of `tp` ranks cannot have the model in FP8: each rank needs whole
    blocks, and of matrices that SGLang joins each its own."""
    if shape.latent is not None:
        raise InputError("no test shows that SGLang updates latent attention in FP8; leave it out")
    if shape.delta is not None:
        raise InputError("no test shows that SGLang updates delta nets in FP8; leave it out")
    if any(tensor.is_stacked for tensor in shape.expected_tensors()):
        raise InputError("SGLang takes no FP8 of experts that lie in one tensor; leave it out")
    keys = max(shape.kv_groups // tp, 1) * tp * shape.head_dim
    axes = {**shape.axes, "keys": keys}
    for tensor in shape.expected_tensors():
        if tensor.columns is None or not is_matrix_of_fp8(tensor.name, tensor.size(axes)):
            continue
        by_rows, by_columns = (1, tp) if tensor.is_split_by_inputs else (tp, 1)
        parts = [axes[rows] / by_rows for rows in tensor.rows]
        for part in (*parts, axes[tensor.columns] / by_columns):
            if part % BLOCK:
                raise InputError(
                    f"{tensor.name}: a server's rank has {part:g} of its rows or columns"
                    f" (tp_per_server: {tp}), and FP8 needs a multiple of {BLOCK}; lower"
                    " tp_per_server if that helps, or leave it out"
                )


def scales_size(size: Size) -> Size:
    return tuple(-(-length // BLOCK) for length in size)


def quantise(weight: Tensor, to: Tensor, scales: Tensor) -> None:
    """Write a matrix as FP8 to `to`, and its blocks' scales. The largest number of a block becomes
    448 or -448; what rounding changes is at most 1/16 of a number, or 1/1024 of the scale."""
    import torch
    from torch.nn.functional import pad

    rows, columns = weight.shape
    strip = max(_AT_ONCE // max(columns, 1) // BLOCK, 1) * BLOCK
    for at in range(0, rows, strip):
        part = weight[at : at + strip].float()
        padded = pad(part, (0, -columns % BLOCK, 0, -len(part) % BLOCK))
        blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        own = blocks.abs().amax((1, 3)).div_(_LARGEST).clamp_min_(torch.finfo(torch.float32).tiny)
        scaled = (blocks / own[:, None, :, None]).flatten(2).flatten(0, 1)
        to[at : at + strip].copy_(scaled[: len(part), :columns].to(torch.float8_e4m3fn))
        scales[at // BLOCK : at // BLOCK + len(own)].copy_(own)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix as FP8, and the scales of its blocks."""
    import torch

    to = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(scales_size(tuple(weight.shape)), device=weight.device)
    quantise(weight, to, scales)
    return to, scales


def in_fp8(
    weights: Iterable[tuple[str, Tensor]], device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder as servers take them: each matrix that is not FP8 yet is rounded to
    `dtype`, as a trainer has it, and quantised on the device."""
    for name, weight in weights:
        if is_matrix_of_fp8(name, tuple(weight.shape)) and weight.element_size() > 1:
            numbers, scales = quantised(weight.to(device, dtype))
            yield name, numbers
            yield name + SCALES, scales
        else:
            yield name, weight


def dequantised(
    weight: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype | None = None
) -> Tensor:
    """The matrix, in bfloat16 unless told otherwise, that FP8 numbers and the scales of their
    blocks stand for; the last block of a row or column may be smaller. Raises InputError if there
    is not one scale a block."""
    import torch

    if weight.dim() != 2:
        raise InputError(f"is FP8 of {weight.dim()} dimensions, and only matrices are read")
    (rows, columns), (high, wide) = weight.shape, block
    if tuple(scales.shape) != (-(-rows // high), -(-columns // wide)):
        raise InputError(
            f"scales of {tuple(scales.shape)} do not fit a matrix of {rows} x {columns} in blocks"
            f" of {high} x {wide}; copy the model again"
        )
    spread = scales.float().repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)
    return (weight.float() * spread[:, :columns]).to(dtype or torch.bfloat16)
