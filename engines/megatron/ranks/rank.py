"""One trainer rank: the process that holds torch, Megatron and at most one Trainer.

A rank is warm as long as it lives: the imports (seconds) are paid once, a lease pays only for the
process group and the model. It is single-threaded; the owner of devices and its group call it,
nobody else. Importing this file imports no torch.
"""

from __future__ import annotations

import gc
import os
import socket
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from engines.devices.units import TRAINER_PARTS, SentFolder, TrainerPart, on_this_host
from engines.devices.waiting_time import ProcessAddress, address_of_this_actor
from engines.megatron.spec import ROLES, CriticSettings, Optimizer, Parallel, Role, TrainerSettings
from engines.rendezvous import listen, use_interface_of
from engines.types import Sample
from engines.weights.spec import WeightTransport
from infra.access import is_loopback
from infra.errors import EngineError, OutOfMemory, TributaryError
from infra.hooks import resolve
from infra.processes.leftovers import claim_private_folder
from infra.processes.memory import give_back_freed_memory, is_memory_error
from infra.user_files import UserFiles, install_hooks

if TYPE_CHECKING:
    from engines.megatron.train.training import Training


_NEEDED: Mapping[str, frozenset[TrainerPart]] = {
    "hold": frozenset(),
    "publish": frozenset({"weights"}),
    "export": frozenset({"weights"}),
    "begin_save": frozenset({"weights", "optimizer"}),
    "finish_save": frozenset(),
    "load": frozenset({"weights", "optimizer"}),
}
"""what has to be awake for a method; for all others, everything"""


@dataclass(frozen=True, slots=True)
class TrainerJob:
    """Describes the Trainer or Critic that every rank of a group builds."""

    spec: TrainerSettings
    optimizer: Optimizer
    parallel: Parallel
    model: Path
    """HF folder with the starting weights, on the job's host"""
    seed: int
    total_steps: int
    """optimizer steps of the whole stage; the learning rate's decay ends there"""
    hooks: UserFiles = field(default_factory=UserFiles)
    """the user's own files; a custom loss or advantage is one of them"""
    critic: CriticSettings | None = None
    """how the model learns values, if that is its role; None: it is a policy"""
    weights: WeightTransport = field(default_factory=WeightTransport)
    """how a policy's weights reach servers"""
    policy: Role = "policy"
    """what a policy learns from"""
    copy: SentFolder | None = None
    """of `model`, for ranks on other hosts than the job's; the group fills it in"""

    @property
    def role(self) -> Role:
        return self.policy if self.critic is None else "critic"


class Rank(Protocol):
    """Lists what the owner of devices and a group ask of a rank process; TrainerRank is the real
    one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Become warm, with these variables in the process's environment."""
        ...

    def place(self) -> ProcessAddress:
        """Answers only when the process is warm; also the sign of life."""
        ...

    def meeting(self, host: str) -> str:
        """Return where the ranks of a group can meet, e.g. "tcp://127.0.0.1:29500": this one
        listens there, at this address of its host, until it starts."""
        ...

    def start(self, job: TrainerJob, rank: int, rendezvous: str) -> None:
        """Join the process group and build the Trainer or Critic; all ranks at once."""
        ...

    def call(
        self, method: str, arguments: Sequence[Any], samples: Sequence[Sample] | None = None
    ) -> Any:
        """Call a method of the Trainer; only rank 0 answers, the others return None.

        `samples` travel apart from the `StepInputs` that they belong to: several calls use them.
        """
        ...

    def stop(self) -> None:
        """Forget the Trainer and leave the process group; the imports stay."""
        ...


@dataclass(frozen=True, slots=True)
class RunningRank:
    """One living rank: its Ray actor handle and where it runs."""

    actor: Any
    place: ProcessAddress
    gpu: int | None = None
    """its number in the cluster"""


RankUse = tuple[RunningRank, ...]
"""what a lease on ranks grants; the i-th serves as global rank i"""


class TrainerRank:
    """The real Rank, made a Ray actor by the host agent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Before torch loads OpenMP. A Ray runtime environment would do the same, but it keeps
        # the rank from using a worker process that Ray has started ahead.
        os.environ.update(environment)
        claim_private_folder()
        for warm in ("parallel", "rl.trainer", "train.value_trainers"):
            import_module(f"engines.megatron.{warm}")
        # Imports stay for good, and the end of a lease collects garbage: looking through all of
        # them each time took 0.4 s.
        gc.freeze()

        self._trainer: Training | None = None
        self._rank = -1
        self._listener: socket.socket | None = None

    def place(self) -> ProcessAddress:
        return address_of_this_actor()

    def meeting(self, host: str) -> str:
        self._stop_listening()
        self._listener = listen(host)
        return f"tcp://{host}:{self._listener.getsockname()[1]}"

    def start(self, job: TrainerJob, rank: int, rendezvous: str) -> None:
        if self._trainer is not None:
            raise EngineError(f"rank {rank} still holds the Trainer of an earlier lease")
        self._rank = rank
        listener, self._listener = self._listener, None
        with _told_plainly():
            install_hooks(job.hooks)
            self._trainer = _joined_trainer(job, rank, rendezvous, listener)

    def call(
        self, method: str, arguments: Sequence[Any], samples: Sequence[Sample] | None = None
    ) -> Any:
        if self._trainer is None:
            raise EngineError(f"rank {self._rank} has no Trainer: its lease was not started")
        if missing := self._trainer.asleep & _NEEDED.get(method, TRAINER_PARTS):
            raise EngineError(
                f"rank {self._rank} is asleep ({', '.join(sorted(missing))}): `{method}` has to"
                " wait until `hold` wakes it"
            )
        if samples is not None:
            arguments = [replace(arguments[0], samples=samples), *arguments[1:]]
        with _told_plainly():
            answer = getattr(self._trainer, method)(*map(on_this_host, arguments))
        if samples is not None:
            # Servers of the same host generate next, and what the step computed is gone.
            give_back_freed_memory()
        return answer if self._rank == 0 else None

    def stop(self) -> None:
        from engines.megatron.parallel import stop_parallel

        if self._trainer is not None:
            self._trainer.close()
        self._trainer, self._rank = None, -1
        self._stop_listening()
        stop_parallel()
        give_back_freed_memory()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _joined_trainer(
    job: TrainerJob, rank: int, rendezvous: str, listener: socket.socket | None
) -> Training:
    from engines.megatron.parallel import start_parallel

    if not is_loopback(urlsplit(rendezvous).hostname or ""):
        use_interface_of(address_of_this_actor().host)
    start_parallel(rank, job.parallel.world_size, rendezvous, job.parallel, listener)
    # By name: a stage's code identity holds the class of its own roles alone.
    make = resolve("role", ROLES[job.role], {})
    model = job.copy.here() if job.copy else job.model
    return make(job.spec, job.optimizer, job.parallel, model, job.seed, job.total_steps, job.critic)


@contextmanager
def _told_plainly() -> Generator[None]:
    """Errors of torch and Megatron leave as text: their classes would make a driver import torch.

    The traceback stays in this rank's log.
    """
    try:
        yield
    except TributaryError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        if is_memory_error(error):
            raise OutOfMemory(text, "trainer") from None
        raise EngineError(text) from None
