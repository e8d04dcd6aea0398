#!/bin/sh
# The header's form: contents, budgets, macros, items, documentation; what its object file holds; and the sample programs.
. tests/lib.sh
H=prediff.h

# -- form --

same "first line" '/* SPDX-License-Identifier: MIT' "$(head -n 1 $H)"
check "at most 9,000 lines" test $(wc -l < $H) -le 9000

# the contents list (>>TAG twice a line) and the section marks
listed=$(sed '/^ \* CONFIG/,$d' $H | grep -o '>>[A-Z]*' | sort | tr '\n' ' ')
marked=$(grep -o '^/\* ---- >>[A-Z]*' $H | grep -o '>>[A-Z]*' | sort | tr '\n' ' ')
same "contents = sections" "$listed" "$marked"

# functions longer than 80 lines: none (parser loops may have 120: name them here)
long=$(awk '/^[A-Za-z_].*[),a-z] \{$|^[A-Za-z_].*\) \{/ && !/^typedef|^struct|^enum|^extern|^static const/ { start = NR; name = $0 }
    /^\}/ && start { if (NR - start + 1 > 80) print NR - start + 1, name; start = 0 }' $H)
same "functions of at most 80 lines" '' "$long"

# config macros: every PREDIFF_ name an #if looks at stands in the CONFIG table
config=$(sed -n '/^ \* CONFIG/,/^ \* CONTRACT/p' $H)
for macro in $(grep -E '^ *# *(if|ifdef|ifndef|elif)' $H | grep -oE 'PREDIFF_[A-Z_]+' | sort -u); do
    case $macro in PREDIFF_H | PREDIFF_IMPLEMENTED) continue ;; esac
    check "$macro is in the CONFIG table" sh -c 'echo "$1" | grep -qw "$2"' sh "$config" $macro
done
check "at most 14 config macros" test $(echo "$config" | grep -oE 'PREDIFF_[A-Z_]+' | sort -u | wc -l) -le 14

continued=$(awk '/^#define PREDIFF_ITEMS/ { inside = 1 } /\\$/ { if (!inside) n++ } !/\\$/ { inside = 0 } END { print n + 0 }' $H)
check "at most 60 continued lines ($continued)" test "$continued" -le 60

# every item is raised somewhere outside its list
sed '/^#define PREDIFF_ITEMS/,/^$/d' $H > $OUT/no_items.h
for item in $(sed -n '/^#define PREDIFF_ITEMS/,/^$/p' $H | grep -oE 'X\([A-Z_0-9]+' | cut -c3-); do
    case $item in BUG) continue ;; esac
    check "item $item is raised" grep -qE "[ _]$item[,;) ]" $OUT/no_items.h
done

# every public function has its name in a comment above or a remark beside it
undocumented=$(awk '/\/\*/ { comment = NR } /^PREDIFF_API/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
    if (!seen[name] && !/\/\*/ && NR - comment > 16) print name } { line = $0; while (match(line, /prediff_[a-z_0-9]+/)) { if ($0 ~ /^ *[\/ ]/) seen[substr(line, RSTART, RLENGTH)] = 1; line = substr(line, RSTART + RLENGTH) } }' $H)
same "public functions are documented" '' "$undocumented"

same "no compound literals" '' "$(grep -nE '\((const )?(struct )?(pdi_|prediff_)[a-z_]+\) *\{' $H)"
same "no recursion to the shell, no printing" '' "$(grep -nE '\b(printf|puts|fputs|abort|exit|strtod|atof|sscanf|qsort|setlocale|isspace|tolower|realloc)\(' $H | grep -v '^[0-9]*: \*')"

# -- macros and symbols --

