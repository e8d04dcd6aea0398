/* SPDX-License-Identifier: MIT
 * What the parity scripts need and the command line does not have: raw logits, token ids, dequantised tensors, files stored
 * in another type.
 *
 *     probe encode MODEL [special]     standard input: per text a u32 length (little-endian) and bytes; a line of ids each
 *     probe logits MODEL PROMPT [kind] standard input: ids; all rows as raw float32. The first PROMPT ids are the prompt, the
 *                                      others the target; kind hybrid or bidirectional
 *     probe forward MODEL PROMPT KIND RATE SELFCOND NOISE
 *                                      standard input: ids, -1 for a mask; the target's rows as raw float32. RATE a number,
 *                                      SELFCOND and NOISE files of raw float32, or - for what the library does without them
 *     probe store IN OUT TYPE          matrices whose rows are whole blocks are stored as TYPE, the rest as it is
 *     probe floats MODEL TENSOR        a tensor's values as raw float32
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, const prediff_error *e) { fprintf(stderr, "probe: %s: %s\n", what, e ? e->message : ""); return 1; }

static int open_model(prediff_model **m, const char *path, int kind) {
    prediff_model_desc d;
    prediff_error e;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    d.path = path;
    d.vocab_only = kind == 1;
    return (kind == 2 ? prediff_container_open : prediff_model_open)(m, &d, &e) ? fail(path, &e) : 0;
}

static int encode(const char *path, unsigned flags) {
    prediff_model *m;
    unsigned char length[4];
    if (open_model(&m, path, 1)) return 1;
    while (fread(length, 1, 4, stdin) == 4) {
        size_t n = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16, count, i;
        char *text = (char *)malloc(n + 1);
        int32_t *ids = (int32_t *)malloc((n + 8) * sizeof *ids);
        prediff_error e;
        memset(&e, 0, sizeof e);
        if (!text || !ids || fread(text, 1, n, stdin) != n) return fail("short text", NULL);
        if (prediff_encode(m, text, n, flags, ids, n + 8, &count, &e)) return fail("encode", &e);
        for (i = 0; i < count; i++) printf(i ? " %d" : "%d", (int)ids[i]);
        putchar('\n');
        free(text); free(ids);
    }
    prediff_model_close(m);
    return 0;
}

static int logits(const char *path, size_t n_prompt, const char *kind) {
    static int32_t ids[65536];
    prediff_model *m;
    prediff_context *c;
    prediff_context_desc cd;
    prediff_forward_desc fd;
    prediff_model_info info;
    prediff_error e;
    size_t n = 0;
    float *x;
    int id;
    if (open_model(&m, path, 0)) return 1;
    while (n < 65536 && scanf("%d", &id) == 1) ids[n++] = id;
    if (n_prompt > n) n_prompt = n;
    memset(&cd, 0, sizeof cd); memset(&fd, 0, sizeof fd); memset(&e, 0, sizeof e);
    cd.n_ctx = n; cd.n_threads = 2;
    cd.attention = strcmp(kind, "bidirectional") == 0 ? PREDIFF_ATTENTION_BIDIRECTIONAL : PREDIFF_ATTENTION_HYBRID;
    if (prediff_context_create(&c, m, &cd, &e)) return fail("context", &e);
    prediff_model_get_info(m, &info);
    x = (float *)malloc((n + 1) * info.n_vocab * sizeof *x);
    if (!x) return fail("memory", NULL);
    if (prediff_prompt(c, ids, n_prompt, n_prompt ? x : NULL, &e)) return fail("prompt", &e);
    fd.target = ids + n_prompt; fd.n = n - n_prompt; fd.logits = x + n_prompt * info.n_vocab;
    if (prediff_forward(c, &fd, &e)) return fail("forward", &e);
    fwrite(x, sizeof *x, n * info.n_vocab, stdout);
    free(x);
    prediff_context_destroy(c);
    prediff_model_close(m);
    return 0;
}

/* A file of raw floats; NULL for "-". */
static float *read_floats(const char *path, size_t n) {
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : NULL;
    float *x = f ? (float *)malloc((n + 1) * sizeof *x) : NULL;
    if (x && fread(x, sizeof *x, n + 1, f) != n) { fprintf(stderr, "probe: %s does not hold %lu floats\n", path, (unsigned long)n); exit(1); }
    if (f) fclose(f);
    return x;
}

