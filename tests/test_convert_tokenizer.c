/* SPDX-License-Identifier: MIT
 * The converter's tokenizers: malformed files (rows K1 ... of the list of malformed inputs), every form that is read, recorded
 * vectors of the material outside the repository (PREDIFF_DATA), and the way out to a folder and back.
 */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#define _FILE_OFFSET_BITS 64
#include "pd_convert.h"
#include "pd_test.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static char made[1 << 16];             /* a document under construction */
static size_t n_made;

static void add(const char *s) {
    size_t n = strlen(s);
    if (n_made + n >= sizeof made) { printf("a document is too long\n"); exit(1); }
    memcpy(made + n_made, s, n + 1);
    n_made += n;
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT_BY(regex) "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}," \
                        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define LLAMA3 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define QWEN2 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPACES "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"}," \
               "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},"

/* A byte-level tokenizer.json: ids 0 .. 255 are the bytes; the rest of the vocabulary and of the other parts is given. */
static void make_bpe(const char *top, const char *model, const char *vocab, const char *merges) {
    char s[32];
    unsigned i;
    n_made = 0;
    add("{"); add(top); add("\"model\":{\"type\":\"BPE\","); add(model); add("\"vocab\":{");
    for (i = 0; i < 256; i++) {
        snprintf(s, sizeof s, "%s\"\\u%04x\":%u", i ? "," : "", (unsigned)pdi_byte_char(i), i);
        add(s);
    }
    add(vocab); add("},\"merges\":["); add(merges); add("]}}");
}

/* A SentencePiece tokenizer.json: <unk>, <s>, </s>, 256 byte tokens; the next id is 259. without: a byte left out, or 256. */
static void make_spm(const char *top, const char *vocab, const char *merges, unsigned without) {
    char s[32];
    unsigned i;
    n_made = 0;
    add("{" SPACES); add(top); add("\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2");
    for (i = 0; i < 256; i++) {
        if (i == without) continue;
        snprintf(s, sizeof s, ",\"<0x%02X>\":%u", i, i + 3);
        add(s);
    }
    add(vocab); add("},\"merges\":["); add(merges); add("]}}");
}

static char *take(cv_pool *p, const void *bytes, size_t n) {
    cv_error e;
    char *c = cv_copy(p, (const char *)bytes, n, &e);
    if (!c) exit(1);
    return c;
}

static cv_item item_of(int failed, const cv_error *e) {
    const char *wrong = failed ? pd_wrong_error(e) : NULL;
    PD_CHECKF(!wrong, "%s", wrong ? wrong : "");
    return failed ? e->item : CV_ITEM_NONE;
}

/* Reads what was made. */
static int read_made(cv_pool *p, cv_vocab *v, cv_item want, const char *row) {
    cv_error e;
    cv_item got;
    memset(&e, 0, sizeof e);
    got = item_of(cv_tokenizer_json(p, "tokenizer.json", take(p, made, n_made), n_made, v, &e), &e);
    return PD_CHECKF(got == want, "%s: %s, not %s (%s)", row, cv_item_name(got), cv_item_name(want), got ? e.message : "") &&
        got == CV_ITEM_NONE;
}

/* Encodes with a vocabulary through a GGUF file in memory; n_ids ids must come. */
static void check_encoding(const char *row, cv_pool *p, const cv_vocab *v, const char *text, unsigned flags, const int32_t *want,
                           size_t n_want) {
    prediff_model *m;
    prediff_error err;
    pd_bytes b;
    int32_t ids[32];
    size_t n = 0, i;
    memset(&err, 0, sizeof err);
    if (PD_CHECKF(!pd_open_vocab(p, v, &b, &m, &err), "%s: %s", row, err.message)) {
        PD_CHECK(!prediff_encode(m, text, strlen(text), flags, ids, COUNT(ids), &n, &err));
        PD_CHECKF(n == n_want, "%s: %u ids of \"%s\", not %u", row, (unsigned)n, text, (unsigned)n_want);
        for (i = 0; i < n && i < n_want; i++) PD_CHECKF(ids[i] == want[i], "%s: id %u of \"%s\" is %d, not %d", row, (unsigned)i, text,
                                                        (int)ids[i], (int)want[i]);
    }
    prediff_model_close(m);
    free(b.p);
}

/* -- malformed files -- */

typedef struct row { const char *name, *top, *model, *vocab, *merges; cv_item want; } row;
#define GPT2 "\"pre_tokenizer\":" BYTE_LEVEL ","

