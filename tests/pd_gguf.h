/* SPDX-License-Identifier: MIT
 * pd_gguf.h: takes a good GGUF file apart so that tests can spoil it: every number of the header is a named field that can
 * be patched, keys and tensors can be added, removed and doubled. Also the failing allocator. Include after pd_tiny.h.
 */
#ifndef PD_GGUF_H
#define PD_GGUF_H

#include "pd_tiny.h"

typedef enum pd_what { PD_MAGIC, PD_VERSION, PD_N_TENSORS, PD_N_KEYS, PD_KEY_LENGTH, PD_KEY_TYPE, PD_ELEMENT, PD_COUNT, PD_VALUE, PD_STRING_LENGTH,
    PD_NAME_LENGTH, PD_N_DIMS, PD_DIM0, PD_DIM1, PD_DIM2, PD_DIM3, PD_TENSOR_TYPE, PD_OFFSET } pd_what;

typedef struct pd_field { pd_what what; size_t at; int width; size_t owner; } pd_field;       /* owner: entry index */
typedef struct pd_span { size_t begin, end, name, name_n; int tensor; } pd_span;              /* one key or tensor record */

typedef struct pd_gguf {
    pd_bytes head, data;                           /* fixed header, keys, tensors; the data section */
    size_t keys_end;
    pd_span entries[128]; size_t n_entries;        /* keys first */
    pd_field fields[1024]; size_t n_fields;
} pd_gguf;

