/* For programs in C, or what calls C: spans of their own in the traces of strata.
 *
 * A die gives the address of these functions away: strata.tracing.c_functions(), an int, or ctypes.c_void_p of it.
 *
 *     const struct strata_probes *p = (const struct strata_probes *)address;
 *     static uint32_t name;                  // of a name, to be kept: each call of name() takes some of 64 KiB
 *     if (!name)
 *         name = p->name("pack rows");
 *     uint64_t began = p->begin();           // 0: nothing is traced
 *     ...
 *     p->end(began, name);
 *
 * Any thread of a die may call them, with or without the interpreter's lock; begin and end of a span belong to one
 * thread.  Before the die has joined its job, and in children that it forks, they do nothing. */
#ifndef STRATA_PROBES_H
#define STRATA_PROBES_H

#include <stdint.h>

#define STRATA_PROBES 1u /* of struct strata_probes, whose first members stay */

struct strata_probes {
    uint32_t version;
    uint32_t (*name)(const char *text); /* its number; 0: there is no room */
    uint64_t (*begin)(void);
    void (*end)(uint64_t began, uint32_t name);
};

#endif
