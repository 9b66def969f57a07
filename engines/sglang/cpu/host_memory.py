"""The host memory in which a server notes experts is not pinned where there is no GPU."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Replace the function of CUDA by which SGLang pins it for copies from a GPU."""
    from sglang.srt.mem_cache.pool_host import common

    def not_pinned(*_given: Any, **_named: Any) -> None: ...

    common._cuda_host_register = not_pinned  # noqa: SLF001
