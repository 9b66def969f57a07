"""Roller: rolls the rollouts of a group out, each by its domain's driver, and has them judged.

    problem ──▶ driver.run(problem, sessions) ──▶ Rollout ──▶ judge ──▶ reward

A driver, an environment or a reward that raises makes a FAILED rollout, which is recorded and
never trained on; so does a problem that the chat template cannot write. A lost engine is none of
these: EngineError passes through and ends the stage. What rewards of whole groups add comes once
all rollouts of a problem are over; the journal has them as they were before, so a resumed stage has
the group judged again. How many rollouts of a sweep over many
problems are under way at once is its `Window`'s to say:

    problems ──▶ take(samples) ──▶ rolled out ──▶ give_back ──▶ the next problem begins
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.pace import Pace, RolloutPace
from engines.rollout.drivers.session_host import Attempt, End, SessionHost
from engines.rollout.metrics import UNWRITTEN
from engines.rollout.protocols import ChatFormat, Generate, Judgement, ThoughtBudget
from engines.rollout.records.journals import Finished, TicketTurns, prompt_checksum
from engines.sglang.spec import MOST_RUNNING
from engines.types import VETOED, Message, Problem, Rollout, Sample, Status, Transcript
from infra.errors import InfrastructureError, TributaryError
from infra.json_text import reason_text
from infra.processes.coroutines import is_told_to_end, limit_heeds_turns
from infra.timeline import JUDGES, span

_ROLLOUTS_A_TURN = 2
"""while one has a turn at the servers, another may be at its tools or its judge"""


class Window:
    """Sweeps at the same servers share one. Whoever asks first has its places first."""

    def __init__(self, most_turns: int = MOST_RUNNING) -> None:
        """`most_turns`: at the servers at once. A problem with more samples than there are places
        has all of them."""
        self._most = most = _ROLLOUTS_A_TURN * most_turns
        self._free = asyncio.Semaphore(most)
        self._next = asyncio.Lock()
        """held by the problem that gets places: two that have some each would wait for ever"""

    async def take(self, rollouts: int) -> int:
        """Wait for places. -> how many there are to give back."""
        places = min(rollouts, self._most)
        async with self._next:
            for _ in range(places):
                await self._free.acquire()
        return places

    def give_back(self, places: int) -> None:
        for _ in range(places):
            self._free.release()


class RollsGroups(Protocol):
    """`Roller` does it here, `WorkerPool` in rollout workers: with the same rollouts to the bit."""

    @property
    def window(self) -> Window:
        """Return how many rollouts of sweeps keep its servers busy."""
        ...

    async def roll_group(
        self,
        domain: LiveDomain,
        problem: Problem,
        size: int,
        *,
        temperature: float,
        group_id: str,
        seed_name: str,
        known: Mapping[str, Finished] = MappingProxyType({}),
        on_finished: Callable[[Finished], None] = lambda made: None,
        turns: TicketTurns | None = None,
        top_p: float = 1.0,
        keep: Keep | None = None,
        thought: ThoughtBudget | None = None,
        pace: Pace | None = None,
    ) -> list[Rollout]:
        """See `Roller.roll_group`. Cancelled, it ends its rollouts. Raises EngineError."""
        ...


_CANCEL_S = 5.0
"""what a driver may take to end when it is told to"""

_CANCELLED = "it waited for a task of its own that was cancelled"


class Roller:
    """Rolls problems out against one policy. Stateless between rollouts."""

    def __init__(
        self,
        *,
        generate: Generate,
        chat: ChatFormat,
        context_length: int,
        seed: int,
        window: Window | None = None,
    ) -> None:
        self.window = window or Window()
        self._generate = generate
        self._chat = chat
        self._context_length = context_length
        self._seed = seed

    async def roll_group(
        self,
        domain: LiveDomain,
        problem: Problem,
        size: int,
        *,
        temperature: float,
        group_id: str,
        seed_name: str,
        known: Mapping[str, Finished] = MappingProxyType({}),
        on_finished: Callable[[Finished], None] = lambda made: None,
        turns: TicketTurns | None = None,
        top_p: float = 1.0,
        keep: Keep | None = None,
        thought: ThoughtBudget | None = None,
        pace: Pace | None = None,
    ) -> list[Rollout]:
        """`size` rollouts of one problem at once. `group_id` is theirs alone in the stage; groups
        of one `seed_name` are sampled with the same random numbers.

        Rollouts in `known` (by id) are taken from there, all others are sampled and handed to
        `on_finished` as they end. `turns` has those that need not be sampled again. With a `pace`
        they wait for its rounds.
        """
        problem, prompt_ids, fault = self._written(problem)
        prompt = prompt_checksum(prompt_ids)
        paces = [pace.begin() if pace is not None else None for _ in range(size)]

        async def roll(index: int) -> Rollout:
            own = paces[index]
            with own.until_over() if own is not None else nullcontext():
                return await roll_at(own, index)

        async def roll_at(own: RolloutPace | None, index: int) -> Rollout:
            attempt = Attempt(
                problem, domain.name, prompt_ids, group_id, index, seed_name, temperature,
                domain.max_new_tokens, self._seed, self._context_length, top_p, keep,
                thought,
            )  # fmt: skip
            found = known.get(attempt.rollout_id)
            if found is not None and found.prompt == prompt:
                if own is not None:
                    await own.ended(found.round, [s.num_trained_tokens for s in found.samples])
                return rollout_of(problem, found, written_text(self._chat, found))
            engine = self._generate
            if turns is not None:
                engine = turns.engine_of(attempt.rollout_id, engine)
                turns.repeat_replies(attempt.rollout_id)
            if fault:
                rollout = _failed(SessionHost(engine, self._chat, attempt), fault)
            else:
                rollout = await self._roll_out(domain, attempt, engine, own)
            round = pace.round if pace is not None else 1
            on_finished(Finished(rollout.samples, rollout.transcript.messages, prompt, round))
            return rollout

        tasks = [asyncio.create_task(roll(i), name=f"rollout {group_id}#{i}") for i in range(size)]
        return list(await asyncio.gather(*tasks))

    def _written(self, problem: Problem) -> tuple[Problem, list[int], str]:
        """The problem as the model is asked it, with its prompt's tokens; what keeps the template
        from writing it comes last, and is empty where nothing does."""
        try:
            asked = self._chat.decided(problem)
            return asked, self._chat.prompt_ids(asked), ""
        except InfrastructureError:
            raise
        except Exception as error:  # it is one problem's, and so is data
            at = f"problem {problem.id} ({problem.row})" if problem.row else f"problem {problem.id}"
            words = str(error).removeprefix(f"problem {problem.id}: ")
            if not isinstance(error, TributaryError):
                words = f"{type(error).__name__}: {words}"
            return problem, [], f"{UNWRITTEN}{at}: {words}"

    async def _roll_out(
        self, domain: LiveDomain, attempt: Attempt, engine: Generate, pace: RolloutPace | None
    ) -> Rollout:
        """One rollout, judged. Raises EngineError."""
        rollout = await self._drive(domain, SessionHost(engine, self._chat, attempt, pace), attempt)
        await _judge(domain, rollout)
        return rollout

    async def _drive(self, domain: LiveDomain, sessions: SessionHost, attempt: Attempt) -> Rollout:
        try:
            # a driver may be a user's, who may return anything
            run = domain.driver.run(attempt.problem, sessions)
            made: Any = await _in_time(run, sessions, domain.driver_timeout_s)
        except InfrastructureError:
            raise
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            return _failed(sessions, f"driver: {_CANCELLED}")
        except Exception as error:  # its fault is data
            return _failed(sessions, f"driver: {type(error).__name__}: {error}")
        if not isinstance(made, Rollout) or made.id != attempt.rollout_id:
            what = f"{type(made).__name__} instead of what `sessions.finish` returns"
            return _failed(sessions, f"driver: it returned {what}")
        return made


def rollout_of(problem: Problem, found: Finished, text: str) -> Rollout:
    """Return it as it was when it was judged; `text`: what `written_text` gives."""
    first = found.samples[0]
    transcript = Transcript(
        problem=problem,
        messages=found.turns,
        status=first.status,
        num_tokens=sum(s.num_trained_tokens for s in found.samples),
        reason=first.reason,
        raw=text,
        files=first.files,
    )
    return Rollout(found.samples, transcript)


def written_text(chat: ChatFormat, found: Finished) -> str:
    """The response of its last sample, with special tokens."""
    last = found.samples[-1]
    return chat.decode(last.tokens[last.num_prompt_tokens :])


async def _in_time(
    run: Coroutine[Any, Any, Any], sessions: SessionHost, limit: float | None
) -> Any:
    """Return what a driver returns. Raises TimeoutError where it takes longer than that between
    turns.
    """
    if limit is None:
        return await run
    limit_heeds_turns(sessions.busy)
    task = asyncio.ensure_future(run)
    try:
        while not task.done():
            if (left := limit - sessions.idle_seconds) <= 0:
                raise TimeoutError(f"no turn of the policy, and no end, for {limit:g} s")
            await asyncio.wait({task}, timeout=left)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)


def _failed(sessions: SessionHost, reason: str) -> Rollout:
    no_messages: list[Message] = []
    return sessions.finish(End(Status.FAILED, reason), no_messages)


async def _judge(domain: LiveDomain, rollout: Rollout) -> None:
    """Put reward, breakdown and reason on all samples. MALFORMED earns 0 without a judge."""
    if rollout.status is Status.MALFORMED:
        _write(rollout.samples, rewards={"outcome": 0.0})
        return
    if rollout.status in (Status.FAILED, Status.ABORTED):
        return
    try:
        with span(JUDGES, rollout.id):
            judgement = await domain.judge.judge(rollout.transcript)
    except asyncio.CancelledError:
        if is_told_to_end():
            raise
        _write(rollout.samples, reason=f"judge: {_CANCELLED}", status=Status.FAILED)
        return
    reason = judgement.reason or rollout.transcript.reason
    if fault := _turns_fault(rollout.samples, judgement.turns):
        reason = fault
    if judgement.failed or fault:
        _write(rollout.samples, reason=reason, status=Status.FAILED)
        return
    breakdown, turns = dict(judgement.breakdown), list(judgement.turns)
    _write(
        rollout.samples,
        reason=reason, reward=judgement.reward, rewards=breakdown, turn_rewards=turns,
        reward_weights=dict(judgement.weights),
    )  # fmt: skip


def _turns_fault(samples: Sequence[Sample], turns: Sequence[float]) -> str:
    """Why the turns that earned something cannot be found among the tokens; empty if they can."""
    if not turns:
        return ""
    if len(samples) > 1:
        return f"a reward judges turns, and this rollout has {len(samples)} samples"
    # what was put into a turn parts it in two
    first = samples[0]
    taken = first.metadata["turns"] if "forced_tokens" in first.metadata else first.num_turns
    if taken != len(turns):
        return f"a reward judges {len(turns)} turns; tokens of {taken} are trained"
    return ""


def _write(samples: tuple[Sample, ...], **fields: Any) -> None:
    for sample in samples:
        for name, value in fields.items():
            setattr(sample, name, value)
        sample.reason = reason_text(sample.reason)


_JUDGED = (Status.COMPLETED, Status.TRUNCATED)


async def judge_together(domain: LiveDomain, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of one problem with what the domain's rewards of groups say. Where these give no
    verdict, all that they were asked about become failed ones."""
    asked = [rollout for rollout in rollouts if rollout.status in _JUDGED]
    if domain.group_judge is None or not asked:
        return list(rollouts)
    with span(JUDGES, asked[0].samples[0].group_id):
        judgements = await domain.group_judge.judge([rollout.transcript for rollout in asked])
    said = {rollout.id: each for rollout, each in zip(asked, judgements, strict=True)}
    return [_with(rollout, said.get(rollout.id)) for rollout in rollouts]


def _with(rollout: Rollout, judgement: Judgement | None) -> Rollout:
    if judgement is None:
        return rollout
    samples = tuple(_judged(sample, judgement) for sample in rollout.samples)
    return Rollout(samples, rollout.transcript)


def _judged(sample: Sample, judgement: Judgement) -> Sample:
    if judgement.failed:
        failed, reason = Status.FAILED, reason_text(judgement.reason)
        return replace(
            sample,
            status=failed,
            reason=reason,
            reward=0.0,
            rewards={},
            turn_rewards=[],
            reward_weights={},
        )
    return replace(
        sample,
        reward=sample.reward + (0.0 if VETOED in sample.rewards else judgement.reward),
        rewards={**sample.rewards, **judgement.breakdown},
        reward_weights={**sample.reward_weights, **judgement.weights},
        reason="; ".join(filter(None, [sample.reason, reason_text(judgement.reason)])),
    )
