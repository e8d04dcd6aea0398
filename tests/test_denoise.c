/* SPDX-License-Identifier: MIT
 * Samplers and scores. The model is a mock wherever the outcome must be known: a logit hook writes the logits of each masked
 * position, so counts, orders, thresholds, ends and frequencies can be compared with hand-made values.
 */
#define PREDIFF_IMPLEMENTATION
#define PREDIFF_STATIC
#include "prediff.h"
#include "pd_test.h"
#include "pd_tiny.h"

enum { V = 264, EOS = 256, MAX_T = 64 };
#define NO (-HUGE_VALF)

/* -- a mock model -- */

typedef struct mock {
    int k[MAX_T];                      /* tokens of each position, from id 60 on */
    float logp[MAX_T][V];
    int varied;                        /* 1: the mock is a function of its own count of steps, see test_stop_sure */
    size_t step;
    prediff_context *c;
    /* what on_step saw */
    size_t steps, revealed[256], left[256], stop_at;
    double time[256], rate[256];
    size_t redraws[256], masked_rows[256];
} mock;

static void mock_hook(void *user, size_t sample, size_t position, float *logits, size_t n_vocab) {
    mock *m = (mock *)user;
    size_t v;
    PD_CHECK(n_vocab == V);
    for (v = 0; v < V; v++) logits[v] = m->logp[position][v];
    if (m->varied) { float t = logits[60]; logits[60] = logits[60 + m->steps % 2]; logits[60 + m->steps % 2] = t; }
    (void)sample;
}

static int mock_step(void *user, const prediff_step_info *info) {
    mock *m = (mock *)user;
    size_t i, s = m->steps++;
    m->revealed[s] = info->n_revealed; m->left[s] = info->n_masks_left; m->time[s] = info->time; m->rate[s] = info->rate;
    m->redraws[s] = m->masked_rows[s] = 0;
    for (i = 0; m->c && i < info->n; i++) {
        if (info->target[i] != PREDIFF_MASK) continue;
        m->masked_rows[s]++;
        m->redraws[s] += m->c->cells[i].redraws;
    }
    return m->stop_at && m->steps >= m->stop_at;
}

static void mock_clear(mock *m) {
    size_t i, v;
    memset(m, 0, sizeof *m);
    for (i = 0; i < MAX_T; i++) for (v = 0; v < V; v++) m->logp[i][v] = NO;
}

static void mock_set(mock *m, size_t position, int token, double p) { m->logp[position][token] = (float)log(p); }

/* Token with probability p, the rest over others so that the entropy is h (nats); needs enough room between the extremes. */
static void mock_shape(mock *m, size_t position, int token, double p, double h) {
    double low = 0, high = 1, f = 0;
    int i, k = 100, other = token == 60 ? 61 : 60;
    size_t v;
    for (v = 0; v < V; v++) m->logp[position][v] = NO;
    for (i = 0; i < 80; i++) {                                  /* f of the rest on one other token, 1 - f on k more */
        double r = 1 - p, e;
        f = (low + high) / 2;
        e = -p * log(p) - (r * f > 0 ? r * f * log(r * f) : 0) - (r * (1 - f) > 0 ? r * (1 - f) * log(r * (1 - f) / k) : 0);
        if (e > h) low = f; else high = f;                      /* the entropy falls as f grows beyond 1 / (k + 1) */
    }
    mock_set(m, position, token, p);
    if (p < 1) {
        mock_set(m, position, other, (1 - p) * f);
        for (i = 0; i < k; i++) m->logp[position][100 + i] = f < 1 ? (float)log((1 - p) * (1 - f) / k) : NO;
    }
}

typedef struct bench { prediff_model *m; prediff_context *c; mock k; prediff_generate_desc d; prediff_result r; int32_t t[8 * MAX_T], at[8 * MAX_T]; float lp[8 * MAX_T]; } bench;
static bench B;

static void begin_bench(const pd_tiny *given, size_t samples) {
    static const int32_t prompt[] = { 72, 105, 33 };
    pd_tiny t;
    prediff_context_desc cd;
    prediff_error e;
    memset(&t, 0, sizeof t);
    if (given) t = *given;
    t.ctx = 96;
    memset(&cd, 0, sizeof cd); memset(&e, 0, sizeof e);
    memset(&B, 0, sizeof B);
    B.m = pd_tiny_open(&t);
    cd.n_samples = samples;
    PD_CHECKF(prediff_context_create(&B.c, B.m, &cd, &e) == PREDIFF_OK, "%s", e.message);
    PD_CHECK(prediff_prompt(B.c, prompt, 3, NULL, NULL) == PREDIFF_OK);
    mock_clear(&B.k);
    B.d.logit_hook = mock_hook; B.d.on_step = mock_step; B.d.user = &B.k;
    B.d.logprob = B.lp; B.d.revealed_at = B.at;
}

static void end_bench(void) { prediff_context_destroy(B.c); prediff_model_close(B.m); }

/* All masked, then generate; the mock's record starts anew. */
static prediff_status run_status(size_t n, prediff_error *e) {
    size_t i, total = n * (B.d.samples ? B.d.samples : 1);
    for (i = 0; i < total; i++) B.t[i] = PREDIFF_MASK;
    B.k.steps = 0;
    memset(e, 0, sizeof *e);
    return prediff_generate(B.c, B.t, n, &B.d, &B.r, e);
}
static void run(size_t n) { prediff_error e; PD_CHECKF(run_status(n, &e) == PREDIFF_OK, "%s", e.message); }

/* -- counts -- */

typedef struct count_row { size_t T, N; prediff_schedule schedule; const char *counts; } count_row;

static void test_count_tables(void) {
    static const count_row rows[] = {
        { 256, 32, PREDIFF_COSINE, "1 1 1 2 3 4 3 5 5 6 6 7 7 8 8 8 10 9 10 10 11 11 11 12 11 12 12 13 12 12 13 12" },
        { 256, 32, PREDIFF_REMAINING, "1 2 3 5 8 11 14 17 19 21 23 23 22 20 18 15 12 9 6 4 2 1 0 0 0 0 0 0 0 0 0 0" },
        { 8, 4, PREDIFF_COSINE, "1 2 2 3" }, { 8, 4, PREDIFF_REMAINING, "1 3 3 1" }, { 10, 5, PREDIFF_COSINE, "1 1 3 2 3" }, { 10, 5, PREDIFF_REMAINING, "1 2 3 3 1" },
        { 16, 8, PREDIFF_COSINE, "1 1 1 2 3 2 3 3" }, { 16, 8, PREDIFF_REMAINING, "1 2 3 3 4 2 1 0" }, { 256, 4, PREDIFF_COSINE, "20 55 84 97" }, { 256, 4, PREDIFF_REMAINING, "20 70 103 63" },
        { 256, 8, PREDIFF_COSINE, "5 15 24 31 39 45 48 49" }, { 256, 8, PREDIFF_REMAINING, "5 20 39 57 60 47 23 5" },
        { 256, 16, PREDIFF_COSINE, "2 3 7 8 11 13 15 16 19 20 22 23 23 25 24 25" },
        { 10, 4, PREDIFF_EVEN, "3 3 2 2" }, { 12, 4, PREDIFF_EVEN, "3 3 3 3" }, { 4, 6, PREDIFF_EVEN, "1 1 1 1 0 0" }, { 7, 1, PREDIFF_EVEN, "7" },
        { 32, 32, PREDIFF_EVEN, "1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1" },
        { 256, 32, PREDIFF_TIMES, "7 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 9" }, { 8, 4, PREDIFF_TIMES, "1 2 2 3" }, { 7, 1, PREDIFF_TIMES, "7" },
        { 32, 32, PREDIFF_TIMES, "1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1" } };
    size_t i, s;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *p = rows[i].counts;
        size_t left = rows[i].T;
        for (s = 1; s <= rows[i].N; s++) {
            size_t want = (size_t)strtoul(p, (char **)&p, 10), got = prediff_unmask_count(rows[i].schedule, rows[i].T, left, s, rows[i].N);
            PD_CHECKF(got == want, "T=%zu N=%zu schedule %d step %zu: %zu, not %zu", rows[i].T, rows[i].N, (int)rows[i].schedule, s, got, want);
            left -= got;
        }
        PD_CHECK(left == 0);
    }
}

static void test_count_sums(void) {
    size_t T, N, s;
    int k;
    for (k = 0; k < 6; k++) for (T = 1; T <= 70; T += T < 20 ? 1 : 7) for (N = 1; N <= 2 * T; N++) {
        size_t left = T;
        for (s = 1; s <= N; s++) {
            size_t c = prediff_unmask_count((prediff_schedule)k, T, left, s, N), keep;
            double p = (double)s / (double)N;
            PD_CHECKF(c <= left && (c >= 1 || !left) && (s < N || c == left), "schedule %d T=%zu N=%zu step %zu: %zu of %zu", k, T, N, s, c, left);
            keep = k == PREDIFF_LINEAR ? T - (T * s + N - 1) / N : (size_t)floor((double)T * (1 - sqrt(p)));
            if (s < N && left && (k == PREDIFF_LINEAR || k == PREDIFF_SQRT))
                PD_CHECKF(c == (left > keep + 1 ? left - keep : 1), "schedule %d T=%zu N=%zu step %zu: %zu", k, T, N, s, c);
            left -= c;
        }
        PD_CHECK(left == 0);
    }
    PD_CHECK(prediff_unmask_count(PREDIFF_COSINE, 10, 0, 3, 5) == 0);
}

