/* SPDX-License-Identifier: MIT
 * The API as strangers use it: wrong calls get a status and an item, right calls keep their promises for any length, block
 * and setting; frequencies are those asked for; public faults of other engines, replayed; odd floating-point modes, small
 * stacks, two threads. Names begin with the row of the check list they stand for.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_test.h"
#include "corpus.h"
#include <fenv.h>
#include <float.h>
#ifdef PD_PTHREAD
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { V = 264, EOS = 256, CTX = 128, MAX_T = 96 };
#define NO (-HUGE_VALF)
#define NOT_A_NUMBER (nan_value())
static float nan_value(void) { uint32_t u = 0x7FC00000u; float f; memcpy(&f, &u, 4); return f; }

typedef struct world { prediff_model *m; prediff_context *c; prediff_error e; } world;

static world open_world(const pd_tiny *given, size_t samples) {
    world w;
    pd_tiny t;
    prediff_context_desc d;
    memset(&w, 0, sizeof w); memset(&t, 0, sizeof t); memset(&d, 0, sizeof d);
    if (given) t = *given;
    if (!t.ctx) t.ctx = CTX;
    w.m = pd_tiny_open(&t);
    d.n_samples = samples;
    if (prediff_context_create(&w.c, w.m, &d, &w.e)) { fprintf(stderr, "context: %s\n", w.e.message); exit(3); }
    return w;
}

static void close_world(world *w) { prediff_context_destroy(w->c); prediff_model_close(w->m); }

static void all_masks(int32_t *t, size_t n) { size_t i; for (i = 0; i < n; i++) t[i] = PREDIFF_MASK; }
static void zero_desc(prediff_generate_desc *d) { memset(d, 0, sizeof *d); }
static size_t count_masks(const int32_t *t, size_t n) { size_t i, k = 0; for (i = 0; i < n; i++) k += t[i] == PREDIFF_MASK; return k; }
static int valid(const int32_t *t, size_t n) { size_t i; for (i = 0; i < n; i++) if (t[i] != PREDIFF_MASK && (t[i] < 0 || t[i] >= V)) return 0; return 1; }

/* A hook with a table: logits of position i are row[i % rows]. */
typedef struct table { const float (*row)[V]; size_t rows, calls; } table;
static void table_hook(void *user, size_t sample, size_t position, float *logits, size_t n_vocab) {
    table *t = (table *)user;
    (void)sample;
    t->calls++;
    memcpy(logits, t->row[position % t->rows], n_vocab * sizeof *logits);
}

/* -- wrong calls -- */

