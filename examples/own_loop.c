/* own_loop: the host keeps its own loop (a game, a user interface, an event loop) and asks for one step at a time. Between
 * steps it may look at the target: here it prints the row, masks as underscores.
 *
 *     cc -O2 -I. examples/own_loop.c -lm -o own_loop && ./own_loop [MODEL.gguf]
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

enum { N = 24 };

static void print_row(const prediff_model *model, const int32_t *target, size_t step) {
    char text[256];
    size_t i, n;
    printf("%2d:", (int)step);
    for (i = 0; i < N; i++) {
        if (target[i] == PREDIFF_MASK) fputs(" _", stdout);
        else if (prediff_decode(model, &target[i], 1, 0, text, sizeof text, &n, NULL) == PREDIFF_OK) fwrite(text, 1, n, stdout);
    }
    putchar('\n');
}

static prediff_status run(const prediff_model *model, prediff_context *context, prediff_error *error) {
    static const char prompt[] = "One day, a little girl named Lily";
    prediff_generate_desc desc = {0};
    prediff_result result;
    prediff_status status;
    int32_t ids[64], target[N];
    size_t n_ids, i, step = 0;
    int done = 0;

    for (i = 0; i < N; i++) target[i] = PREDIFF_MASK;
    desc.n_steps = 12;
    status = prediff_encode(model, prompt, sizeof prompt - 1, PREDIFF_ENCODE_BOS, ids, 64, &n_ids, error);
    if (!status) status = prediff_prompt(context, ids, n_ids, NULL, error);
    if (!status) status = prediff_begin(context, target, N, &desc, error);
    if (status) return status;

    puts(prompt);
    while (!done && !status) {
        status = prediff_step(context, &done, error);    /* one network pass; the rest of the time is the host's */
        if (!status) print_row(model, target, ++step);
    }
    if (status) { prediff_end(context, &result, NULL); return status; }
    status = prediff_end(context, &result, error);       /* may come early too: the masks left stay masks */
    if (!status) printf("%d tokens, %d network passes, %d rows, log-probability %.2f\n", (int)result.n_emitted, (int)result.n_evaluations, (int)result.n_rows, result.logprob);
    return status;
}

int main(int argc, char **argv) {
    prediff_model_desc model_desc = {0};
    prediff_context_desc context_desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    int failed;

    model_desc.path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf";
    context_desc.n_ctx = 96;
    failed = prediff_model_open(&model, &model_desc, &error) || prediff_context_create(&context, model, &context_desc, &error) || run(model, context, &error);
    if (failed) fprintf(stderr, "own_loop: %s\n", error.message);
    prediff_context_destroy(context);
    prediff_model_close(model);
    return failed;
}
