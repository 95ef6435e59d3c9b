/* Litmus tests of the memory model (docs/memory-model.md): what weak order shows, and what it must not.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include -Istrata/_core/checked tests/c/test_litmus.c &&
 *         ./a.out [seed [runs of each]]
 */
#include "litmus.h"

static struct {
    uint64_t x, pad0[7], y, pad1[7], z, pad2[7];
    uint64_t data[32], copy[32];
} m __attribute__((aligned(4096)));

static uint64_t r[LITMUS_MOST][2];

static void clear(void)
{
    memset(&m, 0, sizeof m);
    memset(r, 0, sizeof r);
}

/* ---- message passing ----------------------------------------------------------------- */

static void mp_write(void)
{
    st_store_relaxed_64(&m.x, 1);
    st_store_release_64(&m.y, 1); /* pairs with mp_read */
}

static void mp_read(void)
{
    (void)st_load_relaxed_64(&m.x); /* it may know an old value */
    r[1][0] = st_load_acquire_64(&m.y); /* pairs with mp_write */
    r[1][1] = st_load_relaxed_64(&m.x);
}

static int mp_seen(void) { return r[1][0] && !r[1][1]; }

/* The same with the bytes of a copy. */
static void mp_copy_write(void)
{
    uint64_t from[32], k;

    for (k = 0; k < 32; k++)
        from[k] = 7;
    st_copy(m.data, from, sizeof from, 0);
    st_store_release_64(&m.y, 1); /* pairs with mp_copy_read */
}

static void mp_copy_read(void)
{
    r[1][0] = st_load_acquire_64(&m.y); /* pairs with mp_copy_write */
    if (r[1][0])
        st_copy(m.copy, m.data, sizeof m.data, 0);
}

static int mp_copy_seen(void)
{
    uint64_t k, right = 0;

    for (k = 0; k < 32; k++)
        right += m.copy[k] == 7;
    return r[1][0] && right != 32;
}

/* ---- store buffering ----------------------------------------------------------------- */

static void sb_left(void)
{
    st_store_seqcst_64(&m.x, 1); /* pairs with sb_right */
    r[0][0] = st_load_seqcst_64(&m.y);
}

static void sb_right(void)
{
    st_store_seqcst_64(&m.y, 1); /* pairs with sb_left */
    r[1][0] = st_load_seqcst_64(&m.x);
}

static void sb_fence_left(void)
{
    st_store_relaxed_64(&m.x, 1);
    st_fence_seqcst(); /* pairs with sb_fence_right */
    r[0][0] = st_load_relaxed_64(&m.y);
}

static void sb_fence_right(void)
{
    st_store_relaxed_64(&m.y, 1);
    st_fence_seqcst(); /* pairs with sb_fence_left */
    r[1][0] = st_load_relaxed_64(&m.x);
}

/* Release and acquire are not enough. */
static void sb_weak_left(void)
{
    st_store_release_64(&m.x, 1); /* pairs with sb_weak_right */
    r[0][0] = st_load_acquire_64(&m.y);
}

static void sb_weak_right(void)
{
    st_store_release_64(&m.y, 1); /* pairs with sb_weak_left */
    r[1][0] = st_load_acquire_64(&m.x);
}

static int sb_seen(void) { return !r[0][0] && !r[1][0]; }

/* ---- independent reads of independent writes ------------------------------------------- */

static void iriw_x(void) { st_store_seqcst_64(&m.x, 1); /* pairs with iriw_xy, iriw_yx */ }

static void iriw_y(void) { st_store_seqcst_64(&m.y, 1); /* pairs with iriw_xy, iriw_yx */ }

static void iriw_xy(void)
{
    (void)st_load_relaxed_64(&m.y); /* it may know an old value */
    r[2][0] = st_load_seqcst_64(&m.x); /* pairs with iriw_x */
    r[2][1] = st_load_seqcst_64(&m.y); /* pairs with iriw_y */
}

static void iriw_yx(void)
{
    (void)st_load_relaxed_64(&m.x); /* it may know an old value */
    r[3][0] = st_load_seqcst_64(&m.y); /* pairs with iriw_y */
    r[3][1] = st_load_seqcst_64(&m.x); /* pairs with iriw_x */
}

static int iriw_seen(void) { return r[2][0] && !r[2][1] && r[3][0] && !r[3][1]; }

/* ---- one word ------------------------------------------------------------------------ */

static void corr_write(void)
{
    st_store_relaxed_64(&m.x, 1);
    st_store_relaxed_64(&m.x, 2);
    st_store_relaxed_64(&m.x, 3);
}

static void corr_read(void)
{
    r[1][0] = st_load_relaxed_64(&m.x);
    r[1][1] = st_load_relaxed_64(&m.x);
}

static int corr_seen(void) { return r[1][0] > r[1][1]; }

