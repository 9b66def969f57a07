"""An environment of verifiers with several turns: a number to be guessed, without one to evaluate
on."""

import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        said = messages[-1]["content"].strip()
        if said == state["answer"]:
            return [{"role": "user", "content": "right"}]
        return [{"role": "user", "content": f"no, not {said[:9]}"}]

    @vf.stop
    async def is_guessed(self, state) -> bool:
        turns = state["trajectory"]
        said = turns[-1]["completion"][-1]["content"] if turns else ""
        return said.strip() == state["answer"]


def load_environment(max_turns: int = 3) -> vf.Environment:
    rows = [{"question": "guess", "answer": str(n)} for n in range(40)]

    def is_guessed(completion, answer) -> float:
        return float(completion[-1]["content"].strip() == answer)

    rubric = vf.Rubric(funcs=[is_guessed])
    return Guess(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns)
