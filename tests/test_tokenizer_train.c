/* SPDX-License-Identifier: MIT
 * `prediff tokenizer`: the merges of a plain reference trainer, texts that come back, any text, and what is refused.
 */
static unsigned test_block = 1u << 20;
#define TOKENIZER_BLOCK test_block
#define main prediff_main
#include "tools/prediff.c"
#undef main
#include "pd_test.h"

static const char *temporary(const char *name) {
    static char path[8][512];
    static unsigned turn;
    const char *dir = getenv("PD_TMP");
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/train-%s", dir && *dir ? dir : "build/tests", name);
    return p;
}

static int put_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    int ok = f && fwrite(bytes, 1, n, f) == n;
    if (f && fclose(f)) ok = 0;
    return PD_CHECKF(ok, "cannot write %s", path);
}

/* As main: `prediff tokenizer -d DATA -o OUT ...`; its exit status. Words are divided by spaces. */
static int train(const char *data, const char *out, const char *more) {
    char words[1024], *argv[40], *p = words;
    const command *c = find_command("tokenizer");
    settings o;
    int n = 0, status;
    snprintf(words, sizeof words, "prediff tokenizer -d %s -o %s %s", data, out, more);
    while (*p && n < 39) {
        argv[n++] = p;
        p += strcspn(p, " ");
        while (*p == ' ') *p++ = 0;
    }
    memset(&o, 0, sizeof o);
    o.command = c->name;
    status = parse(c, n - 1, argv + 1, &o);
    if (!status) status = check_settings(&o);
    return status ? status : c->run(&o);
}

/* The same from a text, replacing the last one; opened. */
static prediff_model *train_text(const void *text, size_t n, const char *more) {
    const char *data = temporary("text.txt"), *out = temporary("text.gguf");
    char all[512];
    prediff_model_desc d;
    prediff_model *m = NULL;
    prediff_error e;
    memset(&d, 0, sizeof d);
    snprintf(all, sizeof all, "--force %s", more);
    put_file(data, text, n);
    if (!PD_CHECKF(train(data, out, all) == 0, "%s fails", more)) return NULL;
    d.path = out;
    d.vocab_only = 1;
    PD_STATUS(prediff_model_open(&m, &d, &e), &e, OK, NONE);
    remove(data);
    remove(out);
    return m;
}

/* Text to ids and back; the number of ids. */
static size_t comes_back(const prediff_model *m, const char *text, size_t n) {
    int32_t *ids = (int32_t *)malloc((n + 1) * sizeof *ids);
    char *back = (char *)malloc(n + 1);
    size_t count = 0, got = 0;
    prediff_error e;
    if (!ids || !back) abort();
    PD_STATUS(prediff_encode(m, text, n, PREDIFF_ENCODE_SPECIAL, ids, n + 1, &count, &e), &e, OK, NONE);
    PD_STATUS(prediff_decode(m, ids, count, 1, back, n + 1, &got, &e), &e, OK, NONE);
    PD_CHECKF(got == n && memcmp(back, text, n) == 0, "a text of %u bytes does not come back", (unsigned)n);
    free(ids); free(back);
    return count;
}

static const prediff_key *key_of(const prediff_model *m, const char *name) {
    prediff_container c;
    size_t i;
    prediff_container_get(m, &c);
    for (i = 0; i < c.n_keys; i++) if (c.keys[i].name.n == strlen(name) && memcmp(c.keys[i].name.bytes, name, c.keys[i].name.n) == 0) return &c.keys[i];
    return NULL;
}

/* The next string of an array's data, with '_' for the space of the alphabet and a terminator. */
static const uint8_t *next_string(const uint8_t *p, char *out, size_t room) {
    size_t n = (size_t)load_bytes(p, 8), i, k = 0;
    for (i = 0; i < n && k + 1 < room; i++)
        if (i + 1 < n && p[8 + i] == 0xC4 && p[9 + i] == 0xA0) { out[k++] = '_'; i++; }
        else out[k++] = (char)p[8 + i];
    out[k] = 0;
    return p + 8 + n;
}

/* -- the reference -- */

static const char story[] =
    "Tom saw a cat. The cat's hat was red, and Tom's hat was red too.\n\nTom ran to the cat; the cat ran to the hat! "
    "It'll be 1234 days, they're 1234 days.<|endoftext|>Aaaaaaaa haha  haha   banana bananas... banana,\tbanana\n"
    "The end of the cat<|endoftext|>\n";

