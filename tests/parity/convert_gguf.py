# SPDX-License-Identifier: MIT
"""Files of prediff-convert read by the gguf package; SmolLM2 to a Hugging Face folder, through transformers, and back."""
import json
import os
import shutil
import unicodedata

import gguf
import gguf.quants
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from convert_tools import config, convert, folder, fresh, random_llama, tensors, work
from parity import PREDIFF, SMOLLM2, check, data, encode, end, floats, run, skip

torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
Q = gguf.GGMLQuantizationType
TYPES = {"f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0, "q4_0": Q.Q4_0}
FILE_TYPES = {Q.F32: 0, Q.F16: 1, Q.Q4_0: 2, Q.Q8_0: 7, Q.BF16: 32}
BLOCK = {"q8_0": 34, "q4_0": 18}
total, differing = {k: 0 for k in BLOCK}, {k: 0 for k in BLOCK}


def raw(t):
    return np.ascontiguousarray(np.asarray(t.data)).view(np.uint8).reshape(-1)


def values(t):
    if t.tensor_type == Q.F32:
        return np.asarray(t.data, dtype=np.float32).reshape(-1)
    return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1)


def on_boundary(x, kind):
    """Which blocks hold a value whose quotient by the scale lies within float rounding of where the quantiser rounds up or down."""
    x = x.astype(np.float64)
    if kind == "q8_0":
        d = np.abs(x).max(1, keepdims=True) / 127
        y = x / np.where(d > 0, d, 1)
        off = np.abs(np.abs(y) % 1 - 0.5)
    else:
        top = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
        d = top / -8
        y = x / np.where(d != 0, d, 1) + 8.5
        off = np.minimum(y % 1, 1 - y % 1)
    return (off < 1e-5).any(1)


def blocks(name, x, t, kind):
    """Stored bytes against the package's quantiser. The package rounds x * (1 / d) in double (Q4_0) or exactly (Q8_0), the library
    in float: only a value on a boundary may fall to its other side, and by one."""
    with np.errstate(all="ignore"):
        want = np.ascontiguousarray(gguf.quants.quantize(x, TYPES[kind])).view(np.uint8).reshape(-1)
    got = raw(t)
    if kind not in BLOCK:
        return check(np.array_equal(want, got), "%s as %s: bytes differ from the gguf package" % (name, kind))
    want, got = want.reshape(-1, BLOCK[kind]), got.reshape(-1, BLOCK[kind])
    differ = (want != got).any(1)
    total[kind] += len(want)
    differing[kind] += int(differ.sum())
    check(np.array_equal(want[:, :2], got[:, :2]), "%s as %s: scales differ" % (name, kind))
    wrong = int((~on_boundary(x.reshape(-1, 32)[differ], kind)).sum()) if differ.any() else 0
    check(not wrong, "%s as %s: %d blocks differ without a value on a boundary" % (name, kind, wrong))


def every_type(name, hf):
    """A folder as each type: keys, shapes, types and values of every tensor, bytes of every block."""
    source = {t.name: t for t in gguf.GGUFReader(convert(hf, work("f32.gguf"), "--type", "f32")).tensors}
    for kind, number in TYPES.items():
        path = convert(hf, work("out.gguf"), "--type", kind)
        r = gguf.GGUFReader(path)
        main = number if number in [t.tensor_type for t in r.tensors if len(t.shape) > 1] else Q.F16
        check(r.fields["general.file_type"].contents() == FILE_TYPES[main], "%s as %s: general.file_type" % (name, kind))
        check([t.name for t in r.tensors] == list(source), "%s as %s: the tensors" % (name, kind))
        for t in r.tensors:
            a = source[t.name]
            small = len(a.shape) == 1 or t.name == "position_embd.weight"
            want = Q.F32 if small else number if kind not in BLOCK or a.shape[0] % 32 == 0 else Q.F16
            check(list(t.shape) == list(a.shape) and t.tensor_type == want, "%s as %s: %s is %s of %s" % (name, kind, t.name, t.tensor_type, list(t.shape)))
            check(np.array_equal(values(t), floats(path, t.name)), "%s as %s: values of %s" % (name, kind, t.name))
            if t.tensor_type == number and not small:
                blocks(t.name, np.asarray(a.data, dtype=np.float32).reshape(a.shape[::-1]), t, kind)
    return source


