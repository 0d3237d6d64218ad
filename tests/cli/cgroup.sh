# cgroup.sh - a memory cgroup of a shell test's own: read in behind tap.sh. The test's trap calls remove_group.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
group=

# MiB: v1, or v2 where the memory controller may be given to a child. Fails where neither can be made.
make_group() {
    local own
    own=$(awk -F: '$2 == "memory" { print $3 }' /proc/self/cgroup)
    for own in "/sys/fs/cgroup/memory$own" /sys/fs/cgroup/memory; do
        group=$own/dsc-test-$$
        mkdir "$group" 2>/dev/null && echo "$1M" >"$group/memory.limit_in_bytes" 2>/dev/null && return 0
        rmdir "$group" 2>/dev/null
    done
    own=/sys/fs/cgroup$(awk -F: '$1 == 0 { print $3 }' /proc/self/cgroup)
    group=$own/dsc-test-$$
    mkdir "$group" 2>/dev/null && echo "$1M" >"$group/memory.max" 2>/dev/null &&
        echo 0 >"$group/memory.swap.max" 2>/dev/null && return 0
    rmdir "$group" 2>/dev/null
    group=
    return 1
}
remove_group() { [ -z "$group" ] || rmdir "$group" 2>/dev/null; }
in_group() { (echo $BASHPID >"$group/cgroup.procs" && exec "$@"); } # COMMAND...
