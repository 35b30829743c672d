#ifndef STUB_GL_GL_H
#define STUB_GL_GL_H
typedef unsigned int GLenum;
typedef unsigned int GLuint;
#endif
