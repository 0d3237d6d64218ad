#!/usr/bin/env bash
# test_cuda_code.sh - nvcc's output. The exact kernels (exact.cu, update.cu, dora.cu, quant.cu, fp8.cu, signs.cu, exact_gemm.cu
# and binned_sum.cu of kernels/cuda/) have no operation that a compiler may fuse or shorten. The plugin has machine code
# for sm_80 and sm_90 and PTX for later GPUs of every source. Sources named *_sm90 have machine code for sm_90a only,
# with warpgroups' products and tile copies in it. The plugin's build has warnings as errors. Skipped without nvcc; the
# checker itself is tested everywhere.
# SPDX-License-Identifier: Apache-2.0
set -u
ptx=${DSC_PTX:-} plugin=${DSC_LIB:-lib}/dsc/libdsc_cuda.so
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
result() { # NAME RC FILE_WITH_WORDS
    n=$((n + 1))
    if [ "$2" -eq 0 ]; then echo "ok $n - $1"; else echo "not ok $n - $1"; sed 's/^/# /' "$3"; fi
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }

# PTX contracts no operation that states its rounding (.rn), and may contract all others. So every fp32 and fp64
# operation has .rn, and none has .ftz or .approx. The multiply-adds per square root depend on the recipe. AdamW has four
# (five with l2), Adagrad two or three, LAMB and Adafactor three to five. SGD and Lion have no more per product than their
# recipes; branches are copied, so products of one element may occur several times. Sums of squares have one in fp64 for
# each widened element, and other kernels none.
check_exact() { # FILES
    awk '
        function bad(text) { print FILENAME ": " name ": " text; failed = 1 }
        function ends() {
            if (name == "") return
            if (name ~ /adamw/) {
                if (count["sqrt"] == 0) bad("no square root")
                if (count["sub"] != count["sqrt"] || count["div"] != count["sqrt"])
                    bad(count["sub"] " subtractions, " count["div"] " divisions, " count["sqrt"] " square roots: all once an element")
                codes = name ~ /adamw_q8/ ? 2 : 0 # the search for the code of each moment begins with one
                if (count["fma32"] < (4 + codes) * count["sqrt"] || count["fma32"] > (5 + codes) * count["sqrt"])
                    bad(count["fma32"] " multiply-adds for " count["sqrt"] " elements: " 4 + codes " or " 5 + codes " each")
            } else if (name ~ /adafactor_flat/) {
                if (count["sqrt"] == 0) bad("no square root")
                if (count["div"] != count["sqrt"] || count["add"] > 0 || count["sub"] < count["sqrt"] || count["sub"] > 2 * count["sqrt"])
                    bad(count["div"] + 0 " divisions, " count["add"] + 0 " sums, " count["sub"] + 0 " subtractions, " count["sqrt"] " square roots: once, never and once or twice an element")
                if (count["fma32"] < 3 * count["sqrt"] || count["fma32"] > 5 * count["sqrt"])
                    bad(count["fma32"] " multiply-adds for " count["sqrt"] " elements: 3 to 5 each")
            } else if (name ~ /adafactor/) {
                if (count["div"] + count["sqrt"] + count["add"] > 0) bad("a division, a root or a sum that the recipe has not")
                if (count["mul"] == 0 || 4 * count["fma32"] > 3 * count["mul"] || 6 * count["sub"] > count["mul"])
                    bad(count["fma32"] + 0 " multiply-adds and " count["sub"] + 0 " subtractions for " count["mul"] + 0 " products: at most 3 in 4 and 1 in 6")
            } else if (name ~ /lamb/) {
                if (count["sqrt"] == 0) bad("no square root")
                if (count["sub"] != count["sqrt"] || count["div"] != count["sqrt"] || count["add"] != 2 * count["sqrt"])
                    bad(count["sub"] " subtractions, " count["div"] " divisions, " count["add"] " sums, " count["sqrt"] " square roots: once, once and twice an element")
                if (count["fma32"] < 3 * count["sqrt"] || count["fma32"] > 5 * count["sqrt"])
                    bad(count["fma32"] " multiply-adds for " count["sqrt"] " elements: 3 to 5 each")
            } else if (name ~ /rmsprop/) {
                if (count["sqrt"] == 0 || count["div"] != count["sqrt"] || count["add"] != count["sqrt"])
                    bad(count["div"] + 0 " divisions, " count["add"] + 0 " sums, " count["sqrt"] + 0 " square roots: all once an element")
                if (count["fma32"] < 3 * count["sqrt"] || count["fma32"] > 5 * count["sqrt"])
                    bad(count["fma32"] + 0 " multiply-adds for " count["sqrt"] " elements: 3 to 5 each")
            } else if (name ~ /(4|op_)lars/) {
                if (count["div"] + count["sqrt"] + count["add"] + count["sub"] > 0) bad("a division, a root, a sum or a difference that the recipe has not")
                if (count["fma32"] == 0 || 2 * count["fma32"] > 5 * count["mul"])
                    bad(count["fma32"] + 0 " multiply-adds for " count["mul"] + 0 " products: at most 5 for 2")
            } else if (name ~ /muon/) {
                if (count["div"] + count["sqrt"] + count["add"] > 0) bad("a division, a root or a sum that the recipe has not")
                if (count["sub"] == 0 || count["fma32"] < count["sub"] || count["fma32"] > 3 * count["sub"])
                    bad(count["fma32"] + 0 " multiply-adds for " count["sub"] + 0 " subtractions: 1 to 3 each")
            } else if (name ~ /exact_gemm_kernel/) {
                if (count["div"] + count["sqrt"] + count["sub"] > 0) bad("a division, a root or a difference")
                if (count["mul"] == 0 || count["mul"] > 2 * count["add"] || count["fma32"] < count["add"])
                    bad(count["add"] + 0 " sums, " count["mul"] + 0 " products, " count["fma32"] + 0 " multiply-adds")
            } else if (name ~ /adagrad/) {
                if (count["sqrt"] == 0) bad("no square root")
                if (count["div"] != count["sqrt"] || count["add"] != count["sqrt"] || count["mul"] > count["sqrt"])
                    bad(count["mul"] + 0 " products, " count["add"] " sums, " count["div"] " divisions, " count["sqrt"] " square roots: all once an element")
                if (count["fma32"] < 2 * count["sqrt"] || count["fma32"] > 3 * count["sqrt"])
                    bad(count["fma32"] " multiply-adds for " count["sqrt"] " elements: 2 or 3 each")
            } else if (name ~ /update_op.*(sgd|momentum|lion)/) {
                if (count["div"] + count["sqrt"] + count["add"] > 0 || (name !~ /lion/ && count["sub"] > 0))
                    bad("a division, a root or a sum that the recipe has not")
                most = (name ~ /sgd/ ? 2 : name ~ /momentum/ ? 3 : 1) * count["mul"]
                if (count["fma32"] == 0 || count["fma32"] > most)
                    bad(count["fma32"] + 0 " multiply-adds for " count["mul"] + 0 " products: at most " most)
            } else if (name ~ /(local_step|synchronize)_signs_op/) {
                if (count["sqrt"] == 0 || count["div"] != count["sqrt"] || count["add"] != count["sqrt"]) bad("roots, sums and divisions: all once an element")
                if (name ~ /synchronize/ ? count["fma32"] != count["sqrt"] || count["mul"] > count["sqrt"] || count["sub"] > 0 : \
                    count["fma32"] != 3 * count["sqrt"] || count["mul"] != 2 * count["sqrt"] || count["sub"] != count["sqrt"])
                    bad(count["fma32"] + 0 " multiply-adds, " count["mul"] + 0 " products, " count["sub"] + 0 " subtractions for " count["sqrt"] " elements")
            } else if (name ~ /regain_signs/) {
                if (count["sqrt"] == 0 || count["add"] != count["sqrt"] || count["sub"] != count["sqrt"] || 2 * count["div"] != count["sqrt"])
                    bad(count["sqrt"] + 0 " roots, " count["add"] + 0 " sums, " count["sub"] + 0 " subtractions, " count["div"] + 0 " divisions: twice an element, and once")
                if (2 * count["mul"] != 3 * count["sqrt"] || 2 * count["fma32"] != 3 * count["sqrt"])
                    bad(count["fma32"] + 0 " multiply-adds and " count["mul"] + 0 " products for " count["sqrt"] / 2 " elements: three each")
            } else if (name ~ /add_signs_op/) {
                if (count["fma32"] == 0 || count["fma32"] != count["sub"] || count["fma32"] != count["mul"] || count["fma32"] != count["add"])
                    bad(count["fma32"] + 0 " multiply-adds, " count["mul"] + 0 " products, " count["sub"] + 0 " subtractions, " count["add"] + 0 " sums: all once an element")
            } else if (name ~ /dora_factors/) {
                if (count["sqrt"] == 0 || count["sub"] > 0 || count["fma32"] == 0 || count["mul"] == 0) bad("no square root, multiply-adds or squares, or a difference")
            } else if (count["fma32"] > 0) bad("a multiply-add in fp32")
            if (name ~ /sumsq/ ? count["fma64"] != count["widened"] || count["widened"] == 0 : count["fma64"] > 0)
                bad(count["fma64"] + 0 " multiply-adds in fp64 for " count["widened"] + 0 " elements")
        }
        /\.entry/ {
            ends(); delete count; name = $0; sub(/.*\.entry */, "", name); sub(/\(.*/, "", name)
            for (k in seen) if (index(name, k)) seen[k] = 1
        }
        BEGIN { split("", count); seen["cast"] = seen["cast_stochastic"] = seen["ordered_reduce_op"] = seen["add_op"] = seen["sumsq"] = seen["adamw"] = 0
                seen["sgd"] = seen["momentum"] = seen["adagrad"] = seen["lion"] = seen["lamb"] = seen["rmsprop"] = seen["lars"] = seen["muon"] = seen["adafactor"] = seen["adafactor_flat"] = seen["exact_gemm_kernel"] = seen["direction_op"] = 0
                seen["15quantize"] = seen["dequantize"] = seen["ordered_reduce_quantized_kernel"] = 0
                seen["add_signs_op"] = seen["signs_pack"] = seen["signs_reduce"] = seen["signs_unpack"] = seen["mask_signs_op"] = seen["local_step_signs_op"] = seen["synchronize_signs_op"] = seen["regain_signs"] = 0 }
        {
            op = $1 ~ /^@/ ? $2 : $1
            if (op !~ /^(add|sub|mul|mad|fma|div|sqrt|rcp|rsqrt|ex2|lg2|sin|cos|tanh)\..*(f16|f32|f64)/) {
                if (op == "cvt.f64.f32") count["widened"]++
                if (op ~ /\.ftz/) bad(op)
                next
            }
            if (op ~ /f16/) bad(op)
            if (op !~ /\.rn\./ || op ~ /\.(ftz|approx|full|sat)\./) bad(op)
            kind = op; sub(/\..*/, "", kind)
            if (kind == "fma") kind = op ~ /f64/ ? "fma64" : "fma32"
            count[kind]++
        }
        END { ends(); for (k in seen) if (!seen[k]) { print FILENAME ": no kernel of " k; failed = 1 }; exit failed }' "$@" >"$dir/words"
}
has() { # KERNELS_AND_TEXTS... : a file with every kernel, and each TEXT in the kernel of its NAME=
    local kernel
    for kernel in cast cast_stochastic ordered_reduce_op add_op sumsq adamw sgd momentum adagrad lion lamb rmsprop lars muon adafactor adafactor_flat direction_op exact_gemm_kernel 15quantize dequantize ordered_reduce_quantized_kernel \
        add_signs_op signs_pack signs_reduce signs_unpack mask_signs_op local_step_signs_op synchronize_signs_op regain_signs; do
        case $kernel in
        sgd | momentum | adagrad | lion | lamb | rmsprop | lars | muon | adafactor | adafactor_flat) echo ".visible .entry each_update_op_${kernel}(" ;;
        *) echo ".visible .entry each_${kernel}(" ;;
        esac
        case $kernel in
        adamw) printf '\t%s\n' 'sqrt.rn.f32 a;' 'div.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' ;;
        sgd) printf '\t%s\n' 'mul.rn.f32 a;' 'fma.rn.f32 a;' ;;
        momentum) printf '\t%s\n' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' ;;
        adagrad) printf '\t%s\n' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' ;;
        lamb) printf '\t%s\n' 'sub.rn.f32 a;' 'mul.rn.f32 a;' 'add.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' ;;
        rmsprop) printf '\t%s\n' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' ;;
        lars) printf '\t%s\n' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' ;;
        adafactor) printf '\t%s\n' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' ;;
        adafactor_flat) printf '\t%s\n' 'fma.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'sqrt.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' ;;
        muon) printf '\t%s\n' 'mul.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' ;;
        exact_gemm_kernel) printf '\t%s\n' 'fma.rn.f32 a;' 'add.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' ;;
        lion) printf '\t%s\n' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'fma.rn.f32 a;' 'sub.rn.f32 a;' ;;
        add_signs_op) printf '\t%s\n' 'mul.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'add.rn.f32 a;' ;;
        local_step_signs_op) printf '\t%s\n' 'mul.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' ;;
        synchronize_signs_op) printf '\t%s\n' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' 'fma.rn.f32 a;' 'mul.rn.f32 a;' ;;
        regain_signs) printf '\t%s\n' 'mul.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'sub.rn.f32 a;' 'fma.rn.f32 a;' 'mul.rn.f32 a;' 'mul.rn.f32 a;' 'fma.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'sqrt.rn.f32 a;' 'add.rn.f32 a;' 'div.rn.f32 a;' ;;
        sumsq) printf '\t%s\n' 'cvt.f64.f32 a;' 'fma.rn.f64 a;' ;;
        esac
        [ "$kernel" != "$1" ] || printf '\t%s\n' "$2"
    done >"$dir/canary.ptx"
}
canary() { # WHAT KERNEL INSTRUCTION
    has "$2" "$3"
    if check_exact "$dir/canary.ptx"; then echo "passed" >"$dir/words"; result "the checker sees $1" 1 "$dir/words"
    else result "the checker sees $1" 0 "$dir/words"; fi
}
has none ""
check_exact "$dir/canary.ptx"; result "the checker takes the recipes" $? "$dir/words"
canary "a multiplication that may be fused" adamw 'mul.f32 %f1, %f2, %f3;'
canary "an addition that may be fused" ordered_reduce_op 'add.f32 %f1, %f2, %f3;'
canary "a multiply-add where none is written" ordered_reduce_op 'fma.rn.f32 %f1, %f2, %f3, %f4;'
canary "one subtraction too many" adamw 'sub.rn.f32 %f1, %f2, %f3;'
canary "a division that is approximate" adamw 'div.full.f32 %f1, %f2, %f3;'
canary "denormals that are flushed" ordered_reduce_op 'add.rn.ftz.f32 %f1, %f2, %f3;'
canary "a division that is not there" lion 'div.rn.f32 %f1, %f2, %f3;'
canary "a multiply-add too many" lamb 'fma.rn.f32 %f1, %f2, %f3, %f4;
	fma.rn.f32 %f1, %f2, %f3, %f4;'
