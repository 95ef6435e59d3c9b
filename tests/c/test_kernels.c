/* The kernels against a plain reference, element by element, for every dtype,
 * operator and level: operands end where memory ends, results have fences.
 * Small floats are decoded by ldexp and rounded by search, so that the reference
 * shares nothing with st_half.h.
 *
 *     gcc -std=gnu11 -O2 -ffp-contract=off -Istrata/_core/include tests/c/test_kernels.c -lm && ./a.out [seed]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define ST_KERNELS_PORTABLE /* one thread here: the levels add nothing but minutes */
#endif
#include "st_kernels.h"

#define CHECK(truth)                                                               \
    do {                                                                           \
        if (!(truth)) {                                                            \
            fprintf(stderr, "%s:%d: %s (seed %llu)\n", __FILE__, __LINE__, #truth, \
                    (unsigned long long)first_seed);                               \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

enum { MOST = 17, ROOM = 1 << 17, FENCE = 64 };

static uint64_t first_seed, seed;

static uint64_t random64(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- small floats: value of each code, and the nearest code of a value ---- */

struct format {
    int bits, mantissa, bias;
    int infinite; /* has infinities; else only the last code is NaN */
    float *value; /* of the nonnegative codes, ascending; `last` is the largest finite */
    uint32_t last, nan;
};

static void format_fill(struct format *f)
{
    uint32_t codes = 1u << (f->bits - 1), one = 1u << f->mantissa, m;
    f->value = malloc(codes * sizeof *f->value);
    CHECK(f->value);
    for (m = 0; m < codes; m++) {
        uint32_t exponent = m / one, fraction = m % one;
        f->value[m] = exponent ? ldexpf((float)(one + fraction), (int)exponent - f->bias - f->mantissa)
                               : ldexpf((float)fraction, 1 - f->bias - f->mantissa);
    }
    f->last = f->infinite ? codes - one - 1 : codes - 2;
    f->nan = f->infinite ? codes - one / 2 : codes - 1;
}

static float decode(const struct format *f, uint32_t code)
{
    uint32_t sign = code >> (f->bits - 1), m = code & ((1u << (f->bits - 1)) - 1);
    float v = m <= f->last ? f->value[m] : f->infinite && m == f->last + 1 ? INFINITY : NAN;
    return sign ? -v : v;
}

static uint32_t encode(const struct format *f, float v)
{
    uint32_t sign = (uint32_t)(signbit(v) != 0) << (f->bits - 1), low = 0, high = f->last;
    /* Past the largest finite value the grid is thought to go on. */
    double beyond = 2.0 * f->value[f->last] - f->value[f->last - 1], x = fabs((double)v), below, above;
    if (isnan(v))
        return f->nan;
    if (x >= beyond)
        return sign | (f->infinite ? f->last + 1 : f->nan);
    while (low < high) { /* the largest code not above x */
        uint32_t middle = (low + high + 1) / 2;
        if (f->value[middle] <= x)
            low = middle;
        else
            high = middle - 1;
    }
    below = f->value[low];
    above = low == f->last ? beyond : f->value[low + 1];
    if (x - below > above - x || (x - below == above - x && (low & 1)))
        low++;
    return sign | (low > f->last && !f->infinite ? f->nan : low);
}

static struct format formats[4] = {
    {.bits = 16, .mantissa = 10, .bias = 15, .infinite = 1},
    {.bits = 16, .mantissa = 7, .bias = 127, .infinite = 1},
    {.bits = 8, .mantissa = 3, .bias = 7},
    {.bits = 8, .mantissa = 2, .bias = 15, .infinite = 1},
};

static const struct format *format_of(int dtype)
{
    switch (dtype) {
    case ST_F16: return &formats[0];
    case ST_BF16: return &formats[1];
    case ST_F8E4M3FN: return &formats[2];
    case ST_F8E5M2: return &formats[3];
    default: return NULL;
    }
}

/* ---- the reference: one element ---- */

#define FOLD_FLOATS(type, nan_bits)                                                \
    static type reference_##type(int op, const type *v, int n)                     \
    {                                                                              \
        type r = v[0], q;                                                          \
        uint64_t bits = nan_bits;                                                  \
        for (int i = 1; i < n; i++) {                                              \
            if (op == ST_SUM || op == ST_AVG)                                      \
                r = r + v[i];                                                      \
            else if (op == ST_PROD)                                                \
                r = r * v[i];                                                      \
            else if (isnan(r) || isnan(v[i]))                                      \
                r = (type)NAN;                                                     \
            else if (op == ST_MIN ? v[i] < r : v[i] > r)                           \
                r = v[i];                                                          \
        }                                                                          \
        if (op == ST_AVG)                                                          \
            r = r / (type)n;                                                       \
        memcpy(&q, &bits, sizeof q);                                               \
        return isnan(r) ? q : r;                                                   \
    }
FOLD_FLOATS(float, 0x7fc00000u)
FOLD_FLOATS(double, 0x7ff8000000000000u)

static void reference_small(int dtype, int op, const uint8_t *const *s, int n, uint8_t *out)
{
    const struct format *f = format_of(dtype);
    uint32_t result;
    float v[MOST];
    for (int i = 0; i < n; i++) {
        uint16_t code = s[i][0];
        if (f->bits == 16)
            memcpy(&code, s[i], 2);
        v[i] = decode(f, code);
    }
    result = encode(f, reference_float(op, v, n));
    out[0] = (uint8_t)result;
    if (f->bits == 16)
        out[1] = (uint8_t)(result >> 8);
}

static void reference_integer(int dtype, int op, const uint8_t *const *s, int n, uint8_t *out)
{
    int size = st_dtype_size(dtype), is_signed = (dtype - ST_I8) % 2 == 0;
    __int128 r = 0, v = 0;
    for (int i = 0; i < n; i++) {
        uint64_t u = 0;
        memcpy(&u, s[i], (size_t)size);
        v = is_signed && u >> (8 * size - 1) ? (__int128)u - ((__int128)1 << (8 * size)) : (__int128)u;
        if (i == 0)
            r = v;
        else if (op == ST_SUM || op == ST_AVG)
            r += v;
        else if (op == ST_PROD) /* the low bits are all that counts */
            r = (__int128)((uint64_t)r * (uint64_t)v);
        else if (op == ST_MIN || op == ST_MAX)
            r = (op == ST_MIN) == (v < r) ? v : r;
        else
            r = op == ST_BAND ? (r & v) : op == ST_BOR ? (r | v) : (r ^ v);
    }
    if (op == ST_AVG)
        r = r >= 0 ? r / n : -((-r + n - 1) / n);
    memcpy(out, &r, (size_t)size);
}

static void reference_bool(int op, const uint8_t *const *s, int n, uint8_t *out)
{
    int ones = 0;
    for (int i = 0; i < n; i++)
        ones += s[i][0] != 0;
    if (op == ST_BXOR)
        out[0] = (uint8_t)(ones & 1);
    else if (op == ST_PROD || op == ST_MIN || op == ST_BAND)
        out[0] = ones == n;
    else
        out[0] = ones > 0;
}

#define COMPLEX_PRODUCT(type, canon)                                               \
    static void product_##type(const uint8_t *const *s, int n, uint8_t *out)       \
    {                                                                              \
        type r[2], v[2];                                                           \
        volatile type a, b, c, d; /* each product is rounded */                    \
        memcpy(r, s[0], sizeof r);                                                 \
        for (int i = 1; i < n; i++) {                                              \
            memcpy(v, s[i], sizeof v);                                             \
            a = r[0] * v[0], b = r[1] * v[1], c = r[0] * v[1], d = r[1] * v[0];    \
            r[0] = canon(a - b);                                                   \
            r[1] = canon(c + d);                                                   \
        }                                                                          \
        memcpy(out, r, sizeof r);                                                  \
    }
COMPLEX_PRODUCT(float, st_canon_f32)
COMPLEX_PRODUCT(double, st_canon_f64)

#define REAL_PARTS(type)                                                           \
    static void parts_##type(int op, const uint8_t *const *s, int n, int parts, uint8_t *out) \
    {                                                                              \
        for (int p = 0; p < parts; p++) {                                          \
            type v[MOST] = {0}, r;                                                    \
            for (int i = 0; i < n; i++)                                            \
                memcpy(&v[i], s[i] + (size_t)p * sizeof r, sizeof r);              \
            r = reference_##type(op, v, n);                                        \
            memcpy(out + (size_t)p * sizeof r, &r, sizeof r);                      \
        }                                                                          \
    }
REAL_PARTS(float)
REAL_PARTS(double)

static void reference(int dtype, int op, const uint8_t *const *s, int n, uint8_t *out)
{
    if (dtype == ST_BOOL)
        reference_bool(op, s, n, out);
    else if (n == 1)
        memcpy(out, s[0], (size_t)st_dtype_size(dtype));
    else if (st_is_integer(dtype))
        reference_integer(dtype, op, s, n, out);
    else if (format_of(dtype))
        reference_small(dtype, op, s, n, out);
    else if (op == ST_PROD && dtype == ST_C64)
        product_float(s, n, out);
    else if (op == ST_PROD && dtype == ST_C128)
        product_double(s, n, out);
    else if (dtype == ST_F32 || dtype == ST_C64)
        parts_float(op, s, n, dtype == ST_C64 ? 2 : 1, out);
    else
        parts_double(op, s, n, dtype == ST_C128 ? 2 : 1, out);
}

/* ---- operands ---- */

static void fill(uint8_t *p, int dtype, uint64_t count)
{
    int size = st_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i++, p += size) {
        uint64_t bits[2] = {random64(), random64()};
        float f = (float)((double)(int64_t)bits[0] * 0x1p-60);
        if (bits[1] % 5 == 1)
            f = bits[0] & 1 ? -0.0f : 0.0f;
        double d = f;
        memcpy(p, bits, (size_t)size);
        if (dtype == ST_BOOL && bits[1] % 3)
            p[0] = (uint8_t)(bits[1] % 2);
        if (bits[1] % 4 == 0 || dtype < ST_F16)
            continue; /* any bits: infinities, NaNs, subnormals */
        if (format_of(dtype)) {
            uint32_t code = encode(format_of(dtype), f);
            memcpy(p, &code, (size_t)size);
        } else if (dtype == ST_F32 || dtype == ST_C64) {
            memcpy(p, &f, 4);
        } else {
            memcpy(p, &d, 8);
        }
    }
}

struct bed {
    uint8_t *end[MOST + 1]; /* of memory: the page there is forbidden */
    uint8_t *dst[2], *want;
};

static void bed_open(struct bed *b)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i <= MOST; i++) {
        uint8_t *p = mmap(NULL, ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED);
        CHECK(mprotect(p + ROOM, page, PROT_NONE) == 0);
        b->end[i] = p + ROOM;
    }
    for (int i = 0; i < 2; i++)
        CHECK(b->dst[i] = malloc(ROOM));
    CHECK(b->want = malloc(ROOM));
}

