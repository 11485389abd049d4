"""Expressions of ``derive`` and ``exclude``: a small part of Python that is parsed and interpreted,
never executed.

Allowed are names of settings (with dots for those of a role), numbers, text, ``None True False``
(also ``null true false``), lists, tuples, comparisons, ``in``, ``and or not``, ``+ - * / // %`` on
numbers, and ``a if condition else b``. They mean what they mean in Python.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from orchestrator.base.registry import did_you_mean

MOST_CHARACTERS = 1000
MOST_ELEMENTS = 1000  # of a list or mapping, with those inside it
LARGEST = 2**63
PARTS = ("roles.", "router.")  # what names with dots begin with

_CONSTANTS = {"null": None, "true": True, "false": False}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}


_PLAIN = (str, int, float, type(None))  # values without elements
# a function that computes an expression, or a part of one, from the values of names
Evaluate = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression, the function that computes it, and the names that it reads."""

    text: str
    compute: Evaluate = field(repr=False, compare=False)
    names: frozenset[str] = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value that Python would compute. Raises ValueError with the reason when there is
        none.
        """
        try:
            return _bounded(self.compute(values))
        except (TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
            unset = sorted(name for name in self.names if values.get(name) is None)
            remark = f"; not set here: {', '.join(unset)}" if unset else ""
            raise ValueError(f"{self.text!r} has no value: {error}{remark}") from None


def parse_expression(
    text: str,
    known: Collection[str],
    *,
    any_dots: bool = False,
    unknown: str = "it is neither a setting nor derived",
    meant: Mapping[str, str] = MappingProxyType({}),
) -> Expression:
    """Parse an expression that may read the names ``known``. Raises ValueError with the first
    problem.

    ``any_dots``: any name may have dots, not only settings of roles. ``unknown``: the words for a
    name that resembles none of ``known``. ``meant``: by another name, the known one that is meant.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"an expression of {len(text)} characters is too long ({MOST_CHARACTERS} at most)"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd but harmless text such as "1if x"
            tree = ast.parse(text.strip(), mode="eval").body
        tree = _Dotted(any_dots).visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text!r} is not an expression: {reason}") from None
    try:
        compute = _Compiler(text).compile(tree)
    except RecursionError:
        raise ValueError(f"{text!r} is nested too deeply") from None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = frozenset(node.id for node in nodes if node.id not in _CONSTANTS)
    for name in sorted(names):
        if name not in known:
            guess = did_you_mean(name, known)
            if name in meant:
                guess = f"did you mean {meant[name]!r}?"
            hint = f"; {guess}" if guess else f": {unknown}"
            raise ValueError(f"in {text!r}: unknown field {name!r}{hint}")
    return Expression(text, compute, names)


class _Dotted(ast.NodeTransformer):
    """Makes one name of ``roles.prefill.replicas``; with ``any_dots`` also of ``ttft_ms.p50``."""

    def __init__(self, any_dots: bool) -> None:
        self.any_dots = any_dots

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        text = ast.unparse(node)
        may_have_dots = self.any_dots or text.startswith(PARTS)
        is_name = may_have_dots and text.replace(".", "_").isidentifier()
        return ast.Name(text) if is_name else node


