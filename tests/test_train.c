/* SPDX-License-Identifier: MIT
 * Training: gradients and AdamW against the float64 reference (PREDIFF_DATA), and the properties of the trainer.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_test.h"
#include "pd_json.h"
#include "pd_tiny.h"

static prediff_model *open_data(const char *name) {
    prediff_model_desc d;
    prediff_model *m = NULL;
    memset(&d, 0, sizeof d);
    d.path = pd_data(name);
    if (d.path) prediff_model_open(&m, &d, NULL);
    return m;
}

/* -- the reference's batch: two texts with their inputs, rates, soft predictions and noise -- */

typedef struct batch {
    pd_json *j;
    prediff_model *m, *expected[2];
    prediff_sequence s[2];
    size_t n, V, N;
    int32_t *ids, *inputs;
    float *rates, *soft[2], *noise[2];
} batch;

static void reverse_rows(float *to, const float *from, size_t rows, size_t cols) {
    size_t r;
    for (r = 0; r < rows; r++) memcpy(to + r * cols, from + (rows - 1 - r) * cols, cols * sizeof *to);
}

static int load_batch(batch *b, const char *arch) {
    char name[96];
    const pd_json *j, *row;
    size_t i, k, got;
    const char *text;
    memset(b, 0, sizeof *b);
    snprintf(name, sizeof name, "reference_vectors/%s-tiny.json", arch);
    text = pd_data(name);
    b->j = text ? pd_json_read(text) : NULL;
    snprintf(name, sizeof name, "reference_vectors/%s-tiny.gguf", arch);
    b->m = b->j ? open_data(name) : NULL;
    if (!b->m) { pd_json_free(b->j); return 0; }
    snprintf(name, sizeof name, "reference_vectors/%s-tiny-grad.gguf", arch);
    b->expected[0] = open_data(name);
    snprintf(name, sizeof name, "reference_vectors/%s-tiny-adamw3.gguf", arch);
    b->expected[1] = open_data(name);
    j = pd_json_get(b->j, "batch");
    b->V = (size_t)pd_json_number(pd_json_get(b->j, "config"), "n_vocab");
    b->N = (size_t)pd_json_number(pd_json_get(b->j, "config"), "noise_dim");
    row = pd_json_get(j, "ids")->child;
    b->n = row->n;
    b->ids = (int32_t *)calloc(2 * b->n, sizeof *b->ids);
    b->inputs = (int32_t *)calloc(2 * b->n, sizeof *b->inputs);
    for (i = 0; i < 2; i++) {
        const pd_json *a = pd_json_get(j, "ids")->child, *c = pd_json_get(j, "inputs")->child;
        int32_t *v;
        for (k = 0; k < i; k++) { a = a->next; c = c->next; }
        v = pd_json_ints(a, &got); memcpy(b->ids + i * b->n, v, b->n * sizeof *v); free(v);
        v = pd_json_ints(c, &got); memcpy(b->inputs + i * b->n, v, b->n * sizeof *v); free(v);
    }
    b->rates = pd_json_floats(pd_json_get(j, "rate"), &got);
    b->soft[0] = pd_json_floats(pd_json_get(j, "soft_prediction_row0_all"), &got);
    b->noise[0] = pd_json_floats(pd_json_get(j, "noise_row0_all"), &got);
    b->soft[1] = (float *)calloc(b->n * b->V, sizeof(float));
    b->noise[1] = (float *)calloc(b->n * b->N, sizeof(float));
    reverse_rows(b->soft[1], b->soft[0], b->n, b->V);
    reverse_rows(b->noise[1], b->noise[0], b->n, b->N);
    for (i = 0; i < 2; i++) {
        const pd_json *p = pd_json_get(j, "prompt_lengths")->child;
        b->s[i].ids = b->ids + i * b->n; b->s[i].n = b->n;
        b->s[i].n_prompt = (size_t)(i ? p->next : p)->number;
        b->s[i].input = b->inputs + i * b->n;
        b->s[i].rate = &b->rates[i];
        b->s[i].soft = b->soft[i];
        b->s[i].noise = b->noise[i];
    }
    return b->expected[0] && b->expected[1];
}

static void free_batch(batch *b) {
    size_t i;
    for (i = 0; i < 2; i++) { prediff_model_close(b->expected[i]); free(b->soft[i]); free(b->noise[i]); }
    prediff_model_close(b->m);
    free(b->ids); free(b->inputs); free(b->rates);
    pd_json_free(b->j);
}

static prediff_trainer *trainer_of(const prediff_train_desc *d) {
    prediff_trainer *t = NULL;
    prediff_error e;
    memset(&e, 0, sizeof e);
    PD_CHECKF(prediff_trainer_create(&t, d, &e) == PREDIFF_OK, "%s", e.message);
    if (!t) { printf("%s\n", e.message); abort(); }
    return t;
}

/* max |got - want| / max |want| over a tensor. With `from`, of the change since then, and only where the first gradient is not
   tiny: AdamW divides by its size, so what is rounding there becomes a step. */
