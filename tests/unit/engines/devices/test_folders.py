"""Folders of ranks on hosts that are lost, or that lost what ranks wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray

from engines.devices import folder_transfer
from engines.devices.folder_transfer import (
    make_stand_in,
    other_nodes,
    stand_in_sizes,
    upload_stand_in,
)
from infra.errors import EngineError
from infra.store.uploads import Destination

pytestmark = pytest.mark.unit
FOLDER = Path("scratch/checkpoint-1/trainer")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the head says."""
    names = {"head": "10.0.0.9", "x": "10.0.0.2", "y": "10.0.0.3"}
    known = [{"NodeID": n, "NodeManagerAddress": a, "Alive": True} for n, a in names.items()]
    monkeypatch.setattr(ray, "nodes", lambda: known)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.9")
    monkeypatch.setattr(folder_transfer, "own_node", lambda: "head")
    return known


def test_a_host_that_is_lost_is_not_left_out(nodes: list[dict[str, Any]]) -> None:
    addresses = ["10.0.0.9", "10.0.0.2", "10.0.0.2", "10.0.0.3"]
    assert other_nodes(addresses) == ["x", "y"]
    assert other_nodes(["10.0.0.9"]) == []
    nodes[1]["Alive"] = False
    with pytest.raises(EngineError, match=r"host 10\.0\.0\.2 of the ranks is lost"):
        other_nodes(addresses)


def test_what_a_host_does_not_have_any_more_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    for read in (stand_in_sizes, lambda path: upload_stand_in(path, Destination(root="", path=""))):
        with pytest.raises(EngineError, match=r"stands in for .*trainer, is gone"):
            read(FOLDER)
    make_stand_in(FOLDER)
    assert stand_in_sizes(FOLDER) == {}, "a rank that had nothing to write"


def test_what_killed_jobs_left_goes_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    make_stand_in(FOLDER)
    (made,) = (tmp_path / "cache" / "work").iterdir()
    (made / "of an attempt that ended").touch()
    old, young = made.with_name("old"), made.with_name("young")
    for other in (old, young):
        other.mkdir()
    os.utime(old, (1, 1))
    make_stand_in(FOLDER)
    assert not list(made.iterdir())
    assert (old.exists(), young.exists()) == (False, True)