printf '#define PREDIFF_IMPLEMENTATION\n#include "prediff.h"\n' > $OUT/impl.c
if $CC -std=c99 -I. -E -dM $OUT/impl.c > $OUT/macros 2> /dev/null; then
    same "no PDI_ macro survives" '' "$(grep -o 'PDI_[A-Z_0-9]*' $OUT/macros | sort -u | tr '\n' ' ')"
    same "no short macro survives" '' "$(grep -oE '^#define (X|PD|[A-Z]) ' $OUT/macros)"
else skip "surviving macros: $CC has no -dM"; fi

if have nm && $CC -std=c99 -O2 -fno-pie -fno-pic -I. -c $OUT/impl.c -o $OUT/impl.o 2> /dev/null; then
    same "no writable data" '' "$(nm $OUT/impl.o | grep -E ' [bBdDcCgGsS] ')"
    same "only prediff_ symbols" '' "$(nm -g $OUT/impl.o | grep -E ' [TRWVt] ' | grep -v ' _*prediff_')"
    same "nothing that prints, ends or asks the locale" '' \
        "$(nm -u $OUT/impl.o | grep -wE 'printf|fprintf|vprintf|puts|putchar|fputs|fputc|fwrite|perror|abort|exit|_exit|__assert_fail|strtod|strtof|atof|atoi|sscanf|qsort|setlocale|localeconv|signal|sigaction|realloc|rand|srand|fesetround|time|getenv')"
    $CC -std=c99 -O2 -fno-pie -fno-pic -DPREDIFF_NO_MALLOC -DPREDIFF_NO_STDIO -I. -c $OUT/impl.c -o $OUT/bare.o
    same "no libc but strings and mathematics without files and malloc" '' "$(nm -u $OUT/bare.o | grep -wE 'malloc|calloc|free|fopen|fread|fclose|open|mmap|stat|fstat')"
else skip "object checks: no nm, or no -fno-pie"; fi

if echo 'int f(void) { char a[64]; return sizeof a; }' > $OUT/frame.c && $CC -Wframe-larger-than=2048 -Werror -c $OUT/frame.c -o $OUT/frame.o 2> /dev/null; then
    check "no stack frame above 2,048 bytes" $CC -std=c99 -O2 -Wframe-larger-than=2048 -Werror -I. -c $OUT/impl.c -o $OUT/prediff.o
else
    skip "stack frames: $CC has no -Wframe-larger-than"
    $CC -O2 -I. -c $OUT/impl.c -o $OUT/prediff.o
fi

# program FILE ARGUMENTS...: compiles as it is told to; then, to save time, links with the implementation compiled once
program() {
    file=$1; shift
    check "compile $file" $CC -fsyntax-only -I. $file &&
    check "link $file" $CC -DPREDIFF_IMPLEMENTED -I. $file $OUT/prediff.o $LDLIBS -o $OUT/program && {
        check "run $file" $OUT/program "$@"
        check "$file says something" test $(wc -c < $OUT/check.log) -gt 20
    }
}

# -- the sample programs of header and README: extracted, compiled, run --

sed -n '4,25p' $H | sed -n 's/^ \*     //p; s/^ \*$//p' | sed -e '/^cc /,$d' -e 1d > $OUT/sample_header.c
awk '/^```c$/ { n++; inside = 1; next } /^```/ { inside = 0 } inside { print > ("'$OUT'/sample_readme_" n ".c") }' README.md
for sample in $OUT/sample_header.c $OUT/sample_readme_*.c; do
    [ -f "$sample" ] || continue
    grep -q 'int main' $sample || { skip "$sample is no whole program"; continue; }
    program $sample
done
same "the samples of header and README are one" "$(cat $OUT/sample_header.c)" "$(cat $OUT/sample_readme_1.c)"

# -- examples: at most 120 lines, one command, and they say something --

for example in examples/*.c; do
    check "$example has at most 120 lines" test $(wc -l < $example) -le 120
    case $example in
    */from_memory.c) program $example examples/models/*.gguf ;;
    */train_mpi.c) ;;                               # needs MPI: tests/mpi.sh
    *) program $example ;;
    esac
done
totals
