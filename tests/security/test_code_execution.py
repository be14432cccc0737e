"""Nothing runs data as code: no pickle, eval, exec, yaml.load, marshal, shell
(CVE-2024-11041, CVE-2025-32444 and their like).

`tests/policy/test_layers.py` keeps them out of the package; here are the other Python files that
are run beside it, and what a running server does.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policy.test_layers import FORBIDDEN_ARGUMENTS, FORBIDDEN_CALLS, FORBIDDEN_MODULES
from tests.policy.tree import ROOT, repository_files

MODULES = FORBIDDEN_MODULES.keys() - {"transformers", "multiprocessing"}
CALLS = FORBIDDEN_CALLS.keys() - {"os.fork", "tempfile.mktemp"}  # wrong for other reasons
OTHERS = [
    path
    for path in repository_files()
    if path.suffix == ".py"
    and path.relative_to(ROOT).parts[0] in ("octavo", "benchmarks", "examples", "scripts", "deploy")
]


def dangers(tree: ast.AST) -> list[str]:
    """What in some code is forbidden."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] if name in CALLS else []
            found += [f"{name}({k.arg}=…)" for k in node.keywords if _is_dangerous(k)]
    return found


def _is_dangerous(keyword: ast.keyword) -> bool:
    is_off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
    return keyword.arg in FORBIDDEN_ARGUMENTS and not is_off


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_runs_data(path: Path) -> None:
    assert not dangers(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from marshal import loads", "import dill as d", "eval(x)", "exec(x)"),
        *("yaml.load(f)", "os.system(c)", "subprocess.run(c, shell=True)", "torch.load(f)"),
        *("np.load(f, allow_pickle=x)",),
    ],
)
def test_the_rule_sees_them(code: str) -> None:
    assert dangers(ast.parse(code))


SERVED = """
import asyncio, sys
from tests.entrypoints.openai.harness import serving

events = []
WATCHED = ("exec", "compile", "pickle.find_class", "marshal.load", "os.system", "os.exec",
           "os.posix_spawn", "subprocess.Popen", "ctypes.dlopen", "cpython.run_file")
BODIES = [
    {"messages": "__import__('os').system('id')"},
    {"messages": [{"role": "user", "content": "SAY:{{ 7 * 7 }} ${7*7} __import__('os')"}]},
    {"messages": [{"role": "user", "content": "SAY:!!python/object/apply:os.system ['id']"}],
     "chat_template_kwargs": {"x": "{{ cycler.__init__.__globals__ }}"}},
    {"messages": [{"role": "user", "content": "SAY:x"}], "stop_regex": "(?P<x>__import__)"},
    {"messages": [{"role": "user", "content": "SAY:x"}], "vllm_xargs": {"x": "cos\\nsystem\\n"}},
    {"messages": [{"role": "user", "content": "SAY:x"}], "stream": True, "logprobs": True},
]

async def main():
    async with serving() as s:
        async def all_of_them():
            for body in BODIES:
                await s.post("/v1/chat/completions", body)
            await s.post("/tokenize", b"\\x80\\x04cos\\nsystem\\n(S'id'\\ntR.")
            await s.get("/metrics")
        await all_of_them()  # what is imported late is imported
        watching.append(True)
        await all_of_them()
        watching.clear()

watching = []
def hook(event, args):
    if watching and event.startswith(WATCHED):
        events.append((event, str(args)[:200]))
sys.addaudithook(hook)
asyncio.run(main())
print(events)
"""


def test_a_server_runs_nothing_that_it_is_sent() -> None:
    """By the interpreter's own audit: no code is compiled or run, no program started."""
    done = subprocess.run(
        [sys.executable, "-c", SERVED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
