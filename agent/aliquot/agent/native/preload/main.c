/*
 * Loaded into every process of a lease by LD_PRELOAD. Until one of them touches the driver nothing happens here: the
 * files of the lease are opened and the driver is looked for at the first call that is about either.
 */
#include <pthread.h>

#include "process.h"

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
}

/*
 * Programs of musl (Alpine's images) are started with this library too. glibc's pthread_atfork is a static stub around
 * __register_atfork, which musl lacks; musl's is a function of its own. So both are wanted weakly, and the one is called
 * that is there: a symbol that is wanted in earnest would keep such a program from starting at all.
 */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern __typeof__(pthread_atfork) pthread_atfork __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

__attribute__((constructor)) static void loaded(void)
{
    if (__register_atfork)
        __register_atfork(NULL, NULL, forked, __dso_handle);
    else if (pthread_atfork)
        pthread_atfork(NULL, NULL, forked);
}
