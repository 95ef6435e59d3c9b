/* Send and receive: small and large messages, tags and their order, messages nobody
 * has asked for yet, cancelling against claiming, more on their way than there are
 * slots or replies, deaths, and damaged channels.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_p2p.c && ./a.out [seed]
 *
 * tsan must report: st_send_post st_recv_take st_recv_finish st_send_acked
 */
#include "handles.h"
#include "st_types.h"

#define MS 1000000ull
#define LONG 60000000000ull /* ns */

#ifdef ST_TSAN
enum { TSAN = 1 };
#else
enum { TSAN = 0 };
#endif
enum { LARGE = 3 * ST_EAGER_BYTES };

struct scene {
    uint8_t *memory;
    pthread_barrier_t all;
    uint64_t rounds, start;
    uint64_t sent[4096], got[4096], nsent, ngot; /* identities of messages that went over */
    uint64_t cancelled;
    uint8_t *page[DIES_MOST]; /* a page of fabric memory each */
    struct handle handle[DIES_MOST];
};

static struct st_transfer transfer(int receive, uint32_t peer, int64_t tag, void *buf, uint64_t bytes)
{
    return (struct st_transfer){.receive = (uint32_t)receive, .peer = peer, .tag = tag, .buf = buf,
                                .bytes = bytes, .count = bytes / 8, .desc = ST_DESC(10, 0, ST_I64, 0, 0)};
}

static int sends(struct st_group *g, uint32_t to, int64_t tag, void *buf, uint64_t bytes)
{
    struct st_transfer t = transfer(0, to, tag, buf, bytes);

    return st_p2p_run(g, &t, LONG);
}

static int receives(struct st_group *g, uint32_t from, int64_t tag, void *buf, uint64_t bytes)
{
    struct st_transfer t = transfer(1, from, tag, buf, bytes);

    return st_p2p_run(g, &t, LONG);
}

/* A group in which every member has a channel to every other. */
static struct dies *scene_open(struct scene *s, uint32_t n, uint64_t start)
{
    struct dies *d = dies_open(n, 2 + n / 2 + 8, 100000);
    uint64_t room = st_align(sizeof(struct st_channel), 4096);

    memset(s, 0, sizeof *s);
    s->start = start;
    s->memory = dies_group(d, NULL);
    CHECK(pthread_barrier_init(&s->all, NULL, n) == 0);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *channels = dies_pages(&d->ctx[i], 1);

        CHECK(room * n <= ST_PAGE_BYTES);
        s->page[i] = dies_pages(&d->ctx[i], 2);
        handle_bind(&s->handle[i], &d->ctx[i], s->memory);
        for (uint32_t j = 0; j < n; j++) {
            struct st_channel *c = (struct st_channel *)(void *)(channels + j * room);

            if (i == j)
                continue;
            c->tail = s->handle[i].p2p[j].head = start;
            st_channel_open(&s->handle[i].g, j, (uint64_t)(uintptr_t)c);
        }
    }
    return d;
}

static void scene_close(struct scene *s, struct dies *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t j = 0; j < d->n; j++)
            for (struct st_unexpected *u = s->handle[i].p2p[j].first, *next_; u; u = next_) {
                next_ = u->next;
                free(u);
            }
    pthread_barrier_destroy(&s->all);
    dies_close(d);
}

/* ---- one thread that drives both ends step by step ------------------------------------ */

