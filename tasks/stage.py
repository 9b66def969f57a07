"""The stage protocol: what a stage is told, and what it may use.

A stage = a spec (pydantic, everything in it changes the result) + input artifacts -> one artifact.
The body is `async def run(spec, context) -> dict[str, float]`: it fills `context.out` and returns
the artifact's summary metrics. It knows neither Prefect nor the store nor the attempt protocol.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from engines.megatron.spec import ROLES, Parallel, Role
from engines.weights.spec import WeightTransport
from infra.config import Config
from infra.errors import InputError
from infra.store.manifest import StageWarning
from infra.store.removal import NoteKind, Retention
from infra.user_files import UserFiles

if TYPE_CHECKING:
    from engines.megatron.spec import Optimizer, TrainerSettings
    from engines.sglang.spec import FleetSpec
    from engines.types import Split
    from tasks.domain import Domain, HookSpec, ScoredDomain
    from tasks.message_files.spec import RowFiles
    from tasks.path_context import Place
    from tasks.policy import PolicySettings
    from tasks.served.served_roles import ServedTeacher

RANK = "engines.megatron.ranks.rank:TrainerRank"
SERVERS = "engines.sglang.servers.server_units:ServerUnits"
"""what trains and what generates, in processes that outlive a stage"""
ADMITTED = "admitted_problems"
"""the input that an `admit` or a `screen` made: no domain can have this name, as it has an
underscore. Of a stage that draws some pools alone the name goes on with theirs"""
_POOL = "_of_pool_"


def admitted_role(pools: Sequence[str] = ()) -> str:
    """Example: admitted_problems_of_pool_hard"""
    return _POOL.join([ADMITTED, *pools])


def admitted_pools(role: str) -> list[str] | None:
    """The pools in such a name, none where all are meant; None for the name of another input."""
    name, *pools = role.split(_POOL)
    return pools if name == ADMITTED else None


class StageSpec(Config):
    """Base of every stage's spec; each field enters the digest.

    A kind that can stand in a path has a field `settings`: what a person writes there. The
    properties say what a kind does, and nobody asks for its class: a kind overrides those that
    differ from a stage without a model.
    """

    kind: ClassVar[str]
    makes: ClassVar[Literal["model", "data", "rollouts", "problems", "nothing"]] = "nothing"
    """what a path goes on with: the `model` that it made; the base and the `data` that it made; the
    model before it and the `rollouts` that it made; what there was before it, and only the
    `problems` that it admitted; or what there was before it"""
    seed: int = 0

    @classmethod
    def in_path(cls, settings: Any, place: Place) -> tuple[Self, dict[str, str]]:
        """The spec of a stage at a place of a path, and by role the stages that its inputs come
        from. Raises InputError for a place where the kind cannot stand."""
        made = cls.model_validate({"seed": place.seed, "settings": settings})
        return made, {"model": place.model}

    @property
    def may_keep_worse_answers(self) -> bool:
        """Tell of a stage that makes data whether some answers may be better than others to the
        same problem."""
        return True

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        """Return what its ranks train, by the names of `engines.megatron.spec`."""
        return ()

    @property
    def trainer(self) -> TrainerSettings | None:
        """Return how they train; None where nothing is trained."""
        return None if self.policy is None else self.policy.trainer

    @property
    def fleet(self) -> FleetSpec | None:
        """The servers that it generates with; None where nothing is generated."""
        return None if self.policy is None else self.policy.fleet

    @property
    def sampled_domains(self) -> Sequence[Domain | ScoredDomain]:
        """Whose problems it generates answers for, or tries."""
        return ()

    @property
    def policy(self) -> PolicySettings | None:
        """Return how a policy learns from its own samples; None where none does."""
        return None

    @property
    def has_teachers(self) -> bool:
        """Return whether models score what the policy samples."""
        return False

    @property
    def served_teachers(self) -> Mapping[str, ServedTeacher]:
        """Return the teachers that are behind servers, by domain."""
        return {}

    @property
    def samples_beside_training(self) -> bool:
        """Return whether the clock decides what a step trains on."""
        return False

    @property
    def rollout_parts(self) -> Mapping[str, HookSpec]:
        """By field, those that choose what is drawn, kept and taken, where a person named any."""
        return {}

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        """Each that is written in its settings: where, and how many updates it makes."""
        yield from ()

    @property
    def drawn(self) -> Mapping[Split, int]:
        """Return how many problems or demonstrations of a domain's split it needs at once."""
        return {}

    @property
    def most_problems(self) -> int:
        """Return how many problems it draws of each domain at most: later stages of the kind in its
        path begin after them."""
        return 0

    @property
    def kept_pools(self) -> Sequence[str]:
        """Pools of the problems that it admits, where it asks a model how hard they are."""
        return ()

    @property
    def imported_folder(self) -> str | None:
        """The model folder that it imports."""
        return None

    @property
    def served_folder(self) -> str | None:
        """The folder of a model that it imports for servers alone, of whatever family."""
        return None

    @property
    def message_files(self) -> Sequence[RowFiles]:
        """The user's own files that it trains on: its settings have them as `data`."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        ranks = (RANK, *(ROLES[role] for role in self.trained_roles))
        return (ranks if self.trained_roles else ()) + ((SERVERS,) if self.fleet else ())

    def problems(self) -> Iterator[str]:
        """Settings that contradict each other, each as `field: reason; what to do`."""
        yield from ()

    def cautions(self) -> Iterator[str]:
        """Yield what can run and will hardly do what it was meant for, in the same form."""
        yield from ()


class RoleResources(Config):
    """Where a model runs that is served beside the policy; never changes what it answers."""

    servers: PositiveInt = 1
    """SGLang servers leased for it"""
    tp_per_server: PositiveInt = 1
    """devices of one server"""
    device: str = ""
    """the kind of GPU that it wants, as Ray names it, e.g. h200; empty: any"""


class StageResources(Config):
    """Where a stage runs; never changes what it produces beyond floating-point order."""

    trainer: Parallel = Parallel()
    """layout of the trainer's ranks"""
    critic: Parallel | None = None
    """layout of a critic's ranks; None: the same as the trainer's"""
    servers: PositiveInt = 1
    """SGLang servers leased for generation"""
    tp_per_server: PositiveInt = 1
    """devices of one server"""
    share: bool = False
    """whether trainer and servers are on the same devices and take turns: one sleeps while the
    other works; false: each has its own. For stages that do both, `rl` and `opd`"""
    roles: dict[str, RoleResources] = Field(default_factory=dict)
    """by role, for models that rewards ask, and served teachers; one not named has one server"""
    rollout_workers: NonNegativeInt = 0
    """processes, on any host, that roll out the problems of a stage; 0: the stage's own"""
    weights: WeightTransport = WeightTransport()
    """how the policy's weights reach the servers"""
    checkpoints: Retention = Retention()
    """which checkpoints are kept while the stage is not done"""
    stall_seconds: PositiveFloat = 1800.0
    """longest time without a finished step, rollout or checkpoint; after it the stacks of all its
    processes are written to a file and the stage is retried"""

    @property
    def of_critic(self) -> Parallel:
        """The layout of a critic's ranks, for a stage that has one."""
        return self.critic or self.trainer

    def of_role(self, name: str) -> RoleResources:
        return self.roles.get(name) or RoleResources()


