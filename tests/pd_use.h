/* SPDX-License-Identifier: MIT
 * pd_use.h: opens any bytes as a model and, where that works, does a little of everything with it. What must hold whatever
 * the bytes are is checked here; tests and fuzz targets share it. Include after pd_gguf.h.
 */
#ifndef PD_USE_H
#define PD_USE_H

typedef struct pd_used {
    prediff_status status; prediff_item item;      /* of opening */
    int generated;                                 /* a step ran */
    const char *broken;                            /* the promise that was broken; NULL: none */
    prediff_error error;
} pd_used;

PD_TINY_FN int pd_printable(const prediff_error *e) {
    size_t i;
    for (i = 0; i < sizeof e->message && e->message[i]; i++) if (e->message[i] < 32 || e->message[i] > 126) return 0;
    return i > 0 && i < sizeof e->message;
}

/* A few masks in one step, then a score; tokens must be ids, masks counted. */
PD_TINY_FN const char *pd_use_context(const prediff_model *m, const prediff_model_info *info, pd_used *u) {
    prediff_context_desc cd;
    prediff_generate_desc gd;
    prediff_score_desc sd;
    prediff_score_result score;
    prediff_result r;
    prediff_context *c = NULL;
    prediff_status s;
    int32_t prompt[2] = { 0, 0 }, target[4] = { -1, 0, -1, -1 };
    size_t i, masks = 0, n = info->n_ctx < 6 ? info->n_ctx : 6, given = n > 2 ? 2 : 0;
    memset(&cd, 0, sizeof cd); memset(&gd, 0, sizeof gd); memset(&sd, 0, sizeof sd);
    cd.n_ctx = n;
    s = prediff_context_create(&c, m, &cd, &u->error);
    if (s) return c ? "a failed creation left a context" : NULL;
    n -= given;
    if (info->shift) target[0] = 0;
    gd.n_steps = 1;
    gd.temperature = 0.7;
    if (!info->has_mask) gd.sampler = PREDIFF_CAUSAL_DECODING;
    if (!info->has_mask) target[1] = -1;
    s = prediff_prompt(c, prompt, given, NULL, &u->error);
    if (!s) s = prediff_generate(c, target, n, &gd, &r, &u->error);
    for (i = 0; i < n; i++) {
        if (target[i] == PREDIFF_MASK) masks++;
        else if (target[i] < 0 || (size_t)target[i] >= info->n_vocab) return "a token is no id";
        else if (info->n_tokens && (size_t)target[i] >= info->n_tokens) return "a token beyond the vocabulary was made";
    }
    u->generated = s == PREDIFF_OK;
    if (!s && masks) return "generate said OK and left masks";
    if (!s && r.n_masks_left) return "masks left are miscounted";
    if (!s) for (i = 0; i < n; i++) if (target[i] == info->mask && info->mask >= 0) return "the mask id was generated";
    sd.kind = info->has_mask ? PREDIFF_SCORE_NELBO : PREDIFF_SCORE_CAUSAL;
    sd.draws = 2;
    for (i = 0; i < n; i++) target[i] = 0;
    prediff_score(c, target, n, &sd, &score, &u->error);
    if (prediff_prompt_length(c) > given) return "the prompt grew";
    prediff_context_destroy(c);
    return NULL;
}

PD_TINY_FN const char *pd_use_text(const prediff_model *m, pd_used *u) {
    static const char text[] = "ab the <s> caf\xC3\xA9 \xFF\n  123";
    int32_t ids[64];
    char out[512];
    size_t n = 0, need = 0, bytes, i;
    prediff_model_info info;
    prediff_decoder d;
    prediff_status s = prediff_encode(m, text, sizeof text - 1, PREDIFF_ENCODE_BOS | PREDIFF_ENCODE_SPECIAL, NULL, 0, &need, &u->error);
    prediff_model_get_info(m, &info);
    if (s != PREDIFF_ERR_LIMIT) return s == PREDIFF_OK && need ? "a size query wrote ids" : NULL;
    s = prediff_encode(m, text, sizeof text - 1, PREDIFF_ENCODE_BOS | PREDIFF_ENCODE_SPECIAL, ids, 64, &n, &u->error);
    if (s || n != need) return s == PREDIFF_ERR_LIMIT ? NULL : "encoding is not what the size query said";
    for (i = 0; i < n; i++) if (ids[i] < 0 || (size_t)ids[i] >= info.n_tokens) return "encoding made an id outside the vocabulary";
    prediff_decode(m, ids, n, 1, out, sizeof out, &bytes, &u->error);
    memset(&d, 0, sizeof d);
    for (i = 0; i < n; i++) {
        s = prediff_decode_next(m, &d, ids[i], 1, out, sizeof out, &bytes, &u->error);
        if (s && prediff_max_token_bytes(m) + 4 <= sizeof out) return "a token does not fit in prediff_max_token_bytes + 4";
        if (!s && bytes != strlen(out) && !memchr(out, 0, bytes)) return "streamed text is not terminated";
    }
    return NULL;
}

/* Opens a copy in a block of exactly n bytes, so that a sanitiser sees every byte read beyond it. */
PD_TINY_FN pd_used pd_use_bytes(const uint8_t *bytes, size_t n) {
    uint8_t *exact = (uint8_t *)malloc(n ? n : 1);
    prediff_model_desc d;
    prediff_model_info info;
    prediff_model *m = (prediff_model *)(void *)&d;
    pd_heap heap;
    pd_used u;
    if (!exact) abort();
    if (n) memcpy(exact, bytes, n);
    memset(&d, 0, sizeof d); memset(&u, 0, sizeof u);
    d.data = exact; d.size = n;
    d.allocator = pd_heap_allocator(&heap);
    u.status = prediff_model_open(&m, &d, &u.error);
    u.item = u.status ? u.error.item : PREDIFF_ITEM_NONE;
    if (heap.most > 65536 + 24 * n) u.broken = "opening took more memory than 64 kB + 24 bytes a byte";
    if (u.status && m) u.broken = "a failed open left a model";
    if (u.status && (u.error.status != u.status || !u.item || !pd_printable(&u.error))) u.broken = "the error is not filled in";
    if (!u.status) {
        prediff_model_get_info(m, &info);
        u.broken = pd_use_text(m, &u);
        if (!u.broken) u.broken = pd_use_context(m, &info, &u);
        prediff_model_close(m);
    }
    if (!u.broken && (heap.live || heap.bytes)) u.broken = "memory was not given back";
    if (!u.broken && heap.wrong) u.broken = "memory was given back with another size";
    free(exact);
    return u;
}

#endif /* PD_USE_H */
