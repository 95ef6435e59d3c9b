/* What flows through which link, as flows come and go: the sets and sums that st_maxmin.h solves. */
#ifndef ST_MAXMIN_SETS_H
#define ST_MAXMIN_SETS_H

#include <stddef.h>
#include <stdint.h>

#define ST_MM_EVEN 0x1p-20 /* sums of multiples of it are exact, in any order */
#define ST_MM_ROOM 0x1p30  /* `most` is counted in parts of it, rounded up */

/* What a solve goes through for each use; of a link's number. */
struct st_mm_level {
    double left;      /* of the capacity */
    double weight;    /* of the flows that rise */
    uint32_t open;    /* entries of its set whose flows rise */
    uint32_t leaf;    /* in the tree; 0: it limits nothing in this solve */
    uint32_t step;    /* the last in which a flow of it was fixed */
    uint32_t solve;   /* the last in which it was reached */
};

struct st_mm_link {
    double capacity; /* now; of a class, the bound */
    double total;    /* of its flows' weights */
    int64_t most;    /* of weight * bound, so much at least */
    uint32_t free;   /* entries whose flows have no bound that counts */
    uint32_t first;  /* its set: entries [first, first + count); of a class, what rises, in m->rises */
    uint32_t count;
    uint32_t place;  /* among the links that may limit a flow, + 1; 0: it is none */
    uint32_t given;  /* the caller's */
    uint8_t uneven;  /* weights that are no multiples of ST_MM_EVEN: total is summed again after a change */
    uint8_t changed;
    uint8_t listed;  /* in m->changed */
    uint8_t was;     /* one that may limit a flow, at the last solve */
};

/* `count` flows that use the same links alike, and so have the same rate; below, a flow. */
struct st_mm_flow { /* its links follow, the class first; `stride` bytes for each flow */
    double rate;    /* found by the last solve; of each of them */
    double bound;
    uint32_t solve; /* the last in which it rose */
    uint16_t nlinks; /* 0: it does not flow */
    uint8_t plain;  /* all weights are 1 */
    uint8_t fresh;  /* in m->fresh */
    uint32_t fixed; /* it rises no more */
    uint32_t count;
    uint32_t given; /* the caller's */
    uint32_t link[];
};

struct st_mm {
    struct st_mm_link *link; /* nlinks, then classes */
    struct st_mm_level *level;
    char *flows;
    double *weight;     /* of use u of flow f: [f << shift | u] */
    uint32_t *place;    /* ... in the link's set */
    uint32_t *set;      /* f << shift | u */
    uint32_t *narrow;   /* links that may limit a flow */
    uint32_t *changed;  /* links that have, since the last solve, and may limit a flow or could before */
    uint32_t *fresh;    /* flows that began since the last solve */
    uint32_t *reached;  /* links of this solve */
    uint32_t *classes;  /* ... and its flows' classes */
    uint32_t *rises, *sorted; /* its flows, class by class; scratch */
    uint32_t *moved;    /* flows that the last solve gave another rate */
    uint32_t *touched;  /* links, in this step */
    double *tree;       /* node i is the lesser of nodes 2 i and 2 i + 1; leaves from `leaves` on */
    uint32_t *at_leaf;  /* links */
    uint32_t nlinks, nnarrow, nlive, nmoved, ntouched, shift, stride, solve, step;
    uint32_t nflows;    /* no flow has a number from here on */
    uint32_t nchanged, nfresh, nreached, nclasses;
    uint32_t rising, leaves;
    uint32_t stoppers;  /* links in the tree */
    double highest;     /* bound of a flow */
};

static inline struct st_mm_flow *st_mm_flow(const struct st_mm *m, uint32_t f)
{
    return (struct st_mm_flow *)(void *)(m->flows + (size_t)f * m->stride);
}

/* A flow's part of `most`: whole, so that it is taken away exactly; -1: beyond counting. */
static inline int64_t st_mm_most(double weight, double bound)
{
    double x = weight * bound;

    return x < ST_MM_ROOM ? (int64_t)(x * ST_MM_ROOM) + 1 : -1;
}

