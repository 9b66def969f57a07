"""Rewards by name: ours, or a user's class or function by dotted path."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast, get_args

from engines.types import Reward
from infra.errors import InputError
from infra.hooks import check_options, construct, resolve
from rewards.verdicts import OwnReward, shown

BUILT_IN: Mapping[str, str] = {
    "math": "rewards.math:Math",
    "exact": "rewards.exact:Exact",
    "regex": "rewards.exact:Regex",
    "agent-answer": "rewards.agent_outcomes:AgentAnswer",
    "function-calls": "rewards.agent_outcomes:FunctionCalls",
    "repository-tests": "rewards.agent_outcomes:RepositoryTests",
    "code": "rewards.code.code_reward:Code",
    "constraints": "rewards.constraints.constraints:Constraints",
    "reasoning-gym": "rewards.library_score:ReasoningGymScore",
    "format": "rewards.text:Format",
    "repetition": "rewards.text:Repetition",
    "length": "rewards.text:Length",
    "pathologies": "rewards.pathologies:Pathologies",
    "library-score": "rewards.library_score:LibraryScore",
    "judge": "rewards.judges.served:Judge",
    "reward-model": "rewards.judges.served:RewardModel",
    "external-judge": "rewards.judges.external_judge:ExternalJudge",
}
SERVED_OPTIONS: Mapping[str, str] = {
    "judge": "rewards.judges.served:JudgeSettings",
    "reward-model": "rewards.judges.served:RewardModelSettings",
}
"""the options of those that ask a served model; found by name, as no other reward's stage has them
in its code"""
ASKING_OPTIONS: Mapping[str, str] = {
    **SERVED_OPTIONS,
    "external-judge": "rewards.judges.external_judge:ExternalJudgeSettings",
}
ASKING = frozenset(ASKING_OPTIONS)
"""they ask a model, which only a stage does: `rewards.judges`"""
PENALTIES = ("repetition", "length", "pathologies")
"""give 0 to what is fine"""
QUICK = frozenset(BUILT_IN) - ASKING - {"reasoning-gym", "regex"}
"""pure, or with bounds of their own: they are called where the rollout is, without a time limit;
a pattern of the user's may search a reply for ever"""

Pathology = Literal[
    "language-mixing",
    "repetition",
    "broken-format",
    "empty-thought",
    "endless-thought",
    "refusal-loop",
]
PATHOLOGIES: tuple[Pathology, ...] = get_args(Pathology)
"""what the reward `pathologies` looks for: a recipe names them, and reading it loads no reward"""

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FORMS = (
    "Write `def reward(transcript) -> float`, or a class with `__call__(self, transcript)`; `async`"
    " or not, and with a number, True or False, or a Verdict as its result"
)

_OF_OTHERS: Mapping[str, tuple[frozenset[str], str]] = {
    "TRL": (
        frozenset({"completions"}),
        '{0}(completions=[transcript.answer], answer=[transcript.problem.reference["answer"]])[0]',
    ),
    "verl": (
        frozenset({"solution_str"}),
        '{0}("", transcript.answer, transcript.problem.reference["answer"])',
    ),
    "OpenRLHF": (
        frozenset({"queries", "prompts", "labels"}),
        '{0}([transcript.answer], [""], [transcript.problem.reference["answer"]])[0]',
    ),
    "slime": (
        frozenset({"args", "sample"}),
        'score_of(transcript.answer, transcript.problem.reference["answer"])',
    ),
}
"""names of parameters that rewards of other frameworks have, and what calls such a reward"""


def build(name: str, options: Mapping[str, Any] | None = None) -> Reward:
    """The reward `name` (built in, or `module:attribute`) made with its options.

    A user's part is a class (or factory) whose instances are called with the transcript, or itself
    a function `reward(transcript, **options)`; `async` or not. It returns a Verdict or its score.
    Raises `InputError` for anything else.
    """
    if name in ASKING:
        raise InputError(f"reward {name!r} asks a model, which only a stage does")
    factory = resolve("reward", name, BUILT_IN)
    options = options or {}
    if _judges(factory, options):
        # without the transcript's own parameter, which no option may name
        check_options("reward", name, functools.partial(factory, None), options)
        return OwnReward(_alone(name, functools.partial(factory, **options)))
    reward: Any = construct("reward", name, factory, options)
    if not callable(reward):
        what = name.rpartition(":")[2]
        is_class = inspect.isclass(factory)
        made = f"{what} has no `__call__`" if is_class else f"{what}() made {shown(reward)}"
        raise InputError(f"reward {name!r}: {made}, which is not a reward. {_FORMS}")
    return cast("Reward", reward) if name in BUILT_IN else OwnReward(_alone(name, reward))


def _judges(factory: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Return whether it is the reward itself: it needs one argument beside the options."""
    if inspect.isclass(factory):
        return False
    first = _parameters(factory)[:1]
    return bool(first) and first[0].name not in options and _is_asked_for(first[0])


def _alone(name: str, reward: Callable[..., Any]) -> Callable[..., Any]:
    """The reward, if it can be called with a transcript alone. Raises InputError."""
    parameters = _parameters(reward)
    if framework := framework_of(p.name for p in parameters):
        call = _OF_OTHERS[framework][1].format(name.rpartition(":")[2])
        raise InputError(
            f"reward {name!r} has the parameters of a reward for {framework}; here it is called"
            f" with one transcript alone. Write `def adapted(transcript): return {call}` and name"
            " `adapted` (what a row says beside its prompt is in transcript.problem.reference)"
        )
    if [p.name for p in parameters[:1]] == ["transcripts"]:
        raise InputError(f"reward {name!r} judges a group: write `group: true` beside its name")
    takes_one = any(p.kind in (*_BY_PLACE, p.VAR_POSITIONAL) for p in parameters[:1])
    missing = [p.name for p in parameters[1:] if _is_asked_for(p) or _is_asked_for(p, by_name=True)]
    if parameters and takes_one and not missing:
        return reward
    why = f"needs {', '.join(missing)} as well" if missing else "takes no transcript"
    raise InputError(
        f"reward {name!r} {why}: it is called with the transcript alone, and everything else it"
        f" takes is an option. {_FORMS}"
    )


def framework_of(parameters: Iterable[str]) -> str:
    """The other framework whose rewards have these parameters; empty for none."""
    names = set(parameters)
    return next((name for name, (its, _) in _OF_OTHERS.items() if its <= names), "")


def _is_asked_for(parameter: inspect.Parameter, *, by_name: bool = False) -> bool:
    kinds = (parameter.KEYWORD_ONLY,) if by_name else _BY_PLACE
    return parameter.kind in kinds and parameter.default is parameter.empty


def _parameters(called: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters; of what a C extension made, one that stands for any."""
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("transcript", inspect.Parameter.POSITIONAL_ONLY)]
