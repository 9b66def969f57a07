"""The `agent-answer` reward: the end state of an agent's episode."""

from __future__ import annotations

from typing import ClassVar

from engines.types import Transcript, Verdict
from rewards.exact import is_said
from rewards.references import reference_of


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
