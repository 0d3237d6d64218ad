/* bench_comm.c - one rank that times a collective whenever bench_comm.py asks:
 * bench_comm DIR NAME shared|plain TRANSPORT
 *
 * Commands come line by line from the FIFO DIR/NAME.RANK ("all_gather 1048576 5"); while another program has its turn
 * this one sleeps in read. Rank 0 answers with the seconds of the slowest rank, one number a call.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/front/bench.h"

#define MOST_BYTES (INT64_C(64) << 20)

static const char *from_environment(void *user, const char *name) { return getenv(name); }

static dsc_status answer(dsc_comm_bench *bench, const char *name, int64_t bytes, int repeats, dsc_error *err)
{
    dsc_comm_op op = DSC_COMM_ALL_GATHER;
    while (op < DSC_COMM_OP_COUNT && strcmp(dsc_comm_op_text(op), name) != 0)
        op++;
    for (int i = -1; i < repeats; i++) { /* one to warm up */
        double seconds = 0;
        DSC_TRY(dsc_comm_bench_once(bench, op, bytes, DSC_F32, &seconds, err));
        if (i >= 0 && dsc_comm_rank(bench->comm) == 0)
            printf("%.9f ", seconds);
    }
    if (dsc_comm_rank(bench->comm) == 0)
        printf("\n");
    fflush(stdout);
    return DSC_OK;
}

static dsc_status serve(FILE *commands, dsc_comm_bench *bench, dsc_error *err)
{
    char line[128], name[32];
    long long bytes = 0;
    int repeats = 0;
    while (fgets(line, sizeof line, commands) != NULL && sscanf(line, "%31s %lld %d", name, &bytes, &repeats) == 3) {
        if (bytes < 1 || bytes > MOST_BYTES || repeats < 1)
            return DSC_FAIL(err, DSC_ERR_INPUT, "bench_comm", "cannot do \"%s\"", line);
        DSC_TRY(answer(bench, name, bytes, repeats, err));
    }
    return DSC_OK;
}

static dsc_status run(FILE *commands, bool shared, const char *transport, const dsc_rank_info *info, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_bench bench = { 0 };
    DSC_TRY(dsc_alloc_open(&alloc, err));
    const dsc_comm_options options = { .alloc = alloc,
                                       .rank_info = *info,
                                       .transport = transport,
                                       .channel_count = 1,
                                       .staging_bytes = 4 << 20,
                                       .one_thread = true };
    dsc_status status = dsc_comm_open(&options, &comm, err);
    if (status == DSC_OK)
        status = dsc_comm_bench_open(&bench, comm, alloc, MOST_BYTES, shared, err);
    if (status == DSC_OK)
        status = serve(commands, &bench, err);
    dsc_comm_bench_close(&bench);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    return status;
}

int main(int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_rank_info info;
    char path[512];
    if (argc != 5) {
        fprintf(stderr, "usage: bench_comm DIR NAME shared|plain TRANSPORT (bench_comm.py starts it)\n");
        return 2;
    }
    dsc_status status = dsc_rank_info_from_env(from_environment, NULL, &info, &err);
    if (status == DSC_OK) {
        snprintf(path, sizeof path, "%s/%s.%d", argv[1], argv[2], info.rank);
        FILE *commands = fopen(path, "r");
        status = commands == NULL ? DSC_FAIL(&err, DSC_ERR_INPUT, path, "cannot open")
                                  : run(commands, strcmp(argv[3], "shared") == 0, argv[4], &info, &err);
        if (commands != NULL)
            fclose(commands);
    }
    if (status != DSC_OK)
        fprintf(stderr, "bench_comm: rank %d: %s: %s\n", info.rank, err.where, err.message);
    return dsc_status_exit_code(status);
}
