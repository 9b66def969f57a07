"""Constraints in rows, in all their forms: read as the reference, or a bad row that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curricula.built_in_curricula import build
from curricula.prompt_files.row_constraints import constraints_of_function, constraints_of_id
from engines.types import Message, Problem, Status, Transcript
from infra.data_files.rows import BadRow
from infra.errors import InputError
from rewards.constraints.constraints import Constraints, obeys, require_constraints
from tasks.domain import Domain
from tests.parts.row_parts import prompt

pytestmark = pytest.mark.unit

CHECKS = {**Constraints.reference_checks}
SHORT, NO_COMMA = {"kind": "word_count", "at_most": 60}, {"kind": "no_marks", "marks": ","}
TWO = [SHORT, NO_COMMA]
IFEVAL = {
    "key": 1000,
    "prompt": "Write about tea.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [
        {"num_words": None, "relation": None},
        {"num_words": 300, "relation": "at least", "letter": None},
    ],
}
OF_IFEVAL = [NO_COMMA, {"kind": "word_count", "at_least": 300}]
FUNCTION = {"func_name": "validate_word_constraint", "N": 300, "quantifier": "at least", "i": None}


def read(row: dict[str, Any], **fields: Any) -> Any:
    return prompt(row, needs=["constraints"], checks=CHECKS, **fields).reference


@pytest.mark.parametrize(
    ("row", "reference", "constraints"),
    [
        ({"reference": {"constraints": TWO}}, "", TWO),
        ({"reference": json.dumps({"constraints": TWO})}, "", TWO),
        ({"reference": {"constraints": json.dumps(TWO)}}, "", TWO),
        ({"reference": json.dumps({"constraints": TWO})}, "reference", TWO),
        ({"reference": json.dumps({"constraints": TWO})}, "reference.constraints", TWO),
        ({"reference": {"constraints": TWO}}, "reference.constraints", TWO),
        ({"reference": TWO}, "", TWO),
        ({"rules": TWO}, "rules", TWO),
        ({"constraints": TWO}, "", TWO),
        ({"constraints": TWO}, "constraints", TWO),
        ({"constraints": json.dumps(TWO)}, "", TWO),
        ({"constraints": [json.dumps(each) for each in TWO]}, "", TWO),
        ({"constraints": TWO, "answer": "tea"}, "", TWO),
        ({"constraints": "be brief", "reference": {"constraints": TWO}}, "", TWO),
        ({"constraints": [SHORT | {"words": None, "mark": None}]}, "", [SHORT]),
        ({"reference": {"constraints": [SHORT | {"words": None}]}}, "", [SHORT]),
        (IFEVAL, "", OF_IFEVAL),
        (IFEVAL | {"kwargs": json.dumps(IFEVAL["kwargs"])}, "", OF_IFEVAL),
        (IFEVAL | {"kwargs": [json.dumps(each) for each in IFEVAL["kwargs"]]}, "", OF_IFEVAL),
        (IFEVAL | {"instruction_id_list": json.dumps(IFEVAL["instruction_id_list"])}, "",
         OF_IFEVAL),
        (IFEVAL, "instruction_id_list", OF_IFEVAL),
        ({"extra_info": IFEVAL}, "extra_info", OF_IFEVAL),
        ({"instruction_id_list": ["detectable_format:title"]}, "", [{"kind": "title"}]),
        ({"ground_truth": json.dumps(FUNCTION)}, "", OF_IFEVAL[1:]),
        ({"ground_truth": FUNCTION}, "ground_truth", OF_IFEVAL[1:]),
        ({"reward_model": {"ground_truth": json.dumps(FUNCTION)}}, "", OF_IFEVAL[1:]),
    ],
)  # fmt: skip
def test_constraints_are_read(row: dict[str, Any], reference: str, constraints: Any) -> None:
    asked = {"prompt": "Write about tea.", **row}
    assert read(asked, columns={"reference": reference}) == {"constraints": constraints}


def test_other_fields_of_a_reference_stay() -> None:
    row = {"question": "Tea?", "reference": {"constraints": TWO, "topic": "tea"}}
    assert read(row) == {"constraints": TWO, "topic": "tea"}
    assert read(row | {"reference": json.dumps(row["reference"])}) == row["reference"]


def test_rows_of_ifeval_are_read_without_a_reward_that_wants_them() -> None:
    assert prompt(IFEVAL).reference == {"constraints": OF_IFEVAL}
    assert prompt(IFEVAL).layout == "prompt, constraints instruction_id_list"
    unknown = IFEVAL | {"instruction_id_list": ["count:words", "punctuation:no_comma"]}
    assert prompt(unknown).reference == {}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"reference": {"constraints": [{"kind": "wordcount", "at_most": 60}]}},
         "reference: constraint 1: no constraint is called 'wordcount'. Did you mean"
         " 'word_count'?"),
        ({"reference": {"constraints": [SHORT, {"kind": "zzz"}]}},
         "constraint 2: no constraint is called 'zzz'. Allowed: keyword, forbidden, "),
        ({"reference": {"constraints": [{"kind": "word_count", "max": 60}]}},
         "word_count: max: Extra inputs are not permitted; its parameters are: exactly, at_least,"
         " at_most. Did you mean 'at_most'?"),
        ({"reference": {"constraints": [{"kind": "word_count", "exact": 60}]}},
         "Did you mean 'exactly'?"),
        ({"constraints": [{"kind": "word_count"}]}, "constraints: constraint 1: say how many:"),
        ({"constraints": [{"kind": "mark_count", "exactly": 1}]}, "mark: Field required"),
        ({"constraints": [{"kind": "script", "script": "Klingon"}]}, "Klingon"),
        ({"constraints": [{"kind": "scripts_by_sentence", "scripts": ["Latin", "Klingon"]}]},
         "Klingon"),
        ({"constraints": [{"kind": "forbidden", "words": ["--"]}]}, "'--' is no word"),
        ({"constraints": [{"kind": "keyword_in_sentence", "word": "a", "number": 0}]}, "0 is none"),
        ({"constraints": ["be brief"]}, "constraints: write a list, and each in it as e.g."),
        ({"constraints": [], "answer": "a"}, "the rewards read `constraints` of it"),
        ({"reference": {"constraints": []}}, "reference: constraints: an empty list judges"),
        ({"reference": {"rules": 3}}, "is an object of rules; the rewards read `constraints`"),
        (IFEVAL | {"instruction_id_list": ["count:numbers", "punctuation:no_comma"]},
         "instruction_id_list: 'count:numbers' is not among the 25 kinds of IFEval"),
        (IFEVAL | {"instruction_id_list": ["punctuation:no_commas", "punctuation:no_comma"]},
         "Did you mean 'punctuation:no_comma'?"),
        (IFEVAL | {"kwargs": [{}, {"relation": "at least"}]},
         "length_constraints:number_words: lacks `num_words`; it has relation"),
        (IFEVAL | {"kwargs": [{}, {"relation": "about", "num_words": 3}]},
         "`relation` is 'about'; known: at least, at most, less than, more than, around"),
        (IFEVAL | {"kwargs": [{}]}, "`kwargs` has to be a list of 2 objects"),
        ({"ground_truth": json.dumps({"func_name": "validate_mood"})},
         "ground_truth: 'validate_mood' is not among the 25 kinds of IFEval"),
    ],
)  # fmt: skip
def test_what_is_no_constraint_makes_a_bad_row(row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRow) as refused:
        read({"prompt": "Write about tea.", **row})
    assert said in str(refused.value)


def test_a_domain_has_its_rows_checked_by_the_reward_that_reads_them() -> None:
    def sources(*rewards: dict[str, Any], **more: Any) -> Any:
        options = {"sources": {"files": ["x.jsonl"], **more}}
        domain = {"curriculum": {"name": "files", "options": options}, "rewards": [*rewards]}
        return Domain.model_validate(domain).curriculum.options["sources"]

    obeying = {"name": "constraints", "outcome": True}
    assert sources(obeying)["checks"] == CHECKS
    exact = sources({"name": "exact", "outcome": True})
    assert exact == {"files": ["x.jsonl"], "needs": ["answer"]}
    own = {"unit": "my:check"}
    assert sources(obeying, checks=own)["checks"] == CHECKS | own


@pytest.mark.usefixtures("own_home")
def test_rows_in_files_become_problems_that_the_reward_can_judge(tmp_path: Path) -> None:
    rows = [IFEVAL, {"prompt": "Tea?", "constraints": TWO}, {"prompt": "a", "constraints": [{}]}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"files": [str(tmp_path / "rows.jsonl")], "split": "train", "max_bad_share": 0.5}
    domain = {
        "curriculum": {"name": "files", "options": {"sources": source}},
        "rewards": [{"name": "constraints", "outcome": True}],
    }
    options = Domain.model_validate(domain).curriculum.options
    files: Any = build("files", options)
    found = [problem.reference["constraints"] for problem in files.problems("rl", 2, seed=0)]
    assert sorted(found, key=str) == sorted([OF_IFEVAL, TWO], key=str)
    assert any("constraint 1: no constraint is called ''" in said for said in files.left_out)


SAID = "Say more."
IDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["town", "ice cream"]}, "An ice cream in town.", "A town."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"},
     "Tea, tea!", "Tea."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "less than"},
     "Tea.", "Tea, tea!"),
    ("keywords:forbidden_words", {"forbidden_words": ["tea", "ice cream"]}, "Teas.",
     "The tea's hot."),
    ("keywords:letter_frequency", {"letter": "o", "let_frequency": 2, "let_relation": "less than"},
     "So.", "So so."),
    ("language:response_language", {"language": "hi"}, "आप सभी को नमस्ते।", "Hello all."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"},
     "One. Two.", "One."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_words", {"num_words": 3.0, "relation": "at least"},
     "In 2024 so", "So so"),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, "A.\n\nSo b.",
     "A.\n\nB.\n\nSo."),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[name] so", "so"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "A.\n\nP.S. B.",
     "A.\n\nB."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n* b", "* a"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "so *very* so", "so"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\na\nSection 2\nb", "Section 1\na"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "a: 1"),
    ("detectable_format:title", {}, "<<So>>\na", "So\na"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n\nb"),
    ("combination:repeat_prompt", {"prompt_to_repeat": SAID}, f"{SAID} So.", "So."),
    ("startend:end_checker", {"end_phrase": "Is it so?"}, "A. Is it so?", "A."),
    ("startend:quotation", {}, '"a b"', "a b"),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "SO it IS", "SO it is"),
    ("change_case:english_capital", {}, "IN 2024 IT IS SO", "It is so"),
    ("change_case:english_lowercase", {}, "in 2024 it is so", "It is so"),
    ("punctuation:no_comma", {}, "so so", "so, so"),
]  # fmt: skip
FUNCTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("verify_keywords", {"keyword_list": ["tea", "ice cream"]}, "Ice cream, tea.", "Tea."),
    ("verify_keyword_frequency", {"word": "tea", "N": 2}, "Tea, tea!", "Tea, tea, tea!"),
    ("validate_forbidden_words", {"forbidden_words": ["tea"]}, "Teas.", "Tea."),
    ("verify_letter_frequency", {"letter": "o", "N": 2}, "So so.", "So."),
    ("validate_response_language", {"language": "ru"}, "Доброе утро.", "Good morning."),
    ("verify_paragraph_count", {"N": 2}, "a\n* * *\nb", "a\n\nb"),
    ("validate_word_constraint", {"N": 3, "quantifier": "at most"}, "a b c", "a b c d"),
    ("validate_word_constraint", {"N": 40, "quantifier": "around"}, "a " * 36, "a " * 35),
    ("verify_sentence_constraint", {"N": 30, "quantifier": "around"}, "Go! " * 31, "Go! " * 32),
    ("validate_paragraphs", {"N": 2, "i": 2, "first_word": "So"}, "A.\n\nSo b.", "A.\n\nB."),
    ("verify_postscript", {"postscript_marker": "P.S."}, "A.\n\nP.S. B.", "A.\n\nB."),
    ("validate_placeholders", {"N": 1}, "[name] so", "so"),
    ("verify_bullet_points", {"N": 2}, "* a\n* b", "* a"),
    ("validate_title", {}, "<<So>>\na", "So\na"),
    ("validate_choice", {"options": ["yes", "no"]}, "It is yes.", "Perhaps."),
    ("validate_highlighted_sections", {"N": 1}, "so *very* so", "so"),
    ("validate_sections", {"N": 2, "section_splitter": "Section"},
     "Section 1\na\nSection 2\nb", "Section 1\na"),
    ("validate_json_format", {}, '{"a": 1}', "a: 1"),
    ("validate_repeat_prompt", {"original_prompt": SAID}, f"{SAID} So.", "So."),
    ("validate_two_responses", {}, "a\n******\nb", "a\n\nb"),
    ("validate_uppercase", {}, "IT IS SO", "It is so"),
    ("validate_lowercase", {}, "it is so", "It is so"),
    ("validate_frequency_capital_words", {"N": 2, "quantifier": "at most"}, "SO IT is", "SO IT IS"),
    ("validate_end", {"end_phrase": "Is it so?"}, "A. Is it so?", "A."),
    ("validate_quotation", {}, '"a b"', "a b"),
    ("validate_no_commas", {}, "so so", "so, so"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), IDS + FUNCTIONS)
async def test_each_kind_of_ifeval_tells_right_from_wrong(
    name: str, arguments: dict[str, Any], right: str, wrong: str
) -> None:
    written = constraints_of_id if ":" in name else constraints_of_function
    constraints = written(name, arguments | {"unused": None})
    require_constraints(constraints)
    assert all(obeys(right, each) for each in constraints)
    assert not all(obeys(wrong, each) for each in constraints)
    problem = Problem("p", "files", (), {"constraints": constraints})

    async def score(reply: str) -> float:
        said = Transcript(problem, (Message("assistant", reply),), Status.COMPLETED, 3)
        return (await Constraints()(said)).score

    assert (await score(right), await score(wrong)) == (1.0, 0.0)


def test_all_25_of_each_are_tried() -> None:
    assert len({name for name, *_ in IDS}) == len({name for name, *_ in FUNCTIONS}) == 25


def test_a_language_that_no_script_is_known_of_is_named() -> None:
    with pytest.raises(InputError, match="`language` is 'tlh'; known: ar, bg, "):
        constraints_of_id("language:response_language", {"language": "tlh"})
