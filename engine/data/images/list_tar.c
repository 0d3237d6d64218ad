/* list_tar.c - samples of a tar shard, as webdataset writes it. Headers are read once; pictures later, by their place.
 *
 * POSIX ustar (IEEE Std 1003.1, pax), with the path of a pax header and GNU's long name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/data/images/decode.h"
#include "engine/data/images/list_internal.h"

enum { BLOCK = 512, NAME_BYTES = 1024, LONG_BYTES_MAX = 1 << 16, CLASS_BYTES_MAX = 32 };

typedef struct tar {
    dsc_image_list *list;
    const char *path;
    dsc_file file;
    int64_t bytes, at;
    int32_t root;
    char long_name[NAME_BYTES]; /* of the next member; "": its own */
    /* the sample */
    char key[NAME_BYTES];
    dsc_image_item item;
    bool has_picture, has_class;
} tar;

static dsc_status wrong(const tar *t, const char *what, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, t->path, "byte %lld: %s", (long long)t->at, what);
}

static bool is_zero(const uint8_t *block)
{
    for (int i = 0; i < BLOCK; i++)
        if (block[i] != 0)
            return false;
    return true;
}

/* Octal digits up to a space or a zero byte; -1: others. */
static int64_t number_of(const uint8_t *field, int bytes)
{
    int64_t value = 0;
    int at = 0, digits = 0;
    while (at < bytes && field[at] == ' ')
        at++;
    for (; at < bytes && field[at] >= '0' && field[at] <= '7'; at++, digits++)
        value = value * 8 + (field[at] - '0');
    return digits > 0 && (at == bytes || field[at] == ' ' || field[at] == 0) ? value : -1;
}

