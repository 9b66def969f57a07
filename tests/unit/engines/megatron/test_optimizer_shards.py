"""A range of a tensor's elements is cut into rectangles that cover it, in order, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from engines.megatron.train.optimizer import rectangles

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 12, [((0, 0), (3, 4))]),
        (4, 8, [((1, 0), (1, 4))]),
        (5, 7, [((1, 1), (1, 2))]),
        (3, 5, [((0, 3), (1, 1)), ((1, 0), (1, 1))]),
        (1, 11, [((0, 1), (1, 3)), ((1, 0), (1, 4)), ((2, 0), (1, 3))]),
        (6, 6, []),
    ],
)
def test_ranges_of_three_rows_of_four(start: int, stop: int, expected: list[object]) -> None:
    assert list(rectangles(start, stop, (3, 4))) == expected


def test_every_range_of_a_tensor_is_covered_in_order() -> None:
    whole = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    for start in range(25):
        for stop in range(start, 25):
            found = [
                whole[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))].ravel()
                for offset, shape in rectangles(start, stop, whole.shape)
            ]
            assert np.array_equal(np.concatenate([*found, []]), np.arange(start, stop))
