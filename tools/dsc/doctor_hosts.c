/* doctor_hosts.c - see doctor_hosts.h. dsc-launch starts `dsc doctor --answer` once on each host, so that what a job
 * needs first (ssh, the same version in the same place) is tried on the way. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/doctor_hosts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/hash.h"
#include "base/io.h"

enum { HOSTS_MAX = 4096, NAME_BYTES = 320 };

static const char mark[] = "dsc-doctor-1";

typedef struct answer {
    char name[NAME_BYTES];
    char version[32], binary[16];
    int cores, gpus;
    long long memory_mib, free_mib, locked_kib; /* locked -1: no limit */
    long long clock_ns;
    double ahead_s; /* its clock against ours */
} answer;

/* ---- on each host ---- */

/* The first six bytes of the program's SHA-256: equal files, equal numbers. */
static void fingerprint(char out[16])
{
    uint8_t digest[32];
    char *bytes = NULL;
    int64_t count = 0;
    dsc_alloc *alloc = NULL;
    dsc_sha256 sha;
    snprintf(out, 16, "unknown");
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return;
    if (dsc_io_read_all(NULL, alloc, "/proc/self/exe", INT64_C(1) << 30, &bytes, &count, NULL) == DSC_OK) {
        dsc_sha256_init(&sha);
        dsc_sha256_update(&sha, bytes, (size_t)count);
        dsc_sha256_final(&sha, digest);
        for (size_t i = 0; i < 6; i++)
            snprintf(out + 2 * i, 3, "%02x", digest[i]);
        dsc_alloc_free(alloc, bytes);
    }
    dsc_alloc_close(&alloc);
}

