"""SGLang's class of gpt-oss, with all weights in the server's own type.

SGLang makes attention's matrices in the type that config.json names, and its sinks in bfloat16. A
float32 server, as every one on a CPU is, would end at the first product of a model that is stored
in bfloat16, and sinks that were rounded give other logprobs than the trainer's.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models import gpt_oss


class GptOssForCausalLM(gpt_oss.GptOssForCausalLM):
    def __init__(self, config: Any, *given: Any, **named: Any) -> None:
        config.dtype = torch.get_default_dtype()
        super().__init__(config, *given, **named)
        for module in self.modules():
            if isinstance(module, gpt_oss.GptOssAttention) and config.dtype is torch.float32:
                module.sinks.data = module.sinks.data.float()
