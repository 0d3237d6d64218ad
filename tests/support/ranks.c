/* ranks.c - see ranks.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/net.h"
#include "tests/support/sanitizer.h"

#define DONE_VARIABLE "DSC_TEST_MPI_DONE"

const char *ranks_kind_text(ranks_kind kind)
{
    static const char *const texts[RANKS_KIND_COUNT] = { "self", "local", "shm threads", "shm processes",
                                                         "shm processes, strict", "tcp threads", "tcp", "hier threads",
                                                         "hier", "gloo threads", "gloo", "mpi" };
    return texts[kind];
}

void ranks_token(char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "test-%d-%lld", (int)getpid(), (long long)dsc_clock_ns());
}

/* Below the ports that the system gives away by itself; another job on the same one has another token. */
static int32_t port_of(const char *token)
{
    uint32_t hash = 2166136261u;
    for (const char *c = token; *c != 0; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return 10000 + (int32_t)(hash % 20000);
}

int32_t ranks_choose_port(void)
{
    const dsc_net_address any = { .ip = { 127, 0, 0, 1 }, .family = 4 };
    char token[64];
    for (;;) {
        dsc_net_address at = any, bound;
        ranks_token(token, sizeof token);
        at.port = (uint16_t)port_of(token);
        const int fd = dsc_net_listen(&at, &bound);
        if (fd < 0)
            continue;
        close(fd);
        return at.port;
    }
}

/* Two ranks are on two hosts, else nothing goes between hosts. */
static int32_t host_of(const ranks_run *run, int32_t rank)
{
    return run->hosts != NULL ? run->hosts[rank] : run->size == 2 ? rank : rank / (run->size < 8 ? 2 : 3);
}

static void place_on_hosts(const ranks_run *run, dsc_rank_info *info)
{
    info->node = host_of(run, info->rank);
    info->local_rank = info->local_size = 0;
    for (int32_t r = 0; r < run->size; r++) {
        info->local_rank += r < info->rank && host_of(run, r) == info->node;
        info->local_size += host_of(run, r) == info->node;
        info->node_count = (int32_t)dsc_max_i64(info->node_count, host_of(run, r) + 1);
    }
}

void ranks_options(const ranks_run *run, int32_t rank, dsc_alloc *alloc, dsc_local_world *world, const char *token,
                   dsc_comm_options *out)
{
    static const char *const names[RANKS_KIND_COUNT] = { "self", "local", "shm", "shm", "shm",
                                                         "tcp",  "tcp",   "hier", "hier", "gloo",
                                                         "gloo", "mpi" };
    *out = (dsc_comm_options) { .alloc = alloc,
                                .rank_info = { .rank = rank,
                                               .size = run->size,
                                               .local_rank = rank,
                                               .local_size = run->size,
                                               .node_count = 1,
                                               .master_addr = "127.0.0.1",
                                               .master_port = run->port > 0 ? run->port : port_of(token),
                                               .job_token = token,
                                               .local_world = run->kind == RANKS_LOCAL ? world : NULL },
                                .transport = names[run->kind],
                                .channel_count = run->channel_count > 0 ? run->channel_count : 1,
                                .staging_bytes = run->staging_bytes > 0 ? run->staging_bytes : 1 << 20,
                                .timeout_ns = run->timeout_ns > 0 ? run->timeout_ns : INT64_C(20000000000),
                                .open_timeout_ns = INT64_C(20000000000),
                                .fault_at = rank == run->fault_rank ? run->fault_at : 0 };
    if (run->kind == RANKS_HIER || run->kind == RANKS_HIER_THREADS)
        place_on_hosts(run, &out->rank_info);
}

bool ranks_have(ranks_kind kind, dsc_error *why)
{
    char folder[4096];
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    const char *lib = getenv("DSC_LIB");
    const ranks_run run = { .kind = kind, .size = 1 };
    snprintf(folder, sizeof folder, "%.4000s/dsc", lib != NULL ? lib : "lib");
    setenv("DSC_PLUGIN_DIR", folder, 0);
    if (kind == RANKS_MPI) { /* a process that has entered MPI cannot start mpirun */
        char path[4200];
        snprintf(path, sizeof path, "%.4090s/libdsc_mpi.so", getenv("DSC_PLUGIN_DIR"));
        if (access(path, R_OK) == 0)
            return true;
        DSC_FAIL(why, DSC_ERR_UNSUPPORTED, "dsc.comm", "no %s here", path);
        return false;
    }
    if (dsc_alloc_open(&alloc, why) != DSC_OK)
        return false;
    ranks_options(&run, 0, alloc, NULL, "have", &options);
    const dsc_status status = dsc_comm_open(&options, &comm, why);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    return status == DSC_OK;
}

int ranks_mpirun(int32_t size, const char *mode)
{
    char self[2048], command[4096];
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (bytes <= 0 || system("command -v mpirun >/dev/null") != 0)
        return 77;
    self[bytes] = 0;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    char path[] = "/tmp/dsc-mpi-done-XXXXXX"; /* a letter for each rank that has ended: d is done, f has failed */
    const int file = mkstemp(path);
    setenv(DONE_VARIABLE, path, 1);
    snprintf(command, sizeof command, "timeout -k 2 %d mpirun -quiet --oversubscribe --bind-to none -np %d '%s' mpi %s",
             (int)(20 * test_patience()), size, self, mode);
    (void)!system(command);
    char ends[64] = "";
    const ssize_t count = file >= 0 && size < (int32_t)sizeof ends ? read(file, ends, sizeof ends - 1) : -1;
    close(file);
    unlink(path);
    return count == size && strspn(ends, "d") == (size_t)size ? 0 : 1;
}

void ranks_mpi_wait_done(int32_t count)
{
    const char *path = getenv(DONE_VARIABLE);
    const int64_t until_ns = dsc_clock_ns() + (int64_t)(10e9 * test_patience());
    struct stat now;
    while (path != NULL && stat(path, &now) == 0 && now.st_size < count && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(INT64_C(1000000));
}

void ranks_mpi_done(int failed)
{
    const char *path = getenv(DONE_VARIABLE), *size = getenv("OMPI_COMM_WORLD_SIZE");
    const int file = path != NULL ? open(path, O_WRONLY | O_APPEND) : -1;
    fflush(stdout);
    if (file < 0 || write(file, failed == 0 ? "d" : "f", 1) != 1)
        return;
    close(file);
    ranks_mpi_wait_done(size != NULL ? atoi(size) : 0);
}

bool ranks_forbid_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { .len = DSC_COUNT(code), .filter = code };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

typedef struct one_rank {
    const ranks_run *run;
    int32_t rank;
    dsc_local_world *world;
    const char *token;
    int failed;
} one_rank;

static int run_rank(const one_rank *one)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    if (one->run->kind == RANKS_SHM_STRICT && !ranks_forbid_calls())
        return 1;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 1;
    ranks_options(one->run, one->rank, alloc, one->world, one->token, &options);
    const dsc_status status = one->run->ops != NULL ? dsc_comm_open_with(one->run->ops, &options, &comm, &err)
                                                    : dsc_comm_open(&options, &comm, &err);
    if (status != DSC_OK) {
        fprintf(stderr, "# rank %d: open: %s\n", one->rank, err.message);
        dsc_alloc_close(&alloc);
        return 1;
    }
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    int failed = 0;
    if (one->run->ops == NULL && stats.tier_current_bytes[DSC_TIER_HOST] > 0 && !one->run->takes_less &&
        stats.count[DSC_TAG_COMM][DSC_TIER_HOST].current_bytes != dsc_comm_plan_bytes(&options)) {
        fprintf(stderr, "# rank %d: %lld COMM bytes, planned %lld\n", one->rank,
                (long long)stats.count[DSC_TAG_COMM][DSC_TIER_HOST].current_bytes,
                (long long)dsc_comm_plan_bytes(&options));
        failed = 1;
    }
    failed += one->run->body(comm, one->run->user);
    dsc_comm_close(&comm);
    dsc_alloc_stats_get(alloc, &stats);
    if (stats.live_count != 0 || stats.tier_current_bytes[DSC_TIER_HOST] != 0) {
        fprintf(stderr, "# rank %d: %lld allocations left, %lld bytes\n", one->rank, (long long)stats.live_count,
                (long long)stats.tier_current_bytes[DSC_TIER_HOST]);
        return failed + 1;
    }
    dsc_alloc_close(&alloc);
    return failed;
}

static void *thread_main(void *arg)
{
    one_rank *one = arg;
    one->failed = run_rank(one);
    return NULL;
}

static int go_processes(const ranks_run *run, one_rank *ranks)
{
    int failed = 0;
    fflush(stdout);
    fflush(stderr);
    pid_t pids[64];
    for (int32_t r = 0; r < run->size; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            _exit(run_rank(&ranks[r]) != 0);
    }
    for (int32_t r = 0; r < run->size; r++) {
        int status = -1;
        if (pids[r] < 0 || waitpid(pids[r], &status, 0) != pids[r] || status != 0) {
            fprintf(stderr, "# rank %d ended with status %#x\n", r, (unsigned)status);
            failed++;
        }
    }
    return failed;
}

/* The number of ranks is mpirun's. */
static int go_mpi(const ranks_run *run)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    ranks_run mine = *run;
    if (rank == NULL || size == NULL)
        return 1;
    mine.size = atoi(size);
    const one_rank one = { .run = &mine, .rank = atoi(rank), .token = "mpi" };
    return run_rank(&one);
}

int ranks_go(const ranks_run *run)
{
    one_rank ranks[64];
    pthread_t threads[64];
    char token[64];
    int failed = 0;
    dsc_error err = DSC_ERROR_INIT;
    dsc_local_world *world = NULL;
    if (run->kind == RANKS_MPI)
        return go_mpi(run);
    ranks_token(token, sizeof token);
    if (run->kind == RANKS_LOCAL && dsc_local_world_open(run->size, &world, &err) != DSC_OK)
        return 1;
    for (int32_t r = 0; r < run->size; r++)
        ranks[r] = (one_rank){ .run = run, .rank = r, .world = world, .token = token };
    if (run->kind == RANKS_SHM_PROCESSES || run->kind == RANKS_SHM_STRICT || run->kind == RANKS_TCP ||
        run->kind == RANKS_HIER || run->kind == RANKS_GLOO)
        return go_processes(run, ranks);
    for (int32_t r = 0; r < run->size; r++)
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r]) != 0)
            abort();
    for (int32_t r = 0; r < run->size; r++) {
        pthread_join(threads[r], NULL);
        failed += ranks[r].failed != 0;
    }
    dsc_local_world_close(&world);
    return failed;
}