/* A message to oneself; any size, any order of tags. */
static void test_self(struct scene *s)
{
    struct st_group *g = &s->handle[0].g;
    uint64_t a[LARGE / 8], b[LARGE / 8];
    struct st_transfer t = transfer(1, 0, 1, b, 8);

    CHECK_IS(st_p2p_progress(g, &t), ST_AGAIN); /* nothing there yet */
    for (int64_t tag = 1; tag <= 3; tag++) {
        fill(a, LARGE, (uint64_t)tag);
        CHECK_IS(sends(g, 0, tag, a, LARGE), ST_OK);
    }
    CHECK_IS(sends(g, 0, 4, NULL, 0), ST_OK);
    for (int64_t tag = 3; tag >= 1; tag--) {
        CHECK_IS(receives(g, 0, tag, b, LARGE), ST_OK);
        CHECK(filled(b, LARGE, (uint64_t)tag));
    }
    CHECK_IS(receives(g, 0, 4, NULL, 0), ST_OK);
    CHECK_IS(sends(g, 0, 5, a, 16), ST_OK);
    CHECK_IS(receives(g, 0, 5, b, 8), ST_EMISMATCH);
    t = transfer(1, 0, 5, b, 8);
    CHECK_IS(st_p2p_run(g, &t, MS), ST_ETIMEOUT); /* it has been taken */
    CHECK(g->p2p[0].first == NULL);
}

/* One large message that nobody asks for must not stop hundreds of others, small and
 * large, with another tag. */
static void test_not_in_line(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    uint64_t *from = (uint64_t *)(void *)s->page[0], *to = (uint64_t *)(void *)s->page[1];
    struct st_transfer first = transfer(0, 1, 1, from, LARGE), t, r;
    uint64_t i, room = LARGE / 8;

    fill(from, LARGE, 1);
    CHECK_IS(st_p2p_progress(g0, &first), ST_AGAIN);
    for (i = 0; i < 5 * ST_CHANNEL_REPLIES; i++) {
        uint64_t bytes = i % 2 ? LARGE : 64, *buf = from + (1 + i % 8) * room;
        int rc;

        fill(buf, bytes, 100 + i);
        t = transfer(0, 1, 2, buf, bytes);
        r = transfer(1, 0, 2, to, bytes);
        rc = st_p2p_progress(g0, &t);
        CHECK_IS(rc, i % 2 ? ST_AGAIN : ST_OK);
        CHECK_IS(st_p2p_progress(g1, &r), ST_OK);
        CHECK(filled(to, bytes, 100 + i));
        CHECK(rc == ST_OK || st_p2p_progress(g0, &t) == ST_OK);
    }
    CHECK_IS(st_p2p_progress(g0, &first), ST_AGAIN);
    CHECK_IS(receives(g1, 0, 1, to, LARGE), ST_OK);
    CHECK(filled(to, LARGE, 1));
    CHECK_IS(st_p2p_progress(g0, &first), ST_OK);
    CHECK(g1->p2p[0].first == NULL);
}

/* More on their way than there are slots, and than there are replies: all arrive,
 * once, in order, and nobody's answer is lost to a later message. */
static void test_many(struct scene *s)
{
    enum { MANY = 2 * ST_CHANNEL_REPLIES + 40 };
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    struct st_transfer *t = calloc(MANY, sizeof *t);
    uint64_t *from = (uint64_t *)(void *)s->page[0], *to = (uint64_t *)(void *)s->page[1], room = LARGE / 8, got = 0, i;
    int *rc = calloc(MANY, sizeof *rc), left = MANY;

    CHECK(t && rc && MANY * LARGE <= 2 * (int)ST_PAGE_BYTES);
    CHECK(MANY * LARGE <= 2 * ST_PAGE_BYTES);
    for (i = 0; i < MANY; i++) {
        fill(from + i * room, LARGE, 500 + i);
        t[i] = transfer(0, 1, 3, from + i * room, LARGE);
        rc[i] = ST_AGAIN;
    }
    while (left) {
        struct st_transfer r = transfer(1, 0, 3, to, LARGE), other = transfer(1, 0, 4, to, 8);

        for (i = MANY; i-- > 0;) /* the latest first: a sender may look long after the answer */
            if (rc[i] == ST_AGAIN && (t[i].state != ST_P2P_NEW || i == 0 || t[i - 1].state != ST_P2P_NEW)) {
                rc[i] = st_p2p_progress(g0, &t[i]);
                left -= rc[i] != ST_AGAIN;
                CHECK(rc[i] == ST_OK || rc[i] == ST_AGAIN);
            }
        CHECK_IS(st_p2p_progress(g1, &other), ST_AGAIN); /* takes all there is into the list */
        while (st_p2p_progress(g1, &r) == ST_OK) {
            CHECK(filled(to, LARGE, 500 + got));
            got++;
            r = transfer(1, 0, 3, to, LARGE);
        }
    }
    CHECK_IS(got, MANY);
    free(t);
    free(rc);
}

