"""The random base against transformers: same tensors, a model that runs, the same prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.chat import Chat
from tests.parts.chat_parts import SEARCH, problem, random_base

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("experts", "name"), [(0, "Qwen3"), (4, "Glm4Moe")])
def test_transformers_loads_the_random_base_with_no_tensor_missing_or_left_over(
    experts: int, name: str, tmp_path: Path
):
    import torch
    from transformers import AutoModelForCausalLM

    folder = random_base(tmp_path / "base", experts=experts)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], kind
    assert type(model).__name__ == f"{name}ForCausalLM"
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([[5, 300, 7]])).logits).all()


@pytest.mark.parametrize("thinking", [True, False])
def test_transformers_renders_the_same_prompt(tmp_path: Path, thinking: bool):
    from transformers import AutoTokenizer

    folder = random_base(tmp_path / "base")
    chat, theirs = Chat.load(folder), AutoTokenizer.from_pretrained(folder)
    asked = problem("color of ant", thinking=thinking, tools=(SEARCH,))
    rendered = theirs.apply_chat_template(
        [{"role": "user", "content": "color of ant"}],
        tools=[{"type": "function", "function": {"name": SEARCH.name}}],
        add_generation_prompt=True,
        enable_thinking=thinking,
        tokenize=False,
    )
    assert theirs(rendered, add_special_tokens=False)["input_ids"] == chat.prompt_ids(asked)
    assert theirs.eos_token_id in chat.stop_token_ids
