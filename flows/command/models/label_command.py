"""Lets a person compare answers of a stage: `tributary label`."""

from __future__ import annotations

import contextlib
import getpass
import webbrowser
from pathlib import Path

from engines.rollout.records.dataset import DATA_FILE, ParquetRows, row_of
from flows.command.output import CommandConsole
from flows.command.samples import find_samples
from flows.reports.labelling import Labels, comparisons_of, serve_labels
from infra.errors import InputError


def label(
    artifact: str, run: str, to: str, by: str, root: str, open_: bool, console: CommandConsole
) -> int:
    """Until Ctrl-C. Raises InputError where there is nothing to compare."""
    found = find_samples(artifact, run, root, lambda name: True)
    if found.file.name != DATA_FILE:
        raise InputError(
            f"{found.record.name} keeps rollouts as tokens; name a `distill` stage, with"
            " `samples: 2` or more and `min_outcome: 0`, whose answers can be compared and learned"
        )
    rows = ParquetRows(found.file)
    comparisons, left_out = comparisons_of(row_of(rows.row(n)) for n in range(len(rows)))
    if not comparisons:
        raise InputError(
            f"{found.record.name} has no problem with two different answers; give `distill`"
            " `samples: 2` or more, and `min_outcome: 0` to keep wrong ones"
        )
    labels = Labels(_place(to), by or getpass.getuser())
    console.say(
        f"{len(comparisons)} pairs of {found.record.name}, {len(labels.done)} done before;"
        f" {left_out} problems have no two different answers, or call tools"
    )

    def told(link: str) -> None:
        console.say(f"choices go to {to}, until Ctrl-C (the link works once): {link}")
        if open_:
            webbrowser.open(link)

    with contextlib.suppress(KeyboardInterrupt):
        serve_labels(comparisons, labels, told)
    return 0


def _place(to: str) -> Path:
    file = Path(to).expanduser()
    if file.suffix != ".jsonl":
        raise InputError(f"--to {to}: name a file that ends with .jsonl")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"--to {to}: its folder is not there, or it is a folder itself")
    return file
