"""Renders the plain manifests in `deploy/` from the chart: for clusters without Helm, and for reading.

python tools/manifests.py           # write them
python tools/manifests.py --check   # say whether they are as the chart makes them
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = REPOSITORY / "deploy" / "chart" / "aliquot"
NAMESPACE = "aliquot-system"
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deploy/coordinator/kubernetes.yaml": ("coordinator", {}),
    "deploy/daemonset/kubernetes.yaml": ("agent", {}),
    "deploy/kube/admission.yaml": ("admission", {}),
    "deploy/kube/crds.yaml": ("crds", {}),
    "deploy/kube/claims.yaml": ("claims", {"node": {"mode": "dra"}}),
}
"""Files, the templates that they are made of, and with which values."""


OLDEST = "1.30.0"
"""The oldest Kubernetes that the chart is for."""
NEWEST = "1.36.2"
"""That which manifests are rendered for unless another is named."""


def render(values: dict[str, Any] | None = None, name: str = "aliquot", kubernetes: str = NEWEST) -> dict[str, str]:
    """The chart's manifests by template, as Helm renders them without a cluster, for one of this version."""
    from helm_python import Chart, _native  # noqa: PLC0415 - only where manifests are made

    options = json.dumps({"name": name, "namespace": NAMESPACE, "kube_version": kubernetes})
    with Chart.load(CHART) as chart:
        # `Chart.render` has no word for the cluster's version, which the library takes.
        found = json.loads(_native.call_string("helm_render", chart._raw(), json.dumps(values or {}), options))  # noqa: SLF001
    prefix = "aliquot/templates/"
    return {str(path).removeprefix(prefix): str(text) for path, text in found.items()}


def manifest(template: str, values: dict[str, Any]) -> str:
    """One plain manifest."""
    begin = (
        "# Made from the chart in deploy/chart/aliquot by tools/manifests.py; change it there.\n"
        f"# kubectl create namespace {NAMESPACE}; what must be there before is in the chart's values.yaml.\n"
    )
    return begin + "---\n" + render(values)[f"{template}.yaml"].strip() + "\n"


def main() -> int:
    """Write, or compare: then 1 where one differs."""
    differing = []
    for name, (template, values) in PARTS.items():
        path, text = REPOSITORY / name, manifest(template, values)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        differing.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")
    if differing and "--check" in sys.argv:
        sys.stdout.write(f"{', '.join(differing)}: not as the chart makes it; run python tools/manifests.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
