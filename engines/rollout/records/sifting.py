"""Which rollouts may teach another model: filters in a fixed order, each with its count.

    format (truncated, short, repeated, reasoning) → wrong → tool → near duplicates → kept

A rollout counts at the first filter that refuses it. All functions are pure. Near-duplicate token
sequences are exact copies first, then MinHash candidates checked exactly. Similarity is Jaccard's
over 5-token shingles of prompt and response together, so that two short right answers to different
questions are not each other's copies.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.types import Rollout, Status, TokenIds

ORDER = ("failed", "truncated", "short", "repeated", "reasoning", "wrong", "tool", "duplicate")
"""names of the filters, in the order in which they are asked"""

_LOOP_REPEATS, _LOOP_PERIOD, _LOOP_TOKENS = 8, 16, 65
"""a loop has so many blocks at least, of so many tokens at most, and so many tokens in all"""


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
    """Return whether every assistant turn thinks when asked to, and only then, and parses; where
    thoughts are left to the model, either is sound."""
    if rollout.status is Status.MALFORMED:
        return False
    turns = [m for m in rollout.transcript.messages if m.role == "assistant"]
    asked = rollout.transcript.problem.thinking
    return bool(turns) and (asked is None or all(bool(m.reasoning) is asked for m in turns))


def has_loop(tokens: Sequence[int]) -> bool:
    """Return whether a block of 1 to 16 tokens stands 8 or more times in a row, over 64 tokens
    long.

    Lists and asked-for repetitions are shorter, and so are digits of a number, spaces of code and
    the dashes of a table, each of which may be a token; a model that lost its thread is not.
    """
    for period in range(1, _LOOP_PERIOD + 1):
        run = 0
        for left, right in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if left == right else 0
            if run + period >= max(period * _LOOP_REPEATS, _LOOP_TOKENS):
                return True
    return False


Shingles = NDArray[np.uint64]
"""hashes of the shingles in ascending order, each once: 8 bytes a token"""

_SHINGLE = 5

_BANDS, _ROWS = 16, 4
"""finds a pair of similarity 0.8 with probability 0.9998; what it finds is then checked exactly"""

_PERMUTATIONS = _BANDS * _ROWS

_MIN_TOKENS = 16
"""below this a single token changes most shingles: only exact copies count"""

_STEP, *_FACTORS = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""constants of splitmix64"""


def duplicates(sequences: Sequence[TokenIds], *, threshold: float) -> list[bool]:
    """For each sequence, whether it copies an earlier kept one or is `threshold` similar to it."""
    from datasketch import MinHashLSH

    index: Any = MinHashLSH(num_perm=_PERMUTATIONS, params=(_BANDS, _ROWS))
    seen: set[bytes] = set()
    kept: dict[int, Shingles] = {}
    copies: list[bool] = []
    for position, sequence in enumerate(sequences):
        tokens = np.asarray(sequence, np.int64)
        exact = hashlib.sha256(tokens.tobytes()).digest()
        copy = exact in seen
        if not copy and len(tokens) >= _MIN_TOKENS:
            shingles, sketch = shingles_of(tokens), _sketch(tokens)
            copy = any(jaccard(shingles, kept[k]) >= threshold for k in index.query(sketch))
            if not copy:
                index.insert(position, sketch, check_duplication=False)
                kept[position] = shingles
        seen.add(exact)
        copies.append(copy)
    return copies


def jaccard(left: Shingles, right: Shingles) -> float:
    """Size of the intersection over size of the union."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / (len(left) + len(right) - common)


def shingles_of(tokens: NDArray[np.int64]) -> Shingles:
    """Return the shingles of at least five tokens. Two different shingles have one hash with
    probability 2^-64."""
    ids = tokens.astype(np.uint64)
    count = len(ids) - _SHINGLE + 1
    hashes = np.zeros(count, np.uint64)
    for place in range(_SHINGLE):
        hashes = _mixed(hashes + ids[place : place + count] + _STEP)
    return np.unique(hashes)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's permutation of 64 bits."""
    values = (values ^ (values >> np.uint64(30))) * _FACTORS[0]
    values = (values ^ (values >> np.uint64(27))) * _FACTORS[1]
    return values ^ (values >> np.uint64(31))


def _sketch(tokens: NDArray[np.int64]) -> Any:
    from datasketch import MinHash

    exact, width = tokens.tobytes(), _SHINGLE * 8
    sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
    shingles = {exact[i : i + width] for i in range(0, len(exact) - width + 8, 8)}
    sketch.update_batch(sorted(shingles))
    return sketch
