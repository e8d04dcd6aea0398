/* SPDX-License-Identifier: MIT
 * Strange files, failing memory, failing files: whatever comes, the answer is a status with its item, nothing leaks, nothing
 * is left half made. PD_LONG=1 runs the sweeps in full.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "pd_test.h"
#include "corpus.h"
#include "pd_use.h"
#include <time.h>

static int is_long(void) { return getenv("PD_LONG") != NULL; }

/* -- the named corpus -- */

static void test_corpus(void) {
    size_t i, n;
    for (i = 0; i < PD_N_CASES; i++) {
        const pd_case *c = &pd_cases[i];
        uint8_t *b = pd_case_bytes(i, &n);
        pd_used u = pd_use_bytes(b, n);
        PD_CHECKF(!u.broken, "%s: %s", c->name, u.broken ? u.broken : "");
        pd_status((int)u.status, (int)c->status, &u.error, c->item, __FILE__, __LINE__, c->name);
        if (!c->status && !u.status) PD_CHECKF(u.generated, "%s: opens, but nothing was generated: %s", c->name, u.error.message);
        free(b);
    }
}

static prediff_status open_container(const uint8_t *b, size_t n, uint64_t vocabulary, prediff_error *e) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_status s;
    memset(&d, 0, sizeof d);
    d.data = b; d.size = n; d.limits.vocabulary = vocabulary;
    s = prediff_container_open(&m, &d, e);
    if (!s) prediff_model_close(m);
    return s;
}

/* The container alone (`info` of the command line) already refuses what needs no model: G1 to G36 and the tokenizer's arrays. */
static void test_corpus_container(void) {
    size_t i, n;
    prediff_error e;
    for (i = 0; i < PD_N_CASES; i++) {
        const pd_case *c = &pd_cases[i];
        int row = atoi(c->name + 1);
        uint8_t *b;
        if (c->name[0] != 'G' || row > 36) if (strncmp(c->name, "K4 ", 3) != 0 && strncmp(c->name, "J15", 3) != 0) continue;
        if (c->item == PREDIFF_ITEM_GGUF_VALUE_TYPE && row == 15) continue;     /* keys of the model, not of the container */
        b = pd_case_bytes(i, &n);
        pd_status((int)open_container(b, n, 0, &e), (int)c->status, &e, c->item, __FILE__, __LINE__, c->name);
        free(b);
    }
}

/* Every row of the check list that a GGUF file can express has a case. */
static void test_corpus_is_complete(void) {
    static const char *const elsewhere = " G40 K2 K3 K10 K14 K15 K16 K17 K18 K19 K20 K22 ";   /* test_text.c, test_api.c or not GGUF */
    char row[8], spaced[12];
    int i;
    size_t k;
    for (i = 1; i <= 65; i++) {
        snprintf(row, sizeof row, i <= 40 ? "G%d" : "K%d", i <= 40 ? i : i - 40);
        snprintf(spaced, sizeof spaced, " %s ", row);
        for (k = 0; k < PD_N_CASES && (strncmp(pd_cases[k].name, row, strlen(row)) != 0 || pd_cases[k].name[strlen(row)] != ' '); k++) {}
        PD_CHECKF((k < PD_N_CASES) != (strstr(elsewhere, spaced) != NULL), "row %s", row);
    }
}

/* Weights that are not numbers load; generating says NUMERIC and where. */
static void test_g40_weights_not_finite(void) {
    static const uint32_t bad[] = { 0x7FC00000u, 0x7F800000u, 0xFF800000u };
    size_t i, n;
    for (i = 0; i < 3; i++) {
        pd_gguf *g = pd_base(BASE_LLAMA);
        uint8_t *b;
        pd_used u;
        pd_set(g->data.p + (size_t)pd_get(pd_at(g, "output_norm.weight", PD_OFFSET, NULL), 8), 4, bad[i]);
        b = pd_gguf_write(g, &n);
        u = pd_use_bytes(b, n);
        PD_CHECKF(!u.broken && !u.status && !u.generated, "%08x", (unsigned)bad[i]);
        pd_status(u.error.status, PREDIFF_ERR_NUMERIC, &u.error, PREDIFF_ITEM_LOGITS, __FILE__, __LINE__, "generate");
        free(b); pd_gguf_free(g);
    }
}

/* -- sweeps -- */

/* Where the last tensor's data ends: a file cut there or later is whole. */
static size_t data_end(const uint8_t *b, size_t n) {
    prediff_model *m = pd_open_bytes(b, n);
    prediff_container c;
    size_t i, end = 0;
    prediff_container_get(m, &c);
    for (i = 0; i < c.n_tensors; i++) {            /* relative to the first tensor of the file, at the start of the data */
        size_t e = (size_t)(c.tensors[i].data - c.tensors[0].data) + c.tensors[i].data_size;
        if (e > end) end = e;
    }
    prediff_model_close(m);
    return end;
}

static void cut_at(const uint8_t *b, size_t cut, size_t whole, int base) {
    pd_used u = pd_use_bytes(b, cut);
    PD_CHECKF(!u.broken, "base %d cut at %u: %s", base, (unsigned)cut, u.broken ? u.broken : "");
    PD_CHECKF((u.status == PREDIFF_OK) == (cut >= whole), "base %d cut at %u of %u: %s", base, (unsigned)cut, (unsigned)whole, prediff_item_name(u.item));
    if (cut < whole) PD_CHECKF(u.status == PREDIFF_ERR_FORMAT, "base %d cut at %u: %s", base, (unsigned)cut, prediff_status_name(u.status));
}

