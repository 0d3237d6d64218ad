/* machine.c - what this machine has left: memory and cores. SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/internal.h"

/* A small file of the kernel's; false when it cannot be read. */
static bool read_small(const char *path, char *text, size_t text_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t bytes = read(fd, text, text_bytes - 1);
    close(fd);
    if (bytes < 0)
        return false;
    text[bytes] = 0;
    return true;
}

/* limit - used of one cgroup folder; INT64_MAX without a limit. */
static int64_t cgroup_left(const char *limit_path, const char *used_path)
{
    char limit[64], used[64];
    if (!read_small(limit_path, limit, sizeof limit) || !read_small(used_path, used, sizeof used) || limit[0] == 'm')
        return INT64_MAX;
    const long long left = atoll(limit) - atoll(used);
    return left > 0 ? left : 0;
}

/* This process's cgroup (v2, or the v1 memory controller) and all its parents: the tightest one counts. */
static int64_t cgroups_left(void)
{
    char groups[4096], path[4096 + 64], used[4096 + 64];
    int64_t least = INT64_MAX;
    if (!read_small("/proc/self/cgroup", groups, sizeof groups))
        return least;
    for (char *save = NULL, *line = strtok_r(groups, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        const bool v2 = strncmp(line, "0::", 3) == 0;
        char *group = v2 ? line + 3 : strstr(line, ":memory:");
        if (group == NULL)
            continue;
        group += v2 ? 0 : strlen(":memory:");
        for (;;) {
            const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
            snprintf(path, sizeof path, "%s%s/%s", root, group, v2 ? "memory.max" : "memory.limit_in_bytes");
            snprintf(used, sizeof used, "%s%s/%s", root, group, v2 ? "memory.current" : "memory.usage_in_bytes");
            least = dsc_min_i64(least, cgroup_left(path, used));
            char *slash = strrchr(group, '/');
            if (slash == NULL)
                break;
            *slash = 0;
        }
    }
    return least;
}

int64_t dsc_machine_available_bytes(void)
{
    char text[4096];
    int64_t available = INT64_MAX;
    if (read_small("/proc/meminfo", text, sizeof text)) {
        const char *line = strstr(text, "MemAvailable:");
        if (line != NULL)
            available = atoll(line + strlen("MemAvailable:")) * 1024;
    }
    return dsc_min_i64(available, cgroups_left());
}

static int32_t online_cores(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int32_t)cores : 1;
}

int32_t dsc_machine_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : online_cores();
}

/* Where ranks are bound to cores of their own, what one may use says nothing about the others. */
double dsc_machine_share(int32_t threads, int32_t ranks)
{
    const int32_t mine = dsc_machine_cores();
    const double wanted = mine < online_cores() ? threads : (double)threads * ranks;
    return wanted > mine ? mine / wanted : 1;
}
