"""Declares the commands of one stage, of what stages made, and of what differs between recipes or
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from flows.command.app import (
    Json,
    Model,
    Set,
    Template,
    app,
    artifacts_app,
    console,
    examples,
    sessions_app,
)

Root = Annotated[str, Parameter(help="the store of the artifact that is the model")]
Columns = Annotated[
    list[str],
    Parameter(
        negative=(),
        consume_multiple=True,
        help="names of the files' columns, e.g. messages=dialog, prompt=task+details or"
        " reference=reward_model.ground_truth",
    ),
]
Instruction = Annotated[
    str, Parameter(help="text that follows each prompt of --data, e.g. how to write the answer")
]
System = Annotated[str, Parameter(help="text of a system message, for prompts without one")]
Pattern = Annotated[
    str, Parameter(help="regular expression: what of a reference counts, e.g. '#### (.+)'")
]
Chats = Annotated[
    list[str],
    Parameter(
        negative=(),
        consume_multiple=True,
        help="JSONL, JSON, CSV or Parquet files of messages, or of preferences, to learn from",
    ),
]
Prompts = Annotated[
    list[str],
    Parameter(
        negative=(),
        consume_multiple=True,
        help="JSONL, JSON, CSV or Parquet files of prompts with references, in place of a domain",
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
        help="where problems come from: reasoning, agent, coding, browsing, functions, general,"
        " needle, instructions, reasoning-gym, your own as file.py:Class, or a library's task as"
        " verifiers=my_env or inspect=my_tasks.py:task"
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
Epochs = Annotated[float, Parameter(help="passes over the files, in place of --steps; default: 1")]
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
LmTasks = Annotated[
    list[str],
    Parameter(name="--lm-eval", negative=(), help="a task of lm-eval; may be repeated"),
]
LmFolder = Annotated[str, Parameter(help="folder of your own tasks of lm-eval")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Holds the options that all these commands take beside their data."""

    model: Model
    template: Template = ""
    domain: Domain = ""
    reward: Reward | None = None
    columns: Columns | None = None
    instruction: Instruction = ""
    system: System = ""
    pattern: Pattern = ""
    max_new_tokens: Tokens | None = None
    seed: Seed = 0
    name: Name = ""
    set_: Set | None = None
    print_: Print = False
    save: Save = ""
    in_process: Here = False
    root: Root = ""

    def asked(self) -> dict[str, Any]:
        """Fields of `OneStage`."""
        return {
            "model": self.model, "template": self.template, "domain": self.domain,
            "rewards": self.reward or [],
            "columns": self.columns or [], "instruction": self.instruction,
            "system": self.system, "pattern": self.pattern, "max_new_tokens": self.max_new_tokens,
            "seed": self.seed, "name": self.name, "changes": self.set_ or [], "root": self.root,
        }  # fmt: skip


@app.command(
    help_epilogue=examples(
        "sft --model ./qwen --data 'chats/*.jsonl'",
        "sft --model ./qwen --data chats.parquet --epochs 2 --save mine.yaml",
        "sft --model cpu-smoke/base --domain reasoning --steps 100 --lr 2e-3",
    )
)
def sft(
    *,
    data: Chats | None = None,
    steps: Steps | None = None,
    epochs: Epochs | None = None,
    batch_size: Annotated[int, Parameter(help="sequences per optimizer step")] = 16,
    lr: Lr = 1e-5,
    evaluate: Evaluate = True,
    shared: Shared,
) -> int:
    """Train a model on conversations: your own files, or a domain's demonstrations.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, batch_size=batch_size) | {"optimizer": {"lr": lr}}
    return _start("sft", shared, evaluate, data=data, settings=settings, epochs=epochs)


@app.command(help_epilogue=examples("preference --model ./qwen --data verdicts.jsonl --loss kto"))
def preference(
    *,
    data: Chats | None = None,
    loss: Annotated[
        Literal["dpo", "ipo", "kto", "orpo", "simpo"],
        Parameter(help="how a preference is learned; --set changes its settings"),
    ] = "dpo",
    steps: Steps | None = None,
    epochs: Epochs | None = None,
    batch_size: Annotated[int, Parameter(help="pairs per optimizer step; of kto, answers")] = 16,
    lr: Lr = 5e-7,
    evaluate: Evaluate = True,
    shared: Shared,
) -> int:
    """Train a model on which of two answers is better, or which answers are good.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, batch_size=batch_size)
    settings |= {"loss": {"kind": loss}, "optimizer": {"lr": lr}}
    return _start("preference", shared, evaluate, data=data, settings=settings, epochs=epochs)


@app.command(help_epilogue=examples("reward --model ./qwen --data pairs.jsonl"))
def reward(
    *,
    data: Chats | None = None,
    steps: Steps | None = None,
    epochs: Epochs | None = None,
    batch_size: Annotated[int, Parameter(help="pairs per optimizer step")] = 16,
    lr: Lr = 5e-6,
    shared: Shared,
) -> int:
    """Train a reward model on which of two answers is better.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, batch_size=batch_size) | {"optimizer": {"lr": lr}}
    return _start("reward", shared, False, data=data, settings=settings, epochs=epochs)


@app.command(
    help_epilogue=examples(
        "rl --model ./qwen --data problems.jsonl --reward math",
        "rl --model cpu-demo/agent-sft --domain agent --steps 24 --lr 2e-4",
        "rl --model ./qwen --domain mine.py:Domain --reward mine.py:is_right",
    )
)
def rl(
    *,
    data: Prompts | None = None,
    held_out: HeldOut | None = None,
    steps: Steps | None = None,
    problems_per_step: Annotated[int | None, Parameter(help="problems of one step")] = None,
    group_size: Annotated[int | None, Parameter(help="rollouts per problem")] = None,
    preset: Annotated[str, Parameter(help="the algorithm, e.g. grpo, dapo, gspo")] = "grpo",
    lr: Lr = 1e-6,
    evaluate: Evaluate = True,
    shared: Shared,
) -> int:
    """Train a model on its own answers to problems, as a reward judges them.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(steps=steps, problems_per_step=problems_per_step, group_size=group_size)
    settings |= {"algorithm": {"preset": preset}, "optimizer": {"lr": lr}}
    return _start("rl", shared, evaluate, data=data, held_out=held_out, settings=settings)


