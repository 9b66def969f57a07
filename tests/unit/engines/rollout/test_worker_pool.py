"""Who rolls a group when workers come and go. Workers are real ones, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.loop import fill
from engines.rollout.records.journals import Finished, TurnJournal, unpack_rollouts
from engines.rollout.workers import worker_pool
from engines.rollout.workers.worker import News, RolloutWorker, RollRequest, WorkerLost
from engines.rollout.workers.worker_pool import MAX_LOSSES, MAX_TRIES, WorkerPool
from engines.sglang.turn_queue import InFlight
from engines.types import AssistantTurn, Message, Problem, Rollout, Sampling, Status, Step
from infra.errors import EngineError, InputError, TributaryError
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import CharChat, Judge, Policy, domain, producer_of, roller

pytestmark = pytest.mark.unit

SEED = 3
KEEP = Keep(top_p=0.9)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_PAUSE_S", 0.0)


def say(prompt: str, sampling: Sampling) -> str:
    assert sampling.seed is not None
    return str(sampling.seed % 10)


class Client(Policy):
    """A policy, with what a client has beside it."""

    def __init__(self) -> None:
        super().__init__(say)
        self.on_trouble: Callable[[], object] = lambda: None
        self.must_wait: Callable[[], bool] = lambda: False


class Talks:
    """Asks for three turns."""

    async def start(self, problem: Problem) -> Talks:
        return self

    async def step(self, turn: AssistantTurn) -> Step:
        return Step((Message("user", "again"),))

    async def close(self) -> None: ...


def talking() -> LiveDomain:
    made = domain("d", lambda answer: 1.0, environment=Talks(), max_turns=3, max_new_tokens=20)
    return replace(made, outcome_judge=Judge(lambda answer: 0.5))


@dataclass
class Handle:
    """The boundary of a process: `kill` loses all that was not told."""

    client: Client
    worker: RolloutWorker
    requests: list[RollRequest] = field(default_factory=list[RollRequest])
    cancelled: list[int] = field(default_factory=list[int])
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    async def roll(self, request: RollRequest) -> None:
        if self.dead.is_set():
            raise WorkerLost("it was killed")
        self.requests.append(request)
        self.worker.roll(request)

    def begin_round(self, number: int, round: int) -> None:
        self.worker.begin_round(number, round)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.worker.cancel(number)

    async def news(self, is_changing: bool) -> News:
        told = asyncio.create_task(self.worker.news(is_changing, 0.02))
        killed = asyncio.create_task(self.dead.wait())
        await asyncio.wait({told, killed}, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if self.dead.is_set():
            told.cancel()
            raise WorkerLost("it was killed")
        return told.result()

    async def end(self) -> None:
        self.ended = True
        await self.worker.close()

    def kill(self) -> None:
        self.dead.set()


@dataclass
class Servers:
    """What the stage's own client has."""

    in_flight: InFlight = field(default_factory=InFlight)
    on_trouble: Callable[[], object] = lambda: None
    must_wait: Callable[[], bool] = lambda: False
    refusal: Exception | None = None


@dataclass
class Bench:
    """A pool whose workers are at hand."""

    servers: Servers = field(default_factory=Servers)
    handles: list[Handle] = field(default_factory=list[Handle])
    chat: CharChat = field(default_factory=CharChat)
    blocked: bool = True
    free_calls: int = 0
    refuses: Exception | None = None

    async def start(self, position: int) -> Handle:
        if self.refuses is not None:
            raise self.refuses
        client = Client()
        client.free_calls = self.free_calls
        if self.blocked:
            client.may_answer.clear()
        worker = RolloutWorker(
            client=client, chat=self.chat, domains=[talking()], context_length=200, seed=SEED
        )
        self.handles.append(Handle(client, worker))
        return self.handles[-1]

    @asynccontextmanager
    async def pool(self, count: int) -> AsyncGenerator[WorkerPool]:
        pool = WorkerPool(self.start, count, servers=self.servers, chat=self.chat)
        try:
            await pool.open()
            yield pool
        finally:
            await pool.close()
        assert all(handle.ended for handle in self.handles)

    def answer(self) -> None:
        """From now on."""
        self.blocked = False
        for handle in self.handles:
            handle.client.may_answer.set()


def group(pool: WorkerPool, number: int = 0, **more) -> asyncio.Task[list[Rollout]]:
    problem = talking().curriculum.problems("rl", 1, 0, number)[0]
    rolling = pool.roll_group(
        talking(), problem, 4, temperature=1.0, keep=KEEP,
        group_id=f"g{number}", seed_name=f"g{number}", **more,
    )  # fmt: skip
    return asyncio.create_task(rolling)


