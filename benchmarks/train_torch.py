#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A training step beside PyTorch's, in turn in one run: `make bench-train-torch`.

    train_torch.py [gpt2-124m | story-3m] [--rounds 7] [--threads 2]

Each round times the same causal step (forward, backward, clip, AdamW; float32) of build/bench-train and of transformers' model of the
same shape, eager, each in its own process, three steps after a warm-up. Prints medians, spreads and the ratio round by round.
Wants a Python that has torch and transformers (tests/parity/requirements.txt pins them; `make parity` makes build/parity/venv).
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

SHAPES = {"gpt2-124m": (4, 64, 50257), "story-3m": (24, 256, 2048)}


def model_of(name):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    if name == "gpt2-124m":
        return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return LlamaForCausalLM(LlamaConfig(vocab_size=2048, hidden_size=192, intermediate_size=576, num_hidden_layers=6,
                                        num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=256,
                                        tie_word_embeddings=True))


def torch_steps(name, threads, repeats=3):
    """Milliseconds of each step, after one that warms up."""
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    batch, length, vocab = SHAPES[name]
    model = model_of(name).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    ids = torch.randint(vocab, (batch, length))
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        optimiser.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def run(command, pattern, env):
    said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return float(re.search(pattern, said).group(1)), said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", nargs="?", default="story-3m", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print("median", statistics.median(torch_steps(args.shape, args.threads)))
        return
    import torch
    env = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS=str(args.threads))
    threads = str(args.threads)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ms, said = run(["build/bench-train", args.shape, "-t", threads, "-r", "3"], r"median ([0-9.]+) ms", env)
        ours.append(ms)
        theirs.append(run([sys.executable, __file__, args.shape, "--threads", threads, "--worker"], r"median ([0-9.]+)", env)[0])
    batch, length, _ = SHAPES[args.shape]
    print(", ".join(said.split(", ")[:2]) + f", {threads} threads, {args.rounds} rounds of 3 steps each, in turn")
    for who, ms in (("prediff.h", ours), (f"PyTorch {torch.__version__}", theirs)):
        m = statistics.median(ms)
        print(f"{who}: median {m:.0f} ms a step ({min(ms):.0f} to {max(ms):.0f}), {1e3 * batch * length / m:.0f} tokens/s")
    ratio = [t / o for t, o in zip(theirs, ours)]
    print(f"PyTorch's time over ours: median {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})")


if __name__ == "__main__":
    main()
