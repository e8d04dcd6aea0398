/* SPDX-License-Identifier: MIT
 * The network: against float64 references (PREDIFF_DATA), and in the properties everything exact rests on: a row's bits depend
 * on its own inputs alone, not on company, cache, batch, threads or the weights' block type.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_test.h"
#include "pd_json.h"
#include "pd_gguf.h"

static const uint32_t types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0, PREDIFF_Q4_0, PREDIFF_Q4_1, PREDIFF_Q4_K, PREDIFF_Q6_K };
#define N_TYPES (sizeof types / sizeof *types)

#if defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1 };                     /* under a sanitizer the largest cases are left out */
#else
enum { SLOW = 0 };
#endif

/* -- helpers -- */

static prediff_model *open_data(const char *name) {
    prediff_model_desc d;
    prediff_model *m = NULL;
    prediff_error e;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    d.path = pd_data(name);
    if (!d.path) return NULL;
    PD_CHECKF(prediff_model_open(&m, &d, &e) == PREDIFF_OK, "%s: %s", name, e.message);
    return m;
}

static pd_json *read_data(const char *name) {
    const char *p = pd_data(name);
    pd_json *j = p ? pd_json_read(p) : NULL;
    if (p) PD_CHECKF(j != NULL, "%s is not JSON", name);
    return j;
}

typedef struct setting { prediff_isa isa; prediff_attention attention; int threads; size_t samples, n_target; int reverse; } setting;

/* A host's job system that runs the jobs last to first. */
static size_t reverse_calls;
static void reverse_for(void *user, size_t n, void (*job)(void *, size_t), void *arg) {
    (void)user;
    reverse_calls++;
    while (n-- > 0) job(arg, n);
}

static prediff_context *context_of(const prediff_model *m, const setting *s) {
    prediff_context_desc d;
    prediff_context *c = NULL;
    prediff_error e;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    if (s) {
        d.isa = s->isa; d.attention = s->attention; d.n_threads = s->threads; d.n_samples = s->samples; d.n_target = s->n_target;
        if (s->reverse) d.parallel_for = reverse_for;
    }
    PD_CHECKF(prediff_context_create(&c, m, &d, &e) == PREDIFF_OK, "context: %s", e.message);
    if (!c) exit(3);
    return c;
}

static size_t vocabulary(const prediff_model *m) {
    prediff_model_info i;
    prediff_model_get_info(m, &i);
    return i.n_vocab;
}

static float *floats(size_t n) { float *p = (float *)calloc(n + 1, sizeof *p); if (!p) abort(); return p; }

static void must_prompt(prediff_context *c, const int32_t *ids, size_t n, float *logits) {
    prediff_error e;
    memset(&e, 0, sizeof e);
    PD_CHECKF(prediff_prompt(c, ids, n, logits, &e) == PREDIFF_OK, "prompt: %s", e.message);
}

static void must_forward(prediff_context *c, const prediff_forward_desc *d) {
    prediff_error e;
    memset(&e, 0, sizeof e);
    PD_CHECKF(prediff_forward(c, d, &e) == PREDIFF_OK, "forward: %s", e.message);
}

static void must_generate(prediff_context *c, int32_t *t, size_t n, const prediff_generate_desc *d, prediff_result *r) {
    prediff_error e;
    memset(&e, 0, sizeof e);
    PD_CHECKF(prediff_generate(c, t, n, d, r, &e) == PREDIFF_OK, "generate: %s", e.message);
}

/* max |x - ref| / max |ref| */
static double relative_error(const float *x, const double *ref, size_t n) {
    double err = 0, top = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double e = fabs((double)x[i] - ref[i]);
        if (!(e <= err)) err = e;                               /* not-a-number stays in err */
        if (fabs(ref[i]) > top) top = fabs(ref[i]);
    }
    return err / top;
}

static int same(const float *a, const float *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

static uint32_t lcg_state = 7;
static uint32_t lcg(void) { lcg_state = lcg_state * 1664525u + 1013904223u; return lcg_state >> 8; }
static float lcg_float(void) { return (float)(lcg() & 0xFFFFu) / 32768.0f - 1.0f; }
static void random_ids(int32_t *ids, size_t n, size_t below) { size_t i; for (i = 0; i < n; i++) ids[i] = (int32_t)(lcg() % below); }

/* Random rows of probabilities. */
static void random_soft(float *q, size_t rows, size_t V) {
    size_t r, v;
    for (r = 0; r < rows; r++) {
        float sum = 0;
        for (v = 0; v < V; v++) sum += q[r * V + v] = expf(3.0f * lcg_float());
        for (v = 0; v < V; v++) q[r * V + v] /= sum;
    }
}

static size_t isas(prediff_isa *out) {
    size_t n = 0;
    int i;
    for (i = PREDIFF_ISA_SCALAR; i < PREDIFF_ISA_COUNT; i++) if (prediff_isa_available((prediff_isa)i)) out[n++] = (prediff_isa)i;
    return n;
}

static double cross_entropy(const float *row, size_t V, int32_t token) {
    double top = -HUGE_VAL, sum = 0;
    size_t v;
    for (v = 0; v < V; v++) if ((double)row[v] > top) top = (double)row[v];
    for (v = 0; v < V; v++) sum += exp((double)row[v] - top);
    return log(sum) + top - (double)row[token];
}

/* -- reference vectors -- */

typedef struct vectors {
    const char *arch;
    pd_json *j;
    prediff_model *m;
    size_t V, N, p, t, n;              /* vocabulary, noise size, prompt, target, both */
    int32_t *prompt, *clean, *masked, *full;
    float rate, *q, *noise;            /* [t][V], [t][N] */
} vectors;

static int load_vectors(vectors *v, const char *arch) {
    char name[64];
    const pd_json *row;
    size_t n, i;
    memset(v, 0, sizeof *v);
    v->arch = arch;
    snprintf(name, sizeof name, "reference_vectors/%s-tiny.json", arch);
    v->j = read_data(name);
    snprintf(name, sizeof name, "reference_vectors/%s-tiny.gguf", arch);
    v->m = v->j ? open_data(name) : NULL;
    if (!v->m) { pd_json_free(v->j); return 0; }
    v->V = vocabulary(v->m);
    v->N = (size_t)pd_json_number(pd_json_get(v->j, "config"), "noise_dim");
    v->prompt = pd_json_ints(pd_json_get(v->j, "prompt"), &v->p);
    v->clean = pd_json_ints(pd_json_get(v->j, "clean_target"), &v->t);
    v->masked = pd_json_ints(pd_json_get(v->j, "target_with_masks"), &n);
    v->n = v->p + v->t;
    v->full = (int32_t *)calloc(v->n, sizeof *v->full);
    if (!v->full) abort();
    memcpy(v->full, v->prompt, v->p * sizeof *v->full);
    memcpy(v->full + v->p, v->clean, v->t * sizeof *v->full);
    v->rate = (float)pd_json_number(v->j, "rate");
    v->q = pd_json_floats(pd_json_get(v->j, "selfcond_soft_prediction_targets"), &n);
    PD_CHECK(n == v->t * v->V);
    v->noise = floats(v->t * v->N);
    for (row = pd_json_get(v->j, "noise_masked_rows")->child; row; row = row->next) {
        float *values = pd_json_floats(row, &n);
        for (i = 0; i < n; i++) v->noise[(size_t)atoi(row->key) * v->N + i] = values[i];
        free(values);
    }
    return 1;
}

static void free_vectors(vectors *v) {
    prediff_model_close(v->m);
    pd_json_free(v->j);
    free(v->prompt); free(v->clean); free(v->masked); free(v->full); free(v->q); free(v->noise);
}

static void compare(const vectors *v, const char *what, const float *x, size_t rows, prediff_isa isa) {
    size_t n;
    double *ref = pd_json_doubles(pd_json_get(pd_json_get(v->j, "logits"), what), &n), err;
    PD_CHECK(n == rows * v->V);
    err = n == rows * v->V ? relative_error(x, ref, n) : 1;
    PD_CHECKF(err < 2e-5, "%s %s on %s: relative error %g", v->arch, what, prediff_isa_name(isa), err);
    free(ref);
}

static void check_vectors_on(const vectors *v, prediff_isa isa) {
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    prediff_context *c;
    prediff_forward_desc d;
    float *x = floats(v->n * v->V), *y = floats(v->n * v->V);
    s.isa = isa;
    c = context_of(v->m, &s);
    PD_CHECK(prediff_context_isa(c) == isa);
    must_prompt(c, v->full, v->n, x);
    compare(v, "causal_plain", x, v->n, isa);
    prediff_rewind(c, 0, NULL);
    memset(&d, 0, sizeof d);
    d.target = v->full; d.n = v->n; d.no_rate = 1; d.no_noise = 1; d.logits = x;
    must_forward(c, &d);                                        /* hybrid without a prompt is bidirectional */
    compare(v, "bidirectional", x, v->n, isa);
    must_prompt(c, v->prompt, v->p, NULL);
    d.target = v->masked; d.n = v->t;
    must_forward(c, &d);
    compare(v, "hybrid_mask_only", x, v->t, isa);
    d.no_rate = 0; d.rate = &v->rate;
    must_forward(c, &d);
    compare(v, "hybrid_rate", x, v->t, isa);
    d.rate = NULL; d.logits = y;                                /* the default rate is masked / length */
    must_forward(c, &d);
    PD_CHECK(same(x, y, v->t * v->V));
    d.rate = &v->rate; d.logits = x;
    d.selfcond = v->q;
    must_forward(c, &d);
    compare(v, "hybrid_rate_selfcond", x, v->t, isa);
    d.no_noise = 0; d.noise = v->noise;
    must_forward(c, &d);
    compare(v, "hybrid_all", x, v->t, isa);
    prediff_context_destroy(c);
    s.attention = PREDIFF_ATTENTION_BIDIRECTIONAL;
    c = context_of(v->m, &s);
    memset(&d, 0, sizeof d);
    d.target = v->full; d.n = v->n; d.no_rate = 1; d.no_noise = 1; d.logits = x;
    must_forward(c, &d);
    compare(v, "bidirectional", x, v->n, isa);
    prediff_context_destroy(c);
    free(x); free(y);
}

static void test_reference_vectors(void) {
    static const char *const arch[] = { "llama", "gpt2" };
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), a, i;
    vectors v;
    for (a = 0; a < 2; a++) {
        if (!load_vectors(&v, arch[a])) { pd_skip("reference_vectors"); return; }
        for (i = 0; i < n; i++) check_vectors_on(&v, isa[i]);
        free_vectors(&v);
    }
}

/* The two sequences of the gradient batch: cross entropies add up to the reference's losses. */
typedef struct batch_losses { double ce, over_rate, shifted; size_t masked, shifted_n; } batch_losses;

static void batch_row(const vectors *v, prediff_context *c, size_t row, const float *soft, const float *noise, batch_losses *l) {
    const pd_json *b = pd_json_get(v->j, "batch");
    size_t n, i, p;
    int32_t *clean = pd_json_ints(pd_json_at(pd_json_get(b, "ids"), row), &n), *in = pd_json_ints(pd_json_at(pd_json_get(b, "inputs"), row), &n);
    float rate = (float)pd_json_at(pd_json_get(b, "rate"), row)->number, *q, *z, *x = floats(n * v->V), *causal = floats(n * v->V);
    prediff_forward_desc d;
    p = (size_t)pd_json_at(pd_json_get(b, "prompt_lengths"), row)->number;
    q = floats(n * v->V); z = floats(n * v->N);
    for (i = p; i < n; i++) {                                   /* the second row's inputs are the first's, back to front */
        size_t from = row ? n - 1 - i : i;
        memcpy(q + (i - p) * v->V, soft + from * v->V, v->V * sizeof *q);
        memcpy(z + (i - p) * v->N, noise + from * v->N, v->N * sizeof *z);
    }
    prediff_rewind(c, 0, NULL);
    must_prompt(c, in, p, causal);
    memset(&d, 0, sizeof d);
    d.target = in + p; d.n = n - p; d.rate = &rate; d.selfcond = q; d.noise = z; d.logits = x;
    must_forward(c, &d);
    for (i = p; i < n; i++) {
        double ce;
        if (in[i] != PREDIFF_MASK) continue;
        ce = cross_entropy(x + (i - p) * v->V, v->V, clean[i]);
        l->ce += ce; l->over_rate += ce / (double)rate; l->masked++;
        l->shifted += cross_entropy(i > p ? x + (i - p - 1) * v->V : causal + (p - 1) * v->V, v->V, clean[i]);
        l->shifted_n++;
    }
    free(clean); free(in); free(q); free(z); free(x); free(causal);
}

static void test_reference_losses(void) {
    static const char *const arch[] = { "llama", "gpt2" };
    size_t a, n;
    vectors v;
    for (a = 0; a < 2; a++) {
        prediff_context *c;
        prediff_score_desc sd;
        prediff_score_result sr;
        prediff_error e;
        batch_losses l;
        const pd_json *loss, *b;
        float *soft, *noise;
        if (!load_vectors(&v, arch[a])) { pd_skip("reference_vectors"); return; }
        memset(&l, 0, sizeof l); memset(&sd, 0, sizeof sd); memset(&e, 0, sizeof e);
        b = pd_json_get(v.j, "batch");
        loss = pd_json_get(v.j, "loss");
        soft = pd_json_floats(pd_json_get(b, "soft_prediction_row0_all"), &n);
        PD_CHECK(n == v.n * v.V);
        noise = pd_json_floats(pd_json_get(b, "noise_row0_all"), &n);
        PD_CHECK(n == v.n * v.N);
        c = context_of(v.m, NULL);
        batch_row(&v, c, 0, soft, noise, &l);
        batch_row(&v, c, 1, soft, noise, &l);
        PD_CHECK(l.masked == (size_t)pd_json_number(loss, "n_masked") && l.shifted_n == (size_t)pd_json_number(loss, "shifted_n"));
        PD_CHECKF(fabs(l.ce / pd_json_number(loss, "sum_ce") - 1) < 1e-5, "%s sum_ce %.9g", arch[a], l.ce);
        PD_CHECKF(fabs(l.ce / (double)l.masked / pd_json_number(loss, "hybrid_mean_masked") - 1) < 1e-5, "%s mean %.9g", arch[a], l.ce / (double)l.masked);
        PD_CHECKF(fabs(l.over_rate / pd_json_number(loss, "sum_ce_over_rate") - 1) < 1e-5, "%s over rate %.9g", arch[a], l.over_rate);
        PD_CHECKF(fabs(l.shifted / pd_json_number(loss, "shifted_sum") - 1) < 1e-5, "%s shifted %.9g", arch[a], l.shifted);
        prediff_rewind(c, 0, NULL);
        PD_CHECKF(prediff_score(c, v.full, v.n, &sd, &sr, &e) == PREDIFF_OK, "%s", e.message);
        PD_CHECK(sr.n_scored == v.n - 1 && sr.std_error == 0);
        PD_CHECKF(fabs(sr.nats / (double)sr.n_scored / pd_json_number(loss, "causal_mean") - 1) < 1e-5, "%s causal mean %.9g", arch[a], sr.nats / (double)sr.n_scored);
        prediff_context_destroy(c);
        free(soft); free(noise);
        free_vectors(&v);
    }
}

static void check_trace(const vectors *v, prediff_isa isa, int threads) {
    const pd_json *cau = pd_json_get(v->j, "cau"), *trace = pd_json_get(cau, "trace_position_token_confidence"), *one;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    size_t n, i, step, in_trace = 0, reveals = 0;
    int32_t *target = pd_json_ints(pd_json_get(cau, "target"), &n), *filled = pd_json_ints(pd_json_get(cau, "filled"), &n), *at = (int32_t *)calloc(n, sizeof *at);
    float *logprob = floats(n);
    prediff_context *c;
    prediff_generate_desc d;
    prediff_result r;
    memset(&d, 0, sizeof d);
    s.isa = isa; s.threads = threads;
    c = context_of(v->m, &s);
    must_prompt(c, v->prompt, v->p, NULL);
    for (i = 0; i < n; i++) reveals += target[i] == PREDIFF_MASK;
    d.n_steps = (size_t)pd_json_number(cau, "steps");
    d.no_noise = 1; d.ignore_eos = 1; d.logprob = logprob; d.revealed_at = at;
    must_generate(c, target, n, &d, &r);
    PD_CHECKF(memcmp(target, filled, n * sizeof *target) == 0, "%s: the CAU fill differs on %s", v->arch, prediff_isa_name(isa));
    PD_CHECK(r.n_steps == trace->n && r.n_masks_left == 0 && r.n_emitted == reveals && r.n_evaluations == trace->n);
    for (step = 0; step < trace->n; step++)
        for (one = pd_json_at(trace, step)->child; one; one = one->next, in_trace++) {
            size_t place = (size_t)pd_json_at(one, 0)->number;
            PD_CHECKF(at[place] == (int32_t)step + 1, "%s: position %zu was revealed at step %d, not %zu", v->arch, place, (int)at[place], step + 1);
            PD_CHECK(target[place] == (int32_t)pd_json_at(one, 1)->number);
            PD_CHECKF(fabs(exp((double)logprob[place]) / pd_json_at(one, 2)->number - 1) < 1e-4, "confidence %g", exp((double)logprob[place]));
        }
    PD_CHECK(in_trace == reveals);
    prediff_context_destroy(c);
    free(target); free(filled); free(at); free(logprob);
}

static void test_cau_trace(void) {
    static const char *const arch[] = { "llama", "gpt2" };
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), a, i;
    vectors v;
    for (a = 0; a < 2; a++) {
        if (!load_vectors(&v, arch[a])) { pd_skip("reference_vectors"); return; }
        for (i = 0; i < n; i++) check_trace(&v, isa[i], 1 + (int)i % 2);
        free_vectors(&v);
    }
}

static void test_vector_tokens(void) {
    static const char *const arch[] = { "llama", "gpt2" };
    size_t a;
    vectors v;
    for (a = 0; a < 2; a++) {
        const pd_json *t;
        if (!load_vectors(&v, arch[a])) { pd_skip("reference_vectors"); return; }
        for (t = pd_json_get(v.j, "tokenizer")->child; t; t = t->next) {
            size_t want, got = 99, n = strlen(t->key);
            int32_t *ids = pd_json_ints(t, &want), out[64];
            char text[256];
            prediff_error e;
            memset(&e, 0, sizeof e);
            PD_CHECKF(prediff_encode(v.m, t->key, n, 0, out, 64, &got, &e) == PREDIFF_OK, "%s", e.message);
            PD_CHECKF(got == want && memcmp(out, ids, want * sizeof *ids) == 0, "\"%s\": %zu ids, expected %zu", t->key, got, want);
            PD_CHECK(prediff_decode(v.m, out, got, 0, text, sizeof text, &got, &e) == PREDIFF_OK && got == n && memcmp(text, t->key, n) == 0);
            free(ids);
        }
        free_vectors(&v);
    }
}

/* -- tokenizers: recorded ids of other encoders -- */

/* pre: NULL, or the splitter's name to read in place of the file's. */
static prediff_model *open_vocabulary(const char *name, const char *pre) {
    char file[96];
    const char *path;
    prediff_model_desc d;
    prediff_model *m = NULL;
    prediff_model_info info;
    prediff_error e;
    uint8_t *b;
    memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
    snprintf(file, sizeof file, "vocab_gguf/ggml-vocab-%s.gguf", name);
    path = pd_data(file);
    b = path ? pd_read_file(path, &d.size) : NULL;
    if (!b) return NULL;
    if (pre) {
        pd_gguf *g = pd_gguf_parse(b, d.size);
        free(b);
        pd_set_string(g, "tokenizer.ggml.pre", pre);
        b = pd_gguf_write(g, &d.size);
        pd_gguf_free(g);
    }
    d.data = b; d.copy = 1;
    d.vocab_only = 1;
    if (PD_CHECKF(prediff_model_open(&m, &d, &e) == PREDIFF_OK, "%s: %s", name, e.message)) {
        prediff_model_get_info(m, &info);
        PD_CHECKF(info.architecture[0] == 0, "%s, opened for its vocabulary, is a %s", name, info.architecture);
        if (pre) PD_CHECKF(strcmp(info.splitter, name) == 0, "%s is taken for %s", pre, info.splitter);
    }
    free(b);
    return m;
}