async def rolled_here(number: int = 0) -> list[Rollout]:
    problem = talking().curriculum.problems("rl", 1, 0, number)[0]
    return await roller(Policy(say), seed=SEED).roll_group(
        talking(), problem, 4, temperature=1.0, keep=KEEP,
        group_id=f"g{number}", seed_name=f"g{number}",
    )  # fmt: skip


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not happened():
            await asyncio.sleep(0.001)


async def test_a_pool_gives_the_rollouts_of_a_roller_and_shares_groups_out_evenly() -> None:
    bench = Bench()
    finished: list[Finished] = []
    async with bench.pool(2) as pool:
        groups = [group(pool, n, on_finished=finished.append) for n in range(6)]
        await until(lambda: sum(len(h.requests) for h in bench.handles) == 6)
        assert [len(h.requests) for h in bench.handles] == [3, 3]
        await until(lambda: bench.servers.in_flight.turns == 24)
        bench.answer()
        made = await asyncio.gather(*groups)
        assert made == [await rolled_here(n) for n in range(6)]
        assert made[0][0].samples[0].kept is not None
        assert len(finished) == 24
        await until(lambda: bench.servers.in_flight.turns == 0)


async def test_a_worker_asks_the_outcome_alone_where_scores_are_made() -> None:
    bench = Bench(blocked=False)
    async with bench.pool(1) as pool:
        problem = talking().curriculum.problems("heldout", 1, 0)[0]
        for domain, outcome in ((talking(), 1.0), (talking().of_outcome(), 0.5)):
            (made,) = await pool.roll_group(
                domain, problem, 1, temperature=1.0, group_id="g", seed_name="g"
            )
            assert made.rewards == {"outcome": outcome}


async def test_a_worker_samples_with_the_top_p_that_it_is_told() -> None:
    bench = Bench(blocked=False)
    async with bench.pool(1) as pool:
        calls = bench.handles[0].client.calls
        await group(pool, 0, top_p=0.95)
        assert {sampling.top_p for _, sampling in calls} == {0.95}
        calls.clear()
        await group(pool, 1)
        assert {sampling.top_p for _, sampling in calls} == {1.0}


async def test_what_a_killed_worker_had_told_is_kept_and_the_rest_is_rolled_by_another() -> None:
    bench = Bench(free_calls=10)  # of 12 turns
    notes = Notes()
    turns = TurnJournal(notes)
    finished: list[Finished] = []
    async with bench.pool(2) as pool:
        ticket = turns.of(0, lambda versions: True)
        rolling = group(pool, on_finished=finished.append, turns=ticket)
        first = bench.handles[0]
        await until(lambda: first.client.answered == 10 and finished)
        told = len(finished)
        await asyncio.sleep(0.05)
        first.kill()
        await until(lambda: bench.handles[1].requests)
        bench.answer()
        assert await rolling == await rolled_here()
        assert len(finished) == 4, "each once"
        assert bench.handles[1].client.answered == 2, "no turn is sampled again"
        assert told < 4
        await until(lambda: len(bench.handles) == 3)
        assert first.ended
    await turns.flush()
    assert notes.kept["turns"], "they would have been there for a later attempt, too"


async def test_a_problem_that_the_template_cannot_write_fails_its_own_rollouts_alone() -> None:
    class Refuses(CharChat):
        def decided(self, problem: Problem) -> Problem:
            raise InputError(f"problem {problem.id}: `thinking: false` is not possible")

    async with Bench(chat=Refuses(), blocked=False).pool(1) as pool:
        made = await group(pool)
    assert {rollout.status for rollout in made} == {Status.FAILED}
    assert "`thinking: false` is not possible" in made[0].transcript.reason


async def test_a_worker_is_told_what_is_known_of_its_group_and_of_no_other() -> None:
    bench = Bench(blocked=False)
    finished: list[Finished] = []
    async with bench.pool(1) as pool:
        for number in range(2):
            await group(pool, number, on_finished=finished.append)
        known = {made.rollout_id: made for made in finished if made.rollout_id != "g0#2"}
        assert await group(pool, known=known) == await rolled_here()
        requests = bench.handles[0].requests
    told = {made.rollout_id for made in unpack_rollouts(requests[-1].known)}
    assert told == {"g0#0", "g0#1", "g0#3"}


async def test_a_group_that_ends_every_worker_ends_the_stage() -> None:
    bench = Bench()
    async with bench.pool(2) as pool:
        rolling = group(pool)
        for _ in range(MAX_TRIES):
            await until(lambda: any(h.requests and not h.dead.is_set() for h in bench.handles))
            next(h for h in bench.handles if h.requests and not h.dead.is_set()).kill()
        with pytest.raises(EngineError, match=r"g0: 3 rollout workers were lost .* it was killed"):
            await rolling


