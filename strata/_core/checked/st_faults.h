/* What a fault point does. */
#ifndef ST_FAULTS_H
#define ST_FAULTS_H

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "st_atomic.h"
#include "st_fault.h"

enum st_fault_action { ST_FAULT_NOTHING, ST_FAULT_KILL, ST_FAULT_STOP, ST_FAULT_SLEEP };

/* Armed: `action` happens when `point` (ST_FP_COUNT: any) is reached for the nth time, counted from 1 since then. */
struct st_fault_plan {
    uint32_t point;
    uint32_t action;
    uint64_t nth;
    uint64_t sleep_ns;
    uint64_t reached[ST_FP_COUNT]; /* since the process began */
    uint64_t since;                /* times that the plan's point was reached since it was armed */
};

static struct st_fault_plan st_armed;

static const char *const st_fault_names[] = {
#define ST_FAULT_NAME(name) #name,
    ST_FAULT_POINTS(ST_FAULT_NAME)
#undef ST_FAULT_NAME
};

#define ST_EXPORTED __attribute__((visibility("default")))

ST_EXPORTED void st_hook_fault(enum st_fault_point point)
{
    struct st_fault_plan *f = &st_armed;

    (st_add_acq_rel_64)(&f->reached[point], 1); /* pairs with nothing: a count */
    if (f->action == ST_FAULT_NOTHING || (f->point != ST_FP_COUNT && f->point != (uint32_t)point))
        return;
    if ((st_add_acq_rel_64)(&f->since, 1) + 1 != f->nth) /* pairs with nothing: a count */
        return;
    if (f->action == ST_FAULT_KILL)
        kill(getpid(), SIGKILL);
    if (f->action == ST_FAULT_STOP)
        kill(getpid(), SIGSTOP);
    if (f->action == ST_FAULT_SLEEP) {
        struct timespec ts = {(time_t)(f->sleep_ns / 1000000000ull), (long)(f->sleep_ns % 1000000000ull)};
        nanosleep(&ts, NULL);
    }
}

#endif