static void check_ids(const prediff_model *m, const char *what, const char *text, size_t n, const int32_t *want, size_t n_want) {
    int32_t *ids = (int32_t *)malloc((n + 16) * sizeof *ids);
    size_t got = 0;
    prediff_error e;
    memset(&e, 0, sizeof e);
    if (!ids) abort();
    PD_CHECKF(prediff_encode(m, text, n, 0, ids, n + 16, &got, &e) == PREDIFF_OK, "%s: %s", what, e.message);
    PD_CHECKF(got == n_want && memcmp(ids, want, got * sizeof *ids) == 0, "%s: \"%.60s\" gives %zu ids, not the %zu expected", what, text, got, n_want);
    free(ids);
}

static void check_json_lines(const char *vectors_name, const char *vocabulary_name) {
    char file[96];
    const char *path;
    prediff_model *m = open_vocabulary(vocabulary_name, NULL);
    char *text;
    size_t n, at, used, lines = 0;
    snprintf(file, sizeof file, "tok_vectors/%s.jsonl", vectors_name);
    path = pd_data(file);
    if (!m || !path) { prediff_model_close(m); pd_skip("tokenizer vectors"); return; }
    text = pd_json_slurp(path, &n);
    for (at = 0; at < n; at += used, lines++) {
        pd_json *j = pd_json_parse(text + at, n - at, &used);
        const pd_json *t = pd_json_get(j, "text");
        size_t n_want;
        int32_t *want = pd_json_ints(pd_json_get(j, "ids"), &n_want);
        if (t) check_ids(m, vectors_name, t->text, t->text_n, want, n_want);
        pd_json_free(j);
        free(want);
        if (!PD_CHECKF(t != NULL, "%s: line %zu", file, lines + 1)) break;
    }
    PD_CHECKF(lines > 500, "%s: %zu lines", file, lines);
    free(text);
    prediff_model_close(m);
}

/* Texts stand between marker lines, ids one line a text. name: of these, and of the splitter if the vocabulary is another's. */
static void check_inp_out(const char *name, const char *vocabulary_name) {
    static const char marker[] = "\n__ggml_vocab_test__\n";
    char file[96];
    prediff_model *m = open_vocabulary(vocabulary_name, name == vocabulary_name ? NULL : name);
    const char *in, *out;
    char *text, *ids, *t, *line;
    size_t n, n_ids, cases = 0;
    snprintf(file, sizeof file, "vocab_gguf/ggml-vocab-%s.gguf.inp", name);
    in = pd_data(file);
    snprintf(file, sizeof file, "vocab_gguf/ggml-vocab-%s.gguf.out", name);
    out = pd_data(file);
    if (!m || !in || !out) { prediff_model_close(m); pd_skip("tokenizer vectors"); return; }
    text = pd_json_slurp(in, &n);
    ids = pd_json_slurp(out, &n_ids);
    for (t = text, line = ids; *t;) {
        int32_t want[1024];
        size_t k = 0;
        char *end = strstr(t, marker), *stop = strchr(line, '\n'), *p = line;
        if (!end) end = text + n;
        if (!stop) stop = ids + n_ids;
        *stop = 0;
        while (k < 1024) { char *q; long v = strtol(p, &q, 10); if (q == p) break; want[k++] = (int32_t)v; p = q; }
        check_ids(m, name, t, (size_t)(end - t), want, k);
        t = end + (*end ? sizeof marker - 1 : 0);
        line = stop + (stop < ids + n_ids);
        cases++;
    }
    PD_CHECKF(cases >= 46, "%s: %zu cases", name, cases);
    free(text); free(ids);
    prediff_model_close(m);
}

static void test_tokenizer_vectors(void) {
    check_json_lines("gpt2", "gpt-2");
    check_json_lines("llama3", "llama-bpe");
    check_json_lines("starcoder_smollm_pre", "starcoder");
}

static void test_tokenizer_inp_out(void) {
    static const char *const names[] = { "gpt-2", "llama-bpe", "llama-spm", "starcoder", "refact", "mpt", "phi-3", "qwen2" };
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++) check_inp_out(names[i], names[i]);
    check_inp_out("deepseek-r1-qwen", "qwen2");
}

/* -- reference logits of two plain causal files -- */

typedef struct logits_case { const char *json, *model; double tolerance; } logits_case;

static void check_logits(const logits_case *l, prediff_isa isa) {
    static const char *const names[] = { "causal", "bidirectional", "hybrid" };
    pd_json *j = read_data(l->json);
    prediff_model *m = j ? open_data(l->model) : NULL;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_HYBRID, 1, 1, 0, 0 };
    prediff_context *c;
    prediff_forward_desc d;
    size_t n, count, V, p, k;
    int32_t *ids;
    float *x;
    if (!m) { pd_json_free(j); pd_skip(l->model); return; }
    ids = pd_json_ints(pd_json_get(j, "tokens"), &n);
    p = (size_t)pd_json_number(j, "n_prompt_for_hybrid");
    V = vocabulary(m);
    x = floats(n * V);
    for (k = 0; k < 3; k++) {
        double *ref = pd_json_doubles(pd_json_get(j, names[k]), &count), err;
        size_t prompt = k == 0 ? n : k == 1 ? 0 : p;
        s.isa = isa;
        c = context_of(m, &s);
        PD_CHECK(count == n * V);
        must_prompt(c, ids, prompt, x);
        memset(&d, 0, sizeof d);
        d.target = ids + prompt; d.n = n - prompt; d.logits = x + prompt * V;
        must_forward(c, &d);
        err = relative_error(x, ref, n * V);
        PD_CHECKF(err < l->tolerance, "%s %s on %s: relative error %g", l->model, names[k], prediff_isa_name(isa), err);
        PD_CHECKF(l->tolerance < 1e-4 || err > 1e-6, "%s: 16-bit weights give the F32 file's logits?", l->model);
        free(ref);
        prediff_context_destroy(c);
    }
    pd_json_free(j); prediff_model_close(m); free(ids); free(x);
}

static void test_reference_logits(void) {
    static const logits_case l[] = {
        { "stories260k/reference_logits.json", "stories260k/stories260K-f32.gguf", 2e-5 },
        { "stories260k/reference_logits.json", "stories260k/stories260K-f16.gguf", 2e-3 },
        { "stories260k/reference_logits.json", "stories260k/stories260K-bf16-align64.gguf", 2e-2 },
        { "gpt2_tiny_random/reference_logits.json", "gpt2_tiny_random/gpt2-tiny-random-f32.gguf", 2e-5 } };
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), i, k;
    for (k = 0; k < sizeof l / sizeof *l; k++) for (i = 0; i < n; i++) check_logits(&l[k], isa[i]);
}

/* 200 tokens of the trained 260 K model, greedy from BOS, against the text llama2.c wrote. */
static void test_stories_greedy(void) {
    prediff_model *m = open_data("stories260k/stories260K-f32.gguf");
    const char *path = pd_data("stories260k/golden_greedy_200.txt");
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n_isa = isas(isa), i, k, want_n, got;
    char *want, text[4096];
    if (!m || !path) { prediff_model_close(m); pd_skip("stories260k"); return; }
    want = pd_json_slurp(path, &want_n);
    while (want_n && (want[want_n - 1] == '\n' || want[want_n - 1] == '\r')) want_n--;
    for (k = 0; k < n_isa; k++) {
        setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 2, 1, 0, 0 };
        prediff_generate_desc d;
        prediff_result r;
        prediff_context *c;
        prediff_error e;
        int32_t bos = 1, t[201], *ids = t + 1;
        memset(&d, 0, sizeof d); memset(&e, 0, sizeof e);
        s.isa = isa[k];
        c = context_of(m, &s);
        must_prompt(c, &bos, 1, NULL);
        t[0] = bos;
        for (i = 0; i < 200; i++) ids[i] = PREDIFF_MASK;
        d.sampler = PREDIFF_CAUSAL_DECODING; d.ignore_eos = 1;
        must_generate(c, ids, 200, &d, &r);
        PD_CHECK(r.n_emitted == 200 && r.n_masks_left == 0);
        PD_CHECK(prediff_decode(m, t, 201, 0, text, sizeof text, &got, &e) == PREDIFF_OK);
        while (got && (text[got - 1] == '\n' || text[got - 1] == '\r')) got--;
        PD_CHECKF(got == want_n && memcmp(text, want, got) == 0, "on %s: %zu bytes, expected %zu: %.60s", prediff_isa_name(isa[k]), got, want_n, text);
        PD_CHECK(prediff_prompt_length(c) == 1);
        prediff_context_destroy(c);
    }
    free(want);
    prediff_model_close(m);
}

/* -- the story model -- */

static void check_story_fill(const prediff_model *m, const pd_json *one, prediff_isa isa, int threads) {
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    size_t np, n, count;
    int32_t *prompt = pd_json_ints(pd_json_get(one, "prompt_ids"), &np), *target = pd_json_ints(pd_json_get(one, "target"), &n), *filled = pd_json_ints(pd_json_get(one, "filled"), &count);
    prediff_context *c;
    prediff_generate_desc d;
    prediff_result r;
    memset(&d, 0, sizeof d);
    s.isa = isa; s.threads = threads;
    c = context_of(m, &s);
    must_prompt(c, prompt, np, NULL);
    d.n_steps = (size_t)pd_json_number(one, "steps");
    d.ignore_eos = 1;
    must_generate(c, target, n, &d, &r);
    PD_CHECKF(count == n && memcmp(target, filled, n * sizeof *filled) == 0, "fill of \"%.30s\" in %zu steps differs on %s", pd_json_get(one, "prompt")->text, d.n_steps, prediff_isa_name(isa));
    PD_CHECK(r.n_evaluations == d.n_steps && r.n_rows == d.n_steps * n);
    prediff_context_destroy(c);
    free(prompt); free(target); free(filled);
}

static void check_story_causal(const prediff_model *m, const pd_json *one, prediff_isa isa) {
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    size_t np, n, i;
    int32_t *prompt = pd_json_ints(pd_json_get(one, "prompt_ids"), &np), *want = pd_json_ints(pd_json_get(one, "greedy_ids"), &n), *t = (int32_t *)malloc((n + 1) * sizeof *t);
    prediff_generate_desc d;
    prediff_context *c;
    memset(&d, 0, sizeof d);
    s.isa = isa;
    c = context_of(m, &s);
    must_prompt(c, prompt, np, NULL);
    for (i = 0; i < n; i++) t[i] = PREDIFF_MASK;
    d.sampler = PREDIFF_CAUSAL_DECODING; d.ignore_eos = 1;
    must_generate(c, t, n, &d, NULL);
    PD_CHECKF(memcmp(t, want, n * sizeof *t) == 0, "greedy text of \"%.30s\" differs on %s", pd_json_get(one, "prompt")->text, prediff_isa_name(isa));
    prediff_context_destroy(c);
    free(prompt); free(want); free(t);
}