static const row rows[] = {
    { "K1 negative", GPT2, "", ",\"ab\":-1", "", CV_TOKEN }, { "K1 fraction", GPT2, "", ",\"ab\":256.5", "", CV_JSON_TYPE },
    { "K1 a double", GPT2, "", ",\"ab\":256.0", "", CV_ITEM_NONE }, { "K1 2^31", GPT2, "", ",\"ab\":2147483648", "", CV_LIMIT },
    { "K1 1e300", GPT2, "", ",\"ab\":1e300", "", CV_JSON_TYPE }, { "K1 text", GPT2, "", ",\"ab\":\"256\"", "", CV_JSON_TYPE },
    { "K1 null", GPT2, "", ",\"ab\":null", "", CV_JSON_TYPE },
    { "K2 huge", GPT2, "", ",\"ab\":4000000000", "", CV_LIMIT }, { "K2 last good", GPT2, "", ",\"ab\":769", "", CV_ITEM_NONE },
    { "K2 first bad", GPT2, "", ",\"ab\":770", "", CV_LIMIT },
    { "K3 one id twice", GPT2, "", ",\"ab\":97", "", CV_TOKEN },
    { "K3 one token twice", GPT2 "\"added_tokens\":[{\"id\":300,\"content\":\"ab\",\"special\":true}],", "", ",\"ab\":256", "", CV_TOKEN },
    { "K3 added over another", GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"xy\",\"special\":true}],", "", ",\"ab\":256", "",
      CV_TOKEN },
    { "K3 added inside", GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"ab\",\"special\":true}],", "", ",\"ab\":256", "", CV_ITEM_NONE },
    { "K7 left", GPT2, "", ",\"ab\":256", "\"xx b\"", CV_MERGE }, { "K7 right", GPT2, "", ",\"ab\":256", "\"a xx\"", CV_MERGE },
    { "K7 joined", GPT2, "", ",\"ab\":256", "\"a c\"", CV_MERGE },
    { "K8", GPT2, "", ",\"ab\":256", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"", CV_MERGE },
    { "K9 three", GPT2, "", ",\"ab\":256", "\"a b c\"", CV_MERGE }, { "K9 one", GPT2, "", ",\"ab\":256", "\"ab\"", CV_MERGE },
    { "K9 empty left", GPT2, "", ",\"ab\":256", "\" b\"", CV_MERGE }, { "K9 empty right", GPT2, "", ",\"ab\":256", "\"a \"", CV_MERGE },
    { "K9 empty", GPT2, "", ",\"ab\":256", "\"\"", CV_MERGE }, { "K9 a list of three", GPT2, "", ",\"ab\":256", "[\"a\",\"b\",\"c\"]",
                                                                 CV_MERGE },
    { "K9 numbers", GPT2, "", ",\"ab\":256", "[97,98]", CV_MERGE }, { "K9 an empty half", GPT2, "", ",\"ab\":256", "[\"\",\"b\"]",
                                                                      CV_MERGE },
    { "K9 null", GPT2, "", ",\"ab\":256", "null", CV_MERGE },
    { "K10 with gpt-2", GPT2, "\"ignore_merges\":true,", "", "", CV_ITEM_NONE },
    { "K10 llama-bpe without", "\"pre_tokenizer\":" SPLIT_BY(LLAMA3) ",", "\"ignore_merges\":false,", "", "", CV_ITEM_NONE },
    { "K10 qwen2 with", "\"pre_tokenizer\":" SPLIT_BY(QWEN2) ",", "\"ignore_merges\":true,", "", "", CV_ITEM_NONE },
    { "K13 empty", GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"\",\"special\":true}],", "", "", "", CV_TOKEN },
    { "K13 no content", GPT2 "\"added_tokens\":[{\"id\":256}],", "", "", "", CV_TOKEN }, { "K13 no id",
        GPT2 "\"added_tokens\":[{\"content\":\"x\"}],", "", "", "", CV_TOKEN },
    { "K13 no list", GPT2 "\"added_tokens\":{},", "", "", "", CV_JSON_TYPE },
    { "K13 strips", GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"xy\",\"special\":false,\"lstrip\":true}],", "", "", "",
      CV_TOKENIZER },
    { "K24 half a pair", GPT2, "", ",\"\\ud800\":256", "", CV_JSON }, { "K24 NUL", GPT2, "", ",\"a\\u0000b\":256", "", CV_ITEM_NONE },
    { "K25", GPT2, "", ",\"ab\":256,\"ab\":257", "", CV_JSON_DUPLICATE }, { "K25 top", GPT2 GPT2, "", "", "", CV_JSON_DUPLICATE },
    /* K21, K23: what we do not have is named, not guessed */
    { "no splitter", "", "", "", "", CV_TOKENIZER }, { "other regex", "\"pre_tokenizer\":" SPLIT_BY("\\\\w+") ",", "", "", "",
                                                       CV_TOKENIZER },
    { "Whitespace", "\"pre_tokenizer\":{\"type\":\"Whitespace\"},", "", "", "", CV_TOKENIZER },
    { "add_prefix_space", "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},", "", "", "", CV_TOKENIZER },
    { "digits in groups",
      "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":false}," BYTE_LEVEL "]},",
          "", "", "", CV_TOKENIZER },
    { "lower case", GPT2 "\"normalizer\":{\"type\":\"Lowercase\"},", "", "", "", CV_TOKENIZER }, { "NFC with gpt-2",
        GPT2 "\"normalizer\":{\"type\":\"NFC\"},", "", "", "", CV_TOKENIZER },
    { "NFC with qwen2", "\"pre_tokenizer\":" SPLIT_BY(QWEN2) ",\"normalizer\":{\"type\":\"NFC\"},", "", "", "", CV_ITEM_NONE },
    { "dropout", GPT2, "\"dropout\":0.1,", "", "", CV_TOKENIZER }, { "suffix", GPT2, "\"end_of_word_suffix\":\"</w>\",", "", "",
                                                                     CV_TOKENIZER },
    { "unknown token unknown", GPT2, "\"unk_token\":\"<unk>\",", "", "", CV_TOKEN },
    { "template of nothing",
      GPT2 "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}},{\"Sequence\":{\"id\":\"A\"}}]},", "", "", "", CV_TOKENIZER },
};

static void test_rows(void) {
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        make_bpe(rows[i].top, rows[i].model, rows[i].vocab, rows[i].merges);
        read_made(&p, &v, rows[i].want, rows[i].name);
        cv_pool_free(&p);
    }
}

