"""`make hosts`: a stack over hosts that are namespaces of this machine.

    python -m tests.programs.hosts                   a recipe on one host and over three, a killed
                                                     host, a cut network, joining, leaving
    python -m tests.programs.hosts chaos [CELL ...]  every disturbance of `cells`, or those whose
                                                     names begin so
    python -m tests.programs.hosts short FILE        engines over two hosts, and one that leaves

Each host has a network, mounts, processes, a home and a cache of its own; the store is S3. Written
to `build/hosts.json`, `build/hosts-chaos.json`, or FILE.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.parts.s3_services import moto
from tests.programs.bench.rows import Row, show, write
from tests.programs.chaos.ground import pin_threads
from tests.programs.hosts import parts
from tests.programs.hosts.cells import CELLS, CUT, LOST, Cell, chosen
from tests.programs.hosts.ground import Ground, Mode
from tests.programs.hosts.isolation import enter
from tests.programs.hosts.machines import OUTSIDE, machines

_BUILD = Path("build")


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case []:
            return _whole()
        case ["chaos", *words]:
            try:
                return _chaos(chosen(words))
            except ValueError as error:
                sys.exit(str(error))
        case ["short", file]:
            return _over("ab", _SHORT, "two hosts", Path(file))
        case _:
            sys.exit(__doc__)


_SHORT = (parts.starting, parts.joining, parts.engines, parts.ending)


def _whole() -> int:
    cells = [cell for cell in CELLS if cell.disturbance in (LOST, CUT)]
    before = (parts.starting, parts.on_one, parts.joining, parts.engines, parts.on_all)
    whole = [*before, *map(_disturbed, cells), parts.leaving]
    return _over("abc", whole, "three hosts", _BUILD / "hosts.json")


def _chaos(cells: Sequence[Cell]) -> int:
    modes: list[Mode] = list(dict.fromkeys(cell.mode for cell in cells))
    undisturbed = partial(parts.on_all, modes=modes, like_one=False)
    whole = [parts.starting, parts.joining, undisturbed, *map(_disturbed, cells), parts.ending]
    return _over("abc", whole, "disturbed hosts", _BUILD / "hosts-chaos.json")


def _disturbed(cell: Cell) -> parts.Part:
    return partial(parts.disturbed, cell=cell)


def _over(names: str, tried: Sequence[parts.Part], title: str, written: Path) -> int:
    """Try this on hosts of these names."""
    pin_threads()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request to the store
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="tr-hosts-", ignore_cleanup_errors=True) as work,
        machines(Path(work), names) as hosts,
        moto(OUTSIDE) as service,
    ):
        for row in parts.told(Ground(hosts, service, Path(work)), tried):
            rows.append(row)
            write(rows, written)  # what comes later may fail
    show(rows, title)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    enter("tests.programs.hosts", sys.argv[1:])
    sys.exit(main(sys.argv[1:]))
