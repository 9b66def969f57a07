"""A served model as lm-eval asks models: with tokens, at our servers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from engines.chat.chat_folder import load_chat_folder
from engines.chat.mode import mode_of
from engines.sglang.token_scores import TokenScorer
from engines.types import Message

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
        """As lm-eval's own models have it: the tokenizer adds its token for the begin of a text,
        but to one that begins with it, as a template writes it."""
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
