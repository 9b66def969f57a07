"""One stage alone, and what differs between recipes or runs."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from flows.command.app import Json, Set, app, console, examples

Model = Annotated[
    str, Parameter(help="an HF folder, a digest (or its beginning), or a stage as RUN/STAGE")
]
Root = Annotated[str, Parameter(help="the store of the artifact that is the model")]
Columns = Annotated[
    list[str],
    Parameter(
        negative=(), consume_multiple=True, help="names of the files' columns, e.g. messages=dialog"
    ),
]
Chats = Annotated[
    list[str],
    Parameter(
        negative=(), consume_multiple=True, help="JSONL or Parquet files of messages to learn from"
    ),
]
Prompts = Annotated[
    list[str],
    Parameter(
        negative=(),
        consume_multiple=True,
        help="JSONL or Parquet files of prompts with references, in place of a domain",
    ),
]
HeldOut = Annotated[
    list[str],
    Parameter(
        negative=(),
        consume_multiple=True,
        help="files of prompts to evaluate on; default: a tenth of the data",
    ),
]
Domain = Annotated[
    str,
    Parameter(
        help="where problems come from: reasoning, agent, general, reasoning-gym, or your own as"
        " file.py:Class"
    ),
]
Reward = Annotated[
    list[str],
    Parameter(
        negative=(),
        help="what judges answers: NAME or NAME=WEIGHT, your own as file.py:function; may be"
        " repeated, the first judges the outcome",
    ),
]
Tokens = Annotated[int, Parameter(help="token budget of one rollout")]
Steps = Annotated[int, Parameter(help="optimizer steps")]
Lr = Annotated[float, Parameter(help="peak learning rate")]
Seed = Annotated[int, Parameter(help="of the data's order and of sampling")]
Name = Annotated[str, Parameter(help="the recipe's name; default: KIND-DATA or KIND-DOMAIN")]
Problems = Annotated[int, Parameter(help="how many problems to draw")]
Samples = Annotated[int, Parameter(help="rollouts per problem")]
Evaluate = Annotated[
    bool, Parameter(help="whether to score the model before and after, where there is a domain")
]
Print = Annotated[
    bool, Parameter(name="--print", negative=(), help="print the recipe, run nothing")
]
Save = Annotated[str, Parameter(help="write the recipe to this file, too")]
Here = Annotated[bool, Parameter(negative=(), help="run without the Prefect server")]


@app.command(
    help_epilogue=examples(
        "sft --model ./qwen --data 'chats/*.jsonl'",
        "sft --model ./qwen --data chats.parquet --epochs 2 --save mine.yaml",
        "sft --model cpu-smoke/base --domain reasoning --steps 100 --lr 2e-3",
    )
)
def sft(
    *,
    model: Model,
    data: Chats | None = None,
    domain: Domain = "",
    reward: Reward | None = None,
    columns: Columns | None = None,
    steps: Steps | None = None,
    epochs: Annotated[float, Parameter(help="passes over the files, without --steps")] = 1.0,
    batch_size: Annotated[int, Parameter(help="sequences per optimizer step")] = 16,
    lr: Lr = 1e-5,
    max_new_tokens: Tokens | None = None,
    evaluate: Evaluate = True,
    seed: Seed = 0,
    name: Name = "",
    set_: Set | None = None,
    print_: Print = False,
    save: Save = "",
    in_process: Here = False,
    root: Root = "",
) -> int:
    """Train a model on conversations: your own files, or a domain's demonstrations.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, batch_size=batch_size) | {"optimizer": {"lr": lr}}
    asked: dict[str, Any] = {"model": model, "data": data, "domain": domain, "rewards": reward}
    asked |= {"columns": columns, "max_new_tokens": max_new_tokens, "settings": settings}
    asked |= {"epochs": epochs, "seed": seed, "name": name, "changes": set_, "root": root}
    return _start("sft", asked, print_, save, evaluate, in_process)


