/* SPDX-License-Identifier: MIT
 * pd_convert.h: the converter without its main, for tests and fuzz targets, and a way from a vocabulary to an opened model.
 */
#ifndef PD_CONVERT_H
#define PD_CONVERT_H

#define CV_NO_MAIN
#ifndef CONVERT_FILE
#define CONVERT_FILE "../tools/prediff-convert.c"
#endif
#include CONVERT_FILE
#ifdef PD_MALLOC                       /* a test's own, for the code above alone */
#undef malloc
#undef calloc
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PD_CONVERT_FN static __attribute__((unused))
#else
#define PD_CONVERT_FN static
#endif

/* Readers decode in place: a copy, in a block of exactly its size so that reading past it is seen by the address sanitiser. */
PD_CONVERT_FN char *pd_exactly(const void *bytes, size_t n) {
    char *p = (char *)malloc(n ? n : 1);
    if (!p) abort();
    if (n) memcpy(p, bytes, n);
    return p;
}

/* What an error must be like, whatever the input; NULL, or what is wrong with it. */
PD_CONVERT_FN const char *pd_wrong_error(const cv_error *e) {
    size_t i;
    if (e->item <= CV_ITEM_NONE || e->item >= CV_ITEM_COUNT) return "an error without an item";
    for (i = 0; i < sizeof e->message && e->message[i]; i++) if (e->message[i] < 32 || e->message[i] > 126) return "a message that is not printable";
    return i == 0 || i == sizeof e->message ? "no message, or one without end" : NULL;
}

#ifndef CONVERT_PARTIAL
typedef struct pd_bytes { uint8_t *p; size_t n, capacity; } pd_bytes;

PD_CONVERT_FN int pd_bytes_write(void *user, const void *bytes, size_t n) {
    pd_bytes *b = (pd_bytes *)user;
    if (b->capacity - b->n < n) {
        uint8_t *p;
        b->capacity = 2 * b->capacity + n;
        p = (uint8_t *)realloc(b->p, b->capacity);
        if (!p) abort();
        b->p = p;
    }
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
    return 0;
}

/* A GGUF file with this vocabulary and nothing else, opened; its bytes are b, to be freed after the model is closed. */
PD_CONVERT_FN prediff_status pd_open_vocab(cv_pool *pool, const cv_vocab *v, pd_bytes *b, prediff_model **m, prediff_error *err) {
    cv_keys keys;
    cv_error e;
    prediff_save_desc s;
    prediff_model_desc d;
    prediff_status status;
    memset(&keys, 0, sizeof keys); memset(&s, 0, sizeof s); memset(&d, 0, sizeof d); memset(b, 0, sizeof *b);
    *m = NULL;
    if (cv_key_string(pool, &keys, "general.architecture", cv_str("llama"), &e) || cv_vocab_keys(pool, v, &keys, &e)) {
        err->item = PREDIFF_ITEM_NONE;
        memcpy(err->message, e.message, sizeof err->message - 1);
        err->message[sizeof err->message - 1] = 0;
        return PREDIFF_ERR_INTERNAL;
    }
    s.keys = keys.keys; s.n_keys = keys.n;
    s.write = pd_bytes_write;
    s.user = b;
    status = prediff_save(&s, err);
    if (status) return status;
    d.data = b->p; d.size = b->n;
    d.vocab_only = 1;
    return prediff_model_open(m, &d, err);
}
#endif
#endif /* PD_CONVERT_H */
