"""What one prompt gets from a server: an answer that the engine gave up is none."""

from __future__ import annotations

from typing import Any

import pytest

from engines.sglang.http import Refused
from engines.sglang.roles.token_scores import Scorer, TokenScore, TokenScorer
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


def reply(ids: list[int], finish: dict[str, Any], **meta: Any) -> tuple[int, Any]:
    return 200, {"output_ids": ids, "meta_info": {"finish_reason": finish, **meta}}


async def test_an_answer_that_the_engine_gave_up_is_asked_for_again() -> None:
    scored = {
        "input_token_logprobs": [[None, 5, None], [-0.5, 6, None]],
        "input_top_logprobs": [None, [[-0.5, 6, None]]],
    }
    aborted = reply([7], {"type": "abort", "message": "the server ends"})
    whole = [reply([7, 2], {"type": "stop"}), reply([0], {"type": "length"}, **scored)]
    answers = [aborted, whole[0], aborted, whole[1]]
    several = answers[2:]
    with json_server(lambda *_: answers.pop(0)) as port:
        scorer = TokenScorer(f"http://127.0.0.1:{port}")
        assert scorer.continued([5, 6], 9, 0.0, 0, [2]) == ([7], True)
        assert scorer.scores([5, 6], 1) == [TokenScore(-0.5, True)]
    assert not answers
    with json_server(lambda *_: several.pop(0)) as port:
        scorer = Scorer(f"http://127.0.0.1:{port}")
        try:
            assert await scorer.token_logprobs([5, 6], 1) == [-0.5]
        finally:
            await scorer.close()
    assert "the server ends" in scorer.last_trouble


def test_an_answer_that_the_engine_refuses_is_not_asked_for_again() -> None:
    asked: list[str] = []

    def refuse(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return reply([], {"type": "abort", "status_code": 400, "message": "too long"})

    with json_server(refuse) as port, pytest.raises(Refused, match="too long"):
        TokenScorer(f"http://127.0.0.1:{port}").continued([5], 9, 0.0, 0, [])
    assert asked == ["/generate"]
