/* rendezvous.h - how the ranks of one host find each other: two pure state machines, (state, event) -> actions.
 *
 * Rank 0 runs the server, every other rank a client; a message is one packet of a local socket. Order for one client:
 *
 *   client  HELLO      rank, world size, build, agreed numbers, nonce
 *   server  CHALLENGE  nonce, proof that it knows the key
 *   client  PROOF      proof that it knows the key                        (+ the client's memory file)
 *   server  WELCOME    epoch, when all ranks are here                     (+ everybody's memory files)
 *   client  READY      it has mapped them, or why not
 *   server  GO         when all ranks are ready: everybody opens, or nobody
 *
 * Instead of any of these, REFUSE gives the reason. The machines never block, allocate or read a clock or a socket. So
 * tests run them in a simulator that loses, delays, repeats and reorders, and a fuzzer feeds them bytes. The driver is
 * rendezvous_socket.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_RENDEZVOUS_RENDEZVOUS_H
#define DSC_COMM_RENDEZVOUS_RENDEZVOUS_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_RDV_RANKS_MAX 128
#define DSC_RDV_CONNS_MAX (DSC_RDV_RANKS_MAX + 16) /* strangers may knock while ranks come */
#define DSC_RDV_MESSAGE_MAX 384
#define DSC_RDV_AGREE_MAX 4
#define DSC_RDV_TEXT 256
#define DSC_RDV_NONCE 16
/* A connection that has not proved itself by then is closed. */
#define DSC_RDV_STRANGER_NS INT64_C(5000000000)
/* A rank that waits so long for others to come says so, once; sooner if the timeout is less than twice as long. */
#define DSC_RDV_NOTICE_NS INT64_C(3000000000)

/* Contribution of a rank to the rendezvous. Plain value. */
typedef struct dsc_rdv_self {
    int32_t rank, size;
    int32_t pid;
    char build[32];                         /* version text: ranks of different builds are refused */
    int64_t agree[DSC_RDV_AGREE_MAX];       /* numbers that must be equal on all ranks */
    const char *agree_name[DSC_RDV_AGREE_MAX]; /* for messages; NULL: not used */
    uint8_t key[32];                        /* from the job token; all ranks have the same */
    int64_t timeout_ns;
} dsc_rdv_self;

typedef enum dsc_rdv_event_kind {
    DSC_RDV_TICK,    /* time passed */
    DSC_RDV_OPENED,  /* server: `conn` was accepted (pid); client: connected. `random` is fresh */
    DSC_RDV_NO_CONNECT, /* client: nobody listens */
    DSC_RDV_MESSAGE, /* bytes[count] came on `conn`, with `file_count` files */
    DSC_RDV_CLOSED,  /* the other end of `conn` is gone */
    DSC_RDV_MAPPED,  /* own mapping is done; text != NULL: it failed */
} dsc_rdv_event_kind;

typedef struct dsc_rdv_event {
    dsc_rdv_event_kind kind;
    int64_t now_ns;
    int32_t conn; /* server: 0..DSC_RDV_CONNS_MAX-1, chosen by the driver; client: 0 */
    int32_t pid;
    const void *bytes;
    int64_t count;
    int32_t file_count;
    uint8_t random[DSC_RDV_NONCE];
    const char *text;
} dsc_rdv_event;

typedef enum dsc_rdv_action_kind {
    DSC_RDV_CONNECT,    /* client: try to connect (again) */
    DSC_RDV_SEND,       /* bytes[count] to `conn`; with_file: the client's memory file rides along */
    DSC_RDV_SEND_ALL,   /* to every joined connection (to_strangers: to every one); with_file: all files ride along */
    DSC_RDV_KEEP_FILE,  /* server: the file of the message just given is that of `rank` */
    DSC_RDV_KEEP_FILES, /* client: the files of the message just given are everybody's */
    DSC_RDV_DROP,       /* close `conn` */
    DSC_RDV_MAP,        /* map the files, then give DSC_RDV_MAPPED */
    DSC_RDV_WAITS,      /* for the user: `text` names the ranks that have not come */
    DSC_RDV_DONE,       /* everybody is ready */
    DSC_RDV_FAIL        /* over: status, text */
} dsc_rdv_action_kind;

