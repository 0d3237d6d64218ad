/* crash_fs.c - see crash_fs.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/crash_fs.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rng.h"
#include "tests/support/ckpt_world.h"

#define NODES_MAX 400
#define ENTRIES_MAX 32
#define PENDING_MAX 512
#define SECTOR 512

typedef struct call {
    cfs_op op;
    char path[512], other[512]; /* below root */
    int64_t offset;
    char *data;
    size_t bytes;
} call;

struct cfs_log {
    pthread_mutex_t mutex;
    char root[512];
    call *calls;
    int64_t count, room;
    struct tree *start;
};

/* ---- the model ---- */

typedef struct names {
    int count;
    struct { char name[64]; int node; } entry[ENTRIES_MAX];
} names;

typedef struct bytes_of {
    char *data;
    int64_t size;
} bytes_of;

/* One change that is not durable yet: bytes or the size of a file, or a folder's name that is gone, new, or both at
 * once. */
typedef struct pending {
    int64_t offset; /* offset of a write; the size of a truncation */
    const char *data; /* borrowed from the log; NULL: truncation */
    size_t bytes;
    char gone[64], added[64];
    int node;
} pending;

typedef struct node {
    bool is_dir;
    names durable_names, names;
    bytes_of durable;
    pending *pending;
    int pending_count;
} node;

typedef struct tree {
    int count;
    node node[NODES_MAX]; /* [0] is the root */
} tree;

static void must(bool ok, const char *what)
{
    if (!ok)
        cw_fail(what, __FILE__, __LINE__, "crash_fs");
}

static void keep_name(char out[64], const char *name)
{
    must(strlen(name) < 64, name);
    memcpy(out, name, strlen(name) + 1);
}

static int *find_name(names *n, const char *name)
{
    for (int i = 0; i < n->count; i++)
        if (strcmp(n->entry[i].name, name) == 0)
            return &n->entry[i].node;
    return NULL;
}

static void remove_name(names *n, const char *name)
{
    for (int i = 0; i < n->count; i++)
        if (strcmp(n->entry[i].name, name) == 0) {
            n->entry[i] = n->entry[--n->count];
            return;
        }
}

static void set_name(names *n, const char *name, int node_index)
{
    remove_name(n, name);
    must(n->count < ENTRIES_MAX, "entries");
    keep_name(n->entry[n->count].name, name);
    n->entry[n->count++].node = node_index;
}

static int add_node(tree *t, bool is_dir)
{
    must(t->count < NODES_MAX, "nodes");
    t->node[t->count] = (node){ .is_dir = is_dir };
    return t->count++;
}

/* The folder of a path and the last name of it ("" is the root itself). */
static int folder_of(tree *t, const char *path, char name[64])
{
    int at = 0;
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *slash; (slash = strchr(rest, '/')) != NULL; rest = slash + 1) {
        *slash = 0;
        const int *next = find_name(&t->node[at].names, rest);
        must(next != NULL, path);
        at = *next;
    }
    keep_name(name, rest);
    return at;
}

static int node_of(tree *t, const char *path)
{
    char name[64];
    const int folder = folder_of(t, path, name);
    if (name[0] == 0)
        return folder;
    const int *found = find_name(&t->node[folder].names, name);
    must(found != NULL, path);
    return *found;
}

static void set_size(bytes_of *b, int64_t size)
{
    if (size > b->size) {
        b->data = realloc(b->data, (size_t)size);
        must(b->data != NULL, "memory");
        memset(b->data + b->size, 0, (size_t)(size - b->size));
    }
    b->size = size;
}

static void set_bytes(bytes_of *b, int64_t offset, const char *data, size_t bytes)
{
    if (b->size < offset + (int64_t)bytes)
        set_size(b, offset + (int64_t)bytes);
    memcpy(b->data + offset, data, bytes);
}

static pending *add_pending(node *n)
{
    if (n->pending == NULL)
        n->pending = calloc(PENDING_MAX, sizeof *n->pending);
    must(n->pending != NULL && n->pending_count < PENDING_MAX, "pending");
    pending *p = &n->pending[n->pending_count++];
    *p = (pending){ .node = -1 };
    return p;
}

