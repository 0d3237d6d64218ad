/* test_nccl.cc - the simulator's NCCL. SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/simtest.h"

namespace {

/* ---- collectives ---- */

void values(int rank, int n, ncclComm_t comm, cudaStream_t s)
{
    enum { N = 24 };
    float *x = new_device<float>((size_t)(N * n)), *y = new_device<float>((size_t)(N * n));
    std::vector<float> host((size_t)(N * n));
    for (size_t i = 0; i < host.size(); i++)
        host[i] = (float)(rank * 1000) + (float)i;
    const float sum_of_ranks = (float)(n * (n - 1) / 2 * 1000);
    give(x, host, s);
    NOK(ncclAllGather(x, y, N, ncclFloat32, comm, s));
    std::vector<float> got = fetch(y, host.size(), s);
    for (int i = 0; i < N * n; i++)
        CHECK(got[(size_t)i] == (float)(i / N * 1000 + i % N));
    NOK(ncclReduceScatter(x, y, N, ncclFloat32, ncclSum, comm, s));
    got = fetch(y, N, s);
    for (int i = 0; i < N; i++)
        CHECK(got[(size_t)i] == sum_of_ranks + (float)(n * (rank * N + i)));
    NOK(ncclAllReduce(x, y, N, ncclFloat32, ncclSum, comm, s));
    got = fetch(y, N, s);
    for (int i = 0; i < N; i++)
        CHECK(got[(size_t)i] == sum_of_ranks + (float)(n * i));
    NOK(ncclGroupStart()); /* all-to-all, also to oneself */
    for (int r = 0; r < n; r++) {
        NOK(ncclSend(x + r * N, N, ncclFloat32, r, comm, s));
        NOK(ncclRecv(y + r * N, N, ncclFloat32, r, comm, s));
    }
    NOK(ncclGroupEnd());
    got = fetch(y, host.size(), s);
    for (int i = 0; i < N * n; i++)
        CHECK(got[(size_t)i] == (float)(i / N * 1000 + rank * N + i % N));
    NOK(ncclBroadcast(x, y, N, ncclFloat32, n - 1, comm, s));
    CHECK(fetch(y, 1, s)[0] == (float)((n - 1) * 1000));
    ncclComm_t half;
    NOK(ncclCommSplit(comm, rank % 2, -rank, &half, nullptr)); /* ranks in descending order */
    int at, size;
    NOK(ncclCommUserRank(half, &at));
    NOK(ncclCommCount(half, &size));
    CHECK(size == (n + 1 - rank % 2) / 2 && at == size - 1 - rank / 2);
    NOK(ncclAllReduce(x, y, 1, ncclFloat32, ncclSum, half, s));
    OK(cudaStreamSynchronize(s));
}

void collectives()
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        cusim_set_schedule(seed, static_cast<cusim_policy>(seed % 5));
        for (int n = 1; n <= 8; n = n * 2 + (n == 2))
            run_ranks(n, values);
    }
}

void one_thread_for_all()
{
    enum { RANKS = 4 };
    ncclUniqueId id;
    ncclComm_t comms[RANKS];
    cudaStream_t streams[RANKS];
    float *x[RANKS];
    NOK(ncclGetUniqueId(&id));
    NOK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        OK(cudaSetDevice(r));
        NOK(ncclCommInitRank(&comms[r], RANKS, id, r));
        streams[r] = new_stream();
        x[r] = new_device<float>(4);
        CUSIM_LAUNCH(fill, dim3(1), dim3(4), 0, streams[r], x[r], (float)r, 4);
    }
    NOK(ncclGroupEnd());
    NOK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        NOK(ncclAllReduce(x[r], x[r], 4, ncclFloat32, ncclSum, comms[r], streams[r]));
    NOK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        OK(cudaSetDevice(r));
        CHECK(fetch(x[r], 4, streams[r])[3] == 6.0f);
    }
}

void wrong_order(int rank, int, ncclComm_t comm, cudaStream_t s)
{
    float *x = new_device<float>(64), *y = new_device<float>(64);
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
    for (int i = 0; i < 2; i++)
        if ((rank + i) % 2 == 0)
            NOK(ncclAllGather(x, y, 16, ncclFloat32, comm, s));
        else
            NOK(ncclReduceScatter(x, y, 16, ncclFloat32, ncclSum, comm, s));
}
void wrong_order_collective() { run_ranks(2, wrong_order); }

void missing_call(int rank, int, ncclComm_t comm, cudaStream_t s)
{
    float *x = new_device<float>(64);
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
    if (rank != 2)
        NOK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, comm, s));
}
void missing_collective() { run_ranks(3, missing_call); }

/* The input of a collective in flight is written by another stream: what the schedule alone shows of it. */
void written_in_flight()
{
    cusim_check_races(false);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        cusim_set_schedule(seed, CUSIM_RANDOM);
        run_ranks(2, [](int, int, ncclComm_t comm, cudaStream_t s) {
            cudaStream_t other = new_stream();
            float *x = new_device<float>(64), *y = new_device<float>(128);
            CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
            NOK(ncclAllGather(x, y, 64, ncclFloat32, comm, s));
            CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, other, x, 2.0f, 64);
            OK(cudaStreamSynchronize(other));
            OK(cudaStreamDestroy(other));
        });
    }
}

void aborted()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        if (rank == 0)
            NOK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, comm, s));
        for (int i = 0; i < 50; i++)
            cudaStreamQuery(s);
        NOK(ncclCommAbort(comm));
    });
}

const test tests[] = {
    { "collectives of 1 to 8 ranks", collectives },
    { "one thread drives all ranks", one_thread_for_all },
    { "planted: collectives in another order", wrong_order_collective, "ranks disagree on a communicator: rank" },
    { "a missing collective is a named deadlock", missing_collective,
      "ncclAllReduce of 16 elements of type 7 for rank 2" },
    { "a buffer written in flight is caught", written_in_flight, "changed while the operation was in flight" },
    { "abort releases the streams", aborted },
};

} // namespace

int main() { return run_tests(tests); }
