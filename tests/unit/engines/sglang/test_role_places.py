"""Which GPUs the roles of a stage get: figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.devices.ray_cluster import Host
from engines.devices.units import Request
from engines.sglang.roles.gpu_places import role_places
from engines.sglang.servers.server_units import ServerTerms, TrainerDevices
from engines.sglang.spec import FleetSpec
from infra.errors import InputError

pytestmark = pytest.mark.unit

EIGHT = Host("", "", 8, 0, "h100")
EIGHT_MORE = Host("b", "10.0.0.2", 8, 9, "h200")
NOBODY = frozenset[int]()


def role(servers: int, tp: int, device: str = "", shares: tuple[int, ...] = ()) -> Request:
    trainer = TrainerDevices(shares) if shares else None
    terms = ServerTerms(FleetSpec(), Path("model"), tp, shares=trainer, device=device)
    return Request("server", servers, 8, "stage", terms)


def test_each_role_has_neighbours_of_its_own_from_the_last_gpu_down() -> None:
    places = role_places([role(2, 1), role(1, 4)], [EIGHT], NOBODY)
    assert places == {1: (4,), 0: (3, 2)}, "the largest servers first"


def test_a_role_that_names_a_kind_gets_it_before_those_that_take_any() -> None:
    policy, judge = role(2, 4), role(1, 4, "H200")
    assert role_places([policy, judge], [EIGHT, EIGHT_MORE], NOBODY) == {1: (13,), 0: (9, 4)}


def test_gpus_of_other_leases_are_left_out_until_they_come_free() -> None:
    wanted = [role(1, 4), role(1, 2)]
    assert role_places(wanted, [EIGHT], frozenset({7})) == {0: (3,), 1: (1,)}
    assert role_places(wanted, [EIGHT], frozenset({2, 5})) is None


def test_a_policy_that_takes_turns_with_its_trainer_leaves_those_gpus_to_nobody() -> None:
    places = role_places([role(1, 2, shares=(6, 7)), role(1, 2)], [EIGHT], NOBODY)
    assert places == {1: (4,)}


def test_what_can_never_be_is_refused_and_says_what_there_is() -> None:
    with pytest.raises(InputError, match=r"need 2 x 4, 1 x 1 GPUs.*hosts have 8 h100"):
        role_places([role(2, 4), role(1, 1)], [EIGHT], NOBODY)
    with pytest.raises(InputError, match=r"no host has GPUs of kind 'h200'; there are h100"):
        role_places([role(1, 1), role(1, 1, "h200")], [EIGHT], NOBODY)


def test_without_gpus_servers_share_cores_and_need_no_numbers() -> None:
    assert role_places([role(1, 1), role(1, 1)], [Host("", "", 0)], NOBODY) == {}
