"""Rewards for what an agent's tools achieved: its answer, its function calls, its repository."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.back_ends import BackEnd, Call, is_same_value, solved, task_of
from infra.errors import InputError
from infra.processes.coroutines import wait_for_program
from infra.repositories import Check, EditRefused, Files, Judgement, edited, judge, pool
from infra.sandbox.python import DEMANDS, Demand
from rewards.exact import is_said
from rewards.references import reference_of
from rewards.text import assistant_turns
from rewards.verdicts import KnownVerdicts

EDIT = "edit"
"""the tool whose calls are the rollout's work"""


class FunctionCalls:
    """1 if the back end ends in the wanted state and no policy was broken; for a problem whose
    reference holds calls in `before`, if the one next call is among the valid ones.

    The reference holds a `task` (`infra/back_ends.py`). Each turn of a solved problem earns
    its calls' share of those that led on.
    """

    reference_keys: ClassVar = ("task",)

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        back_end = BackEnd(task_of(reference["task"]))
        if "before" in reference:
            return _of_next_call(transcript, back_end, reference["before"])
        return _of_state(transcript, back_end, solved(task_of(reference["task"]))[1])


def _of_next_call(transcript: Transcript, back_end: BackEnd, before: list[Any]) -> Verdict:
    for name, arguments in before:
        back_end.answer(Call(name, arguments))
    calls = [call for turn in assistant_turns(transcript) for call in turn.tool_calls]
    if len(calls) != 1:
        return Verdict(0.0, reason=f"{len(calls)} calls, not one")
    (call,) = calls
    is_valid = back_end.is_valid(Call(call.name, call.arguments))
    return Verdict(float(is_valid), reason="" if is_valid else f"{call.name} is not a valid call")


def _of_state(transcript: Transcript, back_end: BackEnd, wanted: dict[str, Any]) -> Verdict:
    turns = assistant_turns(transcript)
    led_on: list[int] = []
    for turn in turns:
        led_on.append(0)
        for written in turn.tool_calls:
            call = Call(written.name, written.arguments)
            led_on[-1] += back_end.is_valid(call)
            back_end.answer(call)
    parts = {"calls": float(transcript.tool_turns), "broken": float(len(back_end.broken))}
    if back_end.broken:
        return Verdict(0.0, parts, f"broke a policy: {back_end.broken[0]}")
    if not is_same_value(back_end.state(), wanted):
        return Verdict(0.0, parts, "the back end is not as wanted")
    if not turns or turns[-1].tool_calls:
        return Verdict(0.0, parts, "no final answer")
    return Verdict(1.0, parts, turns=[count / sum(led_on) for count in led_on])


class AgentAnswer:
    """1 if the final answer equals the gold answer and the tools it needs were really used.

    The reference holds `{"answer": "red", "needs": ["search"]}`.
    """

    reference_keys: ClassVar = ("answer", "needs")

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        used = [call.name for message in transcript.messages for call in message.tool_calls]
        unused = [tool for tool in reference["needs"] if tool not in used]
        last = transcript.messages[-1] if transcript.messages else None
        ended = last is not None and last.role == "assistant" and not last.tool_calls
        right = is_said(reference["answer"], transcript.answer)
        parts = {"calls": float(transcript.tool_turns)}
        if not ended:
            return Verdict(0.0, parts, "no final answer")
        if unused or not transcript.tool_turns:
            return Verdict(0.0, parts, f"answered without {', '.join(unused) or 'a tool'}")
        reason = "" if right else f"answered {transcript.answer!r}, not {reference['answer']!r}"
        return Verdict(float(right), parts, reason)


class RepositoryTests:
    """1 if every check holds after the rollout's edits, or with the files that its driver
    collected, judged in a fresh sandbox.

    The reference holds `files`, `protected` and `checks`: `[module, function, arguments, value]`.
    """

    reference_keys: ClassVar = ("files", "protected", "checks")

    def __init__(self, *, sandbox: Demand = "confined", once: bool = False) -> None:
        """`sandbox`: what the kernel must offer before the model's code runs. `once`: the same
        files of the same problem are judged once, and that verdict is given to all rollouts that
        end with them; not for code that may answer differently each time."""
        if sandbox not in DEMANDS:
            raise InputError(f"`sandbox`: unknown {sandbox!r}. Allowed: {', '.join(DEMANDS)}.")
        self._sandbox: Demand = sandbox
        self._known = KnownVerdicts[Judgement]() if once else None

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        original, protected = reference["files"], reference["protected"]
        if transcript.files:
            final, refused = {**original, **transcript.files}, 0
        else:
            final, refused = _replayed(transcript, original, protected)
        parts = {"calls": float(transcript.tool_turns), "refused_edits": float(refused)}
        last = transcript.messages[-1] if transcript.messages else None
        if last is None or last.role != "assistant" or last.tool_calls:
            return Verdict(0.0, parts, "no final answer")
        if final == original:
            return Verdict(0.0, parts, "nothing was edited")
        judged = await wait_for_program(self._judged, reference, final)
        return Verdict(float(judged.passed), parts, judged.reason)

    def _judged(self, reference: Any, final: Files) -> Judgement:
        def find() -> Judgement:
            checks = [Check(*row) for row in reference["checks"]]
            given = reference["files"], final, reference["protected"], checks
            return judge(*given, pool(self._sandbox))

        if self._known is None:
            return find()
        return self._known.get(json.dumps([reference, final], sort_keys=True), find)


def _replayed(transcript: Transcript, files: Files, protected: list[str]) -> tuple[Files, int]:
    """The repository after the edits, as the environment made them; and how many it refused."""
    refused = 0
    for turn in assistant_turns(transcript):
        for call in turn.tool_calls:
            if call.name != EDIT:
                continue
            path, old, new = (str(call.arguments.get(name)) for name in ("path", "old", "new"))
            try:
                files = edited(files, protected, path, old, new)
            except EditRefused:
                refused += 1
    return files, refused