static void test_truncation(void) {
    int base;
    size_t i, n;
    for (base = 0; base < BASE_COUNT; base++) {
        pd_gguf *g = pd_base(base);
        uint8_t *b = pd_gguf_write(g, &n);
        size_t start = (g->head.n + 31) / 32 * 32, whole = start + data_end(b, n), places = is_long() ? n - start : 257;
        for (i = 0; i < g->head.n; i++) cut_at(b, i, whole, base);
        for (i = 0; i < places; i++) cut_at(b, start + i * (n - start) / places, whole, base);
        for (i = whole - 2; i <= n; i++) cut_at(b, i, whole, base);
        free(b); pd_gguf_free(g);
    }
}

static void flip_bytes(pd_gguf *g, size_t *opened) {
    size_t i, k, n, before = 0;
    uint8_t *b = pd_gguf_write(g, &n);
    for (i = 0; i < g->head.n; i++) {
        uint8_t was = b[i], values[6];
        values[0] = 0; values[1] = 0x7F; values[2] = 0x80; values[3] = 0xFF; values[4] = (uint8_t)(was + 1); values[5] = (uint8_t)(was - 1);
        for (k = 0; k < 6; k++) {
            pd_used u;
            b[i] = values[k];
            u = pd_use_bytes(b, n);
            PD_CHECKF(!u.broken, "byte %u = %02x: %s", (unsigned)i, b[i], u.broken ? u.broken : "");
            PD_CHECKF(u.status != PREDIFF_ERR_INTERNAL, "byte %u = %02x: %s", (unsigned)i, b[i], u.error.message);
            before += u.status == PREDIFF_OK;
        }
        b[i] = was;
    }
    *opened += before;
    free(b);
}

static void test_flips(void) {
    size_t opened = 0;
    int base;
    pd_gguf *g = pd_smallest();
    flip_bytes(g, &opened);
    pd_gguf_free(g);
    PD_CHECKF(opened > 100, "only %u of the spoiled files opened: the sweep does not reach the network", (unsigned)opened);
    for (base = 0; is_long() && base < BASE_COUNT; base++) {
        g = pd_base(base);
        flip_bytes(g, &opened);
        pd_gguf_free(g);
    }
}

static const uint64_t edges[] = { 0, 1, 2, 3, 31, 33, 255, 256, 65535, 65536, 65537, BITS(24), BITS(30), BITS(31) - 1, BITS(31), BITS(32) - 2, BITS(32) - 1, BITS(32),
    BITS(32) + 1, BITS(33), BITS(57), BITS(58), BITS(59), BITS(60), BITS(61), BITS(62), BITS(62) + 1, BITS(63) - 1, BITS(63), BITS(63) + 1, ALL64 - 31, ALL64 - 1, ALL64 };
#define N_EDGES (sizeof edges / sizeof *edges)

/* Every number of the header set to every edge. */
static void sweep_fields(pd_gguf *g) {
    size_t i, k, n;
    uint8_t *b = pd_gguf_write(g, &n);
    for (i = 0; i < g->n_fields; i++) {
        const pd_field *f = &g->fields[i];
        uint64_t was = pd_get(b + f->at, f->width);
        for (k = 0; k < N_EDGES; k++) {
            pd_used u;
            pd_set(b + f->at, f->width, edges[k]);
            u = pd_use_bytes(b, n);
            PD_CHECKF(!u.broken, "field %d at %u = %llx: %s", (int)f->what, (unsigned)f->at, (unsigned long long)edges[k], u.broken ? u.broken : "");
        }
        pd_set(b + f->at, f->width, was);
    }
    free(b);
}

/* Pairs of dimensions whose product wraps to something small. */
static void sweep_products(pd_gguf *g) {
    static const uint64_t pairs[][2] = { { BITS(32), BITS(32) }, { BITS(33), BITS(31) }, { BITS(63) - 1, 2 }, { 2, BITS(63) - 1 }, { BITS(62), 4 }, { BITS(62) + 1, 4 }, { BITS(16), BITS(48) },
        { 4, BITS(62) + 1 }, { BITS(60) + 2, 16 }, { BITS(31), BITS(33) + 1 }, { 3, UINT64_C(0x5555555555555556) }, { BITS(32) + 1, BITS(32) - 1 }, { BITS(16) + 1, BITS(16) - 1 }, { BITS(16), BITS(16) } };
    size_t i, k, n;
    uint8_t *b = pd_gguf_write(g, &n);
    for (i = 0; i + 1 < g->n_fields; i++) {
        const pd_field *f = &g->fields[i];
        if (f->what != PD_DIM0 || g->fields[i + 1].what != PD_DIM1) continue;
        for (k = 0; k < sizeof pairs / sizeof *pairs; k++) {
            uint64_t d0 = pd_get(b + f->at, 8), d1 = pd_get(b + f->at + 8, 8);
            pd_used u;
            pd_set(b + f->at, 8, pairs[k][0]); pd_set(b + f->at + 8, 8, pairs[k][1]);
            u = pd_use_bytes(b, n);
            PD_CHECKF(!u.broken && u.status == PREDIFF_ERR_FORMAT, "%llx x %llx: %s", (unsigned long long)pairs[k][0], (unsigned long long)pairs[k][1], prediff_item_name(u.item));
            pd_set(b + f->at, 8, d0); pd_set(b + f->at + 8, 8, d1);
        }
    }
    free(b);
}

