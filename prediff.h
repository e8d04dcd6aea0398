/* SPDX-License-Identifier: MIT
 *
 * prediff.h: masked-diffusion text generation for any C or C++ program, in one header.
 *
 *     #define PREDIFF_IMPLEMENTATION              // in exactly one source file
 *     #include "prediff.h"
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         prediff_model_desc md = {0};            // every desc starts zeroed: zero = default
 *         prediff_context_desc cd = {0};
 *         prediff_generate_desc gd = {0};
 *         prediff_model *m; prediff_context *c; prediff_error e = {0};
 *         char text[512];
 *         md.path = "examples/models/story-q8_0.gguf";
 *         cd.n_ctx = 128;
 *         gd.n_steps = 48; gd.no_repeat = 4;      // more steps: better text, more time
 *         if (prediff_model_open(&m, &md, &e) || prediff_context_create(&c, m, &cd, &e) ||
 *             prediff_write(c, "Once upon a time, there was a little", 48, &gd, text, sizeof text, &e))
 *             return fprintf(stderr, "%s\n", e.message), 1;
 *         puts(text);
 *         prediff_context_destroy(c); prediff_model_close(m);
 *         return 0;
 *     }
 *
 *     cc -O2 hello.c -lm                          // OpenMP optional: add -fopenmp
 *
 * WHAT IT IS. A masked-diffusion language model starts from a row of masks and reveals it in a few steps, many tokens
 * a step, each step seeing the text on both sides. This header runs causal models (GPT-2, Llama families) that were
 * adapted to do so (PreDiff-LM): the prompt stays causal and is computed once; the target sees the prompt and all of
 * itself. It reads and writes GGUF, tokenizes, generates, fills gaps, and scores text.
 *
 * WHAT IT DOES NOT DO. No downloads, no GPU, no chat templates, no Hugging Face folders (tools/prediff-convert does
 * those), no mixture-of-experts. It never prints, exits, aborts, or changes locale, signals or rounding.
 *
 * HOW A STEP WORKS.         prompt (causal, cached)      target (all see all)
 *     step 0                Once upon a time             [ ]   [ ]   [ ]   [ ]
 *     step 1                                             there [ ]   [ ]   .
 *     step 2                                             there was   a     .
 *   1. one network pass over the target rows gives a probability for every token at every mask;
 *   2. the schedule says how many masks k to reveal;  3. the k most certain ones are revealed for good.
 *
 * WORDS. Target: the row being filled; prompt: what stands before it. Rate: the share of the target that is masked; a model may
 *   be told it (mask-rate embedding), since guessing from few words differs from guessing from many. Soft prediction: the last
 *   step's probabilities, fed back as an average embedding (self-conditioning), so that a step need not start over. Infinite
 *   mask: noise added to the mask vector, so that different noise means different text even in one step. Adapted: trained with
 *   masks after it was trained causally. Shift: row i predicts token i + 1, as causal models do, and not token i. Nats: natural
 *   logarithms of probabilities, negated. Logits: scores whose softmax are the probabilities.
 *
 * CONTENTS (search for the tag)
 *     >>API       types, desc structs, functions           >>GGUF       reading model files
 *     >>PLAT      compiler and platform                    >>HPARAMS    file keys to one checked struct
 *     >>BASE      sizes, cursor, arena, errors             >>TOKENIZER  text to ids and back
 *     >>NUM       half floats, random numbers              >>MODEL      tensors bound by name and shape
 *     >>QUANT     block formats                            >>FORWARD    the network
 *     >>OPS       vector operations per processor          >>DENOISE    samplers: text out of masks
 *     >>KERNELS   the arithmetic, written once             >>SCORE      likelihoods and bounds
 *     >>DISPATCH  choosing kernels at run time             >>SAVE       writing GGUF
 *     >>THREAD    one parallel loop                        >>TRAIN      gradients and AdamW
 *     >>IO        files                                    >>END        clean-up, licence, changes
 *   I embed it:                     CONFIG and CONTRACT below, then API.
 *   I want to understand diffusion: DENOISE, FORWARD, TRAIN, SCORE.
 *   I want to understand the speed: KERNELS, QUANT, OPS.
 *
 * CONFIG (define before the implementation; nothing else is consulted)
 *     PREDIFF_IMPLEMENTATION  emit the implementation here        PREDIFF_NO_STDIO      no files: memory buffers only
 *     PREDIFF_STATIC          all functions static                PREDIFF_NO_MMAP       no memory mapping
 *     PREDIFF_API             linkage of public functions         PREDIFF_NO_MALLOC     no malloc: allocator required
 *     PREDIFF_FILENAME        this file's name in quotes          PREDIFF_NO_SIMD       scalar kernels only
 *     PREDIFF_ASSERT(x)       internal checks, default none       PREDIFF_NO_OPENMP     ignore OpenMP
 *     PREDIFF_NO_TOKENIZER    ids only, no text                  PREDIFF_NO_TRAIN      no training
 *   None of them changes a public struct or signature. The kernels include this file again once per instruction set,
 *   under the name PREDIFF_FILENAME ("prediff.h" unless you renamed it).
 *
 * CONTRACT
 *   Memory    A model and a context are one block each (a model read from a file keeps the file's image as a second).
 *             Sizes are known beforehand. Generating, scoring and prompting allocate nothing; encoding allocates and
 *             frees a work block of some 40 bytes a byte of text, prediff_write and prediff_infill also their token ids.
 *   Threads   A model is immutable once open: share it. A context belongs to one thread at a time. No writable globals.
 *             A model outlives its contexts. n_threads 0 means 1.
 *   Errors    Functions return prediff_status; details go to a caller's prediff_error (may be NULL), which is written on
 *             failure only. A failed creation sets the out pointer to NULL and leaks nothing.
 *   Same bits Same binary, instruction set, inputs and seed: same tokens, for any number of threads. A row's result does
 *             not depend on which rows, samples or threads are computed beside it (see KERNELS). -ffast-math voids this.
 *   Files     Any bytes are safe to open: the result is a model or an error. Memory while opening is bounded by the
 *             file's size, not by the numbers in it. A mapped file that another process truncates can still kill the
 *             process (SIGBUS): read untrusted files instead of mapping them (the default). Reports of a crash on any
 *             input are bugs of the first rank: open an issue with the file.
 *   Not told  The quality of a model's text, time bounds for giant valid models, constant time.
 *
 * SHAPES used in comments: T target rows, P prompt rows, D width, H heads, K key/value heads, E head size, F feed-forward
 *   width, V vocabulary, L layers, S samples, N noise size. [A][B] is row-major, B fastest.
 */

/* ---- >>API: types, desc structs, functions ------------------------------------------------------------------------- */
#ifndef PREDIFF_H
#define PREDIFF_H

#include <stddef.h>
#include <stdint.h>

#define PREDIFF_VERSION 100            /* major * 10000 + minor * 100 + patch */
#define PREDIFF_MASK (-1)              /* in a target array: a position to fill */

#ifndef PREDIFF_API
#ifdef PREDIFF_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define PREDIFF_API static __attribute__((unused))
#else
#define PREDIFF_API static
#endif
#else
#define PREDIFF_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* -- status, items, errors -- */

typedef enum prediff_status {
    PREDIFF_OK = 0,
    PREDIFF_ERR_ARG,          /* the call is wrong: a value out of range, a missing pointer */
    PREDIFF_ERR_NOMEM,        /* an allocation failed, or a given block is too small */
    PREDIFF_ERR_IO,           /* a file could not be read or written */
    PREDIFF_ERR_FORMAT,       /* the bytes are not a valid file of their kind */
    PREDIFF_ERR_UNSUPPORTED,  /* valid, but not something this library runs; the message names it */
    PREDIFF_ERR_LIMIT,        /* over a limit the caller may raise, or an output buffer is too small */
    PREDIFF_ERR_NUMERIC,      /* not-a-number or infinity where a probability was needed */
    PREDIFF_ERR_CANCELLED,    /* a callback asked to stop; results so far are valid */
    PREDIFF_ERR_INTERNAL      /* a bug of the library */
} prediff_status;

/* Every reason for an error, one item each; tests assert the item. The message adds numbers and names. */
#define PREDIFF_ITEMS(X) \
    X(NULL_ARGUMENT, "a required pointer is NULL")           X(DESC_CANARY, "a desc was not zeroed before use") \
    X(ALLOC, "out of memory")                                X(MEMORY_BLOCK, "the given memory block is too small") \
    X(FILE_OPEN, "cannot open the file")                     X(FILE_READ, "cannot read the file") \
    X(FILE_WRITE, "cannot write the file")                   X(GGUF_TRUNCATED, "the file ends too early") \
    X(GGUF_MAGIC, "not a GGUF file")                         X(GGUF_ENDIAN, "a big-endian GGUF file") \
    X(GGUF_VERSION, "unknown GGUF version")                  X(GGUF_COUNT, "more entries than the file can hold") \
    X(GGUF_STRING, "a string runs past the file's end")        X(GGUF_KEY, "a malformed key") \
    X(GGUF_KEY_DUPLICATE, "a key appears twice")             X(GGUF_VALUE_TYPE, "a key has an unknown or wrong type") \
    X(GGUF_ARRAY, "a malformed array")                       X(GGUF_BOOL, "a bool is neither 0 nor 1") \
    X(GGUF_ALIGNMENT, "bad alignment")                       X(GGUF_SPLIT, "one part of a split model") \
    X(TENSOR_NAME, "a malformed tensor name")                X(TENSOR_DUPLICATE, "a tensor appears twice") \
    X(TENSOR_DIMS, "bad tensor dimensions")                  X(TENSOR_TYPE, "tensor type not supported") \
    X(TENSOR_BLOCK, "a row is not a whole number of blocks") X(TENSOR_OFFSET, "bad tensor offset") \
    X(TENSOR_DATA, "tensor data runs past the file's end")   X(TENSOR_OVERLAP, "two tensors overlap") \
    X(TENSOR_MISSING, "a tensor is missing")                 X(TENSOR_SHAPE, "a tensor has the wrong shape") \
    X(ARCH_MISSING, "general.architecture is missing")       X(ARCH_UNKNOWN, "architecture not supported") \
    X(KEY_MISSING, "a required key is missing")              X(HPARAM_RANGE, "a model size is out of range") \
    X(ROPE_KIND, "rotary scaling kind not supported")        X(PREDIFF_KEY, "a bad prediff.* or diffusion.* key") \
    X(LIMIT_EXCEEDED, "over a limit in the desc")            X(VOCAB_SIZE, "tokenizer and model sizes disagree") \
    X(TOKENIZER_KIND, "tokenizer kind not supported")        X(TOKENIZER_ARRAY, "tokenizer arrays disagree") \
    X(TOKEN_DUPLICATE, "a token appears twice")              X(TOKEN_EMPTY, "an empty token") \
    X(MERGE, "a bad merge")                                  X(SPECIAL_ID, "a special token id is out of range") \
    X(BYTE_TOKENS, "byte tokens are incomplete")             X(NO_TOKENIZER, "the model has no tokenizer") \
    X(TOKEN_RANGE, "a token id is out of range") \
    X(BUFFER_SIZE, "an output buffer is too small")          X(T_RANGE, "too many positions") \
    X(SAMPLES, "too many samples, or not possible with samples") X(MASK_ID_UNKNOWN, "no mask vector and no mask id") \
    X(MASK_IS_EOS, "the mask id is the end-of-text id")      X(VALUE_RANGE, "a setting is out of range") \
    X(CONFLICT, "two settings exclude each other")           X(SHIFT_PROMPT, "a shifted model needs a prompt") \
    X(ISA_MISSING, "instruction set not available here")     X(BUSY, "the context is in use by a callback") \
    X(NOT_BEGUN, "no generation has begun")                  X(LOGITS, "logits are not finite") \
    X(STOPPED, "stopped by a callback")                      X(TEMPLATE, "a bad [MASK:n] mark") \
    X(VOCAB_ONLY, "opened for its vocabulary only")          X(ENCODING, "a value cannot be stored in this type") \
    X(BUG, "internal error")

typedef enum prediff_item {
    PREDIFF_ITEM_NONE = 0,
#define X(name, text) PREDIFF_ITEM_##name,
    PREDIFF_ITEMS(X)
#undef X
    PREDIFF_ITEM_COUNT
} prediff_item;

typedef struct prediff_error {
    uint64_t offset;           /* byte offset in the file, or position in an array, where that makes sense */
    prediff_status status;     /* not first: = {0} must also be C++, where 0 is no enumerator */
    prediff_item item;
    char message[192];         /* always terminated; printable ASCII whatever the file holds */
} prediff_error;

/* -- enumerations: zero is the default -- */

typedef enum prediff_attention {       /* which positions a row may read */
    PREDIFF_ATTENTION_DEFAULT = 0,     /* what the model file says */
    PREDIFF_ATTENTION_HYBRID,          /* prompt rows causal, target rows everything */
    PREDIFF_ATTENTION_BIDIRECTIONAL,   /* every row everything: nothing can be cached */
    PREDIFF_ATTENTION_CAUSAL           /* every row what precedes it */
} prediff_attention;

typedef enum prediff_isa {             /* kernel sets */
    PREDIFF_ISA_DEFAULT = 0, PREDIFF_ISA_SCALAR, PREDIFF_ISA_AVX2, PREDIFF_ISA_AVX512, PREDIFF_ISA_NEON, PREDIFF_ISA_COUNT
} prediff_isa;

typedef enum prediff_compute { PREDIFF_EXACT = 0, PREDIFF_FAST } prediff_compute;  /* FAST permits low-precision activations;
                                                                                      this version has none and runs EXACT */
typedef enum prediff_type {            /* tensor types, numbered as in GGUF */
    PREDIFF_F32 = 0, PREDIFF_F16 = 1, PREDIFF_Q4_0 = 2, PREDIFF_Q4_1 = 3, PREDIFF_Q8_0 = 8, PREDIFF_Q4_K = 12,
    PREDIFF_Q6_K = 14, PREDIFF_BF16 = 30
} prediff_type;

typedef enum prediff_sampler {
    PREDIFF_CAU = 0,                   /* confidence-aware unmasking: a schedule says how many, an order says which */
    PREDIFF_ANCESTRAL,                 /* each mask revealed by chance, as the reverse process does (Sahoo et al. 2024) */
    PREDIFF_FIRST_HITTING,             /* one random mask a step: the reverse process without time steps (Zheng et al. 2024) */
    PREDIFF_CAUSAL_DECODING            /* left to right by the causal model; the judge and the yardstick */
} prediff_sampler;

typedef enum prediff_order { PREDIFF_CONFIDENCE = 0, PREDIFF_MARGIN, PREDIFF_ENTROPY, PREDIFF_RANDOM } prediff_order;

typedef enum prediff_schedule {        /* masks kept after step s of N, p = s/N, of M0 at the start */
    PREDIFF_COSINE = 0,                /* floor(M0 cos(p pi/2)): few first, then more */
    PREDIFF_REMAINING,                 /* reveals ceil(M_now (1 - cos(p pi/2))) */
    PREDIFF_LINEAR,                    /* floor(M0 (1 - p)) */
    PREDIFF_SQRT,                      /* floor(M0 (1 - sqrt p)) */
    PREDIFF_EVEN,                      /* reveals M0 / N, the first M0 mod N steps one more (LLaDA's, Nie et al. 2025) */
    PREDIFF_TIMES                      /* reveals floor(M_now (1 - t' / t)), times t from 1 to 0.001 in N equal steps (Dream's, Ye et al. 2025) */
} prediff_schedule;

typedef enum prediff_noise { PREDIFF_NOISE_DEFAULT = 0, PREDIFF_NOISE_FIXED, PREDIFF_NOISE_REDRAW } prediff_noise;

typedef enum prediff_ended {           /* how a generation ended */
    PREDIFF_ENDED_FILLED = 0,          /* no mask left */
    PREDIFF_ENDED_EOS,                 /* an end-of-text token closed the text */
    PREDIFF_ENDED_SURE,                /* stop_sure fired */
    PREDIFF_ENDED_EARLY,               /* prediff_end before the last step */
    PREDIFF_ENDED_CANCELLED            /* a callback stopped it */
} prediff_ended;

/* -- the model -- */

typedef struct prediff_allocator {     /* both NULL: malloc and free. Any alignment will do */
    void *(*alloc)(void *user, size_t size);
    void (*free)(void *user, void *ptr, size_t size);
    void *user;
} prediff_allocator;

typedef struct prediff_limits {        /* 0 = the default in brackets */
    uint64_t keys;                     /* metadata keys [65,536] */
    uint64_t tensors;                  /* [65,536] */
    uint64_t string_bytes;             /* one string [1 MiB] */
    uint64_t vocabulary;               /* tokens [4,194,304] */
    uint64_t layers;                   /* [1,024] */
    uint64_t context;                  /* positions [4,194,304] */
} prediff_limits;

typedef struct prediff_model prediff_model;
typedef struct prediff_context prediff_context;

typedef struct prediff_model_desc {
    uint32_t canary_begin;             /* must stay 0 */
    const void *data;                  /* a GGUF file in memory, borrowed until close (may lie in flash), or */
    size_t size;                       /*   its bytes */
    const char *path;                  /* a GGUF file to read (exactly one of data and path) */
    int copy;                          /* 1: copy data instead of borrowing it */
    int map;                           /* 1: map the file instead of reading it; see CONTRACT, Files */
    int vocab_only;                    /* 1: tokenizer only; any architecture */
    const int32_t *mask_token;         /* NULL: from the file. Else the vocabulary row that stands for the
                                          mask; without meaning where the file has a mask vector */
    prediff_limits limits;
    prediff_allocator allocator;       /* kept for the model, its contexts and for encoding */
    void (*log)(void *user, const char *text);   /* remarks while opening; NULL: none */
    void *log_user;
    uint32_t canary_end;
} prediff_model_desc;

typedef struct prediff_model_info {
    const char *architecture;          /* "gpt2", "llama", "qwen2", "dream", "llada"; "" if opened for its vocabulary */
    const char *name;                  /* general.name or "" */
    size_t n_vocab;                    /* V, rows of the embedding; 0 if the file is no model */
    size_t n_tokens;                   /* tokens of the tokenizer, 0 = none; rows beyond it are never produced */
    size_t n_ctx, n_embd, n_layer, n_head, n_head_kv, n_head_dim, n_ff;
    uint64_t n_params;                 /* elements of all tensors */
    uint64_t weight_bytes;             /* bytes of all tensors */
    size_t noise_dim;                  /* N, 0 = no infinite mask */
    int adapted;                       /* prediff.version present */
    int has_mask, has_rate, has_selfcond;
    int shift;                         /* 1: row i predicts token i + 1 */
    prediff_attention attention;       /* of the file */
    prediff_noise noise;               /* lifetime the file asks for */
    int32_t bos, eos, eot, mask;       /* ids, -1 = none */
    int add_bos;                       /* encode with PREDIFF_ENCODE_BOS starts with bos */
    const char *tokenizer;             /* "gpt2", "llama" or "" */
    const char *splitter;              /* "gpt-2", "llama-bpe", "smollm", "qwen2" or "" */
} prediff_model_info;

/* prediff_version: PREDIFF_VERSION of the compiled implementation. */
PREDIFF_API int prediff_version(void);
/* prediff_status_name, prediff_item_name, prediff_item_text: constant strings, "?" for an unknown value. */
PREDIFF_API const char *prediff_status_name(prediff_status status);
PREDIFF_API const char *prediff_item_name(prediff_item item);
PREDIFF_API const char *prediff_item_text(prediff_item item);
/* prediff_isa_name: "scalar", "avx2", ...; prediff_isa_available: 1 if this machine and build can run it;
   prediff_isa_best: what PREDIFF_ISA_DEFAULT chooses. Cost: a few instructions. */
PREDIFF_API const char *prediff_isa_name(prediff_isa isa);
PREDIFF_API int prediff_isa_available(prediff_isa isa);
PREDIFF_API prediff_isa prediff_isa_best(void);

/* prediff_model_open: a model from GGUF bytes or a file.

   out    the model, NULL on failure. Closed by prediff_model_close.
   d      zero = default; data or path must be given. Borrowed data must outlive the model.
   err    may be NULL.
   Everything in the file is checked: after this call no index used later can leave its array.
   Errors: FORMAT, UNSUPPORTED, LIMIT (items GGUF_*, TENSOR_*, ...), IO, NOMEM, ARG.
   Cost: reads the header once and the norms and biases; matrices stay where they are, in the file's type. */
PREDIFF_API prediff_status prediff_model_open(prediff_model **out, const prediff_model_desc *d, prediff_error *err);
PREDIFF_API void prediff_model_close(prediff_model *m);          /* NULL is fine */
PREDIFF_API void prediff_model_get_info(const prediff_model *m, prediff_model_info *info);

/* -- the container, for tools: keys and tensors of GGUF files of the architectures and tensor types we read -- */

typedef struct prediff_string { const char *bytes; size_t n; } prediff_string;    /* not terminated, any bytes */

typedef struct prediff_key {
    prediff_string name;
    uint32_t type;                     /* 0 u8 1 i8 2 u16 3 i16 4 u32 5 i32 6 f32 7 bool 8 string 9 array 10 u64 11 i64 12 f64 */
    uint32_t element;                  /* of an array: its element type */
    uint64_t count;                    /* of an array: elements; else 1 */
    const uint8_t *data;               /* the value as in the file: little-endian; strings as u64 length, bytes */
    size_t data_size;                  /* its bytes */
} prediff_key;

typedef struct prediff_tensor {
    prediff_string name;
    uint32_t type;                     /* prediff_type, or another GGUF type number */
    uint32_t n_dims;
    uint64_t dims[4];                  /* dims[0] is the row length; unused ones are 1 */
    const uint8_t *data;               /* the first row, in the file's type */
    size_t data_size;
} prediff_tensor;

typedef struct prediff_container {     /* filled by prediff_container_get; arrays belong to the model */
    uint32_t version;
    const prediff_key *keys;       size_t n_keys;
    const prediff_tensor *tensors; size_t n_tensors;
    size_t alignment;
} prediff_container;

/* prediff_container_open: like prediff_model_open, but checks the container alone: keys, tensors, the architecture's name
   and the types of the tokenizer's keys. The object serves prediff_container_get and prediff_model_get_info. */
PREDIFF_API prediff_status prediff_container_open(prediff_model **out, const prediff_model_desc *d, prediff_error *err);
PREDIFF_API void prediff_container_get(const prediff_model *m, prediff_container *out);
PREDIFF_API const char *prediff_type_name(uint32_t type);          /* "Q8_0"; "?" if unknown */

/* prediff_dequantize_row: n elements of one row as floats. n a multiple of the type's block. Errors: UNSUPPORTED, ARG. */
PREDIFF_API prediff_status prediff_dequantize_row(uint32_t type, const void *row, float *out, size_t n, prediff_error *err);

typedef struct prediff_save_desc {     /* what to write: usually keys and tensors of a container, some replaced */
    uint32_t canary_begin;
    const prediff_key *keys;       size_t n_keys;
    const prediff_tensor *tensors; size_t n_tensors;
    const uint32_t *store;             /* [n_tensors] type to store each tensor as (F32, F16, BF16, Q8_0, Q4_0), NULL: unchanged */
    int (*row)(void *user, size_t tensor, size_t row, float *out);   /* dims[0] floats of a tensor whose data is NULL; 0 = given.
                                          Rows are asked for once each, in order: a file of any size passes through one row */
    size_t alignment;                  /* power of two, 0 = 32 (general.alignment is written when it differs) */
    int (*write)(void *user, const void *bytes, size_t n);   /* 0 = written */
    void *user;
    prediff_allocator allocator;       /* for work memory: one row as floats and one as stored */
    uint32_t canary_end;
} prediff_save_desc;

/* prediff_save: writes a GGUF v3 file through d->write, in order, in one pass. Rows are converted one at a time, so memory
   is two rows whatever the file's size. Names of keys and tensors must differ. Errors: ARG, UNSUPPORTED, FORMAT (ENCODING: a value
   too large for the type), NOMEM, IO. */
PREDIFF_API prediff_status prediff_save(const prediff_save_desc *d, prediff_error *err);

/* -- text -- */

enum { PREDIFF_ENCODE_BOS = 1,         /* begin with the begin-of-text token if the model wants one */
       PREDIFF_ENCODE_SPECIAL = 2 };   /* the text of special tokens becomes those tokens (never do this with strangers' text) */

/* prediff_encode: text to token ids.

   text, n   any bytes; byte-level models encode every byte, SentencePiece models replace bytes they have no token for.
   ids       [capacity] out; NULL with capacity 0 to ask for the count.
   count     out, always set on OK and on BUFFER_SIZE: the ids the whole text needs.
   Errors: LIMIT (BUFFER_SIZE: the first capacity ids are written), NOMEM, ARG (NO_TOKENIZER).
   Threads: any, also on one model at a time. Cost: O(n log n); a work block from the model's allocator. */
PREDIFF_API prediff_status prediff_encode(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                          int32_t *ids, size_t capacity, size_t *count, prediff_error *err);

/* prediff_decode: ids to bytes (not terminated; may end inside a character: use the decoder below for streams).
   special 1: special tokens are written as their text, 0: they are silent. Errors: ARG (TOKEN_RANGE), LIMIT (BUFFER_SIZE). */
PREDIFF_API prediff_status prediff_decode(const prediff_model *m, const int32_t *ids, size_t n, int special,
                                          char *text, size_t capacity, size_t *count, prediff_error *err);

typedef struct prediff_decoder {       /* zero-initialised = start of a text */
    unsigned char held[4];             /* bytes of a character not complete yet */
    int n_held, begun;
} prediff_decoder;

/* prediff_decode_next: the next token's text, never half a character: an incomplete tail is held back.
   prediff_decode_end: what is still held, as one U+FFFD. text needs room for prediff_max_token_bytes(m) + 4 bytes;
   it is terminated. Broken bytes become U+FFFD. */
PREDIFF_API prediff_status prediff_decode_next(const prediff_model *m, prediff_decoder *s, int32_t id, int special,
                                               char *text, size_t capacity, size_t *count, prediff_error *err);
PREDIFF_API prediff_status prediff_decode_end(prediff_decoder *s, char *text, size_t capacity, size_t *count, prediff_error *err);
PREDIFF_API size_t prediff_max_token_bytes(const prediff_model *m);

/* prediff_token_text: a token as stored in the file (bytes NULL if out of range); prediff_token_is_special: control tokens;
   prediff_token_ends: end of text (eos, eot). */
PREDIFF_API prediff_string prediff_token_text(const prediff_model *m, int32_t id);
PREDIFF_API int prediff_token_is_special(const prediff_model *m, int32_t id);
PREDIFF_API int prediff_token_ends(const prediff_model *m, int32_t id);

/* prediff_template: text with [MASK:n] marks to ids with n PREDIFF_MASKs each; everything before the first mark is the
   prompt (*n_prompt ids), the rest the target. One space before a mark belongs to the gap and is dropped where the
   tokenizer glues spaces to words; "\[MASK:" is literal. flags as in prediff_encode, never SPECIAL.
   Errors: as prediff_encode, ARG (TEMPLATE) for a mark without a number from 1 to 1,000,000. */
PREDIFF_API prediff_status prediff_template(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                            int32_t *ids, size_t capacity, size_t *count, size_t *n_prompt, prediff_error *err);

/* -- the context -- */

typedef struct prediff_context_desc {
    uint32_t canary_begin;
    size_t n_ctx;                      /* most positions of prompt and target together; 0 = the model's */
    size_t n_target;                   /* most target rows; 0 = n_ctx */
    size_t n_samples;                  /* S, samples that share the prompt; 0 = 1, at most 1,024 */
    int n_threads;                     /* 0 = 1; more than 256 are 256; without OpenMP or parallel_for always 1 */
    prediff_attention attention;
    prediff_isa isa;
    prediff_compute compute;
    void *memory;                      /* a block of prediff_context_size bytes to live in; NULL: the model's allocator */
    size_t memory_size;
    /* a host's job system instead of OpenMP: call job(arg, i) for i = 0..n-1, on any threads, return when all are done */
    void (*parallel_for)(void *user, size_t n, void (*job)(void *arg, size_t i), void *arg);
    void *parallel_user;
    uint32_t canary_end;
} prediff_context_desc;

/* prediff_context_size: the bytes a context of these settings takes. */
PREDIFF_API prediff_status prediff_context_size(const prediff_model *m, const prediff_context_desc *d, size_t *size, prediff_error *err);
/* prediff_context_create: work memory and prompt cache. The only allocation until destroy. Errors: ARG, NOMEM, UNSUPPORTED (ISA).
   Cost: clears the block, and n_ctx rows of rotary sines and cosines. */
PREDIFF_API prediff_status prediff_context_create(prediff_context **out, const prediff_model *m, const prediff_context_desc *d, prediff_error *err);
PREDIFF_API void prediff_context_destroy(prediff_context *c);      /* NULL is fine; a caller's block stays the caller's */
PREDIFF_API prediff_isa prediff_context_isa(const prediff_context *c);
PREDIFF_API int prediff_context_threads(const prediff_context *c);   /* threads that really run */

/* prediff_prompt: appends n tokens to the prompt, causally; their keys and values are cached exactly.

   ids      [n], each 0 .. V-1.
   logits   [n][V] out or NULL: what the causal model says after each appended token, at no extra pass.
   Errors: ARG (TOKEN_RANGE with the position, T_RANGE; CONFLICT: logits of a bidirectional context), NUMERIC. On error the
   prompt is as before.
   Cost: n rows of the network (none in a bidirectional context, which recomputes the prompt with every evaluation). */
PREDIFF_API prediff_status prediff_prompt(prediff_context *c, const int32_t *ids, size_t n, float *logits, prediff_error *err);
/* prediff_rewind: keeps the first n_keep prompt tokens. Cost: none now; one row where the last prompt row is needed next. */
PREDIFF_API prediff_status prediff_rewind(prediff_context *c, size_t n_keep, prediff_error *err);
PREDIFF_API size_t prediff_prompt_length(const prediff_context *c);

typedef struct prediff_forward_desc {
    uint32_t canary_begin;
    const int32_t *target;             /* [S][n] ids or PREDIFF_MASK; S = samples */
    size_t n;                          /* T */
    size_t samples;                    /* 0 = 1 */
    const uint8_t *rows;               /* [S][n] 1 = logits wanted; NULL: all */
    const float *rate;                 /* [S] mask rate fed to the model; NULL: masked / T */
    const float *selfcond;             /* [S][n][V] previous soft prediction; NULL: none (first step) */
    const float *noise;                /* [S][n][N] noise of masked rows, before the file's noise.scale; NULL: generated from seed */
    uint64_t seed;
    int no_rate, no_selfcond, no_noise;   /* 1: leave the addition out altogether (no rate is not rate 0) */
    float *logits;                     /* out [wanted rows][V], in order; the mask's own logit is not removed */
    uint32_t canary_end;
} prediff_forward_desc;

/* prediff_forward: one network evaluation over the target, nothing committed. For tests, teaching, own samplers, and reading
   the probabilities of options at a few masked slots. Errors: ARG. */
PREDIFF_API prediff_status prediff_forward(prediff_context *c, const prediff_forward_desc *d, prediff_error *err);

/* -- generation -- */

typedef struct prediff_step_info {
    size_t step, n_steps;              /* 1-based; n_steps is the bound of the present block */
    size_t sample_begin, sample_end;   /* the samples this step worked on */
    const int32_t *target;             /* [S][n] as it stands */
    const int32_t *revealed_at;        /* [S][n] step of each token, 0 = given or still masked; counts on over blocks */
    size_t n;                          /* T of the whole target */
    size_t n_revealed, n_masks_left;   /* this step; whole target, all samples */
    size_t n_evaluations, n_rows;      /* so far */
    double rate;                       /* masked fraction fed to this step (first sample) */
    double time;                       /* first-hitting: the process's time after this step, else 0 */
} prediff_step_info;

typedef struct prediff_generate_desc {
    uint32_t canary_begin;
    size_t n_steps;                    /* most evaluations a block; 0 = min(masks, 16); first-hitting: 0 = masks. Ancestral:
                                          one more where chance left masks after the last (about 1e-5 a mask) */
    size_t samples;                    /* 0 = 1; target is [S][n] */
    prediff_sampler sampler;
    prediff_order order;
    prediff_schedule schedule;
    double temperature;                /* 0 = greedy (so is anything below 1e-4); 1 = as the model says */
    double temperature_end;            /* > 0: temperature falls or rises linearly to this over the steps */
    size_t top_k;                      /* 0 = off */
    double top_p;                      /* 0 = off, else (0, 1] */
    uint64_t seed;                     /* sample j of seed s is the same as a run alone with seed s + j */
    double threshold;                  /* > 0: reveal all with confidence >= this, at least one; replaces the schedule */
    double entropy_bound;              /* > 0: reveal the largest set whose joint entropy excess is below this (nats) */
    int stop_sure;                     /* 1: reveal all once no argmax changes and mean entropy < 0.005; greedy only */
    size_t block;                      /* > 0: fill B positions at a time, commit each block causally, then go on */
    size_t window;                     /* > 0: reveal the leftmost B-wide window first, everything stays visible */
    int ignore_eos;                    /* 1: an end-of-text token does not end the text */
    double eos_penalty;                /* confidence of an end-of-text proposal is multiplied by 1 - this, 0..1 */
    size_t no_repeat;                  /* N > 0: no N-gram twice in prompt and target (tokens revealed together in the last
                                          step are not checked against each other) */
    prediff_noise noise;               /* lifetime of infinite-mask noise */
    int no_rate, no_selfcond, no_noise;
    int selfcond_masked_only;          /* 1: soft prediction only at masked rows: cheaper, not what models are trained with */
    /* sees the logits of one masked position before the choice; may change them (ban, steer). [V] */
    void (*logit_hook)(void *user, size_t sample, size_t position, float *logits, size_t n_vocab);
    int (*on_step)(void *user, const prediff_step_info *info);   /* non-zero: stop, result so far valid */
    void *user;
    float *logprob;                    /* [S][n] out or NULL: log-probability of each token when it was committed */
    int32_t *revealed_at;              /* [S][n] out or NULL: step at which it was, 0 = given, -1 = still masked */
    uint32_t canary_end;
} prediff_generate_desc;

typedef struct prediff_result {
    size_t n_steps;                    /* steps done, over all blocks */
    prediff_ended ended;
    size_t n_evaluations;              /* network passes over the target */
    size_t n_rows;                     /* rows computed, prompt rows of committed blocks included */
    size_t n_emitted;                  /* tokens filled in, up to and including the first end of text; never padding */
    size_t n_masks_left;
    double logprob;                    /* sum over committed tokens (nats) */
    double time;                       /* first-hitting: the process's last time */
} prediff_result;

/* prediff_generate: fills the masked positions of a target that follows the prompt.

   target   [S][n] in/out. PREDIFF_MASK entries are filled, all others are kept. All masked: generation; text on both
            sides: infilling; few masked: editing. After an end-of-text token nothing is computed: later positions are
            set to that token and do not count as emitted.
   n        T, 0 .. n_target; prompt + T <= n_ctx.
   d        NULL or zero = greedy confidence-aware unmasking, min(masks, 16) steps.
   r        out, may be NULL.
   The prompt is afterwards as it was before. Returns OK also when masks are left (r->n_masks_left; only after an early
   end). Errors: ARG, NUMERIC, CANCELLED. On every path target holds valid ids and PREDIFF_MASK only.
   Memory: none allocated. Cost: n_steps evaluations of S * T rows. */
PREDIFF_API prediff_status prediff_generate(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d,
                                            prediff_result *r, prediff_error *err);

/* The same for a host with its own loop: begin, step until *done, end. target stays the caller's and must live until end;
   between steps the caller may read it. prediff_end may come early. Blocks and causal decoding need samples = 1 here. */
PREDIFF_API prediff_status prediff_begin(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, prediff_error *err);
PREDIFF_API prediff_status prediff_step(prediff_context *c, int *done, prediff_error *err);
PREDIFF_API prediff_status prediff_end(prediff_context *c, prediff_result *r, prediff_error *err);

/* prediff_write: the shortest way: clears the prompt, encodes prompt (terminated UTF-8, special tokens as plain text),
   generates n_tokens and writes the continuation as terminated text. Uses causal decoding if the model has no mask.
   prediff_infill: the same for a text with [MASK:n] marks; writes the whole text. desc.samples must be 0 or 1. Errors: those of
   the parts; LIMIT if text is too small (it is cut at a whole character): n tokens take at most n * prediff_max_token_bytes
   + 5 bytes; CANCELLED if a callback stopped it: text holds what was revealed so far. */
PREDIFF_API prediff_status prediff_write(prediff_context *c, const char *prompt, size_t n_tokens, const prediff_generate_desc *d,
                                         char *text, size_t capacity, prediff_error *err);
PREDIFF_API prediff_status prediff_infill(prediff_context *c, const char *marked, const prediff_generate_desc *d,
                                          char *text, size_t capacity, prediff_error *err);

/* -- scoring -- */

typedef enum prediff_score_kind {
    PREDIFF_SCORE_CAUSAL = 0,          /* exact log-likelihood of the causal model */
    PREDIFF_SCORE_NELBO,               /* bound: exactly l of T masked, l stratified over 1..T, (T/l) sum CE (Nie et al. 2025) */
    PREDIFF_SCORE_NELBO_RATE,          /* bound: rate t ~ U(0,1) stratified, (1/t) sum CE (Sahoo et al. 2024) */
    PREDIFF_SCORE_N_STEP,              /* bound of the N-step reverse process: looser, falls to NELBO as N grows */
    PREDIFF_SCORE_ORDER                /* exact likelihood under the model's own reveal order in n_steps steps */
} prediff_score_kind;

typedef struct prediff_score_desc {
    uint32_t canary_begin;
    prediff_score_kind kind;
    size_t draws;                      /* random maskings of the bounds; 0 = 64 */
    size_t n_steps;                    /* of N_STEP and ORDER; 0 = min(T, 16) */
    uint64_t seed;
    prediff_order order;               /* of ORDER */
    prediff_schedule schedule;
    const uint8_t *given;              /* [n] 1 = visible, not scored; NULL: all scored */
    int no_rate, no_selfcond, no_noise;
    uint32_t canary_end;
} prediff_score_desc;

typedef struct prediff_score_result {
    double nats;                       /* -log p of the scored tokens, or its upper bound */
    double std_error;                  /* of nats over the draws; 0 for exact kinds */
    size_t n_scored;                   /* tokens scored; perplexity = exp(nats / n_scored) */
    size_t n_evaluations, n_rows;
} prediff_score_result;

/* prediff_score: how likely the model finds target after the prompt (bounds are upper bounds of the true value).
   target  [n] ids, no masks. With CAUSAL and an empty prompt the first token has no prediction and is not scored.
   The prompt is afterwards as it was. Errors: ARG, NUMERIC. Cost: draws or n_steps evaluations of n rows. */
PREDIFF_API prediff_status prediff_score(prediff_context *c, const int32_t *target, size_t n, const prediff_score_desc *d,
                                         prediff_score_result *r, prediff_error *err);

/* -- training (left out by PREDIFF_NO_TRAIN) -- */

typedef enum prediff_objective {       /* A / B: the loss is the sum of A over masked rows divided by the sum of B over the batch. CE: a
                                          row's cross-entropy, t: the rate */
    PREDIFF_OBJECTIVE_PREDIFF = 0,     /* CE / masked rows (PreDiff-LM) */
    PREDIFF_OBJECTIVE_CAUSAL,          /* next token at every row; no masks, no additions */
    PREDIFF_OBJECTIVE_MDLM,            /* CE / t / target rows (Sahoo et al. 2024) */
    PREDIFF_OBJECTIVE_EXACT_L,         /* exactly l of T masked, l uniform: (T / l) CE / target rows (Nie et al. 2025) */
    PREDIFF_OBJECTIVE_DIFFUGPT,        /* CE / t / masked rows (Gong et al. 2025); meant for shift = 1 */
    PREDIFF_OBJECTIVE_CART,            /* weights grow with the nearness of visible tokens / target rows (Ye et al. 2025) */
    PREDIFF_OBJECTIVE_SEDD             /* score entropy (Lou et al. 2024): for scores written p(x) / (e^sigma - 1) its gradient is MDLM's, and
                                          so it is computed */
} prediff_objective;

typedef enum prediff_rates {           /* law of t, u uniform */
    PREDIFF_RATES_UNIFORM = 0,         /* t = 0.001 + 0.999 u */
    PREDIFF_RATES_COSINE,              /* t = cos(u pi/2) within 0.01 .. 0.99: mostly high */
    PREDIFF_RATES_LOGIT_NORMAL,        /* t = sigmoid(1.5 z), z normal: mostly in the middle */
    PREDIFF_RATES_SQUARE               /* t = 1 - sqrt(u): mostly low */
} prediff_rates;

typedef struct prediff_sequence {      /* one text of a batch */
    const int32_t *ids; size_t n;      /* its tokens, 1 .. n_ctx */
    size_t n_prompt;                   /* the first are the prompt, the rest the target */
    /* NULL: drawn. Given ones are for tests and for teachers: */
    const int32_t *input;              /* [n] as ids, with PREDIFF_MASK where masked */
    const float *weight;               /* [n] of each masked row's CE; NULL: by the objective */
    const float *rate;                 /* mask rate fed to the model; NULL: masked / target */
    const float *soft;                 /* [n][V] previous soft prediction (rows of the target count) */
    const float *noise;                /* [n][N] of masked rows, before noise_scale */
} prediff_sequence;

typedef struct prediff_train_desc {
    uint32_t canary_begin;
    const prediff_model *init;         /* weights to start from, of any type (they become float); open until destroy */
    int add_mask, add_rate, add_selfcond;      /* 1: add what the model lacks. The mask vector is random (and replaces a mask id); the others
                                          end in zero layers and change nothing at first */
    size_t add_noise;                  /* N > 0: add infinite-mask noise of this size */
    int resume;                        /* 1: init is a checkpoint: go on with its optimiser state */
    prediff_attention attention;       /* 0: the model's, hybrid if that is causal */
    prediff_objective objective;
    prediff_rates rates;
    int shift;                         /* 1: row i predicts token i + 1 (also if the model says so) */
    double causal_weight;              /* of the next-token loss at prompt rows, 0 = off */
    double selfcond;                   /* probability of a first pass whose prediction is fed back; 0 = never */
    int complementary;                 /* 1: each text twice, every target masked in exactly one of the two */
    size_t n_blocks, block_min, block_max;     /* K > 0: clean causal rows and K target blocks of random place and length in one pass */
    size_t n_ctx;                      /* longest text; 0 = the model's */
    size_t max_rows;                   /* rows of one prediff_trainer_gradient call (blocks and copies included); 0 = n_ctx */
    int recompute;                     /* 1: keep one activation a layer and compute the others again: slower, less memory */
    double beta1, beta2, eps, weight_decay;    /* 0 = 0.9, 0.999, 1e-8; decay 0 = none, never on vectors */
    double clip;                       /* largest norm of the whole gradient; 0 = off */
    double ema;                        /* decay of the running mean of the weights, 0 = none */
    uint64_t seed;
    /* several processes: called once a step with the sums of gradients and the two counts behind them; add up the others' */
    int (*reduce)(void *user, float *sums, size_t n);      /* 0 = done */
    void *user;
    int n_threads; prediff_isa isa;
    void (*parallel_for)(void *user, size_t n, void (*job)(void *arg, size_t i), void *arg);
    void *parallel_user;
    uint32_t canary_end;
} prediff_train_desc;

typedef struct prediff_train_stats {   /* sums since the last update */
    double masked_nats;                /* weighted CE of masked rows */
    double causal_nats;                /* CE of causal rows */
    double masked_rows;                /* the divisor of masked_nats: masked or target rows, by the objective */
    double causal_rows;
    double loss;                       /* (masked_nats + causal_weight causal_nats) / (masked_rows + causal_weight causal_rows), of this
                                          process; causal rows count with objective CAUSAL whatever the weight is */
    double gradient_norm;              /* of the mean, before clipping (after an update) */
    size_t n_rows;                     /* rows computed */
    uint64_t n_steps;                  /* updates so far */
    uint64_t n_texts;                  /* texts learnt from so far */
    uint64_t position;                 /* what the last save or the resumed checkpoint said */
} prediff_train_stats;

typedef struct prediff_trainer prediff_trainer;

#ifndef PREDIFF_NO_TRAIN
/* prediff_trainer_size: bytes a trainer takes. prediff_trainer_create: one block, nothing allocated later.
   Errors: ARG, NOMEM, UNSUPPORTED. One thread at a time; results do not depend on n_threads. */
PREDIFF_API prediff_status prediff_trainer_size(const prediff_train_desc *d, size_t *size, prediff_error *err);
PREDIFF_API prediff_status prediff_trainer_create(prediff_trainer **out, const prediff_train_desc *d, prediff_error *err);
PREDIFF_API void prediff_trainer_destroy(prediff_trainer *t);
/* prediff_trainer_gradient: adds the gradient of these texts to the sums (call it several times for a larger batch). Masks, rates,
   noise and the coin of self-conditioning come from the seed and the number of texts seen. Errors: ARG, LIMIT (max_rows). */
PREDIFF_API prediff_status prediff_trainer_gradient(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_train_stats *stats, prediff_error *err);
/* prediff_trainer_update: reduce, divide by masked_rows + causal_weight causal_rows, clip, AdamW with this learning rate. A loss
   or gradient that is not finite is refused: NUMERIC, the weights stay, the sums are cleared. */
PREDIFF_API prediff_status prediff_trainer_update(prediff_trainer *t, double rate, prediff_train_stats *stats, prediff_error *err);
/* prediff_trainer_evaluate: the loss of an objective, forward only; the same draws for the same seed. */
PREDIFF_API prediff_status prediff_trainer_evaluate(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_objective objective, uint64_t seed,
                                                    prediff_train_stats *stats, prediff_error *err);
/* prediff_trainer_get_stats: the sums as they stand. */
PREDIFF_API void prediff_trainer_get_stats(const prediff_trainer *t, prediff_train_stats *stats);
/* prediff_trainer_anneal: with bidirectional attention, the share of later positions a row sees (0: causal, 1: all, the default). */
PREDIFF_API void prediff_trainer_anneal(prediff_trainer *t, double share);
/* prediff_trainer_model: the model as it stands, for contexts (generate, score) between updates. Lives as long as the trainer. */
PREDIFF_API const prediff_model *prediff_trainer_model(const prediff_trainer *t);
/* prediff_trainer_tensors: names, shapes and floats of the weights (what 0), the gradient sums (1) or the running mean (2). */
PREDIFF_API void prediff_trainer_tensors(const prediff_trainer *t, int what, prediff_container *out);
/* prediff_trainer_save: writes a GGUF file as prediff_save does. what: as above, 0 or 2; type of the matrices (vectors stay F32);
   state 1: a checkpoint: F32 with optimiser state, running mean, counters and `position`, the caller's place in its data. */
PREDIFF_API prediff_status prediff_trainer_save(prediff_trainer *t, int what, prediff_type type, int state, uint64_t position,
                                                int (*write)(void *user, const void *bytes, size_t n), void *user, prediff_error *err);
#endif

/* prediff_unmask_count: how many of masks_left to reveal at step s (1..n) of a schedule that began with masks_begin; at least
   1 while masks are left, all of them at s = n. For own samplers. */
PREDIFF_API size_t prediff_unmask_count(prediff_schedule schedule, size_t masks_begin, size_t masks_left, size_t s, size_t n);

/* prediff_random: the four words of a counter-based generator (Philox4x32-10, Salmon et al. 2011) at `counter` under the key
   `seed`: a pure function of its arguments, so part of the file contract. prediff_uniform: with counter = {stream, sample,
   position, index}, words 0 and 1 as a double in [0, 1), 53 bits. */
PREDIFF_API void prediff_random(uint64_t seed, const uint32_t counter[4], uint32_t out[4]);
PREDIFF_API double prediff_uniform(uint64_t seed, uint32_t stream, uint32_t sample, uint32_t position, uint32_t index);

#ifdef __cplusplus
}
#endif
#endif /* PREDIFF_H */

#ifdef PREDIFF_IMPLEMENTATION
#if !defined(PDI_NESTED) && !defined(PREDIFF_IMPLEMENTED)
#define PREDIFF_IMPLEMENTED

/* ---- >>PLAT: compiler and platform --------------------------------------------------------------------------------- */

#include <math.h>
#include <string.h>
#include <stdarg.h>
#ifndef PREDIFF_NO_MALLOC
#include <stdlib.h>
#endif
#ifndef PREDIFF_NO_STDIO
#include <stdio.h>
#if !defined(PREDIFF_NO_MMAP) && (defined(__unix__) || defined(__APPLE__))
#define PDI_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define PDI_MMAP 0
#endif
#endif
#ifndef PREDIFF_FILENAME
#define PREDIFF_FILENAME "prediff.h"
#if defined(__has_include)
#if !__has_include("prediff.h")
#error "this header was renamed: define PREDIFF_FILENAME as its name in quotes"
#endif
#endif
#endif
#ifndef PREDIFF_ASSERT
#define PREDIFF_ASSERT(x) ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifdef PREDIFF_STATIC                  /* definitions repeat the linkage of their declarations */
#define PDI_DEF PREDIFF_API
#else
#define PDI_DEF
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PDI_FN static __attribute__((unused))
#define PDI_INLINE static inline __attribute__((always_inline, unused))
#else
#define PDI_FN static
#define PDI_INLINE static inline
#endif

#if defined(__clang__)
#define PDI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__) && __GNUC__ >= 8
#define PDI_UNROLL _Pragma("GCC unroll 16")
#else
#define PDI_UNROLL
#endif

#if defined(__GNUC__)                  /* the address may lie beyond the array, hence no pointer arithmetic */
#define PDI_PREFETCH(p, floats) __builtin_prefetch((const void *)((uintptr_t)(p) + (floats) * sizeof(float)))
#else
#define PDI_PREFETCH(p, floats) ((void)0)
#endif

#if !defined(PREDIFF_NO_SIMD) && (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && \
    !(defined(__MINGW32__) && !defined(__clang__))   /* MinGW GCC misaligns 32-byte stack slots (GCC bug 54412) */
#define PDI_X86 1
#if defined(__GNUC__) && !defined(__clang__)        /* GCC warns about its own header, where C++ optimises it into ours */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#include <cpuid.h>
#else
#define PDI_X86 0
#endif
#if !defined(PREDIFF_NO_SIMD) && defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)
#define PDI_NEON 1
#include <arm_neon.h>
#else
#define PDI_NEON 0
#endif
#if defined(_OPENMP) && !defined(PREDIFF_NO_OPENMP)
#define PDI_OPENMP 1
#include <omp.h>
#else
#define PDI_OPENMP 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define PDI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PDI_ASAN 1
#endif
#endif
#ifndef PDI_ASAN
#define PDI_ASAN 0
#endif
#if PDI_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* Whether floats in memory have the file's byte order, so that F32 rows can be read in place. */
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define PDI_LITTLE 0
#else
#define PDI_LITTLE 1
#endif

/* ---- >>BASE: sizes, cursor, arena, errors --------------------------------------------------------------------------

   Three rules keep strange files harmless. All file bytes go through a cursor that knows what remains. Every product of
   sizes is checked before it is compared. A count from a file is believed only if that many records could still follow. */

PDI_FN int pdi_mul(size_t a, size_t b, size_t *out) {           /* 1 = a * b fits */
    if (a != 0 && b > SIZE_MAX / a) return 0;
    *out = a * b;
    return 1;
}

PDI_FN int pdi_add(size_t a, size_t b, size_t *out) {
    if (b > SIZE_MAX - a) return 0;
    *out = a + b;
    return 1;
}

PDI_INLINE size_t pdi_min(size_t a, size_t b) { return a < b ? a : b; }
PDI_INLINE size_t pdi_max(size_t a, size_t b) { return a > b ? a : b; }
PDI_FN size_t pdi_ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }
PDI_FN size_t pdi_round_up(size_t a, size_t b) { return pdi_ceil_div(a, b) * b; }   /* callers bound a */

PDI_INLINE uint32_t pdi_u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
PDI_INLINE uint32_t pdi_u32(const uint8_t *p) { return pdi_u16(p) | pdi_u16(p + 2) << 16; }
PDI_FN uint64_t pdi_u64(const uint8_t *p) { return (uint64_t)pdi_u32(p) | (uint64_t)pdi_u32(p + 4) << 32; }

PDI_FN void pdi_put_u32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); p[2] = (uint8_t)(v >> 16); p[3] = (uint8_t)(v >> 24);
}

PDI_FN void pdi_put_u64(uint8_t *p, uint64_t v) { pdi_put_u32(p, (uint32_t)v); pdi_put_u32(p + 4, (uint32_t)(v >> 32)); }

PDI_INLINE float pdi_bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
PDI_INLINE uint32_t pdi_float_bits(const float *f) { uint32_t u; memcpy(&u, f, 4); return u; }
PDI_INLINE float pdi_f32(const uint8_t *p) { return pdi_bits_float(pdi_u32(p)); }

/* Finite? By the bits in memory: compilers under -ffast-math remove tests on values. */
PDI_FN int pdi_is_finite(const float *f) { return (pdi_float_bits(f) & 0x7F800000u) != 0x7F800000u; }
PDI_FN int pdi_is_finite_double(const double *d) {
    uint64_t u;
    memcpy(&u, d, 8);
    return (u & 0x7FF0000000000000u) != 0x7FF0000000000000u;
}

/* FNV-1a, for hash tables over names; tables are at most half full. A name in two pieces goes through pdi_hash_more twice. */
PDI_FN uint32_t pdi_hash_more(uint32_t h, const void *bytes, size_t n) {
    const uint8_t *p = (const uint8_t *)bytes;
    size_t i;
    for (i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h;
}

PDI_FN uint32_t pdi_hash_end(uint32_t h) { return h ^ h >> 15; }
PDI_FN uint32_t pdi_hash_begin(void) { return 2166136261u; }
PDI_FN uint32_t pdi_hash(const void *bytes, size_t n) { return pdi_hash_end(pdi_hash_more(pdi_hash_begin(), bytes, n)); }

/* Names that fall together are searched one by one. Honest tables stay far below this many; a file made to exceed it, to keep
   the reader busy, is refused. */
enum { PDI_MOST_PROBES = 1024 };

PDI_FN size_t pdi_table_size(size_t n) {                        /* power of two, at least 2n; 0 if that overflows */
    size_t s = 4;
    while (s / 2 < n) {
        if (s > SIZE_MAX / 2) return 0;
        s *= 2;
    }
    return s;
}

PDI_FN int pdi_str_is(prediff_string s, const char *z) { return s.n == strlen(z) && memcmp(s.bytes, z, s.n) == 0; }

/* -- errors -- */

/* Appends to a message: %s a C string, %S a prediff_string pointer cut at 48 bytes, %i an int64_t, %u a uint64_t. Only
   printable ASCII gets in, so a file's strings cannot play with a terminal. */
PDI_FN void pdi_format(char *out, size_t capacity, const char *fmt, va_list ap) {
    size_t n = 0;
    for (; *fmt; fmt++) {
        char digits[24];
        const char *s = digits;
        size_t len = 0, k;
        if (*fmt != '%') { s = fmt; len = 1; }
        else if (*++fmt == 's') { s = va_arg(ap, const char *); len = strlen(s); }
        else if (*fmt == 'S') {
            const prediff_string *f = va_arg(ap, const prediff_string *);
            s = f->bytes;
            len = pdi_min(f->n, 48);
        } else {
            int64_t i = *fmt == 'i' ? va_arg(ap, int64_t) : 0;
            uint64_t u = *fmt == 'i' ? (i < 0 ? 0 - (uint64_t)i : (uint64_t)i) : va_arg(ap, uint64_t);
            k = sizeof digits;
            do { digits[--k] = (char)('0' + u % 10); u /= 10; } while (u);
            if (i < 0) digits[--k] = '-';
            s = digits + k;
            len = sizeof digits - k;
        }
        for (k = 0; k < len && n + 1 < capacity; k++) out[n++] = s[k] >= 32 && s[k] < 127 ? s[k] : '?';
    }
    out[n] = 0;
}

PDI_FN prediff_status pdi_fail_at(prediff_error *err, prediff_status status, prediff_item item, uint64_t offset, const char *fmt, ...) {
    if (err) {
        va_list ap;
        err->status = status;
        err->item = item;
        err->offset = offset;
        va_start(ap, fmt);
        pdi_format(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
    }
    return status;
}

/* The common case: no offset. ITEM is the item's bare name. */
#define PDI_FAIL(err, STATUS, ITEM, ...) pdi_fail_at(err, PREDIFF_ERR_##STATUS, PREDIFF_ITEM_##ITEM, 0, __VA_ARGS__)
#define PDI_FAIL_AT(err, STATUS, ITEM, at, ...) pdi_fail_at(err, PREDIFF_ERR_##STATUS, PREDIFF_ITEM_##ITEM, at, __VA_ARGS__)
#define PDI_TRY(call) do { prediff_status pdi_s_ = (call); if (pdi_s_) return pdi_s_; } while (0)

PDI_DEF int prediff_version(void) { return PREDIFF_VERSION; }

PDI_DEF const char *prediff_status_name(prediff_status status) {
    static const char *const names[] = { "OK", "ARG", "NOMEM", "IO", "FORMAT", "UNSUPPORTED", "LIMIT", "NUMERIC", "CANCELLED", "INTERNAL" };
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "?";
}

PDI_DEF const char *prediff_item_name(prediff_item item) {
    static const char *const names[] = { "NONE",
#define X(name, text) #name,
        PREDIFF_ITEMS(X)
#undef X
    };
    return (unsigned)item < PREDIFF_ITEM_COUNT ? names[item] : "?";
}

PDI_DEF const char *prediff_item_text(prediff_item item) {
    static const char *const texts[] = { "no error",
#define X(name, text) text,
        PREDIFF_ITEMS(X)
#undef X
    };
    return (unsigned)item < PREDIFF_ITEM_COUNT ? texts[item] : "?";
}

/* -- memory -- */

#if PDI_ASAN
#define PDI_GAP 64
#define PDI_POISON(p, n) __asan_poison_memory_region(p, n)
#define PDI_UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define PDI_GAP 0
#define PDI_POISON(p, n) ((void)0)
#define PDI_UNPOISON(p, n) ((void)0)
#endif

PDI_FN void *pdi_alloc(const prediff_allocator *a, size_t size) {
    if (a->alloc) return a->alloc(a->user, size);
#ifdef PREDIFF_NO_MALLOC
    return NULL;
#else
    return malloc(size);
#endif
}

PDI_FN void pdi_free(const prediff_allocator *a, void *p, size_t size) {
    if (!p) return;
    PDI_UNPOISON(p, size);
    if (a->alloc) { if (a->free) a->free(a->user, p, size); return; }
#ifndef PREDIFF_NO_MALLOC
    free(p);
#endif
}

/* An arena hands out pieces of one block. A function that lays out an object runs twice: with base NULL it only counts,
   then, on a block of `used` bytes, it gets the same pieces for real. `ok` is sticky. Under the address sanitizer a poisoned
   gap follows each piece, so that running over the end of one is seen. */
#define PDI_ALIGN 64
typedef struct pdi_arena { uint8_t *base; size_t used; int ok; } pdi_arena;

PDI_FN void *pdi_take(pdi_arena *a, size_t count, size_t size) {
    size_t bytes, wanted, at = a->used;
    if (!a->ok || !pdi_mul(count, size, &wanted) || !pdi_add(wanted, PDI_ALIGN - 1 + PDI_GAP, &bytes)) { a->ok = 0; return NULL; }
    bytes -= bytes % PDI_ALIGN;
    if (!pdi_add(at, bytes, &a->used)) { a->ok = 0; return NULL; }
    if (!a->base) return NULL;
    PDI_POISON(a->base + at + wanted, bytes - wanted);
    return a->base + at;
}

/* Blocks come with any alignment: each is allocated PDI_ALIGN - 1 bytes larger and its first aligned address used. */
PDI_FN uint8_t *pdi_align_pointer(void *p) {
    return (uint8_t *)p + (PDI_ALIGN - (uintptr_t)p % PDI_ALIGN) % PDI_ALIGN;
}

PDI_FN prediff_status pdi_check_desc(const void *d, uint32_t begin, uint32_t end, prediff_error *err) {
    if (!d) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the desc is NULL");
    if (begin || end) return PDI_FAIL(err, ARG, DESC_CANARY, "the desc was not zeroed: write `= {0}` or memset it first");
    return PREDIFF_OK;
}

/* ---- >>NUM: half floats, random numbers ---------------------------------------------------------------------------- */

/* IEEE half (1 sign, 5 exponent, 10 fraction bits) to float, exactly, by integers: the same on every machine. Inlined into
   the kernels like the loads above: calling SSE code from AVX code costs more than the conversion. */
PDI_INLINE float pdi_half_to_float(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FFu;
    if (exponent == 31) return pdi_bits_float(sign | 0x7F800000u | fraction << 13);
    if (exponent == 0) {                                        /* zero or subnormal: fraction * 2^-24 */
        float f = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    return pdi_bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To half, rounded to nearest even; too large becomes infinity. */
PDI_FN uint32_t pdi_float_to_half(const float *f) {
    uint32_t u = pdi_float_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
    uint32_t shift, mantissa, half, rest;
    if (a > 0x7F800000u) return sign | 0x7E00u;                 /* not a number */
    if (a >= 0x477FF000u) return sign | 0x7C00u;                /* 65,520 and more round to infinity */
    if (a < 0x33000001u) return sign;                           /* 2^-25 and less round to zero */
    if (a >= 0x38800000u) { half = (a - 0x38000000u) >> 13; rest = a & 0x1FFFu; mantissa = 0x1000u; }
    else {                                                      /* subnormal half */
        shift = 126 - (a >> 23);
        half = ((a & 0x7FFFFFu) | 0x800000u) >> shift;
        rest = ((a & 0x7FFFFFu) | 0x800000u) & ((1u << shift) - 1);
        mantissa = 1u << (shift - 1);
    }
    if (rest > mantissa || (rest == mantissa && (half & 1))) half++;
    return sign | half;
}

/* bfloat16 is the upper half of a float; to it by rounding to nearest even. */
PDI_FN uint32_t pdi_float_to_bfloat(const float *f) {
    uint32_t u = pdi_float_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return u >> 16 | 64;   /* keep it a quiet not-a-number */
    return (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
}

/* Philox4x32-10 (Salmon et al. 2011): ten rounds of two 32-bit multiplications each. */
PDI_DEF void prediff_random(uint64_t seed, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    int round;
    for (round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
    }
    out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

/* Streams keep uses apart: the same seed and position never feed two decisions. */
enum { PDI_STREAM_TOKEN = 1, PDI_STREAM_ORDER, PDI_STREAM_REVEAL, PDI_STREAM_TIME, PDI_STREAM_NOISE, PDI_STREAM_REDRAW,
       PDI_STREAM_SCORE, PDI_STREAM_MASK, PDI_STREAM_COIN, PDI_STREAM_ANNEAL, PDI_STREAM_INIT };

PDI_DEF double prediff_uniform(uint64_t seed, uint32_t stream, uint32_t sample, uint32_t position, uint32_t index) {
    uint32_t counter[4], r[4];
    counter[0] = stream; counter[1] = sample; counter[2] = position; counter[3] = index;
    prediff_random(seed, counter, r);
    return (double)((uint64_t)(r[0] >> 5) << 26 | r[1] >> 6) * (1.0 / 9007199254740992.0);   /* 27 + 26 bits / 2^53 */
}

/* ---- >>QUANT: block formats ----------------------------------------------------------------------------------------

   A quantised row is a sequence of blocks; each block turns into floats alone. d, m are halves; q unsigned nibbles.

     Q8_0  32 values,  34 bytes  | d | 32 int8 |                          x = d q
     Q4_0  32 values,  18 bytes  | d | 16 bytes |                         x = d (q - 8)    low nibbles first 16, high the rest
     Q4_1  32 values,  20 bytes  | d | m | 16 bytes |                     x = d q + m
     Q4_K 256 values, 144 bytes  | d | m | 12 bytes: 8 x (6-bit s, 6-bit z) | 128 bytes |    x = (d s) q - (m z)  by 32
     Q6_K 256 values, 210 bytes  | 128 low nibbles | 64 high bit pairs | 16 int8 s | d |     x = (d s) (q - 32)   by 16

   The products d q are exact in float, so every way of computing x gives the same bits; a file in a block type runs
   bit for bit as the F32 file made from it. The loops are in KERNELS (dequantize); turning floats into blocks in SAVE. */

#define PDI_NATIVE 255u                /* floats of this machine, in any byte order: weights in training; in no file */

typedef struct pdi_type_info { uint32_t type, block, bytes; const char *name; } pdi_type_info;

PDI_FN const pdi_type_info *pdi_type_of(uint32_t type) {        /* NULL: not a type we read */
    static const pdi_type_info types[] = {
        { PREDIFF_F32, 1, 4, "F32" }, { PREDIFF_F16, 1, 2, "F16" }, { PREDIFF_BF16, 1, 2, "BF16" }, { PREDIFF_Q8_0, 32, 34, "Q8_0" },
        { PREDIFF_Q4_0, 32, 18, "Q4_0" }, { PREDIFF_Q4_1, 32, 20, "Q4_1" }, { PREDIFF_Q4_K, 256, 144, "Q4_K" }, { PREDIFF_Q6_K, 256, 210, "Q6_K" },
        { PDI_NATIVE, 1, 4, "float" } };
    size_t i;
    for (i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) return &types[i];
    return NULL;
}

PDI_DEF const char *prediff_type_name(uint32_t type) {          /* also names of types we do not read, for messages */
    static const char *const names[] = { "F32", "F16", "Q4_0", "Q4_1", "?", "?", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
        "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64",
        "F64", "IQ1_M", "BF16", "?", "?", "?", "TQ1_0", "TQ2_0", "?", "?", "?", "MXFP4" };
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

/* The 6-bit scale and offset of sub-block j of a Q4_K block: 4 + 4 of them have their upper bits in other bytes. */
PDI_INLINE void pdi_q4k_scale(const uint8_t *s, size_t j, uint32_t *scale, uint32_t *offset) {
    if (j < 4) { *scale = s[j] & 63u; *offset = s[j + 4] & 63u; }
    else {
        *scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *offset = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

/* ---- >>OPS: vector operations per processor ------------------------------------------------------------------------

   A kernel set is a vector type and the operations below, each with its meaning for one lane. Intrinsics appear nowhere
   else. All arithmetic on activations but noise, rate and sampling goes through these, so a compiler's choice to contract or reorder plain C cannot
   change results, and AVX2, AVX-512 and NEON agree to the last bit.

     zero set1 load store add sub mul div sqrt   as named
     fma(a,b,c)        a*b + c, rounded once (scalar: as the compiler does a*b + c)
     max(a,b)          a > b ? a : b          min(a,b)   a < b ? a : b         (an unordered pair gives b)
     loadn(p,n,f)      p[0..n-1], other lanes f                storen(p,v,n)   first n lanes
     zero_below(r,x,l) x < l ? 0 : r
     scale2(p,t)       p * 2^n, where t = 1.5 * 2^23 + n
     load_i8 load_f16 load_bf16               converted, exactly; load_low4 load_high4: unsigned nibbles of LANES bytes; half(p): one half
     swap(v)           lanes 1 0 3 2 ...
     transpose(r)      a square of LANES vectors in place */

/* Common pieces of sets without masked memory access. */
#define PDI_PARTIAL_OPS(SET, V, LANES, ATTR) \
ATTR V pdi_loadn_##SET(const float *p, size_t n, float fill) { \
    float b[LANES]; size_t i; \
    for (i = 0; i < LANES; i++) b[i] = i < n ? p[i] : fill; \
    return pdi_load_##SET(b); } \
ATTR void pdi_storen_##SET(float *p, V v, size_t n) { \
    float b[LANES]; size_t i; \
    pdi_store_##SET(b, v); \
    for (i = 0; i < LANES; i++) if (i < n) p[i] = b[i]; }

/* -- scalar: four lanes of plain C -- */
typedef struct pdi_v_scalar { float x[4]; } pdi_v_scalar;
#define PDI_LANEWISE(name, expression) \
PDI_INLINE pdi_v_scalar pdi_##name##_scalar(pdi_v_scalar a, pdi_v_scalar b) { \
    int i; for (i = 0; i < 4; i++) a.x[i] = expression; return a; }
PDI_LANEWISE(add, a.x[i] + b.x[i])
PDI_LANEWISE(sub, a.x[i] - b.x[i])
PDI_LANEWISE(mul, a.x[i] * b.x[i])
PDI_LANEWISE(div, a.x[i] / b.x[i])
PDI_LANEWISE(max, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
PDI_LANEWISE(min, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
#undef PDI_LANEWISE
PDI_INLINE pdi_v_scalar pdi_set1_scalar(float s) { pdi_v_scalar v; v.x[0] = v.x[1] = v.x[2] = v.x[3] = s; return v; }
PDI_INLINE pdi_v_scalar pdi_zero_scalar(void) { return pdi_set1_scalar(0); }
PDI_INLINE pdi_v_scalar pdi_load_scalar(const float *p) { pdi_v_scalar v; memcpy(&v, p, sizeof v); return v; }
PDI_INLINE void pdi_store_scalar(float *p, pdi_v_scalar v) { memcpy(p, &v, sizeof v); }
PDI_INLINE pdi_v_scalar pdi_fma_scalar(pdi_v_scalar a, pdi_v_scalar b, pdi_v_scalar c) {
    int i;
    for (i = 0; i < 4; i++) c.x[i] += a.x[i] * b.x[i];
    return c;
}
PDI_INLINE pdi_v_scalar pdi_sqrt_scalar(pdi_v_scalar a) {
    int i;
    for (i = 0; i < 4; i++) a.x[i] = sqrtf(a.x[i]);
    return a;
}
PDI_INLINE pdi_v_scalar pdi_zero_below_scalar(pdi_v_scalar r, pdi_v_scalar x, float limit) {
    int i;
    for (i = 0; i < 4; i++) r.x[i] = x.x[i] < limit ? 0 : r.x[i];
    return r;
}
PDI_INLINE pdi_v_scalar pdi_scale2_scalar(pdi_v_scalar p, pdi_v_scalar t) {
    int i;
    for (i = 0; i < 4; i++) p.x[i] = pdi_bits_float(pdi_float_bits(&p.x[i]) + (pdi_float_bits(&t.x[i]) << 23));
    return p;
}
PDI_INLINE pdi_v_scalar pdi_load_i8_scalar(const int8_t *p) {
    pdi_v_scalar v; int i;
    for (i = 0; i < 4; i++) v.x[i] = (float)p[i];
    return v;
}
PDI_INLINE float pdi_half_scalar(const uint8_t *p) { return pdi_half_to_float(pdi_u16(p)); }
PDI_INLINE pdi_v_scalar pdi_load_low4_scalar(const uint8_t *p) {
    pdi_v_scalar v; int i;
    for (i = 0; i < 4; i++) v.x[i] = (float)(p[i] & 15);
    return v;
}
PDI_INLINE pdi_v_scalar pdi_load_high4_scalar(const uint8_t *p) {
    pdi_v_scalar v; int i;
    for (i = 0; i < 4; i++) v.x[i] = (float)(p[i] >> 4);
    return v;
}
PDI_INLINE pdi_v_scalar pdi_load_f16_scalar(const uint8_t *p) {
    pdi_v_scalar v; int i;
    for (i = 0; i < 4; i++) v.x[i] = pdi_half_to_float(pdi_u16(p + 2 * i));
    return v;
}
PDI_INLINE pdi_v_scalar pdi_load_bf16_scalar(const uint8_t *p) {
    pdi_v_scalar v; int i;
    for (i = 0; i < 4; i++) v.x[i] = pdi_bits_float(pdi_u16(p + 2 * i) << 16);
    return v;
}
PDI_INLINE pdi_v_scalar pdi_swap_scalar(pdi_v_scalar v) {
    float t = v.x[0]; v.x[0] = v.x[1]; v.x[1] = t;
    t = v.x[2]; v.x[2] = v.x[3]; v.x[3] = t;
    return v;
}
PDI_INLINE void pdi_transpose_scalar(pdi_v_scalar *r) {
    int i, j;
    for (i = 0; i < 4; i++) for (j = 0; j < i; j++) { float t = r[i].x[j]; r[i].x[j] = r[j].x[i]; r[j].x[i] = t; }
}
PDI_PARTIAL_OPS(scalar, pdi_v_scalar, 4, PDI_INLINE)

#if PDI_X86
/* -- AVX2 with FMA: eight lanes -- */
#define PDI_T_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PDI_OP static inline __attribute__((always_inline, unused)) PDI_T_AVX2
typedef __m256 pdi_v_avx2;
PDI_OP __m256 pdi_zero_avx2(void) { return _mm256_setzero_ps(); }
PDI_OP __m256 pdi_set1_avx2(float s) { return _mm256_set1_ps(s); }
PDI_OP __m256 pdi_load_avx2(const float *p) { return _mm256_loadu_ps(p); }
PDI_OP void pdi_store_avx2(float *p, __m256 v) { _mm256_storeu_ps(p, v); }
PDI_OP __m256 pdi_add_avx2(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
PDI_OP __m256 pdi_sub_avx2(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
PDI_OP __m256 pdi_mul_avx2(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
PDI_OP __m256 pdi_div_avx2(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
PDI_OP __m256 pdi_sqrt_avx2(__m256 a) { return _mm256_sqrt_ps(a); }
PDI_OP __m256 pdi_max_avx2(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
PDI_OP __m256 pdi_min_avx2(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
PDI_OP __m256 pdi_fma_avx2(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
PDI_OP __m256 pdi_zero_below_avx2(__m256 r, __m256 x, float limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), r);
}
PDI_OP __m256 pdi_scale2_avx2(__m256 p, __m256 t) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
PDI_OP __m256 pdi_load_i8_avx2(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
PDI_OP float pdi_half_avx2(const uint8_t *p) { return _cvtsh_ss((unsigned short)pdi_u16(p)); }
PDI_OP __m256 pdi_load_low4_avx2(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(_mm_loadl_epi64((const __m128i *)(const void *)p), _mm_set1_epi8(15))));
}
PDI_OP __m256 pdi_load_high4_avx2(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p), 4), _mm_set1_epi8(15))));
}
PDI_OP __m256 pdi_load_f16_avx2(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
PDI_OP __m256 pdi_load_bf16_avx2(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}
PDI_OP __m256 pdi_swap_avx2(__m256 v) { return _mm256_permute_ps(v, 0xB1); }
/* Pairs, then quadruples, then halves change places. */
PDI_OP void pdi_transpose_avx2(__m256 *r) {
    __m256 t[8];
    int i;
    PDI_UNROLL for (i = 0; i < 8; i += 2) { t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]); t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]); }
    PDI_UNROLL for (i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);         r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44); r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    PDI_UNROLL for (i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    PDI_UNROLL for (i = 0; i < 8; i++) r[i] = t[i];
}
PDI_PARTIAL_OPS(avx2, __m256, 8, PDI_OP)
#undef PDI_OP

/* -- AVX-512: sixteen lanes -- */
#define PDI_T_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define PDI_OP static inline __attribute__((always_inline, unused)) PDI_T_AVX512
typedef __m512 pdi_v_avx512;
#define PDI_ALL ((__mmask16)0xFFFF)     /* a full mask where GCC's own header warns about the unmasked form */
PDI_OP __m512 pdi_zero_avx512(void) { return _mm512_setzero_ps(); }
PDI_OP __m512 pdi_set1_avx512(float s) { return _mm512_set1_ps(s); }
PDI_OP __m512 pdi_load_avx512(const float *p) { return _mm512_loadu_ps(p); }
PDI_OP void pdi_store_avx512(float *p, __m512 v) { _mm512_storeu_ps(p, v); }
PDI_OP __m512 pdi_add_avx512(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
PDI_OP __m512 pdi_sub_avx512(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
PDI_OP __m512 pdi_mul_avx512(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
PDI_OP __m512 pdi_div_avx512(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
PDI_OP __m512 pdi_sqrt_avx512(__m512 a) { return _mm512_maskz_sqrt_ps(PDI_ALL, a); }
PDI_OP __m512 pdi_max_avx512(__m512 a, __m512 b) { return _mm512_maskz_max_ps(PDI_ALL, a, b); }
PDI_OP __m512 pdi_min_avx512(__m512 a, __m512 b) { return _mm512_maskz_min_ps(PDI_ALL, a, b); }
PDI_OP __m512 pdi_fma_avx512(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
PDI_OP __mmask16 pdi_lanes_avx512(size_t n) { return (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u); }
PDI_OP __m512 pdi_loadn_avx512(const float *p, size_t n, float fill) { return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), pdi_lanes_avx512(n), p); }
PDI_OP void pdi_storen_avx512(float *p, __m512 v, size_t n) { _mm512_mask_storeu_ps(p, pdi_lanes_avx512(n), v); }
PDI_OP __m512 pdi_zero_below_avx512(__m512 r, __m512 x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), r);
}
PDI_OP __m512 pdi_scale2_avx512(__m512 p, __m512 t) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_maskz_slli_epi32(PDI_ALL, _mm512_castps_si512(t), 23)));
}
PDI_OP __m512 pdi_load_i8_avx512(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p))); }
PDI_OP float pdi_half_avx512(const uint8_t *p) { return _cvtsh_ss((unsigned short)pdi_u16(p)); }
PDI_OP __m512 pdi_load_low4_avx512(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)p), _mm_set1_epi8(15))));
}
PDI_OP __m512 pdi_load_high4_avx512(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)(const void *)p), 4), _mm_set1_epi8(15))));
}
PDI_OP __m512 pdi_load_f16_avx512(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
PDI_OP __m512 pdi_load_bf16_avx512(const uint8_t *p) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(PDI_ALL, _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}
PDI_OP __m512 pdi_swap_avx512(__m512 v) { return _mm512_permute_ps(v, 0xB1); }
PDI_OP void pdi_transpose_avx512(__m512 *r) {
    __m512 t[16];
    int i;
    PDI_UNROLL for (i = 0; i < 16; i += 2) { t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]); t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]); }
    PDI_UNROLL for (i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);         r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44); r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    PDI_UNROLL for (i = 0; i < 4; i++) {                        /* quarters of rows i, i+4 and of i+8, i+12 */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88); t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
    }
    PDI_UNROLL for (i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88); r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xDD);
    }
}
#undef PDI_ALL
#undef PDI_OP
#endif /* PDI_X86 */

#if PDI_NEON
/* -- NEON: four lanes, part of every aarch64 -- */
typedef float32x4_t pdi_v_neon;
PDI_INLINE float32x4_t pdi_zero_neon(void) { return vdupq_n_f32(0); }
PDI_INLINE float32x4_t pdi_set1_neon(float s) { return vdupq_n_f32(s); }
PDI_INLINE float32x4_t pdi_load_neon(const float *p) { return vld1q_f32(p); }
PDI_INLINE void pdi_store_neon(float *p, float32x4_t v) { vst1q_f32(p, v); }
PDI_INLINE float32x4_t pdi_add_neon(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
PDI_INLINE float32x4_t pdi_sub_neon(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
PDI_INLINE float32x4_t pdi_mul_neon(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
PDI_INLINE float32x4_t pdi_div_neon(float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); }
PDI_INLINE float32x4_t pdi_sqrt_neon(float32x4_t a) { return vsqrtq_f32(a); }
PDI_INLINE float32x4_t pdi_max_neon(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
PDI_INLINE float32x4_t pdi_min_neon(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
PDI_INLINE float32x4_t pdi_fma_neon(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
PDI_INLINE float32x4_t pdi_zero_below_neon(float32x4_t r, float32x4_t x, float limit) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(r), vcltq_f32(x, vdupq_n_f32(limit))));
}
PDI_INLINE float32x4_t pdi_scale2_neon(float32x4_t p, float32x4_t t) {
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), vshlq_n_u32(vreinterpretq_u32_f32(t), 23)));
}
PDI_INLINE float32x4_t pdi_load_i8_neon(const int8_t *p) {
    int8_t b[8] = { 0 };
    memcpy(b, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(b)))));
}
PDI_INLINE float32x4_t pdi_from_bytes_neon(uint32_t bytes) { return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))))); }
PDI_INLINE float pdi_half_neon(const uint8_t *p) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16((uint16_t)pdi_u16(p)))), 0); }
PDI_INLINE float32x4_t pdi_load_low4_neon(const uint8_t *p) { return pdi_from_bytes_neon(pdi_u32(p) & 0x0F0F0F0Fu); }
PDI_INLINE float32x4_t pdi_load_high4_neon(const uint8_t *p) { return pdi_from_bytes_neon(pdi_u32(p) >> 4 & 0x0F0F0F0Fu); }
PDI_INLINE float32x4_t pdi_load_f16_neon(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
PDI_INLINE float32x4_t pdi_load_bf16_neon(const uint8_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16)); }
PDI_INLINE float32x4_t pdi_swap_neon(float32x4_t v) { return vrev64q_f32(v); }
PDI_INLINE void pdi_transpose_neon(float32x4_t *r) {
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
PDI_PARTIAL_OPS(neon, float32x4_t, 4, PDI_INLINE)
#endif /* PDI_NEON */

/* What the kernels are given to do; the same for every set. */

typedef struct pdi_product {           /* y = x W^T (+ b):  y [M][N], x [M][K], W [N][K] in its file's type */
    const float *x;   size_t ldx;
    float *y;         size_t ldy;
    size_t m, n, k;
    const uint8_t *w; uint32_t type; size_t row_bytes;
    const float *bias;                 /* [N] or NULL */
    int add;                           /* 1: y += instead */
    int turned;                        /* 1: x is [K][M] (mix only) */
} pdi_product;

enum {
    PDI_KEYS = 64,                     /* keys in a softmax tile; tiles lie at multiples of 64 of the absolute position */
    PDI_QUERIES = 32,                  /* queries (rows x group) computed together */
    PDI_PANEL = 32,                    /* widest panel of outputs any set uses; padding of value rows */
    PDI_CHUNK = 256,                   /* k's unpacked at a time: a panel chunk stays in the first-level cache */
    PDI_BLOCK_ROWS = 256,              /* rows that go through a product together */
    PDI_PRODUCT_WORK = 2 * PDI_PANEL * PDI_CHUNK
};

#ifndef PREDIFF_NO_TRAIN
typedef struct pdi_adamw { float scale, beta1, beta2, rate, decay, correct1, correct2, eps; } pdi_adamw;   /* see adamw */
#endif

typedef struct pdi_attention_job {     /* one key/value head, a few query rows */
    const float *q;    size_t ldq;     /* [rows][group * E], this head's queries */
    float *out;        size_t ldo;     /* [rows][group * E] */
    const uint32_t *n_keys;            /* [rows] keys 0 .. n_keys-1 are read */
    size_t rows, group, head_dim, head_pad;
    const float *k_cache, *v_cache;    /* tiles before first_own: keys [tile][E][64], values [position][head_pad] */
    const float *k_own, *v_own;        /* tiles from first_own on, the same layout, beginning there */
    size_t first_own;
    float scale;
    float *work;                       /* pdi_attention_work floats */
} pdi_attention_job;

PDI_FN size_t pdi_attention_work(size_t group, size_t head_dim, size_t head_pad) {
    size_t queries = pdi_max(PDI_QUERIES, group);
    return queries * (head_dim + PDI_KEYS + head_pad + 2);
}

typedef struct pdi_kernels {
    prediff_isa isa;
    size_t panel;                      /* outputs in a panel */
    void (*dequantize)(uint32_t type, const uint8_t *src, float *dst, size_t n);
    void (*product)(const pdi_product *p, size_t panel_begin, size_t panel_end, float *work);    /* PDI_PRODUCT_WORK floats */
    void (*mix)(const pdi_product *p, size_t unit_begin, size_t unit_end, float *work);          /* y = x W, W [K][N] */
    void (*attention)(const pdi_attention_job *j);
    void (*rms_norm)(float *y, const float *x, const float *w, size_t n, float eps);
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, size_t n, float eps);
    void (*rotate)(float *x, const float *cosines, const float *sines, size_t n);
    void (*rotate_halves)(float *x, const float *cosines, const float *sines, size_t n);
    void (*silu)(float *x, size_t n);
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*gelu_tanh)(float *x, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, float s, size_t n);
    float (*row_max)(const float *x, size_t n);
    void (*row_exp)(float *y, const float *x, float max, size_t n, double *sum, double *dot);
#ifndef PREDIFF_NO_TRAIN
    float (*row_dot)(const float *x, const float *y, size_t n);
    void (*norm_back)(float *dx, float *dw, float *db, const float *x, const float *w, const float *dy, size_t n, float eps);
    void (*silu_back)(float *dx, const float *x, const float *dy, size_t n);
    void (*silu_mul_back)(float *dgate, float *dup, const float *gate, const float *up, const float *dy, size_t n);
    void (*gelu_tanh_back)(float *dx, const float *x, const float *dy, size_t n);
    void (*softmax_back)(float *dz, const float *p, float dot, float scale, size_t n);
    void (*adamw)(float *w, const float *g, float *m, float *v, size_t n, const pdi_adamw *a);
#endif
} pdi_kernels;

#define PDI_SET scalar                 /* the first pass compiles the kernels below for the scalar set */
#define PDI_LANES 4
#define PDI_WIDE 1
#define PDI_ROWS 4
#define PDI_TARGET
#define PDI_ISA PREDIFF_ISA_SCALAR
#endif /* emitted once */

#ifdef PDI_SET
/* ---- >>KERNELS: the arithmetic, written once -----------------------------------------------------------------------

   This section is compiled once per kernel set. THE ORDER OF SUMMATION, on which everything exact rests:

   1. A product y[m][n] = sum over k of x[m][k] w[n][k] is one chain of fused multiply-adds with k strictly increasing.
      Outputs n lie in lanes; weights are turned (dequantised, transposed) into panels [k][lanes] a chunk of k at a time.
      How many rows m run together changes which chains run side by side, never a chain. Attention uses the same tile:
      scores are a product with the cached keys, outputs a product with the cached values, positions increasing.
   2. A sum over a row (norms, softmax) goes into 16 running sums, element i into sum i mod 16, which are then added by a
      fixed tree, whatever the vector width.
   3. Softmax over keys runs by tiles at multiples of 64 of the absolute position, each rescaling what came before.

   So a row's bits depend on its own inputs alone: not on other rows, samples, threads, the cache, or the weights' block
   type (a block is turned into floats first). AVX2, AVX-512 and NEON give the same bits as each other. */

#define PDI_PASTE_(a, b) a##_##b
#define PDI_PASTE(a, b) PDI_PASTE_(a, b)
#define PDI_K(name) PDI_PASTE(pdi_##name, PDI_SET)              /* pdi_dot -> pdi_dot_avx2 */
#define PDI_VEC PDI_PASTE(pdi_v, PDI_SET)
#define PDI_KERNEL PDI_TARGET static
#ifdef __GNUC__
#define PDI_BODY PDI_TARGET static inline __attribute__((always_inline, unused))
#else
#define PDI_BODY static inline
#endif
#define PDI_WIDTH (PDI_LANES * PDI_WIDE)                        /* outputs in a panel */
#define PDI_PARTS (16 / PDI_LANES)                              /* vectors that make the 16 running sums */

PDI_BODY PDI_VEC PDI_K(get)(const float *p, size_t n, float fill) { return n >= PDI_LANES ? PDI_K(load)(p) : PDI_K(loadn)(p, n, fill); }
PDI_BODY void PDI_K(put)(float *p, PDI_VEC v, size_t n) { if (n >= PDI_LANES) PDI_K(store)(p, v); else PDI_K(storen)(p, v, n); }
PDI_BODY float PDI_K(first)(PDI_VEC v) { float b[PDI_LANES]; PDI_K(store)(b, v); return b[0]; }
PDI_BODY size_t PDI_K(over)(size_t n, size_t used) { return n > used ? n - used : 0; }

/* The fixed tree of rule 2. */
PDI_BODY float PDI_K(sum16)(const PDI_VEC *s) {
    float b[16];
    int i, half;
    PDI_UNROLL for (i = 0; i < PDI_PARTS; i++) PDI_K(store)(b + i * PDI_LANES, s[i]);
    for (half = 8; half; half /= 2) for (i = 0; i < half; i++) b[i] = b[i] + b[i + half];
    return b[0];
}

/* -- products -- */

/* rows x PDI_WIDTH outputs: c[r][j] (+)= sum over k of a[r][k] b[k][j]; turned: of a[k][r] b[k][j]. b is readable PDI_WIDTH wide; n
   of it is stored. rows and turned are constants at each call, so the accumulators live in registers. Three rows share a pointer:
   their addresses are then base, base + ld, base + 2 ld, and a dozen rows leave registers for the loop. */
PDI_BODY void PDI_K(tile_rows)(const int rows, const int turned, size_t k, const float *a, size_t lda, const float *b, size_t ldb,
                               float *c, size_t ldc, size_t n, int add) {
    PDI_VEC acc[PDI_ROWS][PDI_WIDE];
    const float *three[(PDI_ROWS + 2) / 3];
    size_t i;
    int r, w;
    PDI_UNROLL for (r = 0; r < rows; r++) {
        PDI_UNROLL for (w = 0; w < PDI_WIDE; w++)
            acc[r][w] = add ? PDI_K(get)(c + (size_t)r * ldc + w * PDI_LANES, PDI_K(over)(n, (size_t)w * PDI_LANES), 0) : PDI_K(zero)();
    }
    PDI_UNROLL for (r = 0; r < (rows + 2) / 3; r++) three[r] = a + 3 * (size_t)r * lda;
    for (i = 0; i < k; i++, b += ldb, a += lda) {
        PDI_VEC y[PDI_WIDE];
        if (turned) { PDI_PREFETCH(a, 8 * lda); PDI_PREFETCH(a, 8 * lda + (size_t)rows - 1); }      /* no processor foresees such strides */
        PDI_UNROLL for (w = 0; w < PDI_WIDE; w++) y[w] = PDI_K(load)(b + w * PDI_LANES);
        PDI_UNROLL for (r = 0; r < rows; r++) {
            PDI_VEC x = PDI_K(set1)(turned ? a[r] : three[r / 3][i + (size_t)(r % 3) * lda]);
            PDI_UNROLL for (w = 0; w < PDI_WIDE; w++) acc[r][w] = PDI_K(fma)(x, y[w], acc[r][w]);
        }
    }
    PDI_UNROLL for (r = 0; r < rows; r++) {
        PDI_UNROLL for (w = 0; w < PDI_WIDE; w++)
            PDI_K(put)(c + (size_t)r * ldc + w * PDI_LANES, acc[r][w], PDI_K(over)(n, (size_t)w * PDI_LANES));
    }
}

/* Any number of rows, n <= PDI_WIDTH outputs. */
PDI_BODY void PDI_K(any_rows)(size_t m, const int turned, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t n, int add) {
    size_t next = turned ? 1 : lda;
    for (; m >= PDI_ROWS; m -= PDI_ROWS, a += PDI_ROWS * next, c += PDI_ROWS * ldc) PDI_K(tile_rows)(PDI_ROWS, turned, k, a, lda, b, ldb, c, ldc, n, add);
#if PDI_ROWS > 8
    if (m >= 8) { PDI_K(tile_rows)(8, turned, k, a, lda, b, ldb, c, ldc, n, add); m -= 8; a += 8 * next; c += 8 * ldc; }
#endif
#if PDI_ROWS > 4
    if (m >= 4) { PDI_K(tile_rows)(4, turned, k, a, lda, b, ldb, c, ldc, n, add); m -= 4; a += 4 * next; c += 4 * ldc; }
#endif
    if (m >= 2) { PDI_K(tile_rows)(2, turned, k, a, lda, b, ldb, c, ldc, n, add); m -= 2; a += 2 * next; c += 2 * ldc; }
    if (m) PDI_K(tile_rows)(1, turned, k, a, lda, b, ldb, c, ldc, n, add);
}

PDI_KERNEL void PDI_K(tile)(size_t m, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t n, int add) {
    PDI_K(any_rows)(m, 0, k, a, lda, b, ldb, c, ldc, n, add);
}

#ifndef PREDIFF_NO_TRAIN
PDI_KERNEL void PDI_K(tile_turned)(size_t m, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t n, int add) {
    PDI_K(any_rows)(m, 1, k, a, lda, b, ldb, c, ldc, n, add);
}
#endif

/* dst[i] = q[i] * scale + offset; n a multiple of 16. */
PDI_BODY void PDI_K(spread)(float *dst, const int8_t *q, float scale, float offset, size_t n) {
    PDI_VEC s = PDI_K(set1)(scale), o = PDI_K(set1)(offset);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) PDI_K(store)(dst + i, PDI_K(fma)(PDI_K(load_i8)(q + i), s, o));
}

/* The same for the low, or high, nibbles of n bytes. */
PDI_BODY void PDI_K(spread4)(float *dst, const uint8_t *p, int high, float scale, float offset, size_t n) {
    PDI_VEC s = PDI_K(set1)(scale), o = PDI_K(set1)(offset);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) PDI_K(store)(dst + i, PDI_K(fma)(high ? PDI_K(load_high4)(p + i) : PDI_K(load_low4)(p + i), s, o));
}

/* A Q4_K block: 8 sub-blocks of 32; bytes 32j.. hold sub-block 2j low and 2j+1 high. */
PDI_BODY void PDI_K(dequantize_q4k)(const uint8_t *p, float *dst) {
    float d = PDI_K(half)(p), m = PDI_K(half)(p + 2);
    size_t j;
    for (j = 0; j < 8; j++) {
        uint32_t s, z;
        pdi_q4k_scale(p + 4, j, &s, &z);
        PDI_K(spread4)(dst + 32 * j, p + 16 + 32 * (j / 2), j & 1, d * (float)s, -(m * (float)z), 32);
    }
}

/* A Q6_K block: two halves of 128; in each, value l of quarter t takes 4 bits of low[64 * (t & 1) ...] and 2 of high. */
PDI_BODY void PDI_K(dequantize_q6k)(const uint8_t *p, float *dst) {
    float d = PDI_K(half)(p + 208);
    int8_t q[128];
    size_t half, l, t;
    for (half = 0; half < 2; half++) {
        const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half, *scale = p + 192 + 8 * half;
        for (l = 0; l < 32; l++)
            for (t = 0; t < 4; t++) {
                uint32_t nibble = t < 2 ? low[l + 32 * t] & 15u : (uint32_t)low[l + 32 * (t - 2)] >> 4;
                q[32 * t + l] = (int8_t)((int)(nibble | ((uint32_t)high[l] >> 2 * t & 3u) << 4) - 32);
            }
        for (t = 0; t < 8; t++) PDI_K(spread)(dst + 128 * half + 16 * t, q + 16 * t, d * (float)(int8_t)scale[t], 0, 16);
    }
}

/* n elements of a row as floats, n a multiple of the block. Every value is exact before at most one rounding. */
PDI_KERNEL void PDI_K(dequantize)(uint32_t type, const uint8_t *p, float *dst, size_t n) {
    size_t i, whole = n - n % PDI_LANES;
    switch (type) {
    case PDI_NATIVE:
        for (i = 0; i < whole; i += PDI_LANES) PDI_K(store)(dst + i, PDI_K(load)((const float *)(const void *)p + i));
        for (; i < n; i++) dst[i] = ((const float *)(const void *)p)[i];
        break;
    case PREDIFF_F32:
        if (PDI_LITTLE) memcpy(dst, p, n * 4);
        else for (i = 0; i < n; i++) dst[i] = pdi_f32(p + 4 * i);
        break;
    case PREDIFF_F16:
        for (i = 0; i < whole; i += PDI_LANES) PDI_K(store)(dst + i, PDI_K(load_f16)(p + 2 * i));
        for (; i < n; i++) dst[i] = pdi_half_to_float(pdi_u16(p + 2 * i));
        break;
    case PREDIFF_BF16:
        for (i = 0; i < whole; i += PDI_LANES) PDI_K(store)(dst + i, PDI_K(load_bf16)(p + 2 * i));
        for (; i < n; i++) dst[i] = pdi_bits_float(pdi_u16(p + 2 * i) << 16);
        break;
    case PREDIFF_Q8_0:
        for (i = 0; i < n; i += 32, p += 34) PDI_K(spread)(dst + i, (const int8_t *)(p + 2), PDI_K(half)(p), 0, 32);
        break;
    case PREDIFF_Q4_0:
        for (i = 0; i < n; i += 32, p += 18) {
            float d = PDI_K(half)(p);            /* d (q - 8) = d q - 8d: both exact */
            PDI_K(spread4)(dst + i, p + 2, 0, d, -8.0f * d, 16);
            PDI_K(spread4)(dst + i + 16, p + 2, 1, d, -8.0f * d, 16);
        }
        break;
    case PREDIFF_Q4_1:
        for (i = 0; i < n; i += 32, p += 20) {
            float d = PDI_K(half)(p), m = PDI_K(half)(p + 2);
            PDI_K(spread4)(dst + i, p + 4, 0, d, m, 16);
            PDI_K(spread4)(dst + i + 16, p + 4, 1, d, m, 16);
        }
        break;
    case PREDIFF_Q4_K: for (i = 0; i < n; i += 256, p += 144) PDI_K(dequantize_q4k)(p, dst + i); break;
    case PREDIFF_Q6_K: for (i = 0; i < n; i += 256, p += 210) PDI_K(dequantize_q6k)(p, dst + i); break;
    default: PREDIFF_ASSERT(0);
    }
}

/* LANES weights of `rows` rows (0 beyond) from column i on, one register a column: r[l][j] = src[j][i + l]. */
PDI_BODY void PDI_K(columns)(PDI_VEC *r, const float *src, size_t ld, size_t rows) {
    size_t l;
    if (rows >= PDI_LANES) { PDI_UNROLL for (l = 0; l < PDI_LANES; l++) r[l] = PDI_K(load)(src + l * ld); }
    else { PDI_UNROLL for (l = 0; l < PDI_LANES; l++) r[l] = l < rows ? PDI_K(load)(src + l * ld) : PDI_K(zero)(); }
    PDI_K(transpose)(r);
}

/* The same for one column where fewer than LANES are left. Weights may lie at any address, hence memcpy. */
PDI_BODY PDI_VEC PDI_K(column)(const float *src, size_t ld, size_t rows) {
    float b[PDI_LANES];
    size_t l;
    for (l = 0; l < PDI_LANES; l++) {
        b[l] = 0;
        if (l < rows) memcpy(&b[l], src + l * ld, sizeof *b);
    }
    return PDI_K(load)(b);
}

/* panel[i][j] = src[j][i] for j < rows, 0 beyond; i < k. */
PDI_BODY void PDI_K(pack)(float *panel, const float *src, size_t ld, size_t rows, size_t k) {
    size_t i, j, l;
    for (j = 0; j < PDI_WIDTH; j += PDI_LANES) {
        for (i = 0; i + PDI_LANES <= k; i += PDI_LANES) {
            PDI_VEC r[PDI_LANES];
            PDI_K(columns)(r, src + j * ld + i, ld, PDI_K(over)(rows, j));
            PDI_UNROLL for (l = 0; l < PDI_LANES; l++) PDI_K(store)(panel + (i + l) * PDI_WIDTH + j, r[l]);
        }
        for (; i < k; i++) PDI_K(store)(panel + i * PDI_WIDTH + j, PDI_K(column)(src + j * ld + i, ld, PDI_K(over)(rows, j)));
    }
}

/* At most 4 rows of x: a panel would be written to be read once or twice, so the turned weights go straight from registers
   into the chains. Same chains, same bits. */
PDI_BODY void PDI_K(few_rows)(const int m, size_t k, const float *x, size_t ldx, const float *w, size_t ldw, float *y, size_t ldy, size_t n, int add) {
    PDI_VEC acc[4];
    size_t i, l;
    int r;
    PDI_UNROLL for (r = 0; r < m; r++) acc[r] = add ? PDI_K(get)(y + (size_t)r * ldy, n, 0) : PDI_K(zero)();
    for (i = 0; i + PDI_LANES <= k; i += PDI_LANES) {
        PDI_VEC c[PDI_LANES];
        PDI_K(columns)(c, w + i, ldw, n);
        PDI_UNROLL for (l = 0; l < PDI_LANES; l++) {
            PDI_UNROLL for (r = 0; r < m; r++) acc[r] = PDI_K(fma)(PDI_K(set1)(x[(size_t)r * ldx + i + l]), c[l], acc[r]);
        }
    }
    for (; i < k; i++) {
        PDI_VEC c = PDI_K(column)(w + i, ldw, n);
        PDI_UNROLL for (r = 0; r < m; r++) acc[r] = PDI_K(fma)(PDI_K(set1)(x[(size_t)r * ldx + i]), c, acc[r]);
    }
    PDI_UNROLL for (r = 0; r < m; r++) PDI_K(put)(y + (size_t)r * ldy, acc[r], n);
}

PDI_KERNEL void PDI_K(few)(size_t m, size_t k, const float *x, size_t ldx, const float *w, size_t ldw, float *y, size_t ldy, size_t n, int add) {
    size_t j;
    for (j = 0; j < n; j += PDI_LANES, w += PDI_LANES * ldw, y += PDI_LANES) {
        if (m == 1) PDI_K(few_rows)(1, k, x, ldx, w, ldw, y, ldy, n - j, add);
        else if (m == 2) PDI_K(few_rows)(2, k, x, ldx, w, ldw, y, ldy, n - j, add);
        else if (m == 3) PDI_K(few_rows)(3, k, x, ldx, w, ldw, y, ldy, n - j, add);
        else PDI_K(few_rows)(4, k, x, ldx, w, ldw, y, ldy, n - j, add);
    }
}

PDI_BODY void PDI_K(add_bias)(const pdi_product *p, size_t n0, size_t n) {
    size_t r, j;
    for (r = 0; r < p->m; r++)
        for (j = 0; j < n; j += PDI_LANES) {
            float *y = p->y + r * p->ldy + n0 + j;
            PDI_K(put)(y, PDI_K(add)(PDI_K(get)(y, n - j, 0), PDI_K(get)(p->bias + n0 + j, n - j, 0)), n - j);
        }
}

/* y = x W^T + b for the panels begin .. end-1. work: a panel chunk, and the rows it is made from. */
PDI_KERNEL void PDI_K(product)(const pdi_product *p, size_t begin, size_t end, float *work) {
    float *panel = work, *rows = work + PDI_PANEL * PDI_CHUNK;
    const pdi_type_info *t = pdi_type_of(p->type);
    int in_place = p->type == PDI_NATIVE || (PDI_LITTLE && p->type == PREDIFF_F32);
    size_t i, j, k0;
    for (i = begin; i < end; i++) {
        size_t n0 = i * PDI_WIDTH, n = pdi_min(p->n - n0, PDI_WIDTH);
        for (k0 = 0; k0 < p->k; k0 += PDI_CHUNK) {
            size_t k = pdi_min(p->k - k0, PDI_CHUNK), ld = in_place ? p->row_bytes / sizeof(float) : (size_t)PDI_CHUNK;
            const uint8_t *src = p->w + n0 * p->row_bytes + k0 / t->block * t->bytes;
            const float *w = in_place ? (const float *)(const void *)src : rows;
            for (j = 0; !in_place && j < n; j++) PDI_K(dequantize)(p->type, src + j * p->row_bytes, rows + j * PDI_CHUNK, k);
            if (p->m <= 4) PDI_K(few)(p->m, k, p->x + k0, p->ldx, w, ld, p->y + n0, p->ldy, n, k0 > 0 || p->add);
            else {
                PDI_K(pack)(panel, w, ld, n, k);
                PDI_K(tile)(p->m, k, p->x + k0, p->ldx, panel, PDI_WIDTH, p->y + n0, p->ldy, n, k0 > 0 || p->add);
            }
        }
        if (p->bias) PDI_K(add_bias)(p, n0, n);
    }
}

/* y = x W for W [K][N]: outputs already lie along the rows of W, so a panel is a few dequantised pieces of rows, or for a few
   rows of x the floats as they lie. Columns are shared out in units of 32, or 256 where blocks are that long. */
PDI_KERNEL void PDI_K(mix)(const pdi_product *p, size_t begin, size_t end, float *work) {
    const pdi_type_info *t = pdi_type_of(p->type);
    size_t unit = pdi_max(PDI_PANEL, t->block), rows = PDI_PANEL * PDI_CHUNK / unit, i, j, k0;
    for (i = begin; i < end; i++) {
        size_t n0 = i * unit, n = pdi_min(p->n - n0, unit), ld = unit;
        int in_place = p->type == PDI_NATIVE && n == unit && p->m <= 32;
        if (in_place) ld = p->row_bytes / sizeof(float);
        for (k0 = 0; k0 < p->k; k0 += rows) {
            size_t k = pdi_min(p->k - k0, rows);
            const float *w = in_place ? (const float *)(const void *)(p->w + k0 * p->row_bytes) + n0 : work;
            for (j = 0; !in_place && j < k; j++)
                PDI_K(dequantize)(p->type, p->w + (k0 + j) * p->row_bytes + n0 / t->block * t->bytes, work + j * unit, n);
            for (j = 0; j < n; j += PDI_WIDTH) {
                size_t width = pdi_min(n - j, PDI_WIDTH);
#ifndef PREDIFF_NO_TRAIN
                if (p->turned) PDI_K(tile_turned)(p->m, k, p->x + k0 * p->ldx, p->ldx, w + j, ld, p->y + n0 + j, p->ldy, width, k0 > 0 || p->add);
                else
#endif
                PDI_K(tile)(p->m, k, p->x + k0, p->ldx, w + j, ld, p->y + n0 + j, p->ldy, width, k0 > 0 || p->add);
            }
        }
    }
}

/* -- element by element -- */

/* e^x: x = n ln2 + r, |r| <= ln2/2, e^r by a polynomial of degree 7 (error below 2 units in the last place); 0 below -87.3,
   e^88.3 above. Not-a-number stays. Adding 1.5 * 2^23 rounds to a whole number left in the low bits, which scale2 shifts into the
   exponent; ln2 in two parts keeps r exact. */
PDI_BODY PDI_VEC PDI_K(exp)(PDI_VEC x) {
    static const float c[6] = { 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f };
    PDI_VEC magic = PDI_K(set1)(12582912.0f), y, t, n, r, p;
    int i;
    y = PDI_K(max)(PDI_K(set1)(-87.3f), PDI_K(min)(PDI_K(set1)(88.3f), x));
    t = PDI_K(add)(PDI_K(mul)(y, PDI_K(set1)(1.44269504f)), magic);
    n = PDI_K(sub)(t, magic);
    r = PDI_K(fma)(n, PDI_K(set1)(-0.693359375f), y);
    r = PDI_K(fma)(n, PDI_K(set1)(2.12194440e-4f), r);
    p = PDI_K(set1)(c[0]);
    PDI_UNROLL for (i = 1; i < 6; i++) p = PDI_K(fma)(p, r, PDI_K(set1)(c[i]));
    p = PDI_K(add)(PDI_K(fma)(PDI_K(mul)(p, r), r, r), PDI_K(set1)(1.0f));
    return PDI_K(zero_below)(PDI_K(scale2)(p, t), x, -87.3f);
}

PDI_BODY PDI_VEC PDI_K(sigmoid)(PDI_VEC x) {                     /* 1 / (1 + e^-x) */
    PDI_VEC one = PDI_K(set1)(1.0f);
    return PDI_K(div)(one, PDI_K(add)(one, PDI_K(exp)(PDI_K(sub)(PDI_K(zero)(), x))));
}

PDI_KERNEL void PDI_K(silu)(float *x, size_t n) {                /* x sigmoid(x) */
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(x + i, n - i, 0);
        PDI_K(put)(x + i, PDI_K(mul)(v, PDI_K(sigmoid)(v)), n - i);
    }
}

PDI_KERNEL void PDI_K(silu_mul)(float *gate, const float *up, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(gate + i, n - i, 0);
        PDI_K(put)(gate + i, PDI_K(mul)(PDI_K(mul)(v, PDI_K(sigmoid)(v)), PDI_K(get)(up + i, n - i, 0)), n - i);
    }
}

/* GPT-2's GELU: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
PDI_KERNEL void PDI_K(gelu_tanh)(float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(x + i, n - i, 0);
        PDI_VEC u = PDI_K(mul)(v, PDI_K(fma)(PDI_K(mul)(v, v), PDI_K(set1)(0.044715f), PDI_K(set1)(1.0f)));
        PDI_K(put)(x + i, PDI_K(mul)(v, PDI_K(sigmoid)(PDI_K(mul)(u, PDI_K(set1)(1.5957691216f)))), n - i);
    }
}

PDI_KERNEL void PDI_K(add_row)(float *y, const float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) PDI_K(put)(y + i, PDI_K(add)(PDI_K(get)(y + i, n - i, 0), PDI_K(get)(x + i, n - i, 0)), n - i);
}

PDI_KERNEL void PDI_K(scale_row)(float *y, float s, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) PDI_K(put)(y + i, PDI_K(mul)(PDI_K(get)(y + i, n - i, 0), PDI_K(set1)(s)), n - i);
}

/* Rotary embedding of interleaved pairs (a, b): (a cos - b sin, b cos + a sin). cosines hold c c per pair, sines -s s. */
PDI_KERNEL void PDI_K(rotate)(float *x, const float *cosines, const float *sines, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(x + i, n - i, 0);
        PDI_K(put)(x + i, PDI_K(fma)(PDI_K(swap)(v), PDI_K(get)(sines + i, n - i, 0), PDI_K(mul)(v, PDI_K(get)(cosines + i, n - i, 0))), n - i);
    }
}

/* The same where element i of the first half is paired with element i of the second. */
PDI_KERNEL void PDI_K(rotate_halves)(float *x, const float *cosines, const float *sines, size_t n) {
    size_t half = n / 2, i;
    for (i = 0; i < half; i += PDI_LANES) {
        size_t left = half - i;
        PDI_VEC a = PDI_K(get)(x + i, left, 0), b = PDI_K(get)(x + half + i, left, 0);
        PDI_K(put)(x + i, PDI_K(fma)(b, PDI_K(get)(sines + i, left, 0), PDI_K(mul)(a, PDI_K(get)(cosines + i, left, 0))), left);
        PDI_K(put)(x + half + i, PDI_K(fma)(a, PDI_K(get)(sines + half + i, left, 0), PDI_K(mul)(b, PDI_K(get)(cosines + half + i, left, 0))), left);
    }
}

/* -- sums over a row -- */

/* sum over i of (x[i] - shift) * (square ? x[i] - shift : 1), by rule 2. */
PDI_BODY float PDI_K(row_sum)(const float *x, size_t n, float shift, int square) {
    PDI_VEC s[PDI_PARTS], one = PDI_K(set1)(1.0f);
    size_t i;
    int j;
    PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) s[j] = PDI_K(zero)();
    for (i = 0; i < n; i += 16) {
        PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) {
            size_t at = i + (size_t)j * PDI_LANES;
            if (at < n) {
                PDI_VEC d = PDI_K(sub)(PDI_K(get)(x + at, n - at, shift), PDI_K(set1)(shift));
                s[j] = PDI_K(fma)(d, square ? d : one, s[j]);
            }
        }
    }
    return PDI_K(sum16)(s);
}

/* y = x w / sqrt(mean(x^2) + eps) */
PDI_KERNEL void PDI_K(rms_norm)(float *y, const float *x, const float *w, size_t n, float eps) {
    PDI_VEC s = PDI_K(set1)(1.0f / sqrtf(PDI_K(row_sum)(x, n, 0, 1) / (float)n + eps));
    size_t i;
    for (i = 0; i < n; i += PDI_LANES)
        PDI_K(put)(y + i, PDI_K(mul)(PDI_K(mul)(PDI_K(get)(x + i, n - i, 0), s), PDI_K(get)(w + i, n - i, 0)), n - i);
}

/* y = (x - mean) w / sqrt(variance + eps) + b */
PDI_KERNEL void PDI_K(layer_norm)(float *y, const float *x, const float *w, const float *b, size_t n, float eps) {
    float mean = PDI_K(row_sum)(x, n, 0, 0) / (float)n;
    PDI_VEC m = PDI_K(set1)(mean), s = PDI_K(set1)(1.0f / sqrtf(PDI_K(row_sum)(x, n, mean, 1) / (float)n + eps));
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(mul)(PDI_K(sub)(PDI_K(get)(x + i, n - i, 0), m), s);
        PDI_K(put)(y + i, PDI_K(fma)(v, PDI_K(get)(w + i, n - i, 0), PDI_K(get)(b + i, n - i, 0)), n - i);
    }
}

PDI_KERNEL float PDI_K(row_max)(const float *x, size_t n) {
    float inf = HUGE_VALF, b[PDI_LANES];
    PDI_VEC m = PDI_K(set1)(-inf);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) m = PDI_K(max)(m, PDI_K(get)(x + i, n - i, -inf));
    PDI_K(store)(b, m);
    for (i = 1; i < PDI_LANES; i++) if (b[i] > b[0]) b[0] = b[i];
    return b[0];
}

/* y[i] = e^(x[i] - max); sum of y, and dot = sum of y (x - max), from which the entropy follows. Sums of 256 elements are
   floats by rule 2, those are added in double. y may be x. */
PDI_KERNEL void PDI_K(row_exp)(float *y, const float *x, float max, size_t n, double *sum, double *dot) {
    PDI_VEC m = PDI_K(set1)(max), low = PDI_K(set1)(-88.0f);
    double total = 0, product = 0;
    size_t i, k;
    int j;
    for (k = 0; k < n; k += 256) {
        size_t end = pdi_min(n, k + 256);
        PDI_VEC s[PDI_PARTS], d[PDI_PARTS];
        PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) s[j] = d[j] = PDI_K(zero)();
        for (i = k; i < end; i += 16) {
            PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) {
                size_t at = i + (size_t)j * PDI_LANES;
                if (at < end) {
                    PDI_VEC v = PDI_K(sub)(PDI_K(get)(x + at, end - at, -HUGE_VALF), m), e = PDI_K(exp)(v);
                    PDI_K(put)(y + at, e, end - at);
                    s[j] = PDI_K(add)(s[j], e);
                    d[j] = PDI_K(fma)(e, PDI_K(max)(low, v), d[j]);
                }
            }
        }
        total += (double)PDI_K(sum16)(s);
        product += (double)PDI_K(sum16)(d);
    }
    *sum = total;
    *dot = product;
}

#ifndef PREDIFF_NO_TRAIN
/* -- backward: each beside its forward's formula -- */

PDI_KERNEL float PDI_K(row_dot)(const float *x, const float *y, size_t n) {      /* by rule 2 */
    PDI_VEC s[PDI_PARTS];
    size_t i;
    int j;
    PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) s[j] = PDI_K(zero)();
    for (i = 0; i < n; i += 16) {
        PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) {
            size_t at = i + (size_t)j * PDI_LANES;
            if (at < n) s[j] = PDI_K(fma)(PDI_K(get)(x + at, n - at, 0), PDI_K(get)(y + at, n - at, 0), s[j]);
        }
    }
    return PDI_K(sum16)(s);
}

/* y = xhat w (+ b), xhat = (x - mean) r, r = 1 / sqrt(variance + eps), with db; without, mean = 0 (RMSNorm).
   dw += dy xhat;  db += dy;  a = dy w;  dx += r (a - mean(a) - xhat mean(a xhat)), RMSNorm without mean(a). Either dx or dw may
   be NULL; `layer` is told by db, or by a db of no use with dw NULL. */
PDI_KERNEL void PDI_K(norm_back)(float *dx, float *dw, float *db, const float *x, const float *w, const float *dy, size_t n, float eps) {
    float mean = db ? PDI_K(row_sum)(x, n, 0, 0) / (float)n : 0, r = 1.0f / sqrtf(PDI_K(row_sum)(x, n, mean, 1) / (float)n + eps);
    PDI_VEC s[PDI_PARTS], t[PDI_PARTS], m = PDI_K(set1)(mean), rr = PDI_K(set1)(r), sa, st;
    size_t i;
    int j;
    for (i = 0; dw && i < n; i += PDI_LANES) {
        PDI_VEC xhat = PDI_K(mul)(PDI_K(sub)(PDI_K(get)(x + i, n - i, mean), m), rr), g = PDI_K(get)(dy + i, n - i, 0);
        PDI_K(put)(dw + i, PDI_K(fma)(g, xhat, PDI_K(get)(dw + i, n - i, 0)), n - i);
        if (db) PDI_K(put)(db + i, PDI_K(add)(g, PDI_K(get)(db + i, n - i, 0)), n - i);
    }
    if (!dx) return;
    PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) s[j] = t[j] = PDI_K(zero)();
    for (i = 0; i < n; i += 16) {
        PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) {
            size_t at = i + (size_t)j * PDI_LANES;
            if (at < n) {
                PDI_VEC xhat = PDI_K(mul)(PDI_K(sub)(PDI_K(get)(x + at, n - at, mean), m), rr);
                PDI_VEC a = PDI_K(mul)(PDI_K(get)(dy + at, n - at, 0), PDI_K(get)(w + at, n - at, 0));
                s[j] = PDI_K(add)(s[j], a);
                t[j] = PDI_K(fma)(a, xhat, t[j]);
            }
        }
    }
    sa = PDI_K(set1)(db ? PDI_K(sum16)(s) / (float)n : 0);
    st = PDI_K(set1)(PDI_K(sum16)(t) / (float)n);
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC xhat = PDI_K(mul)(PDI_K(sub)(PDI_K(get)(x + i, n - i, mean), m), rr);
        PDI_VEC a = PDI_K(sub)(PDI_K(mul)(PDI_K(get)(dy + i, n - i, 0), PDI_K(get)(w + i, n - i, 0)), sa);
        PDI_K(put)(dx + i, PDI_K(fma)(rr, PDI_K(sub)(a, PDI_K(mul)(xhat, st)), PDI_K(get)(dx + i, n - i, 0)), n - i);
    }
}

/* y = x s, s = sigmoid(x):  dx = dy (s + x s (1 - s)) */
PDI_BODY PDI_VEC PDI_K(silu_slope)(PDI_VEC x, PDI_VEC s) { return PDI_K(fma)(PDI_K(mul)(x, s), PDI_K(sub)(PDI_K(set1)(1.0f), s), s); }

PDI_KERNEL void PDI_K(silu_back)(float *dx, const float *x, const float *dy, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(x + i, n - i, 0);
        PDI_K(put)(dx + i, PDI_K(mul)(PDI_K(get)(dy + i, n - i, 0), PDI_K(silu_slope)(v, PDI_K(sigmoid)(v))), n - i);
    }
}

PDI_KERNEL void PDI_K(silu_mul_back)(float *dgate, float *dup, const float *gate, const float *up, const float *dy, size_t n) {
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC g = PDI_K(get)(gate + i, n - i, 0), s = PDI_K(sigmoid)(g), d = PDI_K(get)(dy + i, n - i, 0);
        PDI_K(put)(dgate + i, PDI_K(mul)(PDI_K(mul)(d, PDI_K(get)(up + i, n - i, 0)), PDI_K(silu_slope)(g, s)), n - i);
        PDI_K(put)(dup + i, PDI_K(mul)(d, PDI_K(mul)(g, s)), n - i);
    }
}

/* y = x s, s = sigmoid(2u):  dx = dy (s + x s (1 - s) 2u'),  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2) */
PDI_KERNEL void PDI_K(gelu_tanh_back)(float *dx, const float *x, const float *dy, size_t n) {
    PDI_VEC one = PDI_K(set1)(1.0f), c = PDI_K(set1)(1.5957691216f);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC v = PDI_K(get)(x + i, n - i, 0), square = PDI_K(mul)(v, v);
        PDI_VEC s = PDI_K(sigmoid)(PDI_K(mul)(PDI_K(mul)(v, PDI_K(fma)(square, PDI_K(set1)(0.044715f), one)), c));
        PDI_VEC slope = PDI_K(mul)(c, PDI_K(fma)(square, PDI_K(set1)(0.134145f), one));
        slope = PDI_K(fma)(PDI_K(mul)(PDI_K(mul)(v, s), PDI_K(sub)(one, s)), slope, s);
        PDI_K(put)(dx + i, PDI_K(mul)(PDI_K(get)(dy + i, n - i, 0), slope), n - i);
    }
}

/* p = softmax(z): dz = p (dp - dot) scale, dot = sum of dp p; dz holds dp before. */
PDI_KERNEL void PDI_K(softmax_back)(float *dz, const float *p, float dot, float scale, size_t n) {
    PDI_VEC d = PDI_K(set1)(dot), s = PDI_K(set1)(scale);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES)
        PDI_K(put)(dz + i, PDI_K(mul)(PDI_K(mul)(PDI_K(get)(p + i, n - i, 0), s), PDI_K(sub)(PDI_K(get)(dz + i, n - i, 0), d)), n - i);
}

/* AdamW (Loshchilov and Hutter 2019): g' = g scale;  m = b1 m + (1 - b1) g';  v = b2 v + (1 - b2) g'^2;
   w -= rate (decay w + (m correct1) / (sqrt(v correct2) + eps)),  correct = 1 / (1 - b^step) */
PDI_KERNEL void PDI_K(adamw)(float *w, const float *g, float *m, float *v, size_t n, const pdi_adamw *a) {
    PDI_VEC b1 = PDI_K(set1)(a->beta1), b2 = PDI_K(set1)(a->beta2), c1 = PDI_K(set1)(1.0f - a->beta1), c2 = PDI_K(set1)(1.0f - a->beta2);
    PDI_VEC keep = PDI_K(set1)(1.0f - a->rate * a->decay), rate = PDI_K(set1)(-a->rate * a->correct1), fix = PDI_K(set1)(a->correct2), eps = PDI_K(set1)(a->eps);
    size_t i;
    for (i = 0; i < n; i += PDI_LANES) {
        PDI_VEC d = PDI_K(mul)(PDI_K(get)(g + i, n - i, 0), PDI_K(set1)(a->scale));
        PDI_VEC x = PDI_K(fma)(b1, PDI_K(get)(m + i, n - i, 0), PDI_K(mul)(c1, d));
        PDI_VEC y = PDI_K(fma)(b2, PDI_K(get)(v + i, n - i, 0), PDI_K(mul)(c2, PDI_K(mul)(d, d)));
        PDI_VEC step = PDI_K(div)(x, PDI_K(add)(PDI_K(sqrt)(PDI_K(mul)(y, fix)), eps));
        PDI_K(put)(m + i, x, n - i);
        PDI_K(put)(v + i, y, n - i);
        PDI_K(put)(w + i, PDI_K(fma)(rate, step, PDI_K(mul)(keep, PDI_K(get)(w + i, n - i, 0))), n - i);
    }
}
#endif /* PREDIFF_NO_TRAIN */

/* -- attention -- */

/* One row of one tile: scores s[0..n-1] become probabilities under the running maximum; returns the factor by which what
   was accumulated before shrinks. max and sum are the row's running maximum and normaliser. */
PDI_BODY float PDI_K(softmax_tile)(float *s, size_t n, float *max, float *sum) {
    float top = PDI_K(row_max)(s, n), old = *max, shrink;
    PDI_VEC part[PDI_PARTS], m;
    size_t i;
    int j;
    if (old > top) top = old;
    m = PDI_K(set1)(top);
    shrink = PDI_K(first)(PDI_K(exp)(PDI_K(sub)(PDI_K(set1)(old), m)));
    PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) part[j] = PDI_K(zero)();
    for (i = 0; i < n; i += 16) {
        PDI_UNROLL for (j = 0; j < PDI_PARTS; j++) {
            size_t at = i + (size_t)j * PDI_LANES;
            if (at < n) {
                PDI_VEC e = PDI_K(exp)(PDI_K(sub)(PDI_K(get)(s + at, n - at, -HUGE_VALF), m));
                PDI_K(put)(s + at, e, n - at);
                part[j] = PDI_K(add)(part[j], e);
            }
        }
    }
    *max = top;
    *sum = PDI_K(first)(PDI_K(fma)(PDI_K(set1)(*sum), PDI_K(set1)(shrink), PDI_K(set1)(PDI_K(sum16)(part))));
    return shrink;
}

/* softmax(q K^T scale) V for a few rows and the heads that share one key/value head. Tile by tile with a running maximum m and
   normaliser l (Milakov and Gimelshein 2018):  m' = max(m, max s);  l' = l e^(m-m') + sum e^(s-m');  o' = o e^(m-m') + sum e^(s-m') v. */
PDI_KERNEL void PDI_K(attention)(const pdi_attention_job *j) {
    size_t m = j->rows * j->group, e = j->head_dim, pad = j->head_pad, most = 0, fewest = SIZE_MAX, r, t, i;
    float *q = j->work, *s = q + m * e, *o = s + m * PDI_KEYS, *max = o + m * pad, *sum = max + m;
    for (r = 0; r < j->rows; r++) {
        most = pdi_max(most, j->n_keys[r]);
        fewest = pdi_min(fewest, j->n_keys[r]);
        memcpy(q + r * j->group * e, j->q + r * j->ldq, j->group * e * sizeof *q);
    }
    PDI_K(scale_row)(q, j->scale, m * e);
    for (r = 0; r < m; r++) { max[r] = -HUGE_VALF; sum[r] = 0; }
    memset(o, 0, m * pad * sizeof *o);
    for (t = 0; t * PDI_KEYS < most; t++) {
        const float *k = t < j->first_own ? j->k_cache + t * PDI_KEYS * e : j->k_own + (t - j->first_own) * PDI_KEYS * e;
        const float *v = t < j->first_own ? j->v_cache + t * PDI_KEYS * pad : j->v_own + (t - j->first_own) * PDI_KEYS * pad;
        size_t first = t * PDI_KEYS, together = fewest >= first + PDI_KEYS || fewest == most ? m : 1;
        for (i = 0; i < PDI_KEYS; i += PDI_WIDTH) PDI_K(tile)(m, e, q, e, k + i, PDI_KEYS, s + i, PDI_KEYS, PDI_WIDTH, 0);
        for (r = 0; r < m; r++) {
            size_t n = pdi_min(PDI_K(over)(j->n_keys[r / j->group], first), PDI_KEYS);
            if (n) PDI_K(scale_row)(o + r * pad, PDI_K(softmax_tile)(s + r * PDI_KEYS, n, &max[r], &sum[r]), pad);
        }
        for (r = 0; r < m; r += together) {                     /* rows that end inside this tile go one by one */
            size_t n = pdi_min(PDI_K(over)(j->n_keys[r / j->group], first), PDI_KEYS);
            for (i = 0; n && i < pad; i += PDI_WIDTH) PDI_K(tile)(together, n, s + r * PDI_KEYS, PDI_KEYS, v + i, pad, o + r * pad + i, pad, PDI_WIDTH, 1);
        }
    }
    for (r = 0; r < m; r++) {
        PDI_K(scale_row)(o + r * pad, 1.0f / sum[r], e);
        memcpy(j->out + r / j->group * j->ldo + r % j->group * e, o + r * pad, e * sizeof *o);
    }
}

PDI_FN const pdi_kernels *PDI_K(kernels)(void) {
    static const pdi_kernels k = { PDI_ISA, PDI_WIDTH, PDI_K(dequantize), PDI_K(product), PDI_K(mix), PDI_K(attention), PDI_K(rms_norm),
        PDI_K(layer_norm), PDI_K(rotate), PDI_K(rotate_halves), PDI_K(silu), PDI_K(silu_mul), PDI_K(gelu_tanh), PDI_K(add_row), PDI_K(scale_row), PDI_K(row_max), PDI_K(row_exp)
#ifndef PREDIFF_NO_TRAIN
        , PDI_K(row_dot), PDI_K(norm_back), PDI_K(silu_back), PDI_K(silu_mul_back), PDI_K(gelu_tanh_back), PDI_K(softmax_back), PDI_K(adamw)
#endif
    };
    return &k;
}

#undef PDI_PASTE_
#undef PDI_PASTE
#undef PDI_K
#undef PDI_VEC
#undef PDI_KERNEL
#undef PDI_BODY
#undef PDI_WIDTH
#undef PDI_PARTS
#undef PDI_SET
#undef PDI_LANES
#undef PDI_WIDE
#undef PDI_ROWS
#undef PDI_TARGET
#undef PDI_ISA
#endif /* PDI_SET */

#if !defined(PDI_NESTED) && defined(PDI_ALIGN)     /* the first pass goes on */

/* ---- >>DISPATCH: choosing kernels at run time ---------------------------------------------------------------------- */

#define PDI_NESTED
#if PDI_X86
#define PDI_SET avx2
#define PDI_LANES 8
#define PDI_WIDE 2
#define PDI_ROWS 6
#define PDI_TARGET PDI_T_AVX2
#define PDI_ISA PREDIFF_ISA_AVX2
#include PREDIFF_FILENAME
#define PDI_SET avx512
#define PDI_LANES 16
#define PDI_WIDE 2
#define PDI_ROWS 12
#define PDI_TARGET PDI_T_AVX512
#define PDI_ISA PREDIFF_ISA_AVX512
#include PREDIFF_FILENAME
#endif
#if PDI_NEON
#define PDI_SET neon
#define PDI_LANES 4
#define PDI_WIDE 4
#define PDI_ROWS 6
#define PDI_TARGET
#define PDI_ISA PREDIFF_ISA_NEON
#include PREDIFF_FILENAME
#endif
#undef PDI_NESTED

#if PDI_X86
/* Does the processor have the instructions, and does the system save their registers? bits of XCR0: 6 AVX, 0xE6 AVX-512. */
PDI_FN int pdi_x86_has(int avx512) {
    unsigned a, b, c, d, low, high;
    const unsigned need1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;      /* FMA OSXSAVE AVX F16C */
    const unsigned need7 = avx512 ? 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31 : 1u << 5;      /* F DQ BW VL; AVX2 */
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need1) != need1) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & (avx512 ? 0xE6u : 6u)) != (avx512 ? 0xE6u : 6u)) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & need7) == need7 && (!avx512 || (b & 1u << 5));
}
#endif

/* NULL: not in this build, or not on this machine. */
PDI_FN const pdi_kernels *pdi_kernels_of(prediff_isa isa) {
    if (isa == PREDIFF_ISA_SCALAR) return pdi_kernels_scalar();
#if PDI_X86
    if (isa == PREDIFF_ISA_AVX2 && pdi_x86_has(0)) return pdi_kernels_avx2();
    if (isa == PREDIFF_ISA_AVX512 && pdi_x86_has(1)) return pdi_kernels_avx512();
#endif
#if PDI_NEON
    if (isa == PREDIFF_ISA_NEON) return pdi_kernels_neon();
#endif
    return NULL;
}

PDI_DEF int prediff_isa_available(prediff_isa isa) { return isa == PREDIFF_ISA_DEFAULT || pdi_kernels_of(isa) != NULL; }

PDI_DEF prediff_isa prediff_isa_best(void) {
    return pdi_kernels_of(PREDIFF_ISA_NEON) ? PREDIFF_ISA_NEON : pdi_kernels_of(PREDIFF_ISA_AVX512) ? PREDIFF_ISA_AVX512
         : pdi_kernels_of(PREDIFF_ISA_AVX2) ? PREDIFF_ISA_AVX2 : PREDIFF_ISA_SCALAR;
}

PDI_DEF const char *prediff_isa_name(prediff_isa isa) {
    static const char *const names[] = { "default", "scalar", "avx2", "avx512", "neon" };
    return (unsigned)isa < PREDIFF_ISA_COUNT ? names[isa] : "?";
}

PDI_DEF prediff_status prediff_dequantize_row(uint32_t type, const void *row, float *out, size_t n, prediff_error *err) {
    const pdi_type_info *t = pdi_type_of(type);
    if (!row || !out) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "row or out is NULL");
    if (!t) return PDI_FAIL(err, UNSUPPORTED, TENSOR_TYPE, "type %s (%u) is not read", prediff_type_name(type), (uint64_t)type);
    if (n % t->block) return PDI_FAIL(err, ARG, TENSOR_BLOCK, "%u values are not whole %s blocks of %u", (uint64_t)n, t->name, (uint64_t)t->block);
    pdi_kernels_scalar()->dequantize(type, (const uint8_t *)row, out, n);
    return PREDIFF_OK;
}

/* ---- >>THREAD: one parallel loop -----------------------------------------------------------------------------------

   Work is cut into one share a thread, by outputs, never by terms of a sum; so the number of threads cannot show in the
   results. share(arg, i, n) does share i of n. Small work is done here: waking a thread costs more than it brings. */

typedef struct pdi_threads {
    int n;
    void (*parallel_for)(void *user, size_t n, void (*job)(void *arg, size_t i), void *arg);
    void *user;
} pdi_threads;

typedef void (*pdi_share)(void *arg, size_t i, size_t n);
typedef struct pdi_shares { pdi_share share; void *arg; size_t n; } pdi_shares;

PDI_FN void pdi_run_share(void *arg, size_t i) {
    const pdi_shares *s = (const pdi_shares *)arg;
    s->share(s->arg, i, s->n);
}

#define PDI_SMALL_WORK 200000.0        /* multiply-adds worth a second thread: about 5 microseconds */

PDI_FN void pdi_parallel(const pdi_threads *t, pdi_share share, void *arg, double work) {
    pdi_shares s;
    s.share = share; s.arg = arg; s.n = work < PDI_SMALL_WORK ? 1 : (size_t)t->n;
    if (s.n == 1) share(arg, 0, 1);
    else if (t->parallel_for) t->parallel_for(t->user, s.n, pdi_run_share, &s);
    else {
#if PDI_OPENMP
        int i;
#pragma omp parallel for num_threads(t->n) schedule(static, 1)
        for (i = 0; i < t->n; i++) pdi_run_share(&s, (size_t)i);
#else
        share(arg, 0, 1);
#endif
    }
}

/* Share i of n of `count` things: begin .. end-1. */
PDI_FN void pdi_range(size_t count, size_t i, size_t n, size_t *begin, size_t *end) {
    size_t each = count / n, extra = count % n;
    *begin = i * each + pdi_min(i, extra);
    *end = *begin + each + (i < extra);
}

/* ---- >>GGUF: reading model files -----------------------------------------------------------------------------------

        "GGUF" | version u32 | n_tensors u64 | n_keys u64
        n_keys times     name | type u32 | value             a name or string: length u64, bytes
        n_tensors times  name | n_dims u32 | dims u64[] | type u32 | offset u64
        padding to the alignment, then the tensors' data, offsets counted from here

   The reader keeps pointers into the caller's bytes and two tables, keys and tensors, each with a hash table that finds
   duplicates and answers look-ups. All numbers are little-endian and loaded byte by byte. */

typedef struct pdi_cursor { const uint8_t *p, *begin; size_t left; int ok; } pdi_cursor;

PDI_FN pdi_cursor pdi_cursor_of(const void *p, size_t n) {
    pdi_cursor c;
    c.p = c.begin = (const uint8_t *)p; c.left = n; c.ok = 1;
    return c;
}

/* The next n bytes, or NULL once the end is passed (sticky). */
PDI_FN const uint8_t *pdi_next(pdi_cursor *c, size_t n) {
    const uint8_t *p = c->p;
    if (!c->ok || n > c->left) { c->ok = 0; return NULL; }
    c->p += n; c->left -= n;
    return p;
}

PDI_FN uint32_t pdi_next_u32(pdi_cursor *c) { const uint8_t *p = pdi_next(c, 4); return p ? pdi_u32(p) : 0; }
PDI_FN uint64_t pdi_next_u64(pdi_cursor *c) { const uint8_t *p = pdi_next(c, 8); return p ? pdi_u64(p) : 0; }

/* A string of a checked array: cannot fail there; an empty string past the end otherwise. */
PDI_FN prediff_string pdi_next_string(pdi_cursor *c) {
    prediff_string s = { "", 0 };
    uint64_t n = pdi_next_u64(c);
    if (c->ok && n > c->left) c->ok = 0;
    if (c->ok) { s.n = (size_t)n; s.bytes = (const char *)pdi_next(c, s.n); }
    return s;
}

enum { PDI_GGUF_U8, PDI_GGUF_I8, PDI_GGUF_U16, PDI_GGUF_I16, PDI_GGUF_U32, PDI_GGUF_I32, PDI_GGUF_F32, PDI_GGUF_BOOL,
       PDI_GGUF_STRING, PDI_GGUF_ARRAY, PDI_GGUF_U64, PDI_GGUF_I64, PDI_GGUF_F64, PDI_GGUF_TYPES };
static const uint8_t pdi_gguf_size[PDI_GGUF_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
static const char *const pdi_gguf_names[PDI_GGUF_TYPES] = { "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string",
                                                            "array", "u64", "i64", "f64" };

typedef struct pdi_gguf {
    const uint8_t *bytes; size_t size;
    uint32_t version;
    size_t alignment;
    prediff_key *keys;       size_t n_keys;    uint32_t *key_table;    size_t key_slots;      /* slot: index + 1, 0 empty */
    prediff_tensor *tensors; size_t n_tensors; uint32_t *tensor_table; size_t tensor_slots;
    uint32_t *by_offset;                       /* [n_tensors] sorted, for the overlap check */
    pdi_cursor body;                           /* just after the fixed header */
} pdi_gguf;

/* Adds entry `index` under its name; entries come at stride bytes, a prediff_string first. NULL, or what is wrong. */
PDI_FN const char *pdi_table_add(uint32_t *table, size_t slots, const void *entries, size_t stride, size_t index) {
    prediff_string name = *(const prediff_string *)((const uint8_t *)entries + index * stride);
    size_t s = pdi_hash(name.bytes, name.n) & (slots - 1), probes = 0;
    for (; table[s]; s = (s + 1) & (slots - 1)) {
        const prediff_string *o = (const prediff_string *)((const uint8_t *)entries + (table[s] - 1) * stride);
        if (o->n == name.n && memcmp(o->bytes, name.bytes, name.n) == 0) return "appears twice";
        if (++probes > PDI_MOST_PROBES) return "collides with too many other names";
    }
    table[s] = (uint32_t)index + 1;
    return NULL;
}

PDI_FN const void *pdi_table_find(const uint32_t *table, size_t slots, const void *entries, size_t stride, const char *name, size_t n) {
    size_t s = slots ? pdi_hash(name, n) & (slots - 1) : 0;
    for (; slots && table[s]; s = (s + 1) & (slots - 1)) {
        const prediff_string *o = (const prediff_string *)((const uint8_t *)entries + (table[s] - 1) * stride);
        if (o->n == n && memcmp(o->bytes, name, n) == 0) return o;
    }
    return NULL;
}

PDI_FN const prediff_key *pdi_find_key(const pdi_gguf *g, const char *name) {
    return (const prediff_key *)pdi_table_find(g->key_table, g->key_slots, g->keys, sizeof *g->keys, name, strlen(name));
}

PDI_FN const prediff_tensor *pdi_find_tensor(const pdi_gguf *g, const char *name) {
    return (const prediff_tensor *)pdi_table_find(g->tensor_table, g->tensor_slots, g->tensors, sizeof *g->tensors, name, strlen(name));
}

/* Fixed header and counts. A count is believed only if that many smallest records fit in what follows. */
PDI_FN prediff_status pdi_gguf_begin(pdi_gguf *g, const void *bytes, size_t size, const prediff_limits *lim, prediff_error *err) {
    pdi_cursor c = pdi_cursor_of(bytes, size);
    const uint8_t *magic = pdi_next(&c, 4);
    uint64_t n_tensors, n_keys, max_keys = lim->keys ? lim->keys : 65536, max_tensors = lim->tensors ? lim->tensors : 65536;
    if (max_keys > UINT32_MAX - 1) max_keys = UINT32_MAX - 1;   /* tables hold 32-bit indices */
    if (max_tensors > UINT32_MAX - 1) max_tensors = UINT32_MAX - 1;
    if (!magic) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, size, "the file has only %u bytes", (uint64_t)size);
    if (memcmp(magic, "FUGG", 4) == 0) return PDI_FAIL(err, UNSUPPORTED, GGUF_ENDIAN, "big-endian GGUF file: convert it to little-endian");
    if (memcmp(magic, "GGUF", 4) != 0) return PDI_FAIL(err, FORMAT, GGUF_MAGIC, "not a GGUF file: it does not begin with GGUF");
    g->version = pdi_next_u32(&c);
    if (c.ok && g->version && (g->version & 0xFFFF) == 0)
        return PDI_FAIL_AT(err, UNSUPPORTED, GGUF_ENDIAN, 4, "big-endian GGUF file: convert it to little-endian");
    if (c.ok && g->version != 2 && g->version != 3)
        return PDI_FAIL_AT(err, UNSUPPORTED, GGUF_VERSION, 4, "GGUF version %u; versions 2 and 3 are read", (uint64_t)g->version);
    n_tensors = pdi_next_u64(&c);
    n_keys = pdi_next_u64(&c);
    if (!c.ok) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, size, "the file ends in its fixed header (%u bytes)", (uint64_t)size);
    /* a key has at least a length (8), a type (4), a value (1); a tensor 8, a name (1), 4, a dimension (8), 4, 8 */
    if (n_keys > c.left / 13) return PDI_FAIL_AT(err, FORMAT, GGUF_COUNT, 16, "%u keys do not fit in the %u bytes that follow", n_keys, (uint64_t)c.left);
    if (n_tensors > c.left / 33) return PDI_FAIL_AT(err, FORMAT, GGUF_COUNT, 8, "%u tensors do not fit in the %u bytes that follow", n_tensors, (uint64_t)c.left);
    if (n_keys > max_keys) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u keys, limits.keys is %u", n_keys, max_keys);
    if (n_tensors > max_tensors) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u tensors, limits.tensors is %u", n_tensors, max_tensors);
    g->bytes = (const uint8_t *)bytes; g->size = size;
    g->n_keys = (size_t)n_keys; g->n_tensors = (size_t)n_tensors;
    g->body = c;
    return PREDIFF_OK;
}

PDI_FN void pdi_gguf_layout(pdi_gguf *g, pdi_arena *a) {
    g->key_slots = pdi_table_size(g->n_keys);
    g->tensor_slots = pdi_table_size(g->n_tensors);
    g->keys = (prediff_key *)pdi_take(a, g->n_keys, sizeof *g->keys);
    g->tensors = (prediff_tensor *)pdi_take(a, g->n_tensors, sizeof *g->tensors);
    g->key_table = (uint32_t *)pdi_take(a, g->key_slots, sizeof *g->key_table);
    g->tensor_table = (uint32_t *)pdi_take(a, g->tensor_slots, sizeof *g->tensor_table);
    g->by_offset = (uint32_t *)pdi_take(a, g->n_tensors, sizeof *g->by_offset);
}

#define PDI_HERE(c) ((uint64_t)((c)->p - (c)->begin))

PDI_FN prediff_status pdi_read_string(pdi_cursor *c, prediff_string *s, uint64_t max, const char *what, prediff_error *err) {
    uint64_t at = PDI_HERE(c), n = pdi_next_u64(c);
    if (!c->ok) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, at, "the file ends at byte %u, in the length of %s", at, what);
    if (n > c->left) return PDI_FAIL_AT(err, FORMAT, GGUF_STRING, at, "%s of %u bytes at byte %u; only %u follow", what, n, at, (uint64_t)c->left);
    if (n > max) return PDI_FAIL_AT(err, LIMIT, LIMIT_EXCEEDED, at, "%s of %u bytes at byte %u; at most %u are read", what, n, at, max);
    s->n = (size_t)n;
    s->bytes = (const char *)pdi_next(c, s->n);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_read_array(pdi_cursor *c, prediff_key *k, uint64_t max_string, prediff_error *err) {
    uint64_t i, at = PDI_HERE(c);
    size_t size;
    k->element = pdi_next_u32(c);
    k->count = pdi_next_u64(c);
    if (!c->ok) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, at, "key '%S': the file ends in its array", &k->name);
    if (k->element >= PDI_GGUF_TYPES) return PDI_FAIL_AT(err, FORMAT, GGUF_VALUE_TYPE, at, "key '%S': array of unknown type %u", &k->name, (uint64_t)k->element);
    if (k->element == PDI_GGUF_ARRAY) return PDI_FAIL_AT(err, UNSUPPORTED, GGUF_ARRAY, at, "key '%S': arrays of arrays are not read", &k->name);
    k->data = c->p;
    size = pdi_gguf_size[k->element];
    if (k->count > c->left / (size ? size : 8))
        return PDI_FAIL_AT(err, FORMAT, GGUF_ARRAY, at, "key '%S': %u elements do not fit in the %u bytes that follow", &k->name, k->count, (uint64_t)c->left);
    if (size) pdi_next(c, (size_t)k->count * size);
    for (i = 0; !size && i < k->count; i++) {
        prediff_string s;
        PDI_TRY(pdi_read_string(c, &s, max_string, "a string of an array", err));
    }
    for (i = 0; k->element == PDI_GGUF_BOOL && i < k->count; i++)
        if (k->data[i] > 1) return PDI_FAIL_AT(err, FORMAT, GGUF_BOOL, at, "key '%S': bool number %u is %u", &k->name, i, (uint64_t)k->data[i]);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_read_key(pdi_cursor *c, prediff_key *k, uint64_t max_string, prediff_error *err) {
    uint64_t at = PDI_HERE(c);
    PDI_TRY(pdi_read_string(c, &k->name, 65535, "a key", err));
    if (k->name.n == 0) return PDI_FAIL_AT(err, FORMAT, GGUF_KEY, at, "an empty key at byte %u", at);
    at = PDI_HERE(c);
    k->type = k->element = pdi_next_u32(c);
    k->count = 1;
    if (!c->ok) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, at, "key '%S': the file ends before its value", &k->name);
    if (k->type >= PDI_GGUF_TYPES) return PDI_FAIL_AT(err, FORMAT, GGUF_VALUE_TYPE, at, "key '%S' has unknown type %u", &k->name, (uint64_t)k->type);
    k->data = c->p;
    if (k->type == PDI_GGUF_ARRAY) PDI_TRY(pdi_read_array(c, k, max_string, err));
    else if (k->type == PDI_GGUF_STRING) {
        prediff_string s;
        PDI_TRY(pdi_read_string(c, &s, max_string, "a string", err));
    } else if (!pdi_next(c, pdi_gguf_size[k->type]))
        return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, at, "key '%S': the file ends in its value", &k->name);
    else if (k->type == PDI_GGUF_BOOL && k->data[0] > 1)
        return PDI_FAIL_AT(err, FORMAT, GGUF_BOOL, at, "key '%S' is a bool of value %u", &k->name, (uint64_t)k->data[0]);
    k->data_size = (size_t)(c->p - k->data);
    return PREDIFF_OK;
}

/* Shape, type and size of one tensor; data holds the offset until the data section is known. */
PDI_FN prediff_status pdi_read_tensor(pdi_cursor *c, prediff_tensor *t, uint64_t *offset, prediff_error *err) {
    uint64_t at = PDI_HERE(c);
    size_t elements = 1, row_bytes;
    const pdi_type_info *type;
    uint32_t i;
    PDI_TRY(pdi_read_string(c, &t->name, 64, "a tensor name", err));
    if (t->name.n == 0 || memchr(t->name.bytes, 0, t->name.n)) return PDI_FAIL_AT(err, FORMAT, TENSOR_NAME, at, "tensor name '%S' at byte %u", &t->name, at);
    t->n_dims = pdi_next_u32(c);
    if (c->ok && (t->n_dims < 1 || t->n_dims > 4))
        return PDI_FAIL_AT(err, FORMAT, TENSOR_DIMS, at, "tensor '%S' has %u dimensions; 1 to 4 are possible", &t->name, (uint64_t)t->n_dims);
    for (i = 0; i < 4; i++) {
        uint64_t d = c->ok && i < t->n_dims ? pdi_next_u64(c) : 1;
        t->dims[i] = d;
        if (c->ok && (d == 0 || d > SIZE_MAX || d > INT64_MAX || !pdi_mul(elements, (size_t)d, &elements)))
            return PDI_FAIL_AT(err, FORMAT, TENSOR_DIMS, at, "tensor '%S': dimension %u of size %u is not possible", &t->name, (uint64_t)i, d);
    }
    t->type = pdi_next_u32(c);
    *offset = pdi_next_u64(c);
    if (!c->ok) return PDI_FAIL_AT(err, FORMAT, GGUF_TRUNCATED, at, "the file ends in the description of tensor '%S'", &t->name);
    type = t->type == PDI_NATIVE ? NULL : pdi_type_of(t->type);
    if (!type) return PDI_FAIL_AT(err, UNSUPPORTED, TENSOR_TYPE, at, "tensor '%S' has type %s (%u), which is not read", &t->name, prediff_type_name(t->type), (uint64_t)t->type);
    if (t->dims[0] % type->block) return PDI_FAIL_AT(err, FORMAT, TENSOR_BLOCK, at, "tensor '%S': rows of %u are not whole %s blocks of %u", &t->name, t->dims[0], type->name, (uint64_t)type->block);
    row_bytes = (size_t)t->dims[0] / type->block;
    if (!pdi_mul(row_bytes, type->bytes, &row_bytes) || !pdi_mul(row_bytes, elements / (size_t)t->dims[0], &t->data_size))
        return PDI_FAIL_AT(err, FORMAT, TENSOR_DIMS, at, "tensor '%S' is larger than memory can be", &t->name);
    return PREDIFF_OK;
}

/* In-place heap sort of indices by a strict order; no recursion, no qsort, O(n log n) always. */
PDI_FN void pdi_sort(uint32_t *v, size_t n, int (*before)(const void *ctx, uint32_t a, uint32_t b), const void *ctx) {
    size_t end = n, start = n / 2, root, child;
    uint32_t t;
    while (end > 1) {
        if (start > 0) start--;
        else { end--; t = v[0]; v[0] = v[end]; v[end] = t; }
        for (root = start; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && before(ctx, v[child], v[child + 1])) child++;
            if (!before(ctx, v[root], v[child])) break;
            t = v[root]; v[root] = v[child]; v[child] = t;
        }
    }
}

PDI_FN int pdi_offset_before(const void *tensors, uint32_t a, uint32_t b) {
    const prediff_tensor *t = (const prediff_tensor *)tensors;
    return t[a].data != t[b].data ? t[a].data < t[b].data : a < b;
}

/* general.alignment: any power of two up to 2^20 (the format says multiples of 8; files with less exist). */
PDI_FN prediff_status pdi_gguf_alignment(pdi_gguf *g, prediff_error *err) {
    const prediff_key *k = pdi_find_key(g, "general.alignment");
    uint32_t a = 32;
    if (k && k->type != PDI_GGUF_U32) return PDI_FAIL(err, FORMAT, GGUF_VALUE_TYPE, "key general.alignment is %s, not u32", pdi_gguf_names[k->type]);
    if (k) a = pdi_u32(k->data);
    if (a == 0 || a > 1u << 20 || (a & (a - 1))) return PDI_FAIL(err, FORMAT, GGUF_ALIGNMENT, "general.alignment is %u, not a power of two up to 2^20", (uint64_t)a);
    g->alignment = a;
    return PREDIFF_OK;
}

/* Data offsets: aligned, inside the file, no two tensors on the same bytes. */
PDI_FN prediff_status pdi_gguf_place(pdi_gguf *g, size_t header_size, prediff_error *err) {
    size_t start, i, room;
    if (!pdi_add(header_size, g->alignment - 1, &start)) return PDI_FAIL(err, FORMAT, GGUF_ALIGNMENT, "alignment %u wraps", (uint64_t)g->alignment);
    start -= start % g->alignment;
    room = start < g->size ? g->size - start : 0;
    for (i = 0; i < g->n_tensors; i++) {
        prediff_tensor *t = &g->tensors[i];
        uint64_t off = (uint64_t)(uintptr_t)t->data;
        if (off % g->alignment) return PDI_FAIL_AT(err, FORMAT, TENSOR_OFFSET, off, "tensor '%S': offset %u is not a multiple of %u", &t->name, off, (uint64_t)g->alignment);
        if (off > room || t->data_size > room - (size_t)off)
            return PDI_FAIL_AT(err, FORMAT, TENSOR_DATA, off, "tensor '%S' needs %u bytes at offset %u; the data section has %u (truncated download?)",
                               &t->name, (uint64_t)t->data_size, off, (uint64_t)room);
        t->data = g->bytes + start + (size_t)off;
        g->by_offset[i] = (uint32_t)i;
    }
    pdi_sort(g->by_offset, g->n_tensors, pdi_offset_before, g->tensors);
    for (i = 1; i < g->n_tensors; i++) {
        const prediff_tensor *a = &g->tensors[g->by_offset[i - 1]], *b = &g->tensors[g->by_offset[i]];
        if (a->data + a->data_size > b->data)
            return PDI_FAIL(err, FORMAT, TENSOR_OVERLAP, "tensors '%S' and '%S' overlap", &a->name, &b->name);
    }
    return PREDIFF_OK;
}

/* Reads keys and tensors into the laid-out tables (after pdi_gguf_begin and pdi_gguf_layout). */
PDI_FN prediff_status pdi_gguf_read(pdi_gguf *g, const prediff_limits *lim, prediff_error *err) {
    uint64_t max_string = lim->string_bytes ? lim->string_bytes : 1u << 20;
    pdi_cursor c = g->body;
    const char *wrong;
    size_t i;
    memset(g->key_table, 0, g->key_slots * sizeof *g->key_table);
    memset(g->tensor_table, 0, g->tensor_slots * sizeof *g->tensor_table);
    for (i = 0; i < g->n_keys; i++) {
        PDI_TRY(pdi_read_key(&c, &g->keys[i], max_string, err));
        wrong = pdi_table_add(g->key_table, g->key_slots, g->keys, sizeof *g->keys, i);
        if (wrong) return PDI_FAIL_AT(err, FORMAT, GGUF_KEY_DUPLICATE, PDI_HERE(&c), "key '%S' %s", &g->keys[i].name, wrong);
    }
    PDI_TRY(pdi_gguf_alignment(g, err));
    for (i = 0; i < g->n_tensors; i++) {
        uint64_t offset = 0;
        PDI_TRY(pdi_read_tensor(&c, &g->tensors[i], &offset, err));
        if (offset > SIZE_MAX) return PDI_FAIL(err, FORMAT, TENSOR_OFFSET, "tensor '%S': offset %u is beyond memory", &g->tensors[i].name, offset);
        g->tensors[i].data = (const uint8_t *)(uintptr_t)offset;
        wrong = pdi_table_add(g->tensor_table, g->tensor_slots, g->tensors, sizeof *g->tensors, i);
        if (wrong) return PDI_FAIL(err, FORMAT, TENSOR_DUPLICATE, "tensor '%S' %s", &g->tensors[i].name, wrong);
    }
    return pdi_gguf_place(g, (size_t)PDI_HERE(&c), err);
}

/* -- typed look-ups: absent keys leave *out as it is; a wrong type is FORMAT -- */

PDI_FN prediff_status pdi_key_type_error(const prediff_key *k, const char *wanted, prediff_error *err) {
    return PDI_FAIL(err, FORMAT, GGUF_VALUE_TYPE, "key '%S' is %s%s, not %s", &k->name, k->type == PDI_GGUF_ARRAY ? "an array of " : "",
                    pdi_gguf_names[k->element], wanted);
}

/* Any integer type, as int64; u64 beyond that is out of range. */
PDI_FN prediff_status pdi_key_int(const pdi_gguf *g, const char *name, int64_t *out, prediff_error *err) {
    const prediff_key *k = pdi_find_key(g, name);
    uint64_t u;
    if (!k) return PREDIFF_OK;
    switch (k->type) {
    case PDI_GGUF_U8: *out = k->data[0]; break;
    case PDI_GGUF_I8: *out = (int8_t)k->data[0]; break;
    case PDI_GGUF_U16: *out = (int64_t)pdi_u16(k->data); break;
    case PDI_GGUF_I16: *out = (int16_t)pdi_u16(k->data); break;
    case PDI_GGUF_U32: *out = (int64_t)pdi_u32(k->data); break;
    case PDI_GGUF_I32: *out = (int32_t)pdi_u32(k->data); break;
    case PDI_GGUF_I64: case PDI_GGUF_U64:
        u = pdi_u64(k->data);
        if (k->type == PDI_GGUF_U64 && u > INT64_MAX) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "key '%S' is %u", &k->name, u);
        *out = (int64_t)u;
        break;
    default: return pdi_key_type_error(k, "an integer", err);
    }
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_key_float(const pdi_gguf *g, const char *name, float *out, prediff_error *err) {
    const prediff_key *k = pdi_find_key(g, name);
    if (!k) return PREDIFF_OK;
    if (k->type != PDI_GGUF_F32) return pdi_key_type_error(k, "f32", err);
    *out = pdi_f32(k->data);
    if (!pdi_is_finite(out)) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "key '%S' is not a finite number", &k->name);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_key_bool(const pdi_gguf *g, const char *name, int *out, prediff_error *err) {
    const prediff_key *k = pdi_find_key(g, name);
    if (!k) return PREDIFF_OK;
    if (k->type != PDI_GGUF_BOOL) return pdi_key_type_error(k, "bool", err);
    *out = k->data[0];
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_key_string(const pdi_gguf *g, const char *name, prediff_string *out, prediff_error *err) {
    const prediff_key *k = pdi_find_key(g, name);
    pdi_cursor c;
    if (!k) return PREDIFF_OK;
    if (k->type != PDI_GGUF_STRING) return pdi_key_type_error(k, "a string", err);
    c = pdi_cursor_of(k->data, k->data_size);
    *out = pdi_next_string(&c);
    return PREDIFF_OK;
}

/* An array of one element type; *k stays NULL if absent. */
PDI_FN prediff_status pdi_key_array(const pdi_gguf *g, const char *name, uint32_t element, const prediff_key **k, prediff_error *err) {
    const prediff_key *found = pdi_find_key(g, name);
    if (!found) return PREDIFF_OK;
    if (found->type != PDI_GGUF_ARRAY || found->element != element) return pdi_key_type_error(found, pdi_gguf_names[element], err);
    *k = found;
    return PREDIFF_OK;
}

/* ---- >>HPARAMS: file keys to one checked struct --------------------------------------------------------------------

   Every size the network uses is read here once, with its range. What holds after pdi_read_hparams:
   1 <= layers, heads, ...; heads divide into key/value heads; the rotary size is even; all within limits. */

typedef struct pdi_arch {
    const char *name;
    int gpt2;                          /* LayerNorm, learned positions, fused qkv, GELU; else RMSNorm, rotary, SwiGLU */
    int halves;                        /* rotary pairs (i, i + E/2), else (2i, 2i + 1) */
    int bidirectional, shift;          /* unless prediff.attention or diffusion.shift_logits say otherwise */
} pdi_arch;

static const pdi_arch pdi_archs[] = {
    { "gpt2", 1, 0, 0, 0 }, { "llama", 0, 0, 0, 0 }, { "qwen2", 0, 1, 0, 0 },
    { "dream", 0, 1, 1, 1 },           /* Qwen 2 adapted to diffusion (Ye et al. 2025) */
    { "llada", 0, 0, 1, 0 }            /* trained from nothing as a diffusion model (Nie et al. 2025) */
};

typedef struct pdi_hparams {
    const pdi_arch *arch;              /* NULL: not read */
    size_t n_ctx, n_embd, n_layer, n_head, n_head_kv, head_dim, rope_dim, n_ff, n_vocab;
    float eps, rope_base, rope_factor;
    prediff_attention attention;
    int adapted, shift;
    float rate_scale, rate_min, rate_max;
    size_t noise_dim;
    float noise_scale;
    int noise_normal, noise_redraw;
} pdi_hparams;

/* general.architecture: its name, and whether we run it. */
PDI_FN prediff_status pdi_read_arch(const pdi_gguf *g, pdi_hparams *h, prediff_error *err) {
    prediff_string a = { NULL, 0 };
    size_t i;
    PDI_TRY(pdi_key_string(g, "general.architecture", &a, err));
    if (!a.bytes) return PDI_FAIL(err, FORMAT, ARCH_MISSING, "key general.architecture is missing: not a model file");
    for (i = 0; i < sizeof pdi_archs / sizeof *pdi_archs; i++)
        if (pdi_str_is(a, pdi_archs[i].name)) { h->arch = &pdi_archs[i]; return PREDIFF_OK; }
    return PDI_FAIL(err, UNSUPPORTED, ARCH_UNKNOWN, "architecture '%S' is not supported; gpt2, llama, qwen2, dream and llada are", &a);
}

/* "llama" + ".block_count" into a buffer. */
PDI_FN const char *pdi_arch_key(const pdi_hparams *h, const char *suffix, char *buffer) {
    size_t n = strlen(h->arch->name);
    memcpy(buffer, h->arch->name, n);
    memcpy(buffer + n, suffix, strlen(suffix) + 1);
    return buffer;
}

/* A whole number 1 .. max under "<arch><suffix>"; absent: `absent`, or an error where that is 0. */
PDI_FN prediff_status pdi_read_size(const pdi_gguf *g, const pdi_hparams *h, const char *suffix, size_t absent, uint64_t max, size_t *out, prediff_error *err) {
    char key[96];
    int64_t v = -1;
    pdi_arch_key(h, suffix, key);
    if (!pdi_find_key(g, key)) {
        if (!absent) return PDI_FAIL(err, FORMAT, KEY_MISSING, "key %s is missing", key);
        *out = absent;
        return PREDIFF_OK;
    }
    PDI_TRY(pdi_key_int(g, key, &v, err));
    if (v < 1) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "%s is %i; at least 1 is needed", key, v);
    if ((uint64_t)v > max) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%s is %i; at most %u are accepted", key, v, max);
    *out = (size_t)v;
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_read_rope(const pdi_gguf *g, pdi_hparams *h, prediff_error *err) {
    prediff_string kind = { NULL, 0 };
    char key[96];
    h->rope_base = 10000.0f;
    h->rope_factor = 1.0f;
    PDI_TRY(pdi_read_size(g, h, ".rope.dimension_count", h->head_dim, 65536, &h->rope_dim, err));
    if (h->rope_dim > h->head_dim || h->rope_dim % 2)
        return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "rotary size %u must be even and at most the head size %u", (uint64_t)h->rope_dim, (uint64_t)h->head_dim);
    PDI_TRY(pdi_key_float(g, pdi_arch_key(h, ".rope.freq_base", key), &h->rope_base, err));
    if (!(h->rope_base > 0)) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "%s must be above 0", key);
    PDI_TRY(pdi_key_string(g, pdi_arch_key(h, ".rope.scaling.type", key), &kind, err));
    if (kind.bytes && !pdi_str_is(kind, "none") && !pdi_str_is(kind, "linear"))
        return PDI_FAIL(err, UNSUPPORTED, ROPE_KIND, "rotary scaling '%S' is not supported; linear and rope_freqs are", &kind);
    PDI_TRY(pdi_key_float(g, pdi_arch_key(h, ".rope.scale_linear", key), &h->rope_factor, err));     /* its name in old files */
    PDI_TRY(pdi_key_float(g, pdi_arch_key(h, ".rope.scaling.factor", key), &h->rope_factor, err));
    if (!(h->rope_factor > 0)) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "the rotary scaling factor must be above 0");
    if (kind.bytes && pdi_str_is(kind, "none")) h->rope_factor = 1.0f;
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_choice(const pdi_gguf *g, const char *key, const char *const *names, int n, int *out, prediff_error *err) {
    prediff_string s = { NULL, 0 };
    int i;
    PDI_TRY(pdi_key_string(g, key, &s, err));
    for (i = 0; s.bytes && i < n; i++) if (pdi_str_is(s, names[i])) { *out = i; return PREDIFF_OK; }
    return s.bytes ? PDI_FAIL(err, UNSUPPORTED, PREDIFF_KEY, "key %s has unknown value '%S'", key, &s) : PREDIFF_OK;
}

/* The project's own keys (prediff.*), and what llama.cpp writes for diffusion models. */
PDI_FN prediff_status pdi_read_prediff_keys(const pdi_gguf *g, pdi_hparams *h, prediff_error *err) {
    static const char *const attention[] = { "", "hybrid", "bidirectional", "causal" };
    static const char *const distribution[] = { "uniform", "normal" }, *const lifetime[] = { "fixed", "redraw" };
    int64_t version = 0, noise = 0;
    int causal = 1, kind = 0;
    char key[96];
    PDI_TRY(pdi_key_int(g, "prediff.version", &version, err));
    h->adapted = pdi_find_key(g, "prediff.version") != NULL;
    if (h->adapted && version != 1) return PDI_FAIL(err, UNSUPPORTED, PREDIFF_KEY, "prediff.version is %i; version 1 is read", version);
    PDI_TRY(pdi_choice(g, "prediff.attention", attention, 4, &kind, err));
    PDI_TRY(pdi_key_bool(g, pdi_arch_key(h, ".attention.causal", key), &causal, err));
    h->attention = kind ? (prediff_attention)kind : !causal || h->arch->bidirectional ? PREDIFF_ATTENTION_BIDIRECTIONAL
                 : h->adapted ? PREDIFF_ATTENTION_HYBRID : PREDIFF_ATTENTION_CAUSAL;
    h->shift = h->arch->shift && !h->adapted;
    PDI_TRY(pdi_key_bool(g, "diffusion.shift_logits", &h->shift, err));
    h->rate_scale = h->noise_scale = 1.0f;
    h->rate_min = 0.0f; h->rate_max = 1.0f;
    PDI_TRY(pdi_key_float(g, "prediff.rate.scale", &h->rate_scale, err));
    PDI_TRY(pdi_key_float(g, "prediff.rate.min", &h->rate_min, err));
    PDI_TRY(pdi_key_float(g, "prediff.rate.max", &h->rate_max, err));
    if (!(h->rate_min <= h->rate_max)) return PDI_FAIL(err, FORMAT, PREDIFF_KEY, "prediff.rate.min is above prediff.rate.max");
    PDI_TRY(pdi_key_int(g, "prediff.noise.dim", &noise, err));
    if (noise < 0 || noise > 1 << 20) return PDI_FAIL(err, FORMAT, PREDIFF_KEY, "prediff.noise.dim is %i", noise);
    h->noise_dim = (size_t)noise;
    PDI_TRY(pdi_key_float(g, "prediff.noise.scale", &h->noise_scale, err));
    PDI_TRY(pdi_choice(g, "prediff.noise.distribution", distribution, 2, &h->noise_normal, err));
    return pdi_choice(g, "prediff.noise.lifetime", lifetime, 2, &h->noise_redraw, err);
}

PDI_FN prediff_status pdi_read_hparams(const pdi_gguf *g, pdi_hparams *h, const prediff_limits *lim, prediff_error *err) {
    const prediff_tensor *embd = pdi_find_tensor(g, "token_embd.weight");
    const uint64_t width = 1 << 20;
    int64_t experts = 0;
    size_t value_length;
    char key[96];
    if (!embd) return PDI_FAIL(err, FORMAT, TENSOR_MISSING, "tensor token_embd.weight is missing");
    PDI_TRY(pdi_read_size(g, h, ".context_length", 0, lim->context ? lim->context : 1u << 22, &h->n_ctx, err));
    PDI_TRY(pdi_read_size(g, h, ".embedding_length", 0, width, &h->n_embd, err));
    PDI_TRY(pdi_read_size(g, h, ".block_count", 0, lim->layers ? lim->layers : 1024, &h->n_layer, err));
    PDI_TRY(pdi_read_size(g, h, ".attention.head_count", 0, width, &h->n_head, err));
    PDI_TRY(pdi_read_size(g, h, ".attention.head_count_kv", h->n_head, width, &h->n_head_kv, err));
    PDI_TRY(pdi_read_size(g, h, ".feed_forward_length", 0, width, &h->n_ff, err));
    if (h->n_embd % 2) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "width %u must be even", (uint64_t)h->n_embd);
    if (h->n_head % h->n_head_kv) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "%u heads are not a multiple of %u key/value heads", (uint64_t)h->n_head, (uint64_t)h->n_head_kv);
    if (h->n_embd % h->n_head && !pdi_find_key(g, pdi_arch_key(h, ".attention.key_length", key)))
        return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "width %u is not a multiple of %u heads", (uint64_t)h->n_embd, (uint64_t)h->n_head);
    PDI_TRY(pdi_read_size(g, h, ".attention.key_length", pdi_max(h->n_embd / h->n_head, 1), 65536, &h->head_dim, err));
    PDI_TRY(pdi_read_size(g, h, ".attention.value_length", h->head_dim, 65536, &value_length, err));
    if (h->n_head > width / h->head_dim)                        /* so that products of these sizes fit in 32 bits */
        return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u heads of %u are wider than %u", (uint64_t)h->n_head, (uint64_t)h->head_dim, width);
    if (value_length != h->head_dim) return PDI_FAIL(err, UNSUPPORTED, HPARAM_RANGE, "key and value heads of different sizes");
    h->eps = 1e-5f;
    PDI_TRY(pdi_key_float(g, pdi_arch_key(h, h->arch->gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", key), &h->eps, err));
    if (!(h->eps > 0 && h->eps < 1)) return PDI_FAIL(err, FORMAT, HPARAM_RANGE, "%s must lie between 0 and 1", key);
    PDI_TRY(pdi_key_int(g, pdi_arch_key(h, ".expert_count", key), &experts, err));
    if (experts) return PDI_FAIL(err, UNSUPPORTED, HPARAM_RANGE, "mixtures of experts are not supported");
    if (!h->arch->gpt2) PDI_TRY(pdi_read_rope(g, h, err));
    if (embd->n_dims > 2) return PDI_FAIL(err, FORMAT, TENSOR_SHAPE, "tensor token_embd.weight has %u dimensions", (uint64_t)embd->n_dims);
    if (embd->dims[1] > (lim->vocabulary ? lim->vocabulary : 1u << 22))
        return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "a vocabulary of %u rows is above limits.vocabulary", embd->dims[1]);
    h->n_vocab = (size_t)embd->dims[1];
    return pdi_read_prediff_keys(g, h, err);
}

/* ---- >>TOKENIZER: text to ids and back -----------------------------------------------------------------------------

   Both kinds of tokenizer begin with small symbols and join neighbours, best pair first, until no pair is known:

        byte-level BPE ("gpt2")   text is cut into words by a splitter; a word's symbols are its bytes; the best pair is the one
                                  that comes first in the file's list of merges. Tokens are stored in an alphabet of 256
                                  printable characters, one a byte (" the" is stored as U+0120, t, h, e).
        SentencePiece ("llama")   spaces become U+2581 and the whole text is one word; its symbols are characters; the best pair
                                  is the one whose joined text is the token of the highest score. Characters without a token
                                  become byte tokens <0x00> .. <0xFF>.

   A heap over (rank, position) finds the best pair, so a word of n symbols takes O(n log n). Entries whose pair has changed
   meanwhile are skipped when they come up. Splitters are written by hand: there is no regex engine that text could blow up.

   Text never yields a control token unless PREDIFF_ENCODE_SPECIAL asks for it. User-defined tokens always match in text. */

enum { PDI_TOK_NONE, PDI_TOK_BPE, PDI_TOK_SPM, PDI_TOK_OTHER };
enum { PDI_SPLIT_NONE, PDI_SPLIT_GPT2, PDI_SPLIT_LLAMA3, PDI_SPLIT_SMOLLM, PDI_SPLIT_QWEN2, PDI_SPLIT_OTHER };
enum { PDI_TYPE_NORMAL = 1, PDI_TYPE_UNKNOWN, PDI_TYPE_CONTROL, PDI_TYPE_USER, PDI_TYPE_UNUSED, PDI_TYPE_BYTE };  /* as in GGUF */

typedef struct pdi_merge { int32_t left, right, id; } pdi_merge;

typedef struct pdi_tokenizer {
    int kind, splitter, ready;         /* ready: the tables below are filled */
    size_t n_tokens, n_merges, n_special, slots, merge_slots;
    size_t n_used;                     /* tokens up to the last that is not UNUSED; rows beyond it are never produced */
    prediff_string *tokens;            /* [n_tokens] as stored in the file */
    uint8_t *types;                    /* [n_tokens] */
    uint32_t *ranks;                   /* [n_tokens] SPM: 0 is the best score */
    uint32_t *table;                   /* [slots] hash table text -> id + 1 */
    pdi_merge *merges;                 /* [n_merges] BPE; its index is the rank */
    uint32_t *merge_table;             /* [merge_slots] hash table (left, right) -> index + 1 */
    uint32_t *special;                 /* [n_special] ids of special tokens, sorted by text */
    uint32_t *special_at;              /* [257] those that begin with byte b: special_at[b] .. special_at[b + 1] - 1 */
    uint32_t *letters, *numbers;       /* where \p{L} and \p{N} begin and end, see pdi_in_ranges */
    int32_t *byte_id;                  /* [256] the token of a single byte, -1 = none */
    size_t max_text, max_token_bytes;  /* longest stored text; most bytes the streaming decoder writes for a token */
    int add_bos, add_space_prefix;
    int ignore_merges;                 /* a word that is a token as a whole is taken as it is (Llama 3) */
    int32_t bos, eos, eot, unk, mask;  /* -1 = none */
} pdi_tokenizer;

/* -- reading the keys -- */

PDI_FN int pdi_splitter_of(prediff_string pre) {
    static const char *const names[] = { "gpt-2", "phi-2", "mpt", "olmo", "llama-bpe", "llama3", "llama-v3",
                                         "smollm", "starcoder", "refact", "command-r", "codeshell", "qwen2", "deepseek-r1-qwen" };
    static const uint8_t groups[] = { PDI_SPLIT_GPT2, PDI_SPLIT_GPT2, PDI_SPLIT_GPT2, PDI_SPLIT_GPT2, PDI_SPLIT_LLAMA3, PDI_SPLIT_LLAMA3,
        PDI_SPLIT_LLAMA3, PDI_SPLIT_SMOLLM, PDI_SPLIT_SMOLLM, PDI_SPLIT_SMOLLM, PDI_SPLIT_SMOLLM, PDI_SPLIT_SMOLLM, PDI_SPLIT_QWEN2,
        PDI_SPLIT_QWEN2 };
    size_t i;
    if (!pre.bytes) return PDI_SPLIT_GPT2;
    for (i = 0; i < sizeof groups; i++) if (pdi_str_is(pre, names[i])) return groups[i];
    return PDI_SPLIT_OTHER;
}

PDI_FN const char *pdi_tokenizer_name(const pdi_tokenizer *t) {
    return t->kind == PDI_TOK_BPE ? "gpt2" : t->kind == PDI_TOK_SPM ? "llama" : "";
}

PDI_FN const char *pdi_splitter_name(const pdi_tokenizer *t) {
    static const char *const names[] = { "", "gpt-2", "llama-bpe", "smollm", "qwen2", "" };
    return names[t->splitter];
}

/* A special id. Of files without a token list only the id itself can be checked; a mask may be a row beyond the list, which
   opening a model compares with the embedding. */
PDI_FN prediff_status pdi_special_id(const pdi_tokenizer *t, const pdi_gguf *g, const char *key, int beyond, int32_t *out, prediff_error *err) {
    int64_t id = 0, end = t->n_tokens && !beyond ? (int64_t)t->n_tokens : INT32_MAX;
    *out = -1;
    if (!pdi_find_key(g, key)) return PREDIFF_OK;
    PDI_TRY(pdi_key_int(g, key, &id, err));
    if (id < 0 || id >= end) return PDI_FAIL(err, FORMAT, SPECIAL_ID, "%s is %i; there are %u tokens", key, id, (uint64_t)t->n_tokens);
    *out = (int32_t)id;
    return PREDIFF_OK;
}

typedef struct pdi_tok_keys { const prediff_key *tokens, *scores, *types, *merges; } pdi_tok_keys;

PDI_FN prediff_status pdi_tok_arrays(const pdi_gguf *g, pdi_tok_keys *k, prediff_error *err) {
    memset(k, 0, sizeof *k);
    PDI_TRY(pdi_key_array(g, "tokenizer.ggml.tokens", PDI_GGUF_STRING, &k->tokens, err));
    PDI_TRY(pdi_key_array(g, "tokenizer.ggml.scores", PDI_GGUF_F32, &k->scores, err));
    PDI_TRY(pdi_key_array(g, "tokenizer.ggml.token_type", PDI_GGUF_I32, &k->types, err));
    return pdi_key_array(g, "tokenizer.ggml.merges", PDI_GGUF_STRING, &k->merges, err);
}

/* Do the arrays fit together? Counts what the tables will hold. */
PDI_FN prediff_status pdi_tok_counts(pdi_tokenizer *t, const pdi_tok_keys *k, const prediff_limits *lim, prediff_error *err) {
    uint64_t i, n = k->tokens->count, max = lim->vocabulary ? lim->vocabulary : 1u << 22;
    if (n == 0) return PDI_FAIL(err, FORMAT, TOKENIZER_ARRAY, "tokenizer.ggml.tokens is empty");
    if (n > max || n > INT32_MAX) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u tokens, limits.vocabulary is %u", n, max);
    if (k->scores && k->scores->count != n) return PDI_FAIL(err, FORMAT, TOKENIZER_ARRAY, "%u tokens but %u scores", n, k->scores->count);
    if (k->types && k->types->count != n) return PDI_FAIL(err, FORMAT, TOKENIZER_ARRAY, "%u tokens but %u token types", n, k->types->count);
    if (k->merges && k->merges->count >= UINT32_MAX) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u merges", k->merges->count);
    t->n_tokens = (size_t)n;
    t->n_merges = k->merges ? (size_t)k->merges->count : 0;
    t->n_special = 0;
    t->n_used = k->types ? 0 : (size_t)n;
    for (i = 0; k->types && i < n; i++) {
        uint32_t type = pdi_u32(k->types->data + 4 * i);
        if (type > PDI_TYPE_BYTE) return PDI_FAIL_AT(err, FORMAT, TOKENIZER_ARRAY, i, "token %u has unknown type %i", i, (int64_t)(int32_t)type);
        if (type != PDI_TYPE_UNUSED) t->n_used = (size_t)i + 1;
        t->n_special += type >= PDI_TYPE_UNKNOWN && type <= PDI_TYPE_USER;
    }
    return PREDIFF_OK;
}

/* Reads the tokenizer's keys, their types and counts; allocates nothing. A kind or splitter we do not have is remembered, so
   that the container of such a file can still be listed; pdi_tokenizer_build refuses it. */
PDI_FN prediff_status pdi_tokenizer_check(pdi_tokenizer *t, const pdi_gguf *g, const prediff_limits *lim,
                                          void (*log)(void *user, const char *text), void *log_user, prediff_error *err) {
    prediff_string model = { NULL, 0 }, pre = { NULL, 0 };
    pdi_tok_keys k;
    memset(t, 0, sizeof *t);
    t->bos = t->eos = t->eot = t->unk = t->mask = -1;
    PDI_TRY(pdi_key_string(g, "tokenizer.ggml.model", &model, err));
    PDI_TRY(pdi_key_string(g, "tokenizer.ggml.pre", &pre, err));
    PDI_TRY(pdi_tok_arrays(g, &k, err));
    if (model.bytes && (pdi_str_is(model, "none") || pdi_str_is(model, "no_vocab"))) model.bytes = NULL;
    else if (model.bytes && !k.tokens) return PDI_FAIL(err, FORMAT, KEY_MISSING, "key tokenizer.ggml.tokens is missing");
    else if (!model.bytes && k.tokens) return PDI_FAIL(err, FORMAT, KEY_MISSING, "key tokenizer.ggml.model is missing");
    if (k.tokens) PDI_TRY(pdi_tok_counts(t, &k, lim, err));
    if (model.bytes) t->kind = pdi_str_is(model, "gpt2") ? PDI_TOK_BPE : pdi_str_is(model, "llama") ? PDI_TOK_SPM : PDI_TOK_OTHER;
    if (t->kind == PDI_TOK_BPE) t->splitter = pdi_splitter_of(pre);
    if (t->kind == PDI_TOK_BPE && !pre.bytes && log)
        log(log_user, "tokenizer.ggml.pre is missing: text is split as for GPT-2, which may not be how the model was trained");
    t->add_space_prefix = t->kind == PDI_TOK_SPM;
    t->add_bos = t->kind == PDI_TOK_SPM || t->splitter == PDI_SPLIT_LLAMA3;
    t->ignore_merges = t->splitter == PDI_SPLIT_LLAMA3;
    PDI_TRY(pdi_key_bool(g, "tokenizer.ggml.ignore_merges", &t->ignore_merges, err));
    PDI_TRY(pdi_key_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err));
    PDI_TRY(pdi_key_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err));
    PDI_TRY(pdi_special_id(t, g, "tokenizer.ggml.bos_token_id", 0, &t->bos, err));
    PDI_TRY(pdi_special_id(t, g, "tokenizer.ggml.eos_token_id", 0, &t->eos, err));
    PDI_TRY(pdi_special_id(t, g, "tokenizer.ggml.eot_token_id", 0, &t->eot, err));
    PDI_TRY(pdi_special_id(t, g, "tokenizer.ggml.unknown_token_id", 0, &t->unk, err));
    return pdi_special_id(t, g, "tokenizer.ggml.mask_token_id", 1, &t->mask, err);
}

#ifndef PREDIFF_NO_TOKENIZER

/* -- characters: letters, numbers, white space; nothing else of Unicode is needed -- */

/* Pairs (skip, run) in order of code points: skip those outside the class, then run inside it. Unicode 14.0, the output of
   tools/make_unicode.py. Combining marks are not letters here, as in the regular expressions the tokenizers come from. */
static const uint16_t pdi_letters[1296] = {
    65, 26, 6, 26, 47, 1, 10, 1, 4, 1, 5, 23, 1, 31, 1, 458, 4, 12, 14, 5, 7, 1, 1, 1, 129, 5, 1, 2, 2, 4, 1, 1, 6, 1, 1, 3, 1, 1, 1, 20, 1, 83, 1,
    139, 8, 166, 1, 38, 2, 1, 6, 41, 71, 27, 4, 4, 45, 43, 35, 2, 1, 99, 1, 1, 15, 2, 7, 2, 10, 3, 2, 1, 16, 1, 1, 30, 29, 89, 11, 1, 24, 33, 9, 2,
    4, 1, 5, 22, 4, 1, 9, 1, 3, 1, 23, 25, 7, 11, 5, 24, 1, 6, 17, 42, 58, 54, 3, 1, 18, 1, 7, 10, 15, 16, 4, 8, 2, 2, 2, 22, 1, 7, 1, 1, 3, 4, 3,
    1, 16, 1, 13, 2, 1, 3, 14, 2, 10, 1, 8, 6, 4, 2, 2, 22, 1, 7, 1, 2, 1, 2, 1, 2, 31, 4, 1, 1, 19, 3, 16, 9, 1, 3, 1, 22, 1, 7, 1, 2, 1, 5, 3, 1,
    18, 1, 15, 2, 23, 1, 11, 8, 2, 2, 2, 22, 1, 7, 1, 2, 1, 5, 3, 1, 30, 2, 1, 3, 15, 1, 17, 1, 1, 6, 3, 3, 1, 4, 3, 2, 1, 1, 1, 2, 3, 2, 3, 3, 3,
    12, 22, 1, 52, 8, 1, 3, 1, 23, 1, 16, 3, 1, 26, 3, 2, 1, 2, 2, 30, 1, 4, 8, 1, 3, 1, 23, 1, 10, 1, 5, 3, 1, 31, 2, 1, 2, 15, 2, 17, 9, 1, 3, 1,
    41, 2, 1, 16, 1, 5, 3, 8, 3, 24, 6, 5, 18, 3, 24, 1, 9, 1, 1, 2, 7, 58, 48, 1, 2, 12, 7, 58, 2, 1, 1, 1, 5, 1, 24, 1, 1, 1, 10, 1, 2, 9, 1, 2,
    5, 1, 1, 21, 4, 32, 1, 63, 8, 1, 36, 27, 5, 115, 43, 20, 1, 16, 6, 4, 4, 3, 1, 3, 2, 7, 3, 4, 13, 12, 1, 17, 38, 1, 1, 5, 1, 2, 43, 1, 333, 1,
    4, 2, 7, 1, 1, 1, 4, 2, 41, 1, 4, 2, 33, 1, 4, 2, 7, 1, 1, 1, 4, 2, 15, 1, 57, 1, 4, 2, 67, 37, 16, 16, 86, 2, 6, 3, 620, 2, 17, 1, 26, 5, 75,
    6, 8, 7, 18, 13, 19, 14, 18, 14, 13, 1, 3, 15, 52, 35, 1, 4, 1, 67, 89, 7, 5, 2, 34, 1, 1, 5, 70, 10, 31, 49, 30, 2, 5, 11, 44, 4, 26, 54, 23,
    9, 53, 82, 1, 93, 47, 17, 8, 54, 30, 13, 2, 10, 44, 26, 36, 41, 3, 10, 36, 2, 9, 7, 43, 2, 3, 41, 4, 1, 6, 1, 2, 3, 1, 5, 192, 64, 278, 2, 6, 2,
    38, 2, 6, 2, 8, 1, 1, 1, 1, 1, 1, 1, 31, 2, 53, 1, 7, 1, 1, 3, 3, 1, 7, 3, 4, 2, 6, 4, 13, 5, 3, 1, 7, 116, 1, 13, 1, 16, 13, 101, 1, 4, 1, 2,
    10, 1, 1, 3, 5, 6, 1, 1, 1, 1, 1, 1, 4, 1, 11, 2, 4, 5, 5, 4, 1, 52, 2, 2683, 229, 6, 4, 3, 2, 12, 38, 1, 1, 5, 1, 2, 56, 7, 1, 16, 23, 9, 7, 1,
    7, 1, 7, 1, 7, 1, 7, 1, 7, 1, 7, 1, 7, 80, 1, 469, 2, 42, 5, 5, 2, 4, 86, 6, 3, 1, 90, 1, 4, 5, 43, 1, 94, 17, 32, 48, 16, 512, 6592, 64, 22157,
    67, 46, 2, 269, 3, 16, 10, 2, 20, 47, 16, 31, 2, 70, 49, 9, 2, 103, 2, 64, 5, 2, 1, 1, 1, 5, 24, 16, 1, 3, 1, 4, 1, 23, 29, 52, 14, 50, 62, 6,
    3, 1, 1, 2, 11, 28, 10, 23, 25, 29, 7, 47, 28, 1, 16, 5, 1, 10, 10, 5, 1, 41, 23, 3, 1, 8, 20, 23, 3, 1, 3, 50, 1, 1, 3, 2, 2, 5, 2, 1, 1, 1,
    24, 3, 2, 11, 7, 3, 12, 6, 2, 6, 2, 6, 9, 7, 1, 7, 1, 43, 1, 14, 6, 115, 29, 11172, 12, 23, 4, 49, 8452, 366, 2, 106, 38, 7, 12, 5, 5, 1, 1, 10,
    1, 13, 1, 5, 1, 1, 1, 2, 1, 2, 1, 108, 33, 363, 18, 64, 2, 54, 40, 12, 116, 5, 1, 135, 36, 26, 6, 26, 11, 89, 3, 6, 2, 6, 2, 6, 2, 3, 35, 12, 1,
    26, 1, 19, 1, 2, 1, 15, 2, 14, 34, 123, 389, 29, 3, 49, 47, 32, 13, 20, 1, 8, 6, 38, 10, 30, 2, 36, 4, 8, 48, 158, 18, 36, 4, 36, 4, 40, 8, 52,
    12, 11, 1, 15, 1, 7, 1, 2, 1, 11, 1, 15, 1, 7, 1, 2, 67, 311, 9, 22, 10, 8, 24, 6, 1, 42, 1, 9, 69, 6, 2, 1, 1, 44, 1, 2, 3, 1, 2, 23, 10, 23,
    9, 31, 65, 19, 1, 2, 10, 22, 10, 26, 70, 56, 6, 2, 64, 1, 15, 4, 1, 3, 1, 29, 42, 29, 3, 29, 35, 8, 1, 28, 27, 54, 10, 22, 10, 19, 13, 18, 110,
    73, 55, 51, 13, 51, 13, 36, 348, 42, 6, 2, 78, 29, 10, 1, 8, 22, 42, 18, 46, 21, 27, 23, 12, 53, 57, 2, 2, 1, 13, 45, 32, 25, 26, 36, 29, 1, 2,
    1, 8, 35, 3, 1, 12, 48, 14, 4, 21, 1, 1, 1, 35, 18, 1, 25, 84, 7, 1, 1, 1, 4, 1, 15, 1, 10, 7, 47, 38, 8, 2, 2, 2, 22, 1, 7, 1, 2, 1, 5, 3, 1,
    18, 1, 12, 5, 158, 53, 18, 4, 20, 3, 30, 48, 20, 2, 1, 1, 184, 47, 41, 4, 36, 48, 20, 1, 59, 43, 13, 1, 71, 27, 37, 7, 185, 44, 116, 64, 31, 8,
    2, 1, 2, 8, 1, 2, 1, 24, 15, 1, 1, 1, 94, 8, 2, 39, 16, 1, 1, 1, 28, 1, 10, 40, 7, 1, 21, 1, 11, 46, 19, 1, 18, 73, 263, 9, 1, 37, 17, 1, 49,
    30, 112, 7, 1, 2, 1, 38, 21, 1, 25, 6, 1, 2, 1, 32, 14, 1, 327, 19, 189, 1, 79, 922, 230, 196, 2636, 97, 15, 1071, 4049, 583, 8633, 569, 7, 31,
    17, 79, 17, 30, 18, 48, 16, 4, 31, 21, 5, 19, 688, 64, 128, 75, 5, 1, 66, 13, 64, 2, 1, 1, 28, 6136, 8, 1238, 42, 9, 8935, 4, 1, 7, 1, 2, 1,
    291, 45, 3, 17, 4, 8, 396, 2308, 107, 5, 13, 3, 9, 7, 10, 5990, 85, 1, 71, 1, 2, 2, 1, 2, 2, 2, 4, 1, 12, 1, 1, 1, 7, 1, 65, 1, 4, 2, 8, 1, 7,
    1, 28, 1, 4, 1, 5, 1, 1, 3, 7, 1, 340, 2, 25, 1, 25, 1, 31, 1, 25, 1, 31, 1, 25, 1, 31, 1, 25, 1, 31, 1, 25, 1, 8, 1844, 31, 481, 45, 10, 7, 16,
    1, 321, 30, 18, 44, 1268, 7, 1, 4, 1, 2, 1, 15, 1, 197, 59, 68, 7, 1, 1204, 4, 1, 27, 1, 2, 1, 1, 2, 1, 1, 10, 1, 4, 1, 1, 1, 1, 6, 1, 4, 1, 1,
    1, 1, 1, 1, 3, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 2, 4, 1, 7, 1, 4, 1, 4, 1, 1, 1, 10, 1, 17, 5, 3, 1, 5, 1, 17, 4420, 42720,
    32, 4153, 7, 222, 2, 5762, 14, 7473, 3103, 542, 1506, 4939
};
static const uint16_t pdi_numbers[268] = {
    48, 10, 120, 2, 5, 1, 2, 3, 1441, 10, 134, 10, 198, 10, 412, 10, 118, 10, 4, 6, 108, 10, 118, 10, 118, 10, 2, 6, 110, 13, 115, 10, 8, 7, 103,
    10, 104, 7, 7, 19, 109, 10, 96, 10, 118, 10, 70, 20, 268, 10, 70, 10, 719, 20, 881, 3, 239, 10, 6, 10, 22, 10, 300, 10, 128, 11, 165, 10, 6, 10,
    182, 10, 86, 10, 134, 10, 6, 10, 1046, 1, 3, 6, 6, 10, 198, 51, 2, 5, 726, 60, 78, 22, 630, 30, 1385, 1, 777, 1, 25, 9, 14, 3, 343, 4, 138, 10,
    30, 8, 1, 15, 32, 10, 39, 15, 29536, 10, 188, 10, 320, 6, 154, 10, 38, 10, 198, 10, 22, 10, 86, 10, 406, 10, 21270, 10, 493, 45, 12, 57, 17, 2,
    341, 27, 36, 4, 29, 1, 8, 1, 134, 5, 202, 10, 942, 8, 25, 7, 39, 9, 75, 5, 22, 6, 160, 2, 2, 16, 2, 46, 64, 9, 52, 2, 30, 3, 75, 5, 104, 8, 24,
    8, 41, 7, 330, 6, 48, 10, 294, 31, 158, 10, 42, 4, 112, 7, 134, 30, 128, 10, 60, 10, 144, 10, 7, 20, 251, 10, 342, 10, 118, 10, 374, 10, 102,
    10, 102, 12, 420, 19, 93, 10, 758, 29, 227, 10, 70, 10, 534, 21, 1067, 111, 17905, 10, 86, 10, 134, 10, 1, 7, 798, 23, 25673, 20, 108, 25, 1109,
    50, 2368, 10, 422, 10, 1485, 9, 128, 10, 791, 59, 1, 3, 1, 4, 76, 45, 1, 15, 962, 13, 2787, 10
};

/* Turns (skip, run) pairs into the code points where the class begins and ends by turns. */
PDI_FN void pdi_expand_ranges(const uint16_t *pairs, size_t n, uint32_t *bounds) {
    uint32_t at = 0;
    size_t i;
    for (i = 0; i < n; i++) bounds[i] = at += pairs[i];
}

/* Inside, if an odd number of bounds lies at or below c. */
PDI_FN int pdi_in_ranges(const uint32_t *bounds, size_t n, uint32_t c) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (bounds[mid] <= c) lo = mid + 1;
        else hi = mid;
    }
    return lo % 2 != 0;
}

/* How many bytes the character that begins with `lead` has (0: cannot begin one), and the range of its second byte. */
PDI_FN int pdi_utf8_lead(uint8_t lead, uint8_t *lo, uint8_t *hi) {
    *lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;     /* no overlong forms */
    *hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;     /* no surrogates, nothing above 10FFFF */
    return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

#define PDI_NO_CHAR 0xFFFFFFFFu

/* The character at s (n > 0 bytes) and its length. A byte that is not part of one counts as one strange character. */
PDI_FN uint32_t pdi_char_at(const char *s, size_t n, size_t *length) {
    const uint8_t *p = (const uint8_t *)s;
    uint8_t lo, hi;
    size_t i, len = (size_t)pdi_utf8_lead(p[0], &lo, &hi);
    uint32_t c = len < 2 ? p[0] : p[0] & (0x7Fu >> len);
    *length = 1;
    if (len == 0 || len > n) return PDI_NO_CHAR;
    for (i = 1; i < len; i++) {
        if (p[i] < lo || p[i] > hi) return PDI_NO_CHAR;
        c = c << 6 | (p[i] & 0x3Fu);
        lo = 0x80; hi = 0xBF;
    }
    *length = len;
    return c;
}

PDI_FN size_t pdi_put_char(uint32_t c, char *out) {             /* c below 0x10000 */
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 0x3F)); return 2; }
    out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 0x3F)); out[2] = (char)(0x80 | (c & 0x3F));
    return 3;
}

enum { PDI_CHAR_END, PDI_CHAR_LETTER, PDI_CHAR_NUMBER, PDI_CHAR_SPACE, PDI_CHAR_OTHER };

PDI_FN int pdi_char_class(const pdi_tokenizer *t, uint32_t c) {
    if (c < 0x80) {
        if ((c | 32) >= 'a' && (c | 32) <= 'z') return PDI_CHAR_LETTER;
        if (c >= '0' && c <= '9') return PDI_CHAR_NUMBER;
        return c == ' ' || (c >= 9 && c <= 13) ? PDI_CHAR_SPACE : PDI_CHAR_OTHER;
    }
    if (c == PDI_NO_CHAR) return PDI_CHAR_OTHER;
    if (c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
        c == 0x205F || c == 0x3000) return PDI_CHAR_SPACE;
    if (pdi_in_ranges(t->letters, sizeof pdi_letters / 2, c)) return PDI_CHAR_LETTER;
    return pdi_in_ranges(t->numbers, sizeof pdi_numbers / 2, c) ? PDI_CHAR_NUMBER : PDI_CHAR_OTHER;
}

/* Class of the character at `at` and where the next one begins; PDI_CHAR_END at the end of the text. */
PDI_FN int pdi_class_at(const pdi_tokenizer *t, const char *s, size_t n, size_t at, size_t *next) {
    size_t len;
    uint32_t c;
    *next = at;
    if (at >= n) return PDI_CHAR_END;
    c = pdi_char_at(s + at, n - at, &len);
    *next = at + len;
    return pdi_char_class(t, c);
}

/* -- splitters: each returns the end of the word that begins at `at` < n -- */

/* End of the run of characters of one class, at most `most` of them. */
PDI_FN size_t pdi_run(const pdi_tokenizer *t, const char *s, size_t n, size_t at, int cls, size_t most) {
    size_t next;
    while (most-- && pdi_class_at(t, s, n, at, &next) == cls) at = next;
    return at;
}

/* 's 't 're 've 'm 'll 'd: its length if one stands at s, else 0. fold: capitals too (ASCII only; under a regex engine's
   (?i:) the long s, U+017F, may count as an s: engines differ). */
PDI_FN size_t pdi_contraction(const char *s, size_t n, int fold) {
    char a, b;
    if (n < 2 || s[0] != '\'') return 0;
    a = s[1]; b = n > 2 ? s[2] : 0;
    if (fold && a >= 'A' && a <= 'Z') a = (char)(a + 32);
    if (fold && b >= 'A' && b <= 'Z') b = (char)(b + 32);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space up to the end of the text; before other text its last character is left to the next word. */
PDI_FN size_t pdi_split_space(const pdi_tokenizer *t, const char *s, size_t n, size_t at, int digits_end_text) {
    size_t p = at, last = at, next;
    int cls;
    while ((cls = pdi_class_at(t, s, n, p, &next)) == PDI_CHAR_SPACE) { last = p; p = next; }
    if (cls == PDI_CHAR_END || (digits_end_text && cls == PDI_CHAR_NUMBER)) return p;
    return last > at ? last : p;
}

/* GPT-2:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
   SmolLM: every \p{N} alone first, then the same on what lies between, so a number ends the text for its neighbours. */
PDI_FN size_t pdi_split_gpt2(const pdi_tokenizer *t, const char *s, size_t n, size_t at, int digits_alone) {
    size_t next, len = pdi_contraction(s + at, n - at, 0), from = at + (s[at] == ' ');
    int cls = pdi_class_at(t, s, n, from, &next);
    if (len) return at + len;
    if (cls == PDI_CHAR_NUMBER && digits_alone && from == at) return next;
    if (cls == PDI_CHAR_SPACE || cls == PDI_CHAR_END || (cls == PDI_CHAR_NUMBER && digits_alone))
        return pdi_split_space(t, s, n, at, digits_alone);
    return pdi_run(t, s, n, next, cls, SIZE_MAX);
}

/* Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
   Qwen 2:  the same with \p{N} alone, so most_digits is 1 and not 3. */
PDI_FN size_t pdi_split_llama3(const pdi_tokenizer *t, const char *s, size_t n, size_t at, size_t most_digits) {
    size_t next, after, p, newline = 0, len = pdi_contraction(s + at, n - at, 1);
    int cls = pdi_class_at(t, s, n, at, &next), second;
    if (len) return at + len;
    if (cls == PDI_CHAR_LETTER) return pdi_run(t, s, n, next, cls, SIZE_MAX);
    if (cls == PDI_CHAR_NUMBER) return pdi_run(t, s, n, next, cls, most_digits - 1);
    second = pdi_class_at(t, s, n, next, &after);
    if (second == PDI_CHAR_LETTER && s[at] != '\r' && s[at] != '\n') return pdi_run(t, s, n, after, second, SIZE_MAX);
    if (cls == PDI_CHAR_OTHER || (s[at] == ' ' && second == PDI_CHAR_OTHER)) {
        p = pdi_run(t, s, n, next, PDI_CHAR_OTHER, SIZE_MAX);
        while (p < n && (s[p] == '\r' || s[p] == '\n')) p++;
        return p;
    }
    for (p = at; pdi_class_at(t, s, n, p, &next) == PDI_CHAR_SPACE; p = next)
        if (s[p] == '\r' || s[p] == '\n') newline = next;
    return newline ? newline : pdi_split_space(t, s, n, at, 0);
}

PDI_FN size_t pdi_split(const pdi_tokenizer *t, const char *s, size_t n, size_t at) {
    if (t->splitter == PDI_SPLIT_LLAMA3) return pdi_split_llama3(t, s, n, at, 3);
    if (t->splitter == PDI_SPLIT_QWEN2) return pdi_split_llama3(t, s, n, at, 1);
    return pdi_split_gpt2(t, s, n, at, t->splitter == PDI_SPLIT_SMOLLM);
}

/* -- the alphabet of byte-level tokens: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and on -- */

PDI_FN uint32_t pdi_byte_char(uint32_t b) {
    if (b < 33) return 256 + b;
    if (b > 126 && b < 161) return 289 + (b - 127);
    return b == 173 ? 323 : b;
}

PDI_FN int pdi_char_byte(uint32_t c) {                          /* its inverse; -1: not of the alphabet */
    if (c > 255) return c < 289 ? (int)c - 256 : c < 323 ? (int)c - 289 + 127 : c == 323 ? 173 : -1;
    return pdi_byte_char(c) == c ? (int)c : -1;
}

/* -- token ids to bytes -- */

/* Where text goes: counts everything, keeps what fits. With a decoder, bytes pass through it first. */
typedef struct pdi_writer { char *out; size_t capacity, n; prediff_decoder *stream; } pdi_writer;

PDI_FN pdi_writer pdi_writer_of(char *out, size_t capacity, prediff_decoder *stream) {
    pdi_writer w;
    w.out = out; w.capacity = capacity; w.n = 0; w.stream = stream;
    return w;
}

PDI_FN void pdi_put(pdi_writer *w, const void *bytes, int n) {
    const char *p = (const char *)bytes;
    for (; n > 0; n--, w->n++) if (w->n < w->capacity) w->out[w->n] = *p++;
}

/* One byte into the streaming decoder: whole characters come out, what cannot become one as U+FFFD. */
PDI_FN void pdi_stream_byte(pdi_writer *w, uint8_t b) {
    prediff_decoder *s = w->stream;
    uint8_t lo, hi;
    int len;
    if (s->n_held) {
        len = pdi_utf8_lead(s->held[0], &lo, &hi);
        if (s->n_held == 1 ? b >= lo && b <= hi : (b & 0xC0) == 0x80) {
            s->held[s->n_held++] = b;
            if (s->n_held == len) { pdi_put(w, s->held, len); s->n_held = 0; }
            return;
        }
        pdi_put(w, "\xEF\xBF\xBD", 3);
        s->n_held = 0;
    }
    len = pdi_utf8_lead(b, &lo, &hi);
    if (len == 1) pdi_put(w, &b, 1);
    else if (len == 0) pdi_put(w, "\xEF\xBF\xBD", 3);
    else { s->held[0] = b; s->n_held = 1; }
}

PDI_FN void pdi_write(pdi_writer *w, const char *bytes, size_t n) {
    size_t i;
    for (i = 0; i < n; i++)
        if (w->stream) pdi_stream_byte(w, (uint8_t)bytes[i]);
        else pdi_put(w, bytes + i, 1);
}

/* Tokens that stand for no text: control, and the unknown token. */
PDI_FN int pdi_is_special(const pdi_tokenizer *t, int32_t id) { return t->types[id] == PDI_TYPE_CONTROL || t->types[id] == PDI_TYPE_UNKNOWN; }

/* The value of "<0xHH>", exactly that form; else -1. */
PDI_FN int pdi_byte_token(prediff_string s) {
    int i, v = 0;
    if (s.n != 6 || memcmp(s.bytes, "<0x", 3) != 0 || s.bytes[5] != '>') return -1;
    for (i = 3; i < 5; i++) {
        char c = s.bytes[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The bytes a token stands for. *begun 0: the text begins here, so SentencePiece's leading space is left out. */
PDI_FN void pdi_token_bytes(const pdi_tokenizer *t, int32_t id, int special, int *begun, pdi_writer *w) {
    prediff_string s = t->tokens[id];
    int type = t->types[id], first = !*begun;
    size_t at, len;
    if (type == PDI_TYPE_UNUSED || (pdi_is_special(t, id) && !special)) return;
    *begun = 1;
    if (pdi_is_special(t, id) || type == PDI_TYPE_USER) { pdi_write(w, s.bytes, s.n); return; }
    if (type == PDI_TYPE_BYTE) { char b = (char)pdi_byte_token(s); pdi_write(w, &b, 1); return; }
    for (at = 0; at < s.n; at += len) {
        uint32_t c = pdi_char_at(s.bytes + at, s.n - at, &len);
        if (t->kind == PDI_TOK_SPM && c == 0x2581) {
            if (at > 0 || !first || !t->add_space_prefix) pdi_write(w, " ", 1);
        } else if (t->kind == PDI_TOK_BPE && c != PDI_NO_CHAR && pdi_char_byte(c) >= 0) {
            char b = (char)pdi_char_byte(c);
            pdi_write(w, &b, 1);
        } else pdi_write(w, s.bytes + at, len);
    }
}

/* -- building the tables -- */

PDI_FN void pdi_tokenizer_layout(pdi_tokenizer *t, pdi_arena *a) {
    int bpe = t->kind == PDI_TOK_BPE;
    if (!bpe && t->kind != PDI_TOK_SPM) return;
    t->slots = pdi_table_size(t->n_tokens);
    t->merge_slots = bpe ? pdi_table_size(t->n_merges) : 0;
    t->tokens = (prediff_string *)pdi_take(a, t->n_tokens, sizeof *t->tokens);
    t->types = (uint8_t *)pdi_take(a, t->n_tokens, sizeof *t->types);
    t->table = (uint32_t *)pdi_take(a, t->slots, sizeof *t->table);
    t->special = (uint32_t *)pdi_take(a, t->n_special, sizeof *t->special);
    t->special_at = (uint32_t *)pdi_take(a, 257, sizeof *t->special_at);
    t->byte_id = (int32_t *)pdi_take(a, 256, sizeof *t->byte_id);
    t->ranks = (uint32_t *)pdi_take(a, bpe ? 0 : t->n_tokens, sizeof *t->ranks);
    t->merges = (pdi_merge *)pdi_take(a, bpe ? t->n_merges : 0, sizeof *t->merges);
    t->merge_table = (uint32_t *)pdi_take(a, t->merge_slots, sizeof *t->merge_table);
    t->letters = (uint32_t *)pdi_take(a, bpe ? sizeof pdi_letters / 2 : 0, sizeof *t->letters);
    t->numbers = (uint32_t *)pdi_take(a, bpe ? sizeof pdi_numbers / 2 : 0, sizeof *t->numbers);
}

PDI_FN int32_t pdi_find_token(const pdi_tokenizer *t, const char *s, size_t n) {          /* -1: no such token */
    const void *found = n > t->max_text ? NULL : pdi_table_find(t->table, t->slots, t->tokens, sizeof *t->tokens, s, n);
    return found ? (int32_t)((const prediff_string *)found - t->tokens) : -1;
}

/* A token that text may become by itself. */
PDI_FN int32_t pdi_find_text(const pdi_tokenizer *t, const char *s, size_t n) {
    int32_t id = pdi_find_token(t, s, n);
    return id >= 0 && (t->types[id] == PDI_TYPE_NORMAL || t->types[id] == PDI_TYPE_USER) ? id : -1;
}

/* A score as an integer that orders the other way round, so that the best is least. Total for any bits, NaN included. */
PDI_FN uint32_t pdi_score_rank(uint32_t bits) {
    if (bits == 0x80000000u) bits = 0;                          /* -0 is 0 */
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

PDI_FN prediff_status pdi_build_tokens(pdi_tokenizer *t, const pdi_tok_keys *k, prediff_error *err) {
    pdi_cursor c = pdi_cursor_of(k->tokens->data, k->tokens->data_size);
    const char *wrong;
    size_t i, n = 0;
    memset(t->table, 0, t->slots * sizeof *t->table);
    for (i = 0; i < t->n_tokens; i++) {
        prediff_string s = pdi_next_string(&c);
        uint8_t type = k->types ? (uint8_t)pdi_u32(k->types->data + 4 * i) : (uint8_t)PDI_TYPE_NORMAL;
        if (s.n == 0) return PDI_FAIL_AT(err, FORMAT, TOKEN_EMPTY, i, "token %u is empty", (uint64_t)i);
        if (!k->types && t->kind == PDI_TOK_SPM && pdi_byte_token(s) >= 0) type = PDI_TYPE_BYTE;
        if (type == 0 || (type == PDI_TYPE_BYTE && (t->kind != PDI_TOK_SPM || pdi_byte_token(s) < 0))) type = PDI_TYPE_NORMAL;
        t->tokens[i] = s;
        t->types[i] = type;
        t->max_text = pdi_max(t->max_text, s.n);
        if (t->kind == PDI_TOK_SPM) t->ranks[i] = pdi_score_rank(pdi_u32(k->scores->data + 4 * i));
        if (type >= PDI_TYPE_UNKNOWN && type <= PDI_TYPE_USER && n < t->n_special) t->special[n++] = (uint32_t)i;
        wrong = pdi_table_add(t->table, t->slots, t->tokens, sizeof *t->tokens, i);
        if (wrong) return PDI_FAIL_AT(err, FORMAT, TOKEN_DUPLICATE, i, "token %u, '%S', %s", (uint64_t)i, &t->tokens[i], wrong);
    }
    t->n_special = n;
    return PREDIFF_OK;
}

PDI_FN int pdi_text_before(const void *tokens, uint32_t a, uint32_t b) {
    const prediff_string *s = (const prediff_string *)tokens;
    int order = memcmp(s[a].bytes, s[b].bytes, pdi_min(s[a].n, s[b].n));
    return order ? order < 0 : s[a].n < s[b].n;
}

PDI_FN void pdi_build_special(pdi_tokenizer *t) {
    size_t i, b;
    pdi_sort(t->special, t->n_special, pdi_text_before, t->tokens);
    for (i = b = 0; i < t->n_special; i++)
        for (; b <= (uint8_t)t->tokens[t->special[i]].bytes[0]; b++) t->special_at[b] = (uint32_t)i;
    for (; b < 257; b++) t->special_at[b] = (uint32_t)i;
}

/* Byte tokens may be missing only if an unknown token stands in. (Vocabularies of real models lack bytes that never occur in
   UTF-8, and name one.) */
PDI_FN prediff_status pdi_build_bytes(pdi_tokenizer *t, prediff_error *err) {
    static const char hex[] = "0123456789ABCDEF";
    uint32_t b;
    for (b = 0; b < 256; b++) {
        char s[8] = "<0x00>";
        size_t n = 6;
        int32_t id;
        if (t->kind == PDI_TOK_BPE) n = pdi_put_char(pdi_byte_char(b), s);
        else { s[3] = hex[b >> 4]; s[4] = hex[b & 15]; }
        id = pdi_find_token(t, s, n);
        if (id >= 0 && t->types[id] != (t->kind == PDI_TOK_BPE ? PDI_TYPE_NORMAL : PDI_TYPE_BYTE)) id = -1;
        if (id < 0 && t->unk < 0)
            return PDI_FAIL_AT(err, FORMAT, BYTE_TOKENS, b, "no token for byte %u, and no unknown token to stand for it", (uint64_t)b);
        t->byte_id[b] = id;
    }
    return PREDIFF_OK;
}

PDI_FN size_t pdi_pair_slot(const pdi_tokenizer *t, int32_t left, int32_t right) {
    uint32_t h = (uint32_t)left * 0x9E3779B1u ^ ((uint32_t)right + 0x7F4A7C15u) * 0x85EBCA6Bu;
    h = (h ^ h >> 15) * 0xC2B2AE35u;
    return (h ^ h >> 13) & (t->merge_slots - 1);
}

/* The merge of two tokens, or NULL. */
PDI_FN const pdi_merge *pdi_find_merge(const pdi_tokenizer *t, int32_t left, int32_t right) {
    size_t s = pdi_pair_slot(t, left, right);
    for (; t->merge_table[s]; s = (s + 1) & (t->merge_slots - 1)) {
        const pdi_merge *m = &t->merges[t->merge_table[s] - 1];
        if (m->left == left && m->right == right) return m;
    }
    return NULL;
}

/* The token whose text is s without its byte at `gap`: pdi_find_token without a copy. */
PDI_FN int32_t pdi_find_joined(const pdi_tokenizer *t, prediff_string s, size_t gap) {
    uint32_t h = pdi_hash_more(pdi_hash_more(pdi_hash_begin(), s.bytes, gap), s.bytes + gap + 1, s.n - gap - 1);
    size_t i;
    for (i = pdi_hash_end(h) & (t->slots - 1); t->table[i]; i = (i + 1) & (t->slots - 1)) {
        const prediff_string *o = &t->tokens[t->table[i] - 1];
        if (o->n + 1 == s.n && memcmp(o->bytes, s.bytes, gap) == 0 && memcmp(o->bytes + gap, s.bytes + gap + 1, o->n - gap) == 0)
            return (int32_t)t->table[i] - 1;
    }
    return -1;
}

/* "left right", split at its only space; both halves and the whole must be tokens. */
PDI_FN prediff_status pdi_read_merge(const pdi_tokenizer *t, prediff_string s, size_t i, pdi_merge *m, prediff_error *err) {
    const char *space = (const char *)memchr(s.bytes, ' ', s.n);
    size_t at = space ? (size_t)(space - s.bytes) : 0;
    if (at == 0 || at + 1 == s.n || memchr(space + 1, ' ', s.n - at - 1))
        return PDI_FAIL_AT(err, FORMAT, MERGE, i, "merge %u, '%S', is not two tokens with a space between", (uint64_t)i, &s);
    m->left = pdi_find_token(t, s.bytes, at);
    m->right = pdi_find_token(t, space + 1, s.n - at - 1);
    m->id = pdi_find_joined(t, s, at);
    if (m->left < 0 || m->right < 0) return PDI_FAIL_AT(err, FORMAT, MERGE, i, "merge %u, '%S', names a token that does not exist", (uint64_t)i, &s);
    if (m->id < 0) return PDI_FAIL_AT(err, FORMAT, MERGE, i, "merge %u, '%S', makes a token that does not exist", (uint64_t)i, &s);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_build_merges(pdi_tokenizer *t, const prediff_key *key, prediff_error *err) {
    pdi_cursor c = pdi_cursor_of(key->data, key->data_size);
    size_t i, s, probes;
    memset(t->merge_table, 0, t->merge_slots * sizeof *t->merge_table);
    for (i = 0; i < t->n_merges; i++) {
        pdi_merge *m = &t->merges[i];
        PDI_TRY(pdi_read_merge(t, pdi_next_string(&c), i, m, err));
        if (pdi_find_merge(t, m->left, m->right)) continue;     /* the same pair twice: the first counts */
        s = pdi_pair_slot(t, m->left, m->right);
        for (probes = 0; t->merge_table[s]; s = (s + 1) & (t->merge_slots - 1))
            if (++probes > PDI_MOST_PROBES) return PDI_FAIL_AT(err, FORMAT, MERGE, i, "merge %u collides with too many others", (uint64_t)i);
        t->merge_table[s] = (uint32_t)i + 1;
    }
    return PREDIFF_OK;
}

/* What the streaming decoder can write for one token: alone in a text, stray bytes as U+FFFD. */
PDI_FN void pdi_build_sizes(pdi_tokenizer *t) {
    size_t i;
    for (i = 0; i < t->n_tokens; i++) {
        prediff_decoder s = { { 0, 0, 0, 0 }, 0, 1 };
        pdi_writer w = pdi_writer_of(NULL, 0, &s);
        pdi_token_bytes(t, (int32_t)i, 1, &s.begun, &w);
        t->max_token_bytes = pdi_max(t->max_token_bytes, w.n + (s.n_held ? 3 : 0));
    }
}

/* The keys are read twice, first for the sizes; a mapped file may have changed in between. */
PDI_FN int pdi_tok_same(const pdi_tokenizer *t, const pdi_tok_keys *k) {
    return k->tokens && k->tokens->count == t->n_tokens && (k->merges ? k->merges->count : 0) == t->n_merges &&
           (!k->types || k->types->count == t->n_tokens) && (!k->scores || k->scores->count == t->n_tokens);
}

/* Fills the tables that pdi_tokenizer_layout took; checks all a file can get wrong. */
PDI_FN prediff_status pdi_tokenizer_build(pdi_tokenizer *t, const pdi_gguf *g, prediff_error *err) {
    prediff_string name = { "", 0 };
    pdi_tok_keys k;
    if (t->kind == PDI_TOK_NONE) return PREDIFF_OK;
    if (t->kind == PDI_TOK_OTHER || t->splitter == PDI_SPLIT_OTHER) {
        const char *key = t->kind == PDI_TOK_OTHER ? "tokenizer.ggml.model" : "tokenizer.ggml.pre";
        PDI_TRY(pdi_key_string(g, key, &name, err));
        return PDI_FAIL(err, UNSUPPORTED, TOKENIZER_KIND, "%s '%S' is not supported", key, &name);
    }
    PDI_TRY(pdi_tok_arrays(g, &k, err));
    if (!pdi_tok_same(t, &k)) return PDI_FAIL(err, FORMAT, TOKENIZER_ARRAY, "the file changed while it was read");
    if (t->kind == PDI_TOK_SPM && !k.scores) return PDI_FAIL(err, FORMAT, KEY_MISSING, "key tokenizer.ggml.scores is missing");
    if (t->kind == PDI_TOK_BPE && !k.merges) return PDI_FAIL(err, FORMAT, KEY_MISSING, "key tokenizer.ggml.merges is missing");
    PDI_TRY(pdi_build_tokens(t, &k, err));
    PDI_TRY(pdi_build_bytes(t, err));
    pdi_build_special(t);
    pdi_build_sizes(t);
    t->ready = 1;
    if (t->kind == PDI_TOK_SPM) return PREDIFF_OK;
    pdi_expand_ranges(pdi_letters, sizeof pdi_letters / 2, t->letters);
    pdi_expand_ranges(pdi_numbers, sizeof pdi_numbers / 2, t->numbers);
    return pdi_build_merges(t, k.merges, err);
}

/* -- text to ids -- */

#define PDI_NO_RANK UINT32_MAX

typedef struct pdi_symbol {
    uint32_t prev, next;               /* neighbours in the word; PDI_NO_RANK: none */
    uint32_t begin;                    /* SPM: where its text begins */
    uint32_t rank;                     /* of the pair it makes with the next symbol; PDI_NO_RANK: none, or joined already */
    int32_t id, joined;                /* its token (-1: none); the token that pair would make */
} pdi_symbol;

typedef struct pdi_encoder {
    const pdi_tokenizer *t;
    int32_t *ids; size_t capacity, count;                       /* count runs on beyond capacity */
    pdi_symbol *symbols; size_t n_symbols;
    uint64_t *heap; size_t n_heap;     /* rank << 32 | symbol, least first */
    char *text; size_t n_text;         /* SPM: the word with its spaces replaced; BPE: a word in the alphabet */
    char *plain;                       /* prediff_template: a part of the text without its backslashes */
    void *block; size_t block_size;
} pdi_encoder;

PDI_FN void pdi_emit(pdi_encoder *e, int32_t id) {
    if (e->count < e->capacity) e->ids[e->count] = id;
    e->count++;
}

PDI_FN void pdi_heap_push(pdi_encoder *e, uint64_t v) {
    size_t i = e->n_heap++, up;
    for (; i > 0 && e->heap[up = (i - 1) / 2] > v; i = up) e->heap[i] = e->heap[up];
    e->heap[i] = v;
}

PDI_FN uint64_t pdi_heap_pop(pdi_encoder *e) {
    uint64_t top = e->heap[0], v = e->heap[--e->n_heap];
    size_t i = 0, c;
    while ((c = 2 * i + 1) < e->n_heap) {
        if (c + 1 < e->n_heap && e->heap[c + 1] < e->heap[c]) c++;
        if (e->heap[c] >= v) break;
        e->heap[i] = e->heap[c];
        i = c;
    }
    e->heap[i] = v;
    return top;
}

/* Looks up the pair that symbol i makes with the next one. */
PDI_FN void pdi_offer(pdi_encoder *e, uint32_t i) {
    const pdi_tokenizer *t = e->t;
    pdi_symbol *s = &e->symbols[i];
    s->rank = PDI_NO_RANK;
    if (s->next == PDI_NO_RANK) return;
    if (t->kind == PDI_TOK_BPE) {
        const pdi_merge *m = pdi_find_merge(t, s->id, e->symbols[s->next].id);
        if (!m) return;
        s->rank = (uint32_t)(m - t->merges);
        s->joined = m->id;
    } else {
        uint32_t after = e->symbols[s->next].next;
        size_t end = after == PDI_NO_RANK ? e->n_text : e->symbols[after].begin;
        int32_t id = pdi_find_text(t, e->text + s->begin, end - s->begin);
        if (id < 0) return;
        s->rank = t->ranks[id];
        s->joined = id;
    }
    if (s->rank != PDI_NO_RANK) pdi_heap_push(e, (uint64_t)s->rank << 32 | i);
}

/* Joins pairs, best first. At most n - 1 joins, each taking one entry from the heap and adding two: 2n entries hold all. */
PDI_FN void pdi_join(pdi_encoder *e) {
    uint32_t i;
    e->n_heap = 0;
    for (i = 0; i < e->n_symbols; i++) {
        e->symbols[i].prev = i ? i - 1 : PDI_NO_RANK;
        e->symbols[i].next = i + 1 < e->n_symbols ? i + 1 : PDI_NO_RANK;
    }
    for (i = 0; i < e->n_symbols; i++) pdi_offer(e, i);
    while (e->n_heap) {
        uint64_t top = pdi_heap_pop(e);
        pdi_symbol *s = &e->symbols[(uint32_t)top], *right;
        if (s->rank != (uint32_t)(top >> 32)) continue;         /* that pair is gone */
        right = &e->symbols[s->next];
        s->id = s->joined;
        s->next = right->next;
        right->rank = PDI_NO_RANK;
        if (s->next != PDI_NO_RANK) e->symbols[s->next].prev = (uint32_t)top;
        if (s->prev != PDI_NO_RANK) pdi_offer(e, s->prev);
        pdi_offer(e, (uint32_t)top);
    }
}

/* One byte by itself. Without a token it becomes the unknown token; but where that is a control token (the end of text, in
   most byte-level files), which text must not make, the replacement character U+FFFD. */
PDI_FN void pdi_emit_byte(pdi_encoder *e, uint8_t b) {
    static const uint8_t replacement[] = { 0xEF, 0xBF, 0xBD };
    const pdi_tokenizer *t = e->t;
    size_t i;
    if (t->byte_id[b] >= 0) pdi_emit(e, t->byte_id[b]);
    else if (t->kind == PDI_TOK_SPM || t->types[t->unk] != PDI_TYPE_CONTROL) pdi_emit(e, t->unk);
    else for (i = 0; i < 3; i++) if (t->byte_id[replacement[i]] >= 0) pdi_emit(e, t->byte_id[replacement[i]]);
}

/* A whole word that is a token, where training took whole words first. */
PDI_FN int32_t pdi_whole_word(pdi_encoder *e, const char *s, size_t n) {
    size_t i, k = 0;
    int32_t id;
    if (n > e->t->max_text) return -1;
    for (i = 0; i < n; i++) k += pdi_put_char(pdi_byte_char((uint8_t)s[i]), e->text + k);
    id = pdi_find_token(e->t, e->text, k);
    return id >= 0 && e->t->types[id] == PDI_TYPE_NORMAL ? id : -1;
}

PDI_FN void pdi_encode_word(pdi_encoder *e, const char *s, size_t n) {
    uint32_t i;
    int32_t whole = e->t->ignore_merges ? pdi_whole_word(e, s, n) : -1;
    if (whole >= 0) { pdi_emit(e, whole); return; }
    for (i = 0; i < n; i++) e->symbols[i].id = e->t->byte_id[(uint8_t)s[i]];
    e->n_symbols = n;
    pdi_join(e);
    for (i = 0; i != PDI_NO_RANK; i = e->symbols[i].next)
        if (e->symbols[i].id >= 0) pdi_emit(e, e->symbols[i].id);
        else pdi_emit_byte(e, (uint8_t)s[i]);                   /* never joined, so symbol i is byte i */
}

PDI_FN void pdi_encode_spm(pdi_encoder *e, const char *s, size_t n, int prefix) {
    size_t at, len, k = 0, next;
    uint32_t i;
    if (prefix) { memcpy(e->text, "\xE2\x96\x81", 3); k = 3; }
    for (at = 0; at < n; at++)
        if (s[at] == ' ') { memcpy(e->text + k, "\xE2\x96\x81", 3); k += 3; }
        else e->text[k++] = s[at];
    e->n_text = k;
    e->n_symbols = 0;
    for (at = 0; at < k; at += len) {
        pdi_symbol *y = &e->symbols[e->n_symbols++];
        pdi_char_at(e->text + at, k - at, &len);
        y->begin = (uint32_t)at;
        y->id = pdi_find_text(e->t, e->text + at, len);
    }
    pdi_join(e);
    for (i = 0; i != PDI_NO_RANK; i = e->symbols[i].next) {
        if (e->symbols[i].id >= 0) { pdi_emit(e, e->symbols[i].id); continue; }
        next = e->symbols[i].next == PDI_NO_RANK ? k : e->symbols[e->symbols[i].next].begin;
        for (at = e->symbols[i].begin; at < next; at++) pdi_emit_byte(e, (uint8_t)e->text[at]);
    }
}

/* Text without special tokens. */
PDI_FN void pdi_encode_plain(pdi_encoder *e, const char *s, size_t n, int prefix) {
    size_t at, end;
    if (n == 0) return;
    if (e->t->kind == PDI_TOK_SPM) { pdi_encode_spm(e, s, n, prefix && e->t->add_space_prefix); return; }
    for (at = 0; at < n; at = end) {
        end = pdi_split(e->t, s, n, at);
        pdi_encode_word(e, s + at, end - at);
    }
}

/* First of special[lo .. hi) whose byte at `depth` is b or more. */
PDI_FN size_t pdi_special_from(const pdi_tokenizer *t, size_t lo, size_t hi, size_t depth, uint32_t b) {
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)t->tokens[t->special[mid]].bytes[depth] < b) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The longest special token that s begins with, or -1: the sorted list, narrowed byte by byte. */
PDI_FN int32_t pdi_match_special(const pdi_tokenizer *t, const char *s, size_t n, int control) {
    size_t lo = t->special_at[(uint8_t)s[0]], hi = t->special_at[(uint8_t)s[0] + 1], depth;
    int32_t best = -1;
    for (depth = 1; lo < hi; depth++) {                         /* special[lo .. hi) begin with the first `depth` bytes of s */
        uint32_t id = t->special[lo], b = depth < n ? (uint8_t)s[depth] : 0;
        if (t->tokens[id].n == depth) {                         /* the shortest sorts first */
            if (control || t->types[id] == PDI_TYPE_USER) best = (int32_t)id;
            lo++;
        }
        if (depth == n) break;
        lo = pdi_special_from(t, lo, hi, depth, b);
        hi = pdi_special_from(t, lo, hi, depth, b + 1);
    }
    return best;
}

/* A piece of text. prefix: it begins a text, so a SentencePiece model puts a space before it; and after special tokens. */
PDI_FN void pdi_encode_text(pdi_encoder *e, const char *s, size_t n, int control, int prefix) {
    size_t at = 0, from = 0;
    while (at < n) {
        int32_t id = pdi_match_special(e->t, s + at, n - at, control);
        if (id < 0) { at++; continue; }
        pdi_encode_plain(e, s + from, at - from, prefix);
        pdi_emit(e, id);
        prefix = 1;
        at += e->t->tokens[id].n;
        from = at;
    }
    pdi_encode_plain(e, s + from, n - from, prefix);
}

PDI_FN void pdi_encoder_layout(pdi_encoder *e, size_t n, int plain, pdi_arena *a) {
    size_t symbols = n + 1;                                     /* the space prefix is one more */
    e->symbols = (pdi_symbol *)pdi_take(a, symbols, sizeof *e->symbols);
    e->heap = (uint64_t *)pdi_take(a, symbols, 2 * sizeof *e->heap);
    e->text = (char *)pdi_take(a, symbols, 3);
    e->plain = (char *)pdi_take(a, plain ? n : 0, 1);
}

/* Work memory for texts of n bytes. */
PDI_FN prediff_status pdi_encoder_begin(pdi_encoder *e, const pdi_tokenizer *t, const prediff_allocator *al, size_t n, int plain,
                                        int32_t *ids, size_t capacity, prediff_error *err) {
    pdi_arena a = { NULL, 0, 1 };
    memset(e, 0, sizeof *e);
    e->t = t; e->ids = ids; e->capacity = capacity;
    if (!t->ready) return PDI_FAIL(err, ARG, NO_TOKENIZER, "the model has no tokenizer, or was opened as a container");
    if (n >= UINT32_MAX / 3 - 1) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "a text of %u bytes: encode it in parts below 1 GiB", (uint64_t)n);
    pdi_encoder_layout(e, n, plain, &a);
    if (a.ok && pdi_add(a.used, PDI_ALIGN, &e->block_size)) e->block = pdi_alloc(al, e->block_size);
    if (!e->block) return PDI_FAIL(err, NOMEM, ALLOC, "no memory to encode %u bytes of text", (uint64_t)n);
    a.base = pdi_align_pointer(e->block);
    a.used = 0;
    pdi_encoder_layout(e, n, plain, &a);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_encoder_end(pdi_encoder *e, const prediff_allocator *al, size_t *count, prediff_error *err) {
    pdi_free(al, e->block, e->block_size);
    *count = e->count;
    if (e->count > e->capacity)
        return PDI_FAIL(err, LIMIT, BUFFER_SIZE, "the text is %u tokens, the buffer holds %u", (uint64_t)e->count, (uint64_t)e->capacity);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_encode(const pdi_tokenizer *t, const prediff_allocator *al, const char *text, size_t n, unsigned flags,
                                 int32_t *ids, size_t capacity, size_t *count, prediff_error *err) {
    pdi_encoder e;
    PDI_TRY(pdi_encoder_begin(&e, t, al, n, 0, ids, capacity, err));
    if (flags & PREDIFF_ENCODE_BOS && t->add_bos && t->bos >= 0) pdi_emit(&e, t->bos);
    pdi_encode_text(&e, text, n, (flags & PREDIFF_ENCODE_SPECIAL) != 0, 1);
    return pdi_encoder_end(&e, al, count, err);
}

PDI_FN prediff_status pdi_check_token(const pdi_tokenizer *t, int32_t id, size_t at, prediff_error *err) {
    if (!t->ready) return PDI_FAIL(err, ARG, NO_TOKENIZER, "the model has no tokenizer, or was opened as a container");
    if (id < 0 || (size_t)id >= t->n_tokens)
        return PDI_FAIL_AT(err, ARG, TOKEN_RANGE, at, "token id %i at position %u; there are %u", (int64_t)id, (uint64_t)at, (uint64_t)t->n_tokens);
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_decode(const pdi_tokenizer *t, const int32_t *ids, size_t n, int special, char *text, size_t capacity,
                                 size_t *count, prediff_error *err) {
    pdi_writer w = pdi_writer_of(text, capacity, NULL);
    size_t i;
    int begun = 0;
    for (i = 0; i < n; i++) PDI_TRY(pdi_check_token(t, ids[i], i, err));
    for (i = 0; i < n; i++) pdi_token_bytes(t, ids[i], special, &begun, &w);
    *count = w.n;
    return w.n > capacity ? PDI_FAIL(err, LIMIT, BUFFER_SIZE, "the text has %u bytes, the buffer %u", (uint64_t)w.n, (uint64_t)capacity) : PREDIFF_OK;
}

/* Ends a piece of streamed text: terminates it, or says what it would have needed. */
PDI_FN prediff_status pdi_stream_close(pdi_writer *w, size_t *count, prediff_error *err) {
    *count = w->n;
    if (w->n < w->capacity) { w->out[w->n] = 0; return PREDIFF_OK; }
    if (w->capacity) w->out[0] = 0;
    return PDI_FAIL(err, LIMIT, BUFFER_SIZE, "%u bytes of text and a terminator do not fit in %u", (uint64_t)w->n, (uint64_t)w->capacity);
}

/* The next token of a stream. On error the decoder stays as it was. */
PDI_FN prediff_status pdi_decode_next(const pdi_tokenizer *t, prediff_decoder *s, int32_t id, int special, char *text, size_t capacity,
                                      size_t *count, prediff_error *err) {
    prediff_decoder after = *s;
    pdi_writer w = pdi_writer_of(text, capacity, &after);
    PDI_TRY(pdi_check_token(t, id, 0, err));
    if (s->n_held < 0 || s->n_held > 3) return PDI_FAIL(err, ARG, VALUE_RANGE, "the decoder was not zeroed at the start of its text");
    pdi_token_bytes(t, id, special, &after.begun, &w);
    PDI_TRY(pdi_stream_close(&w, count, err));
    *s = after;
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_decode_end(prediff_decoder *s, char *text, size_t capacity, size_t *count, prediff_error *err) {
    pdi_writer w = pdi_writer_of(text, capacity, NULL);
    if (s->n_held) pdi_put(&w, "\xEF\xBF\xBD", 3);
    PDI_TRY(pdi_stream_close(&w, count, err));
    memset(s, 0, sizeof *s);
    return PREDIFF_OK;
}

/* -- text with gaps -- */

#define PDI_MARK "[MASK:"

/* Where the next "[MASK:" from `at` on begins; n if there is none. *escaped: a backslash stands before it. */
PDI_FN size_t pdi_find_mark(const char *s, size_t n, size_t at, int *escaped) {
    const size_t len = sizeof PDI_MARK - 1;
    for (; at + len <= n; at++)
        if (memcmp(s + at, PDI_MARK, len) == 0) { *escaped = at > 0 && s[at - 1] == '\\'; return at; }
    return n;
}

/* The number of a mark that begins at `at`; its end in *end. */
PDI_FN prediff_status pdi_read_mark(const char *s, size_t n, size_t at, size_t *end, size_t *masks, prediff_error *err) {
    size_t p = at + sizeof PDI_MARK - 1, v = 0, digits = 0;
    for (; p < n && s[p] >= '0' && s[p] <= '9' && v <= 1000000; p++, digits++) v = 10 * v + (size_t)(s[p] - '0');
    if (!digits || p >= n || s[p] != ']' || v < 1 || v > 1000000)
        return PDI_FAIL_AT(err, ARG, TEMPLATE, at, "the mark at byte %u is not [MASK:n] with n from 1 to 1000000", (uint64_t)at);
    *end = p + 1;
    *masks = v;
    return PREDIFF_OK;
}

/* Marks cut the text into parts. A part is copied without its backslashes, then encoded by itself. */
PDI_FN prediff_status pdi_template_parts(pdi_encoder *e, const char *s, size_t n, size_t *n_prompt, prediff_error *err) {
    size_t at = 0, n_part = 0, mark, end = 0, masks = 0;
    int first = 1, escaped = 0;
    while ((mark = pdi_find_mark(s, n, at, &escaped)) < n || at < n) {
        if (mark < n && escaped) {                              /* "...\[MASK:" loses the backslash and stays text */
            memcpy(e->plain + n_part, s + at, mark - 1 - at);
            n_part += mark - 1 - at;
            memcpy(e->plain + n_part, PDI_MARK, sizeof PDI_MARK - 1);
            n_part += sizeof PDI_MARK - 1;
            at = mark + sizeof PDI_MARK - 1;
            continue;
        }
        memcpy(e->plain + n_part, s + at, mark - at);
        n_part += mark - at;
        if (mark < n && n_part > 0 && e->plain[n_part - 1] == ' ') n_part--;     /* the gap's first token has its own space */
        pdi_encode_text(e, e->plain, n_part, 0, first);
        if (first) *n_prompt = e->count;
        if (mark == n) return PREDIFF_OK;
        PDI_TRY(pdi_read_mark(s, n, mark, &end, &masks, err));
        while (masks--) pdi_emit(e, PREDIFF_MASK);
        at = end;
        n_part = 0;
        first = 0;
    }
    if (n_part) pdi_encode_text(e, e->plain, n_part, 0, first);
    if (first) *n_prompt = e->count;
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_template(const pdi_tokenizer *t, const prediff_allocator *al, const char *text, size_t n, unsigned flags,
                                   int32_t *ids, size_t capacity, size_t *count, size_t *n_prompt, prediff_error *err) {
    pdi_encoder e;
    prediff_status s, end;
    PDI_TRY(pdi_encoder_begin(&e, t, al, n, 1, ids, capacity, err));
    *n_prompt = 0;
    if (flags & PREDIFF_ENCODE_BOS && t->add_bos && t->bos >= 0) pdi_emit(&e, t->bos);
    s = pdi_template_parts(&e, text, n, n_prompt, err);
    end = pdi_encoder_end(&e, al, count, s ? NULL : err);
    return s ? s : end;
}

#undef PDI_MARK
#undef PDI_NO_RANK
#undef PDI_NO_CHAR

#else /* PREDIFF_NO_TOKENIZER: ids only */

PDI_FN void pdi_tokenizer_layout(pdi_tokenizer *t, pdi_arena *a) { (void)t; (void)a; }
PDI_FN prediff_status pdi_tokenizer_build(pdi_tokenizer *t, const pdi_gguf *g, prediff_error *err) {
    (void)g; (void)err;
    t->kind = PDI_TOK_NONE;
    t->splitter = PDI_SPLIT_NONE;
    return PREDIFF_OK;
}

#endif /* PREDIFF_NO_TOKENIZER */

/* ---- >>MODEL: tensors bound by name and shape ----------------------------------------------------------------------

   Matrices stay in the file's bytes, in the file's type; vectors (norms, biases) become float arrays of the model's block.
   Tensor names are llama.cpp's; the additions are prediff.*. A matrix [N][K] maps K inputs to N outputs. */

typedef struct pdi_weight {            /* [n][k]; data NULL: not in this model */
    const uint8_t *data;
    uint32_t type;
    size_t row_bytes, n, k;
    const float *bias;                 /* [n] or NULL */
} pdi_weight;

typedef struct pdi_layer {
    const float *attn_norm, *attn_norm_bias, *ffn_norm, *ffn_norm_bias;      /* [D] */
    pdi_weight qkv[3];                 /* llama: [H*E][D], [K*E][D], [K*E][D]; gpt2: one of [3D][D] */
    pdi_weight attn_output;            /* [D][H*E] */
    pdi_weight ffn_gate, ffn_up;       /* [F][D]; gpt2 has no gate */
    pdi_weight ffn_down;               /* [D][F] */
} pdi_layer;

struct prediff_model {
    pdi_gguf gguf;
    pdi_hparams hp;
    pdi_tokenizer tok;
    pdi_layer *layers;                 /* [L] */
    pdi_weight token_embd, output;     /* [V][D]; output = token_embd if tied */
    pdi_weight position_embd;          /* gpt2: [context][D] */
    const float *output_norm, *output_norm_bias, *rope_freqs;   /* [D], [D], [rope/2] divisors or NULL */
    const float *mask;                 /* [D] mask vector, NULL = none */
    pdi_weight rate[2], selfcond, noise[2];
    int32_t mask_token;                /* vocabulary row that is the mask, -1 = none */
    size_t n_bound;                    /* tensors bound, to find strangers */
    int runnable;                      /* 0: vocabulary or container only */
    prediff_allocator allocator;
    void *block; size_t block_size;    /* this object */
    void *image; size_t image_held;    /* the file's bytes if we own them */
    int image_mapped;
    char name[64];
};

/* The bytes of a file (IO section). */
PDI_FN prediff_status pdi_load_file(const char *path, int map, const prediff_allocator *a, void **data, size_t *size, size_t *held, int *mapped, prediff_error *err);
PDI_FN void pdi_unload_file(const prediff_allocator *a, void *data, size_t held, int mapped);

/* -- binding: each function is called in both passes of the arena (see pdi_take) -- */

typedef struct pdi_binder { prediff_model *m; pdi_arena *arena; int in_place; const char *prefix; prediff_error *err; } pdi_binder;     /* in_place: tensors are floats; vectors are not copied */

PDI_FN const prediff_tensor *pdi_bind_find(pdi_binder *b, const char *name, char full[80]) {
    size_t n = strlen(b->prefix);
    const prediff_tensor *t;
    memcpy(full, b->prefix, n);
    memcpy(full + n, name, strlen(name) + 1);
    t = pdi_find_tensor(&b->m->gguf, full);
    if (t) b->m->n_bound++;
    return t;
}

PDI_FN prediff_status pdi_shape_error(pdi_binder *b, const prediff_tensor *t, size_t n, size_t k) {
    return PDI_FAIL(b->err, FORMAT, TENSOR_SHAPE, "tensor '%S' is [%u][%u], expected [%u][%u]", &t->name, t->dims[1], t->dims[0], (uint64_t)n, (uint64_t)k);
}

/* A vector of n floats; optional ones may be missing. */
PDI_FN prediff_status pdi_bind_vector(pdi_binder *b, const char *name, size_t n, int optional, const float **out) {
    char full[80];
    const prediff_tensor *t = pdi_bind_find(b, name, full);
    float *v;
    if (!t) return optional ? PREDIFF_OK : PDI_FAIL(b->err, FORMAT, TENSOR_MISSING, "tensor %s is missing", full);
    if (t->dims[0] != n || t->dims[1] * t->dims[2] * t->dims[3] != 1) return pdi_shape_error(b, t, 1, n);
    if (b->in_place) { *out = (const float *)(const void *)t->data; return PREDIFF_OK; }
    v = (float *)pdi_take(b->arena, n, sizeof *v);
    if (v) pdi_kernels_scalar()->dequantize(t->type, t->data, v, n);
    *out = v;
    return PREDIFF_OK;
}

/* "name.weight" [n][k] and, if present, "name.bias" [n]. */
PDI_FN prediff_status pdi_bind(pdi_binder *b, const char *name, size_t n, size_t k, int optional, pdi_weight *w) {
    char full[80], part[64];
    size_t len = strlen(name);
    const prediff_tensor *t;
    memcpy(part, name, len);
    memcpy(part + len, ".weight", 8);
    t = pdi_bind_find(b, part, full);
    if (!t) return optional ? PREDIFF_OK : PDI_FAIL(b->err, FORMAT, TENSOR_MISSING, "tensor %s is missing", full);
    if (t->dims[0] != k || t->dims[1] != n || t->dims[2] != 1 || t->dims[3] != 1) return pdi_shape_error(b, t, n, k);
    w->data = t->data; w->type = t->type; w->n = n; w->k = k;
    w->row_bytes = k / pdi_type_of(t->type)->block * pdi_type_of(t->type)->bytes;
    memcpy(part + len, ".bias", 6);
    return pdi_bind_vector(b, part, n, 1, &w->bias);
}

PDI_FN prediff_status pdi_bind_layer(pdi_binder *b, pdi_layer *y) {
    const pdi_hparams *h = &b->m->hp;
    size_t d = h->n_embd, q = h->n_head * h->head_dim, kv = h->n_head_kv * h->head_dim;
    int gpt2 = h->arch->gpt2;
    PDI_TRY(pdi_bind_vector(b, "attn_norm.weight", d, 0, &y->attn_norm));
    PDI_TRY(pdi_bind_vector(b, "ffn_norm.weight", d, 0, &y->ffn_norm));
    if (gpt2) {
        PDI_TRY(pdi_bind_vector(b, "attn_norm.bias", d, 0, &y->attn_norm_bias));
        PDI_TRY(pdi_bind_vector(b, "ffn_norm.bias", d, 0, &y->ffn_norm_bias));
        PDI_TRY(pdi_bind(b, "attn_qkv", q + 2 * kv, d, 0, &y->qkv[0]));
    } else {
        PDI_TRY(pdi_bind(b, "attn_q", q, d, 0, &y->qkv[0]));
        PDI_TRY(pdi_bind(b, "attn_k", kv, d, 0, &y->qkv[1]));
        PDI_TRY(pdi_bind(b, "attn_v", kv, d, 0, &y->qkv[2]));
        PDI_TRY(pdi_bind(b, "ffn_gate", h->n_ff, d, 0, &y->ffn_gate));
    }
    PDI_TRY(pdi_bind(b, "attn_output", d, q, 0, &y->attn_output));
    PDI_TRY(pdi_bind(b, "ffn_up", h->n_ff, d, 0, &y->ffn_up));
    return pdi_bind(b, "ffn_down", d, h->n_ff, 0, &y->ffn_down);
}

/* The four groups of additions, each optional (PreDiff-LM; infinite mask: Yoo et al. 2026). */
PDI_FN prediff_status pdi_bind_additions(pdi_binder *b) {
    prediff_model *m = b->m;
    size_t d = m->hp.n_embd, n = m->hp.noise_dim;
    m->mask = NULL;
    PDI_TRY(pdi_bind_vector(b, "prediff.mask.weight", d, 1, &m->mask));
    PDI_TRY(pdi_bind(b, "prediff.rate.0", 4 * d, d, 1, &m->rate[0]));
    if (m->rate[0].data) PDI_TRY(pdi_bind(b, "prediff.rate.2", d, 4 * d, 0, &m->rate[1]));
    PDI_TRY(pdi_bind(b, "prediff.selfcond", d, d, 1, &m->selfcond));
    if (n) {
        PDI_TRY(pdi_bind(b, "prediff.noise.0", 4 * d, n, 0, &m->noise[0]));
        PDI_TRY(pdi_bind(b, "prediff.noise.2", d, 4 * d, 0, &m->noise[1]));
    }
    if (m->rate[0].data && d < 4) return PDI_FAIL(b->err, FORMAT, HPARAM_RANGE, "a rate embedding needs a width of at least 4");
    return PREDIFF_OK;
}

/* Tensors of a layer that we do not know mean another kind of model: running it without them would print garbage. Other tensors
   that were not bound are ignored. */
PDI_FN prediff_status pdi_refuse_strangers(pdi_binder *b) {
    const pdi_gguf *g = &b->m->gguf;
    size_t i;
    for (i = 0; i < g->n_tensors && b->m->n_bound < g->n_tensors; i++) {
        const prediff_string *s = &g->tensors[i].name;
        static const char *const known[] = { "attn_norm.", "ffn_norm.", "attn_qkv.", "attn_q.", "attn_k.", "attn_v.", "ffn_gate.", "attn_output.", "ffn_up.", "ffn_down." };
        size_t at = 4, k;
        if (s->n < 6 || memcmp(s->bytes, "blk.", 4) != 0) continue;
        while (at < s->n && s->bytes[at] != '.') at++;
        for (k = 0, at++; k < sizeof known / sizeof *known; k++)
            if (s->n >= at + strlen(known[k]) && memcmp(s->bytes + at, known[k], strlen(known[k])) == 0) break;
        if (k == sizeof known / sizeof *known)
            return PDI_FAIL(b->err, UNSUPPORTED, TENSOR_NAME, "tensor '%S' is not part of a %s model we know", s, b->m->hp.arch->name);
    }
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_bind_model(prediff_model *m, pdi_arena *arena, int in_place, prediff_error *err) {
    const pdi_hparams *h = &m->hp;
    pdi_binder b;
    size_t i;
    char prefix[32];
    b.m = m; b.arena = arena; b.in_place = in_place; b.prefix = ""; b.err = err;
    m->n_bound = 0;
    m->layers = (pdi_layer *)pdi_take(arena, h->n_layer, sizeof *m->layers);
    if (!arena->ok) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u layers do not fit in memory", (uint64_t)h->n_layer);
    PDI_TRY(pdi_bind(&b, "token_embd", h->n_vocab, h->n_embd, 0, &m->token_embd));
    PDI_TRY(pdi_bind(&b, "output", h->n_vocab, h->n_embd, 1, &m->output));
    if (!m->output.data) m->output = m->token_embd;
    PDI_TRY(pdi_bind_vector(&b, "output_norm.weight", h->n_embd, 0, &m->output_norm));
    if (h->arch->gpt2) {
        PDI_TRY(pdi_bind_vector(&b, "output_norm.bias", h->n_embd, 0, &m->output_norm_bias));
        PDI_TRY(pdi_bind(&b, "position_embd", h->n_ctx, h->n_embd, 0, &m->position_embd));
    } else PDI_TRY(pdi_bind_vector(&b, "rope_freqs.weight", h->rope_dim / 2, 1, &m->rope_freqs));
    PDI_TRY(pdi_bind_additions(&b));
    for (i = 0; i < h->n_layer; i++) {
        pdi_layer scratch, *y = m->layers ? &m->layers[i] : &scratch;
        size_t k = sizeof prefix - 1, v = i;
        memset(y, 0, sizeof *y);
        prefix[k] = 0;
        prefix[--k] = '.';
        do { prefix[--k] = (char)('0' + v % 10); v /= 10; } while (v);
        memcpy(prefix + k - 4, "blk.", 4);
        b.prefix = prefix + k - 4;
        PDI_TRY(pdi_bind_layer(&b, y));
    }
    return pdi_refuse_strangers(&b);
}

/* The id whose row stands for the mask: from the desc, else the file; only where the file has no mask vector. */
PDI_FN prediff_status pdi_choose_mask(prediff_model *m, const prediff_model_desc *d, prediff_error *err) {
    int64_t id = d->mask_token ? *d->mask_token : m->tok.mask;
    m->mask_token = -1;
    if (m->mask || (id < 0 && !d->mask_token)) return PREDIFF_OK;
    if (id < 0 || (uint64_t)id >= m->hp.n_vocab)
        return PDI_FAIL(err, ARG, SPECIAL_ID, "mask id %i is outside the vocabulary of %u", id, (uint64_t)m->hp.n_vocab);
    if (!d->mask_token && id == m->tok.eos) return PDI_FAIL(err, ARG, MASK_IS_EOS, "the mask id %i is also the end of text; give desc.mask_token", id);
    m->mask_token = (int32_t)id;
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_check_vocabulary(const prediff_model *m, prediff_error *err) {
    if (m->tok.n_tokens > m->hp.n_vocab)
        return PDI_FAIL(err, FORMAT, VOCAB_SIZE, "the tokenizer has %u tokens, the embedding only %u rows", (uint64_t)m->tok.n_tokens, (uint64_t)m->hp.n_vocab);
    return PREDIFF_OK;
}

enum { PDI_OPEN_CONTAINER, PDI_OPEN_VOCABULARY, PDI_OPEN_MODEL };

/* Reads sizes that need look-ups: architecture, tokenizer counts, hyper-parameters. */
PDI_FN prediff_status pdi_model_inspect(prediff_model *m, const prediff_model_desc *d, int what, prediff_error *err) {
    int64_t parts = 1, part = 0;
    PDI_TRY(pdi_key_int(&m->gguf, "split.count", &parts, err));
    PDI_TRY(pdi_key_int(&m->gguf, "split.no", &part, err));
    if (parts > 1) return PDI_FAIL(err, UNSUPPORTED, GGUF_SPLIT, "part %i of %i of a split model: join the parts first", part + 1, parts);
    if (what != PDI_OPEN_VOCABULARY) PDI_TRY(pdi_read_arch(&m->gguf, &m->hp, err));
    PDI_TRY(pdi_tokenizer_check(&m->tok, &m->gguf, &d->limits, what == PDI_OPEN_CONTAINER ? NULL : d->log, d->log_user, err));
    return what == PDI_OPEN_MODEL ? pdi_read_hparams(&m->gguf, &m->hp, &d->limits, err) : PREDIFF_OK;
}

PDI_FN prediff_status pdi_model_fill(prediff_model *m, pdi_arena *a, const prediff_model_desc *d, int what, prediff_error *err) {
    prediff_string name = { "", 0 };
    const prediff_key *k;
    size_t n;
    PDI_TRY(pdi_gguf_read(&m->gguf, &d->limits, err));
    k = pdi_find_key(&m->gguf, "general.name");
    if (k && k->type == PDI_GGUF_STRING) pdi_key_string(&m->gguf, "general.name", &name, NULL);
    for (n = 0; n < name.n && n + 1 < sizeof m->name; n++) m->name[n] = name.bytes[n] >= 32 && name.bytes[n] < 127 ? name.bytes[n] : '?';
    m->name[n] = 0;
    if (what != PDI_OPEN_CONTAINER) PDI_TRY(pdi_tokenizer_build(&m->tok, &m->gguf, err));
    if (what != PDI_OPEN_MODEL) return PREDIFF_OK;
    PDI_TRY(pdi_bind_model(m, a, 0, err));
    PDI_TRY(pdi_check_vocabulary(m, err));
    PDI_TRY(pdi_choose_mask(m, d, err));
    m->runnable = 1;
    return PREDIFF_OK;
}

/* First on a temporary table block, to learn the sizes; then the object's own block, read again. */
PDI_FN prediff_status pdi_model_build(prediff_model **out, prediff_model *draft, const prediff_model_desc *d, int what, prediff_error *err) {
    const prediff_allocator *al = &draft->allocator;
    pdi_arena tables = { NULL, 0, 1 }, whole = { NULL, 0, 1 };
    uint8_t *temporary = NULL;
    prediff_model *m;
    void *block;
    prediff_status s;
    size_t size = 0;
    pdi_gguf_layout(&draft->gguf, &tables);
    if (tables.ok) temporary = (uint8_t *)pdi_alloc(al, tables.used + PDI_ALIGN);
    if (!temporary) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for the file's tables (%u bytes)", (uint64_t)tables.used);
    size = tables.used + PDI_ALIGN;
    tables.base = pdi_align_pointer(temporary);
    tables.used = 0;
    pdi_gguf_layout(&draft->gguf, &tables);
    s = pdi_gguf_read(&draft->gguf, &d->limits, err);
    if (!s) s = pdi_model_inspect(draft, d, what, err);
    if (!s) {                                                   /* count; the tables stay readable for binding */
        pdi_gguf kept = draft->gguf;
        pdi_take(&whole, 1, sizeof *m);
        pdi_gguf_layout(&draft->gguf, &whole);
        draft->gguf = kept;
        if (what != PDI_OPEN_CONTAINER) pdi_tokenizer_layout(&draft->tok, &whole);
        if (what == PDI_OPEN_MODEL) s = pdi_bind_model(draft, &whole, 0, err);
    }
    pdi_free(al, temporary, size);
    if (s) return s;
    block = whole.ok && pdi_add(whole.used, PDI_ALIGN, &size) ? pdi_alloc(al, size) : NULL;
    if (!block) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for the model's tables (%u bytes)", (uint64_t)whole.used);
    whole.base = pdi_align_pointer(block);
    whole.used = 0;
    m = (prediff_model *)pdi_take(&whole, 1, sizeof *m);
    *m = *draft;
    m->block = block;
    m->block_size = size;
    pdi_gguf_layout(&m->gguf, &whole);
    if (what != PDI_OPEN_CONTAINER) pdi_tokenizer_layout(&m->tok, &whole);
    s = pdi_model_fill(m, &whole, d, what, err);
    if (s) pdi_free(al, block, size);
    else *out = m;
    return s;
}

PDI_FN prediff_status pdi_open(prediff_model **out, const prediff_model_desc *d, int what, prediff_error *err) {
    prediff_model draft;
    prediff_status s;
    const void *bytes;
    size_t size;
    if (!out) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "out is NULL");
    *out = NULL;
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    if (!d->data == !d->path) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "give exactly one of desc.data and desc.path");
    memset(&draft, 0, sizeof draft);
    draft.allocator = d->allocator;
    bytes = d->data; size = d->size;
    if (d->path) {
        PDI_TRY(pdi_load_file(d->path, d->map, &draft.allocator, &draft.image, &size, &draft.image_held, &draft.image_mapped, err));
        bytes = draft.image;
    } else if (d->copy && size) {
        draft.image = pdi_alloc(&draft.allocator, size);
        if (!draft.image) return PDI_FAIL(err, NOMEM, ALLOC, "no memory to copy the file's %u bytes", (uint64_t)size);
        memcpy(draft.image, bytes, size);
        bytes = draft.image; draft.image_held = size;
    }
    s = pdi_gguf_begin(&draft.gguf, bytes, size, &d->limits, err);
    if (!s) s = pdi_model_build(out, &draft, d, what, err);
    if (s) pdi_unload_file(&draft.allocator, draft.image, draft.image_held, draft.image_mapped);
    return s;
}

PDI_DEF prediff_status prediff_model_open(prediff_model **out, const prediff_model_desc *d, prediff_error *err) {
    return pdi_open(out, d, d && d->vocab_only ? PDI_OPEN_VOCABULARY : PDI_OPEN_MODEL, err);
}

PDI_DEF prediff_status prediff_container_open(prediff_model **out, const prediff_model_desc *d, prediff_error *err) {
    return pdi_open(out, d, PDI_OPEN_CONTAINER, err);
}

PDI_DEF void prediff_model_close(prediff_model *m) {
    prediff_allocator al;
    if (!m) return;
    al = m->allocator;
    pdi_unload_file(&al, m->image, m->image_held, m->image_mapped);
    pdi_free(&al, m->block, m->block_size);
}

PDI_DEF void prediff_container_get(const prediff_model *m, prediff_container *out) {
    out->version = m->gguf.version;
    out->keys = m->gguf.keys;       out->n_keys = m->gguf.n_keys;
    out->tensors = m->gguf.tensors; out->n_tensors = m->gguf.n_tensors;
    out->alignment = m->gguf.alignment;
}

PDI_DEF void prediff_model_get_info(const prediff_model *m, prediff_model_info *info) {
    const pdi_hparams *h = &m->hp;
    size_t i;
    memset(info, 0, sizeof *info);
    info->architecture = h->arch ? h->arch->name : ""; info->name = m->name;
    info->n_vocab = h->n_vocab; info->n_tokens = m->tok.n_tokens;
    info->n_ctx = h->n_ctx; info->n_embd = h->n_embd; info->n_layer = h->n_layer; info->n_head = h->n_head;
    info->n_head_kv = h->n_head_kv; info->n_head_dim = h->head_dim; info->n_ff = h->n_ff;
    for (i = 0; i < m->gguf.n_tensors; i++) {
        const prediff_tensor *t = &m->gguf.tensors[i];
        info->n_params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        info->weight_bytes += t->data_size;
    }
    info->noise_dim = h->noise_dim;
    info->adapted = h->adapted;
    info->has_mask = m->mask != NULL || (m->runnable && m->mask_token >= 0);
    info->has_rate = m->rate[0].data != NULL;
    info->has_selfcond = m->selfcond.data != NULL;
    info->shift = h->shift;
    info->attention = h->attention;
    info->noise = !h->noise_dim ? PREDIFF_NOISE_DEFAULT : h->noise_redraw ? PREDIFF_NOISE_REDRAW : PREDIFF_NOISE_FIXED;
    info->bos = m->tok.bos; info->eos = m->tok.eos; info->eot = m->tok.eot;
    info->mask = m->runnable ? m->mask_token : m->tok.mask;
    info->add_bos = m->tok.add_bos;
    info->tokenizer = pdi_tokenizer_name(&m->tok);
    info->splitter = pdi_splitter_name(&m->tok);
}

/* -- text: the public functions of section TOKENIZER -- */

PDI_DEF int prediff_token_ends(const prediff_model *m, int32_t id) { return id >= 0 && (id == m->tok.eos || id == m->tok.eot); }

#ifndef PREDIFF_NO_TOKENIZER

PDI_DEF prediff_status prediff_encode(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                      int32_t *ids, size_t capacity, size_t *count, prediff_error *err) {
    if (!m || !count || (!text && n) || (!ids && capacity)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "model, text, ids or count is NULL");
    *count = 0;
    return pdi_encode(&m->tok, &m->allocator, text, n, flags, ids, capacity, count, err);
}

PDI_DEF prediff_status prediff_template(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                        int32_t *ids, size_t capacity, size_t *count, size_t *n_prompt, prediff_error *err) {
    if (!m || !count || !n_prompt || (!text && n) || (!ids && capacity))
        return PDI_FAIL(err, ARG, NULL_ARGUMENT, "model, text, ids, count or n_prompt is NULL");
    *count = *n_prompt = 0;
    if (flags & PREDIFF_ENCODE_SPECIAL) return PDI_FAIL(err, ARG, VALUE_RANGE, "a template takes no PREDIFF_ENCODE_SPECIAL");
    return pdi_template(&m->tok, &m->allocator, text, n, flags, ids, capacity, count, n_prompt, err);
}

PDI_DEF prediff_status prediff_decode(const prediff_model *m, const int32_t *ids, size_t n, int special,
                                      char *text, size_t capacity, size_t *count, prediff_error *err) {
    if (!m || !count || (!ids && n) || (!text && capacity)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "model, ids, text or count is NULL");
    *count = 0;
    return pdi_decode(&m->tok, ids, n, special, text, capacity, count, err);
}

PDI_DEF prediff_status prediff_decode_next(const prediff_model *m, prediff_decoder *s, int32_t id, int special,
                                           char *text, size_t capacity, size_t *count, prediff_error *err) {
    if (!m || !s || !count || (!text && capacity)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "model, decoder, text or count is NULL");
    *count = 0;
    return pdi_decode_next(&m->tok, s, id, special, text, capacity, count, err);
}

PDI_DEF prediff_status prediff_decode_end(prediff_decoder *s, char *text, size_t capacity, size_t *count, prediff_error *err) {
    if (!s || !count || (!text && capacity)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "decoder, text or count is NULL");
    *count = 0;
    return pdi_decode_end(s, text, capacity, count, err);
}

PDI_DEF size_t prediff_max_token_bytes(const prediff_model *m) { return m->tok.max_token_bytes; }

/* 1 = the tokenizer has this id. */
PDI_FN int pdi_has_token(const prediff_model *m, int32_t id) { return pdi_check_token(&m->tok, id, 0, NULL) == PREDIFF_OK; }

PDI_DEF prediff_string prediff_token_text(const prediff_model *m, int32_t id) {
    prediff_string none = { NULL, 0 };
    return pdi_has_token(m, id) ? m->tok.tokens[id] : none;
}

PDI_DEF int prediff_token_is_special(const prediff_model *m, int32_t id) { return pdi_has_token(m, id) && pdi_is_special(&m->tok, id); }

#else /* PREDIFF_NO_TOKENIZER */

PDI_FN prediff_status pdi_no_text(size_t *count, prediff_error *err) {
    if (count) *count = 0;
    return PDI_FAIL(err, ARG, NO_TOKENIZER, "compiled with PREDIFF_NO_TOKENIZER");
}

PDI_DEF prediff_status prediff_encode(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                      int32_t *ids, size_t capacity, size_t *count, prediff_error *err) {
    (void)m; (void)text; (void)n; (void)flags; (void)ids; (void)capacity;
    return pdi_no_text(count, err);
}

PDI_DEF prediff_status prediff_template(const prediff_model *m, const char *text, size_t n, unsigned flags,
                                        int32_t *ids, size_t capacity, size_t *count, size_t *n_prompt, prediff_error *err) {
    (void)m; (void)text; (void)n; (void)flags; (void)ids; (void)capacity;
    if (n_prompt) *n_prompt = 0;
    return pdi_no_text(count, err);
}

PDI_DEF prediff_status prediff_decode(const prediff_model *m, const int32_t *ids, size_t n, int special,
                                      char *text, size_t capacity, size_t *count, prediff_error *err) {
    (void)m; (void)ids; (void)n; (void)special; (void)text; (void)capacity;
    return pdi_no_text(count, err);
}

PDI_DEF prediff_status prediff_decode_next(const prediff_model *m, prediff_decoder *s, int32_t id, int special,
                                           char *text, size_t capacity, size_t *count, prediff_error *err) {
    (void)m; (void)s; (void)id; (void)special; (void)text; (void)capacity;
    return pdi_no_text(count, err);
}

PDI_DEF prediff_status prediff_decode_end(prediff_decoder *s, char *text, size_t capacity, size_t *count, prediff_error *err) {
    (void)s; (void)text; (void)capacity;
    return pdi_no_text(count, err);
}

PDI_DEF size_t prediff_max_token_bytes(const prediff_model *m) { (void)m; return 0; }

PDI_DEF prediff_string prediff_token_text(const prediff_model *m, int32_t id) {
    prediff_string none = { NULL, 0 };
    (void)m; (void)id;
    return none;
}

PDI_DEF int prediff_token_is_special(const prediff_model *m, int32_t id) { (void)m; (void)id; return 0; }

#endif /* PREDIFF_NO_TOKENIZER */

/* ---- >>FORWARD: the network ----------------------------------------------------------------------------------------

        x = E[token] + position          a masked row: m + W2 GELU(W0 noise)  in place of E[token]
        x = x + tau(rate) + W_sc soft    at target rows
        x = x + W_o Attention(norm(x));  x = x + W_down act(W_gate,up norm(x))       in every layer: the residual stream
        logits = W_out norm(x)

   A context computes rows in segments. A segment is a run of consecutive positions: the appended part of the prompt, or the
   target of one sample. In each layer every row first stores its key and value, then reads those it may:

       prompt row i     keys 0 .. i                 in the cache, for good
       target row       keys of the whole prompt    in the cache
                        keys of its own target      in one layer's buffer, new at every evaluation

   What a row may read is always a prefix of its sample's positions, so the mask is one number, n_keys. Nothing that
   changes from step to step (rate, soft prediction, noise) is added at a prompt row: the cache is exact. */

enum { PDI_ROWS_AT_ONCE = 128,         /* rows in the buffers of the feed-forward part */
       PDI_HEAD_ROWS = 32 };           /* rows of logits held at once */

typedef struct pdi_segment {
    size_t row, n;                     /* rows row .. row+n-1 of x */
    size_t position;                   /* of its first row */
    size_t slot;                       /* sample, whose own key/value buffer it uses */
    int own;                           /* 0: keys go to the prompt cache */
    int causal;                        /* 1: row at position p reads keys 0..p; 0: all up to the segment's end */
} pdi_segment;

typedef struct pdi_cell {              /* one target position of one sample during a generation */
    float key;                         /* order: larger is revealed earlier */
    float confidence, entropy, logprob;
    int32_t token, argmax, argmax_before;
    uint32_t redraws;                  /* times its noise was redrawn */
    uint8_t given, pick;               /* given by the caller; chosen to be revealed this step */
} pdi_cell;

typedef struct pdi_sample {            /* one sample during a generation */
    size_t begin, length;              /* present region of the target */
    size_t masks_begin, masks_left, n_steps, step;
    double time;                       /* ancestral, first-hitting: process time, 1 at the start */
    int have_soft, closed, idle;       /* an earlier prediction exists; an end of text closed it; nothing left to do */
} pdi_sample;

typedef struct pdi_generation {               /* a generation between begin and end */
    int active;
    prediff_generate_desc d;
    int32_t *target;
    const int32_t *teacher;            /* scoring: true tokens, revealed instead of the model's */
    size_t n, first, end;              /* samples first .. end-1 of target [..][n] */
    size_t prompt_before, pending;     /* pending, causal: the first target token not yet in the prompt */
    prediff_result r;
} pdi_generation;

struct prediff_context {
    const prediff_model *m;
    const pdi_kernels *k;
    pdi_threads threads;
    prediff_attention attention;
    size_t n_ctx, n_target, n_samples;
    size_t max_rows, tiles, own_tiles, head_pad, q_width, qkv_width;
    int busy, last_valid;
    size_t n_prompt;
    int32_t *prompt;                   /* [n_ctx] ids */
    float *k_cache, *v_cache;          /* [L][K][tiles][E][64], [L][K][tiles * 64][head_pad] */
    float *k_own, *v_own;              /* [S][K][own_tiles] likewise, of the layer being computed */
    float *cosines, *sines;            /* [n_ctx][rope] rotary table */
    float *x;                          /* [max_rows][D] residual stream */
    float *qkv;                        /* [max_rows][(H + 2K) E]; attention's output replaces q */
    float *h;                          /* [128][D] */
    float *ff;                         /* [128][max(2F, 4D)] */
    float *noise;                      /* [128][N] */
    float *last;                       /* [D] residual of the last prompt row */
    float *soft;                       /* [S][n_target][D] sum over v of q(v) token_embd[v], the self-conditioning input */
    float *logits;                     /* [32][V] */
    float *tempered; uint32_t *candidates;   /* [threads][V] */
    uint32_t *list;                    /* [max_rows] rows the head runs on */
    uint32_t *order;                   /* [n_target] */
    int32_t *scratch_target;           /* [S][n_target] of scoring */
    int32_t *revealed_at;              /* [S][n_target] */
    pdi_cell *cells;                   /* [S][n_target] */
    pdi_sample *samples;               /* [S] */
    pdi_segment *segments;             /* [S] */
    float *work; size_t work_size;     /* [threads][work_size] of the kernels */
    pdi_generation run;
    prediff_allocator allocator;
    void *block, *memory; size_t block_size;   /* block NULL: memory is the caller's */
};

/* -- creation -- */

PDI_FN prediff_status pdi_context_settings(prediff_context *c, const prediff_model *m, const prediff_context_desc *d, prediff_error *err) {
    const pdi_hparams *h;
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    if (!m) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the model is NULL");
    if (!m->runnable) return PDI_FAIL(err, ARG, VOCAB_ONLY, "the model was opened for its vocabulary or container only");
    h = &m->hp;
    memset(c, 0, sizeof *c);
    c->m = m;
    c->allocator = m->allocator;
    c->n_ctx = d->n_ctx ? d->n_ctx : h->n_ctx;
    if (c->n_ctx > h->n_ctx) return PDI_FAIL(err, ARG, T_RANGE, "n_ctx %u is above the model's %u", (uint64_t)c->n_ctx, (uint64_t)h->n_ctx);
    c->n_target = d->n_target ? pdi_min(d->n_target, c->n_ctx) : c->n_ctx;
    c->n_samples = d->n_samples ? d->n_samples : 1;
    if (c->n_samples > 1024) return PDI_FAIL(err, ARG, SAMPLES, "n_samples %u is above 1,024", (uint64_t)c->n_samples);
    if ((unsigned)d->attention > PREDIFF_ATTENTION_CAUSAL || (unsigned)d->isa >= PREDIFF_ISA_COUNT || (unsigned)d->compute > PREDIFF_FAST)
        return PDI_FAIL(err, ARG, VALUE_RANGE, "attention, isa or compute is not one of its values");
    if (d->n_threads < 0) return PDI_FAIL(err, ARG, VALUE_RANGE, "n_threads is %i", (int64_t)d->n_threads);
    c->attention = d->attention ? d->attention : h->attention;
    c->k = pdi_kernels_of(d->isa ? d->isa : prediff_isa_best());
    if (!c->k) return PDI_FAIL(err, UNSUPPORTED, ISA_MISSING, "the %s kernels are not available here", prediff_isa_name(d->isa));
    c->threads.n = d->n_threads > 256 ? 256 : d->n_threads ? d->n_threads : 1;
    c->threads.parallel_for = d->parallel_for;
    c->threads.user = d->parallel_user;
    if (!PDI_OPENMP && !d->parallel_for) c->threads.n = 1;
    c->head_pad = pdi_round_up(h->head_dim, PDI_PANEL);
    c->q_width = h->n_head * h->head_dim;
    c->qkv_width = c->q_width + 2 * h->n_head_kv * h->head_dim;
    c->tiles = pdi_ceil_div(c->n_ctx, PDI_KEYS);
    c->own_tiles = c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL ? c->tiles : pdi_min(pdi_ceil_div(c->n_target, PDI_KEYS) + 1, c->tiles);
    c->work_size = pdi_max(PDI_PRODUCT_WORK, pdi_attention_work(h->n_head / h->n_head_kv, h->head_dim, c->head_pad));
    return PREDIFF_OK;
}

PDI_FN float *pdi_take_floats(pdi_arena *a, size_t n1, size_t n2, size_t n3) {
    size_t n;
    if (!pdi_mul(n1, n2, &n) || !pdi_mul(n, n3, &n)) { a->ok = 0; return NULL; }
    return (float *)pdi_take(a, n, sizeof(float));
}

PDI_FN void pdi_context_layout(prediff_context *c, pdi_arena *a) {
    const prediff_model *m = c->m;
    const pdi_hparams *h = &m->hp;
    int bidirectional = c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL;
    size_t kv, cells, threads = (size_t)c->threads.n, V = h->n_vocab;
    size_t tile_keys = PDI_KEYS * h->head_dim, tile_values = PDI_KEYS * c->head_pad, rows;
    if (!pdi_mul(h->n_head_kv, bidirectional ? 0 : h->n_layer, &kv) || !pdi_mul(c->n_samples, c->n_target, &cells) ||
        !pdi_mul(c->n_samples, bidirectional ? c->n_ctx : c->n_target, &rows)) { a->ok = 0; return; }
    c->max_rows = pdi_max(rows, pdi_min(c->n_ctx, PDI_ROWS_AT_ONCE));
    c->k_cache = pdi_take_floats(a, kv, c->tiles, tile_keys);
    c->v_cache = pdi_take_floats(a, kv, c->tiles, tile_values);
    c->k_own = pdi_take_floats(a, c->n_samples * h->n_head_kv, c->own_tiles, tile_keys);
    c->v_own = pdi_take_floats(a, c->n_samples * h->n_head_kv, c->own_tiles, tile_values);
    c->prompt = (int32_t *)pdi_take(a, c->n_ctx, sizeof *c->prompt);
    c->cosines = pdi_take_floats(a, c->n_ctx, h->rope_dim, 1);
    c->sines = pdi_take_floats(a, c->n_ctx, h->rope_dim, 1);
    c->x = pdi_take_floats(a, c->max_rows, h->n_embd, 1);
    c->qkv = pdi_take_floats(a, c->max_rows, c->qkv_width, 1);
    c->h = pdi_take_floats(a, PDI_ROWS_AT_ONCE, h->n_embd, 1);
    c->ff = pdi_take_floats(a, PDI_ROWS_AT_ONCE, pdi_max(2 * h->n_ff, 4 * h->n_embd), 1);
    c->noise = pdi_take_floats(a, PDI_ROWS_AT_ONCE, h->noise_dim, 1);
    c->last = pdi_take_floats(a, h->n_embd, 1, 1);
    c->soft = pdi_take_floats(a, m->selfcond.data ? cells : 0, h->n_embd, 1);
    c->logits = pdi_take_floats(a, PDI_HEAD_ROWS, V, 1);
    c->tempered = pdi_take_floats(a, threads, V, 1);
    c->candidates = (uint32_t *)pdi_take(a, threads * V, sizeof *c->candidates);
    c->list = (uint32_t *)pdi_take(a, c->max_rows, sizeof *c->list);
    c->order = (uint32_t *)pdi_take(a, c->n_target, sizeof *c->order);
    c->scratch_target = (int32_t *)pdi_take(a, cells, sizeof *c->scratch_target);
    c->revealed_at = (int32_t *)pdi_take(a, cells, sizeof *c->revealed_at);
    c->cells = (pdi_cell *)pdi_take(a, cells, sizeof *c->cells);
    c->samples = (pdi_sample *)pdi_take(a, c->n_samples, sizeof *c->samples);
    c->segments = (pdi_segment *)pdi_take(a, c->n_samples, sizeof *c->segments);
    c->work = pdi_take_floats(a, threads, c->work_size, 1);
}

/* Rotary angles: position p, pair i:  p / factor * base^(-2i / rope) / freqs[i]  (Su et al. 2021; freqs: Llama 3). */
PDI_FN void pdi_fill_rotary(prediff_context *c) {
    const pdi_hparams *h = &c->m->hp;
    size_t i, p;
    for (i = 0; i < h->rope_dim / 2; i++) {
        double f = pow((double)h->rope_base, -2.0 * (double)i / (double)h->rope_dim) / (double)h->rope_factor;
        if (c->m->rope_freqs) f /= (double)c->m->rope_freqs[i];
        for (p = 0; p < c->n_ctx; p++) {
            size_t a = p * h->rope_dim + (h->arch->halves ? i : 2 * i), b = a + (h->arch->halves ? h->rope_dim / 2 : 1);
            c->cosines[a] = c->cosines[b] = (float)cos((double)p * f);
            c->sines[b] = (float)sin((double)p * f);
            c->sines[a] = -c->sines[b];
        }
    }
}

PDI_DEF prediff_status prediff_context_size(const prediff_model *m, const prediff_context_desc *d, size_t *size, prediff_error *err) {
    prediff_context c;
    pdi_arena a = { NULL, 0, 1 };
    if (!size) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "size is NULL");
    *size = 0;
    PDI_TRY(pdi_context_settings(&c, m, d, err));
    pdi_take(&a, 1, sizeof c);
    pdi_context_layout(&c, &a);
    if (!a.ok || !pdi_add(a.used, PDI_ALIGN, size)) return PDI_FAIL(err, NOMEM, ALLOC, "a context of these sizes is larger than memory can be");
    return PREDIFF_OK;
}

PDI_DEF prediff_status prediff_context_create(prediff_context **out, const prediff_model *m, const prediff_context_desc *d, prediff_error *err) {
    prediff_context draft, *c;
    pdi_arena a = { NULL, 0, 1 };
    size_t size;
    void *block;
    if (!out) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "out is NULL");
    *out = NULL;
    PDI_TRY(prediff_context_size(m, d, &size, err));
    if (d->memory && d->memory_size < size)
        return PDI_FAIL(err, NOMEM, MEMORY_BLOCK, "the context takes %u bytes, desc.memory has %u", (uint64_t)size, (uint64_t)d->memory_size);
    block = d->memory ? d->memory : pdi_alloc(&m->allocator, size);
    if (!block) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for the context (%u bytes)", (uint64_t)size);
    memset(block, 0, size);                                     /* key lanes past the end are read, though never used */
    a.base = pdi_align_pointer(block);
    PDI_TRY(pdi_context_settings(&draft, m, d, err));
    c = (prediff_context *)pdi_take(&a, 1, sizeof *c);
    *c = draft;
    pdi_context_layout(c, &a);
    c->block = d->memory ? NULL : block;
    c->memory = block;
    c->block_size = size;
    pdi_fill_rotary(c);
    *out = c;
    return PREDIFF_OK;
}

PDI_DEF void prediff_context_destroy(prediff_context *c) {
    prediff_allocator al;
    if (!c) return;
    al = c->allocator;
    if (c->block) pdi_free(&al, c->block, c->block_size);
    else PDI_UNPOISON(c->memory, c->block_size);
}

PDI_DEF prediff_isa prediff_context_isa(const prediff_context *c) { return c->k->isa; }
PDI_DEF int prediff_context_threads(const prediff_context *c) { return c->threads.n; }
PDI_DEF size_t prediff_prompt_length(const prediff_context *c) { return c->n_prompt; }

/* -- products over the threads -- */

typedef struct pdi_product_job { const prediff_context *c; pdi_product p; int mix; } pdi_product_job;

/* Its share of blocks of rows times panels of outputs. A turned product has its blocks along the sum instead, one after another. */
PDI_FN void pdi_product_share(void *arg, size_t i, size_t n) {
    const pdi_product_job *j = (const pdi_product_job *)arg;
    const pdi_kernels *k = j->c->k;
    void (*run)(const pdi_product *, size_t, size_t, float *) = j->mix ? k->mix : k->product;
    float *work = j->c->work + i * j->c->work_size;
    size_t unit = j->mix ? pdi_max(PDI_PANEL, pdi_type_of(j->p.type)->block) : k->panel, units = pdi_ceil_div(j->p.n, unit), at, end, r;
    pdi_product p = j->p;
    if (p.turned) {
        pdi_range(units, i, n, &at, &end);
        for (r = 0; r < j->p.k; r += PDI_BLOCK_ROWS) {
            p.k = pdi_min(j->p.k - r, PDI_BLOCK_ROWS);
            p.x = j->p.x + r * p.ldx; p.w = j->p.w + r * p.row_bytes; p.add = r > 0 || j->p.add;
            run(&p, at, end, work);
        }
        return;
    }
    pdi_range(units * pdi_ceil_div(p.m, PDI_BLOCK_ROWS), i, n, &at, &end);
    while (at < end) {
        size_t first = at % units, last = pdi_min(units, first + end - at);
        r = at / units * PDI_BLOCK_ROWS;
        p.m = pdi_min(j->p.m - r, PDI_BLOCK_ROWS);
        p.x = j->p.x + r * p.ldx; p.y = j->p.y + r * p.ldy;
        run(&p, first, last, work);
        at += last - first;
    }
}

PDI_FN void pdi_run_product(const prediff_context *c, const pdi_product *p, int mix) {
    pdi_product_job j;
    j.c = c; j.p = *p; j.mix = mix;
    pdi_parallel(&c->threads, pdi_product_share, &j, (double)p->m * (double)p->n * (double)p->k);
}

/* y [m][w.n] = x [m][w.k] W^T + b; with mix: y [m][w.k] = x [m][w.n] W. */
PDI_FN void pdi_multiply(const prediff_context *c, float *y, size_t ldy, const float *x, size_t ldx, size_t m, const pdi_weight *w, int mix) {
    pdi_product p;
    p.x = x; p.ldx = ldx; p.y = y; p.ldy = ldy; p.m = m;
    p.n = mix ? w->k : w->n; p.k = mix ? w->n : w->k;
    p.w = w->data; p.type = w->type; p.row_bytes = w->row_bytes; p.bias = mix ? NULL : w->bias; p.add = p.turned = 0;
    pdi_run_product(c, &p, mix);
}

/* -- row by row work over the threads -- */

typedef void (*pdi_row_fn)(const prediff_context *c, void *arg, size_t row);
typedef struct pdi_rows_job { const prediff_context *c; pdi_row_fn fn; void *arg; size_t n; } pdi_rows_job;

PDI_FN void pdi_rows_share(void *arg, size_t i, size_t n) {
    const pdi_rows_job *j = (const pdi_rows_job *)arg;
    size_t r, end;
    pdi_range(j->n, i, n, &r, &end);
    for (; r < end; r++) j->fn(j->c, j->arg, r);
}

PDI_FN void pdi_each_row(const prediff_context *c, size_t n, double work_per_row, pdi_row_fn fn, void *arg) {
    pdi_rows_job j;
    j.c = c; j.fn = fn; j.arg = arg; j.n = n;
    pdi_parallel(&c->threads, pdi_rows_share, &j, (double)n * work_per_row);
}

typedef struct pdi_norm_job { float *y; const float *x, *w, *b; } pdi_norm_job;

PDI_FN void pdi_norm_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_norm_job *j = (const pdi_norm_job *)arg;
    size_t d = c->m->hp.n_embd;
    if (j->b) c->k->layer_norm(j->y + r * d, j->x + r * d, j->w, j->b, d, c->m->hp.eps);
    else c->k->rms_norm(j->y + r * d, j->x + r * d, j->w, d, c->m->hp.eps);
}

/* y [n][D] = norm of x [n][D]: RMSNorm (Zhang and Sennrich 2019), or LayerNorm where there is a bias. */
PDI_FN void pdi_norm(const prediff_context *c, float *y, const float *x, size_t n, const float *w, const float *b) {
    pdi_norm_job j;
    j.y = y; j.x = x; j.w = w; j.b = b;
    pdi_each_row(c, n, 4.0 * (double)c->m->hp.n_embd, pdi_norm_row, &j);
}

typedef struct pdi_activation_job { int gpt2; size_t f; } pdi_activation_job;

PDI_FN void pdi_activation_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_activation_job *j = (const pdi_activation_job *)arg;
    float *gate = c->ff + r * 2 * j->f;
    if (j->gpt2) c->k->gelu_tanh(gate, j->f);
    else c->k->silu_mul(gate, gate + j->f, j->f);
}

/* -- attention -- */

PDI_FN size_t pdi_first_own(const pdi_segment *s) { return s->own ? s->position / PDI_KEYS : SIZE_MAX; }

/* Where key/value head `head` of a segment stores position p: pointers to its tile's keys and its value row. */
PDI_FN void pdi_kv_at(const prediff_context *c, size_t layer, const pdi_segment *s, size_t head, size_t p, float **key_lane, float **value) {
    const pdi_hparams *h = &c->m->hp;
    size_t tiles = s->own ? c->own_tiles : c->tiles, tile = p / PDI_KEYS - (s->own ? pdi_first_own(s) : 0);
    size_t plane = s->own ? s->slot * h->n_head_kv + head : layer * h->n_head_kv + head;
    float *keys = s->own ? c->k_own : c->k_cache, *values = s->own ? c->v_own : c->v_cache;
    *key_lane = keys + (plane * tiles + tile) * PDI_KEYS * h->head_dim + p % PDI_KEYS;
    *value = values + ((plane * tiles + tile) * PDI_KEYS + p % PDI_KEYS) * c->head_pad;
}

typedef struct pdi_layer_job { size_t layer; const pdi_segment *segments; size_t n_segments; } pdi_layer_job;

PDI_FN const pdi_segment *pdi_segment_of(const pdi_layer_job *j, size_t row) {
    const pdi_segment *s = j->segments;
    while (row >= s->row + s->n) s++;
    return s;
}

/* Rotates a row's queries and keys by its position and stores its keys and values. */
PDI_FN void pdi_store_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_layer_job *j = (const pdi_layer_job *)arg;
    const pdi_hparams *h = &c->m->hp;
    const pdi_segment *s = pdi_segment_of(j, r);
    size_t p = s->position + (r - s->row), e = h->head_dim, head, i;
    float *q = c->qkv + r * c->qkv_width, *k = q + c->q_width, *v = k + h->n_head_kv * e, *lane, *value;
    for (head = 0; h->rope_dim && head < h->n_head + h->n_head_kv; head++)
        (h->arch->halves ? c->k->rotate_halves : c->k->rotate)(q + head * e, c->cosines + p * h->rope_dim, c->sines + p * h->rope_dim, h->rope_dim);
    for (head = 0; head < h->n_head_kv; head++) {
        pdi_kv_at(c, j->layer, s, head, p, &lane, &value);
        for (i = 0; i < e; i++) lane[i * PDI_KEYS] = k[head * e + i];
        memcpy(value, v + head * e, e * sizeof *v);
    }
}

/* The tile in which the prompt ends and the target begins belongs to the target: copy the prompt's part. */
PDI_FN void pdi_copy_border(const prediff_context *c, size_t layer, const pdi_segment *s) {
    const pdi_hparams *h = &c->m->hp;
    size_t first = s->position - s->position % PDI_KEYS, n = s->position % PDI_KEYS, head, i;
    pdi_segment cached = *s;
    cached.own = 0;
    for (head = 0; n && head < h->n_head_kv; head++) {
        float *from_k, *from_v, *to_k, *to_v;
        pdi_kv_at(c, layer, &cached, head, first, &from_k, &from_v);
        pdi_kv_at(c, layer, s, head, first, &to_k, &to_v);
        for (i = 0; i < h->head_dim; i++) memcpy(to_k + i * PDI_KEYS, from_k + i * PDI_KEYS, n * sizeof *to_k);
        memcpy(to_v, from_v, n * c->head_pad * sizeof *to_v);
    }
}

typedef struct pdi_attend_items { pdi_layer_job layer; size_t rows, n; } pdi_attend_items;

PDI_FN size_t pdi_attend_blocks(const pdi_segment *s, size_t rows) { return pdi_ceil_div(s->n, rows); }

/* Item i: some rows of one segment, one key/value head. */
PDI_FN void pdi_attend_item(const prediff_context *c, const pdi_attend_items *a, size_t i, float *work) {
    const pdi_hparams *h = &c->m->hp;
    const pdi_segment *s = a->layer.segments;
    size_t head = i % h->n_head_kv, block = i / h->n_head_kv, first, r;
    size_t group = h->n_head / h->n_head_kv, e = h->head_dim;
    uint32_t n_keys[PDI_QUERIES];
    float *keys, *values;
    pdi_attention_job j;
    pdi_segment cached;
    while (block >= pdi_attend_blocks(s, a->rows)) block -= pdi_attend_blocks(s++, a->rows);
    first = block * a->rows;
    j.rows = pdi_min(s->n - first, a->rows);
    for (r = 0; r < j.rows; r++) n_keys[r] = (uint32_t)(s->position + (s->causal ? first + r + 1 : s->n));
    j.q = j.out = c->qkv + (s->row + first) * c->qkv_width + head * group * e;
    j.ldq = j.ldo = c->qkv_width;
    j.n_keys = n_keys; j.group = group; j.head_dim = e; j.head_pad = c->head_pad;
    j.first_own = pdi_first_own(s);
    j.k_cache = j.v_cache = j.k_own = j.v_own = NULL;
    cached = *s;
    cached.own = 0;
    if (c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) {
        pdi_kv_at(c, a->layer.layer, &cached, head, 0, &keys, &values);
        j.k_cache = keys; j.v_cache = values;
    }
    if (s->own) {
        pdi_kv_at(c, a->layer.layer, s, head, j.first_own * PDI_KEYS, &keys, &values);
        j.k_own = keys; j.v_own = values;
    }
    j.scale = (float)(1.0 / sqrt((double)e));
    j.work = work;
    c->k->attention(&j);
}

typedef struct pdi_attend_share_arg { const prediff_context *c; pdi_attend_items items; } pdi_attend_share_arg;

PDI_FN void pdi_attend_share(void *arg, size_t i, size_t n) {
    const pdi_attend_share_arg *a = (const pdi_attend_share_arg *)arg;
    size_t item, end;
    pdi_range(a->items.n, i, n, &item, &end);
    for (; item < end; item++) pdi_attend_item(a->c, &a->items, item, a->c->work + i * a->c->work_size);
}

PDI_FN void pdi_attend(const prediff_context *c, const pdi_layer_job *layer) {
    const pdi_hparams *h = &c->m->hp;
    pdi_attend_share_arg a;
    double work = 0;
    size_t i;
    a.c = c;
    a.items.layer = *layer;
    a.items.rows = pdi_max(PDI_QUERIES / (h->n_head / h->n_head_kv), 1);
    a.items.n = 0;
    for (i = 0; i < layer->n_segments; i++) {
        const pdi_segment *s = &layer->segments[i];
        a.items.n += pdi_attend_blocks(s, a.items.rows) * h->n_head_kv;
        work += 2.0 * (double)s->n * (double)(s->position + s->n) * (double)c->q_width;
    }
    pdi_parallel(&c->threads, pdi_attend_share, &a, work);
}

/* -- the layers -- */

PDI_FN void pdi_attention_part(prediff_context *c, const pdi_layer_job *job, size_t rows) {
    const pdi_layer *y = &c->m->layers[job->layer];
    const pdi_hparams *h = &c->m->hp;
    size_t d = h->n_embd, r, i;
    for (r = 0; r < rows; r += PDI_ROWS_AT_ONCE) {              /* h = norm(x); q, k, v = h W */
        size_t n = pdi_min(rows - r, PDI_ROWS_AT_ONCE);
        float *to = c->qkv + r * c->qkv_width;
        pdi_norm(c, c->h, c->x + r * d, n, y->attn_norm, y->attn_norm_bias);
        for (i = 0; i < 3 && y->qkv[i].data; i++) {
            pdi_multiply(c, to, c->qkv_width, c->h, d, n, &y->qkv[i], 0);
            to += y->qkv[i].n;
        }
    }
    pdi_each_row(c, rows, 4.0 * (double)c->qkv_width, pdi_store_row, (void *)(uintptr_t)job);
    for (i = 0; i < job->n_segments; i++)
        if (job->segments[i].own && job->segments[i].n && c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) pdi_copy_border(c, job->layer, &job->segments[i]);
    pdi_attend(c, job);
    for (r = 0; r < rows; r += PDI_ROWS_AT_ONCE) {              /* x += attention W_o */
        size_t n = pdi_min(rows - r, PDI_ROWS_AT_ONCE);
        pdi_multiply(c, c->h, d, c->qkv + r * c->qkv_width, c->qkv_width, n, &y->attn_output, 0);
        c->k->add(c->x + r * d, c->h, n * d);
    }
}

/* x += W_down act(norm(x) W_up): SwiGLU (Shazeer 2020) with a gate, GELU without. */
PDI_FN void pdi_feed_forward_part(prediff_context *c, const pdi_layer *y, size_t rows) {
    const pdi_hparams *h = &c->m->hp;
    size_t d = h->n_embd, f = h->n_ff, r;
    pdi_activation_job a;
    a.gpt2 = h->arch->gpt2;
    a.f = f;
    for (r = 0; r < rows; r += PDI_ROWS_AT_ONCE) {
        size_t n = pdi_min(rows - r, PDI_ROWS_AT_ONCE);
        pdi_norm(c, c->h, c->x + r * d, n, y->ffn_norm, y->ffn_norm_bias);
        if (!a.gpt2) pdi_multiply(c, c->ff, 2 * f, c->h, d, n, &y->ffn_gate, 0);
        pdi_multiply(c, c->ff + (a.gpt2 ? 0 : f), 2 * f, c->h, d, n, &y->ffn_up, 0);
        pdi_each_row(c, n, 20.0 * (double)f, pdi_activation_row, &a);
        pdi_multiply(c, c->h, d, c->ff, 2 * f, n, &y->ffn_down, 0);
        c->k->add(c->x + r * d, c->h, n * d);
    }
}

/* All layers over the rows of c->x. */
PDI_FN void pdi_run_layers(prediff_context *c, const pdi_segment *segments, size_t n_segments, size_t rows) {
    pdi_layer_job job;
    job.segments = segments;
    job.n_segments = n_segments;
    for (job.layer = 0; job.layer < c->m->hp.n_layer; job.layer++) {
        pdi_attention_part(c, &job, rows);
        pdi_feed_forward_part(c, &c->m->layers[job.layer], rows);
    }
}

/* Logits of n <= 32 residual rows, each a pointer. */
PDI_FN void pdi_head(prediff_context *c, const float *const *rows, size_t n, float *logits) {
    size_t d = c->m->hp.n_embd, i;
    for (i = 0; i < n; i++) pdi_norm(c, c->h + i * d, rows[i], 1, c->m->output_norm, c->m->output_norm_bias);
    pdi_multiply(c, logits, c->m->hp.n_vocab, c->h, d, n, &c->m->output, 0);
}

/* x = row `index` of an embedding matrix, or added to x through tmp [D]. */
PDI_FN void pdi_embed(const prediff_context *c, float *x, const pdi_weight *w, size_t index, float *tmp) {
    c->k->dequantize(w->type, w->data + index * w->row_bytes, tmp ? tmp : x, w->k);
    if (tmp) c->k->add(x, tmp, w->k);
}

/* -- the prompt -- */

typedef prediff_status (*pdi_prompt_fn)(prediff_context *c, void *arg, size_t first, size_t n, prediff_error *err);

PDI_FN int pdi_rows_finite(const float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) if (!pdi_is_finite(&x[i])) return 0;
    return 1;
}

/* Appends checked ids; after each piece, sees(first, n) may look at the residual rows c->x[0..n-1] of ids first... */
PDI_FN prediff_status pdi_append(prediff_context *c, const int32_t *ids, size_t n, pdi_prompt_fn sees, void *arg, prediff_error *err) {
    const prediff_model *m = c->m;
    size_t d = m->hp.n_embd, done, i, piece = pdi_min(c->max_rows, PDI_ROWS_AT_ONCE);
    prediff_status s = PREDIFF_OK;
    for (done = 0; done < n && !s; done += i) {
        pdi_segment g;
        memset(&g, 0, sizeof g);
        g.n = pdi_min(n - done, piece);
        g.position = c->n_prompt;
        g.causal = 1;
        memcpy(c->prompt + c->n_prompt, ids + done, g.n * sizeof *ids);
        for (i = 0; i < g.n; i++) {
            pdi_embed(c, c->x + i * d, &m->token_embd, (size_t)ids[done + i], NULL);
            if (m->position_embd.data) pdi_embed(c, c->x + i * d, &m->position_embd, g.position + i, c->h);
        }
        if (c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) {
            pdi_run_layers(c, &g, 1, g.n);
            if (!pdi_rows_finite(c->x, g.n * d)) return PDI_FAIL_AT(err, NUMERIC, LOGITS, g.position, "activations after prompt position %u are not finite", (uint64_t)g.position);
            memcpy(c->last, c->x + (g.n - 1) * d, d * sizeof *c->last);
            c->last_valid = 1;
        }
        c->n_prompt += g.n;
        if (sees) s = sees(c, arg, done, g.n, err);
    }
    return s;
}

PDI_FN prediff_status pdi_check_ids(const prediff_context *c, const int32_t *ids, size_t n, int masks, prediff_error *err) {
    size_t i;
    for (i = 0; i < n; i++)
        if ((ids[i] < 0 || (size_t)ids[i] >= c->m->hp.n_vocab) && !(masks && ids[i] == PREDIFF_MASK))
            return PDI_FAIL_AT(err, ARG, TOKEN_RANGE, i, "token %i at position %u is outside 0..%u", (int64_t)ids[i], (uint64_t)i, (uint64_t)(c->m->hp.n_vocab - 1));
    return PREDIFF_OK;
}

/* Entry of every public call on a context. */
PDI_FN prediff_status pdi_enter(const prediff_context *c, int during_run, prediff_error *err) {
    if (!c) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the context is NULL");
    if (c->busy) return PDI_FAIL(err, ARG, BUSY, "a callback of this context is running");
    if (c->run.active && !during_run) return PDI_FAIL(err, ARG, BUSY, "a generation has begun: call prediff_end first");
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_copy_logits(prediff_context *c, void *arg, size_t first, size_t n, prediff_error *err) {
    float *out = (float *)arg;
    size_t i, j, k, V = c->m->hp.n_vocab;
    const float *rows[PDI_HEAD_ROWS];
    (void)err;
    for (i = 0; i < n; i += k) {
        k = pdi_min(n - i, PDI_HEAD_ROWS);
        for (j = 0; j < k; j++) rows[j] = c->x + (i + j) * c->m->hp.n_embd;
        pdi_head(c, rows, k, out + (first + i) * V);
    }
    return PREDIFF_OK;
}

PDI_DEF prediff_status prediff_prompt(prediff_context *c, const int32_t *ids, size_t n, float *logits, prediff_error *err) {
    size_t before;
    prediff_status s;
    PDI_TRY(pdi_enter(c, 0, err));
    if (!ids && n) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "ids is NULL");
    if (n > c->n_ctx - c->n_prompt)
        return PDI_FAIL(err, ARG, T_RANGE, "%u more tokens after %u do not fit in n_ctx %u", (uint64_t)n, (uint64_t)c->n_prompt, (uint64_t)c->n_ctx);
    PDI_TRY(pdi_check_ids(c, ids, n, 0, err));
    if (logits && c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL) return PDI_FAIL(err, ARG, CONFLICT, "a bidirectional context has no causal logits");
    before = c->n_prompt;
    s = pdi_append(c, ids, n, logits ? pdi_copy_logits : NULL, logits, err);
    if (s && c->n_prompt != before) { c->n_prompt = before; c->last_valid = 0; }
    return s;
}

PDI_FN void pdi_cut_prompt(prediff_context *c, size_t n_keep) {
    if (n_keep != c->n_prompt) c->last_valid = 0;
    c->n_prompt = n_keep;
}

PDI_DEF prediff_status prediff_rewind(prediff_context *c, size_t n_keep, prediff_error *err) {
    PDI_TRY(pdi_enter(c, 0, err));
    if (n_keep > c->n_prompt) return PDI_FAIL(err, ARG, T_RANGE, "cannot keep %u of %u prompt tokens", (uint64_t)n_keep, (uint64_t)c->n_prompt);
    pdi_cut_prompt(c, n_keep);
    return PREDIFF_OK;
}

/* The residual of the last prompt row; after a rewind it is computed again (the same bits: see KERNELS). */
PDI_FN prediff_status pdi_need_last(prediff_context *c, prediff_error *err) {
    if (c->last_valid) return PREDIFF_OK;
    if (!c->n_prompt) return PDI_FAIL(err, ARG, SHIFT_PROMPT, "a prompt of at least one token is needed here (begin-of-text will do)");
    c->n_prompt--;
    return pdi_append(c, c->prompt + c->n_prompt, 1, NULL, NULL, err);
}

/* -- the target -- */

typedef struct pdi_evaluation {        /* one network pass over the target regions of some samples */
    const int32_t *target; size_t ld;  /* [..][ld] */
    size_t first, end;                 /* samples first .. end-1 */
    const float *rate;                 /* [..] given rates, or NULL: masked / length */
    const float *noise;                /* [..][ld][N] given noise, or NULL: from seed and cells' redraw counts */
    uint64_t seed;
    int one_seed;                      /* 1: all samples draw noise from seed; 0: sample s from seed + s */
    int no_rate, no_selfcond, no_noise;
} pdi_evaluation;

/* Noise of one masked position: N values of the counter-based generator, uniform on [-1, 1) or normal (Box and Muller 1958; two
   values share a pair of words). */
PDI_FN void pdi_make_noise(const pdi_hparams *h, float *out, uint64_t seed, size_t position, uint32_t redraw) {
    uint32_t counter[4], r[4];
    size_t i, j, groups = pdi_ceil_div(h->noise_dim, 4);
    counter[0] = PDI_STREAM_NOISE; counter[1] = 0; counter[2] = (uint32_t)position;
    for (i = 0; i < groups; i++) {
        counter[3] = (uint32_t)(redraw * groups + i);
        prediff_random(seed, counter, r);
        for (j = 0; j < 4 && 4 * i + j < h->noise_dim; j++) {
            double u = (double)(r[j] >> 8) * (1.0 / 16777216.0), v = 2.0 * u - 1.0;
            if (h->noise_normal) {
                double a = ((double)(r[j & 2] >> 8) + 0.5) * (1.0 / 16777216.0), b = (double)(r[(j & 2) + 1] >> 8) * (1.0 / 16777216.0);
                v = sqrt(-2.0 * log(a)) * (j & 1 ? sin(6.283185307179586 * b) : cos(6.283185307179586 * b));
            }
            out[4 * i + j] = (float)(v * (double)h->noise_scale);
        }
    }
}

PDI_FN size_t pdi_count_masks(const int32_t *t, size_t n) {
    size_t i, k = 0;
    for (i = 0; i < n; i++) k += t[i] == PREDIFF_MASK;
    return k;
}

/* Infinite mask (Yoo et al. 2026): a masked row becomes mask + W2 GELU(W0 eps + b). c->list: the masked rows. */
PDI_FN void pdi_add_noise(prediff_context *c, const pdi_evaluation *e, const pdi_segment *segments, size_t n_masked) {
    const prediff_model *m = c->m;
    const pdi_hparams *h = &m->hp;
    size_t N = h->noise_dim, d = h->n_embd, i, j, n;
    pdi_layer_job find;
    find.segments = segments;
    for (i = 0; i < n_masked; i += n) {
        n = pdi_min(n_masked - i, PDI_ROWS_AT_ONCE);
        for (j = 0; j < n; j++) {
            size_t row = c->list[i + j], at;
            const pdi_segment *s = pdi_segment_of(&find, row);
            const pdi_sample *p = &c->samples[s->slot];
            at = s->slot * e->ld + p->begin + (row - s->row) - (s->n - p->length);
            if (e->noise) {
                size_t k;
                for (k = 0; k < N; k++) c->noise[j * N + k] = e->noise[at * N + k] * h->noise_scale;
            } else pdi_make_noise(h, c->noise + j * N, e->seed + (e->one_seed ? 0 : s->slot), s->position + (row - s->row), c->cells[at].redraws);
        }
        pdi_multiply(c, c->ff, 4 * d, c->noise, N, n, &m->noise[0], 0);
        for (j = 0; j < n * 4 * d; j++) c->ff[j] = (float)(0.5 * (double)c->ff[j] * (1.0 + erf((double)c->ff[j] * 0.7071067811865476)));
        pdi_multiply(c, c->h, d, c->ff, 4 * d, n, &m->noise[1], 0);
        for (j = 0; j < n; j++) c->k->add(c->x + c->list[i + j] * d, c->h + j * d, d);
    }
}

/* sinusoid(rate) [D]: sines, then cosines, of rate * scale * 10000^(-k / (D/2 - 1)). */
PDI_FN void pdi_rate_wave(const pdi_hparams *h, float rate, float *wave) {
    size_t half = h->n_embd / 2, k;
    float t = rate < h->rate_min ? h->rate_min : rate > h->rate_max ? h->rate_max : rate;
    for (k = 0; k < half; k++) {
        double a = (double)t * (double)h->rate_scale * exp(-9.210340371976184 * (double)k / (double)(half - 1));
        wave[k] = (float)sin(a);
        wave[half + k] = (float)cos(a);
    }
}

/* tau(rate) = W2 SiLU(W0 sinusoid(rate) + b0) + b2 */
PDI_FN void pdi_add_rate(prediff_context *c, float rate, float *x, size_t n) {
    const prediff_model *m = c->m;
    size_t d = m->hp.n_embd, k;
    float *wave = c->h, *hidden = c->ff, *tau = c->h + d;
    pdi_rate_wave(&m->hp, rate, wave);
    pdi_multiply(c, hidden, 4 * d, wave, d, 1, &m->rate[0], 0);
    c->k->silu(hidden, 4 * d);
    pdi_multiply(c, tau, d, hidden, 4 * d, 1, &m->rate[1], 0);
    for (k = 0; k < n; k++) c->k->add(x + k * d, tau, d);
}

/* Self-conditioning (Chen et al. 2023): W_sc e + b, e = expected embedding under the previous prediction, 0 without one. */
PDI_FN void pdi_add_soft(prediff_context *c, const float *soft, float *x, size_t n) {
    const pdi_weight *w = &c->m->selfcond;
    size_t d = w->k, i, k;
    for (i = 0; !soft && w->bias && i < n; i++) c->k->add(x + i * d, w->bias, d);
    for (i = 0; soft && i < n; i += k) {
        k = pdi_min(n - i, PDI_ROWS_AT_ONCE);
        pdi_multiply(c, c->h, d, soft + i * d, d, k, w, 0);
        c->k->add(x + i * d, c->h, k * d);
    }
}

/* Embeds the target rows of every active sample into c->x and describes them in c->segments. */
PDI_FN size_t pdi_embed_targets(prediff_context *c, const pdi_evaluation *e, size_t *n_segments) {
    const prediff_model *m = c->m;
    size_t d = m->hp.n_embd, row = 0, n_masked = 0, s, i;
    int whole = c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL;
    *n_segments = 0;
    for (s = e->first; s < e->end; s++) {
        const pdi_sample *p = &c->samples[s];
        const int32_t *t = e->target + s * e->ld + p->begin;
        pdi_segment *g = &c->segments[*n_segments];
        size_t before = whole ? c->n_prompt : 0;
        if (p->idle || !p->length) continue;
        g->row = row; g->n = before + p->length;
        g->position = whole ? 0 : c->n_prompt;
        g->slot = s; g->own = 1;
        g->causal = c->attention == PREDIFF_ATTENTION_CAUSAL;
        for (i = 0; i < g->n; i++, row++) {
            int32_t id = i < before ? c->prompt[i] : t[i - before];
            float *x = c->x + row * d;
            if (id != PREDIFF_MASK) pdi_embed(c, x, &m->token_embd, (size_t)id, NULL);
            else {
                if (m->mask) memcpy(x, m->mask, d * sizeof *x);
                else pdi_embed(c, x, &m->token_embd, (size_t)m->mask_token, NULL);
                c->list[n_masked++] = (uint32_t)row;
            }
        }
        ++*n_segments;
    }
    if (m->noise[0].data && !e->no_noise) pdi_add_noise(c, e, c->segments, n_masked);
    for (s = 0; s < *n_segments; s++) {
        const pdi_segment *g = &c->segments[s];
        const pdi_sample *p = &c->samples[g->slot];
        const int32_t *t = e->target + g->slot * e->ld + p->begin;
        float *x = c->x + (g->row + g->n - p->length) * d;
        for (i = 0; m->position_embd.data && i < g->n; i++) pdi_embed(c, c->x + (g->row + i) * d, &m->position_embd, g->position + i, c->h);
        if (m->rate[0].data && !e->no_rate)
            pdi_add_rate(c, e->rate ? e->rate[g->slot] : (float)((double)pdi_count_masks(t, p->length) / (double)p->length), x, p->length);
        if (m->selfcond.data && !e->no_selfcond)
            pdi_add_soft(c, p->have_soft ? c->soft + (g->slot * c->n_target + p->begin) * d : NULL, x, p->length);
    }
    return row;
}

/* One evaluation. Afterwards pdi_target_row gives the residual row that predicts a target position. */
PDI_FN prediff_status pdi_evaluate(prediff_context *c, const pdi_evaluation *e, size_t *rows, prediff_error *err) {
    size_t n_segments;
    if (c->m->hp.shift && c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) PDI_TRY(pdi_need_last(c, err));
    *rows = pdi_embed_targets(c, e, &n_segments);
    if (*rows) pdi_run_layers(c, c->segments, n_segments, *rows);
    return PREDIFF_OK;
}

/* A shifted model's row i predicts token i + 1: position i reads row i - 1, the first one the last prompt row. */
PDI_FN const float *pdi_target_row(const prediff_context *c, size_t slot, size_t i) {
    const pdi_segment *g = c->segments;
    size_t row;
    while (g->slot != slot) g++;
    row = g->row + g->n - c->samples[slot].length + i;
    if (c->m->hp.shift) {
        if (row == g->row && c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) return c->last;
        row -= row > g->row;
    }
    return c->x + row * c->m->hp.n_embd;
}

PDI_FN prediff_status pdi_check_target(const prediff_context *c, const int32_t *target, size_t n, size_t samples, prediff_error *err) {
    size_t s;
    if (!target && n) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "target is NULL");
    if (n > c->n_target || n > c->n_ctx - c->n_prompt)
        return PDI_FAIL(err, ARG, T_RANGE, "prompt %u + target %u do not fit in n_ctx %u, n_target %u", (uint64_t)c->n_prompt, (uint64_t)n, (uint64_t)c->n_ctx, (uint64_t)c->n_target);
    if (samples > c->n_samples) return PDI_FAIL(err, ARG, SAMPLES, "%u samples; the context was made for %u", (uint64_t)samples, (uint64_t)c->n_samples);
    for (s = 0; s < samples; s++) PDI_TRY(pdi_check_ids(c, target + s * n, n, 1, err));
    return PREDIFF_OK;
}

PDI_FN prediff_status pdi_need_mask(const prediff_context *c, prediff_error *err) {
    if (c->m->mask || c->m->mask_token >= 0) return PREDIFF_OK;
    return PDI_FAIL(err, ARG, MASK_ID_UNKNOWN, "the model has no mask vector or mask id: adapt it, decode causally, or name the mask (desc.mask_token)");
}

/* Soft predictions given as probabilities: soft = q W_embd, a few rows at a time. */
PDI_FN void pdi_set_soft(prediff_context *c, const float *q, size_t slot, size_t n) {
    size_t i, k, d = c->m->hp.n_embd, V = c->m->hp.n_vocab;
    for (i = 0; i < n; i += k) {
        k = pdi_min(n - i, PDI_HEAD_ROWS);
        pdi_multiply(c, c->soft + (slot * c->n_target + i) * d, d, q + i * V, V, k, &c->m->token_embd, 1);
    }
}

PDI_DEF prediff_status prediff_forward(prediff_context *c, const prediff_forward_desc *d, prediff_error *err) {
    pdi_evaluation e;
    const float *rows[PDI_HEAD_ROWS];
    size_t samples, s, i, n_rows, held = 0, V;
    float *out;
    PDI_TRY(pdi_enter(c, 0, err));
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    samples = d->samples ? d->samples : 1;
    PDI_TRY(pdi_check_target(c, d->target, d->n, samples, err));
    for (s = 0; d->rate && s < samples; s++)
        if (!pdi_is_finite(&d->rate[s])) return PDI_FAIL_AT(err, ARG, VALUE_RANGE, s, "the rate of sample %u is not a finite number", (uint64_t)s);
    if (!d->logits) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "desc.logits is NULL");
    for (s = 0; s < samples; s++) if (pdi_count_masks(d->target + s * d->n, d->n)) PDI_TRY(pdi_need_mask(c, err));
    memset(&e, 0, sizeof e);
    e.target = d->target; e.ld = d->n; e.end = samples; e.rate = d->rate; e.noise = d->noise; e.seed = d->seed;
    e.no_rate = d->no_rate; e.no_selfcond = d->no_selfcond; e.no_noise = d->no_noise;
    for (s = 0; s < samples; s++) {
        memset(&c->samples[s], 0, sizeof c->samples[s]);
        c->samples[s].length = d->n;
        c->samples[s].have_soft = d->selfcond && c->m->selfcond.data && !d->no_selfcond;
        if (c->samples[s].have_soft) pdi_set_soft(c, d->selfcond + s * d->n * c->m->hp.n_vocab, s, d->n);
        for (i = 0; i < d->n; i++) c->cells[s * d->n + i].redraws = 0;
    }
    PDI_TRY(pdi_evaluate(c, &e, &n_rows, err));
    out = d->logits;
    V = c->m->hp.n_vocab;
    for (i = 0; i < samples * d->n; i++) {
        if (!d->rows || d->rows[i]) rows[held++] = pdi_target_row(c, i / d->n, i % d->n);
        if (held == PDI_HEAD_ROWS || (i + 1 == samples * d->n && held)) { pdi_head(c, rows, held, out); out += held * V; held = 0; }
    }
    return PREDIFF_OK;
}

/* ---- >>DENOISE: text out of masks ----------------------------------------------------------------------------------

   One step of confidence-aware unmasking (CAU, PreDiff-LM):

     1. rate = masked / length;  logits = network(prompt, target, rate, previous soft prediction, noise)
     2. for every masked position: p = softmax(logits), without the mask itself; confidence = max p; token = argmax, or a
        draw after temperature, top-k, top-p
     3. k = what the schedule, the threshold or the entropy bound allows, at least 1
     4. reveal the k positions with the largest confidence (or margin, or lowest entropy, or at random); ties: leftmost

   Here: pdi_prepare_step draws what is random; pdi_evaluate runs the network; pdi_read_rows makes choices and soft predictions;
   pdi_commit sorts the masks, reveals, closes at an end of text, redraws noise; pdi_next_block goes on.

   Revealed tokens stay. The ancestral sampler instead reveals each mask with the probability of the reverse process, and
   the first-hitting sampler one random mask a step. Samples run side by side, each with its own masks, length and end. */

/* -- schedules -- */

PDI_DEF size_t prediff_unmask_count(prediff_schedule schedule, size_t masks_begin, size_t masks_left, size_t s, size_t n) {
    double p = (double)s / (double)n, begin = (double)masks_begin;
    size_t keep, k;
    if (s >= n || masks_left <= 1) return masks_left;
    switch (schedule) {
    case PREDIFF_REMAINING:
        k = (size_t)ceil((double)masks_left * (1.0 - cos(p * 3.141592653589793 / 2.0)));
        return pdi_min(pdi_max(k, 1), masks_left);
    case PREDIFF_EVEN: return pdi_min(pdi_max(masks_begin / n + (s <= masks_begin % n), 1), masks_left);
    case PREDIFF_TIMES:
        k = (size_t)((double)masks_left * (0.999 / ((double)n - 0.999 * (double)(s - 1))));      /* 1 - t'/t = step / t */
        return pdi_min(pdi_max(k, 1), masks_left);
    case PREDIFF_LINEAR: keep = masks_begin - (size_t)ceil(begin * (double)s / (double)n); break;
    case PREDIFF_SQRT: keep = (size_t)(begin * (1.0 - sqrt(p))); break;
    default: keep = (size_t)(begin * cos(p * 3.141592653589793 / 2.0)); break;
    }
    return masks_left > keep + 1 ? masks_left - keep : 1;
}

/* -- choosing a token from a row of logits -- */

typedef struct pdi_choice_rule {       /* how this step draws */
    double temperature;                /* 0: greedy */
    size_t top_k; double top_p;
    prediff_order order;
} pdi_choice_rule;

/* Candidates as a heap by probability, ties by lower id. */
PDI_FN int pdi_candidate_before(const float *p, uint32_t a, uint32_t b) { return p[a] > p[b] || (p[a] >= p[b] && a < b); }

PDI_FN void pdi_sift(const float *p, uint32_t *heap, size_t n, size_t root) {
    size_t child;
    for (; (child = 2 * root + 1) < n; root = child) {
        uint32_t t;
        if (child + 1 < n && pdi_candidate_before(p, heap[child + 1], heap[child])) child++;
        if (!pdi_candidate_before(p, heap[child], heap[root])) return;
        t = heap[root]; heap[root] = heap[child]; heap[child] = t;
    }
}

/* The smallest set of most probable tokens that top-k and top-p leave; the others' probability becomes 0. Returns the new sum. */
PDI_FN double pdi_filter(float *p, uint32_t *heap, size_t V, double sum, size_t top_k, double top_p) {
    size_t i, n = V, kept = 0;
    double mass = 0, total = 0;
    for (i = 0; i < V; i++) heap[i] = (uint32_t)i;
    for (i = V / 2; i-- > 0;) pdi_sift(p, heap, V, i);
    while (n && (!top_k || kept < top_k) && (!(top_p > 0) || kept == 0 || mass < top_p * sum)) {
        uint32_t best = heap[0];
        mass += (double)p[best];
        heap[0] = heap[--n];
        heap[n] = best;                                         /* the kept ones gather behind the heap */
        pdi_sift(p, heap, n, 0);
        kept++;
    }
    for (i = 0; i < n; i++) p[heap[i]] = 0;
    for (i = 0; i < V; i++) total += (double)p[i];
    return total;
}

/* Draws an index with probability p[i] / sum by inverting the cumulative sum at u. */
PDI_FN size_t pdi_draw(const float *p, size_t V, double sum, double u) {
    double target = u * sum, cumulative = 0;
    size_t i, last = 0;
    for (i = 0; i < V; i++) {
        if (!(p[i] > 0)) continue;
        cumulative += (double)p[i];
        last = i;
        if (cumulative > target) return i;
    }
    return last;
}

/* A +infinity logit is certain if there is one of them; the row becomes one-hot. 0: the row has no distribution. */
PDI_FN int pdi_settle_infinity(float *logits, size_t V) {
    size_t i, at = V;
    for (i = 0; i < V; i++) {
        uint32_t bits = pdi_float_bits(&logits[i]);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;       /* not-a-number */
        if (bits == 0x7F800000u) { if (at < V) return 0; at = i; }
    }
    for (i = 0; at < V && i < V; i++) logits[i] = i == at ? 0.0f : -HUGE_VALF;
    return 1;
}

PDI_FN float pdi_second(const float *p, size_t V, size_t best) {
    float second = 0;
    size_t i;
    for (i = 0; i < V; i++) if (i != best && p[i] > second) second = p[i];
    return second;
}

/* Reads one row: argmax, confidence, entropy, and the token to propose (drawn with u). On return logits hold e^(x - max)
   and *sum their sum. teacher >= 0: propose that token. Returns 0 where the logits are no distribution. */
PDI_FN int pdi_read_row(const prediff_context *c, float *logits, size_t V, const pdi_choice_rule *rule, double u, int32_t teacher,
                        float *tempered, uint32_t *heap, pdi_cell *cell, double *sum) {
    float max = c->k->row_max(logits, V), top;
    double dot, tempered_sum, tempered_dot = 0, log_sum;
    size_t best = 0, token, i;
    if (pdi_float_bits(&max) == 0x7F800000u) {
        if (!pdi_settle_infinity(logits, V)) return 0;
        max = 0;
    }
    if (!pdi_is_finite(&max)) return 0;
    while (best + 1 < V && !(logits[best] >= max)) best++;
    token = teacher >= 0 ? (size_t)teacher : best;
    if (rule->temperature > 0) {                                /* tempered copy first: logits are overwritten below */
        float inverse = (float)(1.0 / rule->temperature);
        for (i = 0; i < V; i++) tempered[i] = (logits[i] - max) * inverse;
        c->k->row_exp(tempered, tempered, 0, V, &tempered_sum, &tempered_dot);
        cell->entropy = (float)(log(tempered_sum) - tempered_dot / tempered_sum);
        if (rule->top_k || rule->top_p > 0) tempered_sum = pdi_filter(tempered, heap, V, tempered_sum, rule->top_k, rule->top_p);
        if (teacher < 0) token = pdi_draw(tempered, V, tempered_sum, u);
    }
    top = logits[token] - max;
    c->k->row_exp(logits, logits, max, V, sum, &dot);
    if (!pdi_is_finite_double(sum)) return 0;
    log_sum = log(*sum);
    cell->token = (int32_t)token;
    cell->argmax = (int32_t)best;
    cell->logprob = (float)((double)top - log_sum);
    cell->confidence = (float)((double)logits[best] / *sum);
    if (!(rule->temperature > 0)) cell->entropy = (float)(log_sum - dot / *sum);
    cell->key = rule->order == PREDIFF_MARGIN ? (float)((double)(logits[best] - pdi_second(logits, V, best)) / *sum)
              : rule->order == PREDIFF_ENTROPY ? -cell->entropy : cell->confidence;
    return 1;
}

/* -- the guard against repetition -- */

/* The token at sequence position p: prompt, then target up to the sample's region; -1 while masked or beyond. */
PDI_FN int32_t pdi_token_at(const prediff_context *c, const int32_t *t, size_t length, size_t p) {
    if (p < c->n_prompt) return c->prompt[p];
    return p - c->n_prompt < length ? t[p - c->n_prompt] : PREDIFF_MASK;
}

/* Sets to -infinity the logit of each token that would make position p complete an N-gram that is already there; with logits NULL
   returns 1 if `token` is one. O(N^2 (P + T)) a position. */
PDI_FN int pdi_repeats(const prediff_context *c, const int32_t *t, size_t length, size_t p, size_t n, float *logits, int32_t token) {
    size_t o, w, k, total = c->n_prompt + length;
    int found = 0;
    if (n > total) return 0;
    for (o = 0; o < n; o++) {                                   /* p is element o of the N-gram that starts at p - o */
        size_t start = p - o;
        int known = p >= o && start + n <= total;
        for (k = 0; known && k < n; k++) known = k == o || pdi_token_at(c, t, length, start + k) >= 0;
        for (w = 0; known && w + n <= total; w++) {
            int32_t there = pdi_token_at(c, t, length, w + o);
            if (w == start || there < 0) continue;
            for (k = 0; k < n && (k == o || (w + k == p ? there : pdi_token_at(c, t, length, w + k)) == pdi_token_at(c, t, length, start + k)); k++) {}
            if (k < n) continue;
            if (logits) logits[there] = -HUGE_VALF;
            else if (there == token) found = 1;
        }
    }
    return found;
}

/* -- one step -- */

PDI_FN size_t pdi_cell_index(const prediff_context *c, size_t s, size_t i) { return s * c->run.n + i; }

/* The token draw's rule at this step; temperature moves linearly over the steps. */
PDI_FN pdi_choice_rule pdi_rule(const prediff_context *c, const pdi_sample *p) {
    const prediff_generate_desc *d = &c->run.d;
    pdi_choice_rule r;
    double share = p->n_steps > 1 ? (double)(p->step - 1) / (double)(p->n_steps - 1) : 0;
    if (share > 1) share = 1;
    r.temperature = d->temperature_end > 0 ? d->temperature + (d->temperature_end - d->temperature) * share : d->temperature;
    if (r.temperature < 1e-4 || (d->sampler == PREDIFF_ANCESTRAL && p->step > p->n_steps)) r.temperature = 0;   /* what the chain left: argmax */
    r.top_k = d->top_k; r.top_p = d->top_p; r.order = d->order;
    return r;
}

/* What must never be produced: the mask's row and rows beyond the tokenizer (padded vocabularies). */
PDI_FN void pdi_exclude(const prediff_context *c, float *logits) {
    size_t i, V = c->m->hp.n_vocab;
    for (i = c->m->tok.n_used ? c->m->tok.n_used : V; i < V; i++) logits[i] = -HUGE_VALF;
    if (c->m->mask_token >= 0) logits[c->m->mask_token] = -HUGE_VALF;
}

typedef struct pdi_read_job { prediff_context *c; size_t n; uint32_t rows[PDI_HEAD_ROWS]; uint8_t failed[PDI_HEAD_ROWS], masked[PDI_HEAD_ROWS]; int soft; } pdi_read_job;

/* Rows i, i + n, ... of a piece of logits: read the masked ones, turn all into probabilities if a soft prediction is kept. */
PDI_FN void pdi_read_share(void *arg, size_t i, size_t n) {
    pdi_read_job *j = (pdi_read_job *)arg;
    prediff_context *c = j->c;
    size_t V = c->m->hp.n_vocab, share = i;
    for (; i < j->n; i += n) {
        float *logits = c->logits + i * V;
        size_t s = j->rows[i] / c->run.n, at = j->rows[i] % c->run.n;
        const pdi_sample *p = &c->samples[s];
        double sum = 1, dot;
        j->failed[i] = 0;
        if (j->masked[i]) {
            pdi_choice_rule rule = pdi_rule(c, p);
            uint32_t position = (uint32_t)(c->n_prompt + at - p->begin), step = (uint32_t)p->step;
            double u = prediff_uniform(c->run.d.seed + s, PDI_STREAM_TOKEN, 0, position, step);
            pdi_cell *cell = &c->cells[j->rows[i]];
            j->failed[i] = !pdi_read_row(c, logits, V, &rule, u, c->run.teacher ? c->run.teacher[j->rows[i]] : -1,
                                         c->tempered + share * V, c->candidates + share * V, cell, &sum);
            if (rule.order == PREDIFF_RANDOM) cell->key = (float)prediff_uniform(c->run.d.seed + s, PDI_STREAM_ORDER, 0, position, step);
        } else {
            float max = c->k->row_max(logits, V);
            c->k->row_exp(logits, logits, max, V, &sum, &dot);
            j->failed[i] = !pdi_is_finite_double(&sum);
        }
        if (j->soft && !j->failed[i]) c->k->scale(logits, (float)(1.0 / sum), V);
    }
}

/* Lets the caller's hook see the logits of position `at` of sample s. */
PDI_FN void pdi_call_hook(prediff_context *c, size_t s, size_t at, float *logits) {
    const prediff_generate_desc *d = &c->run.d;
    if (!d->logit_hook) return;
    c->busy = 1;
    d->logit_hook(d->user, s, at, logits, c->m->hp.n_vocab);
    c->busy = 0;
}

/* A piece of at most 32 rows: logits, the caller's hook, choices, soft predictions. */
PDI_FN prediff_status pdi_read_piece(prediff_context *c, pdi_read_job *j, prediff_error *err) {
    const prediff_generate_desc *d = &c->run.d;
    size_t V = c->m->hp.n_vocab, D = c->m->hp.n_embd, i;
    const float *rows[PDI_HEAD_ROWS];
    for (i = 0; i < j->n; i++) {
        size_t s = j->rows[i] / c->run.n;
        rows[i] = pdi_target_row(c, s, j->rows[i] % c->run.n - c->samples[s].begin);
    }
    pdi_head(c, rows, j->n, c->logits);
    for (i = 0; i < j->n; i++) {
        size_t s = j->rows[i] / c->run.n, at = j->rows[i] % c->run.n;
        const pdi_sample *p = &c->samples[s];
        if (j->masked[i]) pdi_call_hook(c, s, at, c->logits + i * V);
        if (j->masked[i] && d->no_repeat)
            pdi_repeats(c, c->run.target + s * c->run.n + p->begin, p->length, c->n_prompt + at - p->begin, d->no_repeat, c->logits + i * V, -1);
        pdi_exclude(c, c->logits + i * V);
    }
    j->c = c;
    pdi_parallel(&c->threads, pdi_read_share, j, 20.0 * (double)V * (double)j->n);
    for (i = 0; i < j->n; i++) {
        size_t at = j->rows[i] % c->run.n;
        if (j->failed[i]) return PDI_FAIL_AT(err, NUMERIC, LOGITS, at, "the logits of target position %u are no distribution (not-a-number, or all -infinity)", (uint64_t)at);
    }
    if (j->soft) {                                              /* expected embeddings: the next step's self-conditioning */
        pdi_multiply(c, c->h, D, c->logits, V, j->n, &c->m->token_embd, 1);
        for (i = 0; i < j->n; i++)
            memcpy(c->soft + (j->rows[i] / c->run.n * c->n_target + j->rows[i] % c->run.n) * D, c->h + i * D, D * sizeof(float));
    }
    return PREDIFF_OK;
}

/* Runs the head over what a step needs: masked rows, and all rows where a soft prediction is kept. */
PDI_FN prediff_status pdi_read_rows(prediff_context *c, prediff_error *err) {
    const prediff_generate_desc *d = &c->run.d;
    size_t D = c->m->hp.n_embd, s, i;
    pdi_read_job j;
    j.n = 0;
    j.soft = c->m->selfcond.data && !d->no_selfcond;
    for (s = c->run.first; s < c->run.end; s++) {
        pdi_sample *p = &c->samples[s];
        if (p->idle) continue;
        for (i = p->begin; i < p->begin + p->length; i++) {
            size_t at = pdi_cell_index(c, s, i);
            int masked = c->run.target[at] == PREDIFF_MASK;
            if (j.soft && d->selfcond_masked_only && !masked) memset(c->soft + (s * c->n_target + i) * D, 0, D * sizeof(float));
            if (!masked && (!j.soft || d->selfcond_masked_only)) continue;
            j.masked[j.n] = (uint8_t)masked;
            j.rows[j.n++] = (uint32_t)at;
            if (j.n == PDI_HEAD_ROWS) { PDI_TRY(pdi_read_piece(c, &j, err)); j.n = 0; }
        }
        p->have_soft = j.soft;
    }
    return j.n ? pdi_read_piece(c, &j, err) : PREDIFF_OK;
}

typedef struct pdi_order_by { const pdi_cell *cells; size_t window; } pdi_order_by;

PDI_FN int pdi_reveal_before(const void *ctx, uint32_t a, uint32_t b) {
    const pdi_order_by *o = (const pdi_order_by *)ctx;
    size_t wa = o->window ? a / o->window : 0, wb = o->window ? b / o->window : 0;
    if (wa != wb) return wa < wb;
    if (o->cells[a].key > o->cells[b].key) return 1;
    return !(o->cells[a].key < o->cells[b].key) && a < b;
}

/* An end-of-text proposal counts less by eos_penalty. */
PDI_FN void pdi_penalise_ends(prediff_context *c, size_t s, size_t n) {
    float keep = (float)(1.0 - c->run.d.eos_penalty);
    size_t i;
    for (i = 0; i < n; i++) {
        pdi_cell *cell = &c->cells[pdi_cell_index(c, s, c->order[i])];
        if (!(c->run.d.eos_penalty > 0) || !prediff_token_ends(c->m, cell->token)) continue;
        cell->confidence *= keep;
        if (c->run.d.order == PREDIFF_ENTROPY) cell->key += keep > 0 ? (float)log((double)keep) : -1e9f;
        else cell->key *= keep;
    }
}

/* Largest prefix of the order with sum H - max H <= bound (Ben-Hamu et al. 2025): what is lost by drawing independently. */
PDI_FN size_t pdi_entropy_bounded(const prediff_context *c, size_t s, size_t n, double bound) {
    double sum = 0, max = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double h = (double)c->cells[pdi_cell_index(c, s, c->order[i])].entropy;
        sum += h;
        if (h > max) max = h;
        if (sum - max > bound && i) break;
    }
    return i;
}

/* stop_sure: no argmax changed since the step before and the mean entropy is tiny. */
PDI_FN int pdi_is_sure(prediff_context *c, size_t s, size_t n) {
    double sum = 0;
    int same = c->samples[s].step > 1;
    size_t i;
    for (i = 0; i < n; i++) {
        pdi_cell *cell = &c->cells[pdi_cell_index(c, s, c->order[i])];
        if (cell->argmax != cell->argmax_before) same = 0;
        cell->argmax_before = cell->argmax;
        sum += (double)cell->entropy;
    }
    return same && sum / (double)n < 0.005;
}

/* How many of the n masked positions in c->order (best first) CAU reveals now. */
PDI_FN size_t pdi_cau_count(prediff_context *c, size_t s, size_t n) {
    const prediff_generate_desc *d = &c->run.d;
    const pdi_sample *p = &c->samples[s];
    size_t i, k = 0;
    if (d->stop_sure && pdi_is_sure(c, s, n)) { c->run.r.ended = PREDIFF_ENDED_SURE; return n; }
    if (p->step >= p->n_steps) return n;
    if (!(d->threshold > 0) && !(d->entropy_bound > 0)) return prediff_unmask_count(d->schedule, p->masks_begin, n, p->step, p->n_steps);
    for (i = 0; d->window && i < n; i++) if (c->order[i] / d->window != c->order[0] / d->window) n = i;
    if (d->entropy_bound > 0) return pdi_entropy_bounded(c, s, n, d->entropy_bound);
    for (i = 0; i < n; i++) k += (double)c->cells[pdi_cell_index(c, s, c->order[i])].confidence >= d->threshold;
    return pdi_max(k, 1);
}

/* Under a threshold the confident ones come first, whatever the order is. */
PDI_FN void pdi_threshold_keys(prediff_context *c, size_t s, size_t n) {
    size_t i;
    for (i = 0; c->run.d.threshold > 0 && i < n; i++) {
        pdi_cell *cell = &c->cells[pdi_cell_index(c, s, c->order[i])];
        if ((double)cell->confidence >= c->run.d.threshold) cell->key += 64.0f;       /* above every key; entropies stay below 64 */
    }
}

PDI_FN void pdi_reveal(prediff_context *c, size_t s, size_t i) {
    size_t at = pdi_cell_index(c, s, i);
    c->run.target[at] = c->cells[at].token;
    c->revealed_at[at] = (int32_t)c->run.r.n_steps;
    c->samples[s].masks_left--;
    c->run.r.logprob += (double)c->cells[at].logprob;
    if (c->run.d.logprob) c->run.d.logprob[at] = c->cells[at].logprob;
}

/* Reveals k of the n positions in c->order. A repeat that two reveals of one step would make waits for the next step. */
PDI_FN size_t pdi_reveal_first(prediff_context *c, size_t s, size_t n, size_t k) {
    const pdi_sample *p = &c->samples[s];
    const int32_t *t = c->run.target + s * c->run.n + p->begin;
    size_t i, done = 0;
    for (i = 0; i < n && done < k; i++) {
        size_t at = c->order[i];
        int repeats = k < n && c->run.d.no_repeat && i > 0 &&
            pdi_repeats(c, t, p->length, c->n_prompt + at - p->begin, c->run.d.no_repeat, NULL, c->cells[pdi_cell_index(c, s, at)].token);
        if (repeats) continue;
        pdi_reveal(c, s, at);
        done++;
    }
    return done;
}

/* c->order = the masked positions of a sample (target indices), best first. */
PDI_FN size_t pdi_sort_masked(prediff_context *c, size_t s) {
    const pdi_sample *p = &c->samples[s];
    pdi_order_by by;
    size_t i, n = 0;
    for (i = p->begin; i < p->begin + p->length; i++)
        if (c->run.target[pdi_cell_index(c, s, i)] == PREDIFF_MASK) c->order[n++] = (uint32_t)i;
    pdi_penalise_ends(c, s, n);
    pdi_threshold_keys(c, s, n);
    by.cells = c->cells + s * c->run.n;
    by.window = c->run.d.window;
    pdi_sort(c->order, n, pdi_reveal_before, &by);
    return n;
}

/* The reverse process goes from time 1 to 1e-5 in N equal steps; from t to u it reveals each mask with probability 1 - u/t (Sahoo
   et al. 2024). Drawn before the evaluation: it does not depend on the model. Returns how many were picked. */
PDI_FN size_t pdi_pick_ancestral(prediff_context *c, size_t s) {
    pdi_sample *p = &c->samples[s];
    double t = p->time, next = 1.0 + (1e-5 - 1.0) * (double)p->step / (double)p->n_steps;
    size_t i, n = 0;
    for (i = p->begin; i < p->begin + p->length; i++) {
        size_t at = pdi_cell_index(c, s, i);
        if (c->run.target[at] != PREDIFF_MASK) continue;
        c->cells[at].pick = p->step > p->n_steps ||
            prediff_uniform(c->run.d.seed + s, PDI_STREAM_REVEAL, 0, (uint32_t)(c->n_prompt + i - p->begin), (uint32_t)p->step) >= next / t;
        n += c->cells[at].pick;
    }
    p->time = p->step > p->n_steps ? 0 : next;
    return n;
}

/* First hitting (Zheng et al. 2024): with m masks the next reveal is at time t u^(1/m), at a uniformly random mask. */
PDI_FN void pdi_pick_first_hitting(prediff_context *c, size_t s) {
    pdi_sample *p = &c->samples[s];
    double u = prediff_uniform(c->run.d.seed + s, PDI_STREAM_TIME, 0, (uint32_t)p->begin, (uint32_t)p->step);
    double v = prediff_uniform(c->run.d.seed + s, PDI_STREAM_TIME, 1, (uint32_t)p->begin, (uint32_t)p->step);
    size_t i, which = pdi_min((size_t)(v * (double)p->masks_left), p->masks_left - 1);
    p->time *= pow(1.0 - u, 1.0 / (double)p->masks_left);
    for (i = p->begin; i < p->begin + p->length; i++) {
        size_t at = pdi_cell_index(c, s, i);
        if (c->run.target[at] == PREDIFF_MASK) c->cells[at].pick = which-- == 0 || p->step >= p->n_steps;
    }
}

/* Noise that is not held fixed: a row still masked after alpha went from a to b is redrawn with probability 1 - a/b, the
   posterior of the infinite-mask process; alpha is the revealed share. */
PDI_FN void pdi_redraw(prediff_context *c, size_t s, size_t masks_before) {
    const pdi_sample *p = &c->samples[s];
    int redraw = c->run.d.noise == PREDIFF_NOISE_REDRAW || (c->run.d.noise == PREDIFF_NOISE_DEFAULT && c->m->hp.noise_redraw);
    double a = 1.0 - (double)masks_before / (double)p->masks_begin, b = 1.0 - (double)p->masks_left / (double)p->masks_begin;
    size_t i;
    if (!c->m->noise[0].data || !redraw || !(b > a)) return;
    for (i = p->begin; i < p->begin + p->length; i++) {
        size_t at = pdi_cell_index(c, s, i);
        if (c->run.target[at] == PREDIFF_MASK &&
            prediff_uniform(c->run.d.seed + s, PDI_STREAM_REDRAW, 0, (uint32_t)(c->n_prompt + i - p->begin), (uint32_t)p->step) < 1.0 - a / b)
            c->cells[at].redraws++;
    }
}

/* If a generated end-of-text token is followed only by positions that were to be generated, the text ends there: the rest
   becomes that token, and is computed no more. */
PDI_FN void pdi_close_at_end(prediff_context *c, size_t s) {
    pdi_sample *p = &c->samples[s];
    int32_t *t = c->run.target + s * c->run.n;
    size_t end = c->run.n, i, first = c->run.n;
    if (c->run.d.ignore_eos || c->run.teacher) return;
    while (end > p->begin && !c->cells[pdi_cell_index(c, s, end - 1)].given) end--;      /* after the last given token */
    for (i = pdi_max(end, p->begin); i < p->begin + p->length && first == c->run.n; i++)
        if (t[i] != PREDIFF_MASK && prediff_token_ends(c->m, t[i])) first = i;
    if (first == c->run.n || (p->closed && first + 1 == p->begin + p->length)) return;
    for (i = first + 1; i < c->run.n; i++) {
        pdi_cell *cell = &c->cells[pdi_cell_index(c, s, i)];
        if (t[i] == PREDIFF_MASK && i < p->begin + p->length) p->masks_left--;
        if (t[i] != PREDIFF_MASK) c->run.r.logprob -= (double)cell->logprob;      /* revealed earlier, now cut off */
        cell->logprob = 0;
        t[i] = t[first];
        c->revealed_at[s * c->run.n + i] = (int32_t)c->run.r.n_steps;
        if (c->run.d.logprob) c->run.d.logprob[s * c->run.n + i] = 0;
    }
    p->length = pdi_min(p->length, first + 1 - p->begin);
    p->closed = 1;
}

/* Commits a sample's choices of this step. */
PDI_FN size_t pdi_commit(prediff_context *c, size_t s) {
    pdi_sample *p = &c->samples[s];
    size_t before = p->masks_left, i, n;
    if (c->run.d.sampler == PREDIFF_CAU) {
        n = pdi_sort_masked(c, s);
        pdi_reveal_first(c, s, n, pdi_cau_count(c, s, n));
    } else
        for (i = p->begin; i < p->begin + p->length; i++) {
            size_t at = pdi_cell_index(c, s, i);
            if (c->run.target[at] == PREDIFF_MASK && c->cells[at].pick) pdi_reveal(c, s, i);
        }
    n = before - p->masks_left;
    pdi_close_at_end(c, s);
    pdi_redraw(c, s, before);
    return n;
}

PDI_FN size_t pdi_total_masks(const prediff_context *c) {
    return pdi_count_masks(c->run.target + c->run.first * c->run.n, (c->run.end - c->run.first) * c->run.n);
}

PDI_FN prediff_status pdi_tell_step(prediff_context *c, double rate, size_t revealed, prediff_error *err) {
    const prediff_generate_desc *d = &c->run.d;
    const pdi_sample *first = &c->samples[c->run.first];
    prediff_step_info info;
    int stop;
    if (!d->on_step) return PREDIFF_OK;
    memset(&info, 0, sizeof info);
    info.step = first->step; info.n_steps = first->n_steps;
    info.sample_begin = c->run.first; info.sample_end = c->run.end;
    info.target = c->run.target; info.revealed_at = c->revealed_at; info.n = c->run.n;
    info.n_revealed = revealed; info.n_masks_left = pdi_total_masks(c);
    info.n_evaluations = c->run.r.n_evaluations; info.n_rows = c->run.r.n_rows;
    info.rate = rate; info.time = d->sampler == PREDIFF_FIRST_HITTING ? first->time : 0;
    c->busy = 1;
    stop = d->on_step(d->user, &info);
    c->busy = 0;
    if (!stop) return PREDIFF_OK;
    c->run.r.ended = PREDIFF_ENDED_CANCELLED;
    return PDI_FAIL(err, CANCELLED, STOPPED, "stopped by on_step after step %u", (uint64_t)c->run.r.n_steps);
}

/* Steps of a sample's region: how many it may take. */
PDI_FN void pdi_open_region(prediff_context *c, size_t s, size_t begin, size_t length) {
    pdi_sample *p = &c->samples[s];
    const prediff_generate_desc *d = &c->run.d;
    memset(p, 0, sizeof *p);
    p->begin = begin;
    p->length = length;
    p->masks_begin = p->masks_left = pdi_count_masks(c->run.target + s * c->run.n + begin, length);
    p->n_steps = d->n_steps ? d->n_steps : d->sampler == PREDIFF_FIRST_HITTING ? p->masks_left : pdi_min(p->masks_left, 16);
    if (d->sampler == PREDIFF_CAUSAL_DECODING) p->n_steps = p->masks_left;
    if (d->sampler != PREDIFF_ANCESTRAL) p->n_steps = pdi_min(p->n_steps, p->masks_left);
    p->time = 1.0;
}

/* When a block is full and more text is to come: make it part of the prompt and open the next one. */
PDI_FN prediff_status pdi_next_block(prediff_context *c, prediff_error *err) {
    pdi_sample *p = &c->samples[c->run.first];
    const int32_t *t = c->run.target + c->run.first * c->run.n;
    size_t end = p->begin + p->length;
    while (c->run.d.block && !p->masks_left && !p->closed && end < c->run.n) {
        PDI_TRY(pdi_append(c, t + p->begin, p->length, NULL, NULL, err));
        if (c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) c->run.r.n_rows += p->length;
        pdi_open_region(c, c->run.first, end, pdi_min(c->run.d.block, c->run.n - end));
        end = p->begin + p->length;
    }
    return PREDIFF_OK;
}

PDI_FN int pdi_run_done(const prediff_context *c) {
    size_t s, left = 0;
    for (s = c->run.first; s < c->run.end; s++) left += c->samples[s].masks_left;
    return left == 0;
}

/* Prepares a step: which samples take part, what the random samplers reveal. Returns the evaluations that are needed. */
PDI_FN int pdi_prepare_step(prediff_context *c) {
    int needed = 0;
    size_t s;
    for (s = c->run.first; s < c->run.end; s++) {
        pdi_sample *p = &c->samples[s];
        int soft = c->m->selfcond.data && !c->run.d.no_selfcond;
        p->idle = !p->masks_left;
        if (p->idle) continue;
        p->step++;
        if (c->run.d.sampler == PREDIFF_ANCESTRAL) needed |= pdi_pick_ancestral(c, s) || soft;
        else needed = 1;
        if (c->run.d.sampler == PREDIFF_FIRST_HITTING) pdi_pick_first_hitting(c, s);
    }
    return needed;
}

PDI_FN prediff_status pdi_denoise_step(prediff_context *c, prediff_error *err) {
    pdi_evaluation e;
    size_t s, rows = 0, revealed = 0;
    double rate = 0;
    int needed = pdi_prepare_step(c);
    c->run.r.n_steps++;
    memset(&e, 0, sizeof e);
    e.target = c->run.target; e.ld = c->run.n; e.first = c->run.first; e.end = c->run.end; e.seed = c->run.d.seed;
    e.no_rate = c->run.d.no_rate; e.no_selfcond = c->run.d.no_selfcond; e.no_noise = c->run.d.no_noise;
    for (s = c->run.end; s-- > c->run.first;) if (!c->samples[s].idle) rate = (double)c->samples[s].masks_left / (double)c->samples[s].length;
    if (needed) {                                               /* a step that reveals nothing and feeds nothing is free */
        PDI_TRY(pdi_evaluate(c, &e, &rows, err));
        c->run.r.n_evaluations++;
        c->run.r.n_rows += rows;
        PDI_TRY(pdi_read_rows(c, err));
    }
    for (s = c->run.first; s < c->run.end; s++) if (!c->samples[s].idle) revealed += pdi_commit(c, s);
    PDI_TRY(pdi_tell_step(c, rate, revealed, err));
    return pdi_next_block(c, err);
}

/* Causal decoding: one token. Given tokens are passed through; the pending ones are appended to the prompt first. */
PDI_FN prediff_status pdi_causal_step(prediff_context *c, prediff_error *err) {
    size_t s = c->run.first, V = c->m->hp.n_vocab, at = c->run.pending;
    const int32_t *t = c->run.target + s * c->run.n;
    pdi_sample *p = &c->samples[s];
    const float *row = c->last;
    pdi_choice_rule rule;
    double sum, u;
    while (t[at] != PREDIFF_MASK) at++;
    if (at > c->run.pending) {
        PDI_TRY(pdi_append(c, t + c->run.pending, at - c->run.pending, NULL, NULL, err));
        c->run.r.n_evaluations++;
        c->run.r.n_rows += at - c->run.pending;
    }
    PDI_TRY(pdi_need_last(c, err));
    c->run.pending = at;
    c->run.r.n_steps++;
    p->step++;
    pdi_head(c, &row, 1, c->logits);
    pdi_call_hook(c, s, at, c->logits);
    if (c->run.d.no_repeat) pdi_repeats(c, t + at, 1, c->n_prompt, c->run.d.no_repeat, c->logits, -1);
    pdi_exclude(c, c->logits);
    rule = pdi_rule(c, p);
    u = prediff_uniform(c->run.d.seed + s, PDI_STREAM_TOKEN, 0, (uint32_t)c->n_prompt, 0);
    if (!pdi_read_row(c, c->logits, V, &rule, u, -1, c->tempered, c->candidates, &c->cells[pdi_cell_index(c, s, at)], &sum))
        return PDI_FAIL_AT(err, NUMERIC, LOGITS, at, "the logits of target position %u are no distribution", (uint64_t)at);
    pdi_reveal(c, s, at);
    pdi_close_at_end(c, s);
    return pdi_tell_step(c, 0, 1, err);
}

/* -- begin, step, end -- */

PDI_FN int pdi_in_range(double v, double low, double high) { return v >= low && v <= high; }

PDI_FN prediff_status pdi_check_generate(const prediff_context *c, const prediff_generate_desc *d, prediff_error *err) {
    const char *bad = NULL;
    if ((unsigned)d->sampler > PREDIFF_CAUSAL_DECODING) bad = "sampler";
    if ((unsigned)d->order > PREDIFF_RANDOM) bad = "order";
    if ((unsigned)d->schedule > PREDIFF_TIMES) bad = "schedule";
    if ((unsigned)d->noise > PREDIFF_NOISE_REDRAW) bad = "noise";
    if (!pdi_in_range(d->temperature, 0, 1e6)) bad = "temperature (0 and more)";
    if (!pdi_in_range(d->temperature_end, 0, 1e6)) bad = "temperature_end (0 and more)";
    if (!pdi_in_range(d->top_p, 0, 1)) bad = "top_p (0 = off, to 1)";
    if (!pdi_in_range(d->threshold, 0, 1e30)) bad = "threshold (0 = off, and more)";
    if (!pdi_in_range(d->entropy_bound, 0, 1e30)) bad = "entropy_bound (0 = off, and more)";
    if (!pdi_in_range(d->eos_penalty, 0, 1)) bad = "eos_penalty (0 to 1)";
    if (bad) return PDI_FAIL(err, ARG, VALUE_RANGE, "desc.%s is out of range", bad);
    if (d->threshold > 0 && d->entropy_bound > 0) return PDI_FAIL(err, ARG, CONFLICT, "threshold and entropy_bound exclude each other");
    if (d->sampler != PREDIFF_CAU && (d->threshold > 0 || d->entropy_bound > 0 || d->stop_sure || d->window))
        return PDI_FAIL(err, ARG, CONFLICT, "threshold, entropy_bound, stop_sure and window belong to the CAU sampler");
    if (d->stop_sure && (d->temperature >= 1e-4 || d->temperature_end >= 1e-4)) return PDI_FAIL(err, ARG, CONFLICT, "stop_sure needs temperature 0");
    if (d->block && d->window) return PDI_FAIL(err, ARG, CONFLICT, "block and window exclude each other");
    if (d->block && d->sampler == PREDIFF_CAUSAL_DECODING) return PDI_FAIL(err, ARG, CONFLICT, "causal decoding has no blocks");
    if (d->sampler == PREDIFF_CAUSAL_DECODING && c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL)
        return PDI_FAIL(err, ARG, CONFLICT, "a bidirectional context cannot decode causally");
    return PREDIFF_OK;
}

/* Blocks are committed causally, so nothing given may stand to the right of a gap. */
PDI_FN prediff_status pdi_check_right(const int32_t *t, size_t n, const char *what, prediff_error *err) {
    size_t i = 0;
    while (i < n && t[i] != PREDIFF_MASK) i++;
    while (i < n && t[i] == PREDIFF_MASK) i++;
    if (i < n) return PDI_FAIL_AT(err, ARG, CONFLICT, i, "%s cannot see the text given after a gap (position %u): use window", what, (uint64_t)i);
    return PREDIFF_OK;
}

/* Starts a run of samples first .. end-1 over checked arguments. */
PDI_FN void pdi_start(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, size_t first, size_t end, const int32_t *teacher) {
    size_t i, s, block = d->block ? d->block : n;
    memset(&c->run, 0, sizeof c->run);
    c->run.active = 1;
    c->run.d = *d;
    c->run.target = target;
    c->run.teacher = teacher;
    c->run.n = n;
    c->run.first = first;
    c->run.end = end;
    c->run.prompt_before = c->n_prompt;
    for (i = first * n; i < end * n; i++) {
        memset(&c->cells[i], 0, sizeof c->cells[i]);
        c->cells[i].argmax_before = -1;
        c->cells[i].given = target[i] != PREDIFF_MASK;
        c->revealed_at[i] = 0;
        if (d->logprob) d->logprob[i] = 0;
    }
    for (s = c->run.first; s < c->run.end; s++) pdi_open_region(c, s, 0, pdi_min(block, n));
}

PDI_FN size_t pdi_samples(const prediff_generate_desc *d) { return d->samples ? d->samples : 1; }

/* Checks everything, then begins with samples first .. end-1 of target. */
PDI_FN prediff_status pdi_begin(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, size_t first, size_t end, prediff_error *err) {
    int causal = d->sampler == PREDIFF_CAUSAL_DECODING;
    prediff_status s;
    size_t i;
    PDI_TRY(pdi_check_generate(c, d, err));
    PDI_TRY(pdi_check_target(c, target, n, pdi_samples(d), err));
    if ((causal || d->block) && end - first > 1)
        return PDI_FAIL(err, ARG, SAMPLES, "%s one sample at a time here: use prediff_generate", causal ? "causal decoding runs" : "blocks run");
    for (i = first; (causal || d->block) && i < end; i++) PDI_TRY(pdi_check_right(target + i * n, n, causal ? "causal decoding" : "block", err));
    if (!causal && pdi_count_masks(target + first * n, (end - first) * n)) PDI_TRY(pdi_need_mask(c, err));
    if (causal && !c->n_prompt && n && target[first * n] == PREDIFF_MASK)
        return PDI_FAIL(err, ARG, SHIFT_PROMPT, "causal decoding needs a prompt of at least one token");
    if (c->m->hp.shift && c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL && !c->n_prompt && n)
        return PDI_FAIL(err, ARG, SHIFT_PROMPT, "this shifted model needs a prompt of at least one token");
    pdi_start(c, target, n, d, first, end, NULL);
    s = pdi_next_block(c, err);
    if (s) { pdi_cut_prompt(c, c->run.prompt_before); c->run.active = 0; }
    return s;
}

PDI_DEF prediff_status prediff_begin(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, prediff_error *err) {
    prediff_generate_desc zero;
    memset(&zero, 0, sizeof zero);
    PDI_TRY(pdi_enter(c, 0, err));
    if (!d) d = &zero;
    PDI_TRY(pdi_check_desc(d, d->canary_begin, d->canary_end, err));
    return pdi_begin(c, target, n, d, 0, pdi_samples(d), err);
}

PDI_DEF prediff_status prediff_step(prediff_context *c, int *done, prediff_error *err) {
    prediff_status s = PREDIFF_OK;
    PDI_TRY(pdi_enter(c, 1, err));
    if (!done) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "done is NULL");
    if (!c->run.active) return PDI_FAIL(err, ARG, NOT_BEGUN, "call prediff_begin first");
    if (!pdi_run_done(c)) s = c->run.d.sampler == PREDIFF_CAUSAL_DECODING ? pdi_causal_step(c, err) : pdi_denoise_step(c, err);
    *done = s || pdi_run_done(c);
    return s;
}

/* Tokens filled in up to and including the first that ends the text; what follows it is padding. */
PDI_FN size_t pdi_count_emitted(const prediff_context *c, int *ended) {
    size_t s, i, n = 0;
    for (s = c->run.first; s < c->run.end; s++) {
        const pdi_cell *cells = c->cells + s * c->run.n;
        const int32_t *t = c->run.target + s * c->run.n;
        for (i = 0; i < c->run.n; i++) {
            if (cells[i].given || t[i] == PREDIFF_MASK) continue;
            n++;
            if (c->samples[s].closed && prediff_token_ends(c->m, t[i]) && i + 1 >= c->samples[s].begin + c->samples[s].length) { *ended = 1; break; }
        }
    }
    return n;
}

PDI_DEF prediff_status prediff_end(prediff_context *c, prediff_result *r, prediff_error *err) {
    size_t i;
    int ended = 0;
    PDI_TRY(pdi_enter(c, 1, err));
    if (!c->run.active) return PDI_FAIL(err, ARG, NOT_BEGUN, "call prediff_begin first");
    c->run.r.n_masks_left = pdi_total_masks(c);
    c->run.r.n_emitted = pdi_count_emitted(c, &ended);
    c->run.r.time = c->run.d.sampler == PREDIFF_FIRST_HITTING ? c->samples[c->run.first].time : 0;
    if (c->run.r.ended != PREDIFF_ENDED_CANCELLED && c->run.r.n_masks_left) c->run.r.ended = PREDIFF_ENDED_EARLY;
    else if (c->run.r.ended == PREDIFF_ENDED_FILLED && ended) c->run.r.ended = PREDIFF_ENDED_EOS;
    for (i = c->run.first * c->run.n; c->run.d.revealed_at && i < c->run.end * c->run.n; i++)
        c->run.d.revealed_at[i] = c->run.target[i] == PREDIFF_MASK ? -1 : c->revealed_at[i];
    if (r) *r = c->run.r;
    pdi_cut_prompt(c, c->run.prompt_before);
    c->run.active = 0;
    return PREDIFF_OK;
}

/* begin, steps, end, for samples first .. end-1. */
PDI_FN prediff_status pdi_generate_part(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, size_t first, size_t end,
                                        prediff_result *r, prediff_error *err) {
    prediff_status s;
    int done = 0;
    PDI_TRY(pdi_begin(c, target, n, d, first, end, err));
    for (s = PREDIFF_OK; !s && !done;) s = prediff_step(c, &done, err);
    prediff_end(c, r, NULL);
    return s;
}

PDI_DEF prediff_status prediff_generate(prediff_context *c, int32_t *target, size_t n, const prediff_generate_desc *d, prediff_result *r, prediff_error *err) {
    prediff_generate_desc zero;
    prediff_result total, part;
    prediff_status s = PREDIFF_OK;
    size_t first, together;
    memset(&zero, 0, sizeof zero);
    memset(&total, 0, sizeof total);
    if (r) *r = total;
    PDI_TRY(pdi_enter(c, 0, err));
    if (!d) d = &zero;
    PDI_TRY(pdi_check_desc(d, d->canary_begin, d->canary_end, err));
    /* samples share each pass, unless each has its own prompt after the first block or token: then in turn */
    together = d->block || d->sampler == PREDIFF_CAUSAL_DECODING ? 1 : pdi_samples(d);
    for (first = 0; first < pdi_samples(d) && !s; first += together) {
        memset(&part, 0, sizeof part);
        s = pdi_generate_part(c, target, n, d, first, first + together, &part, err);
        total.ended = part.ended; total.time = part.time;
        total.n_steps += part.n_steps; total.n_evaluations += part.n_evaluations; total.n_rows += part.n_rows;
        total.n_emitted += part.n_emitted; total.logprob += part.logprob;
    }
    if (s != PREDIFF_ERR_ARG && target) total.n_masks_left = pdi_count_masks(target, pdi_samples(d) * n);
    if (r) *r = total;
    return s;
}

/* ---- >>SCORE: likelihoods and bounds -------------------------------------------------------------------------------

   CAUSAL       sum over i of -log p(x_i | x_<i): exact, from prompt rows.
   NELBO        E over l ~ U{1..T}, l random positions masked, of (T/l) sum CE: an upper bound of -log p(x | prompt).
   NELBO_RATE   E over t ~ U(0,1), each position masked with probability t, of (1/t) sum CE: the same bound, more spread.
   N_STEP       sum over k = 1..N of E at t = k/N of (1/k) sum CE: the bound of the N-step reverse process.
   ORDER        the deterministic confidence order, fed with the true tokens: exact for that decoder. */

/* -log p(token) of a row of logits. */
PDI_FN int pdi_cross_entropy(prediff_context *c, float *logits, int32_t token, double *ce) {
    size_t V = c->m->hp.n_vocab;
    float max = c->k->row_max(logits, V), at = logits[token];
    double sum, dot;
    c->k->row_exp(logits, logits, max, V, &sum, &dot);
    if (!pdi_is_finite(&max) || !pdi_is_finite_double(&sum)) return 0;
    *ce = log(sum) - ((double)at - (double)max);
    return 1;
}

typedef struct pdi_score_rows { const int32_t *next; const uint8_t *given; size_t skip, n; double nats; size_t scored; } pdi_score_rows;

/* Prompt rows just computed: row `first + i` predicts next[first + i]. */
PDI_FN prediff_status pdi_score_causal_rows(prediff_context *c, void *arg, size_t first, size_t n, prediff_error *err) {
    pdi_score_rows *j = (pdi_score_rows *)arg;
    const float *rows[PDI_HEAD_ROWS];
    size_t i, k, at[PDI_HEAD_ROWS], V = c->m->hp.n_vocab;
    for (i = 0; i < n;) {
        for (k = 0; i < n && k < PDI_HEAD_ROWS; i++) {
            size_t t = first + i;
            if (t >= j->n || (j->given && j->given[t])) continue;
            at[k] = t;
            rows[k++] = c->x + i * c->m->hp.n_embd;
        }
        if (k) pdi_head(c, rows, k, c->logits);
        while (k-- > 0) {
            double ce;
            if (!pdi_cross_entropy(c, c->logits + k * V, j->next[at[k]], &ce))
                return PDI_FAIL_AT(err, NUMERIC, LOGITS, at[k], "the logits of target position %u are not finite", (uint64_t)at[k]);
            j->nats += ce;
            j->scored++;
        }
    }
    return PREDIFF_OK;
}

/* The last prompt token is appended again, followed by all of the target but its last token. */
PDI_FN prediff_status pdi_score_causal(prediff_context *c, const int32_t *t, size_t n, const prediff_score_desc *d, prediff_score_result *r, prediff_error *err) {
    size_t before = c->n_prompt, skip = before ? 0 : 1;
    pdi_score_rows j;
    prediff_status s = PREDIFF_OK;
    if (n <= skip) return PREDIFF_OK;
    memset(&j, 0, sizeof j);
    j.next = t + skip;
    j.given = d->given ? d->given + skip : NULL;
    j.n = n - skip;
    if (before) {
        int32_t last = c->prompt[before - 1];
        c->n_prompt--;
        j.n = 1;                                                /* first the row of the last prompt token, then the rest */
        s = pdi_append(c, &last, 1, pdi_score_causal_rows, &j, err);
        j.next = t + 1; j.given = d->given ? d->given + 1 : NULL; j.n = n - 1;
        r->n_rows++;
    }
    if (!s) s = pdi_append(c, t, n - 1, pdi_score_causal_rows, &j, err);
    r->n_rows += n - 1;
    r->n_evaluations = 1;
    r->nats = j.nats;
    r->n_scored = j.scored;
    pdi_cut_prompt(c, before);
    return s;
}

/* Fills one masking of the target: which of the positions to score are masked in draw `draw`; returns the weight of its CE. */
PDI_FN double pdi_score_mask(int32_t *out, const int32_t *t, size_t n, const prediff_score_desc *d, size_t scored, size_t draw, size_t draws, size_t n_steps) {
    double u0 = prediff_uniform(d->seed, PDI_STREAM_SCORE, 0, 0, 0), u = ((double)draw + u0) / (double)draws, rate = u;
    size_t i, left = scored, need = 0, masked = 0;
    if (d->kind == PREDIFF_SCORE_NELBO) need = pdi_min((size_t)(u * (double)scored) + 1, scored);
    if (d->kind == PREDIFF_SCORE_N_STEP) rate = (double)(draw % n_steps + 1) / (double)n_steps;
    for (i = 0; i < n; i++) {
        double v = prediff_uniform(d->seed, PDI_STREAM_SCORE, 1, (uint32_t)i, (uint32_t)draw);
        int mask = 0;
        if (!(d->given && d->given[i])) {
            mask = d->kind == PREDIFF_SCORE_NELBO ? v * (double)left < (double)(need - masked) : v < rate;   /* exactly `need` of `left` */
            left--;
        }
        masked += (size_t)mask;
        out[i] = mask ? PREDIFF_MASK : t[i];
    }
    if (!masked) return 0;
    if (d->kind == PREDIFF_SCORE_NELBO) return (double)scored / (double)need;
    if (d->kind == PREDIFF_SCORE_N_STEP) return 1.0 / (rate * (double)n_steps);
    return 1.0 / rate;
}

/* Weighted sum of CE over the masked rows of slot `slot`. */
PDI_FN prediff_status pdi_score_slot(prediff_context *c, const int32_t *masked, const int32_t *t, size_t n, size_t slot, double *ce_sum, prediff_error *err) {
    const float *rows[PDI_HEAD_ROWS];
    size_t at[PDI_HEAD_ROWS], i, k, V = c->m->hp.n_vocab;
    *ce_sum = 0;
    for (i = 0; i < n;) {
        for (k = 0; i < n && k < PDI_HEAD_ROWS; i++)
            if (masked[i] == PREDIFF_MASK) { at[k] = i; rows[k++] = pdi_target_row(c, slot, i); }
        if (k) pdi_head(c, rows, k, c->logits);
        while (k-- > 0) {
            double ce;
            pdi_exclude(c, c->logits + k * V);
            if (!pdi_cross_entropy(c, c->logits + k * V, t[at[k]], &ce))
                return PDI_FAIL_AT(err, NUMERIC, LOGITS, at[k], "the logits of target position %u are not finite", (uint64_t)at[k]);
            *ce_sum += ce;
        }
    }
    return PREDIFF_OK;
}

/* The three bounds: draws in groups of as many samples as the context has. */
PDI_FN prediff_status pdi_score_bound(prediff_context *c, const int32_t *t, size_t n, const prediff_score_desc *d, prediff_score_result *r, prediff_error *err) {
    size_t draws = d->draws ? d->draws : 64, n_steps = d->n_steps ? d->n_steps : pdi_min(n, 16), rounds, draw, s, k, rows;
    double mean = 0, square = 0, part = 0;
    size_t units = 0;                                           /* independent estimates: draws, or whole sweeps of N steps */
    pdi_evaluation e;
    memset(&e, 0, sizeof e);
    if (d->kind == PREDIFF_SCORE_N_STEP) draws = pdi_ceil_div(draws, n_steps) * n_steps;
    e.target = c->scratch_target; e.ld = n; e.seed = d->seed; e.one_seed = 1;
    e.no_rate = d->no_rate; e.no_selfcond = d->no_selfcond; e.no_noise = d->no_noise;
    rounds = d->kind == PREDIFF_SCORE_N_STEP ? n_steps : 1;
    for (draw = 0; draw < draws; draw += k) {
        double weight[64];
        k = pdi_min(pdi_min(c->n_samples, draws - draw), 64);
        e.end = k;
        for (s = 0; s < k; s++) {
            size_t i;
            weight[s] = pdi_score_mask(c->scratch_target + s * n, t, n, d, r->n_scored, draw + s, draws, n_steps);
            memset(&c->samples[s], 0, sizeof c->samples[s]);
            c->samples[s].length = n;
            c->samples[s].idle = weight[s] <= 0;
            for (i = 0; i < n; i++) c->cells[s * n + i].redraws = (uint32_t)(draw + s);    /* fresh noise each draw */
        }
        PDI_TRY(pdi_evaluate(c, &e, &rows, err));
        r->n_evaluations++;
        r->n_rows += rows;
        for (s = 0; s < k; s++) {
            double ce = 0;
            if (!c->samples[s].idle) PDI_TRY(pdi_score_slot(c, c->scratch_target + s * n, t, n, s, &ce, err));
            part += ce * weight[s];
            if ((draw + s + 1) % rounds) continue;
            mean += part; square += part * part; part = 0; units++;
        }
    }
    mean /= (double)units;
    r->nats = mean;
    square = square / (double)units - mean * mean;
    r->std_error = units > 1 && square > 0 ? sqrt(square / (double)(units - 1)) : 0;
    return PREDIFF_OK;
}

/* The decoder's own order: a generation whose reveals are the true tokens. */
PDI_FN prediff_status pdi_score_order(prediff_context *c, const int32_t *t, size_t n, const prediff_score_desc *d, prediff_score_result *r, prediff_error *err) {
    prediff_generate_desc g;
    prediff_result out;
    prediff_status s = PREDIFF_OK;
    size_t i;
    int done = 0;
    memset(&g, 0, sizeof g);
    memset(&out, 0, sizeof out);
    g.n_steps = d->n_steps; g.order = d->order; g.schedule = d->schedule; g.seed = d->seed;
    g.no_rate = d->no_rate; g.no_selfcond = d->no_selfcond; g.no_noise = d->no_noise;
    for (i = 0; i < n; i++) c->scratch_target[i] = d->given && d->given[i] ? t[i] : PREDIFF_MASK;
    pdi_start(c, c->scratch_target, n, &g, 0, 1, t);
    while (!s && !done) s = prediff_step(c, &done, err);
    prediff_end(c, &out, NULL);
    r->nats = -out.logprob;
    r->n_evaluations = out.n_evaluations;
    r->n_rows = out.n_rows;
    return s;
}

PDI_DEF prediff_status prediff_score(prediff_context *c, const int32_t *target, size_t n, const prediff_score_desc *d, prediff_score_result *r, prediff_error *err) {
    size_t i;
    PDI_TRY(pdi_enter(c, 0, err));
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    if (!r) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the result is NULL");
    memset(r, 0, sizeof *r);
    if ((unsigned)d->kind > PREDIFF_SCORE_ORDER || (unsigned)d->order > PREDIFF_RANDOM || (unsigned)d->schedule > PREDIFF_TIMES)
        return PDI_FAIL(err, ARG, VALUE_RANGE, "kind, order or schedule is not one of its values");
    if (d->draws > INT32_MAX || d->n_steps > INT32_MAX) return PDI_FAIL(err, ARG, VALUE_RANGE, "draws and n_steps must stay below 2^31");
    PDI_TRY(pdi_check_target(c, target, n, 1, err));
    PDI_TRY(pdi_check_ids(c, target, n, 0, err));
    for (i = 0; d->kind != PREDIFF_SCORE_CAUSAL && i < n; i++)
        if (!(d->given && d->given[i]) && (target[i] == c->m->mask_token || (c->m->tok.n_used && (size_t)target[i] >= c->m->tok.n_used)))
            return PDI_FAIL_AT(err, ARG, TOKEN_RANGE, i, "token %i at position %u is never produced, so it has no likelihood", (int64_t)target[i], (uint64_t)i);
    if (d->kind == PREDIFF_SCORE_CAUSAL) {
        if (c->attention == PREDIFF_ATTENTION_BIDIRECTIONAL) return PDI_FAIL(err, ARG, CONFLICT, "a bidirectional context has no causal likelihood");
        return pdi_score_causal(c, target, n, d, r, err);
    }
    for (i = 0; i < n; i++) r->n_scored += !(d->given && d->given[i]);
    if (!r->n_scored) return PREDIFF_OK;
    PDI_TRY(pdi_need_mask(c, err));
    return d->kind == PREDIFF_SCORE_ORDER ? pdi_score_order(c, target, n, d, r, err) : pdi_score_bound(c, target, n, d, r, err);
}

/* ---- >>SAVE: writing GGUF ------------------------------------------------------------------------------------------ */

typedef struct pdi_file_writer { const prediff_save_desc *d; uint64_t at; int failed; } pdi_file_writer;

PDI_FN void pdi_file_write(pdi_file_writer *w, const void *bytes, size_t n) {
    if (n && !w->failed && w->d->write(w->d->user, bytes, n)) w->failed = 1;
    w->at += n;
}

PDI_FN void pdi_file_u32(pdi_file_writer *w, uint32_t v) { uint8_t b[4]; pdi_put_u32(b, v); pdi_file_write(w, b, 4); }
PDI_FN void pdi_file_u64(pdi_file_writer *w, uint64_t v) { uint8_t b[8]; pdi_put_u64(b, v); pdi_file_write(w, b, 8); }
PDI_FN void pdi_file_string(pdi_file_writer *w, prediff_string s) { pdi_file_u64(w, s.n); pdi_file_write(w, s.bytes, s.n); }

PDI_FN void pdi_file_padding(pdi_file_writer *w, size_t alignment) {
    static const uint8_t zeros[64] = { 0 };
    while (w->at % alignment) pdi_file_write(w, zeros, pdi_min(alignment - (size_t)(w->at % alignment), sizeof zeros));
}

PDI_FN float pdi_abs(float x) { return x < 0 ? -x : x; }

PDI_FN void pdi_put_half(uint8_t *p, float f) {
    uint32_t h = pdi_float_to_half(&f);
    p[0] = (uint8_t)h; p[1] = (uint8_t)(h >> 8);
}

/* Q8_0: d = max|x| / 127, q = x / d rounded half away from zero. */
PDI_FN void pdi_quantize_q8_0(const float *x, uint8_t *out) {
    float top = 0, d, inverse;
    size_t i;
    for (i = 0; i < 32; i++) if (pdi_abs(x[i]) > top) top = pdi_abs(x[i]);
    d = top / 127.0f;
    inverse = d > 0 ? 1.0f / d : 0;
    if (!pdi_is_finite(&inverse)) inverse = 0;                  /* so small that the stored d is 0 */
    pdi_put_half(out, d);
    for (i = 0; i < 32; i++) {
        float v = x[i] * inverse;
        out[2 + i] = (uint8_t)(int8_t)(v < 0 ? -(int)(0.5f - v) : (int)(v + 0.5f));
    }
}

/* Q4_0: d = (the value of largest magnitude) / -8, q = x / d + 8 rounded, at most 15. */
PDI_FN void pdi_quantize_q4_0(const float *x, uint8_t *out) {
    float top = 0, d, inverse;
    size_t i, j;
    for (i = 0; i < 32; i++) if (pdi_abs(x[i]) > pdi_abs(top)) top = x[i];
    d = top / -8.0f;
    inverse = d < 0 || d > 0 ? 1.0f / d : 0;
    if (!pdi_is_finite(&inverse)) inverse = 0;
    pdi_put_half(out, d);
    for (i = 0; i < 16; i++) {
        uint32_t q[2];
        for (j = 0; j < 2; j++) q[j] = (uint32_t)pdi_min((size_t)(x[i + 16 * j] * inverse + 8.5f), 15);
        out[2 + i] = (uint8_t)(q[0] | q[1] << 4);
    }
}

/* One row of n floats as `type`; 0 if a value cannot be stored. */
PDI_FN int pdi_store_row_as(uint32_t type, const float *x, size_t n, uint8_t *out) {
    size_t i;
    for (i = 0; i < n; i++) {
        uint32_t h;
        if (type == PREDIFF_F32) { pdi_put_u32(out + 4 * i, pdi_float_bits(&x[i])); continue; }
        if (type == PREDIFF_BF16 || type == PREDIFF_F16) {
            h = type == PREDIFF_F16 ? pdi_float_to_half(&x[i]) : pdi_float_to_bfloat(&x[i]);
            if (pdi_is_finite(&x[i]) && (h & (type == PREDIFF_F16 ? 0x7C00u : 0x7F80u)) == (type == PREDIFF_F16 ? 0x7C00u : 0x7F80u)) return 0;
            out[2 * i] = (uint8_t)h; out[2 * i + 1] = (uint8_t)(h >> 8);
            continue;
        }
        if (!pdi_is_finite(&x[i])) return 0;
        if (type == PREDIFF_Q8_0 && pdi_abs(x[i]) > 127.0f * 65504.0f) return 0;      /* the scale is a half */
        if (type == PREDIFF_Q4_0 && pdi_abs(x[i]) > 8.0f * 65504.0f) return 0;
    }
    for (i = 0; i < n && type == PREDIFF_Q8_0; i += 32) pdi_quantize_q8_0(x + i, out + i / 32 * 34);
    for (i = 0; i < n && type == PREDIFF_Q4_0; i += 32) pdi_quantize_q4_0(x + i, out + i / 32 * 18);
    return 1;
}

PDI_FN uint32_t pdi_stored_type(const prediff_save_desc *d, size_t i) { return d->store ? d->store[i] : d->tensors[i].type; }

PDI_FN size_t pdi_stored_row(const prediff_save_desc *d, size_t i) {
    const pdi_type_info *t = pdi_type_of(pdi_stored_type(d, i));
    return (size_t)d->tensors[i].dims[0] / t->block * t->bytes;
}

PDI_FN size_t pdi_tensor_rows(const prediff_tensor *t) { return (size_t)(t->dims[1] * t->dims[2] * t->dims[3]); }

PDI_FN prediff_status pdi_check_save(const prediff_save_desc *d, size_t *row, size_t *stored, prediff_error *err) {
    size_t i, j;
    *row = *stored = 1;
    if (!d->write || (!d->keys && d->n_keys) || (!d->tensors && d->n_tensors)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "write, keys or tensors is NULL");
    if (d->alignment & (d->alignment - 1) || d->alignment > 1u << 20)
        return PDI_FAIL(err, ARG, GGUF_ALIGNMENT, "alignment %u is not a power of two up to 2^20", (uint64_t)d->alignment);
    for (i = 0; i < d->n_keys; i++)
        if (!d->keys[i].name.bytes || !d->keys[i].name.n || (!d->keys[i].data && d->keys[i].data_size)) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "key %u has no name or no data", (uint64_t)i);
    for (i = 0; i < d->n_tensors; i++) {
        const prediff_tensor *t = &d->tensors[i];
        uint32_t to = pdi_stored_type(d, i);
        size_t elements = 1;
        uint32_t from = t->data ? t->type : (uint32_t)PREDIFF_F32;
        int writable = to == PREDIFF_F32 || to == PREDIFF_F16 || to == PREDIFF_BF16 || to == PREDIFF_Q8_0 || to == PREDIFF_Q4_0 || to == from;
        if ((!t->data && !d->row) || !t->name.bytes) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "tensor %u has no data or name", (uint64_t)i);
        if (t->name.n < 1 || t->name.n > 64) return PDI_FAIL(err, ARG, TENSOR_NAME, "tensor name '%S' must have 1 to 64 bytes", &t->name);
        if (!pdi_type_of(from) || !writable || !pdi_type_of(to))
            return PDI_FAIL(err, UNSUPPORTED, TENSOR_TYPE, "tensor '%S': %s cannot be written as %s", &t->name, prediff_type_name(from), prediff_type_name(to));
        for (j = 0; j < 4; j++)
            if (t->dims[j] < 1 || t->dims[j] > SIZE_MAX || (j >= t->n_dims && t->dims[j] != 1) || !pdi_mul(elements, (size_t)t->dims[j], &elements) || elements > SIZE_MAX / 4)
                return PDI_FAIL(err, ARG, TENSOR_DIMS, "tensor '%S' has impossible dimensions", &t->name);
        if (t->n_dims < 1 || t->n_dims > 4) return PDI_FAIL(err, ARG, TENSOR_DIMS, "tensor '%S' has %u dimensions", &t->name, (uint64_t)t->n_dims);
        if (t->dims[0] % pdi_type_of(to)->block || t->dims[0] % pdi_type_of(from)->block)
            return PDI_FAIL(err, ARG, TENSOR_BLOCK, "tensor '%S': rows of %u are not whole %s blocks", &t->name, t->dims[0], prediff_type_name(to));
        if (t->data && t->data_size != elements / pdi_type_of(from)->block * pdi_type_of(from)->bytes)
            return PDI_FAIL(err, ARG, TENSOR_DATA, "tensor '%S': data_size does not fit its shape", &t->name);
        *row = pdi_max(*row, (size_t)t->dims[0]);
        *stored = pdi_max(*stored, pdi_stored_row(d, i));
    }
    return PREDIFF_OK;
}

PDI_FN void pdi_file_header(pdi_file_writer *w, size_t alignment) {
    const prediff_save_desc *d = w->d;
    static const prediff_string align = { "general.alignment", 17 };
    size_t i, n_keys = alignment != 32;
    uint64_t offset = 0;
    for (i = 0; i < d->n_keys; i++) n_keys += !pdi_str_is(d->keys[i].name, align.bytes);
    pdi_file_write(w, "GGUF", 4);
    pdi_file_u32(w, 3);
    pdi_file_u64(w, d->n_tensors);
    pdi_file_u64(w, n_keys);
    for (i = 0; i < d->n_keys; i++) {
        const prediff_key *k = &d->keys[i];
        if (pdi_str_is(k->name, align.bytes)) continue;
        pdi_file_string(w, k->name);
        pdi_file_u32(w, k->type);
        if (k->type == PDI_GGUF_ARRAY) { pdi_file_u32(w, k->element); pdi_file_u64(w, k->count); }
        pdi_file_write(w, k->data, k->data_size);
    }
    if (alignment != 32) { pdi_file_string(w, align); pdi_file_u32(w, PDI_GGUF_U32); pdi_file_u32(w, (uint32_t)alignment); }
    for (i = 0; i < d->n_tensors; i++) {
        const prediff_tensor *t = &d->tensors[i];
        uint32_t j;
        pdi_file_string(w, t->name);
        pdi_file_u32(w, t->n_dims);
        for (j = 0; j < t->n_dims; j++) pdi_file_u64(w, t->dims[j]);
        pdi_file_u32(w, pdi_stored_type(d, i));
        pdi_file_u64(w, offset);
        offset += (uint64_t)pdi_stored_row(d, i) * pdi_tensor_rows(t);
        offset += (alignment - offset % alignment) % alignment;
    }
}

PDI_FN prediff_status pdi_file_tensor(pdi_file_writer *w, size_t i, float *row, uint8_t *stored, prediff_error *err) {
    const prediff_tensor *t = &w->d->tensors[i];
    uint32_t to = pdi_stored_type(w->d, i);
    size_t r, rows = pdi_tensor_rows(t), from = t->data_size / rows, n = (size_t)t->dims[0];
    if (t->data && to == t->type) { pdi_file_write(w, t->data, t->data_size); return PREDIFF_OK; }
    for (r = 0; r < rows && !w->failed; r++) {
        if (t->data) pdi_kernels_scalar()->dequantize(t->type, t->data + r * from, row, n);
        else if (w->d->row(w->d->user, i, r, row)) return PDI_FAIL_AT(err, IO, FILE_READ, r, "tensor '%S': row %u was not given", &t->name, (uint64_t)r);
        if (!pdi_store_row_as(to, row, n, stored))
            return PDI_FAIL_AT(err, FORMAT, ENCODING, r, "tensor '%S', row %u: a value cannot be stored as %s", &t->name, (uint64_t)r, prediff_type_name(to));
        pdi_file_write(w, stored, pdi_stored_row(w->d, i));
    }
    return PREDIFF_OK;
}

PDI_DEF prediff_status prediff_save(const prediff_save_desc *d, prediff_error *err) {
    size_t row, stored, size, i, alignment;
    prediff_status s = PREDIFF_OK;
    pdi_file_writer w;
    uint8_t *work;
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    PDI_TRY(pdi_check_save(d, &row, &stored, err));
    alignment = d->alignment ? d->alignment : 32;
    if (!pdi_mul(row, sizeof(float), &size) || !pdi_add(size, stored + PDI_ALIGN, &size)) return PDI_FAIL(err, NOMEM, ALLOC, "a row is larger than memory");
    work = (uint8_t *)pdi_alloc(&d->allocator, size);
    if (!work) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for a row (%u bytes)", (uint64_t)size);
    w.d = d; w.at = 0; w.failed = 0;
    pdi_file_header(&w, alignment);
    for (i = 0; i < d->n_tensors && !s && !w.failed; i++) {
        float *floats = (float *)(void *)pdi_align_pointer(work);
        pdi_file_padding(&w, alignment);
        s = pdi_file_tensor(&w, i, floats, (uint8_t *)(floats + row), err);
    }
    pdi_free(&d->allocator, work, size);
    if (!s && w.failed) s = PDI_FAIL_AT(err, IO, FILE_WRITE, w.at, "writing failed near byte %u", w.at);
    return s;
}

#ifndef PREDIFF_NO_TRAIN
/* ---- >>TRAIN: gradients and AdamW --------------------------------------------------------------------------------------

   One pass over a batch of rows, forward as in FORWARD but with all rows at once and no cache; then the same steps in
   reverse. For y = f(x) and a loss L, the backward function takes dy = dL/dy and gives dx = dL/dx and the gradients of f's
   weights. Every product's two gradients are products again:

        y = x W^T + b        dx = dy W         dW += dy^T x        db += sum over rows of dy

   There is one loss, the cross-entropy of a row against a label, times a weight; an objective is a rule that masks tokens
   and sets weights. Gradients are sums; the division comes once, in the update, so that batches, accumulation and several
   processes are the same arithmetic. Sums over rows run in the order of the rows: the number of threads cannot show. */

enum { PDI_TRAIN_HEAD = 256,           /* rows of logits held at once */
       PDI_SLICES = 256,               /* of the gradient, for its norm */
       PDI_PIECE = 4096,               /* floats of a slice that stay in the first-level cache */
       PDI_STATE_NAME = 80,            /* bytes of a name with its prefix */
       PDI_TRAIN_KEYS = 16 };          /* keys of our own in a file */

typedef struct pdi_param { size_t at, n; int decay, frozen; } pdi_param;      /* floats at .. at+n-1 of each array */

typedef struct pdi_train_row {
    int32_t input, label;              /* PREDIFF_MASK: masked; label -1: no loss */
    float masked, causal;              /* weights of its cross-entropy as masked row and as causal row (0 or 1) */
    uint32_t group, position;          /* group: whose rate it gets */
    uint32_t text, token;              /* where it comes from: text of the call, index in it */
    uint32_t seen, from, to;           /* keys it reads: rows 0 .. seen-1 and from .. to-1 of its span */
    uint8_t target;
} pdi_train_row;

typedef struct pdi_span { size_t row, n; } pdi_span;            /* rows that attend to each other */

typedef struct pdi_saved { float *qkv, *mixed, *mid, *ff; } pdi_saved;         /* of one layer, see pdi_train_layer */

struct prediff_trainer {
    prediff_train_desc d;
    prediff_model m, g;                /* the weights, and their gradients in the same places */
    prediff_context c;                 /* kernels, threads, work: what FORWARD's functions use */
    pdi_param *params;
    prediff_tensor *tensors[3];        /* [n] names and shapes of weights, gradients, running mean */
    size_t n_params, n_floats, n_known, W;                     /* n_known: tensors of the file; W: width of q, k, v */
    float *w, *grad, *m1, *m2, *ema;   /* [n_floats]; behind the gradient two counts: masked rows, causal rows */
    uint64_t n_steps, n_texts, position;
    double anneal, masked_nats, causal_nats;
    size_t n_counted;
    /* the batch */
    pdi_train_row *rows; pdi_span *spans; size_t n_rows, n_spans, n_groups, n_targets, n_masked, n_losses, n_max;
    uint32_t *targets, *masks, *losses;        /* rows that are targets, masked, in the loss */
    float *rates;                      /* [groups] */
    int have_soft, soft_given, annealing;
    const prediff_sequence *texts;
    uint64_t draw_seed, draw_base;     /* of the random draws; the number of the call's first text */
    /* activations, [rows][..] */
    float *x;                          /* [L + 1][rows][D] residual stream before each layer, and at the end */
    pdi_saved saved;                   /* of layer 0; others follow at layer * stride unless recomputed */
    float *h, *act, *dx, *dh, *dff, *dqkv, *sums, *logits, *soft, *first, *noise, *noise_hidden, *wave, *rate_hidden, *tau, *unsines;
    float *pairs;                      /* [threads][2][n_max][n_max] attention */
    uint8_t *open;                     /* [n_ctx][n_ctx / 8] annealed attention: a bit for each pair of positions */
    prediff_tensor *state; uint32_t *state_types; char *state_names;      /* what prediff_trainer_save writes */
    prediff_key *keys; size_t n_keys, n_own_keys;
    uint8_t key_data[16 * 32];
    double *row_nats;                  /* [rows] */
    double *slices;
    prediff_allocator allocator;
    void *block; size_t block_size;
};

/* -- products and their gradients -- */

/* dx (+)= dy W */
PDI_FN void pdi_back_input(prediff_trainer *t, float *dx, size_t ldx, const float *dy, size_t ldy, size_t rows, const pdi_weight *w, int add) {
    pdi_product p;
    p.x = dy; p.ldx = ldy; p.y = dx; p.ldy = ldx; p.m = rows; p.n = w->k; p.k = w->n;
    p.w = w->data; p.type = w->type; p.row_bytes = w->row_bytes; p.bias = NULL; p.add = add; p.turned = 0;
    pdi_run_product(&t->c, &p, 1);
}

typedef struct pdi_sum_job { const pdi_kernels *k; float *to; const float *from; size_t ld, rows, cols; } pdi_sum_job;

PDI_FN void pdi_sum_share(void *arg, size_t i, size_t n) {
    const pdi_sum_job *j = (const pdi_sum_job *)arg;
    size_t begin, end, r;
    pdi_range(pdi_ceil_div(j->cols, 16), i, n, &begin, &end);   /* whole vectors */
    begin = pdi_min(16 * begin, j->cols); end = pdi_min(16 * end, j->cols);
    if (begin < end) for (r = 0; r < j->rows; r++) j->k->add(j->to + begin, j->from + r * j->ld + begin, end - begin);
}

/* to [cols] += the sum of the rows of from, each thread its columns. */
PDI_FN void pdi_sum_rows(prediff_trainer *t, float *to, const float *from, size_t ld, size_t rows, size_t cols) {
    pdi_sum_job j;
    j.k = t->c.k; j.to = to; j.from = from; j.ld = ld; j.rows = rows; j.cols = cols;
    pdi_parallel(&t->c.threads, pdi_sum_share, &j, (double)rows * (double)cols);
}

/* dW += dy^T x, db += columns of dy; g: the gradient of a weight, in the weight's shape. */
PDI_FN void pdi_back_weight(prediff_trainer *t, const pdi_weight *g, const float *dy, size_t ldy, const float *x, size_t ldx, size_t rows) {
    pdi_product p;
    p.x = dy; p.ldx = ldy; p.y = (float *)(uintptr_t)g->data; p.ldy = g->k; p.m = g->n; p.n = g->k; p.k = rows;
    p.w = (const uint8_t *)x; p.type = PDI_NATIVE; p.row_bytes = ldx * sizeof(float); p.bias = NULL; p.add = p.turned = 1;
    pdi_run_product(&t->c, &p, 1);
    if (g->bias) pdi_sum_rows(t, (float *)(uintptr_t)g->bias, dy, ldy, rows, g->n);
}

typedef struct pdi_norm_back_job { float *dx, *sums; const float *x, *w, *b, *dy; size_t rows; } pdi_norm_back_job;

/* Block i of 64 rows: dx, and its part of the weights' gradients. */
PDI_FN void pdi_norm_back_block(const prediff_context *c, void *arg, size_t i) {
    const pdi_norm_back_job *j = (const pdi_norm_back_job *)arg;
    size_t d = c->m->hp.n_embd, r, end = pdi_min(j->rows, 64 * (i + 1));
    float *gw = j->sums + 2 * d * i, *gb = j->b ? gw + d : NULL;
    memset(gw, 0, 2 * d * sizeof *gw);
    for (r = 64 * i; r < end; r++) c->k->norm_back(j->dx + r * d, gw, gb, j->x + r * d, j->w, j->dy + r * d, d, c->m->hp.eps);
}

/* dx += the norm's gradient; gw, gb += that of its weights. */
PDI_FN void pdi_back_norm(prediff_trainer *t, float *dx, const float *x, const float *dy, size_t rows, const float *w, const float *b, const float *gw, const float *gb) {
    size_t d = t->m.hp.n_embd, blocks = pdi_ceil_div(rows, 64), i;
    pdi_norm_back_job j;
    j.dx = dx; j.sums = t->sums; j.x = x; j.w = w; j.b = b; j.dy = dy; j.rows = rows;
    pdi_each_row(&t->c, blocks, 640.0 * (double)d, pdi_norm_back_block, &j);
    for (i = 0; i < blocks; i++) {
        t->c.k->add((float *)(uintptr_t)gw, t->sums + 2 * d * i, d);
        if (b) t->c.k->add((float *)(uintptr_t)gb, t->sums + 2 * d * i + d, d);
    }
}

/* -- attention: all rows of a span at once, in memory for one head at a time -- */

typedef struct pdi_train_attention { prediff_trainer *t; const pdi_saved *s; const float *dmixed; } pdi_train_attention;

enum { PDI_ROWS_ROWS, PDI_MIX, PDI_TURNED };      /* y (+)= x w^T, x w, x^T w */

PDI_FN void pdi_small_product(const prediff_trainer *t, float *y, size_t ldy, const float *x, size_t ldx, size_t m, const float *w, size_t ldw, size_t n, size_t k, int kind, int add, float *work) {
    pdi_product p;
    p.x = x; p.ldx = ldx; p.y = y; p.ldy = ldy; p.m = m; p.n = n; p.k = k;
    p.w = (const uint8_t *)w; p.type = PDI_NATIVE; p.row_bytes = ldw * sizeof(float); p.bias = NULL; p.add = add; p.turned = kind == PDI_TURNED;
    if (kind) t->c.k->mix(&p, 0, pdi_ceil_div(n, PDI_PANEL), work);
    else t->c.k->product(&p, 0, pdi_ceil_div(n, t->c.k->panel), work);
}

/* Annealed attention: which of the later positions each position sees, drawn for the whole call (Gong et al. 2025). */
PDI_FN void pdi_draw_open(prediff_trainer *t) {
    size_t i, j, n = t->d.n_ctx;
    memset(t->open, 0, n * pdi_ceil_div(n, 8));
    for (i = 0; i < n; i++) for (j = i + 1; j < n; j++)
        if (prediff_uniform(t->draw_seed, PDI_STREAM_ANNEAL, (uint32_t)i, (uint32_t)j, (uint32_t)t->n_steps) < t->anneal)
            t->open[i * pdi_ceil_div(n, 8) + j / 8] |= (uint8_t)(1 << j % 8);
}

/* 1: a row may read row j though its ranges leave it out. */
PDI_FN int pdi_annealed(const prediff_trainer *t, const pdi_train_row *row, size_t j) {
    return t->annealing && (t->open[row->position * pdi_ceil_div(t->d.n_ctx, 8) + j / 8] >> j % 8 & 1);
}

/* Rows i.. of a span, at most 64, and how many keys the farthest-looking of them reads: what is beyond is not computed. */
PDI_FN size_t pdi_look(const prediff_trainer *t, const pdi_span *s, size_t i, size_t *keys) {
    size_t m = pdi_min(s->n - i, 64), r;
    for (*keys = 0, r = i; r < i + m; r++) {
        const pdi_train_row *row = &t->rows[s->row + r];
        *keys = pdi_max(*keys, t->annealing ? s->n : row->to > row->from ? row->to : row->seen);
    }
    return m;
}

/* p [n][n] = softmax(q k^T / sqrt(E)) of one head, 0 where a row may not look. */
PDI_FN void pdi_train_scores(const prediff_trainer *t, const pdi_span *s, const float *q, const float *k, float *p, float *work) {
    const prediff_context *c = &t->c;
    size_t n = s->n, e = t->m.hp.head_dim, i, j, m, r, keys;
    float scale = (float)(1.0 / sqrt((double)e));
    for (i = 0; i < n; i += m) {
        m = pdi_look(t, s, i, &keys);
        pdi_small_product(t, p + i * n, n, q + i * t->W, t->W, m, k, t->W, keys, e, PDI_ROWS_ROWS, 0, work);
        for (r = i; r < i + m; r++) {
            const pdi_train_row *row = &t->rows[s->row + r];
            float *x = p + r * n;
            double sum, dot;
            c->k->scale(x, scale, keys);
            for (j = row->seen; j < row->from && j < keys; j++) if (!pdi_annealed(t, row, j)) x[j] = -HUGE_VALF;
            for (j = row->to; j < keys; j++) if (!pdi_annealed(t, row, j)) x[j] = -HUGE_VALF;
            c->k->row_exp(x, x, c->k->row_max(x, keys), keys, &sum, &dot);
            c->k->scale(x, (float)(1.0 / sum), keys);
            memset(x + keys, 0, (n - keys) * sizeof *x);
        }
    }
}

/* y [n][E] = p x for p of pdi_train_scores' shape. */
PDI_FN void pdi_look_product(const prediff_trainer *t, const pdi_span *s, float *y, size_t ldy, const float *p, const float *x, size_t ldx, float *work) {
    size_t i, m, keys;
    for (i = 0; i < s->n; i += m) {
        m = pdi_look(t, s, i, &keys);
        pdi_small_product(t, y + i * ldy, ldy, p + i * s->n, s->n, m, x, ldx, t->m.hp.head_dim, keys, PDI_MIX, 0, work);
    }
}

/* y [n][E] (+)= p^T x. The rows before the first that looks at a key are zeros. */
PDI_FN void pdi_looked_product(const prediff_trainer *t, const pdi_span *s, float *y, size_t ldy, const float *p, const float *x, size_t ldx, int add, float *work) {
    size_t i, m, r = 0, step, keys, n = s->n;
    for (i = 0; i < n; i += m) {
        m = pdi_min(n - i, 64);
        while (r < n && (step = pdi_look(t, s, r, &keys), keys <= i)) r += step;
        pdi_small_product(t, y + i * ldy, ldy, p + r * n + i, n, m, x + r * ldx, ldx, t->m.hp.head_dim, n - r, PDI_TURNED, add, work);
    }
}

PDI_FN void pdi_train_attend_head(const prediff_trainer *t, const pdi_train_attention *a, const pdi_span *s, size_t kv, float *pairs, float *work) {
    const pdi_hparams *h = &t->m.hp;
    size_t e = h->head_dim, group = h->n_head / h->n_head_kv, g, H = h->n_head * e;
    const float *qkv = a->s->qkv + s->row * t->W, *k = qkv + H + kv * e, *v = k + h->n_head_kv * e;
    for (g = 0; g < group; g++) {
        size_t head = kv * group + g;
        pdi_train_scores(t, s, qkv + head * e, k, pairs, work);
        pdi_look_product(t, s, a->s->mixed + s->row * H + head * e, H, pairs, v, t->W, work);
    }
}

/* p = softmax(z), o = p v:  dv += p^T do;  dp = do v^T;  dz = p (dp - do . o);  dq = dz k / sqrt(E);  dk += dz^T q / sqrt(E) */
PDI_FN void pdi_back_attend_head(const prediff_trainer *t, const pdi_train_attention *a, const pdi_span *s, size_t kv, float *pairs, float *work) {
    const pdi_hparams *h = &t->m.hp;
    const pdi_kernels *kernels = t->c.k;
    size_t n = s->n, e = h->head_dim, group = h->n_head / h->n_head_kv, g, i, m, r, keys, H = h->n_head * e, q_at = s->row * t->W;
    const float *qkv = a->s->qkv + q_at, *k = qkv + H + kv * e, *v = k + h->n_head_kv * e;
    float *dk = t->dqkv + q_at + H + kv * e, *dv = dk + h->n_head_kv * e, *p = pairs, *dz = p + n * n;
    float scale = (float)(1.0 / sqrt((double)e));
    for (g = 0; g < group; g++) {
        size_t head = kv * group + g;
        const float *d_o = a->dmixed + s->row * H + head * e, *o = a->s->mixed + s->row * H + head * e;
        pdi_train_scores(t, s, qkv + head * e, k, p, work);
        pdi_looked_product(t, s, dv, t->W, p, d_o, H, g > 0, work);
        for (i = 0; i < n; i += m) {
            m = pdi_look(t, s, i, &keys);
            pdi_small_product(t, dz + i * n, n, d_o + i * H, H, m, v, t->W, keys, e, PDI_ROWS_ROWS, 0, work);
            for (r = i; r < i + m; r++) {
                kernels->softmax_back(dz + r * n, p + r * n, kernels->row_dot(d_o + r * H, o + r * H, e), scale, keys);
                memset(dz + r * n + keys, 0, (n - keys) * sizeof *dz);
            }
        }
        pdi_look_product(t, s, t->dqkv + q_at + head * e, t->W, dz, k, t->W, work);
        pdi_looked_product(t, s, dk, t->W, dz, qkv + head * e, t->W, g > 0, work);
    }
}

PDI_FN void pdi_train_attention_share(void *arg, size_t i, size_t n) {
    const pdi_train_attention *a = (const pdi_train_attention *)arg;
    const prediff_trainer *t = a->t;
    size_t heads = t->m.hp.n_head_kv, item, end;
    float *pairs = t->pairs + i * 2 * t->n_max * t->n_max, *work = t->c.work + i * t->c.work_size;
    pdi_range(t->n_spans * heads, i, n, &item, &end);
    for (; item < end; item++)
        (a->dmixed ? pdi_back_attend_head : pdi_train_attend_head)(t, a, &t->spans[item / heads], item % heads, pairs, work);
}

PDI_FN void pdi_train_attend(prediff_trainer *t, const pdi_saved *s, const float *dmixed) {
    pdi_train_attention a;
    double work = 0;
    size_t i;
    a.t = t; a.s = s; a.dmixed = dmixed;
    for (i = 0; i < t->n_spans; i++) work += 2.0 * (double)t->spans[i].n * (double)t->spans[i].n * (double)t->m.hp.head_dim * (double)t->m.hp.n_head;
    pdi_parallel(&t->c.threads, pdi_train_attention_share, &a, work);
}

typedef struct pdi_train_job { prediff_trainer *t; const pdi_saved *s; float *qkv; const float *sines; const uint32_t *rows; int soft; } pdi_train_job;

/* Rotary embedding of a row's queries and keys; with the sines' signs changed it is its own backward. */
PDI_FN void pdi_rotate_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_train_job *j = (const pdi_train_job *)arg;
    const prediff_trainer *t = j->t;
    const pdi_hparams *h = &c->m->hp;
    size_t head, p = t->rows[r].position * h->rope_dim;
    for (head = 0; head < h->n_head + h->n_head_kv; head++)
        (h->arch->halves ? c->k->rotate_halves : c->k->rotate)(j->qkv + r * t->W + head * h->head_dim, c->cosines + p, j->sines + p, h->rope_dim);
}

PDI_FN void pdi_train_rotate(prediff_trainer *t, float *qkv, const float *sines) {
    pdi_train_job j;
    j.t = t; j.qkv = qkv; j.sines = sines;
    if (t->m.hp.rope_dim) pdi_each_row(&t->c, t->n_rows, 4.0 * (double)t->W, pdi_rotate_row, &j);
}

/* -- a layer forward: x -> x', and what the way back needs -- */

PDI_FN pdi_saved pdi_saved_of(const prediff_trainer *t, size_t layer) {
    size_t rows = t->d.max_rows, l = t->d.recompute ? 0 : layer;
    pdi_saved s = t->saved;
    s.qkv += l * rows * t->W;
    s.mixed += l * rows * t->c.q_width;
    s.mid += l * rows * t->m.hp.n_embd;
    s.ff += l * rows * 2 * t->m.hp.n_ff;
    return s;
}

PDI_FN void pdi_train_activation_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_train_job *j = (const pdi_train_job *)arg;
    const prediff_trainer *t = j->t;
    const pdi_saved *s = j->s;
    size_t f = c->m->hp.n_ff;
    float *act = t->act + r * f;
    memcpy(act, s->ff + r * 2 * f, f * sizeof *act);
    if (c->m->hp.arch->gpt2) c->k->gelu_tanh(act, f);
    else c->k->silu_mul(act, s->ff + r * 2 * f + f, f);
}

PDI_FN void pdi_add_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_norm_job *j = (const pdi_norm_job *)arg;
    c->k->add(j->y + r * c->m->hp.n_embd, j->x + r * c->m->hp.n_embd, c->m->hp.n_embd);
}

PDI_FN void pdi_add_rows(prediff_trainer *t, float *y, const float *x, size_t rows) {
    pdi_norm_job j;
    j.y = y; j.x = x; j.w = j.b = NULL;
    pdi_each_row(&t->c, rows, (double)t->m.hp.n_embd, pdi_add_row, &j);
}

/*   qkv = rotary(norm(x) W_qkv);  mixed = attention(qkv);  mid = x + mixed W_o;  ff = norm(mid) W_gate,up;  x' = mid + act(ff) W_down */
PDI_FN void pdi_train_layer(prediff_trainer *t, size_t layer, const pdi_saved *s) {
    const pdi_layer *y = &t->m.layers[layer];
    const pdi_hparams *h = &t->m.hp;
    size_t d = h->n_embd, f = h->n_ff, n = t->n_rows, i, at = 0;
    float *x = t->x + layer * t->d.max_rows * d, *next = x + t->d.max_rows * d;
    pdi_train_job j;
    j.t = t; j.s = s;
    pdi_norm(&t->c, t->h, x, n, y->attn_norm, y->attn_norm_bias);
    for (i = 0; i < 3 && y->qkv[i].data; at += y->qkv[i++].n) pdi_multiply(&t->c, s->qkv + at, t->W, t->h, d, n, &y->qkv[i], 0);
    pdi_train_rotate(t, s->qkv, t->c.sines);
    pdi_train_attend(t, s, NULL);
    pdi_multiply(&t->c, s->mid, d, s->mixed, t->c.q_width, n, &y->attn_output, 0);
    pdi_add_rows(t, s->mid, x, n);
    pdi_norm(&t->c, t->h, s->mid, n, y->ffn_norm, y->ffn_norm_bias);
    if (y->ffn_gate.data) pdi_multiply(&t->c, s->ff, 2 * f, t->h, d, n, &y->ffn_gate, 0);
    pdi_multiply(&t->c, s->ff + (y->ffn_gate.data ? f : 0), 2 * f, t->h, d, n, &y->ffn_up, 0);
    pdi_each_row(&t->c, n, 20.0 * (double)f, pdi_train_activation_row, &j);
    pdi_multiply(&t->c, next, d, t->act, f, n, &y->ffn_down, 0);
    pdi_add_rows(t, next, s->mid, n);
}

/* -- and backward: t->dx, the gradient of x', becomes that of x -- */

PDI_FN void pdi_back_activation_row(const prediff_context *c, void *arg, size_t r) {
    const pdi_train_job *j = (const pdi_train_job *)arg;
    const prediff_trainer *t = j->t;
    const pdi_saved *s = j->s;
    size_t f = c->m->hp.n_ff;
    float *d = t->dff + r * 2 * f, *ff = s->ff + r * 2 * f, *dact = t->act + r * f;
    if (c->m->hp.arch->gpt2) c->k->gelu_tanh_back(d, ff, dact, f);
    else c->k->silu_mul_back(d, d + f, ff, ff + f, dact, f);
}

PDI_FN void pdi_back_layer(prediff_trainer *t, size_t layer, const pdi_saved *s) {
    const pdi_layer *y = &t->m.layers[layer], *g = &t->g.layers[layer];
    const pdi_hparams *h = &t->m.hp;
    size_t d = h->n_embd, f = h->n_ff, n = t->n_rows, i, at = 0, up = y->ffn_gate.data ? f : 0;
    float *x = t->x + layer * t->d.max_rows * d;
    pdi_train_job j;
    j.t = t; j.s = s;
    pdi_each_row(&t->c, n, 20.0 * (double)f, pdi_train_activation_row, &j);
    pdi_back_weight(t, &g->ffn_down, t->dx, d, t->act, f, n);
    pdi_back_input(t, t->act, f, t->dx, d, n, &y->ffn_down, 0);
    pdi_each_row(&t->c, n, 20.0 * (double)f, pdi_back_activation_row, &j);
    pdi_norm(&t->c, t->h, s->mid, n, y->ffn_norm, y->ffn_norm_bias);
    pdi_back_weight(t, &g->ffn_up, t->dff + up, 2 * f, t->h, d, n);
    pdi_back_input(t, t->dh, d, t->dff + up, 2 * f, n, &y->ffn_up, 0);
    if (up) pdi_back_weight(t, &g->ffn_gate, t->dff, 2 * f, t->h, d, n);
    if (up) pdi_back_input(t, t->dh, d, t->dff, 2 * f, n, &y->ffn_gate, 1);
    pdi_back_norm(t, t->dx, s->mid, t->dh, n, y->ffn_norm, y->ffn_norm_bias, g->ffn_norm, g->ffn_norm_bias);
    pdi_back_weight(t, &g->attn_output, t->dx, d, s->mixed, t->c.q_width, n);
    pdi_back_input(t, t->dff, t->c.q_width, t->dx, d, n, &y->attn_output, 0);
    pdi_train_attend(t, s, t->dff);
    pdi_train_rotate(t, t->dqkv, t->unsines);
    pdi_norm(&t->c, t->h, x, n, y->attn_norm, y->attn_norm_bias);
    for (i = 0; i < 3 && y->qkv[i].data; at += y->qkv[i++].n) {
        pdi_back_weight(t, &g->qkv[i], t->dqkv + at, t->W, t->h, d, n);
        pdi_back_input(t, t->dh, d, t->dqkv + at, t->W, n, &y->qkv[i], i > 0);
    }
    pdi_back_norm(t, t->dx, x, t->dh, n, y->attn_norm, y->attn_norm_bias, g->attn_norm, g->attn_norm_bias);
}

/* -- the head: cross-entropy of the rows in the loss, a piece at a time -- */

/* logits become probabilities; and for the loss, gradients of the logits: weight (p - 1[label]). */
PDI_FN void pdi_loss_row(const prediff_context *c, void *arg, size_t i) {
    const pdi_train_job *j = (const pdi_train_job *)arg;
    const pdi_train_row *row = &j->t->rows[j->rows[i]];
    size_t V = c->m->hp.n_vocab;
    float *x = j->t->logits + i * V, max = c->k->row_max(x, V), label = j->soft ? 0 : x[row->label], weight = row->masked + (float)j->t->d.causal_weight * row->causal;
    double sum, dot;
    c->k->row_exp(x, x, max, V, &sum, &dot);
    if (!j->soft) j->t->row_nats[j->rows[i]] = log(sum) - ((double)label - (double)max);
    c->k->scale(x, j->soft ? (float)(1.0 / sum) : (float)((double)weight / sum), V);
    if (!j->soft) x[row->label] -= weight;
}

/* Norm and logits of some rows of the last layer; t->h: the normed rows. */
PDI_FN void pdi_train_logits(prediff_trainer *t, const uint32_t *rows, size_t n) {
    size_t d = t->m.hp.n_embd, i;
    const float *last = t->x + t->m.hp.n_layer * t->d.max_rows * d;
    for (i = 0; i < n; i++) memcpy(t->dh + i * d, last + rows[i] * d, d * sizeof *t->dh);
    pdi_norm(&t->c, t->h, t->dh, n, t->m.output_norm, t->m.output_norm_bias);
    pdi_multiply(&t->c, t->logits, t->m.hp.n_vocab, t->h, d, n, &t->m.output, 0);
}

/* Cross-entropies into row_nats; back: t->dx [rows][D] = the gradient of the last layer's output. */
PDI_FN void pdi_train_head(prediff_trainer *t, int back) {
    size_t d = t->m.hp.n_embd, V = t->m.hp.n_vocab, i, k, n;
    pdi_train_job j;
    j.t = t; j.soft = 0;
    if (back) memset(t->dx, 0, t->n_rows * d * sizeof *t->dx);
    for (i = 0; i < t->n_losses; i += n) {
        n = pdi_min(t->n_losses - i, PDI_TRAIN_HEAD);
        j.rows = t->losses + i;
        pdi_train_logits(t, j.rows, n);
        pdi_each_row(&t->c, n, 10.0 * (double)V, pdi_loss_row, &j);
        if (!back) continue;
        pdi_back_weight(t, &t->g.output, t->logits, V, t->h, d, n);
        pdi_back_input(t, t->h, d, t->logits, V, n, &t->m.output, 0);
        memset(t->dff, 0, n * d * sizeof *t->dff);
        pdi_back_norm(t, t->dff, t->dh, t->h, n, t->m.output_norm, t->m.output_norm_bias, t->g.output_norm, t->g.output_norm_bias);
        for (k = 0; k < n; k++) memcpy(t->dx + j.rows[k] * d, t->dff + k * d, d * sizeof *t->dx);
    }
}

/* Soft predictions q of targets i..i+n-1 into t->logits: given, or computed from the first pass's last rows. */
PDI_FN void pdi_soft_rows(prediff_trainer *t, size_t i, size_t n) {
    size_t d = t->m.hp.n_embd, V = t->m.hp.n_vocab, k;
    pdi_train_job j;
    j.t = t; j.soft = 1; j.rows = t->targets + i;
    for (k = 0; t->soft_given && k < n; k++) {
        const pdi_train_row *row = &t->rows[j.rows[k]];
        memcpy(t->logits + k * V, t->texts[row->text].soft + row->token * V, V * sizeof(float));
    }
    if (t->soft_given) return;
    pdi_norm(&t->c, t->h, t->first + i * d, n, t->m.output_norm, t->m.output_norm_bias);
    pdi_multiply(&t->c, t->logits, V, t->h, d, n, &t->m.output, 0);
    pdi_each_row(&t->c, n, 10.0 * (double)V, pdi_loss_row, &j);
}

/* soft [targets][D] = q W_embd. */
PDI_FN void pdi_train_soft(prediff_trainer *t, int given) {
    size_t d = t->m.hp.n_embd, i, n;
    const float *last = t->x + t->m.hp.n_layer * t->d.max_rows * d;
    t->soft_given = given;
    for (i = 0; !given && i < t->n_targets; i++) memcpy(t->first + i * d, last + t->targets[i] * d, d * sizeof *last);
    for (i = 0; i < t->n_targets; i += n) {
        n = pdi_min(t->n_targets - i, PDI_TRAIN_HEAD);
        pdi_soft_rows(t, i, n);
        pdi_multiply(&t->c, t->soft + i * d, d, t->logits, t->m.hp.n_vocab, n, &t->m.token_embd, 1);
    }
    t->have_soft = 1;
}

/* dx W_sc reaches the embedding through soft = q W_embd; q itself is a constant (Chen et al. 2023). dy [targets][D]. */
PDI_FN void pdi_back_soft(prediff_trainer *t, const float *dy) {
    size_t d = t->m.hp.n_embd, i, n;
    pdi_weight g = t->g.token_embd;
    pdi_back_weight(t, &t->g.selfcond, dy, d, t->soft, d, t->n_targets);
    pdi_back_input(t, t->dff, d, dy, d, t->n_targets, &t->m.selfcond, 0);
    for (i = 0; i < t->n_targets; i += n) {
        n = pdi_min(t->n_targets - i, PDI_TRAIN_HEAD);
        pdi_soft_rows(t, i, n);
        pdi_back_weight(t, &g, t->logits, t->m.hp.n_vocab, t->dff + i * d, d, n);
    }
}

/* -- the input: tokens, mask with its noise, positions; rate and soft prediction at target rows -- */

/* GELU by erf, and its slope Phi(x) + x phi(x). */
PDI_FN double pdi_gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }
PDI_FN double pdi_gelu_slope(double x) { return 0.5 * (1.0 + erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * exp(-0.5 * x * x); }

/* noise [masked][N], hidden [masked][4D] before GELU; dh [masked][D] = what is added to the mask vector. */
PDI_FN void pdi_train_noise(prediff_trainer *t) {
    size_t N = t->m.hp.noise_dim, d4 = 4 * t->m.hp.n_embd, i, k;
    for (i = 0; i < t->n_masked; i++) {
        const pdi_train_row *row = &t->rows[t->masks[i]];
        const float *given = t->texts[row->text].noise;
        for (k = 0; given && k < N; k++) t->noise[i * N + k] = given[row->token * N + k] * t->m.hp.noise_scale;
        if (!given) pdi_make_noise(&t->m.hp, t->noise + i * N, t->draw_seed ^ (t->draw_base + row->group + 1) << 24, row->position, 0);
    }
    pdi_multiply(&t->c, t->noise_hidden, d4, t->noise, N, t->n_masked, &t->m.noise[0], 0);
    for (i = 0; i < t->n_masked * d4; i++) t->dff[i] = (float)pdi_gelu((double)t->noise_hidden[i]);
    pdi_multiply(&t->c, t->dh, t->m.hp.n_embd, t->dff, d4, t->n_masked, &t->m.noise[1], 0);
}

PDI_FN void pdi_back_noise(prediff_trainer *t, const float *dy) {
    size_t N = t->m.hp.noise_dim, d4 = 4 * t->m.hp.n_embd, d = t->m.hp.n_embd, i;
    for (i = 0; i < t->n_masked * d4; i++) t->dff[i] = (float)pdi_gelu((double)t->noise_hidden[i]);
    pdi_back_weight(t, &t->g.noise[1], dy, d, t->dff, d4, t->n_masked);
    pdi_back_input(t, t->dff, d4, dy, d, t->n_masked, &t->m.noise[1], 0);
    for (i = 0; i < t->n_masked * d4; i++) t->dff[i] *= (float)pdi_gelu_slope((double)t->noise_hidden[i]);
    pdi_back_weight(t, &t->g.noise[0], t->dff, d4, t->noise, N, t->n_masked);
}

/* tau [groups][D] as pdi_add_rate; the hidden layer is kept before SiLU. */
PDI_FN void pdi_train_rate(prediff_trainer *t) {
    size_t d = t->m.hp.n_embd, g;
    for (g = 0; g < t->n_groups; g++) pdi_rate_wave(&t->m.hp, t->rates[g], t->wave + g * d);
    pdi_multiply(&t->c, t->rate_hidden, 4 * d, t->wave, d, t->n_groups, &t->m.rate[0], 0);
    memcpy(t->dff, t->rate_hidden, t->n_groups * 4 * d * sizeof *t->dff);
    t->c.k->silu(t->dff, t->n_groups * 4 * d);
    pdi_multiply(&t->c, t->tau, d, t->dff, 4 * d, t->n_groups, &t->m.rate[1], 0);
}

/* dtau: the sum of dx over a group's target rows. */
PDI_FN void pdi_back_rate(prediff_trainer *t) {
    size_t d = t->m.hp.n_embd, d4 = 4 * d, i;
    memset(t->tau, 0, t->n_groups * d * sizeof *t->tau);
    for (i = 0; i < t->n_targets; i++) t->c.k->add(t->tau + t->rows[t->targets[i]].group * d, t->dx + t->targets[i] * d, d);
    memcpy(t->dff, t->rate_hidden, t->n_groups * d4 * sizeof *t->dff);
    t->c.k->silu(t->dff, t->n_groups * d4);
    pdi_back_weight(t, &t->g.rate[1], t->tau, d, t->dff, d4, t->n_groups);
    pdi_back_input(t, t->dff, d4, t->tau, d, t->n_groups, &t->m.rate[1], 0);
    t->c.k->silu_back(t->dff, t->rate_hidden, t->dff, t->n_groups * d4);
    pdi_back_weight(t, &t->g.rate[0], t->dff, d4, t->wave, d, t->n_groups);
}

/* x of layer 0: tokens or mask vectors (with noise), positions, and at target rows rate and soft prediction. */
PDI_FN void pdi_train_embed(prediff_trainer *t) {
    const prediff_model *m = &t->m;
    size_t d = m->hp.n_embd, r, i;
    for (r = 0; r < t->n_rows; r++) {
        const pdi_train_row *row = &t->rows[r];
        float *x = t->x + r * d;
        if (row->input != PREDIFF_MASK) pdi_embed(&t->c, x, &m->token_embd, (size_t)row->input, NULL);
        else if (m->mask) memcpy(x, m->mask, d * sizeof *x);
        else pdi_embed(&t->c, x, &m->token_embd, (size_t)m->mask_token, NULL);
    }
    if (m->noise[0].data && t->n_masked) {
        pdi_train_noise(t);
        for (i = 0; i < t->n_masked; i++) t->c.k->add(t->x + t->masks[i] * d, t->dh + i * d, d);
    }
    for (r = 0; m->position_embd.data && r < t->n_rows; r++) pdi_embed(&t->c, t->x + r * d, &m->position_embd, t->rows[r].position, t->h);
    if (m->rate[0].data && t->n_targets) {
        pdi_train_rate(t);
        for (i = 0; i < t->n_targets; i++) t->c.k->add(t->x + t->targets[i] * d, t->tau + t->rows[t->targets[i]].group * d, d);
    }
    if (!m->selfcond.data || !t->n_targets) return;
    if (t->have_soft) pdi_multiply(&t->c, t->dh, d, t->soft, d, t->n_targets, &m->selfcond, 0);
    for (i = 0; i < t->n_targets; i++)
        if (t->have_soft) t->c.k->add(t->x + t->targets[i] * d, t->dh + i * d, d);
        else if (m->selfcond.bias) t->c.k->add(t->x + t->targets[i] * d, m->selfcond.bias, d);
}

PDI_FN void pdi_back_embed(prediff_trainer *t) {
    const prediff_model *m = &t->m;
    size_t d = m->hp.n_embd, r, i;
    float *table = (float *)(uintptr_t)t->g.token_embd.data, *positions = (float *)(uintptr_t)t->g.position_embd.data, *mask = (float *)(uintptr_t)t->g.mask;
    if (m->selfcond.data && t->n_targets) {
        for (i = 0; i < t->n_targets; i++) memcpy(t->dh + i * d, t->dx + t->targets[i] * d, d * sizeof *t->dh);
        if (t->have_soft) pdi_back_soft(t, t->dh);
        else if (t->g.selfcond.bias) pdi_sum_rows(t, (float *)(uintptr_t)t->g.selfcond.bias, t->dh, d, t->n_targets, d);
    }
    if (m->rate[0].data && t->n_targets) pdi_back_rate(t);
    if (m->noise[0].data && t->n_masked) {
        for (i = 0; i < t->n_masked; i++) memcpy(t->dh + i * d, t->dx + t->masks[i] * d, d * sizeof *t->dh);
        pdi_back_noise(t, t->dh);
    }
    for (r = 0; r < t->n_rows; r++) {
        const pdi_train_row *row = &t->rows[r];
        const float *dx = t->dx + r * d;
        if (row->input != PREDIFF_MASK) t->c.k->add(table + (size_t)row->input * d, dx, d);
        else t->c.k->add(mask ? mask : table + (size_t)m->mask_token * d, dx, d);
        if (positions) t->c.k->add(positions + row->position * d, dx, d);
    }
}

PDI_FN void pdi_train_forward(prediff_trainer *t) {
    size_t layer;
    pdi_train_embed(t);
    for (layer = 0; layer < t->m.hp.n_layer; layer++) {
        pdi_saved s = pdi_saved_of(t, layer);
        pdi_train_layer(t, layer, &s);
    }
}

PDI_FN void pdi_train_backward(prediff_trainer *t) {
    size_t layer;
    for (layer = t->m.hp.n_layer; layer-- > 0;) {
        pdi_saved s = pdi_saved_of(t, layer);
        if (t->d.recompute) pdi_train_layer(t, layer, &s);
        pdi_back_layer(t, layer, &s);
    }
    pdi_back_embed(t);
}

/* -- objectives: what is masked, and what a masked row weighs -- */

PDI_FN double pdi_chance(const prediff_trainer *t, uint32_t stream, size_t text, size_t position, uint32_t index) {
    return prediff_uniform(t->draw_seed, stream, (uint32_t)text, (uint32_t)position, index);
}

PDI_FN double pdi_normal(uint64_t seed, uint32_t stream, uint32_t position, uint32_t index) {       /* Box and Muller 1958 */
    double u = prediff_uniform(seed, stream, 0, position, 2 * index), v = prediff_uniform(seed, stream, 0, position, 2 * index + 1);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v);
}

/* A rate from u in [0, 1). */
PDI_FN double pdi_rate_law(const prediff_trainer *t, double u, size_t text) {
    double r;
    switch (t->d.rates) {
    case PREDIFF_RATES_COSINE: r = cos(u * 1.5707963267948966); return r < 0.01 ? 0.01 : r > 0.99 ? 0.99 : r;
    case PREDIFF_RATES_LOGIT_NORMAL: r = 1.0 / (1.0 + exp(-1.5 * pdi_normal(t->draw_seed, PDI_STREAM_TIME, (uint32_t)text, 1))); return r < 1e-3 ? 1e-3 : r;
    case PREDIFF_RATES_SQUARE: r = 1.0 - sqrt(u); return r < 1e-3 ? 1e-3 : r;
    default: return 1e-3 + (1.0 - 1e-3) * u;
    }
}

/* Masks rows 0..n-1 of a target with rate t, or exactly ceil(t n) of them. Where a bound is estimated, a target without a mask
   counts as one; the masked mean must have one (PreDiff-LM). */
PDI_FN void pdi_draw_masks(const prediff_trainer *t, pdi_train_row *rows, size_t n, size_t text, double rate, prediff_objective o) {
    size_t exact = o == PREDIFF_OBJECTIVE_EXACT_L, i, masked = 0, want = (size_t)ceil(rate * (double)n);
    want = pdi_min(pdi_max(want, 1), n);
    for (i = 0; i < n; i++) {                                   /* exact: selection sampling, each of the left with the odds left */
        double odds = exact ? (double)(want - masked) / (double)(n - i) : rate;
        if (pdi_chance(t, PDI_STREAM_MASK, text, rows[i].position, 0) < odds) { rows[i].input = PREDIFF_MASK; masked++; }
    }
    if (!masked && o == PREDIFF_OBJECTIVE_PREDIFF) rows[(size_t)(pdi_chance(t, PDI_STREAM_MASK, text, 0, 1) * (double)n)].input = PREDIFF_MASK;
}

/* CART: w_i = 1/2 sum over visible j of p (1 - p)^(|i - j| - 1), p = 0.3; the `before` prompt rows are visible. */
PDI_FN double pdi_cart(const pdi_train_row *rows, size_t n, size_t before, size_t i) {
    double w = 0, fall = 0.3;
    size_t k;
    for (k = 1; k < n + before && k < 64; k++, fall *= 0.7) {   /* 0.7^64 is nothing */
        if (i + before >= k && (rows + i - k)->input != PREDIFF_MASK) w += 0.5 * fall;
        if (i + k < n && rows[i + k].input != PREDIFF_MASK) w += 0.5 * fall;
    }
    return w;
}

/* Weights of the masked rows among 0..n-1, of which `masked` are; returns what they add to the mean's divisor. lost: 1 if a shifted
   model has no row that could predict the first. */
PDI_FN double pdi_weigh(pdi_train_row *rows, size_t n, size_t before, size_t masked, double rate, int lost, prediff_objective o) {
    size_t i;
    int by_masks = o == PREDIFF_OBJECTIVE_PREDIFF || o == PREDIFF_OBJECTIVE_DIFFUGPT;
    for (i = 0; i < n; i++) {
        double w = o == PREDIFF_OBJECTIVE_MDLM || o == PREDIFF_OBJECTIVE_SEDD || o == PREDIFF_OBJECTIVE_DIFFUGPT ? 1.0 / rate
                 : o == PREDIFF_OBJECTIVE_EXACT_L ? (double)n / (double)masked : o == PREDIFF_OBJECTIVE_CART ? pdi_cart(rows, n, before, i) : 1.0;
        rows[i].masked = rows[i].input == PREDIFF_MASK ? (float)w : 0;
    }
    if (!lost) return (double)(by_masks ? masked : n);
    return (double)(by_masks ? masked - (rows[0].input == PREDIFF_MASK) : n - 1);
}

/* -- from texts to rows -- */

PDI_FN pdi_train_row *pdi_put_row(prediff_trainer *t, const prediff_sequence *s, size_t text, size_t token, size_t seen, size_t from, size_t to) {
    pdi_train_row *row = &t->rows[t->n_rows++];
    memset(row, 0, sizeof *row);
    row->input = s->ids[token];
    row->label = -1;
    row->group = (uint32_t)t->n_groups;
    row->position = row->token = (uint32_t)token;
    row->text = (uint32_t)text;
    row->seen = (uint32_t)seen; row->from = (uint32_t)from; row->to = (uint32_t)to;
    return row;
}

/* A causal row predicts the next token; returns 1 if there is one. */
PDI_FN int pdi_label_causal(pdi_train_row *row, const prediff_sequence *s) {
    if (row->token + 1 >= s->n) return 0;
    row->label = s->ids[row->token + 1];
    row->causal = 1;
    return 1;
}

/* Labels of the target rows; a shifted model's row i - 1 has the label and the weight of token i. */
PDI_FN void pdi_label_targets(prediff_trainer *t, pdi_train_row *rows, size_t n, size_t before, const prediff_sequence *s) {
    size_t i;
    for (i = 0; i < n; i++) {
        pdi_train_row *row = rows + i;
        float w = row->masked;
        if (t->m.hp.shift) {
            row->masked = 0;
            if (i == 0 && !before) continue;                   /* nothing stands before it */
            row--;
        }
        row->label = s->ids[rows[i].token];
        row->masked = w;
    }
}

/* The target rows just put, with `before` rows of the same text before them: masks, weights, rate, labels. Adds to the counts. */
PDI_FN void pdi_finish_target(prediff_trainer *t, pdi_train_row *rows, size_t n, size_t before, const prediff_sequence *s, size_t draw, double u, int copy,
                              prediff_objective o, double count[2]) {
    size_t i, masked = 0;
    double rate = u < 0 ? 1.0 : pdi_rate_law(t, u, draw);       /* below 0: all is masked */
    if (s->input) { for (i = 0; i < n; i++) rows[i].input = s->input[rows[i].token]; }
    else pdi_draw_masks(t, rows, n, draw, rate, o);
    for (i = 0; i < n; i++) {
        rows[i].target = 1;
        if (copy) rows[i].input = rows[i].input == PREDIFF_MASK ? s->ids[rows[i].token] : PREDIFF_MASK;
        masked += rows[i].input == PREDIFF_MASK;
    }
    if (copy) rate = 1.0 - rate < 1e-3 ? 1e-3 : 1.0 - rate;
    t->rates[t->n_groups++] = s->rate ? *s->rate : (float)masked / (float)n;
    if (s->input && !s->rate) rate = (double)masked / (double)n;
    if (s->rate) rate = (double)*s->rate;
    if (rate < 1e-3) rate = 1e-3;
    count[0] += pdi_weigh(rows, n, before, masked, rate, t->m.hp.shift && !before, o);
    for (i = 0; s->weight && i < n; i++) if (rows[i].input == PREDIFF_MASK) rows[i].masked = s->weight[rows[i].token];
    pdi_label_targets(t, rows, n, before, s);
}

/* One text: its prompt rows, causal; its target rows, which see what the attention allows. */
PDI_FN void pdi_text_rows(prediff_trainer *t, const prediff_sequence *s, size_t text, size_t draw, double u, int copy, prediff_objective o, double count[2]) {
    int whole = t->c.attention == PREDIFF_ATTENTION_BIDIRECTIONAL && o != PREDIFF_OBJECTIVE_CAUSAL;
    size_t i, n = s->n, prompt = o == PREDIFF_OBJECTIVE_CAUSAL ? n : s->n_prompt, first = t->n_rows;
    int causal = o == PREDIFF_OBJECTIVE_CAUSAL || (t->d.causal_weight > 0 && !whole);
    for (i = 0; i < n; i++) {
        int target = i >= prompt;
        size_t seen = whole ? (t->annealing ? i + 1 : n) : target && t->c.attention == PREDIFF_ATTENTION_HYBRID ? n : i + 1;
        pdi_train_row *row = pdi_put_row(t, s, text, i, seen, n, n);
        if (!target && causal && pdi_label_causal(row, s)) count[1] += 1;
    }
    if (prompt < n) pdi_finish_target(t, t->rows + first + prompt, n - prompt, prompt, s, draw, u, copy, o, count);
    t->spans[t->n_spans].row = first;
    t->spans[t->n_spans++].n = n;
}

/* The whole text as causal rows, then K blocks of target rows, each a second version of some of its positions: a block sees
   the causal rows before it and itself (Fu et al. 2026; Gat et al. 2025). Blocks 0, 2, 4 ... are all mask, the others masked at a
   drawn rate. */
PDI_FN void pdi_block_rows(prediff_trainer *t, const prediff_sequence *s, size_t text, size_t draw, prediff_objective o, double count[2]) {
    size_t first = t->n_rows, i, b;
    for (i = 0; i < s->n; i++) if (pdi_label_causal(pdi_put_row(t, s, text, i, i + 1, s->n, s->n), s)) count[1] += 1;
    for (b = 0; b < t->d.n_blocks && s->n > 1; b++) {
        uint32_t index = (uint32_t)(2 + 4 * b);
        size_t most = pdi_min(t->d.block_max, s->n - 1), least = pdi_min(t->d.block_min, most), n, at, from = t->n_rows - first;
        n = least + (size_t)(pdi_chance(t, PDI_STREAM_TIME, draw, 0, index) * (double)(most - least + 1));
        at = 1 + (size_t)(pdi_chance(t, PDI_STREAM_TIME, draw, 0, index + 1) * (double)(s->n - n));
        for (i = 0; i < n; i++) pdi_put_row(t, s, text, at + i, at, from, from + n);
        pdi_finish_target(t, t->rows + first + from, n, 0, s, draw * 64 + b, b % 2 ? pdi_chance(t, PDI_STREAM_TIME, draw, 0, index + 2) : -1.0, 0, o, count);
    }
    t->spans[t->n_spans].row = first;
    t->spans[t->n_spans++].n = t->n_rows - first;
}

PDI_FN size_t pdi_rows_needed(const prediff_trainer *t, const prediff_sequence *s, prediff_objective o) {
    if (o == PREDIFF_OBJECTIVE_CAUSAL) return s->n;
    return t->d.n_blocks ? s->n + t->d.n_blocks * pdi_min(t->d.block_max, s->n) : (t->d.complementary ? 2 : 1) * s->n;
}

/* Rates, and so targets, in one call. */
PDI_FN size_t pdi_train_groups(const prediff_trainer *t) { return pdi_min(t->d.max_rows, 4096); }

PDI_FN prediff_status pdi_check_texts(const prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_objective o, prediff_error *err) {
    size_t i, k, rows = 0, soft = 0, groups = n * (t->d.n_blocks ? t->d.n_blocks : t->d.complementary ? 2 : 1);
    if (!s && n) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the texts are NULL");
    if ((unsigned)o > PREDIFF_OBJECTIVE_SEDD) return PDI_FAIL(err, ARG, VALUE_RANGE, "the objective is not one of its values");
    if (o != PREDIFF_OBJECTIVE_CAUSAL && !t->m.mask && t->m.mask_token < 0)
        return PDI_FAIL(err, ARG, MASK_ID_UNKNOWN, "the model has no mask: set desc.add_mask to give it a mask vector");
    for (i = 0; i < n; i++) {
        if (!s[i].ids) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "text %u has no ids", (uint64_t)i);
        if (s[i].n < 1 || s[i].n > t->d.n_ctx || s[i].n_prompt > s[i].n)
            return PDI_FAIL_AT(err, ARG, T_RANGE, i, "text %u: %u tokens with a prompt of %u; n_ctx is %u", (uint64_t)i, (uint64_t)s[i].n, (uint64_t)s[i].n_prompt, (uint64_t)t->d.n_ctx);
        for (k = 0; k < s[i].n; k++)
            if (s[i].ids[k] < 0 || (size_t)s[i].ids[k] >= t->m.hp.n_vocab || (s[i].input && s[i].input[k] != PREDIFF_MASK && (s[i].input[k] < 0 || (size_t)s[i].input[k] >= t->m.hp.n_vocab)))
                return PDI_FAIL_AT(err, ARG, TOKEN_RANGE, k, "text %u: the token at %u is out of range", (uint64_t)i, (uint64_t)k);
        for (k = 0; s[i].weight && k < s[i].n; k++)
            if (!(s[i].weight[k] >= 0) || !pdi_is_finite(&s[i].weight[k])) return PDI_FAIL_AT(err, ARG, VALUE_RANGE, k, "text %u: the weight at %u is not a number from 0 on", (uint64_t)i, (uint64_t)k);
        if (s[i].rate && !(*s[i].rate >= 0 && *s[i].rate <= 1)) return PDI_FAIL_AT(err, ARG, VALUE_RANGE, i, "text %u: its rate is not within 0 and 1", (uint64_t)i);
        soft += s[i].soft != NULL;
        rows += pdi_rows_needed(t, &s[i], o);
    }
    if (soft && soft != n) return PDI_FAIL(err, ARG, CONFLICT, "a soft prediction is given for %u of %u texts: give it for all or none", (uint64_t)soft, (uint64_t)n);
    if (groups > pdi_train_groups(t)) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u targets in one call; at most %u", (uint64_t)groups, (uint64_t)pdi_train_groups(t));
    if (rows > t->d.max_rows) return PDI_FAIL(err, LIMIT, LIMIT_EXCEEDED, "%u rows in one call; desc.max_rows is %u", (uint64_t)rows, (uint64_t)t->d.max_rows);
    return PREDIFF_OK;
}

/* Rows, spans and lists of a call. count: what it adds to the two divisors. */
PDI_FN void pdi_build_batch(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_objective o, uint64_t seed, double count[2]) {
    size_t i, r, base = (size_t)(t->n_texts & 0xFFFFFF);
    double shift;
    t->draw_seed = seed;
    t->draw_base = t->n_texts;
    t->annealing = t->anneal < 1 && t->c.attention == PREDIFF_ATTENTION_BIDIRECTIONAL && o != PREDIFF_OBJECTIVE_CAUSAL;
    if (t->annealing) pdi_draw_open(t);
    t->n_rows = t->n_spans = t->n_groups = t->n_targets = t->n_masked = t->n_losses = 0;
    t->texts = s;
    t->have_soft = 0;
    shift = pdi_chance(t, PDI_STREAM_TIME, base, 0, 0);
    for (i = 0; i < n; i++) {
        double u = shift + (double)i / (double)n;               /* stratified over the call */
        int copy;
        u -= floor(u);
        if (t->d.n_blocks && o != PREDIFF_OBJECTIVE_CAUSAL) { pdi_block_rows(t, &s[i], i, base + i, o, count); continue; }
        for (copy = 0; copy < (t->d.complementary && o != PREDIFF_OBJECTIVE_CAUSAL ? 2 : 1); copy++) pdi_text_rows(t, &s[i], i, base + i, u, copy, o, count);
    }
    for (r = 0; r < t->n_rows; r++) {
        const pdi_train_row *row = &t->rows[r];
        if (row->target) t->targets[t->n_targets++] = (uint32_t)r;
        if (row->input == PREDIFF_MASK) t->masks[t->n_masked++] = (uint32_t)r;
        if (row->label >= 0 && (row->masked > 0 || row->causal > 0)) t->losses[t->n_losses++] = (uint32_t)r;
    }
}

/* The soft prediction that is fed back: given by all texts, or with some probability from a first pass; then the pass itself. */
PDI_FN void pdi_train_pass(prediff_trainer *t, size_t n, int coin) {
    size_t i, given = 0;
    for (i = 0; i < n; i++) given += t->texts[i].soft != NULL;
    if (t->m.selfcond.data && t->n_targets && given == n) pdi_train_soft(t, 1);
    else if (t->m.selfcond.data && t->n_targets && coin) {
        pdi_train_forward(t);
        pdi_train_soft(t, 0);
    }
    pdi_train_forward(t);
}

PDI_FN void pdi_sum_nats(prediff_trainer *t) {
    size_t i;
    for (i = 0; i < t->n_losses; i++) {
        const pdi_train_row *row = &t->rows[t->losses[i]];
        t->masked_nats += (double)row->masked * t->row_nats[t->losses[i]];
        t->causal_nats += (double)row->causal * t->row_nats[t->losses[i]];
    }
}

PDI_FN void pdi_fill_stats(const prediff_trainer *t, double masked, double causal, double causal_weight, prediff_train_stats *s) {
    double divisor = masked + causal_weight * causal;
    if (!s) return;
    memset(s, 0, sizeof *s);
    s->masked_nats = t->masked_nats; s->causal_nats = t->causal_nats;
    s->masked_rows = masked; s->causal_rows = causal;
    s->loss = divisor > 0 ? (t->masked_nats + causal_weight * t->causal_nats) / divisor : 0;
    s->n_rows = t->n_counted;
    s->n_steps = t->n_steps;
    s->n_texts = t->n_texts;
    s->position = t->position;
}

PDI_DEF prediff_status prediff_trainer_gradient(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_train_stats *stats, prediff_error *err) {
    double count[2] = { 0, 0 };
    uint64_t seed;
    if (!t) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the trainer is NULL");
    PDI_TRY(pdi_check_texts(t, s, n, t->d.objective, err));
    seed = t->d.seed + (t->n_texts >> 24 << 32);
    pdi_build_batch(t, s, n, t->d.objective, seed, count);
    pdi_train_pass(t, n, pdi_chance(t, PDI_STREAM_COIN, (size_t)(t->n_texts & 0xFFFFFF), 0, 0) < t->d.selfcond);
    pdi_train_head(t, 1);
    pdi_train_backward(t);
    pdi_sum_nats(t);
    t->grad[t->n_floats] += (float)count[0];
    t->grad[t->n_floats + 1] += (float)count[1];
    t->n_counted += t->n_rows;
    t->n_texts += n;
    pdi_fill_stats(t, (double)t->grad[t->n_floats], (double)t->grad[t->n_floats + 1], t->d.causal_weight, stats);
    return PREDIFF_OK;
}

PDI_DEF prediff_status prediff_trainer_evaluate(prediff_trainer *t, const prediff_sequence *s, size_t n, prediff_objective objective, uint64_t seed,
                                                prediff_train_stats *stats, prediff_error *err) {
    double count[2] = { 0, 0 }, masked, causal;
    uint64_t texts;
    size_t counted;
    if (!t) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the trainer is NULL");
    PDI_TRY(pdi_check_texts(t, s, n, objective, err));
    texts = t->n_texts; masked = t->masked_nats; causal = t->causal_nats; counted = t->n_counted;
    t->masked_nats = t->causal_nats = 0;
    t->n_texts = 0;
    pdi_build_batch(t, s, n, objective, seed, count);
    pdi_train_pass(t, n, 0);
    pdi_train_head(t, 0);
    pdi_sum_nats(t);
    t->n_counted = t->n_rows;
    pdi_fill_stats(t, count[0], count[1], objective == PREDIFF_OBJECTIVE_CAUSAL ? 1.0 : t->d.causal_weight, stats);
    t->n_texts = texts; t->masked_nats = masked; t->causal_nats = causal; t->n_counted = counted;
    return PREDIFF_OK;
}

PDI_DEF void prediff_trainer_get_stats(const prediff_trainer *t, prediff_train_stats *stats) {
    pdi_fill_stats(t, (double)t->grad[t->n_floats], (double)t->grad[t->n_floats + 1], t->d.causal_weight, stats);
}

PDI_DEF void prediff_trainer_anneal(prediff_trainer *t, double share) { t->anneal = !(share > 0) ? 0 : share > 1 ? 1 : share; }

/* -- the update -- */

/* Without a: adds to the square of the gradient's norm. With: AdamW, and the gradient is cleared. */
PDI_FN void pdi_update_piece(prediff_trainer *t, const pdi_adamw *a, int decay, size_t at, size_t n, double *squares) {
    pdi_adamw one;
    size_t i;
    if (!a) {
        float sum = t->c.k->row_dot(t->grad + at, t->grad + at, n);
        if (pdi_is_finite(&sum)) *squares += (double)sum;
        else for (i = at; i < at + n; i++) *squares += (double)t->grad[i] * (double)t->grad[i];
        return;
    }
    one = *a;
    if (!decay) one.decay = 0;
    t->c.k->adamw(t->w + at, t->grad + at, t->m1 + at, t->m2 + at, n, &one);
    for (i = at; t->ema && i < at + n; i++) t->ema[i] += (float)(1.0 - t->d.ema) * (t->w[i] - t->ema[i]);
    memset(t->grad + at, 0, n * sizeof *t->grad);
}

typedef struct pdi_update_job { prediff_trainer *t; const pdi_adamw *a; } pdi_update_job;

/* A slice of each array: its part of the gradient's norm, or AdamW. Slices are the same for any number of threads. */
PDI_FN void pdi_update_share(void *arg, size_t i, size_t n) {
    const pdi_update_job *j = (const pdi_update_job *)arg;
    prediff_trainer *t = j->t;
    size_t slice, end, p, begin, stop;
    pdi_range(PDI_SLICES, i, n, &slice, &end);
    for (; slice < end; slice++) {
        size_t first = t->n_floats / PDI_SLICES * slice, last = slice + 1 == PDI_SLICES ? t->n_floats : t->n_floats / PDI_SLICES * (slice + 1);
        t->slices[slice] = 0;
        for (p = 0; p < t->n_params; p++) {
            const pdi_param *q = &t->params[p];
            begin = pdi_max(first, q->at); stop = pdi_min(last, q->at + q->n);
            if (begin >= stop || q->frozen) continue;
            for (; begin < stop; begin += PDI_PIECE) pdi_update_piece(t, j->a, q->decay, begin, pdi_min(stop - begin, PDI_PIECE), &t->slices[slice]);
        }
    }
}

/* The gradient itself was cleared with its use. */
PDI_FN void pdi_clear_sums(prediff_trainer *t) {
    t->grad[t->n_floats] = t->grad[t->n_floats + 1] = 0;
    t->masked_nats = t->causal_nats = 0;
    t->n_counted = 0;
}

PDI_DEF prediff_status prediff_trainer_update(prediff_trainer *t, double rate, prediff_train_stats *stats, prediff_error *err) {
    double divisor, norm = 0, loss;
    size_t i;
    pdi_adamw a;
    pdi_update_job j;
    if (!t) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the trainer is NULL");
    if (!(rate >= 0 && rate <= 1e6)) return PDI_FAIL(err, ARG, VALUE_RANGE, "the learning rate must lie between 0 and 10^6");
    pdi_fill_stats(t, (double)t->grad[t->n_floats], (double)t->grad[t->n_floats + 1], t->d.causal_weight, stats);       /* of this process */
    if (t->d.reduce && t->d.reduce(t->d.user, t->grad, t->n_floats + 2)) return PDI_FAIL(err, CANCELLED, STOPPED, "desc.reduce failed; nothing was changed");
    divisor = (double)t->grad[t->n_floats] + t->d.causal_weight * (double)t->grad[t->n_floats + 1];
    if (!(divisor > 0)) return PDI_FAIL(err, ARG, VALUE_RANGE, "no row has a loss: call prediff_trainer_gradient first");
    j.t = t; j.a = NULL;
    pdi_parallel(&t->c.threads, pdi_update_share, &j, (double)t->n_floats);
    for (i = 0; i < PDI_SLICES; i++) norm += t->slices[i];
    norm = sqrt(norm) / divisor;
    loss = t->masked_nats + t->causal_nats;
    if (stats) stats->gradient_norm = norm;
    if (!pdi_is_finite_double(&norm) || !pdi_is_finite_double(&loss)) {
        memset(t->grad, 0, t->n_floats * sizeof *t->grad);
        pdi_clear_sums(t);
        return PDI_FAIL(err, NUMERIC, LOGITS, "the loss or its gradient is not finite: this batch was left out");
    }
    t->n_steps++;
    a.scale = (float)((t->d.clip > 0 && norm > t->d.clip ? t->d.clip / (norm + 1e-6) : 1.0) / divisor);
    a.beta1 = (float)t->d.beta1; a.beta2 = (float)t->d.beta2; a.eps = (float)t->d.eps;
    a.rate = (float)rate; a.decay = (float)t->d.weight_decay;
    a.correct1 = (float)(1.0 / (1.0 - pow(t->d.beta1, (double)t->n_steps)));
    a.correct2 = (float)(1.0 / (1.0 - pow(t->d.beta2, (double)t->n_steps)));
    j.a = &a;
    pdi_parallel(&t->c.threads, pdi_update_share, &j, 4.0 * (double)t->n_floats);
    pdi_clear_sums(t);
    if (stats) stats->n_steps = t->n_steps;
    return PREDIFF_OK;
}

/* -- creation: tensors of the file, then the additions it lacks -- */

PDI_FN int pdi_starts(prediff_string s, const char *z) { return s.n >= strlen(z) && memcmp(s.bytes, z, strlen(z)) == 0; }
PDI_FN int pdi_is_state(prediff_string s) { return pdi_starts(s, "adam.m.") || pdi_starts(s, "adam.v.") || pdi_starts(s, "ema."); }

/* One more tensor: counted, and entered where there is room already. */
PDI_FN void pdi_train_tensor(prediff_trainer *t, prediff_string name, uint32_t n_dims, uint64_t cols, uint64_t rows) {
    size_t i = t->n_params++, n = (size_t)(cols * rows), k;
    float *arrays[3];
    arrays[0] = t->w; arrays[1] = t->grad; arrays[2] = t->ema;
    for (k = 0; t->params && k < 3; k++) {
        prediff_tensor *x = &t->tensors[k][i];
        x->name = name; x->type = PDI_NATIVE; x->n_dims = n_dims;
        x->dims[0] = cols; x->dims[1] = rows; x->dims[2] = x->dims[3] = 1;
        x->data = arrays[k] ? (const uint8_t *)(arrays[k] + t->n_floats) : NULL;
        x->data_size = n * sizeof(float);
    }
    if (t->params) {
        t->params[i].at = t->n_floats; t->params[i].n = n;
        t->params[i].decay = n_dims > 1;
        t->params[i].frozen = pdi_str_is(name, "rope_freqs.weight");
    }
    t->n_floats += pdi_round_up(n, 16);
}

PDI_FN void pdi_train_addition(prediff_trainer *t, const char *name, size_t cols, size_t rows) {
    prediff_string s;
    s.bytes = name; s.n = strlen(name);
    if (!pdi_find_tensor(&t->d.init->gguf, name)) pdi_train_tensor(t, s, rows ? 2 : 1, cols, rows ? rows : 1);
}

PDI_FN void pdi_train_list(prediff_trainer *t) {
    const pdi_gguf *g = &t->d.init->gguf;
    size_t i, d = t->m.hp.n_embd;
    t->n_params = t->n_floats = 0;
    for (i = 0; i < g->n_tensors; i++)
        if (!pdi_is_state(g->tensors[i].name))
            pdi_train_tensor(t, g->tensors[i].name, g->tensors[i].n_dims, g->tensors[i].dims[0], g->tensors[i].dims[1] * g->tensors[i].dims[2] * g->tensors[i].dims[3]);
    t->n_known = t->n_params;
    if (t->d.add_mask) pdi_train_addition(t, "prediff.mask.weight", d, 0);
    if (t->d.add_rate) {
        pdi_train_addition(t, "prediff.rate.0.weight", d, 4 * d);
        pdi_train_addition(t, "prediff.rate.0.bias", 4 * d, 0);
        pdi_train_addition(t, "prediff.rate.2.weight", 4 * d, d);
        pdi_train_addition(t, "prediff.rate.2.bias", d, 0);
    }
    if (t->d.add_selfcond) {
        pdi_train_addition(t, "prediff.selfcond.weight", d, d);
        pdi_train_addition(t, "prediff.selfcond.bias", d, 0);
    }
    if (t->d.add_noise) {
        pdi_train_addition(t, "prediff.noise.0.weight", t->m.hp.noise_dim, 4 * d);
        pdi_train_addition(t, "prediff.noise.0.bias", 4 * d, 0);
        pdi_train_addition(t, "prediff.noise.2.weight", 4 * d, d);
    }
}

PDI_FN prediff_status pdi_train_settings(prediff_trainer *t, const prediff_train_desc *d, prediff_error *err) {
    prediff_context_desc cd;
    const char *bad = NULL;
    memset(t, 0, sizeof *t);
    t->d = *d;
    t->m = *d->init;
    memset(&cd, 0, sizeof cd);
    cd.n_ctx = d->n_ctx; cd.n_threads = d->n_threads; cd.isa = d->isa;
    cd.parallel_for = d->parallel_for; cd.parallel_user = d->parallel_user;
    PDI_TRY(pdi_context_settings(&t->c, &t->m, &cd, err));
    t->c.attention = d->attention ? d->attention : t->c.attention == PREDIFF_ATTENTION_CAUSAL ? PREDIFF_ATTENTION_HYBRID : t->c.attention;
    if ((unsigned)d->attention > PREDIFF_ATTENTION_CAUSAL) bad = "attention";
    if ((unsigned)d->objective > PREDIFF_OBJECTIVE_SEDD) bad = "objective";
    if ((unsigned)d->rates > PREDIFF_RATES_SQUARE) bad = "rates";
    if (!(d->causal_weight >= 0 && d->causal_weight <= 1e6)) bad = "causal_weight";
    if (!(d->selfcond >= 0 && d->selfcond <= 1)) bad = "selfcond";
    if (!(d->beta1 >= 0 && d->beta1 < 1)) bad = "beta1";
    if (!(d->beta2 >= 0 && d->beta2 < 1)) bad = "beta2";
    if (!(d->eps >= 0) || !(d->weight_decay >= 0) || !(d->clip >= 0)) bad = "eps, weight_decay or clip";
    if (!(d->ema >= 0 && d->ema < 1)) bad = "ema";
    if (d->add_noise > 1 << 20) bad = "add_noise";
    if (d->n_blocks > 63 || (d->n_blocks && (d->block_min < 1 || d->block_max < d->block_min))) bad = "n_blocks, block_min or block_max";
    if (bad) return PDI_FAIL(err, ARG, VALUE_RANGE, "desc.%s is out of range", bad);
    if (d->n_blocks && (d->complementary || t->c.attention != PREDIFF_ATTENTION_HYBRID)) return PDI_FAIL(err, ARG, CONFLICT, "blocks need hybrid attention and exclude complementary masks");
    t->d.n_ctx = t->c.n_ctx;
    if (!d->max_rows) t->d.max_rows = t->d.n_ctx;
    if (t->d.max_rows > UINT32_MAX / 4) return PDI_FAIL(err, ARG, VALUE_RANGE, "desc.max_rows is out of range");
    if (!(d->beta1 > 0)) t->d.beta1 = 0.9;
    if (!(d->beta2 > 0)) t->d.beta2 = 0.999;
    if (!(d->eps > 0)) t->d.eps = 1e-8;
    if (d->objective == PREDIFF_OBJECTIVE_CAUSAL) t->d.causal_weight = 1;
    t->anneal = 1;
    t->m.hp.shift |= d->shift;
    if (d->add_noise && !t->m.hp.noise_dim) t->m.hp.noise_dim = d->add_noise;
    if (d->objective != PREDIFF_OBJECTIVE_CAUSAL) {
        if (!t->m.mask && t->m.mask_token < 0 && !d->add_mask)
            return PDI_FAIL(err, ARG, MASK_ID_UNKNOWN, "the model has no mask: set desc.add_mask to give it a mask vector");
        t->m.hp.adapted = 1;
        t->m.hp.attention = t->c.attention;
    }
    t->W = t->c.qkv_width;
    pdi_train_list(t);
    return PREDIFF_OK;
}

PDI_FN void pdi_train_layout(prediff_trainer *t, pdi_arena *a) {
    const pdi_hparams *h = &t->m.hp;
    size_t rows = t->d.max_rows, d = h->n_embd, V = h->n_vocab, groups = pdi_train_groups(t), layers = t->d.recompute ? 1 : h->n_layer, k;
    size_t threads = (size_t)t->c.threads.n, wide = pdi_max(pdi_max(2 * h->n_ff, 4 * d), pdi_max(t->W, t->c.q_width));
    int rate = t->d.add_rate || t->m.rate[0].data, selfcond = t->d.add_selfcond || t->m.selfcond.data;
    size_t noise = h->noise_dim ? rows : 0;
    t->n_max = pdi_min(rows, t->d.n_ctx + t->d.n_blocks * pdi_min(t->d.block_max, t->d.n_ctx));
    t->params = (pdi_param *)pdi_take(a, t->n_params, sizeof *t->params);
    for (k = 0; k < 3; k++) t->tensors[k] = (prediff_tensor *)pdi_take(a, t->n_params, sizeof **t->tensors);
    t->w = pdi_take_floats(a, t->n_floats, 1, 1);
    t->grad = pdi_take_floats(a, t->n_floats + 2, 1, 1);
    t->m1 = pdi_take_floats(a, t->n_floats, 1, 1);
    t->m2 = pdi_take_floats(a, t->n_floats, 1, 1);
    t->ema = pdi_take_floats(a, t->d.ema > 0 ? t->n_floats : 0, 1, 1);
    if (!(t->d.ema > 0)) t->ema = NULL;
    t->rows = (pdi_train_row *)pdi_take(a, rows, sizeof *t->rows);
    t->spans = (pdi_span *)pdi_take(a, rows, sizeof *t->spans);
    t->targets = (uint32_t *)pdi_take(a, rows, sizeof *t->targets);
    t->masks = (uint32_t *)pdi_take(a, rows, sizeof *t->masks);
    t->losses = (uint32_t *)pdi_take(a, rows, sizeof *t->losses);
    t->rates = pdi_take_floats(a, rows, 1, 1);
    t->row_nats = (double *)pdi_take(a, rows, sizeof(double));
    t->slices = (double *)pdi_take(a, PDI_SLICES, sizeof(double));
    t->x = pdi_take_floats(a, h->n_layer + 1, rows, d);
    t->saved.qkv = pdi_take_floats(a, layers, rows, t->W);
    t->saved.mixed = pdi_take_floats(a, layers, rows, t->c.q_width);
    t->saved.mid = pdi_take_floats(a, layers, rows, d);
    t->saved.ff = pdi_take_floats(a, layers, rows, 2 * h->n_ff);
    t->h = pdi_take_floats(a, rows, d, 1);
    t->dh = pdi_take_floats(a, rows, d, 1);
    t->dx = pdi_take_floats(a, rows, d, 1);
    t->act = pdi_take_floats(a, rows, h->n_ff, 1);
    t->dff = pdi_take_floats(a, rows, wide, 1);
    t->dqkv = pdi_take_floats(a, rows, t->W, 1);
    t->logits = pdi_take_floats(a, PDI_TRAIN_HEAD, V, 1);
    t->sums = pdi_take_floats(a, pdi_ceil_div(rows, 64), 2 * d, 1);
    t->soft = pdi_take_floats(a, selfcond ? rows : 0, d, 1);
    t->first = pdi_take_floats(a, selfcond ? rows : 0, d, 1);
    t->wave = pdi_take_floats(a, rate ? groups : 0, d, 1);
    t->tau = pdi_take_floats(a, rate ? groups : 0, d, 1);
    t->rate_hidden = pdi_take_floats(a, rate ? groups : 0, 4 * d, 1);
    t->noise = pdi_take_floats(a, noise, h->noise_dim, 1);
    t->noise_hidden = pdi_take_floats(a, noise, 4 * d, 1);
    t->pairs = pdi_take_floats(a, threads * 2, t->n_max, t->n_max);
    t->open = (uint8_t *)pdi_take(a, t->c.attention == PREDIFF_ATTENTION_BIDIRECTIONAL ? t->d.n_ctx : 0, pdi_ceil_div(t->d.n_ctx, 8));
    t->c.cosines = pdi_take_floats(a, t->c.n_ctx, h->rope_dim, 1);
    t->c.sines = pdi_take_floats(a, t->c.n_ctx, h->rope_dim, 1);
    t->unsines = pdi_take_floats(a, t->c.n_ctx, h->rope_dim, 1);
    t->c.work = pdi_take_floats(a, threads, t->c.work_size, 1);
    t->m.gguf.tensor_slots = pdi_table_size(t->n_params);
    t->m.gguf.tensor_table = (uint32_t *)pdi_take(a, t->m.gguf.tensor_slots, sizeof(uint32_t));
    t->state = (prediff_tensor *)pdi_take(a, 4 * t->n_params, sizeof *t->state);
    t->state_types = (uint32_t *)pdi_take(a, 4 * t->n_params, sizeof *t->state_types);
    t->state_names = (char *)pdi_take(a, 3 * t->n_params, PDI_STATE_NAME);
    t->keys = (prediff_key *)pdi_take(a, t->m.gguf.n_keys + PDI_TRAIN_KEYS, sizeof *t->keys);
    if (a->base) return;                                        /* what binding takes */
    pdi_take(a, h->n_layer, sizeof(pdi_layer));
    pdi_take(a, h->n_layer, sizeof(pdi_layer));
}

/* The file's tensor that became number i of ours. */
PDI_FN const prediff_tensor *pdi_find_known(const prediff_trainer *t, size_t i) {
    const prediff_tensor *x = t->d.init->gguf.tensors;
    while (pdi_is_state(x->name) || i-- > 0) x++;
    return x;
}

/* First values: matrices of the file as floats; last layers zero, so that the model begins as it was. The mask vector: a random
   direction with the mean length of the embedding rows (a short one lets gradients explode, Bie et al. 2025). */
PDI_FN void pdi_train_first_values(prediff_trainer *t) {
    size_t i, k, d = t->m.hp.n_embd;
    for (i = 0; i < t->n_known; i++) {
        const prediff_tensor *from = pdi_find_known(t, i);
        size_t rows = pdi_tensor_rows(from), cols = (size_t)from->dims[0];
        for (k = 0; k < rows; k++) t->c.k->dequantize(from->type, from->data + k * (from->data_size / rows), t->w + t->params[i].at + k * cols, cols);
    }
    for (i = t->n_known; i < t->n_params; i++) {
        const prediff_tensor *x = &t->tensors[0][i];
        float *w = t->w + t->params[i].at;
        double scale = 0;
        if (pdi_starts(x->name, "prediff.rate.0.")) scale = 1.0 / sqrt((double)d);
        for (k = 0; k < t->params[i].n; k++) {
            uint32_t at = (uint32_t)k, part = (uint32_t)i;
            if (scale > 0) w[k] = (float)(scale * (2.0 * prediff_uniform(t->d.seed, PDI_STREAM_INIT, part, at, 0) - 1.0));
            else if (pdi_str_is(x->name, "prediff.noise.0.weight")) {
                double z = pdi_normal(t->d.seed, PDI_STREAM_INIT, at, part);
                w[k] = (float)(0.02 * (z > 2 ? 2 : z < -2 ? -2 : z));
            } else if (pdi_str_is(x->name, "prediff.mask.weight")) w[k] = (float)pdi_normal(t->d.seed, PDI_STREAM_INIT, at, part);
        }
        if (pdi_str_is(x->name, "prediff.mask.weight")) {
            double mean = 0, own = (double)t->c.k->row_dot(w, w, d);
            for (k = 0; k < t->m.hp.n_vocab; k++) {
                const float *row = (const float *)(const void *)t->m.token_embd.data + k * d;
                mean += sqrt((double)t->c.k->row_dot(row, row, d)) / (double)t->m.hp.n_vocab;
            }
            t->c.k->scale(w, (float)(mean / sqrt(own)), d);
        }
    }
}

/* A tensor of the checkpoint under prefix + name, if it has the shape. */
PDI_FN int pdi_train_load_state(prediff_trainer *t, const char *prefix, size_t i, float *to) {
    char name[PDI_STATE_NAME];
    const prediff_tensor *x;
    prediff_string s = t->tensors[0][i].name;
    size_t n = strlen(prefix);
    memcpy(name, prefix, n);
    memcpy(name + n, s.bytes, s.n);
    name[n + s.n] = 0;
    x = pdi_find_tensor(&t->d.init->gguf, name);
    if (!x || x->type != PREDIFF_F32 || x->data_size != t->params[i].n * 4) return 0;
    t->c.k->dequantize(x->type, x->data, to + t->params[i].at, t->params[i].n);
    return 1;
}

PDI_FN prediff_status pdi_train_resume(prediff_trainer *t, prediff_error *err) {
    const pdi_gguf *g = &t->d.init->gguf;
    int64_t steps = -1, texts = 0, position = 0;
    size_t i;
    PDI_TRY(pdi_key_int(g, "train.steps", &steps, err));
    PDI_TRY(pdi_key_int(g, "train.texts", &texts, err));
    PDI_TRY(pdi_key_int(g, "train.position", &position, err));
    if (steps < 0) return PDI_FAIL(err, ARG, KEY_MISSING, "desc.init is no checkpoint: it has no key train.steps");
    for (i = 0; i < t->n_params; i++)
        if (!pdi_train_load_state(t, "adam.m.", i, t->m1) || !pdi_train_load_state(t, "adam.v.", i, t->m2))
            return PDI_FAIL(err, FORMAT, TENSOR_MISSING, "the checkpoint lacks the optimiser state of '%S'", &t->tensors[0][i].name);
    for (i = 0; t->ema && i < t->n_params; i++)
        if (!pdi_train_load_state(t, "ema.", i, t->ema)) return PDI_FAIL(err, FORMAT, TENSOR_MISSING, "the checkpoint has no running mean: set desc.ema to 0");
    t->n_steps = (uint64_t)steps; t->n_texts = (uint64_t)texts; t->position = (uint64_t)position;
    return PREDIFF_OK;
}

/* A trainer is too large for the stack, so its draft lives on the heap. */
PDI_DEF prediff_status prediff_trainer_size(const prediff_train_desc *d, size_t *size, prediff_error *err) {
    pdi_arena a = { NULL, 0, 1 };
    const prediff_allocator *al;
    prediff_trainer *t;
    prediff_status s;
    if (!size) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "size is NULL");
    *size = 0;
    PDI_TRY(pdi_check_desc(d, d ? d->canary_begin : 0, d ? d->canary_end : 0, err));
    if (!d->init) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "desc.init is NULL");
    al = &d->init->allocator;
    t = (prediff_trainer *)pdi_alloc(al, sizeof *t);
    if (!t) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for a draft of the trainer");
    s = pdi_train_settings(t, d, err);
    if (!s) {
        pdi_take(&a, 1, sizeof *t);
        pdi_train_layout(t, &a);
        if (!a.ok || !pdi_add(a.used, PDI_ALIGN, size)) s = PDI_FAIL(err, NOMEM, ALLOC, "a trainer of these sizes is larger than memory can be");
    }
    pdi_free(al, t, sizeof *t);
    return s;
}

/* Binds the weights, then the gradients, as a model of a file is bound. */
PDI_FN prediff_status pdi_train_bind(prediff_trainer *t, pdi_arena *a, prediff_error *err) {
    size_t i;
    pdi_train_list(t);
    t->m.gguf.tensors = t->tensors[0];
    t->m.gguf.n_tensors = t->n_params;
    memset(t->m.gguf.tensor_table, 0, t->m.gguf.tensor_slots * sizeof(uint32_t));
    for (i = 0; i < t->n_params; i++) pdi_table_add(t->m.gguf.tensor_table, t->m.gguf.tensor_slots, t->tensors[0], sizeof **t->tensors, i);
    memset(&t->m.output, 0, sizeof t->m.output);
    memset(t->m.rate, 0, sizeof t->m.rate);
    memset(&t->m.selfcond, 0, sizeof t->m.selfcond);
    memset(t->m.noise, 0, sizeof t->m.noise);
    t->g = t->m;
    t->g.gguf.tensors = t->tensors[1];
    PDI_TRY(pdi_bind_model(&t->m, a, 1, err));
    PDI_TRY(pdi_bind_model(&t->g, a, 1, err));
    if (t->m.mask) t->m.mask_token = -1;
    t->m.block = t->m.image = NULL;
    return PREDIFF_OK;
}

PDI_DEF prediff_status prediff_trainer_create(prediff_trainer **out, const prediff_train_desc *d, prediff_error *err) {
    pdi_arena a = { NULL, 0, 1 };
    prediff_trainer *t;
    prediff_status s;
    size_t size, i;
    void *block;
    if (!out) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "out is NULL");
    *out = NULL;
    PDI_TRY(prediff_trainer_size(d, &size, err));
    block = pdi_alloc(&d->init->allocator, size);
    if (!block) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for the trainer (%u bytes)", (uint64_t)size);
    memset(block, 0, size);
    a.base = pdi_align_pointer(block);
    t = (prediff_trainer *)pdi_take(&a, 1, sizeof *t);
    s = pdi_train_settings(t, d, err);
    t->allocator = d->init->allocator;
    t->block = block; t->block_size = size;
    pdi_train_layout(t, &a);
    if (!s) s = pdi_train_bind(t, &a, err);
    if (!s) {
        pdi_fill_rotary(&t->c);
        for (i = 0; i < t->c.n_ctx * t->m.hp.rope_dim; i++) t->unsines[i] = -t->c.sines[i];
        pdi_train_first_values(t);
        if (t->ema) memcpy(t->ema, t->w, t->n_floats * sizeof *t->w);
        if (d->resume) s = pdi_train_resume(t, err);
    }
    if (s) { pdi_free(&d->init->allocator, block, size); return s; }
    *out = t;
    return PREDIFF_OK;
}

PDI_DEF void prediff_trainer_destroy(prediff_trainer *t) {
    prediff_allocator al;
    if (!t) return;
    al = t->allocator;
    pdi_free(&al, t->block, t->block_size);
}

PDI_DEF const prediff_model *prediff_trainer_model(const prediff_trainer *t) { return &t->m; }

PDI_DEF void prediff_trainer_tensors(const prediff_trainer *t, int what, prediff_container *out) {
    memset(out, 0, sizeof *out);
    if (what < 0 || what > 2 || (what == 2 && !t->ema)) return;
    out->tensors = t->tensors[what];
    out->n_tensors = t->n_params;
}

/* -- saving -- */

/* A key whose value lies in the trainer: v bytes, or a string. */
PDI_FN void pdi_train_key(prediff_trainer *t, const char *name, uint32_t type, uint64_t value, const char *text) {
    prediff_key *k = &t->keys[t->n_keys];
    uint8_t *data = t->key_data + t->n_own_keys++ * 32;
    k->name.bytes = name; k->name.n = strlen(name);
    k->type = k->element = type; k->count = 1;
    k->data = data;
    k->data_size = text ? 8 + strlen(text) : pdi_gguf_size[type];
    pdi_put_u64(data, text ? strlen(text) : value);
    if (text) memcpy(data + 8, text, strlen(text));
    t->n_keys++;
}

PDI_FN void pdi_train_float_key(prediff_trainer *t, const char *name, float v) { pdi_train_key(t, name, PDI_GGUF_F32, pdi_float_bits(&v), NULL); }

PDI_FN void pdi_train_keys(prediff_trainer *t, int state, uint64_t position) {
    static const char *const attention[] = { "", "hybrid", "bidirectional", "causal" };
    const pdi_hparams *h = &t->m.hp;
    size_t i;
    t->n_keys = t->n_own_keys = 0;
    for (i = 0; i < t->m.gguf.n_keys; i++) {
        const prediff_key *k = &t->m.gguf.keys[i];
        if (pdi_starts(k->name, "prediff.") || pdi_starts(k->name, "train.") || pdi_str_is(k->name, "diffusion.shift_logits") || pdi_str_is(k->name, "general.file_type") ||
            pdi_str_is(k->name, "general.alignment") || ((t->m.mask || t->m.mask_token >= 0) && pdi_str_is(k->name, "tokenizer.ggml.mask_token_id"))) continue;
        t->keys[t->n_keys++] = *k;
    }
    if (h->adapted) {
        pdi_train_key(t, "prediff.version", PDI_GGUF_U32, 1, NULL);
        pdi_train_key(t, "prediff.attention", PDI_GGUF_STRING, 0, attention[h->attention]);
        pdi_train_key(t, "diffusion.shift_logits", PDI_GGUF_BOOL, (uint64_t)h->shift, NULL);
    }
    if (!t->m.mask && t->m.mask_token >= 0) pdi_train_key(t, "tokenizer.ggml.mask_token_id", PDI_GGUF_U32, (uint64_t)t->m.mask_token, NULL);
    if (t->m.rate[0].data) {
        pdi_train_float_key(t, "prediff.rate.scale", h->rate_scale);
        pdi_train_float_key(t, "prediff.rate.min", h->rate_min);
        pdi_train_float_key(t, "prediff.rate.max", h->rate_max);
    }
    if (h->noise_dim) {
        pdi_train_key(t, "prediff.noise.dim", PDI_GGUF_U32, h->noise_dim, NULL);
        pdi_train_float_key(t, "prediff.noise.scale", h->noise_scale);
        pdi_train_key(t, "prediff.noise.distribution", PDI_GGUF_STRING, 0, h->noise_normal ? "normal" : "uniform");
        pdi_train_key(t, "prediff.noise.lifetime", PDI_GGUF_STRING, 0, h->noise_redraw ? "redraw" : "fixed");
    }
    if (!state) return;
    pdi_train_key(t, "train.steps", PDI_GGUF_U64, t->n_steps, NULL);
    pdi_train_key(t, "train.texts", PDI_GGUF_U64, t->n_texts, NULL);
    pdi_train_key(t, "train.position", PDI_GGUF_U64, position, NULL);
}

typedef struct pdi_train_writer { prediff_trainer *t; const float *arrays[4]; int (*write)(void *user, const void *bytes, size_t n); void *user; } pdi_train_writer;

PDI_FN int pdi_train_write(void *user, const void *bytes, size_t n) { return ((pdi_train_writer *)user)->write(((pdi_train_writer *)user)->user, bytes, n); }

PDI_FN int pdi_train_row_out(void *user, size_t tensor, size_t row, float *out) {
    const pdi_train_writer *w = (const pdi_train_writer *)user;
    size_t i = tensor % w->t->n_params, cols = (size_t)w->t->tensors[0][i].dims[0];
    memcpy(out, w->arrays[tensor / w->t->n_params] + w->t->params[i].at + row * cols, cols * sizeof *out);
    return 0;
}

PDI_DEF prediff_status prediff_trainer_save(prediff_trainer *t, int what, prediff_type type, int state, uint64_t position,
                                            int (*write)(void *user, const void *bytes, size_t n), void *user, prediff_error *err) {
    static const char *const prefixes[] = { "", "adam.m.", "adam.v.", "ema." };
    prediff_save_desc d;
    pdi_train_writer w;
    size_t i, k, parts = !state ? 1 : t->ema ? 4 : 3;
    if (!t || !write) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the trainer or write is NULL");
    if (what != 0 && (what != 2 || !t->ema || state)) return PDI_FAIL(err, ARG, VALUE_RANGE, "the running mean can be saved if desc.ema is set, without state");
    w.t = t; w.write = write; w.user = user;
    w.arrays[0] = what == 2 ? t->ema : t->w; w.arrays[1] = t->m1; w.arrays[2] = t->m2; w.arrays[3] = t->ema;
    for (k = 0; k < parts; k++)
        for (i = 0; i < t->n_params; i++) {
            prediff_tensor *x = &t->state[k * t->n_params + i];
            const pdi_type_info *info = pdi_type_of(state ? (uint32_t)PREDIFF_F32 : (uint32_t)type);
            *x = t->tensors[0][i];
            x->data = NULL;
            if (k) {
                char *name = t->state_names + ((k - 1) * t->n_params + i) * PDI_STATE_NAME;
                size_t n = strlen(prefixes[k]);
                memcpy(name, prefixes[k], n);
                memcpy(name + n, x->name.bytes, x->name.n);
                x->name.bytes = name;
                x->name.n += n;
            }
            t->state_types[k * t->n_params + i] = !info || !t->params[i].decay || pdi_str_is(t->tensors[0][i].name, "position_embd.weight") ? (uint32_t)PREDIFF_F32
                                                : x->dims[0] % info->block ? (uint32_t)PREDIFF_F16 : info->type;
        }
    pdi_train_keys(t, state, position);
    memset(&d, 0, sizeof d);
    d.keys = t->keys; d.n_keys = t->n_keys;
    d.tensors = t->state; d.n_tensors = parts * t->n_params;
    d.store = t->state_types;
    d.row = pdi_train_row_out;
    d.write = pdi_train_write;
    d.user = &w;
    d.allocator = t->allocator;
    PDI_TRY(prediff_save(&d, err));
    t->position = state ? position : t->position;
    return PREDIFF_OK;
}
#endif /* PREDIFF_NO_TRAIN */

/* ---- >>IO: files --------------------------------------------------------------------------------------------------- */

#ifdef PREDIFF_NO_STDIO
PDI_FN prediff_status pdi_load_file(const char *path, int map, const prediff_allocator *a, void **data, size_t *size, size_t *held, int *mapped, prediff_error *err) {
    (void)map; (void)a; (void)data; (void)size; (void)held; (void)mapped;
    return PDI_FAIL(err, IO, FILE_OPEN, "%s: built without files (PREDIFF_NO_STDIO)", path);
}

PDI_FN void pdi_unload_file(const prediff_allocator *a, void *data, size_t held, int mapped) { (void)mapped; pdi_free(a, data, held); }
#else

#if PDI_MMAP
PDI_FN int pdi_map_file(const char *path, void **data, size_t *size) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    void *p = MAP_FAILED;
    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && (uint64_t)st.st_size <= SIZE_MAX) {
        *size = (size_t)st.st_size;
        p = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    close(fd);
    if (p == MAP_FAILED) return 0;
    *data = p;
    return 1;
}

PDI_FN size_t pdi_size_hint(const char *path) {                 /* one byte more than the file, so that its end is seen */
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0 || (uint64_t)st.st_size >= SIZE_MAX) return 1u << 16;
    return (size_t)st.st_size + 1;
}
#else
PDI_FN size_t pdi_size_hint(const char *path) { (void)path; return 1u << 16; }
#endif

/* Reads a file whole, growing where it must: no 32-bit file sizes, and pipes work too. *held: the bytes allocated. */
PDI_FN prediff_status pdi_load_file(const char *path, int map, const prediff_allocator *a, void **data, size_t *size, size_t *held, int *mapped, prediff_error *err) {
    FILE *f;
    uint8_t *buffer = NULL, *larger;
    size_t capacity = 0, used = 0, got, wanted;
    *mapped = 0;
#if PDI_MMAP
    if (map && pdi_map_file(path, data, size)) { *mapped = 1; *held = *size; return PREDIFF_OK; }
#else
    (void)map;
#endif
    f = fopen(path, "rb");
    if (!f) return PDI_FAIL(err, IO, FILE_OPEN, "cannot open %s", path);
    for (;;) {
        if (used == capacity) {
            wanted = capacity ? capacity + capacity / 2 : pdi_size_hint(path);
            larger = wanted > capacity ? (uint8_t *)pdi_alloc(a, wanted) : NULL;
            if (larger && used) memcpy(larger, buffer, used);
            pdi_free(a, buffer, capacity);
            if (!larger) { fclose(f); return PDI_FAIL(err, NOMEM, ALLOC, "no memory for %s (%u bytes so far)", path, (uint64_t)used); }
            buffer = larger;
            capacity = wanted;
        }
        got = fread(buffer + used, 1, pdi_min(capacity - used, (size_t)1 << 30), f);
        used += got;
        if (got == 0) break;
    }
    if (ferror(f)) {
        fclose(f);
        pdi_free(a, buffer, capacity);
        return PDI_FAIL(err, IO, FILE_READ, "reading %s failed after %u bytes", path, (uint64_t)used);
    }
    fclose(f);
    *data = buffer;
    *size = used;
    *held = capacity;
    return PREDIFF_OK;
}

PDI_FN void pdi_unload_file(const prediff_allocator *a, void *data, size_t held, int mapped) {
#if PDI_MMAP
    if (data && mapped) { munmap(data, held); return; }
#else
    (void)mapped;
#endif
    pdi_free(a, data, held);
}
#undef PDI_MMAP
#endif /* PREDIFF_NO_STDIO */

/* ---- text in, text out: the shortest way ---- */

/* Writes tokens as terminated text, whole characters only. */
PDI_FN prediff_status pdi_put_text(const prediff_model *m, const int32_t *ids, size_t n, prediff_decoder *state, int last,
                                   char *text, size_t capacity, size_t *used, prediff_error *err) {
    size_t i, got;
    prediff_status s;
    for (i = 0; i < n; i++) {
        if (ids[i] == PREDIFF_MASK || prediff_token_ends(m, ids[i])) continue;      /* of a stopped run; no text */
        s = prediff_decode_next(m, state, ids[i], 0, text + *used, capacity - *used, &got, err);
        if (s) {
            text[*used] = 0;
            return PDI_FAIL(err, LIMIT, BUFFER_SIZE, "the text does not fit in %u bytes; it was cut after %u", (uint64_t)capacity, (uint64_t)*used);
        }
        *used += got;
    }
    if (!last) return PREDIFF_OK;
    s = prediff_decode_end(state, text + *used, capacity - *used, &got, err);
    if (s) text[*used] = 0;
    else *used += got;
    return s;
}

/* Runs ids: the first n_prompt are the prompt, the rest the target; the tokens end up in c->scratch_target. */
PDI_FN prediff_status pdi_fill_text(prediff_context *c, const int32_t *ids, size_t n_prompt, size_t n, const prediff_generate_desc *d, prediff_error *err) {
    prediff_generate_desc g;
    PDI_TRY(prediff_rewind(c, 0, err));
    if (n < n_prompt || n > c->n_ctx || n - n_prompt > c->n_target)
        return PDI_FAIL(err, ARG, T_RANGE, "%u tokens do not fit in n_ctx %u, n_target %u", (uint64_t)n, (uint64_t)c->n_ctx, (uint64_t)c->n_target);
    PDI_TRY(prediff_prompt(c, ids, n_prompt, NULL, err));
    memset(&g, 0, sizeof g);
    if (d) g = *d;
    g.samples = 1;
    if (!c->m->mask && c->m->mask_token < 0 && c->attention != PREDIFF_ATTENTION_BIDIRECTIONAL) g.sampler = PREDIFF_CAUSAL_DECODING;
    memcpy(c->scratch_target, ids + n_prompt, (n - n_prompt) * sizeof *ids);
    return prediff_generate(c, c->scratch_target, n - n_prompt, &g, NULL, err);
}

PDI_FN prediff_status pdi_text_in_out(prediff_context *c, const char *in, size_t n_tokens, int marked, const prediff_generate_desc *d,
                                      char *text, size_t capacity, prediff_error *err) {
    const prediff_allocator *al;
    size_t n = 0, n_prompt = 0, used = 0, i, bytes;
    prediff_decoder state;
    prediff_error asked;
    int32_t *ids;
    void *block;
    prediff_status s;
    if (text && capacity) text[0] = 0;
    PDI_TRY(pdi_enter(c, 0, err));
    if (d && d->samples > 1) return PDI_FAIL(err, ARG, SAMPLES, "%u samples asked for; this call writes one text: use prediff_generate", (uint64_t)d->samples);
    if (!in || !text || !capacity) return PDI_FAIL(err, ARG, NULL_ARGUMENT, "the prompt or the text buffer is NULL or empty");
    al = &c->m->allocator;
    s = marked ? prediff_template(c->m, in, strlen(in), PREDIFF_ENCODE_BOS, NULL, 0, &n, &n_prompt, &asked)
               : prediff_encode(c->m, in, strlen(in), PREDIFF_ENCODE_BOS, NULL, 0, &n, &asked);
    if (s && !(s == PREDIFF_ERR_LIMIT && n)) {                  /* the size query says BUFFER_SIZE, which is no error */
        if (err) *err = asked;
        return s;
    }
    if (n > c->n_ctx || n_tokens > c->n_ctx - n) return PDI_FAIL(err, ARG, T_RANGE, "%u tokens of text and gaps + %u do not fit in n_ctx %u", (uint64_t)n, (uint64_t)n_tokens, (uint64_t)c->n_ctx);
    bytes = (n + n_tokens + 1) * sizeof *ids + PDI_ALIGN;
    block = pdi_alloc(al, bytes);
    if (!block) return PDI_FAIL(err, NOMEM, ALLOC, "no memory for %u token ids", (uint64_t)(n + n_tokens));
    ids = (int32_t *)(void *)pdi_align_pointer(block);
    s = marked ? prediff_template(c->m, in, strlen(in), PREDIFF_ENCODE_BOS, ids, n, &n, &n_prompt, err)
               : prediff_encode(c->m, in, strlen(in), PREDIFF_ENCODE_BOS, ids, n, &n, err);
    if (!marked) n_prompt = n;
    if (!s && marked && n_prompt == n) s = PDI_FAIL(err, ARG, TEMPLATE, "no [MASK:n] mark in the text");
    for (i = 0; i < n_tokens; i++) ids[n++] = PREDIFF_MASK;
    if (!s) s = pdi_fill_text(c, ids, n_prompt, n, d, err);
    if (!s || s == PREDIFF_ERR_CANCELLED) {                     /* a stopped run has text too */
        prediff_status put = PREDIFF_OK;
        memset(&state, 0, sizeof state);
        if (marked) put = pdi_put_text(c->m, ids, n_prompt, &state, 0, text, capacity, &used, err);
        else state.begun = n_prompt > 0;                        /* a continuation keeps its leading space */
        if (!put) put = pdi_put_text(c->m, c->scratch_target, n - n_prompt, &state, 1, text, capacity, &used, err);
        if (put) s = put;
    }
    pdi_free(al, block, bytes);
    return s;
}

PDI_DEF prediff_status prediff_write(prediff_context *c, const char *prompt, size_t n_tokens, const prediff_generate_desc *d, char *text, size_t capacity, prediff_error *err) {
    return pdi_text_in_out(c, prompt, n_tokens, 0, d, text, capacity, err);
}

PDI_DEF prediff_status prediff_infill(prediff_context *c, const char *marked, const prediff_generate_desc *d, char *text, size_t capacity, prediff_error *err) {
    return pdi_text_in_out(c, marked, 0, 1, d, text, capacity, err);
}

/* ---- >>END: clean-up, licence, changes ----------------------------------------------------------------------------- */

#ifdef __cplusplus
}
#endif

#undef PDI_DEF
#undef PDI_FN
#undef PDI_INLINE
#undef PDI_UNROLL
#undef PDI_PREFETCH
#undef PDI_X86
#undef PDI_NEON
#undef PDI_OPENMP
#undef PDI_LITTLE
#undef PDI_FAIL
#undef PDI_FAIL_AT
#undef PDI_TRY
#undef PDI_ALIGN
#undef PDI_ASAN
#undef PDI_GAP
#undef PDI_POISON
#undef PDI_UNPOISON
#undef PDI_HERE
#undef PDI_T_AVX2
#undef PDI_T_AVX512
#undef PDI_PARTIAL_OPS
#undef PDI_SMALL_WORK
#undef PDI_NATIVE

#endif /* the first pass */
#endif /* PREDIFF_IMPLEMENTATION */

/*
 * CHANGES
 *   0.1.0  GGUF, tokenizers, GPT-2 and Llama families, hybrid attention with an exact prompt cache, samplers, scoring.
 *
 * LICENCE (MIT)
 *
 * Copyright (c) 2026 prediff.h contributors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
 * persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
