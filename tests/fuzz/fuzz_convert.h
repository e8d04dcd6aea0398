/* SPDX-License-Identifier: MIT
 * Shared by the fuzz targets of the converter's readers: each includes this and defines fuzz(data, n). With PD_REPLAY a main runs
 * files, and of each a few beginnings. What must hold is checked with `must`; a broken promise aborts.
 */
#include "../pd_convert.h"
#ifdef PD_REPLAY
#include "../pd_test.h"
#endif

#define must(what, cond) do { if (!(cond)) { fprintf(stderr, "fuzz: %s\n", what); abort(); } } while (0)

static void fuzz(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) { fuzz(data, n); return 0; }

/* A failure must be told properly. Returns whether all went well. */
static int fuzz_result(int failed, const cv_error *e) {
    const char *wrong = failed ? pd_wrong_error(e) : NULL;
    if (wrong) fprintf(stderr, "%s\n", wrong);
    must("errors are whole", !wrong);
    return !failed;
}

#ifdef PD_REPLAY
static char **replay_files;
static int replay_count;

static void test_replay(void) {
    int i;
    size_t n, k;
    for (i = 0; i < replay_count; i++) {
        uint8_t *b = pd_read_file(replay_files[i], &n);
        if (!PD_CHECKF(b != NULL, "cannot read %s", replay_files[i])) continue;
        printf("-- %s\n", replay_files[i]);        /* the last name before a crash is the culprit */
        for (k = 1; k <= 16; k++) LLVMFuzzerTestOneInput(b, n * k / 16);
        free(b);
    }
}

int main(int argc, char **argv) {
    replay_files = argv + 1;
    replay_count = argc - 1;
    pd_args(argv[0], NULL);
    PD_RUN(test_replay);
    return PD_END();
}
#endif
