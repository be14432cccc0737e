"""Imports point down, and dangerous things stay out."""

from __future__ import annotations

import ast
import sys
from fnmatch import fnmatch

import pytest

from tests.policy.tree import (
    NATIVE,
    Import,
    all_imports,
    imports_of,
    module_map,
    package_of,
    sources,
)

# Beside numpy, what a package may import from outside, where that is restricted.
OUTSIDE = {"core": {"numpy", "msgspec"}, "contracts": {"numpy", "msgspec", "gguf"}, "config": set()}

TORCH_HOMES = ("octavo.kernels.torch_*", "octavo.kernels.triton*", "octavo.worker.graphs.cuda")

FORBIDDEN_MODULES = {
    "pickle": "data that runs code",
    "marshal": "data that runs code",
    "shelve": "pickle",
    "dill": "pickle",
    "cloudpickle": "pickle",
    "joblib": "pickle",
    "multiprocessing": "pickles across its pipes; start a subprocess that speaks msgpack",
    "transformers": "an extra for tests",
}
FORBIDDEN_CALLS = {
    "eval": "runs data as code",
    "exec": "runs data as code",
    "__import__": "use import_module with a name from a table",
    "yaml.load": "builds objects; use safe_load",
    "os.system": "a shell",
    "os.popen": "a shell",
    "os.fork": "forks threads away",
    "tempfile.mktemp": "a race",
    "torch.load": "pickle",
}
FORBIDDEN_ARGUMENTS = {"shell": "a shell", "allow_pickle": "pickle"}


def violation(imported: Import, layers: dict[str, int]) -> str | None:
    """Why an import breaks the layers, or None."""
    if not imported.target.startswith("octavo"):
        return None
    source, target = package_of(imported.module), package_of(imported.target)
    if source in ("", target):
        return None  # the root package is on top of all; within a package anything goes
    if target == NATIVE:
        return None if source == "kernels" else "only kernels may import the native module"
    if target == "":
        return "nothing may import the root package"
    if {source, target} == {"core", "worker"}:
        return "core and worker meet in contracts/step.py"
    if layers[target] == 0 or layers[target] < layers[source]:
        return None
    return f"layer {layers[source]} may not import layer {layers[target]}"


def test_imports_point_down() -> None:
    wrong = [
        f"{i.module}:{i.line} imports {i.target}: {why}"
        for i in all_imports()
        if (why := violation(i, module_map()))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("octavo.core.x", "from octavo.worker import worker"),
        ("octavo.worker.x", "import octavo.core.scheduler"),
        ("octavo.core.x", "def f():\n    from octavo.executor.base import Executor"),
        ("octavo.kernels.x", "if TYPE_CHECKING:\n    from octavo.models.base import CausalLM"),
        ("octavo.sample.x", "import octavo.worker.worker"),
        ("octavo.models.x", "from octavo import LLM"),
        ("octavo.models.x", "from octavo import _cpu"),
        ("octavo.contracts.x", 'HOME = "octavo.core"'),
        ("octavo.layers.x", 'import_module("octavo.models.base")'),
    ],
)
def test_the_rule_sees_every_kind_of_wrong_import(module: str, code: str) -> None:
    found = list(imports_of(module, ast.parse(code)))
    assert [i for i in found if violation(i, module_map())], code


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("octavo.executor.x", "from octavo.worker import worker"),
        ("octavo.kernels.x", "from octavo import _cpu"),
        ("octavo.engine.x", "from octavo.core.scheduler import Scheduler"),
        ("octavo.config.x", "from octavo.contracts.tensor import DType"),
    ],
)
def test_the_rule_lets_right_imports_be(module: str, code: str) -> None:
    found = list(imports_of(module, ast.parse(code)))
    assert found
    assert not [i for i in found if violation(i, module_map())]


def test_packages_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for i in all_imports():
        source, target = package_of(i.module), package_of(i.target)
        if i.target.startswith("octavo.") and source and source != target and target != NATIVE:
            edges.setdefault(source, set()).add(target)
    done: set[str] = set()

    def visit(package: str, path: tuple[str, ...]) -> None:
        assert package not in path, f"cycle: {' → '.join((*path, package))}"
        if package not in done:
            for target in sorted(edges.get(package, ())):
                visit(target, (*path, package))
            done.add(package)

    for package in sorted(edges):
        visit(package, ())


def test_torch_has_its_places() -> None:
    wrong = [
        f"{i.module}:{i.line} imports {i.target}"
        for i in all_imports()
        if i.target.split(".")[0] in ("torch", "triton")
        and not any(fnmatch(i.module, home) for home in TORCH_HOMES)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", OUTSIDE)
def test_low_packages_stay_light(package: str) -> None:
    allowed = OUTSIDE[package] | sys.stdlib_module_names | {"octavo"}
    wrong = [
        f"{i.module}:{i.line} imports {i.target}"
        for i in all_imports()
        if package_of(i.module) == package and i.target.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


ALLOWED_CALLS = {("octavo.structured.probe", "os.fork")}
"""A process with one thread: tests/structured/test_probe.py counts."""


def dangers(module: str, tree: ast.Module) -> list[str]:
    """Uses of what is forbidden, as "where: what (why)"."""
    found = [
        f"{module}:{i.line}: {i.target} ({FORBIDDEN_MODULES[i.target.split('.')[0]]})"
        for i in imports_of(module, tree)
        if i.target.split(".")[0] in FORBIDDEN_MODULES
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in FORBIDDEN_CALLS and (module, name) not in ALLOWED_CALLS:
            found.append(f"{module}:{node.lineno}: {name}() ({FORBIDDEN_CALLS[name]})")
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg in FORBIDDEN_ARGUMENTS and not off:
                found.append(
                    f"{module}:{node.lineno}: {name}({keyword.arg}=…) "
                    f"({FORBIDDEN_ARGUMENTS[keyword.arg]})"
                )
    return found


def test_nothing_dangerous() -> None:
    wrong = [d for module, tree in sources().items() for d in dangers(module, tree)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import multiprocessing.pool",
        "eval('1')",
        "yaml.load(text)",
        "subprocess.run(line, shell=True)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_dangers_are_seen(code: str) -> None:
    assert dangers("octavo.x", ast.parse(code))
