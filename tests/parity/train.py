# SPDX-License-Identifier: MIT
"""Loss, gradients and AdamW of the trainer against PyTorch in double: random tiny models, given masks and rates."""
import json
import math
import os

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from parity import OUT, check, end, run

PROBE = os.environ.get("PARITY_TRAIN_PROBE", OUT + "/train_probe")
D, V, CTX, LAYERS, HEADS, FF, N = 16, 40, 16, 2, 2, 24, 6
PREDIFF, CAUSAL, MDLM, EXACT_L, DIFFUGPT, CART, SEDD = range(7)
rng = np.random.default_rng(5)


def model(arch, path, tied):
    """Writes a file of random weights; returns them as double tensors."""
    kv = D if arch == "gpt2" else D // 2
    w = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
    if not tied:
        w["output.weight"] = (V, D)
    if arch == "gpt2":
        w.update({"position_embd.weight": (CTX, D), "output_norm.bias": (D,)})
    for i in range(LAYERS):
        b = "blk.%d." % i
        parts = {"attn_output": (D, D), "ffn_up": (FF, D), "ffn_down": (D, FF)}
        parts.update({"attn_qkv": (3 * D, D)} if arch == "gpt2" else {"attn_q": (D, D), "attn_k": (kv, D), "attn_v": (kv, D), "ffn_gate": (FF, D)})
        for name, shape in parts.items():
            w[b + name + ".weight"] = shape
            if arch == "gpt2" or (arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v")):
                w[b + name + ".bias"] = shape[:1]
        for name in ("attn_norm", "ffn_norm"):
            w[b + name + ".weight"] = (D,)
            if arch == "gpt2":
                w[b + name + ".bias"] = (D,)
    w.update({"prediff.mask.weight": (D,), "prediff.selfcond.weight": (D, D), "prediff.selfcond.bias": (D,), "prediff.noise.0.weight": (4 * D, N),
              "prediff.noise.0.bias": (4 * D,), "prediff.noise.2.weight": (D, 4 * D), "prediff.rate.0.weight": (4 * D, D), "prediff.rate.0.bias": (4 * D,),
              "prediff.rate.2.weight": (D, 4 * D), "prediff.rate.2.bias": (D,)})
    f = gguf.GGUFWriter(path, arch)
    f.add_context_length(CTX), f.add_embedding_length(D), f.add_block_count(LAYERS), f.add_feed_forward_length(FF), f.add_head_count(HEADS)
    f.add_head_count_kv(HEADS if arch == "gpt2" else HEADS // 2)
    f.add_layer_norm_eps(1e-5) if arch == "gpt2" else f.add_layer_norm_rms_eps(1e-5)
    f.add_uint32("prediff.version", 1), f.add_string("prediff.attention", "hybrid"), f.add_uint32("prediff.noise.dim", N), f.add_float32("prediff.noise.scale", 0.5)
    f.add_string("prediff.noise.distribution", "uniform")
    for name, shape in w.items():
        a = (rng.standard_normal(shape) * 0.3 + (1 if "norm.weight" in name else 0)).astype(np.float32)
        f.add_tensor(name, a)
        w[name] = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    f.write_header_to_file(), f.write_kv_data_to_file(), f.write_tensors_to_file(), f.close()
    return w


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))


def norm(w, arch, name, x):
    if arch == "gpt2":
        return F.layer_norm(x, (D,), w[name + ".weight"], w[name + ".bias"], 1e-5)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[name + ".weight"]


