/* Runs LLVMFuzzerTestOneInput where there is no libFuzzer: made-up cases by a seed, or files.
 *
 *     program [-s SEED] [-n CASES] [-t SECONDS] [-o FILE] [-p PACK] [FILE ...]
 *
 * With files each is run once; of a pack (tests/fuzz/seeds) each case: its length in 2 bytes, then the case.  Else cases are made up until there were CASES of them, or SECONDS are over (0: no such
 * bound; both 0: 1000 cases).  The case in hand stands in FILE, so that it is there after a crash.  No case may take
 * longer than FUZZ_CASE_SECONDS.
 *
 * Built with -DFUZZ_LIBFUZZER there is no main here, and libFuzzer makes the cases up. */
#ifndef DRIVER_H
#define DRIVER_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FUZZ_MOST = 1024, FUZZ_CASE_SECONDS = 10 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A made-up case of at most `most` bytes; the target knows what cases look like. */
static size_t fuzz_case(uint64_t *dice, uint8_t *to, size_t most);

static inline uint64_t fuzz_next(uint64_t *dice) /* splitmix64 */
{
    uint64_t z = *dice += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void fuzz_die(const char *what, uint64_t more)
{
    fprintf(stderr, "fuzz: %s (%llu)\n", what, (unsigned long long)more);
    abort();
}

#define FUZZ_CHECK(truth)                                      \
    do {                                                       \
        if (!(truth))                                          \
            fuzz_die(__FILE__ ": not so: " #truth, __LINE__);  \
    } while (0)

#ifndef FUZZ_LIBFUZZER
static uint8_t *fuzz_shown; /* the case in hand: its length in 8 bytes, then the case */

static void fuzz_run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1); /* so that a read beyond its end is found */

    memcpy(exact, data, size);
    if (fuzz_shown) {
        uint64_t n = size;

        memcpy(fuzz_shown, &n, 8);
        memcpy(fuzz_shown + 8, data, size);
    }
    alarm(FUZZ_CASE_SECONDS);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void fuzz_file(const char *name)
{
    uint8_t data[FUZZ_MOST];
    FILE *f = fopen(name, "rb");
    size_t n;

    FUZZ_CHECK(f);
    n = fread(data, 1, sizeof data, f);
    fclose(f);
    fuzz_run(data, n);
}

static uint64_t fuzz_pack(const char *name)
{
    FILE *f = fopen(name, "rb");
    uint8_t data[FUZZ_MOST];
    uint64_t n;
    uint16_t size;

    FUZZ_CHECK(f);
    for (n = 0; fread(&size, 1, 2, f) == 2; n++) {
        FUZZ_CHECK(size <= sizeof data && fread(data, 1, size, f) == size);
        fuzz_run(data, size);
    }
    fclose(f);
    return n;
}

static void fuzz_show(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    FUZZ_CHECK(fd >= 0 && ftruncate(fd, FUZZ_MOST + 8) == 0);
    fuzz_shown = mmap(NULL, FUZZ_MOST + 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(fuzz_shown != MAP_FAILED);
    close(fd);
}

static uint64_t fuzz_cpu_ns(clockid_t clock)
{
    struct timespec ts;

    (clock_gettime)(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

int main(int argc, char **argv)
{
    uint64_t seed = (uint64_t)time(NULL) * 2654435761u + (uint64_t)getpid(), most = 0, seconds = 0, done, began, dice;
    uint8_t data[FUZZ_MOST];
    const char *pack = NULL;
    int option;

    while ((option = getopt(argc, argv, "s:n:t:o:p:")) != -1) {
        switch (option) {
        case 's': seed = strtoull(optarg, NULL, 0); break;
        case 'n': most = strtoull(optarg, NULL, 0); break;
        case 't': seconds = strtoull(optarg, NULL, 0); break;
        case 'o': fuzz_show(optarg); break;
        case 'p': pack = optarg; break;
        default: return 2;
        }
    }
    LLVMFuzzerInitialize(&argc, &argv);
    done = pack ? fuzz_pack(pack) : 0;
    for (; optind < argc; optind++, done++)
        fuzz_file(argv[optind]);
    if (done) {
        printf("%llu kept cases\n", (unsigned long long)done);
        return 0;
    }
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    most = most || seconds ? most : 1000;
    began = fuzz_cpu_ns(CLOCK_MONOTONIC);
    for (; (!most || done < most) && (!seconds || fuzz_cpu_ns(CLOCK_MONOTONIC) - began < seconds * 1000000000ull); done++) {
        dice = seed + done; /* so that a case can be had again by its number */
        fuzz_run(data, fuzz_case(&dice, data, sizeof data));
    }
    printf("%llu cases, %llu ms of CPU\n", (unsigned long long)done,
           (unsigned long long)(fuzz_cpu_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000000));
    return 0;
}
#endif

#endif
