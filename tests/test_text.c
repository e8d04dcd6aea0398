/* SPDX-License-Identifier: MIT
 * Text to ids and back: any bytes survive, streams never show half a character, buffers are never overrun, special tokens
 * stay plain text unless asked for, long texts take linear time.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_test.h"
#include "corpus.h"
#include <locale.h>
#include <time.h>

/* The kinds of tokenizer: byte-level with each splitter, SentencePiece. */
enum { KINDS = 5, SPM = 4 };
static prediff_model *open_kind(int kind) {
    static const char *const pre[] = { "gpt-2", "llama-bpe", "smollm", "qwen2" };
    pd_gguf *g = pd_base(kind == SPM ? BASE_SPM : BASE_BPE);
    if (kind < SPM) pd_set_string(g, "tokenizer.ggml.pre", pre[kind]);
    return pd_gguf_open(g);
}

static uint32_t random_state;
static uint32_t random_below(uint32_t n) { random_state = random_state * 1664525u + 1013904223u; return (random_state >> 8) % n; }

static int32_t *encode(const prediff_model *m, const char *text, size_t n, unsigned flags, size_t *count) {
    int32_t *ids;
    prediff_error e;
    prediff_status s = prediff_encode(m, text, n, flags, NULL, 0, count, &e);
    if (*count) pd_status((int)s, PREDIFF_ERR_LIMIT, &e, PREDIFF_ITEM_BUFFER_SIZE, __FILE__, __LINE__, "size query");
    ids = (int32_t *)malloc((*count + 1) * sizeof *ids);
    if (!ids) abort();
    PD_STATUS(prediff_encode(m, text, n, flags, ids, *count, count, &e), &e, OK, NONE);
    return ids;
}

static int round_trip(const prediff_model *m, const char *text, size_t n) {
    size_t count, bytes = 0;
    int32_t *ids = encode(m, text, n, 0, &count);
    char *out = (char *)malloc(n + 1);
    prediff_error e;
    prediff_status s = prediff_decode(m, ids, count, 0, out, n, &bytes, &e);
    int same = !s && bytes == n && (!n || memcmp(out, text, n) == 0);
    free(ids); free(out);
    return same;
}

/* -- any bytes -- */

