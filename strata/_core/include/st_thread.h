/* Threads of the core: they know no Python, and take no signals. */
#ifndef ST_THREAD_H
#define ST_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Signals are for the program's own threads: one that is delivered to a thread of
 * ours would not end a sleep of the main thread.  Faults of the thread itself stay.
 * Around pthread_create; *before is what to go back to. */
static inline void st_thread_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t all;
    size_t i;

    sigfillset(&all);
    for (i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* Called by a thread that works in the background of its die: when it wakes up it takes an idle CPU, if there is
 * one, but preempts nobody.  Otherwise whoever hands it work would lose its own CPU to it at once, for milliseconds. */
static inline void st_thread_background(void)
{
    struct sched_param param = {0};

    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &param);
}

#endif
