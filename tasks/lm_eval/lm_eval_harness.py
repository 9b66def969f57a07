"""The process that runs lm-eval: `python -P -m tasks.lm_eval.lm_eval_harness PARENT ORDER`.

Its standard output has a line of JSON for every half second of progress; everything else goes to
the log that is its standard error. It asks a served model as lm-eval asks models: with tokens, at
our servers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from engines.chat.chat_folder import load_chat_folder
from engines.chat.mode import mode_of
from engines.sglang.roles.token_scores import TokenScorer
from engines.types import Message
from infra.errors import BAD_INPUT, InputError, TributaryError
from infra.hooks import did_you_mean
from infra.sandbox.confine import libc

_RESAMPLES = 1000
"""of lm-eval's own bootstrap, for metrics that are no mean over documents"""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run."""

    url: str
    """router of the servers that hold the model"""
    model: str
    """its folder"""
    context: int
    """longest sequence, in tokens"""
    seed: int
    tasks: Sequence[str]
    folder: str
    num_fewshot: int | None
    limit: int | None
    chat: bool
    results: str
    """file to write"""


def main() -> int:
    """-> exit code; what a person can repair is 2, with the reason as the last line of the log."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the line above
        return 1
    order = Order(**json.loads(sys.argv[2]))
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # tasks and libraries print what they like
    if order.folder:
        os.chdir(order.folder)  # tasks name their data relative to it

    def say(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), file=channel)

    try:
        results = evaluated(order, say)
    except TributaryError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (KeyError, ValueError, TypeError, FileNotFoundError) as error:
        # How lm-eval and its tasks say that a task is written wrong, or that its data is missing.
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BAD_INPUT
    Path(order.results).write_text(json.dumps(results))
    return 0


def evaluated(order: Order, say: Callable[[int, int], None]) -> dict[str, Any]:
    """Return what `tasks.lm_eval.body` reads. Raises InputError for unknown tasks, EngineError."""
    from lm_eval.evaluator import evaluate

    loaded = _loaded(order)
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if order.num_fewshot is not None and own != 0:  # 0 is a task that works only without
            task.set_config(key="num_fewshot", value=order.num_fewshot)
        elif own is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=order.seed)
    model = ServedModel(order.url, Path(order.model), order.context, order.seed, say)
    found: Any = evaluate(
        model,
        loaded,
        limit=order.limit,
        bootstrap_iters=_RESAMPLES,
        apply_chat_template=order.chat,
        fewshot_as_multiturn=order.chat,
    )
    return {
        "results": {task: _numbers(row) for task, row in found["results"].items()},
        "samples": {
            task: [_sample(each) for each in rows] for task, rows in found["samples"].items()
        },
        "higher_is_better": found["higher_is_better"],
    }


def _loaded(order: Order) -> Any:
    """The tasks, of the person's own folder if it has all of them: lm-eval has 14,000 to look at.

    Raises InputError.
    """
    from lm_eval.tasks import TaskManager

    if order.folder:
        own = TaskManager(include_path=order.folder, include_defaults=False)
        if set(order.tasks) <= set(own.all_tasks):
            return own.load(list(order.tasks))
    manager = TaskManager(include_path=order.folder or None)
    for task in order.tasks:
        if task not in manager.all_tasks:
            raise InputError(
                f"lm_eval.tasks: lm-eval has no task {task!r}."
                f"{did_you_mean(task, manager.all_tasks)} `lm-eval ls tasks` lists them; your own"
                " come from `lm_eval.folder`"
            )
    return manager.load(list(order.tasks))


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if "," in name and isinstance(value, int | float)
    }


def _sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """One document's answer to one filter."""
    asked = sample["arguments"]
    return {
        "document": sample["doc_id"],
        "filter": sample["filter"],
        "prompt": str(asked[0][0]) if asked else "",
        "target": str(sample["target"]),
        "answer": json.loads(json.dumps(sample["filtered_resps"], default=str)),
        "metrics": {
            name: float(sample[name])
            for name in sample["metrics"]
            if isinstance(sample[name], bool | int | float)
        },
    }


_AT_ONCE = 32
"""requests; the servers batch them"""
_PIECE = 64
"""tokens asked for at once: stop texts are looked for in between, as servers know ids only"""
_MOST_NEW = 256
"""of an answer whose task states no limit, as lm-eval's own models have it"""
_SAY_S = 0.5

