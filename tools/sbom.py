"""What an environment consists of, as a CycloneDX document: name, version, licence and what requires what.

    python tools/sbom.py .venv/lib/python3.11/site-packages

Read from the metadata that pip leaves, so also of an environment for another Python. The same input gives the same
bytes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
import uuid
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_LICENCE_CHARS_MAX = 200
"""Some have the whole text there."""


def sbom(sites: Sequence[Path], title: str) -> bytes:
    """Of these folders of packages, as JSON (CycloneDX 1.6)."""
    found = {
        canonicalize_name(one.metadata["Name"]): one
        for one in metadata.distributions(path=[str(site) for site in sites])
    }
    parts = {name: _component(name, one) for name, one in sorted(found.items())}
    root = Component(name=title, type=ComponentType.APPLICATION, bom_ref="image")
    bom = Bom(components=parts.values())
    bom.metadata.component = root
    for name, part in parts.items():
        needed = {canonicalize_name(each) for each in _required(found[name])}
        bom.register_dependency(part, [parts[each] for each in sorted(needed & parts.keys() - {name})])
    bom.register_dependency(root, parts.values())
    listed = "\n".join(f"{name} {one.version}" for name, one in sorted(found.items()))
    bom.serial_number = uuid.UUID(bytes=hashlib.sha256(f"{title}\n{listed}".encode()).digest()[:16], version=4)
    bom.metadata.timestamp = dt.datetime.fromtimestamp(0, dt.UTC)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1).encode()


def _component(name: str, one: metadata.Distribution) -> Component:
    said = {name: one.metadata[name] for name in one.metadata}
    expression, text = said.get("License-Expression", ""), said.get("License", "")
    licences: list[DisjunctiveLicense | LicenseExpression] = []
    if expression:
        licences.append(LicenseExpression(expression))
    elif text and len(text) <= _LICENCE_CHARS_MAX and "\n" not in text:
        licences.append(DisjunctiveLicense(name=text))
    else:
        classifiers = one.metadata.get_all("Classifier") or []
        licences += [
            DisjunctiveLicense(name=each.rpartition(" :: ")[2])
            for each in classifiers
            if each.startswith("License :: ")
        ]
    url = PackageURL("pypi", None, name, one.version)
    return Component(
        name=name, version=one.version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url), licenses=licences
    )


def _required(one: metadata.Distribution) -> set[str]:
    """Names that it may require; those of extras that are not there fall out later."""
    found = set()
    for text in one.requires or ():
        try:
            found.add(Requirement(text).name)
        except InvalidRequirement:
            continue
    return found


def main() -> int:
    """The program."""
    sites = [Path(name) for name in sys.argv[1:]]
    sys.stdout.write(sbom(sites, "aliquot").decode() + "\n")
    return 0 if sites else 2


if __name__ == "__main__":
    sys.exit(main())