static void test_other_kinds(void) {
    static const char *const documents[] = {
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0.0]]}}",
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", "{\"model\":{}}", "{}", "{\"model\":[]}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "{" GPT2 "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"
    };
    size_t i;
    cv_vocab v;
    for (i = 0; i < COUNT(documents); i++) {
        cv_pool p = { NULL };
        n_made = 0;
        add(documents[i]);
        read_made(&p, &v, CV_TOKENIZER, documents[i]);
        cv_pool_free(&p);
    }
    {                                  /* K4 */
        cv_pool p = { NULL };
        n_made = 0;
        add("{" GPT2 "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}");
        read_made(&p, &v, CV_TOKEN, "K4 empty");
        cv_pool_free(&p);
    }
}

static void test_holes_and_numbers(void) {
    static const int32_t id300 = 300;
    cv_pool p = { NULL };
    cv_vocab v;
    cv_error e;
    prediff_model *m;
    prediff_error err;
    pd_bytes b;
    char out[8];
    size_t n = 99;
    make_bpe(GPT2, "", ",\"ab\":320", "\"a b\"");
    if (!read_made(&p, &v, CV_ITEM_NONE, "K3 holes")) return;
    PD_CHECK(v.n == 321 && v.types[300] == PDI_TYPE_UNUSED && pdi_str_is(v.tokens[300], "[PAD300]") && v.types[320] == PDI_TYPE_NORMAL);
    PD_CHECK(v.bos == -1 && v.eos == -1 && v.unk == -1 && v.mask == -1 && v.pad == -1 && v.eot == -1);       /* K11, K12 */
    if (PD_CHECK(!pd_open_vocab(&p, &v, &b, &m, &err))) PD_CHECK(!prediff_decode(m, &id300, 1, 0, out, sizeof out, &n, &err) && n == 0);
    prediff_model_close(m);
    free(b.p);
    make_bpe(GPT2, "", ",\"ab\":256,\"abc\":257", "\"a b\",\"ab c\",\"a x\"");
    PD_CHECK(cv_tokenizer_json(&p, "tokenizer.json", take(&p, made, n_made), n_made, &v, &e) && strstr(e.message, "merge 2") != NULL &&
             e.offset == 2);
    cv_pool_free(&p);
}

/* -- every form gives the same ids -- */

static void test_forms(void) {
    static const int32_t abc[] = { 257 }, ab_c[] = { 256, 99 }, first[] = { 97, 256 }, whole[] = { 256 }, longest[] = { 97, 257, 98, 256 };
    cv_pool p = { NULL };
    cv_vocab v;
    make_bpe(GPT2, "", ",\"ab\":256,\"abc\":257", "\"a b\",\"ab c\"");
    if (read_made(&p, &v, CV_ITEM_NONE, "K9 strings")) check_encoding("K9 strings", &p, &v, "abc", 0, abc, 1);
    make_bpe(GPT2, "", ",\"ab\":256,\"abc\":257", "[\"a\",\"b\"],[\"ab\",\"c\"]");
    if (read_made(&p, &v, CV_ITEM_NONE, "K9 pairs")) check_encoding("K9 pairs", &p, &v, "abc", 0, abc, 1);
    make_bpe(GPT2, "", ",\"ab\":256,\"bc\":257", "\"a b\",\"b c\",\"a b\"");
    if (read_made(&p, &v, CV_ITEM_NONE, "twice")) { PD_CHECK(v.n_merges == 2); check_encoding("the first counts", &p, &v, "abc", 0, ab_c,
        2); }
    make_bpe(GPT2, "", ",\"bc\":256", "\"b c\"");
    if (read_made(&p, &v, CV_ITEM_NONE, "bc")) check_encoding("bc", &p, &v, "abc", 0, first, 2);
    make_bpe("\"pre_tokenizer\":" SPLIT_BY(LLAMA3) ",", "\"ignore_merges\":true,", ",\"abc\":256", "");
    if (read_made(&p, &v, CV_ITEM_NONE, "K10")) { PD_CHECK(strcmp(v.pre, "llama-bpe") == 0); check_encoding("K10", &p, &v, "abc", 0,
        whole, 1); }
    make_bpe("\"pre_tokenizer\":" SPLIT_BY(QWEN2) ",\"normalizer\":{\"type\":\"NFC\"},", "", "", "");
    if (read_made(&p, &v, CV_ITEM_NONE, "qwen2")) PD_CHECK(strcmp(v.pre, "qwen2") == 0 && v.remark != NULL);
    make_bpe(GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"<|a|>\",\"special\":true},{\"id\":257,\"content\":\"<|a|><|b|>\",\"special\":true}],", "", "", "");
    if (read_made(&p, &v, CV_ITEM_NONE, "K13")) {
        PD_CHECK(v.types[256] == PDI_TYPE_CONTROL);
        check_encoding("K13 longest", &p, &v, "a<|a|><|b|>b<|a|>", PREDIFF_ENCODE_SPECIAL, longest, 4);
    }
    cv_pool_free(&p);
}

/* A folder for what is written. */
static const char *temporary(void) {
    static char path[600];
    const char *folder = getenv("PD_TMP");
    cv_error e;
    snprintf(path, sizeof path, "%s/convert-tokenizer", folder ? folder : "build");
    PD_CHECKF(!cv_make_folder(path, &e), "%s", e.message);
    return path;
}

