"""The command's app, its consoles, and options that several commands have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

app = App(
    name="tributary",
    help="The whole post-training recipe of a language model as one durable pipeline.",
    version_flags=["--version"],
    help_format="plaintext",
)
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

Set = Annotated[
    list[str],
    Parameter(name="--set", negative=(), help="change a field, e.g. experts.agent.path.rl.steps=4"),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]


def examples(*lines: str) -> str:
    """What stands below a command's options."""
    return "\n".join(["Examples:", *(f"  tributary {line}" for line in lines)])
