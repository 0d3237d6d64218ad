/* test_nccl.cc - the simulator's NCCL. SPDX-License-Identifier: Apache-2.0 */
#include <semaphore.h>

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

/* The input of a collective in flight is written by another stream: what the schedule alone shows of it. Rank 1 comes
 * when rank 0's write has ended, so that whether rank 0's part was in flight is the seed's choice alone. */
sem_t is_written;
void written_in_flight()
{
    cusim_check_races(false);
    CHECK(sem_init(&is_written, 0, 0) == 0);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        cusim_set_schedule(seed, CUSIM_RANDOM);
        run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
            cudaStream_t other = new_stream();
            float *x = new_device<float>(64), *y = new_device<float>(128);
            if (rank == 1)
                CHECK(sem_wait(&is_written) == 0);
            CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
            NOK(ncclAllGather(x, y, 64, ncclFloat32, comm, s));
            if (rank == 0)
                CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, other, x, 2.0f, 64);
            OK(cudaStreamSynchronize(other));
            OK(cudaStreamDestroy(other));
            if (rank == 0)
                CHECK(sem_post(&is_written) == 0);
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

/* ---- calls that do not belong together ---- */

/* Rank 1's call differs from rank 0's in one thing. */
enum difference { NOTHING, SIZE, TYPE, OPERATION, ROOT, KIND };
template <difference D> void differ(int rank, int, ncclComm_t comm, cudaStream_t s)
{
    float *x = new_device<float>(64), *y = new_device<float>(64);
    const bool other = rank == 1;
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
    if (D == ROOT)
        NOK(ncclBroadcast(x, y, 16, ncclFloat32, other ? 1 : 0, comm, s));
    else if (D == KIND && other)
        NOK(ncclReduceScatter(x, y, 16, ncclFloat32, ncclSum, comm, s));
    else if (D == KIND)
        NOK(ncclAllReduce(x, y, 16, ncclFloat32, ncclSum, comm, s));
    else
        NOK(ncclAllReduce(x, y, D == SIZE && other ? 17 : 16, D == TYPE && other ? ncclInt64 : ncclFloat32,
                          D == OPERATION && other ? ncclAvg : ncclSum, comm, s));
}
template <difference D> void different() { run_ranks(2, differ<D>); }

/* Two communicators on one stream, in another order on each rank: nobody can go on. */
void crossed_communicators()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        ncclComm_t second;
        float *x = new_device<float>(64);
        NOK(ncclCommSplit(comm, 0, rank, &second, nullptr));
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        NOK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, rank == 0 ? comm : second, s));
        NOK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, rank == 0 ? second : comm, s));
        OK(cudaStreamSynchronize(s));
        NOK(ncclCommDestroy(second));
    });
}

/* On streams of their own the same calls are fine: what each communicator sees agrees. */
void communicators_on_two_streams()
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        cusim_set_schedule(seed, CUSIM_RANDOM);
        run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
            cudaStream_t other = new_stream();
            ncclComm_t second;
            float *x = new_device<float>(64), *y = new_device<float>(64);
            NOK(ncclCommSplit(comm, 0, rank, &second, nullptr));
            CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
            CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, other, y, 2.0f, 64);
            for (int i = 0; i < 2; i++)
                if ((i + rank) % 2 == 0)
                    NOK(ncclAllReduce(x, x, 64, ncclFloat32, ncclSum, comm, s));
                else
                    NOK(ncclAllReduce(y, y, 64, ncclFloat32, ncclSum, second, other));
            CHECK(fetch(x, 1, s)[0] == 2.0f && fetch(y, 1, other)[0] == 4.0f);
            OK(cudaStreamDestroy(other));
            NOK(ncclCommDestroy(second));
        });
    }
}

/* A stream of another device than the communicator's. */
void stream_of_another_device()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64);
        if (rank == 1)
            OK(cudaSetDevice(0));
        cudaStream_t own = rank == 1 ? new_stream() : s;
        CUSIM_LAUNCH(fill, dim3(1), dim3(1), 0, s, x, 1.0f, 1);
        NOK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, own));
        OK(cudaStreamSynchronize(own));
    });
}

void send_without_receive()
{
    run_ranks(3, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        if (rank == 0)
            NOK(ncclSend(x, 7, ncclFloat32, 2, comm, s));
    });
}

void send_of_another_size()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        if (rank == 0)
            NOK(ncclSend(x, 7, ncclFloat32, 1, comm, s));
        else
            NOK(ncclRecv(x, 8, ncclFloat32, 0, comm, s));
    });
}

/* Ends in a deadlock where NCCL's would: each rank sends to the other before it receives, without a group. Real NCCL
 * may have room for small ones; the simulator has none. */
