"""Small wrong turns of a module: one changed operator, number, condition or statement each.

Not touched: docstrings, texts, what stands in a `raise` or an `assert`, annotations, decorators.
"""

import ast
import re
from dataclasses import dataclass
from itertools import pairwise

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_PAIRS = (
    *(("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum")),
    *(("argmin", "argmax"), ("zeros", "ones")),
)
_CALLS = dict([*_PAIRS, *((b, a) for a, b in _PAIRS)])
_SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Mutation:
    """One change of one module."""

    module: str
    """Path below the package."""
    start: int
    stop: int
    """The bytes that are replaced."""
    new: str
    line: int
    name: str
    """Module, the lines as they are and as they become: it outlives changes elsewhere."""
    lines: frozenset[int]
    """A test that reaches the change runs one of these; empty for what runs at import."""

    def apply(self, source: bytes) -> bytes:
        """The changed module."""
        return source[: self.start] + self.new.encode() + source[self.stop :]


def mutations(module: str, source: bytes) -> list[Mutation]:
    """Every change of a module, in the order of its text."""
    reader = _Reader(source)
    reader.body(ast.parse(source).body, inside=False)
    made, seen = [], dict[str, int]()
    for start, stop, new, lines in sorted(reader.found, key=lambda change: change[:3]):
        name = f"{module} | {_shown(source, start, stop, new)}"
        seen[name] = seen.get(name, 0) + 1
        name += f" | {seen[name]}" if seen[name] > 1 else ""
        line = source.count(b"\n", 0, start) + 1
        made.append(Mutation(module, start, stop, new, line, name, lines))
    return made


def _shown(source: bytes, start: int, stop: int, new: str) -> str:
    """The lines before and after, without their layout."""
    low = source.rfind(b"\n", 0, start) + 1
    high = (source + b"\n").find(b"\n", stop)
    before = source[low:high].decode()
    after = source[low:start].decode() + new + source[stop:high].decode()
    return " | ".join(" ".join(text.split()) for text in (before, after))


class _Reader:
    """Walks statements, then what is in them."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
        self.found: list[tuple[int, int, str, frozenset[int]]] = []
        self.lines = frozenset[int]()

    def body(self, statements: list[ast.stmt], inside: bool) -> None:
        for statement in statements:
            self.statement(statement, inside)

    def statement(self, node: ast.stmt, inside: bool) -> None:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or "TYPE_CHECKING" in ast.unparse(getattr(node, "test", ast.Pass())):
            return
        blocks = [getattr(node, name, []) for name in _BODIES]
        inner = [part for block in blocks for part in block]
        last = min((part.lineno for part in inner), default=(node.end_lineno or 0) + 1)
        head = range(node.lineno, max(last, node.lineno + 1))
        self.lines = frozenset(head) if inside else frozenset()
        self.removed(node)
        deeper = inside or isinstance(node, ast.FunctionDef)
        for part in ast.iter_child_nodes(node):
            if part not in inner and not isinstance(node, _SKIPPED):
                self.expression(part, node)
        for part in inner:
            if isinstance(part, ast.stmt):
                self.statement(part, deeper)
            else:
                self.body(part.body, deeper)

    def removed(self, node: ast.stmt) -> None:
        """Statements that can be left out, so that something else breaks than a name."""
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
                self.change(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self.change(node, "pass")
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
                    self.change(node, "pass")
            case ast.Break() | ast.Continue():
                self.change(node, "continue" if isinstance(node, ast.Break) else "break")
            case ast.If() | ast.While():
                self.negated(node.test)

    def expression(self, node: ast.AST, parent: ast.AST) -> None:
        if isinstance(node, _SKIPPED) or self.shown_only(node, parent):
            return
        self.operators(node)
        match node:
            case ast.IfExp(test=test):
                self.negated(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    self.negated(test)
            case ast.UnaryOp(operand=operand):
                self.change(node, f"({self.text(operand)})")
            case ast.Constant():
                self.constant(node, parent)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _CALLS:
                end = self.at(node.func.end_lineno, node.func.end_col_offset)
                self.found.append((end - len(name), end, _CALLS[name], self.lines))
        for part in ast.iter_child_nodes(node):
            self.expression(part, node)

    @staticmethod
    def shown_only(node: ast.AST, parent: ast.AST) -> bool:
        """Annotations and decorators."""
        hidden = [getattr(parent, "annotation", None), getattr(parent, "returns", None)]
        return node in [*hidden, *getattr(parent, "decorator_list", [])]

    def operators(self, node: ast.AST) -> None:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                self.between(left, right, *_OPERATORS[type(op)])
            case ast.AugAssign(target=left, op=op, value=right) if type(op) in _OPERATORS:
                self.between(left, right, *_OPERATORS[type(op)])
            case ast.BoolOp(op=op, values=values):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for left, right in pairwise(values):
                    self.between(left, right, *words)
            case ast.Compare(left=left, ops=ops, comparators=others):
                for one, sign, two in zip([left, *others], ops, others, strict=False):
                    self.between(one, two, *_COMPARED[type(sign)])

    def constant(self, node: ast.Constant, parent: ast.AST) -> None:
        match node.value:
            case bool():
                self.change(node, str(not node.value))
            case int():
                self.change(node, f"({self.text(node)} + 1)")
            case float():
                self.change(node, f"({self.text(node)} * 2)" if node.value else "1.0")
            case bytes():
                self.change(node, repr(node.value + b"X"))
            case str() if isinstance(parent, ast.Compare):
                self.change(node, repr(node.value + "X"))

    def negated(self, test: ast.expr) -> None:
        if not isinstance(test, ast.UnaryOp):  # `not x` becomes x anyway
            self.change(test, f"(not ({self.text(test)}))")

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Change an operator that stands between two parts."""
        start = self.at(left.end_lineno, left.end_col_offset)
        gap = self.source[start : self.at(right.lineno, right.col_offset)].decode()
        place = re.search(r"\s+".join(map(re.escape, old.split())), gap)
        if place:
            low = start + len(gap[: place.start()].encode())
            self.found.append((low, low + len(place[0]), new, self.lines))

    def change(self, node: ast.expr | ast.stmt, new: str) -> None:
        start = self.at(node.lineno, node.col_offset)
        stop = self.at(node.end_lineno, node.end_col_offset)
        self.found.append((start, stop, new, self.lines))

    def text(self, node: ast.expr) -> str:
        start = self.at(node.lineno, node.col_offset)
        return self.source[start : self.at(node.end_lineno, node.end_col_offset)].decode()

    def at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self.starts[line - 1] + column