/* In whole numbers: an equal share, the first ones get what is over; and 1 - t'/t = 999 / (1000 N - 999 (s - 1)) of the masks left,
   all at the last step. */
static void test_count_even_and_times(void) {
    size_t T, N, s, left, wrong = 0;
    for (T = 1; T <= 70; T++) for (N = 1; N <= 80; N++) {
        size_t even = T, times = T;
        for (s = 1; s <= N; s++) {
            size_t a = prediff_unmask_count(PREDIFF_EVEN, T, even, s, N), b = prediff_unmask_count(PREDIFF_TIMES, T, times, s, N);
            size_t want_a = T >= N ? T / N + (s <= T % N) : s <= T, want_b = s < N ? times * 999 / (1000 * N - 999 * (s - 1)) : times;
            if (times && !want_b) want_b = 1;
            PD_CHECKF(a == want_a, "even: T=%zu N=%zu step %zu: %zu, not %zu", T, N, s, a, want_a);
            PD_CHECKF(b == want_b, "times: T=%zu N=%zu step %zu: %zu of %zu, not %zu", T, N, s, b, times, want_b);
            PD_CHECKF(a <= even && b <= times && (a || !even) && (b || !times), "T=%zu N=%zu step %zu: none, or more than there are", T, N, s);
            even -= a; times -= b;
            for (left = 2; left < T; left += 3) {               /* also where fewer or more are left than the schedule thinks */
                a = prediff_unmask_count(PREDIFF_EVEN, T, left, s, N); b = prediff_unmask_count(PREDIFF_TIMES, T, left, s, N);
                wrong += a < 1 || a > left || b < 1 || b > left || (s == N && (a != left || b != left));
            }
        }
        PD_CHECKF(even == 0 && times == 0, "T=%zu N=%zu: %zu and %zu masks left", T, N, even, times);
    }
    PD_CHECKF(wrong == 0, "%zu counts of none, or of more than are left", wrong);
}

static void test_even_and_times_in_use(void) {
    static const size_t even[] = { 3, 3, 2, 2 }, times[] = { 1, 2, 2, 3 };
    static const size_t shapes[][2] = { { 1, 4 }, { 3, 8 }, { 40, 7 }, { 40, 40 }, { 64, 5 } };
    size_t i, k;
    begin_bench(NULL, 1);
    for (i = 0; i < MAX_T; i++) mock_set(&B.k, i, 65, 1.0);
    for (k = 0; k < 2; k++) {
        B.d.schedule = k ? PREDIFF_TIMES : PREDIFF_EVEN;
        B.d.n_steps = 4;
        run(k ? 8 : 10);
        PD_CHECK(B.k.steps == 4 && B.r.n_evaluations == 4 && B.r.n_masks_left == 0);
        for (i = 0; i < 4; i++) PD_CHECK(B.k.revealed[i] == (k ? times[i] : even[i]));
        for (i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            size_t n = shapes[i][0], steps = shapes[i][1], p, filled = 0;
            B.d.n_steps = steps;
            run(n);
            for (p = 0; p < n; p++) filled += B.t[p] == 65;
            PD_CHECKF(filled == n && B.r.n_masks_left == 0 && B.r.n_steps == (n < steps ? n : steps), "%zu masks, %zu steps: %zu filled in %zu", n, steps, filled, B.r.n_steps);
        }
        B.d.n_steps = 3; B.d.block = 4;                         /* each block by itself: 2 1 1, the last 1 1, or times' 1 1 2, 1 1 */
        run(10);
        PD_CHECK(B.k.steps == 8 && B.r.n_masks_left == 0 && B.k.revealed[0] == (k ? 1u : 2u) && B.k.revealed[5] == (k ? 2u : 1u));
        B.d.block = 0;
    }
    end_bench();
}

static void test_counts_in_use(void) {
    static const size_t want[] = { 1, 1, 1, 2, 3, 2, 3, 3 };
    size_t i;
    begin_bench(NULL, 1);
    for (i = 0; i < 40; i++) mock_set(&B.k, i, 65, 1.0);
    B.d.n_steps = 8;
    run(16);
    PD_CHECK(B.k.steps == 8 && B.r.n_steps == 8 && B.r.n_evaluations == 8 && B.r.n_rows == 8 * 16 && B.r.n_emitted == 16);
    for (i = 0; i < 8; i++) PD_CHECK(B.k.revealed[i] == want[i]);
    for (i = 0; i < 8; i++) PD_NEAR(B.k.rate[i], (double)(i ? B.k.left[i - 1] : 16) / 16, 1e-12);
    B.d.n_steps = 0;                                            /* min(masks, 16) */
    run(10);
    PD_CHECK(B.r.n_steps == 10);
    run(40);
    PD_CHECK(B.r.n_steps == 16);
    B.d.n_steps = 100;                                          /* at least one a step */
    run(7);
    PD_CHECK(B.r.n_steps == 7);
    run(0);
    PD_CHECK(B.r.n_steps == 0 && B.r.n_evaluations == 0 && B.r.n_emitted == 0);
    end_bench();
}

/* -- orders -- */

static void expect_order(size_t n, const char *what, const int *positions) {
    size_t i;
    for (i = 0; i < n; i++)
        PD_CHECKF(B.at[positions[i]] == (int32_t)i + 1, "%s: position %d was revealed at step %d, not %zu", what, positions[i], (int)B.at[positions[i]], i + 1);
}

static void test_orders(void) {
    static const int by_confidence[] = { 1, 0, 2, 3 }, by_margin[] = { 0, 2, 1, 3 }, by_entropy[] = { 1, 2, 0, 3 };
    int i;
    begin_bench(NULL, 1);
    mock_set(&B.k, 0, 60, 0.5);                                 /* max .5, margin .4, entropy 1.498 */
    for (i = 0; i < 5; i++) mock_set(&B.k, 0, 61 + i, 0.1);
    mock_set(&B.k, 1, 60, 0.55); mock_set(&B.k, 1, 61, 0.45);   /* .55, .1, .688 */
    mock_set(&B.k, 2, 61, 0.45); mock_set(&B.k, 2, 62, 0.2); mock_set(&B.k, 2, 63, 0.2); mock_set(&B.k, 2, 64, 0.15);   /* .45, .25, 1.288 */
    for (i = 0; i < 100; i++) mock_set(&B.k, 3, 80 + i, 0.01);  /* .01, 0, 4.6 */
    B.d.n_steps = 4; B.d.schedule = PREDIFF_LINEAR;
    run(4);
    expect_order(4, "confidence", by_confidence);
    PD_CHECK(B.t[0] == 60 && B.t[1] == 60 && B.t[2] == 61 && B.t[3] == 80);
    PD_NEAR(B.lp[0], log(0.5), 1e-6); PD_NEAR(B.lp[1], log(0.55), 1e-6); PD_NEAR(B.lp[2], log(0.45), 1e-6); PD_NEAR(B.lp[3], log(0.01), 1e-5);
    PD_NEAR(B.r.logprob, log(0.5) + log(0.55) + log(0.45) + log(0.01), 1e-5);
    B.d.order = PREDIFF_MARGIN;
    run(4);
    expect_order(4, "margin", by_margin);
    B.d.order = PREDIFF_ENTROPY;
    run(4);
    expect_order(4, "entropy", by_entropy);
    end_bench();
}

