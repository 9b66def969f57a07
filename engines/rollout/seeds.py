"""One stable seed for every sampled turn, so that a rollout can be repeated by itself."""

from __future__ import annotations

import hashlib


def sampling_seed(
    stage_seed: int, problem_id: str, sample_index: int, version: int, turn: int, session: int = 0
) -> int:
    """A 31-bit seed that depends on nothing but its arguments: not on the process or the batch."""
    text = f"{stage_seed}\0{problem_id}\0{sample_index}\0{version}\0{turn}"
    text += f"\0{session}" if session else ""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF
