"""The mark by which a test says what it proves, and the plugin that collects what was proven.

    @pytest.mark.proof("loss clip", "hand", numbers=3)
    @pytest.mark.proof("{row}", "reference")        # `row` is a parameter of the test

`numbers` counts the results that the test (each of its cases) compares with working in sight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

PROOFS = ("hand", "reference", "gradient", "invariance", "limit", "edge", "ranks")
HAND_NUMBERS = 3
"""worked out by hand, for each estimator"""


@dataclass(slots=True)
class Collected:
    """A pytest plugin: what the marked tests proved."""

    numbers: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(row, proof) -> numbers of the tests that passed"""
    failed: set[tuple[str, str]] = field(default_factory=set)
    """(row, proof) of which a test did not pass"""
    claims: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    """node id -> what it proves"""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.claims = {item.nodeid: list(claims_of(item)) for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for row, proof, numbers in self.claims.get(report.nodeid, []):
            if report.when == "call" and report.passed:
                self.numbers[row, proof] += numbers
            elif not report.passed:
                self.failed.add((row, proof))


def claims_of(item: pytest.Item) -> Iterator[tuple[str, str, int]]:
    """(row, proof, numbers) of each mark."""
    params = item.callspec.params if isinstance(item, pytest.Function) and _has_params(item) else {}
    for mark in item.iter_markers("proof"):
        row, *proofs = mark.args
        for proof in proofs:
            if proof not in PROOFS:
                raise pytest.UsageError(f"{item.nodeid}: no proof {proof!r}; {', '.join(PROOFS)}")
            yield str(row).format(**params), proof, int(mark.kwargs.get("numbers", 1))


def _has_params(item: pytest.Function) -> bool:
    return hasattr(item, "callspec")
