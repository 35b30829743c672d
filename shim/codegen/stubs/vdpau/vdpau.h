#ifndef VDPAU_STUB_H
#define VDPAU_STUB_H
/* The handful of VDPAU types that cudaVDPAU.h mentions; it expects its user to include them first. */
typedef unsigned int VdpDevice;
typedef unsigned int VdpVideoSurface;
typedef unsigned int VdpOutputSurface;
typedef unsigned int VdpStatus;
typedef VdpStatus VdpGetProcAddress(VdpDevice device, unsigned int function_id, void **function);
#endif
