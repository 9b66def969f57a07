"""The proof table: one row an estimator, complete or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tests.programs.bench.rows import Row
from tests.programs.proof.exceptions import EXCEPTIONS, reason
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
    lines = [
        "| estimator | " + " | ".join(PROOFS) + " |",
        "|---|" + "---|" * len(PROOFS),
        *(f"| {p.name} | " + " | ".join(p.cells.values()) + " |" for p in table),
        "",
        "A dash is a proof that does not apply:",
        "",
        *(f"- {rows}, {proof}: {why}." for (rows, proof), why in EXCEPTIONS.items()),
    ]
    return "\n".join(lines)


def into_page(page: Path, table: Sequence[Proven]) -> None:
    """Put the table between its markers."""
    text = page.read_text()
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{page} lacks the line {BEGIN if not found else END}")
    page.write_text(f"{before}{BEGIN}\n{markdown(table)}\n{END}{after}")
