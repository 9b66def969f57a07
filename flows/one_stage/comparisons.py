"""Count the comparisons in files of preferences: batches count them, and a row may have several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from curricula.rows.pairs import Judged
from engines.algorithms.preference_losses import PreferenceLoss, is_paired
from engines.algorithms.reward_losses import Compares, RewardLoss, compares
from flows.explain import validated
from infra.data_files.chunks import LocalFiles
from infra.data_files.tally import BadRow
from tasks.preference.row_faults import row_fault
from tasks.preference.spec import PreferenceFiles
from tasks.reward.spec import RewardSettings

_COUNTED = 10_000
"""rows that are read; the others are taken to hold as many"""


def trained_comparisons(
    kind: str, settings: Mapping[str, Any], data: Mapping[str, Any], files: LocalFiles
) -> float:
    """Count the comparisons of all rows less the held-out ones. Where no row can be learned, each
    row counts: what is wrong with them is said by `check`. Raises InputError."""
    compared = _compares(kind, settings.get("loss"))
    source = validated(PreferenceFiles, data)
    read, found = 0, 0
    for chunk in files.chunks:
        rows = files.read(chunk)
        for index in range(len(rows)):
            try:
                found += _num_comparisons(source.judged(rows.row(index)), compared)
            except BadRow:
                continue
        read += len(rows)
        if read >= _COUNTED:
            break
    held_out = 0.0
    if kind == "reward":
        held_out = settings.get("held_out", RewardSettings.model_fields["held_out"].default)
    return (found / read * files.num_rows or files.num_rows) * (1 - held_out)


def _compares(kind: str, loss: Any) -> Compares:
    """Tell what a stage's loss compares; `check` says later what is wrong with the loss."""
    of_kind: Any = PreferenceLoss if kind == "preference" else RewardLoss
    try:
        written: Any = TypeAdapter(of_kind).validate_python(loss or {})
    except ValidationError:
        return "pairs"
    if kind == "reward":
        return compares(written)
    return "pairs" if is_paired(written) else "verdicts"


def _num_comparisons(row: Judged, compared: Compares) -> int:
    """Count the comparisons that such a loss makes of a row; 0 where it cannot learn from it."""
    if row_fault(row, compared):
        return 0
    match compared:
        case "pairs":
            return len(row.pairs)
        case "lists":
            return 1
        case _:
            return len(row.worth)
