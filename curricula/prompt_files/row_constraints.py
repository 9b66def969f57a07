"""The constraints of a row, which an answer has to obey, in the forms in which data sets hold them.

Ours; the 25 kinds of IFEval by their ids and arguments (IFEval, IFBench, Multi-IF); or one by a
function of RLVR-IFeval (Tulu 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from curricula.rows.fields import Fields
from curricula.rows.texts import parsed_object
from engines.types import Json
from infra.data_files.rows import BadRow, Reason
from infra.errors import InputError
from infra.hooks import did_you_mean

CONSTRAINTS = "constraints"
"""the field of a reference that holds them"""
_IDS, _ARGUMENTS = "instruction_id_list", "kwargs"
"""two lists of the same length (IFEval)"""
_FUNCTION = "func_name"
"""beside its arguments (RLVR-IFeval)"""
Constraint = dict[str, Json]
Arguments = Mapping[str, Any]
Written = Callable[[Arguments], list[Constraint]]
"""Raises InputError for arguments that are not there, or say what is not checked here"""

_RELATIONS: Mapping[str, tuple[str, int]] = {
    "at least": ("at_least", 0),
    "at most": ("at_most", 0),
    "less than": ("at_most", -1),
    "more than": ("at_least", 1),
}
_SCRIPTS: Mapping[str, str] = {
    "Latin": "cs da de en es fi fr hu id it nl no pl pt ro sv sw tr vi",
    "Arabic": "ar fa ur",
    "Bengali": "bn",
    "Cyrillic": "bg ru uk",
    "Devanagari": "hi mr ne",
    "Greek": "el",
    "Gujarati": "gu",
    "Gurmukhi": "pa",
    "Han": "zh zh-cn zh-tw",
    "Hangul": "ko",
    "Hebrew": "he",
    "Japanese": "ja",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
}
_SCRIPT_OF = {code: script for script, codes in _SCRIPTS.items() for code in codes.split()}
_OPTIONS: list[Json] = ["My answer is yes.", "My answer is no.", "My answer is maybe."]
"""what IFEval lets an answer be, which its rows do not say"""


def read_constraints(row: Fields, name: str) -> tuple[dict[str, Json], str]:
    """Return a reference with constraints, of the named column, else of the usual ones, and its
    name; an empty one for none. Raises BadRow."""
    if not name and CONSTRAINTS in row.among((CONSTRAINTS, _IDS)):
        name = CONSTRAINTS if isinstance(parsed_object(row.values[CONSTRAINTS]), list) else ""
    name = name or row.first((_IDS,))
    if not name:
        return {}, ""
    value = row.column(name)
    if name == _IDS:
        value = {_IDS: value, _ARGUMENTS: row.get(_ARGUMENTS)}
    found = with_constraints(value, name)
    return (cast("dict[str, Json]", found), name) if isinstance(found, dict) else ({}, "")


def with_constraints(value: Any, name: str) -> Any:
    """Return the object that holds the constraints which a column of this name has in any form;
    another value as it is. Raises BadRow."""
    held = parsed_object(value)
    if isinstance(held, list):
        listed = [_without_nulls(each) for each in cast("list[Any]", held)]
        is_meant = name.rpartition(".")[2] == CONSTRAINTS
        return {CONSTRAINTS: listed} if is_meant or any(map(_is_object, listed)) else value
    if not isinstance(held, dict):
        return value
    fields = cast("dict[str, Any]", held)
    try:
        if isinstance(fields.get(_FUNCTION), str):
            return {CONSTRAINTS: constraints_of_function(fields[_FUNCTION], fields)}
        if fields.get(_IDS) is not None:
            return {CONSTRAINTS: _of_ids(fields[_IDS], fields.get(_ARGUMENTS))}
    except InputError as error:
        raise BadRow(Reason.REFERENCE, f"{name}: {error}") from None
    inner = parsed_object(fields.get(CONSTRAINTS))
    if not isinstance(inner, list):
        return value
    return {**fields, **with_constraints(inner, f"{name}.{CONSTRAINTS}")}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _without_nulls(constraint: Any) -> Any:
    """A table gives each object the fields of all of them."""
    held = parsed_object(constraint)
    if not isinstance(held, dict):
        return constraint
    fields = cast("dict[str, Any]", held)
    return {name: value for name, value in fields.items() if value is not None}


def _of_ids(ids: Any, arguments: Any) -> list[Constraint]:
    """Raises InputError."""
    names, given = parsed_object(ids), parsed_object(arguments)
    names = cast("list[Any]", names) if isinstance(names, list) else [names]
    if given is None:
        given = [{}] * len(names)
    listed = cast("list[Any]", given) if isinstance(given, list) else [given]
    held = [parsed_object(each) or {} for each in listed]
    if len(held) != len(names) or not all(map(_is_object, held)):
        raise InputError(
            f"`{_ARGUMENTS}` has to be a list of {len(names)} objects, one for each id"
        )
    pairs = zip(names, held, strict=True)
    return [made for name, each in pairs for made in constraints_of_id(str(name), each)]


def constraints_of_id(name: str, arguments: Arguments) -> list[Constraint]:
    """The constraints of an id. Raises InputError."""
    return _written(name, arguments, _BY_ID)


def constraints_of_function(name: str, arguments: Arguments) -> list[Constraint]:
    """The constraints of a function. Raises InputError."""
    return _written(name, arguments, _BY_FUNCTION)


def _written(name: str, arguments: Arguments, known: Mapping[str, Written]) -> list[Constraint]:
    if name not in known:
        raise InputError(
            f"{name!r} is not among the {len(known)} kinds of IFEval that are checked here."
            f"{did_you_mean(name, known)}"
        )
    try:
        return known[name](arguments)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _argument(arguments: Arguments, name: str) -> Any:
    """Whole numbers as such: tables hold 3.0. Raises InputError where it is not there."""
    value = arguments.get(name)
    if value is None:
        there = ", ".join(key for key, given in arguments.items() if given is not None)
        raise InputError(f"lacks `{name}`; it has {there or 'no arguments'}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(arguments: Arguments, name: str) -> int:
    number = _argument(arguments, name)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InputError(f"`{name}` is {number!r}, which is no number of things")
    return number


def _one(kind: str, fixed: Mapping[str, Json] | None = None, **named: str) -> Written:
    """One constraint: its parameters by the arguments that say them, and those that are fixed."""

    def write(arguments: Arguments) -> list[Constraint]:
        given = {ours: _argument(arguments, theirs) for ours, theirs in named.items()}
        return [{"kind": kind, **given, **(fixed or {})}]

    return write


def _related(kind: str, number: str, relation: str, slack: float = 0.0, **named: str) -> Written:
    """One constraint with a bound; `around` allows this share more or less, and 1 at least."""

    def write(arguments: Arguments) -> list[Constraint]:
        count, said = _number(arguments, number), _argument(arguments, relation)
        more = max(round(count * slack), 1)
        if said == "around":
            bounds = {"at_least": count - more, "at_most": count + more}
        elif said in _RELATIONS:
            bound, by = _RELATIONS[said]
            bounds = {bound: count + by}
        else:
            raise InputError(f"`{relation}` is {said!r}; known: {', '.join(_RELATIONS)}, around")
        return [constraint | bounds for constraint in _one(kind, None, **named)(arguments)]

    return write


def _paragraphs(number: str, place: str, word: str) -> Written:
    count = _one("paragraph_count", exactly=number)
    first = _one("paragraph_starts", number=place, word=word)
    return lambda arguments: [*count(arguments), *first(arguments)]


def _language(arguments: Arguments) -> list[Constraint]:
    code = str(_argument(arguments, "language")).lower()
    if code not in _SCRIPT_OF:
        raise InputError(f"`language` is {code!r}; known: {', '.join(sorted(_SCRIPT_OF))}")
    return [{"kind": "script", "script": _SCRIPT_OF[code]}]


def _times(arguments: Arguments) -> list[Constraint]:
    count = _number(arguments, "N")
    word = _argument(arguments, "word")
    return [{"kind": "keyword", "word": word, "at_least": count, "at_most": count}]


_BY_ID: Mapping[str, Written] = {
    "keywords:existence": _one("all_words", words="keywords"),
    "keywords:frequency": _related("keyword", "frequency", "relation", word="keyword"),
    "keywords:forbidden_words": _one("forbidden", words="forbidden_words"),
    "keywords:letter_frequency": _related(
        "letter_count", "let_frequency", "let_relation", letter="letter"
    ),
    "language:response_language": _language,
    "length_constraints:number_sentences": _related("sentence_count", "num_sentences", "relation"),
    "length_constraints:number_paragraphs": _one(
        "parts_between_rules", {"mark": "***"}, exactly="num_paragraphs"
    ),
    "length_constraints:number_words": _related("word_count", "num_words", "relation"),
    "length_constraints:nth_paragraph_first_word": _paragraphs(
        "num_paragraphs", "nth_paragraph", "first_word"
    ),
    "detectable_content:number_placeholders": _one("placeholders", at_least="num_placeholders"),
    "detectable_content:postscript": _one("postscript", mark="postscript_marker"),
    "detectable_format:number_bullet_lists": _one("bullet_count", exactly="num_bullets"),
    "detectable_format:constrained_response": _one("holds_one_of", {"options": _OPTIONS}),
    "detectable_format:number_highlighted_sections": _one("highlights", at_least="num_highlights"),
    "detectable_format:multiple_sections": _one(
        "sections", word="section_spliter", at_least="num_sections"
    ),
    "detectable_format:json_format": _one("fenced_json"),
    "detectable_format:title": _one("title"),
    "combination:two_responses": _one("two_answers"),
    "combination:repeat_prompt": _one("repeats_request", request="prompt_to_repeat"),
    "startend:end_checker": _one("ends_with_phrase", text="end_phrase"),
    "startend:quotation": _one("in_quotation_marks"),
    "change_case:capital_word_frequency": _related(
        "capital_words", "capital_frequency", "capital_relation"
    ),
    "change_case:english_capital": _one("case", {"case": "upper"}),
    "change_case:english_lowercase": _one("case", {"case": "lower"}),
    "punctuation:no_comma": _one("no_marks", {"marks": ","}),
}
_BY_FUNCTION: Mapping[str, Written] = {
    "verify_keywords": _one("all_words", words="keyword_list"),
    "verify_keyword_frequency": _times,
    "validate_forbidden_words": _one("forbidden", words="forbidden_words"),
    "verify_letter_frequency": _one("letter_count", letter="letter", exactly="N"),
    "validate_response_language": _language,
    "verify_paragraph_count": _one("parts_between_rules", {"mark": "* * *"}, exactly="N"),
    "validate_word_constraint": _related("word_count", "N", "quantifier", 0.1),
    "verify_sentence_constraint": _related("sentence_count", "N", "quantifier"),
    "validate_paragraphs": _paragraphs("N", "i", "first_word"),
    "verify_postscript": _one("postscript", mark="postscript_marker"),
    "validate_placeholders": _one("placeholders", at_least="N"),
    "verify_bullet_points": _one("bullet_count", exactly="N"),
    "validate_title": _one("title"),
    "validate_choice": _one("holds_one_of", options="options"),
    "validate_highlighted_sections": _one("highlights", at_least="N"),
    "validate_sections": _one("sections", word="section_splitter", at_least="N"),
    "validate_json_format": _one("fenced_json"),
    "validate_repeat_prompt": _one("repeats_request", request="original_prompt"),
    "validate_two_responses": _one("two_answers"),
    "validate_uppercase": _one("case", {"case": "upper"}),
    "validate_lowercase": _one("case", {"case": "lower"}),
    "validate_frequency_capital_words": _related("capital_words", "N", "quantifier", 0.1),
    "validate_end": _one("ends_with_phrase", text="end_phrase"),
    "validate_quotation": _one("in_quotation_marks"),
    "validate_no_commas": _one("no_marks", {"marks": ","}),
}
