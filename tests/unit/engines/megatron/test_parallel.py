"""What is said to torch of a trainer's devices, and Megatron on a host without any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from engines.megatron import device, parallel
from engines.megatron.spec import Parallel
from infra.cuda import has_driver_library
from infra.processes.network import free_ports

pytestmark = pytest.mark.unit


def test_no_later_group_is_a_part_of_the_trainers_communicator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch splits a group from the default one if that is bound to a device, and the group by
    which servers get weights has members that are not in the default one."""
    monkeypatch.setattr(device, "prepare", lambda: None)
    monkeypatch.setattr(device, "has_cuda", lambda: True)
    monkeypatch.setattr(device, "backend", lambda: "gloo")
    monkeypatch.setattr(device, "device", lambda: torch.device("cpu", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    parallel.start_parallel(0, 1, f"tcp://127.0.0.1:{free_ports(1)[0]}", Parallel())
    try:
        group = dist.group.WORLD
        assert group is not None
        assert group.bound_device_id is None
    finally:
        parallel.stop_parallel()


def test_ranks_on_gpus_wait_for_each_other_outside_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's watchdog ends whoever waits long, whatever another rank asks of servers meanwhile."""
    made: list[str] = []

    def begin(backend: str, **_: object) -> None:
        made.append(backend)

    def group(backend: str, **_: object) -> dist.ProcessGroup:
        made.append(backend)
        return dist.ProcessGroup(0, 2)

    monkeypatch.setattr(device, "prepare", lambda: None)
    monkeypatch.setattr(device, "has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(parallel, "store_at", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", begin)
    monkeypatch.setattr(dist, "new_group", group)
    joined = parallel.parallel_state
    monkeypatch.setattr(joined, "initialize_model_parallel", lambda **_: None)
    parallel.start_parallel(0, 2, "tcp://127.0.0.1:1", Parallel(tp=2))
    try:
        assert made == ["nccl", "gloo"]
        assert parallel.control_group() is not None
    finally:
        monkeypatch.setattr(device, "has_cuda", lambda: False)
        parallel.stop_parallel()
    assert parallel.control_group() is None


@pytest.mark.skipif(has_driver_library(), reason="this host has a driver")
def test_megatron_is_imported_on_a_host_without_a_driver(tmp_path: Path) -> None:
    """Megatron does without this package of the GPU lock where it is missing; there it breaks."""
    package = tmp_path / "flash_mla/__init__.py"
    package.parent.mkdir()
    package.write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import engines.megatron\n"
        "try:\n    import flash_mla\n"
        "except ImportError:\n    print('missing')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "missing\n", done.stderr[-500:]
