/* Times the driver's calls as a program makes them: nanoseconds per allocation with its free, and per launch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char kernel[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

#define CALL(name, ...) ((int (*)(__VA_ARGS__))dlsym(driver, name))

int main(int count, char **words)
{
    const int times = count > 1 ? atoi(words[1]) : 10000;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    unsigned long long pointer;
    if (!driver || CALL("cuInit", unsigned)(0) || CALL("cuDevicePrimaryCtxRetain", void **, int)(&context, 0) ||
        CALL("cuCtxSetCurrent", void *)(context) || CALL("cuModuleLoadData", void **, const void *)(&module, kernel) ||
        CALL("cuModuleGetFunction", void **, void *, const char *)(&function, module, "nothing"))
        return 4;
    int (*alloc)(unsigned long long *, size_t) = CALL("cuMemAlloc_v2", unsigned long long *, size_t);
    int (*release)(unsigned long long) = CALL("cuMemFree_v2", unsigned long long);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        CALL("cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
             void **);
    int (*synchronize)(void) = CALL("cuCtxSynchronize", void);
    double begun = now();
    for (int i = 0; i < times; i++)
        if (alloc(&pointer, (size_t)4 << 20) || release(pointer))
            return 5;
    const double per_alloc = (now() - begun) / times;
    begun = now();
    for (int i = 0; i < times; i++)
        if (launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
            return 6;
    const double per_launch = (now() - begun) / times;
    synchronize();
    printf("{\"alloc_ns\": %.1f, \"launch_ns\": %.1f}\n", per_alloc, per_launch);
    return 0;
}
