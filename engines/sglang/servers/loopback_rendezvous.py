"""A server's ranks meet on loopback: they are all on one host, and the rendezvous knows no key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from engines.rendezvous import tcp_store
from infra.access import LOOPBACK

_TARGET = "sglang.srt.distributed.bootstrap._resolve_dist_init_method"


def install() -> None:
    """Hook SGLang and this process's torch; for any host, with or without CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _on_loopback, HookType.AROUND)
    # By name: the package has a function that is called as this module is.
    vars(import_module("torch.distributed.rendezvous"))["_create_c10d_store"] = _store


def _on_loopback(stock: Callable[..., str], *, dist_port: int) -> str:
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().nnodes > 1:
        return stock(dist_port=dist_port)
    return f"tcp://{LOOPBACK}:{dist_port}"


def _store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> Any:
    return tcp_store(hostname, port, rank, world_size, timeout)
