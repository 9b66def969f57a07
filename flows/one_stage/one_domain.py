"""What a person says of one stage; the rest is the recipe's defaults.

Steps follow from the comparisons in files of preferences: a row may have several.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from curricula.built_in_curricula import BUILT_IN as CURRICULA
from curricula.built_in_curricula import OF_LIBRARIES
from curricula.rows.pairs import Judged
from engines.algorithms.preference_losses import PreferenceLoss, is_paired
from engines.algorithms.reward_losses import Compares, RewardLoss, compares
from flows.explain import nearest, validated
from flows.recipe import RESERVED
from infra.data_files.chunks import LocalFiles
from infra.data_files.rows import BadRow
from infra.errors import InputError
from rewards.built_in_rewards import BUILT_IN as REWARDS
from tasks.preference.row_faults import row_fault
from tasks.preference.spec import PreferenceFiles
from tasks.reward.spec import RewardSettings

StageKind = Literal["sft", "preference", "reward", "rl", "distill", "evaluate"]
LEARN_ROWS: tuple[StageKind, ...] = ("sft", "preference", "reward")
"""kinds that learn what the rows of files say; a domain only scores them"""
MAX_NEW_TOKENS = 512
ONLY_MODEL = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStage:
    """Example: OneStage(kind="sft", model="/models/base", data=["chats.jsonl"])"""

    kind: StageKind
    model: str
    """a model folder, a digest, or a stage as RUN/STAGE"""
    template: str = ""
    """a chat template in place of the model's own: a file, or one that ships"""
    data: Sequence[str] = ()
    """files of messages for `sft`, of preferences for `preference`, of prompts with references
    for the others"""
    held_out: Sequence[str] = ()
    """files of prompts that are only evaluated"""
    columns: Sequence[str] = ()
    """`column=name` of the files"""
    instruction: str = ""
    """text that follows the last question of each prompt of the files"""
    system: str = ""
    """text of a system message, for prompts of the files without one"""
    pattern: str = ""
    """what of a reference counts, as a regular expression"""
    domain: str = ""
    """a built-in curriculum, or one's own as `file.py:Class` or `module:Class`"""
    rewards: Sequence[str] = ()
    """`name` or `name=weight`; the first judges the outcome"""
    max_new_tokens: int | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """of the stage, as a recipe writes them"""
    epochs: float | None = None
    """passes over the files, where `settings` have no steps; None: one"""
    evaluates: bool = True
    """whether the model is scored before and after, where there is a domain"""
    scores: dict[str, Any] = field(default_factory=dict[str, Any])
    """how the models are evaluated, as a recipe writes it"""
    lm_tasks: Sequence[str] = ()
    """of lm-eval"""
    lm_folder: str = ""
    """of the user's own tasks of lm-eval"""
    seed: int = 0
    name: str = ""
    changes: Sequence[str] = ()
    """`field=value` of the recipe"""
    root: str = ""
    """the store of the artifact that is the model"""


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    reward: str
    max_turns: int = 1
    max_new_tokens: int = 48


OURS = {
    "reasoning": _BuiltIn("math"),
    "agent": _BuiltIn("agent-answer", max_turns=4),
    "coding": _BuiltIn("repository-tests", max_turns=12, max_new_tokens=512),
    "browsing": _BuiltIn("agent-answer", max_turns=8, max_new_tokens=256),
    "functions": _BuiltIn("function-calls", max_turns=6, max_new_tokens=256),
    "general": _BuiltIn("constraints"),
    "needle": _BuiltIn("exact", max_new_tokens=16),
    "instructions": _BuiltIn("constraints", max_new_tokens=512),
    "reasoning-gym": _BuiltIn("reasoning-gym", max_new_tokens=512),
}
"""what suits the built-in curricula"""
FILES = "files"
"""the curriculum of a user's own files of prompts"""


def domain_of(asked: OneStage) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the domain as a recipe writes it, and the user's own Python files; None where none was
    asked for.

    Raises InputError.
    """
    _check_files(asked)
    if not asked.domain and (asked.kind in LEARN_ROWS or not asked.data):
        return _none(asked), []
    library, posed, task = asked.domain.partition("=")
    if posed and library in OF_LIBRARIES:
        return _of_library(asked, library, task)
    name, hooks = _part("--domain", asked.domain) if asked.domain else (FILES, [])
    if asked.domain and name not in OURS and ":" not in name:
        raise InputError(
            f"--domain {asked.domain}: there is no such domain; built in: {', '.join(OURS)}; your"
            " own as file.py:Class; of a library as verifiers=my_env or inspect=my_tasks.py:task"
            f"{nearest(asked.domain, OURS)}"
        )
    ours = OURS.get(name, _BuiltIn("", max_new_tokens=MAX_NEW_TOKENS))
    rewards, more = _rewards(asked, ours.reward)
    options = {} if asked.domain else {"options": _prompt_files(asked)}
    written: dict[str, Any] = {"curriculum": {"name": name, **options}, "rewards": rewards}
    written["max_new_tokens"] = _budget(asked, ours.max_new_tokens)
    if ours.max_turns > 1:
        written["max_turns"] = ours.max_turns
    return written, list(dict.fromkeys([*hooks, *more]))


def _budget(asked: OneStage, usual: int) -> int:
    return usual if asked.max_new_tokens is None else asked.max_new_tokens


def _wording(asked: OneStage) -> dict[str, str]:
    """Return what is said beside the rows' own prompts, as a source of a recipe has it."""
    return {
        "reference_pattern": asked.pattern, "system": asked.system,
        "instruction": asked.instruction,
    }  # fmt: skip


