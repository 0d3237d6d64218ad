/* ranks.h - runs a test body on W ranks, as threads of this program or as processes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SUPPORT_RANKS_H
#define DSC_TESTS_SUPPORT_RANKS_H

#include "comm/comm.h"

typedef enum ranks_kind {
    RANKS_SELF,          /* one rank, transport self */
    RANKS_LOCAL,         /* threads, transport local */
    RANKS_SHM_THREADS,   /* threads, transport shm */
    RANKS_SHM_PROCESSES, /* forked, transport shm */
    RANKS_SHM_STRICT,    /* the same without process_vm_readv and pidfd_open */
    RANKS_TCP_THREADS,   /* threads, transport tcp */
    RANKS_TCP,           /* forked, transport tcp over the loopback interface */
    RANKS_HIER_THREADS,  /* threads, transport hier: two ranks a host, of eight three, or as run->hosts says */
    RANKS_HIER,          /* forked, the same */
    RANKS_GLOO_THREADS,  /* threads, transport gloo */
    RANKS_GLOO,          /* forked, transport gloo */
    RANKS_MPI,           /* this process is one of those that mpirun started */
    RANKS_KIND_COUNT
} ranks_kind;
const char *ranks_kind_text(ranks_kind kind);

/* cmocka's asserts end the wrong thread, so bodies return: 0 or the number of failures, each printed. */
#define RANKS_CHECK(condition)                                                                              \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "# %s:%d: rank %d: failed: %s\n", __FILE__, __LINE__, dsc_comm_rank(comm), #condition); \
            return 1;                                                                                       \
        }                                                                                                   \
    } while (0)
/* For calls that must succeed: prints the error. */
#define RANKS_TRY(call)                                                                                     \
    do {                                                                                                    \
        dsc_error ranks_error_ = DSC_ERROR_INIT, *err = &ranks_error_;                                      \
        if ((call) != DSC_OK) {                                                                             \
            fprintf(stderr, "# %s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, dsc_comm_rank(comm), #call,     \
                    err->message);                                                                          \
            return 1;                                                                                       \
        }                                                                                                   \
    } while (0)

typedef int (*ranks_body)(dsc_comm *comm, void *user);

typedef struct ranks_run {
    ranks_kind kind;
    int32_t size;
    int32_t channel_count;   /* 0: 1 */
    int64_t staging_bytes;   /* 0: 1 MiB */
    int64_t timeout_ns;      /* 0: 20 s */
    const int32_t *hosts;    /* host of each rank, for transport hier; NULL: see there */
    bool takes_less;         /* less COMM memory than planned: the ranks detect that they cannot share */
    int32_t port;            /* port of the TCP rendezvous; 0: from the token */
    int64_t fault_at;        /* of rank fault_rank */
    int32_t fault_rank;
    const dsc_comm_ops *ops; /* NULL: the kind's */
    ranks_body body;
    void *user;
} ranks_run;

/* Opens a communicator per rank, runs the body on each, closes; checks that nothing is live and that COMM bytes were
 * what dsc_comm_plan_bytes said. Returns the number of ranks that failed. */
int ranks_go(const ranks_run *run);
/* The options of one rank, for tests that open by themselves. `token` names the job. */
void ranks_options(const ranks_run *run, int32_t rank, dsc_alloc *alloc, dsc_local_world *world, const char *token,
                   dsc_comm_options *out);
/* From now on the system refuses this process process_vm_readv and pidfd_open, as some containers do. False: cannot. */
bool ranks_forbid_calls(void);
/* False, with the reason in *why: this build has no such transport. */
bool ranks_have(ranks_kind kind, dsc_error *why);
/* Starts this program under mpirun as "PROGRAM mpi MODE"; 0: every rank called ranks_mpi_done with 0; 77: no mpirun. */
int ranks_mpirun(int32_t size, const char *mode);
/* Says how this rank ended, and returns when all have: mpirun ends all when the first leaves without MPI's goodbye. */
void ranks_mpi_done(int failed);
void ranks_mpi_wait_done(int32_t count); /* until so many ranks have said it */
/* A port of this host that nobody listens on now. */
int32_t ranks_choose_port(void);
/* A token that no other test running now uses. */
void ranks_token(char *out, size_t out_bytes);

#endif
