/* SPDX-License-Identifier: MIT
 * pd_tiny.h: small random models in memory, written through prediff_save. A tensor's values depend on its name and the seed
 * alone, so models that differ in one part agree in all others. Include after prediff.h.
 */
#ifndef PD_TINY_H
#define PD_TINY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PD_TINY_FN static __attribute__((unused))
#else
#define PD_TINY_FN static
#endif

typedef struct pd_tiny {               /* zero = the default in brackets */
    int gpt2;                          /* 1: gpt2, 0: llama */
    size_t vocab, ctx, embd, layers, heads, heads_kv, ff;      /* [264, 64, 32, 2, 4, 2 (llama), 48] */
    size_t noise_dim;                  /* 0 = no infinite mask */
    int causal_only;                   /* 1: no additions at all, no prediff keys */
    int no_rate, no_selfcond, no_mask;
    int zero_noise, zero_selfcond, zero_output;                /* 1: those last layers are zero; zero_output unties the head */
    int redraw, shift, no_tokenizer;
    const char *attention;             /* ["hybrid"] */
    int mask_id;                       /* > 0: the mask is this vocabulary row (give no_mask as well) */
    float scale;                       /* of matrices [0.3] */
    uint32_t type;                     /* of matrices, as prediff_type [F32]; Q4_1, Q4_K, Q6_K are random blocks */
    uint32_t seed;
    size_t tokens;                     /* of the tokenizer, the embedding may have more rows [vocab] */
    const char *arch;                  /* ["gpt2" or "llama", by gpt2] */
    int qkv_bias;                      /* 1: q, k and v have biases (not of gpt2, which always has) */
    int halves;                        /* 1: rows of q and k in the order that makes rotary pairs by halves of those made by twos */
} pd_tiny;

typedef struct pd_bytes { uint8_t *p; size_t n, room; } pd_bytes;

PD_TINY_FN void pd_put(pd_bytes *b, const void *x, size_t n) {
    while (b->n + n > b->room) {
        b->room = b->room ? 2 * b->room : 4096;
        b->p = (uint8_t *)realloc(b->p, b->room);
        if (!b->p) abort();
    }
    if (n) memcpy(b->p + b->n, x, n);
    b->n += n;
}

PD_TINY_FN int pd_put_write(void *user, const void *x, size_t n) { pd_put((pd_bytes *)user, x, n); return 0; }

PD_TINY_FN void pd_put_int(pd_bytes *b, uint64_t v, int bytes) {
    uint8_t c[8];
    int i;
    for (i = 0; i < 8; i++) c[i] = (uint8_t)(v >> 8 * i);
    pd_put(b, c, (size_t)bytes);
}

PD_TINY_FN void pd_put_str(pd_bytes *b, const char *s, size_t n) { pd_put_int(b, n, 8); pd_put(b, s, n); }

/* What a file is made of; data lies in separate blocks so that pointers stay good. */
typedef struct pd_maker {
    prediff_key keys[40]; pd_bytes key_data[40]; char key_names[40][64]; size_t n_keys;
    prediff_tensor tensors[64]; pd_bytes tensor_data[64]; char tensor_names[64][64]; uint32_t store[64]; size_t n_tensors;
    const pd_tiny *t;
} pd_maker;

PD_TINY_FN pd_bytes *pd_key_of(pd_maker *m, const char *name, uint32_t type) {
    prediff_key *k = &m->keys[m->n_keys];
    if (m->n_keys == 40) abort();
    snprintf(m->key_names[m->n_keys], 64, "%s", name);
    k->name.bytes = m->key_names[m->n_keys]; k->name.n = strlen(name);
    k->type = type; k->count = 1;
    return &m->key_data[m->n_keys++];
}

PD_TINY_FN void pd_key_u32(pd_maker *m, const char *arch, const char *name, uint64_t v) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", arch, name);
    pd_put_int(pd_key_of(m, full, 4), v, 4);
}

PD_TINY_FN void pd_key_f32(pd_maker *m, const char *arch, const char *name, float v) {
    char full[96];
    uint32_t u;
    snprintf(full, sizeof full, "%s%s", arch, name);
    memcpy(&u, &v, 4);
    pd_put_int(pd_key_of(m, full, 6), u, 4);
}

