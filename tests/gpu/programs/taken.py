"""Device memory that a driver takes besides the allocations of a program.

python taken.py NAME [WORDS]      prints what was found as JSON
"""

import ctypes
import struct
import sys

import driver
from driver import U64, call, code, function, has, load
from say import say
from used import MIB, Used

SMS, THREADS_PER_SM, MAJOR, MINOR = 16, 39, 75, 76  # attributes
LOCAL_SIZE = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
PTX_INPUT = 1
COPIES = 8
KERNELS, INSTRUCTIONS = 4, 8192  # of an image: its code has some 16 bytes an instruction
OTHERS = (70, 75, 80, 86)  # architectures beside the device's own in the fat binary
HEAD = ".version 6.0\n.target sm_60\n.address_size 64\n"
FRAMES_KIB = (0, 1, 8, 64)
GRAPH_ATTRIBUTES = {"reserved": 2, "reserved_high": 3, "used_high": 1}


def long_kernel(name):
    """Much code that no compiler makes shorter: each step needs the one before."""
    steps = "fma.rn.f32 %x, %x, %a, %b;\nmul.rn.f32 %x, %x, %x;\n" * (INSTRUCTIONS // 2)
    return (
        f".visible .entry {name}(.param .u64 place)\n{{\n.reg .f32 %x, %a, %b;\n.reg .u64 %p;\n"
        "ld.param.u64 %p, [place];\nld.global.f32 %x, [%p];\nmov.f32 %a, %x;\nmov.f32 %b, %x;\n"
        f"{steps}st.global.f32 [%p], %x;\nret;\n}}\n"
    )


def compiled(text):
    """A cubin of the PTX `text` for this device, as the driver's own compiler makes it."""
    state, image, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    call("cuLinkCreate_v2", 0, None, None, ctypes.byref(state))
    call("cuLinkAddData_v2", state, PTX_INPUT, text, ctypes.c_size_t(len(text)), b"text", 0, None,
         None)  # fmt: skip
    call("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(count))
    found = ctypes.string_at(image, count.value)
    call("cuLinkDestroy", state)
    return found


def fat_binary(image, architectures):
    """The image once for each architecture, as nvcc packs them; of one of them it really is."""
    kind = 2 if image[:4] == b"\x7fELF" else 1
    body = image + bytes(-len(image) % 8)
    head, flags = (0x101, 64, len(body), 0, 0, 0, 1), 0x11  # 64 bits, Linux
    entries = [
        struct.pack("<HHIQIIHHIIIQQQ", kind, *head, number, 0, 0, flags, 0, 0) + body
        for number in architectures
    ]
    size = sum(map(len, entries))
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, size) + b"".join(entries)


def _of_copies(image, used):
    """Bytes a copy: by loading, by getting the kernels, by launching one, all; and the code."""
    used.more(), used.more_by_nvml()
    modules = []
    for _ in range(COPIES):
        module = ctypes.c_void_p()
        result = code("cuModuleLoadData", ctypes.byref(module), image)
        if result:
            return {"refused": result}
        modules.append(module)
    told = {"load": used.more()}
    kernels = [[function(module, f"kernel{i}") for i in range(KERNELS)] for module in modules]
    told["functions"] = used.more()
    place = driver.alloc(4)
    used.more()
    for name, some in (("first_launch", slice(1)), ("other_launches", slice(1, None))):
        for row in kernels:
            for kernel in row[some]:
                driver.launch(kernel, None, place.value)
        driver.sync()
        told[name] = used.more()
    told["nvml"] = used.more_by_nvml() or 0
    driver.free(place)
    for module in modules:
        call("cuModuleUnload", module)
    told["unload"] = used.more()
    used.more_by_nvml()
    return {name: value / COPIES for name, value in told.items()}


def modules():
    """An image alone, in a fat binary, and in one with other architectures' images beside it."""
    driver.enter()
    text = HEAD + "".join(long_kernel(f"kernel{i}") for i in range(KERNELS))
    image = compiled(text.encode() + b"\0")
    own = 10 * driver.attribute(MAJOR) + driver.attribute(MINOR)
    used = Used()
    others = [number for number in OTHERS if number != own]
    told = {"alone": _of_copies(image, used), "fat": _of_copies(fat_binary(image, [own]), used),
            "fat_of_more": _of_copies(fat_binary(image, [*others, own]), used)}  # fmt: skip
    flat = {f"{name}_{key}_kib": value / 1024 if key != "refused" else value
            for name, one in told.items() for key, value in one.items()}  # fmt: skip
    flat = {name.replace("refused_kib", "refused_code"): value for name, value in flat.items()}
    say(image_kib=len(image) / 1024, images=1 + len(others), **flat)


def frame_kernel(count):
    """Each thread writes all of its frame and reads it elsewhere: no compiler does without it."""
    steps = "mov.u64 %v, %at;\n"
    if count:  # a power of two
        steps = (
            "mov.u64 %f, frame;\nadd.u64 %f, %f, %at;\nst.local.u64 [%f], %sum;\n"
            f"mul.lo.u64 %f, %at, 5;\nand.b64 %f, %f, {count - 8};\nmov.u64 %v, frame;\n"
            "add.u64 %f, %f, %v;\nld.local.u64 %v, [%f];\n"
        )
    frame = f".local .align 8 .b8 frame[{count}];\n" if count else ""
    return (
        f"{HEAD}.visible .entry framed(.param .u64 place, .param .u64 from)\n{{\n{frame}"
        ".reg .u64 %p, %at, %f, %v, %sum;\n.reg .pred %more;\n"
        "ld.param.u64 %p, [place];\nld.param.u64 %at, [from];\nmov.u64 %sum, %at;\n"
        f"again:\n{steps}add.u64 %sum, %sum, %v;\nadd.u64 %at, %at, 8;\n"
        f"setp.lt.u64 %more, %at, {max(count, 8)};\n@%more bra again;\n"
        "st.global.u64 [%p], %sum;\nret;\n}\n"
    ).encode() + b"\0"


def local_memory():
    """Memory of a kernel's frame: at the load, at the first launch, and afterwards."""
    driver.enter()
    sms, threads = driver.attribute(SMS), driver.attribute(THREADS_PER_SM)
    place, used, told = driver.alloc(8), Used(), {}
    for kib in FRAMES_KIB:
        used.more()
        module = load(frame_kernel(kib << 10))
        kernel, size = function(module, "framed"), ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(size), LOCAL_SIZE, kernel)
        told[f"at_load_of_{kib}_kib_mib"] = used.more() / MIB
        holders = [place, U64(0)]
        words = (ctypes.c_void_p * 2)(*[ctypes.addressof(one) for one in holders])
        result = code("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, words, None)
        result = result or code("cuCtxSynchronize")
        told[f"at_launch_of_{kib}_kib_mib"] = used.more() / MIB
        told[f"frame_{kib}_kib_bytes"] = size.value
        if result:
            told["refused_code"] = result
            break
        call("cuModuleUnload", module)
        told[f"at_unload_of_{kib}_kib_mib"] = used.more() / MIB
    say(sms=sms, threads_per_sm=threads, **told)


class AllocNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS; of the pool's properties what matters is in front."""

    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int),
                ("id", ctypes.c_int), ("pool", ctypes.c_char * 72), ("access", ctypes.c_void_p),
                ("access_count", ctypes.c_size_t), ("count", ctypes.c_size_t),
                ("address", U64)]  # fmt: skip


