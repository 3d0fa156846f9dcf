"""The mathematics of every stage in a few lines, by the stage's folder; the symbols are those of its twin."""

from __future__ import annotations

from markupsafe import Markup

from k3lab.launches.declaration import Stage

FORMULAS: dict[str, tuple[str, ...]] = {
    "k3lab.stages.attnres.slice": (
        "prefix ← bf16(prefix + delta)",
        "sq<sub>s</sub> = Σ<sub>c</sub> v<sub>s,c</sub>²",
        "dot<sub>s</sub> = Σ<sub>c</sub> v<sub>s,c</sub> · (nw<sub>c</sub> qk<sub>c</sub>),"
        " over the 128 columns of a slice; v<sub>s</sub>: earlier blocks, the prefix last",
    ),
    "k3lab.stages.attnres.gate": (
        "logit<sub>s</sub> = dot<sub>s</sub> · rsq(sq<sub>s</sub> / HIDDEN + ε) · log₂e,"
        " with sq and dot summed over all slices",
        "e<sub>s</sub> = 2<sup>logit<sub>s</sub> − max</sup>, den = Σ<sub>s</sub> e<sub>s</sub>",
    ),
    "k3lab.stages.attnres.mix": (
        "m = (Σ<sub>s</sub> e<sub>s</sub> v<sub>s</sub>) / den",
        "x = bf16(m · rsq(mean m² + ε) · in_nw)",
    ),
    "k3lab.stages.gemv": ("PROJ = bf16(x W<sub>in</sub><sup>T</sup>)",),
    "k3lab.stages.kda.conv": (
        "z = Σ<sub>i = 0..3</sub> w<sub>i</sub> seq<sub>i</sub>, over the window and the new tokens",
        "q, k, v = bf16(z · sigmoid(z))",
    ),
    "k3lab.stages.kda.gates": (
        "g1 = bf16(W<sub>fb</sub> f_a)",
        "decay = exp(lower_bound · sigmoid(exp(a_log) · (g1 + dt_bias)))",
        "β = sigmoid(beta)",
        "q ← q · rsq(Σ q² + 10⁻⁶) · 128<sup>−1/2</sup>, k ← k · rsq(Σ k² + 10⁻⁶)",
    ),
    "k3lab.stages.kda.recur": (
        "state ← state · decay",
        "u = (v − state k) · β",
        "state ← state + u k<sup>T</sup>",
        "o = bf16(state q)",
    ),
    "k3lab.stages.kda.norm": ("core = bf16(o · rsq(mean o² + ε) · on_w · sigmoid(g))",),
    "k3lab.stages.mla.proj": (
        "QA = bf16(x W<sub>qkv</sub><sup>T</sup>): latents q_c and kv_c, and k_pe",
        "gate = bf16(sigmoid(bf16(x W<sub>g</sub><sup>T</sup>)))",
    ),
    "k3lab.stages.mla.norm": (
        "QC = bf16(q_c · rsq(mean q_c² + ε) · q_nw)",
        "cache entry = fp8(bf16(kv_c · rsq(mean kv_c² + ε) · kv_nw)), then fp8(k_pe)",
    ),
    "k3lab.stages.mla.qb": (
        "q = QC W<sub>qb</sub><sup>T</sup>, by head",
        "q_nope = bf16(first 128 columns), q_pe = fp8(bf16(last 64 columns))",
    ),
    "k3lab.stages.mla.uk": (
        "query = fp8(bf16(mxfp4(q_nope) W<sub>K</sub><sup>T</sup>)), then q_pe; W<sub>K</sub> in MXFP4",
    ),
    "k3lab.stages.mla.unpack": (
        "q_out[token, HEADS · rank + h] = query of that rank's head h; pads repeat the first heads",
    ),
    "k3lab.stages.oproj.push": ("partial = bf16(core W<sub>o</sub><sup>T</sup>), over the rank's heads",),
    "k3lab.stages.oproj.reduce": (
        "delta = bf16(Σ<sub>rank</sub> partial<sub>rank</sub>), in rank order from rank 0's on",
    ),
}


def formula(stage: Stage) -> Markup:
    """What the stage computes, a line an equation."""
    return Markup("<br>").join(Markup(line) for line in FORMULAS[stage.folder])
