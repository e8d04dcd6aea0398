/* SPDX-License-Identifier: MIT
 * corpus.h: the named malformed model files, made in memory from good ones by one edit each, with the verdict they must get,
 * and good files beside them. The names begin with the row of the check list they stand for (G: container and sizes, K:
 * tokenizer). Used by test_robust.c and by the generator of the fuzz corpus.
 */
#ifndef PD_CORPUS_H
#define PD_CORPUS_H

#include "pd_gguf.h"

enum { BASE_LLAMA, BASE_GPT2, BASE_CAUSAL, BASE_NOISE, BASE_Q8, BASE_MASK_ID, BASE_SPM, BASE_BPE, BASE_COUNT, BASE_NARROW };      /* BASE_NARROW is not a good one */

typedef struct pd_case {
    const char *name;
    int base;
    void (*edit)(pd_gguf *g, uint64_t arg);
    uint64_t arg;
    prediff_status status;
    prediff_item item;
} pd_case;

#define BITS(n) ((uint64_t)1 << (n))
#define ALL64 (~(uint64_t)0)

/* -- the good files -- */

/* SentencePiece: <unk> <s> </s>, 256 byte tokens, then a few pieces with scores. */
static void pd_make_spm(pd_gguf *g) {
    static const char *const pieces[] = { "\xE2\x96\x81", "a", "b", "\xE2\x96\x81" "a", "ab", "\xE2\x96\x81" "ab", "\xC3\xA9", "c" };
    const char *tokens[3 + 256 + 8];
    static char bytes[256][8];
    uint8_t scores[4 * 267] = { 0 }, types[4 * 267];
    size_t i, n = 3 + 256 + 8;
    float f;
    tokens[0] = "<unk>"; tokens[1] = "<s>"; tokens[2] = "</s>";
    for (i = 0; i < 256; i++) { snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i); tokens[3 + i] = bytes[i]; }
    for (i = 0; i < 8; i++) tokens[259 + i] = pieces[i];
    for (i = 0; i < n; i++) {
        uint32_t u;
        f = i < 259 ? 0.0f : -(float)(i - 258);
        memcpy(&u, &f, 4);
        pd_set(scores + 4 * i, 4, u);
        pd_set(types + 4 * i, 4, i == 0 ? 2u : i < 3 ? 3u : i < 259 ? 6u : 1u);
    }
    pd_set_string(g, "tokenizer.ggml.model", "llama");
    if (pd_has(g, "tokenizer.ggml.pre")) pd_remove(g, "tokenizer.ggml.pre");
    if (pd_has(g, "tokenizer.ggml.merges")) pd_remove(g, "tokenizer.ggml.merges");
    pd_set_strings(g, "tokenizer.ggml.tokens", tokens, n);
    pd_set_array(g, "tokenizer.ggml.scores", 6, n, scores, 4 * n);
    pd_set_array(g, "tokenizer.ggml.token_type", 5, n, types, 4 * n);
    pd_set_u32(g, "tokenizer.ggml.bos_token_id", 1);
    pd_set_u32(g, "tokenizer.ggml.eos_token_id", 2);
    pd_set_u32(g, "tokenizer.ggml.unknown_token_id", 0);
}

/* The tokens array of the byte-level base with these texts in place of <pad-257> ..., and merges. */
static void pd_make_bpe(pd_gguf *g) {
    static const char *const merges[] = { "a b", "ab c", "\xC4\xA0 a", "t h", "th e", "\xC4\xA0 the" };
    static const char *const extra[] = { "ab", "abc", "\xC4\xA0" "a", "th", "the", "\xC4\xA0" "the" };
    const char *tokens[264];
    static char text[264][16];
    size_t i, at = g->entries[pd_entry(g, "tokenizer.ggml.tokens")].name + strlen("tokenizer.ggml.tokens") + 16;
    for (i = 0; i < 264; i++) {
        size_t n = (size_t)pd_get(g->head.p + at, 8);
        memcpy(text[i], g->head.p + at + 8, n < 15 ? n : 15);
        text[i][n < 15 ? n : 15] = 0;
        tokens[i] = i >= 257 && i < 263 ? extra[i - 257] : text[i];
        at += 8 + n;
    }
    pd_set_strings(g, "tokenizer.ggml.tokens", tokens, 264);
    pd_set_strings(g, "tokenizer.ggml.merges", merges, 6);
}

static pd_gguf *pd_base(int which) {
    pd_tiny t;
    pd_gguf *g;
    memset(&t, 0, sizeof t);
    t.gpt2 = which == BASE_GPT2;
    t.vocab = which == BASE_SPM ? 272 : 264;
    t.causal_only = which == BASE_CAUSAL;
    t.noise_dim = which == BASE_NOISE ? 8 : 0;
    t.type = which == BASE_Q8 ? PREDIFF_Q8_0 : PREDIFF_F32;
    t.no_mask = which == BASE_MASK_ID;
    t.mask_id = which == BASE_MASK_ID ? 263 : 0;
    if (which == BASE_NARROW) { t.embd = 2; t.heads = t.heads_kv = 1; t.ff = 2; }
    g = pd_gguf_tiny(&t);
    if (which == BASE_SPM) pd_make_spm(g);
    if (which == BASE_BPE) pd_make_bpe(g);
    return g;
}

/* The smallest file that is a whole adapted model: no tokenizer, 8 tokens. */
PD_TINY_FN pd_gguf *pd_smallest(void) {
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.vocab = 8; t.ctx = 16; t.embd = 4; t.layers = 1; t.heads = 2; t.heads_kv = 1; t.ff = 4; t.no_tokenizer = 1; t.noise_dim = 2;
    return pd_gguf_tiny(&t);
}

/* -- edits: each spoils (or merely changes) one thing -- */

#define EDIT(name) static void name(pd_gguf *g, uint64_t arg)

EDIT(as_is) { (void)g; (void)arg; }
EDIT(magic) { pd_patch(g, NULL, PD_MAGIC, arg); }
EDIT(version) { pd_patch(g, NULL, PD_VERSION, arg); }
EDIT(n_tensors) { pd_patch(g, NULL, PD_N_TENSORS, arg); }
EDIT(n_keys) { pd_patch(g, NULL, PD_N_KEYS, arg); }
EDIT(cut_head) { g->head.n = (size_t)arg; g->data.n = 0; }
/* the file ends inside a field of one of these entries: arg = entry << 8 | field */
static const char *const pd_cut_names[] = { "diffusion.shift_logits", "tokenizer.ggml.merges", "prediff.attention", "prediff.selfcond.bias", "prediff.version" };
enum { CUT_BOOL, CUT_ARRAY, CUT_STRING, CUT_TENSOR, CUT_NUMBER };
EDIT(cut_field) { cut_head(g, (uint64_t)(pd_at(g, pd_cut_names[arg >> 8], (pd_what)(arg & 255), NULL) - g->head.p)); }
EDIT(cut_data) { g->data.n -= (size_t)arg; }
EDIT(trailing) { static const uint8_t junk[100] = { 1 }; pd_put(&g->data, junk, (size_t)arg); }