/* Made by a plain trainer that counts all pairs again after each merge; _ stands for the space. */
static const char *const story_merges[] = {
    "a n", "_ t", "a t", "h e", "a a", "_t he", "_ h", "_ c", "_c at", "_ r", "_ b", "an an", "anan a", "_t o", "_h at", "_b anana", "o m", "T om",
    "_r e", "_re d", "_r an", "_h a", "_ha h", "_hah a", "_ w", "_w a", "_wa s", "_ d", "_d a", "_da y", "_day s", "_ 1", "_1 2", "_12 3", "_123 4",
    "aa aa", "T he", ". .", "' s" };
enum { STORY_MERGES = sizeof story_merges / sizeof *story_merges };

static void check_story(prediff_model *m, size_t merges) {
    const prediff_key *k = m ? key_of(m, "tokenizer.ggml.merges") : NULL;
    const uint8_t *p;
    prediff_model_info info;
    char text[64];
    size_t i;
    if (!PD_CHECK(k != NULL) || !PD_CHECKF(k->count == merges, "%u merges, not %u", (unsigned)k->count, (unsigned)merges)) return;
    for (i = 0, p = k->data; i < merges; i++) {
        p = next_string(p, text, sizeof text);
        PD_CHECKF(strcmp(text, story_merges[i]) == 0, "merge %u is '%s', not '%s'", (unsigned)i, text, story_merges[i]);
    }
    prediff_model_get_info(m, &info);
    PD_CHECK(info.n_tokens == 257 + merges && info.bos == 256 && info.eos == 256 && info.mask == -1 && !info.add_bos);
    PD_CHECK(strcmp(info.tokenizer, "gpt2") == 0 && strcmp(info.splitter, "gpt-2") == 0);
    k = key_of(m, "tokenizer.ggml.token_type");
    if (PD_CHECK(k && k->count == 257 + merges))
        for (i = 0; i < 257 + merges; i++) PD_CHECK(load_bytes(k->data + 4 * i, 4) == (uint64_t)(i == 256 ? 3 : 1));
    k = key_of(m, "tokenizer.ggml.tokens");
    for (i = 0, p = k ? k->data : NULL; p && i < 257 + merges; i++) {
        p = next_string(p, text, sizeof text);
        if (i == 255) PD_CHECK(strcmp(text, "\xC3\xBF") == 0);
        if (i == 256) PD_CHECK(strcmp(text, "<|endoftext|>") == 0);
        if (i == 262) PD_CHECK(strcmp(text, "_the") == 0);
    }
}

static void test_reference(void) {
    static const unsigned blocks[] = { 1u << 20, 64, 7, 1 };
    static const size_t wanted[] = { 257, 258, 290, 257 + STORY_MERGES, 320, 1000000 };
    char more[32];
    size_t i;
    prediff_model *m;
    for (i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        snprintf(more, sizeof more, "-n %u", (unsigned)wanted[i]);
        m = train_text(story, sizeof story - 1, more);
        check_story(m, wanted[i] - 257 < STORY_MERGES ? wanted[i] - 257 : (size_t)STORY_MERGES);
        prediff_model_close(m);
    }
    for (i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        test_block = blocks[i];
        m = train_text(story, sizeof story - 1, "-n=320");
        check_story(m, STORY_MERGES);
        if (m) PD_CHECK(comes_back(m, story, sizeof story - 1) == 96);
        prediff_model_close(m);
    }
    test_block = blocks[0];
    m = train_text(story, sizeof story - 1, "-n 320 --min-count 3");
    check_story(m, 18);
    prediff_model_close(m);
}

/* The whole demo corpus: the file the reference made from it, as JSON with \uXXXX. */
static size_t json_merge(const char *p, char *out, size_t room) {
    size_t i = 0, k = 0;
    while (p[i] != '"' && k + 4 < room) {
        if (p[i] == '\\' && p[i + 1] == 'u') {
            char hex[5] = { p[i + 2], p[i + 3], p[i + 4], p[i + 5], 0 };
            k += pdi_put_char((uint32_t)strtoul(hex, NULL, 16), out + k);
            i += 6;
        }
        else { i += p[i] == '\\'; out[k++] = p[i++]; }
    }
    out[k] = 0;
    return i;
}

