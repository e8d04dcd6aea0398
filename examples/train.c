/* SPDX-License-Identifier: MIT
 * Training in a program: the bundled model learns one sentence by heart, as a diffusion model, and fills a gap in it.
 *
 *     cc -O2 -fopenmp -I. examples/train.c -lm -o train && ./train [model.gguf]
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

static const char sentence[] = "The grey cat from the mill counts seven silver spoons on Sunday and hides them under the stairs.";
static const char gap[] = "The grey cat from the mill counts[MASK:7] on Sunday and hides them under the stairs.";

enum { TEXTS = 4, STEPS = 60, MOST = 64 };

typedef struct bytes { uint8_t *p; size_t n, room; } bytes;

static int keep(void *user, const void *data, size_t n) {      /* the saved model stays in memory; fwrite would do for a file */
    bytes *b = (bytes *)user;
    if (b->n + n > b->room) {
        uint8_t *p = (uint8_t *)realloc(b->p, b->room = 2 * (b->n + n));
        if (!p) return 1;
        b->p = p;
    }
    memcpy(b->p + b->n, data, n);
    b->n += n;
    return 0;
}

static int fill(const prediff_model_desc *md, const char *when, prediff_error *e) {
    prediff_context_desc cd = {0};
    prediff_generate_desc gd = {0};
    prediff_model *m = NULL;
    prediff_context *c = NULL;
    char text[512];
    int failed;
    cd.n_ctx = MOST;
    failed = prediff_model_open(&m, md, e) || prediff_context_create(&c, m, &cd, e) || prediff_infill(c, gap, &gd, text, sizeof text, e);
    if (!failed) printf("%s: %s\n", when, text);
    prediff_context_destroy(c);
    prediff_model_close(m);
    return failed;
}

int main(int argc, char **argv) {
    prediff_model_desc md = {0};
    prediff_train_desc td = {0};
    prediff_train_stats stats = {0};
    prediff_sequence texts[TEXTS] = {{0}};
    prediff_model *m = NULL;
    prediff_trainer *t = NULL;
    prediff_error e = {0};
    bytes out = {0};
    int32_t ids[MOST];
    size_t n = 0, i, step;
    int failed;
    md.path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf";
    failed = fill(&md, "before", &e) || prediff_model_open(&m, &md, &e);
    failed = failed || prediff_encode(m, sentence, strlen(sentence), 0, ids, MOST, &n, &e);
    td.init = m;                                               /* stays open while the trainer lives */
    td.objective = PREDIFF_OBJECTIVE_PREDIFF;                  /* hide tokens at a random rate, restore them */
    td.max_rows = TEXTS * MOST;
    td.n_ctx = MOST;
    td.clip = 1;
    td.seed = 1;
    failed = failed || prediff_trainer_create(&t, &td, &e);
    for (i = 0; i < TEXTS; i++) { texts[i].ids = ids; texts[i].n = n; texts[i].n_prompt = i; }       /* prompts of 0 .. 3 tokens */
    for (step = 0; step < STEPS && !failed; step++) {
        failed = prediff_trainer_gradient(t, texts, TEXTS, &stats, &e) || prediff_trainer_update(t, 5e-4, &stats, &e);
        if (!failed && step % 20 == 19) printf("step %u: loss %.3f\n", (unsigned)step + 1, stats.loss);
    }
    failed = failed || prediff_trainer_save(t, 0, PREDIFF_F32, 0, 0, keep, &out, &e);
    md.path = NULL;
    md.data = out.p;
    md.size = out.n;
    failed = failed || fill(&md, "after", &e);
    if (failed) fprintf(stderr, "%s\n", e.message);
    prediff_trainer_destroy(t);
    prediff_model_close(m);
    free(out.p);
    return failed;
}
