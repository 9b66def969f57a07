"""Shows where trainer and engine differ on one model: `tributary align`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.command.app import CommandConsole, print_json, text_table
from flows.command.models.named_artifacts import find_model
from infra.home import home

if TYPE_CHECKING:
    from engines.align.compared_programs import Alignment, Difference


def align(
    model: str, precision: str, tokens: int, root: str, json: bool, console: CommandConsole
) -> int:
    """-> exit code: 1 if two programs differ beyond the bound of the type."""
    folder = find_model(model, root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron-core tells of all that this machine lacks
        from engines.align.compared_programs import BOUNDS, compare, run_all
        from engines.devices.child_processes import ChildProcesses
        from engines.sglang.servers.slots import LAUNCHER

        logs = home() / "logs" / "align"
        with ChildProcesses(logs, LAUNCHER) as children:
            found = compare(
                run_all(folder, tokens, precision, children=children), BOUNDS[precision]
            )
    if json:
        print_json({"model": str(folder), "dtype": precision, "tokens": tokens, **found.as_json()})
    else:
        show(found, f"{folder}: largest relative difference, {precision}, {tokens} tokens", console)
    return 0 if found.first is None else 1


def show(found: Alignment, title: str, console: CommandConsole) -> None:
    from engines.align.compared_programs import by_layer

    pairs = list(found.differences[0].between)
    header = ["", *(" - ".join(pair) for pair in pairs), "first beyond"]
    rows = [[name, *_cells(each, pairs, found.bound)] for name, each in by_layer(found)]
    console.print(text_table(header, rows, title))
    console.say(found.sentence())
    for line in found.experts:
        console.say(f"  experts of {line}")


def _cells(
    points: Sequence[Difference], pairs: Sequence[tuple[str, str]], bound: float
) -> list[str]:
    """Numbers of a layer and the first of its points that is beyond the bound."""
    largest = [max(each.between.get(pair, 0.0) for each in points) for pair in pairs]
    first = next((each.point for each in points if each.is_beyond(bound)), "")
    return [*(f"{value:.1e}" for value in largest), first]