/* A hole becomes an unused token, in our folder a token like others, and unused again. */
static void test_holes_again(void) {
    cv_pool p = { NULL };
    cv_vocab v, w;
    cv_error e;
    int found = 0;
    make_bpe(GPT2, "", ",\"ab\":320", "\"a b\"");
    if (read_made(&p, &v, CV_ITEM_NONE, "holes") && PD_CHECK(!cv_vocab_write_folder(&p, &v, temporary(), &e)) &&
        PD_CHECK(!cv_vocab_read_folder(&p, temporary(), &w, &found, &e) && found)) PD_CHECK(w.n == 321 &&
            w.types[300] == PDI_TYPE_UNUSED && w.types[97] == PDI_TYPE_NORMAL);
    cv_pool_free(&p);
}

static void test_template(void) {
    cv_pool p = { NULL };
    cv_vocab v;
    make_bpe(GPT2 "\"added_tokens\":[{\"id\":256,\"content\":\"<x>\",\"special\":true}],\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
             "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}},{\"Sequence\":{\"id\":\"A\"}}]}]},", "",
                 "", "");
    if (read_made(&p, &v, CV_ITEM_NONE, "template")) PD_CHECK(v.add_bos == 1 && v.add_eos == 0 && v.bos == 256 && v.eos == -1);
    make_bpe(GPT2, "", "", "");
    if (read_made(&p, &v, CV_ITEM_NONE, "no template")) PD_CHECK(v.add_bos == 0 && v.add_eos == 0 && v.bos == -1);
    cv_pool_free(&p);
}

/* -- SentencePiece form -- */

static void test_spm(void) {
    static const int32_t want[] = { 264, 262 }, bytes[] = { 259, 3 + 0xC3, 3 + 0xA9 };
    cv_pool p = { NULL };
    cv_vocab v;
    const char *letters = ",\"\\u2581\":259,\"a\":260,\"b\":261,\"c\":262,\"ab\":263,\"\\u2581ab\":264,\"\\u2581a\":265,\"<0x-1>\":266,\"<0xZZ>\":267,\"<0x1FF>\":268";
    make_spm("", letters, "\"a b\",\"\\u2581a b\",\"\\u2581 ab\",\"\\u2581 a\"", 256);
    if (read_made(&p, &v, CV_ITEM_NONE, "spm")) {
        PD_CHECK(v.spm && v.add_space_prefix == 1 && v.unk == 0 && v.types[0] == PDI_TYPE_UNKNOWN && v.types[3] == PDI_TYPE_BYTE &&
                 v.n_merges == 0);
        PD_CHECK(v.types[266] == PDI_TYPE_NORMAL && v.types[267] == PDI_TYPE_NORMAL && v.types[268] == PDI_TYPE_NORMAL);       /* K5 */
        PD_CHECK(v.scores[263] > v.scores[264] && v.scores[264] > v.scores[265] && v.scores[265] > v.scores[260]);
        check_encoding("spm", &p, &v, "abc", 0, want, 2);
        check_encoding("spm bytes", &p, &v, "\xC3\xA9", 0, bytes, 3);
    }
    make_spm("", letters, "\"a b\",\"\\u2581a b\",\"\\u2581 ab\",\"\\u2581 a\"", 65);
    read_made(&p, &v, CV_TOKEN, "K6 a byte missing");
    make_spm("", letters, "\"\\u2581a b\",\"a b\",\"\\u2581 ab\",\"\\u2581 a\"", 256);
    read_made(&p, &v, CV_TOKENIZER, "merges apart");
    make_spm("", letters, "\"a b\",\"\\u2581 ab\",\"\\u2581 a\"", 256);
    read_made(&p, &v, CV_TOKENIZER, "a split without merge");
    cv_pool_free(&p);
}

/* tokenizer.model by hand: a piece is field 1, its text, score and type fields 1, 2, 3; the trainer is field 2, the normaliser 3. */
static void add_bytes(const void *s, size_t n) { if (n_made + n > sizeof made) exit(1); memcpy(made + n_made, s, n); n_made += n; }

static void add_piece(const char *text, float score, int type) {
    uint8_t m[64], head[2];
    size_t n = strlen(text);
    m[0] = 0x0A; m[1] = (uint8_t)n;
    memcpy(m + 2, text, n);
    m[n + 2] = 0x15;
    pdi_put_u32(m + n + 3, pdi_float_bits(&score));
    m[n + 7] = 0x18; m[n + 8] = (uint8_t)type;
    head[0] = 0x0A; head[1] = (uint8_t)(n + 9);
    add_bytes(head, 2);
    add_bytes(m, n + 9);
}

static void make_model(const char *trainer, size_t n_trainer, const char *normalizer, size_t n_normalizer) {
    char s[8];
    unsigned i;
    uint8_t head[2];
    n_made = 0;
    add_piece("<unk>", 0, 2); add_piece("<s>", 0, 3); add_piece("</s>", 0, 3);
    for (i = 0; i < 256; i++) { snprintf(s, sizeof s, "<0x%02X>", i & 255); add_piece(s, 0, 6); }
    add_piece("\xE2\x96\x81", -3, 1); add_piece("a", -4, 1); add_piece("\xE2\x96\x81" "a", -1, 1);
    head[0] = 0x12; head[1] = (uint8_t)n_trainer;
    add_bytes(head, 2); add_bytes(trainer, n_trainer);
    head[0] = 0x1A; head[1] = (uint8_t)n_normalizer;
    add_bytes(head, 2); add_bytes(normalizer, n_normalizer);
}

#define BPE_TRAINER "\x18\x02\x98\x02\x01"        /* model_type 2, byte_fallback */
#define PLAIN "\x18\x01\x20\x00"                  /* add_dummy_prefix, not remove_extra_whitespaces */
#define MODEL(trainer, normalizer) make_model(trainer, sizeof trainer - 1, normalizer, sizeof normalizer - 1)

