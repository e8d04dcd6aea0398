#!/bin/sh
# `make fuzz`: each target for FUZZ_SECONDS (20) with clang's libFuzzer, address and undefined-behaviour sanitisers.
# `replay`: only runs the committed corpus through the targets, with any compiler. `corpus`: makes the corpus anew.
. tests/lib.sh
here=tests/fuzz
seconds=${FUZZ_SECONDS:-20}

converter='safetensors tokenizer_json config'     # fuzz_NAME.c with seeds/NAME: the converter's readers

replay() {
    check "build the replay" $CC -std=c99 -O1 $PD_CFLAGS -DPD_REPLAY -I. $here/fuzz.c $LDFLAGS $LDLIBS -o $OUT/replay && run replay-corpus $OUT/replay "$@"
    for target in $converter; do
        check "build the replay of $target" $CC -std=c99 -O1 $PD_CFLAGS -DPD_REPLAY -I. $here/fuzz_$target.c $LDFLAGS $LDLIBS -o $OUT/replay_$target &&
        run replay-$target $OUT/replay_$target $here/seeds/$target/*
    done
}

# fuzz_one NAME SEEDS SOURCE FLAGS...
fuzz_one() {
    fuzz_name=$1 fuzz_seeds=$2 fuzz_source=$3; shift 3
    mkdir -p build/fuzz/$fuzz_name
    check "build $fuzz_name" clang -std=c99 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$@" -I. $fuzz_source -lm -o $OUT/fuzz_$fuzz_name &&
    check "fuzz $fuzz_name for $seconds s" $OUT/fuzz_$fuzz_name -max_total_time=$seconds -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix=build/fuzz/$fuzz_name- build/fuzz/$fuzz_name $fuzz_seeds ||
    for input in build/fuzz/$fuzz_name-*; do [ ! -f "$input" ] || { echo "$input, in base64:"; base64 "$input"; }; done
}

fuzz() {
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' > $OUT/fuzzer.c
    if ! clang -fsanitize=fuzzer,address,undefined $OUT/fuzzer.c -o $OUT/fuzzer.out > /dev/null 2>&1; then
        skip "fuzzing: no clang with libFuzzer"; return
    fi
    n=0
    for target in gguf encode decode generate; do
        fuzz_one $target $here/corpus $here/fuzz.c -DPD_FUZZ_ONLY=$n
        n=$((n + 1))
    done
    for target in $converter; do fuzz_one $target $here/seeds/$target $here/fuzz_$target.c; done
}

case ${1:-fuzz} in
replay) replay $here/corpus/* ;;
corpus) mkdir -p $here/corpus; check "build the generator" $CC -std=c99 -O1 -I. $here/make_corpus.c $LDLIBS -o $OUT/make_corpus && check "make the corpus" $OUT/make_corpus $here/corpus ;;
fuzz) replay $here/corpus/*; fuzz ;;
*) echo "usage: sh tests/fuzz/run.sh [fuzz|replay|corpus]"; exit 2 ;;
esac
totals
