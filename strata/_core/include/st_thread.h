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

#endif
