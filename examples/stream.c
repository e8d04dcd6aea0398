/* stream: prints text while it is written, never half a character. Text is written in blocks of 8 tokens; inside a block the
 * order of the tokens is free, so what can be printed is what stands before the first mask. The callback can also stop the
 * run: here once three sentences are done.
 *
 *     cc -O2 -I. examples/stream.c -lm -o stream && ./stream [MODEL.gguf]
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>
#include <string.h>

typedef struct stream {
    const prediff_model *model;
    prediff_decoder decoder;           /* zeroed: the start of a text */
    size_t printed;                    /* tokens */
    int sentences;
} stream;

/* Called after every step. Non-zero stops; what is written so far stays valid. */
static int on_step(void *user, const prediff_step_info *info) {
    stream *s = (stream *)user;
    char text[512];                    /* prediff_max_token_bytes + 4 is enough */
    size_t n;
    for (; s->printed < info->n && info->target[s->printed] != PREDIFF_MASK; s->printed++) {
        if (prediff_token_ends(s->model, info->target[s->printed])) return 0;
        if (prediff_decode_next(s->model, &s->decoder, info->target[s->printed], 0, text, sizeof text, &n, NULL)) return 1;
        fwrite(text, 1, n, stdout);
        s->sentences += memchr(text, '.', n) != NULL;
        if (s->sentences == 3) return 1;
    }
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    static const char prompt[] = "The fox said to the crow,";
    enum { N = 120 };
    prediff_model_desc model_desc = {0};
    prediff_context_desc context_desc = {0};
    prediff_generate_desc desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    prediff_status status;
    stream s = {0};
    int32_t ids[64], target[N];
    size_t n_ids, i;

    model_desc.path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf";
    context_desc.n_ctx = 64 + N;
    for (i = 0; i < N; i++) target[i] = PREDIFF_MASK;
    desc.block = 8;
    desc.n_steps = 8;                  /* of each block */
    desc.temperature = 0.5;
    desc.seed = 1;
    desc.on_step = on_step;
    desc.user = &s;

    status = prediff_model_open(&model, &model_desc, &error);
    if (!status) status = prediff_context_create(&context, model, &context_desc, &error);
    if (!status) status = prediff_encode(model, prompt, sizeof prompt - 1, PREDIFF_ENCODE_BOS, ids, 64, &n_ids, &error);
    if (!status) status = prediff_prompt(context, ids, n_ids, NULL, &error);
    if (!status) {
        s.model = model;
        fputs(prompt, stdout);
        status = prediff_generate(context, target, N, &desc, NULL, &error);
        if (status == PREDIFF_ERR_CANCELLED) status = PREDIFF_OK;      /* our own stop */
        putchar('\n');
    }
    if (status) fprintf(stderr, "stream: %s\n", error.message);
    prediff_context_destroy(context);
    prediff_model_close(model);
    return status != PREDIFF_OK;
}