EDIT(key_length) { pd_patch(g, "general.architecture", PD_KEY_LENGTH, arg); }
EDIT(key_empty) { uint8_t v[4] = { 0 }; (void)arg; pd_add_key_named(g, "", 0, 4, v, 4); }
EDIT(key_nul) { uint8_t v[4] = { 0 }; (void)arg; pd_add_key_named(g, "a\0b", 3, 4, v, 4); }
EDIT(key_not_utf8) { uint8_t v[4] = { 0 }; (void)arg; pd_add_key_named(g, "\xFF\xFE\x80", 3, 4, v, 4); }
EDIT(key_long) {
    char *name = (char *)malloc((size_t)arg);
    uint8_t v[4] = { 0 };
    if (!name) abort();
    memset(name, 'k', (size_t)arg);
    pd_add_key_named(g, name, (size_t)arg, 4, v, 4);
    free(name);
}
EDIT(key_double) { (void)arg; pd_double(g, "llama.block_count"); }
EDIT(key_type) { pd_patch(g, "general.architecture", PD_KEY_TYPE, arg); }
EDIT(bool_value) { pd_patch(g, "diffusion.shift_logits", PD_VALUE, arg); }
EDIT(bool_array) { uint8_t v[3] = { 1, 0, 2 }; v[2] = (uint8_t)arg; pd_set_array(g, "x.bools", 7, 3, v, 3); }
EDIT(array_count) { pd_patch(g, "tokenizer.ggml.token_type", PD_COUNT, arg); }
EDIT(array_strings_count) { pd_patch(g, "tokenizer.ggml.tokens", PD_COUNT, arg); }
EDIT(array_element) { pd_patch(g, "tokenizer.ggml.token_type", PD_ELEMENT, arg); }
EDIT(array_nested) {
    pd_bytes b = { NULL, 0, 0 };
    uint64_t i;
    for (i = 0; i < arg; i++) { pd_put_int(&b, 9, 4); pd_put_int(&b, 1, 8); }
    pd_put_int(&b, 4, 4); pd_put_int(&b, 0, 8);
    pd_splice(g, g->keys_end, g->keys_end, "\1\0\0\0\0\0\0\0n\11\0\0\0", 13);
    pd_splice(g, g->keys_end + 13, g->keys_end + 13, b.p, b.n);
    free(b.p);
    pd_bump(g, PD_N_KEYS, 1);                      /* not indexed again: the walker does not know nested arrays */
}
EDIT(string_in_array) { pd_patch(g, "tokenizer.ggml.tokens", PD_STRING_LENGTH, arg); }
EDIT(string_length) { pd_patch(g, "general.architecture", PD_STRING_LENGTH, arg); }
EDIT(string_long) {
    char *s = (char *)malloc((size_t)arg + 1);
    if (!s) abort();
    memset(s, 's', (size_t)arg);
    s[arg] = 0;
    pd_set_string(g, "x.long", s);
    free(s);
}

/* known keys with a wrong type */
EDIT(alignment_string) { (void)arg; pd_set_string(g, "general.alignment", "32"); }
EDIT(arch_number) { pd_set_u32(g, "general.architecture", (uint32_t)arg); }
EDIT(eps_integer) { (void)arg; pd_set_u32(g, "llama.attention.layer_norm_rms_epsilon", 1); }
EDIT(layers_float) { (void)arg; pd_set_f32(g, "llama.block_count", 2); }
EDIT(causal_integer) { (void)arg; pd_set_u32(g, "llama.attention.causal", 1); }
EDIT(eos_string) { (void)arg; pd_set_string(g, "tokenizer.ggml.eos_token_id", "256"); }
EDIT(alignment) { pd_set_u32(g, "general.alignment", (uint32_t)arg); }

/* tensors */
EDIT(tensor_name) {
    char name[80];
    memset(name, 'n', sizeof name);
    pd_add_tensor(g, name, (size_t)arg, 1, 1);
}
EDIT(tensor_name_nul) { (void)arg; pd_add_tensor(g, "a\0b", 3, 1, 1); }
EDIT(tensor_name_length) { pd_patch(g, "output_norm.weight", PD_NAME_LENGTH, arg); }
EDIT(tensor_double) { (void)arg; pd_double(g, "output_norm.weight"); }
EDIT(n_dims) { pd_patch(g, "output_norm.weight", PD_N_DIMS, arg); }
EDIT(dim0) { pd_patch(g, "token_embd.weight", PD_DIM0, arg); }
EDIT(dim1) { pd_patch(g, "token_embd.weight", PD_DIM1, arg); }
EDIT(dims_wrap) { pd_patch(g, "token_embd.weight", PD_DIM0, ~BITS(63)); pd_patch(g, "token_embd.weight", PD_DIM1, arg); }
EDIT(dims_wrap_swapped) { pd_patch(g, "token_embd.weight", PD_DIM0, arg); pd_patch(g, "token_embd.weight", PD_DIM1, ~BITS(63)); }
EDIT(dims_2p64) { pd_patch(g, "token_embd.weight", PD_DIM0, BITS(32)); pd_patch(g, "token_embd.weight", PD_DIM1, arg); }
EDIT(bytes_wrap) { pd_patch(g, "token_embd.weight", PD_DIM0, 32); pd_patch(g, "token_embd.weight", PD_DIM1, arg); }
EDIT(pad_wrap) { pd_patch(g, "token_embd.weight", PD_DIM0, BITS(30) - 1); pd_patch(g, "token_embd.weight", PD_DIM1, 4 * (BITS(30) + 1)); (void)arg; }
EDIT(tensor_type) { pd_patch(g, "token_embd.weight", PD_TENSOR_TYPE, arg); }
EDIT(half_block) { pd_patch(g, "token_embd.weight", PD_DIM0, arg); pd_patch(g, "token_embd.weight", PD_TENSOR_TYPE, PREDIFF_Q8_0); }
EDIT(offset) { pd_patch(g, "output_norm.weight", PD_OFFSET, arg); }
EDIT(overlap) { pd_patch(g, "output_norm.weight", PD_OFFSET, pd_get(pd_at(g, "token_embd.weight", PD_OFFSET, NULL), 8) + arg); }
EDIT(other_order) {                                /* two tensors of one size exchange their places: legal */
    uint8_t *a = pd_at(g, "blk.0.attn_norm.weight", PD_OFFSET, NULL), *b = pd_at(g, "blk.0.ffn_norm.weight", PD_OFFSET, NULL), t[8];
    (void)arg;
    memcpy(t, a, 8); memcpy(a, b, 8); memcpy(b, t, 8);
}
EDIT(gap) {                                        /* a hole of a block before a tensor moved to the end: legal */
    static const uint8_t zeros[32];
    size_t i, n = (size_t)arg;
    while (g->data.n % 32) pd_put(&g->data, zeros, 1);
    pd_put(&g->data, zeros, 32);
    pd_patch(g, "output_norm.weight", PD_OFFSET, g->data.n);
    for (i = 0; i < n; i += 32) pd_put(&g->data, zeros, 32);
}
EDIT(split_part) { pd_set_number(g, "split.count", 2, 2, arg); pd_set_number(g, "split.no", 2, 2, 0); }
EDIT(split_type) { (void)arg; pd_set_string(g, "split.count", "3"); }

