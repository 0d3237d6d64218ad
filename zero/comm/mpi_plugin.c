/* mpi_plugin.c - lib/dsc/libdsc_mpi.so: mpi_api.h in terms of MPI 3.
 *
 * Every lane is a communicator of its own with errors returned. A long message goes in parts: MPI says nothing of one
 * before it is done, and who waits must see that it gets on.
 *
 * MPI is called by one thread at a time (MPI_THREAD_SERIALIZED): by whoever has something to send or waits, under one
 * lock for the process, for no longer than MPI needs to begin or to look; nobody waits inside. A thread of its own for
 * all calls would do with less (FUNNELED), but then each call has to wake it and be woken, which takes longer than a
 * short message.
 * MPI is initialised at the first open and left when the process ends, since it cannot be entered twice; a process that
 * failed leaves without it, which tells mpirun to end the others. SPDX-License-Identifier: Apache-2.0 */
#include "zero/comm/mpi_api.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANES_MAX 16
#define WORDS_MAX 64 /* told and not known to have arrived */
#define WORD_BYTES 512
#define PART_BYTES (INT64_C(16) << 20)

typedef struct lane {
    MPI_Comm comm;
    MPI_Request *request;
    int *peer;
    int count, room;
    int left; /* of `count`, not done */
    int *done;
} lane;

struct dsc_mpi_link {
    int rank, size, lane_count;
    lane lane[LANES_MAX];
    MPI_Comm words;
    int told_count;
    MPI_Request told[WORDS_MAX];
    char word[WORDS_MAX][WORD_BYTES];
};

/* Process-wide as MPI itself is: who calls it, was it entered by us, and may it be left in order. */
static struct {
    pthread_mutex_t lock;
    bool entered, failed;
} mpi = { .lock = PTHREAD_MUTEX_INITIALIZER };

__attribute__((destructor)) static void leave_mpi(void)
{
    int finalized = 0;
    if (!mpi.entered || mpi.failed || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized)
        return;
    MPI_Finalize();
}

static int check(int code, const char *call, char *text)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, why, &length);
    snprintf(text, DSC_MPI_TEXT, "%s: %.200s", call, why);
    return 1;
}
#define TRY(call) \
    do { \
        if (check(call, #call, text) != 0) \
            return 1; \
    } while (0)

/* The value of a call that is alone in MPI meanwhile. */
#define ALONE(call) (pthread_mutex_lock(&mpi.lock), unlock(call))
static int unlock(int result)
{
    pthread_mutex_unlock(&mpi.lock);
    return result;
}

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
        TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
        mpi.entered = true;
    }
    TRY(MPI_Query_thread(&level));
    if (level >= MPI_THREAD_SERIALIZED)
        return 0;
    snprintf(text, DSC_MPI_TEXT, "this MPI allows calls of one thread only (MPI_THREAD_SERIALIZED is needed)");
    return 1;
}

/* All processes come to this; who is there first waits outside of MPI. */
static int open_comm(MPI_Comm *out, char *text)
{
    MPI_Request request;
    int done = 0;
    TRY(ALONE(MPI_Comm_idup(MPI_COMM_WORLD, out, &request)));
    while (!done) {
        TRY(ALONE(MPI_Test(&request, &done, MPI_STATUS_IGNORE)));
        if (!done)
            sched_yield();
    }
    TRY(ALONE(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN)));
    return 0;
}

static void close_link(dsc_mpi_link *link, bool failed);

static int open_lanes(dsc_mpi_link *link, int lane_count, char *text)
{
    link->words = MPI_COMM_NULL;
    if (open_comm(&link->words, text) != 0)
        return 1;
    for (; link->lane_count < lane_count; link->lane_count++) {
        link->lane[link->lane_count].comm = MPI_COMM_NULL;
        if (open_comm(&link->lane[link->lane_count].comm, text) != 0)
            return 1;
    }
    return 0;
}

/* MPI agrees that this is rank `rank` of `size`. */
static int check_place(int rank, int size, char *text)
{
    int mpi_rank = -1, mpi_size = -1;
    if (enter(text) != 0)
        return 1;
    TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TRY(MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank));
    TRY(MPI_Comm_size(MPI_COMM_WORLD, &mpi_size));
    if (mpi_rank != rank || mpi_size != size) {
        snprintf(text, DSC_MPI_TEXT, "MPI says rank %d of %d, the job %d of %d; start the ranks with mpirun", mpi_rank,
                 mpi_size, rank, size);
        return 1;
    }
    return 0;
}

static int open_link(int rank, int size, int lane_count, dsc_mpi_link **out, char *text)
{
    if (ALONE(check_place(rank, size, text)) != 0)
        return 1;
    dsc_mpi_link *link = lane_count <= LANES_MAX ? calloc(1, sizeof *link) : NULL;
    if (link == NULL) {
        snprintf(text, DSC_MPI_TEXT, "out of host memory");
        return 1;
    }
    link->rank = rank;
    link->size = size;
    if (open_lanes(link, lane_count, text) != 0) {
        close_link(link, true);
        return 1;
    }
    *out = link;
    return 0;
}

static void give_up_unlocked(dsc_mpi_link *link, int index)
{
    lane *l = &link->lane[index];
    for (int i = 0; i < l->count; i++)
        if (l->request[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&l->request[i]);
            MPI_Request_free(&l->request[i]);
        }
    l->count = l->left = 0;
}

