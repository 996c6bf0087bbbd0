"""Specialize: make a function faster by evaluating its checks once, not in every iteration.

An attribute is settled if its value does not change during a pass. `specialize` reads the source of a plain function and
returns an equivalent, faster function:

- A settled attribute, such as `machine.clocks`, is read once and becomes a local variable.
- If the condition of a branch is settled, only the statements that apply are kept.
- A call to an inlined method is replaced with the body of the method.

The plain function remains the reference. If its source is not available, it runs as written. Line numbers do not change, so
tracebacks, breakpoints and profilers show the plain function.
"""

from __future__ import annotations

import ast
import linecache
import operator
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from itertools import takewhile
from operator import attrgetter
from textwrap import dedent
from types import CodeType
from typing import Any, NamedTuple, cast

CONSTANTS = (type(None), bool, int)
OBJECT = object()  # stands for any settled value that is not a constant
MARK = "@"  # prefix of a temporary name, which contains the path of a settled object
OPERATORS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def settled_values(paths: Iterable[str], **owners: Any) -> dict[str, Any]:
    """Map paths such as "pass_.now" to their current values. `owners` contains the objects at which the paths start."""
    return {path: attrgetter(rest)(owners[first]) for path in paths for first, _, rest in [path.partition(".")]}


def specialize(function: Callable[..., Any], settled: Mapping[str, Any], inlined: Mapping[str, Callable[..., Any]]) -> Plan:
    """Return a plan that specializes a function for settled values and inlined methods, both given by path.

    If a settled value is None, a bool or an integer, branches that depend on it are resolved in the plan. Any other value is
    bound when the plan is used, so that runs with different objects share a plan.
    """
    facts = tuple((path, value if isinstance(value, CONSTANTS) else OBJECT) for path, value in settled.items())
    kinds = tuple(type(value) for _, value in facts)  # part of the cache key, because True equals 1
    try:
        return _plan(function, facts, kinds, tuple(inlined.items()))
    except OSError:  # no source code, as in some bundled applications
        return Plan(function, lambda: function, (), {}, None)


