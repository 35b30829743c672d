#ifndef VDPAU_STUB_H
#define VDPAU_STUB_H
/* The few VDPAU types that cudaVDPAU.h uses but does not include. */
typedef unsigned int VdpDevice;
typedef unsigned int VdpVideoSurface;
typedef unsigned int VdpOutputSurface;
typedef unsigned int VdpStatus;
typedef VdpStatus VdpGetProcAddress(VdpDevice device, unsigned int function_id, void **function);
#endif
