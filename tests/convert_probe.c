/* SPDX-License-Identifier: MIT
 * What tests/convert.sh cannot see from outside: logits of a converted model, tensors of two files side by side.
 *
 *     convert_probe logits MODEL REFERENCE.json TOLERANCE    causal, bidirectional and hybrid logits against recorded ones
 *     convert_probe same A B                                 the same tensors, each with the same shape, type and bytes
 *     convert_probe values A B                               the same tensors and shapes, each with the same values
 *     convert_probe near A B TOLERANCE                       the same, relative root mean square error of each below it
 *     convert_probe type MODEL TENSOR                        prints the type it is stored in
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_json.h"
#include <math.h>

static int fail(const char *what, const prediff_error *e) { printf("%s: %s\n", what, e ? e->message : "failed"); return 1; }

static void *need(void *p) { if (!p) { printf("out of memory\n"); exit(1); } return p; }

static prediff_model *open_file(const char *path, int container) {
    prediff_model_desc d;
    prediff_error e;
    prediff_model *m = NULL;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    d.path = path;
    if (container ? prediff_container_open(&m, &d, &e) : prediff_model_open(&m, &d, &e)) { fail(path, &e); exit(1); }
    return m;
}

/* -- logits -- */

/* Row i of a shifted model predicts token i + 1: a target position reads the row before, position 0 its own. */
static double worst(const float *x, const double *ref, size_t from, size_t n, size_t V, int shift) {
    double err = 0, top = 0;
    size_t i, k;
    for (i = from; i < n; i++)
        for (k = 0; k < V; k++) {
            double want = ref[(shift && i > 0 ? i - 1 : i) * V + k], d = fabs((double)x[i * V + k] - want);
            if (!(d <= err)) err = d;
            if (fabs(want) > top) top = fabs(want);
        }
    return top > 0 ? err / top : err;
}

/* 0 causal: all prompt; 1 bidirectional: all target; 2 hybrid: some of both. */
static int compare(prediff_model *m, const pd_json *j, int kind, double tolerance) {
    static const char *const names[] = { "causal", "bidirectional", "hybrid" };
    prediff_model_info info;
    prediff_context_desc cd;
    prediff_forward_desc fd;
    prediff_context *c;
    prediff_error e;
    size_t n, count, prompt;
    int32_t *ids = pd_json_ints(pd_json_get(j, "tokens"), &n);
    double *ref = pd_json_doubles(pd_json_get(j, names[kind]), &count), err;
    float *x;
    prediff_model_get_info(m, &info);
    if (!n || count != n * info.n_vocab) return fail("the reference has another vocabulary or no tokens", NULL);
    memset(&cd, 0, sizeof cd); memset(&fd, 0, sizeof fd); memset(&e, 0, sizeof e);
    prompt = kind == 0 ? n : kind == 1 ? 0 : (size_t)pd_json_number(j, "n_prompt_for_hybrid");
    cd.n_ctx = n;
    cd.attention = kind == 1 ? PREDIFF_ATTENTION_BIDIRECTIONAL : PREDIFF_ATTENTION_HYBRID;
    x = (float *)need(malloc(n * info.n_vocab * sizeof *x));
    if (prediff_context_create(&c, m, &cd, &e)) return fail("context", &e);
    if (prediff_prompt(c, ids, prompt, kind == 1 ? NULL : x, &e)) return fail("prompt", &e);
    fd.target = ids + prompt; fd.n = n - prompt; fd.logits = x + prompt * info.n_vocab;
    if (prediff_forward(c, &fd, &e)) return fail("forward", &e);
    err = worst(x, ref, 0, prompt, info.n_vocab, 0) + worst(x, ref, prompt, n, info.n_vocab, info.shift);
    printf("%s: relative error %g\n", names[kind], err);
    prediff_context_destroy(c);
    free(ids); free(ref); free(x);
    return !(err < tolerance);
}

static int logits(const char *path, const char *reference, double tolerance) {
    pd_json *j = pd_json_read(reference);
    prediff_model *m = open_file(path, 0);
    int kind, failed = 0;
    if (!j) return fail(reference, NULL);
    for (kind = 0; kind < 3; kind++) failed |= compare(m, j, kind, tolerance);
    pd_json_free(j);
    prediff_model_close(m);
    return failed;
}

