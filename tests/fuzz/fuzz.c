/* SPDX-License-Identifier: MIT
 * Fuzz targets. The first byte of an input names the target, so that one corpus serves all:
 *
 *     0 gguf      the rest is opened as a model and used            1 encode    kind of tokenizer, then text
 *     2 decode    kind of tokenizer, then ids of 2 bytes            3 generate  settings, then a prompt and a target
 *
 * With PD_FUZZ_ONLY=N defined other targets' inputs are refused. Without libFuzzer, PD_REPLAY gives a main that runs files, and
 * of each a few beginnings. What must hold is checked with `must`; a broken promise aborts.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "../corpus.h"
#include "../pd_use.h"

#define must(what, cond) do { if (!(cond)) { fprintf(stderr, "fuzz: %s\n", what); abort(); } } while (0)

enum { GGUF_TARGET, ENCODE_TARGET, DECODE_TARGET, GENERATE_TARGET, N_TARGETS };
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Tokenizers, made once: byte-level with three splitters, SentencePiece. */
static const prediff_model *tokenizer(unsigned kind) {
    static prediff_model *m[4];
    static const char *const pre[] = { "gpt-2", "llama-bpe", "smollm" };
    pd_gguf *g;
    kind %= 4;
    if (m[kind]) return m[kind];
    g = pd_base(kind == 3 ? BASE_SPM : BASE_BPE);
    if (kind < 3) pd_set_string(g, "tokenizer.ggml.pre", pre[kind]);
    return m[kind] = pd_gguf_open(g);
}

static void fuzz_gguf(const uint8_t *data, size_t n) {
    pd_used u = pd_use_bytes(data, n);
    if (u.broken) fprintf(stderr, "%s\n", u.broken);
    must("a promise about files", !u.broken);
}

static void fuzz_encode(const uint8_t *data, size_t n) {
    const prediff_model *m = tokenizer(n ? data[0] : 0);
    unsigned flags = n ? data[0] >> 2 & 3 : 0;
    const char *text = (const char *)data + (n > 0);
    size_t bytes = n ? n - 1 : 0, count, got, i, prompt;
    int32_t *ids;
    char *out;
    prediff_model_info info;
    prediff_status s = prediff_encode(m, text, bytes, flags, NULL, 0, &count, NULL);
    prediff_model_get_info(m, &info);
    must("size query", s == PREDIFF_OK ? count == 0 : s == PREDIFF_ERR_LIMIT);
    must("at most a token a byte, a prefix, a begin", count <= bytes + 4);
    ids = (int32_t *)malloc((count + 1) * sizeof *ids);
    out = (char *)malloc(bytes * 8 + 64);
    must("memory", ids && out);
    must("encode", prediff_encode(m, text, bytes, flags, ids, count, &got, NULL) == PREDIFF_OK && got == count);
    for (i = 0; i < count; i++) must("ids are in range", ids[i] >= 0 && (size_t)ids[i] < info.n_tokens);
    must("decode", prediff_decode(m, ids, count, 1, out, bytes * 8 + 64, &got, NULL) == PREDIFF_OK);
    if (flags == 0 && !(info.tokenizer[0] == 'l' && memchr(text, 0xE2, bytes)))       /* U+2581 comes back as a space */
        must("round trip", got == bytes && memcmp(out, text, bytes) == 0);
    prediff_template(m, text, bytes, flags & 1, ids, count, &got, &prompt, NULL);
    free(ids); free(out);
}

static void fuzz_decode(const uint8_t *data, size_t n) {
    const prediff_model *m = tokenizer(n ? data[0] : 0);
    size_t room = prediff_max_token_bytes(m) + 4, i, got;
    char *piece = (char *)malloc(room);
    prediff_decoder d;
    prediff_model_info info;
    must("memory", piece != NULL);
    memset(&d, 0, sizeof d);
    prediff_model_get_info(m, &info);
    for (i = 1; i + 1 < n; i += 2) {
        int32_t id = (int32_t)(int16_t)(data[i] | data[i + 1] << 8);
        prediff_status s = prediff_decode_next(m, &d, id, data[0] >> 2 & 1, piece, room, &got, NULL);
        must("ids out of range are refused", (s == PREDIFF_OK) == (id >= 0 && (size_t)id < info.n_tokens));
        if (!s) must("pieces fit and are terminated", got < room && piece[got] == 0);
    }
    must("the end fits", prediff_decode_end(&d, piece, room, &got, NULL) == PREDIFF_OK && got <= 3);
    free(piece);
}

typedef struct bytes_left { const uint8_t *p; size_t n; } bytes_left;
static unsigned byte_of(bytes_left *b) { unsigned v = b->n ? *b->p : 0; if (b->n) { b->p++; b->n--; } return v; }

/* Logits from the input: small numbers, and now and then something impossible. */
static void strange_hook(void *user, size_t sample, size_t position, float *logits, size_t n_vocab) {
    bytes_left *b = (bytes_left *)user;
    unsigned v = byte_of(b);
    uint32_t odd = v & 1 ? 0x7FC00000u : v & 2 ? 0x7F800000u : v & 4 ? 0xFF800000u : 0x7F7FFFFFu;
    (void)sample; (void)position;
    if (v < 128) return;
    memcpy(&logits[(v * 2 + byte_of(b)) % n_vocab], &odd, 4);
}

static int maybe_stop(void *user, const prediff_step_info *info) { (void)info; return byte_of((bytes_left *)user) == 255; }

