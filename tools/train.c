/* SPDX-License-Identifier: MIT
 * train.c: the command `prediff train`, a part of tools/prediff.c: data, schedule, validation, checkpoints. The arithmetic is
 * the trainer's of prediff.h.
 *
 * Texts are crops of a fixed length from all the text, drawn by a counter-based generator: crop number n of a seed is the same
 * crop in every run. So a checkpoint needs one number to know its place in the data, and a resumed run is the unbroken one.
 */

typedef struct training {
    session s;                         /* the model to begin with */
    prediff_trainer *t;
    prediff_train_desc d;
    uint8_t *new_file;                 /* --new: the bytes of the first model */
    size_t new_size, new_room;
    int32_t *ids, *valid;              /* token ids of the text, and of the part kept for validation */
    size_t n_ids, n_valid, ctx, batch, accumulate, n_steps;
    prediff_sequence *texts;
    FILE *log;
    float best;                        /* lowest validation loss; rounded so that a checkpoint holds all of it */
    double last[2];                    /* the last causal and diffusion nats a token */
    size_t bad;                        /* evaluations in a row without a better one */
    double began, told;                /* when the loop began, when progress was last told */
    double loss, loss_weight;          /* running mean of the loss */
    size_t done, rows;                 /* steps and rows of this run */
} training;

static char *with_ending(const char *path, const char *ending) {
    size_t n = strlen(path), m = strlen(ending);
    char *p = (char *)allocate(n + m + 1, 1);
    memcpy(p, path, n);
    memcpy(p + n, ending, m + 1);
    return p;
}

/* -- a new model from sizes -- */

typedef struct sizes { size_t vocab, ctx, d, layers, heads, kv, ff, gpt2; } sizes;

/* "d=128,layers=6,...": keys as in the struct; heads, kv and ff have defaults. */
static int read_sizes(const char *text, sizes *z) {
    static const char *const names[] = { "vocab", "ctx", "d", "layers", "heads", "kv", "ff" };
    size_t *values[7], i;
    values[0] = &z->vocab; values[1] = &z->ctx; values[2] = &z->d; values[3] = &z->layers; values[4] = &z->heads; values[5] = &z->kv; values[6] = &z->ff;
    while (*text) {
        size_t n = strcspn(text, "="), m = text[n] ? strcspn(text + n + 1, ",") : 0;
        char number[32];
        uint64_t v = 0;
        if (!text[n] || m >= sizeof number) break;
        memcpy(number, text + n + 1, m);
        number[m] = 0;
        if (n == 4 && memcmp(text, "arch", 4) == 0) {
            if (strcmp(number, "gpt2") != 0 && strcmp(number, "llama") != 0) break;
            z->gpt2 = number[0] == 'g';
        } else {
            for (i = 0; i < 7; i++) if (strlen(names[i]) == n && memcmp(names[i], text, n) == 0) break;
            if (i == 7 || !read_count(number, 1, 1 << 22, &v)) break;
            *values[i] = (size_t)v;
        }
        text += n + 1 + m;
        text += *text == ',';
    }
    if (*text) {
        fprintf(stderr, "prediff: train: --new: '%s' is not NAME=NUMBER; the names are arch (gpt2 or llama), d, layers, heads, kv, ff, ctx\n", text);
        return usage_error("train");
    }
    if (!z->heads) z->heads = z->d >= 64 ? z->d / 32 : 2;
    if (!z->kv) z->kv = z->gpt2 || z->heads % 2 ? z->heads : z->heads / 2;
    if (!z->ff) z->ff = z->gpt2 ? 4 * z->d : 3 * z->d;
    if (z->d % z->heads || z->heads % z->kv || z->d / z->heads % 2) {
        fprintf(stderr, "prediff: train: --new: width %zu, %zu heads and %zu key/value heads do not fit together\n", z->d, z->heads, z->kv);
        return usage_error("train");
    }
    return 0;
}

enum { NEW_KEYS = 10, NEW_NAME = 64 };

typedef struct new_model {
    sizes z;
    const char *arch;
    prediff_key *keys; size_t n_keys;
    uint8_t data[NEW_KEYS][32]; char names[NEW_KEYS][NEW_NAME];
    prediff_tensor *tensors; char (*tensor_names)[NEW_NAME]; size_t n_tensors;
    uint64_t seed;
    training *t;
} new_model;

