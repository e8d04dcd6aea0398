/* SPDX-License-Identifier: MIT
 *
 * prediff-convert: weights in and out.
 *
 *     prediff-convert IN OUT.gguf [--type q8_0]     a Hugging Face folder, a .safetensors file, a llama2.c .bin or a .gguf
 *     prediff-convert IN.gguf OUT_FOLDER --to hf    back to safetensors, config.json and tokenizer files for PyTorch users
 *     prediff-convert --check PATH                  reads any file or folder it knows and says what is wrong where
 *
 * The sections, each under its tag: >>BASE >>JSON >>SAFETENSORS >>CONFIG >>TOKENIZER >>SOURCE >>TARGET >>CHECK >>MAIN.
 * A conversion is a list of tensors, each knowing where its rows come from (>>SOURCE), written row by row (>>TARGET): memory
 * holds the headers, the tokenizer, and at most one tensor, whatever the model's size.
 *
 * This tool is part of the library's own source: it includes the implementation and uses its internal helpers (pdi_).
 */

#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#define _FILE_OFFSET_BITS 64
#define PREDIFF_STATIC
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#else
#include <dirent.h>
#include <unistd.h>
#endif

/* ---- >>BASE: errors, memory, files --------------------------------------------------------------------------------- */

/* Every reason for a refusal, printed before its message; tests assert the name. */
#define CV_ITEMS(X) \
    X(ALLOC)             /* out of memory */ \
    X(FILE_OPEN) X(FILE_READ) X(FILE_WRITE) \
    X(FILE_KIND)         /* none of the kinds we know; a Git LFS pointer; a web page */ \
    X(LIMIT)             /* larger than this tool reads */ \
    X(JSON)              /* not JSON: syntax, UTF-8, escapes, depth, numbers */ \
    X(JSON_DUPLICATE)    /* a key twice in one object */ \
    X(JSON_TYPE)         /* a field of the wrong type */ \
    X(HEADER)            /* safetensors: length of the header */ \
    X(TRUNCATED)         /* the file ends too early */ \
    X(OFFSET)            /* safetensors: offsets leave a hole, overlap, or run backwards */ \
    X(SHAPE)             /* a shape overflows, or does not fit its bytes or the model */ \
    X(DTYPE)             /* an element type we do not read */ \
    X(SHARD)             /* index and shards disagree */ \
    X(FIELD)             /* config: a field missing or out of range */ \
    X(UNSUPPORTED)       /* valid, but not a model or setting we run; the message names it */ \
    X(TENSOR)            /* a tensor missing, twice, or unknown */ \
    X(TOKEN)             /* tokenizer: an id or a token's text */ \
    X(MERGE)             /* tokenizer: a merge */ \
    X(TOKENIZER)         /* tokenizer: a kind, splitter or normaliser we do not have; files missing */ \
    X(ENCODING)          /* a value cannot be stored in the wanted type */ \
    X(LIBRARY)           /* an error of prediff.h, whose own item follows in the message */

typedef enum cv_item {
    CV_ITEM_NONE = 0,
#define X(name) CV_##name,
    CV_ITEMS(X)
#undef X
    CV_ITEM_COUNT
} cv_item;

typedef struct cv_error {
    cv_item item;
    uint64_t offset;                   /* byte or line where that makes sense */
    char message[320];                 /* printable ASCII */
} cv_error;

static const char *cv_item_name(cv_item item) {
    static const char *const names[] = { "NONE",
#define X(name) #name,
        CV_ITEMS(X)
#undef X
    };
    return names[item];
}

/* Sets the error and returns 1: functions return 0 for success. fmt as in pdi_format: %s, %S (prediff_string *), %i, %u. */
static int cv_fail_at(cv_error *e, cv_item item, uint64_t offset, const char *fmt, ...) {
    va_list ap;
    e->item = item;
    e->offset = offset;
    va_start(ap, fmt);
    pdi_format(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return 1;
}

#define CV_FAIL(e, ITEM, ...) cv_fail_at(e, CV_##ITEM, 0, __VA_ARGS__)
#define CV_FAIL_AT(e, ITEM, at, ...) cv_fail_at(e, CV_##ITEM, at, __VA_ARGS__)
#define CV_TRY(call) do { if (call) return 1; } while (0)

/* An error of the library, with its own item. */
static int cv_library(cv_error *e, const char *path, const prediff_error *p) {
    return CV_FAIL_AT(e, LIBRARY, p->offset, "%s: %s: %s", path, prediff_item_name(p->item), p->message);
}

/* Memory of one conversion: blocks that are freed together. */
enum { CV_ALIGN = 64 };                /* of a block and of what is in it */
typedef struct cv_block { struct cv_block *next; } cv_block;
typedef struct cv_pool { cv_block *first; } cv_pool;

/* count * size bytes, zeroed, aligned for anything; NULL with an error. */
static void *cv_alloc(cv_pool *p, size_t count, size_t size, cv_error *e) {
    size_t bytes;
    cv_block *b = NULL;
    if (pdi_mul(count, size, &bytes) && pdi_add(bytes, CV_ALIGN, &bytes)) b = (cv_block *)calloc(1, bytes);
    if (!b) { CV_FAIL(e, ALLOC, "no memory for %u times %u bytes", (uint64_t)count, (uint64_t)size); return NULL; }
    b->next = p->first;
    p->first = b;
    return (uint8_t *)b + CV_ALIGN;
}

static void cv_pool_free(cv_pool *p) {
    while (p->first) { cv_block *b = p->first; p->first = b->next; free(b); }
}

/* A copy of n bytes with a zero behind it. */
static char *cv_copy(cv_pool *p, const char *s, size_t n, cv_error *e) {
    char *c = (char *)cv_alloc(p, n + 1, 1, e);
    if (c) memcpy(c, s, n);
    return c;
}

/* "folder/name". */
static char *cv_path(cv_pool *p, const char *folder, const char *name, cv_error *e) {
    size_t a = strlen(folder), b = strlen(name);
    char *c = (char *)cv_alloc(p, a + b + 2, 1, e);
    if (!c) return NULL;
    memcpy(c, folder, a);
    if (a && folder[a - 1] != '/') c[a++] = '/';
    memcpy(c + a, name, b + 1);
    return c;
}

static prediff_string cv_str(const char *z) { prediff_string s; s.bytes = z; s.n = strlen(z); return s; }

static int cv_is_folder(const char *path) { struct stat st; return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == S_IFDIR; }
static int cv_exists(const char *path) { struct stat st; return stat(path, &st) == 0; }

/* A file read piece by piece. */
typedef struct cv_file { FILE *f; uint64_t size; const char *path; } cv_file;

static int cv_seek(FILE *f, uint64_t at) {
#ifdef _WIN32
    return at > INT64_MAX || _fseeki64(f, (int64_t)at, SEEK_SET);
#else
    return at > (uint64_t)INT64_MAX || (uint64_t)(off_t)at != at || fseeko(f, (off_t)at, SEEK_SET);
#endif
}

static int cv_open(cv_file *f, const char *path, cv_error *e) {
    struct stat st;
    f->path = path;
    f->f = NULL;
    if (stat(path, &st) == 0 && (st.st_mode & S_IFMT) != S_IFREG) return CV_FAIL(e, FILE_OPEN, "%s is not a regular file", path);
    f->f = fopen(path, "rb");
    if (!f->f) return CV_FAIL(e, FILE_OPEN, "cannot open %s: %s", path, strerror(errno));
    f->size = (uint64_t)st.st_size;
    return 0;
}

static void cv_close(cv_file *f) { if (f->f) fclose(f->f); f->f = NULL; }

/* n bytes from offset `at`. */
static int cv_read_at(cv_file *f, uint64_t at, void *out, size_t n, cv_error *e) {
    if (cv_seek(f->f, at)) return CV_FAIL_AT(e, FILE_READ, at, "%s: cannot go to byte %u", f->path, at);
    if (fread(out, 1, n, f->f) == n) return 0;
    if (ferror(f->f)) return CV_FAIL_AT(e, FILE_READ, at, "%s: reading at byte %u failed", f->path, at);
    return CV_FAIL_AT(e, TRUNCATED, at, "%s ends before byte %u", f->path, at + n);
}

/* A whole file of at most `most` bytes, with a zero behind it. */
static int cv_read_file(cv_pool *p, const char *path, uint64_t most, char **text, size_t *n, cv_error *e) {
    cv_file f;
    int failed;
    CV_TRY(cv_open(&f, path, e));
    failed = f.size > most || f.size >= SIZE_MAX ? CV_FAIL(e, LIMIT, "%s has %u bytes; at most %u are read", path, f.size, most) : 0;
    if (!failed) {
        *n = (size_t)f.size;
        *text = (char *)cv_alloc(p, *n + 1, 1, e);
        failed = !*text || cv_read_at(&f, 0, *text, *n, e);
    }
    cv_close(&f);
    return failed;
}

enum { CV_JSON_MOST = 1 << 28 };       /* bytes of a JSON file we read whole: tokenizers have up to some 20 MB */

/* ---- >>JSON: one reader for headers, indexes, configs and tokenizers ----------------------------------------------

   A document becomes a flat array of nodes in document order; strings are decoded in place. Strict RFC 8259, with one
   permission (a byte order mark is skipped) and four refusals it leaves open: keys that repeat, surrogates without their other
   half, more than 64 levels, a document that is no object (all we read are). Nothing recurses; every pass is linear. */

typedef enum cv_kind { CV_NULL, CV_BOOL, CV_NUMBER, CV_STRING, CV_ARRAY, CV_OBJECT } cv_kind;

typedef struct cv_node {               /* an object's children are key, value, key, value ... */
    uint8_t kind;
    uint8_t truth;                     /* of a bool; of a string: 1 = it is a key */
    uint32_t count;                    /* array: elements; object: pairs */
    uint32_t next;                     /* index of the node after this whole value */
    uint32_t at;                       /* byte offset in the document */
    prediff_string text;               /* string: decoded UTF-8 bytes; number: its characters */
} cv_node;

typedef struct cv_json { const cv_node *nodes; size_t n; const char *path, *text; } cv_json;    /* nodes[0] is the root */

enum { CV_JSON_DEPTH = 64, CV_JSON_NODES = 1 << 23 };

typedef struct cv_parser {
    const char *path;
    char *text;
    size_t n, at, token;               /* token: where the present one began */
    cv_node *nodes;
    size_t n_nodes, capacity;
    uint32_t open[CV_JSON_DEPTH];      /* nodes of the arrays and objects we are in */
    size_t depth;
    uint32_t *table;                   /* of the keys of a closing object */
    size_t slots;
    cv_error *e;
} cv_parser;

static const cv_node *cv_first(const cv_node *v) { return v + 1; }
static const cv_node *cv_after(const cv_json *j, const cv_node *v) { return j->nodes + v->next; }

/* Line of byte `at`, which lies in no string. Line feeds that came out of escapes do not count. */
static uint64_t cv_line(const char *text, size_t at, const cv_node *nodes, size_t n_nodes) {
    uint64_t line = 1;
    size_t i, k;
    for (i = 0; i < at; i++) line += text[i] == '\n';
    for (i = 0; i < n_nodes && nodes[i].at < at; i++)
        for (k = 0; nodes[i].kind == CV_STRING && k < nodes[i].text.n; k++) line -= nodes[i].text.bytes[k] == '\n';
    return line;
}

static int cv_json_fail(const cv_parser *p, size_t at, const char *what) {
    uint64_t line = cv_line(p->text, p->token, p->nodes, p->n_nodes);
    return CV_FAIL_AT(p->e, JSON, at, "%s: byte %u (line %u): %s", p->path, (uint64_t)at, line, what);
}

/* "FILE: byte N (line L): 'key' is FOUND, not WANTED"; an element of an array goes by the key of the array. */
static int cv_json_type(const cv_json *j, const cv_node *v, const char *wanted, cv_error *e) {
    static const char *const names[] = { "null", "true or false", "a number", "a string", "an array", "an object" };
    const cv_node *k = v;
    prediff_string found = v->kind == CV_NUMBER ? v->text : cv_str(names[v->kind]), key = cv_str("document");
    while (k > j->nodes && !(k[-1].kind == CV_STRING && k[-1].truth && k->next >= v->next)) k--;
    if (k > j->nodes) key = k[-1].text;
    return CV_FAIL_AT(e, JSON_TYPE, v->at, "%s: byte %u (line %u): '%S' %s %S, not %s", j->path, (uint64_t)v->at,
                      cv_line(j->text, v->at, j->nodes, j->n), &key, k == v ? "is" : "holds", &found, wanted);
}

/* Things that come in place of a file when a download went wrong. */
static int cv_no_pointer(const char *path, const char *bytes, size_t n, cv_error *e) {
    static const char lfs[] = "version https://git-lfs";
    size_t i = 0;
    if (n >= sizeof lfs - 1 && memcmp(bytes, lfs, sizeof lfs - 1) == 0)
        return CV_FAIL(e, FILE_KIND, "%s is a Git LFS pointer, not the file itself: fetch that with `git lfs pull`", path);
    if (n >= 4 && memcmp(bytes, "PK\3\4", 4) == 0)
        return CV_FAIL(e, FILE_KIND, "%s is a zip archive (a PyTorch checkpoint?): save the model as safetensors first", path);
    while (i < n && (bytes[i] == ' ' || (bytes[i] >= 9 && bytes[i] <= 13))) i++;
    if (n - i >= 5 && bytes[i] == '<' && (bytes[i + 1] == '!' || (bytes[i + 1] | 32) == 'h' || bytes[i + 1] == '?'))
        return CV_FAIL(e, FILE_KIND, "%s is a web page, not the file itself: download it again", path);
    return 0;
}

/* -- the parser -- */

/* The next character that is no white space, or -1 at the end; a token begins here. */
static int cv_json_peek(cv_parser *p) {
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\n' || p->text[p->at] == '\r' || p->text[p->at] == '\t')) p->at++;
    p->token = p->at;
    return p->at < p->n ? (uint8_t)p->text[p->at] : -1;
}

static cv_node *cv_json_node(cv_parser *p, cv_kind kind) {     /* capacity was counted before */
    cv_node *v = &p->nodes[p->n_nodes++];
    v->kind = (uint8_t)kind;
    v->next = (uint32_t)p->n_nodes;
    v->at = (uint32_t)p->token;
    return v;
}

/* Four hexadecimal digits at p->at. */
static int cv_json_hex(cv_parser *p, uint32_t *unit) {
    size_t i;
    *unit = 0;
    for (i = 0; i < 4; i++) {
        int c = p->at < p->n ? (uint8_t)p->text[p->at] : -1, low = c | 32;
        if (c >= '0' && c <= '9') *unit = *unit << 4 | (uint32_t)(c - '0');
        else if (c >= 0 && low >= 'a' && low <= 'f') *unit = *unit << 4 | (uint32_t)(low - 'a' + 10);
        else return cv_json_fail(p, p->at, "\\u without four hexadecimal digits");
        p->at++;
    }
    return 0;
}

/* The escape after a backslash: its bytes to out, their number added to *w. Never longer than what it replaces. */
static int cv_json_escape(cv_parser *p, char *out, size_t *w) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t begin = p->at - 1;
    const char *known = p->at < p->n ? (const char *)memchr(from, p->text[p->at], sizeof from - 1) : NULL;
    uint32_t c, low;
    if (known) { out[(*w)++] = to[known - from]; p->at++; return 0; }
    if (p->at >= p->n || p->text[p->at] != 'u') return cv_json_fail(p, begin, "an escape that JSON does not have");
    p->at++;
    CV_TRY(cv_json_hex(p, &c));
    if (c < 0xD800 || c > 0xDFFF) { *w += pdi_put_char(c, out + *w); return 0; }
    if (c > 0xDBFF || p->n - p->at < 2 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
        return cv_json_fail(p, begin, "half of a surrogate pair without the other");
    p->at += 2;
    CV_TRY(cv_json_hex(p, &low));
    if (low < 0xDC00 || low > 0xDFFF) return cv_json_fail(p, begin, "half of a surrogate pair without the other");
    c = 0x10000 + ((c & 0x3FF) << 10 | (low & 0x3FF));
    out[(*w)++] = (char)(0xF0 | c >> 18);
    out[(*w)++] = (char)(0x80 | (c >> 12 & 0x3F));
    out[(*w)++] = (char)(0x80 | (c >> 6 & 0x3F));
    out[(*w)++] = (char)(0x80 | (c & 0x3F));
    return 0;
}

/* A string, decoded over its own bytes. */
static int cv_json_string(cv_parser *p, int key) {
    char *out = p->text + ++p->at;
    size_t w = 0;
    for (;;) {
        uint8_t c = p->at < p->n ? (uint8_t)p->text[p->at] : 0;
        size_t length = 1;
        if (p->at >= p->n) return cv_json_fail(p, p->token, "a string without its closing quote");
        if (c == '"') break;
        if (c < 32) return cv_json_fail(p, p->at, "a control character inside a string: a quote is missing, or it must be an escape");
        if (c == '\\') { p->at++; CV_TRY(cv_json_escape(p, out, &w)); continue; }
        if (c >= 128) pdi_char_at(p->text + p->at, p->n - p->at, &length);
        if (c >= 128 && length == 1) return cv_json_fail(p, p->at, "not UTF-8");
        for (; length; length--) out[w++] = p->text[p->at++];
    }
    p->at++;
    {
        cv_node *v = cv_json_node(p, CV_STRING);
        v->truth = (uint8_t)key;
        v->text.bytes = out;
        v->text.n = w;
    }
    return 0;
}

static const char cv_not_numbers[] = "NaN and Infinity, which Python writes, are not JSON: write a number or null";

static size_t cv_json_digits(cv_parser *p) {
    size_t from = p->at;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') p->at++;
    return p->at - from;
}

/* The grammar only; values are made where they are asked for. */
static int cv_json_number(cv_parser *p) {
    size_t digits, whole;
    cv_node *v;
    if (p->text[p->at] == '-') p->at++;
    whole = p->at;
    digits = cv_json_digits(p);
    if (!digits && p->at < p->n && p->text[p->at] == 'I') return cv_json_fail(p, p->token, cv_not_numbers);
    if (!digits) return cv_json_fail(p, p->token, "a number without digits");
    if (digits > 1 && p->text[whole] == '0') return cv_json_fail(p, p->token, "a number with leading zeros");
    if (p->at < p->n && p->text[p->at] == '.') {
        p->at++;
        if (!cv_json_digits(p)) return cv_json_fail(p, p->token, "a number without digits after its point");
    }
    if (p->at < p->n && (p->text[p->at] | 32) == 'e') {
        p->at++;
        if (p->at < p->n && (p->text[p->at] == '+' || p->text[p->at] == '-')) p->at++;
        if (!cv_json_digits(p)) return cv_json_fail(p, p->token, "a number without digits in its exponent");
    }
    v = cv_json_node(p, CV_NUMBER);
    v->text.bytes = p->text + p->token;
    v->text.n = p->at - p->token;
    return 0;
}

static int cv_json_word(cv_parser *p) {
    static const char *const words[] = { "null", "false", "true", "NaN", "Infinity" };
    size_t i, n;
    for (i = 0; i < 5; i++) {
        n = strlen(words[i]);
        if (p->n - p->at < n || memcmp(p->text + p->at, words[i], n) != 0) continue;
        if (i > 2) return cv_json_fail(p, p->token, cv_not_numbers);
        p->at += n;
        cv_json_node(p, i ? CV_BOOL : CV_NULL)->truth = i == 2;
        return 0;
    }
    return cv_json_fail(p, p->token, (uint8_t)p->text[p->at] >= 128 ? "a byte that is not JSON" : "a value was expected here");
}

/* A value; of an array or object only its beginning. */
static int cv_json_value(cv_parser *p) {
    int c = cv_json_peek(p);
    if (c < 0) return cv_json_fail(p, p->at, "the document ends where a value was expected");
    if (c == '"') return cv_json_string(p, 0);
    if (c == '-' || (c >= '0' && c <= '9')) return cv_json_number(p);
    if (c != '{' && c != '[') return cv_json_word(p);
    if (p->depth == CV_JSON_DEPTH) return cv_json_fail(p, p->at, "more than 64 arrays and objects inside each other");
    p->open[p->depth++] = (uint32_t)p->n_nodes;
    cv_json_node(p, c == '{' ? CV_OBJECT : CV_ARRAY);
    p->at++;
    return 0;
}

static int cv_json_key(cv_parser *p) {
    if (cv_json_peek(p) != '"') return cv_json_fail(p, p->at, "a key in quotes was expected here");
    CV_TRY(cv_json_string(p, 1));
    if (cv_json_peek(p) != ':') return cv_json_fail(p, p->at, "a colon was expected after the key");
    p->at++;
    return 0;
}

static int cv_json_same_key(const cv_parser *p, const cv_node *a, const cv_node *b) {
    if (a->text.n != b->text.n || memcmp(a->text.bytes, b->text.bytes, a->text.n) != 0) return 0;
    CV_FAIL_AT(p->e, JSON_DUPLICATE, b->at, "%s: byte %u (line %u): the key '%S' is there twice", p->path, (uint64_t)b->at,
               cv_line(p->text, b->at, p->nodes, p->n_nodes), &b->text);
    return 1;
}

/* No key may repeat. Few are compared each with each, many through a hash table. All look-ups of one object together may take
   a fixed number of probes per key, which honest keys never need: keys made to collide are refused in linear time. */
static int cv_json_unique(cv_parser *p, const cv_node *object) {
    size_t i, s, slots = pdi_table_size(object->count), probes = 0, most = 32 * (size_t)object->count;
    const cv_node *k = object + 1, *o;
    if (object->count <= 8) {
        for (i = 0; i < object->count; i++, k = p->nodes + k[1].next)
            for (o = object + 1; o < k; o = p->nodes + o[1].next) if (cv_json_same_key(p, o, k)) return 1;
        return 0;
    }
    if (slots > p->slots) {
        free(p->table);
        p->table = (uint32_t *)malloc(slots * sizeof *p->table);
        p->slots = p->table ? slots : 0;
        if (!p->table) return CV_FAIL(p->e, ALLOC, "%s: no memory for %u keys", p->path, (uint64_t)object->count);
    }
    memset(p->table, 0, slots * sizeof *p->table);
    for (i = 0; i < object->count; i++, k = p->nodes + k[1].next) {
        for (s = pdi_hash(k->text.bytes, k->text.n) & (slots - 1); p->table[s]; s = (s + 1) & (slots - 1)) {
            if (cv_json_same_key(p, p->nodes + p->table[s], k)) return 1;
            if (++probes > most) return CV_FAIL_AT(p->e, LIMIT, k->at, "%s: byte %u: the keys of an object collide too often", p->path,
                                                   (uint64_t)k->at);
        }
        p->table[s] = (uint32_t)(k - p->nodes);    /* not 0, which is the root */
    }
    return 0;
}

static int cv_json_close(cv_parser *p) {
    cv_node *v = &p->nodes[p->open[--p->depth]];
    v->next = (uint32_t)p->n_nodes;
    p->at++;
    return v->kind == CV_OBJECT && cv_json_unique(p, v);
}

static int cv_json_document(cv_parser *p) {
    CV_TRY(cv_json_value(p));
    while (p->depth) {
        cv_node *v = &p->nodes[p->open[p->depth - 1]];
        int object = v->kind == CV_OBJECT, c = cv_json_peek(p);
        if (c == (object ? '}' : ']')) { CV_TRY(cv_json_close(p)); continue; }
        if (c < 0) return cv_json_fail(p, p->at, "the document ends inside an array or object");
        if (v->count && c != ',') return cv_json_fail(p, p->at, "a comma or the closing bracket was expected here");
        if (v->count) p->at++;
        if (object) CV_TRY(cv_json_key(p));
        v->count++;
        CV_TRY(cv_json_value(p));
    }
    if (cv_json_peek(p) >= 0) return cv_json_fail(p, p->at, "something follows the document");
    return 0;
}

/* How many nodes a document can have at most: one, and one more for every bracket, comma and colon outside strings. */
static size_t cv_json_count(const char *text, size_t n) {
    size_t i, count = 1;
    int inside = 0;
    for (i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') inside = !inside;
        else if (inside) i += c == '\\';
        else count += c == '{' || c == '[' || c == ',' || c == ':';
    }
    return count;
}

/* Decodes strings in place: `text` must outlive the result. Nodes come from the pool. */
static int cv_json_parse(cv_pool *pool, const char *path, char *text, size_t n, cv_json *out, cv_error *e) {
    cv_parser p;
    int failed;
    if (n > CV_JSON_MOST) return CV_FAIL(e, LIMIT, "%s has %u bytes of JSON; at most %u are read", path, (uint64_t)n,
                                         (uint64_t)CV_JSON_MOST);
    CV_TRY(cv_no_pointer(path, text, n, e));
    memset(&p, 0, sizeof p);
    p.path = path; p.text = text; p.n = n; p.e = e;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) p.at = 3;
    if (cv_json_peek(&p) < 0) return CV_FAIL(e, JSON, "%s is empty", path);
    p.capacity = cv_json_count(text, n);
    if (p.capacity > CV_JSON_NODES) return CV_FAIL(e, LIMIT, "%s holds some %u values; at most %u are read", path, (uint64_t)p.capacity,
                                                   (uint64_t)CV_JSON_NODES);
    p.nodes = (cv_node *)cv_alloc(pool, p.capacity, sizeof *p.nodes, e);
    if (!p.nodes) return 1;
    failed = cv_json_document(&p);
    free(p.table);
    if (failed) return 1;
    out->nodes = p.nodes; out->n = p.n_nodes; out->path = path; out->text = text;
    if (p.nodes[0].kind != CV_OBJECT) return CV_FAIL(e, JSON_TYPE, "%s: the document is no object in { }", path);
    return 0;
}

/* -- looking things up -- */

/* The value of a key, or NULL; `object` may be NULL or something else. */
static const cv_node *cv_get(const cv_json *j, const cv_node *object, const char *key) {
    const cv_node *k;
    uint32_t i;
    if (!object || object->kind != CV_OBJECT) return NULL;
    for (k = cv_first(object), i = 0; i < object->count; i++, k = cv_after(j, k + 1)) if (pdi_str_is(k->text, key)) return k + 1;
    return NULL;
}

/* The same, with null as absent. */
static const cv_node *cv_field(const cv_json *j, const cv_node *object, const char *key) {
    const cv_node *v = cv_get(j, object, key);
    return v && v->kind != CV_NULL ? v : NULL;
}

/* A number's parts: sign, up to CV_DIGITS digits, and the power of ten they are to be multiplied by. */
enum { CV_DIGITS = 60 };
typedef struct cv_decimal { int negative, more, n; int32_t power; uint8_t digits[CV_DIGITS]; } cv_decimal;

static void cv_decimal_of(prediff_string s, cv_decimal *d) {
    size_t i = 0;
    int32_t exponent = 0;
    int point = 0, minus;
    memset(d, 0, sizeof *d);
    if (s.bytes[0] == '-') { d->negative = 1; i++; }
    for (; i < s.n && (s.bytes[i] | 32) != 'e'; i++) {
        uint8_t digit = (uint8_t)(s.bytes[i] - '0');
        if (s.bytes[i] == '.') { point = 1; continue; }
        if (d->n == CV_DIGITS) { d->more |= digit; d->power += !point; continue; }    /* text is below 2^28 bytes */
        d->power -= point;
        if (digit || d->n) d->digits[d->n++] = digit;
    }
    if (i < s.n) {
        minus = s.bytes[++i] == '-';
        if (minus || s.bytes[i] == '+') i++;
        for (; i < s.n; i++) if (exponent < 100000000) exponent = exponent * 10 + (s.bytes[i] - '0');
        d->power += minus ? -exponent : exponent;
    }
    while (d->n && !d->digits[d->n - 1] && !d->more) { d->n--; d->power++; }
}

/* An exact integer of at most 2^53 in size: 4096 and 4096.0. */
static int cv_get_int(const cv_json *j, const cv_node *v, int64_t *out, cv_error *e) {
    cv_decimal d;
    uint64_t u = 0;
    int i;
    if (v->kind != CV_NUMBER) return cv_json_type(j, v, "a whole number", e);
    cv_decimal_of(v->text, &d);
    if (d.n && (d.power < 0 || d.more || d.n + d.power > 16)) return cv_json_type(j, v, "a whole number below 2^53", e);
    for (i = 0; i < d.n; i++) u = u * 10 + d.digits[i];
    for (i = 0; d.n && i < d.power; i++) u *= 10;
    if (u > (uint64_t)1 << 53) return cv_json_type(j, v, "a whole number below 2^53", e);
    *out = d.negative ? -(int64_t)u : (int64_t)u;
    return 0;
}

/* A natural number of any length, little end first, for cv_get_double. */
enum { CV_LIMBS = 56 };
typedef struct cv_big { uint32_t limb[CV_LIMBS]; size_t n; } cv_big;

static void cv_big_times(cv_big *b, uint32_t factor, uint32_t more) {
    uint64_t carry = more;
    size_t i;
    for (i = 0; i < b->n; i++) { carry += (uint64_t)b->limb[i] * factor; b->limb[i] = (uint32_t)carry; carry >>= 32; }
    if (carry) b->limb[b->n++] = (uint32_t)carry;
}

static uint32_t cv_big_over(cv_big *b, uint32_t divisor) {      /* returns the remainder */
    uint64_t rest = 0;
    size_t i = b->n;
    while (i--) { rest = rest << 32 | b->limb[i]; b->limb[i] = (uint32_t)(rest / divisor); rest %= divisor; }
    while (b->n && !b->limb[b->n - 1]) b->n--;
    return (uint32_t)rest;
}

/* The top 64 bits of b, the highest set; *lost becomes 1 if others were not zero, *shift how many there were. */
static uint64_t cv_big_top(const cv_big *b, int *shift, int *lost) {
    size_t i;
    uint64_t top = 0;
    int up = 0;
    for (i = 0; i < 3; i++) {
        uint32_t limb = b->n > i ? b->limb[b->n - 1 - i] : 0;
        if (i < 2) top = top << 32 | limb;
        else if (up) { top |= limb >> (32 - up); limb <<= up; }
        if (i == 1) while (!(top >> 63)) { top <<= 1; up++; }
        if (i == 2 && limb) *lost = 1;
    }
    for (i = 3; i < b->n; i++) if (b->limb[b->n - 1 - i]) *lost = 1;
    *shift = 32 * ((int)b->n - 2) - up;
    return top;
}

/* digits * 10^power, rounded to the nearest double, ties to even. Digits beyond the first 60 only break ties. */
static double cv_decimal_double(const cv_decimal *d) {
    cv_big b;
    uint64_t top, rest;
    int i, shift, lost = d->more != 0, scale = 0, drop = 11;
    b.n = 0;
    if (!d->n || d->n + d->power < -330) return 0;
    if (d->n + d->power > 310) return HUGE_VAL;
    for (i = 0; i < d->n; i++) cv_big_times(&b, 10, d->digits[i]);
    for (i = 0; i < d->power; i++) cv_big_times(&b, 10, 0);
    for (; d->power < 0 && scale < 80 - d->power * 10 / 3; scale += 16) cv_big_times(&b, 1u << 16, 0);
    for (i = 0; i < -d->power; i++) if (cv_big_over(&b, 10)) lost = 1;
    top = cv_big_top(&b, &shift, &lost);
    shift -= scale;
    if (shift + 63 < -1022) drop += -1022 - (shift + 63);       /* a denormal has fewer bits */
    if (drop > 64) return 0;
    rest = drop == 64 ? top : top & (((uint64_t)1 << drop) - 1);
    top = drop == 64 ? 0 : top >> drop;
    if (rest > (uint64_t)1 << (drop - 1) || (rest == (uint64_t)1 << (drop - 1) && (lost || (top & 1)))) top++;
    return ldexp((double)top, shift + drop);
}

/* Any finite number; integers too. */
static int cv_get_double(const cv_json *j, const cv_node *v, double *out, cv_error *e) {
    cv_decimal d;
    double x;
    if (v->kind != CV_NUMBER) return cv_json_type(j, v, "a number", e);
    cv_decimal_of(v->text, &d);
    x = cv_decimal_double(&d);
    if (!pdi_is_finite_double(&x)) return CV_FAIL_AT(e, JSON, v->at, "%s: byte %u: the number %S is too large", j->path, (uint64_t)v->at,
                                                     &v->text);
    *out = d.negative ? -x : x;
    return 0;
}

/* ---- >>SAFETENSORS: checkpoints in one file or in shards ------------------------------------------------------------

        header length u64 | JSON header, padded with spaces | data

   The header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {string: string}}.
   Offsets count from the data's beginning. In their order the tensors must fill the data without hole, overlap or rest. A
   model in shards has an index: {"weight_map": {"name": "model-00001-of-00002.safetensors", ...}}. */

