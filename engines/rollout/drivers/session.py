"""TokenSession: the append-only token sequence through which the turns of a rollout go.

    prompt ids → turn (engine's ids, mask 1) → extend (tool output, mask 0) → turn → ... → Sample

Text is never re-tokenised: what the engine produced is what the trainer sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engines.rollout.protocols import Generate
from engines.types import Experts, Generation, Kept, Sampling, Tokens
from engines.weight_versions import NO_VERSION, WeightVersions
from infra.errors import EngineError


class TokenSession:
    """Tokens of a rollout, or of a branch of it. All per-token values always have the same length.

    Not to be shared between tasks: a second turn while one is under way raises RuntimeError.
    """

    def __init__(self, generate: Generate, prompt_ids: Sequence[int]) -> None:
        self._generate = generate
        self._prompt = np.array(prompt_ids, np.int32)
        self._produced = np.empty(0, np.int32)
        self._busy = False
        self.tokens: Tokens = np.empty(0, np.int32)
        self.loss_mask: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.logprobs: NDArray[np.float32] = np.empty(0, np.float32)
        self.weight_versions = WeightVersions()
        self._experts: list[Experts] = []
        self._kept: list[Kept] = []
        self._append_unsampled(self._prompt)

    @property
    def num_generated(self) -> int:
        return len(self._produced)

    @property
    def response_ids(self) -> Tokens:
        """Everything after the prompt: generated ids and tool output."""
        return self.tokens[len(self._prompt) :]

    @property
    def experts(self) -> Experts | None:
        """The experts of each token, zeros where the engine said none; None: it never did."""
        if not self._experts:
            return None
        known = np.concatenate(self._experts)
        return np.pad(known, ((0, len(self.tokens) - len(known)), (0, 0)))

    @property
    def kept(self) -> Kept | None:
        """Return what was kept where the engine sampled; None: it never said."""
        return np.concatenate(self._kept) if self._kept else None

    async def turn(self, sampling: Sampling) -> Generation:
        """Let the policy continue; its ids are appended with mask 1. Raises EngineError."""
        if self._busy:
            raise RuntimeError("a token session takes one turn at a time")
        self._busy = True
        try:
            sampling = replace(sampling, experts_from=sum(map(len, self._experts)))
            made = await self._generate(self.tokens, sampling)
        finally:
            self._busy = False
        _check(made, sampling, len(self.tokens))
        self._produced = np.concatenate([self._produced, made.token_ids])
        self._append(made.token_ids, True, made.logprobs, made.weight_versions)
        if made.experts is not None:
            self._experts.append(made.experts)
        if made.kept is not None:
            self._kept.append(made.kept)
        return made

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append ids that the policy did not write (tool output, the next turn's header)."""
        if self._busy:
            raise RuntimeError("a token session cannot grow while a turn is under way")
        self._append_unsampled(np.array(token_ids, np.int32))

    def cut(self, length: int) -> None:
        """Forget every token from position `length` on, as a turn that nobody got.

        Raises RuntimeError while a turn is under way, and for a position in the prompt.
        """
        if self._busy or length < len(self._prompt):
            raise RuntimeError("a token session is cut between turns, and after its prompt")
        forgotten = int(self.loss_mask[length:].sum())
        self._produced = self._produced[: len(self._produced) - forgotten]
        self.tokens, self.loss_mask = self.tokens[:length], self.loss_mask[:length]
        self.logprobs = self.logprobs[:length]
        if self._experts:
            self._experts = [np.concatenate(self._experts)[:length]]
        if (kept := self.kept) is not None:
            ends = np.append(np.flatnonzero(kept < 0), len(kept))
            self._kept = [kept[: ends[len(self._produced)]]]
        self.weight_versions = self.weight_versions.first(length)

    def _append_unsampled(self, ids: Tokens) -> None:
        versions = WeightVersions.of_runs([(NO_VERSION, len(ids))])
        self._append(ids, False, np.zeros(len(ids), np.float32), versions)

    def _append(
        self, ids: Tokens, trained: bool, logprobs: NDArray[np.float32], versions: WeightVersions
    ) -> None:
        self.tokens = np.concatenate([self.tokens, ids])
        self.loss_mask = np.concatenate([self.loss_mask, np.full(len(ids), trained)])
        self.logprobs = np.concatenate([self.logprobs, logprobs])
        self.weight_versions += versions

    def check(self, name: str) -> None:
        """Prove that the trained tokens are the engine's own.

        Raises EngineError when they are not: that is a bug in the code that changed the arrays.
        """
        same_prompt = np.array_equal(self.tokens[: len(self._prompt)], self._prompt)
        if not same_prompt or not np.array_equal(self.tokens[self.loss_mask], self._produced):
            raise EngineError(
                f"the tokens of rollout {name} differ from those the engine produced; "
                "refusing to train on them"
            )


def _check(generation: Generation, sampling: Sampling, length: int) -> None:
    """`length`: how many tokens the turn was asked with."""
    count = len(generation.token_ids)
    if len(generation.logprobs) != count or len(generation.weight_versions) != count:
        raise EngineError(
            f"the engine answered {count} ids with {len(generation.logprobs)} logprobs and "
            f"{len(generation.weight_versions)} weight versions"
        )
    read = length + count - 1 - sampling.experts_from
    if generation.experts is not None and len(generation.experts) != read:
        raise EngineError(
            f"the engine said experts of {len(generation.experts)} tokens; it read {read}"
        )
    kept = generation.kept
    if kept is not None and not np.array_equal(~kept[kept < 0], generation.token_ids):
        raise EngineError("the engine said what it kept for other tokens than it answered")
    if count > sampling.max_new_tokens:
        raise EngineError(
            f"the engine answered {count} ids; {sampling.max_new_tokens} were requested"
        )
    # `not <=` also catches NaN; a logprob may exceed 0 by rounding only
    if not bool((generation.logprobs <= 1e-3).all()):
        raise EngineError("the engine answered a logprob that is NaN or above 0")
