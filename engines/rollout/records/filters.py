"""Which rollouts may teach another model: filters in a fixed order, each with its count.

    format (truncated, short, repeated, reasoning) → wrong → tool → near duplicates → kept

A rollout counts at the first filter that refuses it. All functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from engines.rollout.records.duplicates import duplicates
from engines.types import Rollout, Status

ORDER = ("failed", "truncated", "short", "repeated", "reasoning", "wrong", "tool", "duplicate")
"""names of the filters, in the order in which they are asked"""

_LOOP_REPEATS = 8
_LOOP_PERIOD = 16


def sift(
    rollouts: Sequence[Rollout], *, min_tokens: int, min_outcome: float, near_duplicate: float
) -> tuple[list[Rollout], dict[str, int]]:
    """-> the kept rollouts in order, and how many each filter dropped, with `sampled` and `kept`.

    `near_duplicate` is the Jaccard similarity (0 to 1) from which a later rollout is dropped.
    """
    counts: Counter[str] = Counter()
    sound: list[Rollout] = []
    for rollout in rollouts:
        fault = first_fault(rollout, min_tokens=min_tokens, min_outcome=min_outcome)
        if fault:
            counts[fault] += 1
        else:
            sound.append(rollout)
    written = [np.concatenate([s.tokens for s in r.samples]) for r in sound]
    copies = duplicates(written, threshold=near_duplicate)
    kept = [r for r, copy in zip(sound, copies, strict=True) if not copy]
    counts["duplicate"] = len(sound) - len(kept)
    dropped = {name: counts[name] for name in ORDER}
    return kept, {"sampled": len(rollouts), **dropped, "kept": len(kept)}


def first_fault(rollout: Rollout, *, min_tokens: int, min_outcome: float) -> str:
    """Name of the first filter that refuses the rollout; empty when all let it pass."""
    status, transcript = rollout.status, rollout.transcript
    problem = transcript.problem
    broke_protocol = status is Status.MALFORMED and bool(problem.tools)
    missed = rollout.rewards.get("outcome", 0.0) < min_outcome
    # without a reference the end state decides; a broken call was never judged, so is not "wrong"
    judges_answer = problem.reference is not None or not problem.tools
    checks = {
        "failed": status in (Status.FAILED, Status.ABORTED),
        "truncated": status is Status.TRUNCATED,
        "short": transcript.num_tokens < min_tokens,
        "repeated": any(has_loop(s.tokens[s.loss_mask].tolist()) for s in rollout.samples),
        "reasoning": not broke_protocol and not has_sound_reasoning(rollout),
        "wrong": not broke_protocol and judges_answer and missed,
        "tool": broke_protocol or (bool(problem.tools) and missed),
    }
    return next((name for name in ORDER if checks.get(name)), "")


def has_sound_reasoning(rollout: Rollout) -> bool:
    """Whether every assistant turn thinks when asked to, and only then, and parses; where thoughts
    are left to the model, either is sound."""
    if rollout.status is Status.MALFORMED:
        return False
    turns = [m for m in rollout.transcript.messages if m.role == "assistant"]
    asked = rollout.transcript.problem.thinking
    return bool(turns) and (asked is None or all(bool(m.reasoning) is asked for m in turns))


def has_loop(tokens: Sequence[int]) -> bool:
    """Whether a block of 1 to 16 tokens stands 8 or more times in a row.

    Lists and asked-for repetitions are shorter; a model that lost its thread is not.
    """
    for period in range(1, _LOOP_PERIOD + 1):
        run = 0
        for left, right in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if left == right else 0
            if run >= period * (_LOOP_REPEATS - 1):
                return True
    return False