typedef struct cv_tensor {             /* one tensor of a safetensors file */
    prediff_string name;
    uint32_t type;                     /* prediff_type F32, F16 or BF16; UINT32_MAX: another, see dtype */
    prediff_string dtype;
    uint32_t n_dims;
    uint64_t dims[8];                  /* as in the file: slowest first */
    uint32_t file;                     /* index into files[] */
    uint64_t begin, size;              /* absolute byte offset and bytes */
} cv_tensor;

typedef struct cv_weights {            /* zeroed = closed. All files stay open */
    cv_tensor *tensors; size_t n;
    cv_file *files; size_t n_files;
    uint32_t *table; size_t slots;     /* over tensors, by name */
} cv_weights;

enum { CV_MOST_TENSORS = 65536, CV_MOST_SHARDS = 240, CV_HEADER_MOST = 100000000 };    /* the last is the format's own limit */

typedef struct cv_dtype { const char *name; unsigned bits; uint32_t type; int number; } cv_dtype;       /* number: weights may be of it */
static const cv_dtype cv_dtypes[] = {
    { "F32", 32, PREDIFF_F32, 1 }, { "F16", 16, PREDIFF_F16, 1 }, { "BF16", 16, PREDIFF_BF16, 1 }, { "F64", 64, UINT32_MAX, 1 },
    { "BOOL", 8, UINT32_MAX, 0 }, { "U8", 8, UINT32_MAX, 0 }, { "I8", 8, UINT32_MAX, 0 }, { "U16", 16, UINT32_MAX, 0 },
    { "I16", 16, UINT32_MAX, 0 }, { "U32", 32, UINT32_MAX, 0 }, { "I32", 32, UINT32_MAX, 0 }, { "U64", 64, UINT32_MAX, 0 },
    { "I64", 64, UINT32_MAX, 0 }, { "C64", 64, UINT32_MAX, 1 }, { "F8_E5M2", 8, UINT32_MAX, 1 }, { "F8_E4M3", 8, UINT32_MAX, 1 },
    { "F8_E8M0", 8, UINT32_MAX, 1 }, { "F8_E5M2FNUZ", 8, UINT32_MAX, 1 }, { "F8_E4M3FNUZ", 8, UINT32_MAX, 1 },
    { "F6_E2M3", 6, UINT32_MAX, 1 }, { "F6_E3M2", 6, UINT32_MAX, 1 }, { "F4", 4, UINT32_MAX, 1 }
};

/* NULL: a type the format may have got later. */
static const cv_dtype *cv_dtype_of(prediff_string s) {
    size_t i;
    for (i = 0; i < sizeof cv_dtypes / sizeof *cv_dtypes; i++) if (pdi_str_is(s, cv_dtypes[i].name)) return &cv_dtypes[i];
    return NULL;
}

/* -- the header -- */

/* A size or offset: digits only, below 2^64. */
static int cv_plain(const cv_json *j, const cv_node *v, uint64_t *out, cv_error *e) {
    size_t i;
    uint64_t u = 0;
    for (i = 0; v->kind == CV_NUMBER && i < v->text.n; i++) {
        uint64_t digit = (uint64_t)(uint8_t)v->text.bytes[i] - '0';
        if (digit > 9 || u > (UINT64_MAX - digit) / 10) break;
        u = u * 10 + digit;
    }
    *out = u;
    if (v->kind == CV_NUMBER && i == v->text.n) return 0;
    return cv_json_type(j, v, "a plain whole number from 0 to 2^64 - 1", e);
}

static const cv_node *cv_tensor_field(const cv_json *j, const cv_node *v, const cv_tensor *t, const char *key, cv_kind kind, cv_error *e) {
    const cv_node *f = cv_get(j, v, key);
    if (!f) CV_FAIL_AT(e, JSON_TYPE, v->at, "%s: tensor '%S' has no '%s'", j->path, &t->name, key);
    else if (f->kind != kind) { cv_json_type(j, f, kind == CV_ARRAY ? "an array" : "a string", e); f = NULL; }
    return f;
}

/* One tensor; begin and size still count from the data's beginning. */
static int cv_tensor_read(const cv_json *j, const cv_node *v, cv_tensor *t, cv_error *e) {
    const cv_node *dtype, *shape, *offsets, *d;
    const cv_dtype *type;
    uint64_t end, bits;
    uint32_t i;
    if (v->kind != CV_OBJECT) return cv_json_type(j, v, "an object that describes a tensor", e);
    dtype = cv_tensor_field(j, v, t, "dtype", CV_STRING, e);
    shape = dtype ? cv_tensor_field(j, v, t, "shape", CV_ARRAY, e) : NULL;
    offsets = shape ? cv_tensor_field(j, v, t, "data_offsets", CV_ARRAY, e) : NULL;
    if (!offsets) return 1;
    t->dtype = dtype->text;
    type = cv_dtype_of(t->dtype);
    t->type = type ? type->type : UINT32_MAX;
    if (offsets->count != 2) return cv_json_type(j, offsets, "an array of two numbers", e);
    CV_TRY(cv_plain(j, cv_first(offsets), &t->begin, e));
    CV_TRY(cv_plain(j, cv_first(offsets) + 1, &end, e));
    if (end < t->begin)
        return CV_FAIL_AT(e, OFFSET, v->at, "%s: tensor '%S' ends at %u, before it begins at %u", j->path, &t->name, end, t->begin);
    t->size = end - t->begin;
    t->n_dims = shape->count;
    if (t->n_dims > 8)
        return CV_FAIL_AT(e, LIMIT, v->at, "%s: tensor '%S' has %u dimensions, more than 8", j->path, &t->name, (uint64_t)t->n_dims);
    bits = type ? type->bits : 1;
    for (d = cv_first(shape), i = 0; i < t->n_dims; i++, d = cv_after(j, d)) {
        CV_TRY(cv_plain(j, d, &t->dims[i], e));
        if (t->dims[i] && bits > UINT64_MAX / t->dims[i])
            return CV_FAIL_AT(e, SHAPE, d->at, "%s: the shape of tensor '%S' overflows", j->path, &t->name);
        bits *= t->dims[i];
    }
    if (type && (bits % 8 || bits / 8 != t->size))
        return CV_FAIL_AT(e, SHAPE, v->at, "%s: tensor '%S' needs %u%s bytes by its shape and type %S, its offsets give it %u", j->path,
                          &t->name, bits / 8, bits % 8 ? " and some" : "", &t->dtype, t->size);
    return 0;
}

static int cv_tensor_before(const void *tensors, uint32_t a, uint32_t b) {
    const cv_tensor *t = (const cv_tensor *)tensors;
    if (t[a].begin != t[b].begin) return t[a].begin < t[b].begin;
    return t[a].size != t[b].size ? t[a].size < t[b].size : a < b;
}

/* In the order of their offsets the tensors must follow each other without hole or overlap, and fill the data. */
static int cv_tensors_place(cv_pool *p, const char *path, cv_tensor *t, size_t n, uint64_t start, uint64_t file_size, cv_error *e) {
    uint32_t *order = (uint32_t *)cv_alloc(p, n + 1, sizeof *order, e);
    uint64_t at = 0, room = file_size - start;
    size_t i;
    if (!order) return 1;
    for (i = 0; i < n; i++) order[i] = (uint32_t)i;
    pdi_sort(order, n, cv_tensor_before, t);
    for (i = 0; i < n; i++) {
        cv_tensor *o = &t[order[i]];
        if (o->begin != at)
            return CV_FAIL_AT(e, OFFSET, start + at, "%s: tensor '%S' begins at offset %u, %s the one before it ends (%u)", path, &o->name,
                              o->begin, o->begin < at ? "before" : "not where", at);
        at = o->begin + o->size;                   /* the end that was read: no overflow */
        if (at > room)
            return CV_FAIL_AT(e, TRUNCATED, file_size, "%s: tensor '%S' ends at byte %u, but the file has %u (a download that stopped?)",
                              path, &o->name, start + at, file_size);
        o->begin += start;
    }
    if (at < room) return CV_FAIL_AT(e, OFFSET, start + at, "%s: %u bytes are left over after the last tensor", path, room - at);
    return 0;
}

static int cv_metadata(const cv_json *j, const cv_node *v, cv_error *e) {
    const cv_node *k = cv_first(v);
    uint32_t i;
    if (v->kind != CV_OBJECT) return cv_json_type(j, v, "an object of strings", e);
    for (i = 0; i < v->count; i++, k = cv_after(j, k + 1)) if (k[1].kind != CV_STRING) return cv_json_type(j, k + 1, "a string", e);
    return 0;
}

/* The tensors of a parsed header, in its order. */
static int cv_tensors_read(cv_pool *pool, const char *path, const cv_json *j, cv_tensor **tensors, size_t *n_tensors, cv_error *e) {
    const cv_node *k = cv_first(j->nodes);
    uint32_t i, count = j->nodes[0].count;
    if (count > CV_MOST_TENSORS + 1)
        return CV_FAIL(e, LIMIT, "%s has %u tensors; at most %u are read", path, (uint64_t)count, (uint64_t)CV_MOST_TENSORS);
    *tensors = (cv_tensor *)cv_alloc(pool, count + (size_t)1, sizeof **tensors, e);
    if (!*tensors) return 1;
    for (i = 0; i < count; i++, k = cv_after(j, k + 1)) {
        cv_tensor *t = *tensors + *n_tensors;
        if (pdi_str_is(k->text, "__metadata__")) { CV_TRY(cv_metadata(j, k + 1, e)); continue; }
        t->name = k->text;
        CV_TRY(cv_tensor_read(j, k + 1, t, e));
        ++*n_tensors;
    }
    return 0;
}

/* Header text of n bytes, which followed the 8 bytes of its length in a file of file_size bytes, to tensors.
   Names stay in `header`, whose strings are decoded in place. */
static int cv_safetensors_header(cv_pool *pool, const char *path, char *header, size_t n, uint64_t file_size, cv_tensor **tensors,
                                 size_t *n_tensors, cv_error *e) {
    cv_pool nodes = { NULL };
    cv_json j;
    int failed;
    *n_tensors = 0;
    failed = cv_json_parse(&nodes, path, header, n, &j, e) || cv_tensors_read(pool, path, &j, tensors, n_tensors, e) ||
             cv_tensors_place(&nodes, path, *tensors, *n_tensors, (uint64_t)n + 8, file_size, e);
    cv_pool_free(&nodes);
    return failed;
}

/* -- files -- */

/* Reads the header of the open file f. */
static int cv_safetensors_open(cv_pool *pool, cv_file *f, cv_tensor **tensors, size_t *n_tensors, cv_error *e) {
    uint8_t first[64];
    size_t n = f->size < sizeof first ? (size_t)f->size : sizeof first;
    uint64_t length;
    char *header;
    CV_TRY(cv_read_at(f, 0, first, n, e));
    CV_TRY(cv_no_pointer(f->path, (const char *)first, n, e));
    if (n < 8) return CV_FAIL(e, HEADER, "%s has only %u bytes and is no safetensors file", f->path, f->size);
    length = pdi_u64(first);
    if (length > CV_HEADER_MOST || length == 0)
        return CV_FAIL(e, HEADER, "%s: a header of %u bytes; 1 to 100000000 are possible. This is no safetensors file", f->path, length);
    if (length > f->size - 8)
        return CV_FAIL_AT(e, HEADER, 8, "%s: the header should have %u bytes, only %u follow (a download that stopped?)", f->path,
                          length, f->size - 8);
    header = (char *)cv_alloc(pool, (size_t)length + 1, 1, e);
    if (!header || cv_read_at(f, 8, header, (size_t)length, e)) return 1;
    return cv_safetensors_header(pool, f->path, header, (size_t)length, f->size, tensors, n_tensors, e);
}

static void cv_weights_close(cv_weights *w) {
    size_t i;
    for (i = 0; i < w->n_files; i++) cv_close(&w->files[i]);
    w->n_files = w->n = w->slots = 0;
}

/* Finds tensors by name from now on; a name may be there only once. */
static int cv_weights_table(cv_pool *pool, cv_weights *w, cv_error *e) {
    size_t i;
    w->slots = pdi_table_size(w->n);
    w->table = (uint32_t *)cv_alloc(pool, w->slots, sizeof *w->table, e);
    if (!w->table) return 1;
    for (i = 0; i < w->n; i++) {
        const char *wrong = pdi_table_add(w->table, w->slots, w->tensors, sizeof *w->tensors, i);
        if (wrong) return CV_FAIL(e, TENSOR, "%s: tensor '%S' %s", w->files[w->tensors[i].file].path, &w->tensors[i].name, wrong);
    }
    return 0;
}

/* One file by itself. */
static int cv_weights_file(cv_pool *pool, const char *path, cv_weights *w, cv_error *e) {
    w->files = (cv_file *)cv_alloc(pool, 1, sizeof *w->files, e);
    if (!w->files || cv_open(&w->files[0], path, e)) return 1;
    w->n_files = 1;
    CV_TRY(cv_safetensors_open(pool, &w->files[0], &w->tensors, &w->n, e));
    return cv_weights_table(pool, w, e);
}

/* -- shards -- */

typedef struct cv_mapped { prediff_string name; uint32_t shard, found; } cv_mapped;    /* a line of the index */

typedef struct cv_shards {
    const char *path, *folder;
    cv_mapped *map; size_t n; uint32_t *table; size_t slots;
    prediff_string shards[CV_MOST_SHARDS]; uint32_t shard_table[2 * 256]; size_t n_shards;
} cv_shards;

/* A file name that stays in the index's own folder. */
static int cv_is_plain_name(prediff_string s) {
    size_t i;
    for (i = 0; i < s.n; i++) if ((uint8_t)s.bytes[i] < 32 || s.bytes[i] == '/' || s.bytes[i] == '\\' || s.bytes[i] == ':') return 0;
    return s.n > 0 && s.n < 256 && s.bytes[0] != '.';
}

static int cv_index_shard(cv_shards *x, prediff_string name, uint32_t *shard, cv_error *e) {
    const size_t slots = sizeof x->shard_table / sizeof *x->shard_table;
    const void *found = pdi_table_find(x->shard_table, slots, x->shards, sizeof *x->shards, name.bytes, name.n);
    if (found) { *shard = (uint32_t)((const prediff_string *)found - x->shards); return 0; }
    if (!cv_is_plain_name(name)) return CV_FAIL(e, SHARD, "%s: the shard '%S' is no plain file name", x->path, &name);
    if (x->n_shards == CV_MOST_SHARDS) return CV_FAIL(e, LIMIT, "%s names more than %u shards", x->path, (uint64_t)CV_MOST_SHARDS);
    x->shards[x->n_shards] = name;
    pdi_table_add(x->shard_table, slots, x->shards, sizeof *x->shards, x->n_shards);
    *shard = (uint32_t)x->n_shards++;
    return 0;
}

static int cv_index_read(cv_pool *pool, cv_shards *x, char *text, size_t n, cv_error *e) {
    cv_json j;
    const cv_node *map, *k;
    size_t i;
    CV_TRY(cv_json_parse(pool, x->path, text, n, &j, e));
    map = cv_field(&j, j.nodes, "weight_map");
    if (!map) return CV_FAIL(e, SHARD, "%s has no 'weight_map' and is no index of shards", x->path);
    if (map->kind != CV_OBJECT) return cv_json_type(&j, map, "an object", e);
    if (map->count == 0) return CV_FAIL(e, SHARD, "%s: the 'weight_map' is empty", x->path);
    if (map->count > CV_MOST_TENSORS)
        return CV_FAIL(e, LIMIT, "%s names %u tensors; at most %u are read", x->path, (uint64_t)map->count, (uint64_t)CV_MOST_TENSORS);
    x->n = map->count;
    x->slots = pdi_table_size(x->n);
    x->map = (cv_mapped *)cv_alloc(pool, x->n, sizeof *x->map, e);
    x->table = x->map ? (uint32_t *)cv_alloc(pool, x->slots, sizeof *x->table, e) : NULL;
    if (!x->table) return 1;
    for (k = cv_first(map), i = 0; i < x->n; i++, k = cv_after(&j, k + 1)) {
        x->map[i].name = k->text;
        if (k[1].kind != CV_STRING) return cv_json_type(&j, k + 1, "a file name", e);
        CV_TRY(cv_index_shard(x, k[1].text, &x->map[i].shard, e));
        if (pdi_table_add(x->table, x->slots, x->map, sizeof *x->map, i))
            return CV_FAIL(e, LIMIT, "%s: names of tensors collide too often", x->path);
    }
    return 0;
}

/* Opens the shards: all must be there before the first is read. */
static int cv_index_open(cv_pool *pool, const cv_shards *x, cv_weights *w, cv_error *e) {
    size_t i;
    w->files = (cv_file *)cv_alloc(pool, x->n_shards, sizeof *w->files, e);
    for (i = 0; w->files && i < x->n_shards; i++) {
        char *name = cv_copy(pool, x->shards[i].bytes, x->shards[i].n, e), *path = name ? cv_path(pool, x->folder, name, e) : NULL;
        if (!path) return 1;
        if (!cv_exists(path)) return CV_FAIL(e, SHARD, "%s: the shard %s is missing in its folder", x->path, name);
        CV_TRY(cv_open(&w->files[i], path, e));
        w->n_files = i + 1;
    }
    return !w->files;
}

/* The tensors of shard i that the index does not give to another. */
static size_t cv_index_take(cv_shards *x, uint32_t shard, const cv_tensor *from, size_t n, cv_tensor *to) {
    size_t i, taken = 0;
    for (i = 0; i < n; i++) {
        cv_mapped *m = (cv_mapped *)pdi_table_find(x->table, x->slots, x->map, sizeof *x->map, from[i].name.bytes, from[i].name.n);
        if (m && m->shard != shard) continue;
        if (m) m->found = 1;
        to[taken] = from[i];
        to[taken++].file = shard;
    }
    return taken;
}

static int cv_weights_shards(cv_pool *pool, cv_shards *x, char *text, size_t n, cv_weights *w, cv_error *e) {
    cv_tensor *all[CV_MOST_SHARDS];
    size_t counts[CV_MOST_SHARDS], total = 0, i;
    CV_TRY(cv_index_read(pool, x, text, n, e));
    CV_TRY(cv_index_open(pool, x, w, e));
    for (i = 0; i < x->n_shards; i++) {
        CV_TRY(cv_safetensors_open(pool, &w->files[i], &all[i], &counts[i], e));
        total += counts[i];
    }
    if (total > CV_MOST_TENSORS)
        return CV_FAIL(e, LIMIT, "%s: %u tensors in its shards; at most %u are read", x->path, (uint64_t)total, (uint64_t)CV_MOST_TENSORS);
    w->tensors = (cv_tensor *)cv_alloc(pool, total + 1, sizeof *w->tensors, e);
    if (!w->tensors) return 1;
    for (i = 0; i < x->n_shards; i++) w->n += cv_index_take(x, (uint32_t)i, all[i], counts[i], w->tensors + w->n);
    for (i = 0; i < x->n; i++)
        if (!x->map[i].found)
            return CV_FAIL(e, SHARD, "%s: tensor '%S' is not in its shard '%S'", x->path, &x->map[i].name, &x->shards[x->map[i].shard]);
    return cv_weights_table(pool, w, e);
}

static int cv_weights_index(cv_pool *pool, const char *path, cv_weights *w, cv_error *e) {
    cv_shards *x = (cv_shards *)cv_alloc(pool, 1, sizeof *x, e);
    size_t n, k = strlen(path);
    char *text, *folder;
    if (!x || cv_read_file(pool, path, CV_JSON_MOST, &text, &n, e)) return 1;
    while (k && path[k - 1] != '/' && path[k - 1] != '\\') k--;
    folder = k ? cv_copy(pool, path, k, e) : cv_copy(pool, ".", 1, e);
    if (!folder) return 1;
    x->path = path;
    x->folder = folder;
    return cv_weights_shards(pool, x, text, n, w, e);
}

/* -- which of them -- */

/* N of a file name that ends in "-00001-of-0000N.safetensors", else 0. */
static unsigned cv_shard_of(const char *name) {
    static const char pattern[] = "-ddddd-of-ddddd.safetensors";
    size_t n = strlen(name), m = sizeof pattern - 1, i;
    unsigned of = 0;
    if (n < m) return 0;
    for (i = 0, name += n - m; i < m; i++) {
        if (i == 1 + 5) of = 0;
        if (pattern[i] != 'd' ? name[i] != pattern[i] : name[i] < '0' || name[i] > '9') return 0;
        if (pattern[i] == 'd') of = of * 10 + (unsigned)(name[i] - '0');
    }
    return of;
}

static int cv_ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* What a folder holds of .safetensors files; name: a shard, or else any. */
typedef struct cv_listing { unsigned count, shards; char name[256]; } cv_listing;

static void cv_list_entry(cv_listing *l, const char *entry) {
    if (!cv_ends_with(entry, ".safetensors") || strlen(entry) >= sizeof l->name) return;
    if (cv_shard_of(entry) > 1) l->shards++;
    if (!l->count++ || cv_shard_of(entry) > 1) strcpy(l->name, entry);
}

static int cv_list_folder(cv_pool *pool, const char *folder, cv_listing *l, cv_error *e) {
#ifdef _WIN32
    struct _finddata_t found;
    char *all = cv_path(pool, folder, "*.safetensors", e);
    intptr_t d = all ? _findfirst(all, &found) : -1;
    if (d != -1) {
        do cv_list_entry(l, found.name); while (_findnext(d, &found) == 0);
        _findclose(d);
    }
    return !all;
#else
    DIR *d = opendir(folder);
    struct dirent *found;
    (void)pool;
    if (!d) return CV_FAIL(e, FILE_OPEN, "cannot read the folder %s: %s", folder, strerror(errno));
    while ((found = readdir(d)) != NULL) cv_list_entry(l, found->d_name);
    closedir(d);
    return 0;
#endif
}

/* The one .safetensors file of a folder that has neither an index nor model.safetensors. */
static int cv_only_weights(cv_pool *pool, const char *folder, char **path, cv_error *e) {
    cv_listing l;
    memset(&l, 0, sizeof l);
    CV_TRY(cv_list_folder(pool, folder, &l, e));
    if (l.shards) return CV_FAIL(e, SHARD, "%s holds the shard %s, but no index: model.safetensors.index.json is needed", folder, l.name);
    if (l.count > 1)
        return CV_FAIL(e, SHARD, "%s holds %u .safetensors files and no index: name the one that is meant", folder, (uint64_t)l.count);
    if (!l.count) return CV_FAIL(e, FILE_OPEN, "%s holds no .safetensors file", folder);
    *path = cv_path(pool, folder, l.name, e);
    return !*path;
}

/* Is this file text that begins as JSON does? A safetensors file has a zero byte among its first eight. */
static int cv_is_json(cv_file *f, int *is, cv_error *e) {
    char b[8];
    size_t n = f->size < 8 ? (size_t)f->size : 8, i = 0;
    CV_TRY(cv_read_at(f, 0, b, n, e));
    if (n >= 3 && memcmp(b, "\xEF\xBB\xBF", 3) == 0) i = 3;
    while (i < n && (b[i] == ' ' || (b[i] >= 9 && b[i] <= 13))) i++;
    *is = !memchr(b, 0, n) && i < n && b[i] == '{';
    return 0;
}

/* A .safetensors file, an index, or a folder with either; in a folder the index wins. On failure nothing stays open. */
static int cv_weights_find(cv_pool *pool, const char *path, cv_weights *w, cv_error *e) {
    cv_file f;
    int index = 0;
    char *inside = NULL;
    if (cv_is_folder(path)) {
        inside = cv_path(pool, path, "model.safetensors.index.json", e);
        if (inside && cv_exists(inside)) return cv_weights_index(pool, inside, w, e);
        if (inside) inside = cv_path(pool, path, "model.safetensors", e);
        if (inside && !cv_exists(inside)) CV_TRY(cv_only_weights(pool, path, &inside, e));
        return !inside || cv_weights_file(pool, inside, w, e);
    }
    CV_TRY(cv_open(&f, path, e));
    if (cv_is_json(&f, &index, e)) { cv_close(&f); return 1; }
    cv_close(&f);
    if (index) return cv_weights_index(pool, path, w, e);
    if (cv_shard_of(path) > 1)
        return CV_FAIL(e, SHARD, "%s is one of %u shards: name their folder or their model.safetensors.index.json", path,
                       (uint64_t)cv_shard_of(path));
    return cv_weights_file(pool, path, w, e);
}

static int cv_weights_open(cv_pool *pool, const char *path, cv_weights *out, cv_error *e) {
    memset(out, 0, sizeof *out);
    if (!cv_weights_find(pool, path, out, e)) return 0;
    cv_weights_close(out);
    return 1;
}

static const cv_tensor *cv_find(const cv_weights *w, const char *name) {
    return (const cv_tensor *)pdi_table_find(w->table, w->slots, w->tensors, sizeof *w->tensors, name, strlen(name));
}

/* ---- >>TOKENIZER: vocabularies in and out ------------------------------------------------------------------------------

   All readers fill one cv_vocab, whose numbers are those of GGUF: tokenizer.json, vocab.json with merges.txt, SentencePiece's
   tokenizer.model, llama2.c's tok.bin, GGUF keys. A setting that would make our text differ from theirs is refused by name.

   A tokenizer.json of SentencePiece kind has a list of merges, we have scores: cv_scores_from_merges says when they are equal. */

typedef struct cv_vocab {
    int spm;                           /* 1: SentencePiece-style (GGUF "llama"), 0: byte-level BPE ("gpt2") */
    const char *pre;                   /* BPE: "gpt-2", "llama-bpe", "smollm", "qwen2"; NULL for SPM */
    size_t n;
    prediff_string *tokens;            /* [n] as GGUF stores them */
    float *scores;                     /* [n] SPM; NULL for BPE */
    int32_t *types;                    /* [n] PDI_TYPE_NORMAL .. PDI_TYPE_BYTE */
    size_t n_merges;
    prediff_string *left, *right;      /* [n_merges] BPE */
    int32_t bos, eos, eot, unk, pad, mask;          /* -1 = none */
    int add_bos, add_eos, add_space_prefix;         /* -1 = not said */
    int ignore_merges;                 /* a word that is a token as a whole is taken as it is; -1: with llama-bpe, else not */
    const char *remark;                /* worth telling the user, or NULL */
} cv_vocab;

/* -- GGUF keys, built in the pool -- */

typedef struct cv_keys { prediff_key *keys; size_t n, capacity; } cv_keys;

static int cv_key_copy(cv_pool *p, cv_keys *k, const prediff_key *key, cv_error *e) {       /* shares name and data */
    if (k->n == k->capacity) {
        prediff_key *more = (prediff_key *)cv_alloc(p, 2 * k->capacity + 32, sizeof *more, e);
        if (!more) return 1;
        if (k->n) memcpy(more, k->keys, k->n * sizeof *more);
        k->keys = more;
        k->capacity = 2 * k->capacity + 32;
    }
    k->keys[k->n++] = *key;
    return 0;
}

/* A new key of `size` bytes of data, which *data points at. element: of an array, else the type again. */
static int cv_key_add(cv_pool *p, cv_keys *k, const char *name, uint32_t type, uint32_t element, size_t count, size_t size,
                      uint8_t **data, cv_error *e) {
    prediff_key key;
    char *copy = cv_copy(p, name, strlen(name), e);
    *data = copy ? (uint8_t *)cv_alloc(p, size, 1, e) : NULL;
    if (!*data) return 1;
    key.name = cv_str(copy);
    key.type = type; key.element = element; key.count = count;
    key.data = *data; key.data_size = size;
    return cv_key_copy(p, k, &key, e);
}

static int cv_key_u32(cv_pool *p, cv_keys *k, const char *name, uint32_t v, cv_error *e) {
    uint8_t *data;
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_U32, PDI_GGUF_U32, 1, 4, &data, e));
    pdi_put_u32(data, v);
    return 0;
}

static int cv_key_f32(cv_pool *p, cv_keys *k, const char *name, float v, cv_error *e) {
    uint8_t *data;
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_F32, PDI_GGUF_F32, 1, 4, &data, e));
    pdi_put_u32(data, pdi_float_bits(&v));
    return 0;
}

static int cv_key_bool(cv_pool *p, cv_keys *k, const char *name, int v, cv_error *e) {
    uint8_t *data;
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_BOOL, PDI_GGUF_BOOL, 1, 1, &data, e));
    data[0] = v != 0;
    return 0;
}

static int cv_key_string(cv_pool *p, cv_keys *k, const char *name, prediff_string v, cv_error *e) {
    uint8_t *data;
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_STRING, PDI_GGUF_STRING, 1, 8 + v.n, &data, e));
    pdi_put_u64(data, v.n);
    if (v.n) memcpy(data + 8, v.bytes, v.n);
    return 0;
}

/* An array of strings; with `right`, of "left right". */
static int cv_key_strings(cv_pool *p, cv_keys *k, const char *name, const prediff_string *left, const prediff_string *right, size_t n,
                          cv_error *e) {
    uint8_t *data;
    size_t i, size = 0;
    for (i = 0; i < n; i++)
        if (!pdi_add(size, 8 + left[i].n, &size) || (right && !pdi_add(size, 1 + right[i].n, &size)))
            return CV_FAIL(e, LIMIT, "%s is too long", name);
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_ARRAY, PDI_GGUF_STRING, n, size, &data, e));
    for (i = 0; i < n; i++) {
        pdi_put_u64(data, left[i].n + (right ? 1 + right[i].n : 0));
        memcpy(data + 8, left[i].bytes, left[i].n);
        data += 8 + left[i].n;
        if (!right) continue;
        *data++ = ' ';
        memcpy(data, right[i].bytes, right[i].n);
        data += right[i].n;
    }
    return 0;
}

static int cv_key_f32s(cv_pool *p, cv_keys *k, const char *name, const float *v, size_t n, cv_error *e) {
    uint8_t *data;
    size_t i, size;
    if (!pdi_mul(n, 4, &size)) return CV_FAIL(e, LIMIT, "%s is too long", name);
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_ARRAY, PDI_GGUF_F32, n, size, &data, e));
    for (i = 0; i < n; i++) pdi_put_u32(data + 4 * i, pdi_float_bits(&v[i]));
    return 0;
}

static int cv_key_i32s(cv_pool *p, cv_keys *k, const char *name, const int32_t *v, size_t n, cv_error *e) {
    uint8_t *data;
    size_t i, size;
    if (!pdi_mul(n, 4, &size)) return CV_FAIL(e, LIMIT, "%s is too long", name);
    CV_TRY(cv_key_add(p, k, name, PDI_GGUF_ARRAY, PDI_GGUF_I32, n, size, &data, e));
    for (i = 0; i < n; i++) pdi_put_u32(data + 4 * i, (uint32_t)v[i]);
    return 0;
}

/* The special ids: their keys in GGUF, their names in tokenizer_config.json, their places in cv_vocab. */
enum { CV_SPECIALS = 6 };
static const char *const cv_special_keys[CV_SPECIALS] = {
    "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.mask_token_id" };
static const char *const cv_special_names[CV_SPECIALS] = { "bos_token", "eos_token", "eot_token", "unk_token", "pad_token", "mask_token" };
static int32_t *cv_special(cv_vocab *v, size_t i) {
    switch (i) {
    case 0: return &v->bos;
    case 1: return &v->eos;
    case 2: return &v->eot;
    case 3: return &v->unk;
    case 4: return &v->pad;
    default: return &v->mask;
    }
}

enum { CV_FLAGS = 4 };
static const char *const cv_flag_keys[CV_FLAGS] = { "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                                                    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.ignore_merges" };
static int *cv_flag(cv_vocab *v, size_t i) {
    return i == 0 ? &v->add_bos : i == 1 ? &v->add_eos : i == 2 ? &v->add_space_prefix : &v->ignore_merges;
}

static int cv_vocab_keys(cv_pool *p, const cv_vocab *vocab, cv_keys *k, cv_error *e) {
    cv_vocab v = *vocab;
    size_t i;
    CV_TRY(cv_key_string(p, k, "tokenizer.ggml.model", cv_str(v.spm ? "llama" : "gpt2"), e));
    CV_TRY(cv_key_string(p, k, "tokenizer.ggml.pre", cv_str(v.spm ? "default" : v.pre), e));
    CV_TRY(cv_key_strings(p, k, "tokenizer.ggml.tokens", v.tokens, NULL, v.n, e));
    if (v.spm) CV_TRY(cv_key_f32s(p, k, "tokenizer.ggml.scores", v.scores, v.n, e));
    CV_TRY(cv_key_i32s(p, k, "tokenizer.ggml.token_type", v.types, v.n, e));
    if (!v.spm) CV_TRY(cv_key_strings(p, k, "tokenizer.ggml.merges", v.left, v.right, v.n_merges, e));
    for (i = 0; i < CV_SPECIALS; i++)
        if (*cv_special(&v, i) >= 0) CV_TRY(cv_key_u32(p, k, cv_special_keys[i], (uint32_t)*cv_special(&v, i), e));
    for (i = 0; i < CV_FLAGS; i++) if (*cv_flag(&v, i) >= 0) CV_TRY(cv_key_bool(p, k, cv_flag_keys[i], *cv_flag(&v, i), e));
    return 0;
}

