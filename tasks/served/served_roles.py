"""Which models the rewards of a stage ask, and which served ones teach it, by role.

Teachers behind servers are of any size. They are asked for the logprobs of the student's tokens,
which they read as they are, so only the vocabulary has to be the student's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from engines.sglang.spec import FleetSpec, server_address
from engines.types import Sample
from infra.config import RESULT_NEUTRAL, Config
from infra.errors import EngineError, InputError
from infra.hub import is_hub_name
from rewards.judges.served import REWARD_MODEL
from tasks.domain import USER, Domain, RewardSpec, ScoredDomain

if TYPE_CHECKING:
    from engines.sglang.roles.role_client import RoleAddress, RoleClient
    from engines.sglang.roles.token_scores import Scorer
    from engines.step_inputs import Values
    from tasks.stage import StageSpec


INPUT = "role."
"""what the names of a stage's inputs begin with that are such models; no other name has a dot"""
AnyDomain: TypeAlias = Domain | ScoredDomain
TIMEOUT_S = 600.0
"""of one sample, once it has a place at a server"""


@dataclass(frozen=True, slots=True)
class ServedRole:
    """A model that is served beside the policy's. Example: ServedRole("judge", "base", FleetSpec(),
    has_head=False)"""

    name: str
    model: str
    """as the recipe names it"""
    fleet: FleetSpec
    has_head: bool
    """whether it is a reward model: it answers with numbers, and generates nothing"""
    reads_outputs: bool = False
    """whether a score is read from what the model computes of a prompt, and not from its answer"""

    @property
    def input(self) -> str:
        """Return the role's name among a stage's inputs."""
        return f"{INPUT}{self.name}"

    @property
    def server_fleet(self) -> FleetSpec:
        """Return what its servers are started with."""
        if not self.has_head:
            return self.fleet
        options = {**self.fleet.sglang, "is_embedding": True}
        return self.fleet.model_copy(update={"sglang": options})


def is_role(name: str) -> bool:
    """Return whether an input of a stage is such a model."""
    return name.startswith(INPUT)


def rewards_of(domain: AnyDomain) -> Iterable[RewardSpec]:
    return domain.rewards if isinstance(domain, Domain) else domain.outcomes


def roles_of(term: RewardSpec) -> Iterator[ServedRole]:
    """Yield the roles of a reward; none of a reward that asks no model."""
    if term.served is None:
        return
    has_head = term.name == REWARD_MODEL
    reads_outputs = has_head or term.options.get("pattern") is None
    for role, model in term.served_models.items():
        yield ServedRole(role, model, term.served.fleet, has_head, reads_outputs)


def served_roles(
    domains: Iterable[AnyDomain], teachers: Iterable[ServedRole] = ()
) -> dict[str, ServedRole]:
    """Return each role once, by name, those of teachers last. Raises InputError for a role that is
    described in two ways."""
    roles: dict[str, ServedRole] = {}
    for role in (*(role for domain in domains for role in _asked(domain)), *teachers):
        known = roles.get(role.name, role)
        both = replace(role, reads_outputs=known.reads_outputs or role.reads_outputs)
        roles[role.name] = both
        if replace(known, reads_outputs=both.reads_outputs) != both:
            raise InputError(
                f"the role {role.name!r} is {_said(known)} and {_said(role)}: one role has one"
                " model and one `fleet`; give one of them another `role`"
            )
    return roles


def _asked(domain: AnyDomain) -> Iterator[ServedRole]:
    for term in rewards_of(domain):
        yield from roles_of(term)
    if domain.user is not None and (served := domain.user.served) is not None:
        for role, model in served.by_role(USER).items():
            yield ServedRole(role, model, served.fleet, has_head=False)


def _said(role: ServedRole) -> str:
    return f"{'a reward model' if role.has_head else 'a language model'}, {role.model},"


_STAGE = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""a kind may have an underscore: agent-mid_training"""


def is_stage(model: str) -> bool:
    """Return whether a served model is named as a stage of the recipe, and not by its folder."""
    return not is_hub_name(model) and _STAGE.fullmatch(model) is not None


class RoleClients:
    """The clients of one process: the stage's, or a rollout worker's. They close with the stack."""

    def __init__(
        self,
        stack: AsyncExitStack,
        domains: Iterable[AnyDomain],
        teachers: Iterable[ServedRole] = (),
    ) -> None:
        """Raises InputError for a role that is described in two ways."""
        self._stack = stack
        self.roles: Mapping[str, ServedRole] = served_roles(domains, teachers)
        self.addresses: Mapping[str, RoleAddress] = {}
        """where each role's model is asked; empty before `connect`"""
        self._clients: dict[str, RoleClient] = {}

    def of(self, role: str) -> RoleClient:
        """Return the client for those who ask a role."""
        from engines.sglang.roles.role_client import RoleClient

        return self._clients.setdefault(role, RoleClient(role))

    async def connect(self, addresses: Mapping[str, RoleAddress]) -> None:
        """Raises InputError for a model without a usable tokenizer or chat template."""
        self.addresses = addresses
        self._stack.push_async_callback(self._close)
        for role, address in addresses.items():
            await self.of(role).connect(address)

    async def _close(self) -> None:
        for client in self._clients.values():
            await client.close()


