/* doctor_topology.c - see doctor_topology.h. The path between two devices follows from their positions in the tree of
 * PCI bridges; the notation is that of nvidia-smi topo -m. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/doctor_topology.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 32, DEPTH_MAX = 16, NODES_MAX = 64, NAME_BYTES = 64, TEXT_BYTES = 128 };

typedef struct device {
    char name[NAME_BYTES]; /* GPU0, or the adapter's own */
    bool is_gpu;
    int node; /* NUMA; -1: not told */
    /* The host bridge and every function of PCI from it to the device: "pci0000:00", "0000:00:01.0", ... */
    char place[DEPTH_MAX][16];
    int depth;
} device;

typedef struct topology {
    const char *sysfs;
    device device[DEVICES_MAX];
    int count, gpu_count, node_count;
} topology;

void dsc_doctor_find(dsc_doctor_findings *findings, const char *fmt, ...)
{
    va_list args;
    if (findings->count == DSC_DOCTOR_FINDINGS)
        return;
    va_start(args, fmt);
    vsnprintf(findings->text[findings->count++], sizeof findings->text[0], fmt, args);
    va_end(args);
}

/* ---- what the kernel tells ---- */

/* The first line of a file, printable; "" when there is none. */
static void read_line(const char *path, char out[TEXT_BYTES])
{
    FILE *file = fopen(path, "re");
    out[0] = 0;
    if (file == NULL)
        return;
    if (fgets(out, TEXT_BYTES, file) == NULL)
        out[0] = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    dsc_text_printable(out);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* Calls fn for every entry of a folder, in the order of names. */
static void each_entry(topology *t, const char *folder, void (*fn)(topology *t, const char *path, const char *name))
{
    char path[PATH_MAX], entry[PATH_MAX + 300];
    struct dirent **list = NULL;
    snprintf(path, sizeof path, "%s/%s", t->sysfs, folder);
    const int count = scandir(path, &list, not_hidden, by_name);
    for (int i = 0; i < count; i++) {
        snprintf(entry, sizeof entry, "%s/%s", path, list[i]->d_name);
        fn(t, entry, list[i]->d_name);
        free(list[i]);
    }
    free(list);
}

static bool is_pci_function(const char *text, size_t bytes)
{
    return bytes == 12 && text[4] == ':' && text[7] == ':' && text[10] == '.';
}

/* The parts of the real path that are places in PCI; false: the device is not on it. */
static bool read_place(const char *path, device *out)
{
    char real[PATH_MAX];
    out->depth = 0;
    if (realpath(path, real) == NULL)
        return false;
    for (const char *at = real; at != NULL && *at != 0;) {
        at += *at == '/';
        const size_t bytes = strcspn(at, "/");
        const bool root = bytes == 10 && strncmp(at, "pci", 3) == 0;
        if ((root || is_pci_function(at, bytes)) && out->depth < DEPTH_MAX)
            snprintf(out->place[out->depth++], sizeof out->place[0], "%.*s", (int)bytes, at);
        at += bytes;
    }
    return out->depth >= 2;
}

static device *add_device(topology *t, const char *path)
{
    char file[PATH_MAX + 320], text[TEXT_BYTES];
    device *d = &t->device[t->count];
    if (t->count == DEVICES_MAX || !read_place(path, d))
        return NULL;
    snprintf(file, sizeof file, "%s/numa_node", path);
    read_line(file, text);
    d->node = text[0] != 0 ? atoi(text) : -1;
    t->count++;
    return d;
}

static void add_gpu(topology *t, const char *path, const char *name)
{
    char file[PATH_MAX + 320], vendor[TEXT_BYTES], class_text[TEXT_BYTES];
    snprintf(file, sizeof file, "%s/vendor", path);
    read_line(file, vendor);
    snprintf(file, sizeof file, "%s/class", path);
    read_line(file, class_text);
    if (strcmp(vendor, "0x10de") != 0 || strncmp(class_text, "0x03", 4) != 0) /* NVIDIA's display and 3D controllers */
        return;
    device *d = add_device(t, path);
    if (d == NULL)
        return;
    d->is_gpu = true;
    snprintf(d->name, sizeof d->name, "GPU%d", t->gpu_count++);
}

/* A port of an RDMA adapter is the network device's, when that is on the same function. */
static void add_adapter(topology *t, const char *path, const char *name)
{
    char link[PATH_MAX + 320];
    snprintf(link, sizeof link, "%s/device", path);
    device *d = add_device(t, link);
    if (d == NULL)
        return;
    d->is_gpu = false;
    snprintf(d->name, sizeof d->name, "%.60s", name);
    dsc_text_printable(d->name);
    for (device *other = t->device; other < d; other++)
        if (!other->is_gpu && strcmp(other->place[other->depth - 1], d->place[d->depth - 1]) == 0) {
            const size_t used = strlen(other->name);
            snprintf(other->name + used, sizeof other->name - used, "/%.30s", d->name);
            t->count--;
            return;
        }
}

static void print_node(topology *t, const char *path, const char *name)
{
    char file[PATH_MAX + 320], cores[TEXT_BYTES], memory[TEXT_BYTES];
    long long kib = 0;
    if (strncmp(name, "node", 4) != 0 || name[4] < '0' || name[4] > '9')
        return;
    t->node_count++;
    snprintf(file, sizeof file, "%s/cpulist", path);
    read_line(file, cores);
    snprintf(file, sizeof file, "%s/meminfo", path);
    read_line(file, memory);
    const char *at = strstr(memory, "MemTotal:");
    if (at != NULL)
        (void)sscanf(at, "MemTotal: %lld", &kib);
    printf("  NUMA %-17s cores %s, %.1f GiB\n", name, cores[0] != 0 ? cores : "none", (double)kib / 1048576.0);
}

/* ---- what is between two of them ---- */

enum { SAME, PIX, PXB, PHB, NODE, SYS };
static const char *const words[] = { "X", "PIX", "PXB", "PHB", "NODE", "SYS" };

static int between(const device *a, const device *b)
{
    int common = 0;
    if (a == b)
        return SAME;
    while (common < a->depth && common < b->depth && strcmp(a->place[common], b->place[common]) == 0)
        common++;
    if (common == 0)
        return a->node >= 0 && a->node == b->node ? NODE : SYS;
    if (common == 1)
        return PHB;
    /* Below the shared bridge each has itself, and its port when the bridge is a switch. */
    return a->depth - common <= 2 && b->depth - common <= 2 ? PIX : PXB;
}

static void print_matrix(const topology *t)
{
    printf("  %-16s", "");
    for (int j = 0; j < t->count; j++)
        printf(" %-8.8s", t->device[j].name);
    printf(" NUMA  at\n");
    for (int i = 0; i < t->count; i++) {
        const device *d = &t->device[i];
        printf("  %-16.16s", d->name);
        for (int j = 0; j < t->count; j++)
            printf(" %-8s", words[between(d, &t->device[j])]);
        if (d->node >= 0)
            printf(" %-5d %s\n", d->node, d->place[d->depth - 1]);
        else
            printf(" %-5s %s\n", "-", d->place[d->depth - 1]);
    }
    if (t->count > 1)
        printf("  PIX: one bridge or switch, PXB: several, PHB: the host's bridge, NODE: one NUMA node, SYS: between "
               "nodes\n");
}

static void judge(const topology *t, dsc_doctor_findings *findings)
{
    for (int i = 0; i < t->count; i++) {
        const device *d = &t->device[i];
        int nearest = SYS, adapters = 0;
        if (t->node_count > 1 && d->node < 0)
            dsc_doctor_find(findings, "%s: its NUMA node is not known; switch on NUMA (NPS, SNC) in the firmware, or "
                            "bind ranks by --bind_core_list", d->name);
        for (int j = 0; j < t->count && d->is_gpu; j++)
            if (!t->device[j].is_gpu) {
                const int here = between(d, &t->device[j]);
                nearest = here < nearest ? here : nearest;
                adapters++;
            }
        if (adapters > 0 && nearest == SYS && t->node_count > 1)
            dsc_doctor_find(findings, "%s: every network adapter is at another NUMA node; put an adapter beside it, or "
                            "give jobs over several hosts the other GPUs first (--include)", d->name);
    }
}

void dsc_doctor_topology(const char *sysfs, dsc_doctor_findings *findings)
{
    topology *t = calloc(1, sizeof *t);
    if (t == NULL)
        return;
    t->sysfs = sysfs;
    each_entry(t, "devices/system/node", print_node);
    each_entry(t, "bus/pci/devices", add_gpu);
    each_entry(t, "class/net", add_adapter);
    each_entry(t, "class/infiniband", add_adapter);
    if (t->count > 0)
        print_matrix(t);
    judge(t, findings);
    free(t);
}
