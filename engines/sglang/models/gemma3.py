"""SGLang's class of Gemma 3, its embeddings scaled as transformers and our trainer scale them.

SGLang multiplies with the square root of the hidden size as it is, 33.94 of a model with 1152. In
bf16 the model was trained with 34.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models import gemma3_causal


class Gemma3ForCausalLM(gemma3_causal.Gemma3ForCausalLM):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        round_scale(self.model.embed_tokens)


def round_scale(embedding: Any) -> None:
    """Round the scale to the nearest number of the weights' type."""
    exact = torch.tensor(embedding.embed_scale, dtype=embedding.weight.dtype)
    embedding.embed_scale = exact.item()
