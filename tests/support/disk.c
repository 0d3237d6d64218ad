/* disk.c - see disk.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

bool disk_mount(const char *dir, const char *kind, int mib)
{
    char command[1024], options[32];
    if (geteuid() != 0)
        return false;
    snprintf(options, sizeof options, "size=%dm", mib);
    if (strcmp(kind, "tmpfs") == 0)
        return mount("none", dir, "tmpfs", 0, options) == 0;
    snprintf(command, sizeof command,
             "exec 2>/dev/null; PATH=$PATH:/usr/sbin:/sbin; truncate -s %dM '%s.img' && mkfs.%s -q -F '%s.img' && "
             "mount -o loop '%s.img' '%s' || { rm -f '%s.img'; exit 1; }",
             mib, dir, kind, dir, dir, dir, dir);
    if (system(command) != 0)
        return false;
    snprintf(command, sizeof command, "rmdir '%s/lost+found'", dir);
    return system(command) == 0;
}

void disk_unmount(const char *dir)
{
    char path[512];
    if (umount(dir) != 0)
        perror(dir);
    snprintf(path, sizeof path, "%s.img", dir);
    (void)unlink(path); /* tmpfs has none */
}

void disk_fill(const char *dir)
{
    static const char zeros[65536];
    char path[512];
    snprintf(path, sizeof path, "%s/full", dir);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (size_t size = sizeof zeros; size >= 1024; size /= 4)
        while (write(fd, zeros, size) == (ssize_t)size)
            ;
    (void)fsync(fd); /* delayed allocation would find out only now */
    close(fd);
}
