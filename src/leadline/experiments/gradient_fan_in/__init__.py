"""`leadline study gfa`: gradient fan-in asymmetry (claims G1 and G2 of arXiv 2606.26538), from training to verdicts.

An arm is a way to train (`arms.py`); each is trained on every seed and then measured: the importance of every block
(ΔM), its share of the gradient (ḡ) and its fan-in (φ). `statistics.py` compares them, `verdict.py` says what that
shows. Only the paper's abstract and summaries could be read; the protocol is ours.
"""
