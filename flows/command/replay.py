"""`tributary replay`: train a stage of a run again, and say whether its weights are the same."""

from __future__ import annotations

from flows.catalog import plan_of
from flows.command.app import errors
from flows.command.output import CommandConsole, print_json
from flows.command.run import watch
from flows.running.new_run import new_run
from flows.running.records import DONE, RunRecord, StageRecord, find_run
from infra.errors import InputError

FLOW = "replay"


def replay_stage(
    stage: str, run: str, in_process: bool, json: bool, console: CommandConsole
) -> int:
    """0 if every tensor is the same to the bit, 1 otherwise."""
    from flows.running.open import running_stack
    from flows.running.prefect_api import PrefectApi

    recorded = find_run(run)
    head, recipe = recorded.head(), recorded.recipe()
    if head.flow == FLOW:
        raise InputError(f"run {recorded.run} is a replay; name the run that it repeats")
    arguments = {"stage": stage, "flow": head.flow, "arguments": head.arguments}
    plan = plan_of(FLOW, recipe, arguments)
    made = _made(recorded, [planned.name for planned in plan[:-1]])
    if not in_process:
        PrefectApi(running_stack().prefect_api).require(FLOW)
    record = new_run(recipe, FLOW, arguments, in_process=in_process)
    record.take_over(made.values())  # code that changed since then is what one may want to try
    code = watch(record, errors if json else console)
    return code or _show(record, plan[-1].name, json, console)


def _made(recorded: RunRecord, names: list[str]) -> dict[str, StageRecord]:
    """The stage and what it was made from. Raises InputError unless all are done."""
    stages = recorded.stages()
    for name in names:
        if name not in stages or stages[name].state not in DONE:
            raise InputError(
                f"stage {name} of run {recorded.run} is not done; finish it with `tributary resume"
                f" {recorded.run}`, then replay"
            )
    return {name: stages[name] for name in names}


def _show(record: RunRecord, name: str, json: bool, console: CommandConsole) -> int:
    stage = record.stage(name)
    assert stage is not None, "the flow is completed"
    counts = ("steps", "tensors", "tensors_differing")
    steps, tensors, differing = (int(stage.metrics[name]) for name in counts)
    if json:
        largest = stage.metrics["largest_difference"] if differing else 0.0
        same = {"run": record.run, "same": not differing, "largest_difference": largest}
        print_json({**same, "steps": steps, "tensors": tensors, "tensors_differing": differing})
        return 1 if differing else 0
    if not differing:
        console.print(f"the same weights after {steps} steps: all {tensors} tensors, to the bit")
        return 0
    console.print(
        f"other weights after {steps} steps: {differing} of {tensors} tensors differ, by"
        f" {stage.metrics['largest_difference']:.3g} at most"
    )
    return 1