static void test_story_demo(void) {
    pd_json *j = read_data("story_demo/expected.json");
    prediff_model *m = j ? open_data("story_demo/story-3m-q8_0.gguf") : NULL;
    prediff_isa isa[PREDIFF_ISA_COUNT];
    const pd_json *one;
    size_t n = isas(isa), i, k = 0;
    if (!m) { pd_json_free(j); pd_skip("story_demo"); return; }
    for (one = pd_json_get(j, "fills")->child; one; one = one->next, k++) {
        size_t encoded = 0, want;
        int32_t *ids = pd_json_ints(pd_json_get(one, "prompt_ids"), &want), out[256];
        const pd_json *text = pd_json_get(one, "prompt");
        PD_CHECK(prediff_encode(m, text->text, text->text_n, 0, out, 256, &encoded, NULL) == PREDIFF_OK && encoded == want && memcmp(out, ids, want * sizeof *ids) == 0);
        free(ids);
        if (SLOW && pd_json_number(one, "steps") > 8) continue;
        check_story_fill(m, one, PREDIFF_ISA_DEFAULT, 2);
        for (i = 0; i < n && !SLOW; i++)                      /* the other sets: the cheap ones */
            if (isa[i] != prediff_isa_best() && pd_json_number(one, "steps") <= (isa[i] == PREDIFF_ISA_SCALAR ? 4 : 8)) check_story_fill(m, one, isa[i], 2);
    }
    PD_CHECK(k == 14);
    for (one = pd_json_get(j, "causal")->child; one; one = one->next) for (i = 0; i < n; i++) check_story_causal(m, one, isa[i]);
    pd_json_free(j);
    prediff_model_close(m);
}

/* -- properties on small random models: methods 2.13 -- */

/* 0: llama, 1: gpt2, 2: qwen2. */
static pd_tiny tiny_of(int kind) {
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.noise_dim = 6; t.seed = 1;
    t.gpt2 = kind == 1;
    if (kind == 2) { t.arch = "qwen2"; t.qkv_bias = t.halves = 1; }
    return t;
}

/* A file of this architecture without any key or tensor of the project's; its mask is a token. */
static pd_tiny plain_of(const char *arch) {
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.seed = 1; t.arch = arch; t.causal_only = 1; t.mask_id = 263;
    t.gpt2 = strcmp(arch, "gpt2") == 0;
    t.halves = strcmp(arch, "qwen2") == 0 || strcmp(arch, "dream") == 0;
    t.qkv_bias = !t.gpt2;
    return t;
}

/* 1, 3. With one layer, changing the token at j changes the logits of row i exactly where i may read j. */
static void check_mask_matrix(int gpt2, size_t p, size_t t, const char *want) {
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m;
    prediff_context *c;
    size_t V, L = p + t, i, j, allowed = 0;
    float *base, *moved;
    int32_t ids[8];
    prediff_forward_desc d;
    tiny.layers = 1;
    m = pd_tiny_open(&tiny);
    V = vocabulary(m);
    c = context_of(m, NULL);
    base = floats(L * V); moved = floats(L * V);
    for (j = 0; j <= L; j++) {                                  /* j = L: nothing changed */
        float *out = j < L ? moved : base;
        size_t jj = j < L ? L - 1 - j : L;
        if (j == 0) {                                           /* the base first */
            for (i = 0; i < L; i++) ids[i] = (int32_t)(10 + 3 * i);
            prediff_rewind(c, 0, NULL);
            must_prompt(c, ids, p, base);
            memset(&d, 0, sizeof d);
            d.target = ids + p; d.n = t; d.logits = base + p * V;
            must_forward(c, &d);
        }
        if (j == L) break;
        for (i = 0; i < L; i++) ids[i] = (int32_t)(10 + 3 * i);
        ids[jj] = 200;
        prediff_rewind(c, 0, NULL);
        must_prompt(c, ids, p, out);
        memset(&d, 0, sizeof d);
        d.target = ids + p; d.n = t; d.logits = out + p * V;
        must_forward(c, &d);
        for (i = 0; i < L; i++) {
            int changed = !same(base + i * V, moved + i * V, V), allow = want[i * (L + 1) + jj] == '1';
            PD_CHECKF(changed == allow, "P=%zu T=%zu: row %zu %s key %zu", p, t, i, changed ? "reads" : "does not read", jj);
            allowed += (size_t)changed;
        }
    }
    PD_CHECKF(allowed == p * (p + 1) / 2 + t * L, "P=%zu T=%zu: %zu pairs", p, t, allowed);
    prediff_context_destroy(c); prediff_model_close(m); free(base); free(moved);
}

static void test_mask_matrices(void) {
    int g;
    for (g = 0; g < 3; g++) {
        check_mask_matrix(g, 0, 3, "111/111/111");
        check_mask_matrix(g, 3, 0, "100/110/111");
        check_mask_matrix(g, 2, 2, "1000/1100/1111/1111");
        check_mask_matrix(g, 1, 3, "1000/1111/1111/1111");
        check_mask_matrix(g, 3, 1, "1000/1100/1110/1111");
    }
}

/* 2. Whatever is evaluated over the target, the prompt's rows stay: a fresh context agrees bit for bit afterwards. */
static void check_prompt_untouched(int gpt2) {
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m = pd_tiny_open(&tiny);
    size_t V = vocabulary(m), k;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 2, 0, 0 };
    prediff_context *used = context_of(m, &s), *fresh = context_of(m, &s);
    int32_t prompt[20], target[2 * 12], more[9], fill_a[12], fill_b[12];
    float *x = floats(12 * V), *a = floats(24 * V), *b = floats(24 * V), *q = floats(24 * V), noise[24 * 6], rate[2] = { 0.9f, 0.1f };
    prediff_forward_desc d;
    prediff_generate_desc g;
    random_ids(prompt, 20, 200); random_ids(target, 24, 200); random_ids(more, 9, 200);
    random_soft(q, 24, V);
    for (k = 0; k < 24 * 6; k++) noise[k] = lcg_float();
    must_prompt(used, prompt, 20, NULL);
    must_prompt(fresh, prompt, 20, NULL);
    for (k = 0; k < 4; k++) {                                   /* the used one sees all sorts of things */
        memset(&d, 0, sizeof d);
        random_ids(target, 24, 200);
        target[k] = target[13 + k] = PREDIFF_MASK;
        d.target = target; d.n = 12; d.samples = 1 + k % 2; d.logits = a; d.seed = k;
        d.rate = k & 1 ? rate : NULL; d.selfcond = k & 2 ? q : NULL; d.noise = k == 3 ? noise : NULL;
        must_forward(used, &d);
    }
    for (k = 0; k < 12; k++) fill_a[k] = PREDIFF_MASK;
    memset(&g, 0, sizeof g);
    g.temperature = 1; g.seed = 77; g.block = 5;
    must_generate(used, fill_a, 12, &g, NULL);
    memset(&d, 0, sizeof d);
    d.target = target; d.n = 12; d.logits = a;
    must_forward(used, &d);
    d.logits = b;
    must_forward(fresh, &d);
    PD_CHECK(same(a, b, 12 * V));
    g.block = 0;
    for (k = 0; k < 12; k++) fill_a[k] = fill_b[k] = PREDIFF_MASK;
    must_generate(used, fill_a, 12, &g, NULL);
    must_generate(fresh, fill_b, 12, &g, NULL);
    PD_CHECK(memcmp(fill_a, fill_b, sizeof fill_a) == 0);
    must_prompt(used, more, 9, a);
    must_prompt(fresh, more, 9, b);
    PD_CHECK(same(a, b, 9 * V));
    prediff_context_destroy(used); prediff_context_destroy(fresh); prediff_model_close(m);
    free(x); free(a); free(b); free(q);
}

static void test_prompt_untouched(void) { check_prompt_untouched(0); check_prompt_untouched(1); check_prompt_untouched(2); }

/* 4. The cache: appended in pieces of any size, rewound and appended again, or at once: the same bits. */
static void check_cache(int gpt2, prediff_isa isa) {
    static const size_t pieces[] = { 1, 2, 3, 7, 8, 31, 64, 100 };
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 40, 0 };
    prediff_context *c;
    size_t V, k, i, n = 150;
    int32_t ids[150], target[40];
    float *whole, *part, *fw, *fp;
    prediff_forward_desc d;
    tiny.ctx = 256;
    s.isa = isa;
    m = pd_tiny_open(&tiny);
    V = vocabulary(m);
    c = context_of(m, &s);
    whole = floats(n * V); part = floats(n * V); fw = floats(40 * V); fp = floats(40 * V);
    random_ids(ids, n, 250); random_ids(target, 40, 250);
    for (i = 0; i < 40; i += 3) target[i] = PREDIFF_MASK;
    memset(&d, 0, sizeof d);
    d.target = target; d.n = 40;
    must_prompt(c, ids, n, whole);
    d.logits = fw;
    must_forward(c, &d);
    for (k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        prediff_rewind(c, 0, NULL);
        for (i = 0; i < n; i += pieces[k]) must_prompt(c, ids + i, n - i < pieces[k] ? n - i : pieces[k], part + i * V);
        PD_CHECKF(same(whole, part, n * V), "%s: pieces of %zu", prediff_isa_name(isa), pieces[k]);
        d.logits = fp;
        must_forward(c, &d);
        PD_CHECKF(same(fw, fp, 40 * V), "%s: target after pieces of %zu", prediff_isa_name(isa), pieces[k]);
        prediff_rewind(c, pieces[k], NULL);                     /* other text, then back */
        must_prompt(c, ids + 20, 30, part);
        prediff_rewind(c, pieces[k], NULL);
        PD_CHECK(prediff_prompt_length(c) == pieces[k]);
        must_prompt(c, ids + pieces[k], n - pieces[k], part);
        PD_CHECKF(same(whole + pieces[k] * V, part, (n - pieces[k]) * V), "%s: rewound to %zu", prediff_isa_name(isa), pieces[k]);
        must_forward(c, &d);
        PD_CHECK(same(fw, fp, 40 * V));
    }
    prediff_context_destroy(c); prediff_model_close(m);
    free(whole); free(part); free(fw); free(fp);
}

