/* SPDX-License-Identifier: MIT
 * For tests/convert_stream.sh: a checkpoint as large as wanted, and how much memory a command takes.
 *
 *     make_big folder KIND TYPE MEGABYTES PATH   a sharded Hugging Face folder of random weights: KIND llama or gpt2, TYPE F16 or
 *                                                BF16; prints the largest tensor's bytes
 *     make_big measure COMMAND...                runs it; prints its peak memory in KiB and its seconds; its exit status
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096, CHUNK = 1 << 20 };
typedef struct tensor { char name[80]; unsigned long rows, cols; } tensor;     /* rows 0: a vector */

static tensor list[MOST];
static size_t n_list;
static unsigned char noise[CHUNK + 65536];

static void stop(const char *what) { perror(what); exit(1); }

static unsigned long elements(const tensor *t) { return (t->rows ? t->rows : 1) * t->cols; }

static void add(unsigned long rows, unsigned long cols, const char *format, unsigned layer) {
    tensor *t = &list[n_list++];
    if (n_list > MOST) { fprintf(stderr, "too many layers\n"); exit(1); }
    snprintf(t->name, sizeof t->name, format, layer);
    t->rows = rows;
    t->cols = cols;
}

static FILE *create(const char *folder, const char *name) {
    char path[1024];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f) stop(path);
    return f;
}

static void llama_layer(unsigned long d, unsigned i) {
    add(0, d, "model.layers.%u.input_layernorm.weight", i);
    add(d, d, "model.layers.%u.self_attn.q_proj.weight", i);
    add(d / 4, d, "model.layers.%u.self_attn.k_proj.weight", i);
    add(d / 4, d, "model.layers.%u.self_attn.v_proj.weight", i);
    add(d, d, "model.layers.%u.self_attn.o_proj.weight", i);
    add(0, d, "model.layers.%u.post_attention_layernorm.weight", i);
    add(4 * d, d, "model.layers.%u.mlp.gate_proj.weight", i);
    add(4 * d, d, "model.layers.%u.mlp.up_proj.weight", i);
    add(d, 4 * d, "model.layers.%u.mlp.down_proj.weight", i);
}

/* Conv1D: [in][out]. */
static void gpt2_layer(unsigned long d, unsigned i) {
    add(0, d, "transformer.h.%u.ln_1.weight", i); add(0, d, "transformer.h.%u.ln_1.bias", i);
    add(d, 3 * d, "transformer.h.%u.attn.c_attn.weight", i); add(0, 3 * d, "transformer.h.%u.attn.c_attn.bias", i);
    add(d, d, "transformer.h.%u.attn.c_proj.weight", i); add(0, d, "transformer.h.%u.attn.c_proj.bias", i);
    add(0, d, "transformer.h.%u.ln_2.weight", i); add(0, d, "transformer.h.%u.ln_2.bias", i);
    add(d, 4 * d, "transformer.h.%u.mlp.c_fc.weight", i); add(0, 4 * d, "transformer.h.%u.mlp.c_fc.bias", i);
    add(4 * d, d, "transformer.h.%u.mlp.c_proj.weight", i); add(0, d, "transformer.h.%u.mlp.c_proj.bias", i);
}

/* Layers until the size is reached; their number. */
static unsigned fill(int llama, unsigned long d, unsigned long vocab, double bytes) {
    double so_far = 0;
    size_t done = 0;
    unsigned layer = 0;
    add(vocab, d, llama ? "model.embed_tokens.weight" : "transformer.wte.weight", 0);
    if (llama) add(0, d, "model.norm.weight", 0);
    else { add(1024, d, "transformer.wpe.weight", 0); add(0, d, "transformer.ln_f.weight", 0); add(0, d, "transformer.ln_f.bias", 0); }
    do {
        if (llama) llama_layer(d, layer++);
        else gpt2_layer(d, layer++);
        for (; done < n_list; done++) so_far += 2 * (double)elements(&list[done]);
    } while (so_far < bytes);
    return layer;
}

static void config(const char *folder, int llama, unsigned long d, unsigned long vocab, unsigned layers) {
    FILE *f = create(folder, "config.json");
    if (llama)
        fprintf(f, "{ \"model_type\": \"llama\", \"hidden_size\": %lu, \"intermediate_size\": %lu, \"num_hidden_layers\": %u, \"num_attention_heads\": %lu, "
                "\"num_key_value_heads\": %lu, \"max_position_embeddings\": 4096, \"vocab_size\": %lu, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, "
                "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true }\n", d, 4 * d, layers, d / 64, d / 256, vocab);
    else
        fprintf(f, "{ \"model_type\": \"gpt2\", \"n_embd\": %lu, \"n_layer\": %u, \"n_head\": %lu, \"n_positions\": 1024, \"vocab_size\": %lu, "
                "\"activation_function\": \"gelu_new\" }\n", d, layers, d / 64, vocab);
    fclose(f);
}

