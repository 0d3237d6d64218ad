/* doctor.c - `dsc doctor`: what this machine has for training, and what is missing.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/plugin.h"
#include "engine/config/config.h"
#include "kernels/device.h"
#include "offload/aio.h"
#include "tools/dsc/doctor_hosts.h"
#include "tools/dsc/doctor_topology.h"

static void line(const char *what, const char *value, const char *remark)
{
    printf("  %-22s %s%s%s\n", what, value, *remark != 0 ? "   " : "", remark);
}

static void cpu(void)
{
    char cores[64], levels[160] = "";
    snprintf(cores, sizeof cores, "%d usable of %ld", (int)dsc_cores_usable(), sysconf(_SC_NPROCESSORS_ONLN));
    line("cores", cores, "");
#if defined(__x86_64__)
    const struct { const char *name; bool there; } features[] = {
        { "avx2", __builtin_cpu_supports("avx2") != 0 },
        { "fma", __builtin_cpu_supports("fma") != 0 },
        { "avx512", __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") },
        { "avx512-bf16", __builtin_cpu_supports("avx512bf16") != 0 },
    };
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++)
        if (features[i].there)
            snprintf(levels + strlen(levels), sizeof levels - strlen(levels), "%s%s", *levels != 0 ? " " : "",
                     features[i].name);
    line("instructions", *levels != 0 ? levels : "none of avx2 and above",
         features[3].there ? "" : "no bf16 instructions: bf16 is computed through fp32");
#else
    snprintf(levels, sizeof levels, "none known");
    line("instructions", levels, "portable code is used");
#endif
}

/* A number of kB after `name` in /proc/meminfo, or -1. */
static long long meminfo(const char *name)
{
    char text[256];
    long long kb = -1;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(text, sizeof text, file) != NULL)
        if (strncmp(text, name, strlen(name)) == 0 && sscanf(text + strlen(name), ": %lld", &kb) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kb;
}

static void memory(dsc_doctor_findings *findings)
{
    char text[128];
    struct rlimit limit;
    struct statvfs shm;
    const double gib = 1024.0 * 1024.0;
    snprintf(text, sizeof text, "%.1f GiB, %.1f available", (double)meminfo("MemTotal") / gib,
             (double)meminfo("MemAvailable") / gib);
    line("memory", text, "");
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        snprintf(text, sizeof text, "not there");
    if (file != NULL)
        fclose(file);
    text[strcspn(text, "\n")] = 0;
    line("huge pages", text, "");
    if (strstr(text, "[never]") != NULL)
        dsc_doctor_find(findings, "huge pages are off, which large buffers want; echo madvise > "
                        "/sys/kernel/mm/transparent_hugepage/enabled");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY)
            snprintf(text, sizeof text, "unlimited");
        else
            snprintf(text, sizeof text, "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
        line("locked memory", text, "");
        if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < 1u << 30)
            dsc_doctor_find(findings, "only %s may be locked, which RDMA and offload to files want; ulimit -l "
                            "unlimited, memlock in /etc/security/limits.conf, or docker run --ulimit memlock=-1", text);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
        line("open files", text, "");
        if (limit.rlim_cur < 1024) /* a launcher of 64 hosts or ranks holds some 10 for each */
            dsc_doctor_find(findings, "only %s files may be open at once; ulimit -n 65536", text);
    }
    if (statvfs("/dev/shm", &shm) == 0) {
        const double free_gib = (double)shm.f_bavail * (double)shm.f_frsize / (gib * 1024.0);
        snprintf(text, sizeof text, "%.1f GiB free", free_gib);
        if (free_gib < 0.5) /* NCCL keeps its buffers there; Docker's default is 64 MiB */
            dsc_doctor_find(findings, "/dev/shm has %s, and NCCL between GPUs of one host wants more; mount -o "
                            "remount,size=50%% /dev/shm, or docker run --shm-size=8g", text);
    } else {
        snprintf(text, sizeof text, "not there");
    }
    line("/dev/shm", text, "");
}

