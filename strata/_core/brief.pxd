"""Small operations, which keep the interpreter's lock as long as nobody has to be waited for."""

from strata._core.group cimport st_group, st_request


cdef extern from *:
    """
    #include "st_collective.h"

    /* Of this thread: the group in whose operation it is with the interpreter's lock, and what that is let go with. */
    static __thread struct {
        struct st_group *group;
        PyThreadState *gone;
    } st_within;

    /* The first slow step of such an operation: from here on it may take long. */
    static int st_yield_python(void *arg)
    {
        struct st_group *g = st_within.group;

        (void)arg;
        g->policy.poll = g->ctx->wait.poll;
        g->policy.poll_ns = g->ctx->wait.poll_ns;
        st_within.gone = PyEval_SaveThread();
        return 0;
    }

    /* A small operation of a group that has been taken.  Mostly all members are there in less time than it takes to
     * let go of the interpreter's lock and to get it again: that is done at the first step longer than a pause. */
    static int st_collective_within(struct st_group *g, struct st_request *r)
    {
        __typeof__(st_within) before = st_within; /* a signal handler's operation, in the middle of another one */
        int rc;

        st_within.group = g;
        st_within.gone = NULL;
        g->policy.poll = st_yield_python;
        g->policy.poll_ns = 0;
        rc = st_collective(g, r);
        st_group_release(g);
        if (st_within.gone)
            PyEval_RestoreThread(st_within.gone);
        st_within = before;
        return rc;
    }
    """
    int st_collective_within(st_group *g, st_request *r)