static int forward(char **argv) {
    static int32_t ids[65536];
    prediff_model *m;
    prediff_context *c;
    prediff_context_desc cd;
    prediff_forward_desc fd;
    prediff_model_info info;
    prediff_error e;
    size_t n = 0, n_prompt = (size_t)strtoul(argv[1], NULL, 10);
    float rate = (float)strtod(argv[3], NULL);
    int id;
    if (open_model(&m, argv[0], 0)) return 1;
    prediff_model_get_info(m, &info);
    while (n < 65536 && scanf("%d", &id) == 1) ids[n++] = id;
    memset(&cd, 0, sizeof cd); memset(&fd, 0, sizeof fd); memset(&e, 0, sizeof e);
    cd.n_ctx = n;
    cd.attention = !strcmp(argv[2], "hybrid") ? PREDIFF_ATTENTION_HYBRID : !strcmp(argv[2], "bidirectional") ? PREDIFF_ATTENTION_BIDIRECTIONAL : PREDIFF_ATTENTION_DEFAULT;
    if (prediff_context_create(&c, m, &cd, &e)) return fail("context", &e);
    if (prediff_prompt(c, ids, n_prompt, NULL, &e)) return fail("prompt", &e);
    fd.target = ids + n_prompt; fd.n = n - n_prompt;
    fd.rate = strcmp(argv[3], "-") ? &rate : NULL;
    fd.selfcond = read_floats(argv[4], fd.n * info.n_vocab);
    fd.noise = read_floats(argv[5], fd.n * info.noise_dim);
    fd.logits = (float *)malloc((fd.n + 1) * info.n_vocab * sizeof *fd.logits);
    if (!fd.logits) return fail("memory", NULL);
    if (prediff_forward(c, &fd, &e)) return fail("forward", &e);
    fwrite(fd.logits, sizeof *fd.logits, fd.n * info.n_vocab, stdout);
    free((void *)fd.selfcond); free((void *)fd.noise); free(fd.logits);
    prediff_context_destroy(c);
    prediff_model_close(m);
    return 0;
}

static int write_file(void *user, const void *bytes, size_t n) { return fwrite(bytes, 1, n, (FILE *)user) != n; }

static int store(const char *in, const char *out, const char *type) {
    static const prediff_type types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0, PREDIFF_Q4_0 };
    uint32_t to = 0, *list;
    prediff_model *m;
    prediff_container c;
    prediff_save_desc d;
    prediff_error e;
    FILE *f = fopen(out, "wb");
    size_t i, block;
    if (!f) return fail(out, NULL);
    if (open_model(&m, in, 2)) return 1;
    prediff_container_get(m, &c);
    for (i = 0; i < 5; i++) if (strcmp(type, prediff_type_name(types[i])) == 0) to = types[i];
    block = to == PREDIFF_Q8_0 || to == PREDIFF_Q4_0 ? 32 : 1;
    list = (uint32_t *)malloc(c.n_tensors * sizeof *list);
    if (!list) return fail("memory", NULL);
    for (i = 0; i < c.n_tensors; i++) list[i] = c.tensors[i].dims[1] > 1 && c.tensors[i].dims[0] % block == 0 ? to : c.tensors[i].type;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    d.keys = c.keys; d.n_keys = c.n_keys; d.tensors = c.tensors; d.n_tensors = c.n_tensors; d.store = list; d.write = write_file; d.user = f;
    if (prediff_save(&d, &e)) return fail("save", &e);
    free(list);
    prediff_model_close(m);
    return fclose(f) != 0;
}

static int floats(const char *path, const char *name) {
    prediff_model *m;
    prediff_container c;
    prediff_error e;
    size_t i, r, rows, n;
    memset(&e, 0, sizeof e);
    if (open_model(&m, path, 2)) return 1;
    prediff_container_get(m, &c);
    for (i = 0; i < c.n_tensors; i++) {
        const prediff_tensor *t = &c.tensors[i];
        float *x;
        if (t->name.n != strlen(name) || memcmp(t->name.bytes, name, t->name.n) != 0) continue;
        n = (size_t)t->dims[0];
        rows = (size_t)(t->dims[1] * t->dims[2] * t->dims[3]);
        x = (float *)malloc(n * sizeof *x);
        if (!x) return fail("memory", NULL);
        for (r = 0; r < rows; r++) {
            if (prediff_dequantize_row(t->type, t->data + r * (t->data_size / rows), x, n, &e)) return fail(name, &e);
            fwrite(x, sizeof *x, n, stdout);
        }
        free(x);
        prediff_model_close(m);
        return 0;
    }
    return fail("no such tensor", NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "encode") && argc > 2) return encode(argv[2], argc > 3 ? PREDIFF_ENCODE_SPECIAL : 0);
    if (!strcmp(what, "logits") && argc > 3) return logits(argv[2], (size_t)strtoul(argv[3], NULL, 10), argc > 4 ? argv[4] : "hybrid");
    if (!strcmp(what, "forward") && argc == 8) return forward(argv + 2);
    if (!strcmp(what, "store") && argc > 4) return store(argv[2], argv[3], argv[4]);
    if (!strcmp(what, "floats") && argc > 3) return floats(argv[2], argv[3]);
    fprintf(stderr, "usage: see the head of probe.c\n");
    return 2;
}
