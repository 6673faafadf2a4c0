"""The shape of the code: what may import what, what is exported, which names are persisted."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import standfast

LIBRARY = Path(standfast.__file__).parent
ORDER = [
    ["durations"],
    ["errors"],
    ["messages"],
    ["checkpoints"],
    ["tools"],
    ["agents"],
    ["pipelines"],
    ["agent_loop"],
    ["pipeline_loop"],
    ["events"],
    ["extras", "time_limits", "tls"],
    ["llm", "stores"],
    ["mcp"],
    ["runtime"],
    ["notices"],
    ["local", "temporal"],
    ["effects"],
    ["integrations"],
    ["exports"],
    ["testing", "web"],
    ["cli"],
]
NO_IO = {
    "durations",
    "errors",
    "messages",
    "checkpoints",
    "tools",
    "agents",
    "pipelines",
    "agent_loop",
    "pipeline_loop",
    "events",
}
FORBIDDEN_WITHOUT_IO = {
    "asyncio", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "sqlite3",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
MODULES = sorted(path for path in LIBRARY.rglob("*.py") if path.parent != LIBRARY or not path.stem.startswith("__"))
PACKAGES = [
    "standfast",
    "standfast.stores",
    "standfast.llm",
    "standfast.pipelines",
    "standfast.pipeline_loop",
    "standfast.local",
    "standfast.effects",
    "standfast.temporal",
    "standfast.testing",
    "standfast.web",
    "standfast.cli",
]
PUBLIC = {
    "standfast": [
        "Agent", "AgentContext", "AgentIdentity", "AgentStore", "Approval", "CancelRequested", "Checkpoint",
        "CheckpointReached", "Citation", "ContextCompression", "Decision", "DefinitionError", "Diff",
        "DiminishingReturns",
        "Duration", "Event", "GateDecided", "GateEscalated", "GateOpened", "GateReminded", "Guardrail",
        "Happened", "HostedCall", "HostedTool", "Image", "InputError", "InterruptError",
        "InterruptedResponse", "LLMResponse", "Loop", "Markdown", "MemoryStoreNotDurableError", "Message",
        "MessageAdded", "MessageReceived", "ModelError", "ModelFailed", "ModelRetried", "NotConfirmedError",
        "NotHappened", "PendingApproval", "Pipeline", "PipelineEvent", "PipelineResult", "Question", "QuestionAsked",
        "Reasoning", "ReasoningDelta", "Remember", "RetryPolicy", "RetryableError", "RunEnded", "RunReset", "RunResult",
        "RunStarted", "RunStatus", "SessionAccessDeniedError", "SessionConflictError", "SessionNotFoundError",
        "SessionStoreError",
        "StandfastError", "StatusChanged", "Step", "StepCompleted", "StepContext", "StepFailed", "StepResult",
        "StepStarted", "StoreBehindError", "StoreError", "Table", "TerminalError", "TextDelta", "TokenBudget", "Tool",
        "ToolCall", "ToolContext", "ToolDurabilityError", "ToolEnded", "ToolLost", "ToolRetried", "ToolStarted",
        "Tripped", "TurnEnded", "TurnStarted", "Usage", "assert_complete", "d1_store", "event_json", "hosted",
        "is_interrupted",
        "memory_store", "pipeline", "postgres_store", "read_event", "resume", "run", "run_pipeline", "run_streaming",
        "sqlite_store", "tool",
    ],
    "standfast.llm": [
        "LLM", "AnswerLimits", "AnthropicMessages", "LLMAdapter", "OpenAICompatible", "OpenAIResponses", "Price",
        "StreamingLLMAdapter", "ToolDescription", "adapter_for", "create_adapter", "pydantic_ai_model",
        "tools_to_descriptions",
    ],
    "standfast.mcp": ["MCPToolset", "OAuth", "login", "mcp_prompt", "mcp_server", "mcp_tools"],
    "standfast.stores": [
        "AgentStore", "Append", "AtWork", "Board", "D1Binding", "D1Store", "DecisionRecord", "Deletion", "Dropped",
        "DurableStore", "Ledger", "LedgerEntry", "MemoryStore", "Noted", "NotedRun", "PartialAnswer", "PartialAnswers",
        "PartialNews", "PostgresStore", "RunningCall", "SQLiteStore", "Session", "ShownWait", "StandingApproval",
        "StandingApprovals", "StandingFilter", "Wait", "WaitFilter", "WaitPlace", "Waits", "Workers", "d1_store",
        "memory_store", "open_store", "postgres_store", "session_key_of", "sqlite_store",
    ],
    "standfast.effects": [
        "Block", "Effect", "EffectFailedError", "Happened", "NotHappened", "ToolDurabilityError", "effect",
    ],
    "standfast.temporal": [
        "ApprovalLinks", "ApprovalResult", "DevServer", "OnRecord", "Run", "SlackButtons", "StandfastClient",
        "StandfastPlugin", "TeamsButtons", "UserClient", "Webhook", "approval", "connect", "dev_server",
        "execute_effect",
        "load_arguments", "load_shown", "start_agent", "start_pipeline",
    ],
    "standfast.testing": [
        "CrashReport", "CrashedRun", "DevServer", "Fault", "ModelCall", "ModelServer", "Reply", "Request",
        "ScriptedModel", "SimulatedCrash", "child_process", "crash_after_tool_results", "crash_everywhere",
        "dev_server", "store_suite", "time_skipping_server", "until_stopped",
    ],
    "standfast.web": [
        "Access", "Person", "SlackActions", "TeamsActions", "check_listening", "create_app", "create_mcp_app",
        "serve_mcp_stdio",
    ],
}  # fmt: skip
ADAPTERS = {  # of frameworks that this environment does not have
    "standfast.integrations.agent_framework": ["AtMostOnce"],
    "standfast.integrations.claude_agent_sdk": ["guarded"],
    "standfast.integrations.google_adk": ["AtMostOnce"],
    "standfast.integrations.openai_agents": ["as_agent", "guarded", "guarded_activity"],
    "standfast.integrations.langchain": ["AtMostOnce", "as_agent"],
    "standfast.integrations.pydantic_ai": ["StandfastDurability", "as_agent", "guarded"],
    "standfast.integrations.strands": ["AtMostOnce"],
}


def part_of(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(LIBRARY))


def test_a_module_imports_only_what_stands_to_its_left() -> None:
    wrong = {}
    for path in MODULES:
        part = part_of(path)
        rank = next(index for index, parts in enumerate(ORDER) if part in parts)
        allowed = {name for parts in ORDER[:rank] for name in parts} | {part}
        used = {name.split(".")[1] for name in imports_of(path) if name.startswith("standfast.")}
        if used - allowed:
            wrong[name_of(path)] = used - allowed
    assert wrong == {}


def test_what_decides_has_no_clock_no_chance_no_files_and_no_loop() -> None:
    wrong = {}
    for path in MODULES:
        if part_of(path) in NO_IO:
            found = imports_of(path) & FORBIDDEN_WITHOUT_IO
            found |= set(re.findall(r"\.(now|utcnow|today)\(", path.read_text()))  # a time is data, the time now is not
            if found:
                wrong[name_of(path)] = found
    assert wrong == {}


def test_time_is_limited_in_one_way() -> None:
    others = [path for path in MODULES if "asyncio.timeout" in path.read_text()]
    assert [path.name for path in others] == ["time_limits.py"]


def test_a_module_has_at_most_700_lines_and_says_what_it_is_for() -> None:
    texts = {name_of(path): path.read_text() for path in MODULES}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 700] == []
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []


def test_nine_modules_of_ten_have_at_most_500_lines() -> None:
    lengths = sorted(len(path.read_text().splitlines()) for path in MODULES)
    assert lengths[len(lengths) * 9 // 10 - 1] <= 500


def test_a_module_says_in_one_line_what_it_does_or_is_and_does_not_begin_with_what_how_where_or_who() -> None:
    firsts = {
        name_of(path): (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0] for path in MODULES
    }
    assert [name for name, first in firsts.items() if "\n" in first] == []
    asks = re.compile(r"(What|How|Where|Who|Whose|Whom|Why|When|Which|Whether)\b")
    assert {name: first for name, first in firsts.items() if asks.match(first)} == {}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_every_name_in_it_exists(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__, key=lambda item: (not item.isupper(), item[0].islower(), item))
    assert [item for item in module.__all__ if not hasattr(module, item)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_what_the_library_gives_out_is_a_decision(name: str) -> None:
    assert importlib.import_module(name).__all__ == PUBLIC[name]


def test_the_library_says_which_of_its_modules_are_public() -> None:
    text = str(standfast.__doc__).partition("All other modules")[0]
    assert set(re.findall(r"`(standfast[.a-z]*)`", text)) == PUBLIC.keys() | {"standfast.integrations"}


@pytest.mark.parametrize("path", sorted((LIBRARY.parent / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_documents_import_public_names_only(path: Path) -> None:
    found = re.findall(r"^ *from (standfast[.a-z_]*) import ([^(\n#]+|\([^)]*\))", path.read_text(), re.MULTILINE)
    names = {(module, name) for module, text in found for name in re.findall(r"\w+", text)}
    public = PUBLIC | ADAPTERS
    assert [(module, name) for module, name in names if name not in public.get(module, [])] == []


def test_what_an_adapter_gives_out_is_a_decision() -> None:
    given = {}
    folder = LIBRARY / "integrations"
    for path in (*folder.glob("[!_]*.py"), *folder.glob("*/__init__.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                name = path.parent.name if path.stem == "__init__" else path.stem
                given[f"standfast.integrations.{name}"] = ast.literal_eval(node.value)
    assert given == ADAPTERS


def test_importing_standfast_loads_no_sdk_and_no_test_tool() -> None:
    code = "import sys; from standfast import *; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & {"anthropic", "openai", "mcp", "temporalio", "httpx", "httpx2", "pytest", "click"}
    code = "import sys, standfast.testing; print({'temporalio', 'pytest', 'httpx'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    code = "import sys; from standfast import *; print('standfast.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_names_of_daily_use_are_loaded_when_they_are_asked_for() -> None:
    code = "import sys, standfast; print('pydantic' in sys.modules, dir(standfast) == sorted(standfast.__all__))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False True\n"
    with pytest.raises(AttributeError, match="module 'standfast' has no attribute 'agent'"):
        standfast.agent  # type: ignore[attr-defined]  # noqa: B018


def test_the_persisted_names_are_pinned() -> None:
    """Stored sessions and exported checkpoints of older versions are read by these names: a change breaks them."""
    from standfast.stores.sqlite.migrations import MIGRATIONS

    fields = {
        model.__name__: sorted(model.model_fields)
        for model in (standfast.Message, standfast.ToolCall, standfast.Usage, standfast.Checkpoint, standfast.Question)
    }
    assert fields == {
        "Message": [
            "agent",
            "by",
            "citations",
            "content",
            "context",
            "cost",
            "hosted",
            "id",
            "images",
            "message_id",
            "model",
            "reasoning",
            "role",
            "status",
            "stop_reason",
            "tool_call_id",
            "tool_calls",
            "tool_name",
            "tripped",
            "unfit",
            "usage",
        ],
        "ToolCall": ["arguments", "id", "name"],
        "Usage": ["cache_write_tokens", "cached_tokens", "cost", "input_tokens", "output_tokens", "reasoning_tokens"],
        "Checkpoint": [
            "exported_from",
            "iterations",
            "messages",
            "pending_tool_use_id",
            "questions",
            "session_id",
            "signature",
            "usage",
        ],
        "Question": ["gate", "held", "question", "tool_call_id", "unknown", "usage"],
    }
    assert sorted(standfast.ToolDurabilityError("t", "c").payload()) == ["error", "kind", "toolCallId", "toolName"]
    assert standfast.ToolDurabilityError.kind == "tool-durability-error"
    assert len(MIGRATIONS) == 14
    assert [line.split()[2] for line in "".join(MIGRATIONS).splitlines() if "CREATE TABLE" in line] == [
        "agent_sessions",
        "agent_messages",
        "tool_ledger",
        "running_calls",
        "model_replies",
        "gate_decisions",
        "partial_answers",
        "partial_answers",  # made again
        "sessions_at_work",
        "workers",
        "store_identity",
        "noted_runs",
        "boards",
        "waits",
        "standing_approvals",
    ]


def test_the_error_codes_are_pinned() -> None:
    errors = importlib.import_module("standfast.errors")
    codes = {
        name: getattr(errors, name).code for name in dir(errors) if name.endswith("Error") and not name.startswith("_")
    }
    assert codes == {
        "DefinitionError": "DEFINITION_ERROR",
        "EffectFailedError": "EFFECT_FAILED",
        "StandfastError": "STANDFAST_ERROR",
        "InputError": "INPUT_ERROR",
        "InterruptError": "INTERRUPT",
        "MemoryStoreNotDurableError": "MEMORY_STORE_NOT_DURABLE",
        "NotConfirmedError": "NOT_CONFIRMED",
        "ModelError": "MODEL_ERROR",
        "RetryableError": "RETRYABLE",
        "SessionAccessDeniedError": "SESSION_ACCESS_DENIED",
        "SessionConflictError": "SESSION_CONFLICT",
        "SessionNotFoundError": "SESSION_NOT_FOUND",
        "SessionStoreError": "SESSION_STORE",
        "StoreBehindError": "STORE_BEHIND",
        "StoreError": "STORE_ERROR",
        "TerminalError": "TERMINAL",
        "ToolDurabilityError": "TOOL_DURABILITY_ERROR",
    }


def test_examples_and_the_application_import_only_what_is_public() -> None:
    root = LIBRARY.parent
    if not (root / "examples").is_dir():
        pytest.skip("only a clone has the examples")
    found = set()
    for path in [
        root / "worker.py",
        *(file for name in ("examples", "workflows", "activities") for file in (root / name).rglob("*.py")),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "standfast":
                public = getattr(importlib.import_module(str(node.module)), "__all__", ())
                if {alias.name for alias in node.names} - set(public):
                    found.add((str(node.module), str(path.relative_to(root))))
    assert found == set()
