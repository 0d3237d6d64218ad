"""dsc_ctypes.py - libdsc.so from Python, as far as the tests need it: ranks as threads, checks as TAP. The script that imports it
is called with the library's path. SPDX-License-Identifier: Apache-2.0"""
import ctypes as c
import sys
import threading

lib = c.CDLL(sys.argv[1])


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("rank", c.c_int32), ("where", c.c_char * 256), ("message", c.c_char * 512),
                ("file", c.c_char_p), ("line", c.c_int32)]


FILL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int64, c.c_int64, c.POINTER(c.c_void_p), c.POINTER(Error))


class Source(c.Structure):
    _fields_ = [("fill", FILL), ("user", c.c_void_p), ("sample_count", c.c_int64)]


class Log(c.Structure):
    _fields_ = [("fn", c.c_void_p), ("user", c.c_void_p)]


class Options(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint32), ("flags", c.c_uint32), ("config_path", c.c_char_p), ("config_text", c.c_char_p),
                ("overrides", c.c_void_p), ("override_count", c.c_int32), ("model", c.c_void_p), ("data", Source),
                ("world", c.c_void_p), ("rank", c.c_int32), ("plan_world_size", c.c_int32), ("log", Log),
                ("fail_alloc_at", c.c_int64), ("fail_comm_at", c.c_int64), ("cpu_caps_mask", c.c_uint32),
                ("default_model", c.c_char_p), ("default_data", c.c_void_p), ("default_data_count", c.c_int32),
                ("plan_gpu_bytes", c.c_int64), ("io", c.c_void_p), ("carried", c.c_void_p)]


class Result(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint32), ("step", c.c_int64), ("loss", c.c_double), ("lr", c.c_double),
                ("grad_norm", c.c_double), ("tokens", c.c_int64), ("step_ns", c.c_int64), ("skipped", c.c_bool),
                ("loss_scale", c.c_double), ("epoch", c.c_int64), ("requests", c.c_uint32), ("save_ended", c.c_bool),
                ("seq_length", c.c_int64), ("flops", c.c_double), ("counted_tokens", c.c_int64), ("reward_chosen", c.c_double),
                ("reward_rejected", c.c_double), ("reward_margin", c.c_double), ("reward_accuracy", c.c_double),
                ("data_wait_ns", c.c_int64)]


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("data", c.POINTER(c.c_float)), ("count", c.c_int64), ("columns", c.c_int64)]


lib.dsc_version.restype = c.c_char_p
NO_MODEL = 1
tests = [0]
failed = [0]


def check(name, good, detail=""):
    tests[0] += 1
    failed[0] += not good
    print(f"{'ok' if good else 'not ok'} {tests[0]} - {name}" + (f" # {detail}" if detail and not good else ""), flush=True)


def must(status, err):
    if status != 0:
        raise RuntimeError(f"{err.where.decode()}: {err.message.decode()}")


def run_world(size, body):
    """body(rank, open_engine) in one thread per rank; returns what each returned."""
    world, err = c.c_void_p(), Error()
    must(lib.dsc_world_open(size, c.byref(world), c.byref(err)), err)
    results, problems = [None] * size, []

    def rank_main(rank):
        engine, rank_err = c.c_void_p(), Error()

        def open_engine(**fields):
            options = Options(struct_bytes=c.sizeof(Options), world=world, rank=rank, cpu_caps_mask=0xFFFFFFFF)
            for key, value in fields.items():
                setattr(options, key, value)
            must(lib.dsc_engine_open(c.byref(engine), c.byref(options), c.byref(rank_err)), rank_err)
            return engine
        try:
            results[rank] = body(rank, open_engine)
        except Exception as problem:  # shown by the main thread
            problems.append(problem)
        lib.dsc_engine_close(c.byref(engine))

    threads = [threading.Thread(target=rank_main, args=(r,)) for r in range(size)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    lib.dsc_world_close(c.byref(world))
    if problems:
        raise problems[0]
    return results
