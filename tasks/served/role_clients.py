"""What asks the models that a stage's rewards name: made with its domains, connected when their
servers run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tasks.served.roles import AnyDomain, ServedRole, served_roles

if TYPE_CHECKING:
    from engines.sglang.roles.address import RoleAddress
    from engines.sglang.roles.role_client import RoleClient


class RoleClients:
    """Of one process: the stage's, or a rollout worker's. Its clients close with the stack."""

    def __init__(self, stack: AsyncExitStack, domains: Iterable[AnyDomain]) -> None:
        """Raises InputError for a role that is described in two ways."""
        self._stack = stack
        self.roles: Mapping[str, ServedRole] = served_roles(domains)
        self.addresses: Mapping[str, RoleAddress] = {}
        """where each role's model is asked; empty before `connect`"""
        self._clients: dict[str, RoleClient] = {}

    def of(self, role: str) -> RoleClient:
        """For the rewards of a role."""
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
