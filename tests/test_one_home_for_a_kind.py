"""A kind of model has one home: nothing else tests for its classes, matches its name or opens its folder.

What still does is listed here with its reason: the lists may shrink.
"""

import ast
from pathlib import Path

from dpserve.training.kinds.registry import all_kinds

ROOT = Path(__file__).parent.parent
PACKAGES = ("audit", "dpserve", "mechanisms", "service", "training")
HOME = ROOT / "training" / "kinds"
FOLDERS = {path.parent.name for path in HOME.glob("*/kind.py")}

OPENED = {
    "audit/membership/shadow_models.py": {"published"},  # an attacker's networks are trained as Lu et al. train theirs
    "audit/scales.py": {"dpsgd"},  # an audit draws the noise of a step
    "dpserve/__init__.py": {"class_sums", "dpsgd", "head", "weights"},  # whose options users write
    "dpserve/local_services.py": {"head"},  # an audit trains two neighbouring heads
}
"""Modules that import from one kind's folder."""


def modules():
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if HOME not in path.parents:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def opened(tree):
    """The folders of kinds that a module imports from, also within its functions."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "dpserve.training.kinds":
            names += [f"dpserve.training.kinds.{each.name}" for each in node.names]
        for name in names:
            parts = name.split(".")
            if parts[:3] == ["dpserve", "training", "kinds"] and len(parts) > 3 and parts[3] in FOLDERS:
                yield parts[3]


def matched(tree):
    """The words that a module compares something with: `==`, `in`, `match`, and keys of a mapping by kind."""
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [each for each in node.keys if each is not None]
        for part in parts:
            inner = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            yield from (each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str))


def test_no_module_opens_a_kind():
    found = {path: set(opened(tree)) for path, tree in modules()}
    assert {path: kinds for path, kinds in found.items() if kinds} == OPENED


def test_no_module_matches_the_name_of_a_kind():
    names = set(all_kinds())
    assert not {(path, word) for path, tree in modules() for word in matched(tree) if word in names}


def test_no_module_tests_for_a_class_of_a_kind():
    """The classes of a kind, of its certificate and of the models that are paid for once or by the answer."""
    trees = [ast.parse(path.read_text()) for path in HOME.glob("*/*.py")]
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    classes |= {"ReleasedModel", "MeteredModel", "ReleaseCertificate", "Kind", "MeteredKind", "PayOnceKind"}
    found = set()
    for path, tree in modules():
        for node in ast.walk(tree):
            tested = []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                tested = [each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)]
            elif isinstance(node, ast.MatchClass):
                tested = [getattr(node.cls, "id", "")]
            found |= {(path, name) for name in tested if name in classes}
    assert not found
