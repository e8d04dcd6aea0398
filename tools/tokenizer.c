/* SPDX-License-Identifier: MIT
 * tokenizer.c: the command `prediff tokenizer`, a part of tools/prediff.c: trains a byte-level BPE tokenizer from text and writes
 * it as a GGUF file without tensors.
 *
 * Byte pair encoding (Sennrich et al. 2016; over bytes, Radford et al. 2019): every distinct word is a row of symbols, at first
 * its bytes. The pair of neighbours that occurs most often becomes a new token, everywhere at once; and so on until there are
 * enough tokens. Of pairs that occur equally often, the one with the greatest left text, then right text, comes first (texts in
 * the alphabet of byte-level tokens, compared by code point), so the result depends on the text alone.
 *
 *     text -> words -> symbols (a linked row for each distinct word)     pairs: count, and a list through the symbols
 *                        t <-> h <-> e                                          where the pair begins; a heap over counts
 *
 * A join changes three pairs, so the time is O(symbols log pairs) whatever the number of tokens, and memory depends on the
 * distinct words, not on the length of the text. Ids: 256 bytes, the special tokens, then the joined tokens in order.
 *
 * Two pairs may make the same text ("a" + "bc", "ab" + "c"): then both are merges, with one token. A token has at most
 * TOKEN_MOST bytes: text that repeats a long piece would otherwise give many tokens nearly as long as the piece.
 */

enum { TOKEN_MOST = 1024, BYTES = 256 };
#ifndef TOKENIZER_BLOCK
#define TOKENIZER_BLOCK (1u << 20)     /* bytes read at a time */
#endif
#define NOTHING UINT32_MAX             /* no symbol, pair, word or token */

typedef struct bpe_index {             /* hash table over items 0 .. n - 1 that are kept elsewhere */
    uint32_t *slots, *hashes;          /* [n_slots] item + 1; [room] each item's hash */
    size_t n_slots, n, room;
} bpe_index;

typedef struct bpe_word { uint64_t count; size_t at; uint32_t n; } bpe_word;
typedef struct bpe_token { size_t at; uint32_t n, bytes; } bpe_token;        /* its text in the alphabet; what it stands for has `bytes` */
typedef struct bpe_merge { uint32_t left, right; } bpe_merge;
typedef struct bpe_entry { uint64_t count; uint32_t pair; } bpe_entry;

typedef struct bpe_symbol {
    uint32_t id, word;                 /* NOTHING: joined to the one before it */
    uint32_t prev, next;               /* neighbours in the word */
    uint32_t pair;                     /* what it makes with the next one */
    uint32_t before, after;            /* neighbours in that pair's list */
} bpe_symbol;

typedef struct bpe_pair {
    uint64_t count, queued;            /* occurrences in the text; the count in its entry in the heap, 0: none */
    uint32_t left, right, first;       /* first: a symbol that begins it */
    uint8_t changed, listed, barred;   /* in `changed`; already a merge; never to be one */
} bpe_pair;

typedef struct bpe {
    settings *o;
    size_t n_special, longest, n_wanted;                        /* bytes of the longest special text */
    uint64_t least;
    uint8_t begins[BYTES];                                      /* whether a special text begins with this byte */
    pdi_tokenizer split;                                        /* of it, the splitter alone */
    uint32_t bounds[(sizeof pdi_letters + sizeof pdi_numbers) / sizeof(uint16_t)];
    bpe_index word_index, pair_index, token_index;
    bpe_word *words; size_t word_room;
    char *bytes; size_t n_bytes, byte_room;                     /* of the distinct words */
    bpe_symbol *symbols; size_t n_symbols;
    bpe_pair *pairs; size_t pair_room;
    uint32_t *changed; size_t n_changed, changed_room;          /* pairs that became more in this step */
    bpe_entry *heap; size_t n_heap, heap_room;
    bpe_token *tokens; size_t token_room;
    char *text; size_t n_text, text_room;                       /* of the tokens */
    bpe_merge *merges; size_t n_merges, merge_room;
    uint64_t text_bytes, n_words, n_specials, last_count;       /* words and special texts in the text; count of the last merge */
    double began, shown, read_seconds;
    int full;                                                   /* more distinct words than the numbers reach */
} bpe;