static void new_key(new_model *m, const char *suffix, uint32_t type, const char *text, uint32_t v) {
    prediff_key *k = &m->keys[m->n_keys];
    size_t n = text ? strlen(text) : 0, i;
    snprintf(m->names[m->n_keys], NEW_NAME, suffix[0] == '.' ? "%s%s" : "%.0s%s", m->arch, suffix);
    k->name.bytes = m->names[m->n_keys];
    k->name.n = strlen(k->name.bytes);
    k->type = k->element = type;
    k->count = 1;
    k->data = m->data[m->n_keys];
    k->data_size = text ? 8 + n : 4;
    for (i = 0; i < 4; i++) m->data[m->n_keys][i] = (uint8_t)((text ? (uint32_t)n : v) >> 8 * i);
    if (text) memcpy(m->data[m->n_keys] + 8, text, n);
    m->n_keys++;
}

static void new_tensor(new_model *m, const char *format, size_t layer, size_t rows, size_t cols) {
    prediff_tensor *t = &m->tensors[m->n_tensors];
    memset(t, 0, sizeof *t);
    snprintf(m->tensor_names[m->n_tensors], NEW_NAME, format, (unsigned)layer);
    t->name.bytes = m->tensor_names[m->n_tensors++];
    t->name.n = strlen(t->name.bytes);
    t->n_dims = rows ? 2 : 1;
    t->dims[0] = cols;
    t->dims[1] = rows ? rows : 1;
    t->dims[2] = t->dims[3] = 1;
}

static void new_linear(new_model *m, const char *name, size_t layer, size_t rows, size_t cols) {
    char format[NEW_NAME];
    snprintf(format, sizeof format, "blk.%%u.%s.weight", name);
    new_tensor(m, format, layer, rows, cols);
    snprintf(format, sizeof format, "blk.%%u.%s.bias", name);
    if (m->z.gpt2) new_tensor(m, format, layer, 0, rows);
}

static void new_norm(new_model *m, const char *name, size_t layer) {
    char format[NEW_NAME];
    snprintf(format, sizeof format, "%s.weight", name);
    new_tensor(m, format, layer, 0, m->z.d);
    snprintf(format, sizeof format, "%s.bias", name);
    if (m->z.gpt2) new_tensor(m, format, layer, 0, m->z.d);
}

/* Norms 1, biases 0, matrices normal with deviation 0.02; those that write to the residual stream smaller by sqrt(2 L), as
   GPT-2's (Radford et al. 2019). */
static int new_row(void *user, size_t tensor, size_t row, float *out) {
    const new_model *m = (const new_model *)user;
    const char *name = m->tensor_names[tensor];
    size_t i, n = (size_t)m->tensors[tensor].dims[0];
    int vector = m->tensors[tensor].n_dims == 1, residual = strstr(name, "attn_output") || strstr(name, "ffn_down");
    double scale = 0.02 / (residual ? sqrt(2.0 * (double)m->z.layers) : 1.0);
    for (i = 0; i < n; i++) {
        double u = prediff_uniform(m->seed, 99, (uint32_t)tensor, (uint32_t)row, (uint32_t)(2 * i));
        double v = prediff_uniform(m->seed, 99, (uint32_t)tensor, (uint32_t)row, (uint32_t)(2 * i + 1));
        out[i] = vector ? (strstr(name, ".weight") ? 1.0f : 0.0f) : (float)(scale * sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v));
    }
    return 0;
}

static int new_bytes(void *user, const void *bytes, size_t n) {
    training *t = ((new_model *)user)->t;
    while (t->new_size + n > t->new_room) {
        size_t room = t->new_room ? 2 * t->new_room : 1 << 20;
        uint8_t *p = (uint8_t *)realloc(t->new_file, room);
        if (!p) return 1;
        t->new_file = p;
        t->new_room = room;
    }
    memcpy(t->new_file + t->new_size, bytes, n);
    t->new_size += n;
    return 0;
}

