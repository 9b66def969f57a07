"""Which split a problem belongs to: decided by its content alone.

The content's checksum modulo 8 picks the split, so a problem can be in one split only, whatever the
seed, the position or the family it was drawn under.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from engines.types import Split

BUCKETS = 8
OWNERS: Mapping[Split, frozenset[int]] = {
    "heldout": frozenset({0}),
    "sft": frozenset({1, 2}),
    "rl": frozenset({3, 4, 5}),
    "distill": frozenset({6, 7}),
}


def split_of(content: str) -> Split:
    """The split of a problem with this content, e.g. `split_of("12+30")`."""
    bucket = zlib.crc32(content.encode()) % BUCKETS
    return next(split for split, buckets in OWNERS.items() if bucket in buckets)
