"""The program that runs an answer and asks it what asserts want to know.

A line of standard output is what came of one question: a value, an error, and what the call made
of its arguments. What is no data stays here, under a key by which later questions name it.
"""

from __future__ import annotations

from rewards.code.plain_values import VALUES

ANSWER = (
    VALUES
    + r"""
import operator, types
given, out = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.stdin = open(os.devnull)

def say(**what):
    print(json.dumps(what), file=out, flush=True)

def named(error):
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return "an exception without a text"

try:
    program = compile(given["code"], "answer.py", "exec")
except BaseException as error:
    say(compile_error=named(error))
    os._exit(0)
answer = sys.modules["answer"] = types.ModuleType("answer")
objects, keys, streams, kept, counts, loops = {}, {}, {}, [], {}, []
try:
    exec("from typing import *\nfrom sys import exit\nquit = exit", vars(answer))
    exec(program, vars(answer))
except BaseException as error:
    say(runtime_error=named(error))
    os._exit(0)

def text_of(error):
    try:
        said = str(error)[:4096]
    except BaseException:
        return {"said": "an exception without a text"}
    try:
        return {"said": said, "of": [encode(each, None) for each in error.args]}
    except BaseException:  # objects of the answer's
        return {"said": said}

def kinds_of(kind):
    return [f"{each.__module__}:{each.__qualname__}" for each in type.mro(kind)]

def told(error):
    own = {"key": key_of(error)} if type(error).__module__ == "answer" else {}
    return {"error": kinds_of(type(error)), **own, **text_of(error)}

def find(key):
    if key in objects:
        return objects[key]
    if key in vars(answer) or "Solution" not in vars(answer):
        return getattr(answer, key)
    return getattr(answer.Solution(), key)

def revive(kind, held):
    if kind == "function":
        return operator.attrgetter(held[1])(importlib.import_module(held[0]))
    return find(held)

def key_of(value):
    if id(value) not in keys:
        counts[place] = counts.get(place, 0) + 1
        key = f"{place}.{counts[place]}"
        keys[id(value)], objects[key] = key, value
        kept.append(value)
    return keys[id(value)]

def is_own(value):
    enum = sys.modules.get("enum")
    is_member = enum is not None and isinstance(value, enum.Enum)
    return is_member or (isinstance(value, tuple) and hasattr(type(value), "_fields"))

def is_iterator(value):
    homes = ("builtins", "itertools", "collections")
    return type(value).__module__ in homes and hasattr(type(value), "__next__")

def refer(value):
    key = key_of(value)
    if isinstance(value, type):
        return {"class": [key, value.__qualname__]}
    if isinstance(value, tuple):
        kinds = type(value).__mro__[:-2]
        if any(f"__{name}__" in vars(kind) for kind in kinds for name in OPS if name != "repr"):
            return {"object": key}  # it has operators of its own
        held = [encode(each, refer) for each in tuple(value)]
        return {"named": [key, type(value).__name__, list(type(value)._fields), held]}
    if is_own(value):
        mixed = isinstance(value, (int, str))
        return {"member": [key, mixed, value.name, encode(value.value, refer)]}
    if is_iterator(value):
        if key not in streams:
            streams[key], objects[key] = itertools.tee(value)
            kept.append(value)
        return {"stream": [key, *chunk(key, FIRST)]}
    return {"object": key}

def chunk(key, most):
    items = []
    try:
        for each in itertools.islice(streams[key], most):
            items.append(encode(each, refer))
    except BaseException as error:
        return items, told(error)
    return items, "more" if len(items) == most else ""

def made(value):
    if isinstance(value, (list, dict, set)) and type(value).__module__ == "answer":
        return {"container": key_of(value)}
    return None

def plain(value):
    return next(kind(value) for kind in (list, dict, set) if isinstance(value, kind))

def hash_of(value):
    if type(value).__hash__ is not object.__hash__:
        return hash(value)
    return int(key_of(value).replace(".", "0"))

def next_of(value):
    try:
        return True, next(value)
    except StopIteration:
        return False, None

def iterate(value):
    found = iter(value)
    return (each for each in found)

def wait_for(value):
    async def wait():
        return await value
    if not loops:
        loops.append(importlib.import_module("asyncio").new_event_loop())
    return loops[0].run_until_complete(wait())

def anext_of(value):
    try:
        return True, wait_for(anext(value))
    except StopAsyncIteration:
        return False, None

def leave(value, kind, said, by="__exit__"):
    error = None if kind is None else kind(said)
    return getattr(type(value), by)(value, kind, error, None)

OPS = {name: getattr(operator, name) for name in (
    "eq", "ne", "lt", "le", "gt", "ge", "contains", "getitem", "setitem", "delitem", "neg", "pos",
    "invert",
)}
for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor",
    "lshift", "rshift",
):
    done = getattr(operator, name)
    OPS[name.strip("_")] = done
    OPS["r" + name.strip("_")] = lambda mine, other, done=done: done(other, mine)
OPS |= {each.__name__: each for each in (
    len, bool, str, repr, int, float, abs, round, format, divmod, setattr, delattr, reversed,
)}
OPS |= {
    "hash": hash_of, "next": next_of, "iter": iterate, "index": operator.index,
    "exit": lambda *of: bool(leave(*of)), "plain": plain, "kinds": kinds_of,
    "foreign": lambda value: value == object(),
    "enter": lambda value: type(value).__enter__(value),
    "aenter": lambda value: wait_for(type(value).__aenter__(value)),
    "aexit": lambda *of: bool(wait_for(leave(*of, "__aexit__"))),
    "await": wait_for, "aiter": aiter, "anext": anext_of, "itself": lambda value: value,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "issubclass": lambda kind, value: issubclass(value, kind),
    "copy": lambda value: importlib.import_module("copy").copy(value),
    "deepcopy": lambda value: importlib.import_module("copy").deepcopy(value),
}

for place, spec in given["calls"]:
    try:
        what, key, name, args, options = json.loads(spec)
        args, before = [decode(each, revive) for each in args], args
        options = {key: decode(each, revive) for key, each in options.items()}
        if what == "more":
            items, rest = chunk(key, *args)
            result = {"value": {"list": items}, "rest": rest}
        else:
            target = find(key)
            if what == "get":
                value = getattr(target, name)
            else:
                value = OPS[name](target, *args) if what == "op" else target(*args, **options)
            held = what == "make" and made(value)
            result = {"value": held or encode(value, refer)}
            changes = (list, dict, set)
            pairs = zip(args, before)
            after = [encode(now, refer) if type(now) in changes else was for now, was in pairs]
            if after != before:
                result["args"] = after
    except BaseException as error:
        result = told(error)
    say(**result)
os._exit(0)
"""
)
