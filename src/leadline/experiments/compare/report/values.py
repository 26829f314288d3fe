"""results.json as the report needs it: typed, and None wherever a value is missing or is no finite number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leadline.report.pictures import Entry, Row
from leadline.report.reading import items, mapping, number, row, rows, text


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, with its interval where there is one."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    values: Row = field(default_factory=list)

    @classmethod
    def read(cls, data: Any, values: str = "values") -> Estimate:
        data = mapping(data)
        return cls(
            mean=number(data.get("mean")),
            low=number(data.get("low")),
            high=number(data.get("high")),
            values=row(data.get(values)),
        )


@dataclass(frozen=True, kw_only=True)
class DepthValues:
    """What was measured along depth; empty where nothing was.

    Sublayer lists run attention, MLP, attention, …; `read_rms` ends with the readout.
    """

    block_output_rms: Row
    read_rms: Row
    output_rms: Row
    gradient_share: Row
    removal: Row
    angular_distance: list[Row]
    depth_weights: list[Row]
    gates: list[Row]
    stream_diversity: Row
    mixing: list[list[Row]]

    @classmethod
    def read(cls, data: Any) -> DepthValues:
        data = mapping(data)
        return cls(
            block_output_rms=row(data.get("block_output_rms")),
            read_rms=row(data.get("read_rms")),
            output_rms=row(data.get("output_rms")),
            gradient_share=row(data.get("gradient_share")),
            removal=row(data.get("removal")),
            angular_distance=rows(data.get("angular_distance")),
            depth_weights=rows(data.get("depth_weights")),
            gates=rows(data.get("gates")),
            stream_diversity=row(data.get("stream_diversity")),
            mixing=[rows(matrix) for matrix in items(data.get("mixing"))],
        )


@dataclass(frozen=True, kw_only=True)
class DesignValues:
    """One design of the comparison.

    Attributes:
        index: its place in the results, which fixes its colour in every picture.
        difference: bits per byte minus the baseline's, over pairs of the same seed.
        beyond_noise: None where one seed leaves it unknown.
        matters: whether the difference is as large as the smallest that matters.
        step_time: of a training step, over the baseline's, measured in turns.
        curve: (tokens, held-out bits per byte) in order of tokens.
    """

    index: int
    name: str
    summary: str
    source: str
    notes: list[str]
    tokens: float | None
    status: str
    error: str
    baseline: bool
    settings: Mapping[str, Any]
    loss: Estimate
    bits: Estimate
    difference: Estimate | None
    beyond_noise: bool | None
    matters: bool
    too_little_text: bool
    step_time: float | None
    tokens_per_second: float | None
    peak_memory: float | None
    parameters: float | None
    flops: float | None
    depth_flops: float | None
    seconds: float | None
    curve: list[tuple[float, float]]
    depth: DepthValues

    @property
    def key(self) -> str:
        """The short name that small pictures use."""
        return str(self.index + 1)

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def entry(self) -> Entry:
        """What pictures need to know of it."""
        return Entry(index=self.index, name=self.name, key=self.key, baseline=self.baseline)

    @classmethod
    def read(cls, index: int, data: Any, baseline: str) -> DesignValues:
        data = mapping(data)
        name = text(data.get("name")) or f"design {index + 1}"
        difference = data.get("difference")
        verdict = mapping(difference).get("beyond_noise")
        curve = mapping(data.get("curve"))
        pairs = zip(row(curve.get("tokens")), row(curve.get("bits_per_byte")), strict=False)
        return cls(
            index=index,
            name=name,
            summary=text(data.get("summary")),
            source=text(data.get("source")),
            notes=[text(note) for note in items(data.get("notes"))],
            tokens=number(data.get("tokens")),
            status=text(data.get("status")) or "ok",
            error=text(data.get("error")),
            baseline=name == baseline,
            settings=mapping(data.get("settings")),
            loss=Estimate.read(data.get("loss")),
            bits=Estimate.read(data.get("bits_per_byte")),
            difference=Estimate.read(difference, "pairs") if isinstance(difference, Mapping) else None,
            beyond_noise=verdict if isinstance(verdict, bool) else None,
            matters=mapping(difference).get("matters") is not False,
            too_little_text=mapping(difference).get("too_little_text") is True,
            step_time=number(mapping(data.get("speed")).get("ratio")),
            tokens_per_second=number(data.get("tokens_per_second")),
            peak_memory=number(data.get("peak_memory_bytes")),
            parameters=number(data.get("parameters")),
            flops=number(data.get("flops_per_token")),
            depth_flops=number(data.get("depth_flops_per_token")),
            seconds=number(data.get("seconds")),
            curve=sorted((x, y) for x, y in pairs if x is not None and y is not None),
            depth=DepthValues.read(data.get("depth")),
        )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """How one design's loss depends on the learning rate."""

    design: str
    points: list[tuple[float, float]]
    chosen: float | None
    source: str

    @classmethod
    def read(cls, data: Any) -> Sweep:
        data = mapping(data)
        points = [
            (number(mapping(p).get("learning_rate")), number(mapping(p).get("bits_per_byte")))
            for p in items(data.get("points"))
        ]
        return cls(
            design=text(data.get("design")),
            points=sorted((x, y) for x, y in points if x is not None and x > 0 and y is not None),
            chosen=number(data.get("chosen")),
            source=text(data.get("source")),
        )


@dataclass(frozen=True, kw_only=True)
class ReportValues:
    """The whole of results.json."""

    version: str
    command: str
    created: str
    machine: Mapping[str, Any]
    data: Mapping[str, Any]
    budget: Mapping[str, Any]
    preset: Mapping[str, Any]
    seeds: list[Any]
    designs: list[DesignValues]
    sweeps: list[Sweep]
    headline: str
    sentences: list[str]
    repeat: Mapping[str, Any]

    @property
    def baseline(self) -> DesignValues | None:
        return next((d for d in self.designs if d.baseline), None)

    @classmethod
    def read(cls, results: Any) -> ReportValues:
        results = mapping(results)
        baseline = text(results.get("baseline"))
        verdict = mapping(results.get("verdict"))
        return cls(
            version=text(results.get("leadline")),
            command=text(results.get("command")),
            created=text(results.get("created")),
            machine=mapping(results.get("machine")),
            data=mapping(results.get("data")),
            budget=mapping(results.get("budget")),
            preset=mapping(results.get("preset")),
            seeds=items(results.get("seeds")),
            designs=[
                DesignValues.read(i, d, baseline)
                for i, d in enumerate(items(results.get("arms") or results.get("designs")))
            ],
            sweeps=[Sweep.read(s) for s in items(results.get("learning_rates"))],
            headline=text(verdict.get("headline")) or "The comparison has no verdict yet",
            sentences=[text(s) for s in items(verdict.get("sentences"))],
            repeat=mapping(results.get("repeat")),
        )