def own_models():
    w = random_llama(layers=2, d=256, heads=8, heads_kv=4, head=32, ff=512, vocab=1000, seed=3)
    w["model.layers.0.mlp.up_proj.weight"][0] = 0                        # a block of zeros
    w["model.layers.0.mlp.up_proj.weight"][1] *= 1e4
    w["model.layers.0.mlp.up_proj.weight"][2] *= 1e-6                    # scales below the halves' normal range
    c = dict(model_type="llama", vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
             max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
    got = every_type("llama", folder("llama", c, w))
    # the tensors themselves, query and key rows from halves (i, i + E/2) to neighbours (2i, 2i + 1)
    pairs = lambda a, heads: a.reshape(heads, 2, -1, a.shape[1]).swapaxes(1, 2).reshape(a.shape)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    want = {"token_embd.weight": w["model.embed_tokens.weight"], "output.weight": w["lm_head.weight"], "output_norm.weight": w["model.norm.weight"]}
    want.update({"blk.%d.%s.weight" % (i, a): w["model.layers.%d.%s.weight" % (i, b)] for i in range(2) for a, b in names.items()})
    check(sorted(got) == sorted(want), "llama: names %s" % sorted(set(got) ^ set(want)))
    for name in set(got) & set(want):
        a = want[name].numpy()
        heads = {"attn_q": 8, "attn_k": 4}.get(name.split(".")[-2])
        check(np.array_equal(np.asarray(got[name].data).reshape(a.shape), pairs(a, heads) if heads else a), "llama: values of " + name)
    narrow = random_llama(d=80, heads=4, heads_kv=4, head=20, ff=100, vocab=61, seed=8)                      # nothing is a whole block
    c = dict(model_type="qwen2", vocab_size=61, hidden_size=80, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
             rms_norm_eps=1e-6, tie_word_embeddings=False)
    every_type("qwen2, narrow", folder("narrow", c, narrow))


def stories():
    """Against the file that was made with other tools from the same weights."""
    hf, theirs = data("stories260k/hf"), data("stories260k/stories260K-f32.gguf")
    if not hf or not theirs:
        return skip("stories260k")
    got = every_type("stories260K", hf)
    r = gguf.GGUFReader(theirs)
    for t in r.tensors:
        check(t.name in got and np.array_equal(np.asarray(got[t.name].data), np.asarray(t.data)), "stories260K: values of " + t.name)
    binary = convert(data("stories260k/stories260K.bin"), work("bin.gguf"), "--tokenizer", data("stories260k/tok512.bin"))
    for form, path, passed_over in (("hf", work("f32.gguf"), ["tokenizer.ggml.scores"]), ("bin", binary, [])):      # tokenizer.json has ranks, no scores
        ours = gguf.GGUFReader(path).fields
        for key, field in r.fields.items():
            if not key.startswith("GGUF.") and key not in ["general.name", "tokenizer.ggml.pre", *passed_over]:
                check(key in ours and ours[key].contents() == field.contents() and ours[key].types == field.types, "stories260K, %s: key %s is %s, not %s"
                      % (form, key, str(ours[key].contents())[:60] if key in ours else None, str(field.contents())[:60]))
    return None


def greedy(path, prompt):
    return json.loads(run([PREDIFF, "generate", "-m", path, "-p", prompt, "-n", "64", "--ignore-eos", "--json"]).decode().strip().split("\n")[-1])["tokens"]


def smollm2():
    path = data("smollm2_expected/expected.json")
    if not path or not os.path.exists(SMOLLM2):
        return skip("SmolLM2: the file or its expected values")
    prompts = json.load(open(path, encoding="utf-8"))["prompts"]
    whole = convert(SMOLLM2, work("whole.gguf"), "--type", "f32")
    hf = convert(SMOLLM2, work("smol"), "--to", "hf")
    back = convert(hf, work("back.gguf"))
    readers = [gguf.GGUFReader(p) for p in (whole, back)]
    a, b = ({t.name: t for t in r.tensors} for r in readers)
    check(sorted(a) == sorted(b) and all(np.array_equal(np.asarray(a[k].data), np.asarray(b[k].data)) for k in set(a) & set(b)), "SmolLM2: tensors after the way to a folder and back")
    fields, others = (r.fields for r in readers)
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id",
                "tokenizer.ggml.eos_token_id", "llama.rope.freq_base", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"):
        check(key in others and fields[key].contents() == others[key].contents(), "SmolLM2: key %s after the way back" % key)
    for i, p in enumerate(prompts):
        name = "SmolLM2, %r" % p["prompt"][:30]
        if i == 0:
            check(greedy(back, p["prompt"]) == p["greedy_ids"], name + ": greedy ids after the way to a folder and back")
        check(encode(back, [p["prompt"]], special=True)[0] == p["prompt_ids"], name + ": ids of the prompt after the way back")
    in_transformers(hf, prompts)
    os.remove(os.path.join(hf, "tokenizer.json"))                        # the package takes seconds to read one
    for kind in BLOCK:
        r = {t.name: t for t in gguf.GGUFReader(convert(hf, work("out.gguf"), "--type", kind)).tensors}
        for t in ("token_embd.weight", "blk.0.attn_q.weight", "blk.17.ffn_down.weight", "blk.29.ffn_up.weight"):
            blocks(t, np.asarray(a[t].data, dtype=np.float32), r[t], kind)
    return None


def in_transformers(hf, prompts):
    """The folder as a user of PyTorch loads it."""
    tokenizer = AutoTokenizer.from_pretrained(hf)
    model, info = AutoModelForCausalLM.from_pretrained(hf, output_loading_info=True, dtype=torch.float32)
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], "SmolLM2 in transformers: %s" % str(info)[:300])
    check(config(hf)["num_hidden_layers"] == 30 and len(tensors(hf)) == 272, "SmolLM2: %d tensors in the folder" % len(tensors(hf)))
    for p in prompts:
        name = "SmolLM2 in transformers, %r" % p["prompt"][:30]
        ids = tokenizer(p["prompt"], add_special_tokens=False)["input_ids"]
        check(ids == p["prompt_ids"], name + ": ids of the prompt: %s" % ids[:12])
        if p is not prompts[0]:
            continue
        with torch.no_grad():
            out = model.generate(torch.tensor([p["prompt_ids"]]), attention_mask=torch.ones(1, len(p["prompt_ids"]), dtype=torch.long), max_new_tokens=32, min_new_tokens=32,
                                 do_sample=False, eos_token_id=[], pad_token_id=0)
        check(out[0, len(p["prompt_ids"]):].tolist() == p["greedy_ids"][:32], name + ": greedy ids")
    lines = ["  two  spaces\n\n", "I'm, you're; it'll 2,048 x 3.14", "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600\t\ttabs", "def f(x):\n    return x ** 2\n", "<|im_start|>user"]
    for line, got in zip(lines, encode(SMOLLM2, lines, special=True)):
        check(tokenizer(line, add_special_tokens=False)["input_ids"] == got, "SmolLM2 in transformers: ids of %r" % line)
        check(tokenizer.decode(got, skip_special_tokens=False, clean_up_tokenization_spaces=False) == line, "SmolLM2 in transformers: text of %r" % line)