static void test_ties(void) {
    static const int in_row[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    int i, order;
    begin_bench(NULL, 1);
    for (i = 0; i < 8; i++) { mock_set(&B.k, (size_t)i, 70, 0.4); mock_set(&B.k, (size_t)i, 90, 0.4); mock_set(&B.k, (size_t)i, 95, 0.2); }
    B.d.n_steps = 8; B.d.schedule = PREDIFF_LINEAR;
    for (order = PREDIFF_CONFIDENCE; order <= PREDIFF_ENTROPY; order++) {
        B.d.order = (prediff_order)order;
        run(8);
        expect_order(8, "ties", in_row);
        for (i = 0; i < 8; i++) PD_CHECK(B.t[i] == 70);         /* the lower id of two equal ones */
    }
    end_bench();
}

static void test_random_order(void) {
    int32_t first[6];
    int count[6][6], differs = 0, i, j;
    size_t seed;
    memset(count, 0, sizeof count);
    begin_bench(NULL, 1);
    for (i = 0; i < 6; i++) mock_set(&B.k, (size_t)i, 70, i == 0 ? 1.0 : 0.3), mock_set(&B.k, (size_t)i, 71, i == 0 ? 1e-9 : 0.2);
    B.d.n_steps = 6; B.d.schedule = PREDIFF_LINEAR; B.d.order = PREDIFF_RANDOM;
    for (seed = 0; seed < 1200; seed++) {
        B.d.seed = seed;
        run(6);
        for (i = 0; i < 6; i++) { PD_CHECK(B.at[i] >= 1 && B.at[i] <= 6); count[i][B.at[i] - 1]++; }
        if (!seed) memcpy(first, B.at, sizeof first);
        differs += memcmp(first, B.at, sizeof first) != 0;
    }
    PD_CHECK(differs > 1100);
    for (i = 0; i < 6; i++) for (j = 0; j < 6; j++) PD_CHECKF(abs(count[i][j] - 200) < 65, "position %d at step %d: %d of 1200", i, j + 1, count[i][j]);
    B.d.seed = 0;
    run(6);
    PD_CHECK(memcmp(first, B.at, sizeof first) == 0);
    end_bench();
}

/* -- adaptive counts -- */

static void test_threshold(void) {
    static const double p[] = { 0.7, 0.95, 0.5, 0.85 };
    size_t i;
    begin_bench(NULL, 1);
    for (i = 0; i < 4; i++) { mock_set(&B.k, i, 60, p[i]); mock_set(&B.k, i, 61, 1 - p[i]); }
    B.d.n_steps = 4; B.d.threshold = 0.8;
    run(4);
    PD_CHECK(B.r.n_steps == 3 && B.at[1] == 1 && B.at[3] == 1 && B.at[0] == 2 && B.at[2] == 3);
    B.d.threshold = 1e-9;
    run(4);
    PD_CHECK(B.r.n_steps == 1);
    B.d.threshold = 1.5;
    run(4);
    PD_CHECK(B.r.n_steps == 4 && B.at[1] == 1 && B.at[3] == 2 && B.at[0] == 3 && B.at[2] == 4);
    B.d.n_steps = 2;                                            /* the last step reveals the rest */
    run(4);
    PD_CHECK(B.r.n_steps == 2 && B.k.revealed[0] == 1 && B.k.revealed[1] == 3);
    B.d.n_steps = 4; B.d.threshold = 0.8;                       /* the confident ones go first, whatever the order */
    mock_shape(&B.k, 1, 60, 0.9, 0.7);                          /* .5 / .5 has the smaller entropy, .693 */
    B.d.order = PREDIFF_ENTROPY;
    run(4);
    PD_CHECKF(B.at[1] == 1 && B.at[3] == 1 && B.r.n_steps == 3, "steps %d %d, %zu", (int)B.at[1], (int)B.at[3], B.r.n_steps);
    end_bench();
}

static void test_entropy_bound(void) {
    static const double h[] = { 0.60, 0.02, 0.30, 1.20, 0.05, 0.08 };
    static const double bound[] = { 1e-9, 0.05, 0.071, 0.1, 0.35, 0.46, 0.6, 1, 1.06, 3 };
    static const size_t want[] = { 1, 2, 3, 3, 4, 5, 5, 5, 6, 6 };
    static const double max_p[] = { 0.75, 0.998, 0.93, 0.5, 0.993, 0.985 };
    size_t i;
    begin_bench(NULL, 1);
    for (i = 0; i < 6; i++) mock_shape(&B.k, i, 60, max_p[i], h[i]);
    B.d.n_steps = 20; B.d.order = PREDIFF_ENTROPY;
    for (i = 0; i < 10; i++) {
        B.d.entropy_bound = bound[i];
        run(6);
        PD_CHECKF(B.k.revealed[0] == want[i], "bound %g: %zu revealed, not %zu", bound[i], B.k.revealed[0], want[i]);
    }
    B.d.order = PREDIFF_CONFIDENCE;                             /* another order: a running maximum; left sides 0, .42, .92 */
    mock_shape(&B.k, 0, 60, 0.9, 0.5); mock_shape(&B.k, 1, 60, 0.8, 0.9); mock_shape(&B.k, 2, 60, 0.85, 0.42);
    B.d.entropy_bound = 0.41; run(3); PD_CHECK(B.k.revealed[0] == 1 && B.at[0] == 1);
    B.d.entropy_bound = 0.43; run(3); PD_CHECK(B.k.revealed[0] == 2 && B.at[2] == 1);
    B.d.entropy_bound = 0.91; run(3); PD_CHECK(B.k.revealed[0] == 2);
    B.d.entropy_bound = 0.93; run(3); PD_CHECK(B.k.revealed[0] == 3);
    B.d.order = PREDIFF_ENTROPY; B.d.entropy_bound = 0.3; B.d.ignore_eos = 1;      /* the entropy is that of the law that is sampled */
    for (i = 0; i < 4; i++) mock_shape(&B.k, i, 60, 1, 0), mock_set(&B.k, i, 60, 0.8), mock_set(&B.k, i, 61, 0.2);
    run(4);
    PD_CHECK(B.k.revealed[0] == 1);                             /* .500 each */
    B.d.temperature = 1; run(4);
    PD_CHECK(B.k.revealed[0] == 1);
    B.d.temperature = 0.5; run(4);
    PD_CHECKF(B.k.revealed[0] == 2, "%zu", B.k.revealed[0]);     /* .224 each: two lose .224, three .447 */
    end_bench();
}

static void test_stop_sure(void) {
    size_t i;
    prediff_error e;
    begin_bench(NULL, 1);
    for (i = 0; i < 16; i++) { mock_set(&B.k, i, 60, 0.9999); mock_set(&B.k, i, 61, 0.0001); }
    B.d.n_steps = 16; B.d.stop_sure = 1; B.d.schedule = PREDIFF_LINEAR;
    run(16);
    PD_CHECK(B.r.n_steps == 2 && B.r.ended == PREDIFF_ENDED_SURE && B.k.revealed[0] == 1 && B.k.revealed[1] == 15);
    B.k.varied = 1;                                             /* the argmax changes at every step */
    run(16);
    PD_CHECK(B.r.n_steps == 16 && B.r.ended == PREDIFF_ENDED_FILLED);
    B.k.varied = 0;
    for (i = 0; i < 16; i++) mock_shape(&B.k, i, 60, 0.998, 0.012);
    run(16);
    PD_CHECK(B.r.n_steps == 16 && B.r.ended == PREDIFF_ENDED_FILLED);      /* unchanging but not sure */
    B.d.temperature = 0.5;
    PD_STATUS(run_status(16, &e), &e, ERR_ARG, CONFLICT);
    end_bench();
}

static void test_window(void) {
    size_t i, w, j;
    begin_bench(NULL, 1);
    for (i = 0; i < 12; i++) { mock_set(&B.k, i, 60, 0.5 + 0.03 * (double)i); mock_set(&B.k, i, 61, 0.5 - 0.03 * (double)i); }
    B.d.n_steps = 12; B.d.window = 4; B.d.schedule = PREDIFF_LINEAR;
    run(12);
    for (w = 0; w < 2; w++) for (i = 0; i < 4; i++) for (j = 0; j < 4; j++) PD_CHECK(B.at[4 * w + i] < B.at[4 * w + 4 + j]);
    PD_CHECK(B.at[3] == 1 && B.at[0] == 4 && B.at[11] == 9 && B.at[8] == 12);
    PD_CHECK(B.r.n_rows == 12 * 12);                            /* everything stays visible */
    B.d.threshold = 0.6;                                        /* a threshold does not look past the window */
    run(12);
    PD_CHECKF(B.at[0] < B.at[4] && B.at[11] > B.at[3], "%d %d", (int)B.at[0], (int)B.at[4]);
    end_bench();
}

/* Blocks are the same as generating each one and appending it to the prompt. */
static void test_block(void) {
    int32_t hand[12], given[12];
    prediff_generate_desc d;
    prediff_error e;
    size_t i;
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.noise_dim = 5; t.redraw = 1;
    begin_bench(&t, 1);
    B.d.logit_hook = NULL;
    B.d.n_steps = 3; B.d.block = 5; B.d.temperature = 0.7; B.d.seed = 4; B.d.ignore_eos = 1;
    run(12);
    PD_CHECKF(B.r.n_steps == 8 && B.r.n_evaluations == 8, "%zu steps", B.r.n_steps);
    PD_CHECKF(B.r.n_rows == 3 * 5 + 5 + 3 * 5 + 5 + 2 * 2, "%zu rows", B.r.n_rows);
    PD_CHECK(B.r.n_emitted == 12 && prediff_prompt_length(B.c) == 3);
    for (i = 0; i < 12; i++) PD_CHECK(i < 5 ? B.at[i] >= 1 && B.at[i] <= 3 : i < 10 ? B.at[i] >= 4 && B.at[i] <= 6 : B.at[i] >= 7 && B.at[i] <= 8);
    memset(&d, 0, sizeof d);
    d.n_steps = 3; d.temperature = 0.7; d.seed = 4; d.ignore_eos = 1;
    for (i = 0; i < 12; i++) hand[i] = PREDIFF_MASK;
    for (i = 0; i < 12; i += 5) {
        size_t n = i + 5 < 12 ? 5 : 12 - i;
        PD_CHECK(prediff_generate(B.c, hand + i, n, &d, NULL, NULL) == PREDIFF_OK);
        PD_CHECK(prediff_prompt(B.c, hand + i, n, NULL, NULL) == PREDIFF_OK);
    }
    PD_CHECK(memcmp(hand, B.t, sizeof hand) == 0);
    prediff_rewind(B.c, 3, NULL);
    for (i = 0; i < 12; i++) given[i] = i < 6 ? 65 : PREDIFF_MASK;          /* text before the gap: the first block is given */
    PD_CHECK(prediff_generate(B.c, given, 12, &B.d, &B.r, &e) == PREDIFF_OK);
    PD_CHECK(given[5] == 65 && B.r.n_emitted == 6 && B.r.n_masks_left == 0 && B.r.n_rows >= 5);
    for (i = 0; i < 12; i++) given[i] = i == 11 ? 65 : PREDIFF_MASK;
    memset(&e, 0, sizeof e);
    PD_STATUS(prediff_generate(B.c, given, 12, &B.d, &B.r, &e), &e, ERR_ARG, CONFLICT);
    for (i = 0; i < 11; i++) PD_CHECK(given[i] == PREDIFF_MASK);
    end_bench();
}

/* -- random samplers -- */

static void mock_three(size_t n) { size_t i; for (i = 0; i < n; i++) { mock_set(&B.k, i, 60, 0.5); mock_set(&B.k, i, 61, 0.3); mock_set(&B.k, i, 62, 0.2); } }

/* Each mask is revealed with probability 1 - s/t; tokens follow the model. */
static void test_ancestral(void) {
    double revealed[5] = { 0 }, before[5] = { 0 }, tokens[3] = { 0 }, all = 0;
    size_t seed, i, s;
    begin_bench(NULL, 1);
    mock_three(60);
    B.d.sampler = PREDIFF_ANCESTRAL; B.d.n_steps = 4; B.d.temperature = 1; B.d.ignore_eos = 1;
    for (seed = 0; seed < 300; seed++) {
        size_t masks = 60;
        B.d.seed = seed;
        run(60);
        PD_CHECK(B.r.n_masks_left == 0 && B.r.n_emitted == 60);
        for (s = 0; s < 4; s++) { revealed[s] += (double)B.k.revealed[s]; before[s] += (double)masks; masks = B.k.left[s]; }
        for (i = 0; i < 60; i++) { PD_CHECK(B.t[i] >= 60 && B.t[i] <= 62); tokens[B.t[i] - 60]++; all++; }
    }
    PD_NEAR(revealed[0] / before[0], 0.25, 0.017);
    PD_NEAR(revealed[1] / before[1], 1.0 / 3, 0.021);
    PD_NEAR(revealed[2] / before[2], 0.5, 0.027);
    PD_CHECK(revealed[3] / before[3] > 0.999);
    PD_NEAR(tokens[0] / all, 0.5, 0.02); PD_NEAR(tokens[1] / all, 0.3, 0.018); PD_NEAR(tokens[2] / all, 0.2, 0.016);
    end_bench();
}

static void test_first_hitting(void) {
    static const size_t ms[] = { 1, 2, 4, 9 };
    size_t k, seed, i, step;
    begin_bench(NULL, 1);
    mock_three(9);
    B.d.sampler = PREDIFF_FIRST_HITTING; B.d.temperature = 1;
    for (k = 0; k < 4; k++) {
        size_t m = ms[k];
        double sum = 0, all = 0, first[9] = { 0 }, expect = (double)m / ((double)m + 1);
        for (seed = 0; seed < 1500; seed++) {
            double t = 1;
            B.d.seed = seed;
            run(m);
            PD_CHECK(B.r.n_steps == m && B.r.n_evaluations == m);
            for (step = 0; step < m; step++) {
                PD_CHECK(B.k.revealed[step] == 1 && B.k.time[step] > 0 && B.k.time[step] <= t);
                if (!step) sum += B.k.time[0] / t;
                t = B.k.time[step];
            }
            PD_CHECK(B.r.time == t);
            for (i = 0; i < m; i++) first[i] += B.at[i] == 1;
            all++;
        }
        PD_NEAR(sum / all, expect, 5 * sqrt(expect / (((double)m + 1) * ((double)m + 2)) / all));
        for (i = 0; i < m; i++) PD_NEAR(first[i] / all, 1.0 / (double)m, 5 * sqrt(1.0 / (double)m / all));
    }
    B.d.n_steps = 2;                                            /* fewer steps than masks: the last reveals the rest */
    run(9);
    PD_CHECK(B.r.n_steps == 2 && B.k.revealed[0] == 1 && B.k.revealed[1] == 8);
    end_bench();
}

static void frequencies(size_t seeds, double *f) {
    size_t seed, i;
    f[0] = f[1] = f[2] = 0;
    for (seed = 0; seed < seeds; seed++) {
        B.d.seed = seed;
        run(60);
        for (i = 0; i < 60; i++) if (B.t[i] >= 60 && B.t[i] <= 62) f[B.t[i] - 60] += 1.0 / 60 / (double)seeds;
    }
}

static void test_temperature(void) {
    double f[3];
    size_t i;
    begin_bench(NULL, 1);
    mock_three(60);
    B.d.n_steps = 1;
    B.d.temperature = 1;   frequencies(150, f); PD_NEAR(f[0], 0.5, 0.027); PD_NEAR(f[1], 0.3, 0.025); PD_NEAR(f[2], 0.2, 0.022);
    PD_NEAR(f[0] + f[1] + f[2], 1, 1e-9);
    for (i = 0; i < 60; i++) PD_NEAR(B.lp[i], log(B.t[i] == 60 ? 0.5 : B.t[i] == 61 ? 0.3 : 0.2), 1e-5);   /* untempered */
    B.d.temperature = 0.5; frequencies(150, f); PD_NEAR(f[0], 0.25 / 0.38, 0.027); PD_NEAR(f[1], 0.09 / 0.38, 0.025); PD_NEAR(f[2], 0.04 / 0.38, 0.018);
    B.d.temperature = 2;   frequencies(150, f); PD_NEAR(f[0], 0.41545, 0.027); PD_NEAR(f[1], 0.32180, 0.026); PD_NEAR(f[2], 0.26275, 0.025);
    B.d.temperature = 5e-5; frequencies(3, f); PD_NEAR(f[0], 1, 1e-9);
    B.d.temperature = 1; B.d.top_k = 1; frequencies(3, f); PD_NEAR(f[0], 1, 1e-9);
    B.d.top_k = 2; frequencies(150, f); PD_NEAR(f[0], 0.625, 0.027); PD_NEAR(f[1], 0.375, 0.027); PD_CHECK(f[2] == 0);
    B.d.top_k = 0; B.d.top_p = 0.45; frequencies(3, f); PD_NEAR(f[0], 1, 1e-9);
    B.d.top_p = 0.6; frequencies(150, f); PD_NEAR(f[0], 0.625, 0.027); PD_CHECK(f[2] == 0);
    B.d.top_p = 0.9; frequencies(150, f); PD_NEAR(f[2], 0.2, 0.022);
    B.d.top_p = 1; frequencies(30, f); PD_CHECK(f[2] > 0.1);
    B.d.top_p = 0; B.d.n_steps = 2; B.d.schedule = PREDIFF_LINEAR; B.d.temperature_end = 5e-5;      /* the second step is greedy */
    frequencies(3, f);
    for (i = 0, f[0] = f[1] = 0; i < 60; i++) f[B.at[i] - 1] += B.t[i] != 60;
    PD_CHECKF(f[0] > 5 && f[1] == 0, "%g others at step 1, %g at step 2", f[0], f[1]);
    B.d.temperature = 5e-5; B.d.temperature_end = 1;            /* and the other way round */
    run(60);
    for (i = 0, f[0] = f[1] = 0; i < 60; i++) f[B.at[i] - 1] += B.t[i] != 60;
    PD_CHECKF(f[0] == 0 && f[1] > 5, "%g others at step 1, %g at step 2", f[0], f[1]);
    end_bench();
}

/* Greedy: no seed matters. */
static void test_greedy_ignores_seed(void) {
    int32_t first[20];
    size_t seed;
    begin_bench(NULL, 1);
    B.d.logit_hook = NULL;
    for (seed = 0; seed < 4; seed++) {
        B.d.seed = seed * 1000003;
        run(20);
        if (!seed) memcpy(first, B.t, sizeof first);
        PD_CHECK(memcmp(first, B.t, sizeof first) == 0);
    }
    end_bench();
}

/* -- ends -- */

static void mock_text(size_t n, size_t eos_at, double eos_p) {
    size_t i, v;
    for (i = 0; i < n; i++) {
        for (v = 0; v < V; v++) B.k.logp[i][v] = NO;
        if (i == eos_at) continue;
        mock_set(&B.k, i, 65 + (int)i, 0.8); mock_set(&B.k, i, 60, 0.2);
    }
    if (eos_at < n) { mock_set(&B.k, eos_at, EOS, eos_p); mock_set(&B.k, eos_at, 60, 1 - eos_p); }
}

static void test_eos(void) {
    prediff_error e;
    size_t i;
    begin_bench(NULL, 1);
    mock_text(10, 5, 0.9);
    B.d.n_steps = 10; B.d.schedule = PREDIFF_LINEAR;
    run(10);
    PD_CHECK(B.at[5] == 1 && B.r.ended == PREDIFF_ENDED_EOS);
    for (i = 0; i < 10; i++) PD_CHECK(B.t[i] == (i < 5 ? 65 + (int32_t)i : EOS));
    PD_CHECKF(B.r.n_emitted == 6 && B.r.n_masks_left == 0, "%zu emitted", B.r.n_emitted);
    PD_CHECKF(B.r.n_steps == 6 && B.r.n_rows == 10 + 5 * 6, "%zu steps, %zu rows: padding is not computed", B.r.n_steps, B.r.n_rows);
    PD_NEAR(B.r.logprob, log(0.9) + 5 * log(0.8), 1e-5);        /* padding has no part in it */
    for (i = 6; i < 10; i++) PD_CHECK(B.lp[i] == 0);
    B.d.ignore_eos = 1;
    run(10);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_FILLED && B.r.n_emitted == 10 && B.t[6] == 71 && B.t[9] == 74 && B.t[5] == EOS && B.r.n_steps == 10);
    B.d.ignore_eos = 0; B.d.eos_penalty = 0.5;                  /* .45 is less than the others' .8: the end comes last */
    run(10);
    PD_CHECKF(B.at[5] == 10 && B.r.n_steps == 10, "end at step %d", (int)B.at[5]);
    PD_CHECK(B.t[4] == 69 && B.t[6] == EOS && B.t[9] == EOS && B.r.n_emitted == 6 && B.r.ended == PREDIFF_ENDED_EOS);      /* what stood behind it is cut */
    PD_NEAR(B.r.logprob, log(0.9) + 5 * log(0.8), 1e-5);
    B.d.eos_penalty = 0.05;                                     /* .855 */
    run(10);
    PD_CHECK(B.at[5] == 1);
    B.d.eos_penalty = 1; B.d.order = PREDIFF_ENTROPY;
    run(10);
    PD_CHECK(B.at[5] == 10);
    B.d.order = PREDIFF_CONFIDENCE; B.d.eos_penalty = 0;
    for (i = 0; i < 10; i++) B.t[i] = PREDIFF_MASK;
    B.t[2] = EOS;                                               /* an end the caller gave does not end the text */
    mock_text(10, 99, 0);
    PD_CHECK(prediff_generate(B.c, B.t, 10, &B.d, &B.r, &e) == PREDIFF_OK);
    PD_CHECK(B.t[9] == 74 && B.r.n_emitted == 9 && B.t[2] == EOS && B.at[2] == 0 && B.r.ended == PREDIFF_ENDED_FILLED);
    mock_text(10, 5, 0.9);                                      /* nor does one that has given text to its right */
    for (i = 0; i < 10; i++) B.t[i] = PREDIFF_MASK;
    B.t[8] = 99;
    PD_CHECK(prediff_generate(B.c, B.t, 10, &B.d, &B.r, &e) == PREDIFF_OK);
    PD_CHECK(B.t[5] == EOS && B.t[6] == 71 && B.t[7] == 72 && B.t[8] == 99 && B.t[9] == 74 && B.r.n_emitted == 9);
    end_bench();
}

