/* The hooks of the checked core.  Compiled once; the one place of the core that holds variables. */
#ifndef ST_HOOKS_H
#define ST_HOOKS_H

#include "st_faults.h"
#include "st_weak_kernels.h"

#endif