/* presence and sizes of the model's parts */
static const char *const pd_names[] = { "general.architecture", "token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight", "llama.context_length",
    "llama.embedding_length", "llama.block_count", "llama.attention.head_count", "llama.feed_forward_length", "tokenizer.ggml.tokens", "tokenizer.ggml.model",
    "tokenizer.ggml.merges", "tokenizer.ggml.scores", "prediff.rate.2.weight", "prediff.noise.2.weight", "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon", "prediff.mask.weight", "tokenizer.ggml.token_type", "blk.0.attn_qkv.bias", "tokenizer.ggml.pre" };
enum { N_ARCH, N_EMBD, N_NORM, N_DOWN, N_CTX, N_WIDTH, N_LAYERS, N_HEADS, N_FF, N_TOKENS, N_MODEL, N_MERGES, N_SCORES, N_RATE2, N_NOISE2, N_KV, N_EPS,
       N_MASK, N_TYPES, N_QKV_BIAS, N_PRE };
EDIT(without) { pd_remove(g, pd_names[arg]); }
EDIT(arch_name) { static const char *const a[] = { "mamba", "", "llama2", "LLAMA", "\x1B[2J" }; pd_set_string(g, "general.architecture", a[arg]); }

/* one size key set to a value: arg = key << 32 | value */
#define SIZE(key, value) ((uint64_t)(key) << 32 | (uint32_t)(value))
EDIT(size_key) { pd_set_u32(g, pd_names[arg >> 32], (uint32_t)arg); }
EDIT(size_signed) { pd_set_number(g, pd_names[arg >> 32], 5, 4, (uint32_t)arg); }
EDIT(heads_and_kv) { pd_set_u32(g, "llama.attention.head_count", (uint32_t)arg); pd_set_u32(g, "llama.attention.head_count_kv", (uint32_t)arg); }
EDIT(odd_width) { pd_set_u32(g, "gpt2.attention.head_count", 3); pd_set_u32(g, "gpt2.embedding_length", (uint32_t)arg); }
EDIT(eos_u64) { pd_set_number(g, "tokenizer.ggml.eos_token_id", 10, 8, arg); }
EDIT(size_u64) { pd_set_number(g, pd_names[arg], 10, 8, ALL64); }
EDIT(size_u8) { pd_set_number(g, pd_names[arg >> 32], 0, 1, (uint8_t)arg); }
EDIT(eps_bits) { uint32_t u = (uint32_t)arg; float f; memcpy(&f, &u, 4); pd_set_f32(g, "llama.attention.layer_norm_rms_epsilon", f); }
EDIT(rope_size) { pd_set_u32(g, "llama.rope.dimension_count", (uint32_t)arg); }
EDIT(rope_base) { uint32_t u = (uint32_t)arg; pd_set_number(g, "llama.rope.freq_base", 6, 4, u); }
EDIT(rope_factor) { uint32_t u = (uint32_t)arg; pd_set_string(g, "llama.rope.scaling.type", "linear"); pd_set_number(g, "llama.rope.scaling.factor", 6, 4, u); }
EDIT(rope_kind) { static const char *const k[] = { "yarn", "none", "linear" }; pd_set_string(g, "llama.rope.scaling.type", k[arg]); }
EDIT(key_head) { pd_set_u32(g, "llama.attention.key_length", (uint32_t)arg); }
EDIT(value_head) { pd_set_u32(g, "llama.attention.value_length", (uint32_t)arg); }
EDIT(experts) { pd_set_u32(g, "llama.expert_count", (uint32_t)arg); }
EDIT(many_heads) {                                 /* heads * head size wraps in 32 bits: 65537 * 65536 */
    pd_set_u32(g, "llama.attention.head_count", 65537); pd_set_u32(g, "llama.attention.head_count_kv", 65537); pd_set_u32(g, "llama.attention.key_length", (uint32_t)arg);
}
EDIT(stranger) { static const char *const n[] = { "blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight", "x.unknown" }; pd_add_tensor(g, n[arg], strlen(n[arg]), 4, 1); }
EDIT(renamed) { (void)arg; pd_rename(g, "blk.1.attn_q.weight", "blk.1.attn_x.weight"); }
EDIT(lying_shape) {                                /* fewer rows than the sizes ask for; the bytes exist */
    pd_patch(g, "blk.0.ffn_up.weight", PD_DIM1, arg);
}
EDIT(exchange_dims) { (void)arg; pd_patch(g, "blk.0.ffn_up.weight", PD_DIM0, 48); pd_patch(g, "blk.0.ffn_up.weight", PD_DIM1, 32); }
EDIT(norm_rows) { (void)arg; pd_patch(g, "output_norm.weight", PD_DIM0, 16); }

/* prediff.* keys */
EDIT(own_version) { pd_set_u32(g, "prediff.version", (uint32_t)arg); }
EDIT(own_attention) { static const char *const k[] = { "sideways", "causal", "bidirectional", "hybrid", "" }; pd_set_string(g, "prediff.attention", k[arg]); }
EDIT(noise_dim) { pd_set_u32(g, "prediff.noise.dim", (uint32_t)arg); }
EDIT(noise_kind) { static const char *const k[] = { "cauchy", "normal" }; pd_set_string(g, "prediff.noise.distribution", k[arg]); }
EDIT(noise_life) { static const char *const k[] = { "sometimes", "redraw" }; pd_set_string(g, "prediff.noise.lifetime", k[arg]); }
EDIT(rate_range) { pd_set_f32(g, "prediff.rate.min", 0.5f); pd_set_number(g, "prediff.rate.max", 6, 4, arg); }
EDIT(rate_scale) { pd_set_number(g, "prediff.rate.scale", 6, 4, arg); }
EDIT(mask_id) { pd_set_u32(g, "tokenizer.ggml.mask_token_id", (uint32_t)arg); }

