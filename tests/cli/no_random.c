/* no_random.c - for LD_PRELOAD: getrandom fails after NO_RANDOM_AFTER calls of a process, as where a seccomp profile
 * forbids it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

ssize_t getrandom(void *bytes, size_t count, unsigned flags)
{
    static int calls;
    const char *after = getenv("NO_RANDOM_AFTER");
    (void)flags;
    if (after != NULL && calls++ >= atoi(after)) {
        errno = EPERM;
        return -1;
    }
    memset(bytes, 7, count);
    return (ssize_t)count;
}
