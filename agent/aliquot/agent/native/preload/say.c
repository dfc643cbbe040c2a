/* One write per line, so that lines of several processes don't mix. */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void say(const char *format, ...)
{
    char line[512];
    va_list arguments;
    int prefix = snprintf(line, sizeof line, "aliquot[%d]: ", (int)getpid());
    va_start(arguments, format);
    int length = vsnprintf(line + prefix, sizeof line - (size_t)prefix - 1, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    length += prefix;
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return; /* nobody listens */
}

void say_on(const struct limit_file *limits)
{
    char text[320] = "";
    size_t used = 0;
    if (limits->device_count && limits->devices[0].memory_bytes >= UNLIMITED_BYTES)
        return;
    for (unsigned i = 0; i < limits->device_count && i < DEVICES_MAX && used < sizeof text - 24; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu MiB", i ? ", " : "",
                                 (unsigned long long)(limits->devices[i].memory_bytes >> 20));
    say("lease %.63s holds this process to %s of GPU memory", limits->lease, text);
}