static void test_a01_null_open(void) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_error e;
    memset(&d, 0, sizeof d);
    PD_STATUS(prediff_model_open(NULL, &d, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_model_open(&m, NULL, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_model_open(&m, &d, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_CHECK(m == NULL);
    d.data = "GGUF"; d.size = 4; d.path = "x";
    PD_STATUS(prediff_model_open(&m, &d, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_CHECK(prediff_model_open(&m, &d, NULL) == PREDIFF_ERR_ARG && prediff_container_open(&m, NULL, NULL) == PREDIFF_ERR_ARG);
    prediff_model_close(NULL);
    prediff_context_destroy(NULL);
}

static void test_a01_null_context(void) {
    world w = open_world(NULL, 1);
    prediff_context_desc cd;
    prediff_forward_desc fd;
    prediff_score_desc sd;
    prediff_score_result sr;
    prediff_context *c;
    int32_t t[4];
    size_t size;
    char text[64];
    float row[2];
    int done;
    memset(&cd, 0, sizeof cd); memset(&fd, 0, sizeof fd); memset(&sd, 0, sizeof sd);
    all_masks(t, 4);
    PD_STATUS(prediff_context_create(NULL, w.m, &cd, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_context_create(&c, NULL, &cd, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_context_create(&c, w.m, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_CHECK(c == NULL);
    PD_STATUS(prediff_context_size(w.m, &cd, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_context_size(NULL, &cd, &size, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_prompt(NULL, t, 1, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_prompt(w.c, NULL, 1, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_rewind(NULL, 0, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_generate(NULL, t, 4, NULL, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_generate(w.c, NULL, 4, NULL, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_begin(w.c, NULL, 4, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_step(w.c, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_forward(w.c, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    fd.target = t; fd.n = 4;
    PD_STATUS(prediff_forward(w.c, &fd, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    fd.target = NULL; fd.logits = row;
    PD_STATUS(prediff_forward(w.c, &fd, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    t[0] = 1;
    PD_STATUS(prediff_score(w.c, t, 1, NULL, &sr, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_score(w.c, t, 1, &sd, NULL, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_score(w.c, NULL, 1, &sd, &sr, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_write(w.c, NULL, 4, NULL, text, 64, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_write(w.c, "a", 4, NULL, NULL, 64, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_infill(w.c, NULL, NULL, text, 64, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_dequantize_row(PREDIFF_F32, NULL, row, 1, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_step(w.c, &done, &w.e), &w.e, ERR_ARG, NOT_BEGUN);
    PD_STATUS(prediff_end(w.c, NULL, &w.e), &w.e, ERR_ARG, NOT_BEGUN);
    PD_CHECK(prediff_generate(w.c, NULL, 4, NULL, NULL, NULL) == PREDIFF_ERR_ARG);
    close_world(&w);
}

static void test_a02_canaries(void) {
    world w = open_world(NULL, 1);
    prediff_model_desc md;
    prediff_context_desc cd;
    prediff_generate_desc gd;
    prediff_forward_desc fd;
    prediff_score_desc sd;
    prediff_save_desc vd;
    prediff_score_result sr;
    prediff_model *m;
    prediff_context *c;
    int32_t t[2] = { 1, 2 };
    size_t size;
    int end;
    for (end = 0; end < 2; end++) {
        uint32_t *canary[6];
        memset(&md, 0, sizeof md); memset(&cd, 0, sizeof cd); memset(&gd, 0, sizeof gd); memset(&fd, 0, sizeof fd); memset(&sd, 0, sizeof sd); memset(&vd, 0, sizeof vd);
        canary[0] = end ? &md.canary_end : &md.canary_begin; canary[1] = end ? &cd.canary_end : &cd.canary_begin;
        canary[2] = end ? &gd.canary_end : &gd.canary_begin; canary[3] = end ? &fd.canary_end : &fd.canary_begin;
        canary[4] = end ? &sd.canary_end : &sd.canary_begin; canary[5] = end ? &vd.canary_end : &vd.canary_begin;
        *canary[0] = *canary[1] = *canary[2] = *canary[3] = *canary[4] = *canary[5] = 0xCDCDCDCDu;
        PD_STATUS(prediff_model_open(&m, &md, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_container_open(&m, &md, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_context_create(&c, w.m, &cd, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_context_size(w.m, &cd, &size, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_generate(w.c, t, 2, &gd, NULL, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_begin(w.c, t, 2, &gd, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_forward(w.c, &fd, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_score(w.c, t, 2, &sd, &sr, &w.e), &w.e, ERR_ARG, DESC_CANARY);
        PD_STATUS(prediff_save(&vd, &w.e), &w.e, ERR_ARG, DESC_CANARY);
    }
    close_world(&w);
}

static void test_a03_a04_a08_a09_nothing_to_do(void) {
    world w = open_world(NULL, 1);
    prediff_result r;
    int32_t t[8], given[3] = { 5, 6, 7 }, masked[1] = { PREDIFF_MASK };
    all_masks(t, 8);
    PD_STATUS(prediff_generate(w.c, t, 8, NULL, &r, &w.e), &w.e, OK, NONE);               /* no prompt, all masked */
    PD_CHECK(count_masks(t, 8) == 0 && r.n_emitted >= 1 && r.n_evaluations >= 1);
    PD_STATUS(prediff_generate(w.c, NULL, 0, NULL, &r, &w.e), &w.e, OK, NONE);            /* no target */
    PD_CHECK(r.n_steps == 0 && r.n_evaluations == 0 && r.n_emitted == 0);
    PD_STATUS(prediff_generate(w.c, given, 3, NULL, &r, &w.e), &w.e, OK, NONE);           /* no mask */
    PD_CHECK(r.n_steps == 0 && r.n_evaluations == 0 && given[0] == 5 && given[1] == 6 && given[2] == 7);
    PD_STATUS(prediff_prompt(w.c, NULL, 0, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_prompt(w.c, masked, 1, NULL, &w.e), &w.e, ERR_ARG, TOKEN_RANGE);    /* a mask in the prompt */
    close_world(&w);
}

static void test_a05_too_long(void) {
    world w = open_world(NULL, 1);
    prediff_context_desc cd;
    prediff_context *c;
    prediff_score_desc sd;
    prediff_score_result sr;
    int32_t t[CTX + 1];
    char text[64];
    size_t i;
    memset(&cd, 0, sizeof cd); memset(&sd, 0, sizeof sd);
    for (i = 0; i <= CTX; i++) t[i] = 1;
    PD_STATUS(prediff_prompt(w.c, t, CTX + 1, NULL, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_prompt(w.c, t, SIZE_MAX, NULL, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_prompt(w.c, t, CTX - 2, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_generate(w.c, t, 3, NULL, NULL, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_generate(w.c, t, SIZE_MAX, NULL, NULL, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_score(w.c, t, 3, &sd, &sr, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_generate(w.c, t, 2, NULL, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_rewind(w.c, CTX - 1, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_write(w.c, "a", CTX, NULL, text, 64, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_write(w.c, "a", SIZE_MAX, NULL, text, 64, &w.e), &w.e, ERR_ARG, T_RANGE);
    PD_STATUS(prediff_infill(w.c, "a[MASK:1000]", NULL, text, 64, &w.e), &w.e, ERR_ARG, T_RANGE);
    cd.n_ctx = CTX + 1;
    PD_STATUS(prediff_context_create(&c, w.m, &cd, &w.e), &w.e, ERR_ARG, T_RANGE);
    cd.n_ctx = 16; cd.n_target = 4;
    PD_STATUS(prediff_context_create(&c, w.m, &cd, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_generate(c, t, 5, NULL, NULL, &w.e), &w.e, ERR_ARG, T_RANGE);
    prediff_context_destroy(c);
    close_world(&w);
}

static void test_a06_a07_ids(void) {
    static const int32_t bad[] = { -2, V, INT32_MAX, INT32_MIN };
    world w = open_world(NULL, 1);
    prediff_score_desc sd;
    prediff_score_result sr;
    size_t i;
    memset(&sd, 0, sizeof sd);
    for (i = 0; i < 4; i++) {
        int32_t t[4] = { 1, 2, 3, 4 };
        t[2] = bad[i];
        PD_STATUS(prediff_prompt(w.c, t, 4, NULL, &w.e), &w.e, ERR_ARG, TOKEN_RANGE);
        PD_CHECK(w.e.offset == 2 && prediff_prompt_length(w.c) == 0);
        PD_STATUS(prediff_generate(w.c, t, 4, NULL, NULL, &w.e), &w.e, ERR_ARG, TOKEN_RANGE);
        PD_CHECK(w.e.offset == 2 && t[0] == 1 && t[2] == bad[i]);
        PD_STATUS(prediff_score(w.c, t, 4, &sd, &sr, &w.e), &w.e, ERR_ARG, TOKEN_RANGE);
        t[2] = PREDIFF_MASK;
        PD_STATUS(prediff_generate(w.c, t, 4, NULL, NULL, &w.e), &w.e, OK, NONE);
        t[2] = PREDIFF_MASK;
        PD_STATUS(prediff_score(w.c, t, 4, &sd, &sr, &w.e), &w.e, ERR_ARG, TOKEN_RANGE);
    }
    close_world(&w);
}

static void test_k12_mask_ids(void) {
    pd_gguf *g = pd_base(BASE_CAUSAL);
    static const int32_t bad[] = { -1, V, INT32_MIN };
    size_t n, i;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_model_desc d;
    prediff_context_desc cd;
    prediff_model *m;
    prediff_context *c;
    prediff_error e;
    int32_t t[2] = { PREDIFF_MASK, PREDIFF_MASK }, mask = EOS;
    memset(&d, 0, sizeof d); memset(&cd, 0, sizeof cd);
    d.data = b; d.size = n;
    for (i = 0; i < 3; i++) { d.mask_token = &bad[i]; PD_STATUS(prediff_model_open(&m, &d, &e), &e, ERR_ARG, SPECIAL_ID); }
    d.mask_token = NULL;
    if (PD_STATUS(prediff_model_open(&m, &d, &e), &e, OK, NONE)) {      /* a causal model opens, but cannot fill masks */
        PD_STATUS(prediff_context_create(&c, m, &cd, &e), &e, OK, NONE);
        PD_STATUS(prediff_generate(c, t, 2, NULL, NULL, &e), &e, ERR_ARG, MASK_ID_UNKNOWN);
        prediff_context_destroy(c);
        prediff_model_close(m);
    }
    d.mask_token = &mask;                          /* the caller may even name the end of text */
    if (PD_STATUS(prediff_model_open(&m, &d, &e), &e, OK, NONE)) {
        PD_STATUS(prediff_context_create(&c, m, &cd, &e), &e, OK, NONE);
        PD_STATUS(prediff_generate(c, t, 2, NULL, NULL, &e), &e, OK, NONE);
        PD_CHECK(t[0] != EOS && t[1] != EOS && count_masks(t, 2) == 0);
        prediff_context_destroy(c);
        prediff_model_close(m);
    }
    free(b);
    pd_gguf_free(g);
}

static void test_a10_mask_is_never_output(void) {
    static float want_mask[1][V];
    pd_tiny t;
    world w;
    table hook;
    prediff_generate_desc d;
    int32_t target[12];
    size_t i;
    memset(&t, 0, sizeof t);
    t.no_mask = 1; t.mask_id = 263;
    w = open_world(&t, 1);
    zero_desc(&d);
    want_mask[0][263] = 1e30f;
    hook.row = want_mask; hook.rows = 1; hook.calls = 0;
    d.logit_hook = table_hook; d.user = &hook;
    for (i = 0; i < 4; i++) {
        size_t k;
        d.temperature = i % 2 ? 1 : 0;
        d.sampler = i < 2 ? PREDIFF_CAU : PREDIFF_ANCESTRAL;
        all_masks(target, 12);
        PD_STATUS(prediff_generate(w.c, target, 12, &d, NULL, &w.e), &w.e, OK, NONE);
        for (k = 0; k < 12; k++) PD_CHECK(target[k] >= 0 && target[k] < 263);
    }
    close_world(&w);
}

static void test_a11_a12_steps(void) {
    static const size_t asked[] = { 0, 1, 3, 12, 16, 24, 25, 1000, SIZE_MAX };
    static const size_t masks[] = { 1, 2, 12, 24, 60 };
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    prediff_result r;
    int32_t t[MAX_T];
    size_t i, k;
    for (k = 0; k < 5; k++)
        for (i = 0; i < 9; i++) {
            size_t limit = asked[i] ? asked[i] : 16, want = limit < masks[k] ? limit : masks[k];
            zero_desc(&d);
            d.n_steps = asked[i]; d.ignore_eos = 1; d.schedule = PREDIFF_LINEAR;
            all_masks(t, masks[k]);
            PD_STATUS(prediff_generate(w.c, t, masks[k], &d, &r, &w.e), &w.e, OK, NONE);
            PD_CHECKF(r.n_steps == want && r.n_evaluations == want && r.n_masks_left == 0 && count_masks(t, masks[k]) == 0,
                      "%u masks, %u steps asked: %u done", (unsigned)masks[k], (unsigned)asked[i], (unsigned)r.n_steps);
        }
    close_world(&w);
}

static void test_a14_block_larger_than_target(void) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    int32_t a[20], b[20];
    zero_desc(&d);
    all_masks(a, 20); all_masks(b, 20);
    PD_STATUS(prediff_generate(w.c, a, 20, &d, NULL, &w.e), &w.e, OK, NONE);
    d.block = SIZE_MAX;
    PD_STATUS(prediff_generate(w.c, b, 20, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(memcmp(a, b, sizeof a) == 0);
    close_world(&w);
}

static void expect_bad(world *w, const prediff_generate_desc *d, prediff_item item, const char *what) {
    int32_t t[4];
    all_masks(t, 4);
    pd_status((int)prediff_generate(w->c, t, 4, d, NULL, &w->e), PREDIFF_ERR_ARG, &w->e, item, __FILE__, __LINE__, what);
    PD_CHECKF(count_masks(t, 4) == 4, "%s changed the target", what);
}

static void test_a15_a18_values(void) {
    world w = open_world(NULL, 1);
    double bad[4];
    size_t i;
    prediff_generate_desc d;
    bad[0] = -0.5; bad[1] = (double)NOT_A_NUMBER; bad[2] = HUGE_VAL; bad[3] = -HUGE_VAL;
    for (i = 0; i < 4; i++) {
        zero_desc(&d); d.temperature = bad[i];     expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "temperature");
        zero_desc(&d); d.temperature_end = bad[i]; expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "temperature_end");
        zero_desc(&d); d.top_p = bad[i];           expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "top_p");
        zero_desc(&d); d.threshold = bad[i];       expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "threshold");
        zero_desc(&d); d.entropy_bound = bad[i];   expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "entropy_bound");
        zero_desc(&d); d.eos_penalty = bad[i];     expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "eos_penalty");
    }
    zero_desc(&d); d.top_p = 1.01;       expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "top_p above 1");
    zero_desc(&d); d.eos_penalty = 1.01; expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "eos_penalty above 1");
    for (i = 0; i < 2; i++) {
        int v = i ? 99 : -1;
        zero_desc(&d); d.sampler = (prediff_sampler)v;   expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "sampler");
        zero_desc(&d); d.order = (prediff_order)v;       expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "order");
        zero_desc(&d); d.schedule = (prediff_schedule)v; expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "schedule");
        zero_desc(&d); d.noise = (prediff_noise)v;       expect_bad(&w, &d, PREDIFF_ITEM_VALUE_RANGE, "noise");
    }
    close_world(&w);
}

static void test_conflicts(void) {
    world w = open_world(NULL, 2);
    prediff_generate_desc d;
    int32_t gap[4] = { PREDIFF_MASK, 5, PREDIFF_MASK, 7 };
    zero_desc(&d); d.threshold = 0.5; d.entropy_bound = 0.5;                    expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "threshold and entropy_bound");
    zero_desc(&d); d.stop_sure = 1; d.temperature = 1;                          expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "stop_sure and temperature");
    zero_desc(&d); d.block = 2; d.window = 2;                                   expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "block and window");
    zero_desc(&d); d.block = 2; d.sampler = PREDIFF_CAUSAL_DECODING;            expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "block and causal decoding");
    zero_desc(&d); d.threshold = 0.5; d.sampler = PREDIFF_ANCESTRAL;            expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "threshold and ancestral");
    zero_desc(&d); d.window = 2; d.sampler = PREDIFF_FIRST_HITTING;             expect_bad(&w, &d, PREDIFF_ITEM_CONFLICT, "window and first-hitting");
    zero_desc(&d); d.sampler = PREDIFF_CAUSAL_DECODING;                         expect_bad(&w, &d, PREDIFF_ITEM_SHIFT_PROMPT, "causal decoding without a prompt");
    zero_desc(&d); d.samples = 3;                                               expect_bad(&w, &d, PREDIFF_ITEM_SAMPLES, "more samples than the context has");
    zero_desc(&d); d.samples = SIZE_MAX;                                        expect_bad(&w, &d, PREDIFF_ITEM_SAMPLES, "SIZE_MAX samples");
    zero_desc(&d); d.block = 2;
    PD_STATUS(prediff_generate(w.c, gap, 4, &d, NULL, &w.e), &w.e, ERR_ARG, CONFLICT);     /* text right of a gap */
    PD_CHECK(w.e.offset == 1 && gap[0] == PREDIFF_MASK);
    d.samples = 2;
    PD_STATUS(prediff_begin(w.c, gap, 2, &d, &w.e), &w.e, ERR_ARG, SAMPLES);               /* blocks step one sample at a time */
    close_world(&w);
}

static void test_context_settings(void) {
    world w = open_world(NULL, 1);
    prediff_context_desc d;
    prediff_context *c;
    size_t size, missing = 0;
    int isa;
    uint8_t *block;
    memset(&d, 0, sizeof d);
    d.n_threads = -1;     PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, VALUE_RANGE);      /* A30 */
    d.n_threads = (-2147483647 - 1); PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    d.n_threads = 0;
    d.attention = (prediff_attention)9; PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    d.attention = PREDIFF_ATTENTION_DEFAULT;
    d.isa = (prediff_isa)77; PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    d.compute = (prediff_compute)5; PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    d.compute = PREDIFF_EXACT;
    for (isa = 1; isa < PREDIFF_ISA_COUNT; isa++) {                             /* A36: refused, never executed */
        d.isa = (prediff_isa)isa;
        if (prediff_isa_available(d.isa)) {
            if (PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, OK, NONE)) PD_CHECK(prediff_context_isa(c) == d.isa);
            prediff_context_destroy(c);
        } else { missing++; PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_UNSUPPORTED, ISA_MISSING); }
    }
    PD_CHECK(prediff_isa_available(PREDIFF_ISA_SCALAR) && prediff_isa_available(prediff_isa_best()) && missing < PREDIFF_ISA_COUNT - 1);
    PD_CHECK(strcmp(prediff_isa_name(PREDIFF_ISA_SCALAR), "scalar") == 0 && prediff_isa_name((prediff_isa)99) != NULL);
    d.isa = PREDIFF_ISA_DEFAULT;
    d.n_samples = 5000;   PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_ARG, SAMPLES);
    d.n_samples = 0;
    PD_STATUS(prediff_context_size(w.m, &d, &size, &w.e), &w.e, OK, NONE);      /* A29, A39: the caller's block, at any address */
    block = (uint8_t *)malloc(size + 1);
    d.memory = block + 1; d.memory_size = size - 1;
    PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, ERR_NOMEM, MEMORY_BLOCK);
    PD_CHECK(c == NULL);
    d.memory_size = size;
    if (PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, OK, NONE)) {
        int32_t t[4];
        all_masks(t, 4);
        PD_STATUS(prediff_generate(c, t, 4, NULL, NULL, &w.e), &w.e, OK, NONE);
        prediff_context_destroy(c);
    }
    free(block);
    close_world(&w);
}

static void test_a30_a31_threads(void) {
    static const int asked[] = { 0, 1, 2, 1000000 };
    world w = open_world(NULL, 1);
    prediff_context_desc d;
    prediff_context *c;
    int i;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 4; i++) {
        int want = asked[i] ? asked[i] < 256 ? asked[i] : 256 : 1;
#if !defined(_OPENMP) || defined(PREDIFF_NO_OPENMP)
        want = 1;
#endif
        d.n_threads = asked[i];
        if (PD_STATUS(prediff_context_create(&c, w.m, &d, &w.e), &w.e, OK, NONE))
            PD_CHECKF(prediff_context_threads(c) == want, "%d threads asked, %d told", asked[i], prediff_context_threads(c));
        prediff_context_destroy(c);
    }
    close_world(&w);
}

static void test_shift_needs_prompt(void) {
    pd_tiny t;
    world w;
    int32_t target[3], one = 1;
    memset(&t, 0, sizeof t);
    t.shift = 1;
    w = open_world(&t, 1);
    all_masks(target, 3);
    PD_STATUS(prediff_generate(w.c, target, 3, NULL, NULL, &w.e), &w.e, ERR_ARG, SHIFT_PROMPT);
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_generate(w.c, target, 3, NULL, NULL, &w.e), &w.e, OK, NONE);
    close_world(&w);
}

/* -- logits that misbehave -- */

static void with_row(const float *row, double temperature, int32_t *t, prediff_status status, prediff_item item, const char *what) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    table hook;
    static float copy[1][V];
    memcpy(copy[0], row, sizeof copy[0]);
    zero_desc(&d);
    hook.row = copy; hook.rows = 1; hook.calls = 0;
    d.logit_hook = table_hook; d.user = &hook; d.temperature = temperature;
    all_masks(t, 4);
    pd_status((int)prediff_generate(w.c, t, 4, &d, NULL, &w.e), (int)status, &w.e, item, __FILE__, __LINE__, what);
    PD_CHECKF(valid(t, 4), "%s: a token is no id", what);
    if (!status) PD_CHECKF(count_masks(t, 4) == 0, "%s: masks left", what);
    close_world(&w);
}

static void test_a16_a20_a24_extremes(void) {
    float row[V];
    int32_t t[4];
    size_t i;
    for (i = 0; i < V; i++) row[i] = -(float)i;
    with_row(row, 1e-30, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "temperature 1e-30");
    PD_CHECK(t[0] == 0 && t[3] == 0);
    with_row(row, 1.0001e-4, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "temperature just above greedy");
    PD_CHECK(t[0] == 0 && t[3] == 0);
    for (i = 0; i < V; i++) row[i] = i == 9 ? 3e38f : -3e38f;
    with_row(row, 0, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "logits of 3e38");
    PD_CHECK(t[0] == 9 && t[3] == 9);
    with_row(row, 1, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "logits of 3e38, drawn");
    PD_CHECK(t[0] == 9 && t[3] == 9);
    for (i = 0; i < V; i++) row[i] = i == 11 ? 0 : NO;
    with_row(row, 1, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "all but one banned");
    PD_CHECK(t[0] == 11 && t[3] == 11);
    for (i = 0; i < V; i++) row[i] = 1e-40f * (float)i;                         /* denormals */
    with_row(row, 1, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "denormal logits");
}

static void test_a21_a22_a23_not_finite(void) {
    float row[V];
    int32_t t[4];
    int drawn;
    size_t i;
    for (drawn = 0; drawn < 2; drawn++) {
        for (i = 0; i < V; i++) row[i] = NO;
        with_row(row, drawn, t, PREDIFF_ERR_NUMERIC, PREDIFF_ITEM_LOGITS, "all -infinity");
        for (i = 0; i < V; i++) row[i] = i == 200 ? NOT_A_NUMBER : 0;
        with_row(row, drawn, t, PREDIFF_ERR_NUMERIC, PREDIFF_ITEM_LOGITS, "one not-a-number");
        for (i = 0; i < V; i++) row[i] = NOT_A_NUMBER;
        with_row(row, drawn, t, PREDIFF_ERR_NUMERIC, PREDIFF_ITEM_LOGITS, "all not-a-number");
        for (i = 0; i < V; i++) row[i] = i == 7 ? HUGE_VALF : 0;
        with_row(row, drawn, t, PREDIFF_OK, PREDIFF_ITEM_NONE, "one +infinity");
        PD_CHECK(t[0] == 7 && t[3] == 7);
        row[8] = HUGE_VALF;
        with_row(row, drawn, t, PREDIFF_ERR_NUMERIC, PREDIFF_ITEM_LOGITS, "two +infinities");
        row[7] = 0; row[9] = NOT_A_NUMBER;
        with_row(row, drawn, t, PREDIFF_ERR_NUMERIC, PREDIFF_ITEM_LOGITS, "+infinity and not-a-number");
    }
}

/* -- callbacks -- */

static int stop_at_two(void *user, const prediff_step_info *info) { (void)user; return info->step >= 2; }

static void test_a27_stop(void) {
    world w = open_world(NULL, 2);
    prediff_generate_desc d;
    prediff_result r;
    int32_t t[2 * 20], prompt[2] = { 1, 2 }, at[2 * 20];
    size_t i;
    zero_desc(&d);
    d.on_step = stop_at_two; d.revealed_at = at; d.ignore_eos = 1;
    PD_STATUS(prediff_prompt(w.c, prompt, 2, NULL, &w.e), &w.e, OK, NONE);
    for (i = 0; i < 3; i++) {
        size_t n = i == 1 ? 40 : 20, k;
        d.samples = i == 1 ? 2 : 1;
        d.block = i == 2 ? 8 : 0;
        all_masks(t, n);
        PD_STATUS(prediff_generate(w.c, t, 20, &d, &r, &w.e), &w.e, ERR_CANCELLED, STOPPED);
        PD_CHECK(r.n_steps == 2 && r.n_evaluations == 2 && r.ended == PREDIFF_ENDED_CANCELLED && prediff_prompt_length(w.c) == 2);
        PD_CHECK(r.n_masks_left == count_masks(t, n) && r.n_masks_left > 0 && r.n_emitted + r.n_masks_left == n && valid(t, n));
        for (k = 0; k < n; k++) PD_CHECK((t[k] == PREDIFF_MASK) == (at[k] == -1));
    }
    d.samples = 2; d.block = 8;                    /* samples in turn: those never begun are counted, too */
    all_masks(t, 40);
    PD_STATUS(prediff_generate(w.c, t, 20, &d, &r, &w.e), &w.e, ERR_CANCELLED, STOPPED);
    PD_CHECKF(r.n_masks_left == count_masks(t, 40), "%u masks told, %u there", (unsigned)r.n_masks_left, (unsigned)count_masks(t, 40));
    close_world(&w);
}

typedef struct reentry { prediff_context *c; size_t calls, wrong; } reentry;

static void reenter(reentry *r) {
    prediff_error e;
    prediff_forward_desc fd;
    prediff_score_desc sd;
    prediff_score_result sr;
    prediff_status s[9];
    int32_t t[2] = { 1, 2 };
    float logits[1];
    char text[16];
    int done, i;
    memset(&fd, 0, sizeof fd); memset(&sd, 0, sizeof sd);
    fd.target = t; fd.n = 1; fd.logits = logits;
    s[0] = prediff_prompt(r->c, t, 2, NULL, &e);
    s[1] = prediff_rewind(r->c, 0, &e);
    s[2] = prediff_generate(r->c, t, 2, NULL, NULL, &e);
    s[3] = prediff_begin(r->c, t, 2, NULL, &e);
    s[4] = prediff_step(r->c, &done, &e);
    s[5] = prediff_end(r->c, NULL, &e);
    s[6] = prediff_forward(r->c, &fd, &e);
    s[7] = prediff_score(r->c, t, 2, &sd, &sr, &e);
    s[8] = prediff_write(r->c, "a", 1, NULL, text, sizeof text, &e);
    for (i = 0; i < 9; i++) r->wrong += s[i] != PREDIFF_ERR_ARG;
    pd_status((int)s[8], PREDIFF_ERR_ARG, &e, PREDIFF_ITEM_BUSY, __FILE__, __LINE__, "prediff_write in a callback");
    r->calls++;
}
static void reenter_hook(void *user, size_t sample, size_t position, float *logits, size_t n) { (void)sample; (void)position; (void)logits; (void)n; reenter((reentry *)user); }
static int reenter_step(void *user, const prediff_step_info *info) { (void)info; reenter((reentry *)user); return 0; }

static void test_a28_reentry(void) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    reentry r;
    int32_t a[6], b[6], causal[6], one = 1;
    int done;
    r.c = w.c; r.calls = r.wrong = 0;
    zero_desc(&d);
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, OK, NONE);
    all_masks(a, 6); all_masks(b, 6); all_masks(causal, 6);
    PD_STATUS(prediff_generate(w.c, a, 6, &d, NULL, &w.e), &w.e, OK, NONE);
    d.logit_hook = reenter_hook; d.on_step = reenter_step; d.user = &r;
    PD_STATUS(prediff_generate(w.c, b, 6, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(r.calls > 6 && r.wrong == 0 && memcmp(a, b, sizeof a) == 0);
    d.sampler = PREDIFF_CAUSAL_DECODING;
    PD_STATUS(prediff_generate(w.c, causal, 6, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(r.wrong == 0);
    zero_desc(&d);                                 /* between begin and end, others are refused, too */
    all_masks(b, 6);
    PD_STATUS(prediff_begin(w.c, b, 6, &d, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, ERR_ARG, BUSY);
    PD_STATUS(prediff_begin(w.c, b, 6, &d, &w.e), &w.e, ERR_ARG, BUSY);
    for (done = 0; !done;) if (!PD_STATUS(prediff_step(w.c, &done, &w.e), &w.e, OK, NONE)) break;
    PD_STATUS(prediff_end(w.c, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(memcmp(a, b, sizeof a) == 0);
    close_world(&w);
}

/* -- text buffers, copies, versions -- */

static int stop_at_three(void *user, const prediff_step_info *info) { (void)user; return info->step == 3; }

static void test_a29_text_buffer(void) {
    world w = open_world(NULL, 1);
    char whole[600], part[600];
    size_t room, n;
    prediff_generate_desc d;
    PD_STATUS(prediff_write(w.c, "ab", 8, NULL, whole, sizeof whole, &w.e), &w.e, OK, NONE);
    n = strlen(whole);
    PD_CHECK(n > 4 || n == 0);
    PD_STATUS(prediff_write(w.c, "ab", 8, NULL, part, 0, &w.e), &w.e, ERR_ARG, NULL_ARGUMENT);
    for (room = 1; room <= n; room++) {
        memset(part, '#', sizeof part);
        PD_STATUS(prediff_write(w.c, "ab", 8, NULL, part, room, &w.e), &w.e, ERR_LIMIT, BUFFER_SIZE);
        PD_CHECKF(strlen(part) < room && strncmp(part, whole, strlen(part)) == 0 && part[room] == '#', "room %u", (unsigned)room);
    }
    PD_STATUS(prediff_infill(w.c, "ab [MASK:4] the", NULL, whole, sizeof whole, &w.e), &w.e, OK, NONE);
    PD_CHECKF(strncmp(whole, "ab", 2) == 0 && strlen(whole) > 4 && strcmp(whole + strlen(whole) - 4, " the") == 0, "%s", whole);
    PD_STATUS(prediff_infill(w.c, "ab [MASK:4] the", NULL, part, 3, &w.e), &w.e, ERR_LIMIT, BUFFER_SIZE);
    PD_STATUS(prediff_infill(w.c, "ab the", NULL, whole, sizeof whole, &w.e), &w.e, ERR_ARG, TEMPLATE);
    memset(&d, 0, sizeof d);
    d.samples = 2;
    PD_STATUS(prediff_write(w.c, "ab", 8, &d, whole, sizeof whole, &w.e), &w.e, ERR_ARG, SAMPLES);
    PD_STATUS(prediff_infill(w.c, "ab [MASK:4]", &d, whole, sizeof whole, &w.e), &w.e, ERR_ARG, SAMPLES);
    d.samples = 0;
    d.n_steps = 8;
    d.on_step = stop_at_three;
    PD_STATUS(prediff_write(w.c, "ab", 8, &d, part, sizeof part, &w.e), &w.e, ERR_CANCELLED, STOPPED);
    PD_CHECK(strlen(part) > 0);                     /* what three steps revealed */
    close_world(&w);
}

static void test_a35_copy(void) {
    pd_gguf *g = pd_base(BASE_BPE);
    size_t n;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_model *copied = pd_open_bytes(b, n);
    prediff_container c;
    memset(b, 0xEE, n);
    free(b);
    pd_gguf_free(g);
    prediff_container_get(copied, &c);
    PD_CHECK(c.version == 3 && c.n_keys > 10 && c.alignment == 32 && memcmp(c.keys[0].name.bytes, "general.architecture", 20) == 0);
    prediff_model_close(copied);
}

static void test_a40_version_and_names(void) {
    int i, k;
    PD_CHECK(prediff_version() == PREDIFF_VERSION);
    PD_CHECK(strcmp(prediff_status_name(PREDIFF_ERR_FORMAT), "FORMAT") == 0 && strcmp(prediff_status_name((prediff_status)99), "?") == 0);
    PD_CHECK(strcmp(prediff_item_name(PREDIFF_ITEM_BUG), "BUG") == 0 && strcmp(prediff_item_name(PREDIFF_ITEM_COUNT), "?") == 0);
    PD_CHECK(strcmp(prediff_type_name(PREDIFF_Q8_0), "Q8_0") == 0 && strcmp(prediff_type_name(12345), "?") == 0);
    for (i = 0; i < PREDIFF_ITEM_COUNT; i++) {
        PD_CHECK(strlen(prediff_item_text((prediff_item)i)) > 5);
        for (k = 0; k < i; k++) PD_CHECK(strcmp(prediff_item_name((prediff_item)i), prediff_item_name((prediff_item)k)) != 0);
    }
}

static uint32_t random_state;
static size_t random_below(size_t n) { random_state = random_state * 1664525u + 1013904223u; return (random_state >> 8) % n; }

static int swallow(void *user, const void *bytes, size_t n) { (void)user; (void)bytes; (void)n; return 0; }

static void test_save_arguments(void) {
    prediff_save_desc d;
    prediff_tensor t;
    prediff_error e;
    static const char name[66] = "a tensor name that is longer than the sixty-four bytes of a name";
    float big[32], out[256];
    uint32_t store = PREDIFF_F16;
    size_t i;
    for (i = 0; i < 32; i++) big[i] = 1e30f;
    memset(&d, 0, sizeof d); memset(&t, 0, sizeof t);
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, NULL_ARGUMENT);
    d.write = swallow;
    d.tensors = &t; d.n_tensors = 1; d.store = &store;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, NULL_ARGUMENT);
    t.data = (const uint8_t *)big; t.data_size = sizeof big; t.name.bytes = name; t.name.n = 1; t.n_dims = 1;
    t.dims[0] = 32; t.dims[1] = t.dims[2] = t.dims[3] = 1;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_FORMAT, ENCODING);
    store = PREDIFF_F32;
    PD_STATUS(prediff_save(&d, &e), &e, OK, NONE);
    d.alignment = 24; PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, GGUF_ALIGNMENT); d.alignment = 0;
    t.name.n = 65;    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, TENSOR_NAME); t.name.n = 1;
    store = PREDIFF_Q4_K; PD_STATUS(prediff_save(&d, &e), &e, ERR_UNSUPPORTED, TENSOR_TYPE);
    store = 77;           PD_STATUS(prediff_save(&d, &e), &e, ERR_UNSUPPORTED, TENSOR_TYPE);
    store = PREDIFF_Q8_0; t.dims[0] = 16; t.data_size = 64;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, TENSOR_BLOCK);
    t.dims[0] = 32; t.data_size = 100; store = PREDIFF_F32;
    PD_CHECK(prediff_save(&d, &e) == PREDIFF_ERR_ARG);                          /* fewer bytes than the shape needs */
    t.data_size = sizeof big; t.n_dims = 5;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, TENSOR_DIMS);
    PD_STATUS(prediff_dequantize_row(PREDIFF_Q8_0, big, out, 33, &e), &e, ERR_ARG, TENSOR_BLOCK);
    PD_STATUS(prediff_dequantize_row(16, big, out, 256, &e), &e, ERR_UNSUPPORTED, TENSOR_TYPE);
}

/* Rows by callback: what is given, what was asked for, and where giving or writing fails. */
typedef struct row_source {
    const float *values;               /* of tensor 1; the others have data */
    size_t width, rows, asked, wrong, fail_row, room, broken;
    pd_bytes out;
} row_source;

static int give_row(void *user, size_t tensor, size_t row, float *out) {
    row_source *s = (row_source *)user;
    s->wrong += tensor != 1 || row != s->asked || s->broken;     /* each once, in order, none after a failed write */
    s->asked++;
    if (row == s->fail_row) return 7;
    if (row < s->rows) memcpy(out, s->values + row * s->width, s->width * sizeof *out);
    return 0;
}

static int keep_bytes(void *user, const void *bytes, size_t n) {
    row_source *s = (row_source *)user;
    if (n > s->room) { s->broken = 1; return 1; }
    s->room -= n;
    pd_put(&s->out, bytes, n);
    return 0;
}

static prediff_status save_to(const prediff_save_desc *given, row_source *s, prediff_error *e) {
    prediff_save_desc d = *given;
    s->out.n = s->asked = s->wrong = s->broken = 0;
    d.write = keep_bytes; d.user = s;
    return prediff_save(&d, e);
}

/* A file of three tensors, the middle one [2][3][64] once with data, once by rows: the same bytes in every type. */
static void test_save_rows(void) {
    enum { WIDTH = 64, ROWS = 6 };
    static const uint32_t types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0, PREDIFF_Q4_0 };
    static const char *const names[] = { "a", "b.weight", "c" };
    float x[WIDTH * ROWS];
    uint8_t file[4 * WIDTH * ROWS];
    prediff_tensor t[3], given;
    uint32_t store[3];
    prediff_save_desc d;
    prediff_error e;
    row_source s;
    pd_bytes want = { NULL, 0, 0 };
    size_t i, k, n;
    random_state = 11;
    for (i = 0; i < WIDTH * ROWS; i++) {
        uint32_t u;
        x[i] = (float)random_below(20000) / 5000.0f - 2.0f;
        memcpy(&u, &x[i], 4);
        pd_set(file + 4 * i, 4, u);
    }
    memset(&d, 0, sizeof d); memset(&s, 0, sizeof s); memset(t, 0, sizeof t);
    for (i = 0; i < 3; i++) {
        t[i].name.bytes = names[i]; t[i].name.n = strlen(names[i]); t[i].type = PREDIFF_F32;
        t[i].data = file; t[i].data_size = 4 * WIDTH; t[i].n_dims = 1; t[i].dims[0] = WIDTH;
        t[i].dims[1] = t[i].dims[2] = t[i].dims[3] = 1;
        store[i] = PREDIFF_F32;
    }
    t[1].n_dims = 3; t[1].dims[1] = 3; t[1].dims[2] = 2; t[1].data_size = sizeof file;
    given = t[1];
    s.values = x; s.width = WIDTH; s.rows = ROWS;
    d.tensors = t; d.n_tensors = 3; d.store = store;
    for (k = 0; k < 5; k++) {
        store[1] = types[k];
        t[1] = given; d.row = NULL; s.fail_row = s.room = SIZE_MAX;
        PD_STATUS(save_to(&d, &s, &e), &e, OK, NONE);
        want.n = 0; pd_put(&want, s.out.p, s.out.n);
        d.row = give_row;                                       /* data wins where there is some */
        PD_STATUS(save_to(&d, &s, &e), &e, OK, NONE);
        PD_CHECK(s.asked == 0 && s.out.n == want.n && memcmp(s.out.p, want.p, want.n) == 0);
        t[1].data = NULL; t[1].data_size = k & 1 ? 12345 : 0;   /* the size says nothing without data */
        PD_STATUS(save_to(&d, &s, &e), &e, OK, NONE);
        PD_CHECKF(s.asked == ROWS && s.wrong == 0, "%s: %u rows asked for, %u out of turn", prediff_type_name(types[k]), (unsigned)s.asked, (unsigned)s.wrong);
        PD_CHECKF(s.out.n == want.n && memcmp(s.out.p, want.p, want.n) == 0, "%s: %u bytes by rows are not the %u of the data", prediff_type_name(types[k]), (unsigned)s.out.n, (unsigned)want.n);
        d.store = NULL; t[1].type = types[k];                   /* the tensor's own type says the same */
        t[0].type = t[2].type = PREDIFF_F32;
        PD_STATUS(save_to(&d, &s, &e), &e, OK, NONE);
        PD_CHECK(s.out.n == want.n && memcmp(s.out.p, want.p, want.n) == 0);
        d.store = store;
        for (i = 0; i < ROWS; i++) {
            s.fail_row = i;
            PD_STATUS(save_to(&d, &s, &e), &e, ERR_IO, FILE_READ);
            PD_CHECKF(e.offset == i && s.asked == i + 1, "row %u fails: offset %u, %u rows asked for", (unsigned)i, (unsigned)e.offset, (unsigned)s.asked);
        }
        s.fail_row = SIZE_MAX;
        for (n = 0; n < want.n; n += 41) {
            s.room = n;
            PD_STATUS(save_to(&d, &s, &e), &e, ERR_IO, FILE_WRITE);
            PD_CHECK(s.wrong == 0 && s.out.n <= n && memcmp(s.out.p, want.p, s.out.n) == 0);
        }
        s.room = SIZE_MAX;
    }
    x[3 * WIDTH + 5] = 1e30f;                                   /* too large for a half, and for a scale that is one */
    for (k = 1; k < 5; k++) {
        store[1] = types[k];
        if (types[k] == PREDIFF_BF16) continue;
        PD_STATUS(save_to(&d, &s, &e), &e, ERR_FORMAT, ENCODING);
        PD_CHECK(e.offset == 3);
    }
    store[1] = PREDIFF_Q4_K; t[1].type = PREDIFF_F32; t[1].dims[0] = 256;
    PD_STATUS(save_to(&d, &s, &e), &e, ERR_UNSUPPORTED, TENSOR_TYPE);
    t[1].type = PREDIFF_Q4_K;                                   /* rows are floats, whatever the type */
    PD_STATUS(save_to(&d, &s, &e), &e, ERR_UNSUPPORTED, TENSOR_TYPE);
    PD_CHECK(s.asked == 0 && s.out.n == 0);
    store[1] = PREDIFF_Q8_0; t[1].dims[0] = 48;
    PD_STATUS(save_to(&d, &s, &e), &e, ERR_ARG, TENSOR_BLOCK);
    t[1].dims[0] = WIDTH; d.row = NULL;
    PD_STATUS(save_to(&d, &s, &e), &e, ERR_ARG, NULL_ARGUMENT);
    free(s.out.p); free(want.p);
}

/* -- frequencies -- */

/* Chi-square of counts against probabilities; the caller knows the degrees of freedom. */
static double chi_square(const double *count, const double *p, size_t n, double total) {
    double sum = 0;
    size_t i;
    for (i = 0; i < n; i++) if (p[i] > 0) sum += (count[i] - total * p[i]) * (count[i] - total * p[i]) / (total * p[i]);
    return sum;
}

/* Draws 64 positions under many seeds from three tokens with probabilities .5 .3 .2 and compares with `want`. */
static void expect_frequencies(const prediff_generate_desc *given, const double want[3], const char *what) {
    static float row[1][V];
    world w = open_world(NULL, 1);
    prediff_generate_desc d = *given;
    table hook;
    double count[3] = { 0, 0, 0 }, pairs[9] = { 0 }, p2[9], total = 0, n_pairs = 0;
    int32_t t[64], one = 1;
    size_t i, k;
    for (i = 0; i < V; i++) row[0][i] = NO;
    row[0][40] = logf(0.5f); row[0][41] = logf(0.3f); row[0][42] = logf(0.2f);
    hook.row = row; hook.rows = 1; hook.calls = 0;
    d.logit_hook = table_hook; d.user = &hook;
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, OK, NONE);
    for (k = 0; k < 40; k++) {
        d.seed = 1000 * (uint64_t)pd_seed + k;
        all_masks(t, 64);
        if (!PD_STATUS(prediff_generate(w.c, t, 64, &d, NULL, &w.e), &w.e, OK, NONE)) break;
        for (i = 0; i < 64; i++) {
            if (!PD_CHECKF(t[i] >= 40 && t[i] < 43, "%s: token %d", what, (int)t[i])) break;
            count[t[i] - 40]++; total++;
            if (i) { pairs[(t[i - 1] - 40) * 3 + t[i] - 40]++; n_pairs++; }
        }
    }
    for (i = 0; i < 9; i++) p2[i] = want[i / 3] * want[i % 3];
    for (i = 0; i < 3; i++) if (!(want[i] > 0)) PD_CHECKF(count[i] <= 0, "%s: %g draws of a token that was filtered", what, count[i]);
    PD_CHECKF(chi_square(count, want, 3, total) < 21, "%s: %g %g %g of %g", what, count[0], count[1], count[2], total);     /* p = 3e-5 at 2 degrees */
    PD_CHECKF(chi_square(pairs, p2, 9, n_pairs) < 36, "%s: neighbours depend on each other", what);                          /* p = 2e-5 at 8 degrees */
    close_world(&w);
}

static void test_frequencies(void) {
    static const double plain[3] = { 0.5, 0.3, 0.2 }, two[3] = { 0.625, 0.375, 0 }, first[3] = { 1, 0, 0 }, hot[3] = { 0.414, 0.320, 0.266 };
    double cold[3];
    prediff_generate_desc d;
    zero_desc(&d);
    d.temperature = 1;
    cold[0] = 0.25 / 0.38; cold[1] = 0.09 / 0.38; cold[2] = 0.04 / 0.38;
    expect_frequencies(&d, plain, "temperature 1");
    d.order = PREDIFF_RANDOM;           expect_frequencies(&d, plain, "random order"); d.order = PREDIFF_CONFIDENCE;
    d.sampler = PREDIFF_ANCESTRAL; d.n_steps = 64; expect_frequencies(&d, plain, "ancestral"); d.n_steps = 0;
    d.sampler = PREDIFF_FIRST_HITTING;  expect_frequencies(&d, plain, "first hitting");
    d.sampler = PREDIFF_CAUSAL_DECODING; expect_frequencies(&d, plain, "causal decoding");
    d.sampler = PREDIFF_CAU; d.block = 10; expect_frequencies(&d, plain, "blocks"); d.block = 0;
    d.top_k = 2;         expect_frequencies(&d, two, "top_k 2");
    d.top_k = 1;         expect_frequencies(&d, first, "top_k 1");
    d.top_k = SIZE_MAX;  expect_frequencies(&d, plain, "top_k SIZE_MAX"); d.top_k = 0;
    d.top_p = 0.6;       expect_frequencies(&d, two, "top_p 0.6");
    d.top_p = 1e-12;     expect_frequencies(&d, first, "top_p 1e-12");          /* A20: one is always kept */
    d.top_p = 1;         expect_frequencies(&d, plain, "top_p 1"); d.top_p = 0;
    d.temperature = 0.5; expect_frequencies(&d, cold, "temperature 0.5");
    d.temperature = 2;   expect_frequencies(&d, hot, "temperature 2");
    d.temperature = 0;   expect_frequencies(&d, first, "temperature 0");
}

/* -- properties over lengths, blocks, settings -- */

typedef struct watch { size_t revealed, steps, before, wrong; prediff_schedule schedule; int scheduled; size_t masks; } watch;
static int watch_step(void *user, const prediff_step_info *info) {
    watch *w = (watch *)user;
    w->steps++;
    w->revealed += info->n_revealed;
    w->wrong += info->n_masks_left + w->revealed != w->masks;                   /* every reveal is told */
    if (w->scheduled) w->wrong += info->n_revealed != prediff_unmask_count(w->schedule, w->masks, w->before, info->step, info->n_steps);
    w->before = info->n_masks_left;
    return 0;
}

/* One generation of random shape; everything that must hold is checked. */
static void one_shape(world *w, size_t n, size_t block) {
    prediff_generate_desc d;
    prediff_result r;
    watch seen;
    int32_t t[MAX_T], was[MAX_T], at[MAX_T];
    float logprob[MAX_T];
    size_t i, masks, prompt = prediff_prompt_length(w->c), given = random_below(3) ? random_below(n) : 0;
    double sum = 0;
    zero_desc(&d); memset(&seen, 0, sizeof seen);
    for (i = 0; i < n; i++) t[i] = block ? i < given ? (int32_t)random_below(V) : PREDIFF_MASK : random_below(4) ? PREDIFF_MASK : (int32_t)random_below(V);
    memcpy(was, t, sizeof was);
    masks = count_masks(t, n);
    d.block = block; d.ignore_eos = 1; d.seed = random_below(1000);
    d.n_steps = random_below(12);
    d.schedule = seen.schedule = (prediff_schedule)random_below(6);
    d.order = (prediff_order)random_below(4);
    d.temperature = random_below(2) ? 0.8 : 0;
    if (!block && random_below(4) == 0) d.window = 1 + random_below(n);
    if (random_below(5) == 0) d.threshold = 0.01;
    else if (random_below(5) == 0) d.entropy_bound = 3;
    else seen.scheduled = !block && masks > 0;
    d.logprob = logprob; d.revealed_at = at; d.on_step = watch_step; d.user = &seen;
    seen.masks = seen.before = masks;
    if (!PD_STATUS(prediff_generate(w->c, t, n, &d, &r, &w->e), &w->e, OK, NONE)) return;
    PD_CHECKF(count_masks(t, n) == 0 && valid(t, n) && r.n_masks_left == 0, "n %u block %u: masks left", (unsigned)n, (unsigned)block);
    PD_CHECKF(r.n_emitted == masks && seen.revealed == masks && seen.wrong == 0 && seen.steps == r.n_steps, "n %u block %u: counters", (unsigned)n, (unsigned)block);
    PD_CHECK(prediff_prompt_length(w->c) == prompt);
    for (i = 0; i < n; i++) {
        int fixed = was[i] != PREDIFF_MASK;
        PD_CHECKF(!fixed || t[i] == was[i], "a given token changed");
        PD_CHECKF(fixed ? at[i] == 0 : at[i] >= 1 && (size_t)at[i] <= r.n_steps, "revealed_at[%u] = %d", (unsigned)i, (int)at[i]);
        PD_CHECKF(fixed ? logprob[i] >= 0 && logprob[i] <= 0 : logprob[i] <= 0 && logprob[i] > -100, "logprob[%u] = %g", (unsigned)i, (double)logprob[i]);
        sum += (double)logprob[i];
    }
    PD_NEAR(sum, r.logprob, 1e-4);
}

static void test_lengths_and_blocks(void) {
    world w = open_world(NULL, 1);
    int32_t prompt[5] = { 10, 20, 30, 40, 50 };
    size_t n, block, all = getenv("PD_LONG") != NULL;
    random_state = pd_seed;
    PD_STATUS(prediff_prompt(w.c, prompt, 5, NULL, &w.e), &w.e, OK, NONE);
    for (n = 1; n <= 70; n++)
        for (block = 0; block <= 33; block++)
            if (all || random_below(12) == 0 || (block == 0 && n % 3 == 0)) one_shape(&w, n, block);
    close_world(&w);
}

/* A host's job system that runs jobs backwards, or all but the last one late, changes nothing. */
static void backwards(void *user, size_t n, void (*job)(void *arg, size_t i), void *arg) { ++*(size_t *)user; while (n-- > 0) job(arg, n); }

static void test_a25_seeds_and_threads(void) {
    world w = open_world(NULL, 1);
    prediff_context_desc cd;
    prediff_context *c;
    prediff_generate_desc d;
    int32_t a[32], b[32];
    size_t calls = 0;
    memset(&cd, 0, sizeof cd); zero_desc(&d);
    d.temperature = 1;
    all_masks(a, 32); all_masks(b, 32);
    PD_STATUS(prediff_generate(w.c, a, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    d.seed = 1;
    PD_STATUS(prediff_generate(w.c, b, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECKF(memcmp(a, b, sizeof a) != 0, "seeds 0 and 1 give the same tokens");
    d.seed = 0;
    all_masks(b, 32);
    PD_STATUS(prediff_generate(w.c, b, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(memcmp(a, b, sizeof a) == 0);
    cd.n_threads = 5; cd.parallel_for = backwards; cd.parallel_user = &calls;
    PD_STATUS(prediff_context_create(&c, w.m, &cd, &w.e), &w.e, OK, NONE);
    all_masks(b, 32);
    PD_STATUS(prediff_generate(c, b, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECKF(memcmp(a, b, sizeof a) == 0, "five threads, backwards");
    PD_CHECK(calls > 0 || prediff_context_threads(c) == 5);
    prediff_context_destroy(c);
    close_world(&w);
}

/* -- public faults, replayed -- */

static void set_certain(float *row, int token) { size_t i; for (i = 0; i < V; i++) row[i] = NO; row[token] = 0; }

/* 96 tokens asked, the text ends early: only what was written counts. And a text that ends at once says so. */
static void test_replay_1_2_early_end(void) {
    static float rows[96][V];
    size_t end, i;
    for (end = 0; end <= 10; end += 5) {
        world w = open_world(NULL, 1);
        prediff_generate_desc d;
        prediff_result r;
        table hook;
        int32_t t[96];
        for (i = 0; i < 96; i++) set_certain(rows[i], i == end ? EOS : 65);
        hook.row = (const float (*)[V])rows; hook.rows = 96; hook.calls = 0;
        zero_desc(&d);
        d.logit_hook = table_hook; d.user = &hook; d.window = 1;
        all_masks(t, 96);
        PD_STATUS(prediff_generate(w.c, t, 96, &d, &r, &w.e), &w.e, OK, NONE);
        PD_CHECKF(r.n_emitted == end + 1 && r.ended == PREDIFF_ENDED_EOS && r.n_masks_left == 0, "%u emitted, not %u", (unsigned)r.n_emitted, (unsigned)end + 1);
        for (i = 0; i < 96; i++) PD_CHECK(t[i] == (i < end ? 65 : EOS));
        close_world(&w);
    }
}

/* A prompt that straddles a block border: 33 tokens, blocks of 32. */
static void test_replay_4_straddled_block(void) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    prediff_result r;
    int32_t prompt[33], t[64], u[64];
    size_t i;
    for (i = 0; i < 33; i++) prompt[i] = (int32_t)(60 + i);
    zero_desc(&d);
    d.block = 32; d.ignore_eos = 1;
    all_masks(t, 64);
    PD_STATUS(prediff_prompt(w.c, prompt, 33, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_generate(w.c, t, 64, &d, &r, &w.e), &w.e, OK, NONE);
    PD_CHECK(count_masks(t, 64) == 0 && valid(t, 64) && r.n_emitted == 64);
    memset(u, 0, sizeof u);
    all_masks(u, 32);                              /* by hand: the first block, committed, then the second */
    d.block = 0;
    PD_STATUS(prediff_generate(w.c, u, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_prompt(w.c, u, 32, NULL, &w.e), &w.e, OK, NONE);
    all_masks(u + 32, 32);
    PD_STATUS(prediff_generate(w.c, u + 32, 32, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECKF(memcmp(t, u, sizeof t) == 0, "blocks differ from blocks by hand");
    close_world(&w);
}

/* Two rows, five tokens, blocks of three, three steps, threshold 2: row 0 prefers 5, but 2 (the end here) at its last place of
   the first block and 7 later; row 1 always 6. */
typedef struct rows_mock { int end; size_t samples_seen[2]; } rows_mock;
static void rows_hook(void *user, size_t sample, size_t position, float *logits, size_t n) {
    rows_mock *m = (rows_mock *)user;
    (void)n;
    m->samples_seen[sample & 1]++;
    set_certain(logits, sample ? 6 : position < 2 ? 5 : position == 2 ? m->end : 7);
}

static void test_replay_5_rows_end_alone(void) {
    world w = open_world(NULL, 2);
    prediff_generate_desc d;
    prediff_result r;
    rows_mock mock;
    int32_t t[10], one = 10;
    memset(&mock, 0, sizeof mock);
    mock.end = EOS;
    zero_desc(&d);
    d.samples = 2; d.block = 3; d.n_steps = 3; d.threshold = 2.0; d.logit_hook = rows_hook; d.user = &mock;
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, OK, NONE);
    all_masks(t, 10);
    PD_STATUS(prediff_generate(w.c, t, 5, &d, &r, &w.e), &w.e, OK, NONE);
    PD_CHECKF(t[0] == 5 && t[1] == 5 && t[2] == EOS && t[3] == EOS && t[4] == EOS, "row 0: %d %d %d %d %d", (int)t[0], (int)t[1], (int)t[2], (int)t[3], (int)t[4]);
    PD_CHECKF(t[5] == 6 && t[6] == 6 && t[7] == 6 && t[8] == 6 && t[9] == 6, "row 1: %d %d %d %d %d", (int)t[5], (int)t[6], (int)t[7], (int)t[8], (int)t[9]);
    PD_CHECKF(r.n_emitted == 3 + 5, "%u emitted", (unsigned)r.n_emitted);
    PD_CHECK(mock.samples_seen[0] > 0 && mock.samples_seen[1] > 0);
    close_world(&w);
}

/* Batched rows with log-probabilities: one value a committed token, the same as alone. */
static void test_replay_7_logprobs(void) {
    world w = open_world(NULL, 3);
    prediff_generate_desc d;
    prediff_result r, alone;
    int32_t t[3 * 12], one[12];
    float batch[3 * 12], single[12];
    size_t i, s;
    zero_desc(&d);
    d.samples = 3; d.temperature = 1; d.seed = 40; d.logprob = batch; d.ignore_eos = 1;
    all_masks(t, 36);
    t[13] = 77;                                    /* row 1 has a given token */
    PD_STATUS(prediff_generate(w.c, t, 12, &d, &r, &w.e), &w.e, OK, NONE);
    for (s = 0; s < 3; s++) {
        d.samples = 1; d.seed = 40 + s; d.logprob = single;
        all_masks(one, 12);
        if (s == 1) one[1] = 77;
        PD_STATUS(prediff_generate(w.c, one, 12, &d, &alone, &w.e), &w.e, OK, NONE);
        PD_CHECKF(memcmp(one, t + 12 * s, sizeof one) == 0 && memcmp(single, batch + 12 * s, sizeof single) == 0, "row %u is not what it is alone", (unsigned)s);
        for (i = 0; i < 12; i++) PD_CHECK(s == 1 && i == 1 ? single[i] >= 0 && single[i] <= 0 : single[i] < 0);
    }
    close_world(&w);
}

/* An embedding wider than the tokenizer: rows beyond it are never made, whatever their logits. */
static void test_replay_9_padded_vocabulary(void) {
    pd_gguf *g = pd_base(BASE_SPM);
    size_t n, i, k;
    uint8_t *b = pd_gguf_write(g, &n);
    static float wish[1][272];
    prediff_model *m = pd_open_bytes(b, n);
    prediff_model_info info;
    prediff_context_desc cd;
    prediff_context *c;
    prediff_generate_desc d;
    prediff_error e;
    table hook;
    int32_t t[8], one = 1;
    prediff_model_get_info(m, &info);
    PD_CHECK(info.n_vocab == 272 && info.n_tokens == 267);
    for (i = 267; i < 272; i++) wish[0][i] = 1e20f;
    hook.row = (const float (*)[V])(const void *)wish; hook.rows = 1; hook.calls = 0;
    memset(&cd, 0, sizeof cd); zero_desc(&d);
    d.logit_hook = table_hook; d.user = &hook;
    PD_STATUS(prediff_context_create(&c, m, &cd, &e), &e, OK, NONE);
    PD_STATUS(prediff_prompt(c, &one, 1, NULL, &e), &e, OK, NONE);
    for (k = 0; k < 5; k++) {
        d.temperature = k % 2 ? 1 : 0;
        d.sampler = (prediff_sampler)(k < 4 ? k : 3);
        all_masks(t, 8);
        PD_STATUS(prediff_generate(c, t, 8, &d, NULL, &e), &e, OK, NONE);
        for (i = 0; i < 8; i++) PD_CHECKF(t[i] >= 0 && t[i] < 267, "sampler %u made %d", (unsigned)k, (int)t[i]);
    }
    prediff_context_destroy(c);
    prediff_model_close(m);
    free(b);
    pd_gguf_free(g);
}

/* Four tokens a step from a model that always wants the same word: the guard keeps every pair apart, but for tokens revealed
   together in the last step (the contract says so). */
static void test_replay_11_repetition(void) {
    static float row[1][V];
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    prediff_result r;
    table hook;
    int32_t t[32], at[32];
    size_t i, k, repeats = 0, same = 0, last;
    for (i = 0; i < V; i++) row[0][i] = -0.05f * (float)i;
    hook.row = row; hook.rows = 1; hook.calls = 0;
    zero_desc(&d);
    d.logit_hook = table_hook; d.user = &hook; d.no_repeat = 2; d.n_steps = 8; d.schedule = PREDIFF_LINEAR; d.ignore_eos = 1; d.revealed_at = at;
    all_masks(t, 32);
    PD_STATUS(prediff_generate(w.c, t, 32, &d, &r, &w.e), &w.e, OK, NONE);
    last = r.n_steps;
    for (i = 0; i + 1 < 32; i++)
        for (k = i + 1; k + 1 < 32; k++) {
            int together = ((size_t)at[i] == last || (size_t)at[i + 1] == last) && ((size_t)at[k] == last || (size_t)at[k + 1] == last);
            repeats += !together && t[i] == t[k] && t[i + 1] == t[k + 1];
        }
    PD_CHECKF(repeats == 0, "%u pairs come twice", (unsigned)repeats);
    d.n_steps = 32;                                /* one token a step: no exception is left */
    all_masks(t, 32);
    PD_STATUS(prediff_generate(w.c, t, 32, &d, &r, &w.e), &w.e, OK, NONE);
    for (i = 0; i + 1 < 32; i++) for (k = i + 1; k + 1 < 32; k++) same += t[i] == t[k] && t[i + 1] == t[k + 1];
    PD_CHECKF(same == 0, "one token a step: %u pairs come twice", (unsigned)same);
    close_world(&w);
}

/* Shifted logits and a cache: the first target row reads the last prompt row, however the prompt came to be there. */
static void test_replay_12_shift_and_cache(void) {
    pd_tiny tiny;
    world w;
    prediff_forward_desc f;
    static float at_once[4 * V], after[4 * V], prompt_logits[20 * V];
    int32_t prompt[20], t[4], ids[2][4];
    size_t i;
    memset(&tiny, 0, sizeof tiny); memset(&f, 0, sizeof f);
    tiny.shift = 1; tiny.no_rate = 1; tiny.no_selfcond = 1;
    w = open_world(&tiny, 1);
    for (i = 0; i < 20; i++) prompt[i] = (int32_t)(33 + 7 * i);
    all_masks(t, 4);
    f.target = t; f.n = 4; f.logits = at_once;
    PD_STATUS(prediff_prompt(w.c, prompt, 20, prompt_logits, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_forward(w.c, &f, &w.e), &w.e, OK, NONE);
    PD_CHECKF(memcmp(at_once, prompt_logits + 19 * V, V * sizeof(float)) == 0, "the first target row is not the last prompt row's prediction");
    memcpy(ids[0], t, sizeof t);
    PD_STATUS(prediff_generate(w.c, ids[0], 4, NULL, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_rewind(w.c, 7, &w.e), &w.e, OK, NONE);
    for (i = 7; i < 20; i++) PD_STATUS(prediff_prompt(w.c, prompt + i, 1, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_prompt(w.c, prompt, 3, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_rewind(w.c, 20, &w.e), &w.e, OK, NONE);
    f.logits = after;
    PD_STATUS(prediff_forward(w.c, &f, &w.e), &w.e, OK, NONE);
    PD_CHECKF(memcmp(at_once, after, sizeof after) == 0, "pieces and rewinds change the logits");
    memcpy(ids[1], t, sizeof t);
    PD_STATUS(prediff_generate(w.c, ids[1], 4, NULL, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(memcmp(ids[0], ids[1], sizeof ids[0]) == 0);
    close_world(&w);
}

/* -- floating-point modes, stacks, threads -- */

static void run_any_mode(const char *what) {
    static const prediff_sampler samplers[] = { PREDIFF_CAU, PREDIFF_ANCESTRAL, PREDIFF_FIRST_HITTING, PREDIFF_CAUSAL_DECODING };
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    int32_t t[24], one = 1;
    size_t i;
    PD_STATUS(prediff_prompt(w.c, &one, 1, NULL, &w.e), &w.e, OK, NONE);
    for (i = 0; i < 8; i++) {
        prediff_status s;
        zero_desc(&d);
        d.sampler = samplers[i / 2]; d.temperature = i % 2 ? 0.9 : 0; d.top_p = 0.9; d.top_k = 50; d.seed = i;
        all_masks(t, 24);
        s = prediff_generate(w.c, t, 24, &d, NULL, &w.e);
        PD_CHECKF(s == PREDIFF_OK && valid(t, 24) && count_masks(t, 24) == 0, "%s, run %u: %s", what, (unsigned)i, s ? w.e.message : "ids");
    }
    close_world(&w);
}

static void test_rounding_modes(void) {
    static const int modes[] = {
#ifdef FE_DOWNWARD
        FE_DOWNWARD,
#endif
#ifdef FE_UPWARD
        FE_UPWARD,
#endif
#ifdef FE_TOWARDZERO
        FE_TOWARDZERO,
#endif
        FE_TONEAREST };
    size_t i;
    for (i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (fesetround(modes[i])) continue;
        run_any_mode("rounding");
        PD_CHECKF(fegetround() == modes[i], "the rounding mode was changed");
    }
    fesetround(FE_TONEAREST);
}

static void test_flush_to_zero(void) {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);                   /* flush to zero, denormals are zero */
    run_any_mode("flush to zero");
    PD_CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(before);
#else
    pd_skip("no SSE2 control word here");
#endif
}

#ifdef PD_FAST_MATH
/* Under -ffast-math not-a-number cannot be seen by comparing: no status is promised, but ids stay ids and loops end. */
static void test_fast_math(void) {
    static float rows[3][V];
    world w = open_world(NULL, 1);
    table hook;
    size_t i, k;
    run_any_mode("fast math");
    for (i = 0; i < V; i++) { rows[0][i] = NOT_A_NUMBER; rows[1][i] = NO; rows[2][i] = i % 2 ? HUGE_VALF : NOT_A_NUMBER; }
    for (k = 0; k < 12; k++) {
        prediff_generate_desc d;
        int32_t t[6];
        zero_desc(&d);
        hook.row = (const float (*)[V])(rows + k % 3); hook.rows = 1; hook.calls = 0;
        d.logit_hook = table_hook; d.user = &hook; d.temperature = k < 6 ? 0 : 1; d.top_p = 0.5; d.order = (prediff_order)(k % 4);
        all_masks(t, 6);
        prediff_generate(w.c, t, 6, &d, NULL, &w.e);
        PD_CHECK(valid(t, 6));
    }
    close_world(&w);
}
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef PD_PTHREAD
typedef struct lane { const uint8_t *bytes; size_t n; const prediff_model *m; prediff_context *c; uint64_t seed; int32_t t[24]; int ok; } lane;

/* Opens, encodes, generates: all that a small device's task would do. */
static void *small_stack(void *arg) {
    lane *j = (lane *)arg;
    prediff_model_desc d;
    prediff_context_desc cd;
    prediff_model *m;
    prediff_context *c;
    prediff_generate_desc g;
    int32_t ids[8];
    size_t n;
    memset(&d, 0, sizeof d); memset(&cd, 0, sizeof cd); zero_desc(&g);
    d.data = j->bytes; d.size = j->n; g.temperature = 1; g.top_p = 0.9; g.no_repeat = 3;
    all_masks(j->t, 24);
    if (prediff_model_open(&m, &d, NULL)) return NULL;
    if (prediff_context_create(&c, m, &cd, NULL) == PREDIFF_OK) {
        j->ok = prediff_encode(m, "the ab", 6, 0, ids, 8, &n, NULL) == PREDIFF_OK && prediff_prompt(c, ids, n, NULL, NULL) == PREDIFF_OK &&
                prediff_generate(c, j->t, 24, &g, NULL, NULL) == PREDIFF_OK;
        prediff_context_destroy(c);
    }
    prediff_model_close(m);
    return NULL;
}

static void *generate_often(void *arg) {
    lane *j = (lane *)arg;
    int i;
    j->ok = 1;
    for (i = 0; i < 10; i++) {
        prediff_context_desc cd;
        prediff_generate_desc g;
        prediff_context *c = j->c;
        int32_t ids[16];
        size_t n;
        memset(&cd, 0, sizeof cd); zero_desc(&g);
        g.temperature = 1; g.seed = j->seed;
        all_masks(j->t, 24);
        if (!c && prediff_context_create(&c, j->m, &cd, NULL)) { j->ok = 0; return NULL; }
        j->ok &= prediff_generate(c, j->t, 24, &g, NULL, NULL) == PREDIFF_OK;
        j->ok &= prediff_encode(j->m, "the ab", 6, 0, ids, 16, &n, NULL) == PREDIFF_OK;
        if (!j->c) prediff_context_destroy(c);
    }
    return NULL;
}
#endif

static void test_small_stack(void) {
#if defined(PD_PTHREAD) && !defined(SANITIZED)
    pd_gguf *g = pd_base(BASE_BPE);
    pthread_attr_t a;
    pthread_t thread;
    lane j;
    memset(&j, 0, sizeof j);
    j.bytes = pd_gguf_write(g, &j.n);
    pthread_attr_init(&a);
    if (pthread_attr_setstacksize(&a, 32768) || pthread_create(&thread, &a, small_stack, &j)) pd_skip("no thread with 32 kB of stack here");
    else { pthread_join(thread, NULL); PD_CHECK(j.ok && count_masks(j.t, 24) == 0); }
    pthread_attr_destroy(&a);
    free((void *)(uintptr_t)j.bytes);
    pd_gguf_free(g);
#else
    pd_skip("no POSIX threads, or a sanitiser that needs more stack");
#endif
}

static void test_two_threads(void) {
#ifdef PD_PTHREAD
    world w = open_world(NULL, 1);
    lane alone[3], j[3];
    pthread_t thread[3];
    size_t i;
    memset(alone, 0, sizeof alone); memset(j, 0, sizeof j);
    for (i = 0; i < 3; i++) {
        alone[i].m = j[i].m = w.m;
        alone[i].seed = j[i].seed = i;
        generate_often(&alone[i]);
    }
    j[0].c = w.c;                                  /* made by this thread, used by that one */
    for (i = 0; i < 3; i++) PD_CHECK(pthread_create(&thread[i], NULL, generate_often, &j[i]) == 0);
    for (i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    for (i = 0; i < 3; i++) PD_CHECKF(alone[i].ok && j[i].ok && memcmp(alone[i].t, j[i].t, sizeof j[i].t) == 0, "thread %u", (unsigned)i);
    close_world(&w);
#else
    pd_skip("no POSIX threads");
#endif
}

/* A32: after a parallel region, a forked child that asks for one thread works. */
static void test_a32_fork(void) {
#if defined(PD_PTHREAD) && !defined(SANITIZED)
    world w = open_world(NULL, 1);
    prediff_context_desc cd;
    prediff_context *c;
    int32_t t[24];
    int status = -1;
    pid_t child;
    memset(&cd, 0, sizeof cd);
    cd.n_threads = 2;
    PD_STATUS(prediff_context_create(&c, w.m, &cd, &w.e), &w.e, OK, NONE);
    all_masks(t, 24);
    PD_STATUS(prediff_generate(c, t, 24, NULL, NULL, &w.e), &w.e, OK, NONE);
    child = fork();
    if (child == 0) {
        alarm(20);
        all_masks(t, 24);
        _exit(prediff_generate(w.c, t, 24, NULL, NULL, NULL) == PREDIFF_OK && count_masks(t, 24) == 0 ? 0 : 1);
    }
    PD_CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    prediff_context_destroy(c);
    close_world(&w);
#else
    pd_skip("no fork, or a sanitiser");
#endif
}

/* -- found by readers, kept found -- */

typedef struct steps { size_t n, wrong, last_n; } steps;
static int count_steps(void *user, const prediff_step_info *info) {
    steps *k = (steps *)user;
    k->n++;
    k->wrong += info->step < 1 || info->step > info->n_steps;
    k->last_n = info->n_steps;
    return 0;
}

/* In every mode a step's number lies within 1..n_steps. */
static void test_step_numbers(void) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    int32_t t[12], id = 65;
    steps k;
    zero_desc(&d);
    d.on_step = count_steps; d.user = &k; d.n_steps = 4; d.block = 4;
    memset(&k, 0, sizeof k);
    all_masks(t, 12);
    PD_STATUS(prediff_generate(w.c, t, 12, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(k.n == 12 && k.wrong == 0);
    zero_desc(&d);
    d.on_step = count_steps; d.user = &k; d.sampler = PREDIFF_CAUSAL_DECODING; d.ignore_eos = 1;
    memset(&k, 0, sizeof k);
    all_masks(t, 12);
    PD_STATUS(prediff_prompt(w.c, &id, 1, NULL, &w.e), &w.e, OK, NONE);
    PD_STATUS(prediff_generate(w.c, t, 12, &d, NULL, &w.e), &w.e, OK, NONE);
    PD_CHECK(k.n == 12 && k.wrong == 0 && k.last_n == 12);
    close_world(&w);
}

/* A container has tokens, but not the tables to use them. */
static void test_container_text(void) {
    pd_tiny tiny;
    uint8_t *b;
    prediff_model_desc d;
    prediff_model *m;
    prediff_error e;
    int32_t ids[8], id = 65;
    char text[64];
    size_t n;
    memset(&tiny, 0, sizeof tiny); memset(&d, 0, sizeof d);
    b = pd_tiny_bytes(&tiny, &d.size);
    d.data = b;
    PD_STATUS(prediff_container_open(&m, &d, &e), &e, OK, NONE);
    PD_STATUS(prediff_encode(m, "a", 1, 0, ids, 8, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_STATUS(prediff_template(m, "a", 1, 0, ids, 8, &n, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_STATUS(prediff_decode(m, &id, 1, 0, text, 64, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_CHECK(prediff_token_text(m, 65).bytes == NULL && !prediff_token_is_special(m, 65));
    prediff_model_close(m);
    free(b);
}

/* Settings so large that loops would not end, numbers that are none, tokens that are never produced. */
static void test_huge_settings(void) {
    world w = open_world(NULL, 1);
    prediff_generate_desc d;
    prediff_score_desc sd;
    prediff_score_result r;
    prediff_forward_desc f;
    int32_t t[8];
    float rate = NOT_A_NUMBER, *logits = (float *)calloc(8 * V, sizeof *logits);
    zero_desc(&d);
    d.no_repeat = SIZE_MAX;
    all_masks(t, 8);
    PD_STATUS(prediff_generate(w.c, t, 8, &d, NULL, &w.e), &w.e, OK, NONE);
    memset(&sd, 0, sizeof sd);
    sd.kind = PREDIFF_SCORE_N_STEP; sd.draws = SIZE_MAX; sd.n_steps = 16;
    PD_STATUS(prediff_score(w.c, t, 8, &sd, &r, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    memset(&f, 0, sizeof f);
    f.target = t; f.n = 8; f.rate = &rate; f.logits = logits;
    PD_STATUS(prediff_forward(w.c, &f, &w.e), &w.e, ERR_ARG, VALUE_RANGE);
    free(logits);
    close_world(&w);
}

static int keep_nothing(void *user, const void *bytes, size_t n) { (void)user; (void)bytes; (void)n; return 0; }

/* Values whose scale is nothing, shapes the reader would not believe. */
static void test_save_strange(void) {
    float tiny[32];
    prediff_tensor t;
    prediff_save_desc d;
    prediff_error e;
    uint32_t store = PREDIFF_Q8_0;
    size_t i;
    for (i = 0; i < 32; i++) tiny[i] = 1e-38f;
    memset(&t, 0, sizeof t); memset(&d, 0, sizeof d);
    t.name.bytes = "x"; t.name.n = 1; t.n_dims = 1; t.dims[0] = 32; t.dims[1] = t.dims[2] = t.dims[3] = 1;
    t.type = PREDIFF_F32; t.data = (const uint8_t *)tiny; t.data_size = sizeof tiny;
    d.tensors = &t; d.n_tensors = 1; d.store = &store; d.write = keep_nothing;
    PD_STATUS(prediff_save(&d, &e), &e, OK, NONE);
    store = PREDIFF_Q4_0;
    PD_STATUS(prediff_save(&d, &e), &e, OK, NONE);
    t.dims[1] = 2;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, TENSOR_DIMS);
    t.dims[1] = 1; d.alignment = 1u << 21;
    PD_STATUS(prediff_save(&d, &e), &e, ERR_ARG, GGUF_ALIGNMENT);
}

/* A successful call leaves the caller's error alone. */
static void test_error_untouched(void) {
    world w = open_world(NULL, 1);
    prediff_error e;
    char text[600];
    memset(&e, 0, sizeof e);
    PD_CHECK(prediff_write(w.c, "ab", 8, NULL, text, sizeof text, &e) == PREDIFF_OK && e.status == PREDIFF_OK && !e.message[0]);
    PD_CHECK(prediff_infill(w.c, "ab [MASK:3] c", NULL, text, sizeof text, &e) == PREDIFF_OK && e.status == PREDIFF_OK && !e.message[0]);
    close_world(&w);
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
#ifdef PD_FAST_MATH
    PD_RUN(test_fast_math);
    PD_RUN(test_lengths_and_blocks);
#else
    PD_RUN(test_a01_null_open);
    PD_RUN(test_a01_null_context);
    PD_RUN(test_a02_canaries);
    PD_RUN(test_a03_a04_a08_a09_nothing_to_do);
    PD_RUN(test_a05_too_long);
    PD_RUN(test_a06_a07_ids);
    PD_RUN(test_k12_mask_ids);
    PD_RUN(test_a10_mask_is_never_output);
    PD_RUN(test_a11_a12_steps);
    PD_RUN(test_a14_block_larger_than_target);
    PD_RUN(test_a15_a18_values);
    PD_RUN(test_conflicts);
    PD_RUN(test_context_settings);
    PD_RUN(test_a30_a31_threads);
    PD_RUN(test_shift_needs_prompt);
    PD_RUN(test_a16_a20_a24_extremes);
    PD_RUN(test_a21_a22_a23_not_finite);
    PD_RUN(test_a27_stop);
    PD_RUN(test_a28_reentry);
    PD_RUN(test_a29_text_buffer);
    PD_RUN(test_a35_copy);
    PD_RUN(test_a40_version_and_names);
    PD_RUN(test_save_arguments);
    PD_RUN(test_save_rows);
    PD_RUN(test_frequencies);
    PD_RUN(test_lengths_and_blocks);
    PD_RUN(test_a25_seeds_and_threads);
    PD_RUN(test_replay_1_2_early_end);
    PD_RUN(test_replay_4_straddled_block);
    PD_RUN(test_replay_5_rows_end_alone);
    PD_RUN(test_replay_7_logprobs);
    PD_RUN(test_replay_9_padded_vocabulary);
    PD_RUN(test_replay_11_repetition);
    PD_RUN(test_replay_12_shift_and_cache);
    PD_RUN(test_rounding_modes);
    PD_RUN(test_flush_to_zero);
    PD_RUN(test_small_stack);
    PD_RUN(test_two_threads);
    PD_RUN(test_step_numbers);
    PD_RUN(test_container_text);
    PD_RUN(test_huge_settings);
    PD_RUN(test_save_strange);
    PD_RUN(test_error_untouched);
    PD_RUN(test_a32_fork);
#endif
    return PD_END();
}