PD_TINY_FN void pd_key_bool(pd_maker *m, const char *name, int v) { pd_put_int(pd_key_of(m, name, 7), (uint64_t)v, 1); }
PD_TINY_FN void pd_key_str(pd_maker *m, const char *name, const char *v) { pd_put_str(pd_key_of(m, name, 8), v, strlen(v)); }

PD_TINY_FN uint32_t pd_name_hash(const char *name, uint32_t seed) {
    uint32_t h = 2166136261u ^ seed * 2654435761u;
    while (*name) h = (h ^ (uint8_t)*name++) * 16777619u;
    return h;
}

PD_TINY_FN uint32_t pd_next(uint32_t *s) { *s = *s * 1664525u + 1013904223u; return *s >> 8; }

PD_TINY_FN int pd_type_size(uint32_t type, size_t *block, size_t *bytes) {
    static const uint32_t list[][3] = { { 0, 1, 4 }, { 1, 1, 2 }, { 30, 1, 2 }, { 8, 32, 34 }, { 2, 32, 18 }, { 3, 32, 20 }, { 12, 256, 144 }, { 14, 256, 210 } };
    size_t i;
    for (i = 0; i < sizeof list / sizeof *list; i++) if (list[i][0] == type) { *block = list[i][1]; *bytes = list[i][2]; return 1; }
    return 0;
}

/* Random but finite blocks; the scales are small halves so that activations stay ordinary. */
PD_TINY_FN void pd_random_blocks(pd_bytes *b, uint32_t type, size_t n, uint32_t *state) {
    size_t block = 1, bytes = 1, i, j;
    uint8_t c[256];
    pd_type_size(type, &block, &bytes);
    for (i = 0; i < n / block; i++) {
        size_t at = type == 14 ? 208 : 0, halves = type == 14 ? 1 : 2;
        for (j = 0; j < bytes; j++) c[j] = (uint8_t)pd_next(state);
        for (j = 0; j < halves; j++) {
            uint32_t exponent = type == 3 ? 9 : type == 12 ? 4 : 3;      /* 2^-6, 2^-11, 2^-12 and up to twice that */
            uint32_t h = exponent << 10 | (pd_next(state) & 1023u) | (j || type == 14 ? (pd_next(state) & 1u) << 15 : 0);
            c[at + 2 * j] = (uint8_t)h; c[at + 2 * j + 1] = (uint8_t)(h >> 8);
        }
        pd_put(b, c, bytes);
    }
}

/* base + scale * random, or blocks where the model's type cannot be written from floats. */
PD_TINY_FN void pd_tensor_of(pd_maker *m, const char *name, size_t rows, size_t cols, float base, float scale) {
    size_t i, block = 1, bytes = 4, k = m->n_tensors++;
    prediff_tensor *t = &m->tensors[k];
    uint32_t state = pd_name_hash(name, m->t->seed), type = m->t->type;
    if (k == 64) abort();
    snprintf(m->tensor_names[k], 64, "%s", name);
    t->name.bytes = m->tensor_names[k]; t->name.n = strlen(name);
    t->n_dims = rows ? 2 : 1;
    t->dims[0] = cols; t->dims[1] = rows ? rows : 1; t->dims[2] = t->dims[3] = 1;
    if (!rows || !pd_type_size(type, &block, &bytes) || cols % block) type = 0;
    m->store[k] = type;
    t->type = type == 3 || type == 12 || type == 14 ? type : 0;
    if (t->type) { pd_random_blocks(&m->tensor_data[k], type, rows * cols, &state); return; }
    for (i = 0; i < (rows ? rows : 1) * cols; i++) {
        float v = base + scale * ((float)(pd_next(&state) & 0xFFFFu) / 32768.0f - 1.0f);
        uint32_t u;
        memcpy(&u, &v, 4);
        pd_put_int(&m->tensor_data[k], u, 4);
    }
}

PD_TINY_FN void pd_linear(pd_maker *m, const char *name, size_t out, size_t in, int bias, float scale) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    pd_tensor_of(m, full, out, in, 0, scale);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) pd_tensor_of(m, full, 0, out, 0, scale * 0.3f);
}