class Devices(Config):
    """GPUs that the recipe is planned for. `check` compares what its stages need with them."""

    memory_gb: PositiveFloat
    """memory of each, in 10^9 bytes, e.g. 80"""
    per_host: PositiveInt
    """of one host"""
    hosts: PositiveInt = 1
    kind: str = ""
    """as Ray names it, e.g. h100; roles ask for it as `device`"""

    @property
    def num(self) -> int:
        return self.per_host * self.hosts


class Resources(Config):
    """What the recipe may use of the cluster, and how its stages share it."""

    default: StageResources = StageResources()
    """for every stage that is not listed in `stages`"""
    stages: dict[str, StageResources] = Field(default_factory=dict)
    """by stage name, e.g. `unified-sft`"""
    concurrent_stages: PositiveInt = 2
    """number of stages that run at once"""
    trainer_ranks: PositiveInt = 2
    """number of warm trainer processes in the pool"""
    servers: PositiveInt = 2
    """number of SGLang servers that may run"""
    devices: Devices | None = None
    """GPUs that all of this must fit on; None: those of this host, if it has any"""
    other_devices: list[Devices] = Field(default_factory=list)
    """GPUs of other kinds, for roles that ask for them as `device`"""

    def of(self, stage: str) -> StageResources:
        return self.stages.get(stage, self.default)


