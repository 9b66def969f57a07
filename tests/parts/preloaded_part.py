"""What a process parent of a test preloads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

_loaded_by = 0


def preload() -> None:
    global _loaded_by
    _loaded_by = os.getpid()


def serve(options: dict[str, Any]) -> None:
    print(f"serving {options['name']}", flush=True)
    Path(options["file"]).write_text(f"{_loaded_by} {os.getppid()}")
    time.sleep(60)