def _check_files(asked: OneStage) -> None:
    """Raises InputError for files, or columns of them, that nothing would read."""
    if asked.kind in ("preference", "reward") and not asked.data:
        raise InputError(
            f"{asked.kind} needs something to learn from: give --data with files of pairs, ranked"
            " lists or answers with verdicts"
        )
    if asked.domain and asked.kind not in LEARN_ROWS:
        for option, files in (("--data", asked.data), ("--held-out", asked.held_out)):
            if files:
                raise InputError(
                    f"{option} {files[0]}: the problems come from --domain {asked.domain}; give"
                    " files or a domain, or both in a recipe (`--print` shows one to begin with)"
                )
    for option, given in (("--held-out", asked.held_out), ("--columns", asked.columns)):
        if given and not asked.data:
            raise InputError(f"{option} {given[0]}: give the files to learn from by --data, too")
    for named, text in _wording(asked).items():
        option = "--pattern" if named == "reference_pattern" else f"--{named}"
        if text and (asked.kind in LEARN_ROWS or not asked.data):
            why = f"{asked.kind} learns what its rows say"
            raise InputError(
                f"{option} {text!r}: belongs to prompts of --data, which rl, distill and evaluate"
                f" answer; {why if asked.kind in LEARN_ROWS else 'leave it out'}"
            )


def _of_library(asked: OneStage, library: str, task: str) -> tuple[dict[str, Any], list[str]]:
    """Return a task of verifiers or Inspect, which may be in a file: it rolls out and scores by
    itself.
    """
    name, hooks = _part("--domain", task)
    if task.endswith(".py"):
        name, hooks = _part("--domain", f"{task}:")
        name = name.rstrip(":")
    rewards, more = _rewards(asked, "library-score")
    return {
        "curriculum": {"name": library, "options": {OF_LIBRARIES[library]: name}},
        "driver": {"name": "library"},
        "rewards": rewards,
        "max_new_tokens": _budget(asked, MAX_NEW_TOKENS),
    }, list(dict.fromkeys([*hooks, *more]))


def expert_name(asked: OneStage) -> str:
    """Return what the stages are called by: the domain, or the first file."""
    if asked.domain:
        spoken = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", asked.domain.rpartition(":")[2])
    else:
        spoken = re.split(r"[*?\[]", asked.data[0])[0].rstrip("/") if asked.data else ""
        spoken = Path(spoken).name.partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", spoken.lower()).strip("-")
    if not re.match(r"[a-z]", name) or name in RESERVED or name.startswith("unified"):
        name = f"{ONLY_MODEL}-{name}".strip("-")
    return name[:40].rstrip("-")


def _none(asked: OneStage) -> None:
    """Raises InputError where the stage needs problems."""
    if asked.lm_tasks:
        return
    if asked.kind not in LEARN_ROWS:
        raise InputError(
            f"{asked.kind} needs problems: give --domain ({', '.join(OURS)}, or your own as"
            " file.py:Class) or --data with files of prompts and references"
            + (", or --lm-eval with tasks of lm-eval" if asked.kind == "evaluate" else "")
        )
    if not asked.data:
        raise InputError(
            "sft needs something to learn from: give --data with files of messages, or --domain"
            f" for its demonstrations ({', '.join(OURS)}, or your own as file.py:Class)"
        )
    if asked.rewards:
        raise InputError("--reward judges answers in a domain; give --domain, or leave it out")
    if asked.max_new_tokens is not None:
        raise InputError("--max-new-tokens is for answers in a domain; give --domain, too")


def _prompt_files(asked: OneStage) -> dict[str, Any]:
    """Options of the curriculum `files`."""
    columns: dict[str, Any] = {"columns": columns_of(asked.columns)} if asked.columns else {}
    columns |= {field: text for field, text in _wording(asked).items() if text}
    source = {"files": list(asked.data), **columns}
    match asked.kind, bool(asked.held_out):
        case "evaluate", _:
            return {"sources": {**source, "split": "heldout"}}
        case "distill", _:
            return {"sources": source, "shares": {"heldout": 0.0, "distill": 1.0}}
        case _, True:
            held_out = {"name": "held-out", "files": list(asked.held_out), **columns}
            split = [{**source, "split": "train"}, {**held_out, "split": "heldout"}]
            return {"sources": split}
        case _:
            return {"sources": source}


