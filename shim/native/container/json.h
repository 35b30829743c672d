/* As much of JSON as the OCI documents need: finding one string by the names that lead to it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Copies the string at `first` of the document's outer object, or at `second` of the object at
 * `first`. False: it is not there, is no string, does not fit, or the document is none. */
bool json_find_string(const char *document, const char *first, const char *second, char *out,
                      size_t size);
