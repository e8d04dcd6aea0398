/* fixed_memory: no malloc anywhere. Model, tokenizing and context live in static blocks whose sizes are chosen beforehand, as
 * on a device without a heap. PREDIFF_NO_MALLOC makes sure: without an allocator nothing would open.
 *
 *     cc -O2 -I. examples/fixed_memory.c -lm -o fixed_memory && ./fixed_memory [MODEL.gguf]
 */
#define PREDIFF_NO_MALLOC
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

static unsigned char file_block[4 << 20];      /* the model file; on a device an array in flash */
static unsigned char work_block[1 << 20];      /* the model's tables, and encoding for its duration */
static unsigned char context_block[8 << 20];   /* prompt cache and work memory, prediff_context_size tells how much */

/* A stack of blocks: what was taken last is given back first, which is how this library uses an allocator. */
typedef struct stack { unsigned char *base; size_t size, used, most; } stack;

static void *stack_alloc(void *user, size_t size) {
    stack *s = (stack *)user;
    void *p;
    size = (size + 15) / 16 * 16;
    if (size > s->size - s->used) return NULL;               /* becomes the status NOMEM */
    p = s->base + s->used;
    s->used += size;
    if (s->used > s->most) s->most = s->used;
    return p;
}

static void stack_free(void *user, void *p, size_t size) {
    stack *s = (stack *)user;
    size = (size + 15) / 16 * 16;
    if ((unsigned char *)p + size == s->base + s->used) s->used -= size;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "examples/models/story-q8_0.gguf", *prompt = "Once upon a time, there was a little";
    prediff_model_desc model_desc = {0};
    prediff_context_desc context_desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    stack work = {0};
    size_t n, context_size = 0;
    char text[512];
    int failed;
    FILE *f = fopen(path, "rb");

    if (!f) { fprintf(stderr, "fixed_memory: cannot open %s\n", path); return 1; }
    n = fread(file_block, 1, sizeof file_block, f);
    fclose(f);
    if (n == sizeof file_block) { fprintf(stderr, "fixed_memory: %s is too large for this program\n", path); return 1; }

    work.base = work_block;
    work.size = sizeof work_block;
    model_desc.data = file_block;
    model_desc.size = n;
    model_desc.allocator.alloc = stack_alloc;
    model_desc.allocator.free = stack_free;
    model_desc.allocator.user = &work;
    context_desc.n_ctx = 64;                     /* 9 tokens of prompt and 32 of text need no more */
    context_desc.n_target = 32;
    context_desc.memory = context_block;
    context_desc.memory_size = sizeof context_block;

    failed = prediff_model_open(&model, &model_desc, &error) || prediff_context_size(model, &context_desc, &context_size, &error) ||
             prediff_context_create(&context, model, &context_desc, &error) ||
             prediff_write(context, prompt, 32, NULL, text, sizeof text, &error);
    if (failed) fprintf(stderr, "fixed_memory: %s\n", error.message);
    else printf("%s%s\nbytes: model file %lu, tables and encoding at most %lu, context %lu\n", prompt, text, (unsigned long)n,
                (unsigned long)work.most, (unsigned long)context_size);
    prediff_context_destroy(context);            /* the blocks stay ours */
    prediff_model_close(model);
    return failed;
}