void sends_without_a_group()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64), *y = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        NOK(ncclSend(x, 64, ncclFloat32, 1 - rank, comm, s));
        NOK(ncclRecv(y, 64, ncclFloat32, 1 - rank, comm, s));
    });
}

/* ---- calls that are wrong in themselves ---- */

void bad_arguments()
{
    run_ranks(2, [](int rank, int n, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64), *y = new_device<float>(64);
        const ncclDataType_t no_type = static_cast<ncclDataType_t>(99);
        CHECK(ncclAllGather(x, y, 16, no_type, comm, s) == ncclInvalidArgument);
        CHECK(ncclAllGather(x, y, 16, ncclFloat32, nullptr, s) == ncclInvalidArgument);
        CHECK(ncclAllGather(nullptr, y, 16, ncclFloat32, comm, s) == ncclInvalidArgument);
        CHECK(ncclAllReduce(x, nullptr, 16, ncclFloat32, ncclSum, comm, s) == ncclInvalidArgument);
        CHECK(ncclAllReduce(x, y, 16, ncclFloat32, static_cast<ncclRedOp_t>(9), comm, s) == ncclInvalidArgument);
        CHECK(ncclBroadcast(x, y, 16, ncclFloat32, n, comm, s) == ncclInvalidArgument);
        CHECK(ncclBroadcast(x, y, 16, ncclFloat32, -1, comm, s) == ncclInvalidArgument);
        CHECK(ncclSend(x, 1, ncclFloat32, n, comm, s) == ncclInvalidArgument);
        CHECK(ncclRecv(x, 1, ncclFloat32, -1, comm, s) == ncclInvalidArgument);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
        ncclComm_t none = nullptr;
        ncclUniqueId id;
        NOK(ncclGetUniqueId(&id));
        CHECK(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument && none == nullptr);
        memset(&id, 0, sizeof id);
        CHECK(ncclCommInitRank(&none, 2, id, rank) == ncclInvalidArgument && none == nullptr);
    });
}

void buffer_too_small()
{
    run_ranks(2, [](int, int n, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64), *y = new_device<float>((size_t)(64 * n - 1));
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        NOK(ncclAllGather(x, y, 64, ncclFloat32, comm, s));
    });
}

void buffer_of_the_host()
{
    run_ranks(2, [](int, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_pinned<float>(64);
        NOK(ncclAllReduce(x, x, 64, ncclFloat32, ncclSum, comm, s));
    });
}

/* In place means: at the rank's own place. */
void half_in_place()
{
    run_ranks(2, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        float *y = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, y, 1.0f, 64);
        NOK(ncclAllGather(y + rank * 32, y, 32, ncclFloat32, comm, s)); /* this is */
        NOK(ncclAllGather(y, y, 32, ncclFloat32, comm, s));             /* rank 1's is not */
    });
}

template <bool BF16> void averages()
{
    run_ranks(4, [](int rank, int, ncclComm_t comm, cudaStream_t s) {
        __nv_bfloat16 *x = new_device<__nv_bfloat16>(8);
        float *y = new_device<float>(8);
        give(x, std::vector<__nv_bfloat16>(8, __float2bfloat16_rn((float)rank)), s);
        give(y, std::vector<float>(8, (float)rank), s);
        if (BF16)
            NOK(ncclAllReduce(x, x, 8, ncclBfloat16, ncclAvg, comm, s));
        else
            NOK(ncclAllReduce(y, y, 8, ncclFloat32, ncclAvg, comm, s));
        CHECK(BF16 ? __bfloat162float(fetch(x, 8, s)[7]) == 1.5f : fetch(y, 8, s)[7] == 1.5f);
    });
}

/* A rank that never comes: the others' init does not end, and it says so. */
void missing_rank()
{
    ncclUniqueId id;
    ncclComm_t comm;
    NOK(ncclGetUniqueId(&id));
    NOK(ncclCommInitRank(&comm, 2, id, 0));
}

/* A collective of one rank, planted to be left out. */
void skipped_collective()
{
    cusim_plant(CUSIM_SKIP_COLLECTIVE, 1, 1);
    run_ranks(2, [](int, int, ncclComm_t comm, cudaStream_t s) {
        float *x = new_device<float>(64);
        CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
        NOK(ncclAllReduce(x, x, 64, ncclFloat32, ncclSum, comm, s));
        NOK(ncclAllReduce(x, x, 32, ncclFloat32, ncclSum, comm, s));
        NOK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, comm, s));
    });
}

/* ---- symmetric windows ---- */

enum window_fault { NO_FAULT, OVERLAP, FOREIGN, UNEQUAL, FREED, LEFT_OPEN, SHIFTED };
const size_t WINDOW = 8192;

