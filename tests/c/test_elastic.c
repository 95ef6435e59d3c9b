/* A die that is started again: what it takes over, when peers part with its predecessor, what stays pinned.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_elastic.c && ./a.out [seed]
 *
 * Dies are processes here, and are killed; each test is one job.
 */
#include <sys/wait.h>

#include "processes.h"

#include "st_invite.h"

enum { PAGES = 16 };

/* What the processes of a test tell each other, in memory that all have. */
struct board {
    uint64_t step[8];
    uint64_t va[8];
    uint64_t fail;
};

static struct board *say;
static struct st_ctx *mine; /* the die that the test itself is; its children do not want its window */

static int job(uint32_t n)
{
    struct st_header h;
    int fd = memfd_create("elastic", MFD_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_IS(st_space_layout(&h, n, PAGES * ST_PAGE_BYTES, 4096, 0), ST_OK);
    CHECK_IS(st_space_format(fd, &h, 1, 2), ST_OK);
    memset(say, 0, sizeof *say);
    return fd;
}

static void leave_window(void)
{
    if (mine)
        CHECK(munmap((void *)(uintptr_t)mine->base, mine->seg_bytes * mine->ndies) == 0);
    mine = NULL;
}

/* Runs one die in a process of its own; it ends with 0, or is killed. */
static pid_t start(void (*run)(int fd), int fd)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        leave_window();
        alarm(60);
        run(fd);
        _exit(0);
    }
    return pid;
}

static void ends(pid_t pid, int killed)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid);
    if (killed)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void tell(int k, uint64_t value) { st_store_release_64(&say->step[k], value); /* pairs with await */ }

static struct st_ctx *enter_again(int fd, uint32_t rank)
{
    struct st_ctx *c = enter_as(fd, rank, 1);

    st_takeover_settle(c);
    return c;
}

/* ---- all frames come back, and an old address finds nothing ------------------------ */

static void first_fills(int fd)
{
    struct st_ctx *c = enter(fd, 1);
    uint64_t va = 0;

    CHECK_IS(st_pages_map(c, PAGES, &va), ST_OK); /* all of its HBM */
    memset((void *)(uintptr_t)va, 0x77, 64);
    say->va[0] = va;
    tell(0, 1);
    await(&say->step[1], 1);
    kill(getpid(), SIGKILL);
}

static void second_fills(int fd)
{
    struct st_ctx *c = enter_again(fd, 1);
    uint64_t va = 0;

    CHECK_IS(st_die_life(c, 1), 1);
    CHECK_IS(c->former_pages, PAGES);
    CHECK_IS(c->frames_left, 0);
    CHECK_IS(st_registrar_begin(c), ST_OK);
    CHECK_IS(st_pages_map(c, PAGES, &va), ST_OK); /* waits for the peer to accept it */
    CHECK_IS(c->former_pages, 0);
    memset((void *)(uintptr_t)va, 0x55, PAGES * ST_PAGE_BYTES);
    say->va[1] = va;
    tell(2, 1);
    await(&say->step[3], 1);
    st_registrar_end(c);
}

static void test_frames_come_back(void)
{
    int fd = job(2);
    pid_t first = start(first_fills, fd), second;
    struct st_ctx *c = mine = enter(fd, 0);
    const volatile uint8_t *old, *fresh;

    CHECK_IS(st_registrar_begin(c), ST_OK);
    await(&say->step[0], 1);
    old = (const uint8_t *)(uintptr_t)say->va[0];
    CHECK_IS(st_ensure_mapped(c, say->va[0], PAGES * ST_PAGE_BYTES, 1), ST_OK);
    CHECK_IS(old[0], 0x77);
    CHECK(st_die_alive(c, 1));
    tell(1, 1);
    ends(first, 1);
    CHECK(!st_die_alive(c, 1));
    second = start(second_fills, fd);
    await(&say->step[2], 1);
    CHECK(st_die_alive(c, 1));
    CHECK(!st_die_alive_as(c, 1, 0));
    CHECK(st_die_alive_as(c, 1, 1));
    fresh = (const uint8_t *)(uintptr_t)say->va[1];
    CHECK_IS(st_ensure_mapped(c, say->va[1], PAGES * ST_PAGE_BYTES, 0), ST_OK);
    CHECK_IS(fresh[0], 0x55);
    if (say->va[1] != say->va[0]) {
        CHECK_IS(st_ensure_mapped(c, say->va[0], 64, 0), ST_EREG);
        CHECK_IS(old[0], 0); /* blank: no fault, and never the new array's bytes */
    }
    tell(3, 1);
    ends(second, 0);
    st_registrar_end(c);
    close(fd);
}

/* ---- an operation in progress, and a pin, hold the predecessor's pages --------------- */