static void new_list(new_model *m) {
    const sizes *z = &m->z;
    size_t l, kv = z->d / z->heads * z->kv;
    new_key(m, "general.architecture", 8, m->arch, 0);
    new_key(m, ".context_length", 4, NULL, (uint32_t)z->ctx);
    new_key(m, ".embedding_length", 4, NULL, (uint32_t)z->d);
    new_key(m, ".block_count", 4, NULL, (uint32_t)z->layers);
    new_key(m, ".feed_forward_length", 4, NULL, (uint32_t)z->ff);
    new_key(m, ".attention.head_count", 4, NULL, (uint32_t)z->heads);
    new_key(m, ".attention.head_count_kv", 4, NULL, (uint32_t)z->kv);
    new_key(m, z->gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", 6, NULL, 0x3727C5ACu);      /* 1e-5 */
    new_tensor(m, "token_embd.weight", 0, z->vocab, z->d);
    if (z->gpt2) new_tensor(m, "position_embd.weight", 0, z->ctx, z->d);
    for (l = 0; l < z->layers; l++) {
        new_norm(m, "blk.%u.attn_norm", l);
        if (z->gpt2) new_linear(m, "attn_qkv", l, 3 * z->d, z->d);
        else {
            new_linear(m, "attn_q", l, z->d, z->d);
            new_linear(m, "attn_k", l, kv, z->d);
            new_linear(m, "attn_v", l, kv, z->d);
            new_linear(m, "ffn_gate", l, z->ff, z->d);
        }
        new_linear(m, "attn_output", l, z->d, z->d);
        new_norm(m, "blk.%u.ffn_norm", l);
        new_linear(m, "ffn_up", l, z->ff, z->d);
        new_linear(m, "ffn_down", l, z->d, z->ff);
    }
    new_norm(m, "output_norm", 0);
}

/* The first model of --new, with the tokenizer of another file. */
static int make_new(training *t, settings *o) {
    prediff_model_desc d;
    prediff_model *tokenizer = NULL;
    prediff_model_info info;
    prediff_container c;
    prediff_save_desc save;
    prediff_error e;
    new_model m;
    size_t i;
    int status;
    if (!o->s[O_TOKENIZER]) return conflict(o, "--new needs --tokenizer FILE, a GGUF that has one (`prediff tokenizer` trains it)");
    memset(&m, 0, sizeof m);
    memset(&e, 0, sizeof e);
    m.z.d = 128; m.z.layers = 6; m.z.ctx = 256;
    status = read_sizes(o->s[O_NEW], &m.z);
    if (status) return status;
    memset(&d, 0, sizeof d);
    d.path = o->s[O_TOKENIZER];
    d.vocab_only = 1;
    if (prediff_model_open(&tokenizer, &d, &e)) return fail(o->s[O_TOKENIZER], &e);
    prediff_model_get_info(tokenizer, &info);
    prediff_container_get(tokenizer, &c);
    if (!m.z.vocab) m.z.vocab = info.n_tokens;
    m.arch = m.z.gpt2 ? "gpt2" : "llama";
    m.seed = o->u[O_SEED];
    m.t = t;
    m.keys = (prediff_key *)allocate(NEW_KEYS + c.n_keys, sizeof *m.keys);
    m.tensors = (prediff_tensor *)allocate(4 + 16 * m.z.layers, sizeof *m.tensors);
    m.tensor_names = (char (*)[NEW_NAME])allocate(4 + 16 * m.z.layers, NEW_NAME);
    new_list(&m);
    for (i = 0; i < c.n_keys; i++)
        if (c.keys[i].name.n > 10 && memcmp(c.keys[i].name.bytes, "tokenizer.", 10) == 0) m.keys[m.n_keys++] = c.keys[i];
    memset(&save, 0, sizeof save);
    save.keys = m.keys; save.n_keys = m.n_keys;
    save.tensors = m.tensors; save.n_tensors = m.n_tensors;
    save.row = new_row; save.write = new_bytes; save.user = &m;
    status = prediff_save(&save, &e) ? fail("--new", &e) : 0;
    memset(&d, 0, sizeof d);
    d.data = t->new_file; d.size = t->new_size;
    if (!status && prediff_model_open(&t->s.model, &d, &e)) status = fail("--new", &e);
    prediff_model_close(tokenizer);
    free(m.keys); free(m.tensors); free(m.tensor_names);
    return status;
}

/* -- data -- */

static int read_text_ids(training *t, const char *path, int32_t **ids, size_t *n) {
    buffer text = { NULL, 0, 0 };
    int status = read_file(path, &text);
    if (!status) status = encode_stories(&t->s, &text, ids, n);
    free(text.p);
    if (!status && *n < t->ctx + 1) {
        fprintf(stderr, "prediff: train: %s has %zu tokens; at least %zu are needed for a text of --ctx-size %zu (-c N makes it smaller)\n", path, *n, t->ctx + 1, t->ctx);
        status = 1;
    }
    return status;
}

/* Without --valid, the last 3 of 100 tokens are kept for validation. */
static int read_data(training *t, settings *o) {
    size_t keep;
    int status;
    if (!o->s[O_DATA]) return conflict(o, "no text: give one with -d FILE (- is standard input)");
    status = read_text_ids(t, o->s[O_DATA], &t->ids, &t->n_ids);
    if (status) return status;
    if (o->s[O_VALID]) return read_text_ids(t, o->s[O_VALID], &t->valid, &t->n_valid);
    keep = t->n_ids / 33;
    if (keep < t->ctx + 1) keep = t->n_ids > 2 * (t->ctx + 1) ? t->ctx + 1 : 0;
    t->n_ids -= keep;
    t->valid = allocate_ids(keep + 1);
    memcpy(t->valid, t->ids + t->n_ids, keep * sizeof *t->valid);
    t->n_valid = keep;
    return 0;
}

static double chance(const training *t, uint32_t stream, uint64_t n) {
    return prediff_uniform(t->d.seed, 64 + stream, (uint32_t)(n >> 32), (uint32_t)n, 0);
}

/* Crop number n, and where its prompt ends: anywhere, a fifth of them nowhere (so generation without a prompt is learnt too). */
static void draw_text(const training *t, uint64_t n, prediff_sequence *s) {
    size_t most = t->ctx > 32 ? t->ctx - 32 : t->ctx / 2;
    memset(s, 0, sizeof *s);
    s->ids = t->ids + (size_t)(chance(t, 0, n) * (double)(t->n_ids - t->ctx + 1));
    s->n = t->ctx;
    if (t->d.objective == PREDIFF_OBJECTIVE_CAUSAL) s->n_prompt = s->n;
    else if (t->d.attention == PREDIFF_ATTENTION_BIDIRECTIONAL || chance(t, 1, n) < 0.1) s->n_prompt = 0;
    else s->n_prompt = (size_t)(chance(t, 2, n) * (double)most);
    if (s->n_prompt == 0 && t->d.shift) s->n_prompt = 1;
}

/* -- validation: the same windows and masks each time -- */

static int evaluate_kind(training *t, prediff_objective objective, double *nats) {
    size_t windows = t->n_valid / t->ctx, i, k, calls = (size_t)t->s.o->u[O_EVAL_TEXTS];
    double sum = 0, count = 0;
    prediff_train_stats stats;
    prediff_error e;
    memset(&e, 0, sizeof e);
    if (calls < windows) windows = calls;
    for (i = 0; i < windows; i += k) {
        for (k = 0; k < t->batch && i + k < windows; k++) {
            prediff_sequence *s = &t->texts[k];
            memset(s, 0, sizeof *s);
            s->ids = t->valid + (t->n_valid / t->ctx) * (i + k) / windows * t->ctx;
            s->n = t->ctx;
            s->n_prompt = objective == PREDIFF_OBJECTIVE_CAUSAL ? s->n : t->ctx / 2;
        }
        if (prediff_trainer_evaluate(t->t, t->texts, k, objective, 1000 + i, &stats, &e)) return fail("train", &e);
        sum += objective == PREDIFF_OBJECTIVE_CAUSAL ? stats.causal_nats : stats.masked_nats;
        count += objective == PREDIFF_OBJECTIVE_CAUSAL ? stats.causal_rows : stats.masked_rows;
    }
    *nats = count > 0 ? sum / count : 0;
    return 0;
}

static int write_bytes(void *user, const void *bytes, size_t n) { return fwrite(bytes, 1, n, (FILE *)user) != n; }

/* What a checkpoint keeps of this file's own counters, in the trainer's 64 bits for its host: the best loss and the validations
   since. resume_position() takes it apart. */
static uint64_t pack_position(const training *t) {
    uint32_t bits;
    memcpy(&bits, &t->best, 4);
    return (uint64_t)bits << 32 | (uint32_t)t->bad;
}

/* Writes the model or a checkpoint: all of it, or the old file stays. */
static int save_model(training *t, const char *path, int state) {
    static const prediff_type types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0, PREDIFF_Q4_0 };
    char *temporary = with_ending(path, ".tmp");
    FILE *f = fopen(temporary, "wb");
    prediff_error e;
    int status = 0;
    memset(&e, 0, sizeof e);
    if (!f) status = fail_text(temporary, "cannot write the file");
    else if (prediff_trainer_save(t->t, !state && t->d.ema > 0 ? 2 : 0, types[t->s.o->u[O_TYPE]], state, pack_position(t), write_bytes, f, &e)) status = fail(temporary, &e);
    if (f && fclose(f) && !status) status = fail_text(temporary, "cannot write the file");
    if (!status && rename(temporary, path)) status = fail_text(path, "cannot rename the temporary file");
    if (status && f) remove(temporary);
    free(temporary);
    return status;
}