static cv_item read_model(cv_pool *p, cv_vocab *v, size_t n, cv_error *e) {
    char *exact = pd_exactly(made, n);
    cv_item item = item_of(cv_sentencepiece(p, "tokenizer.model", exact, n, v, e), e);
    free(exact);
    return item;
}

static void test_sentencepiece(void) {
    cv_pool p = { NULL };
    cv_vocab v;
    cv_error e;
    size_t n;
    MODEL(BPE_TRAINER, PLAIN);
    PD_CHECKF(read_model(&p, &v, n_made, &e) == CV_ITEM_NONE, "%s", e.message);
    PD_CHECK(v.n == 262 && v.spm && v.unk == 0 && v.bos == 1 && v.eos == 2 && v.pad == -1 && v.add_space_prefix == 1 &&
             v.scores[261] > v.scores[260]);
    for (n = 0; n < n_made; n++) {                 /* cut anywhere */
        cv_item item = read_model(&p, &v, n, &e);
        PD_CHECKF(item == CV_TRUNCATED || item == CV_TOKEN || item == CV_TOKENIZER, "cut at %u: %s", (unsigned)n, cv_item_name(item));
        cv_pool_free(&p);
    }
    for (n = 0; n < n_made; n++) {                 /* changed anywhere */
        made[n] = (char)(made[n] ^ 0x80);
        read_model(&p, &v, n_made, &e);
        made[n] = (char)(made[n] ^ 0x81);
        read_model(&p, &v, n_made, &e);
        made[n] = (char)(made[n] ^ 1);
        cv_pool_free(&p);
    }
    MODEL("\x18\x01\x98\x02\x01", PLAIN);
    PD_CHECK(read_model(&p, &v, n_made, &e) == CV_TOKENIZER && strstr(e.message, "Unigram"));
    MODEL("\x98\x02\x01", PLAIN);                  /* Unigram is the format's default */
    PD_CHECK(read_model(&p, &v, n_made, &e) == CV_TOKENIZER && strstr(e.message, "Unigram"));
    MODEL("\x18\x02", PLAIN);
    PD_CHECK(read_model(&p, &v, n_made, &e) == CV_TOKENIZER && strstr(e.message, "fallback"));
    MODEL(BPE_TRAINER, "\x18\x01");                /* removing white space is the default too */
    PD_CHECK(read_model(&p, &v, n_made, &e) == CV_TOKENIZER && strstr(e.message, "white space"));
    MODEL(BPE_TRAINER, "\x0A\x04nfkc\x12\x01x\x20\x00");
    PD_CHECK(read_model(&p, &v, n_made, &e) == CV_TOKENIZER && strstr(e.message, "nfkc"));
    cv_pool_free(&p);
}

static void test_tokenizer_bin(void) {
    cv_pool p = { NULL };
    cv_vocab v;
    cv_error e;
    size_t i, n;
    uint8_t head[8];
    float score = -1;
    char s[8];
    n_made = 0;
    pdi_put_u32(head, 7);
    add_bytes(head, 4);
    for (i = 0; i < 260; i++) {
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)(i - 3) & 255);
        if (i < 3) snprintf(s, sizeof s, "%s", i == 0 ? "<unk>" : i == 1 ? "\n<s>\n" : "\n</s>\n");
        if (i == 259) snprintf(s, sizeof s, "%s", " a");
        pdi_put_u32(head, pdi_float_bits(&score));
        pdi_put_u32(head + 4, (uint32_t)strlen(s));
        add_bytes(head, 8);
        add_bytes(s, strlen(s));
    }
    PD_CHECKF(!cv_tokenizer_bin(&p, "tok.bin", made, n_made, &v, &e), "%s", e.message);
    PD_CHECK(v.n == 260 && v.types[0] == 2 && v.types[1] == 3 && v.types[3] == 6 && pdi_str_is(v.tokens[1], "<s>") &&
             pdi_str_is(v.tokens[259], "\xE2\x96\x81" "a"));
    for (n = 4; n < n_made; n += 5) {
        char *exact = pd_exactly(made, n);
        cv_item item = item_of(cv_tokenizer_bin(&p, "tok.bin", exact, n, &v, &e), &e);
        PD_CHECKF(item == CV_TRUNCATED || item == CV_TOKEN, "cut at %u: %s", (unsigned)n, cv_item_name(item));
        free(exact);
        cv_pool_free(&p);
    }
    made[0] = 5;                                   /* shorter than a token is */
    PD_CHECK(cv_tokenizer_bin(&p, "tok.bin", made, n_made, &v, &e) && e.item == CV_TOKEN);
    cv_pool_free(&p);
}

static void test_merges_txt(void) {
    static const struct { const char *text; int merges; uint64_t line; } cases[] = {
        { "#version: 0.2\na b\nab c\n", 2, 0 }, { "a b\r\nab c", 2, 0 }, { "# #\n", 1, 0 }, { "#version: 0.2\n# #\n## #\n", 2, 0 },
            { "a b\n\n\n", 1, 0 },
        { "#version: 0.2\na b\nabc\n", -1, 3 }, { "a b c\n", -1, 1 }, { "a  b\n", -1, 1 }, { "a b\n\na b\n", -1, 2 }, { " b\n", -1, 1 },
            { "", 0, 0 }, { "a\x0Bx b\n", 1, 0 },
    };
    size_t i;
    for (i = 0; i < COUNT(cases); i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        cv_error e;
        int failed = cv_merges_txt(&p, "merges.txt", take(&p, cases[i].text, strlen(cases[i].text)), strlen(cases[i].text), &v, &e);
        if (cases[i].merges < 0) PD_CHECKF(failed && e.item == CV_MERGE && e.offset == cases[i].line, "\"%s\"", cases[i].text);
        else PD_CHECKF(!failed && v.n_merges == (size_t)cases[i].merges, "\"%s\"", cases[i].text);
        cv_pool_free(&p);
    }
}

