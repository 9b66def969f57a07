"""Survivors that are known, and why each is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.mutants.record import Outcome


@dataclass(frozen=True, slots=True)
class Survivor:
    text: str
    """the line of the source"""
    changes: tuple[str, ...]
    """as the report says them, e.g. `constant: 0 -> 1`"""
    why: str
    is_equivalent: bool = True
    """no input gives another result; else: a gap, or not worth a test"""


KNOWN: Mapping[str, list[Survivor]] = {
    "engines/algorithms/linear_logprobs.py": [
        Survivor(
            "kept_bytes = KEPT_BYTES if has_backward else 0",
            ("constant: 0 -> 1",),
            "a tile has more bytes than one",
        ),
        Survivor(
            "return out if self.temperature == 1.0 else out.div_(self.temperature)",
            (
                "return: out if self.temperature == 1.0 else out.div_(self.temperature) -> out if"
                " False else out.div_(self.temperature)",
                "constant: 1.0 -> 0.0",
            ),
            "a division by 1 changes nothing: only a pass is saved",
        ),
        Survivor(
            "peak_NR, total_NR, weighted_NR = (torch.stack(parts) for parts in zip(*found,"
            " strict=True))",
            ("keyword: zip(*found, strict=True) -> zip(*found)", "constant: True -> False"),
            "each tile gives three",
        ),
        Survivor(
            "if group is not None and group.size() > 1:",
            ("comparison: group.size() > 1 -> group.size() >= 1", "constant: 1 -> 0"),
            "a sum over one rank is that rank's: only a call is saved",
        ),
    ],
    "engines/batching.py": [
        Survivor(
            "num_most = 1 + 2 * sum(lengths[i] for i in indices) // max_tokens",
            ("constant: 1 -> 2", "constant: 2 -> 3"),
            "room for more micro-batches than are used",
        ),
    ],
}
"""by file"""


def known(file: str, change: str, text: str) -> Survivor | None:
    for survivor in KNOWN.get(file, []):
        if survivor.text == text and change in survivor.changes:
            return survivor
    return None


def reason(outcome: Outcome, sources: Mapping[str, str]) -> Survivor | None:
    """Of a mutant by its name, e.g. `a/b.py:12 constant: 1 -> 2`."""
    place, _, change = outcome.name.partition(" ")
    line = int(place.rpartition(":")[2])
    return known(outcome.file, change, sources[outcome.file].splitlines()[line - 1].strip())
