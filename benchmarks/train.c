/* SPDX-License-Identifier: MIT
 * A training step, timed: gradient of a batch and AdamW, all of it.
 *
 *     bench-train [gpt2-124m | story-3m] [-t threads] [-r repeats] [--recompute]
 *
 * gpt2-124m: 4 texts of 64 tokens, causal, as llm.c measures. story-3m: 24 texts of 256 tokens, causal, the demo model's shape.
 * Weights are random; no file is needed. Prints memory, median, minimum and maximum.
 */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>
#include <time.h>

typedef struct shape { const char *name; int gpt2; size_t vocab, ctx, embd, layers, heads, heads_kv, ff, batch, length; } shape;
static const shape shapes[] = {
    { "gpt2-124m", 1, 50257, 1024, 768, 12, 12, 12, 3072, 4, 64 },
    { "story-3m", 0, 2048, 256, 192, 6, 6, 3, 576, 24, 256 },
};

typedef struct file { uint8_t *p; size_t n, room; } file;

static int grow(void *user, const void *bytes, size_t n) {
    file *f = (file *)user;
    while (f->n + n > f->room) {
        f->room = f->room ? 2 * f->room : 1 << 20;
        f->p = (uint8_t *)realloc(f->p, f->room);
        if (!f->p) return 1;
    }
    memcpy(f->p + f->n, bytes, n);
    f->n += n;
    return 0;
}

typedef struct maker { prediff_key keys[16]; uint8_t data[16][32]; char names[16][64]; size_t n_keys; prediff_tensor tensors[256]; char tensor_names[256][64]; size_t n; file out; } maker;

static void key(maker *m, const char *name, uint32_t type, const void *data, size_t n) {
    prediff_key *k = &m->keys[m->n_keys];
    snprintf(m->names[m->n_keys], 64, "%s", name);
    k->name.bytes = m->names[m->n_keys]; k->name.n = strlen(name);
    k->type = k->element = type; k->count = 1;
    memcpy(m->data[m->n_keys], data, n);
    k->data = m->data[m->n_keys++]; k->data_size = n;
}

static void size_key(maker *m, const char *arch, const char *name, size_t v) {
    char full[64];
    uint8_t b[4];
    pdi_put_u32(b, (uint32_t)v);
    snprintf(full, sizeof full, "%s.%s", arch, name);
    key(m, full, 4, b, 4);
}

static void tensor(maker *m, const char *name, size_t rows, size_t cols) {
    prediff_tensor *t = &m->tensors[m->n];
    snprintf(m->tensor_names[m->n], 64, "%s", name);
    t->name.bytes = m->tensor_names[m->n++]; t->name.n = strlen(name);
    t->n_dims = rows ? 2 : 1;
    t->dims[0] = cols; t->dims[1] = rows ? rows : 1; t->dims[2] = t->dims[3] = 1;
}

static int random_row(void *user, size_t i, size_t row, float *out) {
    const maker *m = (const maker *)user;
    size_t k, n = (size_t)m->tensors[i].dims[0];
    int norm = strstr(m->tensor_names[i], "norm.weight") != NULL;
    for (k = 0; k < n; k++) out[k] = norm ? 1.0f : 0.02f * (float)(2.0 * prediff_uniform(1, 1, (uint32_t)i, (uint32_t)row, (uint32_t)k) - 1.0);
    return 0;
}

static int write_bytes(void *user, const void *bytes, size_t n) { return grow(&((maker *)user)->out, bytes, n); }

static void layer(maker *m, const char *format, size_t l, size_t rows, size_t cols) {
    char name[64];
    snprintf(name, sizeof name, format, (unsigned)l);
    tensor(m, name, rows, cols);
}

