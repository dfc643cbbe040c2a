/* The few lines this library writes, to standard error. */
#ifndef ALIQUOT_PRELOAD_SAY_H
#define ALIQUOT_PRELOAD_SAY_H

#include "layout.h"

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* That it is on, and what it holds the process to. */
void say_on(const struct limit_file *limits);

#endif
