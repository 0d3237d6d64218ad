/* comm.c - `dsc comm bench`: how fast ranks exchange data. Under dsc-launch it is one rank of the job that
 * was started; alone it starts its own ranks. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/net.h"
#include "comm/front/bench.h"
#include "tools/dsc/tool.h"

#define SIZES_MAX 16
#define ROUNDS_MAX 1000
#define RANKS_MOST 64

typedef struct settings {
    int64_t ranks, rounds, staging_kib;
    int64_t bytes[SIZES_MAX];
    int32_t size_count;
    const char *transport;
    bool json, plain;
    dsc_dtype wire_dtype;
} settings;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_line(const settings *s, const dsc_comm *comm, dsc_comm_op op, int64_t bytes, double *seconds)
{
    qsort(seconds, (size_t)s->rounds, sizeof *seconds, compare);
    const double median = seconds[s->rounds / 2], fastest = seconds[0], slowest = seconds[s->rounds - 1],
                 size = (double)bytes * 1e-9;
    if (s->json)
        printf("{\"transport\":\"%s\",\"ranks\":%d,\"op\":\"%s\",\"bytes\":%lld,\"us\":%.1f,\"gb_per_s\":%.3f,\"gb_per_"
               "s_min\":%.3f,\"gb_per_s_max\":%.3f}\n",
               dsc_comm_name(comm), dsc_comm_size(comm), dsc_comm_op_text(op), (long long)bytes, median * 1e6,
               size / median, size / slowest, size / fastest);
    else if (op == DSC_COMM_BARRIER)
        printf("  %-16s               %10.1f us   %.1f .. %.1f\n", "barrier", median * 1e6, slowest * 1e6,
               fastest * 1e6);
    else
        printf("  %-16s %8.2f MiB  %10.1f us  %7.2f GB/s   %.2f .. %.2f\n", dsc_comm_op_text(op),
               (double)bytes / (1 << 20), median * 1e6, size / median, size / slowest, size / fastest);
    fflush(stdout);
}

static dsc_status bench_all(const settings *s, dsc_comm_bench *bench, dsc_error *err)
{
    static const dsc_comm_op ops[] = { DSC_COMM_BARRIER, DSC_COMM_ALL_GATHER, DSC_COMM_REDUCE_SCATTER,
                                       DSC_COMM_ALL_REDUCE };
    double seconds[ROUNDS_MAX];
    for (size_t o = 0; o < DSC_COUNT(ops); o++)
        for (int32_t i = 0; i < (ops[o] == DSC_COMM_BARRIER ? 1 : s->size_count); i++) {
            for (int64_t round = -2; round < s->rounds; round++) { /* two to warm up */
                double once = 0;
                DSC_TRY(dsc_comm_bench_once(bench, ops[o], s->bytes[i], s->wire_dtype, &once, err));
                if (round >= 0)
                    seconds[round] = once;
            }
            if (dsc_comm_rank(bench->comm) == 0)
                print_line(s, bench->comm, ops[o], ops[o] == DSC_COMM_BARRIER ? 0 : s->bytes[i], seconds);
        }
    return DSC_OK;
}

static dsc_status run_rank(const settings *s, const dsc_rank_info *info, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_bench bench = { 0 };
    DSC_TRY(dsc_alloc_open(&alloc, err));
    const dsc_comm_options options = { .alloc = alloc,
                                       .rank_info = *info,
                                       .transport = s->transport,
                                       .channel_count = 1,
                                       .staging_bytes = s->staging_kib << 10,
                                       .one_thread = true };
    dsc_status status = dsc_comm_open(&options, &comm, err);
    if (status == DSC_OK)
        status = dsc_comm_bench_open(&bench, comm, alloc, s->bytes[s->size_count - 1], !s->plain, err);
    if (status == DSC_OK && info->rank == 0 && !s->json)
        printf("%s, %d ranks, %s memory, %s on the wire of sums; median of %lld, slowest .. fastest; GB/s of the whole "
               "vector\n",
               dsc_comm_name(comm), info->size, s->plain ? "plain" : "shared", dsc_dtype_text(s->wire_dtype),
               (long long)s->rounds);
    if (status == DSC_OK)
        status = bench_all(s, &bench, err);
    dsc_comm_bench_close(&bench);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    return status;
}

/* Only a process that can read this memory knows the token: ranks over TCP accept no other connection. */
static bool make_token(char *out, size_t out_bytes)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    snprintf(out, out_bytes, "bench-%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    return true;
}

/* A port that is free now, as far as one can know: ranks that meet over TCP need one. */
static int32_t choose_port(void)
{
    const dsc_net_address any = { .ip = { 127, 0, 0, 1 }, .family = 4 };
    dsc_net_address bound = { .port = 29500 };
    const int fd = dsc_net_listen(&any, &bound);
    if (fd >= 0)
        close(fd);
    return bound.port;
}

