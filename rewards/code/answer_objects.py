"""Objects of the answer's where asserts look at them: a key, and questions to the other process.

An operator is asked of the answer where that hands it no more than objects of its own. What is data
reaches it only as an argument of a call, an item's key, or an operand of an object that the asserts
made themselves, of a class with a capital letter (`Vector(1, 2) * 3`). So `==` with data is not
asked: an object of the answer's equals no data; nor is `f(2) - 4.0`, which says what is expected.
Two of its objects are as equal as their class says, if it tells the first from another that the
asserts made, and from what is no object of its own. What a text or a set says of itself, as in
`f(2).startswith("a")`, no other object says in its place.
"""

from __future__ import annotations

OBJECTS = r"""
agreed = 0

def agree(*_):  # not for ever, or a `while s.size() > 0` had no end
    global agreed
    agreed += 1
    return agreed < 2000

class Guess:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __hash__(self): return 0
    def __len__(self): return 0
    def __bool__(self): return agree()
    def __float__(self): return 0.0
    def __index__(self): return 0
    def __iter__(self): return iter(())
    def __next__(self): raise StopIteration
    def __exit__(self, *_): return False
    def __await__(self):
        return self
        yield
    def __aiter__(self): return self
    async def __anext__(self): raise StopAsyncIteration
    async def __aenter__(self): return self
    async def __aexit__(self, *_): return False

for name in ("lt", "le", "eq", "ne", "gt", "ge", "contains", "instancecheck", "subclasscheck"):
    setattr(Guess, f"__{name}__", agree)
for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Guess, f"__{name}__", lambda self, *_: self)
    setattr(Guess, f"__r{name}__", lambda self, *_: self)
for name in ("neg", "abs", "round", "getitem", "call", "enter"):
    setattr(Guess, f"__{name}__", lambda self, *_, **__: self)

built, containers, changed, streams, own_kinds = {}, set(), {}, {}, {}
equal, apart = [], set()
VERDICTS = {"startswith", "endswith", *[name for kind in (str, set, float) for name in dir(kind)
                                        if name.startswith("is")]}  # what they are told of data
SAID_OF = ("__name__", "__qualname__", "__dict__", "__wrapped__", "__annotations__")

class Remote:
    __slots__ = ("_key", "_name")
    def __init__(self, key, name=""):
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_name", name or key)
    def __getattr__(self, name):
        if name.startswith("__") and name not in SAID_OF:
            raise AttributeError(name)
        if name in VERDICTS and "." in self._key and self._key not in built:
            raise AttributeError(f"{name} of an object of the answer's")
        return ask("get", self._key, name, (), {})
    def __setattr__(self, name, value):
        op(self, "setattr", name, value)
    def __delattr__(self, name):
        op(self, "delattr", name)
    def __call__(self, *args, **options):
        is_class = self._key.lstrip("_")[:1].isupper()
        value = ask("make" if is_class else "call", self._key, "", args, options)
        if type(value) is Remote and is_class:
            given = [encode(now(each), refer) for each in (*args, *options.values())]
            built[value._key] = json.dumps([self._key, *options, given])
        return value
    def __contains__(self, each):
        if type(each) is Remote or self._key in built:
            return typed(self, "contains", bool, True, each)
        return any(one is each or one == each for one in self)
    def __iter__(self):
        found = op(self, "iter")
        return iter(()) if type(found) is Guess else found
    def __next__(self):
        found = op(self, "next")
        if type(found) is Guess or not found[0]:
            raise StopIteration
        return found[1]
    def __instancecheck__(self, value):
        if isinstance(value, BaseException):
            return isinstance(value, own_kind(self._name))
        return type(value) is Guess or typed(self, "isinstance", bool, True, value)
    def __subclasscheck__(self, kind):
        return type(kind) is Guess or typed(self, "issubclass", bool, True, kind)
    def __enter__(self):
        return entered(self, op(self, "enter"))
    def __exit__(self, kind, error, place):
        return swallows(self, typed(self, "exit", bool, False, kind, str(error)))
    def __await__(self):
        return op(self, "await")
        yield
    def __aiter__(self):
        return op(self, "aiter")
    async def __anext__(self):
        found = op(self, "anext")
        if type(found) is Guess or not found[0]:
            raise StopAsyncIteration
        return found[1]
    async def __aenter__(self):
        return entered(self, op(self, "aenter"))
    async def __aexit__(self, kind, error, place):
        return swallows(self, typed(self, "aexit", bool, False, kind, str(error)))
    __bases__ = property(lambda self: bases(op(self, "kinds")))
    __doc__ = property(lambda self: ask("get", self._key, "__doc__", (), {}))

firm, checks_before = set(), {}

def firmly(it):  # its block asserts, so that no error in it may be swallowed
    if type(it) is Remote:
        firm.add(it._key)
    return it

def entered(it, value):
    checks_before[it._key] = num_checks
    return value

def swallows(it, said):
    return said and it._key not in firm and num_checks == checks_before.get(it._key)

def bases(told):
    told = [each.split(":") for each in told]
    found = [getattr(sys.modules.get(home), name, None) for home, name in told]
    return (*[kind for kind in found if isinstance(kind, type)], object)

def op(remote, name, *args):
    return ask("op", remote._key, name, args, {})

def typed(remote, name, kind, guess, *args):
    value = op(remote, name, *args)
    if type(value) is Guess:
        return agree() if guess is True else guess
    if not isinstance(value, kind):
        raise TypeError(f"{name} gives a {type(value).__name__}")
    return value

class TooEqual(AssertionError):
    pass

def note_equality(one, other):  # a class that is equal to all it meets would pass
    equal.append((one, other))
    note_others(one, other, 3)

def note_others(one, other, most):
    specs = [built.get(each._key) for each in (one, other)]
    others = [Remote(key) for spec, key in {spec: key for key, spec in built.items()}.items()
              if spec not in specs]
    found = [is_equal(one, "eq", each) for each in others[:most]]
    if not all(found):
        apart.add(one._key)
    return not found

def check_equality():
    for one, other in equal:
        is_alone = one._key not in apart and note_others(one, other, 9)
        if is_equal(one, "foreign") or (one._key not in apart and not is_alone):
            del outcomes[:]
            raise TooEqual("an object of its own equals all others")

def is_equal(one, *asked):
    try:
        value = op(one, *asked)
        return type(value) is not Guess and value is True
    except Exception:
        return False

def comparing(name):
    def compared(self, other):
        is_equality = name in ("eq", "ne")
        if type(other) is Guess:
            return True
        if type(other) is Remote:
            if is_equality and self._key == other._key:
                return name == "eq"
            found = typed(self, name, bool, True, other)
            if name == "eq" and found:
                note_equality(self, other)
            return found
        if "." not in self._key:  # a constant, e.g. `LIMIT`
            value = op(self, "itself")
            if type(value) is not Remote:
                return type(value) is Guess or getattr(operator, name)(value, other)
        if is_equality and self._key in containers and isinstance(other, (list, dict, set)):
            held = op(self, "plain")
            return type(held) is Guess or (held == other) is (name == "eq")
        if is_equality:
            return name == "ne"
        return op(self, name, other) if self._key in built else NotImplemented
    return compared

def combining(name):
    def combined(self, other, *more):
        if type(other) is Guess:
            return other
        is_asked = type(other) is Remote or self._key in built
        return op(self, name, other, *more) if is_asked else NotImplemented
    return combined

for name, kind, guess in (
    ("len", int, 0), ("bool", bool, True), ("str", str, ""), ("repr", str, ""), ("hash", int, 0),
    ("int", int, 0), ("float", (int, float), 0.0), ("index", int, 0), ("format", str, ""),
):
    setattr(Remote, f"__{name}__", lambda self, *args, of=(name, kind, guess): typed(
        self, *of, *args))
for name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(Remote, f"__{name}__", comparing(name))
for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
):
    setattr(Remote, f"__{name}__", combining(name))
    setattr(Remote, f"__r{name}__", combining(f"r{name}"))
Remote.__divmod__ = combining("divmod")
for name in (
    "neg", "pos", "invert", "abs", "round", "getitem", "setitem", "delitem", "copy", "reversed",
):
    setattr(Remote, f"__{name}__", lambda self, *args, name=name: op(self, name, *args))
Remote.__deepcopy__ = lambda self, _: op(self, "deepcopy")

class Member:  # of an Enum
    def __init__(self, key, name, value):
        self._key, self.name, self.value = key, name, value
    def __eq__(self, other):
        return type(other) is Guess or (is_own(other) and self._key == other._key)
    def __hash__(self):
        return hash(self.name)
    def __repr__(self):
        return f"<{self.name}: {self.value!r}>"
    def __getattr__(self, name):
        return of_own(self, name)

members, remotes, tuples = {}, {}, {}

def member(key, mixed, name, value):
    if key not in members:
        kind = type(value) if mixed and type(value) in (int, str) else None
        made = kind and type("Member", (kind,), {"__getattr__": of_own})(value)
        members[key] = made if kind else Member(key, name, value)
        vars(members[key]).update(_key=key, name=name, value=value)
    return members[key]

def named(key, kind, fields, held):
    if (kind, *fields) not in tuples:
        made = importlib.import_module("collections").namedtuple(kind, fields)
        tuples[kind, *fields] = type(kind, (made,), {"__getattr__": of_own})
    value = tuples[kind, *fields](*[decode(each, revive) for each in held])
    value._key = key
    return value

def is_own(value):
    return type(value) is not Remote and "_key" in getattr(value, "__dict__", ())

def revive(kind, held):
    if kind in ("object", "container"):
        if kind == "container":
            containers.add(held)
        return remotes.setdefault(held, Remote(held))
    if kind == "class":
        return remotes.setdefault(held[0], Remote(*held))
    if kind == "named":
        return named(*held)
    if kind == "member":
        return member(*held[:3], decode(held[3], revive))
    if kind != "stream":
        raise ValueError(f"a value of the kind {kind!r:.40}")
    made = stream(*held)
    streams[id(made)] = held[0], made
    return made

def stream(key, items, rest):
    count = 0
    while True:
        for each in items:
            yield decode(each, revive)
        count += len(items)
        if isinstance(rest, dict):
            raise error_of(rest)
        if rest != "more":
            return
        if count >= MOST:
            raise OverflowError(f"it goes on after {count} items")
        told = answered("more", key, "", (min(10 * count, MOST - count),), {})
        if told is None:
            return
        items, rest = told["value"]["list"], told["rest"]

def refer(value):
    if type(value) is Guess:
        raise TypeError("a guess is handed to the answer")
    if type(value) is Remote or is_own(value):
        return {"object": value._key}
    if id(value) in streams:
        return {"object": streams[id(value)][0]}
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if callable(value) and isinstance(home, str) and "<" not in name:
        if home.partition(".")[0] in sys.stdlib_module_names and name:
            return {"function": [home, name]}
    if not isinstance(value, BaseException):
        stop(f"a {type(value).__name__} of theirs cannot be handed to the answer")
    raise TypeError("an exception cannot be handed to the answer")

def now(value):  # as a call left it that gave a value as well
    held = changed.get(id(value))
    return held[1] if held else value

def answered(what, key, name, args, options):
    options = {key: encode(now(each), refer) for key, each in options.items()}
    spec = json.dumps([what, key, name, [encode(now(each), refer) for each in args], options])
    mine, told = calls[-1], known[len(calls) - 1] if len(calls) <= len(known) else []
    mine.append(spec)
    if len(mine) > len(told) or told[len(mine) - 1][0] != spec:
        del told[len(mine) - 1 :]  # asked on a guess
        missing.append(spec)
        return None
    result = json.loads(told[len(mine) - 1][1])
    if "error" in result:
        raise error_of(result)
    return result

def ask(what, key, name, args, options):
    result = answered(what, key, name, args, options)
    if result is None:
        return Guess()
    value = decode(result["value"], revive)
    for mine, after in zip(args, result.get("args", ())):
        if type(mine) not in (list, dict, set):
            continue
        after = decode(after, revive)
        if type(after) is not type(mine):
            continue
        if value is not None:
            changed[id(mine)] = mine, after
            continue
        changed.pop(id(mine), None)
        mine.clear()
        (mine.extend if type(mine) is list else mine.update)(after)
    return value

def error_of(result):
    kind = raised_kind(result["error"])
    try:
        failed = kind.__new__(kind)
    except TypeError:  # it is made with arguments
        failed = type(kind.__name__, (Exception,), {})()
    failed.args = tuple(decode(each, lambda _, held: str(held)) for each in result.get("of", ()))
    if str(failed) != result.get("said"):
        failed.args = (str(result.get("said")),)
    if "key" in result:
        failed._key = result["key"]
    return failed

def of_own(self, name):
    if name.startswith("_") or "_key" not in vars(self):
        raise AttributeError(name)
    return ask("get", self._key, name, (), {})

def own_kind(name):
    if name not in own_kinds:
        own_kinds[name] = type(name.rpartition(".")[2], (Exception,), {"__getattr__": of_own})
    return own_kinds[name]

def error_kind(kinds):  # by its name, as the answer may make any class of its own one that is known
    if isinstance(kinds, tuple):
        return tuple(map(error_kind, kinds))
    if type(kinds) is Guess:
        return Exception
    return own_kind(kinds._name) if type(kinds) is Remote else kinds

def raised_kind(told):
    named = [str(each).partition(":") for each in told[:20]] if isinstance(told, list) else []
    own = [own_kind(name) for module, _, name in named if module == "answer"]
    for place, (module, _, name) in enumerate(named):
        is_ours = module.partition(".")[0] in ("unittest", "pytest")  # it would say: skipped
        kind = getattr(None if is_ours else sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            if issubclass(kind, StopIteration):  # it would end an `all(map(...))`
                kind, place = Exception, 1
            return type(named[0][2], (*own, kind), {}) if place else kind
    return type(named[0][2] if named else "NoValue", (*own, Exception), {})
"""
