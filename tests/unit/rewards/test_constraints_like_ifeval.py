"""The kinds of IFEval give the verdicts of lm-eval's own checks on shared answers.

Left out where IFEval itself is off: it counts `1,000` and `don't` as two words, a line `*set
apart*` as an item of a list, a postscript that says nothing, and what has no letter as obeying. Not
compared, as its check wants data from the network: how many sentences there are, in which language,
and how many words in capitals.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from curricula.built_in_curricula import build
from infra.prose.plain_text import words_of
from rewards.constraints.constraints import obeys
from tests.unit.curricula.test_row_constraints import IDS

pytestmark = pytest.mark.unit

_WANT_DATA = (
    "language:response_language", "length_constraints:number_sentences",
    "change_case:capital_word_frequency",
)  # fmt: skip
BESIDE = [
    "* a\n* b\n* c", "- one\n- two", "say *hi* and **ho** and *x*", "Dear all.\n\nP.S. see you",
    "Dear all.\n\np.s. see", "[a] and [b] and [c]", "<<T>>\nx", "x ******\ny", "a\n******\nb",
    "a\n******\na", "Section 1\na\nSection 2\nb", "Section one a Section two b", '{"a": b}',
    '```json\n{"a": 1}\n```', "```\n[1]\n```", "HELLO THE WORLD IS BIG", "hello the world is small",
    '"quoted text is here"', '"quoted" text', "a, b", "one\n***\ntwo\n***\nthree", "one\n***\ntwo",
    "My answer is yes.", "My answer is maybe.", "My answer is perhaps.", "the end. Is it so?",
    "IS IT SO? ", '"Is it so?"', "Say more. The town has books.", "<< >>", "[]",
    "Just one:\n- item", "In 2024 it rained on 12 days and snowed on 3", "1. Do it\n2. Do it again",
]  # fmt: skip
"""what the curriculum does not write"""
_TWO_WORDS = re.compile(r"'|\d[.,]\d")


@pytest.fixture(scope="module")
def ifeval() -> Iterator[Any]:
    """lm-eval's checks, without the data that it would fetch when it is imported."""
    with pytest.MonkeyPatch.context() as patched:
        detecting: Any = types.ModuleType("langdetect")
        detecting.detect = lambda text: "en"
        detecting.LangDetectException = ValueError
        frozen: Any = types.ModuleType("immutabledict")
        frozen.immutabledict = dict
        for module in (detecting, frozen):
            patched.setitem(sys.modules, module.__name__, module)
        # The package itself would import half of what it can evaluate with.
        found = find_spec("lm_eval")
        assert found is not None
        assert found.submodule_search_locations is not None
        folder = found.submodule_search_locations[0]
        for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
            package: Any = types.ModuleType(name)
            package.__path__ = ["/".join([folder, *name.split(".")[1:]])]
            patched.setitem(sys.modules, name, package)
        nltk: Any = importlib.import_module("nltk")
        patched.setattr(nltk.data, "find", lambda *_: None)
        for name in ("instructions_util", "instructions", "instructions_registry"):
            module = importlib.import_module(f"lm_eval.tasks.ifeval.{name}")
            patched.setattr(sys.modules["lm_eval.tasks.ifeval"], name, module)
            patched.setitem(sys.modules, module.__name__, module)  # and gone after the tests
        yield sys.modules["lm_eval.tasks.ifeval.instructions"]


@pytest.fixture(scope="module")
def answers() -> list[str]:
    curriculum = build("instructions", {"levels": ["easy", "medium", "hard"]})
    written = [shown.turns[-1].content for shown in curriculum.demonstrations(600, seed=5)]
    return [text for text in (*written, *BESIDE) if words_of(text) and text.isascii()]