PD_TINY_FN void pd_norm_tensor(pd_maker *m, const char *name, size_t n, int bias) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    pd_tensor_of(m, full, 0, n, 1.0f, 0.2f);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) pd_tensor_of(m, full, 0, n, 0, 0.1f);
}

/* The last tensor's rows (a vector's elements) within each head of e: row 2i goes to i, row 2i + 1 to e/2 + i. */
PD_TINY_FN void pd_split_halves(pd_maker *m, size_t rows, size_t e) {
    pd_bytes *b = &m->tensor_data[m->n_tensors - 1];
    size_t row = b->n / rows, r;
    uint8_t *copy = (uint8_t *)malloc(b->n);
    if (!copy) abort();
    memcpy(copy, b->p, b->n);
    for (r = 0; r < rows; r++) memcpy(b->p + (r / e * e + r % e / 2 + r % 2 * (e / 2)) * row, copy + r * row, row);
    free(copy);
}

/* A projection of q or k: heads of e. */
PD_TINY_FN void pd_rotated(pd_maker *m, const char *name, size_t out, size_t in, size_t e) {
    char full[80];
    pd_linear(m, name, out, in, 0, m->t->scale);
    if (m->t->halves) pd_split_halves(m, out, e);
    if (!m->t->qkv_bias) return;
    snprintf(full, sizeof full, "%s.bias", name);
    pd_tensor_of(m, full, 0, out, 0, m->t->scale);
    if (m->t->halves) pd_split_halves(m, out, e);
}

/* A byte-level vocabulary: 256 byte tokens in GPT-2's spelling, <|end|> (id 256), then <pad-n>. No merges. */
PD_TINY_FN void pd_tokenizer_keys(pd_maker *m, size_t vocab) {
    pd_bytes *b;
    size_t i, next = 256;
    pd_key_str(m, "tokenizer.ggml.model", "gpt2");
    pd_key_str(m, "tokenizer.ggml.pre", "gpt-2");
    b = pd_key_of(m, "tokenizer.ggml.tokens", 9);
    m->keys[m->n_keys - 1].element = 8; m->keys[m->n_keys - 1].count = vocab;
    for (i = 0; i < vocab; i++) {
        char s[32];
        if (i < 256) {
            size_t c = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174 ? i : next++;
            if (c < 128) pd_put_str(b, (s[0] = (char)c, s), 1);
            else { s[0] = (char)(0xC0 | c >> 6); s[1] = (char)(0x80 | (c & 63)); pd_put_str(b, s, 2); }
            continue;
        }
        snprintf(s, sizeof s, i == 256 ? "<|end|>" : "<pad-%d>", (int)i);
        pd_put_str(b, s, strlen(s));
    }
    b = pd_key_of(m, "tokenizer.ggml.token_type", 9);
    m->keys[m->n_keys - 1].element = 5; m->keys[m->n_keys - 1].count = vocab;
    for (i = 0; i < vocab; i++) pd_put_int(b, i == 256 ? 3 : 1, 4);
    b = pd_key_of(m, "tokenizer.ggml.merges", 9);
    m->keys[m->n_keys - 1].element = 8; m->keys[m->n_keys - 1].count = 0;
    (void)b;
    pd_key_u32(m, "tokenizer.ggml.", "eos_token_id", 256);
    if (m->t->mask_id > 0) pd_key_u32(m, "tokenizer.ggml.", "mask_token_id", (uint64_t)m->t->mask_id);
}