def rotate(x, arch):
    n, _, e = x.shape
    a = torch.arange(n, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, e, 2, dtype=torch.float64) / e)
    c, s = torch.cos(a)[:, None], torch.sin(a)[:, None]
    p, q = (x[..., :e // 2], x[..., e // 2:]) if arch == "qwen2" else (x[..., 0::2], x[..., 1::2])
    p, q = p * c - q * s, p * s + q * c
    return torch.cat([p, q], -1) if arch == "qwen2" else torch.stack([p, q], -1).flatten(-2)


def forward(w, arch, t, kind, plain):
    ids = torch.tensor(t["ids"] if plain else t["input"])
    n, p, e = len(ids), t["prompt"], D // HEADS
    masked = (ids < 0)[:, None]
    x = w["token_embd.weight"][ids.clamp(min=0)]
    if not plain:
        z = torch.tensor(t["noise"], dtype=torch.float64).view(n, N) * 0.5
        x = torch.where(masked, w["prediff.mask.weight"] + linear(w, "prediff.noise.2", F.gelu(linear(w, "prediff.noise.0", z))), x)
    if arch == "gpt2":
        x = x + w["position_embd.weight"][:n]
    i = torch.arange(n)
    if not plain:
        f = torch.exp(-math.log(10000.0) * torch.arange(D // 2, dtype=torch.float64) / (D // 2 - 1)) * t["rate"]
        tau = linear(w, "prediff.rate.2", F.silu(linear(w, "prediff.rate.0", torch.cat([f.sin(), f.cos()]))))
        q = torch.tensor(t["soft"], dtype=torch.float64).view(n, V)
        x = x + (i >= p)[:, None] * (tau + linear(w, "prediff.selfcond", q @ w["token_embd.weight"]))
    ok = i[None] <= i[:, None]
    if not plain and kind == 1:
        ok = ok | (i >= p)[:, None]
    if not plain and kind == 2:
        ok = torch.ones(n, n, dtype=torch.bool)
    for layer in range(LAYERS):
        b = "blk.%d." % layer
        h = norm(w, arch, b + "attn_norm", x)
        if arch == "gpt2":
            q, k, v = linear(w, b + "attn_qkv", h).view(n, 3, HEADS, e).unbind(1)
        else:
            q, k, v = (linear(w, b + "attn_" + c, h).view(n, -1, e) for c in "qkv")
            q, k = rotate(q, arch), rotate(k, arch)
            k, v = k.repeat_interleave(HEADS // k.shape[1], 1), v.repeat_interleave(HEADS // v.shape[1], 1)
        s = (torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(e)).masked_fill(~ok, -math.inf).softmax(-1)
        x = x + linear(w, b + "attn_output", torch.einsum("hij,jhd->ihd", s, v).reshape(n, D))
        h = norm(w, arch, b + "ffn_norm", x)
        u = linear(w, b + "ffn_up", h)
        x = x + linear(w, b + "ffn_down", F.gelu(u, approximate="tanh") if arch == "gpt2" else F.silu(linear(w, b + "ffn_gate", h)) * u)
    return F.linear(norm(w, arch, "output_norm", x), w.get("output.weight", w["token_embd.weight"]))


def loss(w, arch, c):
    total, divisor = 0, 0
    for t in c["texts"]:
        n, p, o = len(t["ids"]), t["prompt"], c["objective"]
        ids, x = torch.tensor(t["ids"]), forward(w, arch, t, c["attention"], o == CAUSAL)
        if o == CAUSAL:
            total, divisor = total + F.cross_entropy(x[:-1], ids[1:], reduction="sum"), divisor + n - 1
            continue
        masked = [i for i in range(p, n) if t["input"][i] < 0]
        for i in masked:
            weight = 1.0
            if o in (MDLM, DIFFUGPT, SEDD):
                weight = 1 / t["rate"]
            elif o == EXACT_L:
                weight = (n - p) / len(masked)
            elif o == CART:
                weight = sum(0.5 * 0.3 * 0.7 ** (abs(i - k) - 1) for k in range(n) if t["input"][k] >= 0)
            total = total + weight * F.cross_entropy(x[i - c["shift"]][None], ids[i][None])
        divisor += len(masked) if o in (PREDIFF, DIFFUGPT) else n - p
        if c["causal_weight"] and c["attention"] != 2:
            total = total + c["causal_weight"] * F.cross_entropy(x[:p], ids[1:p + 1], reduction="sum")
            divisor += c["causal_weight"] * p
    return total / divisor


def texts():
    out = []
    for n, p in ((12, 4), (9, 2)):
        ids = rng.integers(0, V, n)
        hidden = np.where((np.arange(n) >= p) & (rng.random(n) < 0.5), -1, ids)
        hidden[-2] = -1
        soft = rng.dirichlet(np.ones(V), n).astype(np.float32)
        out.append({"ids": ids.tolist(), "input": hidden.tolist(), "prompt": p, "rate": float(np.float32(rng.uniform(0.2, 0.9))), "soft": soft.ravel().tolist(),
                    "noise": rng.uniform(-1, 1, n * N).astype(np.float32).tolist()})
    return out


def probe(path, c):
    name = OUT + "/train.json"
    with open(name, "w") as f:
        json.dump(c, f)
    b = run([PROBE, path, name])
    line, b = b.split(b"\n", 1)
    value, divisor = map(float, line.split())
    tensors = {}
    while b:
        line, b = b.split(b"\n", 1)
        key, n = line.decode().split()
        tensors[key], b = np.frombuffer(b[:4 * int(n)], "<f4").astype(float), b[4 * int(n):]
    return value, divisor, tensors


os.makedirs(OUT, exist_ok=True)
turn = 0
for arch in ("llama", "gpt2", "qwen2"):
    for objective in range(7):
        for attention in (1, 2, 3):
            turn += 1
            path = OUT + "/train.gguf"
            w = model(arch, path, turn % 2)
            c = {"texts": texts(), "objective": objective, "attention": attention, "shift": turn // 2 % 2, "causal_weight": 0.3 if turn % 3 == 0 else 0}
            want = loss(w, arch, c)
            want.backward()
            value, divisor, got = probe(path, c)
            name = "%s objective %d attention %d shift %d" % (arch, objective, attention, c["shift"])
            check(abs(value / want.item() - 1) < 1e-5, "%s: loss %.9g, not %.9g" % (name, value, want.item()))
            check(set(got) == set(w), name + ": tensors")
            for key, p in w.items():
                g = np.zeros(p.numel()) if p.grad is None else p.grad.numpy().ravel()
                error = np.abs(got[key] / divisor - g).max() / (np.abs(g).max() + 1e-12)
                check(error < 1e-4 or np.abs(g).max() < 1e-9 and np.abs(got[key]).max() < 1e-5, "%s: %s: error %.3g" % (name, key, error))
    w = model(arch, path, True)
    c = {"texts": texts(), "objective": 0, "attention": 1, "shift": 0, "causal_weight": 0.2, "steps": 5, "learning_rate": 1e-3, "weight_decay": 0.1, "clip": 0.5}
    first = {k: p.detach().clone() for k, p in w.items()}
    adam = torch.optim.AdamW([{"params": [p for p in w.values() if p.dim() > 1]}, {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0}],
                             lr=1e-3, weight_decay=0.1, eps=1e-8)
    for _ in range(5):
        adam.zero_grad()
        value = loss(w, arch, c)
        value.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 0.5)
        adam.step()
    ours, _, got = probe(path, c)
    check(abs(ours / value.item() - 1) < 1e-4, "%s: loss of step 5: %.9g, not %.9g" % (arch, ours, value.item()))
    for key, p in w.items():       # the mean: AdamW turns rounding into a step where the gradient is almost none
        change = (p.detach() - first[key]).numpy().ravel()
        off = np.abs(got[key] - first[key].numpy().ravel() - change)
        if key.endswith("attn_qkv.bias"):      # a bias of the keys alone changes no softmax: its gradient is rounding
            off, change = np.delete(off, np.s_[D:2 * D]), np.delete(change, np.s_[D:2 * D])
        error = off.mean() / (np.abs(change).mean() + 1e-12)
        check(error < 1e-2, "%s: %s after 5 steps: error %.3g" % (arch, key, error))
end()
