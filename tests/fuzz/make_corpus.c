/* SPDX-License-Identifier: MIT
 * Writes the seed corpus of the fuzz targets into a folder: the smallest good model, malformed ones, texts, ids, settings.
 * Every file is below 4 kB; its first byte names the target (see fuzz.c).
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "../corpus.h"

static void put_file(const char *folder, const char *name, int target, const void *bytes, size_t n) {
    char path[600];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f || n > 4000 || fputc(target, f) == EOF || fwrite(bytes, 1, n, f) != n || fclose(f)) { fprintf(stderr, "cannot write %s (%u bytes)\n", path, (unsigned)n); exit(1); }
}

static void put_gguf(const char *folder, const char *name, pd_gguf *g) {
    size_t n;
    uint8_t *b = pd_gguf_write(g, &n);
    put_file(folder, name, 0, b, n);
    free(b);
    pd_gguf_free(g);
}

static pd_gguf *smallest(int gpt2, int plain, uint32_t type) {
    pd_tiny t;
    memset(&t, 0, sizeof t);
    t.vocab = 6; t.ctx = 8; t.embd = 4; t.layers = 1; t.heads = 2; t.heads_kv = gpt2 ? 2 : 1; t.ff = 4; t.no_tokenizer = 1; t.gpt2 = gpt2; t.causal_only = plain;
    t.noise_dim = plain ? 0 : 2; t.no_rate = 1;
    t.type = type;
    return pd_gguf_tiny(&t);
}

int main(int argc, char **argv) {
    static const char *const texts[] = { "Hello, world's 42 the ab\n\n  x", "\xF0\x9F\x98\x80 caf\xC3\xA9 \xFF\xC3 <|end|>", "ab [MASK:3] the \\[MASK:" };
    static const uint8_t ids[] = { 4, 0x61, 0, 0xE2, 0, 0x82, 0, 0xAC, 0, 0, 1, 0xFF, 0xFF, 0xF0, 0, 8, 1 };
    uint8_t settings[96];
    const char *folder = argc > 1 ? argv[1] : "tests/fuzz/corpus";
    char name[32];
    unsigned i, k;
    pd_gguf *g;
    put_gguf(folder, "gguf-llama", smallest(0, 0, 0));
    put_gguf(folder, "gguf-gpt2", smallest(1, 1, PREDIFF_F16));
    g = smallest(0, 1, PREDIFF_BF16); pd_patch(g, "token_embd.weight", PD_DIM1, BITS(62)); put_gguf(folder, "gguf-wrap", g);
    g = smallest(0, 1, 0); pd_double(g, "output_norm.weight"); put_gguf(folder, "gguf-double", g);
    g = smallest(0, 1, 0); pd_set_bool(g, "x.flag", 1); pd_set_strings(g, "x.list", texts, 2); put_gguf(folder, "gguf-keys", g);
    for (i = 0; i < 3; i++)
        for (k = 0; k < 2; k++) {
            char line[128];
            line[0] = (char)(i + 4 * k + (i == 2 ? 1 : 0));
            strcpy(line + 1, texts[i]);
            snprintf(name, sizeof name, "encode-%u%u", i, k);
            put_file(folder, name, 1, line, strlen(texts[i]) + 1);
        }
    put_file(folder, "decode-0", 2, ids, sizeof ids);
    for (i = 0; i < 6; i++) {
        for (k = 0; k < sizeof settings; k++) settings[k] = (uint8_t)(k < 28 ? (k * 7 + i * 5 + k * k * i) % (k > 10 && k < 17 ? 4 : 23) : k * 37 + i);
        settings[2] = (uint8_t)(i % 4); settings[10] = 3; settings[13] = settings[14] = settings[15] = 0;
        snprintf(name, sizeof name, "generate-%u", i);
        put_file(folder, name, 3, settings, sizeof settings);
    }
    return 0;
}