PD_TINY_FN void pd_tiny_keys(pd_maker *m, const pd_tiny *t) {
    const char *arch = t->arch;
    pd_key_str(m, "general.architecture", arch);
    pd_key_u32(m, arch, ".context_length", t->ctx);
    pd_key_u32(m, arch, ".embedding_length", t->embd);
    pd_key_u32(m, arch, ".block_count", t->layers);
    pd_key_u32(m, arch, ".feed_forward_length", t->ff);
    pd_key_u32(m, arch, ".attention.head_count", t->heads);
    if (!t->gpt2) pd_key_u32(m, arch, ".attention.head_count_kv", t->heads_kv);
    pd_key_f32(m, arch, t->gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", 1e-5f);
    if (!t->no_tokenizer) pd_tokenizer_keys(m, t->tokens ? t->tokens : t->vocab);
    if (t->causal_only) return;
    pd_key_u32(m, "prediff", ".version", 1);
    pd_key_str(m, "prediff.attention", t->attention);
    pd_key_bool(m, "diffusion.shift_logits", t->shift);
    if (t->noise_dim) {
        pd_key_u32(m, "prediff", ".noise.dim", t->noise_dim);
        pd_key_f32(m, "prediff", ".noise.scale", 0.5f);
        pd_key_str(m, "prediff.noise.distribution", "uniform");
        if (t->redraw) pd_key_str(m, "prediff.noise.lifetime", "redraw");
    }
}

PD_TINY_FN void pd_tiny_tensors(pd_maker *m, const pd_tiny *t) {
    size_t d = t->embd, kv = d / t->heads * t->heads_kv, i;
    char s[64];
    pd_tensor_of(m, "token_embd.weight", t->vocab, d, 0, 1.0f);
    if (t->gpt2) pd_tensor_of(m, "position_embd.weight", t->ctx, d, 0, 0.5f);
    pd_norm_tensor(m, "output_norm", d, t->gpt2);
    if (t->zero_output) pd_linear(m, "output", t->vocab, d, 0, 0);
    for (i = 0; i < t->layers; i++) {
        int n = (int)i, g = t->gpt2;
        snprintf(s, sizeof s, "blk.%d.attn_norm", n);   pd_norm_tensor(m, s, d, g);
        snprintf(s, sizeof s, "blk.%d.ffn_norm", n);    pd_norm_tensor(m, s, d, g);
        snprintf(s, sizeof s, "blk.%d.attn_qkv", n);    if (g) pd_linear(m, s, 3 * d, d, 1, t->scale);
        snprintf(s, sizeof s, "blk.%d.attn_q", n);      if (!g) pd_rotated(m, s, d, d, d / t->heads);
        snprintf(s, sizeof s, "blk.%d.attn_k", n);      if (!g) pd_rotated(m, s, kv, d, d / t->heads);
        snprintf(s, sizeof s, "blk.%d.attn_v", n);      if (!g) pd_linear(m, s, kv, d, t->qkv_bias, t->scale);
        snprintf(s, sizeof s, "blk.%d.ffn_gate", n);    if (!g) pd_linear(m, s, t->ff, d, 0, t->scale);
        snprintf(s, sizeof s, "blk.%d.attn_output", n); pd_linear(m, s, d, d, g, t->scale);
        snprintf(s, sizeof s, "blk.%d.ffn_up", n);      pd_linear(m, s, t->ff, d, g, t->scale);
        snprintf(s, sizeof s, "blk.%d.ffn_down", n);    pd_linear(m, s, d, t->ff, g, t->scale);
    }
    if (t->causal_only) return;
    if (!t->no_mask) pd_tensor_of(m, "prediff.mask.weight", 0, d, 0, 0.7f);
    if (!t->no_rate) { pd_linear(m, "prediff.rate.0", 4 * d, d, 1, t->scale); pd_linear(m, "prediff.rate.2", d, 4 * d, 1, t->scale); }
    if (!t->no_selfcond) {
        pd_tensor_of(m, "prediff.selfcond.weight", d, d, 0, t->zero_selfcond ? 0 : t->scale);
        pd_tensor_of(m, "prediff.selfcond.bias", 0, d, 0, t->zero_selfcond ? 0 : 0.2f);
    }
    if (t->noise_dim) { pd_linear(m, "prediff.noise.0", 4 * d, t->noise_dim, 1, 1.0f); pd_linear(m, "prediff.noise.2", d, 4 * d, 0, t->zero_noise ? 0 : t->scale); }
}

/* The model as GGUF bytes (free them after the model is closed). */
PD_TINY_FN uint8_t *pd_tiny_bytes(const pd_tiny *given, size_t *n) {
    pd_tiny t = *given;
    pd_maker *m = (pd_maker *)calloc(1, sizeof *m);
    prediff_save_desc d;
    prediff_error e;
    pd_bytes out;
    size_t i;
    if (!m) abort();
    if (!t.vocab) t.vocab = 264;
    if (!t.ctx) t.ctx = 64;
    if (!t.embd) t.embd = 32;
    if (!t.layers) t.layers = 2;
    if (!t.heads) t.heads = 4;
    if (!t.heads_kv) t.heads_kv = t.gpt2 ? t.heads : t.heads / 2;
    if (!t.ff) t.ff = 48;
    if (!(t.scale > 0)) t.scale = 0.3f;
    if (!t.attention) t.attention = "hybrid";
    if (!t.arch) t.arch = t.gpt2 ? "gpt2" : "llama";
    m->t = &t;
    pd_tiny_keys(m, &t);
    pd_tiny_tensors(m, &t);
    for (i = 0; i < m->n_keys; i++) { m->keys[i].data = m->key_data[i].p ? m->key_data[i].p : (const uint8_t *)""; m->keys[i].data_size = m->key_data[i].n; }
    for (i = 0; i < m->n_tensors; i++) { m->tensors[i].data = m->tensor_data[i].p; m->tensors[i].data_size = m->tensor_data[i].n; }
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e); memset(&out, 0, sizeof out);
    d.keys = m->keys; d.n_keys = m->n_keys; d.tensors = m->tensors; d.n_tensors = m->n_tensors; d.store = m->store;
    d.write = pd_put_write; d.user = &out;
    if (prediff_save(&d, &e)) { fprintf(stderr, "pd_tiny: prediff_save: %s\n", e.message); exit(3); }
    for (i = 0; i < m->n_keys; i++) free(m->key_data[i].p);
    for (i = 0; i < m->n_tensors; i++) free(m->tensor_data[i].p);
    free(m);
    *n = out.n;
    return out.p;
}

