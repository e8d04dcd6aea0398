/* SPDX-License-Identifier: MIT
 * pd_test.h: the test harness. A test is a function without arguments; main runs a plain list of them:
 *
 *     int main(int argc, char **argv) { PD_ARGS(argc, argv); PD_RUN(test_a); PD_RUN(test_b); return PD_END(); }
 *
 * A test fails if one of its checks does, is skipped if it calls pd_skip, and passes otherwise; one without checks fails. `prog NAME`
 * (or PD_ONLY=NAME prog) runs one test, PD_SEED=N changes pd_seed. The exit status is 0 only if something ran and nothing failed.
 */
#ifndef PD_TEST_H
#define PD_TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PD_TEST_FN static __attribute__((unused))
#define PD_TEST_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define PD_TEST_FN static
#define PD_TEST_PRINTF(f, a)
#endif

static struct {
    const char *program, *only, *name;
    const char *why;                               /* of the present test's skip */
    unsigned long checks, failures;                /* of the present test */
    int passed, failed, skipped;
} pd_state;
static uint32_t pd_seed = 1;

/* -- checks -- */

PD_TEST_FN PD_TEST_PRINTF(4, 5) int pd_check(int ok, const char *file, int line, const char *format, ...) {
    va_list ap;
    pd_state.checks++;
    if (ok) return 1;
    if (++pd_state.failures > 10) return 0;        /* one broken loop must not fill the screen */
    printf("%s:%d: ", file, line);
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    return putchar('\n') < 0;
}

/* |a - b| < tol, and false for not-a-number. */
PD_TEST_FN int pd_near(double a, double b, double tol) { return !(fabs(a - b) >= tol) && a - b == a - b; }

#define PD_CHECK(cond) pd_check(!!(cond), __FILE__, __LINE__, "%s", #cond)
#define PD_CHECKF(cond, ...) pd_check(!!(cond), __FILE__, __LINE__, __VA_ARGS__)
#define PD_NEAR(a, b, tol) \
    pd_check(pd_near((a), (b), (tol)), __FILE__, __LINE__, "%s = %.9g, not %s = %.9g within %g", #a, (double)(a), #b, (double)(b), (double)(tol))
/* A prediff_ call must return this status; on an error, err must hold this item. Give OK, NONE for success. */
#define PD_STATUS(call, err, STATUS, ITEM) \
    pd_status((int)(call), PREDIFF_##STATUS, (err), PREDIFF_ITEM_##ITEM, __FILE__, __LINE__, #call)

#ifdef PREDIFF_H
static unsigned char pd_provoked[PREDIFF_ITEM_COUNT];      /* items that were expected and came */

PD_TEST_FN int pd_status(int got, int want, const prediff_error *err, prediff_item item, const char *file, int line, const char *call) {
    prediff_item have = got ? err->item : PREDIFF_ITEM_NONE;
    if (got == want && have == item) pd_provoked[item] = 1;
    return pd_check(got == want && have == item, file, line, "%s: %s %s \"%s\", not %s %s", call, prediff_status_name((prediff_status)got),
                    prediff_item_name(have), got ? err->message : "", prediff_status_name((prediff_status)want), prediff_item_name(item));
}

/* Adds the names of provoked items to the file PD_ITEMS: the driver looks for items that no test provokes. */
PD_TEST_FN void pd_tell_items(void) {
    const char *path = getenv("PD_ITEMS");
    FILE *f = path ? fopen(path, "a") : NULL;
    int i;
    for (i = 1; f && i < PREDIFF_ITEM_COUNT; i++) if (pd_provoked[i]) fprintf(f, "%s\n", prediff_item_name((prediff_item)i));
    if (f) fclose(f);
}
#endif

/* -- running -- */

PD_TEST_FN void pd_skip(const char *why) { pd_state.why = why; }

PD_TEST_FN void pd_args(const char *program, const char *only) {
    const char *seed = getenv("PD_SEED");
    pd_state.program = program;
    pd_state.only = only ? only : getenv("PD_ONLY");
    if (seed) pd_seed = (uint32_t)strtoul(seed, NULL, 10);
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);        /* what was said before a crash is seen */
    printf("-- %s, seed %u\n", program, (unsigned)pd_seed);
}
#define PD_ARGS(argc, argv) pd_args((argv)[0], (argc) > 1 ? (argv)[1] : NULL)

PD_TEST_FN void pd_run(const char *name, void (*test)(void)) {
    if (!pd_state.program) pd_args("(this program)", NULL);
    if (pd_state.only && strcmp(pd_state.only, name) != 0) return;
    pd_state.name = name;
    pd_state.why = NULL;
    pd_state.checks = pd_state.failures = 0;
    test();
    if (!pd_state.checks && !pd_state.why) { printf("%s checked nothing\n", name); pd_state.failures++; }
    if (pd_state.failures) {
        pd_state.failed++;
        printf("FAIL %s: %lu of %lu checks\n     again: PD_SEED=%u PD_ONLY=%s %s\n", name, pd_state.failures, pd_state.checks,
               (unsigned)pd_seed, name, pd_state.program);
    } else if (pd_state.why) { pd_state.skipped++; printf("SKIPPED %s: %s\n", name, pd_state.why); }
    else pd_state.passed++;
}
#define PD_RUN(test) pd_run(#test, test)

PD_TEST_FN int pd_end(void) {
    int ran = pd_state.passed + pd_state.failed + pd_state.skipped;
    if (!ran) pd_state.failed = printf("no test ran\n") > 0;
#ifdef PREDIFF_H
    pd_tell_items();
#endif
    printf("%d passed, %d failed, %d skipped\n", pd_state.passed, pd_state.failed, pd_state.skipped);
    return pd_state.failed != 0;
}
#define PD_END() pd_end()

/* -- files -- */

/* A whole file, terminated, in a block to free; NULL if it cannot be read. */
PD_TEST_FN uint8_t *pd_read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    size_t room = 1 << 16, got;
    uint8_t *p = f ? (uint8_t *)malloc(room) : NULL;
    *n = 0;
    while (p && (got = fread(p + *n, 1, room - *n - 1, f)) > 0) {
        *n += got;
        if (room - *n < 2) { uint8_t *q = (uint8_t *)realloc(p, room *= 2); if (!q) abort(); p = q; }
    }
    if (p) p[*n] = 0;
    if (f) fclose(f);
    return p;
}

/* The path of a file of the material outside the repository; NULL where it is absent (then skip). Do not free. */
PD_TEST_FN const char *pd_data(const char *name) {
    static char path[4][1024];
    static unsigned turn;
    const char *root = getenv("PREDIFF_DATA");
    char *p = path[turn++ % 4];
    FILE *f;
    snprintf(p, sizeof path[0], "%s/%s", root && *root ? root : "../shared/data", name);
    f = fopen(p, "rb");
    if (f) fclose(f);
    return f ? p : NULL;
}

#endif /* PD_TEST_H */
