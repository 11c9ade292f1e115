"""Generates Python code for a template that charges a budget for what it does.

jinja2 compiles a template to Python. `BudgetCodeGenerator` extends jinja2's own generator and
changes it only where a value could become large or a loop could run forever: loops and macros start
with a tick, and operators, slices, comparisons, new lists and all output go through the rendering's
`RenderBudget`. Nothing but the template's own text is computed at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef

FinalizeInfo: TypeAlias = CodeGenerator._FinalizeInfo
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
    """Generates Python code that calls the budget."""

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("budget = context.budget")
        for name in BUDGET_METHODS:
            self.writeline(f"b_{name} = budget.{name}")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        node.body.insert(0, nodes.ExprStmt(_make_python_node("b_tick()"), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_make_python_node("b_tick()"), node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def macro_body(
        self, node: nodes.Macro | nodes.CallBlock, frame: Frame
    ) -> tuple[Frame, MacroRef]:
        node.body.insert(0, nodes.ExprStmt(_make_python_node("b_tick(4)"), lineno=node.lineno))
        return super().macro_body(node, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:  # noqa: N802
        # Output at the top level is charged when the template is rendered
        size = sum(len(_get_literal_text(part) or "") for part in node.nodes)
        if frame.buffer is not None and size:
            self.writeline(f"b_spend({size})")
        super().visit_Output(node, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: FinalizeInfo) -> str:
        text = _get_literal_text(node)
        if text is None:
            raise nodes.Impossible
        return text

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: FinalizeInfo) -> None:
        self.write("b_write(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: FinalizeInfo) -> None:
        self.write(")")

    def _write_operator(self, operator: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"budget.apply_operator({operator!r}, ")
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
        operators = [operand.op for operand in node.ops]
        searches = "in" in operators or "notin" in operators
        # Comparing with a constant is cheap, whatever the other side is
        cheap = len(sides) == 2 and not searches and any(map(_is_constant, sides))
        self.write("(")
        for index, side in enumerate(sides):
            if index:
                self.write(f" {_COMPARISONS[operators[index - 1]]} ")
            if cheap or _is_constant(side):
                self._write_uncharged(side, frame)
            else:
                self._write_wrapped("b_charge_scan(", side, frame)
        self.write(")")

    def _write_uncharged(self, node: nodes.Expr, frame: Frame) -> None:
        """Write a node without charging for a list of constants that only a comparison uses."""
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


def _make_visitor(operator: str) -> Callable[[BudgetCodeGenerator, nodes.BinExpr, Frame], None]:
    def visit(self: BudgetCodeGenerator, node: nodes.BinExpr, frame: Frame) -> None:
        self._write_operator(operator, node, frame)

    return visit


for _name, _operator in zip(
    ("Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"),
    ("-", "*", "/", "//", "%", "**"),
    strict=True,
):
    setattr(BudgetCodeGenerator, f"visit_{_name}", _make_visitor(_operator))

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


def _make_python_node(code: str) -> nodes.InternalName:
    """Make a node for a piece of Python code of ours."""
    node = object.__new__(nodes.InternalName)
    nodes.Node.__init__(node, code)
    return node


def _get_literal_text(node: nodes.Expr) -> str | None:
    """Return the text that a node writes, if it is a constant."""
    if isinstance(node, nodes.TemplateData):
        return node.data
    return node.value if isinstance(node, nodes.Const) and type(node.value) is str else None


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)