static int save_checkpoint(training *t) {
    char *path = with_ending(t->s.o->s[O_OUT], ".checkpoint");
    int status = save_model(t, path, 1);
    free(path);
    return status;
}

static void log_line(training *t, const char *kind, size_t step, double rate, const prediff_train_stats *s) {
    if (!t->log) return;
    fprintf(t->log, "{\"kind\": \"%s\", \"step\": %zu, \"seconds\": %.1f", kind, step, seconds() - t->began);
    if (s) fprintf(t->log, ", \"loss\": %.6f, \"gradient_norm\": %.5g, \"rate\": %.6g, \"rows\": %zu", s->loss, s->gradient_norm, rate, s->n_rows);
    else fprintf(t->log, ", \"causal_nats\": %.6f, \"nelbo_nats\": %.6f", t->last[0], t->last[1]);
    fputs("}\n", t->log);
    fflush(t->log);
}

/* Validates; keeps the model if it is the best so far. */
static int evaluate(training *t, size_t step) {
    int causal = t->d.objective == PREDIFF_OBJECTIVE_CAUSAL, status;
    float score;
    if (t->n_valid < t->ctx) return save_model(t, t->s.o->s[O_OUT], 0);
    status = evaluate_kind(t, PREDIFF_OBJECTIVE_CAUSAL, &t->last[0]);
    if (!status && !causal) status = evaluate_kind(t, PREDIFF_OBJECTIVE_EXACT_L, &t->last[1]);
    if (status) return status;
    score = (float)t->last[!causal];
    t->bad = score < t->best ? 0 : t->bad + 1;
    if (is_terminal(stderr)) fputs("\r\x1b[K", stderr);
    fprintf(stderr, "step %zu: validation %.4f causal nats a token", step, t->last[0]);
    if (!causal) fprintf(stderr, ", %.4f NELBO", t->last[1]);
    fprintf(stderr, "%s\n", score < t->best ? ", the best so far" : "");
    log_line(t, "validation", step, 0, NULL);
    if (!(score < t->best)) return 0;
    t->best = score;
    return save_model(t, t->s.o->s[O_OUT], 0);
}

