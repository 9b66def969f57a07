"""The `repository-tests` reward: whether the repaired repository does what it should."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.repositories.checking import Check, Judgement, judge
from infra.repositories.files import EditRefused, Files, edited
from infra.repositories.sandboxes import pool
from infra.sandbox.python import DEMANDS, Demand
from rewards.assistant_turns import assistant_turns
from rewards.known_verdicts import KnownVerdicts
from rewards.references import reference_of

EDIT = "edit"
"""the tool whose calls are the rollout's work"""


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
        judged = await asyncio.to_thread(self._judged, reference, final)
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
