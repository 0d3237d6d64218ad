/* disk.h - a small file system of its own for a test, on a file, where root may mount one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_DISK_H
#define DSC_TESTS_DISK_H

#include <stdbool.h>

/* `dir` is an existing empty folder; `kind` "tmpfs", "ext2" (which cannot reserve space), "ext4". The image lies beside
 * it as DIR.img. False: not allowed here, or no mkfs; nothing is left then. */
bool disk_mount(const char *dir, const char *kind, int mib);
/* Unmounts and removes the image. */
void disk_unmount(const char *dir);
/* Writes a file "full" until there is no room. */
void disk_fill(const char *dir);

#endif
