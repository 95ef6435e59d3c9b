/* How the members of a new group find its memory, and how survivors agree who they are.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_rendezvous.c && ./a.out [seed]
 *
 * tsan must report: st_rendezvous_write
 */
#include "handles.h"

#define MS 1000000ull
#define LONG 60000000000ull /* ns */

enum { RING = 100 }; /* group memories in use at once: more than slots */

struct scene {
    uint8_t *memory[2][RING]; /* by leader's thread */
    uint64_t bytes, rounds;
    uint32_t victim, point;
    uint64_t mask[DIES_MOST], shrink;
    int status[DIES_MOST];
};

static struct dies *scene_open(struct scene *s, uint32_t n)
{
    struct dies *d = dies_open(n, 8, 100000);

    memset(s, 0, sizeof *s);
    s->bytes = st_align(st_group_bytes(n, DIES_MAILBOX), 128);
    for (int t = 0; t < 2; t++) {
        uint8_t *pages = dies_pages(&d->ctx[0], (s->bytes * RING + ST_PAGE_BYTES - 1) / ST_PAGE_BYTES);

        for (int i = 0; i < RING; i++)
            s->memory[t][i] = pages + s->bytes * (uint64_t)i;
    }
    return d;
}

/* ---- publishing and finding ------------------------------------------------------ */

struct branch {
    struct die *die;
    uint64_t family; /* first half of the keys: what groups of one parent have in common */
    pthread_t thread;
};

static void *lead(void *arg)
{
    struct branch *b = arg;
    struct die *die = b->die;
    struct scene *s = die->arg;
    uint32_t ranks[DIES_MOST], n = die->dies->n;
    uint64_t seed = die->seed + b->family;

    for (uint32_t i = 0; i < n; i++)
        ranks[i] = i;
    for (uint64_t i = 0; i < s->rounds; i++) {
        uint64_t key[2] = {b->family, i};
        uint8_t *m = s->memory[b->family][i % RING];

        st_group_format(m, n, DIES_MAILBOX, key, ranks);
        CHECK_IS(st_rendezvous_publish(die->ctx, key, (uint64_t)(uintptr_t)m, s->bytes, ST_OK, n - 1, LONG), ST_OK);
        if (next(&seed) % 8 == 0)
            sched_yield();
    }
    return NULL;
}

static void *follow(void *arg)
{
    struct branch *b = arg;
    struct die *die = b->die;
    struct scene *s = die->arg;
    struct handle h;
    uint64_t seed = die->seed + b->family, va, bytes;

    for (uint64_t i = 0; i < s->rounds; i++) {
        uint64_t key[2] = {b->family, i};
        struct st_group *g;

        if (die->rank == s->victim && i == s->rounds / 3)
            break;
        CHECK_IS(st_rendezvous_find(die->ctx, 0, key, LONG, &va, &bytes), ST_OK);
        CHECK(va == (uint64_t)(uintptr_t)s->memory[b->family][i % RING] && bytes == s->bytes);
        CHECK_IS(st_ensure_mapped(die->ctx, va, bytes, 1), ST_OK);
        g = handle_bind(&h, die->ctx, (uint8_t *)(uintptr_t)va);
        CHECK(g->header->id[0] == b->family && g->header->id[1] == i); /* that group's, and no other's */
        st_group_found(g);
        pthread_mutex_destroy(&g->lock);
        pthread_mutex_destroy(&g->p2p_lock);
        if (next(&seed) % 8 == 0)
            sched_yield();
    }
    return NULL;
}

/* Two threads of each die, so that two families of groups share the leader's slots. */
static void families(struct die *die)
{
    struct branch b[2] = {{die, 0, 0}, {die, 1, 0}};
    void *(*part)(void *) = die->rank ? follow : lead;

    if (((struct scene *)die->arg)->victim < die->dies->n) { /* one family: a die is dead or it is not */
        part(&b[0]);
        if (die->rank == ((struct scene *)die->arg)->victim)
            dies_end(die);
        return;
    }
    CHECK(pthread_create(&b[1].thread, NULL, part, &b[1]) == 0);
    part(&b[0]);
    CHECK(pthread_join(b[1].thread, NULL) == 0);
}