/* tokenizer */
EDIT(special_id) { pd_set_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)arg); }
EDIT(special_signed) { pd_set_number(g, "tokenizer.ggml.eos_token_id", 5, 4, (uint32_t)arg); }
EDIT(tok_model) { static const char *const k[] = { "bert", "t5", "none", "" }; pd_set_string(g, "tokenizer.ggml.model", k[arg]); }
EDIT(tok_pre) { static const char *const k[] = { "my-own", "llama-bpe", "smollm", "command-r" }; pd_set_string(g, "tokenizer.ggml.pre", k[arg]); }
EDIT(no_tokens) { (void)arg; pd_remove(g, "tokenizer.ggml.token_type"); pd_set_strings(g, "tokenizer.ggml.tokens", NULL, 0); }
EDIT(types_short) { static const uint8_t z[4 * 300]; pd_set_array(g, "tokenizer.ggml.token_type", 5, (size_t)arg, z, 4 * (size_t)arg); }
EDIT(types_value) { pd_set(g->head.p + g->entries[pd_entry(g, "tokenizer.ggml.token_type")].end - 4, 4, arg); }
EDIT(scores_u8) { static const uint8_t z[267]; (void)arg; pd_set_array(g, "tokenizer.ggml.scores", 0, 267, z, 267); }
EDIT(scores_short) { static const uint8_t z[4 * 266]; (void)arg; pd_set_array(g, "tokenizer.ggml.scores", 6, 266, z, sizeof z); }
EDIT(scores_nan) {
    uint8_t *end = g->head.p + g->entries[pd_entry(g, "tokenizer.ggml.scores")].end;
    pd_set(end - 4, 4, arg); pd_set(end - 8, 4, arg);
}
EDIT(tokens_numbers) { static const uint8_t z[8 * 264]; (void)arg; pd_set_array(g, "tokenizer.ggml.tokens", 10, 264, z, sizeof z); }
/* token number arg >> 8 of the byte-level base becomes one of these texts */
EDIT(token_text) {
    static const char *const k[] = { "", "<|end|>", "!", "longer than any other token of this vocabulary" };
    const char *tokens[300];
    static char text[300][16];
    size_t i, n, at = g->entries[pd_entry(g, "tokenizer.ggml.tokens")].name + strlen("tokenizer.ggml.tokens") + 8, count;
    count = (size_t)pd_get(g->head.p + at, 8);
    for (i = 0, at += 8; i < count; i++, at += 8 + n) {
        n = (size_t)pd_get(g->head.p + at, 8);
        memcpy(text[i], g->head.p + at + 8, n < 15 ? n : 15);
        text[i][n < 15 ? n : 15] = 0;
        tokens[i] = i == arg >> 8 ? k[arg & 255] : text[i];
    }
    pd_set_strings(g, "tokenizer.ggml.tokens", tokens, count);
}
EDIT(spm_byte_text) {                              /* the byte token <0x41> gets another text of six bytes */
    static const char *const k[] = { "<0x-1>", "<0xZZ>", "<0X41>", "<0x4g>" };
    uint8_t *p = g->head.p + g->entries[pd_entry(g, "tokenizer.ggml.tokens")].name, *end = g->head.p + g->head.n;
    while (p + 6 < end && memcmp(p, "<0x41>", 6) != 0) p++;
    if (p + 6 >= end) abort();
    memcpy(p, k[arg & 255], 6);
    if (arg >> 8) pd_remove(g, "tokenizer.ggml.unknown_token_id");
}
EDIT(merge_text) {
    static const char *const k[] = { "ab", "a  b", " b", "a ", "a b c", "\xC4\xA0t he", "x y", "a b", "" };
    const char *m[2];
    m[0] = "a b"; m[1] = k[arg];
    pd_set_strings(g, "tokenizer.ggml.merges", m, 2);
}
EDIT(merges_numbers) { static const uint8_t z[32]; (void)arg; pd_set_array(g, "tokenizer.ggml.merges", 4, 8, z, 32); }

#define E(status, item) PREDIFF_ERR_##status, PREDIFF_ITEM_##item
#define GOOD PREDIFF_OK, PREDIFF_ITEM_NONE
/* what a 64-bit size holds may be beyond a 32-bit one, which says so earlier */
#define E64(status, item, item32) PREDIFF_ERR_##status, sizeof(size_t) > 4 ? PREDIFF_ITEM_##item : PREDIFF_ITEM_##item32