/* One GPU, opened for a moment. */
static void gpu(const dsc_device_ops *ops, dsc_alloc *alloc, int32_t index)
{
    const dsc_device_options options = { .alloc = alloc, .threads = 1, .index = index };
    dsc_device *device = NULL;
    dsc_device_props props;
    dsc_error err = DSC_ERROR_INIT;
    char name[32], text[160];
    snprintf(name, sizeof name, "GPU %d", (int)index);
    if (dsc_device_open(ops, &device, &options, &err) != DSC_OK) {
        line(name, "cannot be used", err.message);
        return;
    }
    dsc_device_props_get(device, &props);
    snprintf(text, sizeof text, "%s, sm_%d, %.1f of %.1f GiB free", props.name, (int)props.arch,
             (double)props.free_bytes / (1024.0 * 1024.0 * 1024.0),
             (double)props.total_bytes / (1024.0 * 1024.0 * 1024.0));
    line(name, text, props.versions);
    dsc_device_close(&device);
}

static void gpus(dsc_doctor_findings *findings)
{
    const dsc_device_ops *ops = NULL;
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    int32_t count = 0;
    if (dsc_device_find("cuda", &ops, &count, &err) != DSC_OK || dsc_alloc_open(&alloc, &err) != DSC_OK) {
        line("GPU", "none that can be used", err.message);
        if (access("/dev/nvidiactl", F_OK) == 0)
            dsc_doctor_find(findings, "there is a GPU driver, but ranks would compute on the CPU: %s", err.message);
        return;
    }
    for (int32_t i = 0; i < count; i++)
        gpu(ops, alloc, i);
    dsc_alloc_close(&alloc);
}

/* The file engine that a run with nvme_path would use. */
static void files(dsc_doctor_findings *findings)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_aio *aio = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return;
    const dsc_aio_options options = { .alloc = alloc, .engine = "auto", .block_bytes = 1 << 20, .queue_depth = 32,
                                      .thread_count = 1 };
    if (dsc_aio_open(&options, &aio, &err) == DSC_OK)
        line("file engine", dsc_aio_why(aio), "");
    else
        line("file engine", "none", err.message);
    if (aio == NULL || strncmp(dsc_aio_why(aio), "io_uring", 8) != 0)
        dsc_doctor_find(findings, "io_uring cannot be used, with which offload to files is fastest; sysctl "
                        "kernel.io_uring_disabled=0, and in containers a seccomp profile that lets it through");
    dsc_aio_close(&aio);
    dsc_alloc_close(&alloc);
}

static bool library_there(const char *name)
{
    /* Stays loaded: what a library's constructors allocate has no owner once it is unloaded. */
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL) != NULL;
}

/* The version that a library tells, 0: none. Asked in a child: cuDNN ends the process that it cannot load the rest of
 * itself into. */
static size_t ask_version(size_t (*version_get)(void))
{
    size_t version = 0;
    int ends[2];
    if (pipe(ends) != 0)
        return 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit no_core = { 0, 0 };
        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(nowhere, STDERR_FILENO);
        version = version_get();
        _exit(write(ends[1], &version, sizeof version) == (ssize_t)sizeof version ? 0 : 1);
    }
    close(ends[1]);
    if (pid < 0 || read(ends[0], &version, sizeof version) != (ssize_t)sizeof version)
        version = 0;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return version;
}

/* Only libdsc_cudnn.so opens it. */
static void cudnn(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL); /* stays loaded, as above */
    size_t (*version_get)(void) = NULL;
    char text[64] = "not installed, not needed";
    if (library != NULL) {
        void *const call = dlsym(library, "cudnnGetVersion");
        memcpy(&version_get, &call, sizeof version_get);
        snprintf(text, sizeof text, "found, optional");
    }
    const size_t v = version_get != NULL ? ask_version(version_get) : 0; /* 90300 is 9.3.0 */
    if (v > 0)
        snprintf(text, sizeof text, "%zu.%zu.%zu found, optional", v / 10000, v / 100 % 100, v % 100);
    line("cuDNN", text, "attention and convolutions are dsc's own without it");
}

static void libraries(void)
{
    static const struct { const char *name, *file, *without; } optional[] = {
        { "CUDA", "libcuda.so.1", "no GPU driver: ranks compute on the CPU" },
        { "cuBLASLt", "libcublasLt.so.13", "matrix products on GPUs (or libcublasLt.so.12); install libcublas" },
        { "NCCL", "libnccl.so.2", "collectives between GPUs; install libnccl2" },
        { "Open MPI", "libmpi.so.40", "clusters that start ranks by MPI; install libopenmpi3" },
        { "Gloo", "libgloo.so.0", "CPU nodes over TCP; install libgloo0" },
        { "liburing", "liburing.so.2", "the fastest file engine; install liburing2" },
        { "libaio", "libaio.so.1", "a file engine for older kernels; install libaio1" },
        { "libcurl", "libcurl.so.4", "monitors over HTTP; install libcurl4" },
        { "libmicrohttpd", "libmicrohttpd.so.12", "the metrics endpoint; install libmicrohttpd12" },
    };
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        const bool there = library_there(optional[i].file);
        line(optional[i].name, there ? "installed" : "missing", there ? "" : optional[i].without);
    }
    cudnn();
}

