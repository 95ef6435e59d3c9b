/* The part of arena.h that is about a case; include that.
 *
 * A case is a list of pokes, 12 bytes each: a region, how, an offset in it, a value.  A poke may come before the core
 * looks, or later, at the nth of its atomic accesses, as from another die in the middle of it.
 * Afterwards all is as it was before. */
#ifndef CASE_H
#define CASE_H

struct poke {
    uint8_t region, how;
    uint16_t offset;
    uint64_t value;
};

static struct poke fuzz_pokes[POKES];
static uint64_t fuzz_when[POKES];
static uint32_t fuzz_npokes, fuzz_left; /* left: timed pokes that have not been applied */

static inline struct poke fuzz_read_poke(const uint8_t *data)
{
    struct poke p = {data[0], data[1], 0, 0};

    memcpy(&p.offset, data + 2, 2);
    memcpy(&p.value, data + 4, 8);
    return p;
}

/* Numbers that are near limits. */
static inline uint64_t fuzz_limit(uint64_t k)
{
    static const uint64_t limits[] = {0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 1024, 1025, 4095, 4096,
        4097, 65535, 65536, ST_PAGE_BYTES - 1, ST_PAGE_BYTES, ST_PAGE_BYTES + 1, INT32_MAX, 1ull << 31, UINT32_MAX,
        1ull << 32, 1ull << 47, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX - 1, UINT64_MAX, 1ull << 58};

    return limits[k % (sizeof limits / 8)];
}

static void fuzz_apply(const struct poke *p)
{
    struct region *r = &fuzz.regions[p->region % fuzz.nregions];
    const struct region *other = &fuzz.regions[p->value % fuzz.nregions];
    uint64_t at = (uint64_t)p->offset * 4 % (r->bytes - 7) / 4 * 4, word;

    memcpy(&word, r->at + at, 8);
    switch (p->how & 7) {
    case 0: word = p->value; break;
    case 1: word = (word & ~0xffffffffull) | (uint32_t)p->value; break;
    case 2: word += (uint64_t)(int64_t)(int8_t)p->value; break;
    case 3: word ^= 1ull << (p->value & 63); break;
    case 4: word = fuzz_limit(p->value) + (p->value >> 8 & 1); break;
    case 5: word = FUZZ_WINDOW + p->value % (fuzz.ctx.seg_bytes * DIES + ST_PAGE_BYTES); break;
    case 6: word = other->va + (p->value >> 8) % (other->bytes + 64) / 8 * 8; break;
    default: word = (word & ~0xffull) | (uint8_t)p->value; break;
    }
    memcpy(r->at + at, &word, 8);
}

static void fuzz_due(void)
{
    uint32_t i;

    for (i = 0; fuzz_left && i < fuzz_npokes; i++)
        if (fuzz_when[i] && fuzz_when[i] <= fuzz_ticks) {
            fuzz_when[i] = 0;
            fuzz_left--;
            fuzz_apply(&fuzz_pokes[i]);
        }
}

/* The pokes of a case, those without a time applied. */
static inline void fuzz_begin(const uint8_t *data, size_t size)
{
    uint32_t i;

    fuzz_ticks = fuzz_left = 0;
    for (i = 0; i < POKES && (i + 1) * 12 <= size; i++) {
        uint64_t late;

        fuzz_pokes[i] = fuzz_read_poke(data + 12 * i);
        late = fuzz_pokes[i].how >> 3;
        fuzz_when[i] = fuzz.regions[fuzz_pokes[i].region % fuzz.nregions].timed ? late * late : 0;
        fuzz_left += fuzz_when[i] != 0;
        if (!fuzz_when[i])
            fuzz_apply(&fuzz_pokes[i]);
    }
    fuzz_npokes = i;
}

/* A page of the window, as it was mapped before. */
static inline void fuzz_remap(uint32_t die, uint64_t page)
{
    uint64_t w = fuzz.shadow[die * fuzz.ctx.seg_pages + page];
    void *at = (void *)(uintptr_t)(st_segment(&fuzz.ctx, die) + (page << ST_PAGE_SHIFT));
    int prot = ST_PTE_STATE(w) == ST_PAGE_READ ? PROT_READ : PROT_READ | PROT_WRITE;

    if (st_page_maps(w) && !ST_PTE_FOREIGN(w))
        at = (mmap)(at, ST_PAGE_BYTES, prot, MAP_SHARED | MAP_FIXED, fuzz.ctx.fd, (off_t)(ST_PTE_FRAME(w) << ST_PAGE_SHIFT));
    else
        at = (mmap)(at, ST_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    FUZZ_CHECK(at != MAP_FAILED);
}

static inline void fuzz_end(void)
{
    uint64_t i;
    uint32_t k;

    fuzz_npokes = fuzz_left = fuzz.dead = 0;
    fuzz_gaps(0);
    for (i = 0; i < DIES * fuzz.ctx.seg_pages; i++)
        if (fuzz.ctx.shadow[i] != fuzz.shadow[i])
            fuzz_remap((uint32_t)(i / fuzz.ctx.seg_pages), i % fuzz.ctx.seg_pages);
    for (k = 0; k < fuzz.nregions; k++)
        memcpy(fuzz.regions[k].at, fuzz.regions[k].before, fuzz.regions[k].bytes);
    for (k = 0; k < fuzz.nprivates; k++)
        memcpy(fuzz.privates[k].at, fuzz.privates[k].before, fuzz.privates[k].bytes);
    fuzz_gaps(1);
}

/* What the core has said may be touched, touched. */
static inline void fuzz_touch(uint64_t va, uint64_t bytes, int writes)
{
    volatile uint8_t *p = (volatile uint8_t *)(uintptr_t)va;

    if (bytes && writes)
        p[bytes - 1] = p[0];
    else if (bytes)
        (void)(p[0] + p[bytes - 1]);
}

static size_t fuzz_case(uint64_t *dice, uint8_t *to, size_t most)
{
    uint64_t n = 1 + fuzz_next(dice) % 3, i, value;
    uint16_t offset;

    n += fuzz_next(dice) % 8 ? 0 : fuzz_next(dice) % 20;
    for (i = 0; i < n && (i + 1) * 12 <= most; i++) {
        uint64_t r = fuzz_next(dice);

        to[12 * i] = (uint8_t)r;
        to[12 * i + 1] = (uint8_t)((r >> 8 & 7) | (r >> 11 & 1 ? 0 : r >> 16 & 0xf8));
        offset = (uint16_t)(r >> 32); /* structs begin where regions do */
        offset = r >> 12 & 3 ? offset % 64 : offset;
        value = fuzz_next(dice);
        memcpy(to + 12 * i + 2, &offset, 2);
        memcpy(to + 12 * i + 4, &value, 8);
    }
    return i * 12;
}

#endif
