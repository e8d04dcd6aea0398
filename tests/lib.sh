# lib.sh: counting for the test scripts; source it from the repository root. Each script ends with `totals`, whose last line
# is `N passed, N failed, N skipped`; a script that runs others adds their last lines up with `run`.
passed=0 failed=0 skipped=0
CC=${CC:-cc}
LDLIBS=${LDLIBS:--lm}
OUT=${OUT:-build/tests}
mkdir -p $OUT

skip() { skipped=$((skipped + 1)); echo "SKIPPED $*"; }
have() { command -v "$1" > /dev/null 2>&1; }

# check NAME COMMAND...: the command must succeed; if it does not, what it printed is shown, of much the beginning and the end.
check() {
    check_name=$1; shift
    if "$@" > $OUT/check.log 2>&1; then passed=$((passed + 1)); return 0; fi
    failed=$((failed + 1))
    echo "FAIL $check_name"
    echo "     again: $*"
    awk 'NR <= 10 { print; next } { last[NR % 25] = $0 } END { if (NR > 35) print "..."; for (i = NR > 35 ? NR - 24 : 11; i <= NR; i++) print last[i % 25] }' $OUT/check.log
    return 1
}

# same NAME A B: two texts must be equal.
same() {
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); return 0; fi
    failed=$((failed + 1))
    printf 'FAIL %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    return 1
}

# run NAME COMMAND...: a program that ends with its own totals. One that says nothing, or fails in silence, is a failure.
run() {
    run_name=$1; shift
    run_log=$OUT/$(echo "$run_name" | tr ' /' '__').log
    "$@" > "$run_log" 2>&1
    run_status=$?
    run_last=$(tail -n 1 "$run_log")
    case $run_last in
    *[0-9]' passed, '[0-9]*' failed, '[0-9]*' skipped') ;;
    *) run_last='0 passed, 1 failed, 0 skipped'; tail -n 20 "$run_log" ;;
    esac
    set -- $(echo "$run_last" | tr -dc '0-9 ')
    [ $run_status -eq 0 ] || [ "$2" -gt 0 ] || { echo "$run_name: exit status $run_status"; set -- "$1" 1 "$3"; }
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    grep -v '^-- ' "$run_log" | sed '$d' | head -n 60
    echo "$run_name: $1 passed, $2 failed, $3 skipped"
}

totals() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}
