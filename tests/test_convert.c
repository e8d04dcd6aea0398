/* SPDX-License-Identifier: MIT
 * The readers of the converter: any bytes give a result or a named error. JSON, safetensors in one file and in shards, then the
 * corner cases of the material outside the repository. Row names (J1, S1 ...) are those of the list of malformed inputs.
 */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#define _FILE_OFFSET_BITS 64
#include <stdlib.h>

/* Memory of the code under test: with fail_at n, the n-th allocation from now on fails, and all after it. */
static unsigned long fail_at;
static int fails(void) { return fail_at && (fail_at == 1 || --fail_at == 0); }
static void *test_malloc(size_t n) { return fails() ? NULL : malloc(n); }
static void *test_calloc(size_t n, size_t size) { return fails() ? NULL : calloc(n, size); }
#define malloc test_malloc
#define calloc test_calloc
#define PD_MALLOC
#include "pd_convert.h"
#include "pd_test.h"
#include <locale.h>
#include <time.h>

#ifdef _WIN32
#define make_folder(path) _mkdir(path)
#else
#define make_folder(path) mkdir(path, 0777)
#endif

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A path in the folder for temporary files; up to 8 at a time. */
static const char *temporary(const char *name) {
    static char path[8][600];
    static unsigned turn;
    const char *folder = getenv("PD_TMP");
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/convert-%s", folder ? folder : "build", name);
    return p;
}

static void put(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(bytes, 1, n, f) != n) || fclose(f)) { printf("cannot write %s\n", path); exit(1); }
}

/* The item of a result; an error must be whole. */
static cv_item item_of(int failed, const cv_error *e) {
    const char *wrong = failed ? pd_wrong_error(e) : NULL;
    PD_CHECKF(!wrong, "%s", wrong ? wrong : "");
    return failed ? e->item : CV_ITEM_NONE;
}

static void check_item(const char *row, cv_item got, cv_item want, const cv_error *e) {
    PD_CHECKF(got == want, "%s: %s, not %s (%s)", row, cv_item_name(got), cv_item_name(want), got ? e->message : "");
}

/* -- JSON -- */

/* Parses; on success each node must lie in its place. */
static cv_item parse(const void *bytes, size_t n, cv_error *e) {
    cv_pool p = { NULL };
    char *text = pd_exactly(bytes, n);
    cv_json j;
    size_t i;
    cv_item item;
    memset(e, 0, sizeof *e);
    item = item_of(cv_json_parse(&p, "x.json", text, n, &j, e), e);
    for (i = 0; !item && i < j.n; i++) {
        const cv_node *v = &j.nodes[i], *c = cv_first(v);
        uint32_t k, children = v->kind == CV_OBJECT ? 2 * v->count : v->kind == CV_ARRAY ? v->count : 0;
        for (k = 0; k < children; k++) c = cv_after(&j, c);
        PD_CHECKF(c == cv_after(&j, v) && v->next > i && v->next <= j.n && v->at < n, "node %u", (unsigned)i);
        if (v->kind == CV_STRING || v->kind == CV_NUMBER) PD_CHECKF(v->text.bytes >= text && v->text.n <= (size_t)(text + n - v->text.bytes), "text of node %u", (unsigned)i);
    }
    cv_pool_free(&p);
    free(text);
    return item;
}

typedef struct json_row { const char *row, *text; cv_item item; const char *says; } json_row;

static const json_row json_rows[] = {
    { "plain", "{\"a\":[1,-2.5e+3,true,false,null,\"x\",{}],\"b\":{\"c\":[]}}", CV_ITEM_NONE, NULL },
    { "white space", " \t\r\n{ \"a\" : [ 1 , 2 ] }\n ", CV_ITEM_NONE, NULL },
    { "J3 -0", "{\"a\":-0}", CV_ITEM_NONE, NULL }, { "J3 zero point", "{\"a\":[0.0,0e0,-0.5E-7]}", CV_ITEM_NONE, NULL },
    { "J3 leading zero", "{\"a\":01}", CV_JSON, "leading zero" }, { "J3 -01", "{\"a\":-01}", CV_JSON, "leading zero" }, { "J3 +1", "{\"a\":+1}", CV_JSON, NULL },
    { "J3 .5", "{\"a\":.5}", CV_JSON, NULL }, { "J3 1.", "{\"a\":1.}", CV_JSON, "point" }, { "J3 1e", "{\"a\":1e}", CV_JSON, "exponent" },
    { "J3 1e+", "{\"a\":1e+}", CV_JSON, "exponent" }, { "J3 -", "{\"a\":-}", CV_JSON, "digits" }, { "J3 0x10", "{\"a\":0x10}", CV_JSON, NULL },
    { "J3 NaN", "{\"a\":NaN}", CV_JSON, "Python" }, { "J3 Infinity", "{\"a\":Infinity}", CV_JSON, "Python" }, { "J3 -Infinity", "{\"a\":-Infinity}", CV_JSON, "Python" },
    { "J5 unterminated", "{\"a\":\"x}", CV_JSON, "closing quote" }, { "J5 ends in an escape", "{\"a\":\"x\\", CV_JSON, NULL }, { "J5 bad escape", "{\"a\":\"\\q\"}", CV_JSON, "escape" },
    { "J5 \\u12", "{\"a\":\"\\u12\"}", CV_JSON, "hexadecimal" }, { "J5 \\u12g4", "{\"a\":\"\\u12g4\"}", CV_JSON, "hexadecimal" },
    { "J5 newline", "{\"a\":\"x\ny\"}", CV_JSON, "control" }, { "J5 tab", "{\"a\":\"x\ty\"}", CV_JSON, "control" }, { "J5 quote '", "{'a':1}", CV_JSON, "key" },
    { "surrogate high", "{\"a\":\"\\ud800\"}", CV_JSON, "surrogate" }, { "surrogate low", "{\"a\":\"\\udc00\"}", CV_JSON, "surrogate" },
    { "surrogate twice high", "{\"a\":\"\\ud800\\ud800\"}", CV_JSON, "surrogate" }, { "surrogate twice low", "{\"a\":\"\\udc00\\udc00\"}", CV_JSON, "surrogate" }, { "surrogate without backslash", "{\"a\":\"\\ud83d__de00\"}", CV_JSON, "surrogate" },
    { "surrogate cut", "{\"a\":\"\\ud800\\u", CV_JSON, NULL },
    { "UTF-8 overlong", "{\"a\":\"\xC0\xAF\"}", CV_JSON, "UTF-8" }, { "UTF-8 surrogate", "{\"a\":\"\xED\xA0\x80\"}", CV_JSON, "UTF-8" },
    { "UTF-8 cut", "{\"a\":\"\xE2\x82\"}", CV_JSON, "UTF-8" }, { "UTF-8 above", "{\"a\":\"\xF4\x90\x80\x80\"}", CV_JSON, "UTF-8" }, { "UTF-8 alone", "{\"a\":\"\x80\"}", CV_JSON, "UTF-8" },
    { "UTF-8 outside", "{\xC3\xA9:1}", CV_JSON, NULL }, { "UTF-8 good", "{\"\xC3\xA9\":\"\xF0\x9F\x98\x80\"}", CV_ITEM_NONE, NULL },
    { "J6 trailing comma", "{\"a\":[1,]}", CV_JSON, NULL }, { "J6 trailing comma in an object", "{\"a\":1,}", CV_JSON, "key" }, { "J6 comment", "{/* no */\"a\":1}", CV_JSON, NULL },
    { "J6 comment line", "// no\n{}", CV_JSON, NULL }, { "J6 BOM", "\xEF\xBB\xBF{\"a\":1}", CV_ITEM_NONE, NULL }, { "J6 BOM twice", "\xEF\xBB\xBF\xEF\xBB\xBF{}", CV_JSON, NULL },
    { "J6 BOM alone", "\xEF\xBB\xBF", CV_JSON, "empty" }, { "J7 empty", "", CV_JSON, "empty" }, { "J7 blank", " \n ", CV_JSON, "empty" },
    { "J7 null", "null", CV_JSON_TYPE, "object" }, { "J7 array", "[1,2]", CV_JSON_TYPE, "object" }, { "J7 string", "\"{}\"", CV_JSON_TYPE, NULL }, { "J7 number", "1", CV_JSON_TYPE, NULL },
    { "J8 twice", "{\"a\":1,\"b\":2,\"a\":3}", CV_JSON_DUPLICATE, "'a'" }, { "J8 twice by an escape", "{\"a\":1,\"\\u0061\":3}", CV_JSON_DUPLICATE, NULL },
    { "J8 deep", "{\"x\":[{\"a\":1,\"a\":1}]}", CV_JSON_DUPLICATE, NULL }, { "J8 same key elsewhere", "{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":2}}", CV_ITEM_NONE, NULL },
    { "J8 many", "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"j\":0,\"c\":0}", CV_JSON_DUPLICATE, "'c'" },
    { "J8 empty key", "{\"\":1,\"\":1}", CV_JSON_DUPLICATE, NULL }, { "line", "{\n\"a\":\"\\n\\n\",\n\"b\":]}", CV_JSON, "byte 18 (line 3)" },
    { "line of a duplicate", "{\n\"a\":\"\\n\\n\",\n\"a\":1\n}\n", CV_JSON_DUPLICATE, "line 3" },
    { "no value", "{\"a\":", CV_JSON, "ends where a value" }, { "two documents", "{}{}", CV_JSON, "follows" }, { "bracket wrong", "{\"a\":[1}}", CV_JSON, NULL }, { "bracket missing", "{\"a\":[1", CV_JSON, "ends" },
    { "no colon", "{\"a\" 1}", CV_JSON, "colon" }, { "no comma", "{\"a\":[1 2]}", CV_JSON, "comma" }, { "key no string", "{1:2}", CV_JSON, "key" }, { "word", "{\"a\":True}", CV_JSON, NULL },
    { "LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", CV_FILE_KIND, "LFS" }, { "web page", "\n<!DOCTYPE html><html>", CV_FILE_KIND, "web page" },
};

