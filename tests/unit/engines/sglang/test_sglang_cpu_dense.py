"""Our forward pass of a dense model against SGLang's own operations, and a choice of experts alone
against one among others, to the last bit. Gemma's embeddings in bf16 against transformers'."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

CODE = """
from types import SimpleNamespace as N
from engines.sglang.cpu import missing_modules as absent
from engines.sglang.servers.host import prepare_environment
prepare_environment(); absent.install()
import torch
torch.set_num_threads(1); torch.manual_seed(0)
from engines.sglang.cpu import row_invariant
from engines.sglang.cpu.row_invariant import filled_up
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.moe import topk
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.layers.rotary_embedding.utils import apply_rotary_emb

HIDDEN, WIDTH, HEADS, GROUPS, INNER = 96, 32, 4, 2, 160

def norm(size):
    return N(weight=torch.randn(size), variance_epsilon=1e-6, hidden_size=size,
             override_orig_dtype=None, variance_size_override=None,
             cast_x_before_out_mul=False, fp32_residual=False)

def product(outer, inner, bias=False):
    return N(weight=torch.randn(outer, inner) / inner**0.5,
             bias=torch.randn(outer) if bias else None)

rotary = N(cos_sin_cache=torch.randn(64, WIDTH), head_size=WIDTH, rotary_dim=WIDTH,
           is_neox_style=True, _apply_rotary_emb_wrapped=apply_rotary_emb)

def layer(head_norms):
    attention = N(head_dim=WIDTH, num_heads=HEADS, q_size=HEADS * WIDTH, kv_size=GROUPS * WIDTH,
                  qkv_proj=product((HEADS + 2 * GROUPS) * WIDTH, HIDDEN, bias=not head_norms),
                  o_proj=product(HIDDEN, HEADS * WIDTH), rotary_emb=rotary, attn=attend)
    if head_norms:
        attention.q_norm, attention.k_norm = norm(WIDTH), norm(WIDTH)
    return N(self_attn=attention, input_layernorm=norm(HIDDEN),
             post_attention_layernorm=norm(HIDDEN),
             mlp=N(gate_up_proj=product(2 * INNER, HIDDEN), down_proj=product(HIDDEN, INNER)))

def attend(query, key, value, batch):
    key = key.reshape(len(query), GROUPS, WIDTH).repeat_interleave(HEADS // GROUPS, 1)
    value = value.reshape(len(query), GROUPS, WIDTH).repeat_interleave(HEADS // GROUPS, 1)
    return (query.view(len(query), HEADS, WIDTH) * key + value).view(len(query), -1)

def apply(layer, rows):
    return filled_up(lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias), rows)

def stock(model, ids, positions):
    hidden, residual = model.embed_tokens(ids), None
    for each in model.layers:
        a = each.self_attn
        if residual is None:
            residual, hidden = hidden, RMSNorm.forward_native(each.input_layernorm, hidden)
        else:
            hidden, residual = RMSNorm.forward_native(each.input_layernorm, hidden, residual)
        q, k, v = apply(a.qkv_proj, hidden).split([a.q_size, a.kv_size, a.kv_size], dim=-1)
        if hasattr(a, "q_norm"):
            q = RMSNorm.forward_native(a.q_norm, q.reshape(-1, WIDTH)).view(q.shape)
            k = RMSNorm.forward_native(a.k_norm, k.reshape(-1, WIDTH)).view(k.shape)
        q, k = RotaryEmbedding.forward_native(rotary, positions, q, k)
        hidden = apply(a.o_proj, attend(q, k, v, None))
        hidden, residual = RMSNorm.forward_native(each.post_attention_layernorm, hidden, residual)
        gate_up = apply(each.mlp.gate_up_proj, hidden)
        hidden = apply(each.mlp.down_proj, SiluAndMul.forward_native(None, gate_up))
    return RMSNorm.forward_native(model.norm, hidden, residual)[0]

for head_norms in (True, False):
    table = torch.randn(50, HIDDEN)
    model = N(embed_tokens=lambda ids: table[ids], norm=norm(HIDDEN),
              layers=[layer(head_norms) for _ in range(3)])
    for count in (1, 3, 8, 57):
        ids, positions = torch.randint(0, 50, (count,)), torch.randint(0, 64, (count,))
        assert torch.equal(row_invariant.forward(model, ids, positions, None),
                           stock(model, ids, positions)), (head_norms, count)

routed = row_invariant._filled_routing(topk.biased_grouped_topk_impl)
logits, bias = 3 * torch.randn(64, 4), torch.zeros(4)
together = routed(logits, logits, bias, 2, True, 1, 1, 0, 1.5)
alone = zip(*[routed(one, one, bias, 2, True, 1, 1, 0, 1.5) for one in logits.split(1)])
for whole, parts in zip(together, alone):
    assert torch.equal(whole, torch.cat(parts)), "the choice of experts"

from engines.sglang.models.gemma3 import gemma3_causal, round_scale
from transformers.models.gemma3 import modeling_gemma3
torch.set_default_dtype(torch.bfloat16)
ours, theirs = (file.Gemma3TextScaledWordEmbedding(50, 1152, 0, embed_scale=1152**0.5)
                for file in (gemma3_causal, modeling_gemma3))
ours.weight = theirs.weight
assert not torch.equal(ours(ids), theirs(ids)), "SGLang rounds the scale itself"
round_scale(ours)
assert torch.equal(ours(ids), theirs(ids)), "embeddings of Gemma 3"
print("equal")
"""


def test_every_bit_is_that_of_sglangs_own_layers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout.split()[-1:] == ["equal"], done.stderr[-3000:]
