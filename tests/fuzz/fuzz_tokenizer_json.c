/* SPDX-License-Identifier: MIT
 * Fuzz target: tokenizer.json, from its text to an opened tokenizer that encodes and decodes.
 */
#include "fuzz_convert.h"

static void fuzz_use(const prediff_model *m) {
    static const char text[] = "Hello the abc, \xC3\xA9\xF0\x9F\x98\x80 42\n  ab";
    int32_t ids[256];
    char out[4096];
    size_t n = 0, k, i;
    prediff_model_info info;
    prediff_model_get_info(m, &info);
    if (prediff_encode(m, text, sizeof text - 1, PREDIFF_ENCODE_SPECIAL, ids, 256, &n, NULL) != PREDIFF_OK) return;
    for (i = 0; i < n; i++) must("ids are in range", ids[i] >= 0 && (size_t)ids[i] < info.n_tokens);
    prediff_decode(m, ids, n, 1, out, sizeof out, &k, NULL);
}

static void fuzz(const uint8_t *data, size_t n) {
    cv_pool p = { NULL };
    cv_error e;
    cv_vocab v;
    char *text = pd_exactly(data, n);
    if (fuzz_result(cv_tokenizer_json(&p, "fuzz", text, n, &v, &e), &e)) {
        prediff_model *m;
        prediff_error err;
        pd_bytes b;
        must("a vocabulary", v.n > 0 && v.n <= 2 * n + 256);
        must("special ids", v.bos < (int64_t)v.n && v.eos < (int64_t)v.n && v.unk < (int64_t)v.n && v.pad < (int64_t)v.n && v.mask < (int64_t)v.n);
        if (pd_open_vocab(&p, &v, &b, &m, &err) == PREDIFF_OK) fuzz_use(m);
        prediff_model_close(m);
        free(b.p);
    }
    cv_pool_free(&p);
    free(text);
}
