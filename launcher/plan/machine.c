/* machine.c - GPUs, cores, names and addresses of this host. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/machine.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Device nodes nvidia0, nvidia1, ...: there also when no driver library is installed in this container. */
static int32_t count_gpus(void)
{
    DIR *dev = opendir("/dev");
    int32_t count = 0;
    if (dev == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(dev)) != NULL;) {
        const char *number = entry->d_name + 6;
        if (strncmp(entry->d_name, "nvidia", 6) == 0 && *number != 0 && number[strspn(number, "0123456789")] == 0)
            count++;
    }
    closedir(dev);
    return count;
}

/* CPUs that the container's quota pays for (cgroup 2), or 0 when there is none. */
static int32_t quota_cores(void)
{
    char text[64] = "";
    long long quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file == NULL)
        return 0;
    const bool read = fgets(text, sizeof text, file) != NULL && sscanf(text, "%lld %lld", &quota, &period) == 2;
    fclose(file);
    return read && quota > 0 && period > 0 ? (int32_t)dsc_min_i64(dsc_div_ceil(quota, period), 1 << 20) : 0;
}

void dsc_machine_read(dsc_machine *out)
{
    memset(out, 0, sizeof *out);
    if (gethostname(out->name, sizeof out->name - 1) != 0 || out->name[0] == 0)
        snprintf(out->name, sizeof out->name, "localhost");
    CPU_ZERO(&out->cores);
    if (sched_getaffinity(0, sizeof out->cores, &out->cores) != 0 || CPU_COUNT(&out->cores) == 0)
        CPU_SET(0, &out->cores);
    out->core_count = CPU_COUNT(&out->cores);
    const int32_t quota = quota_cores();
    if (quota > 0 && quota < out->core_count)
        out->core_count = quota;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && (visible[0] == 0 || strcmp(visible, "-1") == 0))
        return; /* the usual ways to say "no GPU" */
    out->gpu_count = count_gpus();
    out->visible = visible;
}

static bool has_address(const char *host)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *i = list; i != NULL && !found; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET)
            inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, text, sizeof text);
        else if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET6)
            inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr, text,
                      sizeof text);
        found = text[0] != 0 && strcmp(text, host) == 0;
    }
    freeifaddrs(list);
    return found;
}

bool dsc_machine_is_local(const dsc_machine *machine, const char *host)
{
    static const char *const names[] = { "localhost", "localhost.localdomain", "ip6-localhost", "::1" };
    struct in_addr address;
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcasecmp(host, names[i]) == 0)
            return true;
    if (inet_pton(AF_INET, host, &address) == 1 && (ntohl(address.s_addr) >> 24) == 127)
        return true;
    const size_t short_bytes = strcspn(machine->name, ".");
    if (strcasecmp(host, machine->name) == 0)
        return true;
    if (strlen(host) == short_bytes && strncasecmp(host, machine->name, short_bytes) == 0)
        return true;
    return has_address(host);
}

dsc_status dsc_core_list_parse(const char *flag, const char *text, cpu_set_t *out, dsc_error *err)
{
    CPU_ZERO(out);
    for (const char *at = text;; at++) {
        char *end = NULL;
        const long first = at[0] >= '0' && at[0] <= '9' ? strtol(at, &end, 10) : -1;
        long last = first;
        if (first >= 0 && *end == '-')
            last = end[1] >= '0' && end[1] <= '9' ? strtol(end + 1, &end, 10) : -1;
        if (first < 0 || last < first || last >= CPU_SETSIZE || (*end != ',' && *end != 0))
            return DSC_FAIL(err, DSC_ERR_INPUT, flag,
                            "\"%.60s\": expected core numbers and ranges below %d, for example 0-3,8", text,
                            CPU_SETSIZE);
        for (long core = first; core <= last; core++)
            CPU_SET((size_t)core, out);
        at = end;
        if (*at == 0)
            return DSC_OK;
    }
}

/* Lowest hardware thread of the physical core that `core` is on. */
static int first_sibling(int core)
{
    char path[96], text[64] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", core);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return core;
    const bool read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return read && text[0] >= '0' && text[0] <= '9' ? atoi(text) : core;
}

void dsc_cores_physical(const cpu_set_t *from, cpu_set_t *out)
{
    cpu_set_t seen; /* cores are known by their first thread, which may itself be outside `from` */
    CPU_ZERO(&seen);
    CPU_ZERO(out);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET((size_t)core, from))
            continue;
        const int first = first_sibling(core);
        if (first >= 0 && first < CPU_SETSIZE && CPU_ISSET((size_t)first, &seen))
            continue;
        if (first >= 0 && first < CPU_SETSIZE)
            CPU_SET((size_t)first, &seen);
        CPU_SET((size_t)core, out);
    }
}

void dsc_cores_share(const cpu_set_t *from, int32_t part, int32_t parts, cpu_set_t *out)
{
    DSC_ASSERT(parts > 0);
    DSC_ASSERT(part >= 0 && part < parts);
    const int each = CPU_COUNT(from) / parts;
    int seen = 0;
    CPU_ZERO(out);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET((size_t)core, from))
            continue;
        if (seen / (each > 0 ? each : 1) == part && seen < each * parts)
            CPU_SET((size_t)core, out);
        seen++;
    }
}

dsc_status dsc_cores_divide(const dsc_machine *machine, const char *core_list, int32_t parts, cpu_set_t *cores,
                            int32_t *thread_count, dsc_error *err)
{
    if (core_list != NULL && core_list[0] != 0) {
        cpu_set_t common;
        DSC_TRY(dsc_core_list_parse("--bind_core_list", core_list, cores, err));
        CPU_AND(&common, cores, &machine->cores);
        if (!CPU_EQUAL(&common, cores))
            return DSC_FAIL(err, DSC_ERR_INPUT, "--bind_core_list",
                            "\"%.60s\" names cores that this process may not use", core_list);
    } else {
        dsc_cores_physical(&machine->cores, cores);
    }
    if (CPU_COUNT(cores) < parts)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--bind_cores_to_rank", "%d cores for %d ranks; each rank needs one",
                        CPU_COUNT(cores), parts);
    *thread_count = CPU_COUNT(cores) / parts;
    return DSC_OK;
}

int dsc_cores_numa_node(const cpu_set_t *cores)
{
    for (int node = 0; node < 1024; node++) {
        char path[64], text[4096] = "";
        cpu_set_t own, common;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        FILE *file = fopen(path, "re");
        if (file == NULL)
            return -1; /* nodes are numbered without a gap where memory cannot be unplugged */
        const bool read = fgets(text, sizeof text, file) != NULL;
        fclose(file);
        text[strcspn(text, "\n")] = 0;
        if (!read || dsc_core_list_parse("", text, &own, NULL) != DSC_OK)
            continue;
        CPU_AND(&common, &own, cores);
        if (CPU_COUNT(&common) > 0)
            return CPU_EQUAL(&common, cores) ? node : -1;
    }
    return -1;
}
