"""Which connections are compiled in whole models; the others are compiled as connections alone."""

IN_MODELS = (
    "additive",
    "post-ln",
    "attnres",
    "attnres-block",
    "mgr-competitive",
    "mgr-independent",
    "hc",
    "mhc",
    "mhc-lite",
)
