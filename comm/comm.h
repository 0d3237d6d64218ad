/* comm.h - ranks and collectives: one const ops table per transport, one front that checks, counts, times and traces.
 *
 * Transports: self (W = 1), local (threads of one process), shm (processes of one host), tcp and gloo (several hosts).
 * hier uses shm inside hosts and tcp between hosts; nccl serves GPUs, fault wraps another, skeleton is the tutorial. A
 * communicator has `channel_count` independent channels: one stream uses one channel, so collectives of two streams
 * never wait for each other. All ranks call the same operations in the same order on a channel.
 *
 * Sums do not depend on the transport: reduce_scatter reduces parts in rank order on the owner (kernels/exact.h,
 * ORDERED_REDUCE), so every transport gives the same bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_COMM_H
#define DSC_COMM_COMM_H

#include <dsc/log.h>

#include "base/alloc.h"
#include "base/hosts/hostfile.h"
#include "base/net.h"
#include "base/quota.h"
#include "kernels/exchange.h"
#include "kernels/needs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_COMM_OPS_VERSION 3u
#define DSC_COMM_CHANNELS_MAX 4
#define DSC_COMM_NEEDS_MAX 8 /* entries of a list of needs: two for each channel */

/* The rank grid, slowest to fastest. Sizes other than `data` are 1 in this version and refused by name elsewhere. */
typedef struct dsc_grid { int32_t pipeline, data, sequence, tensor; } dsc_grid;

/* Threads of one process that form a world. Owned by whoever opens it; outlives its communicators. Thread-safe. */
typedef struct dsc_local_world dsc_local_world;
DSC_MUST_USE dsc_status dsc_local_world_open(int32_t size, dsc_local_world **out, dsc_error *err);
void dsc_local_world_close(dsc_local_world **world); /* every communicator of it is closed */
/* For a rank that cannot come to dsc_comm_open: the open of all others ends with DSC_ERR_PEER and the reason. Every
 * rank takes part in each round of opening once, by dsc_comm_open or by this. */
void dsc_local_world_refuse(dsc_local_world *world, int32_t rank, const char *reason);

/* Identity of a rank. Plain value; strings borrowed until open returns. */
typedef struct dsc_rank_info {
    int32_t rank, size;             /* world */
    int32_t local_rank, local_size; /* on this host */
    int32_t node, node_count;
    bool hosts_guessed; /* these two, on all ranks: as if hosts had as many ranks each */
    char master_addr[DSC_HOST_NAME_BYTES]; /* "127.0.0.1" */
    int32_t master_port;
    const char *job_token;        /* DSC_JOB_TOKEN, or "" (then the user id and port name the job) */
    bool from_mpi;                /* the numbers are those of an MPI launcher */
    const char *rank_name, *size_name; /* variables that `rank` and `size` come from; static. NULL: dsc-launch set them,
                                        * or none did */
    dsc_local_world *local_world; /* not NULL: transport "local" */
    const char *flight; /* DSC_FLIGHT: where the record goes (base/flight_log.h); NULL: nobody reads one */
} dsc_rank_info;

/* Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE|LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, DSC_JOB_TOKEN,
 * DSC_FLIGHT and the variables of Open MPI, hydra and Slurm, through `get` (getenv-like, user passed). None set:
 * rank 0 of 1. Contradictions and invalid numbers: DSC_ERR_INPUT naming the variable. The token and the flight point
 * into the environment. */
DSC_MUST_USE dsc_status dsc_rank_info_from_env(const char *(*get)(void *user, const char *name), void *user,
                                               dsc_rank_info *out, dsc_error *err);

typedef enum dsc_comm_op {
    DSC_COMM_ALL_GATHER, DSC_COMM_ALL_TO_ALL, DSC_COMM_REDUCE_SCATTER, DSC_COMM_ALL_REDUCE, DSC_COMM_BROADCAST,
    DSC_COMM_BARRIER, DSC_COMM_SEND, DSC_COMM_RECV, DSC_COMM_OP_COUNT
} dsc_comm_op;
const char *dsc_comm_op_text(dsc_comm_op op);