/* -- building a vocabulary: tokens first, then everything that names them -- */

typedef struct cv_builder {
    cv_pool *pool;
    cv_error *e;
    const char *path;                  /* for messages */
    cv_vocab *v;
    uint32_t *table;                   /* [slots] text -> id + 1 */
    size_t slots, max_text;
    uint32_t *pairs;                   /* [pair_slots] merges by their two ids -> index + 1 */
    size_t pair_slots;
    int32_t *made;                     /* [n_merges] SPM: the token a merge makes */
    size_t count;                      /* entries seen while measuring */
    int64_t max_id;
} cv_builder;

static void cv_vocab_begin(cv_builder *b, cv_pool *p, const char *path, cv_vocab *v, cv_error *e) {
    memset(b, 0, sizeof *b);
    memset(v, 0, sizeof *v);
    b->pool = p; b->e = e; b->path = path; b->v = v;
    b->max_id = -1;
    v->bos = v->eos = v->eot = v->unk = v->pad = v->mask = -1;
    v->add_bos = v->add_eos = v->add_space_prefix = v->ignore_merges = -1;
}

static int cv_vocab_arrays(cv_builder *b, size_t n) {
    cv_vocab *v = b->v;
    v->n = n;
    v->tokens = (prediff_string *)cv_alloc(b->pool, n, sizeof *v->tokens, b->e);
    v->types = v->tokens ? (int32_t *)cv_alloc(b->pool, n, sizeof *v->types, b->e) : NULL;
    return !v->types;
}

/* The arrays grow for tokens that are added to a SentencePiece model. */
static int cv_vocab_grow(cv_builder *b, size_t n) {
    cv_vocab old = *b->v;
    CV_TRY(cv_vocab_arrays(b, n));
    memcpy(b->v->tokens, old.tokens, old.n * sizeof *old.tokens);
    memcpy(b->v->types, old.types, old.n * sizeof *old.types);
    if (!old.scores) return 0;
    b->v->scores = (float *)cv_alloc(b->pool, n, sizeof *old.scores, b->e);
    if (!b->v->scores) return 1;
    memcpy(b->v->scores, old.scores, old.n * sizeof *old.scores);
    return 0;
}

/* Puts a token in its place. A token may come again, with the same text, when it is an added one: that tells its type. */
static int cv_place(cv_builder *b, int64_t id, prediff_string s, int32_t type) {
    cv_vocab *v = b->v;
    prediff_string *t = &v->tokens[id];
    if (s.n == 0) return CV_FAIL_AT(b->e, TOKEN, (uint64_t)id, "%s: token %i is empty", b->path, id);
    if (t->bytes && (t->n != s.n || memcmp(t->bytes, s.bytes, s.n) != 0))
        return CV_FAIL_AT(b->e, TOKEN, (uint64_t)id, "%s: two tokens, '%S' and '%S', have the id %i", b->path, t, &s, id);
    if (!t->bytes || v->types[id] == PDI_TYPE_NORMAL) v->types[id] = type;
    *t = s;
    return 0;
}

/* Ids nobody has become unused tokens "[PAD<id>]". */
enum { CV_HOLE = 28 };
static int cv_fill_holes(cv_builder *b) {
    cv_vocab *v = b->v;
    size_t i, holes = 0;
    char *text;
    for (i = 0; i < v->n; i++) holes += !v->tokens[i].bytes;
    if (!holes) return 0;
    text = (char *)cv_alloc(b->pool, holes, CV_HOLE, b->e);
    if (!text) return 1;
    for (i = 0; i < v->n; i++)
        if (!v->tokens[i].bytes) {
            snprintf(text, CV_HOLE, "[PAD%lu]", (unsigned long)i);
            v->tokens[i] = cv_str(text);
            v->types[i] = PDI_TYPE_UNUSED;
            text += CV_HOLE;
        }
    return 0;
}

/* In a tokenizer.json that we wrote they come back as ordinary tokens. */
static void cv_find_holes(cv_builder *b) {
    char text[CV_HOLE];
    size_t i;
    for (i = 0; i < b->v->n; i++) {
        if (b->v->types[i] != PDI_TYPE_NORMAL || b->v->tokens[i].bytes[0] != '[') continue;
        snprintf(text, sizeof text, "[PAD%lu]", (unsigned long)i);
        if (pdi_str_is(b->v->tokens[i], text)) b->v->types[i] = PDI_TYPE_UNUSED;
    }
}

/* Tokens are complete: texts must differ; from here on they can be found. */
static int cv_index(cv_builder *b) {
    cv_vocab *v = b->v;
    const char *wrong;
    size_t i;
    CV_TRY(cv_fill_holes(b));
    b->slots = pdi_table_size(v->n);
    b->table = (uint32_t *)cv_alloc(b->pool, b->slots, sizeof *b->table, b->e);
    if (!b->table) return 1;
    for (i = 0; i < v->n; i++) {
        wrong = pdi_table_add(b->table, b->slots, v->tokens, sizeof *v->tokens, i);
        if (wrong) return CV_FAIL_AT(b->e, TOKEN, i, "%s: token %u, '%S', %s", b->path, (uint64_t)i, &v->tokens[i], wrong);
        b->max_text = pdi_max(b->max_text, v->tokens[i].n);
    }
    return 0;
}

static int32_t cv_token(const cv_builder *b, const char *s, size_t n) {            /* -1: no such token */
    const void *found = n > b->max_text ? NULL : pdi_table_find(b->table, b->slots, b->v->tokens, sizeof *b->v->tokens, s, n);
    return found ? (int32_t)((const prediff_string *)found - b->v->tokens) : -1;
}

/* The token whose text is left right, without a copy. */
static int32_t cv_joined(const cv_builder *b, prediff_string left, prediff_string right) {
    size_t s = pdi_hash_end(pdi_hash_more(pdi_hash_more(pdi_hash_begin(), left.bytes, left.n), right.bytes, right.n)) & (b->slots - 1);
    for (; b->table[s]; s = (s + 1) & (b->slots - 1)) {
        const prediff_string *o = &b->v->tokens[b->table[s] - 1];
        if (o->n == left.n + right.n && memcmp(o->bytes, left.bytes, left.n) == 0 && memcmp(o->bytes + left.n, right.bytes, right.n) == 0)
            return (int32_t)b->table[s] - 1;
    }
    return -1;
}

/* -- merges -- */

static int cv_merges_begin(cv_builder *b, size_t most) {
    cv_vocab *v = b->v;
    b->pair_slots = pdi_table_size(most);
    v->left = (prediff_string *)cv_alloc(b->pool, most, sizeof *v->left, b->e);
    v->right = v->left ? (prediff_string *)cv_alloc(b->pool, most, sizeof *v->right, b->e) : NULL;
    b->pairs = v->right ? (uint32_t *)cv_alloc(b->pool, b->pair_slots, sizeof *b->pairs, b->e) : NULL;
    b->made = b->pairs && v->spm ? (int32_t *)cv_alloc(b->pool, most, sizeof *b->made, b->e) : NULL;
    return !b->pairs || (v->spm && !b->made);
}

/* Merge number i of the file. Of a pair that comes twice the first counts. */
static int cv_merge(cv_builder *b, size_t i, prediff_string left, prediff_string right) {
    cv_vocab *v = b->v;
    int32_t l = cv_token(b, left.bytes, left.n), r = cv_token(b, right.bytes, right.n), made = cv_joined(b, left, right);
    uint32_t h = (uint32_t)l * 0x9E3779B1u ^ ((uint32_t)r + 0x7F4A7C15u) * 0x85EBCA6Bu;
    size_t s, probes = 0;
    if (l < 0 || r < 0)
        return CV_FAIL_AT(b->e, MERGE, i, "%s: merge %u, '%S' '%S', names a token that does not exist", b->path, (uint64_t)i, &left,
                          &right);
    if (made < 0)
        return CV_FAIL_AT(b->e, MERGE, i, "%s: merge %u, '%S' '%S', makes a token that does not exist", b->path, (uint64_t)i, &left,
                          &right);
    h = (h ^ h >> 15) * 0xC2B2AE35u;
    for (s = (h ^ h >> 13) & (b->pair_slots - 1); b->pairs[s]; s = (s + 1) & (b->pair_slots - 1)) {
        size_t k = b->pairs[s] - 1;
        if (v->left[k].bytes == v->tokens[l].bytes && v->right[k].bytes == v->tokens[r].bytes) return 0;
        if (++probes > PDI_MOST_PROBES)
            return CV_FAIL_AT(b->e, MERGE, i, "%s: merge %u collides with too many others", b->path, (uint64_t)i);
    }
    if (b->made) b->made[v->n_merges] = made;
    v->left[v->n_merges] = v->tokens[l];
    v->right[v->n_merges++] = v->tokens[r];
    b->pairs[s] = (uint32_t)v->n_merges;
    return 0;
}

/* "left right", at its only space. */
static int cv_cut_merge(prediff_string s, prediff_string *left, prediff_string *right) {
    const char *space = s.n ? (const char *)memchr(s.bytes, ' ', s.n) : NULL;
    if (!space) return 0;
    left->bytes = s.bytes;
    left->n = (size_t)(space - s.bytes);
    right->bytes = space + 1;
    right->n = s.n - left->n - 1;
    return left->n && right->n && !memchr(right->bytes, ' ', right->n);
}

static int cv_json_merges(cv_builder *b, const cv_json *j, const cv_node *merges) {
    const cv_node *m;
    size_t i;
    if (!merges || merges->kind != CV_ARRAY) return CV_FAIL(b->e, TOKENIZER, "%s: model.merges is missing", b->path);
    CV_TRY(cv_merges_begin(b, merges->count));
    for (m = cv_first(merges), i = 0; i < merges->count; i++, m = cv_after(j, m)) {
        prediff_string left = { NULL, 0 }, right = { NULL, 0 };
        int good = 0;
        if (m->kind == CV_STRING) good = cv_cut_merge(m->text, &left, &right);
        else if (m->kind == CV_ARRAY && m->count == 2 && m[1].kind == CV_STRING && m[2].kind == CV_STRING) {
            left = m[1].text;
            right = m[2].text;
            good = left.n && right.n;
        }
        if (!good) return CV_FAIL_AT(b->e, MERGE, i, "%s: byte %u: merge %u is not two tokens", b->path, (uint64_t)m->at, (uint64_t)i);
        CV_TRY(cv_merge(b, i, left, right));
    }
    return 0;
}

/* A merges.txt alone: out->left, right, n_merges, not compared with any vocabulary. Lines end with \n or \r\n and nothing else:
   tokens hold other characters that some call line ends. Only blank lines may follow the last merge. */
static int cv_merges_txt(cv_pool *p, const char *path, char *text, size_t n, cv_vocab *out, cv_error *e) {
    size_t at, end, line, lines = 1, blank = 0;
    CV_TRY(cv_no_pointer(path, text, n, e));
    for (at = 0; at < n; at++) lines += text[at] == '\n';
    out->n_merges = 0;
    out->left = (prediff_string *)cv_alloc(p, lines, sizeof *out->left, e);
    out->right = out->left ? (prediff_string *)cv_alloc(p, lines, sizeof *out->right, e) : NULL;
    if (!out->right) return 1;
    for (at = 0, line = 1; at < n; at = end + 1, line++) {
        const char *feed = (const char *)memchr(text + at, '\n', n - at);
        prediff_string s;
        end = feed ? (size_t)(feed - text) : n;
        s.bytes = text + at;
        s.n = end - at;
        if (s.n && s.bytes[s.n - 1] == '\r') s.n--;
        if (line == 1 && s.n >= 8 && memcmp(s.bytes, "#version", 8) == 0) continue;
        if (s.n == 0) { blank = blank ? blank : line; continue; }
        if (blank) return CV_FAIL_AT(e, MERGE, blank, "%s: line %u is empty", path, (uint64_t)blank);
        if (!cv_cut_merge(s, &out->left[out->n_merges], &out->right[out->n_merges]))
            return CV_FAIL_AT(e, MERGE, line, "%s: line %u, '%S', is not two tokens with a space between", path, (uint64_t)line, &s);
        out->n_merges++;
    }
    return 0;
}

/* -- tokens of JSON: {text: id}, [{id, content, special}], {"id": {content, special}} -- */

typedef enum cv_form { CV_BY_TEXT, CV_ADDED_BY_TEXT, CV_ADDED_LIST, CV_ADDED_BY_ID } cv_form;
typedef struct cv_entry { prediff_string text; int64_t id; int32_t type; } cv_entry;

static int cv_true(const cv_json *j, const cv_node *object, const char *key) {
    const cv_node *v = cv_field(j, object, key);
    return v && v->kind == CV_BOOL && v->truth;
}

/* Ours matches an added token wherever its text stands; theirs may ask for more. Control tokens are never made from text. */
static int cv_added_entry(const cv_builder *b, const cv_json *j, const cv_node *object, cv_entry *out) {
    static const char *const conditions[] = { "single_word", "lstrip", "rstrip" };
    const cv_node *content = cv_field(j, object, "content");
    size_t i;
    if (!content) return CV_FAIL_AT(b->e, TOKEN, object->at, "%s: byte %u: an added token without content", b->path, (uint64_t)object->at);
    if (content->kind != CV_STRING) return cv_json_type(j, content, "a string", b->e);
    out->text = content->text;
    out->type = cv_true(j, object, "special") ? PDI_TYPE_CONTROL : PDI_TYPE_USER;
    for (i = 0; i < 3 && out->type == PDI_TYPE_USER; i++)
        if (cv_true(j, object, conditions[i]))
            return CV_FAIL_AT(b->e, TOKENIZER, object->at, "%s: byte %u: the added token '%S' has %s, which we do not do",
                                                                 b->path, (uint64_t)object->at, &out->text, conditions[i]);
    return 0;
}

static int cv_digits_id(prediff_string s, int64_t *id) {
    size_t i;
    *id = 0;
    for (i = 0; i < s.n && i < 10 && s.bytes[i] >= '0' && s.bytes[i] <= '9'; i++) *id = *id * 10 + (s.bytes[i] - '0');
    return s.n && i == s.n;
}

static int cv_entry_of(const cv_builder *b, const cv_json *j, const cv_node *k, cv_form form, cv_entry *out) {
    const cv_node *id = k + 1;
    out->type = form == CV_BY_TEXT ? PDI_TYPE_NORMAL : PDI_TYPE_USER;
    if (form == CV_BY_TEXT || form == CV_ADDED_BY_TEXT) { out->text = k->text; return cv_get_int(j, id, &out->id, b->e); }
    if (form == CV_ADDED_BY_ID) {
        if (!cv_digits_id(k->text, &out->id))
            return CV_FAIL_AT(b->e, TOKEN, k->at, "%s: byte %u: '%S' is no token id", b->path, (uint64_t)k->at, &k->text);
        return cv_added_entry(b, j, k + 1, out);
    }
    id = cv_field(j, k, "id");
    if (!id) return CV_FAIL_AT(b->e, TOKEN, k->at, "%s: byte %u: an added token without id", b->path, (uint64_t)k->at);
    return cv_get_int(j, id, &out->id, b->e) || cv_added_entry(b, j, k, out);
}

/* All entries of one list: measured while there are no arrays, placed after that. list may be NULL. */
static int cv_entries(cv_builder *b, const cv_json *j, const cv_node *list, cv_form form) {
    const cv_node *k;
    uint32_t i;
    if (!list) return 0;
    if (list->kind != (form == CV_ADDED_LIST ? CV_ARRAY : CV_OBJECT))
        return cv_json_type(j, list, form == CV_ADDED_LIST ? "an array" : "an object", b->e);
    for (k = cv_first(list), i = 0; i < list->count; i++, k = cv_after(j, form == CV_ADDED_LIST ? k : k + 1)) {
        cv_entry t;
        CV_TRY(cv_entry_of(b, j, k, form, &t));
        if (t.id < 0)
            return CV_FAIL_AT(b->e, TOKEN, k->at, "%s: byte %u: token '%S' has the id %i", b->path, (uint64_t)k->at, &t.text, t.id);
        if (b->v->tokens && t.id < (int64_t)b->v->n) { CV_TRY(cv_place(b, t.id, t.text, t.type)); continue; }
        b->count++;
        if (t.id > b->max_id) b->max_id = t.id;
    }
    return 0;
}

/* After measuring: arrays for all ids. Memory goes by the number of entries, not by their largest id. */
static int cv_entries_measured(cv_builder *b) {
    if (b->max_id < 0) return CV_FAIL(b->e, TOKEN, "%s: the vocabulary is empty", b->path);
    if ((uint64_t)b->max_id >= 2 * (uint64_t)b->count + 256 || b->max_id >= INT32_MAX)
        return CV_FAIL(b->e, LIMIT, "%s: the largest token id is %i, but there are only %u tokens", b->path, b->max_id, (uint64_t)b->count);
    return cv_vocab_arrays(b, (size_t)b->max_id + 1);
}

/* -- SentencePiece: merges to scores -- */

enum { CV_SPM_LONGEST = 256 };         /* bytes of a token whose splits are looked at */

/* Ways to cut token id into two ordinary tokens; SIZE_MAX if it is too long to tell. */
static size_t cv_splits(const cv_builder *b, size_t id) {
    const cv_vocab *v = b->v;
    prediff_string s = v->tokens[id];
    size_t i, n = 0;
    if (s.n > CV_SPM_LONGEST) return SIZE_MAX;
    for (i = 1; i < s.n; i++) {
        int32_t l = cv_token(b, s.bytes, i), r = l >= 0 && v->types[l] == PDI_TYPE_NORMAL ? cv_token(b, s.bytes + i, s.n - i) : -1;
        n += r >= 0 && v->types[r] == PDI_TYPE_NORMAL;
    }
    return n;
}

/* Theirs: the pair that comes first in the list is joined first, other pairs never. Ours: of all pairs whose joined text is an
   ordinary token, the one with the best-scored token. With score = -(place of the token among those that merges make), both
   agree exactly when all merges of a token stand together in the list, and the list has every split of every token into two
   tokens; lists made from SentencePiece models do. Other lists cannot be expressed by scores and are refused. (Merges that
   touch added tokens or byte tokens never apply: text becomes those before or after merging.) What no merge makes is a single
   character, which scores do not concern; it gets the lowest. */
static int cv_scores_from_merges(cv_builder *b) {
    cv_vocab *v = b->v;
    uint32_t *count = (uint32_t *)cv_alloc(b->pool, v->n, sizeof *count, b->e);
    size_t i, made = 0, splits;
    int32_t last = -1, id;
    v->scores = count ? (float *)cv_alloc(b->pool, v->n, sizeof *v->scores, b->e) : NULL;
    if (!v->scores) return 1;
    for (i = 0; i < v->n_merges; i++) {
        int32_t l = cv_token(b, v->left[i].bytes, v->left[i].n), r = cv_token(b, v->right[i].bytes, v->right[i].n);
        id = b->made[i];
        if (v->types[id] != PDI_TYPE_NORMAL || v->types[l] != PDI_TYPE_NORMAL || v->types[r] != PDI_TYPE_NORMAL) continue;
        if (id != last && count[id])
            return CV_FAIL_AT(b->e, TOKENIZER, i,
                              "%s: merge %u, '%S' '%S': a token's merges do not stand together; scores cannot express that",
                              b->path, (uint64_t)i, &v->left[i], &v->right[i]);
        if (id != last) v->scores[id] = (float)made++ * -1.0f;
        count[id]++;
        last = id;
    }
    if (made > 1u << 24) return CV_FAIL(b->e, LIMIT, "%s: merges make more than 2^24 tokens", b->path);
    for (i = 0; i < v->n; i++) {
        if (v->types[i] != PDI_TYPE_NORMAL) continue;
        splits = cv_splits(b, i);
        if (splits == SIZE_MAX)
            return CV_FAIL_AT(b->e, LIMIT, i, "%s: token %u has %u bytes", b->path, (uint64_t)i, (uint64_t)v->tokens[i].n);
        if (splits != count[i])
            return CV_FAIL_AT(b->e, TOKENIZER, i,
                              "%s: token %u, '%S', can be split in %u ways, the merges have %u: scores cannot express that",
                              b->path, (uint64_t)i, &v->tokens[i], (uint64_t)splits, (uint64_t)count[i]);
        if (!count[i]) v->scores[i] = -(float)made;
    }
    v->n_merges = 0;
    v->left = v->right = NULL;
    return 0;
}

/* Byte tokens by their exact form; with byte fallback all must be there. */
static int cv_byte_types(cv_builder *b) {
    cv_vocab *v = b->v;
    uint8_t seen[256];
    size_t i;
    int byte;
    memset(seen, 0, sizeof seen);
    for (i = 0; i < v->n; i++) {
        byte = v->types[i] == PDI_TYPE_NORMAL || v->types[i] == PDI_TYPE_BYTE ? pdi_byte_token(v->tokens[i]) : -1;
        if (byte < 0) continue;
        v->types[i] = PDI_TYPE_BYTE;
        seen[byte] = 1;
    }
    for (i = 0; i < 256; i++)
        if (!seen[i]) return CV_FAIL_AT(b->e, TOKEN, i, "%s: the token of byte %u is missing", b->path, (uint64_t)i);
    return 0;
}

/* -- the parts of tokenizer.json -- */

/* A string field, or "" if it is absent or something else. */
static prediff_string cv_text_of(const cv_json *j, const cv_node *object, const char *key) {
    const cv_node *v = cv_field(j, object, key);
    return v && v->kind == CV_STRING ? v->text : cv_str("");
}

static int cv_text_is(const cv_json *j, const cv_node *object, const char *key, const char *want) {
    return pdi_str_is(cv_text_of(j, object, key), want);
}

/* The parts of a Sequence (its list under `key`), or the one object itself: at most `most`, from `out`. */
static size_t cv_parts(const cv_json *j, const cv_node *v, const char *key, const cv_node **out, size_t most) {
    const cv_node *list, *k;
    uint32_t i;
    if (!v) return 0;
    out[0] = v;
    if (!cv_text_is(j, v, "type", "Sequence")) return 1;
    list = cv_field(j, v, key);
    if (!list || list->kind != CV_ARRAY || list->count > most) return most + 1;
    for (k = cv_first(list), i = 0; i < list->count; i++, k = cv_after(j, k)) out[i] = k;
    return list->count;
}

enum { CV_PARTS = 4 };

static int cv_strange(const cv_builder *b, const char *part, const cv_json *j, const cv_node *v) {
    prediff_string type = cv_text_of(j, v, "type");
    return CV_FAIL_AT(b->e, TOKENIZER, v ? v->at : 0, "%s: the %s '%S' with these settings is not one we have", b->path, part, &type);
}

static const char cv_regex_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char cv_regex_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char cv_regex_qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ByteLevel, after the parts before it: which splitter they are together. */
static int cv_byte_level(cv_builder *b, const cv_json *j, const cv_node *const *part, size_t n) {
    const cv_node *last = part[n - 1], *use = cv_field(j, last, "use_regex"), *prefix = cv_field(j, last, "add_prefix_space");
    int use_regex = !use || use->kind != CV_BOOL || use->truth;                     /* absent: true, as there; and so is the next */
    prediff_string regex;
    if (!prefix || prefix->kind != CV_BOOL || prefix->truth)
        return CV_FAIL_AT(b->e, TOKENIZER, last->at, "%s: ByteLevel with add_prefix_space is not supported", b->path);
    if (n == 1 && use_regex) { b->v->pre = "gpt-2"; return 0; }
    if (n == 2 && use_regex && cv_text_is(j, part[0], "type", "Digits") && cv_true(j, part[0], "individual_digits")) {
        b->v->pre = "smollm";
        return 0;
    }
    if (n != 2 || use_regex || !cv_text_is(j, part[0], "type", "Split") || !cv_text_is(j, part[0], "behavior", "Isolated") ||
        cv_true(j, part[0], "invert"))
        return cv_strange(b, "pre_tokenizer", j, part[0]);
    regex = cv_text_of(j, cv_field(j, part[0], "pattern"), "Regex");
    if (pdi_str_is(regex, cv_regex_gpt2)) b->v->pre = "gpt-2";
    else if (pdi_str_is(regex, cv_regex_llama3)) b->v->pre = "llama-bpe";
    else if (pdi_str_is(regex, cv_regex_qwen2)) b->v->pre = "qwen2";
    else return CV_FAIL_AT(b->e, TOKENIZER, part[0]->at, "%s: we have no splitter for the pattern '%S...'", b->path, &regex);
    return 0;
}

/* Metaspace as Llama's newer files have it: the space before the text, and no cutting into words. */
static int cv_metaspace(cv_builder *b, const cv_json *j, const cv_node *v) {
    prediff_string scheme = cv_text_of(j, v, "prepend_scheme");
    const cv_node *split = cv_field(j, v, "split");
    if (!cv_text_is(j, v, "replacement", "\xE2\x96\x81") || !split || split->kind != CV_BOOL || split->truth)
        return cv_strange(b, "pre_tokenizer", j, v);
    if (!pdi_str_is(scheme, "always") && !pdi_str_is(scheme, "first") && !pdi_str_is(scheme, "never"))
        return cv_strange(b, "pre_tokenizer", j, v);
    b->v->spm = 1;
    b->v->add_space_prefix = !pdi_str_is(scheme, "never");
    return 0;
}

/* Sets spm, pre and add_space_prefix. */
static int cv_splitting(cv_builder *b, const cv_json *j) {
    const cv_node *normalizer = cv_field(j, j->nodes, "normalizer"), *splitter = cv_field(j, j->nodes, "pre_tokenizer");
    const cv_node *part[CV_PARTS + 1];
    size_t i, n = cv_parts(j, normalizer, "normalizers", part, CV_PARTS);
    int prepend = 0, replace = 0, nfc = 0;
    if (n > CV_PARTS) return cv_strange(b, "normalizer", j, normalizer);
    for (i = 0; i < n; i++) {
        if (!replace && cv_text_is(j, part[i], "type", "Prepend") && cv_text_is(j, part[i], "prepend", "\xE2\x96\x81")) prepend = 1;
        else if (cv_text_is(j, part[i], "type", "Replace") && cv_text_is(j, cv_field(j, part[i], "pattern"), "String", " ") &&
                 cv_text_is(j, part[i], "content", "\xE2\x96\x81")) replace = 1;
        else if (n == 1 && cv_text_is(j, part[i], "type", "NFC")) nfc = 1;
        else return cv_strange(b, "normalizer", j, part[i]);
    }
    if (prepend && !replace) return cv_strange(b, "normalizer", j, normalizer);
    n = cv_parts(j, splitter, "pretokenizers", part, CV_PARTS);
    if (n > CV_PARTS) return cv_strange(b, "pre_tokenizer", j, splitter);
    if (replace && n == 0) { b->v->spm = 1; b->v->add_space_prefix = prepend; return 0; }
    if (normalizer && !nfc) return cv_strange(b, "normalizer", j, normalizer);
    if (n == 1 && !normalizer && cv_text_is(j, part[0], "type", "Metaspace")) return cv_metaspace(b, j, part[0]);
    if (n == 0) return CV_FAIL(b->e, TOKENIZER, "%s: there is neither a ByteLevel pre_tokenizer nor SentencePiece's normalizer", b->path);
    if (!cv_text_is(j, part[n - 1], "type", "ByteLevel")) return cv_strange(b, "pre_tokenizer", j, part[n - 1]);
    CV_TRY(cv_byte_level(b, j, part, n));
    if (nfc && strcmp(b->v->pre, "qwen2") != 0) return cv_strange(b, "normalizer", j, normalizer);
    if (nfc) b->v->remark = "the tokenizer composes characters first (NFC), prediff does not: give it composed text, as nearly all text is";
    return 0;
}

/* A template: which tokens go before and after the text. */
static int cv_template(cv_builder *b, const cv_json *j, const cv_node *post) {
    const cv_node *single = cv_field(j, post, "single"), *k;
    int before[2] = { 0, 0 }, text = 0;
    uint32_t i;
    if (!single || single->kind != CV_ARRAY) return cv_strange(b, "post_processor", j, post);
    for (k = cv_first(single), i = 0; i < single->count; i++, k = cv_after(j, k)) {
        const cv_node *token = cv_field(j, k, "SpecialToken");
        prediff_string name = cv_text_of(j, token, "id");
        int32_t id = token ? cv_token(b, name.bytes, name.n) : -1, *known = text ? &b->v->eos : &b->v->bos;
        if (!token && !text && cv_field(j, k, "Sequence")) { text = 1; continue; }
        if (id < 0)
            return CV_FAIL_AT(b->e, TOKENIZER, k->at, "%s: byte %u: the template names '%S', which is no token", b->path, (uint64_t)k->at,
                              &name);
        if (before[text]++)
            return CV_FAIL_AT(b->e, TOKENIZER, k->at, "%s: byte %u: the template puts several tokens side by side", b->path,
                              (uint64_t)k->at);
        *known = id;
    }
    if (!text) return cv_strange(b, "post_processor", j, post);
    b->v->add_bos = before[0];
    b->v->add_eos = before[1];
    return 0;
}

/* Without a template nothing is added. */
static int cv_framing(cv_builder *b, const cv_json *j) {
    const cv_node *post = cv_field(j, j->nodes, "post_processor"), *part[CV_PARTS + 1];
    size_t i, n = cv_parts(j, post, "processors", part, CV_PARTS);
    if (n > CV_PARTS) return cv_strange(b, "post_processor", j, post);
    b->v->add_bos = b->v->add_eos = 0;
    for (i = 0; i < n; i++) {
        if (cv_text_is(j, part[i], "type", "ByteLevel")) continue;
        if (!cv_text_is(j, part[i], "type", "TemplateProcessing")) return cv_strange(b, "post_processor", j, part[i]);
        CV_TRY(cv_template(b, j, part[i]));
    }
    return 0;
}

/* What a model of BPE may set that we do not do. */
static int cv_model_settings(cv_builder *b, const cv_json *j, const cv_node *model) {
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const cv_node *dropout = cv_field(j, model, "dropout");
    double rate = 0;
    size_t i;
    for (i = 0; i < 2; i++)
        if (cv_text_of(j, model, affixes[i]).n) return CV_FAIL(b->e, TOKENIZER, "%s: model.%s is not supported", b->path, affixes[i]);
    if (dropout) CV_TRY(cv_get_double(j, dropout, &rate, b->e));
    if (rate > 0 || rate < 0) return CV_FAIL(b->e, TOKENIZER, "%s: model.dropout makes encoding random; it must be null", b->path);
    if (b->v->spm && !cv_true(j, model, "byte_fallback"))
        return CV_FAIL(b->e, TOKENIZER, "%s: a SentencePiece vocabulary without byte fallback is not supported", b->path);
    if (!b->v->spm && cv_true(j, model, "byte_fallback"))
        return CV_FAIL(b->e, TOKENIZER, "%s: byte fallback with a ByteLevel pre_tokenizer is not supported", b->path);
    if (cv_true(j, model, "ignore_merges") != (b->v->pre && strcmp(b->v->pre, "llama-bpe") == 0)) b->v->ignore_merges = cv_true(j, model, "ignore_merges");
    if (b->v->spm && b->v->ignore_merges > 0) return CV_FAIL(b->e, TOKENIZER, "%s: ignore_merges in a SentencePiece vocabulary is not supported", b->path);
    return 0;
}

static int cv_unknown(cv_builder *b, const cv_json *j, const cv_node *model) {
    prediff_string name = cv_text_of(j, model, "unk_token");
    if (!name.n) return 0;
    b->v->unk = cv_token(b, name.bytes, name.n);
    if (b->v->unk < 0) return CV_FAIL(b->e, TOKEN, "%s: the unknown token '%S' is no token", b->path, &name);
    if (b->v->spm) b->v->types[b->v->unk] = PDI_TYPE_UNKNOWN;
    return 0;
}

/* Byte-level files may lack bytes that never occur in UTF-8. The library then wants an unknown token; one that is a control
   token stands for U+FFFD, as such bytes become elsewhere before they get to a tokenizer. */
static void cv_stand_in(cv_builder *b) {
    cv_vocab *v = b->v;
    char s[4];
    uint32_t byte;
    size_t i;
    int missing = 0;
    for (byte = 0; byte < 256; byte++) missing |= cv_token(b, s, pdi_put_char(pdi_byte_char(byte), s)) < 0;
    if (v->spm || v->unk >= 0 || !missing) return;
    if (v->eos >= 0 && v->types[v->eos] == PDI_TYPE_CONTROL) v->unk = v->eos;
    for (i = 0; i < v->n && v->unk < 0; i++) if (v->types[i] == PDI_TYPE_CONTROL) v->unk = (int32_t)i;
}

