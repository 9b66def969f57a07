"""Rank processes that outlive a test: started once, handed jobs, each job in any layout."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engines.megatron.spec import ROLES, CriticSettings, Optimizer, Parallel, Role, TrainerSettings
from infra.hooks import resolve
from infra.processes.network import free_ports

REPLY_TIMEOUT = 120.0
MOST_THREADS = 40
"""of a rank between jobs; one layout's groups of gloo alone have 48"""
EACH_LAYOUT = bool(os.environ.get("TRIBUTARY_TEST_EACH_LAYOUT"))
"""all combinations (`make layouts`), or those that say most"""
ALONE = Parallel()
LAYOUTS = {
    "tp2": Parallel(tp=2),
    "pp2": Parallel(pp=2),
    "cp2": Parallel(cp=2),
    "dp2": Parallel(dp=2),
}
TP2_PP2 = Parallel(tp=2, pp=2)
"""two more processes, for what has to be shown of both together"""
COMBINED = {
    "tp2-pp2": TP2_PP2,
    "tp2-cp2": Parallel(tp=2, cp=2),
    "dp2-cp2": Parallel(dp=2, cp=2),
}
EXPERTS = {
    "ep2": Parallel(dp=2, ep=2),
    "tp2-ep2": Parallel(tp=2, ep=2, etp=1),
    "tp2-dp2-ep2": Parallel(tp=2, dp=2, ep=2),
}
"""of mixtures of experts only"""
RECOMPUTE: dict[str, dict[str, Any]] = {
    "kept": {},
    "attention": {"recompute_granularity": "selective"},
    "attention-mlp": {
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn", "mlp"],
    },
    "layers": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
"""trainer.megatron: which activations are computed again in the backward pass"""
LENGTHS = [40, 7, 23, 12, 31, 18, 5, 9]
"""of the sequences that are trained in each of them"""
SPEC = TrainerSettings(micro_batch_tokens=96)
OPTIMIZER = Optimizer(lr=1e-3, weight_decay=0.01, warmup_steps=2)


@dataclass(frozen=True)
class TrainerArgs:
    """What a job builds its Trainer from."""

    model: Path
    parallel: Parallel = ALONE
    spec: TrainerSettings = SPEC
    optimizer: Optimizer = OPTIMIZER
    seed: int = 5
    total_steps: int = 10
    critic: CriticSettings | None = None
    """how it learns values; None: a policy"""
    policy: Role = "policy"
    """what a policy learns from"""


class Ranks:
    """Two warm processes, and more from the first layout on that needs them; a layout of one uses
    the first of them only."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        self._grow(2)

    def _grow(self, count: int) -> None:
        for _ in range(len(self._pipes), count):
            pipe, process = self._started()
            self._pipes.append(pipe)
            self._processes.append(process)

    def _started(self) -> tuple[Connection, Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        return ours, process

    def run(self, job: Callable[..., Any], args: TrainerArgs, *rest: Any) -> Any:
        """`job(trainer, *rest)` on every rank of the layout; returns rank 0's answer, or raises
        the error of the first rank that had one."""
        world = args.parallel.world_size
        self._grow(world)
        rendezvous = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        for rank, pipe in enumerate(self._pipes[:world]):
            pipe.send((job, args, rest, rank, rendezvous))
        answers = []
        for pipe in self._pipes[:world]:
            assert pipe.poll(REPLY_TIMEOUT), "a rank did not answer in time"
            answers.append(pipe.recv())
        for error, _ in answers:
            if error is not None:
                raise error
        return answers[0][1]

    def stop(self) -> None:
        """`join` would wait for whatever inherited a rank's pipes, too: torch's manager of shared
        memory stays as long as a server maps some of it."""
        from tests.parts.machine import until  # no rank needs what it imports

        for process in self._processes:
            process.kill()
        for process in self._processes:
            until(lambda ended=process: ended.exitcode is not None)


def _serve(pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes of its own, which import torch
    import torch

    from engines.megatron.rl.trainer import start_parallel, stop_parallel

    torch.set_num_threads(1)
    while True:
        job, args, rest, rank, rendezvous = pipe.recv()
        trainer = None
        try:
            start_parallel(rank, args.parallel.world_size, rendezvous, args.parallel)
            made = (args.spec, args.optimizer, args.parallel, args.model, args.seed)
            role = ROLES[args.policy if args.critic is None else "critic"]
            trainer = resolve("role", role, {})(*made, args.total_steps, args.critic)
            answer = (None, job(trainer, *rest))
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = (error.with_traceback(None), None)
        if trainer is not None:
            trainer.close()
        trainer = None
        stop_parallel()
        if answer[0] is None and (left := len(os.listdir("/proc/self/task"))) > MOST_THREADS:
            answer = (AssertionError(f"a job left {left} threads: its groups are still held"), None)
        pipe.send(answer)
