/* A page provider over plain private memory, for tests of what lies above one.
 *
 * It keeps the provider's contract and checks the heap's side of it: unmapping
 * what is not mapped, or more than one mapping or extension gave, is refused.  Pages are
 * first fit from where the last search ended, so that addresses come back late. */
#ifndef ST_HEAP_FAKE_H
#define ST_HEAP_FAKE_H

#include <stdint.h>
#include <sys/mman.h>

#include "st_status.h"

enum { ST_FAKE_PAGES = 4096 };

struct st_fake_pages {
    uint64_t base;   /* address of `npages` pages of memory, 2 MiB aligned */
    uint64_t npages; /* at most ST_FAKE_PAGES */
    uint64_t share;  /* how many may be mapped at once */
    uint64_t mapped, cursor;
    uint64_t extended; /* pages that were asked for at an address, ever */
    uint64_t calls, fail_at; /* the fail_at-th call from now on fails with `failure`; 0: none */
    int failure;
    uint32_t serial;
    uint32_t run[ST_FAKE_PAGES]; /* number of the mapping that a page belongs to; 0: not mapped */
};

static inline int st_fake_fails(struct st_fake_pages *f)
{
    f->calls++;
    return f->fail_at && --f->fail_at == 0;
}

static inline int st_fake_map(void *arg, uint64_t n, uint64_t *va)
{
    struct st_fake_pages *f = arg;

    if (st_fake_fails(f))
        return f->failure;
    if (n == 0 || f->mapped + n > f->share)
        return ST_ENOMEM;
    for (uint64_t tried = 0; tried < f->npages; tried++) {
        uint64_t at = (f->cursor + tried) % f->npages, k = 0;
        while (k < n && at + k < f->npages && f->run[at + k] == 0)
            k++;
        if (k < n)
            continue;
        f->serial++;
        for (k = 0; k < n; k++)
            f->run[at + k] = f->serial;
        f->mapped += n;
        f->cursor = at + n;
        *va = f->base + (at << 21);
        return ST_OK;
    }
    return ST_ENOMEM;
}

static inline int st_fake_extend(void *arg, uint64_t va, uint64_t n)
{
    struct st_fake_pages *f = arg;
    uint64_t at = (va - f->base) >> 21;

    if (st_fake_fails(f))
        return f->failure;
    if (va % (1 << 21) || va < f->base || n == 0 || n > f->npages || at > f->npages - n)
        return ST_EINVAL;
    for (uint64_t k = 0; k < n; k++)
        if (f->run[at + k])
            return ST_EINVAL;
    if (f->mapped + n > f->share)
        return ST_ENOMEM;
    f->serial++;
    for (uint64_t k = 0; k < n; k++)
        f->run[at + k] = f->serial;
    f->mapped += n;
    f->extended += n;
    return ST_OK;
}

static inline int st_fake_unmap(void *arg, uint64_t va, uint64_t n)
{
    struct st_fake_pages *f = arg;
    uint64_t at = (va - f->base) >> 21;

    if (st_fake_fails(f))
        return f->failure;
    if (va % (1 << 21) || va < f->base || n == 0 || at + n > f->npages)
        return ST_EINVAL;
    for (uint64_t k = 0; k < n; k++)
        if (f->run[at + k] == 0 || f->run[at + k] != f->run[at])
            return ST_EINVAL;
    if (madvise((void *)(uintptr_t)va, n << 21, MADV_DONTNEED) != 0)
        return ST_ESYS;
    for (uint64_t k = 0; k < n; k++)
        f->run[at + k] = 0;
    f->mapped -= n;
    return ST_OK;
}

#endif
