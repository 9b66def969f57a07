"""The `function-calls` reward: calls of a generated API, judged by carrying them out."""

from __future__ import annotations

from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.back_ends.back_end import BackEnd, solved
from infra.back_ends.calls import Call, is_same_value
from infra.back_ends.task import task_of
from rewards.assistant_turns import assistant_turns
from rewards.references import reference_of


class FunctionCalls:
    """1 if the back end ends in the wanted state and no policy was broken; for a problem whose
    reference holds calls in `before`, if the one next call is among the valid ones.

    The reference holds a `task` (`infra/back_ends/task.py`). Each turn of a solved problem earns
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
