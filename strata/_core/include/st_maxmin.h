/* Weighted max-min with bounds, by progressive filling: the rates x that maximise the sorted x lexicographically,
 * where the sum of weight * x over the flows of a link is at most its capacity and no x is above its bound.
 *
 * All flows rise together.  A link stops those through it when it is full, at left / weight of what still rises; a
 * bound stops its *class*, the flows of that bound.  What comes first is on top of a tree of minima.  (In a mesh each
 * flow that stops moves nearly all links, so a heap that looks at a link again when it is on top sinks each of them
 * each time.)  A link that all its flows at their bounds would not fill (`most`) limits nothing, and takes no part;
 * nor does one that would stop flows above all bounds.
 *
 * A class is a link too, numbered behind the links; a flow's first link is its class.  Each link keeps the set of its
 * flows' uses, so that a solve touches what is connected with a change (st_maxmin_reach.h) and nothing else.  Memory is the caller's, flows and levels zero at first;
 * st_sim_arena.h says how much. */
#ifndef ST_MAXMIN_H
#define ST_MAXMIN_H

#include <math.h>

#include "st_maxmin_reach.h"

static inline void st_mm_key(struct st_mm *m, uint32_t leaf, double key)
{
    m->tree[leaf] = key;
    for (leaf /= 2; leaf; leaf /= 2) {
        double least = m->tree[2 * leaf] <= m->tree[2 * leaf + 1] ? m->tree[2 * leaf] : m->tree[2 * leaf + 1];

        if (least == m->tree[leaf])
            return;
        m->tree[leaf] = least;
    }
}

/* Of several that come first the one with the lowest leaf: classes before links. */
static inline uint32_t st_mm_top(const struct st_mm *m)
{
    uint32_t i = 1;

    while (i < m->leaves)
        i = 2 * i + (m->tree[2 * i] > m->tree[i]);
    return i;
}

/* What rises through a link and what is left, without the errors of many differences. */
static inline void st_mm_again(struct st_mm *m, const struct st_mm_link *l, struct st_mm_level *v)
{
    v->left = l->capacity;
    v->weight = 0.0;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t entry = m->set[l->first + i];
        const struct st_mm_flow *x = st_mm_flow(m, entry >> m->shift);

        if (x->fixed)
            v->left -= m->weight[entry] * x->rate * x->count;
        else
            v->weight += m->weight[entry] * x->count;
    }
}

static inline void st_mm_fix(struct st_mm *m, uint32_t f, struct st_mm_flow *x, double rate)
{
    const double *weight = m->weight + ((size_t)f << m->shift);

    if (x->rate != rate) {
        x->rate = rate;
        m->moved[m->nmoved++] = f;
    }
    x->fixed = 1;
    m->rising--;
    if (m->stoppers == 0)
        return;
    for (uint32_t u = 1; u < x->nlinks; u++) {
        struct st_mm_level *v = &m->level[x->link[u]];
        double w = x->plain ? 1.0 : weight[u];

        if (v->leaf == 0)
            continue;
        for (uint32_t i = 0; i < x->count; i++) { /* as if there were so many; a product would round in another way */
            v->left -= w * rate;
            v->weight -= w;
        }
        v->open--;
        if (v->step != m->step) {
            v->step = m->step;
            m->touched[m->ntouched++] = x->link[u];
        }
    }
}

/* Of entries of a set, or (`shift` 0) of flows. */
static inline void st_mm_fix_all(struct st_mm *m, const uint32_t *set, uint32_t count, uint32_t shift, double level)
{
    for (uint32_t i = 0; i < count && m->rising; i++) {
        uint32_t f = set[i] >> shift;
        struct st_mm_flow *x = st_mm_flow(m, f);

        if (i + 8 < count)
            __builtin_prefetch(st_mm_flow(m, set[i + 8] >> shift), 1);
        if (!x->fixed)
            st_mm_fix(m, f, x, level < x->bound ? level : x->bound);
    }
}

/* Links that fixed flows go through stop what rises later than before. */
static inline void st_mm_rekey(struct st_mm *m)
{
    for (uint32_t i = 0; i < m->ntouched; i++) {
        uint32_t id = m->touched[i];
        struct st_mm_level *v = &m->level[id];
        double key;

        if (v->open && v->weight < m->link[id].total * 0x1p-20)
            st_mm_again(m, &m->link[id], v);
        key = v->open == 0 ? INFINITY : v->left > 0.0 ? v->left / v->weight : 0.0;
        if (key > m->highest)
            key = INFINITY;
        st_mm_key(m, v->leaf, key);
        if (key == INFINITY) {
            v->leaf = 0;
            m->stoppers--;
        }
    }
}

static inline void st_mm_sum(struct st_mm *m, struct st_mm_link *l)
{
    l->total = 0.0;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t entry = m->set[l->first + i];

        l->total += m->weight[entry] * st_mm_flow(m, entry >> m->shift)->count;
    }
}

/* Leaves: the classes, then the links that may limit a flow. */
static inline void st_mm_plant(struct st_mm *m)
{
    uint32_t n = 0;

    m->stoppers = m->nreached;
    m->highest = 0.0;
    for (uint32_t i = 0; i < m->nclasses; i++) {
        double bound = m->link[m->classes[i]].capacity;

        m->at_leaf[n++] = m->classes[i];
        m->highest = bound > m->highest ? bound : m->highest;
    }
    for (uint32_t i = 0; i < m->nreached; i++) {
        uint32_t id = m->reached[i];
        struct st_mm_link *l = &m->link[id];

        if (l->uneven && l->changed)
            st_mm_sum(m, l);
        l->changed = 0;
        m->at_leaf[n++] = id;
        m->level[id].left = l->capacity;
        m->level[id].weight = l->total;
        m->level[id].open = l->count;
    }
    m->leaves = 1;
    while (m->leaves < n)
        m->leaves *= 2;
    for (uint32_t i = 0; i < m->leaves; i++) {
        uint32_t id = i < n ? m->at_leaf[i] : 0;

        m->tree[m->leaves + i] = i < n ? m->link[id].capacity / (id < m->nlinks ? m->link[id].total : 1.0) : INFINITY;
        if (i < n && id < m->nlinks)
            m->level[id].leaf = m->leaves + i;
    }
    for (uint32_t i = m->leaves; --i;)
        m->tree[i] = m->tree[2 * i] <= m->tree[2 * i + 1] ? m->tree[2 * i] : m->tree[2 * i + 1];
}

/* Rates of all flows.  Each flow has a finite bound or a link with a finite capacity. */
static inline void st_mm_solve(struct st_mm *m)
{
    st_mm_reach(m);
    m->nmoved = 0;
    if (m->rising)
        st_mm_plant(m);
    while (m->rising) {
        uint32_t leaf = st_mm_top(m), id = m->at_leaf[leaf - m->leaves];
        const struct st_mm_link *l = &m->link[id];
        double height = m->tree[leaf];

        m->step++;
        m->ntouched = 0;
        st_mm_key(m, leaf, INFINITY);
        if (id >= m->nlinks) {
            st_mm_fix_all(m, m->rises + l->first, l->count, 0, height);
        } else {
            m->level[id].leaf = 0;
            m->stoppers--;
            st_mm_fix_all(m, m->set + l->first, l->count, m->shift, height);
        }
        st_mm_rekey(m);
    }
}

#endif
