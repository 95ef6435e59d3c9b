/* The UB space: layouts, damaged headers, joining, agreement on a window, liveness.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_space.c && ./a.out [seed]
 *
 * tsan must report: st_space_join_as
 */
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "dies.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* ---- layout ------------------------------------------------------------------ */

static void test_layout_refuses(void)
{
    static const struct { uint32_t n; uint64_t hbm, mailbox, window; } bad[] = {
        {0, 2 * MIB, 64, 0}, {1025, 2 * MIB, 64, 0}, {1, 0, 64, 0}, {1, MIB, 64, 0},
        {1, 3 * MIB, 64, 0}, {1, 2 * MIB + 1, 64, 0}, {1, 1ull << 43, 64, 0}, {1, UINT64_MAX, 64, 0},
        {1, 2 * MIB, 0, 0}, {1, 2 * MIB, 63, 0}, {1, 2 * MIB, 65, 0}, {1, 2 * MIB, 2 * MIB, 0},
        {1, 2 * MIB, 64, 1}, {1, 2 * MIB, 64, MIB}, {1024, 1ull << 42, 64, 0}, {1024, 64 * GIB, 64, 0},
    };
    struct st_header h;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_IS(st_space_layout(&h, bad[i].n, bad[i].hbm, bad[i].mailbox, bad[i].window), ST_EINVAL);
}

static void test_layout(void)
{
    static const uint32_t dies[] = {1, 2, 3, 7, 8, 64, 512, 1024};
    static const uint64_t hbm[] = {2 * MIB, 6 * MIB, GIB, 16 * GIB};
    struct st_header h;
    int low = 0;

    CHECK_IS(st_space_layout(&h, 8, 8 * GIB, DIES_MAILBOX, 0), ST_OK);
    for (int i = 0; i < (int)ST_NCANDIDATES; i++) /* some fits where addresses have 39 bits */
        low += h.candidates[i] + 8 * h.seg_bytes <= 1ull << 39;
    CHECK(low > 0);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++) {
            uint64_t n = dies[i], from[8], to[8];

            CHECK_IS(st_space_layout(&h, dies[i], hbm[k], DIES_MAILBOX, 0), ST_OK);
            CHECK((h.seg_bytes & (h.seg_bytes - 1)) == 0 && h.seg_bytes >= 2 * hbm[k]);
            CHECK(h.control_offset == n * hbm[k] && h.object_bytes == h.control_offset + h.control_bytes);
            from[0] = h.dies_off, to[0] = from[0] + n * sizeof(struct st_die);
            from[1] = h.rendezvous_off;
            to[1] = from[1] + n * ST_RENDEZVOUS_SLOTS * sizeof(struct st_rendezvous);
            from[2] = h.logs_off, to[2] = from[2] + n * ST_LOG_RECORDS * sizeof(struct st_log_record);
            from[3] = h.world_off, to[3] = from[3] + st_group_bytes(n, DIES_MAILBOX);
            from[4] = h.tables_off, to[4] = from[4] + n * (h.seg_bytes / ST_PAGE_BYTES) * 8;
            from[5] = h.control_bytes - ST_HEADER_BYTES, to[5] = h.control_bytes;
            from[6] = h.cpus_off, to[6] = from[6] + n * 4;
            from[7] = h.traces_off, to[7] = from[7] + n * st_trace_bytes(ST_TRACE_EVENTS);
            CHECK(h.traces_off >= h.tables_off && to[7] == from[5]); /* behind what is reserved from the start */
            for (int a = 0; a < 8; a++) {
                CHECK(from[a] % 4096 == 0 && to[a] > from[a] && to[a] <= h.control_bytes);
                for (int b = 0; b < a; b++)
                    CHECK(to[b] <= from[a] || to[a] <= from[b]);
            }
        }
    CHECK_IS(st_space_layout(&h, 64, 16 * GIB, DIES_MAILBOX, 0), ST_OK);
    CHECK(h.traces_off < 64 * MIB);
    for (uint64_t events = 1; events; events <<= 1) {
        int rc = events >= ST_TRACE_LEAST && events <= ST_TRACE_MOST ? ST_OK : ST_EINVAL;

        CHECK_IS(st_space_layout_of(&h, 2, GIB, DIES_MAILBOX, 0, events), rc);
        CHECK_IS(st_space_layout_of(&h, 2, GIB, DIES_MAILBOX, 0, events + 1), ST_EINVAL);
    }
}