static double tensor_error(const float *got, const prediff_tensor *want, const prediff_tensor *from, const prediff_tensor *gradient, double scale) {
    size_t n = want->data_size / 4, i;
    double worst = 0, most = 0, steep = 0;
    for (i = 0; gradient && i < n; i++) if (fabs((double)pdi_f32(gradient->data + 4 * i)) > steep) steep = fabs((double)pdi_f32(gradient->data + 4 * i));
    for (i = 0; i < n; i++) {
        double before = from ? (double)pdi_f32(from->data + 4 * i) : 0, w = (double)pdi_f32(want->data + 4 * i) - before, g = (double)got[i] * scale - before;
        if (fabs(w) > most) most = fabs(w);
        if (gradient && !(fabs((double)pdi_f32(gradient->data + 4 * i)) > 1e-2 * steep)) continue;
        if (!(fabs(g - w) <= worst)) worst = fabs(g - w);
    }
    return most > 0 ? worst / most : worst;
}

/* Tensors of a trainer against a file of the same names. */
static void compare_all(const prediff_trainer *t, int what, const prediff_model *want, const prediff_model *from, const prediff_model *gradient, double scale, double tol,
                        const char *name) {
    prediff_container c;
    size_t i;
    prediff_trainer_tensors(t, what, &c);
    for (i = 0; i < c.n_tensors; i++) {
        char key[80];
        const prediff_tensor *w;
        double error;
        snprintf(key, sizeof key, "%.*s", (int)c.tensors[i].name.n, c.tensors[i].name.bytes);
        w = pdi_find_tensor(&want->gguf, key);
        PD_CHECKF(w != NULL, "%s: no %s", name, key);
        if (!w) continue;
        error = tensor_error((const float *)(const void *)c.tensors[i].data, w, from ? pdi_find_tensor(&from->gguf, key) : NULL,
                             gradient ? pdi_find_tensor(&gradient->gguf, key) : NULL, scale);
        PD_CHECKF(error < tol, "%s: %s: error %.3g", name, key, error);
    }
    PD_CHECK(c.n_tensors == want->gguf.n_tensors);
}

static void check_reference(const char *arch, prediff_isa isa, int threads, int recompute) {
    batch b;
    prediff_train_desc d;
    prediff_train_stats s;
    prediff_trainer *t;
    prediff_error e;
    int step;
    char name[64];
    if (!load_batch(&b, arch)) { pd_skip("reference_vectors"); return; }
    snprintf(name, sizeof name, "%s %s %d threads%s", arch, prediff_isa_name(isa), threads, recompute ? " recompute" : "");
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    d.init = b.m;
    d.max_rows = 2 * b.n;
    d.isa = isa;
    d.n_threads = threads;
    d.recompute = recompute;
    d.weight_decay = 0.01;
    d.clip = 1.0;
    t = trainer_of(&d);
    for (step = 0; step < 3; step++) {
        const pd_json *losses = pd_json_get(pd_json_get(b.j, "adamw"), "losses_before_each_step")->child;
        int k;
        for (k = 0; k < step; k++) losses = losses->next;
        PD_STATUS(prediff_trainer_gradient(t, b.s, 2, &s, &e), &e, OK, NONE);
        PD_CHECKF(fabs(s.loss / losses->number - 1) < 1e-5, "%s: loss %.9g, reference %.9g", name, s.loss, losses->number);
        if (step == 0) {
            PD_CHECK(s.masked_rows == 8);
            compare_all(t, 1, b.expected[0], NULL, NULL, 1.0 / s.masked_rows, 1e-4, name);
        }
        PD_STATUS(prediff_trainer_update(t, 1e-3, &s, &e), &e, OK, NONE);
    }
    compare_all(t, 0, b.expected[1], b.m, b.expected[0], 1.0, 1e-4, name);
    prediff_trainer_destroy(t);
    free_batch(&b);
}

static void test_reference_gradients(void) {
    static const char *const arch[] = { "llama", "gpt2" };
    int a, i;
    for (a = 0; a < 2; a++)
        for (i = PREDIFF_ISA_SCALAR; i < PREDIFF_ISA_COUNT; i++)
            if (prediff_isa_available((prediff_isa)i)) check_reference(arch[a], (prediff_isa)i, 1 + i % 2, i == PREDIFF_ISA_AVX2);
}

/* -- small models -- */

enum { LEN = 12 };
static const int32_t text_a[LEN] = { 5, 9, 33, 70, 2, 120, 77, 9, 200, 31, 8, 60 }, text_b[LEN] = { 90, 41, 7, 7, 13, 250, 66, 101, 3, 19, 88, 140 };
static const int32_t input_a[LEN] = { 5, 9, 33, 70, -1, 120, -1, -1, 200, 31, -1, 60 }, input_b[LEN] = { 90, 41, 7, -1, -1, 250, -1, 101, 3, -1, 88, 140 };
static const float rate_a = 0.5f, rate_b = 0.4f;

static void put_texts(prediff_sequence s[2], int given) {
    memset(s, 0, 2 * sizeof *s);
    s[0].ids = text_a; s[0].n = LEN; s[0].n_prompt = 4;
    s[1].ids = text_b; s[1].n = LEN - 1; s[1].n_prompt = 3;
    if (!given) return;
    s[0].input = input_a; s[0].rate = &rate_a;
    s[1].input = input_b; s[1].rate = &rate_b;
}

static void desc_of(prediff_train_desc *d, const prediff_model *m) {
    memset(d, 0, sizeof *d);
    d->init = m;
    d->max_rows = 128;
    d->n_threads = 1;
    d->seed = 7;
}

static float *floats_of(const prediff_trainer *t, int what, size_t i, size_t *n) {
    prediff_container c;
    prediff_trainer_tensors(t, what, &c);
    *n = c.tensors[i].data_size / 4;
    return (float *)(uintptr_t)c.tensors[i].data;
}

static size_t count_tensors(const prediff_trainer *t) { prediff_container c; prediff_trainer_tensors(t, 0, &c); return c.n_tensors; }

/* max |a - b| / max |b| over all tensors; 0 only for the same bits. */
static double apart(const prediff_trainer *a, const prediff_trainer *b, int what) {
    size_t i, k, n, m;
    double worst = 0;
    if (count_tensors(a) != count_tensors(b)) return HUGE_VAL;
    for (i = 0; i < count_tensors(a); i++) {
        const float *x = floats_of(a, what, i, &n), *y = floats_of(b, what, i, &m);
        double most = 0, error = 0;
        if (n != m) return HUGE_VAL;
        if (memcmp(x, y, n * 4) == 0) continue;
        for (k = 0; k < n; k++) {
            if (!(fabs((double)y[k]) <= most)) most = fabs((double)y[k]);
            if (!(fabs((double)x[k] - (double)y[k]) <= error)) error = fabs((double)x[k] - (double)y[k]);
        }
        error = error / (most + 1e-30) + 1e-30;
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void add_gradient(prediff_trainer *t, const prediff_sequence *s, size_t n) {
    prediff_error e;
    memset(&e, 0, sizeof e);
    PD_STATUS(prediff_trainer_gradient(t, s, n, NULL, &e), &e, OK, NONE);
}

static void updates(prediff_trainer *t, const prediff_sequence *s, size_t n, int steps) {
    prediff_error e;
    memset(&e, 0, sizeof e);
    while (steps-- > 0) { add_gradient(t, s, n); PD_STATUS(prediff_trainer_update(t, 1e-3, NULL, &e), &e, OK, NONE); }
}

static double loss_at(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_objective o, uint64_t seed) {
    prediff_train_stats st;
    prediff_error e;
    memset(&st, 0, sizeof st); memset(&e, 0, sizeof e);
    PD_STATUS(prediff_trainer_evaluate(t, s, n, o, seed, &st, &e), &e, OK, NONE);
    return st.loss;
}

/* -- every tensor's gradient along itself and along a random direction, by central differences of the loss -- */

static void check_differences(const pd_tiny *tiny, prediff_train_desc d, int given, int soft, const char *name) {
    prediff_sequence s[2];
    prediff_model *m = pd_tiny_open(tiny);
    prediff_trainer *t;
    prediff_train_stats st;
    float *q[2] = { NULL, NULL };
    size_t i, k, n, V = tiny->vocab ? tiny->vocab : 264, moved = 0;
    uint32_t random = pd_seed;
    d.init = m;
    put_texts(s, given);
    for (i = 0; soft && i < 2; i++) {
        q[i] = (float *)calloc(LEN * V, sizeof(float));
        for (k = 0; k < LEN; k++) { q[i][k * V + (k * 5 + 3) % V] = 0.75f; q[i][k * V + k] = 0.25f; }
        s[i].soft = q[i];
    }
    t = trainer_of(&d);
    add_gradient(t, s, 2);
    prediff_trainer_get_stats(t, &st);
    PD_NEAR(st.loss, loss_at(t, s, 2, d.objective, d.seed), 1e-6 * fabs(st.loss));
    for (i = 0; i < count_tensors(t); i++) {
        float *w = floats_of(t, 0, i, &n), *g = floats_of(t, 1, i, &n), *was = (float *)malloc(n * 4), *v = (float *)malloc(n * 4);
        double length = 0, steep = 0, slope = 0, h, up, down, scale = st.masked_rows + (d.objective == PREDIFF_OBJECTIVE_CAUSAL ? 1 : d.causal_weight) * st.causal_rows;
        prediff_container c;
        prediff_trainer_tensors(t, 0, &c);
        memcpy(was, w, n * 4);
        for (k = 0; k < n; k++) { length += (double)w[k] * (double)w[k]; steep += (double)g[k] * (double)g[k]; }
        length = sqrt(length); steep = sqrt(steep);
        if (steep > 0) moved++;
        for (k = 0; k < n; k++)        /* half the gradient's own direction, half a random one: the slope is not lost in rounding */
            v[k] = (float)((steep > 0 ? (double)g[k] / steep : 0) + ((double)(pd_next(&random) & 0xFFFF) / 32768.0 - 1.0) / sqrt((double)n));
        h = 2e-3 * (length > 1 ? length : 1) / 2;
        if (h > 4e-3) h = 4e-3;
        for (k = 0; k < n; k++) slope += (double)g[k] * (double)v[k] / scale;
        for (k = 0; k < n; k++) w[k] = (float)((double)was[k] + h * (double)v[k]);
        up = loss_at(t, s, 2, d.objective, d.seed);
        for (k = 0; k < n; k++) w[k] = (float)((double)was[k] - h * (double)v[k]);
        down = loss_at(t, s, 2, d.objective, d.seed);
        memcpy(w, was, n * 4);
        PD_CHECKF(fabs((up - down) / (2 * h) - slope) < 4e-3 * steep / scale + 2e-3, "%s: %.*s: differences %.6g, gradient %.6g (norm %.3g)", name, (int)c.tensors[i].name.n,
                  c.tensors[i].name.bytes, (up - down) / (2 * h), slope, steep / scale);
        free(was); free(v);
    }
    PD_CHECKF(moved >= count_tensors(t) / 2, "%s: only %d tensors have a gradient", name, (int)moved);
    prediff_trainer_destroy(t);
    prediff_model_close(m);
    free(q[0]); free(q[1]);
}

static void test_differences(void) {
    static const char *const attention[] = { "", "hybrid", "bidirectional", "causal" };
    pd_tiny tiny;
    prediff_train_desc d;
    char name[64];
    int arch, i;
    for (arch = 0; arch < 4; arch++) {
        memset(&tiny, 0, sizeof tiny);
        tiny.embd = 16; tiny.heads = 2; tiny.heads_kv = arch == 1 ? 2 : 1; tiny.ff = 24; tiny.ctx = 16; tiny.noise_dim = 8;
        tiny.gpt2 = arch == 1;
        if (arch == 2) { tiny.arch = "qwen2"; tiny.qkv_bias = tiny.halves = 1; }
        for (i = 0; i < 7; i++) {
            desc_of(&d, NULL);
            d.objective = (prediff_objective)i;
            d.attention = (prediff_attention)(1 + (i + arch) % 3);
            d.shift = (i + arch) % 2;
            d.causal_weight = i % 3 == 1 ? 0.3 : 0;
            snprintf(name, sizeof name, "model %d objective %d %s shift %d", arch, i, attention[d.attention], d.shift);
            check_differences(&tiny, d, i % 2, i % 2, name);
        }
        desc_of(&d, NULL);
        d.complementary = 1;
        check_differences(&tiny, d, 0, 0, "complementary");
        desc_of(&d, NULL);
        d.attention = PREDIFF_ATTENTION_HYBRID; d.n_blocks = 2; d.block_min = 2; d.block_max = 4; d.causal_weight = 0.5;
        check_differences(&tiny, d, 0, 0, "blocks");
    }
}

/* -- the same sums -- */

static void test_threads(void) {
    static const int threads[] = { 1, 2, 3, 7 };
    int arch, i, k;
    for (arch = 0; arch < 2; arch++) {
        pd_tiny tiny;
        prediff_trainer *t[5];
        prediff_sequence s[2];
        prediff_model *m;
        memset(&tiny, 0, sizeof tiny);
        tiny.gpt2 = arch; tiny.noise_dim = 8;
        m = pd_tiny_open(&tiny);
        put_texts(s, 0);
        for (i = 0; i < 5; i++) {
            prediff_train_desc d;
            desc_of(&d, m);
            d.n_threads = i < 4 ? threads[i] : 2;
            d.recompute = i == 4;
            d.selfcond = 0.5; d.causal_weight = 0.2; d.weight_decay = 0.1; d.clip = 1; d.ema = 0.9;
            t[i] = trainer_of(&d);
            updates(t[i], s, 2, 5);
            for (k = 0; k < 3; k += 2) PD_CHECKF(!(apart(t[i], t[0], k) > 0), "run %d differs from one thread", i);
            PD_CHECK(i || !(loss_at(t[0], s, 2, PREDIFF_OBJECTIVE_PREDIFF, 3) <= 0));
        }
        for (i = 0; i < 5; i++) prediff_trainer_destroy(t[i]);
        prediff_model_close(m);
    }
}

static int add_other(void *user, float *sums, size_t n) {
    const float *other = (const float *)user;
    size_t i;
    for (i = 0; i < n; i++) sums[i] += other[i];
    return 0;
}
static int refuse(void *user, float *sums, size_t n) { (void)sums; (void)n; ++*(int *)user; return 1; }

static void test_sums(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *one, *two, *a, *b, *start;
    prediff_sequence s[2];
    prediff_train_stats st;
    prediff_error e;
    prediff_model *m;
    int calls = 0;
    size_t n;
    memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
    m = pd_tiny_open(&tiny);
    put_texts(s, 1);
    desc_of(&d, m);
    one = trainer_of(&d); two = trainer_of(&d); start = trainer_of(&d); b = trainer_of(&d);
    add_gradient(one, s, 2);
    add_gradient(two, s, 1); add_gradient(two, s + 1, 1);
    PD_CHECK(apart(two, one, 1) < 1e-5);
    add_gradient(b, s + 1, 1);         /* the other process's half */
    d.reduce = add_other;
    d.user = floats_of(b, 1, 0, &n);
    a = trainer_of(&d);
    add_gradient(a, s, 1);
    PD_STATUS(prediff_trainer_update(one, 1e-3, &st, &e), &e, OK, NONE);
    PD_CHECK(st.masked_rows == 8 && st.n_steps == 1 && st.gradient_norm > 0);
    PD_STATUS(prediff_trainer_update(a, 1e-3, &st, &e), &e, OK, NONE);
    PD_CHECK(st.masked_rows == 4);
    PD_CHECK(apart(a, one, 0) < 1e-4 && apart(one, start, 0) > 1e-4);
    prediff_trainer_destroy(a);
    d.reduce = refuse; d.user = &calls;
    a = trainer_of(&d);
    add_gradient(a, s, 1);
    PD_STATUS(prediff_trainer_update(a, 1e-3, &st, &e), &e, ERR_CANCELLED, STOPPED);
    prediff_trainer_get_stats(a, &st);
    PD_CHECK(calls == 1 && st.n_steps == 0 && st.masked_rows == 4 && !(apart(a, start, 0) > 0));
    prediff_trainer_destroy(a); prediff_trainer_destroy(b); prediff_trainer_destroy(one); prediff_trainer_destroy(two); prediff_trainer_destroy(start);
    prediff_model_close(m);
}

/* -- checkpoints -- */

static prediff_model *saved(prediff_trainer *t, int what, prediff_type type, int state, uint64_t position) {
    pd_bytes out;
    prediff_error e;
    prediff_model *m = NULL;
    memset(&out, 0, sizeof out); memset(&e, 0, sizeof e);
    PD_STATUS(prediff_trainer_save(t, what, type, state, position, pd_put_write, &out, &e), &e, OK, NONE);
    if (out.n) m = pd_open_bytes(out.p, out.n);
    free(out.p);
    return m;
}

static void test_checkpoint(void) {
    static const prediff_type types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0 };
    int arch, i;
    for (arch = 0; arch < 2; arch++) {
        pd_tiny tiny;
        prediff_train_desc d;
        prediff_trainer *whole, *half, *rest, *none = NULL;
        prediff_train_stats st;
        prediff_sequence s[2];
        prediff_error e;
        prediff_model *m, *check, *back;
        memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
        tiny.gpt2 = arch; tiny.noise_dim = 8;
        m = pd_tiny_open(&tiny);
        put_texts(s, 0);
        desc_of(&d, m);
        d.ema = 0.8; d.weight_decay = 0.01; d.selfcond = 0.5;
        whole = trainer_of(&d); half = trainer_of(&d);
        updates(whole, s, 2, 6);
        updates(half, s, 2, 3);
        check = saved(half, 0, PREDIFF_F32, 1, 4711);
        d.init = check; d.resume = 1;
        rest = trainer_of(&d);
        prediff_trainer_get_stats(rest, &st);
        PD_CHECK(st.position == 4711 && st.n_steps == 3);
        PD_CHECK(st.n_texts == 6);
        PD_CHECK(!(apart(rest, half, 0) > 0) && apart(rest, whole, 0) > 0);
        updates(rest, s, 2, 3);
        PD_CHECK(!(apart(rest, whole, 0) > 0) && !(apart(rest, whole, 2) > 0));
        PD_CHECK(memcmp(rest->m1, whole->m1, whole->n_floats * 4) == 0 && memcmp(rest->m2, whole->m2, whole->n_floats * 4) == 0);
        d.init = m;
        PD_STATUS(prediff_trainer_create(&none, &d, &e), &e, ERR_ARG, KEY_MISSING);
        PD_CHECK(none == NULL);
        for (i = 0; i < 4; i++) { back = saved(whole, i % 2 ? 2 : 0, types[i], 0, 0); PD_CHECK(back != NULL); prediff_model_close(back); }
        PD_STATUS(prediff_trainer_save(whole, 1, PREDIFF_F32, 0, 0, pd_put_write, &st, &e), &e, ERR_ARG, VALUE_RANGE);
        PD_STATUS(prediff_trainer_save(whole, 2, PREDIFF_F32, 1, 0, pd_put_write, &st, &e), &e, ERR_ARG, VALUE_RANGE);
        prediff_trainer_destroy(whole); prediff_trainer_destroy(half); prediff_trainer_destroy(rest);
        prediff_model_close(check); prediff_model_close(m);
    }
}

/* -- what is not finite is left out -- */

static void test_not_finite(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *t, *other;
    prediff_sequence s[2];
    prediff_error e;
    prediff_model *m;
    float *w, was;
    size_t n;
    memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
    m = pd_tiny_open(&tiny);
    put_texts(s, 1);
    desc_of(&d, m);
    t = trainer_of(&d); other = trainer_of(&d);
    w = floats_of(t, 0, 0, &n);
    was = w[5 * 32];
    w[5 * 32] = (float)NAN;
    add_gradient(t, s, 2);
    PD_STATUS(prediff_trainer_update(t, 1e-3, NULL, &e), &e, ERR_NUMERIC, LOGITS);
    w[5 * 32] = was;
    PD_CHECK(!(apart(t, other, 0) > 0) && !(apart(t, other, 1) > 0));
    updates(t, s, 2, 1); updates(other, s, 2, 1);
    PD_CHECK(!(apart(t, other, 0) > 0));
    PD_STATUS(prediff_trainer_update(t, 1e-3, NULL, &e), &e, ERR_ARG, VALUE_RANGE);
    prediff_trainer_destroy(t); prediff_trainer_destroy(other);
    prediff_model_close(m);
}

/* -- objectives by formula: all logits zero, so each cross-entropy is ln V -- */

static void test_objectives(void) {
    static const int32_t ids[5] = { 1, 2, 3, 4, 5 }, input[5] = { 1, -1, -1, 4, -1 };
    static const float half = 0.5f;
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *t;
    prediff_sequence s[2], c;
    prediff_train_stats st;
    prediff_error e;
    prediff_model *m;
    double lnV, sum = 0;
    int i;
    memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e); memset(&c, 0, sizeof c);
    tiny.zero_output = 1;
    m = pd_tiny_open(&tiny);
    desc_of(&d, m);
    t = trainer_of(&d);
    lnV = log((double)t->m.hp.n_vocab);
    put_texts(s, 0);
    for (i = 0; i < 20; i++) {
        PD_NEAR(loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, (uint64_t)i), lnV, 1e-5);
        PD_NEAR(loss_at(t, s, 2, PREDIFF_OBJECTIVE_EXACT_L, (uint64_t)i), lnV, 1e-5);
        PD_NEAR(loss_at(t, s, 2, PREDIFF_OBJECTIVE_MDLM, (uint64_t)i), loss_at(t, s, 2, PREDIFF_OBJECTIVE_SEDD, (uint64_t)i), 1e-9);
    }
    for (i = 0; i < 4000; i++) sum += loss_at(t, s, 2, PREDIFF_OBJECTIVE_MDLM, (uint64_t)i) / 4000;
    PD_NEAR(sum / lnV, 1.0, 0.1);                   /* a text without a mask counts as one */
    PD_STATUS(prediff_trainer_evaluate(t, s, 2, PREDIFF_OBJECTIVE_CAUSAL, 1, &st, &e), &e, OK, NONE);
    PD_NEAR(st.causal_nats / st.causal_rows, lnV, 1e-5);
    PD_CHECK(st.causal_rows == 2 * LEN - 3);
    c.ids = ids; c.n = 5; c.input = input; c.rate = &half;
    PD_NEAR(loss_at(t, &c, 1, PREDIFF_OBJECTIVE_DIFFUGPT, 1), 2 * lnV, 1e-5);
    PD_NEAR(loss_at(t, &c, 1, PREDIFF_OBJECTIVE_CART, 1), (0.255 + 0.255 + 0.20145) / 5 * lnV, 1e-5);
    PD_NEAR((double)t->rows[1].masked, 0.255, 1e-6);
    PD_NEAR((double)t->rows[2].masked, 0.255, 1e-6);
    PD_NEAR((double)t->rows[4].masked, 0.20145, 1e-6);
    for (i = 0; i < 4; i++) {
        static const double mean[4] = { 0.5005, 0.6366, 0.5, 0.3333 };
        int k;
        t->d.rates = (prediff_rates)i;
        for (sum = 0, k = 0; k < 20000; k++) sum += pdi_rate_law(t, (k + 0.5) / 20000, (size_t)k) / 20000;
        PD_NEAR(sum, mean[i], 6e-3);
    }
    prediff_trainer_destroy(t);
    prediff_model_close(m);
}

static void test_masks(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *t;
    prediff_sequence s[2];
    prediff_model *m;
    size_t i, r, k;
    memset(&tiny, 0, sizeof tiny);
    tiny.layers = 1; tiny.embd = 16; tiny.heads = 2; tiny.ff = 16;
    m = pd_tiny_open(&tiny);
    put_texts(s, 0);
    desc_of(&d, m);
    d.complementary = 1;
    t = trainer_of(&d);
    for (i = 0; i < 50; i++) {
        size_t masked = 0;
        loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, i);
        PD_CHECK(t->n_rows == 4 * LEN - 2 && t->n_groups == 4);
        for (r = 0; r < LEN; r++) {
            int both = (t->rows[r].input == PREDIFF_MASK) + (t->rows[LEN + r].input == PREDIFF_MASK);
            PD_CHECK(both == (r >= 4));
            masked += t->rows[r].input == PREDIFF_MASK;
        }
        PD_CHECK(masked >= 1);
    }
    prediff_trainer_destroy(t);
    desc_of(&d, m);
    d.attention = PREDIFF_ATTENTION_HYBRID; d.n_blocks = 2; d.block_min = d.block_max = 2;
    t = trainer_of(&d);
    s[0].n = 4; s[0].n_prompt = 0;
    for (i = 0; i < 50; i++) {         /* 4 clean rows: 10 pairs; a block of 2 at s: 2 (s + 2) */
        size_t pairs = 0, want = 10;
        int32_t ids[4];
        double nats[8];
        loss_at(t, s, 1, PREDIFF_OBJECTIVE_PREDIFF, i);
        PD_CHECK(t->n_rows == 8 && t->spans[0].n == 8);
        for (r = 0; r < t->n_rows; r++) pairs += t->rows[r].seen + (t->rows[r].to - t->rows[r].from);
        for (r = 4; r < 8; r += 2) { PD_CHECK(t->rows[r].position >= 1 && t->rows[r].position <= 2); want += 2 * (t->rows[r].position + 2); }
        PD_CHECK(pairs == want);
        PD_CHECK(t->rows[4].input == PREDIFF_MASK && t->rows[5].input == PREDIFF_MASK);
        memcpy(nats, t->row_nats, sizeof nats);
        for (k = 0; k < 4; k++) {      /* a clean token changes the blocks that begin behind it, by labels too those that hold it */
            size_t at = t->rows[4].position;
            memcpy(ids, text_a, sizeof ids);
            ids[k] = 222;
            s[0].ids = ids;
            loss_at(t, s, 1, PREDIFF_OBJECTIVE_PREDIFF, i);
            for (r = 4; r < 6; r++)
                if (k < at) PD_CHECK(fabs(t->row_nats[r] - nats[r]) > 0);
                else if (t->rows[r].position != k) PD_CHECK(!(fabs(t->row_nats[r] - nats[r]) > 0));
            s[0].ids = text_a;
        }
    }
    prediff_trainer_destroy(t);
    prediff_model_close(m);
}

/* Annealed attention: none of the later positions is causal attention, all of them is bidirectional; between, the drawn share. */
static void test_annealing(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *t, *causal, *two;
    prediff_sequence s[2];
    prediff_model *m;
    size_t i, j, pairs = 0, open = 0;
    double all;
    memset(&tiny, 0, sizeof tiny);
    m = pd_tiny_open(&tiny);
    put_texts(s, 1);
    desc_of(&d, m);
    d.attention = PREDIFF_ATTENTION_CAUSAL;
    causal = trainer_of(&d);
    d.attention = PREDIFF_ATTENTION_BIDIRECTIONAL;
    d.n_ctx = 16;
    t = trainer_of(&d);
    d.n_threads = 3;
    two = trainer_of(&d);
    all = loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1);
    prediff_trainer_anneal(t, 0);
    PD_NEAR(loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1), loss_at(causal, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1), 1e-6);
    prediff_trainer_anneal(t, 1);
    PD_CHECK(!(fabs(loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1) - all) > 0));
    prediff_trainer_anneal(t, 0.25);
    for (i = 0; i < 100; i++) {
        loss_at(t, s, 2, PREDIFF_OBJECTIVE_PREDIFF, i);
        for (j = 0; j < t->n_rows; j++) {                       /* rows of a text stand at its positions */
            uint32_t later;
            for (later = t->rows[j].position + 1; later < LEN; later++) { pairs++; open += (size_t)pdi_annealed(t, &t->rows[j], later); }
        }
    }
    PD_NEAR((double)open / (double)pairs, 0.25, 0.02);
    prediff_trainer_anneal(two, 0.25);
    add_gradient(t, s, 2);
    add_gradient(two, s, 2);
    PD_CHECK(!(apart(t, two, 1) > 0));
    prediff_trainer_destroy(t); prediff_trainer_destroy(two); prediff_trainer_destroy(causal);
    prediff_model_close(m);
}

/* -- AdamW beside a loop in double, from the same gradients -- */

static void test_adamw(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *t;
    prediff_sequence s[2];
    prediff_train_stats st;
    prediff_error e;
    prediff_model *m;
    double *w, *m1, *m2, *ema;
    size_t i, k, n, total;
    int step;
    memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
    tiny.qkv_bias = 1;
    m = pd_tiny_open(&tiny);
    put_texts(s, 1);
    desc_of(&d, m);
    d.beta1 = 0.8; d.beta2 = 0.95; d.eps = 1e-6; d.weight_decay = 0.1; d.clip = 0.05; d.ema = 0.7;
    t = trainer_of(&d);
    total = t->n_floats;
    w = (double *)calloc(4 * total, sizeof *w);
    m1 = w + total; m2 = m1 + total; ema = m2 + total;
    for (i = 0; i < total; i++) w[i] = ema[i] = (double)t->w[i];
    for (step = 1; step <= 4; step++) {
        double norm = 0, scale, worst = 0, worst_ema = 0;
        add_gradient(t, s, 2);
        for (i = 0; i < total; i++) norm += (double)t->grad[i] * (double)t->grad[i];
        norm = sqrt(norm) / 8;
        scale = (norm > d.clip ? d.clip / norm : 1) / 8;
        for (i = 0; i < t->n_params; i++) {
            prediff_container c;
            prediff_trainer_tensors(t, 0, &c);
            for (n = t->params[i].at, k = n; k < n + t->params[i].n; k++) {
                double g = (double)t->grad[k] * scale;
                m1[k] = 0.8 * m1[k] + 0.2 * g;
                m2[k] = 0.95 * m2[k] + 0.05 * g * g;
                if (c.tensors[i].n_dims > 1) w[k] -= 1e-2 * 0.1 * w[k];
                w[k] -= 1e-2 * m1[k] / (1 - pow(0.8, step)) / (sqrt(m2[k] / (1 - pow(0.95, step))) + 1e-6);
                ema[k] = 0.7 * ema[k] + 0.3 * w[k];
            }
        }
        PD_STATUS(prediff_trainer_update(t, 1e-2, &st, &e), &e, OK, NONE);
        PD_NEAR(st.gradient_norm / norm, 1.0, 1e-6);
        PD_CHECK(norm > d.clip);
        for (i = 0; i < total; i++) {
            if (!(fabs((double)t->w[i] - w[i]) <= worst)) worst = fabs((double)t->w[i] - w[i]);
            if (!(fabs((double)t->ema[i] - ema[i]) <= worst_ema)) worst_ema = fabs((double)t->ema[i] - ema[i]);
        }
        PD_CHECKF(worst < 2e-6 && worst_ema < 2e-6, "step %d: weights %.3g, mean %.3g", step, worst, worst_ema);
    }
    free(w);
    prediff_trainer_destroy(t);
    prediff_model_close(m);
}

/* -- additions to a causal model, and errors -- */

static void test_additions(void) {
    pd_tiny tiny;
    prediff_train_desc d;
    prediff_trainer *full, *bare;
    prediff_sequence s[2];
    prediff_model *m;
    double mean = 0, own = 0;
    size_t i, k, D = 32;
    memset(&tiny, 0, sizeof tiny);
    tiny.causal_only = 1;
    m = pd_tiny_open(&tiny);
    put_texts(s, 1);
    desc_of(&d, m);
    d.add_mask = 1;
    bare = trainer_of(&d);
    d.add_rate = d.add_selfcond = 1; d.add_noise = 8; d.selfcond = 1;
    full = trainer_of(&d);
    PD_NEAR(loss_at(full, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1), loss_at(bare, s, 2, PREDIFF_OBJECTIVE_PREDIFF, 1), 1e-6);
    for (i = 0; i < D; i++) own += (double)full->m.mask[i] * (double)full->m.mask[i];
    for (k = 0; k < 264; k++) {
        const float *row = floats_of(full, 0, 0, &i) + k * D;
        double length = 0;
        for (i = 0; i < D; i++) length += (double)row[i] * (double)row[i];
        mean += sqrt(length) / 264;
    }
    PD_NEAR(sqrt(own) / mean, 1.0, 1e-5);
    updates(full, s, 2, 2);
    PD_CHECK(count_tensors(full) == count_tensors(bare) + 4 + 2 + 3);
    for (i = count_tensors(bare); i < count_tensors(full); i++) {
        size_t n;
        const float *v = floats_of(full, 0, i, &n);
        double sum = 0;
        for (k = 0; k < n; k++) sum += fabs((double)v[k]);
        PD_CHECKF(sum > 0, "addition %d does not learn", (int)i);
    }
    prediff_trainer_destroy(full); prediff_trainer_destroy(bare);
    prediff_model_close(m);
}

static void test_errors(void) {
    pd_tiny tiny;
    prediff_train_desc d, bad;
    prediff_trainer *t = NULL;
    prediff_sequence s[2];
    prediff_error e;
    prediff_model *m, *causal;
    int i;
    int32_t ids[2] = { 1, 100000 };
    size_t size;
    memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
    m = pd_tiny_open(&tiny);
    tiny.causal_only = 1;
    causal = pd_tiny_open(&tiny);
    desc_of(&d, m);
    for (i = 0; i < 14; i++) {
        bad = d;
        switch (i) {
        case 0: bad.attention = (prediff_attention)4; break;
        case 1: bad.objective = (prediff_objective)7; break;
        case 2: bad.rates = (prediff_rates)4; break;
        case 3: bad.causal_weight = -1; break;
        case 4: bad.selfcond = 1.5; break;
        case 5: bad.beta1 = 1; break;
        case 6: bad.beta2 = NAN; break;
        case 7: bad.eps = -1; break;
        case 8: bad.weight_decay = NAN; break;
        case 9: bad.clip = -1; break;
        case 10: bad.ema = 1; break;
        case 11: bad.add_noise = (size_t)2 << 20; break;
        case 12: bad.n_blocks = 64; bad.block_min = bad.block_max = 1; break;
        default: bad.n_blocks = 1; bad.block_min = 3; bad.block_max = 2;
        }
        PD_STATUS(prediff_trainer_create(&t, &bad, &e), &e, ERR_ARG, VALUE_RANGE);
    }
    bad = d; bad.n_blocks = 1; bad.block_min = bad.block_max = 2; bad.complementary = 1;
    PD_STATUS(prediff_trainer_size(&bad, &size, &e), &e, ERR_ARG, CONFLICT);
    bad.complementary = 0; bad.attention = PREDIFF_ATTENTION_CAUSAL;
    PD_STATUS(prediff_trainer_size(&bad, &size, &e), &e, ERR_ARG, CONFLICT);
    bad = d; bad.init = causal;
    PD_STATUS(prediff_trainer_size(&bad, &size, &e), &e, ERR_ARG, MASK_ID_UNKNOWN);
    bad.init = NULL;
    PD_STATUS(prediff_trainer_size(&bad, &size, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_trainer_size(&d, &size, &e), &e, OK, NONE);
    d.max_rows = 20;
    t = trainer_of(&d);
    PD_STATUS(prediff_trainer_size(&d, &size, &e), &e, OK, NONE);
    PD_CHECK(size == t->block_size);
    put_texts(s, 0);
    PD_STATUS(prediff_trainer_gradient(t, s, 2, NULL, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
    s[0].n_prompt = LEN + 1;
    PD_STATUS(prediff_trainer_gradient(t, s, 1, NULL, &e), &e, ERR_ARG, T_RANGE);
    s[0].n_prompt = 0; s[0].ids = ids; s[0].n = 2;
    PD_STATUS(prediff_trainer_gradient(t, s, 1, NULL, &e), &e, ERR_ARG, TOKEN_RANGE);
    PD_STATUS(prediff_trainer_gradient(t, NULL, 1, NULL, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_trainer_update(t, 1e-3, NULL, &e), &e, ERR_ARG, VALUE_RANGE);
    prediff_trainer_destroy(t);
    prediff_model_close(m); prediff_model_close(causal);
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_reference_gradients);
    PD_RUN(test_differences);
    PD_RUN(test_threads);
    PD_RUN(test_sums);
    PD_RUN(test_checkpoint);
    PD_RUN(test_not_finite);
    PD_RUN(test_objectives);
    PD_RUN(test_masks);
    PD_RUN(test_annealing);
    PD_RUN(test_adamw);
    PD_RUN(test_additions);
    PD_RUN(test_errors);
    return PD_END();
}