static void test_eos_elsewhere(void) {
    size_t i;
    begin_bench(NULL, 1);
    mock_text(10, 3, 0.9);
    B.d.sampler = PREDIFF_CAUSAL_DECODING;
    run(10);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_EOS && B.r.n_emitted == 4 && B.r.n_masks_left == 0 && B.t[2] == 67);
    for (i = 3; i < 10; i++) PD_CHECK(B.t[i] == EOS);
    PD_CHECKF(B.r.n_steps == 4, "%zu steps", B.r.n_steps);
    B.d.sampler = PREDIFF_CAU; B.d.block = 4; B.d.n_steps = 4;  /* ends in the first block: the others are not begun */
    run(10);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_EOS && B.r.n_emitted == 4 && B.t[9] == EOS && B.r.n_masks_left == 0);
    PD_CHECKF(B.r.n_steps <= 4, "%zu steps", B.r.n_steps);
    B.d.block = 0;
    B.d.sampler = PREDIFF_ANCESTRAL;
    run(10);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_EOS && B.r.n_emitted == 4 && B.r.n_masks_left == 0);
    B.d.sampler = PREDIFF_FIRST_HITTING; B.d.n_steps = 0;
    run(10);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_EOS && B.r.n_emitted == 4 && B.r.n_masks_left == 0);
    end_bench();
}