/* -- the loop -- */

static double learning_rate(const settings *o, size_t step, size_t n_steps) {
    double warm = (double)o->u[O_WARMUP], end = o->d[O_LR_END], p = (double)step / (double)n_steps, f;
    f = o->u[O_LR_DECAY] == 0 ? 0.5 * (1 + cos(3.141592653589793 * p)) : o->u[O_LR_DECAY] == 1 ? 1 - p : 1;
    if (o->u[O_LR_DECAY] != 2) f = end + (1 - end) * f;
    return o->d[O_LR] * f * (warm > 0 && (double)step < warm ? ((double)step + 1) / warm : 1);
}

#define PROGRESS "step %zu of %zu, loss %.4f, rate %.2e, %.0f tokens/s, %.0f s, %.0f s to go "

static void show_progress(training *t, size_t step, double rate) {
    double spent = seconds() - t->began, each = spent / (double)t->done;
    if (!is_terminal(stderr) && spent < t->told + 60) return;   /* in a file: a line a minute */
    t->told = spent;
    fprintf(stderr, is_terminal(stderr) ? "\r" PROGRESS "\x1b[K" : PROGRESS "\n", step, t->n_steps, t->loss / t->loss_weight, rate,
            (double)t->rows / spent, spent, each * (double)(t->n_steps - step));
    fflush(stderr);
}

