"""Which test runs which line of the code under mutation, and how long each test file takes.

A mutant is tried only by tests that run its statement; one in the body of a module or a class by
all of them.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.programs.mutants.mutations import Mutant


@dataclass(slots=True)
class Reach:
    """A pytest plugin that watches lines. Axes: tests by node id, lines by file."""

    root: Path
    files: frozenset[str]
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """file -> line -> tests"""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """of processor time, of each test, fixtures with it"""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        node = item.nodeid
        watched = {str(self.root / name): name for name in self.files}

        def on_call(frame: FrameType, event: str, arg: Any) -> Any:
            name = watched.get(frame.f_code.co_filename)
            if name is None:
                return None
            lines = self.lines.setdefault(name, {})

            def on_line(frame: FrameType, event: str, arg: Any) -> Any:
                lines.setdefault(frame.f_lineno, set()).add(node)
                return on_line

            return on_line(frame, event, arg)

        began = time.process_time()
        sys.settrace(on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.seconds[node] = time.process_time() - began

    def add(
        self, lines: Mapping[str, Mapping[int, set[str]]], seconds: Mapping[str, float]
    ) -> None:
        """What another run found."""
        self.seconds |= seconds
        for name, by_line in lines.items():
            mine = self.lines.setdefault(name, {})
            for line, nodes in by_line.items():
                mine[line] = mine.get(line, set()) | nodes

    def tests_of(self, mutant: Mutant, original: str, in_ranks: str | None) -> list[list[str]]:
        """Node ids by test file, the cheapest file first; with all those of the file `in_ranks`,
        whose processes are not watched."""
        span = statement_span(original, mutant.line)
        every = set(self.seconds)
        if span is None:
            found = every
        else:
            lines = self.lines.get(mutant.file, {})
            found = set().union(*(lines.get(n, set()) for n in range(span[0], span[1] + 1)))
        found |= {node for node in every if node.partition("::")[0] == in_ranks}
        by_file: dict[str, list[str]] = defaultdict(list)
        for node in sorted(found & every):
            by_file[node.partition("::")[0]].append(node)
        return sorted(by_file.values(), key=self._cost)

    def _cost(self, nodes: Sequence[str]) -> tuple[bool, float]:
        took = sum(self.seconds[node] for node in nodes)
        return took > 2, took / len(nodes) - 0.01 * len(nodes)


def statement_span(source: str, line: int) -> tuple[int, int] | None:
    """First and last line of the statement at `line`, without the statements inside it; of the
    whole function for what stands in its head; None outside of functions."""
    best: ast.stmt | None = None
    function = False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            function |= isinstance(node, ast.FunctionDef)
            if best is None or node.lineno >= best.lineno:
                best = node
    if best is None or not function:
        return None
    end = best.end_lineno or best.lineno
    body = getattr(best, "body", None)
    if body and not isinstance(best, ast.FunctionDef):
        end = max(best.lineno, body[0].lineno - 1)
    return best.lineno, end