static void test_cache(void) {
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), i;
    for (i = 0; i < n; i++) { check_cache(0, isa[i]); check_cache(1, isa[i]); }
}

/* No cache at all gives the same: in a causal context the text may lie in the prompt or in the target. */
static void check_cached_or_not(int gpt2) {
    static const size_t splits[] = { 0, 1, 5, 63, 64, 65, 99 };
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_CAUSAL, 1, 1, 0, 0 }, bi = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_BIDIRECTIONAL, 1, 1, 0, 0 };
    prediff_context *c;
    size_t V, k, n = 100;
    int32_t ids[100];
    float *whole, *part;
    prediff_forward_desc d;
    tiny.ctx = 128;
    tiny.zero_selfcond = 1;                                     /* its bias is added at target rows only */
    m = pd_tiny_open(&tiny);
    V = vocabulary(m);
    whole = floats(n * V); part = floats(n * V);
    random_ids(ids, n, 250);
    c = context_of(m, &s);
    must_prompt(c, ids, n, whole);
    for (k = 0; k < sizeof splits / sizeof *splits; k++) {
        prediff_rewind(c, 0, NULL);
        must_prompt(c, ids, splits[k], part);
        memset(&d, 0, sizeof d);
        d.target = ids + splits[k]; d.n = n - splits[k]; d.no_rate = d.no_selfcond = 1; d.logits = part + splits[k] * V;
        must_forward(c, &d);
        PD_CHECKF(same(whole, part, n * V), "causal text cut at %zu", splits[k]);
    }
    prediff_context_destroy(c);
    c = context_of(m, &bi);
    for (k = 0; k < sizeof splits / sizeof *splits; k++) {      /* bidirectional: prompt rows are recomputed, never cached */
        size_t p = splits[k];
        prediff_rewind(c, 0, NULL);
        must_prompt(c, ids, p, NULL);
        memset(&d, 0, sizeof d);
        d.target = ids + p; d.n = n - p; d.no_rate = d.no_selfcond = 1; d.logits = part + p * V;
        must_forward(c, &d);
        if (!k) memcpy(whole, part, n * V * sizeof *part);
        PD_CHECKF(same(whole + p * V, part + p * V, (n - p) * V), "bidirectional text cut at %zu", p);
    }
    prediff_context_destroy(c); prediff_model_close(m);
    free(whole); free(part);
}

static void test_cached_or_not(void) { check_cached_or_not(0); check_cached_or_not(1); check_cached_or_not(2); }

/* 5. The additions do not touch prompt rows: the adapted file is the causal file there. 6. One known target token sees what
   the causal row sees, so it is the causal row. 11. No prediction is a zero prediction; without weights it has no effect. */
static void check_identities(int gpt2) {
    pd_tiny with = tiny_of(gpt2), without = tiny_of(gpt2), zero = tiny_of(gpt2);
    prediff_model *a, *b, *z;
    size_t V, p;
    int32_t ids[40], masked[40];
    float *x, *y, *q, *first;
    prediff_context *ca, *cb, *cz;
    prediff_forward_desc d;
    without.causal_only = 1; without.noise_dim = 0;
    zero.zero_selfcond = 1;
    a = pd_tiny_open(&with); b = pd_tiny_open(&without); z = pd_tiny_open(&zero);
    V = vocabulary(a);
    x = floats(40 * V); y = floats(40 * V); q = floats(40 * V); first = floats(40 * V);
    random_ids(ids, 40, 250);
    ca = context_of(a, NULL); cb = context_of(b, NULL); cz = context_of(z, NULL);
    must_prompt(ca, ids, 40, x);
    must_prompt(cb, ids, 40, y);
    PD_CHECK(same(x, y, 40 * V));
    memcpy(y, x, 40 * V * sizeof *x);
    for (p = 0; p < 40; p += 13) {
        prediff_rewind(ca, p, NULL);
        memset(&d, 0, sizeof d);
        d.target = ids + p; d.n = 1; d.no_rate = d.no_selfcond = 1; d.logits = x;
        must_forward(ca, &d);
        PD_CHECKF(same(x, y + p * V, V), "the target row at %zu is not the causal row", p);
        prediff_rewind(ca, 0, NULL);
        must_prompt(ca, ids, 40, NULL);
    }
    prediff_rewind(ca, 20, NULL);
    memcpy(masked, ids, sizeof masked);
    for (p = 20; p < 40; p += 2) masked[p] = PREDIFF_MASK;
    memset(&d, 0, sizeof d);
    d.target = masked + 20; d.n = 20; d.logits = x;
    must_forward(ca, &d);
    d.selfcond = q; d.logits = y;                               /* all zero */
    must_forward(ca, &d);
    for (p = 0; p < 20 * V && x[p] == y[p]; p++) {}
    PD_CHECK(p == 20 * V);
    random_soft(q, 20, V);
    must_forward(ca, &d);
    PD_CHECK(!same(x, y, 20 * V));
    must_prompt(cz, ids, 20, NULL);
    d.logits = first; d.selfcond = NULL;
    must_forward(cz, &d);
    d.logits = y; d.selfcond = q;
    must_forward(cz, &d);
    for (p = 0; p < 20 * V && first[p] == y[p]; p++) {}
    PD_CHECK(p == 20 * V);
    prediff_context_destroy(ca); prediff_context_destroy(cb); prediff_context_destroy(cz);
    prediff_model_close(a); prediff_model_close(b); prediff_model_close(z);
    free(x); free(y); free(q); free(first);
}

static void test_identities(void) { check_identities(0); check_identities(1); }

/* Causal decoding is the argmax of the prompt's logits, again and again; also where the last row was cut away. */
static void check_causal_decoding(int gpt2) {
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m;
    prediff_context *c;
    size_t V, i, v;
    int32_t ids[30], got[20];
    float *x;
    prediff_generate_desc d;
    tiny.causal_only = 1; tiny.noise_dim = 0;
    m = pd_tiny_open(&tiny);
    V = vocabulary(m);
    x = floats(10 * V);
    c = context_of(m, NULL);
    random_ids(ids, 10, 250);
    must_prompt(c, ids, 10, x);
    memmove(x, x + 9 * V, V * sizeof *x);
    for (i = 10; i < 30; i++) {
        for (ids[i] = 0, v = 1; v < V; v++) if (x[v] > x[ids[i]]) ids[i] = (int32_t)v;
        must_prompt(c, ids + i, 1, x);
    }
    prediff_rewind(c, 10, NULL);
    memset(&d, 0, sizeof d);
    d.sampler = PREDIFF_CAUSAL_DECODING; d.ignore_eos = 1;
    for (i = 0; i < 20; i++) got[i] = PREDIFF_MASK;
    must_generate(c, got, 20, &d, NULL);
    PD_CHECK(memcmp(got, ids + 10, sizeof got) == 0);
    for (i = 0; i < 20; i++) got[i] = i < 7 ? ids[10 + i] : PREDIFF_MASK;       /* given first tokens are passed through */
    must_generate(c, got, 20, &d, NULL);
    PD_CHECK(memcmp(got, ids + 10, sizeof got) == 0 && prediff_prompt_length(c) == 10);
    {
        int32_t one = PREDIFF_MASK;
        prediff_error e;
        memset(&e, 0, sizeof e);
        d.sampler = PREDIFF_CAU;                                /* no mask vector, no mask id */
        PD_STATUS(prediff_generate(c, &one, 1, &d, NULL, &e), &e, ERR_ARG, MASK_ID_UNKNOWN);
        PD_CHECK(one == PREDIFF_MASK);
    }
    prediff_context_destroy(c); prediff_model_close(m);
    free(x);
}

static void test_causal_decoding(void) { check_causal_decoding(0); check_causal_decoding(1); }

/* A shifted model's row i predicts token i + 1: the same rows, one place on; the first is the last prompt row's. */
static void check_shift(prediff_attention attention) {
    pd_tiny tiny = tiny_of(0), moved = tiny_of(0);
    prediff_model *a, *b;
    prediff_context *ca, *cb;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    size_t V, i;
    int32_t prompt[7], target[12];
    float *x, *y, *last;
    prediff_forward_desc d;
    prediff_error e;
    memset(&e, 0, sizeof e);
    moved.shift = 1;
    a = pd_tiny_open(&tiny); b = pd_tiny_open(&moved);
    s.attention = attention;
    ca = context_of(a, &s); cb = context_of(b, &s);
    V = vocabulary(a);
    x = floats(12 * V); y = floats(12 * V); last = floats(7 * V);
    random_ids(prompt, 7, 250); random_ids(target, 12, 250);
    for (i = 1; i < 12; i += 2) target[i] = PREDIFF_MASK;
    memset(&d, 0, sizeof d);
    d.target = target; d.n = 12; d.logits = y;
    if (attention == PREDIFF_ATTENTION_HYBRID) PD_STATUS(prediff_forward(cb, &d, &e), &e, ERR_ARG, SHIFT_PROMPT);
    must_prompt(ca, prompt, 7, attention == PREDIFF_ATTENTION_HYBRID ? last : NULL);
    must_prompt(cb, prompt, 7, NULL);
    must_forward(cb, &d);
    d.logits = x;
    must_forward(ca, &d);
    for (i = 1; i < 12; i++) PD_CHECKF(same(y + i * V, x + (i - 1) * V, V), "row %zu", i);
    if (attention == PREDIFF_ATTENTION_HYBRID) {
        PD_CHECK(same(y, last + 6 * V, V));
        prediff_rewind(cb, 3, NULL);                            /* the last row must be found again */
        d.logits = y;
        must_forward(cb, &d);
        PD_CHECK(same(y, last + 2 * V, V));
    }
    prediff_context_destroy(ca); prediff_context_destroy(cb); prediff_model_close(a); prediff_model_close(b);
    free(x); free(y); free(last);
}

static void test_shift(void) { check_shift(PREDIFF_ATTENTION_HYBRID); check_shift(PREDIFF_ATTENTION_BIDIRECTIONAL); }

/* -- architectures -- */

static double float_error(const float *x, const float *ref, size_t n) {
    double *r = (double *)malloc((n + 1) * sizeof *r), err;
    size_t i;
    if (!r) abort();
    for (i = 0; i < n; i++) r[i] = (double)ref[i];
    err = relative_error(x, r, n);
    free(r);
    return err;
}

