/* What this machine can do at all: bytes that its cores move, and how soon one hears of another.
 *
 *     limits CPU,CPU,... SECONDS LARGEST
 *
 * A line for each figure: "read|fill|copy CORES BYTES GBPS" (BYTES that one core touches, GB/s read plus written of
 * all cores together, each on memory of its own), "line US", "yield US", "yield-one US" (round trips).  Each is the
 * best of many turns and, for bytes, of several ways to move them: a limit, not what is usual.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "st_atomic.h"

enum { MOST = 64, LINE = 64 };

typedef uint64_t vec __attribute__((vector_size(64), aligned(64)));
typedef void move(vec *dst, const vec *src, size_t n); /* n lines */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) { perror("sched_setaffinity"); exit(1); }
}

/* ---- ways to move bytes ------------------------------------------------------------- */

static void stream_line(vec *dst, vec value)
{
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)dst, (__m512i)value);
#elif defined(__SSE2__)
    __m128i part[4];
    memcpy(part, &value, sizeof part);
    for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)dst + i, part[i]);
#else
    *dst = value;
#endif
}

static void fence(void)
{
#ifdef __x86_64__
    _mm_sfence();
#endif
}

static void copy_lib(vec *dst, const vec *src, size_t n) { memcpy(dst, src, n * LINE); }

static void copy_loop(vec *dst, const vec *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = src[i];
        __asm__ volatile("" ::: "memory"); /* stays a loop of vectors, and no memcpy */
    }
}

static void copy_stream(vec *dst, const vec *src, size_t n)
{
    for (size_t i = 0; i < n; i++) stream_line(dst + i, src[i]);
    fence();
}

static void copy_string(vec *dst, const vec *src, size_t n)
{
#ifdef __x86_64__
    size_t bytes = n * LINE;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
#else
    memcpy(dst, src, n * LINE);
#endif
}

static void fill_lib(vec *dst, const vec *src, size_t n) { (void)src; memset(dst, 1, n * LINE); }

static void fill_stream(vec *dst, const vec *src, size_t n)
{
    (void)src;
    vec value = {1};
    for (size_t i = 0; i < n; i++) stream_line(dst + i, value);
    fence();
}

static void read_loop(vec *dst, const vec *src, size_t n)
{
    vec a = {0}, b = {0}, c = {0}, d = {0};
    (void)dst;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) { a ^= src[i]; b ^= src[i + 1]; c ^= src[i + 2]; d ^= src[i + 3]; }
    for (; i < n; i++) a ^= src[i];
    a ^= b ^ c ^ d;
    __asm__ volatile("" : : "m"(a));
}

static const struct { const char *name; int arrays; move *ways[4]; } KINDS[] = {
    {"read", 1, {read_loop}},
    {"fill", 1, {fill_lib, fill_stream}},
    {"copy", 2, {copy_lib, copy_loop, copy_stream, copy_string}},
};

/* ---- all cores at once -------------------------------------------------------------- */

struct job {
    int cores;
    int cpus[MOST];
    size_t lines; /* of an array, of one core */
    int arrays;
    move *way;
    int repeats, turns, over;
    double deadline; /* of a busy host, where turns take longer than they should */
    uint32_t arrived, turn;
    double begin[MOST], end[MOST];
    vec *memory[MOST];
    double best;
};

struct worker { struct job *job; int me; };

/* Everybody, turn after turn; with fewer CPUs free than threads it must not spin alone. */
static void meet(struct job *job)
{
    uint32_t turn = st_load_acquire_32(&job->turn);
    if (st_add_acq_rel_32(&job->arrived, 1) + 1 == (uint32_t)job->cores) {
        st_store_relaxed_32(&job->arrived, 0);
        st_store_release_32(&job->turn, turn + 1); /* pairs with the acquire below, of those that wait */
        return;
    }
    for (unsigned k = 0; st_load_acquire_32(&job->turn) == turn; k++)
        if (k < 2000) st_pause();
        else sched_yield();
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct job *job = w->job;
    vec *src = job->memory[w->me], *dst = job->arrays == 2 ? src + job->lines : src;
    pin(job->cpus[w->me]);
    for (int turn = -1;; turn++) {
        if (w->me == 0) job->over = turn >= job->turns || (turn > 0 && now() > job->deadline);
        meet(job);
        if (job->over) return NULL;
        job->begin[w->me] = now();
        for (int k = 0; k < job->repeats; k++) {
            job->way(dst, src, job->lines);
            __asm__ volatile("" ::: "memory");
        }
        job->end[w->me] = now();
        meet(job);
        if (w->me == 0 && turn >= 0) {
            double first = job->begin[0], last = job->end[0];
            for (int i = 1; i < job->cores; i++) {
                if (job->begin[i] < first) first = job->begin[i];
                if (job->end[i] > last) last = job->end[i];
            }
            if (last - first < job->best) job->best = last - first;
        }
    }
}