/* ---- attaching --------------------------------------------------------------------- */

static int object(const struct st_header *h)
{
    int fd = memfd_create("space", MFD_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_IS(st_space_format(fd, h, 0x1111, 0x2222), ST_OK);
    return fd;
}

/* Attaches as far as the world's group.  A refusal must not leave anything in the context. */
static int attach(int fd)
{
    struct st_ctx c, before;
    uint32_t ranks[3] = {0, 1, 2};
    int rc;

    memset(&c, 0x5a, sizeof c);
    before = c;
    rc = st_space_map(&c, fd);
    if (rc != ST_OK) {
        CHECK(memcmp(&c, &before, sizeof c) == 0);
    } else {
        struct st_group g = {.ctx = &c, .n = c.ndies, .ranks = ranks};

        CHECK(c.ndies <= 3); /* larger ones do not fit the object */
        rc = st_group_bind(&g, st_world_memory(&c), st_group_bytes(c.ndies, c.header->mailbox_bytes));
        munmap(c.control, c.control_bytes);
    }
    return rc;
}

#define FIELD(name, vital) {#name, offsetof(struct st_header, name), sizeof(((struct st_header *)0)->name), vital}

static void test_damage(void)
{
    static const struct { const char *name; size_t at, bytes; int vital; } field[] = {
        FIELD(magic, 1), FIELD(version, 1), FIELD(header_bytes, 1), FIELD(object_bytes, 1),
        FIELD(control_offset, 1), FIELD(control_bytes, 1), FIELD(hbm_bytes, 1), FIELD(seg_bytes, 1),
        FIELD(token, 0), FIELD(dies_off, 1), FIELD(tables_off, 1), FIELD(logs_off, 1),
        FIELD(rendezvous_off, 1), FIELD(world_off, 1), FIELD(cpus_off, 1), FIELD(mailbox_bytes, 1), FIELD(ndies, 1),
        FIELD(page_shift, 1), FIELD(traces_off, 1), FIELD(trace_events, 1), FIELD(candidates, 2), FIELD(wake_word, 0), FIELD(sleepers, 0),
    };
    struct st_header h;
    off_t at;
    int fd;

    CHECK_IS(st_space_layout(&h, 3, 6 * MIB, DIES_MAILBOX, 0), ST_OK);
    fd = object(&h);
    at = (off_t)(h.object_bytes - ST_HEADER_BYTES);
    CHECK_IS(attach(fd), ST_OK);
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        for (size_t bit = 0; bit < 8 * field[i].bytes; bit++) {
            off_t where = at + (off_t)(field[i].at + bit / 8);
            uint8_t byte, bad;
            int address = bit % 64 < ST_PAGE_SHIFT || bit % 64 >= 56 || h.candidates[bit / 64 % ST_NCANDIDATES] == 1ull << bit % 64;
            int refused = field[i].vital == 2 ? address : field[i].vital, rc;

            CHECK(pread(fd, &byte, 1, where) == 1);
            bad = byte ^ (uint8_t)(1u << (bit & 7));
            CHECK(pwrite(fd, &bad, 1, where) == 1);
            rc = attach(fd);
            if (rc != (refused ? ST_EABI : ST_OK))
                fprintf(stderr, "field %s, bit %zu: status %d\n", field[i].name, bit, rc);
            CHECK(rc == (refused ? ST_EABI : ST_OK));
            CHECK(pwrite(fd, &byte, 1, where) == 1);
        }
    CHECK_IS(attach(fd), ST_OK);
    close(fd);
}

/* Random headers of another job, random bytes: never more than a refusal. */
static void test_noise(uint64_t seed)
{
    struct st_header h, bad;
    int fd;

    CHECK_IS(st_space_layout(&h, 2, 4 * MIB, DIES_MAILBOX, 0), ST_OK);
    fd = object(&h);
    for (int i = 0; i < 3000; i++) {
        uint8_t *p = (uint8_t *)&bad;
        size_t from, to;

        CHECK(pread(fd, &bad, sizeof bad, (off_t)(h.object_bytes - ST_HEADER_BYTES)) == (ssize_t)sizeof bad);
        from = 16 + next(&seed) % (128 - 16);
        to = from + 1 + next(&seed) % (128 - from);
        for (size_t k = from; k < to; k++)
            p[k] = next(&seed) % 3 ? (uint8_t)next(&seed) : 0xff;
        memcpy(bad.token, h.token, sizeof bad.token);
        bad.token[0] = 0x1111;
        bad.token[1] = 0x2222;
        CHECK(pwrite(fd, &bad, sizeof bad, (off_t)(h.object_bytes - ST_HEADER_BYTES)) == (ssize_t)sizeof bad);
        h.magic = ST_MAGIC;
        h.token[0] = 0x1111;
        h.token[1] = 0x2222;
        CHECK(attach(fd) == ST_EABI || memcmp(&bad, &h, 128) == 0);
        CHECK(pwrite(fd, &h, sizeof h, (off_t)(h.object_bytes - ST_HEADER_BYTES)) == (ssize_t)sizeof h);
    }
    CHECK_IS(attach(fd), ST_OK);
    close(fd);
}

static void test_sizes(void)
{
    struct st_header h;
    int fd, ends[2];

    CHECK_IS(st_space_layout(&h, 2, 2 * MIB, DIES_MAILBOX, 0), ST_OK);
    fd = object(&h);
    static const int64_t off[] = {-1, 1, -4096, 4096, -8192, -(int64_t)MIB, (int64_t)MIB};
    for (int i = 0; i < 7; i++) {
        CHECK(ftruncate(fd, (off_t)h.object_bytes + off[i]) == 0);
        CHECK_IS(attach(fd), ST_EABI);
        CHECK(ftruncate(fd, 0) == 0);
        CHECK_IS(st_space_format(fd, &h, 1, 2), ST_OK);
        CHECK_IS(attach(fd), ST_OK);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(ftruncate(fd, i == 0 ? 0 : i == 1 ? 1 : 4095) == 0);
        CHECK_IS(attach(fd), ST_EABI);
    }
    close(fd);
    CHECK_IS(attach(fd), ST_ESYS); /* closed */
    CHECK(pipe(ends) == 0);
    CHECK_IS(attach(ends[0]), ST_EABI);
    close(ends[0]);
    close(ends[1]);
}

/* ---- joining ------------------------------------------------------------------------- */

/* A die of its own, with its own mappings, as a process has it. */
static struct st_ctx *enter(int fd)
{
    struct st_ctx *c = calloc(1, sizeof *c);

    CHECK(c);
    CHECK_IS(st_space_map(c, fd), ST_OK);
    CHECK_IS(st_space_private(c), ST_OK);
    c->wait = (struct st_wait_policy){.sleep_ns = 1000000, .poll_ns = 2000000};
    return c;
}

static void leave(struct st_ctx *c)
{
    if (c->base)
        munmap((void *)(uintptr_t)c->base, c->seg_bytes * c->ndies);
    munmap(c->shadow, c->private_bytes);
    munmap(c->control, c->control_bytes);
    free(c);
}

/* Candidates of our own, since a sanitizer may hold the usual ones. */
static int small_job(uint32_t n, struct st_header *h)
{
    CHECK_IS(st_space_layout(h, n, 2 * MIB, DIES_MAILBOX, 0), ST_OK);
    for (uint32_t i = 0; i < ST_NCANDIDATES; i++)
        h->candidates[i] = DIES_WINDOW + (ST_NCANDIDATES - i) * GIB;
    return object(h);
}

static void test_join_refuses(void)
{
    struct st_header h;
    int fd = small_job(3, &h);
    struct st_ctx *c = enter(fd);

    CHECK_IS(st_space_join(c, 3), ST_EINVAL);
    CHECK_IS(st_space_join(c, UINT32_MAX), ST_EINVAL);
    CHECK_IS(st_space_join(c, 1), ST_OK);
    CHECK_IS(st_space_join(c, 1), ST_EBROKEN); /* it lives already */
    st_space_mark_dead(c, 2);
    CHECK_IS(st_space_join(c, 2), ST_EBROKEN); /* it has been given up */
    leave(c);
    close(fd);
}

static void test_states(void)
{
    struct st_header h;
    int fd = small_job(3, &h);
    struct st_ctx *c = enter(fd);
    uint64_t v[5];

    c->alive = NULL;
    CHECK_IS(st_space_join(c, 0), ST_OK);
    CHECK(st_die_alive(c, 1)); /* absent: only slow */
    st_space_mark_dead(c, 1);
    CHECK(!st_die_alive(c, 1)); /* its launcher says that it ended */
    CHECK(st_die_alive(c, 0));
    st_space_die(c, 0, v);
    CHECK(v[0] == ST_DIE_JOINED && v[1] == (uint64_t)getpid() && v[2] == st_start_time((uint32_t)getpid()));
    CHECK_IS(st_space_leave(c), ST_OK);
    CHECK(!st_die_alive(c, 0));
    CHECK_IS(st_space_return(c), ST_OK);
    CHECK(st_die_alive(c, 0));
    leave(c);
    close(fd);
}

/* Rank 0, which a viewer's context also has, is a die like others to it. */
static void test_viewer(void)
{
    struct st_header h;
    int fd = small_job(2, &h), ends[2], status;
    struct st_ctx *view = calloc(1, sizeof *view); /* it has mapped the space, and nothing more */
    char byte;
    pid_t child;

    CHECK(view);
    CHECK_IS(st_space_map(view, fd), ST_OK);
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct st_ctx *mine = enter(fd);

        CHECK_IS(st_space_join(mine, 0), ST_OK);
        CHECK(write(ends[1], "!", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(st_die_alive(view, 0));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(!st_die_alive(view, 0));
    close(ends[0]);
    close(ends[1]);
    munmap(view->control, view->control_bytes);
    free(view);
    close(fd);
}

static void test_agree_names_missing(void)
{
    struct st_header h;
    int fd = small_job(3, &h);
    struct st_ctx *c = enter(fd);
    uint32_t missing = 99;

    CHECK_IS(st_space_join(c, 0), ST_OK);
    CHECK_IS(st_space_join(c, 1), ST_OK);
    CHECK_IS(st_space_agree(c, 20000000, &missing), ST_ETIMEOUT);
    CHECK(missing == 2 && c->base == 0);
    st_space_mark_dead(c, 2);
    missing = 99;
    CHECK_IS(st_space_agree(c, 60000000000ull, &missing), ST_EDEAD);
    CHECK(missing == 2 && c->base == 0 && c->header->sleepers == 0);
    leave(c);
    close(fd);
}

/* What a die says of its address space is not an index before it is checked. */
static void test_agree_bad_mask(void)
{
    struct st_header h;
    int fd = small_job(2, &h);
    struct st_ctx *c = enter(fd);
    uint32_t missing;

    CHECK_IS(st_space_join(c, 0), ST_OK);
    CHECK_IS(st_space_join(c, 1), ST_OK);
    c->dies[0].window_mask = c->dies[1].window_mask = 1ull << 40;
    CHECK_IS(st_space_agree(c, 1000000000, &missing), ST_EREG);
    c->dies[0].window_mask = 1ull << 63 | 4;
    c->dies[1].window_mask = 1ull << 63 | 6;
    CHECK_IS(st_space_agree(c, 1000000000, &missing), ST_OK);
    CHECK(c->base == h.candidates[2]);
    leave(c);
    close(fd);
}

/* ---- agreement of real processes --------------------------------------------------------- */

enum { PROCESSES = 4 };

/* Each process holds the candidates in its mask; all take the first that nobody holds. */
static void agree(const uint32_t *held, int expected)
{
    struct st_header h;
    int fd = small_job(PROCESSES, &h), status;
    pid_t child[PROCESSES];
    uint64_t bytes = h.seg_bytes * PROCESSES;

    fflush(stdout);
    for (uint32_t r = 0; r < PROCESSES; r++) {
        child[r] = fork();
        CHECK(child[r] >= 0);
        if (child[r])
            continue;
        struct st_ctx *c = enter(fd);
        uint32_t missing;
        int rc;

        for (uint32_t i = 0; i < ST_NCANDIDATES; i++)
            if (held[r] >> i & 1) /* even one page in the middle is in the way */
                CHECK(mmap((void *)(uintptr_t)(h.candidates[i] + bytes / 2), 4096, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
        usleep((useconds_t)(next(&dies_seed) % 3000 * (r + 1)));
        CHECK_IS(st_space_join(c, r), ST_OK);
        rc = st_space_agree(c, 20000000000ull, &missing);
        if (expected < 0) {
            CHECK_IS(rc, ST_EREG);
            CHECK(c->base == 0);
            _exit(0);
        }
        CHECK_IS(rc, ST_OK);
        CHECK(c->base == h.candidates[expected]);
        CHECK(st_owner(c, c->base) == 0 && st_owner(c, c->base + bytes - 1) == PROCESSES - 1);
        CHECK(st_owner(c, c->base - 1) == -1 && st_owner(c, c->base + bytes) == -1);
        for (uint32_t i = 0; i < ST_NCANDIDATES; i++) { /* the others have been let go */
            int mine = held[r] >> i & 1 || (int)i == expected;
            void *p = st_window_reserve(h.candidates[i], bytes);
            CHECK((p == NULL) == mine);
        }
        _exit(0);
    }
    for (uint32_t r = 0; r < PROCESSES; r++) {
        CHECK(waitpid(child[r], &status, 0) == child[r]);
        CHECK_IS(status, 0);
    }
    close(fd);
}

static void test_agree_processes(uint64_t seed)
{
    static const uint32_t none[PROCESSES] = {0, 0, 0, 0}, first[PROCESSES] = {1, 0, 0, 0},
                          each[PROCESSES] = {1, 2, 4, 8}, last[PROCESSES] = {0x7fff, 0x5555, 0x2aaa, 0},
                          all[PROCESSES] = {0x0fff, 0, 0xf000, 0};

    agree(none, 0);
    agree(first, 1);
    agree(each, 4);
    agree(last, ST_NCANDIDATES - 1);
    agree(all, -1);
    for (int i = 0; i < 4; i++) {
        uint32_t held[PROCESSES], any = 0;

        for (int r = 0; r < PROCESSES; r++)
            any |= held[r] = (uint32_t)(next(&seed) & next(&seed) & 0xffff);
        agree(held, any == 0xffff ? -1 : __builtin_ctz(~any));
    }
}

/* ---- liveness of real processes ------------------------------------------------------------ */

static void test_liveness(void)
{
    struct st_header h;
    int fd = small_job(2, &h), ends[2], status;
    struct st_ctx *c = enter(fd);
    char byte;
    pid_t child;

    CHECK(pipe(ends) == 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct st_ctx *mine = enter(fd);

        CHECK_IS(st_space_join(mine, 1), ST_OK);
        CHECK(write(ends[1], "!", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK_IS(st_space_join(c, 1), ST_EINVAL); /* another process has that rank */
    CHECK_IS(st_space_join(c, 0), ST_OK);
    CHECK(st_die_alive(c, 1));
    CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);
    CHECK(st_die_alive(c, 1)); /* slow is not dead */
    CHECK(kill(child, SIGKILL) == 0);
    while (st_die_alive(c, 1)) /* a zombie, not reaped yet, is dead; alarm() bounds this */
        sched_yield();
    CHECK(st_load_relaxed_64(&c->dies[1].dead) == 1);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(!st_die_alive(c, 1));
    close(ends[0]);
    close(ends[1]);
    leave(c);
    close(fd);
}

/* A die that has lost its lock, but not its life, is not declared dead. */
static void test_lost_lock(void)
{
    struct st_header h;
    int fd = small_job(2, &h), ends[2], status, other;
    struct st_ctx *c = enter(fd);
    struct rlimit before, none;
    char byte;
    pid_t child;

    CHECK(pipe(ends) == 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct st_ctx *mine = enter(fd);

        CHECK_IS(st_space_join(mine, 1), ST_OK);
        other = dup(fd);
        close(other); /* drops every lock of the process */
        CHECK(write(ends[1], "!", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK_IS(st_space_join(c, 0), ST_OK);
    if (st_load_relaxed_64(&c->dies[1].start_time) == st_start_time((uint32_t)child)) {
        CHECK(st_die_alive(c, 1));
        CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
        none = before;
        none.rlim_cur = 0;
        CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        CHECK(st_start_time((uint32_t)child) == ST_START_UNKNOWN);
        CHECK(st_die_alive(c, 1)); /* nobody can look: it is not dead for that */
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    } else
        printf("test_space: /proc is not real here (an emulator): a lost lock was not tested\n");
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(!st_die_alive(c, 1));
    close(ends[0]);
    close(ends[1]);
    leave(c);
    close(fd);
}

/* ---- dies that join at once, as threads ---------------------------------------------------- */

struct party {
    int fd;
    uint32_t rank;
    struct st_ctx *all; /* one mapping */
    pthread_mutex_t *probe; /* one address space: one probes at a time */
    uint64_t seed;
    pthread_t thread;
};

static void *party_main(void *arg)
{
    struct party *p = arg;
    struct st_ctx *c = &p->all[p->rank];
    uint32_t missing;
    uint64_t v[5];

    for (uint64_t spin = next(&p->seed) % 20000; spin--;)
        st_pause();
    for (uint32_t i = 0; i < c->ndies; i++)
        st_space_die(c, i, v); /* an inspector may look at any time */
    CHECK(pthread_mutex_lock(p->probe) == 0);
    CHECK_IS(st_space_join(c, p->rank), ST_OK);
    CHECK(pthread_mutex_unlock(p->probe) == 0);
    CHECK_IS(st_space_agree(c, 60000000000ull, &missing), ST_OK);
    CHECK(c->base == c->header->candidates[0]);
    return NULL;
}

static void test_join_threads(int rounds)
{
    while (rounds--) {
        struct st_header h;
        int fd = small_job(DIES_MOST, &h);
        struct st_ctx all[DIES_MOST];
        struct party p[DIES_MOST];
        pthread_mutex_t probe = PTHREAD_MUTEX_INITIALIZER;

        memset(all, 0, sizeof all);
        CHECK_IS(st_space_map(&all[0], fd), ST_OK);
        for (uint32_t i = 0; i < DIES_MOST; i++) {
            all[i] = all[0];
            all[i].shared_window = 1;
            all[i].wait = (struct st_wait_policy){.sleep_ns = 0, .poll_ns = 60000000000ull};
            p[i] = (struct party){fd, i, all, &probe, dies_seed + i + (uint64_t)rounds * 64, 0};
        }
        for (uint32_t i = 0; i < DIES_MOST; i++)
            CHECK(pthread_create(&p[i].thread, NULL, party_main, &p[i]) == 0);
        for (uint32_t i = 0; i < DIES_MOST; i++)
            CHECK(pthread_join(p[i].thread, NULL) == 0);
        CHECK(all[0].header->sleepers == 0);
        munmap(all[0].control, all[0].control_bytes);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = dies_setup("test_space", argc, argv);

    test_layout_refuses();
    test_layout();
    test_damage();
    test_noise(seed);
    test_sizes();
    test_join_refuses();
    test_states();
    test_viewer();
    test_agree_names_missing();
    test_agree_bad_mask();
    test_agree_processes(seed);
    test_liveness();
    test_lost_lock();
    test_join_threads(60 / DIES_SLOW);
    printf("test_space: ok\n");
    return 0;
}
