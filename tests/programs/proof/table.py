"""The proof table: one row an estimator, complete or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tests.programs.bench.rows import Row
from tests.programs.proof.exceptions import reason
from tests.programs.proof.marks import HAND_NUMBERS, PROOFS

BEGIN, END = "<!-- proof table: made by `make proof` -->", "<!-- end of the proof table -->"


@dataclass(frozen=True, slots=True)
class Proven:
    """One estimator's proofs."""

    name: str
    cells: dict[str, str]
    """proof -> how many tests passed (for `hand`: numbers), a dash where it does not apply"""
    missing: list[str]

    @property
    def row(self) -> Row:
        said = ", ".join(f"{proof} {cell}" for proof, cell in self.cells.items())
        note = f"lacks {', '.join(self.missing)}; {said}" if self.missing else said
        return Row(self.name, len(self.missing), "proofs missing", 0, at_most=True, note=note)


def proven(
    names: Sequence[str],
    numbers: Mapping[tuple[str, str], int],
    failed: Set[tuple[str, str]],
) -> list[Proven]:
    """A row a name. A proof is missing if no test of it passed, if one failed, or, by hand, if
    there are fewer than HAND_NUMBERS numbers."""
    made: list[Proven] = []
    for name in names:
        cells: dict[str, str] = {}
        missing: list[str] = []
        for proof in PROOFS:
            found = numbers.get((name, proof), 0)
            needed = HAND_NUMBERS if proof == "hand" else 1
            if (name, proof) in failed:
                cells[proof] = "FAILED"
                missing.append(proof)
            elif reason(name, proof) is not None and not found:
                cells[proof] = "-"
            else:
                cells[proof] = str(found)
                if found < needed:
                    missing.append(proof)
        made.append(Proven(name, cells, missing))
    return made


def unknown(names: Sequence[str], numbers: Mapping[tuple[str, str], int]) -> set[str]:
    """What tests claim to prove and no estimator is called."""
    return {row for row, _ in numbers} - set(names)


def markdown(table: Sequence[Proven]) -> str:
    """How many estimators have each proof, and which estimators have all."""
    complete = [p for p in table if not p.missing]
    lines = [
        "| proof | estimators that have it | does not apply to | tests (`hand`: numbers) |",
        "|---|---|---|---|",
        *(f"| {proof} | {' | '.join(_counts(proof, table))} |" for proof in PROOFS),
        "",
        f"Complete: {len(complete)} estimators.",
        *(f"{p.name} lacks {', '.join(p.missing)}." for p in table if p.missing),
    ]
    return "\n".join(lines)


def _counts(proof: str, table: Sequence[Proven]) -> tuple[str, str, str]:
    cells = [p.cells[proof] for p in table]
    having = sum(proof not in p.missing and p.cells[proof] != "-" for p in table)
    tests = sum(int(cell) for cell in cells if cell.isdigit())
    return str(having), str(cells.count("-")), str(tests)


def into_page(page: Path, table: Sequence[Proven]) -> None:
    """Put the table between its markers."""
    text = page.read_text()
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{page} lacks the line {BEGIN if not found else END}")
    page.write_text(f"{before}{BEGIN}\n{markdown(table)}\n{END}{after}")