async def test_groups_wait_for_a_worker_and_fail_when_none_can_be_had() -> None:
    bench = Bench()
    async with bench.pool(1) as pool:
        bench.refuses = WorkerLost("no host has room")
        bench.handles[0].kill()
        rolling = group(pool)
        with pytest.raises(EngineError, match=f"lost {MAX_LOSSES} times.*no host has room"):
            await rolling
        with pytest.raises(EngineError, match="no host has room"):
            await group(pool)


async def test_a_part_that_a_new_worker_cannot_build_is_bad_input() -> None:
    bench = Bench(refuses=InputError("reward x: no such module"))
    with pytest.raises(InputError, match="reward x"):
        async with bench.pool(2):
            raise AssertionError("it does not open")


async def test_a_cancelled_group_ends_in_its_worker() -> None:
    bench = Bench()
    async with bench.pool(1) as pool:
        rolling = group(pool)
        handle = bench.handles[0]
        await until(lambda: handle.requests and bench.servers.in_flight.turns == 4)
        rolling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling
        assert handle.cancelled == [0]
        await until(lambda: bench.servers.in_flight.turns == 0)
        bench.answer()
        assert await group(pool, 1) == await rolled_here(1), "others go on"


async def test_trouble_reaches_the_stage_and_what_the_stage_knows_reaches_the_worker() -> None:
    bench, asked = Bench(), []
    bench.servers.on_trouble = lambda: asked.append(1)
    async with bench.pool(1) as pool:
        rolling, client = group(pool), bench.handles[0].client
        await until(lambda: bench.servers.in_flight.turns == 4)
        client.on_trouble()
        await until(lambda: asked)
        assert not client.must_wait()
        bench.servers.must_wait = lambda: True
        await until(client.must_wait)
        bench.servers.refusal = EngineError("the lease is lost")
        with pytest.raises(EngineError, match="the lease is lost"):
            await rolling
        with pytest.raises(EngineError, match="the lease is lost"):
            await group(pool)


async def test_what_a_rollout_raises_is_raised_in_the_stage() -> None:
    bench = Bench(blocked=False)

    async def lost(*_: object) -> None:
        raise EngineError("gave up after 5 tries")

    async with bench.pool(1) as pool:
        bench.handles[0].client.generate = lost
        with pytest.raises(EngineError, match="gave up after 5 tries"):
            await group(pool)


async def test_turns_of_an_earlier_attempt_are_not_sampled_by_workers() -> None:
    """A first attempt is killed after some turns; the next rolls in workers."""
    notes, policy = Notes(), Policy(say)
    policy.free_calls = 6
    policy.may_answer.clear()
    sizes = {"groups_per_step": 1, "group_size": 4, "seed": SEED}
    first, _ = producer_of(
        roller(policy, seed=SEED), [talking()], turns=(journal := TurnJournal(notes)), **sizes
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fill(first), 0.2)
    await journal.flush()

    bench = Bench(blocked=False)
    async with bench.pool(1) as pool:
        turns = TurnJournal(notes)
        again, _ = producer_of(pool, [talking()], turns=turns, **sizes)
        await again.recover(0)
        sampled = await fill(again)
        whole, _ = producer_of(roller(Policy(say), seed=SEED), [talking()], **sizes)
        assert sampled.groups == (await fill(whole)).groups
        assert sampled.recovered_tokens > 0
        assert bench.handles[0].client.answered == 12 - 6


async def test_a_silent_worker_is_replaced_as_soon_as_its_loss_is_seen() -> None:
    """Who sends it a group sees it; its news would come after minutes."""
    bench = Bench(blocked=False)
    async with bench.pool(1) as pool:
        (first,) = bench.handles
        silent = asyncio.Event()

        async def news(is_changing: bool) -> News:
            silent.set()
            await asyncio.sleep(600)
            raise WorkerLost("no answer")

        async def roll(request: RollRequest) -> None:
            raise WorkerLost("connection reset")

        first.news, first.roll = news, roll
        await silent.wait()
        assert await asyncio.wait_for(group(pool), 5) == await rolled_here()
        assert (len(bench.handles), first.ended) == (2, True)


async def test_a_request_that_a_cancelled_task_ends_is_over() -> None:
    bench = Bench(blocked=False)

    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    async with bench.pool(1) as pool:
        bench.handles[0].worker._roller.roll_group = cancelled
        with pytest.raises(TributaryError, match="waited for was cancelled"):
            await asyncio.wait_for(group(pool), 5)
