"""benchmarks/gpu.py: its parts, on a CPU and small."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from leadline.bench import operators
from leadline.bench.cases import CASES, Inputs, Sizes

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
TINY = ["--device", "cpu", "--tiny"]
FEW = ("multi-gate step", "bounded tanh")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module, with two operators only."""
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_script", module)
    spec.loader.exec_module(module)
    for place in (module, operators):
        monkeypatch.setattr(place, "CASES", {name: CASES[name] for name in FEW})
    yield module
    torch.compiler.reset()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "there is no GPU" in capsys.readouterr().err


def test_checks_and_operators(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = gpu.main([*TINY, "--only", "checks", "ops", "--json", str(tmp_path / "gpu.json")])
    said = capsys.readouterr()
    assert code == 0, said.out
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["ok"]
    assert found["fused"] == "lean"
    rows = found["parts"]["checks"]["rows"]
    assert {(row["operator"], row["dtype"]) for row in rows} == {
        (name, dtype) for name in FEW for dtype in ("bfloat16", "float32", "float64")
    }
    told = found["parts"]["ops"]["bandwidth"]
    assert [row["operator"] for row in told] == list(FEW)
    assert told[0]["bytes"] == (5 * 4 + 5) * 6 * 16 * 2
    assert all(row["gb_per_second"] > 0 and row["copy_gb_per_second"] > 0 for row in told)
    assert "all checks that ran pass" in said.out


def test_models_and_decode(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (gpu.ModelOptions, gpu.DecodeOptions):
        monkeypatch.setattr(gpu, options.__name__, lambda make=options, **more: make(designs=("mgr", "bhyt"), **more))
    assert gpu.main([*TINY, "--only", "models", "decode", "--json", str(tmp_path / "gpu.json")]) == 0
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [row["label"] for row in parts["models"]["runs"][0]["rows"]] == ["prenorm", "mgr-competitive", "bhyt"]
    assert parts["decode"]["runs"][0]["rounds"] == 2


def test_a_wrong_operator(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["bounded tanh"]

    def work(inputs: Inputs, backend: Any) -> Any:
        return [output * (1.1 if backend == "lean" else 1) for output in case.work(inputs, backend)]

    monkeypatch.setattr(gpu, "CASES", {case.name: dataclasses.replace(case, work=work)})
    assert gpu.main([*TINY, "--only", "checks", "--json", str(tmp_path / "gpu.json")]) == 1
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]["checks"]["rows"]
    assert all("output 0 is off by 1.0e-01" in row["failed"][0] for row in rows)


@pytest.mark.parametrize("fault", ["random", "unwritten", "breaks", "does not compile"])
def test_what_a_check_sees(gpu: ModuleType, fault: str) -> None:
    case = CASES["bounded tanh"]

    def work(inputs: Inputs, backend: Any) -> Any:
        outputs = [output * 1.0 for output in case.work(inputs, backend)]
        if backend != "lean":
            return outputs
        if fault == "random":
            outputs[0] = outputs[0] * (1 + 1e-11 * torch.rand((), dtype=torch.float64))
        elif fault == "unwritten":
            outputs[0] = outputs[0] + 0 * torch.empty_like(outputs[0])
        elif fault == "breaks":
            raise RuntimeError("no")
        elif torch.compiler.is_compiling():
            print("a graph break")
        return outputs

    plan = gpu.plan_for(torch.device("cpu"), 1.0, True)
    said = gpu.check(dataclasses.replace(case, work=work), Sizes(tokens=4, dim=16, count=4), torch.float64, plan)
    assert said
    wanted = {
        "random": "two runs differ",
        "unwritten": "output 0",
        "breaks": "RuntimeError: no",
        "does not compile": "torch.compile(fullgraph=True)",
    }
    assert any(wanted[fault] in text for text in said), said


def test_a_part_that_breaks_leaves_the_others(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(plan: Any, budget: Any, part: Any) -> None:
        raise RuntimeError("no")

    def fine(plan: Any, budget: Any, part: Any) -> None:
        part["done"] = True

    monkeypatch.setattr(gpu, "PARTS", {"checks": breaks, "ops": fine})
    assert gpu.main([*TINY, "--only", "checks", "ops", "--json", str(tmp_path / "gpu.json")]) == 1
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["checks"]["error"] == "RuntimeError: no"
    assert parts["ops"]["done"]


def test_interrupted(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(plan: Any, budget: Any, part: Any) -> None:
        part["some"] = 1
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "PARTS", {"checks": stops, "ops": stops})
    assert gpu.main([*TINY, "--only", "checks", "ops", "--json", str(tmp_path / "gpu.json")]) == 130
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["interrupted"]
    assert list(found["parts"]) == ["checks"]
    assert found["parts"]["checks"]["some"] == 1


def test_the_time_is_kept(gpu: ModuleType, tmp_path: Path) -> None:
    assert gpu.main([*TINY, "--minutes", "0", "--json", str(tmp_path / "gpu.json")]) == 0
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert {name: part.get("skipped") for name, part in parts.items()} == dict.fromkeys(
        gpu.PARTS, "there was no time left"
    )
    now = [0.0]
    budget = gpu.Budget(10.0, 6.0, clock=lambda: now[0])
    assert not budget.over()
    now[0] = 6.0
    assert budget.over(), "no part goes beyond the end of all"
