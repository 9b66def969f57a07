"""Values as data, between the process of an answer and that of its asserts.

    list, dict, set, Decimal, date, Counter, range, ...   {kind: what makes it}
    all else (objects, classes, iterators)                what `refer` and `revive` make of it

The text is a part of the programs of both. What goes to the asserts is made anew there, of Python's
own types, so that no method of the answer's has a say in a comparison.
"""

from __future__ import annotations

VALUES = r"""
import builtins, importlib, itertools, json, os, sys
sys.set_int_max_str_digits(0)
FIRST, MOST = 100, 100_000  # items of an iterator that are asked for at once, and in all
VIEWS = ("dict_keys", "dict_values", "dict_items")
LIBRARY = {
    **{f"collections.{name}": name for name in ("Counter", "OrderedDict", "defaultdict", "deque")},
    **{f"datetime.{name}": name for name in ("datetime", "date", "time", "timedelta")},
    **{f"builtins.{start}{name}": name for start in ("", "o") for name in VIEWS},
    "decimal.Decimal": "Decimal", "fractions.Fraction": "Fraction", "builtins.range": "range",
    "builtins.slice": "slice",
}
HOME = {name: place.rpartition(".")[0] for place, name in LIBRARY.items()}
TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, object)

def is_own(value):  # each process says what has its own way
    return False

def library_kind(value):
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__)
    return next((LIBRARY[name] for name in kinds if name in LIBRARY), "")

def encode(value, refer):
    if value is None or type(value) in (bool, int, float, str):
        return value
    if is_own(value):
        return refer(value)
    if isinstance(value, (int, float, str)):
        return value
    kind = "" if type(value) in (list, tuple, dict, set) else library_kind(value)
    if kind:
        return {kind: encode_library(kind, value, refer)}
    if isinstance(value, dict):
        return {"dict": encode_pairs(value, refer)}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(each, refer) for each in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, type) and is_builtin(value):
        return {"builtin": value.__name__}
    return refer(value)

def is_builtin(kind):
    known = getattr(builtins, kind.__name__, None) is kind
    return known and (kind in TYPES or issubclass(kind, BaseException))

def encode_pairs(value, refer):
    return [[encode(each, refer) for each in pair] for pair in value.items()]

def encode_library(kind, value, refer):
    if kind in ("Counter", "OrderedDict"):
        return encode_pairs(value, refer)
    if kind == "defaultdict":
        made_by = value.default_factory
        name = made_by.__name__ if made_by in (int, float, str, list, dict, set) else None
        return [name, encode_pairs(value, refer)]
    if kind == "deque":
        return [value.maxlen, [encode(each, refer) for each in value]]
    if kind in ("range", "slice"):
        return [encode(each, refer) for each in (value.start, value.stop, value.step)]
    if kind == "Fraction":
        return [value.numerator, value.denominator]
    if kind == "timedelta":
        return [value.days, value.seconds, value.microseconds]
    if kind in VIEWS:
        return [encode(each, refer) for each in value]
    return str(value) if kind == "Decimal" else value.isoformat()

def decode(given, revive):
    if not isinstance(given, dict):
        return given
    ((kind, held),) = given.items()
    if kind == "dict":
        return decode_pairs(held, revive)
    if kind in ("list", "tuple", "set", "frozenset"):
        makes = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return makes[kind](decode(each, revive) for each in held)
    if kind == "bytes":
        return bytes.fromhex(held)
    if kind == "complex":
        return complex(*held)
    if kind == "builtin" and is_builtin(getattr(builtins, held)):
        return getattr(builtins, held)
    return decode_library(kind, held, revive) if kind in HOME else revive(kind, held)

def decode_pairs(held, revive):
    return {decode(name, revive): decode(each, revive) for name, each in held}

def decode_library(kind, held, revive):
    if kind in VIEWS:
        items = [decode(each, revive) for each in held]
        if kind == "dict_values":
            return dict(enumerate(items)).values()
        return dict.fromkeys(items).keys() if kind == "dict_keys" else dict(items).items()
    makes = getattr(importlib.import_module(HOME[kind]), kind)
    if kind == "defaultdict":
        return makes(held[0] and getattr(builtins, held[0]), decode_pairs(held[1], revive))
    if kind in ("Counter", "OrderedDict"):
        return makes(decode_pairs(held, revive))
    if kind == "deque":
        return makes([decode(each, revive) for each in held[1]], held[0])
    if kind == "Decimal":
        return makes(held)
    if isinstance(held, str):
        return makes.fromisoformat(held)
    return makes(*[decode(each, revive) for each in held])
"""