canary "a difference in a product" exact_gemm_kernel 'sub.rn.f32 %f1, %f2, %f3;'
canary "a root that is not there" muon 'sqrt.rn.f32 %f1, %f2;'
canary "a sum too many" adagrad 'add.rn.f32 %f1, %f2, %f3;'
canary "a second root" rmsprop 'sqrt.rn.f32 %f1, %f2;'
canary "a difference of rates" lars 'sub.rn.f32 %f1, %f2, %f3;'
canary "a root of factors" adafactor 'sqrt.rn.f32 %f1, %f2;'
canary "a multiply-add of factors too many" adafactor 'fma.rn.f32 %f1, %f2, %f3, %f4;'
canary "a division of second moments too many" adafactor_flat 'div.rn.f32 %f1, %f2, %f3;'
canary "a sum of signs too many" add_signs_op 'add.rn.f32 %f1, %f2, %f3;'
canary "a multiply-add of a way too many" synchronize_signs_op 'fma.rn.f32 %f1, %f2, %f3, %f4;'
canary "a product of a regained gradient too many" regain_signs 'mul.rn.f32 %f1, %f2, %f3;'
canary "a fused double" sumsq 'fma.rn.f64 %fd1, %fd2, %fd3, %fd4;'

if [ -n "$ptx" ]; then check_exact $ptx; result "exact.cu, update.cu, quant.cu, fp8.cu, signs.cu, exact_gemm.cu and binned_sum.cu: every operation rounds once, as written" $? "$dir/words"
else skip "exact.cu, update.cu, quant.cu, fp8.cu, signs.cu, exact_gemm.cu and binned_sum.cu: every operation rounds once, as written" "no nvcc here"; fi

