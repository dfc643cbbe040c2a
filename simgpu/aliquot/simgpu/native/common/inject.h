/*
 * Faults on demand: a call is slowed down, blocked or made to fail where a rule of the scenario names it by its
 * symbol, its class or "*". Classes group the symbols that ask the driver for the same thing, whatever their version.
 */
#ifndef ALIQUOT_INJECT_H
#define ALIQUOT_INJECT_H

#include <stdint.h>

#define INJECT_ANY_DEVICE (-1)

/* One per call site: remembers, for one generation of the rules, that none of them is about this symbol. */
struct inject_site {
    uint64_t quiet;
};

/* Waits or blocks as the rules say; the error to answer with, or 0. Must be called without the machine lock. */
int inject(struct inject_site *site, const char *symbol, const char *call_class, int device);

#endif
