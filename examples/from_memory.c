/* from_memory: a model that is part of the program, as a C array: no file is opened. The header reads the weights where they
 * are; on a small device the array stays in flash. `make examples` makes the array from the demo model. By hand:
 *
 *     (echo 'static const unsigned char model_array[] = {'; od -An -v -tu1 MODEL.gguf | tr -s ' ' , | sed 's/^,//; s/$/,/'; echo '};') > model_array.h
 *     cc -O2 -I. -DMODEL_ARRAY='"model_array.h"' examples/from_memory.c -lm -o from_memory && ./from_memory
 *
 * Compiled without MODEL_ARRAY, or run with a path, it reads a file into memory first and opens that.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef MODEL_ARRAY
#include MODEL_ARRAY
#endif

/* The bytes of a file, NULL on failure. */
static unsigned char *read_all(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    unsigned char *bytes = NULL;
    long end;
    if (!f) return NULL;
    if (fseek(f, 0, SEEK_END) == 0 && (end = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0) {
        *size = (size_t)end;
        bytes = (unsigned char *)malloc(*size);
        if (bytes && fread(bytes, 1, *size, f) != *size) { free(bytes); bytes = NULL; }
    }
    fclose(f);
    return bytes;
}

int main(int argc, char **argv) {
    prediff_model_desc model_desc = {0};
    prediff_context_desc context_desc = {0};
    prediff_model *model = NULL;
    prediff_context *context = NULL;
    prediff_error error = {0};
    unsigned char *file = NULL;
    const char *path = argc > 1 ? argv[1] : NULL;
    char text[512];
    int failed;

#ifdef MODEL_ARRAY
    model_desc.data = model_array;     /* borrowed: must outlive the model */
    model_desc.size = sizeof model_array;
#else
    if (!path) path = "examples/models/story-q8_0.gguf";
#endif
    if (path) {
        file = read_all(path, &model_desc.size);
        if (!file) { fprintf(stderr, "from_memory: cannot read %s\n", path); return 1; }
        model_desc.data = file;
    }
    context_desc.n_ctx = 64;
    failed = prediff_model_open(&model, &model_desc, &error) || prediff_context_create(&context, model, &context_desc, &error) ||
             prediff_write(context, "Tom and his mother went to the", 32, NULL, text, sizeof text, &error);
    if (failed) fprintf(stderr, "from_memory: %s\n", error.message);
    else printf("model of %lu bytes %s\nTom and his mother went to the%s\n", (unsigned long)model_desc.size, file ? "read into memory" : "in the program", text);
    prediff_context_destroy(context);
    prediff_model_close(model);
    free(file);
    return failed;
}
