"""Near-duplicate token sequences: exact copies first, then MinHash candidates checked exactly.

Similarity is Jaccard's over 5-token shingles of prompt and response together, so that two short
right answers to different questions are not each other's copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engines.types import TokenIds

_SHINGLE = 5
_BANDS, _ROWS = 16, 4
"""finds a pair of similarity 0.8 with probability 0.9998; what it finds is then checked exactly"""
_PERMUTATIONS = _BANDS * _ROWS
_MIN_TOKENS = 16
"""below this a single token changes most shingles: only exact copies count"""


def duplicates(sequences: Sequence[TokenIds], *, threshold: float) -> list[bool]:
    """For each sequence, whether it copies an earlier kept one or is `threshold` similar to it."""
    from datasketch import MinHashLSH

    index: Any = MinHashLSH(num_perm=_PERMUTATIONS, params=(_BANDS, _ROWS))
    seen: set[bytes] = set()
    kept: dict[int, frozenset[bytes]] = {}
    copies: list[bool] = []
    for position, tokens in enumerate(sequences):
        exact = np.asarray(tokens, np.int64).tobytes()
        copy = exact in seen
        if not copy and len(tokens) >= _MIN_TOKENS:
            shingles = _shingles(exact)
            sketch = _sketch(shingles)
            copy = any(jaccard(shingles, kept[k]) >= threshold for k in index.query(sketch))
            if not copy:
                index.insert(position, sketch, check_duplication=False)
                kept[position] = shingles
        seen.add(exact)
        copies.append(copy)
    return copies


def jaccard(left: frozenset[bytes], right: frozenset[bytes]) -> float:
    """Size of the intersection over size of the union."""
    return len(left & right) / len(left | right)


def _shingles(exact: bytes) -> frozenset[bytes]:
    width = _SHINGLE * 8
    return frozenset(exact[i : i + width] for i in range(0, len(exact) - width + 8, 8))


def _sketch(shingles: frozenset[bytes]) -> Any:
    from datasketch import MinHash

    sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
    sketch.update_batch(sorted(shingles))
    return sketch
