/* Units of one cost to the cores that are free first. */
#ifndef ST_SCHEDULE_DEAL_H
#define ST_SCHEDULE_DEAL_H

#include "st_schedule_types.h"

static inline int st_sched_free_first(const struct st_sched_core *a, const struct st_sched_core *b)
{
    return a->load < b->load || (a->load == b->load && a->core < b->core);
}

/* Adds to the load of the core on top of the heap. */
static inline void st_sched_charge(struct st_sched_core *heap, uint32_t cores, int64_t each)
{
    struct st_sched_core top = heap[0];
    uint32_t at = 0, child;

    top.load += each;
    while ((child = 2 * at + 1) < cores) {
        if (child + 1 < cores && st_sched_free_first(&heap[child + 1], &heap[child]))
            child++;
        if (!st_sched_free_first(&heap[child], &top))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = top;
}

/* A sorted array is a heap too. */
static inline void st_sched_sort_heap(struct st_sched *s, struct st_sched_core *heap)
{
    uint32_t i;

    for (i = 0; i < s->cores; i++)
        s->keys[i] = st_sched_key((uint64_t)heap[i].load, (int32_t)heap[i].core, i);
    st_sched_sort(s->keys, s->spare, s->cores);
    for (i = 0; i < s->cores; i++)
        heap[i] = (struct st_sched_core){(int64_t)s->keys[i].key, (uint32_t)st_sched_second(&s->keys[i]), 0};
}

/* Gives k units of one cost to cores in a circle, from the one that is free first. */
static inline void st_sched_circle(struct st_sched *s, struct st_sched_core *heap, int64_t each, uint32_t *core, uint32_t k)
{
    struct st_sched_core *turned = s->trial + s->cores; /* scratch */
    uint32_t i, c, n = s->cores, whole = k / n, extra = k % n;

    for (i = 0; i + n <= k; i += n)
        for (c = 0; c < n; c++)
            core[i + c] = heap[c].core;
    for (c = 0; c < extra; c++)
        core[i + c] = heap[c].core;
    for (c = 0; c < n; c++) {
        i = (c + extra) % n;
        turned[c] = heap[i];
        turned[c].load += each * (int64_t)(whole + (i < extra));
    }
    memcpy(heap, turned, n * sizeof(*heap));
}

/* Deals k units of one cost; core[i] becomes the core of the i-th. */
static inline void st_sched_deal(struct st_sched *s, struct st_sched_core *heap, int64_t each, uint32_t *core, uint32_t k)
{
    uint32_t i = 0, n = s->cores, end;
    struct st_sched_core again;

    while (k - i >= n) {
        st_sched_sort_heap(s, heap);
        again = heap[0];
        again.load += each;
        if (st_sched_free_first(&heap[n - 1], &again)) {
            st_sched_circle(s, heap, each, core + i, k - i);
            return;
        }
        for (end = i + n; i < end; i++) {
            core[i] = heap[0].core;
            st_sched_charge(heap, n, each);
        }
    }
    for (; i < k; i++) {
        core[i] = heap[0].core;
        st_sched_charge(heap, n, each);
    }
}

#endif
