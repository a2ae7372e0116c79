"""Who may import whom: arrows between packages, no cycles, and pure packages that stay pure."""

import ast

import pytest

from tests.tidy.source import imports, modules, package

MAY_IMPORT = {
    "kernel": set(),
    "parts": {"kernel"},
    "protocols": {"kernel", "parts"},
    "assembly": {"kernel", "parts", "protocols"},
    "workloads": {"kernel", "data"},
    "data": {"kernel"},
    "trace": {"kernel"},
    "check": {"kernel", "trace"},
    "storage": {"kernel"},
    "services": {"kernel"},
    "apps": {"kernel", "services", "workloads"},
    "simulation": {"kernel", "trace", "data", "storage", "services"},
    "live": {"kernel", "trace", "storage", "services"},
    "pipeline": {"kernel", "trace", "check"},
    "figures": {"kernel", "trace", "pipeline"},
}
LIVE_LAYERS = (
    {"limits", "errors", "log_output", "audit_log", "private_files", "client_batch"},
    {"security", "wire", "storage"},
    {"config"},
    {"host"},
    {"rpc"},
    {"membership"},
    {"client", "server"},
    {"operations", "load"},
    {"torture"},
)
"""Sub-packages of `live`, lowest first: each imports only lower ones and those beside it."""
PURE = ("kernel", "parts", "protocols", "assembly")
PURE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq",
    "isal.isal_zlib", "itertools", "math", "msgspec", "operator", "types", "typing", "zlib",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_packages_import_only_along_the_arrows(name: str) -> None:
    for module in modules():
        if package(module) == name:
            for imported in sorted(imports(module)):
                other = package(imported)
                if imported.startswith("amcast.") and other != name:
                    assert other in MAY_IMPORT[name], f"{module} imports {imported}; {name} may use {MAY_IMPORT[name]}"


def test_import_graph_has_no_cycle_even_for_type_checking() -> None:
    waiting = {module: {name for name in imports(module) if name in modules()} - {module} for module in modules()}
    while free := [module for module, needs in waiting.items() if not needs & waiting.keys()]:
        for module in free:
            del waiting[module]
    assert not waiting, f"modules that import each other in a cycle: {_find_cycle(waiting)}"


def _find_cycle(waiting: dict[str, set[str]]) -> list[str]:
    """One cycle among modules that all wait for each other."""
    path = [min(waiting)]
    while True:
        step = min(name for name in waiting[path[-1]] if name in waiting)
        if step in path:
            return path[path.index(step) :]
        path.append(step)


def test_layers_of_the_live_cluster_import_downwards() -> None:
    level = {name: place for place, layer in enumerate(LIVE_LAYERS) for name in layer}
    faults = []
    for module in modules():
        own = module.split(".")
        if own[:2] == ["amcast", "live"] and len(own) > 2:
            for imported in sorted(imports(module)):
                other = imported.split(".")
                if other[:2] == ["amcast", "live"] and len(other) > 2 and level[other[2]] > level[own[2]]:
                    faults.append(f"{module} imports {imported}")
    assert not faults, f"imports of a higher layer: {faults}"


@pytest.mark.parametrize("name", PURE)
def test_pure_packages_import_no_randomness_clock_or_io(name: str) -> None:
    for module in modules():
        if package(module) == name:
            for imported in sorted(imports(module)):
                if not imported.startswith("amcast"):
                    assert imported in PURE_MAY_IMPORT, f"{module} imports {imported}; pure packages may not"


@pytest.mark.parametrize("name", PURE)
def test_pure_packages_do_not_open_print_or_evaluate(name: str) -> None:
    for module, tree in modules().items():
        if package(module) == name:
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    forbidden = {"open", "print", "input", "exec", "eval", "id"}
                    assert node.func.id not in forbidden, f"{module}:{node.lineno} calls {node.func.id}"


def test_spark_and_asyncio_are_imported_in_one_package_each() -> None:
    for module in modules():
        for name in imports(module):
            top = name.split(".")[0]
            if top == "pyspark":
                assert package(module) == "pipeline", f"{module} imports {name}"
            if top in ("asyncio", "uvloop"):
                assert package(module) == "live", f"{module} imports {name}"


def test_only_packages_that_take_a_seed_import_random() -> None:
    drawing = ("simulation", "workloads", "lab", "live", "services")  # services seed a generator by the call
    for module in modules():
        if "random" in imports(module):
            assert package(module) in drawing, f"{module} imports random; only {drawing} draw"


def test_only_the_assembly_composes_nodes() -> None:
    """Live cluster, simulator and tests then run nodes that are made of the same parts."""
    composing = {"amcast.parts.node.node", "amcast.parts.membership.reconfigurable", "amcast.parts.client.session"}
    others = [module for module in modules() if package(module) not in ("kernel", "parts", "protocols", "assembly")]
    faults = [f"{module} imports {name}" for module in others for name in sorted(imports(module) & composing)]
    assert not faults, f"ask amcast.assembly for nodes and clients: {faults}"
