#ifndef STUB_EGL_EGL_H
#define STUB_EGL_EGL_H
typedef void *EGLStreamKHR;
typedef void *EGLImageKHR;
typedef void *EGLSyncKHR;
typedef int EGLint;
#endif
