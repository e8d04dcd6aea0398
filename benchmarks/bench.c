/* Benchmarks of prediff.h: matrix products against a plain loop, prompt, generation, loading.

     make bench                        all tables with the bundled model
     build/bench [-m MODEL] [-t N] [--json]

   Every figure is the median of RUNS repetitions with the smallest and largest beside it, all taken in this one process.
   Timings never decide a test. The header is included as its own static copy, so that single kernels can be called. */

#define _POSIX_C_SOURCE 199309L
#define PREDIFF_IMPLEMENTATION
#define PREDIFF_STATIC
#include "prediff.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUNS 9
#ifndef BENCH_FLAGS
#define BENCH_FLAGS "unknown"
#endif

static int json;

typedef struct figure { double v[RUNS]; } figure;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Prints median, minimum and maximum; returns the median. */
static double show(const char *table, const char *row, figure *f, const char *unit) {
    qsort(f->v, RUNS, sizeof f->v[0], by_value);
    if (json) printf("{\"table\":\"%s\",\"row\":\"%s\",\"median\":%.6g,\"min\":%.6g,\"max\":%.6g,\"runs\":%d,\"unit\":\"%s\"}\n", table, row, f->v[RUNS / 2], f->v[0], f->v[RUNS - 1], RUNS, unit);
    else printf("  %-44s %10.2f  (%.2f - %.2f) %s\n", row, f->v[RUNS / 2], f->v[0], f->v[RUNS - 1], unit);
    fflush(stdout);
    return f->v[RUNS / 2];
}

static void title(const char *text) { if (!json) printf("\n%s\n", text); }

static void machine(int threads) {
    char line[256], cpu[200] = "unknown processor";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) { snprintf(cpu, sizeof cpu, "%.190s", strchr(line, ':') + 2); break; }
    if (f) fclose(f);
    cpu[strcspn(cpu, "\n")] = 0;
    if (json) printf("{\"machine\":\"%s\",\"isa\":\"%s\",\"flags\":\"%s\",\"threads\":%d,\"version\":%d}\n", cpu, prediff_isa_name(prediff_isa_best()), BENCH_FLAGS, threads, prediff_version());
    else printf("%s; kernels %s; flags: %s; %d thread(s); median (min - max) of %d\n", cpu, prediff_isa_name(prediff_isa_best()), BENCH_FLAGS, threads, RUNS);
}

/* -- products -- */

static void naive(float *y, const float *x, const float *w, size_t m, size_t n, size_t k) {
    size_t i, j, l;
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++) {
            float s = 0;
            for (l = 0; l < k; l++) s += x[i * k + l] * w[j * k + l];
            y[i * n + j] = s;
        }
}

static void bench_products(void) {
    static const size_t rows[] = { 1, 8, 16, 32, 64, 128, 512 };
    static const uint32_t types[] = { PREDIFF_F32, PREDIFF_Q8_0 };
    const size_t n = 1536, k = 576;
    float *w = malloc(n * k * 4), *x = malloc(512 * k * 4), *y = malloc(512 * n * 4), *work = malloc(PDI_PRODUCT_WORK * sizeof(float));
    uint8_t *q = malloc(n * k / 32 * 34);
    double plain = 0;
    size_t i, r, t;
    figure f;
    int isa;
    char row[96];
    for (i = 0; i < n * k; i++) w[i] = (float)((int)(i * 2654435761u >> 16 & 255) - 128) * 0.01f;
    for (i = 0; i < 512 * k; i++) x[i] = (float)((int)(i * 2246822519u >> 16 & 255) - 128) * 0.01f;
    for (i = 0; i < n * k; i += 32) pdi_quantize_q8_0(w + i, q + i / 32 * 34);
    title("matrix product, 1536 outputs of 576 inputs, one thread");
    for (i = 0; i < 2; i++) {
        size_t m = i ? 16 : 1;
        for (r = 0; r < RUNS; r++) { double t0 = now(); naive(y, x, w, m, n, k); f.v[r] = 2e-9 * (double)(m * n * k) / (now() - t0); }
        snprintf(row, sizeof row, "plain C loop, F32, M = %d", (int)m);
        plain = show("product", row, &f, "GFLOP/s");
    }
    for (isa = PREDIFF_ISA_SCALAR; isa < PREDIFF_ISA_COUNT; isa++) {
        const pdi_kernels *kernels = pdi_kernels_of((prediff_isa)isa);
        for (t = 0; kernels && t < 2; t++)
            for (i = 0; i < sizeof rows / sizeof *rows; i++) {
                pdi_product p;
                memset(&p, 0, sizeof p);
                p.x = x; p.ldx = k; p.y = y; p.ldy = n; p.m = rows[i]; p.n = n; p.k = k;
                p.type = types[t];
                p.w = t ? q : (const uint8_t *)w;
                p.row_bytes = t ? k / 32 * 34 : k * 4;
                for (r = 0; r < RUNS; r++) {
                    double t0 = now();
                    kernels->product(&p, 0, (n + kernels->panel - 1) / kernels->panel, work);
                    f.v[r] = 2e-9 * (double)(p.m * n * k) / (now() - t0);
                }
                snprintf(row, sizeof row, "%s, %s, M = %d", prediff_isa_name((prediff_isa)isa), prediff_type_name(types[t]), (int)p.m);
                show("product", row, &f, "GFLOP/s");
                if (!json && isa == (int)prediff_isa_best() && t == 0) printf("      %.1f x the plain loop at M = 16\n", f.v[RUNS / 2] / plain);
            }
    }
    free(w); free(x); free(y); free(work); free(q);
}

