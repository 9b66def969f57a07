"""The score as bench rows: in all, file by file, and each survivor with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.bench.rows import Row
from tests.mutants.record import Outcome
from tests.mutants.survivors import is_equivalent, said_of

FLOOR = 0.95


def show_survivors(tried: Sequence[Outcome]) -> None:
    for outcome in sorted(tried, key=lambda o: o.name):
        if outcome.killed_by is None:
            print(f"survived  {outcome.name}\n          {said_of(outcome.name)}")


def rows_of(tried: Sequence[Outcome], num_every: int, num_chosen: int) -> list[Row]:
    survivors = [o for o in tried if o.killed_by is None]
    num_equivalent = sum(is_equivalent(o.name) for o in survivors)
    num_unexplained = sum(said_of(o.name) == "no reason given" for o in survivors)
    num_killed, num = len(tried) - len(survivors), max(len(tried), 1)
    note = f"{num_killed} of {len(tried)} tried, {num_every} there are"
    return [
        *_by_file(tried),
        Row("killed", num_killed / num, "share", FLOOR, note=note),
        Row("killed of those not equivalent", num_killed / max(num - num_equivalent, 1), "share"),
        Row("killed by their bound of time", sum(o.is_timeout for o in tried), "mutants",
            note="a share of those killed"),
        Row("survivors without a reason", num_unexplained, "mutants", 0, True),
        Row("not tried of those chosen", num_chosen - len(tried), "mutants", 0, True),
    ]  # fmt: skip


def _by_file(tried: Sequence[Outcome]) -> list[Row]:
    per_file = Counter(o.file for o in tried)
    killed = Counter(o.file for o in tried if o.killed_by is not None)
    return [
        Row(f"killed in {file}", killed[file] / num, "share", note=f"{killed[file]} of {num}")
        for file, num in sorted(per_file.items())
    ]