/* Is link `id` one that may limit a flow, now that its flows or its capacity are others? */
static inline void st_mm_settle(struct st_mm *m, uint32_t id)
{
    struct st_mm_link *l = &m->link[id];
    int narrow = l->count && (l->free || (double)l->most > l->capacity * ST_MM_ROOM);

    if ((narrow || l->was) && !l->listed) {
        l->listed = 1;
        m->changed[m->nchanged++] = id;
    }
    if (narrow == (l->place != 0))
        return;
    if (narrow) {
        m->narrow[m->nnarrow++] = id;
        l->place = m->nnarrow;
    } else {
        uint32_t last = m->narrow[--m->nnarrow];

        m->narrow[l->place - 1] = last;
        m->link[last].place = l->place;
        l->place = 0;
        m->level[id].leaf = 0;
    }
}

static inline void st_mm_count(struct st_mm_link *l, double weight, double bound, int sign)
{
    int64_t most = st_mm_most(weight, bound);

    if (most < 0)
        l->free += (uint32_t)sign;
    else
        l->most += sign * most;
    l->total += sign * weight;
    l->changed = 1;
}

static inline void st_mm_join(struct st_mm *m, uint32_t id, uint32_t entry)
{
    struct st_mm_link *l = &m->link[id];

    m->place[entry] = l->count;
    m->set[l->first + l->count++] = entry;
    st_mm_settle(m, id);
}

static inline void st_mm_leave(struct st_mm *m, uint32_t id, uint32_t entry)
{
    struct st_mm_link *l = &m->link[id];
    uint32_t place = m->place[entry], last = m->set[l->first + --l->count];

    m->set[l->first + place] = last;
    m->place[last] = place;
    st_mm_settle(m, id);
}

/* A flow of a class begins; st_mm_use, for each of its links, is next. */
static inline void st_mm_begin(struct st_mm *m, uint32_t f, uint32_t class)
{
    struct st_mm_flow *x = st_mm_flow(m, f);

    x->rate = 0.0;
    x->bound = m->link[class].capacity;
    x->link[0] = class;
    x->nlinks = x->plain = 1;
    x->count = 1;
    m->nlive++;
    m->nflows = f < m->nflows ? m->nflows : f + 1;
    if (!x->fresh) {
        x->fresh = 1;
        m->fresh[m->nfresh++] = f;
    }
}

static inline void st_mm_use(struct st_mm *m, uint32_t f, uint32_t link, double weight)
{
    struct st_mm_flow *x = st_mm_flow(m, f);
    uint32_t entry = f << m->shift | x->nlinks;

    x->link[x->nlinks++] = link;
    x->plain &= weight == 1.0;
    m->weight[entry] = weight;
    st_mm_count(&m->link[link], weight, x->bound, 1);
    st_mm_join(m, link, entry);
}

/* One more of them begins (sign 1), or one that is not the last ends (-1). */
static inline void st_mm_more(struct st_mm *m, uint32_t f, int sign)
{
    struct st_mm_flow *x = st_mm_flow(m, f);

    x->count += (uint32_t)sign;
    for (uint32_t u = 1; u < x->nlinks; u++) {
        st_mm_count(&m->link[x->link[u]], m->weight[f << m->shift | u], x->bound, sign);
        st_mm_settle(m, x->link[u]);
    }
}

static inline void st_mm_end(struct st_mm *m, uint32_t f)
{
    struct st_mm_flow *x = st_mm_flow(m, f);
    uint32_t entry = f << m->shift;

    for (uint32_t u = 1; u < x->nlinks; u++) {
        st_mm_count(&m->link[x->link[u]], m->weight[++entry], x->bound, -1);
        st_mm_leave(m, x->link[u], entry);
    }
    x->nlinks = 0;
    if (--m->nlive == 0)
        m->nflows = 0;
}

#endif
