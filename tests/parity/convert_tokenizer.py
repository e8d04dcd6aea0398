# SPDX-License-Identifier: MIT
"""The converter's tokenizers: a folder to GGUF and back to a folder, beside the `tokenizers` package and AutoTokenizer."""
import json
import os
import shutil
import tempfile

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from parity import check, data, encode, end, run, skip

CONVERT = os.environ.get("PARITY_CONVERT", "build/prediff-convert")
# name, its files, how many tokens, and how to encode with the original: its tokenizer.json, or recorded vectors
SOURCES = [
    ("gpt2", ["tok_gpt2/vocab.json", "tok_gpt2/merges.txt"], 50257, None),
    ("llama3", ["tok_llama3/tokenizer.json", "tok_llama3/tokenizer_config.json"], 128256, "tokenizer.json"),
    ("starcoder_smollm_pre", ["tok_starcoder/tokenizer.json"], 49152, "tokenizer.json"),
    ("stories", ["stories260k/hf/tokenizer.json"], 512, "tokenizer.json"),
    ("llama2", ["llama2c/tokenizer.model"], 32000, None),
]


def tiny_model(folder, vocabulary):
    """The smallest Llama that holds this many tokens."""
    one = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": vocabulary,
           "model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
           "hidden_act": "silu", "tie_word_embeddings": True}
    with open(folder + "/config.json", "w", encoding="utf-8") as f:
        json.dump(one, f)
    layer = "model.layers.0."
    tensors = {layer + name + ".weight": (32, 32) for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                                                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]}
    tensors.update({layer + "input_layernorm.weight": (32,), layer + "post_attention_layernorm.weight": (32,), "model.norm.weight": (32,),
                    "model.embed_tokens.weight": (vocabulary, 32)})
    save_file({name: np.zeros(shape, dtype=np.float16) for name, shape in tensors.items()}, folder + "/model.safetensors", metadata={"format": "pt"})


def lines():
    """Recorded texts, and pieces of them stuck together."""
    texts = []
    for name in ["gpt2", "llama3"]:
        path = data("tok_vectors/%s.jsonl" % name)
        if path:
            texts += [json.loads(line)["text"] for line in open(path, encoding="utf-8")]
    texts = sorted(set(texts))
    return texts + [a[:40] + b[-40:] for a, b in zip(texts, texts[7:])]


def same(what, got, want, texts):
    wrong = [i for i in range(len(texts)) if got[i] != want[i]]
    if not check(not wrong, "%s: %d of %d texts differ" % (what, len(wrong), len(texts))):
        print("     ", repr(texts[wrong[0]])[:160], "\n      got ", got[wrong[0]][:40], "\n      want", want[wrong[0]][:40])


def one(work, name, files, vocabulary, original, texts):
    source, gguf, back = work + "/in", work + "/model.gguf", work + "/out"
    os.mkdir(source)
    tiny_model(source, vocabulary)
    for f in files:
        shutil.copy(data(f), source)
    run([CONVERT, source, gguf, "-q"])
    run([CONVERT, gguf, back, "--to", "hf", "-q"])
    ours = encode(gguf, texts, special=True)       # theirs always make special tokens of their text
    exported = Tokenizer.from_file(back + "/tokenizer.json")
    same(name + ": tokenizers on what we wrote", [exported.encode(t, add_special_tokens=False).ids for t in texts], ours, texts)
    auto = AutoTokenizer.from_pretrained(back)
    same(name + ": AutoTokenizer on what we wrote", [auto.encode(t, add_special_tokens=False) for t in texts], ours, texts)
    check(auto.encode("Hi", add_special_tokens=True) == exported.encode("Hi").ids, name + ": AutoTokenizer adds other tokens than the file says")
    if original:
        first = Tokenizer.from_file(source + "/" + original)
        same(name + ": the original tokenizer.json", ours, [first.encode(t, add_special_tokens=False).ids for t in texts], texts)
        check(first.encode("Hi").ids == exported.encode("Hi").ids, name + ": other tokens are added than by the original")
    path = data("tok_vectors/%s.jsonl" % name)
    if path:
        known = [json.loads(line) for line in open(path, encoding="utf-8")]
        same(name + ": recorded vectors", encode(gguf, [x["text"] for x in known]), [x["ids"] for x in known], [x["text"] for x in known])


def main():
    texts = lines()
    if not texts or not os.path.exists(CONVERT):
        skip("convert_tokenizer: no texts, or no " + CONVERT)
        end()
    for name, files, vocabulary, original in SOURCES:
        if not all(data(f) for f in files):
            skip("convert_tokenizer: " + name)
            continue
        with tempfile.TemporaryDirectory() as work:
            one(work, name, files, vocabulary, original, texts)
    end()


main()
