/* The threads of a litmus test, run in turn; part of litmus.h. */
#ifndef LITMUS_FIBERS_H
#define LITMUS_FIBERS_H

struct litmus_fiber {
    ucontext_t at;
    struct st_weak_thread *weak;
    const uint32_t *asleep; /* futex */
    int over;
    uint8_t *stack;
};

static struct {
    struct litmus_fiber fiber[LITMUS_MOST];
    ucontext_t home;
    const struct litmus *test;
    uint64_t dice, now_ns, turns;
    uint32_t n, now, lost; /* lost: nobody could go on, and one slept */
    int running, stuck;    /* stuck: the run has had too many turns */
    pthread_barrier_t all;
} litmus;

static __thread uint64_t litmus_self; /* which thread of the test this is, if they are threads */

static inline uint64_t litmus_below(uint64_t n) { return (next(&litmus.dice) >> 11) % n; }

/* Somebody's late store takes effect, as if its thread had gone on. */
static void litmus_settle(void)
{
    struct st_weak_thread *t = litmus.fiber[litmus_below(litmus.n)].weak;
    uint32_t i;

    if (!t || !t->nstores)
        return;
    i = (uint32_t)litmus_below(t->nstores);
    if (st_weak_before(t, i) == i)
        st_weak_make(t, i);
}

static void litmus_go(uint32_t to)
{
    struct litmus_fiber *from = &litmus.fiber[litmus.now];

    if (to == litmus.now)
        return;
    litmus.now = to;
    st_weak_me = litmus.fiber[to].weak;
    swapcontext(&from->at, &litmus.fiber[to].at);
}

/* One that can go on; the caller is over or asleep, or gives others a turn. */
static void litmus_next(void)
{
    uint32_t k, i, first = (uint32_t)litmus_below(litmus.n);

    for (k = 0; k < litmus.n; k++) {
        i = (first + k) % litmus.n;
        if (!litmus.fiber[i].over && !litmus.fiber[i].asleep) {
            litmus_go(i);
            return;
        }
    }
    for (i = 0; i < litmus.n; i++) /* a lost wake-up: as if its timeout had come */
        if (litmus.fiber[i].asleep) {
            litmus.lost++;
            litmus.fiber[i].asleep = NULL;
            litmus_go(i);
            return;
        }
}

static void litmus_turn(void)
{
    if (LITMUS_THREADS) {
        (sched_yield)();
        return;
    }
    if (!litmus.running)
        return;
    litmus.stuck |= ++litmus.turns > LITMUS_TURNS;
    if (litmus_below(16) == 0)
        litmus_settle();
    if (litmus_below(2) == 0)
        litmus_next();
}

static int litmus_clock(struct timespec *ts)
{
    litmus.now_ns += 1000;
    *ts = (struct timespec){(time_t)(litmus.now_ns / 1000000000), (long)(litmus.now_ns % 1000000000)};
    return 0;
}

static long litmus_futex(uint32_t *word, int op, uint32_t value)
{
    uint32_t i;

    if (op == FUTEX_WAIT) {
        if (!litmus.running || (st_load_relaxed_32)(word) != value) {
            errno = EAGAIN;
            return -1;
        }
        litmus.fiber[litmus.now].asleep = word;
        litmus_next();
        return 0;
    }
    for (i = 0; i < litmus.n; i++)
        if (litmus.fiber[i].asleep == word)
            litmus.fiber[i].asleep = NULL;
    return 0;
}

static void litmus_main(void)
{
    for (;;) {
        uint32_t i, left = 0;

        litmus.test->run[litmus.now]();
        litmus.fiber[litmus.now].over = 1;
        for (i = 0; i < litmus.n; i++)
            left += !litmus.fiber[i].over;
        if (left) {
            litmus_next();
        } else {
            uint32_t me = litmus.now;

            litmus.now = LITMUS_MOST;
            swapcontext(&litmus.fiber[me].at, &litmus.home);
        }
    }
}

static void litmus_once(void)
{
    uint32_t i;

    for (i = 0; i < litmus.n; i++) {
        litmus.fiber[i].over = 0;
        litmus.fiber[i].asleep = NULL;
    }
    litmus.turns = litmus.stuck = 0;
    litmus.lost = 0;
    litmus.running = 1;
    litmus.now = (uint32_t)litmus_below(litmus.n);
    st_weak_me = litmus.fiber[litmus.now].weak;
    swapcontext(&litmus.home, &litmus.fiber[litmus.now].at);
    litmus.running = 0;
    for (i = 0; i < litmus.n; i++) {
        st_weak_flush(litmus.fiber[i].weak);
        st_weak_blind(litmus.fiber[i].weak);
    }
    st_weak_me = NULL;
}

static void litmus_ready(uint32_t i)
{
    struct litmus_fiber *f = &litmus.fiber[i];

    f->weak = f->weak ? f->weak : st_weak_made();
    st_weak_unknown(f->weak);
    st_weak_throw(f->weak, i);
    f->stack = f->stack ? f->stack : malloc(LITMUS_STACK);
    CHECK(f->stack && getcontext(&f->at) == 0);
    f->at.uc_stack.ss_sp = f->stack;
    f->at.uc_stack.ss_size = LITMUS_STACK;
    f->at.uc_link = NULL;
    makecontext(&f->at, litmus_main, 0);
}

/* Up to `runs` of a test; after how many the outcome was seen first, 0: never; *times counts. */
static uint64_t litmus_fibers(const struct litmus *t, uint64_t seed, const char *broken, uint64_t runs, int first,
                              uint64_t *times)
{
    uint64_t r, found = 0;
    uint32_t i;

    *times = 0;
    litmus.test = t;
    litmus.n = t->threads;
    litmus.dice = seed;
    st_weak.yield = litmus_turn;
    st_weak_begin(seed, 0, broken);
    for (i = 0; i < t->threads; i++)
        litmus_ready(i);
    for (r = 1; r <= runs && !(first && found); r++) {
        st_weak.seed = 0; /* what comes before takes effect at once */
        if (t->begin)
            t->begin();
        st_weak.seed = seed;
        litmus_once();
        if (t->seen()) {
            found = found ? found : r;
            ++*times;
        }
    }
    st_weak.seed = 0;
    return found;
}

#endif
