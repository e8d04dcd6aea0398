/* SPDX-License-Identifier: MIT
 * The arithmetic: every kernel of every kernel set this machine can run against plain loops in double, at sizes around
 * every vector width, at unaligned addresses, between guards; number formats; the random generator.
 */
#define PREDIFF_IMPLEMENTATION
#define PREDIFF_STATIC
#include "prediff.h"
#include "pd_test.h"
#include <float.h>

enum { GUARD = 24, PANEL = 32, PRODUCT_WORK = 32 * 256 * 2, KEYS = 64, QUERIES = 32 };   /* the last four: as in the header, which undefines its macros */
static const size_t sizes[] = { 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257 };
#define N_SIZES (sizeof sizes / sizeof *sizes)
static const uint32_t block_types[] = { PREDIFF_Q8_0, PREDIFF_Q4_0, PREDIFF_Q4_1, PREDIFF_Q4_K, PREDIFF_Q6_K };
static const uint32_t all_types[] = { PREDIFF_F32, PREDIFF_F16, PREDIFF_BF16, PREDIFF_Q8_0, PREDIFF_Q4_0, PREDIFF_Q4_1, PREDIFF_Q4_K, PREDIFF_Q6_K };

/* -- helpers -- */

static uint32_t lcg_state = 1;
static uint32_t lcg(void) { lcg_state = lcg_state * 1664525u + 1013904223u; return lcg_state >> 8; }
static float lcg_float(float scale) { return ((float)(lcg() & 0xFFFFu) / 32768.0f - 1.0f) * scale; }
static void fill(float *x, size_t n, float scale) { size_t i; for (i = 0; i < n; i++) x[i] = lcg_float(scale); }

/* A float array that begins `off` floats after the start of a heap block and ends with its last byte; the front guard is
   filled with a pattern, what lies behind belongs to nobody (ASan). */
static float *guarded(size_t n, size_t off) {
    float *p = (float *)malloc((GUARD + off + n) * sizeof *p);
    size_t i;
    if (!p) abort();
    for (i = 0; i < GUARD + off + n; i++) p[i] = 12345.0f;
    return p + GUARD + off;
}
static int guard_kept(const float *p, size_t off) {
    size_t i;
    for (i = 1; i <= GUARD + off; i++) if (p[-(ptrdiff_t)i] != 12345.0f) return 0;
    return 1;
}
static void release(float *p, size_t off) { free(p - GUARD - off); }

static uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
/* Floats as files hold them: little-endian, whatever this machine is. */
static void put_float(uint8_t *p, float f) { uint32_t u = bits(f); p[0] = (uint8_t)u; p[1] = (uint8_t)(u >> 8); p[2] = (uint8_t)(u >> 16); p[3] = (uint8_t)(u >> 24); }
static float get_float(const uint8_t *p) { return from_bits((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24); }
static int same_bits(const float *a, const float *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

/* Kernel sets of this machine. */
static size_t kernel_sets(const pdi_kernels **out) {
    size_t n = 0;
    int i;
    for (i = PREDIFF_ISA_SCALAR; i < PREDIFF_ISA_COUNT; i++)
        if (prediff_isa_available((prediff_isa)i)) out[n++] = pdi_kernels_of((prediff_isa)i);
    return n;
}

/* -- block formats once more, from their description, in double -- */

static double ref_half(unsigned h) {
    double sign = h & 0x8000u ? -1.0 : 1.0;
    unsigned e = h >> 10 & 31u, f = h & 1023u;
    if (e == 31) return f ? (double)NAN : sign * HUGE_VAL;
    return e ? sign * ldexp(1024.0 + f, (int)e - 25) : sign * ldexp((double)f, -24);
}
static unsigned u16_at(const uint8_t *p) { return p[0] | (unsigned)p[1] << 8; }

static void ref_q4k(const uint8_t *p, double *out) {
    double d = ref_half(u16_at(p)), m = ref_half(u16_at(p + 2));
    int j, i;
    for (j = 0; j < 8; j++) {
        const uint8_t *s = p + 4, *q = p + 16 + 32 * (j / 2);
        int scale = j < 4 ? s[j] % 64 : s[j + 4] % 16 + 16 * (s[j - 4] / 64);
        int less = j < 4 ? s[j + 4] % 64 : s[j + 4] / 16 + 16 * (s[j] / 64);
        for (i = 0; i < 32; i++) out[32 * j + i] = d * scale * (j % 2 ? q[i] / 16 : q[i] % 16) - m * less;
    }
}

static void ref_q6k(const uint8_t *p, double *out) {
    double d = ref_half(u16_at(p + 208));
    int i;
    for (i = 0; i < 256; i++) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint8_t *low = p + 64 * half + (quarter % 2 ? 32 : 0) + l;
        int nibble = quarter < 2 ? *low % 16 : *low / 16;
        int high = p[128 + 32 * half + l] >> 2 * quarter & 3;
        int scale = p[192 + i / 16] < 128 ? p[192 + i / 16] : p[192 + i / 16] - 256;
        out[i] = d * scale * (nibble + 16 * high - 32);
    }
}

static void ref_dequantize(uint32_t type, const uint8_t *p, double *out, size_t n) {
    size_t i, j;
    for (i = 0; i < n; ) {
        switch (type) {
        case PREDIFF_F32: out[i] = (double)get_float(p + 4 * i); i++; break;
        case PREDIFF_F16: out[i] = ref_half(u16_at(p + 2 * i)); i++; break;
        case PREDIFF_BF16: out[i] = from_bits((uint32_t)u16_at(p + 2 * i) << 16); i++; break;
        case PREDIFF_Q8_0:
            for (j = 0; j < 32; j++) out[i + j] = ref_half(u16_at(p)) * (p[2 + j] < 128 ? p[2 + j] : p[2 + j] - 256);
            i += 32; p += 34; break;
        case PREDIFF_Q4_0:
            for (j = 0; j < 32; j++) out[i + j] = ref_half(u16_at(p)) * ((j < 16 ? p[2 + j] % 16 : p[2 + j - 16] / 16) - 8);
            i += 32; p += 18; break;
        case PREDIFF_Q4_1:
            for (j = 0; j < 32; j++) out[i + j] = ref_half(u16_at(p)) * (j < 16 ? p[4 + j] % 16 : p[4 + j - 16] / 16) + ref_half(u16_at(p + 2));
            i += 32; p += 20; break;
        case PREDIFF_Q4_K: ref_q4k(p, out + i); i += 256; p += 144; break;
        default: ref_q6k(p, out + i); i += 256; p += 210; break;
        }
    }
}

/* Random weights of a type: any byte is a valid block, but scales must be finite and of ordinary size. */
static void random_rows(uint32_t type, uint8_t *p, size_t n) {
    const pdi_type_info *t = pdi_type_of(type);
    size_t b, i, blocks = n / t->block;
    float f;
    uint32_t u;
    for (b = 0; b < blocks; b++, p += t->bytes) {
        size_t at = type == PREDIFF_Q6_K ? 208 : 0, halves = type == PREDIFF_Q4_1 || type == PREDIFF_Q4_K ? 2 : 1;
        if (type == PREDIFF_F32) { put_float(p, lcg_float(1.0f)); continue; }
        if (type == PREDIFF_BF16) { f = lcg_float(1.0f); u = bits(f) >> 16; p[0] = (uint8_t)u; p[1] = (uint8_t)(u >> 8); continue; }
        for (i = 0; i < t->bytes; i++) p[i] = (uint8_t)lcg();
        for (i = 0; i < halves; i++) {                          /* a half of size 2^-10 .. 2^-5, either sign */
            u = (lcg() & 0x83FFu) | (5u + lcg() % 6u) << 10;
            p[at + 2 * i] = (uint8_t)u; p[at + 2 * i + 1] = (uint8_t)(u >> 8);
        }
    }
}

/* -- dequantisation -- */

static void check_dequantize(const pdi_kernels *k, uint32_t type, size_t n, size_t off) {
    size_t bytes = n / pdi_type_of(type)->block * pdi_type_of(type)->bytes, i, wrong = 0;
    uint8_t *src = (uint8_t *)malloc(bytes + off);
    float *out = guarded(n, off);
    double *ref = (double *)malloc(n * sizeof *ref);
    random_rows(type, src + off, n);
    k->dequantize(type, src + off, out, n);
    ref_dequantize(type, src + off, ref, n);
    for (i = 0; i < n; i++) wrong += !(out[i] == (float)ref[i]);       /* the double is exact: one rounding is allowed */
    PD_CHECKF(wrong == 0, "%s %s n=%zu: %zu of %zu values wrong", prediff_isa_name(k->isa), prediff_type_name(type), n, wrong, n);
    PD_CHECK(guard_kept(out, off));
    release(out, off); free(src); free(ref);
}

static void test_dequantize(void) {
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, i, t;
    for (s = 0; s < n; s++) {
        for (i = 0; i < N_SIZES; i++) for (t = 0; t < 3; t++) check_dequantize(set[s], all_types[t], sizes[i], i % 4);
        for (i = 1; i < 6; i++) for (t = 0; t < 3; t++) check_dequantize(set[s], block_types[t], 32 * i, i % 4);
        for (i = 1; i < 4; i++) for (t = 3; t < 5; t++) check_dequantize(set[s], block_types[t], 256 * i, i % 4);
    }
}

/* All 65,536 halves and bfloats, by every set. */
static void test_sixteen_bit_all(void) {
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, wrong;
    uint32_t u;
    static uint8_t src[65536 * 2];
    static float out[65536];
    for (u = 0; u < 65536; u++) { src[2 * u] = (uint8_t)u; src[2 * u + 1] = (uint8_t)(u >> 8); }
    for (s = 0; s < n; s++) {
        set[s]->dequantize(PREDIFF_F16, src, out, 65536);
        for (u = wrong = 0; u < 65536; u++) {
            double r = ref_half(u);
            wrong += r != r ? (bits(out[u]) & 0x7FFFFFFFu) <= 0x7F800000u : bits(out[u]) != bits((float)r);
        }
        PD_CHECKF(wrong == 0, "%s: %zu halves wrong", prediff_isa_name(set[s]->isa), wrong);
        set[s]->dequantize(PREDIFF_BF16, src, out, 65536);
        for (u = wrong = 0; u < 65536; u++) wrong += bits(out[u]) != u << 16;
        PD_CHECKF(wrong == 0, "%s: %zu bfloats wrong", prediff_isa_name(set[s]->isa), wrong);
    }
}

/* To a format of p fraction bits and least exponent emin, rounding to nearest even, in double. */
static double ref_round(double x, int fraction, int emin, double overflow) {
    int e;
    double q, r;
    if (x != x || x == 0 || x - x != 0) return x;
    frexp(x, &e);
    q = ldexp(1.0, (e - 1 < emin ? emin : e - 1) - fraction);
    r = nearbyint(x / q) * q;                                   /* half goes to even */
    return fabs(r) >= overflow ? (x < 0 ? -HUGE_VAL : HUGE_VAL) : r;
}

static void check_narrow(float f) {
    double h = ref_half(pdi_float_to_half(&f)), rh = ref_round((double)f, 10, -14, 65536.0);
    double b = (double)from_bits(pdi_float_to_bfloat(&f) << 16), rb = ref_round((double)f, 7, -126, ldexp(1.0, 128));
    PD_CHECKF(h == rh, "float %a to half gives %a, not %a", (double)f, h, rh);
    PD_CHECKF(b == rb, "float %a to bfloat gives %a, not %a", (double)f, b, rb);
}

static void test_narrowing(void) {
    uint32_t h, step;
    float f;
    for (h = 0; h < 0x7C00u; h += 7) {                           /* each half, the tie above it, and the tie's neighbours */
        float lo = (float)ref_half(h), hi = h == 0x7BFFu ? 65536.0f : (float)ref_half(h + 1), tie = lo + (hi - lo) * 0.5f;
        check_narrow(lo); check_narrow(tie); check_narrow(-tie);
        check_narrow(nextafterf(tie, 1e30f)); check_narrow(nextafterf(tie, -1e30f));
    }
    check_narrow(65519.996f); check_narrow(65520.0f); check_narrow(-65520.0f); check_narrow(65504.0f); check_narrow(FLT_MAX);
    check_narrow(2.98023224e-8f); check_narrow(2.98023259e-8f); check_narrow(5.9604645e-8f); check_narrow(1e-40f); check_narrow(1e-45f);
    for (h = 0; h < 0x7F80u; h += 11)                            /* bfloats and their ties, denormals included */
        for (step = 0; step < 5; step++) check_narrow(from_bits((h << 16) + (step == 0 ? 0 : 0x7FFEu + step)));
    for (step = 0; step < 20000; step++) { f = from_bits(lcg() << 8 ^ lcg()); if (f - f == 0) check_narrow(f); }
    f = HUGE_VALF;
    PD_CHECK(pdi_float_to_half(&f) == 0x7C00u && pdi_float_to_bfloat(&f) == 0x7F80u);
    f = -HUGE_VALF;
    PD_CHECK(pdi_float_to_half(&f) == 0xFC00u && pdi_float_to_bfloat(&f) == 0xFF80u);
    f = from_bits(0x7F800001u);                                  /* a not-a-number whose upper bits alone would be infinity */
    PD_CHECK((pdi_float_to_half(&f) & 0x7FFFu) > 0x7C00u && (pdi_float_to_bfloat(&f) & 0x7FFFu) > 0x7F80u);
}

/* -- products -- */

typedef struct product_case { size_t m, n, k, off; uint32_t type; int bias, mix; } product_case;

static void run_product(const pdi_kernels *k, const pdi_product *p, int mix, size_t pieces, float *work) {
    size_t unit = mix ? pdi_max(PANEL, pdi_type_of(p->type)->block) : k->panel, i, begin, end;
    for (i = 0; i < pieces; i++) {
        pdi_range(pdi_ceil_div(p->n, unit), i, pieces, &begin, &end);
        (mix ? k->mix : k->product)(p, begin, end, work);
    }
}

/* One product on one set: error against double, guards, gaps between rows untouched, one row alone and cut panels bit for bit.
   out [m][n] gets the result. */
static void check_product(const pdi_kernels *k, const product_case *c, float *out) {
    size_t rows = c->mix ? c->k : c->n, width = c->mix ? c->n : c->k, i, j, r, ldx = c->k + 3, ldy = c->n + 5, wrong = 0, moved = 0;
    size_t row_bytes = width / pdi_type_of(c->type)->block * pdi_type_of(c->type)->bytes;
    uint8_t *w = (uint8_t *)malloc(rows * row_bytes + c->off) + c->off;
    double *dw = (double *)malloc(rows * width * sizeof *dw), worst = 0;
    float *x = guarded(c->m * ldx, c->off), *y = guarded(c->m * ldy, c->off), *bias = guarded(c->n, c->off), *again = guarded(c->n, 1);
    float *work = (float *)malloc(PRODUCT_WORK * sizeof *work);
    pdi_product p;
    lcg_state = pd_seed + (uint32_t)(c->m * 7919 + c->n * 104729 + c->k + c->type);
    for (i = 0; i < rows; i++) { random_rows(c->type, w + i * row_bytes, width); ref_dequantize(c->type, w + i * row_bytes, dw + i * width, width); }
    fill(x, c->m * ldx, 1.0f);
    fill(bias, c->n, 1.0f);
    p.x = x; p.ldx = ldx; p.y = y; p.ldy = ldy; p.m = c->m; p.n = c->n; p.k = c->k;
    p.w = w; p.type = c->type; p.row_bytes = row_bytes; p.bias = c->bias ? bias : NULL; p.add = p.turned = 0;
    run_product(k, &p, c->mix, 1, work);
    for (i = 0; i < c->m; i++) {
        for (j = 0; j < c->n; j++) {
            double s = c->bias ? (double)bias[j] : 0, size = fabs(s), err;
            for (r = 0; r < c->k; r++) { double t = (double)x[i * ldx + r] * (c->mix ? dw[r * width + j] : dw[j * width + r]); s += t; size += fabs(t); }
            err = fabs((double)y[i * ldy + j] - s) / (size * (double)(c->k + 2) + 1e-30);
            if (!(err < 6.0e-8)) wrong++;
            if (err > worst) worst = err;
            out[i * c->n + j] = y[i * ldy + j];
        }
        for (j = c->n; j < ldy; j++) moved += y[i * ldy + j] != 12345.0f;
    }
    PD_CHECKF(wrong == 0, "%s %s %s m=%zu n=%zu k=%zu: %zu wrong, worst %g", prediff_isa_name(k->isa), c->mix ? "mix" : "product", prediff_type_name(c->type), c->m, c->n, c->k, wrong, worst);
    PD_CHECKF(moved == 0 && guard_kept(y, c->off), "%s m=%zu n=%zu k=%zu writes outside", prediff_isa_name(k->isa), c->m, c->n, c->k);
    p.m = 1; p.y = again;
    for (i = 0; i < c->m; i++) {                                /* each row alone, the panels in three pieces */
        p.x = x + i * ldx;
        run_product(k, &p, c->mix, 3, work);
        moved += !same_bits(again, out + i * c->n, c->n);
    }
    PD_CHECKF(moved == 0, "%s %s m=%zu n=%zu k=%zu: %zu rows differ when alone", prediff_isa_name(k->isa), prediff_type_name(c->type), c->m, c->n, c->k, moved);
    free(w - c->off); free(dw); free(work);
    release(x, c->off); release(y, c->off); release(bias, c->off); release(again, 1);
}

/* On every set; AVX2, AVX-512 and NEON must agree to the bit. */
static void check_product_sets(const product_case *c) {
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s;
    float *out = (float *)malloc(c->m * c->n * sizeof *out), *first = (float *)malloc(c->m * c->n * sizeof *first);
    int have = 0;
    for (s = 0; s < n; s++) {
        check_product(set[s], c, out);
        if (set[s]->isa == PREDIFF_ISA_SCALAR) continue;
        if (have) PD_CHECKF(same_bits(out, first, c->m * c->n), "%s differs in bits: %s m=%zu n=%zu k=%zu", prediff_isa_name(set[s]->isa), prediff_type_name(c->type), c->m, c->n, c->k);
        else memcpy(first, out, c->m * c->n * sizeof *out);
        have = 1;
    }
    free(out); free(first);
}

static void test_product_sizes(void) {
    static const size_t ms[] = { 1, 2, 3, 5, 7, 8, 11, 12, 13, 16, 17, 24, 31, 33 };
    product_case c;
    size_t i, j;
    for (i = 0; i < N_SIZES; i++) for (j = 0; j < N_SIZES; j++) {
        c.m = ms[(i * N_SIZES + j) % (sizeof ms / sizeof *ms)];
        c.n = sizes[i]; c.k = sizes[j];
        c.off = (i + j) % 4;
        c.bias = (i ^ j) & 1; c.mix = 0;
        c.type = all_types[(i + 2 * j) % 3];
        check_product_sets(&c);
        c.bias = 0; c.mix = 1;
        check_product_sets(&c);
    }
}

static void test_product_rows(void) {                           /* every row count up to 40, over a chunk boundary of k */
    product_case c;
    memset(&c, 0, sizeof c);
    c.n = 37; c.k = 300; c.type = PREDIFF_F32; c.off = 1; c.bias = 1;
    for (c.m = 1; c.m <= 40; c.m++) check_product_sets(&c);
}

static void test_product_blocks(void) {
    static const size_t ns[] = { 1, 7, 16, 31, 33, 65 }, ks[] = { 32, 64, 96, 256, 288, 544 };
    product_case c;
    size_t t, i, j;
    for (t = 0; t < 5; t++) for (i = 0; i < 6; i++) for (j = 0; j < 6; j++) {
        size_t block = pdi_type_of(block_types[t])->block;
        if (ks[j] % block && j > 2) continue;
        c.type = block_types[t]; c.m = 1 + (i * 5 + j * 3) % 14; c.n = ns[i]; c.k = block == 256 ? 256 * (1 + j % 3) : ks[j];
        c.off = j % 4; c.bias = i & 1; c.mix = 0;
        check_product_sets(&c);
        c.mix = 1; c.bias = 0;
        c.n = block == 256 ? 256 * (1 + j % 2) : ks[j]; c.k = 1 + 13 * i;
        check_product_sets(&c);
    }
}

/* -- element by element -- */

static float awkward(size_t i) {
    static const float v[] = { 0.0f, -0.0f, 1e-45f, -1e-40f, 1.0f, -1.0f, 20.0f, -20.0f, 88.0f, -88.0f, 100.0f, -100.0f, 1e4f, -1e4f, 1e-8f, -3.3e-5f };
    return i % 3 ? lcg_float(6.0f) : v[i / 3 % 16];
}

static double ref_unary(int kind, double x, double up) {
    if (kind == 2) return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    return x / (1.0 + exp(-x)) * (kind == 1 ? up : 1.0);
}

static void check_unary(const pdi_kernels *k, int kind, size_t n, size_t off) {
    float *x = guarded(n, off), *up = guarded(n, off), *in = guarded(n, 0);
    size_t i;
    for (i = 0; i < n; i++) { x[i] = in[i] = awkward(i); up[i] = lcg_float(2.0f); }
    if (kind == 0) k->silu(x, n);
    else if (kind == 1) k->silu_mul(x, up, n);
    else k->gelu_tanh(x, n);
    for (i = 0; i < n; i++) {
        double r = ref_unary(kind, (double)in[i], (double)up[i]), err = fabs((double)x[i] - r);
        /* relative to the value where it is ordinary, to |x| where the result is nearly nothing */
        PD_CHECKF(err <= 1e-6 * fabs(r) + 1.2e-7 * fabs((double)in[i]) * 1e-2 + 1e-37, "%s activation %d at %a: %a, not %a", prediff_isa_name(k->isa), kind, (double)in[i], (double)x[i], r);
    }
    PD_CHECK(guard_kept(x, off));
    release(x, off); release(up, off); release(in, 0);
}

static void check_simple(const pdi_kernels *k, size_t n, size_t off) {
    float *x = guarded(n, off), *y = guarded(n, off), *a = guarded(n, 0), *b = guarded(n, 0), top = -HUGE_VALF;
    size_t i, wrong = 0;
    fill(a, n, 3.0f); fill(b, n, 3.0f);
    memcpy(x, a, n * sizeof *x); memcpy(y, b, n * sizeof *y);
    k->add(y, x, n);
    for (i = 0; i < n; i++) { wrong += y[i] != (float)(b[i] + a[i]); if (a[i] > top) top = a[i]; }
    k->scale(y, 0.375f, n);
    for (i = 0; i < n; i++) wrong += y[i] != (float)((float)(b[i] + a[i]) * 0.375f);
    PD_CHECKF(wrong == 0, "%s add and scale n=%zu", prediff_isa_name(k->isa), n);
    PD_CHECKF(k->row_max(x, n) == top, "%s row_max n=%zu", prediff_isa_name(k->isa), n);
    for (i = 0; i < n; i++) x[i] = -5.0f - (float)i;            /* all below zero: padding must not win */
    PD_CHECK(k->row_max(x, n) == -5.0f);
    PD_CHECK(guard_kept(y, off));
    release(x, off); release(y, off); release(a, 0); release(b, 0);
}

static void check_norms(const pdi_kernels *k, size_t n, size_t off, float shift) {
    float *x = guarded(n, off), *w = guarded(n, off), *b = guarded(n, off), *y = guarded(n, off);
    double ss = 0, mean = 0, var = 0, eps = 1e-5, wrong = 0;
    size_t i;
    fill(x, n, 2.0f); fill(w, n, 1.0f); fill(b, n, 1.0f);
    for (i = 0; i < n; i++) { x[i] += shift; ss += (double)x[i] * (double)x[i]; mean += (double)x[i] / (double)n; }
    for (i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    k->rms_norm(y, x, w, n, 1e-5f);
    for (i = 0; i < n; i++) {
        double r = (double)x[i] * (double)w[i] / sqrt(ss / (double)n + eps);
        wrong += !(fabs((double)y[i] - r) <= 2e-6 * fabs(r) + 1e-9);
    }
    PD_CHECKF(wrong == 0, "%s rms_norm n=%zu", prediff_isa_name(k->isa), n);
    k->layer_norm(y, x, w, b, n, 1e-5f);
    for (i = 0; i < n; i++) {
        double s = 1 / sqrt(var + eps), r = ((double)x[i] - mean) * (double)w[i] * s + (double)b[i];
        double size = fabs((double)x[i] - mean) * s + fabs(shift) * s * 0.1 + fabs((double)b[i]) + 1;
        wrong += !(fabs((double)y[i] - r) <= 3e-6 * size);
    }
    PD_CHECKF(wrong == 0, "%s layer_norm n=%zu shift=%g", prediff_isa_name(k->isa), n, (double)shift);
    PD_CHECK(guard_kept(y, off));
    k->rms_norm(x, x, w, n, 1e-5f);                             /* in place is allowed */
    release(x, off); release(w, off); release(b, off); release(y, off);
}

static void check_rotate(const pdi_kernels *k, size_t n, size_t off) {
    float *x = guarded(n, off), *c = guarded(n, off), *s = guarded(n, off), *in = guarded(n, 0);
    size_t i, wrong = 0;
    fill(in, n, 1.0f);
    memcpy(x, in, n * sizeof *x);
    for (i = 0; i < n; i += 2) {
        double a = (double)i * 0.37;
        c[i] = c[i + 1] = (float)cos(a); s[i + 1] = (float)sin(a); s[i] = -s[i + 1];
    }
    k->rotate(x, c, s, n);
    for (i = 0; i < n; i += 2) {
        double a = (double)i * 0.37, u = (double)in[i], v = (double)in[i + 1];
        wrong += !(fabs((double)x[i] - (u * cos(a) - v * sin(a))) < 3e-7) + !(fabs((double)x[i + 1] - (u * sin(a) + v * cos(a))) < 3e-7);
    }
    PD_CHECKF(wrong == 0 && guard_kept(x, off), "%s rotate n=%zu: %zu wrong", prediff_isa_name(k->isa), n, wrong);
    release(x, off); release(c, off); release(s, off); release(in, 0);
}

/* Pairs (i, n/2 + i); the tables of the two halves differ, so each element must meet its own. */
static void check_rotate_halves(const pdi_kernels *k, size_t n, size_t off) {
    float *x = guarded(n, off), *c = guarded(n, off), *s = guarded(n, off), *in = guarded(n, 0);
    size_t half = n / 2, i, wrong = 0;
    fill(in, n, 1.0f); fill(c, n, 1.0f); fill(s, n, 1.0f);
    memcpy(x, in, n * sizeof *x);
    k->rotate_halves(x, c, s, n);
    for (i = 0; i < n; i++) {
        double r = (double)in[i] * (double)c[i] + (double)in[i < half ? i + half : i - half] * (double)s[i];
        wrong += !(fabs((double)x[i] - r) < 3e-7);
    }
    PD_CHECKF(wrong == 0 && guard_kept(x, off), "%s rotate_halves n=%zu: %zu wrong", prediff_isa_name(k->isa), n, wrong);
    release(x, off); release(c, off); release(s, off); release(in, 0);
}

static void test_elementwise(void) {
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, i, off;
    int kind;
    for (s = 0; s < n; s++) for (i = 0; i < N_SIZES; i++) for (off = 0; off < 16; off += 5) {
        for (kind = 0; kind < 3; kind++) check_unary(set[s], kind, sizes[i], off);
        check_simple(set[s], sizes[i], off);
        check_norms(set[s], sizes[i], off, 0);
        if (sizes[i] > 1) check_norms(set[s], sizes[i], off, 50.0f);
        check_rotate(set[s], 2 * sizes[i], off);
        check_rotate_halves(set[s], 2 * sizes[i], off);
    }
}

/* The bits of the vector sets agree in everything that is not a product, too. */
static void test_vector_sets_agree(void) {
    const pdi_kernels *set[8], *first = NULL;
    size_t n = kernel_sets(set), s, i, vector_sets = 0;
    float x[257], w[257], a[257], b[257];
    for (s = 0; s < n; s++) {
        if (set[s]->isa == PREDIFF_ISA_SCALAR) continue;
        vector_sets++;
        if (!first) { first = set[s]; continue; }
        for (i = 0; i < N_SIZES; i++) {
            size_t m = sizes[i];
            double sum[2], dot[2];
            fill(x, m, 4.0f); fill(w, m, 1.0f);
            first->rms_norm(a, x, w, m, 1e-5f); set[s]->rms_norm(b, x, w, m, 1e-5f);
            PD_CHECK(same_bits(a, b, m));
            first->layer_norm(a, x, w, w, m, 1e-5f); set[s]->layer_norm(b, x, w, w, m, 1e-5f);
            PD_CHECK(same_bits(a, b, m));
            first->row_exp(a, x, 4.0f, m, &sum[0], &dot[0]); set[s]->row_exp(b, x, 4.0f, m, &sum[1], &dot[1]);
            PD_CHECK(same_bits(a, b, m) && sum[0] == sum[1] && dot[0] == dot[1]);
            memcpy(a, x, sizeof a); memcpy(b, x, sizeof b);
            first->silu(a, m); set[s]->silu(b, m);
            first->gelu_tanh(a, m); set[s]->gelu_tanh(b, m);
            first->silu_mul(a, w, m); set[s]->silu_mul(b, w, m);
            PD_CHECK(same_bits(a, b, m));
            memcpy(a, x, sizeof a); memcpy(b, x, sizeof b);
            first->rotate_halves(a, w, x, m / 2 * 2); set[s]->rotate_halves(b, w, x, m / 2 * 2);
            PD_CHECK(same_bits(a, b, m) && (m < 2 || !same_bits(a, x, m)));
        }
    }
    if (vector_sets < 2) pd_skip("fewer than two vector sets on this machine");
}

/* -- exponential and softmax -- */

static void test_exp_range(void) {
    enum { N = 4096 };
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, i, block;
    static float x[N], y[N];
    double sum, dot;
    for (s = 0; s < n; s++) {
        double worst = 0;
        for (block = 0; block < 60; block++) {                  /* the whole range, about 245,000 places */
            for (i = 0; i < N; i++) x[i] = -87.29f + (float)(block * N + i) * (175.58f / (60 * N));
            set[s]->row_exp(y, x, 0.0f, N, &sum, &dot);
            for (i = 0; i < N; i++) {
                double r = exp((double)x[i]), e = fabs((double)y[i] - r) / r;
                if (!(e <= worst)) worst = e;
            }
        }
        PD_CHECKF(worst < 2.4e-7, "%s exp: relative error %g", prediff_isa_name(set[s]->isa), worst);
        x[0] = 0.0f; x[1] = -87.31f; x[2] = -1e30f; x[3] = -HUGE_VALF; x[4] = (float)NAN; x[5] = 1e30f; x[6] = HUGE_VALF; x[7] = -0.0f;
        set[s]->row_exp(y, x, 0.0f, 8, &sum, &dot);
        PD_CHECKF(y[0] == 1.0f && y[7] == 1.0f, "%s: e^0 is %a", prediff_isa_name(set[s]->isa), (double)y[0]);
        PD_CHECK(y[1] == 0.0f && y[2] == 0.0f && y[3] == 0.0f);
        PD_CHECK(y[4] != y[4]);
        PD_CHECK(y[5] > 2e38f && y[5] < 2.3e38f && y[6] == y[5]);
        PD_CHECK(sum != sum);                                   /* not-a-number reaches the sum */
    }
}

static void test_row_exp_sums(void) {
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, i, j, off;
    static const size_t more[] = { 1023, 4097, 50257 };
    for (s = 0; s < n; s++) for (i = 0; i < N_SIZES + 3; i++) {
        size_t m = i < N_SIZES ? sizes[i] : more[i - N_SIZES];
        float *x = guarded(m, off = i % 8), *y = guarded(m, off), top = -HUGE_VALF;
        double sum, dot, rs = 0, rd = 0;
        fill(x, m, 9.0f);
        for (j = 0; j < m; j++) if (x[j] > top) top = x[j];
        set[s]->row_exp(y, x, top, m, &sum, &dot);
        for (j = 0; j < m; j++) { double d = (double)x[j] - (double)top; rs += exp(d); rd += exp(d) * d; }
        PD_CHECKF(fabs(sum - rs) <= 1e-6 * rs, "%s sum of exp n=%zu: %g not %g", prediff_isa_name(set[s]->isa), m, sum, rs);
        PD_CHECKF(fabs(dot - rd) <= 2e-6 * fabs(rd) + 1e-7, "%s dot of exp n=%zu: %g not %g", prediff_isa_name(set[s]->isa), m, dot, rd);
        PD_CHECK(guard_kept(y, off));
        set[s]->row_exp(x, x, top, m, &sum, &dot);              /* in place: the same */
        PD_CHECK(same_bits(x, y, m));
        release(x, off); release(y, off);
    }
}

/* -- attention -- */

typedef struct attention_case { size_t rows, group, e, prompt, total; int causal; } attention_case;

/* Lays keys and values out as a context does, those before first_own in the cache, the rest in the own buffer. */
static void check_attention(const pdi_kernels *k, const attention_case *c, float *out) {
    size_t pad = pdi_round_up(c->e, PANEL), tiles = pdi_ceil_div(c->total, KEYS), width = c->group * c->e, i, r, h, p;
    float *kc = (float *)calloc(tiles * KEYS * c->e, 4), *vc = (float *)calloc(tiles * KEYS * pad, 4);
    float *ko = (float *)calloc(tiles * KEYS * c->e, 4), *vo = (float *)calloc(tiles * KEYS * pad, 4);
    float *q = guarded(c->rows * (width + 2), 1), *work = (float *)malloc(pdi_attention_work(c->group, c->e, pad) * sizeof *work);
    double *keys = (double *)malloc(c->total * c->e * sizeof *keys), *values = (double *)malloc(c->total * c->e * sizeof *values), *s = (double *)malloc(c->total * sizeof *s);
    uint32_t n_keys[QUERIES];
    float *in = guarded(c->rows * width, 0);
    pdi_attention_job j;
    size_t wrong = 0;
    lcg_state = pd_seed + (uint32_t)(c->rows + 31 * c->group + 977 * c->e + 7 * c->total);
    j.first_own = c->prompt / KEYS;
    for (p = 0; p < c->total; p++) for (i = 0; i < c->e; i++) {
        float kv = lcg_float(2.0f), vv = lcg_float(1.0f);
        int own = p / KEYS >= j.first_own;
        size_t tile = p / KEYS - (own ? j.first_own : 0);
        (own ? ko : kc)[(tile * c->e + i) * KEYS + p % KEYS] = kv;
        (own ? vo : vc)[(tile * KEYS + p % KEYS) * pad + i] = vv;
        keys[p * c->e + i] = (double)kv; values[p * c->e + i] = (double)vv;
    }
    for (r = 0; r < c->rows; r++) {
        n_keys[r] = (uint32_t)(c->causal ? c->total - c->rows + r + 1 : c->total);
        fill(in + r * width, width, 2.0f);
        memcpy(q + r * (width + 2), in + r * width, width * sizeof *q);
    }
    j.q = j.out = q; j.ldq = j.ldo = width + 2; j.n_keys = n_keys;
    j.rows = c->rows; j.group = c->group; j.head_dim = c->e; j.head_pad = pad;
    j.k_cache = kc; j.v_cache = vc; j.k_own = ko; j.v_own = vo;
    j.scale = (float)(1.0 / sqrt((double)c->e)); j.work = work;
    k->attention(&j);
    for (r = 0; r < c->rows; r++) for (h = 0; h < c->group; h++) {
        double top = -HUGE_VAL, sum = 0;
        const float *query = in + r * width + h * c->e;
        for (p = 0; p < n_keys[r]; p++) {
            for (s[p] = 0, i = 0; i < c->e; i++) s[p] += (double)query[i] * keys[p * c->e + i];
            s[p] /= sqrt((double)c->e);
            if (s[p] > top) top = s[p];
        }
        for (p = 0; p < n_keys[r]; p++) sum += s[p] = exp(s[p] - top);
        for (i = 0; i < c->e; i++) {
            double ref = 0;
            for (p = 0; p < n_keys[r]; p++) ref += s[p] / sum * values[p * c->e + i];
            wrong += !(fabs((double)q[r * (width + 2) + h * c->e + i] - ref) < 3e-6);
            out[r * width + h * c->e + i] = q[r * (width + 2) + h * c->e + i];
        }
    }
    PD_CHECKF(wrong == 0, "%s attention rows=%zu group=%zu e=%zu prompt=%zu total=%zu: %zu wrong", prediff_isa_name(k->isa), c->rows, c->group, c->e, c->prompt, c->total, wrong);
    for (r = 0; r < c->rows && c->rows > 1; r++) {              /* each row alone, bit for bit */
        j.rows = 1; j.n_keys = n_keys + r;
        memcpy(q, in + r * width, width * sizeof *q);
        k->attention(&j);
        wrong += !same_bits(q, out + r * width, width);
    }
    PD_CHECKF(wrong == 0, "%s attention rows=%zu e=%zu total=%zu: a row alone differs", prediff_isa_name(k->isa), c->rows, c->e, c->total);
    free(kc); free(vc); free(ko); free(vo); free(work); free(keys); free(values); free(s);
    release(q, 1); release(in, 0);
}

static void test_attention(void) {
    static const size_t es[] = { 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 128 }, totals[] = { 1, 2, 3, 17, 33, 63, 64, 65, 100, 127, 128, 129, 200, 257 };
    const pdi_kernels *set[8];
    size_t n = kernel_sets(set), s, i, t;
    float *a = (float *)malloc(32 * 8 * 128 * sizeof *a), *b = (float *)malloc(32 * 8 * 128 * sizeof *b);
    for (i = 0; i < sizeof es / sizeof *es; i++) for (t = 0; t < sizeof totals / sizeof *totals; t++) {
        attention_case c;
        const pdi_kernels *first = NULL;
        c.e = es[i]; c.total = totals[t];
        c.group = 1 + (i + t) % 4;
        c.rows = pdi_min(1 + (i * 3 + t) % 9, c.total);
        if (c.rows * c.group > QUERIES) c.rows = QUERIES / c.group;
        c.prompt = c.total - c.rows;
        c.causal = (int)((i + t) & 1);
        for (s = 0; s < n; s++) {
            check_attention(set[s], &c, first ? b : a);
            if (set[s]->isa == PREDIFF_ISA_SCALAR) continue;
            if (first) PD_CHECKF(same_bits(a, b, c.rows * c.group * c.e), "%s and %s attention differ in bits", prediff_isa_name(first->isa), prediff_isa_name(set[s]->isa));
            first = set[s];
        }
        for (s = 0; s < n; s++) {                               /* where the cache ends does not show in the bits */
            size_t kept = c.prompt;
            check_attention(set[s], &c, a);
            c.prompt = 0;
            check_attention(set[s], &c, b);
            c.prompt = kept;
            PD_CHECK(same_bits(a, b, c.rows * c.group * c.e));
        }
    }
    free(a); free(b);
}

/* -- shares -- */

static void test_shares(void) {
    size_t count, n, i, begin, end, at;
    for (count = 0; count < 40; count++) for (n = 1; n < 12; n++) {
        for (at = i = 0; i < n; i++) {
            pdi_range(count, i, n, &begin, &end);
            PD_CHECK(begin == at && end >= begin && end - begin <= count / n + 1);
            at = end;
        }
        PD_CHECK(at == count);
    }
}

/* -- prediff_dequantize_row -- */

static void test_dequantize_row(void) {
    prediff_error e;
    uint8_t row[256];
    float out[256];
    memset(row, 0, sizeof row);
    memset(&e, 0, sizeof e);
    PD_CHECK(prediff_dequantize_row(PREDIFF_Q8_0, row, out, 64, &e) == PREDIFF_OK);
    PD_CHECK(prediff_dequantize_row(PREDIFF_Q8_0, row, out, 33, &e) == PREDIFF_ERR_ARG && e.item == PREDIFF_ITEM_TENSOR_BLOCK);
    PD_CHECK(prediff_dequantize_row(PREDIFF_Q6_K, row, out, 128, &e) == PREDIFF_ERR_ARG && e.item == PREDIFF_ITEM_TENSOR_BLOCK);
    PD_CHECK(prediff_dequantize_row(6, row, out, 32, &e) == PREDIFF_ERR_UNSUPPORTED && e.item == PREDIFF_ITEM_TENSOR_TYPE);
    PD_CHECK(prediff_dequantize_row(PREDIFF_F32, NULL, out, 1, &e) == PREDIFF_ERR_ARG && e.item == PREDIFF_ITEM_NULL_ARGUMENT);
}

/* -- prediff_save's quantisers -- */

typedef struct sink { uint8_t *bytes; size_t n, room; int fail; } sink;

static int sink_write(void *user, const void *bytes, size_t n) {
    sink *s = (sink *)user;
    if (s->fail) return 1;
    while (s->n + n > s->room) { s->room = s->room ? s->room * 2 : 4096; s->bytes = (uint8_t *)realloc(s->bytes, s->room); if (!s->bytes) abort(); }
    if (n) memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
    return 0;
}

/* One F32 row of n values stored as `type`; the stored bytes come back in out. */
static prediff_status store_row(const float *x, size_t n, uint32_t type, uint8_t *out, size_t out_size, prediff_error *e) {
    static const uint8_t arch[] = { 5, 0, 0, 0, 0, 0, 0, 0, 'l', 'l', 'a', 'm', 'a' };
    prediff_save_desc d;
    prediff_model_desc md;
    prediff_key key;
    prediff_tensor t;
    prediff_model *m = NULL;
    prediff_container c;
    prediff_status st;
    sink s;
    uint8_t file[32 * 4];
    size_t i;
    for (i = 0; i < n; i++) put_float(file + 4 * i, x[i]);
    memset(&d, 0, sizeof d); memset(&md, 0, sizeof md); memset(&key, 0, sizeof key); memset(&t, 0, sizeof t); memset(&s, 0, sizeof s); memset(e, 0, sizeof *e);
    key.name.bytes = "general.architecture"; key.name.n = 20; key.type = 8; key.count = 1; key.data = arch; key.data_size = sizeof arch;
    t.name.bytes = "w"; t.name.n = 1; t.type = PREDIFF_F32; t.n_dims = 1; t.dims[0] = n; t.dims[1] = t.dims[2] = t.dims[3] = 1;
    t.data = file; t.data_size = n * 4;
    d.keys = &key; d.n_keys = 1; d.tensors = &t; d.n_tensors = 1; d.store = &type; d.write = sink_write; d.user = &s;
    st = prediff_save(&d, e);
    if (!st) {
        md.data = s.bytes; md.size = s.n;
        st = prediff_container_open(&m, &md, e);
        PD_CHECKF(st == PREDIFF_OK, "a saved file does not open: %s", e->message);
    }
    if (m) {
        prediff_container_get(m, &c);
        PD_CHECK(c.n_tensors == 1 && c.tensors[0].type == type && c.tensors[0].data_size == out_size);
        if (c.n_tensors == 1 && c.tensors[0].data_size == out_size) memcpy(out, c.tensors[0].data, out_size);
        prediff_model_close(m);
    }
    free(s.bytes);
    return st;
}

/* Q8_0: d = max|x| / 127 kept as a half, q the nearest whole number. */
static void check_q8(const float *x) {
    prediff_error e;
    uint8_t b[34];
    float top = 0, d;
    double half;
    int i;
    PD_CHECKF(store_row(x, 32, PREDIFF_Q8_0, b, 34, &e) == PREDIFF_OK, "%s", e.message);
    for (i = 0; i < 32; i++) if (fabsf(x[i]) > top) top = fabsf(x[i]);
    d = top / 127.0f;
    half = ref_half(u16_at(b));
    PD_CHECKF(half == ref_round((double)d, 10, -14, 65536.0), "Q8_0 scale %a for %a", half, (double)d);
    for (i = 0; i < 32; i++) {
        int q = b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256;
        double exact = d > 0 ? (double)x[i] / (double)d : 0;
        PD_CHECKF(fabs((double)q - exact) <= 0.5 + 1e-4 && q >= -127 && q <= 127, "Q8_0 value %d for %g", q, exact);
    }
}

/* Q4_0: the value of largest size becomes -8 d exactly, the others the nearest of -8 .. 7. */
static void check_q4(const float *x) {
    prediff_error e;
    uint8_t b[18];
    float top = 0, d;
    double half;
    int i;
    PD_CHECKF(store_row(x, 32, PREDIFF_Q4_0, b, 18, &e) == PREDIFF_OK, "%s", e.message);
    for (i = 0; i < 32; i++) if (fabsf(x[i]) > fabsf(top)) top = x[i];
    d = top / -8.0f;
    half = ref_half(u16_at(b));
    PD_CHECKF(half == ref_round((double)d, 10, -14, 65536.0), "Q4_0 scale %a for %a", half, (double)d);
    for (i = 0; i < 32; i++) {
        int q = i < 16 ? b[2 + i] % 16 : b[2 + i - 16] / 16;
        double exact = d != 0 ? (double)x[i] / (double)d + 8.0 : 8.0, want = exact < 0 ? 0 : exact > 15 ? 15 : exact;
        PD_CHECKF(fabs((double)q - want) <= 0.5 + 1e-4, "Q4_0 value %d for %g", q, exact);
    }
}

static void test_quantisers(void) {
    float x[32];
    int i, round;
    for (round = 0; round < 200; round++) {
        fill(x, 32, round % 5 == 0 ? 100.0f : round % 5 == 1 ? 1e-3f : 1.0f);
        if (round % 7 == 0) for (i = 0; i < 32; i += 2) x[i] = 0;
        if (round == 100) memset(x, 0, sizeof x);
        check_q8(x);
        check_q4(x);
    }
    for (i = 0; i < 32; i++) x[i] = (float)(i - 16);             /* ties */
    check_q8(x); check_q4(x);
    for (i = 0; i < 32; i++) x[i] = 1e-9f * (float)(i - 16);     /* the scale underflows to a subnormal half or to nothing */
    check_q4(x);
}

static void test_store_halves(void) {
    prediff_error e;
    float x[8];
    uint8_t h[16], b[16];
    int i;
    prediff_status s;
    x[0] = 1.0f; x[1] = -1.00048828125f; x[2] = 65504.0f; x[3] = 65519.0f; x[4] = 5.9604645e-8f; x[5] = 2.98e-8f; x[6] = -0.0f; x[7] = 1.00146484375f;
    PD_CHECKF(store_row(x, 8, PREDIFF_F16, h, 16, &e) == PREDIFF_OK, "%s", e.message);
    PD_CHECKF(store_row(x, 8, PREDIFF_BF16, b, 16, &e) == PREDIFF_OK, "%s", e.message);
    for (i = 0; i < 8; i++) {
        PD_CHECK(ref_half(u16_at(h + 2 * i)) == ref_round((double)x[i], 10, -14, 65536.0));
        PD_CHECK((double)from_bits((uint32_t)u16_at(b + 2 * i) << 16) == ref_round((double)x[i], 7, -126, 1e300));
    }
    x[3] = 65520.0f;                                            /* finite, but infinite as a half: refused, not damaged */
    s = store_row(x, 8, PREDIFF_F16, h, 16, &e);
    PD_CHECKF(s != PREDIFF_OK && e.item == PREDIFF_ITEM_ENCODING, "65520 as F16: %s", prediff_item_name(e.item));
    x[3] = HUGE_VALF; x[4] = (float)NAN;                        /* what is infinite or no number stays so */
    PD_CHECKF(store_row(x, 8, PREDIFF_F16, h, 16, &e) == PREDIFF_OK, "%s", e.message);
    PD_CHECKF(store_row(x, 8, PREDIFF_BF16, b, 16, &e) == PREDIFF_OK, "%s", e.message);
    PD_CHECK(u16_at(h + 6) == 0x7C00u && (u16_at(h + 8) & 0x7FFFu) > 0x7C00u && u16_at(b + 6) == 0x7F80u && (u16_at(b + 8) & 0x7FFFu) > 0x7F80u);
    {
        float y[32];
        for (i = 0; i < 32; i++) y[i] = 1.0f;
        y[7] = 1e9f;                                            /* the scale 1e9 / 127 is no half */
        s = store_row(y, 32, PREDIFF_Q8_0, h, 34, &e);
        PD_CHECKF(s != PREDIFF_OK && e.item == PREDIFF_ITEM_ENCODING, "1e9 as Q8_0: %s", prediff_item_name(e.item));
        y[7] = (float)NAN;
        s = store_row(y, 32, PREDIFF_Q8_0, h, 34, &e);
        PD_CHECKF(s != PREDIFF_OK && e.item == PREDIFF_ITEM_ENCODING, "not-a-number as Q8_0: %s", prediff_item_name(e.item));
    }
}

/* -- random numbers -- */

static void test_philox(void) {
    static const uint32_t in[3][4] = { { 0, 0, 0, 0 }, { 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu }, { 0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u } };
    static const uint64_t key[3] = { 0, UINT64_C(0xFFFFFFFFFFFFFFFF), UINT64_C(0x299F31D0A4093822) };
    static const uint32_t out[3][4] = { { 0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u }, { 0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu },
        { 0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u } };
    uint32_t r[4];
    int i;
    for (i = 0; i < 3; i++) {
        prediff_random(key[i], in[i], r);
        PD_CHECKF(memcmp(r, out[i], sizeof r) == 0, "vector %d: %08x %08x %08x %08x", i, r[0], r[1], r[2], r[3]);
    }
}

static void test_uniform(void) {
    double sum = 0, square = 0, lag = 0, before = 0.5;
    uint32_t i, c[4], r[4];
    int count[10] = { 0 };
    for (i = 0; i < 100000; i++) {
        double u = prediff_uniform(7, 1, 2, 3, i);
        PD_CHECK(u >= 0 && u < 1);
        sum += u; square += u * u; lag += (u - 0.5) * (before - 0.5); before = u;
        count[(int)(u * 10)]++;
    }
    PD_CHECKF(fabs(sum / 1e5 - 0.5) < 0.004, "mean %g", sum / 1e5);
    PD_CHECKF(fabs(square / 1e5 - 1.0 / 3) < 0.004, "mean square %g", square / 1e5);
    PD_CHECKF(fabs(lag / 1e5) < 0.0012, "serial correlation %g", lag / 1e5);
    for (i = 0; i < 10; i++) PD_CHECKF(abs(count[i] - 10000) < 400, "tenth %u: %d", i, count[i]);
    c[0] = 9; c[1] = 8; c[2] = 7; c[3] = 6;                      /* the file contract: 53 bits of words 0 and 1 */
    prediff_random(5, c, r);
    PD_CHECK(prediff_uniform(5, 9, 8, 7, 6) == (double)(((uint64_t)(r[0] >> 5) << 26) + (r[1] >> 6)) / 9007199254740992.0);
}

int main(int argc, char **argv) {
    PD_ARGS(argc, argv);
    lcg_state = pd_seed;
    PD_RUN(test_dequantize);
    PD_RUN(test_sixteen_bit_all);
    PD_RUN(test_narrowing);
    PD_RUN(test_product_sizes);
    PD_RUN(test_product_rows);
    PD_RUN(test_product_blocks);
    PD_RUN(test_elementwise);
    PD_RUN(test_vector_sets_agree);
    PD_RUN(test_exp_range);
    PD_RUN(test_row_exp_sums);
    PD_RUN(test_attention);
    PD_RUN(test_shares);
    PD_RUN(test_dequantize_row);
    PD_RUN(test_quantisers);
    PD_RUN(test_store_halves);
    PD_RUN(test_philox);
    PD_RUN(test_uniform);
    return PD_END();
}
