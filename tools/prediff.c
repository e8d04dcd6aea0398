/* SPDX-License-Identifier: MIT
 *
 * prediff: the command line of prediff.h. Generates, fills gaps, scores text, describes model files.
 *
 *     cc -O2 -fopenmp -I. tools/prediff.c -lm -o prediff
 *
 * Text alone goes to standard output; remarks, progress and errors go to standard error. Exit status: 0 success, 1 failure
 * (a bad file, bad input, stopped), 2 wrong usage.
 *
 * Contents: options, their parser, help; files and numbers; text and JSON; the visual; generate and infill; eval; info; main.
 */
#if !defined(_GNU_SOURCE) && !defined(_WIN32)
#define _GNU_SOURCE                    /* sched_getaffinity; includes POSIX */
#endif
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#define HAVE_POSIX 1
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define HAVE_POSIX 0
#endif
#ifdef __linux__
#include <sched.h>
#endif

/* ---- options: one table says everything about a flag --------------------------------------------------------------- */

enum { GENERATE = 1, INFILL = 2, EVAL = 4, INFO = 8, TRAIN = 16, LEARN = 32, WRITE = GENERATE | INFILL, RUN = WRITE | EVAL, ALL = RUN | INFO };

typedef enum option_kind { FLAG, COUNT, NUMBER, TEXT, CHOICE, SEED, LIST } option_kind;

/* id, names (the first is used in messages), kind, commands, lowest, highest, value's name or the choices (numbered as the
   library's enumeration), default (NULL: none), explanation */
#define OPTIONS(X) \
    X(MODEL, "-m --model --init", TEXT, ALL | TRAIN, 0, 0, "FILE", NULL, "the model, a GGUF file (or the environment variable PREDIFF_MODEL)") \
    X(PROMPT, "-p --prompt", TEXT, WRITE, 0, 0, "TEXT", NULL, "the text to continue, or with [MASK:n] marks for infill") \
    X(FILE, "-f --file", TEXT, RUN, 0, 0, "FILE", NULL, "read the text from a file, - is standard input") \
    X(N, "-n --n-predict --predict", COUNT, GENERATE | LEARN, 1, 4194304, "N", "64", "tokens to write (without -n: fewer if the model's context is full). tokenizer: its tokens, without -n 2,048") \
    X(SEED, "-s --seed", SEED, RUN | TRAIN, 0, 0, "N", "0", "seed of all random choices; -1 takes one from the clock") \
    X(THREADS, "-t --threads", COUNT, RUN | TRAIN, 1, 256, "N", NULL, "threads (default: the cores this process may use; 1 under 2 million parameters)") \
    X(CTX, "-c --ctx-size", COUNT, ALL | TRAIN, 1, 4194304, "N", NULL, "positions of the context (default: as many as the run needs; train: the model's, at most 512)") \
    X(TEMP, "--temp --temperature", NUMBER, WRITE, 0, 1000, "X", "0", "temperature; 0 is greedy, 1 is as the model says") \
    X(TEMP_END, "--temp-end", NUMBER, WRITE, 0, 1000, "X", "0", "temperature at the last step, reached linearly; 0: it stays --temp") \
    X(TOP_K, "--top-k", COUNT, WRITE, 0, 4194304, "N", "0", "draw from the N likeliest tokens; 0 is off") \
    X(TOP_P, "--top-p", NUMBER, WRITE, 0, 1, "X", "0", "draw from the likeliest tokens of total probability X; 0 is off") \
    X(IGNORE_EOS, "--ignore-eos", FLAG, WRITE, 0, 0, "", NULL, "an end-of-text token does not end the text") \
    X(STEPS, "--steps --diffusion-steps", COUNT, RUN | TRAIN, 0, 100000000, "N", "0", "most network passes a block; 0 is min(masks, 16), for first-hitting one a mask. train: updates, 0 is 1,000") \
    X(ORDER, "--order", CHOICE, RUN, 0, 0, "confidence|margin|entropy|random", "confidence", "which masks are revealed first") \
    X(SCHEDULE, "--schedule", CHOICE, RUN, 0, 0, "cosine|remaining|linear|sqrt|even|times", "cosine", "how many masks a step reveals") \
    X(PRESET, "--preset", CHOICE, WRITE, 0, 0, "none|dream|llada", "none", "settings the authors of a model use, where no flag says otherwise") \
    X(SAMPLER, "--sampler", CHOICE, WRITE, 0, 0, "cau|ancestral|first-hitting|causal", NULL, "how masks become text (default: cau; causal for a model that has no mask)") \
    X(BLOCK, "--block --diffusion-block-length", COUNT, WRITE | TRAIN, 0, 4194304, "N", "0", "write N tokens at a time, each block sees the ones before; 0 is one block. train: longest of --blocks, 0 is 16") \
    X(WINDOW, "--window", COUNT, RUN, 0, 4194304, "N", "0", "reveal the leftmost N positions first, all stay visible; 0 is off. eval: tokens a window, 0 is min(context, 256)") \
    X(THRESHOLD, "--threshold", NUMBER, WRITE, 0, 1, "X", "0", "reveal all masks of at least this confidence instead of a schedule; 0 is off") \
    X(ENTROPY_BOUND, "--entropy-bound", NUMBER, WRITE, 0, 1e6, "X", "0", "reveal the most masks whose joint entropy excess is under X nats instead of a schedule; 0 is off") \
    X(STOP_SURE, "--stop-sure", FLAG, WRITE, 0, 0, "", NULL, "reveal the rest once no choice changes and the model is sure (greedy only)") \
    X(NOISE, "--noise", CHOICE, WRITE, 0, 0, "default|fixed|redraw", "default", "lifetime of infinite-mask noise; default is what the model says") \
    X(EOS_PENALTY, "--eos-penalty", NUMBER, WRITE, 0, 1, "X", "0", "multiply the confidence of an end of text by 1 - X") \
    X(NO_REPEAT, "--no-repeat", COUNT, WRITE, 0, 1000000, "N", "0", "no sequence of N tokens twice; 0 is off") \
    X(SAMPLES, "--samples", COUNT, WRITE, 1, 4096, "N", "1", "texts to write; text j is that of seed + j alone") \
    X(ECHO, "--echo", FLAG, WRITE, 0, 0, "", NULL, "print the prompt before the text (infill always prints all of it)") \
    X(NO_SPECIAL, "--no-special", FLAG, RUN, 0, 0, "", NULL, "names of special tokens in the text are plain text (around gaps they always are)") \
    X(NO_RATE, "--no-rate", FLAG, RUN, 0, 0, "", NULL, "leave out the model's mask-rate embedding") \
    X(NO_SELFCOND, "--no-selfcond", FLAG, RUN, 0, 0, "", NULL, "leave out self-conditioning") \
    X(NO_NOISE, "--no-noise", FLAG, RUN, 0, 0, "", NULL, "leave out infinite-mask noise") \
    X(SELFCOND_MASKED, "--selfcond-masked-only", FLAG, WRITE, 0, 0, "", NULL, "self-conditioning of masked positions only: cheaper, not as trained") \
    X(VISUAL, "--visual --diffusion-visual", FLAG, WRITE, 0, 0, "", NULL, "show the text emerging, on standard error") \
    X(DELAY, "--delay", COUNT, WRITE, 0, 60000, "MS", "0", "wait after each step, to watch a small model") \
    X(COLOR, "--color", CHOICE, WRITE, 0, 0, "auto|on|off", "auto", "colours and redrawing of --visual; auto: on a terminal, unless NO_COLOR is set") \
    X(TASK, "--task", CHOICE, EVAL, 0, 0, "ppl|nelbo", "ppl", "ppl: perplexity of the causal model; nelbo: bound of the diffusion model") \
    X(STRIDE, "--stride", COUNT, EVAL, 0, 4194304, "N", "0", "ppl: tokens from one window to the next; 0 is the window") \
    X(BOS, "--bos", FLAG, EVAL, 0, 0, "", NULL, "ppl: put the begin-of-text token before each window") \
    X(PROMPT_TOKENS, "--prompt-tokens", COUNT, EVAL, 0, 4194304, "N", "0", "nelbo: tokens of a window given as its prompt; 0 is half") \
    X(ESTIMATOR, "--estimator", CHOICE, EVAL, 0, 0, "exact-l|rate|n-step|order", "exact-l", "nelbo: which bound (--steps, --order, --schedule are for the last two)") \
    X(DRAWS, "--draws", COUNT, EVAL, 0, 1000000, "N", "0", "nelbo: random maskings a window; 0 is 64") \
    X(STORIES, "--stories", FLAG, EVAL, 0, 0, "", NULL, "the text is stories between <|endoftext|> marks: strip each, one end of text after each (nelbo: always)") \
    X(PLAIN, "--no-stories", FLAG, EVAL, 0, 0, "", NULL, "nelbo: take the text as it is") \
    X(LIMIT, "--limit", COUNT, EVAL, 0, 1000000000, "N", "0", "score only the first N windows; 0 is all") \
    X(MASK_TOKEN, "--mask-token", COUNT, RUN, 0, 2147483647, "N", NULL, "the token that stands for the mask, where the file does not say") \
    X(TENSORS, "--tensors", FLAG, INFO, 0, 0, "", NULL, "list every tensor") \
    X(ATTENTION, "--attention", CHOICE, RUN | TRAIN, 0, 0, "default|hybrid|bidirectional|causal", "default", "which positions see which; default is what the model says") \
    X(ISA, "--isa", CHOICE, RUN | TRAIN, 0, 0, "auto|scalar|avx2|avx512|neon", "auto", "instruction set") \
    X(FAST, "--fast", FLAG, RUN, 0, 0, "", NULL, "permit low-precision activations (none in this version)") \
    X(MAP, "--map", FLAG, ALL, 0, 0, "", NULL, "map the model file instead of reading it") \
    X(JSON, "--json", FLAG, ALL | TRAIN | LEARN, 0, 0, "", NULL, "one JSON object a line on standard output") \
    X(VERBOSE, "-v --verbose", FLAG, RUN, 0, 0, "", NULL, "a summary on standard error also when that is no terminal") \
    X(DATA, "-d --data", TEXT, TRAIN | LEARN, 0, 0, "FILE", NULL, "text to learn from, texts between <|endoftext|> marks; - is standard input") \
    X(OUT, "-o --out", TEXT, TRAIN | LEARN, 0, 0, "FILE", NULL, "where the best model goes; its state to resume from goes to FILE.checkpoint. tokenizer: the GGUF to write") \
    X(NEW, "--new", TEXT, TRAIN, 0, 0, "SIZES", NULL, "begin with random weights: d=128,layers=6,heads=4,kv=2,ff=384,ctx=256,arch=llama") \
    X(TOKENIZER, "--tokenizer", TEXT, TRAIN, 0, 0, "FILE", NULL, "of --new: a GGUF whose tokenizer is taken") \
    X(OBJECTIVE, "--objective", CHOICE, TRAIN, 0, 0, "prediff|causal|mdlm|exact-l|diffugpt|cart|sedd", "prediff", "what is learnt") \
    X(RATES, "--rates", CHOICE, TRAIN, 0, 0, "uniform|cosine|logit-normal|square", "uniform", "law of the mask rates") \
    X(ADD, "--add", TEXT, TRAIN, 0, 0, "LIST", NULL, "additions the model lacks: mask,rate,selfcond,noise=N or none (default: the first three)") \
    X(SHIFT, "--shift", FLAG, TRAIN, 0, 0, "", NULL, "row i predicts token i + 1 (diffugpt always)") \
    X(ANNEAL, "--anneal", COUNT, TRAIN, 0, 100000000, "N", "0", "bidirectional attention that opens over N updates; 0 is off") \
    X(CAUSAL_WEIGHT, "--causal-weight", NUMBER, TRAIN, 0, 1000, "X", "0.5", "weight of the next-token loss at prompt rows; 0 is off") \
    X(P_SELFCOND, "--selfcond", NUMBER, TRAIN, 0, 1, "X", "0.5", "probability that a batch sees a first prediction") \
    X(COMPLEMENTARY, "--complementary", FLAG, TRAIN, 0, 0, "", NULL, "each text twice, every token masked in exactly one of the two") \
    X(BLOCKS, "--blocks", COUNT, TRAIN, 0, 63, "K", "0", "clean causal rows and K target blocks in one pass") \
    X(BATCH, "--batch", COUNT, TRAIN, 1, 65536, "N", "16", "texts of a pass") \
    X(ACCUMULATE, "--accumulate", COUNT, TRAIN, 1, 65536, "N", "1", "passes of an update") \
    X(LR, "--lr", NUMBER, TRAIN, 0, 10, "X", "0.001", "learning rate") \
    X(LR_END, "--lr-end", NUMBER, TRAIN, 0, 1, "X", "0.05", "its share at the last update") \
    X(LR_DECAY, "--lr-decay", CHOICE, TRAIN, 0, 0, "cosine|linear|constant", "cosine", "how it falls") \
    X(WARMUP, "--warmup", COUNT, TRAIN, 0, 100000000, "N", "50", "updates over which it rises first") \
    X(WEIGHT_DECAY, "--weight-decay", NUMBER, TRAIN, 0, 10, "X", "0.1", "of matrices, as AdamW does it") \
    X(BETA2, "--beta2", NUMBER, TRAIN, 0, 0.999999, "X", "0.98", "memory of the second moment") \
    X(CLIP, "--clip", NUMBER, TRAIN, 0, 1000000, "X", "1", "largest norm of the gradient; 0 is off") \
    X(EMA, "--ema", NUMBER, TRAIN, 0, 0.999999, "X", "0", "keep a running mean of the weights with this decay, and save that; 0 is off") \
    X(RECOMPUTE, "--recompute", FLAG, TRAIN, 0, 0, "", NULL, "less memory, a third more time") \
    X(VALID, "--valid", TEXT, TRAIN, 0, 0, "FILE", NULL, "text of validation (default: the last 3 of 100 tokens)") \
    X(EVAL_EVERY, "--eval-every", COUNT, TRAIN, 0, 100000000, "N", "200", "updates between validations; 0 is only at the end") \
    X(EVAL_TEXTS, "--eval-texts", COUNT, TRAIN, 1, 1000000, "N", "64", "windows a validation looks at") \
    X(PATIENCE, "--patience", COUNT, TRAIN, 0, 1000000, "N", "0", "stop after N validations without a better one; 0 is off") \
    X(MINUTES, "--minutes", NUMBER, TRAIN, 0, 1000000, "X", "0", "stop after so long; 0 is off") \
    X(SAVE_EVERY, "--save-every", COUNT, TRAIN, 0, 100000000, "N", "500", "updates between checkpoints; 0 is only at the end") \
    X(RESUME, "--resume", FLAG, TRAIN, 0, 0, "", NULL, "go on from FILE.checkpoint if it is there") \
    X(LOG, "--log", TEXT, TRAIN, 0, 0, "FILE", NULL, "write every update and validation as a JSON line") \
    X(TYPE, "--type", CHOICE, TRAIN, 0, 0, "f32|f16|bf16|q8_0|q4_0", "f32", "type of the saved model's matrices") \
    X(SPLITTER, "--splitter", CHOICE, LEARN, 0, 0, "gpt-2|llama-bpe|smollm|qwen2", "gpt-2", "how text is cut into words, which no token crosses") \
    X(SPECIAL, "--special", LIST, LEARN, 0, 0, "TEXT", NULL, "a special token, may be given again; the first ends a text (default: <|endoftext|>)") \
    X(MIN_COUNT, "--min-count", COUNT, LEARN, 1, 1000000000, "N", "2", "a pair must occur so often to become a token") \
    X(FORCE, "--force", FLAG, LEARN | TRAIN, 0, 0, "", NULL, "replace the output if it is there") \
    X(ALGORITHM, "--diffusion-algorithm", CHOICE, WRITE, 0, 0, "0|1|2|3|4", NULL, "llama.cpp's number of an --order: 0 random, 1 entropy, 2 margin, 3 random, 4 confidence")

