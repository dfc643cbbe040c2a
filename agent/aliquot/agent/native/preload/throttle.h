/* Holding a lease to its part of a device's time, while others want theirs. */
#ifndef ALIQUOT_PRELOAD_THROTTLE_H
#define ALIQUOT_PRELOAD_THROTTLE_H

#include <stdbool.h>

/* Whether launches may ever have to wait. Where not, they are not even looked up as ours. */
bool throttle_wanted(void);

/* Before a launch: waits until it is the lease's turn. Returns at once while the lease may use all that there is. */
void throttle_launch(void);

#endif
