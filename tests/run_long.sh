#!/bin/sh
# `make test-long`: everything of `make test` with the sweeps in full and three seeds; the compile matrix in full; address,
# undefined-behaviour and thread sanitisers; mutation of the checks; fuzzing. Half an hour and more.
. tests/lib.sh

for seed in 1 2 3; do run "seed $seed" env PD_LONG=1 PD_SEED=$seed ONLY_PROGRAMS=1 sh tests/run.sh; done
run "compile matrix" sh tests/compile/run.sh full

# sanitized NAME FLAGS VARIABLES...: the test programs once more
sanitized() {
    name=$1 extra=$2; shift 2
    echo 'int main(void) { return 0; }' > $OUT/s.c
    if ! $CC $extra $OUT/s.c -o $OUT/s.out 2> /dev/null || ! $OUT/s.out; then skip "$name: $CC cannot"; return; fi
    run "$name" env CFLAGS='-O1 -g' PD_CFLAGS="$extra" ONLY_PROGRAMS=1 "$@" sh tests/run.sh
}
sanitized "address and undefined behaviour" '-fsanitize=address,undefined -fno-sanitize-recover=all'
sanitized "sweeps in full, sanitised" '-fsanitize=address,undefined -fno-sanitize-recover=all' PD_LONG=1 TESTS=tests/test_robust.c
sanitized "thread sanitiser" '-fsanitize=thread -DPREDIFF_NO_OPENMP' TESTS=tests/test_api.c

run "a checkpoint of 3 GB" sh tests/convert_stream.sh
if have python3; then run mutation python3 tests/mutate.py; else skip "mutation: no python3"; fi
run fuzz sh tests/fuzz/run.sh
totals
