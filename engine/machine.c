/* machine.c - free memory and cores of this machine. SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "engine/internal.h"
#include "engine/machine.h"

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

static bool read_of_group(const char *folder, const char *name, char *text, size_t text_bytes)
{
    char path[4096 + 128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_small(path, text, text_bytes);
}

/* A line "NAME BYTES" of memory.stat; 0 without it. */
static int64_t stat_bytes(const char *stat, const char *name)
{
    const char *line = strstr(stat, name);
    return line != NULL ? atoll(line + strlen(name)) : 0;
}

/* limit - used bytes of one cgroup folder; INT64_MAX without a limit. The page cache counts as used, but the kernel
 * drops it on demand. v1 has separate names for sums over inner folders; v2 has only such sums. */
static int64_t cgroup_left(const char *folder, bool v2)
{
    char limit[64], used[64], stat[8192];
    if (!read_of_group(folder, v2 ? "memory.max" : "memory.limit_in_bytes", limit, sizeof limit) ||
        !read_of_group(folder, v2 ? "memory.current" : "memory.usage_in_bytes", used, sizeof used) || limit[0] == 'm')
        return INT64_MAX;
    int64_t kept = 0;
    if (read_of_group(folder, "memory.stat", stat, sizeof stat))
        kept = stat_bytes(stat, v2 ? "\ninactive_file " : "\ntotal_inactive_file ") +
               stat_bytes(stat, v2 ? "\nactive_file " : "\ntotal_active_file ");
    return dsc_max_i64(atoll(limit) - dsc_max_i64(atoll(used) - kept, 0), 0);
}

/* This process's cgroup (v2, or the v1 memory controller) and all its parents: the tightest one counts. */
static int64_t cgroups_left(void)
{
    char groups[4096], folder[4096 + 64];
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
            snprintf(folder, sizeof folder, "%s%s", root, group);
            least = dsc_min_i64(least, cgroup_left(folder, v2));
            char *slash = strrchr(group, '/');
            if (slash == NULL)
                break;
            *slash = 0;
        }
    }
    return least;
}

int64_t dsc_machine_available_bytes(int32_t processes)
{
    char text[4096];
    int64_t available = INT64_MAX;
    if (read_small("/proc/meminfo", text, sizeof text)) {
        const char *line = strstr(text, "MemAvailable:");
        if (line != NULL)
            available = atoll(line + strlen("MemAvailable:")) * 1024;
    }
    available = dsc_min_i64(available, cgroups_left());
    return available == INT64_MAX ? available : dsc_max_i64(available - processes * DSC_PROCESS_BYTES, 0);
}

static int32_t online_cores(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int32_t)cores : 1;
}

int32_t dsc_machine_cores(void)
{
    const int32_t usable = dsc_cores_usable();
    return usable > 0 ? usable : online_cores();
}

/* Where ranks are bound to cores of their own, what one may use says nothing about the others. */
double dsc_machine_share(int32_t threads, int32_t ranks)
{
    const int32_t mine = dsc_machine_cores();
    const double wanted = mine < online_cores() ? threads : (double)threads * ranks;
    return wanted > mine ? mine / wanted : 1;
}