/* Own ranks: children that end with this process's verdict. Only the first failure is reported. */
static int run_own_ranks(const settings *s)
{
    char token[64];
    pid_t pids[RANKS_MOST];
    int worst = 0;
    if (!make_token(token, sizeof token))
        return dsc_tool_usage("comm bench", "the system gives no random numbers: %s", strerror(errno));
    const int32_t port = choose_port();
    fflush(stdout);
    for (int32_t r = 0; r < (int32_t)s->ranks; r++) {
        pids[r] = fork();
        if (pids[r] < 0)
            return dsc_tool_usage("comm bench", "cannot start rank %d: %s", r, strerror(errno));
        if (pids[r] > 0)
            continue;
        dsc_error err = DSC_ERROR_INIT;
        const dsc_rank_info info = { .rank = r,
                                     .size = (int32_t)s->ranks,
                                     .local_rank = r,
                                     .local_size = (int32_t)s->ranks,
                                     .node_count = 1,
                                     .master_addr = "127.0.0.1",
                                     .master_port = port,
                                     .job_token = token };
        const dsc_status status = run_rank(s, &info, &err);
        _exit(status == DSC_OK ? dsc_tool_end() : r == 0 ? dsc_tool_fail(&err) : dsc_status_exit_code(status));
    }
    for (int32_t r = 0; r < (int32_t)s->ranks; r++) {
        int ended = 0;
        if (waitpid(pids[r], &ended, 0) == pids[r] && worst == 0)
            worst = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
    }
    return worst;
}

/* The unit of the sizes is the flag's own. */
static dsc_status read_sizes(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    settings *s = out;
    const int64_t unit = strcmp(flag->name, "--mib") == 0 ? 1 << 20 : 1 << 10;
    s->size_count = 0;
    for (const char *at = text; s->size_count < SIZES_MAX;) {
        char *end = NULL;
        errno = 0;
        const long long units = strtoll(at, &end, 10);
        if (end == at || errno != 0 || units < 1 || units > (INT64_C(4) << 30) / unit || (*end != 0 && *end != ',') ||
            (s->size_count > 0 && units * unit <= s->bytes[s->size_count - 1]))
            return DSC_FAIL(err, DSC_ERR_INPUT, flag->name,
                            "\"%.60s\" is not a list of sizes; expected rising whole numbers from 1 to %lld, such as "
                            "1,4,64", text,
                            (long long)((INT64_C(4) << 30) / unit));
        s->bytes[s->size_count++] = units * unit;
        if (*end == 0)
            return DSC_OK;
        at = end + 1;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "more than %d sizes; give fewer", SIZES_MAX);
}

static dsc_status set_bf16(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)flag, (void)value, (void)err;
    ((settings *)out)->wire_dtype = DSC_BF16;
    return DSC_OK;
}

#define AT(field) offsetof(settings, field)
static const dsc_flag rows[] = {
    { "--comm", NULL, "NAME", DSC_FLAG_TEXT, AT(transport),
      .help = "transport: auto, shm, tcp, hier, gloo or mpi; default auto" },
    { "--ranks", NULL, "N", DSC_FLAG_INTEGER, AT(ranks), .min = 1, .max = RANKS_MOST,
      .help = "ranks to start on this host, when dsc-launch has not started them; default 2" },
    { "--mib", NULL, "LIST", DSC_FLAG_CALL, 0, .set = read_sizes,
      .help = "sizes of the vectors in MiB, rising, such as 1,4,16,64" },
    { "--kib", NULL, "LIST", DSC_FLAG_CALL, 0, .set = read_sizes,
      .help = "sizes of the vectors in KiB; default 64 KiB to 64 MiB" },
    { "--rounds", NULL, "N", DSC_FLAG_INTEGER, AT(rounds), .min = 1, .max = ROUNDS_MAX,
      .help = "measurements of each size, whose median is printed; default 15" },
    { "--staging-kib", NULL, "N", DSC_FLAG_INTEGER, AT(staging_kib), .min = 4, .max = 1 << 20,
      .help = "size of the staging buffer of a rank in KiB; default 4096" },
    { "--bf16", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_bf16,
      .help = "send bf16 instead of fp32 in sums" },
    { "--plain", NULL, NULL, DSC_FLAG_BOOL, AT(plain),
      .help = "use plain memory instead of memory that the ranks share" },
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print one JSON object a line" },
};
static const dsc_flag_command page = {
    .name = "dsc comm bench",
    .description = "Measures how fast ranks exchange data, for a barrier and three collectives. Under "
                   "dsc-launch it is one "
                   "rank of that job; alone it starts its own ranks on this host.",
    .flags = rows, .flag_count = DSC_COUNT(rows),
    .exit_codes = "0 done; 1 failed; 2 wrong command line; 4 a peer was lost; 5 a rank is stuck",
};

static const char *from_environment(void *user, const char *name) { return getenv(name); }

static int run_bench(int argc, char **argv)
{
    settings s = { .ranks = 2,
                   .rounds = 15,
                   .staging_kib = 4096,
                   .bytes = { 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20 },
                   .size_count = 6,
                   .transport = "auto",
                   .wire_dtype = DSC_F32 };
    const int code = dsc_tool_parse(&page, argc, argv, &s);
    if (code >= 0)
        return code;
    dsc_error err = DSC_ERROR_INIT;
    dsc_rank_info info;
    if (dsc_rank_info_from_env(from_environment, NULL, &info, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (info.size == 1)
        return run_own_ranks(&s);
    return run_rank(&s, &info, &err) == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}

int dsc_cmd_comm(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = { { &page, run_bench } };
    return dsc_tool_run_verb("dsc comm", "Measures the exchange of data between ranks.", verbs,
                             (int32_t)DSC_COUNT(verbs), argc, argv);
}
