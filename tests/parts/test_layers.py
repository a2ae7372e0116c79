"""Packages of `parts` import one way, imports for type checking included."""

from tests.tidy.source import imports, modules

LAYERS = ({"consensus"}, {"ordering"}, {"broadcast", "groups", "client"}, {"membership"}, {"node"})
"""Lowest first: a package imports only itself and packages of lower layers."""


def test_packages_of_parts_import_only_lower_layers() -> None:
    level = {name: place for place, layer in enumerate(LAYERS) for name in layer}
    faults = []
    for module in modules():
        own = module.split(".")
        if own[:2] == ["amcast", "parts"] and len(own) > 2:
            for imported in sorted(imports(module)):
                other = imported.split(".")
                if other[:2] == ["amcast", "parts"] and other[2] != own[2] and level[other[2]] >= level[own[2]]:
                    faults.append(f"{module} imports {imported}")
    assert not faults, faults
