"""A run is made of parts: no class is spread over modules, and none leaves gaps for another to fill in."""

import ast
import inspect

from standfast.temporal.workflows.run import handlers
from standfast.temporal.workflows.run.agent_workflows import AgentRun
from standfast.temporal.workflows.run.handlers import RunHandlers
from standfast.temporal.workflows.run.pipeline_workflows import PipelineRun
from unit.temporal.test_temporal_sides import TEMPORAL

CLASSES = [
    node
    for path in sorted((TEMPORAL / "workflows").glob("*.py"))
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef)
]


def test_a_run_inherits_the_names_of_its_handlers_alone() -> None:
    assert AgentRun.__mro__ == (AgentRun, RunHandlers, object)
    assert PipelineRun.__mro__ == (PipelineRun, RunHandlers, object)


def test_a_handler_that_runs_share_is_one_line_and_they_share_no_state() -> None:
    (shared,) = [node for node in ast.parse(inspect.getsource(handlers)).body if isinstance(node, ast.ClassDef)]
    kinds = {ast.FunctionDef, ast.AsyncFunctionDef, ast.AnnAssign, ast.Expr}
    assert {type(node) for node in shared.body} <= kinds
    functions = [node for node in shared.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [node.name for node in functions if len(node.body) > 1 or not node.decorator_list] == []
    assert [node for node in shared.body if isinstance(node, ast.AnnAssign) and node.value is not None] == []


def test_a_part_inherits_from_no_other() -> None:
    ours = {node.name for node in CLASSES} - {"RunHandlers", "AgentRun"}
    assert [node.name for node in CLASSES if {ast.unparse(base) for base in node.bases} & ours] == []
