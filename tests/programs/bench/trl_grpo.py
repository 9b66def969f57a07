"""The reference side of the GRPO rows: TRL's GRPOTrainer alone in a process, timed step by step.

Usage:
python -m tests.programs.bench.trl_grpo MODEL PROMPTS.json PROMPTS_A_STEP GROUP NEW_TOKENS STEPS
    [tools]
With `tools` a rollout has two turns of NEW_TOKENS, and between them a tool that answers late; the
tools of all rollouts of a step run side by side. Prints one JSON line: medians of a step's wall and
CPU seconds and of the seconds of one generation, a step's mean wall seconds, and the completion
tokens of a step that the policy wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from tests.programs.bench.tool_latency import latency_s

WARMUP = 3
TOOL_TOKENS = 2
"""of a tool's answer: the last ones of the prompt"""


def main(
    model: str,
    prompts: Path,
    per_step: int,
    group: int,
    new_tokens: int,
    steps: int,
    *,
    with_tools: bool,
) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(1)
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = endless_tokenizer(model, policy.config.vocab_size)
    rows: list[dict[str, Any]] = json.loads(prompts.read_text())
    for row in rows:
        if tokenizer(row["text"])["input_ids"] != row["ids"]:
            raise SystemExit(f"the prompt {row['text']!r} has other tokens here")
    lengths: list[int] = []
    generating: list[float] = []
    generate = policy.generate

    def timed_generate(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        answer = generate(*args, **kwargs)
        generating.append(time.perf_counter() - began)
        return answer

    policy.generate = timed_generate
    marks: list[tuple[float, float]] = []

    def reward(
        completions: list[str], completion_ids: list[list[int]], **_: object
    ) -> list[float | None]:
        written = sum(map(len, completion_ids))
        lengths.append(written - TOOL_TOKENS * len(completion_ids) * with_tools)
        return [zlib.crc32(text.encode()) % 97 / 97 for text in completions]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            marks.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, use_vllm=False,
            report_to="none", save_strategy="no", seed=0, max_steps=WARMUP + steps + 1,
            logging_steps=1000, disable_tqdm=True, per_device_train_batch_size=per_step * group,
            num_generations=group, max_completion_length=new_tokens, learning_rate=1e-6,
            lr_scheduler_type="constant", temperature=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
            loss_type="dapo", scale_rewards="group", num_iterations=1, shuffle_dataset=False,
            max_grad_norm=1.0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=policy, reward_funcs=reward, args=config, processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": row["text"]} for row in rows]),
            callbacks=[Clock()], rollout_func=two_turns if with_tools else None,
        )  # fmt: skip
        trainer.train()
    taken = list(pairwise(marks[WARMUP:]))
    answer = {
        "wall_s": statistics.median(after[0] - before[0] for before, after in taken),
        "mean_wall_s": statistics.mean(after[0] - before[0] for before, after in taken),
        "cpu_s": statistics.median(after[1] - before[1] for before, after in taken),
        "generation_s": statistics.median(generating[WARMUP:]),
        "tokens": round(statistics.mean(lengths)),
    }
    print(json.dumps(answer))


def two_turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """TRL's own generation twice, and between them the tools."""
    prompt_ids: list[list[int]] = trainer.processing_class(prompts)["input_ids"]
    first = _generated(trainer, prompt_ids)
    so_far = [prompt + said for prompt, said in zip(prompt_ids, first, strict=True)]
    asyncio.run(_tools(so_far))
    told = [prompt[-TOOL_TOKENS:] for prompt in prompt_ids]
    before = [tokens + answer for tokens, answer in zip(so_far, told, strict=True)]
    second = _generated(trainer, before)
    parts = list(zip(first, told, second, strict=True))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [said + answer + last for said, answer, last in parts],
        "logprobs": None,
        "env_mask": [
            [1] * len(said) + [0] * len(answer) + [1] * len(last) for said, answer, last in parts
        ],
    }


def _generated(trainer: Any, prompt_ids: list[list[int]]) -> list[list[int]]:
    found = trainer._generate_single_turn(prompt_ids, None, {}, trainer.num_generations)
    return [list(map(int, ids)) for ids in found[0]]


async def _tools(so_far: list[list[int]]) -> None:
    await asyncio.gather(*(asyncio.sleep(latency_s(tokens)) for tokens in so_far))


def endless_tokenizer(model: str, vocabulary: int) -> Any:
    """Its end token is outside the model's vocabulary, so that no answer ends early."""
    from transformers import AutoTokenizer

    tokenizer = cast("Any", AutoTokenizer.from_pretrained(model, padding_side="left"))
    tokenizer.add_tokens([f"<|unused{i}|>" for i in range(vocabulary - len(tokenizer))])
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    return tokenizer


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(
        sys.argv[1],
        Path(sys.argv[2]),
        *(int(size) for size in sys.argv[3:7]),
        with_tools="tools" in sys.argv,
    )
