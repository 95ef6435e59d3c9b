/* Weak order: what kernels write.  A reduction goes to room of its thread first and is then stored as copies are; an
 * accumulation waits as a whole, and is made by the kernel when it takes effect. */
#ifndef ST_WEAK_KERNELS_H
#define ST_WEAK_KERNELS_H

#include "st_weak.h"

/* Where a reduction writes in place of `to`: `to` itself if its results are not to be late. */
ST_EXPORTED void **st_hook_late(void **to, uint32_t n, uint64_t bytes)
{
    uint64_t room = (bytes + 63) / 64 * 64;
    uint8_t *made;
    void **late;
    uint32_t k;

    if (!ST_WEAK_ON || !n || !bytes || bytes > ST_WEAK_COPY || n * room > ST_WEAK_KEPT)
        return to;
    late = malloc((n * sizeof *late + 63) / 64 * 64 + 64 + n * room);
    if (!late)
        abort(); /* a test cannot go on without what it tests with */
    made = (uint8_t *)(((uintptr_t)late + n * sizeof *late + 63) / 64 * 64);
    for (k = 0; k < n; k++, made += room) {
        late[k] = made;
        memcpy(made, to[k], bytes);
    }
    return late;
}

/* The reduction is over; unless it failed, its results are stored. */
ST_EXPORTED void st_hook_made(void **late, void **to, uint32_t n, uint64_t bytes, int rc)
{
    uint32_t k;

    if (late == to)
        return;
    for (k = 0; k < n && rc == 0; k++)
        st_hook_copy(to[k], late[k], bytes, 0);
    free(late);
}

ST_EXPORTED int st_hook_accumulate(st_accumulate_fn *run, int dtype, int op, void *dst, const void *src, uint64_t count,
                                   uint64_t bytes)
{
    struct st_weak_thread *t;
    uint8_t *data;
    int rc = ST_WEAK_ON ? run(dtype, op, dst, src, 0) : 0;

    if (!ST_WEAK_ON || rc != 0 || !bytes || bytes > ST_WEAK_COPY || !st_weak_shared(dst))
        return rc != 0 ? rc : run(dtype, op, dst, src, count);
    data = malloc(bytes);
    if (!data)
        abort(); /* a test cannot go on without what it tests with */
    memcpy(data, src, bytes);
    t = st_weak_step(128);
    st_weak_forget(t, dst, bytes);
    st_weak_push(t, (struct st_weak_store){.to = dst, .data = data, .bytes = bytes, .run = run, .count = count,
                                           .dtype = dtype, .op = op});
    st_weak_settle(t);
    st_weak_over(t);
    return 0;
}

#endif
