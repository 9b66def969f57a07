"""One stable seed for every sampled turn, so that a rollout can be repeated by itself."""

from __future__ import annotations

import hashlib


def sampling_seed(stage_seed: int, name: str, sample_index: int, session: int, turn: int) -> int:
    """A 31-bit seed that depends on nothing but its arguments: not on the process or the batch.

    `name`: a ticket's group id, or a problem's id where nothing is trained.
    """
    text = f"{stage_seed}\0{name}\0{sample_index}\0{session}\0{turn}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF
