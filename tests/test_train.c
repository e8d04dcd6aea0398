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

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_reference_gradients);
    return PD_END();
}
