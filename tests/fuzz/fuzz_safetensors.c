/* SPDX-License-Identifier: MIT
 * Fuzz target: the header of a safetensors file, and an index of shards. Byte 0: 'i' an index, else a header; byte 1: how many
 * bytes of data follow the header.
 */
#include "fuzz_convert.h"

static void fuzz_header(char *text, size_t n, uint64_t size) {
    cv_pool p = { NULL };
    cv_error e;
    cv_tensor *t = NULL;
    size_t count = 0, i;
    uint32_t k;
    if (fuzz_result(cv_safetensors_header(&p, "fuzz", text, n, size, &t, &count, &e), &e)) {
        uint64_t sum = 0;
        for (i = 0; i < count; i++) {
            const cv_dtype *d = cv_dtype_of(t[i].dtype);
            uint64_t bits = d ? d->bits : 0;
            must("tensors lie in the file", t[i].begin >= 8 + n && t[i].begin <= size && t[i].size <= size - t[i].begin);
            must("dimensions are few", t[i].n_dims <= 8);
            for (k = 0; k < t[i].n_dims; k++) bits *= t[i].dims[k];
            must("shape, type and size agree", !d || bits == 8 * t[i].size);
            sum += t[i].size;
        }
        must("tensors fill the data", sum == size - 8 - n);
    }
    cv_pool_free(&p);
}

static void fuzz_index(char *text, size_t n) {
    cv_pool p = { NULL };
    cv_error e;
    cv_shards *x = (cv_shards *)calloc(1, sizeof *x);
    size_t i;
    must("memory", x != NULL);
    x->path = "fuzz";
    x->folder = ".";
    if (fuzz_result(cv_index_read(&p, x, text, n, &e), &e)) {
        for (i = 0; i < x->n_shards; i++) must("shards have plain names", cv_is_plain_name(x->shards[i]));
        for (i = 0; i < x->n; i++) must("each tensor has a shard", x->map[i].shard < x->n_shards);
    }
    cv_pool_free(&p);
    free(x);
}

static void fuzz(const uint8_t *data, size_t n) {
    char *text;
    if (n < 2) return;
    text = pd_exactly(data + 2, n - 2);
    if (data[0] == 'i') fuzz_index(text, n - 2);
    else fuzz_header(text, n - 2, 8 + (n - 2) + (uint64_t)data[1]);
    free(text);
}