static const pd_case pd_cases[] = {
    { "good llama", BASE_LLAMA, as_is, 0, GOOD },
    { "good gpt2", BASE_GPT2, as_is, 0, GOOD },
    { "good causal", BASE_CAUSAL, as_is, 0, GOOD },
    { "good noise", BASE_NOISE, as_is, 0, GOOD },
    { "good q8_0", BASE_Q8, as_is, 0, GOOD },
    { "good mask id", BASE_MASK_ID, as_is, 0, GOOD },
    { "good spm", BASE_SPM, as_is, 0, GOOD },
    { "good bpe", BASE_BPE, as_is, 0, GOOD },

    { "G1 empty file", BASE_LLAMA, cut_head, 0, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 3 bytes", BASE_LLAMA, cut_head, 3, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 4 bytes", BASE_LLAMA, cut_head, 4, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 23 bytes", BASE_LLAMA, cut_head, 23, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 24 bytes that promise more", BASE_LLAMA, cut_head, 24, E(FORMAT, GGUF_COUNT) },
    { "G1 ends in a key's length", BASE_LLAMA, cut_field, CUT_NUMBER << 8 | PD_KEY_LENGTH, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a key's type", BASE_LLAMA, cut_field, CUT_NUMBER << 8 | PD_KEY_TYPE, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a value", BASE_LLAMA, cut_field, CUT_NUMBER << 8 | PD_VALUE, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a bool", BASE_LLAMA, cut_field, CUT_BOOL << 8 | PD_VALUE, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a string", BASE_LLAMA, cut_field, CUT_STRING << 8 | PD_STRING_LENGTH, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends in an array's head", BASE_LLAMA, cut_field, CUT_ARRAY << 8 | PD_COUNT, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a tensor's dimensions", BASE_LLAMA, cut_field, CUT_TENSOR << 8 | PD_N_DIMS, E(FORMAT, GGUF_TRUNCATED) },
    { "G1 ends before a tensor's offset", BASE_LLAMA, cut_field, CUT_TENSOR << 8 | PD_OFFSET, E(FORMAT, GGUF_TRUNCATED) },
    { "G2 wrong magic", BASE_LLAMA, magic, 0x46554748, E(FORMAT, GGUF_MAGIC) },
    { "G2 old magic", BASE_LLAMA, magic, 0x67676d6c, E(FORMAT, GGUF_MAGIC) },
    { "G2 swapped magic", BASE_LLAMA, magic, 0x47475546, E(UNSUPPORTED, GGUF_ENDIAN) },
    { "G3 version 0", BASE_LLAMA, version, 0, E(UNSUPPORTED, GGUF_VERSION) },
    { "G3 version 1", BASE_LLAMA, version, 1, E(UNSUPPORTED, GGUF_VERSION) },
    { "G3 version 2 is read", BASE_LLAMA, version, 2, GOOD },
    { "G3 version 4", BASE_LLAMA, version, 4, E(UNSUPPORTED, GGUF_VERSION) },
    { "G3 swapped version 3", BASE_LLAMA, version, 0x03000000, E(UNSUPPORTED, GGUF_ENDIAN) },
    { "G4 2^63 tensors", BASE_LLAMA, n_tensors, BITS(63), E(FORMAT, GGUF_COUNT) },
    { "G4 tensor count that wraps", BASE_LLAMA, n_tensors, ALL64 / 32, E(FORMAT, GGUF_COUNT) },
    { "G5 2^64 - 1 keys", BASE_LLAMA, n_keys, ALL64, E(FORMAT, GGUF_COUNT) },
    { "G6 key count negative as signed", BASE_LLAMA, n_keys, BITS(63) | 5, E(FORMAT, GGUF_COUNT) },
    { "G6 tensor count -1", BASE_LLAMA, n_tensors, ALL64, E(FORMAT, GGUF_COUNT) },
    { "G7 key length 2^64 - 1", BASE_LLAMA, key_length, ALL64, E(FORMAT, GGUF_STRING) },
    { "G7 key length 2^63", BASE_LLAMA, key_length, BITS(63), E(FORMAT, GGUF_STRING) },
    { "G7 key of 65,536 bytes", BASE_LLAMA, key_long, 65536, E(LIMIT, LIMIT_EXCEEDED) },
    { "G7 key of 65,535 bytes is read", BASE_LLAMA, key_long, 65535, GOOD },
    { "G7 string length 2^64 - 1", BASE_LLAMA, string_length, ALL64, E(FORMAT, GGUF_STRING) },
    { "G7 string of 1 GiB claimed", BASE_LLAMA, string_length, BITS(30), E(FORMAT, GGUF_STRING) },
    { "G7 string over the limit", BASE_LLAMA, string_long, BITS(20) + 1, E(LIMIT, LIMIT_EXCEEDED) },
    { "G7 string at the limit", BASE_LLAMA, string_long, BITS(20), GOOD },
    { "G8 empty key", BASE_LLAMA, key_empty, 0, E(FORMAT, GGUF_KEY) },
    { "G8 key with NUL is bytes", BASE_LLAMA, key_nul, 0, GOOD },
    { "G8 key that is no UTF-8 is bytes", BASE_LLAMA, key_not_utf8, 0, GOOD },
    { "G9 key twice", BASE_LLAMA, key_double, 0, E(FORMAT, GGUF_KEY_DUPLICATE) },
    { "G10 value type 13", BASE_LLAMA, key_type, 13, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G10 value type 255", BASE_LLAMA, key_type, 255, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G10 value type 2^31", BASE_LLAMA, key_type, BITS(31), E(FORMAT, GGUF_VALUE_TYPE) },
    { "G11 bool 2", BASE_LLAMA, bool_value, 2, E(FORMAT, GGUF_BOOL) },
    { "G11 bool 255", BASE_LLAMA, bool_value, 255, E(FORMAT, GGUF_BOOL) },
    { "G11 bool 0", BASE_LLAMA, bool_value, 0, GOOD },
    { "G11 bool 2 in an array", BASE_LLAMA, bool_array, 2, E(FORMAT, GGUF_BOOL) },
    { "G11 bool array", BASE_LLAMA, bool_array, 1, GOOD },
    { "G12 array of 2^62", BASE_LLAMA, array_count, BITS(62), E(FORMAT, GGUF_ARRAY) },
    { "G12 array of 2^61 strings", BASE_LLAMA, array_strings_count, BITS(61), E(FORMAT, GGUF_ARRAY) },
    { "G12 array of unknown type", BASE_LLAMA, array_element, 13, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G13 array of arrays", BASE_LLAMA, array_nested, 1, E(UNSUPPORTED, GGUF_ARRAY) },
    { "G13 arrays nested 100,000 deep", BASE_LLAMA, array_nested, 100000, E(UNSUPPORTED, GGUF_ARRAY) },
    { "G14 string of an array past the end", BASE_LLAMA, string_in_array, BITS(40), E(FORMAT, GGUF_STRING) },
    { "G15 alignment as string", BASE_LLAMA, alignment_string, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G15 architecture as number", BASE_LLAMA, arch_number, 1, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G15 epsilon as integer", BASE_LLAMA, eps_integer, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G15 layers as float", BASE_LLAMA, layers_float, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G15 causal as integer", BASE_LLAMA, causal_integer, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G15 end-of-text id as string", BASE_LLAMA, eos_string, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G16 alignment 0", BASE_LLAMA, alignment, 0, E(FORMAT, GGUF_ALIGNMENT) },
    { "G17 alignment 13", BASE_LLAMA, alignment, 13, E(FORMAT, GGUF_ALIGNMENT) },
    { "G17 alignment 2^31", BASE_LLAMA, alignment, BITS(31), E(FORMAT, GGUF_ALIGNMENT) },
    { "G17 alignment 2^21", BASE_LLAMA, alignment, BITS(21), E(FORMAT, GGUF_ALIGNMENT) },
    { "G17 alignment 32", BASE_LLAMA, alignment, 32, GOOD },
    { "G18 alignment 2^20 leaves no data", BASE_LLAMA, alignment, BITS(20), E(FORMAT, TENSOR_DATA) },
    { "G18 alignment 2^32 - 1", BASE_LLAMA, alignment, 0xFFFFFFFFu, E(FORMAT, GGUF_ALIGNMENT) },
    { "G19 tensor name of 64 bytes", BASE_LLAMA, tensor_name, 64, GOOD },
    { "G19 tensor name of 65 bytes", BASE_LLAMA, tensor_name, 65, E(LIMIT, LIMIT_EXCEEDED) },
    { "G19 empty tensor name", BASE_LLAMA, tensor_name, 0, E(FORMAT, TENSOR_NAME) },
    { "G19 tensor name with NUL", BASE_LLAMA, tensor_name_nul, 0, E(FORMAT, TENSOR_NAME) },
    { "G19 tensor name length 2^64 - 1", BASE_LLAMA, tensor_name_length, ALL64, E(FORMAT, GGUF_STRING) },
    { "G20 tensor twice", BASE_LLAMA, tensor_double, 0, E(FORMAT, TENSOR_DUPLICATE) },
    { "G21 no dimension", BASE_LLAMA, n_dims, 0, E(FORMAT, TENSOR_DIMS) },
    { "G21 five dimensions", BASE_LLAMA, n_dims, 5, E(FORMAT, TENSOR_DIMS) },
    { "G21 2^32 - 1 dimensions", BASE_LLAMA, n_dims, 0xFFFFFFFFu, E(FORMAT, TENSOR_DIMS) },
    { "G22 dimension 0", BASE_LLAMA, dim0, 0, E(FORMAT, TENSOR_DIMS) },
    { "G22 second dimension 0", BASE_LLAMA, dim1, 0, E(FORMAT, TENSOR_DIMS) },
    { "G23 dimension 2^63", BASE_LLAMA, dim0, BITS(63), E(FORMAT, TENSOR_DIMS) },
    { "G23 dimension -1", BASE_LLAMA, dim1, ALL64, E(FORMAT, TENSOR_DIMS) },
    { "G24 product wraps", BASE_LLAMA, dims_wrap, 2, E(FORMAT, TENSOR_DIMS) },
    { "G24 product wraps, other order", BASE_LLAMA, dims_wrap_swapped, 2, E(FORMAT, TENSOR_DIMS) },
    { "G24 product is 2^64", BASE_LLAMA, dims_2p64, BITS(32), E(FORMAT, TENSOR_DIMS) },
    { "G25 bytes wrap", BASE_LLAMA, bytes_wrap, BITS(57) + 1, E(FORMAT, TENSOR_DIMS) },
    { "G26 padded size wraps", BASE_LLAMA, pad_wrap, 0, E64(FORMAT, TENSOR_DATA, TENSOR_DIMS) },
    { "G27 each fits, the sum wraps", BASE_LLAMA, bytes_wrap, BITS(56), E64(FORMAT, TENSOR_DATA, TENSOR_DIMS) },
    { "G28 half a block", BASE_LLAMA, half_block, 16, E(FORMAT, TENSOR_BLOCK) },
    { "G29 type 10", BASE_LLAMA, tensor_type, 10, E(UNSUPPORTED, TENSOR_TYPE) },
    { "G29 removed type 4", BASE_LLAMA, tensor_type, 4, E(UNSUPPORTED, TENSOR_TYPE) },
    { "G29 type 2^32 - 1", BASE_LLAMA, tensor_type, 0xFFFFFFFFu, E(UNSUPPORTED, TENSOR_TYPE) },
    { "G30 odd offset", BASE_LLAMA, offset, 17, E(FORMAT, TENSOR_OFFSET) },
    { "G31 offset past the end", BASE_LLAMA, offset, BITS(30), E(FORMAT, TENSOR_DATA) },
    { "G31 offset + size wraps", BASE_LLAMA, offset, ALL64 - 31, E64(FORMAT, TENSOR_DATA, TENSOR_OFFSET) },
    { "G32 overlap", BASE_LLAMA, overlap, 32, E(FORMAT, TENSOR_OVERLAP) },
    { "G32 the same bytes", BASE_LLAMA, overlap, 0, E(FORMAT, TENSOR_OVERLAP) },
    { "G32 other order", BASE_LLAMA, other_order, 0, GOOD },
    { "G32 a gap", BASE_LLAMA, gap, 128, GOOD },
    { "G33 one byte short", BASE_LLAMA, cut_data, 1, E(FORMAT, TENSOR_DATA) },
    { "G33 half the data", BASE_LLAMA, cut_data, 40000, E(FORMAT, TENSOR_DATA) },
    { "G34 trailing bytes", BASE_LLAMA, trailing, 100, GOOD },
    { "G35 a part of a split model", BASE_LLAMA, split_part, 3, E(UNSUPPORTED, GGUF_SPLIT) },
    { "G35 split into one", BASE_LLAMA, split_part, 1, GOOD },
    { "G35 split count as string", BASE_LLAMA, split_type, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G36 fewer types than tokens", BASE_LLAMA, types_short, 263, E(FORMAT, TOKENIZER_ARRAY) },
    { "G36 more types than tokens", BASE_LLAMA, types_short, 265, E(FORMAT, TOKENIZER_ARRAY) },
    { "G36 scores as bytes", BASE_SPM, scores_u8, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G36 fewer scores than tokens", BASE_SPM, scores_short, 0, E(FORMAT, TOKENIZER_ARRAY) },
    { "G36 tokens as numbers", BASE_LLAMA, tokens_numbers, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "G36 unknown token type", BASE_LLAMA, types_value, 7, E(FORMAT, TOKENIZER_ARRAY) },
    { "G36 negative token type", BASE_LLAMA, types_value, 0xFFFFFFFFu, E(FORMAT, TOKENIZER_ARRAY) },
    { "G37 embedding smaller than the vocabulary", BASE_LLAMA, dim1, 263, E(FORMAT, VOCAB_SIZE) },
    { "G37 embedding larger than the vocabulary", BASE_SPM, as_is, 0, GOOD },
    { "G37 embedding missing", BASE_LLAMA, without, N_EMBD, E(FORMAT, TENSOR_MISSING) },
    { "G37 vocabulary over the limit", BASE_LLAMA, dim1, BITS(23), E(FORMAT, TENSOR_DATA) },
    { "G38 no heads", BASE_LLAMA, size_key, SIZE(N_HEADS, 0), E(FORMAT, HPARAM_RANGE) },
    { "G38 heads do not divide the width", BASE_LLAMA, size_key, SIZE(N_HEADS, 5), E(FORMAT, HPARAM_RANGE) },
    { "G38 heads and kv heads do not divide the width", BASE_LLAMA, heads_and_kv, 5, E(FORMAT, HPARAM_RANGE) },
    { "G38 odd width that the heads divide", BASE_GPT2, odd_width, 33, E(FORMAT, HPARAM_RANGE) },
    { "G38 more heads than width", BASE_LLAMA, size_key, SIZE(N_HEADS, 64), E(FORMAT, HPARAM_RANGE) },
    { "G38 kv heads do not divide the heads", BASE_LLAMA, size_key, SIZE(N_KV, 3), E(FORMAT, HPARAM_RANGE) },
    { "G38 no kv heads", BASE_LLAMA, size_key, SIZE(N_KV, 0), E(FORMAT, HPARAM_RANGE) },
    { "G38 more kv heads than heads", BASE_LLAMA, size_key, SIZE(N_KV, 8), E(FORMAT, HPARAM_RANGE) },
    { "G38 no layers", BASE_LLAMA, size_key, SIZE(N_LAYERS, 0), E(FORMAT, HPARAM_RANGE) },
    { "G38 10^9 layers", BASE_LLAMA, size_key, SIZE(N_LAYERS, 1000000000), E(LIMIT, LIMIT_EXCEEDED) },
    { "G38 one layer more than there is", BASE_LLAMA, size_key, SIZE(N_LAYERS, 3), E(FORMAT, TENSOR_MISSING) },
    { "G38 no context", BASE_LLAMA, size_key, SIZE(N_CTX, 0), E(FORMAT, HPARAM_RANGE) },
    { "G38 context of 2^32 - 1", BASE_LLAMA, size_key, SIZE(N_CTX, 0xFFFFFFFFu), E(LIMIT, LIMIT_EXCEEDED) },
    { "G38 context of 4 million", BASE_LLAMA, size_key, SIZE(N_CTX, 4194304), GOOD },
    { "G38 negative width", BASE_LLAMA, size_signed, SIZE(N_WIDTH, 0xFFFFFFE0u), E(FORMAT, HPARAM_RANGE) },
    { "G38 odd width", BASE_LLAMA, size_key, SIZE(N_WIDTH, 33), E(FORMAT, HPARAM_RANGE) },
    { "G38 width of 2^32 - 1", BASE_LLAMA, size_key, SIZE(N_WIDTH, 0xFFFFFFFFu), E(LIMIT, LIMIT_EXCEEDED) },
    { "G38 width as u64 2^64 - 1", BASE_LLAMA, size_u64, N_WIDTH, E(FORMAT, HPARAM_RANGE) },
    { "G38 layers as u8", BASE_LLAMA, size_u8, SIZE(N_LAYERS, 2), GOOD },
    { "G38 no feed-forward", BASE_LLAMA, size_key, SIZE(N_FF, 0), E(FORMAT, HPARAM_RANGE) },
    { "G38 epsilon 0", BASE_LLAMA, eps_bits, 0, E(FORMAT, HPARAM_RANGE) },
    { "G38 epsilon negative", BASE_LLAMA, eps_bits, 0xB727C5ACu, E(FORMAT, HPARAM_RANGE) },
    { "G38 epsilon not a number", BASE_LLAMA, eps_bits, 0x7FC00000u, E(FORMAT, HPARAM_RANGE) },
    { "G38 epsilon infinite", BASE_LLAMA, eps_bits, 0x7F800000u, E(FORMAT, HPARAM_RANGE) },
    { "G38 epsilon absent has a default", BASE_LLAMA, without, N_EPS, GOOD },
    { "G38 rotary size above the head", BASE_LLAMA, rope_size, 10, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary size odd", BASE_LLAMA, rope_size, 7, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary size half the head", BASE_LLAMA, rope_size, 4, GOOD },
    { "G38 rotary size 0", BASE_LLAMA, rope_size, 0, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary base 0", BASE_LLAMA, rope_base, 0, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary base not a number", BASE_LLAMA, rope_base, 0x7FC00000u, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary factor 0", BASE_LLAMA, rope_factor, 0, E(FORMAT, HPARAM_RANGE) },
    { "G38 rotary factor 2", BASE_LLAMA, rope_factor, 0x40000000u, GOOD },
    { "G38 key and value heads differ", BASE_LLAMA, value_head, 4, E(UNSUPPORTED, HPARAM_RANGE) },
    { "G38 head size of 2^31", BASE_LLAMA, key_head, BITS(31), E(LIMIT, LIMIT_EXCEEDED) },
    { "G38 experts", BASE_LLAMA, experts, 8, E(UNSUPPORTED, HPARAM_RANGE) },
    { "G38 no experts", BASE_LLAMA, experts, 0, GOOD },
    { "G38 context length missing", BASE_LLAMA, without, N_CTX, E(FORMAT, KEY_MISSING) },
    { "G38 width missing", BASE_LLAMA, without, N_WIDTH, E(FORMAT, KEY_MISSING) },
    { "G38 layers missing", BASE_LLAMA, without, N_LAYERS, E(FORMAT, KEY_MISSING) },
    { "G38 heads missing", BASE_LLAMA, without, N_HEADS, E(FORMAT, KEY_MISSING) },
    { "G38 feed-forward missing", BASE_LLAMA, without, N_FF, E(FORMAT, KEY_MISSING) },
    { "G39 fewer rows than the sizes say", BASE_LLAMA, lying_shape, 47, E(FORMAT, TENSOR_SHAPE) },
    { "G39 rows and columns exchanged", BASE_LLAMA, exchange_dims, 0, E(FORMAT, TENSOR_SHAPE) },
    { "G39 a norm of half the width", BASE_LLAMA, norm_rows, 0, E(FORMAT, TENSOR_SHAPE) },
    { "G39 a layer's tensor missing", BASE_LLAMA, without, N_DOWN, E(FORMAT, TENSOR_MISSING) },
    { "G39 a tensor renamed", BASE_LLAMA, renamed, 0, E(FORMAT, TENSOR_MISSING) },
    { "G39 gpt2 sizes with a fused bias missing", BASE_GPT2, without, N_QKV_BIAS, GOOD },
    { "G39 a norm of queries", BASE_LLAMA, stranger, 0, E(UNSUPPORTED, TENSOR_NAME) },
    { "G39 an expert router", BASE_LLAMA, stranger, 1, E(UNSUPPORTED, TENSOR_NAME) },
    { "G39 a tensor of somebody else", BASE_LLAMA, stranger, 2, GOOD },
    { "J12 rotary scaling of another kind", BASE_LLAMA, rope_kind, 0, E(UNSUPPORTED, ROPE_KIND) },
    { "J12 rotary scaling none", BASE_LLAMA, rope_kind, 1, GOOD },
    { "J15 architecture missing", BASE_LLAMA, without, N_ARCH, E(FORMAT, ARCH_MISSING) },
    { "J15 architecture unknown", BASE_LLAMA, arch_name, 0, E(UNSUPPORTED, ARCH_UNKNOWN) },
    { "J15 architecture empty", BASE_LLAMA, arch_name, 1, E(UNSUPPORTED, ARCH_UNKNOWN) },
    { "J15 architecture in capitals", BASE_LLAMA, arch_name, 3, E(UNSUPPORTED, ARCH_UNKNOWN) },
    { "J15 architecture of control bytes", BASE_LLAMA, arch_name, 4, E(UNSUPPORTED, ARCH_UNKNOWN) },

    { "P1 prediff version 2", BASE_LLAMA, own_version, 2, E(UNSUPPORTED, PREDIFF_KEY) },
    { "P1 prediff version 0", BASE_LLAMA, own_version, 0, E(UNSUPPORTED, PREDIFF_KEY) },
    { "P2 unknown attention", BASE_LLAMA, own_attention, 0, E(UNSUPPORTED, PREDIFF_KEY) },
    { "P2 bidirectional attention", BASE_LLAMA, own_attention, 2, GOOD },
    { "P3 noise without its tensors", BASE_LLAMA, noise_dim, 8, E(FORMAT, TENSOR_MISSING) },
    { "P3 noise of 2^31 numbers", BASE_NOISE, noise_dim, BITS(31), E(FORMAT, PREDIFF_KEY) },
    { "P3 noise of another size", BASE_NOISE, noise_dim, 7, E(FORMAT, TENSOR_SHAPE) },
    { "P3 noise of an unknown kind", BASE_NOISE, noise_kind, 0, E(UNSUPPORTED, PREDIFF_KEY) },
    { "P3 normal noise", BASE_NOISE, noise_kind, 1, GOOD },
    { "P3 noise of an unknown lifetime", BASE_NOISE, noise_life, 0, E(UNSUPPORTED, PREDIFF_KEY) },
    { "P3 redrawn noise", BASE_NOISE, noise_life, 1, GOOD },
    { "P3 half the noise network", BASE_NOISE, without, N_NOISE2, E(FORMAT, TENSOR_MISSING) },
    { "P4 half the rate network", BASE_LLAMA, without, N_RATE2, E(FORMAT, TENSOR_MISSING) },
    { "P4 rate range upside down", BASE_LLAMA, rate_range, 0x3E800000u, E(FORMAT, PREDIFF_KEY) },
    { "P4 rate range", BASE_LLAMA, rate_range, 0x3F400000u, GOOD },
    { "P4 rate scale not a number", BASE_LLAMA, rate_scale, 0x7FC00000u, E(FORMAT, HPARAM_RANGE) },
    { "P4 a rate embedding in a width of 2", BASE_NARROW, as_is, 0, E(FORMAT, HPARAM_RANGE) },
    { "P5 no mask at all opens", BASE_LLAMA, without, N_MASK, GOOD },

    { "K1 eos id -1", BASE_LLAMA, special_signed, 0xFFFFFFFFu, E(FORMAT, SPECIAL_ID) },
    { "K1 eos id 2^64 - 1 as u64", BASE_LLAMA, eos_u64, ALL64, E(FORMAT, HPARAM_RANGE) },
    { "K4 empty vocabulary", BASE_LLAMA, no_tokens, 0, E(FORMAT, TOKENIZER_ARRAY) },
    { "K5 byte token <0x-1>", BASE_SPM, spm_byte_text, 0, GOOD },
    { "K5 byte token <0xZZ>", BASE_SPM, spm_byte_text, 1, GOOD },
    { "K6 byte token missing, no unknown token", BASE_SPM, spm_byte_text, 256 | 1, E(FORMAT, BYTE_TOKENS) },
    { "K6 byte token in capitals, no unknown token", BASE_SPM, spm_byte_text, 256 | 2, E(FORMAT, BYTE_TOKENS) },
    { "K6 byte missing in a byte-level vocabulary", BASE_LLAMA, token_text, 65 << 8 | 3, E(FORMAT, BYTE_TOKENS) },
    { "K7 merge of a token that does not exist", BASE_BPE, merge_text, 5, E(FORMAT, MERGE) },
    { "K8 merge that makes no token", BASE_BPE, merge_text, 6, E(FORMAT, MERGE) },
    { "K9 merge without space", BASE_BPE, merge_text, 0, E(FORMAT, MERGE) },
    { "K9 merge with two spaces", BASE_BPE, merge_text, 1, E(FORMAT, MERGE) },
    { "K9 merge without left half", BASE_BPE, merge_text, 2, E(FORMAT, MERGE) },
    { "K9 merge without right half", BASE_BPE, merge_text, 3, E(FORMAT, MERGE) },
    { "K9 merge of three", BASE_BPE, merge_text, 4, E(FORMAT, MERGE) },
    { "K9 empty merge", BASE_BPE, merge_text, 8, E(FORMAT, MERGE) },
    { "K9 merge twice: the first counts", BASE_BPE, merge_text, 7, GOOD },
    { "K9 merges as numbers", BASE_BPE, merges_numbers, 0, E(FORMAT, GGUF_VALUE_TYPE) },
    { "K9 merges missing", BASE_BPE, without, N_MERGES, E(FORMAT, KEY_MISSING) },
    { "K11 bos id beyond the vocabulary", BASE_LLAMA, special_id, 264, E(FORMAT, SPECIAL_ID) },
    { "K11 bos id 2^32 - 1", BASE_LLAMA, special_id, 0xFFFFFFFFu, E(FORMAT, SPECIAL_ID) },
    { "K11 bos id", BASE_LLAMA, special_id, 263, GOOD },
    { "K12 mask id beyond the embedding", BASE_MASK_ID, mask_id, 264, E(ARG, SPECIAL_ID) },
    { "K12 mask id 2^32 - 1", BASE_MASK_ID, mask_id, 0xFFFFFFFFu, E(FORMAT, SPECIAL_ID) },
    { "J14 mask id is the end of text", BASE_MASK_ID, mask_id, 256, E(ARG, MASK_IS_EOS) },
    { "K13 empty token", BASE_LLAMA, token_text, 260 << 8 | 0, E(FORMAT, TOKEN_EMPTY) },
    { "K25 token twice", BASE_LLAMA, token_text, 260 << 8 | 1, E(FORMAT, TOKEN_DUPLICATE) },
    { "K23 tokenizer kind unknown", BASE_LLAMA, tok_model, 0, E(UNSUPPORTED, TOKENIZER_KIND) },
    { "K23 tokenizer kind empty", BASE_LLAMA, tok_model, 3, E(UNSUPPORTED, TOKENIZER_KIND) },
    { "K23 tokenizer kind none", BASE_LLAMA, tok_model, 2, GOOD },
    { "K21 splitter unknown", BASE_LLAMA, tok_pre, 0, E(UNSUPPORTED, TOKENIZER_KIND) },
    { "K21 splitter llama-bpe", BASE_LLAMA, tok_pre, 1, GOOD },
    { "K21 splitter smollm", BASE_LLAMA, tok_pre, 2, GOOD },
    { "K21 splitter missing", BASE_LLAMA, without, N_PRE, GOOD },
    { "K24 scores not a number", BASE_SPM, scores_nan, 0x7FC00000u, GOOD },
    { "K23 scores missing", BASE_SPM, without, N_SCORES, E(FORMAT, KEY_MISSING) },
    { "K23 tokens missing", BASE_LLAMA, without, N_TOKENS, E(FORMAT, KEY_MISSING) },
    { "K23 tokenizer model missing", BASE_LLAMA, without, N_MODEL, E(FORMAT, KEY_MISSING) },
    { "K23 token types missing", BASE_LLAMA, without, N_TYPES, GOOD },
    { "G38 heads times head size wraps in 32 bits", BASE_LLAMA, many_heads, 65536, E(LIMIT, LIMIT_EXCEEDED) }
};
#define PD_N_CASES (sizeof pd_cases / sizeof *pd_cases)

/* Builds case i in an exact-size block (free it). */
PD_TINY_FN uint8_t *pd_case_bytes(size_t i, size_t *n) {
    pd_gguf *g = pd_base(pd_cases[i].base);
    uint8_t *b;
    pd_cases[i].edit(g, pd_cases[i].arg);
    b = pd_gguf_write(g, n);
    pd_gguf_free(g);
    return b;
}

#endif /* PD_CORPUS_H */
