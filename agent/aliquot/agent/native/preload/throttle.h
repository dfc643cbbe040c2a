/* Holding a lease to its part of a device's time, where that is asked for. */
#ifndef ALIQUOT_PRELOAD_THROTTLE_H
#define ALIQUOT_PRELOAD_THROTTLE_H

#include <stdbool.h>

/* Whether any device of the lease has a share of time set. Where none has, launches are not even looked up as ours. */
bool throttle_wanted(void);

/* Before a launch: waits until the lease may use the device again. Returns at once where no throttle is set. */
void throttle_launch(void);
void throttle_graph(void); /* the same; graphs are hooked in any case */

void throttle_forget(void);

#endif
