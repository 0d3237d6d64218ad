/* mpi_plugin.c - lib/dsc/libdsc_mpi.so: mpi_api.h in terms of MPI 3.
 *
 * Every channel is a communicator of its own with errors returned. A long message is sent in pieces: MPI reports
 * nothing of a message before it is done, and a waiting rank must see progress.
 *
 * All calls of MPI are made by one thread (mpi_thread.h). The work of a channel is an order that is done with its last
 * message. Every other call of MPI is a question, an order of its own on the heap. MPI may not return from a call (a
 * peer that stopped in the middle of one). Then questions are abandoned after a while, and their memory with them.
 *
 * MPI is initialised at the first open and left when the process ends, since it cannot be entered twice. A process that
 * failed leaves without MPI_Finalize, which makes mpirun end the others.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/mpi_api.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/transports/mpi_thread.h"

#define CHANNELS_MAX 16
#define CONTROL_MAX 64 /* sent and not known to have arrived */
#define CONTROL_BYTES 512
#define PIECE_BYTES (INT64_C(16) << 20)
#define ELSEWHERE "MPI is called by the thread that opened the first communicator, not by this one"
#define ANSWER_NS INT64_C(2000000000) /* for what MPI does at once */

typedef struct channel_state {
    dsc_mpi_order order;
    MPI_Comm comm;
    const dsc_mpi_part *part;
    int part_count, first_count;
    /* Owned by the thread: requests under way and their parts. */
    MPI_Request *request;
    MPI_Status *status;
    int *owner, *done;
    int count, capacity;
    struct channel_state *next; /* list of channels with messages under way */
    /* For everybody. */
    _Atomic int64_t left;
    _Atomic int first_left;
    atomic_int *open; /* [size] */
    _Atomic bool failed;
    char text[DSC_MPI_TEXT]; /* whole when failed is seen */
} channel_state;

struct dsc_mpi_link {
    int rank, size, channel_count;
    channel_state channel[CHANNELS_MAX];
    MPI_Comm control;
    MPI_Request opening; /* request for one of the communicators */
    int sent_count;
    MPI_Request sent[CONTROL_MAX];
    char message[CONTROL_MAX][CONTROL_BYTES];
};

/* Something that is asked of MPI, and freed by whoever of the two is done with it last. */
typedef struct question {
    dsc_mpi_order order;
    int (*answer)(struct question *q);
    _Atomic int owners;
    dsc_mpi_link *link;
    int rank, size, channel, bytes, from;
    int arrived, result;
    char message[CONTROL_BYTES];
    char text[DSC_MPI_TEXT];
} question;