/* Logits of a prompt of 9 (zeros in a bidirectional context) and a target of 12. */
static void rows_of(const pd_tiny *tiny, const setting *s, const int32_t *ids, float *logits) {
    prediff_model *m = pd_tiny_open(tiny);
    prediff_context *c = context_of(m, s);
    prediff_forward_desc d;
    size_t V = vocabulary(m);
    memset(logits, 0, 21 * V * sizeof *logits);
    must_prompt(c, ids, 9, s->attention == PREDIFF_ATTENTION_BIDIRECTIONAL ? NULL : logits);
    memset(&d, 0, sizeof d);
    d.target = ids + 9; d.n = 12; d.logits = logits + 9 * V;
    must_forward(c, &d);
    prediff_context_destroy(c); prediff_model_close(m);
}

/* Rows of q and k reordered, and rotary pairs by halves: the same network. Pairs by halves without the order are another one. */
static void check_pairs(size_t embd, size_t heads, prediff_isa isa) {
    static const char *const arch[] = { "llama", "llada", "qwen2", "dream" };
    pd_tiny tiny = tiny_of(0);
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    int32_t ids[21];
    size_t i, V = 264;
    int attention;
    float *x = floats(21 * V), *y = floats(21 * V), *halves = floats(21 * V);
    tiny.embd = embd; tiny.heads = heads; tiny.qkv_bias = 1;
    s.isa = isa;
    random_ids(ids, 21, 250);
    ids[9] = ids[12] = ids[20] = PREDIFF_MASK;
    for (attention = PREDIFF_ATTENTION_HYBRID; attention <= PREDIFF_ATTENTION_CAUSAL; attention++) {
        s.attention = (prediff_attention)attention;
        for (i = 0; i < 4; i++) {
            double err;
            tiny.arch = arch[i]; tiny.halves = i > 1;
            rows_of(&tiny, &s, ids, i ? y : x);
            if (i == 2) memcpy(halves, y, 21 * V * sizeof *y);
            if (i == 1) PD_CHECKF(same(x, y, 21 * V), "llada is not llama, attention %d", attention);
            if (i == 3) PD_CHECKF(same(halves, y, 21 * V), "dream is not qwen2, attention %d", attention);
            err = i ? float_error(y, x, 21 * V) : 0;
            PD_CHECKF(err < 1e-5, "%s, heads of %zu, attention %d on %s: relative error %g", arch[i], embd / heads, attention, prediff_isa_name(isa), err);
        }
        tiny.arch = "qwen2"; tiny.halves = 0;
        rows_of(&tiny, &s, ids, y);
        PD_CHECK(float_error(y, x, 21 * V) > 1e-3);
        tiny.qkv_bias = 0; tiny.halves = 1;
        rows_of(&tiny, &s, ids, y);
        PD_CHECK(float_error(y, x, 21 * V) > 1e-3);
        tiny.qkv_bias = 1;
    }
    free(x); free(y); free(halves);
}

static void test_rotary_pairs(void) {
    static const size_t shapes[][2] = { { 32, 4 }, { 48, 4 }, { 80, 2 }, { 128, 2 } };         /* half a head: 4, 6, 20, 32 */
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), i, k;
    for (k = 0; k < sizeof shapes / sizeof *shapes; k++) for (i = 0; i < n; i++) check_pairs(shapes[k][0], shapes[k][1], isa[i]);
}

/* What a file is taken for; text and value are keys' values, NULL and -1 = no such key. */
typedef struct arch_case { const char *arch; int adapted; const char *attention_key; int causal_key, shift_key, attention, shift; } arch_case;

static void test_arch_defaults(void) {
    enum { CAUSAL = PREDIFF_ATTENTION_CAUSAL, HYBRID = PREDIFF_ATTENTION_HYBRID, BOTH = PREDIFF_ATTENTION_BIDIRECTIONAL };
    static const arch_case cases[] = {
        { "gpt2", 0, NULL, -1, -1, CAUSAL, 0 }, { "llama", 0, NULL, -1, -1, CAUSAL, 0 }, { "qwen2", 0, NULL, -1, -1, CAUSAL, 0 },
        { "dream", 0, NULL, -1, -1, BOTH, 1 }, { "llada", 0, NULL, -1, -1, BOTH, 0 },
        { "gpt2", 1, NULL, -1, -1, HYBRID, 0 }, { "llama", 1, NULL, -1, -1, HYBRID, 0 }, { "qwen2", 1, NULL, -1, -1, HYBRID, 0 },
        { "dream", 1, NULL, -1, -1, BOTH, 0 }, { "llada", 1, NULL, -1, -1, BOTH, 0 },
        { "dream", 0, NULL, -1, 0, BOTH, 0 }, { "dream", 0, NULL, -1, 1, BOTH, 1 }, { "dream", 1, NULL, -1, 1, BOTH, 1 },
        { "llada", 0, NULL, -1, 1, BOTH, 1 }, { "qwen2", 0, NULL, -1, 1, CAUSAL, 1 }, { "qwen2", 1, NULL, -1, 1, HYBRID, 1 },
        { "dream", 0, "hybrid", -1, -1, HYBRID, 1 }, { "dream", 0, "causal", -1, -1, CAUSAL, 1 }, { "dream", 1, "hybrid", -1, -1, HYBRID, 0 },
        { "llada", 0, "causal", -1, -1, CAUSAL, 0 }, { "llada", 0, "hybrid", -1, 0, HYBRID, 0 }, { "qwen2", 0, "bidirectional", -1, -1, BOTH, 0 },
        { "qwen2", 0, NULL, 0, -1, BOTH, 0 }, { "dream", 0, NULL, 0, -1, BOTH, 1 }, { "llada", 0, NULL, 0, -1, BOTH, 0 } };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        const arch_case *k = &cases[i];
        pd_tiny tiny = plain_of(k->arch);
        pd_gguf *g = pd_gguf_tiny(&tiny);
        prediff_model *m;
        prediff_model_info info;
        char key[64];
        snprintf(key, sizeof key, "%s.attention.causal", k->arch);
        if (k->adapted) pd_set_u32(g, "prediff.version", 1);
        if (k->attention_key) pd_set_string(g, "prediff.attention", k->attention_key);
        if (k->causal_key >= 0) pd_set_bool(g, key, k->causal_key);
        if (k->shift_key >= 0) pd_set_bool(g, "diffusion.shift_logits", k->shift_key);
        m = pd_gguf_open(g);
        prediff_model_get_info(m, &info);
        PD_CHECKF((int)info.attention == k->attention && info.shift == k->shift, "case %zu, %s: attention %d, shift %d", i, k->arch, (int)info.attention, info.shift);
        PD_CHECKF(strcmp(info.architecture, k->arch) == 0, "%s, not %s", info.architecture, k->arch);
        PD_CHECK(info.adapted == k->adapted && info.mask == 263);
        prediff_model_close(m);
    }
}

/* Every row sees everything, prompt rows are computed each time; position i of prompt and target together reads row i - 1,
   position 0 reads row 0. The rows are those of a llama whose pairs are by twos. */
static void check_dream(int prompt_n, const float *rows, const int32_t *ids, const prediff_model *m) {
    enum { N = 12 };
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 2, 0, 0 };
    size_t V = vocabulary(m), p = (size_t)prompt_n, n = N - p, i, out = 0;
    prediff_context *c = context_of(m, &s);
    float *y = floats(2 * N * V), *part = floats(2 * N * V);
    int32_t two[2 * N], t[N];
    uint8_t wanted[2 * N];
    prediff_forward_desc d;
    prediff_generate_desc g;
    prediff_result r;
    memset(&d, 0, sizeof d); memset(&g, 0, sizeof g);
    must_prompt(c, ids, p, NULL);
    d.target = ids + p; d.n = n; d.logits = y;
    must_forward(c, &d);
    for (i = 0; i < n; i++) {
        double err = float_error(y + i * V, rows + (p + i > 0 ? p + i - 1 : 0) * V, V);
        PD_CHECKF(err < 1e-5, "prompt of %zu, position %zu: relative error %g", p, i, err);
        if (p + i) PD_CHECK(float_error(y + i * V, rows + (p + i) * V, V) > 1e-3);
    }
    for (i = 0; i < n; i++) { two[i] = (int32_t)(30 + i); two[n + i] = ids[p + i]; }             /* as the second of two samples, some rows only */
    for (i = 0; i < 2 * n; i++) wanted[i] = (uint8_t)(i % 3 != 1);
    d.target = two; d.samples = 2; d.rows = wanted; d.logits = part;
    must_forward(c, &d);
    for (i = 0; i < 2 * n; i++) {
        if (!wanted[i]) continue;
        if (i >= n) PD_CHECKF(same(part + out * V, y + (i - n) * V, V), "prompt of %zu, position %zu of the second sample", p, i - n);
        out++;
    }
    for (i = 0; i < n; i++) t[i] = PREDIFF_MASK;
    g.n_steps = 4; g.ignore_eos = 1;
    must_generate(c, t, n, &g, &r);
    PD_CHECKF(r.n_evaluations == 4 && r.n_rows == 4 * N, "prompt of %zu: %zu evaluations of %zu rows in all", p, r.n_evaluations, r.n_rows);
    PD_CHECK(prediff_prompt_length(c) == p && r.n_emitted == n && r.n_masks_left == 0);
    for (i = 0; i < n; i++) PD_CHECK(t[i] >= 0 && t[i] < 263);                                    /* never the mask */
    prediff_context_destroy(c);
    free(y); free(part);
}

static void test_dream(void) {
    pd_tiny dream = plain_of("dream"), llama = plain_of("llama");
    prediff_model *m = pd_tiny_open(&dream), *twin = pd_tiny_open(&llama);
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_BIDIRECTIONAL, 1, 1, 0, 0 };
    prediff_context *c = context_of(twin, &s);
    int32_t ids[12];
    size_t i;
    float *rows = floats(12 * vocabulary(m));
    prediff_forward_desc d;
    random_ids(ids, 12, 250);
    for (i = 6; i < 12; i += 2) ids[i] = PREDIFF_MASK;
    memset(&d, 0, sizeof d);
    d.target = ids; d.n = 12; d.logits = rows;
    must_forward(c, &d);
    check_dream(0, rows, ids, m);
    check_dream(1, rows, ids, m);
    check_dream(5, rows, ids, m);
    prediff_context_destroy(c); prediff_model_close(m); prediff_model_close(twin);
    free(rows);
}

