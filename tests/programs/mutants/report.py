"""The score as bench rows: in all, file by file, and each survivor with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.programs.bench.rows import Row
from tests.programs.mutants.record import Outcome
from tests.programs.mutants.survivors import Survivor, reason

FLOOR = 0.95


def rows_of(
    tried: Sequence[Outcome], sources: Mapping[str, str], num_every: int, num_chosen: int
) -> list[Row]:
    """Prints the survivors, too."""
    survivors = sorted((o for o in tried if o.killed_by is None), key=lambda o: o.name)
    reasons = [reason(outcome, sources) for outcome in survivors]
    for outcome, why in zip(survivors, reasons, strict=True):
        print(f"survived  {outcome.name}\n          {_said(why)}")
    num_equivalent = sum(why is not None and why.is_equivalent for why in reasons)
    num_killed, num = len(tried) - len(survivors), max(len(tried), 1)
    note = f"{num_killed} of {len(tried)} tried, {num_every} there are"
    return [
        *_by_file(tried),
        Row("killed", num_killed / num, "share", FLOOR, note=note),
        Row("killed of those not equivalent", num_killed / max(num - num_equivalent, 1), "share"),
        Row("killed by their bound of time", sum(o.is_timeout for o in tried), "mutants",
            note="counted among those killed"),
        Row("survivors without a reason", reasons.count(None), "mutants", 0, True),
        Row("not tried of those chosen", num_chosen - len(tried), "mutants", 0, True),
    ]  # fmt: skip


def _said(why: Survivor | None) -> str:
    if why is None:
        return "no reason given"
    return f"{'equivalent' if why.is_equivalent else 'not equivalent'}: {why.why}"


def _by_file(tried: Sequence[Outcome]) -> list[Row]:
    per_file = Counter(o.file for o in tried)
    killed = Counter(o.file for o in tried if o.killed_by is not None)
    return [
        Row(f"killed in {file}", killed[file] / num, "share", note=f"{killed[file]} of {num}")
        for file, num in sorted(per_file.items())
    ]
