/*
 * Kernels that are known by their name and computed by the processor, one step after the other, where device memory has
 * something behind it (ALIQUOT_SIMGPU_BACKED=1): few, and simple, so that programs that launch kernels can be tried to the
 * end. Their parameters are those of the PTX in aliquot/simgpu/cuda.py.
 */
#include "launch.h"

#include <string.h>

struct kernel {
    const char *name;
    CUresult (*run)(const struct parameters *parameters);
};

#define TAKE(type, name, number, offset)                                            \
    type name;                                                                      \
    do {                                                                            \
        const void *taken_ = parameter(parameters, number, offset, sizeof(type));   \
        NEED(taken_);                                                               \
        memcpy(&name, taken_, sizeof(type));                                        \
    } while (0)

static bool floats(CUdeviceptr pointer, uint32_t count)
{
    return pointer % sizeof(float) == 0 && addresses_within(pointer, (uint64_t)count * sizeof(float));
}

static float *at(CUdeviceptr pointer)
{
    return (float *)(uintptr_t)pointer;
}

/* y += a * x */
static CUresult saxpy(const struct parameters *parameters)
{
    TAKE(CUdeviceptr, y, 0, 0);
    TAKE(CUdeviceptr, x, 1, 8);
    TAKE(float, a, 2, 16);
    TAKE(uint32_t, count, 3, 20);
    if (!floats(y, count) || !floats(x, count))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint32_t i = 0; i < count; i++)
        at(y)[i] += a * at(x)[i];
    return CUDA_SUCCESS;
}

/* out[0] = the sum of x * y */
static CUresult dot(const struct parameters *parameters)
{
    TAKE(CUdeviceptr, out, 0, 0);
    TAKE(CUdeviceptr, x, 1, 8);
    TAKE(CUdeviceptr, y, 2, 16);
    TAKE(uint32_t, count, 3, 24);
    if (!floats(out, 1) || !floats(x, count) || !floats(y, count))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    float sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += at(x)[i] * at(y)[i];
    *at(out) = sum;
    return CUDA_SUCCESS;
}

/* Writes the parameters themselves, as they were handed over, to where the first one points. */
static CUresult record(const struct parameters *parameters)
{
    TAKE(CUdeviceptr, to, 0, 0);
    NEED(!parameters->each);
    if (!addresses_within(to, parameters->bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy(at(to), parameters->packed, parameters->bytes);
    return CUDA_SUCCESS;
}

/* What aliquot/agent/doctor/fold.py says. A fault injected into the call "miscompute" makes one word of it wrong. */
static CUresult fold(const struct parameters *parameters)
{
    TAKE(CUdeviceptr, out, 0, 0);
    TAKE(uint32_t, count, 1, 8);
    TAKE(uint32_t, rounds, 2, 12);
    static struct inject_site site;
    if (!floats(out, count))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint32_t *words = (uint32_t *)(uintptr_t)out;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t x = i;
        for (uint32_t left = rounds; left; left--)
            x = x * 1664525u + 1013904223u;
        words[i] = x ^ ((i & 1023) + rounds);
    }
    if (count && cuda_begin(&site, "miscompute", "miscompute") != CUDA_SUCCESS)
        words[count / 2] ^= 1u << 7;
    return CUDA_SUCCESS;
}

const struct kernel *kernel_named(const char *name)
{
    static const struct kernel known[] = {{"saxpy", saxpy}, {"dot", dot}, {"record", record}, {"fold", fold}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return &known[i];
    return NULL;
}

CUresult kernel_run(const struct kernel *kernel, const struct parameters *parameters)
{
    return kernel->run(parameters);
}
