/* Fault points: places at which a test may end, stop or hold up a die.
 *
 * ST_FAULT(NAME) stands between two steps that others may see.  In the release core it is nothing.  In the checked
 * core (DESIGN.md) it counts, and does what STRATA_FAULT asks for at that place.  st_fault_points.h says what has
 * happened when a point is reached.
 */
#ifndef ST_FAULT_H
#define ST_FAULT_H

#include "st_fault_points.h"

enum st_fault_point {
#define ST_FAULT_ENUM(name) ST_FP_##name,
    ST_FAULT_POINTS(ST_FAULT_ENUM)
#undef ST_FAULT_ENUM
    ST_FP_COUNT
};

#ifdef ST_CHECKED
extern void st_hook_fault(enum st_fault_point point);
#define ST_FAULT(name) st_hook_fault(ST_FP_##name)
#else
#define ST_FAULT(name) ((void)0)
#endif

#endif