static int cv_json_tokenizer(cv_builder *b, char *text, size_t n) {
    cv_json j;
    const cv_node *model, *added;
    prediff_string type;
    CV_TRY(cv_json_parse(b->pool, b->path, text, n, &j, b->e));
    model = cv_field(&j, j.nodes, "model");
    if (!model || model->kind != CV_OBJECT) return CV_FAIL(b->e, TOKENIZER, "%s has no model: not a tokenizer.json", b->path);
    type = cv_text_of(&j, model, "type");
    if (type.n ? !pdi_str_is(type, "BPE") : !cv_field(&j, model, "merges"))
        return CV_FAIL(b->e, TOKENIZER, "%s: the tokenizer's model is '%S'; BPE is supported", b->path, &type);
    CV_TRY(cv_splitting(b, &j));
    CV_TRY(cv_model_settings(b, &j, model));
    added = cv_field(&j, j.nodes, "added_tokens");
    CV_TRY(cv_entries(b, &j, cv_field(&j, model, "vocab"), CV_BY_TEXT) || cv_entries(b, &j, added, CV_ADDED_LIST));
    CV_TRY(cv_entries_measured(b));
    CV_TRY(cv_entries(b, &j, cv_field(&j, model, "vocab"), CV_BY_TEXT) || cv_entries(b, &j, added, CV_ADDED_LIST) || cv_index(b));
    cv_find_holes(b);
    CV_TRY(cv_unknown(b, &j, model));
    if (b->v->spm) CV_TRY(cv_byte_types(b));
    CV_TRY(cv_json_merges(b, &j, cv_field(&j, model, "merges")));
    if (b->v->spm) CV_TRY(cv_scores_from_merges(b));
    return cv_framing(b, &j);
}

static int cv_tokenizer_json(cv_pool *p, const char *path, char *text, size_t n, cv_vocab *out, cv_error *e) {
    cv_builder b;
    cv_vocab_begin(&b, p, path, out, e);
    CV_TRY(cv_json_tokenizer(&b, text, n));
    cv_stand_in(&b);
    return 0;
}

/* A vocab.json alone: tokens, types and ids, no merges. */
static int cv_vocab_json(cv_pool *p, const char *path, char *text, size_t n, cv_vocab *out, cv_error *e) {
    cv_builder b;
    cv_json j;
    cv_vocab_begin(&b, p, path, out, e);
    CV_TRY(cv_json_parse(p, path, text, n, &j, e));
    CV_TRY(cv_entries(&b, &j, j.nodes, CV_BY_TEXT) || cv_entries_measured(&b) || cv_entries(&b, &j, j.nodes, CV_BY_TEXT));
    return cv_index(&b);
}

/* -- SentencePiece's tokenizer.model: a protocol buffer, read field by field -- */

typedef struct cv_field_of { uint32_t number, wire; uint64_t value; prediff_string bytes; } cv_field_of;

static int cv_varint(const uint8_t *p, size_t n, size_t *at, uint64_t *out) {      /* 1 = read */
    uint32_t shift;
    *out = 0;
    for (shift = 0; shift < 64 && *at < n; shift += 7) {
        uint8_t c = p[(*at)++];
        *out |= (uint64_t)(c & 127) << shift;
        if (c < 128) return 1;
    }
    return 0;
}

/* The next field of a message; 1 = read. Its value is a number, or its bytes. */
static int cv_next_field(prediff_string m, size_t *at, cv_field_of *f) {
    const uint8_t *p = (const uint8_t *)m.bytes;
    uint64_t tag;
    if (!cv_varint(p, m.n, at, &tag) || tag >> 3 == 0 || tag >> 32) return 0;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (uint32_t)(tag & 7);
    f->value = 0;
    f->bytes.bytes = NULL; f->bytes.n = 0;
    if (f->wire == 0) return cv_varint(p, m.n, at, &f->value);
    if (f->wire == 2 && !cv_varint(p, m.n, at, &f->value)) return 0;
    if (f->wire == 1 || f->wire == 5) f->value = f->wire == 1 ? 8 : 4;
    else if (f->wire != 2) return 0;
    if (f->value > m.n - *at) return 0;
    f->bytes.bytes = m.bytes + *at;
    f->bytes.n = (size_t)f->value;
    *at += f->bytes.n;
    return 1;
}

static int cv_cut_short(const cv_builder *b, size_t at) {
    return CV_FAIL_AT(b->e, TRUNCATED, at, "%s: byte %u: not a SentencePiece model, or it is cut off or damaged", b->path, (uint64_t)at);
}

static int cv_piece(cv_builder *b, prediff_string m, size_t id) {
    cv_vocab *v = b->v;
    prediff_string text = { "", 0 };
    cv_field_of f;
    size_t at = 0;
    int32_t type = PDI_TYPE_NORMAL;
    while (at < m.n) {
        if (!cv_next_field(m, &at, &f)) return cv_cut_short(b, at);
        if (f.number == 1 && f.wire == 2) text = f.bytes;
        if (f.number == 2 && f.wire == 5) v->scores[id] = pdi_f32((const uint8_t *)f.bytes.bytes);
        if (f.number == 3 && f.wire == 0) type = f.value > PDI_TYPE_BYTE ? 0 : (int32_t)f.value;
    }
    if (type < PDI_TYPE_NORMAL) return CV_FAIL_AT(b->e, TOKEN, id, "%s: piece %u has an unknown type", b->path, (uint64_t)id);
    if (!pdi_is_finite(&v->scores[id]))
        return CV_FAIL_AT(b->e, TOKEN, id, "%s: piece %u has a score that is no number", b->path, (uint64_t)id);
    return cv_place(b, (int64_t)id, text, type);
}

static int cv_trainer_spec(cv_builder *b, prediff_string m) {
    static const char *const kinds[] = { "?", "Unigram", "BPE", "Word", "Char" };
    static const uint32_t ids[] = { 40, 41, 42, 43 };
    uint64_t kind = 1, fallback = 0, suffix = 0, special[4] = { 0, 1, 2, UINT64_MAX };
    cv_field_of f;
    size_t at = 0, i;
    while (at < m.n) {
        if (!cv_next_field(m, &at, &f)) return cv_cut_short(b, at);
        if (f.wire != 0) continue;
        if (f.number == 3) kind = f.value;
        if (f.number == 24) suffix = f.value;
        if (f.number == 35) fallback = f.value;
        for (i = 0; i < 4; i++) if (f.number == ids[i]) special[i] = f.value;
    }
    if (kind != 2)
        return CV_FAIL(b->e, TOKENIZER, "%s: a SentencePiece model of kind %s; BPE is supported", b->path, kinds[kind < 5 ? kind : 0]);
    if (!fallback) return CV_FAIL(b->e, TOKENIZER, "%s: a SentencePiece model without byte fallback is not supported", b->path);
    if (suffix) return CV_FAIL(b->e, TOKENIZER, "%s: a SentencePiece model with white space as a suffix is not supported", b->path);
    for (i = 0; i < 4; i++) {
        int32_t *to = i == 0 ? &b->v->unk : i == 1 ? &b->v->bos : i == 2 ? &b->v->eos : &b->v->pad;
        if ((special[i] & UINT32_MAX) >> 31) continue;                              /* negative: none */
        if (special[i] >= b->v->n)
            return CV_FAIL(b->e, TOKEN, "%s: a special id is %u; there are %u pieces", b->path, special[i], (uint64_t)b->v->n);
        *to = (int32_t)special[i];
    }
    return 0;
}

static int cv_normalizer_spec(cv_builder *b, prediff_string m) {
    prediff_string name = { "", 0 };
    uint64_t flags[3] = { 1, 1, 1 };       /* add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces */
    cv_field_of f;
    size_t at = 0, map = 0;
    while (at < m.n) {
        if (!cv_next_field(m, &at, &f)) return cv_cut_short(b, at);
        if (f.number == 1 && f.wire == 2) name = f.bytes;
        if (f.number == 2 && f.wire == 2) map = f.bytes.n;
        if (f.number >= 3 && f.number <= 5 && f.wire == 0) flags[f.number - 3] = f.value;
    }
    if (map) return CV_FAIL(b->e, TOKENIZER, "%s: the normalizer '%S' is not supported", b->path, &name);
    if (flags[1] || !flags[2])
        return CV_FAIL(b->e, TOKENIZER, "%s: the normalizer %s, which is not supported", b->path,
                       flags[1] ? "removes extra white space" : "does not escape white space");
    b->v->add_space_prefix = flags[0] != 0;
    return 0;
}

static int cv_sentencepiece_into(cv_builder *b, const char *bytes, size_t n) {
    prediff_string m, trainer = { "", 0 }, normalizer = { "", 0 };
    cv_field_of f;
    size_t at, pieces = 0;
    m.bytes = bytes; m.n = n;
    b->v->spm = 1;
    for (at = 0; at < n;) {
        if (!cv_next_field(m, &at, &f)) return cv_cut_short(b, at);
        pieces += f.number == 1 && f.wire == 2;
        if (f.number == 2 && f.wire == 2) trainer = f.bytes;
        if (f.number == 3 && f.wire == 2) normalizer = f.bytes;
    }
    if (!pieces) return CV_FAIL(b->e, TOKEN, "%s: the vocabulary is empty", b->path);
    CV_TRY(cv_vocab_arrays(b, pieces));
    b->v->scores = (float *)cv_alloc(b->pool, pieces, sizeof *b->v->scores, b->e);
    if (!b->v->scores || cv_trainer_spec(b, trainer) || cv_normalizer_spec(b, normalizer)) return 1;
    for (at = 0, pieces = 0; at < n;) {
        cv_next_field(m, &at, &f);
        if (f.number == 1 && f.wire == 2) CV_TRY(cv_piece(b, f.bytes, pieces++));
    }
    return 0;
}

static int cv_sentencepiece(cv_pool *p, const char *path, const char *bytes, size_t n, cv_vocab *out, cv_error *e) {
    cv_builder b;
    cv_vocab_begin(&b, p, path, out, e);
    return cv_sentencepiece_into(&b, bytes, n) || cv_index(&b) || cv_byte_types(&b);
}

/* -- llama2.c's tok.bin: the longest token's bytes, then score, length and bytes of each token; spaces in place of U+2581 -- */

/* How GGUF has the text, written to *out: U+2581 for spaces. ids 1 and 2 come with line feeds around them. */
static int cv_bin_token(cv_builder *b, size_t id, prediff_string s, char **out) {
    prediff_string t;
    size_t i;
    if (id == 1 || id == 2) return cv_place(b, (int64_t)id, cv_str(id == 1 ? "<s>" : "</s>"), PDI_TYPE_CONTROL);
    t.bytes = *out;
    for (i = 0; i < s.n; i++)
        if (s.bytes[i] == ' ') { memcpy(*out, "\xE2\x96\x81", 3); *out += 3; }
        else *(*out)++ = s.bytes[i];
    t.n = (size_t)(*out - t.bytes);
    return cv_place(b, (int64_t)id, t, id == 0 ? PDI_TYPE_UNKNOWN : PDI_TYPE_NORMAL);
}

/* The token at *at. */
static int cv_bin_next(cv_builder *b, prediff_string file, size_t *at, size_t id, float *score, prediff_string *s) {
    const uint8_t *p = (const uint8_t *)file.bytes + *at;
    if (file.n - *at < 8 || pdi_u32(p + 4) > file.n - *at - 8)
        return CV_FAIL_AT(b->e, TRUNCATED, *at, "%s: byte %u: the file ends inside token %u, or is damaged", b->path, (uint64_t)*at,
                          (uint64_t)id);
    *score = pdi_f32(p);
    if (!pdi_is_finite(score)) return CV_FAIL_AT(b->e, TOKEN, id, "%s: token %u has a score that is no number", b->path, (uint64_t)id);
    s->bytes = file.bytes + *at + 8;
    s->n = pdi_u32(p + 4);
    if (s->n > pdi_u32((const uint8_t *)file.bytes))
        return CV_FAIL_AT(b->e, TOKEN, id, "%s: token %u has %u bytes, the longest should have %u", b->path, (uint64_t)id, (uint64_t)s->n,
                          (uint64_t)pdi_u32((const uint8_t *)file.bytes));
    *at += 8 + s->n;
    return 0;
}

static int cv_tokenizer_bin_into(cv_builder *b, const char *bytes, size_t n) {
    cv_vocab *v = b->v;
    prediff_string file, s;
    size_t at, i, count = 0, size = 0;
    float score;
    char *text;
    file.bytes = bytes; file.n = n;
    for (at = 4; at < n; count++) {
        CV_TRY(cv_bin_next(b, file, &at, count, &score, &s));
        for (i = 0; i < s.n; i++) size += s.bytes[i] == ' ' ? 3 : 1;
    }
    if (count < 3)
        return CV_FAIL_AT(b->e, TRUNCATED, n, "%s has only %u tokens: not a llama2.c tokenizer, or it is cut off", b->path,
                          (uint64_t)count);
    text = (char *)cv_alloc(b->pool, size, 1, b->e);
    if (!text || cv_vocab_arrays(b, count)) return 1;
    v->scores = (float *)cv_alloc(b->pool, count, sizeof *v->scores, b->e);
    if (!v->scores) return 1;
    for (at = 4, i = 0; i < count; i++) CV_TRY(cv_bin_next(b, file, &at, i, &v->scores[i], &s) || cv_bin_token(b, i, s, &text));
    v->spm = 1;
    v->unk = 0; v->bos = 1; v->eos = 2;
    v->add_space_prefix = 1;
    return 0;
}

static int cv_tokenizer_bin(cv_pool *p, const char *path, const char *bytes, size_t n, cv_vocab *out, cv_error *e) {
    cv_builder b;
    cv_vocab_begin(&b, p, path, out, e);
    return cv_tokenizer_bin_into(&b, bytes, n) || cv_index(&b) || cv_byte_types(&b);
}

/* -- GGUF keys to a vocabulary -- */

static const prediff_key *cv_find_key(const prediff_container *g, const char *name) {
    size_t i;
    for (i = 0; i < g->n_keys; i++) if (pdi_str_is(g->keys[i].name, name)) return &g->keys[i];
    return NULL;
}

static int cv_key_wrong(const cv_builder *b, const char *name) {
    return CV_FAIL(b->e, TOKENIZER, "key %s has the wrong type or number of elements", name);
}

/* A string; absent: bytes NULL. */
static int cv_key_text(const cv_builder *b, const prediff_container *g, const char *name, prediff_string *out) {
    const prediff_key *k = cv_find_key(g, name);
    pdi_cursor c;
    out->bytes = NULL;
    out->n = 0;
    if (!k) return 0;
    if (k->type != PDI_GGUF_STRING) return cv_key_wrong(b, name);
    c = pdi_cursor_of(k->data, k->data_size);
    *out = pdi_next_string(&c);
    return 0;
}

/* An array of `element`, with n elements unless n is 0; its data, copied, as `copy`. *k NULL if absent. */
static int cv_key_array(const cv_builder *b, const prediff_container *g, const char *name, uint32_t element, size_t n, prediff_key *k) {
    const prediff_key *found = cv_find_key(g, name);
    memset(k, 0, sizeof *k);
    if (!found) return 0;
    if (found->type != PDI_GGUF_ARRAY || found->element != element || (n && found->count != n)) return cv_key_wrong(b, name);
    *k = *found;
    k->data = (const uint8_t *)cv_copy(b->pool, (const char *)found->data, found->data_size, b->e);
    return !k->data;
}

static int cv_keys_tokens(cv_builder *b, const prediff_container *g) {
    cv_vocab *v = b->v;
    prediff_key tokens, types, scores;
    pdi_cursor c;
    size_t i;
    CV_TRY(cv_key_array(b, g, "tokenizer.ggml.tokens", PDI_GGUF_STRING, 0, &tokens));
    if (tokens.count == 0 || tokens.count > INT32_MAX) return CV_FAIL(b->e, TOKENIZER, "key tokenizer.ggml.tokens is missing or empty");
    CV_TRY(cv_vocab_arrays(b, (size_t)tokens.count));
    CV_TRY(cv_key_array(b, g, "tokenizer.ggml.token_type", PDI_GGUF_I32, v->n, &types) ||
           cv_key_array(b, g, "tokenizer.ggml.scores", PDI_GGUF_F32, v->n, &scores));
    if (v->spm && !scores.data) return CV_FAIL(b->e, TOKENIZER, "key tokenizer.ggml.scores is missing");
    if (v->spm) v->scores = (float *)cv_alloc(b->pool, v->n, sizeof *v->scores, b->e);
    if (v->spm && !v->scores) return 1;
    c = pdi_cursor_of(tokens.data, tokens.data_size);
    for (i = 0; i < v->n; i++) {
        prediff_string s = pdi_next_string(&c);
        int32_t type = types.data ? (int32_t)pdi_u32(types.data + 4 * i) : PDI_TYPE_NORMAL;
        if ((type == PDI_TYPE_BYTE || !types.data) && v->spm && pdi_byte_token(s) >= 0) type = PDI_TYPE_BYTE;
        else if (type < PDI_TYPE_NORMAL || type >= PDI_TYPE_BYTE) type = PDI_TYPE_NORMAL;
        CV_TRY(cv_place(b, (int64_t)i, s, type));
        if (v->spm) v->scores[i] = pdi_f32(scores.data + 4 * i);
    }
    return cv_index(b);
}

static int cv_keys_merges(cv_builder *b, const prediff_container *g) {
    prediff_key merges;
    pdi_cursor c;
    size_t i;
    CV_TRY(cv_key_array(b, g, "tokenizer.ggml.merges", PDI_GGUF_STRING, 0, &merges));
    if (!merges.data) return CV_FAIL(b->e, TOKENIZER, "key tokenizer.ggml.merges is missing");
    CV_TRY(cv_merges_begin(b, (size_t)merges.count));
    c = pdi_cursor_of(merges.data, merges.data_size);
    for (i = 0; i < merges.count; i++) {
        prediff_string s = pdi_next_string(&c), left, right;
        if (!cv_cut_merge(s, &left, &right))
            return CV_FAIL_AT(b->e, MERGE, i, "merge %u, '%S', is not two tokens with a space between", (uint64_t)i, &s);
        CV_TRY(cv_merge(b, i, left, right));
    }
    return 0;
}

static int cv_keys_ids(cv_builder *b, const prediff_container *g) {
    size_t i;
    for (i = 0; i < CV_SPECIALS; i++) {
        const prediff_key *k = cv_find_key(g, cv_special_keys[i]);
        if (!k) continue;
        if (k->type != PDI_GGUF_U32 && k->type != PDI_GGUF_I32) return cv_key_wrong(b, cv_special_keys[i]);
        if (pdi_u32(k->data) > INT32_MAX) return CV_FAIL(b->e, TOKEN, "%s is out of range", cv_special_keys[i]);
        *cv_special(b->v, i) = (int32_t)pdi_u32(k->data);
        if ((size_t)*cv_special(b->v, i) >= b->v->n && cv_special(b->v, i) != &b->v->mask)        /* the mask may be a row beyond */
            return CV_FAIL(b->e, TOKEN, "%s is %u; there are %u tokens", cv_special_keys[i], (uint64_t)pdi_u32(k->data), (uint64_t)b->v->n);
    }
    for (i = 0; i < CV_FLAGS; i++) {
        const prediff_key *k = cv_find_key(g, cv_flag_keys[i]);
        if (k && k->type != PDI_GGUF_BOOL) return cv_key_wrong(b, cv_flag_keys[i]);
        if (k) *cv_flag(b->v, i) = k->data[0] != 0;
    }
    return 0;
}

/* Everything is copied: the container may be closed after. */
static int cv_vocab_from_keys(cv_pool *p, const prediff_container *g, cv_vocab *out, int *found, cv_error *e) {
    static const char *const pres[] = { NULL, "gpt-2", "llama-bpe", "smollm", "qwen2", NULL };
    cv_builder b;
    prediff_string model, pre;
    cv_vocab_begin(&b, p, "the file", out, e);
    CV_TRY(cv_key_text(&b, g, "tokenizer.ggml.model", &model) || cv_key_text(&b, g, "tokenizer.ggml.pre", &pre));
    *found = model.bytes && !pdi_str_is(model, "none") && !pdi_str_is(model, "no_vocab");
    if (!*found) return 0;
    out->spm = pdi_str_is(model, "llama");
    if (!out->spm && !pdi_str_is(model, "gpt2")) return CV_FAIL(e, TOKENIZER, "tokenizer.ggml.model '%S' is not supported", &model);
    if (!out->spm) out->pre = pres[pdi_splitter_of(pre)];
    if (!out->spm && !out->pre) return CV_FAIL(e, TOKENIZER, "tokenizer.ggml.pre '%S' is not supported", &pre);
    CV_TRY(cv_keys_tokens(&b, g) || cv_keys_ids(&b, g));
    return out->spm ? 0 : cv_keys_merges(&b, g);
}

/* -- files and folders -- */

/* The document of a JSON file in the folder; *there 0 if it is absent. */
static int cv_json_file(cv_builder *b, const char *folder, const char *name, cv_json *j, int *there) {
    char *path = cv_path(b->pool, folder, name, b->e), *text;
    size_t n;
    memset(j, 0, sizeof *j);
    if (!path) return 1;
    *there = cv_exists(path);
    if (!*there) return 0;
    CV_TRY(cv_read_file(b->pool, path, CV_JSON_MOST, &text, &n, b->e));
    return cv_json_parse(b->pool, path, text, n, j, b->e);
}

/* "bos_token": "<s>" or {"content": "<s>"}. A token that the vocabulary does not have is none. mark: it becomes a control token. */
static void cv_name_special(cv_builder *b, prediff_string name, int32_t *to, int mark) {
    int32_t id = name.n ? cv_token(b, name.bytes, name.n) : -1;
    if (id < 0) return;
    if (to) *to = id;
    if (mark && (b->v->types[id] == PDI_TYPE_NORMAL || b->v->types[id] == PDI_TYPE_USER)) b->v->types[id] = PDI_TYPE_CONTROL;
}

/* tokenizer_config.json and special_tokens_map.json; j->nodes NULL: the file is absent. What an earlier file said stays. */
static void cv_read_settings(cv_builder *b, const cv_json *j, int mark, int *said) {
    static const char *const flags[] = { "add_bos_token", "add_eos_token" };
    const cv_node *more, *k;
    uint32_t i;
    if (!j->nodes) return;
    for (i = 0; i < CV_SPECIALS; i++) {
        const cv_node *v = cv_field(j, j->nodes, cv_special_names[i]);
        prediff_string name = v && v->kind == CV_STRING ? v->text : cv_text_of(j, v, "content");
        if (!v || said[i]) continue;
        said[i] = 1;
        cv_name_special(b, name, cv_special(b->v, i), mark);
    }
    for (i = 0; i < 2; i++) {
        const cv_node *v = cv_field(j, j->nodes, flags[i]);
        if (v && v->kind == CV_BOOL) *cv_flag(b->v, i) = v->truth;
    }
    more = cv_field(j, j->nodes, "additional_special_tokens");
    if (!more || more->kind != CV_ARRAY) return;
    for (k = cv_first(more), i = 0; i < more->count; i++, k = cv_after(j, k))
        if (k->kind == CV_STRING) cv_name_special(b, k->text, NULL, mark);
}

/* Classes of tokenizers that come as vocab.json and merges.txt: their splitter, and what they take when nothing is said. */
typedef struct cv_class { const char *name, *pre, *bos, *eos, *pad; } cv_class;
static const cv_class cv_classes[] = {
    { "GPT2Tokenizer", "gpt-2", "<|endoftext|>", "<|endoftext|>", "" },
    { "GPT2TokenizerFast", "gpt-2", "<|endoftext|>", "<|endoftext|>", "" },
    { "Qwen2Tokenizer", "qwen2", "", "<|endoftext|>", "<|endoftext|>" },
    { "Qwen2TokenizerFast", "qwen2", "", "<|endoftext|>", "<|endoftext|>" },
    { "DreamTokenizer", "qwen2", "", "<|endoftext|>", "<|endoftext|>" }
};

static int cv_class_of(cv_builder *b, const cv_json *settings, const cv_class **out) {
    prediff_string name = cv_text_of(settings, settings->nodes, "tokenizer_class");
    size_t i;
    *out = &cv_classes[0];                 /* the oldest folders say nothing */
    if (!name.n) return 0;
    for (i = 0; i < sizeof cv_classes / sizeof cv_classes[0]; i++) {
        if (!pdi_str_is(name, cv_classes[i].name)) continue;
        *out = &cv_classes[i];
        return 0;
    }
    return CV_FAIL(b->e, TOKENIZER, "%s: how a '%S' splits text is not known here; a tokenizer.json would tell", settings->path, &name);
}

static int cv_vocab_and_merges(cv_builder *b, const char *folder, const cv_json *settings, const cv_json *added) {
    const cv_node *decoder = cv_field(settings, settings->nodes, "added_tokens_decoder");
    const cv_class *kind;
    cv_vocab merges;
    cv_json j;
    char *path = cv_path(b->pool, folder, "merges.txt", b->e), *text;
    size_t n, i;
    int there, pass;
    if (!path || cv_class_of(b, settings, &kind)) return 1;
    if (!cv_exists(path)) return CV_FAIL(b->e, TOKENIZER, "%s is missing: vocab.json alone is no tokenizer", path);
    b->v->pre = kind->pre;
    CV_TRY(cv_json_file(b, folder, "vocab.json", &j, &there));
    for (pass = 0; pass < 2; pass++) {
        CV_TRY(cv_entries(b, &j, j.nodes, CV_BY_TEXT) || cv_entries(b, added, added->nodes, CV_ADDED_BY_TEXT) ||
               cv_entries(b, settings, decoder, CV_ADDED_BY_ID));
        if (pass == 0) CV_TRY(cv_entries_measured(b));
    }
    CV_TRY(cv_index(b) || cv_read_file(b->pool, path, CV_JSON_MOST, &text, &n, b->e));
    CV_TRY(cv_merges_txt(b->pool, path, text, n, &merges, b->e));
    b->path = path;
    CV_TRY(cv_merges_begin(b, merges.n_merges));
    for (i = 0; i < merges.n_merges; i++) CV_TRY(cv_merge(b, i, merges.left[i], merges.right[i]));
    cv_name_special(b, cv_str(kind->bos), &b->v->bos, 1);
    cv_name_special(b, cv_str(kind->eos), &b->v->eos, 1);
    cv_name_special(b, cv_str(kind->pad), &b->v->pad, 1);
    b->v->add_bos = b->v->add_eos = 0;
    return 0;
}

/* tokenizer.model, and tokens added beyond it. */
static int cv_model_and_added(cv_builder *b, const char *path, const cv_json *settings, const cv_json *added) {
    const cv_node *decoder = cv_field(settings, settings->nodes, "added_tokens_decoder");
    char *bytes;
    size_t n, pass;
    CV_TRY(cv_read_file(b->pool, path, CV_JSON_MOST, &bytes, &n, b->e) || cv_no_pointer(path, bytes, n, b->e));
    CV_TRY(cv_sentencepiece_into(b, bytes, n));
    b->count = b->v->n;
    b->max_id = (int64_t)b->v->n - 1;
    for (pass = 0; pass < 2; pass++) {
        CV_TRY(cv_entries(b, added, added->nodes, CV_ADDED_BY_TEXT) || cv_entries(b, settings, decoder, CV_ADDED_BY_ID));
        if (pass) break;
        if ((uint64_t)b->max_id >= 2 * (uint64_t)b->count + 256) return cv_entries_measured(b);
        CV_TRY(cv_vocab_grow(b, (size_t)b->max_id + 1));
    }
    return cv_index(b) || cv_byte_types(b);
}

static int cv_vocab_read_folder(cv_pool *p, const char *folder, cv_vocab *out, int *found, cv_error *e) {
    static const char *const names[] = { "tokenizer.json", "vocab.json", "tokenizer.model" };
    cv_json settings, map, added;
    cv_builder b;
    char *path = NULL, *text;
    size_t i, n;
    int there, said[CV_SPECIALS];
    cv_vocab_begin(&b, p, folder, out, e);
    *found = 0;
    memset(said, 0, sizeof said);
    for (i = 0; i < 3; i++) {
        path = cv_path(p, folder, names[i], e);
        if (!path) return 1;
        if (cv_exists(path)) break;
    }
    if (i == 3) return 0;
    b.path = path;
    CV_TRY(cv_json_file(&b, folder, "tokenizer_config.json", &settings, &there) ||
           cv_json_file(&b, folder, "special_tokens_map.json", &map, &there) ||
           cv_json_file(&b, folder, "added_tokens.json", &added, &there));
    if (i == 0) CV_TRY(cv_read_file(p, path, CV_JSON_MOST, &text, &n, e) || cv_json_tokenizer(&b, text, n));
    if (i == 1) CV_TRY(cv_vocab_and_merges(&b, folder, &settings, &added));
    if (i == 2) CV_TRY(cv_model_and_added(&b, path, &settings, &added));
    cv_read_settings(&b, &settings, i != 0, said);
    cv_read_settings(&b, &map, i != 0, said);
    cv_stand_in(&b);
    *found = 1;
    return 0;
}

static int cv_vocab_of_gguf(cv_pool *p, const char *path, cv_vocab *out, cv_error *e) {
    prediff_model_desc d;
    prediff_container g;
    prediff_model *m;
    prediff_error err;
    int failed, found;
    memset(&d, 0, sizeof d);
    d.path = path;
    d.map = d.vocab_only = 1;              /* a container alone would have to be of an architecture we know */
    if (prediff_model_open(&m, &d, &err)) return cv_library(e, path, &err);
    prediff_container_get(m, &g);
    failed = cv_vocab_from_keys(p, &g, out, &found, e);
    if (!failed && !found) failed = CV_FAIL(e, TOKENIZER, "%s has no tokenizer", path);
    prediff_model_close(m);
    return failed;
}