/* The rows of a llama that sees everything, each at its own place; one place on where the file says so. */
static void test_llada(void) {
    pd_tiny llada = plain_of("llada"), llama = plain_of("llama");
    pd_gguf *g = pd_gguf_tiny(&llada);
    prediff_model *m = pd_tiny_open(&llada), *twin = pd_tiny_open(&llama), *moved;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_BIDIRECTIONAL, 1, 1, 0, 0 };
    prediff_context *c = context_of(m, NULL), *ct = context_of(twin, &s), *cm;
    size_t V = vocabulary(m), i;
    int32_t ids[12];
    float *x = floats(12 * V), *y = floats(12 * V);
    prediff_forward_desc d;
    prediff_result r;
    pd_set_bool(g, "diffusion.shift_logits", 1);
    moved = pd_gguf_open(g);
    cm = context_of(moved, NULL);
    random_ids(ids, 12, 250);
    for (i = 5; i < 12; i += 2) ids[i] = PREDIFF_MASK;
    must_prompt(c, ids, 4, NULL); must_prompt(ct, ids, 4, NULL); must_prompt(cm, ids, 4, NULL);
    memset(&d, 0, sizeof d);
    d.target = ids + 4; d.n = 8; d.logits = x;
    must_forward(ct, &d);
    d.logits = y;
    must_forward(c, &d);
    PD_CHECK(same(x, y, 8 * V));
    must_forward(cm, &d);
    PD_CHECK(same(x, y + V, 7 * V) && !same(x, y, V));
    must_generate(c, ids + 4, 8, NULL, &r);
    PD_CHECK(r.n_evaluations == 4 && r.n_rows == 4 * 12 && r.n_emitted > 0 && r.n_masks_left == 0);
    prediff_context_destroy(c); prediff_context_destroy(ct); prediff_context_destroy(cm);
    prediff_model_close(m); prediff_model_close(twin); prediff_model_close(moved);
    free(x); free(y);
}

/* Without a mask id nothing can be filled in; known tokens can be evaluated. */
static void test_no_mask_id(void) {
    static const char *const arch[] = { "qwen2", "dream", "llada" };
    size_t i;
    for (i = 0; i < 3; i++) {
        pd_tiny tiny = plain_of(arch[i]);
        prediff_model *m;
        prediff_model_info info;
        prediff_context *c;
        prediff_forward_desc d;
        prediff_error e;
        int32_t t[3] = { 65, PREDIFF_MASK, 66 };
        float *x = floats(3 * 264);
        tiny.mask_id = 0;
        m = pd_tiny_open(&tiny);
        prediff_model_get_info(m, &info);
        PD_CHECK(info.mask == -1);
        c = context_of(m, NULL);
        memset(&d, 0, sizeof d);
        PD_STATUS(prediff_generate(c, t, 3, NULL, NULL, &e), &e, ERR_ARG, MASK_ID_UNKNOWN);
        d.target = t; d.n = 3; d.logits = x;
        PD_STATUS(prediff_forward(c, &d, &e), &e, ERR_ARG, MASK_ID_UNKNOWN);
        PD_CHECK(t[1] == PREDIFF_MASK);
        t[1] = 67;
        PD_STATUS(prediff_forward(c, &d, &e), &e, OK, NONE);
        prediff_context_destroy(c); prediff_model_close(m);
        free(x);
    }
}

/* The additions can be left out one by one; no rate is not rate 0; given rows select without changing bits. */
static void test_forward_options(void) {
    pd_tiny tiny = tiny_of(0);
    prediff_model *m = pd_tiny_open(&tiny);
    size_t V = vocabulary(m), i, k;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 2, 0, 0 };
    prediff_context *c = context_of(m, &s);
    int32_t prompt[5], target[20];
    uint8_t rows[20];
    float *x = floats(20 * V), *y = floats(20 * V), zero[2] = { 0, 0 }, noise[20 * 6];
    prediff_forward_desc d;
    random_ids(prompt, 5, 250); random_ids(target, 20, 250);
    target[2] = target[7] = target[15] = PREDIFF_MASK;
    must_prompt(c, prompt, 5, NULL);
    memset(&d, 0, sizeof d);
    d.target = target; d.n = 10; d.samples = 2; d.logits = x;
    must_forward(c, &d);
    for (k = 0; k < 5; k++) {
        prediff_forward_desc o = d;
        o.logits = y;
        o.no_rate = k == 0; o.no_selfcond = k == 1; o.no_noise = k == 2; o.rate = k == 3 ? zero : NULL; o.seed = k == 4;
        must_forward(c, &o);
        PD_CHECKF(!same(x, y, 20 * V), "option %zu has no effect", k);
    }
    d.no_rate = 1; must_forward(c, &d);
    d.no_rate = 0; d.rate = zero; d.logits = y; must_forward(c, &d);
    PD_CHECK(!same(x, y, 20 * V));
    d.rate = NULL;
    for (i = 0; i < 20 * 6; i++) noise[i] = lcg_float();
    d.noise = noise; d.logits = x; must_forward(c, &d);
    for (i = 0; i < 20; i++) if (target[i] != PREDIFF_MASK) noise[i * 6] += 0.5f;       /* noise of known rows is not used */
    d.logits = y; must_forward(c, &d);
    PD_CHECK(same(x, y, 20 * V));
    noise[2 * 6 + 1] += 0.25f;
    must_forward(c, &d);
    PD_CHECK(!same(x, y, 10 * V) && same(x + 10 * V, y + 10 * V, 10 * V));       /* sample 1 does not see sample 0 */
    noise[2 * 6 + 1] -= 0.25f;
    for (k = 1; k < 20; k += 4) {                               /* a selection of rows, in order */
        size_t out = 0;
        for (i = 0; i < 20; i++) rows[i] = (uint8_t)(i % k == 0);
        d.rows = rows;
        must_forward(c, &d);
        for (i = 0; i < 20; i++) if (rows[i]) { PD_CHECK(same(y + out * V, x + i * V, V)); out++; }
    }
    prediff_context_destroy(c); prediff_model_close(m);
    free(x); free(y);
}

/* -- batch = alone -- */

static void check_batch_forward(int gpt2, size_t S) {
    pd_tiny tiny = tiny_of(gpt2);
    prediff_model *m = pd_tiny_open(&tiny);
    size_t V = vocabulary(m), n = 11, i, j;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 16, 0 };
    prediff_context *batch, *alone;
    int32_t prompt[9], target[7 * 11];
    float *x = floats(S * n * V), *y = floats(n * V), *q = floats(S * n * V);
    prediff_forward_desc d;
    s.samples = S;
    batch = context_of(m, &s);
    s.samples = 1;
    alone = context_of(m, &s);
    random_ids(prompt, 9, 250); random_ids(target, 7 * 11, 250);
    for (i = 0; i < 7 * 11; i += 1 + i % 4) target[i] = PREDIFF_MASK;
    random_soft(q, S * n, V);
    must_prompt(batch, prompt, 9, NULL); must_prompt(alone, prompt, 9, NULL);
    memset(&d, 0, sizeof d);
    d.target = target; d.n = n; d.samples = S; d.selfcond = q; d.seed = 100; d.logits = x;
    must_forward(batch, &d);
    for (j = 0; j < S; j++) {
        d.target = target + j * n; d.samples = 1; d.selfcond = q + j * n * V; d.seed = 100 + j; d.logits = y;
        must_forward(alone, &d);
        PD_CHECKF(same(x + j * n * V, y, n * V), "sample %zu of %zu", j, S);
    }
    prediff_context_destroy(batch); prediff_context_destroy(alone); prediff_model_close(m);
    free(x); free(y); free(q);
}

/* Sample j of seed s is a run alone with seed s + j: tokens, steps, log-probabilities. */
static void check_batch_generate(const pd_tiny *tiny, const prediff_generate_desc *given, size_t S) {
    enum { N = 14 };
    prediff_model *m = pd_tiny_open(tiny);
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 16, 0 };
    prediff_context *batch, *alone;
    int32_t prompt[6], target[7 * N], start[7 * N], one[N], at[7 * N], at_one[N];
    float lp[7 * N], lp_one[N];
    prediff_generate_desc d = *given;
    prediff_result r;
    size_t i, j;
    s.samples = S;
    batch = context_of(m, &s);
    s.samples = 1;
    alone = context_of(m, &s);
    random_ids(prompt, 6, 250);
    for (i = 0; i < 7 * N; i++) target[i] = PREDIFF_MASK;
    if (!d.block && d.sampler != PREDIFF_CAUSAL_DECODING) target[3] = target[N + 5] = target[N + 13] = 65;     /* samples of different sizes */
    memcpy(start, target, sizeof start);
    must_prompt(batch, prompt, 6, NULL); must_prompt(alone, prompt, 6, NULL);
    for (j = 0; j < S; j++) {
        memcpy(one, start + j * N, sizeof one);
        d.seed = given->seed + j; d.samples = 1; d.logprob = lp_one; d.revealed_at = at_one;
        must_generate(alone, one, N, &d, &r);
        if (!j) {
            d.seed = given->seed; d.samples = S; d.logprob = lp; d.revealed_at = at;
            must_generate(batch, target, N, &d, NULL);
        }
        PD_CHECKF(memcmp(one, target + j * N, sizeof one) == 0, "tokens of sample %zu of %zu, sampler %d", j, S, (int)d.sampler);
        PD_CHECKF(memcmp(at_one, at + j * N, sizeof at_one) == 0, "steps of sample %zu of %zu", j, S);
        PD_CHECKF(same(lp_one, lp + j * N, N), "log-probabilities of sample %zu of %zu", j, S);
    }
    prediff_context_destroy(batch); prediff_context_destroy(alone); prediff_model_close(m);
}

