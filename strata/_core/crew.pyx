"""The threads of a die that run cores of an operation beside the caller."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from strata._core.abi cimport st_crew, st_is_die
from strata._core.space cimport Context


cdef extern from "st_crew.h" nogil:
    int st_crew_init(st_crew *crew)
    void st_crew_open(st_crew *crew)
    void st_crew_end(st_crew *crew)
    size_t st_crew_bytes()


def start(Context context, uint32_t workers):
    """From now on operations of this die use up to ``workers`` threads.  The threads are made when they are
    first wanted; too few of them is no error.  MemoryError."""
    cdef st_crew *crew = context.ctx.crew
    if workers > 1 and crew == NULL:
        crew = <st_crew *>calloc(1, st_crew_bytes())  # for as long as the context, that is, for ever
        if crew == NULL or st_crew_init(crew) != 0:
            free(crew)
            raise MemoryError
        context.ctx.crew = crew
    elif crew != NULL:
        st_crew_open(crew)
    context.ctx.workers = workers


def stop(Context context):
    """Ends the threads.  Operations that begin later run on the caller's alone."""
    if context.ctx.crew == NULL or not st_is_die(&context.ctx):  # a forked child has none of them
        return
    context.ctx.workers = 1
    with nogil:
        st_crew_end(context.ctx.crew)
