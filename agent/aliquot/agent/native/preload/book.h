/* What the lease may hold and does hold, shared by all its processes. Every amount is reserved here first. */
#ifndef ALIQUOT_PRELOAD_BOOK_H
#define ALIQUOT_PRELOAD_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

enum { DEVICE_FOREIGN = -1, DEVICE_UNKNOWN = -2 };

/* The index of a device in the lease, or DEVICE_FOREIGN. */
int book_device(const unsigned char uuid[16]);

/* Reserves bytes for this process, or leaves all as it was: false, they don't fit (or the book can't be used). */
bool book_charge(int device, uint64_t bytes);
void book_credit(int device, uint64_t bytes);

/* Counts what is there already and can't be refused any more. */
void book_force(int device, uint64_t bytes);

/* Reports what making a context has taken. */
void book_note_context(int device, uint64_t bytes);

/* Whether memory of a device is limited here; DEVICE_FOREIGN: of any. Where not, another tier holds it. */
bool book_limits(int device);
uint64_t book_limit(int device);
uint64_t book_room(int device);       /* what could still be charged */
uint64_t book_held_here(int device);  /* by this process */
uint64_t book_context_bytes(int device);

/* Whether any device of the lease has a pace that may be held, and whether one is held to it now: asked at each launch. */
bool book_paced(void);
bool book_pacing(void);

/* What the agent allows now and has measured of a device, and the lease's own pace there; NULL: there is none. */
const struct limit_device *book_allowance(int device);
struct pace *book_pace(int device);

/* Called in a forked child before anything else. */
void book_forget(void);

#endif