static void test_json_rows(void) {
    size_t i;
    cv_error e;
    for (i = 0; i < COUNT(json_rows); i++) {
        const json_row *r = &json_rows[i];
        check_item(r->row, parse(r->text, strlen(r->text), &e), r->item, &e);
        if (r->says) PD_CHECKF(strstr(e.message, r->says) != NULL, "%s: \"%s\" does not say \"%s\"", r->row, e.message, r->says);
    }
    check_item("NUL outside", parse("{\"a\":1}\0", 8, &e), CV_JSON, &e);
    check_item("NUL in a string", parse("{\"a\":\"\0\"}", 9, &e), CV_JSON, &e);
}

static void test_json_strings(void) {
    static char text[] = "{\"k\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u00e9\\u20AC\\ud83d\\uDE00.\",\"n\":null,\"a\":[],\"z\":1}";
    static const char want[] = "\"\\/\b\f\n\r\t\0\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80.";
    cv_pool p = { NULL };
    cv_json j;
    cv_error e;
    const cv_node *v;
    if (!PD_CHECK(!cv_json_parse(&p, "x", text, sizeof text - 1, &j, &e))) return;
    v = cv_get(&j, j.nodes, "k");
    PD_CHECK(v && v->text.n == sizeof want - 1 && memcmp(v->text.bytes, want, sizeof want - 1) == 0);
    PD_CHECK(cv_get(&j, j.nodes, "n") && !cv_field(&j, j.nodes, "n") && !cv_get(&j, j.nodes, "none") && !cv_get(&j, NULL, "k"));
    PD_CHECK(!cv_get(&j, cv_get(&j, j.nodes, "a"), "k") && cv_get(&j, j.nodes, "a")->count == 0 && cv_get(&j, j.nodes, "z")->text.n == 1);
    cv_pool_free(&p);
}

/* J1: nesting. */
static void test_json_depth(void) {
    size_t depth, i;
    static const size_t depths[] = { 1, 63, 64, 65, 1000, 100000 };
    cv_error e;
    for (i = 0; i < COUNT(depths); i++) {
        char *text = (char *)malloc(2 * depths[i] + 16);
        if (!text) abort();
        depth = depths[i];                         /* arrays, with one object around them */
        memcpy(text, "{\"a\":", 5);
        memset(text + 5, '[', depth - 1);
        memset(text + 4 + depth, ']', depth - 1);
        text[3 + 2 * depth] = '}';
        if (depth == 1) memcpy(text, "{    }", 6);
        check_item("J1", parse(text, depth == 1 ? 6 : 4 + 2 * depth, &e), depth <= 64 ? CV_ITEM_NONE : CV_JSON, &e);
        free(text);
    }
}

/* An object of n keys; the last is a repetition where `twice`. */
static char *many_keys(size_t n, int twice, size_t *length) {
    char *text = (char *)malloc(24 * n + 32);
    size_t i, at = 0;
    if (!text) abort();
    for (i = 0; i < n; i++) at += (size_t)sprintf(text + at, "%c\"key%u\":%u", i ? ',' : '{', (unsigned)(twice && i + 1 == n ? 0 : i), (unsigned)i);
    text[at++] = '}';
    *length = at;
    return text;
}

static void test_json_many_keys(void) {
    size_t n, i, made = 0, count = 20000;
    cv_error e;
    clock_t begin = clock();
    char *text = many_keys(100000, 0, &n);
    check_item("100,000 keys", parse(text, n, &e), CV_ITEM_NONE, &e);
    free(text);
    text = many_keys(100000, 1, &n);
    check_item("J8 in 100,000 keys", parse(text, n, &e), CV_JSON_DUPLICATE, &e);
    free(text);
    text = (char *)malloc(count * 20);             /* names that fall on 64 of 65,536 places */
    if (!text) abort();
    for (i = 0, n = 0; made < count; i++) {
        char name[16];
        size_t l = (size_t)sprintf(name, "%x", (unsigned)i);
        if ((pdi_hash(name, l) & 0xFFC0) == 0x1240) { n += (size_t)sprintf(text + n, "%c\"%s\":0", made ? ',' : '{', name); made++; }
    }
    text[n++] = '}';
    check_item("names made to collide", parse(text, n, &e), CV_LIMIT, &e);
    free(text);
    PD_CHECKF((double)(clock() - begin) / CLOCKS_PER_SEC < 20, "took %.1f s", (double)(clock() - begin) / CLOCKS_PER_SEC);
}

/* -- numbers -- */

