"""Results as `leadline probe` writes them, made up: a few models of different depth, shaped like real ones."""

from __future__ import annotations

import math
import random
from typing import Any


def results(*, failed: str | None = None, blocks: tuple[int, ...] = (12, 12, 8)) -> dict[str, Any]:
    """A whole results.json: a PreNorm run, one with MGR and BHyT, and a Hugging Face model; `failed` names one."""
    made = [
        ("prenorm", "run", False),
        ("mgr-bhyt", "run", True),
        ("SmolLM2", "hugging-face", False),
    ]
    models = []
    for depth, (name, kind, streams) in zip(blocks, made, strict=False):
        rng = random.Random(name)
        share = _falling(depth)
        models.append(
            {
                "name": name,
                "path": f"runs/{name}",
                "kind": kind,
                "tokenizer": "bytes",
                "context": 128,
                "vocab_size": 256,
                "data_hash": "9f2c41d07be3a8815c0e",
                "status": "ok",
                "error": None,
                "seconds": 31.4,
                "tokens": 32768,
                "batches": 16,
                "probe": probe(depth, rng, streams=streams),
                "training_gradient": {"steps": 500, "share": share} if kind == "run" else None,
            }
        )
        if name == failed:
            models[-1].update(status="failed", error="the loss is not finite", probe=None, training_gradient=None)
    return {
        "leadline": "0.1.0",
        "command": "leadline probe runs/prenorm runs/mgr-bhyt SmolLM2 --data sotu --out report",
        "created": "2026-11-03T09:14:07Z",
        "seconds": 94.0,
        "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 8e9, "python": "3.11.9", "torch": "2.13.0+cpu"},
        "data": {"name": "sotu"},
        "settings": {
            "tokens": 32768,
            "context": None,
            "batch_size": 16,
            "parts": ["activations", "similarity", "lens", "gradients", "ablation", "connection"],
            "layers": None,
            "seed": 0,
            "device": "cpu",
        },
        "models": models,
    }