/* Bytes as tokens, in the byte-level alphabet; no merges. */
static void tokenizer(const char *folder) {
    FILE *f = create(folder, "tokenizer.json");
    unsigned b, moved = 256, c;
    fputs("{ \"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": { \"type\": \"ByteLevel\", \"add_prefix_space\": false, "
          "\"trim_offsets\": true, \"use_regex\": true }, \"post_processor\": null, \"decoder\": { \"type\": \"ByteLevel\", \"add_prefix_space\": true, "
          "\"trim_offsets\": true, \"use_regex\": true }, \"model\": { \"type\": \"BPE\", \"vocab\": {", f);
    for (b = 0; b < 256; b++) {
        c = (b > 32 && b < 127) || (b > 160 && b != 173) ? b : moved++;
        fprintf(f, "%s \"\\u%04x\": %u", b ? "," : "", c, b);
    }
    fputs(" }, \"merges\": [] } }\n", f);
    fclose(f);
}

/* Random halves of either kind, between about 2^-7 and 2^-3. */
static void make_noise(int bf16) {
    uint64_t x = 88172645463325252u;
    size_t i;
    for (i = 0; i + 1 < sizeof noise; i += 2) {
        unsigned v;
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        v = bf16 ? (0x3C00u | (unsigned)(x & 0x81FF)) : (0x2000u | (unsigned)(x & 0x8FFF));
        noise[i] = (unsigned char)(v & 255);
        noise[i + 1] = (unsigned char)(v >> 8);
    }
}

static void write_shard(const char *folder, const char *name, const char *dtype, size_t from, size_t to) {
    static char header[MOST * 192];
    unsigned char length[8];
    uint64_t at = 0;
    size_t n = 0, i, k;
    FILE *f = create(folder, name);
    header[n++] = '{';
    for (i = from; i < to; i++) {
        uint64_t end = at + 2 * (uint64_t)elements(&list[i]);
        n += (size_t)sprintf(header + n, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > from ? "," : "", list[i].name, dtype);
        if (list[i].rows) n += (size_t)sprintf(header + n, "%lu,", list[i].rows);
        n += (size_t)sprintf(header + n, "%lu],\"data_offsets\":[%llu,%llu]}", list[i].cols, (unsigned long long)at, (unsigned long long)end);
        at = end;
    }
    header[n++] = '}';
    while (n % 8) header[n++] = ' ';
    for (k = 0; k < 8; k++) length[k] = (unsigned char)((uint64_t)n >> 8 * k);
    fwrite(length, 1, 8, f);
    fwrite(header, 1, n, f);
    for (; at; at -= n) {
        n = at < CHUNK ? (size_t)at : CHUNK;
        if (fwrite(noise + (at / CHUNK * 4098) % 65536, 1, n, f) != n) stop(name);
    }
    if (fclose(f)) stop(name);
}

static int folder(const char *kind, const char *dtype, double megabytes, const char *path) {
    int llama = strcmp(kind, "llama") == 0;
    unsigned long d = megabytes < 1000 ? 512 : llama ? 2048 : 1536, vocab = megabytes < 1000 ? 32000 : llama ? 128256 : 50257, largest = 0;
    unsigned shards = megabytes < 1000 ? 3 : 6, s;
    size_t i, k;
    FILE *index;
    if (mkdir(path, 0777)) stop(path);
    config(path, llama, d, vocab, fill(llama, d, vocab, megabytes * 1e6));
    tokenizer(path);
    make_noise(dtype[0] == 'B');
    index = create(path, "model.safetensors.index.json");
    fprintf(index, "{ \"metadata\": {}, \"weight_map\": {\n");
    for (s = 0, i = 0; s < shards; s++) {
        char name[64];
        size_t to = n_list * (s + 1) / shards;
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", s + 1, shards);
        write_shard(path, name, dtype, i, to);
        for (k = i; k < to; k++) fprintf(index, "  \"%s\": \"%s\"%s\n", list[k].name, name, k + 1 < n_list ? "," : "");
        i = to;
    }
    fprintf(index, "} }\n");
    fclose(index);
    for (i = 0; i < n_list; i++) if (2 * elements(&list[i]) > largest) largest = 2 * elements(&list[i]);
    printf("%lu\n", largest);
    return 0;
}

static int measure(char **command) {
    struct timespec begin, end;
    struct rusage u;
    int status;
    pid_t child;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    child = fork();
    if (child == 0) { execvp(command[0], command); perror(command[0]); _exit(127); }
    if (child < 0 || waitpid(child, &status, 0) != child || getrusage(RUSAGE_CHILDREN, &u)) stop("measure");
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%ld %.1f\n", (long)u.ru_maxrss, (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "folder")) return folder(argv[2], argv[3], strtod(argv[4], NULL), argv[5]);
    if (argc > 2 && !strcmp(argv[1], "measure")) return measure(argv + 2);
    fprintf(stderr, "usage: see the top of make_big.c\n");
    return 2;
}
