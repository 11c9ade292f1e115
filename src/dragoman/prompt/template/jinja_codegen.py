"""Writes the Python of a template so that it pays for what it does.

A template is compiled to Python by jinja2. `Coder` takes jinja2's own generator and changes only
where something could grow or go on for ever: a loop and a macro start with a tick, and operators,
slices, comparisons, new lists and everything that is written go through the rendering's `Budget`.
Nothing but the template's own text is computed while compiling.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

# methods of the budget that the generated code calls by a short local name
BUDGET_METHODS = (
    "tick",
    "spend",
    "write",
    "concat",
    "add_all",
    "charge_new",
    "charge_scan",
    "take_slice",
)


class BudgetCodeGenerator(CodeGenerator):
    """Writes Python that goes through the budget."""

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("budget = context.budget")
        for name in BUDGET_METHODS:
            self.writeline(f"b_{name} = budget.{name}")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        node.body.insert(0, nodes.ExprStmt(_python_node("b_tick()"), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_python_node("b_tick()"), node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def macro_body(self, node: Any, frame: Frame) -> Any:
        node.body.insert(0, nodes.ExprStmt(_python_node("b_tick(4)"), lineno=node.lineno))
        return super().macro_body(node, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:  # noqa: N802
        # What is written at the top level is counted where it arrives
        size = sum(len(_literal_text(part) or "") for part in node.nodes)
        if frame.buffer is not None and size:
            self.writeline(f"b_spend({size})")
        super().visit_Output(node, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        text = _literal_text(node)
        if text is None:
            raise nodes.Impossible
        return text

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("b_write(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")

    def _write_operator(self, sign: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"budget.apply_operator({sign!r}, ")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        parts = [node.right]
        while isinstance(node.left, nodes.Add):
            node = node.left
            parts.append(node.right)
        self._write_tuple("b_add_all((", [node.left, *reversed(parts)], frame)

    def _write_tuple(self, start: str, parts: list[nodes.Expr], frame: Frame) -> None:
        self.write(start)
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self._write_tuple("b_concat((", node.nodes, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        signs = [operand.op for operand in node.ops]
        searching = "in" in signs or "notin" in signs
        # Next to a constant, comparing is cheap whatever the other side is
        plain = len(sides) == 2 and not searching and any(map(_is_constant, sides))
        self.write("(")
        for at, side in enumerate(sides):
            if at:
                self.write(f" {_COMPARISONS[signs[at - 1]]} ")
            if plain or _is_constant(side):
                self._write_uncharged(side, frame)
            else:
                self._write_wrapped("b_charge_scan(", side, frame)
        self.write(")")

    def _write_uncharged(self, node: nodes.Expr, frame: Frame) -> None:
        """A list of constants that only lives for a comparison costs nothing."""
        if isinstance(node, nodes.List):
            super().visit_List(node, frame)
        elif isinstance(node, nodes.Tuple):
            super().visit_Tuple(node, frame)
        else:
            self.visit(node, frame)

    def _write_wrapped(self, start: str, node: nodes.Node, frame: Frame) -> None:
        self.write(start)
        self.visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("b_charge_new(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("b_charge_new(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("b_charge_new({")
        for item in node.items:
            self._write_wrapped("b_charge_scan(", item.key, frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            self.write("b_take_slice(")
            self.visit(node.node, frame)
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            self._write_tuple(", slice(", [part or nodes.Const(None) for part in ends], frame)
            return
        self.write("environment.getitem(")
        self.visit(node.node, frame)
        self.write(", ")
        if _is_constant(node.arg):
            self.visit(node.arg, frame)
        else:
            self._write_wrapped("b_charge_scan(", node.arg, frame)
        self.write(")")


def _binary_visitor(sign: str) -> Any:
    def visit(self: BudgetCodeGenerator, node: nodes.BinExpr, frame: Frame) -> None:
        self._write_operator(sign, node, frame)

    return visit


for _name, _sign in zip(
    ("Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"),
    ("-", "*", "/", "//", "%", "**"),
    strict=True,
):
    setattr(BudgetCodeGenerator, f"visit_{_name}", _binary_visitor(_sign))

_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


def _python_node(code: str) -> nodes.InternalName:
    """A node that stands for a piece of Python of ours."""
    node = object.__new__(nodes.InternalName)
    nodes.Node.__init__(node, code)
    return node


def _literal_text(node: nodes.Expr) -> str | None:
    """The text that stands in the template for a node, if that is all there is to it."""
    if isinstance(node, nodes.TemplateData):
        return node.data
    return node.value if isinstance(node, nodes.Const) and type(node.value) is str else None


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)