static bool sum_is_right(const uint8_t *block)
{
    int64_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return number_of(block + 148, 8) == sum;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static dsc_status end_sample(tar *t, dsc_error *err)
{
    if (t->key[0] == 0)
        return DSC_OK;
    if (!t->has_picture || !t->has_class)
        return DSC_FAIL(err, DSC_ERR_INPUT, t->path, "the sample \"%.200s\" has no %s; expected %s beside each other",
                        t->key, t->has_picture ? ".cls" : "picture", ".jpg, .png or .webp and .cls");
    DSC_TRY(dsc_image_list_item(t->list, &t->item, err));
    t->key[0] = 0;
    t->has_picture = t->has_class = false;
    t->item = (dsc_image_item) { .root = t->root };
    return DSC_OK;
}

static dsc_status take_class(tar *t, const char *name, int64_t offset, int64_t bytes, dsc_error *err)
{
    char text[CLASS_BYTES_MAX];
    if (t->has_class || bytes > CLASS_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, t->path, "\"%.200s\" is %s", name,
                        t->has_class ? "a second class of its sample" : "too long; expected the number of a class");
    DSC_TRY(dsc_io_read(t->list->io, &t->file, text, bytes, offset, err));
    t->has_class = true;
    if (!dsc_image_label_number(text, bytes, &t->item.label))
        return DSC_FAIL(err, DSC_ERR_INPUT, t->path, "\"%.200s\" is not the number of a class", name);
    return DSC_OK;
}

/* The key is the path up to the first dot of its last part. */
static dsc_status take_member(tar *t, const char *name, int64_t offset, int64_t bytes, dsc_error *err)
{
    const char *slash = strrchr(name, '/'), *dot = strchr(slash != NULL ? slash : name, '.');
    const char *base = slash != NULL ? slash + 1 : name;
    if (dot == NULL || dot == base) /* without an ending, or hidden */
        return DSC_OK;
    const size_t key_bytes = (size_t)(dot - name);
    if (strlen(t->key) != key_bytes || memcmp(t->key, name, key_bytes) != 0) {
        DSC_TRY(end_sample(t, err));
        memcpy(t->key, name, key_bytes);
        t->key[key_bytes] = 0;
    }
    if (strcasecmp(dot, ".cls") == 0)
        return take_class(t, name, offset, bytes, err);
    if (strrchr(name, '.') != dot || !dsc_image_name_is_picture(name))
        return DSC_OK;
    if (t->has_picture)
        return DSC_FAIL(err, DSC_ERR_INPUT, t->path, "\"%.200s\" is a second picture of its sample", name);
    t->has_picture = true;
    t->item.offset = offset;
    t->item.bytes = bytes;
    return dsc_image_list_text(t->list, name, (int64_t)strlen(name), &t->item.name, err);
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

/* The path among records "LENGTH KEY=VALUE\n". */
static dsc_status take_pax(tar *t, const char *text, int64_t bytes, dsc_error *err)
{
    for (int64_t at = 0; at < bytes;) {
        char *end = NULL;
        const int64_t length = strtoll(text + at, &end, 10);
        const int64_t head = end - (text + at);
        if (head < 1 || *end != ' ' || length <= head + 1 || length > bytes - at || text[at + length - 1] != '\n')
            return wrong(t, "a pax header with a record of a wrong length", err);
        const char *key = end + 1;
        const int64_t rest = length - head - 2; /* without the space and the end of the line */
        if (rest >= 5 && memcmp(key, "size=", 5) == 0)
            return wrong(t, "a member of 8 GiB or more; expected pictures", err);
        if (rest >= 5 && memcmp(key, "path=", 5) == 0) {
            if (rest - 5 >= NAME_BYTES)
                return wrong(t, "a name of 1024 bytes or more", err);
            memcpy(t->long_name, key + 5, (size_t)rest - 5);
            t->long_name[rest - 5] = 0;
        }
        at += length;
    }
    return DSC_OK;
}

static dsc_status take_long(tar *t, int type, int64_t offset, int64_t bytes, dsc_error *err)
{
    char *text = NULL;
    if (bytes > LONG_BYTES_MAX)
        return wrong(t, "an extended header of more than 64 KiB", err);
    DSC_TRY(dsc_alloc_zeroed(t->list->alloc, DSC_TAG_CONTROL, bytes + 1, 1, &text, err));
    dsc_status status = dsc_io_read(t->list->io, &t->file, text, bytes, offset, err);
    if (status == DSC_OK && type == 'x')
        status = take_pax(t, text, bytes, err);
    else if (status == DSC_OK && bytes > NAME_BYTES)
        status = wrong(t, "a name of 1024 bytes or more", err);
    else if (status == DSC_OK)
        snprintf(t->long_name, sizeof t->long_name, "%s", text);
    dsc_alloc_free(t->list->alloc, text);
    return status;
}

static void find_name(const tar *t, const uint8_t *block, char out[NAME_BYTES])
{
    const bool ustar = memcmp(block + 257, "ustar", 6) == 0 && block[345] != 0;
    if (t->long_name[0] != 0)
        snprintf(out, NAME_BYTES, "%s", t->long_name);
    else if (ustar)
        snprintf(out, NAME_BYTES, "%.155s/%.100s", (const char *)block + 345, (const char *)block);
    else
        snprintf(out, NAME_BYTES, "%.100s", (const char *)block);
}

static dsc_status take_block(tar *t, const uint8_t *block, dsc_error *err)
{
    char name[NAME_BYTES];
    const int64_t bytes = number_of(block + 124, 12), offset = t->at + BLOCK;
    const int type = block[156];
    if (!sum_is_right(block))
        return wrong(t,
                     memcmp(block, "\x1f\x8b", 2) == 0 ? "the shard is compressed by gzip; decompress it (gunzip FILE)"
                                                       : "not the header of a tar file",
                     err);
    if (bytes < 0 || bytes > t->bytes - offset)
        return wrong(t, "a member that is longer than the rest of the file (truncated?)", err);
    if (type == 'x' || type == 'L') {
        DSC_TRY(take_long(t, type, offset, bytes, err));
    } else if (type == '0' || type == 0) {
        find_name(t, block, name);
        t->long_name[0] = 0;
        DSC_TRY(take_member(t, name, offset, bytes, err));
    } else if (type == 'g' || type == '5') {
        t->long_name[0] = 0;
    } else {
        return wrong(t, "a link or a device; expected files", err);
    }
    t->at = offset + (bytes + BLOCK - 1) / BLOCK * BLOCK;
    return DSC_OK;
}

static dsc_status take_all(tar *t, dsc_error *err)
{
    uint8_t block[BLOCK];
    const int64_t before = t->list->count;
    DSC_TRY(dsc_io_size(t->list->io, &t->file, &t->bytes, err));
    while (t->at + BLOCK <= t->bytes) {
        DSC_TRY(dsc_io_read(t->list->io, &t->file, block, BLOCK, t->at, err));
        if (is_zero(block))
            break;
        DSC_TRY(take_block(t, block, err));
    }
    if (t->at + BLOCK > t->bytes)
        return wrong(t, "the shard has no end (truncated?)", err);
    DSC_TRY(end_sample(t, err));
    return t->list->count > before ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, t->path, "the shard has no sample");
}

dsc_status dsc_image_add_tar(dsc_image_list *list, const char *path, dsc_error *err)
{
    tar t = { .list = list, .path = path, .file = DSC_FILE_INIT };
    DSC_TRY(dsc_image_list_labels(list, path, DSC_IMAGE_LABELS_NUMBERS, err));
    DSC_TRY(dsc_image_list_root(list, path, &t.root, err));
    t.item.root = t.root;
    DSC_TRY(dsc_io_open(list->io, path, DSC_IO_READ_ONLY, &t.file, err));
    const dsc_status status = take_all(&t, err);
    (void)dsc_io_close(list->io, &t.file, NULL); /* only read */
    return status;
}
