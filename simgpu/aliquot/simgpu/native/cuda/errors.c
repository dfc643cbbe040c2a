/* Names and texts of the error codes that this driver answers. */
#include "internal.h"

struct text {
    CUresult code;
    const char *name, *text;
};

#define TEXT(code, text) {code, #code, text}

static const struct text texts[] = {
    TEXT(CUDA_SUCCESS, "no error"),
    TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    TEXT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    TEXT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    TEXT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    TEXT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const struct text *find(CUresult code)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == code)
            return &texts[i];
    return NULL;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
    NEED(name);
    const struct text *found = find(code);
    *name = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    NEED(text);
    const struct text *found = find(code);
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