/* K11: ids of a GGUF file that no token has. */
static void test_keys(void) {
    size_t i;
    for (i = 0; i < CV_SPECIALS; i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        cv_error e;
        cv_keys keys;
        prediff_container g;
        int found = 0;
        memset(&keys, 0, sizeof keys); memset(&g, 0, sizeof g);
        make_bpe(GPT2, "", "", "");
        if (!read_made(&p, &v, CV_ITEM_NONE, "keys")) return;
        *cv_special(&v, i) = 256;
        PD_CHECK(!cv_vocab_keys(&p, &v, &keys, &e));
        g.keys = keys.keys; g.n_keys = keys.n;
        if (cv_special(&v, i) == &v.mask) PD_CHECK(!cv_vocab_from_keys(&p, &g, &v, &found, &e) && found && v.mask == 256);
        else PD_CHECK(cv_vocab_from_keys(&p, &g, &v, &found, &e) && e.item == CV_TOKEN);
        cv_pool_free(&p);
    }
}

/* Any change of any byte: a vocabulary or a whole error. */
static void test_changes(void) {
    static const uint8_t put[] = { 0, '"', '}', '9', 0xFF };
    const char *small = "{\"added_tokens\":[{\"id\":4,\"content\":\"<e>\",\"special\":true}],\"pre_tokenizer\":" BYTE_LEVEL ",\"post_processor\":{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"<e>\"}},{\"Sequence\":{\"id\":\"A\"}}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";
    size_t n = strlen(small), i, k;
    for (i = 0; i < n; i++)
        for (k = 0; k < COUNT(put) + 2; k++) {
            cv_pool p = { NULL };
            cv_vocab v;
            cv_error e;
            char *text = pd_exactly(small, k ? n : i);
            if (k == 1) text[i] = (char)(text[i] ^ 1);
            else if (k > 1) text[i] = (char)put[k - 2];
            if (item_of(cv_tokenizer_json(&p, "x", text, k ? n : i, &v, &e), &e) == CV_ITEM_NONE) PD_CHECK(v.n > 0 && v.n < 512);
            free(text);
            cv_pool_free(&p);
        }
}

/* -- the material outside the repository -- */

static const char *data(const char *name) {
    static char path[4][600];
    static unsigned turn;
    const char *folder = getenv("PREDIFF_DATA");
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder && *folder ? folder : "../shared/data", name);
    return cv_exists(p) ? p : NULL;
}

/* A vocabulary of a file or folder of the data, opened; NULL if it is absent. */
static prediff_model *open_data(cv_pool *p, const char *name, cv_vocab *v, pd_bytes *b) {
    const char *path = data(name);
    prediff_model *m = NULL;
    prediff_error err;
    cv_error e;
    int found = 1;
    memset(b, 0, sizeof *b); memset(&err, 0, sizeof err);
    if (!path) return NULL;
    if (PD_CHECKF(!(cv_is_folder(path) ? cv_vocab_read_folder(p, path, v, &found, &e) : cv_vocab_read_file(p, path, v, &e)), "%s: %s",
                  name, e.message) &&
        PD_CHECKF(found, "%s: no tokenizer", name)) PD_CHECKF(!pd_open_vocab(p, v, b, &m, &err), "%s: %s", name, err.message);
    return m;
}

static void check_line(const prediff_model *m, const char *name, size_t line, prediff_string text, const cv_json *j, const cv_node *ids) {
    static int32_t got[1 << 15];
    prediff_error err;
    const cv_node *k;
    size_t n = 0, i;
    int64_t want = -1;
    cv_error e;
    int same = !prediff_encode(m, text.bytes, text.n, 0, got, COUNT(got), &n, &err) && n == ids->count;
    for (k = cv_first(ids), i = 0; same && i < n; i++, k = cv_after(j, k)) same = !cv_get_int(j, k, &want, &e) && want == got[i];
    PD_CHECKF(same, "%s: line %u, id %u", name, (unsigned)line, (unsigned)i);
}

static void check_vectors(const prediff_model *m, const char *name, const char *path) {
    cv_pool p = { NULL };
    cv_error e;
    char *text = NULL;
    size_t n = 0, at, end, line = 1;
    if (!PD_CHECK(!cv_read_file(&p, path, CV_JSON_MOST, &text, &n, &e))) return;
    for (at = 0; at < n; at = end + 1, line++) {
        cv_pool q = { NULL };
        cv_json j;
        const cv_node *said, *ids;
        for (end = at; end < n && text[end] != '\n'; end++) {}
        if (end == at) continue;
        if (PD_CHECKF(!cv_json_parse(&q, path, text + at, end - at, &j, &e), "%s", e.message)) {
            said = cv_get(&j, j.nodes, "text");
            ids = cv_get(&j, j.nodes, "ids");
            if (PD_CHECK(said && ids)) check_line(m, name, line, said->text, &j, ids);
        }
        cv_pool_free(&q);
    }
    cv_pool_free(&p);
}