static void together(void *(*fn)(void *), struct worker *w, int count)
{
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, fn, &w[i])) { perror("pthread_create"); exit(1); }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

/* Seconds of one pass over the arrays, the best turn of about `seconds`. */
static double pass(struct job *job, double seconds)
{
    struct worker w[MOST];
    for (int i = 0; i < job->cores; i++) w[i] = (struct worker){job, i};
    double guess = 0;
    job->repeats = 1;
    for (int step = 0; step < 2; step++) {
        job->turns = step ? (int)(seconds / (guess * job->repeats)) : 2;
        if (job->turns < 2) job->turns = 2;
        job->best = 1e9;
        job->over = 0;
        job->deadline = now() + 4 * seconds;
        together(work, w, job->cores);
        guess = job->best / job->repeats;
        if (!step && guess < 20e-6) job->repeats = 1 + (int)(20e-6 / (guess + 1e-9));
    }
    return guess;
}

static void bandwidth(struct job *job, double seconds, size_t largest)
{
    for (size_t bytes = 16 << 10; bytes <= largest; bytes *= 4)
        for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
            double best = 1e9;
            job->arrays = KINDS[kind].arrays;
            job->lines = bytes / LINE / (size_t)job->arrays;
            for (int k = 0; k < 4 && KINDS[kind].ways[k]; k++) {
                job->way = KINDS[kind].ways[k];
                double took = pass(job, seconds);
                if (took < best) best = took;
            }
            printf("%s %d %zu %.3f\n", KINDS[kind].name, job->cores, bytes,
                   (double)bytes * job->cores / best / 1e9);
        }
}

/* ---- one core hears of another ------------------------------------------------------- */

struct talk {
    _Alignas(128) uint32_t word;
    _Alignas(128) int cpus[2];
    int yields;
    double seconds, best;
};

static void until(struct talk *t, unsigned value)
{
    while (st_load_acquire_32(&t->word) != value)
        if (t->yields) sched_yield();
        else st_pause();
}

enum { TRIPS = 20, STOP = ~0u };

static void *answer(void *arg)
{
    struct talk *t = arg;
    pin(t->cpus[1]);
    for (unsigned k = 1;; k += 2) {
        unsigned seen;
        while ((seen = st_load_acquire_32(&t->word)) != k && seen != STOP)
            if (t->yields) sched_yield();
            else st_pause();
        if (seen == STOP) return NULL;
        st_store_release_32(&t->word, k + 1); /* pairs with until() */
    }
}

static double round_trip(int first, int second, int yields, double seconds)
{
    struct talk t = {.cpus = {first, second}, .yields = yields, .seconds = seconds, .best = 1e9};
    pthread_t other;
    pin(first);
    if (pthread_create(&other, NULL, answer, &t)) { perror("pthread_create"); exit(1); }
    unsigned k = 0;
    double end = now() + seconds;
    for (int turn = 0; turn < 2 || now() < end; turn++) {
        double begin = now();
        for (int trip = 0; trip < TRIPS; trip++, k += 2) {
            st_store_release_32(&t.word, k + 1); /* pairs with answer() */
            until(&t, k + 2);
        }
        double took = (now() - begin) / TRIPS;
        if (took < t.best) t.best = took;
    }
    st_store_release_32(&t.word, STOP); /* pairs with answer() */
    pthread_join(other, NULL);
    return t.best * 1e6;
}

int main(int argc, char **argv)
{
    static struct job job;
    if (argc != 4) { fprintf(stderr, "limits CPU,CPU,... SECONDS LARGEST\n"); return 2; }
    int count = 0;
    for (char *word = strtok(argv[1], ","); word && count < MOST; word = strtok(NULL, ",")) job.cpus[count++] = atoi(word);
    double seconds = atof(argv[2]);
    size_t largest = strtoull(argv[3], NULL, 10);
    if (count < 1 || !(seconds > 0) || largest < (16 << 10)) { fprintf(stderr, "limits: bad arguments\n"); return 2; }
    for (int i = 0; i < count; i++) {
        job.memory[i] = mmap(NULL, largest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (job.memory[i] == MAP_FAILED) { perror("mmap"); return 1; }
        madvise(job.memory[i], largest, MADV_HUGEPAGE);
        memset(job.memory[i], 1, largest);
    }
    for (job.cores = 1;; job.cores = job.cores * 2 < count ? job.cores * 2 : count) {
        bandwidth(&job, seconds, largest);
        if (job.cores == count) break;
    }
    if (count > 1) {
        printf("line %.4f\n", round_trip(job.cpus[0], job.cpus[1], 0, 4 * seconds));
        printf("yield %.4f\n", round_trip(job.cpus[0], job.cpus[1], 1, 4 * seconds));
    }
    printf("yield-one %.4f\n", round_trip(job.cpus[0], job.cpus[0], 1, 4 * seconds));
    return 0;
}
