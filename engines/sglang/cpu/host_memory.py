"""Memory in which a server notes the experts of each token of its cache."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Leave it as it is: SGLang pins it for copies from a GPU, by a function of CUDA."""
    from sglang.srt.mem_cache.pool_host import common

    def not_pinned(*_given: Any, **_named: Any) -> None: ...

    common._cuda_host_register = not_pinned  # noqa: SLF001
