"""The reference side of the GRPO rows: TRL's GRPOTrainer alone in a process, timed step by step.

Usage:
python -m tests.programs.bench.trl_grpo MODEL PROMPTS.json PROMPTS_A_STEP GROUP NEW_TOKENS STEPS
Prints one JSON line: medians of a step's wall and CPU seconds and of the seconds it generates, and
the completion tokens of a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

WARMUP = 3


def main(model: str, prompts: Path, per_step: int, group: int, new_tokens: int, steps: int) -> None:
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
        lengths.append(sum(map(len, completion_ids)))
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
            callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    taken = list(pairwise(marks[WARMUP:]))
    answer = {
        "wall_s": statistics.median(after[0] - before[0] for before, after in taken),
        "cpu_s": statistics.median(after[1] - before[1] for before, after in taken),
        "generation_s": statistics.median(generating[WARMUP:]),
        "tokens": round(statistics.mean(lengths)),
    }
    print(json.dumps(answer))


def endless_tokenizer(model: str, vocabulary: int) -> Any:
    """Its end token is outside the model's vocabulary, so that no answer ends early."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.add_tokens([f"<|unused{i}|>" for i in range(vocabulary - len(tokenizer))])
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    return tokenizer


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(sys.argv[1], Path(sys.argv[2]), *(int(size) for size in sys.argv[3:7]))
