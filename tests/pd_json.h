/* SPDX-License-Identifier: MIT
 * pd_json.h: a small JSON reader for test data. A text becomes a tree of nodes; anything malformed gives NULL.
 */
#ifndef PD_JSON_H
#define PD_JSON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PD_JSON_FN static __attribute__((unused))
#else
#define PD_JSON_FN static
#endif

typedef struct pd_json {
    int type;                          /* one of  n t f # " [ {  */
    double number;
    char *text; size_t text_n;         /* of a string: UTF-8, terminated, may hold NUL */
    char *key;                         /* of an object's member */
    struct pd_json *child, *next;
    size_t n;                          /* children */
} pd_json;

PD_JSON_FN void pd_json_free(pd_json *j) {
    while (j) {                        /* depth is bounded by the parser, width is not: recurse into children only */
        pd_json *next = j->next;
        pd_json_free(j->child);
        free(j->text);
        free(j->key);
        free(j);
        j = next;
    }
}

typedef struct pd_json_reader { const char *p, *end; int bad, depth; } pd_json_reader;

PD_JSON_FN void pd_json_space(pd_json_reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

PD_JSON_FN unsigned pd_json_hex4(pd_json_reader *r) {
    unsigned v = 0;
    int i;
    for (i = 0; i < 4; i++, r->p++) {
        char c = r->p < r->end ? *r->p : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) { r->bad = 1; return 0; }
        v = v * 16 + (unsigned)digit;
    }
    return v;
}

PD_JSON_FN size_t pd_json_utf8(char *out, unsigned c) {
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 63)); return 2; }
    if (c < 0x10000) { out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 63)); out[2] = (char)(0x80 | (c & 63)); return 3; }
    out[0] = (char)(0xF0 | c >> 18); out[1] = (char)(0x80 | (c >> 12 & 63)); out[2] = (char)(0x80 | (c >> 6 & 63)); out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* After the opening quote. No escape becomes longer than its source, so the rest of the text bounds the length. */
PD_JSON_FN char *pd_json_string(pd_json_reader *r, size_t *n) {
    const char *q = r->p;
    char *out;
    size_t k = 0;
    while (q < r->end && *q != '"') q += *q == '\\' && q + 1 < r->end ? 2 : 1;
    out = (char *)malloc((size_t)(q - r->p) + 5);
    if (!out) abort();
    while (r->p < r->end && *r->p != '"' && !r->bad) {
        char c = *r->p++;
        unsigned u;
        if (c != '\\') { out[k++] = c; continue; }
        c = r->p < r->end ? *r->p++ : 0;
        switch (c) {
        case 'n': out[k++] = '\n'; break;
        case 't': out[k++] = '\t'; break;
        case 'r': out[k++] = '\r'; break;
        case 'b': out[k++] = '\b'; break;
        case 'f': out[k++] = '\f'; break;
        case '"': case '\\': case '/': out[k++] = c; break;
        case 'u':
            u = pd_json_hex4(r);
            if (u >= 0xD800 && u < 0xDC00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
                r->p += 2;
                u = 0x10000 + ((u - 0xD800) << 10) + (pd_json_hex4(r) - 0xDC00);
            }
            k += pd_json_utf8(out + k, u);
            break;
        default: r->bad = 1;
        }
    }
    if (r->p >= r->end) r->bad = 1;
    else r->p++;
    out[k] = 0;
    *n = k;
    return out;
}

PD_JSON_FN pd_json *pd_json_value(pd_json_reader *r);

/* Children of [ or {, which has been read. */
PD_JSON_FN void pd_json_children(pd_json_reader *r, pd_json *j, char close) {
    pd_json **tail = &j->child;
    size_t ignored;
    pd_json_space(r);
    if (r->p < r->end && *r->p == close) { r->p++; return; }
    while (!r->bad) {
        char *key = NULL;
        pd_json_space(r);
        if (close == '}') {
            if (r->p >= r->end || *r->p++ != '"') { r->bad = 1; return; }
            key = pd_json_string(r, &ignored);
            pd_json_space(r);
            if (r->p >= r->end || *r->p++ != ':') { r->bad = 1; free(key); return; }
        }
        *tail = pd_json_value(r);
        if (!*tail) { free(key); return; }
        (*tail)->key = key;
        tail = &(*tail)->next;
        j->n++;
        pd_json_space(r);
        if (r->p < r->end && *r->p == close) { r->p++; return; }
        if (r->p >= r->end || *r->p++ != ',') r->bad = 1;
    }
}

PD_JSON_FN int pd_json_word(pd_json_reader *r, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, w, n) != 0) { r->bad = 1; return 0; }
    r->p += n;
    return 1;
}

