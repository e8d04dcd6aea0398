/* SPDX-License-Identifier: MIT
 * The trainer for train.py: train_probe MODEL JSON. Standard output: the loss, then per tensor its name, its size and its floats.
 */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include "../pd_json.h"

static int fail(const prediff_error *e) { fprintf(stderr, "train_probe: %s\n", e->message); return 1; }

int main(int argc, char **argv) {
    pd_json *j = argc > 2 ? pd_json_read(argv[2]) : NULL;
    const pd_json *texts = pd_json_get(j, "texts"), *x;
    prediff_sequence s[8];
    float rates[8];
    prediff_model *m = NULL;
    prediff_model_desc md;
    prediff_train_desc d;
    prediff_trainer *t;
    prediff_train_stats st;
    prediff_container c;
    prediff_error e;
    double loss;
    size_t n = 0, got, i, steps = (size_t)pd_json_number(j, "steps");
    memset(&md, 0, sizeof md); memset(&d, 0, sizeof d); memset(&e, 0, sizeof e); memset(s, 0, sizeof s);
    if (!texts || texts->n > 8) { fprintf(stderr, "train_probe: no texts\n"); return 1; }
    md.path = argv[1];
    if (prediff_model_open(&m, &md, &e)) return fail(&e);
    for (x = texts->child; x; x = x->next, n++) {
        s[n].ids = pd_json_ints(pd_json_get(x, "ids"), &s[n].n);
        s[n].n_prompt = (size_t)pd_json_number(x, "prompt");
        s[n].input = pd_json_ints(pd_json_get(x, "input"), &got);
        rates[n] = (float)pd_json_number(x, "rate");
        s[n].rate = &rates[n];
        if (pd_json_get(x, "soft")) s[n].soft = pd_json_floats(pd_json_get(x, "soft"), &got);
        if (pd_json_get(x, "noise")) s[n].noise = pd_json_floats(pd_json_get(x, "noise"), &got);
    }
    d.init = m;
    d.max_rows = 256; d.n_threads = 2;
    d.objective = (prediff_objective)(int)pd_json_number(j, "objective");
    d.attention = (prediff_attention)(int)pd_json_number(j, "attention");
    d.shift = (int)pd_json_number(j, "shift");
    d.causal_weight = pd_json_number(j, "causal_weight");
    d.weight_decay = pd_json_number(j, "weight_decay");
    d.clip = pd_json_number(j, "clip");
    if (prediff_trainer_create(&t, &d, &e)) return fail(&e);
    for (i = 0; i < steps; i++) {
        if (prediff_trainer_gradient(t, s, n, &st, &e)) return fail(&e);
        if (prediff_trainer_update(t, pd_json_number(j, "learning_rate"), &st, &e)) return fail(&e);
    }
    if (!steps && prediff_trainer_gradient(t, s, n, &st, &e)) return fail(&e);
    loss = st.loss;
    if (!steps) prediff_trainer_tensors(t, 1, &c);
    else prediff_trainer_tensors(t, 0, &c);
    printf("%.9g %.9g\n", loss, st.masked_rows + (d.objective == PREDIFF_OBJECTIVE_CAUSAL ? 1 : d.causal_weight) * st.causal_rows);
    for (i = 0; i < c.n_tensors; i++) {
        printf("%.*s %lu\n", (int)c.tensors[i].name.n, c.tensors[i].name.bytes, (unsigned long)(c.tensors[i].data_size / 4));
        fwrite(c.tensors[i].data, 1, c.tensors[i].data_size, stdout);
    }
    prediff_trainer_destroy(t);
    prediff_model_close(m);
    return 0;
}