PD_TINY_FN uint64_t pd_get(const uint8_t *p, int width) {
    uint64_t v = 0;
    int i;
    for (i = 0; i < width; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

PD_TINY_FN void pd_set(uint8_t *p, int width, uint64_t v) { int i; for (i = 0; i < width; i++) p[i] = (uint8_t)(v >> 8 * i); }

/* Notes a field at *at and steps over it. */
PD_TINY_FN uint64_t pd_note(pd_gguf *g, pd_what what, size_t *at, int width) {
    pd_field *f = &g->fields[g->n_fields];
    if (g->n_fields == sizeof g->fields / sizeof *g->fields || *at + (size_t)width > g->head.n) abort();
    f->what = what; f->at = *at; f->width = width; f->owner = g->n_entries;
    g->n_fields++;
    *at += (size_t)width;
    return pd_get(g->head.p + f->at, width);
}

PD_TINY_FN void pd_index_value(pd_gguf *g, size_t *at) {
    static const int width[13] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    uint64_t type = pd_note(g, PD_KEY_TYPE, at, 4), i, n;
    if (type == 8) *at += pd_note(g, PD_STRING_LENGTH, at, 8);
    else if (type != 9) pd_note(g, PD_VALUE, at, width[type]);
    else {
        type = pd_note(g, PD_ELEMENT, at, 4);
        n = pd_note(g, PD_COUNT, at, 8);
        for (i = 0; type == 8 && i < n; i++) {     /* only the first and the last string's length become fields */
            if (i == 0 || i + 1 == n) *at += pd_note(g, PD_STRING_LENGTH, at, 8);
            else *at += 8 + pd_get(g->head.p + *at, 8);
        }
        if (type != 8) *at += n * (uint64_t)width[type];
    }
}

/* Walks a good header; called again after every structural change. */
PD_TINY_FN void pd_index(pd_gguf *g) {
    size_t at = 0, i, n_keys, n_tensors;
    uint64_t d, dims;
    g->n_fields = g->n_entries = 0;
    pd_note(g, PD_MAGIC, &at, 4);
    pd_note(g, PD_VERSION, &at, 4);
    n_tensors = (size_t)pd_note(g, PD_N_TENSORS, &at, 8);
    n_keys = (size_t)pd_note(g, PD_N_KEYS, &at, 8);
    g->keys_end = at;
    for (i = 0; i < n_keys + n_tensors; i++, g->n_entries++) {
        pd_span *e = &g->entries[g->n_entries];
        if (g->n_entries == sizeof g->entries / sizeof *g->entries) abort();
        e->begin = at;
        e->tensor = i >= n_keys;
        e->name_n = (size_t)pd_note(g, e->tensor ? PD_NAME_LENGTH : PD_KEY_LENGTH, &at, 8);
        e->name = at;
        at += e->name_n;
        if (e->tensor) {
            dims = pd_note(g, PD_N_DIMS, &at, 4);
            for (d = 0; d < dims; d++) pd_note(g, (pd_what)(PD_DIM0 + (int)d), &at, 8);
            pd_note(g, PD_TENSOR_TYPE, &at, 4);
            pd_note(g, PD_OFFSET, &at, 8);
        } else { pd_index_value(g, &at); g->keys_end = at; }
        e->end = at;
    }
    g->head.n = at;
}

PD_TINY_FN pd_gguf *pd_gguf_parse(const uint8_t *bytes, size_t n) {
    pd_gguf *g = (pd_gguf *)calloc(1, sizeof *g);
    size_t start;
    if (!g) abort();
    pd_put(&g->head, bytes, n);
    pd_index(g);
    start = (g->head.n + 31) / 32 * 32;
    if (n > start) pd_put(&g->data, bytes + start, n - start);
    return g;
}

PD_TINY_FN pd_gguf *pd_gguf_tiny(const pd_tiny *t) {
    size_t n;
    uint8_t *b = pd_tiny_bytes(t, &n);
    pd_gguf *g = pd_gguf_parse(b, n);
    free(b);
    return g;
}

PD_TINY_FN void pd_gguf_free(pd_gguf *g) { free(g->head.p); free(g->data.p); free(g); }

/* The file in a heap block of exactly its size. */
PD_TINY_FN uint8_t *pd_gguf_write(const pd_gguf *g, size_t *n) {
    size_t start = (g->head.n + 31) / 32 * 32, size = g->data.n ? start + g->data.n : g->head.n;
    uint8_t *p = (uint8_t *)calloc(size ? size : 1, 1);
    if (!p) abort();
    memcpy(p, g->head.p, g->head.n);
    if (g->data.n) memcpy(p + start, g->data.p, g->data.n);
    *n = size;
    return p;
}

/* The key or tensor of this name; the last one if there are two. Aborts if absent: a test that spoils nothing is no test. */
PD_TINY_FN size_t pd_entry(const pd_gguf *g, const char *name) {
    size_t i = g->n_entries;
    while (i-- > 0)
        if (g->entries[i].name_n == strlen(name) && memcmp(g->head.p + g->entries[i].name, name, g->entries[i].name_n) == 0) return i;
    fprintf(stderr, "pd_gguf: no key or tensor %s\n", name);
    abort();
}

/* The place of a field; name NULL for the fixed header. */
PD_TINY_FN uint8_t *pd_at(pd_gguf *g, const char *name, pd_what what, int *width) {
    size_t owner = name ? pd_entry(g, name) : 0, i;
    for (i = 0; i < g->n_fields; i++)
        if (g->fields[i].what == what && (what <= PD_N_KEYS || g->fields[i].owner == owner)) {
            if (width) *width = g->fields[i].width;
            return g->head.p + g->fields[i].at;
        }
    fprintf(stderr, "pd_gguf: %s has no field %d\n", name ? name : "the header", (int)what);
    abort();
}

PD_TINY_FN void pd_patch(pd_gguf *g, const char *name, pd_what what, uint64_t v) {
    int width;
    uint8_t *p = pd_at(g, name, what, &width);
    pd_set(p, width, v);
}

/* Replaces head[begin, end) by n bytes. */
PD_TINY_FN void pd_splice(pd_gguf *g, size_t begin, size_t end, const void *bytes, size_t n) {
    pd_bytes out = { NULL, 0, 0 };
    pd_put(&out, g->head.p, begin);
    pd_put(&out, bytes, n);
    pd_put(&out, g->head.p + end, g->head.n - end);
    free(g->head.p);
    g->head = out;
}

PD_TINY_FN void pd_bump(pd_gguf *g, pd_what what, int by) {
    uint8_t *p = pd_at(g, NULL, what, NULL);
    pd_set(p, 8, pd_get(p, 8) + (uint64_t)(int64_t)by);
}

PD_TINY_FN void pd_remove(pd_gguf *g, const char *name) {
    pd_span e = g->entries[pd_entry(g, name)];
    pd_splice(g, e.begin, e.end, "", 0);
    pd_bump(g, e.tensor ? PD_N_TENSORS : PD_N_KEYS, -1);
    pd_index(g);
}

/* Adds a key; value: what follows the type (of an array: element, count, elements). */
PD_TINY_FN void pd_add_key_named(pd_gguf *g, const char *name, size_t name_n, uint32_t type, const void *value, size_t n) {
    pd_bytes b = { NULL, 0, 0 };
    pd_put_str(&b, name, name_n);
    pd_put_int(&b, type, 4);
    pd_put(&b, value, n);
    pd_splice(g, g->keys_end, g->keys_end, b.p, b.n);
    free(b.p);
    pd_bump(g, PD_N_KEYS, 1);
    pd_index(g);
}

PD_TINY_FN void pd_add_key(pd_gguf *g, const char *name, uint32_t type, const void *value, size_t n) {
    pd_add_key_named(g, name, strlen(name), type, value, n);
}

PD_TINY_FN int pd_has(const pd_gguf *g, const char *name) {
    size_t i;
    for (i = 0; i < g->n_entries; i++)
        if (g->entries[i].name_n == strlen(name) && memcmp(g->head.p + g->entries[i].name, name, g->entries[i].name_n) == 0) return 1;
    return 0;
}

/* -- keys set to a value, replaced if there -- */

PD_TINY_FN void pd_set_number(pd_gguf *g, const char *name, uint32_t type, int width, uint64_t v) {
    uint8_t b[8];
    pd_set(b, 8, v);
    if (pd_has(g, name)) pd_remove(g, name);
    pd_add_key(g, name, type, b, (size_t)width);
}

PD_TINY_FN void pd_set_u32(pd_gguf *g, const char *name, uint32_t v) { pd_set_number(g, name, 4, 4, v); }
PD_TINY_FN void pd_set_bool(pd_gguf *g, const char *name, int v) { pd_set_number(g, name, 7, 1, (uint64_t)v); }
PD_TINY_FN void pd_set_f32(pd_gguf *g, const char *name, float v) { uint32_t u; memcpy(&u, &v, 4); pd_set_number(g, name, 6, 4, u); }

PD_TINY_FN void pd_set_string(pd_gguf *g, const char *name, const char *v) {
    pd_bytes b = { NULL, 0, 0 };
    pd_put_str(&b, v, strlen(v));
    if (pd_has(g, name)) pd_remove(g, name);
    pd_add_key(g, name, 8, b.p, b.n);
    free(b.p);
}

/* count elements, given as they are in the file. */
PD_TINY_FN void pd_set_array(pd_gguf *g, const char *name, uint32_t element, size_t count, const void *elements, size_t n) {
    pd_bytes b = { NULL, 0, 0 };
    pd_put_int(&b, element, 4);
    pd_put_int(&b, count, 8);
    pd_put(&b, elements, n);
    if (pd_has(g, name)) pd_remove(g, name);
    pd_add_key(g, name, 9, b.p, b.n);
    free(b.p);
}

PD_TINY_FN void pd_set_strings(pd_gguf *g, const char *name, const char *const *v, size_t count) {
    pd_bytes b = { NULL, 0, 0 };
    size_t i;
    for (i = 0; i < count; i++) pd_put_str(&b, v[i], strlen(v[i]));
    pd_set_array(g, name, 8, count, b.p, b.n);
    free(b.p);
}

/* A tensor of n F32 values of 0, data appended at the end. */
PD_TINY_FN void pd_add_tensor(pd_gguf *g, const char *name, size_t name_n, uint64_t cols, uint64_t rows) {
    pd_bytes b = { NULL, 0, 0 };
    static const uint8_t zeros[64];
    uint64_t i;
    while (g->data.n % 32) pd_put(&g->data, zeros, 1);
    pd_put_str(&b, name, name_n);
    pd_put_int(&b, 2, 4);
    pd_put_int(&b, cols, 8);
    pd_put_int(&b, rows, 8);
    pd_put_int(&b, 0, 4);
    pd_put_int(&b, g->data.n, 8);
    for (i = 0; i < cols * rows; i++) pd_put(&g->data, zeros, 4);
    pd_splice(g, g->head.n, g->head.n, b.p, b.n);
    free(b.p);
    pd_bump(g, PD_N_TENSORS, 1);
    pd_index(g);
}

/* The key or tensor of this name a second time, just after the first. */
PD_TINY_FN void pd_double(pd_gguf *g, const char *name) {
    pd_span e = g->entries[pd_entry(g, name)];
    pd_bytes copy = { NULL, 0, 0 };
    pd_put(&copy, g->head.p + e.begin, e.end - e.begin);
    pd_splice(g, e.end, e.end, copy.p, copy.n);
    free(copy.p);
    pd_bump(g, e.tensor ? PD_N_TENSORS : PD_N_KEYS, 1);
    pd_index(g);
}

PD_TINY_FN void pd_rename(pd_gguf *g, const char *name, const char *to) {
    pd_span e = g->entries[pd_entry(g, name)];
    pd_bytes b = { NULL, 0, 0 };
    pd_put_str(&b, to, strlen(to));
    pd_splice(g, e.begin, e.name + e.name_n, b.p, b.n);
    free(b.p);
    pd_index(g);
}

/* -- an allocator that counts, fails when told, and checks the sizes given back -- */

typedef struct pd_heap {
    size_t calls, live, bytes, most;               /* calls so far; blocks and bytes alive; most bytes ever alive */
    size_t fail_at;                                /* 1: the first call fails; 0: none does */
    size_t wrong;                                  /* frees with another size than asked for */
} pd_heap;

enum { PD_HEAP_HEAD = 25 };                        /* odd: no alignment may be assumed */

PD_TINY_FN void *pd_heap_alloc(void *user, size_t size) {
    pd_heap *h = (pd_heap *)user;
    uint8_t *p = NULL;
    if (++h->calls != h->fail_at && size <= SIZE_MAX - PD_HEAP_HEAD) p = (uint8_t *)malloc(PD_HEAP_HEAD + size);
    if (!p) return NULL;
    memcpy(p, &size, sizeof size);
    memset(p + PD_HEAP_HEAD, 0xA5, size);          /* nothing may count on zeroed memory */
    h->live++; h->bytes += size;
    if (h->bytes > h->most) h->most = h->bytes;
    return p + PD_HEAP_HEAD;
}

PD_TINY_FN void pd_heap_free(void *user, void *ptr, size_t size) {
    pd_heap *h = (pd_heap *)user;
    uint8_t *p = (uint8_t *)ptr - PD_HEAP_HEAD;
    size_t asked;
    memcpy(&asked, p, sizeof asked);
    h->wrong += asked != size;
    h->live--; h->bytes -= asked;
    free(p);
}

PD_TINY_FN prediff_allocator pd_heap_allocator(pd_heap *h) {
    prediff_allocator a;
    memset(h, 0, sizeof *h);
    a.alloc = pd_heap_alloc; a.free = pd_heap_free; a.user = h;
    return a;
}

/* The file as an open model (it keeps its own copy of the bytes); frees g. */
PD_TINY_FN prediff_model *pd_gguf_open(pd_gguf *g) {
    size_t n;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_model *m = pd_open_bytes(b, n);
    free(b);
    pd_gguf_free(g);
    return m;
}

#endif /* PD_GGUF_H */
