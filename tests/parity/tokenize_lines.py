# SPDX-License-Identifier: MIT
"""Tokenizers: recorded vectors, and the `tokenizers` package on 2,000 lines in eight scripts."""
import json
import os
import random

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parity import SMOLLM2, check, data, encode, end, skip

INP = ["gpt-2", "llama-bpe", "llama-spm", "starcoder", "refact", "mpt", "phi-3"]
JSONL = [("gpt2", "gpt-2"), ("llama3", "llama-bpe"), ("starcoder_smollm_pre", "starcoder")]


def compare(what, model, texts, want):
    got = encode(model, texts)
    wrong = [i for i in range(len(texts)) if got[i] != want[i]]
    if not check(not wrong, "%s: %d of %d texts differ" % (what, len(wrong), len(texts))):
        i = wrong[0]
        print("     ", repr(texts[i])[:160], "\n      got ", got[i][:40], "\n      want", want[i][:40])


def vectors():
    for name, vocab in JSONL:
        path, model = data("tok_vectors/%s.jsonl" % name), data("vocab_gguf/ggml-vocab-%s.gguf" % vocab)
        if not path or not model:
            skip("tok_vectors/" + name)
            continue
        lines = [json.loads(line) for line in open(path, encoding="utf-8")]
        compare("tok_vectors/" + name, model, [x["text"] for x in lines], [x["ids"] for x in lines])
    for vocab in INP:
        model = data("vocab_gguf/ggml-vocab-%s.gguf" % vocab)
        if not model:
            skip("vocab_gguf/" + vocab)
            continue
        texts = open(model + ".inp", "rb").read().decode("utf-8").split("\n__ggml_vocab_test__\n")
        want = [[int(i) for i in line.split()] for line in open(model + ".out", encoding="utf-8").read().split("\n")]
        if texts[-1] == "":
            texts = texts[:-1]
        compare("ggml-vocab-%s.inp" % vocab, model, texts, want[:len(texts)])


RANGES = {
    "Cyrillic": [(0x410, 0x44F), (0x450, 0x45F)], "Greek": [(0x391, 0x3A1), (0x3A3, 0x3CE)], "Arabic": [(0x621, 0x63A), (0x641, 0x652), (0x660, 0x669)],
    "Devanagari": [(0x904, 0x939), (0x93E, 0x94D), (0x966, 0x96F)], "CJK": [(0x4E00, 0x9FA5), (0x3041, 0x3096), (0x30A1, 0x30FA)],
    "Hangul": [(0xAC00, 0xD7A3)], "Thai": [(0xE01, 0xE3A), (0xE40, 0xE5B)], "emoji": [(0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F900, 0x1F9FF), (0x200D, 0x200D), (0xFE0F, 0xFE0F)],
}


def synthetic(r, ranges):
    """A line of words of a script, with the marks, digits and spaces that trouble splitters."""
    parts = []
    for _ in range(r.randint(1, 14)):
        word = "".join(chr(r.randint(*r.choice(ranges))) for _ in range(r.randint(1, 9)))
        parts.append(r.choice([word, word, word, word, "hello", "'s", "12", "1234567", "x2", "!?", "...", "\t", "\n", "  ", "\u00a0", "'LL", "don't", "\u3000"]))
        parts.append(r.choice(["", " ", " ", " ", "  ", "-", ", ", "\n\n", " \n "]))
    return "".join(parts)


def lines():
    r = random.Random(1)
    out = []
    latin = []
    for name in ("demo_corpus/valid.txt", "wikitext2/wiki.test.raw"):
        path = data(name)
        if path:
            text = open(path, encoding="utf-8").read(400000).split("\n")
            latin += [x[:300] for x in text if x.strip()]
    r.shuffle(latin)
    path = data("tok_vectors/gpt2.jsonl")
    known = [json.loads(x)["text"][:300] for x in open(path, encoding="utf-8")] if path else []
    out += latin[:180] + known[:120]
    for name in sorted(RANGES):
        out += [synthetic(r, RANGES[name]) for _ in range(213)]
    return [x for x in out if "\ufeff" not in x and "\u0085" not in x][:2000]


def byte_level(vocab, merges, pre):
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=False))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    return t


def from_gguf(path, what):
    f = gguf.GGUFReader(path)
    get = lambda key: f.fields[key].contents()
    tokens = get("tokenizer.ggml.tokens")
    vocab = {t: i for i, t in enumerate(tokens)}
    if what == "spm":
        return spm(tokens, get("tokenizer.ggml.scores"), vocab)
    merges = [tuple(m.split(" ")) for m in get("tokenizer.ggml.merges")]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return byte_level(vocab, merges, level if what == "gpt-2" else pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]))


def spm(tokens, scores, vocab):
    """A SentencePiece BPE model as merges: every pair of pieces whose union is a piece, by that piece's score."""
    merges = []
    for i, piece in enumerate(tokens):
        for cut in range(1, len(piece)):
            a, b = piece[:cut], piece[cut:]
            if a in vocab and b in vocab and not piece.startswith("<0x"):
                merges.append((-scores[i], vocab[a], vocab[b], a, b))
    merges.sort()
    t = Tokenizer(models.BPE(vocab=vocab, merges=[m[3:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return t


def packages():
    texts = lines()
    check(len(texts) >= 1900, "only %d lines (part of the data is missing)" % len(texts))
    for name, make, model in [
            ("gpt-2", lambda m: from_gguf(m, "gpt-2"), data("vocab_gguf/ggml-vocab-gpt-2.gguf")),
            ("llama-3", lambda m: Tokenizer.from_file(data("tok_llama3/tokenizer.json")), data("vocab_gguf/ggml-vocab-llama-bpe.gguf")),
            ("starcoder", lambda m: from_gguf(m, "digits"), data("vocab_gguf/ggml-vocab-starcoder.gguf")),
            ("smollm2", lambda m: from_gguf(m, "digits"), SMOLLM2 if os.path.exists(SMOLLM2) else None),
            ("llama-spm", lambda m: from_gguf(m, "spm"), data("vocab_gguf/ggml-vocab-llama-spm.gguf"))]:
        if not model:
            skip("tokenizers package, " + name)
            continue
        t = make(model)
        some = [x for x in texts if x]
        compare("tokenizers package, " + name, model, some, [t.encode(x, add_special_tokens=False).ids for x in some])


vectors()
packages()
end()
