"""run.json: the description of a run, and what the run claims about itself.

Only `schema` and `run` are required, so that any system can write a trace; unknown fields are ignored.
"""

import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Annotated, Any, Literal

import msgspec

from amcast.kernel.config import describe_error
from amcast.kernel.errors import UsageError
from amcast.trace.columns import LIMIT, SCHEMA

META_FILE = "run.json"
UNFINISHED_META_FILE = ".run.json"
"""The same text during the run. If only this file exists, the run was interrupted."""


class RunClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that a run claims. Others are checked too, but do not decide the verdict."""

    genuine: Literal["strict", "run", "no"] = "no"
    complete: bool = False
    """Every message that must be delivered was, or the stated liveness bound passed after healing."""
    fifo: bool = False
    exactly_once: bool = False
    real_time: bool = False
    """What was answered before another message was multicast comes before it, over all groups."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of run.json, in the order in which they are written."""

    run: str
    schema: int = SCHEMA
    protocol: str | None = None
    seed: int | str | None = None
    commit: str | None = None
    config: Any = None
    topology: Any = None
    workload: Any = None
    faults: Any = None
    versions: Any = None
    clock_bound_ns: Annotated[int, msgspec.Meta(ge=0, le=LIMIT)] | None = None
    """How far the clocks of any two processes differ at most; needed to judge real-time order on several hosts."""
    claims: RunClaims = RunClaims()

    def with_claims(self, **changes: Any) -> "Meta":
        """The same run with other claims: `meta.with_claims(complete=True)`."""
        return msgspec.structs.replace(self, claims=msgspec.structs.replace(self.claims, **changes))


def collect_versions() -> dict[str, str]:
    """The versions of Python and of the packages that a run was made with: needed to repeat it."""
    return dict(_read_versions())


@cache
def _read_versions() -> tuple[tuple[str, str], ...]:
    own = sys.modules["amcast"].__version__  # an archive that is shipped to a cluster has no metadata
    versions = [("python", python_version()), ("amcast", own)]
    for name in ("msgspec", "pyarrow"):
        with suppress(PackageNotFoundError):  # searches run without pyarrow
            versions.append((name, version(name)))
    return tuple(versions)


def encode_metas(metas: Meta | list[Meta]) -> bytes:
    """The bytes of run.json: equal content, equal bytes."""
    return msgspec.json.format(msgspec.json.encode(metas, order="deterministic"), indent=2) + b"\n"


def read_metas(folder: Path) -> list[Meta]:
    """The runs that a folder describes: run.json is one object, or a list of them when runs share their tables."""
    file = folder / META_FILE
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; expected a run folder with {META_FILE} and tables")
    if not file.is_file():
        if (folder / UNFINISHED_META_FILE).is_file():
            raise UsageError(
                f"{folder}: the run was interrupted, {META_FILE} was never written; expected a finished run"
            )
        raise UsageError(f"{folder}: no {META_FILE}; expected one with at least schema and run")
    try:
        plain = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}; expected JSON") from None
    items = plain if isinstance(plain, list) else [plain]
    if not items:
        raise UsageError(f"{file}: an empty list; expected at least one run")
    metas = [_parse_meta(item, file) for item in items]
    names = [meta.run for meta in metas]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{file}: run {name!r} is described {names.count(name)} times; expected once")
    return metas


def _parse_meta(item: object, file: Path) -> Meta:
    if not isinstance(item, dict):
        raise UsageError(f"{file}: {type(item).__name__} {item!r}; expected an object with schema and run")
    for field in ("schema", "run"):
        if field not in item:
            raise UsageError(
                f"{file}: field {field} is missing; expected {'the number 1' if field == 'schema' else 'a name'}"
            )
    if item["schema"] != SCHEMA or isinstance(item["schema"], bool):
        raise UsageError(f"{file}: schema is {item['schema']!r}; expected {SCHEMA}")
    if item.get("claims", 0) is None:
        item = {key: value for key, value in item.items() if key != "claims"}
    try:
        meta = msgspec.convert(item, Meta, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {describe_error(error, Meta)}") from None
    if not meta.run:
        raise UsageError(f"{file}: run is empty; expected a name")
    return meta
