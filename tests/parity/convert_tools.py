# SPDX-License-Identifier: MIT
"""What the scripts about prediff-convert share: running it, files of safetensors, a network in float64."""
import json
import os
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from parity import OUT, PROBE, run

CONVERT = os.environ.get("PARITY_CONVERT", "build/prediff-convert")
WORK = os.path.join(OUT, "parity_convert")


def fresh():
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)


def work(name):
    return os.path.join(WORK, name)


def convert(source, target, *options):
    if os.path.isdir(target):
        shutil.rmtree(target)
    run([CONVERT, "-q", "--force", source, target, *options])
    return target


def folder(name, config, tensors):
    """A Hugging Face folder; its path."""
    path = work(name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(path, "model.safetensors"))
    return path


def tensors(path):
    return load_file(os.path.join(path, "model.safetensors"))


def config(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def forward(model, ids, prompt, kind="default", rate=None, selfcond=None, noise=None):
    """prediff_forward: logits of the target rows. ids: -1 is a mask."""
    args = []
    for name, value in (("selfcond", selfcond), ("noise", noise)):
        args.append("-" if value is None else work(name + ".bin"))
        if value is not None:
            np.ascontiguousarray(value, dtype="<f4").tofile(args[-1])
    out = run([PROBE, "forward", model, str(prompt), kind, "-" if rate is None else repr(float(rate)), *args], " ".join(map(str, ids)).encode())
    return np.frombuffer(out, dtype="<f4").reshape(len(ids) - prompt, -1)


def relative(got, want):
    """Largest error relative to the largest value; anything not a number counts as infinite."""
    want = np.asarray(want, dtype=np.float64)
    err = np.abs(got - want).max() / np.abs(want).max()
    return float(err) if np.isfinite(err) else float("inf")


def allowed(kind, prompt, n):
    """[query][key]."""
    row, column = torch.arange(n)[:, None], torch.arange(n)[None, :]
    return {"causal": column <= row, "hybrid": (row >= prompt) | (column <= row), "bidirectional": torch.ones(n, n, dtype=torch.bool)}[kind]


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turn(x, base):
    """Rotary embedding over halves of a head: x [n][heads][E]."""
    n, _, e = x.shape
    angle = torch.arange(n, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, e, 2, dtype=torch.float64) / e)
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :e // 2], x[..., e // 2:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def network(w, x, ok, layers, heads, heads_kv, eps, base):
    """A Llama-like network in float64 on input vectors x [n][D]: logits. w: tensors under Llama's names, biases where there are."""
    w = {k.removeprefix("model."): v.double() for k, v in w.items()}
    n, d = x.shape

    def linear(name, y):
        y = y @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    for i in range(layers):
        p = "layers.%d." % i
        h = rms(x, w[p + "input_layernorm.weight"], eps)
        q, k, v = (linear(p + "self_attn.%s_proj" % c, h).view(n, m, -1) for c, m in (("q", heads), ("k", heads_kv), ("v", heads_kv)))
        q, k = turn(q, base), turn(k, base)
        k, v = (t.repeat_interleave(heads // heads_kv, 1) for t in (k, v))
        score = torch.einsum("ihe,jhe->hij", q, k) / q.shape[-1] ** 0.5
        mix = score.masked_fill(~ok, float("-inf")).softmax(-1)
        x = x + linear(p + "self_attn.o_proj", torch.einsum("hij,jhe->ihe", mix, v).reshape(n, -1))
        h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
        x = x + linear(p + "mlp.down_proj", torch.nn.functional.silu(linear(p + "mlp.gate_proj", h)) * linear(p + "mlp.up_proj", h))
    x = rms(x, w["norm.weight"], eps)
    return (x @ w.get("lm_head.weight", w["embed_tokens.weight"]).T).numpy()


def shifted(rows):
    """Row i of a shifted model predicts token i + 1: position i reads the row before, position 0 its own."""
    return np.concatenate([rows[:1], rows[:-1]])


def random_llama(layers=2, d=64, heads=4, heads_kv=2, head=16, ff=112, vocab=259, bias=(), tied=False, seed=1):
    """Tensors under Llama's names."""
    g = torch.Generator().manual_seed(seed)
    w = {}

    def matrix(name, rows, cols):
        w[name + ".weight"] = torch.randn(rows, cols, generator=g) / cols ** 0.5
        if name.rsplit(".", 1)[-1] in bias:
            w[name + ".bias"] = torch.randn(rows, generator=g) * 0.5

    def vector(name):
        w[name + ".weight"] = 1 + 0.3 * torch.randn(d, generator=g)

    w["model.embed_tokens.weight"] = torch.randn(vocab, d, generator=g)
    for i in range(layers):
        p = "model.layers.%d." % i
        vector(p + "input_layernorm")
        vector(p + "post_attention_layernorm")
        for name, rows, cols in (("self_attn.q_proj", heads * head, d), ("self_attn.k_proj", heads_kv * head, d), ("self_attn.v_proj", heads_kv * head, d),
                                 ("self_attn.o_proj", d, heads * head), ("mlp.gate_proj", ff, d), ("mlp.up_proj", ff, d), ("mlp.down_proj", d, ff)):
            matrix(p + name, rows, cols)
    vector("model.norm")
    if not tied:
        matrix("lm_head", vocab, d)
    return w
