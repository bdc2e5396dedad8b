"""One package, whose imports point one way: dpserve -> service, audit -> training -> mechanisms -> accounting.

research and benchmarks may import everything, and nothing imports them.
"""

import ast
import re
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


FACE = "dpserve"
"""The package that all of it is, and the folder of what users import and run. In it the other folders are links."""


def modules(folder, within=""):
    """The modules of a folder by the names that they are imported by."""
    prefix = "" if folder in (FACE, "benchmarks", "research") else f"{FACE}."
    for path in (ROOT / folder / within).rglob("*.py"):
        yield prefix + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


MODULES = {name: path for folder in (*ALLOWED, "research", "benchmarks") for name, path in modules(folder)}


def folder_of(module):
    """The folder at the top of the repository that a module lies in."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    return second if first == FACE and second in ALLOWED else first


def imports(tree):
    """Each import of a module as it is written, in functions too: the node and the names of what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield node, [name if name in MODULES else node.module for name in whole]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        found = {folder_of(name) for _, names in imports(ast.parse(path.read_text())) for name in names}
        wrong = found & ({"benchmarks", "research", *ALLOWED} - ALLOWED[package] - {package})
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_all_of_it_is_one_package():
    """The folders are the package's own by links that hold in any checkout, and there are no others."""
    links = {path.name: path.readlink().as_posix() for path in (ROOT / FACE).iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in ALLOWED if name != FACE}


BARE = re.compile(
    rf"(?<![\w.])(?:from|import)\s+({'|'.join(name for name in ALLOWED if name != FACE)})(?=\.\w|\s+import\b|$)"
)
"""An import of one of the folders by itself, as beside a user's own module of that name: also in a program as text."""


def test_no_folder_is_imported_by_itself():
    """In code, in programs that tests run, and in what pages show: `import training` would be somebody else's."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name.endswith((".py", ".md", ".toml", ".yaml"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if BARE.search(line)
    ]
    assert len(paths) > 100
    assert not found, "\n".join(found)


def test_a_users_modules_of_the_same_names_are_left_alone(tmp_path):
    """A script beside a `training.py`, a `service.py` and so on of its own imports both its own and this package."""
    others = [name for name in ALLOWED if name != FACE]
    for name in others:
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    imported = ["cli", "service.http.app", "training.fit", "audit.estimators", "accounting.ledger", "mechanisms.label"]
    (tmp_path / "script.py").write_text(
        f"import {', '.join(others)}\nimport dpserve\ndpserve.PrivateClassifier, dpserve.Client\n"
        + "".join(f"import dpserve.{name}\n" for name in imported)
        + f"assert all(each.OWN for each in ({', '.join(others)}))\n"
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True)


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


def imported_anywhere(path):
    """The modules of ours that a file imports, within functions, too: not for type checkers alone."""
    module = ast.parse(path.read_text())
    checked = {id(each) for node in module.body if is_for_type_checkers(node) for each in ast.walk(node)}
    for node, names in imports(module):
        yield from (name for name in names if name in MODULES and id(node) not in checked)


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_no_module_imports_itself_by_way_of_others():
    """An import within a function is for what is slow or optional, and must not hide a circle."""
    order = TopologicalSorter({name: set(imported_anywhere(path)) - {name} for name, path in MODULES.items()})
    assert len(list(order.static_order())) == len(MODULES)


FLOORS = ("inputs", "features", "exact", "fitting", "bundles", "pay_once", "kinds", "planning", "export")
"""The folders of training, from the lowest: each imports only what is below it. Modules beside them are above them all,
or below them all where a folder needs them."""

BELOW_ALL = ("devices", "errors", "fields", "onnx_runtime", "options", "regular_files", "watchers")


def floor_of(module):
    name = [*module.split("."), ""][2]
    return -1 if name in BELOW_ALL else FLOORS.index(name) if name in FLOORS else len(FLOORS)


def test_the_floors_of_training_import_what_is_below_them():
    """Imports inside functions count, too: they must not hide a circle."""
    found = set()
    for name, path in modules("training"):
        for _, targets in imports(ast.parse(path.read_text())):
            ours = [each for each in targets if folder_of(each) == "training"]
            found |= {(str(path.relative_to(ROOT)), each) for each in ours if floor_of(each) > floor_of(name)}
    assert not found


def test_trainer_and_estimator_load_nothing_of_the_service():
    """They charge lineages through accounting alone (`accounting/ledger/purchases.py`)."""
    program = (
        "import sys, dpserve.trainer, dpserve.classifier, dpserve.evaluating, dpserve.training.purchases;"
        "print([name for name in sys.modules if name.startswith('dpserve.service')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


def test_commands_charge_through_accounting_alone():
    """Only `dpserve serve` imports what charges for answers, and the list of what leaves, for the types of replies."""
    charging = {"dpserve.service.metered", "dpserve.service.pay_once", "dpserve.service.predictor"}
    for name, path in modules(FACE):
        found = set(imported_anywhere(path)) & charging
        assert name in ("dpserve.serving", "dpserve.disclosures") or not found, (
            f"{path.relative_to(ROOT)} imports {found}"
        )


def test_serving_imports_nothing_heavy():
    """The service of a certified head starts without torch, scikit-learn, optimisers and what few services use.

    Nor do its pages, or its limit on failed tries, before somebody asks for them, or fails.
    """
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
        "dpserve.audit",
    )
    heavy += ("scipy.optimize", "scipy.stats", "scipy.sparse", "scipy.linalg", "httpx", "limits", "jwt")
    heavy += ("cryptography.x509", "opentelemetry.sdk.trace")
    heavy += ("scipy.special", "fastapi_offline")
    program = (
        "import sys, dpserve.cli, dpserve.commands.serving, dpserve.serving, dpserve.service.listener, fastapi;"
        "from dpserve.service.http.failed_tries import FailedTries; FailedTries(1);"
        "from dpserve.service.page.assets import add_documentation, add_page; app = fastapi.FastAPI();"
        "add_page(app, 'client'); add_documentation(app);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
