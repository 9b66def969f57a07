"""The driver `library`: tasks of verifiers and of Inspect roll out and score as they do by
themselves, with the policy behind the gateway of agents.

    problem ─▶ the task, in a process of its own ── HTTP ──▶ gateway ─▶ session ─▶ policy
                       └─▶ scores ─▶ `score.json` ─▶ the reward `library-score`

How the rollout ends:
    the task scored it                                              COMPLETED
    budget of tokens, turns or branches, context, time limit        TRUNCATED
    a turn broke the format of a tool call                          MALFORMED, reward 0
    the task raised, or never asked the policy                      FAILED, never trained on
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

from engines.agents.agent_session import AgentSession
from engines.agents.gateway import shared_gateway
from engines.agents.limits import SessionLimits
from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import Problem, Rollout, Status
from infra.errors import InputError
from infra.libraries.library import SCORE_FILE, Outcome
from infra.processes.part_process import PartFailed, PartProcess

_LOAD_S = 300.0
"""for a library's imports and a task's data, beside the rollout's own time, and that of those
before it: Inspect runs one evaluation at a time"""


class LibraryDriver:
    """One process runs all rollouts of a domain, many at the same time."""

    def __init__(
        self, seconds: float = 600.0, turns: int = 200, turn_tokens: int = 0, branches: int = 64
    ) -> None:
        """`seconds`, `turns`, `turn_tokens` (0: all that is left) and `branches` are limits of one
        rollout. Raises InputError for what cannot be."""
        if seconds <= 0 or turns < 1 or turn_tokens < 0 or branches < 1:
            raise InputError("seconds, turns, branches: must be above 0; turn_tokens: 0 or above")
        self._seconds = seconds
        self._limits = SessionLimits(turns=turns, turn_tokens=turn_tokens, samples=branches)
        self.process = PartProcess(
            "driver 'library'", "infra.libraries.library:Tasks", (), 2 * seconds + _LOAD_S
        )
        """is started by the first rollout, if nobody does before"""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        """Raises EngineError, and InputError for a problem of another curriculum."""
        reference: Any = problem.reference
        if not isinstance(reference, dict) or not {"library", "content"} <= reference.keys():
            raise InputError(
                "the driver `library` runs problems of the curricula `verifiers` and `inspect`"
            )
        session = AgentSession(sessions, problem, self._limits)
        async with shared_gateway() as (gateway, address):
            key = gateway.open(session)
            try:
                end, files = await self._ended(reference, session, f"http://{address}", key)
            finally:
                await gateway.close(key)
        return session.finish(end, files)

    async def _ended(
        self, reference: Any, session: AgentSession, url: str, key: str
    ) -> tuple[End, dict[str, str]]:
        which = (reference["library"], reference["name"], reference["arguments"])
        asked = (which, reference["content"], url, key, self._seconds)
        work = asyncio.create_task(
            self.process.call("rollout", *asked, about=f"{which[0]} {which[1]}")
        )
        try:
            await session.until_over(work)
            if not work.done():  # its answer would change nothing
                return End(Status.TRUNCATED, "the session is over"), {}
            outcome: Outcome = work.result()
        except PartFailed as error:
            return End(Status.FAILED, f"{which[0]} {which[1]} {error}"), {}
        finally:
            work.cancel()
        scored = json.dumps(asdict(outcome))
        if outcome.is_late:
            return End(Status.TRUNCATED, f"time limit of {self._seconds:g} s"), {SCORE_FILE: scored}
        if outcome.error:
            return End(Status.FAILED, f"{which[0]} {which[1]}: {outcome.error}"), {}
        return End(Status.COMPLETED), {SCORE_FILE: scored}