static int cv_vocab_read_file(cv_pool *p, const char *path, cv_vocab *out, cv_error *e) {
    uint8_t begin[5] = { 0, 0, 0, 0, 0 };
    char *text;
    cv_file f;
    size_t n, i;
    int failed;
    CV_TRY(cv_open(&f, path, e));
    failed = cv_read_at(&f, 0, begin, f.size < 4 ? (size_t)f.size : 4, e);
    cv_close(&f);
    if (failed) return 1;
    if (memcmp(begin, "GGUF", 4) == 0 || memcmp(begin, "FUGG", 4) == 0) return cv_vocab_of_gguf(p, path, out, e);
    CV_TRY(cv_read_file(p, path, CV_JSON_MOST, &text, &n, e) || cv_no_pointer(path, text, n, e));
    i = memcmp(begin, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (i < n && (text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t')) i++;
    if (i < n && text[i] == '{') return cv_tokenizer_json(p, path, text, n, out, e);
    if (n < 4) return CV_FAIL(e, FILE_KIND, "%s is no tokenizer: it has only %u bytes", path, (uint64_t)n);
    if (begin[0] == 10 && begin[1]) return cv_sentencepiece(p, path, text, n, out, e);      /* field 1: a piece */
    if (begin[2] == 0 && begin[3] == 0) return cv_tokenizer_bin(p, path, text, n, out, e);  /* the longest token is below 64 KiB */
    return CV_FAIL(e, FILE_KIND, "%s is no tokenizer we know: tokenizer.json, SentencePiece's tokenizer.model, llama2.c's .bin, or GGUF",
                   path);
}

/* -- a vocabulary to tokenizer.json and tokenizer_config.json -- */

static int cv_write_text(cv_pool *pool, const char *folder, const char *name, const char *text, size_t n, cv_error *e);    /* >>TARGET */

typedef struct cv_writer { char *p; size_t n, capacity; int failed; } cv_writer;       /* grows; freed by who began it */

static void cv_put_bytes(cv_writer *w, const char *s, size_t n) {
    if (!w->failed && w->capacity - w->n < n) {
        size_t capacity = 0;
        char *p = NULL;
        if (pdi_mul(w->capacity, 2, &capacity) && pdi_add(capacity, n + 4096, &capacity)) p = (char *)malloc(capacity);
        if (p && w->n) memcpy(p, w->p, w->n);
        free(w->p);
        w->p = p;
        w->capacity = capacity;
        w->failed = !p;
    }
    if (w->failed) return;
    memcpy(w->p + w->n, s, n);
    w->n += n;
}

static void cv_put(cv_writer *w, const char *s) { cv_put_bytes(w, s, strlen(s)); }

static void cv_put_number(cv_writer *w, size_t v) {
    char digits[24];
    snprintf(digits, sizeof digits, "%lu", (unsigned long)v);
    cv_put(w, digits);
}

static void cv_put_quoted_bytes(cv_writer *w, prediff_string s) {
    char escape[8];
    size_t i;
    for (i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.bytes[i];
        if (c >= 32 && c != '"' && c != '\\') { cv_put_bytes(w, s.bytes + i, 1); continue; }
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        cv_put(w, escape);
    }
}

static void cv_put_quoted(cv_writer *w, prediff_string s) {
    cv_put(w, "\"");
    cv_put_quoted_bytes(w, s);
    cv_put(w, "\"");
}

static void cv_put_splitting(cv_writer *w, const cv_vocab *v) {
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": ";
    const char *regex = v->spm || strcmp(v->pre, "qwen2") != 0 ? cv_regex_llama3 : cv_regex_qwen2;
    if (v->spm) {
        cv_put(w, "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
        if (v->add_space_prefix) cv_put(w, "{\"type\": \"Prepend\", \"prepend\": \"\xE2\x96\x81\"}, ");
        cv_put(w, "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xE2\x96\x81\"}]},\n");
        cv_put(w, "  \"pre_tokenizer\": null,\n");
        return;
    }
    cv_put(w, "  \"normalizer\": null,\n  \"pre_tokenizer\": ");
    if (strcmp(v->pre, "gpt-2") == 0) { cv_put(w, byte_level); cv_put(w, "true},\n"); return; }
    cv_put(w, "{\"type\": \"Sequence\", \"pretokenizers\": [");
    if (strcmp(v->pre, "smollm") == 0) cv_put(w, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
    else {
        cv_put(w, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        cv_put_quoted(w, cv_str(regex));
        cv_put(w, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    }
    cv_put(w, byte_level);
    cv_put(w, strcmp(v->pre, "smollm") == 0 ? "true}]},\n" : "false}]},\n");
}

/* The library's defaults where a vocabulary is silent. */
static int cv_adds_bos(const cv_vocab *v) {
    int add = v->add_bos >= 0 ? v->add_bos : v->spm || strcmp(v->pre, "llama-bpe") == 0;
    return add && v->bos >= 0;
}

static int cv_adds_eos(const cv_vocab *v) { return v->add_eos > 0 && v->eos >= 0; }

static void cv_put_template_token(cv_writer *w, const cv_vocab *v, int32_t id) {
    cv_put(w, "{\"SpecialToken\": {\"id\": ");
    cv_put_quoted(w, v->tokens[id]);
    cv_put(w, ", \"type_id\": 0}}");
}

static void cv_put_template_entry(cv_writer *w, const cv_vocab *v, int32_t id) {
    cv_put_quoted(w, v->tokens[id]);
    cv_put(w, ": {\"id\": ");
    cv_put_quoted(w, v->tokens[id]);
    cv_put(w, ", \"ids\": [");
    cv_put_number(w, (size_t)id);
    cv_put(w, "], \"tokens\": [");
    cv_put_quoted(w, v->tokens[id]);
    cv_put(w, "]}");
}

static void cv_put_framing(cv_writer *w, const cv_vocab *v) {
    int bos = cv_adds_bos(v), eos = cv_adds_eos(v), k;
    if (!bos && !eos) {
        cv_put(w, v->spm ? "  \"post_processor\": null,\n" : "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                                                         "\"trim_offsets\": false, \"use_regex\": true},\n");
        return;
    }
    cv_put(w, "  \"post_processor\": {\"type\": \"TemplateProcessing\"");
    for (k = 0; k < 2; k++) {
        cv_put(w, k ? ", \"pair\": [" : ", \"single\": [");
        if (bos) { cv_put_template_token(w, v, v->bos); cv_put(w, ", "); }
        cv_put(w, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
        if (k) cv_put(w, ", {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}");
        if (eos) { cv_put(w, ", "); cv_put_template_token(w, v, v->eos); }
        cv_put(w, "]");
    }
    cv_put(w, ", \"special_tokens\": {");
    if (bos) cv_put_template_entry(w, v, v->bos);
    if (bos && eos && v->bos != v->eos) cv_put(w, ", ");
    if (eos && !(bos && v->bos == v->eos)) cv_put_template_entry(w, v, v->eos);
    cv_put(w, "}},\n");
}

static void cv_put_added(cv_writer *w, const cv_vocab *v) {
    size_t i;
    int some = 0;
    cv_put(w, "  \"added_tokens\": [");
    for (i = 0; i < v->n; i++) {
        int32_t type = v->types[i];
        if (type != PDI_TYPE_UNKNOWN && type != PDI_TYPE_CONTROL && type != PDI_TYPE_USER) continue;
        cv_put(w, some++ ? ",\n    {\"id\": " : "\n    {\"id\": ");
        cv_put_number(w, i);
        cv_put(w, ", \"content\": ");
        cv_put_quoted(w, v->tokens[i]);
        cv_put(w, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": ");
        cv_put(w, type == PDI_TYPE_USER ? "false}" : "true}");
    }
    cv_put(w, "],\n");
}

static void cv_put_merge(cv_writer *w, prediff_string left, prediff_string right, int *some) {
    cv_put(w, (*some)++ ? ",\n      [" : "\n      [");
    cv_put_quoted(w, left);
    cv_put(w, ", ");
    cv_put_quoted(w, right);
    cv_put(w, "]");
}

static int cv_better(const void *vocab, uint32_t a, uint32_t c) {
    const float *scores = ((const cv_vocab *)vocab)->scores;
    uint32_t x = pdi_score_rank(pdi_float_bits(&scores[a])), y = pdi_score_rank(pdi_float_bits(&scores[c]));
    return x != y ? x < y : a < c;
}

/* Every split of every ordinary token into two, the best-scored token first; of one token, the longest left half first: where
   two of its splits overlap in a text, joining goes from the left, and what was joined before is longer. */
static int cv_put_score_merges(cv_writer *w, cv_builder *b, int *some) {
    const cv_vocab *v = b->v;
    uint32_t *order = (uint32_t *)cv_alloc(b->pool, v->n, sizeof *order, b->e);
    size_t i, k, n = 0;
    if (!order) return 1;
    for (i = 0; i < v->n; i++) if (v->types[i] == PDI_TYPE_NORMAL) order[n++] = (uint32_t)i;
    pdi_sort(order, n, cv_better, v);
    for (i = 0; i < n; i++) {
        prediff_string s = v->tokens[order[i]], left, right;
        if (s.n > CV_SPM_LONGEST)
            return CV_FAIL(b->e, LIMIT, "token %u has %u bytes; at most %u are written", (uint64_t)order[i], (uint64_t)s.n,
                           (uint64_t)CV_SPM_LONGEST);
        for (k = s.n - 1; k > 0; k--) {
            int32_t l = cv_token(b, s.bytes, k), r = l >= 0 && v->types[l] == PDI_TYPE_NORMAL ? cv_token(b, s.bytes + k, s.n - k) : -1;
            if (r < 0 || v->types[r] != PDI_TYPE_NORMAL) continue;
            left.bytes = s.bytes; left.n = k;
            right.bytes = s.bytes + k; right.n = s.n - k;
            cv_put_merge(w, left, right, some);
        }
    }
    return 0;
}

static int cv_put_model(cv_writer *w, cv_builder *b) {
    const cv_vocab *v = b->v;
    size_t i;
    int some = 0;
    cv_put(w, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ");
    if (v->spm && v->unk >= 0) cv_put_quoted(w, v->tokens[v->unk]);
    else cv_put(w, "null");
    cv_put(w, ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": ");
    cv_put(w, v->spm ? "true,\n    \"byte_fallback\": true" : "false,\n    \"byte_fallback\": false");
    cv_put(w, v->ignore_merges > 0 || (v->ignore_merges < 0 && v->pre && strcmp(v->pre, "llama-bpe") == 0) ? ",\n    \"ignore_merges\": true" : ",\n    \"ignore_merges\": false");
    cv_put(w, ",\n    \"vocab\": {");
    for (i = 0; i < v->n; i++) {
        cv_put(w, i ? ",\n      " : "\n      ");
        cv_put_quoted(w, v->tokens[i]);
        cv_put(w, ": ");
        cv_put_number(w, i);
    }
    cv_put(w, "},\n    \"merges\": [");
    if (v->spm) CV_TRY(cv_put_score_merges(w, b, &some));
    for (i = 0; i < v->n_merges; i++) cv_put_merge(w, v->left[i], v->right[i], &some);
    cv_put(w, "]\n  }\n}\n");
    return 0;
}

static int cv_put_tokenizer(cv_writer *w, cv_builder *b) {
    const cv_vocab *v = b->v;
    cv_put(w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    cv_put_added(w, v);
    cv_put_splitting(w, v);
    cv_put_framing(w, v);
    cv_put(w, "  \"decoder\": ");
    if (!v->spm) cv_put(w, "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n");
    else {
        cv_put(w, "{\"type\": \"Sequence\", \"decoders\": [");
        cv_put(w, "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}");
        cv_put(w, ", {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}");
        cv_put(w, v->add_space_prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},\n" : "]},\n");
    }
    return cv_put_model(w, b);
}

static void cv_put_settings(cv_writer *w, cv_vocab *v) {
    size_t i;
    cv_put(w, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n");
    for (i = 0; i < CV_SPECIALS; i++) {
        int32_t id = *cv_special(v, i);
        if (id < 0 || (size_t)id >= v->n) continue;
        cv_put(w, "  \"");
        cv_put(w, cv_special_names[i]);
        cv_put(w, "\": ");
        cv_put_quoted(w, v->tokens[id]);
        cv_put(w, ",\n");
    }
    cv_put(w, cv_adds_bos(v) ? "  \"add_bos_token\": true,\n" : "  \"add_bos_token\": false,\n");
    cv_put(w, cv_adds_eos(v) ? "  \"add_eos_token\": true,\n" : "  \"add_eos_token\": false,\n");
    cv_put(w, "  \"clean_up_tokenization_spaces\": false\n}\n");
}

/* JSON holds text: tokens must be UTF-8. */
static int cv_all_text(const cv_vocab *v, cv_error *e) {
    size_t i, at, length;
    for (i = 0; i < v->n; i++)
        for (at = 0; at < v->tokens[i].n; at += length) {
            pdi_char_at(v->tokens[i].bytes + at, v->tokens[i].n - at, &length);
            if (length == 1 && (uint8_t)v->tokens[i].bytes[at] >= 128)
                return CV_FAIL_AT(e, TOKEN, i, "token %u is not UTF-8: tokenizer.json cannot hold it", (uint64_t)i);
        }
    return 0;
}

static int cv_vocab_write_folder(cv_pool *p, const cv_vocab *vocab, const char *folder, cv_error *e) {
    cv_vocab v = *vocab;
    cv_builder b;
    cv_writer w;
    int failed;
    memset(&b, 0, sizeof b);
    memset(&w, 0, sizeof w);
    b.pool = p; b.e = e; b.path = "the vocabulary"; b.v = &v;
    if (v.spm && v.add_space_prefix < 0) v.add_space_prefix = 1;
    failed = cv_all_text(&v, e) || cv_index(&b) || cv_put_tokenizer(&w, &b);
    if (!failed && w.failed) failed = CV_FAIL(e, ALLOC, "no memory for %s", "tokenizer.json");
    if (!failed) failed = cv_write_text(p, folder, "tokenizer.json", w.p, w.n, e);
    w.n = 0;
    if (!failed) cv_put_settings(&w, &v);
    if (!failed && w.failed) failed = CV_FAIL(e, ALLOC, "no memory for %s", "tokenizer_config.json");
    if (!failed) failed = cv_write_text(p, folder, "tokenizer_config.json", w.p, w.n, e);
    free(w.p);
    return failed;
}
/* ---- >>CONFIG: config.json to sizes and settings ------------------------------------------------------------------------

   Families name the same thing differently; a field is looked up under all its names. Nothing unknown that changes the
   arithmetic is passed over: it is refused by name. */

typedef enum cv_rope { CV_ROPE_PLAIN, CV_ROPE_LINEAR, CV_ROPE_LLAMA3 } cv_rope;

typedef struct cv_config {
    const struct cv_family *family;
    size_t n_ctx, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_vocab;
    double eps, rope_base, rope_factor, rope_low, rope_high, rope_original;
    cv_rope rope;
    int tied;                          /* 1, 0; -1: not said */
    int32_t bos, eos, pad, mask;       /* -1: none */
    const char *attention;             /* how it was adapted: "hybrid", "bidirectional", "causal"; NULL: it was not */
    int shift;                         /* 1, 0; -1: not said */
    double rate_scale, rate_min, rate_max, noise_scale;
    size_t noise_dim;
    int noise_normal, noise_redraw;
} cv_config;

typedef enum cv_size { CV_ONE, CV_D, CV_V, CV_F, CV_Q, CV_KV, CV_QKV, CV_CTX, CV_4D, CV_N } cv_size;
enum { CV_OPTIONAL = 1, CV_TRANSPOSED = 2, CV_HEADS_Q = 4, CV_HEADS_KV = 8 };

/* One tensor under its name in a checkpoint and in GGUF; % stands for the layer. [rows][cols]; rows CV_ONE: a vector. */
typedef struct cv_map { const char *hf, *gguf; cv_size rows, cols; unsigned flags; } cv_map;

typedef struct cv_family {
    const char *model_type, *architecture, *arch;      /* of config.json, and of GGUF */
    const char *prefixes[3];           /* that a checkpoint may put before a name; the first is written */
    const cv_map *maps;
    size_t n_maps;
    int pairs;                         /* 1: GGUF has rotary pairs (2i, 2i+1) where the checkpoint has (i, i + E/2) */
    int tied;                          /* where config.json does not say: 1, 0 */
    const char *activation;
} cv_family;

/* A linear layer: its weight, and a bias that may be missing. */
#define CV_LINEAR(hf, gguf, rows, cols, flags) \
    { hf ".weight", gguf ".weight", rows, cols, flags }, { hf ".bias", gguf ".bias", CV_ONE, rows, (flags) | CV_OPTIONAL }
#define CV_VECTOR(hf, gguf) { hf, gguf, CV_ONE, CV_D, 0 }

static const cv_map cv_llama_maps[] = {
    { "embed_tokens.weight", "token_embd.weight", CV_V, CV_D, 0 },
    CV_VECTOR("layers.%.input_layernorm.weight", "blk.%.attn_norm.weight"),
    CV_LINEAR("layers.%.self_attn.q_proj", "blk.%.attn_q", CV_Q, CV_D, CV_HEADS_Q),
    CV_LINEAR("layers.%.self_attn.k_proj", "blk.%.attn_k", CV_KV, CV_D, CV_HEADS_KV),
    CV_LINEAR("layers.%.self_attn.v_proj", "blk.%.attn_v", CV_KV, CV_D, 0),
    CV_LINEAR("layers.%.self_attn.o_proj", "blk.%.attn_output", CV_D, CV_Q, 0),
    CV_VECTOR("layers.%.post_attention_layernorm.weight", "blk.%.ffn_norm.weight"),
    CV_LINEAR("layers.%.mlp.gate_proj", "blk.%.ffn_gate", CV_F, CV_D, 0),
    CV_LINEAR("layers.%.mlp.up_proj", "blk.%.ffn_up", CV_F, CV_D, 0),
    CV_LINEAR("layers.%.mlp.down_proj", "blk.%.ffn_down", CV_D, CV_F, 0),
    CV_VECTOR("norm.weight", "output_norm.weight"),
    { "lm_head.weight", "output.weight", CV_V, CV_D, CV_OPTIONAL },
};

static const cv_map cv_llada_maps[] = {
    { "wte.weight", "token_embd.weight", CV_V, CV_D, 0 },
    CV_VECTOR("blocks.%.attn_norm.weight", "blk.%.attn_norm.weight"),
    CV_LINEAR("blocks.%.q_proj", "blk.%.attn_q", CV_Q, CV_D, CV_HEADS_Q),
    CV_LINEAR("blocks.%.k_proj", "blk.%.attn_k", CV_KV, CV_D, CV_HEADS_KV),
    CV_LINEAR("blocks.%.v_proj", "blk.%.attn_v", CV_KV, CV_D, 0),
    CV_LINEAR("blocks.%.attn_out", "blk.%.attn_output", CV_D, CV_Q, 0),
    CV_VECTOR("blocks.%.ff_norm.weight", "blk.%.ffn_norm.weight"),
    CV_LINEAR("blocks.%.ff_proj", "blk.%.ffn_gate", CV_F, CV_D, 0),
    CV_LINEAR("blocks.%.up_proj", "blk.%.ffn_up", CV_F, CV_D, 0),
    CV_LINEAR("blocks.%.ff_out", "blk.%.ffn_down", CV_D, CV_F, 0),
    CV_VECTOR("ln_f.weight", "output_norm.weight"),
    { "ff_out.weight", "output.weight", CV_V, CV_D, CV_OPTIONAL },
};

/* GPT-2's linear layers are Conv1D: stored [in][out]. DiffuGPT calls the token embedding embed_tokens. */
#define CV_CONV(hf, gguf, rows, cols) CV_LINEAR(hf, gguf, rows, cols, CV_TRANSPOSED)
#define CV_NORM(hf, gguf) CV_VECTOR(hf ".weight", gguf ".weight"), CV_VECTOR(hf ".bias", gguf ".bias")
static const cv_map cv_gpt2_maps[] = {
    { "wte.weight", "token_embd.weight", CV_V, CV_D, 0 },
    { "embed_tokens.weight", "token_embd.weight", CV_V, CV_D, 0 },
    { "wpe.weight", "position_embd.weight", CV_CTX, CV_D, 0 },
    CV_NORM("h.%.ln_1", "blk.%.attn_norm"),
    CV_CONV("h.%.attn.c_attn", "blk.%.attn_qkv", CV_QKV, CV_D),
    CV_CONV("h.%.attn.c_proj", "blk.%.attn_output", CV_D, CV_Q),
    CV_NORM("h.%.ln_2", "blk.%.ffn_norm"),
    CV_CONV("h.%.mlp.c_fc", "blk.%.ffn_up", CV_F, CV_D),
    CV_CONV("h.%.mlp.c_proj", "blk.%.ffn_down", CV_D, CV_F),
    CV_NORM("ln_f", "output_norm"),
    { "lm_head.weight", "output.weight", CV_V, CV_D, CV_OPTIONAL },
};

/* What adaptation adds, under the same names on both sides. */
#define CV_ADDED(name, rows, cols) { "prediff." name, "prediff." name, rows, cols, CV_OPTIONAL }
static const cv_map cv_addition_maps[] = {
    CV_ADDED("mask.weight", CV_ONE, CV_D),
    CV_ADDED("rate.0.weight", CV_4D, CV_D), CV_ADDED("rate.0.bias", CV_ONE, CV_4D),
    CV_ADDED("rate.2.weight", CV_D, CV_4D), CV_ADDED("rate.2.bias", CV_ONE, CV_D),
    CV_ADDED("selfcond.weight", CV_D, CV_D), CV_ADDED("selfcond.bias", CV_ONE, CV_D),
    CV_ADDED("noise.0.weight", CV_4D, CV_N), CV_ADDED("noise.0.bias", CV_ONE, CV_4D),
    CV_ADDED("noise.2.weight", CV_D, CV_4D),
};
#define CV_COUNT(a) (sizeof(a) / sizeof *(a))

/* Buffers of a checkpoint that are no weights: causal masks of GPT-2, rotary frequencies. */
static const char *const cv_ignored[] = { "h.%.attn.bias", "h.%.attn.masked_bias", "layers.%.self_attn.rotary_emb.inv_freq",
                                          "rotary_emb.inv_freq", "blocks.%.rotary_emb.inv_freq" };

static const cv_family cv_families[] = {
    { "gpt2", "GPT2LMHeadModel", "gpt2", { "transformer.", "", "denoise_model." }, cv_gpt2_maps, CV_COUNT(cv_gpt2_maps), 0, 1, "gelu_new" },
    { "llama", "LlamaForCausalLM", "llama", { "model.", "", NULL }, cv_llama_maps, CV_COUNT(cv_llama_maps), 1, 0, "silu" },
    { "qwen2", "Qwen2ForCausalLM", "qwen2", { "model.", "", NULL }, cv_llama_maps, CV_COUNT(cv_llama_maps), 0, 0, "silu" },
    { "Dream", "DreamModel", "dream", { "model.", "", NULL }, cv_llama_maps, CV_COUNT(cv_llama_maps), 0, 0, "silu" },
    { "llada", "LLaDAModelLM", "llada", { "model.transformer.", "transformer.", "" }, cv_llada_maps, CV_COUNT(cv_llada_maps), 1, 0, "silu" },
};

static int cv_is_gpt2(const cv_family *f) { return strcmp(f->arch, "gpt2") == 0; }
static int cv_is_diffusion(const cv_family *f) { return strcmp(f->arch, "dream") == 0 || strcmp(f->arch, "llada") == 0; }

static const cv_family *cv_family_of(prediff_string arch) {
    size_t i;
    for (i = 0; i < CV_COUNT(cv_families); i++) if (pdi_str_is(arch, cv_families[i].arch)) return &cv_families[i];
    return NULL;
}

/* -- reading fields: names is a list of synonyms separated by blanks; a JSON null counts as absent -- */

typedef struct cv_fields { const cv_json *j; const cv_node *object; cv_error *e; } cv_fields;

static const cv_node *cv_lookup(const cv_fields *f, const char *names) {
    char name[64];
    while (*names) {
        size_t n = strcspn(names, " ");
        const cv_node *v;
        memcpy(name, names, n);
        name[n] = 0;
        v = cv_field(f->j, f->object, name);
        if (v) return v;
        names += n + (names[n] == ' ');
    }
    return NULL;
}

/* A size from 1 to most; absent: *out stays, or an error where that is 0. */
static int cv_config_size(const cv_fields *f, const char *names, uint64_t most, size_t *out) {
    const cv_node *v = cv_lookup(f, names);
    int64_t i;
    if (!v) return *out ? 0 : CV_FAIL(f->e, FIELD, "%s: none of %s is there", f->j->path, names);
    CV_TRY(cv_get_int(f->j, v, &i, f->e));
    if (i < 1 || (uint64_t)i > most) return CV_FAIL_AT(f->e, FIELD, v->at, "%s: %S is %i; 1 to %u are possible", f->j->path, &v[-1].text, i, most);
    *out = (size_t)i;
    return 0;
}

static int cv_config_number(const cv_fields *f, const char *names, double *out) {
    const cv_node *v = cv_lookup(f, names);
    return v ? cv_get_double(f->j, v, out, f->e) : 0;
}

static int cv_config_flag(const cv_fields *f, const char *name, int *out) {
    const cv_node *v = cv_lookup(f, name);
    if (!v) return 0;
    if (v->kind != CV_BOOL) return CV_FAIL_AT(f->e, JSON_TYPE, v->at, "%s: %s must be true or false", f->j->path, name);
    *out = v->truth;
    return 0;
}

static int cv_config_text(const cv_fields *f, const char *names, prediff_string *out) {
    const cv_node *v = cv_lookup(f, names);
    if (!v) return 0;
    if (v->kind != CV_STRING) return CV_FAIL_AT(f->e, JSON_TYPE, v->at, "%s: %s must be a string", f->j->path, names);
    *out = v->text;
    return 0;
}

/* A token id; of a list (several ends of text) the first. */
static int cv_config_id(const cv_fields *f, const char *name, int32_t *out) {
    const cv_node *v = cv_lookup(f, name);
    int64_t i;
    if (v && v->kind == CV_ARRAY && v->count) v = cv_first(v);
    if (!v || v->kind == CV_ARRAY) return 0;
    CV_TRY(cv_get_int(f->j, v, &i, f->e));
    if (i < -1 || i > INT32_MAX) return CV_FAIL_AT(f->e, FIELD, v->at, "%s: %s is %i", f->j->path, name, i);
    *out = (int32_t)i;
    return 0;
}

/* A setting that must have one value to be the model we run. */
static int cv_must_be(const cv_fields *f, const char *name, int wanted) {
    int is = wanted;
    CV_TRY(cv_config_flag(f, name, &is));
    return is == wanted ? 0 : CV_FAIL(f->e, UNSUPPORTED, "%s: %s is %s, which is not supported", f->j->path, name, is ? "true" : "false");
}

/* Rotary scaling, in rope_scaling (old: type for rope_type) or rope_parameters (which holds rope_theta too). */
static int cv_config_rope(const cv_fields *f, cv_config *c) {
    cv_fields s = *f;
    prediff_string kind = { "default", 7 };
    double partial = 1;
    c->rope_base = 10000;
    c->rope_low = c->rope_high = c->rope_original = 0;
    CV_TRY(cv_config_number(f, "rope_theta", &c->rope_base));
    CV_TRY(cv_config_number(f, "partial_rotary_factor", &partial));
    s.object = cv_lookup(f, "rope_scaling rope_parameters");
    if (s.object && s.object->kind != CV_OBJECT) return CV_FAIL_AT(f->e, JSON_TYPE, s.object->at, "%s: rope_scaling must be an object", f->j->path);
    if (s.object) {
        CV_TRY(cv_config_number(&s, "rope_theta", &c->rope_base));
        CV_TRY(cv_config_number(&s, "partial_rotary_factor", &partial));
        CV_TRY(cv_config_text(&s, "rope_type type", &kind));
    }
    if (!(c->rope_base > 0)) return CV_FAIL(f->e, FIELD, "%s: rope_theta must be above 0", f->j->path);
    if (partial < 1 || partial > 1) return CV_FAIL(f->e, UNSUPPORTED, "%s: partial_rotary_factor is not supported", f->j->path);
    if (pdi_str_is(kind, "default")) return 0;
    if (pdi_str_is(kind, "linear")) c->rope = CV_ROPE_LINEAR;
    else if (pdi_str_is(kind, "llama3")) c->rope = CV_ROPE_LLAMA3;
    else return CV_FAIL(f->e, UNSUPPORTED, "%s: rotary scaling '%S' is not supported; linear and llama3 are", f->j->path, &kind);
    CV_TRY(cv_config_number(&s, "factor", &c->rope_factor));
    CV_TRY(cv_config_number(&s, "low_freq_factor", &c->rope_low));
    CV_TRY(cv_config_number(&s, "high_freq_factor", &c->rope_high));
    CV_TRY(cv_config_number(&s, "original_max_position_embeddings", &c->rope_original));
    if (!(c->rope_factor > 0)) return CV_FAIL(f->e, FIELD, "%s: rotary scaling '%S' without its factor", f->j->path, &kind);
    if (c->rope == CV_ROPE_LLAMA3 && !(c->rope_low > 0 && c->rope_high > c->rope_low && c->rope_original > 0))
        return CV_FAIL(f->e, FIELD, "%s: rotary scaling llama3 needs low_freq_factor, high_freq_factor and original_max_position_embeddings", f->j->path);
    return 0;
}

/* What the additions were trained with: the object "prediff". */
static int cv_config_additions(const cv_fields *f, cv_config *c) {
    static const char *const attention[] = { "hybrid", "bidirectional", "causal" };
    prediff_string s = { "hybrid", 6 }, distribution = { "uniform", 7 }, lifetime = { "fixed", 5 };
    cv_fields p = *f;
    size_t i, version = 1;
    c->rate_scale = c->noise_scale = 1;
    c->rate_min = 0;
    c->rate_max = 1;
    p.object = cv_lookup(f, "prediff");
    if (!p.object) return 0;
    if (p.object->kind != CV_OBJECT) return CV_FAIL_AT(f->e, JSON_TYPE, p.object->at, "%s: prediff must be an object", f->j->path);
    CV_TRY(cv_config_size(&p, "version", 1, &version));
    CV_TRY(cv_config_text(&p, "attention", &s));
    for (i = 0; i < CV_COUNT(attention); i++) if (pdi_str_is(s, attention[i])) c->attention = attention[i];
    if (!c->attention) return CV_FAIL(f->e, UNSUPPORTED, "%s: prediff.attention is '%S'; hybrid, bidirectional and causal are known", f->j->path, &s);
    CV_TRY(cv_config_flag(&p, "shift_logits", &c->shift));
    CV_TRY(cv_config_number(&p, "rate.scale", &c->rate_scale));
    CV_TRY(cv_config_number(&p, "rate.min", &c->rate_min));
    CV_TRY(cv_config_number(&p, "rate.max", &c->rate_max));
    CV_TRY(cv_config_number(&p, "noise.scale", &c->noise_scale));
    CV_TRY(cv_config_text(&p, "noise.distribution", &distribution));
    CV_TRY(cv_config_text(&p, "noise.lifetime", &lifetime));
    c->noise_normal = pdi_str_is(distribution, "normal");
    c->noise_redraw = pdi_str_is(lifetime, "redraw");
    if (!c->noise_normal && !pdi_str_is(distribution, "uniform")) return CV_FAIL(f->e, UNSUPPORTED, "%s: prediff.noise.distribution is '%S'", f->j->path, &distribution);
    if (!c->noise_redraw && !pdi_str_is(lifetime, "fixed")) return CV_FAIL(f->e, UNSUPPORTED, "%s: prediff.noise.lifetime is '%S'", f->j->path, &lifetime);
    if (!(c->rate_min <= c->rate_max)) return CV_FAIL(f->e, FIELD, "%s: prediff.rate.min is above rate.max", f->j->path);
    return 0;
}

/* Settings of a family that would change the arithmetic. */
static int cv_config_refuse(const cv_fields *f, const cv_family *family) {
    prediff_string act = cv_str(family->activation), norm = { "rms", 3 }, block = { "llama", 5 };
    CV_TRY(cv_config_text(f, "hidden_act activation_function activation_type", &act));
    if (!pdi_str_is(act, family->activation) && !(strcmp(family->activation, "gelu_new") == 0 && pdi_str_is(act, "gelu_pytorch_tanh")))
        return CV_FAIL(f->e, UNSUPPORTED, "%s: hidden_act '%S' is not supported for %s; %s is", f->j->path, &act, family->model_type, family->activation);
    CV_TRY(cv_config_text(f, "layer_norm_type", &norm));
    CV_TRY(cv_config_text(f, "block_type", &block));
    if (!pdi_str_is(norm, "rms")) return CV_FAIL(f->e, UNSUPPORTED, "%s: layer_norm_type '%S' is not supported; rms is", f->j->path, &norm);
    if (!pdi_str_is(block, "llama")) return CV_FAIL(f->e, UNSUPPORTED, "%s: block_type '%S' is not supported; llama is", f->j->path, &block);
    CV_TRY(cv_must_be(f, "rope", 1));
    CV_TRY(cv_must_be(f, "alibi", 0));
    CV_TRY(cv_must_be(f, "use_sliding_window", 0));
    CV_TRY(cv_must_be(f, "scale_attn_weights", 1));
    CV_TRY(cv_must_be(f, "scale_attn_by_inverse_layer_idx", 0));
    CV_TRY(cv_must_be(f, "add_cross_attention", 0));
    CV_TRY(cv_must_be(f, "scale_logits", 0));
    CV_TRY(cv_must_be(f, "attention_layer_norm", 0));
    return 0;
}

static int cv_config_sizes(const cv_fields *f, cv_config *c) {
    const uint64_t width = 1 << 20;
    CV_TRY(cv_config_size(f, "hidden_size n_embd d_model", width, &c->n_embd));
    CV_TRY(cv_config_size(f, "num_hidden_layers n_layer n_layers", 1024, &c->n_layer));
    CV_TRY(cv_config_size(f, "num_attention_heads n_head n_heads", width, &c->n_head));
    CV_TRY(cv_config_size(f, "max_position_embeddings n_positions max_sequence_length n_ctx", 1u << 22, &c->n_ctx));
    CV_TRY(cv_config_size(f, "vocab_size", 1u << 22, &c->n_vocab));
    c->n_head_kv = c->n_head;
    c->n_ff = cv_is_gpt2(c->family) ? 4 * c->n_embd : 0;
    CV_TRY(cv_config_size(f, "num_key_value_heads n_kv_heads", width, &c->n_head_kv));
    CV_TRY(cv_config_size(f, "intermediate_size n_inner mlp_hidden_size", width, &c->n_ff));
    if (c->n_embd % c->n_head == 0) c->head_dim = c->n_embd / c->n_head;
    CV_TRY(cv_config_size(f, "head_dim", 65536, &c->head_dim));
    if (c->n_head % c->n_head_kv)
        return CV_FAIL(f->e, FIELD, "%s: %u heads are not a multiple of %u key/value heads", f->j->path, (uint64_t)c->n_head, (uint64_t)c->n_head_kv);
    if (c->head_dim % 2 || c->n_embd % 2) return CV_FAIL(f->e, FIELD, "%s: odd sizes are not supported", f->j->path);
    if (c->n_head > width / c->head_dim) return CV_FAIL(f->e, FIELD, "%s: %u heads of %u are too wide", f->j->path, (uint64_t)c->n_head, (uint64_t)c->head_dim);
    return 0;
}

static const cv_family *cv_config_family(const cv_fields *f, prediff_string *said) {
    const cv_node *list = cv_lookup(f, "architectures");
    size_t i;
    if (cv_config_text(f, "model_type", said)) return NULL;
    if (!said->n && list && list->kind == CV_ARRAY && list->count && cv_first(list)->kind == CV_STRING) *said = cv_first(list)->text;
    for (i = 0; i < CV_COUNT(cv_families); i++)
        if (pdi_str_is(*said, cv_families[i].model_type) || pdi_str_is(*said, cv_families[i].architecture)) return &cv_families[i];
    if (said->n) CV_FAIL(f->e, UNSUPPORTED, "%s: model_type '%S' is not supported; gpt2, llama, qwen2, Dream and llada are", f->j->path, said);
    else CV_FAIL(f->e, FIELD, "%s: model_type is missing", f->j->path);
    return NULL;
}

static int cv_config_read(cv_pool *p, const char *path, char *text, size_t n, cv_config *c, cv_error *e) {
    prediff_string said = { "", 0 };
    cv_json j;
    cv_fields f;
    memset(c, 0, sizeof *c);
    CV_TRY(cv_json_parse(p, path, text, n, &j, e));
    f.j = &j; f.object = j.nodes; f.e = e;
    if (j.nodes->kind != CV_OBJECT) return CV_FAIL(e, JSON_TYPE, "%s: a config is an object", path);
    c->family = cv_config_family(&f, &said);
    if (!c->family) return 1;
    c->tied = c->shift = -1;
    c->bos = c->eos = c->pad = c->mask = -1;
    c->eps = 1e-5;
    c->rope_factor = 0;
    CV_TRY(cv_config_refuse(&f, c->family));
    CV_TRY(cv_config_sizes(&f, c));
    CV_TRY(cv_config_number(&f, "rms_norm_eps layer_norm_epsilon", &c->eps));
    if (!(c->eps > 0 && c->eps < 1)) return CV_FAIL(e, FIELD, "%s: the norm's epsilon must lie between 0 and 1", path);
    if (!cv_is_gpt2(c->family)) CV_TRY(cv_config_rope(&f, c));
    CV_TRY(cv_config_flag(&f, "tie_word_embeddings", &c->tied));
    CV_TRY(cv_config_flag(&f, "weight_tying", &c->tied));
    CV_TRY(cv_config_id(&f, "bos_token_id", &c->bos));
    CV_TRY(cv_config_id(&f, "eos_token_id", &c->eos));
    CV_TRY(cv_config_id(&f, "pad_token_id", &c->pad));
    CV_TRY(cv_config_id(&f, "mask_token_id", &c->mask));
    CV_TRY(cv_config_additions(&f, c));
    if (c->shift < 0 && !c->attention && cv_is_diffusion(c->family)) c->shift = strcmp(c->family->arch, "dream") == 0;
    return 0;
}

/* How much slower Llama 3 turns rotary pair i of a head (its rope_freqs.weight): long waves by the whole factor, short ones
   not at all, those between by a blend. */
static double cv_llama3_divisor(const cv_config *c, size_t i) {
    double wave = 6.283185307179586 * pow(c->rope_base, 2.0 * (double)i / (double)c->head_dim), blend;
    if (wave < c->rope_original / c->rope_high) return 1;
    if (wave > c->rope_original / c->rope_low) return c->rope_factor;
    blend = (c->rope_original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    return 1.0 / ((1.0 - blend) / c->rope_factor + blend);
}

/* -- config to GGUF keys -- */

static int cv_arch_key_u32(cv_pool *p, cv_keys *k, const cv_config *c, const char *suffix, size_t v, cv_error *e) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", c->family->arch, suffix);
    return cv_key_u32(p, k, name, (uint32_t)v, e);
}

static int cv_arch_key_f32(cv_pool *p, cv_keys *k, const cv_config *c, const char *suffix, double v, cv_error *e) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", c->family->arch, suffix);
    return cv_key_f32(p, k, name, (float)v, e);
}

static int cv_addition_keys(cv_pool *p, const cv_config *c, cv_keys *k, cv_error *e) {
    if (c->shift >= 0) CV_TRY(cv_key_bool(p, k, "diffusion.shift_logits", c->shift, e));
    if (!c->attention) return 0;
    CV_TRY(cv_key_u32(p, k, "prediff.version", 1, e));
    CV_TRY(cv_key_string(p, k, "prediff.attention", cv_str(c->attention), e));
    CV_TRY(cv_key_f32(p, k, "prediff.rate.scale", (float)c->rate_scale, e));
    if (c->rate_min > 0) CV_TRY(cv_key_f32(p, k, "prediff.rate.min", (float)c->rate_min, e));
    if (c->rate_max < 1) CV_TRY(cv_key_f32(p, k, "prediff.rate.max", (float)c->rate_max, e));
    if (!c->noise_dim) return 0;
    CV_TRY(cv_key_u32(p, k, "prediff.noise.dim", (uint32_t)c->noise_dim, e));
    CV_TRY(cv_key_f32(p, k, "prediff.noise.scale", (float)c->noise_scale, e));
    CV_TRY(cv_key_string(p, k, "prediff.noise.distribution", cv_str(c->noise_normal ? "normal" : "uniform"), e));
    return cv_key_string(p, k, "prediff.noise.lifetime", cv_str(c->noise_redraw ? "redraw" : "fixed"), e);
}

static int cv_config_keys(cv_pool *p, const cv_config *c, const char *name, cv_keys *k, cv_error *e) {
    char key[64];
    int gpt2 = cv_is_gpt2(c->family);
    CV_TRY(cv_key_string(p, k, "general.architecture", cv_str(c->family->arch), e));
    CV_TRY(cv_key_string(p, k, "general.name", cv_str(name), e));
    CV_TRY(cv_arch_key_u32(p, k, c, ".context_length", c->n_ctx, e));
    CV_TRY(cv_arch_key_u32(p, k, c, ".embedding_length", c->n_embd, e));
    CV_TRY(cv_arch_key_u32(p, k, c, ".block_count", c->n_layer, e));
    CV_TRY(cv_arch_key_u32(p, k, c, ".feed_forward_length", c->n_ff, e));
    CV_TRY(cv_arch_key_u32(p, k, c, ".attention.head_count", c->n_head, e));
    CV_TRY(cv_arch_key_f32(p, k, c, gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", c->eps, e));
    if (!gpt2) {
        CV_TRY(cv_arch_key_u32(p, k, c, ".vocab_size", c->n_vocab, e));
        CV_TRY(cv_arch_key_u32(p, k, c, ".attention.head_count_kv", c->n_head_kv, e));
        CV_TRY(cv_arch_key_u32(p, k, c, ".rope.dimension_count", c->head_dim, e));
        CV_TRY(cv_arch_key_f32(p, k, c, ".rope.freq_base", c->rope_base, e));
        if (c->head_dim * c->n_head != c->n_embd) {
            CV_TRY(cv_arch_key_u32(p, k, c, ".attention.key_length", c->head_dim, e));
            CV_TRY(cv_arch_key_u32(p, k, c, ".attention.value_length", c->head_dim, e));
        }
        if (c->rope == CV_ROPE_LINEAR) {
            snprintf(key, sizeof key, "%s.rope.scaling.type", c->family->arch);
            CV_TRY(cv_key_string(p, k, key, cv_str("linear"), e));
            CV_TRY(cv_arch_key_f32(p, k, c, ".rope.scaling.factor", c->rope_factor, e));
        }
    }
    if (cv_is_diffusion(c->family)) {
        snprintf(key, sizeof key, "%s.attention.causal", c->family->arch);
        CV_TRY(cv_key_bool(p, k, key, 0, e));
    }
    return cv_addition_keys(p, c, k, e);
}

/* ---- >>SOURCE: where the rows of each tensor come from ------------------------------------------------------------------

   A source is a list of tensors under their GGUF names, GGUF keys, and a vocabulary. Rows are read from their files when
   they are asked for, turned into floats, and put into the order GGUF wants. */

typedef struct cv_options {
    const char *in, *out, *tokenizer, *add;
    uint32_t type; int has_type;       /* asked for; else each tensor keeps its own */
    const char *keep[16]; size_t n_keep;
    int32_t mask_token;                /* -1: not given */
    int hf, strip, dry_run, verbose, quiet, force;
} cv_options;

typedef struct cv_part {               /* one tensor: [dims[1]][dims[0]] */
    prediff_tensor t;                  /* name, shape, and the type it has in its file; data NULL */
    cv_file *file; uint64_t at; size_t row_bytes;      /* the file's rows; file NULL: values */
    const float *values;
    prediff_string from;               /* its name in the source, where that is another */
    size_t heads;                      /* > 0: of each head's rows, the halves become pairs; back: the pairs halves */
    int back, transposed;              /* transposed: the file holds [dims[0]][dims[1]] */
    unsigned small;                    /* 1: stays F32 whatever type is asked for */
} cv_part;

typedef struct cv_source {
    cv_config config;                  /* family NULL: a GGUF whose keys are taken over */
    cv_part *parts; size_t n, capacity;
    cv_keys keys;
    cv_weights weights, added;         /* open files of safetensors */
    cv_file file;                      /* of a .bin or .gguf */
    prediff_model *gguf;
    cv_vocab vocab; int has_vocab;
    const char *name;
    int quiet;
    uint8_t *whole; size_t whole_of;   /* a transposed tensor, and its index + 1 */
    uint8_t *row_buffer; float *turned;        /* one row */
} cv_source;

static void cv_source_close(cv_source *s) {
    cv_weights_close(&s->weights);
    cv_weights_close(&s->added);
    cv_close(&s->file);
    prediff_model_close(s->gguf);
    free(s->whole);
}

/* A remark on standard error; fmt as in cv_fail_at. */
static void cv_note(int quiet, const char *fmt, ...) {
    char line[320];
    va_list ap;
    va_start(ap, fmt);
    pdi_format(line, sizeof line, fmt, ap);
    va_end(ap);
    if (!quiet) fprintf(stderr, "prediff-convert: %s\n", line);
}

/* -- rows -- */

/* Row r of the target is which row of the source? Halves to pairs within each head (rotary embedding). */
static size_t cv_turn(const cv_part *p, size_t rows, size_t r) {
    size_t e, i;
    if (!p->heads) return r;
    e = rows / p->heads;
    i = r % e;
    return r - i + (p->back ? (i < e / 2 ? 2 * i : 2 * (i - e / 2) + 1) : i / 2 + (i % 2 ? e / 2 : 0));
}

static void cv_elements(uint32_t type, const uint8_t *from, float *to, size_t n) { pdi_kernels_scalar()->dequantize(type, from, to, n); }

/* A transposed tensor read whole, once: as it is, or of a block type as floats. */
static int cv_read_whole(cv_source *s, size_t i, cv_error *e) {
    const cv_part *p = &s->parts[i];
    size_t lines = (size_t)p->t.dims[0], length = (size_t)p->t.dims[1], k, bytes = p->t.data_size;
    if (s->whole_of == i + 1) return 0;
    free(s->whole);
    s->whole_of = 0;
    s->whole = NULL;
    if (pdi_type_of(p->t.type)->block == 1 || (pdi_mul(lines, length, &bytes) && pdi_mul(bytes, sizeof(float), &bytes))) s->whole = (uint8_t *)malloc(bytes);
    if (!s->whole) return CV_FAIL(e, ALLOC, "no memory for tensor '%S' (%u bytes)", &p->t.name, (uint64_t)bytes);
    if (pdi_type_of(p->t.type)->block == 1) CV_TRY(cv_read_at(p->file, p->at, s->whole, bytes, e));
    for (k = 0; pdi_type_of(p->t.type)->block > 1 && k < lines; k++) {
        CV_TRY(cv_read_at(p->file, p->at + (uint64_t)k * p->row_bytes, s->row_buffer, p->row_bytes, e));
        cv_elements(p->t.type, s->row_buffer, (float *)(void *)s->whole + k * length, length);
    }
    s->whole_of = i + 1;
    return 0;
}

/* A column of a tensor that is stored the other way round. */
static int cv_read_column(cv_source *s, size_t i, size_t r, float *out, cv_error *e) {
    const cv_part *p = &s->parts[i];
    size_t rows = (size_t)p->t.dims[1], cols = (size_t)p->t.dims[0], k;
    const pdi_type_info *type = pdi_type_of(p->t.type);
    size_t size = type->block == 1 ? type->bytes : sizeof(float);
    uint8_t *to = type->block == 1 ? s->row_buffer : (uint8_t *)out;
    CV_TRY(cv_read_whole(s, i, e));
    for (k = 0; k < cols; k++) memcpy(to + k * size, s->whole + (k * rows + r) * size, size);
    if (type->block == 1) cv_elements(p->t.type, s->row_buffer, out, cols);
    if (r + 1 == rows) { free(s->whole); s->whole = NULL; s->whole_of = 0; }
    return 0;
}

/* Row r of tensor i as floats. */
static int cv_read_row(cv_source *s, size_t i, size_t r, float *out, cv_error *e) {
    const cv_part *p = &s->parts[i];
    size_t n = (size_t)p->t.dims[0], rows = (size_t)p->t.dims[1], k;
    if (!p->file) { memcpy(out, p->values + r * n, n * sizeof *out); return 0; }
    if (p->transposed) return cv_read_column(s, i, r, out, e);
    CV_TRY(cv_read_at(p->file, p->at + (uint64_t)(rows > 1 ? cv_turn(p, rows, r) : r) * p->row_bytes, s->row_buffer, p->row_bytes, e));
    if (!p->heads || rows > 1) { cv_elements(p->t.type, s->row_buffer, out, n); return 0; }
    cv_elements(p->t.type, s->row_buffer, s->turned, n);        /* a bias: its elements are turned */
    for (k = 0; k < n; k++) out[k] = s->turned[cv_turn(p, n, k)];
    return 0;
}

/* Buffers for the longest row. */
static int cv_source_ready(cv_source *s, cv_pool *pool, cv_error *e) {
    size_t i, bytes = 1, floats = 1;
    for (i = 0; i < s->n; i++) {
        bytes = pdi_max(bytes, pdi_max(s->parts[i].row_bytes, 4 * (size_t)s->parts[i].t.dims[0]));
        floats = pdi_max(floats, (size_t)s->parts[i].t.dims[0]);
    }
    s->row_buffer = (uint8_t *)cv_alloc(pool, bytes, 1, e);
    s->turned = (float *)cv_alloc(pool, floats, sizeof(float), e);
    return !s->row_buffer || !s->turned;
}

/* -- the list -- */

static cv_part *cv_add_part(cv_source *s, cv_pool *pool, const char *name, size_t rows, size_t cols, cv_error *e) {
    size_t n = strlen(name);
    cv_part *p;
    if (s->n == s->capacity) {
        size_t more = s->capacity ? 2 * s->capacity : 256;
        cv_part *larger = (cv_part *)cv_alloc(pool, more, sizeof *larger, e);
        if (!larger) return NULL;
        if (s->n) memcpy(larger, s->parts, s->n * sizeof *larger);
        s->parts = larger;
        s->capacity = more;
    }
    p = &s->parts[s->n];
    memset(p, 0, sizeof *p);
    p->t.name.bytes = cv_copy(pool, name, n, e);
    if (!p->t.name.bytes) return NULL;
    p->t.name.n = n;
    p->t.n_dims = rows ? 2 : 1;
    p->t.dims[0] = cols; p->t.dims[1] = rows ? rows : 1; p->t.dims[2] = p->t.dims[3] = 1;
    p->small = !rows || strcmp(name, "position_embd.weight") == 0;
    s->n++;
    return p;
}

static const cv_part *cv_find_part(const cv_source *s, const char *name) {
    size_t i;
    for (i = s->n; i-- > 0;) if (pdi_str_is(s->parts[i].t.name, name)) return &s->parts[i];
    return NULL;
}

/* Rotary divisors of Llama 3 as a tensor, computed here. */
static int cv_add_rope_freqs(cv_source *s, cv_pool *pool, cv_error *e) {
    size_t i, half = s->config.head_dim / 2;
    float *v;
    cv_part *p;
    if (s->config.rope != CV_ROPE_LLAMA3) return 0;
    v = (float *)cv_alloc(pool, half, sizeof *v, e);
    p = v ? cv_add_part(s, pool, "rope_freqs.weight", 0, half, e) : NULL;
    if (!p) return 1;
    for (i = 0; i < half; i++) v[i] = (float)cv_llama3_divisor(&s->config, i);
    p->values = v;
    p->t.type = PREDIFF_F32;
    return 0;
}

/* -- checkpoints of safetensors -- */

/* "blk.%.attn_q.weight" for a layer. */
static void cv_layer_name(const char *pattern, size_t layer, const char *prefix, char out[160]) {
    const char *star = strchr(pattern, '%');
    if (star) snprintf(out, 160, "%s%.*s%u%s", prefix, (int)(star - pattern), pattern, (unsigned)layer, star + 1);
    else snprintf(out, 160, "%s%s", prefix, pattern);
}

static size_t cv_size_of(const cv_config *c, cv_size s) {
    size_t q = c->n_head * c->head_dim, kv = c->n_head_kv * c->head_dim;
    switch (s) {
    case CV_ONE: return 0;
    case CV_D: return c->n_embd;
    case CV_V: return c->n_vocab;
    case CV_F: return c->n_ff;
    case CV_Q: return q;
    case CV_KV: return kv;
    case CV_QKV: return q + 2 * kv;
    case CV_CTX: return c->n_ctx;
    case CV_4D: return 4 * c->n_embd;
    case CV_N: return c->noise_dim;
    }
    return 0;
}

/* Is the tensor's shape in its file what the model needs? A vocabulary may be padded; the noise size is the tensor's own. */
static int cv_fit_shape(cv_source *s, const cv_map *m, const cv_tensor *t, const char *path, cv_error *e) {
    cv_config *c = &s->config;
    int swap = (m->flags & CV_TRANSPOSED) && m->rows != CV_ONE;
    uint64_t rows = t->n_dims == 2 ? t->dims[swap] : 0, cols = t->n_dims == 2 ? t->dims[!swap] : t->n_dims == 1 ? t->dims[0] : 0;
    if (m->cols == CV_N && !c->noise_dim && cols <= 1u << 20) c->noise_dim = (size_t)cols;
    if (m->rows == CV_V && strcmp(m->gguf, "token_embd.weight") == 0 && rows > c->n_vocab && rows <= 1u << 22) c->n_vocab = (size_t)rows;
    if (rows == cv_size_of(c, m->rows) && cols == cv_size_of(c, m->cols) && cols > 0) return 0;
    return CV_FAIL(e, SHAPE, "%s: tensor '%S' is [%u][%u], the config wants [%u][%u]", path, &t->name, swap ? cols : rows, swap ? rows : cols,
                   (uint64_t)cv_size_of(c, swap ? m->cols : m->rows), (uint64_t)cv_size_of(c, swap ? m->rows : m->cols));
}

static const cv_tensor *cv_find_mapped(const cv_weights *w, const cv_family *f, const cv_map *m, size_t layer, size_t *prefix) {
    char name[160];
    for (*prefix = 0; *prefix < 3; ++*prefix) {
        const cv_tensor *t;
        if (f->prefixes[*prefix] == NULL) break;
        cv_layer_name(m->hf, layer, f->prefixes[*prefix], name);
        t = cv_find(w, name);
        if (t) return t;
    }
    *prefix = 3;
    cv_layer_name(m->hf, layer, "", name);
    return cv_find(w, name);
}

/* Adds the tensor of map m and layer if the checkpoint has it. `used` marks what was taken. */
static int cv_take_tensor(cv_source *s, cv_pool *pool, const cv_weights *w, const cv_map *m, size_t layer, uint8_t *used, cv_error *e) {
    const cv_config *c = &s->config;
    const cv_family *f = c->family;
    char name[160];
    size_t prefix;
    const cv_tensor *t = cv_find_mapped(w, f, m, layer, &prefix);
    cv_part *p;
    cv_layer_name(m->gguf, layer, "", name);
    if (!t || cv_find_part(s, name)) return 0;
    used[t - w->tensors] = 1;
    if (t->type != PREDIFF_F32 && t->type != PREDIFF_F16 && t->type != PREDIFF_BF16)
        return CV_FAIL(e, DTYPE, "%s: tensor '%S' is %S; F32, F16 and BF16 are read", w->files[t->file].path, &t->name, &t->dtype);
    CV_TRY(cv_fit_shape(s, m, t, w->files[t->file].path, e));
    p = cv_add_part(s, pool, name, cv_size_of(c, m->rows), cv_size_of(c, m->cols), e);
    if (!p) return 1;
    p->t.type = t->type;
    p->t.data_size = (size_t)t->size;
    p->file = &w->files[t->file];
    p->from = t->name;
    p->at = t->begin;
    p->row_bytes = (size_t)p->t.dims[0] * pdi_type_of(t->type)->bytes;
    p->transposed = (m->flags & CV_TRANSPOSED) && m->rows != CV_ONE;
    if (f->pairs && m->flags & (CV_HEADS_Q | CV_HEADS_KV)) p->heads = m->flags & CV_HEADS_Q ? c->n_head : c->n_head_kv;
    if (cv_is_gpt2(f) && prefix < 3 && strcmp(f->prefixes[prefix], "denoise_model.") == 0 && !c->attention) {
        s->config.attention = "bidirectional";                  /* DiffuGPT (Gong et al. 2025): everything sees everything, row i predicts i + 1 */
        s->config.shift = 1;
    }
    return 0;
}

/* "h.%.attn.bias" against a name, % being a number. */
static int cv_matches(const char *pattern, const char *name, size_t n) {
    size_t before = strcspn(pattern, "%"), digits = 0, after;
    if (!pattern[before]) return n == before && memcmp(name, pattern, n) == 0;
    after = strlen(pattern + before + 1);
    if (n < before + after + 1 || memcmp(name, pattern, before) != 0) return 0;
    while (before + digits < n && name[before + digits] >= '0' && name[before + digits] <= '9') digits++;
    return digits > 0 && n == before + digits + after && memcmp(name + n - after, pattern + before + 1, after) == 0;
}

static int cv_is_ignored(const cv_family *f, prediff_string name) {
    size_t i, k;
    for (k = 0; k < 3 && f->prefixes[k]; k++) {
        size_t skip = strlen(f->prefixes[k]);
        if (name.n < skip || memcmp(name.bytes, f->prefixes[k], skip) != 0) continue;
        for (i = 0; i < CV_COUNT(cv_ignored); i++) if (cv_matches(cv_ignored[i], name.bytes + skip, name.n - skip)) return 1;
    }
    return 0;
}

/* Every tensor of the family's list, in its order; then nothing may be left that we do not know. */
static int cv_take_model(cv_source *s, cv_pool *pool, cv_error *e) {
    const cv_family *f = s->config.family;
    const cv_weights *w = &s->weights;
    uint8_t *used = (uint8_t *)cv_alloc(pool, w->n + 1, 1, e);
    size_t i, layer;
    char name[160];
    if (!used) return 1;
    for (i = 0; i < f->n_maps; i++) if (!strchr(f->maps[i].gguf, '%')) CV_TRY(cv_take_tensor(s, pool, w, &f->maps[i], 0, used, e));
    for (layer = 0; layer < s->config.n_layer; layer++)
        for (i = 0; i < f->n_maps; i++) if (strchr(f->maps[i].gguf, '%')) CV_TRY(cv_take_tensor(s, pool, w, &f->maps[i], layer, used, e));
    for (i = 0; i < CV_COUNT(cv_addition_maps); i++) CV_TRY(cv_take_tensor(s, pool, w, &cv_addition_maps[i], 0, used, e));
    for (i = 0; i < w->n; i++)
        if (!used[i] && !cv_is_ignored(f, w->tensors[i].name))
            return CV_FAIL(e, TENSOR, "%s: tensor '%S' is not part of a %s model we know", w->files[w->tensors[i].file].path, &w->tensors[i].name, f->model_type);
    for (i = 0; i < f->n_maps; i++)
        for (layer = 0; layer < (strchr(f->maps[i].gguf, '%') ? s->config.n_layer : 1); layer++) {
            cv_layer_name(f->maps[i].gguf, layer, "", name);
            if (f->maps[i].flags & CV_OPTIONAL || cv_find_part(s, name)) continue;
            cv_layer_name(f->maps[i].hf, layer, f->prefixes[0], name);
            return CV_FAIL(e, TENSOR, "tensor %s is missing", name);
        }
    return 0;
}

/* Do two tensors of a checkpoint hold the same bytes? */
static int cv_same_bytes(const cv_part *a, const cv_part *b, int *same, cv_error *e) {
    uint8_t x[1024], y[1024];
    uint64_t at, n;
    *same = a->t.type == b->t.type && a->t.data_size == b->t.data_size;
    for (at = 0; *same && at < a->t.data_size; at += n) {
        n = a->t.data_size - at < sizeof x ? a->t.data_size - at : sizeof x;
        CV_TRY(cv_read_at(a->file, a->at + at, x, (size_t)n, e));
        CV_TRY(cv_read_at(b->file, b->at + at, y, (size_t)n, e));
        *same = memcmp(x, y, (size_t)n) == 0;
    }
    return 0;
}

/* The output head: the token embedding where there is none, or where it is the same; then it is stored once. */
static int cv_settle_head(cv_source *s, cv_error *e) {
    const cv_part *head = cv_find_part(s, "output.weight"), *embd = cv_find_part(s, "token_embd.weight");
    int same;
    if (!head && s->config.tied == 0) return CV_FAIL(e, TENSOR, "the config says the output head is not tied, but lm_head.weight is missing");
    if (!head || !embd) return 0;
    CV_TRY(cv_same_bytes(embd, head, &same, e));
    if (same) {
        size_t at = (size_t)(head - s->parts);
        memmove(s->parts + at, s->parts + at + 1, (s->n - at - 1) * sizeof *s->parts);
        s->n--;
    } else if (s->config.tied == 1) cv_note(s->quiet, "the config says the output head is tied, but lm_head.weight differs: both are kept");
    return 0;
}

/* The last part of a path, as a model's name. */
static const char *cv_base_name(cv_pool *pool, const char *path, cv_error *e) {
    size_t n = strlen(path), at;
    while (n > 1 && path[n - 1] == '/') n--;
    for (at = n; at > 0 && path[at - 1] != '/'; at--) {}
    return cv_copy(pool, path + at, n - at, e);
}

static int cv_read_config_file(cv_pool *pool, const char *folder, cv_config *c, cv_error *e) {
    char *path = cv_path(pool, folder, "config.json", e), *text;
    size_t n;
    if (!path) return 1;
    CV_TRY(cv_read_file(pool, path, 1 << 24, &text, &n, e));
    return cv_config_read(pool, path, text, n, c, e);
}

static char *cv_folder_of(cv_pool *pool, const char *path, cv_error *e) {
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] != '/') n--;
    return n ? cv_copy(pool, path, n, e) : cv_copy(pool, ".", 1, e);
}

/* A folder with config.json and weights, or one .safetensors file with its config.json beside it. */
static int cv_source_folder(cv_source *s, cv_pool *pool, const char *path, cv_error *e) {
    char *folder = cv_is_folder(path) ? cv_copy(pool, path, strlen(path), e) : cv_folder_of(pool, path, e);
    if (!folder) return 1;
    CV_TRY(cv_read_config_file(pool, folder, &s->config, e));
    CV_TRY(cv_weights_open(pool, path, &s->weights, e));
    CV_TRY(cv_take_model(s, pool, e));
    CV_TRY(cv_settle_head(s, e));
    CV_TRY(cv_add_rope_freqs(s, pool, e));
    CV_TRY(cv_vocab_read_folder(pool, folder, &s->vocab, &s->has_vocab, e));
    s->name = cv_base_name(pool, folder, e);
    return !s->name;
}

/* -- llama2.c: seven numbers, then the tensors of all layers kind by kind; rotary pairs already as in GGUF -- */

typedef struct cv_bin_entry { const char *gguf; cv_size rows, cols; } cv_bin_entry;
#define CV_BIN_PROJECTIONS \
    { "blk.%.attn_q.weight", CV_Q, CV_D }, { "blk.%.attn_k.weight", CV_KV, CV_D }, { "blk.%.attn_v.weight", CV_KV, CV_D }, { "blk.%.attn_output.weight", CV_D, CV_Q }
#define CV_BIN_FEED_FORWARD \
    { "blk.%.ffn_gate.weight", CV_F, CV_D }, { "blk.%.ffn_down.weight", CV_D, CV_F }, { "blk.%.ffn_up.weight", CV_F, CV_D }
static const cv_bin_entry cv_bin_0[] = {
    { "token_embd.weight", CV_V, CV_D }, { "blk.%.attn_norm.weight", CV_ONE, CV_D }, CV_BIN_PROJECTIONS, { "blk.%.ffn_norm.weight", CV_ONE, CV_D },
    CV_BIN_FEED_FORWARD, { "output_norm.weight", CV_ONE, CV_D } };
static const cv_bin_entry cv_bin_1[] = {
    { "blk.%.attn_norm.weight", CV_ONE, CV_D }, { "blk.%.ffn_norm.weight", CV_ONE, CV_D }, { "output_norm.weight", CV_ONE, CV_D },
    { "token_embd.weight", CV_V, CV_D }, CV_BIN_PROJECTIONS, CV_BIN_FEED_FORWARD };
#define CV_BIN_MAGIC 0x616B3432u       /* "ak42" of the versioned files */

static int cv_bin_sizes(cv_config *c, const uint8_t *p, int *shared, const char *path, cv_error *e) {
    int32_t v[7];
    size_t i;
    for (i = 0; i < 7; i++) v[i] = (int32_t)pdi_u32(p + 4 * i);
    *shared = v[5] > 0;
    if (v[5] < 0 && v[5] != INT32_MIN) v[5] = -v[5];            /* version 0 tells an untied head by the sign */
    for (i = 0; i < 7; i++)
        if (v[i] < 1 || v[i] > (i == 2 ? 1024 : i > 4 ? 1 << 22 : 1 << 20))
            return CV_FAIL_AT(e, FIELD, 4 * i, "%s: number %u of the header is %i, which is out of range", path, (uint64_t)i + 1, (int64_t)v[i]);
    c->n_embd = (size_t)v[0]; c->n_ff = (size_t)v[1]; c->n_layer = (size_t)v[2]; c->n_head = (size_t)v[3]; c->n_head_kv = (size_t)v[4];
    c->n_vocab = (size_t)v[5]; c->n_ctx = (size_t)v[6];
    if (c->n_embd % c->n_head || c->n_head % c->n_head_kv || c->n_embd / c->n_head % 2)
        return CV_FAIL(e, FIELD, "%s: width %u, %u heads and %u key/value heads do not fit together", path, (uint64_t)c->n_embd, (uint64_t)c->n_head, (uint64_t)c->n_head_kv);
    c->head_dim = c->n_embd / c->n_head;
    return 0;
}

/* One kind of tensor, for one layer or for all; *at moves past it. Sizes cannot overflow 64 bits: each is below 2^23. */
static int cv_bin_take(cv_source *s, cv_pool *pool, const cv_bin_entry *b, uint64_t *at, cv_error *e) {
    size_t layer, rows = cv_size_of(&s->config, b->rows), cols = cv_size_of(&s->config, b->cols);
    uint64_t bytes = 4 * (uint64_t)(rows ? rows : 1) * cols;
    char name[160];
    for (layer = 0; layer < (strchr(b->gguf, '%') ? s->config.n_layer : 1); layer++) {
        cv_part *p;
        if (bytes > s->file.size || *at > s->file.size - bytes) return CV_FAIL_AT(e, TRUNCATED, s->file.size, "%s has %u bytes; tensor %s ends at byte %u", s->file.path, s->file.size, b->gguf, *at + bytes);
        cv_layer_name(b->gguf, layer, "", name);
        p = cv_add_part(s, pool, name, rows, cols, e);
        if (!p) return 1;
        p->t.type = PREDIFF_F32;
        p->t.data_size = (size_t)bytes;
        p->file = &s->file;
        p->at = *at;
        p->row_bytes = 4 * cols;
        *at += bytes;
    }
    return 0;
}

static int cv_source_bin(cv_source *s, cv_pool *pool, const char *path, cv_error *e) {
    static const cv_bin_entry head = { "output.weight", CV_V, CV_D };
    uint8_t h[256];
    uint64_t at;
    size_t i;
    int shared, versioned;
    CV_TRY(cv_open(&s->file, path, e));
    memset(h, 0, sizeof h);
    CV_TRY(cv_read_at(&s->file, 0, h, (size_t)(s->file.size < sizeof h ? s->file.size : sizeof h), e));
    versioned = pdi_u32(h) == CV_BIN_MAGIC;
    if (versioned && pdi_u32(h + 4) != 1) return CV_FAIL_AT(e, UNSUPPORTED, 4, "%s: llama2.c version %u is not supported; 0 and 1 (float32) are", path, (uint64_t)pdi_u32(h + 4));
    s->config.family = &cv_families[1];
    s->config.tied = s->config.shift = s->config.bos = s->config.eos = s->config.pad = s->config.mask = -1;
    s->config.eps = 1e-5;
    s->config.rope_base = 10000;
    s->config.rate_scale = s->config.rate_max = s->config.noise_scale = 1;
    CV_TRY(cv_bin_sizes(&s->config, h + (versioned ? 8 : 0), &shared, path, e));
    if (versioned) shared = h[36] != 0;
    at = versioned ? 256 : 28;
    for (i = 0; i < (versioned ? CV_COUNT(cv_bin_1) : CV_COUNT(cv_bin_0)); i++) CV_TRY(cv_bin_take(s, pool, versioned ? &cv_bin_1[i] : &cv_bin_0[i], &at, e));
    if (!versioned) at += 4 * (uint64_t)s->config.n_ctx * s->config.head_dim;       /* tables of cosines and sines */
    if (!shared) CV_TRY(cv_bin_take(s, pool, &head, &at, e));
    if (at != s->file.size) return CV_FAIL_AT(e, FILE_KIND, at, "%s has %u bytes, a llama2.c file of these sizes %u", path, s->file.size, at);
    s->name = cv_base_name(pool, path, e);
    return !s->name;
}

/* -- GGUF -- */

static int cv_begins(prediff_string s, const char *with) { return s.n >= strlen(with) && memcmp(s.bytes, with, strlen(with)) == 0; }

static int cv_is_addition(prediff_string name) { return cv_begins(name, "prediff."); }

/* Keys that a new file gets anew, or that go with what is replaced. */
static int cv_key_goes(prediff_string name, const cv_options *o) {
    if (pdi_str_is(name, "general.alignment") || pdi_str_is(name, "general.file_type") || pdi_str_is(name, "general.quantization_version")) return 1;
    if (o->tokenizer && cv_begins(name, "tokenizer.")) return 1;
    if (o->mask_token >= 0 && pdi_str_is(name, "tokenizer.ggml.mask_token_id")) return 1;
    return (o->strip || o->add) && (cv_is_addition(name) || pdi_str_is(name, "diffusion.shift_logits"));
}

static int cv_gguf_parts(cv_source *s, cv_pool *pool, const prediff_container *g, int strip, cv_error *e) {
    char name[80];
    size_t i;
    for (i = 0; i < g->n_tensors; i++) {
        const prediff_tensor *t = &g->tensors[i];
        cv_part *p;
        if (strip && cv_is_addition(t->name)) continue;
        memcpy(name, t->name.bytes, t->name.n);
        name[t->name.n] = 0;
        p = cv_add_part(s, pool, name, t->n_dims > 1 ? (size_t)(t->dims[1] * t->dims[2] * t->dims[3]) : 0, (size_t)t->dims[0], e);
        if (!p) return 1;
        p->t.type = t->type;
        p->t.data_size = t->data_size;
        p->file = &s->file;
        p->at = (uint64_t)(t->data - s->gguf->gguf.bytes);
        p->row_bytes = t->data_size / (size_t)p->t.dims[1];
    }
    return 0;
}

/* The file is mapped for its header; the tensors' rows are read like those of any other file. */
static int cv_source_gguf(cv_source *s, cv_pool *pool, const cv_options *o, cv_error *e) {
    prediff_model_desc d;
    prediff_error err;
    prediff_container g;
    size_t i;
    int64_t width = 0;
    char key[64];
    memset(&d, 0, sizeof d);
    memset(&err, 0, sizeof err);
    d.path = o->in;
    d.map = 1;
    if (o->hf ? prediff_model_open(&s->gguf, &d, &err) : prediff_container_open(&s->gguf, &d, &err)) return cv_library(e, o->in, &err);
    prediff_container_get(s->gguf, &g);
    CV_TRY(cv_open(&s->file, o->in, e));
    s->config.family = cv_family_of(cv_str(s->gguf->hp.arch->name));
    s->config.shift = s->config.mask = -1;
    s->config.rate_scale = s->config.rate_max = s->config.noise_scale = 1;
    for (i = 0; i < g.n_keys; i++) if (!cv_key_goes(g.keys[i].name, o)) CV_TRY(cv_key_copy(pool, &s->keys, &g.keys[i], e));
    if (pdi_key_int(&s->gguf->gguf, pdi_arch_key(&s->gguf->hp, ".embedding_length", key), &width, &err)) return cv_library(e, o->in, &err);
    s->config.n_embd = width > 0 && width < 1 << 20 ? (size_t)width : 0;
    return cv_gguf_parts(s, pool, &g, o->strip || o->add, e);
}

/* Additions from a file of their own; how they were trained stands in the config.json beside it, if there is one. */
static int cv_source_add(cv_source *s, cv_pool *pool, const char *path, cv_error *e) {
    char *folder = cv_folder_of(pool, path, e), *config = folder ? cv_path(pool, folder, "config.json", e) : NULL;
    uint8_t *used;
    size_t i;
    if (!config) return 1;
    CV_TRY(cv_weights_open(pool, path, &s->added, e));
    used = (uint8_t *)cv_alloc(pool, s->added.n + 1, 1, e);
    if (!used) return 1;
    if (cv_exists(config)) {
        cv_json j;
        cv_fields f;
        char *text;
        size_t n;
        CV_TRY(cv_read_file(pool, config, 1 << 24, &text, &n, e));
        CV_TRY(cv_json_parse(pool, config, text, n, &j, e));
        f.j = &j; f.object = j.nodes; f.e = e;
        CV_TRY(cv_config_additions(&f, &s->config));
    }
    for (i = 0; i < CV_COUNT(cv_addition_maps); i++) CV_TRY(cv_take_tensor(s, pool, &s->added, &cv_addition_maps[i], 0, used, e));
    for (i = 0; i < s->added.n; i++)
        if (!used[i]) return CV_FAIL(e, TENSOR, "%s: tensor '%S' is no addition; they are called prediff.*", path, &s->added.tensors[i].name);
    return 0;
}

static void cv_strip_parts(cv_source *s) {
    size_t i, n = 0;
    for (i = 0; i < s->n; i++) if (!cv_is_addition(s->parts[i].t.name)) s->parts[n++] = s->parts[i];
    s->n = n;
    s->config.attention = NULL;
    s->config.noise_dim = 0;
}

/* Does the list hold additions? Then the file is an adapted model. */
static void cv_settle_additions(cv_source *s) {
    size_t i;
    for (i = 0; i < s->n && !s->config.attention; i++) if (cv_is_addition(s->parts[i].t.name)) s->config.attention = "hybrid";
}

/* ---- >>TARGET: writing what was read ------------------------------------------------------------------------------------

   Both formats are written in one pass, row by row, into a temporary file that takes its final name only when it is whole. */

typedef struct cv_output {
    cv_source *source;
    const cv_options *o;
    FILE *f;
    const char *path;
    uint32_t *types;                   /* [n] stored types */
    uint64_t done, total, shown_at;    /* bytes written; a time */
    time_t begun;
    int broken;                        /* a row could not be read: error has why */
    cv_error *error;
    double square, noise; size_t rows; /* of the present tensor: sums for its quantisation error */
    uint8_t *stored; float *again;     /* a stored row and its floats */
} cv_output;

/* -- which type -- */

/* Does the pattern, in which * stands for anything, match the whole name? */
static int cv_glob(const char *p, prediff_string name) {
    size_t i = 0, mark = 0;
    const char *star = NULL;
    while (i < name.n) {
        if (*p == '*') { star = ++p; mark = i; }
        else if (*p && *p == name.bytes[i]) { p++; i++; }
        else if (star) { p = star; i = ++mark; }
        else return 0;
    }
    while (*p == '*') p++;
    return !*p;
}

static uint32_t cv_stored_type(const cv_part *p, const cv_options *o) {
    size_t i;
    for (i = 0; i < o->n_keep; i++) if (cv_glob(o->keep[i], p->t.name)) return p->t.type;
    if (p->small) return PREDIFF_F32;
    if (!o->has_type || o->type == p->t.type) return p->t.type;
    return p->t.dims[0] % pdi_type_of(o->type)->block ? (uint32_t)PREDIFF_F16 : o->type;
}

/* Rows that are no whole blocks of the type asked for. */
static void cv_note_odd(const cv_source *s, const cv_output *w) {
    size_t i, n = 0;
    for (i = 0; w->o->has_type && i < s->n; i++)
        n += w->types[i] == PREDIFF_F16 && w->o->type != PREDIFF_F16 && s->parts[i].t.type != PREDIFF_F16;
    if (n) cv_note(s->quiet, "%u tensors have rows that are no whole %s blocks: they become F16", (uint64_t)n, prediff_type_name(w->o->type));
}

/* -- progress -- */

static int cv_is_terminal(void) {
#ifdef _WIN32
    return _isatty(_fileno(stderr));
#else
    return isatty(fileno(stderr));
#endif
}

static void cv_progress(cv_output *w) {
    time_t now = time(NULL);
    double seconds = difftime(now, w->begun), share = w->total ? (double)w->done / (double)w->total : 1;
    if (w->o->quiet || (uint64_t)now == w->shown_at || seconds < 2 || !cv_is_terminal()) return;
    w->shown_at = (uint64_t)now;
    fprintf(stderr, "\r%3.0f %%  %.0f of %.0f MB, %.0f MB/s, %.0f s left ", 100 * share, (double)w->done / 1e6, (double)w->total / 1e6,
            (double)w->done / 1e6 / seconds, share > 0 ? seconds * (1 - share) / share : 0.0);
    fflush(stderr);
}

static int cv_write(void *user, const void *bytes, size_t n) {
    cv_output *w = (cv_output *)user;
    if (fwrite(bytes, 1, n, w->f) != n) return 1;
    w->done += n;
    cv_progress(w);
    return 0;
}

/* -- rows on their way, and what quantising does to them -- */

static void cv_measure(cv_output *w, size_t i, size_t r, const float *row) {
    const cv_part *p = &w->source->parts[i];
    size_t n = (size_t)p->t.dims[0], k;
    if (r == 0) { w->square = w->noise = 0; w->rows = 0; }
    if (!pdi_store_row_as(w->types[i], row, n, w->stored)) return;
    cv_elements(w->types[i], w->stored, w->again, n);
    for (k = 0; k < n; k++) {
        double d = (double)w->again[k] - (double)row[k];
        w->square += (double)row[k] * (double)row[k];
        w->noise += d * d;
    }
    if (r + 1 < (size_t)p->t.dims[1]) return;
    fprintf(stderr, "  %-32.*s %s to %s, relative error %.3g\n", (int)p->t.name.n, p->t.name.bytes, prediff_type_name(p->t.type),
            prediff_type_name(w->types[i]), w->square > 0 ? sqrt(w->noise / w->square) : sqrt(w->noise));
}

static int cv_give_row(void *user, size_t tensor, size_t row, float *out) {
    cv_output *w = (cv_output *)user;
    if (cv_read_row(w->source, tensor, row, out, w->error)) return w->broken = 1;
    if (w->o->verbose) cv_measure(w, tensor, row, out);
    return 0;
}

/* Buffers that -v needs, and the types. */
static int cv_output_begin(cv_output *w, cv_pool *pool, cv_source *s, const cv_options *o, cv_error *e) {
    size_t i, longest = 1;
    memset(w, 0, sizeof *w);
    w->source = s; w->o = o; w->error = e;
    w->begun = time(NULL);
    w->types = (uint32_t *)cv_alloc(pool, s->n + 1, sizeof *w->types, e);
    for (i = 0; i < s->n; i++) longest = pdi_max(longest, (size_t)s->parts[i].t.dims[0]);
    w->stored = (uint8_t *)cv_alloc(pool, longest, 4, e);
    w->again = (float *)cv_alloc(pool, longest, sizeof(float), e);
    if (!w->types || !w->stored || !w->again) return 1;
    for (i = 0; i < s->n; i++) w->types[i] = cv_stored_type(&s->parts[i], o);
    return 0;
}

/* -- temporary files -- */

/* A file that is there is replaced only if that was asked for; a folder or a device never. */
static int cv_may_replace(const char *path, int force, cv_error *e) {
    struct stat st;
    if (stat(path, &st)) return 0;
    if ((st.st_mode & S_IFMT) == S_IFDIR) return CV_FAIL(e, FILE_WRITE, "%s is a folder", path);
    if ((st.st_mode & S_IFMT) != S_IFREG) return CV_FAIL(e, FILE_WRITE, "%s is not a regular file", path);
    return force ? 0 : CV_FAIL(e, FILE_WRITE, "%s exists; --force replaces it", path);
}

static int cv_output_open(cv_output *w, cv_pool *pool, const char *path, cv_error *e) {
    size_t n = strlen(path);
    char *name = (char *)cv_alloc(pool, n + 32, 1, e);
    if (!name) return 1;
#ifdef _WIN32
    snprintf(name, n + 32, "%s.%d.tmp", path, _getpid());
#else
    snprintf(name, n + 32, "%s.%ld.tmp", path, (long)getpid());
#endif
    if (cv_exists(name)) return CV_FAIL(e, FILE_WRITE, "%s is in the way: remove it", name);
    w->path = name;
    w->f = fopen(name, "wb");
    return w->f ? 0 : CV_FAIL(e, FILE_WRITE, "cannot write %s: %s", name, strerror(errno));
}

/* Ends the temporary file: all of it on disk, or none. */
static int cv_output_close(cv_output *w, int failed, cv_error *e) {
    if (w->f && fclose(w->f) && !failed) failed = CV_FAIL(e, FILE_WRITE, "writing %s failed: %s", w->path, strerror(errno));
    w->f = NULL;
    if (failed && w->path) remove(w->path);
    return failed;
}

static int cv_rename(const char *from, const char *to, cv_error *e) {
#ifdef _WIN32
    remove(to);
#endif
    if (rename(from, to) == 0) return 0;
    CV_FAIL(e, FILE_WRITE, "cannot rename %s to %s: %s", from, to, strerror(errno));
    remove(from);
    return 1;
}

/* -- GGUF -- */

typedef struct cv_file_type { uint32_t type, number; } cv_file_type;       /* general.file_type as other tools number it */

/* The type that holds most of the weights. */
static const cv_file_type *cv_main_type(const cv_source *s, const cv_output *w) {
    static const cv_file_type types[] = { { PREDIFF_F32, 0 }, { PREDIFF_F16, 1 }, { PREDIFF_Q4_0, 2 }, { PREDIFF_Q4_1, 3 }, { PREDIFF_Q8_0, 7 },
                                          { PREDIFF_Q4_K, 15 }, { PREDIFF_Q6_K, 18 }, { PREDIFF_BF16, 32 } };
    const cv_file_type *best = types;
    uint64_t elements, most = 0;
    size_t i, k;
    for (i = 0; i < CV_COUNT(types); i++) {
        for (elements = k = 0; k < s->n; k++) if (w->types[k] == types[i].type) elements += s->parts[k].t.dims[0] * s->parts[k].t.dims[1];
        if (elements > most) { most = elements; best = &types[i]; }
    }
    return best;
}

static uint64_t cv_output_bytes(const cv_source *s, const cv_output *w) {
    uint64_t total = 0;
    size_t i;
    for (i = 0; i < s->n; i++) {
        const pdi_type_info *t = pdi_type_of(w->types[i]);
        total += s->parts[i].t.dims[1] * (s->parts[i].t.dims[0] / t->block * t->bytes);
    }
    return total;
}

/* A name of a file, printable. */
static void cv_safe_name(char *out, size_t capacity, prediff_string s) {
    size_t i;
    for (i = 0; i < s.n && i + 1 < capacity; i++) out[i] = s.bytes[i] >= 32 && s.bytes[i] < 127 ? s.bytes[i] : '?';
    out[i] = 0;
}

/* What becomes what: --dry-run. */
static void cv_print_plan(const cv_source *s, const cv_output *w, FILE *to) {
    size_t i;
    for (i = 0; i < s->n; i++) {
        const cv_part *p = &s->parts[i];
        char from[160];
        cv_safe_name(from, sizeof from, p->from);
        fprintf(to, "%-32.*s [%u][%u] %s -> %s%s%s%s%s\n", (int)p->t.name.n, p->t.name.bytes, (unsigned)p->t.dims[1], (unsigned)p->t.dims[0],
                p->file ? prediff_type_name(p->t.type) : "computed", prediff_type_name(w->types[i]), p->heads ? ", rotary pairs" : "",
                p->transposed ? ", transposed" : "", from[0] ? ", from " : "", from);
    }
    fprintf(to, "%u tensors, %u keys, %.1f MB of weights\n", (unsigned)s->n, (unsigned)s->keys.n, (double)cv_output_bytes(s, w) / 1e6);
}

/* An allocator that gives nothing as large as the file itself: what cannot be mapped shall not be read whole. */
static void *cv_modest_alloc(void *user, size_t n) { return n < *(const size_t *)user ? malloc(n) : NULL; }
static void cv_modest_free(void *user, void *p, size_t n) { (void)user; (void)n; free(p); }

/* The file must open: what cannot run is not left behind. */
static int cv_verify(const char *path, uint64_t size, int quiet, cv_error *e) {
    size_t most = size < SIZE_MAX ? (size_t)size : SIZE_MAX;
    prediff_model_desc d;
    prediff_error err;
    prediff_model *m = NULL;
    prediff_status status;
    memset(&d, 0, sizeof d);
    memset(&err, 0, sizeof err);
    d.path = path;
    d.map = 1;
    d.allocator.alloc = cv_modest_alloc;
    d.allocator.free = cv_modest_free;
    d.allocator.user = &most;
    if (most < 1 << 26) most = 1 << 26;                         /* small files may be read */
    status = prediff_model_open(&m, &d, &err);
    prediff_model_close(m);
    if (status == PREDIFF_ERR_NOMEM) {
        cv_note(quiet, "%s could not be mapped here, so it was not opened to check it", path);
        return 0;
    }
    return status ? cv_library(e, path, &err) : 0;
}

static int cv_gguf_save(cv_output *w, cv_pool *pool, cv_error *e) {
    const cv_source *s = w->source;
    prediff_save_desc d;
    prediff_error err;
    prediff_tensor *tensors = (prediff_tensor *)cv_alloc(pool, s->n + 1, sizeof *tensors, e);
    size_t i;
    if (!tensors) return 1;
    for (i = 0; i < s->n; i++) {
        tensors[i] = s->parts[i].t;
        if (!s->gguf || s->parts[i].file != &s->file || w->types[i] != tensors[i].type) continue;
        tensors[i].data = s->gguf->gguf.bytes + s->parts[i].at;  /* as it is, bit for bit */
        if (w->o->verbose) fprintf(stderr, "  %-32.*s %s as it is, relative error 0\n", (int)tensors[i].name.n, tensors[i].name.bytes, prediff_type_name(tensors[i].type));
    }
    memset(&d, 0, sizeof d);
    memset(&err, 0, sizeof err);
    d.keys = s->keys.keys; d.n_keys = s->keys.n;
    d.tensors = tensors; d.n_tensors = s->n;
    d.store = w->types;
    d.row = cv_give_row;
    d.write = cv_write;
    d.user = w;
    if (prediff_save(&d, &err) == PREDIFF_OK) return 0;
    if (w->broken) return 1;
    if (err.item == PREDIFF_ITEM_FILE_WRITE) return CV_FAIL(e, FILE_WRITE, "writing %s failed: %s", w->path, strerror(errno));
    return err.item == PREDIFF_ITEM_ENCODING ? CV_FAIL(e, ENCODING, "%s", err.message) : cv_library(e, w->path, &err);
}

static int cv_write_gguf(cv_pool *pool, cv_source *s, const cv_options *o, cv_error *e) {
    cv_output w;
    const cv_file_type *type;
    int failed;
    CV_TRY(cv_output_begin(&w, pool, s, o, e));
    type = cv_main_type(s, &w);
    CV_TRY(cv_key_u32(pool, &s->keys, "general.file_type", type->number, e));
    if (pdi_type_of(type->type)->block > 1) CV_TRY(cv_key_u32(pool, &s->keys, "general.quantization_version", 2, e));
    w.total = cv_output_bytes(s, &w);
    cv_note_odd(s, &w);
    if (o->dry_run) { cv_print_plan(s, &w, stdout); return 0; }
    CV_TRY(cv_may_replace(o->out, o->force, e));
    CV_TRY(cv_output_open(&w, pool, o->out, e));
    failed = cv_gguf_save(&w, pool, e);
    failed = cv_output_close(&w, failed, e);
    if (!failed && cv_verify(w.path, w.done, o->quiet, e)) { remove(w.path); failed = 1; }
    if (!failed) failed = cv_rename(w.path, o->out, e);
    if (!failed && !o->quiet) fprintf(stderr, "%s%s: %u tensors, %.1f MB, mostly %s\n", w.shown_at ? "\n" : "", o->out, (unsigned)s->n, (double)w.done / 1e6, prediff_type_name(type->type));
    return failed;
}

/* -- a Hugging Face folder -- */

/* llama3 scaling from its divisors. They depend on low, high and original through two numbers alone, so low is set to 1:
   of the pairs that are blended, blend = original / wave * slope - offset, slope = 1 / (high - low), offset = low * slope. */
static int cv_invert_llama3(cv_config *c, const float *divisor, cv_error *e) {
    size_t i, n = c->head_dim / 2, first = n, last = n;
    double a, b, wave_a, wave_b, slope, offset;
    c->rope = CV_ROPE_LLAMA3;
    c->rope_factor = (double)divisor[n - 1];
    for (i = 0; i < n; i++) {
        if (!(divisor[i] > 1.000001f && (double)divisor[i] < c->rope_factor * 0.999999)) continue;
        if (first == n) first = i;
        last = i;
    }
    if (first == n) return CV_FAIL(e, UNSUPPORTED, "rope_freqs.weight is not the scaling of Llama 3, or too small to tell");
    wave_a = 6.283185307179586 * pow(c->rope_base, 2.0 * (double)first / (double)c->head_dim);
    wave_b = 6.283185307179586 * pow(c->rope_base, 2.0 * (double)last / (double)c->head_dim);
    a = (1.0 / (double)divisor[first] - 1.0 / c->rope_factor) / (1.0 - 1.0 / c->rope_factor);
    b = (1.0 / (double)divisor[last] - 1.0 / c->rope_factor) / (1.0 - 1.0 / c->rope_factor);
    slope = first == last ? wave_a * (a + 1.0 / 3.0) : (a - b) / (1.0 / wave_a - 1.0 / wave_b);      /* original / (high - low) */
    offset = first == last ? 1.0 / 3.0 : slope / wave_a - a;    /* low / (high - low); one pair fits any: that of high = 4 */
    c->rope_low = 1;
    c->rope_high = 1 + 1 / offset;
    c->rope_original = floor(slope / offset + 0.5);
    for (i = 0; i < n; i++)
        if (!(fabs(cv_llama3_divisor(c, i) - (double)divisor[i]) < 1e-3 * (double)divisor[i]))
            return CV_FAIL(e, UNSUPPORTED, "rope_freqs.weight is not the scaling of Llama 3 (pair %u)", (uint64_t)i);
    return 0;
}

static int cv_config_of_gguf(cv_source *s, cv_error *e) {
    const prediff_model *m = s->gguf;
    const pdi_hparams *h = &m->hp;
    cv_config *c = &s->config;
    static const char *const attention[] = { NULL, "hybrid", "bidirectional", "causal" };
    c->n_ctx = h->n_ctx; c->n_embd = h->n_embd; c->n_layer = h->n_layer; c->n_head = h->n_head; c->n_head_kv = h->n_head_kv;
    c->head_dim = h->head_dim; c->n_ff = h->n_ff; c->n_vocab = h->n_vocab;
    c->eps = (double)h->eps; c->rope_base = (double)h->rope_base; c->rope_factor = (double)h->rope_factor;
    c->rope = c->rope_factor > 1 || c->rope_factor < 1 ? CV_ROPE_LINEAR : CV_ROPE_PLAIN;
    c->tied = m->output.data == m->token_embd.data;
    c->bos = m->tok.bos; c->eos = m->tok.eos; c->pad = -1; c->mask = m->tok.mask;
    c->attention = h->adapted ? attention[h->attention] : NULL;
    c->shift = h->shift;
    c->rate_scale = (double)h->rate_scale; c->rate_min = (double)h->rate_min; c->rate_max = (double)h->rate_max;
    c->noise_scale = (double)h->noise_scale; c->noise_dim = h->noise_dim; c->noise_normal = h->noise_normal; c->noise_redraw = h->noise_redraw;
    if (!cv_is_gpt2(c->family) && h->rope_dim != h->head_dim) return CV_FAIL(e, UNSUPPORTED, "a rotary part of a head cannot be told to transformers");
    return m->rope_freqs && !cv_is_gpt2(c->family) ? cv_invert_llama3(c, m->rope_freqs, e) : 0;
}

/* The parts of a GGUF model under their checkpoint names, pairs turned back to halves. */
static int cv_rename_parts(cv_source *s, cv_pool *pool, cv_error *e) {
    const cv_family *f = s->config.family;
    size_t i, k, layer, n = 0;
    char name[160];
    for (i = 0; i < s->n; i++) {
        cv_part p = s->parts[i];
        const cv_map *m = NULL;
        if (pdi_str_is(p.t.name, "rope_freqs.weight")) continue;
        for (k = 0; k < f->n_maps && !m; k++) if (cv_matches(f->maps[k].gguf, p.t.name.bytes, p.t.name.n)) m = &f->maps[k];
        if (!m && !cv_is_addition(p.t.name)) return CV_FAIL(e, TENSOR, "tensor '%S' has no name in a %s checkpoint", &p.t.name, f->model_type);
        if (m) {
            const char *at = strchr(m->gguf, '%');
            for (layer = 0, k = at ? (size_t)(at - m->gguf) : p.t.name.n; k < p.t.name.n && p.t.name.bytes[k] != '.'; k++)
                layer = layer * 10 + (size_t)(p.t.name.bytes[k] - '0');
            cv_layer_name(m->hf, layer, strcmp(m->hf, "lm_head.weight") == 0 ? "" : f->prefixes[0], name);
            p.from = p.t.name;
            p.t.name = cv_str(cv_copy(pool, name, strlen(name), e));
            if (!p.t.name.bytes) return 1;
            if (f->pairs && m->flags & (CV_HEADS_Q | CV_HEADS_KV)) p.heads = m->flags & CV_HEADS_Q ? s->config.n_head : s->config.n_head_kv;
            p.back = 1;
            if (m->flags & CV_TRANSPOSED && m->rows != CV_ONE) {
                uint64_t d = p.t.dims[0];
                p.t.dims[0] = p.t.dims[1]; p.t.dims[1] = d;
                p.transposed = 1;
            }
        }
        s->parts[n++] = p;
    }
    s->n = n;
    return 0;
}

/* -- config.json -- */

typedef struct cv_text { char *p; size_t n, capacity; int full; } cv_text;

static void cv_print(cv_text *t, const char *fmt, ...) {
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(t->p + t->n, t->capacity - t->n, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= t->capacity - t->n) t->full = 1;
    else t->n += (size_t)n;
}

/* "key": v, with as few digits as give the float back. */
static void cv_print_number(cv_text *t, const char *key, double v) {
    char digits[40];
    int n;
    for (n = 6; n < 10; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, v);
        if ((float)strtod(digits, NULL) == (float)v) break;
    }
    cv_print(t, "\"%s\": %s", key, digits);
}

static void cv_print_id(cv_text *t, const char *key, int32_t id) { if (id >= 0) cv_print(t, "  \"%s\": %d,\n", key, (int)id); }

static void cv_print_line(cv_text *t, const char *key, double v) {
    cv_print(t, "  ");
    cv_print_number(t, key, v);
    cv_print(t, ",\n");
}

static void cv_print_llama_config(cv_text *t, const cv_config *c) {
    cv_print(t, "  \"hidden_size\": %u,\n  \"intermediate_size\": %u,\n  \"num_hidden_layers\": %u,\n  \"num_attention_heads\": %u,\n", (unsigned)c->n_embd,
             (unsigned)c->n_ff, (unsigned)c->n_layer, (unsigned)c->n_head);
    cv_print(t, "  \"num_key_value_heads\": %u,\n  \"head_dim\": %u,\n  \"max_position_embeddings\": %u,\n  \"hidden_act\": \"silu\",\n", (unsigned)c->n_head_kv,
             (unsigned)c->head_dim, (unsigned)c->n_ctx);
    cv_print_line(t, "rms_norm_eps", c->eps);
    cv_print_line(t, "rope_theta", c->rope_base);
    if (c->rope == CV_ROPE_PLAIN) return;
    cv_print(t, "  \"rope_scaling\": { \"rope_type\": \"%s\", ", c->rope == CV_ROPE_LINEAR ? "linear" : "llama3");
    cv_print_number(t, "factor", c->rope_factor);
    if (c->rope == CV_ROPE_LLAMA3) {
        cv_print(t, ", ");
        cv_print_number(t, "low_freq_factor", c->rope_low);
        cv_print(t, ", ");
        cv_print_number(t, "high_freq_factor", c->rope_high);
        cv_print(t, ", \"original_max_position_embeddings\": %.0f", c->rope_original);
    }
    cv_print(t, " },\n");
}

static void cv_print_llada_config(cv_text *t, const cv_config *c, int bias) {
    cv_print(t, "  \"d_model\": %u,\n  \"mlp_hidden_size\": %u,\n  \"n_layers\": %u,\n  \"n_heads\": %u,\n  \"n_kv_heads\": %u,\n", (unsigned)c->n_embd,
             (unsigned)c->n_ff, (unsigned)c->n_layer, (unsigned)c->n_head, (unsigned)c->n_head_kv);
    cv_print(t, "  \"max_sequence_length\": %u,\n  \"embedding_size\": %u,\n  \"activation_type\": \"silu\",\n  \"block_type\": \"llama\",\n", (unsigned)c->n_ctx, (unsigned)c->n_vocab);
    cv_print(t, "  \"layer_norm_type\": \"rms\",\n  \"rope\": true,\n  \"weight_tying\": %s,\n", c->tied ? "true" : "false");
    cv_print_line(t, "rms_norm_eps", c->eps);
    cv_print_line(t, "rope_theta", c->rope_base);
    cv_print(t, "  \"include_qkv_bias\": %s,\n", bias ? "true" : "false");
}

static void cv_print_gpt2_config(cv_text *t, const cv_config *c) {
    cv_print(t, "  \"n_embd\": %u,\n  \"n_inner\": %u,\n  \"n_layer\": %u,\n  \"n_head\": %u,\n  \"n_positions\": %u,\n  \"n_ctx\": %u,\n", (unsigned)c->n_embd,
             (unsigned)c->n_ff, (unsigned)c->n_layer, (unsigned)c->n_head, (unsigned)c->n_ctx, (unsigned)c->n_ctx);
    cv_print(t, "  \"activation_function\": \"gelu_new\",\n");
    cv_print_line(t, "layer_norm_epsilon", c->eps);
}

static void cv_print_additions(cv_text *t, const cv_config *c) {
    if (!c->attention) return;
    cv_print(t, "  \"prediff\": { \"version\": 1, \"attention\": \"%s\", \"shift_logits\": %s, ", c->attention, c->shift > 0 ? "true" : "false");
    cv_print_number(t, "rate.scale", c->rate_scale);
    cv_print(t, ", ");
    cv_print_number(t, "rate.min", c->rate_min);
    cv_print(t, ", ");
    cv_print_number(t, "rate.max", c->rate_max);
    if (c->noise_dim) {
        cv_print(t, ", \"noise.dim\": %u, ", (unsigned)c->noise_dim);
        cv_print_number(t, "noise.scale", c->noise_scale);
        cv_print(t, ", \"noise.distribution\": \"%s\", \"noise.lifetime\": \"%s\"", c->noise_normal ? "normal" : "uniform", c->noise_redraw ? "redraw" : "fixed");
    }
    cv_print(t, " },\n");
}

static int cv_config_json(cv_pool *pool, const cv_source *s, uint32_t type, cv_text *t, cv_error *e) {
    const cv_config *c = &s->config;
    int bias = cv_find_part(s, "model.layers.0.self_attn.q_proj.bias") || cv_find_part(s, "model.transformer.blocks.0.q_proj.bias");
    t->capacity = 8192;
    t->n = 0;
    t->full = 0;
    t->p = (char *)cv_alloc(pool, t->capacity, 1, e);
    if (!t->p) return 1;
    cv_print(t, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"vocab_size\": %u,\n", c->family->architecture, c->family->model_type, (unsigned)c->n_vocab);
    if (cv_is_gpt2(c->family)) cv_print_gpt2_config(t, c);
    else if (strcmp(c->family->arch, "llada") == 0) cv_print_llada_config(t, c, bias);
    else cv_print_llama_config(t, c);
    if (strcmp(c->family->arch, "llama") == 0)
        cv_print(t, "  \"attention_bias\": %s,\n  \"mlp_bias\": %s,\n", bias ? "true" : "false", cv_find_part(s, "model.layers.0.mlp.up_proj.bias") ? "true" : "false");
    cv_print_id(t, "bos_token_id", c->bos);
    cv_print_id(t, "eos_token_id", c->eos);
    cv_print_id(t, "mask_token_id", c->mask);
    cv_print_additions(t, c);
    cv_print(t, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\"\n}\n", c->tied ? "true" : "false",
             type == PREDIFF_F16 ? "float16" : type == PREDIFF_BF16 ? "bfloat16" : "float32");
    return t->full ? CV_FAIL(e, LIMIT, "config.json is too long") : 0;
}

/* -- safetensors: the length of the header, the header (JSON, padded with blanks to 8 bytes), the rows -- */

static int cv_safetensors_save(cv_output *w, cv_pool *pool, cv_error *e) {
    cv_source *s = w->source;
    const pdi_type_info *type = pdi_type_of(w->types[0]);
    cv_text t;
    uint8_t length[8];
    uint64_t at = 0;
    size_t i, r, longest = 1;
    float *row;
    t.capacity = 64 + s->n * 256; t.n = 0; t.full = 0;
    t.p = (char *)cv_alloc(pool, t.capacity, 1, e);
    for (i = 0; i < s->n; i++) longest = pdi_max(longest, (size_t)s->parts[i].t.dims[0]);
    row = (float *)cv_alloc(pool, longest, sizeof *row, e);
    if (!t.p || !row) return 1;
    cv_print(&t, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (i = 0; i < s->n; i++) {
        const prediff_tensor *x = &s->parts[i].t;
        uint64_t end = at + x->dims[1] * x->dims[0] * type->bytes;
        cv_print(&t, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", x->name.bytes, type->name);
        if (x->n_dims == 2) cv_print(&t, "%" PRIu64 ",", x->dims[1]);
        cv_print(&t, "%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", x->dims[0], at, end);
        at = end;
    }
    cv_print(&t, "}");
    while (t.n % 8) cv_print(&t, " ");
    if (t.full) return CV_FAIL(e, LIMIT, "the header of %s is too long", w->path);
    pdi_put_u64(length, t.n);
    w->total = at + t.n;
    if (cv_write(w, length, 8) || cv_write(w, t.p, t.n)) return CV_FAIL(e, FILE_WRITE, "writing %s failed: %s", w->path, strerror(errno));
    for (i = 0; i < s->n; i++)
        for (r = 0; r < (size_t)s->parts[i].t.dims[1]; r++) {
            size_t n = (size_t)s->parts[i].t.dims[0];
            if (cv_give_row(w, i, r, row)) return 1;
            if (!pdi_store_row_as(w->types[i], row, n, w->stored)) return CV_FAIL_AT(e, ENCODING, r, "tensor '%S', row %u: a value cannot be stored as %s", &s->parts[i].t.name, (uint64_t)r, type->name);
            if (cv_write(w, w->stored, n * type->bytes)) return CV_FAIL(e, FILE_WRITE, "writing %s failed: %s", w->path, strerror(errno));
        }
    return 0;
}

static int cv_make_folder(const char *path, cv_error *e) {
    if (cv_is_folder(path)) return 0;
#ifdef _WIN32
    if (_mkdir(path) == 0) return 0;
#else
    if (mkdir(path, 0777) == 0) return 0;
#endif
    return CV_FAIL(e, FILE_WRITE, "cannot make the folder %s: %s", path, strerror(errno));
}

static int cv_write_text(cv_pool *pool, const char *folder, const char *name, const char *text, size_t n, cv_error *e) {
    char *path = cv_path(pool, folder, name, e);
    cv_output w;
    int failed;
    memset(&w, 0, sizeof w);
    if (!path || cv_output_open(&w, pool, path, e)) return 1;
    failed = fwrite(text, 1, n, w.f) == n ? 0 : CV_FAIL(e, FILE_WRITE, "writing %s failed: %s", w.path, strerror(errno));
    return cv_output_close(&w, failed, e) || cv_rename(w.path, path, e);
}

static int cv_write_folder(cv_pool *pool, cv_source *s, const cv_options *o, cv_error *e) {
    static const char *const others[] = { "config.json", "tokenizer.json", "tokenizer_config.json" };
    char *weights = cv_path(pool, o->out, "model.safetensors", e);
    uint32_t type = o->has_type ? o->type : (uint32_t)PREDIFF_F32;
    cv_output w;
    cv_text config;
    size_t i;
    int failed;
    if (!weights) return 1;
    CV_TRY(cv_config_of_gguf(s, e));
    CV_TRY(cv_rename_parts(s, pool, e));
    CV_TRY(cv_source_ready(s, pool, e));
    CV_TRY(cv_output_begin(&w, pool, s, o, e));
    for (i = 0; i < s->n; i++) w.types[i] = type;
    if (o->dry_run) { cv_print_plan(s, &w, stdout); return 0; }
    CV_TRY(cv_config_json(pool, s, type, &config, e));
    CV_TRY(cv_may_replace(weights, o->force, e));
    for (i = 0; i < CV_COUNT(others); i++) {
        char *path = cv_path(pool, o->out, others[i], e);
        if (!path || cv_may_replace(path, o->force, e)) return 1;
    }
    CV_TRY(cv_make_folder(o->out, e));
    CV_TRY(cv_output_open(&w, pool, weights, e));
    failed = cv_safetensors_save(&w, pool, e);
    failed = cv_output_close(&w, failed, e);
    if (!failed) failed = cv_write_text(pool, o->out, "config.json", config.p, config.n, e);
    if (!failed && s->has_vocab) failed = cv_vocab_write_folder(pool, &s->vocab, o->out, e);
    if (failed) { remove(w.path); return 1; }
    CV_TRY(cv_rename(w.path, weights, e));
    if (!o->quiet) fprintf(stderr, "%s%s: %u tensors, %.1f MB, %s\n", w.shown_at ? "\n" : "", o->out, (unsigned)s->n, (double)w.done / 1e6, prediff_type_name(type));
    return 0;
}

/* ---- >>CHECK: reads anything we know and says what is wrong where --------------------------------------------------------

   What a file is, its content tells, not its name; the name decides only where the content says nothing. Every kind is read by
   the code that a conversion would use. */

typedef struct cv_summary { char text[320]; size_t n; } cv_summary;     /* what was found, for a line of output */

static void cv_say(cv_summary *s, const char *fmt, ...) {
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(s->text + s->n, sizeof s->text - s->n, fmt, ap);
    va_end(ap);
    s->n = pdi_min(s->n + (n > 0 ? (size_t)n : 0), sizeof s->text - 1);
}

/* -- weights -- */

/* An element type we cannot convert is an error where it may hold weights; buffers of integers are passed over. */
static int cv_check_weights(const cv_weights *w, cv_summary *out, cv_error *e) {
    static const char *const names[] = { "F32", "F16", "BF16" };
    static const uint32_t types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16 };
    uint64_t bytes = 0;
    size_t i, k, count[4] = { 0, 0, 0, 0 };
    for (i = 0; i < w->n; i++) {
        const cv_tensor *t = &w->tensors[i];
        const cv_dtype *d = cv_dtype_of(t->dtype);
        if (t->type == UINT32_MAX && (!d || d->number))
            return CV_FAIL(e, DTYPE, "%s: tensor '%S' has elements of type %S; F32, F16 and BF16 are read", w->files[t->file].path,
                           &t->name, &t->dtype);
        for (k = 0; k < 3 && types[k] != t->type; k++) {}
        count[k]++;
        bytes += t->size;
    }
    cv_say(out, "safetensors");
    cv_say(out, ", %u tensors", (unsigned)w->n);
    if (w->n_files > 1) cv_say(out, " in %u shards", (unsigned)w->n_files);
    for (k = 0; k < 3; k++) if (count[k]) cv_say(out, ", %u %s", (unsigned)count[k], names[k]);
    if (count[3]) cv_say(out, ", %u of integers", (unsigned)count[3]);
    cv_say(out, ", %.1f MB", (double)bytes / 1e6);
    return 0;
}

/* One shard by itself is no model, but it can be read. */
static int cv_check_safetensors(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    cv_weights w;
    int failed;
    memset(&w, 0, sizeof w);
    failed = cv_weights_file(pool, path, &w, e) || cv_check_weights(&w, out, e);
    cv_weights_close(&w);
    return failed;
}

/* An index or a folder. */
static int cv_check_shards(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    cv_weights w;
    int failed = cv_weights_open(pool, path, &w, e) || cv_check_weights(&w, out, e);
    cv_weights_close(&w);
    return failed;
}

/* -- models -- */

/* The container; where it holds an embedding, the whole model; where it holds only a tokenizer, that. */
static int cv_check_gguf(const char *path, cv_summary *out, cv_error *e) {
    prediff_model_desc d;
    prediff_model_info info;
    prediff_container g;
    prediff_error err;
    prediff_model *m = NULL;
    int model, tokenizer;
    memset(&d, 0, sizeof d);
    memset(&err, 0, sizeof err);
    d.path = path;
    d.map = 1;
    if (prediff_container_open(&m, &d, &err)) return cv_library(e, path, &err);
    prediff_container_get(m, &g);
    model = pdi_find_tensor(&m->gguf, "token_embd.weight") != NULL;
    tokenizer = pdi_find_key(&m->gguf, "tokenizer.ggml.model") != NULL;
    if (model || tokenizer) {
        prediff_model_close(m);
        d.vocab_only = !model;
        if (prediff_model_open(&m, &d, &err)) return cv_library(e, path, &err);
        prediff_container_get(m, &g);
    }
    prediff_model_get_info(m, &info);
    cv_say(out, "GGUF");
    cv_say(out, " version %u, %u keys, %u tensors", (unsigned)g.version, (unsigned)g.n_keys, (unsigned)g.n_tensors);
    if (model) cv_say(out, ", a %s model of %.1f M parameters", info.architecture, (double)info.n_params / 1e6);
    if (info.adapted) cv_say(out, ", adapted");
    if (info.n_tokens) cv_say(out, ", %u tokens", (unsigned)info.n_tokens);
    if (!model && !tokenizer) cv_say(out, ", no model");
    prediff_model_close(m);
    return 0;
}

static void cv_tell_config(cv_summary *out, const cv_config *c) {
    cv_say(out, ", %s, %u layers of %u, %u heads of %u, vocabulary of %u", c->family->model_type, (unsigned)c->n_layer, (unsigned)c->n_embd,
           (unsigned)c->n_head, (unsigned)c->head_dim, (unsigned)c->n_vocab);
}

static void cv_tell_vocab(cv_summary *out, const cv_vocab *v) {
    cv_say(out, ", %u tokens", (unsigned)v->n);
    if (v->n_merges) cv_say(out, ", %u merges", (unsigned)v->n_merges);
    cv_say(out, ", %s", v->spm ? "SentencePiece" : v->pre ? v->pre : "byte-level");
}

static int cv_check_bin(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    cv_source s;
    int failed;
    memset(&s, 0, sizeof s);
    failed = cv_source_bin(&s, pool, path, e);
    if (!failed) { cv_say(out, "llama2.c model"); cv_tell_config(out, &s.config); }
    cv_source_close(&s);
    return failed;
}

/* A folder with a config is a model: all of it must fit together. */
static int cv_check_model(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    cv_source s;
    int failed;
    memset(&s, 0, sizeof s);
    failed = cv_source_folder(&s, pool, path, e);
    if (!failed) {
        cv_say(out, "model");
        cv_tell_config(out, &s.config);
        cv_say(out, ", %u tensors", (unsigned)s.weights.n);
        if (s.has_vocab) cv_tell_vocab(out, &s.vocab);
        else cv_say(out, ", no tokenizer");
        }
    cv_source_close(&s);
    return failed;
}

static int cv_check_folder(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    static const char *const weights[] = { "model.safetensors.index.json", "model.safetensors" };
    char *config = cv_path(pool, path, "config.json", e), *file;
    cv_vocab v;
    size_t i;
    int found = 0;
    if (!config) return 1;
    if (cv_exists(config)) return cv_check_model(pool, path, out, e);
    for (i = 0; i < 2; i++) {
        file = cv_path(pool, path, weights[i], e);
        if (!file) return 1;
        if (cv_exists(file)) return cv_check_shards(pool, path, out, e);
    }
    CV_TRY(cv_vocab_read_folder(pool, path, &v, &found, e));
    if (!found) return cv_check_shards(pool, path, out, e);
    cv_say(out, "tokenizer");
    cv_tell_vocab(out, &v);
    return 0;
}

/* -- text -- */

typedef enum cv_json_kind { CV_IS_OTHER, CV_IS_INDEX, CV_IS_TOKENIZER, CV_IS_CONFIG, CV_IS_VOCAB, CV_IS_SETTINGS } cv_json_kind;

static cv_json_kind cv_kind_of_json(const cv_json *j) {
    static const char *const settings[] = { "tokenizer_class", "added_tokens_decoder", "bos_token", "eos_token", "unk_token" };
    const cv_node *root = j->nodes, *model = cv_field(j, root, "model"), *k;
    uint32_t i;
    if (cv_get(j, root, "weight_map")) return CV_IS_INDEX;
    if (model && model->kind == CV_OBJECT) return CV_IS_TOKENIZER;
    for (i = 0; i < 5; i++) if (cv_get(j, root, settings[i])) return CV_IS_SETTINGS;
    if (cv_get(j, root, "model_type") || cv_get(j, root, "architectures")) return CV_IS_CONFIG;
    for (k = cv_first(root), i = 0; i < root->count && k[1].kind == CV_NUMBER; i++, k = cv_after(j, k + 1)) {}
    return root->count && i == root->count ? CV_IS_VOCAB : CV_IS_OTHER;
}

/* Parsing decodes in place, so the kind is found on a copy. */
static int cv_json_kind_of(const char *path, const char *text, size_t n, cv_json_kind *kind, cv_error *e) {
    cv_pool p = { NULL };
    char *copy = cv_copy(&p, text, n, e);
    cv_json j;
    int failed = !copy || cv_json_parse(&p, path, copy, n, &j, e);
    if (!failed) *kind = cv_kind_of_json(&j);
    cv_pool_free(&p);
    return failed;
}

static int cv_check_json(cv_pool *pool, const char *path, char *text, size_t n, cv_summary *out, cv_error *e) {
    cv_json_kind kind = CV_IS_OTHER;
    cv_config c;
    cv_vocab v;
    CV_TRY(cv_json_kind_of(path, text, n, &kind, e));
    switch (kind) {
    case CV_IS_INDEX: return cv_check_shards(pool, path, out, e);
    case CV_IS_CONFIG:
        CV_TRY(cv_config_read(pool, path, text, n, &c, e));
        cv_say(out, "config");
        cv_tell_config(out, &c);
        break;
    case CV_IS_TOKENIZER:
        CV_TRY(cv_tokenizer_json(pool, path, text, n, &v, e));
        cv_say(out, "tokenizer");
        cv_tell_vocab(out, &v);
        break;
    case CV_IS_VOCAB:
        CV_TRY(cv_vocab_json(pool, path, text, n, &v, e));
        cv_say(out, "vocabulary");
        cv_say(out, ", %u tokens", (unsigned)v.n);
        break;
    case CV_IS_SETTINGS: cv_say(out, "settings of a tokenizer; they are read with its folder"); break;
    case CV_IS_OTHER: return CV_FAIL(e, FILE_KIND, "%s is JSON, but no config, tokenizer, vocabulary or index", path);
    }
    return 0;
}

/* -- which kind -- */

/* Seven small numbers, or the magic of later versions: a llama2.c model. In a tokenizer the second is a float, and large or 0. */
static int cv_begins_bin(const uint8_t *b, size_t n) {
    size_t i;
    if (n >= 4 && pdi_u32(b) == CV_BIN_MAGIC) return 1;
    if (n < 28) return 0;
    for (i = 0; i < 5; i++) if (pdi_u32(b + 4 * i) - 1 >= 1u << 20) return 0;
    return 1;
}

/* UTF-8 without control characters, as far as `begin` goes: its last character may be cut off. */
static int cv_begins_text(const uint8_t *b, size_t n) {
    size_t i, length = 1;
    for (i = 0; i < n; i += length) {
        if (b[i] < 32 && (b[i] < 9 || b[i] > 13)) return 0;
        pdi_char_at((const char *)b + i, n - i, &length);
        if (b[i] >= 128 && length == 1 && n - i > 3) return 0;
    }
    return n > 0;
}

static int cv_begins_safetensors(const char *path, const uint8_t *b, size_t n) {
    return cv_ends_with(path, ".safetensors") || (n > 8 && b[8] == '{' && pdi_u64(b) <= CV_HEADER_MOST);
}

static int cv_check_merges(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    cv_vocab v;
    char *text;
    size_t n;
    CV_TRY(cv_read_file(pool, path, CV_JSON_MOST, &text, &n, e));
    memset(&v, 0, sizeof v);
    CV_TRY(cv_merges_txt(pool, path, text, n, &v, e));
    cv_say(out, "merges, %u of them", (unsigned)v.n_merges);
    return 0;
}

/* What is neither GGUF nor JSON nor safetensors. */
static int cv_check_rest(cv_pool *pool, const char *path, const uint8_t *b, size_t begin, cv_summary *out, cv_error *e) {
    cv_vocab v;
    if (begin == 0) return CV_FAIL(e, FILE_KIND, "%s is empty", path);
    if (cv_begins_bin(b, begin)) return cv_check_bin(pool, path, out, e);
    if ((begin > 8 && memcmp(b, "#version", 8) == 0) || cv_ends_with(path, ".txt")) return cv_check_merges(pool, path, out, e);
    if (cv_begins_text(b, begin)) return CV_FAIL(e, FILE_KIND, "%s is text, but neither JSON nor a list of merges", path);
    CV_TRY(cv_vocab_read_file(pool, path, &v, e));
    cv_say(out, "tokenizer");
    cv_tell_vocab(out, &v);
    return 0;
}

static int cv_look(cv_pool *pool, const char *path, cv_summary *out, cv_error *e) {
    uint8_t begin[512];
    cv_file f;
    size_t n;
    int json = 0, failed;
    char *text;
    if (cv_is_folder(path)) return cv_check_folder(pool, path, out, e);
    CV_TRY(cv_open(&f, path, e));
    n = f.size < sizeof begin ? (size_t)f.size : sizeof begin;
    failed = cv_read_at(&f, 0, begin, n, e) || cv_is_json(&f, &json, e) || cv_no_pointer(path, (const char *)begin, n, e);
    cv_close(&f);
    if (failed) return 1;
    if (n >= 4 && (memcmp(begin, "GGUF", 4) == 0 || memcmp(begin, "FUGG", 4) == 0)) return cv_check_gguf(path, out, e);
    if (json || cv_ends_with(path, ".json")) {
        CV_TRY(cv_read_file(pool, path, CV_JSON_MOST, &text, &n, e));
        return cv_check_json(pool, path, text, n, out, e);
    }
    if (cv_begins_safetensors(path, begin, n)) return cv_check_safetensors(pool, path, out, e);
    return cv_check_rest(pool, path, begin, n, out, e);
}

/* --check: prints `PATH: ok: SUMMARY`, or sets the error. */
static int cv_check(cv_pool *pool, const char *path, cv_error *e) {
    cv_summary s;
    memset(&s, 0, sizeof s);
    CV_TRY(cv_look(pool, path, &s, e));
    printf("%s: ok: %s\n", path, s.text);
    return 0;
}

/* ---- >>MAIN: the command line ------------------------------------------------------------------------------------------- */

#ifndef CV_NO_MAIN

static const char cv_usage[] =
    "prediff-convert IN OUT.gguf [options]            to GGUF: IN is a Hugging Face folder, a .safetensors file,\n"
    "                                                 a llama2.c .bin or a .gguf\n"
    "prediff-convert IN.gguf OUT_FOLDER --to hf       to safetensors, config.json and tokenizer files\n"
    "prediff-convert --check PATH                     reads a file or folder and says what is wrong where\n"
    "\n"
    "  --type T          f32, f16, bf16, q8_0 or q4_0 (default: as the source has it; to hf: f32). Vectors stay F32,\n"
    "                    rows that are no whole blocks become F16\n"
    "  --keep PATTERN    tensors whose GGUF name matches (* is anything) keep the source's type; may be repeated\n"
    "  --tokenizer FILE  tokenizer.json, tokenizer.model, llama2.c's tokenizer.bin or a GGUF, instead of IN's own\n"
    "  --mask-token N    the vocabulary row that stands for the mask, where the source does not say\n"
    "  --add FILE        put the additions (tensors prediff.*) of a .safetensors file into the model\n"
    "  --strip           leave the additions out\n"
    "  --to gguf|hf      what to write (default: gguf)\n"
    "  --dry-run         print what would become what, write nothing\n"
    "  --force           replace what is there\n"
    "  -v, --verbose     print each tensor and its quantisation error\n"
    "  -q, --quiet       print errors only\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 1 failed (bad file), 2 wrong usage. docs/convert.md has a table of commands.\n";

static int cv_usage_error(const char *what, const char *which) {
    fprintf(stderr, "prediff-convert: %s%s; --help lists the options\n", what, which);
    return 2;
}

static int cv_read_type(const char *name, uint32_t *type) {
    static const struct { const char *name; uint32_t type; } types[] = { { "f32", PREDIFF_F32 }, { "f16", PREDIFF_F16 }, { "bf16", PREDIFF_BF16 },
                                                                         { "q8_0", PREDIFF_Q8_0 }, { "q4_0", PREDIFF_Q4_0 } };
    size_t i;
    for (i = 0; i < CV_COUNT(types); i++) if (strcmp(name, types[i].name) == 0) { *type = types[i].type; return 1; }
    return 0;
}

static int cv_read_id(const char *text, int32_t *id) {
    int64_t v = 0;
    if (!*text) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || (v = v * 10 + (*text - '0')) > INT32_MAX) return 0;
    }
    *id = (int32_t)v;
    return 1;
}

/* Fills o; *check: the path of --check. 0, or the exit status plus 1. */
static int cv_parse(int argc, char **argv, cv_options *o, const char **check) {
    static const char *const flags[] = { "--type", "--keep", "--tokenizer", "--mask-token", "--add", "--to", "--check" };
    int i, k;
    memset(o, 0, sizeof *o);
    o->mask_token = -1;
    for (i = 1; i < argc; i++) {
        const char *a = argv[i], *value = NULL;
        for (k = 0; k < (int)CV_COUNT(flags); k++) if (strcmp(a, flags[k]) == 0) break;
        if (k < (int)CV_COUNT(flags)) {
            if (++i == argc) return 1 + cv_usage_error("a value is missing after ", a);
            value = argv[i];
        }
        if (k == 0 && !cv_read_type(value, &o->type)) return 1 + cv_usage_error("--type must be f32, f16, bf16, q8_0 or q4_0, not ", value);
        if (k == 1 && o->n_keep == CV_COUNT(o->keep)) return 1 + cv_usage_error("too many of ", a);
        if (k == 3 && !cv_read_id(value, &o->mask_token)) return 1 + cv_usage_error("--mask-token must be a token id, not ", value);
        if (k == 5 && strcmp(value, "hf") != 0 && strcmp(value, "gguf") != 0) return 1 + cv_usage_error("--to must be gguf or hf, not ", value);
        if (k == 0) o->has_type = 1;
        else if (k == 1) o->keep[o->n_keep++] = value;
        else if (k == 2) o->tokenizer = value;
        else if (k == 4) o->add = value;
        else if (k == 5) o->hf = value[0] == 'h';
        else if (k == 6) *check = value;
        else if (k == 3) continue;
        else if (strcmp(a, "--strip") == 0) o->strip = 1;
        else if (strcmp(a, "--dry-run") == 0) o->dry_run = 1;
        else if (strcmp(a, "--force") == 0) o->force = 1;
        else if (strcmp(a, "-v") == 0 || strcmp(a, "--verbose") == 0) o->verbose = 1;
        else if (strcmp(a, "-q") == 0 || strcmp(a, "--quiet") == 0) o->quiet = 1;
        else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) { fputs(cv_usage, stdout); return 1; }
        else if (strcmp(a, "--version") == 0) { printf("prediff-convert %d.%d.%d\n", PREDIFF_VERSION / 10000, PREDIFF_VERSION / 100 % 100, PREDIFF_VERSION % 100); return 1; }
        else if (a[0] == '-' && a[1]) return 1 + cv_usage_error("unknown option ", a);
        else if (!o->in) o->in = a;
        else if (!o->out) o->out = a;
        else return 1 + cv_usage_error("one argument too many: ", a);
    }
    return 0;
}

static int cv_settings(const cv_options *o, const char *check) {
    if (check) return o->in || o->hf || o->has_type ? cv_usage_error("--check takes a path and nothing else", "") : 0;
    if (!o->in) return cv_usage_error("what shall be converted?", "");
    if (!o->out && !o->dry_run) return cv_usage_error("where to? Give an output after ", o->in);
    if (o->hf && o->has_type && pdi_type_of(o->type)->block > 1) return cv_usage_error("safetensors hold f32, f16 or bf16, not ", prediff_type_name(o->type));
    if (o->strip && o->add) return cv_usage_error("--strip and --add exclude each other", "");
    if (o->hf && (o->add || o->n_keep || o->mask_token >= 0)) return cv_usage_error("--to hf takes no --add, --keep or --mask-token", "");
    return 0;
}

/* What IN is, by its first bytes. */
static int cv_source_open(cv_source *s, cv_pool *pool, const cv_options *o, cv_error *e) {
    uint8_t magic[32];
    cv_file f;
    size_t n;
    int failed;
    s->quiet = o->quiet;
    if (cv_is_folder(o->in)) return cv_source_folder(s, pool, o->in, e);
    CV_TRY(cv_open(&f, o->in, e));
    memset(magic, 0, sizeof magic);
    failed = cv_read_at(&f, 0, magic, (size_t)(f.size < sizeof magic ? f.size : sizeof magic), e);
    cv_close(&f);
    if (failed) return 1;
    if (memcmp(magic, "GGUF", 4) == 0 || memcmp(magic, "FUGG", 4) == 0) return cv_source_gguf(s, pool, o, e);
    n = strlen(o->in);
    if (magic[0] == '{' || magic[8] == '{' || (n > 12 && strcmp(o->in + n - 12, ".safetensors") == 0)) return cv_source_folder(s, pool, o->in, e);
    if (!cv_begins_bin(magic, (size_t)(f.size < sizeof magic ? f.size : sizeof magic)))
        return CV_FAIL(e, FILE_KIND, "%s is no GGUF, no safetensors and no llama2.c file", o->in);
    return cv_source_bin(s, pool, o->in, e);
}

/* Rows of the model beyond the tokens get tokens of their own, which stand for nothing: other tools want as many as rows. */
static int cv_pad_vocabulary(cv_vocab *v, cv_pool *pool, size_t rows, cv_error *e) {
    prediff_string *tokens = (prediff_string *)cv_alloc(pool, rows, sizeof *tokens, e);
    float *scores = v->scores ? (float *)cv_alloc(pool, rows, sizeof *scores, e) : NULL;
    int32_t *types = (int32_t *)cv_alloc(pool, rows, sizeof *types, e);
    size_t i;
    if (!tokens || !types || (v->scores && !scores)) return 1;
    memcpy(tokens, v->tokens, v->n * sizeof *tokens);
    memcpy(types, v->types, v->n * sizeof *types);
    if (scores) memcpy(scores, v->scores, v->n * sizeof *scores);
    for (i = v->n; i < rows; i++) {
        char name[32];
        snprintf(name, sizeof name, "[PAD%u]", (unsigned)i);
        tokens[i] = cv_str(cv_copy(pool, name, strlen(name), e));
        if (!tokens[i].bytes) return 1;
        types[i] = PDI_TYPE_UNUSED;
        if (scores) scores[i] = -1e9f;
    }
    v->tokens = tokens; v->types = types; v->scores = scores; v->n = rows;
    return 0;
}

/* The vocabulary and special ids: of the tokenizer, or where it is silent, of the config. */
static int cv_settle_vocabulary(cv_source *s, cv_pool *pool, const cv_options *o, cv_error *e) {
    cv_vocab *v = &s->vocab;
    const cv_config *c = &s->config;
    if (o->tokenizer) {
        CV_TRY(cv_vocab_read_file(pool, o->tokenizer, v, e));
        s->has_vocab = 1;
    }
    if (!s->has_vocab) {
        memset(v, 0, sizeof *v);
        v->bos = v->eos = v->eot = v->unk = v->pad = v->mask = -1;
    }
    if (v->bos < 0) v->bos = c->bos;
    if (v->eos < 0) v->eos = c->eos;
    if (v->pad < 0) v->pad = c->pad;
    if (c->mask >= 0) v->mask = c->mask;
    if (o->mask_token >= 0) v->mask = o->mask_token;
    if (s->has_vocab && c->n_vocab && v->n > c->n_vocab)
        return CV_FAIL(e, TOKENIZER, "the tokenizer has %u tokens, the model only %u rows: they do not belong together", (uint64_t)v->n, (uint64_t)c->n_vocab);
    if (s->has_vocab && v->n < c->n_vocab) CV_TRY(cv_pad_vocabulary(v, pool, c->n_vocab, e));
    if (s->has_vocab && v->remark) cv_note(s->quiet, "%s", v->remark);
    if (s->has_vocab) return cv_vocab_keys(pool, v, &s->keys, e);
    cv_note(s->quiet, "no tokenizer found: the model works on token ids alone (--tokenizer FILE adds one)");
    if (v->bos >= 0) CV_TRY(cv_key_u32(pool, &s->keys, "tokenizer.ggml.bos_token_id", (uint32_t)v->bos, e));
    if (v->eos >= 0) CV_TRY(cv_key_u32(pool, &s->keys, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos, e));
    if (v->mask >= 0) CV_TRY(cv_key_u32(pool, &s->keys, "tokenizer.ggml.mask_token_id", (uint32_t)v->mask, e));
    return 0;
}

static int cv_convert(cv_source *s, cv_pool *pool, const cv_options *o, cv_error *e) {
    prediff_container g;
    CV_TRY(cv_source_open(s, pool, o, e));
    if (o->hf && !s->gguf) return CV_FAIL(e, UNSUPPORTED, "--to hf takes a GGUF file");
    if (o->add) CV_TRY(cv_source_add(s, pool, o->add, e));
    if (o->strip && !s->gguf) cv_strip_parts(s);
    if (s->gguf) {
        prediff_container_get(s->gguf, &g);
        if (o->hf) {
            CV_TRY(cv_vocab_from_keys(pool, &g, &s->vocab, &s->has_vocab, e));
            return cv_write_folder(pool, s, o, e);
        }
        if (o->tokenizer) CV_TRY(cv_settle_vocabulary(s, pool, o, e));
        else if (o->mask_token >= 0) CV_TRY(cv_key_u32(pool, &s->keys, "tokenizer.ggml.mask_token_id", (uint32_t)o->mask_token, e));
        if (o->add) cv_settle_additions(s);
        CV_TRY(cv_addition_keys(pool, &s->config, &s->keys, e));
    } else {
        cv_settle_additions(s);
        CV_TRY(cv_config_keys(pool, &s->config, s->name, &s->keys, e));
        CV_TRY(cv_settle_vocabulary(s, pool, o, e));
    }
    CV_TRY(cv_source_ready(s, pool, e));
    return cv_write_gguf(pool, s, o, e);
}

int main(int argc, char **argv) {
    cv_pool pool = { NULL };
    cv_options o;
    cv_source s;
    cv_error e;
    const char *check = NULL;
    int status = cv_parse(argc, argv, &o, &check);
    if (status) return status - 1;
    status = cv_settings(&o, check);
    if (status) return status;
    memset(&s, 0, sizeof s);
    memset(&e, 0, sizeof e);
    status = check ? cv_check(&pool, check, &e) : cv_convert(&s, &pool, &o, &e);
    if (status) fprintf(stderr, "prediff-convert: %s: %s\n", cv_item_name(e.item), e.message);
    cv_source_close(&s);
    cv_pool_free(&pool);
    return status ? 1 : 0;
}

#endif /* CV_NO_MAIN */
