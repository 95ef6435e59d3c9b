/* The header page, the die table and the size of the object: what a process that attaches makes of them. */
#include "arena.h"

static int attach_fd;
static struct st_header attach_header;
static struct st_die attach_dies[DIES];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_open_job();
    attach_fd = memfd_create("attach", MFD_CLOEXEC);
    FUZZ_CHECK(attach_fd >= 0);
    FUZZ_CHECK(st_space_layout(&attach_header, DIES, HBM_PAGES * ST_PAGE_BYTES, FUZZ_MAILBOX, 0) == ST_OK);
    FUZZ_CHECK(st_space_format(attach_fd, &attach_header, 1, 2) == ST_OK);
    FUZZ_CHECK(pread(attach_fd, &attach_header, sizeof attach_header,
                     (off_t)(attach_header.object_bytes - ST_HEADER_BYTES)) == (ssize_t)sizeof attach_header);
    for (uint32_t i = 0; i < DIES; i++)
        attach_dies[i] = (struct st_die){.state = ST_DIE_JOINED, .window_mask = 0xffff};
    fuzz_region(fuzz.hand, sizeof attach_header, 0); /* copies of both, in memory that nothing else uses */
    fuzz_region(fuzz.hand + 4096, sizeof attach_dies, 0);
    memcpy(fuzz.hand, &attach_header, sizeof attach_header);
    memcpy(fuzz.hand + 4096, attach_dies, sizeof attach_dies);
    fuzz_ready();
    return 0;
}

/* Layouts of other jobs that are all right in themselves: the first byte chooses. */
static void attach_resize(const uint8_t *data, size_t size)
{
    struct st_header h;
    uint64_t dies = size ? data[0] % 9u : 0, pages = size > 1 ? data[1] % 70u : 0;

    if (dies && st_space_layout(&h, (uint32_t)dies, pages << ST_PAGE_SHIFT, FUZZ_MAILBOX, 0) == ST_OK) {
        h.magic = ST_MAGIC;
        memcpy(fuzz.hand, &h, offsetof(struct st_header, candidates));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_header *h = (struct st_header *)(void *)fuzz.hand;
    struct st_ctx c;
    uint64_t bytes;
    uint32_t missing = 0, rank = size ? data[size - 1] : 0, i;
    uint64_t v[5];

    memset(&c, 0, sizeof c);
    c.fd = -1;
    if (size % 3 == 0)
        attach_resize(data, size);
    fuzz_begin(data, size);
    bytes = size % 5 ? attach_header.object_bytes : h->object_bytes; /* the file's size, true or false to the header */
    bytes = bytes < 1ull << 40 ? bytes : 1ull << 40;
    FUZZ_CHECK(ftruncate(attach_fd, (off_t)bytes) == 0);
    if (bytes >= ST_HEADER_BYTES)
        FUZZ_CHECK(pwrite(attach_fd, h, sizeof *h, (off_t)(bytes - ST_HEADER_BYTES)) == (ssize_t)sizeof *h);
    if (st_space_map(&c, attach_fd) == ST_OK) {
        uint64_t tables = st_space_tables(&c, NULL);

        memcpy(c.dies, fuzz.hand + 4096, sizeof attach_dies < c.ndies * sizeof *c.dies ? sizeof attach_dies
                                                                                       : c.ndies * sizeof *c.dies);
        c.fd = -1; /* st_space_unmap closes it */
        c.alive = fuzz_alive;
        c.wait = fuzz.ctx.wait;
        c.rank = rank % c.ndies;
        if (tables < 1ull << 30 && st_space_private(&c) == ST_OK) {
            (void)st_window_probe(&c);
            for (i = 0; i < c.ndies; i++)
                st_space_die(&c, i, v);
            if (st_space_agree(&c, 1000000, &missing) == ST_OK) {
                FUZZ_CHECK(c.base && c.base % ST_PAGE_BYTES == 0);
                FUZZ_CHECK(st_owner(&c, c.base) == 0 && st_owner(&c, c.base - 1) < 0);
                munmap((void *)(uintptr_t)c.base, c.seg_bytes * c.ndies);
            }
        }
        (void)st_space_unmap(&c);
    }
    fuzz_end();
    return 0;
}
