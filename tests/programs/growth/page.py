"""The table of measured rows, for the terminal; those that break a bound, for `docs/figures.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.programs.growth.fit import Fitted
from tests.programs.growth.meter import Figure

PAGE = Path(__file__).parents[3] / "docs" / "figures.md"
BEGIN, END = "<!-- written by `make growth` -->\n", "<!-- end of what `make growth` writes -->"
HEAD = ("row", "sizes", "cost at each size", "exponent", "bound", "holds")


def lines(found: Sequence[Fitted]) -> Iterator[Sequence[str]]:
    """A line for each cost that counts, or for the failure of a row."""
    for each in found:
        row = each.row
        sizes = " / ".join(f"{size:,}" for size in row.sizes) + f" {row.what}"
        if each.failure:
            yield row.name, sizes, each.failure.splitlines()[-1], "", "", "NO"
        for figure, exponent in each.exponents.items():
            costs = " / ".join(_cost(figure, cost) for cost in each.costs)
            bound = row.bounds[figure]
            holds = "yes" if exponent <= bound else "NO"
            yield row.name, sizes, costs, f"{exponent:.2f}", f"<= {bound:g}", holds


def update_page(found: Sequence[Fitted], machine: str) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{summary(list(lines(found)), machine)}{END}{after}")


def summary(told: Sequence[Sequence[str]], machine: str) -> str:
    """How many costs were measured, and the lines that break a bound, as a table."""
    broken = [line for line in told if line[-1] == "NO"]
    rows = len({line[0] for line in told})
    said = (
        f"{machine}: {len(told)} costs of {rows} parts, of which {len(broken)} break their bound."
    )
    if not broken:
        return f"{said}\n"
    head = [HEAD[:-1], ["---"] * (len(HEAD) - 1), *(line[:-1] for line in broken)]
    return f"{said}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in head)


def _cost(figure: Figure, cost: Mapping[Figure, float]) -> str:
    value = cost[figure]
    if figure is Figure.CPU:
        return f"{value:.3g} s"
    if figure is Figure.CALLS:
        return f"{value:,.0f} calls"
    return f"{value / 1e6:.3g} MB" + (" held" if figure is Figure.MEMORY else "")
