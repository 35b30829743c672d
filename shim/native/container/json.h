/* Minimal JSON reader for OCI documents, which finds one string by the names of its members. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Copies the string in member `first` of the document's top-level object, or in member `second` of
 * the object in member `first`. Returns false if there is no such string, if it does not fit, or if
 * the document is invalid. */
bool json_find_string(const char *document, const char *first, const char *second, char *out,
                      size_t size);