/* Transports and devices of this installation: built in, and plugins in lib/dsc. */
static void backends(void)
{
    static const struct { const char *name, *file, *remedy; } plugins[] = {
        { "device cuda", "libdsc_cuda.so", "not in this installation; build it where nvcc is" },
        { "transport gloo", "libdsc_gloo.so", "not in this installation; make deps-net, then make" },
        { "transport mpi", "libdsc_mpi.so", "not in this installation; make deps-net, then make" },
    };
    line("devices", "cpu", "");
    line("transports", "self local shm tcp", "nccl comes with the device cuda");
    line("file engines", "io_uring libaio threads", "");
    for (size_t i = 0; i < sizeof plugins / sizeof plugins[0]; i++) {
        char reason[320];
        const bool loads = dsc_plugin_open(plugins[i].file, reason, sizeof reason) != NULL;
        line(plugins[i].name, loads ? "loads" : reason[0] != 0 ? "does not load" : "missing",
             loads ? "" : reason[0] != 0 ? reason : plugins[i].remedy);
    }
}

static int examine(const char *sysfs)
{
    dsc_doctor_findings *findings = calloc(1, sizeof *findings);
    if (findings == NULL)
        return dsc_tool_usage("dsc doctor", "out of memory");
    printf("dsc %s\n\nmachine\n", DSC_VERSION_TEXT);
    cpu();
    memory(findings);
    gpus(findings);
    files(findings);
    printf("\nwhat is near what\n");
    dsc_doctor_topology(sysfs, findings);
    printf("\nbuilt in this version: ranks on CPUs and GPUs, ZeRO stages 0 to 3\n");
    backends();
    printf("\noptional libraries\n");
    libraries();
    printf("\nfindings\n");
    for (int i = 0; i < findings->count; i++)
        printf("  %s\n", findings->text[i]);
    if (findings->count == 0)
        printf("  none\n");
    free(findings);
    return dsc_tool_end();
}

typedef struct doctor_args {
    const char *sysfs, *hosts;
    bool answer;
} doctor_args;

#define AT(field) offsetof(doctor_args, field)
static const dsc_flag rows[] = {
    { "--hostfile", NULL, "FILE", DSC_FLAG_TEXT, AT(hosts),
      .help = "ask all hosts of the file, by dsc-launch; must be the first flag, and its other flags may follow" },
    { "-H", NULL, "HOSTS", DSC_FLAG_TEXT, AT(hosts), .help = "ask the hosts name:slots,...; as --hostfile" },
    { "--sysfs", NULL, "DIR", DSC_FLAG_TEXT, AT(sysfs),
      .help = "read the topology from a copy of another machine's /sys" },
    { "--answer", NULL, NULL, DSC_FLAG_BOOL, AT(answer),
      .help = "print the answer of this host to a doctor on another host" },
};
static const dsc_flag_command page = {
    .name = "dsc doctor",
    .description = "Prints what this machine or every host of a job can do, and which optional parts are missing.",
    .flags = rows, .flag_count = DSC_COUNT(rows),
    .exit_codes = "0 done; 1 failed; 2 wrong command line or hostfile; with hosts: that of dsc-launch",
};

int dsc_cmd_doctor(int argc, char **argv)
{
    doctor_args args = { .sysfs = "/sys" };
    if (argc > 1 && (strncmp(argv[1], "--hostfile", 10) == 0 || strncmp(argv[1], "-H", 2) == 0))
        return dsc_doctor_ask(argv + 1, argc - 1);
    const int code = dsc_tool_parse(&page, argc, argv, &args);
    if (code >= 0)
        return code;
    if (args.hosts != NULL)
        return dsc_tool_usage("--hostfile", "must be the first flag");
    return args.answer ? dsc_doctor_answer() : examine(args.sysfs);
}