/* gone and added may be NULL. */
static void change_names(node *folder, const char *gone, const char *added, int index)
{
    pending *p = add_pending(folder);
    p->node = index;
    keep_name(p->gone, gone != NULL ? gone : "");
    keep_name(p->added, added != NULL ? added : "");
    if (gone != NULL)
        remove_name(&folder->names, gone);
    if (added != NULL)
        set_name(&folder->names, added, index);
}

static void make_durable(node *n)
{
    n->durable_names = n->names;
    for (int i = 0; i < n->pending_count; i++) {
        const pending *p = &n->pending[i];
        if (n->is_dir)
            continue;
        if (p->data == NULL)
            set_size(&n->durable, p->offset);
        else
            set_bytes(&n->durable, p->offset, p->data, p->bytes);
    }
    n->pending_count = 0;
}

static void replay_call(tree *t, const call *c)
{
    char name[64], other[64];
    switch (c->op) {
    case CFS_CREATE:
    case CFS_MKDIR: {
        node *folder = &t->node[folder_of(t, c->path, name)];
        if (find_name(&folder->names, name) == NULL)
            change_names(folder, NULL, name, add_node(t, c->op == CFS_MKDIR));
        break;
    }
    case CFS_WRITE:
    case CFS_TRUNCATE: {
        pending *p = add_pending(&t->node[node_of(t, c->path)]);
        p->offset = c->offset;
        p->data = c->op == CFS_WRITE ? c->data : NULL;
        p->bytes = c->bytes;
        break;
    }
    case CFS_FSYNC: make_durable(&t->node[node_of(t, c->path)]); break;
    case CFS_RENAME: {
        const int folder = folder_of(t, c->path, name), moved = node_of(t, c->path);
        must(folder_of(t, c->other, other) == folder, "a rename inside one folder");
        change_names(&t->node[folder], name, other, moved);
        break;
    }
    case CFS_REMOVE: change_names(&t->node[folder_of(t, c->path, name)], name, NULL, -1); break;
    case CFS_MARK: break;
    }
}

/* ---- crashes ---- */

typedef struct dice {
    uint64_t seed, at;
    uint32_t chance; /* of 4, that a thing is there: some crashes keep nearly all, some nearly nothing */
} dice;

static bool kept(dice *d)
{
    if (d->seed < 2)
        return d->seed == 1;
    return dsc_rng_u32(d->seed, d->at++, 0) % 4 < d->chance;
}

static void crash_file(node *n, dice *d)
{
    for (int i = 0; i < n->pending_count; i++) {
        const pending *p = &n->pending[i];
        if (p->data == NULL && kept(d))
            set_size(&n->durable, p->offset);
        for (size_t at = 0; p->data != NULL && at < p->bytes;) {
            const size_t sector_end = SECTOR - (size_t)(p->offset + (int64_t)at) % SECTOR;
            const size_t count = sector_end < p->bytes - at ? sector_end : p->bytes - at;
            if (kept(d))
                set_bytes(&n->durable, p->offset + (int64_t)at, p->data + at, count);
            at += count;
        }
    }
}

static void crash_folder(node *n, dice *d)
{
    for (int i = 0; i < n->pending_count; i++) {
        const pending *p = &n->pending[i];
        if (!kept(d))
            continue;
        if (p->gone[0] != 0)
            remove_name(&n->durable_names, p->gone);
        if (p->added[0] != 0)
            set_name(&n->durable_names, p->added, p->node);
    }
}

static void write_out(tree *t, int index, const char *path)
{
    const node *n = &t->node[index];
    if (!n->is_dir) {
        cw_write(path, n->durable.data != NULL ? n->durable.data : "", (size_t)n->durable.size);
        return;
    }
    must(mkdir(path, 0755) == 0, path);
    for (int i = 0; i < n->durable_names.count; i++) {
        char inside[1024];
        snprintf(inside, sizeof inside, "%s/%s", path, n->durable_names.entry[i].name);
        write_out(t, n->durable_names.entry[i].node, inside);
    }
}

static void free_tree(tree *t)
{
    for (int i = 0; i < t->count; i++) {
        free(t->node[i].durable.data);
        free(t->node[i].pending);
    }
    free(t);
}

