"""The shape of the source: folders, modules, classes and functions that a reader can take in."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from tests import ROOT
from tests.tidy.source import SOURCE, classes, functions, modules

MODULES_PER_FOLDER = 15
LINES_PER_FUNCTION = 70
LEVELS_BELOW_PROCESS = 2
SHARED_CLASS_NAMES = 15
NOUNS = {"ring", "ordering", "pending", "replicated", "testing", "timestamped"}
"""Words with the ending of a verb that are terms of the field."""
STANDARD_PRIVATE = {"_exit", "_fields", "_replace", "_asdict", "_make", "_getframe", "_jvm", "_jsc", "_gateway"}
"""Names with an underscore that Python and PySpark offer to everybody."""


def test_folders_hold_about_a_dozen_modules() -> None:
    counts = Counter(path.parent for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > MODULES_PER_FOLDER}
    assert not crowded, f"more than {MODULES_PER_FOLDER} modules side by side; group them: {crowded}"


def test_functions_fit_a_screen() -> None:
    """Docstrings, also those of fields that a constructor declares, do not count: they are there for the reader."""
    lines = {f"{module}.{node.name}": _lines(node) for module, node in functions()}
    long = {name: count for name, count in lines.items() if count > LINES_PER_FUNCTION}
    assert not long, f"functions of more than {LINES_PER_FUNCTION} lines: {long}"


def _lines(node: ast.AST) -> int:
    texts = [one for one in ast.walk(node) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    spans = [(one.end_lineno or 0) - one.lineno + 1 for one in (node, *texts) if hasattr(one, "lineno")]
    return spans[0] - sum(spans[1:])


def test_modules_are_named_by_nouns() -> None:
    names = {module: module.split(".")[-1].split("_")[-1] for module in modules()}
    verbal = [module for module, word in names.items() if re.search(r"(ing|ed)$", word) and word not in NOUNS]
    assert not verbal, f"gerunds and participles; which noun of the field is each? {verbal}"


def test_modules_have_docstrings() -> None:
    silent = [module for module, tree in modules().items() if not ast.get_docstring(tree)]
    assert not silent, f"modules without a docstring: {silent}"


def _bases() -> dict[str, list[str]]:
    """Base classes by class name, without type arguments."""
    found: dict[str, list[str]] = defaultdict(list)
    for _, node in classes():
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                found[node.name].append(plain.id)
    return found


def test_processes_are_not_spread_over_files_by_inheritance() -> None:
    bases = _bases()
    heirs = Counter(base for names in bases.values() for base in set(names))
    faults = []
    for module, node in classes():
        chain, name = [], node.name
        while name in bases and name != "Process":
            chain.append(name)
            name = next((base for base in bases[name] if base in bases or base == "Process"), "")
        if name != "Process" or not module.startswith(("amcast.parts", "amcast.protocols")):
            continue
        if len(chain) > LEVELS_BELOW_PROCESS:
            faults.append(f"{module}: {' < '.join(chain)} < Process")
        faults += [f"{base} has one heir, {node.name}" for base in chain[1:] if heirs[base] == 1]
    assert not faults, f"processes that should be one class each: {faults}"


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, node in classes():
        if not module.endswith("messages") and not node.name.startswith("_"):
            homes[node.name].append(module)
    shared = {name: found for name, found in homes.items() if len(found) > 1}
    assert len(shared) <= SHARED_CLASS_NAMES, f"{len(shared)} class names are used in several modules: {shared}"


def test_exceptions_end_in_error() -> None:
    bases = _bases()
    faults = []
    for module, node in classes():
        ancestors, waiting = set(), [node.name]
        while waiting:
            for base in bases.get(waiting.pop(), ()):
                if base not in ancestors:
                    ancestors.add(base)
                    waiting.append(base)
        if "Exception" in ancestors or "BaseException" in ancestors:
            if not node.name.endswith("Error"):
                faults.append(f"{module}.{node.name} does not end in Error")
            if not node.name.startswith("_") and node.name != "Error" and "Error" not in ancestors:
                faults.append(f"{module}.{node.name} is not below amcast.Error")
    assert not faults, faults


def test_private_attributes_are_used_in_their_module_only() -> None:
    faults = []
    for module, tree in modules().items():
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        own |= {
            node.target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        own |= {node.attr for node in used if isinstance(node.ctx, ast.Store) and _is_self(node)}
        for node in used:
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if private and not _is_self(node) and node.attr not in own | STANDARD_PRIVATE:
                faults.append(f"{module}:{node.lineno} {ast.unparse(node)}")
    assert not faults, f"private names of other modules: {faults}"


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_tests_mirror_the_source() -> None:
    """A test folder has the name of a package, or is one of the suites that run everything."""
    suites = {"conformance", "docs", "external", "mutants", "mutation", "coverage", "tidy", "transcripts"}
    for folder in {path.parent for path in (ROOT / "tests").rglob("test_*.py")}:
        place = folder.relative_to(ROOT / "tests")
        if place.parts and place.parts[0] not in suites:
            assert (SOURCE / place).is_dir(), f"tests/{place} tests no package of that name"
            assert (folder / "__init__.py").exists(), f"tests/{place} is not a package"


def test_documented_tree_is_the_real_tree() -> None:
    """`docs/ARCHITECTURE.md` shows every package and sub-package, and nothing else."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    block = re.search(r"```\nsrc/amcast/\n(.*?)```", text, re.DOTALL)
    assert block, "docs/ARCHITECTURE.md has no tree that begins with src/amcast/"
    documented: set[str] = set()
    parents: list[str] = []
    for line in block.group(1).splitlines():
        entry = re.match(r"( +)([a-z_]+(?:\.py|/)(?: [a-z_]+/)*)", line)
        if entry:
            depth = len(entry.group(1)) // 2 - 1
            for name in entry.group(2).split():
                parents[depth:] = [name]
                documented.add("".join(parents))
    real = {f"{path.parent.relative_to(SOURCE)}/" for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE}
    real |= {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")} | {"data/"}
    assert documented == real, f"only documented: {documented - real}; only real: {real - documented}"


def test_documents_stay_short() -> None:
    words = len((ROOT / "docs" / "ARCHITECTURE.md").read_text().split())
    assert words <= 2500, f"docs/ARCHITECTURE.md has {words} words; at most 2,500"
    pages = sorted(Path(ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert 0 < len(pages) <= 20, f"{len(pages)} decisions; at most 20"
    for page in pages:
        text = page.read_text()
        for heading in ("## Context", "## Decision", "## Consequence"):
            assert heading in text, f"{page.name} has no {heading}"
