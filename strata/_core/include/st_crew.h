/* The crew: threads of a die that run cores of a plan beside the caller.
 *
 * Made when first wanted; they sleep when there is nothing to do, and know no Python.
 * One operation of the die has the crew at a time; another that finds it busy
 * runs its cores alone.
 */
#ifndef ST_CREW_H
#define ST_CREW_H

#include <pthread.h>

#include "st_exec.h"
#include "st_thread.h"

#define ST_CREW_MOST 64u

struct st_crew {
    pthread_mutex_t lock; /* of all but `stopped` */
    pthread_cond_t more;  /* there is a job, or the end has come */
    pthread_cond_t over;  /* a thread has done its part */
    pthread_t threads[ST_CREW_MOST];
    struct st_run job;    /* the caller's; each thread has its own room, waiter and first core */
    uint64_t jobs;        /* given out so far */
    uint32_t made;        /* threads there are */
    uint32_t wanted;      /* of them in this job */
    uint32_t working;     /* of them not done yet */
    uint32_t busy;
    uint32_t ending;
    uint32_t stopped;     /* status of the first thread that gave up */
    int err;              /* and its errno */
    uint64_t timeout_ns;
    struct st_crew_seat {
        struct st_crew *crew;
        uint32_t place; /* 1 ... : first core of its share */
        uint64_t seen;  /* jobs */
    } seats[ST_CREW_MOST];
};

static inline size_t st_crew_bytes(void) { return sizeof(struct st_crew); }

/* The first thread that cannot go on says so; the others stop at their next unit. */
static inline void st_crew_give_up(struct st_crew *crew, struct st_group *g, int status)
{
    int err = errno;

    if (!st_cas_acq_rel_32(&crew->stopped, 0, (uint32_t)status)) /* pairs with the loads in st_core_run */
        return;
    crew->err = err; /* read under the lock, which this thread takes after it */
    st_fence_seqcst();
    st_group_wake(g);
}

static inline void st_crew_work(struct st_crew_seat *seat, struct st_run run, uint64_t timeout_ns)
{
    void *at[2 * ST_MAX_DIES];
    struct st_wait_policy policy = run.g->ctx->wait;
    struct st_waiter waiter;
    int rc;

    policy.poll = NULL; /* signals are the caller's */
    policy.spread = NULL;
    st_wait_begin(&waiter, &policy, &run.g->header->wake_word, &run.g->header->sleepers, timeout_ns);
    run.at = at;
    run.waiter = &waiter;
    run.first = seat->place;
    run.trace = st_trace_as(run.g->ctx, ST_TRACE_CORE, seat->place);
    st_exec_traced(run.trace, run.g, run.number);
    rc = st_run_cores(&run);
    st_wait_end(&waiter);
    if (rc != ST_OK)
        st_crew_give_up(seat->crew, run.g, rc);
}

static void *st_crew_main(void *arg)
{
    struct st_crew_seat *seat = arg;
    struct st_crew *crew = seat->crew;
    struct st_run run;
    uint64_t timeout_ns;

    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (seat->seen == crew->jobs || seat->place > crew->wanted) {
            seat->seen = crew->jobs;
            if (crew->ending) { /* after the job that it owes, which the caller waits for */
                pthread_mutex_unlock(&crew->lock);
                return NULL;
            }
            pthread_cond_wait(&crew->more, &crew->lock);
        }
        seat->seen = crew->jobs;
        run = crew->job;
        timeout_ns = crew->timeout_ns;
        pthread_mutex_unlock(&crew->lock);
        st_crew_work(seat, run, timeout_ns);
        pthread_mutex_lock(&crew->lock);
        if (--crew->working == 0)
            pthread_cond_signal(&crew->over);
    }
}

static inline int st_crew_init(struct st_crew *crew)
{
    memset(crew, 0, sizeof *crew);
    return pthread_mutex_init(&crew->lock, NULL) == 0 && pthread_cond_init(&crew->more, NULL) == 0 &&
                   pthread_cond_init(&crew->over, NULL) == 0
               ? ST_OK
               : ST_ESYS;
}