/* What the two sides ask for differs: both hear of it when the sender waits for an
 * answer, the receiver alone when it does not. */
static void test_mismatch(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    uint64_t *from = (uint64_t *)(void *)s->page[0], *to = (uint64_t *)(void *)s->page[1];

    for (int k = 0; k < 3; k++)
        for (int large = 0; large < 2; large++) {
            uint64_t bytes = large ? LARGE : 64;
            struct st_transfer t = transfer(0, 1, 7, from, bytes), r = transfer(1, 0, 7, to, bytes);

            memset(to, 0x11, LARGE);
            fill(from, LARGE, 9);
            if (k == 0)
                r.desc ^= 1ull << 16;
            if (k == 1)
                r.count++;
            if (k == 2)
                r.bytes -= 8;
            CHECK_IS(st_p2p_progress(g0, &t), large ? ST_AGAIN : ST_OK);
            CHECK_IS(st_p2p_progress(g1, &r), ST_EMISMATCH);
            CHECK(r.m.desc == t.desc && r.m.count == t.count && r.m.bytes == bytes);
            if (large) {
                CHECK_IS(st_p2p_progress(g0, &t), ST_EMISMATCH);
                CHECK(t.m.desc == r.desc && t.m.count == r.count);
                for (uint64_t i = 0; i < LARGE / 8; i++)
                    CHECK(to[i] == 0x1111111111111111ull);
            }
        }
}

/* A sender whose bytes are not in the page table: an error on both. */
static void test_bad_source(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    uint64_t here[LARGE / 8];
    struct st_transfer t = transfer(0, 1, 8, here, LARGE), r = transfer(1, 0, 8, s->page[1], LARGE);

    CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
    CHECK_IS(st_p2p_progress(g1, &r), ST_EREG);
    CHECK_IS(st_p2p_progress(g0, &t), ST_EREG);
}

/* A cancelled message was never sent, wherever it had come to. */
static void test_cancel(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    uint64_t *from = (uint64_t *)(void *)s->page[0], *to = (uint64_t *)(void *)s->page[1];
    struct st_transfer t = transfer(0, 1, 9, from, LARGE), r = transfer(1, 0, 9, to, LARGE), other;

    for (int listed = 0; listed < 2; listed++) {
        fill(from, LARGE, 1);
        t = transfer(0, 1, 9, from, LARGE);
        CHECK_IS(st_p2p_run(g0, &t, 300000), ST_ETIMEOUT);
        other = transfer(1, 0, 10, to, 8);
        if (listed)
            CHECK_IS(st_p2p_progress(g1, &other), ST_AGAIN);
        r = transfer(1, 0, 9, to, LARGE);
        CHECK_IS(st_p2p_progress(g1, &r), ST_AGAIN);
        fill(from, LARGE, 2);
        t = transfer(0, 1, 9, from, LARGE);
        CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
        while (st_p2p_progress(g1, &r) == ST_AGAIN) {
        }
        CHECK(filled(to, LARGE, 2));
        CHECK_IS(st_p2p_progress(g0, &t), ST_OK);
    }
    for (uint32_t i = 0; i < 3 * ST_CHANNEL_REPLIES; i++) { /* cancelled ones give their reply back */
        t = transfer(0, 1, 9, from, LARGE);
        while (st_p2p_progress(g0, &t) == ST_AGAIN && t.state == ST_P2P_NEW) {
            r = transfer(1, 0, 10, to, 8);
            CHECK_IS(st_p2p_progress(g1, &r), ST_AGAIN);
        }
        CHECK_IS(st_p2p_cancel(g0, &t, ST_ETIMEOUT), ST_ETIMEOUT);
    }
    r = transfer(1, 0, 9, to, LARGE);
    do { /* drops one at a time */
        CHECK_IS(st_p2p_progress(g1, &r), ST_AGAIN);
    } while (g1->p2p[0].first || st_channel_at(*st_channel_word(g0, 0, 1))->tail < g0->p2p[1].head);
}