/* The number in {"v":TEXT} as one or the other. */
static cv_item number(const char *value, int64_t *i, double *d, cv_error *e) {
    cv_pool p = { NULL };
    cv_json j;
    const cv_node *v;
    size_t n = strlen(value);
    char *text = (char *)malloc(n + 8);
    int failed;
    if (!text) abort();
    n = (size_t)sprintf(text, "{\"v\":%s}", value);
    failed = cv_json_parse(&p, "x", text, n, &j, e);
    PD_CHECKF(!failed, "%s", e->message);
    v = failed ? NULL : cv_get(&j, j.nodes, "v");
    if (v) failed = i ? cv_get_int(&j, v, i, e) : cv_get_double(&j, v, d, e);
    cv_pool_free(&p);
    free(text);
    return item_of(failed, e);
}

static void test_json_integers(void) {
    static const struct { const char *text; int64_t want; } good[] = {
        { "0", 0 }, { "-0", 0 }, { "4096", 4096 }, { "4096.0", 4096 }, { "4096.000", 4096 }, { "4.096e3", 4096 }, { "40960e-1", 4096 }, { "-7", -7 }, { "0.0e5", 0 },
        { "1e15", 1000000000000000 }, { "9007199254740992", 9007199254740992 }, { "-9007199254740992", -9007199254740992 }, { "0e999999999999", 0 }, { "0.00000000000000000000000000012e29", 12 } };
    static const char *const bad[] = { "0.5", "4096.5", "1e-1", "9007199254740993", "9007199254740992.5", "12345678901234567890", "1e400", "1e999999999999", "-1e17", "4095.99999999999999999999999", "\"4096\"", "true", "null", "[4096]", "{}" };
    size_t i;
    cv_error e;
    int64_t v;
    for (i = 0; i < COUNT(good); i++) { v = -1; check_item(good[i].text, number(good[i].text, &v, NULL, &e), CV_ITEM_NONE, &e); PD_CHECKF(v == good[i].want, "%s is %ld", good[i].text, (long)v); }
    for (i = 0; i < COUNT(bad); i++) check_item(bad[i], number(bad[i], &v, NULL, &e), CV_JSON_TYPE, &e);        /* J4, J10 */
    PD_CHECKF(strstr(e.message, "'v' is an object") != NULL, "%s", e.message);
}

static void same_as_strtod(const char *text) {
    double got = -1, want = strtod(text, NULL);
    cv_error e;
    cv_item item = number(text, NULL, &got, &e);
    if (fabs(want) > 1.7976931348623157e308) check_item(text, item, CV_JSON, &e);
    else PD_CHECKF(!item && memcmp(&got, &want, sizeof got) == 0, "%s is %.17g, not %.17g", text, got, want);
}

/* Rounded as strtod does in a C library that rounds correctly. */
static void test_json_doubles(void) {
    static const char *const hard[] = { "0", "-0.0", "1e-5", "1e-05", "1e-06", "1e-12", "500000.0", "10000", "0.02", "0.1", "0.044715", "0.08838834764831845", "0.70710678118654757", "1.4142135623730951", "3.141592653589793",
        "1e22", "1e23", "9007199254740993", "9007199254740992.9999999999", "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "1e308", "1e309", "1e999", "1e-999", "2.2250738585072014e-308", "2.2250738585072011e-308",
        "4.9406564584124654e-324", "2.4703282292062328e-324", "2.4703282292062327e-324", "7.4109846876186981e-324", "5e-324", "1e-400", "123456789012345678901234567890", "0.000000000000000000000000000000000000001e39", "1e-999999999999",
        "8.988465674311579538646525953945e307", "6.631236846766476e-316", "100000000000000016777215", "100000000000000016777216", "1.00000000000000011102230246251565", "1.00000000000000011102230246251566" };
    size_t i, k;
    char text[480];
    uint64_t state = pd_seed;
    cv_error e;
    double d;
    for (i = 0; i < COUNT(hard); i++) same_as_strtod(hard[i]);
    for (i = 0; i < 20000; i++) {
        uint64_t u;
        state = state * 6364136223846793005u + 1442695040888963407u;
        u = state ^ state >> 29;
        if ((u & 0x7FF0000000000000u) == 0x7FF0000000000000u) continue;
        memcpy(&d, &u, 8);
        snprintf(text, sizeof text, i % 3 ? i % 3 == 1 ? "%.17g" : "%.6g" : "%.25e", d);
        if (text[0] != '-' || text[1]) same_as_strtod(text);
    }
    for (k = 0; k < 3; k++) {                      /* J3: 400 digits */
        memset(text, "193"[k], 400);
        text[k] = '.';
        text[400] = 0;
        if (k == 0) { text[0] = '0'; text[1] = '.'; }
        same_as_strtod(text);
    }
    check_item("J10", number("\"1e-5\"", NULL, &d, &e), CV_JSON_TYPE, &e);
    check_item("J10", number("null", NULL, &d, &e), CV_JSON_TYPE, &e);
}

/* J2 */
static void test_json_locale(void) {
    double d = 0;
    cv_error e;
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "de_DE")) { pd_skip("no German locale here"); return; }
    check_item("J2", number("1.5", NULL, &d, &e), CV_ITEM_NONE, &e);
    PD_CHECK(d == 1.5);
    setlocale(LC_ALL, "C");
}

/* -- safetensors -- */

/* What holds for every list of tensors that is accepted. */
static void check_tensors(const cv_tensor *t, size_t n, uint64_t file_size) {
    size_t i, k;
    uint64_t sum = 0;
    for (i = 0; i < n; i++) {
        const cv_dtype *d = cv_dtype_of(t[i].dtype);
        uint64_t bits = d ? d->bits : 0;
        PD_CHECKF(t[i].begin <= file_size && t[i].size <= file_size - t[i].begin && t[i].n_dims <= 8, "tensor %u leaves the file", (unsigned)i);
        for (k = 0; k < t[i].n_dims; k++) bits *= t[i].dims[k];
        PD_CHECKF(!d || bits == 8 * t[i].size, "size of tensor %u", (unsigned)i);
        sum += t[i].size;
    }
    PD_CHECKF(sum <= file_size, "the tensors are larger than their file");
}

