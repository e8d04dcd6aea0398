/* SPDX-License-Identifier: MIT
 * Training on several processes: each computes the gradient of its own texts, MPI adds them up, all take the same step.
 * Two processes give what one gives with all the texts, up to the rounding of regrouped sums.
 *
 *     mpicc -O2 -I. examples/train_mpi.c -lm -o train_mpi && mpirun -n 2 ./train_mpi model.gguf text.txt out.gguf
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <mpi.h>
#include <stdio.h>

enum { TEXTS = 8, LENGTH = 64, STEPS = 10 };

/* The hook: sums of gradients and counts of all processes, once a step. */
static int add_up(void *user, float *sums, size_t n) {
    size_t i, piece = 1 << 24;
    (void)user;
    for (i = 0; i < n; i += piece)
        if (MPI_Allreduce(MPI_IN_PLACE, sums + i, (int)(n - i < piece ? n - i : piece), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD)) return 1;
    return 0;
}

static int to_file(void *user, const void *bytes, size_t n) { return fwrite(bytes, 1, n, (FILE *)user) != n; }

static size_t read_ids(const prediff_model *m, const char *path, int32_t *ids, size_t capacity) {
    static char text[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0, count = 0;
    if (f) fclose(f);
    prediff_encode(m, text, n, 0, ids, capacity, &count, NULL);
    return count < capacity ? count : capacity;
}

int main(int argc, char **argv) {
    static int32_t ids[1 << 15];
    prediff_model_desc md = {0};
    prediff_train_desc td = {0};
    prediff_train_stats stats = {0};
    prediff_sequence texts[TEXTS] = {{0}};
    prediff_model *m = NULL;
    prediff_trainer *t = NULL;
    prediff_error e = {0};
    int rank, size, step, i, mine, failed;
    size_t n;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 4) { fprintf(stderr, "usage: train_mpi MODEL.gguf TEXT OUT.gguf\n"); MPI_Finalize(); return 2; }
    md.path = argv[1];
    td.objective = PREDIFF_OBJECTIVE_CAUSAL;                    /* draws nothing at random: the same texts, the same gradients */
    td.max_rows = TEXTS * LENGTH;
    td.n_ctx = LENGTH;
    td.clip = 1;
    td.eps = 1e-6;                                              /* AdamW divides by the size of tiny gradients, which are rounding */
    td.reduce = add_up;
    failed = prediff_model_open(&m, &md, &e);
    td.init = m;
    failed = failed || prediff_trainer_create(&t, &td, &e);
    n = failed ? 0 : read_ids(m, argv[2], ids, 1 << 15);
    if (!failed && n < TEXTS * LENGTH) failed = fprintf(stderr, "the text is too short\n") > 0;
    for (step = 0; step < STEPS && !failed; step++) {
        for (i = mine = 0; i < TEXTS; i++) {
            if (i % size != rank) continue;                     /* every process has its share of the same batch */
            texts[mine].ids = ids + ((size_t)step * TEXTS + (size_t)i) * LENGTH % (n - LENGTH + 1);
            texts[mine].n = texts[mine].n_prompt = LENGTH;
            mine++;
        }
        failed = prediff_trainer_gradient(t, texts, (size_t)mine, &stats, &e) || prediff_trainer_update(t, 1e-3, &stats, &e);
        if (!rank && !failed) printf("step %d: gradient norm %.7f\n", step + 1, stats.gradient_norm);
    }
    if (!failed && !rank) {
        FILE *f = fopen(argv[3], "wb");
        failed = !f || prediff_trainer_save(t, 0, PREDIFF_F32, 0, 0, to_file, f, &e) || fclose(f);
    }
    if (failed) fprintf(stderr, "rank %d: %s\n", rank, e.message);
    prediff_trainer_destroy(t);
    prediff_model_close(m);
    MPI_Finalize();
    return failed != 0;
}