def _bound(number: int, relation: str) -> dict[str, int]:
    return {"at_most": number - 1} if relation == "less than" else {"at_least": number}


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("KeywordChecker", {"keywords": ["town", "books"]},
     {"kind": "all_words", "words": ["town", "books"]}),
    ("ForbiddenWords", {"forbidden_words": ["town", "care"]},
     {"kind": "forbidden", "words": ["town", "care"]}),
    ("ParagraphChecker", {"num_paragraphs": 3}, {"kind": "parts_between_rules", "exactly": 3}),
    ("PostscriptChecker", {"postscript_marker": "P.S."}, {"kind": "postscript", "mark": "P.S."}),
    ("ConstrainedResponseChecker", {}, {"kind": "holds_one_of", "options": [
        "My answer is yes.", "My answer is no.", "My answer is maybe."]}),
    ("SectionChecker", {"section_spliter": "Section", "num_sections": 2},
     {"kind": "sections", "word": "Section", "at_least": 2}),
    ("JsonFormat", {}, {"kind": "fenced_json"}),
    ("TitleChecker", {}, {"kind": "title"}),
    ("TwoResponsesChecker", {}, {"kind": "two_answers"}),
    ("EndChecker", {"end_phrase": "Is it so?"}, {"kind": "ends_with_phrase", "text": "Is it so?"}),
    ("CapitalLettersEnglishChecker", {}, {"kind": "case", "case": "upper"}),
    ("LowercaseLettersEnglishChecker", {}, {"kind": "case", "case": "lower"}),
    ("CommaChecker", {}, {"kind": "no_marks", "marks": ","}),
    ("QuotationChecker", {}, {"kind": "in_quotation_marks"}),
    ("RepeatPromptThenAnswer", {"prompt_to_repeat": "Say more."},
     {"kind": "repeats_request", "request": "Say more."}),
    *(("PlaceholderChecker", {"num_placeholders": n}, {"kind": "placeholders", "at_least": n})
      for n in (1, 2, 3)),
    *(("BulletListChecker", {"num_bullets": n}, {"kind": "bullet_count", "exactly": n})
      for n in (1, 2, 3, 4)),
    *(("HighlightSectionChecker", {"num_highlights": n}, {"kind": "highlights", "at_least": n})
      for n in (1, 2, 3)),
    *(("KeywordFrequencyChecker", {"keyword": "about", "frequency": n, "relation": r},
       {"kind": "keyword", "word": "about", "at_least": 0} | _bound(n, r))
      for n in (2, 3) for r in ("less than", "at least")),
    *(("LetterFrequencyChecker", {"letter": "o", "let_frequency": n, "let_relation": r},
       {"kind": "letter_count", "letter": "o", **_bound(n, r)})
      for n in (3, 9) for r in ("less than", "at least")),
    *(("NumberOfWords", {"num_words": n, "relation": r}, {"kind": "word_count", **_bound(n, r)})
      for n in (10, 25) for r in ("less than", "at least")),
    *(("ParagraphFirstWordCheck", {"num_paragraphs": n, "nth_paragraph": n, "first_word": "many"},
       {"kind": "paragraph_starts", "number": n, "word": "many"}) for n in (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("checker", "told", "constraint"), CASES)
def test_a_verdict_is_that_of_lm_eval(
    ifeval: Any,
    answers: list[str],
    checker: str,
    told: dict[str, Any],
    constraint: dict[str, Any],
) -> None:
    theirs = getattr(ifeval, checker)(checker)
    theirs.build_description(**told)
    verdicts: list[bool] = []
    for text in answers:
        if checker == "NumberOfWords" and _TWO_WORDS.search(text):
            continue
        if checker == "BulletListChecker" and text.startswith("*") and not text.startswith("* "):
            continue
        if (
            checker == "ParagraphFirstWordCheck"
            and len(text.split("\n\n")) != told["num_paragraphs"]
        ):
            continue  # that check counts the paragraphs, too
        verdicts.append(bool(theirs.check_following(text)))
        assert obeys(text, constraint) == verdicts[-1], text
    assert {True, False} == set(verdicts), "the answers tell nothing apart"


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), IDS)
def test_rows_of_ifeval_are_judged_as_lm_eval_judges_them(
    ifeval: Any, name: str, arguments: dict[str, Any], right: str, wrong: str
) -> None:
    registry = importlib.import_module("lm_eval.tasks.ifeval.instructions_registry")
    if name in _WANT_DATA:
        assert name in registry.INSTRUCTION_DICT
        return
    theirs = registry.INSTRUCTION_DICT[name](name)
    theirs.build_description(**arguments)
    assert [bool(theirs.check_following(reply)) for reply in (right, wrong)] == [True, False]


def test_all_ids_of_lm_eval_are_read(ifeval: Any) -> None:
    registry = importlib.import_module("lm_eval.tasks.ifeval.instructions_registry")
    assert {name for name, *_ in IDS} == set(registry.INSTRUCTION_DICT)