static void one_case(struct bed *b, int dtype, int op, int n, uint64_t count, int shift)
{
    const void *src[MOST];
    size_t size = (size_t)st_dtype_size(dtype), bytes = count * size;
    CHECK(bytes + 3 * FENCE + 64 <= ROOM);
    for (int i = 0; i < n; i++) {
        src[i] = b->end[i] - bytes - (size_t)(shift ? i % 2 * shift : 0);
        fill((uint8_t *)(uintptr_t)src[i], dtype, count);
    }
    for (uint64_t e = 0; e < count; e++) {
        const uint8_t *s[MOST];
        for (int i = 0; i < n; i++)
            s[i] = (const uint8_t *)src[i] + e * size;
        reference(dtype, op, s, n, b->want + e * size);
    }
    for (int level = 0; level <= st_kernels_level(); level++)
        for (int nt = 0; nt < 2; nt++) {
            uint8_t *in_place = b->end[MOST] - bytes, *out[2];
            void *dst[3] = {NULL, NULL, in_place};
            const void *with[MOST];
            for (int i = 0; i < 2; i++) {
                memset(b->dst[i], 0xa5, bytes + 3 * FENCE);
                out[i] = b->dst[i] + FENCE + shift * (i + 1);
                dst[i] = out[i];
            }
            memcpy(with, src, sizeof with);
            with[level % n] = in_place; /* an operand that is a destination */
            memcpy(in_place, src[level % n], bytes);
            CHECK(st_reduce_at(level, dtype, op, dst, nt ? 2 : 1, src, n, count, nt) == ST_OK);
            CHECK(memcmp(out[0], b->want, bytes) == 0);
            CHECK(!nt || memcmp(out[1], b->want, bytes) == 0);
            CHECK(st_reduce_at(level, dtype, op, dst + 1, 2, with, n, count, nt) == ST_OK);
            CHECK(memcmp(out[1], b->want, bytes) == 0);
            CHECK(memcmp(in_place, b->want, bytes) == 0);
            for (int i = 0; i < 2; i++)
                for (int k = 0; k < FENCE; k++)
                    CHECK(out[i][-1 - k] == 0xa5 && out[i][bytes + (size_t)k] == 0xa5);
        }
}