/* Samples end on their own. */
static void test_eos_samples(void) {
    size_t i;
    begin_bench(NULL, 3);
    mock_text(10, 99, 0);
    B.d.n_steps = 10; B.d.schedule = PREDIFF_LINEAR; B.d.samples = 3; B.d.temperature = 1;
    for (i = 0; i < 10; i++) mock_set(&B.k, i, EOS, 0.05);
    run(10);
    {
        size_t s, want = 0;
        for (s = 0; s < 3; s++) { for (i = 0; i < 10 && B.t[10 * s + i] != EOS; i++) want++; want += i < 10; }
        PD_CHECKF(B.r.n_emitted == want, "%zu emitted, %zu tokens up to the ends", B.r.n_emitted, want);
        for (s = 0; s < 3; s++) {
            int ended = 0;
            for (i = 0; i < 10; i++) { if (ended) PD_CHECK(B.t[10 * s + i] == EOS); ended |= B.t[10 * s + i] == EOS; }
        }
    }
    end_bench();
}

/* No N-gram twice; `last` > 0: but for those to which a token of that step, the last, belongs. */
static void no_repeats(const char *what, size_t n, size_t gram, int32_t last) {
    int32_t all[MAX_T + 3] = { 72, 105, 33 };
    size_t i, j, k;
    memcpy(all + 3, B.t, n * sizeof *all);
    for (i = 0; i + gram <= n + 3; i++) for (j = i + 1; j + gram <= n + 3; j++) {
        int excused = 0;
        for (k = 0; k < gram; k++) excused |= last && ((i + k >= 3 && B.at[i + k - 3] == last) || (j + k >= 3 && B.at[j + k - 3] == last));
        PD_CHECKF(excused || memcmp(all + i, all + j, gram * sizeof *all) != 0, "%s: the %zu-gram at %zu comes again at %zu", what, gram, i, j);
    }
}

static void test_no_repeat(void) {
    size_t i, gram;
    int v;
    begin_bench(NULL, 1);
    for (i = 0; i < 20; i++) for (v = 0; v < 40; v++) mock_set(&B.k, i, 60 + v, 0.5 * pow(0.5, v) + 1e-6 * (double)i);
    for (gram = 1; gram < 4; gram++) {
        memset(&B.d, 0, sizeof B.d);
        B.d.logit_hook = mock_hook; B.d.on_step = mock_step; B.d.user = &B.k; B.d.ignore_eos = 1; B.d.revealed_at = B.at;
        B.d.n_steps = 20; B.d.schedule = PREDIFF_LINEAR;
        run(20);                                                /* without the guard it is one token again and again */
        for (i = 0; i < 20; i++) PD_CHECK(B.t[i] == 60);
        B.d.no_repeat = gram;
        run(20);
        no_repeats("one at a time", 20, gram, 0);
        B.d.order = PREDIFF_RANDOM;
        run(20);
        no_repeats("in random order", 20, gram, 0);
        B.d.order = PREDIFF_CONFIDENCE; B.d.n_steps = 5;        /* several a step: they are checked against each other, the last step's are not */
        run(20);
        PD_CHECK((gram == 1 || B.k.revealed[0] > 1) && B.r.n_masks_left == 0);
        no_repeats("several a step", 20, gram, (int32_t)B.r.n_steps);
        B.d.n_steps = 20; B.d.block = 6;
        run(20);
        no_repeats("blocks", 20, gram, 0);
        B.d.block = 0; B.d.sampler = PREDIFF_CAUSAL_DECODING;
        run(20);
        no_repeats("causal", 20, gram, 0);
    }
    end_bench();
}

/* -- what must never come out -- */

static void test_mask_never_output(void) {
    size_t i, k;
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.no_mask = 1; t.mask_id = 260;
    begin_bench(&t, 1);
    for (i = 0; i < 20; i++) { mock_set(&B.k, i, 260, 0.999); mock_set(&B.k, i, 65, 0.0006); mock_set(&B.k, i, 66, 0.0004); }
    for (k = 0; k < 4; k++) {
        B.d.n_steps = 4; B.d.temperature = k ? 1.5 : 0; B.d.sampler = (prediff_sampler)k; B.d.seed = k;
        if (k == 3) B.d.sampler = PREDIFF_CAUSAL_DECODING;
        run(20);
        for (i = 0; i < 20; i++) PD_CHECKF(B.t[i] == 65 || B.t[i] == 66, "sampler %zu wrote %d", k, (int)B.t[i]);
        PD_NEAR(B.lp[0], log(B.t[0] == 65 ? 0.6 : 0.4), 1e-4);  /* normalised without the mask */
    }
    end_bench();
}

/* Rows of the embedding beyond the tokenizer are padding. */
static void test_padding_never_output(void) {
    size_t i, k, v;
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.tokens = 258;
    begin_bench(&t, 1);
    for (i = 0; i < 20; i++) for (v = 0; v < V; v++) mock_set(&B.k, i, (int)v, v < 258 ? 0.0001 : 0.2);
    for (k = 0; k < 4; k++) {
        B.d.n_steps = 4; B.d.temperature = k ? 1.5 : 0; B.d.sampler = (prediff_sampler)k; B.d.seed = k; B.d.ignore_eos = 1;
        run(20);
        for (i = 0; i < 20; i++) PD_CHECKF(B.t[i] >= 0 && B.t[i] < 258, "sampler %zu wrote %d", k, (int)B.t[i]);
        PD_NEAR(B.lp[3], -log(258.0), 1e-4);
    }
    end_bench();
}