def probe(blocks: int, rng: random.Random, *, streams: bool = False) -> dict[str, Any]:
    """What `measure_stack` gives for a model of that many blocks, with MGR's and BHyT's parts where `streams`."""
    sublayers = 2 * blocks

    def noisy(function: Any, spread: float = 0.08) -> list[float]:
        return [function((i + 1) / blocks) * math.exp(rng.gauss(0, spread)) for i in range(blocks)]

    def per_sublayer(function: Any) -> list[list[float]]:
        return [[a, b] for a, b in zip(noisy(function), noisy(function), strict=True)]

    def statistics(rise: float) -> dict[str, list[float]]:
        massive = [30.0 if i < blocks // 3 else 900.0 for i in range(blocks)]
        return {
            "rms": noisy(lambda x: 0.3 * math.exp(rise * x)),
            "max": noisy(lambda x: 3 * math.exp(2 * rise * x)),
            "median": noisy(lambda x: 0.2 * math.exp(rise * x)),
            "kurtosis": noisy(lambda x: 40 * x),
            "massive_ratio": massive,
        }

    rise = 0.4 if streams else 2.2
    nats = [2.1 * math.exp(-(2.0 if streams else 6.5) * i / blocks) for i in range(blocks)]
    nats[-2] = -0.0002
    order = [1 + sorted(nats).index(value) for value in nats]
    states = blocks + 1
    share = _falling(blocks)
    halves = [[0.6 * v, 0.5 * v] for v in nats]
    per_block = {"parameters": [2304] * blocks, "norm": share, "share": share, "share_per_parameter": share}
    return {
        "model": {
            "blocks": blocks,
            "sublayers": [["attention", "mlp"]] * blocks,
            "dim": 64,
            "parameters": 812_345 * blocks,
            "norms_scale": True,
        },
        "bytes_per_token": 1.0,
        "activations": {
            "tokens": 32768,
            "input": {"rms": 0.02, "max": 0.09, "median": 0.0135, "kurtosis": 0.1, "massive_ratio": 6.7},
            "blocks": statistics(rise),
            "sublayers": {
                key: per_sublayer(lambda x: 0.2 * math.exp(rise * x)) for key in ("rms", "max", "massive_ratio")
            },
            "residual_to_update": noisy(lambda x: 0.5 + 4 * x),
            "growth": {"value": math.exp(rise), "low": 0.97 * math.exp(rise), "high": 1.03 * math.exp(rise)},
        },
        "similarity": {
            "tokens": 32768,
            "angular_distance": _matrix(states, lambda d: 0.5 * d / (d + 2)),
            "block_influence": noisy(lambda x: 0.4 * math.exp(-3 * x)),
            "window_influence": [[0.1] * (blocks - n) for n in range(blocks)],
            "cka": _matrix(states, lambda d: math.exp(-d / 5)),
            "place_low": list(range(blocks, 0, -1)),
            "place_high": list(range(blocks, 0, -1)),
            "effective_rank": [40.0 * math.exp(-i / blocks) for i in range(states)],
            "effective_rank_centred": [44.0 * math.exp(-i / (2 * blocks)) for i in range(states)],
        },
        "lens": {
            "tokens": 32768,
            "loss": [1.9 + 1.5 * (1 - (i + 1) / blocks) for i in range(blocks)],
            "bits_per_byte": [2.7 + 2 * (1 - (i + 1) / blocks) for i in range(blocks)],
            "kl": [1.2 * (1 - (i + 1) / blocks) for i in range(blocks)],
            "agreement": [((i + 1) / blocks) ** 0.8 for i in range(blocks)],
            "agreement_low": [((i + 1) / blocks) ** 0.8 - 0.01 for i in range(blocks)],
            "entropy": [2.8 - (i + 1) / blocks for i in range(blocks)],
            "final": {"loss": 1.9, "bits_per_byte": 2.7, "entropy": 1.8},
        },
        "gradients": {
            "batches": 8,
            "rank_batches": 4,
            "first_half": {"value": 0.73, "low": 0.7, "high": 0.76},
            "blocks": {**per_block, "effective_rank": noisy(lambda x: 6 + 3 * x), "cosine": noisy(lambda x: 0.3)},
            "sublayers": {"share": _halved(share), "share_per_parameter": _halved(share)},
        },
        "ablation": {
            "tokens": 16384,
            "sequences": 128,
            "loss": 1.9,
            "bits_per_byte": 2.74,
            "first_half": _half(nats),
            "blocks": {
                "place_low": order,
                "place_high": order,
                "nats": nats,
                "nats_low": [v - 0.05 * abs(v) - 0.001 for v in nats],
                "nats_high": [v + 0.05 * abs(v) + 0.001 for v in nats],
            },
            "sublayers": {
                "nats": halves,
                "nats_low": [[v - 0.002 for v in r] for r in halves],
                "nats_high": [[v + 0.002 for v in r] for r in halves],
            },
        },
        "fan_in": {"plain": list(range(blocks, 0, -1))},
        "connection": _connection(sublayers, states, rng) if streams else None,
        "bhyt": _bhyt(blocks, rng) if streams else None,
    }


def _connection(sublayers: int, states: int, rng: random.Random) -> dict[str, Any]:
    def even(count: int) -> list[float]:
        drawn = [rng.uniform(0.2, 1.0) for _ in range(count)]
        return [v / sum(drawn) for v in drawn]

    second = _matrix(states, lambda d: 0.4 * d / (d + 1))
    return {
        "tokens": 32768,
        "depth_weights": [even(min(i + 1, 4)) for i in range(sublayers + 1)],
        "gates": [[] if i < 3 else [rng.uniform(0.02, 0.4) for _ in range(4)] for i in range(sublayers)],
        "mixing": None,
        "stream_diversity": [0.0, *[0.8 - 0.01 * i for i in range(sublayers - 1)]],
        "stream_angular_distance": [
            _matrix(states, lambda d: 0.3 * d / (d + 3)),
            [[None if 0 in (i, j) else v for j, v in enumerate(r)] for i, r in enumerate(second)],
        ],
    }


def _bhyt(blocks: int, rng: random.Random) -> dict[str, Any]:
    ratios = [0.2 + 0.01 * rng.gauss(0, 1) for _ in range(blocks)]
    bound = blocks**-0.5
    one = {"lambda": [10 * r for r in ratios], "ratio": ratios, "below": [r < bound for r in ratios]}
    return {
        "tokens": 32768,
        "kappa": 10.0,
        "bound": bound,
        "attention": one,
        "mlp": {**one, "ratio": [r / 2 for r in ratios]},
        "variance": {name: [0.04 + 0.001 * i for i in range(blocks)] for name in ("attention", "mlp", "blocks")},
        "second_moment": {
            "approximate": [1.0] * blocks,
            "exact": [1.1] * blocks,
            "ratio": [0.9] * blocks,
            "ratio_low": [0.4] * blocks,
            "ratio_high": [1.3] * blocks,
        },
    }


def _matrix(size: int, value: Any) -> list[list[float | None]]:
    return [[float(value(abs(i - j))) for j in range(size)] for i in range(size)]


def _half(nats: list[float]) -> dict[str, float]:
    value = sum(nats[: len(nats) // 2]) / sum(nats)
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def _falling(blocks: int) -> list[float]:
    total = blocks * (blocks + 1) / 2
    return [(blocks - i) / total for i in range(blocks)]


def _halved(values: list[float]) -> list[list[float]]:
    return [[0.6 * v, 0.4 * v] for v in values]