/* Process-wide as MPI itself is. All but `lock`, `thread` and `failed` are the thread's. */
static struct {
    pthread_mutex_t lock; /* for starting the thread */
    bool started;
    dsc_mpi_thread thread;
    channel_state *busy;
    bool entered;
    int open_links;
    _Atomic bool failed;
} mpi = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int check(int code, const char *call, char *text)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, why, &length);
    snprintf(text, DSC_MPI_TEXT, "%.80s: %.160s", call, why);
    return 1;
}
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if (check(call, #call, text) != 0)                                                                             \
            return 1;                                                                                                  \
    } while (0)

/* ---- questions --------------------------------------------------------------------------------------------------- */

static void release(question *q)
{
    if (atomic_fetch_sub(&q->owners, 1) == 1)
        free(q);
}

static void run_question(dsc_mpi_order *order)
{
    question *q = (question *)order;
    q->result = q->answer(q);
    dsc_mpi_done(order);
    release(q);
}

#define UNANSWERED DSC_MPI_LATE

/* The answer to a copy of *q, which is then in *q: 0, 1 with a reason, or UNANSWERED with one. */
static int ask(question *q, int (*answer)(question *), int64_t ns, char *text)
{
    question *asked = malloc(sizeof *asked);
    if (asked == NULL) {
        snprintf(text, DSC_MPI_TEXT, "out of host memory");
        return 1;
    }
    *asked = *q;
    asked->order.run = run_question;
    asked->answer = answer;
    asked->owners = 2;
    if (!dsc_mpi_post(&mpi.thread, &asked->order)) {
        free(asked);
        snprintf(text, DSC_MPI_TEXT, ELSEWHERE);
        return UNANSWERED;
    }
    const bool answered = dsc_mpi_wait(&mpi.thread, &asked->order, ns);
    if (answered)
        *q = *asked;
    release(asked);
    if (answered)
        memcpy(text, q->text, sizeof q->text);
    else
        snprintf(text, DSC_MPI_TEXT, "MPI did not come back from a call for %.0f s", (double)ns * 1e-9);
    return answered ? q->result : UNANSWERED;
}

/* ---- into MPI and out of it -------------------------------------------------------------------------------------- */

static int enter(char *text)
{
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
    TRY(MPI_Initialized(&initialized));
    TRY(MPI_Finalized(&finalized));
    if (finalized) {
        snprintf(text, DSC_MPI_TEXT, "this process has already left MPI");
        return 1;
    }
    if (!initialized) {
        TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
        mpi.entered = true;
    }
    TRY(MPI_Query_thread(&level));
    if (level >= (mpi.entered ? MPI_THREAD_FUNNELED : MPI_THREAD_SERIALIZED))
        return 0;
    snprintf(text, DSC_MPI_TEXT, "%s", mpi.entered
             ? "this MPI allows no threads (MPI_THREAD_FUNNELED is needed)"
             : "this program has entered MPI for one thread only (MPI_THREAD_SERIALIZED is needed)");
    return 1;
}

/* MPI agrees that this is rank `rank` of `size`. */
static int check_rank(question *q)
{
    char *text = q->text;
    int rank = -1, size = -1;
    if (enter(text) != 0)
        return 1;
    TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    TRY(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (rank == q->rank && size == q->size)
        return 0;
    snprintf(text, DSC_MPI_TEXT, "MPI says rank %d of %d, the job %d of %d; start the ranks with mpirun", rank, size,
             q->rank, q->size);
    return DSC_MPI_OTHER_RANK;
}

static int leave(question *q)
{
    mpi.thread.leave = true;
    if (mpi.entered && mpi.open_links == 0 && !atomic_load(&mpi.failed))
        MPI_Finalize();
    return 0;
}

/* MPI may end the process itself, from a call; and where another thread than MPI's ends it, MPI is not left. */
__attribute__((destructor)) static void leave_mpi(void)
{
    char text[DSC_MPI_TEXT];
    question q = { .link = NULL };
    if (!mpi.started || (!mpi.thread.callers && pthread_equal(pthread_self(), mpi.thread.id)))
        return;
    ask(&q, leave, atomic_load(&mpi.failed) ? ANSWER_NS : INT64_MAX, text);
}

/* ---- channels, on the thread ----------------------------------------------------------------------------------------
 */

static void put_away(channel_state *l)
{
    channel_state **at = &mpi.busy;
    while (*at != NULL && *at != l)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = l->next;
    dsc_mpi_done(&l->order);
}

/* Requests continue. The waiting thread gets the reason and decides when to give up. */
static void fail_channel(channel_state *l, int code, const char *call)
{
    if (!atomic_load(&l->failed) && check(code, call, l->text) != 0)
        atomic_store(&l->failed, true);
}

static int grow(channel_state *l, int count)
{
    if (count <= l->capacity)
        return 0;
    int capacity = l->capacity > 0 ? l->capacity : 64;
    while (capacity < count)
        capacity *= 2;
    void *request = realloc(l->request, (size_t)capacity * sizeof *l->request);
    if (request != NULL)
        l->request = request;
    void *status = realloc(l->status, (size_t)capacity * sizeof *l->status);
    if (status != NULL)
        l->status = status;
    int *owner = realloc(l->owner, (size_t)capacity * sizeof *l->owner);
    if (owner != NULL)
        l->owner = owner;
    int *done = realloc(l->done, (size_t)capacity * sizeof *l->done);
    if (done != NULL)
        l->done = done;
    if (request == NULL || status == NULL || owner == NULL || done == NULL)
        return 1;
    l->capacity = capacity;
    return 0;
}

static int64_t pieces_of(const dsc_mpi_part *part)
{
    return part->count > 0 ? (part->count + PIECE_BYTES - 1) / PIECE_BYTES : 1;
}

static void begin_part(channel_state *l, int index)
{
    const dsc_mpi_part *part = &l->part[index];
    for (int64_t piece = 0; piece < pieces_of(part); piece++) {
        const int64_t at = piece * PIECE_BYTES, rest = part->count - at;
        const int bytes = (int)(rest < PIECE_BYTES ? rest : PIECE_BYTES);
        MPI_Request *request = &l->request[l->count];
        *request = MPI_REQUEST_NULL;
        l->owner[l->count++] = index;
        if (part->in != NULL)
            fail_channel(l, MPI_Irecv((char *)part->in + at, bytes, MPI_BYTE, part->peer, 0, l->comm, request),
                         "MPI_Irecv");
        else
            fail_channel(l, MPI_Isend((const char *)part->out + at, bytes, MPI_BYTE, part->peer, 0, l->comm, request),
                         "MPI_Isend");
    }
}

static void begin_channel(dsc_mpi_order *order)
{
    channel_state *l = (channel_state *)order;
    l->next = mpi.busy;
    mpi.busy = l;
    l->count = 0;
    if (grow(l, (int)atomic_load(&l->left)) != 0) {
        snprintf(l->text, sizeof l->text, "out of host memory");
        atomic_store(&l->failed, true);
        return;
    }
    for (int i = 0; i < l->part_count; i++)
        begin_part(l, i);
}

static void count_done(channel_state *l, int arrived)
{
    for (int i = 0; i < arrived; i++) {
        const int part = l->owner[l->done[i]];
        atomic_fetch_sub_explicit(&l->open[l->part[part].peer], 1, memory_order_relaxed);
        if (part < l->first_count)
            atomic_fetch_sub_explicit(&l->first_left, 1, memory_order_release);
    }
    atomic_fetch_sub_explicit(&l->left, arrived, memory_order_release);
}

static void look_at(channel_state *l)
{
    int arrived = 0;
    const int code = l->count > 0 ? MPI_Testsome(l->count, l->request, &arrived, l->done, l->status) : MPI_SUCCESS;
    if (arrived == MPI_UNDEFINED || (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS))
        arrived = 0;
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < arrived; i++)
        fail_channel(l, l->status[i].MPI_ERROR, "MPI_Testsome");
    if (code != MPI_ERR_IN_STATUS)
        fail_channel(l, code, "MPI_Testsome");
    count_done(l, arrived);
    if (atomic_load_explicit(&l->left, memory_order_relaxed) == 0)
        put_away(l);
}

static bool look(void)
{
    for (channel_state *l = mpi.busy, *next; l != NULL; l = next) {
        next = l->next;
        look_at(l);
    }
    return mpi.busy != NULL;
}

static int give_up_answer(question *q)
{
    channel_state *l = &q->link->channel[q->channel];
    for (int i = 0; i < l->count; i++)
        if (l->request[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&l->request[i]);
            MPI_Request_free(&l->request[i]);
        }
    l->count = 0;
    put_away(l);
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static MPI_Comm *comm_of(question *q)
{
    return q->channel < 0 ? &q->link->control : &q->link->channel[q->channel].comm;
}

static int begin_comm(question *q)
{
    char *text = q->text;
    TRY(MPI_Comm_idup(MPI_COMM_WORLD, comm_of(q), &q->link->opening));
    return 0;
}

static int test_comm(question *q)
{
    char *text = q->text;
    TRY(MPI_Test(&q->link->opening, &q->arrived, MPI_STATUS_IGNORE));
    if (q->arrived)
        TRY(MPI_Comm_set_errhandler(*comm_of(q), MPI_ERRORS_RETURN));
    return 0;
}

/* All processes come to this; who is there first waits outside of MPI. */
static int open_comm(dsc_mpi_link *link, int index, int64_t until_ns, char *text)
{
    question q = { .link = link, .channel = index };
    int rc = ask(&q, begin_comm, ANSWER_NS, text);
    if (rc != 0)
        return rc;
    while (!q.arrived) {
        rc = ask(&q, test_comm, ANSWER_NS, text);
        if (rc != 0)
            return rc;
        if (!q.arrived && dsc_mpi_clock_ns() > until_ns) {
            snprintf(text, DSC_MPI_TEXT, "rank %d waited for the other ranks of %d, and some did not come in time",
                     link->rank, link->size);
            return DSC_MPI_LATE;
        }
        if (!q.arrived)
            sched_yield();
    }
    return 0;
}

/* The first open decides which thread calls MPI. */
static int start(bool one_thread, char *text)
{
    pthread_mutex_lock(&mpi.lock);
    const int rc = mpi.started ? 0 : dsc_mpi_thread_start(&mpi.thread, one_thread, look);
    mpi.started = mpi.started || rc == 0;
    pthread_mutex_unlock(&mpi.lock);
    if (rc != 0)
        snprintf(text, DSC_MPI_TEXT, "no thread for MPI: %s", strerror(rc));
    else if (mpi.thread.callers && !one_thread)
        snprintf(text, DSC_MPI_TEXT, "this process calls MPI from the thread that opened its first communicator, and "
                                     "the next is to be called from several; open that one first");
    return rc != 0 || (mpi.thread.callers && !one_thread);
}

static int count_link(question *q)
{
    mpi.open_links++;
    return 0;
}

static int make_link(int rank, int size, int channel_count, dsc_mpi_link **out, char *text)
{
    dsc_mpi_link *link = channel_count <= CHANNELS_MAX ? calloc(1, sizeof *link) : NULL;
    *out = link;
    for (int i = 0; link != NULL && i < channel_count; i++) {
        link->channel[i].order.run = begin_channel;
        link->channel[i].open = calloc((size_t)size, sizeof *link->channel[i].open);
        if (link->channel[i].open == NULL)
            link = NULL;
    }
    if (link == NULL) {
        snprintf(text, DSC_MPI_TEXT, "out of host memory");
        return 1;
    }
    link->rank = rank;
    link->size = size;
    link->channel_count = channel_count;
    return 0;
}

/* Communicators are freed by all or not at all, and nobody waits here: they stay until the process leaves MPI. */
static int close_answer(question *q)
{
    dsc_mpi_link *link = q->link;
    for (q->channel = 0; q->channel < link->channel_count; q->channel++) {
        channel_state *l = &link->channel[q->channel];
        give_up_answer(q);
        free(l->request);
        free(l->status);
        free(l->owner);
        free(l->done);
        free(l->open);
    }
    mpi.open_links--;
    int arrived = 0;
    MPI_Status status[CONTROL_MAX]; /* MPICH's header says of what ignores them that it is too short */
    if (MPI_Testall(link->sent_count, link->sent, &arrived, status) != MPI_SUCCESS || !arrived)
        return 0; /* messages under way are read from this memory */
    free(link);
    return 0;
}

static void close_link(dsc_mpi_link *link, bool failed)
{
    char text[DSC_MPI_TEXT];
    question q = { .link = link };
    if (failed)
        atomic_store(&mpi.failed, true);
    ask(&q, close_answer, ANSWER_NS, text);
}

static int open_link(int rank, int size, int channel_count, bool one_thread, int64_t timeout_ns, dsc_mpi_link **out,
                     char *text)
{
    const int64_t until_ns = dsc_mpi_clock_ns() + timeout_ns;
    question q = { .rank = rank, .size = size };
    dsc_mpi_link *link = NULL;
    if (start(one_thread, text) != 0)
        return 1;
    int rc = ask(&q, check_rank, timeout_ns, text);
    if (rc != 0)
        return rc;
    if (make_link(rank, size, channel_count, &link, text) != 0 || ask(&q, count_link, ANSWER_NS, text) != 0)
        return 1;
    for (int i = -1; i < channel_count; i++) {
        rc = open_comm(link, i, until_ns, text);
        if (rc != 0) {
            atomic_store(&mpi.failed, true); /* the link stays, MPI may still write to it */
            return rc;
        }
    }
    *out = link;
    return 0;
}

/* ---- channels, for everybody ----------------------------------------------------------------------------------------
 */

static int begin(dsc_mpi_link *link, int index, const dsc_mpi_part *part, int count, int first, char *text)
{
    channel_state *l = &link->channel[index];
    int64_t pieces = 0, first_pieces = 0;
    for (int r = 0; r < link->size; r++)
        atomic_store_explicit(&l->open[r], 0, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        pieces += pieces_of(&part[i]);
        first_pieces += i < first ? pieces_of(&part[i]) : 0;
        atomic_fetch_add_explicit(&l->open[part[i].peer], (int)pieces_of(&part[i]), memory_order_relaxed);
    }
    l->part = part;
    l->part_count = count;
    l->first_count = first;
    atomic_store(&l->left, pieces);
    atomic_store(&l->first_left, (int)first_pieces);
    atomic_store(&l->failed, false);
    if (dsc_mpi_post(&mpi.thread, &l->order))
        return 0;
    snprintf(text, DSC_MPI_TEXT, ELSEWHERE);
    return 1;
}

static int wait_channel(dsc_mpi_link *link, int index, int64_t ns, dsc_mpi_progress *out, char *text)
{
    channel_state *l = &link->channel[index];
    dsc_mpi_wait(&mpi.thread, &l->order, ns);
    const bool failed = atomic_load(&l->failed);
    out->first_left = atomic_load_explicit(&l->first_left, memory_order_acquire);
    out->left = atomic_load_explicit(&l->left, memory_order_acquire);
    if (failed)
        memcpy(text, l->text, sizeof l->text);
    return failed;
}

static void open_with(dsc_mpi_link *link, int index, bool *open)
{
    for (int r = 0; r < link->size; r++)
        open[r] = atomic_load(&link->channel[index].open[r]) > 0;
}

static void give_up(dsc_mpi_link *link, int index)
{
    char text[DSC_MPI_TEXT];
    question q = { .link = link, .channel = index };
    ask(&q, give_up_answer, ANSWER_NS, text);
}

/* ---- control messages -------------------------------------------------------------------------------------------- */

static int tell_answer(question *q)
{
    dsc_mpi_link *link = q->link;
    for (int r = 0; r < link->size; r++) {
        const int i = link->sent_count;
        if (r == link->rank || i == CONTROL_MAX)
            continue;
        memcpy(link->message[i], q->message, (size_t)q->bytes);
        if (MPI_Isend(link->message[i], q->bytes, MPI_BYTE, r, 0, link->control, &link->sent[i]) == MPI_SUCCESS)
            link->sent_count++;
    }
    return 0;
}

static int tell(dsc_mpi_link *link, const void *message, int bytes)
{
    char text[DSC_MPI_TEXT];
    question q = { .link = link, .bytes = bytes };
    if (bytes > CONTROL_BYTES)
        return 1;
    memcpy(q.message, message, (size_t)bytes);
    return ask(&q, tell_answer, ANSWER_NS, text);
}

static int listen_answer(question *q)
{
    int there = 0, count = 0;
    char *text = q->text;
    MPI_Message message;
    MPI_Status status;
    q->from = -1;
    TRY(MPI_Improbe(MPI_ANY_SOURCE, 0, q->link->control, &there, &message, &status));
    if (!there)
        return 0;
    if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count != q->bytes)
        return 1;
    TRY(MPI_Mrecv(q->message, q->bytes, MPI_BYTE, &message, &status));
    q->from = status.MPI_SOURCE;
    return 0;
}

static int listen(dsc_mpi_link *link, void *message, int bytes, int *from)
{
    char text[DSC_MPI_TEXT];
    question q = { .link = link, .bytes = bytes };
    const int rc = bytes > CONTROL_BYTES ? 1 : ask(&q, listen_answer, ANSWER_NS, text);
    *from = -1;
    if (rc != 0)
        return rc != UNANSWERED;
    memcpy(message, q.message, (size_t)bytes);
    *from = q.from;
    return 0;
}

__attribute__((visibility("default"))) const dsc_mpi_api *dsc_mpi_api_get(void);
const dsc_mpi_api *dsc_mpi_api_get(void)
{
    static const dsc_mpi_api api = { .version = DSC_MPI_API_VERSION,
                                     .table_bytes = sizeof api,
                                     .build = DSC_VERSION_TEXT,
                                     .open = open_link,
                                     .close = close_link,
                                     .begin = begin,
                                     .wait = wait_channel,
                                     .open_with = open_with,
                                     .give_up = give_up,
                                     .tell = tell,
                                     .listen = listen };
    return &api;
}