static void second_waits(int fd)
{
    struct st_ctx *c = enter_again(fd, 1);
    uint64_t va = 0;

    CHECK_IS(st_registrar_begin(c), ST_OK);
    c->quarantine_ns = 300000000ull;
    CHECK_IS(st_pages_map(c, 1, &va), ST_ENOMEM); /* the peer is in an operation: nothing comes free, however long */
    tell(2, 1);
    await(&say->step[3], 1);
    c->quarantine_ns = 5000000000ull;
    CHECK_IS(st_pages_map(c, PAGES - 1, &va), ST_OK); /* but for the page that is pinned */
    CHECK_IS(c->former_pages, 1);
    memset((void *)(uintptr_t)va, 0x55, (PAGES - 1) * ST_PAGE_BYTES);
    tell(4, 1);
    await(&say->step[5], 1);
    CHECK_IS(st_pages_map(c, 1, &va), ST_OK);
    CHECK_IS(c->former_pages, 0);
    tell(6, 1);
    await(&say->step[7], 1);
    st_registrar_end(c);
}

static void test_held(void)
{
    int fd = job(2);
    pid_t first = start(first_fills, fd), second;
    struct st_ctx *c = mine = enter(fd, 0);
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;
    uint32_t ranks[2] = {0, 1}, lives[2] = {0, 0}, pin;
    volatile uint8_t *old;

    CHECK_IS(st_registrar_begin(c), ST_OK);
    await(&say->step[0], 1);
    old = (uint8_t *)(uintptr_t)say->va[0];
    CHECK_IS(st_ensure_mapped(c, say->va[0], PAGES * ST_PAGE_BYTES, 1), ST_OK);
    c->users = &(struct st_user){NULL, {&lock, &other}, ranks, lives, 2};
    pin = st_pin(c, say->va[0] + 100, 200);
    CHECK(pin && pin != ST_PIN_UNLISTED);
    pthread_mutex_lock(&lock); /* an operation with the first one is in progress */
    tell(1, 1);
    ends(first, 1);
    second = start(second_waits, fd);
    await(&say->step[2], 1);
    CHECK_IS(st_accept(c, 1), ST_AGAIN);
    CHECK_IS(old[0], 0x77); /* it goes on reading what it read */
    pthread_mutex_unlock(&lock);
    tell(3, 1);
    await(&say->step[4], 1);
    CHECK_IS(old[0], 0x77); /* pinned */
    CHECK_IS(old[ST_PAGE_BYTES], 0);
    CHECK_IS(c->follow[1].kept, 1);
    CHECK_IS(st_ensure_mapped(c, say->va[0], 64, 0), ST_EREG); /* but no operation takes it for an array */
    st_let_go(c, pin, 1, say->va[0] + 100, 200);
    CHECK_IS(c->follow[1].kept, 0);
    CHECK_IS(old[0], 0);
    tell(5, 1);
    await(&say->step[6], 1);
    tell(7, 1);
    ends(second, 0);
    c->users = NULL;
    st_registrar_end(c);
    close(fd);
}

/* ---- a successor that dies at any point leaves what the next one can take over -------- */

static void killed_before_settling(int fd)
{
    struct st_ctx *c = calloc(1, sizeof *c);
    uint32_t missing;

    CHECK(c);
    CHECK_IS(st_space_map(c, fd), ST_OK);
    CHECK_IS(st_space_private(c), ST_OK);
    c->wait = (struct st_wait_policy){.sleep_ns = 1000000, .poll_ns = 2000000};
    CHECK_IS(st_space_join_as(c, 1, 1), ST_OK);
    if (say->fail) {
        CHECK_IS(st_space_agree(c, 60000000000ull, &missing), ST_OK);
        if (say->fail == 1)
            st_takeover_pages(c);
        else
            st_takeover_settle(c);
    }
    kill(getpid(), SIGKILL);
}

static void test_successors_die(void)
{
    int fd = job(2);
    pid_t first = start(first_fills, fd), next;
    struct st_ctx *c = mine = enter(fd, 0);

    CHECK_IS(st_registrar_begin(c), ST_OK);
    await(&say->step[0], 1);
    CHECK_IS(st_ensure_mapped(c, say->va[0], PAGES * ST_PAGE_BYTES, 1), ST_OK);
    tell(1, 1);
    ends(first, 1);
    for (say->fail = 0; say->fail < 3; say->fail++) {
        next = start(killed_before_settling, fd);
        ends(next, 1);
        CHECK(!st_die_alive(c, 1));
        CHECK_IS(st_die_life(c, 1), say->fail + 1);
    }
    next = fork();
    CHECK(next >= 0);
    if (next == 0) {
        struct st_ctx *d;
        uint64_t va = 0;

        leave_window();
        d = enter_again(fd, 1);
        CHECK_IS(st_die_life(d, 1), 4);
        CHECK_IS(st_registrar_begin(d), ST_OK);
        CHECK_IS(st_pages_map(d, PAGES, &va), ST_OK); /* every frame has come back */
        CHECK_IS(d->frames_left, 0);
        tell(2, 1);
        await(&say->step[3], 1);
        _exit(0);
    }
    await(&say->step[2], 1);
    tell(3, 1);
    ends(next, 0);
    st_registrar_end(c);
    close(fd);
}

