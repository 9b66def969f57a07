"""A simulated server: continuous batching of sequences, without computing any.

A decode step of b running sequences takes `step_s + b * sequence_s` seconds and gives each of them
a token. What finds no place waits in a queue, first come, first served. A prompt is prefilled when
its sequence gets a place, and nothing is decoded meanwhile. Between such events all sequences go on
evenly, so a server's time costs the number of its sequences, not of their tokens.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field

from engines.weight_versions import WeightVersions


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """What a server can do; times in seconds."""

    places: int = 8
    """sequences that run at the same time"""
    step_s: float = 0.010
    """of a decode step, whatever runs"""
    sequence_s: float = 0.00025
    """of a decode step, for each sequence that runs"""
    prefill_s: float = 0.000025
    """of a token of a prompt"""

    def decode_s(self, running: int) -> float:
        """Seconds of a decode step."""
        return self.step_s + running * self.sequence_s

    def tokens_per_s(self, mean_tokens: float, prompt_tokens: float) -> float:
        """That a server writes while all places are taken, with the prompts' prefill."""
        decoding = mean_tokens * self.decode_s(self.places) / self.places
        return mean_tokens / (decoding + prompt_tokens * self.prefill_s)


class ServerLost(Exception):
    """The server ended while the sequence ran or waited there."""


@dataclass(slots=True)
class _Sequence:
    prompt_tokens: int
    new_tokens: int
    done: asyncio.Future[WeightVersions]
    began_at: float = 0.0
    """step of its server"""
    written: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, tokens) under the weights before the present ones"""


class SimulatedServer:
    """One of a fleet. Lives in the running event loop."""

    def __init__(self, speed: ServerSpeed) -> None:
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Sequence] = deque()
        self._running: list[tuple[float, int, _Sequence]] = []
        """(step at which it is over, serial number, sequence): a heap"""
        self._serial = 0
        self._step = 0.0
        """decode steps done"""
        self._since = self._loop.time()
        """when they were done; in the future while prompts are prefilled"""
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self.version = 0
        self.is_up = True
        self.has_weights = True
        """of the present version, or is being given them"""
        self.busy_s = 0.0
        """place-seconds in which a sequence was decoded"""
        self.written = 0.0
        """tokens"""

    async def generate(self, prompt_tokens: int, new_tokens: int) -> WeightVersions:
        """Return when they are written, with the version behind each. Raises ServerLost."""
        if not self.is_up:
            raise ServerLost
        sequence = _Sequence(prompt_tokens, new_tokens, self._loop.create_future())
        self._queue.append(sequence)
        self._go_on()
        return await sequence.done

    def pause(self) -> None:
        """Decode nothing until `resume`."""
        self._advance()
        self._is_paused = True
        self._set_timer()

    def resume(self, version: int) -> None:
        """Go on with other weights: what runs is prefilled again, as SGLang does it."""
        self._is_paused, self.has_weights = False, True
        for _, _, sequence in self._running:
            written = self._written(sequence)
            before = sum(count for _, count in sequence.written)
            sequence.written.append((self.version, written - before))
            self._prefill(sequence.prompt_tokens + written)
        self.version = version
        self._go_on()

    def lose(self) -> None:
        """End, with all that runs or waits here."""
        self._advance()
        self.is_up = False
        lost = [*self._queue, *(sequence for _, _, sequence in self._running)]
        self._queue.clear()
        self._running.clear()
        self._set_timer()
        for sequence in lost:
            if not sequence.done.done():
                sequence.done.set_exception(ServerLost())

    def restart(self) -> None:
        """Come back with weights that nobody wants any more, and with nothing under way."""
        self.is_up, self.has_weights = True, False
        self.version, self._is_paused = 0, False

    def _written(self, sequence: _Sequence) -> int:
        return min(int(self._step - sequence.began_at), sequence.new_tokens)

    def _advance(self) -> None:
        """To the present."""
        now = self._loop.time()
        if now <= self._since:
            return
        running = len(self._running)
        if running and not self._is_paused:
            steps = (now - self._since) / self._speed.decode_s(running)
            self._step += steps
            self.written += running * steps
            self.busy_s += running * (now - self._since)
        self._since = now

    def _prefill(self, tokens: int) -> None:
        self._since = max(self._since, self._loop.time()) + tokens * self._speed.prefill_s

    def _go_on(self) -> None:
        """End what is over, and give the free places to what waits."""
        self._advance()
        while self._running and self._running[0][0] <= self._step + 1e-6:
            _, _, sequence = heapq.heappop(self._running)
            if not sequence.done.done():
                before = sum(count for _, count in sequence.written)
                runs = [*sequence.written, (self.version, sequence.new_tokens - before)]
                sequence.done.set_result(WeightVersions.of_runs(runs))
        while self._queue and len(self._running) < self._speed.places and not self._is_paused:
            sequence = self._queue.popleft()
            if sequence.done.done():  # nobody waits for it any more
                continue
            self._prefill(sequence.prompt_tokens)
            sequence.began_at = self._step
            self._serial += 1
            heapq.heappush(
                self._running, (self._step + sequence.new_tokens, self._serial, sequence)
            )
        self._set_timer()

    def _set_timer(self) -> None:
        """To the end of the sequence that ends next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._is_paused:
            steps = self._running[0][0] - self._step
            due = self._since + steps * self._speed.decode_s(len(self._running))
            self._timer = self._loop.call_at(due, self._go_on)