/* -- the model -- */

static void must(prediff_status s, const prediff_error *e) {
    if (s) { fprintf(stderr, "bench: %s\n", e->message); exit(1); }
}

enum { PROMPT = 24, TARGET = 48 };

static void bench_one_generation(prediff_context *c, const int32_t *prompt, const prediff_generate_desc *d, const char *row) {
    int32_t target[TARGET];
    prediff_result result;
    prediff_error e;
    size_t i, r;
    figure f;
    for (r = 0; r < RUNS; r++) {
        double t0 = now();
        for (i = 0; i < TARGET; i++) target[i] = PREDIFF_MASK;
        must(prediff_rewind(c, 0, &e), &e);
        must(prediff_prompt(c, prompt, PROMPT, NULL, &e), &e);
        must(prediff_generate(c, target, TARGET, d, &result, &e), &e);
        f.v[r] = (double)result.n_emitted / (now() - t0);
    }
    show("generation", row, &f, "tokens/s");
}

static void bench_generation(prediff_context *c, const prediff_model_info *info) {
    static const size_t steps[] = { 1, 2, 4, 8, 16, 32, 48 };
    int32_t prompt[PROMPT];
    prediff_generate_desc d;
    char row[96];
    size_t i;
    for (i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 37 % (info->n_tokens ? info->n_tokens : info->n_vocab));
    title("generation: 24 prompt tokens, 48 targets, tokens emitted a second (prompt included in the time)");
    memset(&d, 0, sizeof d);
    d.ignore_eos = 1;
    for (i = 0; info->has_mask && i < sizeof steps / sizeof *steps; i++) {
        d.n_steps = steps[i];
        snprintf(row, sizeof row, "CAU, %d steps", (int)steps[i]);
        bench_one_generation(c, prompt, &d, row);
    }
    d.n_steps = 0;
    d.sampler = PREDIFF_CAUSAL_DECODING;
    bench_one_generation(c, prompt, &d, "causal decoding, the same weights");
}

static void bench_prompt(prediff_context *c, const prediff_model_info *info) {
    static const size_t lengths[] = { 16, 64, 128 };
    int32_t ids[128];
    prediff_error e;
    size_t i, r;
    figure f;
    char row[96];
    for (i = 0; i < 128; i++) ids[i] = (int32_t)(i * 101 % info->n_vocab);
    title("prompt (causal prefill)");
    for (i = 0; i < 3; i++) {
        for (r = 0; r < RUNS; r++) {
            double t0 = now();
            must(prediff_rewind(c, 0, &e), &e);
            must(prediff_prompt(c, ids, lengths[i], NULL, &e), &e);
            f.v[r] = (double)lengths[i] / (now() - t0);
        }
        snprintf(row, sizeof row, "%d tokens", (int)lengths[i]);
        show("prompt", row, &f, "tokens/s");
    }
}

int main(int argc, char **argv) {
    const char *path = "examples/models/story-q8_0.gguf";
    prediff_context_desc cd;
    prediff_model_desc md;
    prediff_model_info info;
    prediff_context *c;
    prediff_model *m;
    prediff_error e;
    figure f;
    int i, threads = 1;
    memset(&cd, 0, sizeof cd);
    memset(&md, 0, sizeof md);
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) json = 1;
        else if (strcmp(argv[i], "-m") == 0 && i + 1 < argc) path = argv[++i];
        else if (strcmp(argv[i], "-t") == 0 && i + 1 < argc) threads = atoi(argv[++i]);
        else { fprintf(stderr, "usage: bench [-m MODEL.gguf] [-t THREADS] [--json]\n"); return 2; }
    }
    machine(threads);
    bench_products();
    title("loading the model, from opening to ready");
    md.path = path;
    for (i = 0; i < RUNS; i++) {
        double t0 = now();
        must(prediff_model_open(&m, &md, &e), &e);
        f.v[i] = 1e3 * (now() - t0);
        if (i + 1 < RUNS) prediff_model_close(m);
    }
    show("load", path, &f, "ms");
    prediff_model_get_info(m, &info);
    cd.n_ctx = info.n_ctx < 256 ? info.n_ctx : 256;
    cd.n_threads = threads;
    must(prediff_context_create(&c, m, &cd, &e), &e);
    bench_prompt(c, &info);
    bench_generation(c, &info);
    prediff_context_destroy(c);
    prediff_model_close(m);
    return 0;
}