static void test_families(uint32_t n, uint32_t victim, uint64_t rounds)
{
    struct scene s;
    struct dies *d = scene_open(&s, n);

    s.rounds = rounds;
    s.victim = victim; /* its death must not keep the slots from being used again */
    dies_run(d, families, &s);
    CHECK(d->ctx[0].header->sleepers == 0);
    dies_close(d);
}

/* ---- one thread ------------------------------------------------------------------- */

static int poll_now(void *arg)
{
    (void)arg;
    return 1;
}

static void test_refusals(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3);
    struct st_ctx *leader = &d->ctx[0], *member = &d->ctx[1];
    uint64_t key[2] = {7, 7}, other[2] = {7, 8}, va = 1, bytes = 1, i;
    uint32_t ranks[3] = {0, 1, 2};
    int first;

    CHECK_IS(st_rendezvous_publish(leader, key, 1, 1, ST_OK, 0, LONG), ST_OK); /* nobody would read it */
    CHECK_IS(st_rendezvous_find(member, 0, key, 5 * MS, &va, &bytes), ST_ETIMEOUT);
    CHECK_IS(st_rendezvous_publish(leader, key, 0, 0, ST_ENOMEM, 1, LONG), ST_OK);
    CHECK_IS(st_rendezvous_find(member, 0, other, 5 * MS, &va, &bytes), ST_ETIMEOUT);
    CHECK_IS(st_rendezvous_find(member, 0, key, LONG, &va, &bytes), ST_ENOMEM); /* the leader's trouble */
    CHECK_IS(st_rendezvous_publish(leader, other, st_segment(leader, 2), 64, ST_OK, 1, LONG), ST_OK);
    CHECK_IS(st_rendezvous_find(member, 0, other, LONG, &va, &bytes), ST_ECORRUPT); /* not the leader's memory */
    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++) {
        uint64_t k[2] = {1, i};

        st_group_format(s.memory[0][i], 3, DIES_MAILBOX, k, ranks);
        CHECK_IS(st_rendezvous_publish(leader, k, (uint64_t)(uintptr_t)s.memory[0][i], s.bytes, ST_OK, 2, LONG), ST_OK);
    }
    key[0] = 9;
    CHECK_IS(st_rendezvous_publish(leader, key, 64, 64, ST_OK, 2, 5 * MS), ST_ETIMEOUT); /* all are waited for */
    leader->wait.poll = member->wait.poll = poll_now;
    CHECK_IS(st_rendezvous_publish(leader, key, 64, 64, ST_OK, 2, LONG), ST_EINTR);
    CHECK_IS(st_rendezvous_find(member, 0, key, LONG, &va, &bytes), ST_EINTR);
    leader->wait.poll = member->wait.poll = NULL;
    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++) { /* one reader of two: none is free yet */
        uint64_t k[2] = {1, i};

        CHECK_IS(st_rendezvous_find(member, 0, k, LONG, &va, &bytes), ST_OK);
        CHECK(va == (uint64_t)(uintptr_t)s.memory[0][i]);
        ((struct st_member *)(void *)(s.memory[0][i] + st_group_members_off(3)))[1].found = 1;
    }
    CHECK(st_rendezvous_free(leader) == NULL);
    d->gone[2] = 1; /* the other reader dies: all are */
    CHECK(st_rendezvous_free(leader) != NULL);
    d->gone[2] = 0;
    CHECK(st_rendezvous_free(leader) == NULL);
    struct handle h;
    struct st_group *g = handle_bind(&h, leader, s.memory[0][5]);

    g->va = (uint64_t)(uintptr_t)s.memory[0][5];
    st_rendezvous_forget(g); /* the group is gone: its slot is free */
    first = (int)(st_rendezvous_free(leader) - st_rendezvous_table(leader, 0));
    CHECK(first >= 0 && st_rendezvous_table(leader, 0)[first].va == g->va);
    CHECK(leader->header->sleepers == 0);
    dies_close(d);
}

