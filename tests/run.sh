#!/bin/sh
# `make test`: builds and runs every test. Needs cc, make and sh; what needs more is skipped where it is missing, named and
# counted. The last line is the total. PD_CFLAGS adds flags (sanitisers), PD_LONG=1 runs sweeps in full, TESTS names the
# test programs to run (default: all), ONLY_PROGRAMS=1 leaves the scripts out.
. tests/lib.sh
[ -n "${PD_LONG:-}" ] || unset PD_LONG
CFLAGS=${CFLAGS:--O2}
TESTS=${TESTS:-$(ls tests/test_*.c)}
[ -f build/openmp ] || make -s build/openmp
[ -x build/prediff ] && [ -x build/prediff-convert ] || make -s all

echo '#include <pthread.h>
int main(void) { return pthread_self() == 0; }' > $OUT/pthread.c
if $CC -pthread $OUT/pthread.c -o $OUT/pthread.out 2> /dev/null; then threads="-pthread -DPD_PTHREAD -D_POSIX_C_SOURCE=200809L"; else threads=; fi
flags="-std=c99 $CFLAGS $(cat build/openmp) $threads $PD_CFLAGS -I. -Itests"

# -- the test programs; two are compiled at a time --

build() { $CC $flags "$1" $LDFLAGS $LDLIBS -o $OUT/$(basename "$1" .c) > $OUT/$(basename "$1" .c).cc 2>&1; }
lane() { while [ $# -gt 0 ]; do build "$1"; shift; [ $# -gt 0 ] && shift; done; }
rm -f $OUT/items.txt $(for t in $TESTS; do echo $OUT/$(basename $t .c); done)
set -- $TESTS
lane "$@" & first=$!
if [ $# -gt 1 ]; then (shift; lane "$@"); fi
wait $first

# -- beside them: the header's form, samples and examples; the compile matrix in short; the fuzz corpus --

beside() { name=$1; shift; env OUT=build/tests/$name "$@" > $OUT/$name.said 2>&1; }
others=
if [ -z "${ONLY_PROGRAMS:-}" ]; then
    others='header compile convert train fuzz'
    { beside header sh tests/check_header.sh; beside compile sh tests/compile/run.sh quick; beside convert sh tests/convert.sh; beside train sh tests/train.sh; beside fuzz sh tests/fuzz/run.sh replay; } &
fi

export OMP_WAIT_POLICY=passive                  # more threads than processors: waiting ones must not spin
export PD_ITEMS=$OUT/items.txt PD_TMP=$OUT
for test in $TESTS; do
    name=$(basename $test .c)
    if [ -x $OUT/$name ]; then run $name $OUT/$name; else check "build $test" $CC $flags $test $LDFLAGS $LDLIBS -o $OUT/$name; fi
done
unset PD_ITEMS OMP_WAIT_POLICY
[ -z "$others" ] && { totals; exit; }

# -- once more without the rules of arithmetic: ids must stay ids --

if $CC $flags -O1 -ffast-math -DPD_FAST_MATH tests/test_api.c $LDFLAGS $LDLIBS -o $OUT/test_fast_math 2> $OUT/check.log; then
    run fast-math $OUT/test_fast_math
else skip "-ffast-math: $CC does not know it"; fi

# -- every error item is provoked by a test, or stands here with its reason; and the list is honest --

excused='
BUG               is an error of the library itself
ISA_MISSING       needs a machine without some kernel set it names
'
for item in $(sed -n '/^#define PREDIFF_ITEMS/,/^$/p' prediff.h | grep -oE 'X\([A-Z_0-9]+' | cut -c3-); do
    if echo "$excused" | grep -q "^$item "; then excuse=yes; else excuse=no; fi
    if grep -qx "$item" $OUT/items.txt 2> /dev/null; then got=yes; else got=no; fi
    if [ $excuse$got = nono ]; then failed=$((failed + 1)); echo "FAIL no test provokes the item $item"
    elif [ $excuse$got = yesyes ] && [ $item = BUG ]; then failed=$((failed + 1)); echo "FAIL the item $item is excused, but a test provokes it"
    else passed=$((passed + 1)); fi
done

wait
for other in $others; do run $other cat $OUT/$other.said; done
if have python3; then check "tests/mutate.py finds guards" python3 tests/mutate.py --count; else skip "tests/mutate.py: no python3"; fi
totals