/* Communicators are freed by all or not at all, and nobody waits here: they stay until the process leaves MPI. */
static void close_unlocked(dsc_mpi_link *link, bool failed)
{
    mpi.failed = mpi.failed || failed;
    for (int i = 0; i < link->lane_count; i++) {
        give_up_unlocked(link, i);
        free(link->lane[i].request);
        free(link->lane[i].peer);
        free(link->lane[i].done);
    }
    int arrived = 0;
    if (MPI_Testall(link->told_count, link->told, &arrived, MPI_STATUSES_IGNORE) != MPI_SUCCESS || !arrived)
        return; /* words on their way are read from this memory */
    free(link);
}

static int grow(lane *l, char *text)
{
    if (l->count < l->room)
        return 0;
    const int room = l->room > 0 ? 2 * l->room : 64;
    MPI_Request *request = realloc(l->request, (size_t)room * sizeof *request);
    if (request != NULL)
        l->request = request;
    int *peer = request != NULL ? realloc(l->peer, (size_t)room * sizeof *peer) : NULL;
    if (peer != NULL)
        l->peer = peer;
    int *done = peer != NULL ? realloc(l->done, (size_t)room * sizeof *done) : NULL;
    if (done == NULL) {
        snprintf(text, DSC_MPI_TEXT, "out of host memory");
        return 1;
    }
    l->done = done;
    l->room = room;
    return 0;
}

static int begin(dsc_mpi_link *link, int index, int peer, const void *out, void *in, int64_t count, char *text)
{
    lane *l = &link->lane[index];
    for (int64_t at = 0; at == 0 || at < count; at += PART_BYTES) {
        const int bytes = (int)(count - at < PART_BYTES ? count - at : PART_BYTES);
        if (grow(l, text) != 0)
            return 1;
        MPI_Request *request = &l->request[l->count];
        if (in != NULL)
            TRY(MPI_Irecv((char *)in + at, bytes, MPI_BYTE, peer, 0, l->comm, request));
        else
            TRY(MPI_Isend((const char *)out + at, bytes, MPI_BYTE, peer, 0, l->comm, request));
        l->peer[l->count++] = peer;
        l->left++;
    }
    return 0;
}

static int test_unlocked(dsc_mpi_link *link, int index, int *left, bool *open, char *text)
{
    lane *l = &link->lane[index];
    int arrived = 0;
    if (l->left > 0)
        TRY(MPI_Testsome(l->count, l->request, &arrived, l->done, MPI_STATUSES_IGNORE));
    l->left -= arrived;
    if (l->left == 0)
        l->count = 0;
    *left = l->left;
    if (open != NULL)
        memset(open, 0, (size_t)link->size * sizeof *open);
    for (int i = 0; i < l->count && open != NULL; i++)
        open[l->peer[i]] = open[l->peer[i]] || l->request[i] != MPI_REQUEST_NULL;
    return 0;
}

static void tell_unlocked(dsc_mpi_link *link, const void *word, int bytes)
{
    for (int r = 0; r < link->size; r++) {
        const int i = link->told_count;
        if (r == link->rank || i == WORDS_MAX || bytes > WORD_BYTES)
            continue;
        memcpy(link->word[i], word, (size_t)bytes);
        if (MPI_Isend(link->word[i], bytes, MPI_BYTE, r, 0, link->words, &link->told[i]) == MPI_SUCCESS)
            link->told_count++;
    }
}

static int listen_unlocked(dsc_mpi_link *link, void *word, int bytes, int *from)
{
    int there = 0, count = 0;
    MPI_Message message;
    MPI_Status status;
    *from = -1;
    if (MPI_Improbe(MPI_ANY_SOURCE, 0, link->words, &there, &message, &status) != MPI_SUCCESS)
        return 1;
    if (!there)
        return 0;
    if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count != bytes ||
        MPI_Mrecv(word, bytes, MPI_BYTE, &message, &status) != MPI_SUCCESS)
        return 1;
    *from = status.MPI_SOURCE;
    return 0;
}

/* ---- one call at a time ------------------------------------------------------------------------------------------ */

static void close_link(dsc_mpi_link *link, bool failed)
{
    pthread_mutex_lock(&mpi.lock);
    close_unlocked(link, failed);
    pthread_mutex_unlock(&mpi.lock);
}

static int send_message(dsc_mpi_link *link, int index, int to, const void *bytes, int64_t count, char *text)
{
    return ALONE(begin(link, index, to, bytes, NULL, count, text));
}

static int recv_message(dsc_mpi_link *link, int index, int from, void *bytes, int64_t count, char *text)
{
    return ALONE(begin(link, index, from, NULL, bytes, count, text));
}

static int test_lane(dsc_mpi_link *link, int index, int *left, bool *open, char *text)
{
    return ALONE(test_unlocked(link, index, left, open, text));
}

static void give_up(dsc_mpi_link *link, int index)
{
    pthread_mutex_lock(&mpi.lock);
    give_up_unlocked(link, index);
    pthread_mutex_unlock(&mpi.lock);
}

static void tell(dsc_mpi_link *link, const void *word, int bytes)
{
    pthread_mutex_lock(&mpi.lock);
    tell_unlocked(link, word, bytes);
    pthread_mutex_unlock(&mpi.lock);
}

static int listen(dsc_mpi_link *link, void *word, int bytes, int *from)
{
    return ALONE(listen_unlocked(link, word, bytes, from));
}

__attribute__((visibility("default"))) const dsc_mpi_api *dsc_mpi_api_get(void);
const dsc_mpi_api *dsc_mpi_api_get(void)
{
    static const dsc_mpi_api api = { .version = DSC_MPI_API_VERSION,
                                     .table_bytes = sizeof api,
                                     .build = DSC_VERSION_TEXT,
                                     .open = open_link,
                                     .close = close_link,
                                     .send = send_message,
                                     .recv = recv_message,
                                     .test = test_lane,
                                     .give_up = give_up,
                                     .tell = tell,
                                     .listen = listen };
    return &api;
}