static void test_vectors(void) {
    static const char *const sources[][2] = { { "tok_gpt2", "gpt2" }, { "tok_llama3", "llama3" }, { "tok_llama3/tokenizer.json",
        "llama3" }, { "tok_starcoder", "starcoder_smollm_pre" },
                                              { "tok_starcoder/tokenizer_pairs.json", "starcoder_smollm_pre" },
                                                  { "vocab_gguf/ggml-vocab-gpt-2.gguf", "gpt2" } };
    char name[100];
    size_t i, done = 0;
    for (i = 0; i < COUNT(sources); i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        pd_bytes b;
        const char *path;
        prediff_model *m = open_data(&p, sources[i][0], &v, &b);
        snprintf(name, sizeof name, "tok_vectors/%s.jsonl", sources[i][1]);
        path = data(name);
        if (m && path) { check_vectors(m, sources[i][0], path); done++; }
        prediff_model_close(m);
        free(b.p);
        cv_pool_free(&p);
    }
    if (!done) pd_skip("no tokenizers or vectors in the data folder");
}

/* .inp: texts with a line between; .out: a line of ids each. */
static void check_llama_vectors(const prediff_model *m, const char *name, const char *inp, const char *out) {
    static const char between[] = "\n__ggml_vocab_test__\n";
    static int32_t got[1 << 12];
    cv_pool p = { NULL };
    cv_error e;
    prediff_error err;
    char *text = NULL, *ids = NULL, *next;
    size_t n, n_ids, count, i, texts = 0;
    if (!PD_CHECK(!cv_read_file(&p, inp, CV_JSON_MOST, &text, &n, &e) && !cv_read_file(&p, out, CV_JSON_MOST, &ids, &n_ids, &e))) return;
    for (; (next = strstr(text, between)) != NULL; text = next + sizeof between - 1, texts++) {
        int same = !prediff_encode(m, text, (size_t)(next - text), 0, got, COUNT(got), &count, &err);
        for (i = 0; same && *ids && *ids != '\n'; i++) {
            long want = strtol(ids, &ids, 10);
            while (*ids == ' ') ids++;
            same = i < count && got[i] == want;
        }
        PD_CHECKF(same && i == count, "%s: text %u", name, (unsigned)texts);
        while (*ids && *ids++ != '\n') {}
    }
    PD_CHECK(texts > 40);
    cv_pool_free(&p);
}

static void test_llama_vectors(void) {
    static const char *const sources[][2] = { { "llama2c/tokenizer.model", "llama-spm" }, { "llama2c/tokenizer.bin", "llama-spm" },
                                              { "vocab_gguf/ggml-vocab-llama-spm.gguf", "llama-spm" },
        { "vocab_gguf/ggml-vocab-phi-3.gguf", "phi-3" }, { "vocab_gguf/ggml-vocab-qwen2.gguf", "qwen2" }, { "tok_gpt2", "gpt-2" },
            { "tok_llama3", "llama-bpe" }, { "tok_starcoder", "starcoder" } };
    char inp[100], out[100];
    size_t i, done = 0;
    for (i = 0; i < COUNT(sources); i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        pd_bytes b;
        prediff_model *m = open_data(&p, sources[i][0], &v, &b);
        snprintf(inp, sizeof inp, "vocab_gguf/ggml-vocab-%s.gguf.inp", sources[i][1]);
        snprintf(out, sizeof out, "vocab_gguf/ggml-vocab-%s.gguf.out", sources[i][1]);
        if (m && data(inp) && data(out)) { check_llama_vectors(m, sources[i][0], data(inp), data(out)); done++; }
        prediff_model_close(m);
        free(b.p);
        cv_pool_free(&p);
    }
    if (!done) pd_skip("no vectors in the data folder");
}

/* In a tokenizer.json the one unknown token is that of the model; other tokens GGUF calls unknown are control tokens there. */
static int32_t same_type(int32_t type, int exact) { return !exact && type == PDI_TYPE_UNKNOWN ? PDI_TYPE_CONTROL : type; }

/* exact: scores too, which a tokenizer.json has not, only the merges that follow from them. */
static void check_same(const char *what, const cv_vocab *a, const cv_vocab *b, int exact) {
    size_t i;
    int same = a->n == b->n && a->spm == b->spm && a->n_merges == b->n_merges && (a->spm || strcmp(a->pre, b->pre) == 0);
    for (i = 0; same && i < a->n; i++)
        same = same_type(a->types[i], exact) == same_type(b->types[i], exact) && a->tokens[i].n == b->tokens[i].n &&
            memcmp(a->tokens[i].bytes, b->tokens[i].bytes, a->tokens[i].n) == 0 &&
               (!exact || !a->spm || pdi_float_bits(&a->scores[i]) == pdi_float_bits(&b->scores[i]));
    for (i = 0; same && i < a->n_merges; i++)
        same = a->left[i].n == b->left[i].n && a->right[i].n == b->right[i].n && memcmp(a->left[i].bytes, b->left[i].bytes,
                                                                                        a->left[i].n) == 0 &&
               memcmp(a->right[i].bytes, b->right[i].bytes, a->right[i].n) == 0;
    PD_CHECKF(same, "%s: vocabularies differ (at %u)", what, (unsigned)i);
    PD_CHECKF(a->bos == b->bos && a->eos == b->eos && a->eot == b->eot && a->unk == b->unk && a->pad == b->pad && a->mask == b->mask,
              "%s: special ids differ", what);
}

