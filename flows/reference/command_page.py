"""Every command and option as a markdown page."""

from __future__ import annotations

from flows.command.main import app

_INTRO = """# Every command and option

This page is made from the code. [The command](../cli.md) explains exit codes and outputs.
"""


def command_page() -> str:
    made = app.generate_docs(output_format="markdown", include_hidden=False, heading_level=2)
    return f"{_INTRO}\n{made}"