@app.command(
    help_epilogue=examples(
        "rl --model ./qwen --data problems.jsonl --reward math",
        "rl --model cpu-demo/agent-sft --domain agent --steps 24 --lr 2e-4",
        "rl --model ./qwen --domain mine.py:Domain --reward mine.py:is_right",
    )
)
def rl(
    *,
    model: Model,
    data: Prompts | None = None,
    held_out: HeldOut | None = None,
    domain: Domain = "",
    reward: Reward | None = None,
    columns: Columns | None = None,
    steps: Steps | None = None,
    problems_per_step: Annotated[int | None, Parameter(help="problems of one step")] = None,
    group_size: Annotated[int | None, Parameter(help="rollouts per problem")] = None,
    preset: Annotated[str, Parameter(help="the algorithm, e.g. grpo, dapo, gspo")] = "grpo",
    lr: Lr = 1e-6,
    max_new_tokens: Tokens | None = None,
    evaluate: Evaluate = True,
    seed: Seed = 0,
    name: Name = "",
    set_: Set | None = None,
    print_: Print = False,
    save: Save = "",
    in_process: Here = False,
    root: Root = "",
) -> int:
    """Train a model on its own answers to problems, as a reward judges them.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, problems_per_step=problems_per_step, group_size=group_size)
    settings |= {"algorithm": {"preset": preset}, "optimizer": {"lr": lr}}
    asked: dict[str, Any] = {"model": model, "data": data, "held_out": held_out, "domain": domain}
    asked |= {"rewards": reward, "columns": columns, "max_new_tokens": max_new_tokens}
    asked |= {"settings": settings, "seed": seed, "name": name, "changes": set_, "root": root}
    return _start("rl", asked, print_, save, evaluate, in_process)


@app.command(
    help_epilogue=examples(
        "distill --model cpu-demo/agent-rl --domain agent --problems 1000",
        "distill --model ./qwen --data problems.jsonl --reward math",
    )
)
def distill(
    *,
    model: Model,
    data: Prompts | None = None,
    domain: Domain = "",
    reward: Reward | None = None,
    columns: Columns | None = None,
    problems: Problems | None = None,
    samples: Samples | None = None,
    max_new_tokens: Tokens | None = None,
    seed: Seed = 0,
    name: Name = "",
    set_: Set | None = None,
    print_: Print = False,
    save: Save = "",
    in_process: Here = False,
    root: Root = "",
) -> int:
    """Make a dataset of a model's answers to problems, those that a reward finds right.

    Prints the recipe that this stands for, and runs it.
    """
    asked: dict[str, Any] = {"model": model, "data": data, "domain": domain, "rewards": reward}
    asked |= {"columns": columns, "max_new_tokens": max_new_tokens, "seed": seed, "name": name}
    asked |= {"settings": _given(problems=problems, samples=samples), "changes": set_}
    return _start("distill", asked | {"root": root}, print_, save, False, in_process)


@app.command(
    help_epilogue=examples(
        "evaluate --model ./qwen --data test.jsonl --reward math",
        "evaluate --model cpu-demo/unified-rl --domain reasoning --samples 8",
    )
)
def evaluate(
    *,
    model: Model,
    data: Prompts | None = None,
    domain: Domain = "",
    reward: Reward | None = None,
    columns: Columns | None = None,
    problems: Problems | None = None,
    samples: Samples | None = None,
    max_new_tokens: Tokens | None = None,
    seed: Seed = 0,
    name: Name = "",
    set_: Set | None = None,
    print_: Print = False,
    save: Save = "",
    in_process: Here = False,
    root: Root = "",
) -> int:
    """Score a model on held-out problems of a domain, or on all of your own files.

    Prints the recipe that this stands for, and runs it.
    """
    asked: dict[str, Any] = {"model": model, "data": data, "domain": domain, "rewards": reward}
    asked |= {"columns": columns, "max_new_tokens": max_new_tokens, "seed": seed, "name": name}
    asked |= {"scores": _given(problems=problems, samples=samples), "changes": set_, "root": root}
    return _start("evaluate", asked, print_, save, True, in_process)


def _start(
    kind: Any, asked: dict[str, Any], print_: bool, save: str, evaluates: bool, in_process: bool
) -> int:
    from flows.one_stage.options import OneStage
    from flows.one_stage.start import start_one

    stage = OneStage(kind=kind, **_given(**asked))
    return start_one(stage, print_, save, evaluates, in_process, console)


def _given(**options: Any) -> dict[str, Any]:
    """Without those that were left out."""
    return {name: value for name, value in options.items() if value is not None}


@app.command(
    help_epilogue=examples(
        "diff cpu-demo --set experts.agent.path.rl.steps=4",
        "diff cpu-demo-20260101-120000-ab12 mine.yaml",
    )
)
def diff(a: str, b: str = "", /, *, set_: Set | None = None, json: Json = False) -> int:
    """Show which settings of two recipes or runs differ, which stages run again, and why.

    Args:
        a: A recipe's file, a shipped recipe's name, or a run's id or name.
        b: The same; empty is A with the changes of --set, which are always B's.
    """
    from flows.diff.show import show_diff

    return show_diff(a, b, set_ or [], json, console)