/* A receiver that is stopped while it copies does not keep the sender, and does not
 * believe what it has copied since. */
static void test_withdraw(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
    uint64_t *from = (uint64_t *)(void *)s->page[0], *to = (uint64_t *)(void *)s->page[1];
    struct st_transfer t = transfer(0, 1, 11, from, LARGE), r = transfer(1, 0, 11, to, LARGE);
    struct st_reply *reply;

    CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
    reply = st_send_reply(g0, &t);
    CHECK(st_cas_acq_rel_64(&reply->ack, t.seq << 8 | ST_ACK_POSTED, t.seq << 8 | ST_ACK_CLAIMED)); /* it stops here */
    CHECK_IS(st_p2p_run(g0, &t, 300000), ST_ETIMEOUT);
    CHECK(reply->ack == (t.seq << 8 | ST_ACK_CANCELLED) && t.state == ST_P2P_DONE);
    CHECK_IS(st_p2p_progress(g1, &r), ST_AGAIN); /* it is as if nothing had come */
    t = transfer(0, 1, 11, from, LARGE);
    fill(from, LARGE, 12);
    CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
    CHECK_IS(st_p2p_progress(g1, &r), ST_OK);
    CHECK(filled(to, LARGE, 12));
    CHECK_IS(st_p2p_cancel(g0, &t, ST_ETIMEOUT), ST_OK); /* too late: it has been received */
}

/* ---- damaged channels -------------------------------------------------------------------- */