/* Called after every operation on the thread that ran it, by several at once. `bytes` as in dsc_comm_stats. */
typedef struct dsc_comm_trace {
    void (*fn)(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns, int64_t end_ns,
               dsc_status status);
    void *user;
} dsc_comm_trace;

/* How NCCL uses a GPU's multiprocessors for exchanges (CTAs); the values are NCCL's. */
typedef enum dsc_nccl_policy {
    DSC_NCCL_POLICY_DEFAULT,    /* as many as are fastest */
    DSC_NCCL_POLICY_EFFICIENCY, /* few; NCCL 2.27 */
    DSC_NCCL_POLICY_ZERO        /* copy engines where they can; NCCL 2.28 */
} dsc_nccl_policy;

/* Wishes for NCCL's communicators, which other transports do not read. Those that the installed NCCL does not have are
 * left out, with one warning. */
typedef struct dsc_nccl_wishes {
    int32_t min_ctas, max_ctas; /* multiprocessors that an exchange may take; 0: NCCL's choice */
    dsc_nccl_policy policy;
    bool blocking;       /* calls return when NCCL has done its part; a peer that goes meanwhile is not noticed */
    bool symmetric;      /* memory of exchanges is NCCL's, in symmetric windows; NCCL 2.27. POLICY_ZERO implies it */
    const char *network; /* NCCL's name of a network ("IB", "Socket", a plugin's); "" or NULL: its choice */
} dsc_nccl_wishes;

struct dsc_comm;
typedef struct dsc_comm_options {
    dsc_alloc *alloc; /* borrowed until close */
    dsc_rank_info rank_info;
    const char *transport;     /* "auto", "self", "local", "shm", "tcp", "hier", "gloo", "mpi", "nccl" */
    int32_t channel_count;     /* 1..DSC_COMM_CHANNELS_MAX */
    int64_t staging_bytes;     /* per channel and rank, for transports that copy through a segment; counted as COMM */
    int64_t timeout_ns;        /* a collective that waits longer fails with DSC_ERR_STUCK; 0: 600 s */
    int64_t open_timeout_ns;   /* how long open waits for the other ranks; 0: 60 s */
    int64_t fault_at;          /* test hook: the n-th collective (1-based) of this rank fails; 0: none */
    const dsc_log *log;        /* borrowed until close; may be NULL */
    dsc_comm_trace trace;      /* fn = NULL: none */
    /* For collectives over device memory; both borrowed until close. `device`: where dsc_comm_mem_open and staging take
     * their memory (NULL: host memory). `host`: the same ranks over host memory; a transport that has no rendezvous of
     * its own meets there, and learns there that a peer is gone. */
    dsc_device *device;
    struct dsc_comm *host;
    uint32_t staging_channels; /* bit c: channel c carries sums and needs staging; 0: all */
    const int *gate;  /* NULL, or of rank 0 a listener at master_addr and master_port; borrowed until open returns */
    bool register_memory; /* memory of dsc_comm_mem_open is registered with the transport's library, if it can */
    /* All calls of this communicator come from the thread that opens it, but for abort and health. A transport whose
     * library is to be called by one thread then needs none of its own (mpi). */
    bool one_thread;
    bool only_this_rank; /* the others are imagined: `device`, if any, is a virtual GPU (kernels/virtual) */
    struct dsc_virtual_clock *clock; /* with only_this_rank: the rank's; borrowed until close */
    bool native_sums; /* reduce_scatter by the transport's own sum where it has one: faster, not the same bits */
    dsc_nccl_wishes nccl; /* `network` is borrowed until close */
    /* NULL, or a communicator over device memory whose ranks all open groups now, one for each color. A transport may
     * then make the group from it, without a rendezvous. Borrowed until open returns. */
    struct dsc_comm *parent;
    int32_t parent_color; /* >= 0 */
} dsc_comm_options;

/* One fold of this rank's slice: acc[i] (+)= sum over ranks r, in rank order, of round_wire(leaf of rank r).
 * On rank q, the piece for rank r starts at leaf + r * leaf_stride; so `leaf` is rank-major with stride elements. */
