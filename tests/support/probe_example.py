"""What `measure_stack` gives, made up: a decoder of three blocks with Multi-Gate Residuals and BHyT, and a plain one.

`PROBE` is the first; `SOURCES_PROBE` has Attention Residuals, whose reads have weights over sources, and no gates;
`PLAIN_PROBE` has None for what a Hugging Face model does not show. `tests/probes/test_measure_stack.py` holds them
against the real thing, key by key.
"""

from __future__ import annotations

from typing import Any

PROBE: dict[str, Any] = {
    "model": {
        "blocks": 3,
        "sublayers": [["attention", "mlp"], ["attention", "mlp"], ["attention", "mlp"]],
        "dim": 16,
        "parameters": 8123,
        "norms_scale": True,
    },
    "bytes_per_token": 1.0,
    "activations": {
        "tokens": 4096,
        "input": {"rms": 0.02, "max": 0.09, "median": 0.0135, "kurtosis": 0.1, "massive_ratio": 6.7},
        "blocks": {
            "rms": [0.31, 0.52, 0.97],
            "max": [2.1, 5.5, 40.2],
            "median": [0.2, 0.33, 0.6],
            "kurtosis": [0.4, 2.2, 55.0],
            "massive_ratio": [10.5, 16.7, 67.0],
        },
        "sublayers": {
            "rms": [[0.2, 0.25], [0.3, 0.35], [0.5, 0.6]],
            "max": [[1.2, 1.5], [2.4, 3.0], [6.0, 35.0]],
            "median": [[0.12, 0.16], [0.2, 0.22], [0.3, 0.4]],
            "kurtosis": [[0.2, 0.3], [0.8, 1.6], [3.1, 71.0]],
            "massive_ratio": [[10.0, 9.4], [12.0, 13.6], [20.0, 87.5]],
        },
        "residual_to_update": [0.07, 0.9, 1.4],
        "growth": {"value": 0.97 / 0.52, "low": 1.8, "high": 1.95},
    },
    "similarity": {
        "tokens": 4096,
        "angular_distance": [
            [0.0, 0.42, 0.45, 0.47],
            [0.42, 0.0, 0.25, 0.33],
            [0.45, 0.25, 0.0, 0.2],
            [0.47, 0.33, 0.2, 0.0],
        ],
        "block_influence": [0.75, 0.29, 0.19],
        "place_low": [3, 2, 1],
        "place_high": [3, 2, 1],
        "window_influence": [[0.75, 0.29, 0.19], [0.84, 0.49], [0.91]],
        "cka": [
            [1.0, 0.41, 0.33, 0.3],
            [0.41, 1.0, 0.82, 0.7],
            [0.33, 0.82, 1.0, 0.9],
            [0.3, 0.7, 0.9, 1.0],
        ],
        "effective_rank": [13.1, 9.8, 8.7, 7.2],
        "effective_rank_centred": [13.4, 10.9, 10.1, 9.9],
    },
    "lens": {
        "tokens": 2048,
        "loss": [2.9, 2.4, 1.9],
        "bits_per_byte": [4.18, 3.46, 2.74],
        "kl": [0.9, 0.4, 0.0],
        "agreement": [0.31, 0.6, 1.0],
        "agreement_low": [0.28, 0.57, 1.0],
        "agreement_high": [0.34, 0.63, 1.0],
        "entropy": [2.6, 2.2, 1.8],
        "final": {"loss": 1.9, "bits_per_byte": 2.74, "entropy": 1.8},
    },
    "gradients": {
        "batches": 8,
        "rank_batches": 4,
        "first_half": {"value": 0.5, "low": 0.45, "high": 0.55},
        "blocks": {
            "parameters": [2304, 2304, 2304],
            "norm": [0.5, 0.3, 0.2],
            "share": [0.5, 0.3, 0.2],
            "norm_per_parameter": [0.0104, 0.00625, 0.00417],
            "share_per_parameter": [0.5, 0.3, 0.2],
            "missing": [0, 0, 0],
            "empty": [0, 0, 0],
            "zero": [0, 0, 0],
            "effective_rank": [6.5, 7.1, 8.8],
            "cosine": [0.35, 0.2, 0.12],
            "place_low": [3, 2, 1],
            "place_high": [3, 2, 1],
        },
        "sublayers": {
            "parameters": [[1040, 1264], [1040, 1264], [1040, 1264]],
            "norm": [[0.3, 0.4], [0.2, 0.22], [0.1, 0.17]],
            "share": [[0.216, 0.288], [0.144, 0.158], [0.072, 0.122]],
            "norm_per_parameter": [[0.0093, 0.0113], [0.0062, 0.0062], [0.0031, 0.0048]],
            "share_per_parameter": [[0.227, 0.276], [0.152, 0.152], [0.076, 0.117]],
            "missing": [[0, 0], [0, 0], [0, 0]],
            "empty": [[0, 0], [0, 0], [0, 0]],
            "zero": [[0, 0], [0, 0], [0, 0]],
        },
    },
    "ablation": {
        "tokens": 2048,
        "sequences": 16,
        "loss": 1.9,
        "bits_per_byte": 2.74,
        "first_half": {"value": 0.8, "low": 0.75, "high": 0.85},
        "blocks": {
            "nats": [1.4, 0.3, 0.05],
            "nats_low": [1.3, 0.26, 0.03],
            "nats_high": [1.5, 0.35, 0.07],
            "bits_per_byte": [2.02, 0.43, 0.072],
            "bits_per_byte_low": [1.88, 0.38, 0.043],
            "bits_per_byte_high": [2.16, 0.5, 0.101],
            "place_low": [3, 2, 1],
            "place_high": [3, 2, 1],
        },
        "sublayers": {
            "nats": [[0.6, 0.7], [0.1, 0.15], [0.02, 0.04]],
            "nats_low": [[0.55, 0.6], [0.08, 0.12], [0.0, 0.02]],
            "nats_high": [[0.65, 0.8], [0.12, 0.18], [0.04, 0.06]],
            "bits_per_byte": [[0.87, 1.01], [0.14, 0.22], [0.029, 0.058]],
            "bits_per_byte_low": [[0.79, 0.87], [0.12, 0.17], [0.0, 0.029]],
            "bits_per_byte_high": [[0.94, 1.15], [0.17, 0.26], [0.058, 0.087]],
        },
    },
    "fan_in": {"plain": [3, 2, 1]},
    "connection": {
        "tokens": 4096,
        "depth_weights": [[1.0], [0.5, 0.5], [0.5, 0.5], [0.4, 0.6], [0.45, 0.55], [0.5, 0.5], [0.3, 0.7]],
        "gates": [[], [0.3, 0.2], [0.25, 0.2], [0.2, 0.2], [0.15, 0.2], [0.1, 0.2]],
        "mixing": None,
        "stream_diversity": [0.0, 0.8, 0.75, 0.7, 0.65, 0.6],
        "stream_angular_distance": [
            [
                [0.0, 0.3, 0.35, 0.4],
                [0.3, 0.0, 0.2, 0.25],
                [0.35, 0.2, 0.0, 0.1],
                [0.4, 0.25, 0.1, 0.0],
            ],
            [
                [None, None, None, None],
                [None, 0.0, 0.3, 0.4],
                [None, 0.3, 0.0, 0.2],
                [None, 0.4, 0.2, 0.0],
            ],
        ],
    },
    "bhyt": {
        "tokens": 4096,
        "kappa": 10.0,
        "bound": 0.577,
        "attention": {"lambda": [2.1, 2.0, 1.9], "ratio": [0.21, 0.2, 0.19], "below": [True, True, True]},
        "mlp": {"lambda": [1.0, 1.1, 1.2], "ratio": [0.1, 0.11, 0.12], "below": [True, True, True]},
        "variance": {"attention": [0.04, 0.05, 0.06], "mlp": [0.01, 0.01, 0.02], "blocks": [0.3, 0.5, 0.9]},
        "second_moment": {
            "approximate": [0.9, 1.9, None],
            "exact": [1.0, 2.0, None],
            "ratio": [0.9, 0.95, None],
            "ratio_low": [0.5, 0.6, None],
            "ratio_high": [1.1, 1.2, None],
        },
    },
}

SOURCES_PROBE: dict[str, Any] = {
    **PROBE,
    "connection": {
        "tokens": 4096,
        "depth_weights": [
            [1.0],
            [0.6, 0.4],
            [0.4, 0.35, 0.25],
            [0.3, 0.3, 0.2, 0.2],
            [0.3, 0.2, 0.2, 0.2, 0.1],
            [0.2, 0.2, 0.2, 0.1, 0.2, 0.1],
            [0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.1],
        ],
        "gates": None,
        "mixing": None,
        "stream_diversity": None,
        "stream_angular_distance": None,
    },
    "bhyt": None,
}

PLAIN_PROBE: dict[str, Any] = {**PROBE, "connection": None, "bhyt": None}