static void test_bad_logits(void) {
    prediff_error e;
    size_t i, k;
    begin_bench(NULL, 1);
    mock_three(8);
    for (k = 0; k < 3; k++) {
        for (i = 0; i < V; i++) B.k.logp[5][i] = k == 1 ? NO : (float)log(1.0 / V);
        if (k == 0) B.k.logp[5][17] = (float)NAN;
        if (k == 2) B.k.logp[5][17] = B.k.logp[5][18] = HUGE_VALF;
        PD_STATUS(run_status(8, &e), &e, ERR_NUMERIC, LOGITS);
        PD_CHECK(e.offset == 5);
        for (i = 0; i < 8; i++) PD_CHECK(B.t[i] == PREDIFF_MASK || (B.t[i] >= 0 && B.t[i] < V));
        PD_CHECK(prediff_prompt_length(B.c) == 3);
    }
    B.k.logp[5][18] = -1;                                       /* one infinite logit is a certain token */
    run(8);
    PD_CHECK(B.t[5] == 17);
    PD_NEAR(B.lp[5], 0, 1e-6);
    end_bench();
}

/* -- begin, step, end; stopping -- */

static void test_own_loop(void) {
    int32_t t[24], at[24];
    float lp[24];
    prediff_generate_desc d;
    prediff_result r;
    prediff_error e;
    int k, done;
    size_t i, steps;
    for (k = 0; k < 5; k++) {
        pd_tiny tiny;
        memset(&tiny, 0, sizeof tiny); memset(&e, 0, sizeof e);
        tiny.noise_dim = 4; tiny.redraw = k & 1; tiny.gpt2 = k == 2;
        begin_bench(&tiny, 1);
        B.d.logit_hook = NULL; B.d.temperature = 0.8; B.d.seed = 12; B.d.n_steps = 7;
        if (k == 1) B.d.block = 7;
        if (k == 3) B.d.sampler = PREDIFF_ANCESTRAL;
        if (k == 4) B.d.sampler = PREDIFF_CAUSAL_DECODING;
        run(24);
        d = B.d;
        d.logprob = lp; d.revealed_at = at;
        for (i = 0; i < 24; i++) t[i] = PREDIFF_MASK;
        PD_CHECK(prediff_begin(B.c, t, 24, &d, &e) == PREDIFF_OK);
        PD_STATUS(prediff_prompt(B.c, t, 1, NULL, &e), &e, ERR_ARG, BUSY);
        for (done = 0, steps = 0; !done; steps++) PD_CHECK(prediff_step(B.c, &done, &e) == PREDIFF_OK);
        PD_CHECK(prediff_end(B.c, &r, &e) == PREDIFF_OK);
        PD_CHECKF(memcmp(t, B.t, sizeof t) == 0 && memcmp(at, B.at, sizeof at) == 0 && memcmp(lp, B.lp, sizeof lp) == 0, "case %d", k);
        PD_CHECK(steps == B.r.n_steps && r.n_steps == B.r.n_steps && r.n_rows == B.r.n_rows && r.n_emitted == B.r.n_emitted && r.ended == B.r.ended && r.logprob == B.r.logprob);
        PD_STATUS(prediff_step(B.c, &done, &e), &e, ERR_ARG, NOT_BEGUN);
        PD_STATUS(prediff_end(B.c, &r, &e), &e, ERR_ARG, NOT_BEGUN);
        end_bench();
    }
}

static void test_early_end(void) {
    prediff_result r;
    prediff_error e;
    int done = 0;
    size_t i, left = 0;
    begin_bench(NULL, 1);
    mock_text(10, 99, 0);
    B.d.n_steps = 10; B.d.schedule = PREDIFF_LINEAR;
    for (i = 0; i < 10; i++) B.t[i] = PREDIFF_MASK;
    B.t[4] = 200;
    PD_CHECK(prediff_begin(B.c, B.t, 10, &B.d, &e) == PREDIFF_OK);
    for (i = 0; i < 3; i++) PD_CHECK(prediff_step(B.c, &done, &e) == PREDIFF_OK && !done);
    PD_CHECK(prediff_end(B.c, &r, &e) == PREDIFF_OK);
    PD_CHECK(r.ended == PREDIFF_ENDED_EARLY && r.n_masks_left == 6 && r.n_emitted == 3 && r.n_steps == 3);
    for (i = 0; i < 10; i++) {
        left += B.t[i] == PREDIFF_MASK;
        PD_CHECK(B.at[i] == (i == 4 ? 0 : B.t[i] == PREDIFF_MASK ? -1 : B.at[i] > 0 ? B.at[i] : 99));
    }
    PD_CHECK(left == 6);
    B.k.stop_at = 4;                                            /* a callback that wants no more */
    PD_STATUS(run_status(10, &e), &e, ERR_CANCELLED, STOPPED);
    PD_CHECK(B.r.ended == PREDIFF_ENDED_CANCELLED && B.r.n_masks_left == 6 && B.r.n_emitted == 4 && B.r.n_steps == 4);
    PD_CHECK(prediff_prompt_length(B.c) == 3);
    B.k.stop_at = 0;
    run(10);                                                    /* the context is as good as new */
    PD_CHECK(B.r.ended == PREDIFF_ENDED_FILLED && B.r.n_emitted == 10);
    end_bench();
}

static void test_given_kept(void) {
    prediff_error e;
    size_t i, k;
    begin_bench(NULL, 1);
    B.d.logit_hook = NULL;
    for (k = 0; k < 4; k++) {
        B.d.sampler = (prediff_sampler)(k % 3); B.d.temperature = 1; B.d.seed = k; B.d.ignore_eos = 1;
        for (i = 0; i < 30; i++) B.t[i] = i % 3 == k % 3 ? (int32_t)(100 + i) : PREDIFF_MASK;
        PD_CHECKF(prediff_generate(B.c, B.t, 30, &B.d, &B.r, &e) == PREDIFF_OK, "%s", e.message);
        for (i = 0; i < 30; i++) {
            if (i % 3 == k % 3) PD_CHECK(B.t[i] == (int32_t)(100 + i) && B.at[i] == 0 && B.lp[i] == 0);
            else PD_CHECK(B.t[i] >= 0 && B.t[i] < V && B.at[i] > 0 && B.lp[i] <= 0);
        }
        PD_CHECK(B.r.n_emitted == 20);
    }
    for (i = 0; i < 30; i++) B.t[i] = (int32_t)i;               /* nothing to do */
    PD_CHECK(prediff_generate(B.c, B.t, 30, &B.d, &B.r, &e) == PREDIFF_OK && B.r.n_evaluations == 0 && B.r.n_emitted == 0 && B.t[29] == 29);
    end_bench();
}

static void test_bad_settings(void) {
    prediff_error e;
    size_t k;
    begin_bench(NULL, 1);
    mock_text(8, 99, 0);
    for (k = 0; k < 9; k++) {
        prediff_generate_desc kept = B.d;
        if (k == 0) B.d.temperature = -1;
        if (k == 1) B.d.temperature = (double)NAN;
        if (k == 2) B.d.top_p = 1.5;
        if (k == 3) B.d.eos_penalty = 2;
        if (k == 4) B.d.order = (prediff_order)9;
        if (k == 5) B.d.schedule = (prediff_schedule)9;
        if (k == 6) B.d.threshold = -0.1;
        if (k == 7) B.d.sampler = (prediff_sampler)9;
        if (k == 8) B.d.entropy_bound = (double)NAN;
        PD_STATUS(run_status(8, &e), &e, ERR_ARG, VALUE_RANGE);
        B.d = kept;
    }
    B.d.threshold = 0.5; B.d.entropy_bound = 0.5;
    PD_STATUS(run_status(8, &e), &e, ERR_ARG, CONFLICT);
    B.d.entropy_bound = 0; B.d.sampler = PREDIFF_ANCESTRAL;
    PD_STATUS(run_status(8, &e), &e, ERR_ARG, CONFLICT);
    B.d.threshold = 0; B.d.sampler = PREDIFF_CAU; B.d.block = 3; B.d.window = 3;
    PD_STATUS(run_status(8, &e), &e, ERR_ARG, CONFLICT);
    B.d.window = 0; B.d.samples = 2;
    PD_STATUS(run_status(8, &e), &e, ERR_ARG, SAMPLES);
    B.d.samples = 0; B.d.block = 0;
    PD_STATUS(run_status(8, &e), &e, OK, NONE);
    B.d.canary_end = 1;
    PD_STATUS(run_status(8, &e), &e, ERR_ARG, DESC_CANARY);
    end_bench();
}

/* -- noise -- */

static void test_noise_numbers(void) {
    pdi_hparams h;
    float z[8], again[8];
    double sum = 0, square = 0;
    size_t i, j, n = 0;
    memset(&h, 0, sizeof h);
    h.noise_dim = 7; h.noise_scale = 1;
    for (i = 0; i < 15000; i++) {
        pdi_make_noise(&h, z, 3, i, 0);
        for (j = 0; j < 7; j++, n++) { PD_CHECK(z[j] >= -1 && z[j] < 1); sum += (double)z[j]; square += (double)z[j] * (double)z[j]; }
    }
    PD_NEAR(sum / (double)n, 0, 0.01);
    PD_NEAR(square / (double)n, 1.0 / 3, 0.01);
    for (i = 0; i < 4; i++) {                                   /* a function of seed, position, redraw alone */
        pdi_make_noise(&h, z, 5 + (i == 1), 9 + (i == 2), i == 3);
        if (!i) memcpy(again, z, sizeof z);
        else for (j = 0; j < 7; j++) PD_CHECK(z[j] != again[j]);
    }
    pdi_make_noise(&h, z, 5, 9, 0);
    PD_CHECK(memcmp(z, again, 7 * sizeof *z) == 0);
    h.noise_normal = 1;
    for (i = n = 0, sum = square = 0; i < 15000; i++) {
        pdi_make_noise(&h, z, 3, i, 0);
        for (j = 0; j < 7; j++, n++) { sum += (double)z[j]; square += (double)z[j] * (double)z[j]; }
    }
    PD_NEAR(sum / (double)n, 0, 0.02);
    PD_NEAR(square / (double)n, 1, 0.03);
}

