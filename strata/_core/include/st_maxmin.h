/* Weighted max-min with bounds, by progressive filling: the rates x that maximise the sorted x lexicographically,
 * where the sum of weight * x over the flows of a link is at most its capacity and no x is above its bound.
 *
 * All flows rise together.  A link stops those through it when it is full, at left / weight of what still rises; a
 * bound stops its *class*, the flows of that bound.  Links and classes stand in one heap.  What is fixed is never
 * above the level, so a link's key only grows: it is looked at again when it comes to the top.  A link that all its
 * flows at their bounds would not fill (`most`) limits nothing, and takes no part.
 *
 * A class is a link too, numbered behind the links; a flow's first use is its class.  Each link keeps the set of its
 * flows' uses, so that a solve touches what flows and nothing else; weights are summed again where a set has
 * changed.  Memory is the caller's, zero at first; st_sim_arena.h says how much. */
#ifndef ST_MAXMIN_H
#define ST_MAXMIN_H

#include <stdint.h>

struct st_mm_use {
    uint32_t link;
    uint32_t place; /* in the link's set */
    double weight;
};

struct st_mm_link {
    double capacity; /* now; of a class, the bound */
    double total;    /* of its flows' weights */
    double most;     /* of weight * bound */
    double left;     /* of capacity, while it is solved */
    double weight;   /* ... of the flows that rise */
    uint32_t first;  /* its set: entries [first, first + count) */
    uint32_t count;
    uint32_t open;   /* entries of flows that rise */
    uint32_t live;   /* place among the links that have flows */
    uint8_t changed; /* total and most are old */
    uint8_t binding; /* may limit a flow in this solve */
    uint8_t pad[2];
    uint32_t given;  /* the caller's */
};

struct st_mm_flow {
    double rate; /* found by the last solve */
    double bound;
    uint32_t live; /* place among the flows */
    uint16_t nuse; /* with the class */
    uint8_t fixed;
    uint8_t pad;
};

struct st_mm_key { double key; uint32_t link, pad; };

struct st_mm {
    struct st_mm_link *link; /* nlinks, then classes */
    struct st_mm_flow *flow;
    struct st_mm_use *use;   /* of flow f: [f << shift, ...) */
    uint32_t *set;           /* indices of uses */
    uint32_t *live_link;
    uint32_t *live_flow;
    struct st_mm_key *heap;
    uint32_t nlinks, nlive_links, nlive_flows, nheap, shift, rising;
};

static inline void st_mm_join(struct st_mm *m, uint32_t use)
{
    struct st_mm_use *u = &m->use[use];
    struct st_mm_link *l = &m->link[u->link];

    if (l->count == 0) {
        l->live = m->nlive_links;
        m->live_link[m->nlive_links++] = u->link;
    }
    u->place = l->count;
    m->set[l->first + l->count++] = use;
    l->changed = 1;
}

static inline void st_mm_leave(struct st_mm *m, uint32_t use)
{
    struct st_mm_link *l = &m->link[m->use[use].link];
    uint32_t place = m->use[use].place, last = m->set[l->first + --l->count];

    m->set[l->first + place] = last;
    m->use[last].place = place;
    l->changed = 1;
    if (l->count == 0) {
        uint32_t moved = m->live_link[--m->nlive_links];

        m->live_link[l->live] = moved;
        m->link[moved].live = l->live;
    }
}

/* Flow f, whose uses are written (the class first), begins. */
static inline void st_mm_begin(struct st_mm *m, uint32_t f, uint16_t nuse)
{
    struct st_mm_flow *x = &m->flow[f];

    x->nuse = nuse;
    x->rate = 0.0;
    x->bound = m->link[m->use[f << m->shift].link].capacity;
    x->live = m->nlive_flows;
    m->live_flow[m->nlive_flows++] = f;
    for (uint32_t u = 0; u < nuse; u++)
        st_mm_join(m, (f << m->shift) + u);
}

static inline void st_mm_end(struct st_mm *m, uint32_t f)
{
    uint32_t moved = m->live_flow[--m->nlive_flows];

    for (uint32_t u = 0; u < m->flow[f].nuse; u++)
        st_mm_leave(m, (f << m->shift) + u);
    m->live_flow[m->flow[f].live] = moved;
    m->flow[moved].live = m->flow[f].live;
}

/* The heap: least key on top, and of equal ones classes before links. */
static inline int st_mm_less(const struct st_mm_key *a, const struct st_mm_key *b)
{
    return a->key < b->key || (a->key == b->key && a->link > b->link);
}

