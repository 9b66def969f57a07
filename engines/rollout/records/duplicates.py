"""Near-duplicate token sequences: exact copies first, then MinHash candidates checked exactly.

Similarity is Jaccard's over 5-token shingles of prompt and response together, so that two short
right answers to different questions are not each other's copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.types import TokenIds

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
    """Of at least five tokens. Two different shingles have one hash with probability 2^-64."""
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
