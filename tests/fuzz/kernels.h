/* The kernels, which have tests of their own: quickly compiled, and not what libFuzzer is to cover. */
#ifndef KERNELS_H
#define KERNELS_H

#define ST_KERNELS_PORTABLE
#ifdef __clang__
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC optimize("O0")
#endif
#include "st_kernels.h"
#include "st_kernels_partial.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