PD_JSON_FN pd_json *pd_json_value(pd_json_reader *r) {
    pd_json *j = (pd_json *)calloc(1, sizeof *j);
    char *stop, number[64];
    size_t n = 0;
    if (!j) abort();
    if (++r->depth > 64) r->bad = 1;
    pd_json_space(r);
    j->type = r->p < r->end ? *r->p : 0;
    switch (j->type) {
    case '{': r->p++; pd_json_children(r, j, '}'); break;
    case '[': r->p++; pd_json_children(r, j, ']'); break;
    case '"': r->p++; j->text = pd_json_string(r, &j->text_n); break;
    case 't': pd_json_word(r, "true"); break;
    case 'f': pd_json_word(r, "false"); break;
    case 'n': pd_json_word(r, "null"); break;
    default:
        while (r->p < r->end && n + 1 < sizeof number && *r->p && strchr("+-0123456789.eE", *r->p)) number[n++] = *r->p++;
        number[n] = 0;
        j->type = '#';
        j->number = strtod(number, &stop);
        if (!n || *stop) r->bad = 1;
    }
    r->depth--;
    if (r->bad) { pd_json_free(j); return NULL; }
    return j;
}

/* One value; *used (may be NULL) tells where it ended, so that lines of values can be read one after the other. */
PD_JSON_FN pd_json *pd_json_parse(const char *text, size_t n, size_t *used) {
    pd_json_reader r;
    pd_json *j;
    r.p = text; r.end = text + n; r.bad = r.depth = 0;
    j = pd_json_value(&r);
    pd_json_space(&r);
    if (used) *used = (size_t)(r.p - text);
    else if (j && r.p != r.end) { pd_json_free(j); j = NULL; }
    return j;
}

/* A whole file, terminated; NULL if it cannot be read. */
PD_JSON_FN char *pd_json_slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *b = NULL;
    size_t room = 1 << 16, got;
    *n = 0;
    if (!f) return NULL;
    do {
        room *= 2;
        b = (char *)realloc(b, room + 1);
        if (!b) abort();
        got = fread(b + *n, 1, room - *n, f);
        *n += got;
    } while (*n == room);
    b[*n] = 0;
    fclose(f);
    return b;
}

PD_JSON_FN pd_json *pd_json_read(const char *path) {
    size_t n;
    char *b = pd_json_slurp(path, &n);
    pd_json *j = b ? pd_json_parse(b, n, NULL) : NULL;
    free(b);
    return j;
}

PD_JSON_FN const pd_json *pd_json_get(const pd_json *j, const char *key) {
    const pd_json *c = j ? j->child : NULL;
    while (c && (!c->key || strcmp(c->key, key) != 0)) c = c->next;
    return c;
}

PD_JSON_FN const pd_json *pd_json_at(const pd_json *j, size_t i) {
    const pd_json *c = j ? j->child : NULL;
    while (c && i--) c = c->next;
    return c;
}

PD_JSON_FN double pd_json_number(const pd_json *j, const char *key) {
    const pd_json *c = key ? pd_json_get(j, key) : j;
    return c ? c->number : 0;
}

/* Numbers of nested arrays in order; counts them when out is NULL. */
PD_JSON_FN size_t pd_json_flatten(const pd_json *j, double *out) {
    const pd_json *c;
    size_t n = 0;
    if (!j) return 0;
    if (j->type == '#') { if (out) *out = j->number; return 1; }
    for (c = j->child; c; c = c->next) n += pd_json_flatten(c, out ? out + n : NULL);
    return n;
}

PD_JSON_FN double *pd_json_doubles(const pd_json *j, size_t *n) {
    double *v;
    *n = pd_json_flatten(j, NULL);
    v = (double *)calloc(*n + 1, sizeof *v);
    if (!v) abort();
    pd_json_flatten(j, v);
    return v;
}

PD_JSON_FN float *pd_json_floats(const pd_json *j, size_t *n) {
    double *v = pd_json_doubles(j, n);
    float *f = (float *)calloc(*n + 1, sizeof *f);
    size_t i;
    if (!f) abort();
    for (i = 0; i < *n; i++) f[i] = (float)v[i];
    free(v);
    return f;
}

PD_JSON_FN int32_t *pd_json_ints(const pd_json *j, size_t *n) {
    double *v = pd_json_doubles(j, n);
    int32_t *k = (int32_t *)calloc(*n + 1, sizeof *k);
    size_t i;
    if (!k) abort();
    for (i = 0; i < *n; i++) k[i] = (int32_t)v[i];
    free(v);
    return k;
}

#endif /* PD_JSON_H */