typedef struct dsc_reduce_scatter_args {
    float *acc;           /* [count] of this rank's slice */
    const float *leaf;    /* [W pieces of `count` at stride] fp32, unrounded */
    int64_t leaf_stride;  /* elements between the pieces of two owners */
    int64_t count;        /* elements of one piece; any number, the transport cuts it to its staging */
    dsc_dtype wire_dtype; /* F32, BF16 or F16 */
    bool overwrite;       /* acc is not read */
    /* NULL, or [W] fp32 buffers of `count`: the W rounded leaves are stored apart, not folded (acc unused). For sums
     * whose tree must not depend on W. */
    float *const *apart;
    /* NULL: every rank has a leaf. Else those ranks have one that have a micro-batch in `micro_step`, and the others
     * are left out; what their `leaf` has is not used. Equal on all ranks, and unchanged until the call is done. */
    const dsc_quota *quota;
    int64_t micro_step;
} dsc_reduce_scatter_args;

/* Rank r's leaf is part of the sum. */
static inline bool dsc_reduce_scatter_has(const dsc_reduce_scatter_args *args, int32_t r)
{
    return args->quota == NULL || dsc_quota_has(args->quota, r, args->micro_step);
}

typedef struct dsc_transport dsc_transport; /* a backend's own state; starts with its ops */

/* One transport = one file = one const table. Hooks block until done and are called on the stream's thread with
 * stream = NULL. Hooks of a transport that `enqueues` are called on the caller's thread with the stream and only
 * give work to it; NULL then means host memory, now. One call at a time per channel, several channels at once.
 * Counts are equal on all ranks. A hook fails with DSC_ERR_PEER (a rank is gone: named), DSC_ERR_STUCK (timeout:
 * missing ranks and operation) or DSC_ERR_COMM (ranks disagree in operation or size: both named). After a failure
 * every later call fails too until the communicator is closed. */
typedef struct dsc_comm_ops {
    const char *name;
    uint32_t version;
    bool enqueues;
    /* Optional: the transport's own memory with these options, from which dsc_comm_plan_bytes and open follow. Returns
     * the length of the list, at most DSC_COMM_NEEDS_MAX. `transport` is NULL while planning; then `out` of each entry
     * is NULL. NULL: the transport has none. */
    int (*list_needs)(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list);
    dsc_status (*open)(dsc_transport **out, const dsc_comm_options *options, dsc_error *err); /* Required; collective */
    void (*close)(dsc_transport *transport); /* Required; safe after any failure, never waits for peers for long */
    /* Required. recv[W * bytes] <- every rank's send[bytes] in rank order. send may be recv + rank * bytes. */
    dsc_status (*all_gather)(dsc_transport *, int32_t channel, void *recv, const void *send, int64_t bytes,
                             dsc_stream *stream, dsc_error *err);
    /* Required. recv[r * bytes] <- rank r's send[my rank * bytes]. No overlap. */
    dsc_status (*all_to_all)(dsc_transport *, int32_t channel, void *recv, const void *send, int64_t bytes,
                             dsc_stream *stream, dsc_error *err);
    /* Required. */
    dsc_status (*broadcast)(dsc_transport *, int32_t channel, void *buf, int64_t bytes, int32_t root,
                            dsc_stream *stream, dsc_error *err);
    dsc_status (*barrier)(dsc_transport *, int32_t channel, dsc_stream *stream, dsc_error *err);
    dsc_status (*send)(dsc_transport *, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                       dsc_stream *stream, dsc_error *err);
    dsc_status (*recv)(dsc_transport *, int32_t channel, void *buf, int64_t bytes, int32_t from, dsc_stream *stream,
                       dsc_error *err);
    /* Optional: peers' leaves read in place or through the segment and folded (ORDERED_REDUCE). NULL: the front casts
     * to staging, all_to_all, ORDERED_REDUCE. acc may be this rank's own piece of `leaf`. */
    dsc_status (*reduce_scatter)(dsc_transport *, int32_t channel, const dsc_reduce_scatter_args *args,
                                 dsc_stream *stream, dsc_error *err);
    /* Optional: recv[count] <- the sum over ranks of send[my rank * count], in `dtype` and in the order that the
     * transport likes. The front uses it when the options ask for native_sums. */
    dsc_status (*native_sum)(dsc_transport *, int32_t channel, void *recv, const void *send, int64_t count,
                             dsc_dtype dtype, dsc_stream *stream, dsc_error *err);
    /* Optional: memory that peers can read in place, so that all_gather from it is one copy. NULL: plain memory. */
    dsc_status (*mem_open)(dsc_transport *, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err);
    void (*mem_close)(dsc_transport *, dsc_buf *buf);
    /* Optional. Without waiting, from any thread: DSC_ERR_PEER and who, when a rank is gone or has failed. NULL: nobody
     * can vanish. */
    dsc_status (*health)(dsc_transport *, dsc_error *err);
    /* Optional: at which of this host's addresses ranks of other hosts reach this one; its port is 0. */
    bool (*address)(dsc_transport *, dsc_net_address *out);
    /* Required. From any thread: every waiting and later call of this rank and, as far as the transport can, of its
     * peers ends with DSC_ERR_PEER and the reason. */
    void (*abort)(dsc_transport *, const char *reason);
} dsc_comm_ops;