static void test_boundaries(void) {
    static const int bases[] = { BASE_LLAMA, BASE_SPM, BASE_GPT2, BASE_BPE };
    size_t i;
    pd_gguf *g = pd_smallest();
    sweep_fields(g);
    sweep_products(g);
    pd_gguf_free(g);
    for (i = 0; i < (is_long() ? 4u : 1u); i++) {
        g = pd_base(bases[i]);
        sweep_fields(g);
        sweep_products(g);
        pd_gguf_free(g);
    }
}

/* A borrowed file that changes under the reader (as a mapped one can): one byte is another at the second allocation, between
   the first reading and the one that counts. The model is good or it is refused. */
typedef struct changing { pd_heap heap; uint8_t *byte, value; } changing;

static void *change_alloc(void *user, size_t size) {
    changing *c = (changing *)user;
    if (c->heap.calls == 1) *c->byte = c->value;
    return pd_heap_alloc(&c->heap, size);
}

static void test_changed_while_read(void) {
    static const uint8_t flips[] = { 0x01, 0x80, 0xFF };
    static const int bases[] = { BASE_BPE, BASE_SPM };
    size_t i, k, n, which, opened = 0, refused = 0;
    for (which = 0; which < 2; which++) {
        pd_gguf *g = pd_base(bases[which]);
        uint8_t *b = pd_gguf_write(g, &n);
        for (i = 0; i < g->head.n; i++)
            for (k = 0; k < sizeof flips; k++) {
                prediff_model_desc d;
                prediff_model *m = NULL;
                prediff_error e;
                changing c;
                uint8_t was = b[i];
                memset(&d, 0, sizeof d); memset(&c, 0, sizeof c);
                d.data = b; d.size = n;
                d.allocator.alloc = change_alloc; d.allocator.free = pd_heap_free; d.allocator.user = &c;
                c.byte = &b[i]; c.value = (uint8_t)(was ^ flips[k]);
                if (prediff_model_open(&m, &d, &e)) refused++;
                else {
                    int32_t ids[32];
                    size_t count;
                    opened++;
                    prediff_encode(m, "the ab 12", 9, 0, ids, 32, &count, &e);
                    prediff_model_close(m);
                }
                PD_CHECKF(c.heap.live == 0 && c.heap.wrong == 0, "byte %u: memory", (unsigned)i);
                b[i] = was;
            }
        free(b); pd_gguf_free(g);
    }
    PD_CHECKF(opened > 100 && refused > 100, "%u opened, %u refused", (unsigned)opened, (unsigned)refused);
}

/* -- limits -- */

static prediff_status open_limited(const uint8_t *b, size_t n, const prediff_limits *lim, prediff_error *e) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_status s;
    memset(&d, 0, sizeof d);
    d.data = b; d.size = n; d.limits = *lim;
    s = prediff_model_open(&m, &d, e);
    if (!s) prediff_model_close(m);
    return s;
}