def _address(text: str) -> str:
    return server_address(text) if text else text


class ServedTeacher(Config):
    """Either `model`, for servers of its own, or `url`, of servers that somebody else runs."""

    model: Annotated[str, RESULT_NEUTRAL] = ""
    """a stage of the recipe, or a folder, as of a reward's `served`"""
    role: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """what resources call it; teachers of one role ask the same servers. Empty: DOMAIN-teacher"""
    fleet: FleetSpec = FleetSpec()
    """of its servers"""
    url: Annotated[str, AfterValidator(_address)] = ""
    """an SGLang server or router, e.g. http://10.0.0.2:30000; asked by `/generate`"""
    tokenizer: Annotated[str, RESULT_NEUTRAL] = ""
    """with `url`: a folder with the tokenizer that its model has, to be compared"""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if bool(self.model) == bool(self.url):
            raise ValueError("give exactly one of `model: STAGE-OR-FOLDER` and `url: ADDRESS`")
        if bool(self.url) != bool(self.tokenizer):
            raise ValueError(
                "tokenizer: belongs to `url`; name a folder with the tokenizer of that server's"
                " model, which is compared with the student's"
            )
        if self.url and (self.role or self.fleet != FleetSpec()):
            raise ValueError("role and fleet: are of servers of its own; leave them out")
        return self

    def served_role(self, domain: str) -> ServedRole | None:
        """Return the teacher's role; None for one at an address."""
        if self.url:
            return None
        name = self.role or f"{domain}-teacher"
        return ServedRole(name, self.model, self.fleet, has_head=False, reads_outputs=True)


def teacher_roles(teachers: Mapping[str, ServedTeacher]) -> list[ServedRole]:
    """Return the roles of the teachers that have servers of their own, by domain."""
    found = (teacher.served_role(domain) for domain, teacher in teachers.items())
    return [role for role in found if role is not None]


def asked_roles(spec: StageSpec) -> dict[str, ServedRole]:
    """The models that a stage's rewards ask, and the served ones that teach it. Raises InputError
    for a role that is described in two ways."""
    return served_roles(spec.sampled_domains, teacher_roles(spec.served_teachers))


class ServedTeachers:
    """The served teachers of a stage: they are asked about each step's samples before the step."""

    def __init__(self, teachers: Mapping[str, ServedTeacher]) -> None:
        self._teachers = dict(teachers)
        self._asked: RoleClients | None = None
        self._external: dict[str, tuple[Scorer, asyncio.Semaphore]] = {}

    @property
    def domains(self) -> list[str]:
        return list(self._teachers)

    @property
    def roles(self) -> list[ServedRole]:
        return teacher_roles(self._teachers)

    def connect(self, stack: AsyncExitStack, asked: RoleClients) -> None:
        """`asked` has the clients of its roles."""
        from engines.sglang.roles.role_client import MOST_ASKED
        from engines.sglang.roles.token_scores import Scorer

        self._asked = asked
        for teacher in self._teachers.values():
            if teacher.url and teacher.url not in self._external:
                scorer = Scorer(teacher.url)
                stack.push_async_callback(scorer.close)
                self._external[teacher.url] = scorer, asyncio.Semaphore(MOST_ASKED)

    async def ask(self, samples: Sequence[Sample]) -> dict[int, Values]:
        """Return by position, of the samples of these domains: the logprob of each token, from the
        first trained one on. Raises InputError, EngineError."""
        places = [n for n, sample in enumerate(samples) if sample.domain in self._teachers]
        found = await asyncio.gather(*(self._logprobs(samples[n]) for n in places))
        return dict(zip(places, found, strict=True))

    async def _logprobs(self, sample: Sample) -> Values:
        import numpy as np

        values = np.zeros(len(sample.tokens), np.float32)
        if sample.num_trained_tokens:
            first = int(sample.loss_mask.argmax())
            ids = sample.tokens.tolist()
            values[first:] = await self._ask(sample.domain, ids, len(ids) - first)
        return values

    async def _ask(self, domain: str, ids: Sequence[int], last: int) -> list[float]:
        teacher = self._teachers[domain]
        role = teacher.served_role(domain)
        if role is not None:
            assert self._asked is not None, "`connect` comes first"
            client = self._asked.of(role.name)
            return await client.token_logprobs(ids, last, timeout_s=TIMEOUT_S)
        scorer, places = self._external[teacher.url]
        async with places:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await scorer.token_logprobs(ids, last)
            except TimeoutError:
                raise EngineError(
                    f"the teacher of {domain} at {teacher.url} gave no answer within"
                    f" {TIMEOUT_S:g} s ({scorer.last_trouble or 'it is slow'}); is it running?"
                ) from None