/* -- arrays that grow, and the hash table -- */

/* Room for `more` items after the `used` first. */
static void *room_for(void *p, size_t used, size_t more, size_t *room, size_t size) {
    size_t wanted = *room;
    void *q;
    if (more <= wanted - used) return p;
    if (wanted > SIZE_MAX / 4 || more > SIZE_MAX / 4) exit(fail_text("memory", "out of memory"));
    wanted = 2 * wanted + more + 64;
    q = allocate(wanted, size);
    if (used) memcpy(q, p, used * size);
    free(p);
    *room = wanted;
    return q;
}

static void index_put(bpe_index *x, uint32_t item) {
    size_t i = x->hashes[item] & (x->n_slots - 1);
    while (x->slots[i]) i = (i + 1) & (x->n_slots - 1);
    x->slots[i] = item + 1;
}

/* A new item; its number. The callers see to it that there are fewer than NOTHING. */
static uint32_t index_add(bpe_index *x, uint32_t hash) {
    size_t i;
    x->hashes = (uint32_t *)room_for(x->hashes, x->n, 1, &x->room, sizeof *x->hashes);
    x->hashes[x->n++] = hash;
    if (x->n > x->n_slots / 2) {
        free(x->slots);
        x->n_slots = x->n_slots ? 2 * x->n_slots : 1024;
        x->slots = (uint32_t *)allocate(x->n_slots, sizeof *x->slots);
        memset(x->slots, 0, x->n_slots * sizeof *x->slots);
        for (i = 0; i < x->n; i++) index_put(x, (uint32_t)i);
    } else index_put(x, (uint32_t)(x->n - 1));
    return (uint32_t)(x->n - 1);
}

/* The next item of this hash from slot *at on (which begins as the hash), NOTHING at the end. */
static uint32_t index_seek(const bpe_index *x, uint32_t hash, size_t *at) {
    size_t i = *at;
    for (; x->n_slots && x->slots[i &= x->n_slots - 1]; i++)
        if (x->hashes[x->slots[i] - 1] == hash) { *at = i + 1; return x->slots[i] - 1; }
    return NOTHING;
}

static void index_free(bpe_index *x) {
    free(x->slots);
    free(x->hashes);
    memset(x, 0, sizeof *x);
}

static uint32_t hash_bytes(const char *p, size_t n) { return pdi_hash_end(pdi_hash_more(pdi_hash_begin(), p, n)); }

/* -- tokens -- */

static uint32_t find_text(const bpe *t, const char *p, size_t n, uint32_t hash) {
    size_t at = hash;
    uint32_t i;
    while ((i = index_seek(&t->token_index, hash, &at)) != NOTHING)
        if (t->tokens[i].n == n && memcmp(t->text + t->tokens[i].at, p, n) == 0) break;
    return i;
}

/* The token whose text is the last n bytes of t->text: a new one, or an old one and the text is taken back. */
static uint32_t add_token(bpe *t, size_t n, size_t bytes) {
    const char *p = t->text + t->n_text - n;
    uint32_t hash = hash_bytes(p, n), i = find_text(t, p, n, hash);
    bpe_token *k;
    if (i != NOTHING) { t->n_text -= n; return i; }
    t->tokens = (bpe_token *)room_for(t->tokens, t->token_index.n, 1, &t->token_room, sizeof *t->tokens);
    i = index_add(&t->token_index, hash);
    k = &t->tokens[i];
    k->at = t->n_text - n; k->n = (uint32_t)n; k->bytes = (uint32_t)bytes;
    return i;
}

static void add_text(bpe *t, const char *p, size_t n) {
    t->text = (char *)room_for(t->text, t->n_text, n, &t->text_room, 1);
    memcpy(t->text + t->n_text, p, n);
    t->n_text += n;
}