/* A slot that is given to another group while a member reads it: halves of two
 * groups never pass for one. */
static struct st_rendezvous *torn;
static int torn_at; /* accesses until it happens */
static uint64_t torn_va; /* 0: the writer has come only as far as the key */

static void tear(const char *function)
{
    static const uint64_t key[2] = {1, 1};

    if (strcmp(function, "st_rendezvous_read") != 0 || torn_at-- != 0)
        return;
    dies_hook = NULL;
    if (torn_va) {
        st_rendezvous_write(torn, key, torn_va, 128, ST_OK, 1);
    } else {
        torn->state = 0;
        torn->key[1] = 1;
    }
}

static void test_torn_slot(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 2);
    static const uint64_t before[2] = {1, 0}, after[2] = {1, 1};
    uint64_t va, bytes, status, was = (uint64_t)(uintptr_t)s.memory[0][0], is = (uint64_t)(uintptr_t)s.memory[0][1];

    torn = st_rendezvous_table(&d->ctx[0], 0);
    for (int whole = 0; whole < 2; whole++)
        for (int at = 0; at < 8; at++) {
            st_rendezvous_write(torn, before, was, 64, ST_OK, 1);
            CHECK(st_rendezvous_read(torn, before, &va, &bytes, &status) && va == was && bytes == 64);
            torn_at = at;
            torn_va = whole ? is : 0;
            dies_hook = tear;
            if (st_rendezvous_read(torn, after, &va, &bytes, &status))
                CHECK(whole && va == is && bytes == 128);
            dies_hook = NULL;
            torn->state += whole == 0 ? 100 : 0;
            st_rendezvous_write(torn, after, is, 128, ST_OK, 1);
            CHECK(st_rendezvous_read(torn, after, &va, &bytes, &status) && va == is && bytes == 128);
            CHECK(!st_rendezvous_read(torn, before, &va, &bytes, &status));
        }
    dies_close(d);
}

/* What a leader published before it died is found; then it is dead. */
static void orphans(struct die *die)
{
    struct scene *s = die->arg;
    uint32_t ranks[3] = {0, 1, 2};
    uint64_t va, bytes;

    if (die->rank == 0) {
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t key[2] = {0, i};

            st_group_format(s->memory[0][i], 3, DIES_MAILBOX, key, ranks);
            CHECK_IS(st_rendezvous_publish(die->ctx, key, (uint64_t)(uintptr_t)s->memory[0][i], s->bytes, ST_OK,
                                           2, LONG), ST_OK);
        }
        dies_end(die);
        return;
    }
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t key[2] = {0, i};

        CHECK_IS(st_rendezvous_find(die->ctx, 0, key, LONG, &va, &bytes), i < 3 ? ST_OK : ST_EDEAD);
    }
}

/* ---- survivors -------------------------------------------------------------------------- */

/* Some die before they call, some after: those that return have one answer. */
static void shrinking(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory[0][0]);
    uint64_t mask[ST_MASK_WORDS], missing[ST_MASK_WORDS];

    for (uint64_t spin = next(&die->seed) % 30000; spin--;)
        st_pause();
    if (s->victim >> die->rank & 1) {
        if (next(&die->seed) % 2) {
            st_store_seqcst_64(&g->members[g->me].shrink, s->shrink);
            st_group_wake(g);
        }
        dies_end(die);
        s->status[die->rank] = -1;
        return;
    }
    s->status[die->rank] = st_group_survivors(g, s->shrink, LONG, mask, missing);
    s->mask[die->rank] = mask[0];
    CHECK(missing[0] == 0);
}