typedef enum option_id {
#define X(id, names, kind, commands, low, high, value, standard, help) O_##id,
    OPTIONS(X)
#undef X
    N_OPTIONS
} option_id;

typedef struct option {
    const char *names;
    option_kind kind;
    unsigned commands;
    double low, high;
    const char *value, *standard, *help;
} option;

static const option options[N_OPTIONS] = {
#define X(id, names, kind, commands, low, high, value, standard, help) { names, kind, commands, low, high, value, standard, help },
    OPTIONS(X)
#undef X
};

enum { MOST_LIST = 256 };

/* Values by option: whole numbers, flags and choices in u, others in d and s. */
typedef struct settings {
    const char *command;
    uint64_t u[N_OPTIONS];
    double d[N_OPTIONS];
    const char *s[N_OPTIONS];
    unsigned char given[N_OPTIONS];
    int32_t mask_token;
    const char *list[MOST_LIST];       /* values of the option that may be given again */
    size_t n_list;
} settings;

typedef struct command {
    const char *name;
    unsigned bit;
    const char *usage, *summary;
    int (*run)(settings *o);
} command;

static int run_generate(settings *o);
static int run_infill(settings *o);
static int run_eval(settings *o);
static int run_info(settings *o);
static int run_train(settings *o);
static int run_tokenizer(settings *o);

