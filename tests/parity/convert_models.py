# SPDX-License-Identifier: MIT
"""Checkpoints through prediff-convert: the same logits as PyTorch, and back to a folder that PyTorch loads without a loss."""
import copy
import math
import os
import shutil

import gguf
import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from convert_tools import allowed, config, convert, folder, forward, fresh, network, random_llama, relative, shifted, tensors, work
from parity import check, data, end, logits, skip

torch.manual_seed(11)
torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
KINDS = ("causal", "hybrid", "bidirectional")
largest = {}                                        # worst relative error of each group, printed at the end


def close(group, got, want, what, most=1e-4):
    err = relative(got, want)
    largest[group] = max(largest.get(group, 0), err)
    return check(err < most, "%s: relative error %g" % (what, err))


# -- random models of transformers, saved in every way --

def shake(model):
    """Weights far from their initial values, so that every term matters."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.08))
    return model.float().eval()


def run_torch(model, ids, kind, prompt):
    n = ids.shape[1]
    with torch.no_grad():
        if kind == "causal":
            return model(ids).logits[0].double().numpy()
        mask = torch.zeros(1, 1, n, n).masked_fill(~allowed(kind, prompt, n), torch.finfo(torch.float32).min)
        return model(ids, attention_mask=mask).logits[0].double().numpy()


def run_prediff(path, ids, kind, prompt):
    return logits(path, ids[0].tolist(), {"causal": None, "hybrid": prompt, "bidirectional": 0}[kind], "bidirectional" if kind == "bidirectional" else "hybrid")


def back(name, path, cls, want, ids):
    """To a folder and loaded: nothing missing, nothing too much, the same logits; then to GGUF once more, the same file."""
    hf = convert(path, work("back"), "--to", "hf")
    model, info = cls.from_pretrained(hf, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not info[key], "%s: %s %s" % (name, key, sorted(map(str, info[key]))[:4]))
    got = run_torch(model.eval(), ids, "causal", 0)
    diff = float(np.abs(got - want).max())
    largest["back, largest difference"] = max(largest.get("back, largest difference", 0), diff)
    check(diff <= 1e-6, "%s: logits after the way back differ by %g" % (name, diff))
    again = convert(hf, work("again.gguf"))
    a, b = gguf.GGUFReader(path), gguf.GGUFReader(again)
    f32 = convert(path, work("f32.gguf"), "--type", "f32")
    a = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(f32).tensors}
    b = {t.name: np.asarray(t.data) for t in b.tensors}
    # the divisors of llama3 scaling are computed anew from three rounded numbers
    wrong = [k for k in a if k not in b or not (np.allclose(a[k], b[k], rtol=1e-5) if k == "rope_freqs.weight" else np.array_equal(a[k], b[k]))]
    check(not wrong and len(a) == len(b), "%s: tensors after the way back: %s" % (name, wrong))


def attempt(name, test, *args):
    """A test whose tools fail is one failure, and the others still run."""
    try:
        test(*args)
    except (RuntimeError, OSError, ValueError, KeyError) as e:
        check(False, "%s: %s" % (name, e))


def through(name, model, vocab, n):
    """One model, saved whole, in shards, and in BF16."""
    ids = torch.randint(0, vocab, (1, n))
    prompt = n // 3
    halves = copy.deepcopy(model).to(torch.bfloat16)
    for form, m in (("whole", model), ("in shards", model), ("bf16", halves)):
        what = name + ", " + form
        hf = work("hf")
        shutil.rmtree(hf, ignore_errors=True)
        m.save_pretrained(hf, max_shard_size="60KB" if form == "in shards" else "1GB")
        if form == "in shards":
            shards = [f for f in os.listdir(hf) if f.endswith(".safetensors")]
            check(len(shards) > 1, what + ": there is one shard only")
        path = convert(hf, work("model.gguf"))
        exact = type(m).from_pretrained(hf, dtype=torch.float32, attn_implementation="eager").eval()      # not m.float(): that keeps rounded frequencies
        for kind in KINDS:
            want = run_torch(exact, ids, kind, prompt)
            close(name.split(",")[0], run_prediff(path, ids, kind, prompt), want, "%s, %s" % (what, kind))
        want = run_torch(exact, ids, "causal", 0)
        check(relative(run_torch(exact, ids, "bidirectional", 0), want) > 1e-3, what + ": the 4-D mask had no effect in transformers")
        back(what, path, type(model), want, ids)


def transformers_models():
    for name, more in (("n_inner", dict(n_inner=100)), ("untied", dict(n_inner=72, tie_word_embeddings=False)), ("plain", {})):
        c = GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=64, vocab_size=131, bos_token_id=5, eos_token_id=6, attn_implementation="eager", **more)
        attempt("gpt2, " + name, through, "gpt2, " + name, shake(GPT2LMHeadModel(c)), 131, 48)
    base = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=112, max_position_embeddings=128, vocab_size=259,
                bos_token_id=1, eos_token_id=2, attn_implementation="eager")
    rope3 = dict(rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    for name, more in (("plain", {}), ("tied", dict(tie_word_embeddings=True)), ("llama3 rotary", dict(rope_parameters=rope3, head_dim=64)), ("llama3 rotary with one blended pair", dict(rope_parameters=rope3, head_dim=32)),
                       ("llama3 rotary of Llama 3.2", dict(rope_parameters={**rope3, "original_max_position_embeddings": 8192}, head_dim=64, max_position_embeddings=131072, tie_word_embeddings=True)),
                       ("linear rotary", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0), tie_word_embeddings=True)),
                       ("one key head", dict(num_key_value_heads=1, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
                       ("wide heads", dict(head_dim=24)), ("biases", dict(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-6))):
        attempt("llama, " + name, through, "llama, " + name, shake(LlamaForCausalLM(LlamaConfig(**{**base, **more}))), 259, 96)
    for name, more in (("plain", {}), ("tied", dict(tie_word_embeddings=True, rms_norm_eps=1e-6)), ("no grouping", dict(num_key_value_heads=4))):
        attempt("qwen2, " + name, through, "qwen2, " + name, shake(Qwen2ForCausalLM(Qwen2Config(**{**base, **more}))), 259, 96)


# -- diffusion models of others, with their published names --

def same_folder(name, path, hf):
    """GGUF back to a folder: every tensor of the checkpoint under its name, with its values."""
    got, want = tensors(convert(path, work("back"), "--to", "hf")), tensors(hf)
    check(sorted(got) == sorted(want), "%s: names after the way back: %s" % (name, sorted(set(got) ^ set(want))[:6]))
    check(all(torch.equal(got[k].float(), want[k].float()) for k in set(got) & set(want)), name + ": values after the way back")


def has_keys(name, path, **want):
    fields = gguf.GGUFReader(path).fields
    for key, value in want.items():
        key = key.replace("__", ".")
        check(key in fields and fields[key].contents() == value, "%s: %s is %s, not %s" % (name, key, fields[key].contents() if key in fields else None, value))


def dream():
    for heads_kv, tied in ((2, False), (1, True)):
        name = "dream, %d key heads" % heads_kv
        w = random_llama(heads_kv=heads_kv, bias=("q_proj", "k_proj", "v_proj"), tied=tied, seed=heads_kv)
        c = dict(architectures=["DreamModel"], model_type="Dream", vocab_size=259, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=heads_kv, hidden_act="silu", max_position_embeddings=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
                 tie_word_embeddings=tied, mask_token_id=257, pad_token_id=256, bos_token_id=256, eos_token_id=256, use_sliding_window=False,
                 sliding_window=None, max_window_layers=28, torch_dtype="float32")
        hf = folder("dream", c, w)
        path = convert(hf, work("model.gguf"))
        ids = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(5)).tolist()
        masked = [-1 if i % 3 == 1 and i > 20 else t for i, t in enumerate(ids)]
        x = w["model.embed_tokens.weight"].double()[[257 if t < 0 else t for t in masked]]
        want = shifted(network(w, x, allowed("bidirectional", 0, 90), 2, 4, heads_kv, 1e-6, 1e6))
        close("dream", forward(path, masked, 0), want, name)
        close("dream", forward(path, masked, 20), want[20:], name + ", with a prompt")
        has_keys(name, path, general__architecture="dream", diffusion__shift_logits=True, tokenizer__ggml__mask_token_id=257, dream__attention__causal=False)
        same_folder(name, path, hf)
        check(config(work("back"))["mask_token_id"] == 257 and config(work("back"))["model_type"] == "Dream", name + ": the config after the way back")


def llada():
    names = {"embed_tokens": "wte", "norm": "ln_f", "layers": "blocks", "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm", "q_proj": "q_proj", "k_proj": "k_proj",
             "v_proj": "v_proj", "o_proj": "attn_out", "gate_proj": "ff_proj", "up_proj": "up_proj", "down_proj": "ff_out", "lm_head": "ff_out", "self_attn": None, "mlp": None, "model": None}
    for heads_kv, bias, rows, tied in ((4, (), 259, False), (2, (), 264, False), (4, ("q_proj", "k_proj", "v_proj"), 264, True)):
        name = "llada, %d key heads, %d rows" % (heads_kv, rows)
        w = random_llama(heads_kv=heads_kv, vocab=rows, bias=bias, tied=tied, seed=30 + heads_kv)
        theirs = {"model.transformer." + ".".join(p for p in (names.get(p, p) for p in k.split(".")) if p): v for k, v in w.items()}
        c = dict(architectures=["LLaDAModelLM"], model_type="llada", d_model=64, n_heads=4, n_kv_heads=heads_kv, n_layers=2, mlp_ratio=4, mlp_hidden_size=112, activation_type="silu",
                 block_type="llama", rope=True, rope_theta=500000.0, rms_norm_eps=1e-5, layer_norm_type="rms", max_sequence_length=128, vocab_size=259, embedding_size=rows,
                 weight_tying=tied, include_bias=False, include_qkv_bias=bool(bias), eos_token_id=256, pad_token_id=256, mask_token_id=257, attention_dropout=0.0)
        hf = folder("llada", c, theirs)
        path = convert(hf, work("model.gguf"))
        ids = torch.randint(0, 256, (80,), generator=torch.Generator().manual_seed(6)).tolist()
        masked = [-1 if i % 4 == 2 else t for i, t in enumerate(ids)]
        x = w["model.embed_tokens.weight"].double()[[257 if t < 0 else t for t in masked]]
        want = network(w, x, allowed("bidirectional", 0, 80), 2, 4, heads_kv, 1e-5, 5e5)
        close("llada", forward(path, masked, 0), want, name)
        has_keys(name, path, general__architecture="llada", diffusion__shift_logits=False, tokenizer__ggml__mask_token_id=257, llada__attention__causal=False)
        same_folder(name, path, hf)


def diffugpt():
    c = GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=64, vocab_size=132, bos_token_id=130, eos_token_id=130, attn_implementation="eager")
    model = shake(GPT2LMHeadModel(c))
    w = {}
    for k, v in model.state_dict().items():
        if k == "transformer.wte.weight":
            w["embed_tokens.weight"] = v.clone()
        elif k.startswith("transformer."):
            w["denoise_model." + k[12:]] = v.clone()
        else:
            w[k] = v.clone()
    hf = folder("diffugpt", {**c.to_dict(), "model_type": "gpt2", "architectures": ["DiscreteDiffusionModel"], "dtype": "float32"}, w)
    path = convert(hf, work("model.gguf"), "--mask-token", "131")
    has_keys("diffugpt", path, general__architecture="gpt2", diffusion__shift_logits=True, prediff__attention="bidirectional", tokenizer__ggml__mask_token_id=131)
    ids = torch.randint(0, 130, (1, 40))
    masked = [-1 if i % 3 == 1 else t for i, t in enumerate(ids[0].tolist())]
    given = torch.tensor([[131 if t < 0 else t for t in masked]])
    close("diffugpt", forward(path, masked, 0), shifted(run_torch(model, given, "bidirectional", 0)), "diffugpt")
    for name in ("diffugpt_names", "hf_bare", "hf_prefixed", "hf_bf16"):
        hf = data("gpt2_tiny_random/" + name)
        if not hf:
            skip("gpt2_tiny_random/" + name)
            continue
        plain = convert(hf, work("model.gguf"))
        source = {k.removeprefix("transformer.").removeprefix("denoise_model.").replace("embed_tokens", "wte"): v.float() for k, v in tensors(hf).items()}
        model = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in config(hf).items() if k not in ("architectures", "model_type")}, attn_implementation="eager"))
        model.transformer.load_state_dict({k: v for k, v in source.items() if k != "lm_head.weight" and not k.endswith((".attn.bias", ".attn.masked_bias"))}, strict=True)
        model.tie_weights()
        ids = torch.randint(0, 95, (1, 30))
        close("gpt2 fixtures", run_prediff(plain, ids, "causal", 0), run_torch(model.float().eval(), ids, "causal", 0), "gpt2_tiny_random/" + name)


# -- adapted checkpoints: the additions of prediff.h beside the model's own tensors --

def sinusoid(t, d):
    half = d // 2
    a = t * torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64) / (half - 1))
    return torch.cat([a.sin(), a.cos()])


def additions(d, n, groups):
    """Random additions of some groups: mask, rate, selfcond, noise."""
    shapes = {"mask.weight": (d,), "rate.0.weight": (4 * d, d), "rate.0.bias": (4 * d,), "rate.2.weight": (d, 4 * d), "rate.2.bias": (d,), "selfcond.weight": (d, d), "selfcond.bias": (d,),
              "noise.0.weight": (4 * d, n), "noise.0.bias": (4 * d,), "noise.2.weight": (d, 4 * d)}
    g = torch.Generator().manual_seed(9)
    return {"prediff." + k: torch.randn(s, generator=g) / s[-1] ** 0.5 for k, s in shapes.items() if k.split(".")[0] in groups}


def embed(w, a, ids, prompt, settings, rate, q, noise):
    """Input vectors: nothing is added at prompt positions; the noise goes through its network at masks alone."""
    f = torch.nn.functional
    a = {k.removeprefix("prediff."): v.double() for k, v in a.items()}
    table = w["model.embed_tokens.weight"].double()
    x = table[[max(t, 0) for t in ids]].clone()
    for i, t in enumerate(ids):
        if t < 0:
            x[i] = a["mask.weight"]
            if "noise.0.weight" in a:
                e = torch.from_numpy(noise[i - prompt]).double() * settings.get("noise.scale", 1)
                x[i] += f.gelu(e @ a["noise.0.weight"].T + a["noise.0.bias"]) @ a["noise.2.weight"].T
    if "rate.0.weight" in a:
        t = min(max(rate, settings.get("rate.min", 0)), settings.get("rate.max", 1)) * settings.get("rate.scale", 1)
        x[prompt:] += f.silu(sinusoid(t, x.shape[1]) @ a["rate.0.weight"].T + a["rate.0.bias"]) @ a["rate.2.weight"].T + a["rate.2.bias"]
    if "selfcond.weight" in a:
        soft = torch.from_numpy(q).double() @ table if q is not None else torch.zeros(len(ids) - prompt, x.shape[1], dtype=torch.float64)
        x[prompt:] += soft @ a["selfcond.weight"].T + a["selfcond.bias"]
    return x


def adapted():
    rng = np.random.default_rng(4)
    d, n_noise, n, prompt, vocab = 64, 24, 70, 25, 259
    ids = [-1 if i >= prompt and i % 2 else int(t) for i, t in enumerate(rng.integers(0, vocab, n))]
    rate = sum(t < 0 for t in ids) / (n - prompt)
    q = rng.dirichlet(np.full(vocab, 0.05), n - prompt).astype(np.float32)
    noise = rng.uniform(-1, 1, (n - prompt, n_noise)).astype(np.float32)
    base = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=vocab, hidden_size=d, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, hidden_act="silu", max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0)
    for groups, tied, settings in ((("mask",), True, {}), (("mask", "rate"), True, {"rate.scale": 2.5}), (("mask", "rate"), False, {"rate.min": 0.6, "rate.scale": 3}),
                                   (("mask", "rate"), True, {"rate.max": 0.25}), (("mask", "selfcond"), False, {}), (("mask", "noise"), True, {"noise.scale": 0.5}),
                                   (("mask", "rate", "selfcond", "noise"), False, {"rate.scale": 2, "rate.max": 0.9, "noise.distribution": "normal", "noise.lifetime": "redraw"})):
        name = "adapted, %s %s" % ("+".join(groups), settings or "")
        w, a = random_llama(tied=tied, seed=50), additions(d, n_noise, groups)
        own = {"version": 1, "attention": "hybrid", **settings, **({"noise.dim": n_noise} if "noise" in groups else {})}
        hf = folder("adapted", {**base, "tie_word_embeddings": tied, "prediff": own}, {**w, **a})
        path = convert(hf, work("model.gguf"))
        for soft in (None, q) if "selfcond" in groups else (None,):
            x = embed(w, a, ids, prompt, settings, rate, soft, noise)
            want = network(w, x, allowed("hybrid", prompt, n), 2, 4, 2, 1e-5, 1e4)[prompt:]
            close("adapted", forward(path, ids, prompt, selfcond=soft, noise=noise if "noise" in groups else None), want, name)
        has_keys(name, path, prediff__version=1, prediff__attention="hybrid")
        if "noise" in groups:
            has_keys(name, path, prediff__noise__dim=n_noise, prediff__noise__lifetime=settings.get("noise.lifetime", "fixed"), prediff__noise__distribution=settings.get("noise.distribution", "uniform"))
        # back to a folder, and once more: the additions come along
        same_folder(name, path, hf)
        again = config(work("back"))["prediff"]
        for key, value in own.items():
            got = again.get(key)
            same = got == value if isinstance(value, str) else got is not None and abs(got - value) < 1e-6
            check(same, "%s: prediff.%s after the way back is %s" % (name, key, got))
        stripped = convert(path, work("plain.gguf"), "--strip")
        close("adapted, stripped", logits(stripped, [max(t, 0) for t in ids]), network(w, w["model.embed_tokens.weight"].double()[[max(t, 0) for t in ids]], allowed("causal", 0, n), 2, 4, 2, 1e-5, 1e4), name + ", stripped")
        # the additions alone, put into the plain model
        extra = folder("extra", {"prediff": own}, a)
        whole = convert(stripped, work("whole.gguf"), "--add", os.path.join(extra, "model.safetensors"))
        x = embed(w, a, ids, prompt, settings, rate, None, noise)
        want = network(w, x, allowed("hybrid", prompt, n), 2, 4, 2, 1e-5, 1e4)[prompt:]
        close("adapted, added", forward(whole, ids, prompt, noise=noise if "noise" in groups else None), want, name + ", added")


fresh()
transformers_models()
for test in (dream, llada, diffugpt, adapted):
    attempt(test.__name__, test)
for group, err in largest.items():
    print("%s: %.2g" % (group, err))
shutil.rmtree(work(""), ignore_errors=True)
end()
