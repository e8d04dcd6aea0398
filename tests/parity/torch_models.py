# SPDX-License-Identifier: MIT
"""Random tiny GPT-2 and Llama models: transformers against prediff.h, through GGUF files written with the gguf package."""
import os

import gguf
import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from parity import OUT, check, end, logits

torch.manual_seed(7)
torch.set_num_threads(2)


def array(t):
    return t.detach().to(torch.float32).numpy().copy()


def shake(model):
    """Weights far from their initial values, so that every term matters."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.08))
    return model.eval()


def begin(path, arch, c, n_ctx, width, layers, heads, ff):
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(n_ctx)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def save_gpt2(model, path):
    c, s = model.config, model.state_dict()
    w = begin(path, "gpt2", c, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.n_inner or 4 * c.n_embd)
    w.add_layer_norm_eps(c.layer_norm_epsilon)
    w.add_tensor("token_embd.weight", array(s["transformer.wte.weight"]))
    w.add_tensor("position_embd.weight", array(s["transformer.wpe.weight"]))
    names = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for i in range(c.n_layer):
        for theirs, ours in names.items():
            a = array(s["transformer.h.%d.%s.weight" % (i, theirs)])
            w.add_tensor("blk.%d.%s.weight" % (i, ours), np.ascontiguousarray(a.T) if a.ndim == 2 else a)    # Conv1D keeps [in][out]
            w.add_tensor("blk.%d.%s.bias" % (i, ours), array(s["transformer.h.%d.%s.bias" % (i, theirs)]))
    for part in ("weight", "bias"):
        w.add_tensor("output_norm." + part, array(s["transformer.ln_f." + part]))
    finish(w)


def pairs(a, heads):
    """Rows of a query or key matrix from halves (i, i + E/2) to neighbours (2i, 2i + 1)."""
    n, k = a.shape
    return np.ascontiguousarray(a.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k))


def save_llama(model, path):
    c, s = model.config, model.state_dict()
    rope = dict(c.rope_parameters)
    w = begin(path, "llama", c, c.max_position_embeddings, c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(rope["rope_theta"])
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_rope_dimension_count(head)
    if head != c.hidden_size // c.num_attention_heads:
        w.add_key_length(head)
        w.add_value_length(head)
    if rope["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":                           # divisors of the plain frequencies
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, head, 2, dtype=np.float64) / head)
        w.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32))
    w.add_tensor("token_embd.weight", array(s["model.embed_tokens.weight"]))
    w.add_tensor("output_norm.weight", array(s["model.norm.weight"]))
    if not c.tie_word_embeddings:
        w.add_tensor("output.weight", array(s["lm_head.weight"]))
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for i in range(c.num_hidden_layers):
        for theirs, ours in names.items():
            a = array(s["model.layers.%d.%s.weight" % (i, theirs)])
            heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(ours)
            w.add_tensor("blk.%d.%s.weight" % (i, ours), pairs(a, heads) if heads else a)
    finish(w)


def compare(name, model, path, vocab, n, wide_masks):
    ids = torch.randint(0, vocab, (1, n))
    with torch.no_grad():
        want = {"causal": model(ids).logits[0]}
        if wide_masks:
            p = n // 3
            row, column = torch.arange(n)[:, None], torch.arange(n)[None, :]
            for kind, ok in (("hybrid", (row >= p) | (column <= row)), ("bidirectional", torch.ones(n, n, dtype=torch.bool))):
                mask = torch.zeros(1, 1, n, n, dtype=model.dtype).masked_fill(~ok, torch.finfo(model.dtype).min)
                want[kind] = model(ids, attention_mask=mask).logits[0]
    for kind, ref in want.items():
        got = logits(path, ids[0].tolist(), {"causal": None, "hybrid": n // 3, "bidirectional": 0}[kind], "bidirectional" if kind == "bidirectional" else "hybrid")
        ref = ref.double().numpy()
        err = np.abs(got - ref).max() / np.abs(ref).max()
        check(err < 1e-4, "%s, %s: relative error %g" % (name, kind, err))
    if wide_masks:                                              # the reference itself must look to the right
        check(float((want["bidirectional"][0] - want["causal"][0]).abs().max()) > 1e-3, name + ": the 4-D mask had no effect in transformers")


def main():
    path = os.path.join(OUT, "parity_model.gguf")
    for i, c in enumerate([dict(n_embd=64, n_layer=2, n_head=4, n_positions=96, vocab_size=301), dict(n_embd=96, n_layer=3, n_head=2, n_inner=100, n_positions=160, vocab_size=77)]):
        m = shake(GPT2LMHeadModel(GPT2Config(**c, bos_token_id=None, eos_token_id=None, attn_implementation="eager")).float())
        save_gpt2(m, path)
        compare("gpt2 %d" % i, m, path, c["vocab_size"], c["n_positions"], True)
    base = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=112, max_position_embeddings=128, vocab_size=259)
    rope3 = dict(rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    for name, more in [("plain", {}), ("tied", dict(tie_word_embeddings=True)), ("one key head", dict(num_key_value_heads=1)), ("no grouping", dict(num_key_value_heads=4)),
                       ("llama3 rotary", dict(rope_parameters=rope3)), ("linear rotary", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
                       ("wide heads", dict(head_dim=24)), ("other base", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), rms_norm_eps=1e-6))]:
        m = shake(LlamaForCausalLM(LlamaConfig(**{**base, **more}, attn_implementation="eager")).float())
        save_llama(m, path)
        compare("llama, " + name, m, path, 259, 128, True)
    os.remove(path)


main()
end()
