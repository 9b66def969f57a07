"""An environment of verifiers with a tool."""

import verifiers as vf
from datasets import Dataset

COLOURS = {"ant": "red", "bee": "blue"}


async def look_up(name: str) -> str:
    """The colour of an animal.

    Args:
        name: of the animal
    """
    return COLOURS[name]


def load_environment() -> vf.Environment:
    rows = [{"question": f"Colour of {n}?", "answer": c} for n, c in COLOURS.items()]

    def is_right(completion, answer) -> float:
        return float((completion[-1]["content"] or "").strip() == answer)

    rubric = vf.Rubric(funcs=[is_right])
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows), rubric=rubric,
        tools=[look_up], max_turns=4,
    )  # fmt: skip
