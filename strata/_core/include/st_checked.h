/* What the core calls in place of its atomic accesses and copies in the checked core; see DESIGN.md.
 *
 * Included by st_atomic.h and st_copy.h.  In the release core the accesses are what they are, and the rest is nothing.
 * The functions are in _core/checked, one shared object
 * for all modules.  (st_store_release_64)(p, v), in parentheses, is still the access itself.
 */
#ifndef ST_CHECKED_H
#define ST_CHECKED_H

#ifdef ST_CHECKED

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum st_order { ST_RELAXED, ST_ACQUIRE, ST_RELEASE, ST_ACQ_REL, ST_SEQCST };

/* `where`: the function of the core that makes the access. */
extern uint32_t st_hook_load_32(const uint32_t *p, enum st_order order, const char *where);
extern uint64_t st_hook_load_64(const uint64_t *p, enum st_order order, const char *where);
extern void st_hook_store_32(uint32_t *p, uint32_t v, enum st_order order, const char *where);
extern void st_hook_store_64(uint64_t *p, uint64_t v, enum st_order order, const char *where);
/* Before a read-modify-write, and before a fence: both are made in memory at once. */
extern void st_hook_rmw(const void *p, enum st_order order, const char *where);
extern void st_hook_fence(const char *where);
/* In place of st_copy. */
extern void st_hook_copy(void *dst, const void *src, uint64_t bytes, int nt);
/* Room in place of `to` for the results of a kernel (n of them), and the end of it: they are stored from there. */
extern void **st_hook_late(void **to, uint32_t n, uint64_t bytes);
extern void st_hook_made(void **late, void **to, uint32_t n, uint64_t bytes, int rc);
/* In place of run(dtype, op, dst, src, count). */
typedef int st_accumulate_fn(int dtype, int op, void *dst, const void *src, uint64_t count);
extern int st_hook_accumulate(st_accumulate_fn *run, int dtype, int op, void *dst, const void *src, uint64_t count,
                              uint64_t bytes);
/* Everything that this thread has stored is in memory afterwards. */
extern void st_hook_drain(void);
/* What this thread has stored there is. */
extern void st_hook_touch(const void *p, uint64_t bytes);
/* An acquire by other means: nothing that this thread has seen before counts any more. */
extern void st_hook_forget(void);
/* All threads' stores are in memory; the memory may go. */
extern void st_hook_unmapping(const void *p, uint64_t bytes);
/* Other dies see this memory: stores to it may be late. */
extern void st_hook_shared(const void *p, uint64_t bytes);
/* A number below n in place of the usual one. */
extern uint32_t st_hook_choose(uint32_t n, uint32_t usual);

#define ST_SHARED(p, bytes) st_hook_shared((p), (bytes))
#define ST_PICK(n, usual) st_hook_choose((n), (usual))
#define ST_DRAIN() st_hook_drain()
#define ST_LATE(to, n, bytes) st_hook_late((to), (n), (bytes))
#define ST_MADE(late, to, n, bytes, rc) st_hook_made((late), (to), (n), (bytes), (rc))
#define ST_ACCUMULATE(run, dtype, op, dst, src, count, bytes) st_hook_accumulate((run), (dtype), (op), (dst), (src), (count), (bytes))

/* What synchronises the threads of a die without an access of ours. */
#define pthread_mutex_lock(m) (st_hook_forget(), (pthread_mutex_lock)(m))
#define pthread_mutex_trylock(m) (st_hook_forget(), (pthread_mutex_trylock)(m))
#define pthread_mutex_unlock(m) (st_hook_drain(), (pthread_mutex_unlock)(m))
#define pthread_cond_wait(c, m) (st_hook_drain(), (pthread_cond_wait)(c, m))
#define pthread_cond_signal(c) (st_hook_drain(), (pthread_cond_signal)(c))
#define pthread_cond_broadcast(c) (st_hook_drain(), (pthread_cond_broadcast)(c))
#define pthread_create(t, a, f, x) (st_hook_drain(), (pthread_create)(t, a, f, x))
#define pthread_join(t, x) (st_hook_drain(), (pthread_join)(t, x))
#ifdef Py_PYTHON_H /* other threads of Python may run */
#define PyEval_SaveThread() (st_hook_drain(), (PyEval_SaveThread)())
#define PyEval_RestoreThread(s) (st_hook_drain(), (PyEval_RestoreThread)(s))
#endif
/* The kernel waits for all CPUs when it takes memory away. */
#define munmap(p, n) (st_hook_unmapping((p), (n)), (munmap)((p), (n)))
#define mprotect(p, n, prot) (st_hook_unmapping((p), 0), (mprotect)((p), (n), (prot)))
#define mmap(p, n, prot, flags, fd, at) \
    (((flags) & MAP_FIXED ? st_hook_unmapping((p), 0) : (void)0), (mmap)((p), (n), (prot), (flags), (fd), (at)))