static long long meminfo_mib(const char *name)
{
    char text[256];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(text, sizeof text, file) != NULL)
        if (strncmp(text, name, strlen(name)) == 0 && sscanf(text + strlen(name), ": %lld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib / 1024;
}

/* Device files, whatever CUDA_VISIBLE_DEVICES says. */
static int gpu_files(void)
{
    int count = 0;
    DIR *dev = opendir("/dev");
    for (const struct dirent *entry; dev != NULL && (entry = readdir(dev)) != NULL;) {
        const char *number = entry->d_name + 6;
        count += strncmp(entry->d_name, "nvidia", 6) == 0 && *number != 0 && number[strspn(number, "0123456789")] == 0;
    }
    if (dev != NULL)
        closedir(dev);
    return count;
}

int dsc_doctor_answer(void)
{
    char binary[16], name[65] = "";
    struct rlimit limit;
    const bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    fingerprint(binary);
    (void)!gethostname(name, sizeof name - 1);
    printf("%s %s %s %s %d %lld %lld %d %lld %lld\n", mark, name[0] != 0 ? name : "?", DSC_VERSION_TEXT, binary,
           (int)dsc_cores_usable(), meminfo_mib("MemTotal"), meminfo_mib("MemAvailable"), gpu_files(),
           limited ? (long long)(limit.rlim_cur / 1024) : -1,
           (long long)dsc_clock_wall_ns());
    return dsc_tool_end();
}

/* ---- on this one ---- */

/* "[rank 3 host] dsc-doctor-1 ..."; rank 0 has no prefix, and so the name that it has for itself. */
static bool read_answer(const char *line, bool *is_first, answer *out)
{
    const char *at = strstr(line, mark);
    char name[NAME_BYTES] = "", own[65];
    int rank = 0;
    if (at == NULL)
        return false;
    if (at != line && sscanf(line, "[rank %d %319[^]]]", &rank, name) != 2)
        return false;
    if (sscanf(at + sizeof mark - 1, " %64s %31s %15s %d %lld %lld %d %lld %lld", own, out->version, out->binary,
               &out->cores, &out->memory_mib, &out->free_mib, &out->gpus, &out->locked_kib, &out->clock_ns) != 9)
        return false;
    *is_first = at == line;
    snprintf(out->name, sizeof out->name, "%s", *is_first ? own : name);
    out->ahead_s = (double)(out->clock_ns - dsc_clock_wall_ns()) / 1e9;
    dsc_text_printable(out->name);
    dsc_text_printable(out->version);
    dsc_text_printable(out->binary);
    return true;
}

static void print_table(const answer *all, int count)
{
    printf("%-24s %-10s %-13s %6s %5s %18s %14s %9s\n", "host", "dsc", "binary", "cores", "GPUs", "memory (free) GiB",
           "locked memory", "clock");
    for (int i = 0; i < count; i++) {
        const answer *a = &all[i];
        char memory[32], locked[32], clock[32];
        snprintf(memory, sizeof memory, "%.1f (%.1f)", (double)a->memory_mib / 1024, (double)a->free_mib / 1024);
        if (a->locked_kib < 0)
            snprintf(locked, sizeof locked, "unlimited");
        else
            snprintf(locked, sizeof locked, "%lld KiB", a->locked_kib);
        snprintf(clock, sizeof clock, "%+.1f s", a->ahead_s);
        printf("%-24s %-10s %-13s %6d %5d %18s %14s %9s\n", a->name, a->version, a->binary, a->cores, a->gpus, memory,
               locked, clock);
    }
}

/* Each with its remedy. Returns how many there are. */
static int print_findings(const answer *all, int count)
{
    int found = 0;
    printf("\n");
    for (int i = 0; i < count; i++) {
        const answer *a = &all[i];
        if (strcmp(a->binary, all[0].binary) != 0 && ++found)
            printf("%s: another build of dsc than on %s (bits may differ); copy the same files to both\n", a->name,
                   all[0].name);
        if ((a->ahead_s > 1 || a->ahead_s < -1) && ++found)
            printf("%s: its clock is %.1f s %s; let chrony or systemd-timesyncd set it\n", a->name,
                   a->ahead_s < 0 ? -a->ahead_s : a->ahead_s, a->ahead_s < 0 ? "late" : "early");
        if (a->gpus != all[0].gpus && ++found)
            printf("%s: %d GPUs, on %s %d; set slots in the hostfile to what each has\n", a->name, a->gpus, all[0].name,
                   all[0].gpus);
        if (a->gpus == 0 && a->cores < all[0].cores && ++found)
            printf("%s: %d cores, on %s %d: the slowest host sets the pace; give it fewer slots\n", a->name, a->cores,
                   all[0].name, all[0].cores);
        if (a->locked_kib >= 0 && a->locked_kib < 1024 * 1024 && ++found)
            printf("%s: only %lld KiB may be locked, which offload to files wants; ulimit -l unlimited, or memlock in "
                   "/etc/security/limits.conf\n", a->name, a->locked_kib);
    }
    if (found == 0)
        printf("all %d hosts answer, and nothing stands out\n", count);
    return found;
}

static pid_t start(char *launch, char *self, char *const *flag, int count, int *out_fd)
{
    char **argv = calloc((size_t)count + 16, sizeof *argv);
    int fd[2], used = 0;
    static char one[] = "--num_gpus=1", quiet[] = "--quiet", doctor[] = "doctor", answer_flag[] = "--answer";
    static char end_of_flags[] = "--", over[] = "--oversubscribe";
    if (argv == NULL || pipe(fd) != 0)
        return -1;
    argv[used++] = launch;
    for (int i = 0; i < count; i++)
        argv[used++] = flag[i];
    argv[used++] = one;
    argv[used++] = over;
    argv[used++] = quiet;
    argv[used++] = end_of_flags;
    argv[used++] = self;
    argv[used++] = doctor;
    argv[used++] = answer_flag;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        execv(launch, argv);
        _exit(127);
    }
    free(argv);
    close(fd[1]);
    *out_fd = fd[0];
    return pid;
}

/* The hosts' answers in the order in which they come, but the first host's, with which the others are compared. */
static int read_answers(int fd, answer *all)
{
    char *line = NULL;
    size_t capacity = 0;
    int count = 0;
    FILE *file = fdopen(fd, "r");
    bool is_first = false;
    while (file != NULL && getline(&line, &capacity, file) >= 0)
        if (count < HOSTS_MAX && read_answer(line, &is_first, &all[count])) {
            if (is_first) {
                const answer first = all[count];
                all[count] = all[0];
                all[0] = first;
            }
            count++;
        }
    free(line);
    if (file != NULL)
        fclose(file);
    return count;
}

int dsc_doctor_ask(char *const *flag, int count)
{
    int fd = -1, status = 0;
    char launch[4096], self[4096];
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_tool_beside("dsc-launch", launch, sizeof launch, &err) != DSC_OK ||
        dsc_tool_beside("dsc", self, sizeof self, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    answer *all = calloc(HOSTS_MAX, sizeof *all);
    const pid_t pid = all != NULL ? start(launch, self, flag, count, &fd) : -1;
    if (pid < 0) {
        free(all);
        return dsc_tool_usage("dsc doctor", "dsc-launch cannot be started: %s", strerror(errno));
    }
    const int answers = read_answers(fd, all);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (answers > 0) {
        print_table(all, answers);
        if (code == 0)
            (void)print_findings(all, answers);
    }
    free(all);
    return code != 0 ? code : dsc_tool_end();
}
