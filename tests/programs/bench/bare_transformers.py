"""A training loop as a user of transformers writes it, to compare the Trainer with.

Padded rows, logits of all positions, torch's AdamW. It takes the micro-batches of the bare
Megatron-core loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.programs.bench.bare_megatron import Loss, MicroBatch


class TransformersLoop:
    """One model in training, in fp32."""

    def __init__(self, model: Path, lr: float) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model.train()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
        )

    def step(self, batches: list[MicroBatch], loss: Loss) -> float:
        """One optimizer step over these micro-batches; the mean loss."""
        units = sum(len(batch.pack.labels) for batch in batches)
        total = 0.0
        self._optimizer.zero_grad()
        for batch in batches:
            summed = loss(self._logits(batch), batch)
            (summed / units).backward()
            total += float(summed.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        return total / units

    def _logits(self, batch: MicroBatch) -> Tensor:
        """[R, V] of the rows that are trained."""
        positions = batch.pack.positions
        starts = (positions == 0).nonzero().flatten().tolist()
        pieces = batch.pack.input_ids[0].tensor_split(starts[1:])
        attended = [torch.ones_like(piece) for piece in pieces]
        logits = self._model(
            input_ids=pad_sequence(list(pieces), batch_first=True),
            attention_mask=pad_sequence(attended, batch_first=True),
        ).logits
        rows = batch.pack.rows
        sequence = (positions == 0).cumsum(0)[rows] - 1
        return logits[sequence, positions[rows]]
