"""Design expressions: reading, canonical form, names for files, and errors."""

from __future__ import annotations

import dataclasses
import re

import pytest

from leadline.connections import (
    Additive,
    AttentionResiduals,
    HyperConnections,
    ManifoldHyperConnections,
    MultiGate,
)
from leadline.designs import PARTS, PRESETS, resolve
from leadline.errors import UsageError
from leadline.norms import BHyT, Derf, DyT, LayerNorm, NoNorm, RMSNorm

TINY = PRESETS["tiny"]
THIRDS_AND_HALVES = dataclasses.replace(TINY, dim=144, heads=6, kv_heads=6)
"""A shape that every taper fits."""


@pytest.mark.parametrize("name", PARTS)
def test_every_name_resolves_and_its_canonical_form_means_the_same(name: str) -> None:
    design = resolve(name)
    assert resolve(design.expression) == design
    assert design.summary
    assert design.source
    config = design.decoder(THIRDS_AND_HALVES, 257)
    assert len(config.layers) == TINY.blocks


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("prenorm", "prenorm"),
        (" PreNorm ", "prenorm"),
        ("rmsnorm", "prenorm"),
        ("prenorm + rmsnorm", "prenorm"),
        ("prenorm+bhyt", "bhyt"),
        ("bhyt + mgr", "mgr-competitive + bhyt"),
        ("mgr", "mgr-competitive"),
        ("mgr(gate=independent)", "mgr-independent"),
        ("mgr-independent(gate=competitive)", "mgr-competitive"),
        ("mgr( streams = 8 , gate = independent )", "mgr-independent(streams=8)"),
        ("mgr(streams=4)", "mgr-competitive"),
        ("attnres(block_size=4)", "attnres(block_size=4)"),
        ("attnres(block-size=none)", "attnres"),
        ("attnres_block", "attnres-block"),
        ("hc(streams=2) + lns", "hc(streams=2) + lns"),
        ("lns + qk-norm + hc(streams=2)", "hc(streams=2) + lns + qk-norm"),
        ("mhc(mixing=birkhoff)", "mhc-lite"),
        ("bhyt(approximate=false, with_mean=true)", "bhyt-exact"),
        ("bhyt-exact(with_mean=false)", "bhyt(approximate=false)"),
        ("bhyt-unit(lambda_attention=2, learn_lambda=False)", "bhyt-unit(learn_lambda=false)"),
        ("rmsnorm(eps=1e-5)", "rmsnorm(eps=1e-05)"),
        ("rmsnorm(eps=1e+0) + lns", "rmsnorm(eps=1.0) + lns"),
        ("bhyt(lambda_mlp=10)", "bhyt(lambda_mlp=10.0)"),
        ("prenorm()", "prenorm"),
    ],
)
def test_canonical_form(written: str, canonical: str) -> None:
    design = resolve(written)
    assert design.expression == canonical
    assert resolve(canonical) == design


def test_what_the_names_mean() -> None:
    def connection(expression: str) -> object:
        return resolve(expression).connection_for(24)

    assert connection("prenorm") == Additive()
    assert connection("attnres") == AttentionResiduals()
    assert connection("attnres-block") == AttentionResiduals(block_size=6)
    assert connection("mgr-competitive") == MultiGate(streams=4, gate="competitive")
    assert connection("mgr-independent(streams=8, gate_init=prenorm)") == MultiGate(
        streams=8, gate="independent", gate_init="prenorm"
    )
    assert connection("hc(streams=2)") == HyperConnections(streams=2)
    assert connection("mhc") == ManifoldHyperConnections(mixing="sinkhorn")
    assert connection("mhc-lite") == ManifoldHyperConnections(mixing="birkhoff")
    assert connection("post-ln") == Additive(post_norm="layernorm")
    assert connection("deepnorm") == Additive(post_norm="layernorm", alpha="deepnorm")
    assert connection("mix-ln") == Additive(post_norm="rmsnorm", post_norm_blocks=6)
    assert connection("layerscale") == Additive(branch="layerscale")
    assert connection("rezero") == Additive(branch="rezero")
    norms = {"prenorm": RMSNorm(), "layernorm": LayerNorm(), "dyt": DyT(), "derf": Derf(), "bhyt": BHyT()}
    for name, norm in norms.items():
        assert resolve(name).norm == norm
    assert resolve("bhyt-exact").norm == BHyT(approximate=False, with_mean=True)
    assert resolve("bhyt-unit").norm == BHyT(gain_init="unit", lambda_attention=2.0, lambda_mlp=1.0)
    assert resolve("post-ln").norm == NoNorm()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("prenrom", "Did you mean prenorm"),
        ("prenrom", "Known: prenorm, post-ln"),
        ("mgr + + bhyt", "can't be read"),
        ("mgr(streams=8", "can't be read"),
        ("mgr(streams=8))", "can't be read"),
        ("mgr bhyt", "can't be read"),
        ("mgr(8)", "write option=value; mgr has .*streams"),
        ("mgr(streams=)", "write option=value"),
        ("mgr(stream=8)", "no option 'stream'.*Did you mean streams"),
        ("prenorm(eps=1)", "prenorm has no option 'eps'; it has no options"),
        ("mgr(streams=eight)", "whole number"),
        ("mgr(streams=2.5)", "whole number"),
        ("rmsnorm(eps=small)", "should be a finite number"),
        ("bhyt(learn_lambda=maybe)", "true or false"),
        ("mgr(gate=competitve)", "independent.*Did you mean competitive"),
        ("mgr(streams=4, streams=8)", "streams twice"),
        ("mgr(streams=__import__('os'))", "can't be read"),
        ("mgr + attnres", "both connections.*keep mgr or attnres"),
        ("bhyt + dyt", "both norms"),
        ("peri-ln + lns", "both placements"),
        ("mgr + mgr", "stands twice"),
        ("post-ln + mgr", "post-ln decides the connection, norm and placement"),
        ("post-ln + bhyt", "post-ln decides"),
        ("lns + deepnorm", "deepnorm decides"),
        ("mix-ln + peri-ln", "mix-ln decides the connection and placement"),
        ("mix-ln(share=1.5)", "share=1.5"),
        ("attnres-block(blocks=0)", "blocks=0"),
        ("bhyt(probability=2)", "probability=2"),
    ],
)
def test_errors_name_what_is_wrong_and_what_works(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.compile(message, re.DOTALL)):
        resolve(expression)


def test_slugs_are_safe_and_differ() -> None:
    expressions = [
        *PARTS,
        "taper(heads=1:2)",
        "taper(heads=1/2)",
        "mgr(streams=8, gate=independent) + bhyt(lambda_mlp=10, eps=1e-5)",
        "hc(streams=2) + lns",
        "hc(streams=3) + lns",
    ]
    designs = {resolve(e).expression: resolve(e).slug for e in expressions}
    assert len(set(designs.values())) == len(designs)
    for slug in designs.values():
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", slug)
        assert len(slug) <= 80
    assert designs["hc(streams=2) + lns"] == "hc-streams-2__lns"
    long = resolve(
        "bhyt(lambda_mlp=10.125,lambda_attention=3.125,probability=0.999,learn_lambda=false,eps=1e-5,final=bhyt) + mgr"
    )
    other = resolve(
        "bhyt(lambda_mlp=10.125,lambda_attention=3.125,probability=0.999,learn_lambda=false,eps=1e-5) + mgr"
    )
    assert len(long.slug) == 80
    assert long.slug != other.slug