/* Pieces that splitters and UTF-8 decoders care about. */
static const char *const pieces[] = { "a", "Z", "the", " the", " ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", "'re", "7", "12345", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xCC\x81",
    "\xE0\xA4\xA8\xE0\xA5\x8D", "\xC2\xA0", "\xE3\x80\x80", "\xE4\xBD\xA0\xE5\xA5\xBD", "\xD9\xA1", "!", "...", "<|end|>", "<s>", "</s>", "<0x41>", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F", "\xED\xA0\x80", "\xC0\xAF", "\xF4\x90\x80\x80", "\x80" };

static size_t random_text(char *out, size_t room) {
    size_t n = 0, i, count = random_below(20);
    for (i = 0; i < count; i++) {
        const char *p = pieces[random_below(sizeof pieces / sizeof *pieces)];
        if (random_below(8) == 0) { if (n < room) out[n++] = (char)random_below(256); continue; }
        if (n + strlen(p) <= room) { memcpy(out + n, p, strlen(p)); n += strlen(p); }
    }
    return n;
}

static void test_round_trip(void) {
    int kind, i;
    random_state = pd_seed;
    for (kind = 0; kind < KINDS; kind++) {
        prediff_model *m = open_kind(kind);
        char text[256];
        for (i = 0; i < 3000; i++) {
            size_t n = random_text(text, sizeof text);
            PD_CHECKF(round_trip(m, text, n), "kind %d, text %d of seed %u", kind, i, (unsigned)pd_seed);
        }
        for (i = 0; i < 65536; i++) {              /* every pair of bytes */
            text[0] = (char)(i >> 8); text[1] = (char)i;
            if (!round_trip(m, text, 2)) PD_CHECKF(0, "kind %d, bytes %04x", kind, (unsigned)i);
        }
        PD_CHECK(round_trip(m, "a\0b\0", 4) && round_trip(m, "", 0));
        prediff_model_close(m);
    }
}

/* -- known answers -- */

static void expect_ids(const prediff_model *m, const char *text, unsigned flags, const char *ids_text) {
    size_t count, i, at = 0;
    int32_t *ids = encode(m, text, strlen(text), flags, &count);
    char got[512] = "";
    for (i = 0; i < count && at < 480; i++) at += (size_t)snprintf(got + at, sizeof got - at, i ? " %d" : "%d", (int)ids[i]);
    PD_CHECKF(strcmp(got, ids_text) == 0, "'%s': %s, not %s", text, got, ids_text);
    free(ids);
}

/* Merges in order: a b -> 257, ab c -> 258, _ a -> 259, t h -> 260, th e -> 261, _ the -> 262. Byte b has id b. */
static void test_bpe_by_hand(void) {
    prediff_model *m = open_kind(0);
    expect_ids(m, "ab", 0, "257");
    expect_ids(m, "abc", 0, "258");
    expect_ids(m, "abab", 0, "257 257");
    expect_ids(m, " ab", 0, "32 257");             /* "a b" comes before "_ a" */
    expect_ids(m, " a", 0, "259");
    expect_ids(m, "the the", 0, "261 262");
    expect_ids(m, "thethe", 0, "261 261");
    expect_ids(m, "ab's", 0, "257 39 115");
    expect_ids(m, "ab  ab", 0, "257 32 32 257");
    expect_ids(m, "12345", 0, "49 50 51 52 53");
    expect_ids(m, "", 0, "");
    prediff_model_close(m);
}

/* SentencePiece: text gets a space before it; the best-scored piece joins first; unknown characters become bytes (id 3 + b). */
static void test_spm_by_hand(void) {
    prediff_model *m = open_kind(SPM);
    expect_ids(m, "a", 0, "262");                  /* _a beats a */
    expect_ids(m, "ab", 0, "264");                 /* _a, then _ab */
    expect_ids(m, "a b", 0, "262 259 261");
    expect_ids(m, "\xC3\xA9", 0, "259 265");
    expect_ids(m, "\xC3\xA8", 0, "259 198 171");
    expect_ids(m, "c", PREDIFF_ENCODE_BOS, "1 259 266");
    expect_ids(m, "c</s>", PREDIFF_ENCODE_SPECIAL, "259 266 2");
    prediff_model_close(m);
}

/* K10: llama-bpe takes a whole word that is a token even where merges do not lead to it; the others do not. */
static void test_k10_ignore_merges(void) {
    static const char *const few[] = { "a b" }, *const pre[] = { "gpt-2", "llama-bpe", "smollm", "qwen2" };
    int k;
    for (k = 0; k < 4; k++) {
        pd_gguf *g = pd_base(BASE_BPE);
        prediff_model *m;
        pd_set_strings(g, "tokenizer.ggml.merges", few, 1);
        pd_set_string(g, "tokenizer.ggml.pre", pre[k]);
        m = pd_gguf_open(g);
        expect_ids(m, "the", 0, k == 1 ? "261" : "116 104 101");
        prediff_model_close(m);
    }
}

/* -- splitters -- */

/* A byte-level vocabulary with these seven merges and their tokens (ids 257 to 263) alone. */
static prediff_model *open_with_merges(const char *pre, const char *const merges[7]) {
    pd_gguf *g = pd_base(BASE_BPE);
    size_t i, n, at = g->entries[pd_entry(g, "tokenizer.ggml.tokens")].name + strlen("tokenizer.ggml.tokens") + 16;
    static char copy[264][16];
    const char *tokens[264];
    for (i = 0; i < 264; i++, at += 8 + n) {
        n = (size_t)pd_get(g->head.p + at, 8);
        memset(copy[i], 0, sizeof copy[i]);
        if (i < 257) memcpy(copy[i], g->head.p + at + 8, n);
        else { size_t first = strcspn(merges[i - 257], " "); memcpy(copy[i], merges[i - 257], first); strcpy(copy[i] + first, merges[i - 257] + first + 1); }
        tokens[i] = copy[i];
    }
    pd_set_strings(g, "tokenizer.ggml.tokens", tokens, 264);
    pd_set_strings(g, "tokenizer.ggml.merges", merges, 7);
    pd_set_string(g, "tokenizer.ggml.pre", pre);
    return pd_gguf_open(g);
}

typedef struct split_case { const char *text, *qwen2, *llama, *gpt2; } split_case;   /* NULL: as qwen2 */

static void check_splits(const char *const merges[7], const split_case *cases, size_t n) {
    static const char *const pre[] = { "qwen2", "deepseek-r1-qwen", "llama-bpe", "gpt-2" }, *const names[] = { "qwen2", "qwen2", "llama-bpe", "gpt-2" };
    size_t i, k;
    for (k = 0; k < 4; k++) {
        prediff_model *m = open_with_merges(pre[k], merges);
        prediff_model_info info;
        prediff_model_get_info(m, &info);
        PD_CHECKF(strcmp(info.splitter, names[k]) == 0, "%s is taken for %s", pre[k], info.splitter);
        for (i = 0; i < n; i++) {
            const char *other = k == 2 ? cases[i].llama : k == 3 ? cases[i].gpt2 : NULL;
            expect_ids(m, cases[i].text, 0, other ? other : cases[i].qwen2);
        }
        prediff_model_close(m);
    }
}

/* What is in two pieces cannot merge. Newline is spelt U+010A, return U+010D, tab U+0109, space U+0120. */
static void test_qwen2_by_hand(void) {
    static const char *const letters[7] = { "1 2", "s x", "' s", "S x", "! \xC4\x8A", "\xC4\x8D \xC4\x8A", "\xC4\x8A a" };
    static const char *const spaces[7] = { "\xC4\xA0 1", "\xC4\x89 a", "\xC4\xA0 \xC4\xA0", "1 a", "\xC4\xA0 !", "\xC4\x8A \xC4\x8A", "\xC4\xA0 \xC4\x8A" };
    static const split_case a[] = {
        { "12", "49 50", "257", "257" }, { "x12y", "120 49 50 121", "120 257 121", "120 257 121" }, { "1212", "49 50 49 50", "257 49 50", "257 257" },
        { "'sx", "259 120", NULL, NULL }, { "!sx", "33 258", NULL, NULL }, { "'Sx", "39 83 120", NULL, "39 260" }, { "sx", "258", NULL, NULL },
        { "!\n", "261", NULL, "33 10" }, { "!\r\n", "33 262", NULL, NULL }, { "\r\n\r\na", "262 262 97", NULL, "262 13 10 97" }, { "\na", "10 97", NULL, NULL } };
    static const split_case b[] = {
        { " 1", "32 49", NULL, "257" }, { "   1", "259 32 49", NULL, "259 257" }, { "1a", "49 97", NULL, NULL }, { "\ta", "258", NULL, "9 97" },
        { " !", "261", NULL, NULL }, { "  !", "32 261", NULL, NULL }, { "a\n\n", "97 262", NULL, NULL }, { "a \n\nb", "97 32 262 98", NULL, "97 263 10 98" },
        { "a\n b", "97 10 32 98", NULL, NULL }, { "a  ", "97 259", NULL, NULL } };
    check_splits(letters, a, sizeof a / sizeof *a);
    check_splits(spaces, b, sizeof b / sizeof *b);
}

/* -- special tokens -- */

/* A byte-level vocabulary whose token `id` has this text and type. */
static prediff_model *open_with_tokens(const char *const text[2], uint32_t type) {
    pd_gguf *g = pd_base(BASE_BPE);
    size_t i, count, n, at = g->entries[pd_entry(g, "tokenizer.ggml.tokens")].name + strlen("tokenizer.ggml.tokens") + 16;
    static char copy[264][40];
    const char *tokens[264];
    count = 264;
    for (i = 0; i < count; i++, at += 8 + n) {
        n = (size_t)pd_get(g->head.p + at, 8);
        memcpy(copy[i], g->head.p + at + 8, n);
        copy[i][n] = 0;
        tokens[i] = i == 256 ? text[0] : i == 263 ? text[1] : copy[i];
    }
    pd_set_strings(g, "tokenizer.ggml.tokens", tokens, count);
    at = g->entries[pd_entry(g, "tokenizer.ggml.token_type")].end;
    pd_set(g->head.p + at - 4, 4, type);           /* of id 263 */
    return pd_gguf_open(g);
}

static void test_k14_special_text_is_plain(void) {
    prediff_model *m = open_kind(0);
    expect_ids(m, "<|end|>", 0, "60 124 101 110 100 124 62");
    expect_ids(m, "a<|end|>a", PREDIFF_ENCODE_SPECIAL, "97 256 97");
    expect_ids(m, "<|end|", PREDIFF_ENCODE_SPECIAL, "60 124 101 110 100 124");
    PD_CHECK(prediff_token_is_special(m, 256) && !prediff_token_is_special(m, 97) && !prediff_token_is_special(m, -1) && !prediff_token_is_special(m, 9999));
    PD_CHECK(prediff_token_ends(m, 256) && !prediff_token_ends(m, 255) && !prediff_token_ends(m, -1));
    PD_CHECK(prediff_token_text(m, 256).n == 7 && prediff_token_text(m, 264).bytes == NULL && prediff_token_text(m, -5).bytes == NULL);
    prediff_model_close(m);
}

/* One special token a prefix of another: the longest wins. User-defined ones match without being asked for. */
static void test_k13_longest_special(void) {
    static const char *const prefix[2] = { "<a>", "<a>b" };
    prediff_model *m = open_with_tokens(prefix, 3);
    expect_ids(m, "<a>", PREDIFF_ENCODE_SPECIAL, "256");
    expect_ids(m, "<a>b", PREDIFF_ENCODE_SPECIAL, "263");
    expect_ids(m, "<a><a>b<a>c", PREDIFF_ENCODE_SPECIAL, "256 263 256 99");
    expect_ids(m, "<a>b", 0, "60 97 62 98");
    prediff_model_close(m);
    m = open_with_tokens(prefix, 4);
    expect_ids(m, "x<a>b", 0, "120 263");
    expect_ids(m, "x<a>", 0, "120 60 97 62");
    PD_CHECK(round_trip(m, "x<a>b", 5));
    prediff_model_close(m);
}

static void test_special_output(void) {
    prediff_model *m = open_kind(0);
    int32_t ids[3] = { 97, 256, 98 };
    char out[16];
    size_t n;
    prediff_error e;
    PD_STATUS(prediff_decode(m, ids, 3, 0, out, 16, &n, &e), &e, OK, NONE);
    PD_CHECK(n == 2 && memcmp(out, "ab", 2) == 0);
    PD_STATUS(prediff_decode(m, ids, 3, 1, out, 16, &n, &e), &e, OK, NONE);
    PD_CHECK(n == 9 && memcmp(out, "a<|end|>b", 9) == 0);
    prediff_model_close(m);
}

/* -- buffers -- */

static void test_k17_k18_small_buffers(void) {
    static const char text[] = "the ab caf\xC3\xA9";
    prediff_model *m = open_kind(0);
    size_t count, bytes, room, i, n = sizeof text - 1;
    int32_t *ids = encode(m, text, n, 0, &count), small[32];
    prediff_error e;
    char out[64];
    PD_CHECK(count > 5 && count < 32);
    for (room = 0; room < count; room++) {
        size_t needed = 0;
        for (i = 0; i < 32; i++) small[i] = -77;
        PD_STATUS(prediff_encode(m, text, n, 0, small, room, &needed, &e), &e, ERR_LIMIT, BUFFER_SIZE);
        PD_CHECKF(needed == count, "%u needed", (unsigned)needed);
        for (i = 0; i < 32; i++) PD_CHECKF(small[i] == (i < room ? ids[i] : -77), "room %u: ids[%u]", (unsigned)room, (unsigned)i);
    }
    for (room = 0; room < n; room++) {
        memset(out, '#', sizeof out);
        PD_STATUS(prediff_decode(m, ids, count, 0, out, room, &bytes, &e), &e, ERR_LIMIT, BUFFER_SIZE);
        PD_CHECKF(bytes == n && out[room] == '#', "room %u", (unsigned)room);
    }
    free(ids);
    prediff_model_close(m);
}

static void test_k16_huge_text(void) {
    prediff_model *m = open_kind(0);
    prediff_error e;
    size_t n;
    PD_STATUS(prediff_encode(m, "a", UINT32_MAX, 0, NULL, 0, &n, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
    PD_STATUS(prediff_encode(m, "a", SIZE_MAX, 0, NULL, 0, &n, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
    prediff_model_close(m);
}

static void test_k19_ids_out_of_range(void) {
    static const int32_t bad[] = { -1, 264, INT32_MAX, INT32_MIN };
    prediff_model *m = open_kind(0);
    prediff_decoder d;
    prediff_error e;
    char out[16];
    size_t i, n;
    for (i = 0; i < 4; i++) {
        int32_t ids[2];
        ids[0] = 97; ids[1] = bad[i];
        memset(out, '#', sizeof out); memset(&d, 0, sizeof d);
        PD_STATUS(prediff_decode(m, ids, 2, 0, out, 16, &n, &e), &e, ERR_ARG, TOKEN_RANGE);
        PD_CHECK(out[0] == '#' && n == 0 && e.offset == 1);
        PD_STATUS(prediff_decode_next(m, &d, bad[i], 0, out, 16, &n, &e), &e, ERR_ARG, TOKEN_RANGE);
        PD_CHECK(out[0] == '#' && n == 0);
    }
    prediff_model_close(m);
}

static void test_null_text(void) {
    prediff_model *m = open_kind(0);
    prediff_decoder d;
    prediff_error e;
    int32_t ids[4] = { 97, 98, 99, 100 };
    char out[16];
    size_t n, p;
    memset(&d, 0, sizeof d);
    PD_STATUS(prediff_encode(NULL, "a", 1, 0, ids, 4, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_encode(m, NULL, 1, 0, ids, 4, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_encode(m, "a", 1, 0, NULL, 4, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_encode(m, "a", 1, 0, ids, 4, NULL, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_template(m, NULL, 1, 0, ids, 4, &n, &p, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_template(m, "a", 1, 0, ids, 4, &n, NULL, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_decode(m, NULL, 1, 0, out, 16, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_decode(m, ids, 1, 0, NULL, 16, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_decode_next(m, NULL, 97, 0, out, 16, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_decode_end(NULL, out, 16, &n, &e), &e, ERR_ARG, NULL_ARGUMENT);
    PD_STATUS(prediff_encode(m, NULL, 0, 0, NULL, 0, &n, &e), &e, OK, NONE);
    PD_CHECK(n == 0 && prediff_encode(m, "ab", 2, 0, ids, 4, &n, NULL) == PREDIFF_OK);
    prediff_model_close(m);
}

/* -- streams -- */

/* The same bytes with what is no character replaced, as the Unicode standard recommends (maximal subparts). */
static size_t replace_broken(const uint8_t *s, size_t n, char *out) {
    size_t i = 0, k = 0;
    while (i < n) {
        uint8_t c = s[i], lo = 0x80, hi = 0xBF;
        size_t len = c < 0x80 ? 1 : c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0, j;
        if (c == 0xE0) lo = 0xA0;
        if (c == 0xED) hi = 0x9F;
        if (c == 0xF0) lo = 0x90;
        if (c == 0xF4) hi = 0x8F;
        for (j = 1; j < len && i + j < n && s[i + j] >= (j == 1 ? lo : 0x80) && s[i + j] <= (j == 1 ? hi : 0xBF); j++) {}
        if (len && j == len) { memcpy(out + k, s + i, len); k += len; i += len; }
        else { memcpy(out + k, "\xEF\xBF\xBD", 3); k += 3; i += len ? j : 1; }
    }
    return k;
}

static int whole_characters(const char *s, size_t n) {
    char out[1024];
    return n * 3 <= sizeof out && replace_broken((const uint8_t *)s, n, out) == n && memcmp(s, out, n) == 0;
}

/* Token by token equals the whole, and no piece ends inside a character. Buffers are as small as the contract allows. */
static void stream_text(const prediff_model *m, const char *text, size_t n) {
    size_t count, i, at = 0, got, room = prediff_max_token_bytes(m) + 4, wanted;
    int32_t *ids = encode(m, text, n, 0, &count);
    char whole[2048], want[2048], *piece = (char *)malloc(room);
    prediff_decoder d;
    prediff_error e;
    memset(&d, 0, sizeof d);
    wanted = replace_broken((const uint8_t *)text, n, want);
    for (i = 0; i <= count; i++) {
        prediff_status s = i < count ? prediff_decode_next(m, &d, ids[i], 0, piece, room, &got, &e) : prediff_decode_end(&d, piece, room, &got, &e);
        if (!PD_CHECKF(!s, "%s", e.message)) break;
        PD_CHECKF(piece[got] == 0 && whole_characters(piece, got), "token %u gives half a character", (unsigned)i);
        if (at + got < sizeof whole) { memcpy(whole + at, piece, got); at += got; }
    }
    PD_CHECKF(at == wanted && memcmp(whole, want, at) == 0, "streamed %u bytes, not %u", (unsigned)at, (unsigned)wanted);
    free(ids); free(piece);
}

static void test_k20_streams(void) {
    int kind, i;
    random_state = pd_seed + 1;
    for (kind = 0; kind < KINDS; kind++) {
        prediff_model *m = open_kind(kind);
        char text[256];
        for (i = 0; i < 2000; i++) stream_text(m, text, random_text(text, sizeof text));
        stream_text(m, "\xF0\x9F\x98", 3);
        stream_text(m, "\xF0\x9F\x98\xF0\x9F\x98\x80\xE2", 8);
        prediff_model_close(m);
    }
}

static void test_decoder_misuse(void) {
    prediff_model *m = open_kind(0);
    prediff_decoder d;
    prediff_error e;
    char out[16];
    size_t n;
    memset(&d, 0xEE, sizeof d);
    PD_STATUS(prediff_decode_next(m, &d, 97, 0, out, 16, &n, &e), &e, ERR_ARG, VALUE_RANGE);
    memset(&d, 0, sizeof d);
    PD_STATUS(prediff_decode_next(m, &d, 97, 0, out, 1, &n, &e), &e, ERR_LIMIT, BUFFER_SIZE);    /* no room for the terminator */
    PD_STATUS(prediff_decode_next(m, &d, 97, 0, out, 2, &n, &e), &e, OK, NONE);                  /* and nothing was lost */
    PD_CHECK(n == 1 && strcmp(out, "a") == 0);
    PD_STATUS(prediff_decode_next(m, &d, 0xE2, 0, out, 16, &n, &e), &e, OK, NONE);
    PD_CHECK(n == 0);
    PD_STATUS(prediff_decode_end(&d, out, 3, &n, &e), &e, ERR_LIMIT, BUFFER_SIZE);
    PD_STATUS(prediff_decode_end(&d, out, 4, &n, &e), &e, OK, NONE);
    PD_CHECK(n == 3 && strcmp(out, "\xEF\xBF\xBD") == 0);
    prediff_model_close(m);
}

/* -- text with gaps -- */

static void expect_template(const prediff_model *m, const char *text, const char *want, size_t want_prompt) {
    int32_t ids[64];
    size_t n = 0, prompt = 0, i, at = 0;
    char got[256] = "";
    prediff_error e;
    PD_STATUS(prediff_template(m, text, strlen(text), 0, ids, 64, &n, &prompt, &e), &e, OK, NONE);
    for (i = 0; i < n && at < 240; i++) at += (size_t)snprintf(got + at, sizeof got - at, i ? " %d" : "%d", (int)ids[i]);
    PD_CHECKF(strcmp(got, want) == 0 && prompt == want_prompt, "'%s': %s (prompt %u), not %s (%u)", text, got, (unsigned)prompt, want, (unsigned)want_prompt);
}

static void test_template(void) {
    static const char *const bad[] = { "[MASK:]", "[MASK:0]", "[MASK:-1]", "[MASK:1", "[MASK:x]", "[MASK:1000001]", "[MASK: 3]", "[MASK:99999999999999999999]", "ab [MASK:2] [MASK:", "[MASK:3.5]" };
    prediff_model *m = open_kind(0);
    int32_t ids[64];
    size_t i, n, p;
    prediff_error e;
    expect_template(m, "ab [MASK:2] ab", "257 -1 -1 32 257", 1);
    expect_template(m, "[MASK:1]", "-1", 0);
    expect_template(m, "ab", "257", 1);
    expect_template(m, "", "", 0);
    expect_template(m, "a[MASK:1]b[MASK:2]", "97 -1 98 -1 -1", 1);
    expect_template(m, "a  [MASK:1]", "97 32 -1", 2);
    expect_template(m, "\\[MASK:3]", "91 77 65 83 75 58 51 93", 8);
    expect_template(m, "[mask:3]", "91 109 97 115 107 58 51 93", 8);
    expect_template(m, "<|end|>[MASK:1]", "60 124 101 110 100 124 62 -1", 7);
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        PD_STATUS(prediff_template(m, bad[i], strlen(bad[i]), 0, ids, 64, &n, &p, &e), &e, ERR_ARG, TEMPLATE);
    PD_STATUS(prediff_template(m, "a", 1, PREDIFF_ENCODE_SPECIAL, ids, 64, &n, &p, &e), &e, ERR_ARG, VALUE_RANGE);
    PD_STATUS(prediff_template(m, "a[MASK:1000000]", 15, 0, ids, 2, &n, &p, &e), &e, ERR_LIMIT, BUFFER_SIZE);
    PD_CHECK(n == 1000001 && ids[0] == 97 && ids[1] == -1);
    prediff_model_close(m);
}

/* -- files without all of it -- */

static void test_without_tokenizer(void) {
    prediff_model *m;
    prediff_error e;
    prediff_decoder d;
    prediff_model_info info;
    int32_t id = 1;
    char out[8];
    size_t n, p;
    m = pd_gguf_open(pd_smallest());
    memset(&d, 0, sizeof d);
    PD_STATUS(prediff_encode(m, "a", 1, 0, &id, 1, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_STATUS(prediff_template(m, "a", 1, 0, &id, 1, &n, &p, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_STATUS(prediff_decode(m, &id, 1, 0, out, 8, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    PD_STATUS(prediff_decode_next(m, &d, id, 0, out, 8, &n, &e), &e, ERR_ARG, NO_TOKENIZER);
    prediff_model_get_info(m, &info);
    PD_CHECK(info.n_tokens == 0 && info.tokenizer[0] == 0 && info.splitter[0] == 0 && info.eos == -1);
    PD_CHECK(prediff_token_text(m, 0).bytes == NULL && prediff_max_token_bytes(m) == 0);
    prediff_model_close(m);
}

/* The tokenizer alone of a file of any architecture, known or not; the rest of the API refuses it by name. */
static void test_vocab_only(void) {
    static const char *const arch[] = { "mamba", "llama", "dream" };
    size_t n, i;
    for (i = 0; i < 3; i++) {
        pd_gguf *g = pd_base(BASE_BPE);
        prediff_model_desc d;
        prediff_context_desc cd;
        prediff_context *c;
        prediff_model *m;
        prediff_model_info info;
        prediff_error e;
        uint8_t *b;
        pd_set_string(g, "general.architecture", arch[i]);
        b = pd_gguf_write(g, &n);
        memset(&d, 0, sizeof d); memset(&cd, 0, sizeof cd);
        d.data = b; d.size = n;
        if (!i) PD_STATUS(prediff_model_open(&m, &d, &e), &e, ERR_UNSUPPORTED, ARCH_UNKNOWN);
        d.vocab_only = 1;
        if (PD_STATUS(prediff_model_open(&m, &d, &e), &e, OK, NONE)) {
            prediff_model_get_info(m, &info);
            PD_CHECKF(info.architecture[0] == 0 && info.n_vocab == 0, "%s: '%s'", arch[i], info.architecture);
            expect_ids(m, "the the", 0, "261 262");
            PD_STATUS(prediff_context_create(&c, m, &cd, &e), &e, ERR_ARG, VOCAB_ONLY);
            PD_CHECK(c == NULL);
            prediff_model_close(m);
        }
        free(b);
        pd_gguf_free(g);
    }
}

/* -- long texts -- */

static double encode_seconds(const prediff_model *m, const char *unit, size_t n) {
    size_t len = strlen(unit), i, count;
    char *text = (char *)malloc(n + len);
    int32_t *ids;
    clock_t t;
    if (!text) abort();
    for (i = 0; i < n; i += len) memcpy(text + i, unit, len);
    t = clock();
    ids = encode(m, text, i, 0, &count);           /* size query and encoding: twice the work */
    free(ids); free(text);
    return (double)(clock() - t) / CLOCKS_PER_SEC;
}

static void test_k22_long_runs(void) {
    static const char *const units[] = { "a", "ab", " ", "\n", "\xCC\x81", "7", "'", "the", "<", "\xE2\x96\x81", "\xFF", "!?" };
    int kind;
    size_t i;
    for (kind = 0; kind < KINDS; kind++) {
        prediff_model *m = open_kind(kind);
        for (i = 0; i < sizeof units / sizeof *units; i++) {
            double small = encode_seconds(m, units[i], 50000), large = encode_seconds(m, units[i], 1000000);
            PD_CHECKF(large < 6 && large < 60 * (small + 0.01), "kind %d, '%s': 50,000 bytes take %.3f s, 10^6 take %.3f s", kind, units[i], small, large);
        }
        prediff_model_close(m);
    }
}

/* -- a locale with commas and other letters changes nothing -- */

static void test_locale(void) {
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "tr_TR.UTF-8", "tr_TR.utf8", "fr_FR.UTF-8", "de_DE", "tr_TR" };
    static const char text[] = "I'LL buy \xC4\xB0 3,5 the";
    size_t i, count, again, found = 0;
    prediff_model *m = open_kind(1), *other;
    int32_t *ids = encode(m, text, sizeof text - 1, 0, &count), *ids2;
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        if (!setlocale(LC_ALL, names[i])) continue;
        found++;
        other = open_kind(1);
        ids2 = encode(other, text, sizeof text - 1, 0, &again);
        PD_CHECKF(again == count && memcmp(ids, ids2, count * sizeof *ids) == 0, "%s changes the tokens", names[i]);
        PD_CHECKF(strcmp(setlocale(LC_ALL, NULL), names[i]) == 0, "the locale was changed");
        free(ids2);
        prediff_model_close(other);
        setlocale(LC_ALL, "C");
    }
    if (!found) pd_skip("no locale with decimal commas is installed");
    free(ids);
    prediff_model_close(m);
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_round_trip);
    PD_RUN(test_bpe_by_hand);
    PD_RUN(test_spm_by_hand);
    PD_RUN(test_k10_ignore_merges);
    PD_RUN(test_qwen2_by_hand);
    PD_RUN(test_k14_special_text_is_plain);
    PD_RUN(test_k13_longest_special);
    PD_RUN(test_special_output);
    PD_RUN(test_k17_k18_small_buffers);
    PD_RUN(test_k16_huge_text);
    PD_RUN(test_k19_ids_out_of_range);
    PD_RUN(test_null_text);
    PD_RUN(test_k20_streams);
    PD_RUN(test_decoder_misuse);
    PD_RUN(test_template);
    PD_RUN(test_without_tokenizer);
    PD_RUN(test_vocab_only);
    PD_RUN(test_k22_long_runs);
    PD_RUN(test_locale);
    return PD_END();
}
