"""Pictures of what-ifs, as SVG or PNG. Matplotlib comes with the extra `plot` and is looked for only when drawing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aliquot.common.errors import ConfigError
from aliquot.plan.whatif import Outcome

COLOURS = ("#3b6fb6", "#d9822b", "#3d9a50", "#b8434e", "#7a5ba8", "#8c6d46", "#c46fa8", "#6b7785", "#8f9a2f")


def draw(outcomes: Sequence[Outcome], path: Path, title: str = "") -> None:
    """Allocation (and, in time, who waits) of every outcome, to `path`. Raises `ConfigError` without Matplotlib."""
    figure_class = _figure_class()
    in_time = any(outcome.timeline for outcome in outcomes)
    figure = figure_class(figsize=(8, 6 if in_time else 4.2), layout="constrained")
    axes = figure.subplots(2 if in_time else 1, 1, sharex=True, squeeze=False)[:, 0]
    for number, outcome in enumerate(outcomes):
        colour = COLOURS[number % len(COLOURS)]
        if outcome.timeline is not None:
            hours = [sample.at_s / 3600 for sample in outcome.timeline.samples]
            percents = [sample.allocated_percent for sample in outcome.timeline.samples]
            axes[0].plot(hours, percents, color=colour, label=outcome.label, linewidth=1.2)
            waiting = [sample.waiting for sample in outcome.timeline.samples]
            axes[1].plot(hours, waiting, color=colour, linewidth=1.2)
        elif outcome.curve is not None:
            capacity = outcome.curve.capacity_milli
            arrived = [100 * milli / capacity for milli in outcome.curve.arrived_milli]
            allocated = [100 * milli / capacity for milli in outcome.curve.allocated_milli]
            axes[0].plot(arrived, allocated, color=colour, label=outcome.label, linewidth=1.2)
    axes[0].set_ylabel("allocated, % of capacity")
    axes[0].legend(frameon=False, loc="lower right", fontsize=8)
    axes[-1].set_xlabel("hours" if in_time else "arrived, % of capacity")
    if in_time:
        axes[1].set_ylabel("requests waiting")
    _finish(figure, axes, path, title)


def _finish(figure: Any, axes: Sequence[Any], path: Path, title: str) -> None:  # noqa: ANN401 - Matplotlib's
    for axis in axes:
        axis.grid(visible=True, color="#e4e7eb", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    if title:
        axes[0].set_title(title, loc="left", fontsize=10)
    # Without a date and with fixed ids, the same run gives the same file.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=120)


def _figure_class() -> Any:  # noqa: ANN401 - Matplotlib is optional
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("pictures need Matplotlib", hint="pip install 'aliquot[plot]'") from error
    mpl.rcParams["svg.hashsalt"] = "aliquot"
    return Figure