static void test_damage(void)
{
    for (int k = 0; k < 9; k++) {
        struct scene *s = calloc(1, sizeof *s);
        struct dies *d;
        struct st_group *g0, *g1;
        uint64_t *word, a[8];
        struct st_channel *c;
        struct st_transfer r;

        CHECK(s);
        d = scene_open(s, 3, 0);
        g0 = &s->handle[0].g;
        g1 = &s->handle[1].g;
        word = st_channel_word(g0, 0, 1);
        c = st_channel_at(*word);
        CHECK_IS(sends(g0, 1, 1, a, 64), ST_OK);
        switch (k) {
        case 0: c->magic ^= 1; break;
        case 1: *word += 8; break;
        case 2: *word = *st_channel_word(g0, 2, 1); break; /* another die's */
        case 3: *word = 4096; break;
        case 4: c->slot[0].kind = 3; break;
        case 5: c->slot[0].bytes = ST_EAGER_BYTES + 1; break;
        case 6: c->slot[0].reply = ST_CHANNEL_REPLIES; break;
        case 7: *word = st_segment(g0->ctx, 0) + g0->ctx->seg_bytes - 64; break; /* free memory */
        default: c->slot[0].kind = 0; break;
        }
        r = transfer(1, 0, 1, a, 64);
        CHECK_IS(st_p2p_run(g1, &r, LONG), k == 7 ? ST_EREG : ST_ECORRUPT);
        scene_close(s, d);
        free(s);
    }
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Everybody sends to everybody: all sizes, tags out of order within bounds. */
static void exchange(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t room = LARGE / 8, r, *out = (uint64_t *)(void *)s->page[die->rank], *in = out + 8 * DIES_MOST * room;
    struct st_transfer t[4 * DIES_MOST];
    int rc[4 * DIES_MOST];

    CHECK(2ull * 8 * DIES_MOST * LARGE <= 2 * ST_PAGE_BYTES);
    for (r = 0; r < s->rounds; r++) {
        uint32_t k = 0, j, i, left;

        for (j = 0; j < g->n; j++) /* two sends and two receives with each; tags cross */
            for (i = 0; i < 2; i++) {
                uint64_t common = dies_seed + r * 97 + i, way, bytes;

                way = common + 1000 * g->me + j; /* what both ends know */
                bytes = next(&way) % 3 ? next(&way) % 64 * 8 : next(&way) % (LARGE / 8) * 8;
                fill(out + (2 * j + i) * room, bytes, r * 64 + g->me * 8 + i);
                t[k++] = transfer(0, j, (int64_t)i, out + (2 * j + i) * room, bytes);
                way = common + 1000 * j + g->me;
                bytes = next(&way) % 3 ? next(&way) % 64 * 8 : next(&way) % (LARGE / 8) * 8;
                t[k++] = transfer(1, j, (int64_t)i, in + (2 * j + i) * room, bytes);
            }
        for (i = 0; i < k; i++) { /* shuffled: but sends of one tag to one peer stay in order */
            uint32_t o = (uint32_t)(next(&die->seed) % k);
            struct st_transfer swap = t[i];

            t[i] = t[o];
            t[o] = swap;
            rc[i] = ST_AGAIN;
        }
        for (left = k; left;)
            for (i = 0; i < k; i++)
                if (rc[i] == ST_AGAIN && (rc[i] = st_p2p_progress(g, &t[i])) != ST_AGAIN) {
                    CHECK_IS(rc[i], ST_OK);
                    left--;
                    if (t[i].receive)
                        CHECK(filled(t[i].buf, t[i].bytes, r * 64 + t[i].peer * 8 + (uint64_t)t[i].tag));
                    memset(t[i].buf, (int)r, t[i].bytes); /* the buffer is ours again */
                } else if (next(&die->seed) % 4 == 0) {
                    sched_yield();
                }
    }
}

/* Two threads of each die on one pair of channels, by blocking calls. */
static void *converse(void *arg)
{
    struct die *die = arg;
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t seed = die->seed, tag = die->seed % 2, room = LARGE / 8, bytes, common, r;
    uint64_t *out = (uint64_t *)(void *)s->page[die->rank] + tag * 4 * room, *in = out + 2 * room;

    for (r = 0; r < s->rounds; r++) {
        common = dies_seed + r * 2 + tag;
        bytes = next(&common) % 2 ? LARGE : next(&common) % 512 * 8;
        fill(out, bytes, r * 4 + tag);
        if ((die->rank + r) % 2) {
            CHECK_IS(sends(g, 1 - g->me, (int64_t)tag, out, bytes), ST_OK);
            memset(out, 0x77, bytes);
        } else {
            CHECK_IS(receives(g, 1 - g->me, (int64_t)tag, in, bytes), ST_OK);
            CHECK(filled(in, bytes, r * 4 + tag));
        }
        if (next(&seed) % 8 == 0)
            sched_yield();
    }
    return NULL;
}

static void conversation(struct die *die)
{
    struct die other = *die;
    pthread_t thread;

    die->seed = die->seed & ~1ull;
    other.seed = die->seed | 1;
    CHECK(pthread_create(&thread, NULL, converse, &other) == 0);
    converse(die);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Senders that give up against a receiver that claims: what one side calls sent the
 * other has got, in order, whole, although the sender writes over its buffer at once. */
static void cancelling(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank], i;

    if (die->rank == 0) {
        for (i = 1; i <= s->rounds; i++) {
            struct st_transfer t = transfer(0, 1, 1, buf, LARGE);
            int rc;

            fill(buf, LARGE, i);
            if (next(&die->seed) % 4) {
                rc = st_p2p_run(g, &t, 1 + next(&die->seed) % (1024ull << next(&die->seed) % 12));
            } else { /* without waiting in between, on one CPU too */
                rc = st_p2p_progress(g, &t);
                for (uint64_t spin = next(&die->seed) % 500; rc == ST_AGAIN && spin--;)
                    st_pause();
                rc = rc == ST_AGAIN ? st_p2p_cancel(g, &t, ST_ETIMEOUT) : rc;
            }
            CHECK(rc == ST_OK || rc == ST_ETIMEOUT);
            if (rc == ST_OK)
                s->sent[s->nsent++] = i;
            else
                s->cancelled++;
            if (rc == ST_OK || !TSAN) /* a receiver that was withdrawn from may still read, in vain */
                memset(buf, 0xaa, LARGE);
            else if ((buf += LARGE / 8) + LARGE / 8 > (uint64_t *)(void *)s->page[0] + ST_PAGE_BYTES / 4)
                buf = (uint64_t *)(void *)s->page[0];
        }
        fill(buf, LARGE, 0);
        CHECK_IS(sends(g, 1, 1, buf, LARGE), ST_OK); /* the end */
        return;
    }
    for (;;) {
        struct st_transfer r = transfer(1, 0, 1, buf, LARGE);
        int rc = st_p2p_run(g, &r, next(&die->seed) % 2 ? LONG : 1 + next(&die->seed) % 20000);

        CHECK(rc == ST_OK || rc == ST_ETIMEOUT);
        if (rc == ST_ETIMEOUT)
            continue;
        if (filled(buf, LARGE, 0))
            return;
        for (i = s->ngot ? s->got[s->ngot - 1] + 1 : 1; i <= s->rounds && !filled(buf, LARGE, i); i++) {
        }
        CHECK(i <= s->rounds); /* a message, whole */
        s->got[s->ngot++] = i;
    }
}

static void test_cancelling(struct scene *s, struct dies *d, uint64_t rounds)
{
    s->rounds = rounds;
    do { /* until both happened; a round is short */
        s->nsent = s->ngot = s->cancelled = 0;
        dies_run(d, cancelling, s);
        CHECK(s->nsent == s->ngot && memcmp(s->sent, s->got, 8 * s->nsent) == 0);
        CHECK(s->nsent + s->cancelled == rounds);
    } while (!s->nsent || !s->cancelled);
}

/* ---- death ------------------------------------------------------------------------------------ */

/* What a dead sender left is received; then it is dead. */
static void dying_sender(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank];
    struct st_transfer t;

    if (die->rank == 0) {
        for (int i = 0; i < 5; i++) {
            fill(buf + i * 512, 4096, (uint64_t)i);
            CHECK_IS(sends(g, 1, i, buf + i * 512, 4096), ST_OK);
        }
        t = transfer(0, 1, 5, buf + 4096, LARGE);
        fill(buf + 4096, LARGE, 5);
        CHECK_IS(st_p2p_progress(g, &t), ST_AGAIN);
        dies_end(die); /* its memory stays */
        return;
    }
    while (!s->handle[0].g.ctx->alive)
        ;
    for (int i = 5; i >= 0; i--) {
        CHECK_IS(receives(g, 0, i, buf, i == 5 ? LARGE : 4096), ST_OK);
        CHECK(filled(buf, i == 5 ? LARGE : 4096, (uint64_t)i));
    }
    CHECK_IS(receives(g, 0, 6, buf, 8), ST_EDEAD);
    CHECK_IS(receives(g, 0, 0, buf, 8), ST_EDEAD);
}

