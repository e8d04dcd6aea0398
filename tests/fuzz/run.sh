#!/bin/sh
# `make fuzz`: each target for FUZZ_SECONDS (20) with clang's libFuzzer, address and undefined-behaviour sanitisers.
# `replay`: only runs the committed corpus through the targets, with any compiler. `corpus`: makes the corpus anew.
. tests/lib.sh
here=tests/fuzz
seconds=${FUZZ_SECONDS:-20}

replay() { check "build the replay" $CC -std=c99 -O1 $PD_CFLAGS -DPD_REPLAY -I. $here/fuzz.c $LDFLAGS $LDLIBS -o $OUT/replay && run replay-corpus $OUT/replay "$@"; }

fuzz() {
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' > $OUT/fuzzer.c
    if ! clang -fsanitize=fuzzer,address,undefined $OUT/fuzzer.c -o $OUT/fuzzer.out > /dev/null 2>&1; then
        skip "fuzzing: no clang with libFuzzer"; return
    fi
    n=0
    for target in gguf encode decode generate; do
        mkdir -p build/fuzz/$target
        check "build $target" clang -std=c99 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DPD_FUZZ_ONLY=$n -I. $here/fuzz.c -lm -o $OUT/fuzz_$target &&
        check "fuzz $target for $seconds s" $OUT/fuzz_$target -max_total_time=$seconds -max_len=4096 -timeout=10 -rss_limit_mb=2048 -artifact_prefix=build/fuzz/$target- \
            build/fuzz/$target $here/corpus
        n=$((n + 1))
    done
}

case ${1:-fuzz} in
replay) replay $here/corpus/* ;;
corpus) mkdir -p $here/corpus; check "build the generator" $CC -std=c99 -O1 -I. $here/make_corpus.c $LDLIBS -o $OUT/make_corpus && check "make the corpus" $OUT/make_corpus $here/corpus ;;
fuzz) replay $here/corpus/*; fuzz ;;
*) echo "usage: sh tests/fuzz/run.sh [fuzz|replay|corpus]"; exit 2 ;;
esac
totals