extern const dsc_comm_ops dsc_comm_self, dsc_comm_local, dsc_comm_shm, dsc_comm_tcp, dsc_comm_hier, dsc_comm_gloo,
    dsc_comm_mpi, dsc_comm_nccl, dsc_comm_skeleton, dsc_comm_virtual, dsc_comm_virtual_cpu;

/* The table that options->transport names. "auto" is self for one rank, nccl over the memory of a device that is not
 * host_visible, local in a local_world, and shm when all ranks are on this host. Between hosts "auto" is tcp, or
 * hier when some hosts have several ranks. It is mpi when mpirun started the ranks and there is no job token. An
 * unknown name: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_comm_choose(const dsc_comm_options *options, const dsc_comm_ops **out, dsc_error *err);

typedef struct dsc_comm dsc_comm;

typedef struct dsc_comm_stats {
    int64_t calls[DSC_COMM_OP_COUNT];
    int64_t bytes[DSC_COMM_OP_COUNT]; /* payload that this rank receives from others */
    int64_t ns[DSC_COMM_OP_COUNT];    /* inside the transport, waiting included */
} dsc_comm_stats;

/* Payload of a channel's calls, counted when a call is given: what this rank sends to others, and what it receives. */
typedef struct dsc_comm_payload {
    int64_t sent, received;
} dsc_comm_payload;

/* Collective. *out is owned by the caller. Closing and opening again in a living process is allowed: a new epoch. */
DSC_MUST_USE dsc_status dsc_comm_open(const dsc_comm_options *options, dsc_comm **out, dsc_error *err);
/* dsc_comm_open with a table of the caller; options->transport is not read. */
DSC_MUST_USE dsc_status dsc_comm_open_with(const dsc_comm_ops *ops, const dsc_comm_options *options, dsc_comm **out,
                                           dsc_error *err);
/* Collective over `parent`, which moves host memory. Ranks of one color make a communicator of their own, ordered by
 * key and then by their rank in `parent`. A rank with a negative color takes part and gets *out = NULL. `options`
 * are those of the group, except `rank_info`: it is this rank's in the job (its device is NULL) and becomes the one in
 * the group. With these options, a device and host = *out, dsc_comm_open then opens the group over device memory.
 * The strings of `rank_info` are borrowed until *out is closed. Both communicators are independent: aborting one does
 * not abort the other. A group over several hosts opens at the address of its first rank, which tcp, hier and gloo
 * know. With another parent: DSC_ERR_UNSUPPORTED on all ranks. */
DSC_MUST_USE dsc_status dsc_comm_split(dsc_comm *parent, int32_t color, int32_t key, dsc_comm_options *options,
                                       dsc_comm **out, dsc_error *err);
