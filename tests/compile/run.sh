#!/bin/sh
# Compiles the header in every way it promises, warnings being errors. `quick`: what one compiler can do in a few seconds;
# `full`: every standard and setting with gcc and clang (or COMPILERS), C and C++, and 32 bits.
. tests/lib.sh
STRICT='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror'
STRICT_C='-Wstrict-prototypes -Wmissing-prototypes'
SETTINGS='PREDIFF_NO_STDIO PREDIFF_NO_MMAP PREDIFF_NO_MALLOC PREDIFF_NO_SIMD PREDIFF_NO_OPENMP PREDIFF_NO_TOKENIZER PREDIFF_NO_TRAIN PREDIFF_STATIC'
ALL=$(for s in $SETTINGS; do [ $s = PREDIFF_STATIC ] || printf ' -D%s' $s; done)
M32='-m32 -I/usr/include/x86_64-linux-gnu'     # the second finds asm/ where no 32-bit headers of the kernel are installed
here=tests/compile

# builds COMPILER FLAGS...: can a program with the C library be made?
builds() { echo '#include <stdio.h>
int main(void) { return puts("") < 0; }' > $OUT/builds.c; "$@" $OUT/builds.c -o $OUT/builds.out > /dev/null 2>&1; }

# c COMPILER STANDARD FILE FLAGS...
c() { compiler=$1 std=$2 file=$3; shift 3; check "$compiler $std $file $*" $compiler -std=$std $STRICT $STRICT_C "$@" -I. -c $here/$file -o $OUT/c.o; }
cxx() { compiler=$1 std=$2 file=$3; shift 3; check "$compiler $std $file $*" $compiler -x c++ -std=$std $STRICT "$@" -I. -c $here/$file -o $OUT/c.o; }

# Every public function can be named and linked under FLAGS, and the structs have their sizes.
functions() {
    { echo '#define PREDIFF_IMPLEMENTATION'; echo '#include "prediff.h"'; echo 'typedef void (*any)(void); any all[] = {'
      sed -n 's/^PREDIFF_API [^(]*[ *]\(prediff_[a-z0-9_]*\)(.*/(any)\1,/p' prediff.h |
          case $* in *NO_TRAIN*) grep -v '(any)prediff_trainer_' ;; *) cat ;; esac
      echo '0 }; int main(void) { return all[0] == 0; }'; } > $OUT/functions.c
    check "all functions link: $*" $CC -std=c99 "$@" -I. $OUT/functions.c $LDLIBS -o $OUT/functions.out
    same "functions found" 1 $(($(grep -c any $OUT/functions.c) > 35))
}
# The sizes of the public structs under FLAGS, compiled strictly.
sizes() { $CC -std=c99 $STRICT $STRICT_C "$@" -I. $here/one.c $LDLIBS -o $OUT/sizes.out > $OUT/sizes.log 2>&1 && $OUT/sizes.out || head -n 5 $OUT/sizes.log; }

two_files() {                                   # COMPILER FLAGS...: one program of two files, both with the header
    { echo '#include "prediff.h"'; echo 'int second_file(void);'; echo 'int main(void) { return second_file() != prediff_version(); }'; } > $OUT/main.c
    { echo '#define PREDIFF_IMPLEMENTATION'; echo '#include "prediff.h"'; } > $OUT/impl.c
    check "three files: $*" "$@" -I. $OUT/main.c $OUT/impl.c $here/two.c $LDLIBS -o $OUT/two.out && check "three files run: $*" $OUT/two.out
}

renamed() {                                     # a vendored copy under another name, in another folder
    mkdir -p $OUT/vendor; cp prediff.h $OUT/vendor/model_lib.h
    sed 's/"prediff.h"/"vendor\/model_lib.h"/' $here/twice.c > $OUT/renamed.c
    check "renamed: $*" "$@" -DPREDIFF_FILENAME='"vendor/model_lib.h"' -I$OUT $OUT/renamed.c $LDLIBS -o $OUT/renamed.out && check "renamed runs" $OUT/renamed.out
}

quick() {
    for f in one.c two.c unused.c polluted.c; do c $CC c99 $f -fsyntax-only; done
    c $CC c99 one.c -O2
    c $CC c99 unused.c $ALL
    check "implementation twice" $CC -std=c99 $STRICT -I. $here/twice.c $LDLIBS -o $OUT/twice.out && check "implementation twice runs" $OUT/twice.out
    two_files $CC -std=c99
    renamed $CC -std=c99
    default=$(sizes)
    same "twelve sizes" 12 $(echo "$default" | wc -w | tr -d ' ')
    for s in $SETTINGS; do same "strict, and the same sizes, under $s" "$default" "$(sizes -D$s)"; done
    functions
    functions $ALL
    same "sizes under all settings" "$default" "$(sizes $ALL)"
    if echo 'int main() {}' > $OUT/w.cc && c++ -c $OUT/w.cc -o $OUT/w.o 2> /dev/null; then
        for f in one.c unused.c two.c; do cxx c++ c++11 $f -fsyntax-only; done
    else skip "C++: no c++"; fi
}

full() {
    for compiler in ${COMPILERS:-gcc clang}; do
        if ! have $compiler; then skip "compile matrix with $compiler: not installed"; continue; fi
        for std in c99 gnu99 c11 gnu11 c17; do
            for f in one.c unused.c polluted.c two.c; do c $compiler $std $f; done
        done
        for o in -O0 -O1 -O2 -O3 -Os '-O2 -flto' '-O2 -ffast-math' '-O2 -march=native' '-O2 -fsigned-char' '-O2 -funsigned-char' '-O2 -Wframe-larger-than=2048'; do
            c $compiler c99 one.c $o
        done
        echo '#include <omp.h>' > $OUT/omp.c
        if $compiler -fopenmp -c $OUT/omp.c -o $OUT/omp.o 2> /dev/null; then c $compiler c99 one.c -O2 -fopenmp; else skip "OpenMP with $compiler: no omp.h"; fi
        for s in $SETTINGS; do c $compiler c99 one.c -O2 -D$s; functions -D$s; done
        c $compiler c99 one.c -O2 $ALL
        c $compiler c99 unused.c -O2 $ALL
        two_files $compiler -std=c11 -O1
        renamed $compiler -std=c11
        if echo 'int main(){}' > $OUT/w.cc && $compiler -x c++ -c $OUT/w.cc -o $OUT/w.o 2> /dev/null; then
            for std in c++11 c++14 c++17 c++20; do
                for f in one.c unused.c polluted.c two.c; do
                    case $f in polluted.c) cxx $compiler $std $f -Wno-pedantic ;; *) cxx $compiler $std $f ;; esac
                done
            done
            cxx $compiler c++11 one.c -O2
            cxx $compiler c++20 one.c -O3
            cxx $compiler c++17 one.c -O2 $ALL
        else skip "C++ with $compiler"; fi
        if builds $compiler $M32; then
            c $compiler c99 one.c $M32 -O2
            c $compiler c99 unused.c $M32 $ALL
            cxx $compiler c++11 one.c $M32
        else skip "32 bits with $compiler: no 32-bit libc"; fi
    done
}

case ${1:-quick} in quick) quick ;; full) full ;; *) echo "usage: sh tests/compile/run.sh [quick|full]"; exit 2 ;; esac
totals