static tree *copy_tree(const tree *from)
{
    tree *t = malloc(sizeof *t);
    must(t != NULL, "memory");
    memcpy(t, from, sizeof *t);
    for (int i = 0; i < t->count; i++) {
        const bytes_of *b = &from->node[i].durable;
        t->node[i].durable = (bytes_of){ 0 };
        if (b->size > 0)
            set_bytes(&t->node[i].durable, 0, b->data, (size_t)b->size);
    }
    return t;
}

void cfs_crash(cfs_log *log, int64_t count, uint64_t seed, const char *out_dir)
{
    tree *t = copy_tree(log->start);
    dice d = { .seed = seed, .chance = dsc_rng_u32(seed, 0, 1) % 5 };
    must(count <= log->count, "count");
    for (int64_t i = 0; i < count; i++)
        replay_call(t, &log->calls[i]);
    for (int i = 0; i < t->count; i++)
        t->node[i].is_dir ? crash_folder(&t->node[i], &d) : crash_file(&t->node[i], &d);
    cw_remove(out_dir);
    write_out(t, 0, out_dir);
    free_tree(t);
}

/* ---- the log ---- */

/* The folder as it is, all of it durable. */
static void take_in(tree *t, int index, const char *path)
{
    DIR *dir = opendir(path);
    must(dir != NULL, path);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char inside[1024];
        snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        must(lstat(inside, &st) == 0, inside);
        const int child = add_node(t, S_ISDIR(st.st_mode));
        set_name(&t->node[index].names, entry->d_name, child);
        if (S_ISDIR(st.st_mode)) {
            take_in(t, child, inside);
        } else {
            size_t bytes;
            t->node[child].durable.data = cw_read(inside, &bytes);
            t->node[child].durable.size = (int64_t)bytes;
        }
    }
    closedir(dir);
    t->node[index].durable_names = t->node[index].names;
}

cfs_log *cfs_open(const char *root)
{
    cfs_log *log = calloc(1, sizeof *log);
    must(log != NULL, "memory");
    log->start = calloc(1, sizeof *log->start);
    must(log->start != NULL, "memory");
    pthread_mutex_init(&log->mutex, NULL);
    snprintf(log->root, sizeof log->root, "%s", root);
    take_in(log->start, add_node(log->start, true), root);
    return log;
}

void cfs_close(cfs_log *log)
{
    for (int64_t i = 0; i < log->count; i++)
        free(log->calls[i].data);
    free(log->calls);
    free_tree(log->start);
    pthread_mutex_destroy(&log->mutex);
    free(log);
}

/* False: outside. */
static bool below_root(const cfs_log *log, const char *path, char out[512])
{
    const size_t bytes = strlen(log->root);
    if (strncmp(path, log->root, bytes) != 0 || (path[bytes] != '/' && path[bytes] != 0))
        return false;
    path += bytes;
    snprintf(out, 512, "%s", path + strspn(path, "/"));
    return true;
}

void cfs_note(cfs_log *log, cfs_op op, const char *path, const char *other, int64_t offset, const void *data,
              size_t bytes)
{
    call c = { .op = op, .offset = offset, .bytes = bytes };
    if (op != CFS_MARK && !below_root(log, path, c.path))
        return;
    if (op == CFS_RENAME)
        must(below_root(log, other, c.other), "a rename out of the folder");
    if (op == CFS_WRITE) {
        c.data = malloc(bytes > 0 ? bytes : 1);
        must(c.data != NULL, "memory");
        memcpy(c.data, data, bytes);
    }
    pthread_mutex_lock(&log->mutex);
    if (log->count == log->room) {
        log->room = log->room == 0 ? 256 : 2 * log->room;
        log->calls = realloc(log->calls, (size_t)log->room * sizeof *log->calls);
        must(log->calls != NULL, "memory");
    }
    log->calls[log->count++] = c;
    pthread_mutex_unlock(&log->mutex);
}

int64_t cfs_count(cfs_log *log) { return log->count; }

int64_t cfs_mark_before(cfs_log *log, int64_t count)
{
    for (int64_t i = count; i-- > 0;)
        if (log->calls[i].op == CFS_MARK)
            return log->calls[i].offset;
    return 0;
}