A = TypeVar("A")
B = TypeVar("B")
Asked = tuple[tuple[str, str], list[int], list[int]]


class ServedModel(TemplateLM):
    """Log-probabilities and answers of the model that a router's servers hold."""

    def __init__(
        self,
        url: str,
        folder: Path,
        context: int,
        seed: int,
        say: Callable[[int, int], None],
    ) -> None:
        """`folder`: the model's, for its tokenizer. `context`: longest sequence, in tokens. `say`
        is told how many requests of how many are answered. Raises InputError."""
        super().__init__()
        self._chat = load_chat_folder(folder)
        self._thinking = mode_of(self._chat.template).decide(None)
        self._scorer, self._say, self._seed = TokenScorer(url), say, seed
        self._longest = context - 1  # a server wants room for one more
        self._start = self._chat.template.start_text
        prefix = self._chat.tokenizer.token_to_id(self._start) if self._start else None
        self._prefix: int = self.eot_token_id if prefix is None else prefix

    @property
    def eot_token_id(self) -> int:
        return self._chat.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return self._chat.template.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Encode as lm-eval's own models have it: the tokenizer adds its token for the begin of a
        text, but to one that begins with it, as a template writes it."""
        if add_special_tokens is None:
            add_special_tokens = not self._start or not string.startswith(self._start)
        return self._chat.tokenizer.encode(string, add_special_tokens=add_special_tokens).ids

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._chat.template.name

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        said: Any = [Message(each["role"], each["content"]) for each in chat_history]  # pyrefly: ignore[bad-argument-type]
        return self._chat.template.render(
            said, thinking=self._thinking, open_turn=add_generation_prompt
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return self._all(self._answer, [(n, *r.args) for n, r in enumerate(requests)])  # pyrefly: ignore[bad-argument-type]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        return self._all(self._rolling, [request.args[0] for request in requests])

    def _loglikelihood_tokens(
        self, requests: list[Asked], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        return self._all(lambda asked: self._likelihood(asked[1], asked[2]), requests)

    def _likelihood(self, context: Sequence[int], wanted: Sequence[int]) -> tuple[float, bool]:
        """The sum of the wanted tokens' log-probabilities, and whether greedy decoding gives them.
        What is too long loses its beginning."""
        wanted = wanted[-(self._longest - 1) :]
        ids = [*context, *wanted][-self._longest :]
        scores = self._scorer.scores(ids, len(wanted))
        return sum(s.logprob for s in scores), all(s.is_likeliest for s in scores)

    def _rolling(self, text: str) -> float:
        ids = self.tok_encode(text)
        windows = get_rolling_token_windows(ids, self.prefix_token_id, self._longest - 1, 1)
        return sum(self._likelihood(*make_disjoint_window(pair))[0] for pair in windows)

    def _answer(self, asked: tuple[int, str, dict[str, Any]]) -> str:
        number, prompt, options = asked
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
        most = int(options.get("max_gen_toks") or options.get("max_tokens") or _MOST_NEW)
        most = min(most, self._longest - 1)
        temperature = float(options.get("temperature") or 0.0) if options.get("do_sample") else 0.0
        ids = self.tok_encode(prompt)[-(self._longest - most) :]
        made: list[int] = []
        seeds = random.Random(f"{self._seed} {number}")
        while len(made) < most:
            count = min(_PIECE, most - len(made))
            seed = seeds.getrandbits(31)
            more, ended = self._scorer.continued(
                [*ids, *made], count, temperature, seed, self._chat.eos_ids
            )
            made += more
            text = self._chat.tokenizer.decode(made)
            found = [at for stop in stops if (at := text.find(stop)) >= 0]
            if found:
                return text[: min(found)]
            if ended or not more:
                break
        return self._chat.tokenizer.decode(made)

    def _all(self, work: Callable[[A], B], asked: Sequence[A]) -> list[B]:
        """In the order of `asked`; several at once."""
        done: list[B] = []
        said = 0.0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for answer in pool.map(work, asked):
                done.append(answer)
                if time.monotonic() > said + _SAY_S or len(done) == len(asked):
                    said = time.monotonic()
                    self._say(len(done), len(asked))
        return done


if __name__ == "__main__":
    sys.exit(main())