static void fuzz_generate(const uint8_t *data, size_t n) {
    static prediff_model *models[3];
    static const double values[] = { 0, 0, 0.5, 1, 0.9, 1e-30, 2, -1, 1e30 };
    prediff_context_desc cd;
    prediff_generate_desc d;
    prediff_context *c;
    prediff_result r;
    bytes_left b;
    int32_t target[2 * 24], prompt[8];
    float logprob[2 * 24];
    int32_t at[2 * 24];
    size_t i, T, P, samples, masks = 0;
    unsigned which;
    prediff_status s;
    b.p = data; b.n = n;
    which = byte_of(&b) % 3;
    if (!models[which]) {
        pd_tiny t;
        memset(&t, 0, sizeof t);
        t.ctx = 32; t.embd = 8; t.heads = 2; t.heads_kv = 1; t.ff = 8; t.layers = 1;
        t.noise_dim = which == 1 ? 4 : 0; t.redraw = which == 1; t.shift = which == 2; t.no_mask = which == 2; t.mask_id = which == 2 ? 263 : 0;
        models[which] = pd_tiny_open(&t);
    }
    memset(&cd, 0, sizeof cd); memset(&d, 0, sizeof d); memset(&r, 0, sizeof r);
    cd.n_samples = 2;
    cd.attention = (prediff_attention)(byte_of(&b) % 4);
    must("context", prediff_context_create(&c, models[which], &cd, NULL) == PREDIFF_OK);
    d.sampler = (prediff_sampler)(byte_of(&b) % 5); d.order = (prediff_order)(byte_of(&b) % 5); d.schedule = (prediff_schedule)(byte_of(&b) % 5);
    d.n_steps = byte_of(&b) % 32; d.samples = byte_of(&b) % 4; d.block = byte_of(&b) % 12; d.window = byte_of(&b) % 4; d.no_repeat = byte_of(&b) % 4;
    d.temperature = values[byte_of(&b) % 9]; d.temperature_end = values[byte_of(&b) % 9]; d.top_p = values[byte_of(&b) % 9];
    d.threshold = values[byte_of(&b) % 9]; d.entropy_bound = values[byte_of(&b) % 9]; d.eos_penalty = values[byte_of(&b) % 9];
    d.top_k = byte_of(&b) % 5; d.stop_sure = (int)(byte_of(&b) % 2); d.ignore_eos = (int)(byte_of(&b) % 2); d.noise = (prediff_noise)(byte_of(&b) % 4);
    d.seed = byte_of(&b); d.no_rate = (int)(byte_of(&b) % 2); d.no_selfcond = (int)(byte_of(&b) % 2); d.selfcond_masked_only = (int)(byte_of(&b) % 2);
    if (byte_of(&b) % 2) d.logit_hook = strange_hook;
    if (byte_of(&b) % 2) d.on_step = maybe_stop;
    d.user = &b;
    d.logprob = logprob; d.revealed_at = at;
    P = byte_of(&b) % 9; T = byte_of(&b) % 25;
    for (i = 0; i < P; i++) prompt[i] = (int32_t)(byte_of(&b) % 250);
    samples = d.samples ? d.samples : 1;
    for (i = 0; i < 48; i++) { unsigned v = byte_of(&b); target[i] = v < 160 ? PREDIFF_MASK : (int32_t)v; }
    must("prompt", prediff_prompt(c, prompt, P, NULL, NULL) == PREDIFF_OK);
    s = prediff_generate(c, target, T, &d, &r, NULL);
    for (i = 0; i < 48; i++) must("ids stay ids", target[i] == PREDIFF_MASK || (target[i] >= 0 && target[i] < 264));
    for (i = 0; samples <= 2 && i < samples * T; i++) masks += target[i] == PREDIFF_MASK;
    if (s == PREDIFF_OK) must("OK leaves no mask", masks == 0 && r.n_masks_left == 0);
    if (s == PREDIFF_ERR_CANCELLED) must("masks left are told", r.n_masks_left == masks);
    must("a bug was reported", s != PREDIFF_ERR_INTERNAL);
    must("the prompt is as before", prediff_prompt_length(c) == P);
    prediff_context_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    unsigned target = n ? data[0] % N_TARGETS : 0;
    if (n == 0) return 0;
#ifdef PD_FUZZ_ONLY
    if (target != PD_FUZZ_ONLY) return -1;
#endif
    data++; n--;
    switch (target) {
    case ENCODE_TARGET: fuzz_encode(data, n); break;
    case DECODE_TARGET: fuzz_decode(data, n); break;
    case GENERATE_TARGET: fuzz_generate(data, n); break;
    default: fuzz_gguf(data, n); break;
    }
    return 0;
}

#ifdef PD_REPLAY
#include "../pd_test.h"

static char **replay_files;
static int replay_count;

static void test_replay(void) {
    int i;
    size_t n, k;
    for (i = 0; i < replay_count; i++) {
        uint8_t *b = pd_read_file(replay_files[i], &n);
        if (!PD_CHECKF(b != NULL, "cannot read %s", replay_files[i])) continue;
        printf("-- %s\n", replay_files[i]);        /* the last name before a crash is the culprit */
        for (k = 1; k <= 16; k++) LLVMFuzzerTestOneInput(b, n * k / 16);
        free(b);
    }
}

int main(int argc, char **argv) {
    replay_files = argv + 1;
    replay_count = argc - 1;
    pd_args(argv[0], NULL);
    PD_RUN(test_replay);
    return PD_END();
}
#endif