# A source's code is a fat binary in the plugin: entries of kind 1 (PTX) and 2 (machine code), each with its
# architecture.
if [ -e "$plugin" ]; then
    python3 - "$plugin" $(ls kernels/cuda/*.cu kernels/cuda/*/*.cu | grep -vc _sm90) $(ls kernels/cuda/*_sm90.cu kernels/cuda/*/*_sm90.cu | wc -l) >"$dir/words" <<'PY'
import struct, sys
data, sources, alone = open(sys.argv[1], "rb").read(), int(sys.argv[2]), int(sys.argv[3])
found, found_alone, at = 0, 0, 0
while (at := data.find(b"\x50\xed\x55\xba", at)) >= 0:
    _, _, header, size = struct.unpack_from("<IHHQ", data, at)
    entry, end, kinds = at + header, at + header + size, set()
    while entry < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
        kinds.add((kind, struct.unpack_from("<I", data, entry + 28)[0]))
        entry += header + size
    found += {(2, 80), (2, 90), (1, 90)} <= kinds
    found_alone += kinds == {(2, 90)}
    at += 4
print(f"{found} of {sources} sources have code for sm_80 and sm_90 and PTX, {found_alone} of {alone} only for sm_90a")
sys.exit(found != sources or found_alone != alone)
PY
    result "every CUDA source has code for sm_80 and sm_90, and PTX" $? "$dir/words"
