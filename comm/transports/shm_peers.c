/* shm_peers.c - are the processes of the other ranks still there, and may their memory be read?
 *
 * A pidfd becomes readable the moment its process ends, also while nobody has reaped it. Between opening one and the
 * peer's sign-in the number could have been given to another process, so its start time is compared. Where pidfds are
 * not allowed, /proc says the same a little slower. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm/transports/shm_internal.h"

/* State letter and start time (clock ticks since boot) of a process; false when /proc does not know it. */
static bool proc_stat(int32_t pid, char *state, uint64_t *start_time)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    /* "pid (name) state ppid ...": the name may hold anything, so start after its last bracket; start time is field 22.
     */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return false;
    *state = at[2];
    at += 2;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
    }
    *start_time = strtoull(at, NULL, 10);
    return true;
}

void dsc_shm_sign_in(dsc_shm *shm)
{
    char state;
    uint64_t start_time = 0;
    const int32_t pid = (int32_t)getpid();
    if (!proc_stat(pid, &state, &start_time))
        start_time = 0;
    dsc_shm_barrier_register(&shm->barrier, pid, start_time);
}

/* Slow path: also right where pidfds are refused. */
static bool alive_by_proc(const dsc_shm_peer *peer)
{
    char state;
    uint64_t start_time;
    if (peer->start_time != 0)
        return proc_stat(peer->pid, &state, &start_time) && start_time == peer->start_time && state != 'Z' &&
               state != 'X';
    return kill(peer->pid, 0) == 0 || errno != ESRCH;
}

bool dsc_shm_alive(void *user, int32_t rank)
{
    const dsc_shm_peer *peer = &((dsc_shm *)user)->peer[rank];
    if (!peer->watched)
        return true;
    if (peer->pidfd < 0)
        return alive_by_proc(peer);
    struct pollfd fd = { .fd = peer->pidfd, .events = POLLIN };
    return poll(&fd, 1, 0) != 1;
}

dsc_status dsc_shm_watch_peers(dsc_shm *shm, dsc_error *err)
{
    for (int32_t r = 0; r < shm->size; r++) {
        dsc_shm_peer *peer = &shm->peer[r];
        peer->pid = dsc_shm_barrier_pid(&shm->barrier, r, &peer->start_time);
        if (peer->pid == (int32_t)getpid())
            continue; /* a thread of this process ends with it */
        peer->watched = true;
        peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
        if (peer->pidfd >= 0)
            fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
        if (!alive_by_proc(peer))
            return dsc_shm_barrier_fail(&shm->barrier, DSC_ERR_PEER, r, err,
                                        "rank %d (pid %d) is gone, or in another process namespace than rank %d", r,
                                        peer->pid, shm->rank);
    }
    shm->barrier.user = shm;
    shm->barrier.alive = dsc_shm_alive;
    return DSC_OK;
}

void dsc_shm_unwatch_peers(dsc_shm *shm)
{
    for (int32_t r = 0; r < shm->size; r++) {
        if (shm->peer[r].pidfd >= 0)
            close(shm->peer[r].pidfd);
        shm->peer[r].pidfd = -1;
    }
}

#define PROBE_WORD UINT64_C(0xd5c0ffee0badcafe)

static bool can_read(const dsc_shm *shm, int32_t rank, uint64_t address)
{
    uint64_t word = 0;
    const uintptr_t at = (uintptr_t)address;
    struct iovec mine = { .iov_base = &word, .iov_len = sizeof word }, theirs = { .iov_len = sizeof word };
    memcpy(&theirs.iov_base, &at, sizeof at);
    return process_vm_readv(shm->peer[rank].pid, &mine, 1, &theirs, 1, 0) == (ssize_t)sizeof word &&
           word == PROBE_WORD + (uint64_t)rank;
}

/* Everybody shows a word and tries to read everybody's; all use the way only when it works for all, because a sender
 * decides for its readers. Containers and kernels may forbid it: then large messages go through the staging. */
dsc_status dsc_shm_probe(dsc_shm *shm, dsc_error *err)
{
    volatile uint64_t word = PROBE_WORD + (uint64_t)shm->rank;
    dsc_shm_barrier_entry entry = { .call.op = DSC_COMM_BARRIER, .ptr = (uintptr_t)&word };
    DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, 0, &entry, err));
    bool works = true;
    for (int32_t r = 0; r < shm->size && works; r++)
        works = can_read(shm, r, dsc_shm_barrier_peer_entry(&shm->barrier, 0, r)->ptr);
    entry.stride = works;
    DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, 0, &entry, err));
    shm->reads_peers = true;
    for (int32_t r = 0; r < shm->size; r++)
        shm->reads_peers = shm->reads_peers && dsc_shm_barrier_peer_entry(&shm->barrier, 0, r)->stride == 1;
    return DSC_OK;
}
