/*
 * Loaded into every process of a lease by LD_PRELOAD. Until one of them touches the driver nothing happens here: the
 * files of the lease are opened and the driver is looked for at the first call that is about either.
 */
#include <pthread.h>

#include "process.h"
#include "throttle.h"

/* A child holds nothing of what its parent held: what it allocates goes into a slot of its own. */
static void forked(void)
{
    book_forget();
    ledger_forget();
    process_forget();
    internal_forget();
    pools_forget();
    physical_forget();
    graphs_forget();
    contexts_forget();
    measure_forget();
    throttle_forget();
}

__attribute__((constructor)) static void loaded(void)
{
    pthread_atfork(NULL, NULL, forked);
}
