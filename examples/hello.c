/* hello: continues a text with a model file. The shortest whole program.
 *
 *     cc -O2 -I. examples/hello.c -lm -o hello && ./hello [MODEL.gguf]
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

int main(int argc, char **argv) {
    prediff_model_desc model_desc = {0};          /* every desc starts zeroed: zero = default */
    prediff_context_desc context_desc = {0};
    prediff_generate_desc generate_desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    const char *prompt = "Once upon a time, there was a little";
    char text[1024];
    int failed;

    model_desc.path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf";
    context_desc.n_ctx = 128;                     /* positions of prompt and target together */
    generate_desc.n_steps = 48;                   /* fewer are faster and poorer */
    generate_desc.no_repeat = 4;                  /* no four tokens twice */

    failed = prediff_model_open(&model, &model_desc, &error) ||
             prediff_context_create(&context, model, &context_desc, &error) ||
             prediff_write(context, prompt, 48, &generate_desc, text, sizeof text, &error);
    if (failed) fprintf(stderr, "hello: %s\n", error.message);
    else printf("%s%s\n", prompt, text);

    prediff_context_destroy(context);             /* NULL is fine */
    prediff_model_close(model);
    return failed;
}