typedef struct dsc_rdv_action {
    dsc_rdv_action_kind kind;
    int32_t conn, rank;
    bool with_file, to_strangers;
    int32_t count;
    uint8_t bytes[DSC_RDV_MESSAGE_MAX];
    dsc_status status;
    char text[DSC_RDV_TEXT];
} dsc_rdv_action;

#define DSC_RDV_ACTIONS_MAX 6
/* Result of one event: at most this many actions, in order. */
typedef struct dsc_rdv_actions {
    int32_t count;
    dsc_rdv_action item[DSC_RDV_ACTIONS_MAX];
} dsc_rdv_actions;

/* ---- server (rank 0) --------------------------------------------------------------------------------------------- */

typedef struct dsc_rdv_conn {
    int32_t state; /* private */
    int32_t rank, pid;
    int64_t since_ns;
    uint8_t nonce[DSC_RDV_NONCE];
    uint8_t hello[DSC_RDV_MESSAGE_MAX]; /* as it came: proofs cover it */
    int32_t hello_bytes;
} dsc_rdv_conn;

typedef struct dsc_rdv_server {
    dsc_rdv_self self;
    uint64_t epoch;
    int32_t phase; /* private */
    int64_t deadline_ns, notice_ns;
    int32_t joined_count, ready_count; /* without rank 0 */
    bool self_ready;
    int32_t refused_count; /* connections that could not prove the key */
    int32_t conn_of[DSC_RDV_RANKS_MAX]; /* rank -> conn, -1: not here */
    dsc_rdv_conn conn[DSC_RDV_CONNS_MAX];
} dsc_rdv_server;

void dsc_rdv_server_init(dsc_rdv_server *server, const dsc_rdv_self *self, uint64_t epoch, int64_t now_ns);
void dsc_rdv_server_step(dsc_rdv_server *server, const dsc_rdv_event *event, dsc_rdv_actions *out);
/* The listener is open while ranks may come. */
bool dsc_rdv_server_listens(const dsc_rdv_server *server);
/* True when the server counts this connection among the joined: the receivers of SEND_ALL. */
bool dsc_rdv_server_joined(const dsc_rdv_server *server, int32_t conn);

/* ---- client (all other ranks) ------------------------------------------------------------------------------------ */

typedef struct dsc_rdv_client {
    dsc_rdv_self self;
    int32_t phase; /* private */
    int64_t deadline_ns, notice_ns, retry_ns, retry_wait_ns;
    uint8_t nonce[DSC_RDV_NONCE];
    uint8_t hello[DSC_RDV_MESSAGE_MAX];
    int32_t hello_bytes;
    uint64_t epoch; /* valid from MAP on */
} dsc_rdv_client;

void dsc_rdv_client_init(dsc_rdv_client *client, const dsc_rdv_self *self, int64_t now_ns);
void dsc_rdv_client_step(dsc_rdv_client *client, const dsc_rdv_event *event, dsc_rdv_actions *out);

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* Some ranks have not come for a while: `text` is "rank 0 waits for rank 1 of 2 to come". */
typedef void (*dsc_rdv_waits_fn)(void *user, const char *text);

typedef struct dsc_rdv_job {
    dsc_rdv_self self;  /* key is filled by the driver */
    dsc_rdv_waits_fn waits; /* with the user of the mapping; NULL: no report */
    const char *token;  /* "": none */
    const char *host;   /* MASTER_ADDR; NULL: "" */
    int32_t port;       /* MASTER_PORT; token, user id, host and port together name the job */
} dsc_rdv_job;

/* Maps what came: file[0] is rank 0's segment, file[1 + r] rank r's memory. The files stay the driver's. */
typedef dsc_status (*dsc_rdv_map_fn)(void *user, uint64_t epoch, const int *file, dsc_error *err);

/* Collective; blocks until every rank is ready or one failed. `segment` is -1 but on rank 0; `memory` is this rank's
 * file. On success file[1 + size] is owned by the caller (rank 0's hold its own two as duplicates). On failure nothing
 * stays open but what was given. */
DSC_MUST_USE dsc_status dsc_rdv_run(const dsc_rdv_job *job, int segment, int memory, dsc_rdv_map_fn map, void *user,
                                    int *file, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