@app.command(
    help_epilogue=examples(
        "distill --model cpu-demo/agent-rl --domain agent --problems 1000",
        "distill --model ./qwen --data problems.jsonl --reward math",
    )
)
def distill(
    *,
    data: Prompts | None = None,
    problems: Problems | None = None,
    samples: Samples | None = None,
    shared: Shared,
) -> int:
    """Make a dataset of a model's answers to problems, those that a reward finds right.

    Prints the recipe that this stands for, and runs it.
    """
    settings = _given(problems=problems, samples=samples)
    return _start("distill", shared, False, data=data, settings=settings)


@app.command(
    help_epilogue=examples(
        "evaluate --model ./qwen --data test.jsonl --reward math",
        "evaluate --model cpu-demo/unified-rl --domain reasoning --samples 8",
        "evaluate --model agent-rl --lm-eval arc_easy --lm-eval gsm8k",
    )
)
def evaluate(
    *,
    data: Prompts | None = None,
    problems: Problems | None = None,
    samples: Samples | None = None,
    lm_eval: LmTasks | None = None,
    lm_eval_folder: LmFolder = "",
    shared: Shared,
) -> int:
    """Score a model on held-out problems of a domain, on all of your own files, or on lm-eval's
    tasks.

    Prints the recipe that this stands for, and runs it.
    """
    scores = _given(problems=problems, samples=samples)
    return _start(
        "evaluate", shared, True, data=data, scores=scores, lm_tasks=lm_eval,
        lm_folder=lm_eval_folder,
    )  # fmt: skip


def _start(kind: Any, shared: Shared, evaluates: bool, **more: Any) -> int:
    from flows.one_stage.build import start_one
    from flows.one_stage.one_domain import OneStage

    stage = OneStage(kind=kind, evaluates=evaluates, **shared.asked(), **_given(**more))
    return start_one(stage, shared.print_, shared.save, shared.in_process, console)


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
    from flows.command.compare import show_diff

    return show_diff(a, b, set_ or [], json, console)


@artifacts_app.default
def artifacts(*, run: str = "", kind: str = "", root: str = "", json: Json = False) -> int:
    """List the artifacts in the store, with the run and stage that made each, and its score.

    Args:
        run: Show only what this run made or found: a run's id or name, or a recipe's name.
        kind: Show only artifacts of this kind of stage, e.g. rl.
        root: The store to look in, e.g. s3://bucket/prefix; default: the latest run's.
    """
    from flows.command.models.named_artifacts import show_artifacts

    return show_artifacts(run, kind, root, json, console)


@app.command(
    help_epilogue=examples(
        "rollouts",
        "rollouts agent-rl --step 20: --reward :0.5",
        "rollouts evaluate --run cpu-demo --expert agent --sort longest",
        "rollouts 3f09c2b1 --limit 100 --json > samples.json",
    )
)
def rollouts(
    artifact: str = "",
    /,
    *,
    run: str = "",
    step: str = "",
    status: str = "",
    reward: str = "",
    domain: str = "",
    expert: str = "",
    sort: Literal["step", "best", "worst", "longest"] = "step",
    limit: int = 10,
    root: str = "",
    json: Json = False,
) -> int:
    """Browse an artifact's samples: text and tokens, what was trained on, reward and its reason.

    What the model wrote is bold and green on a terminal, and between double brackets elsewhere;
    what an environment answered is neither.

    Args:
        artifact: A stage, RUN/STAGE, or a digest (or its beginning); default: the run's last
            stage that kept samples.
        run: Whose stage: a run's id or name, or a recipe's name (its latest run); empty is the
            latest run.
        step: Only samples of these training steps: 7, 5:9, 5: or :9.
        status: Only samples that ended so: completed, truncated, malformed, aborted or failed.
        reward: Only samples with a reward in this range, e.g. 0:0.5, 0.9: or 1.
        domain: Only samples of this domain.
        expert: Only samples of models of this expert.
        sort: The order: as they were sampled, by reward, or by trained tokens.
        limit: How many samples to show.
        root: The store to look in; default: the run's.
    """
    from flows.command.rollouts import Wanted, show_rollouts

    wanted = Wanted.of(step, status, reward, domain, expert)
    return show_rollouts(artifact, run, wanted, sort, limit, root, json, console)


@sessions_app.default
@sessions_app.command(name="diff", help_epilogue=examples("sessions diff agent-rl --limit 1"))
def sessions(
    artifact: str = "",
    /,
    *,
    run: str = "",
    step: str = "",
    limit: int = 10,
    root: str = "",
    json: Json = False,
) -> int:
    """Show, turn by turn, what a harness sent and what was sampled, and where the two differ.

    Args:
        artifact: A stage, RUN/STAGE, or a digest (or its beginning); default: the run's last
            stage that kept samples.
        run: Whose stage: a run's id or name, or a recipe's name (its latest run); empty is the
            latest run.
        step: Only samples of these training steps: 7, 5:9, 5: or :9.
        limit: How many samples to show.
        root: The store to look in; default: the run's.
    """
    from flows.command.rollouts import show_sessions

    return show_sessions(artifact, run, step, limit, root, json, console)
