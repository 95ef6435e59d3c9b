/* Whose rates may change: what a solve has to go through.
 *
 * A flow's rate depends on nothing but the flows and links that it is connected with through links that can limit
 * something.  So a solve begins at the links that have changed, and at flows that are new, and goes as far as such
 * links lead.  All others keep their rates, which are right to the bit. */
#ifndef ST_MAXMIN_REACH_H
#define ST_MAXMIN_REACH_H

#include "st_maxmin_sets.h"

/* Flow f rises in this solve. */
static inline void st_mm_take(struct st_mm *m, uint32_t f, struct st_mm_flow *x)
{
    uint32_t class = x->link[0];

    x->solve = m->solve;
    x->fixed = 0;
    m->rises[m->rising++] = f;
    if (m->level[class].solve != m->solve) {
        m->level[class].solve = m->solve;
        m->link[class].count = 0;
        m->classes[m->nclasses++] = class;
    }
    m->link[class].count++;
}

static inline void st_mm_reach_link(struct st_mm *m, uint32_t id)
{
    if (m->level[id].solve != m->solve) {
        m->level[id].solve = m->solve;
        m->reached[m->nreached++] = id;
    }
}

static inline void st_mm_reach_flow(struct st_mm *m, uint32_t f)
{
    struct st_mm_flow *x = st_mm_flow(m, f);

    if (x->solve == m->solve || x->nlinks == 0)
        return;
    st_mm_take(m, f, x);
    for (uint32_t u = 1; u < x->nlinks; u++)
        if (m->link[x->link[u]].place)
            st_mm_reach_link(m, x->link[u]);
}

/* The links that were reached and can limit something, as they are in `narrow`: what comes first decides between links
 * that are full at one level. */
static inline void st_mm_order(struct st_mm *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->nreached; i++)
        if (m->link[m->reached[i]].place)
            m->reached[n++] = m->reached[i];
    m->nreached = n;
    if ((uint64_t)n * n / 4 > m->nnarrow) {
        m->nreached = 0;
        for (uint32_t i = 0; i < m->nnarrow; i++)
            if (m->level[m->narrow[i]].solve == m->solve)
                m->reached[m->nreached++] = m->narrow[i];
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t id = m->reached[i], k = i;

        for (; k && m->link[m->reached[k - 1]].place > m->link[id].place; k--)
            m->reached[k] = m->reached[k - 1];
        m->reached[k] = id;
    }
}

/* All that flows, since most of it has changed anyway. */
static inline void st_mm_reach_all(struct st_mm *m)
{
    for (uint32_t f = 0; f < m->nflows; f++)
        if (st_mm_flow(m, f)->nlinks)
            st_mm_take(m, f, st_mm_flow(m, f));
    for (m->nreached = 0; m->nreached < m->nnarrow; m->nreached++)
        m->reached[m->nreached] = m->narrow[m->nreached];
}

/* What rises, class by class: each class's flows are rises[first, first + count). */
static inline void st_mm_by_class(struct st_mm *m)
{
    uint32_t first = 0, *swap = m->rises;

    for (uint32_t c = 0; c < m->nclasses; c++) {
        struct st_mm_link *class = &m->link[m->classes[c]];

        class->first = first;
        first += class->count;
        class->count = m->nclasses == 1 ? class->count : 0;
    }
    if (m->nclasses == 1)
        return;
    for (uint32_t i = 0; i < m->rising; i++) {
        struct st_mm_link *class = &m->link[st_mm_flow(m, m->rises[i])->link[0]];

        m->sorted[class->first + class->count++] = m->rises[i];
    }
    m->rises = m->sorted;
    m->sorted = swap;
}

/* Finds what rises (`rises`, `rising`, `classes`) and what may limit it (`reached`). */
static inline void st_mm_reach(struct st_mm *m)
{
    uint64_t changed = m->nfresh;

    m->solve++;
    m->rising = m->nclasses = m->nreached = 0;
    for (uint32_t i = 0; i < m->nchanged; i++) {
        struct st_mm_link *l = &m->link[m->changed[i]];

        l->listed = 0;
        l->was = l->place != 0;
        changed += l->count;
    }
    if (2 * changed > m->nlive) {
        st_mm_reach_all(m);
    } else {
        for (uint32_t i = 0; i < m->nchanged; i++)
            st_mm_reach_link(m, m->changed[i]);
        for (uint32_t i = 0; i < m->nfresh; i++)
            st_mm_reach_flow(m, m->fresh[i]);
        for (uint32_t i = 0; i < m->nreached; i++) {
            const struct st_mm_link *l = &m->link[m->reached[i]];

            for (uint32_t k = 0; k < l->count; k++)
                st_mm_reach_flow(m, m->set[l->first + k] >> m->shift);
        }
        st_mm_order(m);
    }
    for (uint32_t i = 0; i < m->nfresh; i++)
        st_mm_flow(m, m->fresh[i])->fresh = 0;
    m->nchanged = m->nfresh = 0;
    st_mm_by_class(m);
}

#endif
