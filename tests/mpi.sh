#!/bin/sh
# examples/train_mpi.c: two processes give the weights that one gives with all the texts, within 1e-6. Needs mpicc and mpirun
# (Open MPI: libopenmpi-dev, openmpi-bin); skipped without.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
MODEL=examples/models/story-q8_0.gguf
W=$OUT/mpi
mkdir -p $W
if have mpicc && have mpirun; then
    cat > $W/difference.c <<'END'
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>
/* The largest difference of two files of F32 tensors; the largest change from a third. */
static prediff_model *open_file(const char *path) {
    prediff_model_desc d = {0};
    prediff_model *m = NULL;
    d.path = path;
    prediff_model_open(&m, &d, NULL);
    return m;
}
int main(int argc, char **argv) {
    prediff_model *a = argc > 2 ? open_file(argv[1]) : NULL, *b = a ? open_file(argv[2]) : NULL;
    prediff_container x, y;
    size_t i, k;
    double most = 0;
    if (!b) return 1;
    prediff_container_get(a, &x);
    prediff_container_get(b, &y);
    for (i = 0; i < x.n_tensors; i++)
        for (k = 0; k + 4 <= x.tensors[i].data_size; k += 4) {
            float u, v;
            memcpy(&u, x.tensors[i].data + k, 4);
            memcpy(&v, y.tensors[i].data + k, 4);
            if (!(fabs((double)u - (double)v) <= most)) most = fabs((double)u - (double)v);
        }
    printf("%.3g\n", most);
    return !(most < 1e-6) || x.n_tensors != y.n_tensors;
}
END
    check "build train_mpi" mpicc -O2 -I. examples/train_mpi.c -lm -o $W/train_mpi
    check "build difference" $CC -O2 -I. $W/difference.c $LDLIBS -o $W/difference
    check "one process" mpirun --oversubscribe -n 1 $W/train_mpi $MODEL README.md $W/one.gguf
    check "two processes" mpirun --oversubscribe -n 2 $W/train_mpi $MODEL README.md $W/two.gguf
    check "the same weights within 1e-6" $W/difference $W/one.gguf $W/two.gguf
    if $W/difference $W/one.gguf $MODEL > /dev/null 2>&1; then failed=$((failed + 1)); echo "FAIL nothing was learnt"; else passed=$((passed + 1)); fi
else skip "two processes: no mpicc or mpirun"; fi
totals
