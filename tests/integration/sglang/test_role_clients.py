"""Served judges and reward models on real servers: what they say is what the same weights say in
transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.chat.chat_folder import chat_files
from engines.sglang.roles.role_client import RoleAddress, RoleClient
from engines.sglang.spec import FleetSpec
from engines.types import Message, Problem
from infra.errors import EngineError, InputError, LeaseLost
from tasks.served.body import run as run_served
from tasks.served.spec import ServedSpec
from tests.integration.conftest import SglangPair
from tests.parts.reward_models import with_head
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.integration

ASKED = [
    Problem(f"p/{number}", "d", (Message("user", f"Is {number} right?"),)) for number in range(4)
]
SAID = [Message("assistant", f"{number} and more") for number in range(4)]


@asynccontextmanager
async def client(pair: SglangPair, model: Path, **more: Any) -> AsyncIterator[RoleClient]:
    address = {
        "router_url": pair.router.url, "max_batch": 16, "most_asked": 8,
        "chat_files": chat_files(model), "context_length": 512,
    }  # fmt: skip
    asking = RoleClient("judge")
    await asking.connect(RoleAddress(**{**address, **more}))
    try:
        yield asking
    finally:
        await asking.close()


async def test_choices_have_the_probabilities_of_transformers(sglang_pair: SglangPair) -> None:
    choices = ["Yes", "No"]
    async with client(sglang_pair, sglang_pair.model) as judge:
        found = await asyncio.gather(
            *(judge.choice_logprobs(problem, choices, timeout_s=60) for problem in ASKED)
        )
    for problem, logprobs in zip(ASKED, found, strict=True):
        assert logprobs == pytest.approx(_logprobs(sglang_pair.model, problem, choices), abs=1e-4)


async def test_each_token_of_a_text_has_its_logprob(sglang_pair: SglangPair) -> None:
    """As a served teacher is asked: a choice's tokens together have the choice's."""
    chat = Chat.load(sglang_pair.model)
    prompt, own = chat.prompt_ids(ASKED[0]), chat.turn_ids(ASKED[0], Message("assistant", "Yes"))
    own = own[:-1] if own[-1] in chat.stop_token_ids else own
    async with client(sglang_pair, sglang_pair.model) as teacher:
        each = await teacher.token_logprobs([*prompt, *own], len(own), timeout_s=60)
        longer = await teacher.token_logprobs([*prompt, *own], len(own) + 3, timeout_s=60)
    assert len(each) == len(own)
    assert longer[3:] == pytest.approx(each, abs=1e-5)
    (wanted,) = _logprobs(sglang_pair.model, ASKED[0], ["Yes"])
    assert sum(each) == pytest.approx(wanted, abs=1e-4)


async def test_the_same_question_gets_the_same_answer(sglang_pair: SglangPair) -> None:
    async with client(sglang_pair, sglang_pair.model) as judge:
        asked = [
            judge.answer(ASKED[0], max_new_tokens=8, temperature=t, seed=3, timeout_s=60)
            for t in (0.0, 0.0, 1.0, 1.0)
        ]
        greedy, greedy_again, sampled, sampled_again = await asyncio.gather(*asked)
    assert greedy == greedy_again
    assert sampled == sampled_again != greedy


async def test_what_is_too_long_too_late_or_nobodys_any_more_is_refused_with_the_reason(
    sglang_pair: SglangPair,
) -> None:
    more = {"max_new_tokens": 8, "temperature": 0.0, "seed": 0}
    async with client(sglang_pair, sglang_pair.model, context_length=20) as judge:
        with pytest.raises(InputError, match="with its answer, and it takes 20"):
            await judge.answer(ASKED[0], **more, timeout_s=60)
    async with client(sglang_pair, sglang_pair.model) as judge:
        with pytest.raises(EngineError, match=r"judge: no answer within timeout_s 0\.0001"):
            await judge.answer(ASKED[0], **more, timeout_s=1e-4)
        judge.refuse(LeaseLost("someone else's by now"))
        with pytest.raises(LeaseLost):
            await judge.answer(ASKED[0], **more, timeout_s=60)
    async with client(sglang_pair, sglang_pair.model, router_url="http://127.0.0.1:9") as judge:
        with pytest.raises(EngineError, match=r"no answer within timeout_s 1 .*no connection"):
            await judge.choice_logprobs(ASKED[0], ["a", "b"], timeout_s=1)


@pytest.fixture
def head_pair(running_pair: SglangPair, tmp_path: Path) -> Iterator[tuple[SglangPair, Path]]:
    """The pair, serving a reward model as its stage imports it."""
    folder = with_head(running_pair.model, tmp_path / "rm", outputs=2)
    context = stage_context(tmp_path, "role-reward-model", {})
    spec = ServedSpec.model_validate({"settings": {"folder": str(folder)}})
    assert asyncio.run(run_served(spec, context))["parameters"] > 0
    running_pair.prepare(FleetSpec(sglang={"is_embedding": True}), context.out)
    yield running_pair, context.out
    running_pair.reset()


async def test_a_head_has_the_outputs_of_transformers_on_every_server(
    head_pair: tuple[SglangPair, Path],
) -> None:
    pair, model = head_pair
    async with client(pair, model) as asking:
        found = await asyncio.gather(
            *(
                asking.outputs(problem, [turn], timeout_s=60)
                for problem, turn in zip(ASKED, SAID, strict=True)
            )
        )
    for problem, turn, outputs in zip(ASKED, SAID, found, strict=True):
        assert outputs == pytest.approx(_outputs(model, problem, turn), abs=1e-4)
    assert len({tuple(outputs) for outputs in found}) == len(found)


def _logprobs(model: Path, problem: Problem, choices: Sequence[str]) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    chat = Chat.load(model)
    engine = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found: list[float] = []
    for choice in choices:
        prompt, own = chat.prompt_ids(problem), chat.turn_ids(problem, Message("assistant", choice))
        own = own[:-1] if own[-1] in chat.stop_token_ids else own
        with torch.no_grad():
            logits = engine(torch.tensor([[*prompt, *own]])).logits[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(own) - 1)
        found.append(sum(float(logits[at, id]) for at, id in zip(places, own, strict=True)))
    return found


def _outputs(model: Path, problem: Problem, turn: Message) -> list[float]:
    import torch
    from transformers import AutoModelForSequenceClassification

    ids, _ = Chat.load(model).training_ids(problem, [turn])
    engine: Any = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
    engine.config.pad_token_id = 0
    with torch.no_grad():
        return engine(torch.tensor([ids])).logits[0].tolist()