@dataclass(frozen=True, slots=True)
class _Constant:
    """Computes a part of an expression that names nothing, whose value is the same for all
    combinations.
    """

    value: Any

    def __call__(self, values: Mapping[str, Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiles a syntax tree into functions of the values of names."""

    text: str

    def compile(self, node: ast.expr) -> Evaluate:
        """The function for one node. Raises ValueError for what is not allowed.

        Where the node names nothing, its value is computed here, once for all combinations.
        """
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        inner = [self.compile(child) for child in children]
        compute = self._function_of(node, inner)
        is_constant = all(isinstance(part, _Constant) for part in inner)
        if is_constant and not isinstance(node, ast.Name):
            try:
                return _Constant(compute({}))
            except (TypeError, ZeroDivisionError, OverflowError):
                pass  # evaluating the expression raises it again
        return compute

    def _function_of(self, node: ast.expr, inner: Sequence[Evaluate]) -> Evaluate:
        """The function for one node. ``inner``: those of the nodes right below it."""
        match node:
            case ast.Constant(value=value) if _is_plain(value):
                return _Constant(value)
            case ast.Name(id=name):
                return lambda values: values[name] if name in values else _CONSTANTS[name]
            case ast.List():
                return lambda values: [item(values) for item in inner]
            case ast.Tuple():
                return lambda values: tuple(item(values) for item in inner)
            case ast.BoolOp(op=ast.And()):
                return partial(_and, inner)
            case ast.BoolOp(op=ast.Or()):
                return partial(_or, inner)
            case ast.UnaryOp(op=ast.Not()):
                return lambda values: not inner[0](values)
            case ast.UnaryOp(op=sign) if type(sign) in _UNARY:
                return lambda values: _UNARY[type(sign)](_number(inner[0](values)))
            case ast.BinOp(op=operation) if type(operation) in _ARITHMETIC:
                calculate = _ARITHMETIC[type(operation)]
                left, right = inner
                return lambda values: _number(
                    calculate(_number(left(values)), _number(right(values)))
                )
            case ast.Compare(ops=ops, comparators=others) if all(map(_is_comparison, ops, others)):
                return partial(_compare, [_COMPARISONS[type(op)] for op in ops], inner)
            case ast.IfExp():
                test, body, otherwise = inner
                return lambda values: (body if test(values) else otherwise)(values)
        allowed = "names, numbers, comparisons, in, and, or, not, + - * / // %"
        raise ValueError(f"in {self.text!r}: {ast.unparse(node)!r} is not allowed; use {allowed}")


def _elements(value: Any) -> int:
    """The number of values in a value, itself among them; at most MOST_ELEMENTS + 1."""
    count = 0
    waiting = [value]
    while waiting and count <= MOST_ELEMENTS:
        part = waiting.pop()
        count += 1
        if isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, BaseModel):
            waiting.extend(vars(part).values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return count


def _bounded(value: Any) -> Any:
    """The same value. Raises OverflowError for too many elements: lists of lists grow fast."""
    if not isinstance(value, _PLAIN) and _elements(value) > MOST_ELEMENTS:
        raise OverflowError(f"it has more than {MOST_ELEMENTS:,} elements")
    return value


def _is_plain(value: object) -> bool:
    if value is None or isinstance(value, bool | str):
        return True
    return isinstance(value, int | float) and abs(value) < LARGEST


def _is_comparison(op: ast.cmpop, right: ast.expr) -> bool:
    """Whether a comparison is allowed. ``is`` compares only with None, True and False: for anything
    else Python's answer is an accident.
    """
    if not isinstance(op, ast.Is | ast.IsNot):
        return True
    if isinstance(right, ast.Constant):
        return right.value is None or isinstance(right.value, bool)
    return isinstance(right, ast.Name) and right.id in _CONSTANTS


def _and(parts: Sequence[Evaluate], values: Mapping[str, Any]) -> Any:
    """The first value that is false, else the last one."""
    value: Any = True
    for part in parts:
        value = part(values)
        if not value:
            break
    return value


def _or(parts: Sequence[Evaluate], values: Mapping[str, Any]) -> Any:
    """The first value that is true, else the last one."""
    value: Any = False
    for part in parts:
        value = part(values)
        if value:
            break
    return value


def _compare(
    comparisons: Sequence[Callable[[Any, Any], Any]],
    parts: Sequence[Evaluate],
    values: Mapping[str, Any],
) -> Any:
    """A chain of comparisons as in Python: ``a < b < c`` is ``a < b and b < c``."""
    result = True
    left = parts[0](values)
    for compare, part in zip(comparisons, parts[1:], strict=True):
        right = part(values)
        result = compare(left, right)
        if not result:
            break
        left = right
    return result


def _number(value: Any) -> Any:
    """The same value. Raises TypeError or OverflowError unless it is a number of a sane size: text
    times a number could fill the memory.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not abs(value) < LARGEST:
        raise OverflowError("a number becomes too large")
    return value
