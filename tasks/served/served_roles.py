"""Which models the rewards of a stage ask, and which served ones teach it, by role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from engines.sglang.spec import FleetSpec
from infra.errors import InputError
from infra.hub import is_hub_name
from rewards.judges.served import REWARD_MODEL
from tasks.domain import USER, Domain, RewardSpec, ScoredDomain

if TYPE_CHECKING:
    from engines.sglang.roles.role_client import RoleAddress, RoleClient


INPUT = "role."
"""what the names of a stage's inputs begin with that are such models; no other name has a dot"""
AnyDomain: TypeAlias = Domain | ScoredDomain


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
        """Its name among a stage's inputs."""
        return f"{INPUT}{self.name}"

    @property
    def server_fleet(self) -> FleetSpec:
        """What its servers are started with."""
        if not self.has_head:
            return self.fleet
        options = {**self.fleet.sglang, "is_embedding": True}
        return self.fleet.model_copy(update={"sglang": options})


def is_role(name: str) -> bool:
    """Whether an input of a stage is such a model."""
    return name.startswith(INPUT)


def rewards_of(domain: AnyDomain) -> Iterable[RewardSpec]:
    return domain.rewards if isinstance(domain, Domain) else domain.outcomes


def roles_of(term: RewardSpec) -> Iterator[ServedRole]:
    """None of a reward that asks no model."""
    if term.served is None:
        return
    has_head = term.name == REWARD_MODEL
    reads_outputs = has_head or term.options.get("pattern") is None
    for role, model in term.served_models.items():
        yield ServedRole(role, model, term.served.fleet, has_head, reads_outputs)


def served_roles(
    domains: Iterable[AnyDomain], teachers: Iterable[ServedRole] = ()
) -> dict[str, ServedRole]:
    """Each once, by name, those of teachers last. Raises InputError for a role that is described
    in two ways."""
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
    """Whether a served model is named as a stage of the recipe, and not by its folder."""
    return not is_hub_name(model) and _STAGE.fullmatch(model) is not None


class RoleClients:
    """Of one process: the stage's, or a rollout worker's. Its clients close with the stack."""

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
        """For those who ask a role."""
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
