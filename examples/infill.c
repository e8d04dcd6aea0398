/* infill: fills gaps in a text, seeing what stands on both sides. First in one call, then by hand, with ids, which shows
 * how [MASK:n] works: a target array whose PREDIFF_MASK entries are filled while all others stay as they are.
 *
 *     cc -O2 -I. examples/infill.c -lm -o infill && ./infill [MODEL.gguf]
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

enum { ROOM = 128 };

static int by_marks(prediff_context *context, prediff_error *error) {
    prediff_generate_desc desc = {0};
    char text[1024];
    desc.n_steps = 8;
    if (prediff_infill(context, "The little bird was hungry. [MASK:16] Then she flew back to her nest and slept.", &desc, text, sizeof text, error))
        return 1;
    puts(text);
    return 0;
}

static int by_hand(const prediff_model *model, prediff_context *context, prediff_error *error) {
    static const char left[] = "Tom saw", right[] = " and ran home to tell his mother.";
    prediff_generate_desc desc = {0};
    prediff_result result;
    int32_t ids[ROOM];                 /* prompt, then target: the gap and the text to its right */
    char text[1024];
    size_t n_left, n_right, n_text, gap = 12, i;

    if (prediff_encode(model, left, sizeof left - 1, 0, ids, ROOM, &n_left, error)) return 1;
    for (i = 0; i < gap; i++) ids[n_left + i] = PREDIFF_MASK;
    if (prediff_encode(model, right, sizeof right - 1, 0, ids + n_left + gap, ROOM - n_left - gap, &n_right, error)) return 1;

    desc.n_steps = 12;
    if (prediff_rewind(context, 0, error) ||                       /* forget the prompt of the call before */
        prediff_prompt(context, ids, n_left, NULL, error) ||
        prediff_generate(context, ids + n_left, gap + n_right, &desc, &result, error) ||
        prediff_decode(model, ids, n_left + gap + n_right, 0, text, sizeof text, &n_text, error)) return 1;
    printf("%.*s\n(%d tokens in %d steps)\n", (int)n_text, text, (int)result.n_emitted, (int)result.n_steps);
    return 0;
}

int main(int argc, char **argv) {
    prediff_model_desc model_desc = {0};
    prediff_context_desc context_desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    int failed;

    model_desc.path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf";
    context_desc.n_ctx = ROOM;
    failed = prediff_model_open(&model, &model_desc, &error) || prediff_context_create(&context, model, &context_desc, &error) ||
             by_marks(context, &error) || by_hand(model, context, &error);
    if (failed) fprintf(stderr, "infill: %s\n", error.message);
    prediff_context_destroy(context);
    prediff_model_close(model);
    return failed;
}
