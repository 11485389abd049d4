"""Expressions of ``derive`` and ``exclude``: a small part of Python, read as a tree and never executed.

Allowed: names of settings, numbers, text, ``None True False`` (also ``null true false``), lists, tuples, comparisons,
``in``, ``and or not``, ``+ - * / // %`` on numbers, and ``a if condition else b``. They mean what they mean in Python.
"""

from __future__ import annotations

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_CHARACTERS = 1000
MOST_DEPTH = 50
LARGEST = 2**63

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
    ast.Not: operator.not_,
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


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression and the names it reads."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)
    names: frozenset[str]

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Its value, as Python would compute it. Raises ValueError with the reason when there is none."""
        try:
            return _evaluate(self.tree, values)
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            unset = sorted(name for name in self.names if values.get(name) is None)
            why = f"; not set here: {', '.join(unset)}" if unset else ""
            raise ValueError(f"{self.text!r} has no value: {error}{why}") from None


def parse_expression(text: str, known: Collection[str]) -> Expression:
    """Parse and check an expression that may read the names ``known``. Raises ValueError with the first thing wrong."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"an expression of {len(text)} characters is too long ({MOST_CHARACTERS} at most)")
    try:
        with warnings.catch_warnings(action="ignore"):  # such as "1if x": odd, but harmless here
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text!r} is not an expression: {reason}") from None
    _check(tree, text, 0)
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - _CONSTANTS.keys()
    for name in sorted(names):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ": it is no setting and is not derived"
            raise ValueError(f"in {text!r}: unknown field {name!r}{hint}")
    return Expression(text, tree, names)


def _check(node: ast.AST, text: str, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise ValueError(f"{text!r} is nested too deeply")
    if not _allowed(node):
        part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__.lower()
        allowed = "names, numbers, comparisons, in, and, or, not, + - * / // %"
        raise ValueError(f"in {text!r}: {part!r} is not allowed; use {allowed}")
    for child in ast.iter_child_nodes(node):
        _check(child, text, depth + 1)


def _allowed(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            number = isinstance(value, int | float) and abs(value) < LARGEST
            return number or value is None or isinstance(value, bool | str)
        case ast.BinOp(op=op):
            return type(op) in _ARITHMETIC
        case ast.UnaryOp(op=op):
            return type(op) in _UNARY
        case ast.Compare(ops=ops, comparators=right):
            return all(
                type(op) in _COMPARISONS and (not isinstance(op, ast.Is | ast.IsNot) or _is_constant(value))
                for op, value in zip(ops, right, strict=True)
            )
        case _:
            kinds = ast.Name | ast.List | ast.Tuple | ast.BoolOp | ast.IfExp | ast.operator | ast.unaryop | ast.cmpop
            return isinstance(node, kinds | ast.boolop | ast.expr_context)


def _is_constant(node: ast.expr) -> bool:
    """``is`` compares with None, True and False only: for anything else Python's answer is an accident."""
    if isinstance(node, ast.Name):
        return node.id in _CONSTANTS
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name] if name in values else _CONSTANTS[name]
        case ast.List(elts=items):
            return [_evaluate(item, values) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item, values) for item in items)
        case ast.BoolOp(op=op, values=parts):
            return _boolean(isinstance(op, ast.And), parts, values)
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, values)
            return _UNARY[type(op)](value if isinstance(op, ast.Not) else _number(value))
        case ast.BinOp(left=left, op=op, right=right):
            return _number(_ARITHMETIC[type(op)](_number(_evaluate(left, values)), _number(_evaluate(right, values))))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare(_evaluate(left, values), ops, comparators, values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, values) else orelse, values)
    raise TypeError(f"{ast.unparse(node)!r} is not allowed")


def _boolean(is_and: bool, parts: list[ast.expr], values: Mapping[str, Any]) -> Any:
    value: Any = is_and
    for part in parts:
        value = _evaluate(part, values)
        if bool(value) != is_and:
            break
    return value


def _compare(left: Any, ops: list[ast.cmpop], comparators: list[ast.expr], values: Mapping[str, Any]) -> Any:
    result: Any = True
    for op, comparator in zip(ops, comparators, strict=True):
        right = _evaluate(comparator, values)
        result = _COMPARISONS[type(op)](left, right)
        if not result:
            break
        left = right
    return result


def _number(value: Any) -> Any:
    """Arithmetic is for numbers of a sane size: text times a number could fill the memory."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not abs(value) < LARGEST:
        raise OverflowError("a number becomes too large")
    return value