#define st_load_relaxed_32(p) st_hook_load_32((p), ST_RELAXED, __func__)
#define st_load_relaxed_64(p) st_hook_load_64((p), ST_RELAXED, __func__)
#define st_load_acquire_32(p) st_hook_load_32((p), ST_ACQUIRE, __func__)
#define st_load_acquire_64(p) st_hook_load_64((p), ST_ACQUIRE, __func__)
#define st_load_seqcst_32(p) st_hook_load_32((p), ST_SEQCST, __func__)
#define st_load_seqcst_64(p) st_hook_load_64((p), ST_SEQCST, __func__)
#define st_store_relaxed_32(p, v) st_hook_store_32((p), (v), ST_RELAXED, __func__)
#define st_store_relaxed_64(p, v) st_hook_store_64((p), (v), ST_RELAXED, __func__)
#define st_store_release_32(p, v) st_hook_store_32((p), (v), ST_RELEASE, __func__)
#define st_store_release_64(p, v) st_hook_store_64((p), (v), ST_RELEASE, __func__)
#define st_store_seqcst_32(p, v) st_hook_store_32((p), (v), ST_SEQCST, __func__)
#define st_store_seqcst_64(p, v) st_hook_store_64((p), (v), ST_SEQCST, __func__)
#define ST_HOOKED(name, order, p, ...) (st_hook_rmw((p), (order), __func__), (name)((p), __VA_ARGS__))
#define st_add_acq_rel_32(p, v) ST_HOOKED(st_add_acq_rel_32, ST_ACQ_REL, p, v)
#define st_add_acq_rel_64(p, v) ST_HOOKED(st_add_acq_rel_64, ST_ACQ_REL, p, v)
#define st_add_seqcst_32(p, v) ST_HOOKED(st_add_seqcst_32, ST_SEQCST, p, v)
#define st_add_seqcst_64(p, v) ST_HOOKED(st_add_seqcst_64, ST_SEQCST, p, v)
#define st_or_acq_rel_32(p, v) ST_HOOKED(st_or_acq_rel_32, ST_ACQ_REL, p, v)
#define st_or_acq_rel_64(p, v) ST_HOOKED(st_or_acq_rel_64, ST_ACQ_REL, p, v)
#define st_and_seqcst_32(p, v) ST_HOOKED(st_and_seqcst_32, ST_SEQCST, p, v)
#define st_and_seqcst_64(p, v) ST_HOOKED(st_and_seqcst_64, ST_SEQCST, p, v)
#define st_swap_acq_rel_32(p, v) ST_HOOKED(st_swap_acq_rel_32, ST_ACQ_REL, p, v)
#define st_swap_acq_rel_64(p, v) ST_HOOKED(st_swap_acq_rel_64, ST_ACQ_REL, p, v)
#define st_cas_acq_rel_32(p, old, v) ST_HOOKED(st_cas_acq_rel_32, ST_ACQ_REL, p, old, v)
#define st_cas_acq_rel_64(p, old, v) ST_HOOKED(st_cas_acq_rel_64, ST_ACQ_REL, p, old, v)
#define st_fence_seqcst() (st_hook_fence(__func__), (st_fence_seqcst)())

#else

#define ST_SHARED(p, bytes) ((void)0)
#define ST_PICK(n, usual) (usual)
#define ST_DRAIN() ((void)0)
#define ST_LATE(to, n, bytes) (to)
#define ST_MADE(late, to, n, bytes, rc) ((void)0)
#define ST_ACCUMULATE(run, dtype, op, dst, src, count, bytes) (run)((dtype), (op), (dst), (src), (count))

#endif

#endif
