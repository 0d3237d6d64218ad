# exits.py - makes a process end with a code of its own, whatever it is doing, as if it had called exit_group.
#
# No signal can do that to a program of others (ssh), or to one whose signals have another meaning (dsc-launch). Its
# first thread is stopped by ptrace, sent into the system call, and resumed. SPDX-License-Identifier: Apache-2.0
import ctypes, os, platform, struct

POKETEXT, PEEKTEXT, GETREGS, SETREGS, ATTACH, DETACH = 4, 1, 12, 13, 16, 17
WALL = 0x40000000
REGISTERS, RAX, RDI, ORIG_RAX, RIP = 27, 10, 14, 15, 16  # struct user_regs_struct of x86-64
EXIT_GROUP, SYSCALL = 231, b"\x0f\x05"
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(what, pid, address=0, data=0):
    ctypes.set_errno(0)
    result = libc.ptrace(what, pid, address, data)
    if result == -1 and ctypes.get_errno() != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {what} of {pid}")
    return result


def can_make_exit():
    return platform.machine() == "x86_64"


def make_exit(pid, code):
    registers = (ctypes.c_uint64 * REGISTERS)()
    ptrace(ATTACH, pid)
    os.waitpid(pid, WALL)
    ptrace(GETREGS, pid, 0, ctypes.addressof(registers))
    old = struct.pack("=q", ptrace(PEEKTEXT, pid, registers[RIP]))
    ptrace(POKETEXT, pid, registers[RIP], struct.unpack("=Q", SYSCALL + old[len(SYSCALL):])[0])
    registers[RAX], registers[RDI] = EXIT_GROUP, code
    registers[ORIG_RAX] = (1 << 64) - 1  # or the call that was interrupted would be begun again
    ptrace(SETREGS, pid, 0, ctypes.addressof(registers))
    ptrace(DETACH, pid)
