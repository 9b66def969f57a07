"""Say in words why a row of preferences cannot be learned."""

from __future__ import annotations

from collections.abc import Sequence

from curricula.rows.pairs import Judged
from engines.algorithms.reward_losses import Compares
from engines.batching import TokenSequence


def row_fault(row: Judged, compares: Compares) -> str:
    """Why a loss cannot learn from a row, in words; empty if it can."""
    match compares:
        case "pairs" | "lists" if not row.pairs:
            if row.is_good is not None:
                return (
                    "has one answer with a verdict, which `kto` and `binary` learn; this loss"
                    " compares answers"
                )
            return (
                "has one answer with a score, which `regression` learns; this loss compares answers"
            )
        case "verdicts" if row.is_good is None and not row.pairs:
            return "has one answer with a score; `kto` learns from a `label`, true or false"
        case "scores" if not row.has_scores:
            return (
                "says which answer is better, and no score of each, which `regression` learns;"
                " take the loss `bradley-terry` or `plackett-luce`"
            )
        case "goodness" if any(not 0 <= worth <= 1 for worth in row.goodness):
            return (
                "says of an answer how good it is by a number that is not from 0 to 1; take the"
                " loss `regression` for scores, or `plackett-luce` for ranks"
            )
        case _:
            return ""


def fault_beside(names: Sequence[str], sequences: Sequence[TokenSequence]) -> str:
    """Why answers cannot be compared as the chat template renders them; empty if they can."""
    prompts = [each.tokens[: each.loss_mask.index(1)] for each in sequences]
    known: dict[tuple[int, ...], str] = {}
    for name, prompt, sequence in zip(names, prompts, sequences, strict=True):
        if prompt != prompts[0]:
            return (
                f"{names[0]} and {name} follow different prompts, as the chat template renders"
                " them: give all answers of a row a thought, or none of them (a `reward` stage"
                " leaves thoughts out)"
            )
        other = known.setdefault(tuple(sequence.tokens), name)
        if other != name:
            return f"{other} and {name} are equal, as the chat template renders them"
    return ""