/* Waits for nobody: peers that are still in a collective fail with DSC_ERR_PEER. Buffers of dsc_comm_mem_open are
 * closed before and the streams that carried its calls are idle. */
void dsc_comm_close(dsc_comm **comm);
int32_t dsc_comm_rank(const dsc_comm *comm);
int32_t dsc_comm_size(const dsc_comm *comm);
const char *dsc_comm_name(const dsc_comm *comm); /* "shm" */
void dsc_comm_stats_get(dsc_comm *comm, dsc_comm_stats *stats);
void dsc_comm_payload_get(const dsc_comm *comm, int32_t channel, dsc_comm_payload *payload);
/* Time inside calls without a stream, which the calling thread waits for; 0 for one rank. */
int64_t dsc_comm_blocked_ns(const dsc_comm *comm);
void dsc_comm_abort(dsc_comm *comm, const char *reason);
DSC_MUST_USE dsc_status dsc_comm_health(dsc_comm *comm, dsc_error *err); /* as the hook */
/* Bytes that open will map under the tag COMM for these options: the lists of the front and of the transport (all
 * channels, this rank's share). */
int64_t dsc_comm_plan_bytes(const dsc_comm_options *options);
/* Bytes that the transport's library takes of the device by itself, estimated: the tag LIBRARY. */
int64_t dsc_comm_library_bytes(const dsc_comm_options *options);
/* The part of dsc_comm_plan_bytes that open takes by dsc_comm_mem_open, from memory of the transport's library. */
int64_t dsc_comm_window_bytes(const dsc_comm_options *options);
/* Plain device memory where the transport has none of its own. */
DSC_MUST_USE dsc_status dsc_comm_mem_open(dsc_comm *comm, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err);
void dsc_comm_mem_close(dsc_comm *comm, dsc_buf *buf);

/* For the flight record: what the calls that follow belong to, and what a module is called. Any thread that calls. */
void dsc_comm_label_step(dsc_comm *comm, int64_t step);
void dsc_comm_label_module(dsc_comm *comm, int32_t channel, int32_t module); /* -1: none */
void dsc_comm_name_module(dsc_comm *comm, int32_t module, const char *name);

/* The ranks of a communicator over host memory as a group of kernels (kernels/exchange.h). Its exchanges take one
 * channel and come from one thread at a time. Plain value; `group.user` points to it, so it stays where it is. */
typedef struct dsc_comm_group {
    dsc_exchange_group group;
    dsc_comm *comm; /* borrowed */
    int32_t channel;
} dsc_comm_group;
void dsc_comm_group_init(dsc_comm_group *group, dsc_comm *comm, int32_t channel);

/* All are asynchronous on `stream` (buffers borrowed until it passes; inline on a cpu's compute stream). stream = NULL:
 * on the calling thread, in host memory, done on return. One stream uses one channel. Counts of 0 are calls like any
 * other. */
DSC_MUST_USE dsc_status dsc_comm_all_gather(dsc_comm *comm, int32_t channel, void *recv, const void *send,
                                            int64_t count, dsc_dtype dtype, dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_all_to_all(dsc_comm *comm, int32_t channel, void *recv, const void *send,
                                            int64_t bytes, dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_broadcast(dsc_comm *comm, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                           dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_reduce_scatter(dsc_comm *comm, int32_t channel, const dsc_reduce_scatter_args *args,
                                                dsc_stream *stream, dsc_error *err);
/* buf[count] fp32 <- sum over ranks in rank order (a reduce-scatter and an all-gather); any count. */
DSC_MUST_USE dsc_status dsc_comm_all_reduce(dsc_comm *comm, int32_t channel, float *buf, int64_t count,
                                            dsc_dtype wire_dtype, dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_barrier(dsc_comm *comm, int32_t channel, dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_send(dsc_comm *comm, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                                      dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_comm_recv(dsc_comm *comm, int32_t channel, void *buf, int64_t bytes, int32_t from,
                                      dsc_stream *stream, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