static int train_step(training *t, size_t step) {
    double rate = learning_rate(t->s.o, step, t->n_steps);
    prediff_train_stats stats;
    prediff_error e;
    prediff_status status = PREDIFF_OK;
    size_t i, k;
    memset(&e, 0, sizeof e);
    prediff_trainer_get_stats(t->t, &stats);
    if (t->s.o->u[O_ANNEAL]) prediff_trainer_anneal(t->t, fmin(1, (double)(step + 1) / (double)t->s.o->u[O_ANNEAL]));
    for (i = 0; i < t->accumulate && !status; i++) {
        for (k = 0; k < t->batch; k++) draw_text(t, stats.n_texts + k, &t->texts[k]);
        status = prediff_trainer_gradient(t->t, t->texts, t->batch, &stats, &e);
    }
    if (!status) status = prediff_trainer_update(t->t, rate, &stats, &e);
    t->rows += stats.n_rows;
    if (status == PREDIFF_ERR_NUMERIC) fprintf(stderr, "%sprediff: train: step %zu: %s\n", is_terminal(stderr) ? "\r\x1b[K" : "", step + 1, e.message);
    else if (status) return fail("train", &e);
    else {
        t->loss = 0.95 * t->loss + 0.05 * stats.loss;
        t->loss_weight = 0.95 * t->loss_weight + 0.05;
        log_line(t, "step", step + 1, rate, &stats);
    }
    t->done++;
    show_progress(t, step + 1, rate);
    return 0;
}

static int train_loop(training *t, size_t step) {
    settings *o = t->s.o;
    size_t every = (size_t)o->u[O_EVAL_EVERY], save = (size_t)o->u[O_SAVE_EVERY];
    int status = 0, over = 0, early;
    t->began = seconds();
    signal(SIGINT, on_interrupt);
    for (; step < t->n_steps && !status && !interrupted && !over; ) {
        status = train_step(t, step++);
        if (!status && every && step % every == 0) {
            status = evaluate(t, step);
            over = o->u[O_PATIENCE] && t->bad >= o->u[O_PATIENCE];
        }
        over |= o->d[O_MINUTES] > 0 && seconds() - t->began > 60 * o->d[O_MINUTES];
        if (!status && save && step % save == 0) status = save_checkpoint(t);
    }
    if (is_terminal(stderr)) fputs("\r\x1b[K", stderr);
    /* a look that an unbroken run would not take stays out of the checkpoint: resumed, it judges as the unbroken one */
    early = step < t->n_steps;
    if (!status && early) status = save_checkpoint(t);
    if (!status && (!every || step % every)) status = evaluate(t, step);
    if (!status && !early) status = save_checkpoint(t);
    if (!status) fprintf(stderr, "%s at step %zu of %zu: %s holds the best model, %s.checkpoint the state to --resume from\n",
                         interrupted ? "interrupted" : over ? "stopped early" : "done", step, t->n_steps, o->s[O_OUT], o->s[O_OUT]);
    return interrupted && !status ? 1 : status;
}

/* -- settings -- */

