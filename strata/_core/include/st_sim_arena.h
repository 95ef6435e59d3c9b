/* How much memory a simulation needs, and where in it what lies.  Any bytes may be in it: what has to be zero is made so
 * where that is known to be used (st_sim_load.h), so pages that nothing needs are never touched. */
#ifndef ST_SIM_ARENA_H
#define ST_SIM_ARENA_H

#include "st_sim_types.h"

/* Counts what the sizes depend on.  0: there are too many flows with too many uses to number them. */
static inline int st_sim_count(struct st_sim *s)
{
    uint64_t table = 16;

    s->total_uses = 0;
    s->npeers = s->nfanouts = s->most_uses = 0;
    for (uint64_t i = 0; i < s->nlinks; i++)
        s->nfanouts += s->links[i].loss > 0.0;
    for (uint64_t i = 0; i < s->nuses; i++)
        if (s->links[s->uses[i].link].loss > 0.0 && (uint64_t)s->uses[i].peer >= s->npeers)
            s->npeers = (uint64_t)s->uses[i].peer + 1;
    for (uint64_t i = 0; i < s->ntasks; i++) {
        if (!(s->tasks[i].work > 0.0))
            continue;
        s->total_uses += s->tasks[i].nuse;
        if (s->tasks[i].nuse > s->most_uses)
            s->most_uses = s->tasks[i].nuse;
    }
    s->mm.shift = 1;
    while ((1u << s->mm.shift) < s->most_uses + 1)
        s->mm.shift++;
    s->mm.stride = (uint32_t)(sizeof(struct st_mm_flow) + 4 * (s->most_uses + 1) + 31) & ~31u;
    s->way = (uint32_t)(sizeof(struct st_sim_route) + s->most_uses * sizeof(struct st_sim_hop) + 15) & ~15u;
    while (table < 2 * s->ntasks)
        table *= 2;
    s->table = (uint32_t)table;
    return (s->nlanes << s->mm.shift) <= UINT32_MAX && s->total_uses <= UINT32_MAX;
}

static inline void *st_sim_piece(char *base, size_t *at, uint64_t count, size_t each)
{
    char *found = base + *at;

    *at += (count * each + 63) & ~(size_t)63;
    return base ? found : NULL;
}

/* Gives out the memory at `base`; without one, only says how many bytes that takes. */
static inline size_t st_sim_arena(struct st_sim *s, char *base)
{
    struct st_mm *m = &s->mm;
    size_t at = 0;
    uint64_t uses = s->nlanes << m->shift, all = s->nlinks + s->ntasks;

    m->link = st_sim_piece(base, &at, all, sizeof *m->link);
    m->level = st_sim_piece(base, &at, all, sizeof *m->level);
    m->flows = st_sim_piece(base, &at, s->nlanes, m->stride);
    m->weight = st_sim_piece(base, &at, uses, sizeof *m->weight);
    m->place = st_sim_piece(base, &at, uses, sizeof *m->place);
    m->set = st_sim_piece(base, &at, s->total_uses, sizeof *m->set);
    m->narrow = st_sim_piece(base, &at, s->nlinks, sizeof *m->narrow);
    m->changed = st_sim_piece(base, &at, s->nlinks, sizeof *m->changed);
    m->fresh = st_sim_piece(base, &at, s->nlanes, sizeof *m->fresh);
    m->reached = st_sim_piece(base, &at, s->nlinks, sizeof *m->reached);
    m->classes = st_sim_piece(base, &at, s->nlanes, sizeof *m->classes);
    m->rises = st_sim_piece(base, &at, s->nlanes, sizeof *m->rises);
    m->sorted = st_sim_piece(base, &at, s->nlanes, sizeof *m->sorted);
    m->moved = st_sim_piece(base, &at, s->nlanes, sizeof *m->moved);
    m->touched = st_sim_piece(base, &at, all, sizeof *m->touched);
    m->at_leaf = st_sim_piece(base, &at, all, sizeof *m->at_leaf);
    m->tree = st_sim_piece(base, &at, 4 * all + 4, sizeof *m->tree);
    s->link = st_sim_piece(base, &at, s->nlinks, sizeof *s->link);
    s->load = st_sim_piece(base, &at, s->check ? s->nlinks : 0, sizeof *s->load);
    s->solved = st_sim_piece(base, &at, s->nlinks, sizeof *s->solved);
    s->fanout = st_sim_piece(base, &at, s->nfanouts, sizeof *s->fanout);
    s->counts = st_sim_piece(base, &at, s->nfanouts * s->npeers, sizeof *s->counts);
    s->log2_of = st_sim_piece(base, &at, s->npeers + 1, sizeof *s->log2_of);
    s->fan_touched = st_sim_piece(base, &at, s->nfanouts, sizeof *s->fan_touched);
    s->lane = st_sim_piece(base, &at, s->nlanes, sizeof *s->lane);
    s->slot = st_sim_piece(base, &at, s->nlanes, sizeof *s->slot);
    s->finish = st_sim_piece(base, &at, s->nlanes, sizeof *s->finish);
    s->block = st_sim_piece(base, &at, s->nlanes / ST_SIM_BLOCK + 1, sizeof *s->block);
    s->free_slot = st_sim_piece(base, &at, s->nlanes, sizeof *s->free_slot);
    s->free_flow = st_sim_piece(base, &at, s->nlanes, sizeof *s->free_flow);
    s->fresh = st_sim_piece(base, &at, s->nlanes, sizeof *s->fresh);
    s->routes = st_sim_piece(base, &at, s->ntasks, s->way);
    s->asked = st_sim_piece(base, &at, s->ntasks, sizeof *s->asked);
    s->route = st_sim_piece(base, &at, s->ntasks, sizeof *s->route);
    s->route_at = st_sim_piece(base, &at, s->nuses + 1, sizeof *s->route_at);
    s->bounds = st_sim_piece(base, &at, s->table, sizeof *s->bounds);
    s->need = st_sim_piece(base, &at, s->nflags, sizeof *s->need);
    s->waiters = st_sim_piece(base, &at, s->nflags, sizeof *s->waiters);
    s->meeting = st_sim_piece(base, &at, s->nrendezvous, sizeof *s->meeting);
    s->let_go = st_sim_piece(base, &at, s->nmembers, sizeof *s->let_go);
    s->due = st_sim_piece(base, &at, s->nlanes + s->nmembers, sizeof *s->due);
    s->bucket = st_sim_piece(base, &at, s->nlanes + s->nmembers, sizeof *s->bucket);
    s->pending = st_sim_piece(base, &at, s->nlanes + s->nmembers, sizeof *s->pending);
    s->batch = st_sim_piece(base, &at, 2 * s->nlanes + s->nmembers, sizeof *s->batch);
    return at;
}

#endif
