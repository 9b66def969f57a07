"""An environment of verifiers with one turn, and a data set to evaluate on."""

import verifiers as vf
from datasets import Dataset


def load_environment(size: int = 40, groups: bool = False, image: bool = False) -> vf.Environment:
    def rows(first: int) -> Dataset:
        made = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(first, first + size)]
        if image:
            part = [{"type": "image_url", "image_url": {"url": "data:,"}}]
            made = [{"prompt": [{"role": "user", "content": part}], "answer": ""}]
        return Dataset.from_list(made)

    def is_right(completion, answer) -> float:
        return float(completion[-1]["content"].strip() == answer)

    def length(completion) -> float:
        return float(len(completion[-1]["content"]))

    def best_of(completions) -> list[float]:
        return [1.0 for _ in completions]

    rubric = vf.Rubric(funcs=[best_of if groups else is_right, length], weights=[1.0, 0.0])
    # its first rows are those of the other data set too
    return vf.SingleTurnEnv(
        dataset=rows(0), eval_dataset=rows(size - 2), rubric=rubric,
        system_prompt=None if image else "Add.",
    )  # fmt: skip