static prediff_model *make_model(maker *m, const shape *s) {
    const char *arch = s->gpt2 ? "gpt2" : "llama";
    size_t l, d = s->embd, kv = d / s->heads * s->heads_kv;
    prediff_save_desc save;
    prediff_model_desc open;
    prediff_model *model = NULL;
    uint8_t text[32];
    pdi_put_u64(text, strlen(arch));
    memcpy(text + 8, arch, strlen(arch));
    key(m, "general.architecture", 8, text, 8 + strlen(arch));
    size_key(m, arch, "context_length", s->ctx);
    size_key(m, arch, "embedding_length", d);
    size_key(m, arch, "block_count", s->layers);
    size_key(m, arch, "feed_forward_length", s->ff);
    size_key(m, arch, "attention.head_count", s->heads);
    size_key(m, arch, "attention.head_count_kv", s->heads_kv);
    tensor(m, "token_embd.weight", s->vocab, d);
    if (s->gpt2) tensor(m, "position_embd.weight", s->ctx, d);
    for (l = 0; l < s->layers; l++) {
        layer(m, "blk.%u.attn_norm.weight", l, 0, d);
        layer(m, "blk.%u.ffn_norm.weight", l, 0, d);
        layer(m, "blk.%u.attn_output.weight", l, d, d);
        layer(m, "blk.%u.ffn_up.weight", l, s->ff, d);
        layer(m, "blk.%u.ffn_down.weight", l, d, s->ff);
        if (s->gpt2) {
            layer(m, "blk.%u.attn_norm.bias", l, 0, d);
            layer(m, "blk.%u.ffn_norm.bias", l, 0, d);
            layer(m, "blk.%u.attn_qkv.weight", l, 3 * d, d);
            layer(m, "blk.%u.attn_qkv.bias", l, 0, 3 * d);
            layer(m, "blk.%u.attn_output.bias", l, 0, d);
            layer(m, "blk.%u.ffn_up.bias", l, 0, s->ff);
            layer(m, "blk.%u.ffn_down.bias", l, 0, d);
        } else {
            layer(m, "blk.%u.attn_q.weight", l, d, d);
            layer(m, "blk.%u.attn_k.weight", l, kv, d);
            layer(m, "blk.%u.attn_v.weight", l, kv, d);
            layer(m, "blk.%u.ffn_gate.weight", l, s->ff, d);
        }
    }
    tensor(m, "output_norm.weight", 0, d);
    if (s->gpt2) tensor(m, "output_norm.bias", 0, d);
    memset(&save, 0, sizeof save);
    save.keys = m->keys; save.n_keys = m->n_keys;
    save.tensors = m->tensors; save.n_tensors = m->n;
    save.row = random_row; save.write = write_bytes; save.user = m;
    memset(&open, 0, sizeof open);
    if (prediff_save(&save, NULL)) return NULL;
    open.data = m->out.p; open.size = m->out.n;
    prediff_model_open(&model, &open, NULL);
    return model;
}

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }

static int smaller(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }

int main(int argc, char **argv) {
    static maker m;
    const shape *s = &shapes[0];
    prediff_train_desc d;
    prediff_train_stats stats;
    prediff_trainer *t;
    prediff_error e;
    prediff_sequence *texts;
    double *ms;
    int32_t *ids;
    size_t i, bytes, repeats = 7;
    int a, threads = 2, recompute = 0;
    for (a = 1; a < argc; a++) {
        for (i = 0; i < sizeof shapes / sizeof *shapes; i++) if (strcmp(argv[a], shapes[i].name) == 0) s = &shapes[i];
        if (strcmp(argv[a], "-t") == 0 && a + 1 < argc) threads = atoi(argv[++a]);
        if (strcmp(argv[a], "-r") == 0 && a + 1 < argc) repeats = (size_t)atoi(argv[++a]);
        if (strcmp(argv[a], "--recompute") == 0) recompute = 1;
    }
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    d.init = make_model(&m, s);
    d.objective = PREDIFF_OBJECTIVE_CAUSAL;
    d.n_ctx = s->length;
    d.max_rows = s->batch * s->length;
    d.n_threads = threads;
    d.recompute = recompute;
    d.clip = 1;
    d.weight_decay = 0.1;
    if (prediff_trainer_size(&d, &bytes, &e) || prediff_trainer_create(&t, &d, &e)) return fprintf(stderr, "%s\n", e.message), 1;
    ids = (int32_t *)malloc(d.max_rows * sizeof *ids);
    texts = (prediff_sequence *)calloc(s->batch, sizeof *texts);
    ms = (double *)malloc(repeats * sizeof *ms);
    if (!ids || !texts || !ms) return 1;
    for (i = 0; i < d.max_rows; i++) ids[i] = (int32_t)(prediff_uniform(2, 1, 0, (uint32_t)i, 0) * (double)s->vocab);
    for (i = 0; i < s->batch; i++) { texts[i].ids = ids + i * s->length; texts[i].n = texts[i].n_prompt = s->length; }
    for (i = 0; i <= repeats; i++) {                            /* the first warms up */
        double begin = now();
        if (prediff_trainer_gradient(t, texts, s->batch, &stats, &e) || prediff_trainer_update(t, 1e-4, &stats, &e)) return fprintf(stderr, "%s\n", e.message), 1;
        if (i) ms[i - 1] = 1e3 * (now() - begin);
    }
    qsort(ms, repeats, sizeof *ms, smaller);
    printf("%s: %zu x %zu tokens, %s, %d threads%s, %.0f MB: median %.0f ms a step (%.0f to %.0f, %zu runs), %.0f tokens/s, loss %.4f\n", s->name, s->batch, s->length,
           prediff_isa_name(prediff_isa_best()), threads, recompute ? ", recomputing" : "", (double)bytes / 1e6, ms[repeats / 2], ms[0], ms[repeats - 1], repeats,
           (double)(s->batch * s->length) / ms[repeats / 2] * 1e3, stats.loss);
    prediff_trainer_destroy(t);
    prediff_model_close((prediff_model *)(uintptr_t)d.init);
    free(m.out.p); free(ids); free(texts); free(ms);
    return 0;
}
