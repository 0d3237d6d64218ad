/* table.c - the rows of config_keys.def, and how to find one. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/table.h"

#include <string.h>

#define NO -1, 0
#define AT(member) (int32_t)offsetof(dsc_config, member), (int32_t)sizeof(((dsc_config *)0)->member)
#define ROW_(path, type, def, range, tier, state, what, here, ...) \
    { path, def, range, what, here, DSC_KEY_##type, DSC_KEY_##state, tier, __VA_ARGS__ },
#define ROW(...) ROW_(__VA_ARGS__)
#define K(id, path, type, def, range, tier, state, field, what, here)                                                  \
    ROW(path, type, def, range, tier, state, what, here, field)
#define R(path, type, def, range, tier, state, what, here) ROW(path, type, def, range, tier, state, what, here, NO)
const dsc_config_key dsc_config_keys[DSC_KEY_COUNT] = {
#include "engine/config/config_keys.def"
};
#undef K
#undef R

const char *dsc_key_type_text(dsc_key_type type)
{
    static const char *const text[] = { "object", "integer",        "number",         "boolean", "string", "choice",
                                        "number", "number or list", "string or list", "list",    "any" };
    return text[type];
}

const char *dsc_key_state_text(dsc_key_state state)
{
    static const char *const text[] = { "honoured", "part", "mapped", "mapped", "ignored", "refused", "wrong" };
    return text[state];
}

/* "a.*.c" against "a.b.c": a star stands for one segment. */
static bool path_matches(const char *row, const char *path, size_t path_length)
{
    const char *end = path + path_length;
    while (*row != 0 && path < end) {
        if (*row == '*') {
            row++;
            while (path < end && *path != '.')
                path++;
        } else if (*row++ != *path++) {
            return false;
        }
    }
    return *row == 0 && path == end;
}

int dsc_config_key_find(const char *path)
{
    const size_t length = strlen(path);
    for (int i = 0; i < DSC_KEY_COUNT; i++)
        if (path_matches(dsc_config_keys[i].path, path, length))
            return i;
    return -1;
}

const char *dsc_config_key_leaf(int id)
{
    const char *dot = strrchr(dsc_config_keys[id].path, '.');
    return dot != NULL ? dot + 1 : dsc_config_keys[id].path;
}

bool dsc_config_key_is_in(int id, const char *parent)
{
    const char *path = dsc_config_keys[id].path, *dot = strrchr(path, '.');
    if (*parent == 0 || dot == NULL)
        return *parent == 0 && dot == NULL;
    const size_t length = strlen(parent);
    /* The row's parent may hold a star, so match it as a pattern up to its last dot. */
    char row_parent[256];
    const size_t row_length = (size_t)(dot - path);
    DSC_ASSERT(row_length < sizeof row_parent);
    memcpy(row_parent, path, row_length);
    row_parent[row_length] = 0;
    return path_matches(row_parent, parent, length);
}

int dsc_config_key_find_in(const char *parent, const char *name)
{
    if (strchr(name, '.') != NULL) /* would read as two segments */
        return -1;
    for (int i = 0; i < DSC_KEY_COUNT; i++) {
        const char *leaf = dsc_config_key_leaf(i);
        if ((strcmp(leaf, name) == 0 || strcmp(leaf, "*") == 0) && dsc_config_key_is_in(i, parent))
            return i;
    }
    return -1;
}
