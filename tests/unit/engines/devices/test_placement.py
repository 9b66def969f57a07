"""Which host and which GPU each unit gets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.devices.units import first_server_device, rank_place, server_host

pytestmark = pytest.mark.unit


def _servers(count: int, gpus: Sequence[int], tp: int) -> list[tuple[int, int]]:
    """Host and first GPU of each."""
    hosts = [server_host(index, gpus, tp) for index in range(count)]
    return [(h, first_server_device(index, tp, gpus[h])) for index, h in enumerate(hosts)]


def test_ranks_and_servers_share_gpus_only_where_there_are_too_few() -> None:
    """Four ranks and two servers of two GPUs each, on eight, four and one."""
    for num_gpus, shared in ((8, set[int]()), (4, {0, 1, 2, 3}), (1, {0})):
        ranks = {rank_place(index, [num_gpus])[1] for index in range(4)}
        tp = min(2, num_gpus)
        servers = {first + i for _, first in _servers(2, [num_gpus], tp) for i in range(tp)}
        assert ranks & servers == shared
        assert servers <= set(range(num_gpus))


def test_without_gpus_units_take_turns_over_hosts() -> None:
    assert [rank_place(index, [0, 0, 0]) for index in range(4)] == [
        (0, None), (1, None), (2, None), (0, None),
    ]  # fmt: skip
    assert _servers(4, [0, 0, 0], 1) == [(2, 0), (1, 0), (0, 0), (2, 0)]


def test_ranks_fill_the_first_host_and_servers_the_last() -> None:
    """Eight ranks of groups of four and four servers of two GPUs, on two hosts of eight."""
    ranks = {rank_place(index, [8, 8], tp=4) for index in range(8)}
    servers = {(h, d + i) for h, d in _servers(4, [8, 8], 2) for i in range(2)}
    assert ranks == {(0, gpu) for gpu in range(8)}
    assert servers == {(1, gpu) for gpu in range(8)}


def test_servers_of_hosts_of_different_sizes_have_gpus_of_their_own() -> None:
    servers = [(h, d + i) for h, d in _servers(6, [8, 4], 2) for i in range(2)]
    assert sorted(servers) == [(0, gpu) for gpu in range(8)] + [(1, gpu) for gpu in range(4)]


def test_a_group_of_ranks_is_on_one_host() -> None:
    for gpus in ([8, 8], [6, 6], [0, 0, 0]):
        for group in range(4):
            hosts = {rank_place(index, gpus, 4)[0] for index in range(4 * group, 4 * group + 4)}
            assert len(hosts) == 1, gpus
