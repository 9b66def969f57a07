"""Training on Megatron-core."""

from __future__ import annotations

import sys
from typing import Any

from infra.cuda import has_driver_library

if not has_driver_library():
    # Megatron imports it where it is installed, and does without it where it is missing; on a host
    # without a driver it is neither: its import ends with an OSError that Megatron does not expect.
    modules: dict[str, Any] = sys.modules  # type: ignore[assignment]
    modules.setdefault("flash_mla", None)
