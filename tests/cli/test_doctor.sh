#!/usr/bin/env bash
# test_doctor.sh - `dsc doctor` on this machine, and on the /sys of one with two sockets, three GPUs and two adapters.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1

pci() { # PATH VENDOR CLASS NODE: a function, and its name among all
    mkdir -p "sys/devices/$1" sys/bus/pci/devices
    echo "$2" >"sys/devices/$1/vendor"
    echo "$3" >"sys/devices/$1/class"
    echo "$4" >"sys/devices/$1/numa_node"
    ln -s "../../../devices/$1" "sys/bus/pci/devices/$(basename "$1")"
}
adapter() { # CLASS NAME PATH
    mkdir -p "sys/devices/$3/$1/$2" "sys/class/$1"
    ln -s ../.. "sys/devices/$3/$1/$2/device"
    ln -s "../../devices/$3/$1/$2" "sys/class/$1/$2"
}
node() { # NUMBER CORES
    mkdir -p "sys/devices/system/node/node$1"
    echo "$2" >"sys/devices/system/node/node$1/cpulist"
    echo "Node $1 MemTotal:       33554432 kB" >"sys/devices/system/node/node$1/meminfo"
}
node 0 0-31
node 1 32-63
switch=pci0000:00/0000:00:01.0/0000:01:00.0 # root port, switch; its ports follow
pci $switch/0000:02:00.0/0000:03:00.0 0x10de 0x030200 0
pci $switch/0000:02:01.0/0000:04:00.0 0x15b3 0x020700 0
pci pci0000:00/0000:00:02.0/0000:05:00.0 0x10de 0x030200 0
pci pci0000:80/0000:80:01.0/0000:81:00.0 0x10de 0x030000 1
pci pci0000:40/0000:40:01.0/0000:41:00.0 0x8086 0x020000 0
pci pci0000:40/0000:40:02.0/0000:42:00.0 0x1a03 0x030000 0 # a display of another vendor
adapter net ib0 $switch/0000:02:01.0/0000:04:00.0
adapter infiniband mlx5_0 $switch/0000:02:01.0/0000:04:00.0
adapter net eth0 pci0000:40/0000:40:01.0/0000:41:00.0
mkdir -p sys/devices/virtual/net/lo && ln -s ../../devices/virtual/net/lo sys/class/net/lo

row() { grep -q "^  $1  *$2\$" out; }
"$dsc" doctor >out 2>&1
report "here: it ends well" test $? -eq 0
for part in machine 'what is near what' 'built in this version' 'transport gloo' 'optional libraries' findings; do
    report "here: $part" grep -q "$part" out
done
"$dsc" doctor --sysfs "$tmp/sys" >out 2>&1
report "the other: it ends well" test $? -eq 0
report "NUMA nodes with cores and memory" grep -q 'NUMA node1  *cores 32-63, 32.0 GiB' out
report "its columns" grep -q '^  *GPU0  *GPU1  *GPU2  *eth0  *ib0/mlx5  *NUMA  at' out
report "a GPU and the adapter of its switch" row GPU0 'X  *PHB  *SYS  *NODE  *PIX  *0  *0000:03:00.0'
report "a GPU of the same host bridge" row GPU1 'PHB  *X  *SYS  *NODE  *PHB  *0  *0000:05:00.0'
report "a GPU of the other socket" row GPU2 'SYS  *SYS  *X  *SYS  *SYS  *1  *0000:81:00.0'
report "the adapters" row 'ib0/mlx5_0' 'PIX  *PHB  *SYS  *NODE  *X  *0  *0000:04:00.0'
report "only that GPU is far from every adapter" test "$(grep -c 'every network adapter' out)" = 1
report "and is named with a remedy" grep -q '^  GPU2: every network adapter .*--include' out
report "nothing that is not on PCI" test "$(grep -c '^  lo ' out)" = 0

# Entries of /sys are hostile input: long, binary and looping ones are shown or left out, and nothing breaks.
printf '\033[31m%0300d' 1 >sys/devices/system/node/node1/cpulist
ln -s loop sys/class/net/loop
ln -s /dev/null "sys/bus/pci/devices/0000:ff:00.0"
echo -1 >sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node
for i in $(seq 10 60); do adapter net "eth$i" "pci0000:40/0000:40:03.0/0000:$i:00.0"; done
"$dsc" doctor --sysfs "$tmp/sys" >out 2>&1
report "a strange one: it ends well" test $? -eq 0
report "no control bytes" test "$(grep -c "$(printf '\033')" out)" = 0
report "a node that is not told, with a remedy" grep -q '^  GPU2: its NUMA node is not known; .*--bind_core_list' out
"$dsc" doctor --sysfs "$tmp/none" >out 2>&1
report "no /sys at all" test $? -eq 0

# cuDNN is listed with its version and never needed. The libraries are made here, so the answers do not depend on the machine.
cudnn() { # C_TEXT, LINE: what doctor says beside a libcudnn.so.9 of that text
    mkdir -p lib
    rm -f lib/libcudnn.so.9
    [ -z "$1" ] || { echo "$1" >cudnn.c && ${CC:-cc} -shared -fPIC -o lib/libcudnn.so.9 cudnn.c; } || return 1
    LD_LIBRARY_PATH=$tmp/lib "$dsc" doctor --sysfs "$tmp/none" >out 2>&1 && grep -q "^  cuDNN  *$2   attention and convolutions are dsc's own without it\$" out
}
report "a cuDNN and its version" cudnn 'unsigned long cudnnGetVersion(void) { return 91002; }' '9.10.2 found, optional'
report "a cuDNN that ends the process" cudnn '#include <stdlib.h>
unsigned long cudnnGetVersion(void) { abort(); }' 'found, optional'
report "a cuDNN without the call" cudnn 'int nothing;' 'found, optional'
if ldconfig -p 2>/dev/null | grep -q 'libcudnn\.so\.9'; then skip "no cuDNN" "this machine has one"
else report "no cuDNN" cudnn '' 'not installed, not needed'; fi
end_of_tests
