"""The most that one step takes on a rank beside what outlives it.

    forward, layer by layer -> loss -> backward, layer by layer -> embedding -> gradients summed

In reinforcement learning frozen models may score the batch before it. The largest of these moments
counts; memory of one serves the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engines.memory.activations import kept_values, micro_batches_in_flight, working_values
from engines.memory.loss import LossMemory, loss_memory
from engines.memory.model_size import ModelSize
from engines.memory.needs import TrainerNeeds
from engines.memory.weights import layers_of, rank_weights


def largest_moment(size: ModelSize, needs: TrainerNeeds, stage: int) -> float:
    """Bytes, on a rank of this pipeline stage."""
    moments = [_in_backward(size, needs, stage)]
    if stage == needs.layout.pp - 1:
        moments += _at_loss(size, needs, stage)
    if stage == 0:
        moments.append(_at_embedding(size, needs))
    if needs.place == "cpu":
        # gloo sums gradients over ranks in a copy of all of them; NCCL does it in their place.
        moments.append(rank_weights(size, needs.layout, stage).all * needs.state.gradient)
    return max(moments)


def _in_backward(size: ModelSize, needs: TrainerNeeds, stage: int) -> float:
    """In the last layer's backward pass, with all other values still there."""
    layers, again = layers_of(size, needs.layout), needs.recompute
    others = (micro_batches_in_flight(needs.layout, stage) - 1) * _waiting(size, needs)
    kept = again.whole_layers(layers) * _layer(size, needs) + _inputs(size, needs)
    working = working_values(size, again) * _value_of_all_tokens(needs)
    # The gradient of gate and up, until it is added to the others.
    matrix = 2 * size.ffn * size.hidden * needs.value_bytes / needs.layout.tp
    return others + kept + working + matrix + _pending(size, needs)


def _at_loss(size: ModelSize, needs: TrainerNeeds, stage: int) -> Iterator[float]:
    if size.has_value_head:
        return
    loss = _loss(size, needs)
    # With sequence parallelism the rows are chosen from the whole sequence.
    whole = needs.tokens * size.hidden * needs.value_bytes if needs.layout.tp > 1 else 0
    yield _waiting(size, needs) + whole + loss.backward
    if needs.copies:
        # The policy's own weights wait beside the frozen model's.
        own = rank_weights(size, needs.layout, stage).all * needs.value_bytes
        yield own + _layer(size, needs) + whole + loss.scoring


def _at_embedding(size: ModelSize, needs: TrainerNeeds) -> float:
    return _embedding(size, needs) + _pending(size, needs) + _layer(size, needs)


def _waiting(size: ModelSize, needs: TrainerNeeds) -> float:
    """What a micro-batch keeps between its passes."""
    layers, again = layers_of(size, needs.layout), needs.recompute
    return again.untouched_layers(layers) * _layer(size, needs) + _inputs(size, needs)


def _layer(size: ModelSize, needs: TrainerNeeds) -> float:
    values = kept_values(size, needs.recompute, needs.layout.cp)
    return values * _value_of_all_tokens(needs)


def _inputs(size: ModelSize, needs: TrainerNeeds) -> float:
    kept = needs.recompute.inputs_kept(layers_of(size, needs.layout))
    return kept * size.hidden * _value_of_all_tokens(needs)


def _value_of_all_tokens(needs: TrainerNeeds) -> float:
    """Bytes of one value of each of a rank's tokens, shared out over tensor-parallel ranks."""
    return needs.tokens * needs.value_bytes / needs.layout.tp


def _embedding(size: ModelSize, needs: TrainerNeeds) -> float:
    return size.vocab * size.hidden * needs.value_bytes / needs.layout.tp


def _pending(size: ModelSize, needs: TrainerNeeds) -> float:
    """The output layer's gradient waits for the embedding's where both are one weight."""
    return _embedding(size, needs) if size.is_tied and needs.layout.pp == 1 else 0.0


def _loss(size: ModelSize, needs: TrainerNeeds) -> LossMemory:
    """With every token trained on."""
    vocab = ceil(size.vocab / needs.layout.tp)
    return loss_memory(needs.tokens, size.hidden, vocab, needs.value_bytes, needs.place)
