"""A folder of tasks as a user of lm-eval writes them: one of choices, one of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS: list[dict[str, Any]] = [
    {"question": f"A number after {n}?", "choices": ["one", "1234567", "x y"], "label": n % 3}
    for n in range(6)
]
CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ANSWER = """
task: own_answer
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
fewshot_split: test
num_fewshot: 1
output_type: generate_until
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 80}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def write_tasks(folder: Path) -> Path:
    """`own_choice` and `own_answer`, of six documents; -> the folder."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "choice.yaml").write_text(CHOICE)
    (folder / "answer.yaml").write_text(ANSWER)
    return folder