/* Senders to a dead receiver hear of it, whether it had claimed or not; what fits the
 * channel is sent all the same. */
static void dying_receiver(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank];
    struct st_channel *c = st_channel_at(*st_channel_word(g, 0, 1));
    int i;

    if (die->rank == 1) {
        while (st_load_acquire_64(&c->slot[0].seq) == 0)
            sched_yield();
        if (s->rounds) /* claims the first large message, and dies over it */
            CHECK(st_cas_acq_rel_64(&c->reply[c->slot[0].reply].ack, 1 << 8 | ST_ACK_POSTED,
                                    1 << 8 | ST_ACK_CLAIMED));
        dies_end(die);
        return;
    }
    CHECK_IS(sends(g, 1, 1, buf, LARGE), ST_EDEAD);
    memset(buf, 1, LARGE);
    for (i = 0; sends(g, 1, 2, buf, 64) == ST_OK; i++)
        CHECK(i < (int)ST_CHANNEL_SLOTS);
    CHECK_IS(i, ST_CHANNEL_SLOTS - 1);
    CHECK_IS(sends(g, 1, 2, buf, 64), ST_EDEAD);
}

/* The group fails while a receiver is copying: the sender keeps its bytes till it is done. */
static void failing_group(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank], mask[ST_MASK_WORDS] = {4};
    int rc;

    if (die->rank == 2) {
        for (uint64_t spin = next(&die->seed) % 20000; spin--;)
            st_pause();
        st_group_fail(g, ST_EDEAD, 0, 0, mask);
        return;
    }
    if (die->rank == 0) {
        fill(buf, LARGE, 3);
        rc = sends(g, 1, 1, buf, LARGE);
        if (rc == ST_OK || !TSAN)
            memset(buf, 0xbb, LARGE);
        CHECK(rc == ST_OK || rc == ST_EBROKEN); /* the group has lost somebody, and not the peer */
        s->nsent = rc == ST_OK;
    } else {
        rc = receives(g, 0, 1, buf, LARGE);
        CHECK(rc == ST_OK || rc == ST_EBROKEN);
        CHECK(rc != ST_OK || filled(buf, LARGE, 3));
        s->ngot = rc == ST_OK;
    }
}

