/* Empty, because egl.h has everything that cudaEGL.h needs. */
