"""The proof table itself: what makes a row incomplete, and that the page shows every row."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.programs.proof.estimators import estimators, unnamed
from tests.programs.proof.exceptions import EXCEPTIONS, reason
from tests.programs.proof.marks import PROOFS
from tests.programs.proof.table import BEGIN, END, into_page, proven, unknown

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
ALL = {("loss clip", proof): 3 for proof in PROOFS}


def test_a_row_with_every_proof_is_complete() -> None:
    (row,) = proven(["loss clip"], ALL, set())
    assert row.missing == []
    assert row.row.holds


def test_two_numbers_by_hand_are_too_few() -> None:
    (row,) = proven(["loss clip"], {**ALL, ("loss clip", "hand"): 2}, set())
    assert row.missing == ["hand"]
    assert not row.row.holds


@pytest.mark.parametrize("proof", PROOFS)
def test_a_proof_that_no_test_gives_or_that_failed_is_missing(proof: str) -> None:
    without = {key: n for key, n in ALL.items() if key[1] != proof}
    assert proven(["loss clip"], without, set())[0].missing == [proof]
    assert proven(["loss clip"], ALL, {("loss clip", proof)})[0].missing == [proof]


def test_what_does_not_apply_needs_a_reason() -> None:
    assert proven(["advantage rloo"], {}, set())[0].cells["gradient"] == "-"
    assert "gradient" in proven(["loss clip"], {}, set())[0].missing
    assert reason("advantage rloo", "hand") is None
    assert all(len(why) > 20 for why in EXCEPTIONS.values())


def test_a_claim_of_no_estimator_is_found() -> None:
    assert unknown(["loss clip"], {("loss clap", "hand"): 1}) == {"loss clap"}


def test_every_public_function_has_a_row() -> None:
    assert unnamed() == set()


def test_a_new_choice_is_a_new_row() -> None:
    rows = estimators()
    assert len(rows) == len(set(rows))
    assert {"advantage gae", "loss gspo", "reject opsm", "kl k2", "weight geometric"} <= set(rows)
    assert "loss custom" not in rows


def test_the_page_shows_every_estimator() -> None:
    text = (ROOT / "docs/algorithms.md").read_text()
    table = text.partition(BEGIN)[2].partition(END)[0]
    assert f"Complete: {len(estimators())} estimators." in table.splitlines()


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n| a stale row |\n{END}\nafter\n")
    into_page(page, proven(["loss clip"], ALL, set()))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| proof |")
    assert text.endswith(f"{END}\nafter\n")
    assert "stale" not in text
    assert "| hand | 1 | 0 | 3 |" in text
    assert "Complete: 1 estimators." in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="lacks the line"):
        into_page(page, [])


def test_the_reference_shares_no_code() -> None:
    tree = ast.parse((ROOT / "tests/programs/proof/reference.py").read_text())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "math", "collections.abc", "dataclasses", "numpy"}
