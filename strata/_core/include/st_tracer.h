/* What a die keeps of its trace outside shared memory: which thread writes to which slice, and how far it is. */
#ifndef ST_TRACER_H
#define ST_TRACER_H

#include <pthread.h>
#include <stdint.h>

#include "st_abi.h"

/* A slice, as the thread that has it sees it.  Nobody else touches it meanwhile. */
struct st_tracer {
    struct st_trace_slice *slice;
    struct st_trace_event *events;
    uint64_t head;     /* events ever written */
    uint64_t mask;     /* events of the slice, less one */
    uint64_t limit;    /* head at which there is something to see to */
    uint64_t reserved; /* events from the slice's begin on that have memory */
    uint64_t last;     /* when the last span ended, and the next begins */
    uint64_t at;       /* of the events in the object */
    uint32_t clock;
    uint32_t mode;     /* that the limit is for */
    uint32_t role, index;
    uint32_t tid;
    uint32_t waits;    /* its cores have found nothing to go on with since the last unit */
    uint32_t starved;  /* there was no memory for more */
    int fd;
    uint64_t *key;     /* of the thread that has it, in st_traces */
    uint64_t pad[3]; /* threads do not share lines */
};
_Static_assert(sizeof(struct st_tracer) == 128, "two lines");

enum st_traces_state { ST_TRACES_NONE = 0, ST_TRACES_OPENING = 1, ST_TRACES_OPEN = 2, ST_TRACES_FAILED = 3 };

struct st_traces {
    const uint32_t *mode;  /* in the die table */
    struct st_trace *area; /* once it is open */
    uint32_t state;        /* enum st_traces_state */
    uint32_t naming;       /* a thread writes a name */
    uint32_t names, names_used;
    pthread_key_t end;     /* tells when a thread that has a slice ends, */
    uint32_t ends;         /* if there is a key for it */
    uint64_t keys[ST_TRACE_SLICES]; /* threads; 0: nobody has the slice */
    struct st_tracer tracers[ST_TRACE_SLICES];
};

#endif
