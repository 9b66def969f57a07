"""Too little memory is told from other failures, and the advice says from what to what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.devices.units import TrainerPart
from engines.devices.waiting_time import ProcessAddress, translated
from engines.megatron.ranks.rank import TrainerRank
from engines.megatron.spec import Optimizer, TrainerSettings
from infra.errors import EngineError, OutOfMemory
from infra.processes import memory
from infra.processes.memory import (
    give_back_freed_memory,
    is_memory_error,
    kernel_kills,
    memory_words,
    tells_of_memory,
)
from tasks.durable.attempts import RunPlace, StageWork, _lost
from tasks.durable.memory_advice import Whose, memory_advice
from tasks.sft.spec import SftSettings, SftSpec
from tasks.stage import Resources, StageResources
from tests.programs.bench.process_memory import process_memory

pytestmark = pytest.mark.unit

SETTINGS = {
    "trainer": {"micro_batch_tokens": 8192},
    "fleet": {"max_total_tokens": 16384, "sglang": {"mem_fraction_static": 0.85}},
}


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "Task was killed due to the node running low on memory.",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_each_part_says_it_in_its_own_words(text: str) -> None:
    assert tells_of_memory(text)


@pytest.mark.parametrize("text", ["MemoryErrors are none", "no server answers", "KeyError: 3"])
def test_other_failures_are_none(text: str) -> None:
    assert not tells_of_memory(text)


def test_a_cause_counts_too() -> None:
    error = RuntimeError("the step failed")
    error.__cause__ = MemoryError()
    assert is_memory_error(error)


class Greedy:
    """A Trainer whose step needs a petabyte."""

    asleep: frozenset[TrainerPart] = frozenset()

    def __init__(self) -> None:
        self.saved = 0

    def begin_save(self) -> None:
        self.saved += 1

    def step(self) -> None:
        import torch

        torch.empty(1 << 50)

    def fault(self) -> None:
        raise ValueError("the loss is nan")


def _rank() -> TrainerRank:
    rank = TrainerRank.__new__(TrainerRank)
    rank._trainer, rank._rank = Greedy(), 0
    return rank


def test_a_rank_that_runs_out_of_memory_is_no_engine_error() -> None:
    with pytest.raises(OutOfMemory, match="allocate") as caught:
        _rank().call("step", ())
    assert not caught.value.retryable
    with pytest.raises(EngineError, match="the loss is nan"):
        _rank().call("fault", ())


def test_a_rank_refuses_what_needs_a_part_that_sleeps() -> None:
    rank = _rank()
    trainer: Any = rank._trainer
    trainer.asleep = frozenset({"frozen", "gradients"})
    rank.call("begin_save", ())
    assert trainer.saved == 1
    with pytest.raises(EngineError, match=r"asleep \(frozen, gradients\): `step` has to wait"):
        rank.call("step", ())
    trainer.asleep = frozenset({"optimizer"})
    with pytest.raises(EngineError, match=r"asleep \(optimizer\): `begin_save`"):
        rank.call("begin_save", ())


def test_what_ray_says_of_a_rank_is_told_apart() -> None:
    from ray.exceptions import OutOfMemoryError, RayActorError

    places = [ProcessAddress("host", 7, "/log")]
    ours = translated(OutOfMemory("RuntimeError: out of memory", "trainer"), "step", 0, places)
    assert isinstance(ours, OutOfMemory)
    assert ours.of == "trainer"
    assert str(ours).startswith("step on rank 0 (host, pid 7, log /log): RuntimeError")
    monitor = OutOfMemoryError("Task was killed due to the node running low on memory.")
    assert isinstance(translated(monitor, "step", 0, places), OutOfMemory)
    # Ray names the OOM killer as one of several possible causes of every death.
    died = RayActorError(error_msg="(1) The process is killed by SIGKILL by OOM killer")
    assert isinstance(translated(died, "step", 0, places), EngineError)


def test_the_advice_names_the_settings_of_who_ran_out() -> None:
    def advice(whose: Whose | None) -> str:
        return memory_advice("agent-rl", SETTINGS, StageResources(), Resources(), whose)

    assert "trainer.micro_batch_tokens: 8192 -> 4096" in advice("trainer")
    assert "fleet" not in advice("trainer")
    assert "fleet.max_total_tokens: 16384 -> 8192" in advice("server")
    assert "mem_fraction_static: 0.85 -> 0.75" in advice("server")
    assert "micro_batch_tokens" not in advice("server")
    assert "micro_batch_tokens" in advice(None)
    assert "concurrent_stages: 2 -> 1" in advice("job")


def test_a_job_that_the_kernel_killed_for_memory_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(memory, "_COUNTERS", counters)
    assert kernel_kills() == 0
    counters.write_text("pgfault 12\noom_kill 3\n")
    assert kernel_kills() == 3
    settings = SftSettings(steps=1, optimizer=Optimizer(lr=1e-3), trainer=TrainerSettings())
    work = StageWork.__new__(StageWork)
    for name, value in {
        "name": "agent-sft",
        "spec": SftSpec(settings=settings),
        "resources": StageResources(),
    }.items():
        object.__setattr__(work, name, value)
    place = RunPlace.__new__(RunPlace)
    object.__setattr__(place, "pool", Resources())
    killed = _lost(work, place, by_kernel=True)
    assert (killed.error, killed.retryable) == ("OutOfMemory", False)
    assert "micro_batch_tokens: 8192 -> 4096" in killed.message
    assert _lost(work, place, by_kernel=False).retryable
    by_ray = _lost(work, place, by_kernel=False, said="22.75GB / 23.54GB, above 0.95")
    assert by_ray.retryable, "what else ran on the machine may be over"
    assert "short of memory" in by_ray.message
    assert "22.75GB / 23.54GB, above 0.95" in by_ray.message
    assert "concurrent_stages" in by_ray.message


def test_what_ray_says_of_a_killed_worker_is_found_with_its_figures() -> None:
    log = [
        "step 3: loss=0.5",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "Memory on the node (IP: 10.0.0.2) was 22.75GB / 23.54GB (0.966426), which exceeds the",
        "memory usage threshold of 0.95.",
    ]
    said = memory_words(log)
    assert said.startswith("ray.exceptions.OutOfMemoryError")
    assert "22.75GB / 23.54GB" in said
    assert memory_words(["2 Workers (tasks / actors) killed due to memory pressure (OOM), ..."])
    assert memory_words(["step 3: loss=0.5", "memory of this role: 3 GB"]) == ""


def test_freed_memory_between_live_blocks_goes_back() -> None:
    blocks = [b"x" * 1000 + bytes(1) for _ in range(50_000)]
    kept = blocks[::64]
    before = process_memory("VmRSS")
    blocks.clear()
    give_back_freed_memory()
    assert before - process_memory("VmRSS") > 20 << 20, f"{len(kept)} blocks are kept"


@pytest.mark.parametrize(("asked", "heaps"), [("", 4), ("use_one_heap()", 0)])
def test_threads_share_a_heap_where_that_is_asked_for(asked: str, heaps: int) -> None:
    """glibc reserves 64 MiB for each heap of threads, most of it without access."""
    code = f"""
import re, threading
from infra.processes.memory import use_one_heap
{asked}
ready = threading.Barrier(5)
def work():
    blocks = [bytes(1000) for _ in range(100)]
    ready.wait(), ready.wait()
for _ in range(4):
    threading.Thread(target=work).start()
ready.wait()
maps = open("/proc/self/maps").read()
ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ---p 00000000 00:00 0 *$", maps, re.M)
print(sum(int(end, 16) - int(start, 16) > 32 << 20 for start, end in ranges))
ready.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(heaps), done.stderr
