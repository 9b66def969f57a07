"""One rank of a policy in supervised training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engines.batching import TokenSequence
from engines.megatron.adapters import whole_adapters
from engines.megatron.hf.folder import HfWeights, write_adapters, write_folder
from engines.megatron.train.objectives import SftObjective
from engines.megatron.train.pack import FlatSequences
from engines.megatron.train.stopwatch import Stopwatch
from engines.megatron.train.training import Training


class SftTrainer(Training):
    """This process's share of one policy: trained on what it is shown, scored, exported."""

    def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._sft_step(batch) for batch in batches]

    def _sft_step(self, batch: Sequence[TokenSequence]) -> dict[str, float]:
        began = Stopwatch.start()
        flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
        indices = np.arange(len(batch))
        stats = self.forward_backward(flat, indices, SftObjective(_weights(batch)))
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **self.rates(flat, began),
        }

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of every token given those before it, at this temperature.

        Each list is as long as its sequence; the first entry, which nothing predicts, is 0.
        """
        flat = FlatSequences.of(sequences, [[1] * len(s) for s in sequences])
        whole = torch.from_numpy(self.score(flat, temperature))
        return [values.tolist() for values in whole.split(flat.lengths.tolist())]

    def score(
        self,
        flat: FlatSequences,
        temperature: float | NDArray[np.float32],
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Logprob of every trained token, as flat as the tokens; 0 for the others. No update. The
        temperature is all sequences', or each one's own.

        With `indices`, of these sequences only.
        """
        return self.read(flat, {"temperature": temperature}, indices)

    def export(self, folder: Path, source: Path) -> None:
        """Write a HF folder like `source` with the current weights; rank 0 writes. Adapters are
        merged into them, and also in a folder of their own, as `peft` reads them."""
        tensors = self.gathered_weights()
        if tensors:
            weights = HfWeights(source)
            if self.shape.is_tied and "lm_head.weight" in weights.file_of:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
            write_folder(folder, tensors, weights, self.shape)
        if self.spec.lora is not None:
            adapters = whole_adapters(self.network, self.layout)
            if self.layout.rank == 0:
                write_adapters(folder / "adapter", adapters, self.spec.lora)
        self.wait_for_export()


def _weights(batch: Sequence[TokenSequence]) -> NDArray[np.float32] | None:
    """None where all count the same: then nothing is multiplied."""
    weights = np.array([sequence.weight for sequence in batch], np.float32)
    return None if (weights == 1).all() else weights
