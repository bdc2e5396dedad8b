"""Imports point one way: dpserve -> service, audit -> training -> mechanisms -> accounting.

research and benchmarks may import everything, and nothing imports them.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "accounting": set(),
    "mechanisms": {"accounting"},
    "training": {"accounting", "mechanisms"},
    "service": {"accounting", "mechanisms", "training"},
    "audit": {"accounting", "mechanisms", "training"},
    "dpserve": {"accounting", "audit", "mechanisms", "service", "training"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        wrong = set(imported(path)) & ({"benchmarks", "research", *ALLOWED} - ALLOWED[package] - {package})
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def aliases(path):
    """The names that a module gives to types of arrays, each with its type."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value).removeprefix("npt.")
            if text.startswith("NDArray[") and text.endswith("]"):
                yield node.targets[0].id, text


def test_types_of_arrays_have_one_name():
    (one, *others) = [ROOT / "accounting" / "arrays.py", *(p for each in ALLOWED for p in (ROOT / each).rglob("*.py"))]
    known = dict(aliases(one))
    assert known["Floats"] == "NDArray[np.float64]"
    for path in others:
        again = [name for name, kind in aliases(path) if kind in known.values()] if path != one else []
        assert not again, f"{path.relative_to(ROOT)}: import {again} from accounting.arrays"


def imported_anywhere(path, modules):
    """The modules of ours that a file imports, within functions, too: not for type checkers alone."""
    module = ast.parse(path.read_text())
    checked = {id(each) for node in module.body if is_for_type_checkers(node) for each in ast.walk(node)}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in whole]
        else:
            continue
        yield from (name for name in names if name in modules and id(node) not in checked)


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_no_module_imports_itself_by_way_of_others():
    """An import within a function is for what is slow or optional, and must not hide a circle."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in (*ALLOWED, "research", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
    }
    order = TopologicalSorter({name: set(imported_anywhere(path, paths)) - {name} for name, path in paths.items()})
    assert len(list(order.static_order())) == len(paths)


FLOORS = ("inputs", "features", "exact", "fitting", "bundles", "pay_once", "kinds", "planning", "export")
"""The folders of training, from the lowest: each imports only what is below it. Modules beside them are above them all,
or below them all where a folder needs them."""

BELOW_ALL = ("devices", "errors", "fields", "onnx_runtime", "regular_files")


def floor_of(module):
    name = module.split(".")[1] if "." in module else ""
    return -1 if name in BELOW_ALL else FLOORS.index(name) if name in FLOORS else len(FLOORS)


def test_the_floors_of_training_import_what_is_below_them():
    """Imports inside functions count, too: they must not hide a circle."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "training").rglob("*.py")
    }
    found = set()
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("training"):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [each if each in paths else node.module for each in whole]
                found |= {(str(path.relative_to(ROOT)), each) for each in targets if floor_of(each) > floor_of(name)}
    assert not found


def test_serving_imports_nothing_heavy():
    """The service of a certified head starts without torch, scikit-learn, optimisers and what few services use."""
    heavy = (
        "torch",
        "sklearn",
        "dp_accounting",
        "opendp",
        "pandas",
        "pyarrow",
        "matplotlib",
        "PIL",
        "rich",
        "websockets",
        "audit",
    )
    heavy += ("scipy.optimize", "scipy.stats", "scipy.sparse", "scipy.linalg", "httpx", "limits", "jwt")
    heavy += ("cryptography.x509", "opentelemetry.sdk.trace")
    program = (
        # From SciPy 1.18 on, what is compiled of scipy.special brings scipy.linalg: no import of ours decides that.
        "import sys, scipy.special;"
        "brought = set(sys.modules);"
        "import dpserve.cli, dpserve.commands.serving, dpserve.service.listener;"
        f"print([name for name in {heavy!r} if name in sys.modules and name not in brought])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