static cv_item read_header(const void *bytes, size_t n, uint64_t file_size, cv_error *e) {
    cv_pool p = { NULL };
    cv_tensor *t = NULL;
    size_t count = 0;
    char *header = pd_exactly(bytes, n);
    cv_item item;
    memset(e, 0, sizeof *e);
    item = item_of(cv_safetensors_header(&p, "x.safetensors", header, n, file_size, &t, &count, e), e);
    if (!item) check_tensors(t, count, file_size);
    cv_pool_free(&p);
    free(header);
    return item;
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"
typedef struct header_row { const char *row, *text; uint64_t data; cv_item item; const char *says; } header_row;

static const header_row header_rows[] = {
    { "one", "{" T("a", "F32", "2,3", "0,24") "}", 24, CV_ITEM_NONE, NULL },
    { "order", "{" T("b", "F32", "1", "2,6") "," T("a", "BF16", "1", "0,2") "}", 6, CV_ITEM_NONE, NULL },
    { "S4 spaces", "        ", 0, CV_JSON, "empty" }, { "S5 leading space", "  {" T("a", "F16", "1", "0,2") "}  ", 2, CV_ITEM_NONE, NULL },
    { "S6 not UTF-8", "{\"\xFF\":1}", 0, CV_JSON, "UTF-8" }, { "S7 trailing", "{}x", 0, CV_JSON, "follows" }, { "S7 trailing 0", "{} {}", 0, CV_JSON, "follows" },
    { "S8 twice", "{" T("a", "F32", "1", "0,4") "," T("a", "F32", "1", "4,8") "}", 8, CV_JSON_DUPLICATE, "'a'" },
    { "S9 string", "{\"__metadata__\":\"x\"}", 0, CV_JSON_TYPE, "__metadata__" }, { "S9 number in it", "{\"__metadata__\":{\"a\":1}}", 0, CV_JSON_TYPE, "'a'" },
    { "S9 null", "{\"__metadata__\":null}", 0, CV_JSON_TYPE, NULL }, { "S9 empty", "{\"__metadata__\":{}}", 0, CV_ITEM_NONE, NULL },
    { "S9 good", "{\"__metadata__\":{\"format\":\"pt\"}," T("a", "F32", "1", "0,4") "}", 4, CV_ITEM_NONE, NULL },
    { "S10 unknown", "{" T("a", "Q9", "7", "0,4") "}", 4, CV_ITEM_NONE, NULL }, { "S10 unknown, out of the file", "{" T("a", "Q9", "7", "0,8") "}", 4, CV_TRUNCATED, NULL },
    { "S10 F4", "{" T("a", "F4", "8", "0,4") "}", 4, CV_ITEM_NONE, NULL }, { "S10 F4 odd", "{" T("a", "F4", "7", "0,4") "}", 4, CV_SHAPE, "and some" },
    { "S10 F8 size", "{" T("a", "F8_E4M3", "5", "0,4") "}", 4, CV_SHAPE, NULL },
    { "S11 negative", "{" T("a", "F32", "-1", "0,4") "}", 4, CV_JSON_TYPE, "'shape'" }, { "S11 float", "{" T("a", "F32", "1.0", "0,4") "}", 4, CV_JSON_TYPE, NULL },
    { "S11 exponent", "{" T("a", "F32", "1e0", "0,4") "}", 4, CV_JSON_TYPE, NULL }, { "S11 -0", "{" T("a", "F32", "-0", "0,0") "}", 0, CV_JSON_TYPE, NULL },
    { "S11 huge", "{" T("a", "F32", "18446744073709551616", "0,4") "}", 4, CV_JSON_TYPE, NULL }, { "S11 string", "{" T("a", "F32", "\"1\"", "0,4") "}", 4, CV_JSON_TYPE, NULL },
    { "S12 wraps", "{" T("a", "F32", "4294967296,4294967296", "0,0") "}", 0, CV_SHAPE, "overflow" }, { "S12 wraps to 4", "{" T("a", "F32", "4611686018427387905", "0,4") "}", 4, CV_SHAPE, "overflow" },
    { "S12 wraps, unknown type", "{" T("a", "Q9", "4294967296,4294967296", "0,0") "}", 0, CV_SHAPE, "overflow" },
    { "S12 nine dimensions", "{" T("a", "F32", "1,1,1,1,1,1,1,1,1", "0,4") "}", 4, CV_LIMIT, NULL },
    { "S13 too small", "{" T("a", "F32", "2", "0,4") "}", 4, CV_SHAPE, "8 bytes" }, { "S13 too large", "{" T("a", "F16", "1", "0,4") "}", 4, CV_SHAPE, NULL },
    { "S14 end < begin", "{" T("a", "F32", "1", "4,0") "}", 4, CV_OFFSET, "before" }, { "S14 negative", "{" T("a", "F32", "1", "-4,0") "}", 4, CV_JSON_TYPE, "data_offsets" },
    { "S14 past the end", "{" T("a", "F32", "2", "0,8") "}", 4, CV_TRUNCATED, NULL }, { "S14 far past the end", "{" T("a", "U8", "18446744073709551615", "0,18446744073709551615") "}", 4, CV_SHAPE, NULL },
    { "S14 unknown type, far past the end", "{" T("a", "Q9", "1", "0,18446744073709551615") "}", 4, CV_TRUNCATED, NULL },
    { "S14 three offsets", "{" T("a", "F32", "1", "0,4,8") "}", 4, CV_JSON_TYPE, NULL }, { "S14 one offset", "{" T("a", "F32", "1", "4") "}", 4, CV_JSON_TYPE, NULL },
    { "S15 overlap", "{" T("a", "F32", "1", "0,4") "," T("b", "F32", "1", "2,6") "}", 6, CV_OFFSET, "'b'" },
    { "S15 same bytes", "{" T("a", "F32", "1", "0,4") "," T("b", "F32", "1", "0,4") "}", 4, CV_OFFSET, NULL },
    { "S16 hole", "{" T("a", "F32", "1", "0,4") "," T("b", "F32", "1", "8,12") "}", 12, CV_OFFSET, "'b'" }, { "S16 hole first", "{" T("a", "F32", "1", "4,8") "}", 8, CV_OFFSET, NULL },
    { "S17 rest", "{" T("a", "F32", "1", "0,4") "}", 8, CV_OFFSET, "4 bytes are left over" }, { "S17 only a rest", "{}", 4, CV_OFFSET, NULL },
    { "S18 empty tensor", "{" T("a", "F32", "0,5", "0,0") "," T("b", "F32", "1", "0,4") "," T("c", "F32", "0", "4,4") "}", 4, CV_ITEM_NONE, NULL },
    { "S18 empty, sizes that wrap", "{" T("a", "F32", "0,4294967296,4294967296", "0,0") "}", 0, CV_ITEM_NONE, NULL },
    { "S18 rank 0", "{" T("a", "F32", "", "0,4") "}", 4, CV_ITEM_NONE, NULL }, { "S18 no tensor", "{}", 0, CV_ITEM_NONE, NULL },
    { "S19 odd place", "{" T("a", "U8", "1", "0,1") "," T("b", "F32", "1", "1,5") "}", 5, CV_ITEM_NONE, NULL },
    { "S20 no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CV_JSON_TYPE, "'dtype'" }, { "S20 no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, CV_JSON_TYPE, "'shape'" },
    { "S20 no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, CV_JSON_TYPE, "'data_offsets'" },
    { "S20 extra", "{\"a\":{\"x\":[{}],\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CV_ITEM_NONE, NULL },
    { "S20 dtype a number", "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CV_JSON_TYPE, NULL }, { "S20 tensor an array", "{\"a\":[1]}", 4, CV_JSON_TYPE, "describes" },
    { "S22 array", "[]", 0, CV_JSON_TYPE, NULL },
};

static void test_safetensors_rows(void) {
    size_t i;
    cv_error e;
    for (i = 0; i < COUNT(header_rows); i++) {
        const header_row *r = &header_rows[i];
        size_t n = strlen(r->text);
        check_item(r->row, read_header(r->text, n, 8 + n + r->data, &e), r->item, &e);
        if (r->says) PD_CHECKF(strstr(e.message, r->says) != NULL, "%s: \"%s\" does not say \"%s\"", r->row, e.message, r->says);
    }
}

/* The bytes of a file: length, header, data 0, 1, 2 ... */
static uint8_t *whole_file(uint64_t length, const char *header, size_t data, size_t *n) {
    size_t h = strlen(header), i;
    uint8_t *b = (uint8_t *)malloc(8 + h + data);
    if (!b) abort();
    pdi_put_u64(b, length);
    memcpy(b + 8, header, h);
    for (i = 0; i < data; i++) b[8 + h + i] = (uint8_t)i;
    *n = 8 + h + data;
    return b;
}

static void put_weights(const char *path, const char *header, size_t data) {
    size_t n;
    uint8_t *b = whole_file(strlen(header), header, data, &n);
    put(path, b, n);
    free(b);
}

static cv_item open_weights(const char *path, cv_error *e) {
    cv_pool p = { NULL };
    cv_weights w;
    cv_item item;
    memset(e, 0, sizeof *e);
    item = item_of(cv_weights_open(&p, path, &w, e), e);
    cv_weights_close(&w);
    cv_pool_free(&p);
    return item;
}

/* S1 to S4, S17: what concerns the file itself; every shorter file; the data of an odd place. */
static void test_safetensors_files(void) {
    static const char header[] = "{" T("a", "U8", "3", "0,3") "," T("w", "F32", "2", "3,11") "}";
    static const uint64_t lengths[] = { 0, 1, 200, 100000000, 100000001, (uint64_t)1 << 31, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX };
    const char *path = temporary("file.safetensors");
    size_t n, i;
    uint8_t *b = whole_file(sizeof header - 1, header, 11, &n), got[8];
    cv_error e;
    cv_pool p = { NULL };
    cv_weights w;
    const cv_tensor *t;
    for (i = 0; i <= n; i++) {
        put(path, b, i);
        check_item("cut", open_weights(path, &e), i < 8 + sizeof header - 1 ? CV_HEADER : i < n ? CV_TRUNCATED : CV_ITEM_NONE, &e);
    }
    for (i = 0; i < COUNT(lengths); i++) {         /* S2, S4 */
        pdi_put_u64(b, lengths[i]);
        put(path, b, n);
        check_item("S2", open_weights(path, &e), lengths[i] == 1 ? CV_JSON : CV_HEADER, &e);
    }
    pdi_put_u64(b, (uint64_t)(sizeof header - 1) << 56);       /* S3: the other order */
    put(path, b, n);
    check_item("S3", open_weights(path, &e), CV_HEADER, &e);
    free(b);
    put_weights(path, header, 15);
    check_item("S17", open_weights(path, &e), CV_OFFSET, &e);
    put_weights(path, header, 11);
    PD_CHECK(!cv_weights_open(&p, path, &w, &e) && (t = cv_find(&w, "w")) != NULL && !cv_find(&w, "x"));
    t = cv_find(&w, "w");
    PD_CHECK(t && !cv_read_at(&w.files[t->file], t->begin, got, 8, &e) && got[0] == 3 && got[7] == 10 && t->type == PREDIFF_F32 && t->dims[0] == 2);   /* S19 */
    cv_weights_close(&w);
    cv_pool_free(&p);
    remove(path);
    check_item("absent", open_weights(path, &e), CV_FILE_OPEN, &e);
    put(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    check_item("LFS", open_weights(path, &e), CV_FILE_KIND, &e);
    put(path, "PK\3\4 archive/data.pkl", 21);
    check_item("zip", open_weights(path, &e), CV_FILE_KIND, &e);
    remove(path);
}

/* S22: a million tensors, long names, depth. */
static void test_safetensors_large(void) {
    size_t count = 200000, n = 0, i;
    char *text = (char *)malloc(count * 90 + 16);
    cv_error e;
    clock_t begin = clock();
    if (!text) abort();
    text[n++] = '{';
    for (i = 0; i < count; i++) n += (size_t)sprintf(text + n, "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}", i ? "," : "", (unsigned)i, (unsigned)i, (unsigned)i + 1);
    text[n++] = '}';
    check_item("S22 count", read_header(text, n, 8 + n + count, &e), CV_LIMIT, &e);
    memset(text, 'x', 1 << 20);
    memcpy(text, "{\"", 2);
    n = 1 << 20;
    n += (size_t)sprintf(text + n, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    check_item("S22 long name", read_header(text, n, 8 + n + 1, &e), CV_ITEM_NONE, &e);
    n = 1 << 20;
    n += (size_t)sprintf(text + n, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}");
    check_item("S22 long name in a message", read_header(text, n, 8 + n + 1, &e), CV_SHAPE, &e);
    memset(text, '[', 100000);
    memcpy(text, "{\"a\":", 5);
    check_item("S22 depth", read_header(text, 100000, 100008, &e), CV_JSON, &e);
    memset(text, '0', 1000000);                    /* as many values as bytes allow */
    for (i = 6; i + 1 < 18000000; i += 2) { text[i] = '0'; text[i + 1] = ','; }
    memcpy(text, "{\"a\":[", 6);
    check_item("S22 values", read_header(text, 17999999, 18000007, &e), CV_LIMIT, &e);
    free(text);
    PD_CHECKF((double)(clock() - begin) / CLOCKS_PER_SEC < 20, "took %.1f s", (double)(clock() - begin) / CLOCKS_PER_SEC);
}

/* -- shards -- */

typedef struct shards_row { const char *row, *index; cv_item item; const char *says; } shards_row;
#define MAP(pairs) "{\"metadata\":{\"total_size\":12},\"weight_map\":{" pairs "}}"
#define ONE "m-00001-of-00002.safetensors"
#define TWO "m-00002-of-00002.safetensors"

static const shards_row shards_rows[] = {
    { "good", MAP("\"a\":\"" ONE "\",\"b\":\"" TWO "\""), CV_ITEM_NONE, NULL },
    { "c is taken although not named", MAP("\"a\":\"" ONE "\""), CV_ITEM_NONE, NULL },
    { "b is in both and the index does not say", MAP("\"a\":\"" ONE "\",\"c\":\"" TWO "\""), CV_TENSOR, "'b' appears twice" },
    { "missing shard", MAP("\"a\":\"" ONE "\",\"b\":\"m-00003-of-00002.safetensors\""), CV_SHARD, "m-00003-of-00002.safetensors" },
    { "missing tensor", MAP("\"a\":\"" ONE "\",\"x\":\"" TWO "\""), CV_SHARD, "'x'" }, { "tensor in the other", MAP("\"a\":\"" TWO "\",\"b\":\"" TWO "\""), CV_SHARD, "'a'" },
    { "up", MAP("\"a\":\"../" ONE "\""), CV_SHARD, "plain" }, { "absolute", MAP("\"a\":\"/etc/passwd\""), CV_SHARD, "plain" }, { "drive", MAP("\"a\":\"c:x\""), CV_SHARD, "plain" },
    { "backslash", MAP("\"a\":\"..\\\\x\""), CV_SHARD, "plain" }, { "dots", MAP("\"a\":\"..\""), CV_SHARD, "plain" }, { "NUL", MAP("\"a\":\"" ONE "\\u0000x\""), CV_SHARD, "plain" },
    { "empty name", MAP("\"a\":\"\""), CV_SHARD, "plain" }, { "number", MAP("\"a\":1"), CV_JSON_TYPE, "'a'" }, { "empty map", MAP(""), CV_SHARD, "empty" },
    { "no map", "{\"metadata\":{}}", CV_SHARD, "weight_map" }, { "map null", "{\"weight_map\":null}", CV_SHARD, "weight_map" }, { "map array", "{\"weight_map\":[]}", CV_JSON_TYPE, "weight_map" },
    { "twice", MAP("\"a\":\"" ONE "\",\"a\":\"" ONE "\""), CV_JSON_DUPLICATE, "'a'" }, { "cut", "{\"weight_map\":{\"a\":", CV_JSON, NULL },
};

/* Two shards and an index; S21. */
static void test_shards(void) {
    const char *folder = temporary("shards"), *index, *one, *two;
    char paths[4][700];
    cv_pool p = { NULL };
    cv_weights w;
    cv_error e;
    size_t i;
    make_folder(folder);
    for (i = 0; i < 4; i++) {
        static const char *const names[] = { ONE, TWO, "model.safetensors.index.json", "model.safetensors" };
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
        remove(paths[i]);
    }
    one = paths[0]; two = paths[1]; index = paths[2];
    put_weights(one, "{" T("a", "F32", "1", "0,4") "," T("b", "F32", "1", "4,8") "}", 8);
    put_weights(two, "{" T("b", "F32", "1", "0,4") "," T("c", "F16", "1", "4,6") "}", 6);
    for (i = 0; i < COUNT(shards_rows); i++) {
        const shards_row *r = &shards_rows[i];
        put(index, r->index, strlen(r->index));
        check_item(r->row, open_weights(folder, &e), r->item, &e);
        check_item(r->row, open_weights(index, &e), r->item, &e);
        if (r->says) PD_CHECKF(strstr(e.message, r->says) != NULL, "%s: \"%s\" does not say \"%s\"", r->row, e.message, r->says);
    }
    put(index, shards_rows[0].index, strlen(shards_rows[0].index));
    put(paths[3], "stray", 5);                     /* the index wins */
    if (PD_CHECK(!cv_weights_open(&p, folder, &w, &e))) {
        const cv_tensor *b = cv_find(&w, "b"), *c = cv_find(&w, "c");
        PD_CHECK(w.n == 3 && w.n_files == 2 && b && c && b->file == c->file && strcmp(w.files[b->file].path, two) == 0);
        cv_weights_close(&w);
    }
    cv_pool_free(&p);
    remove(paths[3]);
    remove(index);
    check_item("S21 shard alone", open_weights(one, &e), CV_SHARD, &e);
    check_item("S21 shards without index", open_weights(folder, &e), CV_SHARD, &e);
    PD_CHECK(strstr(e.message, "index") != NULL);
    remove(two);
    check_item("S21 one shard without index", open_weights(folder, &e), CV_SHARD, &e);
    remove(one);
    check_item("nothing", open_weights(folder, &e), CV_FILE_OPEN, &e);
    snprintf(paths[0], sizeof paths[0], "%s/other.safetensors", folder);
    put_weights(paths[0], "{}", 0);
    check_item("the only file", open_weights(folder, &e), CV_ITEM_NONE, &e);
    snprintf(paths[1], sizeof paths[1], "%s/more.safetensors", folder);
    put_weights(paths[1], "{}", 0);
    check_item("which of two", open_weights(folder, &e), CV_SHARD, &e);
    remove(paths[0]); remove(paths[1]);
    remove(folder);
}

/* Many shards are refused by their number, before any is opened. */
static void test_many_shards(void) {
    size_t i, n = 0, count = 300;
    char *text = (char *)malloc(count * 48 + 64);
    cv_error e;
    const char *path = temporary("many.index.json");
    if (!text) abort();
    n = (size_t)sprintf(text, "{\"weight_map\":{");
    for (i = 0; i < count; i++) n += (size_t)sprintf(text + n, "%s\"t%u\":\"s%u.safetensors\"", i ? "," : "", (unsigned)i, (unsigned)i);
    n += (size_t)sprintf(text + n, "}}");
    put(path, text, n);
    check_item("300 shards", open_weights(path, &e), CV_LIMIT, &e);
    remove(path);
    free(text);
}

/* n tensors of one byte: as a header, or as lines of an index. */
static char *many_tensors(unsigned n, unsigned first, const char *shard) {
    char *text = (char *)malloc((size_t)n * 90 + 64);
    size_t at;
    unsigned i;
    if (!text) abort();
    at = (size_t)sprintf(text, shard ? "{\"weight_map\":" : "");
    for (i = 0; i < n; i++) {
        at += (size_t)sprintf(text + at, "%c\"t%u\":", i ? ',' : '{', first + i);
        if (shard) at += (size_t)sprintf(text + at, "\"%s%u\"", shard, i & 1);
        else at += (size_t)sprintf(text + at, "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}", i, i + 1);
    }
    sprintf(text + at, shard ? "}}" : "}");
    return text;
}

static void test_many_tensors(void) {
    static const char names[] = "{\"weight_map\":{\"t0\":\"convert-many-1\",\"t40000\":\"convert-many-2\"}}";
    const char *index = temporary("many.json"), *one = temporary("many-1"), *two = temporary("many-2");
    char *text = many_tensors(65537, 0, "s");
    cv_error e;
    put(index, text, strlen(text));
    check_item("65,537 tensors in an index", open_weights(index, &e), CV_LIMIT, &e);
    free(text);
    put(index, names, sizeof names - 1);
    text = many_tensors(40000, 0, NULL); put_weights(one, text, 40000); free(text);
    text = many_tensors(25000, 40000, NULL); put_weights(two, text, 25000); free(text);
    check_item("65,000 tensors in shards", open_weights(index, &e), CV_ITEM_NONE, &e);
    text = many_tensors(25537, 40000, NULL); put_weights(two, text, 25537); free(text);
    check_item("65,537 tensors in shards", open_weights(index, &e), CV_LIMIT, &e);
    remove(index); remove(one); remove(two);
}

/* -- sweeps: each byte cut off, each byte changed -- */

typedef cv_item (*reader)(const void *bytes, size_t n, cv_error *e);

static cv_item read_as_header(const void *bytes, size_t n, cv_error *e) { return read_header(bytes, n, n + 8 + 16, e); }

static cv_item read_as_index(const void *bytes, size_t n, cv_error *e) {
    cv_pool p = { NULL };
    cv_shards *x = (cv_shards *)calloc(1, sizeof *x);
    char *text = pd_exactly(bytes, n);
    cv_item item;
    size_t i;
    if (!x) abort();
    x->path = "x.json"; x->folder = ".";
    item = item_of(cv_index_read(&p, x, text, n, e), e);
    for (i = 0; !item && i < x->n_shards; i++) PD_CHECK(cv_is_plain_name(x->shards[i]));
    for (i = 0; !item && i < x->n; i++) PD_CHECK(x->map[i].shard < x->n_shards);
    cv_pool_free(&p);
    free(text); free(x);
    return item;
}

#ifndef CONVERT_PARTIAL
static cv_item read_as_tokenizer(const void *bytes, size_t n, cv_error *e) {
    cv_pool p = { NULL };
    char *text = pd_exactly(bytes, n);
    cv_vocab v;
    cv_item item = item_of(cv_tokenizer_json(&p, "tokenizer.json", text, n, &v, e), e);
    if (!item) PD_CHECKF(v.n > 0 && v.n <= 2 * n + 256 && v.bos < (int64_t)v.n && v.eos < (int64_t)v.n, "a vocabulary out of range");
    cv_pool_free(&p);
    free(text);
    return item;
}

static cv_item read_as_config(const void *bytes, size_t n, cv_error *e) {
    cv_pool p = { NULL };
    char *text = pd_exactly(bytes, n);
    cv_config c;
    cv_item item = item_of(cv_config_read(&p, "config.json", text, n, &c, e), e);
    if (!item) PD_CHECKF(c.n_head > 0 && c.n_head_kv > 0 && c.n_head % c.n_head_kv == 0 && c.n_embd > 0 && c.n_layer > 0, "sizes out of range");
    cv_pool_free(&p);
    free(text);
    return item;
}
#endif

typedef struct sweep { const char *name, *text; reader read; } sweep;
static const sweep sweeps[] = {
    { "json", "{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"a\":[1,-2.5e+3,true,null,{\"b\":\"\\u00e9\\ud83d\\ude00\xE2\x82\xAC\"},[]],\"k\":\"\\n\"}", parse },
    { "header", "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "F32", "1,2", "8,16") "," T("a", "BF16", "2,2", "0,8") "}", read_as_header },
    { "index", "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}", read_as_index },
#ifndef CONVERT_PARTIAL
    { "tokenizer", "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":6,\"content\":\"<|end|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
      "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
      "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
      "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\\u0120\":5},\"merges\":[\"a b\",\"ab c\"]}}", read_as_tokenizer },
    { "config", "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,"
      "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"bos_token_id\":1,\"eos_token_id\":[2,3],"
      "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}", read_as_config },
#endif
};

static void sweep_cut(const sweep *s) {
    size_t n = strlen(s->text), i;
    cv_error e;
    check_item(s->name, s->read(s->text, n, &e), CV_ITEM_NONE, &e);
    for (i = 0; i < n; i++) PD_CHECKF(s->read(s->text, i, &e) != CV_ITEM_NONE, "%s: accepted with %u of %u bytes", s->name, (unsigned)i, (unsigned)n);
}

static void sweep_flip(const sweep *s) {
    size_t n = strlen(s->text), i, k;
    char *text = pd_exactly(s->text, n);
    cv_error e;
    for (i = 0; i < n; i++)
        for (k = 0; k < 6; k++) {
            static const char to[] = "\0\x7F\x80\xFF";
            text[i] = k < 4 ? to[k] : (char)(s->text[i] + (k == 4 ? 1 : -1));
            s->read(text, n, &e);                  /* either; its promises are checked by the reader */
            text[i] = s->text[i];
        }
    PD_CHECK(memcmp(text, s->text, n) == 0);
    free(text);
}

static void test_sweep_cut(void) { size_t i; for (i = 0; i < COUNT(sweeps); i++) sweep_cut(&sweeps[i]); }
static void test_sweep_flip(void) { size_t i; for (i = 0; i < COUNT(sweeps); i++) sweep_flip(&sweeps[i]); }

/* Each allocation fails once: an error that says so, and nothing is lost (the leak checker looks). */
static void test_no_memory(void) {
    size_t i;
    unsigned long n;
    cv_error e;
    for (i = 0; i < COUNT(sweeps); i++)
        for (n = 1; n < 1000; n++) {
            cv_item item;
            fail_at = n;
            item = sweeps[i].read(sweeps[i].text, strlen(sweeps[i].text), &e);
            fail_at = 0;
            if (!item) { PD_CHECKF(n > 1, "%s needs no memory", sweeps[i].name); break; }
            PD_CHECKF(item == CV_ALLOC, "%s, allocation %lu: %s: %s", sweeps[i].name, n, cv_item_name(item), e.message);
        }
}

/* -- the kinds of files, told by their content -- */

#ifndef CONVERT_PARTIAL
static cv_item look(const char *path, char summary[320], cv_error *e) {
    cv_pool p = { NULL };
    cv_summary s;
    cv_item item;
    memset(&s, 0, sizeof s); memset(e, 0, sizeof *e);
    item = item_of(cv_look(&p, path, &s, e), e);
    PD_CHECK(item || (s.n > 0 && memchr(s.text, 0, sizeof s.text) != NULL));
    memcpy(summary, s.text, sizeof s.text);
    cv_pool_free(&p);
    return item;
}

typedef struct kind_row { const char *text; size_t n; cv_item item; const char *says; } kind_row;
#define TEXT(s) s, sizeof s - 1

static const kind_row kind_rows[] = {
    { TEXT("\x36\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}12345678"), CV_ITEM_NONE, "safetensors, 1 tensors, 1 of integers" },
    { TEXT("\x36\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}12345678"), CV_DTYPE, "F64" },
    { TEXT("\x35\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,8]}}12345678"), CV_DTYPE, "Q9" },
    { TEXT("{\"model_type\":\"gpt2\",\"n_embd\":4,\"n_head\":2,\"n_layer\":1,\"n_positions\":8,\"vocab_size\":6}"), CV_ITEM_NONE, "config, gpt2" },
    { TEXT("{\"model_type\":\"bert\"}"), CV_UNSUPPORTED, "bert" },
    { TEXT("{\"a\":0,\"b\":1,\"c\":2}"), CV_ITEM_NONE, "vocabulary, 3 tokens" }, { TEXT("{\"a\":0,\"b\":1,\"c\":1}"), CV_TOKEN, NULL },
    { TEXT("{\"tokenizer_class\":\"GPT2Tokenizer\"}"), CV_ITEM_NONE, "settings" }, { TEXT("{\"do_sample\":true}"), CV_FILE_KIND, "JSON" }, { TEXT("{}"), CV_FILE_KIND, "JSON" },
    { TEXT("{\"weight_map\":{\"a\":\"absent.safetensors\"}}"), CV_SHARD, "absent" }, { TEXT("{\"a\":"), CV_JSON, "byte 5" },
    { TEXT("#version: 0.2\na b\nab c\n"), CV_ITEM_NONE, "merges, 2" }, { TEXT(""), CV_FILE_KIND, "empty" },
    { TEXT("<html><body>404</body></html>"), CV_FILE_KIND, "web page" }, { TEXT("version https://git-lfs.github.com/spec/v1\n"), CV_FILE_KIND, "LFS" },
    { TEXT("GGUF"), CV_LIBRARY, "GGUF_TRUNCATED" }, { TEXT("FUGG\0\0\0\3"), CV_LIBRARY, "GGUF_ENDIAN" }, { TEXT("PK\3\4xxxxxxxx"), CV_FILE_KIND, "zip" },
};

static void test_kinds(void) {
    const char *path = temporary("kind");
    char summary[320];
    cv_error e;
    size_t i, k, c;
    for (i = 0; i < COUNT(kind_rows); i++) {
        const kind_row *r = &kind_rows[i];
        put(path, r->text, r->n);
        check_item(r->text, look(path, summary, &e), r->item, &e);
        if (r->says) PD_CHECKF(strstr(e.item ? e.message : summary, r->says) != NULL, "\"%s\" does not say \"%s\"", e.item ? e.message : summary, r->says);
        for (k = 0; k < r->n; k++)                 /* cut and changed: any result, but a whole one */
            for (c = 0; c < 3; c++) {
                char *b = pd_exactly(r->text, r->n);
                b[k] = (char)(c == 0 ? 0 : c == 1 ? 0xFF : b[k] ^ 1);
                put(path, b, c ? r->n : k);
                look(path, summary, &e);
                free(b);
            }
    }
    remove(path);
    check_item("absent", look(path, summary, &e), CV_FILE_OPEN, &e);
}
#endif

/* -- corner cases of the material outside the repository: lines "FILE<tab>VERDICT<tab>why" of expected.tsv -- */

#ifndef CONVERT_PARTIAL
/* "error:WORD" of a verdict, in files whose name begins with `where`, is this item; the first that fits counts. */
typedef struct verdict { const char *where, *word; cv_item item; } verdict;
static const verdict verdicts[] = {
    { "safetensors/bad_neg_dim", "json", CV_JSON_TYPE }, { "safetensors/bad_float_dim", "json", CV_JSON_TYPE }, { "safetensors/bad_meta_not_string", "json", CV_JSON_TYPE },
    { "gguf/bad_", "", CV_LIBRARY }, { "gguf/unsup_", "", CV_LIBRARY },                   /* which of the library's items: test_robust.c */
    { "", "json", CV_JSON }, { "", "utf8", CV_JSON }, { "", "header-", CV_HEADER }, { "", "lfs-pointer", CV_FILE_KIND }, { "", "incomplete", CV_TRUNCATED },
    { "", "offset", CV_OFFSET }, { "", "overflow", CV_SHAPE }, { "", "duplicate-id", CV_TOKEN }, { "", "duplicate", CV_JSON_DUPLICATE }, { "", "unsupported-dtype", CV_DTYPE },
    { "sharded/", "missing-shard", CV_SHARD }, { "sharded/", "tensor", CV_SHARD }, { "sharded/", "path", CV_SHARD }, { "sharded/", "weight_map", CV_SHARD },
    { "tokenizer/", "merge", CV_MERGE }, { "tokenizer/", "line 3", CV_MERGE }, { "tokenizer/", "id", CV_TOKEN },
    { "config/", "heads", CV_FIELD }, { "config/", "kv", CV_FIELD }, { "config/", "range", CV_FIELD }, { "config/", "rope factor missing", CV_FIELD }, { "config/", "unsupported", CV_UNSUPPORTED },
};

static cv_item item_of_verdict(const char *file, const char *word) {
    size_t i;
    for (i = 0; i < COUNT(verdicts); i++)
        if (strncmp(file, verdicts[i].where, strlen(verdicts[i].where)) == 0 && strncmp(word, verdicts[i].word, strlen(verdicts[i].word)) == 0) return verdicts[i].item;
    return CV_ITEM_NONE;
}

/* The tiny vocabularies of the material lack most bytes, which the library wants: those are added behind, as GPT-2 writes them. */
static void add_bytes(cv_pool *p, cv_vocab *v) {
    prediff_string *tokens = (prediff_string *)cv_alloc(p, v->n + 256, sizeof *tokens, NULL);
    int32_t *types = (int32_t *)cv_alloc(p, v->n + 256, sizeof *types, NULL);
    size_t i, k, n = v->n;
    uint32_t b, odd = 256;
    memcpy(tokens, v->tokens, n * sizeof *tokens);
    memcpy(types, v->types, n * sizeof *types);
    for (b = 0; b < 256; b++) {
        char *c = (char *)cv_alloc(p, 4, 1, NULL);
        k = pdi_put_char((b > 32 && b < 127) || (b > 160 && b != 173) ? b : odd++, c);
        for (i = 0; i < n && !pdi_str_is(tokens[i], c); i++) {}
        if (i < n) continue;
        tokens[v->n].bytes = c;
        tokens[v->n].n = k;
        types[v->n++] = 1;
    }
    v->tokens = tokens;
    v->types = types;
}

/* "ok:TEXT=IDS": what the tokenizer makes of TEXT. */
static void check_ids(const char *path, const char *said) {
    cv_pool p = { NULL };
    cv_error e;
    cv_vocab v;
    prediff_error err;
    prediff_model *m = NULL;
    pd_bytes b;
    int32_t ids[16];
    size_t n = 0, k = 0;
    const char *equals = strchr(said, '=');
    memset(&b, 0, sizeof b); memset(&err, 0, sizeof err);
    if (!PD_CHECKF(!cv_vocab_read_file(&p, path, &v, &e), "%s", e.message)) return;
    add_bytes(&p, &v);
    if (PD_CHECKF(!pd_open_vocab(&p, &v, &b, &m, &err), "%s: %s", path, err.message)) {
        PD_CHECK(!prediff_encode(m, said, (size_t)(equals - said), 0, ids, 16, &n, &err));
        for (said = equals; *said == '=' || *said == ','; k++) {
            char *end;
            long id = strtol(said + 1, &end, 10);
            PD_CHECKF(k < n && ids[k] == id, "%s: id %u is %ld, not %ld", path, (unsigned)k, k < n ? (long)ids[k] : -1L, id);
            said = end;
        }
        PD_CHECKF(k == n, "%s: %u ids, not %u", path, (unsigned)n, (unsigned)k);
    }
    prediff_model_close(m);
    free(b.p);
    cv_pool_free(&p);
}

/* What "ok" adds: a number of the summary, ids of a text, the one tensor that may be there. */
static void check_more(const char *file, const char *path, const char *said, const char *summary) {
    char wanted[64];
    if (strcmp(said, "ok") == 0) return;
    if (strncmp(file, "tokenizer/merges", 16) == 0) snprintf(wanted, sizeof wanted, ", %.20s of them", said + 3);
    else if (strncmp(said, "ok:size=", 8) == 0) snprintf(wanted, sizeof wanted, ", %.20s tokens", said + 8);
    else if (strcmp(said, "ok:only a (index wins)") == 0) snprintf(wanted, sizeof wanted, ", 1 tensors");
    else if (strcmp(said, "ok:64") == 0) snprintf(wanted, sizeof wanted, " heads of 64");
    else {
        if (strchr(said, '=')) check_ids(path, said + 3);
        return;
    }
    PD_CHECKF(strstr(summary, wanted) != NULL, "%s: \"%s\" does not say \"%s\"", file, summary, wanted);
}

static void corner_case(const char *file, const char *said) {
    char full[200];
    const char *path;
    cv_pool p = { NULL };
    cv_error e;
    cv_summary s;
    cv_item want = item_of_verdict(file, strncmp(said, "error:", 6) == 0 ? said + 6 : "ok");
    memset(&e, 0, sizeof e); memset(&s, 0, sizeof s);
    snprintf(full, sizeof full, "corner_cases/%s", file);
    PD_CHECKF(want || strncmp(said, "ok", 2) == 0, "%s: no item is known for \"%s\"", file, said);
    path = pd_data(full);                          /* a folder opens as a file does */
    if (!PD_CHECKF(path != NULL, "%s is missing", file)) return;
    check_item(file, item_of(cv_look(&p, path, &s, &e), &e), want, &e);
    if (!e.item) check_more(file, path, said, s.text);
    cv_pool_free(&p);
}

static void test_corner_cases(void) {
    const char *list = pd_data("corner_cases/expected.tsv");
    size_t n, cases = 0, bad = 0;
    uint8_t *text = list ? pd_read_file(list, &n) : NULL;
    char *line = (char *)text, *next;
    if (!text) { pd_skip("no corner_cases in PREDIFF_DATA"); return; }
    for (; line && *line; line = next) {
        char *tab = strchr(line, '\t'), *end;
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (!tab) continue;
        *tab++ = 0;
        end = strchr(tab, '\t');
        if (end) *end = 0;
        corner_case(line, tab);
        cases++;
        bad += tab[0] == 'e';
    }
    PD_CHECKF(cases >= 90 && bad >= 55, "%u cases, %u of them bad", (unsigned)cases, (unsigned)bad);
    free(text);
}
#endif

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_json_rows);
    PD_RUN(test_json_strings);
    PD_RUN(test_json_depth);
    PD_RUN(test_json_many_keys);
    PD_RUN(test_json_integers);
    PD_RUN(test_json_doubles);
    PD_RUN(test_json_locale);
    PD_RUN(test_safetensors_rows);
    PD_RUN(test_safetensors_files);
    PD_RUN(test_safetensors_large);
    PD_RUN(test_shards);
    PD_RUN(test_many_shards);
    PD_RUN(test_many_tensors);
    PD_RUN(test_sweep_cut);
    PD_RUN(test_sweep_flip);
    PD_RUN(test_no_memory);
#ifndef CONVERT_PARTIAL
    PD_RUN(test_kinds);
    PD_RUN(test_corner_cases);
#endif
    return PD_END();
}
