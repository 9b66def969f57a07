"""Teachers behind servers, of any size: asked for the logprobs of the student's tokens.

They read the tokens as they are, so only the vocabulary has to be the student's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from engines.sglang.spec import FleetSpec, server_address
from engines.types import Sample
from infra.config import RESULT_NEUTRAL, Config
from infra.errors import EngineError
from tasks.served.served_roles import RoleClients, ServedRole, served_roles

if TYPE_CHECKING:
    from engines.sglang.roles.scorer import Scorer
    from engines.step_inputs import Values
    from tasks.stage import StageSpec

TIMEOUT_S = 600.0
"""of one sample, once it has a place at a server"""


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
        """None for one at an address."""
        if self.url:
            return None
        name = self.role or f"{domain}-teacher"
        return ServedRole(name, self.model, self.fleet, has_head=False, reads_outputs=True)


def teacher_roles(teachers: Mapping[str, ServedTeacher]) -> list[ServedRole]:
    """Of those that have servers of their own, by domain."""
    found = (teacher.served_role(domain) for domain, teacher in teachers.items())
    return [role for role in found if role is not None]


def asked_roles(spec: StageSpec) -> dict[str, ServedRole]:
    """The models that a stage's rewards ask, and the served ones that teach it. Raises InputError
    for a role that is described in two ways."""
    return served_roles(spec.sampled_domains, teacher_roles(spec.served_teachers))


class ServedTeachers:
    """Of a stage: asked about each step's samples before the step."""

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
        from engines.sglang.roles.scorer import Scorer

        self._asked = asked
        for teacher in self._teachers.values():
            if teacher.url and teacher.url not in self._external:
                scorer = Scorer(teacher.url)
                stack.push_async_callback(scorer.close)
                self._external[teacher.url] = scorer, asyncio.Semaphore(MOST_ASKED)

    async def ask(self, samples: Sequence[Sample]) -> dict[int, Values]:
        """By position, of the samples of these domains: the logprob of each token, from the first
        trained one on. Raises InputError, EngineError."""
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