def columns_of(written: Sequence[str]) -> dict[str, Any]:
    """Return the named columns, those of `metadata` as a list. Raises InputError for what is not
    `column=name`, and for one that is named twice."""
    named: dict[str, Any] = {}
    for each in written:
        if not re.fullmatch(r"[^=]+=[^=]+", each):
            raise InputError(f"--columns {each}: write column=name, e.g. messages=dialog")
        column, name = each.split("=")
        if column in named:
            raise InputError(f"--columns {each}: {column} is named twice; keep one")
        named[column] = name.split(",") if column == "metadata" else name
    return named


def _rewards(asked: OneStage, default: str) -> tuple[list[dict[str, Any]], list[str]]:
    named = list(asked.rewards) or ([default] if default else [])
    if not named:
        raise InputError(
            "--reward: say what judges the answers; built in:"
            f" {', '.join(REWARDS)}; or your own as file.py:function"
        )
    terms: list[dict[str, Any]] = []
    hooks: list[str] = []
    for each in named:
        spoken, equals, weight = each.partition("=")
        name, files = _part("--reward", spoken)
        if name not in REWARDS and ":" not in name:
            raise InputError(
                f"--reward {spoken}: there is no such reward; built in: {', '.join(REWARDS)}; or"
                f" your own as file.py:function{nearest(spoken, REWARDS)}"
            )
        term: dict[str, Any] = {"name": name}
        if equals:
            term["weight"] = _number(each, weight)
        if not terms:
            term["outcome"] = True
        terms.append(term)
        hooks += files
    return terms, hooks


def _number(option: str, text: str) -> float:
    try:
        if isfinite(weight := float(text)):
            return weight
    except ValueError:
        pass
    raise InputError(f"--reward {option}: write name=weight, e.g. format=0.2")


def _part(option: str, spoken: str) -> tuple[str, list[str]]:
    """`file.py:Class` as `file:Class` with the file as a hook; other names as they are."""
    file, colon, attribute = spoken.rpartition(":")
    if not colon and spoken.endswith(".py"):
        file, colon, attribute = spoken, ":", ""
    if not colon or not file.endswith(".py"):
        return spoken, []
    path = Path(file).expanduser().resolve()
    if not attribute:
        known = ", ".join(f"{file}:{name}" for name in _public_names(path))
        raise InputError(f"{option} {spoken}: say what of the file: {known or f'{file}:NAME'}")
    if not path.is_file():
        hint = nearest(path.name, [beside.name for beside in path.parent.glob("*.py")])
        raise InputError(f"{option} {spoken}: there is no file {path}{hint}")
    known = _public_names(path)
    if known and not re.search(rf"\b{re.escape(attribute)}\b|import \*", path.read_text()):
        hint = nearest(attribute, known) or f"; it has {', '.join(known)}"
        raise InputError(f"{option} {spoken}: the file has no `{attribute}`{hint}")
    return f"{path.stem}:{attribute}", [str(path)]


def _public_names(path: Path) -> list[str]:
    """Functions and classes of a file of Python, which is not run; nothing for one that cannot be
    read."""
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return []
    made = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [part.name for part in body if isinstance(part, made) and part.name[0] != "_"]


assert OURS.keys() <= CURRICULA.keys()


_COUNTED = 10_000
"""rows that are read; the others are taken to hold as many"""


def trained_comparisons(
    kind: str, settings: Mapping[str, Any], data: Mapping[str, Any], files: LocalFiles
) -> float:
    """Count the comparisons of all rows less the held-out ones. Where no row can be learned, each
    row counts: what is wrong with them is said by `check`. Raises InputError."""
    compared = _compares(kind, settings.get("loss"))
    source = validated(PreferenceFiles, data)
    read, found = 0, 0
    for chunk in files.chunks:
        rows = files.read(chunk)
        for index in range(len(rows)):
            try:
                found += _num_comparisons(source.judged(rows.row(index)), compared)
            except BadRow:
                continue
        read += len(rows)
        if read >= _COUNTED:
            break
    held_out = 0.0
    if kind == "reward":
        held_out = settings.get("held_out", RewardSettings.model_fields["held_out"].default)
    return (found / read * files.num_rows or files.num_rows) * (1 - held_out)


def _compares(kind: str, loss: Any) -> Compares:
    """Tell what a stage's loss compares; `check` says later what is wrong with the loss."""
    of_kind: Any = PreferenceLoss if kind == "preference" else RewardLoss
    try:
        written: Any = TypeAdapter(of_kind).validate_python(loss or {})
    except ValidationError:
        return "pairs"
    if kind == "reward":
        return compares(written)
    return "pairs" if is_paired(written) else "verdicts"


def _num_comparisons(row: Judged, compared: Compares) -> int:
    """Count the comparisons that such a loss makes of a row; 0 where it cannot learn from it."""
    if row_fault(row, compared):
        return 0
    match compared:
        case "pairs":
            return len(row.pairs)
        case "lists":
            return 1
        case _:
            return len(row.worth)
