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
from tasks.model_folder.folder_report import CHAT_FILES
from tasks.model_folder.model_files import ModelFiles
from tasks.opd.spec import STUDENT, OpdSpec
from tasks.rl.body import Teachers, train
from tasks.rl.spec import RlSettings, RlSpec
from tasks.served.served_roles import ServedTeacher, ServedTeachers
from tasks.stage import StageContext, require_inputs

_PROBE = Problem("probe", "probe", (Message("user", "1+1"),), thinking=True)


async def run(spec: OpdSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`.

    Raises what `rl` raises; InputError for a teacher of another tokenizer or architecture.
    """
    served = spec.settings.served_teachers
    names = [domain.name for domain in spec.domains if domain.name not in served]
    require_inputs(context, [STUDENT, *names])
    teachers = {name: context.inputs[name] for name in names}
    check_other_weights(context.input_records, names)
    await asyncio.to_thread(check_same_tokens, context.inputs[STUDENT], teachers)
    await asyncio.to_thread(_check_vocabularies, context, served)
    return await train(_as_rl(spec), context, Teachers(teachers, ServedTeachers(served)))


def _check_vocabularies(context: StageContext, served: Mapping[str, ServedTeacher]) -> None:
    """Check the vocabularies of served teachers, which may have another template. Raises
    InputError."""
    student = Chat.load(context.inputs[STUDENT])
    for domain, teacher in served.items():
        role = teacher.served_role(domain)
        if role is not None:
            difference = other_vocabulary(student, Chat.load(context.inputs[role.input]))
        else:
            with ModelFiles(teacher.tokenizer).on_this_machine(CHAT_FILES) as folder:
                difference = other_vocabulary(student, Chat.load(folder))
        if difference:
            raise InputError(
                f"the served teacher of {domain} has another {difference} than the student, so it"
                " cannot score the student's tokens; use a model of the same tokenizer"
            )


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
    shared = {name: value for name, value in spec.settings if name in RlSettings.model_fields}
    settings = RlSettings(**shared, oversample=1.0, refill_rounds=0)
    return RlSpec(seed=spec.seed, settings=settings, domains=spec.domains, start=spec.start)


def check_same_tokens(student: Path, teachers: Mapping[str, Path]) -> None:
    """A teacher scores the student's tokens as they are: ids and prompts must mean the same to it.

    Raises InputError that names the teacher and the first difference.
    """
    ours = Chat.load(student)
    for domain, folder in teachers.items():
        if what := other_tokens(ours, Chat.load(folder)):
            raise InputError(
                f"the teacher of {domain} ({folder}) has another {what} than the student"
                f" ({student}), so it cannot score the student's tokens; use an expert that was"
                " trained from the same base"
            )


def other_tokens(student: Chat, teacher: Chat) -> str:
    """Return what makes tokens mean something else to the teacher; empty if nothing does."""
    if said := other_vocabulary(student, teacher):
        return said
    if teacher.prompt_ids(_PROBE) != student.prompt_ids(_PROBE):
        return "chat template (the same question gives different tokens)"
    return ""


def other_vocabulary(student: Chat, teacher: Chat) -> str:
    """Return how their ids differ; empty if they do not."""
    if teacher.vocabulary == student.vocabulary:
        return ""
    return f"tokenizer ({_difference(student.vocabulary, teacher.vocabulary)})"


def _difference(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """Example: `token 'ab' is 17 here and 18 there`."""
    ordered = sorted({*ours, *theirs}, key=lambda token: (ours.get(token, len(ours)), token))
    token = next(t for t in ordered if ours.get(t) != theirs.get(t))
    here, there = ours.get(token, "unknown"), theirs.get(token, "unknown")
    return f"token {token!r} is {here} to the student and {there} to the teacher"
