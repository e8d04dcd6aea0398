# SPDX-License-Identifier: MIT
"""Files of prediff-convert in llama.cpp: the same tokens, the same logits, the same greedy text, all in float32."""
import json
import os
import shutil
import struct

import numpy as np
from llama_cpp import Llama

from parity import OUT, PREDIFF, SMOLLM2, check, data, encode, end, logits, run, skip

CONVERT = os.environ.get("PARITY_CONVERT", "build/prediff-convert")
WORK = os.path.join(OUT, "parity_llama")
rng = np.random.default_rng(2)


def work(name):
    return os.path.join(WORK, name)


def save(path, tensors):
    """A file of safetensors, all F32."""
    at, header = 0, {}
    for name, a in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in tensors.values():
            f.write(a.tobytes())


def matrix(rows, cols, scale=1.0):
    return (rng.standard_normal((rows, cols)) * scale / cols ** 0.5).astype(np.float32)


def vector(n, middle=1.0):
    return (middle + 0.2 * rng.standard_normal(n)).astype(np.float32)


def llama_like(vocab, d, heads, heads_kv, head, ff, layers, bias, tied):
    w = {"model.embed_tokens.weight": matrix(vocab, d, d ** 0.5), "model.norm.weight": vector(d)}
    for i in range(layers):
        p = "model.layers.%d." % i
        w[p + "input_layernorm.weight"], w[p + "post_attention_layernorm.weight"] = vector(d), vector(d)
        for name, rows, cols in (("q", heads * head, d), ("k", heads_kv * head, d), ("v", heads_kv * head, d), ("o", d, heads * head)):
            w[p + "self_attn.%s_proj.weight" % name] = matrix(rows, cols)
            if bias and name != "o":
                w[p + "self_attn.%s_proj.bias" % name] = vector(rows, 0)
        for name, rows, cols in (("gate", ff, d), ("up", ff, d), ("down", d, ff)):
            w[p + "mlp.%s_proj.weight" % name] = matrix(rows, cols)
    if not tied:
        w["lm_head.weight"] = matrix(vocab, d)
    return w


def gpt2_like(vocab, d, ff, layers, positions):
    w = {"transformer.wte.weight": matrix(vocab, d, d ** 0.5), "transformer.wpe.weight": matrix(positions, d), "transformer.ln_f.weight": vector(d), "transformer.ln_f.bias": vector(d, 0)}
    for i in range(layers):
        p = "transformer.h.%d." % i
        for name in ("ln_1", "ln_2"):
            w[p + name + ".weight"], w[p + name + ".bias"] = vector(d), vector(d, 0)
        for name, rows, cols in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, ff), ("mlp.c_proj", ff, d)):
            w[p + name + ".weight"], w[p + name + ".bias"] = matrix(cols, rows).T.copy(), vector(cols, 0)
    return w


def folder(name, config, tensors, *files):
    path = work(name)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    save(os.path.join(path, "model.safetensors"), tensors)
    for file in files:
        shutil.copy(file, path)
    return path


def convert(source, name, *options):
    run([CONVERT, "-q", "--force", source, work(name), *options])
    return work(name)


def compare(name, path, prompt_ids, n, texts=()):
    """n greedy tokens by llama.cpp; its logits on the way against ours."""
    m = Llama(path, n_ctx=len(prompt_ids) + n, n_batch=256, n_threads=2, logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False, use_mmap=False)
    m.eval(prompt_ids)
    ids = list(prompt_ids)
    for _ in range(n):
        ids.append(int(np.argmax(m.scores[len(ids) - 1])))
        m.eval(ids[-1:])
    theirs = np.array(m.scores[:len(ids)], dtype=np.float64)
    ours = logits(path, ids).astype(np.float64)
    err = np.abs(theirs - ours).max() / np.abs(theirs).max()
    check(err < 1e-3, "%s: logits differ by %g relative" % (name, err))
    rows = range(len(prompt_ids) - 1, len(ids) - 1)
    check([int(ours[i].argmax()) for i in rows] == ids[len(prompt_ids):], name + ": greedy tokens")
    for text in texts:
        want = m.tokenize(text.encode("utf-8"), add_bos=False, special=False)
        check(encode(path, [text])[0] == want, "%s: ids of %r" % (name, text))
    print("%s: relative error %.2g" % (name, err))
    return ids[len(prompt_ids):]