static void matrix(struct bed *b)
{
    static const int operands[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 257, 1025, 2051};
    for (int dtype = 1; dtype < ST_NDTYPES; dtype++)
        for (int op = 1; op < ST_NOPS; op++) {
            void *none[1] = {b->want};
            const void *also[1] = {b->want};
            if (!st_reduce_supported(dtype, op)) {
                CHECK(st_reduce(dtype, op, none, 1, also, 1, 1, 0) == ST_EUNSUPPORTED);
                continue;
            }
            for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                    if (counts[c] < 1000 || operands[i] == 2 || operands[i] == 8)
                        one_case(b, dtype, op, operands[i], counts[c], (int)((c + i) % 3));
        }
}

static void arguments(void)
{
    uint8_t x[64] = {0};
    void *dst[1] = {x}, *no_dst[1] = {NULL};
    const void *src[1] = {x}, *no_src[1] = {NULL};
    CHECK(st_reduce(ST_F32, ST_SUM, dst, 1, src, 1, 16, 0) == ST_OK);
    CHECK(st_reduce(ST_F32, ST_SUM, NULL, 0, src, 1, 16, 0) == ST_OK);
    CHECK(st_reduce(ST_F32, ST_SUM, no_dst, 1, no_src, 1, 0, 0) == ST_OK);
    CHECK(st_reduce(ST_F32, ST_SUM, no_dst, 1, src, 1, 16, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_SUM, dst, 1, no_src, 1, 16, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_SUM, dst, 1, src, 0, 16, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_SUM, dst, 1, src, ST_MAX_OPERANDS + 1, 16, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_SUM, dst, -1, src, 1, 16, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_SUM, dst, 1, src, 1, UINT64_MAX / 4, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_NDTYPES, ST_SUM, dst, 1, src, 1, 1, 0) == ST_EINVAL);
    CHECK(st_reduce(-1, ST_SUM, dst, 1, src, 1, 1, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_NOPS, dst, 1, src, 1, 1, 0) == ST_EINVAL);
    CHECK(st_reduce(ST_F32, ST_OP_NONE, dst, 1, src, 1, 1, 0) == ST_EUNSUPPORTED);
    CHECK(st_reduce(ST_RAW, ST_SUM, dst, 1, src, 1, 1, 0) == ST_EUNSUPPORTED);
    CHECK(st_reduce_at(st_kernels_level() + 1, ST_F32, ST_SUM, dst, 1, src, 1, 1, 0) == ST_EINVAL);
    CHECK(st_reduce_at(-1, ST_F32, ST_SUM, dst, 1, src, 1, 1, 0) == ST_EINVAL);
}

int main(int argc, char **argv)
{
    struct bed b;
    first_seed = seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    for (int i = 0; i < 4; i++)
        format_fill(&formats[i]);
    bed_open(&b);
    arguments();
    matrix(&b);
    for (int i = 0; i < 4; i++)
        free(formats[i].value);
    free(b.dst[0]), free(b.dst[1]), free(b.want);
    printf("kernels: levels up to %d, seed %llu\n", st_kernels_level(), (unsigned long long)first_seed);
    return 0;
}