class Checkpoints(Protocol):
    """A stage's durable checkpoints: whole folders, newest valid first; outlive attempts."""

    def begin(self, step: int, folder: Path) -> None:
        """From now on other hosts put what they write of `folder` into durable storage themselves,
        where they reach it; `save` completes the checkpoint."""
        ...

    def save(
        self, step: int, folder: Path, score: float | None = None, rollouts_from: int = 0
    ) -> None:
        """Move a finished local folder into durable storage; visible only when complete.

        Of checkpoints with a `score`, the highest is the best. Rollouts that were noted under a
        number below `rollouts_from` are in it, or not needed any more.
        """
        ...

    def latest(self) -> tuple[int, Path] | None:
        """Step and verified local copy of the newest complete checkpoint, if any."""
        ...

    def note(self, kind: NoteKind, number: int, data: bytes) -> None:
        """Store a piece of work now, before a checkpoint contains it."""
        ...

    def notes(self, kind: NoteKind, first: int, last: int | None = None) -> list[bytes]:
        """Return what this and earlier attempts noted under numbers from `first` to `last` (None:
        to the end), in the order in which they did."""
        ...


class Results(Protocol):
    """Results of a part of a stage, for others with that part. `spec` and `inputs` (digests by
    role) are those of a stage of this part alone; a result goes with `model`, one of the inputs."""

    def read(self, spec: StageSpec, inputs: Mapping[str, str], model: str) -> Any: ...

    def keep(
        self, spec: StageSpec, inputs: Mapping[str, str], model: str, results: Any
    ) -> None: ...


@dataclass(slots=True)
class StageContext:
    """What a body may use. All paths are local; the wrapper moves them to and from the store."""

    name: str
    """the stage's name in the recipe, e.g. `reasoning-rl`"""
    holder: str
    """unique id of this attempt: the Ray submission id; holds leases"""
    inputs: Mapping[str, Path]
    """verified folders of the input artifacts by role, e.g. {"model": ...}"""
    input_records: Mapping[str, Mapping[str, Any]]
    """their manifests' records (digest, kind, metrics), for provenance"""
    out: Path
    """empty folder to fill"""
    scratch: Path
    """for temporary files; removed when the attempt ends"""
    checkpoints: Checkpoints
    resources: StageResources
    pool: Resources
    reporter: Reporter
    stop: StopFlag = field(default_factory=lambda: StopFlag())
    pulse: Pulse = field(default_factory=lambda: Pulse())
    hooks: UserFiles = field(default_factory=UserFiles)
    """the user's own files, for processes that the stage starts"""
    results: Results | None = None
    """those of earlier stages; None where the stage was told to run again"""

    @property
    def folder_name(self) -> str:
        """For what a stage keeps beside the store: the holder's name without run and attempt."""
        stage = self.holder.rpartition("--")[2]
        return stage.rpartition("-a")[0] or stage


class Reporter(Protocol):
    """Where a body's numbers and words go (MLflow, the Prefect progress artifact, the log)."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def progress(self, done: int, total: int, message: str = "") -> None: ...

    def warn(self, message: str) -> None: ...

    def keep_warning(self, warning: StageWarning) -> None:
        """Say it now, and with the artifact to every run that uses it, at the run's end."""
        ...

    def dataset(self, name: str, rows: int, source: str) -> None: ...


@dataclass(slots=True)
class Pulse:
    """When the stage last got on; read by the watchdog's thread."""

    _at: float = field(default_factory=time.monotonic)
    _waits: int = 0

    def beat(self) -> None:
        self._at = time.monotonic()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """For what others hold, which has a bound of its own: no standstill."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self.beat()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._waits else time.monotonic() - self._at


@dataclass(slots=True)
class StopFlag:
    """Set by SIGTERM: the body saves a checkpoint at its next step and raises `Stopped`."""

    requested: bool = False


class Stopped(Exception):
    """The body left a checkpoint and ended early because it was asked to."""


def require_inputs(context: StageContext, roles: Sequence[str]) -> None:
    """Raises InputError when the stage was not given an input that it needs."""
    missing = [role for role in roles if role not in context.inputs]
    if missing:
        raise InputError(
            f"stage {context.name!r} has no input {', '.join(missing)}; "
            f"it was given {', '.join(sorted(context.inputs)) or 'none'}"
        )