static void test_survivors(uint32_t n, int trials)
{
    struct scene s;
    struct dies *d = scene_open(&s, n);
    uint64_t seed = dies_seed;

    dies_group(d, s.memory[0][0]);
    for (int t = 0; t < trials; t++) {
        uint32_t first = n;

        s.shrink = (uint64_t)t + 1; /* calls before this one do not count */
        s.victim = (uint32_t)(next(&seed) % ((1u << n) - 1));
        dies_run(d, shrinking, &s);
        for (uint32_t j = 0; j < n; j++) {
            if (s.victim >> j & 1)
                continue;
            first = first == n ? j : first;
            CHECK_IS(s.status[j], ST_OK);
            CHECK(s.mask[j] == s.mask[first]);
            CHECK((s.mask[j] | s.victim) == (1u << n) - 1);
        }
    }
    CHECK(((struct st_group_header *)(void *)s.memory[0][0])->sleepers == 0);
    dies_close(d);
}

static void test_survivors_ends(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 4);
    struct handle h;
    uint64_t mask[ST_MASK_WORDS], missing[ST_MASK_WORDS];
    struct st_group *g;

    dies_group(d, s.memory[0][0]);
    g = handle_bind(&h, &d->ctx[1], s.memory[0][0]);
    g->members[0].shrink = 1;
    d->gone[2] = 1;
    CHECK_IS(st_group_survivors(g, 1, 5 * MS, mask, missing), ST_ETIMEOUT); /* 3 neither calls nor dies */
    CHECK(missing[0] == 8);
    g->ctx->wait.poll = poll_now;
    CHECK_IS(st_group_survivors(g, 1, LONG, mask, missing), ST_EINTR);
    g->ctx->wait.poll = NULL;
    g->members[3].shrink = 7; /* it is ahead */
    CHECK_IS(st_group_survivors(g, 1, LONG, mask, missing), ST_OK);
    CHECK(mask[0] == 0xb && missing[0] == 0);
    CHECK_IS(st_group_formed(g, 1, 1, mask, 5 * MS), ST_EBROKEN); /* it has given the first one up */
    g->members[3].shrink = 1;
    CHECK_IS(st_group_formed(g, 1, 1, mask, 5 * MS), ST_ETIMEOUT); /* 0 and 3 say nothing */
    g->members[0].formed = g->members[3].formed = 1 << 1 | 1;
    CHECK_IS(st_group_formed(g, 1, 1, mask, LONG), ST_OK);
    CHECK_IS(st_group_formed(g, 1, 0, mask, LONG), ST_EBROKEN);
    g->members[3].formed = 1 << 1; /* it has not found the group */
    CHECK_IS(st_group_formed(g, 1, 1, mask, LONG), ST_EBROKEN);
    d->gone[3] = 1; /* what it said counts, */
    CHECK_IS(st_group_formed(g, 1, 1, mask, LONG), ST_EBROKEN);
    g->members[3].formed = 0; /* or it died before it said anything */
    CHECK_IS(st_group_formed(g, 1, 1, mask, LONG), ST_OK);
    d->gone[3] = 0;
    CHECK(!st_group_deserted(g, ST_LEFT_CLOSED));
    g->members[0].left = ST_LEFT_CLOSED;
    g->members[3].left = ST_LEFT_GONE;
    CHECK(st_group_deserted(g, ST_LEFT_CLOSED) && !st_group_deserted(g, ST_LEFT_GONE));
    d->gone[0] = 1;
    CHECK(st_group_deserted(g, ST_LEFT_GONE));
    dies_close(d);
}

int main(int argc, char **argv)
{
    struct scene s;
    struct dies *d;

    dies_setup("test_rendezvous", argc, argv);
    test_refusals();
    test_torn_slot();
    test_families(2, 99, 4000 / DIES_SLOW);
    test_families(4, 99, 2000 / DIES_SLOW);
    test_families(3, 2, 2000 / DIES_SLOW);
    for (int i = 0; i < 20; i++) {
        d = scene_open(&s, 3);
        dies_run(d, orphans, &s);
        dies_close(d);
    }
    test_survivors(2, 60);
    test_survivors(5, 200 / DIES_SLOW);
    test_survivors_ends();
    printf("test_rendezvous: ok\n");
    return 0;
}