def graph_memory():
    """A graph that allocates and frees time and again: does it take one piece, or all of them?"""
    count, nodes = int(sys.argv[2]), int(sys.argv[3])
    driver.enter()
    stream, graph, exec_, last = driver.new_stream(), ctypes.c_void_p(), ctypes.c_void_p(), None
    call("cuGraphCreate", ctypes.byref(graph), 0)
    for _ in range(nodes):
        node, freed = ctypes.c_void_p(), ctypes.c_void_p()
        wanted = AllocNode(type=1, place=1, id=0, count=count)
        after = (ctypes.c_void_p * 1)(last) if last else None
        call("cuGraphAddMemAllocNode", ctypes.byref(node), graph, after,
             ctypes.c_size_t(1 if last else 0), ctypes.byref(wanted))  # fmt: skip
        call("cuGraphAddMemFreeNode", ctypes.byref(freed), graph, ctypes.byref(node),
             ctypes.c_size_t(1), U64(wanted.address))  # fmt: skip
        last = freed.value
    name = "cuGraphInstantiateWithFlags"
    call(name, ctypes.byref(exec_), graph, U64(0))
    told = {}

    def note(when):
        for what, number in GRAPH_ATTRIBUTES.items():
            value = U64()
            call("cuDeviceGetGraphMemAttribute", 0, number, ctypes.byref(value))
            told[f"{when}_{what}_mib"] = value.value / MIB

    note("instantiated")
    if has("cuGraphUpload"):
        call("cuGraphUpload", exec_, stream)
        driver.sync(stream)
        note("uploaded")
    call("cuGraphLaunch", exec_, stream)
    driver.sync(stream)
    note("launched")
    call("cuGraphExecDestroy", exec_)
    note("destroyed")
    call("cuDeviceGraphMemTrim", 0)
    note("trimmed")
    say(node_mib=count / MIB, nodes=nodes, **told)


PROBES = (modules, local_memory, graph_memory)

if __name__ == "__main__":
    {probe.__name__: probe for probe in PROBES}[sys.argv[1]]()