/* After a step from alpha a to b, each row still masked is redrawn with probability 1 - a / b. */
static void test_redraw_share(void) {
    pd_tiny t;
    double first[4] = { 0 }, rows[4] = { 0 };
    size_t seed, s;
    memset(&t, 0, sizeof t);
    t.noise_dim = 3; t.no_selfcond = 1; t.layers = 1;
    begin_bench(&t, 1);
    mock_text(60, 99, 0);
    B.k.c = B.c;
    B.d.n_steps = 4; B.d.schedule = PREDIFF_LINEAR; B.d.order = PREDIFF_RANDOM; B.d.noise = PREDIFF_NOISE_REDRAW;
    for (seed = 0; seed < 200; seed++) {
        B.d.seed = seed;
        run(60);
        for (s = 0; s < 3; s++) { first[s] += (double)B.k.redraws[s]; rows[s] += (double)B.k.masked_rows[s]; }
    }
    PD_NEAR(first[0] / rows[0], 1, 1e-12);                      /* nothing was revealed before: all are redrawn */
    PD_NEAR(first[1] / rows[1], 1 + 0.5, 0.03);
    PD_NEAR(first[2] / rows[2], 1 + 0.5 + 1.0 / 3, 0.06);
    B.d.noise = PREDIFF_NOISE_FIXED;
    run(60);
    PD_CHECK(B.k.redraws[0] + B.k.redraws[1] + B.k.redraws[2] == 0);
    B.d.noise = PREDIFF_NOISE_DEFAULT;                          /* the file asks for fixed noise */
    run(60);
    PD_CHECK(B.k.redraws[0] == 0);
    end_bench();
}

static void test_noise_effects(void) {
    pd_tiny t;
    prediff_forward_desc d;
    float *a = (float *)malloc(16 * V * sizeof *a), *b = (float *)malloc(16 * V * sizeof *b);
    size_t i;
    memset(&t, 0, sizeof t); memset(&d, 0, sizeof d);
    t.noise_dim = 6; t.zero_noise = 1;
    begin_bench(&t, 1);
    for (i = 0; i < 16; i++) B.t[i] = i % 2 ? PREDIFF_MASK : 65;
    d.target = B.t; d.n = 16; d.logits = a;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    d.no_noise = 1; d.logits = b;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    for (i = 0; i < 16 * V && a[i] == b[i]; i++) {}
    PD_CHECK(i == 16 * V);                                      /* a zero last layer is no noise */
    end_bench();
    t.zero_noise = 0;
    begin_bench(&t, 1);
    d.no_noise = 0; d.logits = a; d.seed = 1;
    for (i = 0; i < 16; i++) B.t[i] = 65;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    d.seed = 2; d.logits = b;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    PD_CHECK(memcmp(a, b, 16 * V * sizeof *a) == 0);            /* no mask: no noise */
    B.t[3] = PREDIFF_MASK;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    d.seed = 1; d.logits = a;
    PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
    PD_CHECK(memcmp(a, b, 16 * V * sizeof *a) != 0);
    end_bench();
    free(a); free(b);
}

/* -- hand loops -- */

static double row_softmax(const float *row, float *p, int32_t token) {
    double top = -HUGE_VAL, sum = 0;
    size_t v;
    for (v = 0; v < V; v++) if ((double)row[v] > top) top = (double)row[v];
    for (v = 0; v < V; v++) sum += exp((double)row[v] - top);
    for (v = 0; p && v < V; v++) p[v] = (float)(exp((double)row[v] - top) / sum);
    return (double)row[token] - top - log(sum);
}

/* CAU written out with prediff_forward: fills t, or with a teacher reveals its tokens; returns the sum of log-probabilities. */
static double hand_loop(int32_t *t, size_t n, size_t steps, const int32_t *teacher, int masked_only) {
    float *x = (float *)malloc(n * V * sizeof *x), *q = (float *)calloc(n * V, sizeof *q);
    size_t i, k, left = 0, begin, s, v;
    double sum = 0;
    prediff_forward_desc d;
    for (i = 0; i < n; i++) left += t[i] == PREDIFF_MASK;
    begin = left;
    for (s = 1; left; s++) {
        memset(&d, 0, sizeof d);
        d.target = t; d.n = n; d.logits = x; d.selfcond = s > 1 ? q : NULL; d.seed = B.d.seed;
        PD_CHECK(prediff_forward(B.c, &d, NULL) == PREDIFF_OK);
        for (i = 0; i < n; i++) {
            row_softmax(x + i * V, q + i * V, 0);
            if (masked_only && t[i] != PREDIFF_MASK) memset(q + i * V, 0, V * sizeof *q);
        }
        for (k = prediff_unmask_count(PREDIFF_COSINE, begin, left, s, steps); k > 0; k--, left--) {
            size_t best = n, token = 0;
            float top = -1;
            for (i = 0; i < n; i++) for (v = 0; t[i] == PREDIFF_MASK && v < V; v++) if (q[i * V + v] > top) { top = q[i * V + v]; best = i; token = v; }
            if (best == n) abort();
            if (teacher) token = (size_t)teacher[best];
            sum += row_softmax(x + best * V, NULL, (int32_t)token);
            t[best] = (int32_t)token;
        }
    }
    free(x); free(q);
    return sum;
}

static void test_hand_loop(void) {
    size_t i, k;
    int32_t hand[24], got[24];
    prediff_error e;
    for (k = 0; k < 6; k++) {
        pd_tiny t;
        double sum;
        memset(&t, 0, sizeof t); memset(&e, 0, sizeof e);
        t.gpt2 = k & 1; t.noise_dim = k > 3 ? 4 : 0;
        begin_bench(&t, 1);
        B.d.logit_hook = NULL; B.d.seed = 6; B.d.ignore_eos = 1;
        B.d.n_steps = k & 2 ? 24 : 5; B.d.selfcond_masked_only = k == 1;
        for (i = 0; i < 24; i++) hand[i] = got[i] = i % 5 == 2 ? 90 : PREDIFF_MASK;
        sum = hand_loop(hand, 24, k & 2 ? 19 : 5, NULL, k == 1);
        PD_CHECKF(prediff_generate(B.c, got, 24, &B.d, &B.r, &e) == PREDIFF_OK, "%s", e.message);
        PD_CHECKF(memcmp(hand, got, sizeof hand) == 0, "case %zu: the hand loop fills otherwise", k);
        PD_NEAR(B.r.logprob, sum, 1e-3);
        end_bench();
    }
}

/* -- scores -- */

static prediff_score_result score(const int32_t *t, size_t n, const prediff_score_desc *d) {
    prediff_score_result r;
    prediff_error e;
    memset(&r, 0, sizeof r); memset(&e, 0, sizeof e);
    PD_CHECKF(prediff_score(B.c, t, n, d, &r, &e) == PREDIFF_OK, "score kind %d: %s", (int)d->kind, e.message);
    return r;
}

static void score_text(int32_t *t, size_t n) { size_t i; for (i = 0; i < n; i++) t[i] = (int32_t)(40 + i * 7 % 50); }

static void test_score_causal(void) {
    static const int32_t prompt[] = { 72, 105, 33 };
    prediff_score_desc d;
    prediff_score_result r;
    int32_t t[40];
    uint8_t given[40];
    float *x = (float *)malloc(43 * V * sizeof *x);
    double sum = 0, part = 0, rest = 0;
    size_t i;
    memset(&d, 0, sizeof d);
    begin_bench(NULL, 1);
    score_text(t, 40);
    prediff_rewind(B.c, 0, NULL);
    PD_CHECK(prediff_prompt(B.c, prompt, 3, x, NULL) == PREDIFF_OK && prediff_prompt(B.c, t, 40, x + 3 * V, NULL) == PREDIFF_OK);
    for (i = 0; i < 40; i++) {
        double lp = row_softmax(x + (2 + i) * V, NULL, t[i]);
        given[i] = i % 3 == 0;
        sum -= lp;
        if (!given[i]) part -= lp;
        if (i) rest -= 0;
    }
    prediff_rewind(B.c, 3, NULL);
    r = score(t, 40, &d);
    PD_CHECK(r.n_scored == 40 && r.std_error == 0 && prediff_prompt_length(B.c) == 3);
    PD_NEAR(r.nats, sum, 1e-4 * sum);
    d.given = given;
    r = score(t, 40, &d);
    PD_CHECK(r.n_scored == 26);
    PD_NEAR(r.nats, part, 1e-4 * part);
    d.given = NULL;
    prediff_rewind(B.c, 0, NULL);
    PD_CHECK(prediff_prompt(B.c, t, 40, x, NULL) == PREDIFF_OK);
    for (i = 1, rest = 0; i < 40; i++) rest -= row_softmax(x + (i - 1) * V, NULL, t[i]);
    prediff_rewind(B.c, 0, NULL);
    r = score(t, 40, &d);
    PD_CHECK(r.n_scored == 39 && prediff_prompt_length(B.c) == 0);
    PD_NEAR(r.nats, rest, 1e-4 * rest);
    r = score(t, 1, &d);
    PD_CHECK(r.n_scored == 0 && r.nats == 0);
    end_bench();
    free(x);
}