class Plan(NamedTuple):
    """A specialized function that is not bound to its objects yet."""

    function: Callable[..., Any]
    bind: Callable[..., Any]
    objects: tuple[str, ...]
    globals: Mapping[str, Any]  # the globals that inlined methods use from other modules
    tree: ast.FunctionDef | None

    def bound(self, settled: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the specialized function. It has the same parameters as the plain function."""
        result: Callable[..., Any] = self.bind(*(settled[path] for path in self.objects), *self.globals.values())
        return result

    def source(self) -> str:
        """Return the source of the function, preceded by the assignments that run once."""
        if self.tree is None:
            return f"# no source: {self.function.__qualname__} runs as written"
        tree, count = deepcopy(self.tree), len(self.objects) + len(self.globals)
        first = len(tree.args.args) - count
        names = [argument.arg for argument in tree.args.args[first:]]
        del tree.args.args[first:], tree.args.defaults[len(tree.args.defaults) - count :]
        bound = [f"{name} = {path}" for name, path in zip(names, self.objects, strict=False)]
        return "\n".join([*bound, ast.unparse(tree)])


@cache
def _plan(function: Any, facts: Any, kinds: Any, inlined: tuple[tuple[str, Any], ...]) -> Plan:
    work = _Specializer(dict(facts), dict(inlined))
    tree = work.function(function)
    objects = _name_objects(tree)
    bound = [*objects.values(), *work.globals]
    tree.args.args += [ast.arg(name) for name in bound]  # a parameter is faster than a closure variable
    tree.args.defaults += [ast.Name(name, ast.Load()) for name in bound]
    bind = ast.parse(f"def bind({', '.join(bound)}):\n    return {tree.name}").body[0]
    assert isinstance(bind, ast.FunctionDef)
    bind.body.insert(0, tree)
    module = ast.fix_missing_locations(ast.Module([bind], []))
    made: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, made)
    return Plan(function, made["bind"], tuple(objects), work.globals, tree)


def _name_objects(tree: ast.FunctionDef) -> dict[str, str]:
    """Give each settled object in a function an unused name. Return the names by path."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    taken = {argument.arg for argument in tree.args.args} | {node.id for node in nodes}
    named: dict[str, str] = {}
    for node in nodes:
        if node.id.startswith(MARK):
            path = node.id.removeprefix(MARK)
            if path not in named:
                parts = [part.strip("_") for part in path.split(".")]
                choices = ("_".join(parts[-number:]) for number in range(1, len(parts) + 1))
                named[path] = next(name for name in choices if name not in taken)
                taken.add(named[path])
            node.id = named[path]
    return named


def _tree_of(function: Any) -> ast.FunctionDef:
    """Parse a function into a new syntax tree. Raise OSError if its source is not available."""
    tree = ast.parse(_text_of(function.__code__)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    tree.returns = None
    for argument in tree.args.args:
        argument.annotation = None
    return tree


@cache
def _text_of(code: CodeType) -> str:
    """Return the source of a function without its indentation. Empty lines above it preserve the line numbers.

    `inspect.getsource` could find the source too, but it tokenizes the text in Python, which is much slower.
    """
    lines, first = linecache.getlines(code.co_filename), code.co_firstlineno - 1
    if first >= len(lines) or not lines[first].lstrip().startswith("def "):
        raise OSError(f"the source of {code.co_qualname} is not available")
    width = len(lines[first]) - len(lines[first].lstrip())
    rest = takewhile(lambda line: not line.strip() or line[: width + 1].isspace(), lines[first + 1 :])
    return "\n" * first + dedent("".join([lines[first], *rest]))


class _Specializer(ast.NodeTransformer):
    """Rewrite a function. `globals` contains the global variables that inlined methods use from their own modules."""

    def __init__(self, settled: dict[str, Any], inlined: dict[str, Any]) -> None:
        self.globals: dict[str, Any] = {}
        self._settled, self._inlined = settled, inlined
        self._aliases: dict[str, str] = {}  # maps parameters of inlined methods, and some local variables, to settled paths
        self._stored_once: set[str] = set()
        self._file, self._globals = "", dict[str, Any]()

    def function(self, function: Any) -> ast.FunctionDef:
        tree = _tree_of(function)
        self._file, self._globals = function.__code__.co_filename, function.__globals__
        tree.body = self._body_of(function, tree)
        return tree

    def _body_of(self, function: Any, tree: ast.FunctionDef) -> list[ast.stmt]:
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        for name in {node.id for node in names} & function.__globals__.keys():
            value = function.__globals__[name]
            if self._globals.get(name) is not value:
                assert name not in self._globals, name
                assert self.globals.setdefault(name, value) is value, name
        stored = [node.id for node in names if isinstance(node.ctx, ast.Store)]
        self._stored_once = {name for name in stored if stored.count(name) == 1}
        return self._block(tree.body)

    def _block(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        return self._visited(statements) or [ast.Pass()]

    def _visited(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            visited = self.visit(statement)
            result += visited if isinstance(visited, list) else [visited]
        return result

    # Paths

    def _path(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            path = self._path(node.value)
            return None if path is None else f"{path}.{node.attr}"
        return None

    def _is_settled(self, node: ast.expr) -> bool:
        return self._path(node) in self._settled

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._resolved(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and self._is_settled(node):
            return self._resolved(node)
        node.value = self.visit(node.value)
        return node

    def _resolved(self, node: ast.expr) -> ast.expr:
        path = self._path(node)
        assert path is not None
        if path not in self._settled:
            first, *rest = path.split(".")
            named: ast.expr = ast.copy_location(ast.Name(first, ast.Load()), node)
            for name in rest:
                named = ast.copy_location(ast.Attribute(named, name, ast.Load()), node)
            return named
        value = self._settled[path]
        return ast.copy_location(ast.Name(MARK + path, ast.Load()) if value is OBJECT else ast.Constant(value), node)

    # Statements

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        left = [pair for pair in pairs if len(node.targets) > 1 or not self._is_alias(*pair)]
        for name, path in pairs:
            if (name, path) not in left:
                assert isinstance(name, ast.Name)
                self._aliases[name.id] = cast(str, self._path(path))
        if not left:
            return []
        if len(left) != len(pairs):
            targets, values = (list(part) for part in zip(*left, strict=True))
            is_one = len(left) == 1
            node.targets = targets if is_one else [ast.copy_location(ast.Tuple(targets, ast.Store()), target)]
            node.value = values[0] if is_one else ast.copy_location(ast.Tuple(values, ast.Load()), value)
        return self.generic_visit(node)

    def _is_alias(self, target: ast.expr, value: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id in self._stored_once and self._is_settled(value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return []
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        path = self._path(call.func) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and path in self._inlined and not call.keywords:
            body = self._inline(call, self._inlined[path])
            if not any(isinstance(inside, ast.Return) for statement in body for inside in ast.walk(statement)):
                return body
        return self.generic_visit(node)

    def _inline(self, call: ast.Call, method: Any) -> list[ast.stmt]:
        """Return the body of a method, to replace a call to it."""
        tree, outer, once = _tree_of(method), self._aliases, self._stored_once
        parameters = [argument.arg for argument in tree.args.args]
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        result: list[ast.stmt] = []
        aliases: dict[str, str] = {}
        for name, value in zip(parameters, (*receiver, *call.args), strict=True):
            path = self._path(value)
            if path is not None and (isinstance(value, ast.Name) or path in self._settled):
                aliases[name] = path
            else:
                result.append(ast.Assign([ast.Name(name, ast.Store())], self.visit(deepcopy(value))))
        self._aliases = aliases
        result += self._body_of(method, tree)
        self._aliases, self._stored_once = outer, once
        if method.__code__.co_filename != self._file:
            for inside in (inside for statement in result for inside in ast.walk(statement)):
                ast.copy_location(inside, call)
        return [ast.copy_location(statement, call) if not hasattr(statement, "lineno") else statement for statement in result]

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        if isinstance(node.test, ast.Constant):
            return self._visited(node.body if node.test.value else node.orelse)
        node.body, node.orelse = self._block(node.body), self._visited(node.orelse)
        return node

    def _visit_block(self, node: Any) -> Any:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if statements:
                setattr(node, field, self._block(statements))
        for field in ("test", "iter", "items", "handlers"):
            found = getattr(node, field, None)
            if isinstance(found, list):
                setattr(node, field, [self.visit(one) for one in found])
            elif found is not None:
                setattr(node, field, self.visit(found))
        return node

    visit_While = visit_For = visit_Try = visit_With = visit_ExceptHandler = _visit_block  # noqa: N815

    # Conditions

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.visit(node.test)
        if isinstance(node.test, ast.Constant):
            return cast(ast.expr, self.visit(node.body if node.test.value else node.orelse))
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        decides = isinstance(node.op, ast.Or)  # `or` ends at the first true value, `and` at the first false value
        left: list[ast.expr] = []
        for number, value in enumerate(map(self.visit, node.values), 1):
            if not isinstance(value, ast.Constant) or number == len(node.values):
                left.append(value)
            elif bool(value.value) is decides:
                left.append(value)
                break
        node.values = left
        return node if len(left) > 1 else left[0]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.copy_location(ast.Constant(not node.operand.value), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        settled = self._settled.get(self._path(node.left) or "", node)
        node.left, node.comparators = self.visit(node.left), [self.visit(other) for other in node.comparators]
        compared, right = node.ops[0], node.comparators[0]
        if len(node.ops) == 1 and isinstance(right, ast.Constant) and settled is not node:
            if isinstance(compared, ast.Is | ast.IsNot) and right.value is None:
                return ast.copy_location(ast.Constant((settled is None) is isinstance(compared, ast.Is)), node)
            if settled is not OBJECT and type(compared) in OPERATORS:
                return ast.copy_location(ast.Constant(OPERATORS[type(compared)](settled, right.value)), node)
        return node