/* The same file with every tensor (or only matrices whose rows are whole blocks) stored as `type`. */
PD_TINY_FN uint8_t *pd_restore_as(const uint8_t *bytes, size_t n, uint32_t type, size_t *out_n) {
    prediff_model_desc md;
    prediff_model *m = NULL;
    prediff_container c;
    prediff_save_desc d;
    prediff_error e;
    pd_bytes out;
    uint32_t *store;
    size_t i, block = 1, size = 0;
    memset(&md, 0, sizeof md); memset(&d, 0, sizeof d); memset(&e, 0, sizeof e); memset(&out, 0, sizeof out);
    md.data = bytes; md.size = n;
    if (prediff_container_open(&m, &md, &e)) { fprintf(stderr, "pd_tiny: reopen: %s\n", e.message); exit(3); }
    prediff_container_get(m, &c);
    store = (uint32_t *)calloc(c.n_tensors + 1, sizeof *store);
    if (!store) abort();
    pd_type_size(type, &block, &size);
    for (i = 0; i < c.n_tensors; i++) store[i] = type == 0 || (c.tensors[i].dims[1] > 1 && c.tensors[i].dims[0] % block == 0) ? type : c.tensors[i].type;
    d.keys = c.keys; d.n_keys = c.n_keys; d.tensors = c.tensors; d.n_tensors = c.n_tensors; d.store = store; d.write = pd_put_write; d.user = &out;
    if (prediff_save(&d, &e)) { fprintf(stderr, "pd_tiny: save again: %s\n", e.message); exit(3); }
    prediff_model_close(m);
    free(store);
    *out_n = out.n;
    return out.p;
}

PD_TINY_FN prediff_model *pd_open_bytes(const uint8_t *bytes, size_t n) {
    prediff_model_desc d;
    prediff_model *m = NULL;
    prediff_error e;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    d.data = bytes; d.size = n; d.copy = 1;
    if (prediff_model_open(&m, &d, &e)) { fprintf(stderr, "pd_tiny: open: %s (%s)\n", e.message, prediff_item_name(e.item)); exit(3); }
    return m;
}

PD_TINY_FN prediff_model *pd_tiny_open(const pd_tiny *t) {
    size_t n;
    uint8_t *b = pd_tiny_bytes(t, &n);
    prediff_model *m = pd_open_bytes(b, n);
    free(b);
    return m;
}

#endif /* PD_TINY_H */