/* "mask,rate,selfcond,noise=16" */
static int read_additions(training *t, settings *o) {
    const char *p = o->s[O_ADD] ? o->s[O_ADD] : t->d.objective == PREDIFF_OBJECTIVE_CAUSAL ? "" : "mask,rate,selfcond";
    while (*p) {
        size_t n = strcspn(p, ",");
        uint64_t size = 0;
        char word[32];
        if (n < sizeof word) { memcpy(word, p, n); word[n] = 0; }
        else word[0] = 0;
        if (strcmp(word, "mask") == 0) t->d.add_mask = 1;
        else if (strcmp(word, "rate") == 0) t->d.add_rate = 1;
        else if (strcmp(word, "selfcond") == 0) t->d.add_selfcond = 1;
        else if (strncmp(word, "noise=", 6) == 0 && read_count(word + 6, 1, 1 << 16, &size)) t->d.add_noise = (size_t)size;
        else if (strcmp(word, "none") != 0) return conflict(o, "--add takes mask, rate, selfcond, noise=N, with commas between, or none");
        p += n + (p[n] == ',');
    }
    return 0;
}

static int train_desc(training *t, settings *o) {
    prediff_train_desc *d = &t->d;
    memset(d, 0, sizeof *d);
    d->objective = (prediff_objective)o->u[O_OBJECTIVE];
    d->attention = o->u[O_ANNEAL] ? PREDIFF_ATTENTION_BIDIRECTIONAL : (prediff_attention)o->u[O_ATTENTION];
    d->rates = (prediff_rates)o->u[O_RATES];
    d->shift = (int)o->u[O_SHIFT] || d->objective == PREDIFF_OBJECTIVE_DIFFUGPT;
    d->causal_weight = o->d[O_CAUSAL_WEIGHT];
    d->selfcond = o->d[O_P_SELFCOND];
    d->complementary = (int)o->u[O_COMPLEMENTARY];
    d->n_blocks = (size_t)o->u[O_BLOCKS];
    d->block_max = o->u[O_BLOCK] ? (size_t)o->u[O_BLOCK] : 16;
    d->block_min = d->block_max < 4 ? d->block_max : 4;
    d->recompute = (int)o->u[O_RECOMPUTE];
    d->beta2 = o->d[O_BETA2];
    d->weight_decay = o->d[O_WEIGHT_DECAY];
    d->clip = o->d[O_CLIP];
    d->ema = o->d[O_EMA];
    d->seed = o->u[O_SEED];
    d->isa = (prediff_isa)o->u[O_ISA];
    d->n_threads = o->given[O_THREADS] ? (int)o->u[O_THREADS] : usable_cores();
    return read_additions(t, o);
}

/* Goes on from OUT.checkpoint where --resume asks for it and one is there. */
static int open_start(training *t, settings *o) {
    char *checkpoint = with_ending(o->s[O_OUT], ".checkpoint");
    FILE *f = o->u[O_RESUME] ? fopen(checkpoint, "rb") : NULL;
    int status;
    t->s.o = o;
    if (f) {
        fclose(f);
        o->s[O_MODEL] = checkpoint;                             /* lives until the program ends */
        t->d.resume = 1;
        return open_model(&t->s, o);
    }
    free(checkpoint);
    if (o->s[O_NEW] && o->s[O_MODEL]) return conflict(o, "--new and -m exclude each other");
    if (!o->s[O_NEW]) return open_model(&t->s, o);
    status = make_new(t, o);
    if (!status) prediff_model_get_info(t->s.model, &t->s.info);
    return status;
}

static int create_trainer(training *t, settings *o) {
    prediff_error e;
    size_t bytes, copies = t->d.complementary ? 2 : 1, i;
    uint64_t n = 0;
    prediff_container c;
    memset(&e, 0, sizeof e);
    t->d.init = t->s.model;
    t->ctx = o->u[O_CTX] ? (size_t)o->u[O_CTX] : t->s.info.n_ctx < 512 ? t->s.info.n_ctx : 512;
    t->batch = (size_t)o->u[O_BATCH];
    t->accumulate = (size_t)o->u[O_ACCUMULATE];
    t->n_steps = (size_t)o->u[O_STEPS] ? (size_t)o->u[O_STEPS] : 1000;
    t->d.n_ctx = t->ctx;
    t->d.max_rows = t->batch * (copies * t->ctx + t->d.n_blocks * t->d.block_max);
    t->texts = (prediff_sequence *)allocate(t->batch, sizeof *t->texts);
    if (prediff_trainer_size(&t->d, &bytes, &e)) return fail("train", &e);
    fprintf(stderr, "%zu texts of %zu tokens a step; the trainer takes %.0f MB\n", t->batch * t->accumulate, t->ctx, (double)bytes / 1e6);
    if (prediff_trainer_create(&t->t, &t->d, &e)) return fail("train", &e);
    prediff_trainer_tensors(t->t, 0, &c);
    for (i = 0; i < c.n_tensors; i++) n += c.tensors[i].dims[0] * c.tensors[i].dims[1];
    fprintf(stderr, "%llu parameters; ", (unsigned long long)n);
    return 0;
}