def tokenizers():
    """Tokenizers that went into a GGUF file and out into a folder, in transformers: the ids of llama.cpp's test texts."""
    for name, source, vocab in (("gpt-2", "tok_gpt2", "gpt-2"), ("llama-bpe", "tok_llama3/tokenizer.json", "llama-bpe"), ("qwen2", "vocab_gguf/ggml-vocab-qwen2.gguf", "qwen2"),
                                ("llama-spm", "llama2c/tokenizer.model", "llama-spm"), ("llama-spm of a GGUF", "vocab_gguf/ggml-vocab-llama-spm.gguf", "llama-spm"),
                                ("starcoder", "tok_starcoder/tokenizer.json", "starcoder")):
        path, texts = data(source), data("vocab_gguf/ggml-vocab-%s.gguf.inp" % vocab)
        if not path or not texts:
            skip("tokenizer " + source)
            continue
        rows = {"gpt-2": 50257, "llama-bpe": 128256, "qwen2": 152064, "llama-spm": 32000}.get(vocab, 49216)
        c = dict(model_type="llama", vocab_size=rows, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
                 tie_word_embeddings=True)
        hf = folder("tok", c, random_llama(layers=1, d=32, heads=2, heads_kv=2, head=16, ff=32, vocab=rows, tied=True))
        if os.path.isdir(path):
            for file in ("vocab.json", "merges.txt"):
                shutil.copy(os.path.join(path, file), hf)
            model = convert(hf, work("tok.gguf"))
        else:
            model = convert(hf, work("tok.gguf"), "--tokenizer", path)
        there = AutoTokenizer.from_pretrained(convert(model, work("tok-hf"), "--to", "hf"))
        lines = open(texts, "rb").read().decode("utf-8").split("\n__ggml_vocab_test__\n")
        want = [[int(i) for i in line.split()] for line in open(texts[:-4] + ".out", encoding="utf-8").read().split("\n")]
        if name == "qwen2":                                              # it composes characters first, prediff does not
            keep = [i for i, line in enumerate(lines) if unicodedata.is_normalized("NFC", line)]
            lines, want = [lines[i] for i in keep], [want[i] for i in keep]
        for who, got in (("prediff", encode(model, lines)), ("transformers", [there(line, add_special_tokens=False)["input_ids"] for line in lines])):
            wrong = [i for i in range(len(lines)) if got[i] != want[i]]
            check(not wrong, "%s: %d of %d texts differ in %s: %r %s" % (name, len(wrong), len(lines), who, lines[wrong[0]][:60] if wrong else "", (got[wrong[0]][:16], want[wrong[0]][:16]) if wrong else ""))
        if rows > 60000:                                                 # the package takes seconds to read so many merges
            continue
        again = convert(work("tok-hf"), work("again.gguf"))
        a, b = gguf.GGUFReader(model).fields, gguf.GGUFReader(again).fields
        for key in a:
            if key.startswith("tokenizer.") and key != "tokenizer.ggml.scores":
                check(key in b and a[key].contents() == b[key].contents(), "%s: %s after the way to a folder and back" % (name, key))


fresh()
for test in (own_models, stories, tokenizers, smollm2):
    try:
        test()
    except (RuntimeError, OSError, ValueError, KeyError) as e:
        check(False, "%s: %s" % (test.__name__, e))
for kind in BLOCK:
    print("%s: %d of %d blocks differ from the gguf package%s" % (kind, differing[kind], total[kind], ", by a value on a rounding boundary" if differing[kind] else ""))
shutil.rmtree(work(""), ignore_errors=True)
end()