static void test_corpus(void) {
    const char *data = pd_data("demo_corpus/train.txt"), *json = pd_data("story_demo/bpe2048.json"), *out = temporary("corpus.gguf");
    uint8_t *want = NULL;
    prediff_model_desc d;
    prediff_model *m = NULL;
    prediff_error e;
    const prediff_key *k;
    const char *q;
    size_t n, i;
    if (!data || !json) { pd_skip("the demo corpus is not there"); return; }
    want = pd_read_file(json, &n);
    if (!PD_CHECK(want != NULL) || !PD_CHECK(train(data, out, "-n 2048 --force") == 0)) { free(want); return; }
    memset(&d, 0, sizeof d);
    d.path = out;
    d.vocab_only = 1;
    PD_STATUS(prediff_model_open(&m, &d, &e), &e, OK, NONE);
    k = m ? key_of(m, "tokenizer.ggml.merges") : NULL;
    q = strstr((const char *)want, "\"merges\": [");
    if (PD_CHECK(k && k->count == 1791 && q)) {
        const uint8_t *p = k->data;
        q += 11;
        for (i = 0; i < 1791; i++) {
            char expected[256];
            size_t size = (size_t)load_bytes(p, 8);
            q = strchr(q, '"');
            if (!PD_CHECKF(q != NULL, "%u merges", (unsigned)i)) break;
            q += 1 + json_merge(q + 1, expected, sizeof expected) + 1;
            PD_CHECKF(size == strlen(expected) && memcmp(p + 8, expected, size) == 0, "merge %u is not '%s'", (unsigned)i, expected);
            p += 8 + size;
        }
    }
    prediff_model_close(m);
    remove(out);
    free(want);
}

/* -- any text -- */

static uint32_t state;
static uint32_t next_random(uint32_t n) { state = state * 1664525u + 1013904223u; return (state >> 8) % n; }

/* Whatever the text, block size and splitter: the file opens (so no token is there twice), the text comes back, and a
   tokenizer read in small blocks is that of one block. */
static void test_random(void) {
    static const char *const letters[] = { "ab", "aab \n'", "abc", "ab <|endoftext|>", "a1 2.\r\n\t's", "\xC3\xA9\xE4\xBD\xA0 a\xF0\x9F\x98\x80", "" };
    static const char *const splitters[] = { "gpt-2", "llama-bpe", "smollm", "qwen2" };
    static char text[4000];
    char more[64];
    int round, rounds = getenv("PD_LONG") ? 2000 : 100;
    state = pd_seed;
    for (round = 0; round < rounds; round++) {
        const char *a = letters[next_random(7)];
        size_t n = 1 + next_random(round % 4 ? 300 : sizeof text), i, first, second;
        prediff_model *m;
        for (i = 0; i < n; i++) text[i] = *a ? a[next_random((uint32_t)strlen(a))] : (char)(uint8_t)next_random(256);
        if (n > 100 && round % 2) memcpy(text + next_random((uint32_t)n - 20), "<|endoftext|>", 13);
        snprintf(more, sizeof more, "-n %u --splitter %s --min-count %u", 257 + next_random(600), splitters[round % 4], 1 + next_random(3));
        m = train_text(text, n, more);
        first = m ? comes_back(m, text, n) : 0;
        prediff_model_close(m);
        test_block = 1 + next_random(40);
        m = train_text(text, n, more);
        second = m ? comes_back(m, text, n) : 0;
        PD_CHECKF(m && first == second, "read in blocks of %u: %u tokens, not %u", test_block, (unsigned)second, (unsigned)first);
        prediff_model_close(m);
        test_block = 1u << 20;
    }
}

/* One word of megabytes: equal letters (a token for each power of two up to 1,024), two equal halves (they would grow without end), random ones. */
static void test_long_word(void) {
    size_t n = getenv("PD_LONG") ? 10000000 : 1000000, i;
    char *text = (char *)malloc(n);
    prediff_model *m;
    prediff_model_info info;
    if (!text) { pd_skip("no memory"); return; }
    memset(text, 'a', n);
    m = train_text(text, n, "-n 4000");
    if (m) prediff_model_get_info(m, &info);
    PD_CHECKF(m && info.n_tokens == 267, "%u tokens", m ? (unsigned)info.n_tokens : 0);
    prediff_model_close(m);
    state = pd_seed;
    for (i = 0; i < n; i++) text[i] = i < n / 2 ? (char)('a' + next_random(26)) : text[i - n / 2];
    m = train_text(text, n, "-n 3000");
    if (m) { prediff_model_get_info(m, &info); PD_CHECK(info.n_tokens == 3000); comes_back(m, text, 1000); }
    prediff_model_close(m);
    free(text);
}