/* Where a resumed run goes on: the trainer's counters, and what pack_position() wrote. */
static size_t resume_position(training *t) {
    prediff_train_stats stats;
    float best;
    uint32_t bits;
    t->best = (float)HUGE_VAL;
    prediff_trainer_get_stats(t->t, &stats);
    bits = (uint32_t)(stats.position >> 32);
    memcpy(&best, &bits, 4);
    if (t->d.resume && best > 0) {
        t->best = best;
        t->bad = (uint32_t)stats.position;
    }
    return (size_t)stats.n_steps;
}

static void print_training(const training *t) {
    if (!t->s.o->u[O_JSON]) return;
    printf("{\"out\": ");
    json_string(t->s.o->s[O_OUT], strlen(t->s.o->s[O_OUT]));
    json_count("steps", t->done);
    json_number("loss", t->loss / t->loss_weight);
    json_number("causal_nats", t->last[0]);
    json_number("nelbo_nats", t->last[1]);
    json_number("best", t->best);
    json_number("seconds", seconds() - t->began);
    json_number("tokens_per_second", (double)t->rows / (seconds() - t->began));
    puts("}");
}

static int same_file(const char *a, const char *b) {
#if HAVE_POSIX
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
#else
    return a && b && strcmp(a, b) == 0;
#endif
}

static int file_exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* What is there is not lost by a forgotten flag. */
static int check_old_output(settings *o) {
    const char *out = o->s[O_OUT];
    char *checkpoint = with_ending(out, ".checkpoint");
    int old = file_exists(out) || file_exists(checkpoint), status = 0;
    if (same_file(out, o->s[O_DATA]) || same_file(out, o->s[O_VALID]) || same_file(checkpoint, o->s[O_DATA])) status = fail_text(out, "the output is the text to learn from");
    else if (old && !o->u[O_RESUME] && !o->u[O_FORCE]) status = fail_text(out, "exists, or its .checkpoint does: --resume goes on, --force starts over");
    else if (o->u[O_RESUME] && !file_exists(checkpoint)) fprintf(stderr, "prediff: train: there is no %s: beginning anew\n", checkpoint);
    free(checkpoint);
    return status;
}

/* Found out before hours of work, not after. */
static int check_output(settings *o) {
    char *path;
    FILE *f;
    int status;
    if (!o->s[O_OUT]) return conflict(o, "no output: give one with -o FILE");
    status = check_old_output(o);
    if (status) return status;
    path = with_ending(o->s[O_OUT], ".tmp");
    f = fopen(path, "wb");
    status = f ? 0 : fail_text(path, "cannot write the file");
    if (f) { fclose(f); remove(path); }
    free(path);
    return status;
}

static int run_train(settings *o) {
    training t;
    int status = check_output(o);
    size_t step = 0;
    memset(&t, 0, sizeof t);
    if (!status) status = train_desc(&t, o);
    if (!status) status = open_start(&t, o);
    if (!status) status = create_trainer(&t, o);
    if (!status) status = read_data(&t, o);
    if (!status && o->s[O_LOG]) {
        t.log = fopen(o->s[O_LOG], t.d.resume ? "a" : "w");
        if (!t.log) status = fail_text(o->s[O_LOG], "cannot write the file");
    }
    if (!status) {
        step = resume_position(&t);
        fprintf(stderr, "%zu tokens of text, %zu of validation%s\n", t.n_ids, t.n_valid, t.d.resume ? "; going on" : "");
        status = train_loop(&t, step);
        print_training(&t);
    }
    if (t.log) fclose(t.log);
    prediff_trainer_destroy(t.t);
    close_session(&t.s);
    free(t.new_file); free(t.ids); free(t.valid); free(t.texts);
    return status;
}
