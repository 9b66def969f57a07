"""`tributary rollouts`: samples of an artifact, what was trained on, and how it was judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from flows.command.find_artifact import find_artifact
from flows.running.records import store_to_show
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactStore

FILES = ("rollouts.parquet", "data.parquet")
"""kept rollouts of `rl` and `evaluate`, and the dataset of `distill`"""


def show_rollouts(artifact: str, limit: int, domain: str, root: str, console: Console) -> int:
    if limit < 1:
        raise InputError(f"--limit {limit}: how many samples to show, from 1")
    artifacts = ArtifactStore(store_to_show(root), home() / "cache")
    record = find_artifact(artifacts, artifact)
    folder = artifacts.local(record)
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise InputError(f"artifact {record.digest[:12]} of kind {record.kind} holds no samples")
    rows = _rows(file, domain)
    for row in rows[:limit]:
        _show(row, console)
    console.print(f"{min(limit, len(rows))} of {len(rows)} samples in {file}", markup=False)
    return 0


def _rows(file: Path, domain: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    rows = parquet.read_table(file).to_pylist()
    return [row for row in rows if domain in ("", row["domain"])]


def _show(row: dict[str, Any], console: Console) -> None:
    """Header, text, and the tokens; those that were trained on are marked."""
    label = row.get("label", row.get("expert"))
    head = f"{row['problem_id']} · sample {row['sample_index']} · {label}"
    console.rule(head, align="left")
    reward = row.get("reward")
    breakdown = json.loads(row["rewards"])
    shown = "" if reward is None else f"reward {reward:.3f} "
    console.print(
        f"{row.get('status', '')} {shown}{breakdown} {row.get('reason', '')}".strip(), markup=False
    )
    if "prompt" in row:
        console.print(Text.assemble((row["prompt"], "dim"), (row["response"], "bold")))
    tokens = Text("tokens ")
    for token, trained in zip(row["tokens"], row["loss_mask"], strict=True):
        tokens.append(f"{token} ", style="bold green" if trained else "dim")
    console.print(tokens)