/* Each limit at its exact value lets the file pass; one less refuses it. */
static void test_limits(void) {
    pd_gguf *g = pd_base(BASE_LLAMA);
    size_t n, i, keys = 0, tensors = 0;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_error e;
    PD_STATUS(open_container(b, n, 264, &e), &e, OK, NONE);
    PD_STATUS(open_container(b, n, 263, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
    for (i = 0; i < g->n_entries; i++) { keys += !g->entries[i].tensor; tensors += g->entries[i].tensor != 0; }
    for (i = 0; i < 6; i++) {
        uint64_t at = i == 0 ? keys : i == 1 ? tensors : i == 2 ? 8 : i == 3 ? 264 : i == 4 ? 2 : 64;      /* longest string: <pad-NNN> has 9 bytes */
        int less;
        for (less = 0; less < 2; less++) {
            prediff_limits lim;
            uint64_t v = at + (i == 2 ? 1u : 0u) - (uint64_t)less;
            memset(&lim, 0, sizeof lim);
            if (i == 0) lim.keys = v;
            if (i == 1) lim.tensors = v;
            if (i == 2) lim.string_bytes = v;
            if (i == 3) lim.vocabulary = v;
            if (i == 4) lim.layers = v;
            if (i == 5) lim.context = v;
            if (less) PD_STATUS(open_limited(b, n, &lim, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
            else PD_CHECKF(open_limited(b, n, &lim, &e) == PREDIFF_OK, "limit %u at %u: %s", (unsigned)i, (unsigned)v, e.message);
        }
    }
    free(b); pd_gguf_free(g);
}

/* Without a tokenizer, the embedding's rows are the vocabulary. */
static void test_vocabulary_rows(void) {
    pd_gguf *g = pd_smallest();
    size_t n;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_limits lim;
    prediff_error e;
    memset(&lim, 0, sizeof lim);
    lim.vocabulary = 8; PD_STATUS(open_limited(b, n, &lim, &e), &e, OK, NONE);
    lim.vocabulary = 7; PD_STATUS(open_limited(b, n, &lim, &e), &e, ERR_LIMIT, LIMIT_EXCEEDED);
    free(b); pd_gguf_free(g);
}

/* -- memory that runs out -- */

typedef struct oom_job {
    const uint8_t *bytes; size_t n;
    prediff_model *model; prediff_context *context;
    pd_heap *heap;
    const char *path;
} oom_job;

typedef prediff_status (*oom_fn)(oom_job *j, prediff_error *e);

static prediff_status oom_open_how(oom_job *j, prediff_error *e, int copy, const char *path, int container, int vocab) {
    prediff_model_desc d;
    prediff_model *m = (prediff_model *)(void *)&d;
    prediff_status s;
    memset(&d, 0, sizeof d);
    if (path) d.path = path;
    else { d.data = j->bytes; d.size = j->n; }
    d.copy = copy; d.vocab_only = vocab;
    d.allocator.alloc = pd_heap_alloc; d.allocator.free = pd_heap_free; d.allocator.user = j->heap;
    s = container ? prediff_container_open(&m, &d, e) : prediff_model_open(&m, &d, e);
    PD_CHECKF((s == PREDIFF_OK) == (m != NULL), "*out after %s", prediff_status_name(s));
    if (!s) prediff_model_close(m);
    return s;
}

static prediff_status oom_open(oom_job *j, prediff_error *e) { return oom_open_how(j, e, 0, NULL, 0, 0); }
static prediff_status oom_open_copy(oom_job *j, prediff_error *e) { return oom_open_how(j, e, 1, NULL, 0, 0); }
static prediff_status oom_open_path(oom_job *j, prediff_error *e) { return oom_open_how(j, e, 0, j->path, 0, 0); }
static prediff_status oom_open_vocab(oom_job *j, prediff_error *e) { return oom_open_how(j, e, 0, NULL, 0, 1); }
static prediff_status oom_container(oom_job *j, prediff_error *e) { return oom_open_how(j, e, 0, NULL, 1, 0); }

static prediff_status oom_context(oom_job *j, prediff_error *e) {
    prediff_context_desc d;
    prediff_context *c = (prediff_context *)(void *)&d;
    prediff_status s;
    memset(&d, 0, sizeof d);
    s = prediff_context_create(&c, j->model, &d, e);
    PD_CHECKF((s == PREDIFF_OK) == (c != NULL), "*out after %s", prediff_status_name(s));
    if (!s) prediff_context_destroy(c);
    return s;
}

static prediff_status oom_encode(oom_job *j, prediff_error *e) {
    int32_t ids[64];
    size_t n;
    return prediff_encode(j->model, "the cat", 7, 0, ids, 64, &n, e);
}

static prediff_status oom_template(oom_job *j, prediff_error *e) {
    int32_t ids[64];
    size_t n, p;
    return prediff_template(j->model, "the [MASK:3] cat", 16, 0, ids, 64, &n, &p, e);
}

static prediff_status oom_write(oom_job *j, prediff_error *e) {
    char text[512];
    return prediff_write(j->context, "the cat", 4, NULL, text, sizeof text, e);
}

static prediff_status oom_infill(oom_job *j, prediff_error *e) {
    char text[512];
    return prediff_infill(j->context, "the [MASK:3] cat", NULL, text, sizeof text, e);
}

static int no_write(void *user, const void *bytes, size_t n) { (void)user; (void)bytes; (void)n; return 0; }

static prediff_status oom_save(oom_job *j, prediff_error *e) {
    prediff_container c;
    prediff_save_desc d;
    prediff_container_get(j->model, &c);
    memset(&d, 0, sizeof d);
    d.keys = c.keys; d.n_keys = c.n_keys; d.tensors = c.tensors; d.n_tensors = c.n_tensors; d.write = no_write;
    d.allocator.alloc = pd_heap_alloc; d.allocator.free = pd_heap_free; d.allocator.user = j->heap;
    return prediff_save(&d, e);
}

/* The n-th allocation fails, n = 1, 2, ... until the call succeeds. */
static void oom_loop(const char *what, oom_fn call, oom_job *j) {
    size_t n, live = j->heap->live, bytes = j->heap->bytes;
    for (n = 1; n < 1000; n++) {
        prediff_error e;
        prediff_status s;
        memset(&e, 0, sizeof e);
        j->heap->calls = 0;
        j->heap->fail_at = n;
        s = call(j, &e);
        PD_CHECKF(j->heap->live == live && j->heap->bytes == bytes, "%s: allocation %u failed and something leaked", what, (unsigned)n);
        PD_CHECKF(j->heap->wrong == 0, "%s: freed with another size", what);
        if (!s) break;
        pd_status((int)s, PREDIFF_ERR_NOMEM, &e, PREDIFF_ITEM_ALLOC, __FILE__, __LINE__, what);
    }
    PD_CHECKF(n > 1 && n < 1000, "%s took %u allocations", what, (unsigned)n - 1);
    j->heap->fail_at = 0;
}

static const char *temporary(const char *name) {
    static char path[4][512];
    static unsigned turn;
    const char *dir = getenv("PD_TMP");
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir && *dir ? dir : "build/tests", name);
    return p;
}

static int write_file(const char *path, const void *b, size_t n) {
    FILE *f = fopen(path, "wb");
    int ok = f && fwrite(b, 1, n, f) == n;
    return f ? fclose(f) == 0 && ok : 0;
}

static void test_out_of_memory(void) {
    pd_gguf *g = pd_base(BASE_BPE);
    pd_heap heap;
    oom_job j;
    prediff_model_desc d;
    prediff_context_desc cd;
    prediff_error e;
    memset(&j, 0, sizeof j); memset(&d, 0, sizeof d); memset(&cd, 0, sizeof cd);
    j.bytes = pd_gguf_write(g, &j.n);
    j.heap = &heap;
    j.path = temporary("oom.gguf");
    d.data = j.bytes; d.size = j.n; d.allocator = pd_heap_allocator(&heap);
    oom_loop("open", oom_open, &j);
    oom_loop("open a copy", oom_open_copy, &j);
    oom_loop("open a vocabulary", oom_open_vocab, &j);
    oom_loop("open a container", oom_container, &j);
    if (PD_CHECKF(write_file(j.path, j.bytes, j.n), "cannot write %s", j.path)) oom_loop("open a file", oom_open_path, &j);
    if (PD_STATUS(prediff_model_open(&j.model, &d, &e), &e, OK, NONE)) {
        oom_loop("context", oom_context, &j);
        oom_loop("encode", oom_encode, &j);
        oom_loop("template", oom_template, &j);
        oom_loop("save", oom_save, &j);
        if (PD_STATUS(prediff_context_create(&j.context, j.model, &cd, &e), &e, OK, NONE)) {
            oom_loop("write", oom_write, &j);
            oom_loop("infill", oom_infill, &j);
        }
        prediff_context_destroy(j.context);
        prediff_model_close(j.model);
    }
    PD_CHECK(heap.live == 0 && heap.wrong == 0);
    free((void *)(uintptr_t)j.bytes);
    pd_gguf_free(g);
    remove(j.path);
}

/* -- files -- */

static prediff_status open_path(const char *path, int map, prediff_error *e) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_status s;
    pd_heap heap;
    memset(&d, 0, sizeof d);
    d.path = path; d.map = map;
    d.allocator = pd_heap_allocator(&heap);
    s = prediff_model_open(&m, &d, e);
    if (!s) prediff_model_close(m);
    PD_CHECKF(heap.live == 0 && heap.wrong == 0, "%s: memory", path);
    PD_CHECKF(s == PREDIFF_OK || m == NULL, "%s: *out", path);
    return s;
}

static void test_files(void) {
    pd_gguf *g = pd_base(BASE_LLAMA);
    size_t n;
    uint8_t *b = pd_gguf_write(g, &n);
    const char *path = temporary("file.gguf");
    prediff_error e;
    int map;
    for (map = 0; map < 2; map++) {
        PD_STATUS(open_path(temporary("no-such-file"), map, &e), &e, ERR_IO, FILE_OPEN);
        PD_STATUS(open_path("", map, &e), &e, ERR_IO, FILE_OPEN);
        PD_CHECK(write_file(path, "", 0));
        PD_STATUS(open_path(path, map, &e), &e, ERR_FORMAT, GGUF_TRUNCATED);
        PD_CHECK(write_file(path, b, 100));
        PD_STATUS(open_path(path, map, &e), &e, ERR_FORMAT, GGUF_COUNT);
        PD_CHECK(write_file(path, b, n - 1000));
        PD_STATUS(open_path(path, map, &e), &e, ERR_FORMAT, TENSOR_DATA);
        PD_CHECK(write_file(path, b, n));
        PD_STATUS(open_path(path, map, &e), &e, OK, NONE);
    }
    remove(path);
    free(b); pd_gguf_free(g);
}

/* A directory, and a file whose size is told as 0 (read it to its end all the same). */
static void test_odd_files(void) {
    prediff_error e;
    FILE *f = fopen("/proc/self/status", "rb");
    int map;
    if (!f) { pd_skip("no /proc"); return; }
    fclose(f);
    for (map = 0; map < 2; map++) {
        PD_STATUS(open_path("/proc/self/status", map, &e), &e, ERR_FORMAT, GGUF_MAGIC);
        PD_STATUS(open_path("/", map, &e), &e, ERR_IO, FILE_READ);
    }
}

static int fail_write(void *user, const void *bytes, size_t n) { size_t *left = (size_t *)user; (void)bytes; if (n > *left) return 1; *left -= n; return 0; }

/* Writing that fails at any place is told. */
static void test_save_fails(void) {
    pd_gguf *g = pd_smallest();
    size_t n, at, room;
    uint8_t *b = pd_gguf_write(g, &n);
    prediff_model *m = pd_open_bytes(b, n);
    prediff_container c;
    prediff_save_desc d;
    prediff_error e;
    prediff_container_get(m, &c);
    memset(&d, 0, sizeof d);
    d.keys = c.keys; d.n_keys = c.n_keys; d.tensors = c.tensors; d.n_tensors = c.n_tensors; d.write = fail_write; d.user = &room;
    for (at = 0; at < n - 32; at += 97) { room = at; PD_STATUS(prediff_save(&d, &e), &e, ERR_IO, FILE_WRITE); }
    prediff_model_close(m);
    free(b); pd_gguf_free(g);
}

/* -- files that want to be slow -- */

/* n tensors of 1 value each; names from `name`. */
static uint8_t *many_tensors(size_t n, void (*name)(char out[64], size_t i), size_t *size) {
    pd_bytes b = { NULL, 0, 0 };
    size_t i;
    char s[64];
    pd_put(&b, "GGUF", 4); pd_put_int(&b, 3, 4); pd_put_int(&b, n, 8); pd_put_int(&b, 1, 8);
    pd_put_str(&b, "general.architecture", 20); pd_put_int(&b, 8, 4); pd_put_str(&b, "llama", 5);
    for (i = 0; i < n; i++) {
        name(s, i);
        pd_put_str(&b, s, 64);
        pd_put_int(&b, 1, 4); pd_put_int(&b, 1, 8); pd_put_int(&b, 0, 4); pd_put_int(&b, 32 * i, 8);
    }
    while (b.n % 32) pd_put(&b, "", 1);
    for (i = 0; i < 32 * n; i += 32) pd_put(&b, "0123456789abcdef0123456789abcdef", 32);
    *size = b.n;
    return b.p;
}

static void plain_name(char out[64], size_t i) { int k; memset(out, 'a', 64); for (k = 0; k < 8; k++, i >>= 4) out[63 - k] = (char)('a' + (i & 15)); }

/* Names that all have one FNV-1a hash: from each state two blocks of four bytes that lead to the same state are found by a
   birthday search; sixteen such pairs in a row make 2^16 names. */
static uint8_t pair_blocks[16][2][4];
static void find_pairs(void) {
    uint32_t state = 2166136261u, *seen = (uint32_t *)malloc(sizeof *seen << 20);
    int k;
    if (!seen) abort();
    for (k = 0; k < 16; k++) {
        uint32_t v, h = 0;
        memset(seen, 0, sizeof *seen << 20);
        for (v = 1;; v++) {
            uint32_t i, other, g = state;
            h = state;
            for (i = 0; i < 4; i++) h = (h ^ (33 + (v >> 6 * i & 63))) * 16777619u;
            other = seen[h >> 12];
            for (i = 0; other && i < 4; i++) g = (g ^ (33 + (other >> 6 * i & 63))) * 16777619u;
            if (other && g == h) {
                for (i = 0; i < 4; i++) { pair_blocks[k][0][i] = (uint8_t)(33 + (v >> 6 * i & 63)); pair_blocks[k][1][i] = (uint8_t)(33 + (other >> 6 * i & 63)); }
                break;
            }
            seen[h >> 12] = v;
            if (v == 1u << 24) { fprintf(stderr, "no collision\n"); abort(); }
        }
        state = h;
    }
    free(seen);
}
static void colliding_name(char out[64], size_t i) { int k; for (k = 0; k < 16; k++) memcpy(out + 4 * k, pair_blocks[k][i >> k & 1], 4); }

/* Keys of 256 bytes that collide under word-wise multiply and shift hashes for any seed: 2^63 added to a word is undone by
   bits 63 and 34 of the next one. */
static uint8_t *many_keys(size_t n, size_t *size) {
    pd_bytes b = { NULL, 0, 0 };
    uint8_t s[256];
    size_t i, k;
    pd_put(&b, "GGUF", 4); pd_put_int(&b, 3, 4); pd_put_int(&b, 0, 8); pd_put_int(&b, n, 8);
    for (i = 0; i < n; i++) {
        memset(s, 'k', sizeof s);
        for (k = 0; k < 16; k++) if (i >> k & 1) { s[16 * k + 7] ^= 0x80; s[16 * k + 15] ^= 0x80; s[16 * k + 12] ^= 0x04; }
        pd_put_str(&b, (char *)s, sizeof s);
        pd_put_int(&b, 0, 4); pd_put_int(&b, 0, 1);
    }
    *size = b.n;
    return b.p;
}

static double open_seconds(const uint8_t *b, size_t n, prediff_item item) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_error e;
    prediff_status s;
    clock_t t = clock();
    memset(&d, 0, sizeof d);
    d.data = b; d.size = n;
    s = prediff_container_open(&m, &d, &e);
    if (!s) prediff_model_close(m);
    else if (item) pd_status((int)s, (int)PREDIFF_ERR_FORMAT, &e, item, __FILE__, __LINE__, "open");
    else PD_CHECKF(e.status == PREDIFF_ERR_FORMAT || e.status == PREDIFF_ERR_LIMIT, "%s", e.message);
    if (item) PD_CHECKF(s != PREDIFF_OK, "opened");
    return (double)(clock() - t) / CLOCKS_PER_SEC;
}

static void test_many_names(void) {
    size_t n, at;
    uint8_t *b = many_tensors(60000, plain_name, &n);
    double seconds = open_seconds(b, n, PREDIFF_ITEM_NONE);
    PD_CHECKF(seconds < 2, "60,000 tensors took %.2f s", seconds);
    at = 24 + 8 + 20 + 4 + 8 + 5 + (size_t)59999 * 96;
    plain_name((char *)b + at + 8, 17);            /* the last one is the name of another */
    seconds = open_seconds(b, n, PREDIFF_ITEM_TENSOR_DUPLICATE);
    PD_CHECKF(seconds < 2, "60,000 tensors with a double took %.2f s", seconds);
    free(b);
}

static void test_colliding_names(void) {
    size_t n;
    uint8_t *b;
    double seconds;
    find_pairs();
    b = many_tensors(65536, colliding_name, &n);
    seconds = open_seconds(b, n, PREDIFF_ITEM_NONE);
    PD_CHECKF(seconds < 3, "65,536 tensor names with one hash took %.2f s", seconds);
    free(b);
    b = many_keys(65536, &n);
    seconds = open_seconds(b, n, PREDIFF_ITEM_NONE);
    PD_CHECKF(seconds < 3, "65,536 keys with one hash took %.2f s", seconds);
    free(b);
}

/* -- the collected corner cases -- */

typedef struct corner { const char *file; prediff_item item; } corner;
static const corner corners[] = {
    { "bad_v4", PREDIFF_ITEM_GGUF_VERSION }, { "bad_big_endian", PREDIFF_ITEM_GGUF_ENDIAN }, { "bad_nkv_2p63", PREDIFF_ITEM_GGUF_COUNT },
    { "bad_ntensors_2p63", PREDIFF_ITEM_GGUF_COUNT }, { "bad_string_len_2p63", PREDIFF_ITEM_GGUF_STRING }, { "bad_string_1GiB", PREDIFF_ITEM_GGUF_STRING },
    { "bad_array_2p62", PREDIFF_ITEM_GGUF_ARRAY }, { "bad_array_of_array", PREDIFF_ITEM_GGUF_ARRAY }, { "bad_key_empty", PREDIFF_ITEM_GGUF_KEY },
    { "bad_key_dup", PREDIFF_ITEM_GGUF_KEY_DUPLICATE }, { "bad_tensor_dup", PREDIFF_ITEM_TENSOR_DUPLICATE }, { "bad_ndims_5", PREDIFF_ITEM_TENSOR_DIMS },
    { "bad_dim_wrap32", PREDIFF_ITEM_TENSOR_DIMS }, { "unsup_type_iq2", PREDIFF_ITEM_TENSOR_TYPE }, { "bad_block_row", PREDIFF_ITEM_TENSOR_BLOCK },
    { "bad_align_0", PREDIFF_ITEM_GGUF_ALIGNMENT }, { "bad_align_3", PREDIFF_ITEM_GGUF_ALIGNMENT }, { "bad_align_2p30", PREDIFF_ITEM_GGUF_ALIGNMENT },
    { "bad_offset_past_end", PREDIFF_ITEM_TENSOR_DATA }, { "bad_offset_wrap", sizeof(size_t) > 4 ? PREDIFF_ITEM_TENSOR_DATA : PREDIFF_ITEM_TENSOR_OFFSET }, { "bad_scores_u8", PREDIFF_ITEM_GGUF_VALUE_TYPE },
    { "bad_arch_missing", PREDIFF_ITEM_ARCH_MISSING }, { "bad_arch_unknown", PREDIFF_ITEM_ARCH_UNKNOWN }
};

static prediff_item corner_item(const char *name, size_t n) {
    size_t i;
    for (i = 0; i < sizeof corners / sizeof *corners; i++)
        if (strlen(corners[i].file) == n && strncmp(corners[i].file, name, n) == 0) return corners[i].item;
    return PREDIFF_ITEM_NONE;
}

/* `prediff info -m FILE --tensors`: exit status, and the item named on standard error. */
static void corner_command(const char *path, prediff_item item) {
    char command[3000], wanted[64];
    const char *out = temporary("info.out");
    size_t n;
    uint8_t *said;
    int status;
    snprintf(command, sizeof command, "build/prediff info -m '%s' --tensors > /dev/null 2> '%s'", path, out);
    status = system(command);
    said = pd_read_file(out, &n);
    snprintf(wanted, sizeof wanted, ": %s: ", prediff_item_name(item));
    PD_CHECKF((status == 0) == (item == PREDIFF_ITEM_NONE), "%s: exit status %d", path, status);
    if (item) PD_CHECKF(said && strstr((char *)said, wanted), "%s: %s is not named: %s", path, wanted, said ? (char *)said : "");
    free(said);
    remove(out);
}

/* Lines "gguf/NAME.gguf<tab>VERDICT..." of expected.tsv. */
static void test_corner_cases(void) {
    const char *list = pd_data("corner_cases/expected.tsv");
    size_t n, cases = 0, bad = 0;
    uint8_t *text = list ? pd_read_file(list, &n) : NULL;
    char *line = (char *)text, *end;
    uint8_t *tool;
    if (!text) { pd_skip("no corner_cases in PREDIFF_DATA"); return; }
    tool = pd_read_file("build/prediff", &n);
    for (; line && *line; line = end ? end + 1 : NULL) {
        char *tab = strchr(line, '\t'), name[128], full[160];
        const char *path;
        prediff_item item;
        pd_used u;
        uint8_t *b;
        int ok;
        end = strchr(line, '\n');
        if (strncmp(line, "gguf/", 5) != 0 || !tab || tab - line > 100) continue;
        snprintf(name, sizeof name, "%.*s", (int)(tab - line), line);
        snprintf(full, sizeof full, "corner_cases/%s", name);
        ok = strncmp(tab + 1, "ok", 2) == 0;
        item = corner_item(name + 5, strlen(name) - 10);
        PD_CHECKF((item == PREDIFF_ITEM_NONE) == ok, "%s: no item is known for it", name);
        path = pd_data(full);
        if (!PD_CHECKF(path != NULL, "%s is missing", name)) continue;
        b = pd_read_file(path, &n);
        u = pd_use_bytes(b, n);
        PD_CHECKF(!u.broken, "%s: %s", name, u.broken ? u.broken : "");
        if (!ok) PD_CHECKF(u.item == item, "%s: %s, not %s", name, prediff_item_name(u.item), prediff_item_name(item));
        if (tool && sizeof(size_t) > 4) corner_command(path, item);             /* the tool is not built for 32 bits beside this */
        free(b);
        cases++; bad += !ok;
    }
    PD_CHECKF(cases >= 30 && bad >= 20, "%u cases", (unsigned)cases);
    if (!tool) pd_skip("build/prediff is not built: the command was not tried");
    free(text); free(tool);
}

/* -- the command line: settings by name -- */

/* `prediff COMMAND`: whether it ends with this status; what it wrote is at standard output's place. */
static int command_ends(const char *command, int status, const char *out) {
    char line[3000];
    snprintf(line, sizeof line, "build/prediff %s -m examples/models/story-q8_0.gguf -t 1 > '%s' 2> /dev/null; test $? -eq %d", command, out, status);
    return system(line) == 0;
}

/* Both commands succeed and write the same, or not the same. */
static int commands_agree(const char *a, const char *b) {
    char path[2][512];
    size_t i, n[2];
    uint8_t *text[2];
    int agree;
    for (i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s", temporary(i ? "preset-b.out" : "preset-a.out"));
        PD_CHECKF(command_ends(i ? b : a, 0, path[i]), "%s", i ? b : a);
        text[i] = pd_read_file(path[i], &n[i]);
        PD_CHECKF(text[i] && n[i] > 20, "%s writes nothing", i ? b : a);
        remove(path[i]);
    }
    agree = text[0] && text[1] && n[0] == n[1] && memcmp(text[0], text[1], n[0]) == 0;
    free(text[0]); free(text[1]);
    return agree;
}

#define STORY "generate -p 'Once upon a time' -n 40 --ignore-eos -s 3 "
#define DREAM "--steps 512 --schedule times --order entropy --temp 0.2 --top-p 0.95 "
#define LLADA "--steps 128 --schedule even --order confidence --temp 0 --window 128 "

static void test_presets(void) {
    static const char *const same[][2] = {
        { STORY "--preset dream", STORY DREAM }, { STORY "--preset llada", STORY LLADA }, { STORY "--preset none", STORY },
        { STORY "--temp 0.9 --steps 10 --preset dream", STORY "--temp 0.9 --steps 10 --schedule times --order entropy --top-p 0.95" },
        { STORY "--preset=llada --window 4 --steps 6", STORY "--steps 6 --schedule even --window 4" },
        { STORY "--preset llada --block 8 --steps 3", STORY "--block 8 --steps 3 --schedule even" },
        { "infill -p 'Once [MASK:6] a [MASK:9] dog.' --preset dream", "infill -p 'Once [MASK:6] a [MASK:9] dog.' " DREAM } };
    static const char *const other[][2] = {
        { STORY "--steps 10", STORY "--steps 10 --preset dream" }, { STORY "--steps 10", STORY "--steps 10 --preset llada" } };
    static const struct { const char *command; int status; } ends[] = {
        { STORY "--preset llada --block 8", 0 }, { STORY "--preset llada --block 8 --window 4", 2 }, { STORY "--preset wrong", 2 }, { STORY "--preset", 2 },
        { STORY "--preset dream,llada", 2 }, { STORY "--schedule even", 0 }, { STORY "--schedule times", 0 }, { STORY "--schedule evens", 2 }, { "info --preset dream", 2 } };
    const char *out;
    size_t i, n;
    uint8_t *tool = pd_read_file("build/prediff", &n);
    if (!tool || sizeof(size_t) < 8) { free(tool); pd_skip("build/prediff is not built"); return; }
    for (i = 0; i < sizeof same / sizeof *same; i++) PD_CHECKF(commands_agree(same[i][0], same[i][1]), "%s is not %s", same[i][0], same[i][1]);
    for (i = 0; i < sizeof other / sizeof *other; i++) PD_CHECKF(!commands_agree(other[i][0], other[i][1]), "%s changes nothing", other[i][1]);
    out = temporary("preset.out");
    for (i = 0; i < sizeof ends / sizeof *ends; i++) PD_CHECKF(command_ends(ends[i].command, ends[i].status, out), "%s does not end with %d", ends[i].command, ends[i].status);
    remove(out);
    free(tool);
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    PD_RUN(test_corpus);
    PD_RUN(test_corpus_container);
    PD_RUN(test_corpus_is_complete);
    PD_RUN(test_g40_weights_not_finite);
    PD_RUN(test_truncation);
    PD_RUN(test_flips);
    PD_RUN(test_boundaries);
    PD_RUN(test_changed_while_read);
    PD_RUN(test_limits);
    PD_RUN(test_vocabulary_rows);
    PD_RUN(test_out_of_memory);
    PD_RUN(test_files);
    PD_RUN(test_odd_files);
    PD_RUN(test_save_fails);
    PD_RUN(test_many_names);
    PD_RUN(test_colliding_names);
    PD_RUN(test_corner_cases);
    PD_RUN(test_presets);
    return PD_END();
}