/* -- tensors -- */

static const prediff_tensor *find(const prediff_container *c, prediff_string name) {
    size_t i;
    for (i = 0; i < c->n_tensors; i++)
        if (c->tensors[i].name.n == name.n && memcmp(c->tensors[i].name.bytes, name.bytes, name.n) == 0) return &c->tensors[i];
    return NULL;
}

/* All values as floats, in a block to free. */
static float *values(const prediff_tensor *t, size_t *n) {
    size_t rows = (size_t)(t->dims[1] * t->dims[2] * t->dims[3]), cols = (size_t)t->dims[0], r;
    float *x = (float *)need(malloc((rows * cols + 1) * sizeof *x));
    prediff_error e;
    memset(&e, 0, sizeof e);
    for (r = 0; r < rows; r++)
        if (prediff_dequantize_row(t->type, t->data + r * (t->data_size / rows), x + r * cols, cols, &e)) { fail("values", &e); exit(1); }
    *n = rows * cols;
    return x;
}

static double distance(const prediff_tensor *a, const prediff_tensor *b) {
    size_t n, i;
    float *x = values(a, &n), *y = values(b, &n);
    double square = 0, noise = 0;
    for (i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i];
        square += (double)x[i] * (double)x[i];
        noise += d * d;
    }
    free(x); free(y);
    return noise > 0 ? sqrt(noise / (square > 0 ? square : 1)) : noise;
}

static int differs(const prediff_tensor *a, const prediff_tensor *b, const char *how, double tolerance) {
    size_t n;
    float *x, *y;
    int differ;
    if (memcmp(a->dims, b->dims, sizeof a->dims) != 0) return 1;
    if (how[0] == 'n') return !(distance(a, b) < tolerance);
    if (how[0] == 's') return a->type != b->type || a->data_size != b->data_size || memcmp(a->data, b->data, a->data_size) != 0;
    x = values(a, &n); y = values(b, &n);
    differ = memcmp(x, y, n * sizeof *x) != 0;
    free(x); free(y);
    return differ;
}

static int tensors(const char *how, const char *path_a, const char *path_b, double tolerance) {
    prediff_model *ma = open_file(path_a, 1), *mb = open_file(path_b, 1);
    prediff_container a, b;
    size_t i;
    int failed = 0;
    prediff_container_get(ma, &a);
    prediff_container_get(mb, &b);
    if (a.n_tensors != b.n_tensors) { printf("%lu tensors, and %lu\n", (unsigned long)a.n_tensors, (unsigned long)b.n_tensors); failed = 1; }
    for (i = 0; i < a.n_tensors; i++) {
        const prediff_tensor *t = &a.tensors[i], *u = find(&b, t->name);
        if (u && !differs(t, u, how, tolerance)) continue;
        printf("%.*s: %s\n", (int)t->name.n, t->name.bytes, u ? "differs" : "is missing");
        failed = 1;
    }
    prediff_model_close(ma);
    prediff_model_close(mb);
    return failed;
}

static int type(const char *path, const char *name) {
    prediff_model *m = open_file(path, 1);
    prediff_container c;
    prediff_string s;
    const prediff_tensor *t;
    s.bytes = name; s.n = strlen(name);
    prediff_container_get(m, &c);
    t = find(&c, s);
    puts(t ? prediff_type_name(t->type) : "no such tensor");
    prediff_model_close(m);
    return !t;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    double tolerance = argc > 4 ? atof(argv[4]) : 0;
    if (!strcmp(what, "logits") && argc == 5) return logits(argv[2], argv[3], tolerance);
    if ((!strcmp(what, "same") || !strcmp(what, "values")) && argc == 4) return tensors(what, argv[2], argv[3], 0);
    if (!strcmp(what, "near") && argc == 5) return tensors(what, argv[2], argv[3], tolerance);
    if (!strcmp(what, "type") && argc == 4) return type(argv[2], argv[3]);
    return fail("usage: see the top of convert_probe.c", NULL) + 1;
}