/* Two windows, and an all-to-all from one to the other; rank 1 does one thing wrong. */
template <window_fault F> void use_windows(int rank, int n, ncclComm_t comm, cudaStream_t s)
{
    char *x, *y;
    ncclWindow_t first, second;
    const bool wrong = rank == 1;
    NOK(ncclMemAlloc(reinterpret_cast<void **>(&x), WINDOW));
    NOK(ncclMemAlloc(reinterpret_cast<void **>(&y), 2 * WINDOW));
    if (F == FOREIGN && wrong)
        x = new_device<char>(WINDOW);
    NOK(ncclCommWindowRegister(comm, x, F == UNEQUAL && wrong ? WINDOW / 2 : WINDOW, &first, NCCL_WIN_COLL_SYMMETRIC));
    char *at = F == OVERLAP && wrong ? x : y;
    NOK(ncclCommWindowRegister(comm, at, WINDOW, &second, NCCL_WIN_COLL_SYMMETRIC));
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, reinterpret_cast<float *>(x), static_cast<float>(rank), 64);
    NOK(ncclAlltoAll(x, y + (F == SHIFTED && wrong ? 256 : 0), 8, ncclFloat32, comm, s));
    CHECK(fetch(reinterpret_cast<float *>(y), 16, s)[8] == 1.0f);
    if (F == FREED && wrong)
        NOK(ncclMemFree(y));
    NOK(ncclCommWindowDeregister(comm, first));
    if (F == LEFT_OPEN && wrong)
        NOK(ncclCommDestroy(comm));
    NOK(ncclCommWindowDeregister(comm, second));
    NOK(ncclMemFree(x));
    NOK(ncclMemFree(y));
}
template <window_fault F> void windows() { run_ranks(2, use_windows<F>); }

/* A config of 2.28 for a library of 2.27. */
void config_of_another_version()
{
    ncclUniqueId id;
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cusim_set_nccl(22703);
    NOK(ncclGetUniqueId(&id));
    NOK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
}

const test tests[] = {
    { "collectives of 1 to 8 ranks", collectives },
    { "one thread drives all ranks", one_thread_for_all },
    { "planted: collectives in another order", wrong_order_collective, "ranks disagree on a communicator: rank" },
    { "a missing collective is a named deadlock", missing_collective,
      "ncclAllReduce of 16 elements of type 7 for rank 2" },
    { "a buffer written in flight is caught", written_in_flight, "changed while the operation was in flight" },
    { "abort releases the streams", aborted },
    { "the same calls agree", different<NOTHING> },
    { "planted: another size", different<SIZE>, "ranks disagree on a communicator: rank" },
    { "planted: another type", different<TYPE>, "ranks disagree on a communicator: rank" },
    { "planted: another operation", different<OPERATION>, "ranks disagree on a communicator: rank" },
    { "planted: another root", different<ROOT>, "from root 1" },
    { "planted: another collective", different<KIND>, "ncclReduceScatter of 16 elements of type 7" },
    { "planted: communicators in another order on one stream", crossed_communicators, "deadlock: " },
    { "communicators in any order on streams of their own", communicators_on_two_streams },
    { "planted: the stream of another device", stream_of_another_device,
      "the communicator is device 1's, the stream device 0's" },
    { "planted: a send that nobody receives", send_without_receive,
      "ncclSend/ncclRecv of 7 elements of type 7 from rank 0 to rank 2 for rank 2" },
    { "planted: a send and a receive of different sizes", send_of_another_size,
      "ranks disagree on a communicator: rank" },
    { "planted: sends before receives, without a group", sends_without_a_group, "deadlock: " },
    { "bad arguments are refused", bad_arguments },
    { "planted: a buffer one element too small", buffer_too_small, "of 512 bytes is memory outside every allocation" },
    { "planted: a buffer of the host's", buffer_of_the_host, "is host memory" },
    { "planted: half in place", half_in_place, "of rank 1: what it sends and what it receives overlap" },
    { "averages in fp32", averages<false> },
    { "averages in bf16", averages<true> },
    { "planted: a rank that does not come", missing_rank, "deadlock: ncclCommInitRank can never end" },
    { "an all-to-all between windows", windows<NO_FAULT> },
    { "planted: windows that overlap", windows<OVERLAP>, "it overlaps window 0" },
    { "planted: a window of other memory", windows<FOREIGN>, "not inside memory of ncclMemAlloc" },
    { "planted: windows of different sizes", windows<UNEQUAL>, "ranks disagree on window 0" },
    { "planted: memory freed under a window", windows<FREED>, "rank 1 still has a window there" },
    { "planted: a window left open", windows<LEFT_OPEN>, "1 windows are still registered" },
    { "planted: another place in the windows", windows<SHIFTED>, "at another place of the windows" },
    { "planted: a config of another version", config_of_another_version, "for NCCL 22703, whose config has 72" },
    { "a collective that is left out", skipped_collective, "ranks disagree on a communicator: rank" },
};

} // namespace

int main() { return run_tests(tests); }
