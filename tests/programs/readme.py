"""`make readme`: each command of the README and the tutorials, as it is printed, in a clean shell.

A home and a stack of its own. A folder stands for the hub's model and answers one of two numbers
at random, so that a reward has something to choose; training takes fewer steps. Left out are lines
that need other machines, and those that other tests run. Printed, and written to
`build/readme.json`: each line's exit code and seconds. Exit 1 where one fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.stack import down, up
from tests.parts.doc_blocks import snippets
from tests.parts.machine import until
from tests.programs.bench.rows import Row, show, write

PAGES = (
    "README.md", "tutorial-first-run.md", "tutorial-own-data.md", "tutorial-own-reward.md"
)  # fmt: skip
ANSWERS = (r"\boxed{7}", r"it is \boxed{3}")
SHORTER = {
    "hf:Qwen/Qwen2.5-0.5B-Instruct": "./qwen",
    "--steps 50": "--steps 2",
    "--steps 10": "--steps 2",
    ".venv/bin/": f"{Path(sys.executable).parent}/",
}
ELSEWHERE = re.compile(
    r"make |tributary (doctor|up)$|TRIBUTARY_|tributary run (one-gpu|eight-gpus|cluster|mine/)"
    r"|tributary rollouts my-domain-rl"
)
"""the stack is up; `make fresh` installs; test_init.py runs `mine`"""
LIMIT_S = 1800
"""for one line, also where three runs follow each other on a slow machine"""


def commands(page: str) -> list[str]:
    """Each as it is printed, without its comment, but for those that run elsewhere."""
    lines = "".join(snippets(page, "bash")).splitlines()
    found = [line.partition("  #")[0].strip() for line in lines]
    return [line for line in found if line and not ELSEWHERE.match(line)]


def main(pages: list[str]) -> int:
    # A shell lets what it starts in the background ignore Ctrl-C, which commands get here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as home:
        os.environ |= {
            "TRIBUTARY_HOME": f"{home}/home", "BROWSER": "true",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        try:
            up(lambda text: print(text, file=sys.stderr))
            rows = [row for page in pages or PAGES for row in _run(page, Path(home))]
        finally:
            down()
    show(rows, "lines of the documentation")
    write(rows, Path("build/readme.json"))
    return 0 if all(row.holds for row in rows) else 1


def _run(page: str, home: Path) -> list[Row]:
    folder = home / page
    folder.mkdir()
    _write_files(page, folder)
    rows: list[Row] = []
    for printed in commands(page):
        line = printed
        for text, other in SHORTER.items():
            line = line.replace(text, other)
        began = time.monotonic()
        code = _code(line, folder, "Ctrl-C" in _comment(page, printed))
        seconds = time.monotonic() - began
        print(f"{page}: {seconds:5.1f} s: {line}", file=sys.stderr, flush=True)
        note = f"{page}, {seconds:.1f} s"
        rows.append(Row(printed, code, "exit code", 0, at_most=True, note=note))
    return rows


def _comment(page: str, line: str) -> str:
    text = "".join(snippets(page, "bash"))
    return text.partition(line)[2].partition("\n")[0]


def _code(line: str, folder: Path, is_stopped: bool) -> int:
    """0 where the command did what it should. `serve`, and what a page stops, gets Ctrl-C."""
    output = folder / "said"
    serves = line.startswith("tributary serve")
    with output.open("wb") as said:
        command = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}" if serves or is_stopped else line], cwd=folder,
            stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        if serves or is_stopped:
            wanted = "/v1" if serves else "MLflow:"
            until(lambda: wanted in output.read_text() or command.poll() is not None, 200)
            for _ in range(1 if serves else 2):
                command.send_signal(signal.SIGINT)
                time.sleep(0.3)
        command.communicate(b"7\n", LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"not ended after {LIMIT_S} s", file=sys.stderr)
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
    if command.returncode not in (0, 130) or "Traceback" in output.read_text():
        print(output.read_text()[-3000:], file=sys.stderr)
        return 1
    return 0


def _write_files(page: str, folder: Path) -> None:
    """Those that the page speaks of."""
    chats = [{"messages": _turns(n, answer)} for n in range(16) for answer in ANSWERS]
    asked = [{"question": f"{n}", "answer": "73"[n % 2]} for n in range(100)]
    for name, rows in (("chats", chats), ("questions", asked), ("exam", asked[:8])):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    for code in snippets(page, "python")[:1]:
        for name in ("my_reward.py", "my_rewards.py"):
            (folder / name).write_text(code)
    for recipe in snippets(page, "yaml"):
        (folder / "variants.yaml").write_text(recipe)
    if "qwen" in "".join(snippets(page, "bash")).lower():
        _write_model(folder / "qwen")


def _write_model(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tasks.base.random_model import write_random_model
    from tasks.base.spec import RandomModel

    folder.mkdir()
    shape = RandomModel(
        hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, ffn_size=32, max_length=2048
    )
    write_random_model(folder, shape, [], seed=0)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder)
    rows = [_turns(n, answer) for n in range(16) for answer in ANSWERS]
    texts = [tokenizer.apply_chat_template(row, tokenize=False) for row in rows]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for _ in range(150):
        policy(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(folder)


def _turns(n: int, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": answer}]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
