/* SPDX-License-Identifier: MIT
 * Fuzz target: config.json, from its text to GGUF keys.
 */
#include "fuzz_convert.h"

static void fuzz(const uint8_t *data, size_t n) {
    cv_pool p = { NULL };
    cv_error e;
    cv_config c;
    cv_keys keys;
    char *text = pd_exactly(data, n);
    memset(&keys, 0, sizeof keys);
    if (fuzz_result(cv_config_read(&p, "fuzz", text, n, &c, &e), &e)) {
        must("a family", c.family != NULL);
        must("sizes are not 0", c.n_embd && c.n_layer && c.n_head && c.n_head_kv && c.head_dim && c.n_ff && c.n_vocab && c.n_ctx);
        must("heads are shared evenly", c.n_head % c.n_head_kv == 0);
        must("numbers are finite", pdi_is_finite_double(&c.eps) && pdi_is_finite_double(&c.rope_base) && pdi_is_finite_double(&c.rope_factor));
        must("ids", c.bos >= -1 && c.eos >= -1 && c.pad >= -1 && c.mask >= -1);
        if (fuzz_result(cv_config_keys(&p, &c, "fuzz", &keys, &e), &e)) must("keys", keys.n >= 8);
    }
    cv_pool_free(&p);
    free(text);
}
