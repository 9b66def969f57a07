"""`opd`: on-policy distillation from one teacher a domain.

    student samples -> its domain's teacher scores each token -> advantage = teacher's - student's
    logprob -> the policy step of `rl`

The gradient is that of -KL(student || teacher). Rewards are computed for the curve and the report;
none of them trains (MOPD, arXiv 2606.30406; GLM-5, arXiv 2602.15763).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.chat import Chat
from engines.types import Message, Problem
from infra.errors import InputError
from tasks.opd.spec import STUDENT, OpdSpec
from tasks.rl.body import train
from tasks.rl.spec import RlSettings, RlSpec
from tasks.stage import StageContext, require_inputs

_PROBE = Problem("probe", "probe", (Message("user", "1+1"),), thinking=True)


async def run(spec: OpdSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`.

    Raises what `rl` raises; InputError for a teacher of another tokenizer or architecture.
    """
    names = [domain.name for domain in spec.domains]
    require_inputs(context, [STUDENT, *names])
    teachers = {name: context.inputs[name] for name in names}
    check_other_weights(context.input_records, names)
    await asyncio.to_thread(check_same_tokens, context.inputs[STUDENT], teachers)
    return await train(_as_rl(spec), context, teachers)


def check_other_weights(records: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raises InputError for a teacher that is the student itself: it teaches nothing."""
    student = records.get(STUDENT, {}).get("digest")
    same = [name for name in names if student and records.get(name, {}).get("digest") == student]
    if same:
        raise InputError(
            f"the teacher of {', '.join(same)} is the student itself, the same artifact: there is"
            " nothing to learn from it; use an expert that was trained"
        )


def _as_rl(spec: OpdSpec) -> RlSpec:
    """One round of exactly as many groups as a step trains on: none is dropped for its rewards."""
    settings = RlSettings(**dict(spec.settings), oversample=1.0, refill_rounds=0)
    return RlSpec(seed=spec.seed, settings=settings, domains=spec.domains)


def check_same_tokens(student: Path, teachers: Mapping[str, Path]) -> None:
    """A teacher scores the student's tokens as they are: ids and prompts must mean the same to it.

    Raises InputError that names the teacher and the first difference.
    """
    ours = Chat.load(student)
    for domain, folder in teachers.items():
        theirs = Chat.load(folder)
        what = ""
        if theirs.vocabulary != ours.vocabulary:
            what = f"tokenizer ({_difference(ours.vocabulary, theirs.vocabulary)})"
        elif theirs.prompt_ids(_PROBE) != ours.prompt_ids(_PROBE):
            what = "chat template (the same question gives different tokens)"
        if what:
            raise InputError(
                f"the teacher of {domain} ({folder}) has another {what} than the student"
                f" ({student}), so it cannot score the student's tokens; use an expert that was"
                " trained from the same base"
            )


def _difference(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """Example: `token 'ab' is 17 here and 18 there`."""
    ordered = sorted({*ours, *theirs}, key=lambda token: (ours.get(token, len(ours)), token))
    token = next(t for t in ordered if ours.get(t) != theirs.get(t))
    here, there = ours.get(token, "unknown"), theirs.get(token, "unknown")
    return f"token {token!r} is {here} to the student and {there} to the teacher"