else
    skip "every CUDA source has code for sm_80 and sm_90, and PTX" "libdsc_cuda.so is not built here (no nvcc)"
fi

# ptxas only notes that it runs products of warpgroups one by one. A build with that note must fail.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc deps/cuda/nvidia/cu13/bin/nvcc 2>/dev/null | head -n 1)
serial="a source whose products of warpgroups run one by one does not build"
if [ -n "$nvcc" ]; then
    cat >"$dir/serial.cu" <<'CU'
__global__ void serial(float *out, unsigned long long a, unsigned long long b, int n)
{
    float d[4] = { 0, 0, 0, 0 };
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
        d[0] += 1.0f; /* before the wait */
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = d[i];
}
CU
    make -s BUILD="$dir/build" NVCC="$nvcc" ARCH="-gencode arch=compute_90a,code=sm_90a" "$dir/build/$dir/serial.cu.o" >"$dir/words" 2>&1
    [ $? -ne 0 ] && grep -q 'products of warpgroups run one by one' "$dir/words" && ! [ -e "$dir/build/$dir/serial.cu.o" ]
    result "$serial" $? "$dir/words"
else skip "$serial" "no nvcc here"; fi

# The machine code of attention_*_sm90.cu and grouped_gemm_sm90.cu must have the instructions
# they exist for. Sums of grouped products fill most registers, and none may go to memory.
dump=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump deps/cuda/nvidia/cu13/bin/cuobjdump 2>/dev/null | head -n 1)
if [ -e "$plugin" ] && [ -n "$dump" ]; then
    "$dump" -arch sm_90a -sass "$plugin" >"$dir/sass" 2>"$dir/words"
    for instruction in HGMMA.64x64x16.F32.BF16 HGMMA.64x128x16.F32.BF16 UTMALDG.4D USETMAXREG BPT.TRAP; do
        grep -q "$instruction" "$dir/sass" || echo "no $instruction" >>"$dir/words"
    done
    [ ! -s "$dir/words" ]; result "attention for sm_90a is products of warpgroups and copies of tiles, and its waits end" $? "$dir/words"
    # Gradients of attention compute each product once for a tile and keep their sums in registers. Those that store
    # score gradients have the products of the kernel without, and 4 stores of 16 bytes in each of the two copies of a
    # step. dq of them is one product of 4 terms in each of two copies, with 16 squares transposed before each.
    awk '/Function :/ { name = $3 }
         name ~ /(dkv|dq|dq_stored)_sm90_kernel/ {
             if (/HGMMA/) products[name]++
             if (/MOVM.16.MT88/) turned[name]++
             if (/UBLKCP/) copies[name]++
             if (/STG.E.128/) stores[name]++
             if (/ (LDL|STL)/) print name ": registers in memory: " $0
         }
         END {
             for (name in products) {
                 if (name ~ /dq_stored/) {
                     kinds++
                     if (products[name] != 8 || turned[name] != 32 || !copies[name])
                         print name ": " products[name] " products, " turned[name] + 0 " squares, " copies[name] + 0 " copies"
                 } else if (name ~ /dkv.*Lb1ELb1E/) {
                     kinds++
                     plain = name; sub(/Lb1ELb1E/, "Lb1ELb0E", plain)
                     if (products[name] != products[plain] || stores[name] != stores[plain] + 8)
                         print name ": " products[name] " products and " stores[name] " stores, without them " products[plain] + 0 " and " stores[plain] + 0
                 }
             }
             if (kinds != 4) print kinds + 0 " kernels of stored score gradients, expected 4"
         }' "$dir/sass" >"$dir/words"
    [ ! -s "$dir/words" ]; result "gradients of attention that store those of scores have five products" $? "$dir/words"
    # A step has 4 products of 64 x 256 x 16 in each kind, and transposes operands whose k is in rows.
    awk '/Function :/ { name = $0 } name ~ /grouped_sm90_kernel/ {
             if (/HGMMA.64x256x16.F32.BF16/) {
                 products[/tnspA/ ? "weight" : /tnspB/ ? "input" : "forward"]++
                 if (/tnspA/ && !/tnspB/) print "transposed on the left alone: " $0
             }
             if (/UTMALDG.4D/) copies++
             if (/ (LDL|STL)/) print "registers in memory: " $0
         }
         END {
             split("forward input weight", kinds, " ")
             for (i in kinds) if (products[kinds[i]] != 4) print kinds[i] ": " products[kinds[i]] + 0 " products, expected 4"
             if (!copies) print "no UTMALDG.4D"
         }' "$dir/sass" >"$dir/words"
    [ ! -s "$dir/words" ]; result "grouped products for sm_90a are products of warpgroups, and their sums stay in registers" $? "$dir/words"
else
    skip "gradients of attention that store those of scores have five products" "no $([ -e "$plugin" ] && echo cuobjdump || echo libdsc_cuda.so) here"
    skip "grouped products for sm_90a are products of warpgroups, and their sums stay in registers" "no $([ -e "$plugin" ] && echo cuobjdump || echo libdsc_cuda.so) here"
    skip "attention for sm_90a is products of warpgroups and copies of tiles, and its waits end" "no $([ -e "$plugin" ] && echo cuobjdump || echo libdsc_cuda.so) here"
fi
echo "1..$n"
