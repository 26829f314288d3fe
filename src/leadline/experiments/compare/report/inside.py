"""The pictures of what the connections of a comparison do inside."""

from __future__ import annotations

from leadline.experiments.compare.report.values import ReportValues
from leadline.report import inside as drawn
from leadline.report.pictures import Picture


def angles(report: ReportValues) -> Picture | None:
    """Angular distance between what the blocks read: a triangle per design, all on one scale."""
    return drawn.angles([(d.entry, d.depth.angular_distance) for d in report.designs], numbers=False)


def inside(report: ReportValues) -> list[Picture]:
    """Depth weights, gates, stream diversity and mixing, where there are values."""
    designs = report.designs
    # Hyper-connections call what they write with gates as well, but it replaces nothing.
    gated = [d for d in designs if not d.depth.mixing]
    found = [
        drawn.depth_weights([(d.entry, d.depth.depth_weights) for d in designs], numbers=False),
        drawn.gates([(d.entry, d.depth.gates) for d in gated], numbers=False),
        drawn.diversity([(d.entry, d.depth.stream_diversity) for d in designs], numbers=False),
        drawn.mixing([(d.entry, d.depth.mixing) for d in designs], numbers=False),
    ]
    return [p for p in found if p is not None]
