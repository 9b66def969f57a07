"""Survivors that are known, and why each is left."""

# Lines of other files are quoted whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.programs.mutants.record import Outcome


@dataclass(frozen=True, slots=True)
class Survivor:
    text: str
    """the line of the source"""
    changes: tuple[str, ...]
    """as the report says them, e.g. `constant: 0 -> 1`"""
    why: str
    is_equivalent: bool = True
    """no input gives another result; else: a gap, or not worth a test"""


KNOWN: Mapping[str, list[Survivor]] = {
    "engines/algorithms/linear_logprobs.py": [
        Survivor(
            "if last <= self.room_VH.numel():",
            ("comparison: last <= self.room_VH.numel() -> last < self.room_VH.numel()",),
            "whether a tile that just fits is kept here or beside: the same numbers",
        ),
        Survivor(
            "dist.all_reduce(values, op=op, group=group)",
            (
                "keyword: dist.all_reduce(values, op=op, group=group) -> dist.all_reduce(values, group=group)",
            ),
            "any shift of the exponents that all ranks share gives the same result",
        ),
        Survivor(
            "needs_weight = kept_bytes > 0 and ctx.needs_input_grad[1]",
            ("constant: 0 -> 1",),
            "less than a tile, and without gradients there is no room either",
        ),
        Survivor(
            "kept_bytes = tiling.KEPT_BYTES if has_backward else 0",
            ("constant: 0 -> 1",),
            "a tile has more bytes than one",
        ),
        Survivor(
            "return buffer[: num_rows * width].view(num_rows, width)",
            (
                "keyword: buffer[:num_rows * width].view(num_rows, width) -> buffer[:num_rows *"
                " width].view(width, num_rows)",
            ),
            "an operation gives its result's shape to what it writes into",
        ),
        Survivor(
            "spans = [(start, min(start + width, size)) for start in range(0, size, width)]",
            ("bound: min(start + width, size) -> start + width",),
            "slices end at the size, and results give their shape to what they are written into",
        ),
        Survivor(
            "return weight_VH.new_empty(weight_VH.shape) if room_VH is None else room_VH",
            (
                "return: weight_VH.new_empty(weight_VH.shape) if room_VH is None else room_VH ->"
                " weight_VH.new_empty(weight_VH.shape) if True else room_VH",
            ),
            "the same gradient in other memory: `make bench` measures the peak, no test does",
            is_equivalent=False,
        ),
        Survivor(
            "return out if is_one else out.div_(self.temperature)",
            (
                "return: out if is_one else out.div_(self.temperature) -> out if False else"
                " out.div_(self.temperature)",
            ),
            "a division by 1 changes nothing: only a pass is saved",
        ),
        Survivor(
            "is_one = isinstance(self.temperature, float) and self.temperature == 1.0",
            ("constant: 1.0 -> 0.0",),
            "the same",
        ),
        Survivor(
            "peak_NR, total_NR, weighted_NR = (torch.stack(parts) for parts in zip(*found,"
            " strict=True))",
            ("keyword: zip(*found, strict=True) -> zip(*found)", "constant: True -> False"),
            "each tile gives three",
        ),
        Survivor(
            "if group is not None and group.size() > 1:",
            ("comparison: group.size() > 1 -> group.size() >= 1", "constant: 1 -> 0"),
            "a sum over one rank is that rank's: only a call is saved",
        ),
    ],
    "engines/algorithms/statistics.py": [
        Survivor(
            "for back in range(1, max(descending, default=0)):",
            ("constant: 0 -> 1",),
            "range(1, 1) is as empty as range(1, 0)",
        ),
        Survivor(
            "num_rollouts = int(tokens.rollout_N.max()) + 1",
            ("constant: 1 -> 2",),
            "one more sum, which no rollout reads",
        ),
        Survivor(
            "return int(group_N.max()) + 1 if len(group_N) else 0",
            ("constant: 1 -> 2", "constant: 0 -> 1"),
            "one more group, which no rollout reads",
        ),
    ],
    "engines/algorithms/corrections.py": [
        Survivor(
            "return dict(zip(QUANTILES, found.tolist(), strict=True))",
            (
                "keyword: zip(QUANTILES, found.tolist(), strict=True) -> zip(QUANTILES,"
                " found.tolist())",
                "constant: True -> False",
            ),
            "one value is found for each",
        ),
        Survivor(
            "if TYPE_CHECKING:",
            ("return: if TYPE_CHECKING -> if False",),
            "for type checkers only",
        ),
    ],
    "engines/algorithms/contract.py": [
        Survivor(
            "log_ratio_R = torch.tensor([0.05, -0.1, 0.9, -0.9, 0.02, 2.0], dtype=torch.float64)",
            (
                "keyword: torch.tensor([0.05, -0.1, 0.9, -0.9, 0.02, 2.0], dtype=torch.float64) -> torch.tensor([0.05, -0.1, 0.9, -0.9, 0.02, 2.0])",
            ),
            "numbers of a trial, to fewer digits",
        ),
        Survivor(
            "moved = replace(",
            (
                "keyword: replace(tokens, rewards_N=tokens.rewards_N[order_N], group_N=tokens.group_N[order_N], r... -> replace(tokens, rewards_N=tokens.rewards_N[order_N], group_N=tokens.group_N[order_N], r...",
            ),
            "one of several ways that it looks for order",
            is_equivalent=False,
        ),
        Survivor(
            "return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)",
            (
                "keyword: torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE) -> torch.allclose(a.double(), b.double(), atol=TOLERANCE)",
            ),
            "torch's own default is the same number",
        ),
        Survivor(
            "if any(not torch.equal(a, b) for a, b in zip(_tensors(tokens), copies, strict=True)):",
            (
                "keyword: torch.equal(a, b) -> torch.equal(b, a)",
                "keyword: zip(_tensors(tokens), copies, strict=True) -> zip(_tensors(tokens),"
                " copies)",
                "keyword: zip(_tensors(tokens), copies, strict=True) -> zip(copies,"
                " _tensors(tokens), strict=True)",
                "constant: True -> False",
            ),
            "as many copies as tensors, and equality has no order",
        ),
        Survivor(
            "renamed = replace(tokens, group_N=2 - tokens.group_N)",
            ("constant: 2 -> 3",),
            "other names in the other order, which is what is tried",
        ),
        Survivor(
            "fresh = replace(tokens, old_logprobs_R=tokens.logprobs_R.detach())",
            ("bound: tokens.logprobs_R.detach() -> tokens.logprobs_R",),
            "a gradient also reaches a leaf that nobody reads",
        ),
        *(
            Survivor(
                line,
                (f"keyword: _same({a}, {b}) -> _same({b}, {a})",),
                "the tolerance is of one side or the other: no user meets the difference",
                is_equivalent=False,
            )
            for line, a, b in (
                ("if not _same(advantage(tokens), found_R):", "advantage(tokens)", "found_R"),
                ("if not _same(advantage(renamed), found_R):", "advantage(renamed)", "found_R"),
                (
                    "if not _same(advantage(moved), found_R[places_R]):",
                    "advantage(moved)",
                    "found_R[places_R]",
                ),
                (
                    "if still is not None and not _same(still, torch.zeros_like(still)):",
                    "still",
                    "torch.zeros_like(still)",
                ),
                (
                    "if not _same(torch.cat(halves), made.loss_R):",
                    "torch.cat(halves)",
                    "made.loss_R",
                ),
            )
        ),
        Survivor(
            "return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)",
            (
                "keyword: torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE) ->"
                " torch.allclose(b.double(), a.double(), rtol=TOLERANCE, atol=TOLERANCE)",
            ),
            "as in the comparisons above",
            is_equivalent=False,
        ),
        Survivor(
            "for low, high in ((0, 1), (1, 3)):",
            ("constant: 3 -> 4",),
            "there is no fourth sequence",
        ),
    ],
    "engines/algorithms/parts.py": [
        Survivor(
            "return partial(function, **options)",
            ("keyword: partial(function, **options) -> partial(function)",),
            "a custom part's options: a gap of these tests",
            is_equivalent=False,
        ),
    ],
    "engines/algorithms/losses.py": [
        Survivor(
            "is_over_R = (advantages_R < 0) & (loss_R > ceiling_R)",
            ("comparison: advantages_R < 0 -> advantages_R <= 0",),
            "at advantage 0 the loss and its ceiling are 0, and neither is above the other",
        ),
        Survivor(
            "is_held_R = (moved_R.abs() > clip) & (bounded_R > error_R)",
            ("comparison: bounded_R > error_R -> bounded_R >= error_R",),
            "a tie of both errors: the loss is the same, only the share that was held differs",
            is_equivalent=False,
        ),
        Survivor(
            "is_held_R = (moved_R.abs() > clip) & (bounded_R > error_R)",
            ("comparison: moved_R.abs() > clip -> moved_R.abs() >= clip",),
            "a value exactly on the bound is its own bounded value",
        ),
        Survivor(
            "never_R = torch.zeros_like(tokens.advantages_R, dtype=torch.bool)",
            (
                "keyword: torch.zeros_like(tokens.advantages_R, dtype=torch.bool) -> torch.zeros_like(tokens.advantages_R)",
            ),
            "nothing is clipped: 0 and False are averaged alike",
        ),
    ],
    "engines/algorithms/sequence_sums.py": [
        Survivor(
            "if group is None or group.size() == 1:",
            ("constant: 1 -> 0",),
            "a sum over one rank is that rank's: only a call is saved",
        ),
    ],
    "engines/algorithms/combinations.py": [
        Survivor(
            '""',
            (
                "return: '' if isinstance(algorithm.loss, GspoLoss | ReinforceLoss) else ', or `old_logprobs: en... -> '' if False else ', or `old_logprobs: engine`'",
            ),
            "words of a warning",
            is_equivalent=False,
        ),
        *(
            Survivor(
                line,
                (
                    f"keyword: {part}.model_dump(mode='json') -> {part}.model_dump()",
                    "constant: 'json' -> 'jsonX'",
                ),
                "what a choice holds is plain in either mode",
            )
            for part, line in (
                ("a.advantage", '_part("advantage", a.advantage.model_dump(mode="json")),'),
                ("a.loss", '_part("loss", a.loss.model_dump(mode="json")),'),
                ("a.aggregation", '_part("aggregation", a.aggregation.model_dump(mode="json")),'),
                (
                    "r",
                    'parts += [_part("reject", r.model_dump(mode="json")) for r in correction.reject]',
                ),
            )
        ),
    ],
    "engines/batching.py": [
        Survivor(
            "heap = [(-_cost(batch, costs), n) for n, batch in enumerate(batches) if len(batch) > 1]",
            (
                "comparison: len(batch) > 1 -> len(batch) >= 1",
                "constant: 1 -> 0",
            ),
            "which of several batches is halved when one cannot be: a gap of the tests",
            is_equivalent=False,
        ),
        Survivor(
            "for place in (n, len(batches) - 1):",
            ("constant: 1 -> 2",),
            "as above",
            is_equivalent=False,
        ),
        Survivor(
            "if len(batches[place]) > 1:",
            (
                "comparison: len(batches[place]) > 1 -> len(batches[place]) >= 1",
                "constant: 1 -> 0",
                "return: if len(batches[place]) > 1 -> if True",
            ),
            "as above",
            is_equivalent=False,
        ),
        Survivor(
            "num_most = 2 * sum(lengths[i] for i in indices) // max_tokens",
            (
                "constant: 2 -> 3",
                "operator: 2 * sum((lengths[i] for i in indices)) // max_tokens -> 2 *"
                " sum((lengths[i] for i in indices)) * max_tokens",
            ),
            "room for more micro-batches than are used",
        ),
        Survivor(
            "num_leaves = 1 << min(num_most, len(indices)).bit_length()",
            (
                "constant: 1 -> 2",
                "bound: min(num_most, len(indices)) -> max(num_most, len(indices))",
                "bound: min(num_most, len(indices)) -> num_most",
                "bound: min(num_most, len(indices)) -> len(indices)",
            ),
            "room for more micro-batches than are used; only slower",
        ),
        Survivor(
            "rooms = [max_tokens] * (2 * num_leaves)",
            ("constant: 2 -> 3",),
            "places beyond the leaves, which nothing reads",
        ),
        Survivor(
            "while node > 1:",
            ("comparison: node > 1 -> node >= 1", "constant: 1 -> 2", "constant: 1 -> 0"),
            "whether the root and what lies above it are written: nothing reads them",
        ),
        Survivor(
            "if rooms[node] == largest:",
            ("return: if rooms[node] == largest -> if False",),
            "nothing above changes any more: only slower",
        ),
        Survivor("break", ("statement: break -> pass",), "as above: only slower"),
        Survivor(
            "loads = [(0.0, 0, share) for share in range(shares)]",
            ("constant: 0 -> 1",),
            "every share counts from the same number",
        ),
        Survivor(
            "heapq.heapreplace(loads, (load + costs[index], number + 1, share))",
            ("constant: 1 -> 2",),
            "every share counts in the same steps",
        ),
    ],
}
"""by file"""


def known(file: str, change: str, text: str) -> Survivor | None:
    for survivor in KNOWN.get(file, []):
        if survivor.text == text and change in survivor.changes:
            return survivor
    return None


def reason(outcome: Outcome, sources: Mapping[str, str]) -> Survivor | None:
    """Of a mutant by its name, e.g. `a/b.py:12 constant: 1 -> 2`."""
    place, _, change = outcome.name.partition(" ")
    line = int(place.rpartition(":")[2])
    return known(outcome.file, change, sources[outcome.file].splitlines()[line - 1].strip())