static int compare_texts(const bpe *t, uint32_t a, uint32_t b) {
    const bpe_token *x = &t->tokens[a], *y = &t->tokens[b];
    int order = a == b ? 0 : memcmp(t->text + x->at, t->text + y->at, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* Bytes, then special texts. The caller has checked that they differ. */
static void first_tokens(bpe *t) {
    uint32_t b;
    size_t i;
    char c[4];
    for (b = 0; b < BYTES; b++) {
        size_t n = pdi_put_char(pdi_byte_char(b), c);
        add_text(t, c, n);
        add_token(t, n, 1);
    }
    for (i = 0; i < t->n_special; i++) {
        const char *p = t->o->list[i];
        add_text(t, p, strlen(p));
        add_token(t, strlen(p), strlen(p));
        t->begins[(uint8_t)p[0]] = 1;
        if (strlen(p) > t->longest) t->longest = strlen(p);
    }
}

/* -- words: the text is read in blocks, and only as much of it is split as nothing that follows can change -- */

static void count_word(bpe *t, const char *p, size_t n) {
    uint32_t hash = hash_bytes(p, n), i;
    size_t at = hash;
    t->n_words++;
    while ((i = index_seek(&t->word_index, hash, &at)) != NOTHING)
        if (t->words[i].n == n && memcmp(t->bytes + t->words[i].at, p, n) == 0) { t->words[i].count++; return; }
    if (t->full || n > NOTHING - 1 - t->n_bytes) { t->full = 1; return; }      /* so symbols, words and a word's bytes have numbers */
    t->words = (bpe_word *)room_for(t->words, t->word_index.n, 1, &t->word_room, sizeof *t->words);
    t->bytes = (char *)room_for(t->bytes, t->n_bytes, n, &t->byte_room, 1);
    i = index_add(&t->word_index, hash);
    t->words[i].count = 1;
    t->words[i].at = t->n_bytes;
    t->words[i].n = (uint32_t)n;
    memcpy(t->bytes + t->n_bytes, p, n);
    t->n_bytes += n;
}

/* Splits p[0..n). ends 0: text follows, so a word counts only if it, the white space after it and a character more are there.
   Returns the bytes that are done. */
static size_t count_words(bpe *t, const char *p, size_t n, int ends) {
    size_t at = 0, end, after, next;
    for (; at < n; at = end) {
        end = pdi_split(&t->split, p, n, at);
        for (after = end; !ends && pdi_class_at(&t->split, p, n, after, &next) == PDI_CHAR_SPACE; after = next) {}
        if (!ends && n - after < 8) break;                      /* 8: a character, or a contraction, and more */
        count_word(t, p + at, end - at);
    }
    return at;
}

/* Where the first special text in p[0..limit) begins, and its length (the longest that begins there); limit if there is none. */
static size_t find_special(const bpe *t, const char *p, size_t n, size_t limit, size_t *length) {
    size_t at, i;
    *length = 0;
    for (at = 0; at < limit; at++) {
        if (!t->begins[(uint8_t)p[at]]) continue;
        for (i = 0; i < t->n_special; i++) {
            size_t k = strlen(t->o->list[i]);
            if (k > *length && k <= n - at && memcmp(p + at, t->o->list[i], k) == 0) *length = k;
        }
        if (*length) break;
    }
    return at;
}

/* As count_words, for text with special texts in it, which no word crosses. */
static size_t count_text(bpe *t, const char *p, size_t n, int ends) {
    size_t at = 0, length, limit, found;
    for (;;) {
        limit = ends ? n - at : n - at < t->longest ? 0 : n - at - t->longest + 1;      /* none can begin before it unseen */
        found = find_special(t, p + at, n - at, limit, &length);
        if (!length) return at + count_words(t, p + at, found, ends);
        count_words(t, p + at, found, 1);
        t->n_specials++;
        at += found + length;
    }
}

static void show_reading(bpe *t) {
    if (!is_terminal(stderr) || seconds() - t->shown < 0.1) return;
    t->shown = seconds();
    fprintf(stderr, "\rreading: %.1f MB, %llu words, %zu distinct, %.0f s \x1b[K", (double)t->text_bytes / 1e6, (unsigned long long)t->n_words, t->word_index.n,
            t->shown - t->began);
    fflush(stderr);
}

static int read_words(bpe *t, const char *path) {
    int standard = strcmp(path, "-") == 0, bad;
    FILE *f = standard ? stdin : fopen(path, "rb");
    char *p = NULL;
    size_t n = 0, room = 0, got, done;
    if (!f) return fail_text(path, strerror(errno));
    do {
        p = (char *)room_for(p, n, TOKENIZER_BLOCK, &room, 1);
        got = fread(p + n, 1, room - n, f);
        n += got;
        t->text_bytes += got;
        done = count_text(t, p, n, got == 0);
        if (done) memmove(p, p + done, n - done);
        n -= done;
        show_reading(t);
    } while (got > 0 && !interrupted && !t->full);
    bad = ferror(f);
    if (!standard) fclose(f);
    free(p);
    t->read_seconds = seconds() - t->began;
    if (bad) return fail_text(path, "cannot read it to its end");
    if (t->full) return fail_text(path, "its distinct words have more than 4,294,967,294 bytes");
    return t->text_bytes || interrupted ? 0 : fail_text(path, "is empty: there is nothing to learn from");
}

/* -- symbols and pairs -- */

static uint32_t find_pair(bpe *t, uint32_t left, uint32_t right) {
    uint32_t hash = left * 0x9E3779B1u ^ (right + 0x7F4A7C15u) * 0x85EBCA6Bu, i;
    bpe_pair *k;
    size_t at;
    hash = (hash ^ hash >> 15) * 0xC2B2AE35u;
    hash ^= hash >> 13;
    at = hash;
    while ((i = index_seek(&t->pair_index, hash, &at)) != NOTHING)
        if (t->pairs[i].left == left && t->pairs[i].right == right) return i;
    if (t->pair_index.n >= NOTHING - 1) exit(fail_text("memory", "more than 4,294,967,294 pairs"));
    t->pairs = (bpe_pair *)room_for(t->pairs, t->pair_index.n, 1, &t->pair_room, sizeof *t->pairs);
    i = index_add(&t->pair_index, hash);
    k = &t->pairs[i];
    memset(k, 0, sizeof *k);
    k->left = left; k->right = right; k->first = NOTHING;
    k->barred = t->tokens[left].bytes + t->tokens[right].bytes > TOKEN_MOST;
    return i;
}

/* Symbol p and the next one become an occurrence of their pair. */
static void enter(bpe *t, uint32_t p) {
    bpe_symbol *s = &t->symbols[p];
    uint32_t i = find_pair(t, s->id, t->symbols[s->next].id);
    bpe_pair *k = &t->pairs[i];
    s->pair = i;
    s->before = NOTHING;
    s->after = k->first;
    if (k->first != NOTHING) t->symbols[k->first].before = p;
    k->first = p;
    k->count += t->words[s->word].count;
    if (k->changed) return;
    k->changed = 1;
    t->changed = (uint32_t *)room_for(t->changed, t->n_changed, 1, &t->changed_room, sizeof *t->changed);
    t->changed[t->n_changed++] = i;
}

static void leave(bpe *t, uint32_t p) {
    bpe_symbol *s = &t->symbols[p];
    bpe_pair *k = &t->pairs[s->pair];
    if (s->before == NOTHING) k->first = s->after;
    else t->symbols[s->before].after = s->after;
    if (s->after != NOTHING) t->symbols[s->after].before = s->before;
    k->count -= t->words[s->word].count;
}

/* Symbol p and the next one become the token id. */
static void join(bpe *t, uint32_t p, uint32_t id) {
    bpe_symbol *s = &t->symbols[p], *q = &t->symbols[s->next];
    leave(t, p);
    if (s->prev != NOTHING) leave(t, s->prev);
    if (q->next != NOTHING) leave(t, s->next);
    s->id = id;
    s->next = q->next;
    q->id = NOTHING;
    if (s->next != NOTHING) t->symbols[s->next].prev = p;
    if (s->prev != NOTHING) enter(t, s->prev);
    if (s->next != NOTHING) enter(t, p);
}

/* In a run of one symbol pairs overlap: from its left end on, every second one is joined. */
static void join_run(bpe *t, uint32_t p, uint32_t id) {
    const bpe_symbol *s = t->symbols;
    uint32_t a = s[p].id;
    while (s[p].prev != NOTHING && s[s[p].prev].id == a) p = s[p].prev;
    while (p != NOTHING && s[p].id == a && s[p].next != NOTHING && s[s[p].next].id == a) {
        join(t, p, id);
        p = s[p].next;
    }
}

/* Words of one byte have no pairs and get no symbols. */
static void make_symbols(bpe *t) {
    size_t i, n = 0;
    uint32_t j, p = 0;
    for (i = 0; i < t->word_index.n; i++) n += t->words[i].n > 1 ? t->words[i].n : 0;
    t->symbols = (bpe_symbol *)allocate(n, sizeof *t->symbols);
    t->n_symbols = n;
    for (i = 0; i < t->word_index.n; i++) {
        const bpe_word *w = &t->words[i];
        for (j = 0; w->n > 1 && j < w->n; j++, p++) {
            bpe_symbol *s = &t->symbols[p];
            s->id = (uint8_t)t->bytes[w->at + j];
            s->word = (uint32_t)i;
            s->prev = j ? p - 1 : NOTHING;
            s->next = j + 1 < w->n ? p + 1 : NOTHING;
        }
    }
    free(t->bytes);
    t->bytes = NULL;
    for (p = 0; p < t->n_symbols; p++) if (t->symbols[p].next != NOTHING) enter(t, p);
}

/* -- the heap: the best pair first. A pair whose count fell is put back when it comes up, one whose count rose gets a new entry -- */

static int comes_before(const bpe *t, const bpe_entry *x, const bpe_entry *y) {
    const bpe_pair *a = &t->pairs[x->pair], *b = &t->pairs[y->pair];
    int order;
    if (x->count != y->count) return x->count > y->count;
    order = compare_texts(t, a->left, b->left);
    return (order ? order : compare_texts(t, a->right, b->right)) > 0;
}

static void push(bpe *t, uint32_t pair) {
    bpe_entry e;
    size_t i, up;
    e.pair = pair;
    e.count = t->pairs[pair].queued = t->pairs[pair].count;
    t->heap = (bpe_entry *)room_for(t->heap, t->n_heap, 1, &t->heap_room, sizeof *t->heap);
    for (i = t->n_heap++; i > 0 && comes_before(t, &e, &t->heap[up = (i - 1) / 2]); i = up) t->heap[i] = t->heap[up];
    t->heap[i] = e;
}

static bpe_entry pop(bpe *t) {
    bpe_entry top = t->heap[0], e = t->heap[--t->n_heap];
    size_t i = 0, c;
    while ((c = 2 * i + 1) < t->n_heap) {
        if (c + 1 < t->n_heap && comes_before(t, &t->heap[c + 1], &t->heap[c])) c++;
        if (!comes_before(t, &t->heap[c], &e)) break;
        t->heap[i] = t->heap[c];
        i = c;
    }
    t->heap[i] = e;
    return top;
}

static void push_changed(bpe *t) {
    size_t i;
    for (i = 0; i < t->n_changed; i++) {
        bpe_pair *k = &t->pairs[t->changed[i]];
        k->changed = 0;
        if (!k->barred && k->count >= t->least && k->count > k->queued) push(t, t->changed[i]);
    }
    t->n_changed = 0;
}

/* The pair that comes first; NOTHING: none occurs often enough. */
static uint32_t best_pair(bpe *t) {
    while (t->n_heap) {
        bpe_entry e = pop(t);
        bpe_pair *k = &t->pairs[e.pair];
        if (e.count != k->queued || k->barred) continue;        /* it has a better entry */
        k->queued = 0;
        if (k->count == e.count) return e.pair;
        if (k->count >= t->least) push(t, e.pair);
    }
    return NOTHING;
}

/* -- training -- */

/* The token of a pair; NOTHING: its text is that of a special token, which text must not make. */
static uint32_t token_of_pair(bpe *t, const bpe_pair *k) {
    bpe_token left = t->tokens[k->left], right = t->tokens[k->right];
    uint32_t id;
    t->text = (char *)room_for(t->text, t->n_text, (size_t)left.n + right.n, &t->text_room, 1);      /* before pointers into it are taken */
    add_text(t, t->text + left.at, left.n);
    add_text(t, t->text + right.at, right.n);
    id = add_token(t, (size_t)left.n + right.n, left.bytes + right.bytes);
    return id < BYTES + t->n_special ? NOTHING : id;
}

static void merge_pair(bpe *t, uint32_t pair) {
    uint32_t left = t->pairs[pair].left, right = t->pairs[pair].right, id = token_of_pair(t, &t->pairs[pair]), p;
    if (id == NOTHING) { t->pairs[pair].barred = 1; return; }
    t->last_count = t->pairs[pair].count;
    if (!t->pairs[pair].listed) {      /* it comes again where its parts were made by another merge; once is enough */
        t->pairs[pair].listed = 1;
        t->merges = (bpe_merge *)room_for(t->merges, t->n_merges, 1, &t->merge_room, sizeof *t->merges);
        t->merges[t->n_merges].left = left;
        t->merges[t->n_merges++].right = right;
    }
    while ((p = t->pairs[pair].first) != NOTHING) {
        if (left == right) join_run(t, p, id);
        else join(t, p, id);
    }
    push_changed(t);
}

static void show_merging(bpe *t, double began, size_t from) {
    double now = seconds(), made = (double)(t->token_index.n - from);
    if (!is_terminal(stderr) || now - t->shown < 0.1) return;
    t->shown = now;
    fprintf(stderr, "\r%zu of %zu tokens, the last occurs %llu times, %.0f s, %.0f s to go \x1b[K", t->token_index.n, t->n_wanted,
            (unsigned long long)t->last_count, now - t->began, (now - began) / (made > 0 ? made : 1) * (double)(t->n_wanted - t->token_index.n));
    fflush(stderr);
}

static void merge_all(bpe *t) {
    size_t from = t->token_index.n, step;
    uint32_t pair;
    double began;
    make_symbols(t);
    push_changed(t);
    began = seconds();
    for (step = 0; t->token_index.n < t->n_wanted && !interrupted && (pair = best_pair(t)) != NOTHING; step++) {
        merge_pair(t, pair);
        if (step % 64 == 63) show_merging(t, began, from);
    }
}

/* Tokens of the text it was trained on. */
static uint64_t tokens_of_text(const bpe *t) {
    uint64_t n = t->n_specials;
    size_t i;
    for (i = 0; i < t->word_index.n; i++) if (t->words[i].n == 1) n += t->words[i].count;
    for (i = 0; i < t->n_symbols; i++) if (t->symbols[i].id != NOTHING) n += t->words[t->symbols[i].word].count;
    return n;
}

/* -- the file -- */

enum { TOKENIZER_KEYS = 9 };

typedef struct bpe_file { buffer data[TOKENIZER_KEYS]; prediff_key keys[TOKENIZER_KEYS]; size_t n; } bpe_file;

static void put_number(buffer *b, uint64_t v, size_t n) {
    char c[8];
    size_t i;
    for (i = 0; i < n; i++) c[i] = (char)(uint8_t)(v >> 8 * i);
    append(b, c, n);
}

static buffer *add_key(bpe_file *f, const char *name, uint32_t type, uint32_t element, size_t count) {
    prediff_key *k = &f->keys[f->n];
    memset(k, 0, sizeof *k);
    k->name.bytes = name;
    k->name.n = strlen(name);
    k->type = type;
    k->element = element;
    k->count = count;
    return &f->data[f->n++];
}

static void add_string_key(bpe_file *f, const char *name, const char *value) {
    buffer *b = add_key(f, name, PDI_GGUF_STRING, PDI_GGUF_STRING, 1);
    put_number(b, strlen(value), 8);
    append_text(b, value);
}

static void make_keys(const bpe *t, bpe_file *f) {
    static const char *const splitters[] = { "gpt-2", "llama-bpe", "smollm", "qwen2" };
    size_t i, n = t->token_index.n;
    buffer *b, *types;
    add_string_key(f, "general.architecture", "llama");
    add_string_key(f, "tokenizer.ggml.model", "gpt2");
    add_string_key(f, "tokenizer.ggml.pre", splitters[t->o->u[O_SPLITTER]]);
    b = add_key(f, "tokenizer.ggml.tokens", PDI_GGUF_ARRAY, PDI_GGUF_STRING, n);
    types = add_key(f, "tokenizer.ggml.token_type", PDI_GGUF_ARRAY, PDI_GGUF_I32, n);
    for (i = 0; i < n; i++) {
        put_number(b, t->tokens[i].n, 8);
        append(b, t->text + t->tokens[i].at, t->tokens[i].n);
        put_number(types, i >= BYTES && i < BYTES + t->n_special ? PDI_TYPE_CONTROL : PDI_TYPE_NORMAL, 4);
    }
    b = add_key(f, "tokenizer.ggml.merges", PDI_GGUF_ARRAY, PDI_GGUF_STRING, t->n_merges);
    for (i = 0; i < t->n_merges; i++) {
        const bpe_token *x = &t->tokens[t->merges[i].left], *y = &t->tokens[t->merges[i].right];
        put_number(b, (uint64_t)x->n + 1 + y->n, 8);
        append(b, t->text + x->at, x->n);
        append(b, " ", 1);
        append(b, t->text + y->at, y->n);
    }
    put_number(add_key(f, "tokenizer.ggml.bos_token_id", PDI_GGUF_U32, PDI_GGUF_U32, 1), BYTES, 4);
    put_number(add_key(f, "tokenizer.ggml.eos_token_id", PDI_GGUF_U32, PDI_GGUF_U32, 1), BYTES, 4);
    put_number(add_key(f, "tokenizer.ggml.add_bos_token", PDI_GGUF_BOOL, PDI_GGUF_BOOL, 1), 0, 1);
    for (i = 0; i < f->n; i++) {
        f->keys[i].data = (const uint8_t *)f->data[i].p;
        f->keys[i].data_size = f->data[i].n;
    }
}

/* All of it, or the old file stays. */
static int write_tokenizer(const bpe *t, const char *path) {
    char *temporary = with_ending(path, ".tmp");
    FILE *f = fopen(temporary, "wb");
    prediff_save_desc d;
    prediff_error e;
    bpe_file file;
    size_t i;
    int status = 0;
    memset(&file, 0, sizeof file);
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    make_keys(t, &file);
    d.keys = file.keys; d.n_keys = file.n;
    d.write = write_bytes; d.user = f;
    if (!f) status = fail_text(temporary, "cannot write the file");
    else if (prediff_save(&d, &e)) status = fail(temporary, &e);
    if (f && fclose(f) && !status) status = fail_text(temporary, "cannot write the file");
    if (!status && rename(temporary, path) && (remove(path) || rename(temporary, path))) status = fail_text(path, "cannot rename the temporary file");
    if (status && f) remove(temporary);
    for (i = 0; i < file.n; i++) free(file.data[i].p);
    free(temporary);
    return status;
}

/* -- the command -- */

static int check_specials(settings *o) {
    size_t i, j;
    char c[4];
    uint32_t b;
    if (!o->n_list) o->list[o->n_list++] = "<|endoftext|>";
    for (i = 0; i < o->n_list; i++) {
        size_t n = strlen(o->list[i]);
        if (!n) return conflict(o, "--special: the text is empty");
        for (j = 0; j < i; j++) if (strcmp(o->list[i], o->list[j]) == 0) return conflict(o, "--special: the same text twice");
        for (b = 0; b < BYTES; b++)
            if (pdi_put_char(pdi_byte_char(b), c) == n && memcmp(c, o->list[i], n) == 0) return conflict(o, "--special: the text is that of a byte's token");
    }
    return 0;
}

static int check_tokenizer(bpe *t, settings *o) {
    static const uint8_t splitters[] = { PDI_SPLIT_GPT2, PDI_SPLIT_LLAMA3, PDI_SPLIT_SMOLLM, PDI_SPLIT_QWEN2 };
    FILE *f;
    int status;
    if (!o->s[O_DATA]) return conflict(o, "no text: give one with -d FILE (- is standard input)");
    if (!o->s[O_OUT]) return conflict(o, "no output: give one with -o FILE");
    if (strcmp(o->s[O_OUT], o->s[O_DATA]) == 0) return conflict(o, "-d and -o are the same file");
    status = check_specials(o);
    if (status) return status;
    t->o = o;
    t->n_special = o->n_list;
    t->least = o->u[O_MIN_COUNT];
    t->n_wanted = o->given[O_N] ? (size_t)o->u[O_N] : 2048;
    t->split.splitter = splitters[o->u[O_SPLITTER]];
    t->split.letters = t->bounds;
    t->split.numbers = t->bounds + sizeof pdi_letters / sizeof *pdi_letters;
    pdi_expand_ranges(pdi_letters, sizeof pdi_letters / sizeof *pdi_letters, t->split.letters);
    pdi_expand_ranges(pdi_numbers, sizeof pdi_numbers / sizeof *pdi_numbers, t->split.numbers);
    if (t->n_wanted < BYTES + t->n_special) {
        fprintf(stderr, "prediff: tokenizer: -n %zu is too few: there are %d bytes and %zu special tokens\n", t->n_wanted, (int)BYTES, t->n_special);
        return usage_error("tokenizer");
    }
    f = o->u[O_FORCE] ? NULL : fopen(o->s[O_OUT], "rb");
    if (f) {
        fclose(f);
        return fail_text(o->s[O_OUT], "exists; --force replaces it");
    }
    return check_output(o);
}

static void print_tokenizer_result(const bpe *t) {
    uint64_t n = tokens_of_text(t);
    double spent = seconds() - t->began, each = n ? (double)t->text_bytes / (double)n : 0;
    if (t->token_index.n < t->n_wanted)
        fprintf(stderr, "prediff: tokenizer: note: %zu tokens, not %zu: no more pairs occur %llu times or more\n", t->token_index.n, t->n_wanted,
                (unsigned long long)t->least);
    fprintf(stderr, "done: %zu tokens from %.1f MB of text (%zu distinct words); %.2f bytes a token; the last merge occurs %llu times; %.2f s\n", t->token_index.n,
            (double)t->text_bytes / 1e6, t->word_index.n, each, (unsigned long long)t->last_count, spent);
    if (!t->o->u[O_JSON]) return;
    printf("{\"out\": ");
    json_string(t->o->s[O_OUT], strlen(t->o->s[O_OUT]));
    json_count("tokens", t->token_index.n);
    json_count("wanted", t->n_wanted);
    json_count("merges", t->n_merges);
    json_count("bytes", t->text_bytes);
    json_count("words", t->n_words);
    json_count("distinct_words", t->word_index.n);
    json_count("specials", t->n_specials);
    json_count("text_tokens", n);
    json_number("bytes_per_token", each);
    json_count("last_count", t->last_count);
    printf(", \"seconds\": {\"read\": %.6f, \"merge\": %.6f}}\n", t->read_seconds, spent - t->read_seconds);
}

static void free_tokenizer(bpe *t) {
    index_free(&t->word_index);
    index_free(&t->pair_index);
    index_free(&t->token_index);
    free(t->words); free(t->bytes); free(t->symbols); free(t->pairs); free(t->changed);
    free(t->heap); free(t->tokens); free(t->text); free(t->merges);
}

static int run_tokenizer(settings *o) {
    bpe t;
    int status;
    memset(&t, 0, sizeof t);
    status = check_tokenizer(&t, o);
    if (status) return status;
    t.began = seconds();
    signal(SIGINT, on_interrupt);
    first_tokens(&t);
    status = read_words(&t, o->s[O_DATA]);
    if (!status) merge_all(&t);
    if (is_terminal(stderr)) fputs("\r\x1b[K", stderr);
    if (!status && interrupted) status = fail_text("tokenizer", "stopped; nothing was written");
    if (!status) status = write_tokenizer(&t, o->s[O_OUT]);
    if (!status) print_tokenizer_result(&t);
    free_tokenizer(&t);
    return status;
}
