"""TokenSession: the append-only token sequence through which every turn of a rollout goes.

    prompt ids → turn (engine's ids, mask 1) → extend (tool output, mask 0) → turn → ... → Sample

Text is never re-tokenised: what the engine produced is what the trainer sees.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.rollout.protocols import Generate
from engines.types import Generation, Sample, Sampling, Status
from infra.errors import EngineError


class TokenSession:
    """One rollout's tokens. All four lists always have the same length.

    Not to be shared between tasks: a second turn while one is under way raises RuntimeError.
    """

    def __init__(self, generate: Generate, prompt_ids: Sequence[int]) -> None:
        self._generate = generate
        self._prompt = tuple(prompt_ids)
        self._produced: list[int] = []
        self._busy = False
        self.tokens: list[int] = list(prompt_ids)
        self.loss_mask: list[int] = [0] * len(prompt_ids)
        self.logprobs: list[float] = [0.0] * len(prompt_ids)
        self.weight_versions: list[int] = [-1] * len(prompt_ids)

    @property
    def num_generated(self) -> int:
        return len(self._produced)

    @property
    def response_ids(self) -> list[int]:
        """Everything after the prompt: generated ids and tool output."""
        return self.tokens[len(self._prompt) :]

    async def turn(self, sampling: Sampling) -> Generation:
        """Let the policy continue; its ids are appended with mask 1. Raises EngineError."""
        if self._busy:
            raise RuntimeError("a token session takes one turn at a time")
        self._busy = True
        try:
            generation = await self._generate(tuple(self.tokens), sampling)
        finally:
            self._busy = False
        _check(generation, sampling)
        count = len(generation.token_ids)
        self._produced += generation.token_ids
        self.tokens += generation.token_ids
        self.loss_mask += [1] * count
        self.logprobs += generation.logprobs
        self.weight_versions += generation.weight_versions
        return generation

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append ids that the policy did not write (tool output, the next turn's header)."""
        if self._busy:
            raise RuntimeError("a token session cannot grow while a turn is under way")
        count = len(token_ids)
        self.tokens += token_ids
        self.loss_mask += [0] * count
        self.logprobs += [0.0] * count
        self.weight_versions += [-1] * count

    def sample(
        self, *, problem_id: str, domain: str, group_id: str, index: int, status: Status
    ) -> Sample:
        """The training sample, after proving that its trained tokens are the engine's own.

        Raises EngineError when they are not: that is a bug in the code that changed the lists.
        """
        trained = [t for t, m in zip(self.tokens, self.loss_mask, strict=True) if m]
        if trained != self._produced or tuple(self.tokens[: len(self._prompt)]) != self._prompt:
            raise EngineError(
                f"the tokens of rollout {group_id}#{index} differ from those the engine produced; "
                "refusing to train on them"
            )
        return Sample(
            problem_id=problem_id,
            domain=domain,
            group_id=group_id,
            rollout_id=f"{group_id}#{index}",
            sample_index=index,
            tokens=self.tokens,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            weight_versions=self.weight_versions,
            status=status,
        )


def _check(generation: Generation, sampling: Sampling) -> None:
    count = len(generation.token_ids)
    if len(generation.logprobs) != count or len(generation.weight_versions) != count:
        raise EngineError(
            f"the engine answered {count} ids with {len(generation.logprobs)} logprobs and "
            f"{len(generation.weight_versions)} weight versions"
        )
    if count > sampling.max_new_tokens:
        raise EngineError(
            f"the engine answered {count} ids; {sampling.max_new_tokens} were requested"
        )
    # `not <=` also catches NaN; a logprob may exceed 0 by rounding only
    if any(not value <= 1e-3 for value in generation.logprobs):
        raise EngineError("the engine answered a logprob that is NaN or above 0")