static void test_batch(void) {
    static const size_t counts[] = { 1, 2, 7 };
    size_t i, k;
    for (i = 0; i < 3; i++) for (k = 0; k < 11; k++) {
        pd_tiny tiny = k == 10 ? plain_of("dream") : tiny_of(k == 9 ? 2 : (int)k & 1);
        prediff_generate_desc d;
        memset(&d, 0, sizeof d);
        tiny.redraw = k == 3 || k == 4;
        d.seed = 41; d.n_steps = 6; d.temperature = 0.9; d.ignore_eos = k & 1;
        if (k == 1) d.order = PREDIFF_RANDOM;
        if (k == 2) { d.top_k = 20; d.top_p = 0.8; d.temperature_end = 0.3; }
        if (k == 4) d.order = PREDIFF_ENTROPY;
        if (k == 5) { d.sampler = PREDIFF_ANCESTRAL; d.n_steps = 9; }
        if (k == 6) { d.sampler = PREDIFF_FIRST_HITTING; d.n_steps = 0; }
        if (k == 7) { d.block = 5; d.n_steps = 3; }
        if (k == 8) d.sampler = PREDIFF_CAUSAL_DECODING;
        check_batch_generate(&tiny, &d, counts[i]);
        if (k < 3) check_batch_forward((int)k, counts[i]);
    }
}

/* -- a row's bits do not depend on how many are computed with it; every set, every weight type -- */

static pd_tiny wide_tiny(int kind, uint32_t type) {
    pd_tiny t = tiny_of(kind);
    t.embd = 256; t.ff = 256; t.layers = 1; t.ctx = 320; t.type = type; t.scale = 0.06f; t.noise_dim = 0;
    return t;
}

static void check_row_company(int kind, uint32_t type, prediff_isa isa, float *reference, int *have) {
    static const size_t counts[] = { 1, 2, 3, 8, 14, 64, 300 };
    pd_tiny tiny = wide_tiny(kind, type);
    prediff_model *m = pd_tiny_open(&tiny);
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_CAUSAL, 2, 1, 0, 0 };
    prediff_context *c;
    size_t V = vocabulary(m), k, i, n = SLOW ? 70 : 300;
    int32_t ids[300];
    float *whole = floats(n * V), *part = floats(n * V);
    prediff_forward_desc d;
    s.isa = isa;
    c = context_of(m, &s);
    lcg_state = 5 + pd_seed;                                    /* every set sees the same text */
    random_ids(ids, n, 250);
    must_prompt(c, ids, n, whole);
    PD_CHECKF(whole[7] == whole[7] && fabsf(whole[7]) < 1e4f, "%s: logits %g", prediff_type_name(type), (double)whole[7]);
    for (k = 0; k < sizeof counts / sizeof *counts; k++) {
        size_t step = counts[k];
        if (step > n) break;
        prediff_rewind(c, 0, NULL);
        for (i = 0; step < n && i + step <= n && i < 3 * step; i += step) must_prompt(c, ids + i, step, part + i * V);
        PD_CHECKF(same(whole, part, i * V), "%s on %s: %zu rows at a time as prompt", prediff_type_name(type), prediff_isa_name(isa), step);
        prediff_rewind(c, 0, NULL);
        memset(&d, 0, sizeof d);
        d.target = ids; d.n = step; d.no_rate = d.no_selfcond = 1; d.logits = part;
        must_forward(c, &d);
        PD_CHECKF(same(whole, part, step * V), "%s on %s: %zu rows at a time as target", prediff_type_name(type), prediff_isa_name(isa), step);
    }
    if (isa != PREDIFF_ISA_SCALAR) {                            /* vector sets agree with each other */
        if (*have) PD_CHECKF(same(whole, reference, n * V), "%s: %s differs from another vector set", prediff_type_name(type), prediff_isa_name(isa));
        memcpy(reference, whole, n * V * sizeof *whole);
        *have = 1;
    }
    prediff_context_destroy(c); prediff_model_close(m);
    free(whole); free(part);
}

static void test_row_company(void) {
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), i, t;
    float *reference = floats(300 * 264);
    for (t = 0; t <= N_TYPES; t++) {                            /* the last: qwen2 */
        int have = 0;
        for (i = 0; i < n; i++) check_row_company(t < N_TYPES ? 0 : 2, t < N_TYPES ? types[t] : PREDIFF_F32, isa[i], reference, &have);
    }
    free(reference);
}

/* -- a quantised file runs as the F32 file of its values -- */

static void check_type_as_f32(uint32_t type, prediff_isa isa) {
    pd_tiny tiny = wide_tiny(0, type);
    size_t n, n32, V, k;
    uint8_t *bytes, *bytes32;
    prediff_model *a, *b;
    setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
    prediff_context *ca, *cb;
    int32_t ids[40], ta[20], tb[20];
    float *x, *y;
    prediff_model_info info;
    prediff_generate_desc g;
    tiny.noise_dim = 32;
    bytes = pd_tiny_bytes(&tiny, &n);
    bytes32 = pd_restore_as(bytes, n, PREDIFF_F32, &n32);
    a = pd_open_bytes(bytes, n); b = pd_open_bytes(bytes32, n32);
    PD_CHECK(type == PREDIFF_F32 || n32 > n);
    prediff_model_get_info(b, &info);
    PD_CHECK(info.weight_bytes == 4 * info.n_params);           /* really F32 now */
    V = vocabulary(a);
    s.isa = isa;
    ca = context_of(a, &s); cb = context_of(b, &s);
    x = floats(40 * V); y = floats(40 * V);
    random_ids(ids, 40, 250);
    must_prompt(ca, ids, 40, x); must_prompt(cb, ids, 40, y);
    PD_CHECKF(same(x, y, 40 * V), "%s on %s: prompt logits", prediff_type_name(type), prediff_isa_name(isa));
    memset(&g, 0, sizeof g);
    g.temperature = 0.8; g.n_steps = 5; g.seed = 3; g.ignore_eos = 1;
    for (k = 0; k < 20; k++) ta[k] = tb[k] = k % 5 ? PREDIFF_MASK : 66;
    must_generate(ca, ta, 20, &g, NULL); must_generate(cb, tb, 20, &g, NULL);
    PD_CHECKF(memcmp(ta, tb, sizeof ta) == 0, "%s on %s: fills", prediff_type_name(type), prediff_isa_name(isa));
    {
        prediff_forward_desc d;
        for (k = 0; k < 20; k++) ta[k] = k % 3 ? PREDIFF_MASK : 66;
        memset(&d, 0, sizeof d);
        d.target = ta; d.n = 20; d.logits = x;
        must_forward(ca, &d);
        d.logits = y;
        must_forward(cb, &d);
        PD_CHECKF(same(x, y, 20 * V), "%s on %s: target logits", prediff_type_name(type), prediff_isa_name(isa));
    }
    prediff_context_destroy(ca); prediff_context_destroy(cb); prediff_model_close(a); prediff_model_close(b);
    free(bytes); free(bytes32); free(x); free(y);
}

static void test_types_as_f32(void) {
    prediff_isa isa[PREDIFF_ISA_COUNT];
    size_t n = isas(isa), i, t;
    for (t = 0; t < N_TYPES; t++) for (i = 0; i < n; i++) check_type_as_f32(types[t], isa[i]);
}

/* -- threads -- */

static void check_threads(int kind, uint32_t type) {
    static const int counts[] = { 1, 2, 3, 7 };
    pd_tiny tiny = wide_tiny(kind, type);
    prediff_model *m;
    size_t V, i, k;
    int32_t ids[100], first_fill[48], fill[48];
    float *first, *x;
    tiny.noise_dim = 64; tiny.layers = 2;
    m = pd_tiny_open(&tiny);
    V = vocabulary(m);
    first = floats(148 * V); x = floats(148 * V);
    random_ids(ids, 100, 250);
    for (i = 0; i < 8; i++) {
        setting s = { PREDIFF_ISA_DEFAULT, PREDIFF_ATTENTION_DEFAULT, 1, 1, 0, 0 };
        prediff_context *c;
        prediff_forward_desc d;
        prediff_generate_desc g;
        s.threads = counts[i % 4]; s.reverse = i >= 4;
        c = context_of(m, &s);
        if (s.reverse) { PD_CHECK(prediff_context_threads(c) == s.threads); reverse_calls = 0; }
        must_prompt(c, ids, 100, x);
        for (k = 0; k < 48; k++) fill[k] = k % 4 ? PREDIFF_MASK : 70;
        memset(&d, 0, sizeof d);
        d.target = fill; d.n = 48; d.logits = x + 100 * V;
        must_forward(c, &d);
        memset(&g, 0, sizeof g);
        g.temperature = 1; g.top_p = 0.95; g.seed = 9; g.n_steps = 4; g.ignore_eos = 1;
        must_generate(c, fill, 48, &g, NULL);
        if (s.reverse && s.threads > 1) PD_CHECK(reverse_calls > 0);
        if (!i) { memcpy(first, x, 148 * V * sizeof *x); memcpy(first_fill, fill, sizeof fill); }
        PD_CHECKF(same(first, x, 148 * V), "logits with %d threads%s", s.threads, s.reverse ? " of the host, in reverse" : "");
        PD_CHECKF(memcmp(first_fill, fill, sizeof fill) == 0, "tokens with %d threads%s", s.threads, s.reverse ? " of the host, in reverse" : "");
        prediff_context_destroy(c);
    }
    prediff_model_close(m);
    free(first); free(x);
}

static void test_threads(void) { check_threads(0, PREDIFF_F32); check_threads(1, PREDIFF_Q8_0); check_threads(0, PREDIFF_Q6_K); check_threads(2, PREDIFF_F32); }

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    lcg_state += pd_seed * 2654435761u;
    PD_RUN(test_reference_vectors);
    PD_RUN(test_reference_losses);
    PD_RUN(test_cau_trace);
    PD_RUN(test_vector_tokens);
    PD_RUN(test_tokenizer_vectors);
    PD_RUN(test_tokenizer_inp_out);
    PD_RUN(test_reference_logits);
    PD_RUN(test_stories_greedy);
    PD_RUN(test_story_demo);
    PD_RUN(test_mask_matrices);
    PD_RUN(test_prompt_untouched);
    PD_RUN(test_cache);
    PD_RUN(test_cached_or_not);
    PD_RUN(test_identities);
    PD_RUN(test_causal_decoding);
    PD_RUN(test_shift);
    PD_RUN(test_rotary_pairs);
    PD_RUN(test_arch_defaults);
    PD_RUN(test_dream);
    PD_RUN(test_llada);
    PD_RUN(test_no_mask_id);
    PD_RUN(test_forward_options);
    PD_RUN(test_batch);
    PD_RUN(test_row_company);
    PD_RUN(test_types_as_f32);
    PD_RUN(test_threads);
    return PD_END();
}
