"""Which GPUs the servers of a stage's roles get: each role neighbours of its own, from the last GPU
down, so that they meet the trainer's ranks last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.devices.ray_cluster import Host
from engines.devices.units import Request
from infra.errors import InputError


def role_places(
    requests: Sequence[Request], hosts: Sequence[Host], taken: frozenset[int]
) -> Mapping[int, tuple[int, ...]] | None:
    """The first GPU of each server, by the position of its role's request. Roles without one have
    none, or take turns with a trainer on its GPUs.

    None if there is no room beside `taken`. Raises InputError if there is none at all.
    """
    for request in requests:
        _check_kind(request.terms.device, hosts)
    if not any(host.num_gpus for host in hosts):
        return {}
    shared = frozenset(gpu for r in requests for gpu in _shared(r.terms))
    if (found := _placed(requests, hosts, taken | shared)) is not None:
        return found
    if _placed(requests, hosts, shared) is None:
        needed = ", ".join(
            f"{r.count} x {r.terms.tp}{f' of kind {r.terms.device}' if r.terms.device else ''}"
            for r in requests
        )
        there = ", ".join(f"{h.num_gpus} {h.kind or 'of no known kind'}" for h in hosts)
        raise InputError(
            f"the servers of the stage's roles need {needed} GPUs, each server's on one host, and"
            f" the hosts have {there}: lower `servers` or `tp_per_server` of the stage or of"
            " `roles` in its resources, or name another `device`"
        )
    return None


def _check_kind(device: str, hosts: Sequence[Host]) -> None:
    kinds = sorted({host.kind for host in hosts if host.kind})
    if device and device.lower() not in kinds:
        raise InputError(
            f"no host has GPUs of kind {device!r}; there are {', '.join(kinds) or 'no known ones'}:"
            " change `device` of the role in the stage's resources"
        )


def _placed(
    requests: Sequence[Request], hosts: Sequence[Host], taken: frozenset[int]
) -> dict[int, tuple[int, ...]] | None:
    """Roles that want a kind first, then those with the largest servers."""
    wanting = [index for index, request in enumerate(requests) if not _shared(request.terms)]
    wanting.sort(key=lambda i: (not requests[i].terms.device, -requests[i].terms.tp))
    used = set(taken)
    found: dict[int, tuple[int, ...]] = {}
    for index in wanting:
        firsts: list[int] = []
        for _ in range(requests[index].count):
            first = _highest_free(requests[index].terms, hosts, used)
            if first is None:
                return None
            firsts.append(first)
            used |= set(range(first, first + requests[index].terms.tp))
        found[index] = tuple(firsts)
    return found


def _highest_free(terms: Any, hosts: Sequence[Host], used: set[int]) -> int | None:
    fitting = [h for h in hosts if not terms.device or h.kind == terms.device.lower()]
    for host in reversed(fitting):
        last = host.first_gpu + host.num_gpus - terms.tp
        for first in range(last, host.first_gpu - 1, -1):
            if used.isdisjoint(range(first, first + terms.tp)):
                return first
    return None


def _shared(terms: Any) -> tuple[int, ...]:
    """GPUs of a trainer that its servers take turns with."""
    return terms.shares.gpus if terms.shares is not None else ()