static inline void st_mm_sink(struct st_mm *m, uint32_t at)
{
    struct st_mm_key x = m->heap[at];

    for (uint32_t child; (child = 2 * at + 1) < m->nheap; at = child) {
        child += child + 1 < m->nheap && st_mm_less(&m->heap[child + 1], &m->heap[child]);
        if (!st_mm_less(&m->heap[child], &x))
            break;
        m->heap[at] = m->heap[child];
    }
    m->heap[at] = x;
}

static inline void st_mm_drop(struct st_mm *m)
{
    m->heap[0] = m->heap[--m->nheap];
    if (m->nheap)
        st_mm_sink(m, 0);
}

static inline void st_mm_sum(struct st_mm *m, struct st_mm_link *l)
{
    l->total = l->most = 0.0;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t use = m->set[l->first + i];

        l->total += m->use[use].weight;
        l->most += m->use[use].weight * m->flow[use >> m->shift].bound;
    }
    l->changed = 0;
}

/* What rises through a link and what is left, without the errors of many differences. */
static inline void st_mm_again(struct st_mm *m, struct st_mm_link *l)
{
    l->left = l->capacity;
    l->weight = 0.0;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t use = m->set[l->first + i];
        const struct st_mm_flow *x = &m->flow[use >> m->shift];

        if (x->fixed)
            l->left -= m->use[use].weight * x->rate;
        else
            l->weight += m->use[use].weight;
    }
}

static inline void st_mm_fix(struct st_mm *m, uint32_t f, double rate)
{
    struct st_mm_flow *x = &m->flow[f];
    const struct st_mm_use *u = &m->use[f << m->shift], *end = u + x->nuse;

    x->rate = rate;
    x->fixed = 1;
    m->rising--;
    for (u++; u < end; u++) {
        struct st_mm_link *l = &m->link[u->link];

        if (l->binding) {
            l->left -= u->weight * rate;
            l->weight -= u->weight;
            l->open--;
        }
    }
}

static inline void st_mm_fix_all(struct st_mm *m, const struct st_mm_link *l, double level)
{
    for (uint32_t i = 0; i < l->count && m->rising; i++) {
        uint32_t f = m->set[l->first + i] >> m->shift;

        if (!m->flow[f].fixed)
            st_mm_fix(m, f, level < m->flow[f].bound ? level : m->flow[f].bound);
    }
}

static inline double st_mm_level(struct st_mm *m, struct st_mm_link *l)
{
    if (l->weight < l->total * 0x1p-20)
        st_mm_again(m, l);
    return l->left > 0.0 ? l->left / l->weight : 0.0;
}

static inline void st_mm_prepare(struct st_mm *m)
{
    m->nheap = 0;
    for (uint32_t i = 0; i < m->nlive_links; i++) {
        uint32_t id = m->live_link[i];
        struct st_mm_link *l = &m->link[id];

        l->open = l->count;
        if (id < m->nlinks) {
            if (l->changed)
                st_mm_sum(m, l);
            l->binding = l->most > l->capacity;
            if (!l->binding)
                continue;
            l->left = l->capacity;
            l->weight = l->total;
        }
        m->heap[m->nheap].key = id < m->nlinks ? l->left / l->weight : l->capacity;
        m->heap[m->nheap++].link = id;
    }
    for (uint32_t i = m->nheap / 2; i-- > 0;)
        st_mm_sink(m, i);
    for (uint32_t i = 0; i < m->nlive_flows; i++)
        m->flow[m->live_flow[i]].fixed = 0;
    m->rising = m->nlive_flows;
}

/* Rates of all flows.  Each flow has a finite bound or a link with a finite capacity. */
static inline void st_mm_solve(struct st_mm *m)
{
    st_mm_prepare(m);
    while (m->rising) {
        uint32_t id = m->heap[0].link;
        struct st_mm_link *l = &m->link[id];
        double level = l->capacity;

        if (id < m->nlinks) {
            if (l->open == 0) {
                st_mm_drop(m);
                continue;
            }
            level = st_mm_level(m, l);
            if (level > m->heap[0].key) {
                m->heap[0].key = level;
                st_mm_sink(m, 0);
                if (m->heap[0].link != id)
                    continue;
            }
        }
        st_mm_drop(m);
        st_mm_fix_all(m, l, level);
    }
}

#endif