/* ---- invitations ------------------------------------------------------------------- */

static void waits_for_offer(int fd)
{
    struct st_ctx *c = enter_again(fd, 1);
    struct st_offer offer = {0, 0, 0};

    tell(2, 1);
    CHECK_IS(st_invite_await(c, 30000000000ull, &offer), ST_OK);
    CHECK_IS(offer.va, say->va[2]);
    CHECK_IS(offer.bytes, 4096);
    CHECK_IS(offer.life, 0);
    tell(4, 1);
    CHECK_IS(st_invite_await(c, 20000000ull, &offer), ST_ETIMEOUT);
    tell(6, 1);
    CHECK_IS(st_invite_await(c, 30000000000ull, &offer), ST_EDEAD); /* the other leaves */
}

static void test_invitations(void)
{
    int fd = job(2);
    pid_t first = start(first_fills, fd), second;
    struct st_ctx *c = mine = enter(fd, 0);
    uint64_t va = 0, word;

    await(&say->step[0], 1);
    tell(1, 1);
    ends(first, 1);
    CHECK(!st_invite_claim(c, 1));
    second = start(waits_for_offer, fd);
    while (!st_invite_claim(c, 1)) /* nobody claims the first one */
        sched_yield();
    CHECK(!st_invite_claim(c, 1));
    st_invite_retract(c, 1);
    CHECK(st_invite_claim(c, 1));
    CHECK_IS(st_pages_map(c, 1, &va), ST_OK);
    say->va[2] = va;
    CHECK(st_invite_offer(c, 1, va, 4096));
    await(&say->step[4], 1);
    st_invite_retract(c, 1); /* too late */
    await(&say->step[6], 1);
    CHECK(!st_invite_offer(c, 1, va, 4096));
    do
        word = st_load_acquire_64(&c->dies[1].invite); /* pairs with st_invite_await */
    while (ST_INVITE_STATE(word) != ST_INVITE_WAITING);
    CHECK_IS(st_space_leave(c), ST_OK);
    ends(second, 0);
    close(fd);
}

/* ---- pins beyond the table ------------------------------------------------------------ */

static void test_many_pins(void)
{
    int fd = job(1);
    struct st_ctx *c = mine = enter(fd, 0);
    uint64_t va = 0, map[(2 * PAGES + 63) / 64];
    uint32_t pins[ST_PIN_SLOTS + 2], i;

    CHECK_IS(st_pages_map(c, 2, &va), ST_OK);
    for (i = 0; i < ST_PIN_SLOTS + 2; i++)
        pins[i] = st_pin(c, va + ST_PAGE_BYTES - 1, 2);
    CHECK_IS(pins[ST_PIN_SLOTS - 1], ST_PIN_SLOTS);
    CHECK_IS(pins[ST_PIN_SLOTS], ST_PIN_UNLISTED);
    CHECK(st_pins_mark(c, 0, 0, 0, map)); /* it may be anything */
    CHECK(st_pins_mark(c, 0, 0, ST_PIN_UNLISTED, map));
    for (i = ST_PIN_SLOTS + 2; i-- > 0;)
        st_let_go(c, pins[i], 0, va + ST_PAGE_BYTES - 1, 2);
    memset(map, 0, sizeof map);
    CHECK(!st_pins_mark(c, 0, 0, 0, map));
    CHECK_IS(map[0], 0);
    i = st_pin(c, va + ST_PAGE_BYTES - 1, 2);
    CHECK(!st_pins_mark(c, 0, 0, 0, map));
    CHECK_IS(map[0], 3);
    st_let_go(c, i, 0, va, 2);
    close(fd);
}

int main(int argc, char **argv)
{
    dies_setup("test_elastic", argc, argv);
#ifdef ST_TSAN
    printf("test_elastic: processes, which ThreadSanitizer does not see\n");
    return 77;
#endif
#ifdef ST_EMULATED
    printf("test_elastic: processes with threads that are killed, which end the emulator\n");
    return 77;
#endif
    say = mmap(NULL, sizeof *say, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(say != MAP_FAILED);
    {
        void (*const tests[])(void) = {test_frames_come_back, test_held, test_successors_die, test_invitations,
                                       test_many_pins};

        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
            pid_t pid = fork(); /* each job in its own address space */

            CHECK(pid >= 0);
            if (pid == 0) {
                tests[i]();
                _exit(0);
            }
            printf("test_elastic: %zu\n", i), fflush(stdout), ends(pid, 0);
        }
    }
    printf("test_elastic: ok\n");
    return 0;
}
