"""The list of components (CycloneDX 1.5): the package and what it needs without extras, as installed here."""

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any


def list_components(project: dict[str, Any], wheel_digest: str) -> str:
    """The list as JSON; it depends on nothing but the wheel and the installed packages."""
    found: dict[str, dict[str, Any]] = {}
    edges: dict[str, list[str]] = {}
    root = f"pkg:pypi/{project['name']}@{project['version']}"
    edges[root] = [_add(name, found, edges) for name in _list_needed(project["dependencies"])]
    described = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": root,
                "purl": root,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
                "hashes": [{"alg": "SHA-256", "content": wheel_digest}],
            }
        },
        "components": [found[purl] for purl in sorted(found)],
        "dependencies": [{"ref": purl, "dependsOn": sorted(edges[purl])} for purl in sorted(edges)],
    }
    return json.dumps(described, indent=1) + "\n"


def _list_needed(requirements: list[str]) -> list[str]:
    """The names of requirements that are installed here, without those of extras."""
    names = []
    for line in requirements:
        name, _, marker = line.partition(";")
        plain = re.split(r"[^A-Za-z0-9._-]", name.strip())[0]
        if "extra" in marker:
            continue
        try:
            distribution(plain)
        except PackageNotFoundError:  # a marker excludes it on this machine
            continue
        names.append(plain)
    return sorted(set(names))


def _add(name: str, found: dict[str, dict[str, Any]], edges: dict[str, list[str]]) -> str:
    """Adds a package and what it needs; returns its reference."""
    package = distribution(name)
    plain = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
    purl = f"pkg:pypi/{plain}@{package.version}"
    if purl in found:
        return purl
    licence = package.metadata.get("License-Expression") or package.metadata.get("License") or "not stated"
    found[purl] = {
        "type": "library",
        "bom-ref": purl,
        "purl": purl,
        "name": plain,
        "version": package.version,
        "licenses": [{"license": {"name": licence.splitlines()[0]}}],
    }
    edges[purl] = []
    edges[purl] = [_add(one, found, edges) for one in _list_needed(package.requires or [])]
    return purl
