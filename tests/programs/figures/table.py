"""The table of scores in `docs/figures.md`, made of `docs/figures.json`; who repeats them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE, FIGURES = ROOT / "docs" / "figures.md", ROOT / "docs" / "figures.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- written by `make figures` -->\n", "<!-- end of what `make figures` writes -->"
DOMAINS = ("reasoning", "agent", "general")

Run = Mapping[str, Any]
"""`scores`, `greedy` and `best_of` of `tributary report --json`"""


def cpu_kind() -> str:
    """The type of this machine's CPU: scores repeat to the digit on the same one.

    Example: `AuthenticAMD 25-17, avx2, avx512f`
    """
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    said = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    flags = set(said.get("flags", "").split())
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if f in flags]
    model = f"{said.get('cpu family', '?')}-{said.get('model', '?')}"
    return ", ".join([f"{said.get('vendor_id', 'unknown')} {model}", *known])


def read_figures() -> dict[str, Any]:
    """By type of CPU: `date`, `commit`, and the scores of `cpu-demo`, by seed, and `cpu-smoke`."""
    return json.loads(FIGURES.read_text())


def what_repeats(report: Run) -> dict[str, Any]:
    """What of a report is equal to the digit whenever it is made anew on the same type of CPU."""
    return {name: report[name] for name in ("scores", "greedy", "best_of")}


def table(runs: Mapping[str, Run]) -> str:
    """The table of the demo's runs, by what each is called."""
    rows = [["", *runs], ["---"] * (1 + len(runs))]
    for domain in DOMAINS:
        for title, cells in _kinds(runs).items():
            shown = [
                f"{of[f'{domain}-sft'][domain]:.3f} → {of[domain][domain]:.3f}" for of in cells
            ]
            rows.append([f"{domain}: {title}" if title == "temperature 1" else title, *shown])
    for title, cells in _kinds(runs).items():
        shown = [" / ".join(f"{of['unified'][d]:.3f}" for d in DOMAINS) for of in cells]
        all_of = f"unified model, {' / '.join(DOMAINS)}: {title}"
        rows.append([all_of if title == "temperature 1" else title, *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def gains(figures: Mapping[str, Any]) -> str:
    """The README's line of what RL did to each expert, sampled at temperature 1: of the first type
    of CPU and its first seed."""
    of = next(iter(next(iter(figures.values()))["cpu-demo"].values()))["scores"]
    return ", ".join(f"{of[f'{d}-sft'][d]:.3f} → {of[d][d]:.3f}" for d in DOMAINS)


def _kinds(runs: Mapping[str, Run]) -> dict[str, list[Mapping[str, Mapping[str, float]]]]:
    """By title, the scores of each run."""
    most = {seed: max(run["best_of"], key=int) for seed, run in runs.items()}
    return {
        "temperature 1": [run["scores"] for run in runs.values()],
        "greedy": [run["greedy"] for run in runs.values()],
        f"best of {'/'.join(sorted(set(most.values()), key=int))}": [
            run["best_of"][most[seed]] for seed, run in runs.items()
        ],
    }


def with_table(text: str, figures: Mapping[str, Any]) -> str:
    """A page with the table that the figures make."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    runs: dict[str, Run] = {}
    said: list[str] = []
    for letter, (cpu, found) in zip(ascii_uppercase, figures.items(), strict=False):
        runs |= {f"{letter}, seed {seed}": run for seed, run in found["cpu-demo"].items()}
        said.append(f"{letter}: {cpu}, {found['date']}, commit {found['commit']}.")
    return f"{before}{BEGIN}{table(runs)}\nMeasured on {' '.join(said)}\n{END}{after}"
