# SPDX-License-Identifier: MIT
"""SmolLM2-135M-Instruct (Q4_1) against what transformers computed in float32 from the same file."""
import hashlib
import json
import os

import numpy as np

from parity import DATA, OUT, PREDIFF, SMOLLM2, check, data, encode, end, logits, run, skip

EOS = 2


def prediff(*args):
    return json.loads(run([PREDIFF, *args, "--json"]).decode().strip().split("\n")[-1])


def prompts(expected):
    for p in expected["prompts"]:
        name = repr(p["prompt"][:40])
        check(encode(SMOLLM2, [p["prompt"]], special=True)[0] == p["prompt_ids"], "prompt ids of " + name)
        row = logits(SMOLLM2, p["prompt_ids"])[-1].astype(np.float64)
        row -= row.max()
        row -= np.log(np.exp(row).sum())
        worst = max(abs(row[i] - value) for i, value in p["first_top5_logprob"])
        check(worst < 1e-3, "%s: first log-probabilities off by %g" % (name, worst))
        check([int(i) for i in np.argsort(-row, kind="stable")[:5]] == [i for i, _ in p["first_top5_logprob"]], name + ": the five best tokens")
        want = p["greedy_ids"]
        got = prediff("generate", "-m", SMOLLM2, "-p", p["prompt"], "-n", "64", "--ignore-eos")
        check(got["tokens"] == want, "%s: all 64 greedy ids: %s" % (name, got["tokens"]))
        check(got["tokens_emitted"] == 64 and got["prompt_tokens"] == len(p["prompt_ids"]), name + ": counters")
        cut = want[:want.index(EOS) + 1] if EOS in want else want
        got = prediff("generate", "-m", SMOLLM2, "-p", p["prompt"], "-n", "64")
        check(got["tokens"] == cut and got["tokens_emitted"] == len(cut), "%s: greedy ids up to the first end of text: %s" % (name, got["tokens"]))


def perplexity(expected):
    wiki = data("wikitext2/wiki.test.raw")
    if not wiki:
        return skip("wikitext2")
    x = expected["perplexity"]
    text = open(wiki, "rb").read()[:20000].decode("utf-8", "ignore").encode()
    ids = encode(SMOLLM2, [text])[0]
    check(len(ids) == x["n_ids"] and ids[:16] == x["first_ids"], "ids of the WikiText-2 piece (%d)" % len(ids))
    path = os.path.join(OUT, "parity_wiki.txt")
    with open(path, "wb") as f:
        f.write(text)
    got = prediff("eval", "-m", SMOLLM2, "-f", path, "--task", "ppl", "--window", str(x["window"]), "--limit", str(len(x["window_nats"])))
    nats = got.get("nats_per_token", got.get("mean_nats"))
    check(nats is not None and abs(nats / x["mean_nats"] - 1) < 1e-4, "mean nats %s, expected %.6f (%s)" % (nats, x["mean_nats"], sorted(got)))


def main():
    path = data("smollm2_expected/expected.json")
    if not path:
        return skip("smollm2_expected is not in " + DATA)
    if not os.path.exists(SMOLLM2):
        return skip("the SmolLM2 file could not be had")
    expected = json.load(open(path, encoding="utf-8"))
    with open(SMOLLM2, "rb") as f:
        if not check(hashlib.sha256(f.read()).hexdigest() == expected["model_sha256"], "the SmolLM2 file is not the one the values were made from"):
            return
    prompts(expected)
    perplexity(expected)


main()
end()
