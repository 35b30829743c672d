"""Kernels of the probes, as PTX that any driver since CUDA 9 takes."""

KERNELS = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry penstock_spin(.param .u64 duration)
{
.reg .u64 %start, %now, %limit;
.reg .pred %more;
ld.param.u64 %limit, [duration];
mov.u64 %start, %globaltimer;
again:
mov.u64 %now, %globaltimer;
sub.u64 %now, %now, %start;
setp.lt.u64 %more, %now, %limit;
@%more bra again;
ret;
}
.visible .entry penstock_tiny()
{
ret;
}
"""

EARLY = (  # lets a dependent launch begin at once; compute capability 9.0 and CUDA 11.8 brought it
    KERNELS.replace(b".version 6.0", b".version 7.8")
    .replace(b"sm_60", b"sm_90")
    .replace(
        b"ld.param.u64 %limit, [duration];",
        b"ld.param.u64 %limit, [duration];\ngriddepcontrol.launch_dependents;",
    )
)
