"""The CPU engine's arithmetic: no row, query or sample feels its neighbours, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from engines.sglang.cpu import cpu_attention
from engines.sglang.cpu.cpu_attention import FilledTorch, _attend, _plan
from engines.sglang.cpu.row_invariant import filled_up
from engines.sglang.cpu.seeded_sampling import pick, pick_filtered

pytestmark = pytest.mark.unit


both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a server on CPU has: more of them cut a product where its number of rows says."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@both_types
@pytest.mark.parametrize(
    ("inner", "outer"), [(64, 128), (128, 1100), (256, 128), (512, 128), (896, 2432)]
)
def test_a_row_of_a_product_is_the_same_among_any_number(
    inner: int, outer: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(outer, inner).to(dtype), torch.randn(128, inner).to(dtype)
    whole = linear(rows, weight)
    for start in (0, 5, 17):
        for count in [*range(1, 49), 64, 100] if start == 0 else (1, 2, 7, 16, 33, 64, 100):
            part = filled_up(lambda x: linear(x, weight), rows[start : start + count].clone())
            assert torch.equal(part, whole[start : start + count]), (start, count)


@both_types
def test_products_of_each_head_do_not_feel_how_many_tokens_share_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(4, 64, 24).to(dtype), torch.randn(4, 24, 20).to(dtype)
    whole = FilledTorch.bmm(rows, weight)
    for count in (1, 2, 5, 15, 16, 40):
        room = torch.empty(4, count, 20, dtype=dtype)
        part = FilledTorch.bmm(rows[:, :count], weight, out=room)
        assert part is room
        assert torch.equal(part, whole[:, :count]), count


class Cache:
    """Keys and values of requests whose queries at every position are known."""

    def __init__(
        self,
        lengths: list[int],
        heads: int,
        groups: int,
        width: int,
        dtype: torch.dtype,
        window: int | None,
        latent: int | None,
    ) -> None:
        """`latent`: so many first numbers of a key are its value."""
        torch.manual_seed(1)
        self.window = window
        self.longest = max(lengths)
        self.table = torch.randperm(len(lengths) * self.longest).view(len(lengths), -1)
        self.keys = torch.randn(self.table.numel(), groups, width).to(dtype)
        self.values = torch.randn(self.table.numel(), groups, width).to(dtype)
        if latent is not None:
            self.values = self.keys[..., :latent]
        self.queries = torch.randn(len(lengths), self.longest, heads, width).to(dtype)

    def attend(self, requests: list[int], new: list[tuple[int, int]], decode: bool) -> torch.Tensor:
        """Of each request the tokens from `new[i][0]` to `new[i][1]`; [all new tokens, H, D]."""
        starts = torch.tensor([start for start, _ in new])
        stops = torch.tensor([stop for _, stop in new])
        before = None if decode else starts
        plan = _plan(self.table, torch.tensor(requests), stops, before, self.window)
        query = torch.cat([self.queries[r, a:b] for r, (a, b) in zip(requests, new, strict=True)])
        output = query.new_empty(*query.shape[:-1], self.values.shape[-1])
        return _attend(plan, query, output, self.keys, self.values, None)


@both_types
@pytest.mark.parametrize(
    ("heads", "groups", "width", "longest", "window", "latent"),
    [
        (4, 2, 16, 600, None, None),
        (4, 2, 32, 257, None, None),
        (14, 2, 64, 90, None, None),
        (4, 2, 16, 90, 0, None),
        (4, 1, 32, 90, 20, None),
        (4, 1, 24, 90, None, 20),
    ],
)
def test_a_query_sees_the_same_decoded_or_prefilled_in_any_split_and_batch(
    heads: int,
    groups: int,
    width: int,
    latent: int | None,
    longest: int,
    window: int | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_attention, "_rooms", {})
    lengths = [n for n in (1, 7, 16, 33, 90, 257, 600) if n <= longest]
    cache = Cache(lengths, heads, groups, width, dtype, window, latent)
    everyone = list(range(len(lengths)))
    alone = [
        torch.cat([cache.attend([r], [(p, p + 1)], decode=True) for p in range(n)])
        for r, n in enumerate(lengths)
    ]
    last = cache.attend(everyone, [(n - 1, n) for n in lengths], decode=True)
    assert torch.equal(last, torch.stack([a[-1] for a in alone]))
    whole = cache.attend(everyone, [(0, n) for n in lengths], decode=False)
    assert torch.equal(whole, torch.cat(alone))
    for cut in (1, 5, 30):
        rest = [(min(cut, n - 1), n) for n in lengths]
        later = cache.attend(everyone, rest, decode=False)
        parts = [a[start:] for a, (start, _) in zip(alone, rest, strict=True)]
        assert torch.equal(later, torch.cat(parts))
    for request, query in ((3, 32), (2, 15)):
        first = 0 if window is None else max(0, query - window)
        slots = cache.table[request, first : query + 1]
        seen = [x[slots].transpose(0, 1)[None].float() for x in (cache.keys, cache.values)]
        asked = cache.queries[request, query][None, :, None].float()
        expected = scaled_dot_product_attention(asked, *seen, enable_gqa=True)[0, :, 0]
        near = 1e-5 if dtype is torch.float32 else 0.02
        assert torch.allclose(alone[request][query].float(), expected, atol=near)
    monkeypatch.setattr(cpu_attention, "_MASK_ENTRIES", 1)  # every query in a call of its own
    assert torch.equal(cache.attend([4], [(0, 90)], decode=False), alone[4])


def test_a_filter_on_one_row_leaves_the_others_sample_as_it_is() -> None:
    torch.manual_seed(2)
    probs = torch.softmax(torch.randn(300, 512) * 3, dim=-1)
    seeds, positions = torch.arange(300) * 31, torch.arange(300) % 9
    free = torch.full((300,), 1 << 30)
    ones = torch.ones(300)
    best = probs.argmax(dim=-1)
    plain = pick(probs, seeds, positions).view(-1)
    assert torch.equal(pick_filtered(probs, free, ones, seeds, positions, best)[0], plain)
    greedy = free.clone()
    greedy[::2] = 1
    mixed, *_ = pick_filtered(probs, greedy, ones, seeds, positions, best)
    assert torch.equal(mixed[::2], best[::2])
    assert torch.equal(mixed[1::2], plain[1::2])


def test_a_filter_keeps_what_it_says() -> None:
    probs = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).repeat(2000, 1)
    seeds, positions = torch.arange(2000), torch.zeros(2000, dtype=torch.long)
    best = probs.argmax(dim=-1)
    two, half = torch.full((2000,), 2), torch.full((2000,), 0.6)
    everything, one = torch.full((2000,), 1 << 30), torch.ones(2000)
    top_k, *_ = pick_filtered(probs, two, one, seeds, positions, best)
    top_p, *_ = pick_filtered(probs, everything, half, seeds, positions, best)
    for drawn in (top_k, top_p):
        shares = torch.bincount(drawn, minlength=4) / 2000
        # 5 standard deviations; 2:1 between the two that are kept
        assert torch.allclose(shares, torch.tensor([0.0, 2 / 3, 0.0, 1 / 3]), atol=0.053)