/* A model that knows nothing: T ln V in every estimator. */
static void test_score_uniform(void) {
    pd_tiny t;
    prediff_score_desc d;
    prediff_score_result r;
    int32_t text[30];
    int k;
    double want = 30 * log((double)V);
    memset(&t, 0, sizeof t);
    t.zero_output = 1; t.noise_dim = 3;
    begin_bench(&t, 4);
    score_text(text, 30);
    for (k = PREDIFF_SCORE_CAUSAL; k <= PREDIFF_SCORE_ORDER; k++) {
        memset(&d, 0, sizeof d);
        d.kind = (prediff_score_kind)k; d.draws = 200; d.seed = 1;
        r = score(text, 30, &d);
        PD_CHECK(r.n_scored == 30);
        if (k == PREDIFF_SCORE_NELBO_RATE || k == PREDIFF_SCORE_N_STEP)        /* the number of masks is random: only within the error */
            PD_CHECKF(r.std_error > 0 && fabs(r.nats - want) < 4.5 * r.std_error && r.std_error < 0.2 * want, "kind %d: %g +- %g, not %g", k, r.nats, r.std_error, want);
        else PD_CHECKF(fabs(r.nats - want) < 1e-5 * want && r.std_error < 1e-5 * want, "kind %d: %g +- %g, not %g", k, r.nats, r.std_error, want);
    }
    end_bench();
}

/* Two tokens: the bound can be written out. One token: no variance. One step: all masked at once. */
static void test_score_exact(void) {
    static const int32_t text[] = { 50, 61 };
    prediff_score_desc d;
    prediff_score_result r;
    float x[2 * V];
    prediff_forward_desc f;
    double both, one, nelbo;
    int32_t t[2];
    memset(&d, 0, sizeof d); memset(&f, 0, sizeof f);
    begin_bench(NULL, 1);
    f.target = t; f.n = 2; f.logits = x;
    t[0] = t[1] = PREDIFF_MASK;
    PD_CHECK(prediff_forward(B.c, &f, NULL) == PREDIFF_OK);
    both = -row_softmax(x, NULL, text[0]) - row_softmax(x + V, NULL, text[1]);
    t[0] = text[0];
    PD_CHECK(prediff_forward(B.c, &f, NULL) == PREDIFF_OK);
    one = -row_softmax(x + V, NULL, text[1]) / 2;
    t[0] = PREDIFF_MASK; t[1] = text[1];
    PD_CHECK(prediff_forward(B.c, &f, NULL) == PREDIFF_OK);
    one += -row_softmax(x, NULL, text[0]) / 2;
    nelbo = 0.5 * (2 * one) + 0.5 * both;                       /* l = 1: weight 2 / 1; l = 2: weight 2 / 2 */
    d.kind = PREDIFF_SCORE_NELBO; d.draws = 4000;
    r = score(text, 2, &d);
    PD_CHECKF(fabs(r.nats - nelbo) < 4.5 * r.std_error && r.std_error < 0.1 * nelbo, "%g +- %g, not %g", r.nats, r.std_error, nelbo);
    d.kind = PREDIFF_SCORE_NELBO_RATE; d.draws = 8000;
    r = score(text, 2, &d);
    PD_CHECKF(fabs(r.nats - nelbo) < 4.5 * r.std_error && r.std_error < 0.1 * nelbo, "rate: %g +- %g, not %g", r.nats, r.std_error, nelbo);
    d.kind = PREDIFF_SCORE_N_STEP; d.n_steps = 1; d.draws = 3;
    r = score(text, 2, &d);
    PD_NEAR(r.nats, both, 1e-5 * both);
    PD_CHECK(r.std_error < 1e-5 * both);
    d.kind = PREDIFF_SCORE_ORDER;
    r = score(text, 2, &d);
    PD_NEAR(r.nats, both, 1e-5 * both);
    d.kind = PREDIFF_SCORE_NELBO; d.draws = 50; d.n_steps = 0;
    r = score(text, 1, &d);
    PD_CHECK(r.std_error < 1e-6 && r.n_scored == 1);
    t[0] = PREDIFF_MASK;
    f.n = 1;
    PD_CHECK(prediff_forward(B.c, &f, NULL) == PREDIFF_OK);
    PD_NEAR(r.nats, -row_softmax(x, NULL, text[0]), 1e-5);
    end_bench();
}

static void test_score_bounds_agree(void) {
    prediff_score_desc d;
    prediff_score_result l, rate, n_step, coarse, again;
    int32_t t[12];
    uint8_t given[12] = { 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0 };
    memset(&d, 0, sizeof d);
    begin_bench(NULL, 8);
    score_text(t, 12);
    d.given = given;
    d.kind = PREDIFF_SCORE_NELBO; d.draws = 2000; l = score(t, 12, &d);
    again = score(t, 12, &d);
    PD_CHECK(again.nats == l.nats && again.std_error == l.std_error);
    d.seed = 5; again = score(t, 12, &d); d.seed = 0;
    PD_CHECK(again.nats != l.nats && fabs(again.nats - l.nats) < 4.5 * sqrt(2) * l.std_error);
    PD_CHECK(l.n_scored == 10 && l.n_evaluations == 250 && l.n_rows == 2000 * 12);
    d.kind = PREDIFF_SCORE_NELBO_RATE; d.draws = 4000; rate = score(t, 12, &d);
    d.kind = PREDIFF_SCORE_N_STEP; d.n_steps = 40; d.draws = 4000; n_step = score(t, 12, &d);
    d.n_steps = 1; d.draws = 1; coarse = score(t, 12, &d);
    PD_CHECKF(fabs(l.nats - rate.nats) < 4.5 * (l.std_error + rate.std_error), "%g +- %g and %g +- %g", l.nats, l.std_error, rate.nats, rate.std_error);
    PD_CHECKF(fabs(l.nats - n_step.nats) < 4.5 * (l.std_error + n_step.std_error) + fabs(coarse.nats - l.nats) / 10, "%g +- %g and 40 steps %g +- %g (one step %g)", l.nats, l.std_error, n_step.nats, n_step.std_error, coarse.nats);
    PD_CHECK(l.std_error > 0 && l.std_error < rate.std_error * 2);
    end_bench();
}

/* The model's own order, fed with the true tokens: exact, and equal to the loop written out. */
static void test_score_order(void) {
    prediff_score_desc d;
    prediff_score_result r;
    int32_t text[16], t[16];
    uint8_t given[16];
    size_t i, k;
    for (k = 0; k < 4; k++) {
        pd_tiny tiny;
        double sum;
        memset(&tiny, 0, sizeof tiny); memset(&d, 0, sizeof d);
        tiny.gpt2 = k & 1; tiny.noise_dim = k == 3 ? 5 : 0;
        begin_bench(&tiny, 1);
        score_text(text, 16);
        for (i = 0; i < 16; i++) { given[i] = k == 2 && i % 4 == 1; t[i] = given[i] ? text[i] : PREDIFF_MASK; }
        d.kind = PREDIFF_SCORE_ORDER; d.n_steps = 4 + k; d.given = given;
        sum = hand_loop(t, 16, 4 + k, text, 0);
        r = score(text, 16, &d);
        PD_CHECKF(fabs(r.nats + sum) < 1e-4 * fabs(sum), "case %zu: %g, by hand %g", k, r.nats, -sum);
        PD_CHECK(r.n_evaluations == 4 + k && r.std_error == 0 && r.n_scored == (k == 2 ? 12u : 16u));
        PD_CHECK(memcmp(t, text, sizeof t) == 0 && prediff_prompt_length(B.c) == 3);
        end_bench();
    }
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_count_tables);
    PD_RUN(test_count_sums);
    PD_RUN(test_count_even_and_times);
    PD_RUN(test_counts_in_use);
    PD_RUN(test_even_and_times_in_use);
    PD_RUN(test_orders);
    PD_RUN(test_ties);
    PD_RUN(test_random_order);
    PD_RUN(test_threshold);
    PD_RUN(test_entropy_bound);
    PD_RUN(test_stop_sure);
    PD_RUN(test_window);
    PD_RUN(test_block);
    PD_RUN(test_ancestral);
    PD_RUN(test_first_hitting);
    PD_RUN(test_temperature);
    PD_RUN(test_greedy_ignores_seed);
    PD_RUN(test_eos);
    PD_RUN(test_eos_elsewhere);
    PD_RUN(test_eos_samples);
    PD_RUN(test_no_repeat);
    PD_RUN(test_mask_never_output);
    PD_RUN(test_padding_never_output);
    PD_RUN(test_bad_logits);
    PD_RUN(test_own_loop);
    PD_RUN(test_early_end);
    PD_RUN(test_given_kept);
    PD_RUN(test_bad_settings);
    PD_RUN(test_noise_numbers);
    PD_RUN(test_redraw_share);
    PD_RUN(test_noise_effects);
    PD_RUN(test_hand_loop);
    PD_RUN(test_score_causal);
    PD_RUN(test_score_uniform);
    PD_RUN(test_score_exact);
    PD_RUN(test_score_bounds_agree);
    PD_RUN(test_score_order);
    return PD_END();
}