/* A thread sees its own stores, and a word ends with the last one. */
static void own_write(void)
{
    uint64_t bytes[4] = {5, 6, 7, 8};

    st_store_relaxed_64(&m.x, 1);
    st_store_relaxed_64(&m.data[1], 1);
    st_copy(m.data, bytes, sizeof bytes, 0);
    st_store_relaxed_64(&m.x, 2);
    r[0][0] = st_load_relaxed_64(&m.x) != 2;
    r[0][1] = st_load_relaxed_64(&m.data[1]) != 6;
    st_store_relaxed_64(&m.data[2], 9);
    st_copy(m.copy, m.data, sizeof bytes, 0);
}

static int own_seen(void)
{
    return r[0][0] || r[0][1] || m.x != 2 || m.data[1] != 6 || m.data[2] != 9 || m.copy[2] != 9 || m.copy[3] != 8;
}

/* Loads are not late: the model allows this one, and the mode never shows it. */
static void lb_left(void)
{
    r[0][0] = st_load_relaxed_64(&m.x);
    st_store_relaxed_64(&m.y, 1);
}

static void lb_right(void)
{
    r[1][0] = st_load_relaxed_64(&m.y);
    st_store_relaxed_64(&m.x, 1);
}

static int lb_seen(void) { return r[0][0] && r[1][0]; }

/* ---- a flag that is used again and again ------------------------------------------------- */

enum { EPOCHS = 4 };

/* y counts rounds, z says which have been read: no number comes twice. */
static void epoch_write(void)
{
    uint64_t e;

    for (e = 1; e <= EPOCHS; e++) {
        while (st_load_acquire_64(&m.z) < e - 1 && !litmus.stuck) /* pairs with epoch_read */
            litmus_turn();
        st_store_relaxed_64(&m.data[0], e);
        st_store_relaxed_64(&m.data[9], e);
        st_store_release_64(&m.y, e); /* pairs with epoch_read */
    }
}

static void epoch_read(void)
{
    uint64_t e;

    for (e = 1; e <= EPOCHS; e++) {
        while (st_load_acquire_64(&m.y) < e && !litmus.stuck) /* pairs with epoch_write */
            litmus_turn();
        r[1][0] |= st_load_relaxed_64(&m.data[0]) != e || st_load_relaxed_64(&m.data[9]) != e;
        st_store_release_64(&m.z, e); /* pairs with epoch_write */
    }
}

/* y is lowered by its reader, who then raises z, which its writer lowers.  On x86 the two stores keep their order. */
static void reset_write(void)
{
    uint64_t e;

    for (e = 1; e <= EPOCHS; e++) {
        while (e > 1 && !st_load_acquire_64(&m.z) && !litmus.stuck) /* pairs with reset_read */
            litmus_turn();
        st_store_relaxed_64(&m.z, 0);
        st_store_relaxed_64(&m.data[0], e);
        st_store_release_64(&m.y, 1); /* pairs with reset_read */
    }
}

static void reset_read(void)
{
    uint64_t e;

    for (e = 1; e <= EPOCHS; e++) {
        while (!st_load_acquire_64(&m.y) && !litmus.stuck) /* pairs with reset_write */
            litmus_turn();
        r[1][0] |= st_load_relaxed_64(&m.data[0]) != e;
        st_store_relaxed_64(&m.y, 0);
        st_store_relaxed_64(&m.z, 1); /* wrong: it may be seen before y is lowered, which then lowers the next round's */
    }
}

static int epoch_seen(void) { return r[1][0] || litmus.stuck; }

/* -------------------------------------------------------------------------------------- */

static const struct litmus tests[] = {
    {"MP, words", 2, clear, {mp_write, mp_read}, mp_seen, {"mp_write", "mp_read"}, 0},
    {"MP, a copy's bytes", 2, clear, {mp_copy_write, mp_copy_read}, mp_copy_seen, {"mp_copy_write"}, 0},
    {"SB, seq_cst", 2, clear, {sb_left, sb_right}, sb_seen, {"sb_left", "sb_right"}, 0},
    {"SB, fences", 2, clear, {sb_fence_left, sb_fence_right}, sb_seen, {"sb_fence_left", "sb_fence_right"}, 0},
    {"SB, release and acquire", 2, clear, {sb_weak_left, sb_weak_right}, sb_seen, {NULL}, 1},
    {"IRIW, seq_cst", 4, clear, {iriw_x, iriw_y, iriw_xy, iriw_yx}, iriw_seen, {"iriw_xy", "iriw_yx"}, 0},
    {"CoRR", 2, clear, {corr_write, corr_read}, corr_seen, {NULL}, 0},
    {"own stores", 2, clear, {own_write, corr_read}, own_seen, {NULL}, 0},
    {"LB, relaxed (never shown)", 2, clear, {lb_left, lb_right}, lb_seen, {NULL}, 0},
    {"flag, by epoch", 2, clear, {epoch_write, epoch_read}, epoch_seen, {"epoch_write"}, 0},
    {"flag, lowered each time", 2, clear, {reset_write, reset_read}, epoch_seen, {NULL}, 1},
};

int main(int argc, char **argv)
{
    uint64_t runs = litmus_begin("test_litmus", argc, argv, 20000);

    st_hook_shared(&m, sizeof m);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        litmus_test(&tests[i], runs);
    printf("test_litmus: ok\n");
    return 0;
}
