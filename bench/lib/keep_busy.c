/*
 * Keeps a device busy as a training loop does: always some kernels ahead of the one that runs. Says at its end, which a
 * byte on its standard input asks for, how many kernels it has launched.
 *
 *   keep_busy KERNEL_NS KERNELS_A_STEP IDLE_US     it sleeps that long after each step
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u64 nanoseconds) { ret; }\n";

#define CALL(name, ...) ((int (*)(__VA_ARGS__))dlsym(driver, name))

int main(int count, char **words)
{
    uint64_t kernel_ns = count > 1 ? strtoull(words[1], NULL, 10) : 1000000;
    const int step = count > 2 ? atoi(words[2]) : 8;
    const unsigned idle_us = count > 3 ? (unsigned)atoi(words[3]) : 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function, *events[2];
    if (!driver || CALL("cuInit", unsigned)(0) || CALL("cuDevicePrimaryCtxRetain", void **, int)(&context, 0) ||
        CALL("cuCtxSetCurrent", void *)(context) || CALL("cuModuleLoadData", void **, const void *)(&module, image) ||
        CALL("cuModuleGetFunction", void **, void *, const char *)(&function, module, "spin"))
        return 4;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        CALL("cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
             void **);
    int (*record)(void *, void *) = CALL("cuEventRecord", void *, void *);
    int (*await)(void *) = CALL("cuEventSynchronize", void *);
    for (int i = 0; i < 2; i++)
        if (CALL("cuEventCreate", void **, unsigned)(&events[i], 0))
            return 5;
    void *arguments[] = {&kernel_ns};
    uint64_t launched = 0;
    printf("{\"ready\": true}\n");
    fflush(stdout);
    for (uint64_t steps = 0;; steps++) {
        for (int i = 0; i < step; i++, launched++)
            if (launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL))
                return 6;
        if (record(events[steps % 2], NULL) || (steps && await(events[(steps + 1) % 2])))
            return 7;
        struct pollfd asked = {.fd = 0, .events = POLLIN};
        if (poll(&asked, 1, 0))
            break;
        if (idle_us) {
            await(events[steps % 2]);
            usleep(idle_us);
        }
    }
    printf("{\"launched\": %llu}\n", (unsigned long long)launched);
    return 0;
}