/* Has the crew up to `threads` threads; the caller holds the lock.  How many there are. */
static inline uint32_t st_crew_muster(struct st_crew *crew, uint32_t threads)
{
    sigset_t before;

    threads = threads < ST_CREW_MOST ? threads : ST_CREW_MOST;
    if (crew->made >= threads || crew->ending)
        return crew->made < threads ? crew->made : threads;
    st_thread_signals(&before);
    while (crew->made < threads) {
        struct st_crew_seat *seat = &crew->seats[crew->made];

        *seat = (struct st_crew_seat){.crew = crew, .place = crew->made + 1, .seen = crew->jobs};
        if (pthread_create(&crew->threads[crew->made], NULL, st_crew_main, seat) != 0)
            break; /* fewer will do */
        crew->made++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return crew->made;
}

/* Ends the threads; those that are at a job finish it.  Until st_crew_open operations run alone. */
static inline void st_crew_end(struct st_crew *crew)
{
    uint32_t i, made;

    pthread_mutex_lock(&crew->lock);
    crew->ending = 1;
    made = crew->made;
    crew->made = 0;
    pthread_cond_broadcast(&crew->more);
    pthread_mutex_unlock(&crew->lock);
    for (i = 0; i < made; i++)
        pthread_join(crew->threads[i], NULL);
}

static inline void st_crew_open(struct st_crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    crew->ending = 0;
    pthread_mutex_unlock(&crew->lock);
}

/* Runs the plan with `workers` threads, the caller among them.  ST_OK, or why it stopped; no
 * thread touches a buffer when it returns. */
static inline int st_crew_run(struct st_crew *crew, struct st_run *run, uint32_t workers, uint64_t timeout_ns)
{
    uint32_t helpers = 0;
    int rc;

    pthread_mutex_lock(&crew->lock);
    if (!crew->busy) {
        helpers = st_crew_muster(crew, workers - 1);
        crew->busy = helpers > 0;
    }
    if (helpers) {
        st_store_relaxed_32(&crew->stopped, 0);
        run->stride = helpers + 1;
        run->stopped = &crew->stopped;
        crew->job = *run;
        crew->timeout_ns = timeout_ns;
        crew->wanted = crew->working = helpers;
        crew->jobs++;
        pthread_cond_broadcast(&crew->more);
    }
    pthread_mutex_unlock(&crew->lock);
    rc = st_run_cores(run);
    if (!helpers)
        return rc;
    if (rc != ST_OK)
        st_crew_give_up(crew, run->g, rc);
    pthread_mutex_lock(&crew->lock);
    while (crew->working)
        pthread_cond_wait(&crew->over, &crew->lock);
    /* The caller has an exception to raise, whichever thread heard of the failure first. */
    rc = rc == ST_EINTR ? rc : (int)st_load_acquire_32(&crew->stopped); /* pairs with st_crew_give_up */
    if (rc != ST_OK)
        errno = crew->err;
    crew->busy = 0;
    pthread_mutex_unlock(&crew->lock);
    return rc;
}

/* Runs all units of a plan.  at: room for 2 * max_operands pointers; t: of this thread, NULL: it is not traced. */
static inline int st_exec_by(struct st_group *g, const struct st_plan *p, uint64_t number, void **at,
                                    uint64_t timeout_ns, struct st_tracer *t)
{
    struct st_run run = {.g = g, .p = p, .number = number, .waiter = &g->waiter, .at = at, .trace = t, .stride = 1};
    uint32_t cores = st_plan_cores(p), workers = g->ctx->workers < cores ? g->ctx->workers : cores;

    if (__builtin_expect(t != NULL, 0))
        t->waits = 0;
    st_exec_reset(p);
    if (workers > 1 && g->ctx->crew)
        return st_crew_run(g->ctx->crew, &run, workers, timeout_ns);
    return st_run_cores(&run);
}

static inline int st_exec(struct st_group *g, const struct st_plan *p, uint64_t number, void **at, uint64_t timeout_ns)
{
    return st_exec_by(g, p, number, at, timeout_ns, st_trace_on(g->ctx));
}

/* Runs a plan of units of rows, which is part of no operation of the group: nothing of the group is touched. */
static inline int st_exec_rows(struct st_group *g, const struct st_plan *p, const struct st_rows *rows)
{
    struct st_waiter waiter;
    struct st_run run = {.g = g, .p = p, .rows = rows, .waiter = &waiter, .stride = 1};
    uint32_t cores = st_plan_cores(p), workers = g->ctx->workers < cores ? g->ctx->workers : cores;
    int rc = st_rows_check(p, rows);

    if (rc != ST_OK)
        return rc;
    run.trace = st_exec_tracer(g);
    st_trace_begins(run.trace);
    st_exec_reset(p);
    st_wait_begin(&waiter, &g->ctx->wait, NULL, NULL, 0); /* no unit waits */
    rc = workers > 1 && g->ctx->crew ? st_crew_run(g->ctx->crew, &run, workers, 0) : st_run_cores(&run);
    st_wait_end(&waiter);
    return rc;
}

#endif