def attempt(name, test, *args):
    """What llama.cpp does not load is one failure, and the others still run."""
    try:
        test(*args)
    except (RuntimeError, OSError, ValueError) as e:
        check(False, "%s: %s" % (name, e))


def smollm2():
    path = data("smollm2_expected/expected.json")
    if not path or not os.path.exists(SMOLLM2):
        return skip("SmolLM2")
    expected = json.load(open(path, encoding="utf-8"))
    run([CONVERT, "-q", "--force", SMOLLM2, work("smol-hf"), "--to", "hf"])
    model = convert(work("smol-hf"), "smol.gguf")
    for p in expected["prompts"][:3]:
        name = "SmolLM2, %r" % p["prompt"][:30]
        check(compare(name, model, p["prompt_ids"], 64, [p["prompt"]]) == p["greedy_ids"], name + ": greedy ids")
        got = json.loads(run([PREDIFF, "generate", "-m", model, "-p", p["prompt"], "-n", "64", "--ignore-eos", "--json"]).decode().strip().split("\n")[-1])
        check(got["tokens"] == p["greedy_ids"], name + ": greedy ids of prediff")
    return None


def random_models():
    prompt = [5, 300, 17, 42, 7, 256, 90, 11, 33]
    texts = ["Hello, world! It's 2,048 x 3.14", "na\u00efve \u4f60\u597d \U0001f600  two\n\nlines"]
    base = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
                rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu")
    rope3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    for name, tokenizer, vocab, more, bias, tied in (                     # llama.cpp wants 64 / 4 wide heads of qwen2
            ("llama3 rotary", "tok_llama3/tokenizer.json", 128256, dict(model_type="llama", rope_scaling=rope3), False, True),
            ("linear rotary", "tok_llama3/tokenizer.json", 128256, dict(model_type="llama", rope_scaling=dict(type="linear", factor=4.0)), False, False),
            ("qwen2", "vocab_gguf/ggml-vocab-qwen2.gguf", 151936, dict(model_type="qwen2", head_dim=16), True, False),
            ("qwen2, padded rows", "vocab_gguf/ggml-vocab-qwen2.gguf", 152064, dict(model_type="qwen2", head_dim=16), True, True)):
        if not data(tokenizer):
            skip(tokenizer)
            continue
        c = {**base, **more, "vocab_size": vocab, "tie_word_embeddings": tied}
        hf = folder(name.replace(" ", "-"), c, llama_like(vocab, 64, 4, 2, c["head_dim"], 160, 2, bias, tied))
        attempt(name, compare, name, convert(hf, "model.gguf", "--tokenizer", data(tokenizer)), prompt, 48, texts)
    if data("tok_gpt2/vocab.json"):
        c = dict(model_type="gpt2", n_embd=64, n_inner=200, n_layer=2, n_head=4, n_positions=128, vocab_size=50257, activation_function="gelu_new", layer_norm_epsilon=1e-5)
        hf = folder("gpt2", c, gpt2_like(50257, 64, 200, 2, 128), data("tok_gpt2/vocab.json"), data("tok_gpt2/merges.txt"))
        attempt("gpt2", compare, "gpt2", convert(hf, "model.gguf"), prompt, 48, texts)
    if data("stories260k/hf"):
        attempt("stories260K", compare, "stories260K", convert(data("stories260k/hf"), "model.gguf"), [1], 120, ["Once upon a time, there was Zo\u00eb."])


shutil.rmtree(WORK, ignore_errors=True)
os.makedirs(WORK)
for test in (smollm2, random_models):
    attempt(test.__name__, test)
shutil.rmtree(WORK)
end()