static void test_same_twice(void) {
    const char *data = temporary("same.txt"), *a = temporary("same-a.gguf"), *b = temporary("same-b.gguf");
    size_t n[2] = { 0, 0 };
    uint8_t *x, *y;
    put_file(data, story, sizeof story - 1);
    PD_CHECK(train(data, a, "-n 300 --force") == 0 && train(data, b, "-n 300 --force") == 0);
    x = pd_read_file(a, &n[0]);
    y = pd_read_file(b, &n[1]);
    PD_CHECK(x && y && n[0] == n[1] && memcmp(x, y, n[0]) == 0);
    free(x); free(y);
    remove(data); remove(a); remove(b);
}

static void test_special(void) {
    static const char text[] = "one<s>two</s>one<s>two</s>onetwo \xC4\xA0the the the the";
    prediff_model *m = train_text(text, sizeof text - 1, "-n 400 --special </s> --special <s> --special \xC4\xA0the");
    prediff_model_info info;
    int32_t ids[64];
    size_t n = 0;
    prediff_error e;
    if (!m) return;
    prediff_model_get_info(m, &info);
    PD_CHECK(info.eos == 256);
    comes_back(m, text, sizeof text - 1);
    PD_STATUS(prediff_encode(m, "one<s>", 6, PREDIFF_ENCODE_SPECIAL, ids, 64, &n, &e), &e, OK, NONE);
    PD_CHECK(n > 1 && ids[n - 1] == 257);
    PD_STATUS(prediff_encode(m, " the", 4, 0, ids, 64, &n, &e), &e, OK, NONE);
    PD_CHECKF(n > 1, "text becomes a special token");
    prediff_model_close(m);
}

/* -- what is refused, and what stays as it was -- */

static void test_refused(void) {
    static const struct { const char *more; int status; } wrong[] = {
        { "-n 256", 2 }, { "-n 0", 2 }, { "-n 5000000", 2 }, { "-n 257 --special a --special b", 2 }, { "--special a", 2 }, { "--special=", 2 },
        { "--special xx --special xx", 2 }, { "--splitter gpt2", 2 }, { "--min-count 0", 2 }, { "--temp 1", 2 }, { "-n 258 --special xx --special yy", 0 } };
    const char *data = temporary("refused.txt"), *out = temporary("refused.gguf"), *none = temporary("no-such-folder/x.gguf");
    uint8_t *b;
    size_t i, n = 0;
    FILE *f;
    put_file(data, story, sizeof story - 1);
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        remove(out);
        PD_CHECKF(train(data, out, wrong[i].more) == wrong[i].status, "%s", wrong[i].more);
        f = fopen(out, "rb");
        PD_CHECKF(!f == (wrong[i].status != 0), "%s", wrong[i].more);
        if (f) fclose(f);
    }
    put_file(out, "old", 3);
    PD_CHECK(train(data, out, "-n 300") == 1);
    PD_CHECK(train(data, data, "-n 300 --force") == 2);
    PD_CHECK(train(data, none, "-n 300") == 1);
    PD_CHECK(train(temporary("no-such-text"), out, "-n 300 --force") == 1);
    put_file(data, "", 0);
    PD_CHECK(train(data, out, "-n 300 --force") == 1);
    b = pd_read_file(out, &n);
    PD_CHECKF(b && n == 3 && memcmp(b, "old", 3) == 0, "a failure changed the file that was there");
    free(b);
    remove(data); remove(out);
}

int main(int argc, char **argv) {
    FILE *quiet = freopen(temporary("said.txt"), "w", stderr);
    PD_ARGS(argc, argv);
    if (!quiet) return 1;
    PD_RUN(test_reference);
    PD_RUN(test_corpus);
    PD_RUN(test_random);
    PD_RUN(test_long_word);
    PD_RUN(test_same_twice);
    PD_RUN(test_special);
    PD_RUN(test_refused);
    remove(temporary("said.txt"));
    return PD_END();
}
