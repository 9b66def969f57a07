"""The recipe that the cases spoil, and the command that they are shown to."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.command.main import main

PARTS = Path(__file__).parent / "parts"
RECIPE = """\
name: roman
hooks: [numerals.py]
seed: 0
base:
  random: {hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn_size: 128}
experts:
  roman:
    domain:
      curriculum: {name: "numerals:Numerals", options: {noise: 0.2}}
      rewards:
        - {name: "numerals:Exact", outcome: true}
        - {name: "numerals:letters", weight: 0.1}
      max_new_tokens: 24
    path:
      - sft: {steps: 150, optimizer: {lr: 2e-3, warmup_steps: 2}}
      - rl: {steps: 6, problems_per_step: 8, group_size: 8, optimizer: {lr: 2e-4, warmup_steps: 1}}
evaluate: {problems: 32, samples: 2}
"""


def write(folder: Path, content: str | bytes) -> Path:
    """The recipe beside its hooks."""
    for part in PARTS.glob("*.py"):
        (folder / part.name).write_bytes(part.read_bytes())
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(content.encode() if isinstance(content, str) else content)
    return recipe


def check(
    recipe: Path, capsys: pytest.CaptureFixture[str], *changes: str
) -> tuple[int | str | None, str, str]:
    """Exit code, what was printed, and the error as one line of text."""
    arguments = [argument for change in changes for argument in ("--set", change)]
    with pytest.raises(SystemExit) as ended:
        main(["check", str(recipe), "--full", *arguments])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 24, "one screen"
    return ended.value.code, said.out, " ".join(said.err.split())
