"""Which proofs do not apply to which estimators, and why: the one place where that is said."""

from __future__ import annotations

from fnmatch import fnmatchcase

_WHOLE = "computed from the whole batch, which every rank holds: nothing is exchanged"
_CONSTANT = "a constant of the loss; that it carries no gradient is among the edge cases"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("advantage *", "gradient"): _CONSTANT,
    ("advantage *", "ranks"): _WHOLE,
    ("whitening", "gradient"): _CONSTANT,
    ("whitening", "ranks"): _WHOLE,
    ("overlong", "gradient"): _CONSTANT,
    ("overlong", "ranks"): _WHOLE,
    ("lambda by length", "gradient"): _CONSTANT,
    ("lambda by length", "ranks"): _WHOLE,
    ("weight *", "gradient"): _CONSTANT,
    ("weight *", "ranks"): _WHOLE,
    ("reject *", "gradient"): _CONSTANT,
    ("reject ratio", "ranks"): _WHOLE,
    ("reject veto", "ranks"): _WHOLE,
    ("mismatch metrics", "gradient"): "reported, never trained on",
    ("mismatch metrics", "ranks"): _WHOLE,
}
"""(rows, proof) -> reason; rows are named by patterns"""


def reason(row: str, proof: str) -> str | None:
    """Why this proof does not apply to this row; None if it does."""
    for (pattern, kind), why in EXCEPTIONS.items():
        if kind == proof and fnmatchcase(row, pattern):
            return why
    return None