/* The small files of the data folder, with what must come of them. Their vocabularies lack most bytes, so token 0 stands in. */
static void test_corner_cases(void) {
    static const struct { const char *name; cv_item item; const char *text; int32_t ids[2]; size_t n; } cases[] = {
        { "bad_merge_3parts.json", CV_MERGE, NULL, { 0, 0 }, 0 }, { "bad_merge_unknown.json", CV_MERGE, NULL, { 0, 0 }, 0 },
            { "bad_truncated.json", CV_JSON, NULL, { 0, 0 }, 0 },
        { "ok_added_prefix.json", CV_ITEM_NONE, "<|a|><|b|>", { 12, 0 }, 1 }, { "ok_bom.json", CV_ITEM_NONE, "abc", { 7, 0 }, 1 },
        { "ok_ignore_merges.json", CV_ITEM_NONE, "abc", { 7, 0 }, 1 }, { "ok_ignore_merges_false.json", CV_ITEM_NONE, "abc", { 5, 3 }, 2 },
        { "ok_merge_dup.json", CV_ITEM_NONE, "abc", { 7, 0 }, 1 }, { "ok_merges_strings.json", CV_ITEM_NONE, "abc", { 7, 0 }, 1 },
    };
    char name[100];
    size_t i, done = 0;
    for (i = 0; i < COUNT(cases); i++) {
        cv_pool p = { NULL };
        cv_vocab v;
        cv_error e;
        cv_item got;
        const char *path;
        snprintf(name, sizeof name, "corner_cases/tokenizer/%s", cases[i].name);
        path = data(name);
        if (!path) continue;
        done++;
        got = item_of(cv_vocab_read_file(&p, path, &v, &e), &e);
        PD_CHECKF(got == cases[i].item, "%s: %s, not %s", name, cv_item_name(got), cv_item_name(cases[i].item));
        if (!got && cases[i].text) {
            v.unk = 0;
            check_encoding(name, &p, &v, cases[i].text, PREDIFF_ENCODE_SPECIAL, cases[i].ids, cases[i].n);
        }
        cv_pool_free(&p);
    }
    if (!done) pd_skip("no corner cases in the data folder");
}

static void test_equal_sources(void) {
    static const char *const pairs[][2] = { { "stories260k/tok512.bin", "stories260k/stories260K-f32.gguf" }, { "llama2c/tokenizer.model",
        "vocab_gguf/ggml-vocab-llama-spm.gguf" } };
    size_t i, done = 0;
    for (i = 0; i < COUNT(pairs); i++) {
        cv_pool p = { NULL };
        cv_vocab a, b;
        cv_error e;
        const char *x = data(pairs[i][0]), *y = data(pairs[i][1]);
        if (x && y && PD_CHECK(!cv_vocab_read_file(&p, x, &a, &e) && !cv_vocab_read_file(&p, y, &b, &e))) { check_same(pairs[i][0], &a,
            &b, 1); done++; }
        cv_pool_free(&p);
    }
    if (!done) pd_skip("no tokenizers in the data folder");
}

/* GGUF keys, a folder, and keys again. */
static void test_round_trip(void) {
    static const char *const names[] = { "tok_gpt2", "tok_llama3", "tok_starcoder", "stories260k/tok512.bin", "llama2c/tokenizer.model",
                                         "vocab_gguf/ggml-vocab-phi-3.gguf",
                                         "vocab_gguf/ggml-vocab-qwen2.gguf", "vocab_gguf/ggml-vocab-llama-bpe.gguf" };
    static const char text[] = "Once upon a time, it's 1234.5 \xC3\xA9\xF0\x9F\x98\x80\n\n    Hello  WORLD \xE4\xBD\xA0\xE5\xA5\xBD";
    const char *path = temporary();
    int32_t before[128], after[128];
    size_t i, n, k, done = 0;
    for (i = 0; i < COUNT(names); i++) {
        cv_pool p = { NULL };
        cv_vocab v, w;
        cv_error e;
        prediff_error err;
        pd_bytes b, c;
        int found = 0;
        prediff_model *m = open_data(&p, names[i], &v, &b), *again = NULL;
        memset(&c, 0, sizeof c);
        if (m && PD_CHECKF(!cv_vocab_write_folder(&p, &v, path, &e) && !cv_vocab_read_folder(&p, path, &w, &found, &e) && found, "%s: %s",
                           names[i], e.message)) {
            check_same(names[i], &v, &w, 0);
            PD_CHECKF(cv_adds_bos(&v) == cv_adds_bos(&w), "%s: the token before the text", names[i]);
            if (PD_CHECK(!pd_open_vocab(&p, &w, &c, &again, &err))) {
                PD_CHECK(!prediff_encode(m, text, sizeof text - 1, 1, before, 128, &n, &err) && !prediff_encode(again, text,
                    sizeof text - 1, 1, after, 128, &k, &err));
                PD_CHECKF(n == k && memcmp(before, after, n * sizeof *before) == 0, "%s: ids differ", names[i]);
            }
            done++;
        }
        prediff_model_close(m);
        prediff_model_close(again);
        free(b.p);
        free(c.p);
        cv_pool_free(&p);
    }
    if (!done) pd_skip("no tokenizers in the data folder");
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_rows);
    PD_RUN(test_other_kinds);
    PD_RUN(test_holes_and_numbers);
    PD_RUN(test_forms);
    PD_RUN(test_template);
    PD_RUN(test_holes_again);
    PD_RUN(test_spm);
    PD_RUN(test_sentencepiece);
    PD_RUN(test_tokenizer_bin);
    PD_RUN(test_merges_txt);
    PD_RUN(test_keys);
    PD_RUN(test_changes);
    PD_RUN(test_vectors);
    PD_RUN(test_llama_vectors);
    PD_RUN(test_corner_cases);
    PD_RUN(test_equal_sources);
    PD_RUN(test_round_trip);
    return PD_END();
}
