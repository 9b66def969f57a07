"""What is changed in asserts before they run apart from the answer.

    assert x              counts as a check, and agrees while a value of the answer's is missing
    except EmptyError     matches what the answer raised by the name of the class
    with f() as x: ...    swallows no error where it asserts
    assert x[:k] == [2]   looks at `x` as a call left it that gave `k`

The last only where the other side of `==` has nothing that the answer gave or was given: it could
else empty `x`, and be right about what is expected of an empty one.
"""

from __future__ import annotations

REWRITES = r"""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
of_module = set()

def called(name, *args):
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])

def rewrite(tree, asked):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            asked = {*asked, *[alias.asname or alias.name for alias in node.names]}
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, *FUNCTIONS)):
            see_changes(scope, asked)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            node.type = called("__error__", node.type)
        elif isinstance(node, ast.Assert):
            agrees = ast.BoolOp(ast.Or(), [node.test, called("__guesses__")])
            node.test = ast.BoolOp(ast.And(), [called("__counts__"), agrees])
        elif isinstance(node, (ast.With, ast.AsyncWith)) and any(map(is_check, ast.walk(node))):
            for item in node.items:
                item.context_expr = called("__firmly__", item.context_expr)
    ast.fix_missing_locations(tree)

def is_check(node):
    called_as = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Assert) or called_as.startswith("assert")

def inside(scope):
    waiting = [scope]
    while waiting:
        node = waiting.pop()
        yield node
        below = ast.iter_child_nodes(node)
        waiting += [each for each in below if not isinstance(each, FUNCTIONS)]

def root(node):
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return getattr(node, "id", "")

def loaded(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

def judged(node):  # what it is compared by; an index of it only says by which part
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return {node.value.id}
    below = set().union(*map(judged, ast.iter_child_nodes(node)))
    return below | ({node.id} if isinstance(node, ast.Name) else set())

def see_changes(scope, asked):
    parameters = {each.arg for each in ast.walk(getattr(scope, "args", scope))
                  if isinstance(each, ast.arg)}
    asked = {*asked, "solution", *parameters & {
        node.func.id for node in inside(scope)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }}
    given, bound, tests = {}, [], []
    for node in inside(scope):
        if isinstance(node, ast.Call) and root(node.func) in asked:
            every = [*node.args, *[each.value for each in node.keywords]]
            for name in [each.id for each in every if isinstance(each, ast.Name)]:
                given[name] = min(node.lineno, given.get(name, node.lineno))
        elif isinstance(node, ast.Call):
            if getattr(node.func, "attr", "").startswith("assert") and len(node.args) > 1:
                tests.append(node.args)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            tests.append(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            bound.append((getattr(node, "targets", None) or [node.target], node.value))
        elif isinstance(node, (ast.For, ast.comprehension)):
            bound.append(([node.target], node.iter))
    answers, before = {*asked, *of_module}, 0
    while len(answers) > before:
        before = len(answers)
        for targets, value in bound:
            used = loaded(value) if value is not None else set()
            line = targets[0].lineno
            if used & answers or any(line >= given[name] for name in used & {*given}):
                answers.update(*map(loaded, targets))
    if isinstance(scope, ast.Module):
        of_module.update(answers, given)
    elsewhere, seen = answers | {*given}, Seen(asked, given)
    for call in [each for each in inside(scope) if isinstance(each, ast.Call)]:
        if root(call.func) in asked:
            call.args = [e if isinstance(e, ast.Name) else seen.visit(e) for e in call.args]
    for test in tests:
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else test
        used = [judged(side) for side in sides[:2]]
        for place in (0, 1):
            if used[place] & {*given} and not used[1 - place] & elsewhere:
                sides[place] = seen.visit(sides[place])
        if isinstance(test, ast.Compare):
            test.left, test.comparators = sides[0], sides[1:]

class Seen(ast.NodeTransformer):
    def __init__(self, asked, given):
        self.asked, self.given = asked, given
    def visit_Call(self, node):
        return node if root(node.func) in self.asked else self.generic_visit(node)
    def visit_Name(self, node):
        return called("__now__", node) if node.id in self.given else node
"""