static int poll_now(void *arg)
{
    (void)arg;
    return 1;
}

/* A signal ends a wait, even one whose peer is dead. */
static void test_interrupt(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g;
    uint64_t a[8];

    g0->ctx->wait.poll = poll_now;
    CHECK_IS(receives(g0, 1, 77, a, 8), ST_EINTR);
    CHECK_IS(sends(g0, 1, 77, s->page[0], LARGE), ST_EINTR);
    g0->ctx->wait.poll = NULL;
}

int main(int argc, char **argv)
{
    static const uint64_t starts[] = {0, (1ull << 32) - 40, (1ull << 55) - 50};
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;

    CHECK(s);
    dies_setup("test_p2p", argc, argv);
    for (int i = 0; i < 3; i++) {
        d = scene_open(s, 2, starts[i]);
        test_self(s);
        test_not_in_line(s);
        test_many(s);
        test_mismatch(s);
        test_bad_source(s);
        test_cancel(s);
        test_withdraw(s);
        test_interrupt(s);
        scene_close(s, d);
    }
    test_damage();
    for (uint32_t n = 1; n <= 4; n++) {
        d = scene_open(s, n, starts[n % 3]);
        s->rounds = 600 / DIES_SLOW;
        dies_run(d, exchange, s);
        scene_close(s, d);
    }
    d = scene_open(s, 2, 0);
    s->rounds = 3000 / DIES_SLOW;
    dies_run(d, conversation, s);
    scene_close(s, d);
    d = scene_open(s, 2, 0);
    test_cancelling(s, d, 2000 / DIES_SLOW);
    scene_close(s, d);
    for (uint64_t i = 0; i < 20; i++) {
        d = scene_open(s, 2, 0);
        dies_run(d, dying_sender, s);
        scene_close(s, d);
        d = scene_open(s, 2, 0);
        s->rounds = i % 2;
        dies_run(d, dying_receiver, s);
        scene_close(s, d);
        d = scene_open(s, 3, 0);
        dies_run(d, failing_group, s);
        CHECK(s->nsent == s->ngot);
        scene_close(s, d);
    }
    free(s);
    printf("test_p2p: ok\n");
    return 0;
}