static const command commands[] = {
    { "generate", GENERATE, "-m FILE -p TEXT [-n N] [--steps N] [options]", "continue a prompt", run_generate },
    { "infill", INFILL, "-m FILE -p \"Tom saw [MASK:12] and ran.\" [options]", "fill gaps; [MASK:n] stands for n tokens, \\[MASK: is literal", run_infill },
    { "eval", EVAL, "-m FILE -f TEXTFILE --task (ppl|nelbo) [options]", "score a text", run_eval },
    { "info", INFO, "FILE [--tensors] [options]", "check and describe a model file", run_info },
    { "train", TRAIN, "(-m INIT.gguf | --new SIZES --tokenizer TOK.gguf) -d TEXT -o OUT.gguf [options]", "teach a model diffusion, or train a new one", run_train },
    { "tokenizer", LEARN, "-d TEXT -n 2048 -o TOK.gguf [options]", "train a byte-level BPE tokenizer", run_tokenizer },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* The i-th of the pieces that `separator` divides list into; 0 when there is none. */
static size_t piece(const char *list, char separator, size_t i, const char **start) {
    for (; i > 0; i--) {
        list = strchr(list, separator);
        if (!list) return 0;
        list++;
    }
    *start = list;
    return strcspn(list, separator == ' ' ? " " : "|");
}

/* Position of text[n] among the pieces of a list, -1 if absent. */
static int find_piece(const char *list, char separator, const char *text, size_t n) {
    const char *p;
    size_t i, len;
    for (i = 0; (len = piece(list, separator, i, &p)) > 0; i++)
        if (len == n && memcmp(p, text, n) == 0) return (int)i;
    return -1;
}

static int find_option(const char *name, size_t n) {
    int i;
    for (i = 0; i < N_OPTIONS; i++)
        if (find_piece(options[i].names, ' ', name, n) >= 0) return i;
    return -1;
}

/* ---- parsing: exit status 2 and a message that names the flag ------------------------------------------------------ */

static int usage_error(const char *name) {
    fprintf(stderr, "        prediff%s%s --help lists the flags\n", *name ? " " : "", name);
    return 2;
}

/* Edits (insert, delete, replace) between two short words; 99 for long ones. */
static int distance(const char *a, size_t na, const char *b, size_t nb) {
    int row[40], i, j;
    if (na >= 40 || nb >= 40) return 99;
    for (j = 0; j <= (int)nb; j++) row[j] = j;
    for (i = 1; i <= (int)na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (j = 1; j <= (int)nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

static int unknown_flag(const command *c, const char *flag, size_t n) {
    const char *name, *best = NULL;
    size_t len, best_len = 0, i;
    int k, near = n > 5 ? 3 : 2;       /* fewer edits than this make a suggestion */
    for (k = 0; k < N_OPTIONS; k++)
        for (i = 0; (options[k].commands & c->bit) && (len = piece(options[k].names, ' ', i, &name)) > 0; i++) {
            int d = distance(flag, n, name, len);
            if (d < near && len > 2) { near = d; best = name; best_len = len; }
        }
    fprintf(stderr, "prediff: %s: unknown flag '%.*s'", c->name, (int)n, flag);
    if (best) fprintf(stderr, "; did you mean '%.*s'?", (int)best_len, best);
    fprintf(stderr, "\n");
    return usage_error(c->name);
}

static int foreign_flag(const command *c, const option *o, const char *flag, size_t n) {
    size_t k;
    fprintf(stderr, "prediff: %s: '%.*s' is a flag of", c->name, (int)n, flag);
    for (k = 0; k < N_COMMANDS; k++)
        if (o->commands & commands[k].bit) fprintf(stderr, " %s", commands[k].name);
    fprintf(stderr, "\n");
    return usage_error(c->name);
}

/* A whole number in [low, high]. */
static int read_count(const char *text, uint64_t low, uint64_t high, uint64_t *out) {
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10) return 0;
        v = v * 10 + digit;
    }
    if (p == text || *p || v < low || v > high) return 0;
    *out = v;
    return 1;
}

static int read_number(const char *text, double low, double high, double *out) {
    char *end;
    double v;
    if (!*text || strspn(text, "0123456789.eE+-") != strlen(text)) return 0;      /* no spaces, hexadecimal, inf, nan */
    v = strtod(text, &end);
    if (*end || !(v >= low && v <= high)) return 0;
    *out = v;
    return 1;
}

static int read_value(settings *o, int id, const char *text) {
    const option *d = &options[id];
    int i;
    switch (d->kind) {
    case COUNT: return read_count(text, (uint64_t)d->low, (uint64_t)d->high, &o->u[id]);
    case NUMBER: return read_number(text, d->low, d->high, &o->d[id]);
    case TEXT: o->s[id] = text; return 1;
    case LIST:
        if (o->n_list == MOST_LIST) return 0;
        o->list[o->n_list++] = text;
        return 1;
    case CHOICE:
        i = find_piece(d->value, '|', text, strlen(text));
        if (i >= 0) o->u[id] = (uint64_t)i;
        return i >= 0;
    case SEED:
        if (strcmp(text, "-1") == 0) { o->u[id] = (uint64_t)time(NULL); return 1; }
        return read_count(text, 0, UINT64_MAX, &o->u[id]);
    case FLAG: break;
    }
    return 0;
}

static int bad_value(const command *c, const option *d, const char *flag, size_t n, const char *text) {
    fprintf(stderr, "prediff: %s: %.*s: '%s' is not ", c->name, (int)n, flag, text);
    if (d->kind == CHOICE) fprintf(stderr, "one of %s\n", d->value);
    else if (d->kind == NUMBER) fprintf(stderr, "a number from %g to %g\n", d->low, d->high);
    else if (d->kind == LIST) fprintf(stderr, "wanted: %d were given before it\n", (int)MOST_LIST);
    else if (d->kind == SEED) fprintf(stderr, "a whole number from 0 to 18446744073709551615, or -1\n");
    else fprintf(stderr, "a whole number from %.0f to %.0f\n", d->low, d->high);
    return usage_error(c->name);
}

/* Reads argv[1..]; 0, or the exit status of a usage error. */
static int parse(const command *c, int argc, char **argv, settings *o) {
    int i, id;
    for (id = 0; id < N_OPTIONS; id++)
        if (options[id].standard) read_value(o, id, options[id].standard);
    for (i = 1; i < argc; i++) {
        const char *flag = argv[i], *value = NULL;
        size_t n = strcspn(flag, "=");
        if (flag[0] != '-' && c->bit == INFO && !o->s[O_MODEL]) { o->s[O_MODEL] = flag; continue; }
        if (flag[0] != '-' || !flag[1]) {
            fprintf(stderr, "prediff: %s: unexpected argument '%s' (a text with spaces needs quotes)\n", c->name, flag);
            return usage_error(c->name);
        }
        id = find_option(flag, n);
        if (id < 0) return unknown_flag(c, flag, n);
        if (!(options[id].commands & c->bit)) return foreign_flag(c, &options[id], flag, n);
        if (flag[n] == '=') value = flag + n + 1;
        if (options[id].kind == FLAG) {
            if (value) {
                fprintf(stderr, "prediff: %s: %.*s takes no value\n", c->name, (int)n, flag);
                return usage_error(c->name);
            }
            o->u[id] = 1;
        } else {
            if (!value && i + 1 < argc) value = argv[++i];
            if (!value) {
                fprintf(stderr, "prediff: %s: %.*s needs a value: %s\n", c->name, (int)n, flag, options[id].value);
                return usage_error(c->name);
            }
            if (!read_value(o, id, value)) return bad_value(c, &options[id], flag, n, value);
        }
        o->given[id] = 1;
    }
    return 0;
}

static int conflict(const settings *o, const char *message) {
    fprintf(stderr, "prediff: %s: %s\n", o->command, message);
    return usage_error(o->command);
}

/* What the authors of Dream (Ye et al. 2025) and LLaDA (Nie et al. 2025) show in their examples. */
static void apply_preset(settings *o) {
    static const struct { int preset, option; const char *value; } presets[] = {
        { 1, O_STEPS, "512" }, { 1, O_SCHEDULE, "times" }, { 1, O_ORDER, "entropy" }, { 1, O_TEMP, "0.2" }, { 1, O_TOP_P, "0.95" },
        { 2, O_STEPS, "128" }, { 2, O_SCHEDULE, "even" }, { 2, O_ORDER, "confidence" }, { 2, O_TEMP, "0" }, { 2, O_WINDOW, "128" } };
    size_t i;
    for (i = 0; i < sizeof presets / sizeof *presets; i++)
        if ((uint64_t)presets[i].preset == o->u[O_PRESET] && !o->given[presets[i].option] &&
            !(presets[i].option == O_WINDOW && (o->u[O_BLOCK] || o->u[O_SAMPLER] != PREDIFF_CAU))) read_value(o, presets[i].option, presets[i].value);
}

/* Settings that exclude each other whatever the model. */
static int check_settings(settings *o) {
    static const unsigned char order_of_algorithm[5] = { PREDIFF_RANDOM, PREDIFF_ENTROPY, PREDIFF_MARGIN, PREDIFF_RANDOM, PREDIFF_CONFIDENCE };
    apply_preset(o);
    if ((o->u[O_TOP_K] || o->d[O_TOP_P] > 0) && !(o->d[O_TEMP] > 0)) fprintf(stderr, "prediff: %s: --top-k and --top-p do nothing without --temp\n", o->command);
    if (o->given[O_PROMPT] && o->given[O_FILE]) return conflict(o, "-p and -f exclude each other");
    if (o->d[O_THRESHOLD] > 0 && o->d[O_ENTROPY_BOUND] > 0) return conflict(o, "--threshold and --entropy-bound exclude each other");
    if (o->u[O_STOP_SURE] && (o->d[O_TEMP] > 0 || o->d[O_TEMP_END] > 0)) return conflict(o, "--stop-sure is for greedy runs: not with --temp above 0");
    if (strcmp(o->command, "eval") != 0 && o->u[O_BLOCK] && o->u[O_WINDOW]) return conflict(o, "--block and --window exclude each other");
    if (o->u[O_STORIES] && o->u[O_PLAIN]) return conflict(o, "--stories and --no-stories exclude each other");
    if (o->given[O_ORDER] && o->given[O_ALGORITHM]) return conflict(o, "--order and --diffusion-algorithm exclude each other");
    if (o->given[O_ALGORITHM]) o->u[O_ORDER] = order_of_algorithm[o->u[O_ALGORITHM]];
    return 0;
}

/* ---- help ---------------------------------------------------------------------------------------------------------- */

static void help_option(const option *d, int with_commands) {
    char left[160];
    size_t k;
    const char *sep = " (";
    snprintf(left, sizeof left, "%s%s%s", d->names, *d->value ? " " : "", d->value);
    printf("  %-34s%s%s", left, strlen(left) > 34 ? "\n                                     " : " ", d->help);
    if (d->standard) printf(" [%s]", d->standard);
    else if (d->kind == FLAG) printf(" [off]");
    if (with_commands && d->commands != ALL) {
        for (k = 0; k < N_COMMANDS; k++)
            if (d->commands & commands[k].bit) { printf("%s%s", sep, commands[k].name); sep = ", "; }
        printf(")");
    }
    printf("\n");
}

static int help(const command *c) {
    size_t k;
    int i;
    if (c) printf("prediff %s: %s\n\n  prediff %s %s\n", c->name, c->summary, c->name, c->usage);
    else {
        printf("prediff %d.%d.%d: masked-diffusion text generation\n\n", PREDIFF_VERSION / 10000, PREDIFF_VERSION / 100 % 100, PREDIFF_VERSION % 100);
        for (k = 0; k < N_COMMANDS; k++)
            printf("  prediff %s %s\n      %s\n", commands[k].name, commands[k].usage, commands[k].summary);
        printf("  prediff COMMAND --help\n      the flags of one command\n  prediff --version\n");
    }
    printf("\nFlags; defaults in brackets; --flag=value works too:\n");
    for (i = 0; i < N_OPTIONS; i++)
        if (!c || (options[i].commands & c->bit)) help_option(&options[i], !c);
    printf("\nText goes to standard output, everything else to standard error. Exit status: 0 success, 1 failure, 2 wrong usage.\n");
    return 0;
}

/* ---- errors, memory, files, time ----------------------------------------------------------------------------------- */

static int fail_text(const char *where, const char *message) {
    fprintf(stderr, "prediff: %s: %s\n", where, message);
    return 1;
}

/* Contradicting settings are wrong usage; every other error of the library is a failure. The system's reason is added where it
   has one. */
static int fail(const char *where, const prediff_error *e) {
    int file = e->item == PREDIFF_ITEM_FILE_OPEN || e->item == PREDIFF_ITEM_FILE_READ;
    fprintf(stderr, "prediff: %s: %s: %s%s%s\n", where, prediff_item_name(e->item), e->message, file && errno ? ": " : "", file && errno ? strerror(errno) : "");
    return e->status == PREDIFF_ERR_ARG && (e->item == PREDIFF_ITEM_VALUE_RANGE || e->item == PREDIFF_ITEM_CONFLICT) ? 2 : 1;
}

static void *allocate(size_t count, size_t size) {
    void *p = count > SIZE_MAX / size ? NULL : malloc(count > 0 ? count * size : 1);
    if (!p) exit(fail_text("memory", "out of memory"));
    return p;
}

static int32_t *allocate_ids(size_t count) { return (int32_t *)allocate(count, sizeof(int32_t)); }

typedef struct buffer { char *p; size_t n, capacity; } buffer;

static void reserve(buffer *b, size_t more) {
    if (more > b->capacity - b->n) {
        size_t capacity = (b->n + more) * 2 + 64;
        char *p = (char *)allocate(capacity, 1);
        if (b->n) memcpy(p, b->p, b->n);
        free(b->p);
        b->p = p;
        b->capacity = capacity;
    }
}

static void append(buffer *b, const char *bytes, size_t n) {
    reserve(b, n);
    if (n) memcpy(b->p + b->n, bytes, n);
    b->n += n;
}

static void append_text(buffer *b, const char *text) { append(b, text, strlen(text)); }

static int read_file(const char *path, buffer *b) {
    int standard = strcmp(path, "-") == 0, bad;
    FILE *f = standard ? stdin : fopen(path, "rb");
    size_t got;
    if (!f) return fail_text(path, strerror(errno));
    do {
        reserve(b, 65536);
        got = fread(b->p + b->n, 1, 65536, f);
        b->n += got;
    } while (got > 0);
    bad = ferror(f);
    if (!standard) fclose(f);
    return bad ? fail_text(path, "cannot read it to its end") : 0;
}

static double seconds(void) {
#if HAVE_POSIX
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

static void wait_ms(uint64_t ms) {
#if HAVE_POSIX
    struct timespec t;
    t.tv_sec = (time_t)(ms / 1000);
    t.tv_nsec = (long)(ms % 1000) * 1000000;
    if (ms) nanosleep(&t, NULL);
#else
    clock_t end = clock() + (clock_t)(ms * CLOCKS_PER_SEC / 1000);
    while (ms && clock() < end) {}
#endif
}

static int is_terminal(FILE *f) {
#if HAVE_POSIX
    return isatty(fileno(f));
#else
    (void)f;
    return 0;
#endif
}

/* The cores this process may use: its affinity, and the quota of its control group, which schedulers of containers set. */
static int usable_cores(void) {
    int cores = 1;
#ifdef __linux__
    cpu_set_t set;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    double quota, period;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    if (f) {
        if (fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0 && ceil(quota / period) < cores) cores = (int)ceil(quota / period);
        fclose(f);
    }
#elif HAVE_POSIX && defined(_SC_NPROCESSORS_ONLN)
    cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return cores < 1 ? 1 : cores > 256 ? 256 : cores;
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);           /* a second Ctrl-C ends the program */
}

/* Everything written must have arrived: a full disk is not success. */
static int finish_output(int status) {
    if (fflush(stdout) != 0 || ferror(stdout)) return fail_text("standard output", "cannot write");
    return status;
}

/* ---- characters and JSON ------------------------------------------------------------------------------------------- */

/* The next character of p[0..n), n > 0: its bytes; *code is U+FFFD and the length 1 where the bytes are not UTF-8. */
static size_t next_character(const char *p, size_t n, uint32_t *code) {
    static const uint32_t lowest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *b = (const unsigned char *)p;
    size_t len = b[0] < 0x80 ? 1 : b[0] < 0xC2 ? 0 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : b[0] < 0xF5 ? 4 : 0, i;
    uint32_t c = b[0];
    if (len > 1) c &= 0x7Fu >> len;
    for (i = 1; i < len && i < n && (b[i] & 0xC0) == 0x80; i++) c = c << 6 | (b[i] & 0x3Fu);
    if (len == 0 || i < len || c < lowest[len] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) { *code = 0xFFFD; return 1; }
    *code = c;
    return len;
}

#define REPLACEMENT "\xEF\xBF\xBD"     /* U+FFFD */

static int is_control(uint32_t code) { return code < 32 || (code >= 127 && code < 160); }

/* Text for people: on a terminal no control characters of a model or a file get through. Pipes get the bytes as they are. */
static void print_text(const char *p, size_t n) {
    size_t i, len;
    uint32_t code;
    if (!is_terminal(stdout)) { fwrite(p, 1, n, stdout); return; }
    for (i = 0; i < n; i += len) {
        len = next_character(p + i, n - i, &code);
        if (code == 0xFFFD) fputs(REPLACEMENT, stdout);
        else if (is_control(code) && code != '\n' && code != '\t') putchar('?');
        else fwrite(p + i, 1, len, stdout);
    }
}

/* A string of a model file, on one line. */
static void print_safe(const char *p, size_t n, size_t most) {
    size_t i, len;
    uint32_t code;
    for (i = 0; i < n && i < most; i += len) {
        len = next_character(p + i, n - i, &code);
        if (code == '\n') fputs("\\n", stdout);
        else if (code == 0xFFFD || is_control(code)) putchar('?');
        else fwrite(p + i, 1, len, stdout);
    }
    if (i < n) printf("... (%zu bytes)", n);
}

static void json_string(const char *p, size_t n) {
    size_t i, len;
    uint32_t code;
    putchar('"');
    for (i = 0; i < n; i += len) {
        len = next_character(p + i, n - i, &code);
        if (code == '"' || code == '\\') printf("\\%c", (char)code);
        else if (code == '\n') fputs("\\n", stdout);
        else if (code == '\t') fputs("\\t", stdout);
        else if (is_control(code)) printf("\\u%04x", (unsigned)code);
        else if (code == 0xFFFD) fputs(REPLACEMENT, stdout);
        else fwrite(p + i, 1, len, stdout);
    }
    putchar('"');
}

static void json_key(const char *key) { printf(", \"%s\": ", key); }
static void json_text(const char *key, const char *text) { json_key(key); json_string(text, strlen(text)); }
static void json_count(const char *key, uint64_t v) { json_key(key); printf("%llu", (unsigned long long)v); }
static void json_bool(const char *key, int v) { json_key(key); fputs(v ? "true" : "false", stdout); }
static void json_value(double v) { if (isfinite(v)) printf("%.9g", v); else fputs("null", stdout); }
static void json_number(const char *key, double v) { json_key(key); json_value(v); }

static void json_ids(const int32_t *ids, size_t n) {
    size_t i;
    putchar('[');
    for (i = 0; i < n; i++) printf("%s%ld", i ? ", " : "", (long)ids[i]);
    putchar(']');
}

/* ---- model, context, ids to text ----------------------------------------------------------------------------------- */

typedef struct session {
    settings *o;
    const char *path;
    prediff_model *model;
    prediff_model_info info;
    prediff_context *context;
    double load, prompt, generate;     /* seconds */
} session;

static void remark(void *user, const char *text) { fprintf(stderr, "prediff: %s: note: %s\n", (const char *)user, text); }

static const char *model_path(const settings *o) {
    const char *path = o->s[O_MODEL] ? o->s[O_MODEL] : getenv("PREDIFF_MODEL");
    if (path && *path) return path;
    fprintf(stderr, "prediff: %s: no model: give one with -m FILE, or set the environment variable PREDIFF_MODEL\n", o->command);
    return NULL;
}

static void model_desc(prediff_model_desc *d, settings *o, const char *path) {
    memset(d, 0, sizeof *d);
    d->path = path;
    d->map = (int)o->u[O_MAP];
    if (o->given[O_MASK_TOKEN]) {
        o->mask_token = (int32_t)o->u[O_MASK_TOKEN];
        d->mask_token = &o->mask_token;
    }
    d->log = remark;
    d->log_user = (void *)(uintptr_t)path;
}

static int open_model(session *s, settings *o) {
    prediff_model_desc d;
    prediff_error e;
    double begin = seconds();
    memset(s, 0, sizeof *s);
    memset(&e, 0, sizeof e);
    s->o = o;
    s->path = model_path(o);
    if (!s->path) return 2;
    model_desc(&d, o, s->path);
    if (prediff_model_open(&s->model, &d, &e)) return fail(s->path, &e);
    prediff_model_get_info(s->model, &s->info);
    s->load = seconds() - begin;
    return 0;
}

static int open_context(session *s, size_t n_ctx, size_t n_target, size_t n_samples) {
    settings *o = s->o;
    prediff_context_desc d;
    prediff_error e;
    double begin = seconds();
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    d.n_ctx = o->given[O_CTX] ? (size_t)o->u[O_CTX] : n_ctx ? n_ctx : 1;
    d.n_target = n_target;
    d.n_samples = n_samples;
    d.n_threads = o->given[O_THREADS] ? (int)o->u[O_THREADS] : s->info.n_params < 2000000 ? 1 : usable_cores();
    d.attention = (prediff_attention)o->u[O_ATTENTION];
    d.isa = (prediff_isa)o->u[O_ISA];
    d.compute = o->u[O_FAST] ? PREDIFF_FAST : PREDIFF_EXACT;
    if (d.n_ctx < n_ctx || (!o->given[O_CTX] && n_ctx > s->info.n_ctx)) {
        fprintf(stderr, "prediff: %s: T_RANGE: %zu tokens (prompt and target) do not fit in the %zu positions of %s\n", o->command, n_ctx,
                o->given[O_CTX] ? d.n_ctx : s->info.n_ctx, o->given[O_CTX] ? "-c" : "the model");
        return 1;
    }
    if (prediff_context_create(&s->context, s->model, &d, &e)) return fail(o->command, &e);
    s->load += seconds() - begin;
    return 0;
}

static void close_session(session *s) {
    prediff_context_destroy(s->context);
    prediff_model_close(s->model);
}

/* This version computes exactly whatever was permitted. */
static const char *compute_name(void) { return "exact"; }

/* Ids of a text; a byte gives at most one token, so a second try is rare. */
static int encode(session *s, const char *text, size_t n, unsigned flags, int32_t **ids, size_t *count) {
    prediff_error e;
    prediff_status status;
    size_t capacity = n + 16;
    memset(&e, 0, sizeof e);
    *ids = allocate_ids(capacity);
    status = prediff_encode(s->model, text, n, flags, *ids, capacity, count, &e);
    if (status == PREDIFF_ERR_LIMIT && e.item == PREDIFF_ITEM_BUFFER_SIZE) {
        free(*ids);
        *ids = allocate_ids(*count);
        status = prediff_encode(s->model, text, n, flags, *ids, *count, count, &e);
    }
    return status ? fail(s->o->command, &e) : 0;
}

/* The text of ids, masks left out. */
static void decode_known(const prediff_model *m, const int32_t *ids, size_t n, buffer *out) {
    int32_t *known = allocate_ids(n);
    size_t i, k = 0, capacity = n * 8 + 64;
    prediff_error e;
    memset(&e, 0, sizeof e);
    for (i = 0; i < n; i++)
        if (ids[i] != PREDIFF_MASK) known[k++] = ids[i];
    out->n = 0;
    for (;;) {
        reserve(out, capacity);
        if (prediff_decode(m, known, k, 0, out->p, out->capacity, &out->n, &e) == PREDIFF_OK) break;
        out->n = 0;
        if (e.item != PREDIFF_ITEM_BUFFER_SIZE) exit(fail("decode", &e));
        capacity = capacity * 2;
    }
    free(known);
}

/* Where in the text of ids the first n of them end. A tokenizer may drop a leading space, so pieces are cut out of the
   whole text instead of being decoded alone. */
static size_t text_length(const prediff_model *m, const int32_t *ids, size_t n) {
    buffer b = { NULL, 0, 0 };
    size_t length;
    decode_known(m, ids, n, &b);
    length = b.n;
    free(b.p);
    return length;
}

/* The text of ids[from..to); masks that are left become [MASK:n], which infill understands. */
static void render(const prediff_model *m, const int32_t *ids, size_t from, size_t to, buffer *out) {
    buffer whole = { NULL, 0, 0 };
    size_t i, j, begin, end = text_length(m, ids, from);
    decode_known(m, ids, to, &whole);
    for (i = from; i < to; i = j) {
        int mask = ids[i] == PREDIFF_MASK;
        for (j = i + 1; j < to && (ids[j] == PREDIFF_MASK) == mask; j++) {}
        if (mask) {
            char mark[48];
            snprintf(mark, sizeof mark, "[MASK:%zu]", j - i);
            append_text(out, mark);
            continue;
        }
        begin = end;
        end = j == to ? whole.n : text_length(m, ids, j);
        if (end > whole.n) end = whole.n;
        if (end > begin) append(out, whole.p + begin, end - begin);
    }
    free(whole.p);
}

/* ---- the visual: text out of masks, on standard error ---------------------------------------------------------------

   On a terminal each step goes back to the first line of the last picture, clears what follows, and draws again. Elsewhere
   each step is one line. */

typedef enum style { GIVEN, MASKED, NEWEST, OLDEST = NEWEST + 5 } style;

typedef struct view {
    int on, live, utf8;
    int columns, rows, column, lines;  /* lines: of the picture, below its first */
    size_t space;                      /* just behind the line's last space in frame, 0: none; */
    int space_column;                  /*   and the column there */
    style now;
    buffer frame;
} view;

static int view_environment(const char *name, const char *wanted) {
    const char *v = getenv(name);
    return v && (wanted ? strstr(v, wanted) != NULL : *v != 0);
}

static void view_open(view *v, const settings *o) {
    const char *term = getenv("TERM");
    int able = is_terminal(stderr) && !view_environment("NO_COLOR", NULL) && term && *term && strcmp(term, "dumb") != 0;
    memset(v, 0, sizeof *v);
    v->on = (int)o->u[O_VISUAL];
    v->live = o->u[O_COLOR] == 1 || (o->u[O_COLOR] == 0 && able);
    v->utf8 = view_environment("LC_ALL", "UTF-8") || view_environment("LC_ALL", "utf8") ||
              (!view_environment("LC_ALL", NULL) && (view_environment("LC_CTYPE", "UTF-8") || view_environment("LANG", "UTF-8") || view_environment("LANG", "utf8")));
    v->columns = 80;
    v->rows = 24;
#if HAVE_POSIX && defined(TIOCGWINSZ)
    {
        struct winsize w;
        if (ioctl(2, TIOCGWINSZ, &w) == 0 && w.ws_col > 10 && w.ws_row > 2) { v->columns = w.ws_col; v->rows = w.ws_row; }
    }
#endif
}

/* Columns a character takes; a coarse table is enough to wrap lines. */
static int character_width(uint32_t c) {
    if ((c >= 0x300 && c < 0x370) || (c >= 0x200B && c < 0x2010) || (c >= 0xFE00 && c < 0xFE10)) return 0;
    if ((c >= 0x1100 && c < 0x1160) || (c >= 0x2E80 && c < 0xA4D0) || (c >= 0xAC00 && c < 0xD7A4) || (c >= 0xF900 && c < 0xFB00) ||
        (c >= 0xFE30 && c < 0xFE70) || (c >= 0xFF00 && c < 0xFF61) || (c >= 0x1F300 && c < 0x1FB00) || (c >= 0x20000 && c < 0x40000)) return 2;
    return 1;
}

static void view_style(view *v, style s) {
    /* the newest tokens are bright, then they fade to the terminal's own colour */
    static const char *const codes[] = { "\x1b[0;2m", "\x1b[0;38;5;242m", "\x1b[0;1;38;5;39m", "\x1b[0;38;5;75m", "\x1b[0;38;5;110m",
                                         "\x1b[0;38;5;109m", "\x1b[0;38;5;246m", "\x1b[0m" };
    if (v->live && v->now != s) append_text(&v->frame, codes[s]);
    v->now = s;
}

/* Breaks the line at its last space, which becomes the line's end, or where it is. */
static void view_wrap(view *v) {
    if (v->space) {
        v->frame.p[v->space - 1] = '\n';
        v->column -= v->space_column;
    } else {
        append_text(&v->frame, "\n");
        v->column = 0;
    }
    v->space = 0;
}

static void view_text(view *v, style s, const char *text, size_t n) {
    size_t i, len;
    uint32_t code;
    view_style(v, s);
    for (i = 0; i < n; i += len) {
        int width;
        len = next_character(text + i, n - i, &code);
        width = is_control(code) ? 1 : character_width(code);
        if (code == '\n') {
            append_text(&v->frame, v->live ? "\n" : "\\n");
            v->column = 0;
            v->space = 0;
            continue;
        }
        if (v->live && v->column + width >= v->columns) view_wrap(v);
        if (code == 0xFFFD) append_text(&v->frame, REPLACEMENT);
        else if (is_control(code)) append_text(&v->frame, " ");
        else append(&v->frame, text + i, len);
        v->column += width;
        if (code == ' ') { v->space = v->frame.n; v->space_column = v->column; }
    }
}

static void view_ids(view *v, const prediff_model *m, const int32_t *ids, const int32_t *revealed_at, size_t n, int32_t now, prediff_decoder *state) {
    size_t room = prediff_max_token_bytes(m) + 16, count, i;
    char *text = (char *)allocate(room, 1);
    for (i = 0; i < n; i++) {
        int32_t age = now - (revealed_at ? revealed_at[i] : 0);
        style s = !revealed_at || revealed_at[i] == 0 ? GIVEN : (style)(NEWEST + (age < 0 ? 0 : age > 5 ? 5 : age));
        if (ids[i] == PREDIFF_MASK) {
            const char *mask = v->live && v->utf8 ? " \xE2\x96\x91\xE2\x96\x91" : " _";
            view_text(v, MASKED, mask, strlen(mask));
        } else if (prediff_decode_next(m, state, ids[i], 0, text, room, &count, NULL) == PREDIFF_OK) view_text(v, s, text, count);
    }
    free(text);
}

/* Writes the frame over the last one, cut to the last lines the terminal can show. */
static void view_flush(view *v) {
    size_t start = v->frame.n;
    int lines = 0;
    while (start > 0 && !(v->frame.p[start - 1] == '\n' && ++lines >= v->rows - 1)) start--;
    if (lines >= v->rows - 1) lines--;
    if (v->lines > 0) fprintf(stderr, "\x1b[%dA", v->lines);
    fputs("\r\x1b[J\x1b[0m", stderr);
    fwrite(v->frame.p + start, 1, v->frame.n - start, stderr);
    fflush(stderr);
    v->lines = lines;
}

static void view_step(view *v, const prediff_model *m, const int32_t *prompt, size_t n_prompt, const prediff_step_info *i) {
    prediff_decoder state;
    const int32_t *target = i->target + i->sample_begin * i->n, *revealed_at = i->revealed_at ? i->revealed_at + i->sample_begin * i->n : NULL;
    int32_t now = 0;
    size_t k, shown = n_prompt > 500 ? 500 : n_prompt;
    char head[96];
    memset(&state, 0, sizeof state);
    for (k = 0; revealed_at && k < i->n; k++)
        if (revealed_at[k] > now) now = revealed_at[k];
    v->frame.n = v->space = 0;
    v->column = 0;
    v->now = OLDEST;
    snprintf(head, sizeof head, "step %zu of %zu, %zu revealed, %zu left", i->step, i->n_steps, i->n_revealed, i->n_masks_left);
    if (!v->live) { append_text(&v->frame, head); append_text(&v->frame, ": "); }
    view_ids(v, m, prompt + (n_prompt - shown), NULL, shown, 0, &state);
    view_ids(v, m, target, revealed_at, i->n, now, &state);
    if (v->live) {
        view_text(v, GIVEN, "\n", 1);
        view_text(v, GIVEN, head, strlen(head));
        view_style(v, OLDEST);
        view_flush(v);
    } else {
        append_text(&v->frame, "\n");
        fwrite(v->frame.p, 1, v->frame.n, stderr);
    }
}

/* The last picture makes room for the text where both go to one terminal. */
static void view_close(view *v) {
    if (v->on && v->live && v->frame.n) {
        if (!is_terminal(stdout)) fputs("\n", stderr);
        else {
            if (v->lines > 0) fprintf(stderr, "\x1b[%dA", v->lines);
            fputs("\r\x1b[J", stderr);
        }
        fflush(stderr);
    }
    free(v->frame.p);
    memset(v, 0, sizeof *v);
}

/* ---- generate and infill ------------------------------------------------------------------------------------------- */

typedef struct writing {
    session s;
    view screen;
    int infill;
    int32_t *ids;                      /* prompt, then target as given */
    size_t n_prompt, n;                /* n: target positions */
    size_t batch;                      /* samples computed together */
    int32_t *target;                   /* [batch][n] */
    float *logprob;                    /* [batch][n] */
    prediff_result r;
} writing;

static int on_step(void *user, const prediff_step_info *i) {
    writing *w = (writing *)user;
    if (w->screen.on) view_step(&w->screen, w->s.model, w->ids, w->n_prompt, i);
    wait_ms(w->s.o->u[O_DELAY]);
    return interrupted != 0;
}

/* The text of -p or -f; like llama.cpp one newline at a file's end is dropped. */
static int read_prompt(settings *o, buffer *text) {
    if (!o->given[O_PROMPT] && !o->given[O_FILE]) return conflict(o, "no text: give one with -p TEXT or -f FILE (- is standard input)");
    if (o->given[O_PROMPT]) append_text(text, o->s[O_PROMPT]);
    else if (read_file(o->s[O_FILE], text)) return 1;
    if (o->given[O_FILE] && text->n && text->p[text->n - 1] == '\n') text->n--;
    return 0;
}

static int prepare_generate(writing *w, const buffer *text) {
    settings *o = w->s.o;
    unsigned flags = PREDIFF_ENCODE_BOS | (o->u[O_NO_SPECIAL] ? 0u : (unsigned)PREDIFF_ENCODE_SPECIAL);
    int32_t *prompt;
    size_t i, room = o->given[O_CTX] ? (size_t)o->u[O_CTX] : w->s.info.n_ctx;
    if (encode(&w->s, text->p, text->n, flags, &prompt, &w->n_prompt)) return 1;
    w->n = (size_t)o->u[O_N];
    for (i = 0; i + 6 <= text->n && memcmp(text->p + i, "[MASK:", 6) != 0; i++) {}
    if (i + 6 <= text->n) fprintf(stderr, "prediff: generate: the text has [MASK:n] marks, which only infill fills\n");
    if (!o->given[O_N] && w->n_prompt < room && w->n > room - w->n_prompt) w->n = room - w->n_prompt;
    w->ids = allocate_ids(w->n_prompt + w->n);
    memcpy(w->ids, prompt, w->n_prompt * sizeof *prompt);
    for (i = 0; i < w->n; i++) w->ids[w->n_prompt + i] = PREDIFF_MASK;
    free(prompt);
    return 0;
}

static int prepare_infill(writing *w, const buffer *text) {
    prediff_error e;
    prediff_status status;
    size_t capacity = text->n + 1024, count = 0, i, masks = 0, right = 0;
    memset(&e, 0, sizeof e);
    w->ids = allocate_ids(capacity);
    status = prediff_template(w->s.model, text->p, text->n, PREDIFF_ENCODE_BOS, w->ids, capacity, &count, &w->n_prompt, &e);
    if (status == PREDIFF_ERR_LIMIT && e.item == PREDIFF_ITEM_BUFFER_SIZE) {
        free(w->ids);
        w->ids = allocate_ids(count);
        status = prediff_template(w->s.model, text->p, text->n, PREDIFF_ENCODE_BOS, w->ids, count, &count, &w->n_prompt, &e);
    }
    if (status) return fail("infill", &e);
    w->n = count - w->n_prompt;
    for (i = w->n_prompt; i < count; i++) {
        masks += w->ids[i] == PREDIFF_MASK;
        right += masks > 0 && w->ids[i] != PREDIFF_MASK;
    }
    if (masks == 0) return fail_text("infill", "TEMPLATE: no [MASK:n] mark in the text");
    if (right && w->s.o->u[O_BLOCK]) return conflict(w->s.o, "--block cannot see the text to the right of a gap; use --window");
    return 0;
}

static void generate_desc(writing *w, prediff_generate_desc *d) {
    settings *o = w->s.o;
    memset(d, 0, sizeof *d);
    d->n_steps = (size_t)o->u[O_STEPS];
    d->samples = w->batch;
    d->sampler = (prediff_sampler)o->u[O_SAMPLER];
    d->order = (prediff_order)o->u[O_ORDER];
    d->schedule = (prediff_schedule)o->u[O_SCHEDULE];
    d->temperature = o->d[O_TEMP];
    d->temperature_end = o->d[O_TEMP_END];
    d->top_k = (size_t)o->u[O_TOP_K];
    d->top_p = o->d[O_TOP_P];
    d->threshold = o->d[O_THRESHOLD];
    d->entropy_bound = o->d[O_ENTROPY_BOUND];
    d->stop_sure = (int)o->u[O_STOP_SURE];
    d->block = (size_t)o->u[O_BLOCK];
    d->window = (size_t)o->u[O_WINDOW];
    d->ignore_eos = (int)o->u[O_IGNORE_EOS];
    d->eos_penalty = o->d[O_EOS_PENALTY];
    d->no_repeat = (size_t)o->u[O_NO_REPEAT];
    d->noise = (prediff_noise)o->u[O_NOISE];
    d->no_rate = (int)o->u[O_NO_RATE];
    d->no_selfcond = (int)o->u[O_NO_SELFCOND];
    d->no_noise = (int)o->u[O_NO_NOISE];
    d->selfcond_masked_only = (int)o->u[O_SELFCOND_MASKED];
    d->on_step = on_step;
    d->user = w;
    d->logprob = w->logprob;
}

/* What one sample has come to. */
typedef struct outcome { size_t shown, emitted, masks_left; prediff_ended ended; double logprob; } outcome;

/* Tokens filled in count up to the first end of text; behind it there is only padding. */
static outcome look_at(const writing *w, size_t sample) {
    const int32_t *given = w->ids + w->n_prompt, *target = w->target + sample * w->n;
    size_t i;
    outcome c;
    memset(&c, 0, sizeof c);
    c.shown = w->n;
    c.ended = w->r.ended == PREDIFF_ENDED_EOS ? PREDIFF_ENDED_FILLED : w->r.ended;     /* that of the batch; its own follows */
    for (i = 0; i < w->n; i++) {
        if (given[i] != PREDIFF_MASK) continue;
        if (target[i] == PREDIFF_MASK) { c.masks_left++; continue; }
        if (c.ended == PREDIFF_ENDED_EOS) continue;
        c.emitted++;
        c.logprob += (double)w->logprob[sample * w->n + i];
        if (prediff_token_ends(w->s.model, target[i]) && !w->s.o->u[O_IGNORE_EOS]) {
            c.ended = PREDIFF_ENDED_EOS;
            if (!w->infill) c.shown = i + 1;
        }
    }
    return c;
}

static const char *ended_name(prediff_ended ended) {
    static const char *const names[] = { "filled", "eos", "sure", "early", "cancelled" };
    return (unsigned)ended < 5 ? names[ended] : "?";
}

static void json_gaps(const writing *w, const int32_t *ids) {
    size_t i, j, total = w->n_prompt + w->n;
    const char *comma = "";
    buffer text = { NULL, 0, 0 };
    json_key("gaps");
    putchar('[');
    for (i = w->n_prompt; i < total; i = j) {
        int gap = w->ids[i] == PREDIFF_MASK;
        for (j = i + 1; j < total && (w->ids[j] == PREDIFF_MASK) == gap; j++) {}
        if (!gap) continue;
        text.n = 0;
        render(w->s.model, ids, i, j, &text);
        printf("%s{\"start\": %zu, \"n\": %zu, \"text\": ", comma, i, j - i);
        json_string(text.p, text.n);
        putchar('}');
        comma = ", ";
    }
    putchar(']');
    free(text.p);
}

/* Counters of a batch belong to all its samples; tokens are the sample's own. */
static void json_sample(const writing *w, const outcome *c, const int32_t *ids, const buffer *text, size_t sample, uint64_t seed, size_t all_emitted) {
    size_t from = w->infill ? 0 : w->n_prompt, to = w->infill ? w->n_prompt + w->n : w->n_prompt + c->shown;
    fputs("{\"text\": ", stdout);
    json_string(text->p, text->n);
    json_key("tokens");
    json_ids(ids + from, to - from);
    if (w->infill) json_gaps(w, ids);
    json_count("prompt_tokens", w->n_prompt);
    json_count("tokens_emitted", c->emitted);
    json_count("steps", w->r.n_steps);
    json_count("evaluations", w->r.n_evaluations);
    json_count("rows_computed", w->r.n_rows);
    json_count("masks_left", c->masks_left);
    json_text("ended", ended_name(c->ended));
    json_number("logprob", c->logprob);
    json_count("sample", sample);
    json_count("batch", w->batch);
    json_count("seed", seed);
    json_text("isa", prediff_isa_name(prediff_context_isa(w->s.context)));
    json_text("compute", compute_name());
    json_count("threads", (uint64_t)prediff_context_threads(w->s.context));
    printf(", \"seconds\": {\"load\": %.6f, \"prompt\": %.6f, \"generate\": %.6f}", w->s.load, w->s.prompt, w->s.generate);
    json_number("tokens_per_second", w->s.generate > 0 ? (double)all_emitted / w->s.generate : 0);
    puts("}");
}

/* Only an empty answer is checked: it must not look like success. */
static void warn_if_empty(const writing *w, const int32_t *ids) {
    size_t i;
    const int32_t *given = w->ids + w->n_prompt;
    for (i = 0; i < w->n; i++) {
        buffer text = { NULL, 0, 0 };
        if (given[i] == PREDIFF_MASK && ids[w->n_prompt + i] != PREDIFF_MASK) render(w->s.model, ids, w->n_prompt + i, w->n_prompt + i + 1, &text);
        free(text.p);
        if (text.n) return;
    }
    fprintf(stderr, "prediff: warning: the model wrote nothing: its first token was an end of text (try --ignore-eos or --temp)\n");
}

static void print_sample(const writing *w, size_t sample, size_t number, size_t all_emitted) {
    settings *o = w->s.o;
    outcome c = look_at(w, sample);
    size_t total = w->n_prompt + w->n;
    int32_t *ids = allocate_ids(total);
    buffer text = { NULL, 0, 0 };
    memcpy(ids, w->ids, w->n_prompt * sizeof *ids);
    memcpy(ids + w->n_prompt, w->target + sample * w->n, w->n * sizeof *ids);
    render(w->s.model, ids, w->infill || (o->u[O_ECHO] && !o->u[O_JSON]) ? 0 : w->n_prompt, w->n_prompt + c.shown, &text);
    if (o->u[O_JSON]) json_sample(w, &c, ids, &text, number, o->u[O_SEED] + number, all_emitted);
    else {
        if (number > 0) putchar('\n');
        print_text(text.p, text.n);
        putchar('\n');
    }
    fflush(stdout);
    warn_if_empty(w, ids);
    if (c.masks_left) fprintf(stderr, "prediff: warning: %zu masks are left\n", c.masks_left);
    free(text.p);
    free(ids);
}

static void print_summary(const writing *w, size_t emitted) {
    const session *s = &w->s;
    if (!s->o->u[O_VERBOSE] && !is_terminal(stderr)) return;
    fprintf(stderr, "prediff: %zu tokens in %.3f s (%.1f tokens/s), %zu steps, %zu evaluations, %zu rows, %s; prompt %zu tokens in %.3f s; load %.3f s; %s, %s, %d thread%s, seed %llu\n",
            emitted, s->generate, s->generate > 0 ? (double)emitted / s->generate : 0, w->r.n_steps, w->r.n_evaluations, w->r.n_rows, ended_name(w->r.ended),
            w->n_prompt, s->prompt, s->load, prediff_isa_name(prediff_context_isa(s->context)), compute_name(),
            prediff_context_threads(s->context), prediff_context_threads(s->context) == 1 ? "" : "s", (unsigned long long)s->o->u[O_SEED]);
}

/* Generates samples first .. first + batch - 1 and prints them. */
static int write_batch(writing *w, size_t first) {
    prediff_generate_desc d;
    prediff_error e;
    prediff_status status;
    size_t j, emitted = 0;
    double begin;
    memset(&e, 0, sizeof e);
    memset(&w->r, 0, sizeof w->r);
    memset(w->logprob, 0, w->batch * w->n * sizeof *w->logprob);
    for (j = 0; j < w->batch; j++) memcpy(w->target + j * w->n, w->ids + w->n_prompt, w->n * sizeof *w->target);
    generate_desc(w, &d);
    d.seed = w->s.o->u[O_SEED] + first;
    view_open(&w->screen, w->s.o);
    begin = seconds();
    status = prediff_generate(w->s.context, w->target, w->n, &d, &w->r, &e);
    w->s.generate = seconds() - begin;
    view_close(&w->screen);
    if (status && status != PREDIFF_ERR_CANCELLED) return fail(w->s.o->command, &e);
    for (j = 0; j < w->batch; j++) emitted += look_at(w, j).emitted;
    for (j = 0; j < w->batch; j++) print_sample(w, j, first + j, emitted);
    print_summary(w, emitted);
    return status ? fail_text(w->s.o->command, "stopped") : 0;
}

/* Blocks and causal decoding run one sample at a time; others of one prompt run together and share its cache. */
static int write_samples(writing *w) {
    settings *o = w->s.o;
    prediff_error e;
    size_t samples = (size_t)o->u[O_SAMPLES], first;
    double begin;
    int status;
    memset(&e, 0, sizeof e);
    if (!o->given[O_SAMPLER] && !w->infill && !w->s.info.has_mask && w->s.info.attention != PREDIFF_ATTENTION_BIDIRECTIONAL) {
        o->u[O_SAMPLER] = PREDIFF_CAUSAL_DECODING;
        if (!o->given[O_WINDOW]) o->u[O_WINDOW] = 0;            /* a preset's */
    }
    w->batch = o->u[O_SAMPLER] == PREDIFF_CAUSAL_DECODING || o->u[O_BLOCK] ? 1 : samples;
    status = open_context(&w->s, w->n_prompt + w->n, w->n, w->batch);
    if (status) return status;
    begin = seconds();
    if (prediff_prompt(w->s.context, w->ids, w->n_prompt, NULL, &e)) return fail(o->command, &e);
    w->s.prompt = seconds() - begin;
    w->target = allocate_ids(w->batch * w->n);
    w->logprob = (float *)allocate(w->batch * w->n, sizeof(float));
    signal(SIGINT, on_interrupt);
    for (first = 0; first < samples && !status; first += w->batch) status = write_batch(w, first);
    return status;
}

static int run_writing(settings *o, int infill) {
    writing w;
    buffer text = { NULL, 0, 0 };
    int status = read_prompt(o, &text);
    memset(&w, 0, sizeof w);
    w.infill = infill;
    if (!status) status = open_model(&w.s, o);
    if (!status) status = infill ? prepare_infill(&w, &text) : prepare_generate(&w, &text);
    if (!status) status = write_samples(&w);
    close_session(&w.s);
    free(text.p);
    free(w.ids);
    free(w.target);
    free(w.logprob);
    return status;
}

static int run_generate(settings *o) { return run_writing(o, 0); }
static int run_infill(settings *o) { return run_writing(o, 1); }

/* ---- texts of a file -------------------------------------------------------------------------------------------------- */

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Stories between end-of-text marks: each stripped, encoded as plain text, and closed by one end-of-text token. */
static int encode_stories(session *s, const buffer *text, int32_t **all, size_t *n_all) {
    static const char mark[] = "<|endoftext|>";
    size_t begin = 0, end, next, capacity = text->n + 16;
    *all = allocate_ids(capacity);
    *n_all = 0;
    for (; begin < text->n; begin = next) {
        int32_t *ids;
        size_t count;
        for (end = begin; end < text->n && (text->n - end < sizeof mark - 1 || memcmp(text->p + end, mark, sizeof mark - 1)); end++) {}
        next = end + sizeof mark - 1;
        while (begin < end && is_space(text->p[begin])) begin++;
        while (end > begin && is_space(text->p[end - 1])) end--;
        if (begin == end) continue;
        if (encode(s, text->p + begin, end - begin, 0, &ids, &count)) return 1;
        if (count + 1 > capacity - *n_all) {             /* SentencePiece adds a space to each story */
            int32_t *more = allocate_ids(capacity = (*n_all + count + 1) * 2);
            memcpy(more, *all, *n_all * sizeof *more);
            free(*all);
            *all = more;
        }
        memcpy(*all + *n_all, ids, count * sizeof *ids);
        *n_all += count;
        if (s->info.eos >= 0) (*all)[(*n_all)++] = s->info.eos;
        free(ids);
    }
    return 0;
}

/* ---- eval ---------------------------------------------------------------------------------------------------------- */

typedef struct evaluation {
    session s;
    int nelbo;
    int32_t *ids;
    size_t n_ids;
    size_t window, stride, given, windows, done;   /* given: tokens of a window that are prompt (nelbo) */
    size_t tokens, bytes, evaluations;
    double nats, variance;             /* variance: of nats over the draws */
    double sum, squares;               /* of a window's nats per token */
    double began;
} evaluation;

static int read_evaluation_text(evaluation *v) {
    settings *o = v->s.o;
    buffer text = { NULL, 0, 0 };
    int status, stories = v->nelbo ? !o->u[O_PLAIN] : (int)o->u[O_STORIES];
    status = read_file(o->s[O_FILE], &text);
    if (!status) status = stories ? encode_stories(&v->s, &text, &v->ids, &v->n_ids) : encode(&v->s, text.p, text.n, o->u[O_NO_SPECIAL] ? 0u : (unsigned)PREDIFF_ENCODE_SPECIAL, &v->ids, &v->n_ids);
    free(text.p);
    return status;
}

/* Windows lie end to end or a stride apart; a text shorter than one window is one shorter window. */
static int plan_windows(evaluation *v) {
    settings *o = v->s.o;
    size_t bos = o->u[O_BOS] ? 1 : 0, room = v->s.info.n_ctx > bos ? v->s.info.n_ctx - bos : 1;
    v->window = o->u[O_WINDOW] ? (size_t)o->u[O_WINDOW] : room < 256 ? room : 256;
    if (v->window > v->n_ids) v->window = v->n_ids;
    v->stride = o->u[O_STRIDE] ? (size_t)o->u[O_STRIDE] : v->window;
    if (v->stride > v->window) return conflict(o, "--stride is larger than --window: tokens between windows would not be scored");
    if (v->window < 2) return fail_text("eval", "the text is too short: fewer than two tokens");
    if (v->nelbo) {
        v->given = o->u[O_PROMPT_TOKENS] ? (size_t)o->u[O_PROMPT_TOKENS] : v->window / 2;
        if (v->given >= v->window) return conflict(o, "--prompt-tokens leaves nothing of the window to score");
        if (o->given[O_STRIDE] || bos) return conflict(o, "--stride and --bos are for --task ppl");
    } else if (bos && v->s.info.bos < 0) return fail_text("eval", "--bos: the model has no begin-of-text token");
    v->windows = (v->n_ids - v->window) / v->stride + 1;
    if (o->u[O_LIMIT] && o->u[O_LIMIT] < v->windows) v->windows = (size_t)o->u[O_LIMIT];
    return open_context(&v->s, v->window + bos, v->nelbo ? v->window - v->given : v->window, 1);
}

/* Bytes of the text of ids[from..to); an end of text counts as one. */
static size_t count_bytes(const prediff_model *m, const int32_t *ids, size_t from, size_t to) {
    size_t i, n = text_length(m, ids, to) - text_length(m, ids, from);
    for (i = from; i < to; i++) n += prediff_token_ends(m, ids[i]) != 0;
    return n;
}

/* One window: its first `visible` tokens are not scored. */
static int score_window(evaluation *v, size_t index, const uint8_t *visible, prediff_score_result *r) {
    settings *o = v->s.o;
    const int32_t *ids = v->ids + index * v->stride;
    prediff_score_desc d;
    prediff_error e;
    prediff_status status;
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    status = prediff_rewind(v->s.context, 0, &e);
    if (v->nelbo) {
        d.kind = (prediff_score_kind)(PREDIFF_SCORE_NELBO + (int)o->u[O_ESTIMATOR]);
        d.draws = (size_t)o->u[O_DRAWS];
        d.n_steps = (size_t)o->u[O_STEPS];
        d.order = (prediff_order)o->u[O_ORDER];
        d.schedule = (prediff_schedule)o->u[O_SCHEDULE];
        d.seed = o->u[O_SEED] + index;
        d.no_rate = (int)o->u[O_NO_RATE];
        d.no_selfcond = (int)o->u[O_NO_SELFCOND];
        d.no_noise = (int)o->u[O_NO_NOISE];
        if (!status) status = prediff_prompt(v->s.context, ids, v->given, NULL, &e);
    } else if (index > 0 && v->stride < v->window) d.given = visible;
    if (!status && o->u[O_BOS]) status = prediff_prompt(v->s.context, &v->s.info.bos, 1, NULL, &e);
    if (!status) status = prediff_score(v->s.context, ids + v->given, v->window - v->given, &d, r, &e);
    return status ? fail("eval", &e) : 0;
}

static void progress(const evaluation *v) {
    double spent = seconds() - v->began, left = spent / (double)v->done * (double)(v->windows - v->done);
    if (!is_terminal(stderr)) return;
    fprintf(stderr, "\rwindow %zu of %zu, %.4f nats a token, %.0f s, %.0f s to go \x1b[K", v->done, v->windows, v->nats / (double)v->tokens, spent, left);
    if (v->done == v->windows) fputs("\r\x1b[K", stderr);
    fflush(stderr);
}

static int score_windows(evaluation *v) {
    uint8_t *visible = (uint8_t *)allocate(v->window, 1);
    int status = 0;
    size_t i;
    for (i = 0; i < v->window; i++) visible[i] = i < v->window - v->stride;
    signal(SIGINT, on_interrupt);
    v->began = seconds();
    for (i = 0; i < v->windows && !status && !interrupted; i++) {
        prediff_score_result r;
        double mean;
        memset(&r, 0, sizeof r);
        status = score_window(v, i, visible, &r);
        if (status || r.n_scored == 0) continue;
        mean = r.nats / (double)r.n_scored;
        v->nats += r.nats;
        v->variance += r.std_error * r.std_error;
        v->sum += mean;
        v->squares += mean * mean;
        v->tokens += r.n_scored;
        v->evaluations += r.n_evaluations;
        v->bytes += count_bytes(v->s.model, v->ids + i * v->stride, v->window - r.n_scored, v->window);
        v->done++;
        progress(v);
    }
    v->s.generate = seconds() - v->began;
    free(visible);
    return status;
}

static void print_evaluation(const evaluation *v) {
    settings *o = v->s.o;
    static const char *const estimators[] = { "exact-l", "rate", "n-step", "order" };
    const char *estimator = v->nelbo ? estimators[o->u[O_ESTIMATOR]] : "causal";
    double tokens = (double)v->tokens, n = (double)v->done, per_token = v->nats / tokens, per_byte = v->nats / (double)v->bytes;
    double spread = n > 1 ? sqrt(fmax(0, v->squares - v->sum * v->sum / n) / (n - 1) / n) : NAN, drawn = sqrt(v->variance) / tokens;
    int draws = v->nelbo && o->u[O_ESTIMATOR] < 3;
    size_t n_draws = o->u[O_DRAWS] ? (size_t)o->u[O_DRAWS] : 64;
    if (!o->u[O_JSON]) {
        printf("task            %s (%s)\n", v->nelbo ? "nelbo" : "ppl", estimator);
        printf("windows         %zu of %zu tokens, ", v->done, v->window);
        if (v->nelbo) printf("the first %zu given, seed %llu", v->given, (unsigned long long)o->u[O_SEED]);
        else printf("stride %zu, %s", v->stride, o->u[O_BOS] ? "BOS before each" : "no BOS");
        if (draws) printf(", %zu draws", n_draws);
        printf("\nscored          %zu tokens, %zu bytes (of %zu tokens of text)\n", v->tokens, v->bytes, v->n_ids);
        printf("nats per token  %.5f", per_token);
        if (draws) printf(" +- %.5f (standard error over draws)", drawn);
        if (n > 1) printf("%s +- %.5f (over windows)", draws ? "," : "", spread);
        else fputs(", one window: no spread", stdout);
        putchar('\n');
        printf("nats per byte   %.5f\n%s %.4f\n", per_byte, v->nelbo ? "perplexity      at most" : "perplexity     ", exp(per_token));
        printf("time            %.2f s, %s, %d threads\n", v->s.generate, prediff_isa_name(prediff_context_isa(v->s.context)), prediff_context_threads(v->s.context));
        return;
    }
    printf("{\"task\": \"%s\", \"estimator\": \"%s\", \"settings\": {\"window\": %zu, \"stride\": %zu, \"prompt_tokens\": %zu, \"bos\": %s, \"draws\": %zu, \"steps\": %llu, \"seed\": %llu}",
           v->nelbo ? "nelbo" : "ppl", estimator, v->window, v->stride, v->given, o->u[O_BOS] ? "true" : "false", draws ? n_draws : 0,
           (unsigned long long)o->u[O_STEPS], (unsigned long long)o->u[O_SEED]);
    json_count("windows", v->done);
    json_count("tokens", v->tokens);
    json_count("bytes", v->bytes);
    json_number("nats", v->nats);
    json_number("nats_per_token", per_token);
    json_number("nats_per_byte", per_byte);
    json_number("perplexity", exp(per_token));
    json_number("std_error", draws ? drawn : spread);
    json_text("std_error_of", draws ? "nats_per_token over draws" : "nats_per_token over windows");
    json_number("std_error_windows", spread);
    json_count("evaluations", v->evaluations);
    json_text("isa", prediff_isa_name(prediff_context_isa(v->s.context)));
    json_text("compute", compute_name());
    json_count("threads", (uint64_t)prediff_context_threads(v->s.context));
    printf(", \"seconds\": {\"load\": %.6f, \"score\": %.6f}}\n", v->s.load, v->s.generate);
}

static int run_eval(settings *o) {
    evaluation v;
    int status;
    if (!o->given[O_FILE]) return conflict(o, "no text: give one with -f FILE (- is standard input)");
    memset(&v, 0, sizeof v);
    status = open_model(&v.s, o);
    v.nelbo = o->u[O_TASK] == 1;
    if (!status) status = read_evaluation_text(&v);
    if (!status) status = plan_windows(&v);
    if (!status) status = score_windows(&v);
    if (!status && v.done) print_evaluation(&v);
    if (!status && interrupted) status = fail_text("eval", "stopped; the figures are of the windows so far");
    close_session(&v.s);
    free(v.ids);
    return status;
}

/* ---- info ---------------------------------------------------------------------------------------------------------- */

static const char *const gguf_types[] = { "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64" };
static const unsigned char gguf_sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
enum { G_F32 = 6, G_BOOL = 7, G_STRING = 8, G_ARRAY = 9, G_F64 = 12 };

/* Files are little-endian. */
static uint64_t load_bytes(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    size_t i;
    for (i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static void print_scalar(const prediff_key *k) {
    size_t n = gguf_sizes[k->type];
    uint64_t v = load_bytes(k->data, n), sign = 1ull << (8 * n - 1);
    if (k->type == G_F32) {
        uint32_t bits = (uint32_t)v;
        float f;
        memcpy(&f, &bits, 4);
        json_value((double)f);
    } else if (k->type == G_F64) {
        double d;
        memcpy(&d, &v, 8);
        json_value(d);
    } else if (k->type == G_BOOL) fputs(v ? "true" : "false", stdout);
    else if (gguf_types[k->type][0] == 'i' && (v & sign)) printf("-%llu", (unsigned long long)((sign << 1) - v));
    else printf("%llu", (unsigned long long)v);
}

static void print_key(const prediff_key *k, int json) {
    if (k->type == G_ARRAY) printf(json ? "{\"array\": \"%s\", \"count\": %llu}" : "[%s x %llu]", gguf_types[k->element], (unsigned long long)k->count);
    else if (k->type != G_STRING) print_scalar(k);
    else if (json) json_string((const char *)k->data + 8, k->data_size - 8);
    else print_safe((const char *)k->data + 8, k->data_size - 8, 72);
}

static void print_tensor(const prediff_tensor *t, int json) {
    uint32_t i;
    if (json) { fputs("{\"name\": ", stdout); json_string(t->name.bytes, t->name.n); printf(", \"type\": \"%s\", \"dims\": [", prediff_type_name(t->type)); }
    else { fputs("  ", stdout); print_safe(t->name.bytes, t->name.n, 64); printf("%*s %-5s", t->name.n < 32 ? 32 - (int)t->name.n : 0, "", prediff_type_name(t->type)); }
    for (i = 0; i < t->n_dims; i++) printf(json ? "%s%llu" : "%s%llu", i ? (json ? ", " : " x ") : (json ? "" : " "), (unsigned long long)t->dims[i]);
    printf(json ? "], \"bytes\": %zu}" : "  %zu bytes\n", t->data_size);
}

static void print_container(const settings *o, const char *path, const prediff_container *c) {
    int json = (int)o->u[O_JSON];
    size_t i;
    if (json) { fputs("{\"file\": ", stdout); json_string(path, strlen(path)); printf(", \"gguf\": %u, \"alignment\": %zu, \"keys\": {", (unsigned)c->version, c->alignment); }
    else printf("file            %s\ncontainer       GGUF version %u, %zu keys, %zu tensors, alignment %zu\nkeys\n", path, (unsigned)c->version, c->n_keys, c->n_tensors, c->alignment);
    for (i = 0; i < c->n_keys; i++) {
        const prediff_key *k = &c->keys[i];
        if (json) { if (i) fputs(", ", stdout); json_string(k->name.bytes, k->name.n); fputs(": ", stdout); }
        else { fputs("  ", stdout); print_safe(k->name.bytes, k->name.n, 80); printf("%*s ", k->name.n < 40 ? 40 - (int)k->name.n : 0, ""); }
        print_key(k, json);
        if (!json) putchar('\n');
    }
    if (json) { putchar('}'); json_count("n_tensors", c->n_tensors); }
    if (!o->u[O_TENSORS]) return;
    fputs(json ? ", \"tensors\": [" : "tensors\n", stdout);
    for (i = 0; i < c->n_tensors; i++) {
        if (json && i) fputs(", ", stdout);
        print_tensor(&c->tensors[i], json);
    }
    if (json) putchar(']');
}

static const char *attention_name(prediff_attention a) {
    static const char *const names[] = { "default", "hybrid", "bidirectional", "causal" };
    return (unsigned)a < 4 ? names[a] : "?";
}

/* Bytes of a context of n positions of which t are targets; 0 if it cannot be. */
static size_t context_bytes(const prediff_model *m, size_t n, size_t t) {
    prediff_context_desc d;
    size_t size = 0;
    memset(&d, 0, sizeof d);
    d.n_ctx = n;
    d.n_target = t;
    return prediff_context_size(m, &d, &size, NULL) == PREDIFF_OK ? size : 0;
}

static void json_tokenizer(const prediff_model_info *i) {
    json_text("tokenizer", i->tokenizer);
    json_text("splitter", i->splitter);
    json_count("tokens", i->n_tokens);
    printf(", \"bos\": %ld, \"eos\": %ld, \"eot\": %ld, \"mask\": %ld", (long)i->bos, (long)i->eos, (long)i->eot, (long)i->mask);
    json_bool("add_bos", i->add_bos);
}

static void print_tokenizer(const prediff_model_info *i) {
    printf("tokenizer       ");
    if (i->n_tokens) printf("%s%s%s, %zu tokens, bos %ld%s, eos %ld, eot %ld, mask %ld\n", i->tokenizer, *i->splitter ? ", " : "", i->splitter, i->n_tokens,
                            (long)i->bos, i->add_bos ? " (added)" : "", (long)i->eos, (long)i->eot, (long)i->mask);
    else printf("none\n");
}

static void json_model(const prediff_model *m, const prediff_model_info *i, size_t n) {
    fputs(", \"model\": {\"architecture\": ", stdout);
    json_string(i->architecture, strlen(i->architecture));
    json_text("name", i->name);
    json_count("parameters", i->n_params);
    json_count("weight_bytes", i->weight_bytes);
    json_count("vocabulary", i->n_vocab);
    json_count("context", i->n_ctx);
    json_count("width", i->n_embd);
    json_count("layers", i->n_layer);
    json_count("heads", i->n_head);
    json_count("kv_heads", i->n_head_kv);
    json_count("head_size", i->n_head_dim);
    json_count("feed_forward", i->n_ff);
    json_bool("adapted", i->adapted);
    json_text("attention", attention_name(i->attention));
    json_bool("shift", i->shift);
    json_bool("mask_vector", i->has_mask && i->mask < 0);
    json_bool("rate", i->has_rate);
    json_bool("selfcond", i->has_selfcond);
    json_count("noise_dim", i->noise_dim);
    json_tokenizer(i);
    printf("}, \"memory\": {\"n_ctx\": %zu, \"n_target\": %zu, \"context_bytes\": %zu}", n, n, context_bytes(m, n, n));
}

static void print_model(const prediff_model *m, const prediff_model_info *i, size_t n) {
    size_t t = n < 64 ? n : 64;
    printf("model           %s%s%s, %llu parameters, %llu bytes of weights\n", i->architecture, *i->name ? ", " : "", i->name,
           (unsigned long long)i->n_params, (unsigned long long)i->weight_bytes);
    printf("sizes           %zu layers, width %zu, %zu heads of %zu (%zu for keys and values), feed-forward %zu, vocabulary %zu, context %zu\n",
           i->n_layer, i->n_embd, i->n_head, i->n_head_dim, i->n_head_kv, i->n_ff, i->n_vocab, i->n_ctx);
    printf("diffusion       %s, attention %s%s; mask %s%s%s", i->adapted ? "adapted" : "not adapted", attention_name(i->attention), i->shift ? ", shifted" : "",
           i->mask >= 0 ? "a vocabulary row" : i->has_mask ? "a vector" : "none (causal decoding only)", i->has_rate ? ", rate embedding" : "", i->has_selfcond ? ", self-conditioning" : "");
    if (i->noise_dim) printf(", noise of %zu", i->noise_dim);
    printf("\n");
    print_tokenizer(i);
    printf("memory          a context of %zu positions, all targets: %zu bytes; with %zu targets: %zu bytes\n", n, context_bytes(m, n, n), t, context_bytes(m, n, t));
}

/* A file that is no model may still hold a tokenizer. */
static void describe_tokenizer(settings *o, const char *path) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_model_info i;
    prediff_error e;
    model_desc(&d, o, path);
    d.vocab_only = 1;
    d.log = NULL;                      /* it was said already */
    if (prediff_model_open(&m, &d, &e)) return;
    prediff_model_get_info(m, &i);
    if (i.n_tokens && o->u[O_JSON]) json_tokenizer(&i);
    else if (i.n_tokens) print_tokenizer(&i);
    prediff_model_close(m);
}

/* The second half of info: is it a model we run? That it is not one is an answer, not an error. */
static int describe_model(settings *o, const char *path) {
    prediff_model_desc d;
    prediff_model *m;
    prediff_model_info i;
    prediff_error e;
    memset(&e, 0, sizeof e);
    model_desc(&d, o, path);
    if (prediff_model_open(&m, &d, &e) == PREDIFF_OK) {
        size_t n;
        prediff_model_get_info(m, &i);
        n = o->given[O_CTX] ? (size_t)o->u[O_CTX] : i.n_ctx;
        if (o->u[O_JSON]) json_model(m, &i, n);
        else print_model(m, &i, n);
        prediff_model_close(m);
    } else if (o->u[O_JSON]) {
        json_text("not_a_model", prediff_item_name(e.item));
        json_text("message", e.message);
        describe_tokenizer(o, path);
    } else {
        printf("not a model: %s: %s\n", prediff_item_name(e.item), e.message);
        describe_tokenizer(o, path);
    }
    if (o->u[O_JSON]) puts("}");
    return 0;
}

static int run_info(settings *o) {
    const char *path = model_path(o);
    prediff_model_desc d;
    prediff_model *m;
    prediff_container c;
    prediff_error e;
    if (!path) return 2;
    memset(&e, 0, sizeof e);
    model_desc(&d, o, path);
    if (prediff_container_open(&m, &d, &e)) return fail(path, &e);
    prediff_container_get(m, &c);
    print_container(o, path, &c);
    prediff_model_close(m);
    return describe_model(o, path);
}

/* ---- train, tokenizer: files of their own --------------------------------------------------------------------------- */

#include "train.c"
#include "tokenizer.c"

/* ---- main ---------------------------------------------------------------------------------------------------------- */

static const command *find_command(const char *name) {
    size_t i;
    for (i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    size_t i;
    fprintf(stderr, "prediff: unknown command '%s'", name);
    for (i = 0; i < N_COMMANDS; i++)
        if (distance(name, strlen(name), commands[i].name, strlen(commands[i].name)) <= 2) { fprintf(stderr, "; did you mean '%s'?", commands[i].name); break; }
    fprintf(stderr, "\n");
    return usage_error("");
}

static int wants_help(int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

/* Threads that wait by spinning cost a busy machine dearly; libgomp reads its limit before main, hence once more from the start. */
static void wait_modestly(char **argv) {
#if defined(_OPENMP) && defined(__linux__) && HAVE_POSIX
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "2000", 1)) return;
    execv("/proc/self/exe", argv);                              /* if that fails, things go on as they are */
#else
    (void)argv;
#endif
}

int main(int argc, char **argv) {
    settings o;
    const command *c;
    int status;
    wait_modestly(argv);
    if (argc < 2) { fprintf(stderr, "prediff: no command; one of generate, infill, eval, info, train, tokenizer\n"); return usage_error(""); }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return finish_output(help(argc > 2 ? find_command(argv[2]) : NULL));
    if (strcmp(argv[1], "--version") == 0) {
        printf("prediff %d.%d.%d\n", PREDIFF_VERSION / 10000, PREDIFF_VERSION / 100 % 100, PREDIFF_VERSION % 100);
        return finish_output(0);
    }
    c = find_command(argv[1]);
    if (!c) return unknown_command(argv[1]);
    if (wants_help(argc - 1, argv + 1)) return finish_output(help(c));
    memset(&o, 0, sizeof o);
    o.command = c->name;
    status = parse(c, argc - 1, argv + 1, &o);
    if (!status) status = check_settings(&o);
    if (!status) status = c->run(&o);
    return finish_output(status);
}
