/* spy_mpi.c - for LD_PRELOAD: notes which thread calls MPI, and on leaving the process writes DSC_MPI_SPY.RANK:
 * "level L threads N calls N from R", R the program's main thread or another.
 *
 * Every MPI function that libdsc_mpi.so calls is here: test_mpi.sh compares the two lists.
 * SPDX-License-Identifier: Apache-2.0 */
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int caller, threads = 1, calls, level = -1;

static void note(void)
{
    int first = 0;
    if (!atomic_compare_exchange_strong(&caller, &first, gettid()) && first != gettid())
        atomic_store(&threads, 2);
    atomic_fetch_add(&calls, 1);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("DSC_MPI_SPY"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char name[4096];
    if (path == NULL || rank == NULL || atomic_load(&calls) == 0)
        return;
    snprintf(name, sizeof name, "%s.%s", path, rank);
    FILE *file = fopen(name, "w");
    if (file == NULL)
        return;
    fprintf(file, "level %d threads %d calls %d from %s\n", atomic_load(&level), atomic_load(&threads),
            atomic_load(&calls), atomic_load(&caller) == getpid() ? "main" : "another");
    fclose(file);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    note();
    atomic_store(&level, required == MPI_THREAD_FUNNELED ? 1 : 2);
    return PMPI_Init_thread(argc, argv, required, provided);
}

#define SPY(name, parameters, arguments) \
    int MPI_##name parameters            \
    {                                    \
        note();                          \
        return PMPI_##name arguments;    \
    }

SPY(Finalize, (void), ())
SPY(Initialized, (int *flag), (flag))
SPY(Finalized, (int *flag), (flag))
SPY(Query_thread, (int *provided), (provided))
SPY(Error_string, (int code, char *text, int *length), (code, text, length))
SPY(Comm_rank, (MPI_Comm comm, int *rank), (comm, rank))
SPY(Comm_size, (MPI_Comm comm, int *size), (comm, size))
SPY(Comm_idup, (MPI_Comm comm, MPI_Comm *out, MPI_Request *request), (comm, out, request))
SPY(Comm_set_errhandler, (MPI_Comm comm, MPI_Errhandler handler), (comm, handler))
SPY(Isend, (const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request),
    (buf, count, type, to, tag, comm, request))
SPY(Irecv, (void *buf, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request),
    (buf, count, type, from, tag, comm, request))
SPY(Test, (MPI_Request *request, int *flag, MPI_Status *status), (request, flag, status))
SPY(Testsome, (int count, MPI_Request *request, int *done, int *index, MPI_Status *status),
    (count, request, done, index, status))
SPY(Testall, (int count, MPI_Request *request, int *flag, MPI_Status *status), (count, request, flag, status))
SPY(Cancel, (MPI_Request *request), (request))
SPY(Request_free, (MPI_Request *request), (request))
SPY(Improbe, (int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
    (from, tag, comm, flag, message, status))
SPY(Mrecv, (void *buf, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
    (buf, count, type, message, status))
SPY(Get_count, (const MPI_Status *status, MPI_Datatype type, int *count), (status, type, count))
