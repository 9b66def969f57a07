"""The command; `begin` is what the shell starts."""

from __future__ import annotations

import sys


def begin() -> None:
    """Load the command and run it. Ctrl-C while it loads ends it as Ctrl-C later does."""
    try:
        from flows.command.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
