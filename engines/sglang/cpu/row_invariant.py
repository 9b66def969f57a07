"""Matrix products whose rows do not depend on the number of rows, for SGLang on CPU.

A product of few rows goes through kernels that add up in another order than those for more, so a
request's last bits would change with the batch it shares. Here a thin batch is filled up with zero
rows first; from `FEWEST` rows on every row has the same bits, which a test measures.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FEWEST = 16
"""rows of the thinnest product. Measured in fp32, for 64 to 4864 inputs of a layer: nothing changes
with the number of rows from 4 on with AVX2, from 16 on with AVX-512 on CPUs that also have AMX"""


def filled_up(
    product: Callable[[torch.Tensor], torch.Tensor], input_RK: torch.Tensor
) -> torch.Tensor:
    """`product(input)` as if the input had at least `FEWEST` rows."""
    rows = input_RK.shape[0]
    if rows >= FEWEST:
        return product(input_RK)
    padded = input_RK.new_zeros(FEWEST, *input_RK.shape[1:])
    padded[:rows] = input_RK
    return product(padded)[:rows]


def install() -> None:
    """Put it under SGLang's unquantized linear layers and its output layer."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    linear, head = UnquantizedLinearMethod.apply, LogitsProcessor._compute_lm_head

    def apply(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return filled_up(lambda rows: linear(self, layer, rows, bias), x)

    def compute_lm_head(
        self: Any,
        hidden_states: torch.Tensor,
        lm_head: Any,
        embedding_bias: Any = None,
        *,
        out: Any = None,
    ) -> torch.Tensor:
        # `out` is a buffer that saves memory on GPU only.
        return filled_up(lambda rows: head(self, rows, lm_head, embedding_bias), hidden_states)

    UnquantizedLinearMethod.apply = apply
    LogitsProcessor._compute_lm_head = compute_lm_head
